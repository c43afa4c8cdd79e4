"""Going back, forking and merging. Everything here can be undone."""

from __future__ import annotations

from typing import Any

import click

from everstep.cli import text
from everstep.cli.asking import ref_argument, thread_argument
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


@command("replay")
@ref_argument()
@click.option("--dry-run", is_flag=True, help="The same: this command never runs anything.")
@click.pass_obj
def replay(common: Common, ref: str, dry_run: bool) -> None:  # noqa: ARG001  # it never does more
    """Running it is up to your program, which has the code; the answer says how."""
    from everstep.views import checkpoint

    with common.opened() as session:
        found = session.run(checkpoint.detail, ref)
    fields = {
        "ref": found["ref"],
        "next_node": found["next_node"],
        "results": found["writes"],
        "python": found["copy"]["python"],
    }
    output = common.output
    if output.is_json:
        output.document(fields)
        return
    output.line(f"next: {text.clean(found['next_node']) or 'nothing: the run has ended here'}")
    for write in found["writes"]:
        output.line(f"there already: {text.clean(write['node'] or write['task'])}, {text.clean(write['channel'])}")
    for line in text.clean_lines(fields["python"]):
        output.line(f"  {line}")


def _newest(session: Session) -> str:
    name = session.newest_thread()
    if name is None:
        raise CheckpointNotFound("", reason="there is no thread in this store")
    return name


COMMANDS: dict[str, click.Command] = {"undo": undo, "redo": redo, "ops": ops, "replay": replay}
