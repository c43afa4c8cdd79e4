"""Errors as JSON, with the exit code of a command and the status of an HTTP answer beside them: one table."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from everstep import errors
from everstep.reports import Conflict
from everstep.types import MISSING
from everstep.views.commands import as_command
from everstep.views.json_values import to_json
from everstep.views.texts import plain_text

_VALUE_BYTES_MAX = 20_000


class Answer(NamedTuple):
    """How an error is told."""

    exit_code: int
    """0 ok, 1 failure, 2 usage, 3 not found, 4 conflicts left, 5 the store, 130 interrupted."""
    http_status: int


TABLE: dict[type[BaseException], Answer] = {
    errors.CheckpointNotFound: Answer(3, 404),
    errors.AmbiguousCheckpoint: Answer(3, 409),
    errors.TaskNotFound: Answer(3, 404),
    errors.PathNotFound: Answer(3, 404),
    errors.MergeConflict: Answer(4, 409),
    errors.HeadMoved: Answer(1, 409),
    errors.CannotUndo: Answer(1, 409),
    errors.TaskExists: Answer(1, 409),
    errors.TaskRunning: Answer(1, 409),
    errors.RunNotFound: Answer(3, 404),
    errors.RunError: Answer(1, 409),
    errors.SnapshotTooLarge: Answer(1, 413),
    errors.UnstorableValue: Answer(2, 400),
    errors.InvalidInput: Answer(2, 400),
    errors.UnsupportedByBackend: Answer(1, 501),
    errors.MissingDependency: Answer(1, 501),
    errors.StoreFull: Answer(5, 507),
    errors.StoreReadOnly: Answer(5, 403),
    errors.StoreMismatch: Answer(5, 500),
    errors.StoreError: Answer(5, 503),
    errors.EverstepError: Answer(1, 500),
    KeyboardInterrupt: Answer(130, 503),
    BaseException: Answer(1, 500),
}
"""The first class of an error's own ancestors that is in here counts."""


def answer(error: BaseException) -> Answer:
    """Return the exit code and the HTTP status for an error."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def _conflict_as_json(conflict: Conflict) -> dict[str, Any]:
    return {
        "path": conflict.path,
        "base": shown_or_missing(conflict.base),
        "ours": shown_or_missing(conflict.ours),
        "theirs": shown_or_missing(conflict.theirs),
    }


def as_json(error: BaseException) -> dict[str, Any]:
    """Return `{"error": {"code", "message", "hint"}}`; of a merge also the conflicts."""
    told: dict[str, Any] = {"code": code(error), "message": _message(error), "hint": hint(error)}
    if isinstance(error, errors.MergeConflict):
        told["conflicts"] = list(map(_conflict_as_json, error.conflicts))
    if isinstance(error, errors.AmbiguousCheckpoint):
        told["candidates"] = error.candidates
    if isinstance(error, errors.CheckpointNotFound):
        told["similar"] = error.similar
    return {"error": told}


def shown_or_missing(value: Any, max_bytes: int = _VALUE_BYTES_MAX) -> Any:
    """Return a value as JSON; `{"$type": "missing"}` where there is none, for null is a value."""
    return {"$type": "missing"} if value is MISSING else to_json(value, max_bytes=max_bytes)


def code(error: BaseException) -> str:
    """Return the name of an error's class in snake case; "internal_error" for what is not ours."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if not isinstance(error, errors.EverstepError):
        return "internal_error"
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


def hint(error: BaseException) -> str:
    """Return what may help, in one sentence; "" if there is nothing to say."""
    match error:
        case errors.CheckpointNotFound(similar=[first, *_]):
            return f"Did you mean {first!r}?"
        case errors.CheckpointNotFound(thread_id=str() as thread):
            return f"{as_command('log', plain_text(thread))} shows what there is."
        case errors.CheckpointNotFound():
            return "everstep threads shows what there is."
        case errors.AmbiguousCheckpoint(candidates=[first, *_]):
            return f"Write the one that you mean, such as {first.partition(' (step ')[0]!r}."
        case errors.AmbiguousCheckpoint():
            return "Give more of the id, or the thread: THREAD@ID."
        case errors.MergeConflict():
            return "Choose ours or theirs, or give a value for each path."
        case errors.CheckpointCorrupted(thread_id=str() as thread):
            looking = as_command("verify", plain_text(thread))
            return f"{looking} tells what is damaged; everstep repair saves what is whole."
        case errors.CheckpointCorrupted():
            return "everstep verify tells what is damaged; everstep repair saves what is whole."
        case errors.RunNotFound():
            return "everstep runs shows what there is."
        case errors.NotWaiting(thread_id=thread):
            return f"{as_command('run', plain_text(thread))} shows what it waits for."
        case errors.HeadMoved():
            return "Somebody else was faster: look again, and decide again."
        case errors.StoreUnavailable():
            return "Try again; is the server there, and is the file in use by somebody else?"
        case errors.StoreReadOnly():
            return "Looking works; to change something, open the store where it can be written."
        case _:
            return ""


def _message(error: BaseException) -> str:
    if not isinstance(error, errors.EverstepError):
        # Its text may hold anything, a password too. It is in the log, not on the page.
        return type(error).__name__
    if isinstance(error, errors.CheckpointCorrupted):
        # The hint says what helps.
        return plain_text(error.what)
    return plain_text(str(error))
