"""Connections to a file, each of which checks every page that it reads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import apsw
import apsw.sqlite_extra

from everstep.errors import StoreError
from everstep.stores.sqlite import index_locks
from everstep.stores.sqlite.files import can_write, is_unchanging, why_not_opened
from everstep.stores.sqlite.schema import add_functions

_vfs_lock = threading.Lock()
_vfs_loaded = False


def checksum_vfs() -> str:
    """Return the name of the VFS that checks every page; load it on first use."""
    global _vfs_loaded
    with _vfs_lock:
        if not _vfs_loaded:
            default = apsw.vfs_names()[0]
            try:
                apsw.sqlite_extra.load(apsw.Connection(":memory:"), "cksumvfs")
            except (apsw.sqlite_extra.NotAvailable, apsw.ExtensionLoadingError) as exc:
                raise StoreError(
                    "this build of apsw has no cksumvfs; install its wheel: pip install --only-binary apsw apsw"
                ) from exc
            # Loading made it the default, which is for the application to choose.
            apsw.set_default_vfs(default)
            _vfs_loaded = True
    return "cksmvfs"


class ImmutableConnection(apsw.Connection):
    """A connection to a file of which SQLite was told that nobody changes it: it looks for no locks and no log."""


def connect(path: Path, busy_ms: int) -> apsw.Connection:
    """Return a connection. To a file that may only be read it makes no companions: whoever writes it must own those."""
    if os.path.isdir(path):
        raise why_not_opened(path)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    vfs = checksum_vfs()
    index_locks.separate()
    if can_write(path):
        connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    elif is_unchanging(path):
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = ImmutableConnection(f"{path.as_uri()}?immutable=1", flags=flags, vfs=vfs)
    else:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY, vfs=vfs)
    connection.set_busy_timeout(busy_ms)
    connection.setlk_timeout(busy_ms, 0)
    add_functions(connection)
    # Otherwise a statement with a join is compiled anew for each execution, to see whether its values suggest another
    # plan: that takes ten times as long as to run it, and there is nothing here that they could suggest.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def end_transaction(connection: apsw.Connection) -> None:
    """End a transaction that must not be kept."""
    if connection.in_transaction:
        try:
            connection.execute("ROLLBACK")
        except apsw.Error:
            pass  # SQLite has rolled back by itself
