"""What was put or read last, as it was written: what the next checkpoint is written from. Both faces share it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from everstep.langgraph.channels import NONE_SMALL, Small, Written
from everstep.repository.recent import Recent
from everstep.runtime import forks
from everstep.stores.protocol import BaseRef, Key
from everstep.values import tree

_LINES_BYTES_MAX = 64 << 20
_LINE_OVERHEAD = 2048
_MET_MAX = 4096


class Line:
    """A checkpoint as it was written: what the next one is written from. Not changed once others know it."""

    __slots__ = (
        "base", "channels", "checked_by", "envelope", "fresh", "repeats", "rest", "size", "small", "state",
        "versions",
    )  # fmt: skip

    def __init__(
        self,
        base: BaseRef,
        channels: Mapping[str, Written],
        rest: Mapping[str, Written],
        state: tree.Node,
        size: int,
        small: Small = NONE_SMALL,
        versions: Mapping[str, Any] = MappingProxyType({}),
        envelope: bytes | None = None,
        checked_by: object = None,
    ) -> None:
        self.base = base
        self.channels = channels
        self.rest = rest
        self.state = state
        """The mapping of the channels."""
        # Twice: as bytes, and as what copies are made from.
        self.size = 2 * size + _LINE_OVERHEAD
        self.small = small
        self.versions = versions
        """Of the channels, as far as they are known: a channel of the same version has not changed."""
        self.envelope = envelope
        """What it is besides its values, packed; None if it is not kept so."""
        self.checked_by = checked_by
        """Whose rules for classes its values are known to satisfy: those of the saver that wrote or read them."""
        self.fresh: frozenset[bytes] = frozenset()
        """The objects that came with it."""
        self.repeats: int | None = None
        """What repetition in its values costs at most, if they are large and somebody has looked."""


class Lines:
    """The lines that both faces remember. Bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: OrderedDict[Key, Line] = OrderedDict()
        self._of_thread: dict[str, set[Key]] = {}
        self._met: Recent[bool] = Recent(_MET_MAX)
        self._size = 0
        self._fork_guard = forks.hold(self._lock, 2)

    def get(self, key: Key) -> Line | None:
        return self._lines.get(key)

    def add(self, line: Line, follows: Key | None = None) -> None:
        """Remember a line. The one that it follows has been continued, and is rarely needed again."""
        key = line.base.key
        with self._lock:
            if key in self._lines:
                self._drop(key)
            if follows is not None:
                self._drop(follows)
            self._lines[key] = line
            self._of_thread.setdefault(key.thread_id, set()).add(key)
            self._size += line.size
            if self._met.get(key[:2]) is None:
                self._met.put(key[:2], value=True)
            while self._size > _LINES_BYTES_MAX and len(self._lines) > 1:
                self._drop(next(iter(self._lines)))

    def has(self, thread_id: str, namespace: str) -> bool:
        """Whether something of this namespace was met lately, so that most objects are in memory."""
        return self._met.get((thread_id, namespace)) is not None

    def drop(self, key: Key) -> None:
        with self._lock:
            self._drop(key)

    def forget(self, thread_id: str) -> None:
        with self._lock:
            for key in list(self._of_thread.get(thread_id, ())):
                self._drop(key)
            self._met.forget(thread_id)

    def _drop(self, key: Key) -> None:
        line = self._lines.pop(key, None)
        if line is None:
            return
        self._size -= line.size
        left = self._of_thread[key.thread_id]
        left.discard(key)
        if not left:
            del self._of_thread[key.thread_id]
