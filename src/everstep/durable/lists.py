"""Which runs there are and how they stand; their answers and events; taking up those that have something to do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from everstep.durable import functions, notes, running
from everstep.durable.entries import Draft, as_results
from everstep.durable.live import repository_of, timeline_of
from everstep.durable.notes import Note, head_of
from everstep.durable.running import Part, Runner
from everstep.durable.statuses import DONE, FAILED, PAUSED, READY, RUNNING, WAITING
from everstep.durable.unknown_effects import check_happened
from everstep.errors import InvalidInput, NotWaiting, RunHeld, RunLost, RunNotFound
from everstep.reports import RunInfo, RunWait
from everstep.repository.claims import Claims
from everstep.repository.finding import make_search
from everstep.repository.new_names import new_token
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.stores.protocol import Stored
from everstep.types import RUN_KIND

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

logger = logging.getLogger("everstep")

INTERRUPTED = "interrupted"
STATUSES = (RUNNING, INTERRUPTED, WAITING, READY, DONE, FAILED, PAUSED)
_PAGE = 100
# To give a claim back is one commit.
_LETTING_GO_SECONDS = 2.0
_WAIT_FIELDS = frozenset(each.name for each in fields(RunWait))
_STORED_AS: dict[str | None, list[str]] = {
    None: [RUNNING, WAITING, READY, DONE, FAILED, PAUSED],
    INTERRUPTED: [RUNNING],
    READY: [READY, WAITING],  # a sleep that is over makes a run ready without a write
}
"""What the head of a run says that has a status, where that is something else."""


async def info_of(repository: Repository, thread_id: str) -> RunInfo:
    """Return how a run stands."""
    return await info_at(repository, await head_of(repository, thread_id))


async def list_runs(engine: CheckpointEngine, status: str | None) -> list[RunInfo]:
    """Return the runs of a store, the one that was active last first."""
    if status is not None and status not in STATUSES:
        raise InvalidInput(f"status is one of {', '.join(STATUSES)}, not {checks.shown(status)}")
    repository = repository_of(engine)
    # By thread, since a run that goes on meanwhile may be met under two statuses.
    found: dict[str, RunInfo] = {}
    for each in stored_as(status):
        for head in await _heads(repository, each):
            info = await info_at(repository, head)
            if status is None or info.status == status:
                found[info.thread_id] = info
    return sorted(found.values(), key=lambda info: info.updated_at, reverse=True)


def stored_as(status: str | None) -> list[str]:
    """Return what the head of a run may say that has a status."""
    return _STORED_AS.get(status) or [str(status)]


async def _heads(repository: Repository, status: str) -> list[Stored]:
    """Return the heads of all runs that say so."""
    heads: list[Stored] = []
    search = make_search(filter={"run_status": status}, limit=_PAGE)
    while True:
        hits = await repository.store.search(search)
        for hit in hits:
            # What is wrong with one run must not keep the others from going on.
            if hit.stored is None:
                logger.warning("run %r is damaged, so it is not listed: %s", hit.position.thread_id, hit.damage)
            elif hit.stored.record.kind == RUN_KIND:
                heads.append(hit.stored)
        if len(hits) < _PAGE:
            return heads
        search = replace(search, after=hits[-1].position)


async def info_at(repository: Repository, head: Stored) -> RunInfo:
    """Return how a run stands whose head this is."""
    record = head.record
    metadata = record.metadata
    status = str(metadata.get("run_status"))
    # The head says what its owner wrote last. That the owner has died shows in its claim, which has run out.
    if status == RUNNING:
        claimed = await Claims(repository).find(record.key.thread_id)
        if claimed is None or not claimed.task.runs:
            status = INTERRUPTED
    if status == WAITING and running.is_ready(metadata):
        status = READY
    return RunInfo(
        record.key.thread_id,
        str(metadata.get("run")),
        status,
        record.key.checkpoint_id,
        record.created_at,
        [_wait(wait) for wait in metadata.get("run_waits", ())],
    )


def _wait(kept: Mapping[str, Any]) -> RunWait:
    """Return what a run waits for; what a later version has added to it is left out."""
    return RunWait(**{name: value for name, value in kept.items() if name in _WAIT_FIELDS})


# -- answers and events


async def answer(engine: CheckpointEngine, thread_id: str, value: Any, key: str | None) -> str:
    """Record the answer to a question, and return the checkpoint that has it."""

    def make(head: Stored) -> Note:
        metadata = head.record.metadata
        _check_goes_on(thread_id, metadata)
        asked = _question(thread_id, metadata.get("run_waits", ()), key)
        if asked.get("effect") is not None:
            check_happened(str(asked["effect"]), value)
        # By its arguments the run knows which question was answered, should its code ask another one by then.
        about = {"op": "answer", "key": asked["key"], "question": asked["question"], "args": asked.get("args")}
        values = as_results([Draft(about, {"question": asked["question"], "answer": value})])
        return Note(about, _without_wait(metadata, asked["key"]), f"answer: {asked['key']}", values, ["answer"])

    return await notes.add(timeline_of(engine), thread_id, make)


async def signal(engine: CheckpointEngine, thread_id: str, event: str, value: Any) -> str:
    """Record an event, and return the checkpoint that has it."""
    name = checks.text(event, "event", 500)

    def make(head: Stored) -> Note:
        metadata = head.record.metadata
        _check_goes_on(thread_id, metadata)
        waits = metadata.get("run_waits", ())
        waiting = ""
        for wait in waits:
            if wait.get("event") == name:
                waiting = str(wait["key"])
                break
        about = {"op": "event", "key": f"event {new_token()}", "event": name, "wait": waiting}
        values = as_results([Draft(about, {"event": name, "value": value})])
        summary = f"event: {waiting or about['key']}"
        return Note(about, _without_wait(metadata, waiting), summary, values, ["event"])

    return await notes.add(timeline_of(engine), thread_id, make)


def _check_goes_on(thread_id: str, metadata: Mapping[str, Any]) -> None:
    if metadata.get("run_status") in (DONE, FAILED):
        raise NotWaiting(thread_id, f"has ended ({metadata['run_status']})")


def _without_wait(metadata: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return what the head says of a run when what it waited for under that key is there."""
    # The head always tells what the run waits for now, so that a list of runs needs no journal.
    changed: dict[str, Any] = {"run_waits": [wait for wait in metadata.get("run_waits", ()) if wait["key"] != key]}
    if key and metadata.get("run_status") == WAITING:
        changed["run_status"] = READY
    return changed


def _question(thread_id: str, waits: Sequence[Mapping[str, Any]], key: str | None) -> Mapping[str, Any]:
    """Return the question that is answered."""
    asked = [wait for wait in waits if wait["kind"] == "ask"]
    fitting = [wait for wait in asked if key is None or wait["key"] == key]
    if len(fitting) == 1:
        return fitting[0]
    shown = "; ".join([f"{wait['key']!r}: {wait['question']}" for wait in asked])
    if not fitting:
        raise NotWaiting(thread_id, f"does not wait for that answer; it waits for: {shown or 'none'}")
    raise NotWaiting(thread_id, f"waits for several answers; say which one with key=: {shown}")


# -- taking up


async def resume(engine: CheckpointEngine, thread_id: str, on_change: str | None) -> Any:
    """Take a run up and return its result."""
    info = await info_of(repository_of(engine), thread_id)
    program = engine._programs.find(info.name, on_change)
    return await functions.take(engine, program, lambda runner: running.to_the_end(runner, thread_id, None))


async def resume_once(engine: CheckpointEngine, thread_id: str, on_change: str | None) -> Part:
    """Take a run up until it ends or has to wait, and return what came of it."""
    info = await info_of(repository_of(engine), thread_id)
    program = engine._programs.find(info.name, on_change)
    return await functions.take(engine, program, lambda runner: running.take_part(runner, thread_id, None))


async def resume_blocking(engine: CheckpointEngine, thread_id: str, on_change: str | None) -> Any:
    """Take a run of a plain function up, on the blocking face, and return its result."""
    info = await info_of(repository_of(engine), thread_id)
    runner = functions.runner_of(engine, engine._programs.find(info.name, on_change))
    return await running.to_the_end(runner, thread_id, None)


async def recoverable(engine: CheckpointEngine) -> list[RunInfo]:
    """Return the runs that somebody should take up, and that this process can."""
    known = set(engine._programs.names())
    repository = repository_of(engine)
    found: dict[str, RunInfo] = {}
    # In this order a run that goes on from waiting to running between two searches is still met.
    for status in (WAITING, READY, RUNNING):
        for head in await _heads(repository, status):
            metadata = head.record.metadata
            if metadata.get("run") not in known or not running.is_ready(metadata):
                continue
            info = await info_at(repository, head)
            if info.status in (READY, INTERRUPTED):
                found[info.thread_id] = info
    return list(found.values())


async def recover(engine: CheckpointEngine, concurrency: int) -> list[RunInfo]:
    """Take up every run that has something to do, side by side, and return how they stand after that."""
    places = asyncio.Semaphore(checks.count(concurrency, "concurrency"))

    async def take(info: RunInfo) -> None:
        async with places:
            program = engine._programs.find(info.name)
            await functions.take(engine, program, lambda runner: _take_when_let_go(runner, info))

    found = await recoverable(engine)
    await asyncio.gather(*(take(info) for info in found))
    return await _how_they_stand(engine, found)


async def recover_one_by_one(engine: CheckpointEngine) -> list[RunInfo]:
    """Take up every run that has something to do, one after the other, on the blocking face."""
    found: list[RunInfo] = []
    for info in await recoverable(engine):
        program = engine._programs.find(info.name)
        if program.is_blocking:
            found.append(info)
    for info in found:
        runner = functions.runner_of(engine, engine._programs.find(info.name))
        await _take_when_let_go(runner, info)
    return await _how_they_stand(engine, found)


async def take_quietly(runner: Runner, thread_id: str) -> bool:
    """Take a run up; what goes wrong in it is recorded there, and is nobody else's concern.

    Returns whether it was taken up: somebody else may have it.
    """
    try:
        await running.take_part(runner, thread_id, None)
    except (RunHeld, RunLost):
        logger.info("run %r was taken up by somebody else", thread_id)
        return False
    except Exception as error:
        logger.warning("run %r has failed: %s: %s", thread_id, type(error).__name__, error)
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        # Code of runs may let out what is no failure: a CancelledError of something inside that was cancelled, say.
        if _is_being_cancelled():
            raise
        logger.warning("run %r was left by %s: %s; nothing was recorded of it", thread_id, type(error).__name__, error)
    return True


def _is_being_cancelled() -> bool:
    """Whether somebody has cancelled the task that this is called in."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # there is no event loop here
    return task is not None and task.cancelling() > 0


async def _take_when_let_go(runner: Runner, info: RunInfo) -> None:
    """Take a run up, also if whoever had it last is just about to let it go.

    That it waits is recorded first, and then its claim is given back. An answer may come in between. It may also come
    while that is recorded: then whoever has the run goes on with it.
    """
    ends = time.monotonic() + _LETTING_GO_SECONDS
    pause = _LETTING_GO_SECONDS / 1000
    while not await take_quietly(runner, info.thread_id):
        if time.monotonic() > ends or not await _is_held_since_before(repository_of(runner.engine), info):
            return
        await runner.face.sleep(pause)
        pause = min(pause * 2, _LETTING_GO_SECONDS / 20)


async def _is_held_since_before(repository: Repository, info: RunInfo) -> bool:
    """Whether somebody has had a run since before it stood so, or has just let it go.

    Who has taken it up after that is at work on it, and may be for long.
    """
    try:
        head = await head_of(repository, info.thread_id)
    except RunNotFound:
        return False  # it was deleted meanwhile
    if head.record.metadata.get("run_status") in (DONE, FAILED):
        return False
    claimed = await Claims(repository).find(info.thread_id)
    if claimed is None or not claimed.task.runs:
        return True
    stood = await repository.store.read(info.thread_id, "", info.checkpoint_id)
    return stood is not None and claimed.stored.seq < stood.stored.seq


async def _how_they_stand(engine: CheckpointEngine, taken: Sequence[RunInfo]) -> list[RunInfo]:
    """Return how runs stand now; those that were deleted meanwhile are left out."""
    found: list[RunInfo] = []
    for info in taken:
        with contextlib.suppress(RunNotFound):
            found.append(await info_of(repository_of(engine), info.thread_id))
    return found
