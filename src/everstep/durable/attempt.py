"""One process's part in a run: from taking it up until it ends, has to wait, or is taken over by somebody else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from everstep.durable import failures, notes
from everstep.durable.calling import Face
from everstep.durable.code_at_work import CodeAtWork
from everstep.durable.effect_steps import EffectSteps
from everstep.durable.entries import Arguments, Draft, Entry
from everstep.durable.failed_steps import FailedSteps
from everstep.durable.idempotency import Idempotency
from everstep.durable.journal import Journal
from everstep.durable.keys import Keys
from everstep.durable.leaving import Forked, Suspended, first_of
from everstep.durable.live import RunLive, repository_of, timeline_of
from everstep.durable.programs import Program
from everstep.durable.recorder import NOT_TAKEN, Recorder
from everstep.durable.replay import Replay
from everstep.durable.statuses import DONE, FAILED, PAUSED, READY, RUNNING, WAITING
from everstep.durable.steps import Steps
from everstep.durable.time_and_chance import TimeAndChance
from everstep.durable.waiting import Waiting
from everstep.errors import InvalidInput, LeaseLost, StoreError
from everstep.repository.claims import Claim
from everstep.repository.new_names import new_token
from everstep.repository.turns import BEATEN_MAX
from everstep.stores.protocol import Key, Stored

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

logger = logging.getLogger("everstep")


class Attempt:
    """Runs the code of a run, and brings together what that works with: see `everstep.Run` and `everstep.SyncRun`."""

    def __init__(
        self,
        engine: CheckpointEngine,
        program: Program,
        claim: Claim,
        face: Face,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.thread_id = thread_id = claim.thread_id
        self.program = program
        self._engine = engine
        self._repository = repository = repository_of(engine)
        self._claim = claim
        keys = Keys()
        self.live = RunLive(engine._capture, thread_id, claim)
        self.code = code = CodeAtWork(thread_id)
        self.failed = failed = FailedSteps()
        self._replay = replay = Replay(program, self.live, code)
        self._recorder = recorder = Recorder(engine, repository, program.name, self.live, face, code, replay)
        self.time_and_chance = TimeAndChance(keys, code, replay, recorder)
        self.waiting = waiting = Waiting(face, keys, code, replay, recorder)
        names = Idempotency(thread_id, replay)
        effects = EffectSteps(repository, claim, face, code, replay, recorder, waiting, failed, names)
        self.steps = Steps(thread_id, face, keys, code, replay, recorder, failed, names, effects, is_stopping)

    @property
    def journal(self) -> Journal:
        """What the run has recorded."""
        return self._replay.journal

    async def start(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_empty: bool) -> None:
        """Begin a new run: record what it is to be called with. `is_empty`: there is nothing in the thread yet."""
        found = None
        if not is_empty:
            found = await self._repository.load(self.thread_id)
        if found is not None:
            stored, values = found
            self.live.begin(values, stored.record.next_node)
            self.live.follow(stored.record.key.checkpoint_id, stored.record.step)
            self._recorder.last_id = stored.record.key.checkpoint_id
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
        await self._recorder.record(draft)
        made = Key(self.thread_id, "", self.live.checkpoint_id or "")
        self.journal.add(Entry(about, values_, made, None))

    async def take_up(self, found: Journal, head: Stored) -> None:
        """Go on with a run that was begun before, and whose journal was read up to this head."""
        self._replay.begin(found)
        self._recorder.last_id = head.record.key.checkpoint_id
        metadata = head.record.metadata
        start = found.beginning
        begun = await self._repository.load(*start.checkpoint)
        if begun is None:
            raise InvalidInput(f"the beginning of run {self.thread_id!r} is not stored any more")
        stored, values = begun
        self.live.begin(values, stored.record.next_node)
        self._replay.repeats_effects = metadata.get("run_effects") == "allow"
        self._recorder.told = (str(metadata.get("run_status")), list(metadata.get("run_waits", [])))
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
        self._recorder.told = None

    async def run(self, call: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        """Run the code to its end and return its result. Suspended if it has to wait."""
        try:
            with self.code.at_work(), self.live.opened(self._engine):
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
        self._recorder.waits.clear()
        try:
            await self._recorder.record(Draft(about, values, f"{self.program.name}: done", ("done",)), status=DONE)
        except NOT_TAKEN as error:
            # The code is not right: nobody should run it again and again.
            await self._fail(error)
            raise
        return result

    async def _result_of(self, call: Callable[..., Coroutine[Any, Any, Any]]) -> Any:
        """Run the code; what has stopped it here counts more than what it has made of that."""
        start = self.journal.beginning
        try:
            result = await call(*start.values["args"], **start.values["kwargs"])
        except (Exception, Suspended) as error:
            if self.code.stopped is not None and error is not self.code.stopped:
                raise self.code.stopped from error
            raise
        self.code.check_not_stopped()
        self._replay.check_all_asked_for()
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
        found = first_of(group)
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
        about = {
            "op": "end",
            "key": "end",
            "status": FAILED,
            "failed": self.failed.behind(error),
            "error": f"{type(error).__name__}: {kept['text']}"[:500],
        }
        values = {"name": self.program.name, "status": "error", "error": kept}
        self._recorder.waits.clear()
        try:
            draft = Draft(about, values, f"{self.program.name}: {about['error']}"[:200], ("error",))
            try:
                await self._recorder.record(draft, status=FAILED)
            except NOT_TAKEN:
                # The code holds something that cannot be saved, so what it holds is left out.
                await self.live.drop_changes(self._engine)
                await self._recorder.record(status=FAILED)
        except Exception:
            logger.exception("run %r: that it failed could not be recorded", self.thread_id)

    async def _go_waiting(self) -> None:
        if self.code.is_let_go:
            await self._record_wait("let go", READY)
            return
        for _ in range(BEATEN_MAX):
            if not self._recorder.waits or self._recorder.has_told_waits():
                break
            # Again if somebody else came in between: what they have recorded is known after that.
            await self._record_wait("waiting", WAITING)
        if not self._recorder.waits:
            # What it waited for has come while something was recorded.
            await self._record_wait("ready", READY)

    async def _record_wait(self, what: str, status: str) -> None:
        draft = Draft({"op": "wait", "key": "wait"}, None, f"{self.program.name}: {what}")
        await self._recorder.record(draft, status=status)
