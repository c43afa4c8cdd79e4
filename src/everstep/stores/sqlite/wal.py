"""The log beside a file (SQLite's WAL): how long it may get, and when it is moved into the file or cut off."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import apsw

from everstep.stores.sqlite import schema
from everstep.stores.sqlite.connections import Connections

_log = logging.getLogger("everstep")
WAL_PAGES_MIN = 100
WAL_PAGES_MAX = 800
_SHARE = 10  # a tenth of the file
_TOGETHER_PAGES = 400  # of file and log: so much a small store may take, since to move the log waits for the disk twice
_FRAME_BYTES = schema.PAGE_BYTES + 24  # a page in the log, behind its header
_ROOM = 1.1  # for the last commit, so that the log is not cut and extended each time
_LONG = 4  # so many times longer than it should be: others wait until it is moved
_LONG_SECONDS = 0.05  # how long they may be in the way
_CUT_OFF_SECONDS = 0.5  # to wait for readers, when it shall be cut off


def wal_pages_for(pages: int) -> int:
    """Return how long the WAL of a file of so many pages may get before it is moved into it."""
    share = min(WAL_PAGES_MAX, pages // _SHARE)
    return max(WAL_PAGES_MIN, share, _TOGETHER_PAGES - pages)


class WriteAheadLog:
    """The WAL of a file, kept in proportion to it."""

    def __init__(self, path: Path, moved: Callable[[], None]) -> None:
        """`moved` is called when it was moved into the file."""
        self._path = Path(f"{path}-wal")
        self._file = path
        self._moved = moved
        self._pages = 0
        self._pages_max = WAL_PAGES_MIN  # until it is known how large the file is
        self._pages_tried = 0
        self.is_due = False
        """It is to be cut off after the next commit, however long it is."""

    def measure(self, writer: apsw.Connection) -> None:
        """See how large the file is, and let the log keep as much of its own file as it needs for that."""
        self._pages_max = wal_pages_for(writer.pragma("page_count"))
        writer.execute(f"PRAGMA journal_size_limit={int(_ROOM * self._pages_max * _FRAME_BYTES)}")

    def has_something(self) -> bool:
        """Whether there is anything in it, by this process or another."""
        return bool(self._pages) or (self.exists() and self._path.stat().st_size > 0)

    def exists(self) -> bool:
        return self._path.exists()

    def look_after(self, connections: Connections) -> None:
        """After commits: see how long the WAL is, and move it into the file when it is time."""
        (self._pages,) = connections.raw.log_pages()
        if self._pages < self._pages_tried:  # it has begun anew
            self._pages_tried = 0
        if self.is_due or self._pages >= self._pages_max:
            self._bound(connections)

    def cut_off(self, connections: Connections) -> bool:
        """Cut the WAL off, unless somebody reads from it all the time; return whether it was."""
        self.is_due = False
        connections.patience.lasts(time.monotonic() + _CUT_OFF_SECONDS)
        try:
            connections.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._pages = 0
        except apsw.Error:
            return False  # nothing is lost, and it will be tried again
        return True

    def _bound(self, connections: Connections) -> None:
        """Keep the WAL in proportion to the file: small beside a large one, never more than 2 MB for long.

        It begins anew when all of it is in the file. That may never be so by itself where several processes write all
        the time: then they wait for it, once in a while. What others have moved need not be moved again.
        """
        if self.is_due:
            self.cut_off(connections)
            if self._pages < self._pages_max:
                return
        moved = max(self._pages_tried, connections.raw.moved_pages())
        if self._pages - moved < self._pages_max:
            return
        self._pages_tried = self._pages
        try:
            self._move(connections, is_whole=self._pages >= _LONG * self._pages_max)
            self.measure(connections.writer)
        except apsw.BusyError:
            return  # the commit is safe in the WAL; another one will move it
        except apsw.Error:
            self._pages_tried = 0  # the disk may be full: the very next one shall try
            return
        self._pages = 0
        self._moved()

    def _move(self, connections: Connections, *, is_whole: bool) -> None:
        """Move what can be moved of the WAL into the file; all of it, if nobody shall write meanwhile."""
        if is_whole:
            connections.patience.lasts(time.monotonic() + _LONG_SECONDS)
        mode = apsw.SQLITE_CHECKPOINT_FULL if is_whole else apsw.SQLITE_CHECKPOINT_PASSIVE
        connections.writer.wal_checkpoint(mode=mode)

    def set_aside(self) -> None:
        """Set the log of a file that was overwritten aside: it must not be taken for the log of the file there now."""
        aside = Path(f"{self._path}.{time.time_ns()}")
        try:
            os.rename(self._path, aside)
        except FileNotFoundError:
            return  # another process has done it
        _log.warning(
            "%s was overwritten while it was open; the commits that it had in its log are in %s", self._file, aside
        )
