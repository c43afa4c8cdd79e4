"""What is open on a file, how long its writer waits for others, how a transaction begins and is rolled back."""

from __future__ import annotations

from typing import NamedTuple

import apsw

from everstep.stores.sqlite.connecting import end_transaction
from everstep.stores.sqlite.guard import FileGuard
from everstep.stores.sqlite.line import WritersLine
from everstep.stores.sqlite.presence import Presence
from everstep.stores.sqlite.raw import RawFile
from everstep.stores.sqlite.rows import Rows
from everstep.stores.waiting import Rhythm, Waiting

_RHYTHM = Rhythm(early=(0.0001, 0.0003), late=(0.0005, 0.0015), late_after=1.0)
"""To wait for the lock of the file: a commit has it for less than a millisecond, mostly."""
_BEATEN_MAX = 8
"""So many commits of others may come first: to hand a file on in order takes longer than to take it when it is free."""


class Connections(NamedTuple):
    """What is open on the file between two forks."""

    writer: apsw.Connection
    rows: Rows
    readers: list[apsw.Connection]
    raw: RawFile
    guard: FileGuard
    line: WritersLine
    presence: Presence
    patience: Patience
    renewals: list[int]
    """How often pages had been written in place when the file was opened, or looked at last."""


class Patience:
    """How long the connection that writes waits for a file that another process has locked.

    SQLite itself would sleep longer each time, up to 100 ms, and be passed by others meanwhile.
    """

    def __init__(self, raw: RawFile) -> None:
        self._raw = raw
        self._deadline = 0.0
        self._beaten_max: int | None = None
        self._waiting: Waiting | None = None
        self._first = 0

    def lasts(self, deadline: float, *, beaten_max: int | None = None) -> None:
        """Let it wait from now on until then, and for so many commits of others (None: for any number)."""
        self._deadline = deadline
        self._beaten_max = beaten_max
        self._waiting = None

    def look_again(self, _looks: int) -> bool:
        """Return whether SQLite should look again for the lock of the file; it asks when the file is locked."""
        if self._waiting is None:
            self._waiting = Waiting(_RHYTHM, self._deadline)
            self._first = self._raw.commits()
        if self._beaten_max is not None and self._raw.commits() - self._first >= self._beaten_max:
            return False
        return self._waiting.pause()


def begin(connections: Connections, deadline: float) -> None:
    """Begin a transaction. Whoever others were faster than too often does so in line, and nobody goes past a line."""
    line = connections.line
    patience = connections.patience
    if line.is_empty():
        patience.lasts(deadline, beaten_max=_BEATEN_MAX)
        try:
            return connections.rows.begin()
        except apsw.BusyError:
            pass  # it is beaten, or out of time
    line.join()
    try:
        line.wait(deadline)
        patience.lasts(deadline)
        connections.rows.begin()
    finally:
        line.leave()


def roll_back(connections: Connections) -> None:
    """End a transaction that must not be kept, and forget what it has seen."""
    connections.rows.forget()
    end_transaction(connections.writer)
