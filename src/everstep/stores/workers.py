"""Drivers for stores on servers: the same blocking work, on the caller's thread or on worker threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from everstep.runtime import deadlines, forks

T = TypeVar("T")


class Driver:
    """Works on the calling thread; never suspends. Every call has a deadline, which begins with the public call."""

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds

    def deadline(self) -> float:
        """Return when a call that begins now must end, as a time of `time.monotonic`."""
        return deadlines.end_of(self.timeout_seconds)

    async def run(self, work: Callable[[float], T]) -> T:
        """Return what `work` gives for the deadline."""
        return work(self.deadline())


class AsyncDriver(Driver):
    """Works on worker threads; the event loop goes on meanwhile. Any number of loops may use it."""

    fork_order = 3

    def __init__(self, timeout_seconds: float, threads: int) -> None:
        super().__init__(timeout_seconds)
        self._threads = threads
        self._lock = threading.Lock()
        self._executor: Executor | None = None
        forks.register(self)

    async def run(self, work: Callable[[float], T]) -> T:
        deadline = self.deadline()
        # A fork waits for this lock, so that no work is handed to threads that a child does not have.
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._threads, "everstep-worker")
            # A copy of the context: what is counted there belongs to the call that is under way here.
            context = contextvars.copy_context()
            waiting = asyncio.get_running_loop().run_in_executor(self._executor, context.run, work, deadline)
        return await waiting

    def dismiss(self) -> None:
        """Let the threads end when they are done; new ones start if they are needed again."""
        with self._lock:
            if self._executor is not None:
                self._executor.shutdown(wait=False)
                self._executor = None

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            # Its threads stayed behind in the parent.
            self._executor = None
        self._lock.release()
