"""One SQLite file, through APSW: WAL, one commit queue per process, readers that never wait for writers.

Every page carries a checksum (SQLite's own cksumvfs), so a flipped bit anywhere in the file is an error, not an
answer. Threads of execution share a `_Database` per file; after a fork the child opens its own and leaves the parent's
connections alone. Driver errors are translated in `_translated`, and nowhere else.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

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
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.stores.protocol import (
    Base,
    Change,
    Deleted,
    Key,
    Loaded,
    Object,
    Operation,
    Query,
    Stored,
    Swept,
    Thread,
    Write,
)
from everstep.stores.queue import CommitQueue, Job
from everstep.stores.sqlite_rows import Rows
from everstep.stores.transaction import apply, apply_writes

T = TypeVar("T")
Synchronous = Literal["full", "normal", "off"]

SCHEMA_VERSION = 1
APPLICATION_ID = 0x45565354  # "EVST"
_PAGE_BYTES = 4096
_RESERVED_BYTES = 8  # at the end of each page, for its checksum
_WAL_PAGES_MIN, _WAL_PAGES_MAX = 56, 1000
_SWEEP_BATCH = 500
_READERS_IDLE_MAX = 8


class SQLiteStore:
    """A store in one file. `blocking` is the same store for callers that may wait on their own thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Synchronous = "full",
        busy_timeout_seconds: float = 30.0,
    ) -> None:
        """Nothing is opened yet. `synchronous="normal"` may lose acknowledged commits in a power cut."""
        self._database = _Handle(_checked_path(path), synchronous, busy_timeout_seconds)
        self._driver: _Driver = _AsyncDriver(self._database)

    @property
    def blocking(self) -> SQLiteStore:
        twin = object.__new__(SQLiteStore)
        twin._database, twin._driver = self._database, _BlockingDriver(self._database)
        return twin

    @property
    def path(self) -> Path:
        """The database file."""
        return self._database.path

    async def commit(self, change: Change) -> Stored | None:
        return await self._driver.write(lambda tx: apply(tx, change), change.thread_id)

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: Base | None = None
    ) -> None:
        await self._driver.write(lambda tx: apply_writes(tx, key, writes, objects, base), key.thread_id)

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        return await self._driver.read(lambda rows: rows.load(thread_id, namespace, checkpoint_id, objects, writes))

    async def find(self, checkpoint_id: str) -> list[Key]:
        return await self._driver.read(lambda rows: rows.find(checkpoint_id))

    async def fetch(self, family: str, hashes: Collection[bytes]) -> list[Object]:
        return await self._driver.read(lambda rows: rows.below(family, hashes))

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        return await self._driver.read(lambda rows: rows.list_checkpoints(query))

    async def list_threads(self, limit: int, offset: int) -> list[Stored]:
        return await self._driver.read(lambda rows: rows.list_threads(limit, offset))

    async def thread(self, thread_id: str) -> Thread | None:
        return await self._driver.read(lambda rows: rows.thread(thread_id))

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        return await self._driver.read(lambda rows: rows.operations(thread_id, limit))

    async def delete(
        self, thread_id: str, *, keys: Collection[Key] | None = None, before_step: int | None = None
    ) -> Deleted:
        deleted = await self._driver.write(lambda tx: tx.delete(thread_id, keys, before_step), thread_id)
        if deleted.checkpoints:
            await self._driver.tidy()
        return deleted

    async def sweep(self, family: str) -> Swept:
        """Mark in a read transaction, which blocks nobody, then delete in short write transactions."""
        objects = size = 0
        finished = False
        while not finished:
            sweeps, doomed = await self._driver.read(lambda rows: rows.unreachable(family))
            finished = True
            for start in range(0, len(doomed), _SWEEP_BATCH):
                batch = doomed[start : start + _SWEEP_BATCH]
                removed = await self._driver.write(_removal(family, batch, sweeps), "")
                if removed is None:  # another sweep came between: look again
                    finished = False
                    break
                sweeps, objects, size = removed, objects + len(batch), size + sum(bytes_ for _, bytes_ in batch)
        if objects:
            await self._driver.tidy()
        return Swept(objects, size)

    async def close(self) -> None:
        await self._driver.close()


def _removal(family: str, batch: Sequence[tuple[int, int]], sweeps: int) -> Callable[[Rows], int | None]:
    return lambda rows: rows.remove_objects(family, [rowid for rowid, _ in batch], sweeps)


def _checked_path(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidInput(f"a SQLite store needs the path of a file, not {path!r}")
    text = os.fspath(path)
    if not isinstance(text, str) or "\0" in text:
        raise InvalidInput(f"a SQLite store needs the path of a file, not {path!r}")
    if text == ":memory:":
        raise InvalidInput("for a store in memory use MemoryCheckpointer() or memory://")
    return Path(os.path.abspath(text))


# -- drivers: the same work, awaited or not ----------------------------------------------------------------------------


class _Driver(Protocol):
    async def read(self, work: Callable[[Rows], T]) -> T: ...
    async def write(self, work: Callable[[Rows], T], thread_id: str) -> T: ...
    async def tidy(self) -> None: ...
    async def close(self) -> None: ...


class _BlockingDriver:
    """Works on the calling thread; never suspends."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle

    async def read(self, work: Callable[[Rows], T]) -> T:
        return self._handle.get().read(work)

    async def write(self, work: Callable[[Rows], T], thread_id: str) -> T:
        return self._handle.get().queue.do(Job(work, thread_id))

    async def tidy(self) -> None:
        self._handle.get().give_space_back()

    async def close(self) -> None:
        self._handle.close()


class _AsyncDriver:
    """Works on worker threads; the event loop goes on meanwhile."""

    def __init__(self, handle: _Handle) -> None:
        self._handle = handle

    async def read(self, work: Callable[[Rows], T]) -> T:
        return await self._offloaded(lambda database: database.read(work))

    async def write(self, work: Callable[[Rows], T], thread_id: str) -> T:
        database = await self._offloaded(lambda database: database) if self._handle.is_new else self._handle.get()
        return await database.queue.do_async(Job(work, thread_id))

    async def tidy(self) -> None:
        await self._offloaded(lambda database: database.give_space_back())

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._handle.close)

    def _offloaded(self, work: Callable[[_Database], T]) -> Awaitable[T]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._handle.executor(), lambda: work(self._handle.get()))


# -- one database file, one process ------------------------------------------------------------------------------------

_shared: weakref.WeakValueDictionary[tuple[Any, ...], _Database] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()


def _after_fork() -> None:
    """In a forked child: never touch the parent's connections, not even to close them at exit."""
    global _shared_lock
    _shared_lock = threading.Lock()
    for database in list(_shared.values()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork)


class _Handle:
    """A user's hold on a database: opens it on first use, and again in a forked child."""

    def __init__(self, path: Path, synchronous: Synchronous, busy_timeout_seconds: float) -> None:
        if synchronous not in ("full", "normal", "off"):
            raise InvalidInput(f"synchronous is 'full', 'normal' or 'off', not {synchronous!r}")
        self.path, self._synchronous, self._busy_seconds = path, synchronous, busy_timeout_seconds
        self._lock = threading.Lock()
        self._database: _Database | None = None
        self._pid = os.getpid()
        self._closed = False
        self._executor: Executor | None = None

    @property
    def is_new(self) -> bool:
        return self._database is None or self._pid != os.getpid()

    def get(self) -> _Database:
        database = self._database
        if database is not None and self._pid == os.getpid() and not self._closed:
            return database
        if self._pid != os.getpid():
            self._lock, self._database, self._executor, self._pid = threading.Lock(), None, None, os.getpid()
        with self._lock:
            if self._closed:
                raise StoreClosed(f"the store {self.path} is closed")
            if self._database is None:
                self._database = _open_shared(self.path, self._synchronous, self._busy_seconds)
            return self._database

    def executor(self) -> Executor:
        """Worker threads for asynchronous callers."""
        if self._executor is None or self._pid != os.getpid():
            if self._closed:
                raise StoreClosed(f"the store {self.path} is closed")
            if self._pid != os.getpid():
                self.get()
            with self._lock:
                self._executor = self._executor or ThreadPoolExecutor(4, "everstep-sqlite")
        return self._executor

    def close(self) -> None:
        with self._lock:
            database, self._database, self._closed = self._database, None, True
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)
        if database is not None and self._pid == os.getpid():
            database.release()


def _open_shared(path: Path, synchronous: Synchronous, busy_seconds: float) -> _Database:
    """Return this process's database for the file: one commit queue, however many handles."""
    with _shared_lock:
        key = (path, synchronous, os.getpid())
        database = _shared.get(key)
        if database is None or not database.is_the_file() or not database.hold():
            database = _Database(path, synchronous, busy_seconds)
            _shared[key] = database
        return database


class _Database:
    """Connections to one file: one that writes, led by the commit queue, and a few that read."""

    def __init__(self, path: Path, synchronous: Synchronous, busy_seconds: float) -> None:
        self._path, self._synchronous, self._busy_ms = path, synchronous, int(busy_seconds * 1000)
        self._lock = threading.Lock()
        self._holds = 1
        self._readers: list[apsw.Connection] = []
        self._executor: Executor | None = None
        with _translated(path):
            self._writer = self._connect()
            try:
                _prepare(self._writer, path)
                self._configure(self._writer)
            except BaseException:
                self._writer.close()
                raise
        stat = os.stat(path)
        self._identity = stat.st_dev, stat.st_ino
        self._rows = Rows(self._writer)
        self.queue = CommitQueue(self._run_batch, self._workers)

    def is_the_file(self) -> bool:
        """Whether the path still leads to the file that is open."""
        try:
            stat = os.stat(self._path)
        except OSError:
            return False
        return (stat.st_dev, stat.st_ino) == self._identity

    def hold(self) -> bool:
        with self._lock:
            if self._holds == 0:
                return False
            self._holds += 1
            return True

    def release(self) -> None:
        """Close when the last handle lets go. The file then needs no WAL beside it."""
        with self._lock:
            self._holds -= 1
            if self._holds > 0:
                return
            readers, self._readers = self._readers, []
        self.queue.do(Job(lambda _: None, ""))  # runs after everybody who came before
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        with _translated(self._path):
            for connection in (*readers, self._writer):
                connection.close()

    def read(self, work: Callable[[Rows], T]) -> T:
        """Run `work` on a consistent view of the file."""
        with _translated(self._path):
            connection = self._take_reader()
            try:
                connection.execute("BEGIN")
                try:
                    return work(Rows(connection))
                finally:
                    if connection.in_transaction:
                        connection.execute("COMMIT")
            finally:
                self._put_reader(connection)

    def give_space_back(self) -> None:
        """Shrink the file by the pages that deletion left free, a few at a time."""
        with _translated(self._path):
            while self.queue.do(Job(lambda rows: rows.shrink(), "")):
                pass

    def _take_reader(self) -> apsw.Connection:
        with self._lock:
            if self._holds == 0:
                raise StoreClosed(f"the store {self._path} is closed")
            if self._readers:
                return self._readers.pop()
        connection = self._connect()
        connection.execute("PRAGMA query_only=1")
        return connection

    def _put_reader(self, connection: apsw.Connection) -> None:
        with self._lock:
            if self._holds > 0 and len(self._readers) < _READERS_IDLE_MAX:
                self._readers.append(connection)
                return
        connection.close()

    def _workers(self) -> Executor:
        with self._lock:
            self._executor = self._executor or ThreadPoolExecutor(1, "everstep-commit")
            return self._executor

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        connection = apsw.Connection(str(self._path), flags=flags, vfs=_checksum_vfs())
        connection.set_busy_timeout(self._busy_ms)
        connection.setlk_timeout(self._busy_ms, 0)
        return connection

    def _configure(self, connection: apsw.Connection) -> None:
        connection.execute(f"PRAGMA synchronous={self._synchronous}")
        connection.execute(f"PRAGMA journal_size_limit={_WAL_PAGES_MAX * _PAGE_BYTES}")
        connection.execute("PRAGMA cache_size=-8000")
        connection.wal_autocheckpoint(0)
        connection.set_wal_hook(self._after_commit)

    def _after_commit(self, connection: apsw.Connection, _name: str, wal_pages: int) -> int:
        """Keep the WAL in proportion to the file: small beside a small one, never more than 4 MB for long."""
        if wal_pages >= _WAL_PAGES_MIN:
            pages = connection.pragma("page_count")
            if wal_pages >= max(_WAL_PAGES_MIN, min(_WAL_PAGES_MAX, pages // 8)):
                try:
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                except apsw.BusyError:
                    pass  # another process is at it
        return apsw.SQLITE_OK

    def _run_batch(self, batch: Sequence[Job[Any]]) -> None:
        """Run the jobs in one transaction. If that fails, each in its own: one bad job fails no other."""
        try:
            if not self.is_the_file():
                raise StoreError(f"the file {self._path} was removed or replaced while it was open; reopen the store")
            if not self._try_together(batch):
                for job in batch:
                    self._try_together([job], last_try=True)
        except BaseException as exc:
            for job in batch:
                if job.result is None and job.error is None:
                    job.error = exc
            if not isinstance(exc, Exception):
                raise

    def _try_together(self, batch: Sequence[Job[Any]], *, last_try: bool = False) -> bool:
        """Return whether every job has its outcome."""
        connection = self._writer
        committing = False
        try:
            with _translated(self._path):
                connection.execute("BEGIN IMMEDIATE")
                for job in batch:
                    before = connection.total_changes()
                    try:
                        job.result, job.error = job.work(self._rows), None
                    except Exception as exc:
                        if connection.total_changes() != before or isinstance(exc, apsw.Error):
                            raise
                        job.result, job.error = None, exc  # it changed nothing: the others go on
                committing = True
                connection.execute("COMMIT")
            return True
        except Exception as exc:
            _roll_back(connection)
            # Nothing of a full disk or a busy file is kept. After any other failed commit the log may hold it.
            if committing and not isinstance(exc, (StoreFull, StoreUnavailable)):
                for job in batch:
                    job.error = job.error or CommitUnknown(_checkpoint_id(job.result), job.label)
                    job.error.__cause__ = job.error.__cause__ or exc
                return True
            if len(batch) == 1 or last_try or isinstance(exc, StoreUnavailable):
                for job in batch:
                    job.result, job.error = None, exc
                return True
            return False
        except BaseException:
            _roll_back(connection)
            raise


def _checkpoint_id(result: object) -> str | None:
    return result.record.key.checkpoint_id if isinstance(result, Stored) else None


def _roll_back(connection: apsw.Connection) -> None:
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


def _prepare(connection: apsw.Connection, path: Path) -> None:
    """Make a new file a store, or check that an old one is."""
    if connection.pragma("page_count") == 0:
        reserved = ctypes.c_int(_RESERVED_BYTES)
        connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
        connection.execute(f"PRAGMA page_size={_PAGE_BYTES}; PRAGMA auto_vacuum=INCREMENTAL")
        connection.pragma("journal_mode", "wal")
    version, application = connection.pragma("user_version"), connection.pragma("application_id")
    if version == 0 and application in (0, APPLICATION_ID):
        version, application = _migrate(connection, path)
    if application != APPLICATION_ID:
        raise StoreMismatch(f"{path} is a SQLite database of another application; give the store a file of its own")
    if version > SCHEMA_VERSION:
        raise StoreMismatch(
            f"{path} was written by a newer Everstep: its schema is {version}, this one knows {SCHEMA_VERSION}; "
            "upgrade everstep"
        )
    if version < SCHEMA_VERSION:
        _migrate(connection, path)
    reserved = ctypes.c_int(-1)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
    if reserved.value != _RESERVED_BYTES or not int(connection.pragma("checksum_verification")):
        raise CheckpointCorrupted(f"{path}: the page checksums are switched off; the file's header is damaged")
    if connection.pragma("journal_mode") != "wal":
        connection.pragma("journal_mode", "wal")


def _migrate(connection: apsw.Connection, path: Path) -> tuple[int, int]:
    """Bring the schema up to date, one numbered file at a time; two processes may try at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version, application = connection.pragma("user_version"), connection.pragma("application_id")
        if version == 0 and application == 0 and connection.execute("SELECT 1 FROM sqlite_schema").get is not None:
            raise StoreMismatch(f"{path} is a SQLite database of another application; give the store a file of its own")
        for number in range(version + 1, SCHEMA_VERSION + 1):
            connection.execute(resources.files("everstep.stores").joinpath(f"sql/sqlite-{number}.sql").read_text())
            connection.execute(f"PRAGMA user_version={number}; PRAGMA application_id={APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise
    return connection.pragma("user_version"), connection.pragma("application_id")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn APSW's errors into ours."""
    try:
        yield
    except EverstepError:
        raise
    except apsw.FullError as exc:
        raise StoreFull(f"{path}: no space left; nothing was written, what was stored is intact") from exc
    except (apsw.BusyError, apsw.LockedError) as exc:
        raise StoreUnavailable(f"{path}: another process held the file locked for too long; try again") from exc
    except apsw.ReadOnlyError as exc:
        raise StoreReadOnly(f"{path} cannot be written; check its permissions and those of its folder") from exc
    except (apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError) as exc:
        raise StoreReadOnly(
            f"{path} cannot be opened or created; check that the folder exists and may be written"
        ) from exc
    except apsw.NotADBError as exc:
        raise StoreMismatch(f"{path} is not a SQLite database, or its first page is damaged") from exc
    except (apsw.CorruptError, apsw.FormatError, apsw.SchemaChangeError) as exc:
        raise CheckpointCorrupted(f"{path} is damaged: {exc}") from exc
    except apsw.IOError as exc:
        if getattr(exc, "extendedresult", 0) in (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS):
            raise CheckpointCorrupted(f"{path} is damaged: a page does not match its checksum") from exc
        raise StoreError(f"{path}: the disk failed: {exc}") from exc
    except apsw.Error as exc:
        # A damaged schema reads as wrong SQL: we send no other.
        raise CheckpointCorrupted(f"{path} cannot be read: {type(exc).__name__}: {exc}") from exc
    except OSError as exc:
        raise StoreError(f"{path}: {exc}") from exc
