"""Group commit: jobs of many callers in one transaction, led by whichever caller finds nobody leading.

A blocking caller leads on its own thread, so a lone writer pays for no thread switch. An asynchronous caller's turn is
led on a worker thread, so an event loop never waits for the disk. A leader carries one batch, its own job included,
and passes the lead to the first job that is still waiting: nobody serves strangers for ever.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, Generic, TypeVar

T = TypeVar("T")

BATCH_MAX = 256


class Job(Generic[T]):
    """One caller's work and, afterwards, its outcome."""

    __slots__ = ("_future", "_lock", "_loop", "error", "label", "lead", "result", "work")

    def __init__(self, work: Callable[[Any], T], label: str) -> None:
        self.work = work
        self.label = label
        """The thread to name when the outcome is unknown."""
        self.result: T | None = None
        self.error: BaseException | None = None
        self.lead = False
        self._lock: threading.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # a job without an error has its result

    def park(self) -> None:
        """Prepare for a thread to wait."""
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        if self._lock is not None:
            self._lock.acquire()

    def attend(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Prepare for a task of `loop` to wait."""
        self._loop, self._future = loop, loop.create_future()
        return self._future

    @property
    def is_async(self) -> bool:
        return self._loop is not None

    def wake(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def resolve(self) -> None:
        """Let the waiting task go on; runs in its loop."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class CommitQueue:
    """Runs jobs in batches, one batch at a time."""

    def __init__(self, run: Callable[[Sequence[Job[Any]]], None], executor: Callable[[], Executor]) -> None:
        """`run` gives every job of a batch its result or error and raises nothing."""
        self._run, self._executor = run, executor
        self._lock = threading.Lock()
        self._waiting: deque[Job[Any]] = deque()
        self._led = False

    def do(self, job: Job[T]) -> T:
        """Run the job and wait for it on this thread."""
        job.park()
        if not self._enter(job):
            try:
                job.wait()
            except BaseException:
                self._abandon(job)
                raise
        if job.lead:
            self._lead(job)
        return job.outcome()

    async def do_async(self, job: Job[T]) -> T:
        """Run the job and wait for it as a task. Cancelling the wait does not stop the job."""
        done = job.attend(asyncio.get_running_loop())
        if self._enter(job):
            self._executor().submit(self._lead, job)
        await done
        return job.outcome()

    def _enter(self, job: Job[Any]) -> bool:
        with self._lock:
            self._waiting.append(job)
            if self._led:
                return False
            self._led = job.lead = True
            return True

    def _lead(self, own: Job[Any]) -> None:
        while True:
            with self._lock:
                batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            try:
                self._run(batch)
            finally:
                following = self._pass_on()
                self._tell(batch, own)
            if following is None:
                return
            if not following.is_async:
                following.wake()
                return
            if not own.is_async:
                self._executor().submit(self._lead, following)
                return
            own = following  # already on a worker thread: go on here

    def _pass_on(self) -> Job[Any] | None:
        with self._lock:
            if not self._waiting:
                self._led = False
                return None
            following = self._waiting[0]
            following.lead = True
            return following

    def _tell(self, batch: Sequence[Job[Any]], own: Job[Any]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
        for job in batch:
            if job._loop is not None:
                loops.setdefault(job._loop, []).append(job)
            elif job is not own:
                job.wake()
        for loop, jobs in loops.items():
            try:
                loop.call_soon_threadsafe(_resolve, jobs)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

    def _abandon(self, job: Job[Any]) -> None:
        """Take back a job whose thread stopped waiting; if it was given the lead, give that on."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
            leads = job.lead
        if leads:
            following = self._pass_on()
            if following is not None and following.is_async:
                self._executor().submit(self._lead, following)
            elif following is not None:
                following.wake()


def _resolve(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        job.resolve()
