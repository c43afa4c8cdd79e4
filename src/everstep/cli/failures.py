"""What went wrong, for people and for programs: a line or a JSON document on standard error, and the exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from everstep.cli import text
from everstep.cli.output import SCHEMA, to_json
from everstep.errors import EverstepError, MergeConflict, StoreMismatch, StoreUnavailable

FAILURE = 1
USAGE = 2
CONFLICTS = 4
UNREACHABLE = 5
INTERRUPTED = 130


class StoreNotThere(StoreUnavailable):
    """There is nothing at the address of the store."""


class NeedsYes(EverstepError):
    """Something that destroys was not confirmed. Nothing was changed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"this would {what}, and there is nobody to ask; add --yes, or --dry-run to see it only")


class ProgramNotLoaded(EverstepError):
    """The program that has the durable functions could not be loaded."""


class RunFailed(EverstepError):
    """A run has failed, by an error of its own code. It is recorded there."""


_HINTS: dict[type[EverstepError], str] = {
    StoreNotThere: "everstep demo demo.db makes one to try; everstep config tells which store is used",
    StoreMismatch: "everstep doctor looks into it",
    StoreUnavailable: "everstep doctor looks into it",
    MergeConflict: "take one side with --ours or --theirs, or decide each with --resolve FILE",
}
"""What helps somebody at a shell, where the words for everybody do not say it."""


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
    from everstep.views import errors  # only where something went wrong

    fields: dict[str, Any] = errors.as_json(error)["error"]
    hint = next((_HINTS[kind] for kind in type(error).__mro__ if kind in _HINTS), None)
    if hint is not None:
        fields["hint"] = hint
    code = USAGE if isinstance(error, NeedsYes) else errors.answer(error).exit_code
    return fields, code


def _usage_hint(error: Exception) -> str:
    import click

    ctx = error.ctx if isinstance(error, click.UsageError) else None
    return f"{ctx.command_path} --help" if ctx is not None else "everstep --help"
