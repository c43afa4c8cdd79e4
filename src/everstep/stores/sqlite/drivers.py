"""The same work on a file, awaited or not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from everstep.runtime import deadlines
from everstep.runtime.interrupts import deferred
from everstep.stores.sqlite.database import Database
from everstep.stores.sqlite.handle import Handle
from everstep.stores.sqlite.queue import Job
from everstep.stores.sqlite.rows import Rows
from everstep.stores.sqlite.worker_threads import offloaded

T = TypeVar("T")


class Driver(Protocol):
    """How a store gets at its file."""

    def read(
        self, work: Callable[[Rows], T], thread_id: str | None = None, quick: Callable[[Rows], T | None] | None = None
    ) -> Coroutine[Any, Any, T]: ...
    def write(self, work: Callable[[Rows], T], thread_id: str) -> Coroutine[Any, Any, T]: ...
    async def do(self, work: Callable[[Database], T]) -> T: ...
    async def close(self) -> None: ...


class BlockingDriver:
    """Works on the calling thread; never suspends."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def read(
        self, work: Callable[[Rows], T], thread_id: str | None = None, quick: Callable[[Rows], T | None] | None = None
    ) -> T:
        with deferred():
            database = self._handle.database or self._handle.get()
            return database.read(work, thread_id, quick)

    async def write(self, work: Callable[[Rows], T], thread_id: str) -> T:
        with deferred():
            handle = self._handle
            database = handle.database or handle.get()
            return database.queue.do(Job(work, thread_id, deadlines.end_of(handle.busy_seconds)))

    async def do(self, work: Callable[[Database], T]) -> T:
        with deferred():
            return work(self._handle.get())

    async def close(self) -> None:
        with deferred():
            self._handle.close()


class AsyncDriver:
    """Works on worker threads; the event loop goes on meanwhile."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def read(
        self, work: Callable[[Rows], T], thread_id: str | None = None, quick: Callable[[Rows], T | None] | None = None
    ) -> T:
        return await offloaded(lambda: self._handle.get().read(work, thread_id, quick))

    async def write(self, work: Callable[[Rows], T], thread_id: str) -> T:
        job = Job(work, thread_id, deadlines.end_of(self._handle.busy_seconds))
        database = self._handle.database
        if database is None:
            database = await offloaded(self._handle.get)
        return await database.queue.do_async(job)

    async def do(self, work: Callable[[Database], T]) -> T:
        return await offloaded(lambda: work(self._handle.get()))

    async def close(self) -> None:
        await offloaded(self._handle.close)
