"""What the engine does with the history of threads, on a store. Each method is one commit, or a short loop around one.

Nothing here copies state: a rewind moves a head and hides stretches, a branch names its origin's root, a merge writes
what the walk through three trees found new. A commit names the head it saw; if another writer was first, it is done
again on what is there then. `timeline/foreign.py` is the same for a backend that has only the seven published methods.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from everstep.backends import StoreBackend
from everstep.config import SnapshotConfig
from everstep.errors import (
    BaseGone,
    CannotUndo,
    CheckpointCorrupted,
    CheckpointNotFound,
    HeadMoved,
    InvalidInput,
    MergeConflict,
    StoreUnavailable,
)
from everstep.history import checkpoint_tree, operation_log
from everstep.history.adapter import Adapter, WayBack, adapter_of
from everstep.history.ancestry import Ancestry, ancestry_of
from everstep.history.diff import compare
from everstep.history.merge_base import Bases, MergeBase, root_of_nodes
from everstep.history.three_way import Merged
from everstep.history.three_way import merge as merge_roots
from everstep.repository.ledger import Save
from everstep.repository.new_names import new_token, under_new_name
from everstep.repository.repository import copied, packed_whole, reclaim, to_checkpoint, to_metadata
from everstep.repository.step import Step, checkpoint_id, new_record
from everstep.repository.turns import Beaten, until_done
from everstep.retention.keeper import Keeper
from everstep.runtime import calls, checks
from everstep.runtime.blocking import run_to_end
from everstep.runtime.deadlines import held_by_caller
from everstep.stores.protocol import (
    AnyHead,
    Base,
    Change,
    Common,
    Draft,
    Hidden,
    Key,
    Loaded,
    Move,
    Object,
    Pin,
    Place,
    Query,
    Record,
    Root,
    Store,
    Stored,
    Thread,
)
from everstep.stores.protocol import Operation as Entry
from everstep.types import (
    TASK_NAMESPACE,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTree,
    Conflict,
    DeletedThreads,
    Diff,
    Difference,
    GCReport,
    Operation,
    Sizes,
    ThreadPage,
    TimeTravelResult,
    UnreadCheckpoint,
)
from everstep.values import compress, costs, tree
from everstep.values.walk import read_values

_BRANCH_TRIES = 10  # from a checkpoint that others replace meanwhile
_ASKED_MAX = 1000  # threads that are asked for a common state that is not stored any more
_EAGER_BYTES = 1 << 18  # a checkpoint up to this size is read at once with a rewind

_EMPTY = root_of_nodes([tree.EMPTY_LIST, tree.EMPTY_MAP, tree.EMPTY_MAP])

T = TypeVar("T")

Resolve = str | Mapping[str, Any] | Callable[[Conflict], Any] | None


class Timeline(Protocol):
    """What the engine needs to be done, whatever the backend."""

    @property
    def blocking(self) -> Timeline: ...
    @property
    def run(self) -> Callable[[Coroutine[Any, Any, Any]], Any]: ...
    async def save(
        self, step: Step, values: tuple[Any, ...], parent_id: str | None, expect: str | AnyHead | None
    ) -> str: ...
    async def save_onto(self, step: Step, save: Save) -> str: ...
    async def append(
        self,
        step: Step,
        messages: list[Any],
        state: dict[str, Any] | None,
        tools_result: dict[str, Any] | None,
        expect: str | AnyHead | None,
        *,
        replace: bool = False,
    ) -> str: ...
    async def get(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Checkpoint | None: ...
    async def get_latest(self, thread_id: str, namespace: str) -> Checkpoint | None: ...
    async def list_points(
        self, thread_id: str, limit: int, offset: int, namespace: str
    ) -> list[CheckpointMetadata]: ...
    async def tree(self, thread_id: str, limit: int, *, branches: bool) -> CheckpointTree: ...
    async def diff(self, a: Key, b: Key) -> Diff: ...
    async def locate(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Key: ...
    async def rewind(self, key: Key, later: str) -> TimeTravelResult: ...
    async def at_step(self, thread_id: str, step: int, namespace: str) -> Key | None: ...
    async def undo(self, thread_id: str) -> Operation: ...
    async def redo(self, thread_id: str) -> Operation: ...
    async def operations(self, thread_id: str, limit: int) -> list[Operation]: ...
    async def pin(self, key: Key, *, pinned: bool) -> None: ...
    async def branch(self, source: Key, name: str) -> str: ...
    async def merge(self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None) -> str: ...
    async def collect(self, thread_id: str | None, *, dry_run: bool) -> GCReport: ...
    async def list_threads(self, limit: int, **asked: Any) -> ThreadPage: ...
    async def delete_threads(self, **asked: Any) -> DeletedThreads: ...
    async def sizes(self, thread_id: str | None) -> Sizes: ...
    async def close(self) -> None: ...


class _Rewound(NamedTuple):
    """A rewind that is done, but for the deletion of what came later."""

    result: TimeTravelResult
    later: Sequence[Hidden]
    entry: Entry | None = None
    """Of the log; None: nothing had to be changed."""


class StoreTimeline:
    """The history of threads on one face of a store."""

    def __init__(self, backend: StoreBackend, config: SnapshotConfig, keeper: Keeper | None = None) -> None:
        self._backend, self._config = backend, config
        self._keeper = keeper or Keeper(config)
        self._repository = backend.repository

    @property
    def _store(self) -> Store:
        return self._repository.store

    @property
    def blocking(self) -> StoreTimeline:
        """The same, never suspending."""
        return StoreTimeline(self._backend.blocking, self._config, self._keeper)

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
        for thread_id in () if deleted.dry_run else deleted.thread_ids:
            self._keeper.forget(thread_id)
        return deleted

    async def sizes(self, thread_id: str | None) -> Sizes:
        """Return what a thread takes, or all of them."""
        return await self._backend.sizes(thread_id)

    # -- saving

    async def save(
        self, step: Step, values: tuple[Any, ...], parent_id: str | None, expect: str | AnyHead | None
    ) -> str:
        """Save whole values as the next step."""
        parent, commons = None, dict[str, Common]()
        if parent_id is not None:
            # Copied before the wait: what the caller changes later belongs to a later step.
            names = ("messages", "state", "tools_result")
            values = tuple(copied(value, name) for name, value in zip(names, values, strict=True))
            parent = await self._required(Key(step.thread_id, step.namespace, parent_id))
            thread = await self._store.thread(step.thread_id)
            commons = _commons_after(thread, parent) if thread is not None else {}
        return await self._kept(
            step,
            lambda prune: self._repository.save(
                step.thread_id,
                values,
                lambda head: step.record(parent or head),
                namespace=step.namespace,
                expect=expect,
                split=self._config.delta_snapshots,
                size_bytes_max=self._config.size_bytes_max,
                prune=prune,
                commons=commons,
                make_new_id=step.make_new_id,
            ),
        )

    async def save_onto(self, step: Step, save: Save) -> str:
        """Save what a live thread holds as the next step; see `ledger`."""
        return await self._kept(
            step,
            lambda prune: self._repository.save_onto(
                step.thread_id,
                save,
                step,
                split=self._config.delta_snapshots,
                size_bytes_max=self._config.size_bytes_max,
                prune=prune,
            ),
        )

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
        return await self._kept(
            step,
            lambda prune: self._repository.append(
                step.thread_id,
                messages,
                state,
                tools_result,
                step.record,
                namespace=step.namespace,
                expect=expect,
                split=self._config.delta_snapshots,
                size_bytes_max=self._config.size_bytes_max,
                replace=replace,
                prune=prune,
                make_new_id=step.make_new_id,
            ),
        )

    async def _kept(self, step: Step, save: Callable[[Sequence[int]], Coroutine[Any, Any, Stored]]) -> str:
        """Run a save, with what retention lets go in the same commit."""
        line = step.thread_id, step.namespace
        due = self._keeper.due(line)
        try:
            stored = await save([item.seq for item in due])
        except BaseException:
            self._keeper.give_back(line, due)
            raise
        if stored.run == stored.seq:
            self._keeper.forget(step.thread_id)  # the head was moved, maybe by somebody else: plan anew
        await self._keeper.upkeep(self._store, stored)
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
        newest = await self._store.newest(thread_id, limit, branches=branches, without=TASK_NAMESPACE)
        if newest is None:
            return checkpoint_tree.tree(thread_id, [], (), {}, 0)
        runs: checkpoint_tree.Runs = {}
        if newest.listed:
            ancestry = ancestry_of(self._store, newest.listed[0].family)
            runs = await ancestry.walk(checkpoint_tree.tree_runs(newest.listed))
        return checkpoint_tree.tree(thread_id, newest.listed, newest.heads, runs, newest.total)

    async def diff(self, a: Key, b: Key) -> Diff:
        """Return what changed from `a` to `b`."""
        before, after = await self._required(a), await self._required(b)
        try:
            families = [before.family, after.family]
            adapter = adapter_of(before.record.kind) or adapter_of(after.record.kind)
            codec = adapter.codec if adapter is not None else None
            roots = [_shown_root(_root(each)) if each.record.kind else _root(each) for each in (before, after)]
            changes = await self._repository.walk(compare(roots[0], roots[1], codec), families)
            if adapter is not None:
                changes = await adapter.shown(self._repository, changes, before, after)
        except CheckpointCorrupted as exc:
            await self._required(a)  # deleted meanwhile?
            await self._required(b)
            raise exc.located(*b[::2]) from exc
        changes += next_node_change(before.record.next_node, after.record.next_node)
        return Diff(a.checkpoint_id, b.checkpoint_id, changes)

    async def locate(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Key:
        """Return the full name of a checkpoint that must be there."""
        key = await self._backend.require(checkpoint_id, thread_id, namespace)
        calls.about(key.thread_id)
        return key

    # -- rewinding

    async def rewind(self, key: Key, later: str) -> TimeTravelResult:
        """Make a checkpoint the head; what came later on its line is hidden, deleted or kept."""
        done = await self._until_done(key.thread_id, lambda timeline: timeline._rewind(key, later), "a rewind")
        if done.entry is not None:
            self._changed(key.thread_id)
        if later == "delete":
            await self._delete_later(key.thread_id, done.later, done.entry)
        return done.result

    async def _rewind(self, key: Key, later: str) -> _Rewound:
        loaded = await self._store.read(*key, writes=True)
        if loaded is None:
            raise CheckpointNotFound(key.checkpoint_id, key.thread_id)
        target = loaded.stored
        # What grows with the number of operations is read only where it is needed.
        is_simple = not target.record.kind and not loaded.writes and later != "delete"
        thread = await self._store.thread(key.thread_id, brief=is_simple)
        if thread is None:
            raise CheckpointNotFound(key.checkpoint_id, key.thread_id)
        if target.hidden:
            raise InvalidInput(
                f"checkpoint {key.checkpoint_id!r} was left behind by an earlier operation; undo() brings it back, "
                "branch() starts a thread from it"
            )
        adapter = adapter_of(target.record.kind)
        if adapter is not None:
            back = await adapter.way_back(self._store, thread, loaded)
        else:
            back = await self._way_back(thread, loaded)
        head = thread.heads.get(key.namespace, (None, 0))[0]
        hide = [*back.writes, *(back.later if later != "keep" else ())]
        result = TimeTravelResult(await self._checkpoint(target), key.thread_id, back.depth, back.before)
        doomed: Sequence[Hidden] = ()
        if later == "delete":
            doomed = checkpoint_tree.all_later(thread, target) if adapter is None else back.later
        if not hide and all(thread.heads.get(name, (None, 0))[0] == found for name, found in back.heads.items()):
            return _Rewound(result, doomed)
        details = {
            "checkpoint_id": key.checkpoint_id,
            "from": head,
            "later": later,
            "left_behind": back.depth,
            "namespace": key.namespace,
        }
        undo = operation_log.Undo(
            key.thread_id,
            {name: thread.heads.get(name, (None, 0))[0] for name in back.heads},
            [],
            {name: thread.newest[name] for name in back.heads},
            since=max(thread.newest.values()) if adapter is not None else None,
            kept=back.kept,
        )
        entry = operation_log.entry(
            "rewind", details, undo, await self._top(key.thread_id), thread.newest[key.namespace]
        )
        await self._store.commit(
            Change(
                thread_id=key.thread_id,
                namespace=key.namespace,
                expect=head,
                moves=[Move(*move) for move in back.heads.items()],
                hide=hide,
                commons=_commons_after(thread, target),
                log=entry,
            )
        )
        return _Rewound(result, doomed, entry)

    async def _way_back(self, thread: Thread, target: Loaded) -> WayBack:
        """Return what a rewind of a thread of the engine's own does: it is about one namespace."""
        key, newest = target.stored.record.key, thread.newest[target.stored.record.key.namespace]
        started = await self._store.started(key.thread_id, key.namespace, target.stored.seq)
        ancestry = ancestry_of(self._store, thread.family)
        following = await ancestry.walk(checkpoint_tree.later(target.stored, newest, started, key.thread_id))
        depth = await self._count(key, following)
        return WayBack(
            heads={key.namespace: key.checkpoint_id},
            later=following if depth else [],
            writes=checkpoint_tree.writes(target.writes, key, thread),
            depth=depth,
            before=await self._store.count(Query(thread_id=key.thread_id, namespace=key.namespace)),
        )

    async def _count(self, key: Key, following: Sequence[Hidden]) -> int:
        """Return how many visible checkpoints came later."""
        thread_id, namespace, _ = key
        return sum(
            [
                await self._store.count(
                    Query(thread_id=thread_id, namespace=namespace, after_seq=stretch.after, run=stretch.run)
                )
                for stretch in following
            ]
        )

    async def _delete_later(self, thread_id: str, stretches: Sequence[Hidden], entry: Entry | None) -> None:
        """Delete what came later on a line, hidden ones included, and the entry of the rewind in the log."""
        doomed: list[Key] = []
        for stretch in stretches:
            query = Query(
                thread_id=thread_id, namespace=stretch.namespace, after_seq=stretch.after, run=stretch.run,
                before_seq=stretch.to + 1, hidden="also",
            )  # fmt: skip
            doomed += [stored.record.key for stored in await self._store.list_checkpoints(query)]
        found = await self._store.operations(thread_id, 100) if entry is not None else []
        entries = [each.seq for each in found if entry is not None and each.data == entry.data]
        deleted = await self._store.delete(thread_id, keys=doomed, operations=entries)
        self._changed(thread_id)
        await reclaim(self._store, deleted, thread_id)

    async def at_step(self, thread_id: str, step: int, namespace: str) -> Key | None:
        """Return the newest checkpoint whose step is not greater."""
        query = Query(thread_id=thread_id, namespace=namespace, step_max=step, limit=1)
        listed = await self._store.list_checkpoints(query)
        return listed[0].record.key if listed else None

    # -- undo

    async def undo(self, thread_id: str) -> Operation:
        """Take the newest operation back."""
        return await self._toggle(thread_id, operation_log.to_undo)

    async def redo(self, thread_id: str) -> Operation:
        """Do again what was undone last."""
        return await self._toggle(thread_id, operation_log.to_redo)

    async def _toggle(self, thread_id: str, choose: Callable[[Sequence[Entry]], Entry]) -> Operation:
        async def toggled(timeline: StoreTimeline) -> Entry:
            entry = choose(await timeline._entries(thread_id))
            await timeline._swap(thread_id, entry)
            return entry

        entry = await self._until_done(thread_id, toggled, "an undo or redo")
        return operation_log.shown(entry._replace(undone=not entry.undone))

    async def _swap(self, thread_id: str, entry: Entry) -> None:
        """Restore what an operation changed, and note what it takes to change it again."""
        undo = operation_log.undo_of(entry)
        thread = await self._store.thread(undo.thread_id)
        own = thread if undo.thread_id == thread_id else await self._store.thread(thread_id)
        if thread is None or own is None or own.family != thread.family:
            raise CannotUndo(f"{entry.kind}: the thread {undo.thread_id!r} was deleted, and deletion is final")
        for pin in undo.pins:
            if await self._store.read(*pin.key) is None:
                raise CannotUndo(f"{entry.kind}: the checkpoint {pin.key.checkpoint_id!r} was deleted, which is final")
        undo = await self._about_all(undo, thread)
        swap = operation_log.swapped(entry, undo, thread, await self._pending(entry, undo, thread))
        await self._check_heads(entry, undo, swap, thread)
        namespace = next(iter(undo.heads), "")
        expect = thread.heads.get(namespace, (None, 0))[0]
        await self._store.commit(
            Change(
                thread_id=undo.thread_id,
                namespace=namespace,
                expect=expect,
                moves=[Move(name, head) for name, head in undo.heads.items()],
                show=[entry.seq],
                hide=swap.hide,
                pins=undo.pins,
                amend=[swap.entry],
                log_thread=thread_id,
            )
        )
        self._changed(undo.thread_id)

    async def _about_all(self, undo: operation_log.Undo, thread: Thread) -> operation_log.Undo:
        """Add the namespaces that have got something new, if the operation is about the whole thread."""
        if undo.since is None:
            return undo
        heads, newest = dict(undo.heads), dict(undo.newest)
        for name in thread.newest:
            if name not in newest and name != TASK_NAMESPACE and thread.newest[name] > undo.since:
                query = Query(
                    thread_id=thread.thread_id, namespace=name, before_seq=undo.since + 1, order="id", limit=1
                )
                older = await self._store.list_checkpoints(query)
                heads[name] = older[0].record.key.checkpoint_id if older else None
                newest[name] = undo.since
        return undo._replace(heads=heads, newest=newest)

    async def _pending(self, entry: Entry, undo: operation_log.Undo, thread: Thread) -> list[Hidden]:
        """Return the pending writes that stand where a swap puts others."""
        found: list[Hidden] = []
        for place in sorted(operation_log.written(entry, undo, thread)):
            key = Key(thread.thread_id, *place)
            loaded = await self._store.read(*key, writes=True)
            if loaded is not None:
                kept = [write for write in loaded.writes if checkpoint_tree.is_among(write, key, undo.kept)]
                found += checkpoint_tree.writes(
                    [write for write in loaded.writes if write not in kept], key, thread, kept
                )
        return found

    async def _check_heads(
        self, entry: Entry, undo: operation_log.Undo, swap: operation_log.Swap, thread: Thread
    ) -> None:
        """Refuse to go to a head that is gone, or that something else hides: it would be one that nobody sees."""
        others = [h for seq, stretches in thread.hidden.items() if seq != entry.seq for h in stretches]
        for namespace, head in undo.heads.items():
            if head is None:
                continue
            loaded = await self._store.read(undo.thread_id, namespace, head)
            if loaded is None:
                raise CannotUndo(
                    f"{entry.kind}: the checkpoint {head!r} to go back to was deleted or collected, which is final"
                )
            if checkpoint_tree.is_hidden(loaded.stored, [*others, *swap.hide]):
                raise CannotUndo(
                    f"{entry.kind}: the checkpoint {head!r} is hidden by another operation; "
                    "redo the branch that was taken back, in the log of its origin, first"
                )

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        """Return the log, newest first."""
        return [operation_log.shown(entry) for entry in await self._store.operations(thread_id, limit)]

    async def _entries(self, thread_id: str) -> list[Entry]:
        """Return the newest entries of the log, down to the one that undo would take back: redo needs no older ones."""
        limit = 1
        while True:
            entries = await self._store.operations(thread_id, limit)
            if operation_log.top(entries) or len(entries) < limit or limit == operation_log.DEPTH_MAX:
                return entries
            limit = min(limit * 16, operation_log.DEPTH_MAX)

    async def _top(self, thread_id: str) -> int:
        return operation_log.top(await self._entries(thread_id))

    # -- pins

    async def pin(self, key: Key, *, pinned: bool) -> None:
        """Set or lift the mark that keeps a checkpoint from retention."""
        stored = await self._required(key)
        if stored.pinned == pinned:
            return
        undo = operation_log.Undo(key.thread_id, {}, [], {}, [Pin(key, not pinned)])
        details = {"checkpoint_id": key.checkpoint_id, "namespace": key.namespace}
        kind = "pin" if pinned else "unpin"
        await self._store.commit(
            Change(
                thread_id=key.thread_id,
                namespace=key.namespace,
                pins=[Pin(key, pinned)],
                log=operation_log.entry(kind, details, undo, await self._top(key.thread_id), stored.seq),
            )
        )
        self._changed(key.thread_id)

    # -- branching and merging

    async def branch(self, source: Key, name: str) -> str:
        """Start a thread at a checkpoint and return the new thread's id."""
        for _ in range(_BRANCH_TRIES):
            try:
                return await under_new_name(lambda: self._branch(source, name))
            except BaseGone:
                continue  # it was replaced meanwhile: begin with what is there now
        raise StoreUnavailable(f"checkpoint {source.checkpoint_id!r} changes faster than a branch begins; try again")

    async def _branch(self, source: Key, name: str) -> str:
        thread_id = branch_id(source.thread_id, name)
        origin = await self._required(source)
        adapter = adapter_of(origin.record.kind)
        if adapter is not None:
            origin, drafts, writes = await adapter.beginning(self._repository, origin, thread_id, name)
        else:
            drafts, writes = [_first_of_branch(origin, thread_id, name)], []
        namespaces = [draft.record.key.namespace for draft in drafts]
        undo = operation_log.Undo(thread_id, dict.fromkeys(namespaces), [], dict.fromkeys(namespaces, 0))
        undo = undo._replace(since=0 if adapter is not None else None)
        details = {"checkpoint_id": source.checkpoint_id, "thread_id": thread_id, "name": name}
        await self._store.commit(
            Change(
                thread_id=thread_id,
                namespace=namespaces[0],
                build=lambda _: drafts[0],
                fresh=True,
                origin=origin.record.key,
                commons={source.thread_id: Common(origin.place, _root(origin))},
                beside=drafts[1:],
                writes=writes,
                log=operation_log.entry("branch", details, undo, await self._top(source.thread_id), origin.seq),
                log_thread=source.thread_id,
            )
        )
        self._keeper.forget(source.thread_id)
        return thread_id

    async def merge(self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None) -> str:
        """Merge the head of one thread into another and return the merge's id."""
        if branch == into:
            raise InvalidInput(f"thread {into!r} cannot be merged into itself")
        decide = _untimed(resolve) if callable(resolve) else resolve
        stored = await self._until_done(
            into,
            lambda timeline: under_new_name(lambda: timeline._merge(branch, into, decide, namespace, graph)),
            "a merge",
            calls_back=callable(resolve) or graph is not None,
        )
        if isinstance(stored, str):
            return stored  # everything is merged already
        self._changed(into)
        if not stored.record.kind:  # an adapter's thread is kept as its own policy says
            await self._keeper.upkeep(self._store, stored)
        return stored.record.key.checkpoint_id

    async def _merge(self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any) -> Stored | str:
        """Return the checkpoint of the merge, or the id of the head if there is nothing to merge."""
        ours, theirs = await self._head(into, namespace), await self._head(branch, namespace)
        if ours.family != theirs.family:
            raise InvalidInput(
                f"threads {branch!r} and {into!r} are unrelated: only threads that branched from one another, or from "
                "the same one, can be merged"
            )
        thread = await self._store.thread(into)
        if thread is None:
            raise HeadMoved(into, ours.record.key.checkpoint_id, None)
        ancestry = ancestry_of(self._store, ours.family)
        bases = await ancestry.common([ours.place], [theirs.place])
        if not bases:
            raise InvalidInput(f"threads {branch!r} and {into!r} have no checkpoint in common")
        if theirs.place in bases:
            return ours.record.key.checkpoint_id
        adapter = adapter_of(ours.record.kind)
        if graph is not None and adapter is None:
            raise InvalidInput(f"graph= is for threads of a LangGraph saver; thread {into!r} is the engine's own")
        try:
            if adapter is None:
                drafts = [await self._merged(ours, theirs, thread, ancestry, bases, resolve)]
            else:
                drafts = await self._merged_by(adapter, ours, theirs, thread, ancestry, bases, resolve, graph)
        except CheckpointCorrupted:
            await self._same_heads(ours, theirs)
            raise
        return await self._commit_merge(ours, theirs, drafts, thread)

    async def _merged_by(
        self,
        adapter: Adapter,
        ours: Stored,
        theirs: Stored,
        thread: Thread,
        ancestry: Ancestry,
        bases: Sequence[Place],
        resolve: Resolve,
        graph: Any,
    ) -> list[Draft]:
        """Return the checkpoints of a merge: the first is that of the namespace, others are what subgraphs remember."""
        base = await self._bases(thread, ancestry, adapter).merged(bases)
        drafts = [
            await adapter.merged(self._repository, (ours, theirs), base, bases, ancestry, resolve=resolve, graph=graph)
        ]
        other = await self._store.thread(theirs.record.key.thread_id)
        for name in adapter.lasting(other) if other is not None and not ours.record.key.namespace else ():
            changed = await self._head(theirs.record.key.thread_id, name)
            if name not in thread.heads:
                drafts.append(adapter.taken_over(changed, thread.thread_id))
                continue
            own = await self._head(thread.thread_id, name)
            parted = await ancestry.common([own.place], [changed.place])
            if changed.place in parted:
                continue
            before = await self._bases(thread, ancestry, adapter).merged(parted) if parted else MergeBase(_EMPTY)
            settle = None if isinstance(resolve, Mapping) else resolve
            within = adapter.subgraph(graph, name)
            try:
                draft = await adapter.merged(
                    self._repository, (own, changed), before, parted, ancestry, resolve=settle, graph=within
                )
            except MergeConflict as exc:
                raise MergeConflict(
                    [dataclasses.replace(each, path=f"{name}: {each.path}") for each in exc.conflicts]
                ) from None
            drafts.append(draft)
        return await adapter.named(self._store, drafts)

    async def _merged(
        self,
        ours: Stored,
        theirs: Stored,
        thread: Thread,
        ancestry: Ancestry,
        bases: Sequence[Place],
        resolve: Resolve,
    ) -> Draft:
        base = await self._bases(thread, ancestry, None).merged(bases)
        walk = merge_roots(base.root, _root(ours), _root(theirs), resolve=resolve, uncertain=base.uncertain)
        merged = await self._repository.walk(walk, [ours.family], base.objects)
        if merged.conflicts:
            raise MergeConflict(merged.conflicts)
        if not self._config.delta_snapshots:
            merged = await self._unsplit(merged, ours.family)
        repeats = _merged_repeats(ours.record, theirs.record, sum([node.size for node in merged.nodes]))
        if repeats is None or repeats > tree.writable_repeats(tree.REPEATS_MAX):
            repeats = await self._repository.repeats_of(merged.nodes, merged.objects, [ours.family])
        record = _with_root(_merge_record(ours, theirs, bases), root_of_nodes(merged.nodes))
        record = record._replace(repeats=repeats)
        objects = [Object(key, below, compress.squeeze(body)) for key, (below, body) in merged.objects.items()]
        return Draft(record, objects, tuple(Base(stored.record.key, stored.digest) for stored in (ours, theirs)))

    async def _unsplit(self, merged: Merged, family: str) -> Merged:
        """Return merged values as one object."""
        need = read_values(root_of_nodes(merged.nodes))
        values = await self._repository.walk(need, [family], merged.objects)
        writer = tree.Writer()
        return Merged([writer.whole(packed_whole(values))], writer.objects, [])

    async def _commit_merge(self, ours: Stored, theirs: Stored, drafts: Sequence[Draft], thread: Thread) -> Stored:
        into, namespace, head = ours.record.key
        record = drafts[0].record
        newest = max(thread.newest[namespace], ours.seq)
        undo = operation_log.Undo(into, {namespace: head}, [], {namespace: newest})
        undo = undo._replace(since=max(thread.newest.values()) if record.kind else None)
        details = {"from": theirs.record.key.thread_id, "checkpoint_id": record.key.checkpoint_id}
        stored = await self._store.commit(
            Change(
                thread_id=into,
                namespace=namespace,
                expect=head,
                build=lambda _: drafts[0],
                fresh=True,
                beside=drafts[1:],
                commons={theirs.record.key.thread_id: Common(theirs.place, _root(theirs))},
                log=operation_log.entry("merge", details, undo, await self._top(into), newest),
            )
        )
        if stored is None:
            raise RuntimeError("the store returned no checkpoint for a change that makes one")
        calls.added(stored.added_bytes, len(drafts[0].objects))
        return stored

    def _bases(self, thread: Thread, ancestry: Ancestry, adapter: Adapter | None) -> Bases[Place]:
        return Bases(
            lambda place: self._base_root(place, thread),
            lambda places, other: ancestry.common([other], places),
            lambda need, objects: self._repository.walk(need, [thread.family], objects),
            *((_shown_root, adapter.merge_codec) if adapter is not None else ()),
        )

    async def _base_root(self, place: Place, thread: Thread) -> Root:
        """Return the values of an ancestor: from the checkpoint, or as kept for the merge if it is gone."""
        loaded = await self._store.read(*place.key)
        if loaded is not None and loaded.stored.seq == place.seq:
            return _root(loaded.stored)
        names, asked = [thread.thread_id, place.key.thread_id, *thread.commons], set[str]()
        while names:
            name = names.pop(0)
            if name in asked or len(asked) >= _ASKED_MAX:
                continue
            asked.add(name)
            other = await self._store.thread(name)
            commons = other.commons if other is not None else {}
            for common in itertools.chain(*commons.values()):
                if common.place == place:
                    return common.root
            names += commons
        raise InvalidInput(
            f"the last common ancestor of these threads, {place.key.checkpoint_id!r} of thread "
            f"{place.key.thread_id!r}, was deleted; there is nothing to merge against"
        )

    async def _same_heads(self, ours: Stored, theirs: Stored) -> None:
        """Raise HeadMoved if one of the heads is not there any more as it was."""
        for stored in (ours, theirs):
            thread_id, namespace, head = stored.record.key
            loaded = await self._store.read(thread_id, namespace)
            if loaded is None or loaded.stored.digest != stored.digest:
                raise HeadMoved(thread_id, head, None)

    async def _head(self, thread_id: str, namespace: str) -> Stored:
        loaded = await self._store.read(thread_id, namespace)
        if loaded is None:
            raise InvalidInput(f"thread {thread_id!r} has no checkpoints")
        return loaded.stored

    # -- retention

    async def collect(self, thread_id: str | None, *, dry_run: bool) -> GCReport:
        """Apply the retention policy and give the space back."""
        return await self._keeper.collect(self._store, thread_id, dry_run=dry_run)

    async def close(self) -> None:
        """Close the store."""
        await self._backend.close()

    # -- helpers

    async def _until_done(
        self,
        thread_id: str,
        attempt: Callable[[StoreTimeline], Coroutine[Any, Any, T]],
        doing: str,
        *,
        calls_back: bool = False,
    ) -> T:
        """Return what `attempt` does; it is done again if another writer was first: see `turns`."""

        async def once(store: Store, _is_first: bool) -> T:
            try:
                return await attempt(self._over(store))
            except (HeadMoved, BaseGone):
                raise Beaten from None

        return await until_done(self._store, thread_id, once, doing, calls_back=calls_back)

    def _over(self, store: Store) -> StoreTimeline:
        """Return the same over what a turn works on."""
        if store is self._store:
            return self
        timeline = StoreTimeline(self._backend, self._config, self._keeper)
        timeline._repository = self._repository.over(store)
        return timeline

    async def _required(self, key: Key) -> Stored:
        loaded = await self._store.read(*key)
        if loaded is None:
            raise CheckpointNotFound(key.checkpoint_id, key.thread_id)
        return loaded.stored

    def _changed(self, thread_id: str) -> None:
        """Forget what is remembered of a thread whose head was moved."""
        self._repository.forget(thread_id)
        self._keeper.forget(thread_id)

    async def _checkpoint(self, stored: Stored) -> Checkpoint:
        """Return a checkpoint; a large one is read when it is looked at."""
        if sum(stored.record.sizes) > _EAGER_BYTES and not stored.record.kind:
            return self._unread(stored)
        loaded = await self._repository.load(*stored.record.key)
        if loaded is None:
            raise CheckpointNotFound(stored.record.key.checkpoint_id, stored.record.key.thread_id)
        return to_checkpoint(*loaded)

    def _unread(self, stored: Stored) -> Checkpoint:
        repository = self._repository.over(self._store.blocking)

        def read() -> Sequence[Any]:
            loaded = run_to_end(repository.load(*stored.record.key))
            if loaded is None:
                raise CheckpointNotFound(stored.record.key.checkpoint_id, stored.record.key.thread_id)
            return loaded[1]

        return UnreadCheckpoint(to_metadata(stored), next_node=stored.record.next_node, read=read)


def _merged_repeats(ours: Record, theirs: Record, size: int) -> int | None:
    """Return what repetition in a merge costs at most, without a look at all of it; None: nobody knows.

    What theirs has more than the common state may repeat what ours has. It is in the figure of theirs if it was
    appended there; what was saved as a whole shows in the size, each byte of which may be the costliest one.
    """
    if ours.repeats is None or theirs.repeats is None:
        return None
    growth = max(0, size - sum(ours.sizes))
    return ours.repeats + theirs.repeats + costs.BYTE_MAX * growth


def _untimed(resolve: Callable[[Conflict], Any]) -> Callable[[Conflict], Any]:
    """Return a function of the caller's as one whose time does not count: it may ask a model, or a person."""

    def decide(conflict: Conflict) -> Any:
        with held_by_caller():
            return resolve(conflict)

    return decide


def branch_id(thread_id: str, name: str) -> str:
    """Return the id of a new branch."""
    made = f"{thread_id}-branch-{name}-{new_token()}"
    if len(made.encode()) > checks.THREAD_ID_BYTES_MAX:
        raise InvalidInput(
            f"the branch's thread id, made of its origin's id and its name, would be {len(made.encode()):,} bytes; "
            f"the limit is {checks.THREAD_ID_BYTES_MAX:,}: choose a shorter name, or branch nearer the root"
        )
    return made


def _first_of_branch(origin: Stored, thread_id: str, name: str) -> Draft:
    source = origin.record.key
    record = new_record(
        Key(thread_id, source.namespace, checkpoint_id(thread_id, 0)),
        0,
        (source,),
        tags=("branch", name),
        summary=f"Branch '{name}' from {source.checkpoint_id}",
        next_node=origin.record.next_node,
    )
    record = _with_root(record, _root(origin))._replace(repeats=origin.record.repeats)
    return Draft(record, (), (Base(source, origin.digest),))


def _merge_record(ours: Stored, theirs: Stored, bases: Sequence[Place]) -> Record:
    into, namespace, _ = ours.record.key
    step = ours.record.step + 1
    return new_record(
        Key(into, namespace, checkpoint_id(into, step)),
        step,
        (ours.record.key, theirs.record.key),
        tags=("merge",),
        summary=f"Merge {theirs.record.key.thread_id} into {into}",
        next_node=(theirs if checkpoint_tree.is_unmoved(ours, bases) else ours).record.next_node,
        kind=ours.record.kind,
    )


def _commons_after(thread: Thread, target: Stored) -> dict[str, Common]:
    """Return what a thread has in common, after a rewind, with those that went on from what it leaves behind."""
    return {
        other: Common(target.place, _root(target))
        for other, held in thread.commons.items()
        if any(c.place.key.thread_id == thread.thread_id and c.place.seq > target.seq for c in held)
    }


def next_node_change(before: str, after: str) -> list[Difference]:
    """Return the change of `next_node`, if it is one."""
    return [Difference("next_node", "changed", before, after)] if before != after else []


def _root(stored: Stored) -> Root:
    return Root(stored.record.children, stored.record.body, stored.record.sizes)


def _shown_root(root: Root) -> Root:
    """Return what is shown of an adapter's values: it keeps its own where the results of tools are."""
    return root_of_nodes([*tree.nodes(*root)[:2], tree.EMPTY_MAP])


def _with_root(record: Record, root: Root) -> Record:
    return record._replace(children=root.children, body=root.body, sizes=root.sizes)
