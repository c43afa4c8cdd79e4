"""One SQLite file, through APSW: WAL, one commit queue per process, readers that never wait for writers.

Every page carries a checksum (SQLite's own cksumvfs), so a flipped bit anywhere in the file is an error, not an
answer. A page whose checksum is not right may also have been written by a program that does not know them. Then the
whole file is looked at (`verify`), and if everything in it is right, its pages get new checksums.

What checks, mends and moves a store is imported when it is used: most processes only open a file, read and write.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from everstep.errors import CheckpointCorrupted, InvalidInput, StoreFull
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.stores.abilities import Origin
from everstep.stores.deletion import Deletion
from everstep.stores.facts import Wanted
from everstep.stores.inside import Inside
from everstep.stores.inspection import EntryPage, Lost
from everstep.stores.looks import Looks
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Deleted,
    Hit,
    Key,
    Loaded,
    Object,
    Part,
    Query,
    Search,
    Store,
    Stored,
    Swept,
    Write,
)
from everstep.stores.sqlite.database import SHRINK_PAGES, Database, Synchronous
from everstep.stores.sqlite.drivers import AsyncDriver, BlockingDriver, Driver
from everstep.stores.sqlite.full_disk import Steps
from everstep.stores.sqlite.handle import Handle
from everstep.stores.sqlite.rows import Rows
from everstep.stores.sqlite.searching import Candidate
from everstep.stores.sqlite.worker_threads import offloaded

if TYPE_CHECKING:
    from everstep.reports import Finding

_log = logging.getLogger("everstep")
T = TypeVar("T")
# Of threads that are searched for one by one.
_LOOKED_AT_ONCE = 500
_TIDY_PAGES = 128  # given back at once after a sweep in passing


class SQLiteStore(Looks):
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
        self._database = Handle(_checked_path(path), synchronous, busy_timeout_seconds)
        self._driver: Driver = AsyncDriver(self._database)

    @property
    def blocking(self) -> SQLiteStore:
        twin = object.__new__(SQLiteStore)
        twin._database, twin._driver = self._database, BlockingDriver(self._database)
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

    def origin(self, checkpoint_id: str) -> Coroutine[Any, Any, Origin | None]:
        """See `FindsOrigins`."""

        def find(rows: Rows) -> Origin | None:
            return rows.origin(checkpoint_id)

        return self._driver.read(find, quick=find)

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        return await self._driver.read(lambda rows: rows.load_many(keys, writes)) if keys else []

    def read_page(self, query: Query) -> Coroutine[Any, Any, list[Loaded]]:
        return self._driver.read(lambda rows: rows.load_page(query))

    def read_entries(self, thread_id: str, namespace: str, *, after: int, limit: int) -> Coroutine[Any, Any, EntryPage]:
        """Check a page of checkpoints: see `ReadsEntries`."""
        return self._driver.read(lambda rows: rows.entries(thread_id, namespace, after, limit))

    def _look(
        self,
        work: Callable[[Rows], T],
        thread_id: str | None = None,
        *,
        is_view: bool = False,  # noqa: ARG002  # every read sees one state
    ) -> Coroutine[Any, Any, T]:
        return self._driver.read(work, thread_id)

    async def clock(self) -> float:
        return time.time()  # all who use the file are on one machine

    async def search(self, search: Search) -> list[Hit]:
        try:
            return await super().search(search)
        except CheckpointCorrupted:
            return await self._search_around(search)

    async def _search_around(self, search: Search) -> list[Hit]:
        """Search with a look of its own for each thread: a page that cannot be read ends a look, whatever it is about.

        Where those pages cannot be read that tell who is there, that is raised.
        """
        wanted = Wanted.of(search)
        found: list[Hit] = []
        while True:
            candidates = await self._candidates(search)
            for candidate in candidates:
                if len(found) >= search.limit:
                    return found
                hit = await self._hit_around(candidate, wanted)
                if hit is not None:
                    found.append(hit)
            if len(candidates) < _LOOKED_AT_ONCE:
                return found
            search = replace(search, after=candidates[-1].position)

    async def _candidates(self, search: Search) -> list[Candidate]:
        return await self._look(lambda rows: rows.searched_candidates(search, _LOOKED_AT_ONCE))

    async def _hit_around(self, candidate: Candidate, wanted: Wanted) -> Hit | None:
        thread_id = candidate.position.thread_id
        try:
            return await self._look(lambda rows: rows.hit(candidate, wanted))
        except CheckpointCorrupted as exc:
            reason = f"a page of the file that tells of it cannot be read: {exc.reason}"
            return Hit(None, candidate.position, CheckpointCorrupted(reason, thread_id=thread_id))

    async def _delete(self, deletion: Deletion) -> Deleted:
        def work(rows: Rows) -> tuple[Deleted, bool]:
            # What does not fit leaves no room on the disk for anything else: so some is set aside before.
            self._database.get().keep_reserve(leaving_bytes=0)
            deleted = rows.delete(deletion)
            # The file is shortened in the same commit: another one would take as long again.
            is_more_free = bool(deleted.checkpoints) and not deletion.spare and rows.shrink(SHRINK_PAGES)
            return deleted, is_more_free

        try:
            deleted, is_more_free = await self._driver.write(work, deletion.thread_id)
        except StoreFull:
            async with self._steps() as steps:
                deleted = await steps.delete(deletion)
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
        held_bytes = await self._driver.do(Database.give_up_reserve)
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
            # The file gets shorter when the log is moved into it.
            await self.erase_deleted()
        except StoreFull:
            _log.warning("%s: the disk is too full to shorten the file; a later collection does it", self.path)

    async def adopt(self, part: Part) -> int:
        from everstep.stores.adoption import adopt

        return await self._driver.write(lambda tx: adopt(tx, part), part.thread_id)

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        from everstep.stores.adoption import adopt_new

        if parts:
            await self._driver.write(lambda tx: adopt_new(tx, parts), parts[0].thread_id)

    async def erase_deleted(self) -> None:
        """Leave nothing of what was deleted in the file and the log beside it."""
        await self._driver.do(Database.erase_deleted)

    async def thread_names(self) -> list[str]:
        """Return the name of every thread, damaged ones included: see `Checking`."""
        from everstep.stores.sqlite.verify import thread_names

        return await self._behind(lambda: self._database.inspect(thread_names))

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with the file, its tables and indexes: see `Checking`."""
        from everstep.stores.sqlite.verify import problems

        await self._behind(self._database.check_whose)
        return await self._behind(lambda: self._database.inspect(problems))

    async def check_found_by(self) -> list[Finding]:
        """Return which checkpoints would not be found by what they have: see `ReadsEntries`."""
        from everstep.stores.sqlite.verify import found_by_problems

        return await self._behind(lambda: self._database.inspect(found_by_problems))

    async def mend_tables(self, *, dry_run: bool) -> list[Lost]:
        """Make tables and indexes agree, in a new file if need be: see `Mending`."""
        return await self._behind(lambda: self._database.mend(dry_run=dry_run))

    @asynccontextmanager
    async def rehearsal(self) -> AsyncIterator[SQLiteStore]:
        """A copy of the file beside it: see `Rehearsing`."""
        import tempfile

        with tempfile.TemporaryDirectory(prefix=f".{self.path.name}-", dir=self.path.parent) as folder:
            path = Path(folder, self.path.name)
            await self._behind(lambda: self._database.copy_pages(path))
            copy = SQLiteStore(path, synchronous="off")
            if isinstance(self._driver, BlockingDriver):
                copy = copy.blocking
            try:
                yield copy
            finally:
                await copy.close()

    async def stored_rows(self, keys: Sequence[Key]) -> list[Lost]:
        """Return checkpoints as they are stored: see `Mending`."""
        from everstep.stores.sqlite.mending import stored_rows

        return await self._behind(lambda: self._database.inspect(lambda connection: stored_rows(connection, keys)))

    async def _behind(self, work: Callable[[], T]) -> T:
        """Do something with the file itself, which may be too damaged to be opened as a store."""
        if isinstance(self._driver, AsyncDriver):
            return await offloaded(work)
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
