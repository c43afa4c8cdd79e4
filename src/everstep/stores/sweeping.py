"""Finding and removing the objects of a family that nothing needs, a little at a time.

A sweep walks from the roots that were stored when it began, in short reads that hold nobody up, then goes through the
family's objects and deletes those it did not meet. An object that was not reachable at the beginning stays so: a later
checkpoint may leave out only what is below a stored one, and what is sent again becomes a new row, younger than the
sweep. So it may stop and go on between other people's commits. It starts anew if another process swept meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from everstep.stores.protocol import Key, Swept
from everstep.values.tree import hashes

T = TypeVar("T")
_BATCH = 500
# How often a sweep is begun anew if others remove objects of the family meanwhile.
_SWEEPS_MAX = 10
# How many hashes the sweeps under way hold together: some 30 MB.
_MET_MAX = 250_000


class Rows(Protocol):
    """What a sweep needs of a store's tables."""

    def sweep_begin(self, family: str, ticket: int) -> None:
        """Note that a sweep begins: what goes from now on, or before another one begins, is not for it to see."""

    def sweep_start(self, family: str, without: Collection[Key] | None) -> tuple[int, int, int, list[bytes]] | None:
        """Return the family's count of sweeps, its doomed bytes, the age of the youngest object, and its roots' hashes.

        `without` are checkpoints that one that only pretends takes for deleted; it changes nothing, so that it can be
        told of a store that can only be read. None: it is a real one.
        """

    def links(self, family: str, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]: ...
    def objects_after(self, family: str, last: bytes, limit: int) -> tuple[list[tuple[bytes, int, int]], bytes | None]:
        """Return (hash, age, size) of about `limit` objects, and from where to go on; None: these are the last."""

    def remove_objects(self, family: str, doomed: Sequence[tuple[bytes, int]], expected_sweeps: int) -> int | None:
        """Delete objects by (hash, age) and return the new count of sweeps; None if another sweep came first."""

    def sweep_end(self, family: str, live_bytes: int, unreferenced_bytes: int, ticket: int) -> None:
        """Note what was found in use; and that the family is swept, if nothing went and no other sweep began since."""


class Driver(Protocol):
    """How a sweep gets at them."""

    async def read(self, work: Callable[[Any], T]) -> T: ...
    async def write(self, work: Callable[[Any], T], thread_id: str) -> T: ...


class Sweep:
    """One sweep of one family, under way."""

    def __init__(self, family: str, pretend: Collection[Key] | None = None) -> None:
        self._family = family
        self._pretend = pretend
        self._begun = False
        # A number that no other sweep has. With a mark that is the same for all, one that began before something was
        # deleted could end after another one had begun, and note as swept what neither of them had looked at.
        self._ticket = random.randrange(3, 1 << 31)  # noqa: S311  # no secret
        self._sweeps = self._doomed = self._youngest = 0
        self._pending: list[bytes] = []
        self._met: set[bytes] = set()
        self._live_bytes = 0
        self._last = b""
        self.swept = Swept(0, 0, finished=False)

    @property
    def size(self) -> int:
        """How many hashes it holds."""
        return len(self._met)

    async def go_on(self, driver: Driver, effort: int | None) -> bool:
        """Look at about `effort` more objects (None: at all); return False if it was overtaken and is void."""
        left = 1 << 62
        if effort is not None:
            left = effort
        if not self._begun:
            await self._begin(driver)
        while left > 0 and not self.swept.finished:
            size = min(left, _BATCH)
            left -= size
            if self._pending:
                await self._mark(driver, size)
            elif not await self._remove(driver, size):
                return False
        return True

    async def _begin(self, driver: Driver) -> None:
        # One that only pretends changes nothing, so there is nothing to note.
        if self._pretend is None:
            await driver.write(lambda rows: rows.sweep_begin(self._family, self._ticket), "")
        started = await driver.read(lambda rows: rows.sweep_start(self._family, self._pretend))
        self._begun = True
        if started is None:
            self.swept = Swept(0, 0)
            return
        self._sweeps, self._doomed, self._youngest, self._pending = started
        self._met = set(self._pending)

    async def _mark(self, driver: Driver, size: int) -> None:
        batch, self._pending = self._pending[-size:], self._pending[:-size]
        for _, children, held in await driver.read(lambda rows: rows.links(self._family, batch)):
            self._live_bytes += held
            if not children:
                continue
            for key in hashes(children):
                if key not in self._met:
                    self._met.add(key)
                    self._pending.append(key)

    async def _remove(self, driver: Driver, size: int) -> bool:
        found, last = await driver.read(lambda rows: rows.objects_after(self._family, self._last, size))
        # What is younger than the sweep was sent since it began, and may be needed by what it has not seen.
        old = [row for row in found if row[1] <= self._youngest]
        doomed = [row for row in old if row[0] not in self._met]
        if doomed and self._pretend is None:
            sweeps = await driver.write(self._removal([row[:2] for row in doomed]), "")
            if sweeps is None:
                return False
            self._sweeps = sweeps
        self._count(doomed)
        if last is None:
            if self._pretend is None:
                await driver.write(self._ending, "")
            self.swept = self.swept._replace(finished=True)
        else:
            self._last = last
        return True

    def _removal(self, doomed: list[tuple[bytes, int]]) -> Callable[[Rows], Any]:
        return lambda rows: rows.remove_objects(self._family, doomed, self._sweeps)

    def _ending(self, rows: Rows) -> None:
        rows.sweep_end(self._family, self._live_bytes, self._doomed, self._ticket)

    def _count(self, doomed: list[tuple[bytes, int, int]]) -> None:
        size = self.swept.size_bytes + sum(held for _, _, held in doomed)
        self.swept = Swept(self.swept.objects + len(doomed), size, finished=False)


class Sweeps:
    """The sweeps of one process that are under way, by family."""

    def __init__(self) -> None:
        self._held: dict[str, Sweep] = {}
        self._size = 0

    async def run(
        self, driver: Driver, family: str, effort: int | None, pretend: Collection[Key] | None
    ) -> tuple[Swept, int]:
        """Do what `Store.sweep` says; return what was removed now, and how many objects since the sweep began."""
        if effort is not None and pretend is None:
            return await self._a_little(driver, family, effort)
        sweep = Sweep(family, pretend)
        for _ in range(_SWEEPS_MAX):
            if await sweep.go_on(driver, None):
                break
            sweep = Sweep(family, pretend)
        # Others that sweep the family at the same time do the work, if it is not finished here.
        return sweep.swept, sweep.swept.objects

    def _hold(self, family: str, sweep: Sweep) -> None:
        """Keep a sweep for its next turn. Of too many, those go that waited longest: they start anew."""
        self._held[family] = sweep
        self._size += sweep.size
        while self._size > _MET_MAX and len(self._held) > 1:
            self._take(next(iter(self._held)))

    def _take(self, family: str) -> Sweep | None:
        sweep = self._held.pop(family, None)
        if sweep is not None:
            self._size -= sweep.size
        return sweep

    async def _a_little(self, driver: Driver, family: str, effort: int) -> tuple[Swept, int]:
        """Go on with this process's sweep of the family, unless somebody is at it."""
        sweep = self._take(family) or Sweep(family)
        before = sweep.swept
        if not await sweep.go_on(driver, effort):
            return Swept(0, 0, finished=False), 0
        if not sweep.swept.finished:
            self._hold(family, sweep)
        done = sweep.swept
        now = Swept(done.objects - before.objects, done.size_bytes - before.size_bytes, done.finished)
        return now, done.objects
