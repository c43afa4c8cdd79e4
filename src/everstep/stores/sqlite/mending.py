"""Makes the tables of a damaged SQLite file agree again, and reads rows around pages that are broken.

What follows from other rows is made anew. What cannot be read, or belongs to nothing, is taken out and returned. Rows
of checkpoints are left to those who can name them, but where nothing tells whose they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

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
_BROKEN = (apsw.CorruptError, apsw.IOError, apsw.FormatError, apsw.SQLError)
_GAP_MAX = 100_000  # numbers of rows that are tried one by one
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


# -- a file whose structure is broken


def copy_rows(source: apsw.Connection, target: apsw.Connection) -> int:
    """Copy every row that can be read into a new file, as it is, and return how many that were."""
    count = 0
    target.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    target.execute("BEGIN IMMEDIATE")
    for table in TABLES:
        target.execute(f"DELETE FROM {table}")
        columns = [row[1] for row in target.execute(f"PRAGMA table_info({table})")]
        insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        keys = [row[1] for row in target.execute(f"PRAGMA table_info({table})") if row[5]]
        for row in _readable(source, table, columns, keys):
            try:
                target.execute(insert, row)
                count += 1
            except (apsw.ConstraintError, apsw.MismatchError):
                continue  # a row that is out of shape
    target.execute("COMMIT")
    target.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
    return count


def _readable(
    source: apsw.Connection, table: str, columns: Sequence[str], keys: Sequence[str]
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that can be reached: from the one end, from the other, and one by one between."""
    has_rowid = table not in ("shared_states", "facts", "segments", "writes", "covers")
    rows = _Reachable(source, table, columns, ["rowid"] if has_rowid else keys)
    seen = set[tuple[Any, ...]]()
    for row in rows.from_end("ASC"):
        if not has_rowid:
            seen.add(row)
        yield row
    if not rows.is_broken:
        return
    low = rows.last_key
    for row in rows.from_end("DESC"):
        if row in seen:
            break  # the ways from both ends have met
        yield row
    if has_rowid:
        yield from rows.between(low or 0, rows.last_key)


class _Reachable:
    """The rows of a table that may be broken."""

    def __init__(self, source: apsw.Connection, table: str, columns: Sequence[str], order: Sequence[str]) -> None:
        """`order` names the columns that the table is kept in the order of."""
        self._source = source
        self._table = table
        self._columns = ", ".join(columns)
        self._order = order
        self.is_broken = False
        self.last_key: Any = None
        """Of the way that was gone last: the first column of its order, as it was in the last row; None: no row."""

    def from_end(self, direction: Literal["ASC", "DESC"]) -> Iterator[tuple[Any, ...]]:
        """Yield rows from the one end or the other, until nothing more can be read."""
        self.last_key = None
        order = ", ".join(f"{key} {direction}" for key in self._order)
        text = f"SELECT {self._order[0]}, {self._columns} FROM {self._table} NOT INDEXED ORDER BY {order}"
        try:
            for key, *row in self._source.execute(text):
                self.last_key = key
                yield tuple(row)
        except _BROKEN:
            self.is_broken = True

    def between(self, low: int, high: int | None) -> Iterator[tuple[Any, ...]]:
        """Yield those of the rows with numbers between these that can be read; None: nobody knows the end."""
        text = f"SELECT {self._columns} FROM {self._table} NOT INDEXED WHERE rowid = ?"
        end = low + _GAP_MAX
        if high is not None:
            end = min(high, end)
        for rowid in range(low + 1, end):
            try:
                found = self._source.execute(text, (rowid,)).fetchall()
            except _BROKEN:
                continue
            yield from found
