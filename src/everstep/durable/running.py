"""Taking runs up: the claim, the journal, one attempt after the other, and waiting for what a run waits for."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.capture.live import to_its_end
from everstep.durable import failures, journal, notes
from everstep.durable.attempt import Attempt
from everstep.durable.calling import Face
from everstep.durable.code_at_work import is_within
from everstep.durable.entries import Arguments, Entry
from everstep.durable.journal import Journal
from everstep.durable.leaving import Forked, Suspended
from everstep.durable.live import repository_of, timeline_of
from everstep.durable.programs import Program
from everstep.durable.statuses import DONE, FAILED, PAUSED, READY, WAITING
from everstep.errors import (
    HeadMoved,
    LeaseLost,
    RunError,
    RunExists,
    RunHeld,
    RunLost,
    RunNotFound,
    StoreError,
)
from everstep.repository.claims import Claim, Claims
from everstep.repository.repository import Repository
from everstep.stores.protocol import Stored
from everstep.types import RUN_KIND

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

logger = logging.getLogger("everstep")

# The first look comes soon, since most waits are short; then ever less often, since some last for days.
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0

Call = Callable[..., Coroutine[Any, Any, Any]]
"""The code of a run: called with the attempt and its arguments."""
Asked = tuple[Sequence[Any], Mapping[str, Any]]


class Part(NamedTuple):
    """What came of one attempt."""

    thread_id: str
    """Another one if the run went on in a branch."""
    is_done: bool
    result: Any = None


class Runner(NamedTuple):
    """How runs of one program are run, on one face of an engine."""

    engine: CheckpointEngine
    program: Program
    face: Face
    call: Call
    lease_seconds: float = 30.0
    is_stopping: Callable[[], bool] = lambda: False
    """Whether this process is about to stop: then no step is begun any more, and the run is let go."""


class Taken:
    """A run that this process has taken up."""

    def __init__(self, runner: Runner, claim: Claim, attempt: Attempt) -> None:
        self._runner = runner
        self._claim = claim
        self._attempt = attempt
        # The lease is renewed in the background from now on, until the run is let go: a step may take longer
        # than a lease.
        self._renewing = contextlib.ExitStack()
        self._renewing.enter_context(claim.renewed())
        self._ended: Part | None = None

    async def begin(self, asked: Asked | None) -> None:
        """Begin it, or find what is recorded of it; let it go if that fails."""
        try:
            await self._begin(asked)
        except BaseException:
            # A thread in which nothing has begun is left as it was.
            await self._let_go(self._claim.give_back())
            raise

    async def _begin(self, asked: Asked | None) -> None:
        thread_id = self._attempt.thread_id
        repository = repository_of(self._runner.engine)
        loaded = await repository.store.read(thread_id)
        head = loaded.stored if loaded is not None else None
        if head is None or head.record.kind != RUN_KIND:
            if asked is None:
                raise RunNotFound(thread_id)
            await self._attempt.start(*asked, is_empty=head is None)
            return
        recorded = await _journal_of(repository, head)
        check_same(self._runner.program, thread_id, recorded, asked)
        end = recorded.end
        if end is not None and end.about["status"] == DONE:
            self._ended = Part(thread_id, True, end.values.get("result"))
            # A branch that had come to its end was merged: now this run has, too.
            if head.record.metadata.get("run_status") != DONE:
                await self._attempt.note({"op": "wait", "key": "wait"}, "done", DONE, run_waits=[])
        else:
            await self._attempt.take_up(recorded, head)

    async def finish(self) -> Part:
        """Run it until it ends or has to wait, and let it go."""
        try:
            if self._ended is not None:
                return self._ended
            result = await self._attempt.run(lambda *args, **kwargs: self._runner.call(self._attempt, *args, **kwargs))
            return Part(self._attempt.thread_id, True, result)
        except Suspended:
            return Part(self._attempt.thread_id, False)
        except Forked as fork:
            branch = await self._branch_before(fork.entry)
        finally:
            await self._let_go(self._release())
        return await self._go_on_in_branch(branch)

    async def _branch_before(self, entry: Entry) -> str:
        """Return the branch in which the run goes on, which begins before a step that is done differently now."""
        engine = self._runner.engine
        made = self._attempt.journal.forks.get(entry.key)
        # It may have been deleted since.
        if made is not None and await repository_of(engine).store.read(made) is not None:
            return made
        # Only the first checkpoint of a run has none before it.
        before = entry.parent or entry.checkpoint
        name = f"before {entry.key}".replace("\n", " ")[:80]
        branch = await engine.branch(before.checkpoint_id, name, thread_id=before.thread_id)
        # Noted before anything is done in the branch: whoever takes this run up again goes on there, too, and
        # does not begin another one.
        about = {"op": "fork", "key": f"fork {entry.key}", "before": entry.key, "to": branch}
        await self._attempt.note(about, f"goes on in {branch}", READY, run_waits=[])
        logger.info("run %r goes on in branch %r, before step %r", self._attempt.thread_id, branch, entry.key)
        return branch

    async def _go_on_in_branch(self, branch: str) -> Part:
        taken = await take_up(self._runner, branch, None)
        # The branch is taken up by itself from now on, so that there is nothing left to do for the run that it
        # came from.
        try:
            await self._pause()
        except BaseException:
            await taken._let_go(taken._release())
            raise
        return await taken.finish()

    async def _pause(self) -> None:
        note = notes.Note({"op": "wait", "key": "wait"}, {"run_status": PAUSED}, f"{self._runner.program.name}: paused")
        await notes.add(timeline_of(self._runner.engine), self._attempt.thread_id, lambda _: note)

    def _release(self) -> Coroutine[Any, Any, None]:
        return self._claim.release("", None, begun=True)

    async def _let_go(self, release: Coroutine[Any, Any, None]) -> None:
        # Before the release, which moves the record of the claim: a renewal that comes later would report it as lost.
        self._renewing.close()
        try:
            if self._runner.program.is_blocking:
                await release  # it never suspends, also where its caller has an event loop
            else:
                await to_its_end(release)
        except LeaseLost:
            pass  # whoever has it now goes on with it
        except StoreError:
            logger.warning(
                "run %r: its claim could not be given back; it runs out", self._claim.thread_id, exc_info=True
            )


async def _journal_of(repository: Repository, head: Stored) -> Journal:
    """Return what is recorded of the run that a checkpoint belongs to."""
    thread_id = head.record.key.thread_id
    found = await journal.load(repository, head)
    if found.start is None:
        # To begin anew would be to pay again for what was recorded.
        raise RunError(
            thread_id,
            "has lost its beginning: it is a branch of a thread that was deleted, with all that the run had recorded "
            "there. What it holds can still be read; to run it once more, start it in another thread",
        )
    if found.taken_back is not None:
        raise RunError(
            thread_id,
            "is being taken back, and some of its effects are undone: to go on, finish the rewind by "
            f"engine.rewind({found.taken_back.about['to']!r}, compensate=True)",
        )
    return found


def check_same(program: Program, thread_id: str, found: Journal, asked: Asked | None) -> None:
    """Raise RunExists if the run in a thread is not the one that is asked for."""
    start = found.beginning
    name = start.about["name"]
    if name != program.name:
        raise RunExists(thread_id, f"a run of {name!r}", f"one of {program.name!r}")
    if asked is not None and Arguments.of(*asked).digest != start.about["args"]:
        recorded = _shown(start.values.get("args", ()), start.values.get("kwargs", {}))
        raise RunExists(thread_id, f"{name}{recorded}", f"{name}{_shown(*asked)}")


def _shown(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named = [f"{name}={value!r}" for name, value in kwargs.items()]
    text = ", ".join([*map(repr, args), *named])
    return f"({text if len(text) <= 200 else text[:200] + '...'})"


async def take_up(runner: Runner, thread_id: str, asked: Asked | None) -> Taken:
    """Take a run up: a new one if there is none and arguments are given. RunHeld if somebody else runs it."""
    repository = repository_of(runner.engine)
    claims = Claims(repository, RunHeld, RunLost)
    try:
        claim = await claims.take(thread_id, await claims.find(thread_id), runner.lease_seconds, is_task=False)
    except HeadMoved as exc:
        raise RunHeld(thread_id, "another host", 0) from exc
    attempt = Attempt(runner.engine, runner.program, claim, runner.face, runner.is_stopping)
    taken = Taken(runner, claim, attempt)
    await taken.begin(asked)
    return taken


async def take_part(runner: Runner, thread_id: str, asked: Asked | None) -> Part:
    """Run a run until it ends or has to wait."""
    return await (await take_up(runner, thread_id, asked)).finish()


async def to_the_end(runner: Runner, thread_id: str, asked: Asked | None, begun: Part | None = None) -> Any:
    """Return the result of a run: run it here, or wait for whoever runs it. It may wait for days."""
    part = begun
    pause = _PAUSE_SECONDS
    while part is None or not part.is_done:
        if part is not None:
            await _until_ready(runner, part.thread_id)
            # Others may have run it meanwhile, and a failure of theirs is not tried again by who only waits.
            await _raise_failure(runner, part.thread_id)
        try:
            part = await take_part(runner, part.thread_id if part is not None else thread_id, asked)
            # The arguments have been compared once. After a fork they belong to another thread.
            asked = None
            pause = _PAUSE_SECONDS
        except RunHeld:
            if is_within(thread_id):
                raise RunError(thread_id, "is waited for by its own code, and so would wait for ever") from None
            await runner.face.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)
            # Whoever held the run may have ended it with a failure, which a new attempt would try again.
            await _raise_failure(runner, thread_id)
    return part.result


async def _raise_failure(runner: Runner, thread_id: str) -> None:
    """Raise the error that a run has ended with while others ran it."""
    repository = repository_of(runner.engine)
    loaded = await repository.store.read(thread_id)
    if loaded is None or loaded.stored.record.metadata.get("run_status") != FAILED:
        return
    end = (await _journal_of(repository, loaded.stored)).end
    if end is not None and end.about["status"] == FAILED:
        raise failures.made_again(thread_id, "end", end.values.get("error", {}))


async def _until_ready(runner: Runner, thread_id: str) -> None:
    """Wait until there is something to do for a run that waits."""
    store = repository_of(runner.engine).store
    pause = _PAUSE_SECONDS
    while True:
        loaded = await store.read(thread_id)
        if loaded is None:
            raise RunNotFound(thread_id)
        metadata = loaded.stored.record.metadata
        if is_ready(metadata):
            return
        # Not longer than until the first sleep of the run is over.
        seconds = min(pause, max(0.0, wakes_at(metadata) - time.time()))
        await runner.face.sleep(seconds)
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)


def is_ready(metadata: Mapping[str, Any]) -> bool:
    """Whether a run has something to do, by the metadata of its head."""
    return metadata.get("run_status") != WAITING or wakes_at(metadata) <= time.time()


def wakes_at(metadata: Mapping[str, Any]) -> float:
    """Return when the first sleep of a run ends, in seconds since 1970; far away if it does not sleep."""
    first = 1e18
    for wait in metadata.get("run_waits", ()):
        if "until" in wait:
            first = min(first, float(wait["until"]))
    return first
