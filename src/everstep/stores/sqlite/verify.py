"""A look at the whole of a SQLite store: everything in it must be as it was written, whoever wrote the pages.

Page checksums are computed where Everstep writes pages. Another SQLite program that moves the write-ahead log into the
file, or makes a copy, leaves pages whose checksums are old. What is on them is then proved another way. SQLite checks
the structure of the file and every index against its table, every row has a checksum of its own, and what no checksum
covers follows from other rows. See docs/decisions/0012.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any

import apsw

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.reports import Finding
from everstep.stores.facts import is_noted, new_facts
from everstep.stores.inspection import finding_about, not_found_by
from everstep.stores.protocol import Key
from everstep.stores.records import (
    FoundBy,
    pack_id,
    unpack_found_by,
    unpack_id,
    unpack_origin,
    unpack_record,
    unpack_segment,
    unpack_write,
)
from everstep.stores.sql_checking import (
    FINDINGS_MAX,
    UNREADABLE,
    Content,
    Rule,
    Tables,
    broken_rules,
    cannot_be_read,
    findings,
    read_operation,
    read_shared_state,
)
from everstep.stores.sqlite.schema import SEALED, add_functions, migrate
from everstep.values import compress, tree

_Check = Callable[[apsw.Connection], list[Finding]]
_PROBLEMS_MAX = 3  # that an error names
COUNTERS = ("checkpoints", "writes", "operations", "objects", "families", "identity")
_OBJECTS_AT_ONCE = 500


def verify(connection: apsw.Connection, *, content: bool = True) -> None:
    """Raise CheckpointCorrupted, and say where, unless all that a store holds is as it was written.

    Without `content`, what records and objects hold is not looked at.
    """
    checks = _CHECKS if content else {what: check for what, check in _CHECKS.items() if check not in _OF_CONTENT}
    try:
        for what, check in checks.items():
            found = check(connection)
            if found:
                first = found[0]
                raise CheckpointCorrupted(
                    f"{what}: {'; '.join(finding.what for finding in found[:_PROBLEMS_MAX])}",
                    thread_id=first.thread_id,
                    checkpoint_id=first.checkpoint_id,
                )
    except (TypeError, ValueError, AttributeError, OverflowError) as exc:
        if isinstance(exc, EverstepError):
            raise
        raise CheckpointCorrupted(f"something impossible is stored: {exc!r:.200}") from exc


def problems(connection: apsw.Connection) -> list[Finding]:
    """Return all that is wrong with tables and indexes, but for what those find who read every checkpoint."""
    left_out = (_check_content, _check_found_by)
    return _findings(connection, [check for check in _CHECKS.values() if check not in left_out])


def found_by_problems(connection: apsw.Connection) -> list[Finding]:
    """Return which checkpoints would not be found by what they have."""
    return _findings(connection, [_check_found_by])


def _findings(connection: apsw.Connection, checks: Collection[_Check]) -> list[Finding]:
    found: list[Finding] = []
    for what, check in _CHECKS.items():
        if check not in checks:
            continue
        try:
            found += check(connection)
        except (apsw.Error, EverstepError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            found.append(finding_about("file", f"{what}: {exc}", getattr(exc, "thread_id", None)))
    return found


def thread_names(connection: apsw.Connection) -> list[str]:
    """Return the names of all threads, as far as the table can be read."""
    found: list[str] = []
    try:
        for (name,) in connection.execute("SELECT CAST(name AS BLOB) FROM threads NOT INDEXED"):
            # One that is no text any more is no end of the others.
            with contextlib.suppress(UnicodeDecodeError):
                found.append(bytes(name).decode())
    except apsw.Error:
        pass  # the rest cannot be reached this way; `problems` reports what is wrong
    return found


def check_schema(connection: apsw.Connection) -> list[Finding]:
    """What others have added (an index, a view) does no harm; what is ours must be there as it was made."""
    there = set(connection.execute("SELECT type, name, sql FROM sqlite_schema"))
    found: list[Finding] = []
    for kind, name, _, text, _ in schema_rows():
        # An index that SQLite makes by itself has no text.
        if text is not None and (kind, name, text) not in there:
            found.append(finding_about("file", f"{kind} {name} is not as it was made", None))
    return found


@cache
def schema_rows() -> tuple[tuple[Any, ...], ...]:
    """Return what the table of tables holds, by rowid: the same in every file, but for where the tables are."""
    connection = apsw.Connection(":memory:")
    add_functions(connection)
    for _ in migrate(connection, 0):
        pass
    return tuple(connection.execute("SELECT type, name, tbl_name, sql, rowid FROM sqlite_schema"))


def check_structure(connection: apsw.Connection) -> list[Finding]:
    """SQLite looks at every page, and at every index entry against its row."""
    found = [text for (text,) in connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})")]
    return [] if found == ["ok"] else [finding_about("file", str(text), None) for text in found]


def _check_seals(connection: apsw.Connection) -> list[Finding]:
    found = []
    for table, columns in SEALED.items():
        query = f"SELECT {_OWNERS.get(table, 'NULL')}, {columns} FROM {table} AS x WHERE seal IS NOT seal({columns})"
        for owner, *row in islice(connection.execute(query), FINDINGS_MAX):
            what = f"a row of {table} does not match its checksum ({columns} = {tuple(row)!r:.200})"
            found.append(finding_about("row", what, owner))
    return found


_OF_LINE = "(SELECT t.name FROM lines l JOIN threads t ON t.id = l.thread WHERE l.id = x.line)"
_OF_THREAD = "(SELECT t.name FROM threads t WHERE t.id = x.thread)"
_OF_FAMILY = "(SELECT t.name FROM threads t WHERE t.family = x.family LIMIT 1)"
_OWNERS = {
    "families": "(SELECT t.name FROM threads t WHERE t.family = x.id LIMIT 1)",
    "threads": "x.name",
    "lines": _OF_THREAD,
    "segments": f"coalesce({_OF_LINE}, {_OF_FAMILY})",
    "checkpoints": _OF_LINE,
    "writes": _OF_LINE,
    "operations": _OF_THREAD,
    "hidden": _OF_LINE,
    "covers": _OF_LINE,
    "shared_states": "(SELECT t.name FROM threads t WHERE t.id IN (x.low, x.high) LIMIT 1)",
    "facts": _OF_LINE,
    "objects": _OF_FAMILY,
}
"""By table: the name of a thread that a row is of."""


_NO_FAMILY = "x.family NOT IN (SELECT id FROM families)"
_NO_THREAD = "x.thread NOT IN (SELECT id FROM threads)"
_NO_LINE = "x.line NOT IN (SELECT id FROM lines)"
IMPOSSIBLE = [
    Rule("thread", "threads", "a thread of a family that is not there", "x.id", _NO_FAMILY),
    Rule("thread", "threads", "a thread without a namespace", "x.id",
          "x.note IS NULL AND NOT EXISTS (SELECT 1 FROM lines l WHERE l.thread = x.id)", "delete"),
    Rule("row", "families", "a family without threads", "x.id", "x.id NOT IN (SELECT family FROM threads)",
         "delete"),
    Rule("thread", "lines", "a namespace of a thread that is not there", "x.id", _NO_THREAD, "delete"),
    Rule("index", "lines", "a wrong count of checkpoints", "x.total",
          "x.total IS NOT (SELECT count(*) FROM checkpoints c WHERE c.line = x.id)"),
    Rule("head", "lines", "a head that is not there", "x.head", """x.head IS NOT NULL AND NOT EXISTS
          (SELECT 1 FROM checkpoints c WHERE c.seq = x.head AND c.line = x.id)"""),
    # Only in what comes from another store (it has a note) a head may be set later than what follows it arrives.
    Rule("head", "lines", "a head that is not the newest of its segment", "x.head", """NOT x.head_was_moved AND EXISTS
          (SELECT 1 FROM threads t WHERE t.id = x.thread AND t.note IS NULL) AND EXISTS
          (SELECT 1 FROM checkpoints h JOIN checkpoints c ON c.line = x.id AND c.segment = h.segment AND c.seq > h.seq
           WHERE h.seq = x.head)"""),
    Rule("row", "checkpoints", "a checkpoint of a namespace that is not there", "x.seq", _NO_LINE, "delete"),
    # Most have none and say so: only the others are counted.
    Rule("origin", "checkpoints", "a wrong count of branches", "x.seq",
          """(x.branches IS NOT 0 OR x.seq IN (SELECT began FROM threads))
          AND x.branches IS NOT (SELECT count(*) FROM threads t WHERE t.began = x.seq)"""),
    Rule("segment", "checkpoints", "a checkpoint before its segment", "x.seq", "x.segment > x.seq"),
    Rule("row", "objects", "an object of a family that is not there", "x.id", _NO_FAMILY, "delete"),
    Rule("write", "writes", "a pending write of a namespace that is not there", "x.seq", _NO_LINE, "delete"),
    Rule("operation", "operations", "an operation of a thread that is not there", "x.seq", _NO_THREAD, "delete"),
    Rule("hidden", "hidden", "something hidden of a namespace that is not there", "x.line", _NO_LINE, "delete"),
    Rule("hidden", "hidden", "something hidden that no cover has", "x.line", """x.writes_of IS NULL AND NOT EXISTS
          (SELECT 1 FROM covers v WHERE v.line = x.line AND v.segment = coalesce(x.segment, 0)
           AND v.after <= x.after AND v.upto >= x.upto)"""),
    Rule("hidden", "covers", "a cover of what nothing hides", "x.upto", """EXISTS
          (SELECT 1 FROM checkpoints c WHERE c.line = x.line AND c.seq > x.after AND c.seq <= x.upto
           AND x.segment IN (0, c.segment) AND NOT EXISTS
           (SELECT 1 FROM hidden h WHERE h.line = x.line AND h.writes_of IS NULL AND coalesce(h.segment, 0) = x.segment
            AND c.seq > h.after AND c.seq <= h.upto))"""),
    Rule("hidden", "covers", "a cover of a namespace that is not there", "x.line", _NO_LINE, "delete"),
    Rule("index", "facts", "an entry to find a namespace by that is not there", "x.label", _NO_LINE, "delete"),
    Rule("segment", "segments", "a segment of a family that is not there", "x.segment", _NO_FAMILY, "delete"),
    Rule("segment", "segments", "a segment of a namespace that is not there", "x.segment", _NO_LINE),
    Rule("segment", "segments", "a segment of a namespace of another family", "x.segment", """x.line IS NOT NULL AND
          x.family IS NOT (SELECT t.family FROM lines l JOIN threads t ON t.id = l.thread WHERE l.id = x.line)"""),
    Rule("shared state", "shared_states", "a common state of a thread that is not there", "x.seq", """x.low >= x.high
          OR x.low NOT IN (SELECT id FROM threads) OR x.high NOT IN (SELECT id FROM threads)""", "delete"),
    Rule("row", "counters", "a counter that would give a number twice", "x.name",
          "x.name = 'writes' AND x.value < (SELECT coalesce(max(seq), 0) FROM writes)"),
    Rule("row", "counters", "a wrong count of families", "x.name", """x.name = 'families'
          AND coalesce((SELECT max(seq) FROM sqlite_sequence), 0)
          IS NOT max(coalesce((SELECT max(id) FROM families), 0), x.value)"""),
]  # fmt: skip


def _check_references(connection: apsw.Connection) -> list[Finding]:
    found = broken_rules(tables_of(connection), IMPOSSIBLE, _OWNERS)
    counters = {name for (name,) in connection.execute("SELECT name FROM counters")}
    for name in COUNTERS:
        if name not in counters:
            found.append(finding_about("row", f"the counter {name!r} is missing", None))
    return found


def _check_content(connection: apsw.Connection) -> list[Finding]:
    """Take everything apart that carries a checksum inside."""
    return [*_wrong_records(connection), *_wrong_objects(connection)]


def _check_small(connection: apsw.Connection) -> list[Finding]:
    """The same for what is small: where branches began, writes, operations, segments and common states."""
    return findings(tables_of(connection), (ORIGINS, *CONTENTS))


def tables_of(connection: apsw.Connection) -> Tables:
    """Return the tables as `sql_checking` speaks of them."""

    def execute(text: str, values: Sequence[Any]) -> Iterable[Any]:
        return connection.execute(text.replace("{", "").replace("}", ""), tuple(values))

    return Tables(execute, execute, _text_or_none, "?", ("line",))


def _text_or_none(name: Any) -> str | None:
    return str(name) if name is not None else None


def _read_write(checkpoint: Any, seq: int, task: Any, *write: Any) -> object:
    return unpack_write(unpack_id(checkpoint), seq, unpack_id(task), *write)


CONTENTS = (
    Content("write", "writes", ("line", "checkpoint", "task", "idx"), _OF_LINE,
            "x.checkpoint, x.seq, x.task, x.idx, x.info, x.children FROM writes x", _read_write, "x.checkpoint"),
    Content("operation", "operations", ("seq",), _OF_THREAD, "x.data, x.seq FROM operations x", read_operation),
    Content("segment", "segments", ("family", "segment"), _OWNERS["segments"],
            "x.segment, x.data FROM segments x", unpack_segment),
    Content("shared state", "shared_states", ("low", "high", "seq"), "a.name",
            """a.name, b.name, x.seq, x.data, x.children FROM shared_states x
               JOIN threads a ON a.id = x.low JOIN threads b ON b.id = x.high""", read_shared_state),
)  # fmt: skip
"""What has a checksum of its own, but for checkpoints and objects, and where branches began."""
ORIGINS = Content("origin", "threads", ("name",), "x.name",
                  "x.origin, x.name FROM threads x WHERE x.origin IS NOT NULL", unpack_origin)  # fmt: skip


def _check_nameable(packed: Any, *columns: Any) -> None:
    # An id that is stored in another form than it is looked for by cannot be named, either.
    if pack_id(unpack_id(packed)) != packed:
        raise ValueError("an id is of another form")
    if tuple(map(type, columns)) != (int, int, bytes, bytes):
        raise TypeError("a column is of another type")


NAMEABLE = Content("checkpoint", "checkpoints", ("seq",), _OF_LINE,
                   "x.id, x.line, x.step, x.info, x.children FROM checkpoints x", _check_nameable)  # fmt: skip
"""Whether a checkpoint is whole is left to those who can name it: here is what nobody can name."""


def _wrong_records(connection: apsw.Connection) -> list[Finding]:
    found: list[Finding] = []
    for thread_id, namespace, name, *content in connection.execute(
        """SELECT t.name, l.namespace, c.id, c.step, c.children, c.info, c.root FROM checkpoints c
           JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread"""
    ):
        try:
            unpack_record(Key(thread_id, namespace, unpack_id(name)), *content)
        except UNREADABLE as exc:
            found.append(cannot_be_read("checkpoint", exc, thread_id, str(name)))
    return found


def _check_found_by(connection: apsw.Connection) -> list[Finding]:
    """A checkpoint must be found by what it has. A line may be found by more: see `facts`."""
    return [not_found_by(key) for _, key in _unnoted(connection)]


def unnoted_lines(connection: apsw.Connection) -> set[int]:
    """Return the namespaces that would not be found by what they have."""
    return {line for line, _ in _unnoted(connection)}


def _unnoted(connection: apsw.Connection) -> Iterator[tuple[int, Key]]:
    labels: dict[int, set[int]] = {}
    for line, label in connection.execute("SELECT line, label FROM facts"):
        labels.setdefault(line, set()).add(label)
    last_noted: dict[int, FoundBy] = {}
    for line, seq, info in connection.execute("SELECT line, seq, info FROM checkpoints"):
        try:
            found = unpack_found_by(info)
            # Most checkpoints of a line have what the one before has, which is noted.
            facts = new_facts(found, last_noted.get(line))
        except (EverstepError, TypeError, ValueError, AttributeError, IndexError):
            continue  # reported elsewhere
        if facts:
            held = labels.get(line, ())
            if not all(is_noted(fact, held) for fact in facts):
                yield from _if_readable(connection, line, seq)
                continue
        last_noted[line] = found


def _if_readable(connection: apsw.Connection, line: int, seq: int) -> Iterator[tuple[int, Key]]:
    """Yield a checkpoint of a line, unless its thread is not there or its metadata are not what was written."""
    for thread_id, namespace, name, step, info in connection.execute(
        """SELECT t.name, l.namespace, c.id, c.step, c.info FROM checkpoints c
           JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread WHERE c.seq = ?""",
        (seq,),
    ):
        key = Key(thread_id, namespace, unpack_id(name))
        # If not, that is reported elsewhere.
        if _is_readable(key, step, info):
            yield line, key


def _is_readable(key: Key, step: int, info: bytes) -> bool:
    """Whether the metadata of a checkpoint are what was written."""
    try:
        unpack_record(key, step, b"", info, None)
    except (CheckpointCorrupted, TypeError, ValueError, AttributeError):
        return False
    return True


def _wrong_objects(connection: apsw.Connection) -> list[Finding]:
    found: list[Finding] = []
    rows = connection.execute(f"SELECT {_OF_FAMILY}, hash, children, body FROM objects AS x")
    while some := list(islice(rows, _OBJECTS_AT_ONCE)):
        try:
            bodies = compress.expand_all([body for _, _, _, body in some])
        except CheckpointCorrupted:
            bodies = [_expanded(body) for _, _, _, body in some]
        for (owner, key, children, _), body in zip(some, bodies, strict=True):
            if tree.address(children, body) != key:
                found.append(finding_about("object", f"the object {key.hex()} does not match its hash", owner))
    return found


def _expanded(body: bytes) -> bytes:
    try:
        return compress.expand(body)
    except CheckpointCorrupted:
        return b""


_CHECKS: dict[str, _Check] = {
    "its tables are not those of a store": check_schema,
    "its structure is damaged": check_structure,
    "rows are damaged": _check_seals,
    "rows contradict each other": _check_references,
    "content is damaged": _check_small,
    "records or objects are damaged": _check_content,
    "indexes are damaged": _check_found_by,
}

_OF_CONTENT = (_check_small, _check_content, _check_found_by)
