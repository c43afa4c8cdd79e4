"""Places in a long history from which a page can begin: what a server keeps to jump anywhere in it.

Every so many rows the state of the lines is noted, as the cursor of a page has it: about 100 bytes. An index is built
from the top, a batch at a time, so that others get their turn; when the head has moved it is built anew from the top,
only until the lines are as they were at a place that is known.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.errors import CheckpointCorrupted, CheckpointNotFound
from everstep.history.ancestry import Ancestry, ancestry_of
from everstep.history.checkpoint_tree import Segments
from everstep.runtime import checks
from everstep.stores.protocol import Store, Stored
from everstep.views.graph import Graph, needed_segments
from everstep.views.history import LIMIT_MAX, Begin, page_from
from everstep.views.listing import Listing
from everstep.views.reading import head_of, repository_of

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

# A jump goes past at most so many rows, and an index of a million checkpoints has five thousand places.
EVERY = 200
_BATCH = 1000


class _Mark(NamedTuple):
    """A place between two rows: how many are above it, the last of these, and the lines that lead on."""

    offset: int
    seq: int
    state: list[list[Any]]


class _Walk:
    """Where a walk from the top of a history has come to."""

    def __init__(self, graph: Graph, above: tuple[Any, ...], known: Mapping[int, _Mark]) -> None:
        self.graph = graph
        self.above = above
        """What was above all rows when it began: heads, how many rows, what hides some."""
        self.known = known
        """Places of before, by the numbers of their checkpoints."""
        self.marks: list[_Mark] = []
        self.offset = 0


class Index:
    """The history of one thread, with its branches, as rows that are known by their number from the top."""

    def __init__(
        self, engine: CheckpointEngine, thread_id: str, *, hidden: bool = False, branches: bool = True
    ) -> None:
        self._engine = engine
        self._thread_id = checks.thread_id(thread_id)
        self._hidden = hidden
        self._branches = branches
        self._marks: list[_Mark] = []
        self._above: tuple[Any, ...] | None = None
        self._lock = asyncio.Lock()
        self.total = 0
        """How many rows there are, as far as is known."""
        self.is_complete = False
        """Whether it has come to the end."""

    async def build(self) -> None:
        """Look at the whole history, or, if the head has moved since, at what is new in it."""
        async with self._lock:
            await self._build()

    async def page(self, offset: int, *, limit: int = 200) -> dict[str, Any]:
        """Return the rows from a number on, as `history.page` does; `offset` says where they begin.

        It begins at the nearest place above that is known, so it costs most where the index has not come to yet.
        """
        offset = checks.count(offset, "offset")
        limit = min(max(1, checks.count(limit, "limit")), LIMIT_MAX)
        marks = self._marks
        place = bisect_right(marks, offset, key=lambda mark: mark.offset) - 1
        passed = offset
        begin = None
        if place >= 0:
            mark = marks[place]
            passed = offset - mark.offset
            begin = Begin(mark.seq, mark.state)
        found = await page_from(
            self._engine, self._thread_id, begin, passed, limit, hidden=self._hidden, branches=self._branches
        )
        return {**found, "offset": offset}

    async def _build(self) -> None:
        repository = repository_of(self._engine)
        store = repository.store
        listing = Listing(store, self._thread_id, hidden=self._hidden, branches=self._branches)
        await listing.open(_BATCH)
        if not listing.exists:
            raise CheckpointNotFound("@", self._thread_id)
        above = (listing.heads, listing.total, await self._hiding(store))
        if self.is_complete and above == self._above:
            return
        walk = _Walk(Graph(listing.threads), above, self._known(above))
        head = await head_of(store, self._thread_id)
        if head is not None:
            walk.graph.keep(head)
        ancestry: Ancestry | None = None
        while True:
            listed: list[Stored] = await listing.take(_BATCH)
            if listed:
                # What cannot be read does not tell its family where it stands alone.
                families = [stored.family for stored in listed if stored.family]
                if ancestry is None and families:
                    ancestry = ancestry_of(store, families[0])
                segments = await _followed(ancestry, listed, walk.graph)
                same = self._place(listed, segments, walk)
                if same is not None:
                    self._end(walk.marks + self._shifted(same, walk.offset), above)
                    return
            if not self.is_complete:
                # Of use at once: a page may begin at a place that is known before the index is whole.
                self._marks = walk.marks
                self.total = walk.offset
            if len(listed) < _BATCH:
                self._end(walk.marks, above)
                return
            # Others get their turn between two batches.
            await asyncio.sleep(0)

    def _place(self, listed: Sequence[Stored], segments: Segments, walk: _Walk) -> _Mark | None:
        """Go past some checkpoints, and mark places between them.

        Return the place of before, if one is met, from which on all is as it was, only further down.
        """
        for stored in listed:
            walk.graph.place(stored, segments)
            walk.offset += 1
            old = walk.known.get(stored.seq)
            if old is not None and old.state == walk.graph.state and self._fits(old, walk.offset, walk.above):
                return old
            if walk.offset % EVERY == 0:
                walk.marks.append(_Mark(walk.offset, stored.seq, walk.graph.state))
        return None

    async def _hiding(self, store: Store) -> tuple[int, ...]:
        """Return the operations that hide something: as many rows, under the same heads, may yet be others."""
        try:
            thread = await store.thread(self._thread_id)
        except CheckpointCorrupted:
            return ()
        if thread is None:
            return ()
        return tuple(sorted(thread.hidden))

    def _known(self, above: tuple[Any, ...]) -> dict[int, _Mark]:
        """Return the marks of before that may still be right, by the numbers of their checkpoints."""
        if not self.is_complete or self._above is None:
            return {}
        # What was removed or hidden below would leave known places with wrong numbers.
        has_only_grown = self._above[2] == above[2] and above[1] >= self._above[1]
        if not has_only_grown:
            return {}
        return {mark.seq: mark for mark in self._marks}

    def _shifted(self, old: _Mark, offset: int) -> list[_Mark]:
        """Return a mark of before and those below it, with the first of them at another offset."""
        shift = offset - old.offset
        return [mark._replace(offset=mark.offset + shift) for mark in self._marks if mark.seq <= old.seq]

    def _fits(self, old: _Mark, offset: int, above: tuple[Any, ...]) -> bool:
        """Whether as many rows are new above a place as there are more in all: then nothing changed below it."""
        return self._above is not None and offset - old.offset == above[1] - self._above[1]

    def _end(self, marks: list[_Mark], above: tuple[Any, ...]) -> None:
        self._marks = marks
        self._above = above
        self.total = above[1]
        self.is_complete = True


async def _followed(ancestry: Ancestry | None, listed: Sequence[Stored], graph: Graph) -> Segments:
    """Return what segments follow; nothing where that cannot be read, so that their lines end."""
    if ancestry is None:
        return {}
    try:
        return await ancestry.walk(needed_segments(listed, graph.segments))
    except CheckpointCorrupted:
        return {}
