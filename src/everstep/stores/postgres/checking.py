"""A look at the tables of a PostgreSQL store: rows whose owners are missing, counts and indexes that do not agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everstep.reports import Finding
from everstep.stores.inspection import Lost, finding_about
from everstep.stores.postgres.forms import labels, unpacked_id
from everstep.stores.postgres.rows import Rows
from everstep.stores.protocol import Key
from everstep.stores.records import unpack_origin, unpack_record, unpack_segment, unpack_write
from everstep.stores.sql_checking import (
    UNREADABLE,
    Content,
    Rule,
    Tables,
    apply_fixes,
    broken_rules,
    cover_again,
    findings,
    read_operation,
    read_shared_state,
    take_unreadable,
)

_OF_LINE = """(SELECT t.name FROM {lines} l JOIN {threads} t ON t.family = l.family AND t.id = l.thread
              WHERE l.family = x.family AND l.id = x.line)"""
_OF_THREAD = """coalesce((SELECT t.name FROM {threads} t WHERE t.family = x.family AND t.id = x.thread),
                (SELECT n.name FROM {names} n WHERE n.family = x.family AND n.thread = x.thread LIMIT 1))"""
_OF_FAMILY = "(SELECT t.name FROM {threads} t WHERE t.family = x.family LIMIT 1)"
_OWNERS = {
    "families": "(SELECT t.name FROM {threads} t WHERE t.family = x.id LIMIT 1)",
    "names": "x.name",
    "threads": "x.name",
    "lines": _OF_THREAD,
    "segments": f"coalesce({_OF_LINE}, {_OF_FAMILY})",
    "checkpoints": f"coalesce({_OF_LINE}, {_OF_FAMILY})",
    "writes": f"coalesce({_OF_LINE}, {_OF_FAMILY})",
    "operations": f"coalesce({_OF_THREAD}, {_OF_FAMILY})",
    "hidden": f"coalesce({_OF_LINE}, {_OF_FAMILY})",
    "covers": f"coalesce({_OF_LINE}, {_OF_FAMILY})",
    "shared_states": "(SELECT t.name FROM {threads} t WHERE t.family = x.family AND t.id IN (x.low, x.high) LIMIT 1)",
    "objects": _OF_FAMILY,
}
"""By table: the name of a thread that a row is of."""

_NO_LINE = "NOT EXISTS (SELECT 1 FROM {lines} l WHERE l.family = x.family AND l.id = x.line)"
_NO_THREAD = "NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.family = x.family AND t.id = x.thread)"
_NO_FAMILY = "NOT EXISTS (SELECT 1 FROM {families} f WHERE f.id = x.family)"
_COUNT = "(SELECT count(*) FROM {%s} c WHERE c.family = x.family AND c.%s = x.id)"


_RULES = [
    Rule("thread", "threads", "its family is missing", "x.id", _NO_FAMILY,
          """INSERT INTO {families} (id, format, sweeps, live, generation, shift)
             SELECT DISTINCT x.family, 1, 0, 0, 0::bigint, 0 FROM {threads} x WHERE """ + _NO_FAMILY),
    Rule("thread", "names", "its row of threads is missing", "x.thread", _NO_THREAD,
          """INSERT INTO {threads} (family, id, name) SELECT x.family, x.thread, x.name FROM {names} x
             WHERE """ + _NO_THREAD),
    Rule("thread", "threads", "its name is missing", "x.id", """NOT EXISTS
          (SELECT 1 FROM {names} n WHERE n.name = x.name AND n.family = x.family AND n.thread = x.id)""",
          """INSERT INTO {names} (name, family, thread) SELECT x.name, x.family, x.id FROM {threads} x
             ON CONFLICT (name) DO UPDATE SET family = excluded.family, thread = excluded.thread
             WHERE NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.name = excluded.name AND t.family = {names}.family
                               AND t.id = {names}.thread)"""),
    Rule("row", "families", "a family without threads", "x.id",
          "NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.family = x.id)", "delete"),
    Rule("thread", "lines", "a namespace of a thread that is not there", "x.id", _NO_THREAD, "delete"),
    Rule("thread", "threads", "a wrong count of namespaces", "x.lines", "x.lines <> " + _COUNT % ("lines", "thread"),
          "UPDATE {threads} x SET lines = " + _COUNT % ("lines", "thread")),
    Rule("operation", "threads", "a wrong count of operations", "x.operations",
          "x.operations <> " + _COUNT % ("operations", "thread"),
          "UPDATE {threads} x SET operations = " + _COUNT % ("operations", "thread")),
    Rule("index", "lines", "a wrong count of checkpoints", "x.stored",
          "x.stored <> " + _COUNT % ("checkpoints", "line"),
          "UPDATE {lines} x SET stored = " + _COUNT % ("checkpoints", "line")),
    Rule("hidden", "lines", "a wrong count of hidden stretches", "x.stretches",
          "x.stretches <> " + _COUNT % ("hidden", "line"),
          "UPDATE {lines} x SET stretches = " + _COUNT % ("hidden", "line")),
    Rule("segment", "lines", "a wrong count of segments", "x.segments",
          "x.segments <> " + _COUNT % ("segments", "line"),
          "UPDATE {lines} x SET segments = " + _COUNT % ("segments", "line")),
    Rule("head", "lines", "a head that is not there", "x.head", """x.head IS NOT NULL AND NOT EXISTS
          (SELECT 1 FROM {checkpoints} c WHERE c.family = x.family AND c.line = x.id AND c.seq = x.head)"""),
    Rule("head", "lines", "a head that is not the newest of its segment", "x.head",
          """NOT x.head_was_moved AND NOT x.incoming AND EXISTS
          (SELECT 1 FROM {checkpoints} h JOIN {checkpoints} c ON c.family = h.family AND c.line = h.line
           AND c.segment = h.segment AND c.seq > h.seq
           WHERE h.family = x.family AND h.line = x.id AND h.seq = x.head)"""),
    Rule("row", "checkpoints", "a checkpoint of a namespace that is not there", "x.seq", _NO_LINE, "delete"),
    Rule("origin", "checkpoints", "a wrong count of branches", "x.seq", """x.branches <>
          (SELECT count(*) FROM {threads} t WHERE t.family = x.family AND t.began = x.seq)""",
          """UPDATE {checkpoints} x SET branches = (SELECT count(*) FROM {threads} t WHERE t.family = x.family
             AND t.began = x.seq) WHERE x.branches <> (SELECT count(*) FROM {threads} t WHERE t.family = x.family
             AND t.began = x.seq)"""),
    Rule("origin", "threads", "a beginning without an origin", "x.began", "x.began IS NOT NULL AND x.origin IS NULL",
          "UPDATE {threads} x SET began = NULL WHERE x.began IS NOT NULL AND x.origin IS NULL"),
    Rule("segment", "checkpoints", "a checkpoint before its segment", "x.seq", "x.segment > x.seq"),
    Rule("row", "objects", "an object of a family that is not there", "x.id", _NO_FAMILY, "delete"),
    Rule("write", "writes", "a pending write of a namespace that is not there", "x.seq", _NO_LINE, "delete"),
    Rule("operation", "operations", "an operation of a thread that is not there", "x.seq", _NO_THREAD, "delete"),
    Rule("hidden", "hidden", "something hidden of a namespace that is not there", "x.line", _NO_LINE, "delete"),
    Rule("hidden", "hidden", "something hidden that no cover has", "x.line", """x.writes_of IS NULL AND NOT EXISTS
          (SELECT 1 FROM {covers} v WHERE v.family = x.family AND v.line = x.line AND v.segment = coalesce(x.segment, 0)
           AND v.after <= x.after AND v.upto >= x.upto)"""),
    Rule("hidden", "covers", "a cover of what nothing hides", "x.upto", """EXISTS
          (SELECT 1 FROM {checkpoints} c WHERE c.family = x.family AND c.line = x.line AND c.seq > x.after
           AND c.seq <= x.upto AND x.segment IN (0, c.segment) AND NOT EXISTS
           (SELECT 1 FROM {hidden} h WHERE h.family = x.family AND h.line = x.line AND h.writes_of IS NULL
            AND coalesce(h.segment, 0) = x.segment AND c.seq > h.after AND c.seq <= h.upto))"""),
    Rule("hidden", "covers", "a cover of a namespace that is not there", "x.line", _NO_LINE, "delete"),
    Rule("segment", "segments", "a segment of a family that is not there", "x.segment", _NO_FAMILY, "delete"),
    Rule("segment", "segments", "a segment of a namespace that is not there", "x.segment",
          "x.line IS NOT NULL AND " + _NO_LINE,
          "UPDATE {segments} x SET line = NULL WHERE x.line IS NOT NULL AND " + _NO_LINE),
    Rule("shared state", "shared_states", "a common state of a thread that is not there", "x.seq", """x.low >= x.high
          OR NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.family = x.family AND t.id = x.low)
          OR NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.family = x.family AND t.id = x.high)""", "delete"),
]  # fmt: skip


def thread_names(rows: Rows) -> list[str]:
    """Return the names of all threads that a table tells of."""
    found = rows._all("SELECT name FROM {threads} UNION SELECT name FROM {names}")
    return sorted({_text(name) for (name,) in found})


def problems(rows: Rows) -> list[Finding]:
    """Return all that is wrong with tables and indexes, as of one moment."""
    tables = _tables(rows)
    wrong = [*broken_rules(tables, _RULES, _OWNERS), *findings(tables, (_ORIGINS, *_TOLD))]
    return [*wrong, *_wrong_labels(rows)]


def mend(rows: Rows, *, dry_run: bool) -> list[Lost]:
    """Put right what can be, rule by rule, until nothing more goes, and return the rows that went."""
    lost: list[Lost] = []
    tables = _tables(rows)
    # What one rule takes away may be what another one needs, so all are applied until nothing changes.
    for _ in range(_ROUNDS_MAX):
        gone = take_unreadable(tables, (*_TOLD, _WRITES), _ORIGINS, dry_run=dry_run)
        gone += apply_fixes(tables, _RULES, dry_run=dry_run)
        lost += gone
        # One round is enough to tell: the next would find the same, since nothing is taken away.
        if dry_run:
            break
        cover_again(tables)
        for statement in _HEADS:
            rows._do(statement)
        if not gone:
            break
    if not dry_run:
        statement = "UPDATE {checkpoints} SET labels = %s WHERE family = %s AND line = %s AND seq = %s"
        for _, place, wanted in _labels_to_set(rows):
            rows._do(statement, (wanted, *place))
    return lost


_ROUNDS_MAX = 4
_VISIBLE = """NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = c.family AND v.line = c.line
              AND v.segment IN (0, c.segment) AND c.seq > v.after AND c.seq <= v.upto)"""
_HEADS = (
    f"""UPDATE {{lines}} x SET generation = generation + 1, head_was_moved = true, head =
        (SELECT max(c.seq) FROM {{checkpoints}} c WHERE c.family = x.family AND c.line = x.id AND {_VISIBLE})
        WHERE head IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM {{checkpoints}} c WHERE c.family = x.family AND c.line = x.id AND c.seq = x.head)""",
    """UPDATE {lines} x SET generation = generation + 1, head = n.newest FROM
       (SELECT h.family, h.line, h.seq, max(c.seq) AS newest FROM {checkpoints} h JOIN {checkpoints} c
        ON c.family = h.family AND c.line = h.line AND c.segment = h.segment GROUP BY h.family, h.line, h.seq) n
       WHERE n.family = x.family AND n.line = x.id AND n.seq = x.head AND n.newest > x.head
       AND NOT x.head_was_moved AND NOT x.incoming""",
)


def stored_rows(rows: Rows, keys: Sequence[Key]) -> list[Lost]:
    """Return checkpoints as they are stored."""
    found: list[Lost] = []
    for key in keys:
        for row in rows._all(
            """SELECT c.* FROM {checkpoints} c JOIN {lines} l ON l.family = c.family AND l.id = c.line
               JOIN {threads} t ON t.family = l.family AND t.id = l.thread
               WHERE c.id = %s AND t.name = %s AND l.namespace = %s""",
            (key.checkpoint_id.encode(), key.thread_id.encode(), key.namespace.encode()),
        ):
            found.append(Lost("a checkpoint", *key, stored=["checkpoints", *row]))
    return found


def _tables(rows: Rows) -> Tables:
    return Tables(rows._all, rows._do, _text_or_none, "%s", ("family", "line"))


def _read_write(name: bytes, task: bytes, idx: int, seq: int, info: bytes, children: bytes) -> object:
    return unpack_write(unpacked_id(name), seq, unpacked_id(task), idx, info, children)


def _read_shared_state(low: bytes, high: bytes, *state: Any) -> object:
    return read_shared_state(_text(low), _text(high), *state)


def _read_origin(origin: bytes, name: bytes) -> object:
    return unpack_origin(origin, _text(name))


_TOLD = (
    Content("operation", "operations", ("family", "thread", "seq"), _OWNERS["operations"],
            "x.data, x.seq FROM {operations} x", read_operation),
    Content("segment", "segments", ("family", "segment"), _OWNERS["segments"],
            "x.segment, x.data FROM {segments} x", unpack_segment),
    Content("shared state", "shared_states", ("family", "low", "high", "seq"), "a.name",
            """a.name, b.name, x.seq, x.data, x.children FROM {shared_states} x
               JOIN {threads} a ON a.family = x.family AND a.id = x.low
               JOIN {threads} b ON b.family = x.family AND b.id = x.high""", _read_shared_state),
)  # fmt: skip
# These are found by those who read checkpoints.
_WRITES = Content("write", "writes", ("family", "line", "checkpoint", "task", "idx"), "NULL",
                  "x.checkpoint, x.task, x.idx, x.seq, x.info, x.children FROM {writes} x", _read_write)  # fmt: skip
_ORIGINS = Content("origin", "threads", ("name",), "x.name",
                   "x.origin, x.name FROM {threads} x WHERE x.origin IS NOT NULL", _read_origin)  # fmt: skip


def _wrong_labels(rows: Rows) -> list[Finding]:
    return [
        finding_about("index", "it would not be found by its metadata or tags", key.thread_id, key.checkpoint_id)
        for key, _, _ in _labels_to_set(rows)
    ]


def _labels_to_set(rows: Rows) -> list[tuple[Key, tuple[int, int, int], list[int] | None]]:
    """Return the checkpoints whose labels are not those that their metadata has, and the right ones."""
    wrong = []
    # The cursor below goes past the statements that wait, so they are sent before.
    rows.send()
    # A cursor on the server: a store may hold more checkpoints than this process has memory.
    with rows.connection.cursor(name="everstep_labels", binary=True) as cursor:
        cursor.execute(
            rows._tables(
                """SELECT t.name, l.namespace, c.id, c.step, c.info, c.labels, c.family, c.line, c.seq
                   FROM {checkpoints} c JOIN {lines} l ON l.family = c.family AND l.id = c.line
                   JOIN {threads} t ON t.family = l.family AND t.id = l.thread"""
            )
        )
        for name, namespace, checkpoint_id, step, info, held, *place in cursor:
            key = Key(_text(name), _text(namespace), _text(checkpoint_id))
            try:
                record = unpack_record(key, step, b"", info, None)
            except UNREADABLE:
                # Whoever reads it reports that.
                continue
            wanted = labels(record.metadata, record.tags)
            # Labels too many do no harm: what is found by them is looked at again.
            if set(wanted or ()) - set(held or ()):
                family, line, seq = place
                wrong.append((key, (family, line, seq), wanted))
    return wrong


def _text_or_none(name: bytes | None) -> str | None:
    return _text(name) if name is not None else None


def _text(name: bytes) -> str:
    return bytes(name).decode("utf-8", "replace")
