"""The engine's operations on threads that a saver wrote: going back, branching, merging.

LangGraph finds out what to run next from a checkpoint, its pending writes, and the checkpoints of subgraphs that were
written while it was the newest. So what is undone, or taken along, is always all three. The ids of tasks, and with them
the namespaces of subgraphs (`node:task|node:task`), follow from the id of the checkpoint that started them.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal

from everstep.errors import InvalidInput
from everstep.history import checkpoint_tree
from everstep.history.adapter import Beginning, WayBack
from everstep.history.ancestry import Ancestry
from everstep.history.merge_base import MergeBase
from everstep.history.three_way import Resolve
from everstep.langgraph import display
from everstep.langgraph.channels import Channels, Form
from everstep.langgraph.classes import Kinds
from everstep.langgraph.merging import KINDS, merged, named
from everstep.langgraph.saved import KIND
from everstep.reports import Difference
from everstep.repository.repository import Repository, squeezed_objects
from everstep.stores.protocol import (
    BaseRef,
    Draft,
    Hidden,
    Key,
    Loaded,
    Place,
    Query,
    Record,
    Store,
    Stored,
    Thread,
    Write,
)
from everstep.values import tree
from everstep.values.tree import Content

_PAGE = 256
_NO_TASK = "00000000-0000-0000-0000-000000000000"
"""The task of what did not come from a task, such as the answer to an interrupt."""


class _LangGraph:
    """See `adapters.Adapter`."""

    codec = display.CODEC
    merge_codec = KINDS.codec

    def opened(self, record: Record, objects: Mapping[bytes, Content]) -> tuple[list[Any], str]:
        return display.opened(record, objects)

    def described(self, record: Record) -> tuple[tuple[str, ...], str]:
        return display.described(record)

    def unpacked(self, form: Any, packed: bytes) -> Any:
        return Channels(Kinds()).unpacked(form, packed)

    async def shown(
        self, repository: Repository, changes: Sequence[Difference], before: Stored, after: Stored
    ) -> list[Difference]:
        """Say what comes next instead of what LangGraph notes about it, and messages as they are shown elsewhere."""
        forms_before = await _forms(repository, before)
        forms_after = await _forms(repository, after)
        found: list[Difference] = []
        for change in changes:
            if not display.is_internal_path(change.path):
                found.append(display.difference(change, forms_before, forms_after))
        if len(found) < len(changes):
            # LangGraph keeps in channels of its own which nodes come next.
            next_before = await _next_node(repository, before)
            next_after = await _next_node(repository, after)
            if next_before != next_after:
                found.append(Difference("next_node", "changed", next_before, next_after))
        return found

    async def way_back(self, store: Store, thread: Thread, target: Loaded) -> WayBack:
        """Leave behind, in every namespace, what has a greater id than `target`."""
        key = target.stored.record.key
        doomed = await _greater(store, key)
        heads: dict[str, str | None] = {key.namespace: key.checkpoint_id}
        heads.update(_above(target.stored.record))
        for namespace in {stored.record.key.namespace for stored in doomed} - heads.keys():
            older = Query(
                thread_id=key.thread_id, namespace=namespace, before_id=key.checkpoint_id, order="id", limit=1
            )
            left = await store.list_checkpoints(older)
            heads[namespace] = None
            if left:
                heads[namespace] = left[0].record.key.checkpoint_id
        writes = checkpoint_tree.writes(target.writes, key, thread)
        kept = list[Hidden]()
        for above, tasks in _running(target.stored.record).items():
            loaded = await store.read(*above, writes=True)
            if loaded is None:
                raise InvalidInput(
                    f"checkpoint {key.checkpoint_id!r} is of a subgraph, and the checkpoint {above.checkpoint_id!r} of "
                    "the graph around it is not stored any more; rewind to one of the graph itself"
                )
            undone = [write for write in loaded.writes if _is_of(write, tasks)]
            others = [write for write in loaded.writes if not _is_of(write, tasks)]
            writes += checkpoint_tree.writes(undone, above, thread, others)
            kept += checkpoint_tree.writes(others, above, thread, undone)
        return WayBack(
            heads,
            await _stretches(store, key.thread_id, doomed),
            writes,
            sum(stored.record.key.namespace == key.namespace for stored in doomed),
            await store.count(Query(thread_id=key.thread_id, namespace=key.namespace)),
            kept,
        )

    async def beginning(self, repository: Repository, source: Stored, thread_id: str, name: str) -> Beginning:
        """Take along the checkpoint under its own id, what its unfinished tasks have done, and subgraphs' memory."""
        store = repository.store
        key = source.record.key
        running = _running(source.record)
        chosen = {above.namespace: above for above in running}
        chosen[key.namespace] = key
        # A checkpoint of a subgraph goes with the one of the graph that the subgraph runs in.
        root = chosen.get("", key)
        chosen = await _memories(store, root, source) | chosen
        keys = [chosen.pop(root.namespace), *chosen.values()]
        loaded = await store.read_many(keys, writes=True)
        if [found.stored.record.key for found in loaded] != keys:
            raise InvalidInput(
                f"checkpoint {key.checkpoint_id!r} cannot be branched from: one that it needs was deleted"
            )
        writes = list[tuple[Key, Write]]()
        drafts = list[Draft]()
        for found in loaded:
            at = found.stored.record.key
            kept = found.writes
            # The task that the subgraph runs in has not come so far yet.
            if at in running:
                kept = [write for write in found.writes if not _is_of(write, running[at])]
            draft = await _draft(repository, found.stored, kept, thread_id)
            writes += [(draft.record.key, write) for write in kept]
            drafts.append(draft)
        first = drafts[0].record._replace(
            tags=("branch", name), summary=f"Branch '{name}' from {source.record.key.checkpoint_id}"
        )
        return Beginning(loaded[0].stored, [drafts[0]._replace(record=first), *drafts[1:]], writes)

    def lasting(self, thread: Thread) -> list[str]:
        return [namespace for namespace in thread.heads if _is_lasting(namespace)]

    def taken_over(self, source: Stored, thread_id: str) -> Draft:
        """Return it under its own id. Its values are shared."""
        record = source.record
        copy = record._replace(key=record.key._replace(thread_id=thread_id), parents=(record.key,), tags=(), summary="")
        return Draft(copy, (), (BaseRef(record.key, source.digest),))

    def subgraph(self, graph: Any, namespace: str) -> Any:
        if not hasattr(graph, "get_subgraphs"):
            return None
        return dict(graph.get_subgraphs(recurse=True)).get(namespace)

    async def merged(
        self,
        repository: Repository,
        sides: tuple[Stored, Stored],
        base: MergeBase,
        bases: Sequence[Place],
        ancestry: Ancestry,
        *,
        resolve: Resolve,
        graph: Any,
    ) -> Draft:
        return await merged(repository, sides, base, bases, ancestry, resolve=resolve, graph=graph)

    async def named(self, store: Store, drafts: Sequence[Draft]) -> list[Draft]:
        return await named(store, drafts)


ADAPTER = _LangGraph()


async def _forms(repository: Repository, stored: Stored) -> Mapping[str, Form]:
    """Return the forms of a checkpoint's channels; those of the engine's own have none."""
    record = stored.record
    if record.kind != KIND:
        return {}
    *_, rest = tree.nodes(record.children, record.body, record.sizes)
    return display.forms(rest, await repository.objects(stored.family, rest.children))


async def _next_node(repository: Repository, stored: Stored) -> str:
    loaded = await repository.load(*stored.record.key)
    if loaded is None:
        return ""
    return loaded[0].record.next_node


async def _greater(store: Store, key: Key) -> list[Stored]:
    """Return the visible checkpoints of a saver with a greater id, in all namespaces."""
    found: list[Stored] = []
    offset = 0
    while True:
        query = Query(thread_id=key.thread_id, namespace=None, order="id", limit=_PAGE, offset=offset)
        listed = await store.list_checkpoints(query)
        greater = [stored for stored in listed if stored.record.key.checkpoint_id > key.checkpoint_id]
        found += [stored for stored in greater if stored.record.kind == KIND]
        if len(greater) < _PAGE:
            return found
        offset += _PAGE


async def _stretches(store: Store, thread_id: str, doomed: Sequence[Stored]) -> list[Hidden]:
    """Return the stretches that hold these checkpoints and no other visible one."""
    if not doomed:
        return []
    gone = {stored.seq for stored in doomed}
    query = Query(thread_id=thread_id, namespace=None, after_seq=min(gone) - 1, order="oldest")
    found: dict[str, list[Hidden]] = {}
    is_open: dict[str, bool] = {}
    for stored in await store.list_checkpoints(query):
        namespace = stored.record.key.namespace
        stretches = found.setdefault(namespace, [])
        if stored.seq not in gone:
            is_open[namespace] = False
        elif is_open.get(namespace):
            stretches[-1] = stretches[-1]._replace(to=stored.seq)
        else:
            stretches.append(Hidden(namespace, stored.seq - 1, stored.seq))
            is_open[namespace] = True
    return list(itertools.chain(*found.values()))


def _above(record: Record) -> dict[str, str]:
    """Return the checkpoints of the graphs around a subgraph that it was written under: ids by namespace."""
    parents = record.metadata.get("parents")
    if not record.key.namespace or not isinstance(parents, Mapping):
        return {}
    found: dict[str, str] = {}
    for namespace, checkpoint_id in parents.items():
        # The metadata is LangGraph's, and whoever puts by hand writes anything there.
        if not isinstance(namespace, str) or not isinstance(checkpoint_id, str):
            continue
        if namespace != record.key.namespace:
            found[namespace] = checkpoint_id
    return found


def _running(record: Record) -> dict[Key, str | None]:
    """Return, by checkpoint above a subgraph's, the task that the subgraph runs in; None: it is not known which."""
    found: dict[Key, str | None] = {}
    for namespace, checkpoint_id in _above(record).items():
        rest = record.key.namespace.removeprefix(namespace).removeprefix("|")
        _, _, task = rest.partition("|")[0].partition(":")
        found[Key(record.key.thread_id, namespace, checkpoint_id)] = task or None
    return found


def _is_of(write: Write, task: str | None) -> bool:
    """Whether a pending write is undone when a task is: its own, and answers to interrupts, which are for any."""
    return task is None or write.task_id == task or (write.task_id == _NO_TASK and write.channel == "__resume__")


async def _memories(store: Store, root: Key, source: Stored) -> dict[str, Key]:
    """Return the checkpoints of subgraphs that go with a checkpoint of the graph: by namespace, the last ones.

    These are what its own tasks have written (until the next step of the graph), and those of namespaces without a
    task, where a subgraph keeps its memory from call to call.
    """
    thread = await store.thread(root.thread_id)
    if thread is None or not thread.heads.keys() - {root.namespace}:
        return {}
    begun = await store.read(*root)
    if begun is None:
        return {}
    until: int | None = None
    if source.record.key != root:
        # Of the other subgraphs, only what was there when this one had come so far.
        until = source.seq + 1
    found: dict[str, Key] = {}
    last = begun.stored.seq
    async with aclosing(_later(store, begun.stored, until)) as later:
        async for stored in later:
            namespace = stored.record.key.namespace
            # Here begins the next step of the graph.
            if namespace == root.namespace:
                break
            last = stored.seq
            if stored.record.kind == KIND and _above(stored.record).get(root.namespace) == root.checkpoint_id:
                found[namespace] = stored.record.key
    return found | await _lasting(store, thread, root, last, found)


async def _later(store: Store, start: Stored, until: int | None) -> AsyncGenerator[Stored, None]:
    """Yield what was put into a thread after a checkpoint, in order; hidden ones only if that one is hidden, too."""
    hidden: Literal["no", "also"] = "no"
    if start.hidden:
        hidden = "also"
    offset = 0
    while True:
        query = Query(
            thread_id=start.record.key.thread_id, namespace=None, after_seq=start.seq, before_seq=until,
            order="oldest", hidden=hidden, limit=_PAGE, offset=offset,
        )  # fmt: skip
        listed = await store.list_checkpoints(query)
        for stored in listed:
            yield stored
        if len(listed) < _PAGE:
            return
        offset += _PAGE


async def _lasting(store: Store, thread: Thread, root: Key, last: int, known: Mapping[str, Key]) -> dict[str, Key]:
    found: dict[str, Key] = {}
    for namespace in thread.heads.keys() - known.keys() - {root.namespace}:
        if _is_lasting(namespace):
            query = Query(thread_id=root.thread_id, namespace=namespace, before_seq=last + 1, order="id", limit=1)
            listed = await store.list_checkpoints(query)
            if listed and listed[0].record.kind == KIND:
                found[namespace] = listed[0].record.key
    return found


def _is_lasting(namespace: str) -> bool:
    """Whether a namespace is that of a subgraph with a memory of its own: it is not bound to one task."""
    return bool(namespace) and ":" not in namespace


async def _draft(repository: Repository, source: Stored, writes: Sequence[Write], thread_id: str) -> Draft:
    """Return a checkpoint as the first of another thread. Its values are shared; so are those of its writes."""
    children = b"".join([write.children for write in writes])
    # The store has them; they are sent so that no sweep takes them before this commits.
    objects: Mapping[bytes, Content] = {}
    if children:
        objects = await repository.objects(source.family, children)
    return ADAPTER.taken_over(source, thread_id)._replace(objects=squeezed_objects(objects, thorough=True))
