"""The file of LangGraph's SqliteSaver, read as it is. Nothing is ever written there."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.errors import CheckpointCorrupted, InvalidInput, StoreMismatch, StoreUnavailable
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.stock_savers import Attached, SourceEntry, SourceRow, needed_to_verify, out_of_shape
from everstep.langgraph.stock_tables import TableSource
from everstep.langgraph.stock_values import remembering
from everstep.stores.protocol import Key

_EVERSTEP = 0x45565354  # the application id of our own files


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
