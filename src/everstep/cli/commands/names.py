"""Branches, tags and pins."""

from __future__ import annotations

from typing import Any

import click

from everstep.cli import text
from everstep.cli.asking import ref_argument, thread_argument, yes_options
from everstep.cli.commands.care import require_thread
from everstep.cli.group import command, group
from everstep.cli.session import Common, confirm
from everstep.errors import InvalidInput
from everstep.views import tags

# Only a family that has more checkpoints than this would show fewer branches than it has.
_LOOKED_AT_MAX = 100_000


@group("branch")
def branch() -> None:
    """Branches of a thread."""


@branch.command("list")
@thread_argument()
@click.pass_obj
def branch_list(common: Common, thread: str) -> None:
    """List the branches of a thread's family: where each began, and where it is."""
    with common.opened() as session:
        # A tree of nothing is empty; a thread that does not exist is an error here, as everywhere.
        session.engine.resolve(thread)
        tree = session.engine.get_checkpoint_tree(thread, _LOOKED_AT_MAX)
    origins = {edge["to"]: (edge["from_thread"], edge["from"]) for edge in tree["edges"]}
    heads = {node["thread_id"]: node for node in tree["nodes"] if node["head"]}
    found = []
    for node in tree["nodes"]:
        if node["branch"] is None:
            continue
        origin = origins.get(node["id"])
        head = heads.get(node["thread_id"])
        told: dict[str, Any] = {
            "name": node["branch"],
            "thread_id": node["thread_id"],
            "origin": None,
            "step": None,
            "updated_at": node["created_at"],
        }
        if origin is not None:
            told["origin"] = f"{origin[0]}@{origin[1]}"
        # All that it had may be hidden.
        if head is not None:
            told["step"] = head["step"]
            told["updated_at"] = head["created_at"]
        found.append(told)
    output = common.output
    if output.is_json:
        output.document({"thread_id": thread, "branches": found}, "branches")
        return
    rows = []
    for one in found:
        when = output.age(str(one["updated_at"]))
        steps = "" if one["step"] is None else str(one["step"])
        rows.append([text.clean(one["name"]), text.clean(one["thread_id"]), steps, when])
    output.table(("name", "thread", "steps", "active"), rows, wide="thread")


@branch.command("delete")
@thread_argument()
@yes_options
@click.pass_obj
def branch_delete(common: Common, thread: str, yes: bool, dry_run: bool) -> None:
    """Delete a branch, for good. What was merged from it stays where it was merged."""
    with common.opened() as session:
        count = require_thread(session, thread)
        tree = session.engine.get_checkpoint_tree(thread, _LOOKED_AT_MAX)
        own = [node for node in tree["nodes"] if node["thread_id"] == thread and node["branch"] is not None]
        if not own:
            raise InvalidInput(f"{thread!r} is not a branch; everstep rm deletes any thread")
        plan = [f"{text.clean(thread)}: {text.describe_count(count, 'checkpoint')}"]
        if confirm(common, "delete this branch for good", plan, yes=yes, dry_run=dry_run):
            count = session.engine.checkpointer.delete_thread(thread)
    if common.output.is_json:
        common.output.document({"threads": [thread], "checkpoints": count, "dry_run": dry_run})
    elif not dry_run:
        common.output.line(f"{text.clean(thread)} is deleted, with {text.describe_count(count, 'checkpoint')}")


@command("tag")
@ref_argument()
@click.argument("tag", required=False)
@click.option("-d", "--delete", is_flag=True, help="Take the tag away.")
@click.pass_obj
def tag(common: Common, ref: str, tag: str | None, delete: bool) -> None:
    """With a thread alone: list its tags. With a checkpoint and a TAG: give it that tag, or take it away.

    THREAD@TAG means the newest checkpoint that has one. A tag that is given here is kept in the thread's log, so that
    `everstep undo` takes it back; whether retention keeps a checkpoint is up to `everstep pin`.
    """
    if tag is not None:
        _tag(common, ref, tag, is_given=not delete)
    elif delete:
        raise click.UsageError("name the tag that is to be taken away: everstep tag -d REF TAG")
    else:
        _list_tags(common, ref)


def _tag(common: Common, ref: str, tag: str, *, is_given: bool) -> None:
    with common.opened() as session:
        meant = session.engine.resolve(ref)
        act = session.engine.tag if is_given else session.engine.untag
        act(meant.checkpoint_id, tag, thread_id=meant.thread_id, namespace=meant.namespace)
    output = common.output
    if output.is_json:
        fields = {"thread_id": meant.thread_id, "id": meant.checkpoint_id, "step": meant.step}
        output.document({**fields, "tag": tag, "given": is_given})
        return
    thread = text.clean(meant.thread_id)
    word = "has the tag" if is_given else "has no longer the tag"
    output.line(f"{thread}#{meant.step} {word} {text.clean(tag)}")
    output.hint(f"everstep show {thread}@{text.clean(tag)}" if is_given else f"everstep undo {thread}")


def _list_tags(common: Common, thread: str) -> None:
    with common.opened() as session:
        found = session.run(tags.listing, thread)
    output = common.output
    if output.is_json:
        output.document(found, "tags")
        return
    rows = [[text.clean(one["tag"]), str(one["checkpoints"]), f"#{one['step']}"] for one in found["tags"]]
    output.table(("tag", "checkpoints", "newest"), rows, wide="tag")


@command("pin")
@ref_argument()
@click.pass_obj
def pin(common: Common, ref: str) -> None:
    """A pinned checkpoint stays, whatever the policy says, until it is unpinned or its thread is deleted."""
    _pin(common, ref, pinned=True)


@command("unpin")
@ref_argument()
@click.pass_obj
def unpin(common: Common, ref: str) -> None:
    """The next retention may take it."""
    _pin(common, ref, pinned=False)


def _pin(common: Common, ref: str, *, pinned: bool) -> None:
    with common.opened() as session:
        meant = session.engine.resolve(ref)
        act = session.engine.pin if pinned else session.engine.unpin
        act(meant.checkpoint_id, thread_id=meant.thread_id, namespace=meant.namespace)
    if common.output.is_json:
        fields = {"thread_id": meant.thread_id, "id": meant.checkpoint_id, "step": meant.step, "pinned": pinned}
        common.output.document(fields)
        return
    word = "pinned" if pinned else "not pinned any more"
    common.output.line(f"{text.clean(meant.thread_id)}#{meant.step} is {word}")
    common.output.hint(f"everstep undo {text.clean(meant.thread_id)}")


COMMANDS: dict[str, click.Command] = {"branch": branch, "tag": tag, "pin": pin, "unpin": unpin}
