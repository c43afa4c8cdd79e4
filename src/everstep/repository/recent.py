"""What a process remembers about the threads it used last, bounded by number and by size.

Whoever shares one of these between Python threads holds a lock of his own around everything but `get`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")

Line = tuple[str, str]
"""A thread and a namespace."""


class Recent(Generic[V]):
    """Values by line. The line that was put first goes first when there are too many, or when they are too large.

    To forget a thread costs what is remembered of that thread, however many others there are.
    """

    def __init__(self, count_max: int, size_max: int | None = None) -> None:
        """`size_max` is in the unit in which `put` is told sizes; the newest value stays, whatever its size."""
        self._count_max = count_max
        self._size_max = size_max
        self._held: OrderedDict[Line, tuple[V, int]] = OrderedDict()
        self._namespaces: dict[str, set[str]] = {}
        """Of each thread those that are held beside its own (""). Few have any: the others take no room here."""
        self.size = 0
        """The size of all values together."""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, line: Line) -> V | None:
        """Return what was put last under this line."""
        found = self._held.get(line)
        return None if found is None else found[0]

    def put(self, line: Line, value: V, size: int = 0) -> None:
        """Remember a value as the newest, in the place of what the line had."""
        before = self._held.pop(line, None)
        if before is not None:
            self.size -= before[1]
        elif line[1]:
            self._namespaces.setdefault(line[0], set()).add(line[1])
        self._held[line] = value, size
        self.size += size
        while self._is_too_much() and len(self._held) > 1:
            self.drop(next(iter(self._held)))

    def drop(self, line: Line) -> None:
        """Forget a line."""
        found = self._held.pop(line, None)
        if found is None:
            return
        self.size -= found[1]
        if line[1]:
            left = self._namespaces[line[0]]
            left.discard(line[1])
            if not left:
                del self._namespaces[line[0]]

    def forget(self, thread_id: str) -> None:
        """Forget all lines of a thread."""
        for namespace in ("", *self._namespaces.get(thread_id, ())):
            self.drop((thread_id, namespace))

    def _is_too_much(self) -> bool:
        if len(self._held) > self._count_max:
            return True
        return self._size_max is not None and self.size > self._size_max
