"""Copies what can be read of a SQLite file whose structure is broken, around the pages that are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import apsw

from everstep.stores.sqlite.lost_pages import LostPages, shape_of
from everstep.stores.sqlite.mending import TABLES

# A text that is none any more is an error of Python's.
_BROKEN = (apsw.CorruptError, apsw.IOError, apsw.FormatError, apsw.SQLError, UnicodeDecodeError)
# Numbers of rows that are tried one by one, and how many of them in a row may be broken: more than any page holds.
_GAP_MAX = 100_000
_BROKEN_MAX = 10_000
_WITHOUT_ROWID = frozenset(("shared_states", "facts", "segments", "writes", "covers"))


def copy_rows(source: apsw.Connection, target: apsw.Connection, lost: LostPages) -> int:
    """Copy every row that can be read into a new file, as it is, and return how many that were.

    `lost` are the pages of the source, for the rows that its tables do not lead to any more.
    """
    count = 0
    target.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    target.execute("BEGIN IMMEDIATE")
    for table in TABLES:
        target.execute(f"DELETE FROM {table}")
        columns = [row[1] for row in target.execute(f"PRAGMA table_info({table})")]
        insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        keys = [row[1] for row in target.execute(f"PRAGMA table_info({table})") if row[5]]
        shape = shape_of(target, table)
        for row in _readable(source, target, table, columns, keys, lost):
            # Where a page is in the place of another, rows of one table are read as those of another.
            if not shape.fits(row):
                continue
            with contextlib.suppress(apsw.ConstraintError, apsw.MismatchError):
                target.execute(insert, row)
                count += 1
    count += _copy_from_indexes(source, target)
    target.execute("COMMIT")
    target.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
    return count


def _copy_from_indexes(source: apsw.Connection, target: apsw.Connection) -> int:
    """Make rows of threads and namespaces anew that are lost, but not in the indexes; return how many that were.

    Their names are nowhere else: checkpoints only prove by their checksums whether a name is theirs.
    """
    count = 0
    names = _indexed(source, "SELECT rowid, name FROM threads INDEXED BY sqlite_autoindex_threads_1")
    families = _indexed(source, "SELECT rowid, family FROM threads INDEXED BY threads_by_family")
    for thread, (name,) in names.items():
        if thread in families:
            target.execute(
                """INSERT OR IGNORE INTO threads (id, name, family, seal)
                   VALUES (?1, ?2, ?3, seal(?1, ?2, ?3, NULL, NULL, NULL))""",
                (thread, name, *families[thread]),
            )
            count += target.changes()
    places = _indexed(source, "SELECT rowid, thread, namespace FROM lines INDEXED BY sqlite_autoindex_lines_1")
    times = _indexed(source, "SELECT rowid, active FROM lines INDEXED BY lines_by_activity")
    for line, (thread, namespace) in places.items():
        # A head that is no checkpoint is put right when the tables are made to agree: by then it is known what is
        # hidden. It counts as moved, so that nothing follows it by mistake.
        target.execute(
            """INSERT OR IGNORE INTO lines
               (id, thread, namespace, head, head_was_moved, generation, active, total, unreferenced, seal)
               SELECT ?1, ?2, ?3, 0, 1, max(seq), ?4, count(*), 0, seal(?1, ?2, ?3, 0, 1, max(seq), ?4, 0)
               FROM checkpoints WHERE line = ?1 HAVING count(*)""",
            (line, thread, namespace, *times.get(line, (0,))),
        )
        count += target.changes()
    return count


def _indexed(source: apsw.Connection, text: str) -> dict[Any, Sequence[Any]]:
    """Return what an index holds, by the number of the row, as far as it can be read."""
    found: dict[Any, Sequence[Any]] = {}
    try:
        for rowid, *values in source.execute(text):
            found[rowid] = values
    except _BROKEN:
        pass
    return found


def _readable(
    source: apsw.Connection,
    target: apsw.Connection,
    table: str,
    columns: Sequence[str],
    keys: Sequence[str],
    lost: LostPages,
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows that can be found: from the one end, from the other, and between these.

    A row may come twice, but for those of a table without a key, where nothing else would notice that.
    """
    has_rowid = table not in _WITHOUT_ROWID
    rows = _Reachable(source, table, columns, ["rowid"] if has_rowid else keys)
    seen = set[tuple[Any, ...]]()
    for row in rows.from_end("ASC"):
        if not keys:
            seen.add(row)
        yield row
    if not rows.is_broken:
        return
    low = rows.last_key
    found = [rows.from_end("DESC")]
    if lost.can_tell(table):
        found.append(lost.rows(target, table))
    for more in found:
        for row in more:
            if row not in seen:
                yield row
    if has_rowid and not lost.can_tell(table):
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
        broken = 0
        for rowid in range(low + 1, end):
            try:
                found = self._source.execute(text, (rowid,)).fetchall()
                broken = 0
            except _BROKEN:
                broken += 1
                if broken > _BROKEN_MAX:
                    return
                continue
            yield from found
