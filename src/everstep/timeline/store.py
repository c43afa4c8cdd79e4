"""What the engine does with the history of threads, on a store. Each method is one commit, or a short loop around one.

Nothing here copies state: a rewind moves a head and hides stretches, a branch names its origin's root, a merge writes
what the walk through three trees found new. A commit names the head it saw; if another writer was first, it is done
again on what is there then. `timeline/foreign.py` is the same for a backend that has only the seven published methods.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, cast

from everstep.backends import StoreBackend
from everstep.config import SnapshotConfig
from everstep.errors import CheckpointCorrupted
from everstep.history import checkpoint_tree
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
from everstep.runtime import calls, checks
from everstep.runtime.blocking import run_to_end
from everstep.stores.abilities import FindsOrigins, Origin
from everstep.stores.protocol import AnyHead, Key, Pin, Query, SharedState, Store, Stored
from everstep.timeline import labels
from everstep.timeline.branch import branch
from everstep.timeline.merge import MergePlan, merge, plan_merge
from everstep.timeline.origins import RecentOrigins
from everstep.timeline.protocol import Resolve
from everstep.timeline.references import resolve
from everstep.timeline.rewind import left_behind, plan_rewind, rewind, shared_states_after
from everstep.timeline.tags import set_tag
from everstep.timeline.undo import operations, redo, undo
from everstep.timeline.workspace import Workspace
from everstep.types import TASK_NAMESPACE, Checkpoint, CheckpointMetadata


class StoreTimeline:
    """The history of threads on one face of a store."""

    def __init__(
        self,
        backend: StoreBackend,
        config: SnapshotConfig,
        keeper: Keeper | None = None,
        origins: RecentOrigins | None = None,
    ) -> None:
        self._backend = backend
        self._work = Workspace(backend.repository, keeper or Keeper(config), config)
        self._origins = origins or RecentOrigins()

    @property
    def blocking(self) -> StoreTimeline:
        return StoreTimeline(self._backend.blocking, self._work.config, self._work.keeper, self._origins)

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
        return StoreTimeline(self._backend.behind(fence), self._work.config, self._work.keeper, self._origins)

    @property
    def run(self) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        return run_to_end

    # -- finding

    async def list_threads(self, limit: int, **asked: Any) -> ThreadPage:
        return await self._backend.list_threads(limit, **asked)

    async def delete_threads(self, **asked: Any) -> DeletedThreads:
        deleted = await self._backend.delete_threads(**asked)
        if not deleted.dry_run:
            for thread_id in deleted.thread_ids:
                self._work.keeper.forget(thread_id)
        return deleted

    async def sizes(self, thread_id: str | None) -> Sizes:
        return await self._backend.sizes(thread_id)

    # -- saving

    async def save(
        self, step: Step, values: tuple[Any, ...], parent_id: str | None, expect: str | AnyHead | None
    ) -> str:
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
        return await self._backend.get(checkpoint_id, thread_id=thread_id, namespace=namespace)

    async def get_latest(self, thread_id: str, namespace: str) -> Checkpoint | None:
        return await self._backend.get_latest(thread_id, namespace=namespace)

    async def list_points(self, thread_id: str, limit: int, offset: int, namespace: str) -> list[CheckpointMetadata]:
        return await self._backend.list_checkpoints(thread_id, limit, offset, namespace=namespace)

    async def tree(self, thread_id: str, limit: int, *, branches: bool) -> CheckpointTree:
        newest = await self._work.store.newest(thread_id, limit, branches=branches, without=TASK_NAMESPACE)
        if newest is None:
            return checkpoint_tree.tree(thread_id, [], (), {}, 0)
        segments: checkpoint_tree.Segments = {}
        if newest.listed:
            ancestry = ancestry_of(self._work.store, newest.listed[0].family)
            segments = await ancestry.walk(checkpoint_tree.tree_segments(newest.listed))
        return checkpoint_tree.tree(thread_id, newest.listed, newest.heads, segments, newest.total)

    async def diff(self, a: Key, b: Key) -> Diff:
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
        key = await self._backend.require(checkpoint_id, thread_id, namespace)
        calls.about(key.thread_id)
        return key

    async def resolve(self, ref: str, thread_id: str | None) -> Reference:
        found = await resolve(self._work.store, ref, thread_id)
        calls.about(found.thread_id)
        return found

    async def at_step(self, thread_id: str, step: int, namespace: str) -> Key | None:
        query = Query(thread_id=thread_id, namespace=namespace, step_max=step, limit=1)
        listed = await self._work.store.list_checkpoints(query)
        return listed[0].record.key if listed else None

    # -- going back and forth, branching, merging: each has a file of its own

    async def rewind(self, key: Key, later: str) -> TimeTravelResult:
        return await rewind(self._work, key, later)

    async def plan_rewind(self, key: Key) -> WayBack:
        """Return what a rewind would do."""
        return await plan_rewind(self._work, key)

    async def left_behind(self, key: Key, plan: WayBack, limit: int) -> list[Stored]:
        """Return the newest of what a rewind would leave behind."""
        return await left_behind(self._work, key, plan, limit)

    async def undo(self, thread_id: str) -> Operation:
        return await undo(self._work, thread_id)

    async def redo(self, thread_id: str) -> Operation:
        return await redo(self._work, thread_id)

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        return await operations(self._work, thread_id, limit)

    async def branch(
        self, checkpoint_id: str, thread_id: str | None, namespace: str | None, name: str, effects: str = "share"
    ) -> str:
        def find() -> Coroutine[Any, Any, Origin]:
            return self._origin(checkpoint_id, thread_id, namespace)

        remembered = self._remembered(checkpoint_id, thread_id, namespace)
        made = await branch(self._work, remembered, find, name, effects)
        if made.origin is not None and _finds_origins(type(self.store)):
            self._origins.put(made.origin)
        return made.thread_id

    def _remembered(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Origin | None:
        """Return a checkpoint at which a branch began lately; the commit will tell if it is another one by now."""
        origin = self._origins.get(checkpoint_id)
        if origin is None:
            return None
        key = origin.stored.record.key
        if thread_id not in (None, key.thread_id) or namespace not in (None, key.namespace):
            return None
        calls.about(key.thread_id)
        return origin

    async def _origin(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Origin:
        """Return a checkpoint that must be there, and the top of its thread's log."""
        found = await _origin_in(self._work.store, checks.checkpoint_id(checkpoint_id))
        if found is not None:
            key = found.stored.record.key
            if thread_id in (None, key.thread_id) and namespace in (None, key.namespace):
                calls.about(key.thread_id)
                return found
        return await self._work.origin(await self.locate(checkpoint_id, thread_id, namespace))

    async def merge(self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None) -> str:
        return await merge(self._work, branch, into, resolve, namespace, graph)

    async def plan_merge(
        self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None
    ) -> MergePlan:
        """Return what a merge would do; nothing is written."""
        return await plan_merge(self._work, branch, into, resolve, namespace, graph)

    # -- retention

    async def pin(self, key: Key, *, pinned: bool) -> None:
        stored = await self._work.require(key)
        if stored.pinned == pinned:
            return
        details = {"checkpoint_id": key.checkpoint_id, "namespace": key.namespace}
        await self._work.log(key, "pin" if pinned else "unpin", details, stored.seq, Pin(key, pinned))
        self._work.forget(key.thread_id)

    async def tag(self, key: Key, tag: str, *, is_given: bool) -> None:
        await set_tag(self._work, key, tag, is_given=is_given)

    async def note(self, key: Key, text: str) -> None:
        await labels.note(self._work, key, text)

    async def rename(self, thread_id: str, name: str) -> None:
        await labels.rename(self._work, thread_id, name)

    async def archive(self, thread_id: str, *, is_archived: bool) -> None:
        await labels.archive(self._work, thread_id, is_archived=is_archived)

    async def collect(self, thread_id: str | None, *, dry_run: bool) -> GCReport:
        return await self._work.keeper.collect(self._work.store, thread_id, dry_run=dry_run)

    async def close(self) -> None:
        await self._backend.close()


def next_node_change(before: str, after: str) -> list[Difference]:
    """Return the change of `next_node`, if it is one."""
    return [] if before == after else [Difference("next_node", "changed", before, after)]


async def _origin_in(store: Store, checkpoint_id: str) -> Origin | None:
    """Return what a branch begins with, if the store can tell in one look; None: ask for it one by one."""
    if not _finds_origins(type(store)):
        return None
    try:
        return await cast(FindsOrigins, store).origin(checkpoint_id)
    except CheckpointCorrupted:
        # Asked for one by one, the error says what is damaged, and whose it is.
        return None


@cache  # to look for the methods of a protocol takes longer than a look at the rows
def _finds_origins(kind: type) -> bool:
    return issubclass(kind, FindsOrigins)
