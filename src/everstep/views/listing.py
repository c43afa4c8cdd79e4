"""The checkpoints of a thread and of its branches, newest first, a page at a time: each page costs what it returns."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection
from typing import Literal

from everstep.errors import CheckpointCorrupted
from everstep.repository.around_damage import list_around, threads_around
from everstep.stores.protocol import Key, Newest, Query, Store, Stored
from everstep.types import TASK_NAMESPACE

# Of many threads each gives a few rows; with fewer at once there would be a call for nearly every row.
_CHUNK_MIN = 16
_COUNTED_AT_ONCE = 500


class Listing:
    """What is listed of a thread, from a place in the order on."""

    def __init__(self, store: Store, thread_id: str, *, hidden: bool, branches: bool) -> None:
        self._store = store
        self._thread_id = thread_id
        self._hidden = hidden
        self._branches = branches
        self._before: int | None = None
        self._lines: list[_Line] | None = None
        self._names: set[str] = set()
        self._has_given = False
        self._at_hand: deque[Stored] = deque()
        self.heads: frozenset[Key] = frozenset()
        self.total = 0
        self.exists = False
        self.damage: dict[int, CheckpointCorrupted] = {}
        """Why rows could not be read, by their numbers: something stands in for each."""
        self.trouble: CheckpointCorrupted | None = None
        """Why something else could not be read, so that rows may be missing."""

    async def open(self, count: int, before: int | None = None) -> None:
        """Look who is there; without `before` also at the first rows, of which `count` will be asked for."""
        # What is hidden is no part of the newest that a store tells, so these rows are read line by line.
        first = before is None and not self._hidden
        # One more than asked for tells whether there is another page.
        newest = await self._newest(count + 1 if first else 0)
        self._before = before
        if newest is not None:
            self.exists = True
            self.heads = newest.heads
            self.total = newest.total
            self._at_hand.extend(newest.listed)
        if newest is None or self._hidden:
            self.exists = self.exists or await self._is_there()
        if self._hidden or self.trouble is not None:
            self.total = await self._count()

    async def _newest(self, count: int) -> Newest | None:
        try:
            return await self._store.newest(self._thread_id, count, branches=self._branches, without=TASK_NAMESPACE)
        except CheckpointCorrupted as exc:
            if not count:
                self.trouble = exc
                await self._find_threads()
                return None
        # One of the rows may be damaged: they are read line by line, around it.
        return await self._newest(0)

    async def _find_threads(self) -> None:
        """Find out thread by thread who is there, where that cannot be read of all of them together."""
        known = await threads_around(self._store, self._thread_id, branches=self._branches)
        heads: set[Key] = set()
        for thread in known.values():
            heads.update(head for head in thread.heads if head.namespace != TASK_NAMESPACE)
        self._names = set(known)
        self.heads = frozenset(heads)

    async def _count(self) -> int:
        """Return how many rows there are."""
        hidden: Literal["also", "no"] = "also" if self._hidden else "no"
        total = 0
        try:
            for name in sorted(self.threads):
                total += await self._store.count(Query(thread_id=name, namespace=None, hidden=hidden))
        except CheckpointCorrupted:
            return await self._count_one_by_one()
        return total

    async def _count_one_by_one(self) -> int:
        """Return the same from a list of all of them, where the store must read what is damaged to count."""
        all_rows = Listing(self._store, self._thread_id, hidden=self._hidden, branches=self._branches)
        all_rows._names = self._names
        all_rows.heads = self.heads
        total = 0
        while True:
            listed = await all_rows.take(_COUNTED_AT_ONCE)
            total += len(listed)
            if len(listed) < _COUNTED_AT_ONCE:
                return total

    async def _is_there(self) -> bool:
        try:
            return await self._store.thread(self._thread_id, brief=True) is not None
        except CheckpointCorrupted as exc:
            self.trouble = exc
            return True

    @property
    def threads(self) -> set[str]:
        """The threads whose checkpoints are listed."""
        return {self._thread_id, *(key.thread_id for key in self.heads), *self._names}

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
        self._has_given = self._has_given or bool(found)
        if self.trouble is not None and not self._has_given:
            # Nothing of it can be shown, which is not the same as nothing there.
            raise self.trouble
        return found

    async def _next(self, wanted: int) -> Stored | None:
        """Return the newest row that is left of all lines."""
        if self._lines is None:
            # Twice its share, as some threads give more rows than others.
            chunk = max(_CHUNK_MIN, 2 * wanted // max(1, len(self.threads)))
            if len(self.threads) == 1:
                chunk = wanted
            self._lines = []
            for name in sorted(self.threads):
                for line in await self._lines_of(name, chunk):
                    if await self._fill(line):
                        heapq.heappush(self._lines, line)
        if not self._lines:
            return None
        line = self._lines[0]
        stored = line.rows.popleft()
        if await self._fill(line):
            heapq.heapreplace(self._lines, line)
        else:
            heapq.heappop(self._lines)
        return stored

    async def _fill(self, line: _Line) -> bool:
        """Make sure that a line has a row, if there is one left; return whether there is."""
        try:
            return await line.fill(self.damage)
        except CheckpointCorrupted as exc:
            # Nothing of it can be listed. What can be of others is shown.
            self.trouble = exc
            return False

    async def _lines_of(self, thread_id: str, chunk: int) -> list[_Line]:
        """Return what gives the rows of a thread: one line for all, or one for each namespace if that is damaged."""
        namespaces = {key.namespace for key in self.heads if key.thread_id == thread_id}

        def line(namespace: str | None) -> _Line:
            return _Line(self._store, thread_id, namespace, namespaces, self._before, chunk, self._hidden)

        whole = line(None)
        try:
            await whole.fill(self.damage)
        except CheckpointCorrupted as exc:
            self.trouble = exc
            return [line(namespace) for namespace in sorted({"", *namespaces})]
        return [whole]


class _Line:
    """The rows of one thread that are left, or of one namespace of it."""

    def __init__(
        self,
        store: Store,
        thread_id: str,
        namespace: str | None,
        namespaces: Collection[str],
        before: int | None,
        chunk: int,
        hidden: bool,
    ) -> None:
        self._store = store
        self._thread_id = thread_id
        self._namespace = namespace
        self._namespaces = namespaces
        self._before = before
        self._chunk = chunk
        self._hidden = hidden
        self._is_over = False
        self.rows: deque[Stored] = deque()

    # The heap gives the least first, which here is the newest.
    def __lt__(self, other: _Line) -> bool:
        return self.rows[0].seq > other.rows[0].seq

    async def fill(self, damage: dict[int, CheckpointCorrupted]) -> bool:
        """Make sure that there is a row, if there is one left; note why one could not be read."""
        while not self.rows and not self._is_over:
            query = Query(
                thread_id=self._thread_id,
                namespace=self._namespace,
                before_seq=self._before,
                hidden="also" if self._hidden else "no",
                limit=self._chunk,
            )
            page = await list_around(self._store, query, self._namespaces)
            # Noted before tasks are left out: a page of nothing but tasks is not the end.
            self._is_over = page.is_over
            if page.last is not None:
                self._before = page.last
                if page.damage is not None:
                    damage[page.last] = page.damage
            self.rows.extend(stored for stored in page.listed if stored.record.key.namespace != TASK_NAMESPACE)
        return bool(self.rows)
