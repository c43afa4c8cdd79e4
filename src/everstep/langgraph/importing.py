"""Brings over the threads of LangGraph's own savers, with everything that belongs to them.

Each thread is read as of one moment, parents first, and put the way the saver puts it: so what did not change is
shared, delta channels keep their lists, and the head is the one that the stock saver gives. It is put in memory first,
and sent in batches, each with everything that belongs to its checkpoints in one commit. What was done is found in the
target, never kept elsewhere: whoever is killed goes on later. In the end both sides are read again, ours and what the
stock saver reads, and compared.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

from everstep.engine import CheckpointEngine
from everstep.errors import HeadMoved, InvalidInput
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.compat import maybe_add_typed_methods
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.import_batches import (
    Batch,
    ThreadPlan,
    Workshop,
    gone_on,
    in_chunks,
    in_groups,
    is_full,
)
from everstep.langgraph.import_comparing import Comparison, compared_together
from everstep.langgraph.import_reports import ImportProgress, ImportReport, Progress, Teller
from everstep.langgraph.import_target import Target
from everstep.langgraph.import_writes import TargetWrites
from everstep.langgraph.saver import HarnessCheckpointer
from everstep.langgraph.stock_savers import Attached, Source, SourceEntry, SourceRow, open_source
from everstep.opening.addresses import is_address, is_in_memory
from everstep.reports import counted
from everstep.runtime import checks
from everstep.runtime.blocking import SyncFace, run_to_end
from everstep.runtime.calls import Figures, public_call
from everstep.stores.protocol import Key, Part, Store

_GROUP_THREADS = 64  # that are brought together
_NAMES_MAX = 1024  # of entries of metadata, of which is known whether they are secrets


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
        teller = Teller(progress, quiet)
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


class _Unfinished(NamedTuple):
    """A thread of which some checkpoints are put, and others are not."""

    plan: ThreadPlan
    missing: Sequence[SourceEntry]
    chunks: Iterable[Sequence[tuple[SourceEntry, SourceRow]]]
    """These, as they are read."""


class _Mover:
    """One import, under way."""

    def __init__(
        self, source: Source, saver: HarnessCheckpointer, verify: bool, teller: Teller, stop: threading.Event
    ) -> None:
        self._source = source
        self._teller = teller
        self._stop = stop
        repository = saver._backend.repository
        self._store: Store = repository.store.blocking
        # Without retention: what is imported shall be there, at least until the saver's next put.
        self._threads = Threads(repository.over(self._store), saver._channels, shares=True)
        self.figures: Figures = repository.figures
        self.limit_seconds: float | None = None
        is_secret = functools.lru_cache(_NAMES_MAX)(saver._is_secret)
        self._workshop = Workshop(self._store, saver._channels, is_secret)
        self._comparison = Comparison(
            source,
            self._workshop,
            self._threads,
            saver._channels.kinds.codec,
            verify=verify,
            go_on=self._go_on,
            count=lambda verified: self._count(verified=verified),
        )
        self._target = Target(self._store, source, self._workshop, self._comparison)
        self._writes = TargetWrites(source, self._store, self._threads, self._count)
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
        size = _GROUP_THREADS if self._source.sees_many else 1
        for group in in_groups(chosen, counts, size):
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
        self.report = counted(self.report, **more)

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
        new: list[ThreadPlan] = []
        there = await self._target.present([checks.thread_id(name) for name in names])
        for name, outline in zip(names, self._source.outlines(names), strict=True):
            plan = await self._target.plan(name, outline, is_there=name in there)
            if plan.is_new:
                new.append(plan)
            else:
                await self._complete(plan)
                self._end_thread()
        await self._bring_new(new)
        for plan in new:
            if plan.early:
                await self._writes.attach_early(plan)
        await self._compare_new(new)

    def _end_thread(self) -> None:
        self._count(threads=1)
        self._tell()

    async def _complete(self, plan: ThreadPlan) -> None:
        """Bring what the target lacks of a thread that it has."""
        missing = plan.missing
        known = [entry for entry in plan.entries if entry.key in plan.there]
        if plan.has_gone_on and missing:
            raise gone_on(plan.thread_id)
        wanting: list[Key] = []
        if not plan.has_gone_on:
            wanting = await self._writes.wanting([entry.key for entry in known], plan.written)
        if known and (missing or wanting):
            # Only what follows a true copy may be added to it.
            await self._comparison.compare(plan, known, writes=False)
        self._count(skipped=len(known))
        # Before anything follows them: the values of delta channels are made from writes.
        for key in wanting:
            await self._writes.complete(key)
        if missing:
            rows = self._source.rows(missing, plan.written)
            await self._bring(plan, missing, in_chunks(zip(missing, rows, strict=True)))
        if plan.early and not plan.has_gone_on:
            await self._writes.attach_early(plan)
        await self._comparison.compare(plan, plan.entries, writes=not plan.has_gone_on)

    # -- putting

    async def _bring_new(self, plans: Sequence[ThreadPlan]) -> None:
        """Put whole threads that the target does not have, many in one commit."""
        entries: list[SourceEntry] = []
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

    async def _bring_some(
        self, left: deque[ThreadPlan], rows: Iterator[tuple[SourceEntry, SourceRow]]
    ) -> _Unfinished | None:
        """Put the first of these threads, as many as one commit takes, and take them off the list.

        The last of them may be too large for one commit; then what is left of it is returned.
        """
        waiting: list[Batch] = []
        unfinished: _Unfinished | None = None
        while left and unfinished is None and not is_full(waiting):
            plan = left.popleft()
            chunks = in_chunks(itertools.islice(rows, len(plan.entries)))
            batch = Batch.new(self._workshop, plan)
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

    async def _send_new(self, batches: Sequence[Batch]) -> None:
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
        self,
        plan: ThreadPlan,
        missing: Sequence[SourceEntry],
        chunks: Iterable[Sequence[tuple[SourceEntry, SourceRow]]],
    ) -> None:
        """Put checkpoints of a thread that the target has, each with its writes, in batches."""
        # Every checkpoint and every write gets a number of its own.
        count = len(missing)
        for entry in missing:
            if entry.key in plan.written:
                count += len(plan.written[entry.key].names)
        number = await self._store.adopt(Part(plan.thread_id, reserve=count))
        batch = await Batch.opened(self._workshop, plan, number)
        for chunk in chunks:
            self._check_wanted()
            if batch.is_full:
                await self._send(batch)
                batch = await Batch.opened(self._workshop, plan, batch.number)
            await batch.put(chunk)
        await self._send(batch)

    def _check_wanted(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    async def _send(self, batch: Batch) -> None:
        try:
            await batch.stage.send()
        except HeadMoved:
            raise _changed_by_others(batch.plan.thread_id) from None
        self._count(**batch.counts)
        self._tell()

    # -- comparing

    async def _compare_new(self, plans: Sequence[ThreadPlan]) -> None:
        """Compare threads that came as new ones, and end them: what the target has of many is read at once."""
        for some in compared_together(plans):
            if len(some) > 1:
                with QUIET:  # for as many as are in memory at once
                    await self._compare_together(some)
            else:
                await self._comparison.compare(some[0], some[0].entries, writes=True)
                self._end_thread()

    async def _compare_together(self, plans: Sequence[ThreadPlan]) -> None:
        """Compare small threads that came as new ones."""
        found, heads = await self._comparison.read_together(plans)
        for plan in plans:
            await self._comparison.compare(plan, plan.entries, writes=True, found=found, heads=heads)
            self._end_thread()


def _changed_by_others(thread_id: str) -> InvalidInput:
    return InvalidInput(
        f"thread {thread_id!r} was changed in the target by somebody else while it was imported; "
        "nothing of that is lost, but the thread cannot be completed"
    )
