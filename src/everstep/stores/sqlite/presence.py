"""Tells every SQLite program that a file is open here, also one in this very process.

SQLite says so by locks that belong to the process. Another copy of SQLite in it, as Python's own `sqlite3`, does not
see them, and takes them away when it closes the file: it would think that it was the last, and remove the log with
what is committed there, or begin the log's index anew while it is in use. The same locks, by a handle of ours, prevent
both.
"""

from __future__ import annotations

import os
from pathlib import Path

from everstep.stores.sqlite.handle_locks import HandleLocks

# Where SQLite's locks are: `os_unix.c`, "SHARED_FIRST" of the file and "UNIX_SHM_DMS" of the log's index.
_FILE_IS_OPEN = 0x40000002, 510
_INDEX_IS_IN_USE = 128, 1


class Presence:
    """One file that a process has open, from its first connection to the last."""

    def __init__(self, database: Path) -> None:
        path = os.path.realpath(database)
        self._file = HandleLocks(path, is_shared=True)
        self._index = HandleLocks(f"{path}-shm", is_shared=True)

    def begin(self) -> None:
        """Say so from now on. The file and the index of its log are there, and open."""
        self._file.lock(*_FILE_IS_OPEN)
        self._index.lock(*_INDEX_IS_IN_USE)

    @staticmethod
    def is_elsewhere(database: Path) -> bool:
        """Whether anybody else has the file open. Asked when it is not open here."""
        handle = HandleLocks(os.path.realpath(database))
        start, length = _FILE_IS_OPEN
        try:
            return bool(handle.taken(start, start + length - 1))
        finally:
            handle.close()

    def end(self) -> None:
        """End, before the last connection is closed: it removes the log if nobody has the file open any more."""
        self._file.unlock(*_FILE_IS_OPEN)
        self._index.unlock(*_INDEX_IS_IN_USE)

    def close(self) -> None:
        """Close the handles, after the last connection: that takes SQLite's own locks away."""
        self._file.close()
        self._index.close()
