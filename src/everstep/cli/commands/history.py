"""Going back, forking and merging. Everything here can be undone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TextIO

import click

from everstep.cli import text
from everstep.cli.asking import Assignment, read_json_file, ref_argument, thread_argument
from everstep.cli.editing import edit_json
from everstep.cli.failures import CONFLICTS
from everstep.cli.group import command
from everstep.cli.rendering import brief, describe_wait
from everstep.cli.session import Common, Session, stop
from everstep.errors import InvalidInput
from everstep.reports import Operation
from everstep.views import actions, operations


@command("rewind")
@ref_argument()
@click.option("--keep-later", is_flag=True, help="Leave later checkpoints in the history, instead of hiding them.")
@click.option("--dry-run", is_flag=True, help="Only tell what would happen.")
@click.pass_obj
def rewind(common: Common, ref: str, keep_later: bool, dry_run: bool) -> None:
    """The next step follows the checkpoint that you name. What came later stays stored, can be read by its id, and
    comes back with `everstep undo`.
    """
    output = common.output
    later: Literal["keep", "hide"] = "keep" if keep_later else "hide"
    with common.opened() as session:
        plan = session.run(actions.plan_rewind, ref)
        meant = session.engine.resolve(ref)
        left_behind = plan["hidden"]
        if not dry_run:
            done = session.engine.rewind(
                meant.checkpoint_id, later=later, thread_id=meant.thread_id, namespace=meant.namespace
            )
            left_behind = done.rewind_depth
    fields = {
        "thread_id": meant.thread_id,
        "id": meant.checkpoint_id,
        "step": meant.step,
        "left_behind": left_behind,
        "later": later,
        "dry_run": dry_run,
    }
    if output.is_json:
        output.document(fields)
        return
    verb = "would be" if dry_run else "is"
    steps = text.describe_count(left_behind, "later step")
    state = "kept in the history" if keep_later else "hidden, nothing is deleted"
    output.line(f"{text.clean(meant.thread_id)} {verb} at step {meant.step}; {steps} {state}")
    if not dry_run:
        output.hint(text.as_command("undo", meant.thread_id))


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
        name = session.thread_meant(thread)
        if verb == "undo":
            operation = session.engine.undo(name)
            word = "taken back"
            other = "redo"
        else:
            operation = session.engine.redo(name)
            word = "done again"
            other = "undo"
    if common.output.is_json:
        common.output.document({"thread_id": name, verb: operations.shown(operation)})
        return
    common.output.line(f"{text.clean(name)}: {word}: {operation.kind} of {text.describe_age(operation.created_at)}")
    common.output.hint(text.as_command(other, name))


@command("ops")
@thread_argument("thread", required=False)
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(0), help="How many, at most.")
@click.pass_obj
def ops(common: Common, thread: str | None, limit: int) -> None:
    """Rewinds, forks, merges and pins, newest first. Without a thread it is the one that was active last."""
    output = common.output
    with common.opened() as session:
        # An unknown thread is an error, and no empty list.
        name = session.thread_meant(thread)
        found = session.engine.operations(name, limit)
    if output.is_json:
        output.document({"thread_id": name, "operations": [operations.shown(one) for one in found]}, "operations")
        return
    with output:
        rows = [_operation_row(common, operation) for operation in found]
        output.table(("id", "when", "what", "details"), rows, wide="details")


def _operation_row(common: Common, operation: Operation) -> list[str]:
    undone = " (taken back)" if operation.undone else ""
    about = text.clean(operations.shown(operation)["text"])
    return [str(operation.id), common.output.age(operation.created_at), operation.kind + undone, about]


# -- forking


@command("fork")
@ref_argument()
@click.option("--branch", "-b", "name", required=True, metavar="NAME", help="The name of the branch.")
@click.option(
    "--set", "values", multiple=True, type=Assignment(), metavar="/PATH=JSON", help="Change a value; repeatable."
)
@click.option("--patch", type=click.File("r"), metavar="FILE", help="Change values by a JSON Patch (RFC 6902).")
@click.option("--edit", is_flag=True, help="Change the state in $EDITOR first.")
@click.pass_obj
def fork(
    common: Common, ref: str, name: str, values: Sequence[tuple[str, Any]], patch: TextIO | None, edit: bool
) -> None:
    """The branch is a thread of its own that begins at the checkpoint. With changed values its first step holds them.
    Paths are JSON Pointers into the state, such as /plan/hotel.
    """
    output = common.output
    changes: dict[str, Any] = {}
    with common.opened() as session:
        if edit:
            changes["set"] = edit_json(session.engine, ref)
            if not changes["set"]:
                stop("nothing was changed, so nothing was forked")
        if values:
            changes["set"] = {**changes.get("set", {}), **dict(values)}
        if patch is not None:
            changes["patch"] = read_json_file(patch, "the patch")
        made = session.run(actions.fork, ref, name, **changes)
    if output.is_json:
        output.document(made)
        return
    output.line(text.clean(made["thread_id"]))
    output.hint(text.as_command("diff", ref, made["thread_id"]))


# -- merging


@command("merge")
@thread_argument("source")
@click.option("--into", metavar="THREAD", help="Where to; without it the thread that the branch began at.")
@click.option("--ours", "resolve", flag_value="ours", help="On a conflict keep what the target has.")
@click.option("--theirs", "resolve", flag_value="theirs", help="On a conflict take what the branch has.")
@click.option("--resolve", "file", type=click.File("r"), metavar="FILE", help="JSON: for each path what to do.")
@click.option("--dry-run", is_flag=True, help="Only tell what would happen.")
@click.pass_obj
def merge(
    common: Common, source: str, into: str | None, resolve: str | None, file: TextIO | None, dry_run: bool
) -> int:
    """Both sides are compared with what they came from. Where both have changed the same value, nothing is written, the
    conflicts are listed, and the exit code is 4, unless you say what to do.
    """
    chosen: Any = resolve
    if file is not None:
        if resolve is not None:
            raise InvalidInput("--resolve and --ours or --theirs exclude each other")
        chosen = read_json_file(file, "the file of --resolve")
        if not isinstance(chosen, dict):
            raise InvalidInput('the file of --resolve is an object, such as {"state.hotel": {"take": "theirs"}}')
    with common.opened() as session:
        source = session.thread_meant(source)
        target = session.thread_meant(into) if into is not None else _origin(session, source)
        plan = session.run(actions.plan_merge, source, target, chosen)
        if plan["conflicts"] or dry_run:
            _show_plan(common, {**plan, "dry_run": dry_run, "id": None})
            return CONFLICTS if plan["conflicts"] else 0
        done = session.run(actions.merge, source, target, chosen)
    if common.output.is_json:
        common.output.document({**plan, "dry_run": False, **done})
        return 0
    done_text = text.describe_count(plan["auto"], "change")
    if plan["resolved"]:
        done_text += f", {text.describe_count(plan['resolved'], 'conflict')} resolved"
    common.output.line(f"{text.clean(source)} is merged into {text.clean(target)}: {done_text}")
    common.output.hint(f"{text.as_command('undo', target)} takes it back")
    return 0


def _show_plan(common: Common, plan: dict[str, Any]) -> None:
    output = common.output
    if output.is_json:
        output.document(plan)
        return
    conflicts = plan["conflicts"]
    open_ones = "no conflict is open"
    if conflicts:
        open_ones = f"{text.describe_count(len(conflicts), 'conflict')} open"
    output.line(f"{text.describe_count(plan['auto'], 'change')} without a conflict; {open_ones}")
    rows = []
    for conflict in conflicts:
        sides = [text.cut(brief(conflict[side]), 60) for side in ("base", "ours", "theirs")]
        rows.append([text.clean(conflict["path"]), *sides])
    if rows:
        output.table(("path", "base", "ours", "theirs"), rows, wide="theirs")
        output.hint("take one side with --ours or --theirs, or decide each with --resolve FILE")


def _origin(session: Session, source: str) -> str:
    """Return the thread that a branch began at."""
    from everstep.views import threads

    origin: str | None = session.run(threads.one, source)["origin"]
    if origin is None:
        raise InvalidInput(f"{source!r} is not a branch; say where to merge it: --into THREAD")
    return session.engine.resolve(origin).thread_id


# -- what comes next


@command("replay")
@ref_argument()
@click.option("--dry-run", is_flag=True, help="The same: this command never runs anything.")
@click.pass_obj
def replay(common: Common, ref: str, dry_run: bool) -> None:  # noqa: ARG001  # it never does more
    """Running it is up to your program, which has the code; the answer says how. Of a durable run it tells which steps
    are recorded, and which would be made again after a rewind to here.
    """
    from everstep.views import replay as view

    output = common.output
    with common.opened() as session:
        found = session.run(view.after, ref)
    if output.is_json:
        output.document(found)
        return
    for line in _next_lines(found):
        output.line(f"next: {line}")
    for result in found["results"]:
        what = [result["node"] or result.get("task"), result.get("channel")]
        output.line(f"there already: {', '.join(text.clean(word) for word in what if word)}")
    for line in text.clean_lines(found["python"]):
        output.line(f"  {line}")


def _next_lines(found: Mapping[str, Any]) -> list[str]:
    """Return what comes next, in a few words each."""
    if found["again"]:
        return [f"{text.clean(name)}, which would be made again" for name in found["again"]]
    if found["waits"]:
        return [describe_wait(wait) for wait in found["waits"]]
    return [text.clean(found["next_node"]) or "nothing: the run has ended here"]


COMMANDS: dict[str, click.Command] = {
    "rewind": rewind,
    "undo": undo,
    "redo": redo,
    "ops": ops,
    "fork": fork,
    "merge": merge,
    "replay": replay,
}
