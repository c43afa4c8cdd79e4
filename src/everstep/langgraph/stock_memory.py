"""What an InMemorySaver of LangGraph's holds, read as it is. Nothing is ever written there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.saved import Pending
from everstep.langgraph.stock_savers import (
    Attached,
    Outline,
    Source,
    SourceEntry,
    SourceRow,
    entry_of,
    out_of_shape,
)
from everstep.langgraph.stock_values import refusing, remembering
from everstep.stores.protocol import Key


class MemorySource(Source):
    """What an InMemorySaver of this process holds. Each thread is looked at as it was when reading it began."""

    def __init__(self, saver: Any, serde: Any) -> None:
        super().__init__("an InMemorySaver", serde if serde is not None else refusing(saver.serde))
        self._saver = saver
        self._early: dict[str, list[Key]] = {}
        """By thread: which checkpoints had writes when the list of threads was made, stored or not."""
        self._seen: Any = None
        """A saver with the thread that is being read, and nothing else."""

    def threads(self) -> dict[str, int]:
        self._early = {}
        for key in list(self._saver.writes):
            self._early.setdefault(key[0], []).append(Key(*key))
        last: dict[str, str] = dict.fromkeys(self._early, "")
        counts: dict[str, int] = dict.fromkeys(self._early, 0)
        for thread_id, namespaces in list(self._saver.storage.items()):
            ids = [name for held in list(namespaces.values()) for name in list(held)]
            if ids:
                counts[thread_id], last[thread_id] = len(ids), max(ids)
        return {name: counts[name] for name in sorted(counts, key=lambda name: (last[name], name))}

    @property
    def sees_many(self) -> bool:
        return False

    def outlines(self, thread_ids: Sequence[str]) -> list[Outline]:
        (thread_id,) = thread_ids
        self._see(thread_id)
        entries: list[SourceEntry] = []
        heads: dict[str, str] = {}
        for namespace, held in self._seen.storage[thread_id].items():
            for checkpoint_id, (_, _, parent_id) in held.items():
                entries.append(entry_of(thread_id, namespace, checkpoint_id, parent_id))
            if held:
                heads[namespace] = max(held)
        written = {Key(*key): Attached(list(held), 0) for key, held in self._seen.writes.items()}
        return [Outline(entries, heads, written)]

    def _see(self, thread_id: str) -> None:
        """Copy what is there of a thread: the dicts, not the bytes in them."""
        from langgraph.checkpoint.memory import InMemorySaver

        self._seen = InMemorySaver(serde=remembering(self._serde))
        storage = self._seen.storage[thread_id]
        for namespace, held in list(self._saver.storage.get(thread_id, {}).items()):
            storage[namespace] = dict(held)
        stored = [Key(thread_id, namespace, name) for namespace, held in storage.items() for name in held]
        for key in dict.fromkeys([*stored, *self._early.get(thread_id, ())]):
            written = self._saver.writes.get(tuple(key))
            if written:
                self._seen.writes[tuple(key)] = dict(written)
        self._seen.blobs = self._saver.blobs  # a version of a channel does not change

    def metadata(self, thread_id: str, keys: Sequence[Key]) -> dict[Key, dict[str, Any]]:
        storage = self._seen.storage[thread_id]
        found: dict[Key, dict[str, Any]] = {}
        for key in keys:
            kind, data = storage[key.namespace][key.checkpoint_id][1]
            found[key] = self._loaded(kind, data, key)
        return found

    def rows(self, entries: Sequence[SourceEntry], written: Mapping[Key, Attached]) -> Iterator[SourceRow]:
        for key, _, _ in entries:
            (kind, data), (metadata_kind, metadata), _ = self._seen.storage[key.thread_id][key.namespace][
                key.checkpoint_id
            ]
            with QUIET:
                checkpoint = self._loaded(kind, data, key)
                if not isinstance(checkpoint, dict):
                    raise out_of_shape(key)
                values, size = self._values(key, checkpoint.get("channel_versions") or {})
            pending, more = self.writes(key) if key in written else ([], 0)
            whole = {**checkpoint, "channel_values": values}
            size += more + len(data) + len(metadata)
            yield SourceRow(whole, self._loaded(metadata_kind, metadata, key), pending, size)

    def _values(self, key: Key, versions: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        size = 0
        for channel, version in versions.items():
            kind, data = self._saver.blobs.get((key.thread_id, key.namespace, channel, version), ("empty", b""))
            if kind != "empty":
                values[channel] = self._loaded(kind, data, key, f"the channel {channel!r}")
                size += len(data)
        return values, size

    def writes(self, key: Key) -> tuple[list[Pending], int]:
        found: list[Pending] = []
        size = 0
        for (task_id, idx), (_, channel, (kind, data), path) in self._seen.writes.get(tuple(key), {}).items():
            found.append(Pending(task_id, idx, channel, self._loaded(kind, data, key, f"a write to {channel!r}"), path))
            size += len(data)
        return found, size

    def size_bytes(self) -> int:
        """Return what the values take, packed: there is no disk."""
        saver = self._saver
        held = list(saver.blobs.values())
        for written in list(saver.writes.values()):
            held += [packed for _, _, packed, _ in list(written.values())]
        for namespaces in list(saver.storage.values()):
            for stored in list(namespaces.values()):
                for checkpoint, metadata, _ in list(stored.values()):
                    held += [checkpoint, metadata]
        return sum(len(data) for _, data in held)

    def saver(self) -> Any:
        return _Seen(self)

    def close(self) -> None:
        self._seen = None

    def _begin(self) -> None: ...

    def _end(self) -> None: ...

    def translated(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _Seen:
    """The stock saver, with the thread that is being read."""

    def __init__(self, source: MemorySource) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source._seen, name)
