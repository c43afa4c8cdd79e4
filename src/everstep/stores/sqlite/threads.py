"""What is known about threads: heads, segments, what is hidden, branches, what came newest."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import apsw

from everstep.stores.abilities import Origin
from everstep.stores.newest import NewestLine, newest, visible
from everstep.stores.protocol import Hidden, Key, Newest, Operation, Outline, Place, Query, SharedState, Stored, Thread
from everstep.stores.records import (
    pack_id,
    unpack_id,
    unpack_operation,
    unpack_origin,
    unpack_segment,
    unpack_shared_state,
)
from everstep.stores.sqlite.forms import COLUMNS, COVERED, STALE, check_head, check_newest, to_listed
from everstep.stores.sqlite.listing import Listing

_OUTLINES = 10_000  # threads at once
# A checkpoint, whether anything of its line is hidden, and the newest entry of its thread's log.
_ORIGIN = f"""SELECT t.name, l.namespace, t.family, EXISTS (SELECT 1 FROM covers v WHERE v.line = l.id),
                     o.seq, o.undone, o.data, {COLUMNS}
              FROM checkpoints c JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread
              LEFT JOIN operations o ON o.seq = (SELECT max(p.seq) FROM operations p WHERE p.thread = t.id)
              WHERE c.id = ? LIMIT 2"""
_NUMBER_MAX = (1 << 63) - 1


class _Which(NamedTuple):
    """Which threads are asked for."""

    condition: str
    value: str


class ReadingThreads(Listing):
    """Threads and families."""

    def thread(self, thread_id: str, branches: bool, ancestry: bool, brief: bool) -> Thread | None:
        row = self._execute("SELECT id, family, origin FROM threads WHERE name = ?", (thread_id,)).get
        if row is None:
            return None
        ref, family, origin = row
        self._check_has_lines(thread_id)
        heads, newest = self._heads_and_newest(ref, thread_id)
        return Thread(
            thread_id,
            str(family),
            unpack_origin(origin, thread_id) if origin is not None else None,
            heads,
            newest,
            self._hidden(ref) if not brief else {},
            self._segments_where("r.line IN (SELECT id FROM lines WHERE thread = ?)", (ref,)) if not brief else {},
            self._segments_where("r.family = ?", (family,)) if ancestry else {},
            self._branches(family, thread_id) if branches else (),
            self._shared_states_of(ref, thread_id),
            self._protected(ref) if not brief else frozenset(),
            self._garbage(family),
        )

    def _heads_and_newest(self, thread: int, thread_id: str) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
        """Return, by namespace, the head with its generation, and the number of the newest checkpoint."""
        heads: dict[str, tuple[str, int]] = {}
        newest: dict[str, int] = {}
        for line, namespace, generation, seq, head, is_stale in self._execute(
            f"""SELECT l.id, l.namespace, l.generation, l.head, c.id, {STALE} FROM lines l
                JOIN threads t ON t.id = l.thread LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id
                WHERE l.thread = ?""",
            (thread,),
        ).fetchall():
            check_head(thread_id, seq, head, is_stale)
            last = self._execute("SELECT max(seq) FROM checkpoints WHERE line = ?", (line,)).get
            check_newest(thread_id, seq, last)
            if last is not None:
                newest[namespace] = last
            if head is not None:
                heads[namespace] = unpack_id(head), generation
        return heads, newest

    def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        line = self._line(thread_id, namespace)
        if line is None:
            return []
        found: list[int] = []
        query = Query(thread_id=thread_id, namespace=namespace, after_seq=after)
        for low, high in self._gaps_up(query, line[0]):
            rows = self._execute(
                f"""SELECT c.segment FROM (SELECT segment, segment AS seq, line FROM segments
                                           WHERE line = ? AND segment > ? AND segment < ?) c
                    WHERE NOT {COVERED.format("c.segment")} ORDER BY c.segment""",
                (line[0], low, high if high is not None else _NUMBER_MAX),
            )
            found += [segment for (segment,) in rows]
        return found

    def segments(self, family: str, segments: Collection[int], older: int) -> dict[int, tuple[Place, ...]]:
        if not segments:
            return {}
        number = int(family)
        found = self._segments_where(
            "r.family = ? AND r.segment IN (SELECT value FROM carray(?))", (number, apsw.carray(array("q", segments)))
        )
        if older:
            found |= self._segments_where(
                "r.family = ? AND r.segment < ? ORDER BY r.segment DESC LIMIT ?", (number, max(segments), older)
            )
        return found

    def newest(self, thread_id: str, limit: int, branches: bool, without: str | None) -> Newest | None:
        family = self.family(thread_id)
        if family is None:
            return None
        which = _Which("t.family = ?1", family) if branches else _Which("t.name = ?1", thread_id)
        lines = self._newest_lines(which)
        return newest(
            thread_id, limit, without, self._born(which), lines, self._newest_rows, partial(visible, self.count)
        )

    def _born(self, which: _Which) -> dict[str, list[str]]:
        """Return, by thread, the branches that began there."""
        born: dict[str, list[str]] = {}
        for name, origin in self._execute(
            f"SELECT t.name, t.origin FROM threads t WHERE {which.condition}", (which.value,)
        ):
            if origin is not None:
                born.setdefault(unpack_origin(origin, name).thread_id, []).append(name)
        return born

    def _newest_lines(self, which: _Which) -> list[NewestLine]:
        """Return the lines of some threads."""
        lines: list[NewestLine] = []
        for name, namespace, total, head, last, is_hiding in self._execute(
            f"""SELECT t.name, l.namespace, l.total, c.id, (SELECT max(seq) FROM checkpoints WHERE line = l.id),
                       EXISTS (SELECT 1 FROM hidden h WHERE h.line = l.id)
                FROM threads t JOIN lines l ON l.thread = t.id LEFT JOIN checkpoints c ON c.seq = l.head
                WHERE {which.condition}""",
            (which.value,),
        ):
            key = Key(name, namespace, unpack_id(head)) if head is not None else None
            lines.append(NewestLine(name, namespace, key, last or 0, total, bool(is_hiding)))
        return lines

    def _newest_rows(self, lines: Sequence[NewestLine], after: int, limit: int) -> list[Stored]:
        pages = [self._newest_of_line(line, after, limit) for line in lines]
        return list(islice(heapq.merge(*pages, key=lambda stored: stored.seq, reverse=True), limit))

    def _newest_of_line(self, line: NewestLine, after: int, limit: int) -> Iterator[Stored]:
        query = Query(thread_id=line.thread_id, namespace=line.namespace, after_seq=after, limit=limit)
        for row in self._rows(query, [None]):
            yield to_listed(row)

    def _branches(self, family: int, thread_id: str) -> list[str]:
        return [name for name, origin in self._origins(family).items() if origin.thread_id == thread_id]

    def origins(self, thread_id: str) -> dict[str, Key]:
        family = self._execute("SELECT family FROM threads WHERE name = ?", (thread_id,)).get
        return self._origins(family)

    def _origins(self, family: int | None) -> dict[str, Key]:
        rows = self._execute(
            "SELECT name, origin FROM threads WHERE family = ? AND origin IS NOT NULL ORDER BY id", (family,)
        )
        return {name: unpack_origin(origin, name) for name, origin in rows}

    def _hidden(self, thread: int, operation: int | None = None) -> dict[int, list[Hidden]]:
        hidden: dict[int, list[Hidden]] = {}
        for stretch in self._execute(
            """SELECT l.namespace, h.after, h.upto, h.segment, h.writes_of, h.operation FROM hidden h
               JOIN lines l ON l.id = h.line WHERE l.thread = ?1 AND (?2 IS NULL OR h.operation = ?2)""",
            (thread, operation),
        ):
            found = Hidden(*stretch)
            if found.writes_of is not None:
                found = found._replace(writes_of=unpack_id(found.writes_of))
            hidden.setdefault(found.operation, []).append(found)
        return hidden

    def _segments_where(self, condition: str, values: tuple[Any, ...]) -> dict[int, tuple[Place, ...]]:
        rows = self._execute(f"SELECT r.segment, r.data FROM segments r WHERE {condition}", values)
        return {segment: unpack_segment(segment, data) for segment, data in rows}

    def _shared_states_of(self, thread: int, thread_id: str) -> dict[str, list[SharedState]]:
        rows = self._execute(
            """SELECT t.name, t.id, c.data, c.children FROM shared_states c JOIN threads t
               ON t.id = CASE WHEN c.low = ?1 THEN c.high ELSE c.low END WHERE c.low = ?1 OR c.high = ?1
               ORDER BY c.seq""",
            (thread,),
        )
        found: dict[str, list[SharedState]] = {}
        for name, other, data, children in rows:
            names = (thread_id, name) if thread < other else (name, thread_id)
            found.setdefault(name, []).append(unpack_shared_state(data, children, *names))
        return found

    def _protected(self, thread: int) -> frozenset[int]:
        rows = self._execute(
            """SELECT c.seq FROM lines l JOIN checkpoints c ON c.line = l.id AND (c.pinned OR c.branches)
               WHERE l.thread = ?""",
            (thread,),
        )
        return frozenset(seq for (seq,) in rows)

    def _garbage(self, family: int) -> float:
        live, doomed = self._execute(
            """SELECT f.live, (SELECT sum(l.unreferenced) FROM threads t JOIN lines l ON l.thread = t.id
                               WHERE t.family = f.id) FROM families f WHERE f.id = ?""",
            (family,),
        ).get
        return (doomed or 0) / max(live, 1) if doomed else 0.0

    def outlines(self, position: int) -> tuple[list[Outline], int | None]:
        rows = self._execute(
            """SELECT t.id, t.name, t.family, (SELECT max(l.total) FROM lines l WHERE l.thread = t.id),
                      EXISTS (SELECT 1 FROM operations o WHERE o.thread = t.id), f.swept = 2
               FROM threads t JOIN families f ON f.id = t.family WHERE t.id > ? ORDER BY t.id LIMIT ?""",
            (position, _OUTLINES),
        ).fetchall()
        found: list[Outline] = []
        for _, name, family, most, has_log, is_swept in rows:
            if most:
                found.append(Outline(name, str(family), most, bool(has_log), bool(is_swept)))
        return found, rows[-1][0] if len(rows) == _OUTLINES else None

    def origin(self, checkpoint_id: str) -> Origin | None:
        """Return what a branch begins with; None: it must be asked for one by one."""
        rows = self._execute(_ORIGIN, (pack_id(checkpoint_id),)).fetchall()
        if len(rows) != 1:
            return None
        thread_id, namespace, family, hides, top, is_undone, data, *checkpoint = rows[0]
        if top is not None:
            unpack_operation(data, top, bool(is_undone))  # a damaged entry raises
        # Then an older one may be the top.
        if is_undone:
            return None
        found = self._unpack_once(thread_id, namespace, str(family), checkpoint)
        if hides and self._is_hidden(found.seq):
            found = found._replace(hidden=True)
        return Origin(found, top or 0)

    def operations(self, thread_id: str, limit: int) -> list[Operation]:
        rows = self._execute(
            """SELECT o.data, o.seq, o.undone FROM operations o JOIN threads t ON t.id = o.thread
               WHERE t.name = ? ORDER BY o.seq DESC LIMIT ?""",
            (thread_id, limit),
        )
        return [unpack_operation(data, seq, bool(undone)) for data, seq, undone in rows]

    def logs(self, thread_ids: Sequence[str], limit: int) -> dict[str, list[Operation]]:
        return {thread_id: self.operations(thread_id, limit) for thread_id in thread_ids}
