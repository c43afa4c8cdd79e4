"""Going back, forking and merging. Everything here can be undone."""

from __future__ import annotations

from typing import Any

import click

from everstep.cli import text
from everstep.cli.asking import thread_argument
from everstep.cli.group import command
from everstep.cli.session import Common, Session
from everstep.errors import CheckpointNotFound
from everstep.reports import Operation
from everstep.views.json_values import to_json


@command("undo")
@thread_argument("thread", required=False)
@click.pass_obj
def undo(common: Common, thread: str | None) -> None:
    """Without a thread it is the one that was active last. Steps taken since the operation are hidden, not lost."""
    _undo_or_redo(common, thread, "undo")


@command("redo")
@thread_argument("thread", required=False)
@click.pass_obj
def redo(common: Common, thread: str | None) -> None:
    """Without a thread it is the one that was active last."""
    _undo_or_redo(common, thread, "redo")


def _undo_or_redo(common: Common, thread: str | None, verb: str) -> None:
    with common.opened() as session:
        name = thread if thread is not None else _newest(session)
        operation = session.engine.undo(name) if verb == "undo" else session.engine.redo(name)
    if common.output.is_json:
        common.output.document({"thread_id": name, verb: _operation(operation)})
        return
    word = "taken back" if verb == "undo" else "done again"
    common.output.line(f"{text.clean(name)}: {word}: {operation.kind} of {text.describe_age(operation.created_at)}")
    common.output.hint(f"everstep {'redo' if verb == 'undo' else 'undo'} {text.clean(name)}")


@command("ops")
@thread_argument("thread", required=False)
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(0), help="How many, at most.")
@click.pass_obj
def ops(common: Common, thread: str | None, limit: int) -> None:
    """Rewinds, forks, merges and pins, newest first. Without a thread it is the one that was active last."""
    output = common.output
    with common.opened() as session:
        name = thread if thread is not None else _newest(session)
        session.engine.resolve(name)  # an unknown thread is an error, and no empty list
        found = session.engine.operations(name, limit)
    if output.is_json:
        output.document({"thread_id": name, "operations": [_operation(one) for one in found]}, "operations")
        return
    with output:
        rows = [_operation_row(common, operation) for operation in found]
        output.table(("id", "when", "what", "details"), rows, wide="details")


def _operation(operation: Operation) -> dict[str, Any]:
    return {
        "id": operation.id,
        "kind": operation.kind,
        "created_at": operation.created_at,
        "undone": operation.undone,
        "details": to_json(operation.details),
    }


def _operation_row(common: Common, operation: Operation) -> list[str]:
    details = ", ".join(f"{name} {text.clean(value)}" for name, value in operation.details.items() if value is not None)
    undone = " (taken back)" if operation.undone else ""
    when = operation.created_at
    if common.output.is_terminal:
        when = text.describe_age(when)
    return [str(operation.id), when, operation.kind + undone, details]


def _newest(session: Session) -> str:
    name = session.newest_thread()
    if name is None:
        raise CheckpointNotFound("", reason="there is no thread in this store")
    return name


COMMANDS: dict[str, click.Command] = {"undo": undo, "redo": redo, "ops": ops}
