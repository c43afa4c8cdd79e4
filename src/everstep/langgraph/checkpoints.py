"""Checkpoints of LangGraph in and out of a store: the one way that every method of the saver takes.

What was put or read last is remembered as lines: the values of a checkpoint as they were written. The next checkpoint
is written from its parent's line, so that only what changed is packed into new objects. The store checks inside the
commit that the parent is still what the line says; if not, everything is written anew.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from everstep.errors import BaseGone, CheckpointCorrupted, StoreUnavailable
from everstep.langgraph.channels import (
    Channels,
)
from everstep.langgraph.configs import COUNTERS
from everstep.langgraph.decoding import Decoder
from everstep.langgraph.delta_channels import DeltaReader, delta_names
from everstep.langgraph.encoding import Delta, Encoder
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.last_written import Lines
from everstep.langgraph.reading import Reader, children_of_writes
from everstep.langgraph.saved import KIND, SPECIAL_WRITES, Pending, Saved, check_kind, of_graph
from everstep.repository.fences import Fence
from everstep.repository.repository import Encoded, Repository, reclaim, squeezed_objects, verified
from everstep.repository.turns import BEATEN_MAX
from everstep.runtime import calls, checks
from everstep.runtime.calls import public_call
from everstep.stores.abilities import ReadsPages, ReadsTogether
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Draft,
    Key,
    Loaded,
    Object,
    Query,
    Record,
    Stored,
    Write,
)
from everstep.types import TASK_NAMESPACE, utc_now
from everstep.values import tree

if TYPE_CHECKING:
    from everstep.retention.keeper import Keeper

logger = logging.getLogger("everstep")

T = TypeVar("T")

_PAGE_FIRST = 16
_PAGE_MAX = 128
_AHEAD_MAX = 8  # checkpoints decoded before they are asked for
_TS_LENGTH = len("2026-01-01T00:00:00.000000+00:00")


class _Copied(NamedTuple):
    """A checkpoint that was copied to another thread, and the objects that it has there."""

    base: BaseRef
    objects: set[bytes]


class Threads:
    """Puts, reads, lists and deletes over one face of a store."""

    def __init__(
        self,
        repository: Repository,
        channels: Channels,
        keeper: Keeper | None = None,
        lines: Lines | None = None,
        fence: Fence | None = None,
        *,
        shares: bool = False,
    ) -> None:
        """With `shares` the same message of several checkpoints is one object: for readers that change nothing."""
        self._repository = repository
        self._channels = channels
        self._keeper = keeper
        self._lines = lines or Lines()
        self._fence = fence
        self._encoder = Encoder(channels, repository.memory)
        decoder = Decoder(channels, shares=shares)
        self._reader = Reader(repository, decoder, self._lines)
        self._deltas = DeltaReader(repository.store, channels, decoder, self._reader)
        self._store = repository.store
        self.figures = repository.figures
        """Where calls are counted: with those of everything else on the same backend."""
        self.limit_seconds = repository.store.limit_seconds
        """How long putting or reading one checkpoint may take. Listing, deleting and copying go step by step."""

    @property
    def repository(self) -> Repository:
        """Where they are kept."""
        return self._repository

    @property
    def channels(self) -> Channels:
        """How values are kept."""
        return self._channels

    @property
    def fence(self) -> Fence | None:
        """What must be there for anything to be put."""
        return self._fence

    def over(self, repository: Repository) -> Threads:
        """Return the same over another face of the store."""
        return Threads(repository, self._channels, self._keeper, self._lines, self._fence)

    def by(self, channels: Channels) -> Threads:
        """Return the same by other rules for values."""
        return Threads(self._repository, channels, self._keeper, self._lines, self._fence)

    def behind(self, fence: Fence) -> Threads:
        """Return the same as one that puts nothing once the fence is gone. The store checks it in the same commit."""
        return Threads(self._repository, self._channels, self._keeper, self._lines, fence)

    # -- putting

    @public_call("saver.put")
    async def put(
        self,
        key: Key,
        parent_id: str | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any] | None,
        *,
        odd: Mapping[str, Any] = MappingProxyType({}),
        created_at: str | None = None,
        head: Literal["always", "newer", "never"] = "newer",
        fresh: bool = False,
    ) -> Stored:
        """Put a checkpoint. A channel that `new_versions` does not name is as in the parent; None: look at all.

        With `fresh` its id was made by chance: IdTaken if it is in use already.
        `odd` holds fields that are not of LangGraph's shape: they are kept with the checkpoint, beside its own.
        """
        parent = Key(key[0], key[1], parent_id) if parent_id is not None else None
        line = self._lines.get(parent) if parent is not None else None
        names = delta_names(checkpoint, metadata) if COUNTERS in metadata else ()
        deltas: dict[str, Delta] = {}
        if names and parent is not None:
            line, deltas = await self._deltas.before(parent, line, names)
        created_at = _created_at(checkpoint, created_at)
        found = self._encoder.encode(checkpoint, new_versions, line, deltas, odd)
        if found is None:
            found = self._encoder.encode_whole(checkpoint, deltas, odd)
        values, its_line = found
        try:
            stored = await self._commit(_record(key, parent, created_at, metadata, values), values, head, fresh)
        except BaseGone:
            values, its_line = self._encoder.encode_whole(checkpoint, deltas, odd)
            record = _record(key, parent, created_at, metadata, values)
            stored = await self._refenced(lambda: self._commit(record, values, head, fresh))
        if values.objects:
            self._repository.memory.add(values.objects)
        its_line.base = BaseRef(key, stored.digest)
        self._lines.add(its_line, parent if stored.segment != stored.seq else None)
        if self._keeper is not None:
            await self._keeper.upkeep(self._store, stored)
        return stored

    async def _refenced(self, put: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `put` does; the fence may have been moved by its owner meanwhile."""
        for _ in range(BEATEN_MAX):
            try:
                return await put()
            except BaseGone:
                if self._fence is None:
                    raise
                await self._fence.find(self._store)
        raise StoreUnavailable("the claim of the task is renewed faster than anything can be put; try again")

    async def _commit(
        self, record: Record, values: Encoded, moves: Literal["always", "newer", "never"], fresh: bool
    ) -> Stored:
        thread_id, namespace, _ = record.key
        bases = [values.base] if values.base is not None else []
        if self._fence is not None:
            bases.append(self._fence.base)
        draft = Draft(record, values.squeezed, bases)

        def build(head: Stored | None) -> Draft:
            if head is not None and head.record.kind != KIND:
                check_kind(head)
            return draft

        change = Change(thread_id, namespace, build=build, head=moves, fresh=fresh)
        if self._keeper is None:
            stored = await self._store.commit(change)
        else:
            with self._keeper.letting_go((thread_id, namespace)) as prune:
                stored = await self._store.commit(change._replace(prune=prune))
        if stored is None:
            raise RuntimeError("the store returned no checkpoint for a change that makes one")
        calls.added(stored.added_bytes, len(values.squeezed))
        return stored

    async def put_writes(self, key: Key, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Attach a task's writes to a checkpoint, which may not be there yet."""
        rows: dict[int, Pending] = {}
        for position, (channel, value) in enumerate(writes):
            idx = SPECIAL_WRITES.get(channel, position)
            rows[idx] = Pending(task_id, idx, channel, value, task_path)
        await self.attach(key, list(rows.values()))

    @public_call("saver.put_writes")
    async def attach(self, key: Key, pending: Sequence[Pending]) -> None:
        """Attach writes of any tasks to a checkpoint, which may not be there yet."""
        if pending:
            rows, objects = self._encoder.encode_writes(pending)
            await self._attach(key, rows, objects)
            self._repository.memory.add(objects)

    def encode_writes(self, pending: Sequence[Pending]) -> tuple[list[Write], dict[bytes, tree.Content]]:
        """Return pending writes as they would be stored, and the objects they are made of. Nothing is stored."""
        return self._encoder.encode_writes(pending)

    async def _attach(self, key: Key, writes: Sequence[Write], objects: Mapping[bytes, tree.Content]) -> None:
        """Put writes; what came with the checkpoint itself, as an input does, is not sent again."""
        if self._fence is not None:  # the one base that a store looks at
            fence = self._fence
            packed = squeezed_objects(objects, thorough=True)
            await self._refenced(lambda: self._send_writes(key, writes, packed, fence.base))
            return
        line = self._lines.get(key)
        if line is not None and not line.fresh.isdisjoint(objects):
            new = {name: content for name, content in objects.items() if name not in line.fresh}
            try:
                await self._send_writes(key, writes, squeezed_objects(new, thorough=True), line.base)
                return
            except BaseGone:
                pass  # deleted or replaced meanwhile
        await self._send_writes(key, writes, squeezed_objects(objects, thorough=True))

    async def _send_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        await self._store.put_writes(key, writes, objects, base)
        size = sum([len(write.children) + len(write.body) for write in writes])
        size += sum([len(made.children) + len(made.body) for made in objects])
        calls.added(size, len(objects))

    @public_call("saver.get_delta_channel_history")
    async def history(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, names: Sequence[str], *, opened: bool = True
    ) -> dict[str, dict[str, Any]]:
        """Return what the values of channels at a checkpoint (None: the head) are made from: a seed, and writes.

        Unless `opened`, a seed that the checkpoint itself keeps is given as its node.
        """
        return await self._deltas.history(thread_id, namespace, checkpoint_id, names, opened=opened)

    # -- reading

    @public_call("saver.get_tuple")
    async def get(
        self, thread_id: str, namespace: str, checkpoint_id: str | None = None, *, writes: bool = True
    ) -> Saved | None:
        """Return a checkpoint (None: the head) with its values and, unless told not to, its writes."""
        return await self._reader.get(thread_id, namespace, checkpoint_id, writes=writes)

    async def writes_of(self, key: Key) -> list[tuple[str, str, Any]] | None:
        """Return the writes of a checkpoint, as `get` does, and read nothing else of it; None: it is not there."""
        return await self._reader.writes_of(key)

    async def warm(self, key: Key) -> None:
        """Have a checkpoint at hand, if it is there: the next one is written from it."""
        if self._lines.get(key) is None:
            await self.get(*key, writes=False)

    async def listed(self, query: Query, limit: int | None) -> AsyncIterator[Saved]:
        """Yield checkpoints, the greatest id first; a few are decoded ahead. The store holds nothing meanwhile."""
        page = _PAGE_FIRST
        left = limit
        ahead = 1
        while left is None or left > 0:
            loaded, last = await self._page(query.thread_id, query, page, left)
            if left is not None:
                left -= len(loaded)
            while loaded:
                for saved in await self._saved_some(loaded[:ahead]):
                    yield saved
                loaded = loaded[ahead:]
                ahead = min(ahead * 2, _AHEAD_MAX)
            if last is None or query.checkpoint_id is not None:
                return
            query = replace(query, before_id=last)
            page = min(page * 2, _PAGE_MAX)

    @public_call("saver.list", has_deadline=False)
    async def _page(
        self,
        thread_id: str | None,  # noqa: ARG002  # `public_call` tells it with the figures
        query: Query,
        page: int,
        left: int | None,
    ) -> tuple[list[Loaded], str | None]:
        """Return a page, with what its values are made of at hand, and the last id; None: nothing comes after it."""
        size = page if left is None else min(page, left)
        keys, found = await self._read_page(replace(query, limit=size))
        last = keys[-1].checkpoint_id if len(keys) == size else None
        is_one_line = query.thread_id is not None and query.namespace is not None
        if last is not None and query.checkpoint_id is None and not is_one_line:
            # The same id may stand in several threads and namespaces; the next page begins below it.
            _, ties = await self._read_page(replace(query, checkpoint_id=last, limit=None))
            found += [loaded for loaded in ties if loaded.stored.record.key not in keys]
        found = [loaded for loaded in found if loaded.stored.record.kind == KIND][:left]
        await self._prepare(found)
        return found, last

    async def _read_page(self, query: Query) -> tuple[list[Key], list[Loaded]]:
        """Return the keys that a query lists, and what of it is there a moment later, with writes."""
        store = self._store
        if isinstance(store, ReadsPages):
            page = await store.read_page(query)
            return [loaded.stored.record.key for loaded in page], page
        keys = [stored.record.key for stored in await store.list_checkpoints(query)]
        return keys, await store.read_many(keys, writes=True)

    async def read_some(self, keys: Sequence[Key]) -> list[Saved]:
        """Return these checkpoints with their values and writes; what is missing is left out. All are in memory."""
        loaded = await self._store.read_many(keys, writes=True)
        await self._prepare(loaded)
        return await self._saved_some(loaded)

    async def newest(self, thread_id: str, limit: int | None) -> list[Saved]:
        """Return a thread's checkpoints in all namespaces, the one that was put last first. Without their writes."""
        keys = list[Key]()
        found = list[Saved]()
        query = Query(thread_id=thread_id, namespace=None, limit=limit)
        while limit is None or len(keys) < limit:
            listed = await self._store.list_checkpoints(query)
            keys += [stored.record.key for stored in of_graph(listed)]
            if limit is None or len(listed) < limit:
                break
            query = replace(query, offset=query.offset + limit)
        keys = keys[:limit]
        for start in range(0, len(keys), _PAGE_MAX):
            some = await self._store.read_many(keys[start : start + _PAGE_MAX])
            for loaded in some:
                saved = await self._reader.saved(loaded)
                if saved is not None:
                    found.append(saved)
        return found

    async def _prepare(self, page: Sequence[Loaded]) -> None:
        """Fetch what these checkpoints and their writes need, at once."""
        held = self._repository.memory.contents
        missing = dict[str, set[bytes]]()
        for loaded in page:
            for children in (loaded.stored.record.children, *(write.children for write in loaded.writes)):
                unknown = [key for key in tree.hashes(children) if key not in held]
                missing.setdefault(loaded.stored.family, set()).update(unknown)
        missing = {family: keys for family, keys in missing.items() if keys}
        if len(missing) > 1 and isinstance(self._store, ReadsTogether):
            self._keep(await self._store.fetch_many(missing))
            return
        for family, keys in missing.items():
            self._keep(await self._store.fetch(family, keys))

    def _keep(self, fetched: Sequence[Object]) -> None:
        try:
            self._repository.memory.add(verified(fetched))
        except CheckpointCorrupted:
            pass  # said when the checkpoint is read that needs it

    async def _saved_some(self, some: Sequence[Loaded]) -> list[Saved]:
        """Return checkpoints that were read, with their values: what is at hand in one pause of the collector."""
        found: list[Saved] = []
        position = 0
        while position < len(some):
            with QUIET:
                for loaded in some[position:]:
                    saved = self._reader.saved_at_hand(loaded)
                    if saved is None:
                        break
                    found.append(saved)
                    position += 1
            if position < len(some):
                saved = await self._reader.saved(some[position])
                if saved is not None:  # else it was deleted meanwhile
                    found.append(saved)
                position += 1
        return found

    # -- deleting and copying

    @public_call("saver.delete_thread", has_deadline=False)
    async def delete_thread(self, thread_id: str) -> int:
        """Delete a thread with all its namespaces, and return how many checkpoints it had."""
        others = await self._store.count(Query(thread_id=thread_id, namespace=TASK_NAMESPACE, hidden="also"))
        if others:  # claims, or effects that branches need
            from everstep.repository.effects import let_go

            await let_go(self._repository, thread_id)
        deleted = await self._store.delete(thread_id)
        self._forget(thread_id)
        await reclaim(self._store, deleted, thread_id)
        count = max(deleted.checkpoints - others, 0)
        logger.info("thread %r deleted (whole): %d checkpoints", thread_id, count)
        return count

    @public_call("saver.delete_for_runs", has_deadline=False)
    async def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs wrote, in all threads."""
        keys: dict[str, list[Key]] = {}
        for run_id in dict.fromkeys(run_ids):
            query = Query(namespace=None, filter={"run_id": run_id}, hidden="also")
            for stored in await self._store.list_checkpoints(query):
                if stored.record.kind == KIND:
                    keys.setdefault(stored.record.key.thread_id, []).append(stored.record.key)
        for thread_id, doomed in keys.items():
            await self._delete(thread_id, doomed)

    @public_call("saver.prune", has_deadline=False)
    async def prune(self, thread_ids: Sequence[str]) -> None:
        """Keep the newest checkpoint of each namespace of these threads, with its writes."""
        for thread_id in dict.fromkeys(thread_ids):
            thread = await self._store.thread(thread_id)
            if thread is None:
                continue
            query = Query(thread_id=thread_id, namespace=None, hidden="also")
            listed = of_graph(await self._store.list_checkpoints(query))
            for stored in listed[:1]:
                check_kind(stored)
            heads = {(namespace, head[0]) for namespace, head in thread.heads.items()}
            await self._delete(thread_id, [s.record.key for s in listed if s.record.key[1:] not in heads])

    async def _delete(self, thread_id: str, keys: Sequence[Key]) -> None:
        deleted = await self._store.delete(thread_id, keys=keys)
        self._forget(thread_id)
        await reclaim(self._store, deleted, thread_id)
        logger.info("thread %r: %d checkpoints deleted", thread_id, deleted.checkpoints)

    def _forget(self, thread_id: str) -> None:
        self._lines.forget(thread_id)
        if self._keeper is not None:
            self._keeper.forget(thread_id)

    @public_call("saver.copy_thread", has_deadline=False)
    async def copy_thread(self, source: str, target: str) -> None:
        """Copy all that is visible of a thread into another: the same ids, in the same order."""
        every = Query(thread_id=source, namespace=None, hidden="also")
        there = {stored.record.key for stored in await self._store.list_checkpoints(every)}
        raw = await self._store.raw(source)
        if raw is None or source == target:
            return
        for namespace in raw.lines:
            if namespace == TASK_NAMESPACE:
                continue  # who runs this one does not run its copy
            query = Query(thread_id=source, namespace=namespace, order="oldest")
            keys = [stored.record.key for stored in await self._store.list_checkpoints(query)]
            last: _Copied | None = None
            for start in range(0, len(keys), _PAGE_MAX):
                for loaded in await self._store.read_many(keys[start : start + _PAGE_MAX], writes=True):
                    last = await self._copy(loaded, target, last) or last
        there |= {stored.record.key for stored in await self._store.list_checkpoints(every)}
        early: dict[Key, list[Write]] = {}  # writes whose checkpoint has not come yet
        for key, write in raw.writes:
            if key not in there:
                early.setdefault(key, []).append(write)
        for key, writes in early.items():
            await self._copy_early(raw.family, key, writes, target)
        self._forget(target)

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
        await self._send_writes(key._replace(thread_id=target), writes, squeezed_objects(objects, thorough=True))

    async def _copy(self, loaded: Loaded, target: str, last: _Copied | None) -> _Copied | None:
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
            stored = await self._commit_copy(record, objects, last)
        except BaseGone:  # the copy is being deleted, or written to
            stored = await self._commit_copy(record, objects, None)
        if loaded.writes:
            await self._send_writes(record.key, loaded.writes, squeezed_objects(written, thorough=True))
        return _Copied(BaseRef(record.key, stored.digest), set(objects))

    async def _commit_copy(self, record: Record, objects: Mapping[bytes, tree.Content], last: _Copied | None) -> Stored:
        known = last.objects if last is not None else ()
        sent = {key: content for key, content in objects.items() if key not in known}
        bases = (last.base,) if last is not None else ()
        draft = Draft(record, squeezed_objects(sent, thorough=True), bases)
        change = Change(record.key.thread_id, record.key.namespace, build=lambda _: draft, head="newer")
        stored = await self._store.commit(change)
        if stored is None:
            raise RuntimeError("the store returned no checkpoint for a change that makes one")
        calls.added(stored.added_bytes, len(draft.objects))
        return stored


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


def _created_at(checkpoint: Mapping[str, Any], otherwise: str | None) -> str:
    ts = checkpoint.get("ts", otherwise)
    if type(ts) is str and len(ts) == _TS_LENGTH and ts.isascii():  # as LangGraph writes it
        return ts
    return checks.text(ts, "ts") if ts is not None else utc_now()


def _record(key: Key, parent: Key | None, created_at: str, metadata: Mapping[str, Any], values: Encoded) -> Record:
    step = metadata.get("step")
    return Record(
        key=key,
        step=step if type(step) is int and -(2**62) <= step < 2**62 else 0,  # metadata keeps any other
        parents=(parent,) if parent is not None else (),
        created_at=created_at,
        children=values.children,
        body=values.body,
        sizes=values.sizes,
        kind=KIND,
        metadata=metadata,
    )
