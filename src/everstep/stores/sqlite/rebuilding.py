"""A damaged file that is put right in place, or copied into a new one: see `mending`."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from everstep.stores.inspection import Lost
from everstep.stores.sqlite import schema
from everstep.stores.sqlite.checksums import RESERVED_BYTES, count_reserved_bytes, seal_pages
from everstep.stores.sqlite.connecting import connect
from everstep.stores.sqlite.lost_pages import HEADER_BYTES, LostPages
from everstep.stores.sqlite.mending import BrokenStructure, mend, restore_schema
from everstep.stores.sqlite.opening import open_file
from everstep.stores.sqlite.raw import RawFile
from everstep.stores.sqlite.recognizing import has_tables
from everstep.stores.sqlite.salvaging import copy_rows

_PAGE_COUNT = struct.Struct(">I")
_PAGE_COUNT_AT = 28


def mend_file(path: Path, busy_ms: int, *, dry_run: bool) -> list[Lost]:
    """Make the tables of a file agree, and give its pages their checksums, whatever is on them."""
    with closing(connect(path, busy_ms)) as connection:
        connection.pragma("checksum_verification", 0)
        if count_reserved_bytes(connection) != RESERVED_BYTES:
            raise BrokenStructure("its pages have no room for checksums")
        connection.execute("BEGIN IMMEDIATE")
        lost = mend(connection)
        lost += _restore_version(connection)
        if dry_run:
            connection.execute("ROLLBACK")
            return lost
        connection.execute("COMMIT")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.execute("BEGIN IMMEDIATE")
        seal_pages(connection, RawFile(connection))
        connection.execute("COMMIT")
        return lost


def _restore_version(connection: apsw.Connection) -> list[Lost]:
    """Make the header say what the tables are. The tables are there, and as they were made."""
    version = connection.pragma("user_version")
    application = connection.pragma("application_id")
    if (version, application) == (schema.VERSION, schema.APPLICATION_ID):
        return []
    connection.execute(f"PRAGMA user_version={schema.VERSION}; PRAGMA application_id={schema.APPLICATION_ID}")
    return [Lost("the version and application that the file named", stored=[version, application])]


def rebuild_file(path: Path, busy_ms: int) -> Path:
    """Copy what can be read of a file into a new one in its place, and return where the old one is kept."""
    with (
        contextlib.suppress(BrokenStructure, apsw.Error, UnicodeDecodeError),
        closing(connect(path, busy_ms)) as connection,
    ):
        connection.pragma("checksum_verification", 0)
        restore_schema(connection)
    stamp = time.time_ns()
    fresh = Path(f"{path}.{stamp}.new")
    aside = Path(f"{path}.{stamp}.damaged")
    with closing(open_file(fresh, busy_ms)) as target:
        with _with_first_page(path, target, busy_ms) as readable, closing(connect(readable, busy_ms)) as source:
            # Else a file that is shorter than it says is not read.
            source.execute("PRAGMA writable_schema = ON")
            source.pragma("checksum_verification", 0)
            with _pages_of(readable, path, busy_ms) as lost:
                copy_rows(source, target, lost)
        target.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    os.rename(path, aside)
    for end in ("-wal", "-shm"):
        if os.path.exists(f"{path}{end}"):
            os.rename(f"{path}{end}", f"{aside}{end}")
    os.rename(fresh, path)
    return aside


@contextmanager
def _pages_of(readable: Path, path: Path, busy_ms: int) -> Iterator[LostPages]:
    """Return the pages of a file, with what was in its log; `path` is the file as it was."""
    copy = Path(f"{path}.{time.time_ns()}.pages")
    try:
        copy_file(readable, copy, busy_ms)
        header_of = copy if readable == path else path
        with open(header_of, "rb") as file:
            header = file.read(HEADER_BYTES)
        with open(copy, "rb") as file:
            yield LostPages(file, header)
    finally:
        _remove(copy)


def copy_file(path: Path, to: Path, busy_ms: int) -> None:
    """Copy a file as it is now, damage included: pages keep the checksums that they have, be they right or wrong."""
    with closing(connect(path, busy_ms)) as source, closing(apsw.Connection(str(to))) as target:
        source.pragma("checksum_verification", 0)
        try:
            with target.backup("main", source, "main") as backup:
                backup.step()
            return
        except (apsw.NotADBError, apsw.CorruptError):
            # SQLite does not know where its pages are, or not all of them are there.
            pass
    _copy_bytes(path, to)


def _copy_bytes(path: Path, to: Path) -> None:
    """Copy a file, and its log beside it."""
    for end in ("", "-wal"):
        if os.path.exists(f"{path}{end}"):
            shutil.copyfile(f"{path}{end}", f"{to}{end}")
            os.chmod(f"{to}{end}", 0o600)


def _remove(path: Path) -> None:
    """Remove a file, and what SQLite has made beside it."""
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)


@contextmanager
def _with_first_page(path: Path, new: apsw.Connection, busy_ms: int) -> Iterator[Path]:
    """Return the file, or where its tables cannot be found a copy of it with the first page of a new store.

    New stores have their tables at the same places. At first only the header is taken from one: the list of the tables
    behind it may be whole.
    """
    if _finds_tables(path, busy_ms):
        yield path
        return
    new.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    first = bytearray(RawFile(new).read(0, schema.PAGE_BYTES))
    _PAGE_COUNT.pack_into(first, _PAGE_COUNT_AT, path.stat().st_size // schema.PAGE_BYTES)
    copy = Path(f"{path}.{time.time_ns()}.copy")
    try:
        _copy_bytes(path, copy)
        for length in (HEADER_BYTES, schema.PAGE_BYTES):
            with open(copy, "r+b") as file:
                file.write(first[:length])
            if _finds_tables(copy, busy_ms):
                break
        yield copy
    finally:
        _remove(copy)


def _finds_tables(path: Path, busy_ms: int) -> bool:
    """Whether the tables of a store can be found in a file."""
    with closing(connect(path, busy_ms)) as connection:
        try:
            connection.execute("PRAGMA writable_schema = ON")
            connection.pragma("checksum_verification", 0)
            return has_tables(connection)
        except (apsw.Error, UnicodeDecodeError):
            return False
