"""Notice that somebody writes into an open database file who is not SQLite, as `cp backup.db agent.db` does.

In WAL mode the main file changes only when the log is moved into it, and whoever does that says so first, in the memory
that all connections share (`nBackfillAttempted`). So a file that changed while that number did not was changed by
something else. Pages that `sqlite.renew_checksums` wrote are counted in the file; see there.

Or somebody removes the log, which is there as long as the file is open.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

from everstep.stores.sqlite.raw import RawFile, WalState

_TICK_NS = 20_000_000


class _Seen(NamedTuple):
    """The file and the log as they were together at one moment."""

    file: tuple[int, int, int, int]
    log: WalState


class FileGuard:
    """One file that a process has open, from its first connection to the last."""

    def __init__(self, path: Path, raw: RawFile) -> None:
        """`raw` belongs to a connection that stays open as long as the guard is used, and has read something."""
        self._path, self._raw = str(path), raw
        self._log_path = f"{os.path.realpath(path)}-wal"
        self._folder_path = os.path.dirname(self._log_path)
        self._folder_seen = 0
        self._log = self._log_now()
        self._seen: _Seen | None = None
        self.note()

    def note(self, *, anew: bool = False) -> None:
        """Remember the file as it is now, unless somebody is just moving the log into it.

        As long as nobody has, it is as it was, and not looked at: only if it shall be taken as it is, `anew`.
        """
        before = self._raw.wal_state()
        if self._seen is not None and before == self._seen.log and not anew:
            return
        if before is None:
            self._seen = None
            return
        _, moved, attempted = before
        if moved != attempted:
            self._seen = None
            return
        file = self._file()
        self._seen = _Seen(file, before) if self._raw.wal_state() == before else None

    def is_as_noted(self) -> bool:
        """Whether nothing has changed since it was noted: the file is there, and nobody has written to it at all."""
        seen = self._seen
        if seen is None:
            return False
        try:
            stat = os.stat(self._path)
        except OSError:
            return False
        # What `_file` returns: put together here, since every commit asks.
        file = stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
        return file == seen.file and self._raw.wal_state() == seen.log

    def is_intact(self) -> bool:
        """Whether nobody but SQLite has changed the file since it was noted."""
        # Looked up first: another thread may note a later state meanwhile.
        seen = self._seen
        file = self._file()
        if seen is None:
            self.note()
            return True
        log = self._raw.wal_state()
        if file == seen.file and log == seen.log:
            return True
        if file != seen.file and log == seen.log:
            return False
        self.note()
        return True

    def has_log(self) -> bool:
        """Whether the log that is written has its name still: what is in a removed one goes when it is closed."""
        if self._log is None:
            return True
        # Every commit asks, and to look at a file between two writes makes the second dearer: the system has to note
        # its time anew. Nothing is removed or made without a change of the folder.
        try:
            folder = os.stat(self._folder_path).st_mtime_ns
        except OSError:
            return False
        if folder == self._folder_seen:
            return True
        is_there = self._log_now() == self._log
        # What changes soon after has the same time, where the clock of the file system is a coarse one.
        if is_there and time.time_ns() - folder > _TICK_NS:
            self._folder_seen = folder
        return is_there

    def has_another_log(self) -> bool:
        """Whether somebody has begun a log under the name of the one that was removed."""
        return self._log_now() not in (None, self._log)

    def _log_now(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self._log_path)
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def _file(self) -> tuple[int, int, int, int]:
        stat = os.stat(self._path)
        return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
