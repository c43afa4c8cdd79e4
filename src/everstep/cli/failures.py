"""What went wrong, for people and for programs: a line or a JSON document on standard error, and the exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback
from typing import Any

from everstep.cli import text
from everstep.cli.output import SCHEMA, to_json
from everstep.errors import (
    AmbiguousCheckpoint,
    CheckpointCorrupted,
    CheckpointNotFound,
    EverstepError,
    InvalidInput,
    MergeConflict,
    StoreMismatch,
    StoreUnavailable,
    TaskNotFound,
)

FAILURE = 1
USAGE = 2
NOT_FOUND = 3
CONFLICTS = 4
UNREACHABLE = 5
INTERRUPTED = 130


class StoreNotThere(StoreUnavailable):
    """There is nothing at the address of the store."""


class NeedsYes(EverstepError):
    """Something that destroys was not confirmed. Nothing was changed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this would {what}, and there is nobody to ask; add --yes, or --dry-run to see it only")


_TABLE: tuple[tuple[type[EverstepError], int, str], ...] = (
    (NeedsYes, USAGE, ""),
    (StoreNotThere, UNREACHABLE, "everstep demo demo.db makes one to try; everstep config tells which store is used"),
    (CheckpointNotFound, NOT_FOUND, "everstep threads lists threads, everstep log THREAD their checkpoints"),
    (AmbiguousCheckpoint, NOT_FOUND, ""),
    (TaskNotFound, NOT_FOUND, ""),
    (MergeConflict, CONFLICTS, "take one side with --ours or --theirs, or decide each with --resolve FILE"),
    (StoreUnavailable, UNREACHABLE, "everstep doctor looks into it"),
    (StoreMismatch, FAILURE, "everstep doctor looks into it"),
    (CheckpointCorrupted, FAILURE, "everstep verify names all that is damaged"),
    (InvalidInput, USAGE, ""),
    (EverstepError, FAILURE, ""),
)


def report(fields: dict[str, Any], *, as_json: bool) -> None:
    """Write what went wrong to standard error: `fields` has a code, a message, and maybe a hint."""
    if as_json:
        sys.stderr.write(to_json({"schema": SCHEMA, "error": fields}, indent=None) + "\n")
        return
    lines = text.clean_lines(fields["message"])
    sys.stderr.write("error: " + "\n       ".join(lines) + "\n")
    if fields.get("hint"):
        sys.stderr.write("hint: " + text.clean(fields["hint"]) + "\n")


def describe(error: Exception) -> tuple[dict[str, Any], int]:
    """Return code, message and hint of an error, and the exit code that it ends with."""
    import click

    if isinstance(error, click.ClickException):
        return {"code": "usage", "message": error.format_message(), "hint": _usage_hint(error)}, USAGE
    if isinstance(error, EverstepError):
        return _of_ours(error)
    if os.environ.get("EVERSTEP_DEBUG"):
        traceback.print_exception(error)
    message = f"{type(error).__name__}: {error}"
    return {
        "code": "internal_error",
        "message": message,
        "hint": "EVERSTEP_DEBUG=1 shows where; please report it",
    }, FAILURE


def _of_ours(error: EverstepError) -> tuple[dict[str, Any], int]:
    code, hint = next((code, hint) for kind, code, hint in _TABLE if isinstance(error, kind))
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()
    return {"code": name, "message": str(error), "hint": hint}, code


def _usage_hint(error: Exception) -> str:
    import click

    ctx = error.ctx if isinstance(error, click.UsageError) else None
    return f"{ctx.command_path} --help" if ctx is not None else "everstep --help"
