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

import os
import time
from pathlib import Path

from everstep.stores.sqlite.handle_locks import HandleLocks
from everstep.stores.waiting import Rhythm, Waiting

_STILL_SECONDS = 1.0
_RHYTHM = Rhythm(early=(0.0002, 0.0005), late=(0.0005, 0.0015), late_after=1.0)
"""To look whether one is first. Who is first looks for SQLite's lock, more often."""
_TRIES = 100


class WritersLine:
    """One writer's view of the line. Used by one thread at a time, as the connection that writes is."""

    def __init__(self, database: Path) -> None:
        """Nothing is opened before it is needed: to read takes no line. The database is open as long as this is."""
        self._locks = HandleLocks(f"{os.path.realpath(database)}-wal")
        self._any_place = self._locks.question_for(1, 0)
        self._place = 0
        self._passed = 0
        """Places up to this one belong to somebody who does not move."""

    def is_empty(self) -> bool:
        """Whether nobody waits."""
        if self._passed and not self._locks.taken(1, self._passed):
            self._passed = 0
        if self._passed:
            return not self._locks.taken(self._passed + 1)
        return self._locks.is_free(self._any_place)

    def join(self) -> None:
        """Take the place behind all others."""
        for _ in range(_TRIES):
            place = 1
            while taken := self._locks.taken(place):
                place = taken + 1
            if not self._locks.is_able:
                return
            if self._locks.lock(place, 1):
                self._place = place
                return

    def is_first(self) -> bool:
        """Whether nobody else is before."""
        return not self._locks.taken(self._passed + 1, self._place - 1)

    def wait(self, deadline: float) -> None:
        """Wait until one is first, or the time is over (by `time.monotonic`)."""
        waiting = Waiting(_RHYTHM, deadline)
        seen = 0
        since = 0.0
        while ahead := self._locks.taken(self._passed + 1, self._place - 1):
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
        if self._place:
            self._locks.unlock(self._place, 1)
        self._place = 0

    def close(self) -> None:
        self._place = 0
        self._locks.close()
