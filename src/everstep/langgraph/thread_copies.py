"""`copy_thread`: a thread under another name in the same store, with the same ids, in the same order.

The copy shares nothing with the thread that it is made of, and outlives it. So every object is sent anew; what the
checkpoint before has in the copy is left out, and sent after all if that one is gone. Both threads may be written to or
deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from everstep.errors import BaseGone
from everstep.langgraph.commits import counted, send_writes
from everstep.langgraph.reading import Reader, children_of_writes
from everstep.repository.repository import Repository, squeezed_objects
from everstep.stores.protocol import BaseRef, Change, Draft, Key, Loaded, Query, Record, Stored, Write
from everstep.types import TASK_NAMESPACE
from everstep.values import tree

_PAGE_MAX = 128


class _Copied(NamedTuple):
    """A checkpoint that was copied to another thread, and the objects that it has there."""

    base: BaseRef
    objects: set[bytes]


class ThreadCopier:
    """Copies threads over one face of a store."""

    def __init__(self, repository: Repository, reader: Reader, forget: Callable[[str], None]) -> None:
        """`forget` is told of each thread that was copied to: what was remembered of it is old by then."""
        self._repository = repository
        self._store = repository.store
        self._reader = reader
        self._forget = forget

    async def copy(self, source: str, target: str) -> None:
        """Copy all that is visible of a thread into another: the same ids, in the same order."""
        every = Query(thread_id=source, namespace=None, hidden="also")
        there = {stored.record.key for stored in await self._store.list_checkpoints(every)}
        raw = await self._store.raw(source)
        if raw is None or source == target:
            return
        for namespace in raw.lines:
            if namespace != TASK_NAMESPACE:  # who runs this one does not run its copy
                await self._copy_namespace(source, namespace, target)
        there |= {stored.record.key for stored in await self._store.list_checkpoints(every)}
        early: dict[Key, list[Write]] = {}  # writes whose checkpoint has not come yet
        for key, write in raw.writes:
            if key not in there:
                early.setdefault(key, []).append(write)
        for key, writes in early.items():
            await self._copy_early(raw.family, key, writes, target)
        self._forget(target)

    async def _copy_namespace(self, source: str, namespace: str, target: str) -> None:
        query = Query(thread_id=source, namespace=namespace, order="oldest")
        keys = [stored.record.key for stored in await self._store.list_checkpoints(query)]
        last: _Copied | None = None
        for start in range(0, len(keys), _PAGE_MAX):
            for loaded in await self._store.read_many(keys[start : start + _PAGE_MAX], writes=True):
                last = await self._copy_checkpoint(loaded, target, last) or last

    async def _copy_checkpoint(self, loaded: Loaded, target: str, last: _Copied | None) -> _Copied | None:
        """Copy a checkpoint with its writes; `last` is the one that was copied before it. None: it was deleted."""
        gathered = await self._reader.decode(loaded, _gather_all)
        if gathered is None:
            return None
        loaded, objects, written = gathered
        record = loaded.stored.record
        parents = [parent for parent in record.parents if parent.thread_id == record.key.thread_id]
        record = record._replace(
            key=record.key._replace(thread_id=target),
            parents=tuple(parent._replace(thread_id=target) for parent in parents),
        )
        try:
            stored = await self._commit(record, objects, last)
        except BaseGone:  # the copy is being deleted, or written to
            stored = await self._commit(record, objects, None)
        if loaded.writes:
            packed = squeezed_objects(written, thorough=True)
            await send_writes(self._store, record.key, loaded.writes, packed)
        return _Copied(BaseRef(record.key, stored.digest), set(objects))

    async def _commit(self, record: Record, objects: Mapping[bytes, tree.Content], last: _Copied | None) -> Stored:
        known = last.objects if last is not None else ()
        sent = {key: content for key, content in objects.items() if key not in known}
        bases = (last.base,) if last is not None else ()
        draft = Draft(record, squeezed_objects(sent, thorough=True), bases)
        change = Change(record.key.thread_id, record.key.namespace, build=lambda _: draft, head="newer")
        return counted(await self._store.commit(change), draft.objects)

    async def _copy_early(self, family: str, key: Key, writes: Sequence[Write], target: str) -> None:
        """Copy the writes of a checkpoint that has not come yet, unless they were deleted meanwhile."""
        children = b"".join([write.children for write in writes])
        try:
            objects = _complete(children, await self._repository.objects(family, children))
        except tree.MissingObject as exc:
            raw = await self._store.raw(key.thread_id)
            if raw is None or all((key, write) not in raw.writes for write in writes):
                return
            raise exc.located(key.thread_id, key.checkpoint_id) from exc
        packed = squeezed_objects(objects, thorough=True)
        await send_writes(self._store, key._replace(thread_id=target), writes, packed)


def _gather_all(
    loaded: Loaded, objects: Mapping[bytes, tree.Content]
) -> tuple[Loaded, dict[bytes, tree.Content], dict[bytes, tree.Content]]:
    """Return a checkpoint with every object that it needs, and those that its writes need."""
    written = _complete(children_of_writes(loaded), objects)
    return loaded, _complete(loaded.stored.record.children, objects), written


def _complete(children: bytes, objects: Mapping[bytes, tree.Content]) -> dict[bytes, tree.Content]:
    """Return all objects at or below `children`; MissingObject if one is not among these."""
    found: dict[bytes, tree.Content] = {}
    pending = tree.hashes(children)
    while pending:
        key = pending.pop()
        if key in found:
            continue
        content = objects.get(key)
        if content is None:
            raise tree.MissingObject(key)
        found[key] = content
        pending.extend(tree.hashes(content[0]))
    return found
