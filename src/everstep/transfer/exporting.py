"""Histories in one portable file: out of any store, and into any other.

The file is written and read from its beginning to its end, so a pipe will do. Families come one after the other, as
`families` tells, and an import takes them over as a copy does: one that was stopped is run again.
"""

from __future__ import annotations

import asyncio
import operator
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from everstep.errors import CheckpointCorrupted, InvalidInput, StoreError, StoreFull
from everstep.reports import CopyProgress, CopyReport, ExportReport, counted
from everstep.runtime import checks
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Key, Object
from everstep.transfer import archive, families, frames
from everstep.transfer.archive import CHECKPOINTS, DONE, END, FAMILY, OBJECTS, START, FamilyReader, GroupReader, Item
from everstep.transfer.families import Entry, Group, Pass, Receiver, StoreSource
from everstep.transfer.receiving import Progress, Target
from everstep.transfer.sides import Side, opened, thread_names
from everstep.types import utc_now

T = TypeVar("T")
File = str | os.PathLike[str] | BinaryIO
Run = Callable[..., Any]


def export_threads(
    store: Side, file: File, threads: Iterable[str] | None = None, *, progress: Progress | None = None
) -> ExportReport:
    """Write histories to a file and return what was written: everything, or the families of `threads`.

    All that `copy` brings along is in it: checkpoints, branches, merges, tags, pins, pending writes, what is hidden and
    the log of operations. The store may be written to meanwhile: each thread is exported as it was at one moment.

    `file` is a path that is not there yet, or a file or pipe that is open in binary mode, which stays open. A path
    appears when all of it is on the disk, and not before. `progress` is called with a CopyProgress after each part.
    """
    return run_to_end(_export(store, file, threads, progress, blocking=True))


async def export_threads_async(
    store: Side, file: File, threads: Iterable[str] | None = None, *, progress: Progress | None = None
) -> ExportReport:
    """Write histories to a file without blocking the event loop. See `export_threads`."""
    return await _export(store, file, threads, progress, blocking=False)


def import_threads(
    file: File,
    store: Side,
    threads: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    verify: bool = True,
) -> CopyReport:
    """Bring the histories of a file into a store and return what was done: all, or the families of `threads`.

    Every checksum and hash is checked, so a file may come from anybody: what is damaged or forged is
    CheckpointCorrupted or InvalidInput. A family becomes visible when all of it is there; those that came before the
    damage stay.

    Run it again after a crash: it goes on, and what is there is skipped. A thread of the store that is not a copy of
    the file's, that somebody has changed since, or that is newer than the file's is InvalidInput, and its family is
    left as it is.

    Of a file that was written from this very store, the threads that were deleted since come back, as a family of their
    own; their relatives that are still there stay as they are (`CopyReport.kept_ids`). If none was deleted, that is
    InvalidInput too.

    With `verify` everything is read back and compared. `file` is a path, or a file or pipe that is open in binary mode.
    `progress` is called with a CopyProgress after each part.
    """
    return run_to_end(_import(file, store, threads, progress, verify, blocking=True))


async def import_threads_async(
    file: File,
    store: Side,
    threads: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    verify: bool = True,
) -> CopyReport:
    """Bring the histories of a file into a store without blocking the event loop. See `import_threads`."""
    return await _import(file, store, threads, progress, verify, blocking=False)


async def _export(
    store: Side, file: File, threads: Iterable[str] | None, progress: Progress | None, *, blocking: bool
) -> ExportReport:
    names = thread_names(threads)
    run = runner(blocking)
    async with opened(store, "source", blocking) as one, _written(file, run) as out:
        return await Exporter(out, StoreSource(one, names), progress, run).write_all()


async def _import(
    file: File,
    store: Side,
    threads: Iterable[str] | None,
    progress: Progress | None,
    verify: bool,
    *,
    blocking: bool,
) -> CopyReport:
    names = thread_names(threads)
    run = runner(blocking)
    async with _read(file) as content, opened(store, "target", blocking) as other:
        source = ArchiveSource(content, names, run)
        return await Target(other, source, progress, verify=verify, may_go_back=False).take_all()


def runner(blocking: bool) -> Run:
    """Return how work that takes time is run: in a thread, so that the event loop goes on, or right here."""
    if blocking:
        return _directly
    return asyncio.to_thread


async def _directly(work: Callable[..., T], *args: Any) -> T:
    return work(*args)


# -- files -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _written(file: File, run: Run) -> AsyncIterator[BinaryIO]:
    """Give a file to write to; a path appears in the end, when everything is on the disk."""
    if not isinstance(file, (str, os.PathLike)):
        if not hasattr(file, "write"):
            raise InvalidInput(f"file is a path or an open file, not {checks.shown(file)}")
        yield file
        file.flush()
        return
    path = Path(file)
    if path.exists():
        raise InvalidInput(f"{path} is there already; remove it, or choose another name")
    async with write_aside(path, run) as out:
        yield out


@asynccontextmanager
async def write_aside(path: Path, run: Run) -> AsyncIterator[BinaryIO]:
    """Give a file that gets this name in the end, when everything is on the disk; before, there is nothing new."""
    aside = path.with_name(f"{path.name}.part")
    try:
        with _open_new(aside) as out:
            yield out
            await run(_sync, out)
            is_ours = os.fstat(out.fileno()).st_ino == aside.stat().st_ino
        if is_ours:
            aside.replace(path)
        await run(sync_folder, path.parent)
    except OSError as exc:
        aside.unlink(missing_ok=True)
        raise file_error(exc, path) from exc
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    if not is_ours:
        raise InvalidInput(f"{path} is being written by another program, too; what was written here is not kept")


def _open_new(path: Path) -> BinaryIO:
    """Return a new file that only its owner can read, as a store is: it holds the same.

    What is left of one that broke off goes first. Nothing is written through a link that somebody has put there.
    """
    path.unlink(missing_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    return open(number, "wb")


def _sync(out: BinaryIO) -> None:
    out.flush()
    os.fsync(out.fileno())


def sync_folder(folder: Path) -> None:
    """See that a name which was given to a file in this folder stays."""
    if os.name == "nt":  # folders cannot be opened there
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@asynccontextmanager
async def _read(file: File) -> AsyncIterator[BinaryIO]:
    if not isinstance(file, (str, os.PathLike)):
        if not hasattr(file, "read"):
            raise InvalidInput(f"file is a path or an open file, not {checks.shown(file)}")
        yield file
        return
    try:
        content = Path(file).open("rb")  # noqa: SIM115  # closed below
    except FileNotFoundError as exc:
        raise InvalidInput(f"there is no file {os.fspath(file)}") from exc
    except OSError as exc:
        raise file_error(exc, Path(file)) from exc
    with content:
        yield content


def file_error(exc: OSError, path: Path) -> StoreError:
    """Return what to raise about a file that cannot be read or written."""
    message = f"{path}: {exc.strerror or exc}"
    if exc.errno in _FULL:
        return StoreFull(message)
    return StoreError(message)


_FULL = {28, 122}  # ENOSPC, EDQUOT


# -- writing -----------------------------------------------------------------------------------------------------------


class Exporter:
    """Writes all that a source gives."""

    def __init__(
        self,
        file: BinaryIO,
        source: StoreSource,
        progress: Progress | None,
        run: Run,
        version: int = frames.VERSION,
    ) -> None:
        self._items = archive.ItemWriter(file, version)
        self._source = source
        self._progress = progress
        self._run = run
        self._has_started = False
        self._families = 0
        self.report = ExportReport()

    async def write_all(self) -> ExportReport:
        """Write everything, and the end."""
        async with aclosing(self._source.passes()) as passes:
            async for coming in passes:
                await self._start()
                await self.write_family(coming)
        await self._start()
        report = self.report
        await self._write([END, self._families, report.threads, report.checkpoints, report.objects])
        await self._run(self._items.flush)
        return replace(self.report, bytes=self._items.frames.size_bytes)

    async def _start(self) -> None:
        """Write the beginning, as soon as the source has counted."""
        if not self._has_started:
            self._has_started = True
            await self._write([START, utc_now(), self._source.threads_total, self._source.checkpoints_total])

    async def write_family(self, coming: Pass) -> None:
        """Write one pass of a family, and note whether it is whole."""
        family = coming.family
        positions = await self._write_told(coming)
        written: set[Key] = set()
        objects = 0
        async with aclosing(coming.groups(self)) as groups:
            async for group in groups:
                for item in await self._run(list, archive.group_items(group, positions)):
                    await self._write(item)
                for stored in group.checkpoints:
                    written.add(stored.record.key)
                objects += len(group.objects)
                self._count(checkpoints=len(group.checkpoints), objects=len(group.objects))
                self._tell()
        there = {entry.key for entry in family.entries if not self.wants(entry)} | written
        is_whole = not coming.has_moved_on and families.has_all_heads(family.raws.values(), there)
        await self._write([DONE, is_whole, len(written), objects])
        if is_whole:
            self._families += 1
            self._count(threads=len(family.raws))
        coming.is_finished = is_whole
        self._tell()

    async def _write_told(self, coming: Pass) -> dict[Key, int]:
        """Write what is told of a family before its checkpoints; return where they stand in its index."""
        for item in archive.family_items(coming.family):
            await self._write(item)
        return {entry.key: position for position, entry in enumerate(coming.family.entries)}

    def wants(self, _entry: Entry) -> bool:
        return True

    async def held(self, _asked: Sequence[bytes]) -> list[Object]:
        return []

    async def _write(self, item: Item) -> None:
        if self._items.add(item):
            await self._run(self._items.flush)

    def _count(self, **more: int) -> None:
        self.report = counted(self.report, **more)

    def _tell(self) -> None:
        if self._progress is not None:
            threads = self.report.threads
            checkpoints = self.report.checkpoints
            threads_total = max(threads, self._source.threads_total)
            checkpoints_total = max(checkpoints, self._source.checkpoints_total)
            self._progress(CopyProgress(threads, threads_total, checkpoints, checkpoints_total))


# -- reading -----------------------------------------------------------------------------------------------------------


class ArchiveSource:
    """The families of a file."""

    def __init__(
        self, file: BinaryIO, names: Sequence[str] | None, run: Run, identities: Collection[bytes] | None = None
    ) -> None:
        """`names` are threads whose families are wanted, `identities` families; None: all."""
        self._items = archive.ItemReader(file)
        if self._items.version != frames.VERSION:
            raise InvalidInput(
                "this is an increment of a backup, which rests on earlier ones: use restore with its folder"
            )
        self._identities = identities
        self.taken: set[bytes] = set()
        """The families that somebody took, by identity."""
        self._names = names
        self.run = run
        self.threads_total = 0
        self.checkpoints_total = 0
        self._span = 0
        self._so_far = archive.Summary(0, 0, 0, 0)

    async def passes(self) -> AsyncGenerator[Pass, None]:
        self.threads_total, self.checkpoints_total = archive.read_start(await self.next_item())
        missing = set(self._names or ())
        seen: set[bytes] = set()
        unfinished: bytes | None = None
        while (item := await self.next_item())[0] == FAMILY:
            family, item = await self._read_family(item)
            if unfinished not in (None, family.identity):  # it was deleted while it was exported
                seen = set()
            coming = _ArchivePass(self, family, seen, item)
            if self._is_wanted(family):
                missing -= family.raws.keys()
                self.taken.add(family.identity)
                yield coming
                _check_finished(coming)
            else:
                await coming.skip()
            if coming.is_whole:
                unfinished = None
                seen = set()
                self.count(families=1, threads=len(family.raws))
            else:  # its writer was overtaken by others, and another pass of the same family follows
                unfinished = family.identity
        if archive.read_end(item) != self._so_far:
            raise CheckpointCorrupted("the file is damaged: it has more or less than it says")
        await self.run(self._items.check_end)
        if missing:
            raise InvalidInput(f"there is no thread {min(missing)!r} in the file")

    def _is_wanted(self, family: families.Family) -> bool:
        if self._identities is not None and family.identity not in self._identities:
            return False
        return self._names is None or any(name in family.raws for name in self._names)

    async def _read_family(self, item: Item) -> tuple[families.Family, Item]:
        """Return a family, and the first item of what follows."""
        reader = FamilyReader(item)
        while reader.add(item := await self.next_item()):
            pass
        family = await self.run(reader.finish)
        self._span += reader.span
        if self._span >= archive.SPANS_MAX:
            raise CheckpointCorrupted("the file is damaged: its numbers are out of bounds")
        return family, item

    async def next_item(self) -> Item:
        """Return the next item."""
        while (item := self._items.read()) is None:
            await self.run(self._items.fill)
        return item

    def count(self, families: int = 0, threads: int = 0, checkpoints: int = 0, objects: int = 0) -> None:
        """Note what has come."""
        more = (families, threads, checkpoints, objects)
        self._so_far = archive.Summary(*map(operator.add, self._so_far, more))


class _ArchivePass(Pass):
    """One pass of a family that a file has."""

    def __init__(self, source: ArchiveSource, family: families.Family, seen: set[bytes], item: Item) -> None:
        """`item` is the first one behind what was told of the family; `seen` are objects that came before."""
        super().__init__(family)
        self._source = source
        self._item = item
        self._reader = GroupReader(family, seen)
        self.is_whole = False

    async def groups(self, receiver: Receiver) -> AsyncGenerator[Group, None]:
        reader = self._reader
        item = self._item
        while item[0] in (OBJECTS, CHECKPOINTS):
            if item[0] == OBJECTS:
                await self._source.run(reader.add_objects, item)
            else:
                group = await self._source.run(reader.take_group, item, receiver.wants)
                if group.checkpoints or group.objects:
                    yield group
            item = await self._source.next_item()
        if self._read_done(item) != (reader.checkpoints, reader.objects):
            raise CheckpointCorrupted("the file is damaged: a family has more or less than it says")
        if self.is_whole:
            reader.check_threads()
        self.has_moved_on = not self.is_whole

    async def skip(self) -> None:
        """Go on to the end of the pass."""
        item = self._item
        while item[0] in (OBJECTS, CHECKPOINTS):
            item = await self._source.next_item()
        self._read_done(item)

    def _read_done(self, item: Item) -> tuple[int, int]:
        """Take the last item of the pass; return how many checkpoints and objects it tells of."""
        self.is_whole, checkpoints, objects = archive.read_done(item)
        self._source.count(checkpoints=checkpoints, objects=objects)
        return checkpoints, objects


def _check_finished(coming: _ArchivePass) -> None:
    """Refuse a pass that is whole by its own account, and was not enough for who took it."""
    if coming.is_whole and not coming.is_finished:
        name = next(iter(coming.family.raws))
        raise CheckpointCorrupted("the file is damaged: a head is missing", thread_id=name)
