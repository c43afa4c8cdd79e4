"""What LangGraph's own savers hold, read as it is: nothing is ever written there. Here: in the file of a SqliteSaver.

See also `stock_postgres` and `stock_memory`. Values go through the
savers' own serializer. Bytes that were met a moment ago are not decoded again: what is returned may share parts with
what was returned before, so nobody may change it.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ormsgpack

from everstep.errors import (
    CheckpointCorrupted,
    InvalidInput,
    MissingDependency,
    StoreMismatch,
    StoreUnavailable,
    UnregisteredType,
)
from everstep.langgraph.checkpoints import Pending
from everstep.langgraph.gc_pause import QUIET
from everstep.opening.addresses import place_of
from everstep.stores.protocol import Key

_EVERSTEP = 0x45565354  # the application id of our own files
_MEMO_BYTES_MAX = 32 << 20
_MEMO_ITEM_BYTES_MAX = 1 << 20
_PLAIN = frozenset((type(None), bool, int, float, str, bytes, list, dict))


class SourceEntry(NamedTuple):
    """A checkpoint as a list of the source shows it."""

    key: Key
    parent: Key | None
    size_bytes: int = 0
    """About what it takes by itself; channels that are kept beside it do not count."""


class Attached(NamedTuple):
    """The pending writes of a checkpoint as a list of the source shows them."""

    names: Sequence[tuple[str, int]]
    """Task and number."""
    size_bytes: int


class Outline(NamedTuple):
    """What there is of a thread, without values."""

    entries: Sequence[SourceEntry]
    """In any order."""
    heads: Mapping[str, str]
    """By namespace: the id that the stock saver takes for the newest."""
    written: Mapping[Key, Attached]
    """The pending writes, by the checkpoint they belong to."""


class SourceRow(NamedTuple):
    """A checkpoint of the source, with its values and pending writes."""

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    writes: Sequence[Pending]
    size_bytes: int
    """What was read for it."""


class Source(ABC):
    """What a stock saver holds. Inside `reading` it is seen as of one moment."""

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

    @abstractmethod
    def threads(self) -> dict[str, int]:
        """Return every thread and how many checkpoints it has, those that were active last at the end."""

    @property
    def sees_many(self) -> bool:
        """Whether several threads may be seen as of one moment."""
        return True

    @abstractmethod
    def outlines(self, thread_ids: Sequence[str]) -> list[Outline]:
        """Return what there is of some threads, in their order."""

    @abstractmethod
    def metadata(self, thread_id: str, keys: Sequence[Key]) -> dict[Key, dict[str, Any]]:
        """Return the metadata of checkpoints."""

    @abstractmethod
    def rows(self, entries: Sequence[SourceEntry], written: Mapping[Key, Attached]) -> Iterator[SourceRow]:
        """Yield checkpoints of threads that were outlined, in the order given."""

    @abstractmethod
    def writes(self, key: Key) -> tuple[list[Pending], int]:
        """Return the writes of a checkpoint, and their size."""

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


class TableSource(Source):
    """A database of a stock saver."""

    _value: str
    """The column of a write's value."""
    _own_size: str
    """What a row of `checkpoints` takes."""
    _has_task_path: bool

    def threads(self) -> dict[str, int]:
        rows = self._all(
            "SELECT thread_id, sum(n) FROM (SELECT thread_id, count(*) AS n, max(checkpoint_id) AS last "
            "FROM checkpoints GROUP BY thread_id UNION ALL SELECT DISTINCT thread_id, 0, '' FROM {writes}) t "
            "GROUP BY thread_id ORDER BY max(last), thread_id"
        )
        return {thread_id: int(count) for thread_id, count in rows}

    def outlines(self, thread_ids: Sequence[str]) -> list[Outline]:
        entries: dict[str, list[SourceEntry]] = {}
        for thread_id, *row in self._about(f"checkpoint_ns, checkpoint_id, parent_checkpoint_id, {self._own_size}",
                                           "checkpoints", thread_ids):  # fmt: skip
            entries.setdefault(thread_id, []).append(entry_of(thread_id, *row))
        heads: dict[str, dict[str, str]] = {}
        for thread_id, namespace, head in self._about(
            "checkpoint_ns, max(checkpoint_id)", "checkpoints", thread_ids, "GROUP BY thread_id, checkpoint_ns"
        ):
            heads.setdefault(thread_id, {})[namespace] = head
        written = self._written(thread_ids)
        return [Outline(entries.get(name, []), heads.get(name, {}), written.get(name, {})) for name in thread_ids]

    def _written(self, thread_ids: Sequence[str]) -> dict[str, dict[Key, Attached]]:
        names: dict[Key, list[tuple[str, int]]] = {}
        sizes: dict[Key, int] = {}
        columns = f"checkpoint_ns, checkpoint_id, task_id, idx, length({self._value})"
        for thread_id, namespace, checkpoint_id, task_id, idx, size in self._about(columns, "{writes}", thread_ids):
            key = Key(thread_id, namespace, checkpoint_id)
            names.setdefault(key, []).append((task_id, idx))
            sizes[key] = sizes.get(key, 0) + (size or 0)
        found: dict[str, dict[Key, Attached]] = {}
        for key, held in names.items():
            found.setdefault(key.thread_id, {})[key] = Attached(held, sizes[key])
        return found

    @abstractmethod
    def _about(self, columns: str, table: str, thread_ids: Sequence[str], rest: str = "") -> list[Any]:
        """Return the name and these columns of the rows of some threads."""

    def writes(self, key: Key) -> tuple[list[Pending], int]:
        rows = self._all(
            f"SELECT {self._write_columns} FROM {{writes}} "
            "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
            *key,
        )
        return self._pending(key, rows)

    @property
    def _write_columns(self) -> str:
        path = "task_path" if self._has_task_path else "''"
        return f"task_id, idx, channel, type, {self._value}, {path}"

    def _pending(self, key: Key, rows: Iterable[Sequence[Any]]) -> tuple[list[Pending], int]:
        """Return writes, given as `_write_columns`, and their size."""
        found: list[Pending] = []
        size = 0
        for task_id, idx, channel, kind, data, path in rows:
            value = self._loaded(kind, data, key, f"a write to {channel!r}")
            found.append(Pending(task_id, idx, channel, value, path))
            size += len(data or b"")
        return found, size

    @abstractmethod
    def _all(self, sql: str, *arguments: Any) -> list[Any]:
        """Return the rows of a query: `?` stands for an argument, `{writes}` for the table of writes."""


def open_source(url: object, serde: Any) -> Source:
    """Return the database at a URL or path, or a saver in memory: see `import_langgraph`.

    `serde` is the serializer that wrote it; None: the stock one, or the one of the saver.
    """
    from everstep.langgraph.stock_memory import MemorySource
    from everstep.langgraph.stock_postgres import PostgresSource

    if all(hasattr(url, name) for name in ("storage", "writes", "blobs", "serde")):
        return MemorySource(url, serde)
    serde = serde if serde is not None else stock_serializer()
    kind, where = place_of(url)
    if kind == "sqlite":
        return SQLiteSource(where, serde)
    if kind == "postgres":
        return PostgresSource(where, serde)
    raise InvalidInput(
        "LangGraph's own savers are read from sqlite:///path and postgresql://..., or as an InMemorySaver, not from "
        "elsewhere"
    )


# -- values ------------------------------------------------------------------------------------------------------------


def stock_serializer() -> Any:
    """Return LangGraph's own serializer, but one that refuses what it cannot rebuild instead of losing its class."""
    try:
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    except ImportError as exc:
        raise MissingDependency("langgraph-checkpoint", "langgraph") from exc
    return refusing(JsonPlusSerializer())


def refusing(serde: Any) -> Any:
    """Return LangGraph's own serializer as one that loses no class; another one is left as it is."""
    return _with_hook(serde, _Refusing(serde._unpack_ext_hook)) if _is_stock(serde) else serde


def _is_stock(serde: Any) -> bool:
    kind = f"{type(serde).__module__}.{type(serde).__qualname__}"
    return kind == "langgraph.checkpoint.serde.jsonplus.JsonPlusSerializer"


def remembering(serde: Any) -> Any:
    """Return a serializer that does not decode again what it has decoded a moment ago, if that is possible."""
    if _is_stock(serde):
        return _with_hook(serde, _Memo(serde._unpack_ext_hook))
    kind = f"{type(serde).__module__}.{type(serde).__qualname__}"
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
        # This refuses what it finds inside, too.
        inner = ormsgpack.unpackb(data, ext_hook=self, option=ormsgpack.OPT_NON_STR_KEYS)
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


class SQLiteSource(TableSource):
    """The file of a SqliteSaver or AsyncSqliteSaver, opened read-only."""

    _value = "value"
    _own_size = "0"  # rows are read one by one

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

    def metadata(self, thread_id: str, keys: Sequence[Key]) -> dict[Key, dict[str, Any]]:  # noqa: ARG002  # in the keys
        return {key: self._metadata(key, self._one("metadata", key)[0]) for key in keys}

    def _about(self, columns: str, table: str, thread_ids: Sequence[str], rest: str = "") -> list[Any]:
        found: list[Any] = []
        for thread_id in thread_ids:
            found += self._all(f"SELECT thread_id, {columns} FROM {table} WHERE thread_id = ? {rest}", thread_id)
        return found

    def rows(self, entries: Sequence[SourceEntry], written: Mapping[Key, Attached]) -> Iterator[SourceRow]:
        """A query for each costs little in a file of one's own machine."""
        for key, _, _ in entries:
            kind, data, metadata = self._one("type, checkpoint, metadata", key)
            with QUIET:
                checkpoint = self._loaded(kind, data, key)
            if not isinstance(checkpoint, dict):
                raise out_of_shape(key)
            pending, size = self.writes(key) if key in written else ([], 0)
            size += len(data or b"") + len(metadata or b"")
            yield SourceRow(checkpoint, self._metadata(key, metadata), pending, size)

    def _one(self, columns: str, key: Key) -> Any:
        rows = self._all(
            f"SELECT {columns} FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?", *key
        )
        return rows[0]

    def size_bytes(self) -> int:
        files = (self._path, Path(f"{self._path}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def saver(self) -> Any:
        try:
            from langgraph.checkpoint.sqlite import SqliteSaver
        except ImportError as exc:
            raise needed_to_verify("langgraph-checkpoint-sqlite") from exc
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


# -- all of them -------------------------------------------------------------------------------------------------------


def entry_of(
    thread_id: str, namespace: str, checkpoint_id: str, parent_id: str | None, size_bytes: int = 0
) -> SourceEntry:
    """Return a row of a list of checkpoints as an entry."""
    key = Key(thread_id, namespace, checkpoint_id)
    parent = key._replace(checkpoint_id=parent_id) if parent_id else None
    return SourceEntry(key, parent, size_bytes)


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


def out_of_shape(key: Key) -> CheckpointCorrupted:
    """Return the error for what is no checkpoint."""
    return CheckpointCorrupted(
        "the checkpoint in the source is out of shape", thread_id=key.thread_id, checkpoint_id=key.checkpoint_id
    )


def needed_to_verify(package: str) -> MissingDependency:
    """Return the error for a stock saver that is not installed."""
    return MissingDependency(package, instead=f"pip install {package}, or pass verify=False")
