"""Moving in: the threads of LangGraph's own savers, with everything that belongs to them.

Each thread is read as of one moment, parents first, and put the way the saver puts it: so what did not change is
shared, delta channels keep their lists, and the head is the one that the stock saver gives. It is put in memory first,
and sent in batches, each with everything that belongs to its checkpoints in one commit. What was done is found in the
target, never kept elsewhere: whoever is killed goes on later. In the end both sides are read again, ours and what the
stock saver reads, and compared.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TextIO, cast

from everstep.engine import CheckpointEngine
from everstep.errors import CheckpointCorrupted, EverstepError, HeadMoved, InvalidInput
from everstep.history.operation_log import DEPTH_MAX
from everstep.langgraph import configs
from everstep.langgraph.checkpoints import KIND, Pending, Saved, Threads
from everstep.langgraph.compat import maybe_add_typed_methods
from everstep.langgraph.equality import SameItems, difference, same_packed
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.last_written import Lines
from everstep.langgraph.saver import HarnessCheckpointer
from everstep.langgraph.stock_savers import Attached, Entry, Outline, Row, Source, open_source
from everstep.opening.addresses import is_address, is_in_memory
from everstep.repository.cache import ObjectCache
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.runtime.blocking import SyncFace, run_to_end
from everstep.runtime.calls import Figures, public_call
from everstep.stores.protocol import Key, Part, Query, ReadsTogether, Record, Store, Stored, Write
from everstep.stores.staging import StagingStore
from everstep.types import TASK_NAMESPACE
from everstep.values.tree import Node

_PAGE = 128
_LISTED = 1000  # at once, without values
_BATCH_MAX, _BATCH_BYTES = 2000, 8 << 20  # of checkpoints that are put in one commit
_GROUP_THREADS, _GROUP_CHECKPOINTS = 64, 1024  # of threads that are brought together
_CHUNK_MAX = 64  # checkpoints that are made in one pause of the collector
_COMPARED_MAX, _COMPARED_BYTES = 256, 4 << 20  # of checkpoints whose values are read again at once
_TOLD_EACH = 32  # checkpoints between two calls of `progress`
_NAMES_MAX = 1024  # of entries of metadata, of which is known whether they are secrets
_LINE_SECONDS = 1.0
_STAGED_BYTES = 32 << 20  # objects that are remembered while the next checkpoints are made from them


@dataclass(frozen=True)
class ImportReport:
    """What `import_langgraph` did."""

    threads: int = 0
    """Threads that are now in the target as they are in the source."""
    checkpoints: int = 0
    """Checkpoints that were put."""
    writes: int = 0
    """Pending writes that were attached."""
    skipped: int = 0
    """Checkpoints that were there already."""
    verified: int = 0
    """Checkpoints that were read again and compared with what the stock saver reads, with their writes."""
    secrets: int = 0
    """Entries of metadata that were left behind, because their names are those of secrets."""
    bytes_read: int = 0
    """Bytes of checkpoints and writes that were read from the source; those read to compare do not count."""
    source_bytes: int = 0
    """What the source takes on disk."""
    target_bytes_before: int | None = None
    target_bytes: int | None = None
    """What the target takes on disk, all of its threads; None: it cannot tell."""
    seconds: float = 0.0

    @property
    def mb_per_second(self) -> float:
        """How fast the source was read, all in all."""
        if not self.seconds:
            return 0.0
        return self.bytes_read / 1e6 / self.seconds


@dataclass(frozen=True)
class ImportProgress:
    """How far an import is. Totals are those of the beginning, or more if the source has grown."""

    threads_done: int
    threads_total: int
    checkpoints_done: int
    checkpoints_total: int
    bytes_read: int
    checkpoints_verified: int = 0


Progress = Callable[[ImportProgress], object]


def import_langgraph(
    source_url: Any,
    target: Any,
    *,
    thread_ids: Iterable[str] | None = None,
    serde: Any = None,
    verify: bool = True,
    progress: Progress | None = None,
    quiet: bool = False,
) -> ImportReport:
    """Bring the threads of one of LangGraph's own savers over, and return what was done: all, or `thread_ids`.

    `source_url` is `sqlite:///path`, a plain path, or `postgresql://...`; or an InMemorySaver of this process. It is
    never changed. `target` is a saver, a backend, a store, or a URL. Checkpoints, namespaces, pending writes, metadata
    and delta channels come along, the ids as they are, so a graph goes on where it was. Metadata whose names are those
    of secrets are left behind.

    Run it again after a crash, or later: it goes on where it stopped, and brings what is new. A thread of the target
    that is not a copy of the source's, or that has gone on there, is InvalidInput, and stays as it is. With `verify`
    each thread is read again from both sides, there by the stock saver, and compared: a difference is
    CheckpointCorrupted. `serde` is the serializer of the source if it is not the stock one. `progress` is called with
    an ImportProgress now and then. Unless `quiet`, the sizes before and after are printed in the end.
    """
    return run_to_end(_import(source_url, target, thread_ids, serde, verify, progress, quiet, threading.Event()))


async def aimport_langgraph(
    source_url: Any,
    target: Any,
    *,
    thread_ids: Iterable[str] | None = None,
    serde: Any = None,
    verify: bool = True,
    progress: Progress | None = None,
    quiet: bool = False,
) -> ImportReport:
    """Do what `import_langgraph` does on a worker thread, on which `progress` is called as well."""
    stop = threading.Event()
    work = asyncio.ensure_future(
        asyncio.to_thread(
            lambda: run_to_end(_import(source_url, target, thread_ids, serde, verify, progress, quiet, stop))
        )
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])  # nothing goes on behind the caller's back
        work.exception()
        raise


class _Stopped(Exception):
    """The caller does not want the rest. Within this module only."""


async def _import(
    source_url: Any,
    target: Any,
    thread_ids: Iterable[str] | None,
    serde: Any,
    verify: bool,
    progress: Progress | None,
    quiet: bool,
    stop: threading.Event,
) -> ImportReport:
    if isinstance(target, os.PathLike):
        target = os.fspath(target)
    if isinstance(thread_ids, str):
        raise InvalidInput(f"thread_ids is a list of thread ids, not the string {thread_ids!r:.100}")
    names: list[str] | None = None
    if thread_ids is not None:
        names = [checks.thread_id(name) for name in dict.fromkeys(thread_ids)]
    if serde is not None:
        serde = maybe_add_typed_methods(serde)
    source = open_source(source_url, serde)
    try:
        teller = _Teller(progress, quiet)
        async with _opened(target) as saver:
            report = await _Mover(source, saver, verify, teller, stop).run(names)
    finally:
        source.close()
    store: Any = saver.backend.store
    if is_address(target) and hasattr(store, "path"):
        # The file was closed by now, and a closed file is smaller.
        report = replace(report, target_bytes=await store.size_bytes())
    teller.end(report)
    return report


@asynccontextmanager
async def _opened(target: Any) -> AsyncIterator[HarnessCheckpointer]:
    """Give a saver on the target; one that was opened here is closed in the end."""
    if isinstance(target, HarnessCheckpointer):
        yield target
        return
    if target is None:
        raise InvalidInput("the target is a saver, a backend, a store or a URL, not None")
    if not is_address(target):
        if isinstance(target, SyncFace):
            target = target._driven
        if isinstance(target, CheckpointEngine):
            target = target.checkpointer
        yield HarnessCheckpointer(backend=target)
        return
    if is_in_memory(target):
        raise InvalidInput("a target in memory would be gone at once; pass an open saver")
    saver = HarnessCheckpointer.from_url(target)
    try:
        yield saver
    finally:
        saver.close()


class _Teller:
    """Tells how far it is: to a function, and on the terminal."""

    def __init__(self, progress: Progress | None, quiet: bool) -> None:
        self._progress = progress
        self._quiet = quiet
        self._shows_line = not quiet and sys.stderr.isatty()
        self._told = 0.0

    def tell(self, now: ImportProgress) -> None:
        if self._progress is not None:
            self._progress(now)
        if self._shows_line and time.monotonic() - self._told >= _LINE_SECONDS:
            self._told = time.monotonic()
            text = (
                f"{now.threads_done:,} of {now.threads_total:,} threads, {now.checkpoints_done:,} of "
                f"{now.checkpoints_total:,} checkpoints, {_mb(now.bytes_read)} read"
            )
            _say(f"\r\x1b[K{text}", sys.stderr)

    def end(self, report: ImportReport) -> None:
        if self._quiet:
            return
        if self._shows_line and self._told:
            _say("\r\x1b[K", sys.stderr)
        summary = (
            f"imported {_counted(report.threads, 'thread')}: {_counted(report.checkpoints, 'checkpoint')}, "
            f"{_counted(report.writes, 'write')}; {report.skipped:,} were there, {report.verified:,} verified, "
            f"{_counted(report.secrets, 'secret')} left behind; {report.seconds:.1f} s, {report.mb_per_second:.0f} MB/s"
        )
        after = "of a size that this store cannot tell"
        if report.target_bytes is not None:
            after = _mb(report.target_bytes)
            if report.target_bytes_before:
                after += f", of which {_mb(report.target_bytes_before)} were there"
        _say(f"{summary}\nbefore: {_mb(report.source_bytes)}; after: {after}\n", sys.stdout)


def _say(text: str, stream: TextIO) -> None:
    stream.write(text)
    stream.flush()


def _counted(number: int, word: str) -> str:
    if number == 1:
        return f"1 {word}"
    return f"{number:,} {word}s"


def _mb(size_bytes: int) -> str:
    if size_bytes < 1_000_000:
        return f"{size_bytes / 1e3:,.1f} kB"
    return f"{size_bytes / 1e6:,.1f} MB"


# -- one import --------------------------------------------------------------------------------------------------------


_Line = tuple[str, str]
"""A thread and a namespace."""


class _Plan(NamedTuple):
    """What there is of a thread on both sides."""

    thread_id: str
    entries: Sequence[Entry]
    """Of the source, parents first."""
    written: Mapping[Key, Attached]
    """Its pending writes."""
    heads: Mapping[str, str]
    """By namespace, as the stock saver has them."""
    there: Set[Key]
    """What the target has of it."""
    sizes: dict[Key, int]
    """What the values of these take, and of those that are put."""
    is_new: bool
    """The target had nothing of it."""
    gone_on: bool
    """Somebody has worked with the thread in the target."""

    @property
    def missing(self) -> list[Entry]:
        """What the target lacks."""
        return [entry for entry in self.entries if entry.key not in self.there]

    @property
    def early(self) -> list[Key]:
        """Checkpoints that have writes but are not stored."""
        stored = {entry.key for entry in self.entries}
        return [key for key in self.written if key not in stored]


class _Unfinished(NamedTuple):
    """A thread of which some checkpoints are put, and others are not."""

    plan: _Plan
    missing: Sequence[Entry]
    chunks: Iterable[Sequence[tuple[Entry, Row]]]
    """These, as they are read."""


class _Mover:
    """One import, under way."""

    def __init__(
        self, source: Source, saver: HarnessCheckpointer, verify: bool, teller: _Teller, stop: threading.Event
    ) -> None:
        self._source = source
        self._teller = teller
        self._stop = stop
        repository = saver._backend.repository
        self._store: Store = repository.store.blocking
        # Without retention: what is imported shall be there, at least until the saver's next put.
        self._threads = Threads(repository.over(self._store), saver._channels, shares=True)
        self._channels = saver._channels
        self.figures: Figures = repository.figures
        self.limit_seconds: float | None = None
        # Not the memory of the saver: what is compared in the end shall come from the store.
        self._staged_memory = ObjectCache(_STAGED_BYTES)
        self._staged_lines = Lines()
        self._codec = saver._channels.kinds.codec
        self._same = SameItems(self._codec)
        self._is_secret = functools.lru_cache(_NAMES_MAX)(saver._is_secret)
        self._stock: Any = None
        if verify:
            self._stock = source.saver()
        self.report = ImportReport()
        self._threads_total = self._checkpoints_total = 0

    async def run(self, names: Sequence[str] | None) -> ImportReport:
        began = time.monotonic()
        counts = self._source.threads()
        for name in names or ():
            if name not in counts:
                raise InvalidInput(f"there is no thread {name!r} in the source")
        chosen = list(counts)
        if names is not None:
            wanted = set(names)
            chosen = [name for name in counts if name in wanted]
        self._threads_total = len(chosen)
        self._checkpoints_total = sum(counts[name] for name in chosen)
        before = await self._target_bytes()
        size = 1
        if self._source.sees_many:
            size = _GROUP_THREADS
        for group in _groups(chosen, counts, size):
            with self._source.reading():
                await self._group(group)
        self.report = replace(
            self.report,
            source_bytes=self._source.size_bytes(),
            target_bytes_before=before,
            target_bytes=await self._target_bytes(),
            seconds=time.monotonic() - began,
        )
        return self.report

    async def _target_bytes(self) -> int | None:
        size = getattr(self._store, "size_bytes", None)
        if size is None:
            return None
        return cast(int, await size())

    def _count(self, **more: int) -> None:
        totals = {name: getattr(self.report, name) + number for name, number in more.items()}
        self.report = replace(self.report, **totals)

    def _tell(self) -> None:
        report = self.report
        done = report.checkpoints + report.skipped
        self._teller.tell(
            ImportProgress(
                report.threads,
                max(report.threads, self._threads_total),
                done,
                max(done, self._checkpoints_total),
                report.bytes_read,
                report.verified,
            )
        )

    def _go_on(self) -> None:
        self._check_wanted()
        self._tell()

    # -- some threads

    @public_call("import_langgraph", has_deadline=False)
    async def _group(self, names: Sequence[str]) -> None:
        """Bring some threads: those that the target does not have together, the others one by one."""
        new: list[_Plan] = []
        there = await self._present([checks.thread_id(name) for name in names])
        for name, outline in zip(names, self._source.outlines(names), strict=True):
            plan = await self._plan(name, outline, is_there=name in there)
            if plan.is_new:
                new.append(plan)
            else:
                await self._complete(plan)
                self._end_thread()
        await self._bring_new(new)
        for plan in new:
            if plan.early:
                await self._attach_early(plan)
        await self._compare_new(new)

    def _end_thread(self) -> None:
        self._count(threads=1)
        self._tell()

    async def _complete(self, plan: _Plan) -> None:
        """Bring what the target lacks of a thread that it has."""
        missing = plan.missing
        known = [entry for entry in plan.entries if entry.key in plan.there]
        if plan.gone_on and missing:
            raise _gone_on(plan.thread_id)
        wanting: list[Key] = []
        if not plan.gone_on:
            wanting = await self._wanting([entry.key for entry in known], plan.written)
        if known and (missing or wanting):
            # Only what follows a true copy may be added to it.
            await self._compare(plan, known, writes=False)
        self._count(skipped=len(known))
        # Before anything follows them: the values of delta channels are made from writes.
        for key in wanting:
            await self._attach_lacking(key, (await self._written([key]))[key])
        if missing:
            rows = self._source.rows(missing, plan.written)
            await self._bring(plan, missing, _chunks(zip(missing, rows, strict=True)))
        if plan.early and not plan.gone_on:
            await self._attach_early(plan)
        await self._compare(plan, plan.entries, writes=not plan.gone_on)

    async def _present(self, thread_ids: Sequence[str]) -> set[str]:
        """Return which of these threads the target has."""
        if isinstance(self._store, ReadsTogether):
            return await self._store.present(thread_ids)
        found: set[str] = set()
        for thread_id in thread_ids:
            if await self._store.thread(thread_id, brief=True) is not None:
                found.add(thread_id)
        return found

    async def _plan(self, thread_id: str, outline: Outline, *, is_there: bool) -> _Plan:
        entries = _parents_first(thread_id, outline.entries)
        by_key = {entry.key: entry for entry in entries}
        sizes: dict[Key, int] = {}
        if is_there:
            async for page in self._listed(thread_id):
                known = {stored.record.key: stored for stored in page if stored.record.key in by_key}
                self._check_known([by_key[key] for key in known], known)
                for key, stored in known.items():
                    sizes[key] = _size(stored)
        gone_on = is_there and await self._has_gone_on(thread_id, by_key)
        there = frozenset(sizes)
        return _Plan(thread_id, entries, outline.written, outline.heads, there, sizes, not is_there, gone_on)

    async def _has_gone_on(self, thread_id: str, known: Container[Key]) -> bool:
        """Whether somebody has worked with the thread in the target, or taken it back: that is not ours to mend."""
        thread = await self._store.thread(thread_id)
        if thread is None:
            return False
        if thread.hidden:
            return True
        for namespace, (head, _) in thread.heads.items():
            if Key(thread_id, namespace, head) not in known:
                return True
        log = await self._store.operations(thread_id, DEPTH_MAX)
        return any(entry.kind == "rewind" and not entry.undone for entry in log)

    async def _listed(self, thread_id: str) -> AsyncIterator[list[Stored]]:
        """Yield what a graph has put into a thread of the target, in pages, without values."""
        query = Query(thread_id=thread_id, namespace=None, hidden="also", order="oldest", limit=_LISTED)
        while page := await self._store.list_checkpoints(query):
            own = [stored for stored in page if stored.record.key.namespace != TASK_NAMESPACE]
            for stored in own:
                if stored.record.kind != KIND:
                    raise InvalidInput(
                        f"thread {thread_id!r} of the target was not written by a LangGraph saver; import into another "
                        "store, or leave it out with thread_ids="
                    )
            yield own
            query = replace(query, after_seq=page[-1].seq)

    def _check_known(self, entries: Sequence[Entry], known: Mapping[Key, Stored]) -> None:
        """Refuse a thread in which an id stands for something else. Looks at no values."""
        if not entries:
            return
        found = self._source.metadata(entries[0].key.thread_id, [entry.key for entry in entries])
        for entry in entries:
            metadata, _ = self._without_secrets(found[entry.key])
            parents: tuple[Key, ...] = ()
            if entry.parent is not None:
                parents = (entry.parent,)
            record = known[entry.key].record
            if record.parents != parents or self._differs(_sorted(record.metadata), _sorted(metadata), "") is not None:
                raise InvalidInput(
                    f"checkpoint {entry.key.checkpoint_id!r} of thread {entry.key.thread_id!r} stands in the target "
                    "with another parent or other metadata: the thread there is not a copy of the source's; delete it "
                    "there (delete_thread), import into another store, or leave it out with thread_ids="
                )

    def _without_secrets(self, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        kept = {name: value for name, value in metadata.items() if not self._is_secret(name)}
        return kept, len(metadata) - len(kept)

    # -- putting

    async def _bring_new(self, plans: Sequence[_Plan]) -> None:
        """Put whole threads that the target does not have, many in one commit."""
        entries: list[Entry] = []
        written: dict[Key, Attached] = {}
        for plan in plans:
            entries.extend(plan.entries)
            written.update(plan.written)
        rows = zip(entries, self._source.rows(entries, written), strict=True)
        left = deque(plans)
        while left:
            # One pause for each commit: what is made meanwhile stays until then, so a collection finds nothing.
            with QUIET:
                unfinished = await self._bring_some(left, rows)
            if unfinished is not None:
                await self._bring(*unfinished)

    async def _bring_some(self, left: deque[_Plan], rows: Iterator[tuple[Entry, Row]]) -> _Unfinished | None:
        """Put the first of these threads, as many as one commit takes, and take them off the list.

        The last of them may be too large for one commit; then what is left of it is returned.
        """
        waiting: list[_Batch] = []
        unfinished: _Unfinished | None = None
        while left and unfinished is None and not _is_full(waiting):
            plan = left.popleft()
            chunks = _chunks(itertools.islice(rows, len(plan.entries)))
            batch = _Batch.new(self, plan)
            for chunk in chunks:
                self._check_wanted()
                await batch.put(chunk)
                if batch.is_full:
                    break
            if batch.count:
                waiting.append(batch)
            rest = plan.entries[batch.count :]
            if rest:
                unfinished = _Unfinished(plan, rest, chunks)
        await self._send_new(waiting)
        return unfinished

    async def _send_new(self, batches: Sequence[_Batch]) -> None:
        if not batches:
            return
        parts = [await batch.stage.whole() for batch in batches]
        try:
            await self._store.adopt_new(parts)
        except HeadMoved as exc:
            raise _changed_by_others(exc.thread_id) from None
        for batch in batches:
            self._count(**batch.counts)
        self._tell()

    async def _bring(
        self, plan: _Plan, missing: Sequence[Entry], chunks: Iterable[Sequence[tuple[Entry, Row]]]
    ) -> None:
        """Put checkpoints of a thread that the target has, each with its writes, in batches."""
        # Every checkpoint and every write gets a number of its own.
        count = len(missing)
        for entry in missing:
            if entry.key in plan.written:
                count += len(plan.written[entry.key].names)
        number = await self._store.adopt(Part(plan.thread_id, reserve=count))
        batch = await _Batch.opened(self, plan, number)
        for chunk in chunks:
            self._check_wanted()
            if batch.is_full:
                await self._send(batch)
                batch = await _Batch.opened(self, plan, batch.number)
            await batch.put(chunk)
        await self._send(batch)

    def _check_wanted(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    async def _send(self, batch: _Batch) -> None:
        try:
            await batch.stage.send()
        except HeadMoved:
            raise _changed_by_others(batch.plan.thread_id) from None
        self._count(**batch.counts)
        self._tell()

    async def _wanting(self, known: Sequence[Key], written: Mapping[Key, Attached]) -> list[Key]:
        """Return which of the checkpoints that are there lack some of their writes."""
        found: list[Key] = []
        having = [key for key in known if key in written]
        for start in range(0, len(having), _PAGE):
            for key, there in (await self._written(having[start : start + _PAGE])).items():
                if self._is_wanting(key, written[key], there):
                    found.append(key)
        return found

    def _is_wanting(self, key: Key, written: Attached, there: Mapping[tuple[str, int], Write]) -> bool:
        if any(name not in there for name in written.names):
            return True
        # Special writes (an interrupt, say), whose numbers are negative, are replaced by later ones: these are read.
        has_special = any(idx < 0 for _, idx in written.names)
        return has_special and bool(self._lacking(key, there)[0])

    async def _written(self, keys: Sequence[Key]) -> dict[Key, dict[tuple[str, int], Write]]:
        """Return the writes that the target has of these checkpoints, by task and number."""
        found: dict[Key, dict[tuple[str, int], Write]] = {}
        for loaded in await self._store.read_many(keys, writes=True):
            found[loaded.stored.record.key] = {(write.task_id, write.idx): write for write in loaded.writes}
        return found

    async def _attach_early(self, plan: _Plan) -> None:
        """Attach writes whose checkpoints have not come yet, or are gone."""
        raw = await self._store.raw(plan.thread_id)
        there: dict[Key, dict[tuple[str, int], Write]] = {}
        if raw is not None:
            for key, write in raw.writes:
                there.setdefault(key, {})[write.task_id, write.idx] = write
        for key in plan.early:
            await self._attach_lacking(key, there.get(key, {}))

    async def _attach_lacking(self, key: Key, there: Mapping[tuple[str, int], Write]) -> None:
        lacking, size = self._lacking(key, there)
        await self._threads.attach(key, lacking)
        if lacking:
            self._count(writes=len(lacking), bytes_read=size)

    def _lacking(self, key: Key, there: Mapping[tuple[str, int], Write]) -> tuple[list[Pending], int]:
        """Return the writes of a checkpoint that the target has not, or has otherwise and may replace."""
        pending, size = self._source.writes(key)
        lacking: list[Pending] = []
        for one, write in zip(pending, self._threads.written(pending)[0], strict=True):
            old = there.get((one.task_id, one.idx))
            if old is None or (one.idx < 0 and old._replace(seq=0) != write):
                lacking.append(one)
        return lacking, size

    # -- comparing

    async def _compare_new(self, plans: Sequence[_Plan]) -> None:
        """Compare threads that came as new ones, and end them: what the target has of many is read at once."""
        for some in _compared_together(plans):
            if len(some) > 1:
                with QUIET:  # for as many as are in memory at once
                    await self._compare_together(some)
            else:
                await self._compare(some[0], some[0].entries, writes=True)
                self._end_thread()

    async def _compare_together(self, plans: Sequence[_Plan]) -> None:
        """Compare small threads that came as new ones."""
        found: dict[Key, Saved] = {}
        heads: Mapping[_Line, str] | None = None
        if self._stock is not None:
            entries = itertools.chain(*(plan.entries for plan in plans))
            keys = [entry.key for entry in entries]
            found = await self._read_ours(keys)
            heads = await self._heads(list(dict.fromkeys(key[:2] for key in keys)))
        for plan in plans:
            await self._compare(plan, plan.entries, writes=True, found=found, heads=heads)
            self._end_thread()

    async def _heads(self, lines: Sequence[_Line]) -> Mapping[_Line, str] | None:
        """Return the heads of lines of the target, if it gives those of many at once."""
        if not isinstance(self._store, ReadsTogether):
            return None
        return await self._store.heads(lines)

    async def _read_ours(self, keys: Sequence[Key]) -> dict[Key, Saved]:
        """Return what the target has of these checkpoints."""
        return {saved.stored.record.key: saved for saved in await self._threads.read_some(keys)}

    async def _compare(
        self,
        plan: _Plan,
        entries: Sequence[Entry],
        *,
        writes: bool,
        found: Mapping[Key, Saved] = MappingProxyType({}),
        heads: Mapping[_Line, str] | None = None,
    ) -> None:
        """Read checkpoints again from both sides; CheckpointCorrupted if they differ.

        `found` has some that were read from the target a moment ago, and `heads` the heads.
        """
        if self._stock is None:
            return
        by_namespace: dict[str, dict[Key, Entry]] = {}
        for entry in entries:
            by_namespace.setdefault(entry.key.namespace, {})[entry.key] = entry
        for namespace, wanted in by_namespace.items():
            expected = await self._compare_namespace(plan, namespace, wanted, writes, found)
            if writes:
                await self._compare_head(plan.thread_id, namespace, expected, heads)
                self._count(verified=len(wanted))

    async def _compare_head(
        self, thread_id: str, namespace: str, expected: str | None, heads: Mapping[_Line, str] | None
    ) -> None:
        found: str | None = None
        if heads is not None:
            found = heads.get((thread_id, namespace))
        else:
            loaded = await self._store.read(thread_id, namespace)
            if loaded is not None:
                found = loaded.stored.record.key.checkpoint_id
        if found != expected:
            raise _differs_at(Key(thread_id, namespace, expected or ""), f"the head is {found!r}", None)

    async def _compare_namespace(
        self, plan: _Plan, namespace: str, wanted: Mapping[Key, Entry], writes: bool, at_hand: Mapping[Key, Saved]
    ) -> str | None:
        """Compare checkpoints of a namespace; return which one the stock saver takes for its head."""
        # Writes that are compared are also what the values of delta channels are made from.
        histories: _Histories | None = None
        if writes:
            histories = _Histories(self, wanted)
        head: str | None = None
        for page in self._stock_pages(plan, namespace, wanted):
            # The stock saver lists its head first.
            if head is None:
                head = _name(page[0])
            pairs: list[tuple[Entry, Any]] = []
            for expected in page:
                key = Key(plan.thread_id, namespace, _name(expected))
                if key in wanted:
                    pairs.append((wanted[key], expected))
            found = at_hand
            lacking = [entry.key for entry, _ in pairs if entry.key not in at_hand]
            if lacking:
                found = {**at_hand, **await self._read_ours(lacking)}
            for start in range(0, len(pairs), _TOLD_EACH):
                self._go_on()
                await self._compare_pairs(pairs[start : start + _TOLD_EACH], found, histories)
        return head

    async def _compare_pairs(
        self, pairs: Sequence[tuple[Entry, Any]], found: Mapping[Key, Saved], histories: _Histories | None
    ) -> None:
        """Compare checkpoints with what the stock saver reads of them; without `histories` not their writes."""
        with QUIET:
            for entry, expected in pairs:
                if entry.key not in found:
                    raise _differs_at(entry.key, "it is missing", None)
                self._compare_one(entry, found[entry.key], expected, writes=histories is not None)
        if histories is not None:
            for entry, expected in pairs:
                await histories.check(entry, expected)

    def _stock_pages(self, plan: _Plan, namespace: str, wanted: Mapping[Key, Entry]) -> Iterator[list[Any]]:
        """Yield what the stock saver lists of a namespace, with few values in memory; all that is wanted is among it.

        Its order is mostly that of the ids, the greatest first, and its own where the database sorts otherwise.
        """
        place = Key(plan.thread_id, namespace, "")
        keys = sorted((key for key in plan.sizes if key.namespace == namespace), reverse=True)
        left = set(wanted)
        before: dict[str, Any] | None = None
        while keys:
            limit = _fitting([plan.sizes[key] for key in keys])
            options = {"before": before, "limit": limit}
            try:
                with QUIET:
                    page = self._read(place, "list", _config(*place[:2]), **options)
            except CheckpointCorrupted:
                # One of them cannot be read: each is looked at by itself, below, to say which.
                break
            if page:
                left.difference_update(place._replace(checkpoint_id=_name(one)) for one in page)
                before = page[-1].config
                yield page
            keys = keys[limit:]
            if len(page) < limit:
                break
        for key in sorted(left, reverse=True):
            one = self._read(key, "get_tuple", _config(*key))
            if one is None:
                raise _differs_at(key, "the stock saver does not list it", None)
            yield [one]

    def _read(self, key: Key, method: str, *arguments: Any, **options: Any) -> Any:
        """Return what the stock saver reads."""
        try:
            with self._source.translated():
                found = getattr(self._stock, method)(*arguments, **options)
                # A list is made while it is read: its errors shall be raised in here.
                if method == "list":
                    return list(found)
                return found
        except EverstepError:
            raise
        except Exception as exc:
            reason = f"the stock saver cannot read the source: {exc!r:.200}"
            raise CheckpointCorrupted(reason, thread_id=key.thread_id, checkpoint_id=key.checkpoint_id or None) from exc

    def _compare_one(self, entry: Entry, saved: Saved, expected: Any, *, writes: bool) -> None:
        key = entry.key
        record = saved.stored.record
        if _first_parent(record) != _named_parent(expected):
            raise _differs_at(key, "it has another parent", None)
        metadata, _ = self._without_secrets(expected.metadata)
        found = dict(saved.checkpoint)
        wanted = dict(expected.checkpoint)
        self._compare_values(key, found.pop("channel_values"), wanted.pop("channel_values", None) or {})
        # At once first, which is nearly always enough; one by one only to say where they differ.
        own = [_sorted(record.metadata), _sorted(found)]
        if not same_packed(own, [_sorted(metadata), _sorted(wanted)], self._codec):
            self._expect(key, own[0], _sorted(metadata), "metadata")
            self._compare_fields(key, found, wanted, saved.absent)
        if writes and (saved.writes or expected.pending_writes):
            self._expect(key, list(saved.writes), list(expected.pending_writes or ()), "pending writes")

    def _compare_values(self, key: Key, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Compare the values of channels."""
        for name in sorted(found.keys() | wanted.keys()):
            if name not in found or name not in wanted:
                raise _differs_at(key, "a channel is on one side only", name)
            if not self._same.lists(found[name], wanted[name]):
                self._expect(key, found[name], wanted[name], name)

    def _compare_fields(
        self, key: Key, found: Mapping[str, Any], wanted: Mapping[str, Any], absent: Container[str]
    ) -> None:
        """Compare what a checkpoint has besides its values, one by one; `absent` was not in it when it was put."""
        for name in sorted(found.keys() | wanted.keys()):
            if name not in wanted and name in absent:
                continue
            if name not in wanted or name not in found:
                raise _differs_at(key, "a field is on one side only", name)
            self._expect(key, found[name], wanted[name], name)

    def _expect(self, key: Key, found: Any, expected: Any, path: str) -> None:
        where = self._differs(found, expected, path)
        if where is not None:
            raise _differs_at(key, "a value differs", where)

    def _differs(self, found: Any, expected: Any, path: str) -> str | None:
        return difference(found, expected, path, self._codec)


class _Batch:
    """Checkpoints of a thread that are put together: made in memory, from what the target has, and sent at once."""

    def __init__(self, mover: _Mover, plan: _Plan, stage: StagingStore, heads: dict[str, str]) -> None:
        self._mover = mover
        self.plan = plan
        self.stage = stage
        self._heads = heads
        repository = Repository(stage, mover._staged_memory)
        self._threads = Threads(repository, mover._channels, lines=mover._staged_lines)
        self.counts = {"checkpoints": 0, "writes": 0, "secrets": 0, "bytes_read": 0}

    @classmethod
    def new(cls, mover: _Mover, plan: _Plan) -> _Batch:
        """Return an empty batch for a thread that the target does not have."""
        return cls(mover, plan, StagingStore.new(mover._store, plan.thread_id), {})

    @classmethod
    async def opened(cls, mover: _Mover, plan: _Plan, number: int) -> _Batch:
        """Return an empty batch; what it puts is numbered after `number`."""
        stage = await StagingStore.opened(mover._store, plan.thread_id, number)
        heads = {name: line.head for name, line in stage.base.lines.items() if line.head is not None}
        for name, head in heads.items():
            if name != TASK_NAMESPACE and Key(plan.thread_id, name, head) not in plan.sizes:
                # Somebody has put a checkpoint since the thread was looked at.
                raise _gone_on(plan.thread_id)
        return cls(mover, plan, stage, heads)

    @property
    def number(self) -> int:
        """The last number that was given."""
        return self.stage.number

    @property
    def count(self) -> int:
        """How many checkpoints it has."""
        return self.counts["checkpoints"]

    @property
    def is_full(self) -> bool:
        return _is_full([self])

    async def put(self, chunk: Sequence[tuple[Entry, Row]]) -> None:
        """Put checkpoints with their writes."""
        own = {entry.key for entry, _ in chunk}
        before: set[Key] = set()
        for entry, _ in chunk:
            if entry.parent is not None and entry.parent not in own:
                before.add(entry.parent)
        await self.stage.bring(before)
        for parent in before:
            await self._threads.warm(parent)
        with QUIET:  # what is put is in memory, so hardly anything waits
            for entry, row in chunk:
                await self._put(entry, row)

    async def _put(self, entry: Entry, row: Row) -> None:
        key = entry.key
        parent = entry.parent
        metadata, secrets = self._mover._without_secrets(row.metadata)
        parent_id: str | None = None
        if parent is not None:
            parent_id = parent.checkpoint_id
            await self._threads.warm(parent)
        moves = self._moves_head(key)
        where: Literal["always", "never"] = "always" if moves else "never"
        try:
            stored = await self._threads.put(key, parent_id, row.checkpoint, metadata, None, head=where)
            await self._threads.attach(key, row.writes)
        except EverstepError as exc:
            exc.add_note(f"thread {key.thread_id!r}, checkpoint {key.checkpoint_id!r}")
            raise
        if moves:
            self._heads[key.namespace] = key.checkpoint_id
        self.plan.sizes[key] = _size(stored)
        self.counts["checkpoints"] += 1
        self.counts["writes"] += len(row.writes)
        self.counts["secrets"] += secrets
        self.counts["bytes_read"] += row.size_bytes

    def _moves_head(self, key: Key) -> bool:
        """Whether a checkpoint becomes the head of its namespace: a greater id does, up to the stock saver's head."""
        head = self._heads.get(key.namespace)
        last = self.plan.heads[key.namespace]
        if head is None or key.checkpoint_id == last:
            return True
        return head != last and key.checkpoint_id > head


class _Histories:
    """Compares what delta channels are made from, the greatest id first.

    The stock saver is asked at the ends of lines. In between, a checkpoint must have what its parent has and the writes
    that the stock saver gave for the parent; a seed is opened where it begins: anything else would take the square of
    the time.
    """

    def __init__(self, mover: _Mover, wanted: Mapping[Key, Entry]) -> None:
        self._mover = mover
        self._wanted = wanted
        self._followed = {entry.parent for entry in wanted.values()}
        self._waiting: dict[Key, list[tuple[Key, Mapping[str, Any]]]] = {}
        """By parent: checkpoints that follow it, and their histories, seeds unopened."""
        self._seen: set[Key] = set()

    async def check(self, entry: Entry, expected: Any) -> None:
        key = entry.key
        self._seen.add(key)
        names = _unsaved_deltas(expected)
        own = await self._read(key, names, opened=False)
        for child, histories in self._waiting.pop(key, ()):
            for name, history in histories.items():
                await self._check_link(child, name, history, key, own, expected)
        if not names:
            return
        comes_later = entry.parent in self._wanted and entry.parent not in self._seen
        is_end = key not in self._followed
        # Where no parent is compared later there is nothing to compare with but the stock saver.
        if is_end or not comes_later:
            stock = self._mover._read(key, "get_delta_channel_history", config=_config(*key), channels=names)
            for name, history in (await self._read(key, names)).items():
                self._expect(key, name, history, _ordered(stock[name]))
        if entry.parent is not None and comes_later:
            self._waiting.setdefault(entry.parent, []).append((key, own))

    async def _check_link(
        self, child: Key, name: str, history: Mapping[str, Any], key: Key, own: Mapping[str, Any], expected: Any
    ) -> None:
        """Compare the history of a checkpoint with what its parent gives, which the stock saver reads as `expected`."""
        values = expected.checkpoint.get("channel_values") or {}
        writes = [write for write in expected.pending_writes or () if write[1] == name]
        if name in values:
            found = (await self._read(child, [name]))[name]
            self._expect(child, name, found, {"seed": values[name], "writes": writes})
            return
        if name in own:
            before = own[name]
        else:
            before = (await self._read(key, [name], opened=False))[name]
        if _have_one_seed(history, before):
            self._expect(child, name, history["writes"], [*before["writes"], *writes])
            return
        found = (await self._read(child, [name]))[name]
        before = (await self._read(key, [name]))[name]
        self._expect(child, name, found, {**before, "writes": [*before["writes"], *writes]})

    async def _read(self, key: Key, names: Sequence[str], *, opened: bool = True) -> dict[str, Any]:
        if not names:
            return {}
        found = await self._mover._threads.history(*key, names, opened=opened)
        return {name: _ordered(history) for name, history in found.items()}

    def _expect(self, key: Key, name: str, found: Any, expected: Any) -> None:
        self._mover._expect(key, found, expected, f"history of {name}")


def _ordered(history: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "seed" in history:
        found["seed"] = history["seed"]
    found["writes"] = [tuple(write) for write in history["writes"]]
    return found


def _unsaved_deltas(expected: Any) -> list[str]:
    """Return the delta channels of a checkpoint whose values are not stored with it, but made from writes."""
    counted = expected.metadata.get(configs.COUNTERS) or {}
    values = expected.checkpoint.get("channel_values") or {}
    return [name for name in counted if name not in values]


def _have_one_seed(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two unopened histories begin with the same value, or both with none."""
    seed = one.get("seed")
    if seed is None:
        return other.get("seed") is None
    return isinstance(seed, Node) and seed == other.get("seed")


def _first_parent(record: Record) -> str | None:
    if not record.parents:
        return None
    return record.parents[0].checkpoint_id


def _named_parent(expected: Any) -> str | None:
    """Return the parent of a checkpoint that the stock saver has read."""
    if expected.parent_config is None:
        return None
    name: str = expected.parent_config["configurable"]["checkpoint_id"]
    return name


# -- decisions ---------------------------------------------------------------------------------------------------------


def _groups(names: Sequence[str], counts: Mapping[str, int], size: int) -> Iterator[list[str]]:
    """Yield threads in groups that are brought together: small ones, as far as it is known."""
    group: list[str] = []
    checkpoints = 0
    for name in names:
        if group and (len(group) == size or checkpoints + counts[name] > _GROUP_CHECKPOINTS):
            yield group
            group = []
            checkpoints = 0
        group.append(name)
        checkpoints += counts[name]
    if group:
        yield group


def _is_full(batches: Sequence[_Batch]) -> bool:
    """Whether these are enough for one commit."""
    count = sum(batch.count for batch in batches)
    size = sum(batch.stage.size_bytes for batch in batches)
    return count >= _BATCH_MAX or size >= _BATCH_BYTES


def _parents_first(thread_id: str, entries: Iterable[Entry]) -> list[Entry]:
    """Return the checkpoints of a thread by id, but none before its parent: as the saver would have put them."""
    by_key = {entry.key: entry for entry in entries}
    children: dict[Key, list[Entry]] = {}
    ready: list[tuple[str, str]] = []
    for entry in by_key.values():
        if entry.parent in by_key:
            children.setdefault(entry.parent, []).append(entry)
        else:
            ready.append((entry.key.checkpoint_id, entry.key.namespace))
    heapq.heapify(ready)
    found: list[Entry] = []
    while ready:
        checkpoint_id, namespace = heapq.heappop(ready)
        entry = by_key.pop(Key(thread_id, namespace, checkpoint_id))
        found.append(entry)
        for child in children.get(entry.key, ()):
            heapq.heappush(ready, (child.key.checkpoint_id, child.key.namespace))
    # What is left goes in circles: none of them can come after its parent.
    return found + sorted(by_key.values(), key=lambda entry: entry.key.checkpoint_id)


def _chunks(rows: Iterable[tuple[Entry, Row]]) -> Iterator[list[tuple[Entry, Row]]]:
    """Yield rows in groups that may be in memory at once."""
    chunk: list[tuple[Entry, Row]] = []
    size = 0
    for entry, row in rows:
        chunk.append((entry, row))
        size += row.size_bytes
        if size > _BATCH_BYTES // 8 or len(chunk) >= min(_CHUNK_MAX, _BATCH_MAX):
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def _config(thread_id: str, namespace: str, checkpoint_id: str | None = None) -> dict[str, Any]:
    config = configs.config_of(thread_id, namespace, checkpoint_id or "")
    if checkpoint_id is None:
        del config["configurable"]["checkpoint_id"]
    return config


def _name(stock: Any) -> str:
    """Return the id of a checkpoint that the stock saver has read."""
    name: str = stock.config["configurable"]["checkpoint_id"]
    return name


def _size(stored: Stored) -> int:
    return sum(stored.record.sizes)


def _compared_together(plans: Sequence[_Plan]) -> Iterator[list[_Plan]]:
    """Yield threads in groups whose values may be in memory at once: one, if it is large."""
    group: list[_Plan] = []
    count = size = 0
    for plan in plans:
        own = sum(plan.sizes.values())
        if group and (count + len(plan.entries) > _COMPARED_MAX or size + own > _COMPARED_BYTES):
            yield group
            group = []
            count = size = 0
        group.append(plan)
        count += len(plan.entries)
        size += own
    if group:
        yield group


def _fitting(sizes: Sequence[int]) -> int:
    """Return how many of these may be in memory at once: one, if it is large."""
    total = 0
    for count, size in enumerate(sizes[:_COMPARED_MAX]):
        total += size
        if total > _COMPARED_BYTES:
            return max(count, 1)
    return min(len(sizes), _COMPARED_MAX)


def _sorted(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: metadata[name] for name in sorted(metadata)}


def _gone_on(thread_id: str) -> InvalidInput:
    return InvalidInput(
        f"thread {thread_id!r} has gone on in the target (or is another one there, or was pruned in the source), and "
        "the source has more of it: they cannot be joined; delete it in the target (delete_thread) to import it anew, "
        "or leave it out with thread_ids="
    )


def _changed_by_others(thread_id: str) -> InvalidInput:
    return InvalidInput(
        f"thread {thread_id!r} was changed in the target by somebody else while it was imported; "
        "nothing of that is lost, but the thread cannot be completed"
    )


def _differs_at(key: Key, reason: str, path: str | None) -> CheckpointCorrupted:
    return CheckpointCorrupted(
        f"the imported checkpoint is not like the source's: {reason} (namespace {key.namespace!r})",
        thread_id=key.thread_id,
        checkpoint_id=key.checkpoint_id,
        path=path,
    )
