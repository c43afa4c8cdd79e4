"""Tells every SQLite program that a file is open here, also one in this very process.

SQLite says so by locks that belong to the process. Another copy of SQLite in it, as Python's own `sqlite3`, does not
see them, and takes them away when it closes the file: it would think that it was the last, and remove the log with
what is committed there, or begin the log's index anew while it is in use. The same locks, by a handle of ours, prevent
both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from everstep.errors import StoreUnavailable
from everstep.stores.sqlite.handle_locks import HandleLocks
from everstep.stores.waiting import Rhythm, Waiting

_RHYTHM = Rhythm(early=(0.0005, 0.001), late=(0.002, 0.005), late_after=0.1)
"""To wait for who moves a log into its file, or removes it, which takes milliseconds."""

# Where SQLite's locks are: `os_unix.c`, "SHARED_FIRST" of the file, and of the log's index "UNIX_SHM_DMS" and
# "WAL_CKPT_LOCK".
_FILE_IS_OPEN = 0x40000002, 510
_INDEX_IS_IN_USE = 128, 1
_LOG_IS_MOVED = 121, 1
# In the header of a database file: the versions of its format, of writing and of reading.
_LOG_MARK_AT = 18
_LOG_MARK = b"\2\2"


class Presence:
    """One file that a process has open, from its first connection to the last."""

    def __init__(self, database: Path) -> None:
        path = os.path.realpath(database)
        self._file = HandleLocks(path, is_shared=True)
        self._index = HandleLocks(f"{path}-shm", is_shared=True)
        self._moving = HandleLocks(f"{path}-shm")
        self._path = path

    def has_log(self) -> bool:
        """Whether the file is one that has a log, by its header."""
        return self._file.read(_LOG_MARK_AT, len(_LOG_MARK)) == _LOG_MARK

    def begin_early(self, deadline: float) -> None:
        """Say so before SQLite has opened the file, if that has a log; wait until then for somebody who removes it.

        What SQLite says may be taken away at once. A file that is to get a log first must be nobody's for a moment.
        """
        if not self.has_log():
            return
        waiting = Waiting(_RHYTHM, deadline)
        while not self._file.lock(*_FILE_IS_OPEN) and self._file.is_able:
            if not waiting.pause():
                raise StoreUnavailable(f"{self._path} is locked by another program, for too long; try again")

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

    @contextmanager
    def log_stays(self, deadline: float) -> Iterator[None]:
        """Let nobody move the log into the file meanwhile; wait for who does until then, by `time.monotonic`."""
        waiting = Waiting(_RHYTHM, deadline)
        while not self._moving.lock(*_LOG_IS_MOVED):
            if not self._moving.is_able:
                break
            if not waiting.pause():
                raise StoreUnavailable(f"another program moves the log of {self._path} into it for too long; try again")
        try:
            yield
        finally:
            self._moving.unlock(*_LOG_IS_MOVED)

    def end(self) -> None:
        """End, before the last connection is closed: it removes the log if nobody has the file open any more."""
        self._file.unlock(*_FILE_IS_OPEN)
        self._index.unlock(*_INDEX_IS_IN_USE)

    def close(self) -> None:
        """Close the handles, after the last connection: that takes SQLite's own locks away."""
        self._file.close()
        self._index.close()
        self._moving.close()
