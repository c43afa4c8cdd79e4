"""The line in which processes wait to write to one file: whoever came first is served first.

SQLite gives its lock to whoever looks when it is free. That is chance, and often the one who has just let go of it:
among four writers some are passed over ten times and more, and by quick ones hundreds of times. So a writer that
others were faster than a few times gets in line. Nobody goes past a line, and only who is first in it asks SQLite.

A place in line is a lock of the system on one byte of the log (`-wal`), each behind the one before. SQLite itself locks
nothing there, and the file stays as long as a connection is open. Whoever dies, waiting or writing, leaves nothing
behind. The locks belong to our handle of the file (not to the process, whose locks go when any handle is closed).

The line is for fairness only. Where there are no such locks everybody is first; and one who stands still for a second
while others wait behind, as when a process is stopped, is passed by.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
import time
from pathlib import Path

from everstep.stores.waiting import Rhythm, Waiting

if sys.platform == "linux":
    import fcntl

# The C structure flock: type, from where, start, length (0: to the end), process; with its padding.
_FLOCK = "hhqqi0q"
if sys.platform == "linux":
    _ANY_PLACE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 1, 0, 0)
    # An answer begins with this if nobody has the place.
    _NOBODY = struct.pack("h", fcntl.F_UNLCK)
_STILL_SECONDS = 1.0
_RHYTHM = Rhythm(early=(0.0002, 0.0005), late=(0.0005, 0.0015), late_after=1.0)
"""To look whether one is first. Who is first looks for SQLite's lock, more often."""
_TRIES = 100


class WritersLine:
    """One writer's view of the line. Used by one thread at a time, as the connection that writes is."""

    def __init__(self, database: Path) -> None:
        """Nothing is opened before it is needed: to read takes no line. The database is open as long as this is."""
        self._path = f"{os.path.realpath(database)}-wal"
        self._file: int | None = None
        self._has_locks = sys.platform == "linux"
        self._place = 0
        self._passed = 0
        """Places up to this one belong to somebody who does not move."""

    def is_empty(self) -> bool:
        """Whether nobody waits."""
        if self._passed and not self._taken(1, self._passed):
            self._passed = 0
        if self._passed:
            return not self._taken(self._passed + 1)
        if not self._has_locks:
            return True
        found = self._ask(fcntl.F_OFD_GETLK, _ANY_PLACE)
        return found is None or found.startswith(_NOBODY)

    def join(self) -> None:
        """Take the place behind all others."""
        for _ in range(_TRIES):
            place = 1
            while taken := self._taken(place):
                place = taken + 1
            if not self._has_locks:
                return
            if self._lock(place):
                self._place = place
                return

    def is_first(self) -> bool:
        """Whether nobody else is before."""
        return not self._taken(self._passed + 1, self._place - 1)

    def wait(self, deadline: float) -> None:
        """Wait until one is first, or the time is over (by `time.monotonic`)."""
        waiting = Waiting(_RHYTHM, deadline)
        seen = 0
        since = 0.0
        while ahead := self._taken(self._passed + 1, self._place - 1):
            now = time.monotonic()
            if ahead != seen:
                seen = ahead
                since = now
            elif now - since >= _STILL_SECONDS:
                self._passed = ahead
            if not waiting.pause():
                return

    def leave(self) -> None:
        """Let the next one be first."""
        if self._place and self._file is not None:
            self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, self._place, 1)
        self._place = 0

    def close(self) -> None:
        file, self._file = self._file, None
        self._place = 0
        if file is not None:
            os.close(file)

    def _taken(self, first: int, last: int | None = None) -> int:
        """Return a place from `first` to `last` (None: to the end) that another writer has; 0: there is none."""
        length = 0 if last is None else last - first + 1
        if not self._has_locks or (last is not None and length <= 0):
            return 0
        found = self._call(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, first, length)
        if found is None:
            return 0
        kind, _, start, _, _ = struct.unpack(_FLOCK, found)
        return 0 if kind == fcntl.F_UNLCK else max(int(start), first)

    def _lock(self, place: int) -> bool:
        return self._call(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, place, 1) is not None

    def _call(self, command: int, kind: int, start: int, length: int) -> bytes | None:
        """Return the answer of the system; None: somebody else has that place, or there are no such locks here."""
        if not self._has_locks:
            return None
        return self._ask(command, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0))

    def _ask(self, command: int, question: bytes) -> bytes | None:
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDWR)
            return fcntl.fcntl(self._file, command, question)
        except OSError as exc:
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                self._has_locks = False
            return None
