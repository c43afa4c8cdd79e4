"""Whether a file that cannot be opened as a store is one nevertheless: only then it may be repaired.

A header or a table of tables that is damaged makes a store look like a file of somebody else. Nothing of anybody else
may be touched, so a file is taken for a store only if something in it says so.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import apsw

from everstep.stores.sqlite import schema
from everstep.stores.sqlite.connecting import checksum_vfs, connect
from everstep.stores.sqlite.mending import TABLES
from everstep.stores.sqlite.raw import RawFile

# Of a file that is damaged at its beginning.
_PAGES_TRIED = 1000
_UNREADABLE = (
    apsw.NotADBError, apsw.CorruptError, apsw.IOError, apsw.SQLError, apsw.FormatError, UnicodeDecodeError,
)  # fmt: skip


def is_store(path: Path, busy_ms: int) -> bool:
    """Whether a file is a store that can be put right. One that is not there, or is empty, becomes one."""
    if not path.exists() or not path.stat().st_size:
        return True
    with closing(connect(path, busy_ms)) as connection:
        try:
            connection.pragma("checksum_verification", 0)
            if connection.pragma("application_id") == schema.APPLICATION_ID:
                return not is_of_newer_version(connection)
            return has_tables(connection)
        except _UNREADABLE:
            pass
    # One that may write would leave a file beside this one, which may be anything.
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=checksum_vfs())) as reader:
        return _has_pages(RawFile(reader))


def is_of_newer_version(connection: apsw.Connection) -> bool:
    """Whether a newer Everstep wrote the file: its header says so, and that page is as it was written."""
    if connection.pragma("user_version") <= schema.VERSION:
        return False
    first = RawFile(connection).read(0, connection.pragma("page_size"))
    return bool(connection.execute("SELECT verify_checksum(?)", (first,)).get)


def has_tables(connection: apsw.Connection) -> bool:
    """Whether most of the tables of a store are there, by their names."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return len(names & set(TABLES)) > len(TABLES) // 2


def _has_pages(raw: RawFile) -> bool:
    """Whether the file has pages that are as this library wrote them: their checksums say so."""
    pages = min(raw.size_bytes() // schema.PAGE_BYTES, _PAGES_TRIED)
    with closing(apsw.Connection(":memory:")) as memory:
        for number in range(1, pages):
            page = raw.read(number * schema.PAGE_BYTES, schema.PAGE_BYTES)
            # The checksum of nothing but zeros is zero.
            if any(page) and memory.execute("SELECT verify_checksum(?)", (page,)).get:
                return True
    return False
