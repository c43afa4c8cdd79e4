"""One checkpoint, its values, and what is different between two. Nothing here changes anything."""

from __future__ import annotations

from typing import Any

import click

from everstep.cli import text
from everstep.cli.asking import ref_argument, thread_argument
from everstep.cli.failures import FAILURE
from everstep.cli.group import command
from everstep.cli.output import to_json
from everstep.cli.rendering import (
    brief,
    counts_text,
    row_cells,
    show_changes,
    show_checkpoint,
    show_json,
    show_messages,
    tell_damage,
)
from everstep.cli.session import Common


@command("show")
@ref_argument()
@click.option("--state", is_flag=True, help="With its whole state.")
@click.option("--messages", is_flag=True, help="With its conversation.")
@click.option("--io", is_flag=True, help="With the results of tools, errors and pending writes.")
@click.option("--stat", is_flag=True, help="Only figures of what it changed.")
@click.option("--limit", "-n", default=100, show_default=True, type=click.IntRange(1), help="Of messages, the newest.")
@click.pass_obj
def show(common: Common, ref: str, state: bool, messages: bool, io: bool, stat: bool, limit: int) -> None:
    """What it changed is told against its first parent; `everstep diff` compares with any other."""
    from everstep.views import changes, checkpoint, transcript
    from everstep.views import state as state_view

    output = common.output
    with common.opened() as session:
        found = session.run(checkpoint.detail, ref)
        # A reference such as @~1 may mean another checkpoint a moment later; all parts must be of the same
        # one.
        exact = found["ref"]
        changed = session.run(changes.compare, None, exact)
        values = session.run(state_view.value, exact, "") if state else None
        talk = session.run(transcript.page, exact, limit=limit) if messages else None
    if output.is_json:
        more: dict[str, Any] = {"changes": changed}
        if state:
            more["state"] = values
        if talk is not None:
            more["transcript"] = talk
        output.document({**found, **more})
        return
    with output:
        show_checkpoint(output, found)
        if changed["state"] or changed["messages"]:
            output.line()
            output.line(output.paint("Changes", "bold") + "  " + output.paint(counts_text(changed["counts"]), "dim"))
        if not stat:
            show_changes(output, changed)
        if io:
            title = "Result of tools" if found["tools_result_is_own"] else "Result of tools, of an earlier step"
            parts = {title: "tools_result", "Pending writes": "writes", "Error": "error"}
            for title, name in parts.items():
                if found[name]:
                    show_json(output, title, found[name])
        if state:
            show_json(output, "State", values)
        if talk is not None:
            show_messages(output, talk)


@command("get")
@ref_argument()
@click.argument("pointer", default="", required=False, metavar="[/JSON/POINTER]")
@click.option("--raw", "-r", is_flag=True, help="Print a text without quotes.")
@click.pass_obj
def get(common: Common, ref: str, pointer: str, raw: bool) -> None:
    """The pointer leads into the state, such as /plan/hotel; without one the whole state is printed. The answer is
    always JSON, without anything around it.
    """
    from everstep.views import state as view

    with common.opened() as session:
        value = session.run(view.value, ref, pointer)
    output = common.output
    if raw and isinstance(value, str):
        # In a pipe the text goes through as it is; a terminal could be told to do something by it.
        for line in text.clean_lines(value) if output.is_terminal else [value]:
            output.line(line)
        return
    output.line(to_json(value, indent=None if output.form == "jsonl" else 2))


# -- differences


@command("diff")
@ref_argument("a")
@ref_argument("b", required=False)
@click.option("--messages", is_flag=True, help="Only the conversation.")
@click.option("--stat", is_flag=True, help="Only figures.")
@click.option("--patch", is_flag=True, help="As a JSON Patch (RFC 6902), which `fork --patch` takes.")
@click.option("--path", metavar="PATH", help="Only what is here, such as /plan, state.plan or /messages/3.")
@click.option("--exit-code", is_flag=True, help="End with 1 if there is a difference.")
@click.pass_obj
def diff(
    common: Common,
    a: str,
    b: str | None,
    messages: bool,
    stat: bool,
    patch: bool,
    path: str | None,
    exit_code: bool,
) -> int:
    """From A to B; with A alone, from its first parent to A. Messages are matched by their ids."""
    from everstep.views import changes

    output = common.output
    before: str | None = a
    after = b
    if after is None:
        before = None
        after = a
    if messages:
        path = "/messages"
    with common.opened() as session:
        found = session.run(changes.compare, before, after, path=path)
        if patch:
            found["patch"] = session.run(changes.patch, before, after, path=path)
    is_different = bool(found["state"] or found["messages"])
    code = FAILURE if exit_code and is_different else 0
    if patch and not output.is_json:
        output.line(to_json(found["patch"]))
        return code
    if output.is_json:
        output.document(found)
        return code
    with output:
        if stat or not is_different:
            output.line(counts_text(found["counts"]) if is_different else "no changes")
        if not stat:
            show_changes(output, found)
    return code


@command("blame")
@thread_argument()
@click.argument("path")
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1), help="How many, at most.")
@click.pass_obj
def blame(common: Common, thread: str, path: str, limit: int) -> None:
    """PATH is such as /plan/hotel or state.plan.hotel. Newest first."""
    from everstep.views import blame as view

    output = common.output
    with common.opened() as session:
        found = session.run(view.history_of, session.thread_meant(thread), path, limit=limit)
    if output.is_json:
        output.document(found, "changes")
        return
    with output:
        cells = []
        for change in found["changes"]:
            value = text.cut(brief(change["after"]), 80)
            cells.append([*row_cells(output, change)[:4], value, text.clean(change["title"])])
        output.table(("step", "id", "when", "kind", "value", "what"), cells, wide="what")
    if not cells:
        output.note("no step has changed it")
    tell_damage(output, found["damage"])


COMMANDS: dict[str, click.Command] = {"show": show, "get": get, "diff": diff, "blame": blame}
