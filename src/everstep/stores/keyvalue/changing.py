"""All that a store of keys and values changes, inside one transaction."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from everstep.errors import CheckpointCorrupted
from everstep.stores.covers import Covers
from everstep.stores.deletion import Candidate, discard_each, prune
from everstep.stores.facts import kept, new_facts
from everstep.stores.keyvalue import keys
from everstep.stores.keyvalue.interface import Writing, unchecked
from everstep.stores.keyvalue.keys import number, numbers
from everstep.stores.keyvalue.reading import ReadRows
from everstep.stores.keyvalue.rows import (
    ACTIVITY,
    BEGINNINGS,
    CHECKPOINTS,
    FACTS,
    FAMILIES,
    FORMAT,
    FOUND_BY,
    IDENTITY,
    IDS,
    LAST_NUMBER,
    LAST_SEQ,
    LINE_NAMES,
    LINE_SEGMENTS,
    MEMBERS,
    NOTES,
    NOTHING,
    OBJECT,
    OBJECTS,
    OPERATIONS,
    PINS,
    SEGMENTS,
    SHARED_STATES,
    STRETCHES,
    SWEPT,
    THREADS,
    WRITES,
    CheckpointRow,
    FamilyRow,
    LineRow,
    ThreadRow,
    WorkedOut,
    family_name,
    family_number,
    line_key,
    pack,
    pack_facts,
    unpack_facts,
)
from everstep.stores.protocol import (
    SHARED_STATES_MAX,
    Hidden,
    Key,
    Object,
    Operation,
    Place,
    RawLine,
    RawThread,
    Record,
    SharedState,
    Stored,
    Write,
)
from everstep.stores.records import pack_operation, pack_segment
from everstep.stores.transaction import Line, Packed, now_micros


class ChangeRows(ReadRows):
    """The Transaction and the Removal of `transaction`, and the Rows of `sweeping`."""

    def __init__(self, tx: Writing, seen: WorkedOut) -> None:
        super().__init__(tx, seen)
        self._put = tx.put
        self._delete = tx.delete
        self._own_covers: dict[tuple[int, int], Covers] = {}
        self._counters: dict[bytes, int] = {}
        """The numbers that this transaction gave last."""

    def finish(self) -> None:
        """Write what is written once: call it before a transaction is committed."""
        for counter, last in self._counters.items():
            self._put(counter, number(last))

    def _last(self, counter: bytes) -> int:
        # Kept here until the end: a counter that is written with each number would be the most written key of
        # all.
        return self._counters.get(counter) or super()._last(counter)

    def _next(self, counter: bytes) -> int:
        self._counters[counter] = self._last(counter) + 1
        return self._counters[counter]

    def _covers(self, thread: ThreadRow) -> Covers:
        """Return what is hidden as this transaction sees it. That may never come true, so nobody else may see it."""
        veiled = thread.number, thread.veil
        if veiled not in self._own_covers:
            self._own_covers[veiled] = Covers(self._stretches(thread))
        return self._own_covers[veiled]

    def _keys(self, prefix: bytes) -> list[bytes]:
        """Return all keys that begin like this, also where their values are damaged."""
        # A list, since what is scanned must not be changed while it is gone through.
        return [key for key, _ in unchecked(self._tx).scan(prefix, keys.end(prefix))]

    def _drop_all(self, prefix: bytes) -> None:
        for key in self._keys(prefix):
            self._delete(key)

    def _save_thread(self, thread: ThreadRow) -> None:
        self._put(THREADS + keys.name(thread.name), thread.packed())

    def _set_active(self, thread: ThreadRow, active: int) -> None:
        name = keys.name(thread.name)
        self._delete(ACTIVITY + number(thread.active) + name)
        thread.active = active
        self._put(ACTIVITY + number(active) + name, thread.name.encode())
        self._save_thread(thread)

    def _save_line(self, line: LineRow) -> None:
        self._put(line_key(line.thread, line.namespace), line.packed())

    def _save_row(self, line: LineRow, row: CheckpointRow) -> None:
        self._put(CHECKPOINTS + numbers(line.number, row.seq), pack(row[1:]))
        pin = PINS + numbers(line.number, row.seq)
        # An index of its own, so that what is pinned is found without a look at every checkpoint.
        if row.pinned:
            self._put(pin, NOTHING)

    def _new_veil(self, thread: ThreadRow) -> None:
        thread.veil = 0
        if self._is_any(STRETCHES + number(thread.number)):
            # A new number each time: what others remember of the stretches goes by it.
            thread.veil = self._next(LAST_NUMBER)
        self._save_thread(thread)

    # -- the Transaction that `apply` works on

    def line(self, thread_id: str, namespace: str) -> Line | None:
        line = self._line(thread_id, namespace)
        if line is None:
            return None
        head: Stored | None = None
        row = self._head(line)
        if row is not None:
            head = self._in_commit(line, row)
        return Line(line, thread_id, namespace, family_name(line.thread.family), head, line.head_was_moved)

    def family(self, thread_id: str) -> str | None:
        thread = self._thread(thread_id)
        return family_name(thread.family) if thread is not None else None

    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        thread = self._joined(thread_id, family)
        line = self._line(thread_id, namespace)
        if line is None:
            line = self._lines[thread_id, namespace] = LineRow(thread, self._next(LAST_NUMBER), namespace)
            self._save_line(line)
            self._put(LINE_NAMES + number(line.number), pack([thread_id, namespace]))
        return Line(line, thread_id, namespace, family_name(thread.family), None)

    def join(self, thread_id: str, family: str | None) -> str:
        return family_name(self._joined(thread_id, family).family)

    def _joined(self, thread_id: str, family: str | None) -> ThreadRow:
        thread = self._thread(thread_id)
        if thread is not None:
            self._unsweep(thread.family)
            return thread
        # With the first thread: a store that was only looked at stays as it was.
        if self._get(IDENTITY) is None:
            self._put(IDENTITY, FORMAT + secrets.token_bytes(16))
        own = self._next(LAST_NUMBER)
        if family is None:
            # A new family has the number of its first thread.
            family_of_thread = own
            self._save_family(own, FamilyRow())
        else:
            family_of_thread = family_number(family)
        thread = self._threads[thread_id] = ThreadRow(own, thread_id, family_of_thread)
        self._unsweep(thread.family)
        self._put(MEMBERS + numbers(thread.family, own), thread_id.encode())
        self._set_active(thread, 0)
        return thread

    def checkpoint(self, key: Key) -> Stored | None:
        line = self._line(key.thread_id, key.namespace)
        if line is None:
            return None
        row = self._row_named(line, key.checkpoint_id)
        return self._in_commit(line, row) if row is not None else None

    def is_taken_back(self, line: Line) -> bool:
        thread = self._known(line.thread_id)
        # Only a branch can be taken back.
        if thread.origin is None:
            return False
        # What undoing a branch hides: the whole namespace, from its beginning on.
        everything = Hidden(line.namespace, 0, 0)
        for stretch in self._stretches(thread):
            if stretch._replace(to=0, operation=0) == everything:
                relatives = self._relatives(thread.family)
                if any(self.is_undone(other.name, stretch.operation) for other in relatives):
                    return True
        return False

    def insert(self, line: Line, packed: Packed, segment: int | None, added_bytes: int, *, is_head: bool) -> Stored:
        seq = self._next(LAST_SEQ)
        known = line.head.record if line.head is not None else None
        self._note(line, packed.record, known)
        line.ref.total += 1
        # Otherwise it is saved when the head moves.
        if not is_head:
            self._save_line(line.ref)
        if segment is None:
            segment = seq
        return self._keep_row(line, packed, seq, segment, added_bytes, pinned=False)

    def add_segment(self, line: Line, segment: int, follows: Sequence[Place]) -> None:
        self._put(LINE_SEGMENTS + numbers(line.ref.number, segment), NOTHING)
        self._put(SEGMENTS + numbers(line.ref.thread.family, segment), pack_segment(segment, follows))

    def replace(self, line: Line, old: Stored, packed: Packed) -> Stored:
        self._unsweep(line.ref.thread.family)
        self._note(line, packed.record, old.record)
        return self._keep_row(line, packed, old.seq, old.segment, old.added_bytes, old.pinned)

    def _keep_row(self, line: Line, packed: Packed, seq: int, segment: int, added_bytes: int, pinned: bool) -> Stored:
        record = packed.record
        name = record.key.checkpoint_id
        row = CheckpointRow(
            seq, name, record.step, segment, added_bytes, pinned, record.children, packed.info, packed.root
        )
        self._save_row(line.ref, row)
        self._put(IDS + keys.name(name) + number(line.ref.number), number(seq))
        digest = packed.digest
        self._seen.keep_record(record, digest)
        return Stored(record, seq, line.family, pinned, False, digest, segment, added_bytes)

    def _note(self, line: Line, record: Record, known: Record | None) -> None:
        """Keep what a line can be found by."""
        new = new_facts(record, known)
        if not new:
            return
        own = line.ref.number
        held = self._facts(own)
        facts = kept(held, new)
        # The usual case: what the thread is found by has not changed, and nothing need be written.
        if facts == held:
            return
        self._forget_facts(own)
        self._put(FACTS + number(own), pack_facts(facts))
        for label in itertools.chain.from_iterable(facts.values()):
            self._put(FOUND_BY + numbers(label, own), line.thread_id.encode())

    def _facts(self, line: int) -> dict[int, set[int]]:
        return unpack_facts(self._get(FACTS + number(line)))

    def _forget_facts(self, line: int) -> None:
        for label in itertools.chain.from_iterable(self._facts(line).values()):
            self._delete(FOUND_BY + numbers(label, line))
        self._delete(FACTS + number(line))

    def prune(self, line: Line, seqs: Sequence[int]) -> None:
        prune(self, line, seqs)

    def add_objects(self, family: str, objects: Sequence[Object]) -> None:
        if not objects:
            return
        # No sweep that has begun takes anything as young as this.
        age = self._next(LAST_NUMBER)
        prefix = OBJECTS + number(family_number(family))
        for address, children, body in objects:
            self._put(prefix + address, OBJECT.pack(age, len(children)) + children + body)

    def set_head(self, line: Line, stored: Stored | None, *, head_was_moved: bool = False) -> None:
        held: LineRow = line.ref
        seq = stored.seq if stored is not None else 0
        self._move_head(held, seq, _id_of(stored), head_was_moved)
        self._set_active(held.thread, now_micros())

    def _move_head(self, line: LineRow, seq: int, name: str, head_was_moved: bool) -> None:
        line.head = seq
        line.head_id = name
        line.head_was_moved = head_was_moved
        line.generation += 1
        self._save_line(line)

    def set_origin(self, thread_id: str, origin: Stored) -> None:
        self._set_origin(self._known(thread_id), origin.record.key, origin.seq)

    def _set_origin(self, thread: ThreadRow, origin: Key | None, began: int) -> None:
        if thread.began:
            self._delete(BEGINNINGS + numbers(thread.family, thread.began) + number(thread.number))
        thread.origin = None
        if origin is not None:
            thread.origin = list(origin)
        thread.began = began
        if began:
            self._put(BEGINNINGS + numbers(thread.family, began) + number(thread.number), NOTHING)
        self._save_thread(thread)

    def set_shared_state(self, thread_id: str, other: str, common: SharedState) -> None:
        one = self._known(thread_id)
        two = self._known(other)
        self._unsweep(one.family)
        held = self._shared_states_of(one).get(other, ())
        others = [each for each in held if each.place.seq != common.place.seq]
        # Only the newest are of use for a merge.
        self._keep_commons(one, two, [*others, common][-SHARED_STATES_MAX:])

    def _keep_commons(self, one: ThreadRow, two: ThreadRow, shared_states: Sequence[SharedState]) -> None:
        packed = [_write_common(common) for common in shared_states]
        # Kept for both, so that each finds it by itself; when one of them goes, so does its half.
        self._put(SHARED_STATES + numbers(one.number, two.number), pack([two.name, packed]))
        self._put(SHARED_STATES + numbers(two.number, one.number), pack([one.name, packed]))

    def set_pinned(self, stored: Stored, pinned: bool) -> None:
        key = stored.record.key
        line = self._line(key.thread_id, key.namespace)
        row = self._row(line, stored.seq) if line is not None else None
        if line is not None and row is not None:
            self._pin(line, row, pinned)

    def _pin(self, line: LineRow, row: CheckpointRow, pinned: bool) -> None:
        if not pinned:
            self._delete(PINS + numbers(line.number, row.seq))
        self._save_row(line, row._replace(pinned=pinned))

    def add_operation(self, thread_id: str, operation: Operation) -> int:
        seq = self._next(LAST_SEQ)
        self._save_operation(self._known(thread_id), operation._replace(seq=seq))
        return seq

    def _save_operation(self, thread: ThreadRow, operation: Operation) -> None:
        mark = b"\1" if operation.undone else b"\0"
        self._put(OPERATIONS + numbers(thread.number, operation.seq), mark + pack_operation(operation, operation.seq))

    def is_undone(self, thread_id: str, seq: int) -> bool | None:
        found = self._get(OPERATIONS + numbers(self._known(thread_id).number, seq))
        return found[:1] == b"\1" if found is not None else None

    def set_operation(self, thread_id: str, operation: Operation) -> None:
        if self.is_undone(thread_id, operation.seq) is not None:
            self._save_operation(self._known(thread_id), operation)

    def hide(self, line: Line, hidden: Hidden) -> None:
        self._hide(line.ref.thread, hidden)
        self._new_veil(line.ref.thread)

    def _hide(self, thread: ThreadRow, hidden: Hidden) -> None:
        key = STRETCHES + numbers(thread.number, hidden.operation) + number(self._next(LAST_NUMBER))
        self._put(key, pack(list(hidden[:-1])))

    def show(self, thread_id: str, operation: int) -> list[Hidden]:
        thread = self._known(thread_id)
        shown: list[Hidden] = []
        # A list, since what is scanned must not be changed while it is gone through.
        for key, hidden in list(self._stretches_by_key(thread)):
            if hidden.operation == operation:
                self._delete(key)
                shown.append(hidden)
        self._new_veil(thread)
        return shown

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None:
        is_there = self._get(_write_key(line.ref, checkpoint_id, write)) is not None
        if is_there:
            self._unsweep(line.ref.thread.family)
        if write.idx < 0 or not is_there:
            self._save_write(line.ref, checkpoint_id, write._replace(seq=self._next(LAST_SEQ)))

    def _save_write(self, line: LineRow, checkpoint_id: str, write: Write) -> None:
        fields = [
            checkpoint_id, write.task_id, write.idx, keys.to_bytes(write.channel), write.children, write.body,
            write.size, keys.to_bytes(write.task_path), write.seq,
        ]  # fmt: skip
        self._put(_write_key(line, checkpoint_id, write), pack(fields))

    def writes(self, line: Line, checkpoint_id: str) -> list[Write]:
        return self._writes_of(line.ref, checkpoint_id)

    def move_write(self, line: Line, checkpoint_id: str, write: Write, idx: int) -> None:
        self._unsweep(line.ref.thread.family)
        self._delete(_write_key(line.ref, checkpoint_id, write))
        self._save_write(line.ref, checkpoint_id, write._replace(idx=idx))

    # -- the Removal that `delete` works on

    def lines(self, thread_id: str) -> list[Line]:
        thread = self._known(thread_id)
        return [_without_head(line) for line in self._lines_of(thread)]

    def candidates(
        self,
        line: Line,
        *,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        before_step: int | None = None,
    ) -> list[Candidate]:
        rows: Iterable[CheckpointRow | None]
        if seqs is not None:
            rows = [self._row(line.ref, seq) for seq in seqs]
        elif ids is not None:
            rows = [self._row_named(line.ref, name) for name in ids]
        elif before_step is not None:
            rows = [row for row in self._rows(line.ref) if row.step < before_step]
        else:
            # By their keys alone: a value that is damaged must not keep its thread from being deleted.
            stored = self._keys(CHECKPOINTS + number(line.ref.number))
            return [self._any_candidate(line.ref, keys.last_number(key)) for key in stored]
        return [self._candidate(line.ref, row) for row in rows if row is not None]

    def _any_candidate(self, line: LineRow, seq: int) -> Candidate:
        """Return a checkpoint to be deleted, whatever it looks like: a thread that is damaged can be deleted."""
        try:
            row = self._row(line, seq)
        except CheckpointCorrupted:
            row = None
        # One that cannot be read goes by its number alone.
        if row is None:
            return Candidate("", seq, 0, False)
        return self._candidate(line, row)

    def _candidate(self, line: LineRow, row: CheckpointRow) -> Candidate:
        is_protected = row.seq == line.head or self._is_spared(line, row)
        return Candidate(row.checkpoint_id, row.seq, row.added_bytes, is_protected)

    def discard(self, line: Line, gone: Sequence[Candidate]) -> None:
        own = number(line.ref.number)
        for each in gone:
            self._delete(CHECKPOINTS + own + number(each.seq))
            self._delete(PINS + own + number(each.seq))
            self._delete(IDS + keys.name(each.checkpoint_id) + own)
        line.ref.total -= len(gone)
        self._save_line(line.ref)
        family = self._family(line.ref.thread.family)
        family.doomed += sum(each.added_bytes for each in gone)
        family.swept = 0
        self._save_family(line.ref.thread.family, family)

    def written(self, line: Line) -> list[str]:
        return list({name: None for name, _ in self._written(line.ref)})

    def discard_all(self, line: Line) -> int:
        return discard_each(self, line)

    def discard_writes(self, line: Line, ids: Collection[str]) -> None:
        self._unsweep(line.ref.thread.family)
        for name in ids:
            self._drop_all(WRITES + number(line.ref.number) + keys.name(name))

    def fall_back(self, line: Line) -> None:
        held: LineRow = line.ref
        # The head is still there, or there was none.
        if not held.head or self._row(held, held.head) is not None:
            return
        for row in self._rows(held, reverse=True):
            if not self._is_hidden(held, row):
                self._move_head(held, row.seq, row.checkpoint_id, head_was_moved=True)
                return
        self._move_head(held, 0, "", head_was_moved=True)

    def drop_idle_stretches(self, line: Line) -> None:
        idle: list[bytes] = []
        for key, stretch in self._stretches_by_key(line.ref.thread):
            if self._is_idle(line.ref, stretch):
                idle.append(key)
        for key in idle:
            self._delete(key)
        if idle:
            self._new_veil(line.ref.thread)

    def _is_idle(self, line: LineRow, stretch: Hidden) -> bool:
        """Whether a stretch of this line has nothing left to hide."""
        if stretch.namespace != line.namespace:
            return False
        if stretch.writes_of is not None:
            return not self._is_any(WRITES + number(line.number) + keys.name(stretch.writes_of))
        rows = self._rows(line, stretch.after, stretch.to)
        return not any(stretch.segment in (None, row.segment) for row in rows)

    def is_empty(self, line: Line) -> bool:
        own = number(line.ref.number)
        return not self._is_any(CHECKPOINTS + own) and not self._is_any(WRITES + own)

    def drop_line(self, line: Line) -> None:
        self._drop_line(line.ref)

    def _drop_line(self, line: LineRow) -> None:
        self._forget_facts(line.number)
        self._drop_all(LINE_SEGMENTS + number(line.number))
        self._delete(LINE_NAMES + number(line.number))
        self._delete(line_key(line.thread, line.namespace))
        del self._lines[line.thread.name, line.namespace]

    def drop_operations(self, thread_id: str, seqs: Collection[int]) -> None:
        thread = self._known(thread_id)
        for seq in seqs:
            self._delete(OPERATIONS + numbers(thread.number, seq))

    def drop_thread(self, thread_id: str) -> None:
        thread = self._known(thread_id)
        own = number(thread.number)
        # What it had in common with others goes, and with that the objects of a state that nobody else holds.
        self._unsweep(thread.family)
        self._set_origin(thread, None, 0)
        for key in [key for key, _ in self._all(SHARED_STATES + own)]:
            self._delete(key)
            # The other thread's half, under its own name: the key after the table and the number of this
            # thread.
            self._delete(SHARED_STATES + key[9:] + own)
        self._drop_all(STRETCHES + own)
        self._drop_all(OPERATIONS + own)
        self._delete(NOTES + own)
        self._delete(MEMBERS + number(thread.family) + own)
        self._delete(ACTIVITY + number(thread.active) + keys.name(thread_id))
        self._delete(THREADS + keys.name(thread_id))
        del self._threads[thread_id]

    def drop_family(self, family: str) -> bool:
        own = number(family_number(family))
        if self._is_any(MEMBERS + own):
            return False
        for table in (OBJECTS, SEGMENTS, BEGINNINGS):
            self._drop_all(table + own)
        self._delete(FAMILIES + own)
        return True

    # -- what comes from another store: see `adoption.adopt`

    def reserve(self, family: str, count: int) -> int:  # noqa: ARG002  # all families are numbered together
        last = self._last(LAST_SEQ)
        self._counters[LAST_SEQ] = last + count
        return last

    def set_note(self, thread_id: str, note: bytes) -> None:
        self._put(NOTES + number(self._known(thread_id).number), note)

    def remove(self, wanted: Sequence[Key]) -> None:
        for key in wanted:
            line = self._line(key.thread_id, key.namespace)
            if line is not None:
                self.discard(_without_head(line), self.candidates(_without_head(line), ids=[key.checkpoint_id]))

    def keep(self, family: str, checkpoints: Sequence[tuple[Stored, Packed]]) -> None:
        for stored, packed in checkpoints:
            key = stored.record.key
            line = self.create(key.thread_id, key.namespace, family)
            self._note(line, stored.record, None)
            old = self._row_named(line.ref, key.checkpoint_id)
            pinned = old is not None and old.pinned
            if old is None:
                line.ref.total += 1
                self._save_line(line.ref)
            elif old.seq != stored.seq:
                self._pin(line.ref, old, pinned=False)
                self._delete(CHECKPOINTS + numbers(line.ref.number, old.seq))
            self._keep_row(line, packed, stored.seq, stored.segment, stored.added_bytes, pinned)

    def keep_segments(self, family: str, segments: Mapping[int, Sequence[Place]]) -> None:
        for segment, follows in segments.items():
            self._put(SEGMENTS + numbers(family_number(family), segment), pack_segment(segment, follows))

    def restore(self, raw: RawThread) -> None:
        thread = self._known(raw.thread_id)
        # What the thread had is taken away before it gets what it shall have.
        for line in self._lines_of(thread):
            self._drop_all(WRITES + number(line.number))
            if line.namespace not in raw.lines:
                self.discard(_without_head(line), self.candidates(_without_head(line)))
                self._drop_line(line)
        for namespace, given in raw.lines.items():
            self._restore_line(self.create(raw.thread_id, namespace, None).ref, given, raw.pinned)
        for key, write in raw.writes:
            line = self.create(raw.thread_id, key.namespace, None).ref
            self._save_write(line, key.checkpoint_id, write)
        self._drop_all(STRETCHES + number(thread.number))
        for stretch in raw.hidden:
            self._hide(thread, stretch)
        self._new_veil(thread)
        self._drop_all(OPERATIONS + number(thread.number))
        for operation in raw.operations:
            self._save_operation(thread, operation)
        self._set_origin(thread, raw.origin, raw.began)
        self._set_active(thread, raw.active)
        for other, shared_states in raw.shared_states.items():
            if self.family(other) == family_name(thread.family):
                self._keep_commons(thread, self._known(other), shared_states)
        self.set_note(raw.thread_id, raw.note)

    def _restore_line(self, line: LineRow, given: RawLine, pinned: Collection[int]) -> None:
        line.head = 0
        line.head_id = ""
        if given.head is not None:
            head = self._row_named(line, given.head)
            if head is not None:
                line.head = head.seq
                line.head_id = head.checkpoint_id
        line.head_was_moved = given.head_was_moved
        line.generation = given.generation
        self._save_line(line)
        self._drop_all(LINE_SEGMENTS + number(line.number))
        for segment in given.segments:
            # A segment of another thread is not kept here unless it came along.
            if self._get(SEGMENTS + numbers(line.thread.family, segment)) is not None:
                self._put(LINE_SEGMENTS + numbers(line.number, segment), NOTHING)
        for row in list(self._rows(line)):
            if row.pinned != (row.seq in pinned):
                self._pin(line, row, row.seq in pinned)

    # -- the Rows that `sweeping` works on

    def _save_family(self, number_: int, family: FamilyRow) -> None:
        self._put(FAMILIES + number(number_), pack([family.doomed, family.live, family.sweeps, family.swept]))

    def _unsweep(self, family: int) -> None:
        """Note that something may have gone that objects were needed for."""
        found = self._family(family)
        if found.swept:
            found.swept = 0
            self._save_family(family, found)

    def sweep_begin(self, family: str, ticket: int) -> None:
        own = family_number(family)
        if self._get(FAMILIES + number(own)) is not None:
            found = self._family(own)
            found.swept = ticket
            self._save_family(own, found)

    def remove_objects(self, family: str, doomed: Sequence[tuple[bytes, int]], expected_sweeps: int) -> int | None:
        own = family_number(family)
        found = self._family(own)
        # Another sweep has removed objects since: what this one found may be needed again.
        if found.sweeps != expected_sweeps:
            return None
        found.sweeps += 1
        self._save_family(own, found)
        for address, age in doomed:
            key = OBJECTS + number(own) + address
            value = self._get(key)
            # One that was sent again is younger, and is needed by whoever sent it.
            if value is not None and OBJECT.unpack_from(value)[0] == age:
                self._delete(key)
        return found.sweeps

    def sweep_end(self, family: str, live_bytes: int, unreferenced_bytes: int, ticket: int) -> None:
        own = family_number(family)
        if self._get(FAMILIES + number(own)) is None:
            return
        found = self._family(own)
        found.live = live_bytes
        found.doomed = max(found.doomed - unreferenced_bytes, 0)
        if found.swept == ticket:
            found.swept = SWEPT
        self._save_family(own, found)


def _write_key(line: LineRow, checkpoint_id: str, write: Write) -> bytes:
    place = keys.name(checkpoint_id) + keys.name(write.task_id) + keys.signed(write.idx)
    return WRITES + number(line.number) + place


def _without_head(line: LineRow) -> Line:
    """Return a line as `transaction` knows it, its head left aside."""
    return Line(line, line.thread.name, line.namespace, family_name(line.thread.family), None, line.head_was_moved)


def _id_of(stored: Stored | None) -> str:
    return stored.record.key.checkpoint_id if stored is not None else ""


def _write_common(common: SharedState) -> list[Any]:
    place, root = common
    return [list(place.key), place.segment, place.seq, root.children, root.body, list(root.sizes)]
