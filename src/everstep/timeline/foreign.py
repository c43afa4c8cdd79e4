"""The engine's work on a backend of somebody's own, which has only the seven published methods.

Checkpoints go in and out whole: a branch is a copy, a rewind is a new checkpoint that copies its target, and retention
is `delete_before`. What needs more (hiding, pins, undo) is refused. Writers of this process line up, one thread at a
time; between processes the backend is what it is.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar, cast

from everstep.backends import CheckpointBackend
from everstep.config import CheckpointGC, SnapshotConfig
from everstep.errors import (
    CheckpointNotFound,
    HeadMoved,
    IdTaken,
    InvalidInput,
    MergeConflict,
    SnapshotTooLarge,
    UnsupportedByBackend,
)
from everstep.history.checkpoint_tree import branch_name
from everstep.history.diff import compare
from everstep.history.merge_base import MergeBaseFinder, root_of_nodes
from everstep.history.rebase import Values
from everstep.history.three_way import merge as merge_roots
from everstep.reports import (
    CheckpointTree,
    DeletedThreads,
    Diff,
    GCReport,
    ThreadPage,
    TimeTravelResult,
    TreeEdge,
    TreeNode,
)
from everstep.repository.finding import check_deletion, make_search
from everstep.repository.ledger import Save
from everstep.repository.new_names import under_new_name
from everstep.repository.repository import copied
from everstep.repository.step import Step, checkpoint_id
from everstep.retention.policies import is_older, moment_of
from everstep.runtime.blocking import PrivateLoop
from everstep.runtime.queues import Queues
from everstep.stores.facts import Wanted
from everstep.stores.protocol import ANY, AnyHead, Key, Search
from everstep.timeline.branch import branch_id, log_branch
from everstep.timeline.protocol import Resolve
from everstep.timeline.store import next_node_change
from everstep.types import Checkpoint, CheckpointMetadata, utc_now
from everstep.values import codec, tree
from everstep.values.walk import Need, Root, read_values

logger = logging.getLogger("everstep")
R = TypeVar("R")
_PAGE = 500
_NAMES = ("messages", "state", "tools_result")
# Among how many checkpoints a live thread looks for one of its own.
_RECENT = 64
# How many snapshots lie between two looks at the age of a thread: each look reads the whole list.
_AGE_EVERY = 16

Objects = dict[bytes, tree.Content]


def _refusing(what: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return a method that is refused, whatever is asked: the backend can neither log, mark nor search anything."""

    async def refuse(self: PlainTimeline, *_args: Any, **_options: Any) -> NoReturn:
        self._refuse(what)

    return refuse


class PlainTimeline:
    """The history of threads on seven methods."""

    def __init__(self, backend: CheckpointBackend, config: SnapshotConfig) -> None:
        if config.gc_policy is CheckpointGC.KEEP_MILESTONES:
            raise UnsupportedByBackend(f"{type(backend).__name__} can only delete before a step: no milestones")
        self._backend = backend
        self._config = config
        self._loop = PrivateLoop()
        self._queues = Queues()

    @property
    def blocking(self) -> PlainTimeline:
        """The same: it is run on a private loop."""
        return self

    @property
    def run(self) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        """How a blocking caller gets to the end of a coroutine."""
        return self._loop.run

    @asynccontextmanager
    async def _turn(self, thread_id: str) -> AsyncIterator[None]:
        """Let the writers of one thread in one after the other, from whatever event loop they come."""
        place = self._queues.join(thread_id)
        try:
            await asyncio.wrap_future(place)
            yield
        finally:
            self._queues.leave(thread_id, place)

    # -- saving

    async def save(
        self, step: Step, values: tuple[Any, ...], parent_id: str | None, expect: str | AnyHead | None
    ) -> str:
        self._only_root(step.namespace)
        # Copied before the first wait: what the caller changes later belongs to a later step.
        kept = list(map(copied, values, _NAMES))
        async with self._turn(step.thread_id):
            latest = await self.get_latest(step.thread_id, "")
            _check_head(step.thread_id, expect, latest)
            parent = latest
            if parent_id is not None:
                parent = await self._required(parent_id, step.thread_id)
            return await self._put(step, parent, kept, latest)

    async def save_onto(self, step: Step, save: Save) -> str:
        """Save what a live thread holds as the next step; see `ledger`.

        Between the look at the head and the put another process may come in, which the backend alone could prevent.
        """
        async with self._turn(step.thread_id):
            latest = await self.get_latest(step.thread_id, "")
            head_id = _id_of(latest)
            try:
                save.check_follows(head_id)
                values = list(map(copied, save.values, _NAMES))
            except HeadMoved:
                merged = await self._merged_onto(latest, head_id, save)
                step.go_on_with(merged.next_node)
                values = list(merged[:3])
            return await self._put(step, latest, values, latest)

    async def _merged_onto(self, latest: Checkpoint | None, head_id: str | None, save: Save) -> Values:
        async def recent() -> list[str]:
            points = await self._backend.list_checkpoints(save.thread_id, _RECENT, 0)
            return [point.checkpoint_id for point in points]

        theirs = Values([], {}, {}, "")
        if latest is not None:
            theirs = Values(latest.messages, latest.state, latest.tools_result, latest.next_node)
        return await save.onto(head_id, theirs, recent)

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
        self._only_root(step.namespace)
        new = [copied(messages, "messages"), copied(state, "state"), copied(tools_result, "tools_result")]
        async with self._turn(step.thread_id):
            latest = await self.get_latest(step.thread_id, "")
            _check_head(step.thread_id, expect, latest)
            if latest is None:
                return await self._put(step, None, [new[0], new[1] or {}, new[2] or {}])
            values = [
                [*latest.messages, *new[0]],
                _updated(latest.state, new[1], replace),
                _updated(latest.tools_result, new[2], replace),
            ]
            return await self._put(step, latest, values, latest)

    async def _put(
        self,
        step: Step,
        parent: Checkpoint | None,
        values: Sequence[Any],
        latest: Checkpoint | None = None,
    ) -> str:
        size = len(codec.pack(list(values), "checkpoint"))
        added = size
        next_node = ""
        if latest is not None:
            # The backend keeps whole checkpoints, but a long past is no reason to refuse a short step.
            added -= len(codec.pack(_values_of(latest)))
            next_node = latest.next_node
        if added > self._config.size_bytes_max:
            raise SnapshotTooLarge(added, self._config.size_bytes_max)
        before = parent.metadata if parent is not None else None

        async def put() -> CheckpointMetadata:
            metadata = dataclasses.replace(step.metadata(before), size_bytes=size)
            return await self._put_new(_checkpoint(metadata, values, step.next_node(next_node)))

        metadata = await under_new_name(put, step.make_new_id)
        await self._upkeep(metadata)
        return metadata.checkpoint_id

    async def _put_new(self, checkpoint: Checkpoint) -> CheckpointMetadata:
        """Put a checkpoint whose id was made by chance; IdTaken if that is in use already.

        Between the look and the put another process may take the same id, which the backend alone could prevent.
        """
        metadata = checkpoint.metadata
        if await self._backend.get(metadata.checkpoint_id) is not None:
            raise IdTaken(f"the new id {metadata.checkpoint_id!r} is stored already")
        await self._backend.put(checkpoint)
        return metadata

    # -- reading

    async def get(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Checkpoint | None:
        self._only_root(namespace or "")
        # A copy, since the backend may hand out the very object that it holds, and callers may change what
        # they get.
        found = copy.deepcopy(await self._backend.get(checkpoint_id))
        if found is None or thread_id not in (None, found.metadata.thread_id):
            return None
        return found

    async def get_latest(self, thread_id: str, namespace: str) -> Checkpoint | None:
        self._only_root(namespace)
        return copy.deepcopy(await self._backend.get_latest(thread_id))

    async def list_points(self, thread_id: str, limit: int, offset: int, namespace: str) -> list[CheckpointMetadata]:
        self._only_root(namespace)
        return copy.deepcopy(await self._backend.list_checkpoints(thread_id, limit, offset))

    async def tree(self, thread_id: str, limit: int, *, branches: bool) -> CheckpointTree:
        names = [thread_id]
        if branches:
            names += await self._branches(thread_id)
        points: list[CheckpointMetadata] = []
        total = 0
        heads = set[str]()
        for name in names:
            listed = await self._all(name)
            total += len(listed)
            if listed:
                heads.add(listed[0].checkpoint_id)
            points += listed[:limit]
        points = _children_first(points)[:limit]
        nodes = [_node(point, point.checkpoint_id in heads) for point in points]
        return {"thread_id": thread_id, "total_checkpoints": total, "nodes": nodes, "edges": _edges(points)}

    async def diff(self, a: Key, b: Key) -> Diff:
        objects: Objects = {}
        before = await self._required(a.checkpoint_id)
        after = await self._required(b.checkpoint_id)
        changes = _walked(compare(_rooted(before, objects), _rooted(after, objects)), objects)
        changes += next_node_change(before.next_node, after.next_node)
        return Diff(a.checkpoint_id, b.checkpoint_id, changes)

    async def locate(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Key:
        self._only_root(namespace or "")
        found = await self._required(checkpoint_id, thread_id)
        return Key(found.metadata.thread_id, "", checkpoint_id)

    # -- going back

    async def rewind(self, key: Key, later: str) -> TimeTravelResult:
        """Go on from a copy of the checkpoint. Nothing is hidden: the backend keeps what came later listed."""
        if later == "delete":
            self._refuse("delete what came later")
        async with self._turn(key.thread_id):
            target = await self._required(key.checkpoint_id, key.thread_id)
            points = await self._all(key.thread_id)
            place = [point.checkpoint_id for point in points].index(key.checkpoint_id)
            summary = f"Rewind to {key.checkpoint_id}"

            async def put() -> CheckpointMetadata:
                metadata = self._new(key.thread_id, points[0], ["rewind"], summary)
                # It goes on from there, not from what was left behind.
                metadata.parents = [key.checkpoint_id]
                metadata.parent_checkpoint_id = key.checkpoint_id
                metadata.size_bytes = target.metadata.size_bytes
                return await self._put_new(dataclasses.replace(target, metadata=metadata))

            metadata = await under_new_name(put)
        found = await self._required(metadata.checkpoint_id)
        return TimeTravelResult(found, key.thread_id, place, len(points))

    async def at_step(self, thread_id: str, step: int, namespace: str) -> Key | None:
        self._only_root(namespace)
        for point in await self._all(thread_id):
            if point.step <= step:
                return Key(thread_id, "", point.checkpoint_id)
        return None

    resolve = _refusing("tell what a reference means")
    undo = _refusing("undo")
    redo = _refusing("redo")
    operations = _refusing("keep a log of operations")
    pin = _refusing("pin checkpoints")
    tag = _refusing("tag checkpoints")
    note = _refusing("keep notes about checkpoints")
    rename = _refusing("rename branches")
    archive = _refusing("archive branches")
    sizes = _refusing("tell what threads take")

    # -- branching and merging

    async def branch(
        self,
        checkpoint_id: str,
        thread_id: str | None,
        namespace: str | None,
        name: str,
        effects: str = "share",  # noqa: ARG002  # no runs here
    ) -> str:
        """Start a thread with a copy of a checkpoint."""
        source = await self.locate(checkpoint_id, thread_id, namespace)
        origin = await self._required(source.checkpoint_id, source.thread_id)
        made = await under_new_name(lambda: self._branch(origin, source, name))
        log_branch(made, source)
        return made

    async def _branch(self, origin: Checkpoint, source: Key, name: str) -> str:
        thread_id = branch_id(source.thread_id, name)
        if await self._backend.get_latest(thread_id) is not None:
            raise IdTaken(f"the new thread {thread_id!r} exists already")
        metadata = CheckpointMetadata(
            thread_id=thread_id,
            checkpoint_id=checkpoint_id(thread_id, 0),
            step=0,
            parent_checkpoint_id=source.checkpoint_id,
            tags=["branch", name],
            summary=f"Branch '{name}' from {source.checkpoint_id}",
            size_bytes=origin.metadata.size_bytes,
        )
        await self._put_new(dataclasses.replace(origin, metadata=metadata))
        return thread_id

    async def merge(self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None) -> str:
        if graph is not None:
            raise InvalidInput("graph= is for threads of a LangGraph saver, which this backend does not hold")
        self._only_root(namespace)
        if branch == into:
            raise InvalidInput(f"thread {into!r} cannot be merged into itself")
        async with self._turn(into):
            ours = await self._head(into)
            theirs = await self._head(branch)
            graph = await self._graph(into, branch)
            bases = graph.common(ours.metadata.checkpoint_id, theirs.metadata.checkpoint_id)
            if not bases:
                raise InvalidInput(f"threads {branch!r} and {into!r} are unrelated, or what they had in common is gone")
            if theirs.metadata.checkpoint_id in bases:
                return ours.metadata.checkpoint_id
            return await self._merge(ours, theirs, bases, graph, resolve)

    async def _graph(self, *names: str) -> _Graph:
        """Read the history of threads, and of those that they came from or merged."""
        points: dict[str, CheckpointMetadata] = {}
        # Parents, some of which belong to other threads.
        pending: list[str] = []

        async def add(thread_id: str) -> None:
            for point in await self._all(thread_id):
                points[point.checkpoint_id] = point
                pending.extend(point.parents)

        for name in names:
            await add(name)
        asked = set(names)
        while pending:
            parent = pending.pop()
            if parent in points:
                continue
            found = await self._backend.get(parent)
            if found is not None and found.metadata.thread_id not in asked:
                asked.add(found.metadata.thread_id)
                await add(found.metadata.thread_id)
        return _Graph(list(points.values()))

    async def _merge(
        self, ours: Checkpoint, theirs: Checkpoint, bases: Sequence[str], graph: _Graph, resolve: Resolve
    ) -> str:
        objects: Objects = {}

        async def root_of(checkpoint_id: str) -> Root:
            return _rooted(await self._required(checkpoint_id), objects)

        async def walk(need: Need[R], more: Mapping[bytes, tree.Content]) -> R:
            return _walked(need, {**objects, **more})

        async def below(names: Sequence[str], other: str) -> Sequence[str]:
            return graph.common_of(names, other)

        base = await MergeBaseFinder(root_of, below, walk).merged(bases)
        sides = _rooted(ours, objects), _rooted(theirs, objects)
        need = merge_roots(base.root, *sides, resolve=resolve, uncertain=base.uncertain, mappings_only=True)
        merged = await walk(need, base.objects)
        if merged.conflicts:
            raise MergeConflict(merged.conflicts)
        values = await walk(read_values(root_of_nodes(merged.nodes)), {**base.objects, **merged.objects})
        thread_id = ours.metadata.thread_id
        other = theirs.metadata
        next_node = ours.next_node
        # Nothing has happened here since, so only theirs knows what comes next.
        if ours.metadata.checkpoint_id in bases:
            next_node = theirs.next_node

        async def put() -> CheckpointMetadata:
            metadata = self._new(thread_id, ours.metadata, ["merge"], f"Merge {other.thread_id} into {thread_id}")
            metadata.parents = [ours.metadata.checkpoint_id, other.checkpoint_id]
            metadata.size_bytes = len(codec.pack(values))
            return await self._put_new(_checkpoint(metadata, values, next_node))

        return (await under_new_name(put)).checkpoint_id

    # -- retention

    async def _upkeep(self, metadata: CheckpointMetadata) -> None:
        """Apply the policy after a save; a failure is logged, the checkpoint is saved."""
        try:
            # Steps are counted, not checkpoints: `delete_before` knows no other measure.
            if self._config.gc_policy is CheckpointGC.KEEP_LAST_N and metadata.step > self._config.gc_param:
                await self._backend.delete_before(metadata.thread_id, metadata.step - int(self._config.gc_param) + 1)
            elif self._config.gc_policy is CheckpointGC.KEEP_AGE and metadata.step % _AGE_EVERY == 0:
                await self._collect(metadata.thread_id, GCReport())
        except Exception:
            logger.exception("retention of thread %r failed and will be tried again", metadata.thread_id)

    async def collect(self, thread_id: str | None, *, dry_run: bool) -> GCReport:
        """Apply the retention policy."""
        report = GCReport(dry_run=dry_run)
        if thread_id is None:
            names = await self._threads()
        else:
            names = [thread_id]
        for name in names:
            report.threads += 1
            await self._collect(name, report)
        return report

    async def _collect(self, thread_id: str, report: GCReport) -> None:
        points = await self._all(thread_id)
        before = self._first_kept(points)
        if before is None:
            return
        gone = [point for point in points if point.step < before]
        # How a backend of somebody's own stores values is not known: this is what they take encoded.
        report.size_bytes += sum(point.size_bytes for point in gone)
        if report.dry_run:
            report.checkpoints += len(gone)
        else:
            report.checkpoints += await self._backend.delete_before(thread_id, before)

    def _first_kept(self, points: Sequence[CheckpointMetadata]) -> int | None:
        """Return the smallest step that is kept; None: all are."""
        policy = self._config.gc_policy
        param = self._config.gc_param
        if not points or policy is CheckpointGC.KEEP_ALL:
            return None
        if policy is CheckpointGC.KEEP_LAST_N:
            return points[0].step - int(param) + 1
        now = datetime.now(UTC)
        # The newest one stays, however old it is.
        first = points[0].step
        for point in points:
            if not is_older(moment_of(point.created_at), param, now):
                first = min(first, point.step)
        return first

    async def list_threads(self, limit: int, **asked: Any) -> ThreadPage:
        """Return threads in the backend's order: all are looked at, one page after the other.

        The cursor counts the threads that were looked at.
        """
        start = _position(asked.pop("cursor", None))
        search = make_search(limit=limit, **asked)
        found: list[CheckpointMetadata] = []
        while len(found) < search.limit:
            page = await self._backend.list_threads(_PAGE, start)
            for metadata in page:
                start += 1
                if _is_found(metadata, search):
                    found.append(metadata)
                if len(found) == search.limit:
                    return ThreadPage(found, cursor=str(start))
            if len(page) < _PAGE:
                break
        return ThreadPage(found)

    async def delete_threads(self, **asked: Any) -> DeletedThreads:
        everything = asked.pop("everything")
        dry_run = asked.pop("dry_run")
        check_deletion(make_search(**asked), everything=everything)
        # All at once: to delete while paging would move the pages.
        found = await self.list_threads(2**62 - 1, **asked)
        names = [metadata.thread_id for metadata in found]
        checkpoints = 0
        for name in names:
            if dry_run:
                checkpoints += len(await self._all(name))
            else:
                checkpoints += await self._backend.delete_thread(name)
        return DeletedThreads(names, checkpoints, dry_run)

    async def close(self) -> None:
        await self._backend.close()

    # -- helpers

    def _new(self, thread_id: str, head: CheckpointMetadata, tags: list[str], summary: str) -> CheckpointMetadata:
        return CheckpointMetadata(
            thread_id=thread_id,
            checkpoint_id=checkpoint_id(thread_id, head.step + 1),
            step=head.step + 1,
            parent_checkpoint_id=head.checkpoint_id,
            created_at=utc_now(),
            tags=tags,
            summary=summary,
        )

    async def _required(self, checkpoint_id: str, thread_id: str | None = None) -> Checkpoint:
        found = await self.get(checkpoint_id, thread_id, None)
        if found is None:
            raise CheckpointNotFound(checkpoint_id, thread_id)
        return found

    async def _head(self, thread_id: str) -> Checkpoint:
        found = await self.get_latest(thread_id, "")
        if found is None:
            raise InvalidInput(f"thread {thread_id!r} has no checkpoints")
        return found

    async def _all(self, thread_id: str) -> list[CheckpointMetadata]:
        """Return the metadata of all checkpoints of a thread, newest first."""
        found: list[CheckpointMetadata] = []
        while True:
            page = await self._backend.list_checkpoints(thread_id, _PAGE, len(found))
            found += page
            if len(page) < _PAGE:
                return found

    async def _threads(self) -> list[str]:
        found: list[str] = []
        while True:
            page = await self._backend.list_threads(_PAGE, len(found))
            for metadata in page:
                found.append(metadata.thread_id)
            if len(page) < _PAGE:
                return found

    async def _branches(self, thread_id: str) -> list[str]:
        return [name for name in await self._threads() if name.startswith(f"{thread_id}-branch-")]

    def _only_root(self, namespace: str) -> None:
        if namespace:
            self._refuse("keep namespaces")

    def _refuse(self, what: str) -> NoReturn:
        name = type(self._backend).__name__
        raise UnsupportedByBackend(f"{name} cannot {what}; the built-in backends can (memory, SQLite)")


class _Graph:
    """Ancestors by the parents that metadata names."""

    def __init__(self, points: Iterable[CheckpointMetadata]) -> None:
        self._parents = {point.checkpoint_id: point.parents for point in points}

    def common(self, one: str, other: str) -> list[str]:
        """Return the best common ancestors that are stored."""
        return self.common_of([one], other)

    def common_of(self, ones: Collection[str], other: str) -> list[str]:
        """Return the best common ancestors of some checkpoints, taken together, and another one."""
        mine = set().union(*map(self._ancestors, ones))
        shared = mine & self._ancestors(other)
        # What is below another common ancestor is not among the best of them.
        covered: set[str] = set()
        for found in shared:
            covered |= self._ancestors(found) - {found}
        return sorted(shared - covered)

    def _ancestors(self, checkpoint_id: str) -> set[str]:
        found: set[str] = set()
        pending = [checkpoint_id]
        while pending:
            name = pending.pop()
            if name not in found and name in self._parents:
                found.add(name)
                pending.extend(self._parents[name])
        return found


def _checkpoint(metadata: CheckpointMetadata, values: Sequence[Any], next_node: str) -> Checkpoint:
    messages, state, tools_result = values
    return Checkpoint(metadata, messages, state, tools_result, next_node)


def _values_of(checkpoint: Checkpoint) -> list[Any]:
    return [checkpoint.messages, checkpoint.state, checkpoint.tools_result]


def _check_head(thread_id: str, expect: str | AnyHead | None, latest: Checkpoint | None) -> None:
    actual = _id_of(latest)
    if expect is not ANY and expect != actual:
        raise HeadMoved(thread_id, expect, actual)


def _id_of(checkpoint: Checkpoint | None) -> str | None:
    return checkpoint.metadata.checkpoint_id if checkpoint is not None else None


def _updated(old: dict[str, Any], update: dict[str, Any] | None, replace: bool) -> dict[str, Any]:
    if update is None:
        return old
    if replace:
        return update
    return {**old, **update}


def _rooted(checkpoint: Checkpoint, objects: Objects) -> Root:
    """Return the values of a checkpoint as a tree in memory."""
    writer = tree.Writer(objects=objects)
    nodes = [
        writer.list_node(checkpoint.messages, "messages"),
        writer.value(checkpoint.state, "state"),
        writer.value(checkpoint.tools_result, "tools_result"),
    ]
    return root_of_nodes(nodes)


def _walked(need: Need[R], objects: Mapping[bytes, tree.Content]) -> R:
    """Run a walk whose objects are all in memory."""
    try:
        wanted = next(need)
        while True:
            wanted = need.send({key: objects[key] for key in wanted if key in objects})
    except StopIteration as done:
        result: R = done.value
        return result


def _children_first(points: list[CheckpointMetadata]) -> list[CheckpointMetadata]:
    """Sort by time, newest first: between threads a plain backend knows no better order."""
    return sorted(points, key=lambda point: point.created_at, reverse=True)


def _node(point: CheckpointMetadata, is_head: bool) -> TreeNode:
    node = point.to_dict()
    del node["metadata"]
    branch = branch_name(point.tags) if point.step == 0 else None
    node |= {"id": point.checkpoint_id, "head": is_head, "branch": branch, "hidden": False}
    return cast(TreeNode, node)


def _edges(points: Sequence[CheckpointMetadata]) -> list[TreeEdge]:
    """Return the edges between these checkpoints. One to a checkpoint that is not among them is left out."""
    threads = {point.checkpoint_id: point.thread_id for point in points}
    edges: list[TreeEdge] = []
    for child in points:
        for parent in child.parents:
            if parent not in threads:
                continue
            edge: TreeEdge = {
                "from": parent,
                "to": child.checkpoint_id,
                "from_thread": threads[parent],
                "to_thread": child.thread_id,
                "gap": False,
            }
            edges.append(edge)
    return edges


def _position(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (isinstance(cursor, str) and cursor.isascii() and cursor.isdigit()):
        raise InvalidInput("cursor is not one that list_threads() gave; pass page.cursor as it is")
    return int(cursor)


def _is_found(metadata: CheckpointMetadata, search: Search) -> bool:
    """Whether a search is about a thread whose latest is this. When it was active is known by its time only."""
    if not metadata.thread_id.startswith(search.prefix) or not Wanted.of(search).fits(metadata):
        return False
    if search.since is None:
        return True
    return datetime.fromisoformat(metadata.created_at).timestamp() * 1_000_000 >= search.since
