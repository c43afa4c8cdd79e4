"""What is known about threads: heads, segments, branches, the newest checkpoints, operations."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from everstep.stores.newest import NewestLine, newest
from everstep.stores.postgres.forms import (
    HIDDEN,
    LISTED,
    OF_THREADS,
    OUTLINES,
    STORED_COUNTED_MAX,
    ask_whole,
    check_answer,
    damaged,
    key_of,
    name_bytes,
    to_hidden,
    to_listed,
)
from everstep.stores.postgres.reading import Reading
from everstep.stores.protocol import Hidden, Key, Newest, Operation, Outline, Place, SharedState, Stored, Thread
from everstep.stores.records import unpack_operation, unpack_origin, unpack_segment, unpack_shared_state

_OF_OWN_LINES = "r.line IN (SELECT id FROM {lines} WHERE family = %(f)s AND thread = %(t)s)"


class ReadingThreads(Reading):
    """Reads what is known about threads."""

    def thread(self, thread_id: str, branches: bool, ancestry: bool, brief: bool) -> Thread | None:
        whole = ask_whole(thread_id, stored_max=STORED_COUNTED_MAX)
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
        check_answer(thread_id, checked.fetchall(), whole)
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
            self._segments_where(family, _OF_OWN_LINES, ref) if not brief else {},
            self._segments_where(family, "true") if ancestry else {},
            self._branches(family, thread_id) if branches else (),
            self._shared_states_of(family, ref, thread_id),
            self._protected(family, ref) if not brief else frozenset(),
            float(doomed) / max(live, 1) if doomed else 0.0,
        )

    def _hidden_of(self, family: int, thread: int) -> dict[int, list[Hidden]]:
        hidden: dict[int, list[Hidden]] = {}
        for row in self._all(
            """SELECT l.namespace, h.after, h.upto, h.segment, h.writes_of, h.operation FROM {hidden} h
               JOIN {lines} l ON l.family = h.family AND l.id = h.line WHERE l.family = %s AND l.thread = %s""",
            (family, thread),
        ):
            stretch = to_hidden(row)
            hidden.setdefault(stretch.operation, []).append(stretch)
        return hidden

    def _segments_where(self, family: int, condition: str, thread: int = 0) -> dict[int, tuple[Place, ...]]:
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
                WHERE NOT {HIDDEN} ORDER BY c.segment""",
            (*name_bytes(thread_id, namespace), after),
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
        family: int = row[0]
        which = "t.family = %(f)s"
        if not branches:
            which += " AND t.name = %(t)s"
        values = {"f": family, "t": thread_id.encode()}

        def rows(lines: Sequence[NewestLine], after: int, most: int) -> list[Stored]:
            return self._newest_rows(family, lines, after, most)

        def count(lines: Sequence[NewestLine]) -> int:
            return self._count_visible(family, lines)

        lines = self._newest_lines(which, values)
        return newest(thread_id, limit, without, self._born(which, values), lines, rows, count)

    def _count_visible(self, family: int, lines: Sequence[NewestLine]) -> int:
        total: int = self._one(
            f"""SELECT count(*) FROM {{checkpoints}} c WHERE c.family = %(f)s AND c.line = ANY(%(lines)s)
                AND (NOT {HIDDEN}) IS TRUE""",
            {"f": family, "lines": [line.ref for line in lines]},
        )[0]
        return total

    def _born(self, which: str, values: dict[str, Any]) -> dict[str, list[str]]:
        """Return the branches of threads that a condition chooses, by the thread that each began in."""
        born: dict[str, list[str]] = {}
        for encoded, origin in self._all(f"SELECT t.name, t.origin FROM {{threads}} t WHERE {which}", values):
            if origin is not None:
                name = encoded.decode()
                born.setdefault(unpack_origin(origin, name).thread_id, []).append(name)
        return born

    def _newest_lines(self, which: str, values: dict[str, Any]) -> list[NewestLine]:
        """Return the lines of threads that a condition chooses."""
        lines: list[NewestLine] = []
        for name, namespace, ref, head, last in self._all(
            f"""SELECT t.name, l.namespace, l.id, c.id,
                       (SELECT max(seq) FROM {{checkpoints}} n WHERE n.family = l.family AND n.line = l.id)
                FROM {{threads}} t JOIN {{lines}} l ON l.family = t.family AND l.thread = t.id
                LEFT JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head
                WHERE {which}""",
            values,
        ):
            key = key_of((name, namespace, head)) if head is not None else None
            lines.append(NewestLine(name.decode(), namespace.decode(), key, last or 0, ref=ref))
        return lines

    def _newest_rows(self, family: int, lines: Sequence[NewestLine], after: int, limit: int) -> list[Stored]:
        rows = self._all(
            f"""SELECT {LISTED} FROM (
                    SELECT s.* FROM unnest(%(lines)s::bigint[]) AS u (line)
                    CROSS JOIN LATERAL (
                        SELECT c.family, c.line, c.seq FROM {{checkpoints}} c
                        WHERE c.family = %(f)s AND c.line = u.line AND c.seq > %(after)s AND (NOT {HIDDEN}) IS TRUE
                        ORDER BY c.seq DESC LIMIT %(limit)s) s
                    ORDER BY s.seq DESC LIMIT %(limit)s) s
                JOIN {{checkpoints}} c ON c.family = s.family AND c.line = s.line AND c.seq = s.seq {OF_THREADS}
                ORDER BY c.seq DESC""",
            {"lines": [line.ref for line in lines], "f": family, "after": after, "limit": limit},
        )
        return [to_listed(row) for row in rows]

    def _branches(self, family: int, thread_id: str) -> list[str]:
        return [name for name, origin in self._origins(family).items() if origin.thread_id == thread_id]

    def origins(self, thread_id: str) -> dict[str, Key]:
        whole = ask_whole(thread_id)
        found, checked = self._ask_together(
            [("SELECT family FROM {names} WHERE name = %s", (thread_id.encode(),)), whole]
        )
        check_answer(thread_id, checked.fetchall(), whole)
        row = found.fetchone()
        if row is None:
            return {}
        return self._origins(row[0])

    def _origins(self, family: int) -> dict[str, Key]:
        rows = self._all(
            "SELECT name, origin FROM {threads} WHERE family = %s AND origin IS NOT NULL ORDER BY id", (family,)
        )
        lost = self._one(
            """SELECT l.thread FROM {lines} l WHERE l.family = %s AND NOT EXISTS
               (SELECT 1 FROM {threads} t WHERE t.family = l.family AND t.id = l.thread) LIMIT 1""",
            (family,),
        )
        if lost is not None:
            raise damaged("its row of threads is missing", self._name_of(family, lost[0]))
        found: dict[str, Key] = {}
        for encoded, origin in rows:
            name = encoded.decode()
            found[name] = unpack_origin(origin, name)
        return found

    def _shared_states_of(self, family: int, thread: int, thread_id: str) -> dict[str, list[SharedState]]:
        found: dict[str, list[SharedState]] = {}
        for name, other, data, children in self._all(
            """SELECT t.name, o.other, c.data, c.children FROM {shared_states} c
               CROSS JOIN LATERAL (SELECT CASE WHEN c.low = %(t)s THEN c.high ELSE c.low END AS other) o
               LEFT JOIN {threads} t ON t.family = c.family AND t.id = o.other
               WHERE c.family = %(f)s AND (c.low = %(t)s OR c.high = %(t)s) ORDER BY c.seq""",
            {"f": family, "t": thread},
        ):
            if name is None:
                raise damaged("its row of threads is missing", self._name_of(family, other))
            both = (thread_id, name.decode()) if thread < other else (name.decode(), thread_id)
            found.setdefault(name.decode(), []).append(unpack_shared_state(data, children, *both))
        return found

    def _protected(self, family: int, thread: int) -> frozenset[int]:
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
            (OUTLINES, position),
        )
        found: list[Outline] = []
        for _, name, family, most, has_log, is_swept in rows:
            # A thread that has pending writes only is none of retention's business.
            if most:
                found.append(Outline(name.decode(), str(family), most, has_log, is_swept))
        if len(rows) < OUTLINES:
            return found, None
        return found, position + OUTLINES

    def operations(self, thread_id: str, limit: int | None) -> list[Operation]:
        whole = ask_whole(thread_id)
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
        check_answer(thread_id, checked.fetchall(), whole)
        rows = found.fetchall()
        return [unpack_operation(data, seq, undone) for data, seq, undone in rows]

    def logs(self, thread_ids: Sequence[str], limit: int) -> dict[str, list[Operation]]:
        names = [name.encode() for name in thread_ids]
        _, (_, *bounds) = ask_whole("")
        found, checked = self._ask_together(
            [
                (
                    """SELECT w.place, o.data, o.seq, o.undone
                       FROM unnest(%s::bytea[]) WITH ORDINALITY AS w (name, place)
                       JOIN {names} n ON n.name = w.name
                       CROSS JOIN LATERAL (SELECT o.data, o.seq, o.undone FROM {operations} o
                           WHERE o.family = n.family AND o.thread = n.thread ORDER BY o.seq DESC LIMIT %s) o
                       ORDER BY o.seq DESC""",
                    (names, limit),
                ),
                (
                    """SELECT w.place, x.* FROM unnest(%s::bytea[]) WITH ORDINALITY AS w (name, place)
                       CROSS JOIN LATERAL {whole}(w.name, %s, %s, %s) x""",
                    (names, *bounds),
                ),
            ]
        )
        answers: dict[int, list[Any]] = {}
        for place, *row in checked.fetchall():
            answers.setdefault(place, []).append(row)
        for place, answer in answers.items():
            thread_id = thread_ids[place - 1]
            check_answer(thread_id, answer, ask_whole(thread_id))
        logs: dict[str, list[Operation]] = {thread_id: [] for thread_id in thread_ids}
        for place, data, seq, undone in found.fetchall():
            logs[thread_ids[place - 1]].append(unpack_operation(data, seq, undone))
        return logs
