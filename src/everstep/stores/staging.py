"""Many commits as one: a thread of another store in memory, where changes are gathered and then sent as one part.

What is gathered gets its numbers from those that the other store has set aside, so it is sent as it is. Nobody else may
write to the thread meanwhile: that is looked for at the last moment, not prevented.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from everstep.errors import HeadMoved
from everstep.runtime.blocking import run_to_end
from everstep.stores.keyvalue.changing import ChangeRows
from everstep.stores.keyvalue.keys import number
from everstep.stores.keyvalue.rows import LAST_SEQ, OBJECTS, WorkedOut, read_object
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Key,
    Loaded,
    Object,
    Part,
    Place,
    RawLine,
    RawThread,
    Record,
    Store,
    Stored,
    Write,
)
from everstep.stores.transaction import Line, Packed
from everstep.values.tree import hashes

T = TypeVar("T")


class _Gathered(NamedTuple):
    objects: list[Object]
    checkpoints: list[tuple[Stored, Packed]]
    segments: Mapping[int, Sequence[Place]]


class _StagedRows(ChangeRows):
    """Rows that are numbered by another store, and sent there in the end."""

    def _note(self, line: Line, record: Record, known: Record | None) -> None:
        """Nobody looks for threads here."""

    def number_from(self, number: int) -> None:
        """Let the next number be the one after this."""
        self._counters[LAST_SEQ] = number

    def last_seq(self) -> int:
        """Return the last number that was given."""
        return self._last(LAST_SEQ)

    def lacking(self, keys: Collection[Key]) -> list[Key]:
        """Return those of some checkpoints that are not here."""
        return [key for key in keys if self.checkpoint(key) is None]

    def gathered(self, thread_id: str, without: Collection[Key]) -> _Gathered:
        """Return all that there is of a thread but these checkpoints, the oldest first."""
        thread = self._known(thread_id)
        prefix = OBJECTS + number(thread.family)
        objects = [read_object(key[len(prefix) :], value) for key, value in self._all(prefix)]
        checkpoints = []
        for line in self._lines_of(thread):
            for row in self._rows(line):
                if Key(thread_id, line.namespace, row.checkpoint_id) not in without:
                    stored = self._in_commit(line, row)
                    checkpoints.append((stored, Packed(stored.record, row.info, row.root)))
        checkpoints.sort(key=lambda each: each[0].seq)
        return _Gathered(objects, checkpoints, self._ancestry(thread.family))


class _WorkedOutAll(WorkedOut):
    """Every record that was made is sent in the end: none is unpacked for that."""

    _RECORDS_MAX = _RECORD_BYTES_MAX = 1 << 62


class StagingStore(MemoryStore):
    """Checkpoints and pending writes of one thread, on top of what another store has of it."""

    _make_rows = _StagedRows

    def __init__(self, target: Store, base: RawThread) -> None:
        """`base` is the thread as the target has it. See `opened`."""
        super().__init__()
        self._target = target
        self._base = base
        self._seen = _WorkedOutAll()
        self._brought: set[Key] = set()
        self._is_new = False
        self.size_bytes = 0
        """What has been gathered."""

    @classmethod
    def new(cls, target: Store, thread_id: str) -> StagingStore:
        """Return a thread that the target does not have. Its numbers begin with 1: see `whole`."""
        stage = cls(target, RawThread(thread_id, "", b"", {}))
        stage._is_new = True
        return stage

    @classmethod
    async def opened(cls, target: Store, thread_id: str, number: int) -> StagingStore:
        """Return a thread that the target has, maybe empty, and in which all numbers after `number` are ours."""
        base = await _raw(target, thread_id)
        stage = cls(target, base)
        # Only what the next changes look at: heads, and pending writes. The rest stays as it is in the target.
        heads: list[Key] = []
        lines: dict[str, RawLine] = {}
        for namespace, line in base.lines.items():
            if line.head is not None:
                heads.append(Key(thread_id, namespace, line.head))
            lines[namespace] = line._replace(segments=frozenset())
        found = await _read(target, heads)
        seed = RawThread(thread_id, "", b"", lines, writes=base.writes)
        await stage.adopt(Part(thread_id, checkpoints=found, threads=[seed]))
        stage._brought.update(stored.record.key for stored in found)
        await stage._stage(lambda rows: rows.number_from(number))
        return stage

    async def _stage(self, work: Callable[[Any], T]) -> T:
        """Return what `work` does with the _StagedRows."""
        return await self._write(work)

    @property
    def base(self) -> RawThread:
        """The thread as the target has it."""
        return self._base

    @property
    def number(self) -> int:
        """The last number that was given."""
        return run_to_end(self._stage(_StagedRows.last_seq))

    async def bring(self, keys: Collection[Key]) -> None:
        """Have checkpoints of the target at hand: what is committed next may follow them."""
        # The target has none of a new thread.
        if self._is_new:
            return
        wanted: list[Key] = await self._stage(lambda rows: rows.lacking(keys))
        found = await _read(self._target, wanted)
        if found:
            await self.adopt(Part(self._base.thread_id, checkpoints=found))
            self._brought.update(stored.record.key for stored in found)

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        if checkpoint_id is not None:
            await self.bring([Key(thread_id, namespace, checkpoint_id)])
        return await super().read(thread_id, namespace, checkpoint_id, objects=objects, writes=writes)

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        found = await super().fetch(family, hashes, below=below)
        known = {obj.hash for obj in found}
        missing = set(hashes) - known
        if below:
            missing.update(_referred(found) - known)
        if missing and self._base.family:
            found += await self._target.fetch(self._base.family, missing, below=below)
        return found

    async def commit(self, change: Change) -> Stored | None:
        stored = await super().commit(change)
        if stored is not None:
            self.size_bytes += stored.added_bytes
        return stored

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        await super().put_writes(key, writes, objects, base)
        self.size_bytes += sum(len(obj.children) + len(obj.body) for obj in objects)
        self.size_bytes += sum(len(write.children) + len(write.body) for write in writes)

    async def whole(self) -> Part:
        """Return all of a new thread, for `Store.adopt_new`."""
        grown = await self._grown()
        part = await self._gather(())
        return part._replace(reserve=self.number, threads=[self._base._replace(lines=grown.lines, writes=grown.writes)])

    async def send(self) -> None:
        """Put all that was gathered into the target, in one commit; HeadMoved if somebody else wrote there."""
        base = self._base
        found = await _raw(self._target, base.thread_id)
        if found != base:
            raise HeadMoved(base.thread_id, "the thread as it was", "changed by another writer")
        grown = await self._grown()
        lines = {name: _joined(line, base.lines.get(name)) for name, line in grown.lines.items()}
        new = await self._gather(self._brought)
        thread = base._replace(lines=lines, writes=grown.writes, shared_states={})
        await self._target.adopt(new._replace(threads=[thread]))

    async def _grown(self) -> RawThread:
        """Return the thread as it is here."""
        found = await self.raw(self._base.thread_id)
        if found is None:
            raise RuntimeError("a thread that was staged is gone")
        return found

    async def _gather(self, without: Collection[Key]) -> Part:
        """Return all checkpoints that are here but these, with what belongs to them."""
        thread_id = self._base.thread_id
        found = await self._stage(lambda rows: rows.gathered(thread_id, without))
        return Part(
            thread_id,
            objects=found.objects,
            checkpoints=[stored for stored, _ in found.checkpoints],
            packed={packed.record.key: (packed.info, packed.root) for _, packed in found.checkpoints},
            segments=found.segments,
        )


async def _raw(target: Store, thread_id: str) -> RawThread:
    found = await target.raw(thread_id)
    if found is None:
        raise HeadMoved(thread_id, "a thread that was there", "deleted by another writer")
    return found


def _joined(line: RawLine, before: RawLine | None) -> RawLine:
    """Return a line as it has become, with the segments that it had before."""
    if before is None:
        return line
    return line._replace(segments=line.segments | before.segments)


async def _read(target: Store, keys: Sequence[Key]) -> list[Stored]:
    """Return what the target has of these checkpoints."""
    if not keys:
        return []
    return [loaded.stored for loaded in await target.read_many(keys)]


def _referred(objects: Sequence[Object]) -> set[bytes]:
    found: set[bytes] = set()
    for obj in objects:
        found.update(hashes(obj.children))
    return found
