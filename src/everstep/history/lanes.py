"""Which lane each line of a checkpoint graph is drawn in, row by row, newest first. Pure.

A lane leads down to a target: whatever names the checkpoint at its lower end. A lane never moves, a first parent stays
in its child's lane where it can, and a new lane is the leftmost free one. Used by `drawing` (text, where a child whose
parent has a lane already joins it at once) and by the rows that the page draws, where lines may run side by side down
to the checkpoint that they have in common, as long as there are few of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, Literal, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class Link(NamedTuple, Generic[T]):
    """How a child is led to one of its parents."""

    target: T
    start: int
    end: int
    kind: Literal["own", "moved", "joins", "opens"]
    """In the child's own lane; there too, and the lane that led to it from elsewhere ends; in one that leads there
    already; in a new one."""


class Lanes(Generic[T]):
    """The lanes between two rows, and the target that each of them leads to."""

    def __init__(self, *, apart: int = 0) -> None:
        """While fewer than `apart` lanes are in use, several of them may lead to the same target."""
        self._apart = apart
        self._lanes_to: dict[T, list[int]] = {}
        # A heap: the leftmost free lane is taken first, so that the graph stays narrow.
        self._free: list[int] = []
        self._count = 0

    @property
    def open(self) -> dict[int, T]:
        """The target of each lane in use."""
        target_of: dict[int, T] = {}
        for target, lanes in self._lanes_to.items():
            target_of.update(dict.fromkeys(lanes, target))
        return target_of

    @property
    def count(self) -> int:
        """How many lanes there have been side by side."""
        return self._count

    def restore(self, lanes: Iterable[tuple[int, T]]) -> None:
        """Go on with lanes that were open."""
        for lane, target in lanes:
            self._lanes_to.setdefault(target, []).append(lane)
        used = self.open.keys()
        self._count = max(used, default=-1) + 1
        self._free = [lane for lane in range(self._count) if lane not in used]
        heapify(self._free)

    def keep(self, target: T) -> int:
        """Keep the leftmost free lane for a target that nothing leads to yet, and return it."""
        lane = self._take()
        self._lanes_to.setdefault(target, []).append(lane)
        return lane

    def enter(self, targets: Iterable[T]) -> tuple[int, Sequence[int]]:
        """Return the lane of a node that all of these targets turned out to be, and the lanes that end there."""
        ended: list[int] = []
        for target in targets:
            ended += self._lanes_to.pop(target, ())
        # No child leads here: it is a head, and gets a lane of its own.
        if not ended:
            return self._take(), ()
        ended.sort()
        # The node stays in the leftmost of them; the others end in it and are free from the next row on.
        for lane in ended[1:]:
            heappush(self._free, lane)
        return ended[0], ended

    def turn(self, target: T, other: T | None) -> None:
        """Let the lanes to a target that is gone lead to another one, or end."""
        lanes = self._lanes_to.pop(target, [])
        if other is not None:
            self._lanes_to.setdefault(other, []).extend(lanes)
            return
        for lane in lanes:
            heappush(self._free, lane)

    def leave(self, lane: int, parents: Sequence[T]) -> list[Link[T]]:
        """Lead from the node in `lane` to its parents, the first one first, and return how."""
        links: list[Link[T]] = []
        heir = self._heir(lane, parents)
        if heir is not None:
            links.append(self._inherited(lane, heir))
        for parent in parents:
            if parent == heir:
                continue
            if parent in self._lanes_to:
                links.append(Link(parent, lane, min(self._lanes_to[parent]), "joins"))
            else:
                self._lanes_to[parent] = [self._take()]
                links.append(Link(parent, lane, self._lanes_to[parent][0], "opens"))
        # Only now: a parent that opens a lane must not take the lane of its child.
        if heir is None:
            heappush(self._free, lane)
        return links

    def _heir(self, lane: int, parents: Sequence[T]) -> T | None:
        """Return the parent that goes on in the child's own lane: the first one that has no lane further left."""
        if not parents:
            return None
        first = parents[0]
        if self._may_be_apart() or min(self._lanes_to.get(first, [lane])) >= lane:
            return first
        for parent in parents:
            if parent not in self._lanes_to:
                return parent
        return None

    def _may_be_apart(self) -> bool:
        if not self._apart:
            return False
        in_use = self._count - len(self._free)
        return in_use <= self._apart

    def _inherited(self, lane: int, parent: T) -> Link[T]:
        others = self._lanes_to.get(parent, [])
        if not others or self._apart:
            self._lanes_to[parent] = [*others, lane]
            return Link(parent, lane, lane, "own")
        # One lane leads to one target: the lane further right gives way to the child's own.
        self._lanes_to[parent] = [lane]
        heappush(self._free, others[0])
        return Link(parent, others[0], lane, "moved")

    def _take(self) -> int:
        if self._free:
            return heappop(self._free)
        self._count += 1
        return self._count - 1
