"""Why the code of a run is left before it comes to its end: the run has to wait, or it goes on in a branch."""

from __future__ import annotations

from everstep.durable.entries import Entry


# Suspended and Forked are no Exceptions, so that an `except Exception` around a step in the code of a run
# cannot swallow them.
class Suspended(BaseException):
    """The run waits for something, and there is nothing left to do for it here. Let it pass."""


class Forked(BaseException):
    """The run goes on in a branch that begins at a checkpoint. Let it pass."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry.key)
        self.entry = entry


def left_by(error: BaseException | None) -> BaseException | None:
    """Return why a run is left for now, if that and nothing else is what an exception says."""
    if isinstance(error, BaseExceptionGroup):
        _, others = error.split((Suspended, Forked))
        return first_of(error) if others is None else None
    if isinstance(error, (Suspended, Forked)):
        return error
    return None


def first_of(error: BaseException) -> BaseException:
    """Return the first error in a group, or in one inside of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
