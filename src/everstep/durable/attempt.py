"""One process's part in a run: from taking it up until it ends, has to wait, or is taken over by somebody else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import hashlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from uuid import UUID

from everstep.config import SnapshotTrigger
from everstep.durable import calling, failures, journal, notes, undoing
from everstep.durable.calling import Face, Options
from everstep.durable.entries import ENTRIES, Arguments, Draft, Entry, as_results
from everstep.durable.live import RunLive, timeline_of
from everstep.durable.programs import Program
from everstep.errors import (
    EffectConflict,
    EffectUnknown,
    IdTaken,
    InvalidInput,
    LeaseLost,
    ReplayMismatch,
    RunError,
    RunLost,
    SnapshotTooLarge,
    StoreError,
    UnstorableValue,
)
from everstep.reports import Difference
from everstep.repository.claims import Claim
from everstep.repository.effects import Effect, Effects, host_of
from everstep.repository.new_names import new_token
from everstep.repository.repository import Repository
from everstep.repository.turns import BEATEN_MAX
from everstep.runtime import checks
from everstep.stores.protocol import Key, Record, Stored
from everstep.values import codec

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

logger = logging.getLogger("everstep")

RUNNING = "running"
WAITING = "waiting"
READY = "ready"
DONE = "done"
FAILED = "failed"
PAUSED = "paused"
"""Nobody takes it up by itself: a branch that was made, or a run that goes on in a branch."""

# Shorter sleeps are slept here: letting a run go and taking it up again costs more than such a wait.
_LINGER_SECONDS = 1.0
_KEY_MAX = 500
Worker = asyncio.Task[Any] | threading.Thread
_NOT_TAKEN = (UnstorableValue, SnapshotTooLarge)
"""Why a commit is not taken whose values are at fault: it would fail in the same way when it is tried again."""
# A context variable, so that tasks and threads that run side by side each have a scope of their own.
_scope: contextvars.ContextVar[str] = contextvars.ContextVar("everstep_run_scope", default="")
_at_work: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("everstep_runs_at_work", default=frozenset())
"""The threads of the runs whose code has come here."""


def is_within(thread_id: str) -> bool:
    """Whether this is called by the code of a run, or by what that has called."""
    return thread_id in _at_work.get()


# Suspended and Forked are no Exceptions, so that an `except Exception` around a step in the code of a run
# cannot swallow them.
class Suspended(BaseException):
    """The run waits for something, and there is nothing left to do for it here. Let it pass."""


class Forked(BaseException):
    """The run goes on in a branch that begins at a checkpoint. Let it pass."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.key)
        self.entry = entry


class _NotFoundOut(Exception):
    """The function of `on_unknown` has failed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Unknown(NamedTuple):
    """An effect that was begun, and of which nobody knows whether it happened. For the function of `on_unknown`."""

    thread_id: str
    key: str
    step_key: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def happened(result: Any = None) -> dict[str, Any]:
    """Return the answer to whether an effect happened: it did, and this is its result."""
    return {"happened": True, "result": result}


def did_not_happen() -> dict[str, Any]:
    """Return the answer to whether an effect happened: it did not, so it may be performed now."""
    return {"happened": False}


def check_happened(key: str, answer: Any) -> None:
    """Raise InvalidInput if an answer does not say whether an effect happened."""
    if not isinstance(answer, dict) or not isinstance(answer.get("happened"), bool):
        raise InvalidInput(
            f"whether {key!r} happened is answered by everstep.happened(result) or everstep.did_not_happen(), "
            f"not {checks.shown(answer)}"
        )


class Attempt:
    """What the code of a run works with. `everstep.Run` and `everstep.SyncRun` are its faces."""

    def __init__(
        self,
        engine: CheckpointEngine,
        repository: Repository,
        program: Program,
        claim: Claim,
        face: Face,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.thread_id = claim.thread_id
        self.program = program
        self.journal = journal.Journal()
        self.live = RunLive(engine._capture, self.thread_id, claim)
        self._engine = engine
        self._repository = repository
        self._claim = claim
        self._face = face
        self._is_stopping = is_stopping
        self._is_let_go = False
        """Whether a step was not begun because this process is about to stop."""
        # Commits of one run are made one after the other: each names the head that it follows.
        self._lock = face.lock()
        self._keys = Keys()
        self._pending: list[Draft] = []
        self._new_times: set[str] = set()
        """The keys of times that the code was told, and that are not stored yet."""
        self._refused: list[tuple[Draft, Exception]] = []
        """Drafts that no commit can take, each with the reason, until whoever made it has seen that."""
        self._waits: dict[str, dict[str, Any]] = {}
        self._failed: list[tuple[BaseException, str]] = []
        self._beside: dict[int, list[BaseException]] = {}
        """By the id of an error that is kept in `_failed`, or in here."""
        self._stopped: Exception | None = None
        """What keeps this process from going on with the run, though its code may have caught it."""
        self._is_caught_up = True
        """Whether the code has made again all that is recorded, as far as it goes one step after the other."""
        self._code_at = _worker()
        """The task or thread in which the code is at work."""
        self._beside_code: set[Worker] = set()
        """Those in which it has done something beside that."""
        self._is_left = False
        """Whether the code has come to its end here."""
        self._saved: tuple[str, list[Any]] | None = None
        """The status and the waits that the last checkpoint tells of."""
        self._last_id: str | None = None
        """The checkpoint up to which it is known what others have recorded."""
        self._effects: Effects | None = None
        self._repeats_effects = False

    # -- beginning

    async def start(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_empty: bool) -> None:
        """Begin a new run: record what it is to be called with. `is_empty`: there is nothing in the thread yet."""
        found = None
        if not is_empty:
            found = await self._repository.load(self.thread_id)
        if found is not None:
            stored, values = found
            self.live.begin(values, stored.record.next_node)
            self.live.follow(stored.record.key.checkpoint_id, stored.record.step)
            self._last_id = stored.record.key.checkpoint_id
            self.journal.last_seq = stored.seq
        else:
            self.live.follow(None, 0)
        about = {
            "op": "start",
            "key": "start",
            "name": self.program.name,
            "args": Arguments.of(args, kwargs).digest,
            # 62 bits, which fit into a signed number of 64 bits wherever metadata may be kept.
            "seed": int(new_token(), 16) >> 2,
        }
        values_ = {"name": self.program.name, "args": list(args), "kwargs": dict(kwargs), "status": "started"}
        draft = Draft(about, values_, f"{self.program.name}: started", ("start",))
        await self.record(draft)
        made = Key(self.thread_id, "", self.live.checkpoint_id or "")
        self.journal.add(Entry(about, values_, made, None))

    async def take_up(self, found: journal.Journal, head: Stored) -> None:
        """Go on with a run that was begun before, and whose journal was read up to this head."""
        self.journal = found
        self._last_id = head.record.key.checkpoint_id
        metadata = head.record.metadata
        start = found.beginning
        begun = await self._repository.load(*start.checkpoint)
        if begun is None:
            raise InvalidInput(f"the beginning of run {self.thread_id!r} is not stored any more")
        stored, values = begun
        self.live.begin(values, stored.record.next_node)
        self.live.is_replaying = True
        self._is_caught_up = False
        self._repeats_effects = metadata.get("run_effects") == "allow"
        self._saved = (str(metadata.get("run_status")), list(metadata.get("run_waits", [])))
        if found.end is not None:
            # A run that has failed is taken up again: the steps that ended it are forgotten, so that they are
            # tried once more.
            about = {"op": "resume", "key": "resume", "again": list(found.end.about.get("failed", []))}
            found.add(Entry(about, {}, start.checkpoint, None))
            await self.note(about, "taken up again", RUNNING, run_waits=[])
        elif metadata.get("run_status") == PAUSED:
            # From now on others take it up if this process dies, before it has come to its first step.
            await self.note({"op": "wait", "key": "wait"}, "taken up", RUNNING)

    async def note(self, about: Mapping[str, Any], summary: str, status: str, **metadata: Any) -> None:
        """Add something at the head that is not the work of the run's code, and leave the values as they are there."""
        note = notes.Note(about, {**metadata, "run_status": status}, f"{self.program.name}: {summary}")
        await notes.add(timeline_of(self._engine).behind(self._claim), self.thread_id, lambda _: note)
        # What the head tells is written anew by the next save.
        self._saved = None

    async def run(self, call: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        """Run the code to its end and return its result. Suspended if it has to wait."""
        try:
            with self._code_at_work():
                result = await self._result_of(call)
        except BaseExceptionGroup as group:
            await self._end_group(group)
        except Suspended:
            await self._go_waiting()
            raise
        except Exception as error:
            await self._fail(error)
            raise
        about = {"op": "end", "key": "end", "status": DONE}
        values = {"name": self.program.name, "status": "returned", "result": result}
        self._waits.clear()
        try:
            await self.record(Draft(about, values, f"{self.program.name}: done", ("done",)), status=DONE)
        except _NOT_TAKEN as error:
            # The code is not right: nobody should run it again and again.
            await self._fail(error)
            raise
        return result

    @contextlib.contextmanager
    def _code_at_work(self) -> Iterator[None]:
        """Let the code of the run find what belongs to it, until it comes to its end."""
        # Its keys are its own, also if a scope or a step of another run has begun it.
        scope = _scope.get()
        others = _at_work.get()
        _scope.set("")
        _at_work.set(others | {self.thread_id})
        self._code_at = _worker()
        self.live.open()
        try:
            with calling.outside_of_steps():
                yield
        finally:
            self._is_left = True
            self.live.leave(self._engine)
            _at_work.set(others)
            _scope.set(scope)

    async def _result_of(self, call: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        """Run the code; what has stopped it here counts more than what it has made of that."""
        start = self.journal.beginning
        try:
            result = await call(*start.values["args"], **start.values["kwargs"])
        except (Exception, Suspended) as error:
            if self._stopped is not None and error is not self._stopped:
                raise self._stopped from error
            raise
        if self._stopped is not None:
            raise self._stopped
        await self._check_all_asked_for()
        return result

    async def _end_group(self, group: BaseExceptionGroup[BaseException]) -> NoReturn:
        """End as a group of errors says, which an `asyncio.TaskGroup` in the code of the run has made."""
        _, errors = group.split((Suspended, Forked))
        # An error counts more than a wait, and only what is left of a group may be an Exception.
        if isinstance(errors, ExceptionGroup):
            await self._fail(errors)
            raise errors
        if errors is not None:
            raise group
        found = _first_of(group)
        if isinstance(found, Suspended):
            await self._go_waiting()
        raise found

    async def _fail(self, error: Exception) -> None:
        """Record that the run has failed, if that can be done: what ended it is tried again when it is resumed."""
        # Whoever has the run now says how it ends, or the store cannot be written to: neither is a failure of
        # the code.
        if isinstance(error, (LeaseLost, StoreError)):
            return
        kept = failures.recorded(error)
        failed = self._ended_by(error)
        about = {
            "op": "end",
            "key": "end",
            "status": FAILED,
            "failed": failed,
            "error": f"{type(error).__name__}: {kept['text']}"[:500],
        }
        values = {"name": self.program.name, "status": "error", "error": kept}
        self._waits.clear()
        try:
            draft = Draft(about, values, f"{self.program.name}: {about['error']}"[:200], ("error",))
            try:
                await self.record(draft, status=FAILED)
            except _NOT_TAKEN:
                # The code holds something that cannot be saved, so what it holds is left out.
                await self.live.drop_changes(self._engine)
                await self.record(status=FAILED)
        except Exception:
            logger.exception("run %r: that it failed could not be recorded", self.thread_id)

    def _ended_by(self, error: Exception) -> list[str]:
        """Return the keys of the steps whose failures an error comes from: these are tried again.

        A step may have failed without ending the run, since its error was caught.
        """
        of_steps = {id(raised) for raised, _ in self._failed}
        seen: set[int] = set()
        left: list[BaseException] = [error]
        while left:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            left += _causes(each, is_of_step=id(each) in of_steps)
            left += self._beside.get(id(each), ())
        return [key for raised, key in self._failed if id(raised) in seen]

    def note_beside(self, raised: BaseException, errors: Sequence[BaseException]) -> None:
        """Note what went wrong beside an error, which alone is raised: neither has been caught."""
        # It may be raised through several of those that gather, each with errors of its own.
        self._beside.setdefault(id(raised), []).extend(errors)

    async def _go_waiting(self) -> None:
        if self._is_let_go:
            await self.record(Draft({"op": "wait", "key": "wait"}, None, f"{self.program.name}: let go"), status=READY)
            return
        for _ in range(BEATEN_MAX):
            waits = list(self._waits.values())
            if not waits or (not self._pending and self._saved == (WAITING, waits)):
                break
            # Again if somebody else came in between: what they have recorded is known after that.
            waiting = Draft({"op": "wait", "key": "wait"}, None, f"{self.program.name}: waiting")
            await self.record(waiting, status=WAITING)
        if not self._waits:
            # What it waited for has come while something was recorded.
            await self.record(Draft({"op": "wait", "key": "wait"}, None, f"{self.program.name}: ready"), status=READY)

    async def _check_all_asked_for(self) -> None:
        """Raise if the code has come to its end without some of the steps that are recorded."""
        left = self.journal.not_asked_for()
        # With "rerun", steps without an effect may have gone from the code: nothing in the world speaks of
        # them.
        if self.program.on_change == "rerun":
            left = [entry for entry in left if entry.about.get("effect") != "none"]
        if not left:
            return
        if self._is_forked_at(left[0]):
            raise Forked(left[0])
        names = ", ".join([repr(entry.key) for entry in left[:5]])
        raise ReplayMismatch(
            self.thread_id, left[0].key, f"has recorded steps that the code does not ask for any more: {names}"
        )

    # -- recording

    async def record(self, *drafts: Draft, status: str | None = None) -> None:
        """Record entries, together with what else there is to record by now: one commit."""
        refused = await self._record(drafts, status)
        if refused is not None:
            raise refused

    async def _record(self, drafts: Sequence[Draft], status: str | None = None) -> Exception | None:
        """Record entries; return why one of them can never be recorded, if that is so."""
        self._pending += drafts
        if drafts:
            await self._face.let_others()  # what ends at the same moment comes along
        async with self._lock:
            # Drafts are compared by identity: two steps may well record the same. Those that are not there any
            # more were taken along by another commit.
            if not drafts or any(draft is waiting for waiting in self._pending for draft in drafts):
                with self._stopped_by_store():
                    await self._save_pending(status)
            return self._why_refused(drafts)

    @contextlib.contextmanager
    def _stopped_by_store(self) -> Iterator[None]:
        """Note that the store does not take what the run does.

        Code that catches such an error takes it for the failure of a step. What it does then would be recorded beside
        the step, which has not failed: a replay could not come there again.
        """
        try:
            yield
        except (LeaseLost, StoreError) as error:
            self._stopped = error
            raise

    async def _save_pending(self, status: str | None) -> None:
        while True:
            batch = self._pending
            self._pending = []
            try:
                await self._save(batch, status)
                return
            except BaseException as error:
                # What could not be saved waits for the next commit, before all that has come since.
                kept = self._without_refused(batch, error)
                self._pending = kept + self._pending
                if len(kept) == len(batch):
                    # Not what was to be recorded is at fault, but the messages or the state: the code has to be mended.
                    # If it caught this, it would go another way than where the step is replayed.
                    if isinstance(error, _NOT_TAKEN):
                        self._stopped = error
                    raise
                if not kept:
                    return

    def _without_refused(self, batch: list[Draft], error: BaseException) -> list[Draft]:
        """Return what is left of a batch when those are taken out that made its commit fail."""
        if not isinstance(error, _NOT_TAKEN):
            return batch
        kept: list[Draft] = []
        for draft in batch:
            reason = _why_not_taken(draft, error)
            if reason is None:
                kept.append(draft)
            else:
                self._refused.append((draft, reason))
        return kept

    def _why_refused(self, drafts: Sequence[Draft]) -> Exception | None:
        for place, (refused, reason) in enumerate(self._refused):
            if any(draft is refused for draft in drafts):
                del self._refused[place]
                return reason
        return None

    async def _save(self, batch: Sequence[Draft], status: str | None) -> None:
        waits = list(self._waits.values())
        if status is None:
            status = self._status_now()
        metadata = {"run": self.program.name, "run_status": status, "run_waits": waits}
        if self._repeats_effects:
            metadata["run_effects"] = "allow"
        self.live.run_metadata = metadata
        seen = self._last_id
        told = status

        def status_after(parent_id: str | None) -> dict[str, Any]:
            # Others may have recorded just what the run waits for, and it does not know yet. If it said that it waits,
            # and its process died now, nobody would take it up.
            nonlocal told
            told = RUNNING if status == WAITING and parent_id != seen else status
            return {"run_status": told}

        results: dict[str, Any] | None = None
        if any(draft.values is not None for draft in batch):
            results = as_results(batch)
        summaries = [draft.summary for draft in batch if draft.summary]
        tags: list[str] = []
        for draft in batch:
            tags.extend(draft.tags)
        made = await self.live.record(
            self._engine,
            _trigger(batch),
            results,
            is_caught_up=status == DONE or (self._is_caught_up and self._is_at_code()),
            metadata={ENTRIES: [draft.about for draft in batch]},
            summary="; ".join(summaries)[:200],
            tags=tags,
            metadata_after=status_after,
        )
        self._saved = (told, waits)
        self._new_times.difference_update([draft.about["key"] for draft in batch if draft.about["op"] == "now"])
        await self._look_for_others(made)

    def _status_now(self) -> str:
        # As long as anything else may be at work, others shall take the run up if this process dies.
        if self._waits and not self._is_side_by_side():
            return WAITING
        return RUNNING

    async def _look_for_others(self, made: str) -> None:
        """Note what others have recorded in the thread meanwhile: answers, events."""
        stored = self._repository.memory.head(self.thread_id, "")
        before = self._last_id
        self._last_id = made
        # What follows the last entry of ours at once has nothing of others in between.
        if stored is not None and stored.record.key.checkpoint_id == made and _follows(stored.record, before):
            self.journal.last_seq = stored.seq
            return
        if before is not None and await self._is_left_behind(before):
            # The thread was rewound: what this attempt goes by is not what is recorded there any more.
            raise RunLost(self.thread_id)
        entries, seq = await journal.load_since(self._repository, self.thread_id, self.journal.last_seq)
        self.journal.last_seq = seq
        for entry in entries:
            if entry.op in ("answer", "event"):
                self.journal.add(entry)
                self._waits.pop(entry.about.get("wait", entry.key), None)

    async def _is_left_behind(self, checkpoint_id: str) -> bool:
        loaded = await self._repository.store.read(self.thread_id, "", checkpoint_id)
        return loaded is None or loaded.stored.hidden

    def check_may_ask(self) -> None:
        """Raise if the code must not ask for anything here, as nobody would ask for it when the run is replayed."""
        if self._is_left:
            raise RunError(self.thread_id, "has been left by its code here: nothing can be asked of it any more")
        if calling.is_in_step():
            raise InvalidInput(
                "a step cannot ask for anything of its run: when it is replayed its function is not called. "
                "Let the code of the run ask, and hand the result to the step"
            )
        if self._stopped is not None:
            raise self._stopped
        # In a `finally:` block the run is on its way out, and comes back here when it is taken up. What such a block
        # asks for is asked for when it is over.
        leaving = _left_by(sys.exception())
        if leaving is not None:
            raise leaving

    # -- steps

    def step(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        key: str | None,
        options: Options,
        undo: Callable[..., Any] | None = None,
        on_unknown: Any = "ask",
    ) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a step. Its key is given now: in the order in which the code asks for steps."""
        if not callable(function):
            raise InvalidInput(f"a step is a function and its arguments, not {checks.shown(function)}")
        calling.check_effect(options.effect, undo, on_unknown)
        self.check_may_ask()
        name = name_of(function)
        full = self._keys.take(name, key)
        return self._step(full, name, function, args, kwargs, options, undo, on_unknown)

    async def _step(
        self,
        key: str,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: Options,
        undo: Callable[..., Any] | None,
        on_unknown: Any,
    ) -> Any:
        arguments = Arguments.of(args, kwargs)
        if undo is not None:
            self._remember_undo(undo, key, arguments)
        entry = self._find("step", key)
        if entry is not None and self._is_replayed(entry, arguments, options):
            return self._replayed(entry)
        # Something may have stopped the run since this step was asked for: another one beside it.
        if self._stopped is not None:
            raise self._stopped
        # Asked only here: what is recorded is still replayed by a process that is about to stop, and nothing
        # new is begun.
        if self._is_stopping():
            self._is_let_go = True
            raise Suspended
        await self._record_before_step()
        asked_as = self.step_key(key, arguments)
        call = _Call(key, name, function, args, kwargs, arguments, options, asked_as, self._performed_as(asked_as, 0))
        if options.effect == "once":
            return await self._perform(call, undo, on_unknown)
        outcome = await self._called(call)
        refused = await self._record([_step_draft(call, outcome)])
        if refused is not None:
            # A result that cannot be stored is a failure of the step, and is recorded as one.
            outcome = calling.Outcome(None, refused, [*outcome.tries, calling.told(refused)], outcome.seconds)
            await self.record(_step_draft(call, outcome))
        return self._given(key, outcome)

    async def _record_before_step(self) -> None:
        """Record what must be known if this process dies in the step that comes.

        The times that the code was told: it must be called with the same arguments then, and so with the same key. And
        that the run does not only wait, should that be what is recorded.
        """
        if not self._has_to_record():
            return
        async with self._lock:
            # Looked at again: another step may have had it recorded meanwhile.
            if self._has_to_record():
                with self._stopped_by_store():
                    await self._save_pending(None)

    def _has_to_record(self) -> bool:
        return bool(self._new_times) or (self._saved is not None and self._saved[0] == WAITING)

    async def _called(self, call: _Call) -> calling.Outcome:
        return await calling.call(self._face, call.function, call.args, call.kwargs, call.options, call.step_key)

    def _given(self, key: str, outcome: calling.Outcome) -> Any:
        if outcome.error is None:
            return outcome.result
        self._failed.append((outcome.error, key))
        raise outcome.error

    def _find(self, op: str, key: str) -> Entry | None:
        # Not yet when it asks for the last thing that is recorded: what it makes of that comes after.
        self._is_caught_up = not self.journal.has_more()
        if not self._is_at_code():
            self._beside_code.add(_worker())
        found = self.journal.find(op, key)
        # Once the code has caught up with what is recorded, decorated calls are saved again.
        if self.live.is_replaying and not self.journal.has_more():
            self.live.is_replaying = False
        return found

    def _is_at_code(self) -> bool:
        """Whether this is called where the code itself is at work, and not by what it does beside that."""
        return _worker() is self._code_at

    def _is_side_by_side(self) -> bool:
        """Whether the code does several things at once, as far as is known."""
        for each in list(self._beside_code):
            if each.done() if isinstance(each, asyncio.Task) else not each.is_alive():
                self._beside_code.discard(each)
        return bool(self._beside_code)

    def _replayed(self, entry: Entry) -> Any:
        if entry.about["status"] == "ok":
            return entry.values.get("result")
        error = failures.made_again(self.thread_id, entry.key, entry.values.get("error", {}))
        self._failed.append((error, entry.key))
        raise error

    def _is_replayed(self, entry: Entry, arguments: Arguments, options: Options) -> bool:
        """Whether what is recorded is what is asked for; False: it may be done anew."""
        if entry.about["args"] == arguments.digest:
            return True
        if self._is_forked_at(entry):
            raise Forked(entry)
        if self.program.on_change == "rerun" and options.effect == "none" and entry.about["effect"] == "none":
            return False
        differences = differences_of(entry.values, arguments.shown)
        what = f"has recorded step {entry.key!r} with other arguments than the code asks for now"
        raise self._stopped_by(ReplayMismatch(self.thread_id, entry.key, what, differences))

    def _is_forked_at(self, entry: Entry) -> bool:
        """Whether the run goes on in a branch from there: it shall, or does so already, whoever takes it up now."""
        return self.program.on_change == "fork" or entry.key in self.journal.forks

    def step_key(self, key: str, arguments: Arguments) -> str:
        """Return by what a step is known: the same in every try, process and branch."""
        # Made from the checkpoint that the run began with, which its branches have in common; the name of the
        # thread they have not.
        start = self.journal.beginning
        return f"{start.checkpoint.checkpoint_id}/{key}/{arguments.digest[:16]}"

    def _performed_as(self, asked_as: str, times_undone: int) -> str:
        """Return the idempotency key that a function is told: another one for what shall happen once more.

        Otherwise a service would give the result of what was undone since, or was performed outside of this branch.
        """
        if self._repeats_effects:
            asked_as = f"{asked_as}/{hashlib.sha256(self.thread_id.encode()).hexdigest()[:12]}"
        return undoing.performed_as(asked_as, times_undone)

    # -- effects

    async def _perform(self, call: _Call, undo: Callable[..., Any] | None, on_unknown: Any) -> Any:
        """Perform an effect once, or give what became of it when it was performed before."""
        key = self._effect_key(call.key)
        with self._stopped_by_store():
            effects = await self._family()
            before = await effects.find(key)
        call = call._replace(step_key=self._performed_as(call.asked_as, undoing.times_undone(before)))
        if before is not None:
            status = before.about["status"]
            if status == "failed" and call.key not in self.journal.again:
                return await self._failed_before(call, before)
            # One that was undone may be performed again.
            if status in ("begun", "failed", "done"):
                try:
                    known = await self._known(call, before, on_unknown)
                except _NotFoundOut as failed:
                    return await self._left_unknown(call, failed.error)
                if known is not None:
                    return await self._taken_over(call, known)
        effect = await self._begin_effect(effects, key, call, undo, before)
        outcome = await self._end_effect(effects, effect, call, await self._called(call))
        # Not committed by itself: that the effect happened is stored in the family already, and the step
        # joins the next commit. The code may have changed the result by then, so a copy of it waits.
        kept = outcome._replace(result=codec.unpack(codec.pack(outcome.result)))
        self._pending.append(_step_draft(call, kept))
        return self._given(call.key, outcome)

    def _effect_key(self, key: str) -> str:
        """Return under which key the effect of a step is kept."""
        if self._repeats_effects:
            # It may happen once in each thread then, not once in the family.
            return f"{self.thread_id}\n{key}"
        return key

    def _remember_undo(self, undo: Callable[..., Any], key: str, arguments: Arguments) -> None:
        """Note what takes an effect back, also if another process or the thread that this one left has performed it."""
        asked_as = self.step_key(key, arguments)
        for each in (key, self._effect_key(key)):
            undoing.remember_again(undo, each, asked_as)

    async def _end_effect(
        self, effects: Effects, effect: Effect, call: _Call, outcome: calling.Outcome
    ) -> calling.Outcome:
        """Store how an effect ended, and return how its step did.

        If it stays unknown, the step has failed: that is recorded as of any other, since the code may catch it.
        """
        # The call may still go on in its thread, so nobody can say whether the effect happens.
        if isinstance(outcome.error, calling.TimedOut):
            unknown = EffectUnknown(self.thread_id, call.key)
            unknown.__cause__ = outcome.error
            return outcome._replace(error=unknown)
        with self._stopped_by_store():
            if outcome.error is not None:
                await effects.end(effect, "failed", {"error": failures.recorded(outcome.error)})
                return outcome
            try:
                await effects.end(effect, "done", {"result": outcome.result})
            except _NOT_TAKEN as error:
                return calling.Outcome(None, error, [*outcome.tries, calling.told(error)], outcome.seconds)
        return outcome

    async def _failed_before(self, call: _Call, before: Effect) -> Any:
        """Raise the failure of an effect that was performed before, in this branch of the family or in another."""
        self._check_same(call, before)
        error = failures.made_again(self.thread_id, call.key, before.values.get("error", {}))
        outcome = calling.Outcome(None, error, [str(error)], 0.0)
        await self.record(_step_draft(call, outcome))
        return self._given(call.key, outcome)

    async def _left_unknown(self, call: _Call, error: Exception) -> Any:
        """Record that it could not be found out: the code may catch that, and go another way."""
        outcome = calling.Outcome(None, error, [calling.told(error)], 0.0)
        await self.record(_step_draft(call, outcome))
        return self._given(call.key, outcome)

    async def _begin_effect(
        self, effects: Effects, key: str, call: _Call, undo: Callable[..., Any] | None, before: Effect | None
    ) -> Effect:
        """Store that an effect is about to be performed, and what takes it back."""
        about = {
            "args": call.arguments.digest,
            "thread": self.thread_id,
            "name": call.name,
            "undo": None,
            "undone": undoing.times_undone(before),
            "begun": 1,
        }
        if undo is not None:
            about["undo"] = undoing.remember(undo, key, call.asked_as)
        if before is not None:
            about["begun"] = int(before.about["begun"]) + 1
        values = {"step": call.key, "step_key": call.step_key, "asked_as": call.asked_as, **call.arguments.shown}
        # The name of the intent is taken if another process has begun this effect since it was looked for.
        try:
            with self._stopped_by_store():
                return await effects.begin(key, about, values, before)
        except IdTaken:
            raise EffectUnknown(self.thread_id, call.key) from None

    async def _known(self, call: _Call, found: Effect, on_unknown: Any) -> dict[str, Any] | None:
        """Return `{"result": ...}` of an effect that happened; None: it did not, and may be performed."""
        self._check_same(call, found)
        if found.about["status"] == "done":
            return {"result": found.values.get("result")}
        if on_unknown == "fail":
            raise EffectUnknown(self.thread_id, call.key)
        if on_unknown == "ask":
            question = f"Did {call.name} happen? It was begun, and its outcome is not known."
            details = dict(call.arguments.shown)
            # Asked anew each time that it was begun: an answer tells of one of them.
            key = f"{call.key}?{found.about['begun']}"
            answer = await self._asked(key, question, details, {"effect": call.key})
        else:
            unknown = Unknown(self.thread_id, call.key, call.step_key, call.args, call.kwargs)
            try:
                answer = await self._face.call(lambda: on_unknown(unknown), None)
            except Exception as error:
                raise _NotFoundOut(error) from error
        check_happened(call.key, answer)
        if not answer["happened"]:
            return None
        known = {"result": answer.get("result")}
        try:
            with self._stopped_by_store():
                await (await self._family()).end(found, "done", known)  # whoever comes to it next need not ask again
        except IdTaken:
            pass  # somebody else has said so
        return known

    def _check_same(self, call: _Call, found: Effect) -> None:
        if found.about["args"] != call.arguments.digest:
            raise EffectConflict(self.thread_id, call.key, str(found.about["thread"]))

    async def _taken_over(self, call: _Call, known: Mapping[str, Any]) -> Any:
        outcome = calling.Outcome(known["result"], None, [], 0.0)
        await self.record(_step_draft(call, outcome))
        return outcome.result

    async def _family(self) -> Effects:
        if self._effects is None:
            host = await host_of(self._repository, self.thread_id)
            self._effects = Effects(self._repository, host, self._claim)
        return self._effects

    # -- waiting

    def ask(self, question: str, details: Any, key: str | None) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a question to a person."""
        text = checks.text(question, "question", 10_000)
        self.check_may_ask()
        return self._asked(self._keys.take("ask", key), text, details)

    async def _asked(self, key: str, question: str, details: Any, more: Mapping[str, Any] | None = None) -> Any:
        arguments = Arguments.of([question, details], {})
        asked = self._find("ask", key)
        # An answer may be there already, from before a crash. Then there is nothing to wait for.
        if key not in self.journal.answers:
            wait = {"kind": "ask", "key": key, "question": question, "args": arguments.digest}
            self._waits[key] = {**wait, **(more or {})}
            # A question that has changed before anybody has answered it is asked anew.
            if asked is None or asked.about.get("args") != arguments.digest:
                values = {"question": question, "details": details, "status": "waiting"}
                about = {"op": "ask", "key": key, "question": question, "args": arguments.digest}
                refused = await self._record([Draft(about, values, f"Waits for an answer: {question}"[:200])])
                if refused is not None:
                    del self._waits[key]
                    raise refused
        # Looked up again: the answer may have come while the question was recorded.
        answer = self.journal.answers.get(key)
        if answer is None:
            raise Suspended
        # Of an effect it does not matter how it was asked whether that happened.
        if more is None:
            self._check_is_to(answer, asked, arguments)
        return answer.values.get("answer")

    def _check_is_to(self, answer: Entry, asked: Entry | None, arguments: Arguments) -> None:
        """Raise if an answer was given to another question than the code asks now."""
        if answer.about.get("args") == arguments.digest:
            return
        if self._is_forked_at(asked or answer):
            raise Forked(asked or answer)
        recorded = {"args": [answer.about["question"]]}
        if asked is not None:
            recorded["args"].append(asked.values.get("details"))
        differences = differences_of(recorded, arguments.shown)
        what = f"has recorded an answer to another question than the code asks now as {answer.key!r}"
        raise self._stopped_by(ReplayMismatch(self.thread_id, answer.key, what, differences))

    def _stopped_by(self, mismatch: ReplayMismatch) -> ReplayMismatch:
        # Remembered, since the code may catch the error: what it would do after that is not what the run does.
        self._stopped = mismatch
        return mismatch

    def wait_for(self, event: str) -> Coroutine[Any, Any, Any]:
        """Return the coroutine that waits for an event."""
        name = checks.text(event, "event", _KEY_MAX)
        self.check_may_ask()
        return self._waited_for(name, self._keys.count(f"\nevent {name}"))

    async def _waited_for(self, event: str, number: int) -> Any:
        key = f"{event}#{number + 1}"
        asked = self._find("wait", key)
        if self.journal.event(event, number) is None:
            self._waits[key] = {"kind": "event", "key": key, "event": event}
            if asked is None:
                about = {"op": "wait", "key": key, "event": event}
                await self.record(Draft(about, None, f"Waits for the event {event}"[:200]))
        # Looked up again: the event may have come while the wait was recorded.
        found = self.journal.event(event, number)
        if found is None:
            raise Suspended
        # An event that came before the wait was recorded does not name it.
        self._waits.pop(key, None)
        return found.values.get("value")

    def sleep(self, seconds: float, key: str | None) -> Coroutine[Any, Any, None]:
        """Return the coroutine of a sleep."""
        if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds < 1e10:
            raise InvalidInput(f"a run sleeps for a number of seconds, not {checks.shown(seconds)}")
        self.check_may_ask()
        return self._slept(self._keys.take("sleep", key), float(seconds))

    async def _slept(self, key: str, seconds: float) -> None:
        entry = self._find("sleep", key)
        until = time.time() + seconds
        # A sleep that was begun before a crash ends when it was to end then.
        if entry is not None:
            until = float(entry.about["until"])
        is_long = until - time.time() > _LINGER_SECONDS
        if is_long:
            self._waits[key] = {"kind": "sleep", "key": key, "until": until}
        if entry is None:
            await self.record(Draft({"op": "sleep", "key": key, "until": until}, None, f"Sleeps for {seconds:g} s"))
        if is_long:
            raise Suspended
        await self._face.sleep(max(0.0, until - time.time()))

    # -- what is recorded of the world

    def now(self) -> datetime:
        """Return the time, the same whenever the run is replayed."""
        self.check_may_ask()
        key = self._keys.take("now", None)
        entry = self._find("now", key)
        if entry is not None:
            return datetime.fromisoformat(entry.about["value"])
        moment = datetime.now(UTC)
        # Recorded before the next step is called, or with what else comes first. If a crash comes before that,
        # nothing that was done yet rests on this time.
        self._new_times.add(key)
        self._pending.append(Draft({"op": "now", "key": key, "value": moment.isoformat()}))
        return moment

    def random(self) -> float:
        """Return a number from 0 up to 1, the same whenever the run is replayed."""
        return self._chance("random").random()

    def uuid(self) -> UUID:
        """Return a UUID made by chance, the same whenever the run is replayed."""
        return UUID(int=self._chance("uuid").getrandbits(128), version=4)

    def _chance(self, name: str) -> Random:
        self.check_may_ask()
        # Made from the seed and the key: nothing has to be recorded for each number.
        seed = self.journal.beginning.about["seed"]
        return Random(f"{seed}/{self._keys.take(name, None)}")  # noqa: S311  # nothing rests on its being secret

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Give the steps inside keys of their own."""
        before = _scope.get()
        _scope.set(f"{before}{checks.text(name, 'the name of a scope', _KEY_MAX)}/")
        try:
            yield
        finally:
            _scope.set(before)


class _Call(NamedTuple):
    """A step that is to be called."""

    key: str
    name: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    arguments: Arguments
    options: Options
    asked_as: str
    step_key: str
    """The idempotency key that its function is told."""


class Keys:
    """The keys of the steps that the code has asked for."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        # Steps may be asked for by several threads at once, in `SyncRun.gather`.
        self._lock = threading.Lock()

    def take(self, name: str, chosen: str | None) -> str:
        """Return the key of the next step of that name, or the one that was chosen."""
        scope = _scope.get()
        with self._lock:
            if chosen is not None:
                key = scope + checks.text(chosen, "key", _KEY_MAX)
                if key in self._taken:
                    raise InvalidInput(f"the key {key!r} is taken by another step of this run; choose one for each")
                self._taken.add(key)
                return key
            while True:
                number = self._next(scope + name)
                key = scope + name
                if number:
                    key = f"{key}#{number + 1}"
                # Somebody may have chosen a key that looks like a numbered one.
                if key not in self._taken:
                    self._taken.add(key)
                    return key

    def count(self, name: str) -> int:
        """Return how often that was asked before."""
        with self._lock:
            return self._next(name)

    def _next(self, name: str) -> int:
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        return number


def _worker() -> Worker:
    """Return the task, or else the thread, in which this is called."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop is running
        task = None
    return task or threading.current_thread()


def _why_not_taken(draft: Draft, error: Exception) -> Exception | None:
    """Return why no commit can take a draft; None if it is not what made one fail with that error."""
    try:
        packed = codec.pack(draft.values, str(draft.about["key"]))
    except UnstorableValue as reason:
        return reason
    if isinstance(error, SnapshotTooLarge) and len(packed) > error.size_bytes_max:
        return error
    return None


def _follows(record: Record, before: str | None) -> bool:
    """Whether a checkpoint follows that one alone; without one, whether it is the first."""
    parents = [parent.checkpoint_id for parent in record.parents]
    if before is None:
        return not parents
    return parents == [before]


def _step_draft(call: _Call, outcome: calling.Outcome) -> Draft:
    status = "ok"
    tags: tuple[str, ...] = ()
    if outcome.error is not None:
        status = "error"
        tags = ("error",)
    about = {
        "op": "step",
        "key": call.key,
        "name": call.name,
        "args": call.arguments.digest,
        "effect": call.options.effect,
        "status": status,
        "tries": len(outcome.tries) + (outcome.error is None),
        "seconds": round(outcome.seconds, 6),
    }
    if outcome.tries:
        about["failures"] = list(outcome.tries)
    values: dict[str, Any] = {"name": call.name, **call.arguments.shown, "status": status}
    if outcome.error is None:
        values["result"] = outcome.result
    else:
        values["error"] = failures.recorded(outcome.error)
    return Draft(about, values, f"{call.key}: {status}", tags)


def _trigger(batch: Sequence[Draft]) -> SnapshotTrigger:
    ops = {draft.about["op"] for draft in batch}
    if "step" in ops:
        return SnapshotTrigger.TOOL_CALL
    if ops & {"start", "end"}:
        return SnapshotTrigger.TASK_BOUNDARY
    return SnapshotTrigger.STATE_CHANGE


def differences_of(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Difference]:
    """Return in what the arguments of two calls differ."""
    before = _by_path(recorded)
    after = _by_path(asked)
    found: list[Difference] = []
    # A dictionary keeps the order in which the paths come, and each of them once.
    for path in dict.fromkeys([*before, *after]):
        if path not in after:
            found.append(Difference(path, "removed", before[path], None))
        elif path not in before:
            found.append(Difference(path, "added", None, after[path]))
        elif before[path] != after[path]:
            found.append(Difference(path, "changed", before[path], after[path]))
    return found


def _by_path(shown: Mapping[str, Any]) -> dict[str, Any]:
    positional = {f"args[{place}]": value for place, value in enumerate(shown.get("args", []))}
    return positional | {f"kwargs.{name}": value for name, value in shown.get("kwargs", {}).items()}


def _left_by(error: BaseException | None) -> BaseException | None:
    """Return why a run is left for now, if that and nothing else is what an exception says."""
    if isinstance(error, BaseExceptionGroup):
        _, others = error.split((Suspended, Forked))
        return _first_of(error) if others is None else None
    if isinstance(error, (Suspended, Forked)):
        return error
    return None


def _first_of(error: BaseException) -> BaseException:
    """Return the first error in a group, or in one inside of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _causes(error: BaseException, *, is_of_step: bool) -> Iterator[BaseException]:
    """Yield what an error came from."""
    if error.__cause__ is not None:
        yield error.__cause__
    # What a step has raised speaks for itself: if another failure was being handled meanwhile, that one was caught.
    if error.__context__ is not None and not is_of_step:
        yield error.__context__
    if isinstance(error, BaseExceptionGroup):
        yield from error.exceptions


def name_of(function: Any) -> str:
    """Return the name that the steps of a function have."""
    # A partial has no name of its own; the function that it calls has one. Asked by its class: a mock has
    # every attribute, and so would be followed for ever.
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)
