"""Group commit: jobs of many callers in one transaction, led by whichever caller finds nobody leading.

A blocking caller leads on its own thread, so a lone writer pays for no thread switch. An asynchronous caller's turn is
led on a worker thread, so an event loop never waits for the disk. A leader carries one batch, its own job included,
and passes the lead to the first job that is still waiting: nobody serves strangers for ever. A leader that is
interrupted (Ctrl-C) still passes the lead on, and tells the others that their outcome is unknown.

A job waits for the file until its deadline (see `SQLiteStore`). What was begun is finished: while a batch is being
carried its callers wait for the outcome, however late it is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

from everstep.errors import CommitUnknown, StoreClosed, StoreUnavailable
from everstep.runtime.interrupts import deferred

T = TypeVar("T")

BATCH_MAX = 256
_GRACE_SECONDS = 1.0
"""Waiting for a batch of one's own process is not waiting for a lock: so long it may take in any case."""


class Job(Generic[T]):
    """One caller's work and, once `done`, its outcome."""

    result: T | None = None
    error: BaseException | None = None
    done = False
    lead = False
    batch: Sequence[Job[Any]] = ()
    """What this job's caller leads."""
    loop: asyncio.AbstractEventLoop | None = None
    """The event loop of an asynchronous caller."""
    _parked: threading.Lock | None = None
    _future: asyncio.Future[None] | None = None

    def __init__(self, work: Callable[[Any], T], label: str, deadline: float = float("inf")) -> None:
        self.work = work
        self.label = label
        """The thread to name when the outcome is unknown."""
        self.deadline = deadline
        """Until when (by `time.monotonic`) it may wait for others."""

    def finish(self, result: T | None, error: BaseException | None = None) -> None:
        """Give the job its outcome."""
        self.result = result
        self.error = error
        self.done = True

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # a job without an error has its result

    def park(self) -> None:
        """Prepare for a thread to wait. Who only leads its own job never does."""
        self._parked = threading.Lock()
        self._parked.acquire()

    def wait(self) -> bool:
        """Wait on this thread until `wake`, and return True; False: the deadline has passed."""
        if self._parked is None:
            raise RuntimeError("a job that is not parked cannot wait")
        left = self.deadline + _GRACE_SECONDS - time.monotonic()
        return self._parked.acquire(timeout=min(max(left, 0.0), threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """Let the waiting thread go on, if one waits."""
        if self._parked is not None and self._parked.locked():
            self._parked.release()

    def attend(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Prepare for a task of `loop` to wait."""
        self.loop = loop
        self._future = loop.create_future()
        return self._future

    def resolve(self) -> None:
        """Let the waiting task go on; runs in its loop."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class CommitQueue:
    """Runs jobs in batches, one batch at a time."""

    def __init__(self, run: Callable[[Sequence[Job[Any]]], None], executor: Callable[[], Executor]) -> None:
        """`run` finishes every job of a batch; only an interrupt may come out of it."""
        self._run, self._executor = run, executor
        self._lock = threading.Lock()
        self._waiting: deque[Job[Any]] = deque()
        self._led = False

    def do(self, job: Job[T]) -> T:
        """Run the job and wait for it on this thread."""
        try:
            if not self._enter(job) and not job.wait() and not self._withdraw(job):
                # It is being carried: its outcome is on the way.
                job.deadline = float("inf")
                job.wait()
            if job.lead:
                if self._waiting:
                    self._gather(job)
                self._run(job.batch)
                self._pass_on(job)
        except BaseException:
            self._abandon(job)
            raise
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]  # a job without an error has its result

    def _withdraw(self, job: Job[Any]) -> bool:
        """Take back a job whose time is over; False: somebody carries it, or it has got the lead."""
        with self._lock:
            if job.lead or job not in self._waiting:
                return False
            self._waiting.remove(job)
        late = "other writers of this process took too long; nothing was written, try again"
        job.finish(None, StoreUnavailable(late))
        return True

    async def do_async(self, job: Job[T]) -> T:
        """Run the job and wait for it as a task. Cancelling the wait does not stop the job."""
        done = job.attend(asyncio.get_running_loop())
        with deferred():  # an interrupt here would leave the lead with nobody
            if self._enter(job):
                self._lead_elsewhere(job)
        await done
        return job.outcome()

    def _enter(self, job: Job[Any]) -> bool:
        """Take the lead if nobody has it, and return True; else stand in line."""
        with self._lock:
            if self._led:
                if job.loop is None:
                    job.park()
                self._waiting.append(job)
                return False
            job.batch = (job,)
            job.lead = self._led = True
            return True

    def _lead_elsewhere(self, job: Job[Any]) -> None:
        try:
            self._executor().submit(self._lead, job)
        except RuntimeError as exc:  # the workers have been sent home, or the system gives no more threads
            closed = "shutdown" in str(exc)
            error = StoreClosed("the store was closed") if closed else StoreUnavailable(f"no worker thread: {exc}")
            with self._lock:
                batch = [*job.batch, *self._waiting]
                self._waiting.clear()
                self._led = False
            for waiting in batch:
                waiting.lead = False
                waiting.finish(None, error)
            self._tell(batch)

    def _gather(self, job: Job[Any]) -> None:
        """Let those who wait come along."""
        with self._lock:
            count = min(BATCH_MAX - len(job.batch), len(self._waiting))
            job.batch = [*job.batch, *[self._waiting.popleft() for _ in range(count)]]

    def _lead(self, job: Job[Any]) -> None:
        """Carry batches on a worker thread, as long as asynchronous callers wait for it."""
        while job.lead:
            self._gather(job)
            try:
                self._run(job.batch)
            except BaseException:
                self._abandon(job)
                raise
            following = self._pass_on(job)
            if following is None:
                return
            job = following

    def _pass_on(self, job: Job[Any]) -> Job[Any] | None:
        """End a lead: tell the batch, and give the lead on. Return the next job if this thread should lead it."""
        for one in job.batch:
            if not one.done:
                one.finish(None, CommitUnknown(None, one.label))
        job.lead = False
        following = self._next_leader()
        if job.loop is not None or len(job.batch) > 1:  # else nobody waits but who leads
            self._tell(job.batch)
        if following is None:
            return None
        if following.loop is None:
            following.wake()
            return None
        if job.loop is None:
            self._lead_elsewhere(following)
            return None
        return following  # already on a worker thread

    def _next_leader(self) -> Job[Any] | None:
        """Give the lead to the job that has waited longest, and return it; None: nobody waits, and nobody leads."""
        with self._lock:
            if not self._waiting:
                self._led = False
                return None
            self._waiting[0].lead = True
            return self._waiting[0]

    def borrow(self) -> bool:
        """Take the lead without a job, for a moment, if nobody has it; whoever got True calls `give_back`."""
        with self._lock:
            is_free = not self._led
            self._led = True
            return is_free

    def give_back(self) -> None:
        """End a lead without a job."""
        following = self._next_leader()
        if following is None:
            return
        if following.loop is None:
            following.wake()
        else:
            self._lead_elsewhere(following)

    def _tell(self, batch: Sequence[Job[Any]]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
        for job in batch:
            if job.loop is not None:
                loops.setdefault(job.loop, []).append(job)
            else:
                job.wake()
        for loop, jobs in loops.items():
            try:
                loop.call_soon_threadsafe(_resolve, jobs)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

    def _abandon(self, job: Job[Any]) -> None:
        """Take back a job whose thread was interrupted; if it had the lead, give that on."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
        if job.lead:
            following = self._pass_on(job)
            if following is not None:
                self._lead_elsewhere(following)


def _resolve(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        job.resolve()
