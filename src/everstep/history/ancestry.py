"""Walks through the ancestry of a family, driven over a store: each walk asks for the segments it comes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

from everstep.history import checkpoint_tree
from everstep.history.checkpoint_tree import Segments, Walk
from everstep.stores.protocol import Place, Store

T = TypeVar("T")

# How many older segments are read in advance. It doubles with each reading, from the first figure to the second.
_OLDER_MIN = 8
_OLDER_MAX = 4096


class Ancestry:
    """What segments of one family follow, read as it is needed and remembered."""

    def __init__(self, read: Callable[[Collection[int], int], Awaitable[Segments]]) -> None:
        """`read` gives what these segments follow, and so many that began just before."""
        self._read = read
        self._known: dict[int, tuple[Place, ...]] = {}
        self._older = _OLDER_MIN

    async def walk(self, walk: Walk[T]) -> T:
        """Run a walk and return its result."""
        try:
            wanted = next(walk)
            while True:
                await self._learn(wanted)
                wanted = walk.send(self._known)
        except StopIteration as done:
            result: T = done.value
            return result

    async def common(self, ours: Iterable[Place], theirs: Iterable[Place]) -> list[Place]:
        """Return the best common ancestors of some places and some others, newest first."""
        return await self.walk(checkpoint_tree.common_ancestors(ours, theirs))

    async def _learn(self, segments: Collection[int]) -> None:
        missing = [segment for segment in segments if segment not in self._known]
        if not missing:
            return
        found = await self._read(missing, self._older)
        # Whoever walks far is likely to go on, so each reading takes in twice as much as the one before.
        self._older = min(self._older * 2, _OLDER_MAX)
        for segment, follows in found.items():
            self._known[segment] = tuple(follows)
        # The store does not list a segment that follows nothing. It must not be asked for again.
        for segment in missing:
            self._known.setdefault(segment, ())


def ancestry_of(store: Store, family: str) -> Ancestry:
    """Return the ancestry of a family."""
    return Ancestry(lambda segments, older: store.segments(family, segments, older=older))
