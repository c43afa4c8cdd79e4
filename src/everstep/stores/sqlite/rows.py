"""The tables of the SQLite store, as rows inside one transaction. All SQL on them is here.

`Rows` implements `transaction.Transaction`, on which `apply` works, and what the store reads. Values are always bound;
the SQL texts are put together from constants only. Ids of checkpoints and tasks pass through `pack_id` on their way in
and `unpack_id` on their way out. A packed id is a BLOB, and SQLite sorts every BLOB after every TEXT.
"""

from __future__ import annotations

import heapq
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, NamedTuple

import apsw

from everstep.errors import CheckpointCorrupted
from everstep.stores.facts import Fact, Wanted, kept, new_facts, prefix_end
from everstep.stores.newest import descent, newest_of
from everstep.stores.protocol import (
    ANY,
    SHARED_STATES_MAX,
    BaseRef,
    Change,
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
    RawLine,
    RawThread,
    Search,
    SharedState,
    Stored,
    Thread,
    Write,
)
from everstep.stores.records import (
    DIGEST_BYTES,
    matches,
    pack_common,
    pack_id,
    pack_operation,
    pack_origin,
    pack_record,
    pack_segment,
    pack_write,
    packed_filter,
    record_digest,
    unpack_common,
    unpack_id,
    unpack_metadata,
    unpack_operation,
    unpack_origin,
    unpack_record,
    unpack_segment,
    unpack_write,
)
from everstep.stores.sqlite.schema import seal
from everstep.stores.transaction import (
    Candidate,
    Line,
    Packed,
    added_bytes,
    apply,
    apply_writes,
    delete,
    delete_some,
    doomed_keys,
    is_plain,
    now_micros,
    prune,
)
from everstep.values.tree import FORMAT, hashes

# Covers do not overlap: the first one that ends at a seq or later has it, or none has.
_COVERED = """coalesce((SELECT v.after < c.seq FROM covers v
                        WHERE v.line = c.line AND v.segment = {} AND v.upto >= c.seq ORDER BY v.upto LIMIT 1), 0)"""
_HIDDEN = f"({_COVERED.format('0')} OR {_COVERED.format('c.segment')})"
_SPARED = "(c.pinned OR c.branches OR EXISTS (SELECT 1 FROM lines l WHERE l.id = c.line AND l.head = c.seq))"
# A head that is older than the newest of its segment, though nobody moved it: its page is of an earlier time.
# In what comes from another store (it has a note) a head may be set later than what follows it arrives.
_STALE = """(NOT l.head_was_moved AND t.note IS NULL AND EXISTS (SELECT 1 FROM checkpoints n
             WHERE n.line = l.id AND n.seq > c.seq AND n.segment = c.segment))"""
_FOLLOWS = "SELECT 1 FROM checkpoints WHERE line = ? AND seq > ? AND segment = ? LIMIT 1"
_FOLLOWS_AND_HIDES = f"SELECT EXISTS ({_FOLLOWS}), EXISTS (SELECT 1 FROM covers WHERE line = ?1)"
_COLUMNS = "c.seq, c.id, c.step, c.segment, c.pinned, c.added, c.info, c.children, c.root"
# Statements that are run for each call are small, and follow-up questions have statements of their own: a subquery
# takes several times as long as a short statement that is compiled already.
_HEAD = f"""SELECT l.head, l.head_was_moved OR t.note IS NOT NULL, l.id, l.generation, t.family, {_COLUMNS}
            FROM threads t JOIN lines l ON l.thread = t.id
            LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id WHERE t.name = ? AND l.namespace = ?"""
_BY_ID = f"""SELECT l.id, l.generation, t.family, {_COLUMNS} FROM threads t JOIN lines l ON l.thread = t.id
             JOIN checkpoints c ON c.line = l.id AND c.id = ? WHERE t.name = ? AND l.namespace = ?"""
_HEAD_OF_LINE = f"""SELECT l.head, l.head_was_moved, l.head_was_moved OR t.note IS NOT NULL, {_COLUMNS} FROM lines l
                    JOIN threads t ON t.id = l.thread
                    LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id WHERE l.id = ?"""
_LISTED_FORM = """c.seq, c.id, c.step, c.segment, c.pinned, c.added, c.info, substr(c.root, 1, 8), {},
                  t.name, l.namespace, t.family"""
_LISTED = _LISTED_FORM.format(_HIDDEN)
_LISTED_VISIBLE = _LISTED_FORM.format("0")

# The same for many checkpoints at once, by their numbers.
_ROOTS = """SELECT c.seq, c.children, c.root, l.generation FROM carray(?) k CROSS JOIN checkpoints c ON c.seq = k.value
            JOIN lines l ON l.id = c.line"""
_WRITES_OF = """SELECT c.seq, c.id, w.seq, w.task, w.idx, w.info, w.children FROM carray(?) k
                CROSS JOIN checkpoints c ON c.seq = k.value
                CROSS JOIN writes w ON w.line = c.line AND w.checkpoint = c.id
                WHERE NOT EXISTS (SELECT 1 FROM hidden h WHERE h.line = c.line AND h.writes_of = c.id
                                  AND w.seq > h.after AND w.seq <= h.upto)"""

_IdKind = type[str] | type[bytes] | None
"""Of an id as it is kept; None: any."""


class _NewestLine(NamedTuple):
    ref: int
    thread_id: str
    namespace: str
    total: int
    last: int
    hides: bool
    """Whether something of it is hidden."""


class _Which(NamedTuple):
    """Which threads are asked for."""

    condition: str
    value: str


class _Head(NamedTuple):
    """The head of a line, as it was read or written last."""

    stored: Stored | None
    was_moved: bool
    info: bytes = b""
    """Of its row: the metadata in the record may be the caller's own, who may change it."""


class Rows:
    """The tables, inside one transaction of one connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._execute: Callable[..., Any] = connection.execute
        # What this connection has read or written, trusted while nobody else has changed the file: see `begin`.
        self._version = -1
        self._threads: dict[str, tuple[int, str]] = {}
        self._lines: dict[tuple[str, str], tuple[int, str]] = {}
        self._heads: dict[int, _Head] = {}
        self._heads_bytes = 0
        self._facts: dict[int, dict[int, set[int]]] = {}
        self._next_seq: int | None = None
        self._next_object: int | None = None
        self._write_numbers: Iterator[int] = iter(())
        self._made: set[str] = set()
        """Threads that this transaction has made: nothing can have been noted of them before."""

    def begin(self) -> None:
        """Start a write transaction; what is remembered stays only if no other connection wrote since."""
        self._execute("BEGIN IMMEDIATE")
        self._made.clear()
        is_full = (
            max(len(self._threads), len(self._lines), len(self._heads), len(self._facts)) >= _REMEMBERED_MAX
            or self._heads_bytes > _HEADS_BYTES_MAX
        )
        if self._version != self._connection.data_version() or is_full:
            self.forget()

    def note_committed(self) -> None:
        """Note the file as it is after a commit of our own."""
        self._version = self._connection.data_version()

    def forget(self) -> None:
        """Drop what is remembered: after a rollback, a deletion, or somebody else's change."""
        self._version, self._next_seq, self._next_object = -1, None, None
        self._write_numbers = iter(())
        self._threads.clear()
        self._lines.clear()
        self._facts.clear()
        self._forget_heads()

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._heads_bytes = 0

    def _remember_head(self, ref: int, head: _Head) -> None:
        before = self._heads.get(ref)
        self._heads[ref] = head
        if head.stored is not None:
            self._heads_bytes += len(head.stored.record.body) + len(head.stored.record.children)
        if before is not None and before.stored is not None:
            self._heads_bytes -= len(before.stored.record.body) + len(before.stored.record.children)

    def line(self, thread_id: str, namespace: str) -> Line | None:
        known = self._line(thread_id, namespace)
        if known is None:
            return None
        ref, family = known
        known_head = self._heads.get(ref)
        if known_head is None:
            seq, head_was_moved, may_be_older, *row = self._execute(_HEAD_OF_LINE, (ref,)).get
            _check_head(thread_id, seq, row[0], not may_be_older and self._is_stale(ref, row))
            head = _stored(thread_id, namespace, family, (*row, False)) if seq is not None else None
            known_head = _Head(head, bool(head_was_moved), row[6])
            self._remember_head(ref, known_head)
        return Line(ref, thread_id, namespace, family, known_head.stored, known_head.was_moved)

    def _line(self, thread_id: str, namespace: str) -> tuple[int, str] | None:
        """Return the number and family of a line."""
        known = self._lines.get((thread_id, namespace))
        if known is None:
            row = self._execute(
                """SELECT l.id, t.family FROM threads t JOIN lines l ON l.thread = t.id
                   WHERE t.name = ? AND l.namespace = ?""",
                (thread_id, namespace),
            ).get
            if row is None:
                self._check_has_lines(thread_id)
                return None
            known = self._lines[thread_id, namespace] = row[0], str(row[1])
        return known

    def family(self, thread_id: str) -> str | None:
        thread = self._thread(thread_id)
        return None if thread is None else thread[1]

    def _thread(self, thread_id: str) -> tuple[int, str] | None:
        """Return the number and family of a thread."""
        known = self._threads.get(thread_id)
        if known is None:
            row = self._execute("SELECT id, family FROM threads WHERE name = ?", (thread_id,)).get
            if row is None:
                return None
            known = self._threads[thread_id] = row[0], str(row[1])
        return known

    def _required_thread(self, thread_id: str) -> int:
        thread = self._thread(thread_id)
        if thread is None:
            raise CheckpointCorrupted("its thread is missing", thread_id=thread_id)
        return thread[0]

    def checkpoint(self, key: Key) -> Stored | None:
        known = self._line(key.thread_id, key.namespace)
        if known is None:
            return None
        row = self._execute(
            f"SELECT {_COLUMNS} FROM checkpoints c WHERE c.id = ? AND c.line = ?",
            (pack_id(key.checkpoint_id), known[0]),
        ).get
        return None if row is None else _stored(key.thread_id, key.namespace, known[1], (*row, False))

    # -- reads

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> Loaded | None:
        if checkpoint_id is not None:
            row = self._execute(_BY_ID, (pack_id(checkpoint_id), thread_id, namespace)).get
            if row is None:
                return None
            line, generation, family, *checkpoint = row
            hides = self._hides(line)
        else:
            row = self._execute(_HEAD, (thread_id, namespace)).get
            if row is None:
                self._check_has_lines(thread_id)
                return None
            head, may_be_older, line, generation, family, *checkpoint = row
            seq, _, _, segment, *_ = checkpoint
            follows, hides = self._execute(_FOLLOWS_AND_HIDES, (line, seq, segment)).get
            _check_head(thread_id, head, seq, bool(follows) and not may_be_older)
            if head is None:
                return None
        hidden = hides and self._is_hidden(checkpoint[0])
        stored = _stored(thread_id, namespace, family, (*checkpoint, hidden))
        found = self.below(stored.family, hashes(stored.record.children)) if objects else []
        attached = self._writes(line, stored.record.key.checkpoint_id) if writes else []
        return Loaded(stored, generation, found, attached)

    def load_known(self, thread_id: str, namespace: str, checkpoint_id: str | None, writes: bool) -> Loaded | None:
        """Return what `load` does, if it is a head that is remembered, and nobody else has written since; else None."""
        line, _ = self._lines.get((thread_id, namespace), (0, ""))
        known = self._heads.get(line)
        if known is None or known.stored is None or known.was_moved:
            return None
        stored = known.stored
        record = stored.record
        if checkpoint_id not in (None, record.key.checkpoint_id):
            return None
        attached = self._writes(line, record.key.checkpoint_id) if writes else []
        head, generation = self._execute("SELECT head, generation FROM lines WHERE id = ?", (line,)).get
        if head != stored.seq or self._version != self._connection.data_version():
            return None
        record = record._replace(metadata=unpack_metadata(known.info))
        return Loaded(Stored(record, *stored[1:]), generation, [], attached)

    def _is_stale(self, line: int, head: Sequence[Any]) -> bool:
        """Whether something follows a head, given by its columns, that nobody has moved: see `_STALE`."""
        seq, _, _, segment, *_ = head
        return self._execute(_FOLLOWS, (line, seq, segment)).get is not None

    def _is_hidden(self, seq: int) -> bool:
        """Whether a checkpoint is hidden."""
        return bool(self._execute(f"SELECT {_HIDDEN} FROM checkpoints c WHERE c.seq = ?", (seq,)).get)

    def _hides(self, line: int) -> bool:
        """Whether anything of a line is hidden."""
        return self._execute("SELECT 1 FROM covers WHERE line = ? LIMIT 1", (line,)).get is not None

    def _check_has_lines(self, thread_id: str) -> None:
        """A thread has a namespace, but for one that another store has begun to give us."""
        lost = self._execute(
            """SELECT 1 FROM threads t WHERE t.name = ? AND t.note IS NULL
               AND NOT EXISTS (SELECT 1 FROM lines l WHERE l.thread = t.id)""",
            (thread_id,),
        ).get
        if lost is not None:
            raise CheckpointCorrupted("the thread is there, but none of its namespaces", thread_id=thread_id)

    def load_many(self, keys: Sequence[Key], writes: bool) -> list[Loaded]:
        found = [self.load(*key, objects=False, writes=writes) for key in keys]
        return [loaded for loaded in found if loaded is not None]

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
            stored = _stored(thread_id, namespace, family, (*columns, children, root, hidden))
            found[seq] = Loaded(stored, generation, [], sorted(writes.get(seq, ()), key=_place_of))
        if len(found) < len(rows):
            raise CheckpointCorrupted("a checkpoint that is listed is missing", thread_id=query.thread_id)
        return [found[seq] for seq in rows]

    def _writes(self, line: int, checkpoint_id: str) -> list[Write]:
        found = self._written(
            line,
            checkpoint_id,
            """AND NOT EXISTS (SELECT 1 FROM hidden h WHERE h.line = ?1 AND h.writes_of = ?2
                               AND w.seq > h.after AND w.seq <= h.upto)""",
        )
        return sorted(found, key=_place_of)

    def _written(self, line: int, checkpoint_id: str, condition: str = "") -> list[Write]:
        rows = self._execute(
            f"SELECT seq, task, idx, info, children FROM writes w WHERE line = ?1 AND checkpoint = ?2 {condition}",
            (line, pack_id(checkpoint_id)),
        )
        return [unpack_write(checkpoint_id, seq, unpack_id(task), *rest) for seq, task, *rest in rows]

    def find(self, checkpoint_id: str) -> list[Key]:
        rows = self._execute(
            """SELECT t.name, l.namespace FROM checkpoints c JOIN lines l ON l.id = c.line
               JOIN threads t ON t.id = l.thread WHERE c.id = ? ORDER BY c.seq""",
            (pack_id(checkpoint_id),),
        )
        return [Key(thread_id, namespace, checkpoint_id) for thread_id, namespace in rows]

    def below(self, family: str, wanted: Iterable[bytes]) -> list[Object]:
        """Return these objects and all below them, one query per level."""
        found: list[Object] = []
        seen = set(wanted)
        level = tuple(seen)
        while level:
            rows = self._objects(family, level)
            found.extend(rows)
            fresh = {key for _, children, _ in rows if children for key in hashes(children)} - seen
            seen |= fresh
            level = tuple(fresh)
        return found

    def shallow(self, family: str, wanted: Collection[bytes]) -> list[Object]:
        """Return just these objects."""
        return self._objects(family, tuple(wanted)) if wanted else []

    def _objects(self, family: str, wanted: tuple[bytes, ...]) -> list[Object]:
        # By their numbers: what was written together lies together in the file.
        rows = self._execute(
            """SELECT hash, children, body FROM objects WHERE id IN
               (SELECT o.id FROM carray(?) k CROSS JOIN objects o ON o.family = ? AND o.hash = k.value)""",
            (apsw.carray(wanted), int(family)),
        ).fetchall()
        return list(map(Object._make, rows))

    def list_checkpoints(self, query: Query) -> list[Stored]:
        if not query.filter:
            return [_listed(row) for row in self._listed_rows(query)]
        wanted = packed_filter(query.filter)
        rows = self._listed_rows(replace(query, offset=0, limit=None))
        matching = (stored for stored in map(_listed, rows) if matches(stored.record.metadata, wanted))
        return list(islice(matching, query.offset, _end_of(query)))

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
        listed = _LISTED
        if query.hidden == "no":
            listed = _LISTED_VISIBLE  # the condition says so already
        lines, labels = self._lines_filtered(query)
        if lines:
            order = order.replace("c.", "+c.")  # these are put in order one by one
        for kind in id_kinds:
            where, values = self._where(query, kind)
            where = f"{where}{lines}"
            values = [*values, *labels]
            sql = f"SELECT {listed} {_FROM_CHECKPOINTS} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
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
            count = self._execute(f"SELECT count(*) FROM ({text} LIMIT ?)", (*labels, _NARROW + 1)).get
            if count <= _NARROW:
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
        tables = "FROM checkpoints c" if "c.line = ?" in where else _FROM_CHECKPOINTS
        found: int = self._execute(f"SELECT count(*) {tables} WHERE {where}", tuple(values)).get
        return found

    def _where(self, query: Query, id_kind: _IdKind = None) -> tuple[str, list[Any]]:
        """Return the condition that a query stands for, its filter left aside, and the values in it.

        `id_kind` asks for text ids or packed ones only.
        """
        conditions = {
            "c.id = ?": _packed(query.checkpoint_id),
            "c.seq < ?": query.before_seq,
            "c.seq > ?": query.after_seq,
            "c.step <= ?": query.step_max,
            "c.segment = ?": query.segment,
            "(c.pinned OR c.branches > 0) = ?": query.protected,
        }
        hidden = {"no": [f"NOT {_HIDDEN}"], "only": [_HIDDEN], "also": []}[query.hidden]
        if query.thread_id is not None and query.namespace is not None:
            line = self._line(query.thread_id, query.namespace)
            ref = line[0] if line is not None else 0
            conditions["c.line = ?"] = ref
            if hidden and not self._hides(ref):
                hidden = [] if query.hidden == "no" else ["0"]  # nothing is hidden here: no need to ask row by row
        else:
            conditions |= {"t.name = ?": query.thread_id, "l.namespace = ?": query.namespace}
        asked = {sql: value for sql, value in conditions.items() if value is not None}
        ids, bounds = _ids_before(query.before_id, id_kind)
        return " AND ".join([*asked, *ids, *hidden]) or "1", [*asked.values(), *bounds]

    def list_threads(self, limit: int, offset: int, headless: bool) -> list[Stored]:
        head = "coalesce(l.head, (SELECT min(seq) FROM checkpoints WHERE line = l.id))" if headless else "l.head"
        first = "coalesce(min(CASE WHEN head IS NOT NULL THEN namespace END), min(namespace))"
        rows = self._execute(
            f"""SELECT p.head, {_STALE}, {_LISTED} FROM
                  (SELECT l.id, a.active, {head} AS head FROM
                    (SELECT thread, max(active) AS active, {first} AS first FROM lines GROUP BY thread) a
                  JOIN lines l ON l.thread = a.thread AND l.namespace = a.first WHERE {head} IS NOT NULL
                  ORDER BY a.active DESC, a.thread DESC LIMIT ? OFFSET ?) p
                JOIN lines l ON l.id = p.id JOIN threads t ON t.id = l.thread
                LEFT JOIN checkpoints c ON c.seq = p.head AND c.line = l.id
                ORDER BY p.active DESC, t.id DESC""",
            (limit, offset),
        )
        found = []
        for head_seq, is_stale, *row in rows:
            _check_head(row[9], head_seq, row[0], is_stale)
            found.append(_listed(row))
        return found

    def search(self, search: Search) -> list[Hit]:
        wanted = Wanted.of(search)
        found: list[Hit] = []
        if not search.limit:
            return found
        for thread, active_kept, position in self._in_order(search, wanted):
            row = self._execute(_LISTED_HEAD, (thread,)).get
            if row is None:
                continue  # it has writes only, or all of it is hidden
            try:
                stored = _listed_head(position, active_kept, row)
            except (CheckpointCorrupted, TypeError, ValueError, AttributeError) as exc:
                found.append(Hit(None, position, _damage(exc).located(position.thread_id, None)))
            else:
                if wanted.fits(stored.record):
                    found.append(Hit(stored, position))
            if len(found) == search.limit:
                break
        return found

    def _in_order(self, search: Search, wanted: Wanted) -> Iterator[tuple[int, Any, Position]]:
        """Yield the threads that a search may be about, in its order: by the index that gives the fewest.

        With each comes when it was active by its own row, beside what the index says.
        """
        conditions, values = _search_conditions(search, wanted)
        sources = _search_sources(search, wanted)
        counts = []
        for text, bound in sources:
            counted: int = self._execute(f"SELECT count(*) FROM ({text} LIMIT ?)", (*bound, _NARROW + 1)).get
            counts.append(counted)
        narrowest = min(range(len(sources)), key=counts.__getitem__, default=None)
        if narrowest is None or counts[narrowest] > _NARROW:
            # There are many: those that were active last are looked at one by one, and will be enough soon.
            self._check_activity()
            source = "lines l"
            bound = list[Any]()
        else:
            text, bound = sources[narrowest]
            source = f"(SELECT DISTINCT thread FROM ({text})) s CROSS JOIN lines l ON l.thread = s.thread"
        rows = self._execute(
            f"{_BY_ACTIVITY.format(source)} AND {conditions} ORDER BY l.active DESC, t.name DESC", (*bound, *values)
        )
        for thread, active, name, active_kept in rows:
            yield thread, active_kept, Position(active, name)

    def _check_activity(self) -> None:
        """Refuse an index of activity that is older than the threads: one that was active last would be missing."""
        row = self._execute(
            f"""SELECT t.name, l.active {_FROM_CHECKPOINTS}
                ORDER BY c.seq DESC LIMIT 1"""
        ).get
        if row is None:
            return
        name, active = row
        newest = self._execute("SELECT active FROM lines INDEXED BY lines_by_activity ORDER BY active DESC LIMIT 1").get
        if newest is None or newest < active:
            raise CheckpointCorrupted("the index of activity is older than the thread", thread_id=name)

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
            self._runs("r.line IN (SELECT id FROM lines WHERE thread = ?)", (ref,)) if not brief else {},
            self._runs("r.family = ?", (family,)) if ancestry else {},
            self._branches(family, thread_id) if branches else (),
            self._commons(ref, thread_id),
            self._spared(ref) if not brief else frozenset(),
            self._garbage(family),
        )

    def _heads_and_newest(self, thread: int, thread_id: str) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
        """Return, by namespace, the head with its generation, and the number of the newest checkpoint."""
        heads: dict[str, tuple[str, int]] = {}
        newest: dict[str, int] = {}
        for line, namespace, generation, seq, head, is_stale in self._execute(
            f"""SELECT l.id, l.namespace, l.generation, l.head, c.id, {_STALE} FROM lines l
                JOIN threads t ON t.id = l.thread LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id
                WHERE l.thread = ?""",
            (thread,),
        ).fetchall():
            _check_head(thread_id, seq, head, is_stale)
            last = self._execute("SELECT max(seq) FROM checkpoints WHERE line = ?", (line,)).get
            _check_newest(thread_id, seq, last)
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
                    WHERE NOT {_COVERED.format("c.segment")} ORDER BY c.segment""",
                (line[0], low, high if high is not None else _NUMBER_MAX),
            )
            found += [segment for (segment,) in rows]
        return found

    def segments(self, family: str, segments: Collection[int], older: int) -> dict[int, tuple[Place, ...]]:
        if not segments:
            return {}
        number = int(family)
        found = self._runs(
            "r.family = ? AND r.segment IN (SELECT value FROM carray(?))", (number, apsw.carray(array("q", segments)))
        )
        if older:
            found |= self._runs(
                "r.family = ? AND r.segment < ? ORDER BY r.segment DESC LIMIT ?", (number, max(segments), older)
            )
        return found

    def newest(self, thread_id: str, limit: int, branches: bool, without: str | None) -> Newest | None:
        family = self.family(thread_id)
        if family is None:
            return None
        which = _Which("t.family = ?1", family) if branches else _Which("t.name = ?1", thread_id)
        lines, heads = self._newest_lines(which)
        alive = {key.thread_id for key in heads}
        names = descent(thread_id, self._born(which), lambda name: name in alive)
        if not names:
            return None
        asked: list[_NewestLine] = []
        for name in names:
            for line in lines.get(name, ()):
                if line.namespace != without:
                    asked.append(line)
        listed = newest_of([(line.last, line) for line in asked], limit, self._newest_rows)
        shown = {(line.thread_id, line.namespace) for line in asked}
        heads_shown = frozenset(key for key in heads if key[:2] in shown)
        return Newest(listed, heads_shown, sum(map(self._visible, asked)))

    def _born(self, which: _Which) -> dict[str, list[str]]:
        """Return, by thread, the branches that began there."""
        born: dict[str, list[str]] = {}
        for name, origin in self._execute(
            f"SELECT t.name, t.origin FROM threads t WHERE {which.condition}", (which.value,)
        ):
            if origin is not None:
                born.setdefault(unpack_origin(origin, name).thread_id, []).append(name)
        return born

    def _newest_lines(self, which: _Which) -> tuple[dict[str, list[_NewestLine]], set[Key]]:
        """Return, by thread, the lines that have checkpoints, and the heads of all."""
        lines: dict[str, list[_NewestLine]] = {}
        heads: set[Key] = set()
        for name, namespace, *state in self._execute(
            f"""SELECT t.name, l.namespace, l.id, l.total, c.id, (SELECT max(seq) FROM checkpoints WHERE line = l.id),
                       EXISTS (SELECT 1 FROM hidden h WHERE h.line = l.id)
                FROM threads t JOIN lines l ON l.thread = t.id LEFT JOIN checkpoints c ON c.seq = l.head
                WHERE {which.condition}""",
            (which.value,),
        ):
            ref, total, head, last, hides = state
            if head is not None:
                heads.add(Key(name, namespace, unpack_id(head)))
            if last is not None:
                lines.setdefault(name, []).append(_NewestLine(ref, name, namespace, total, last, bool(hides)))
        return lines, heads

    def _newest_rows(self, lines: Sequence[_NewestLine], after: int, limit: int) -> list[Stored]:
        pages = [self._newest_of_line(line, after, limit) for line in lines]
        return list(islice(heapq.merge(*pages, key=lambda stored: stored.seq, reverse=True), limit))

    def _newest_of_line(self, line: _NewestLine, after: int, limit: int) -> Iterator[Stored]:
        query = Query(thread_id=line.thread_id, namespace=line.namespace, after_seq=after, limit=limit)
        for row in self._rows(query, [None]):
            yield _listed(row)

    def _visible(self, line: _NewestLine) -> int:
        if not line.hides:
            return line.total
        return self.count(Query(thread_id=line.thread_id, namespace=line.namespace))

    def _branches(self, family: int, thread_id: str) -> list[str]:
        rows = self._execute(
            "SELECT name, origin FROM threads WHERE family = ? AND origin IS NOT NULL ORDER BY id", (family,)
        )
        return [name for name, origin in rows if unpack_origin(origin, name).thread_id == thread_id]

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

    def _runs(self, condition: str, values: tuple[Any, ...]) -> dict[int, tuple[Place, ...]]:
        rows = self._execute(f"SELECT r.segment, r.data FROM segments r WHERE {condition}", values)
        return {segment: unpack_segment(segment, data) for segment, data in rows}

    def _commons(self, thread: int, thread_id: str) -> dict[str, list[SharedState]]:
        rows = self._execute(
            """SELECT t.name, t.id, c.data, c.children FROM shared_states c JOIN threads t
               ON t.id = CASE WHEN c.low = ?1 THEN c.high ELSE c.low END WHERE c.low = ?1 OR c.high = ?1
               ORDER BY c.seq""",
            (thread,),
        )
        found: dict[str, list[SharedState]] = {}
        for name, other, data, children in rows:
            names = (thread_id, name) if thread < other else (name, thread_id)
            found.setdefault(name, []).append(unpack_common(data, children, *names))
        return found

    def _spared(self, thread: int) -> frozenset[int]:
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
        found = [
            Outline(name, str(family), most, bool(has_log), bool(is_swept))
            for _, name, family, most, has_log, is_swept in rows
            if most
        ]
        return found, rows[-1][0] if len(rows) == _OUTLINES else None

    def operations(self, thread_id: str, limit: int) -> list[Operation]:
        rows = self._execute(
            """SELECT o.data, o.seq, o.undone FROM operations o JOIN threads t ON t.id = o.thread
               WHERE t.name = ? ORDER BY o.seq DESC LIMIT ?""",
            (thread_id, limit),
        )
        return [unpack_operation(data, seq, bool(undone)) for data, seq, undone in rows]

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
            self._commons(ref, thread_id),
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
            f"""SELECT l.id, l.namespace, l.head, {_STALE}, c.id, l.head_was_moved, l.generation, l.active,
                       coalesce((SELECT max(seq) FROM checkpoints WHERE line = l.id), 0)
                FROM lines l JOIN threads t ON t.id = l.thread
                LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id WHERE l.thread = ?""",
            (thread,),
        ):
            head_seq, is_stale, head, head_was_moved, generation, active, newest = state
            _check_head(thread_id, head_seq, head, is_stale)
            _check_newest(thread_id, head_seq, newest)
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

    # -- commits

    def commit(self, change: Change) -> Stored | None:
        """Do what `transaction.apply` does; in few steps if a new checkpoint follows a head that is remembered."""
        line, family = self._lines.get((change.thread_id, change.namespace), _NO_LINE)
        head = _head_to_follow(change, self._heads.get(line))
        seq = self._next_seq
        if head is None or seq is None or change.build is None:
            return apply(self, change)
        draft = change.build(head)
        record = draft.record
        key = head.record.key
        if record.parents != (key,) or record.key[:2] != key[:2] or not self._has_all(draft.bases, head, family):
            return apply(self, change)  # which says what is missing
        packed = Packed(record, *pack_record(record))
        added = added_bytes(draft, packed)
        try:
            self._insert(seq, line, packed, head.segment, added)
        except apsw.ConstraintError:
            return apply(self, change)  # it is stored already
        self.add_objects(family, draft.objects)
        self._note(line, new_facts(record, head.record))
        self._execute(_SET_HEAD, (seq, False, now_micros(), True, line))
        self._next_seq = seq + 1
        stored = Stored(record, seq, family, False, False, packed.digest, head.segment, added)
        self._remember_head(line, _Head(stored, False, packed.info))
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

    def _has_all(self, bases: Sequence[BaseRef], head: Stored, family: str) -> bool:
        """Whether all that a new checkpoint rests on is stored: mostly that is the head alone."""
        own = head.record.key, head.digest
        return all(base == own or self._has(base, family) for base in bases)

    def _has(self, base: BaseRef, family: str) -> bool:
        """Whether a checkpoint of the family is stored as it is named: mostly the claim that a writer holds."""
        known = self._line(base.key.thread_id, base.key.namespace)
        if known is None or known[1] != family:
            return False
        found = self._execute(_DIGEST, (pack_id(base.key.checkpoint_id), known[0])).get
        return found is not None and b"".join(found) == base.digest

    def attach(self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None) -> None:
        """Do what `transaction.apply_writes` does; in few steps for a namespace whose head is remembered."""
        line, family = self._lines.get((key.thread_id, key.namespace), _NO_LINE)
        head = self._heads.get(line)
        if head is None or base is not None:
            apply_writes(self, key, writes, objects, base)
            return
        if objects:
            self.add_objects(family, objects)
        for write in writes:
            self._put_write(line, key.checkpoint_id, write)

    # -- changes

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

    def join(self, thread_id: str, family: str | None) -> str:
        is_new = self.family(thread_id) is None
        thread, family = self._joined(thread_id, family)
        if is_new:  # a note, though an empty one, says where it comes from: see `_STALE`
            self._execute("UPDATE threads SET note = x'' WHERE id = ?", (thread,))
        # What comes from another store brings objects before there is anybody who needs them.
        self._execute("UPDATE families SET swept = 0 WHERE id = ? AND swept", (int(family),))
        return family

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
        seq: int = self._next_seq or self._execute(f"SELECT {_next('checkpoints')}").get
        segment = segment if segment is not None else seq
        self._insert(seq, line.ref, packed, segment, added)
        self._note(line.ref, new_facts(record, line.head.record if line.head is not None else None))
        if not is_head:  # otherwise it is counted when the head moves
            self._execute("UPDATE lines SET total = total + 1 WHERE id = ?", (line.ref,))
        self._next_seq = seq + 1
        stored = Stored(record, seq, line.family, digest=packed.digest, segment=segment, added_bytes=added)
        if is_head:
            self._remember_head(line.ref, _Head(stored, was_moved=False, info=packed.info))
        return stored

    def add_run(self, line: Line, segment: int, follows: Sequence[Place]) -> None:
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
            first: int = self._next_object or self._execute(f"SELECT {_next('objects', 'id')}").get
            self._connection.executemany(
                "INSERT OR REPLACE INTO objects (id, family, hash, children, body) VALUES (?, ?, ?, ?, ?)",
                [(first + n, number, *obj) for n, obj in enumerate(objects)],
            )
            self._next_object = first + len(objects)

    def set_head(self, line: Line, stored: Stored | None, *, head_was_moved: bool = False) -> None:
        self._execute(
            _SET_HEAD,
            (stored.seq if stored is not None else None, head_was_moved, now_micros(), not head_was_moved, line.ref),
        )
        if head_was_moved:  # else it was inserted just now
            self._remember_head(line.ref, _Head(stored, was_moved=True))

    def prune(self, line: Line, seqs: Sequence[int]) -> None:
        prune(self, line, seqs)

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

    def set_common(self, thread_id: str, other: str, common: SharedState) -> None:
        pair = [(self._required_thread(name), name) for name in (thread_id, other)]
        (low, one), (high, two) = sorted(pair)
        self._execute(
            "INSERT OR REPLACE INTO shared_states (low, high, seq, data, children) VALUES (?, ?, ?, ?, ?)",
            (low, high, common.place.seq, pack_common(common, one, two), common.root.children),
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
        seq: int = self._execute(f"SELECT {_next('operations')}").get
        self._execute(
            "INSERT INTO operations (seq, thread, undone, data) SELECT ?, id, ?, ? FROM threads WHERE name = ?",
            (seq, operation.undone, pack_operation(operation, seq), thread_id),
        )
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
        self._execute(_INSERT_HIDDEN, _hidden_row(line.ref, hidden))

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
            number = int(self._execute(f"SELECT {_NEXT_WRITE}").get)
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

    # -- the Removal that `delete` works on

    def delete(
        self,
        thread_id: str,
        keys: Collection[Key] | None,
        before_step: int | None,
        spare: bool,
        operations: Collection[int],
    ) -> Deleted:
        self.forget()
        self._keep_counters()
        return delete(self, thread_id, keys, before_step, spare, operations)

    def doomed_keys(
        self, thread_id: str, keys: Collection[Key] | None, before_step: int | None, spare: bool
    ) -> list[Key]:
        return doomed_keys(self, thread_id, keys, before_step, spare)

    def delete_some(self, thread_id: str, keys: Collection[Key], spare: bool) -> int:
        self.forget()
        self._keep_counters()
        return delete_some(self, thread_id, keys, spare)

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
        text = f"SELECT c.id, c.seq, c.added, {_SPARED} FROM checkpoints c WHERE {condition}"
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
                (SELECT max(c.seq) FROM checkpoints c WHERE c.line = ?1 AND NOT {_HIDDEN})
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

    # -- what comes from another store: see `transaction.adopt`

    def reserve(self, family: str, count: int) -> int:  # noqa: ARG002  # all families are numbered together
        self.forget()
        numbers = (_next("checkpoints"), _next("operations"), _NEXT_WRITE)
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

    def keep_runs(self, family: str, segments: Mapping[int, Sequence[Place]]) -> None:
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
                (_packed(given.head), given.head_was_moved, given.generation, given.active, line),
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
                self._restore_commons(raw.thread_id, other, shared_states)

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
                hidden.append(_hidden_row(lines[stretch.namespace], stretch))
        writes: list[tuple[Any, ...]] = []
        for key, write in raw.writes:
            writes.append(_write_row(lines[key.namespace], key.checkpoint_id, write))
        many = self._connection.executemany
        many("UPDATE segments SET line = ? WHERE family = ? AND segment = ?", owners)
        many(
            "UPDATE checkpoints SET pinned = 1 WHERE seq = ? AND line IN (SELECT id FROM lines WHERE thread = ?)",
            [(seq, thread) for seq in raw.pinned],
        )
        many(_INSERT_HIDDEN, hidden)
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

    def _restore_commons(self, thread_id: str, other: str, shared_states: Sequence[SharedState]) -> None:
        low, high = (
            row[0]
            for row in self._execute("SELECT id FROM threads WHERE name IN (?, ?) ORDER BY id", (thread_id, other))
        )
        self._execute("DELETE FROM shared_states WHERE low = ? AND high = ?", (low, high))
        for common in shared_states:
            self.set_common(thread_id, other, common)

    def _keep_counters(self) -> None:
        """Remember the highest numbers before rows go, so that none is given twice."""
        self._execute(_KEEP_COUNTERS)

    # -- sweeping: see `sweeping`

    def sweep_begin(self, family: str, ticket: int) -> None:
        self._execute("UPDATE families SET swept = ? WHERE id = ?", (ticket, int(family)))

    def sweep_start(self, family: str, without: Collection[Key]) -> tuple[int, int, int, list[bytes]] | None:
        """Return the family's count of sweeps, its doomed bytes, the youngest object, and the hashes in its roots."""
        number = int(family)
        sweeps = self._execute("SELECT sweeps FROM families WHERE id = ?", (number,)).get
        if sweeps is None:
            return None
        doomed = self._execute(
            "SELECT sum(l.unreferenced) FROM lines l JOIN threads t ON t.id = l.thread WHERE t.family = ?", (number,)
        ).get
        youngest = self._execute("SELECT max(id) FROM objects").get
        roots = {key for root in self._roots(number, set(without)) for key in hashes(root)}
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

    def sweep_end(self, family: str, live_bytes: int, doomed_bytes: int, ticket: int) -> None:
        """Note what a sweep found in use, and take off what was doomed when it began."""
        self._execute("UPDATE families SET live = ? WHERE id = ?", (live_bytes, int(family)))
        self._execute("UPDATE families SET swept = 2 WHERE id = ? AND swept = ?", (int(family), ticket))
        lines = self._execute(
            """SELECT l.id, l.unreferenced FROM lines l JOIN threads t ON t.id = l.thread
               WHERE t.family = ? AND l.unreferenced > 0""",
            (int(family),),
        ).fetchall()
        for line, doomed in lines:
            taken = min(doomed, doomed_bytes)
            doomed_bytes -= taken
            self._execute("UPDATE lines SET unreferenced = unreferenced - ? WHERE id = ?", (taken, line))

    def shrink(self, pages_max: int) -> bool:
        """Give some free pages back to the file system; return whether more are left to give."""
        free: int = self._connection.pragma("freelist_count")
        pages: int = self._connection.pragma("page_count")
        if free <= max(16, pages // 20):  # a little room is kept: the next snapshots will need it
            return False
        self._execute(f"PRAGMA incremental_vacuum({min(free, pages_max)})").fetchall()  # frees a page per step
        return free > pages_max


_LISTED_HEAD = f"""SELECT l.head, {_STALE}, {_LISTED} FROM lines l JOIN threads t ON t.id = l.thread
                   LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id
                   WHERE l.thread = ? AND l.head IS NOT NULL ORDER BY l.namespace LIMIT 1"""
# The line of a thread that moved last stands for it.
_BY_ACTIVITY = """SELECT l.thread, l.active, t.name, (SELECT k.active FROM lines k NOT INDEXED WHERE k.id = l.id)
                  FROM {} CROSS JOIN threads t ON t.id = l.thread WHERE NOT EXISTS
                  (SELECT 1 FROM lines o WHERE o.thread = l.thread AND o.id <> l.id
                   AND (o.active > l.active OR o.active = l.active AND o.id > l.id))"""
_NARROW = 1000  # threads that an index may give for them to be put in order one by one
_REMEMBERED_MAX = 10_000
_NO_LINE = (0, "")  # lines are numbered from 1
_OUTLINES = 10_000  # threads at once
_NUMBER_MAX = (1 << 63) - 1
_HEADS_BYTES_MAX = 32 << 20
_INSERT = """INSERT INTO checkpoints (seq, line, id, step, segment, pinned, branches, added, info, children, root, seal)
             VALUES (?, ?, ?, ?, ?, 0, 0, ?, ?, ?, ?, ?)"""
_DIGEST = f"""SELECT substr(info, 1, {DIGEST_BYTES}), substr(root, 1, {DIGEST_BYTES}) FROM checkpoints
              WHERE id = ? AND line = ?"""
# The seal is set here, not by the trigger, which would be a second statement for every checkpoint.
_SET_HEAD = """UPDATE lines SET head = ?1, head_was_moved = ?2, generation = generation + 1, active = ?3,
               total = total + ?4, seal = seal(id, thread, namespace, ?1, ?2, generation + 1, ?3, unreferenced)
               WHERE id = ?5"""
_KEEP_COUNTERS = """UPDATE counters SET value = highest.number FROM
                    (SELECT 'checkpoints' AS name, (SELECT max(seq) FROM checkpoints) AS number
                     UNION ALL SELECT 'operations', (SELECT max(seq) FROM operations)
                     UNION ALL SELECT 'objects', (SELECT max(id) FROM objects)) AS highest
                    WHERE counters.name = highest.name AND counters.value < highest.number"""
_INSERT_HIDDEN = "INSERT INTO hidden (line, operation, after, upto, segment, writes_of) VALUES (?, ?, ?, ?, ?, ?)"
_NEXT_WRITE = "(SELECT 1 + value FROM counters WHERE name = 'writes')"
_NUMBERS_AT_ONCE = 100
_INSERT_WRITE = """INSERT INTO writes (line, checkpoint, task, idx, seq, info, children, seal)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"""
_REPLACE_WRITE = _INSERT_WRITE.replace(
    "NOTHING", "UPDATE SET seq = excluded.seq, info = excluded.info, children = excluded.children"
)
_FROM_CHECKPOINTS = "FROM checkpoints c JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread"
_LINES_OF_NAME = "SELECT l.id FROM lines l JOIN threads t ON t.id = l.thread WHERE t.name = ?"


def _joined(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return stretches (after, up to), those that overlap or touch as one."""
    found: list[tuple[int, int]] = []
    for after, upto in sorted(spans):
        if found and after <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], upto)
        else:
            found.append((after, upto))
    return found


def _search_sources(search: Search, wanted: Wanted) -> list[tuple[str, list[Any]]]:
    """Return the ways to find the threads that a search may be about: queries for their ids, and the values in them."""
    found: list[tuple[str, list[Any]]] = []
    if search.prefix:
        condition, values = _begins_with(search.prefix)
        found.append((f"SELECT t.id AS thread FROM threads t WHERE {condition}", values))
    for labels in wanted.labels:
        text = "SELECT f.thread FROM facts n JOIN lines f ON f.id = n.line WHERE n.label IN (?, ?, ?)"
        found.append((text, list(labels)))
    if search.since is not None:
        found.append(("SELECT f.thread FROM lines f INDEXED BY lines_by_activity WHERE f.active >= ?", [search.since]))
    return found


def _search_conditions(search: Search, wanted: Wanted) -> tuple[str, list[Any]]:
    """Return what a search asks of a thread without a look at its checkpoints, and the values in it."""
    conditions = ["1"]
    values = list[Any]()
    if search.prefix:
        condition, bounds = _begins_with(search.prefix)
        conditions.append(condition)
        values += bounds
    if search.since is not None:
        conditions.append("l.active >= ?")
        values.append(search.since)
    if search.after is not None:
        conditions.append("(l.active, t.name) < (?, ?)")
        values += search.after
        conditions.append("l.active <= ?")  # so that the index is used
        values.append(search.after.active)
    for labels in wanted.labels:
        conditions.append(
            """EXISTS (SELECT 1 FROM lines f JOIN facts n ON n.line = f.id AND n.label IN (?, ?, ?)
                       WHERE f.thread = l.thread)"""
        )
        values += labels
    return " AND ".join(conditions), values


def _begins_with(prefix: str) -> tuple[str, list[Any]]:
    end = prefix_end(prefix)
    if end is None:
        return "t.name >= ?", [prefix]
    return "t.name >= ? AND t.name < ?", [prefix, end]


def _head_to_follow(change: Change, known: _Head | None) -> Stored | None:
    """Return the head that a change only adds a checkpoint to; None: it does more, or the head is not remembered."""
    if known is None or known.stored is None or known.was_moved:
        return None
    if change.head == "never" or change.prune or not is_plain(change):
        return None
    if change.expect not in (ANY, known.stored.record.key.checkpoint_id):
        return None
    return known.stored


def _next(table: str, number: str = "seq") -> str:
    return f"""(SELECT 1 + max(coalesce((SELECT max({number}) FROM {table}), 0),
                               (SELECT value FROM counters WHERE name = '{table}')))"""


def _check_head(thread_id: str, head: int | None, found: object, is_stale: bool) -> None:
    """Refuse a head whose checkpoint was not found, or that is older than what follows it."""
    if head is not None and found is None:
        raise CheckpointCorrupted("the head's checkpoint is missing", thread_id=thread_id)
    if is_stale:
        raise CheckpointCorrupted("the head is older than the newest checkpoint that follows it", thread_id=thread_id)


def _check_newest(thread_id: str, head: int | None, newest: int | None) -> None:
    """Refuse a list of a namespace's checkpoints that ends before the head."""
    if head is not None and (newest is None or newest < head):
        raise CheckpointCorrupted("the head is not among the thread's checkpoints", thread_id=thread_id)


def _end_of(query: Query) -> int | None:
    """Return how many rows are needed for all that a query asks for; None: all there are."""
    return None if query.limit is None else min(query.offset + query.limit, sys.maxsize)


def _hidden_row(line: int, hidden: Hidden) -> tuple[Any, ...]:
    """Return a stretch as `_INSERT_HIDDEN` takes it."""
    return line, hidden.operation, hidden.after, hidden.to, hidden.segment, _packed(hidden.writes_of)


def _write_row(line: int, checkpoint_id: str, write: Write) -> tuple[Any, ...]:
    """Return a write that keeps its number, but for its seal."""
    place = line, pack_id(checkpoint_id), pack_id(write.task_id), write.idx, write.seq
    return *place, pack_write(checkpoint_id, write), write.children


def _place_of(write: Write) -> tuple[str, str, int]:
    """Return where a write stands among those of its checkpoint."""
    return write.task_path, write.task_id, write.idx


def _stored(thread_id: str, namespace: str, family: int | str, row: Sequence[Any]) -> Stored:
    seq, checkpoint_id, step, segment, pinned, added, info, children, root, hidden = row
    record = unpack_record(Key(thread_id, namespace, unpack_id(checkpoint_id)), step, children, info, root)
    return Stored(record, seq, str(family), bool(pinned), bool(hidden), record_digest(info, root), segment, added)


def _listed_head(position: Position, active_kept: Any, row: Sequence[Any]) -> Stored:
    """Return what a thread is listed by, a row of `_LISTED_HEAD`; raise if it is damaged."""
    head_seq, is_stale, *columns = row
    if position.active != active_kept:
        raise CheckpointCorrupted("the index of activity is not that of the thread")
    _check_head(position.thread_id, head_seq, columns[0], is_stale)
    return _listed(columns)


def _damage(exc: Exception) -> CheckpointCorrupted:
    """Return an error about a row as one about damage: whatever it raised, nothing of it is to be believed."""
    if isinstance(exc, CheckpointCorrupted):
        return exc
    return CheckpointCorrupted(f"a row holds something impossible: {exc!r}")


def _listed(row: Sequence[Any]) -> Stored:
    seq, checkpoint_id, step, segment, pinned, added, info, root_digest, hidden, thread_id, namespace, family = row
    record = unpack_record(Key(thread_id, namespace, unpack_id(checkpoint_id)), step, b"", info, None)
    return Stored(
        record, seq, str(family), bool(pinned), bool(hidden), record_digest(info, root_digest), segment, added
    )


# -- ids ---------------------------------------------------------------------------------------------------------------


def _packed(text: str | None) -> str | bytes | None:
    return None if text is None else pack_id(text)


def _ids_before(text: str | None, kind: _IdKind) -> tuple[list[str], list[str | bytes]]:
    """Return the conditions for ids of a kind (None: both) whose text is less than `text`, and the values in them."""
    if kind is str:
        return ["c.id < ?"], [text if text is not None else b""]
    if kind is bytes:
        return ["c.id >= x'' AND c.id < ?"], [_bound(text) if text is not None else _AFTER_ALL]
    if text is None:
        return [], []
    return ["(c.id < ? OR c.id >= x'' AND c.id < ?)"], [text, _bound(text)]


_AFTER_ALL = b"\xff" * 17


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
