"""The plainest reading of the contract: dictionaries and one lock. Gone with the process.

Records are kept packed, like everywhere, so that a caller's later changes cannot reach what was saved.
"""

from __future__ import annotations

import bisect
import itertools
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everstep.errors import StoreClosed
from everstep.runtime import forks
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.stores.covers import Covers
from everstep.stores.facts import Wanted, kept, new_facts, prefix_end
from everstep.stores.newest import descent, newest_of
from everstep.stores.protocol import (
    COMMONS_MAX,
    Base,
    Change,
    Common,
    Deleted,
    Hidden,
    Hit,
    Key,
    Loaded,
    Newest,
    Object,
    Operation,
    Outline,
    Part,
    Place,
    Position,
    Query,
    RawLine,
    RawThread,
    Record,
    Search,
    Store,
    Stored,
    Swept,
    Thread,
    Write,
)
from everstep.stores.records import matches, pack_operation, packed_filter, unpack_operation, unpack_record
from everstep.stores.transaction import (
    Candidate,
    Line,
    Packed,
    adopt,
    apply,
    apply_writes,
    delete,
    now_micros,
    prune,
)
from everstep.values.tree import hashes

T = TypeVar("T")
_NARROW = 1000  # threads that an index may give for them to be put in order one by one


@dataclass
class _Row:
    key: Key
    seq: int
    step: int
    children: bytes
    info: bytes
    root: bytes
    digest: bytes
    run: int
    added_bytes: int
    pinned: bool = False


@dataclass
class _Line:
    rows: dict[str, _Row] = field(default_factory=dict)
    """By id, in the order of seq."""
    names: dict[int, str] = field(default_factory=dict)
    """The same, by seq."""
    writes: dict[str, dict[tuple[str, int], Write]] = field(default_factory=dict)
    runs: set[int] = field(default_factory=set)
    facts: dict[int, set[int]] = field(default_factory=dict)
    """What it can be found by: see `facts`."""
    head: str | None = None
    turned: bool = False
    generation: int = 0


@dataclass
class _Thread:
    family: str
    active: int = 0
    origin: Key | None = None
    began: int | None = None
    commons: dict[str, list[Common]] = field(default_factory=dict)
    lines: dict[str, _Line] = field(default_factory=dict)
    operations: dict[int, tuple[bytes, bool]] = field(default_factory=dict)
    hidden: dict[int, list[Hidden]] = field(default_factory=dict)
    note: bytes = b""

    covers: Covers | None = None
    """Made from `hidden` when it is needed."""

    def is_hidden(self, namespace: str, seq: int, run: int, writes_of: str | None = None) -> bool:
        if writes_of is None:
            if self.covers is None:
                self.covers = Covers(itertools.chain.from_iterable(self.hidden.values()))
            return self.covers.hide(namespace, seq, run)
        return any(
            h.namespace == namespace and h.writes_of == writes_of and h.run in (None, run) and h.after < seq <= h.to
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
        self._began: Counter[int] = Counter()
        self._runs: dict[str, dict[int, tuple[Place, ...]]] = {}
        self._doomed: dict[str, int] = {}
        self._swept: set[str] = set()
        self._live: dict[str, int] = {}
        self._noted: dict[int, set[tuple[str, str]]] = {}
        """The lines that have each of the numbers they can be found by."""
        self._names: list[str] | None = None
        """The threads by name; None: nobody has asked yet."""
        self._order: dict[str, None] | None = None
        """Those that were active, the last one last; None: it is not known."""
        self._seq = 0
        self._identity = secrets.token_bytes(16)
        self._closed = False
        forks.register(self)

    def __repr__(self) -> str:
        return describe_on_store(self, self)

    @property
    def address(self) -> str:
        """Where it is."""
        return "memory://"

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def blocking(self) -> MemoryStore:
        return self

    @property
    def limit_seconds(self) -> None:
        return None

    async def in_turn(
        self,
        thread_id: str,  # noqa: ARG002  # nobody changes anything meanwhile
        work: Callable[[Store], Coroutine[Any, Any, T]],
        seconds: float = 0.0,  # noqa: ARG002  # they wait however long it takes
    ) -> T:
        with self._open():
            return run_to_end(work(self))

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
            return self._load(thread_id, namespace, checkpoint_id, objects, writes)

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        with self._open():
            found = [self._load(*key, objects=False, writes=writes) for key in keys]
            return [loaded for loaded in found if loaded is not None]

    async def find(self, checkpoint_id: str) -> list[Key]:
        with self._open():
            return [
                line.rows[checkpoint_id].key
                for thread in self._threads.values()
                for line in thread.lines.values()
                if checkpoint_id in line.rows
            ]

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        with self._open():
            if below:
                return self._below(family, list(hashes))
            objects = self._objects.get(family, {})
            return [objects[key] for key in hashes if key in objects]

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        with self._open():
            found = (self._stored(thread, row, payload=False) for thread, row in self._chosen(query))
            wanted = packed_filter(query.filter)
            matching = (stored for stored in found if matches(stored.record.metadata, wanted)) if wanted else found
            end = None if query.limit is None else query.offset + query.limit
            return list(itertools.islice(matching, query.offset, end))

    async def count(self, query: Query) -> int:
        if query.filter or query.offset or query.limit is not None:
            return len(await self.list_checkpoints(query))
        with self._open():
            thread = self._threads.get(query.thread_id) if query.thread_id is not None else None
            line = thread.lines.get(query.namespace) if thread is not None and query.namespace is not None else None
            is_plain = query.hidden == "also" or (thread is not None and not thread.hidden and query.hidden == "no")
            narrowed = (
                query.checkpoint_id, query.before_id, query.before_seq, query.step_max, query.run, query.spared,
            )  # fmt: skip
            if line is None or not is_plain or any(bound is not None for bound in narrowed):
                return sum(1 for _ in self._chosen(query))
            if query.after_seq is None:
                return len(line.names)
            after = query.after_seq
            return sum(1 for _ in itertools.takewhile(lambda seq: seq > after, reversed(line.names)))

    async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
        with self._open():
            heads = []
            for thread in sorted(self._threads.values(), key=lambda t: t.active, reverse=True):
                row = self._listed_row(thread, headless)
                if row is not None:
                    heads.append(self._stored(thread, row, payload=False))
            return heads[offset : offset + limit]

    async def search(self, search: Search) -> list[Hit]:
        with self._open():
            found: list[Hit] = []
            wanted = Wanted.of(search)
            names = self._searched(search, wanted) if search.limit else ()
            for name in names:
                thread = self._threads[name]
                position = Position(thread.active, name)
                if search.since is not None and thread.active < search.since:
                    break
                if search.after is not None and position >= search.after:
                    continue
                if not name.startswith(search.prefix) or not self._may_fit(name, wanted):
                    continue
                row = self._listed_row(thread)
                if row is None:
                    continue
                stored = self._stored(thread, row, payload=False)
                if wanted.fits(stored.record):
                    found.append(Hit(stored, position))
                    if len(found) == search.limit:
                        break
            return found

    def _searched(self, search: Search, wanted: Wanted) -> Iterable[str]:
        """Return the threads that a search may be about, in its order: by the index that gives the fewest."""
        if self._order is None:
            active = [(thread.active, name) for name, thread in self._threads.items() if thread.active]
            self._order = {name: None for _, name in sorted(active)}
        narrowest: Collection[str] = self._order
        if search.prefix:
            if self._names is None:
                self._names = sorted(self._threads)
            end = prefix_end(search.prefix)
            low = bisect.bisect_left(self._names, search.prefix)
            high = bisect.bisect_left(self._names, end) if end is not None else len(self._names)
            if high - low <= _NARROW:
                narrowest = self._names[low:high]
        for labels in wanted.labels:
            lines = [self._noted.get(label, ()) for label in labels]
            if sum(map(len, lines)) <= min(_NARROW, len(narrowest)):
                narrowest = {thread_id for some in lines for thread_id, _ in some}
        if narrowest is self._order:  # there are many: those that were active last are looked at one by one
            return reversed(self._order)
        return sorted(narrowest, key=lambda name: (self._threads[name].active, name), reverse=True)

    def _may_fit(self, thread_id: str, wanted: Wanted) -> bool:
        lines = [(thread_id, namespace) for namespace in self._threads[thread_id].lines]
        for labels in wanted.labels:
            if not any(line in self._noted.get(label, ()) for label in labels for line in lines):
                return False
        return True

    @staticmethod
    def _listed_row(thread: _Thread, headless: bool = False) -> _Row | None:
        """Return the checkpoint that a thread is listed by."""
        lines = [line for _, line in sorted(thread.lines.items())]
        row = next((line.rows[line.head] for line in lines if line.head is not None), None)
        if row is None and headless:
            row = next((row for line in lines for row in line.rows.values()), None)
        return row

    async def thread(
        self, thread_id: str, *, branches: bool = False, ancestry: bool = False, brief: bool = False
    ) -> Thread | None:
        with self._open():
            thread = self._threads.get(thread_id)
            if thread is None:
                return None
            lines, runs = thread.lines.items(), self._runs.get(thread.family, {})
            return Thread(
                thread_id,
                thread.family,
                thread.origin,
                {name: (line.head, line.generation) for name, line in lines if line.head is not None},
                {name: next(reversed(line.names)) for name, line in lines if line.names},
                {seq: tuple(stretches) for seq, stretches in thread.hidden.items()} if not brief else {},
                {run: runs[run] for _, line in lines for run in line.runs} if not brief else {},
                dict(runs) if ancestry else {},
                self._branches(thread_id) if branches else (),
                {name: tuple(commons) for name, commons in thread.commons.items()},
                self._spared(thread) if not brief else frozenset(),
                self._doomed.get(thread.family, 0) / max(self._live.get(thread.family, 0), 1),
            )

    async def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        with self._open():
            thread = self._threads.get(thread_id)
            line = thread.lines.get(namespace) if thread is not None else None
            if thread is None or line is None:
                return []
            later = sorted(run for run in line.runs if run > after)
            return [run for run in later if not thread.is_hidden(namespace, run, run)]

    async def runs(self, family: str, runs: Collection[int], *, older: int = 0) -> dict[int, tuple[Place, ...]]:  # noqa: ARG002  # all are at hand
        with self._open():
            held = self._runs.get(family, {})
            return {run: held[run] for run in runs if run in held}

    async def newest(
        self, thread_id: str, limit: int, *, branches: bool = False, without: str | None = None
    ) -> Newest | None:
        with self._open():
            names = self._descent(thread_id, branches)
            if not names:
                return None
            lines = [
                (self._threads[name], namespace, line)
                for name in names
                for namespace, line in self._threads[name].lines.items()
                if namespace != without and line.names
            ]
            heads = [line.rows[line.head].key for _, _, line in lines if line.head is not None]
            listed = newest_of(
                [(next(reversed(line.names)), each) for each in lines for line in (each[2],)], limit, self._newest_rows
            )
            return Newest(listed, frozenset(heads), sum([self._visible(*line) for line in lines]))

    def _descent(self, thread_id: str, branches: bool) -> list[str]:
        """Return a thread with those that came from it, as far as they have heads."""
        start = self._threads.get(thread_id)
        if start is None:
            return []
        born: dict[str, list[str]] = {}
        for name, thread in self._threads.items() if branches else ():
            if thread.origin is not None and thread.family == start.family:
                born.setdefault(thread.origin.thread_id, []).append(name)
        return descent(thread_id, born, self._has_head)

    def _has_head(self, thread_id: str) -> bool:
        thread = self._threads.get(thread_id)
        return thread is not None and any(line.head is not None for line in thread.lines.values())

    def _newest_rows(self, lines: Sequence[tuple[_Thread, str, _Line]], after: int, limit: int) -> list[Stored]:
        found: list[Stored] = []
        for thread, namespace, line in lines:
            rows = itertools.takewhile(lambda row: row.seq > after, reversed(line.rows.values()))
            visible = (row for row in rows if not thread.is_hidden(namespace, row.seq, row.run))
            found += [self._stored(thread, row, payload=False) for row in itertools.islice(visible, limit)]
        return found

    def _visible(self, thread: _Thread, namespace: str, line: _Line) -> int:
        if not thread.hidden:
            return len(line.rows)
        return sum(1 for row in line.rows.values() if not thread.is_hidden(namespace, row.seq, row.run))

    def _branches(self, thread_id: str) -> list[str]:
        family = self._threads[thread_id].family
        origins = ((name, thread.origin) for name, thread in self._threads.items() if thread.family == family)
        return [name for name, origin in origins if origin is not None and origin.thread_id == thread_id]

    def _spared(self, thread: _Thread) -> frozenset[int]:
        rows = (row for line in thread.lines.values() for row in line.rows.values())
        return frozenset(row.seq for row in rows if row.pinned or row.seq in self._began)

    async def outlines(self, position: int = 0) -> tuple[list[Outline], int | None]:  # noqa: ARG002  # all at once
        with self._open():
            found = []
            for name, thread in self._threads.items():
                most = max((len(line.rows) for line in thread.lines.values()), default=0)
                if most:
                    is_swept = thread.family in self._swept
                    found.append(Outline(name, thread.family, most, bool(thread.operations), is_swept))
            return found, None

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        with self._open():
            thread = self._threads.get(thread_id)
            newest = sorted(thread.operations.items(), reverse=True) if thread is not None else []
            return [unpack_operation(data, seq, undone) for seq, (data, undone) in newest[:limit]]

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        with self._open():
            return delete(self, thread_id, keys, before_step, spare, operations)

    async def sweep(
        self,
        family: str,
        *,
        effort: int | None = None,  # noqa: ARG002  # always done whole: nothing here waits for a disk
        pretend: Collection[Key] | None = None,
    ) -> Swept:
        with self._open():
            objects = self._objects.get(family, {})
            reached: set[bytes] = set()
            for thread in self._threads.values():
                if thread.family == family:
                    for root in _roots(thread, set(pretend or ())):
                        reached.update(obj.hash for obj in self._below(family, hashes(root), reached))
            doomed = [obj for obj in objects.values() if obj.hash not in reached]
            size = sum(len(obj.children) + len(obj.body) for obj in doomed)
            if pretend is None:
                for obj in doomed:
                    del objects[obj.hash]
                self._doomed.pop(family, None)
                self._swept.add(family)
                self._live[family] = sum(len(obj.children) + len(obj.body) for obj in objects.values())
            return Swept(len(doomed), size)

    async def raw(self, thread_id: str, *, kin: bool = False) -> RawThread | None:
        with self._open():
            thread = self._threads.get(thread_id)
            if thread is None:
                return None
            rows = [row for line in thread.lines.values() for row in line.rows.values()]
            writes = [
                (Key(thread_id, namespace, name), write)
                for namespace, line in thread.lines.items()
                for name, held in line.writes.items()
                for write in held.values()
            ]
            origin = self.checkpoint(thread.origin) if thread.origin is not None else None
            return RawThread(
                thread_id,
                thread.family,
                self._identity + thread.family.encode(),
                {namespace: _raw_line(line, thread.active) for namespace, line in thread.lines.items()},
                thread.origin,
                origin.seq if origin is not None and origin.seq == thread.began else 0,
                frozenset(row.seq for row in rows if row.pinned),
                [stretch for stretches in thread.hidden.values() for stretch in stretches],
                [unpack_operation(data, seq, undone) for seq, (data, undone) in sorted(thread.operations.items())],
                sorted(writes, key=lambda each: each[1].seq),
                {name: tuple(commons) for name, commons in thread.commons.items()},
                thread.note,
                [name for name, other in self._threads.items() if other.family == thread.family] if kin else (),
            )

    async def adopt(self, part: Part) -> int:
        with self._open():
            return adopt(self, part)

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

    def _load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> Loaded | None:
        thread = self._threads.get(thread_id)
        line = thread.lines.get(namespace) if thread is not None else None
        wanted = checkpoint_id if checkpoint_id is not None or line is None else line.head
        row = line.rows.get(wanted) if line is not None and wanted is not None else None
        if thread is None or line is None or row is None:
            return None
        attached = line.writes.get(row.key.checkpoint_id, {}).values() if writes else ()
        visible = [w for w in attached if not thread.is_hidden(namespace, w.seq, 0, row.key.checkpoint_id)]
        return Loaded(
            self._stored(thread, row),
            line.generation,
            self._below(thread.family, hashes(row.children)) if objects else (),
            sorted(visible, key=lambda w: (w.task_path, w.task_id, w.idx)),
        )

    def _chosen(self, query: Query) -> Iterator[tuple[_Thread, _Row]]:
        """Yield the rows that a query asks for, its filter left aside, in its order."""
        names = [query.thread_id] if query.thread_id is not None else list(self._threads)
        lines = [
            (thread, line)
            for thread in (self._threads[name] for name in names if name in self._threads)
            for namespace, line in thread.lines.items()
            if query.namespace is None or namespace == query.namespace
            if query.checkpoint_id is None or query.checkpoint_id in line.rows
        ]
        rows: Iterable[tuple[_Thread, _Row]]
        if len(lines) == 1 and query.order != "id":  # a line's rows stand in the order of their seq
            thread, line = lines[0]
            held = _held(line, query).values()
            rows = ((thread, row) for row in (held if query.order == "oldest" else reversed(held)))
        else:
            every = [(thread, row) for thread, line in lines for row in _held(line, query).values()]
            by_id = query.order == "id"
            every.sort(key=lambda each: (each[1].key.checkpoint_id if by_id else "", each[1].seq))
            rows = every if query.order == "oldest" else reversed(every)
        return ((thread, row) for thread, row in rows if _matches(query, thread, row, self._began))

    def _stored(self, thread: _Thread, row: _Row, *, payload: bool = True) -> Stored:
        record = unpack_record(row.key, row.step, row.children, row.info, row.root if payload else None)
        hidden = thread.is_hidden(row.key.namespace, row.seq, row.run)
        return Stored(record, row.seq, thread.family, row.pinned, hidden, row.digest, row.run, row.added_bytes)

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
        return Line(line, thread_id, namespace, thread.family, head, line.turned)

    def family(self, thread_id: str) -> str | None:
        thread = self._threads.get(thread_id)
        return thread.family if thread is not None else None

    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        family = self.join(thread_id, family)
        line = self._threads[thread_id].lines.setdefault(namespace, _Line())
        return Line(line, thread_id, namespace, family, None)

    def join(self, thread_id: str, family: str | None) -> str:
        if thread_id not in self._threads:
            self._threads[thread_id] = _Thread(family or f"f{self._next()}")
            if self._names is not None:
                bisect.insort(self._names, thread_id)
        self._swept.discard(self._threads[thread_id].family)
        return self._threads[thread_id].family

    def checkpoint(self, key: Key) -> Stored | None:
        thread = self._threads.get(key.thread_id)
        line = thread.lines.get(key.namespace) if thread is not None else None
        row = line.rows.get(key.checkpoint_id) if line is not None else None
        return None if thread is None or row is None else self._in_commit(thread, row)

    def _in_commit(self, thread: _Thread, row: _Row) -> Stored:
        return self._stored(thread, row)._replace(hidden=False)

    def is_taken_back(self, line: Line) -> bool:
        thread = self._threads[line.thread_id]
        logs = [other.operations for other in self._threads.values() if other.family == thread.family]
        return thread.origin is not None and any(
            (h.namespace, h.after, h.run, h.writes_of) == (line.namespace, 0, None, None)
            and any(seq in log and log[seq][1] for log in logs)
            for seq, stretches in thread.hidden.items()
            for h in stretches
        )

    def insert(
        self,
        line: Line,
        packed: Packed,
        run: int | None,
        added_bytes: int,
        *,
        is_head: bool,  # noqa: ARG002  # nothing is counted here
    ) -> Stored:
        seq = self._next()
        self._note(line, packed.record, line.head.record if line.head is not None else None)
        return self._put(line, packed, seq, run if run is not None else seq, added_bytes, pinned=False)

    def add_run(self, line: Line, run: int, follows: Sequence[Place]) -> None:
        line.ref.runs.add(run)
        self._runs.setdefault(line.family, {})[run] = tuple(follows)

    def replace(self, line: Line, old: Stored, packed: Packed) -> Stored:
        self._swept.discard(line.family)
        self._note(line, packed.record, old.record)
        return self._put(line, packed, old.seq, old.run, old.added_bytes, old.pinned)

    def _note(self, line: Line, record: Record, known: Record | None) -> None:
        """Keep what a line can be found by."""
        new = new_facts(record, known)
        if new:
            place = line.thread_id, line.namespace
            self._forget_facts(place, line.ref)
            line.ref.facts = kept(line.ref.facts, new)
            for label in itertools.chain.from_iterable(line.ref.facts.values()):
                self._noted.setdefault(label, set()).add(place)

    def _forget_facts(self, place: tuple[str, str], line: _Line) -> None:
        for label in itertools.chain.from_iterable(line.facts.values()):
            self._noted[label].discard(place)
            if not self._noted[label]:
                del self._noted[label]

    def _put(self, line: Line, packed: Packed, seq: int, run: int, added_bytes: int, pinned: bool) -> Stored:
        record = packed.record
        row = _Row(
            record.key, seq, record.step, record.children, packed.info, packed.root, packed.digest,
            run, added_bytes, pinned,
        )  # fmt: skip
        line.ref.rows[record.key.checkpoint_id] = row
        line.ref.names[seq] = record.key.checkpoint_id
        return self._in_commit(self._threads[line.thread_id], row)

    def prune(self, line: Line, seqs: Sequence[int]) -> None:
        prune(self, line, seqs)

    def add_objects(self, family: str, objects: Sequence[Object]) -> None:
        self._objects.setdefault(family, {}).update((obj.hash, obj) for obj in objects)

    def set_head(self, line: Line, stored: Stored | None, *, turned: bool = False) -> None:
        line.ref.head = stored.record.key.checkpoint_id if stored is not None else None
        line.ref.turned = turned
        line.ref.generation += 1
        self._threads[line.thread_id].active = now_micros()
        if self._order is not None:
            self._order.pop(line.thread_id, None)
            self._order[line.thread_id] = None

    def set_origin(self, thread_id: str, origin: Stored) -> None:
        self._set_origin(self._threads[thread_id], origin.record.key, origin.seq)

    def _set_origin(self, thread: _Thread, origin: Key | None, began: int | None) -> None:
        if thread.began is not None:
            self._began -= Counter([thread.began])
        thread.origin, thread.began = origin, began
        if began is not None:
            self._began[began] += 1

    def set_common(self, thread_id: str, other: str, common: Common) -> None:
        self._swept.discard(self._threads[thread_id].family)
        for one, two in ((thread_id, other), (other, thread_id)):
            held = self._threads[one].commons.get(two, [])
            kept = [*(each for each in held if each.place.seq != common.place.seq), common]
            self._threads[one].commons[two] = kept[-COMMONS_MAX:]

    def set_pinned(self, stored: Stored, pinned: bool) -> None:
        key = stored.record.key
        self._threads[key.thread_id].lines[key.namespace].rows[key.checkpoint_id].pinned = pinned

    def add_operation(self, thread_id: str, operation: Operation) -> int:
        seq = self._next()
        self._threads[thread_id].operations[seq] = pack_operation(operation, seq), operation.undone
        return seq

    def is_undone(self, thread_id: str, seq: int) -> bool | None:
        found = self._threads[thread_id].operations.get(seq)
        return None if found is None else found[1]

    def set_operation(self, thread_id: str, operation: Operation) -> None:
        operations = self._threads[thread_id].operations
        if operation.seq in operations:
            operations[operation.seq] = pack_operation(operation, operation.seq), operation.undone

    def hide(self, line: Line, hidden: Hidden) -> None:
        thread = self._threads[line.thread_id]
        thread.hidden.setdefault(hidden.operation, []).append(hidden)
        if thread.covers is not None:
            thread.covers.add(hidden)

    def show(self, thread_id: str, operation: int) -> list[Hidden]:
        self._threads[thread_id].covers = None
        return self._threads[thread_id].hidden.pop(operation, [])

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None:
        writes = line.ref.writes.setdefault(checkpoint_id, {})
        place = write.task_id, write.idx
        if place in writes:
            self._swept.discard(line.family)
        if write.idx < 0 or place not in writes:
            writes[place] = write._replace(seq=self._next())

    def writes(self, line: Line, checkpoint_id: str) -> list[Write]:
        return list(line.ref.writes.get(checkpoint_id, {}).values())

    def move_write(self, line: Line, checkpoint_id: str, write: Write, idx: int) -> None:
        self._swept.discard(line.family)
        writes = line.ref.writes[checkpoint_id]
        del writes[write.task_id, write.idx]
        writes[write.task_id, idx] = write._replace(idx=idx)

    # -- the Removal that `delete` works on

    def lines(self, thread_id: str) -> list[Line]:
        thread = self._threads[thread_id]
        return [Line(line, thread_id, name, thread.family, None, line.turned) for name, line in thread.lines.items()]

    def candidates(
        self,
        line: Line,
        *,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        before_step: int | None = None,
    ) -> list[Candidate]:
        held: _Line = line.ref
        if seqs is not None:
            ids = [held.names[seq] for seq in seqs if seq in held.names]
        rows = list(held.rows.values()) if ids is None else [held.rows[name] for name in ids if name in held.rows]
        if before_step is not None:
            rows = [row for row in rows if row.step < before_step]
        return [self._candidate(held, row) for row in rows]

    def _candidate(self, line: _Line, row: _Row) -> Candidate:
        name = row.key.checkpoint_id
        is_protected = row.pinned or row.seq in self._began or name == line.head
        return Candidate(name, row.seq, row.added_bytes, is_protected)

    def discard(self, line: Line, gone: Sequence[Candidate]) -> None:
        for each in gone:
            del line.ref.rows[each.checkpoint_id], line.ref.names[each.seq]
        freed = sum(each.added_bytes for each in gone)
        self._doomed[line.family] = self._doomed.get(line.family, 0) + freed
        self._swept.discard(line.family)

    def written(self, line: Line) -> list[str]:
        return list(line.ref.writes)

    def discard_writes(self, line: Line, ids: Collection[str]) -> None:
        self._swept.discard(line.family)
        for name in ids:
            line.ref.writes.pop(name, None)

    def fall_back(self, line: Line) -> None:
        held: _Line = line.ref
        if held.head is None or held.head in held.rows:
            return
        thread = self._threads[line.thread_id]
        left = [row for row in held.rows.values() if not thread.is_hidden(line.namespace, row.seq, row.run)]
        held.head = left[-1].key.checkpoint_id if left else None
        held.generation += 1
        held.turned = True

    def drop_idle_stretches(self, line: Line) -> None:
        thread = self._threads[line.thread_id]
        thread.covers = None
        for seq, stretches in list(thread.hidden.items()):
            thread.hidden[seq] = [h for h in stretches if h.namespace != line.namespace or _covers(h, line.ref)]
            if not thread.hidden[seq]:
                del thread.hidden[seq]

    def is_empty(self, line: Line) -> bool:
        return not line.ref.rows and not line.ref.writes

    def drop_line(self, line: Line) -> None:
        self._forget_facts((line.thread_id, line.namespace), line.ref)
        del self._threads[line.thread_id].lines[line.namespace]

    def drop_operations(self, thread_id: str, seqs: Collection[int]) -> None:
        for seq in seqs:
            self._threads[thread_id].operations.pop(seq, None)

    def drop_thread(self, thread_id: str) -> None:
        dropped = self._threads.pop(thread_id)
        if self._order is not None:
            self._order.pop(thread_id, None)
        if self._names is not None:
            del self._names[bisect.bisect_left(self._names, thread_id)]
        self._swept.discard(dropped.family)  # states in common with others go
        began = dropped.began
        if began is not None:
            self._began -= Counter([began])
        for other in self._threads.values():
            other.commons.pop(thread_id, None)

    def drop_family(self, family: str) -> bool:
        if any(thread.family == family for thread in self._threads.values()):
            return False
        for held in (self._objects, self._doomed, self._live, self._runs):
            held.pop(family, None)
        return True

    # -- what comes from another store: see `transaction.adopt`

    def reserve(self, family: str, count: int) -> int:  # noqa: ARG002  # all families are numbered together
        self._seq += count
        return self._seq - count

    def set_note(self, thread_id: str, note: bytes) -> None:
        self._threads[thread_id].note = note

    def remove(self, keys: Sequence[Key]) -> None:
        for key in keys:
            for line in self.lines(key.thread_id) if key.thread_id in self._threads else ():
                if line.namespace == key.namespace:
                    self.discard(line, self.candidates(line, ids=[key.checkpoint_id]))

    def keep(self, family: str, checkpoints: Sequence[tuple[Stored, Packed]]) -> None:
        lines = {}
        for stored, packed in checkpoints:
            key = stored.record.key
            line = lines[key[:2]] = self.create(key.thread_id, key.namespace, family)
            self._note(line, stored.record, None)
            old = line.ref.rows.get(key.checkpoint_id)
            if old is not None and old.seq != stored.seq:
                del line.ref.names[old.seq]
            self._put(line, packed, stored.seq, stored.run, stored.added_bytes, old is not None and old.pinned)
        for line in lines.values():
            line.ref.names = dict(sorted(line.ref.names.items()))
            line.ref.rows = {name: line.ref.rows[name] for name in line.ref.names.values()}

    def keep_runs(self, family: str, runs: Mapping[int, Sequence[Place]]) -> None:
        self._runs.setdefault(family, {}).update({run: tuple(follows) for run, follows in runs.items()})

    def restore(self, raw: RawThread) -> None:
        thread = self._threads[raw.thread_id]
        self._order = None  # it becomes active when it was elsewhere
        for namespace in thread.lines.keys() - raw.lines.keys():
            self._forget_facts((raw.thread_id, namespace), thread.lines[namespace])
        thread.lines = {namespace: thread.lines.get(namespace) or _Line() for namespace in raw.lines}
        for namespace, given in raw.lines.items():
            line = thread.lines[namespace]
            line.head, line.turned, line.generation = given.head, given.turned, given.generation
            line.runs = {run for run in given.runs if run in self._runs.get(thread.family, ())}
            line.writes.clear()
            for row in line.rows.values():
                row.pinned = row.seq in raw.pinned
        thread.active = max((line.active for line in raw.lines.values()), default=0)
        for key, write in raw.writes:
            thread.lines[key.namespace].writes.setdefault(key.checkpoint_id, {})[write.task_id, write.idx] = write
        thread.hidden, thread.covers = {}, None
        for stretch in raw.hidden:
            thread.hidden.setdefault(stretch.operation, []).append(stretch)
        thread.operations = {o.seq: (pack_operation(o, o.seq), o.undone) for o in raw.operations}
        self._set_origin(thread, raw.origin, raw.began or None)
        for other, commons in raw.commons.items():
            if self.family(other) == thread.family:
                thread.commons[other] = self._threads[other].commons[raw.thread_id] = list(commons)
        thread.note = raw.note

    def _next(self) -> int:
        self._seq += 1
        return self._seq


def _raw_line(line: _Line, active: int) -> RawLine:
    return RawLine(line.head, line.turned, line.generation, active, frozenset(line.runs), next(reversed(line.names), 0))


def _roots(thread: _Thread, without: Collection[Key]) -> Iterator[bytes]:
    yield from (common.root.children for commons in thread.commons.values() for common in commons)
    for line in thread.lines.values():
        yield from (row.children for row in line.rows.values() if row.key not in without)
        for writes in line.writes.values():
            yield from (write.children for write in writes.values())


def _held(line: _Line, query: Query) -> dict[str, _Row]:
    return line.rows if query.checkpoint_id is None else {query.checkpoint_id: line.rows[query.checkpoint_id]}


def _matches(query: Query, thread: _Thread, row: _Row, began: Collection[int]) -> bool:
    if not (
        (query.before_id is None or row.key.checkpoint_id < query.before_id)
        and (query.before_seq is None or row.seq < query.before_seq)
        and (query.after_seq is None or row.seq > query.after_seq)
        and (query.step_max is None or row.step <= query.step_max)
        and (query.run is None or row.run == query.run)
        and (query.spared is None or (row.pinned or row.seq in began) == query.spared)
    ):
        return False
    if query.hidden == "also":
        return True
    hidden = bool(thread.hidden) and thread.is_hidden(row.key.namespace, row.seq, row.run)
    return hidden == (query.hidden == "only")


def _covers(hidden: Hidden, line: _Line) -> bool:
    """Whether a hidden stretch still has something to hide."""
    if hidden.writes_of is not None:
        return hidden.writes_of in line.writes
    return any(hidden.run in (None, row.run) and hidden.after < row.seq <= hidden.to for row in line.rows.values())
