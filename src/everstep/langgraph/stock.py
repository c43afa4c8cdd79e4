"""The tables of LangGraph's own savers, SQLite's and PostgreSQL's, read as they are. Nothing is ever written there.

Values go through the savers' own serializer. Bytes that were met a moment ago are not decoded again: what is returned
may share parts with what was returned before, so nobody may change it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ormsgpack

from everstep.addresses import place_of
from everstep.errors import (
    CheckpointCorrupted,
    InvalidInput,
    MissingDependency,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
    UnregisteredType,
)
from everstep.langgraph.threads import Pending
from everstep.stores.protocol import Key

_TASKS = "__pregel_tasks"
_EVERSTEP = 0x45565354  # the application id of our own files
_MEMO_BYTES_MAX, _MEMO_ITEM_BYTES_MAX = 32 << 20, 1 << 20
_PLAIN = frozenset((type(None), bool, int, float, str, bytes, list, dict))


class Entry(NamedTuple):
    """A checkpoint as a list of the source shows it."""

    key: Key
    parent: Key | None


class Row(NamedTuple):
    """A checkpoint of the source, with its values."""

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    size_bytes: int


class Source(ABC):
    """A database of a stock saver. Inside `reading` it is seen as of one moment."""

    _value: str
    """The column of a write's value."""
    _has_task_path: bool

    def __init__(self, name: str, serde: Any) -> None:
        self.name = name
        self._serde = serde
        self._decode = remembering(serde)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While inside, everything is seen as of one moment."""
        with self.translated():
            self._begin()
        try:
            yield
        finally:
            with self.translated():
                self._end()

    def threads(self) -> dict[str, int]:
        """Return every thread and how many checkpoints it has, those that were active last at the end."""
        rows = self._all(
            "SELECT thread_id, sum(n) FROM (SELECT thread_id, count(*) AS n, max(checkpoint_id) AS last "
            "FROM checkpoints GROUP BY thread_id UNION ALL SELECT DISTINCT thread_id, 0, '' FROM {writes}) t "
            "GROUP BY thread_id ORDER BY max(last), thread_id"
        )
        return {thread_id: int(count) for thread_id, count in rows}

    def entries(self, thread_id: str) -> list[Entry]:
        """Return what there is of a thread, in any order."""
        rows = self._all(
            "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ?", thread_id
        )
        return [_entry(thread_id, *row) for row in rows]

    def heads(self, thread_id: str) -> dict[str, str]:
        """Return by namespace the id that the stock saver takes for the newest."""
        sql = "SELECT checkpoint_ns, max(checkpoint_id) FROM checkpoints WHERE thread_id = ? GROUP BY checkpoint_ns"
        return dict(self._all(sql, thread_id))

    @abstractmethod
    def metadata(self, key: Key) -> dict[str, Any]:
        """Return the metadata of a checkpoint."""

    @abstractmethod
    def row(self, entry: Entry) -> Row:
        """Return a checkpoint."""

    def written(self, thread_id: str) -> dict[Key, list[tuple[str, int]]]:
        """Return the writes of a thread, each as task and number, by the checkpoint they belong to."""
        found: dict[Key, list[tuple[str, int]]] = {}
        sql = "SELECT checkpoint_ns, checkpoint_id, task_id, idx FROM {writes} WHERE thread_id = ?"
        for namespace, checkpoint_id, task_id, idx in self._all(sql, thread_id):
            found.setdefault(Key(thread_id, namespace, checkpoint_id), []).append((task_id, idx))
        return found

    def writes(self, key: Key) -> tuple[list[Pending], int]:
        """Return the writes of a checkpoint, and their size."""
        path = "task_path" if self._has_task_path else "''"
        rows = self._all(
            f"SELECT task_id, idx, channel, type, {self._value}, {path} FROM {{writes}} "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            *key,
        )
        found = [
            Pending(task_id, idx, channel, self._loaded(kind, data, key, f"a write to {channel!r}"), path)
            for task_id, idx, channel, kind, data, path in rows
        ]
        return found, sum(len(row[4] or b"") for row in rows)

    @abstractmethod
    def size_bytes(self) -> int:
        """Return what the tables take on disk."""

    @abstractmethod
    def saver(self) -> Any:
        """Return the stock saver over the same connection: it sees what we see."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""

    @abstractmethod
    def _all(self, sql: str, *arguments: Any) -> list[Any]:
        """Return the rows of a query: `?` stands for an argument, `{writes}` for the table of writes."""

    def _one(self, columns: str, key: Key) -> Any:
        rows = self._all(
            f"SELECT {columns} FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?", *key
        )
        return rows[0]

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def translated(self) -> contextlib.AbstractContextManager[None]:
        """Turn the driver's errors into ours."""

    def _loaded(self, kind: Any, data: Any, key: Key, what: str = "the checkpoint") -> Any:
        try:
            return self._decode.loads_typed((kind, data))
        except Exception as exc:
            refused = getattr(getattr(self._serde, "_unpack_ext_hook", None), "refused", None)
            if refused is not None:
                refused.add_note(f"{what}, thread {key.thread_id!r}, checkpoint {key.checkpoint_id!r} of the source")
                raise refused from None
            raise CheckpointCorrupted(
                f"{what} of the source cannot be read by its serializer ({exc!r:.200}); pass the one that wrote it as "
                "serde=",
                thread_id=key.thread_id,
                checkpoint_id=key.checkpoint_id,
            ) from exc


def open_source(url: object, serde: Any) -> Source:
    """Return the database at a URL or path; see `import_langgraph`."""
    kind, where = place_of(url)
    if kind == "sqlite":
        return SQLiteSource(where, serde)
    if kind == "postgres":
        return PostgresSource(where, serde)
    raise InvalidInput("LangGraph's own savers are read from sqlite:///path and postgresql://..., not from elsewhere")


# -- values ------------------------------------------------------------------------------------------------------------


def stock_serializer() -> Any:
    """Return LangGraph's own serializer, but one that refuses what it cannot rebuild instead of losing its class."""
    try:
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    except ImportError as exc:
        raise MissingDependency("langgraph-checkpoint", "langgraph") from exc
    serde: Any = JsonPlusSerializer()
    return _with_hook(serde, _Refusing(serde._unpack_ext_hook))


def remembering(serde: Any) -> Any:
    """Return a serializer that does not decode again what it has decoded a moment ago, if that is possible."""
    kind = f"{type(serde).__module__}.{type(serde).__qualname__}"
    if kind == "langgraph.checkpoint.serde.jsonplus.JsonPlusSerializer":
        return _with_hook(serde, _Memo(serde._unpack_ext_hook))
    if kind == "langgraph.checkpoint.serde.encrypted.EncryptedSerializer":
        clone = copy.copy(serde)
        clone.serde = remembering(serde.serde)
        return clone
    return serde


Hook = Callable[[int, bytes], Any]


def _with_hook(serde: Any, hook: Hook) -> Any:
    clone = copy.copy(serde)
    clone._unpack_ext_hook = hook
    return clone


class _Memo:
    """Objects by the bytes they were decoded from. Bounded: what was not asked for lately goes."""

    def __init__(self, decode: Hook) -> None:
        self._decode = decode
        self._recent: dict[tuple[int, bytes], Any] = {}
        self._older: dict[tuple[int, bytes], Any] = {}
        self._size = 0

    def __call__(self, code: int, data: bytes) -> Any:
        if len(data) > _MEMO_ITEM_BYTES_MAX:
            return self._decode(code, data)
        key = (code, data)
        found = self._recent.get(key)
        if found is None:
            found = self._older.get(key)
            if found is None:
                found = self._decode(code, data)
            self._recent[key] = found
            self._size += len(data)
            if self._size > _MEMO_BYTES_MAX:
                self._older, self._recent, self._size = self._recent, {}, 0
        return found


class _Refusing:
    """Raises where the stock hook would give the bare parts of an object instead of it."""

    def __init__(self, decode: Hook) -> None:
        self._decode = decode
        self.refused: UnregisteredType | None = None
        """What was raised last: the decoder hides it."""

    def __call__(self, code: int, data: bytes) -> Any:
        inner = ormsgpack.unpackb(data, ext_hook=self, option=ormsgpack.OPT_NON_STR_KEYS)  # refuses inside, too
        found = self._decode(code, data)
        if type(found) in _PLAIN and isinstance(inner, list):
            self.refused = UnregisteredType(
                ".".join(map(str, inner[:2])),
                "which cannot be rebuilt here, so its class would be lost; make its module importable, or pass "
                "serde=JsonPlusSerializer() to take its bare parts, as the stock saver does",
            )
            raise self.refused
        return found


# -- SQLite ------------------------------------------------------------------------------------------------------------


class SQLiteSource(Source):
    """The file of a SqliteSaver or AsyncSqliteSaver, opened read-only."""

    _value = "value"

    def __init__(self, path: str, serde: Any) -> None:
        super().__init__(path, serde)
        self._path = Path(path)
        if not self._path.is_file():
            raise InvalidInput(f"the source {path!r} is not there: no such file")
        with self.translated():
            self._connection = self._opened()
            try:
                self._has_task_path = self._check()
            except BaseException:
                self._connection.close()
                raise

    def _opened(self) -> sqlite3.Connection:
        uri = self._path.absolute().as_uri()
        try:
            return _connected(f"{uri}?mode=ro")
        except sqlite3.OperationalError:
            # A file in WAL mode needs others beside it, which cannot be made in a read-only folder.
            if os.path.exists(f"{self._path}-wal"):
                raise
            return _connected(f"{uri}?immutable=1")

    def _check(self) -> bool:
        """Refuse what is not the file of a stock saver; return whether writes have the place of their task."""
        if self._connection.execute("PRAGMA application_id").fetchone()[0] == _EVERSTEP:
            raise StoreMismatch(f"{self.name} is a file of Everstep; everstep.copy moves these")
        columns = {
            table: {row[1] for row in self._connection.execute(f"PRAGMA table_info({table})")}
            for table in ("checkpoints", "writes")
        }
        if not {"checkpoint_ns", "parent_checkpoint_id", "checkpoint", "type"} <= columns["checkpoints"] or not {
            "checkpoint_ns", "task_id", "idx", "channel", "value",
        } <= columns["writes"]:  # fmt: skip
            raise StoreMismatch(f"{self.name} is not a file of LangGraph's SqliteSaver: it lacks its tables")
        return "task_path" in columns["writes"]

    def metadata(self, key: Key) -> dict[str, Any]:
        return self._metadata(key, self._one("metadata", key)[0])

    def row(self, entry: Entry) -> Row:
        kind, data, metadata = self._one("type, checkpoint, metadata", entry.key)
        checkpoint = self._loaded(kind, data, entry.key)
        if not isinstance(checkpoint, dict):
            raise _out_of_shape(entry.key)
        return Row(checkpoint, self._metadata(entry.key, metadata), len(data or b"") + len(metadata or b""))

    def size_bytes(self) -> int:
        files = (self._path, Path(f"{self._path}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def saver(self) -> Any:
        try:
            from langgraph.checkpoint.sqlite import SqliteSaver
        except ImportError as exc:
            raise _needed_to_verify("langgraph-checkpoint-sqlite") from exc
        saver: Any = SqliteSaver(self._connection, serde=remembering(self._serde))
        saver.is_setup = True  # its own setup writes
        saver._has_task_path = self._has_task_path
        return saver

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> None:
        self._connection.execute("BEGIN")

    def _end(self) -> None:
        self._connection.execute("ROLLBACK")

    def _all(self, sql: str, *arguments: Any) -> list[Any]:
        with self.translated():
            return self._connection.execute(sql.replace("{writes}", "writes"), arguments).fetchall()

    def _metadata(self, key: Key, data: Any) -> dict[str, Any]:
        return _parsed(key, data) if data is not None else {}

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as exc:
            raise StoreUnavailable(f"the source {self.name} cannot be read now: {exc}") from exc
        except sqlite3.Error as exc:
            raise StoreMismatch(f"the source {self.name} cannot be read as a SQLite database: {exc}") from exc


def _connected(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("SELECT 1 FROM sqlite_master")
    except BaseException:
        connection.close()
        raise
    return connection


# -- PostgreSQL --------------------------------------------------------------------------------------------------------

_POSTGRES_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


class PostgresSource(Source):
    """The tables of a PostgresSaver or AsyncPostgresSaver, in read-only transactions."""

    _value = "blob"

    def __init__(self, url: str, serde: Any) -> None:
        place = url.partition("://")[2].partition("?")[0]
        super().__init__(place.rpartition("@")[2], serde)  # without a password
        try:
            import psycopg
        except ImportError as exc:
            raise MissingDependency("psycopg", "postgres") from exc
        from everstep.stores.postgres_pool import checked_dsn

        checked_dsn(url)
        self._driver = psycopg
        self._blobs: dict[str, dict[tuple[str, str], Any]] = {}
        with self.translated():
            # Nothing is set for the session, nothing is prepared: there may be a pooler between.
            self._connection: Any = psycopg.connect(url, autocommit=True, prepare_threshold=None)
            try:
                self._has_task_path = self._check()
            except BaseException:
                self._connection.close()
                raise

    def _check(self) -> bool:
        rows = self._all(
            "SELECT c.relname, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
            "WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attrelid IN "
            "(SELECT to_regclass(name) FROM unnest(%s::text[]) AS name)",
            list(_POSTGRES_TABLES),
        )
        columns: dict[str, set[str]] = {name: set() for name in _POSTGRES_TABLES}
        for table, column in rows:
            columns[table].add(column)
        if columns["checkpoints"] and "checkpoint_id" not in columns["checkpoints"]:
            raise StoreMismatch(
                f"{self.name} holds the tables of a ShallowPostgresSaver, which keeps no history; run the graph once "
                "with a PostgresSaver in another database, or go on with a new thread"
            )
        if not all(columns.values()) or "version" not in columns["checkpoint_blobs"]:
            raise StoreMismatch(f"{self.name} does not hold the tables of LangGraph's PostgresSaver")
        return "task_path" in columns["checkpoint_writes"]

    def metadata(self, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = self._one("metadata", key)[0]
        return found

    def row(self, entry: Entry) -> Row:
        key = entry.key
        checkpoint, metadata, versions, size = self._one(
            "checkpoint, metadata, (SELECT jsonb_object_agg(key, value) FROM jsonb_each_text("
            "checkpoint -> 'channel_versions')), pg_column_size(checkpoint) + pg_column_size(metadata)",
            key,
        )
        if not isinstance(checkpoint, dict):
            raise _out_of_shape(key)
        values, read = self._values(key, versions or {})
        if checkpoint.get("v", 4) < 4 and entry.parent is not None:
            self._migrate_sends(entry.parent, checkpoint, values)
        whole = {**checkpoint, "channel_values": {**(checkpoint.get("channel_values") or {}), **values}}
        return Row(whole, metadata, size + read)

    def _values(self, key: Key, versions: Mapping[str, str]) -> tuple[dict[str, Any], int]:
        """Return the values that are kept beside the checkpoint; those of the last one are at hand."""
        known = self._blobs.get(key.namespace, {})
        blobs = {pair: known[pair] for pair in versions.items() if pair in known}
        size, missing = 0, [pair for pair in versions.items() if pair not in known]
        rows = self._all(
            "SELECT channel, version, type, blob FROM checkpoint_blobs WHERE thread_id = %s AND checkpoint_ns = %s "
            "AND (channel, version) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
            key.thread_id, key.namespace, [pair[0] for pair in missing], [pair[1] for pair in missing],
        ) if missing else []  # fmt: skip
        for channel, version, kind, data in rows:
            size += len(data or b"")
            if kind != "empty":
                blobs[channel, version] = self._loaded(kind, data, key, f"the channel {channel!r}")
        self._blobs[key.namespace] = blobs
        return {channel: value for (channel, _), value in blobs.items()}, size

    def _migrate_sends(self, parent: Key, checkpoint: dict[str, Any], values: dict[str, Any]) -> None:
        """Do for an old checkpoint what the stock saver does: the parent's sends become a channel."""
        path = "task_path, " if self._has_task_path else ""
        rows = self._all(
            "SELECT type, blob FROM checkpoint_writes WHERE thread_id = %s AND checkpoint_id = %s AND channel = %s "
            f"ORDER BY {path}task_id, idx",
            parent.thread_id, parent.checkpoint_id, _TASKS,
        )  # fmt: skip
        if rows:
            values[_TASKS] = [self._loaded(kind, data, parent, "a send") for kind, data in rows]
            versions = checkpoint.setdefault("channel_versions", {})
            versions[_TASKS] = max(versions.values()) if versions else f"{1:032}.0000000000000000"

    def size_bytes(self) -> int:
        sql = "SELECT sum(pg_total_relation_size(to_regclass(name)))::bigint FROM unnest(%s::text[]) AS name"
        return int(self._all(sql, list(_POSTGRES_TABLES))[0][0])

    def saver(self) -> Any:
        try:
            from langgraph.checkpoint.postgres import PostgresSaver
        except ImportError as exc:
            raise _needed_to_verify("langgraph-checkpoint-postgres") from exc
        if not self._has_task_path:
            raise StoreMismatch(
                f"the tables of {self.name} are of an older layout, which the stock saver cannot read without changing "
                "them; call its setup() once, or pass verify=False"
            )
        return PostgresSaver(self._connection, serde=remembering(self._serde))

    def close(self) -> None:
        self._connection.close()

    def _begin(self) -> None:
        self._blobs = {}
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def _end(self) -> None:
        if not self._connection.broken:
            self._connection.execute("ROLLBACK")

    def _all(self, sql: str, *arguments: Any) -> list[Any]:
        with self.translated():
            query = sql.replace("{writes}", "checkpoint_writes").replace("?", "%s")
            found: list[Any] = self._connection.cursor(binary=True).execute(query, arguments).fetchall()
            return found

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except self._driver.OperationalError as exc:
            raise StoreUnavailable(f"the source {self.name} cannot be read now: {exc}") from exc
        except self._driver.Error as exc:
            raise StoreError(f"the source {self.name} said no: {exc}") from exc


# -- both --------------------------------------------------------------------------------------------------------------


def _entry(thread_id: str, namespace: str, checkpoint_id: str, parent_id: str | None) -> Entry:
    key = Key(thread_id, namespace, checkpoint_id)
    return Entry(key, key._replace(checkpoint_id=parent_id) if parent_id else None)


def _parsed(key: Key, data: Any) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointCorrupted(
            "the metadata in the source is not JSON", thread_id=key.thread_id, checkpoint_id=key.checkpoint_id
        )
    return found


def _out_of_shape(key: Key) -> CheckpointCorrupted:
    return CheckpointCorrupted(
        "the checkpoint in the source is out of shape", thread_id=key.thread_id, checkpoint_id=key.checkpoint_id
    )


def _needed_to_verify(package: str) -> MissingDependency:
    return MissingDependency(package, instead=f"pip install {package}, or pass verify=False")
