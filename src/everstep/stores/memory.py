"""The plainest reading of the contract: dictionaries and one lock. Gone with the process.

Records are kept packed, like everywhere, so that a caller's later changes cannot reach what was saved.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from everstep import forks
from everstep.errors import StoreClosed
from everstep.stores.protocol import (
    Base,
    Change,
    Deleted,
    Hidden,
    Key,
    Loaded,
    Object,
    Operation,
    Origin,
    Query,
    Stored,
    Swept,
    Thread,
    Write,
)
from everstep.stores.records import matches, pack_operation, packed_filter, unpack_operation, unpack_record
from everstep.stores.transaction import Line, Packed, apply, apply_writes
from everstep.values.tree import hashes


@dataclass
class _Row:
    key: Key
    seq: int
    step: int
    children: bytes
    info: bytes
    root: bytes
    digest: bytes
    pinned: bool = False


@dataclass
class _Line:
    rows: dict[str, _Row] = field(default_factory=dict)
    writes: dict[str, dict[tuple[str, int], Write]] = field(default_factory=dict)
    head: str | None = None
    generation: int = 0


@dataclass
class _Thread:
    family: str
    active: int = 0
    origin: Origin | None = None
    lines: dict[str, _Line] = field(default_factory=dict)
    operations: dict[int, tuple[bytes, bool]] = field(default_factory=dict)
    hidden: dict[int, list[Hidden]] = field(default_factory=dict)

    def is_hidden(self, namespace: str, seq: int, writes_of: str | None = None) -> bool:
        return any(
            h.namespace == namespace and h.writes_of == writes_of and h.after < seq <= h.to
            for stretches in self.hidden.values()
            for h in stretches
        )


class MemoryStore:
    """A store in this process's memory."""

    rest_order = 2

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._threads: dict[str, _Thread] = {}
        self._objects: dict[str, dict[bytes, Object]] = {}
        self._seq = 0
        self._closed = False
        forks.register(self)

    @property
    def blocking(self) -> MemoryStore:
        return self

    async def commit(self, change: Change) -> Stored | None:
        with self._open():
            return apply(self, change)

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: Base | None = None
    ) -> None:
        with self._open():
            apply_writes(self, key, writes, objects, base)

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        with self._open():
            thread = self._threads.get(thread_id)
            line = thread.lines.get(namespace) if thread is not None else None
            wanted = checkpoint_id if checkpoint_id is not None or line is None else line.head
            row = line.rows.get(wanted) if line is not None and wanted is not None else None
            if thread is None or line is None or row is None:
                return None
            attached = line.writes.get(row.key.checkpoint_id, {}).values() if writes else ()
            visible = [w for w in attached if not thread.is_hidden(namespace, w.seq, row.key.checkpoint_id)]
            return Loaded(
                self._stored(thread, row),
                line.generation,
                self._below(thread.family, hashes(row.children)) if objects else (),
                sorted(visible, key=lambda w: (w.task_path, w.task_id, w.idx)),
            )

    async def find(self, checkpoint_id: str) -> list[Key]:
        with self._open():
            return [
                line.rows[checkpoint_id].key
                for thread in self._threads.values()
                for line in thread.lines.values()
                if checkpoint_id in line.rows
            ]

    async def fetch(self, family: str, hashes: Collection[bytes]) -> list[Object]:
        with self._open():
            return self._below(family, list(hashes))

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        wanted = packed_filter(query.filter)
        with self._open():
            found = [
                stored
                for thread, row in self._rows(query)
                if matches((stored := self._stored(thread, row, payload=False)).record.metadata, wanted)
                and (query.hidden or not stored.hidden)
            ]
        found.sort(key=lambda s: (s.record.key.checkpoint_id, s.seq) if query.order == "id" else s.seq, reverse=True)
        end = None if query.limit is None else query.offset + query.limit
        return found[query.offset : end]

    async def list_threads(self, limit: int, offset: int) -> list[Stored]:
        with self._open():
            heads = []
            for thread in sorted(self._threads.values(), key=lambda t: t.active, reverse=True):
                lines = sorted(thread.lines.items())
                row = next((line.rows[line.head] for _, line in lines if line.head is not None), None)
                if row is not None:
                    heads.append(self._stored(thread, row, payload=False))
            return heads[offset : offset + limit]

    async def thread(self, thread_id: str) -> Thread | None:
        with self._open():
            thread = self._threads.get(thread_id)
            if thread is None:
                return None
            heads = {ns: (line.head, line.generation) for ns, line in thread.lines.items() if line.head is not None}
            hidden = {seq: tuple(stretches) for seq, stretches in thread.hidden.items()}
            return Thread(thread_id, thread.family, thread.origin, heads, hidden)

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        with self._open():
            thread = self._threads.get(thread_id)
            newest = sorted(thread.operations.items(), reverse=True) if thread is not None else []
            return [unpack_operation(data, seq, undone) for seq, (data, undone) in newest[:limit]]

    async def delete(
        self, thread_id: str, *, keys: Collection[Key] | None = None, before_step: int | None = None
    ) -> Deleted:
        with self._open():
            thread = self._threads.get(thread_id)
            if thread is None:
                return Deleted(0, frozenset())
            count = 0
            for namespace, line in list(thread.lines.items()):
                if keys is not None:
                    doomed = [key.checkpoint_id for key in keys if key[:2] == (thread_id, namespace)]
                elif before_step is not None:
                    doomed = [row.key.checkpoint_id for row in line.rows.values() if row.step < before_step]
                else:
                    doomed = list(line.rows)
                    line.writes.clear()
                for checkpoint_id in doomed:
                    count += line.rows.pop(checkpoint_id, None) is not None
                    line.writes.pop(checkpoint_id, None)
                if line.head is not None and line.head not in line.rows:
                    left = [r for r in line.rows.values() if not thread.is_hidden(namespace, r.seq)]
                    line.head = max(left, key=lambda r: r.seq).key.checkpoint_id if left else None
                    line.generation += 1
                if not line.rows and not line.writes:
                    del thread.lines[namespace]
                    for stretches in thread.hidden.values():
                        stretches[:] = [h for h in stretches if h.namespace != namespace]
                    thread.hidden = {seq: stretches for seq, stretches in thread.hidden.items() if stretches}
            if not thread.lines:
                del self._threads[thread_id]
            if any(t.family == thread.family for t in self._threads.values()):
                return Deleted(count, frozenset({thread.family}) if count else frozenset())
            self._objects.pop(thread.family, None)
            return Deleted(count, frozenset())

    async def sweep(self, family: str) -> Swept:
        with self._open():
            objects = self._objects.get(family, {})
            reached: set[bytes] = set()
            for thread in self._threads.values():
                if thread.family == family:
                    for root in _roots(thread):
                        reached.update(obj.hash for obj in self._below(family, hashes(root), reached))
            doomed = [obj for obj in objects.values() if obj.hash not in reached]
            for obj in doomed:
                del objects[obj.hash]
            return Swept(len(doomed), sum(len(obj.children) + len(obj.body) for obj in doomed))

    async def close(self) -> None:
        self._closed = True

    def rest(self) -> None:
        self._lock.acquire()

    def wake(self, *, in_child: bool) -> None:  # noqa: ARG002  # the same on both sides
        self._lock.release()

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise StoreClosed("this memory store is closed")
            yield

    def _rows(self, query: Query) -> Iterator[tuple[_Thread, _Row]]:
        names = [query.thread_id] if query.thread_id is not None else list(self._threads)
        for thread in (self._threads[name] for name in names if name in self._threads):
            for namespace, line in thread.lines.items():
                if query.namespace is not None and namespace != query.namespace:
                    continue
                for row in line.rows.values():
                    if (
                        (query.before_id is None or row.key.checkpoint_id < query.before_id)
                        and (query.before_seq is None or row.seq < query.before_seq)
                        and (query.step_max is None or row.step <= query.step_max)
                    ):
                        yield thread, row

    def _stored(self, thread: _Thread, row: _Row, *, payload: bool = True) -> Stored:
        record = unpack_record(row.key, row.step, row.children, row.info, row.root if payload else None)
        hidden = thread.is_hidden(row.key.namespace, row.seq)
        return Stored(record, row.seq, thread.family, row.pinned, hidden, row.digest)

    def _below(self, family: str, pending: list[bytes], seen: Collection[bytes] = ()) -> list[Object]:
        objects, found = self._objects.get(family, {}), {}
        pending = list(pending)
        while pending:
            key = pending.pop()
            if key not in found and key not in seen and key in objects:
                found[key] = objects[key]
                pending.extend(hashes(objects[key].children))
        return list(found.values())

    # -- the Transaction that `apply` works on

    def line(self, thread_id: str, namespace: str) -> Line | None:
        thread = self._threads.get(thread_id)
        line = thread.lines.get(namespace) if thread is not None else None
        if thread is None or line is None:
            return None
        head = self._in_commit(thread, line.rows[line.head]) if line.head is not None else None
        return Line(line, thread_id, namespace, thread.family, head)

    def family(self, thread_id: str) -> str | None:
        thread = self._threads.get(thread_id)
        return thread.family if thread is not None else None

    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        thread = self._threads.get(thread_id)
        if thread is None:
            thread = self._threads[thread_id] = _Thread(family or f"f{self._next()}")
        line = thread.lines.setdefault(namespace, _Line())
        return Line(line, thread_id, namespace, thread.family, None)

    def checkpoint(self, key: Key) -> Stored | None:
        thread = self._threads.get(key.thread_id)
        line = thread.lines.get(key.namespace) if thread is not None else None
        row = line.rows.get(key.checkpoint_id) if line is not None else None
        return None if thread is None or row is None else self._in_commit(thread, row)

    def _in_commit(self, thread: _Thread, row: _Row) -> Stored:
        return self._stored(thread, row)._replace(hidden=False)

    def insert(self, line: Line, packed: Packed) -> Stored:
        return self._put(line, packed, self._next(), pinned=False)

    def replace(self, line: Line, old: Stored, packed: Packed) -> Stored:
        return self._put(line, packed, old.seq, old.pinned)

    def _put(self, line: Line, packed: Packed, seq: int, pinned: bool) -> Stored:
        record = packed.record
        row = _Row(record.key, seq, record.step, record.children, packed.info, packed.root, packed.digest, pinned)
        line.ref.rows[record.key.checkpoint_id] = row
        return self._in_commit(self._threads[line.thread_id], row)

    def add_objects(self, family: str, objects: Sequence[Object]) -> None:
        self._objects.setdefault(family, {}).update((obj.hash, obj) for obj in objects)

    def set_head(self, line: Line, stored: Stored | None) -> None:
        line.ref.head = stored.record.key.checkpoint_id if stored is not None else None
        line.ref.generation += 1
        self._threads[line.thread_id].active = self._next()

    def set_origin(self, thread_id: str, origin: Origin) -> None:
        if thread_id in self._threads:
            self._threads[thread_id].origin = origin

    def set_pinned(self, stored: Stored, pinned: bool) -> None:
        key = stored.record.key
        self._threads[key.thread_id].lines[key.namespace].rows[key.checkpoint_id].pinned = pinned

    def add_operation(self, thread_id: str, operation: Operation) -> int:
        seq = self._next()
        self._threads[thread_id].operations[seq] = pack_operation(operation, seq), operation.undone
        return seq

    def set_undone(self, thread_id: str, seq: int, undone: bool) -> None:
        operations = self._threads[thread_id].operations
        if seq in operations:
            operations[seq] = operations[seq][0], undone

    def hide(self, line: Line, operation: int, hidden: Hidden) -> None:
        self._threads[line.thread_id].hidden.setdefault(operation, []).append(hidden)

    def show(self, thread_id: str, operation: int) -> None:
        self._threads[thread_id].hidden.pop(operation, None)

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None:
        writes = line.ref.writes.setdefault(checkpoint_id, {})
        place = write.task_id, write.idx
        if write.idx < 0 or place not in writes:
            writes[place] = write._replace(seq=self._next())

    def _next(self) -> int:
        self._seq += 1
        return self._seq


def _roots(thread: _Thread) -> Iterator[bytes]:
    if thread.origin is not None:
        yield thread.origin.children
    for line in thread.lines.values():
        yield from (row.children for row in line.rows.values())
        for writes in line.writes.values():
            yield from (write.children for write in writes.values())
