"""Errors as JSON: a code, a message, a hint; exit code and status in one table."""

from __future__ import annotations

import inspect

import pytest

from everstep import errors as raised
from everstep.reports import Conflict
from everstep.types import MISSING
from everstep.views import errors


@pytest.mark.parametrize(
    ("error", "code", "exit_code", "status"),
    [
        (raised.CheckpointNotFound("x", "t"), "checkpoint_not_found", 3, 404),
        (raised.AmbiguousCheckpoint("x", [("a", "")]), "ambiguous_checkpoint", 3, 409),
        (raised.InvalidInput("no"), "invalid_input", 2, 400),
        (raised.StoreUnavailable("away"), "store_unavailable", 5, 503),
        (raised.StoreReadFailed("disk"), "store_read_failed", 5, 503),
        (raised.StoreReadOnly("no"), "store_read_only", 5, 403),
        (raised.MergeConflict([]), "merge_conflict", 4, 409),
        (raised.CheckpointCorrupted("bits"), "checkpoint_corrupted", 1, 500),
        (KeyboardInterrupt(), "interrupted", 130, 503),
        (ZeroDivisionError("secret"), "internal_error", 1, 500),
    ],
)
def test_each_error_has_a_code_and_a_place_in_the_table(
    error: BaseException, code: str, exit_code: int, status: int
) -> None:
    told = errors.as_json(error)["error"]
    assert told["code"] == code
    assert errors.answer(error) == (exit_code, status)
    assert "secret" not in str(told)


def test_every_error_of_ours_is_in_the_table() -> None:
    kinds = [each for _, each in inspect.getmembers(raised, inspect.isclass) if issubclass(each, raised.EverstepError)]
    assert all(any(parent in errors.TABLE for parent in kind.__mro__) for kind in kinds)


def test_what_may_help_is_said() -> None:
    close = raised.CheckpointNotFound("trp", None, reason="no thread 'trp'", similar=["trip"])
    assert errors.as_json(close)["error"]["hint"] == "Did you mean 'trip'?"
    damaged = raised.CheckpointCorrupted("bits", thread_id="t")
    assert errors.hint(damaged).startswith("everstep verify t tells")
    odd = raised.CheckpointCorrupted("bits", thread_id="--all mine")
    assert errors.hint(odd).startswith("everstep verify -- '--all mine' tells")
    ugly = errors.as_json(raised.InvalidInput("a\x1b[31mb\x00\u202e"))["error"]["message"]
    assert ugly == "ab"


def test_conflicts_are_told_with_their_values() -> None:
    conflict = Conflict("state.hotel", MISSING, None, "fjord")
    (told,) = errors.as_json(raised.MergeConflict([conflict]))["error"]["conflicts"]
    assert told == {"path": "state.hotel", "base": {"$type": "missing"}, "ours": None, "theirs": "fjord"}
