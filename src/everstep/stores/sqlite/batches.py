"""The outcome of each job of a batch, whether its transaction was committed, failed, or nobody knows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import apsw

from everstep.errors import CommitUnknown, StoreFull, StoreReadFailed, StoreUnavailable
from everstep.stores.protocol import Stored
from everstep.stores.sqlite.connections import Connections
from everstep.stores.sqlite.queue import Job
from everstep.stores.sqlite.translating import ChecksumMismatch

Outcome = tuple[Any, Exception | None]
"""Of a job: what it returned, or the error that it raised."""


class Ended(Exception):
    """A job raised SystemExit or the like, and has it as its outcome; the others are to be tried again."""


def first_deadline(batch: Sequence[Job[Any]]) -> float:
    """Return when the first of these jobs must be done."""
    if len(batch) == 1:
        return batch[0].deadline
    return min([job.deadline for job in batch])


def do_job(job: Job[Any], connections: Connections) -> Outcome:
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
        raise Ended from exc


def is_surely_undone(failure: Exception) -> bool:
    """Whether nothing of a commit that failed is kept. After others the log may hold it: nobody knows."""
    return isinstance(failure, (StoreFull, StoreUnavailable)) and not isinstance(failure, StoreReadFailed)


def fail_rest(batch: Sequence[Job[Any]], error: Exception) -> None:
    """Give all jobs that have no outcome yet this one."""
    for job in batch:
        if not job.done:
            job.finish(None, error)


def fail_all(batch: Sequence[Job[Any]], failure: Exception, caught: Exception) -> bool:
    """After a transaction of which nothing is kept: give jobs the outcome, and return whether all have one.

    A page that does not match its checksum is looked at first: that error is raised.
    """
    if isinstance(failure, ChecksumMismatch):
        raise failure from caught
    if len(batch) == 1:
        batch[0].finish(None, failure)
        return True
    if isinstance(failure, StoreUnavailable):
        _finish_late(batch, failure)
    return False


def _finish_late(batch: Sequence[Job[Any]], error: StoreUnavailable) -> None:
    """After the file was locked for too long: the jobs that have no time left have failed."""
    for job in batch:
        if time.monotonic() >= job.deadline:
            job.finish(None, error)


def unknown_outcomes(batch: Sequence[Job[Any]], outcomes: Sequence[Outcome], cause: Exception) -> list[Outcome]:
    """Return the outcomes after a commit that may be stored or not. Jobs that had failed before have failed."""
    found: list[Outcome] = []
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
