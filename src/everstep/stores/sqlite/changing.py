"""What a commit does, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everstep.stores.facts import Fact, kept, new_facts
from everstep.stores.protocol import SHARED_STATES_MAX, Hidden, Object, Operation, Place, SharedState, Stored, Write
from everstep.stores.records import pack_id, pack_operation, pack_origin, pack_segment, pack_shared_state, pack_write
from everstep.stores.sqlite.forms import NEXT_WRITE, next_number, packed_or_none
from everstep.stores.sqlite.remembering import Head
from everstep.stores.sqlite.schema import seal
from everstep.stores.sqlite.searching import Searching
from everstep.stores.transaction import Line, Packed, now_micros
from everstep.values.tree import FORMAT

_INSERT = """INSERT INTO checkpoints (seq, line, id, step, segment, pinned, branches, added, info, children, root, seal)
             VALUES (?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?)"""
# The seal is set here, not by the trigger, which would be a second statement for every checkpoint.
SET_HEAD = """UPDATE lines SET head = ?1, head_was_moved = ?2, generation = generation + 1, active = ?3,
               total = total + ?4, seal = seal(id, thread, namespace, ?1, ?2, generation + 1, ?3, unreferenced)
               WHERE id = ?5"""
INSERT_HIDDEN = "INSERT INTO hidden (line, operation, after, upto, segment, writes_of) VALUES (?, ?, ?, ?, ?, ?)"
_INSERT_WRITE = """INSERT INTO writes (line, checkpoint, task, idx, seq, info, children, seal)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_REPLACE_WRITE = _INSERT_WRITE.replace(
    "NOTHING", "UPDATE SET seq = excluded.seq, info = excluded.info, children = excluded.children"
)
_NUMBERS_AT_ONCE = 100
_LINES_OF_NAME = "SELECT l.id FROM lines l JOIN threads t ON t.id = l.thread WHERE t.name = ?"


class Changing(Searching):
    """What `transaction.apply` asks for."""

    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        thread, family = self._joined(thread_id, family)
        ref = self._execute(
            """INSERT INTO lines (thread, namespace, head_was_moved, generation, active, total, unreferenced)
               VALUES (?, ?, 0, 0, 0, 0, 0)
               ON CONFLICT DO UPDATE SET generation = generation RETURNING id""",
            (thread, namespace),
        ).get
        if thread_id in self._made:
            self._facts[ref] = {}
        return Line(ref, thread_id, namespace, family, None)

    def _joined(self, thread_id: str, family: str | None) -> tuple[int, str]:
        """Return the number and family of a thread, which is made if it is missing."""
        thread = self._thread(thread_id)
        if thread is not None:
            return thread
        if family is None:
            new = self._execute("INSERT INTO families (format, sweeps, live) VALUES (?, 0, 0) RETURNING id", (FORMAT,))
            family = str(new.get)
        made: int = self._execute(
            "INSERT INTO threads (name, family) VALUES (?, ?) RETURNING id", (thread_id, int(family))
        ).get
        self._made.add(thread_id)
        self._missing.discard(thread_id)
        self._threads[thread_id] = made, family
        return made, family

    def is_taken_back(self, line: Line) -> bool:
        found = self._execute(
            """SELECT 1 FROM hidden h JOIN lines l ON l.id = h.line JOIN threads t ON t.id = l.thread
               JOIN operations o ON o.seq = h.operation AND o.undone
               WHERE h.line = ? AND h.after = 0 AND h.segment IS NULL AND h.writes_of IS NULL
               AND t.origin IS NOT NULL""",
            (line.ref,),
        ).get
        return found is not None

    def insert(self, line: Line, packed: Packed, segment: int | None, added: int, *, is_head: bool) -> Stored:
        record = packed.record
        seq: int = self._next_seq or self._execute(f"SELECT {next_number('checkpoints')}").get
        segment = segment if segment is not None else seq
        self._insert(seq, line.ref, packed, segment, added)
        self._note(line.ref, new_facts(record, line.head.record if line.head is not None else None))
        if not is_head:  # otherwise it is counted when the head moves
            self._execute("UPDATE lines SET total = total + 1 WHERE id = ?", (line.ref,))
        self._next_seq = seq + 1
        stored = Stored(record, seq, line.family, digest=packed.digest, segment=segment, added_bytes=added)
        if is_head:
            self._remember_head(line.ref, Head(stored, was_moved=False, info=packed.info))
        return stored

    def _insert(self, seq: int, line: int, packed: Packed, segment: int, added: int) -> None:
        """Write the row of a new checkpoint."""
        record = packed.record
        self._execute(
            _INSERT,
            (
                seq, line, pack_id(record.key.checkpoint_id), record.step, segment, added,
                packed.info, record.children, packed.root, seal(seq, line, segment, 0, 0, added),
            ),
        )  # fmt: skip

    def add_segment(self, line: Line, segment: int, follows: Sequence[Place]) -> None:
        self._execute(
            "INSERT INTO segments (family, segment, line, data) VALUES (?, ?, ?, ?)",
            (int(line.family), segment, line.ref, pack_segment(segment, follows)),
        )

    def replace(self, line: Line, old: Stored, packed: Packed) -> Stored:
        record = packed.record
        self._execute(
            "UPDATE checkpoints SET step = ?, info = ?, children = ?, root = ? WHERE seq = ?",
            (record.step, packed.info, record.children, packed.root, old.seq),
        )
        self._note(line.ref, new_facts(record, old.record))
        self._forget_heads()
        return old._replace(record=record, digest=packed.digest)

    def _note(self, line: int, new: Sequence[Fact]) -> None:
        """Keep what a line can be found by."""
        if not new:
            return
        held = self._facts.get(line)
        if held is None:
            held = {}
            for key, label in self._execute("SELECT key, label FROM facts WHERE line = ?", (line,)):
                held.setdefault(key, set()).add(label)
        facts = self._facts[line] = kept(held, new)
        if facts == held:
            return
        before = {(label, line, key) for key, labels in held.items() for label in labels}
        after = {(label, line, key) for key, labels in facts.items() for label in labels}
        gone = before - after
        if gone:
            self._connection.executemany("DELETE FROM facts WHERE label = ? AND line = ? AND key = ?", sorted(gone))
        self._connection.executemany("INSERT INTO facts (label, line, key) VALUES (?, ?, ?)", sorted(after - before))

    def add_objects(self, family: str, objects: Sequence[Object]) -> None:
        if objects:
            number = int(family)
            first: int = self._next_object or self._execute(f"SELECT {next_number('objects', 'id')}").get
            self._connection.executemany(
                "INSERT OR REPLACE INTO objects (id, family, hash, children, body) VALUES (?, ?, ?, ?, ?)",
                [(first + n, number, *obj) for n, obj in enumerate(objects)],
            )
            self._next_object = first + len(objects)

    def set_head(self, line: Line, stored: Stored | None, *, head_was_moved: bool = False) -> None:
        self._execute(
            SET_HEAD,
            (stored.seq if stored is not None else None, head_was_moved, now_micros(), not head_was_moved, line.ref),
        )
        if head_was_moved:  # else it was inserted just now
            self._remember_head(line.ref, Head(stored, was_moved=True))

    def set_origin(self, thread_id: str, origin: Stored) -> None:
        sealed = pack_origin(origin.record.key, thread_id)
        if thread_id not in self._made:
            self._release_origin(thread_id)
        self._execute("UPDATE threads SET began = ?, origin = ? WHERE name = ?", (origin.seq, sealed, thread_id))
        self._execute("UPDATE checkpoints SET branches = branches + 1 WHERE seq = ?", (origin.seq,))

    def _release_origin(self, thread_id: str) -> None:
        """A branch lives no more, or not from there: its beginning is spared for it no longer."""
        self._execute(
            """UPDATE checkpoints SET branches = branches - 1 WHERE seq =
               (SELECT began FROM threads WHERE name = ?)""",
            (thread_id,),
        )

    def set_shared_state(self, thread_id: str, other: str, common: SharedState) -> None:
        pair = [(self._required_thread(name), name) for name in (thread_id, other)]
        (low, one), (high, two) = sorted(pair)
        self._execute(
            "INSERT OR REPLACE INTO shared_states (low, high, seq, data, children) VALUES (?, ?, ?, ?, ?)",
            (low, high, common.place.seq, pack_shared_state(common, one, two), common.root.children),
        )
        if thread_id in self._made or other in self._made:
            return  # it is the first state that the two have in common
        self._execute(
            """DELETE FROM shared_states WHERE low = ?1 AND high = ?2 AND seq NOT IN
               (SELECT seq FROM shared_states WHERE low = ?1 AND high = ?2 ORDER BY seq DESC LIMIT ?3)""",
            (low, high, SHARED_STATES_MAX),
        )

    def set_pinned(self, stored: Stored, pinned: bool) -> None:
        self._execute("UPDATE checkpoints SET pinned = ? WHERE seq = ?", (pinned, stored.seq))
        self._forget_heads()

    def add_operation(self, thread_id: str, operation: Operation) -> int:
        seq: int = self._next_operation or self._execute(f"SELECT {next_number('operations')}").get
        self._execute(
            "INSERT INTO operations (seq, thread, undone, data) SELECT ?, id, ?, ? FROM threads WHERE name = ?",
            (seq, operation.undone, pack_operation(operation, seq), thread_id),
        )
        self._next_operation = seq + 1
        return seq

    def is_undone(self, thread_id: str, seq: int) -> bool | None:
        found = self._execute(
            "SELECT undone FROM operations WHERE seq = ? AND thread = (SELECT id FROM threads WHERE name = ?)",
            (seq, thread_id),
        ).get
        return None if found is None else bool(found)

    def set_operation(self, thread_id: str, operation: Operation) -> None:
        self._execute(
            """UPDATE operations SET undone = ?, data = ?
               WHERE seq = ? AND thread = (SELECT id FROM threads WHERE name = ?)""",
            (operation.undone, pack_operation(operation, operation.seq), operation.seq, thread_id),
        )

    def hide(self, line: Line, hidden: Hidden) -> None:
        self._forget_heads()
        self._execute(INSERT_HIDDEN, hidden_row(line.ref, hidden))

    def show(self, thread_id: str, operation: int) -> list[Hidden]:
        self._forget_heads()
        thread = self._execute("SELECT id FROM threads WHERE name = ?", (thread_id,)).get
        found = self._hidden(thread, operation).get(operation, []) if thread is not None else []
        self._execute(f"DELETE FROM hidden WHERE operation = ? AND line IN ({_LINES_OF_NAME})", (operation, thread_id))
        return found

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None:
        self._put_write(line.ref, checkpoint_id, write)

    def _put_write(self, line: int, checkpoint_id: str, write: Write) -> None:
        place = line, pack_id(checkpoint_id), pack_id(write.task_id), write.idx, self._next_write()
        self._execute(
            _REPLACE_WRITE if write.idx < 0 else _INSERT_WRITE,
            (*place, pack_write(checkpoint_id, write), write.children, seal(*place)),
        )

    def _next_write(self) -> int:
        """Return a number that no write had. They are taken by the hundred, so that most writes change no counter."""
        number = next(self._write_numbers, None)
        if number is None:
            number = int(self._execute(f"SELECT {NEXT_WRITE}").get)
            end = number + _NUMBERS_AT_ONCE
            self._execute("UPDATE counters SET value = ? WHERE name = 'writes'", (end - 1,))
            self._write_numbers = iter(range(number + 1, end))
        return number

    def writes(self, line: Line, checkpoint_id: str) -> list[Write]:
        return self._written(line.ref, checkpoint_id)

    def move_write(self, line: Line, checkpoint_id: str, write: Write, idx: int) -> None:
        self._execute(
            "UPDATE OR REPLACE writes SET idx = ? WHERE line = ? AND checkpoint = ? AND task = ? AND idx = ?",
            (idx, line.ref, pack_id(checkpoint_id), pack_id(write.task_id), write.idx),
        )


def hidden_row(line: int, hidden: Hidden) -> tuple[Any, ...]:
    """Return a stretch as `INSERT_HIDDEN` takes it."""
    return line, hidden.operation, hidden.after, hidden.to, hidden.segment, packed_or_none(hidden.writes_of)
