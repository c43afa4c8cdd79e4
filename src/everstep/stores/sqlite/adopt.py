"""SQL for histories that come from another store, or go to one: see `adoption.adopt`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from everstep.stores.facts import new_facts
from everstep.stores.protocol import Hidden, Key, Place, RawLine, RawThread, SharedState, Stored, Write
from everstep.stores.records import (
    pack_id,
    pack_operation,
    pack_origin,
    pack_segment,
    pack_write,
    unpack_id,
    unpack_origin,
    unpack_write,
)
from everstep.stores.sqlite.changing import INSERT_HIDDEN, hidden_row
from everstep.stores.sqlite.forms import NEXT_WRITE, STALE, check_head, check_newest, next_number, packed_or_none
from everstep.stores.sqlite.removing import Removing
from everstep.stores.transaction import Packed


class Adopting(Removing):
    """Whole threads, as they are."""

    def raw(self, thread_id: str, family_threads: bool) -> RawThread | None:
        row = self._execute("SELECT id, family, origin, began, note FROM threads WHERE name = ?", (thread_id,)).get
        if row is None:
            return None
        ref, family, origin, began, note = row
        self._check_has_lines(thread_id)
        began = self._execute("SELECT seq FROM checkpoints WHERE seq = ?", (began,)).get
        identity = self._execute("SELECT value FROM counters WHERE name = 'identity'").get
        hidden: list[Hidden] = []
        for stretches in self._hidden(ref).values():
            hidden += stretches
        return RawThread(
            thread_id,
            str(family),
            b"%d/%d" % (identity, family),
            self._raw_lines(ref, family, thread_id),
            unpack_origin(origin, thread_id) if origin is not None else None,
            began or 0,
            self._pinned(ref),
            hidden,
            self.operations(thread_id, -1)[::-1],
            self._raw_writes(ref, thread_id),
            self._shared_states_of(ref, thread_id),
            note or b"",
            self._family_threads(family) if family_threads else [],
        )

    def _raw_lines(self, thread: int, family: int, thread_id: str) -> dict[str, RawLine]:
        owned: dict[int, set[int]] = {}
        for segment, line in self._execute(
            "SELECT segment, line FROM segments WHERE family = ? AND line IS NOT NULL", (family,)
        ):
            owned.setdefault(line, set()).add(segment)
        lines: dict[str, RawLine] = {}
        for line, namespace, *state in self._execute(
            f"""SELECT l.id, l.namespace, l.head, {STALE}, c.id, l.head_was_moved, l.generation, l.active,
                       coalesce((SELECT max(seq) FROM checkpoints WHERE line = l.id), 0)
                FROM lines l JOIN threads t ON t.id = l.thread
                LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id WHERE l.thread = ?""",
            (thread,),
        ):
            head_seq, is_stale, head, head_was_moved, generation, active, newest = state
            check_head(thread_id, head_seq, head, is_stale)
            check_newest(thread_id, head_seq, newest)
            head_id = unpack_id(head) if head is not None else None
            segments = frozenset(owned.get(line, ()))
            lines[namespace] = RawLine(head_id, bool(head_was_moved), generation, active, segments, newest)
        return lines

    def _raw_writes(self, thread: int, thread_id: str) -> list[tuple[Key, Write]]:
        """Return all pending writes of a thread, in the order in which they came."""
        found: list[tuple[Key, Write]] = []
        for namespace, checkpoint, task, seq, *write in self._execute(
            """SELECT l.namespace, w.checkpoint, w.task, w.seq, w.idx, w.info, w.children
               FROM lines l JOIN writes w ON w.line = l.id WHERE l.thread = ?""",
            (thread,),
        ):
            name = unpack_id(checkpoint)
            found.append((Key(thread_id, namespace, name), unpack_write(name, seq, unpack_id(task), *write)))
        return sorted(found, key=lambda each: each[1].seq)

    def _family_threads(self, family: int) -> list[str]:
        rows = self._execute("SELECT name FROM threads WHERE family = ? ORDER BY id", (family,))
        return [name for (name,) in rows]

    def _pinned(self, thread: int) -> frozenset[int]:
        rows = self._execute(
            """SELECT c.seq FROM lines l JOIN checkpoints c ON c.line = l.id AND (c.pinned OR c.branches)
               WHERE l.thread = ? AND c.pinned""",
            (thread,),
        )
        return frozenset(seq for (seq,) in rows)

    def join(self, thread_id: str, family: str | None) -> str:
        is_new = self.family(thread_id) is None
        thread, family = self._joined(thread_id, family)
        if is_new:  # a note, though an empty one, says where it comes from: see `STALE`
            self._execute("UPDATE threads SET note = x'' WHERE id = ?", (thread,))
        # What comes from another store brings objects before there is anybody who needs them.
        self._execute("UPDATE families SET swept = 0 WHERE id = ? AND swept", (int(family),))
        return family

    def reserve(self, family: str, count: int) -> int:  # noqa: ARG002  # all families are numbered together
        self.forget()
        numbers = (next_number("checkpoints"), next_number("operations"), NEXT_WRITE)
        highest: int = self._execute(f"SELECT max({', '.join(numbers)}) - 1").get
        self._execute(
            "UPDATE counters SET value = ? WHERE name IN ('checkpoints', 'operations', 'writes')", (highest + count,)
        )
        return highest

    def set_note(self, thread_id: str, note: bytes) -> None:
        self._execute("UPDATE threads SET note = ? WHERE name = ?", (note, thread_id))

    def remove(self, keys: Sequence[Key]) -> None:
        self.forget()
        for key in keys:
            line = self._line(key.thread_id, key.namespace)
            if line is not None:
                self._remove(line[0], "id = ?", pack_id(key.checkpoint_id))

    def _remove(self, line: int, condition: str, value: object) -> None:
        """Delete checkpoints of a line, and nothing else."""
        self._keep_counters()
        freed = self._execute(f"SELECT sum(added) FROM checkpoints WHERE line = ? AND {condition}", (line, value)).get
        if freed is not None:
            self._execute(f"DELETE FROM checkpoints WHERE line = ? AND {condition}", (line, value))
            self._execute("UPDATE lines SET unreferenced = unreferenced + ? WHERE id = ?", (freed, line))

    def keep(self, family: str, checkpoints: Sequence[tuple[Stored, Packed]]) -> None:
        self.forget()
        began = Counter(
            seq for (seq,) in self._execute("SELECT began FROM threads WHERE family = ?", (int(family),)).fetchall()
        )
        lines: dict[tuple[str, str], int] = {}
        for stored, packed in checkpoints:
            record = stored.record
            thread_id, namespace, checkpoint_id = record.key
            name = pack_id(checkpoint_id)
            if (thread_id, namespace) not in lines:
                lines[thread_id, namespace] = self.create(thread_id, namespace, family).ref
            line = lines[thread_id, namespace]
            pinned, old = self._execute(
                "SELECT pinned, seq FROM checkpoints WHERE id = ? AND line = ?", (name, line)
            ).get or (False, None)
            if old is not None:
                self._execute("DELETE FROM checkpoints WHERE seq = ?", (old,))
            self._execute(
                """INSERT INTO checkpoints
                   (seq, line, id, step, segment, pinned, branches, added, info, children, root, seal) VALUES
                   (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, seal(?1, ?2, ?5, ?6, ?7, ?8))""",
                (
                    stored.seq, line, name, record.step, stored.segment, pinned, began[stored.seq], stored.added_bytes,
                    packed.info, record.children, packed.root,
                ),
            )  # fmt: skip
            self._execute("UPDATE lines SET total = total + 1 WHERE id = ?", (line,))
            self._note(line, new_facts(record, None))

    def keep_segments(self, family: str, segments: Mapping[int, Sequence[Place]]) -> None:
        self._connection.executemany(
            """INSERT INTO segments (family, segment, data) VALUES (?, ?, ?)
               ON CONFLICT DO UPDATE SET data = excluded.data""",
            [(int(family), segment, pack_segment(segment, follows)) for segment, follows in segments.items()],
        )

    def restore(self, raw: RawThread) -> None:
        self.forget()
        thread, family = self._joined(raw.thread_id, None)
        lines = {}
        for namespace, given in raw.lines.items():
            line = lines[namespace] = self.create(raw.thread_id, namespace, None).ref
            self._execute(
                """UPDATE lines SET head = (SELECT seq FROM checkpoints WHERE id = ? AND line = lines.id),
                          head_was_moved = ?, generation = ?, active = ? WHERE id = ?""",
                (packed_or_none(given.head), given.head_was_moved, given.generation, given.active, line),
            )
        self._restore_lines(thread, int(family), raw, lines)
        self._execute("DELETE FROM operations WHERE thread = ?", (thread,))
        self._connection.executemany(
            "INSERT INTO operations (seq, thread, undone, data) VALUES (?, ?, ?, ?)",
            [(o.seq, thread, o.undone, pack_operation(o, o.seq)) for o in raw.operations],
        )
        self._release_origin(raw.thread_id)
        origin = pack_origin(raw.origin, raw.thread_id) if raw.origin is not None else None
        self._execute(
            "UPDATE threads SET began = ?, origin = ?, note = ? WHERE id = ?",
            (raw.began or None, origin, raw.note, thread),
        )
        self._execute("UPDATE checkpoints SET branches = branches + 1 WHERE seq = ?", (raw.began,))
        for other, shared_states in raw.shared_states.items():
            if self.family(other) == family:
                self._restore_shared_states(raw.thread_id, other, shared_states)

    def _restore_lines(self, thread: int, family: int, raw: RawThread, lines: Mapping[str, int]) -> None:
        """Set what hangs on the namespaces of a thread, and remove those it does not have."""
        self._clear_lines(thread, family, lines)
        owners: list[tuple[int, int, int]] = []
        for namespace, given in raw.lines.items():
            for segment in given.segments:
                owners.append((lines[namespace], family, segment))
        hidden: list[tuple[Any, ...]] = []
        for stretch in raw.hidden:
            if stretch.namespace in lines:
                hidden.append(hidden_row(lines[stretch.namespace], stretch))
        writes: list[tuple[Any, ...]] = []
        for key, write in raw.writes:
            writes.append(_write_row(lines[key.namespace], key.checkpoint_id, write))
        many = self._connection.executemany
        many("UPDATE segments SET line = ? WHERE family = ? AND segment = ?", owners)
        many(
            "UPDATE checkpoints SET pinned = 1 WHERE seq = ? AND line IN (SELECT id FROM lines WHERE thread = ?)",
            [(seq, thread) for seq in raw.pinned],
        )
        many(INSERT_HIDDEN, hidden)
        many(
            """INSERT INTO writes (line, checkpoint, task, idx, seq, info, children, seal)
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, seal(?1, ?2, ?3, ?4, ?5))""",
            writes,
        )
        highest = max([write.seq for _, write in raw.writes], default=0)
        self._execute("UPDATE counters SET value = ?1 WHERE name = 'writes' AND value < ?1", (highest,))

    def _clear_lines(self, thread: int, family: int, lines: Collection[str]) -> None:
        """Remove what hangs on the namespaces of a thread, and those that are not among these."""
        own = "SELECT id FROM lines WHERE thread = ?"
        self._execute(f"UPDATE segments SET line = NULL WHERE family = ? AND line IN ({own})", (family, thread))
        for table in ("writes", "covers", "hidden"):
            self._execute(f"DELETE FROM {table} WHERE line IN ({own})", (thread,))
        self._execute(
            f"UPDATE checkpoints SET pinned = 0 WHERE line IN ({own}) AND (pinned OR branches) AND pinned", (thread,)
        )
        for line, namespace in self._execute("SELECT id, namespace FROM lines WHERE thread = ?", (thread,)).fetchall():
            if namespace not in lines:
                self._remove(line, "?", True)
                self._execute("DELETE FROM lines WHERE id = ?", (line,))

    def _restore_shared_states(self, thread_id: str, other: str, shared_states: Sequence[SharedState]) -> None:
        low, high = (
            row[0]
            for row in self._execute("SELECT id FROM threads WHERE name IN (?, ?) ORDER BY id", (thread_id, other))
        )
        self._execute("DELETE FROM shared_states WHERE low = ? AND high = ?", (low, high))
        for common in shared_states:
            self.set_shared_state(thread_id, other, common)


def _write_row(line: int, checkpoint_id: str, write: Write) -> tuple[Any, ...]:
    """Return a write that keeps its number, but for its seal."""
    place = line, pack_id(checkpoint_id), pack_id(write.task_id), write.idx, write.seq
    return *place, pack_write(checkpoint_id, write), write.children
