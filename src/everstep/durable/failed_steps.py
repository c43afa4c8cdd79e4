"""The steps that a failure comes from: those that ended a run are tried again, what its code caught is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from everstep.durable.calling import Outcome


class FailedSteps:
    """The failures of steps that the code of a run was given, and what went wrong beside them."""

    def __init__(self) -> None:
        # The errors are kept, so that no other one can have the id of one of them.
        self._failed: list[tuple[BaseException, str]] = []
        self._beside: dict[int, list[BaseException]] = {}
        """By the id of an error that is kept in `_failed`, or in here."""

    def add(self, error: BaseException, key: str) -> None:
        """Note that the code was given this error for a step."""
        self._failed.append((error, key))

    def given(self, key: str, outcome: Outcome) -> Any:
        """Return the result of a step, or raise the error that it ended with."""
        if outcome.error is None:
            return outcome.result
        self.add(outcome.error, key)
        raise outcome.error

    def note_beside(self, raised: BaseException, errors: Sequence[BaseException]) -> None:
        """Note what went wrong beside an error, which alone is raised: neither has been caught."""
        # It may be raised through several of those that gather, each with errors of its own.
        self._beside.setdefault(id(raised), []).extend(errors)

    def behind(self, error: Exception) -> list[str]:
        """Return the keys of the steps whose failures an error comes from.

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


def _causes(error: BaseException, *, is_of_step: bool) -> Iterator[BaseException]:
    """Yield what an error came from."""
    if error.__cause__ is not None:
        yield error.__cause__
    # What a step has raised speaks for itself: if another failure was being handled meanwhile, that one was caught.
    if error.__context__ is not None and not is_of_step:
        yield error.__context__
    if isinstance(error, BaseExceptionGroup):
        yield from error.exceptions
