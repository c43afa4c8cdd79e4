"""A look at the whole of a SQLite store: everything in it must be as it was written, whoever wrote the pages.

Page checksums are computed where Everstep writes pages. Another SQLite program that moves the write-ahead log into the
file, or makes a copy, leaves pages whose checksums are old. What is on them is then proved another way. SQLite checks
the structure of the file and every index against its table, every row has a checksum of its own, and what no checksum
covers follows from other rows. See docs/decisions/0012.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import apsw

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.reports import Finding
from everstep.stores.facts import is_noted, new_facts
from everstep.stores.inspection import not_found_by
from everstep.stores.protocol import Key, Record
from everstep.stores.records import (
    FoundBy,
    unpack_common,
    unpack_found_by,
    unpack_id,
    unpack_operation,
    unpack_origin,
    unpack_record,
    unpack_segment,
    unpack_write,
)
from everstep.stores.sqlite.schema import SEALED, add_functions, migrate
from everstep.values import compress, tree

_Check = Callable[[apsw.Connection], list[Finding]]
_PROBLEMS_MAX = 3  # that an error names
FINDINGS_MAX = 1000  # of one kind
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
        raise CheckpointCorrupted(f"something impossible is stored: {exc!r}") from exc


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
            found.append(_finding("file", f"{what}: {exc}", getattr(exc, "thread_id", None)))
    return found


def thread_names(connection: apsw.Connection) -> list[str]:
    """Return the names of all threads, as far as the table can be read."""
    found: list[str] = []
    try:
        for (name,) in connection.execute("SELECT name FROM threads NOT INDEXED"):
            found.append(str(name))
    except apsw.Error:
        pass  # the rest cannot be reached this way; what is wrong is told by `problems`
    return found


def check_schema(connection: apsw.Connection) -> list[Finding]:
    """What others have added (an index, a view) does no harm; what is ours must be there as it was made."""
    found = set(connection.execute(_SCHEMA))
    return [_finding("file", f"{kind} {name} is not as it was made", None) for kind, name, sql in _schema() - found]


_SCHEMA = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"


@cache
def schema_rows() -> tuple[tuple[Any, ...], ...]:
    """Return what the table of tables holds, by rowid: the same in every file, but for where the tables are."""
    connection = apsw.Connection(":memory:")
    add_functions(connection)
    for _ in migrate(connection, 0):
        pass
    return tuple(connection.execute("SELECT type, name, tbl_name, sql, rowid FROM sqlite_schema"))


@cache
def _schema() -> frozenset[tuple[Any, ...]]:
    connection = apsw.Connection(":memory:")
    add_functions(connection)
    for _ in migrate(connection, 0):
        pass
    return frozenset(connection.execute(_SCHEMA))


def check_structure(connection: apsw.Connection) -> list[Finding]:
    """SQLite looks at every page, and at every index entry against its row."""
    found = [text for (text,) in connection.execute(f"PRAGMA integrity_check({FINDINGS_MAX})")]
    return [] if found == ["ok"] else [_finding("file", str(text), None) for text in found]


def _check_seals(connection: apsw.Connection) -> list[Finding]:
    found = []
    for table, columns in SEALED.items():
        query = f"SELECT {_OWNERS.get(table, 'NULL')}, {columns} FROM {table} AS x WHERE seal IS NOT seal({columns})"
        for owner, *row in islice(connection.execute(query), FINDINGS_MAX):
            what = f"a row of {table} does not match its checksum ({columns} = {tuple(row)!r:.200})"
            found.append(_finding("row", what, owner))
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


class _Rule(NamedTuple):
    """What cannot be, as the condition that finds it."""

    kind: str
    table: str
    what: str
    number: str
    condition: str


_IMPOSSIBLE = [
    _Rule("thread", "threads", "a thread of a family that is not there", "x.id",
          "x.family NOT IN (SELECT id FROM families)"),
    _Rule("thread", "threads", "a thread without a namespace", "x.id",
          "x.note IS NULL AND NOT EXISTS (SELECT 1 FROM lines l WHERE l.thread = x.id)"),
    _Rule("row", "families", "a family without threads", "x.id", "x.id NOT IN (SELECT family FROM threads)"),
    _Rule("thread", "lines", "a namespace of a thread that is not there", "x.id",
          "x.thread NOT IN (SELECT id FROM threads)"),
    _Rule("index", "lines", "a wrong count of checkpoints", "x.total",
          "x.total IS NOT (SELECT count(*) FROM checkpoints c WHERE c.line = x.id)"),
    _Rule("head", "lines", "a head that is not there", "x.head", """x.head IS NOT NULL AND NOT EXISTS
          (SELECT 1 FROM checkpoints c WHERE c.seq = x.head AND c.line = x.id)"""),
    # Only in what comes from another store (it has a note) a head may be set later than what follows it arrives.
    _Rule("head", "lines", "a head that is not the newest of its segment", "x.head", """NOT x.head_was_moved AND EXISTS
          (SELECT 1 FROM threads t WHERE t.id = x.thread AND t.note IS NULL) AND EXISTS
          (SELECT 1 FROM checkpoints h JOIN checkpoints c ON c.line = x.id AND c.segment = h.segment AND c.seq > h.seq
           WHERE h.seq = x.head)"""),
    _Rule("row", "checkpoints", "a checkpoint of a namespace that is not there", "x.seq",
          "x.line NOT IN (SELECT id FROM lines)"),
    # Most have none and say so: only the others are counted.
    _Rule("origin", "checkpoints", "a wrong count of branches", "x.seq",
          """(x.branches IS NOT 0 OR x.seq IN (SELECT began FROM threads))
          AND x.branches IS NOT (SELECT count(*) FROM threads t WHERE t.began = x.seq)"""),
    _Rule("segment", "checkpoints", "a checkpoint before its segment", "x.seq", "x.segment > x.seq"),
    _Rule("row", "objects", "an object of a family that is not there", "x.id",
          "x.family NOT IN (SELECT id FROM families)"),
    _Rule("write", "writes", "a pending write of a namespace that is not there", "x.seq",
          "x.line NOT IN (SELECT id FROM lines)"),
    _Rule("operation", "operations", "an operation of a thread that is not there", "x.seq",
          "x.thread NOT IN (SELECT id FROM threads)"),
    _Rule("hidden", "hidden", "something hidden of a namespace that is not there", "x.line",
          "x.line NOT IN (SELECT id FROM lines)"),
    _Rule("hidden", "hidden", "something hidden that no cover has", "x.line", """x.writes_of IS NULL AND NOT EXISTS
          (SELECT 1 FROM covers v WHERE v.line = x.line AND v.segment = coalesce(x.segment, 0)
           AND v.after <= x.after AND v.upto >= x.upto)"""),
    _Rule("hidden", "covers", "a cover of what nothing hides", "x.upto", """EXISTS
          (SELECT 1 FROM checkpoints c WHERE c.line = x.line AND c.seq > x.after AND c.seq <= x.upto
           AND x.segment IN (0, c.segment) AND NOT EXISTS
           (SELECT 1 FROM hidden h WHERE h.line = x.line AND h.writes_of IS NULL AND coalesce(h.segment, 0) = x.segment
            AND c.seq > h.after AND c.seq <= h.upto))"""),
    _Rule("index", "facts", "an entry to find a namespace by that is not there", "x.label",
          "x.line NOT IN (SELECT id FROM lines)"),
    _Rule("segment", "segments", "a segment of a family or namespace that is not there", "x.segment",
          "x.family NOT IN (SELECT id FROM families) OR x.line NOT IN (SELECT id FROM lines)"),
    _Rule("segment", "segments", "a segment of a namespace of another family", "x.segment", """x.line IS NOT NULL AND
          x.family IS NOT (SELECT t.family FROM lines l JOIN threads t ON t.id = l.thread WHERE l.id = x.line)"""),
    _Rule("shared state", "shared_states", "a common state of a thread that is not there", "x.seq", """x.low >= x.high
          OR x.low NOT IN (SELECT id FROM threads) OR x.high NOT IN (SELECT id FROM threads)"""),
    _Rule("row", "counters", "a counter that would give a number twice", "x.name",
          "x.name = 'writes' AND x.value < (SELECT coalesce(max(seq), 0) FROM writes)"),
    _Rule("row", "counters", "a wrong count of families", "x.name", """x.name = 'families'
          AND coalesce((SELECT max(seq) FROM sqlite_sequence), 0)
          IS NOT max(coalesce((SELECT max(id) FROM families), 0), x.value)"""),
]  # fmt: skip


def _check_references(connection: apsw.Connection) -> list[Finding]:
    found = []
    for rule in _IMPOSSIBLE:
        owner = _OWNERS.get(rule.table, "NULL")
        query = f"SELECT {owner}, {rule.number} FROM {rule.table} AS x WHERE {rule.condition}"
        for name, number in islice(connection.execute(query), FINDINGS_MAX):
            found.append(_finding(rule.kind, f"{rule.what} ({number!r})", name))
    counters = {name for (name,) in connection.execute("SELECT name FROM counters")}
    found += [_finding("row", f"the counter {name!r} is missing", None) for name in COUNTERS if name not in counters]
    return found


def _finding(kind: str, what: str, thread_id: str | None, checkpoint_id: str | None = None) -> Finding:
    return Finding(kind, what, thread_id, checkpoint_id, (thread_id,) if thread_id is not None else ())


def _check_content(connection: apsw.Connection) -> list[Finding]:
    """Take everything apart that carries a checksum inside."""
    return [*_unreadable(_records(connection)), *_wrong_objects(connection)]


def _check_small(connection: apsw.Connection) -> list[Finding]:
    """The same for what is small: where branches began, writes, operations, segments and common states."""
    return _unreadable(_small(connection))


def _unreadable(contents: Iterable[_Content]) -> list[Finding]:
    found: list[Finding] = []
    for kind, thread_id, checkpoint_id, read in contents:
        try:
            read()
        except CheckpointCorrupted as exc:
            found.append(_finding(kind, exc.reason, exc.thread_id or thread_id, exc.checkpoint_id or checkpoint_id))
        except (TypeError, ValueError, AttributeError, OverflowError) as exc:
            found.append(_finding(kind, f"something impossible is stored: {exc!r:.200}", thread_id, checkpoint_id))
    return found


_Content = tuple[str, str | None, str | None, Callable[[], Any]]
"""The kind, thread and checkpoint of something that has a checksum of its own, and how to read it."""


def _records(connection: apsw.Connection) -> Iterator[_Content]:
    execute = connection.execute
    for thread_id, namespace, name, *content in execute(
        """SELECT t.name, l.namespace, c.id, c.step, c.children, c.info, c.root FROM checkpoints c
           JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread"""
    ):
        yield "checkpoint", thread_id, str(name), partial(_read_checkpoint, thread_id, namespace, name, *content)


def _small(connection: apsw.Connection) -> Iterator[_Content]:
    execute = connection.execute
    for name, origin in execute("SELECT name, origin FROM threads WHERE origin IS NOT NULL"):
        yield "origin", name, None, partial(unpack_origin, origin, name)
    for owner, checkpoint, task, seq, *write in execute(
        f"SELECT {_OF_LINE}, checkpoint, task, seq, idx, info, children FROM writes AS x"
    ):
        yield "write", owner, str(checkpoint), partial(_read_write, checkpoint, seq, task, *write)
    for owner, data, seq, undone in execute(f"SELECT {_OF_THREAD}, data, seq, undone FROM operations AS x"):
        yield "operation", owner, None, partial(unpack_operation, data, seq, bool(undone))
    for owner, segment, data in execute(f"SELECT {_OWNERS['segments']}, segment, data FROM segments AS x"):
        yield "segment", owner, None, partial(unpack_segment, segment, data)
    for low, high, *state in execute(
        """SELECT a.name, b.name, c.seq, c.data, c.children FROM shared_states c
           JOIN threads a ON a.id = c.low JOIN threads b ON b.id = c.high"""
    ):
        yield "shared state", low, None, partial(_read_common, low, high, *state)


def _read_checkpoint(thread_id: str, namespace: str, name: Any, *content: Any) -> Record:
    return unpack_record(Key(thread_id, namespace, unpack_id(name)), *content)


def _read_write(checkpoint: Any, seq: int, task: Any, *write: Any) -> None:
    unpack_write(unpack_id(checkpoint), seq, unpack_id(task), *write)


def _read_common(low: str, high: str, seq: int, data: bytes, children: bytes) -> None:
    if unpack_common(data, children, low, high).place.seq != seq:
        raise CheckpointCorrupted(f"a common state of {low!r} and {high!r} has another number than {seq}")


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
            continue  # told elsewhere
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
        # If not, that is told elsewhere.
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
                found.append(_finding("object", f"the object {key.hex()} does not match its hash", owner))
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
