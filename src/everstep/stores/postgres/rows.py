"""The tables of the PostgreSQL store, as rows inside one transaction. SQL on them is here and in `adopt`.

`Rows` has what the store reads and, of `transaction.Transaction`, what `apply` works on. What a user names is
bound as bytes; the ids in `writes` and `hidden` as `packed_id` makes them. A transaction locks the lines it changes,
after its guard of the family's objects; a draft's bases are locked against deletion until it is committed, so that no
sweep can take what rests on them.
"""

from __future__ import annotations

import hashlib
import random
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from psycopg import Cursor, errors, sql

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.runtime import checks
from everstep.stores.facts import Wanted, kept_tags, prefix_end
from everstep.stores.heads import Seen
from everstep.stores.newest import descent, newest_of
from everstep.stores.postgres.pool import Connection
from everstep.stores.protocol import (
    SHARED_STATES_MAX,
    BaseRef,
    Deleted,
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
    Search,
    SharedState,
    Stored,
    Thread,
    Write,
)
from everstep.stores.records import (
    matches,
    pack_common,
    pack_id,
    pack_operation,
    pack_origin,
    pack_segment,
    pack_write,
    packed_filter,
    record_digest,
    unpack_common,
    unpack_id,
    unpack_operation,
    unpack_origin,
    unpack_record,
    unpack_segment,
    unpack_write,
)
from everstep.stores.transaction import Candidate, Line, Packed, delete, discard_each, prune
from everstep.values import codec
from everstep.values.tree import FORMAT, hashes

TABLES = (
    "meta", "numbers", "families", "names", "threads", "shared_states", "lines", "segments", "checkpoints", "objects",
    "writes",
    "operations", "hidden", "covers", "cover_rest", "cover", "uncover_all", "uncover",
    "gone", "packed", "guard", "alone", "below", "keep", "put", "attach", "is_followed", "stretches",
    "unswept", "item", "readable", "told", "overview", "load", "whole",
)  # fmt: skip

# Covers do not overlap: the first one that ends at a seq or later has it, or none has.
_COVERED = """coalesce((SELECT v.after < c.seq FROM {covers} v WHERE v.family = c.family AND v.line = c.line
              AND v.segment = [segment] AND v.upto >= c.seq ORDER BY v.upto LIMIT 1), false)"""
_HIDDEN = f"({_COVERED.replace('[segment]', '0')} OR {_COVERED.replace('[segment]', 'c.segment')})"
MARKS_MAX = 50_000
"""How many marks of deleted threads are kept."""
_MARKS_TRIMMED_EVERY = 1000  # deletions, about: it takes a look at all marks
_LINES_COUNTED_MAX = 1000
_STORED_COUNTED_MAX = 1000
"""Up to how many namespaces of a thread, and checkpoints of a namespace, are counted when something is not found."""
_OUTLINES = 10_000  # threads at once
_GROWTH = 32  # of a page in which too little matched
_SPARED = """(c.pinned OR c.branches > 0
             OR EXISTS (SELECT 1 FROM {lines} l WHERE l.family = c.family AND l.id = c.line AND l.head = c.seq))"""
# A stretch that hides checkpoints of the line is lost.
_TORN = """(l.stretches <> {stretches}(l.family, l.id) OR l.stretches > 0
            AND NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = l.family AND v.line = l.id)
            AND EXISTS (SELECT 1 FROM {hidden} h JOIN {checkpoints} x ON x.family = h.family AND x.line = h.line
                        AND x.seq > h.after AND x.seq <= h.upto
                        WHERE h.family = l.family AND h.line = l.id AND h.writes_of IS NULL))"""
# Within a segment order of arrival is ancestry: unless the head was moved, nothing of its segment comes after it. (Not
# so in the middle of a copy, which brings checkpoints first and heads last.)
_STALE = "(NOT l.head_was_moved AND NOT l.incoming AND {is_followed}(l.family, l.id, l.head, c.segment))"
_NUMBER = "nextval('{numbers}') + f.shift"  # of a family whose guard is held: see `AdoptingRows.reserve`
_COLUMNS = "c.seq, c.id, c.step, c.segment, c.pinned, c.added, c.info, c.children, c.root"
_LISTED = (
    "c.seq, c.id, c.step, c.segment, c.pinned, c.added, c.info, substr(c.root, 1, 8), "
    + _HIDDEN
    + ", t.name, l.namespace, t.family"
)
_OF_THREADS = """JOIN {lines} l ON l.family = c.family AND l.id = c.line
                 JOIN {threads} t ON t.family = l.family AND t.id = l.thread"""
_OF_THREADS_IF_THERE = _OF_THREADS.replace("JOIN", "LEFT JOIN")
"""The same with checkpoints whose own rows are lost: they must not be left out silently."""
_FROM_CHECKPOINTS = f"FROM {{checkpoints}} c {_OF_THREADS}"
# Threads that have lost rows come too, if something is left of them: whoever asks for their page is told.
_OF_ONE_THREAD = """max(active) AS active, count(*) AS lines,
                    coalesce(min(namespace) FILTER (WHERE head IS NOT NULL), min(namespace)) AS first"""
_SHOWN = f"l.head, coalesce(l.family, t.family), coalesce(l.thread, t.id), a.lines, t.lines, {_LISTED}"
_OF_SHOWN = """JOIN {lines} l ON l.family = a.family AND l.thread = a.thread AND l.namespace = a.first
               FULL JOIN {threads} t ON t.family = a.family AND t.id = a.thread"""
_IS_SHOWN = "(l.head IS NOT NULL OR c.seq IS NOT NULL OR t.lines IS DISTINCT FROM coalesce(a.lines, 0))"
_MICROS = "CASE WHEN isfinite(a.active) THEN (extract(epoch FROM a.active) * 1000000)::bigint ELSE 0 END"
_LOAD = "SELECT * FROM {load}(%s, %s, %s, %s, %s)"
_DRAW = ("SELECT nextval('{numbers}') FROM generate_series(1, 6)", ())
_FACTS = """SELECT id, shift, generation FROM {families}
            WHERE id IN (SELECT family FROM {names} WHERE name = ANY(%s))"""
_OF_NAMED_LINE = """FROM {names} n JOIN {lines} l ON l.family = n.family AND l.thread = n.thread"""
_LOCK_LINE = f"""SELECT l.family, l.id, l.head, l.head_was_moved, l.generation {_OF_NAMED_LINE}
                 WHERE n.name = %s AND l.namespace = %s FOR NO KEY UPDATE OF l"""
_HEAD_OF_LINE = f"""SELECT {_STALE}, {_COLUMNS} {_OF_NAMED_LINE}
                    JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head
                    WHERE n.name = %s AND l.namespace = %s"""
_CHECKPOINT = f"""SELECT l.family, {_COLUMNS} {_OF_NAMED_LINE}
                  JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id
                  WHERE n.name = %s AND l.namespace = %s AND c.id = %s FOR KEY SHARE OF c"""
_NARROW = 1000  # threads that an index may give for them to be put in order one by one
_LOOKS_MORE = 1.25  # than it takes if those with a label are spread evenly
_NARROW_LABELS = 10_000  # checkpoints, of which most may be old ones
_OF_LINES = {
    # By family too, so that the tables are entered by their keys.
    "thread": "t.name = %(thread)s AND l.family = (SELECT family FROM {names} WHERE name = %(thread)s)",
    "namespace": "l.namespace = %(namespace)s",
}
_OF_CHECKPOINTS = {
    "checkpoint_id": "c.id = %(checkpoint_id)s",
    "before_id": "c.id < %(before_id)s",
    "before_seq": "c.seq < %(before_seq)s",
    "after_seq": "c.seq > %(after_seq)s",
    "step_max": "c.step <= %(step_max)s",
    "segment": "c.segment = %(segment)s",
    "spared": "(c.pinned OR c.branches > 0) = %(spared)s",
    "labels": "c.labels @> %(labels)s::bigint[]",
}
Values = Sequence[Any] | Mapping[str, Any]


class Tables:
    """The SQL texts with the names of one schema and prefix filled in."""

    def __init__(self, schema: str | None, prefix: str) -> None:
        for name, value, pattern, bytes_max in (
            ("schema", schema, r"[\w-]+", 63),
            ("table_prefix", prefix, r"\w*", 40),
        ):
            if value is None and name == "schema":
                continue
            if not isinstance(value, str) or not re.fullmatch(pattern, value) or len(value.encode()) > bytes_max:
                raise InvalidInput(f"{name} is a name of letters, digits and _, not {checks.shown(value)}")
        place = (schema,) if schema is not None else ()
        self._names = {name: sql.Identifier(*place, prefix + name).as_string(None) for name in TABLES}
        self._texts: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        filled = self._texts.get(text)
        if filled is None:
            filled = text
            for name, quoted in self._names.items():
                filled = filled.replace("{" + name + "}", quoted)
            self._texts[text] = filled
        return filled


class Known(NamedTuple):
    """A head that the next checkpoint may simply follow: it was not moved."""

    line: int
    head: Stored


class _Spot(NamedTuple):
    """Where a thread is."""

    family: int
    thread: int


class _FamilyFacts(NamedTuple):
    """What numbers of a family are made with; both stay as they are while its guard is held."""

    shift: int
    generation: int
    """Where new lines go on from."""


class _HeldLine:
    """A line that a transaction has locked, as it is after what the transaction did to it."""

    __slots__ = ("generation", "line")

    def __init__(self, line: Line, generation: int) -> None:
        self.line = line
        self.generation = generation


class _NewestLine(NamedTuple):
    ref: int
    thread_id: str
    namespace: str
    last: int = 0


class Rows:
    """The tables, inside one transaction of one connection.

    What only changes rows waits until something is asked, or until the commit, and is sent together with that: a change
    takes as many round trips as it asks questions, however many rows it touches.
    """

    def __init__(self, connection: Connection, tables: Tables) -> None:
        self.connection = connection
        self._tables = tables
        self._unsent: list[tuple[str, Values]] = []
        self._guarded: set[int] = set()
        self._made: set[int] = set()
        """Threads that this transaction has made: they have lost nothing."""
        self._numbers: list[int] = []
        # What was read in this transaction, and cannot be changed by others until its end.
        self._spots: dict[str, _Spot | None] = {}
        """Where threads are, those that are locked against deletion; None: there is none."""
        self._nameless: set[str] = set()
        """Threads that have no row of names, but one of threads: it was lost."""
        self._held: dict[tuple[str, str], _HeldLine | None] = {}
        """Lines that are locked, as they are by now; None: there is none."""
        self._facts: dict[int, _FamilyFacts] = {}
        self._checkpoints: dict[Key, Stored] = {}
        """Those that are locked against deletion."""

    def begin(self, mode: str = "") -> None:
        """Begin a transaction. Nothing is sent for it alone."""
        self._do(f"BEGIN {mode}")

    def commit(self) -> None:
        """Commit the transaction, together with what waits to be sent."""
        self._ask("COMMIT")

    def send(self) -> None:
        """Send what waits, for whoever uses the connection directly."""
        if self._unsent:
            self._ask("SELECT")

    def _do(self, text: str, values: Values = ()) -> None:
        """Run a statement that nobody waits for; an error comes out when it is sent."""
        self._unsent.append((text, values))

    def _ask(self, text: str, values: Values = ()) -> Cursor[Any]:
        """Run a statement, after those that were not sent yet, in one round trip."""
        if not self._unsent:
            return self.connection.execute(self._tables(text), values, binary=True)
        return self._ask_together([(text, values)])[0]

    def _ask_together(self, asked: Sequence[tuple[str, Values]]) -> list[Cursor[Any]]:
        """Run statements, after those that were not sent yet, in one round trip."""
        unsent = self._unsent
        self._unsent = []
        with self.connection.in_one_go():
            for text, values in unsent:
                self.connection.execute(self._tables(text), values)
            return [self.connection.execute(self._tables(text), values, binary=True) for text, values in asked]

    def _all(self, text: str, values: Values = ()) -> list[Any]:
        return self._ask(text, values).fetchall()

    def _one(self, text: str, values: Values = ()) -> Any:
        return self._ask(text, values).fetchone()

    def _next(self) -> int:
        """Return a new number. They are asked for together, since a new thread needs several."""
        if not self._numbers:
            self._numbers = _drawn(self._all(*_DRAW))
        return self._numbers.pop()

    def _number_in(self, family: int, thread_id: str) -> int:
        """Return a new number of a family whose guard is held: see `AdoptingRows.reserve`."""
        return self._next() + self._family_facts(family, thread_id).shift

    def _family_facts(self, family: int, thread_id: str) -> _FamilyFacts:
        if family not in self._facts:
            row = self._one("SELECT shift, generation FROM {families} WHERE id = %s", (family,))
            if row is None:
                raise _damaged("its family is missing", thread_id)
            self._facts[family] = _FamilyFacts(*row)
        return self._facts[family]

    def _forget_places(self) -> None:
        """Look for lines and threads again: some were deleted."""
        self._spots.clear()
        self._held.clear()
        self._checkpoints.clear()

    # -- the Transaction that `apply` works on

    def line(self, thread_id: str, namespace: str) -> Line | None:
        held = self._hold(thread_id, namespace)
        return held.line if held is not None else None

    def _hold(self, thread_id: str, namespace: str) -> _HeldLine | None:
        """Lock a line, and return it as this transaction has left it."""
        if (thread_id, namespace) not in self._held:
            self.look(thread_id, namespace)
        return self._held[thread_id, namespace]

    def look(self, thread_id: str, namespace: str, others: Iterable[str] = (), keys: Sequence[Key] = ()) -> None:
        """Lock a line and read what a change of it may need, in one round trip.

        `others` are threads, and `keys` checkpoints, that the change speaks of. Locks are taken in one order, whoever
        asks: guards of families, names, the line, checkpoints.
        """
        names = sorted(name.encode() for name in {thread_id, *others})
        place = _named(thread_id, namespace)
        guarded, named, facts, locked, head, lost, drawn, *found = self._ask_together(
            [
                ("SELECT family, {guard}(family) FROM {names} WHERE name = ANY(%s) ORDER BY family", (names,)),
                ("SELECT name, family, thread FROM {names} WHERE name = ANY(%s) ORDER BY name FOR KEY SHARE", (names,)),
                (_FACTS, (names,)),
                (_LOCK_LINE, place),
                (_HEAD_OF_LINE, place),
                ("SELECT 1 FROM {threads} WHERE name = %s", place[:1]),
                _DRAW,
                *[(_CHECKPOINT, _named_checkpoint(key)) for key in keys],
            ]
        )
        self._guarded.update(family for family, _ in guarded.fetchall())
        self._spots.update(dict.fromkeys([thread_id, *others]))
        for name, family, thread in named.fetchall():
            self._spots[name.decode()] = _Spot(family, thread)
        for family, *its_facts in facts.fetchall():
            self._facts[family] = _FamilyFacts(*its_facts)
        if self._spots[thread_id] is None and lost.fetchone() is not None:
            self._nameless.add(thread_id)
        # Numbers that were drawn before this line was locked may be smaller than those that others gave to it.
        self._numbers = _drawn(drawn.fetchall())
        for key, answer in zip(keys, found, strict=True):
            self._note_checkpoint(key, answer.fetchone())
        self._held[thread_id, namespace] = self._held_line(thread_id, namespace, locked.fetchone(), head.fetchone())

    def _held_line(self, thread_id: str, namespace: str, row: Any, head_row: Any) -> _HeldLine | None:
        if row is None:
            return None
        family, ref, head, head_was_moved, generation = row
        self._guard(family)
        found = None
        if head is not None:
            if head_row is None:
                raise _damaged("its head points to a checkpoint that is missing", thread_id)
            is_stale, *columns_ = head_row
            if is_stale:
                raise _damaged(_STALE_HEAD, thread_id)
            found = _stored(thread_id, namespace, family, (*columns_, False))
        line = Line((family, ref), thread_id, namespace, str(family), found, head_was_moved)
        return _HeldLine(line, generation)

    def _guard(self, family: int) -> None:
        if family not in self._guarded:
            self._guarded.add(family)
            self._do("SELECT {guard}(%s)", (family,))

    def begin_turn(
        self, thread_id: str, namespace: str, bases: Sequence[BaseRef], seconds: float
    ) -> tuple[tuple[Loaded, Known | None] | None, list[BaseRef]]:
        """Begin a transaction, lock the thread's family for it alone, and return the head, in one round trip.

        Every writer of a family needs its guard. Who waits for the lock is let in in the order of coming. Should this
        client vanish without a word, the server ends the transaction after so many seconds. The head is read without
        objects; None: there is none. Those of `bases` are returned that are stored in the same family.
        """
        with self.connection.in_one_go():
            self.connection.execute("BEGIN")
            self._ask(
                """SELECT set_config('idle_in_transaction_session_timeout', %s, true), {alone}(family) FROM {names}
                   WHERE name = %s""",
                (str(max(1, int(seconds * 1000))), thread_id.encode()),
            )
            # A statement of its own: it sees what was committed while the lock was waited for.
            found = self._ask(_LOAD, (*_named(thread_id, namespace), None, False, False))
            asked = [(base, self._ask(_LOAD, (*map(str.encode, base.key), False, False))) for base in bases]
        rows = found.fetchall()
        if not rows:
            return None, []
        loaded, known = self._checked_load(thread_id, namespace, None, rows)
        stored = list[BaseRef]()
        for base, answer in asked:
            held = answer.fetchall()
            if not held:
                continue
            checkpoint = _loaded(*base.key[:2], held)[0].stored
            if checkpoint.digest == base.digest and checkpoint.family == loaded.stored.family:
                stored.append(base)
        return (loaded, known), stored

    def put_and_end(self, values: Sequence[Any]) -> int | None:
        """Do `put`, and commit the transaction, in one round trip; None: nothing was written."""
        query = self._tables(_PUT).encode()
        return _seq(self.connection.call_and_commit(query, _PUT_TYPES, _binary(_PUT_TYPES, values)))

    def clock(self) -> float:
        """Return the server's time, in seconds since 1970."""
        return float(self._one("SELECT extract(epoch FROM clock_timestamp())::float8")[0])

    def generation(self, thread_id: str, namespace: str) -> tuple[str, int] | None:
        """Lock a line and return its family and generation."""
        held = self._hold(thread_id, namespace)
        return None if held is None else (held.line.family, held.generation)

    def generation_seen(self, thread_id: str, namespace: str) -> tuple[str, int] | None:
        """Return a line's family and generation, without a lock."""
        row = self._one(
            """SELECT l.family, l.generation FROM {names} n JOIN {lines} l ON l.family = n.family
               AND l.thread = n.thread WHERE n.name = %s AND l.namespace = %s""",
            _named(thread_id, namespace),
        )
        return None if row is None else (str(row[0]), row[1])

    def was_deleted(self, thread_id: str, seen: Seen[Known]) -> bool:
        """Whether a line that was seen, and is not there any more, was deleted, as far as can be told.

        A line that is deleted from a family that lives on leaves its generation there; a thread that is deleted leaves
        a mark. If so many were deleted since that the mark may have made room, that is taken for a deletion.
        """
        row = self._one(
            """SELECT coalesce((SELECT generation FROM {families} WHERE id = %(f)s), -1) >= %(g)s
               OR EXISTS (SELECT 1 FROM {gone} WHERE name = %(n)s AND seq >= %(s)s)
               OR (SELECT count(*) >= %(m)s AND min(seq) >= %(s)s FROM {gone})""",
            {
                "f": int(seen.family),
                "g": seen.generation,
                "n": deletion_mark(thread_id),
                "s": seen.seq,
                "m": MARKS_MAX,
            },
        )
        return bool(row[0])

    def head(self, thread_id: str, namespace: str) -> tuple[str, int, Known | None] | None:
        """Return the family of a line, its generation, and its head unless that was moved."""
        held = self._hold(thread_id, namespace)
        if held is None:
            return None
        line = held.line
        known = Known(line.ref[1], line.head) if line.head is not None and not line.head_was_moved else None
        return line.family, held.generation, known

    def family(self, thread_id: str) -> str | None:
        spot = self._spot(thread_id)
        return None if spot is None else str(spot.family)

    def _spot(self, thread_id: str) -> _Spot | None:
        """Return where a thread is. It is locked against deletion: what is about to be written may refer to it."""
        if thread_id not in self._spots:
            row = self._one("SELECT family, thread FROM {names} WHERE name = %s FOR KEY SHARE", (thread_id.encode(),))
            self._spots[thread_id] = None if row is None else _Spot(*row)
        return self._spots[thread_id]

    def _required_spot(self, thread_id: str) -> _Spot:
        spot = self._spot(thread_id)
        if spot is None:
            raise _damaged("its name is missing", thread_id)
        return spot

    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        number, thread = self._joined(thread_id, family)
        self._guard(number)
        if thread not in self._made:
            self.check_whole(thread_id, namespace)
        ref = self._next()
        generation = self._family_facts(number, thread_id).generation
        self._do(
            """WITH made AS (
                   INSERT INTO {lines} (family, id, thread, namespace, head_was_moved, generation, active, unreferenced)
                   VALUES (%(f)s, %(l)s, %(t)s, %(n)s, false, %(g)s, '-infinity', 0) RETURNING 1
               )
               UPDATE {threads} SET lines = lines + 1 FROM made WHERE family = %(f)s AND id = %(t)s""",
            {"f": number, "l": ref, "t": thread, "n": namespace.encode(), "g": generation},
        )
        line = Line((number, ref), thread_id, namespace, str(number), None)
        self._held[thread_id, namespace] = _HeldLine(line, generation)
        return line

    def _joined(self, thread_id: str, family: str | None) -> _Spot:
        """Return where a thread is, which is made if it is missing."""
        spot = self._spot(thread_id)
        if spot is None:
            return self._make_thread(thread_id, family)
        if family is not None and spot.family != int(family):  # made since we looked
            raise errors.SerializationFailure(f"thread {thread_id!r} was made by another writer")
        return spot

    def _make_thread(self, thread_id: str, family: str | None) -> _Spot:
        if thread_id in self._nameless:
            self.check_whole(thread_id)
            raise errors.SerializationFailure(f"thread {thread_id!r} was made by another writer")
        number = int(family) if family is not None else self._new_family()
        spot = _Spot(number, self._next())
        values = {"n": thread_id.encode(), "f": spot.family, "t": spot.thread}
        # Another writer may be making the same thread: the loser is refused, starts again and finds it.
        self._do("INSERT INTO {names} (name, family, thread) VALUES (%(n)s, %(f)s, %(t)s)", values)
        self._do("INSERT INTO {threads} (family, id, name) VALUES (%(f)s, %(t)s, %(n)s)", values)
        self._made.add(spot.thread)
        self._spots[thread_id] = spot
        return spot

    def _new_family(self) -> int:
        number = self._next()
        self._do(
            "INSERT INTO {families} (id, format, sweeps, live, generation, shift) VALUES (%s, %s, 0, 0, 0, 0)",
            (number, FORMAT),
        )
        self._facts[number] = _FamilyFacts(0, 0)
        return number

    def checkpoint(self, key: Key) -> Stored | None:
        if key not in self._checkpoints:
            self._note_checkpoint(key, self._one(_CHECKPOINT, _named_checkpoint(key)))
        return self._checkpoints.get(key)

    def _note_checkpoint(self, key: Key, row: Any) -> None:
        if row is not None:
            self._checkpoints[key] = _stored(key.thread_id, key.namespace, row[0], (*row[1:], False))

    def is_taken_back(self, line: Line) -> bool:
        found = self._one(
            """SELECT 1 FROM {hidden} h JOIN {lines} l ON l.family = h.family AND l.id = h.line
               JOIN {threads} t ON t.family = l.family AND t.id = l.thread AND t.origin IS NOT NULL
               JOIN {operations} o ON o.family = h.family AND o.seq = h.operation AND o.undone
               WHERE h.family = %s AND h.line = %s AND h.after = 0 AND h.segment IS NULL AND h.writes_of IS NULL
               LIMIT 1""",
            line.ref,
        )
        return found is not None

    def insert(
        self,
        line: Line,
        packed: Packed,
        segment: int | None,
        added_bytes: int,
        *,
        is_head: bool,  # noqa: ARG002  # nothing is counted here
    ) -> Stored:
        family, ref = line.ref
        record = packed.record
        seq = self._number_in(family, line.thread_id)
        segment = segment if segment is not None else seq
        self._do(
            """WITH made AS (
                   INSERT INTO {checkpoints} (family, line, seq, segment, added, step, branches, pinned, id, labels,
                                              info, children, root)
                   VALUES (%s, %s, %s, %s, %s, %s, 0, false, %s, %s, %s, %s, %s) RETURNING family, line
               )
               UPDATE {lines} l SET stored = stored + 1 FROM made WHERE l.family = made.family AND l.id = made.line""",
            (
                family, ref, seq, segment, added_bytes, record.step, record.key.checkpoint_id.encode(),
                labels(record.metadata, record.tags), packed.info, record.children, packed.root,
            ),
        )  # fmt: skip
        return Stored(record, seq, line.family, digest=packed.digest, segment=segment, added_bytes=added_bytes)

    def add_run(self, line: Line, segment: int, follows: Sequence[Place]) -> None:
        self._do(
            """WITH made AS (
                   INSERT INTO {segments} (family, line, segment, data) VALUES (%s, %s, %s, %s) RETURNING family, line
               )
               UPDATE {lines} l SET segments = segments + 1 FROM made
               WHERE l.family = made.family AND l.id = made.line""",
            (*line.ref, segment, pack_segment(segment, follows)),
        )

    def replace(self, line: Line, old: Stored, packed: Packed, /) -> Stored:
        record = packed.record
        self._do(
            """UPDATE {checkpoints} SET step = %s, labels = %s, info = %s, children = %s, root = %s
               WHERE family = %s AND line = %s AND seq = %s""",
            (
                record.step,
                labels(record.metadata, record.tags),
                packed.info,
                record.children,
                packed.root,
                *line.ref,
                old.seq,
            ),
        )
        replaced = old._replace(record=record, digest=packed.digest)
        self._checkpoints.pop(record.key, None)
        held = self._held.get(record.key[:2])
        if held is not None and held.line.head is not None and held.line.head.seq == old.seq:
            held.line = held.line._replace(head=replaced)
        return replaced

    def add_objects(self, family: str, objects: Sequence[Object]) -> None:
        if objects:
            self._do("SELECT {keep}(%s, %s, %s, %s)", (int(family), *columns(objects)))

    def set_head(self, line: Line, stored: Stored | None, *, head_was_moved: bool = False) -> None:
        self._do(
            """UPDATE {lines}
               SET head = %s, head_was_moved = %s, generation = generation + 1, active = clock_timestamp()
               WHERE family = %s AND id = %s""",
            (stored.seq if stored is not None else None, head_was_moved, *line.ref),
        )
        held = self._held.get((line.thread_id, line.namespace))
        if held is not None:
            held.line = held.line._replace(head=stored, head_was_moved=head_was_moved)
            held.generation += 1

    def prune(self, line: Line, seqs: Sequence[int]) -> None:
        prune(self, line, seqs)

    def set_origin(self, thread_id: str, origin: Stored) -> None:
        spot = self._required_spot(thread_id)
        if spot.thread not in self._made:
            self._release_origin(thread_id)
        sealed = pack_origin(origin.record.key, thread_id)
        self._do(
            "UPDATE {threads} SET began = %s, origin = %s WHERE family = %s AND id = %s",
            (origin.seq, sealed, *spot),
        )
        self._do(
            "UPDATE {checkpoints} SET branches = branches + 1 WHERE id = %s AND family = %s AND seq = %s",
            (origin.record.key.checkpoint_id.encode(), int(origin.family), origin.seq),
        )

    def _release_origin(self, thread_id: str) -> None:
        """A branch lives no more, or not from there: its beginning is spared for it no longer."""
        row = self._one(
            """SELECT t.origin, t.family, t.began FROM {names} n JOIN {threads} t ON t.family = n.family
               AND t.id = n.thread WHERE n.name = %s AND t.origin IS NOT NULL""",
            (thread_id.encode(),),
        )
        if row is not None:
            self._do(
                "UPDATE {checkpoints} SET branches = branches - 1 WHERE id = %s AND family = %s AND seq = %s",
                (unpack_origin(row[0], thread_id).checkpoint_id.encode(), *row[1:]),
            )

    def set_common(self, thread_id: str, other: str, common: SharedState) -> None:
        spots = [(self._required_spot(name), name) for name in (thread_id, other)]
        ((family, low), one), ((_, high), two) = sorted(spots)
        self._do(
            """INSERT INTO {shared_states} (family, low, high, seq, data, children) VALUES (%s, %s, %s, %s, %s, %s)
               ON CONFLICT (family, low, high, seq) DO UPDATE SET data = excluded.data, children = excluded.children""",
            (
                family, low, high, common.place.seq,
                pack_common(common, one, two), common.root.children,
            ),
        )  # fmt: skip
        self._do(
            """DELETE FROM {shared_states} WHERE family = %(f)s AND low = %(l)s AND high = %(h)s AND seq NOT IN
               (SELECT seq FROM {shared_states} WHERE family = %(f)s AND low = %(l)s AND high = %(h)s
                ORDER BY seq DESC LIMIT %(n)s)""",
            {"f": family, "l": low, "h": high, "n": SHARED_STATES_MAX},
        )

    def set_pinned(self, stored: Stored, pinned: bool) -> None:
        self._do(
            "UPDATE {checkpoints} SET pinned = %s WHERE id = %s AND family = %s AND seq = %s",
            (pinned, stored.record.key.checkpoint_id.encode(), int(stored.family), stored.seq),
        )

    def add_operation(self, thread_id: str, operation: Operation) -> int:
        family, thread = self._required_spot(thread_id)
        seq = self._number_in(family, thread_id)
        self._do(
            """WITH made AS (
                   INSERT INTO {operations} (family, thread, seq, undone, data) VALUES (%s, %s, %s, %s, %s)
                   RETURNING family, thread
               )
               UPDATE {threads} t SET operations = operations + 1 FROM made
               WHERE t.family = made.family AND t.id = made.thread""",
            (family, thread, seq, operation.undone, pack_operation(operation, seq)),
        )
        return seq

    def is_undone(self, thread_id: str, seq: int) -> bool | None:
        row = self._one(
            """SELECT o.undone FROM {names} n JOIN {operations} o ON o.family = n.family AND o.thread = n.thread
               WHERE n.name = %s AND o.seq = %s FOR NO KEY UPDATE OF o""",
            (thread_id.encode(), seq),
        )
        return None if row is None else bool(row[0])

    def set_operation(self, thread_id: str, operation: Operation) -> None:
        self._do(
            """UPDATE {operations} o SET undone = %s, data = %s FROM {names} n
               WHERE n.name = %s AND o.family = n.family AND o.thread = n.thread AND o.seq = %s""",
            (operation.undone, pack_operation(operation, operation.seq), thread_id.encode(), operation.seq),
        )

    def hide(self, line: Line, hidden: Hidden) -> None:
        writes_of = packed_id(hidden.writes_of) if hidden.writes_of is not None else None
        self._do(
            """WITH made AS (
                   INSERT INTO {hidden} (family, line, operation, after, upto, segment, writes_of)
                   VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING family, line
               )
               UPDATE {lines} l SET stretches = stretches + 1 FROM made
               WHERE l.family = made.family AND l.id = made.line""",
            (*line.ref, hidden.operation, hidden.after, hidden.to, hidden.segment, writes_of),
        )

    def show(self, thread_id: str, operation: int) -> list[Hidden]:
        rows = self._all(
            """WITH shown AS (
                   DELETE FROM {hidden} h USING {names} n, {lines} l WHERE n.name = %s AND l.family = n.family
                   AND l.thread = n.thread AND h.family = l.family AND h.line = l.id AND h.operation = %s
                   RETURNING h.family, h.line, l.namespace, h.after, h.upto, h.segment, h.writes_of, h.operation
               ), counted AS (
                   UPDATE {lines} l SET stretches = l.stretches - s.count
                   FROM (SELECT family, line, count(*) FROM shown GROUP BY family, line) s
                   WHERE l.family = s.family AND l.id = s.line
               )
               SELECT namespace, after, upto, segment, writes_of, operation FROM shown""",
            (thread_id.encode(), operation),
        )
        return [_hidden(row) for row in rows]

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None:
        family, ref = line.ref
        update = "UPDATE SET seq = excluded.seq, info = excluded.info, children = excluded.children"
        self._do(
            f"""INSERT INTO {{writes}} (family, line, seq, idx, checkpoint, task, info, children)
                SELECT f.id, %s, {_NUMBER}, %s, %s, %s, %s, %s FROM {{families}} f WHERE f.id = %s
                ON CONFLICT (family, line, checkpoint, task, idx) DO {update if write.idx < 0 else "NOTHING"}""",
            (
                ref, write.idx, packed_id(checkpoint_id), packed_id(write.task_id), pack_write(checkpoint_id, write),
                write.children, family,
            ),
        )  # fmt: skip

    def writes(self, line: Line, checkpoint_id: str) -> list[Write]:
        rows = self._all(
            """SELECT seq, task, idx, info, children FROM {writes} WHERE family = %s AND line = %s AND checkpoint = %s
               FOR UPDATE""",
            (*line.ref, packed_id(checkpoint_id)),
        )
        return [unpack_write(checkpoint_id, seq, unpacked_id(task), *rest) for seq, task, *rest in rows]

    def move_write(self, line: Line, checkpoint_id: str, write: Write, idx: int) -> None:
        place = *line.ref, packed_id(checkpoint_id), packed_id(write.task_id)
        where = "family = %s AND line = %s AND checkpoint = %s AND task = %s AND idx = %s"
        self._do(f"DELETE FROM {{writes}} WHERE {where}", (*place, idx))
        self._do(f"UPDATE {{writes}} SET idx = %s WHERE {where}", (idx, *place, write.idx))

    # -- the short way: one round trip

    def put(self, values: Sequence[Any]) -> int | None:
        """Call the function that commits a checkpoint; None: it must be done the long way."""
        return _seq(self.connection.call(self._tables(_PUT).encode(), _PUT_TYPES, _binary(_PUT_TYPES, values)))

    async def put_async(self, values: Sequence[Any]) -> int | None:
        """The same; the event loop goes on meanwhile."""
        query = self._tables(_PUT).encode()
        return _seq(await self.connection.call_async(query, _PUT_TYPES, _binary(_PUT_TYPES, values)))

    def attach(self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None) -> bool:
        """Call the function that attaches writes; False: it must be done the long way."""
        kept: dict[tuple[str, int], Write] = {}
        for write in writes:  # one call may change a row only once
            if write.idx < 0 or (write.task_id, write.idx) not in kept:
                kept[write.task_id, write.idx] = write
        values = (
            *_named(key.thread_id, key.namespace),
            packed_id(key.checkpoint_id),
            *(map(str.encode, base.key) if base is not None else (None,) * 3),
            base.digest if base is not None else None,
            *columns(objects),
            [packed_id(write.task_id) for write in kept.values()],
            [write.idx for write in kept.values()],
            [pack_write(key.checkpoint_id, write) for write in kept.values()],
            [write.children for write in kept.values()],
        )
        done: bool = self._one(f"SELECT {{attach}}({', '.join(['%s'] * len(values))})", values)[0]
        return done

    # -- reads

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> tuple[Loaded, Known | None] | None:
        """Read a checkpoint, its objects and its writes in one statement: one round trip, one state."""
        rows = self._all(_LOAD, (*_named(thread_id, namespace), _bytes(checkpoint_id), objects, writes))
        if not rows:
            self.check_whole(thread_id, namespace, stored_max=0 if checkpoint_id is None else _STORED_COUNTED_MAX)
            return None
        return self._checked_load(thread_id, namespace, checkpoint_id, rows)

    def _checked_load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, rows: Sequence[Any]
    ) -> tuple[Loaded, Known | None]:
        if rows[0][9] & _IS_TORN:
            raise _damaged(_STALE_HEAD if checkpoint_id is None else _LOST_STRETCH, thread_id)
        return _loaded(thread_id, namespace, rows)

    def check_whole(self, thread_id: str, namespace: str | None = None, *, stored_max: int = 0) -> None:
        """Raise CheckpointCorrupted if rows of a thread are missing (or of one namespace of it), or do not agree.

        With `stored_max` checkpoints are counted too, in namespaces that have no more than so many. One statement,
        which sees one state of the database.
        """
        asked = _whole(thread_id, namespace, stored_max)
        _check_rows(thread_id, self._all(*asked), asked)

    def load_many(self, keys: Sequence[Key], writes: bool) -> list[Loaded]:
        """Read checkpoints and their writes in one statement."""
        asked = list(dict.fromkeys(keys))
        threads, namespaces, names = ([name.encode() for name in part] for part in zip(*asked, strict=True))
        places: dict[int, list[Any]] = {}
        for row in self._all(
            _LOAD_MANY.replace("{torn}", "(l.stretches > 0)")
            + " UNION ALL ".join([_LOAD_CHECKPOINT, *([_LOAD_WRITES] if writes else [])]),
            {"t": threads, "n": namespaces, "c": names},
        ):
            places.setdefault(row[1], []).append(row)
        found = {}
        hiding: set[tuple[int, int]] = set()
        for place, rows in places.items():
            key = asked[place - 1]
            if rows[0][9] & _IS_TORN:
                hiding.add((rows[0][7], rows[0][8]))
            found[key] = _loaded(key.thread_id, key.namespace, rows)[0]
        self._check_stretches(hiding)
        for thread_id, namespace in dict.fromkeys(key[:2] for key in asked if key not in found):
            self.check_whole(thread_id, namespace, stored_max=_STORED_COUNTED_MAX)
        return [found[key] for key in keys if key in found]

    def find(self, checkpoint_id: str) -> list[Key]:
        rows = self._all(
            f"""SELECT t.name, l.namespace, c.id, c.family, c.line FROM {{checkpoints}} c {_OF_THREADS_IF_THERE}
                WHERE c.id = %s ORDER BY c.seq""",
            (checkpoint_id.encode(),),
        )
        self._check_owned((row[3], row[4]) for row in rows if row[0] is None)
        return [Key(*(name.decode() for name in row[:3])) for row in rows]

    def below(self, family: str, wanted: Iterable[bytes]) -> list[Object]:
        """Return these objects and all below them."""
        rows = self._all("SELECT hash, children, body FROM {below}(%s, %s)", (int(family), b"".join(wanted)))
        return [Object(*row) for row in rows]

    def below_many(self, wanted: Mapping[str, Iterable[bytes]]) -> list[Object]:
        """Return these objects of several families, and all below them."""
        rows = self._all(
            """SELECT b.hash, b.children, b.body FROM unnest(%s::bigint[], %s::bytea[]) AS w (family, wanted)
               CROSS JOIN LATERAL {below}(w.family, w.wanted) b""",
            ([int(family) for family in wanted], [b"".join(keys) for keys in wanted.values()]),
        )
        return [Object(*row) for row in rows]

    def present(self, thread_ids: Sequence[str]) -> set[str]:
        """Return which of these threads are there, also if rows of them are lost."""
        names = [name.encode() for name in thread_ids]
        text = "SELECT name FROM {names} WHERE name = ANY(%s) UNION SELECT name FROM {threads} WHERE name = ANY(%s)"
        return {bytes(name).decode() for (name,) in self._all(text, (names, names))}

    def heads(self, lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return the ids of the heads of these lines."""
        rows = self._all(
            f"""SELECT w.place, c.id, {_STALE} FROM unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY
                  AS w (name, namespace, place)
                JOIN {{names}} n ON n.name = w.name
                JOIN {{lines}} l ON l.family = n.family AND l.thread = n.thread AND l.namespace = w.namespace
                JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head""",
            ([name.encode() for name, _ in lines], [namespace.encode() for _, namespace in lines]),
        )
        found: dict[tuple[str, str], str] = {}
        for place, checkpoint_id, is_stale in rows:
            line = lines[place - 1]
            if is_stale:
                raise _damaged(_STALE_HEAD, line[0])
            found[line] = bytes(checkpoint_id).decode()
        return found

    def shallow(self, family: str, wanted: Collection[bytes]) -> list[Object]:
        """Return just these objects."""
        rows = self._all(
            "SELECT hash, children, body FROM {objects} WHERE family = %s AND hash = ANY(%s)",
            (int(family), list(wanted)),
        )
        return [Object(*row) for row in rows]

    def list_checkpoints(self, query: Query) -> list[Stored]:
        found = self._list_checkpoints(query)
        if query.thread_id is not None:
            is_all = _is_of_all(query) and (query.limit is None or len(found) < query.limit)
            if is_all or not found:
                self.check_whole(query.thread_id, query.namespace, stored_max=1 << 40 if is_all else 0)
        return found

    def _list_checkpoints(self, query: Query) -> list[Stored]:
        order = {"seq": "c.seq DESC", "id": "c.id DESC, c.seq DESC", "oldest": "c.seq"}[query.order]
        if query.filter:
            wanted = packed_filter(query.filter)
            end = None if query.limit is None else query.offset + query.limit
            size = end
            while True:
                found = self._page(query, order, size, 0)
                matching = [stored for stored in found if matches(stored.record.metadata, wanted)]
                if size is None or len(found) < size or len(matching[:end]) == end:
                    return matching[query.offset : end]
                size *= _GROWTH  # some entries have no label; and, once in an age, two have the same
        return self._page(query, order, query.limit, query.offset)

    def _page(self, query: Query, order: str, limit: int | None, offset: int) -> list[Stored]:
        lines, where, values = self._where(query)
        bound = {**values, "end": None if limit is None else limit + offset}
        is_whole = limit is None or query.checkpoint_id is not None
        if query.thread_id is None and is_whole:
            source = f"FROM {{checkpoints}} c {_OF_THREADS_IF_THERE} WHERE {where} AND ({lines}) IS NOT FALSE"
        elif is_whole:
            source = f"{_FROM_CHECKPOINTS} WHERE {where} AND {lines}"
        elif query.thread_id is None:  # no more than that from the index: who they belong to is looked up later
            own = f"SELECT {lines} FROM {{lines}} l WHERE l.family = c.family AND l.id = c.line"
            source = f"""FROM (SELECT * FROM {{checkpoints}} c
                               WHERE {where} AND {f"({own}) IS NOT FALSE" if query.namespace is not None else "true"}
                               ORDER BY {order} LIMIT %(end)s) c {_OF_THREADS_IF_THERE}"""
        else:  # no more than that from each line, in the order of the key: the rest of a long line is not looked at
            source = f"""FROM {{lines}} l JOIN {{threads}} t ON t.family = l.family AND t.id = l.thread
                         CROSS JOIN LATERAL (
                             SELECT * FROM {{checkpoints}} c WHERE c.family = l.family AND c.line = l.id AND {where}
                             ORDER BY {order} LIMIT %(end)s) c
                         WHERE {lines}"""
        rows = self._all(
            f"""SELECT {_LISTED}, l.id, l.stretches, c.family, c.line {source}
                ORDER BY {order} LIMIT %(limit)s OFFSET %(offset)s""",
            {**bound, "limit": limit, "offset": offset},
        )
        self._check_owned((row[14], row[15]) for row in rows if row[9] is None)
        self._check_stretches({(row[11], row[12]) for row in rows if row[13]})
        return [_listed(row[:12]) for row in rows]

    def _check_owned(self, orphans: Iterable[tuple[int, int]]) -> None:
        """Raise CheckpointCorrupted for checkpoints (by family and line) whose namespace or thread is lost."""
        for family, line in orphans:
            row = self._one(
                """SELECT l.thread FROM {lines} l WHERE l.family = %(f)s AND l.id = %(l)s
                   UNION ALL SELECT t.id FROM {threads} t WHERE t.family = %(f)s AND t.lines <>
                       (SELECT count(*) FROM {lines} l WHERE l.family = t.family AND l.thread = t.id)
                   LIMIT 1""",
                {"f": family, "l": line},
            )
            name = self._name_of(family, row[0]) if row is not None else ""
            raise _damaged("a namespace or the thread of a checkpoint is missing", name)

    def _check_stretches(self, lines: Collection[tuple[int, int]]) -> None:
        """Raise CheckpointCorrupted if a line has lost some of what it hides. Once per page, not per row."""
        if not lines:
            return
        torn = self._one(
            f"""SELECT l.family, l.thread FROM unnest(%s::bigint[], %s::bigint[]) AS u (family, line)
                JOIN {{lines}} l ON l.family = u.family AND l.id = u.line
                WHERE {_TORN} LIMIT 1""",
            ([family for family, _ in lines], [line for _, line in lines]),
        )
        if torn is not None:
            raise _damaged(_LOST_STRETCH, self._name_of(*torn))

    def count(self, query: Query) -> int:
        if query.filter or query.offset or query.limit is not None:
            return len(self.list_checkpoints(query))
        lines, where, values = self._where(query)
        text = f"SELECT count(*) {_FROM_CHECKPOINTS} WHERE {where} AND {lines}"
        if query.hidden == "no":
            # What is covered in every segment is hidden. Where covers are of single segments, every row is looked at.
            every = self._where(replace(query, hidden="also"))[1]
            text = f"""SELECT CASE WHEN EXISTS (
                    SELECT 1 FROM {{lines}} l JOIN {{threads}} t ON t.family = l.family AND t.id = l.thread
                    JOIN {{covers}} v ON v.family = l.family AND v.line = l.id AND v.segment > 0 WHERE {lines}
                ) THEN ({text}) ELSE (
                    SELECT count(*) {_FROM_CHECKPOINTS} WHERE {every} AND {lines}
                ) - (
                    SELECT count(*) {_FROM_CHECKPOINTS} JOIN {{covers}} v ON v.family = l.family AND v.line = l.id
                    AND v.segment = 0 AND c.seq > v.after AND c.seq <= v.upto WHERE {every} AND {lines}
                ) END"""
        found: int = self._one(text, values)[0]
        if query.thread_id is not None and (_is_of_all(query) or not found):
            self.check_whole(query.thread_id, query.namespace, stored_max=1 << 40 if _is_of_all(query) else 0)
        return found

    def size_bytes(self) -> int:
        sql = "SELECT sum(pg_total_relation_size(to_regclass(name)))::bigint FROM unnest(%(names)s::text[]) AS name"
        names = [self._tables("{" + name + "}") for name in TABLES]  # what is no table counts nothing
        found: int = self._one(sql, {"names": names})[0]
        return found

    def _where(self, query: Query) -> tuple[str, str, dict[str, Any]]:
        """Return what a query asks of lines and what of checkpoints, and the values in it."""
        values = {
            "thread": _bytes(query.thread_id),
            "namespace": _bytes(query.namespace),
            "checkpoint_id": _bytes(query.checkpoint_id),
            "before_id": _bytes(query.before_id),
            "before_seq": query.before_seq,
            "after_seq": query.after_seq,
            "step_max": query.step_max,
            "segment": query.segment,
            "spared": query.protected,
            "labels": labels(query.filter),
        }
        asked = {name: value for name, value in values.items() if value is not None}
        lines = [text for name, text in _OF_LINES.items() if name in asked]
        where = [text for name, text in _OF_CHECKPOINTS.items() if name in asked]
        # IS TRUE: a plain NOT EXISTS would be made a join, which may look at a whole line.
        where += {"no": [f"(NOT {_HIDDEN}) IS TRUE"], "only": [_HIDDEN], "also": []}[query.hidden]
        return " AND ".join(lines) or "true", " AND ".join(where) or "true", asked

    def list_threads(self, limit: int, offset: int, headless: bool) -> list[Stored]:
        oldest = "(SELECT min(seq) FROM {checkpoints} o WHERE o.family = l.family AND o.line = l.id)"
        head = f"coalesce(l.head, {oldest})" if headless else "l.head"
        rows = self._all(
            f"""SELECT {_SHOWN} FROM (SELECT family, thread, {_OF_ONE_THREAD} FROM {{lines}} GROUP BY family, thread) a
                {_OF_SHOWN} LEFT JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = {head}
                WHERE {_IS_SHOWN}
                ORDER BY a.active DESC NULLS LAST, coalesce(a.thread, t.id) DESC LIMIT %s OFFSET %s""",
            (limit, offset),
        )
        found: list[Stored] = []
        for shown in self._shown(rows):
            if isinstance(shown, CheckpointCorrupted):
                raise shown
            found.append(shown)
        return found

    def search(self, search: Search) -> list[Hit]:
        wanted = Wanted.of(search)
        found: list[Hit] = []
        after = search.after
        for source in self._sources(search):
            size = search.limit
            is_more_left = True
            while is_more_left and len(found) < search.limit:
                rows = self._all(*_search_text(search, source, after, size))
                for (active, *_), shown in zip(rows, self._shown([row[1:] for row in rows]), strict=True):
                    if isinstance(shown, CheckpointCorrupted):
                        if not shown.thread_id:
                            raise shown  # nothing is left of the thread but a row without a name
                        after = Position(active or 0, shown.thread_id)
                        found.append(Hit(None, after, shown))
                        continue
                    after = Position(active, shown.record.key.thread_id)
                    if wanted.fits(shown.record):
                        found.append(Hit(shown, after))
                is_more_left = len(rows) == size
                # Some entries have no label; and, once in an age, two have the same.
                size = min(size * _GROWTH, _OUTLINES)
            if len(found) >= search.limit:
                break
        return found[: search.limit]

    def _sources(self, search: Search) -> Iterator[_Source]:
        """Yield where the threads of a search may be found, one after the other: what is in the first comes first."""
        if search.prefix and self._is_narrow(search, _BEGINNING, _NARROW):
            yield _Source(_BEGINNING.select.replace("{prefix}", _begins_with("n", search)))
            return
        # An index on labels gives all rows that have them before the first can be looked at. Where many threads have
        # them a page is full before that: then those that were active last are looked at first.
        may_be_narrow = labels(search.filter, search.tags) is not None
        size = search.limit
        expected = self._expected_looks(search) if may_be_narrow else None
        if expected is not None:
            size = min(max(size, expected), _OUTLINES)
        elif may_be_narrow:
            may_be_narrow = False
            if self._is_narrow(search, _LABELLED, _NARROW_LABELS):
                yield _Source(_LABELLED.select)
                return
        before = search.after.active + 1 if search.after is not None else None
        while search.since is None or before is None or before > search.since:
            first = self._one(_FIRST_MOMENT, {"before": before, "size": size})[0]
            if first is None:
                break
            yield _Source(_OF_MOMENTS, first, before)
            before = first
            if may_be_narrow:
                may_be_narrow = False
                if self._is_narrow(search, _LABELLED, _NARROW_LABELS):
                    yield _Source(_LABELLED.select, None, before)
                    return
            size = min(size * _GROWTH, _OUTLINES)
        if search.since is None and search.after is None:
            yield _Source(None, None, _NEVER)  # only those who look for losses want them

    def _expected_looks(self, search: Search) -> int | None:
        """Return at how many threads to look for a page of those that have some labels, by what the server guesses.

        None: it is less work to look at all rows that have them; or there is no guess yet.
        """
        rows: float = self._one("SELECT reltuples FROM pg_class WHERE oid = '{checkpoints}'::regclass")[0]
        if rows <= 0:
            return None
        explained = self._one(
            f"EXPLAIN (FORMAT JSON) SELECT 1 {_LABELLED.table}", {"labels": labels(search.filter, search.tags)}
        )[0]
        labelled: float = explained[0]["Plan"]["Plan Rows"]
        looks = search.limit * rows / max(labelled, 1)
        return round(looks * _LOOKS_MORE) if looks < labelled else None

    def _is_narrow(self, search: Search, index: _Index, most: int) -> bool:
        """Whether an index gives no more than so many rows for a search."""
        table = index.table.replace("{prefix}", _begins_with("n", search))
        count: int = self._one(
            f"SELECT count(*) FROM (SELECT 1 {table} LIMIT {most + 1}) x", _search_values(search, None, 0)
        )[0]
        return count <= most

    def _shown(self, rows: Iterable[Sequence[Any]]) -> list[Stored | CheckpointCorrupted]:
        """Return what threads are listed by, or what is wrong with them."""
        found: list[Stored | CheckpointCorrupted] = []
        for row in rows:
            family, thread = row[1:3]
            try:
                found.append(_shown_head(row))
            except CheckpointCorrupted as exc:
                found.append(exc.located(self._name_of(family, thread), None))
        return found

    def _name_of(self, family: int, thread: int) -> str:
        """Return the name of a damaged thread, wherever it is kept."""
        row = self._one(
            """SELECT name FROM {threads} WHERE family = %(f)s AND id = %(t)s
               UNION ALL SELECT name FROM {names} WHERE family = %(f)s AND thread = %(t)s LIMIT 1""",
            {"f": family, "t": thread},
        )
        return "" if row is None else bytes(row[0]).decode()

    def thread(self, thread_id: str, branches: bool, ancestry: bool, brief: bool) -> Thread | None:
        whole = _whole(thread_id, stored_max=_STORED_COUNTED_MAX)
        found, checked = self._ask_together(
            [
                (
                    """SELECT t.id, t.family, t.origin, f.live FROM {names} n
                       JOIN {threads} t ON t.family = n.family AND t.id = n.thread
                       JOIN {families} f ON f.id = t.family WHERE n.name = %s""",
                    (thread_id.encode(),),
                ),
                whole,
            ]
        )
        _check_rows(thread_id, checked.fetchall(), whole)
        row = found.fetchone()
        if row is None:
            return None
        ref, family, origin, live = row
        heads = {}
        newest = {}
        for namespace, generation, head, last in self._all(
            """SELECT l.namespace, l.generation, c.id,
                      (SELECT max(seq) FROM {checkpoints} n WHERE n.family = l.family AND n.line = l.id)
               FROM {lines} l LEFT JOIN {checkpoints} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head
               WHERE l.family = %s AND l.thread = %s""",
            (family, ref),
        ):
            if last is not None:
                newest[namespace.decode()] = last
            if head is not None:
                heads[namespace.decode()] = head.decode(), generation
        doomed = self._one("SELECT sum(unreferenced) FROM {lines} WHERE family = %s", (family,))[0]
        return Thread(
            thread_id,
            str(family),
            unpack_origin(origin, thread_id) if origin is not None else None,
            heads,
            newest,
            self._hidden_of(family, ref) if not brief else {},
            self._runs(family, "r.line IN (SELECT id FROM {lines} WHERE family = %(f)s AND thread = %(t)s)", ref)
            if not brief
            else {},
            self._runs(family, "true") if ancestry else {},
            self._branches(family, thread_id) if branches else (),
            self._commons(family, ref, thread_id),
            self._spared(family, ref) if not brief else frozenset(),
            float(doomed) / max(live, 1) if doomed else 0.0,
        )

    def _hidden_of(self, family: int, thread: int) -> dict[int, list[Hidden]]:
        hidden: dict[int, list[Hidden]] = {}
        for row in self._all(
            """SELECT l.namespace, h.after, h.upto, h.segment, h.writes_of, h.operation FROM {hidden} h
               JOIN {lines} l ON l.family = h.family AND l.id = h.line WHERE l.family = %s AND l.thread = %s""",
            (family, thread),
        ):
            stretch = _hidden(row)
            hidden.setdefault(stretch.operation, []).append(stretch)
        return hidden

    def _runs(self, family: int, condition: str, thread: int = 0) -> dict[int, tuple[Place, ...]]:
        rows = self._all(
            f"SELECT r.segment, r.data FROM {{segments}} r WHERE r.family = %(f)s AND {condition}",
            {"f": family, "t": thread},
        )
        return {segment: unpack_segment(segment, data) for segment, data in rows}

    def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        rows = self._all(
            f"""SELECT c.segment FROM (
                    SELECT r.family, r.line, r.segment, r.segment AS seq FROM {{names}} n
                    JOIN {{lines}} l ON l.family = n.family AND l.thread = n.thread
                    JOIN {{segments}} r ON r.family = l.family AND r.line = l.id
                    WHERE n.name = %s AND l.namespace = %s AND r.segment > %s) c
                WHERE NOT {_HIDDEN} ORDER BY c.segment""",
            (*_named(thread_id, namespace), after),
        )
        return [segment for (segment,) in rows]

    def segments(self, family: str, segments: Collection[int], older: int) -> dict[int, tuple[Place, ...]]:
        rows = self._all(
            """SELECT r.segment, r.data FROM {segments} r WHERE r.family = %(f)s AND r.segment = ANY(%(segments)s)
               UNION ALL (SELECT r.segment, r.data FROM {segments} r WHERE r.family = %(f)s AND r.segment < %(top)s
                          ORDER BY r.segment DESC LIMIT %(older)s)""",
            {"f": int(family), "segments": list(segments), "top": max(segments, default=0), "older": older},
        )
        return {segment: unpack_segment(segment, data) for segment, data in rows}

    def newest(self, thread_id: str, limit: int, branches: bool, without: str | None) -> Newest | None:
        row = self._one("SELECT family FROM {names} WHERE name = %s", (thread_id.encode(),))
        if row is None:
            return None
        found: int = row[0]
        which = "t.family = %(f)s" if branches else "t.family = %(f)s AND t.name = %(t)s"
        values = {"f": found, "t": thread_id.encode()}
        born: dict[str, list[str]] = {}
        for row in self._all(f"SELECT t.name, t.origin FROM {{threads}} t WHERE {which}", values):
            if row[1] is not None:
                name = row[0].decode()
                born.setdefault(unpack_origin(row[1], name).thread_id, []).append(name)
        lines: dict[str, list[_NewestLine]] = {}
        heads: set[Key] = set()
        for name, namespace, ref, head, last in self._all(
            f"""SELECT t.name, l.namespace, l.id, c.id,
                       (SELECT max(seq) FROM {{checkpoints}} n WHERE n.family = l.family AND n.line = l.id)
                FROM {{threads}} t JOIN {{lines}} l ON l.family = t.family AND l.thread = t.id
                LEFT JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head
                WHERE {which}""",
            values,
        ):
            line = _NewestLine(ref, name.decode(), namespace.decode())
            if head is not None:
                heads.add(Key(line.thread_id, line.namespace, head.decode()))
            if last is not None:
                lines.setdefault(line.thread_id, []).append(line._replace(last=last))
        alive = {key.thread_id for key in heads}
        names = descent(thread_id, born, lambda name: name in alive)
        if not names:
            return None
        asked = [line for name in names for line in lines.get(name, ()) if line.namespace != without]
        listed = newest_of(
            [(line.last, line) for line in asked],
            limit,
            lambda chosen, after, most: self._newest_rows(found, chosen, after, most),
        )
        total = self._one(
            f"""SELECT count(*) FROM {{checkpoints}} c WHERE c.family = %(f)s AND c.line = ANY(%(lines)s)
                AND (NOT {_HIDDEN}) IS TRUE""",
            {"f": found, "lines": [line.ref for line in asked]},
        )[0]
        shown = {line[1:3] for line in asked}
        return Newest(listed, frozenset(key for key in heads if key[:2] in shown), total)

    def _newest_rows(self, family: int, lines: Sequence[_NewestLine], after: int, limit: int) -> list[Stored]:
        rows = self._all(
            f"""SELECT {_LISTED} FROM (
                    SELECT s.* FROM unnest(%(lines)s::bigint[]) AS u (line)
                    CROSS JOIN LATERAL (
                        SELECT c.family, c.line, c.seq FROM {{checkpoints}} c
                        WHERE c.family = %(f)s AND c.line = u.line AND c.seq > %(after)s AND (NOT {_HIDDEN}) IS TRUE
                        ORDER BY c.seq DESC LIMIT %(limit)s) s
                    ORDER BY s.seq DESC LIMIT %(limit)s) s
                JOIN {{checkpoints}} c ON c.family = s.family AND c.line = s.line AND c.seq = s.seq {_OF_THREADS}
                ORDER BY c.seq DESC""",
            {"lines": [line.ref for line in lines], "f": family, "after": after, "limit": limit},
        )
        return [_listed(row) for row in rows]

    def _branches(self, family: int, thread_id: str) -> list[str]:
        rows = self._all(
            "SELECT name, origin FROM {threads} WHERE family = %s AND origin IS NOT NULL ORDER BY id", (family,)
        )
        lost = self._one(
            """SELECT l.thread FROM {lines} l WHERE l.family = %s AND NOT EXISTS
               (SELECT 1 FROM {threads} t WHERE t.family = l.family AND t.id = l.thread) LIMIT 1""",
            (family,),
        )
        if lost is not None:
            raise _damaged("its row of threads is missing", self._name_of(family, lost[0]))
        return [name.decode() for name, origin in rows if unpack_origin(origin, name.decode()).thread_id == thread_id]

    def _commons(self, family: int, thread: int, thread_id: str) -> dict[str, list[SharedState]]:
        found: dict[str, list[SharedState]] = {}
        for name, other, data, children in self._all(
            """SELECT t.name, o.other, c.data, c.children FROM {shared_states} c
               CROSS JOIN LATERAL (SELECT CASE WHEN c.low = %(t)s THEN c.high ELSE c.low END AS other) o
               LEFT JOIN {threads} t ON t.family = c.family AND t.id = o.other
               WHERE c.family = %(f)s AND (c.low = %(t)s OR c.high = %(t)s) ORDER BY c.seq""",
            {"f": family, "t": thread},
        ):
            if name is None:
                raise _damaged("its row of threads is missing", self._name_of(family, other))
            both = (thread_id, name.decode()) if thread < other else (name.decode(), thread_id)
            found.setdefault(name.decode(), []).append(unpack_common(data, children, *both))
        return found

    def _spared(self, family: int, thread: int) -> frozenset[int]:
        rows = self._all(
            """SELECT c.seq FROM {lines} l JOIN {checkpoints} c ON c.family = l.family AND c.line = l.id
               AND (c.pinned OR c.branches > 0) WHERE l.family = %s AND l.thread = %s""",
            (family, thread),
        )
        return frozenset(seq for (seq,) in rows)

    def outlines(self, position: int) -> tuple[list[Outline], int | None]:
        rows = self._all(
            """SELECT t.id, t.name, t.family,
                      (SELECT max(l.stored) FROM {lines} l WHERE l.family = t.family AND l.thread = t.id),
                      t.operations > 0, f.swept = 2
               FROM {threads} t JOIN {families} f ON f.id = t.family ORDER BY t.id LIMIT %s OFFSET %s""",
            (_OUTLINES, position),
        )
        found = [
            Outline(name.decode(), str(family), most, has_log, is_swept)
            for _, name, family, most, has_log, is_swept in rows
            if most
        ]
        return found, position + _OUTLINES if len(rows) == _OUTLINES else None

    def operations(self, thread_id: str, limit: int | None) -> list[Operation]:
        whole = _whole(thread_id)
        found, checked = self._ask_together(
            [
                (
                    """SELECT o.data, o.seq, o.undone FROM {names} n
                       JOIN {operations} o ON o.family = n.family AND o.thread = n.thread
                       WHERE n.name = %s ORDER BY o.seq DESC LIMIT %s""",
                    (thread_id.encode(), limit),
                ),
                whole,
            ]
        )
        _check_rows(thread_id, checked.fetchall(), whole)
        rows = found.fetchall()
        return [unpack_operation(data, seq, undone) for data, seq, undone in rows]

    # -- the Removal that `delete` works on

    def delete(
        self,
        thread_id: str,
        keys: Collection[Key] | None,
        before_step: int | None,
        spare: bool,
        operations: Collection[int],
    ) -> Deleted:
        if keys is None and before_step is None:
            self._make_deletable(thread_id)
        # Locked first: whoever is about to write to the thread waits, and finds it as it is then.
        if self._one("SELECT 1 FROM {names} WHERE name = %s FOR UPDATE", (thread_id.encode(),)) is None:
            self.check_whole(thread_id)
        return delete(self, thread_id, keys, before_step, spare, operations)

    def _make_deletable(self, thread_id: str) -> None:
        """Put back rows that a damaged thread has lost, so that all of it can be deleted."""
        try:
            self.check_whole(thread_id)
        except CheckpointCorrupted:
            name = thread_id.encode()
            self._do(
                """INSERT INTO {names} (name, family, thread) SELECT name, family, id FROM {threads} WHERE name = %s
                   ON CONFLICT (name) DO NOTHING""",
                (name,),
            )
            self._do(
                """INSERT INTO {threads} (family, id, name) SELECT family, thread, name FROM {names} WHERE name = %s
                   ON CONFLICT (family, id) DO NOTHING""",
                (name,),
            )
            self._do(
                """INSERT INTO {families} (id, format, sweeps, live, generation, shift)
                   SELECT family, %s, 0, 0, 0, 0 FROM {names} WHERE name = %s ON CONFLICT (id) DO NOTHING""",
                (FORMAT, name),
            )
            for table in ("{checkpoints}", "{writes}", "{hidden}"):  # of namespaces whose own row is lost
                self._do(
                    f"""DELETE FROM {table} o USING {{names}} n WHERE n.name = %s AND o.family = n.family
                        AND NOT EXISTS (SELECT 1 FROM {{lines}} l WHERE l.family = o.family AND l.id = o.line)""",
                    (name,),
                )

    def lines(self, thread_id: str) -> list[Line]:
        rows = self._all(
            """SELECT l.family, l.id, l.namespace, l.head_was_moved FROM {names} n
               JOIN {lines} l ON l.family = n.family AND l.thread = n.thread WHERE n.name = %s
               ORDER BY l.id FOR UPDATE OF l""",
            (thread_id.encode(),),
        )
        return [
            Line((family, ref), thread_id, namespace.decode(), str(family), None, head_was_moved)
            for family, ref, namespace, head_was_moved in rows
        ]

    def candidates(
        self,
        line: Line,
        *,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        before_step: int | None = None,
    ) -> list[Candidate]:
        condition = "true"
        values = list[Any]()
        if ids is not None:
            condition = "c.id = ANY(%s)"
            values = [[name.encode() for name in ids]]
        elif seqs is not None:
            condition = "c.seq = ANY(%s)"
            values = [list(seqs)]
        elif before_step is not None:
            condition = "c.step < %s"
            values = [before_step]
        # Locked: no pin, branch or writer that rests on it comes between the look and the deletion.
        rows = self._all(
            f"""SELECT c.id, c.seq, c.added, {_SPARED} FROM {{checkpoints}} c
                WHERE c.family = %s AND c.line = %s AND {condition} FOR UPDATE OF c""",
            (*line.ref, *values),
        )
        return [Candidate(name.decode(), seq, added, is_protected) for name, seq, added, is_protected in rows]

    def discard(self, line: Line, gone: Sequence[Candidate]) -> None:
        self._checkpoints.clear()
        self._do(
            "DELETE FROM {checkpoints} WHERE family = %s AND line = %s AND seq = ANY(%s)",
            (*line.ref, [each.seq for each in gone]),
        )
        freed = sum(each.added_bytes for each in gone)
        self._do(
            "UPDATE {lines} SET unreferenced = unreferenced + %s, stored = stored - %s WHERE family = %s AND id = %s",
            (freed, len(gone), *line.ref),
        )

    def written(self, line: Line) -> list[str]:
        rows = self._all("SELECT DISTINCT checkpoint FROM {writes} WHERE family = %s AND line = %s", line.ref)
        return [unpacked_id(name) for (name,) in rows]

    def discard_all(self, line: Line) -> int:
        return discard_each(self, line)

    def discard_writes(self, line: Line, ids: Collection[str]) -> None:
        if ids:
            self._do(
                "DELETE FROM {writes} WHERE family = %s AND line = %s AND checkpoint = ANY(%s)",
                (*line.ref, [packed_id(name) for name in ids]),
            )

    def fall_back(self, line: Line) -> None:
        self._held.pop((line.thread_id, line.namespace), None)
        self._do(
            f"""UPDATE {{lines}} l SET generation = generation + 1, head_was_moved = true, head =
                (SELECT max(c.seq) FROM {{checkpoints}} c WHERE c.family = l.family AND c.line = l.id AND NOT {_HIDDEN})
                WHERE l.family = %s AND l.id = %s AND l.head IS NOT NULL AND NOT EXISTS (
                    SELECT 1 FROM {{checkpoints}} c WHERE c.family = l.family AND c.line = l.id AND c.seq = l.head)""",
            line.ref,
        )

    def drop_idle_stretches(self, line: Line) -> None:
        family, ref = line.ref
        self._do(
            """WITH dropped AS (
                   DELETE FROM {hidden} h WHERE family = %(f)s AND line = %(l)s AND CASE WHEN writes_of IS NULL
                   THEN NOT EXISTS (SELECT 1 FROM {checkpoints} c WHERE c.family = h.family AND c.line = h.line
                                    AND c.seq > h.after AND c.seq <= h.upto
                                    AND (h.segment IS NULL OR h.segment = c.segment))
                   ELSE NOT EXISTS (SELECT 1 FROM {writes} w WHERE w.family = h.family AND w.line = h.line
                                    AND w.checkpoint = h.writes_of) END RETURNING 1
               )
               UPDATE {lines} SET stretches = stretches - (SELECT count(*) FROM dropped)
               WHERE family = %(f)s AND id = %(l)s AND EXISTS (SELECT 1 FROM dropped)""",
            {"f": family, "l": ref},
        )

    def is_empty(self, line: Line) -> bool:
        family, ref = line.ref
        empty = self._one(
            """SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM {checkpoints} WHERE family = %(f)s AND line = %(l)s)
               AND NOT EXISTS (SELECT 1 FROM {writes} WHERE family = %(f)s AND line = %(l)s)""",
            {"f": family, "l": ref},
        )
        return empty is not None

    def drop_line(self, line: Line) -> None:
        family, ref = line.ref
        place = {"f": family, "l": ref}
        self._do("UPDATE {segments} SET line = NULL WHERE family = %(f)s AND line = %(l)s", place)
        self._do(
            """UPDATE {families} f SET generation = greatest(f.generation, l.generation) FROM {lines} l
               WHERE f.id = %(f)s AND l.family = %(f)s AND l.id = %(l)s""",
            place,
        )
        # What is left of the thread was active when this was, and its garbage is the family's.
        self._do(
            """UPDATE {lines} o
               SET active = greatest(o.active, l.active), unreferenced = o.unreferenced + l.unreferenced FROM {lines} l
               WHERE l.family = %(f)s AND l.id = %(l)s AND o.family = l.family AND o.id =
                   (SELECT min(id) FROM {lines} x
                    WHERE x.family = l.family AND x.thread = l.thread AND x.id <> l.id)""",
            place,
        )
        self._forget_places()
        self._do(
            """WITH gone AS (DELETE FROM {lines} WHERE family = %(f)s AND id = %(l)s RETURNING family, thread)
               UPDATE {threads} t SET lines = lines - 1 FROM gone
               WHERE t.family = gone.family AND t.id = gone.thread""",
            place,
        )

    def drop_operations(self, thread_id: str, seqs: Collection[int]) -> None:
        if seqs:
            self._do(
                """WITH gone AS (
                       DELETE FROM {operations} o USING {names} n
                       WHERE n.name = %s AND o.family = n.family AND o.thread = n.thread AND o.seq = ANY(%s)
                       RETURNING o.family, o.thread
                   )
                   UPDATE {threads} t SET operations = t.operations - g.count
                   FROM (SELECT family, thread, count(*) FROM gone GROUP BY family, thread) g
                   WHERE t.family = g.family AND t.id = g.thread""",
                (thread_id.encode(), list(seqs)),
            )

    def drop_thread(self, thread_id: str) -> None:
        family, thread = self._one("SELECT family, thread FROM {names} WHERE name = %s", (thread_id.encode(),))
        self._mark_deleted(family, thread_id)
        self._release_origin(thread_id)
        self._do("DELETE FROM {operations} WHERE family = %s AND thread = %s", (family, thread))
        self._do(
            "DELETE FROM {shared_states} WHERE family = %(f)s AND (low = %(t)s OR high = %(t)s)",
            {"f": family, "t": thread},
        )
        self._forget_places()
        self._do("DELETE FROM {threads} WHERE family = %s AND id = %s", (family, thread))
        self._do("DELETE FROM {names} WHERE name = %s", (thread_id.encode(),))

    def drop_family(self, family: str) -> bool:
        number = int(family)
        left = self._one(  # lines too: a thread that has lost its own row is not to lose its objects
            """SELECT 1 FROM {threads} WHERE family = %(f)s UNION ALL SELECT 1 FROM {lines} WHERE family = %(f)s
               LIMIT 1""",
            {"f": number},
        )
        if left is not None:
            return False
        self._forget_places()
        for table in ("{objects}", "{segments}"):
            self._do(f"DELETE FROM {table} WHERE family = %s", (number,))
        self._do("DELETE FROM {families} WHERE id = %s", (number,))
        return True

    def _mark_deleted(self, family: int, thread_id: str) -> None:
        """Leave a mark, by which those who saw the thread tell its deletion from a loss."""
        self._do(
            f"""INSERT INTO {{gone}} AS g (name, seq)
                SELECT %s, coalesce((SELECT {_NUMBER} FROM {{families}} f WHERE f.id = %s), nextval('{{numbers}}'))
                ON CONFLICT (name) DO UPDATE SET seq = greatest(g.seq, excluded.seq)""",
            (deletion_mark(thread_id), family),
        )
        if random.randrange(_MARKS_TRIMMED_EVERY) == 0:  # noqa: S311  # no secret
            self.trim_marks(MARKS_MAX)

    def trim_marks(self, count_max: int) -> None:
        """Keep the newest marks of deletions, about so many."""
        self._do(
            "DELETE FROM {gone} WHERE seq < (SELECT seq FROM {gone} ORDER BY seq DESC OFFSET %s LIMIT 1)",
            (count_max,),
        )

    # -- sweeping: see `sweeping`

    def sweep_begin(self, family: str, ticket: int) -> None:
        self._do("UPDATE {families} SET swept = %s WHERE id = %s", (ticket, int(family)))

    def sweep_start(self, family: str, without: Collection[Key]) -> tuple[int, int, int, list[bytes]] | None:
        """Return the family's count of sweeps, its doomed bytes, the youngest object, and the hashes in its roots."""
        number = int(family)
        # Everything with a smaller number is committed, and what needs it can be seen from now on.
        youngest = self._one(
            "WITH alone AS MATERIALIZED (SELECT {alone}(%s)) SELECT nextval('{numbers}') FROM alone",
            (number,),
        )[0]
        row = self._one("SELECT sweeps FROM {families} WHERE id = %s", (number,))
        if row is None:
            return None
        doomed = self._one("SELECT sum(unreferenced) FROM {lines} WHERE family = %s", (number,))[0]
        gone = set(without)
        rows = self._all(
            """SELECT t.name, l.namespace, c.id, c.children FROM {checkpoints} c
                LEFT JOIN {lines} l ON l.family = c.family AND l.id = c.line
                LEFT JOIN {threads} t ON t.family = l.family AND t.id = l.thread WHERE c.family = %s""",
            (number,),
        )
        # What a damaged thread refers to is kept: it may be mended.
        roots = [
            row[3] for row in rows if not gone or None in row or Key(*(name.decode() for name in row[:3])) not in gone
        ]
        for table in ("{writes}", "{shared_states}"):
            roots += [row[0] for row in self._all(f"SELECT children FROM {table} WHERE family = %s", (number,))]
        return row[0], int(doomed or 0), youngest, list({key for root in roots for key in hashes(root)})

    def links(self, family: str, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]:
        """Return (hash, children, size) of these objects."""
        return self._all(
            """SELECT hash, children, length(children) + length(body) FROM {objects}
               WHERE family = %s AND hash = ANY(%s)""",
            (int(family), list(wanted)),
        )

    def objects_after(self, family: str, last: bytes, limit: int) -> tuple[list[tuple[bytes, int, int]], bytes | None]:
        """Return (hash, id, size) of the family's next objects in the order of their hashes, and the last hash."""
        found = self._all(
            """SELECT hash, id, length(children) + length(body) FROM {objects} WHERE family = %s AND hash > %s
               ORDER BY hash LIMIT %s""",
            (int(family), last, limit),
        )
        return found, found[-1][0] if len(found) == limit else None

    def remove_objects(self, family: str, doomed: Sequence[tuple[bytes, int]], expected_sweeps: int) -> int | None:
        """Delete objects by (hash, id) and return the new count of sweeps; None if another sweep came first."""
        row = self._one(
            "UPDATE {families} SET sweeps = sweeps + 1 WHERE id = %s AND sweeps = %s RETURNING sweeps",
            (int(family), expected_sweeps),
        )
        if row is None:
            return None
        hashes_of_doomed = [key for key, _ in doomed]
        ids = [number for _, number in doomed]
        self._do(
            "DELETE FROM {objects} WHERE family = %s AND hash = ANY(%s) AND id = ANY(%s)",
            (int(family), hashes_of_doomed, ids),
        )
        sweeps: int = row[0]
        return sweeps

    def sweep_end(self, family: str, live_bytes: int, doomed_bytes: int, ticket: int) -> None:
        """Note what a sweep found in use, and take off what was doomed when it began."""
        for line, doomed in self._all(
            "SELECT id, unreferenced FROM {lines} WHERE family = %s AND unreferenced > 0 ORDER BY id FOR UPDATE",
            (int(family),),
        ):
            taken = min(doomed, doomed_bytes)
            doomed_bytes -= taken
            self._do(
                "UPDATE {lines} SET unreferenced = unreferenced - %s WHERE family = %s AND id = %s",
                (taken, int(family), line),
            )
        # After the lines, as everybody locks them who lets something go.
        self._do(
            "UPDATE {families} SET live = %s, swept = CASE WHEN swept = %s THEN 2 ELSE swept END WHERE id = %s",
            (live_bytes, ticket, int(family)),
        )


# One row shape for all three: kind, place among those asked for, eight numbers, four byte strings. The checkpoint comes
# first.
_IS_TORN = 8
_CHOSEN = f"""SELECT l.generation, l.head_was_moved, c.*, {_HIDDEN} AS hidden, {{torn}} AS torn FROM {{names}} n
        JOIN {{lines}} l ON l.family = n.family AND l.thread = n.thread
        JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id"""
# OFFSET 0: each is looked up by itself, by the keys of the tables.
_LOAD_MANY = f"""WITH chosen AS (
        SELECT a.place, c.* FROM unnest(%(t)s::bytea[], %(n)s::bytea[], %(c)s::bytea[])
            WITH ORDINALITY AS a (thread, namespace, id, place)
        CROSS JOIN LATERAL (
            {_CHOSEN} WHERE n.name = a.thread AND l.namespace = a.namespace AND c.id = a.id OFFSET 0
        ) c
    )"""
_LOAD_CHECKPOINT = """ SELECT 0, place, generation, seq, step, segment, added, family, line,
    pinned::int + 2 * hidden::int + 4 * head_was_moved::int + 8 * torn::int, id, info, children, root FROM chosen"""
_LOAD_WRITES = """SELECT 2, place, w.seq, w.idx, 0, 0, 0, 0, 0, 0, w.task, w.info, w.children, ''::bytea FROM chosen
    CROSS JOIN LATERAL (
        SELECT * FROM {writes} w WHERE w.family = chosen.family AND w.line = chosen.line
        AND w.checkpoint = {packed}(chosen.id)
        AND NOT EXISTS (SELECT 1 FROM {hidden} h WHERE h.family = w.family AND h.line = w.line
                        AND h.writes_of = w.checkpoint AND w.seq > h.after AND w.seq <= h.upto) OFFSET 0
    ) w"""


def labels(metadata: Mapping[str, Any], tags: Collection[str] = ()) -> list[int] | None:
    """Return a number per entry of the metadata and per tag, by which filters find it; None if there are none.

    LangGraph's step would fill the index, being another one each time; its parents are empty almost everywhere.
    """
    packed = [
        codec.pack([key, value], "metadata")
        for key, value in metadata.items()
        if key != "step" and (type(value) is not dict or value)
    ]
    packed += [b"tag\0" + tag.encode() for tag in kept_tags(tags)]
    if not packed:
        return None
    return [int.from_bytes(hashlib.sha256(entry).digest()[:8], "big", signed=True) for entry in packed]


class _Index(NamedTuple):
    """What finds threads by something else than their activity."""

    table: str
    """What to count: more rows than threads, maybe."""
    select: str
    """The query for the threads."""


_BEGINNING = _Index(
    "FROM {threads} n WHERE {prefix}",
    "SELECT n.family, n.id AS thread FROM {threads} n WHERE {prefix}",
)
_LABELLED = _Index(
    "FROM {checkpoints} c WHERE c.labels @> %(labels)s::bigint[]",
    "SELECT DISTINCT o.family, o.thread FROM {checkpoints} c "
    "JOIN {lines} o ON o.family = c.family AND o.id = c.line AND o.head = c.seq "
    "WHERE c.labels @> %(labels)s::bigint[]",
)


def _begins_with(table: str, search: Search) -> str:
    upper = "" if prefix_end(search.prefix) is None else f" AND {table}.name < %(prefix_end)s"
    return f"{table}.name >= %(prefix)s{upper}"


def _search_values(search: Search, after: Position | None, limit: int) -> dict[str, Any]:
    return {
        "prefix": search.prefix.encode(),
        "prefix_end": _bytes(prefix_end(search.prefix)),
        "labels": labels(search.filter, search.tags),
        "since": search.since,
        "active": after.active if after is not None else None,
        "name": after.thread_id.encode() if after is not None else None,
        "limit": limit,
    }


def _search_text(search: Search, source: _Source, after: Position | None, limit: int) -> tuple[str, dict[str, Any]]:
    """Return the query for some threads that a search may be about, in its order, and the values in it."""
    conditions = [_IS_SHOWN]
    if search.prefix:
        conditions.append(_begins_with("t", search))
    values = {**_search_values(search, after, limit), "first": source.first, "before": source.before}
    if values["labels"] is not None:
        conditions.append("c.labels @> %(labels)s::bigint[]")
    if search.since is not None:
        conditions.append(f"a.active >= {_MOMENT.format('since')}")
    if after is not None:
        conditions.append(f"(a.active, t.name) < ({_MOMENT.format('active')}, %(name)s::bytea)")
    if source.first is not None:
        conditions.append(f"a.active >= {_MOMENT.format('first')}")
    if source.before is _NEVER:
        conditions.append("(a.active IS NULL OR NOT isfinite(a.active))")
    elif source.before is not None:
        conditions.append(f"a.active < {_MOMENT.format('before')}")
    lines = "{lines}"
    joined = _OF_SHOWN
    if source.text is not None:
        lines = (
            f"(SELECT x.* FROM (SELECT DISTINCT * FROM ({source.text}) y) s JOIN {{lines}} x USING (family, thread)) z"
        )
        joined = joined.replace("FULL JOIN", "LEFT JOIN")
    text = f"""SELECT {_MICROS}, {_SHOWN} FROM
                 (SELECT family, thread, {_OF_ONE_THREAD} FROM {lines} GROUP BY family, thread) a
               {joined} LEFT JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head
               WHERE {" AND ".join(conditions)}
               ORDER BY a.active DESC NULLS LAST, t.name DESC LIMIT %(limit)s"""
    return text, values


_MOMENT = "'epoch'::timestamptz + %({})s::bigint * interval '1 microsecond'"
_MINUTE = "date_bin(interval '1 minute', {}, 'epoch'::timestamptz)"
_BEFORE = f"""minute <= coalesce({_MINUTE.format(_MOMENT.format("before"))}, 'infinity')
              AND active < coalesce({_MOMENT.format("before")}, 'infinity')"""
_OF_MOMENTS = f"""SELECT family, thread FROM {{lines}} WHERE minute >= {_MINUTE.format(_MOMENT.format("first"))}
                  AND active >= {_MOMENT.format("first")} AND {_BEFORE}"""
# Only the minutes that are needed are put in order: they are an index.
_FIRST_MOMENT = f"""SELECT (extract(epoch FROM min(active)) * 1000000)::bigint FROM
                    (SELECT active FROM {{lines}} WHERE {_BEFORE} ORDER BY minute DESC, active DESC LIMIT %(size)s) x"""
_NEVER = -1


class _Source(NamedTuple):
    """Where some threads of a search are found."""

    text: str | None
    """The query for them; None: they are among all."""
    first: int | None = None
    """When they were active at the earliest, in microseconds."""
    before: int | None = None
    """They were not active at that moment or later; _NEVER: not at all."""


def _hidden(row: Sequence[Any]) -> Hidden:
    namespace, after, upto, segment, writes_of, operation = row
    return Hidden(
        namespace.decode(), after, upto, segment, unpacked_id(writes_of) if writes_of is not None else None, operation
    )


def deletion_mark(thread_id: str) -> bytes:
    """Return how a deleted thread is named: not by its name, which is deleted too."""
    return hashlib.sha256(thread_id.encode()).digest()[:16]


def packed_id(text: str) -> bytes:
    """Return an id as writes keep it: a UUID as 17 bytes that are no UTF-8, any other text as its own bytes."""
    packed = pack_id(text)
    return packed.encode() if isinstance(packed, str) else _UUID_MARK + packed


def unpacked_id(packed: bytes) -> str:
    """Return what `packed_id` was given."""
    return unpack_id(packed[1:]) if packed[:1] == _UUID_MARK else packed.decode()


_UUID_MARK = b"\xff"


def columns(objects: Sequence[Object]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return objects as hashes, children and bodies: each once, and in order, so that writers do not lock crosswise."""
    each = sorted({obj.hash: obj for obj in objects}.values())
    return [obj.hash for obj in each], [obj.children for obj in each], [obj.body for obj in each]


def _seq(found: bytes | None) -> int | None:
    return None if found is None else int.from_bytes(found, "big")


def _binary(types: Sequence[int], values: Sequence[Any]) -> list[bytes | None]:
    """Return values as the server takes them in binary form."""
    return [None if value is None else _ENCODERS[kind](value) for kind, value in zip(types, values, strict=True)]


def _array(kind: int, items: Sequence[bytes]) -> bytes:
    parts = [_ARRAY.pack(1 if items else 0, 0, kind)]
    if items:
        parts.append(_PAIR.pack(len(items), 1))
    for item in items:
        parts += (len(item).to_bytes(4, "big"), item)
    return b"".join(parts)


_ARRAY = struct.Struct(">iiI")
_PAIR = struct.Struct(">ii")
_NUMBER_8 = struct.Struct(">q")
_INT8, _BYTEA, _INT8S, _BYTEAS = 20, 17, 1016, 1001  # numbers of types, the same on every server
_ENCODERS: dict[int, Callable[[Any], bytes]] = {
    _INT8: _NUMBER_8.pack,
    _BYTEA: bytes,
    _INT8S: lambda items: _array(_INT8, [_NUMBER_8.pack(item) for item in items]),
    _BYTEAS: lambda items: _array(_BYTEA, items),
}
_PUT_TYPES = (
    *[_INT8] * 4, _BYTEA, *[_INT8] * 3, _BYTEA, _INT8S, *[_BYTEA] * 3, *[_BYTEAS] * 3, _INT8S,
    *[_BYTEA] * 4,
)  # fmt: skip
_PUT = f"SELECT {{put}}({', '.join(f'${n}' for n in range(1, len(_PUT_TYPES) + 1))})"


# Every row of a thread that others count on. Of a thread that is whole, the numbers agree.
def _whole(thread_id: str, namespace: str | None = None, stored_max: int = 0) -> tuple[str, tuple[Any, ...]]:
    """Return the question whether a thread is whole: see `Rows.check_whole`."""
    lines_max = _LINES_COUNTED_MAX if namespace else 1 << 40
    return "SELECT * FROM {whole}(%s, %s, %s, %s)", (thread_id.encode(), _bytes(namespace), lines_max, stored_max)


def _check_rows(thread_id: str, rows: Sequence[Any], asked: tuple[str, tuple[Any, ...]]) -> None:
    """Raise CheckpointCorrupted if the answer to `_whole` shows damage."""
    *_, lines_max, stored_max = asked[1]
    for row in rows:
        damage = _damage_of(row, lines_max, stored_max)
        if damage:
            raise _damaged(damage, thread_id)


def _damage_of(row: Sequence[Any], lines_max: int, stored_max: int) -> str:
    """Return what is wrong according to a row of `whole`; "": nothing."""
    (
        family, named, thread, kept, line, head, head_found, is_stale, lines, lines_found, operations,
        operations_found, is_torn, segments, segments_found, stored, stored_found,
    ) = row  # fmt: skip
    if family is None:
        return "its name is missing" if named is not None else ""
    if thread is None:
        return "its row of threads is missing"
    if kept is None:
        return "its family is missing"
    if lines != lines_found and lines_found < lines_max:
        return "a namespace is missing"
    if operations != operations_found:
        return "an operation is missing"
    if line is None:
        return ""
    if head is not None and head_found is None:
        return "its head points to a checkpoint that is missing"
    if is_stale:
        return _STALE_HEAD
    if is_torn:
        return _LOST_STRETCH
    if segments != segments_found:
        return "what a segment follows is missing"
    if stored <= stored_max and stored != stored_found:
        return "a checkpoint is missing"
    return ""


def _is_of_all(query: Query) -> bool:
    """Whether a query looks at every checkpoint of a namespace, so that counting them costs no more."""
    asked = (
        query.checkpoint_id, query.before_id, query.before_seq, query.after_seq,
        query.step_max, query.segment, query.protected,
    )  # fmt: skip
    return not query.filter and all(each is None for each in asked)


_LOST_STRETCH = "what hides some of its checkpoints is missing"
_STALE_HEAD = "its head is older than the newest checkpoint that follows it"


def _damaged(what: str, thread_id: str) -> CheckpointCorrupted:
    return CheckpointCorrupted(f"rows of the thread are lost or do not agree: {what}", thread_id=thread_id)


def _drawn(rows: Sequence[Any]) -> list[int]:
    """Return numbers so that the last one is taken first."""
    return [number for (number,) in reversed(rows)]


def _named_checkpoint(key: Key) -> tuple[bytes, ...]:
    return *_named(key.thread_id, key.namespace), key.checkpoint_id.encode()


def _named(thread_id: str, namespace: str) -> tuple[bytes, bytes]:
    return thread_id.encode(), namespace.encode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _stored(thread_id: str, namespace: str, family: int, row: Sequence[Any]) -> Stored:
    seq, checkpoint_id, step, segment, pinned, added, info, children, root, hidden = row
    record = unpack_record(Key(thread_id, namespace, checkpoint_id.decode()), step, children, info, root)
    return Stored(record, seq, str(family), pinned, hidden, record_digest(info, root), segment, added)


def _loaded(thread_id: str, namespace: str, rows: Sequence[Any]) -> tuple[Loaded, Known | None]:
    """Return what the rows of one checkpoint say."""
    _, _, generation, seq, step, segment, added, family, line, flags, name, info, children, root = rows[0]
    row = seq, name, step, segment, bool(flags & 1), added, info, children, root, bool(flags & 2)
    stored = _stored(thread_id, namespace, family, row)
    found = [Object(*other[10:13]) for other in rows if other[0] == 1]
    attached = [
        unpack_write(name.decode(), other[2], unpacked_id(other[10]), other[3], *other[11:13])
        for other in rows
        if other[0] == 2
    ]
    attached.sort(key=lambda write: (write.task_path, write.task_id, write.idx))
    return Loaded(stored, generation, found, attached), None if flags & 4 else Known(line, stored)


def _shown_head(row: Sequence[Any]) -> Stored:
    """Return what a thread is listed by, a row of `_SHOWN`; raise if it has lost rows, or this one is damaged."""
    head_seq, _, _, lines, lines_kept, *columns = row
    if lines_kept is not None and lines_kept != (lines or 0):
        raise CheckpointCorrupted("a namespace is missing")
    if head_seq is not None and columns[0] is None:
        raise CheckpointCorrupted("its head points to a checkpoint that is missing")
    if columns[9] is None:
        raise CheckpointCorrupted("its row of threads is missing")
    return _listed(columns)


def _listed(row: Sequence[Any]) -> Stored:
    seq, checkpoint_id, step, segment, pinned, added, info, root_digest, hidden, name, namespace, family = row
    record = unpack_record(Key(name.decode(), namespace.decode(), checkpoint_id.decode()), step, b"", info, None)
    return Stored(record, seq, str(family), pinned, hidden, record_digest(info, root_digest), segment, added)
