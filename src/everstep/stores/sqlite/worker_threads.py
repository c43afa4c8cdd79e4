"""Threads that work for asynchronous callers, so that no event loop waits for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

from everstep.runtime import forks

T = TypeVar("T")


class Workers:
    """Worker threads by purpose. A forked child has none of them and starts its own."""

    fork_order = 3

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executors: dict[str, Executor] = {}
        forks.register(self)

    def get(self, purpose: str, threads: int) -> Executor:
        with self._lock:
            if purpose not in self._executors:
                self._executors[purpose] = ThreadPoolExecutor(threads, f"everstep-{purpose}")
            return self._executors[purpose]

    def dismiss(self, purpose: str) -> None:
        with self._lock:
            executor = self._executors.pop(purpose, None)
        if executor is not None:
            executor.shutdown(wait=False)

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._executors = {}
        self._lock.release()


workers = Workers()


def offloaded(work: Callable[[], T]) -> Awaitable[T]:
    """Return what some work gives, done on a worker thread."""
    return asyncio.get_running_loop().run_in_executor(workers.get("read", 8), work)
