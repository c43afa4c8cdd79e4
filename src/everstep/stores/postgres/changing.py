"""The Transaction that `transaction.apply` works on, in SQL, and the usual commit in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from psycopg import errors

from everstep.stores.postgres.asking import Tables
from everstep.stores.postgres.forms import (
    LOAD,
    NUMBER,
    STALE,
    STALE_HEAD,
    KnownHead,
    columns,
    damaged,
    is_unknown,
    labels,
    name_bytes,
    packed_id,
    to_hidden,
    to_loaded,
    to_stored,
    unpacked_id,
)
from everstep.stores.postgres.functions import PUT, Function
from everstep.stores.postgres.pool import Connection
from everstep.stores.postgres.searching import Searching
from everstep.stores.protocol import (
    SHARED_STATES_MAX,
    BaseRef,
    Hidden,
    Key,
    Loaded,
    Object,
    Operation,
    Place,
    SharedState,
    Stored,
    Write,
)
from everstep.stores.records import (
    pack_operation,
    pack_origin,
    pack_segment,
    pack_shared_state,
    pack_write,
    unpack_origin,
    unpack_write,
)
from everstep.stores.transaction import Line, Packed
from everstep.values.tree import FORMAT

_COLUMNS = "c.seq, c.id, c.step, c.segment, c.pinned, c.added, c.info, c.children, c.root"
# Six, which are enough for a new thread with its first checkpoint.
_DRAW = ("SELECT nextval('{numbers}') FROM generate_series(1, 6)", ())
_FACTS = """SELECT id, shift, generation FROM {families}
            WHERE id IN (SELECT family FROM {names} WHERE name = ANY(%s))"""
_OF_NAMED_LINE = """FROM {names} n JOIN {lines} l ON l.family = n.family AND l.thread = n.thread"""
_LOCK_LINE = f"""SELECT l.family, l.id, l.head, l.head_was_moved, l.generation {_OF_NAMED_LINE}
                 WHERE n.name = %s AND l.namespace = %s FOR NO KEY UPDATE OF l"""
_HEAD_OF_LINE = f"""SELECT {STALE}, {_COLUMNS} {_OF_NAMED_LINE}
                    JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head
                    WHERE n.name = %s AND l.namespace = %s"""
_CHECKPOINT = f"""SELECT l.family, {_COLUMNS} {_OF_NAMED_LINE}
                  JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id
                  WHERE n.name = %s AND l.namespace = %s AND c.id = %s FOR KEY SHARE OF c"""


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


class Changing(Searching):
    """Changes rows, and knows what it has locked and read."""

    def __init__(self, connection: Connection, tables: Tables) -> None:
        super().__init__(connection, tables)
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

    def _next(self) -> int:
        """Return a new number. They are asked for together, since a new thread needs several."""
        if not self._numbers:
            self._numbers = _drawn(self._all(*_DRAW))
        return self._numbers.pop()

    def _number_in(self, family: int, thread_id: str) -> int:
        """Return a new number of a family whose guard is held: see `Adopting.reserve`."""
        return self._next() + self._family_facts(family, thread_id).shift

    def _family_facts(self, family: int, thread_id: str) -> _FamilyFacts:
        if family not in self._facts:
            row = self._one("SELECT shift, generation FROM {families} WHERE id = %s", (family,))
            if row is None:
                raise damaged("its family is missing", thread_id)
            self._facts[family] = _FamilyFacts(*row)
        return self._facts[family]

    def _forget_places(self) -> None:
        """Look for lines and threads again: some were deleted."""
        self._spots.clear()
        self._held.clear()
        self._checkpoints.clear()

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
        # In one order, whoever asks: two writers that lock the same names crosswise would stop one another.
        names = sorted(name.encode() for name in {thread_id, *others})
        place = name_bytes(thread_id, namespace)
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
                raise damaged("its head points to a checkpoint that is missing", thread_id)
            is_stale, *columns_ = head_row
            if is_stale:
                raise damaged(STALE_HEAD, thread_id)
            found = to_stored(thread_id, namespace, family, (*columns_, False))
        line = Line((family, ref), thread_id, namespace, str(family), found, head_was_moved)
        return _HeldLine(line, generation)

    def _guard(self, family: int) -> None:
        if family not in self._guarded:
            self._guarded.add(family)
            self._do("SELECT {guard}(%s)", (family,))

    def begin_turn(
        self, thread_id: str, namespace: str, bases: Sequence[BaseRef], seconds: float
    ) -> tuple[tuple[Loaded, KnownHead | None] | None, list[BaseRef]]:
        """Begin a transaction, lock the thread's family for it alone, and return the head, in one round trip.

        Every writer of a family needs its guard. Who waits for the lock is let in in the order of coming. Should this
        client vanish without a word, the server ends the transaction after so many seconds. The head is read without
        objects; None: there is none. Those of `bases` are returned that are stored in the same family.
        """
        with self.connection.in_one_go():
            # Executed by itself, since `begin` would send it only with the next question.
            self.connection.execute("BEGIN")
            self._ask(
                """SELECT set_config('idle_in_transaction_session_timeout', %s, true), {alone}(family) FROM {names}
                   WHERE name = %s""",
                (str(max(1, int(seconds * 1000))), thread_id.encode()),
            )
            # A statement of its own: it sees what was committed while the lock was waited for.
            found = self._ask(LOAD, (*name_bytes(thread_id, namespace), None, False, False))
            asked = [(base, self._ask(LOAD, (*map(str.encode, base.key), False, False))) for base in bases]
        rows = found.fetchall()
        if not rows or is_unknown(rows):
            return None, []
        loaded, known = self._checked_load(thread_id, namespace, None, rows)
        stored = list[BaseRef]()
        for base, answer in asked:
            held = answer.fetchall()
            if not held or is_unknown(held):
                continue
            checkpoint = to_loaded(*base.key[:2], held)[0].stored
            if checkpoint.digest == base.digest and checkpoint.family == loaded.stored.family:
                stored.append(base)
        return (loaded, known), stored

    def put_and_end(self, values: Sequence[Any]) -> int | None:
        """Do `put`, and commit the transaction, in one round trip; None: nothing was written."""
        return _seq(self.connection.call_and_commit(*PUT.called(self._tables, values)))

    def generation(self, thread_id: str, namespace: str) -> tuple[str, int] | None:
        """Lock a line and return its family and generation."""
        held = self._hold(thread_id, namespace)
        return None if held is None else (held.line.family, held.generation)

    def head(self, thread_id: str, namespace: str) -> tuple[str, int, KnownHead | None] | None:
        """Return the family of a line, its generation, and its head unless that was moved."""
        held = self._hold(thread_id, namespace)
        if held is None:
            return None
        line = held.line
        known = KnownHead(line.ref[1], line.head) if line.head is not None and not line.head_was_moved else None
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
            raise damaged("its name is missing", thread_id)
        return spot

    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        number, thread = self._joined(thread_id, family)
        self._guard(number)
        # A thread that was there before may have lost a row; to make one would hide that.
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
        # It was made since we looked, by a writer that knew nothing of this family.
        if family is not None and spot.family != int(family):
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
            self._checkpoints[key] = to_stored(key.thread_id, key.namespace, row[0], (*row[1:], False))

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

    def add_segment(self, line: Line, segment: int, follows: Sequence[Place]) -> None:
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
        # What was noted is the old one.
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

    def set_origin(self, thread_id: str, origin: Stored) -> None:
        spot = self._required_spot(thread_id)
        # A thread of this transaction has no origin yet that would have to be released.
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

    def set_shared_state(self, thread_id: str, other: str, common: SharedState) -> None:
        spots = [(self._required_spot(name), name) for name in (thread_id, other)]
        # Each pair is stored once, the thread of the smaller number first.
        ((family, low), one), ((_, high), two) = sorted(spots)
        self._do(
            """INSERT INTO {shared_states} (family, low, high, seq, data, children) VALUES (%s, %s, %s, %s, %s, %s)
               ON CONFLICT (family, low, high, seq) DO UPDATE SET data = excluded.data, children = excluded.children""",
            (
                family, low, high, common.place.seq,
                pack_shared_state(common, one, two), common.root.children,
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
        return [to_hidden(row) for row in rows]

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None:
        family, ref = line.ref
        # LangGraph's special writes have an index below zero and take the place of the last one; of others
        # the first one stays.
        update = "UPDATE SET seq = excluded.seq, info = excluded.info, children = excluded.children"
        self._do(
            f"""INSERT INTO {{writes}} (family, line, seq, idx, checkpoint, task, info, children)
                SELECT f.id, %s, {NUMBER}, %s, %s, %s, %s, %s FROM {{families}} f WHERE f.id = %s
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
        # The place must be free before another write moves there.
        self._do(f"DELETE FROM {{writes}} WHERE {where}", (*place, idx))
        self._do(f"UPDATE {{writes}} SET idx = %s WHERE {where}", (idx, *place, write.idx))

    # -- the short way: one round trip

    def put(self, values: Sequence[Any]) -> int | None:
        """Call the function that commits a checkpoint; None: it must be done the long way."""
        return _seq(self.connection.call(*PUT.called(self._tables, values)))

    async def put_async(self, values: Sequence[Any]) -> int | None:
        """The same; the event loop goes on meanwhile."""
        return _seq(await self.connection.call_async(*PUT.called(self._tables, values)))

    def begin_line(self, function: Function, values: Sequence[Any]) -> bytes | None:
        """Call a function that begins a line: see `beginnings.py`; None: it must be done the long way."""
        return self.connection.call(*function.called(self._tables, values))

    def attach(self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None) -> bool:
        """Call the function that attaches writes; False: it must be done the long way."""
        kept: dict[tuple[str, int], Write] = {}
        # One statement may change a row only once, so of several writes to one place the one that would win
        # is sent.
        for write in writes:
            if write.idx < 0 or (write.task_id, write.idx) not in kept:
                kept[write.task_id, write.idx] = write
        values = (
            *name_bytes(key.thread_id, key.namespace),
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


def _seq(found: bytes | None) -> int | None:
    return None if found is None else int.from_bytes(found, "big")


def _drawn(rows: Sequence[Any]) -> list[int]:
    """Return numbers so that the last one is taken first."""
    return [number for (number,) in reversed(rows)]


def _named_checkpoint(key: Key) -> tuple[bytes, ...]:
    return *name_bytes(key.thread_id, key.namespace), key.checkpoint_id.encode()
