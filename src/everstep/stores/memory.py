"""The store in memory: ordered keys and values in a dictionary, and one lock. Gone with the process.

It is the plainest backend of `keyvalue`. What was put is bytes, as everywhere, so that a caller's later changes cannot
reach what was saved.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Self

from everstep.errors import StoreClosed
from everstep.runtime import forks
from everstep.runtime.interrupts import deferred
from everstep.stores.keyvalue.store import KeyValueStore

# A new key moves at most so many others. With larger blocks that takes longer, with smaller ones there are
# more blocks.
_BLOCK_MAX = 1024


class MemoryStore(KeyValueStore):
    """A store in this process's memory."""

    def __init__(self) -> None:
        super().__init__(MemoryKeyValues())


class SortedKeys:
    """Keys in order. They are held in blocks, so that a new one moves no more than the others of its block."""

    def __init__(self) -> None:
        self._starts: list[bytes] = [b""]
        """What is in a block is not less than this, and less than the start of the next block."""
        self._blocks: list[list[bytes]] = [[]]

    def add(self, key: bytes) -> None:
        """Take in a key that is not there."""
        at = bisect_right(self._starts, key) - 1
        block = self._blocks[at]
        insort(block, key)
        if len(block) > _BLOCK_MAX:
            upper = block[_BLOCK_MAX // 2 :]
            del block[_BLOCK_MAX // 2 :]
            self._starts.insert(at + 1, upper[0])
            self._blocks.insert(at + 1, upper)

    def remove(self, key: bytes) -> None:
        """Drop a key, if it is there."""
        at = bisect_right(self._starts, key) - 1
        block = self._blocks[at]
        place = bisect_left(block, key)
        if place < len(block) and block[place] == key:
            del block[place]
            if not block and at:
                del self._starts[at], self._blocks[at]

    def between(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the keys from `start` on that are less than `end`."""
        at = bisect_right(self._starts, start) - 1
        low = bisect_left(self._blocks[at], start)
        while at < len(self._blocks):
            block = self._blocks[at]
            high = bisect_left(block, end)
            yield from block[low:high]
            if high < len(block):
                return
            at += 1
            low = 0

    def between_reversed(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """Yield the same keys, the greatest first."""
        at = bisect_left(self._starts, end) - 1
        while at >= 0:
            block = self._blocks[at]
            low = bisect_left(block, start)
            yield from reversed(block[low : bisect_left(block, end)])
            if low:
                return
            at -= 1


class MemoryKeyValues:
    """A backend in memory. Gone with the process. It is its own transaction: one lock is for all."""

    address = "memory://"
    finds_damage = True
    limit_seconds = None

    def __init__(self) -> None:
        # Reentrant: a turn commits inside the transaction that it has begun.
        self._lock = threading.RLock()
        self._values: dict[bytes, bytes] = {}
        self._keys = SortedKeys()
        self._undo: list[tuple[bytes, bytes | None]] = []
        """What the keys that were changed in this transaction had before."""
        self._pauses: list[deferred] = []
        """One for each transaction under way: Ctrl-C waits for its end, or it would leave the lock taken."""
        # The method of the dictionary itself, since it is called more often than anything else here.
        self.get = self._values.get
        self.is_closed = False
        self._fork_guard = forks.hold(self._lock, 2)

    def read(self, deadline: float) -> Self:  # noqa: ARG002  # nobody has the lock for long
        return self

    write = read

    def __enter__(self) -> Self:
        pause = deferred()
        pause.__enter__()
        # Ctrl-C is put off before the lock is taken, or it could strike in between and leave it taken.
        self._lock.acquire()
        self._pauses.append(pause)
        if self.is_closed:
            self._pauses.pop()
            self._lock.release()
            pause.__exit__(None, None, None)
            raise StoreClosed("this memory store is closed")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        pause = self._pauses.pop()
        if kind is not None:
            self._take_back()
        elif not self._pauses:
            self._undo.clear()
        self._lock.release()
        pause.__exit__(kind, error, trace)

    def _take_back(self) -> None:
        while self._undo:
            key, value = self._undo.pop()
            if value is None:
                self._values.pop(key, None)
                self._keys.remove(key)
            else:
                if key not in self._values:
                    self._keys.add(key)
                self._values[key] = value

    def scan(self, start: bytes, end: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        values = self._values
        if reverse:
            found = self._keys.between_reversed(start, end)
        else:
            found = self._keys.between(start, end)
        for key in found:
            yield key, values[key]

    def put(self, key: bytes, value: bytes) -> None:
        before = self._values.get(key)
        self._undo.append((key, before))
        if before is None:
            self._keys.add(key)
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        before = self._values.get(key)
        if before is not None:
            self._undo.append((key, before))
            self._keys.remove(key)
            del self._values[key]

    def close(self) -> None:
        self.is_closed = True
