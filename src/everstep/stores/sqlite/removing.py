"""What a deletion and a sweep do, in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import apsw

from everstep.stores.deletion import Candidate, Deletion, delete, delete_some, doomed_keys, prune
from everstep.stores.protocol import Deleted, Key
from everstep.stores.records import pack_id, unpack_id
from everstep.stores.sqlite.changing import Changing
from everstep.stores.sqlite.forms import HIDDEN
from everstep.stores.transaction import Line
from everstep.values.tree import hashes

_PROTECTED = "(c.pinned OR c.branches OR EXISTS (SELECT 1 FROM lines l WHERE l.id = c.line AND l.head = c.seq))"
_KEEP_COUNTERS = """UPDATE counters SET value = highest.number FROM
                    (SELECT 'checkpoints' AS name, (SELECT max(seq) FROM checkpoints) AS number
                     UNION ALL SELECT 'operations', (SELECT max(seq) FROM operations)
                     UNION ALL SELECT 'objects', (SELECT max(id) FROM objects)) AS highest
                    WHERE counters.name = highest.name AND counters.value < highest.number"""


class Removing(Changing):
    """What `deletion.delete` and a sweep ask for."""

    def prune(self, line: Line, seqs: Sequence[int]) -> None:
        prune(self, line, seqs)

    def delete(self, deletion: Deletion) -> Deleted:
        self.forget()
        self._keep_counters()
        return delete(self, deletion)

    def doomed_keys(self, deletion: Deletion) -> list[Key]:
        return doomed_keys(self, deletion)

    def delete_some(self, deletion: Deletion) -> int:
        self.forget()
        self._keep_counters()
        return delete_some(self, deletion)

    def lines(self, thread_id: str) -> list[Line]:
        rows = self._execute(
            """SELECT l.id, l.namespace, t.family, l.head_was_moved FROM threads t JOIN lines l ON l.thread = t.id
               WHERE t.name = ?""",
            (thread_id,),
        )
        return [
            Line(ref, thread_id, name, str(family), None, bool(head_was_moved))
            for ref, name, family, head_was_moved in rows
        ]

    def candidates(
        self,
        line: Line,
        *,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        before_step: int | None = None,
    ) -> list[Candidate]:
        if ids is not None:
            return self._candidates(line.ref, "c.id = ?2 AND c.line = ?1", [pack_id(name) for name in ids])
        if seqs is not None:
            return self._candidates(line.ref, "c.seq = ?2 AND c.line = ?1", seqs)
        if before_step is not None:
            return self._candidates(line.ref, "c.line = ?1 AND c.step < ?2", [before_step])
        return self._candidates(line.ref, "c.line = ?1 AND ?2", [True])

    def _candidates(self, line: int, condition: str, values: Iterable[Any]) -> list[Candidate]:
        """Return the checkpoints of a line that meet the condition (its value is ?2) for one of the values."""
        text = f"SELECT c.id, c.seq, c.added, {_PROTECTED} FROM checkpoints c WHERE {condition}"
        found: list[Candidate] = []
        for value in values:
            for name, seq, added, is_protected in self._execute(text, (line, value)):
                found.append(Candidate(unpack_id(name), seq, added, bool(is_protected)))
        return found

    def discard(self, line: Line, gone: Sequence[Candidate]) -> None:
        self._connection.executemany("DELETE FROM checkpoints WHERE seq = ?", [(each.seq,) for each in gone])
        freed = sum(each.added_bytes for each in gone)
        self._execute("UPDATE lines SET unreferenced = unreferenced + ? WHERE id = ?", (freed, line.ref))

    def discard_all(self, line: Line) -> int:
        own = (line.ref,)
        count, freed = self._execute(
            "SELECT count(*), coalesce(sum(added), 0) FROM checkpoints WHERE line = ?", own
        ).get
        self._execute("DELETE FROM checkpoints WHERE line = ?", own)
        self._execute("UPDATE lines SET unreferenced = unreferenced + ? WHERE id = ?", (freed, line.ref))
        self._execute("DELETE FROM writes WHERE line = ?", own)
        return int(count)

    def written(self, line: Line) -> list[str]:
        rows = self._execute("SELECT DISTINCT checkpoint FROM writes WHERE line = ?", (line.ref,))
        return [unpack_id(name) for (name,) in rows]

    def discard_writes(self, line: Line, ids: Collection[str]) -> None:
        rows = [(line.ref, pack_id(name)) for name in ids]
        self._connection.executemany("DELETE FROM writes WHERE line = ? AND checkpoint = ?", rows)

    def fall_back(self, line: Line) -> None:
        self._execute(
            f"""UPDATE lines AS l SET generation = generation + 1, head_was_moved = 1, head =
                (SELECT max(c.seq) FROM checkpoints c WHERE c.line = ?1 AND NOT {HIDDEN})
                WHERE l.id = ?1 AND l.head IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.seq = l.head)""",
            (line.ref,),
        )

    def drop_idle_stretches(self, line: Line) -> None:
        self._execute(
            """DELETE FROM hidden AS h WHERE line = ? AND CASE WHEN writes_of IS NULL
               THEN NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.line = h.line AND c.seq > h.after
                                AND c.seq <= h.upto AND (h.segment IS NULL OR h.segment = c.segment))
               ELSE NOT EXISTS (SELECT 1 FROM writes w WHERE w.line = h.line AND w.checkpoint = h.writes_of) END""",
            (line.ref,),
        )

    def is_empty(self, line: Line) -> bool:
        empty = self._execute(
            """SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM checkpoints WHERE line = ?1)
               AND NOT EXISTS (SELECT 1 FROM writes WHERE line = ?1)""",
            (line.ref,),
        ).get
        return empty is not None

    def drop_line(self, line: Line) -> None:
        self._execute("UPDATE segments SET line = NULL WHERE line = ?", (line.ref,))
        # What is left of the thread was active when this was, and its garbage is the family's.
        self._execute(
            """UPDATE lines SET active = max(active, (SELECT active FROM lines WHERE id = ?1)) ,
                      unreferenced = unreferenced + (SELECT unreferenced FROM lines WHERE id = ?1)
               WHERE id = (SELECT min(o.id) FROM lines l JOIN lines o ON o.thread = l.thread AND o.id <> l.id
                           WHERE l.id = ?1)""",
            (line.ref,),
        )
        self._execute("DELETE FROM lines WHERE id = ?", (line.ref,))

    def drop_operations(self, thread_id: str, seqs: Collection[int]) -> None:
        for seq in seqs:
            self._execute(
                "DELETE FROM operations WHERE seq = ? AND thread = (SELECT id FROM threads WHERE name = ?)",
                (seq, thread_id),
            )

    def drop_thread(self, thread_id: str) -> None:
        thread = self._execute("SELECT id FROM threads WHERE name = ?", (thread_id,)).get
        self._execute("DELETE FROM operations WHERE thread = ?", (thread,))
        self._execute("DELETE FROM shared_states WHERE low = ?1 OR high = ?1", (thread,))
        self._release_origin(thread_id)
        self._execute("DELETE FROM threads WHERE id = ?", (thread,))
        self._threads.pop(thread_id, None)
        self._made.discard(thread_id)

    def drop_family(self, family: str) -> bool:
        number = int(family)
        if self._execute("SELECT 1 FROM threads WHERE family = ?", (number,)).get is not None:
            return False
        self._execute("DELETE FROM objects WHERE family = ?", (number,))
        self._execute("DELETE FROM segments WHERE family = ?", (number,))
        self._execute("DELETE FROM families WHERE id = ?", (number,))
        return True

    def _keep_counters(self) -> None:
        """Remember the highest numbers before rows go, so that none is given twice."""
        self._execute(_KEEP_COUNTERS)

    # -- sweeping: see `sweeping`

    def sweep_begin(self, family: str, ticket: int) -> None:
        self._execute("UPDATE families SET swept = ? WHERE id = ?", (ticket, int(family)))

    def sweep_start(self, family: str, without: Collection[Key] | None) -> tuple[int, int, int, list[bytes]] | None:
        """Return the family's count of sweeps, its doomed bytes, the youngest object, and the hashes in its roots."""
        number = int(family)
        sweeps = self._execute("SELECT sweeps FROM families WHERE id = ?", (number,)).get
        if sweeps is None:
            return None
        doomed = self._execute(
            "SELECT sum(l.unreferenced) FROM lines l JOIN threads t ON t.id = l.thread WHERE t.family = ?", (number,)
        ).get
        youngest = self._execute("SELECT max(id) FROM objects").get
        roots = {key for root in self._roots(number, set(without or ())) for key in hashes(root)}
        return sweeps, doomed or 0, youngest or 0, list(roots)

    def _roots(self, family: int, without: Collection[Key]) -> Iterator[bytes]:
        lines = "SELECT l.id FROM lines l JOIN threads t ON t.id = l.thread WHERE t.family = ?1"
        names = f"""SELECT t.name, l.namespace, c.id, c.children FROM checkpoints c JOIN lines l ON l.id = c.line
                    JOIN threads t ON t.id = l.thread WHERE c.line IN ({lines})"""
        if without:
            for thread_id, namespace, name, children in self._execute(names, (family,)):
                if Key(thread_id, namespace, unpack_id(name)) not in without:
                    yield children
        else:
            rows = self._execute(f"SELECT children FROM checkpoints WHERE line IN ({lines})", (family,))
            yield from (children for (children,) in rows)
        rows = self._execute(
            f"""SELECT children FROM writes WHERE line IN ({lines})
                UNION ALL SELECT c.children FROM shared_states c JOIN threads t ON t.id = c.low WHERE t.family = ?1""",
            (family,),
        )
        yield from (children for (children,) in rows)

    def links(self, family: str, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]:
        """Return (hash, children, size) of these objects."""
        found: list[tuple[bytes, bytes, int]] = self._execute(
            """SELECT o.hash, o.children, length(o.children) + length(o.body) FROM carray(?) k CROSS JOIN objects o
               ON o.family = ? AND o.hash = k.value""",
            (apsw.carray(tuple(wanted)), int(family)),
        ).fetchall()
        return found

    def objects_after(self, family: str, last: bytes, limit: int) -> tuple[list[tuple[bytes, int, int]], bytes | None]:
        """Return (hash, rowid, size) of the family's next objects in the order of their hashes, and the last hash."""
        found: list[tuple[bytes, int, int]] = self._execute(
            """SELECT hash, id, length(children) + length(body) FROM objects WHERE family = ? AND hash > ?
               ORDER BY hash LIMIT ?""",
            (int(family), last, limit),
        ).fetchall()
        return found, found[-1][0] if len(found) == limit else None

    def remove_objects(self, family: str, doomed: Sequence[tuple[bytes, int]], expected_sweeps: int) -> int | None:
        """Delete objects by (hash, rowid) and return the new count of sweeps; None if another sweep came first."""
        sweeps: int | None = self._execute(
            "UPDATE families SET sweeps = sweeps + 1 WHERE id = ? AND sweeps = ? RETURNING sweeps",
            (int(family), expected_sweeps),
        ).get
        if sweeps is not None:
            self._keep_counters()
            self._connection.executemany("DELETE FROM objects WHERE id = ?", [(rowid,) for _, rowid in doomed])
        return sweeps

    def sweep_end(self, family: str, live_bytes: int, unreferenced_bytes: int, ticket: int) -> None:
        """Note what a sweep found in use, and take off what was doomed when it began."""
        self._execute("UPDATE families SET live = ? WHERE id = ?", (live_bytes, int(family)))
        self._execute("UPDATE families SET swept = 2 WHERE id = ? AND swept = ?", (int(family), ticket))
        lines = self._execute(
            """SELECT l.id, l.unreferenced FROM lines l JOIN threads t ON t.id = l.thread
               WHERE t.family = ? AND l.unreferenced > 0""",
            (int(family),),
        ).fetchall()
        for line, doomed in lines:
            taken = min(doomed, unreferenced_bytes)
            unreferenced_bytes -= taken
            self._execute("UPDATE lines SET unreferenced = unreferenced - ? WHERE id = ?", (taken, line))

    def shrink(self, pages_max: int) -> bool:
        """Give some free pages back to the file system; return whether more are left to give."""
        free: int = self._connection.pragma("freelist_count")
        pages: int = self._connection.pragma("page_count")
        # A little room is kept: the next snapshots will need it.
        if free <= max(16, pages // 20):
            return False
        # Frees a page per step.
        self._execute(f"PRAGMA incremental_vacuum({min(free, pages_max)})").fetchall()
        return free > pages_max
