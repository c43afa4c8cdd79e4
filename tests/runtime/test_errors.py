"""Every error comes through copying and pickling as it is."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from everstep import MISSING, Conflict, errors
from everstep.reports import Difference

_MADE: dict[type[BaseException], Callable[[], Any]] = {
    errors.UnstorableValue: lambda: errors.UnstorableValue("state.x", "Socket", "it is open"),
    errors.UnregisteredType: lambda: errors.UnregisteredType("app.Thing"),
    errors.SnapshotTooLarge: lambda: errors.SnapshotTooLarge(2_000, 1_000),
    errors.CheckpointNotFound: lambda: errors.CheckpointNotFound("ckpt-1", "t"),
    errors.AmbiguousCheckpoint: lambda: errors.AmbiguousCheckpoint("ckpt-1", [("t", ""), ("u", "n")]),
    errors.CheckpointCorrupted: lambda: errors.CheckpointCorrupted("cut short", thread_id="t", path="state.x"),
    errors.HeadMoved: lambda: errors.HeadMoved("t", "ckpt-1", None, ["plan"]),
    errors.MergeConflict: lambda: errors.MergeConflict([Conflict("state.x", MISSING, 1, [2])]),
    errors.TaskError: lambda: errors.TaskError("task", "is odd"),
    errors.TaskNotFound: lambda: errors.TaskNotFound("task"),
    errors.TaskExists: lambda: errors.TaskExists("task"),
    errors.PathNotFound: lambda: errors.PathNotFound("/plan", "c1"),
    errors.LeaseHeld: lambda: errors.LeaseHeld("t", "host", 7),
    errors.LeaseLost: lambda: errors.LeaseLost("t"),
    errors.TaskRunning: lambda: errors.TaskRunning("task", "host", 7),
    errors.TaskLost: lambda: errors.TaskLost("task"),
    errors.SendError: lambda: errors.SendError("t", "is odd"),
    errors.ThreadBusy: lambda: errors.ThreadBusy("t", 60.0),
    errors.ThreadLost: lambda: errors.ThreadLost("t"),
    errors.PendingTurnFailed: lambda: errors.PendingTurnFailed("t", KeyError("x")),
    errors.MissingDependency: lambda: errors.MissingDependency("redis", "redis"),
    errors.CommitUnknown: lambda: errors.CommitUnknown("ckpt-1", "t", "no answer"),
    errors.HeadRegressed: lambda: errors.HeadRegressed("t", 7, 0),
    errors.RunError: lambda: errors.RunError("t", "is odd"),
    errors.RunNotFound: lambda: errors.RunNotFound("t"),
    errors.RunExists: lambda: errors.RunExists("t", "book(1)", "book(2)"),
    errors.RunHeld: lambda: errors.RunHeld("t", "host", 7),
    errors.RunLost: lambda: errors.RunLost("t"),
    errors.NotWaiting: lambda: errors.NotWaiting("t", "waits for no answer"),
    errors.ReplayMismatch: lambda: errors.ReplayMismatch(
        "t", "charge-1", "asks for another step", [Difference("args", "changed", 1, 2)]
    ),
    errors.StepFailed: lambda: errors.StepFailed("t", "charge-1", "KeyError", "x"),
    errors.EffectConflict: lambda: errors.EffectConflict("t", "charge-1", "u"),
    errors.EffectUnknown: lambda: errors.EffectUnknown("t", "charge-1"),
}
"""Those that take more than a message."""
_ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
_WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("kind", _ALL, ids=lambda kind: kind.__name__)
def test_an_error_comes_through_as_it_is(kind: type[BaseException], way: str) -> None:
    make = _MADE.get(kind, lambda: kind("said what to do"))
    error = make()
    error.add_note("seen on Monday")
    found = _WAYS[way](error)
    assert type(found) is kind
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
    assert getattr(found, "msg", None) == getattr(error, "msg", None)


def test_a_conflict_that_comes_through_still_says_what_is_missing() -> None:
    found = _WAYS["pickle"](_MADE[errors.MergeConflict]())
    assert found.conflicts[0].base is MISSING
