"""The checkpoints of a thread and of its branches, newest first, a page at a time: each page costs what it returns."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

from everstep.stores.protocol import Key, Query, Store, Stored
from everstep.types import TASK_NAMESPACE

# Of many threads each gives a few rows; with fewer at once there would be a call for nearly every row.
_CHUNK_MIN = 16


class Listing:
    """What is listed of a thread, from a place in the order on."""

    def __init__(self, store: Store, thread_id: str, *, hidden: bool, branches: bool) -> None:
        self._store = store
        self._thread_id = thread_id
        self._hidden = hidden
        self._branches = branches
        self._before: int | None = None
        self._lines: list[_Line] | None = None
        self._at_hand: deque[Stored] = deque()
        self.heads: frozenset[Key] = frozenset()
        self.total = 0
        self.exists = False

    async def open(self, count: int, before: int | None = None) -> None:
        """Look who is there; without `before` also at the first rows, of which `count` will be asked for."""
        # What is hidden is no part of the newest that a store tells, so these rows are read line by line.
        first = before is None and not self._hidden
        # One more than asked for tells whether there is another page.
        newest = await self._store.newest(
            self._thread_id, count + 1 if first else 0, branches=self._branches, without=TASK_NAMESPACE
        )
        self._before = before
        if newest is not None:
            self.exists = True
            self.heads = newest.heads
            self.total = newest.total
            self._at_hand.extend(newest.listed)
        if newest is None or self._hidden:
            thread = await self._store.thread(self._thread_id, brief=True)
            self.exists = self.exists or thread is not None
        if self._hidden:
            self.total = 0
            for name in sorted(self.threads):
                self.total += await self._store.count(Query(thread_id=name, namespace=None, hidden="also"))

    @property
    def threads(self) -> set[str]:
        """The threads whose checkpoints are listed."""
        return {self._thread_id, *(key.thread_id for key in self.heads)}

    async def take(self, count: int) -> list[Stored]:
        """Return the next rows; fewer than asked for: these were the last."""
        found: list[Stored] = []
        while self._at_hand and len(found) < count:
            found.append(self._at_hand.popleft())
        if found:
            # Lines that are opened later go on below what was at hand.
            self._before = found[-1].seq
        while len(found) < count:
            stored = await self._next(count - len(found))
            if stored is None:
                break
            found.append(stored)
            self._before = stored.seq
        return found

    async def _next(self, wanted: int) -> Stored | None:
        """Return the newest row that is left of all lines."""
        if self._lines is None:
            # Twice its share, as some threads give more rows than others.
            chunk = max(_CHUNK_MIN, 2 * wanted // max(1, len(self.threads)))
            self._lines = []
            for name in sorted(self.threads):
                line = _Line(self._store, name, self._before, chunk if len(self.threads) > 1 else wanted, self._hidden)
                if await line.fill():
                    heapq.heappush(self._lines, line)
        if not self._lines:
            return None
        line = self._lines[0]
        stored = line.rows.popleft()
        if await line.fill():
            heapq.heapreplace(self._lines, line)
        else:
            heapq.heappop(self._lines)
        return stored


class _Line:
    """The rows of one thread that are left."""

    def __init__(self, store: Store, thread_id: str, before: int | None, chunk: int, hidden: bool) -> None:
        self._store = store
        self._thread_id = thread_id
        self._before = before
        self._chunk = chunk
        self._hidden = hidden
        self._is_over = False
        self.rows: deque[Stored] = deque()

    # The heap gives the least first, which here is the newest.
    def __lt__(self, other: _Line) -> bool:
        return self.rows[0].seq > other.rows[0].seq

    async def fill(self) -> bool:
        """Make sure that there is a row, if there is one left; return whether there is."""
        while not self.rows and not self._is_over:
            query = Query(
                thread_id=self._thread_id,
                namespace=None,
                before_seq=self._before,
                hidden="also" if self._hidden else "no",
                limit=self._chunk,
            )
            listed: Sequence[Stored] = await self._store.list_checkpoints(query)
            # Noted before tasks are left out: a page of nothing but tasks is not the end.
            self._is_over = len(listed) < self._chunk
            if listed:
                self._before = listed[-1].seq
            self.rows.extend(stored for stored in listed if stored.record.key.namespace != TASK_NAMESPACE)
        return bool(self.rows)
