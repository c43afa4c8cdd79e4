"""The steps of a run: given as they are recorded, or else called and recorded."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.durable import calling, failures
from everstep.durable.calling import Face, Options
from everstep.durable.code_at_work import CodeAtWork
from everstep.durable.effect_steps import EffectSteps
from everstep.durable.entries import Arguments, Entry
from everstep.durable.failed_steps import FailedSteps
from everstep.durable.idempotency import Idempotency
from everstep.durable.keys import Keys, name_of
from everstep.durable.leaving import Suspended
from everstep.durable.recorder import Recorder
from everstep.durable.replay import Replay
from everstep.durable.step_calls import AskedStep, StepCall, failed_by
from everstep.errors import InvalidInput
from everstep.runtime import checks


@dataclass(frozen=True)
class Steps:
    """The steps of one run."""

    thread_id: str
    face: Face
    keys: Keys
    code: CodeAtWork
    replay: Replay
    recorder: Recorder
    failed: FailedSteps
    names: Idempotency
    effects: EffectSteps
    is_stopping: Callable[[], bool]

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
        self.code.check_may_ask()
        name = name_of(function)
        full = self.keys.take(name, key)
        return self._result_of(AskedStep(full, name, function, args, kwargs, options, undo, on_unknown))

    async def _result_of(self, asked: AskedStep) -> Any:
        arguments = Arguments.of(asked.args, asked.kwargs)
        asked_as = self.names.asked_as(asked.key, arguments)
        if asked.undo is not None:
            self.effects.remember_undo(asked.undo, asked.key, asked_as)
        entry = self.replay.find("step", asked.key)
        if entry is not None and self.replay.is_same_step(entry, arguments, asked.options):
            return self._replayed(entry)
        # Something may have stopped the run since this step was asked for: another one beside it.
        self.code.check_not_stopped()
        # Asked only here: what is recorded is still replayed by a process that is about to stop, and nothing
        # new is begun.
        if self.is_stopping():
            self.code.is_let_go = True
            raise Suspended
        await self.recorder.record_before_step()
        call = StepCall(asked, arguments, asked_as, self.names.performed_as(asked_as, None))
        if asked.options.effect == "once":
            return await self.effects.perform(call)
        outcome = await call.outcome(self.face)
        refused = await self.recorder.try_to_record([call.draft(outcome)])
        if refused is not None:
            # A result that cannot be stored is a failure of the step, and is recorded as one.
            outcome = failed_by(refused, outcome)
            await self.recorder.record(call.draft(outcome))
        return self.failed.given(call.key, outcome)

    def _replayed(self, entry: Entry) -> Any:
        if entry.about["status"] == "ok":
            return entry.values.get("result")
        error = failures.made_again(self.thread_id, entry.key, entry.values.get("error", {}))
        self.failed.add(error, entry.key)
        raise error
