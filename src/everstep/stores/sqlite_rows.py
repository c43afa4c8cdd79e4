"""The tables of the SQLite store, as rows inside one transaction. All SQL on them is here.

`Rows` implements `transaction.Transaction`, on which `apply` works, and what the store reads. Values are always bound;
the SQL texts are put together from constants only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import apsw

from everstep.stores.protocol import (
    Deleted,
    Hidden,
    Key,
    Loaded,
    Object,
    Operation,
    Origin,
    Query,
    Stored,
    Thread,
    Write,
)
from everstep.stores.records import (
    matches,
    pack_operation,
    pack_origin,
    pack_sealed,
    packed_filter,
    record_digest,
    unpack_operation,
    unpack_origin,
    unpack_record,
    unpack_sealed,
)
from everstep.stores.transaction import Line, Packed
from everstep.values.tree import FORMAT, hashes

_HIDDEN = """EXISTS (SELECT 1 FROM hidden h WHERE h.line = c.line AND h.writes_of IS NULL
             AND c.seq > h.after AND c.seq <= h.upto)"""
_COLUMNS = "c.seq, c.id, c.step, c.pinned, c.info, c.children, c.root"
_CHECKPOINT = f"{_COLUMNS}, {_HIDDEN}"
_LISTED = f"c.seq, c.id, c.step, c.pinned, c.info, substr(c.root, 1, 8), {_HIDDEN}, t.name, l.namespace, t.family"


class Rows:
    """The tables, inside one transaction of one connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._execute: Callable[..., Any] = connection.execute
        # What this connection has read or written, trusted while nobody else has changed the file: see `begin`.
        self._version = -1
        self._lines: dict[tuple[str, str], tuple[int, str]] = {}
        self._heads: dict[int, Stored | None] = {}
        self._next_seq: int | None = None

    def begin(self) -> None:
        """Start a write transaction; what is remembered stays only if no other connection wrote since."""
        self._execute("BEGIN IMMEDIATE")
        version = self._execute("PRAGMA data_version").get
        if version != self._version or max(len(self._lines), len(self._heads)) >= _REMEMBERED_MAX:
            self.forget()
            self._version = version

    def forget(self) -> None:
        """Drop what is remembered: after a rollback, a deletion, or somebody else's change."""
        self._version, self._next_seq = -1, None
        self._lines.clear()
        self._heads.clear()

    def line(self, thread_id: str, namespace: str) -> Line | None:
        known = self._line(thread_id, namespace)
        if known is None:
            return None
        ref, family = known
        if ref not in self._heads:
            row = self._execute(
                f"SELECT {_COLUMNS} FROM lines l JOIN checkpoints c ON c.seq = l.head WHERE l.id = ?", (ref,)
            ).get
            self._heads[ref] = _stored(thread_id, namespace, family, (*row, False)) if row is not None else None
        return Line(ref, thread_id, namespace, family, self._heads[ref])

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
                return None
            known = self._lines[thread_id, namespace] = row[0], str(row[1])
        return known

    def family(self, thread_id: str) -> str | None:
        family = self._execute("SELECT family FROM threads WHERE name = ?", (thread_id,)).get
        return None if family is None else str(family)

    def checkpoint(self, key: Key) -> Stored | None:
        known = self._line(key.thread_id, key.namespace)
        if known is None:
            return None
        row = self._execute(
            f"SELECT {_COLUMNS} FROM checkpoints c WHERE c.id = ? AND c.line = ?", (key.checkpoint_id, known[0])
        ).get
        return None if row is None else _stored(key.thread_id, key.namespace, known[1], (*row, False))

    # -- reads

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> Loaded | None:
        which = "c.seq = l.head" if checkpoint_id is None else "c.line = l.id AND c.id = ?"
        row = self._execute(
            f"""SELECT l.id, l.generation, t.family, {_CHECKPOINT} FROM threads t JOIN lines l ON l.thread = t.id
                JOIN checkpoints c ON {which} WHERE t.name = ? AND l.namespace = ?""",
            (thread_id, namespace) if checkpoint_id is None else (checkpoint_id, thread_id, namespace),
        ).get
        if row is None:
            return None
        line, generation, family, *checkpoint = row
        stored = _stored(thread_id, namespace, family, checkpoint)
        found = self.below(stored.family, hashes(stored.record.children)) if objects else []
        attached = self._writes(line, stored.record.key.checkpoint_id) if writes else []
        return Loaded(stored, generation, found, attached)

    def _writes(self, line: int, checkpoint_id: str) -> list[Write]:
        rows = self._execute(
            """SELECT seq, task, idx, info, children FROM writes w WHERE line = ?1 AND checkpoint = ?2
               AND NOT EXISTS (SELECT 1 FROM hidden h WHERE h.line = ?1 AND h.writes_of = ?2
                               AND w.seq > h.after AND w.seq <= h.upto)""",
            (line, checkpoint_id),
        )
        found = []
        for seq, task, idx, info, children in rows:
            what = f"a pending write of checkpoint {checkpoint_id!r}"
            channel, path, size, body = unpack_sealed(info, what, *_write_bound(checkpoint_id, task, idx, children))
            found.append(Write(task, idx, channel, children, body, size, path, seq))
        return sorted(found, key=lambda write: (write.task_path, write.task_id, write.idx))

    def find(self, checkpoint_id: str) -> list[Key]:
        rows = self._execute(
            """SELECT t.name, l.namespace, c.id FROM checkpoints c JOIN lines l ON l.id = c.line
               JOIN threads t ON t.id = l.thread WHERE c.id = ? ORDER BY c.seq""",
            (checkpoint_id,),
        )
        return [Key(*row) for row in rows]

    def below(self, family: str, wanted: Iterable[bytes]) -> list[Object]:
        """Return these objects and all below them, one query per level."""
        found: list[Object] = []
        seen = set(wanted)
        level = tuple(seen)
        while level:
            rows = self._execute(
                """SELECT o.hash, o.children, o.body FROM carray(?) k CROSS JOIN objects o
                   ON o.family = ? AND o.hash = k.value""",
                (apsw.carray(level), int(family)),
            ).fetchall()
            found.extend(map(Object._make, rows))
            fresh = {key for _, children, _ in rows if children for key in hashes(children)} - seen
            seen |= fresh
            level = tuple(fresh)
        return found

    def list_checkpoints(self, query: Query) -> list[Stored]:
        conditions = {
            "t.name = ?": query.thread_id,
            "l.namespace = ?": query.namespace,
            "c.id < ?": query.before_id,
            "c.seq < ?": query.before_seq,
            "c.step <= ?": query.step_max,
        }
        asked = {sql: value for sql, value in conditions.items() if value is not None}
        where = " AND ".join([*asked, *([] if query.hidden else [f"NOT {_HIDDEN}"])]) or "1"
        order = "c.id DESC, c.seq DESC" if query.order == "id" else "c.seq DESC"
        sql = f"""SELECT {_LISTED} FROM checkpoints c JOIN lines l ON l.id = c.line
                  JOIN threads t ON t.id = l.thread WHERE {where} ORDER BY {order}"""
        if not query.filter:
            limit = -1 if query.limit is None else query.limit
            rows = self._execute(f"{sql} LIMIT ? OFFSET ?", (*asked.values(), limit, query.offset))
            return [_listed(row) for row in rows]
        return self._filtered(self._execute(sql, tuple(asked.values())), query)

    def _filtered(self, rows: Iterable[Any], query: Query) -> list[Stored]:
        wanted, found, skip = packed_filter(query.filter), list[Stored](), query.offset
        for row in rows:
            if query.limit is not None and len(found) >= query.limit:
                break
            stored = _listed(row)
            if matches(stored.record.metadata, wanted):
                if skip:
                    skip -= 1
                else:
                    found.append(stored)
        return found

    def list_threads(self, limit: int, offset: int) -> list[Stored]:
        rows = self._execute(
            f"""SELECT {_LISTED} FROM
                  (SELECT thread, max(active) AS active,
                          min(CASE WHEN head IS NOT NULL THEN namespace END) AS first FROM lines GROUP BY thread) a
                JOIN lines l ON l.thread = a.thread AND l.namespace = a.first
                JOIN threads t ON t.id = a.thread JOIN checkpoints c ON c.seq = l.head
                ORDER BY a.active DESC, t.id DESC LIMIT ? OFFSET ?""",
            (limit, offset),
        )
        return [_listed(row) for row in rows]

    def thread(self, thread_id: str) -> Thread | None:
        row = self._execute("SELECT id, family, origin, origin_children FROM threads WHERE name = ?", (thread_id,)).get
        if row is None:
            return None
        ref, family, origin, children = row
        heads = self._execute(
            """SELECT l.namespace, c.id, l.generation FROM lines l JOIN checkpoints c ON c.seq = l.head
               WHERE l.thread = ?""",
            (ref,),
        )
        stretches = self._execute(
            """SELECT h.operation, l.namespace, h.after, h.upto, h.writes_of FROM hidden h
               JOIN lines l ON l.id = h.line WHERE l.thread = ?""",
            (ref,),
        )
        hidden: dict[int, list[Hidden]] = {}
        for operation, *stretch in stretches:
            hidden.setdefault(operation, []).append(Hidden(*stretch))
        return Thread(
            thread_id,
            str(family),
            unpack_origin(origin, children, thread_id) if origin is not None else None,
            {namespace: (checkpoint_id, generation) for namespace, checkpoint_id, generation in heads},
            hidden,
        )

    def operations(self, thread_id: str, limit: int) -> list[Operation]:
        rows = self._execute(
            """SELECT o.data, o.seq, o.undone FROM operations o JOIN threads t ON t.id = o.thread
               WHERE t.name = ? ORDER BY o.seq DESC LIMIT ?""",
            (thread_id, limit),
        )
        return [unpack_operation(data, seq, bool(undone)) for data, seq, undone in rows]

    # -- changes

    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        row = self._execute("SELECT id, family FROM threads WHERE name = ?", (thread_id,)).get
        if row is None:
            if family is None:
                family = str(
                    self._execute("INSERT INTO families (format, sweeps) VALUES (?, 0) RETURNING id", (FORMAT,)).get
                )
            row = self._execute(
                "INSERT INTO threads (name, family) VALUES (?, ?) RETURNING id, family", (thread_id, int(family))
            ).get
        ref = self._execute(
            """INSERT INTO lines (thread, namespace, generation, active) VALUES (?, ?, 0, 0)
               ON CONFLICT DO UPDATE SET generation = generation RETURNING id""",
            (row[0], namespace),
        ).get
        return Line(ref, thread_id, namespace, str(row[1]), None)

    def insert(self, line: Line, packed: Packed) -> Stored:
        record = packed.record
        seq: int = self._next_seq or self._execute(f"SELECT {_next('checkpoints')}").get
        self._execute(
            """INSERT INTO checkpoints (seq, line, id, step, pinned, info, children, root)
               VALUES (?, ?, ?, ?, 0, ?, ?, ?)""",
            (seq, line.ref, record.key.checkpoint_id, record.step, packed.info, record.children, packed.root),
        )
        self._next_seq = seq + 1
        return Stored(record, seq, line.family, digest=packed.digest)

    def replace(self, _line: Line, old: Stored, packed: Packed) -> Stored:
        record = packed.record
        self._execute(
            "UPDATE checkpoints SET step = ?, info = ?, children = ?, root = ? WHERE seq = ?",
            (record.step, packed.info, record.children, packed.root, old.seq),
        )
        self._heads.clear()
        return old._replace(record=record, digest=packed.digest)

    def add_objects(self, family: str, objects: Sequence[Object]) -> None:
        if objects:
            number = int(family)
            self._connection.executemany(
                "INSERT OR REPLACE INTO objects (family, hash, children, body) VALUES (?, ?, ?, ?)",
                [(number, *obj) for obj in objects],
            )

    def set_head(self, line: Line, stored: Stored | None) -> None:
        self._execute(
            "UPDATE lines SET head = ?, generation = generation + 1, active = ? WHERE id = ?",
            (stored.seq if stored is not None else None, _now(), line.ref),
        )
        self._heads[line.ref] = stored

    def set_origin(self, thread_id: str, origin: Origin) -> None:
        self._execute(
            "UPDATE threads SET origin = ?, origin_children = ? WHERE name = ?",
            (pack_origin(origin, thread_id), origin.children, thread_id),
        )

    def set_pinned(self, stored: Stored, pinned: bool) -> None:
        self._execute("UPDATE checkpoints SET pinned = ? WHERE seq = ?", (pinned, stored.seq))
        self._heads.clear()

    def add_operation(self, thread_id: str, operation: Operation) -> int:
        seq: int = self._execute(f"SELECT {_next('operations')}").get
        self._execute(
            "INSERT INTO operations (seq, thread, undone, data) SELECT ?, id, ?, ? FROM threads WHERE name = ?",
            (seq, operation.undone, pack_operation(operation, seq), thread_id),
        )
        return seq

    def set_undone(self, thread_id: str, seq: int, undone: bool) -> None:
        self._execute(
            "UPDATE operations SET undone = ? WHERE seq = ? AND thread = (SELECT id FROM threads WHERE name = ?)",
            (undone, seq, thread_id),
        )

    def hide(self, line: Line, operation: int, hidden: Hidden) -> None:
        self._execute(
            "INSERT INTO hidden (line, operation, after, upto, writes_of) VALUES (?, ?, ?, ?, ?)",
            (line.ref, operation, hidden.after, hidden.to, hidden.writes_of),
        )

    def show(self, thread_id: str, operation: int) -> None:
        self._execute(f"DELETE FROM hidden WHERE operation = ? AND line IN ({_LINES_OF_NAME})", (operation, thread_id))

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None:
        bound = _write_bound(checkpoint_id, write.task_id, write.idx, write.children)
        info = pack_sealed([write.channel, write.task_path, write.size, write.body], *bound)
        self._execute(
            f"""INSERT INTO writes (seq, line, checkpoint, task, idx, info, children)
                VALUES ({_next("writes")}, ?, ?, ?, ?, ?, ?)
                ON CONFLICT DO {
                "UPDATE SET seq = excluded.seq, info = excluded.info, children = excluded.children"
                if write.idx < 0
                else "NOTHING"
            }""",
            (line.ref, checkpoint_id, write.task_id, write.idx, info, write.children),
        )

    def delete(self, thread_id: str, keys: Collection[Key] | None, before_step: int | None) -> Deleted:
        row = self._execute("SELECT id, family FROM threads WHERE name = ?", (thread_id,)).get
        if row is None:
            return Deleted(0, frozenset())
        thread, family = row
        self.forget()
        self._keep_counters()
        count = 0
        for line, namespace, head in self._execute(
            "SELECT id, namespace, head FROM lines WHERE thread = ?", (thread,)
        ).fetchall():
            if keys is not None:
                names = [(line, key.checkpoint_id) for key in keys if key[:2] == (thread_id, namespace)]
                for name in names:
                    self._execute("DELETE FROM writes WHERE line = ? AND checkpoint = ?", name)
                    self._execute("DELETE FROM checkpoints WHERE line = ? AND id = ?", name)
                    count += self._connection.changes()
            elif before_step is not None:
                count += self._delete_rows(line, "step < ?", before_step)
            else:
                count += self._delete_rows(line, "?", True)
                self._execute("DELETE FROM writes WHERE line = ?", (line,))
            self._settle(line, head)
        if self._execute("SELECT 1 FROM lines WHERE thread = ?", (thread,)).get is None:
            self._execute("DELETE FROM operations WHERE thread = ?", (thread,))
            self._execute("DELETE FROM threads WHERE id = ?", (thread,))
        if self._execute("SELECT 1 FROM threads WHERE family = ?", (family,)).get is not None:
            return Deleted(count, frozenset({str(family)}) if count else frozenset())
        self._execute("DELETE FROM objects WHERE family = ?", (family,))
        self._execute("DELETE FROM families WHERE id = ?", (family,))
        return Deleted(count, frozenset())

    def _delete_rows(self, line: int, condition: str, value: Any) -> int:
        self._execute(
            f"""DELETE FROM writes WHERE line = ?1 AND checkpoint IN
                (SELECT id FROM checkpoints WHERE line = ?1 AND {condition.replace("?", "?2")})""",
            (line, value),
        )
        self._execute(f"DELETE FROM checkpoints WHERE line = ?1 AND {condition.replace('?', '?2')}", (line, value))
        return self._connection.changes()

    def _settle(self, line: int, head: int | None) -> None:
        """After deletion: move a head that is gone to the newest left, and drop a line that is empty."""
        if head is not None and self._execute("SELECT 1 FROM checkpoints WHERE seq = ?", (head,)).get is None:
            self._execute(
                f"""UPDATE lines SET generation = generation + 1, head =
                    (SELECT max(c.seq) FROM checkpoints c WHERE c.line = ?1 AND NOT {_HIDDEN}) WHERE id = ?1""",
                (line,),
            )
        empty = self._execute(
            """SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM checkpoints WHERE line = ?1)
               AND NOT EXISTS (SELECT 1 FROM writes WHERE line = ?1)""",
            (line,),
        ).get
        if empty:
            self._execute("DELETE FROM hidden WHERE line = ?", (line,))
            # What is left of the thread was active when this was.
            self._execute(
                """UPDATE lines SET active = max(active, (SELECT active FROM lines WHERE id = ?1))
                   WHERE thread = (SELECT thread FROM lines WHERE id = ?1)""",
                (line,),
            )
            self._execute("DELETE FROM lines WHERE id = ?", (line,))

    def _keep_counters(self) -> None:
        """Remember the highest numbers before rows go, so that none is given twice."""
        for table in ("checkpoints", "writes", "operations"):
            self._execute(f"UPDATE counters SET value = {_next(table)} - 1 WHERE name = '{table}'")

    # -- sweeping

    def unreachable(self, family: str) -> tuple[int, list[tuple[int, int]]]:
        """Return the family's count of sweeps and (rowid, size) of each object that nothing reaches."""
        number = int(family)
        sweeps = self._execute("SELECT sweeps FROM families WHERE id = ?", (number,)).get
        if sweeps is None:
            return 0, []
        children: dict[bytes, bytes] = {}
        rows: dict[bytes, tuple[int, int]] = {}
        for rowid, key, below, size in self._execute(
            "SELECT id, hash, children, length(children) + length(body) FROM objects WHERE family = ?", (number,)
        ):
            children[key], rows[key] = below, (rowid, size)
        pending = [key for (root,) in self._roots(number) for key in hashes(root)]
        while pending:
            key = pending.pop()
            if rows.pop(key, None) is not None:
                pending.extend(hashes(children[key]))
        return sweeps, sorted(rows.values())

    def _roots(self, family: int) -> Iterator[tuple[bytes]]:
        lines = "SELECT l.id FROM lines l JOIN threads t ON t.id = l.thread WHERE t.family = ?1"
        yield from self._execute(
            f"""SELECT children FROM checkpoints WHERE line IN ({lines})
                UNION ALL SELECT children FROM writes WHERE line IN ({lines})
                UNION ALL SELECT origin_children FROM threads WHERE family = ?1 AND origin_children IS NOT NULL""",
            (family,),
        )

    def remove_objects(self, family: str, rowids: list[int], expected_sweeps: int) -> int | None:
        """Delete objects by rowid and return the new count of sweeps; None if another sweep came first."""
        sweeps: int | None = self._execute(
            "UPDATE families SET sweeps = sweeps + 1 WHERE id = ? AND sweeps = ? RETURNING sweeps",
            (int(family), expected_sweeps),
        ).get
        if sweeps is not None:
            self._connection.executemany("DELETE FROM objects WHERE id = ?", [(rowid,) for rowid in rowids])
        return sweeps

    def shrink(self) -> bool:
        """Give some free pages back to the file system; return whether more are left to give."""
        free: int = self._connection.pragma("freelist_count")
        pages: int = self._connection.pragma("page_count")
        if free <= max(16, pages // 20):  # a little room is kept: the next snapshots will need it
            return False
        self._execute(f"PRAGMA incremental_vacuum({min(free, 1000)})").fetchall()  # frees a page per step
        return free > 1000


_REMEMBERED_MAX = 10_000
_LINES_OF_NAME = "SELECT l.id FROM lines l JOIN threads t ON t.id = l.thread WHERE t.name = ?"


def _next(table: str) -> str:
    return f"""(SELECT 1 + max(coalesce((SELECT max(seq) FROM {table}), 0),
                               (SELECT value FROM counters WHERE name = '{table}')))"""


def _stored(thread_id: str, namespace: str, family: int | str, row: Sequence[Any]) -> Stored:
    seq, checkpoint_id, step, pinned, info, children, root, hidden = row
    record = unpack_record(Key(thread_id, namespace, checkpoint_id), step, children, info, root)
    return Stored(record, seq, str(family), bool(pinned), bool(hidden), record_digest(info, root))


def _listed(row: Sequence[Any]) -> Stored:
    seq, checkpoint_id, step, pinned, info, root_digest, hidden, thread_id, namespace, family = row
    record = unpack_record(Key(thread_id, namespace, checkpoint_id), step, b"", info, None)
    return Stored(record, seq, str(family), bool(pinned), bool(hidden), record_digest(info, root_digest))


def _write_bound(checkpoint_id: str, task_id: str, idx: int, children: bytes) -> tuple[bytes, ...]:
    return checkpoint_id.encode(), task_id.encode(), b"%d" % idx, children


_last_now = 0


def _now() -> int:
    """Return microseconds that only grow within this process."""
    global _last_now
    _last_now = max(time.time_ns() // 1000, _last_now + 1)
    return _last_now
