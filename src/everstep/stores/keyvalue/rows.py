"""The rows of a store as keys and values: the schema, and how single rows are found. Changes nothing.

A key is one of the letters below and then what its description names, in that order: numbers of 8 bytes, and names that
end where they seem to (see `keys`). After the colon: what is stored there. The key is all that is looked up, so there
are some tables that only say where something is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import ormsgpack

from everstep.errors import CheckpointCorrupted, StoreMismatch
from everstep.stores.covers import Covers
from everstep.stores.keyvalue import keys
from everstep.stores.keyvalue.interface import Reading, unchecked
from everstep.stores.keyvalue.keys import number, numbers
from everstep.stores.protocol import Hidden, Key, Object, Place, Record, Root, SharedState, Stored, Write
from everstep.stores.records import record_digest, unpack_record

LAST_SEQ = b"#"
"""The last number that callers were given. Checkpoints, writes and operations share them."""
LAST_NUMBER = b"$"
"""The last number that was given to something in here: threads, families, lines, stretches, sweeps."""
IDENTITY = b"@"
"""FORMAT, and a name for this store among all stores, chosen at random."""
THREADS = b"t"
"""name: a ThreadRow."""
ACTIVITY = b"a"
"""when a thread was active, its name: the name."""
NOTES = b"N"
"""thread: what `adopt` was given to keep with it."""
LINES = b"l"
"""thread, namespace: a LineRow. A line is a namespace of a thread."""
LINE_NAMES = b"L"
"""line: the thread's name, the namespace."""
CHECKPOINTS = b"c"
"""line, seq: a CheckpointRow."""
IDS = b"i"
"""id, line: the seq of that checkpoint."""
PINS = b"p"
"""line, seq: nothing. The checkpoints that are pinned."""
WRITES = b"w"
"""line, id, task, idx: a pending write, with the id."""
STRETCHES = b"h"
"""thread, operation, a number of its own: a stretch that is hidden."""
OPERATIONS = b"e"
"""thread, seq: whether the operation is undone (one byte), then the operation."""
SHARED_STATES = b"k"
"""thread, other thread: the other's name, the states that both have in common. Kept for both."""
FAMILIES = b"f"
"""family: a FamilyRow."""
MEMBERS = b"m"
"""family, thread: the thread's name."""
BEGINNINGS = b"b"
"""family, seq, branch: nothing. The checkpoints where living branches began."""
SEGMENTS = b"r"
"""family, segment: what the segment follows."""
LINE_SEGMENTS = b"g"
"""line, segment: nothing. The segments of a line that something is kept about."""
OBJECTS = b"o"
"""family, hash: an object. Its age and the length of its children, the children, the body."""
FACTS = b"d"
"""line: what it can be found by. See `facts`."""
FOUND_BY = b"x"
"""label, line: the thread's name."""

pack = ormsgpack.packb
unpack = ormsgpack.unpackb
OBJECT = struct.Struct(">QI")
# The mark of a family that is swept.
SWEPT = 2
NOTHING = b""
FORMAT = b"everstep-keyvalue-1 "
# No number is greater.
NEWEST = 1 << 62


@dataclass(slots=True)
class ThreadRow:
    """What is kept of a thread as a whole."""

    number: int
    name: str
    family: int
    active: int = 0
    veil: int = 0
    """Another number after each change of what is hidden; 0: nothing is."""
    origin: list[str] | None = None
    began: int = 0
    """The seq of the origin; 0: there is none."""

    def packed(self) -> bytes:
        """Return it as it is kept."""
        return pack([self.number, self.name, self.family, self.active, self.veil, self.origin, self.began])


@dataclass(slots=True)
class LineRow:
    """What is kept of a line as a whole."""

    thread: ThreadRow
    number: int
    namespace: str
    head: int = 0
    """Its seq; 0: there is none."""
    head_id: str = ""
    head_was_moved: bool = False
    generation: int = 0
    total: int = 0
    """How many checkpoints it has."""

    def packed(self) -> bytes:
        """Return it as it is kept: its thread is in its key."""
        return pack(
            [self.number, self.namespace, self.head, self.head_id, self.head_was_moved, self.generation, self.total]
        )


class CheckpointRow(NamedTuple):
    """A checkpoint as it is kept. The seq is in its key."""

    seq: int
    checkpoint_id: str
    step: int
    segment: int
    added_bytes: int
    pinned: bool
    children: bytes
    info: bytes
    root: bytes


@dataclass(slots=True)
class FamilyRow:
    """What is kept of a family as a whole."""

    doomed: int = 0
    live: int = 0
    """About how many bytes nobody needs, and how many somebody does."""
    sweeps: int = 0
    swept: int = 0
    """SWEPT; or 0, or the number of a sweep that is under way."""


class WorkedOut:
    """What a process worked out lately from what is stored. It is found by content, so nothing here gets old."""

    _COVERS_MAX = 1000
    _RECORDS_MAX = 256
    # Larger ones would soon fill the memory, and to unpack them takes little beside reading them.
    _RECORD_BYTES_MAX = 16_384

    def __init__(self) -> None:
        self._covers: dict[tuple[int, int], Covers] = {}
        self._records: dict[tuple[Key, bytes], Record] = {}

    def clear(self) -> None:
        """Forget everything."""
        self._covers.clear()
        self._records.clear()

    def covers(self, thread: ThreadRow) -> Covers | None:
        """Return what is hidden of a thread. Each state of that has a veil of its own."""
        return self._covers.get((thread.number, thread.veil))

    def keep_covers(self, thread: ThreadRow, covers: Covers) -> None:
        # Emptied as a whole, which is simple; what is needed again is made again.
        if len(self._covers) >= self._COVERS_MAX:
            self._covers.clear()
        self._covers[thread.number, thread.veil] = covers

    def record(self, key: Key, digest: bytes) -> Record | None:
        """Return a record that a commit made or looked at: the next commit is likely to follow it."""
        return self._records.get((key, digest))

    def keep_record(self, record: Record, digest: bytes) -> None:
        if len(record.body) + len(record.children) <= self._RECORD_BYTES_MAX:
            if len(self._records) >= self._RECORDS_MAX:
                self._records.clear()
            self._records[record.key, digest] = record


class Rows:
    """Finds rows inside one transaction. A thread or line that was found is one and the same object from then on."""

    def __init__(self, tx: Reading, seen: WorkedOut) -> None:
        self._tx = tx
        self._seen = seen
        # Looked up once, since it is called for every row.
        self._get = tx.get
        self._threads: dict[str, ThreadRow] = {}
        self._lines: dict[tuple[str, str], LineRow] = {}

    def _all(self, prefix: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._tx.scan(prefix, keys.end(prefix), reverse=reverse)

    def _numbers_after(self, prefix: bytes) -> list[int]:
        """Return what the keys end with that begin like this."""
        return [keys.last_number(key) for key, _ in self._all(prefix)]

    def _is_any(self, prefix: bytes) -> bool:
        # Without a look at checksums: something that is damaged is there all the same.
        return next(unchecked(self._tx).scan(prefix, keys.end(prefix)), None) is not None

    def _last(self, counter: bytes) -> int:
        return int.from_bytes(self._get(counter) or b"", "big")

    def check_format(self) -> None:
        """Refuse what is not a store, or is one of another version."""
        found = self._get(IDENTITY)
        if found is not None and not found.startswith(FORMAT):
            raise StoreMismatch("this is not an Everstep store of a version that this package knows")

    def _thread(self, name: str) -> ThreadRow | None:
        thread = self._threads.get(name)
        if thread is None:
            value = self._get(THREADS + keys.name(name))
            if value is None:
                return None
            thread = self._threads[name] = ThreadRow(*unpack(value))
        return thread

    def _known(self, name: str) -> ThreadRow:
        thread = self._thread(name)
        if thread is None:
            raise CheckpointCorrupted("the thread is missing though others name it", thread_id=name)
        return thread

    def _every_thread(self) -> list[ThreadRow]:
        found: list[ThreadRow] = []
        for _, value in self._all(THREADS):
            thread = ThreadRow(*unpack(value))
            found.append(self._threads.setdefault(thread.name, thread))
        return found

    def _relatives(self, family: int) -> list[ThreadRow]:
        """Return the threads of a family, in the order they came into being."""
        return [self._known(name.decode()) for _, name in self._all(MEMBERS + number(family))]

    def _line(self, thread_id: str, namespace: str) -> LineRow | None:
        line = self._lines.get((thread_id, namespace))
        if line is None:
            thread = self._thread(thread_id)
            value = self._get(line_key(thread, namespace)) if thread is not None else None
            if thread is None or value is None:
                return None
            line = self._lines[thread_id, namespace] = LineRow(thread, *unpack(value))
        return line

    def _lines_of(self, thread: ThreadRow) -> list[LineRow]:
        """Return the lines of a thread by namespace."""
        found: list[LineRow] = []
        for _, value in self._all(LINES + number(thread.number)):
            line = LineRow(thread, *unpack(value))
            found.append(self._lines.setdefault((thread.name, line.namespace), line))
        return sorted(found, key=lambda line: line.namespace)

    def _row(self, line: LineRow, seq: int) -> CheckpointRow | None:
        value = self._get(CHECKPOINTS + numbers(line.number, seq))
        return CheckpointRow(seq, *unpack(value)) if value is not None else None

    def _row_named(self, line: LineRow, checkpoint_id: str) -> CheckpointRow | None:
        seq = self._get(IDS + keys.name(checkpoint_id) + number(line.number))
        if seq is None:
            return None
        row = self._row(line, keys.last_number(seq))
        if row is None:
            raise CheckpointCorrupted(
                "the checkpoint is missing", thread_id=line.thread.name, checkpoint_id=checkpoint_id
            )
        return row

    def _head(self, line: LineRow) -> CheckpointRow | None:
        if not line.head:
            return None
        row = self._row(line, line.head)
        if row is None:
            raise CheckpointCorrupted("the head's checkpoint is missing", thread_id=line.thread.name)
        return row

    def _rows(
        self, line: LineRow, after: int = 0, to: int = NEWEST, *, reverse: bool = False
    ) -> Iterator[CheckpointRow]:
        """Yield the checkpoints of a line with `after` < seq <= `to`, in order."""
        own = CHECKPOINTS + number(line.number)
        for key, value in self._tx.scan(own + number(after + 1), own + number(to + 1), reverse=reverse):
            yield CheckpointRow(keys.last_number(key), *unpack(value))

    def _newest_seq(self, line: LineRow) -> int:
        found = next(self._all(CHECKPOINTS + number(line.number), reverse=True), None)
        return keys.last_number(found[0]) if found is not None else 0

    def _stored(self, line: LineRow, row: CheckpointRow, *, payload: bool = True) -> Stored:
        """Return a checkpoint; for lists without its `payload`."""
        key = Key(line.thread.name, line.namespace, row.checkpoint_id)
        record = unpack_record(key, row.step, row.children, row.info, row.root if payload else None)
        return _as_stored(record, line, row, record_digest(row.info, row.root), self._is_hidden(line, row))

    def _in_commit(self, line: LineRow, row: CheckpointRow) -> Stored:
        """Return a checkpoint as commits see it: nobody asks whether it is hidden, and none changes the record."""
        key = Key(line.thread.name, line.namespace, row.checkpoint_id)
        digest = record_digest(row.info, row.root)
        record = self._seen.record(key, digest)
        if record is None:
            record = unpack_record(key, row.step, row.children, row.info, row.root)
            self._seen.keep_record(record, digest)
        return _as_stored(record, line, row, digest, False)

    def _is_spared(self, line: LineRow, row: CheckpointRow) -> bool:
        return row.pinned or self._is_any(BEGINNINGS + numbers(line.thread.family, row.seq))

    def _written(self, line: LineRow, checkpoint_id: str | None = None) -> Iterator[tuple[str, Write]]:
        """Yield the pending writes of a line, or those of one checkpoint, each with the id of its checkpoint."""
        prefix = WRITES + number(line.number)
        if checkpoint_id is not None:
            prefix += keys.name(checkpoint_id)
        for _, value in self._all(prefix):
            name, task_id, idx, channel, children, body, size, path, seq = unpack(value)
            yield name, Write(task_id, idx, keys.to_text(channel), children, body, size, keys.to_text(path), seq)

    def _writes_of(self, line: LineRow, checkpoint_id: str) -> list[Write]:
        """Return the pending writes of a checkpoint, hidden ones included."""
        return [write for _, write in self._written(line, checkpoint_id)]

    def _shared_states_of(self, thread: ThreadRow) -> dict[str, tuple[SharedState, ...]]:
        found = {}
        for _, value in self._all(SHARED_STATES + number(thread.number)):
            name, shared_states = unpack(value)
            found[name] = tuple(_read_shared_state(common) for common in shared_states)
        return found

    def _family(self, family: int) -> FamilyRow:
        value = self._get(FAMILIES + number(family))
        return FamilyRow(*unpack(value)) if value is not None else FamilyRow()

    def _stretches(self, thread: ThreadRow) -> Iterator[Hidden]:
        """Yield what is hidden of a thread, by operation."""
        for _, stretch in self._stretches_by_key(thread):
            yield stretch

    def _stretches_by_key(self, thread: ThreadRow) -> Iterator[tuple[bytes, Hidden]]:
        if not thread.veil:
            return
        for key, value in self._all(STRETCHES + number(thread.number)):
            namespace, after, to, segment, writes_of = unpack(value)
            operation = keys.number_at(key, 9)
            yield key, Hidden(namespace, after, to, segment, writes_of, operation)

    def _covers(self, thread: ThreadRow) -> Covers:
        covers = self._seen.covers(thread)
        if covers is None:
            covers = Covers(self._stretches(thread))
            self._seen.keep_covers(thread, covers)
        return covers

    def _is_hidden(self, line: LineRow, row: CheckpointRow) -> bool:
        thread = line.thread
        return thread.veil != 0 and self._covers(thread).hide(line.namespace, row.seq, row.segment)


def _as_stored(record: Record, line: LineRow, row: CheckpointRow, digest: bytes, hidden: bool) -> Stored:
    family = family_name(line.thread.family)
    return Stored(record, row.seq, family, row.pinned, hidden, digest, row.segment, row.added_bytes)


def pack_facts(facts: dict[int, set[int]]) -> bytes:
    """Return what a line can be found by, as it is kept."""
    return pack([[key, list(labels)] for key, labels in facts.items()])


def unpack_facts(value: bytes | None) -> dict[int, set[int]]:
    """Return what `pack_facts` was given; nothing if there is nothing."""
    if value is None:
        return {}
    return {key: set(labels) for key, labels in unpack(value)}


def line_key(thread: ThreadRow, namespace: str) -> bytes:
    """Return where a line is kept."""
    return LINES + number(thread.number) + keys.name(namespace)


def family_name(family: int) -> str:
    """Return what a family is called outside."""
    return f"f{family}"


def family_number(family: str) -> int:
    """Return the number of a family; 0, which none has, for a name that another store gave."""
    digits = family[1:]
    # A number in another script would be a digit to Python, too.
    if family[:1] != "f" or not digits.isdecimal() or not digits.isascii():
        return 0
    return int(digits)


def read_object(address: bytes, value: bytes) -> Object:
    """Return an object from what is kept under its hash."""
    _, length = OBJECT.unpack_from(value)
    middle = OBJECT.size + length
    return Object(address, value[OBJECT.size : middle], value[middle:])


def _read_shared_state(packed: list[Any]) -> SharedState:
    key, segment, seq, children, body, sizes = packed
    return SharedState(Place(Key(*key), segment, seq), Root(children, body, tuple(sizes)))
