"""What a process remembers of values that it wrote or read: heads as last seen, and objects."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from everstep.repository.recent import Recent
from everstep.runtime import forks
from everstep.stores.protocol import Stored
from everstep.values import tree
from everstep.values.overlap import Chunked

_CACHE_BYTES_MAX = 64 << 20
_HEADS_MAX = 4096
_HEADS_BYTES_MAX = 32 << 20
_HEAD_OVERHEAD = 2048  # of the record and its names, about
_ENTRY_OVERHEAD = 240  # what Python takes for an entry of a dict, its key, a tuple and two byte strings


class KnownHead(NamedTuple):
    """The head of a thread, with what its successor is written from."""

    stored: Stored
    nodes: Sequence[tree.Node]
    messages: Chunked | None
    """None: not at hand."""
    has_rivals: bool = False
    """Others had written to the thread when this was saved, since the last time: so they will have again, likely."""


class ObjectCache:
    """What both faces of a repository remember: heads by thread and namespace, objects by hash.

    It is bounded by size. An object cannot be wrong, since its hash names its content; a head may be old, and the store
    says so in the commit that rests on it.
    """

    def __init__(self, bytes_max: int | None = None) -> None:
        self._lock = threading.Lock()
        self._heads: Recent[KnownHead] = Recent(_HEADS_MAX, _HEADS_BYTES_MAX)
        self._objects: dict[bytes, tree.Content] = {}
        self.contents: Mapping[bytes, tree.Content] = self._objects
        """All the objects that are held, by hash."""
        self._bytes = 0
        self._bytes_max = _CACHE_BYTES_MAX if bytes_max is None else bytes_max
        self._fork_guard = forks.hold(self._lock, 2)

    def head(self, thread_id: str, namespace: str) -> Stored | None:
        found = self._heads.get((thread_id, namespace))
        return found.stored if found is not None else None

    def opened_head(self, head: Stored) -> KnownHead:
        """Return the head with the nodes of its values, as they were written if that was here."""
        found = self._heads.get(head.record.key[:2])
        if found is not None and found.stored is head and found.nodes:
            return found
        record = head.record
        return KnownHead(head, tree.nodes(record.children, record.body, record.sizes), None)

    def has_rivals(self, thread_id: str, namespace: str) -> bool:
        """Whether what is saved now will hardly find the head that is remembered."""
        found = self._heads.get((thread_id, namespace))
        return found is not None and found.has_rivals

    def remember(
        self,
        stored: Stored,
        nodes: Sequence[tree.Node] = (),
        messages: Chunked | None = None,
        *,
        has_rivals: bool = False,
    ) -> None:
        root = len(stored.record.body) + len(stored.record.children)
        size = (2 * root if nodes else root) + _HEAD_OVERHEAD  # the nodes hold the same bytes once more
        if messages is not None:
            size += sum(map(len, messages.chunks))
        with self._lock:
            self._heads.put(stored.record.key[:2], KnownHead(stored, nodes, messages, has_rivals), size)

    def forget(self, thread_id: str) -> None:
        with self._lock:
            self._heads.forget(thread_id)

    def content(self, key: bytes) -> tree.Content | None:
        return self._objects.get(key)

    def children_of(self, key: bytes) -> bytes | None:
        content = self._objects.get(key)
        return None if content is None else content[0]

    def add(self, objects: dict[bytes, tree.Content]) -> None:
        if not objects:
            return
        with self._lock:
            held = self._objects
            if not held.keys().isdisjoint(objects):
                objects = {key: content for key, content in objects.items() if key not in held}
            held.update(objects)
            self._bytes += _held_bytes(objects.values())
            if self._bytes > self._bytes_max:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Make room for a while: what came first goes first."""
        oldest = []
        for key, content in self._objects.items():
            if self._bytes <= self._bytes_max * 3 // 4:
                break
            self._bytes -= _held_bytes([content])
            oldest.append(key)
        for key in oldest:
            del self._objects[key]


def _held_bytes(contents: Iterable[tree.Content]) -> int:
    return sum([len(children) + len(body) + _ENTRY_OVERHEAD for children, body in contents])
