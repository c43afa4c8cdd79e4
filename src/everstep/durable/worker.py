"""A worker: takes up the runs that have something to do, for ever, beside any number of other workers.

It looks into the store again and again, with a pause that grows while there is nothing to do: what it waits for may be
an answer, an event, a time, or the lease of an owner that has died, and for the last two nobody sends a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from everstep.durable import functions, lists, running
from everstep.durable.live import repository_of
from everstep.durable.statuses import READY, RUNNING, WAITING
from everstep.errors import RunNotFound, StoreError
from everstep.reports import RunInfo
from everstep.repository.finding import make_search
from everstep.runtime import checks
from everstep.stores.protocol import Hit
from everstep.types import RUN_KIND

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

logger = logging.getLogger("everstep")

# The pause between two looks: it is doubled while nothing comes, and short again when something does.
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 2.0
# A run that comes no further, as when its code is broken, would otherwise be taken up again at every look.
_ASIDE_SECONDS = 1.0
_ASIDE_SECONDS_MAX = 60.0
# From time to time everything is looked at, in case a clock was set back or a change was missed.
_WHOLE_SECONDS = 300.0
# A commit may be seen a while after the time that the store has noted for it.
_ON_ITS_WAY_SECONDS = 10.0
_NEVER = 1e18
_PAGE = 100


class _Aside(NamedTuple):
    """A run that came no further when it was taken up: it is left alone for a while."""

    checkpoint_id: str
    seconds: float
    until: float


class _Candidates:
    """The runs of an engine's functions that may have something to do, and from when on.

    An index finds every run that was ever running, so it is asked only for what has happened since it was asked last.
    What ends without a word is remembered: a sleep, and a run whose owner may die.
    """

    def __init__(self, engine: CheckpointEngine) -> None:
        self._repository = repository_of(engine)
        self._programs = engine._programs
        self._from: dict[str, float] = {}
        """By thread: seconds since 1970."""
        self._seen: int | None = None
        """The newest activity that was seen, by the clock of the store."""
        self._seen_at = 0.0
        """When that was seen, by the clock of this process."""
        self._looked_at = 0.0
        self._whole_at = float("-inf")

    async def ready(self) -> list[RunInfo]:
        """Return the runs that somebody should take up."""
        await self._look()
        now = time.time()
        found: list[RunInfo] = []
        for thread_id in [each for each, begins in self._from.items() if begins <= now]:
            try:
                info = await lists.info_of(self._repository, thread_id)
            except RunNotFound:
                del self._from[thread_id]  # it was deleted meanwhile
                continue
            if info.status in (READY, lists.INTERRUPTED):
                found.append(info)
            elif info.status != RUNNING:
                self._remember(thread_id, min([wait.until for wait in info.waits if wait.until], default=_NEVER))
        return found

    async def _look(self) -> None:
        now = time.monotonic()
        since = self._since(now)
        for status in (WAITING, READY, RUNNING):
            search = replace(make_search(filter={"run_status": status}, limit=_PAGE), since=since)
            while True:
                hits = await self._repository.store.search(search)
                for hit in hits:
                    self._note(hit)
                if len(hits) < _PAGE:
                    break
                search = replace(search, after=hits[-1].position)
        self._looked_at = now  # only now: a look that was cut off is begun anew
        if since is None:
            self._whole_at = now

    def _since(self, now: float) -> int | None:
        """Return from when on to look, by the clock of the store; None: at all there is.

        What was on its way to the store when it was looked at last may be noted there a little before that.
        """
        if self._seen is None or now > self._whole_at + _WHOLE_SECONDS:
            return None
        # The clock of the store is not ours: how much time has passed is told by ours, from when on by the
        # store's.
        silence = max(0.0, self._looked_at - self._seen_at)
        return self._seen + int((silence - _ON_ITS_WAY_SECONDS) * 1e6)

    def _note(self, hit: Hit) -> None:
        if self._seen is None or hit.position.active > self._seen:
            self._seen = hit.position.active
            self._seen_at = time.monotonic()
        if hit.stored is None or hit.stored.record.kind != RUN_KIND:
            return
        metadata = hit.stored.record.metadata
        if metadata.get("run") in self._programs.names():
            begins = 0.0
            if metadata.get("run_status") == WAITING:
                begins = running.wakes_at(metadata)
            self._remember(hit.position.thread_id, begins)

    def _remember(self, thread_id: str, begins: float) -> None:
        if begins < _NEVER:
            self._from[thread_id] = begins
        else:
            self._from.pop(thread_id, None)


class Worker:
    """Takes up runs of the functions that these engines know."""

    def __init__(
        self,
        engines: Sequence[CheckpointEngine],
        concurrency: int = 8,
        *,
        told: Callable[[RunInfo], None] = lambda _: None,
        troubled: Callable[[StoreError], None] = lambda _: None,
    ) -> None:
        """`told` hears of every run that was taken up, how it stands then; `troubled` that a store does not answer."""
        self._engines = list(engines)
        self._concurrency = max(1, checks.count(concurrency, "concurrency"))
        self._told = told
        self._troubled = troubled
        # An event of threads and not of the loop, since runs of plain functions ask for it in threads of
        # their own.
        self._stopping = threading.Event()
        self._woken = asyncio.Event()
        self._at_work: dict[tuple[int, str], asyncio.Task[None]] = {}
        self._aside: dict[tuple[int, str], _Aside] = {}
        self._candidates = [_Candidates(engine) for engine in self._engines]

    def stop(self) -> None:
        """Stop: steps that are running come to their end and are recorded, then their runs are let go.

        Call it in the event loop that the worker runs in.
        """
        self._stopping.set()
        self._woken.set()

    async def take_up_all(self) -> None:
        """Take up what has something to do now."""
        for place, info in await self._look():
            while len(self._at_work) >= self._concurrency and not self._stopping.is_set():
                await self._rest(None)
            if self._stopping.is_set():
                break
            self._begin(place, info)
        await self._finish()

    async def watch(self) -> None:
        """Take up whatever has something to do, until it is stopped."""
        pause = PAUSE_SECONDS
        try:
            while not self._stopping.is_set():
                has_begun = await self._begin_what_is_there()
                # The longer nothing has come, the less often it looks.
                pause = min(pause * 2, PAUSE_SECONDS_MAX)
                if has_begun:
                    pause = PAUSE_SECONDS
                if len(self._at_work) >= self._concurrency:
                    # Full: there is nothing to look for until one of them ends.
                    await self._rest(None)
                else:
                    # A little by chance, so that not all workers look at the same moment.
                    await self._rest(pause * random.uniform(0.8, 1.2))  # noqa: S311  # no secret
        finally:
            await self._finish()

    async def _begin_what_is_there(self) -> bool:
        try:
            found = await self._look()
        except StoreError as exc:
            self._troubled(exc)
            return False
        room = self._concurrency - len(self._at_work)
        for place, info in found[:room]:
            self._begin(place, info)
        return bool(found[:room])

    async def _look(self) -> list[tuple[int, RunInfo]]:
        """Return what has something to do, the longest waiting first, with the place of its engine."""
        found: list[tuple[int, RunInfo]] = []
        now = time.monotonic()
        for place, candidates in enumerate(self._candidates):
            for info in await candidates.ready():
                key = (place, info.thread_id)
                if key not in self._at_work and not self._is_aside(key, info, now):
                    found.append((place, info))
        return sorted(found, key=lambda each: each[1].updated_at)

    def _is_aside(self, key: tuple[int, str], info: RunInfo, now: float) -> bool:
        """Whether a run was put aside and is still as it was then."""
        aside = self._aside.get(key)
        return aside is not None and aside.checkpoint_id == info.checkpoint_id and aside.until > now

    def _begin(self, place: int, info: RunInfo) -> None:
        key = (place, info.thread_id)
        task = asyncio.create_task(self._take(key, info))
        self._at_work[key] = task
        task.add_done_callback(lambda _: self._end(key))

    def _end(self, key: tuple[int, str]) -> None:
        del self._at_work[key]
        self._woken.set()

    async def _take(self, key: tuple[int, str], info: RunInfo) -> None:
        engine = self._engines[key[0]]
        program = engine._programs.find(info.name)
        # A run of somebody's code may do anything; what it does must not end the worker.
        try:
            await functions.take(
                engine,
                program,
                lambda runner: lists.take_quietly(runner._replace(is_stopping=self._stopping.is_set), info.thread_id),
            )
        except SystemExit:
            logger.warning("run %r has called sys.exit(); the worker goes on", info.thread_id)
        try:
            after = await lists.info_of(repository_of(engine), info.thread_id)
        except RunNotFound:
            return  # it was deleted meanwhile
        except StoreError as exc:
            self._troubled(exc)
            return
        self._note(key, info, after)
        self._told(after)

    def _note(self, key: tuple[int, str], before: RunInfo, after: RunInfo) -> None:
        """Leave a run alone for a while that is where it was, and still has something to do."""
        last = self._aside.pop(key, None)
        if after.checkpoint_id != before.checkpoint_id or after.status not in (READY, lists.INTERRUPTED):
            return
        seconds = _ASIDE_SECONDS if last is None else min(last.seconds * 2, _ASIDE_SECONDS_MAX)
        self._aside[key] = _Aside(after.checkpoint_id, seconds, time.monotonic() + seconds)

    async def _rest(self, seconds: float | None) -> None:
        """Wait until a run has ended, it is time to stop, or so many seconds have passed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        # Left set when it is time to stop, so that every later wait returns at once.
        if not self._stopping.is_set():
            self._woken.clear()

    async def _finish(self) -> None:
        while self._at_work:
            await asyncio.wait(list(self._at_work.values()))
            await asyncio.sleep(0)  # what is done is taken off the list in the next turn of the loop
