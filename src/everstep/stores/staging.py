"""Many commits as one: a thread of another store in memory, where changes are gathered and then sent as one part.

What is gathered gets its numbers from those that the other store has set aside, so it is sent as it is. Nobody else may
write to the thread meanwhile: that is looked for at the last moment, not prevented.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from everstep.errors import HeadMoved
from everstep.stores.memory import MemoryStore, _Row, _Thread
from everstep.stores.protocol import Base, Key, Loaded, Object, Part, RawLine, RawThread, Record, Store, Stored, Write
from everstep.stores.transaction import Line, Packed
from everstep.values.tree import hashes


class StagingStore(MemoryStore):
    """Checkpoints and pending writes of one thread, on top of what another store has of it."""

    def __init__(self, target: Store, base: RawThread, number: int) -> None:
        """`base` is the thread as the target has it; what is new is numbered after `number`. See `opened`."""
        super().__init__()
        self._target, self._base = target, base
        self._number = number
        self._brought: set[Key] = set()
        self._made: dict[Key, Stored] = {}
        self.size_bytes = 0
        """What has been gathered."""

    @classmethod
    async def opened(cls, target: Store, thread_id: str, number: int, *, is_new: bool = False) -> StagingStore:
        """Return a thread that the target has, maybe empty, and in which all numbers after `number` are ours.

        With `is_new` there was nothing of it a moment ago, so it is not read before `send`.
        """
        base = RawThread(thread_id, "", b"", {}) if is_new else await _raw(target, thread_id)
        stage = cls(target, base, number)
        heads = [
            Key(thread_id, namespace, line.head) for namespace, line in base.lines.items() if line.head is not None
        ]
        found = [loaded.stored for loaded in await target.read_many(heads)] if heads else []
        # Only what the next changes look at: heads, and pending writes. The rest stays as it is in the target.
        lines = {namespace: line._replace(runs=frozenset()) for namespace, line in base.lines.items()}
        seed = RawThread(thread_id, "", b"", lines, writes=base.writes)
        await stage.adopt(Part(thread_id, checkpoints=found, threads=[seed]))
        stage._brought.update(stored.record.key for stored in found)
        stage._seq = number
        return stage

    @property
    def base(self) -> RawThread:
        """The thread as the target has it."""
        return self._base

    @property
    def number(self) -> int:
        """The last number that was given."""
        return self._seq

    async def bring(self, keys: Collection[Key]) -> None:
        """Have checkpoints of the target at hand: what is committed next may follow them."""
        wanted = [key for key in keys if self.checkpoint(key) is None]
        found = [loaded.stored for loaded in await self._target.read_many(wanted)] if wanted else []
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

    def insert(self, line: Line, packed: Packed, run: int | None, added_bytes: int, *, is_head: bool) -> Stored:
        self.size_bytes += added_bytes
        return super().insert(line, packed, run, added_bytes, is_head=is_head)

    def _note(self, line: Line, record: Record, known: Record | None) -> None:
        """Nobody looks for threads here."""

    def _put(self, line: Line, packed: Packed, seq: int, run: int, added_bytes: int, pinned: bool) -> Stored:
        family = self._threads[line.thread_id].family
        made = Stored(packed.record, seq, family, pinned, digest=packed.digest, run=run, added_bytes=added_bytes)
        self._made[packed.record.key] = made
        return super()._put(line, packed, seq, run, added_bytes, pinned)

    def _in_commit(self, thread: _Thread, row: _Row) -> Stored:
        """What was made a moment ago is not unpacked for each commit that follows it."""
        found = self._made.get(row.key)
        if found is None or found.seq != row.seq or found.digest != row.digest:
            found = self._made[row.key] = super()._in_commit(thread, row)
        return found

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: Base | None = None
    ) -> None:
        await super().put_writes(key, writes, objects, base)
        self.size_bytes += sum(len(obj.children) + len(obj.body) for obj in objects)
        self.size_bytes += sum(len(write.children) + len(write.body) for write in writes)

    async def send(self) -> None:
        """Put all that was gathered into the target, in one commit; HeadMoved if somebody else wrote there."""
        base = self._base
        found = await _raw(self._target, base.thread_id)
        if not base.family and not found.lines:
            base = found
        if found != base:
            raise HeadMoved(base.thread_id, "the thread as it was", "changed by another writer")
        grown = await self.raw(base.thread_id)
        if grown is None:
            raise RuntimeError("a thread that was staged is gone")
        thread = self._threads[base.thread_id]
        rows = [row for line in thread.lines.values() for row in line.rows.values()]
        new = sorted([row for row in rows if row.key not in self._brought], key=lambda row: row.seq)
        lines = {name: _joined(line, base.lines.get(name)) for name, line in grown.lines.items()}
        await self._target.adopt(
            Part(
                base.thread_id,
                objects=list(self._objects.get(thread.family, {}).values()),
                checkpoints=[self._in_commit(thread, row) for row in new],
                packed={row.key: (row.info, row.root) for row in new},
                runs=self._runs.get(thread.family, {}),
                threads=[base._replace(lines=lines, writes=grown.writes, commons={})],
            )
        )


async def _raw(target: Store, thread_id: str) -> RawThread:
    found = await target.raw(thread_id)
    if found is None:
        raise HeadMoved(thread_id, "a thread that was there", "deleted by another writer")
    return found


def _joined(line: RawLine, before: RawLine | None) -> RawLine:
    """Return a line as it has become, with the runs that it had before."""
    return line if before is None else line._replace(runs=line.runs | before.runs)


def _referred(objects: Sequence[Object]) -> set[bytes]:
    return {key for obj in objects for key in hashes(obj.children)}
