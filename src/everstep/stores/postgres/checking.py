"""A look at the tables of a PostgreSQL store: rows whose owners are missing, counts and indexes that do not agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.reports import Finding
from everstep.stores.covers import Covers
from everstep.stores.inspection import Lost, finding_about
from everstep.stores.postgres.forms import labels, unpacked_id
from everstep.stores.postgres.rows import Rows
from everstep.stores.protocol import Hidden, Key
from everstep.stores.records import (
    unpack_common,
    unpack_operation,
    unpack_origin,
    unpack_record,
    unpack_segment,
    unpack_write,
)

# Of one kind: a lost table would otherwise be told row by row.
_FINDINGS_MAX = 1000
_UNREADABLE = (CheckpointCorrupted, TypeError, ValueError, AttributeError, OverflowError)

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


class _Rule(NamedTuple):
    """What cannot be, as the condition that finds it, and what puts it right."""

    kind: str
    table: str
    what: str
    number: str
    condition: str
    fix: str = ""
    """A statement; "delete": the rows that were found go."""


_RULES = [
    _Rule("thread", "threads", "its family is missing", "x.id", _NO_FAMILY,
          """INSERT INTO {families} (id, format, sweeps, live, generation, shift)
             SELECT DISTINCT x.family, 1, 0, 0, 0::bigint, 0 FROM {threads} x WHERE """ + _NO_FAMILY),
    _Rule("thread", "names", "its row of threads is missing", "x.thread", _NO_THREAD,
          """INSERT INTO {threads} (family, id, name) SELECT x.family, x.thread, x.name FROM {names} x
             WHERE """ + _NO_THREAD),
    _Rule("thread", "threads", "its name is missing", "x.id", """NOT EXISTS
          (SELECT 1 FROM {names} n WHERE n.name = x.name AND n.family = x.family AND n.thread = x.id)""",
          """INSERT INTO {names} (name, family, thread) SELECT x.name, x.family, x.id FROM {threads} x
             ON CONFLICT (name) DO UPDATE SET family = excluded.family, thread = excluded.thread
             WHERE NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.name = excluded.name AND t.family = {names}.family
                               AND t.id = {names}.thread)"""),
    _Rule("row", "families", "a family without threads", "x.id",
          "NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.family = x.id)", "delete"),
    _Rule("thread", "lines", "a namespace of a thread that is not there", "x.id", _NO_THREAD, "delete"),
    _Rule("thread", "threads", "a wrong count of namespaces", "x.lines", "x.lines <> " + _COUNT % ("lines", "thread"),
          "UPDATE {threads} x SET lines = " + _COUNT % ("lines", "thread")),
    _Rule("operation", "threads", "a wrong count of operations", "x.operations",
          "x.operations <> " + _COUNT % ("operations", "thread"),
          "UPDATE {threads} x SET operations = " + _COUNT % ("operations", "thread")),
    _Rule("index", "lines", "a wrong count of checkpoints", "x.stored",
          "x.stored <> " + _COUNT % ("checkpoints", "line"),
          "UPDATE {lines} x SET stored = " + _COUNT % ("checkpoints", "line")),
    _Rule("hidden", "lines", "a wrong count of hidden stretches", "x.stretches",
          "x.stretches <> " + _COUNT % ("hidden", "line"),
          "UPDATE {lines} x SET stretches = " + _COUNT % ("hidden", "line")),
    _Rule("segment", "lines", "a wrong count of segments", "x.segments",
          "x.segments <> " + _COUNT % ("segments", "line"),
          "UPDATE {lines} x SET segments = " + _COUNT % ("segments", "line")),
    _Rule("head", "lines", "a head that is not there", "x.head", """x.head IS NOT NULL AND NOT EXISTS
          (SELECT 1 FROM {checkpoints} c WHERE c.family = x.family AND c.line = x.id AND c.seq = x.head)"""),
    _Rule("head", "lines", "a head that is not the newest of its segment", "x.head",
          """NOT x.head_was_moved AND NOT x.incoming AND EXISTS
          (SELECT 1 FROM {checkpoints} h JOIN {checkpoints} c ON c.family = h.family AND c.line = h.line
           AND c.segment = h.segment AND c.seq > h.seq
           WHERE h.family = x.family AND h.line = x.id AND h.seq = x.head)"""),
    _Rule("row", "checkpoints", "a checkpoint of a namespace that is not there", "x.seq", _NO_LINE, "delete"),
    _Rule("origin", "checkpoints", "a wrong count of branches", "x.seq", """x.branches <>
          (SELECT count(*) FROM {threads} t WHERE t.family = x.family AND t.began = x.seq)""",
          """UPDATE {checkpoints} x SET branches = (SELECT count(*) FROM {threads} t WHERE t.family = x.family
             AND t.began = x.seq) WHERE x.branches <> (SELECT count(*) FROM {threads} t WHERE t.family = x.family
             AND t.began = x.seq)"""),
    _Rule("origin", "threads", "a beginning without an origin", "x.began", "x.began IS NOT NULL AND x.origin IS NULL",
          "UPDATE {threads} x SET began = NULL WHERE x.began IS NOT NULL AND x.origin IS NULL"),
    _Rule("segment", "checkpoints", "a checkpoint before its segment", "x.seq", "x.segment > x.seq"),
    _Rule("row", "objects", "an object of a family that is not there", "x.id", _NO_FAMILY, "delete"),
    _Rule("write", "writes", "a pending write of a namespace that is not there", "x.seq", _NO_LINE, "delete"),
    _Rule("operation", "operations", "an operation of a thread that is not there", "x.seq", _NO_THREAD, "delete"),
    _Rule("hidden", "hidden", "something hidden of a namespace that is not there", "x.line", _NO_LINE, "delete"),
    _Rule("hidden", "hidden", "something hidden that no cover has", "x.line", """x.writes_of IS NULL AND NOT EXISTS
          (SELECT 1 FROM {covers} v WHERE v.family = x.family AND v.line = x.line AND v.segment = coalesce(x.segment, 0)
           AND v.after <= x.after AND v.upto >= x.upto)"""),
    _Rule("hidden", "covers", "a cover of what nothing hides", "x.upto", """EXISTS
          (SELECT 1 FROM {checkpoints} c WHERE c.family = x.family AND c.line = x.line AND c.seq > x.after
           AND c.seq <= x.upto AND x.segment IN (0, c.segment) AND NOT EXISTS
           (SELECT 1 FROM {hidden} h WHERE h.family = x.family AND h.line = x.line AND h.writes_of IS NULL
            AND coalesce(h.segment, 0) = x.segment AND c.seq > h.after AND c.seq <= h.upto))"""),
    _Rule("hidden", "covers", "a cover of a namespace that is not there", "x.line", _NO_LINE, "delete"),
    _Rule("segment", "segments", "a segment of a family that is not there", "x.segment", _NO_FAMILY, "delete"),
    _Rule("segment", "segments", "a segment of a namespace that is not there", "x.segment",
          "x.line IS NOT NULL AND " + _NO_LINE,
          "UPDATE {segments} x SET line = NULL WHERE x.line IS NOT NULL AND " + _NO_LINE),
    _Rule("shared state", "shared_states", "a common state of a thread that is not there", "x.seq", """x.low >= x.high
          OR NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.family = x.family AND t.id = x.low)
          OR NOT EXISTS (SELECT 1 FROM {threads} t WHERE t.family = x.family AND t.id = x.high)""", "delete"),
]  # fmt: skip


def thread_names(rows: Rows) -> list[str]:
    """Return the names of all threads that a table tells of."""
    found = rows._all("SELECT name FROM {threads} UNION SELECT name FROM {names}")
    return sorted({_text(name) for (name,) in found})


def problems(rows: Rows) -> list[Finding]:
    """Return all that is wrong with tables and indexes, as of one moment."""
    found: list[Finding] = []
    for rule in _RULES:
        owner = _OWNERS[rule.table]
        query = f"SELECT {owner}, {rule.number} FROM {{{rule.table}}} x WHERE {rule.condition} LIMIT {_FINDINGS_MAX}"
        for name, number in rows._all(query):
            found.append(finding_about(rule.kind, f"{rule.what} ({number})", _text_or_none(name)))
    return [*found, *_wrong_content(rows), *_wrong_labels(rows)]


def mend(rows: Rows, *, dry_run: bool) -> list[Lost]:
    """Put right what can be, rule by rule, until nothing more goes, and return the rows that went."""
    lost: list[Lost] = []
    # What one rule takes away may be what another one needs, so all are applied until nothing changes.
    for _ in range(_ROUNDS_MAX):
        gone = _take_unreadable(rows, dry_run=dry_run)
        for rule in _RULES:
            if rule.fix == "delete":
                gone += _take(rows, rule.table, rule.what, rule.condition, (), dry_run=dry_run)
            elif rule.fix and not dry_run:
                rows._do(rule.fix)
        lost += gone
        # One round is enough to tell: the next would find the same, since nothing is taken away.
        if dry_run:
            break
        _cover_again(rows)
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


def _take(rows: Rows, table: str, what: str, condition: str, values: Sequence[Any], *, dry_run: bool) -> list[Lost]:
    """Delete rows, and return them."""
    gone = rows._all(f"SELECT x.* FROM {{{table}}} x WHERE {condition}", values)
    if gone and not dry_run:
        rows._do(f"DELETE FROM {{{table}}} x WHERE {condition}", values)
    return [Lost(what, stored=[table, *row]) for row in gone]


def _take_unreadable(rows: Rows, *, dry_run: bool) -> list[Lost]:
    lost: list[Lost] = []
    for content in _CONTENTS:
        condition = " AND ".join(f"x.{key} = %s" for key in content.keys)
        what = f"a row of {content.table} that cannot be read"
        for unreadable in _unreadable(rows, content):
            lost += _take(rows, content.table, what, condition, unreadable.place, dry_run=dry_run)
    for unreadable in _unreadable(rows, _ORIGINS):
        (name,) = unreadable.place
        lost.append(Lost("where a branch began", _text(name), stored=unreadable.values[0]))
        if not dry_run:
            rows._do("UPDATE {threads} SET origin = NULL, began = NULL WHERE name = %s", (name,))
    return lost


class _Content(NamedTuple):
    """Rows that have a checksum inside: how they are told apart, whose they are, and how they are read."""

    kind: str
    """Of a finding; empty: it is found by those who read checkpoints."""
    table: str
    keys: Sequence[str]
    owner: str
    values: str
    """What `read` takes, and where it is from."""
    read: Callable[..., object]


class _Unreadable(NamedTuple):
    place: Sequence[Any]
    owner: bytes | None
    values: Sequence[Any]
    error: Exception


def _read_operation(data: bytes, seq: int) -> object:
    return unpack_operation(data, seq, False)


def _read_write(name: bytes, task: bytes, idx: int, seq: int, info: bytes, children: bytes) -> object:
    return unpack_write(unpacked_id(name), seq, unpacked_id(task), idx, info, children)


def _read_common(low: bytes, high: bytes, seq: int, data: bytes, children: bytes) -> object:
    common = unpack_common(data, children, _text(low), _text(high))
    if common.place.seq != seq:
        raise CheckpointCorrupted(f"a common state of {_text(low)!r} and {_text(high)!r} has another number than {seq}")
    return common


def _read_origin(origin: bytes, name: bytes) -> object:
    return unpack_origin(origin, _text(name))


_CONTENTS = (
    _Content("operation", "operations", ("family", "thread", "seq"), _OWNERS["operations"],
             "x.data, x.seq FROM {operations} x", _read_operation),
    _Content("segment", "segments", ("family", "segment"), _OWNERS["segments"],
             "x.segment, x.data FROM {segments} x", unpack_segment),
    _Content("", "writes", ("family", "line", "checkpoint", "task", "idx"), "NULL",
             "x.checkpoint, x.task, x.idx, x.seq, x.info, x.children FROM {writes} x", _read_write),
    _Content("shared state", "shared_states", ("family", "low", "high", "seq"), "a.name",
             """a.name, b.name, x.seq, x.data, x.children FROM {shared_states} x
                JOIN {threads} a ON a.family = x.family AND a.id = x.low
                JOIN {threads} b ON b.family = x.family AND b.id = x.high""", _read_common),
)  # fmt: skip
_ORIGINS = _Content(
    "origin",
    "threads",
    ("name",),
    "x.name",
    "x.origin, x.name FROM {threads} x WHERE x.origin IS NOT NULL",
    _read_origin,
)


def _unreadable(rows: Rows, content: _Content) -> Iterator[_Unreadable]:
    """Yield the rows that cannot be read."""
    count = len(content.keys)
    keys = ", ".join(f"x.{key}" for key in content.keys)
    for row in rows._all(f"SELECT {keys}, {content.owner}, {content.values}"):
        values = row[count + 1 :]
        try:
            content.read(*values)
        except _UNREADABLE as exc:
            yield _Unreadable(row[:count], row[count], values, exc)


def _cover_again(rows: Rows) -> None:
    """Make what hidden stretches cover together anew, where it is not that."""
    lines: dict[tuple[int, int], list[Hidden]] = {}
    for family, line, after, upto, segment in rows._all(
        "SELECT family, line, after, upto, segment FROM {hidden} WHERE writes_of IS NULL"
    ):
        lines.setdefault((family, line), []).append(Hidden("", after, upto, segment))
    covered: dict[tuple[int, int], set[tuple[int, int, int]]] = {}
    for family, line, segment, after, upto in rows._all("SELECT family, line, segment, after, upto FROM {covers}"):
        covered.setdefault((family, line), set()).add((segment, after, upto))
    for place in {*lines, *covered}:
        expected = set(Covers(lines.get(place, ())).spans())
        if covered.get(place, set()) != expected:
            rows._do("DELETE FROM {covers} WHERE family = %s AND line = %s", place)
            for segment, after, upto in expected:
                rows._do(
                    "INSERT INTO {covers} (family, line, segment, after, upto) VALUES (%s, %s, %s, %s, %s)",
                    (*place, segment, after, upto),
                )


def _wrong_content(rows: Rows) -> list[Finding]:
    """Look at what has a checksum inside and is read through no other table."""
    found: list[Finding] = []
    for content in (_ORIGINS, *_CONTENTS):
        if not content.kind:
            continue
        for unreadable in _unreadable(rows, content):
            error = unreadable.error
            reason = error.reason if isinstance(error, CheckpointCorrupted) else f"cannot be read: {error!r:.200}"
            found.append(finding_about(content.kind, reason, _text_or_none(unreadable.owner)))
    return found


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
            except _UNREADABLE:
                # It is told by those who read it.
                continue
            wanted = labels(record.metadata, record.tags)
            # Labels too many do no harm: what is found by them is looked at again.
            if set(wanted or ()) - set(held or ()):
                family, line, seq = place
                wrong.append((key, (family, line, seq), wanted))
    return wrong


def _text_or_none(name: bytes | None) -> str | None:
    if name is None:
        return None
    return _text(name)


def _text(name: bytes) -> str:
    return bytes(name).decode("utf-8", "replace")
