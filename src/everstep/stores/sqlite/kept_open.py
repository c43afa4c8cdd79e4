"""Files that stay open here after their store was closed, since another copy of SQLite in this process has them open.

What SQLite locks of a database file belongs to the process: when we close it, the locks of the other copy go as well,
in the middle of what it writes. And whoever closes a file last removes its log: the other copy would not be seen. So
a connection waits here until the other copy has closed the file, or this process ends or is forked.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from pathlib import Path
from typing import NamedTuple

import apsw

from everstep.runtime import forks
from everstep.stores.sqlite import index_locks
from everstep.stores.sqlite.presence import Presence

_log = logging.getLogger("everstep")


class Kept(NamedTuple):
    """A connection to one file, and the locks that say that the file is open."""

    path: Path
    identity: tuple[int, int]
    connection: apsw.Connection
    presence: Presence

    def is_needed(self) -> bool:
        return index_locks.is_open_beside(_index_of(self.path))

    def close(self) -> None:
        self.presence.end()
        try:
            self.connection.close()
        except apsw.Error:
            _log.exception("%s could not be closed", self.path)
        self.presence.close()


class _KeptOpen:
    """All such files of this process, each of them once."""

    fork_order = 2

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Kept] = []
        forks.register(self)

    def add(self, kept: Kept) -> None:
        with self._lock:
            self._kept.append(kept)

    def take(self, path: Path) -> Kept | None:
        if not self._kept:
            return None
        identity = _identity_of(path)
        with self._lock:
            for kept in self._kept:
                if kept.identity == identity:
                    self._kept.remove(kept)
                    return kept
        return None

    def close_what_is_not_needed(self) -> None:
        if not self._kept:
            return
        with self._lock:
            for kept in list(self._kept):
                if not kept.is_needed():
                    self._kept.remove(kept)
                    kept.close()

    def before_fork(self) -> None:
        """SQLite forbids carrying a connection across a fork."""
        self._lock.acquire()
        while self._kept:
            self._kept.pop().close()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # the same on both sides
        self._lock.release()


_kept_open = _KeptOpen()
close_what_is_not_needed = _kept_open.close_what_is_not_needed
"""Close the files that no other copy of SQLite has open any more."""
take = _kept_open.take
"""Return what is kept of a file, for who opens it again: it goes on with the same locks, and closes the connection."""
give_back = _kept_open.add
atexit.register(close_what_is_not_needed)


def keep(path: Path, connection: apsw.Connection, presence: Presence) -> bool:
    """Keep a file open that is to be closed, if another copy of SQLite needs that; return whether it is kept."""
    identity = _identity_of(path)
    if identity is None or not index_locks.is_open_beside(_index_of(path)):
        return False
    connection.release_memory()
    _kept_open.add(Kept(path, identity, connection, presence))
    _log.info("%s stays open: another copy of SQLite in this process has it open, too", path)
    return True


def _index_of(path: Path) -> str:
    return f"{os.path.realpath(path)}-shm"


def _identity_of(path: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
