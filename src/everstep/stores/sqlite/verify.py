"""A look at the whole of a SQLite store: everything in it must be as it was written, whoever wrote the pages.

Page checksums are computed where Everstep writes pages. Another SQLite program that moves the write-ahead log into the
file, or makes a copy, leaves pages whose checksums are old. What is on them is then proved another way. SQLite checks
the structure of the file and every index against its table, every row has a checksum of its own, and what no checksum
covers follows from other rows. See docs/decisions/0012.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import apsw

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.stores.facts import EVERYTHING, new_facts, stands_for
from everstep.stores.protocol import Key, Record
from everstep.stores.records import (
    unpack_common,
    unpack_id,
    unpack_operation,
    unpack_origin,
    unpack_record,
    unpack_segment,
    unpack_write,
)
from everstep.stores.sqlite.schema import SEALED, add_functions, migrate
from everstep.values import compress, tree

_PROBLEMS_MAX = 3  # that an error names
_OBJECTS_AT_ONCE = 500


def verify(connection: apsw.Connection, *, content: bool = True) -> None:
    """Raise CheckpointCorrupted, and say where, unless all that a store holds is as it was written.

    Without `content`, what records and objects hold is not looked at.
    """
    checks = _CHECKS if content else {what: check for what, check in _CHECKS.items() if check is not _check_content}
    try:
        for what, check in checks.items():
            problems = check(connection)
            if problems:
                raise CheckpointCorrupted(f"{what}: {'; '.join(problems[:_PROBLEMS_MAX])}")
    except (TypeError, ValueError, AttributeError, OverflowError) as exc:
        if isinstance(exc, EverstepError):
            raise
        raise CheckpointCorrupted(f"something impossible is stored: {exc!r}") from exc


def _check_schema(connection: apsw.Connection) -> list[str]:
    """What others have added (an index, a view) does no harm; what is ours must be there as it was made."""
    found = set(connection.execute(_SCHEMA))
    return [f"{kind} {name} is not as it was made" for kind, name, sql in _schema() - found]


_SCHEMA = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL"


@cache
def _schema() -> frozenset[tuple[Any, ...]]:
    connection = apsw.Connection(":memory:")
    add_functions(connection)
    for _ in migrate(connection, 0):
        pass
    return frozenset(connection.execute(_SCHEMA))


def _check_structure(connection: apsw.Connection) -> list[str]:
    """SQLite looks at every page, and at every index entry against its row."""
    found = [text for (text,) in connection.execute(f"PRAGMA integrity_check({_PROBLEMS_MAX})")]
    return [] if found == ["ok"] else [str(text) for text in found]


def _check_seals(connection: apsw.Connection) -> list[str]:
    problems = []
    for table, columns in SEALED.items():
        wrong = connection.execute(f"SELECT {columns} FROM {table} WHERE seal IS NOT seal({columns}) LIMIT 1").get
        if wrong is not None:
            problems.append(f"a row of {table} does not match its checksum ({columns} = {wrong!r:.200})")
    return problems


_IMPOSSIBLE = {
    "a thread of a family that is not there": "SELECT name FROM threads WHERE family NOT IN (SELECT id FROM families)",
    "a namespace of a thread that is not there": "SELECT id FROM lines WHERE thread NOT IN (SELECT id FROM threads)",
    "a wrong count of checkpoints": """SELECT l.id FROM lines l WHERE l.total IS NOT
        (SELECT count(*) FROM checkpoints c WHERE c.line = l.id)""",
    "a head that is not there": """SELECT l.id FROM lines l WHERE l.head IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM checkpoints c WHERE c.seq = l.head AND c.line = l.id)""",
    # Only in what comes from another store (it has a note) a head may be set later than what follows it arrives.
    "a head that is not the newest of its segment": """SELECT l.id FROM lines l JOIN checkpoints h ON h.seq = l.head
        JOIN threads t ON t.id = l.thread WHERE t.note IS NULL AND NOT l.head_was_moved AND EXISTS
        (SELECT 1 FROM checkpoints c WHERE c.line = l.id AND c.segment = h.segment AND c.seq > h.seq)""",
    "a checkpoint of a namespace that is not there": """SELECT seq FROM checkpoints
        WHERE line NOT IN (SELECT id FROM lines)""",
    "a wrong count of branches": """SELECT seq FROM checkpoints c WHERE c.branches IS NOT
        (SELECT count(*) FROM threads t WHERE t.began = c.seq)""",
    "a checkpoint before its segment": "SELECT seq FROM checkpoints WHERE segment > seq",
    "an object of a family that is not there": """SELECT id FROM objects
        WHERE family NOT IN (SELECT id FROM families)""",
    "a pending write of a namespace that is not there": """SELECT seq FROM writes
        WHERE line NOT IN (SELECT id FROM lines)""",
    "an operation of a thread that is not there": """SELECT seq FROM operations
        WHERE thread NOT IN (SELECT id FROM threads)""",
    "something hidden of a namespace that is not there": """SELECT line FROM hidden
        WHERE line NOT IN (SELECT id FROM lines)""",
    "something hidden that no cover has": """SELECT line FROM hidden h WHERE h.writes_of IS NULL AND NOT EXISTS
        (SELECT 1 FROM covers v WHERE v.line = h.line AND v.segment = coalesce(h.segment, 0)
         AND v.after <= h.after AND v.upto >= h.upto)""",
    "a cover of what nothing hides": """SELECT c.seq FROM covers v JOIN checkpoints c ON c.line = v.line
        AND c.seq > v.after AND c.seq <= v.upto AND v.segment IN (0, c.segment) WHERE NOT EXISTS
        (SELECT 1 FROM hidden h WHERE h.line = v.line AND h.writes_of IS NULL AND coalesce(h.segment, 0) = v.segment
         AND c.seq > h.after AND c.seq <= h.upto)""",
    "an entry to find a namespace by that is not there": """SELECT label FROM facts
        WHERE line NOT IN (SELECT id FROM lines)""",
    "a segment of a family or namespace that is not there": """SELECT segment FROM segments
        WHERE family NOT IN (SELECT id FROM families) OR line NOT IN (SELECT id FROM lines)""",
    "a common state of a thread that is not there": """SELECT seq FROM shared_states WHERE low >= high
        OR low NOT IN (SELECT id FROM threads) OR high NOT IN (SELECT id FROM threads)""",
    "a missing counter": """SELECT 1 WHERE (SELECT count(*) FROM counters WHERE name <> 'renewals') <> 6""",
    "a counter that would give a number twice": """SELECT name FROM counters
        WHERE name = 'writes' AND value < (SELECT coalesce(max(seq), 0) FROM writes)""",
    "a wrong count of families": """SELECT 1 WHERE coalesce((SELECT max(seq) FROM sqlite_sequence), 0)
        IS NOT max(coalesce((SELECT max(id) FROM families), 0),
                   (SELECT value FROM counters WHERE name = 'families'))""",
}
"""What cannot be, as the query that finds it."""


def _check_references(connection: apsw.Connection) -> list[str]:
    problems = []
    for what, query in _IMPOSSIBLE.items():
        found = connection.execute(f"{query} LIMIT 1").get
        if found is not None:
            problems.append(f"{what} ({found!r})")
    return problems


def _check_content(connection: apsw.Connection) -> list[str]:
    """Take everything apart that carries a checksum inside: what is wrong with it is raised."""
    execute = connection.execute
    for name, origin in execute("SELECT name, origin FROM threads WHERE origin IS NOT NULL"):
        unpack_origin(origin, name)
    for thread_id, namespace, name, *content in execute(
        """SELECT t.name, l.namespace, c.id, c.step, c.children, c.info, c.root FROM checkpoints c
           JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread"""
    ):
        record = unpack_record(Key(thread_id, namespace, unpack_id(name)), *content)
        _check_noted(connection, record)
    for checkpoint, task, seq, *write in execute("SELECT checkpoint, task, seq, idx, info, children FROM writes"):
        unpack_write(unpack_id(checkpoint), seq, unpack_id(task), *write)
    for data, seq, undone in execute("SELECT data, seq, undone FROM operations"):
        unpack_operation(data, seq, bool(undone))
    for segment, data in execute("SELECT segment, data FROM segments"):
        unpack_segment(segment, data)
    return [*_wrong_commons(connection), *_wrong_objects(connection)]


def _check_noted(connection: apsw.Connection, record: Record) -> None:
    """A checkpoint must be found by what it has. A line may be found by more: see `facts`."""
    thread_id, namespace, checkpoint_id = record.key
    for fact in new_facts(record, None):
        found = connection.execute(
            """SELECT 1 FROM threads t JOIN lines l ON l.thread = t.id JOIN facts f ON f.line = l.id
               WHERE t.name = ? AND l.namespace = ? AND f.label IN (?, ?, ?)""",
            (thread_id, namespace, fact.label, stands_for(fact), EVERYTHING),
        ).get
        if found is None:
            raise CheckpointCorrupted(
                "the checkpoint would not be found by its metadata or tags",
                thread_id=thread_id,
                checkpoint_id=checkpoint_id,
            )


def _wrong_commons(connection: apsw.Connection) -> list[str]:
    problems = []
    for low, high, seq, data, children in connection.execute(
        """SELECT a.name, b.name, c.seq, c.data, c.children FROM shared_states c
           JOIN threads a ON a.id = c.low JOIN threads b ON b.id = c.high"""
    ):
        if unpack_common(data, children, low, high).place.seq != seq:
            problems.append(f"a common state of {low!r} and {high!r} has another number than {seq}")
    return problems


def _wrong_objects(connection: apsw.Connection) -> list[str]:
    problems = []
    rows = connection.execute("SELECT hash, children, body FROM objects")
    while some := list(islice(rows, _OBJECTS_AT_ONCE)):
        bodies = compress.expand_all([body for _, _, body in some])
        for (key, children, _), body in zip(some, bodies, strict=True):
            if tree.address(children, body) != key:
                problems.append(f"the object {key.hex()} does not match its hash")
    return problems


_CHECKS: dict[str, Callable[[apsw.Connection], list[str]]] = {
    "its tables are not those of a store": _check_schema,
    "its structure is damaged": _check_structure,
    "rows are damaged": _check_seals,
    "rows contradict each other": _check_references,
    "content is damaged": _check_content,
}
