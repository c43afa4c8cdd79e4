"""Checkpoints of LangGraph in and out of a store: the one way that every method of a saver takes.

Putting is done here, all else is handed on. What was put or read last is remembered as lines: the values of a
checkpoint as they were written. The next checkpoint is written over the line of its parent, so that only what changed
is packed into new objects. A line may be wrong by now: the store checks inside the commit that the parent is still what
the line says, and if it is not, the checkpoint is written whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from everstep.errors import BaseGone, StoreUnavailable
from everstep.langgraph.channels import Channels
from everstep.langgraph.commits import counted, send_writes
from everstep.langgraph.configs import COUNTERS
from everstep.langgraph.decoding import Decoder
from everstep.langgraph.deleting import Deleter
from everstep.langgraph.delta_channels import DeltaReader, delta_names
from everstep.langgraph.encoding import Delta, Encoder
from everstep.langgraph.last_written import Lines
from everstep.langgraph.listing import Lister
from everstep.langgraph.reading import Reader
from everstep.langgraph.saved import KIND, SPECIAL_WRITES, Pending, Saved, check_kind
from everstep.langgraph.thread_copies import ThreadCopier
from everstep.repository.fences import Fence
from everstep.repository.repository import Encoded, Repository, squeezed_objects
from everstep.repository.turns import BEATEN_MAX
from everstep.runtime import checks
from everstep.runtime.calls import public_call
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Draft,
    Key,
    Query,
    Record,
    Stored,
    Write,
)
from everstep.types import utc_now
from everstep.values import tree

if TYPE_CHECKING:
    from everstep.retention.keeper import Keeper

T = TypeVar("T")

_TS_LENGTH = len("2026-01-01T00:00:00.000000+00:00")


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
        self._store = repository.store
        self._encoder = Encoder(channels, repository.memory)
        decoder = Decoder(channels, shares=shares)
        self._reader = Reader(repository, decoder, self._lines)
        self._deltas = DeltaReader(repository.store, channels, decoder, self._reader)
        self._lister = Lister(repository, self._reader)
        self._deleter = Deleter(repository, self._lines, keeper)
        self._copier = ThreadCopier(repository, self._reader, self._deleter.forget)
        self.figures = repository.figures
        """Where calls are counted: with those of everything else on the same backend."""
        self.limit_seconds = repository.store.limit_seconds
        """How long putting or reading one checkpoint may take. Listing, deleting and copying go step by step."""

    @property
    def repository(self) -> Repository:
        """Where the threads are kept."""
        return self._repository

    @property
    def channels(self) -> Channels:
        """The rules by which values are kept."""
        return self._channels

    @property
    def fence(self) -> Fence | None:
        """What must be stored for anything to be put; None: nothing need be."""
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
        parent_line = self._lines.get(parent) if parent is not None else None
        names = delta_names(checkpoint, metadata) if COUNTERS in metadata else ()
        deltas: dict[str, Delta] = {}
        if names and parent is not None:
            parent_line, deltas = await self._deltas.before(parent, parent_line, names)
        created_at = _created_at(checkpoint, created_at)
        found = self._encoder.encode(checkpoint, new_versions, parent_line, deltas, odd)
        if found is None:  # the parent is not at hand any more
            found = self._encoder.encode_whole(checkpoint, deltas, odd)
        values, line = found
        try:
            stored = await self._commit(_record(key, parent, created_at, metadata, values), values, head, fresh)
        except BaseGone:
            values, line = self._encoder.encode_whole(checkpoint, deltas, odd)
            record = _record(key, parent, created_at, metadata, values)
            stored = await self._refenced(lambda: self._commit(record, values, head, fresh))
        if values.objects:
            self._repository.memory.add(values.objects)
        line.base = BaseRef(key, stored.digest)
        self._lines.add(line, parent if stored.segment != stored.seq else None)
        if self._keeper is not None:
            await self._keeper.upkeep(self._store, stored)
        return stored

    async def _refenced(self, put: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `put` returns. It is done again while the owner of the fence moves it."""
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
        """Commit a checkpoint, together with what retention lets go for it."""
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
        return counted(stored, values.squeezed)

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
            await self._refenced(lambda: send_writes(self._store, key, writes, packed, fence.base))
            return
        line = self._lines.get(key)
        if line is not None and not line.fresh.isdisjoint(objects):
            new = {name: content for name, content in objects.items() if name not in line.fresh}
            try:
                await send_writes(self._store, key, writes, squeezed_objects(new, thorough=True), line.base)
                return
            except BaseGone:
                pass  # deleted or replaced meanwhile
        await send_writes(self._store, key, writes, squeezed_objects(objects, thorough=True))

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

    def listed(self, query: Query, limit: int | None) -> AsyncIterator[Saved]:
        """Yield checkpoints, the greatest id first; a few are decoded ahead. The store holds nothing meanwhile."""
        return self._lister.listed(query, limit)

    async def read_some(self, keys: Sequence[Key]) -> list[Saved]:
        """Return these checkpoints with their values and writes; what is missing is left out. All are in memory."""
        return await self._lister.read_some(keys)

    async def newest(self, thread_id: str, limit: int | None) -> list[Saved]:
        """Return a thread's checkpoints in all namespaces, the one that was put last first. Without their writes."""
        return await self._lister.newest(thread_id, limit)

    @public_call("saver.get_delta_channel_history")
    async def history(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, names: Sequence[str], *, opened: bool = True
    ) -> dict[str, dict[str, Any]]:
        """Return what the values of channels at a checkpoint (None: the head) are made from: a seed, and writes.

        Unless `opened`, a seed that the checkpoint itself keeps is given as its node.
        """
        return await self._deltas.history(thread_id, namespace, checkpoint_id, names, opened=opened)

    # -- deleting and copying

    @public_call("saver.delete_thread", has_deadline=False)
    async def delete_thread(self, thread_id: str) -> int:
        """Delete a thread with all its namespaces, and return how many checkpoints it had."""
        return await self._deleter.delete_thread(thread_id)

    @public_call("saver.delete_for_runs", has_deadline=False)
    async def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs wrote, in all threads."""
        await self._deleter.delete_for_runs(run_ids)

    @public_call("saver.prune", has_deadline=False)
    async def prune(self, thread_ids: Sequence[str]) -> None:
        """Keep the newest checkpoint of each namespace of these threads, with its writes."""
        await self._deleter.prune(thread_ids)

    @public_call("saver.copy_thread", has_deadline=False)
    async def copy_thread(self, source: str, target: str) -> None:
        """Copy all that is visible of a thread into another: the same ids, in the same order."""
        await self._copier.copy(source, target)


def _created_at(checkpoint: Mapping[str, Any], otherwise: str | None) -> str:
    """Return when a checkpoint says that it was made, else `otherwise`, else now."""
    ts = checkpoint.get("ts", otherwise)
    if type(ts) is str and len(ts) == _TS_LENGTH and ts.isascii():  # as LangGraph writes it
        return ts
    return checks.text(ts, "ts") if ts is not None else utc_now()


def _record(key: Key, parent: Key | None, created_at: str, metadata: Mapping[str, Any], values: Encoded) -> Record:
    """Return the record of a checkpoint."""
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
