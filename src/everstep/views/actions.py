"""What people do with checkpoints besides looking: told before it is done, and done once, whoever asks for it.

Rewinding itself, undo, redo and pins are methods of the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everstep.backends import StoreBackend
from everstep.errors import InvalidInput, UnsupportedByBackend
from everstep.history.adapter import is_own
from everstep.reports import Conflict
from everstep.repository.step import check_messages
from everstep.runtime import checks
from everstep.stores.protocol import Key, Query, Stored
from everstep.timeline.merge import MergePlan
from everstep.timeline.store import StoreTimeline
from everstep.types import MISSING
from everstep.values import codec
from everstep.views import branches
from everstep.views.changes import Room, message_entries, ref_of, state_entry
from everstep.views.differences import differences_of_roots
from everstep.views.errors import shown_or_missing
from everstep.views.json_values import Opaque
from everstep.views.patches import apply_patch
from everstep.views.paths import parsed, pointer
from everstep.views.reading import (
    Ref,
    Values,
    repository_of,
    require_thread,
    root_values,
    stored_of,
    values_of,
)
from everstep.views.texts import branch_of, one_line

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

# Enough to recognize what would be hidden; the number of all of them is told beside it.
_LISTED_MAX = 20
_VALUE_BYTES_MAX = 20_000


def _timeline(engine: CheckpointEngine) -> StoreTimeline:
    backend = engine.checkpointer
    if not isinstance(backend, StoreBackend):
        raise UnsupportedByBackend(f"{type(backend).__name__} cannot tell what an operation would do")
    return StoreTimeline(backend, engine.config)


# -- rewind


async def plan_rewind(engine: CheckpointEngine, ref: Ref) -> dict[str, Any]:
    """Return what a rewind to a checkpoint would do: how many steps it hides, and which; nothing is deleted."""
    stored = await stored_of(engine, ref)
    key = stored.record.key
    plan = await _timeline(engine).plan_rewind(key)
    steps = "1 later step is hidden" if plan.depth == 1 else f"{plan.depth:,} later steps are hidden"
    text = f"{steps}, nothing is deleted." if plan.depth else "Nothing changes: this is the head already."
    head = await repository_of(engine).store.read(key.thread_id, key.namespace)
    is_head = head is not None and head.stored.record.key == key
    if not plan.depth and not is_head:
        text = "The head moves there; nothing is hidden, nothing is deleted."
    return {
        **ref_of(stored),
        "hidden": plan.depth,
        "deleted": 0,
        "total": plan.before,
        "head": ref_of(head.stored) if head is not None else None,
        "which": [ref_of(each) for each in await _timeline(engine).left_behind(key, plan, _LISTED_MAX)],
        "text": text,
    }


# -- fork


async def fork(
    engine: CheckpointEngine,
    ref: Ref,
    name: str,
    *,
    set: Mapping[str, Any] | None = None,  # noqa: A002  # what it is called on the command line
    patch: Sequence[Mapping[str, Any]] | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Start a branch at a checkpoint and return its thread and head; with edits, one more step holds the edited values.

    `set` is values by pointer (`/plan/2`; MISSING removes), `patch` a JSON Patch of the whole document, `messages` the
    conversation instead of the present one. They are checked before anything is written. A name that another branch of
    the family has is refused.
    """
    stored = await stored_of(engine, ref)
    key = stored.record.key
    await branches.require_free_name(engine, key.thread_id, name)
    edited: Values | None = None
    if set or patch or messages is not None:
        # Before the branch is made, so that edits that cannot be stored leave nothing behind.
        edited = await _edited(engine, stored, dict(set or {}), patch or (), messages)
    made = await engine.branch(key.checkpoint_id, name, thread_id=key.thread_id, namespace=key.namespace)
    if edited is not None:
        try:
            await _save(engine, made, key.namespace, edited, _what(set, patch, messages))
        except BaseException:
            # Half a fork would be one that nobody asked for.
            await engine.checkpointer.delete_thread(made)
            raise
    head = await repository_of(engine).store.read(made, key.namespace)
    if head is None:
        raise InvalidInput(f"thread {made!r} was deleted meanwhile")
    return ref_of(head.stored)


async def rename(engine: CheckpointEngine, thread_id: str, name: str) -> None:
    """Call a branch by another name, or (empty) by the one that it was made with; one that is taken is refused."""
    await branches.require_free_name(engine, thread_id, name or branch_of(thread_id), but=thread_id)
    await engine.rename_branch(thread_id, name)


async def _edited(
    engine: CheckpointEngine,
    stored: Stored,
    settings: Mapping[str, Any],
    patch: Sequence[Mapping[str, Any]],
    messages: Sequence[Mapping[str, Any]] | None,
) -> Values:
    if not is_own(stored.record.kind):
        raise InvalidInput(
            f"thread {stored.record.key.thread_id!r} was written by LangGraph, whose graph alone knows its channels: "
            "fork it without edits, and change the branch with graph.update_state(config, values)"
        )
    values = await values_of(repository_of(engine), stored)
    document: Any = {**values._asdict()}
    if messages is not None:
        document["messages"] = [dict(message) for message in messages]
    _refuse_unknown(document)
    document = copy.deepcopy(document)
    for path, value in settings.items():
        _set(document, parsed(path), value, path)
    document = apply_patch(document, [dict(each) for each in patch]) if patch else document
    return _checked(document)


def _refuse_unknown(value: Any) -> None:
    """Refuse to write objects again that this process cannot make: they would become something else."""
    pending = [value]
    while pending:
        found = pending.pop()
        if type(found) is Opaque:
            raise InvalidInput(
                f"the state holds an object of the class {found.name!r}, which is not known here; edit it in a process "
                "that registers that class, or fork without edits"
            )
        if type(found) is dict:
            pending.extend(found.values())
        elif type(found) in (list, tuple):
            pending.extend(found)


def _set(document: Any, parts: Sequence[str], value: Any, path: str) -> None:
    if len(parts) < 1 or (len(parts) == 1 and value is MISSING):
        raise InvalidInput(f"{checks.shown(path)} names the whole checkpoint; set a part of it")
    holder = _holder(document, parts)
    operation = {"op": "add", "path": pointer(parts), "value": value}
    if value is MISSING:
        operation = {"op": "remove", "path": pointer(parts)}
    elif _is_index_of(holder, parts[-1]):
        operation["op"] = "replace"
    # By the same code as a patch, so that both refuse the same things.
    made = apply_patch(document, [operation])
    document.clear()
    document.update(made)


def _holder(document: Any, parts: Sequence[str]) -> Any:
    """Return what holds the last part of a path. What leads there is made on the way."""
    holder = document
    for part in parts[:-1]:
        if _is_index_of(holder, part):
            holder = holder[int(part)]
        elif type(holder) is dict:
            holder = holder.setdefault(part, {})
    return holder


def _is_index_of(holder: Any, part: str) -> bool:
    return type(holder) is list and part.isdigit() and int(part) < len(holder)


def _checked(document: Any) -> Values:
    if type(document) is not dict or document.keys() - set(Values._fields):
        raise InvalidInput("what is edited is a document with messages, state, tools_result and next_node")
    for name, kind in (("messages", list), ("state", dict), ("tools_result", dict), ("next_node", str)):
        checks.kind(document.get(name), kind, name)
    check_messages(document["messages"])
    # Packed once for nothing: what cannot be stored is told now, under the name of the edit.
    codec.pack([document["messages"], document["state"], document["tools_result"]], "edit")
    return Values(**document)


def _what(settings: Any, patch: Any, messages: Any) -> str:
    names = [path.strip("/") for path in settings or ()]
    names += [str(each.get("path", "")).strip("/").removesuffix("/-") for each in patch or ()]
    names += ["messages"] if messages is not None else []
    return one_line(f"Edited {', '.join(dict.fromkeys(names))}")


async def _save(engine: CheckpointEngine, thread_id: str, namespace: str, values: Values, summary: str) -> None:
    # An engine may be configured to save for some reasons only; the edit is saved all the same, under one of
    # them.
    triggers = {str(getattr(trigger, "value", trigger)) for trigger in engine.config.triggers}
    trigger = "manual" if "manual" in triggers else min(triggers, default="manual")
    made = await engine.snapshot(
        thread_id,
        values.messages,
        values.state,
        values.tools_result,
        trigger,
        next_node=values.next_node,
        tags=["edit"],
        summary=summary,
        namespace=namespace,
    )
    if not made:
        raise InvalidInput("the engine's configuration takes no snapshots at all: its triggers are empty")


# -- merge


async def plan_merge(
    engine: CheckpointEngine, source: str, into: str, resolve: Any = None, *, graph: Any = None
) -> dict[str, Any]:
    """Return what a merge would do: how much comes over by itself, what is in conflict, and the result so far.

    `resolve` is as in `merge`; where it says nothing, the result shows ours.
    """
    plan = await _plan(engine, source, into, graph)
    decided = _decisions(resolve, plan.conflicts)
    left = [conflict for conflict in plan.conflicts if conflict.path not in decided]
    result = plan if not decided else await _resolved(engine, source, into, decided, graph)
    # What would come over without any conflict being settled: the page tells it apart from what was decided.
    quiet = plan if not plan.conflicts else await _resolved(engine, source, into, {}, graph)
    repository = repository_of(engine)
    room = Room(_VALUE_BYTES_MAX)
    auto = await differences_of_roots(repository, plan.ours, quiet.root, quiet.objects)
    shown = result if result.root is not None else quiet
    found = await differences_of_roots(repository, plan.ours, shown.root, shown.objects)
    before = await root_values(repository, plan.ours, None, {})
    after = await root_values(repository, plan.ours, shown.root, shown.objects)
    return {
        "source": source,
        "into": into,
        "base": [_place_ref(place.key) for place in plan.bases],
        "auto": len(auto),
        "conflicts": [conflict_json(conflict) for conflict in left],
        "resolved": len(plan.conflicts) - len(left),
        "up_to_date": plan.is_done,
        "result": {
            "state": [state_entry(change, room) for change in found if not change.path.startswith("messages")][:250],
            "messages": message_entries(before[0], after[0], room),
        },
        "text": _merge_text(source, into, plan, len(auto), len(left)),
    }


def _merge_text(source: str, into: str, plan: MergePlan, auto: int, left: int) -> str:
    if plan.is_done:
        return f"{branch_of(into)} has all of {branch_of(source)} already."
    merged = "1 change comes over" if auto == 1 else f"{auto:,} changes come over"
    if not left:
        return f"{merged}, nothing is in conflict."
    return f"{merged}, {left:,} {'is' if left == 1 else 'are'} in conflict."


def conflict_json(conflict: Conflict) -> dict[str, Any]:
    """Return a conflict with its three values; `{"$type": "missing"}` where there is none."""
    values = {name: getattr(conflict, name) for name in ("base", "ours", "theirs")}
    shown = {name: shown_or_missing(value, _VALUE_BYTES_MAX) for name, value in values.items()}
    is_lists = all(type(value) is list for value in (conflict.ours, conflict.theirs))
    return {"path": conflict.path, **shown, "both": is_lists}


async def merge(
    engine: CheckpointEngine, source: str, into: str, resolve: Any = None, *, graph: Any = None
) -> dict[str, Any]:
    """Merge a branch into a thread and return the checkpoint that it makes; MergeConflict tells what is left.

    `resolve` is "ours", "theirs", or a mapping of path to a decision: `{"take": "ours" | "theirs" | "base" | "both"}`
    ("both" of two lists), `{"value": ...}` or `{"remove": true}`.
    """
    for name in (source, into):
        await require_thread(engine, name)
    given = resolve
    if isinstance(resolve, Mapping):
        plan = await _plan(engine, source, into, graph)
        given = _decisions(resolve, plan.conflicts)
    made = await engine.merge_branch(source, into, resolve=given, graph=graph)
    return ref_of(await stored_of(engine, f"{into}@{made}"))


async def _plan(engine: CheckpointEngine, source: str, into: str, graph: Any) -> MergePlan:
    branch = checks.thread_id(source)
    target = checks.thread_id(into)
    for name in (branch, target):
        await engine.resolve("@", thread_id=name)  # says what may be meant, if there is none
    return await _timeline(engine).plan_merge(branch, target, None, "", graph)


async def _resolved(
    engine: CheckpointEngine, source: str, into: str, decided: Mapping[str, Any], graph: Any
) -> MergePlan:
    def decide(conflict: Conflict) -> Any:
        return decided.get(conflict.path, conflict.ours)

    return await _timeline(engine).plan_merge(source, into, decide, "", graph)


def _decisions(resolve: Any, conflicts: Sequence[Conflict]) -> dict[str, Any]:
    """Return the values that were decided for, by path."""
    if resolve is None:
        return {}
    if resolve in ("ours", "theirs"):
        return {conflict.path: getattr(conflict, resolve) for conflict in conflicts}
    if not isinstance(resolve, Mapping):
        raise InvalidInput('resolve is "ours", "theirs", or decisions by path')
    known = {conflict.path: conflict for conflict in conflicts}
    decided: dict[str, Any] = {}
    for path, decision in resolve.items():
        if path not in known:
            real = ", ".join(list(known)[:5]) or "none"
            raise InvalidInput(f"{checks.shown(path)} is no conflict; the conflicts are: {real}")
        decided[path] = _decided(known[path], decision)
    return decided


def _decided(conflict: Conflict, decision: Any) -> Any:
    takes: dict[str, Callable[[], Any]] = {
        "ours": lambda: conflict.ours,
        "theirs": lambda: conflict.theirs,
        "base": lambda: conflict.base,
        "both": lambda: _both(conflict),
    }
    match decision:
        case {"take": str() as side} if side in takes:
            return takes[side]()
        case {"value": value}:
            return value
        case {"remove": True}:
            return MISSING
    raise InvalidInput(
        f'a decision is {{"take": "ours"}}, "theirs", "base" or "both", {{"value": ...}} or {{"remove": true}}, '
        f"not {checks.shown(decision)}"
    )


def _both(conflict: Conflict) -> list[Any]:
    """Return two lists as one: ours, and what theirs has besides."""
    if type(conflict.ours) is not list or type(conflict.theirs) is not list:
        raise InvalidInput(f"{conflict.path} is not a list on both sides: both cannot be kept")
    return conflict.ours + [item for item in conflict.theirs if item not in conflict.ours]


def _place_ref(key: Key) -> dict[str, Any]:
    return {"id": key.checkpoint_id, "ref": f"{key.thread_id}@{key.checkpoint_id}", "thread_id": key.thread_id}


# -- delete


async def delete(engine: CheckpointEngine, thread_id: str, *, dry_run: bool = False) -> dict[str, Any]:
    """Delete a thread for good, hidden checkpoints included, or only tell how many it has. Its branches stay."""
    thread_id = checks.thread_id(thread_id)
    store = repository_of(engine).store
    count = await store.count(Query(thread_id=thread_id, namespace=None, hidden="also"))
    if not count:
        # This says what may have been meant.
        await engine.resolve("@", thread_id=thread_id)
    if not dry_run:
        count = await engine.checkpointer.delete_thread(thread_id)
    return {"threads": [thread_id], "checkpoints": count, "dry_run": dry_run}
