"""A step as the code of a run asks for it, as it is called, and as its outcome is recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.durable import calling, failures
from everstep.durable.calling import Face, Options, Outcome
from everstep.durable.entries import Arguments, Draft


class AskedStep(NamedTuple):
    """A step that the code asks for."""

    key: str
    name: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Options
    undo: Callable[..., Any] | None
    on_unknown: Any


class StepCall(NamedTuple):
    """A step that is to be called."""

    asked: AskedStep
    arguments: Arguments
    asked_as: str
    step_key: str
    """The idempotency key that its function is told."""

    @property
    def key(self) -> str:
        """By which its run knows it."""
        return self.asked.key

    async def outcome(self, face: Face) -> Outcome:
        """Call the function, and return how that ended."""
        asked = self.asked
        return await calling.call(face, asked.function, asked.args, asked.kwargs, asked.options, self.step_key)

    def draft(self, outcome: Outcome) -> Draft:
        """Return what is recorded of an outcome."""
        status = "ok"
        tags: tuple[str, ...] = ()
        if outcome.error is not None:
            status = "error"
            tags = ("error",)
        about = {
            "op": "step",
            "key": self.key,
            "name": self.asked.name,
            "args": self.arguments.digest,
            "effect": self.asked.options.effect,
            "status": status,
            "tries": len(outcome.tries) + (outcome.error is None),
            "seconds": round(outcome.seconds, 6),
        }
        if outcome.tries:
            about["failures"] = list(outcome.tries)
        values: dict[str, Any] = {"name": self.asked.name, **self.arguments.shown, "status": status}
        if outcome.error is None:
            values["result"] = outcome.result
        else:
            values["error"] = failures.recorded(outcome.error)
        return Draft(about, values, f"{self.key}: {status}", tags)


def failed_by(error: Exception, before: Outcome | None = None) -> Outcome:
    """Return the outcome of a step that has failed by this, or whose outcome cannot be recorded because of it."""
    if before is None:
        return Outcome(None, error, [calling.told(error)], 0.0)
    return Outcome(None, error, [*before.tries, calling.told(error)], before.seconds)
