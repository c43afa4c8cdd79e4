"""All that a store of keys and values reads, inside one transaction."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

from everstep.errors import CheckpointCorrupted
from everstep.stores.facts import Wanted
from everstep.stores.keyvalue import keys
from everstep.stores.keyvalue.keys import number, numbers
from everstep.stores.keyvalue.rows import (
    ACTIVITY,
    BEGINNINGS,
    FAMILIES,
    FOUND_BY,
    IDENTITY,
    IDS,
    LAST_NUMBER,
    LINE_NAMES,
    LINE_SEGMENTS,
    NEWEST,
    NOTES,
    OBJECT,
    OBJECTS,
    OPERATIONS,
    PINS,
    SEGMENTS,
    SWEPT,
    THREADS,
    CheckpointRow,
    LineRow,
    Rows,
    ThreadRow,
    family_name,
    family_number,
    read_object,
    unpack,
)
from everstep.stores.newest import descent, newest_of
from everstep.stores.protocol import (
    Hidden,
    Hit,
    Key,
    Loaded,
    Newest,
    Object,
    Operation,
    Outline,
    Place,
    Position,
    Query,
    RawLine,
    RawThread,
    Search,
    Stored,
    Thread,
    Write,
)
from everstep.stores.records import matches, packed_filter, unpack_operation, unpack_segment
from everstep.values.tree import hashes

# How many threads an index may give for them to be put in order one by one.
_NARROW = 1000


class ReadRows(Rows):
    """What `Store` reads, each as one method. `Inside` calls them by these names."""

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> Loaded | None:
        line = self._line(thread_id, namespace)
        if line is None:
            return None
        if checkpoint_id is None:
            row = self._head(line)
        else:
            row = self._row_named(line, checkpoint_id)
        if row is None:
            return None
        below: Sequence[Object] = ()
        if objects:
            below = self.below(family_name(line.thread.family), hashes(row.children))
        pending: Sequence[Write] = ()
        if writes:
            pending = self._visible_writes(line, row.checkpoint_id)
        return Loaded(self._stored(line, row), line.generation, below, pending)

    def _visible_writes(self, line: LineRow, checkpoint_id: str) -> list[Write]:
        found = self._writes_of(line, checkpoint_id)
        for stretch in self._stretches(line.thread):
            if stretch.namespace == line.namespace and stretch.writes_of == checkpoint_id:
                found = [write for write in found if not stretch.after < write.seq <= stretch.to]
        return sorted(found, key=lambda write: (write.task_path, write.task_id, write.idx))

    def load_many(self, wanted: Sequence[Key], writes: bool) -> list[Loaded]:
        found: list[Loaded] = []
        for key in wanted:
            loaded = self.load(*key, objects=False, writes=writes)
            if loaded is not None:
                found.append(loaded)
        return found

    def find(self, checkpoint_id: str) -> list[Key]:
        found = []
        for key, _ in self._all(IDS + keys.name(checkpoint_id)):
            line = self._get(LINE_NAMES + key[-8:])
            # Its line was deleted when the checkpoint could not be read.
            if line is not None:
                thread_id, namespace = unpack(line)
                found.append(Key(thread_id, namespace, checkpoint_id))
        return found

    def below(self, family: str, wanted: Iterable[bytes]) -> list[Object]:
        found: dict[bytes, Object] = {}
        prefix = OBJECTS + number(family_number(family))
        # Looked up once: this loop runs for every object of a checkpoint.
        get = self._get
        pending = list(wanted)
        while pending:
            address = pending.pop()
            if address in found:
                continue
            value = get(prefix + address)
            if value is not None:
                obj = found[address] = read_object(address, value)
                if obj.children:
                    pending.extend(hashes(obj.children))
        return list(found.values())

    def shallow(self, family: str, wanted: Collection[bytes]) -> list[Object]:
        own = family_number(family)
        found: list[Object] = []
        for address in wanted:
            value = self._get(OBJECTS + number(own) + address)
            if value is not None:
                found.append(read_object(address, value))
        return found

    def list_checkpoints(self, query: Query) -> list[Stored]:
        # Generators, so that a list with a limit unpacks no more rows than it gives.
        found = (self._stored(line, row, payload=False) for line, row in self._chosen(query))
        wanted = packed_filter(query.filter)
        if wanted:
            found = (stored for stored in found if matches(stored.record.metadata, wanted))
        end = query.offset + query.limit if query.limit is not None else None
        return list(itertools.islice(found, query.offset, end))

    def count(self, query: Query) -> int:
        if query.filter or query.offset or query.limit is not None:
            return len(self.list_checkpoints(query))
        narrowed = (
            query.checkpoint_id, query.before_id, query.before_seq, query.after_seq, query.step_max, query.segment,
            query.protected,
        )  # fmt: skip
        if any(bound is not None for bound in narrowed):
            return sum(1 for _ in self._chosen(query))
        return sum(self._count(line, query) for line in self._asked_lines(query))

    def _count(self, line: LineRow, query: Query) -> int:
        """Return how many checkpoints of a line there are: those that are seen, those that are hidden, or all."""
        if query.hidden == "also":
            return line.total
        hidden = 0
        if line.thread.veil:
            # Only where something is hidden at all: the rest need not be looked at to be counted.
            after, to = self._covers(line.thread).reach(line.namespace)
            hidden = sum(self._is_hidden(line, row) for row in self._rows(line, after, to))
        if query.hidden == "only":
            return hidden
        return line.total - hidden

    def _asked_lines(self, query: Query) -> list[LineRow]:
        """Return the lines that a query is about."""
        threads: Iterable[ThreadRow] = ()
        if query.thread_id is None:
            threads = self._every_thread()
        else:
            thread = self._thread(query.thread_id)
            if thread is not None:
                threads = [thread]
        found: list[LineRow] = []
        for thread in threads:
            if query.namespace is None:
                found += self._lines_of(thread)
                continue
            line = self._line(thread.name, query.namespace)
            if line is not None:
                found.append(line)
        return found

    def _asked_rows(self, line: LineRow, query: Query) -> Iterator[CheckpointRow]:
        """Yield the checkpoints of a line that a query may ask for, the oldest first if it asks for that."""
        if query.checkpoint_id is not None:
            row = self._row_named(line, query.checkpoint_id)
            if row is None:
                return iter(())
            return iter((row,))
        after = max(query.after_seq or 0, 0)
        to = max(query.before_seq - 1, 0) if query.before_seq is not None else NEWEST
        return self._rows(line, after, to, reverse=query.order != "oldest")

    def _chosen(self, query: Query) -> Iterator[tuple[LineRow, CheckpointRow]]:
        """Yield what a query asks for, its filter left aside, in its order."""
        lines = self._asked_lines(query)
        rows: Iterable[tuple[LineRow, CheckpointRow]]
        rows = ((line, row) for line in lines for row in self._asked_rows(line, query))
        if query.order == "id":
            rows = sorted(rows, key=lambda each: (each[1].checkpoint_id, each[1].seq), reverse=True)
        elif len(lines) > 1:
            rows = sorted(rows, key=lambda each: each[1].seq, reverse=query.order != "oldest")
        return (each for each in rows if self._is_asked(query, *each))

    def _is_asked(self, query: Query, line: LineRow, row: CheckpointRow) -> bool:
        if not _is_in_range(query, row):
            return False
        if query.protected is not None and self._is_spared(line, row) != query.protected:
            return False
        if query.hidden == "also":
            return True
        return self._is_hidden(line, row) == (query.hidden == "only")

    def _listed(self, thread: ThreadRow, headless: bool = False) -> tuple[LineRow, int] | None:
        """Return which checkpoint a thread is listed by: its line and its seq."""
        lines = self._lines_of(thread)
        for line in lines:
            if line.head:
                return line, line.head
        if not headless:
            return None
        for line in lines:
            row = next(self._rows(line), None)
            if row is not None:
                return line, row.seq
        return None

    def _shown(self, line: LineRow, seq: int) -> Stored:
        row = self._row(line, seq)
        if row is None:
            raise CheckpointCorrupted("the head's checkpoint is missing", thread_id=line.thread.name)
        return self._stored(line, row, payload=False)

    def list_threads(self, limit: int, offset: int, headless: bool) -> list[Stored]:
        listed = self._listed_threads(headless)
        return [self._shown(*each) for each in itertools.islice(listed, offset, offset + limit)]

    def _listed_threads(self, headless: bool) -> Iterator[tuple[LineRow, int]]:
        """Yield which checkpoints the threads are listed by, those that were active last first."""
        for _, name in self._all(ACTIVITY, reverse=True):
            listed = self._listed(self._known(name.decode()), headless)
            if listed is not None:
                yield listed

    def search(self, search: Search) -> list[Hit]:
        found: list[Hit] = []
        if not search.limit:
            return found
        wanted = Wanted.of(search)
        for name in self._searched(search, wanted):
            thread = self._known(name)
            # They come in the order of their activity, so that all that follow were active earlier.
            if search.since is not None and thread.active < search.since:
                break
            if search.after is not None and Position(thread.active, name) >= search.after:
                continue
            if not name.startswith(search.prefix) or not self._may_fit(thread, wanted):
                continue
            hit = self._hit(thread, wanted)
            if hit is not None:
                found.append(hit)
            if len(found) == search.limit:
                break
        return found

    def _hit(self, thread: ThreadRow, wanted: Wanted) -> Hit | None:
        """Return a thread as it is found, or what is the matter with it; None: it is not what is wanted."""
        position = Position(thread.active, thread.name)
        try:
            listed = self._listed(thread)
            if listed is None:
                return None
            stored = self._shown(*listed)
        except CheckpointCorrupted as exc:
            return Hit(None, position, exc.located(thread.name, None))
        return Hit(stored, position) if wanted.fits(stored.record) else None

    def _searched(self, search: Search, wanted: Wanted) -> Iterable[str]:
        """Return the threads that a search may be about, in its order: by the index that gives the fewest."""
        narrow: list[set[str]] = []
        if search.prefix:
            start = THREADS + keys.shortened(keys.beginning(search.prefix))
            # One more than the limit, which tells whether there are more.
            rows = list(itertools.islice(self._all(start), _NARROW + 1))
            if len(rows) <= _NARROW:
                narrow.append({ThreadRow(*unpack(value)).name for _, value in rows})
        for labels in wanted.labels:
            names = list(itertools.islice(self._found_by(labels), _NARROW + 1))
            if len(names) <= _NARROW:
                narrow.append(set(names))
        if narrow:
            narrowest = min(narrow, key=len)
            return sorted(narrowest, key=lambda name: (self._known(name).active, name), reverse=True)
        # There are many: those that were active last are looked at one by one.
        latest = search.after.active if search.after is not None else NEWEST
        end = ACTIVITY + number(min(max(latest, 0), NEWEST) + 1)
        active = self._tx.scan(ACTIVITY, end, reverse=True)
        return (name.decode() for _, name in active)

    def _found_by(self, labels: Iterable[int]) -> Iterator[str]:
        """Yield the threads that have one of these labels; one with several lines may come several times."""
        for label in labels:
            for _, value in self._all(FOUND_BY + number(label)):
                yield value.decode()

    def _may_fit(self, thread: ThreadRow, wanted: Wanted) -> bool:
        if not wanted.labels:
            return True
        lines = [line.number for line in self._lines_of(thread)]
        for labels in wanted.labels:
            pairs = itertools.product(labels, lines)
            if all(self._get(FOUND_BY + numbers(label, line)) is None for label, line in pairs):
                return False
        return True

    def thread(self, thread_id: str, branches: bool, ancestry: bool, brief: bool) -> Thread | None:
        thread = self._thread(thread_id)
        if thread is None:
            return None
        lines = self._lines_of(thread)
        heads: dict[str, tuple[str, int]] = {}
        newest: dict[str, int] = {}
        for line in lines:
            if line.head:
                heads[line.namespace] = line.head_id, line.generation
            seq = self._newest_seq(line)
            if seq:
                newest[line.namespace] = seq
        hidden: dict[int, list[Hidden]] = {}
        followed: dict[int, Sequence[Place]] = {}
        protected: frozenset[int] = frozenset()
        if not brief:
            for stretch in self._stretches(thread):
                hidden.setdefault(stretch.operation, []).append(stretch)
            for line in lines:
                followed.update(self.segments(family_name(thread.family), self._segments_of(line)))
            protected = self._protected(thread, lines)
        all_segments: dict[int, tuple[Place, ...]] = {}
        if ancestry:
            all_segments = self._ancestry(thread.family)
        branch_names: Sequence[str] = ()
        if branches:
            branch_names = self._branches(thread)
        family = self._family(thread.family)
        return Thread(
            thread_id,
            family_name(thread.family),
            _origin(thread),
            heads,
            newest,
            hidden,
            followed,
            all_segments,
            branch_names,
            self._shared_states_of(thread),
            protected,
            family.doomed / max(family.live, 1),
        )

    def _segments_of(self, line: LineRow) -> list[int]:
        return self._numbers_after(LINE_SEGMENTS + number(line.number))

    def _ancestry(self, family: int) -> dict[int, tuple[Place, ...]]:
        found = {}
        for key, value in self._all(SEGMENTS + number(family)):
            segment = keys.last_number(key)
            found[segment] = unpack_segment(segment, value)
        return found

    def _branches(self, thread: ThreadRow) -> list[str]:
        found: list[str] = []
        for other in self._relatives(thread.family):
            if other.origin is not None and other.origin[0] == thread.name:
                found.append(other.name)
        return found

    def _protected(self, thread: ThreadRow, lines: Sequence[LineRow]) -> frozenset[int]:
        protected = self._pinned(lines)
        for key, _ in self._all(BEGINNINGS + number(thread.family)):
            # Branches of the whole family are listed there: this one may have begun in another thread.
            seq = keys.number_at(key, 9)
            if any(self._row(line, seq) is not None for line in lines):
                protected.add(seq)
        return frozenset(protected)

    def _pinned(self, lines: Sequence[LineRow]) -> set[int]:
        """Return the numbers of the checkpoints of these lines that are pinned."""
        found: set[int] = set()
        for line in lines:
            found.update(self._numbers_after(PINS + number(line.number)))
        return found

    def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        line = self._line(thread_id, namespace)
        if line is None:
            return []
        later = [segment for segment in self._segments_of(line) if segment > after]
        if not line.thread.veil:
            return later
        covers = self._covers(line.thread)
        return [segment for segment in later if not covers.hide(namespace, segment, segment)]

    def segments(self, family: str, segments: Collection[int], older: int = 0) -> dict[int, tuple[Place, ...]]:  # noqa: ARG002  # all are near
        found = {}
        for segment in segments:
            value = self._get(SEGMENTS + numbers(family_number(family), segment))
            if value is not None:
                found[segment] = unpack_segment(segment, value)
        return found

    def newest(self, thread_id: str, limit: int, branches: bool, without: str | None) -> Newest | None:
        start = self._thread(thread_id)
        if start is None:
            return None
        born = self._born(start.family) if branches else {}
        names = descent(thread_id, born, self._has_head)
        if not names:
            return None
        lines: list[tuple[int, LineRow]] = []
        heads: set[Key] = set()
        count = 0
        for name in names:
            for line in self._lines_of(self._known(name)):
                if line.namespace == without or not line.total:
                    continue
                lines.append((self._newest_seq(line), line))
                count += self._count(line, Query(hidden="no"))
                if line.head:
                    heads.add(Key(name, line.namespace, line.head_id))
        return Newest(newest_of(lines, limit, self._newest_rows), frozenset(heads), count)

    def _born(self, family: int) -> dict[str, list[str]]:
        """Return, by thread, the branches that began there."""
        born: dict[str, list[str]] = {}
        for other in self._relatives(family):
            if other.origin is not None:
                born.setdefault(other.origin[0], []).append(other.name)
        return born

    def _has_head(self, name: str) -> bool:
        thread = self._thread(name)
        return thread is not None and any(line.head for line in self._lines_of(thread))

    def _newest_rows(self, lines: Sequence[LineRow], after: int, limit: int) -> list[Stored]:
        found: list[Stored] = []
        for line in lines:
            rows = self._rows(line, after, reverse=True)
            visible = (row for row in rows if not self._is_hidden(line, row))
            for row in itertools.islice(visible, limit):
                found.append(self._stored(line, row, payload=False))
        return found

    def outlines(self, position: int) -> tuple[list[Outline], int | None]:  # noqa: ARG002  # all at once
        found = []
        for thread in self._every_thread():
            most = max((line.total for line in self._lines_of(thread)), default=0)
            if most:
                has_log = self._is_any(OPERATIONS + number(thread.number))
                is_swept = self._family(thread.family).swept == SWEPT
                found.append(Outline(thread.name, family_name(thread.family), most, has_log, is_swept))
        return found, None

    def operations(self, thread_id: str, limit: int) -> list[Operation]:
        thread = self._thread(thread_id)
        if thread is None:
            return []
        return list(itertools.islice(self._logged(thread, reverse=True), limit))

    def logs(self, thread_ids: Sequence[str], limit: int) -> dict[str, list[Operation]]:
        return {thread_id: self.operations(thread_id, limit) for thread_id in thread_ids}

    def origins(self, thread_id: str) -> dict[str, Key]:
        found: dict[str, Key] = {}
        thread = self._thread(thread_id)
        if thread is None:
            return found
        for other in self._relatives(thread.family):
            origin = _origin(other)
            if origin is not None:
                found[other.name] = origin
        return found

    def _logged(self, thread: ThreadRow, *, reverse: bool = False) -> Iterator[Operation]:
        for key, value in self._all(OPERATIONS + number(thread.number), reverse=reverse):
            yield unpack_operation(value[1:], keys.last_number(key), value[:1] == b"\1")

    def raw(self, thread_id: str, family_threads: bool) -> RawThread | None:
        thread = self._thread(thread_id)
        if thread is None:
            return None
        lines = self._lines_of(thread)
        origin = _origin(thread)
        began = 0
        # The checkpoint that it began with may be gone, and another one may have its id by now.
        if origin is not None and self._seq_of(origin) == thread.began:
            began = thread.began
        relatives: Sequence[str] = ()
        if family_threads:
            relatives = [other.name for other in self._relatives(thread.family)]
        family = family_name(thread.family)
        return RawThread(
            thread_id,
            family,
            (self._get(IDENTITY) or b"") + family.encode(),
            {line.namespace: self._raw_line(line) for line in lines},
            origin,
            began,
            frozenset(self._pinned(lines)),
            list(self._stretches(thread)),
            list(self._logged(thread)),
            self._raw_writes(thread_id, lines),
            self._shared_states_of(thread),
            self._get(NOTES + number(thread.number)) or b"",
            relatives,
        )

    def _raw_writes(self, thread_id: str, lines: Sequence[LineRow]) -> list[tuple[Key, Write]]:
        """Return all pending writes of these lines, in the order in which they came."""
        found: list[tuple[Key, Write]] = []
        for line in lines:
            for name, write in self._written(line):
                found.append((Key(thread_id, line.namespace, name), write))
        return sorted(found, key=lambda each: each[1].seq)

    def _seq_of(self, key: Key) -> int:
        """Return the number of a checkpoint; 0 if it is not stored."""
        line = self._line(key.thread_id, key.namespace)
        if line is None:
            return 0
        row = self._row_named(line, key.checkpoint_id)
        return row.seq if row is not None else 0

    def _raw_line(self, line: LineRow) -> RawLine:
        head_id = line.head_id if line.head else None
        return RawLine(
            head_id,
            line.head_was_moved,
            line.generation,
            line.thread.active,
            frozenset(self._segments_of(line)),
            self._newest_seq(line),
        )

    # -- what a sweep reads: see `sweeping`

    def sweep_start(self, family: str, without: Collection[Key] | None) -> tuple[int, int, int, list[bytes]] | None:
        own = family_number(family)
        if self._get(FAMILIES + number(own)) is None:
            return None
        found = self._family(own)
        roots: set[bytes] = set()
        for root in self._roots(own, set(without or ())):
            roots.update(hashes(root))
        return found.sweeps, found.doomed, self._last(LAST_NUMBER), list(roots)

    def _roots(self, family: int, without: Collection[Key]) -> Iterator[bytes]:
        for thread in self._relatives(family):
            for shared_states in self._shared_states_of(thread).values():
                yield from (common.root.children for common in shared_states)
            for line in self._lines_of(thread):
                for row in self._rows(line):
                    if Key(thread.name, line.namespace, row.checkpoint_id) not in without:
                        yield row.children
                yield from (write.children for _, write in self._written(line))

    def links(self, family: str, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]:
        found = self.shallow(family, wanted)
        return [(obj.hash, obj.children, len(obj.children) + len(obj.body)) for obj in found]

    def objects_after(self, family: str, last: bytes, limit: int) -> tuple[list[tuple[bytes, int, int]], bytes | None]:
        prefix = OBJECTS + number(family_number(family))
        start = prefix
        if last:
            # The first key after it.
            start = prefix + last + b"\0"
        found = []
        for key, value in itertools.islice(self._tx.scan(start, keys.end(prefix)), limit):
            age, _ = OBJECT.unpack_from(value)
            found.append((key[len(prefix) :], age, len(value) - OBJECT.size))
        if len(found) < limit:
            return found, None
        return found, found[-1][0]


def _origin(thread: ThreadRow) -> Key | None:
    return Key(*thread.origin) if thread.origin is not None else None


def _is_in_range(query: Query, row: CheckpointRow) -> bool:
    if query.before_id is not None and row.checkpoint_id >= query.before_id:
        return False
    if query.before_seq is not None and row.seq >= query.before_seq:
        return False
    if query.after_seq is not None and row.seq <= query.after_seq:
        return False
    if query.step_max is not None and row.step > query.step_max:
        return False
    return query.segment is None or row.segment == query.segment
