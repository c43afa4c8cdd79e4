"""Makes the tables of a damaged SQLite file agree again.

What follows from other rows is made anew. What cannot be read, or belongs to nothing, is taken out and returned. Rows
of checkpoints are left to those who can name them, but where nothing tells whose they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import apsw

from everstep.stores.facts import EVERYTHING
from everstep.stores.inspection import Lost
from everstep.stores.protocol import Key
from everstep.stores.records import pack_id, unpack_id, unpack_record, unpack_segment
from everstep.stores.sql_checking import UNREADABLE, apply_fixes, cover_again, take_unreadable
from everstep.stores.sqlite.schema import SEALED
from everstep.stores.sqlite.verify import (
    CONTENTS,
    COUNTERS,
    IMPOSSIBLE,
    NAMEABLE,
    ORIGINS,
    check_schema,
    check_structure,
    schema_rows,
    tables_of,
    unnoted_lines,
)
from everstep.values.tree import FORMAT

_ROUNDS_MAX = 4
_OF_INDEXES = re.compile(r"row \d+ missing from index|wrong # of entries in index|non-unique entry in index")
_OWN_ID = re.compile(r"ckpt-(.*)-\d+-[0-9a-f]+", re.DOTALL)
TABLES = (
    "families", "threads", "shared_states", "lines", "facts", "segments", "checkpoints", "objects", "writes",
    "operations", "hidden", "covers", "counters",
)  # fmt: skip

_VISIBLE = """NOT EXISTS (SELECT 1 FROM covers v WHERE v.line = c.line AND v.segment IN (0, c.segment)
              AND c.seq > v.after AND c.seq <= v.upto)"""
_DERIVED = (
    "UPDATE threads SET note = NULL WHERE length(note) = 0",
    "UPDATE threads SET began = NULL WHERE began IS NOT NULL AND origin IS NULL",
    "UPDATE segments SET line = NULL WHERE line NOT IN (SELECT id FROM lines)",
    """UPDATE segments SET line = NULL WHERE line IS NOT NULL AND family IS NOT
       (SELECT t.family FROM lines l JOIN threads t ON t.id = l.thread WHERE l.id = segments.line)""",
    f"""UPDATE lines SET generation = generation + 1, head_was_moved = 1,
        head = (SELECT max(c.seq) FROM checkpoints c WHERE c.line = lines.id AND {_VISIBLE})
        WHERE head IS NOT NULL AND NOT EXISTS
        (SELECT 1 FROM checkpoints c WHERE c.seq = lines.head AND c.line = lines.id)""",
    """UPDATE lines SET generation = generation + 1, head = (SELECT max(c.seq) FROM checkpoints h
       JOIN checkpoints c ON c.line = lines.id AND c.segment = h.segment WHERE h.seq = lines.head)
       WHERE NOT head_was_moved AND EXISTS (SELECT 1 FROM threads t WHERE t.id = lines.thread AND t.note IS NULL)
       AND head < (SELECT max(c.seq) FROM checkpoints h
                   JOIN checkpoints c ON c.line = lines.id AND c.segment = h.segment WHERE h.seq = lines.head)""",
    """UPDATE lines SET total = (SELECT count(*) FROM checkpoints c WHERE c.line = lines.id)
       WHERE total IS NOT (SELECT count(*) FROM checkpoints c WHERE c.line = lines.id)""",
    """UPDATE checkpoints SET branches = (SELECT count(*) FROM threads t WHERE t.began = checkpoints.seq)
       WHERE branches IS NOT (SELECT count(*) FROM threads t WHERE t.began = checkpoints.seq)""",
    """UPDATE counters SET value = (SELECT max(seq) FROM writes)
       WHERE name = 'writes' AND value < (SELECT coalesce(max(seq), 0) FROM writes)""",
    """UPDATE sqlite_sequence SET seq = max(coalesce((SELECT max(id) FROM families), 0),
       (SELECT value FROM counters WHERE name = 'families')) WHERE name = 'families'""",
)
"""What follows from other rows."""


_FAMILIES = f"""INSERT OR IGNORE INTO families (id, format, sweeps, live)
    SELECT DISTINCT family, {FORMAT}, 0, 0 FROM threads WHERE family NOT IN (SELECT id FROM families)"""


_HIGHEST = (
    """UPDATE counters SET value = max(value, coalesce((SELECT max(seq) FROM checkpoints), 0),
       coalesce((SELECT max(segment) FROM segments), 0), coalesce((SELECT max(upto) FROM hidden), 0),
       coalesce((SELECT max(head) FROM lines), 0), coalesce((SELECT max(seq) FROM shared_states), 0))
       WHERE name = 'checkpoints'""",
    """UPDATE counters SET value = max(value, coalesce((SELECT max(seq) FROM operations), 0),
       coalesce((SELECT max(operation) FROM hidden), 0)) WHERE name = 'operations'""",
    "UPDATE counters SET value = max(value, coalesce((SELECT max(id) FROM objects), 0)) WHERE name = 'objects'",
    "UPDATE counters SET value = max(value, coalesce((SELECT max(seq) FROM writes), 0)) WHERE name = 'writes'",
)
"""The numbers that were given, as far as anything tells."""


class BrokenStructure(Exception):
    """The file cannot be put right in place: its tables must be copied into a new one."""


# A page in the place of another may hold rows of other types, or with keys that there are already. A text that is none
# any more is an error of Python's.
BROKEN = (
    BrokenStructure, apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.MismatchError, apsw.ConstraintError,
    UnicodeDecodeError,
)  # fmt: skip
"""What tells that a file cannot be mended in place."""


def restore_schema(connection: apsw.Connection) -> None:
    """Give the tables the names and texts that they are made with. The connection has read nothing yet."""
    # So that texts without sense are no errors.
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("BEGIN IMMEDIATE")
    rows = schema_rows()
    (count,) = connection.execute("SELECT count(*) FROM sqlite_schema WHERE rowid <= ?", (len(rows),)).fetchall()[0]
    if count != len(rows):
        raise BrokenStructure("tables are missing")
    places = {name: rowid for _, name, _, _, rowid in rows}
    for rowid, name in connection.execute("SELECT rowid, name FROM sqlite_schema"):
        # Another program has made them anew: what has no sense is not in the place where it was made.
        if places.get(name, rowid) != rowid:
            raise BrokenStructure("tables are in another order")
    for kind, name, table, text, rowid in rows:
        connection.execute(
            """UPDATE sqlite_schema SET type = ?1, name = ?2, tbl_name = ?3, sql = ?4 WHERE rowid = ?5
               AND (type IS NOT ?1 OR name IS NOT ?2 OR tbl_name IS NOT ?3 OR sql IS NOT ?4)""",
            (kind, name, table, text, rowid),
        )
    connection.execute("COMMIT")


def mend(connection: apsw.Connection) -> list[Lost]:
    """Put right what can be, inside a transaction, and return what went."""
    if check_schema(connection):
        raise BrokenStructure("its tables are not those of a store")
    found = [finding.what for finding in check_structure(connection)]
    if any(not _OF_INDEXES.search(what) for what in found):
        raise BrokenStructure("; ".join(found[:3]))
    if found:
        connection.execute("REINDEX")
    _count_again(connection)
    for statement in _HIGHEST:  # before rows go: no number may be given twice
        connection.execute(statement)
    lost: list[Lost] = []
    tables = tables_of(connection)
    for _ in range(_ROUNDS_MAX):
        before = len(lost)
        _seal_again(connection)
        connection.execute(_FAMILIES)
        lost += take_unreadable(tables, (NAMEABLE, *CONTENTS), ORIGINS)
        _name_again(connection)
        lost += apply_fixes(tables, IMPOSSIBLE)
        cover_again(tables)
        for statement in _DERIVED:
            connection.execute(statement)
        if len(lost) == before:
            break
    for line in unnoted_lines(connection):
        connection.execute("DELETE FROM facts WHERE line = ?", (line,))
        connection.execute("INSERT INTO facts (label, line, key) VALUES (?1, ?2, ?1)", (EVERYTHING, line))
    return lost


def stored_rows(connection: apsw.Connection, keys: Sequence[Key]) -> list[Lost]:
    """Return checkpoints as they are stored."""
    found: list[Lost] = []
    for key in keys:
        rows = connection.execute(
            """SELECT c.* FROM checkpoints c JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread
               WHERE c.id = ? AND t.name = ? AND l.namespace = ?""",
            (pack_id(key.checkpoint_id), key.thread_id, key.namespace),
        )
        found += [Lost("a checkpoint", *key, stored=["checkpoints", *row]) for row in rows]
    return found


def _seal_again(connection: apsw.Connection) -> None:
    """Compute the checksums of rows anew; what they cover is compared with other rows."""
    damaged: list[Any] = connection.execute(
        f"""SELECT t.id, t.family, min(l.id) FROM threads t JOIN lines l ON l.thread = t.id
            WHERE t.seal IS NOT seal({", ".join(f"t.{name.strip()}" for name in SEALED["threads"].split(","))})
            GROUP BY t.id"""
    ).fetchall()
    for thread, family, line in damaged:
        proven = _family_of(connection, line)
        if proven not in (None, family):
            connection.execute("UPDATE threads SET family = ? WHERE id = ?", (proven, thread))
    for table, columns in SEALED.items():
        first = columns.split(",")[0]
        # Rows of these tables are sealed by triggers, whenever such a column is set.
        connection.execute(f"UPDATE {table} SET {first} = {first} WHERE seal IS NOT seal({columns})")


def _name_again(connection: apsw.Connection) -> None:
    """Make rows of namespaces and threads anew, where their checkpoints prove by their checksums whose they are."""
    namespaces = {str(name) for (name,) in connection.execute("SELECT DISTINCT namespace FROM lines")} | {""}
    orphans = """SELECT DISTINCT c.line, l.thread, l.namespace FROM checkpoints c LEFT JOIN lines l ON l.id = c.line
                 WHERE l.id IS NULL OR l.thread NOT IN (SELECT id FROM threads)"""
    rows: list[Any] = connection.execute(orphans).fetchall()
    for line, thread, namespace in rows:
        found = _proven_name(connection, line, {namespace} if namespace is not None else namespaces)
        if found is None:
            continue
        name, namespace = found
        known = connection.execute("SELECT id FROM threads WHERE name = ?", (name,)).get
        if known is None:
            family = _family_of(connection, line) or _new_family(connection)
            connection.execute("INSERT INTO threads (id, name, family) VALUES (?, ?, ?)", (thread, name, family))
            known = connection.execute("SELECT id FROM threads WHERE name = ?", (name,)).get
        connection.execute(
            """DELETE FROM lines WHERE thread = ? AND namespace = ?
               AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.line = lines.id)""",
            (known, namespace),
        )
        try:
            connection.execute(
                """INSERT INTO lines
                   (id, thread, namespace, head, head_was_moved, generation, active, total, unreferenced)
                   SELECT ?1, ?2, ?3, max(seq), 1, max(seq), 0, count(*), 0 FROM checkpoints WHERE line = ?1
                   ON CONFLICT (id) DO UPDATE SET thread = ?2""",
                (line, known, namespace),
            )
        except apsw.ConstraintError:
            continue  # the thread has such a namespace


def _proven_name(connection: apsw.Connection, line: int, namespaces: set[str]) -> tuple[str, str] | None:
    names: dict[str, None] = {}
    segments: list[Any] = connection.execute("SELECT segment, data FROM segments WHERE line = ?", (line,)).fetchall()
    for segment, data in segments:
        try:
            names |= dict.fromkeys(place.key.thread_id for place in unpack_segment(segment, data))
        except UNREADABLE:
            continue
    rows: list[Any] = connection.execute("SELECT id, step, info FROM checkpoints WHERE line = ?", (line,)).fetchall()
    for packed, step, info in rows:
        checkpoint_id = unpack_id(packed)
        own = _OWN_ID.fullmatch(checkpoint_id)
        for name in [*([own[1]] if own is not None else []), *names]:
            for namespace in namespaces:
                try:
                    unpack_record(Key(name, namespace, checkpoint_id), step, b"", info, None)
                except UNREADABLE:
                    continue
                return name, namespace
    return None


def _new_family(connection: apsw.Connection) -> int:
    connection.execute("INSERT INTO families (format, sweeps, live) VALUES (?, 0, 0)", (FORMAT,))
    return connection.last_insert_rowid()


def _family_of(connection: apsw.Connection, line: int) -> int | None:
    """Return the family that a namespace was of, if its objects or its segments tell."""
    rows: list[Any] = connection.execute("SELECT children FROM checkpoints WHERE line = ?", (line,)).fetchall()
    for (children,) in rows:
        for at in range(0, len(children), 16):
            family: int | None = connection.execute(
                "SELECT family FROM objects WHERE hash = ? LIMIT 1", (children[at : at + 16],)
            ).get
            if family is not None:
                return family
    found: int | None = connection.execute("SELECT family FROM segments WHERE line = ? LIMIT 1", (line,)).get
    return found


def _count_again(connection: apsw.Connection) -> None:
    """Counters that are missing begin where they can give no number twice."""
    highest = {
        "checkpoints": "SELECT coalesce(max(seq), 0) FROM checkpoints",
        "writes": "SELECT coalesce(max(seq), 0) FROM writes",
        "operations": "SELECT coalesce(max(seq), 0) FROM operations",
        "objects": "SELECT coalesce(max(id), 0) FROM objects",
        "families": "SELECT coalesce(max(id), 0) FROM families",
        "identity": "SELECT random()",
    }
    names = {name for (name,) in connection.execute("SELECT name FROM counters")}
    for name in COUNTERS:
        if name not in names:
            connection.execute(f"INSERT INTO counters (name, value) VALUES (?, ({highest[name]}))", (name,))
    connection.execute(
        f"DELETE FROM counters WHERE name NOT IN ({', '.join('?' * len(COUNTERS))}, 'renewals')", COUNTERS
    )
