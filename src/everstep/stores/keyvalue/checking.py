"""A look at all keys of a store on ordered keys and values: each table against the others, and how to put it right.

Keys are derived from others wherever something is found by more than one way. So most of what is wrong can be put
right: an entry that is missing is put, one that leads nowhere is deleted.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.reports import Finding
from everstep.stores.covers import Covers
from everstep.stores.facts import is_noted, kept, new_facts
from everstep.stores.inspection import Lost, finding_about
from everstep.stores.keyvalue import keys
from everstep.stores.keyvalue.interface import Reading, Writing, unchecked
from everstep.stores.keyvalue.keys import number, numbers
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
    LINES,
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
    THREADS,
    WRITES,
    CheckpointRow,
    LineRow,
    ThreadRow,
    pack,
    pack_facts,
    unpack,
    unpack_facts,
)
from everstep.stores.protocol import Hidden, Key, Record
from everstep.stores.records import unpack_operation, unpack_record, unpack_segment

# The first byte of every key that belongs to the store.
_TABLES = b"taNlLciPpwhekfmbrgodx"
# What one round puts right lets the next one see more; a store that needs more rounds than this is beyond
# repair.
_ROUNDS_MAX = 10
_UNREADABLE = (CheckpointCorrupted, TypeError, ValueError, AttributeError, IndexError, KeyError, OverflowError)


class Problem(NamedTuple):
    """Something that is wrong, and the keys to put or (None) to delete so that it is not any more."""

    finding: Finding
    fix: Sequence[tuple[bytes, bytes | None]] = ()


def _problem(
    kind: str, what: str, thread_id: str | None, *fix: tuple[bytes, bytes | None], checkpoint_id: str | None = None
) -> Problem:
    return Problem(finding_about(kind, what, thread_id, checkpoint_id), fix)


class Inspection:
    """One look at everything, inside one transaction."""

    def __init__(self, tx: Reading) -> None:
        self._tx = tx
        self._threads: dict[int, ThreadRow] = {}
        self._lines: dict[int, tuple[str, str]] = {}
        self._owners: dict[int, ThreadRow] = {}
        """By line: its thread."""
        self._families: set[int] = set()
        self._members: dict[int, str | None] = {}
        """By family: the name of one of its threads."""
        self._highest = self._last = 0
        """The highest number of something that callers know, and of something in here."""

    def names(self) -> list[str]:
        """Return the names of all threads that anything tells of."""
        found: dict[str, None] = {}
        for _, row, _ in self._rows(THREADS):
            if row is not None:
                found[row[1]] = None
        for table in (MEMBERS, ACTIVITY):
            for _, value in self._values(table):
                if value is not None:
                    found[value.decode("utf-8", "replace")] = None
        for _, row, _ in self._rows(LINE_NAMES):
            if row is not None:
                found[row[0]] = None
        return list(found)

    def problems(self) -> Iterator[Problem]:
        """Yield all that is wrong, so that what others depend on comes first."""
        yield from self._families_and_threads()
        yield from self._lines_of_threads()
        yield from self._checkpoints()
        for table in (IDS, PINS, WRITES, STRETCHES, OPERATIONS, SEGMENTS, LINE_SEGMENTS, OBJECTS, NOTES):
            yield from self._dependents(table)
        yield from self._shared_states()
        yield from self._found_by()
        yield from self._counters()
        yield from self._unknown()

    # -- reading whatever is there

    def _values(self, table: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the keys of a table with their values; None: one that does not match its checksum."""
        # The keys without a look at checksums, then each value with one: a scan would end at the first
        # damage.
        for key, _ in unchecked(self._tx).scan(table, keys.end(table)):
            try:
                yield key, self._tx.get(key)
            except CheckpointCorrupted:
                yield key, None

    def _rows(self, table: bytes) -> Iterator[tuple[bytes, Any, str]]:
        """Yield the keys of a table with what is packed there; None and the reason where that cannot be read."""
        for key, value in self._values(table):
            if value is None:
                yield key, None, "does not match its checksum"
                continue
            try:
                yield key, unpack(value), ""
            except ValueError as exc:
                yield key, None, f"cannot be read: {exc}"

    def _get(self, key: bytes) -> bytes | None:
        try:
            return self._tx.get(key)
        except CheckpointCorrupted:
            return None

    def _is_any(self, prefix: bytes) -> bool:
        return next(unchecked(self._tx).scan(prefix, keys.end(prefix)), None) is not None

    def lost(self, key: bytes) -> Lost:
        """Return what is stored at a key, to be kept elsewhere before it goes."""
        value: bytes | None = None
        for _, stored in unchecked(self._tx).scan(key, key + b"\0"):
            value = stored
        return Lost(f"key {key!r}", stored=value)

    def stored(self, key: Key) -> list[Lost]:
        """Return a checkpoint as it is stored, with what leads to it."""
        found: list[Lost] = []
        for line, row, _ in self._rows(LINE_NAMES):
            if row == [key.thread_id, key.namespace]:
                seq = self._get(IDS + keys.name(key.checkpoint_id) + line[1:])
                if seq is not None:
                    lost = self.lost(CHECKPOINTS + line[1:] + seq)
                    found.append(lost._replace(thread_id=key[0], namespace=key[1], checkpoint_id=key[2]))
        return found

    # -- families, threads and what they are found by

    def _families_and_threads(self) -> Iterator[Problem]:
        yield from self._families_there()
        for key, row, _ in self._rows(THREADS):
            thread = _thread(row)
            # Others are made anew below, from what is kept of them elsewhere.
            if thread is not None and THREADS + keys.name(thread.name) == key:
                self._threads[thread.number] = thread
        # Before the rows that are out of place go: what is made anew needs what they tell.
        yield from self._lost_threads()
        for key, row, why in self._rows(THREADS):
            thread = _thread(row)
            if thread is None or self._threads.get(thread.number) != thread:
                yield _problem("thread", f"a row of threads {why or 'is out of place'}", None, (key, None))
        for thread in self._threads.values():
            yield from self._thread(thread)
        yield from self._memberships()
        for family in sorted(self._families - {thread.family for thread in self._threads.values()}):
            what = f"family {family} has no threads"
            yield _problem("row", what, None, (FAMILIES + number(family), None))

    def _families_there(self) -> Iterator[Problem]:
        for key, row, why in self._rows(FAMILIES):
            family = keys.last_number(key)
            self._families.add(family)
            self._last = max(self._last, family)
            if row is None:
                fresh = pack([0, 0, 0, 0])
                name = self._any_name(family)
                yield _problem("row", f"what is kept of its family {why}", name, (key, fresh))

    def _any_name(self, family: int) -> str | None:
        """Return the name of one thread of a family."""
        if family not in self._members:
            self._members[family] = None
            for _, value in self._values(MEMBERS + number(family)):
                if value is not None:
                    self._members[family] = _text(value)
                    break
        return self._members[family]

    def _lost_threads(self) -> Iterator[Problem]:
        """Make rows anew of threads that a family knows."""
        known = {thread.name for thread in self._threads.values()}
        for key, value in list(self._values(MEMBERS)):
            name = _text(value)
            own = keys.last_number(key)
            if name is None or name in known or own in self._threads:
                continue
            active = 0
            for place, listed in self._values(ACTIVITY):
                if listed == value:
                    active = max(active, keys.number_at(place, 1))
            thread = ThreadRow(own, name, keys.number_at(key, 1), active)
            if self._is_any(STRETCHES + number(own)):
                thread.veil = own
            self._threads[own] = thread
            fix = [(THREADS + keys.name(name), thread.packed())]
            yield _problem("thread", "its row is missing or damaged", name, *fix)

    def _thread(self, thread: ThreadRow) -> Iterator[Problem]:
        name = thread.name
        self._last = max(self._last, thread.number, thread.family, thread.veil)
        self._highest = max(self._highest, thread.began)
        if thread.family not in self._families:
            self._families.add(thread.family)
            fix = [(FAMILIES + number(thread.family), pack([0, 0, 0, 0]))]
            yield _problem("thread", "its family is missing", name, *fix)
        member = MEMBERS + numbers(thread.family, thread.number)
        if self._get(member) != name.encode():
            yield _problem("thread", "its family does not know it", name, (member, name.encode()))
        active = ACTIVITY + number(thread.active) + keys.name(name)
        if self._get(active) != name.encode():
            yield _problem("index", "it is not listed by its activity", name, (active, name.encode()))
        if bool(thread.veil) != self._is_any(STRETCHES + number(thread.number)):
            # Any number but 0 says that something is hidden.
            if thread.veil:
                thread.veil = 0
            else:
                thread.veil = thread.number
            fix = [(THREADS + keys.name(name), thread.packed())]
            yield _problem("hidden", "its row does not say whether something is hidden", name, *fix)
        began = BEGINNINGS + numbers(thread.family, thread.began) + number(thread.number)
        if thread.began and self._get(began) is None:
            yield _problem("origin", "its beginning is not protected", name, (began, NOTHING))

    def _memberships(self) -> Iterator[Problem]:
        for key, value in self._values(MEMBERS):
            thread = self._threads.get(keys.last_number(key))
            if thread is None or key[1:9] != number(thread.family):
                yield _problem("thread", "a family names a thread that is not there", _text(value), (key, None))
        for key, value in self._values(ACTIVITY):
            thread = self._named(value)
            if thread is None or key != ACTIVITY + number(thread.active) + keys.name(thread.name):
                what = "it is listed with an activity that it does not have"
                yield _problem("index", what, _text(value), (key, None))
        for key, _ in self._values(BEGINNINGS):
            thread = self._threads.get(keys.last_number(key))
            if thread is None or key[1:17] != numbers(thread.family, thread.began):
                yield _problem("origin", "a beginning is noted that no branch has", _name_of(thread), (key, None))

    def _named(self, value: bytes | None) -> ThreadRow | None:
        """Return the thread of that name, if its row can be read."""
        row = self._get(THREADS + keys.name(_text(value) or ""))
        if row is None:
            return None
        found = _thread(unpack(row))
        return self._threads.get(found.number) if found is not None else None

    # -- lines

    def _lines_of_threads(self) -> Iterator[Problem]:
        self._read_line_names()
        rows: dict[int, LineRow] = {}
        for key, row, why in list(self._rows(LINES)):
            thread = self._threads.get(keys.number_at(key, 1))
            found = _line(thread, row)
            if thread is None or found is None or key != LINES + number(thread.number) + keys.name(found.namespace):
                yield _problem("thread", f"a namespace {why or 'is out of place'}", _name_of(thread), (key, None))
                continue
            rows[found.number] = found
            self._last = max(self._last, found.number)
            yield from self._line_name(found)
        for line, (name, namespace) in list(self._lines.items()):
            if line not in rows:
                yield from self._lost_line(line, name, namespace)
        for found in rows.values():
            yield from self._line(found)
        for key, _ in self._values(LINE_NAMES):
            if keys.last_number(key) not in self._lines:
                yield _problem("index", "the name of a namespace that is not there", None, (key, None))

    def _read_line_names(self) -> None:
        """Note the namespaces that have a name, and the threads that they are of."""
        for key, row, _ in self._rows(LINE_NAMES):
            if not _is_name(row):
                continue
            owner = self._named(row[0].encode())
            if owner is not None:
                line = keys.last_number(key)
                self._lines[line] = row[0], row[1]
                self._owners[line] = owner

    def _line_name(self, line: LineRow) -> Iterator[Problem]:
        """Look whether a namespace is found by its number."""
        thread = line.thread
        named = pack([thread.name, line.namespace])
        if self._get(LINE_NAMES + number(line.number)) != named:
            self._lines[line.number] = thread.name, line.namespace
            self._owners[line.number] = thread
            fix = [(LINE_NAMES + number(line.number), named)]
            yield _problem("index", "a namespace is not found by its number", thread.name, *fix)

    def _lost_line(self, line: int, name: str, namespace: str) -> Iterator[Problem]:
        thread = self._owners[line]
        prefix = CHECKPOINTS + number(line)
        stored = list(self._rows(prefix))
        if not stored and not self._is_any(WRITES + number(line)):
            self._lines.pop(line)
            fix: list[tuple[bytes, bytes | None]] = [(LINE_NAMES + number(line), None)]
        else:
            found = LineRow(thread, line, namespace, head_was_moved=True, total=len(stored))
            whole = [(keys.last_number(key), row) for key, row, _ in stored if row is not None]
            if whole:
                found.head = whole[-1][0]
                found.head_id = whole[-1][1][0]
                # At least as high as it ever was, since every checkpoint has moved the head once.
                found.generation = found.head
            fix = [(LINES + number(thread.number) + keys.name(namespace), found.packed())]
        yield _problem("thread", f"the row of namespace {namespace!r} is missing or damaged", name, *fix)

    def _line(self, line: LineRow) -> Iterator[Problem]:
        name = line.thread.name
        prefix = CHECKPOINTS + number(line.number)
        seqs = [keys.last_number(key) for key, _ in unchecked(self._tx).scan(prefix, keys.end(prefix))]
        place = LINES + number(line.thread.number) + keys.name(line.namespace)
        if line.total != len(seqs):
            found = f"{line.total} checkpoints are counted, and {len(seqs)} are stored"
            line.total = len(seqs)
            yield _problem("index", found, name, (place, line.packed()))
        if line.head:
            head = _checkpoint(line.head, self._get(prefix + number(line.head)))
            if head is None:
                finding = finding_about("head", "the head is not stored", name, line.head_id)
                self._fall_back(line)
                yield Problem(finding, [(place, line.packed())])
            elif head.checkpoint_id != line.head_id:
                line.head_id = head.checkpoint_id
                fix = [(place, line.packed())]
                yield _problem("head", "the head has another id than is noted", name, *fix, checkpoint_id=line.head_id)

    def _fall_back(self, line: LineRow) -> None:
        """Move a head that is gone to the newest checkpoint that can be read and is not hidden."""
        covers = Covers(self._stretches(line.thread.number))
        line.head, line.head_id, line.head_was_moved = 0, "", True
        line.generation += 1
        for key, value in self._values(CHECKPOINTS + number(line.number)):
            row = _checkpoint(keys.last_number(key), value)
            if row is not None and not covers.hide(line.namespace, row.seq, row.segment):
                line.head, line.head_id = row.seq, row.checkpoint_id

    def _stretches(self, thread: int) -> Iterator[Hidden]:
        for key, row, _ in self._rows(STRETCHES + number(thread)):
            if type(row) is list and len(row) == 5:
                namespace, after, to, segment, writes_of = row
                yield Hidden(namespace, after, to, segment, writes_of, keys.number_at(key, 9))

    # -- checkpoints

    def _checkpoints(self) -> Iterator[Problem]:
        facts: dict[int, dict[int, set[int]]] = {}
        for key, value in self._values(CHECKPOINTS):
            line = keys.number_at(key, 1)
            seq = keys.last_number(key)
            self._highest = max(self._highest, seq)
            if line not in self._lines:
                yield _problem("row", "a checkpoint of a namespace that is not there", None, (key, None))
                continue
            thread_id, namespace = self._lines[line]
            row = _checkpoint(seq, value)
            if row is None:
                what = "a checkpoint cannot be read"
                if value is None:
                    what = "a checkpoint does not match its checksum"
                yield _problem("checkpoint", what, thread_id, (key, None))
                continue
            yield from self._found_checkpoint(line, row, thread_id)
            try:
                record = unpack_record(Key(thread_id, namespace, row.checkpoint_id), row.step, b"", row.info, None)
            except _UNREADABLE:
                # Whoever reads it reports that.
                continue
            if line not in facts:
                facts[line] = self._facts(line)
            yield from self._facts_of(line, record, facts)

    def _facts_of(self, line: int, record: Record, facts: dict[int, dict[int, set[int]]]) -> Iterator[Problem]:
        """Look whether a line is found by what one of its checkpoints has, and note in `facts` what is put right."""
        labels = set[int]().union(*facts[line].values())
        missing = [fact for fact in new_facts(record, None) if not is_noted(fact, labels)]
        if missing:
            facts[line] = kept(facts[line], missing)
            fix = _facts_fix(line, facts[line], record.key.thread_id)
            what = "it would not be found by its metadata or tags"
            yield _problem("index", what, record.key.thread_id, *fix, checkpoint_id=record.key.checkpoint_id)

    def _found_checkpoint(self, line: int, row: CheckpointRow, thread_id: str) -> Iterator[Problem]:
        name = row.checkpoint_id
        place = IDS + keys.name(name) + number(line)
        if self._get(place) != number(row.seq):
            yield _problem(
                "index", "it is not found by its id", thread_id, (place, number(row.seq)), checkpoint_id=name
            )
        pin = PINS + numbers(line, row.seq)
        if row.pinned and self._get(pin) is None:
            yield _problem("pin", "it is pinned, and not listed so", thread_id, (pin, NOTHING), checkpoint_id=name)

    def _facts(self, line: int) -> dict[int, set[int]]:
        try:
            return unpack_facts(self._get(FACTS + number(line)))
        except _UNREADABLE:
            return {}

    # -- what belongs to something else

    def _dependents(self, table: bytes) -> Iterator[Problem]:
        """What is kept of a line, a thread or a family must be of one that is there, and be readable."""
        owner_of, kind, what, reads = _DEPENDENTS[table]
        for key, value in self._values(table):
            owner = owner_of(self, key)
            if owner is None:
                yield _problem(kind, f"{what} of something that is not there", None, (key, None))
            elif value is None:
                yield _problem(kind, f"{what} does not match its checksum", owner, (key, None))
            else:
                try:
                    reads(self, key, value)
                except _UNREADABLE as exc:
                    reason = f"cannot be read: {exc!r:.100}"
                    if isinstance(exc, CheckpointCorrupted):
                        reason = exc.reason
                    yield _problem(kind, f"{what}: {reason}", owner, (key, None))

    def line_owner(self, key: bytes) -> str | None:
        return self._owner_of_line(keys.number_at(key, 1))

    def id_owner(self, key: bytes) -> str | None:
        return self._owner_of_line(keys.last_number(key))

    def _owner_of_line(self, line: int) -> str | None:
        return self._lines[line][0] if line in self._lines else None

    def thread_owner(self, key: bytes) -> str | None:
        return _name_of(self._threads.get(keys.number_at(key, 1)))

    def family_owner(self, key: bytes) -> str | None:
        family = keys.number_at(key, 1)
        return self._any_name(family) if family in self._families else None

    def read_id(self, key: bytes, value: bytes) -> None:
        line = key[-8:]
        place = CHECKPOINTS + line + value
        # One that is there and cannot be read is reported elsewhere.
        is_there = next(unchecked(self._tx).scan(place, place + b"\0"), None) is not None
        found = _checkpoint(keys.last_number(value), self._get(place))
        is_another = found is not None and IDS + keys.name(found.checkpoint_id) + line != key
        if not is_there or is_another:
            raise CheckpointCorrupted("no checkpoint of that id is stored there")

    def read_pin(self, key: bytes, _value: bytes) -> None:
        found = _checkpoint(keys.last_number(key), self._get(CHECKPOINTS + key[1:]))
        if found is None or not found.pinned:
            raise CheckpointCorrupted("no checkpoint is pinned there")

    def read_write(self, key: bytes, value: bytes) -> None:
        name, task_id, idx, _, _, _, _, _, seq = unpack(value)
        self._highest = max(self._highest, seq)
        if key[9:] != keys.name(name) + keys.name(task_id) + keys.signed(idx):
            raise CheckpointCorrupted("it is in the place of another")

    def read_stretch(self, key: bytes, value: bytes) -> None:
        namespace, after, to, _, _ = unpack(value)
        self._last = max(self._last, keys.last_number(key))
        if not isinstance(namespace, str) or not 0 <= after <= to:
            raise CheckpointCorrupted("it has no sense")

    def read_operation(self, key: bytes, value: bytes) -> None:
        self._highest = max(self._highest, keys.last_number(key))
        if value[:1] not in (b"\0", b"\1"):
            raise CheckpointCorrupted("it says neither that it is undone nor that it is not")
        unpack_operation(value[1:], keys.last_number(key), False)

    def read_segment(self, key: bytes, value: bytes) -> None:
        unpack_segment(keys.last_number(key), value)

    def read_line_segment(self, key: bytes, _value: bytes) -> None:
        thread = self._owners[keys.number_at(key, 1)]
        if self._get(SEGMENTS + number(thread.family) + key[9:]) is None:
            raise CheckpointCorrupted("what it follows is not stored")

    def read_object(self, _key: bytes, value: bytes) -> None:
        age, length = OBJECT.unpack_from(value)
        self._last = max(self._last, age)
        if OBJECT.size + length > len(value):
            raise CheckpointCorrupted("it is cut off")

    def read_anything(self, _key: bytes, _value: bytes) -> None:
        return None

    def _shared_states(self) -> Iterator[Problem]:
        for key, row, why in list(self._rows(SHARED_STATES)):
            one = self._threads.get(keys.number_at(key, 1))
            two = self._threads.get(keys.last_number(key))
            name = _name_of(one)
            twin = SHARED_STATES + key[9:] + key[1:9]
            if one is None or two is None:
                yield _problem("shared state", "a thread of it is not there", name, (key, None))
                continue
            # Both threads have what they share, each under its own name: one is put right by the other.
            other = self._get(twin)
            fix: list[tuple[bytes, bytes | None]]
            if row is None or row[0] != two.name:
                fix = [(key, None)]
                if other is not None:
                    fix = [(key, pack([two.name, unpack(other)[1]]))]
                yield _problem("shared state", f"it {why or 'names another thread'}", name, *fix)
            elif other is None or unpack(other)[1] != row[1]:
                fix = [(twin, pack([one.name, row[1]]))]
                yield _problem("shared state", "the other thread has other ones", name, *fix)

    def _found_by(self) -> Iterator[Problem]:
        for key, row, why in list(self._rows(FACTS)):
            line = keys.last_number(key)
            if line not in self._lines:
                yield _problem("index", "what a namespace is found by that is not there", None, (key, None))
                continue
            name = self._lines[line][0]
            if row is None:
                yield _problem("index", f"what it is found by {why}", name, (key, None))
                continue
            for label in itertools.chain(*(labels for _, labels in row)):
                place = FOUND_BY + numbers(label, line)
                if self._get(place) != name.encode():
                    yield _problem("index", "it is not found by what it has", name, (place, name.encode()))
        for key, value in list(self._values(FOUND_BY)):
            line = keys.last_number(key)
            labels = set[int]()
            if line in self._lines:
                labels.update(*self._facts(line).values())
            if keys.number_at(key, 1) not in labels:
                yield _problem("index", "it is found by what it does not have", _text(value), (key, None))

    def _counters(self) -> Iterator[Problem]:
        identity = self._get(IDENTITY)
        if self._threads and (identity is None or not identity.startswith(FORMAT)):
            fix = [(IDENTITY, FORMAT + secrets.token_bytes(16))]
            yield _problem("row", "the name of the store is missing", None, *fix)
        for counter, least in ((LAST_SEQ, self._highest), (LAST_NUMBER, self._last)):
            value = self._get(counter)
            if least > int.from_bytes(value or b"", "big"):
                what = "a counter would give a number twice"
                yield _problem("row", what, None, (counter, number(least)))

    def _unknown(self) -> Iterator[Problem]:
        known = {bytes([table]) for table in _TABLES} | {LAST_SEQ, LAST_NUMBER, IDENTITY}
        for key, _ in unchecked(self._tx).scan(b"\0", b"\xff"):
            if key[:1] not in known or (key[:1] in (LAST_SEQ, LAST_NUMBER, IDENTITY) and len(key) > 1):
                yield _problem("row", f"a key of no table: {key!r:.80}", None, (key, None))


def mend(tx: Writing, *, dry_run: bool) -> list[Lost]:
    """Put right what can be, until there is nothing more, and return what went."""
    lost: list[Lost] = []
    for _ in range(_ROUNDS_MAX):
        inspection = Inspection(tx)
        # By key: of two rules about one key the later one counts, which knows more.
        fixes: dict[bytes, tuple[bytes | None, str | None]] = {}
        for problem in inspection.problems():
            for key, value in problem.fix:
                fixes[key] = value, problem.finding.thread_id
        # Noted before anything is changed.
        for key, (value, thread_id) in fixes.items():
            if value is None:
                lost.append(inspection.lost(key)._replace(thread_id=thread_id))
        if dry_run or not fixes:
            break
        for key, (value, _) in fixes.items():
            if value is None:
                tx.delete(key)
            else:
                tx.put(key, value)
    return lost


_Dependent = tuple[Callable[[Inspection, bytes], str | None], str, str, Callable[[Inspection, bytes, bytes], None]]
_DEPENDENTS: dict[bytes, _Dependent] = {
    IDS: (Inspection.id_owner, "index", "an entry of the index of ids", Inspection.read_id),
    PINS: (Inspection.line_owner, "pin", "a pin", Inspection.read_pin),
    WRITES: (Inspection.line_owner, "write", "a pending write", Inspection.read_write),
    STRETCHES: (Inspection.thread_owner, "hidden", "a hidden stretch", Inspection.read_stretch),
    OPERATIONS: (Inspection.thread_owner, "operation", "an operation", Inspection.read_operation),
    SEGMENTS: (Inspection.family_owner, "segment", "what a segment follows", Inspection.read_segment),
    LINE_SEGMENTS: (Inspection.line_owner, "segment", "a segment", Inspection.read_line_segment),
    OBJECTS: (Inspection.family_owner, "object", "an object", Inspection.read_object),
    NOTES: (Inspection.thread_owner, "row", "a note", Inspection.read_anything),
}
"""By table: whose its rows are, what they are called, and how one is read."""


def _facts_fix(line: int, facts: dict[int, set[int]], thread_id: str) -> list[tuple[bytes, bytes | None]]:
    fix: list[tuple[bytes, bytes | None]] = [(FACTS + number(line), pack_facts(facts))]
    for label in itertools.chain(*facts.values()):
        fix.append((FOUND_BY + numbers(label, line), thread_id.encode()))
    return fix


def _text(value: bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if value is not None else None


def _name_of(thread: ThreadRow | None) -> str | None:
    return thread.name if thread is not None else None


def _is_name(row: Any) -> bool:
    return type(row) is list and len(row) == 2 and all(type(part) is str for part in row)


def _thread(row: Any) -> ThreadRow | None:
    try:
        thread = ThreadRow(*row)
    except TypeError:
        return None
    if type(thread.number) is int and type(thread.name) is str and type(thread.family) is int:
        return thread
    return None


def _line(thread: ThreadRow | None, row: Any) -> LineRow | None:
    if thread is None:
        return None
    try:
        return LineRow(thread, *row)
    except TypeError:
        return None


def _checkpoint(seq: int, value: bytes | None) -> CheckpointRow | None:
    """Return a checkpoint; None if it is not there, or cannot be read."""
    if value is None:
        return None
    try:
        return CheckpointRow(seq, *unpack(value))
    except (TypeError, ValueError):
        return None
