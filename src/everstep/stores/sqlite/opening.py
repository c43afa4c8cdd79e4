"""A file that is opened as a store: a new one is made one, an old one is checked and brought up to date."""

from __future__ import annotations

import ctypes
import os
import random
import time
from pathlib import Path

import apsw

from everstep.errors import CheckpointCorrupted, StoreMismatch
from everstep.stores.sqlite import schema
from everstep.stores.sqlite.checksums import RESERVED_BYTES, check_reserved_bytes, count_renewals, renew_checksums
from everstep.stores.sqlite.connecting import connect, end_transaction
from everstep.stores.sqlite.index_locks import is_open_beside
from everstep.stores.sqlite.presence import Presence
from everstep.stores.sqlite.schema import migrate
from everstep.stores.sqlite.translating import is_checksum_mismatch

_PAGE_BYTES_LEAST = 512  # of any SQLite file
_FILE_MODE = 0o600
# Another process may take so long to make a new file, and it looks damaged meanwhile.
_MAKING_SECONDS = 1.0


def open_file(path: Path, busy_ms: int, presence: Presence | None = None) -> apsw.Connection:
    """Return a connection to a file that is a store, making it one if it is new.

    Several processes may make it at once; what a connection saw of the file before it was one is then too old, and
    another connection sees it right.
    """
    started = time.monotonic()
    _make_private(path)
    tried = _Tried(path, presence)
    try:
        while True:
            if presence is not None:
                presence.begin_early(started + busy_ms / 1000)
            connection = connect(path, busy_ms)
            try:
                _prepare(connection, path)
                # Read here, where a page without a checksum is dealt with.
                count_renewals(connection)
                return connection
            except apsw.IOError as exc:
                tried.let_go(connection)
                if not is_checksum_mismatch(exc):
                    raise
                renew_checksums(path, busy_ms, presence)
            except (apsw.BusyError, CheckpointCorrupted) as exc:
                tried.let_go(connection)
                patience = busy_ms / 1000 if isinstance(exc, apsw.BusyError) else _MAKING_SECONDS
                if time.monotonic() - started >= patience:
                    raise
            except BaseException:
                tried.let_go(connection)
                raise
            time.sleep(random.uniform(0.001, 0.02))  # noqa: S311  # only so that two do not stay in step
    finally:
        tried.close()


class _Tried:
    """Connections that could not be used. One is left open while another copy of SQLite would lose its locks by it."""

    def __init__(self, path: Path, presence: Presence | None) -> None:
        self._index_path = f"{os.path.realpath(path)}-shm"
        self._presence = presence
        self._open: list[apsw.Connection] = []

    def let_go(self, connection: apsw.Connection) -> None:
        """Close a connection. SQLite removes its log if nobody says any more that the file is open."""
        if not self._open and is_open_beside(self._index_path):
            self._open.append(connection)
            return
        if self._presence is not None and not self._open:
            self._presence.end()
        connection.close()

    def close(self) -> None:
        for connection in self._open:
            connection.close()


def _make_private(path: Path) -> None:
    """Make a file that is missing, for its owner alone. SQLite gives its companions (-wal, -shm) the same rights."""
    try:
        # Only one that is new may be closed again here: that would drop the locks of connections to an old one.
        os.close(os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE_MODE))
    except OSError:
        pass  # it is there, or SQLite will say what is wrong


def _prepare(connection: apsw.Connection, path: Path) -> None:
    """Make a new file a store, or check that an old one is."""
    if connection.pragma("page_count") == 0:
        # Smaller than any page, it is no database. Whole pages are those of a process that is making the file now;
        # those of one killed at it went when the pages were counted.
        if 0 < os.path.getsize(path) < _PAGE_BYTES_LEAST:
            raise StoreMismatch(f"{path} is not a SQLite database; give the store a file of its own")
        reserved = ctypes.c_int(RESERVED_BYTES)
        connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(reserved))
        connection.execute(f"PRAGMA page_size={schema.PAGE_BYTES}; PRAGMA auto_vacuum=INCREMENTAL")
        connection.pragma("journal_mode", "wal")
    version = connection.pragma("user_version")
    application = connection.pragma("application_id")
    if version == 0 and application in (0, schema.APPLICATION_ID):
        version, application = _migrate(connection, path)
    if application != schema.APPLICATION_ID:
        raise _of_another(connection, path)
    if version > schema.VERSION:
        raise StoreMismatch(
            f"{path} was written by a newer Everstep: its schema is {version}, this one knows {schema.VERSION}; "
            "upgrade everstep"
        )
    if version < schema.FIRST:
        raise StoreMismatch(
            f"{path} was written by a version before the first release: its schema is {version}, which is not read any "
            "more; give the store a new file"
        )
    if version < schema.VERSION:
        _migrate(connection, path)
    check_reserved_bytes(connection, path)
    if not int(connection.pragma("checksum_verification")):
        raise CheckpointCorrupted(f"{path}: the page checksums are switched off; the file's header is damaged")
    if connection.pragma("journal_mode") != "wal":
        connection.pragma("journal_mode", "wal")


def _of_another(connection: apsw.Connection, path: Path) -> StoreMismatch:
    """Return the error for a file that is not ours; whoever changes savers reads there how to bring threads over."""
    from everstep.stores.sqlite.recognizing import has_tables

    advice = "give the store a file of its own"
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if has_tables(connection):
        advice = "but its tables are those of a store: `everstep repair` puts its header right"
    elif {"checkpoints", "writes"} <= tables:
        advice = f"it looks like LangGraph's own: everstep.langgraph.import_langgraph reads it into a new one; {advice}"
    return StoreMismatch(f"{path} is a SQLite database of another application; {advice}")


def _migrate(connection: apsw.Connection, path: Path) -> tuple[int, int]:
    """Bring the schema up to date, one numbered file at a time; two processes may try at once."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.pragma("user_version")
        application = connection.pragma("application_id")
        if version == 0 and application == 0 and connection.execute("SELECT 1 FROM sqlite_schema").get is not None:
            raise _of_another(connection, path)
        for number in migrate(connection, version):
            connection.execute(f"PRAGMA user_version={number}; PRAGMA application_id={schema.APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        end_transaction(connection)
        raise
    return connection.pragma("user_version"), connection.pragma("application_id")
