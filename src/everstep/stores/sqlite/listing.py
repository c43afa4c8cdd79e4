"""Checkpoints that are listed and counted: which of them a query asks for, without a look at what is hidden."""

from __future__ import annotations

import heapq
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

import apsw

from everstep.errors import CheckpointCorrupted
from everstep.stores.facts import Wanted, is_noted, new_facts
from everstep.stores.inspection import Entry, EntryPage
from everstep.stores.protocol import Key, Loaded, Query, Stored, Write
from everstep.stores.records import (
    CheckedRecord,
    check_record,
    matches,
    pack_id,
    packed_filter,
    unpack_id,
    unpack_write,
)
from everstep.stores.sqlite.forms import (
    COLUMNS,
    FROM_CHECKPOINTS,
    HIDDEN,
    LISTED,
    LISTED_VISIBLE,
    NARROW,
    packed_or_none,
    to_listed,
    to_stored,
)
from everstep.stores.sqlite.reading import Reading, place_of_write

# The same for many checkpoints at once, by their numbers.
_ROOTS = """SELECT c.seq, c.children, c.root, l.generation FROM carray(?) k CROSS JOIN checkpoints c ON c.seq = k.value
            JOIN lines l ON l.id = c.line"""
_WRITES_OF = """SELECT c.seq, c.id, w.seq, w.task, w.idx, w.info, w.children FROM carray(?) k
                CROSS JOIN checkpoints c ON c.seq = k.value
                CROSS JOIN writes w ON w.line = c.line AND w.checkpoint = c.id
                WHERE NOT EXISTS (SELECT 1 FROM hidden h WHERE h.line = c.line AND h.writes_of = c.id
                                  AND w.seq > h.after AND w.seq <= h.upto)"""
_ENTRIES = f"""SELECT {COLUMNS}, {{}} FROM checkpoints c WHERE c.line = ? AND c.seq > ? ORDER BY c.seq LIMIT ?"""
_IdKind = type[str] | type[bytes] | None
"""Of an id as it is kept; None: any."""
_AFTER_ALL = b"\xff" * 17


class Listing(Reading):
    """Lists of checkpoints."""

    def list_checkpoints(self, query: Query) -> list[Stored]:
        if not query.filter:
            return [to_listed(row) for row in self._listed_rows(query)]
        wanted = packed_filter(query.filter)
        rows = self._listed_rows(replace(query, offset=0, limit=None))
        matching = (stored for stored in map(to_listed, rows) if matches(stored.record.metadata, wanted))
        return list(islice(matching, query.offset, _end_of(query)))

    def load_page(self, query: Query) -> list[Loaded]:
        """Return what a query lists, with roots and writes: one statement for each of the three."""
        if query.filter:  # few of those that are looked at may be asked for
            return self.load_many([stored.record.key for stored in self.list_checkpoints(query)], writes=True)
        rows = {row[0]: row for row in self._listed_rows(query)}
        if not rows:
            return []
        seqs = apsw.carray(array("q", rows))
        writes: dict[int, list[Write]] = {}
        for seq, checkpoint_id, number, task, *rest in self._execute(_WRITES_OF, (seqs,)):
            write = unpack_write(unpack_id(checkpoint_id), number, unpack_id(task), *rest)
            writes.setdefault(seq, []).append(write)
        found: dict[int, Loaded] = {}
        for seq, children, root, generation in self._execute(_ROOTS, (seqs,)):
            *columns, _, hidden, thread_id, namespace, family = rows[seq]
            stored = to_stored(thread_id, namespace, family, (*columns, children, root, hidden))
            found[seq] = Loaded(stored, generation, [], sorted(writes.get(seq, ()), key=place_of_write))
        if len(found) < len(rows):
            raise CheckpointCorrupted("a checkpoint that is listed is missing", thread_id=query.thread_id)
        return [found[seq] for seq in rows]

    def entries(self, thread_id: str, namespace: str, after: int, limit: int) -> EntryPage:
        """Return checkpoints of a line for those who only check them: see `ReadsEntries`."""
        line = self._line(thread_id, namespace)
        if line is None:
            return EntryPage([], None, 0, [])
        ref, family = line
        hidden = HIDDEN if self._hides(ref) else "0"
        labels = {label for (label,) in self._execute("SELECT label FROM facts WHERE line = ?", (ref,))}
        found: list[Entry] = []
        not_found_by: list[Key] = []
        key: Key | None = None
        noted: CheckedRecord | None = None
        size = 0
        for seq, name, step, segment, pinned, _, info, children, root, is_hidden in self._execute(
            _ENTRIES.format(hidden), (ref, after, limit)
        ):
            before = key
            key = Key(thread_id, namespace, unpack_id(name))
            record = check_record(key, step, children, info, root, before)
            size += len(name) + len(info) + len(children) + len(root)
            found.append(
                Entry(key, seq, segment, step, record.kind, record.parents, bool(pinned), bool(is_hidden), children)
            )
            # Most checkpoints have what the one before has, which is noted.
            facts = new_facts(record, noted)
            if not facts or all(is_noted(fact, labels) for fact in facts):
                noted = record
            else:
                not_found_by.append(key)
        return EntryPage(found, family, size, not_found_by)

    def _listed_rows(self, query: Query) -> Iterable[Any]:
        """Return the rows that a query asks for, its filter left aside."""
        kinds = self._id_kinds() if query.order == "id" else [None]
        if len(kinds) == 1:
            return self._rows(query, kinds)
        stop = _end_of(query)
        return islice(self._rows(replace(query, offset=0, limit=stop), kinds), query.offset, stop)

    def _id_kinds(self) -> list[_IdKind]:
        """Return the kinds of ids in the file: most files have one, and are read once."""
        texts, packed = self._execute(
            """SELECT EXISTS (SELECT 1 FROM checkpoints WHERE id < x''),
                      EXISTS (SELECT 1 FROM checkpoints WHERE id >= x'')"""
        ).get
        return [*([str] if texts else []), *([bytes] if packed else [])]

    def _rows(self, query: Query, id_kinds: Sequence[_IdKind]) -> Iterable[Any]:
        """Return the rows that a query asks for, its filter left aside; each kind of ids is limited by itself."""
        if query.thread_id is not None and query.namespace is not None and query.order != "id" and query.hidden == "no":
            line = self._line(query.thread_id, query.namespace)
            if (
                line is not None
                and self._execute("SELECT 1 FROM covers WHERE line = ? AND segment = 0", (line[0],)).get
            ):
                stop = None if query.limit is None else query.offset + query.limit
                return islice(self._rows_between_covers(query, line[0], stop), query.offset, stop)
        return self._all_rows(query, id_kinds)

    def _rows_between_covers(self, query: Query, line: int, stop: int | None) -> Iterator[Any]:
        """Yield the rows of a line that no cover has, without a look at what is covered."""
        found = 0
        gaps = self._gaps_down(query, line) if query.order == "seq" else self._gaps_up(query, line)
        for after, before in gaps:
            left = None if stop is None else stop - found
            part = replace(query, after_seq=after, before_seq=before, offset=0, limit=left)
            for row in self._all_rows(part, [None]):
                found += 1
                yield row
            if stop is not None and found >= stop:
                return

    def _gaps_down(self, query: Query, line: int) -> Iterator[tuple[int, int | None]]:
        """Yield what lies between covers, newest first: after which seq, and before which."""
        lowest = query.after_seq or 0
        before = query.before_seq
        for after, upto in self._execute(
            "SELECT after, upto FROM covers WHERE line = ? AND segment = 0 ORDER BY upto DESC", (line,)
        ):
            if before is not None and after >= before - 1:
                continue  # it is newer than what is asked for
            if upto <= lowest:
                break
            yield upto, before
            before = after + 1
        if before is None or before > lowest:
            yield lowest, before

    def _gaps_up(self, query: Query, line: int) -> Iterator[tuple[int, int | None]]:
        """The same, oldest first."""
        after = query.after_seq or 0
        end = query.before_seq
        for start, upto in self._execute(
            "SELECT after, upto FROM covers WHERE line = ? AND segment = 0 ORDER BY upto", (line,)
        ):
            if upto <= after:
                continue
            if end is not None and start >= end:
                break
            yield after, start + 1 if end is None else min(start + 1, end)
            after = upto
        yield after, end

    def _all_rows(self, query: Query, id_kinds: Sequence[_IdKind]) -> Iterable[Any]:
        order = {"seq": "c.seq DESC", "id": "c.id DESC, c.seq DESC", "oldest": "c.seq"}[query.order]
        limit = -1 if query.limit is None else query.limit
        found: list[Iterable[Any]] = []
        listed = LISTED
        if query.hidden == "no":
            listed = LISTED_VISIBLE  # the condition says so already
        lines, labels = self._lines_filtered(query)
        if lines:
            order = order.replace("c.", "+c.")  # these are put in order one by one
        for kind in id_kinds:
            where, values = self._where(query, kind)
            where = f"{where}{lines}"
            values = [*values, *labels]
            sql = f"SELECT {listed} {FROM_CHECKPOINTS} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
            found.append(self._execute(sql, (*values, limit, query.offset)))
        if len(found) == 1:
            return found[0]
        return heapq.merge(*found, key=lambda row: (unpack_id(row[1]), row[0]), reverse=True)

    def _lines_filtered(self, query: Query) -> tuple[str, Sequence[int]]:
        """Return the condition for lines that a filter may be about, if an index gives few, and the values in it."""
        if not query.filter or query.thread_id is not None:
            return "", ()
        for labels in Wanted(query.filter).labels:
            text = "SELECT line FROM facts WHERE label IN (?, ?, ?)"
            count = self._execute(f"SELECT count(*) FROM ({text} LIMIT ?)", (*labels, NARROW + 1)).get
            if count <= NARROW:
                return f" AND c.line IN ({text})", labels
        return "", ()

    def count(self, query: Query) -> int:
        if query.filter or query.offset or query.limit is not None:
            return len(self.list_checkpoints(query))
        line = None
        if query.thread_id is not None and query.namespace is not None:
            line = self._line(query.thread_id, query.namespace)
        if line is None or query.hidden != "no":
            return self._count(query)
        return self._count(replace(query, hidden="also")) - self._count_covered(query, line[0])

    def _count_covered(self, query: Query, line: int) -> int:
        """Return how many of the checkpoints that a query asks for are hidden."""
        # What is covered in every segment is hidden. Where covers are of single segments, every row is looked at.
        inside: Literal["also", "only"] = "also"
        spans: list[tuple[int, int]] = []
        for segment, after, upto in self._execute("SELECT segment, after, upto FROM covers WHERE line = ?", (line,)):
            spans.append((after, upto))
            if segment:
                inside = "only"
        total = 0
        for after, upto in _joined(spans):
            part = replace(query, after_seq=max(after, query.after_seq or 0), hidden=inside)
            if query.before_seq is None or query.before_seq > upto + 1:
                part = replace(part, before_seq=upto + 1)
            total += self._count(part)
        return total

    def _count(self, query: Query) -> int:
        where, values = self._where(query)
        if where == "c.line = ?":
            total: int = self._execute("SELECT coalesce((SELECT total FROM lines WHERE id = ?), 0)", tuple(values)).get
            return total
        tables = "FROM checkpoints c" if "c.line = ?" in where else FROM_CHECKPOINTS
        found: int = self._execute(f"SELECT count(*) {tables} WHERE {where}", tuple(values)).get
        return found

    def _where(self, query: Query, id_kind: _IdKind = None) -> tuple[str, list[Any]]:
        """Return the condition of a query, its filter left aside, and the values in it.

        `id_kind` asks for text ids or packed ones only.
        """
        conditions = {
            "c.id = ?": packed_or_none(query.checkpoint_id),
            "c.seq < ?": query.before_seq,
            "c.seq > ?": query.after_seq,
            "c.step <= ?": query.step_max,
            "c.segment = ?": query.segment,
            "(c.pinned OR c.branches > 0) = ?": query.protected,
        }
        hidden = {"no": [f"NOT {HIDDEN}"], "only": [HIDDEN], "also": []}[query.hidden]
        if query.thread_id is not None and query.namespace is not None:
            line = self._line(query.thread_id, query.namespace)
            ref = line[0] if line is not None else 0
            conditions["c.line = ?"] = ref
            if hidden and not self._hides(ref):
                # Nothing is hidden here: no need to ask row by row.
                hidden = [] if query.hidden == "no" else ["0"]
        else:
            conditions |= {"t.name = ?": query.thread_id, "l.namespace = ?": query.namespace}
        asked = {sql: value for sql, value in conditions.items() if value is not None}
        ids, bounds = _ids_before(query.before_id, id_kind)
        return " AND ".join([*asked, *ids, *hidden]) or "1", [*asked.values(), *bounds]


def _end_of(query: Query) -> int | None:
    """Return how many rows are needed for all that a query asks for; None: all there are."""
    return None if query.limit is None else min(query.offset + query.limit, sys.maxsize)


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return stretches (after, up to), those that overlap or touch as one."""
    found: list[tuple[int, int]] = []
    for after, upto in sorted(spans):
        if found and after <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], upto)
        else:
            found.append((after, upto))
    return found


def _ids_before(text: str | None, kind: _IdKind) -> tuple[list[str], list[str | bytes]]:
    """Return the conditions for ids of a kind (None: both) whose text is less than `text`, and the values in them."""
    if kind is str:
        return ["c.id < ?"], [text if text is not None else b""]
    if kind is bytes:
        return ["c.id >= x'' AND c.id < ?"], [_bound(text) if text is not None else _AFTER_ALL]
    if text is None:
        return [], []
    return ["(c.id < ? OR c.id >= x'' AND c.id < ?)"], [text, _bound(text)]


def _bound(text: str) -> bytes:
    """Return the least packed id whose text is not less than `text`."""
    packed = pack_id(text)
    if isinstance(packed, bytes):
        return packed
    low = 0
    high = 1 << 128
    while low < high:
        middle = (low + high) // 2
        if unpack_id(middle.to_bytes(16)) < text:
            low = middle + 1
        else:
            high = middle
    return low.to_bytes(16) if low < 1 << 128 else _AFTER_ALL
