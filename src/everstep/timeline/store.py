"""What the engine does with the history of threads, on a store. Each method is one commit, or a short loop around one.

Nothing here copies state: a rewind moves a head and hides stretches, a branch names its origin's root, a merge writes
what the walk through three trees found new. A commit names the head it saw; if another writer was first, it is done
again on what is there then. `timeline/foreign.py` is the same for a backend that has only the seven published methods.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from everstep.backends import StoreBackend
from everstep.config import SnapshotConfig
from everstep.errors import CheckpointCorrupted
from everstep.history import checkpoint_tree, operation_log
from everstep.history.adapter import WayBack, adapter_of
from everstep.history.ancestry import ancestry_of
from everstep.history.diff import compare
from everstep.history.merge_base import root_to_show
from everstep.reports import (
    CheckpointTree,
    DeletedThreads,
    Diff,
    Difference,
    GCReport,
    Operation,
    Reference,
    Sizes,
    ThreadPage,
    TimeTravelResult,
)
from everstep.repository.fences import Fence
from everstep.repository.ledger import Save
from everstep.repository.repository import Repository, copied
from everstep.repository.step import Step
from everstep.retention.keeper import Keeper
from everstep.runtime import calls
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import AnyHead, Change, Key, Pin, Query, SharedState, Store, Stored
from everstep.timeline.branch import branch
from everstep.timeline.merge import MergePlan, merge, plan_merge
from everstep.timeline.protocol import Resolve
from everstep.timeline.references import resolve
from everstep.timeline.rewind import left_behind, plan_rewind, rewind, shared_states_after
from everstep.timeline.tags import set_tag
from everstep.timeline.undo import operations, redo, undo
from everstep.timeline.workspace import Workspace
from everstep.types import TASK_NAMESPACE, Checkpoint, CheckpointMetadata


class StoreTimeline:
    """The history of threads on one face of a store."""

    def __init__(self, backend: StoreBackend, config: SnapshotConfig, keeper: Keeper | None = None) -> None:
        self._backend = backend
        self._work = Workspace(backend.repository, keeper or Keeper(config), config)

    @property
    def blocking(self) -> StoreTimeline:
        """The same, never suspending."""
        return StoreTimeline(self._backend.blocking, self._work.config, self._work.keeper)

    @property
    def store(self) -> Store:
        """The store, on this face."""
        return self._work.store

    def forget(self, thread_id: str) -> None:
        """Forget what is remembered of a thread that was changed behind our back."""
        self._work.forget(thread_id)

    @property
    def repository(self) -> Repository:
        """How checkpoints get in and out of the store."""
        return self._work.repository

    def behind(self, fence: Fence) -> StoreTimeline:
        """Return the same as one whose saves a fence may stop."""
        return StoreTimeline(self._backend.behind(fence), self._work.config, self._work.keeper)

    @property
    def run(self) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        """How a blocking caller gets to the end of a coroutine of the blocking face."""
        return run_to_end

    # -- finding

    async def list_threads(self, limit: int, **asked: Any) -> ThreadPage:
        """Return threads, the one that was active last first."""
        return await self._backend.list_threads(limit, **asked)

    async def delete_threads(self, **asked: Any) -> DeletedThreads:
        """Delete threads by what `list_threads` finds them by."""
        deleted = await self._backend.delete_threads(**asked)
        if not deleted.dry_run:
            for thread_id in deleted.thread_ids:
                self._work.keeper.forget(thread_id)
        return deleted

    async def sizes(self, thread_id: str | None) -> Sizes:
        """Return what a thread takes, or all of them."""
        return await self._backend.sizes(thread_id)

    # -- saving

    async def save(
        self, step: Step, values: tuple[Any, ...], parent_id: str | None, expect: str | AnyHead | None
    ) -> str:
        """Save whole values as the next step."""
        parent = None
        shared_states = dict[str, SharedState]()
        if parent_id is not None:
            # Copied before the wait: what the caller changes later belongs to a later step.
            names = ("messages", "state", "tools_result")
            values = tuple(map(copied, values, names))
            parent = await self._work.require(Key(step.thread_id, step.namespace, parent_id))
            thread = await self._work.store.thread(step.thread_id)
            if thread is not None:
                shared_states = shared_states_after(thread, parent)
        # What retention lets go is part of the commit, and is given back if that fails.
        with self._work.keeper.letting_go((step.thread_id, step.namespace)) as prune:
            stored = await self._work.repository.save(
                step.thread_id,
                values,
                lambda head: step.record(parent or head),
                namespace=step.namespace,
                expect=expect,
                split=self._work.config.delta_snapshots,
                size_bytes_max=self._work.config.size_bytes_max,
                prune=prune,
                shared_states=shared_states,
                make_new_id=step.make_new_id,
            )
        return await self._noted(stored)

    async def save_onto(self, step: Step, save: Save) -> str:
        """Save what a live thread holds as the next step; see `ledger`."""
        with self._work.keeper.letting_go((step.thread_id, step.namespace)) as prune:
            stored = await self._work.repository.save_onto(
                step.thread_id,
                save,
                step,
                split=self._work.config.delta_snapshots,
                size_bytes_max=self._work.config.size_bytes_max,
                prune=prune,
            )
        return await self._noted(stored)

    async def append(
        self,
        step: Step,
        messages: list[Any],
        state: dict[str, Any] | None,
        tools_result: dict[str, Any] | None,
        expect: str | AnyHead | None,
        *,
        replace: bool = False,
    ) -> str:
        """Save the head's values with something added as the next step; see `Repository.append`."""
        with self._work.keeper.letting_go((step.thread_id, step.namespace)) as prune:
            stored = await self._work.repository.append(
                step.thread_id,
                messages,
                state,
                tools_result,
                step.record,
                namespace=step.namespace,
                expect=expect,
                split=self._work.config.delta_snapshots,
                size_bytes_max=self._work.config.size_bytes_max,
                replace=replace,
                prune=prune,
                make_new_id=step.make_new_id,
            )
        return await self._noted(stored)

    async def _noted(self, stored: Stored) -> str:
        """Let retention know of a checkpoint that was saved, and return its id."""
        await self._work.keeper.upkeep(self._work.store, stored)
        return stored.record.key.checkpoint_id

    # -- reading

    async def get(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Checkpoint | None:
        """Return a checkpoint, hidden or not."""
        return await self._backend.get(checkpoint_id, thread_id=thread_id, namespace=namespace)

    async def get_latest(self, thread_id: str, namespace: str) -> Checkpoint | None:
        """Return the head."""
        return await self._backend.get_latest(thread_id, namespace=namespace)

    async def list_points(self, thread_id: str, limit: int, offset: int, namespace: str) -> list[CheckpointMetadata]:
        """Return metadata, newest first."""
        return await self._backend.list_checkpoints(thread_id, limit, offset, namespace=namespace)

    async def tree(self, thread_id: str, limit: int, *, branches: bool) -> CheckpointTree:
        """Return the newest checkpoints of a thread, and of its branches, as nodes and edges."""
        newest = await self._work.store.newest(thread_id, limit, branches=branches, without=TASK_NAMESPACE)
        if newest is None:
            return checkpoint_tree.tree(thread_id, [], (), {}, 0)
        segments: checkpoint_tree.Segments = {}
        if newest.listed:
            ancestry = ancestry_of(self._work.store, newest.listed[0].family)
            segments = await ancestry.walk(checkpoint_tree.tree_segments(newest.listed))
        return checkpoint_tree.tree(thread_id, newest.listed, newest.heads, segments, newest.total)

    async def diff(self, a: Key, b: Key) -> Diff:
        """Return what changed from `a` to `b`."""
        before = await self._work.require(a)
        after = await self._work.require(b)
        try:
            families = [before.family, after.family]
            adapter = adapter_of(before.record.kind) or adapter_of(after.record.kind)
            if adapter is None:
                need = compare(before.record.root, after.record.root)
                changes = await self._work.repository.walk(need, families)
            else:
                need = compare(root_to_show(before.record), root_to_show(after.record), adapter.codec)
                changes = await self._work.repository.walk(need, families)
                changes = await adapter.shown(self._work.repository, changes, before, after)
        except CheckpointCorrupted as exc:
            # An object may be missing because the checkpoint was deleted while it was read, which is no
            # damage.
            await self._work.require(a)
            await self._work.require(b)
            raise exc.located(*b[::2]) from exc
        changes += next_node_change(before.record.next_node, after.record.next_node)
        return Diff(a.checkpoint_id, b.checkpoint_id, changes)

    async def locate(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Key:
        """Return the full name of a checkpoint that must be there."""
        key = await self._backend.require(checkpoint_id, thread_id, namespace)
        calls.about(key.thread_id)
        return key

    async def resolve(self, ref: str, thread_id: str | None) -> Reference:
        """Return the checkpoint that a reference means."""
        found = await resolve(self._work.store, ref, thread_id)
        calls.about(found.thread_id)
        return found

    async def at_step(self, thread_id: str, step: int, namespace: str) -> Key | None:
        """Return the newest checkpoint whose step is not greater."""
        query = Query(thread_id=thread_id, namespace=namespace, step_max=step, limit=1)
        listed = await self._work.store.list_checkpoints(query)
        if not listed:
            return None
        return listed[0].record.key

    # -- going back and forth, branching, merging: each has a file of its own

    async def rewind(self, key: Key, later: str) -> TimeTravelResult:
        """Make a checkpoint the head; what came later on its line is hidden, deleted or kept."""
        return await rewind(self._work, key, later)

    async def plan_rewind(self, key: Key) -> WayBack:
        """Return what a rewind would do."""
        return await plan_rewind(self._work, key)

    async def left_behind(self, key: Key, plan: WayBack, limit: int) -> list[Stored]:
        """Return the newest of what a rewind would leave behind."""
        return await left_behind(self._work, key, plan, limit)

    async def undo(self, thread_id: str) -> Operation:
        """Take the newest operation back."""
        return await undo(self._work, thread_id)

    async def redo(self, thread_id: str) -> Operation:
        """Do again what was undone last."""
        return await redo(self._work, thread_id)

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        """Return the log, newest first."""
        return await operations(self._work, thread_id, limit)

    async def branch(self, source: Key, name: str, effects: str = "share") -> str:
        """Start a thread at a checkpoint and return the new thread's id."""
        return await branch(self._work, source, name, effects)

    async def merge(self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None) -> str:
        """Merge the head of one thread into another and return the merge's id."""
        return await merge(self._work, branch, into, resolve, namespace, graph)

    async def plan_merge(
        self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None
    ) -> MergePlan:
        """Return what a merge would do; nothing is written."""
        return await plan_merge(self._work, branch, into, resolve, namespace, graph)

    # -- retention

    async def pin(self, key: Key, *, pinned: bool) -> None:
        """Set or lift the mark that keeps a checkpoint from retention."""
        stored = await self._work.require(key)
        if stored.pinned == pinned:
            return
        details = {"checkpoint_id": key.checkpoint_id, "namespace": key.namespace}
        lift = operation_log.Undo(key.thread_id, {}, [], {}, [Pin(key, not pinned)])
        top = await self._work.top_operation(key.thread_id)
        entry = operation_log.entry("pin" if pinned else "unpin", details, lift, top, stored.seq)
        change = Change(thread_id=key.thread_id, namespace=key.namespace, pins=[Pin(key, pinned)], log=entry)
        await self._work.store.commit(change)
        self._work.forget(key.thread_id)

    async def tag(self, key: Key, tag: str, *, is_given: bool) -> None:
        """Give a checkpoint a tag, or take one away."""
        await set_tag(self._work, key, tag, is_given=is_given)

    async def collect(self, thread_id: str | None, *, dry_run: bool) -> GCReport:
        """Apply the retention policy and give the space back."""
        return await self._work.keeper.collect(self._work.store, thread_id, dry_run=dry_run)

    async def close(self) -> None:
        """Close the store."""
        await self._backend.close()


def next_node_change(before: str, after: str) -> list[Difference]:
    """Return the change of `next_node`, if it is one."""
    if before == after:
        return []
    return [Difference("next_node", "changed", before, after)]
