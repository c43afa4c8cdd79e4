"""Checksums of pages: whether another program has written some, and how they are renewed then."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from contextlib import closing
from pathlib import Path

import apsw

from everstep.errors import CheckpointCorrupted
from everstep.stores.sqlite import schema
from everstep.stores.sqlite.connecting import connect
from everstep.stores.sqlite.presence import Presence
from everstep.stores.sqlite.raw import RawFile
from everstep.stores.sqlite.translating import translated

_log = logging.getLogger("everstep")
RESERVED_BYTES = 8  # at the end of each page, for its checksum


def count_renewals(connection: apsw.Connection) -> int:
    """Return how often pages were written in place: see `renew_checksums`."""
    found: int | None = connection.execute("SELECT value FROM counters WHERE name = 'renewals'").get
    return found or 0


def renew_checksums(path: Path, busy_ms: int, presence: Presence | None = None) -> None:
    """Compute the checksums of pages that another program wrote, if everything in the file is as we wrote it.

    Nobody writes meanwhile, or, with the `presence` of the file, moves the log. Raise CheckpointCorrupted, and say what
    is wrong, if the file is damaged.
    """
    started = time.monotonic()
    stack = contextlib.ExitStack()
    with stack, translated(path), closing(connect(path, busy_ms)) as connection:
        connection.pragma("checksum_verification", 0)
        check_reserved_bytes(connection, path)
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            # Somebody is reading; what is in the log covers the pages below it all the same.
            pass
        # What is in the log is moved without the lock for writing. Pages that are written in place here, as they were
        # read, would put older ones in the place of what somebody moves just then. Who moves it waits for writers, so
        # this lock comes first; but before it a read, which makes the index of a log that was left by a crash.
        if presence is not None and presence.has_log():
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            stack.enter_context(presence.log_stays(time.monotonic() + busy_ms / 1000))
        connection.execute("BEGIN IMMEDIATE")
        raw = RawFile(connection)
        pages = sum(1 for _ in raw.unsealed_pages())
        if pages == 0:
            return  # somebody else was here first
        version = connection.pragma("user_version")
        application = connection.pragma("application_id")
        if (version, application) != (schema.VERSION, schema.APPLICATION_ID):
            raise CheckpointCorrupted(f"{path} is damaged: {pages} pages do not match their checksums")
        from everstep.stores.sqlite.verify import verify  # rarely needed

        try:
            verify(connection)
        except CheckpointCorrupted as exc:
            raise CheckpointCorrupted(
                f"{path} is damaged: {pages} pages do not match their checksums, and {exc.reason}",
                thread_id=exc.thread_id,
                checkpoint_id=exc.checkpoint_id,
            ) from exc
        seal_pages(connection, raw)
        connection.execute("COMMIT")
    _log.warning(
        "%s: %d pages did not match their checksums, as after another SQLite program has written the file. The whole "
        "file was verified in %.1f s: nothing that is stored is damaged, and the checksums have been renewed",
        path,
        pages,
        time.monotonic() - started,
    )


def seal_pages(connection: apsw.Connection, raw: RawFile) -> None:
    """Give every page its checksum, inside a transaction, whatever is on it."""
    pages = 0
    for at, page in raw.unsealed_pages():
        raw.seal_page(at, page)
        pages += 1
    raw.sync()
    if pages:
        # Other processes have the file open, and shall know why it changed.
        connection.execute(
            """INSERT INTO counters (name, value) VALUES ('renewals', 1)
               ON CONFLICT DO UPDATE SET value = value + 1"""
        )


def check_reserved_bytes(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file whose pages have no room for checksums."""
    if count_reserved_bytes(connection) != RESERVED_BYTES:
        raise CheckpointCorrupted(f"{path}: its pages have no room for checksums; the file's header is damaged")


def count_reserved_bytes(connection: apsw.Connection) -> int:
    """Return how many bytes at the end of each page SQLite leaves to others."""
    reserved = ctypes.c_int(-1)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
    return reserved.value
