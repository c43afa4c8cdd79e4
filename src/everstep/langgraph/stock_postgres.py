"""The tables of LangGraph's PostgresSaver, read as they are. Nothing is ever written there.

Many checkpoints are read by a few queries, as many as `_GROUP_BYTES` allow, and decoded one by one: what is far away
costs a round trip for each query.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import MissingDependency, StoreError, StoreMismatch, StoreUnavailable
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.stock_savers import Attached, SourceEntry, SourceRow, needed_to_verify, out_of_shape
from everstep.langgraph.stock_tables import TableSource
from everstep.langgraph.stock_values import remembering
from everstep.stores.protocol import Key

_TASKS = "__pregel_tasks"
_GROUP_MAX, _GROUP_BYTES = 256, 4 << 20  # of checkpoints that are read at once
_POSTGRES_TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


class PostgresSource(TableSource):
    """The tables of a PostgresSaver or AsyncPostgresSaver, in read-only transactions."""

    _value = "blob"
    _own_size = "pg_column_size(checkpoint) + pg_column_size(metadata)"

    def __init__(self, url: str, serde: Any) -> None:
        place = url.partition("://")[2].partition("?")[0]
        super().__init__(place.rpartition("@")[2], serde)  # without a password
        try:
            import psycopg
        except ImportError as exc:
            raise MissingDependency("psycopg", "postgres") from exc
        from everstep.stores.postgres.pool import checked_dsn

        checked_dsn(url)
        self._driver = psycopg
        self._blobs: dict[tuple[str, str], dict[tuple[str, str], Any]] = {}
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

    def metadata(self, thread_id: str, keys: Sequence[Key]) -> dict[Key, dict[str, Any]]:
        rows = self._all(
            f"SELECT thread_id, checkpoint_ns, checkpoint_id, metadata FROM checkpoints WHERE {_THESE}",
            [thread_id], *_columns(keys),
        )  # fmt: skip
        return {Key(*name): found for *name, found in rows}

    def _about(self, columns: str, table: str, thread_ids: Sequence[str], rest: str = "") -> list[Any]:
        text = f"SELECT thread_id, {columns} FROM {table} WHERE thread_id = ANY(%s) {rest}"
        return self._all(text, list(thread_ids))

    def rows(self, entries: Sequence[SourceEntry], written: Mapping[Key, Attached]) -> Iterator[SourceRow]:
        for group in _groups(entries, written):
            yield from _Group(self, group, written).rows()

    def size_bytes(self) -> int:
        sql = "SELECT sum(pg_total_relation_size(to_regclass(name)))::bigint FROM unnest(%s::text[]) AS name"
        return int(self._all(sql, list(_POSTGRES_TABLES))[0][0])

    def saver(self) -> Any:
        try:
            from langgraph.checkpoint.postgres import PostgresSaver
        except ImportError as exc:
            raise needed_to_verify("langgraph-checkpoint-postgres") from exc
        if not self._has_task_path:
            raise StoreMismatch(
                f"the tables of {self.name} are of an older layout, which the stock saver cannot read without changing "
                "them; call its setup() once, or pass verify=False"
            )
        return PostgresSaver(self._connection, serde=remembering(self._serde))

    def close(self) -> None:
        self._connection.close()

    def keep_last(self, key: Key, blobs: dict[tuple[str, str], Any]) -> None:
        """Keep the values of a checkpoint at hand for the next one; only one thread is at hand at a time."""
        if any(thread_id != key.thread_id for thread_id, _ in self._blobs):
            self._blobs = {}
        self._blobs[key.thread_id, key.namespace] = blobs

    def _begin(self) -> None:
        self._blobs = {}
        self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def _end(self) -> None:
        if not self._connection.broken:
            self._connection.execute("ROLLBACK")

    def _all(self, sql: str, *arguments: Any) -> list[Any]:
        with self.translated():
            # Lists of thousands of names are written in binary in a quarter of the time: nothing is escaped.
            query = sql.replace("{writes}", "checkpoint_writes").replace("?", "%b").replace("%s", "%b")
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


# The threads are asked for by themselves as well: an index can use that, however the rest is planned.
_THESE = (
    "thread_id = ANY(%s) AND (thread_id, checkpoint_ns, checkpoint_id) IN "
    "(SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]))"
)


class _Blob(NamedTuple):
    """Names the value of a channel that is kept beside the checkpoints."""

    thread_id: str
    namespace: str
    channel: str
    version: str


class _Group:
    """Checkpoints that are read by a few queries, and decoded one by one."""

    def __init__(self, source: PostgresSource, entries: Sequence[SourceEntry], written: Mapping[Key, Attached]) -> None:
        self._source = source
        self._entries = entries
        keys = [entry.key for entry in entries]
        self._found = self._read_checkpoints(keys)
        self._writes = self._read_writes([key for key in keys if key in written])
        self._sends = self._read_sends()
        self._blobs = {key: self._blobs_of(key) for key in keys}
        self._sizes = self._read_sizes()
        self._raw: dict[_Blob, tuple[str, Any]] = {}

    def rows(self) -> Iterator[SourceRow]:
        """Yield the checkpoints in the order in which they were given."""
        for place, entry in enumerate(self._entries):
            lacking = self._lacking(entry.key)
            if any(blob in self._sizes and blob not in self._raw for blob in lacking):
                self._read_blobs(place)
            with QUIET:
                row = self._row(entry.key, lacking)
            yield row

    def _row(self, key: Key, lacking: Sequence[_Blob]) -> SourceRow:
        source = self._source
        checkpoint, metadata, _, size = self._found[key]
        values, read = self._values(key, lacking)
        if key in self._sends:
            _add_sends(checkpoint, values, self._sends[key])
        pending, written = source._pending(key, self._writes.get(key, ()))
        whole = {**checkpoint, "channel_values": {**(checkpoint.get("channel_values") or {}), **values}}
        return SourceRow(whole, metadata, pending, size + read + written)

    def _blobs_of(self, key: Key) -> list[_Blob]:
        versions = self._found[key][2] or {}
        return [_Blob(key.thread_id, key.namespace, *pair) for pair in versions.items()]

    def _lacking(self, key: Key) -> list[_Blob]:
        """Return the values of a checkpoint that are not decoded yet: the last checkpoint's are at hand."""
        known = self._source._blobs.get(key[:2])
        if not known:
            return self._blobs[key]
        return [blob for blob in self._blobs[key] if blob[2:] not in known]

    def _values(self, key: Key, lacking: Sequence[_Blob]) -> tuple[dict[str, Any], int]:
        """Return the values that are kept beside the checkpoint, and the size of those that are new."""
        source = self._source
        known = source._blobs.get(key[:2], {})
        versions = self._found[key][2] or {}
        blobs = {pair: known[pair] for pair in versions.items() if pair in known}
        size = 0
        for blob in lacking:
            if blob in self._raw:
                kind, data = self._raw[blob]
                blobs[blob[2:]] = source._loaded(kind, data, key, f"the channel {blob.channel!r}")
                size += len(data or b"")
        source.keep_last(key, blobs)
        return {channel: value for (channel, _), value in blobs.items()}, size

    def _read_checkpoints(self, keys: Sequence[Key]) -> dict[Key, Any]:
        rows = self._source._all(
            "SELECT thread_id, checkpoint_ns, checkpoint_id, checkpoint, metadata, "
            "(SELECT jsonb_object_agg(key, value) FROM jsonb_each_text(checkpoint -> 'channel_versions')), "
            "pg_column_size(checkpoint) + pg_column_size(metadata) "
            f"FROM checkpoints WHERE {_THESE}",
            _threads(keys), *_columns(keys),
        )  # fmt: skip
        found: dict[Key, Any] = {}
        for thread_id, namespace, checkpoint_id, *rest in rows:
            key = Key(thread_id, namespace, checkpoint_id)
            if not isinstance(rest[0], dict):
                raise out_of_shape(key)
            found[key] = rest
        return found

    def _read_writes(self, keys: Sequence[Key]) -> dict[Key, list[Any]]:
        found: dict[Key, list[Any]] = {}
        if keys:
            rows = self._source._all(
                f"SELECT thread_id, checkpoint_ns, checkpoint_id, {self._source._write_columns} "
                f"FROM checkpoint_writes WHERE {_THESE}",
                _threads(keys), *_columns(keys),
            )  # fmt: skip
            for thread_id, namespace, checkpoint_id, *rest in rows:
                found.setdefault(Key(thread_id, namespace, checkpoint_id), []).append(rest)
        return found

    def _read_sends(self) -> dict[Key, list[Any]]:
        """Return by checkpoint what old ones have at their parents, as the stock saver does: it becomes a channel."""
        parents: dict[tuple[str, str], list[Key]] = {}
        for entry in self._entries:
            if entry.parent is not None and self._found[entry.key][0].get("v", 4) < 4:
                name = entry.key.thread_id, entry.parent.checkpoint_id
                parents.setdefault(name, []).append(entry.key)
        found: dict[Key, list[Any]] = {}
        if parents:
            path = "task_path, " if self._source._has_task_path else ""
            rows = self._source._all(
                "SELECT thread_id, checkpoint_id, type, blob FROM checkpoint_writes WHERE thread_id = ANY(%s) "
                "AND (thread_id, checkpoint_id) IN (SELECT * FROM unnest(%s::text[], %s::text[])) "
                f"AND channel = %s ORDER BY {path}task_id, idx",
                _threads(parents), *_columns(parents), _TASKS,
            )  # fmt: skip
            for thread_id, parent_id, kind, data in rows:
                for key in parents[thread_id, parent_id]:
                    value = self._source._loaded(kind, data, key._replace(checkpoint_id=parent_id), "a send")
                    found.setdefault(key, []).append(value)
        return found

    def _read_sizes(self) -> dict[_Blob, int]:
        """Return what is stored of the values that these checkpoints name, and how large each is."""
        wanted = {blob for entry in self._entries for blob in self._lacking(entry.key)}
        if not wanted:
            return {}
        rows = self._source._all(
            f"SELECT thread_id, checkpoint_ns, channel, version, length(blob) {_FROM_BLOBS}",
            _threads(wanted), *_columns(wanted),
        )  # fmt: skip
        return {_Blob(*name): size or 0 for *name, size in rows}

    def _read_blobs(self, place: int) -> None:
        """Read the values of the checkpoints from this one on, as many as may be in memory at once."""
        wanted: dict[_Blob, None] = {}
        size = 0
        for entry in self._entries[place:]:
            lacking = [blob for blob in self._lacking(entry.key) if blob in self._sizes]
            new = [blob for blob in lacking if blob not in wanted]
            size += sum(self._sizes[blob] for blob in new)
            if wanted and size > _GROUP_BYTES:
                break
            wanted.update(dict.fromkeys(new))
        rows = self._source._all(
            f"SELECT thread_id, checkpoint_ns, channel, version, type, blob {_FROM_BLOBS}",
            _threads(wanted), *_columns(wanted),
        )  # fmt: skip
        self._raw = {}
        for *name, kind, data in rows:
            blob = _Blob(*name)
            if kind == "empty":
                del self._sizes[blob]
            else:
                self._raw[blob] = kind, data


_FROM_BLOBS = (
    "FROM checkpoint_blobs WHERE thread_id = ANY(%s) AND (thread_id, checkpoint_ns, channel, version) IN "
    "(SELECT * FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]))"
)


def _add_sends(checkpoint: dict[str, Any], values: dict[str, Any], sends: list[Any]) -> None:
    values[_TASKS] = sends
    versions = checkpoint.setdefault("channel_versions", {})
    versions[_TASKS] = max(versions.values()) if versions else f"{1:032}.0000000000000000"


def _threads(names: Iterable[Sequence[str]]) -> list[str]:
    """Return the threads of some names that begin with them, each once."""
    return list(dict.fromkeys(name[0] for name in names))


def _columns(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return rows as columns, which is how a query takes many at once."""
    return [list(column) for column in zip(*rows, strict=True)]


def _groups(entries: Sequence[SourceEntry], written: Mapping[Key, Attached]) -> Iterator[list[SourceEntry]]:
    """Yield the entries in groups that may be in memory at once."""
    group: list[SourceEntry] = []
    size = 0
    for entry in entries:
        own = entry.size_bytes
        if entry.key in written:
            own += written[entry.key].size_bytes
        if group and (size + own > _GROUP_BYTES or len(group) == _GROUP_MAX):
            yield group
            group = []
            size = 0
        group.append(entry)
        size += own
    if group:
        yield group
