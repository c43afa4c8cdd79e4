"""One SQLite file, through APSW: WAL, one commit queue per process, readers that never wait for writers.

Every page carries a checksum (SQLite's own cksumvfs), so a flipped bit anywhere in the file is an error, not an
answer. A page whose checksum is not right may also have been written by a program that does not know them. Then the
whole file is looked at (`verify`), and if everything in it is right, its pages get new checksums.

All handles of a process share one `_Database` per file. Before a fork its connections are closed, and opened again on
both sides when needed. Driver errors are translated in `_translated`, and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import apsw
import apsw.sqlite_extra

from everstep.errors import (
    CheckpointCorrupted,
    CommitUnknown,
    EverstepError,
    InvalidInput,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreMismatch,
    StoreReadFailed,
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.reports import Finding
from everstep.runtime import deadlines, forks
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.runtime.interrupts import deferred
from everstep.stores.inside import Inside
from everstep.stores.inspection import Lost
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Deleted,
    Hit,
    Key,
    Loaded,
    Newest,
    Object,
    Operation,
    Outline,
    Part,
    Place,
    Query,
    RawThread,
    Search,
    Store,
    Stored,
    Swept,
    Thread,
    Write,
)
from everstep.stores.sqlite import schema
from everstep.stores.sqlite.files import can_write, has_space, is_unchanging, why_not_opened
from everstep.stores.sqlite.full_disk import Reserve, Steps
from everstep.stores.sqlite.guard import FileGuard
from everstep.stores.sqlite.line import WritersLine
from everstep.stores.sqlite.mending import BrokenStructure, copy_rows, mend, restore_schema, stored_rows
from everstep.stores.sqlite.queue import CommitQueue, Job
from everstep.stores.sqlite.raw import RawFile
from everstep.stores.sqlite.rows import Rows
from everstep.stores.sqlite.schema import add_functions, migrate
from everstep.stores.sqlite.verify import problems, thread_names, verify
from everstep.stores.sweeping import Sweeps
from everstep.stores.transaction import adopt, adopt_new
from everstep.stores.waiting import Rhythm, Waiting

_log = logging.getLogger("everstep")
T = TypeVar("T")
Synchronous = Literal["full", "normal", "off"]

APPLICATION_ID = 0x45565354  # "EVST"
_PAGE_BYTES_LEAST = 512  # of any SQLite file
_RESERVED_BYTES = 8  # at the end of each page, for its checksum
_WAL_PAGES_MIN, _WAL_PAGES_MAX, _WAL_SHARE = 100, 800, 10  # a tenth of the file
_WAL_LONG, _WAL_LONG_SECONDS = 4, 0.05  # so many times longer than it should be; how long others may be in the way
_RESERVE_FROM_PAGES = 2048  # of the file: a smaller one has none, which would take as much as it does
_STEP_PAGES = 128  # that a small deletion writes
_SHRINK_PAGES = 2000  # given back in one commit
_TIDY_PAGES = 128  # given back at once after a sweep in passing
_READERS_IDLE_MAX = 8
_FILE_MODE = 0o600
_EMPTY_WAL_SECONDS = 0.5  # to wait for readers, when the WAL shall be cut off
_RHYTHM = Rhythm(early=(0.0001, 0.0003), late=(0.0005, 0.0015), late_after=1.0)
"""To wait for the lock of the file: a commit has it for less than a millisecond, mostly."""
_BEATEN_MAX = 8
"""So many commits of others may come first: to hand a file on in order takes longer than to take it when it is free."""
_MAKING_SECONDS = 1.0  # another process may take so long to make a new file, and it looks damaged meanwhile
_OVERWRITTEN = (
    "the file {} was overwritten while it was open, as by copying a backup over it. Nothing is written to it any more: "
    "close the store in every process and open it anew. Next time close it first, and remove its -wal and -shm files"
)
_FAILED_READS = (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_FSTAT)
_REPLACED = "the file {} was removed or replaced while it was open; open it anew"


class SQLiteStore:
    """A store in one file. `blocking` is the same store for callers that may wait on their own thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "full",
        busy_timeout_seconds: float = 30.0,
    ) -> None:
        """Nothing is opened yet. `synchronous="normal"` may lose acknowledged commits in a power cut.

        `busy_timeout_seconds` bounds how long a public call waits for other writers, counted over the whole call.
        """
        self._database = _Handle(_checked_path(path), synchronous, busy_timeout_seconds)
        self._driver: _Driver = _AsyncDriver(self._database)

    @property
    def blocking(self) -> SQLiteStore:
        twin = object.__new__(SQLiteStore)
        twin._database, twin._driver = self._database, _BlockingDriver(self._database)
        return twin

    @property
    def limit_seconds(self) -> float:
        return self._database.busy_seconds

    @property
    def path(self) -> Path:
        """The database file."""
        return self._database.path

    @property
    def address(self) -> str:
        """Where it is."""
        return f"sqlite:///{self.path}"

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._database.is_closed

    def __repr__(self) -> str:
        return describe_on_store(self, self)

    async def size_bytes(self) -> int:
        """Return what the files take on disk, but for the reserve, which holds nothing."""
        files = (self.path, *(Path(f"{self.path}{end}") for end in ("-wal", "-shm")))
        return sum(file.stat().st_size for file in files if file.exists())

    async def in_turn(
        self,
        thread_id: str,
        work: Callable[[Store], Coroutine[Any, Any, T]],
        seconds: float = 0.0,  # noqa: ARG002  # others wait however long it takes
    ) -> T:
        """The work is done inside a write transaction, by whoever leads the commit queue."""
        context = contextvars.copy_context()

        def inside(rows: Rows) -> T:
            store = Inside(self, rows, rows.load, rows.commit)
            return context.run(run_to_end, work(store))

        return await self._driver.write(inside, thread_id)

    # What every checkpoint goes through hands its coroutine on instead of awaiting it: one hop less.

    def commit(self, change: Change) -> Coroutine[Any, Any, Stored | None]:
        return self._driver.write(functools.partial(Rows.commit, change=change), change.thread_id)

    def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> Coroutine[Any, Any, None]:
        return self._driver.write(lambda rows: rows.attach(key, writes, objects, base), key.thread_id)

    def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Coroutine[Any, Any, Loaded | None]:
        def known(rows: Rows) -> Loaded | None:
            return rows.load_known(thread_id, namespace, checkpoint_id, writes)

        def load(rows: Rows) -> Loaded | None:
            return rows.load(thread_id, namespace, checkpoint_id, objects, writes)

        return self._driver.read(load, thread_id, None if objects else known)

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        return await self._driver.read(lambda rows: rows.load_many(keys, writes)) if keys else []

    def read_page(self, query: Query) -> Coroutine[Any, Any, list[Loaded]]:
        return self._driver.read(lambda rows: rows.load_page(query))

    async def find(self, checkpoint_id: str) -> list[Key]:
        return await self._driver.read(lambda rows: rows.find(checkpoint_id))

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        return await self._driver.read(lambda rows: (rows.below if below else rows.shallow)(family, hashes))

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        return await self._driver.read(lambda rows: rows.list_checkpoints(query), query.thread_id)

    async def clock(self) -> float:
        return time.time()  # all who use the file are on one machine

    async def count(self, query: Query) -> int:
        return await self._driver.read(lambda rows: rows.count(query))

    async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
        return await self._driver.read(lambda rows: rows.list_threads(limit, offset, headless))

    async def search(self, search: Search) -> list[Hit]:
        return await self._driver.read(lambda rows: rows.search(search))

    async def thread(
        self, thread_id: str, *, branches: bool = False, ancestry: bool = False, brief: bool = False
    ) -> Thread | None:
        return await self._driver.read(lambda rows: rows.thread(thread_id, branches, ancestry, brief), thread_id)

    async def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        return await self._driver.read(lambda rows: rows.started(thread_id, namespace, after))

    async def segments(
        self, family: str, segments: Collection[int], *, older: int = 0
    ) -> Mapping[int, Sequence[Place]]:
        return await self._driver.read(lambda rows: rows.segments(family, segments, older))

    async def newest(
        self, thread_id: str, limit: int, *, branches: bool = False, without: str | None = None
    ) -> Newest | None:
        return await self._driver.read(lambda rows: rows.newest(thread_id, limit, branches, without))

    async def outlines(self, position: int = 0) -> tuple[list[Outline], int | None]:
        return await self._driver.read(lambda rows: rows.outlines(position))

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        return await self._driver.read(lambda rows: rows.operations(thread_id, limit), thread_id)

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        def work(rows: Rows) -> tuple[Deleted, bool]:
            # What does not fit leaves no room on the disk for anything else: so some is set aside before.
            self._database.get().keep_reserve(leaving_bytes=0)
            deleted = rows.delete(thread_id, keys, before_step, spare, operations)
            # The file is shortened in the same commit: another one would take as long again.
            is_more_free = bool(deleted.checkpoints) and not spare and rows.shrink(_SHRINK_PAGES)
            return deleted, is_more_free

        try:
            deleted, is_more_free = await self._driver.write(work, thread_id)
        except StoreFull:
            async with self._steps() as steps:
                deleted = await steps.delete(thread_id, keys, before_step, spare, operations)
                await self._shrink(steps)
            return deleted
        if is_more_free:
            await self._tidy()
        return deleted

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        try:
            swept, removed = await self._database.sweeps.run(self._driver, family, effort, pretend)
        except StoreFull:
            if effort is not None:
                raise  # in passing, with a snapshot, which needs room itself
            async with self._steps() as steps:
                swept = await steps.sweep(family)
                await self._shrink(steps)
            return swept
        if removed and swept.finished and pretend is None:
            await self._tidy(_TIDY_PAGES if effort is not None else None)
        return swept

    async def _tidy(self, pages_max: int | None = None) -> None:
        """Shorten the file. On a full disk that may need space itself: what was deleted is deleted all the same."""
        try:
            await self._driver.do(lambda database: database.give_space_back(pages_max))
        except StoreFull:
            async with self._steps() as steps:
                await self._shrink(steps)

    @asynccontextmanager
    async def _steps(self) -> AsyncIterator[Steps]:
        """Give what was set aside for it to a deletion that did not fit on the disk: see `full_disk`."""
        held_bytes = await self._driver.do(_Database.give_up_reserve)
        try:
            yield Steps(self._driver)
        except StoreFull as exc:
            raise StoreFull(
                f"{self.path}: the disk is too full to delete all of it; what is left is intact. Free some 2 MB on the "
                "disk, then delete again"
            ) from exc
        finally:
            await self._driver.do(lambda database: database.restore_reserve(held_bytes))

    async def _shrink(self, steps: Steps) -> None:
        try:
            await steps.shrink()
            await self.erase_deleted()  # the file gets shorter when the log is moved into it
        except StoreFull:
            _log.warning("%s: the disk is too full to shorten the file; a later collection does it", self.path)

    async def raw(self, thread_id: str, *, family_threads: bool = False) -> RawThread | None:
        return await self._driver.read(lambda rows: rows.raw(thread_id, family_threads), thread_id)

    async def adopt(self, part: Part) -> int:
        return await self._driver.write(lambda tx: adopt(tx, part), part.thread_id)

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        if parts:
            await self._driver.write(lambda tx: adopt_new(tx, parts), parts[0].thread_id)

    async def erase_deleted(self) -> None:
        """Leave nothing of what was deleted in the file and the log beside it."""
        await self._driver.do(_Database.erase_deleted)

    async def thread_names(self) -> list[str]:
        """Return the name of every thread, damaged ones included: see `Checking`."""
        return await self._behind(lambda: self._database.inspect(thread_names))

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with the file, its tables and indexes: see `Checking`."""
        return await self._behind(lambda: self._database.inspect(problems))

    async def mend_tables(self, *, dry_run: bool) -> list[Lost]:
        """Make tables and indexes agree, in a new file if need be: see `Mending`."""
        return await self._behind(lambda: self._database.mend(dry_run=dry_run))

    async def stored_rows(self, keys: Sequence[Key]) -> list[Lost]:
        """Return checkpoints as they are stored: see `Mending`."""
        return await self._behind(lambda: self._database.inspect(lambda connection: stored_rows(connection, keys)))

    async def _behind(self, work: Callable[[], T]) -> T:
        """Do something with the file itself, which may be too damaged to be opened as a store."""
        if isinstance(self._driver, _AsyncDriver):
            return await _offloaded(work)
        return work()

    async def close(self) -> None:
        await self._driver.close()


def _checked_path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidInput(f"a SQLite store needs the path of a file, not {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInput(f"a SQLite store needs the path of a file, not {path!r}")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"a SQLite store needs a path that is valid Unicode, not {path!r}") from exc
    if text == ":memory:":
        raise InvalidInput("for a store in memory use MemoryCheckpointer() or memory://")
    return Path(os.path.abspath(text))


# -- drivers: the same work, awaited or not ----------------------------------------------------------------------------


class _Driver(Protocol):
    def read(
        self, work: Callable[[Rows], T], thread_id: str | None = None, quick: Callable[[Rows], T | None] | None = None
    ) -> Coroutine[Any, Any, T]: ...
    def write(self, work: Callable[[Rows], T], thread_id: str) -> Coroutine[Any, Any, T]: ...
    async def do(self, work: Callable[[_Database], T]) -> T: ...
    async def close(self) -> None: ...


class _BlockingDriver:
    """Works on the calling thread; never suspends."""

    def __init__(self, handle: _Handle) -> None:
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

    async def do(self, work: Callable[[_Database], T]) -> T:
        with deferred():
            return work(self._handle.get())

    async def close(self) -> None:
        with deferred():
            self._handle.close()


class _AsyncDriver:
    """Works on worker threads; the event loop goes on meanwhile."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle

    async def read(
        self, work: Callable[[Rows], T], thread_id: str | None = None, quick: Callable[[Rows], T | None] | None = None
    ) -> T:
        return await _offloaded(lambda: self._handle.get().read(work, thread_id, quick))

    async def write(self, work: Callable[[Rows], T], thread_id: str) -> T:
        job = Job(work, thread_id, deadlines.end_of(self._handle.busy_seconds))
        database = self._handle.database
        if database is None:
            database = await _offloaded(self._handle.get)
        return await database.queue.do_async(job)

    async def do(self, work: Callable[[_Database], T]) -> T:
        return await _offloaded(lambda: work(self._handle.get()))

    async def close(self) -> None:
        await _offloaded(self._handle.close)


def _offloaded(work: Callable[[], T]) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(_workers.get("read", 8), work)


class _Workers:
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


_workers = _Workers()


# -- one database file, one process ------------------------------------------------------------------------------------

_shared: weakref.WeakValueDictionary[tuple[Path, str], _Database] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


class _Handle:
    """A user's hold on a database; opens it on first use."""

    fork_order = 0

    def __init__(self, path: Path, synchronous: Synchronous, busy_timeout_seconds: float) -> None:
        if synchronous not in ("full", "normal", "off"):
            raise InvalidInput(f"synchronous is 'full', 'normal' or 'off', not {synchronous!r}")
        if not isinstance(busy_timeout_seconds, (int, float)) or not 0 <= busy_timeout_seconds <= 86_400:
            raise InvalidInput(f"busy_timeout_seconds is a number from 0 to 86400, not {busy_timeout_seconds!r:.50}")
        self.path = path
        self._synchronous = synchronous
        self.busy_seconds = busy_timeout_seconds
        self._lock = threading.Lock()
        self.database: _Database | None = None
        """What is open, if anything is."""
        self._closed = False
        self.sweeps = Sweeps()
        forks.register(self)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def get(self) -> _Database:
        database = self.database
        if database is not None:
            return database
        with self._lock:
            if self._closed:
                raise StoreClosed(f"the store {self.path} is closed")
            if self.database is None:
                self.database = _open_shared(self.path, self._synchronous, self.busy_seconds)
            return self.database

    def inspect(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on a connection that reads pages whatever their checksums are, as of one moment."""
        self._check_open()
        with contextlib.suppress(CheckpointCorrupted, StoreMismatch):
            self.get()  # a new file is made a store first
        with _translated(self.path), closing(_connection(self.path, int(self.busy_seconds * 1000))) as connection:
            connection.pragma("checksum_verification", 0)
            connection.execute("PRAGMA query_only=1")
            connection.execute("BEGIN")
            return work(connection)

    def mend(self, *, dry_run: bool) -> list[Lost]:
        """Make tables agree, and give pages their checksums; see `mending`."""
        self._check_open()
        busy_ms = int(self.busy_seconds * 1000)
        with _translated(self.path):
            try:
                lost = _mended(self.path, busy_ms, dry_run=dry_run)
            except (BrokenStructure, apsw.CorruptError, apsw.SQLError, UnicodeDecodeError) as exc:
                if dry_run:
                    return [Lost(f"the structure of the file is broken ({exc}): its rows would be copied to a new one")]
                self._let_go()
                aside = _rebuild(self.path, busy_ms)
                lost = [Lost(f"the structure of the file was broken; it is kept as {aside}")]
                lost += _mended(self.path, busy_ms, dry_run=False)
        if not dry_run:
            self._let_go()  # what is remembered of it may be wrong
        return lost

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self.path} is closed")

    def _let_go(self) -> None:
        """Close the file; the next call opens it anew."""
        with self._lock:
            database, self.database = self.database, None
        if database is not None:
            with _shared_lock:
                for key, shared in list(_shared.items()):
                    if shared is database:
                        del _shared[key]
            database.release()

    def close(self) -> None:
        with self._lock:
            database, self.database, self._closed = self.database, None, True
        if database is not None:
            database.release()

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # the same on both sides
        self._lock.release()


def _open_shared(path: Path, synchronous: Synchronous, busy_seconds: float) -> _Database:
    """Return this process's database for the file: one commit queue, however many handles."""
    with _shared_lock:
        database = _shared.get((path, synchronous))
        if database is None or not database.is_the_file() or not database.hold():
            database = _shared[path, synchronous] = _Database(path, synchronous, busy_seconds)
            _log.info("opened %s", path)
        return database


class _Connections(NamedTuple):
    """What is open on the file between two forks."""

    writer: apsw.Connection
    rows: Rows
    readers: list[apsw.Connection]
    raw: RawFile
    guard: FileGuard
    line: WritersLine
    patience: _Patience
    renewals: list[int]
    """How often pages had been written in place when the file was opened, or looked at last."""


class _Database:
    """One file in one process: one connection that writes, led by the commit queue, and a few that read."""

    fork_order = 1

    def __init__(self, path: Path, synchronous: Synchronous, busy_seconds: float) -> None:
        self._path = path
        self._synchronous = synchronous
        self._busy_ms = int(busy_seconds * 1000)
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._users = 0
        self._resting = False
        self._holds = 1
        self._wal_pages = 0
        self._wal_pages_max = _WAL_PAGES_MIN
        self._wal_pages_tried = 0
        self._wal_is_due = False
        self._reserve = Reserve(path)
        self._connections: _Connections | None = None
        self._renewing = threading.Lock()
        self._is_replaced = False
        self._damage: str | None = None
        self.queue = CommitQueue(self._run_batch, self._leaders)
        with self:
            pass  # opened now, so that what is wrong with the file is said at once
        stat = os.stat(path)
        self._identity = stat.st_dev, stat.st_ino
        forks.register(self)

    def is_the_file(self) -> bool:
        """Whether the path still leads to the file that is open."""
        if self._is_replaced:
            return False
        try:
            stat = os.stat(self._path)
        except OSError:
            return False
        return (stat.st_dev, stat.st_ino) == self._identity

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return what changes with the file."""
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _check_file(self, connections: _Connections) -> None:
        """Refuse to go on with a file that was removed, replaced or overwritten."""
        if not self._is_replaced and connections.guard.is_as_noted():
            return
        if not self._is_replaced and not self.is_the_file():
            raise StoreError(_REPLACED.format(self._path))
        if not self._is_replaced and not connections.guard.is_intact():
            self._is_replaced = not self._was_renewed(connections)
        if self._is_replaced:
            raise StoreError(_OVERWRITTEN.format(self._path))

    def _was_renewed(self, connections: _Connections) -> bool:
        """Whether the file changed because another process renewed checksums. It holds the write lock meanwhile."""
        try:
            with closing(_connection(self._path, self._busy_ms)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                renewals = _renewals(connection)
                connection.execute("ROLLBACK")
        except apsw.BusyError:
            raise
        except apsw.Error:
            return False  # the file and its log do not belong together
        if renewals <= connections.renewals[0]:
            return connections.guard.is_intact()
        connections.renewals[0] = renewals
        connections.guard.note(anew=True)
        return True

    def hold(self) -> bool:
        with self._idle:
            self._holds += self._holds > 0
            return self._holds > 0

    def release(self) -> None:
        """Close when the last handle lets go. The file then needs no WAL beside it."""
        with self._idle:
            last = self._holds == 1
        if last:
            self._wal_is_due = True
            try:
                self.queue.do(self._own_job(lambda _: None))  # runs after everybody who came before
            except EverstepError:
                pass  # a file that cannot be written any more can still be let go
        with self._idle:
            self._holds -= 1
            if self._holds == 0:
                self._idle.wait_for(lambda: self._users == 0)
                self._disconnect()
                _workers.dismiss(f"commit {self._path}")

    def read(
        self, work: Callable[[Rows], T], thread_id: str | None = None, quick: Callable[[Rows], T | None] | None = None
    ) -> T:
        """Run `work`, which may be about a thread, on a consistent view of the file.

        `quick` is tried first, by what the writer remembers; None: it does not know.
        """
        found = self._read_as_writer(quick) if quick is not None else None
        if found is not None:
            return found
        try:
            return self._read(work)
        except _ChecksumMismatch as exc:
            mismatch = exc
        except CheckpointCorrupted as exc:
            raise _about(exc, thread_id) from exc
        try:
            self._renew_checksums(mismatch)
            return self._read(work)
        except CheckpointCorrupted as exc:
            told = CheckpointCorrupted(exc.reason) if isinstance(exc, _ChecksumMismatch) else exc
            raise _about(told, thread_id) from exc

    def _read_as_writer(self, work: Callable[[Rows], T | None]) -> T | None:
        """Return what the writer knows; None: it does not, or it is busy. What it has written it need not read again.

        Other writers wait meanwhile, so the work is short. Errors are for `_read` to say.
        """
        with self as connections:
            if not self.queue.borrow():
                return None
            try:
                return work(connections.rows) if connections.guard.is_as_noted() else None
            except (apsw.Error, EverstepError, TypeError, ValueError, AttributeError):
                return None
            finally:
                self.queue.give_back()

    def _read(self, work: Callable[[Rows], T]) -> T:
        with _translated(self._path), self as connections:
            self._check_file(connections)
            connection = self._take_reader(connections)
            before = self._stamp() if isinstance(connection, _ImmutableConnection) else None
            try:
                connection.execute("BEGIN")
                result = work(Rows(connection))
                connection.execute("COMMIT")
                if before is not None and self._stamp() != before:
                    raise StoreUnavailable(f"{self._path} was changed while it was read; try again")
                return result
            except (TypeError, ValueError, AttributeError) as exc:
                if isinstance(exc, EverstepError):
                    raise
                raise CheckpointCorrupted(f"{self._path} holds something impossible: {exc!r}") from exc
            finally:
                self._put_reader(connections, connection)

    def _renew_checksums(self, met: _ChecksumMismatch) -> None:
        """Find out whether the file is damaged, or only written by another program; raise or mend."""
        with self._renewing:
            if self._damage is None:
                with self as connections:
                    self._check_file(connections)
                try:
                    _renew_checksums(self._path, self._busy_ms)
                except StoreReadOnly:
                    raise CheckpointCorrupted(
                        f"{met.reason}. Another program may have written it; the file may only be read here, so that "
                        "this cannot be found out: open it once where it may be written"
                    ) from met
                except CheckpointCorrupted as exc:
                    self._damage = exc.reason  # a damaged file stays damaged: it is not looked at for each call
            if self._damage is not None:
                raise CheckpointCorrupted(self._damage) from met

    def give_space_back(self, pages_max: int | None = None) -> None:
        """Shrink the file by (at most so many of) the pages that deletion left free, a few at a time."""
        if pages_max is not None:
            self.queue.do(self._own_job(lambda rows: rows.shrink(pages_max)))
            return
        while self.queue.do(self._own_job(lambda rows: rows.shrink(_SHRINK_PAGES))):
            pass

    def _own_job(self, work: Callable[[Rows], T]) -> Job[T]:
        """Return a job that is about the file, not about a thread."""
        return Job(work, "", deadlines.end_of(self._busy_ms / 1000))

    # -- connections

    def __enter__(self) -> _Connections:
        """Hold the connections open: neither a fork nor a close comes between."""
        with self._lock:
            if self._resting:
                self._idle.wait_for(lambda: not self._resting)
            if self._holds == 0:
                raise StoreClosed(f"the store {self._path} is closed")
            if self._connections is None:
                self._connections = self._connect()
            self._users += 1
            return self._connections

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and (self._resting or self._holds == 0):  # a fork or a close waits for it
                self._idle.notify_all()

    def before_fork(self) -> None:
        """Before a fork: finish, and close every connection. SQLite forbids carrying one across."""
        self._idle.acquire()
        self._resting = True
        # A thread that forks while it is itself at work here cannot wait for itself.
        if self._idle.wait_for(lambda: self._users == 0, timeout=60):
            self._disconnect()

    def after_fork(self, *, in_child: bool) -> None:
        self._resting = False
        if in_child:
            if self._connections is not None:  # the parent's, still in use there: never touch them, not even at exit
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connections))
                self._connections.line.close()  # but a place in line would stay taken as long as both have it
                self._connections = None
            self._users = 0
            self._lock = threading.RLock()
            self._idle = threading.Condition(self._lock)
            self._renewing = threading.Lock()
            self.queue = CommitQueue(self._run_batch, self._leaders)
            return
        self._idle.notify_all()
        self._idle.release()

    def _leaders(self) -> Executor:
        # One thread per file: files do not wait for each other.
        return _workers.get(f"commit {self._path}", 1)

    def _connect(self) -> _Connections:
        try:
            return self._connect_once()
        except StoreFull:
            if not self._reserve.lend():
                raise
            return self._connect_once()

    def _connect_once(self) -> _Connections:
        with _translated(self._path):
            writer = _opened(self._path, self._busy_ms)
            writer.setlk_timeout(0, 0)  # it is asked by its handler: see `_Patience`
            writer.execute(f"PRAGMA synchronous={self._synchronous}")
            writer.execute(f"PRAGMA journal_size_limit={2 * _WAL_PAGES_MAX * schema.PAGE_BYTES}")
            writer.execute("PRAGMA cache_size=-8000")
            writer.execute("PRAGMA secure_delete=ON")  # what is deleted is overwritten, not only forgotten
            writer.wal_autocheckpoint(0)  # see `_bound_wal`
            renewals = _renewals(writer)
            raw = RawFile(writer)
            guard = FileGuard(self._path, raw)
            line = WritersLine(self._path)
            patience = _Patience(raw)
            writer.set_busy_handler(patience.look_again)
            return _Connections(writer, Rows(writer), [], raw, guard, line, patience, [renewals])

    def _disconnect(self) -> None:
        if self._connections is not None:
            connections = (*self._connections.readers, self._connections.writer)
            self._connections.line.close()
            with _translated(self._path):
                for connection in connections:
                    if self._is_replaced:  # what the log holds belongs to the file that was there before
                        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                for connection in connections:
                    connection.close()
            self._connections = None
            if self._is_replaced:
                _set_log_aside(self._path)

    def _take_reader(self, connections: _Connections) -> apsw.Connection:
        try:
            return connections.readers.pop()
        except IndexError:
            if not self.is_the_file():
                raise StoreError(_REPLACED.format(self._path)) from None
            connection = _connection(self._path, self._busy_ms)
            connection.execute("PRAGMA query_only=1")
            return connection

    def _put_reader(self, connections: _Connections, connection: apsw.Connection) -> None:
        is_left_inside = connection.in_transaction  # by an error or an interrupt
        # One that looks for no locks would not notice what somebody who may write the file does to it later.
        is_blind = isinstance(connection, _ImmutableConnection)
        if len(connections.readers) >= _READERS_IDLE_MAX or is_left_inside or is_blind:
            connection.close()
        else:
            connections.readers.append(connection)

    # -- commits

    def _run_batch(self, batch: Sequence[Job[Any]]) -> None:
        """Run the jobs in one transaction. If that fails, each in its own: one bad job fails no other."""
        try:
            with self as connections:
                if self._is_replaced or not connections.guard.is_as_noted():
                    self._check_file(connections)
                try:
                    has_outcomes = self._try_together(batch, connections)
                except _ChecksumMismatch as exc:  # nothing was kept
                    self._renew_checksums(exc)
                    has_outcomes = False
                if not has_outcomes:
                    self._try_each(batch, connections)
                self._look_after_wal(connections)
                connections.guard.note()
        except Exception as exc:
            for job in batch:
                if not job.done:
                    job.finish(None, exc)

    def _try_each(self, batch: Sequence[Job[Any]], connections: _Connections) -> None:
        """Run those jobs that have no outcome yet, each in a transaction of its own."""
        for job in batch:
            if not job.done:
                self._try_together([job], connections)

    def _try_together(self, batch: Sequence[Job[Any]], connections: _Connections, *, has_cut_log: bool = False) -> bool:
        """Return whether every job has its outcome; if not, nothing was kept and each should be tried alone."""
        outcomes: list[_Outcome] = []
        is_committing = False
        try:
            _begin(connections, _first_deadline(batch))
            for job in batch:
                outcomes.append(_do(job, connections))
            is_committing = True
            connections.writer.execute("COMMIT")
            connections.rows.note_committed()
        except _Ended:
            _roll_back(connections)
            return False
        except Exception as caught:
            failure = _as_ours(self._path, caught)
            _roll_back(connections)
            if isinstance(failure, StoreFull) and not has_cut_log and self._empty_wal(connections):
                return self._try_together(batch, connections, has_cut_log=True)  # it may fit where the log was
            if not is_committing or _is_surely_undone(failure):
                return _fail(batch, failure, caught)
            outcomes = _unknown_outcomes(batch, outcomes, failure)
        except BaseException:
            _roll_back(connections)
            raise
        for job, (result, error) in zip(batch, outcomes, strict=True):
            job.finish(result, error)
        return True

    def _look_after_wal(self, connections: _Connections) -> None:
        """After commits: see how long the WAL is, and move it into the file when it is time."""
        (self._wal_pages,) = connections.raw.log_pages()
        if self._wal_pages < self._wal_pages_tried:  # it has begun anew
            self._wal_pages_tried = 0
        if self._wal_is_due or self._wal_pages >= self._wal_pages_max:
            self._bound_wal(connections)

    def erase_deleted(self) -> None:
        """Leave nothing of what was deleted: the WAL, which still has it, is moved into the file and cut off."""
        wal = Path(f"{self._path}-wal")
        if self._wal_pages or (wal.exists() and wal.stat().st_size):
            self._wal_is_due = True
            self.queue.do(self._own_job(lambda _: None))

    def _empty_wal(self, connections: _Connections) -> bool:
        """Cut the WAL off, unless somebody reads from it all the time; return whether it was."""
        self._wal_is_due = False
        connections.patience.lasts(time.monotonic() + _EMPTY_WAL_SECONDS)
        try:
            connections.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._wal_pages = 0
        except apsw.Error:
            return False  # nothing is lost, and it will be tried again
        return True

    def _bound_wal(self, connections: _Connections) -> None:
        """Keep the WAL in proportion to the file: small beside a small one, never more than 2 MB for long.

        It begins anew when all of it is in the file. That may never be so by itself where several processes write all
        the time: then they wait for it, once in a while. What others have moved need not be moved again.
        """
        if self._wal_is_due:
            self._empty_wal(connections)
            if self._wal_pages < self._wal_pages_max:
                return
        moved = max(self._wal_pages_tried, connections.raw.moved_pages())
        if self._wal_pages - moved < self._wal_pages_max:
            return
        self._wal_pages_tried = self._wal_pages
        try:
            self._move_wal(connections, is_whole=self._wal_pages >= _WAL_LONG * self._wal_pages_max)
            pages: int = connections.writer.pragma("page_count")
        except apsw.BusyError:
            return  # the commit is safe in the WAL; another one will move it
        except apsw.Error:
            self._wal_pages_tried = 0  # the disk may be full: the very next one shall try
            return
        self._wal_pages = 0
        self._wal_pages_max = _wal_pages_for(pages)
        self.keep_reserve()

    def _move_wal(self, connections: _Connections, *, is_whole: bool) -> None:
        """Move what can be moved of the WAL into the file; all of it, if nobody shall write meanwhile."""
        if is_whole:
            connections.patience.lasts(time.monotonic() + _WAL_LONG_SECONDS)
        mode = apsw.SQLITE_CHECKPOINT_FULL if is_whole else apsw.SQLITE_CHECKPOINT_PASSIVE
        connections.writer.wal_checkpoint(mode=mode)

    def keep_reserve(self, leaving_bytes: int | None = None) -> None:
        """Set room aside for deleting, if so much is left for others; None: as much again."""
        pages = os.path.getsize(self._path) // schema.PAGE_BYTES
        if pages >= _RESERVE_FROM_PAGES:
            # The log may hold nothing but new pages, which the file has to take in, and a deletion needs a log itself.
            size = (_wal_pages_for(pages) + _STEP_PAGES) * schema.PAGE_BYTES
            self._reserve.keep(size, size if leaving_bytes is None else leaving_bytes)

    def give_up_reserve(self) -> int:
        return self._reserve.give_up()

    def restore_reserve(self, size_bytes: int) -> None:
        """Set as much aside as was given up; what else a deletion gave back is for others."""
        self._reserve.keep(size_bytes, leaving_bytes=_STEP_PAGES * schema.PAGE_BYTES)


def _about(error: CheckpointCorrupted, thread_id: str | None) -> CheckpointCorrupted:
    """Return an error that names the thread which could not be read, if that is known."""
    return error if thread_id is None or error.thread_id is not None else error.located(thread_id, None)


def _wal_pages_for(pages: int) -> int:
    """Return how long the WAL of a file of so many pages may get before it is moved into it."""
    return max(_WAL_PAGES_MIN, min(_WAL_PAGES_MAX, pages // _WAL_SHARE))


_Outcome = tuple[Any, Exception | None]
"""Of a job: what it returned, or the error that it raised."""


class _Ended(Exception):
    """A job raised SystemExit or the like, and has it as its outcome; the others are to be tried again."""


def _first_deadline(batch: Sequence[Job[Any]]) -> float:
    if len(batch) == 1:
        return batch[0].deadline
    return min([job.deadline for job in batch])


def _do(job: Job[Any], connections: _Connections) -> _Outcome:
    """Run a job inside the transaction. Raise what it raises, unless it has changed nothing: then the others go on."""
    writer = connections.writer
    before = writer.total_changes()
    try:
        return job.work(connections.rows), None
    except Exception as exc:
        if writer.total_changes() != before or isinstance(exc, apsw.Error):
            raise
        return None, exc
    except BaseException as exc:  # it is for the caller whose work raised it
        job.finish(None, exc)
        raise _Ended from exc


def _is_surely_undone(failure: Exception) -> bool:
    """Whether nothing of a commit that failed is kept. After others the log may hold it: nobody knows."""
    return isinstance(failure, (StoreFull, StoreUnavailable)) and not isinstance(failure, StoreReadFailed)


def _fail(batch: Sequence[Job[Any]], failure: Exception, caught: Exception) -> bool:
    """After a transaction of which nothing is kept: give jobs the outcome, and return whether all have one.

    A page that does not match its checksum is looked at first: that error is raised.
    """
    if isinstance(failure, _ChecksumMismatch):
        raise failure from caught
    if len(batch) == 1:
        batch[0].finish(None, failure)
        return True
    if isinstance(failure, StoreUnavailable):
        _finish_late(batch, failure)
    return False


def _unknown_outcomes(batch: Sequence[Job[Any]], outcomes: Sequence[_Outcome], cause: Exception) -> list[_Outcome]:
    """Return the outcomes after a commit that may be stored or not. Jobs that had failed before have failed."""
    found: list[_Outcome] = []
    for job, (result, error) in zip(batch, outcomes, strict=True):
        if error is None:
            error = CommitUnknown(_checkpoint_id(result), job.label)
            error.__cause__ = cause
        found.append((None, error))
    return found


def _checkpoint_id(result: object) -> str | None:
    """Return the id of the checkpoint that a job made: its result, or the first of several."""
    if isinstance(result, tuple) and result and isinstance(result[0], Stored):
        result = result[0]
    return result.record.key.checkpoint_id if isinstance(result, Stored) else None


def _begin(connections: _Connections, deadline: float) -> None:
    """Begin a transaction. Whoever others were faster than too often does so in line, and nobody goes past a line."""
    line = connections.line
    patience = connections.patience
    if line.is_empty():
        patience.lasts(deadline, beaten_max=_BEATEN_MAX)
        try:
            return connections.rows.begin()
        except apsw.BusyError:
            pass  # it is beaten, or out of time
    line.join()
    try:
        line.wait(deadline)
        patience.lasts(deadline)
        connections.rows.begin()
    finally:
        line.leave()


class _Patience:
    """How long the connection that writes waits for a file that another process has locked.

    SQLite itself would sleep longer each time, up to 100 ms, and be passed by others meanwhile.
    """

    def __init__(self, raw: RawFile) -> None:
        self._raw = raw
        self._deadline = 0.0
        self._beaten_max: int | None = None
        self._waiting: Waiting | None = None
        self._first = 0

    def lasts(self, deadline: float, *, beaten_max: int | None = None) -> None:
        """Let it wait from now on until then, and for so many commits of others (None: for any number)."""
        self._deadline = deadline
        self._beaten_max = beaten_max
        self._waiting = None

    def look_again(self, _looks: int) -> bool:
        """Return whether SQLite should look again for the lock of the file; it asks when the file is locked."""
        if self._waiting is None:
            self._waiting = Waiting(_RHYTHM, self._deadline)
            self._first = self._raw.commits()
        if self._beaten_max is not None and self._raw.commits() - self._first >= self._beaten_max:
            return False
        return self._waiting.pause()


def _finish_late(batch: Sequence[Job[Any]], error: StoreUnavailable) -> None:
    """After the file was locked for too long: the jobs that have no time left have failed."""
    for job in batch:
        if time.monotonic() >= job.deadline:
            job.finish(None, error)


def _roll_back(connections: _Connections) -> None:
    connections.rows.forget()
    _end(connections.writer)


def _end(connection: apsw.Connection) -> None:
    """End a transaction that must not be kept."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except apsw.Error:
            pass  # SQLite has rolled back by itself


_vfs_lock = threading.Lock()
_vfs_loaded = False


def _checksum_vfs() -> str:
    """Return the name of the VFS that checks every page; load it on first use."""
    global _vfs_loaded
    with _vfs_lock:
        if not _vfs_loaded:
            default = apsw.vfs_names()[0]
            try:
                apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
            except (apsw.sqlite_extra.NotAvailable, apsw.ExtensionLoadingError) as exc:
                raise StoreError(
                    "this build of apsw has no cksumvfs; install its wheel: pip install --only-binary apsw apsw"
                ) from exc
            apsw.set_default_vfs(default)  # loading made it the default, which is for the application to choose
            _vfs_loaded = True
    return "cksmvfs"


class _ImmutableConnection(apsw.Connection):
    """A connection to a file of which SQLite was told that nobody changes it: it looks for no locks and no log."""


def _connection(path: Path, busy_ms: int) -> apsw.Connection:
    """Return a connection. To a file that may only be read it makes no companions: whoever writes it must own those."""
    if os.path.isdir(path):
        raise why_not_opened(path)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    vfs = _checksum_vfs()
    if can_write(path):
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    elif is_unchanging(path):
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = _ImmutableConnection(f"{path.as_uri()}?immutable=1", flags=flags, vfs=vfs)
    else:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    connection.set_busy_timeout(busy_ms)
    connection.setlk_timeout(busy_ms, 0)
    add_functions(connection)
    # Otherwise a statement with a join is compiled anew for each execution, to see whether its values suggest another
    # plan: that takes ten times as long as to run it, and there is nothing here that they could suggest.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def _opened(path: Path, busy_ms: int) -> apsw.Connection:
    """Return a connection to a file that is a store, making it one if it is new.

    Several processes may make it at once; what a connection saw of the file before it was one is then too old, and
    another connection sees it right.
    """
    started = time.monotonic()
    _make_private(path)
    while True:
        connection = _connection(path, busy_ms)
        try:
            _prepare(connection, path)
            _renewals(connection)  # read here, where a page without a checksum is dealt with
            return connection
        except apsw.IOError as exc:
            connection.close()
            if not _is_checksum_mismatch(exc):
                raise
            _renew_checksums(path, busy_ms)
        except (apsw.BusyError, CheckpointCorrupted) as exc:
            connection.close()
            patience = busy_ms / 1000 if isinstance(exc, apsw.BusyError) else _MAKING_SECONDS
            if time.monotonic() - started >= patience:
                raise
        except BaseException:
            connection.close()
            raise
        time.sleep(random.uniform(0.001, 0.02))  # noqa: S311  # only so that two do not stay in step


def _renew_checksums(path: Path, busy_ms: int) -> None:
    """Compute the checksums of pages that another program wrote, if everything in the file is as we wrote it.

    Nobody writes meanwhile. Raise CheckpointCorrupted, and say what is wrong, if the file is damaged.
    """
    started = time.monotonic()
    with _translated(path), closing(_connection(path, busy_ms)) as connection:
        connection.pragma("checksum_verification", 0)
        _check_reserved_bytes(connection, path)
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            pass  # somebody is reading; what is in the log covers the pages below it all the same
        connection.execute("BEGIN IMMEDIATE")
        raw = RawFile(connection)
        pages = sum(1 for _ in raw.unsealed_pages())
        if pages == 0:
            return  # somebody else was here first
        version = connection.pragma("user_version")
        application = connection.pragma("application_id")
        if (version, application) != (schema.VERSION, APPLICATION_ID):
            raise CheckpointCorrupted(f"{path} is damaged: {pages} pages do not match their checksums")
        try:
            verify(connection)
        except CheckpointCorrupted as exc:
            raise CheckpointCorrupted(
                f"{path} is damaged: {pages} pages do not match their checksums, and {exc.reason}",
                thread_id=exc.thread_id,
                checkpoint_id=exc.checkpoint_id,
            ) from exc
        for at, page in raw.unsealed_pages():
            raw.seal_page(at, page)
        raw.sync()
        # Other processes have the file open, and shall know why it changed.
        connection.execute(
            """INSERT INTO counters (name, value) VALUES ('renewals', 1)
               ON CONFLICT DO UPDATE SET value = value + 1"""
        )
        connection.execute("COMMIT")
    _log.warning(
        "%s: %d pages did not match their checksums, as after another SQLite program has written the file. The whole "
        "file was verified in %.1f s: nothing that is stored is damaged, and the checksums have been renewed",
        path,
        pages,
        time.monotonic() - started,
    )


def _mended(path: Path, busy_ms: int, *, dry_run: bool) -> list[Lost]:
    """Make the tables of a file agree, and give its pages their checksums, whatever is on them."""
    with closing(_connection(path, busy_ms)) as connection:
        connection.pragma("checksum_verification", 0)
        connection.execute("BEGIN IMMEDIATE")
        lost = mend(connection)
        if dry_run:
            connection.execute("ROLLBACK")
            return lost
        connection.execute("COMMIT")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.execute("BEGIN IMMEDIATE")
        raw = RawFile(connection)
        pages = list(raw.unsealed_pages())
        for at, page in pages:
            raw.seal_page(at, page)
        raw.sync()
        if pages:
            connection.execute(
                """INSERT INTO counters (name, value) VALUES ('renewals', 1)
                   ON CONFLICT DO UPDATE SET value = value + 1"""
            )
        connection.execute("COMMIT")
        return lost


def _rebuild(path: Path, busy_ms: int) -> Path:
    """Copy what can be read of a file into a new one in its place, and return where the old one is kept."""
    with contextlib.suppress(BrokenStructure, apsw.Error), closing(_connection(path, busy_ms)) as connection:
        connection.pragma("checksum_verification", 0)
        restore_schema(connection)
    stamp = time.time_ns()
    fresh = Path(f"{path}.{stamp}.new")
    aside = Path(f"{path}.{stamp}.damaged")
    with closing(_opened(fresh, busy_ms)) as target:
        with closing(_connection(path, busy_ms)) as source:
            source.execute("PRAGMA writable_schema = ON")  # else a file that is shorter than it says is not read
            source.pragma("checksum_verification", 0)
            copy_rows(source, target)
        target.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    os.rename(path, aside)
    for end in ("-wal", "-shm"):
        if os.path.exists(f"{path}{end}"):
            os.rename(f"{path}{end}", f"{aside}{end}")
    os.rename(fresh, path)
    return aside


def _make_private(path: Path) -> None:
    """Make a file that is missing, for its owner alone. SQLite gives its companions (-wal, -shm) the same rights."""
    try:
        # Only one that is new may be closed again here: that would drop the locks of connections to an old one.
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE_MODE))
    except OSError:
        pass  # it is there, or SQLite will say what is wrong


def _prepare(connection: apsw.Connection, path: Path) -> None:
    """Make a new file a store, or check that an old one is."""
    if connection.pragma("page_count") == 0:
        # Smaller than any page, it is no database. Whole pages are those of a process that is making the file now;
        # those of one killed at it went when the pages were counted.
        if 0 < os.path.getsize(path) < _PAGE_BYTES_LEAST:
            raise StoreMismatch(f"{path} is not a SQLite database; give the store a file of its own")
        reserved = ctypes.c_int(_RESERVED_BYTES)
        connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
        connection.execute(f"PRAGMA page_size={schema.PAGE_BYTES}; PRAGMA auto_vacuum=INCREMENTAL")
        connection.pragma("journal_mode", "wal")
    version = connection.pragma("user_version")
    application = connection.pragma("application_id")
    if version == 0 and application in (0, APPLICATION_ID):
        version, application = _migrate(connection, path)
    if application != APPLICATION_ID:
        raise _of_another(connection, path)
    if version > schema.VERSION:
        raise StoreMismatch(
            f"{path} was written by a newer Everstep: its schema is {version}, this one knows {schema.VERSION}; "
            "upgrade everstep"
        )
    if version < schema.FIRST:
        raise StoreMismatch(
            f"{path} was written by a version before the first release: its schema is {version}, which is not read any "
            "more; give the store a new file"
        )
    if version < schema.VERSION:
        _migrate(connection, path)
    _check_reserved_bytes(connection, path)
    if not int(connection.pragma("checksum_verification")):
        raise CheckpointCorrupted(f"{path}: the page checksums are switched off; the file's header is damaged")
    if connection.pragma("journal_mode") != "wal":
        connection.pragma("journal_mode", "wal")


def _check_reserved_bytes(connection: apsw.Connection, path: Path) -> None:
    reserved = ctypes.c_int(-1)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
    if reserved.value != _RESERVED_BYTES:
        raise CheckpointCorrupted(f"{path}: its pages have no room for checksums; the file's header is damaged")


def _of_another(connection: apsw.Connection, path: Path) -> StoreMismatch:
    """Return the error for a file that is not ours; whoever changes savers is told how to move in."""
    advice = "give the store a file of its own"
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if {"checkpoints", "writes"} <= tables:
        advice = f"it looks like LangGraph's own: everstep.langgraph.import_langgraph reads it into a new one; {advice}"
    return StoreMismatch(f"{path} is a SQLite database of another application; {advice}")


def _migrate(connection: apsw.Connection, path: Path) -> tuple[int, int]:
    """Bring the schema up to date, one numbered file at a time; two processes may try at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.pragma("user_version")
        application = connection.pragma("application_id")
        if version == 0 and application == 0 and connection.execute("SELECT 1 FROM sqlite_schema").get is not None:
            raise _of_another(connection, path)
        for number in migrate(connection, version):
            connection.execute(f"PRAGMA user_version={number}; PRAGMA application_id={APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        _end(connection)
        raise
    return connection.pragma("user_version"), connection.pragma("application_id")


class _ChecksumMismatch(CheckpointCorrupted):
    """A page is not as this library wrote it. Never leaves this module: see `_Database._renew_checksums`."""


def _set_log_aside(path: Path) -> None:
    """Keep the log of a file that was overwritten from being taken for that of the file that is there now."""
    aside = Path(f"{path}-wal.{time.time_ns()}")
    try:
        os.rename(f"{path}-wal", aside)
    except FileNotFoundError:
        return  # another process has done it
    _log.warning("%s was overwritten while it was open; the commits that it had in its log are in %s", path, aside)


def _renewals(connection: apsw.Connection) -> int:
    """Return how often pages were written in place: see `_renew_checksums`."""
    found: int | None = connection.execute("SELECT value FROM counters WHERE name = 'renewals'").get
    return found or 0


def _is_checksum_mismatch(error: apsw.Error) -> bool:
    return getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)


class _translated:  # noqa: N801  # used like a function
    """Turn APSW's errors into ours."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (apsw.Error, OSError)):
            ours = _as_ours(self._path, error)
            if ours is not error:
                raise ours from error


def _as_ours(path: Path, error: Exception) -> Exception:
    """Return an error of APSW's or of the system's as one of ours, which it has caused; any other as it is."""
    if isinstance(error, apsw.Error):
        ours = _translation(path, error)
    elif isinstance(error, OSError) and not isinstance(error, EverstepError):
        ours = StoreError(f"{path}: {error}")
    else:
        return error
    ours.__cause__ = error
    return ours


def _translation(path: Path, error: apsw.Error) -> EverstepError:
    """Return what callers are told about an error of APSW's."""
    if isinstance(error, apsw.FullError):
        return _full(path)
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StoreUnavailable(f"{path}: another process held the file locked for too long; try again")
    if isinstance(error, apsw.ReadOnlyError):
        return StoreReadOnly(f"{path} cannot be written; check its permissions and those of its folder")
    if isinstance(error, (apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError)):
        return why_not_opened(path)
    if isinstance(error, apsw.NotADBError):
        return StoreMismatch(f"{path} is not a SQLite database, or its first page is damaged")
    if isinstance(error, (apsw.CorruptError, apsw.FormatError, apsw.SchemaChangeError)):
        return CheckpointCorrupted(f"{path} is damaged: {error}")
    if isinstance(error, apsw.IOError):
        return _translated_failure(path, error)
    # A damaged schema reads as wrong SQL: we send no other.
    return CheckpointCorrupted(f"{path} cannot be read: {type(error).__name__}: {error}")


def _full(path: Path) -> StoreFull:
    return StoreFull(
        f"{path}: no space left; nothing was written, what was stored is intact. Free some, or delete threads"
    )


def _translated_failure(path: Path, error: apsw.IOError) -> EverstepError:
    """The same for errors of the disk."""
    code = getattr(error, "extendedresult", 0)
    if _is_checksum_mismatch(error):
        return _ChecksumMismatch(f"{path} is damaged: a page does not match its checksum")
    if code in _FAILED_READS:
        return StoreReadFailed(
            f"{path}: the disk could not be read ({error}); nothing was changed. Try again; if it comes again, look "
            "at the machine's log and save what can still be read with everstep.copy"
        )
    if code == apsw.SQLITE_IOERR_SHMSIZE and not has_space(path):
        return StoreFull(f"{path}: there is no space left for the index of its log, some 32 KB; free some")
    if code == apsw.SQLITE_IOERR_WRITE and not has_space(path):  # SQLite says "full" of a disk, not of a user's share
        return _full(path)
    return StoreError(f"{path}: the disk failed: {error}")
