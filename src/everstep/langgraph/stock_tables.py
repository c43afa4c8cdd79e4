"""What LangGraph's own savers keep in the tables of a database, whichever it is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from everstep.langgraph.saved import Pending
from everstep.langgraph.stock_savers import Attached, Outline, Source, SourceEntry, entry_of
from everstep.stores.protocol import Key


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
