"""Merging: the head of one thread into another, against what they have in common, as one new checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, HeadMoved, InvalidInput, MergeConflict
from everstep.history import checkpoint_tree, operation_log
from everstep.history.adapter import Adapter, adapter_of, is_own
from everstep.history.ancestry import Ancestry, ancestry_of
from everstep.history.merge_base import MergeBase, MergeBaseFinder, root_of_nodes, shown_root
from everstep.history.three_way import Merged
from everstep.history.three_way import merge as merge_roots
from everstep.reports import Conflict
from everstep.repository.new_names import under_new_name
from everstep.repository.repository import packed_whole, verified
from everstep.repository.step import checkpoint_id, new_record, run_fields
from everstep.runtime import calls
from everstep.runtime.deadlines import held_by_caller
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Draft,
    Key,
    Object,
    Place,
    Record,
    Root,
    SharedState,
    Stored,
    Thread,
)
from everstep.timeline.protocol import Resolve
from everstep.timeline.workspace import Workspace
from everstep.types import RUN_KIND
from everstep.values import compress, costs, tree
from everstep.values.tree import repetition
from everstep.values.walk import read_values

# How many threads are asked for a common state that is not stored any more: a family may have very many.
_ASKED_MAX = 1000

_EMPTY = root_of_nodes([tree.EMPTY_LIST, tree.EMPTY_MAP, tree.EMPTY_MAP])


class _Sides(NamedTuple):
    """The two heads of a merge, and what is known of their history."""

    ours: Stored
    theirs: Stored
    thread: Thread
    """The one that is merged into."""
    ancestry: Ancestry
    bases: Sequence[Place]
    """The last checkpoints that both sides have in common."""


class MergePlan(NamedTuple):
    """What a merge would do."""

    ours: Stored
    bases: Sequence[Place]
    is_done: bool
    """There is nothing to merge."""
    conflicts: Sequence[Conflict] = ()
    root: Root | None = None
    """The values that it would make; None if there are conflicts."""
    objects: Mapping[bytes, tree.Content] = MappingProxyType({})
    """Those of its objects that are not stored."""


async def plan_merge(
    work: Workspace, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None
) -> MergePlan:
    """Return what a merge of the heads as they are now would do; nothing is written."""
    if branch == into:
        raise InvalidInput(f"thread {into!r} cannot be merged into itself")
    sides = await _sides(work, branch, into, namespace)
    if sides.theirs.place in sides.bases:
        return MergePlan(sides.ours, sides.bases, True, (), sides.ours.record.root)
    adapter = adapter_of(sides.ours.record.kind)
    try:
        if adapter is None:
            draft = await _merged(work, sides, resolve)
        else:
            draft = await _merged_namespace(adapter, work, sides, resolve, graph)
    except MergeConflict as exc:
        return MergePlan(sides.ours, sides.bases, False, exc.conflicts)
    return MergePlan(sides.ours, sides.bases, False, (), draft.record.root, verified(draft.objects))


async def merge(work: Workspace, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None) -> str:
    """Merge the head of one thread into another and return the merge's id."""
    if branch == into:
        raise InvalidInput(f"thread {into!r} cannot be merged into itself")
    decide = _untimed(resolve) if callable(resolve) else resolve
    stored = await work.until_done(
        into,
        lambda inner: under_new_name(lambda: _merge(inner, branch, into, decide, namespace, graph)),
        "a merge",
        calls_back=callable(resolve) or graph is not None,
    )
    if isinstance(stored, str):
        return stored  # everything is merged already
    work.forget(into)
    # A thread of an adapter's is kept as its own policy says.
    if is_own(stored.record.kind):
        await work.keeper.upkeep(work.store, stored)
    return stored.record.key.checkpoint_id


def _untimed(resolve: Callable[[Conflict], Any]) -> Callable[[Conflict], Any]:
    """Return a function of the caller's as one whose time does not count: it may ask a model, or a person."""

    def decide(conflict: Conflict) -> Any:
        with held_by_caller():
            return resolve(conflict)

    return decide


async def _merge(work: Workspace, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any) -> Stored | str:
    """Return the checkpoint of the merge, or the id of the head if there is nothing to merge."""
    sides = await _sides(work, branch, into, namespace)
    ours = sides.ours
    theirs = sides.theirs
    if theirs.place in sides.bases:
        return ours.record.key.checkpoint_id
    adapter = adapter_of(ours.record.kind)
    if graph is not None and adapter is None:
        raise InvalidInput(f"graph= is for threads of a LangGraph saver; thread {into!r} is the engine's own")
    try:
        if adapter is None:
            drafts = [await _merged(work, sides, resolve)]
        else:
            drafts = await _merged_by(adapter, work, sides, resolve, graph)
    except CheckpointCorrupted:
        await _check_heads(work, ours, theirs)
        raise
    return await _commit(work, sides, drafts)


async def _sides(work: Workspace, branch: str, into: str, namespace: str) -> _Sides:
    ours = await work.require_head(into, namespace)
    theirs = await work.require_head(branch, namespace)
    if ours.family != theirs.family:
        raise InvalidInput(
            f"threads {branch!r} and {into!r} are unrelated: only threads that branched from one another, or from "
            "the same one, can be merged"
        )
    # Read after the heads: it is what the commit expects, and a head that moved in between makes the commit
    # fail.
    thread = await work.store.thread(into)
    if thread is None:
        raise HeadMoved(into, ours.record.key.checkpoint_id, None)
    ancestry = ancestry_of(work.store, ours.family)
    bases = await ancestry.common([ours.place], [theirs.place])
    if not bases:
        raise InvalidInput(f"threads {branch!r} and {into!r} have no checkpoint in common")
    return _Sides(ours, theirs, thread, ancestry, bases)


# -- threads of the engine's own


async def _merged(work: Workspace, sides: _Sides, resolve: Resolve) -> Draft:
    ours = sides.ours
    theirs = sides.theirs
    base = await _bases(work, sides, None).merged(sides.bases)
    walk = merge_roots(
        base.root,
        ours.record.root,
        theirs.record.root,
        resolve=resolve,
        uncertain=base.uncertain,
        mappings_only=True,
    )
    merged = await work.repository.walk(walk, [ours.family], base.objects)
    if merged.conflicts:
        raise MergeConflict(merged.conflicts)
    # Without differences a checkpoint is one object; a merge must not bring in another form.
    if not work.config.delta_snapshots:
        merged = await _unsplit(work, merged, ours.family)
    root = root_of_nodes(merged.nodes)
    repeats = _merged_repeats(ours.record, theirs.record, sum(root.sizes))
    # The bound costs nothing. Only where it is unknown, or too high to be let through, all values are looked at.
    if repeats is None or repeats > tree.writable_repeats(repetition.REPEATS_MAX):
        repeats = await work.repository.repeats_of(merged.nodes, merged.objects, [ours.family])
    record = _merge_record(sides).with_root(root)._replace(repeats=repeats)
    objects = [Object(key, below, compress.squeeze(body)) for key, (below, body) in merged.objects.items()]
    bases = (BaseRef(ours.record.key, ours.digest), BaseRef(theirs.record.key, theirs.digest))
    return Draft(record, objects, bases)


async def _unsplit(work: Workspace, merged: Merged, family: str) -> Merged:
    """Return merged values as one object."""
    need = read_values(root_of_nodes(merged.nodes))
    values = await work.repository.walk(need, [family], merged.objects)
    writer = tree.Writer()
    return Merged([writer.whole(packed_whole(values))], writer.objects, [])


def _merged_repeats(ours: Record, theirs: Record, size: int) -> int | None:
    """Return what repetition in a merge costs at most, without a look at all of it; None: nobody knows.

    What theirs has more than the common state may repeat what ours has. It is in the figure of theirs if it was
    appended there; what was saved as a whole shows in the size, each byte of which may be the costliest one.
    """
    if ours.repeats is None or theirs.repeats is None:
        return None
    growth = max(0, size - sum(ours.sizes))
    return ours.repeats + theirs.repeats + costs.BYTE_MAX * growth


def _merge_record(sides: _Sides) -> Record:
    ours = sides.ours
    theirs = sides.theirs
    into, namespace, _ = ours.record.key
    step = ours.record.step + 1
    goes_on = ours
    # Nothing has happened on our side since, so only theirs knows what comes next.
    if checkpoint_tree.is_unmoved(ours, sides.bases):
        goes_on = theirs
    return new_record(
        Key(into, namespace, checkpoint_id(into, step)),
        step,
        (ours.record.key, theirs.record.key),
        tags=("merge",),
        summary=f"Merge {theirs.record.key.thread_id} into {into}",
        next_node=goes_on.record.next_node,
        **_run_fields(ours.record, theirs.record),
    )


def _run_fields(ours: Record, theirs: Record) -> dict[str, Any]:
    """Return what the merge says of a durable run: it may have got what it waited for, so somebody is to look."""
    fields = run_fields(ours)
    if ours.kind == theirs.kind == RUN_KIND and fields["metadata"].get("run_status") != "done":
        fields["metadata"]["run_status"] = "ready"
    return fields


# -- threads of an adapter


async def _merged_by(adapter: Adapter, work: Workspace, sides: _Sides, resolve: Resolve, graph: Any) -> list[Draft]:
    """Return the checkpoints of a merge: the first is for the namespace, the others are what subgraphs remember."""
    drafts = [await _merged_namespace(adapter, work, sides, resolve, graph)]
    other = await work.store.thread(sides.theirs.record.key.thread_id)
    # Only with the main namespace: a merge of one subgraph alone is about nothing else.
    if other is not None and not sides.ours.record.key.namespace:
        for name in adapter.lasting(other):
            draft = await _merged_subgraph(adapter, work, sides, name, resolve, graph)
            if draft is not None:
                drafts.append(draft)
    return await adapter.named(work.store, drafts)


async def _merged_namespace(adapter: Adapter, work: Workspace, sides: _Sides, resolve: Resolve, graph: Any) -> Draft:
    if sides.bases:
        base = await _bases(work, sides, adapter).merged(sides.bases)
    else:  # a subgraph may have begun on each side by itself: then there is nothing in common
        base = MergeBase(_EMPTY)
    return await adapter.merged(
        work.repository,
        (sides.ours, sides.theirs),
        base,
        sides.bases,
        sides.ancestry,
        resolve=resolve,
        graph=graph,
    )


async def _merged_subgraph(
    adapter: Adapter, work: Workspace, sides: _Sides, name: str, resolve: Resolve, graph: Any
) -> Draft | None:
    """Return what a subgraph remembers after the merge; None: theirs has nothing new."""
    thread = sides.thread
    theirs = await work.require_head(sides.theirs.record.key.thread_id, name)
    # The subgraph is new to this thread, so there is nothing to merge it with.
    if name not in thread.heads:
        return adapter.taken_over(theirs, thread.thread_id)
    ours = await work.require_head(thread.thread_id, name)
    bases = await sides.ancestry.common([ours.place], [theirs.place])
    if theirs.place in bases:
        return None
    within = _Sides(ours, theirs, thread, sides.ancestry, bases)
    # A mapping names paths of the graph itself, and the same path means something else inside a subgraph.
    if isinstance(resolve, Mapping):
        resolve = None
    try:
        return await _merged_namespace(adapter, work, within, resolve, adapter.subgraph(graph, name))
    except MergeConflict as exc:
        conflicts = [dataclasses.replace(each, path=f"{name}: {each.path}") for each in exc.conflicts]
        raise MergeConflict(conflicts) from None


# -- what both have in common


def _bases(work: Workspace, sides: _Sides, adapter: Adapter | None) -> MergeBaseFinder[Place]:
    thread = sides.thread
    finder = partial(
        MergeBaseFinder[Place],
        lambda place: _base_root(work, place, thread),
        lambda places, other: sides.ancestry.common([other], places),
        lambda need, objects: work.repository.walk(need, [thread.family], objects),
    )
    return finder(shown_root, adapter.merge_codec) if adapter is not None else finder()


async def _base_root(work: Workspace, place: Place, thread: Thread) -> Root:
    """Return the values of an ancestor: from the checkpoint, or as kept for the merge if it is gone."""
    loaded = await work.store.read(*place.key)
    # The same name may have been written again after a deletion; the number tells them apart.
    if loaded is not None and loaded.stored.seq == place.seq:
        return loaded.stored.record.root
    # Any thread that had this state in common with another one may have kept it, so all that are related are asked.
    names = [thread.thread_id, place.key.thread_id, *thread.shared_states]
    asked: set[str] = set()
    while names and len(asked) < _ASKED_MAX:
        name = names.pop(0)
        if name in asked:
            continue
        asked.add(name)
        other = await work.store.thread(name)
        if other is None:
            continue
        for common in chain.from_iterable(other.shared_states.values()):
            if common.place == place:
                return common.root
        names += other.shared_states
    raise InvalidInput(
        f"the last common ancestor of these threads, {place.key.checkpoint_id!r} of thread "
        f"{place.key.thread_id!r}, was deleted; there is nothing to merge against"
    )


# -- the commit


async def _commit(work: Workspace, sides: _Sides, drafts: Sequence[Draft]) -> Stored:
    ours = sides.ours
    theirs = sides.theirs
    thread = sides.thread
    into, namespace, head = ours.record.key
    record = drafts[0].record
    # The head may be older than the newest checkpoint, after a rewind; what undo hides begins after both.
    newest = max(thread.newest[namespace], ours.seq)
    undo = operation_log.Undo(into, {namespace: head}, [], {namespace: newest})
    # Subgraphs may be merged with it, and undo takes all of them back.
    if not is_own(record.kind):
        undo = undo._replace(since=max(thread.newest.values()))
    details = {"from": theirs.record.key.thread_id, "checkpoint_id": record.key.checkpoint_id}
    top = await work.top_operation(into)
    stored = await work.store.commit(
        Change(
            thread_id=into,
            namespace=namespace,
            expect=head,
            build=lambda _: drafts[0],
            fresh=True,
            other_namespaces=drafts[1:],
            shared_states={theirs.record.key.thread_id: SharedState(theirs.place, theirs.record.root)},
            log=operation_log.entry("merge", details, undo, top, newest),
        )
    )
    if stored is None:
        raise RuntimeError("the store returned no checkpoint for a change that makes one")
    calls.added(stored.added_bytes, len(drafts[0].objects))
    return stored


async def _check_heads(work: Workspace, ours: Stored, theirs: Stored) -> None:
    """Raise HeadMoved if one of the heads is not there any more as it was."""
    for stored in (ours, theirs):
        thread_id, namespace, head = stored.record.key
        loaded = await work.store.read(thread_id, namespace)
        if loaded is None or loaded.stored.digest != stored.digest:
            raise HeadMoved(thread_id, head, None)
