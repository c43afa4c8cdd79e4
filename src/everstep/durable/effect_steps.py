"""Steps whose effect is performed once: the intent is stored before the call, and the outcome in its place after it.

What was begun and has no outcome may have happened. Nobody guesses: a person is asked, a function finds out, or the
step fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstep.durable import calling, failures, undoing
from everstep.durable.calling import Face, Outcome
from everstep.durable.code_at_work import CodeAtWork
from everstep.durable.failed_steps import FailedSteps
from everstep.durable.idempotency import Idempotency
from everstep.durable.recorder import NOT_TAKEN, Recorder
from everstep.durable.replay import Replay
from everstep.durable.step_calls import StepCall, failed_by
from everstep.durable.unknown_effects import Unknown, check_happened
from everstep.durable.waiting import Waiting
from everstep.errors import EffectConflict, EffectUnknown, IdTaken
from everstep.repository.claims import Claim
from everstep.repository.effects import Effect, Effects, host_of
from everstep.repository.repository import Repository
from everstep.values import codec


class _NotFoundOut(Exception):
    """The function of `on_unknown` has failed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class EffectSteps:
    """The steps of one run whose effects are performed once."""

    repository: Repository
    claim: Claim
    face: Face
    code: CodeAtWork
    replay: Replay
    recorder: Recorder
    waiting: Waiting
    failed: FailedSteps
    names: Idempotency
    _effects: Effects | None = field(default=None, init=False)

    async def perform(self, call: StepCall) -> Any:
        """Perform an effect once, or give what became of it when it was performed before."""
        key = self.names.effect_key(call.key)
        with self.code.stopped_by_store():
            effects = await self._family()
            before = await effects.find(key)
        call = call._replace(step_key=self.names.performed_as(call.asked_as, before))
        if before is not None:
            status = before.about["status"]
            if status == "failed" and call.key not in self.replay.journal.again:
                return await self._failed_before(call, before)
            # One that was undone may be performed again.
            if status in ("begun", "failed", "done"):
                try:
                    known = await self._known(call, before)
                except _NotFoundOut as failed:
                    # It could not be found out. The code may catch that, and go another way.
                    return await self._recorded(call, failed_by(failed.error))
                if known is not None:
                    return await self._recorded(call, Outcome(known["result"], None, [], 0.0))
        effect = await self._begin(effects, key, call, before)
        outcome = await self._end(effects, effect, call, await call.outcome(self.face))
        # Not committed by itself: that the effect happened is stored in the family already, and the step
        # joins the next commit. The code may have changed the result by then, so a copy of it waits.
        kept = outcome._replace(result=codec.unpack(codec.pack(outcome.result)))
        self.recorder.record_later(call.draft(kept))
        return self.failed.given(call.key, outcome)

    def remember_undo(self, undo: Callable[..., Any], key: str, asked_as: str) -> None:
        """Note what takes an effect back, also if another process or the thread that this one left has performed it."""
        for each in (key, self.names.effect_key(key)):
            undoing.remember_again(undo, each, asked_as)

    async def _recorded(self, call: StepCall, outcome: Outcome) -> Any:
        """Record how an effect that is not performed here ended, and give that."""
        await self.recorder.record(call.draft(outcome))
        return self.failed.given(call.key, outcome)

    async def _failed_before(self, call: StepCall, before: Effect) -> Any:
        """Raise the failure of an effect that was performed before, in this branch of the family or in another."""
        self._check_same(call, before)
        error = failures.made_again(self.claim.thread_id, call.key, before.values.get("error", {}))
        return await self._recorded(call, Outcome(None, error, [str(error)], 0.0))

    async def _begin(self, effects: Effects, key: str, call: StepCall, before: Effect | None) -> Effect:
        """Store that an effect is about to be performed, and what takes it back."""
        about = {
            "args": call.arguments.digest,
            "thread": self.claim.thread_id,
            "name": call.asked.name,
            "undo": None,
            "undone": undoing.times_undone(before),
            "begun": 1,
        }
        if call.asked.undo is not None:
            about["undo"] = undoing.remember(call.asked.undo, key, call.asked_as)
        if before is not None:
            about["begun"] = int(before.about["begun"]) + 1
        values = {"step": call.key, "step_key": call.step_key, "asked_as": call.asked_as, **call.arguments.shown}
        # The name of the intent is taken if another process has begun this effect since it was looked for.
        try:
            with self.code.stopped_by_store():
                return await effects.begin(key, about, values, before)
        except IdTaken:
            raise EffectUnknown(self.claim.thread_id, call.key) from None

    async def _end(self, effects: Effects, effect: Effect, call: StepCall, outcome: Outcome) -> Outcome:
        """Store how an effect ended, and return how its step did.

        If it stays unknown, the step has failed: that is recorded as of any other, since the code may catch it.
        """
        # The call may still go on in its thread, so nobody can say whether the effect happens.
        if isinstance(outcome.error, calling.TimedOut):
            unknown = EffectUnknown(self.claim.thread_id, call.key)
            unknown.__cause__ = outcome.error
            return outcome._replace(error=unknown)
        with self.code.stopped_by_store():
            if outcome.error is not None:
                await effects.end(effect, "failed", {"error": failures.recorded(outcome.error)})
                return outcome
            try:
                await effects.end(effect, "done", {"result": outcome.result})
            except NOT_TAKEN as error:
                return failed_by(error, outcome)
        return outcome

    async def _known(self, call: StepCall, found: Effect) -> dict[str, Any] | None:
        """Return `{"result": ...}` of an effect that happened; None: it did not, and may be performed."""
        self._check_same(call, found)
        if found.about["status"] == "done":
            return {"result": found.values.get("result")}
        answer = await self._found_out(call, found)
        check_happened(call.key, answer)
        if not answer["happened"]:
            return None
        known = {"result": answer.get("result")}
        try:
            with self.code.stopped_by_store():
                await (await self._family()).end(found, "done", known)  # whoever comes to it next need not ask again
        except IdTaken:
            pass  # somebody else has said so
        return known

    async def _found_out(self, call: StepCall, found: Effect) -> Any:
        """Return whether an effect has happened that was begun, as `on_unknown` tells."""
        on_unknown = call.asked.on_unknown
        if on_unknown == "fail":
            raise EffectUnknown(self.claim.thread_id, call.key)
        if on_unknown == "ask":
            question = f"Did {call.asked.name} happen? It was begun, and its outcome is not known."
            # Asked anew each time that it was begun: an answer tells of one of them.
            key = f"{call.key}?{found.about['begun']}"
            return await self.waiting.ask_about_effect(call.key, key, question, dict(call.arguments.shown))
        unknown = Unknown(self.claim.thread_id, call.key, call.step_key, call.asked.args, call.asked.kwargs)
        try:
            return await self.face.call(lambda: on_unknown(unknown), None)
        except Exception as error:
            raise _NotFoundOut(error) from error

    def _check_same(self, call: StepCall, found: Effect) -> None:
        if found.about["args"] != call.arguments.digest:
            raise EffectConflict(self.claim.thread_id, call.key, str(found.about["thread"]))

    async def _family(self) -> Effects:
        if self._effects is None:
            host = await host_of(self.repository, self.claim.thread_id)
            self._effects = Effects(self.repository, host, self.claim)
        return self._effects
