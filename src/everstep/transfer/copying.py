"""Histories from one store to another: everything that undo, merge and retention need, numbers in relation.

A family is copied as a whole. A source that is written to meanwhile is copied thread by thread as of one moment; what
retention removes under our hands is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from everstep.reports import CopyReport
from everstep.runtime.blocking import run_to_end
from everstep.transfer.families import StoreSource
from everstep.transfer.receiving import Progress, Target
from everstep.transfer.salvage import SalvageSource
from everstep.transfer.sides import Side, opened, thread_names


def copy(
    source: Side,
    target: Side,
    threads: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    verify: bool = True,
    skip_damaged: bool = False,
) -> CopyReport:
    """Copy histories from one store to another and return what was done: everything, or the families of `threads`.

    Checkpoints, branches, merges, tags, pins, pending writes, what is hidden and the log of operations come along: undo
    and redo work on the copy. A family (a thread, its branches, the thread it came from) is always copied as a whole.

    Run it again after a crash, or later: it goes on where it stopped, and brings what is new; what the source has
    deleted of a thread goes, threads it has deleted stay. A thread of the target that is not a copy of the source's, or
    that somebody has changed there since, is InvalidInput, and its family is left as it is; but single checkpoints that
    were deleted or replaced there come back as the source has them. With `verify` everything is read back and compared:
    a difference is CheckpointCorrupted. A source that is damaged is CheckpointCorrupted too; with `skip_damaged` what
    cannot be read is left out and named in the report, and heads are the newest checkpoints that are whole.

    Either side is a URL, the path of a file, or an open engine, backend or store, which stays open. `progress` is
    called with a CopyProgress after each part.
    """
    return run_to_end(_copy(source, target, threads, progress, verify, skip_damaged, blocking=True))


async def copy_async(
    source: Side,
    target: Side,
    threads: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    verify: bool = True,
    skip_damaged: bool = False,
) -> CopyReport:
    """Copy histories from one store to another without blocking the event loop. See `copy`."""
    return await _copy(source, target, threads, progress, verify, skip_damaged, blocking=False)


async def _copy(
    source: Side,
    target: Side,
    threads: Iterable[str] | None,
    progress: Progress | None,
    verify: bool,
    skip_damaged: bool,
    *,
    blocking: bool,
) -> CopyReport:
    names = thread_names(threads)
    async with opened(source, "source", blocking) as one, opened(target, "target", blocking) as other:
        # Looking for damage costs a pass over everything, and a copy that is to be exact must fail at it anyway.
        if not skip_damaged:
            return await Target(other, StoreSource(one, names), progress, verify=verify).take_all()
        salvage = SalvageSource(one, names)
        report = await Target(other, salvage, progress, verify=verify).take_all()
        # What was left out is known only now, since it is found while the target takes it.
        return replace(report, damaged=salvage.findings)
