"""Branches, tags, notes and pins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from everstep.cli import text
from everstep.cli.asking import ref_argument, thread_argument, yes_options
from everstep.cli.group import command, group
from everstep.cli.session import Common, confirm
from everstep.errors import InvalidInput
from everstep.views import actions, branches, checkpoint, tags, threads

# Only a family that has more checkpoints than this would show fewer branches than it has.
_LOOKED_AT_MAX = 100_000


@group("branch", invoke_without_command=True, verb="list")
@click.pass_context
def branch(ctx: click.Context) -> None:
    """Branches of a thread."""
    if ctx.invoked_subcommand is None:
        _list_branches(ctx.find_object(Common) or Common(), None, archived=False)


@branch.command("list")
@thread_argument(required=False)
@click.option("--archived", is_flag=True, help="Those that were archived too.")
@click.pass_obj
def branch_list(common: Common, thread: str | None, archived: bool) -> None:
    """List the branches of a thread's family: where each began, and where it is. Without a thread it is the one that
    was active last. `everstep branch` and `everstep branch THREAD` do the same.
    """
    _list_branches(common, thread, archived=archived)


def _list_branches(common: Common, named: str | None, *, archived: bool) -> None:
    with common.opened() as session:
        thread = session.thread_meant(named)
        family = session.run(branches.family, thread, archived=archived)
    # The thread that it all began with is no branch.
    found = [one for one in family["branches"] if one["is_branch"]]
    output = common.output
    if output.is_json:
        output.document({"thread_id": thread, "branches": found}, "branches")
        return
    rows = []
    for one in found:
        name = text.clean(one["name"])
        if one["archived"]:
            name += " (archived)"
        rows.append([name, text.clean(one["thread_id"]), str(one["step"]), output.age(one["updated_at"])])
    output.table(("name", "thread", "steps", "active"), rows, wide="thread")
    if not rows:
        output.note("no branches")


@branch.command("rename")
@thread_argument()
@click.argument("name")
@click.pass_obj
def branch_rename(common: Common, thread: str, name: str) -> None:
    """Call a branch NAME, wherever people read one. Its thread keeps its id; "" is the name that it was made with."""
    with common.opened() as session:
        meant = session.engine.resolve(thread).thread_id
        session.run(actions.rename, meant, name)
        told = session.run(threads.one, meant)
    _show_branch(common, told, f"is called {text.clean(told['name'])} now")


@branch.command("archive")
@thread_argument()
@click.pass_obj
def branch_archive(common: Common, thread: str) -> None:
    """Leave a branch out of lists. Nothing else changes: it can be read, merged and gone on with."""
    _archive(common, thread, archived=True)


@branch.command("unarchive")
@thread_argument()
@click.pass_obj
def branch_unarchive(common: Common, thread: str) -> None:
    """Put a branch back into lists."""
    _archive(common, thread, archived=False)


def _archive(common: Common, thread: str, *, archived: bool) -> None:
    with common.opened() as session:
        meant = session.engine.resolve(thread).thread_id
        act = session.engine.archive_branch if archived else session.engine.unarchive_branch
        act(meant)
        told = session.run(threads.one, meant)
    _show_branch(common, told, "is archived" if archived else "is back in the lists")


def _show_branch(common: Common, told: Mapping[str, Any], what: str) -> None:
    if common.output.is_json:
        common.output.document({name: told[name] for name in ("thread_id", "name", "archived")})
        return
    common.output.line(f"{text.clean(told['thread_id'])} {what}")
    common.output.hint(text.as_command("undo", told["thread_id"]))


@branch.command("delete")
@thread_argument()
@yes_options
@click.pass_obj
def branch_delete(common: Common, thread: str, yes: bool, dry_run: bool) -> None:
    """Delete a branch, for good. What was merged from it stays where it was merged."""
    with common.opened() as session:
        thread = session.thread_named(thread)
        count = session.count_checkpoints(thread)
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
@ref_argument(required=False)
@click.argument("tag", required=False)
@click.option("-d", "--delete", is_flag=True, help="Take the tag away.")
@click.pass_obj
def tag(common: Common, ref: str | None, tag: str | None, delete: bool) -> None:
    """With a thread alone: list its tags; without one, those of the thread that was active last. With a checkpoint and
    a TAG: give it that tag, or take it away.

    THREAD@TAG means the newest checkpoint that has one. A tag that is given here is kept in the thread's log, so that
    `everstep undo` takes it back; whether retention keeps a checkpoint is up to `everstep pin`.
    """
    if ref is not None and tag is not None:
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
    if is_given:
        output.hint(text.as_command("show", f"{meant.thread_id}@{tag}"))
    else:
        output.hint(text.as_command("undo", meant.thread_id))


def _list_tags(common: Common, thread: str | None) -> None:
    with common.opened() as session:
        found = session.run(tags.listing, session.thread_meant(thread))
    output = common.output
    if output.is_json:
        output.document(found, "tags")
        return
    rows = [[text.clean(one["tag"]), str(one["checkpoints"]), f"#{one['step']}"] for one in found["tags"]]
    output.table(("tag", "checkpoints", "newest"), rows, wide="tag")
    if not rows:
        output.note("no tags")


@command("note")
@ref_argument()
@click.argument("note", required=False)
@click.option("-d", "--delete", is_flag=True, help="Take the note away.")
@click.pass_obj
def note(common: Common, ref: str, note: str | None, delete: bool) -> None:
    """With a checkpoint alone: print what is noted about it. With a NOTE: note that, in place of what was noted before.

    A note is kept in the thread's log, so that `everstep undo` takes it back. `everstep log` shows how it begins.
    """
    if note is not None and delete:
        raise click.UsageError("give a note, or take it away with -d, not both")
    with common.opened() as session:
        meant = session.engine.resolve(ref)
        if note is not None or delete:
            session.engine.note(meant.checkpoint_id, note or "", thread_id=meant.thread_id, namespace=meant.namespace)
        found = session.run(checkpoint.detail, meant)
    output = common.output
    if output.is_json:
        output.document({name: found[name] for name in ("thread_id", "id", "step", "note")})
    elif note is None and not delete:
        for line in text.clean_lines(found["note"] or "nothing is noted"):
            output.line(line)
    else:
        output.line(f"{text.clean(meant.thread_id)}#{meant.step} has {'a' if found['note'] else 'no'} note")
        output.hint(text.as_command("undo", meant.thread_id))


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
    common.output.hint(text.as_command("undo", meant.thread_id))


COMMANDS: dict[str, click.Command] = {"branch": branch, "tag": tag, "note": note, "pin": pin, "unpin": unpin}
