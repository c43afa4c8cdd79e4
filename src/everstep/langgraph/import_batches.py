"""What an import brings of a thread, and in which portions: groups of threads, chunks of rows, batches to commit."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

from everstep.errors import EverstepError, InvalidInput
from everstep.langgraph.channels import Channels
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.last_written import Lines
from everstep.langgraph.stock_savers import Attached, SourceEntry, SourceRow
from everstep.repository.cache import ObjectCache
from everstep.repository.repository import Repository
from everstep.stores.protocol import Key, Store, Stored
from everstep.stores.staging import StagingStore
from everstep.types import TASK_NAMESPACE

# Of checkpoints that are put in one commit.
_BATCH_MAX = 2000
_BATCH_BYTES = 8 << 20
# Of threads that are brought together.
_GROUP_CHECKPOINTS = 1024
# Checkpoints that are made in one pause of the collector.
_CHUNK_MAX = 64
# Objects that are remembered while the next checkpoints are made from them.
_STAGED_BYTES = 32 << 20


class ThreadPlan(NamedTuple):
    """What there is of a thread on both sides."""

    thread_id: str
    entries: Sequence[SourceEntry]
    """Of the source, parents first."""
    written: Mapping[Key, Attached]
    """Its pending writes."""
    heads: Mapping[str, str]
    """By namespace, as the stock saver has them."""
    there: Set[Key]
    """What the target has of it."""
    sizes: dict[Key, int]
    """What the values of checkpoints take that are there, or were put."""
    is_new: bool
    """The target had nothing of it."""
    has_gone_on: bool
    """Somebody has worked with the thread in the target."""

    @property
    def missing(self) -> list[SourceEntry]:
        """What the target lacks."""
        return [entry for entry in self.entries if entry.key not in self.there]

    @property
    def early(self) -> list[Key]:
        """Checkpoints that have writes but are not stored."""
        stored = {entry.key for entry in self.entries}
        return [key for key in self.written if key not in stored]


class Workshop:
    """What the batches of one import are made with."""

    def __init__(self, store: Store, channels: Channels, is_secret: Callable[[str], bool]) -> None:
        self.store = store
        self._channels = channels
        self._is_secret = is_secret
        # Not the memory of the saver: what is compared in the end shall come from the store.
        self._memory = ObjectCache(_STAGED_BYTES)
        self._lines = Lines()

    def threads(self, stage: StagingStore) -> Threads:
        """Return what puts checkpoints into a stage."""
        return Threads(Repository(stage, self._memory), self._channels, lines=self._lines)

    def without_secrets(self, metadata: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Return metadata without the entries that secrets have the names of, and how many these are."""
        kept = {name: value for name, value in metadata.items() if not self._is_secret(name)}
        return kept, len(metadata) - len(kept)


class Batch:
    """Checkpoints of a thread that are put together: made in memory, from what the target has, and sent at once."""

    def __init__(self, workshop: Workshop, plan: ThreadPlan, stage: StagingStore, heads: dict[str, str]) -> None:
        self._workshop = workshop
        self.plan = plan
        self.stage = stage
        self._heads = heads
        self._threads = workshop.threads(stage)
        self.counts = {"checkpoints": 0, "writes": 0, "secrets": 0, "bytes_read": 0}

    @classmethod
    def new(cls, workshop: Workshop, plan: ThreadPlan) -> Batch:
        """Return an empty batch for a thread that the target does not have."""
        return cls(workshop, plan, StagingStore.new(workshop.store, plan.thread_id), {})

    @classmethod
    async def opened(cls, workshop: Workshop, plan: ThreadPlan, number: int) -> Batch:
        """Return an empty batch; what it puts is numbered after `number`."""
        stage = await StagingStore.opened(workshop.store, plan.thread_id, number)
        heads = {name: line.head for name, line in stage.base.lines.items() if line.head is not None}
        for name, head in heads.items():
            if name != TASK_NAMESPACE and Key(plan.thread_id, name, head) not in plan.sizes:
                # Somebody has put a checkpoint since the thread was looked at.
                raise gone_on(plan.thread_id)
        return cls(workshop, plan, stage, heads)

    @property
    def number(self) -> int:
        """The last number that was given."""
        return self.stage.number

    @property
    def count(self) -> int:
        """How many checkpoints it has."""
        return self.counts["checkpoints"]

    @property
    def is_full(self) -> bool:
        """Whether it is enough for one commit."""
        return is_full([self])

    async def put(self, chunk: Sequence[tuple[SourceEntry, SourceRow]]) -> None:
        """Put checkpoints with their writes."""
        own = {entry.key for entry, _ in chunk}
        before: set[Key] = set()
        for entry, _ in chunk:
            if entry.parent is not None and entry.parent not in own:
                before.add(entry.parent)
        await self.stage.bring(before)
        for parent in before:
            await self._threads.warm(parent)
        with QUIET:  # what is put is in memory, so hardly anything waits
            for entry, row in chunk:
                await self._put(entry, row)

    async def _put(self, entry: SourceEntry, row: SourceRow) -> None:
        key = entry.key
        parent = entry.parent
        metadata, secrets = self._workshop.without_secrets(row.metadata)
        parent_id: str | None = None
        if parent is not None:
            parent_id = parent.checkpoint_id
            await self._threads.warm(parent)
        moves = self._moves_head(key)
        where: Literal["always", "never"] = "always" if moves else "never"
        try:
            stored = await self._threads.put(key, parent_id, row.checkpoint, metadata, None, head=where)
            await self._threads.attach(key, row.writes)
        except EverstepError as exc:
            exc.add_note(f"thread {key.thread_id!r}, checkpoint {key.checkpoint_id!r}")
            raise
        if moves:
            self._heads[key.namespace] = key.checkpoint_id
        self.plan.sizes[key] = size_of(stored)
        self.counts["checkpoints"] += 1
        self.counts["writes"] += len(row.writes)
        self.counts["secrets"] += secrets
        self.counts["bytes_read"] += row.size_bytes

    def _moves_head(self, key: Key) -> bool:
        """Whether a checkpoint becomes the head of its namespace: a greater id does, up to the stock saver's head."""
        head = self._heads.get(key.namespace)
        last = self.plan.heads[key.namespace]
        if head is None or key.checkpoint_id == last:
            return True
        return head != last and key.checkpoint_id > head


def in_groups(names: Sequence[str], counts: Mapping[str, int], size: int) -> Iterator[list[str]]:
    """Yield threads in groups that are brought together: small ones, as far as it is known."""
    group: list[str] = []
    checkpoints = 0
    for name in names:
        if group and (len(group) == size or checkpoints + counts[name] > _GROUP_CHECKPOINTS):
            yield group
            group = []
            checkpoints = 0
        group.append(name)
        checkpoints += counts[name]
    if group:
        yield group


def is_full(batches: Sequence[Batch]) -> bool:
    """Whether these are enough for one commit."""
    count = sum(batch.count for batch in batches)
    size = sum(batch.stage.size_bytes for batch in batches)
    return count >= _BATCH_MAX or size >= _BATCH_BYTES


def parents_first(thread_id: str, entries: Iterable[SourceEntry]) -> list[SourceEntry]:
    """Return the checkpoints of a thread by id, but none before its parent: as the saver would have put them."""
    by_key = {entry.key: entry for entry in entries}
    children: dict[Key, list[SourceEntry]] = {}
    ready: list[tuple[str, str]] = []
    for entry in by_key.values():
        if entry.parent in by_key:
            children.setdefault(entry.parent, []).append(entry)
        else:
            ready.append((entry.key.checkpoint_id, entry.key.namespace))
    heapq.heapify(ready)
    found: list[SourceEntry] = []
    while ready:
        checkpoint_id, namespace = heapq.heappop(ready)
        entry = by_key.pop(Key(thread_id, namespace, checkpoint_id))
        found.append(entry)
        for child in children.get(entry.key, ()):
            heapq.heappush(ready, (child.key.checkpoint_id, child.key.namespace))
    # What is left goes in circles: none of them can come after its parent.
    return found + sorted(by_key.values(), key=lambda entry: entry.key.checkpoint_id)


def in_chunks(rows: Iterable[tuple[SourceEntry, SourceRow]]) -> Iterator[list[tuple[SourceEntry, SourceRow]]]:
    """Yield rows in groups that may be in memory at once."""
    chunk: list[tuple[SourceEntry, SourceRow]] = []
    size = 0
    for entry, row in rows:
        chunk.append((entry, row))
        size += row.size_bytes
        if size > _BATCH_BYTES // 8 or len(chunk) >= min(_CHUNK_MAX, _BATCH_MAX):
            yield chunk
            chunk = []
            size = 0
    if chunk:
        yield chunk


def size_of(stored: Stored) -> int:
    """Return what the values of a checkpoint take."""
    return sum(stored.record.sizes)


def gone_on(thread_id: str) -> InvalidInput:
    """Return the error for a thread that cannot be completed, since somebody has worked with it in the target."""
    return InvalidInput(
        f"thread {thread_id!r} has gone on in the target (or is another one there, or was pruned in the source), and "
        "the source has more of it: they cannot be joined; delete it in the target (delete_thread) to import it anew, "
        "or leave it out with thread_ids="
    )
