"""Leases: one owner of a thread at a time, whatever clocks and processes do.

A lease is a record beside the thread (see `repository/claims.py`). It is renewed while it is held, and everything that
its engine saves to the thread rests on that record: once somebody else has taken the lease over, the store refuses what
the old owner sends, in the same commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from typing import TYPE_CHECKING, Any, Self

from everstep.errors import HeadMoved, InvalidInput, LeaseHeld, LeaseLost, StoreError, UnsupportedByBackend
from everstep.repository.claims import Claim, Claims
from everstep.runtime import checks
from everstep.runtime.blocking import NeedsAsync, NeedsPlainWith, describe_on_store
from everstep.timeline.store import StoreTimeline

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine, SyncEngine

logger = logging.getLogger("everstep")

_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0


class _Lease:
    """What both faces of a lease share."""

    def __init__(self, engine: CheckpointEngine, thread_id: str, ttl_seconds: float, wait_seconds: float) -> None:
        self.thread_id = checks.thread_id(thread_id)
        self._ttl = _checked_seconds(ttl_seconds, "ttl_seconds")
        self._wait = wait_seconds
        # No waiting at all is fine, while a lease of no time is not.
        if wait_seconds != 0:
            self._wait = _checked_seconds(wait_seconds, "wait_seconds")
        self._engine = engine
        self._claim: Claim | None = None
        self._renewing = contextlib.ExitStack()

    def __repr__(self) -> str:
        state = "held" if self._claim is not None else "not held"
        return describe_on_store(self, self._engine._store, repr(self.thread_id), state)

    @property
    def epoch(self) -> int:
        """A number that is greater than the number of every owner before."""
        return self._held().epoch

    def check(self) -> None:
        """Raise LeaseLost if it is known that somebody else has taken the lease over."""
        _ = self._held().base

    def _held(self) -> Claim:
        if self._claim is None:
            raise InvalidInput(f"the lease of thread {self.thread_id!r} is not held: use it inside its block")
        return self._claim

    def _timeline(self) -> StoreTimeline:
        timeline = self._engine._timeline
        if not isinstance(timeline, StoreTimeline):
            raise UnsupportedByBackend("a lease is checked inside each commit, which only a store of Everstep's can do")
        return timeline

    async def _take(self, *, is_last: bool) -> bool:
        """Take the lease if it is free; LeaseHeld if it is not, and this is the last try."""
        claims = Claims(self._timeline().repository)
        try:
            found = await claims.find(self.thread_id)
            self._claim = await claims.take(self.thread_id, found, self._ttl, is_task=False)
        except (LeaseHeld, HeadMoved) as error:
            if not is_last:
                return False
            if isinstance(error, LeaseHeld):
                raise
            # Somebody took it between our look and our commit. Who that is would take another look.
            raise LeaseHeld(self.thread_id, "another host", 0) from error
        self._renewing.enter_context(self._claim.renewed())
        return True

    def _engine_behind(self) -> CheckpointEngine:
        # A copy, so that the caller's own engine goes on without the lease. Live threads belong to the engine whose
        # capture they carry: those that are opened behind the lease are not found through the other one.
        twin = copy.copy(self._engine)
        twin._timeline = self._timeline().behind(self._held())
        twin._capture = type(self._engine._capture)(twin)
        return twin

    async def _let_go(self) -> None:
        claim = self._held()
        # Before it is given back: a renewal in between would find a record that is not its own.
        self._renewing.close()
        self._claim = None
        try:
            await claim.give_back()
        except LeaseLost:
            raise
        except StoreError:
            logger.warning("the lease of thread %r could not be given back; it runs out", self.thread_id, exc_info=True)


class Lease(NeedsAsync, _Lease):
    """The lease of a thread, as `engine.lease` gives it, for an `async with` block.

    `lease.engine` is the engine whose `snapshot`, `append` and live threads are taken for this thread only as long as
    the lease is this one's; LeaseLost otherwise, and nothing is written. On leaving the block the lease is given back.
    """

    engine: CheckpointEngine

    async def __aenter__(self) -> Self:
        end = time.monotonic() + self._wait
        pause = _PAUSE_SECONDS
        # The last try comes when the time is up, so that a lease which became free in the last pause is still
        # taken.
        while not await self._take(is_last=time.monotonic() >= end):
            await asyncio.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        self.engine = self._engine_behind()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self._let_go()
        except LeaseLost:
            # An error of the block, maybe this very one, matters more.
            if error is None:
                raise


class SyncLease(NeedsPlainWith, _Lease):
    """A Lease for blocking callers: a plain context manager, and its engine is a blocking one."""

    engine: SyncEngine

    def __init__(self, face: SyncEngine, thread_id: str, ttl_seconds: float, wait_seconds: float) -> None:
        super().__init__(face._driven, thread_id, ttl_seconds, wait_seconds)
        self._face = face

    def __enter__(self) -> Self:
        end = time.monotonic() + self._wait
        pause = _PAUSE_SECONDS
        while not self._run(self._take(is_last=time.monotonic() >= end)):
            time.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        self.engine = type(self._face)(self._engine_behind(), self._face._run)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._run(self._let_go())
        except LeaseLost:
            if error is None:
                raise

    def _run(self, work: Any) -> Any:
        return self._face._run(work)


def _checked_seconds(seconds: object, name: str) -> float:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds <= 1e9:
        raise InvalidInput(f"{name} is a number above 0, not {checks.shown(seconds)}")
    return float(seconds)
