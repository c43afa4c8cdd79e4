"""The Removal that `deletion.delete` works on, in SQL, and sweeps."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Any

from everstep.errors import CheckpointCorrupted
from everstep.stores.deletion import Candidate, Deletion, delete, discard_each, prune
from everstep.stores.postgres.changing import Changing
from everstep.stores.postgres.forms import HIDDEN, MARKS_MAX, NUMBER, deletion_mark, key_of, packed_id, unpacked_id
from everstep.stores.protocol import Deleted, Key
from everstep.stores.transaction import Line
from everstep.values.tree import FORMAT, hashes

_MARKS_TRIMMED_EVERY = 1000  # deletions, about: it takes a look at all marks
_PROTECTED = """(c.pinned OR c.branches > 0
             OR EXISTS (SELECT 1 FROM {lines} l WHERE l.family = c.family AND l.id = c.line AND l.head = c.seq))"""


class Removing(Changing):
    """Deletes rows."""

    def delete(self, deletion: Deletion) -> Deleted:
        thread_id = deletion.thread_id
        if deletion.is_whole:
            # Whatever is wrong with a thread, it can be deleted.
            self._make_deletable(thread_id)
        # Locked first: whoever is about to write to the thread waits, and finds it as it is then.
        if self._one("SELECT 1 FROM {names} WHERE name = %s FOR UPDATE", (thread_id.encode(),)) is None:
            self.check_whole(thread_id)
        return delete(self, deletion)

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
            # Of namespaces whose own row is lost.
            for table in ("{checkpoints}", "{writes}", "{hidden}"):
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
            f"""SELECT c.id, c.seq, c.added, {_PROTECTED} FROM {{checkpoints}} c
                WHERE c.family = %s AND c.line = %s AND {condition} FOR UPDATE OF c""",
            (*line.ref, *values),
        )
        return [Candidate(name.decode(), seq, added, is_protected) for name, seq, added, is_protected in rows]

    def prune(self, line: Line, seqs: Sequence[int]) -> None:
        prune(self, line, seqs)

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
                (SELECT max(c.seq) FROM {{checkpoints}} c WHERE c.family = l.family AND c.line = l.id AND NOT {HIDDEN})
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
        # Before its rows go: the mark gets a number that is greater than all of theirs.
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
        # Lines too: a thread that has lost its own row is not to lose its objects.
        left = self._one(
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
                SELECT %s, coalesce((SELECT {NUMBER} FROM {{families}} f WHERE f.id = %s), nextval('{{numbers}}'))
                ON CONFLICT (name) DO UPDATE SET seq = greatest(g.seq, excluded.seq)""",
            (deletion_mark(thread_id), family),
        )
        # By chance, so that nobody has to count; about so many more marks than wanted do no harm.
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

    def sweep_start(self, family: str, without: Collection[Key] | None) -> tuple[int, int, int, list[bytes]] | None:
        """Return the family's count of sweeps, its doomed bytes, the youngest object, and the hashes in its roots."""
        number = int(family)
        # Everything with a smaller number is committed, and what needs it can be seen from now on. Who pretends goes
        # without a number of its own, since to draw one is a change.
        latest = "nextval('{numbers}')"
        if without is not None:
            latest = "(SELECT coalesce(max(id), 0) FROM {objects} WHERE family = %s)"
        youngest = self._one(
            f"WITH alone AS MATERIALIZED (SELECT {{alone}}(%s)) SELECT {latest} FROM alone",
            (number, number) if without is not None else (number,),
        )[0]
        row = self._one("SELECT sweeps FROM {families} WHERE id = %s", (number,))
        if row is None:
            return None
        doomed = self._one("SELECT sum(unreferenced) FROM {lines} WHERE family = %s", (number,))[0]
        gone = set(without or ())
        rows = self._all(
            """SELECT t.name, l.namespace, c.id, c.children FROM {checkpoints} c
                LEFT JOIN {lines} l ON l.family = c.family AND l.id = c.line
                LEFT JOIN {threads} t ON t.family = l.family AND t.id = l.thread WHERE c.family = %s""",
            (number,),
        )
        roots: list[bytes] = []
        for *place, children in rows:
            # What a damaged thread refers to is kept: it may be mended.
            if not gone or None in place or key_of(place) not in gone:
                roots.append(children)
        for table in ("{writes}", "{shared_states}"):
            roots += [row[0] for row in self._all(f"SELECT children FROM {table} WHERE family = %s", (number,))]
        wanted: set[bytes] = set()
        for root in roots:
            wanted.update(hashes(root))
        return row[0], int(doomed or 0), youngest, list(wanted)

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

    def sweep_end(self, family: str, live_bytes: int, unreferenced_bytes: int, ticket: int) -> None:
        """Note what a sweep found in use, and take off what was doomed when it began."""
        for line, doomed in self._all(
            "SELECT id, unreferenced FROM {lines} WHERE family = %s AND unreferenced > 0 ORDER BY id FOR UPDATE",
            (int(family),),
        ):
            taken = min(doomed, unreferenced_bytes)
            unreferenced_bytes -= taken
            self._do(
                "UPDATE {lines} SET unreferenced = unreferenced - %s WHERE family = %s AND id = %s",
                (taken, int(family), line),
            )
        # After the lines, as everybody locks them who lets something go.
        self._do(
            "UPDATE {families} SET live = %s, swept = CASE WHEN swept = %s THEN 2 ELSE swept END WHERE id = %s",
            (live_bytes, ticket, int(family)),
        )
