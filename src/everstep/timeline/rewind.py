"""Going back: a checkpoint becomes the head again, and what came later on its line is hidden, deleted or kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import starmap
from typing import Any, NamedTuple

from everstep.errors import CheckpointNotFound, InvalidInput
from everstep.history import checkpoint_tree, operation_log
from everstep.history.adapter import WayBack, adapter_of, is_own
from everstep.history.ancestry import ancestry_of
from everstep.reports import TimeTravelResult
from everstep.repository.repository import reclaim, to_checkpoint, to_metadata
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Change, Hidden, Key, Loaded, Move, Operation, Query, SharedState, Stored, Thread
from everstep.timeline.workspace import Workspace
from everstep.types import Checkpoint, UnreadCheckpoint

# A checkpoint up to this size is read at once. A larger one may not be looked at by whoever rewinds, and
# costs time.
_EAGER_BYTES = 1 << 18


class _Rewound(NamedTuple):
    """A rewind that is done, but for the deletion of what came later."""

    result: TimeTravelResult
    later: Sequence[Hidden]
    entry: Operation | None = None
    """Of the log; None: nothing had to be changed."""


async def rewind(work: Workspace, key: Key, later: str) -> TimeTravelResult:
    """Make a checkpoint the head; `later` says what becomes of the checkpoints that came later on its line."""
    done = await work.until_done(key.thread_id, lambda inner: _rewind(inner, key, later), "a rewind")
    if done.entry is not None:
        work.forget(key.thread_id)
    # After the rewind and by itself: if it is cut off, the rewind is whole, and what is left is hidden.
    if later == "delete":
        await _delete_later(work, key.thread_id, done.later, done.entry)
    return done.result


async def _rewind(work: Workspace, key: Key, later: str) -> _Rewound:
    loaded, thread = await _target(work, key, later)
    target = loaded.stored
    adapter = adapter_of(target.record.kind)
    back = await _planned(work, thread, loaded)
    result = TimeTravelResult(await _checkpoint(work, target), key.thread_id, back.depth, back.before)

    deleted: Sequence[Hidden] = ()
    if later == "delete" and adapter is None:
        # What is hidden already goes too.
        deleted = checkpoint_tree.all_later(thread, target)
    elif later == "delete":
        deleted = back.later
    hide = list(back.writes)
    if later != "keep":
        hide += back.later
    heads_before = {name: thread.head_id(name) for name in back.heads}
    # It is the head already, so there is nothing to log and nothing to undo.
    if not hide and heads_before == back.heads:
        return _Rewound(result, deleted)

    details = {
        "checkpoint_id": key.checkpoint_id,
        "from": thread.head_id(key.namespace),
        "later": later,
        "left_behind": back.depth,
        "namespace": key.namespace,
    }
    since = None
    # A rewind of an adapter's thread is about all of its namespaces.
    if adapter is not None:
        since = max(thread.newest.values())
    undo = operation_log.Undo(
        key.thread_id,
        heads_before,
        [],
        {name: thread.newest[name] for name in back.heads},
        since=since,
        kept=back.kept,
    )
    top = await work.top_operation(key.thread_id)
    entry = operation_log.entry("rewind", details, undo, top, thread.newest[key.namespace])
    await work.store.commit(
        Change(
            thread_id=key.thread_id,
            namespace=key.namespace,
            # Fails if somebody has written meanwhile: what came later would then not be all that is hidden.
            expect=thread.head_id(key.namespace),
            moves=list(starmap(Move, back.heads.items())),
            hide=hide,
            shared_states=shared_states_after(thread, target),
            log=entry,
        )
    )
    return _Rewound(result, deleted, entry)


async def plan_rewind(work: Workspace, key: Key) -> WayBack:
    """Return what a rewind to a checkpoint would do."""
    loaded, thread = await _target(work, key, "hide")
    return await _planned(work, thread, loaded)


async def left_behind(work: Workspace, key: Key, plan: WayBack, limit: int) -> list[Stored]:
    """Return the newest of the checkpoints that a rewind would leave behind, in its own namespace."""
    found: list[Stored] = []
    for stretch in plan.later:
        if stretch.namespace == key.namespace:
            query = replace(_query_of(key.thread_id, stretch), limit=limit)
            found += await work.store.list_checkpoints(query)
    return sorted(found, key=lambda stored: stored.seq, reverse=True)[:limit]


def _query_of(thread_id: str, stretch: Hidden) -> Query:
    """Return the query for the checkpoints of a stretch."""
    return Query(
        thread_id=thread_id,
        namespace=stretch.namespace,
        after_seq=stretch.after,
        before_seq=stretch.to + 1,
        segment=stretch.segment,
    )


async def _planned(work: Workspace, thread: Thread, loaded: Loaded) -> WayBack:
    adapter = adapter_of(loaded.stored.record.kind)
    if adapter is not None:
        return await adapter.way_back(work.store, thread, loaded)
    return await _way_back(work, thread, loaded)


async def _target(work: Workspace, key: Key, later: str) -> tuple[Loaded, Thread]:
    """Return the checkpoint to go back to, which must be there and visible, and its thread."""
    loaded = await work.store.read(*key, writes=True)
    if loaded is None:
        raise CheckpointNotFound(key.checkpoint_id, key.thread_id)
    # What grows with the number of operations is read only where it is needed.
    is_simple = is_own(loaded.stored.record.kind) and not loaded.writes and later != "delete"
    thread = await work.store.thread(key.thread_id, brief=is_simple)
    if thread is None:
        raise CheckpointNotFound(key.checkpoint_id, key.thread_id)
    if loaded.stored.hidden:
        raise InvalidInput(
            f"checkpoint {key.checkpoint_id!r} was left behind by an earlier operation; undo() brings it back, "
            "branch() starts a thread from it"
        )
    return loaded, thread


async def _way_back(work: Workspace, thread: Thread, target: Loaded) -> WayBack:
    """Return what a rewind of a thread of the engine's own does: it is about one namespace."""
    key = target.stored.record.key
    newest = thread.newest[key.namespace]
    started = await work.store.started(key.thread_id, key.namespace, target.stored.seq)
    ancestry = ancestry_of(work.store, thread.family)
    following = await ancestry.walk(checkpoint_tree.later(target.stored, newest, started, key.thread_id))
    depth = await _count(work, key, following)
    # It is the head, or all that follows is hidden already: there is nothing to hide.
    if not depth:
        following = []
    return WayBack(
        heads={key.namespace: key.checkpoint_id},
        later=following,
        writes=checkpoint_tree.writes(target.writes, key, thread),
        depth=depth,
        before=await work.store.count(Query(thread_id=key.thread_id, namespace=key.namespace)),
    )


async def _count(work: Workspace, key: Key, following: Sequence[Hidden]) -> int:
    """Return how many visible checkpoints came later."""
    total = 0
    for stretch in following:
        query = Query(
            thread_id=key.thread_id, namespace=key.namespace, after_seq=stretch.after, segment=stretch.segment
        )
        total += await work.store.count(query)
    return total


async def _delete_later(work: Workspace, thread_id: str, stretches: Sequence[Hidden], entry: Operation | None) -> None:
    """Delete what came later on a line, hidden ones included, and the entry of the rewind in the log."""
    keys: list[Key] = []
    for stretch in stretches:
        query = replace(_query_of(thread_id, stretch), hidden="also")
        for stored in await work.store.list_checkpoints(query):
            keys.append(stored.record.key)
    entries: list[int] = []
    if entry is not None:
        # A commit does not tell the number of its entry, so it is found by what it holds.
        found = await work.store.operations(thread_id, 100)
        entries = [each.seq for each in found if each.data == entry.data]
    deleted = await work.store.delete(thread_id, keys=keys, operations=entries)
    work.forget(thread_id)
    await reclaim(work.store, deleted, thread_id)


def shared_states_after(thread: Thread, target: Stored) -> dict[str, SharedState]:
    """Return what a thread has in common, after a rewind, with those that went on from what it leaves behind."""
    common = SharedState(target.place, target.record.root)
    found: dict[str, SharedState] = {}
    for other, held in thread.shared_states.items():
        for state in held:
            is_left_behind = state.place.key.thread_id == thread.thread_id and state.place.seq > target.seq
            if is_left_behind:
                found[other] = common
    return found


async def _checkpoint(work: Workspace, stored: Stored) -> Checkpoint:
    """Return a checkpoint; a large one is read when it is looked at."""
    if sum(stored.record.sizes) > _EAGER_BYTES and is_own(stored.record.kind):
        return _unread(work, stored)
    loaded = await work.repository.load(*stored.record.key)
    if loaded is None:
        raise CheckpointNotFound(stored.record.key.checkpoint_id, stored.record.key.thread_id)
    return to_checkpoint(*loaded)


def _unread(work: Workspace, stored: Stored) -> Checkpoint:
    # Over the blocking face: the values are read in an attribute access, which cannot await.
    repository = work.repository.over(work.store.blocking)

    def read() -> Sequence[Any]:
        loaded = run_to_end(repository.load(*stored.record.key))
        if loaded is None:
            raise CheckpointNotFound(stored.record.key.checkpoint_id, stored.record.key.thread_id)
        return loaded[1]

    return UnreadCheckpoint(to_metadata(stored), next_node=stored.record.next_node, read=read)
