"""A user's hold on a database: opened when it is first used, shared with the other handles of the process."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import apsw

from everstep.errors import CheckpointCorrupted, InvalidInput, StoreClosed, StoreMismatch
from everstep.runtime import forks
from everstep.stores.inspection import Lost
from everstep.stores.sqlite.connecting import connect
from everstep.stores.sqlite.database import Database, Synchronous
from everstep.stores.sqlite.translating import translated
from everstep.stores.sweeping import Sweeps

_log = logging.getLogger("everstep")
T = TypeVar("T")

_shared: weakref.WeakValueDictionary[tuple[Path, str], Database] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()

_INSPECT_CACHE_KIB = 16 << 10


class Handle:
    """A user's hold on a database; opens it on first use."""

    def __init__(self, path: Path, synchronous: Synchronous, busy_timeout_seconds: float) -> None:
        if synchronous not in ("full", "normal", "off"):
            raise InvalidInput(f"synchronous is 'full', 'normal' or 'off', not {synchronous!r}")
        if not isinstance(busy_timeout_seconds, (int, float)) or not 0 <= busy_timeout_seconds <= 86_400:
            raise InvalidInput(f"busy_timeout_seconds is a number from 0 to 86400, not {busy_timeout_seconds!r:.50}")
        self.path = path
        self._synchronous = synchronous
        self.busy_seconds = busy_timeout_seconds
        self._lock = threading.Lock()
        self.database: Database | None = None
        """What is open, if anything is."""
        self._refused: tuple[object, CheckpointCorrupted] | None = None
        self._closed = False
        self.sweeps = Sweeps()
        self._fork_guard = forks.hold(self._lock, 0)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def get(self) -> Database:
        database = self.database
        if database is not None:
            return database
        with self._lock:
            self._check_open()
            if self.database is None:
                self.database = self._open()
            return self.database

    def _open(self) -> Database:
        """Open the file. One that was refused as damaged is looked at again when somebody has written it.

        To find that it is damaged may take a look at all of it, and everybody who reads would begin with that.
        """
        stamp = _stamp(self.path)
        if self._refused is not None and self._refused[0] == stamp:
            raise _same_again(self._refused[1])
        try:
            return open_shared(self.path, self._synchronous, self.busy_seconds)
        except CheckpointCorrupted as exc:
            self._refused = stamp, _same_again(exc)
            raise

    def inspect(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on a connection that reads pages whatever their checksums are, as of one moment."""
        self._check_open()
        with contextlib.suppress(CheckpointCorrupted, StoreMismatch):
            self.get()  # a new file is made a store first
        with translated(self.path), closing(connect(self.path, int(self.busy_seconds * 1000))) as connection:
            connection.pragma("checksum_verification", 0)
            connection.execute("PRAGMA query_only=1")
            # Each check goes through whole tables: what the one before it read need not be read again.
            # If the table of tables cannot be read, that is for `work` to tell.
            with contextlib.suppress(apsw.Error):
                connection.execute(f"PRAGMA cache_size=-{_INSPECT_CACHE_KIB}")
            connection.execute("BEGIN")
            return work(connection)

    def check_whose(self) -> None:
        """Raise StoreMismatch if the file is somebody else's, and not a store that is damaged."""
        from everstep.stores.sqlite.recognizing import is_store

        self._check_open()
        with translated(self.path):
            if is_store(self.path, int(self.busy_seconds * 1000)):
                return
        # This says what it looks like.
        self.get()

    def mend(self, *, dry_run: bool) -> list[Lost]:
        """Make tables agree, and give pages their checksums; see `mending`."""
        from everstep.stores.sqlite.mending import BROKEN
        from everstep.stores.sqlite.rebuilding import mend_file, rebuild_file

        self.check_whose()
        busy_ms = int(self.busy_seconds * 1000)
        with translated(self.path):
            try:
                lost = mend_file(self.path, busy_ms, dry_run=dry_run)
            except BROKEN as exc:
                if dry_run:
                    return [Lost(f"the structure of the file is broken ({exc}): its rows would be copied to a new one")]
                self._let_go()
                aside = rebuild_file(self.path, busy_ms)
                lost = [Lost(f"the structure of the file was broken; it is kept as {aside}")]
                lost += mend_file(self.path, busy_ms, dry_run=False)
        if not dry_run:
            self._let_go()  # what is remembered of it may be wrong
        return lost

    def copy_pages(self, path: Path) -> None:
        """Copy the file as it is now, damage included."""
        from everstep.stores.sqlite.rebuilding import copy_file

        self._check_open()
        with translated(self.path):
            copy_file(self.path, path, int(self.busy_seconds * 1000))

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self.path} is closed")

    def _let_go(self) -> None:
        """Close the file; the next call opens it anew."""
        with self._lock:
            database, self.database = self.database, None
            self._refused = None
        if database is not None:
            with _shared_lock:
                for key, shared in list(_shared.items()):
                    if shared is database:
                        del _shared[key]
            database.release()

    def close(self) -> None:
        with self._lock:
            database, self.database, self._closed = self.database, None, True
        if database is not None:
            database.release()


def _stamp(path: Path) -> object:
    """Return what is another one after somebody has written the file or its log."""
    found: list[tuple[int, int, int]] = []
    for name in (str(path), f"{path}-wal"):
        with contextlib.suppress(OSError):
            stat = os.stat(name)
            found.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
    return found


def _same_again(error: CheckpointCorrupted) -> CheckpointCorrupted:
    """Return an error that says the same, and holds nothing of where it was raised."""
    return CheckpointCorrupted(error.reason, thread_id=error.thread_id, checkpoint_id=error.checkpoint_id)


def open_shared(path: Path, synchronous: Synchronous, busy_seconds: float) -> Database:
    """Return this process's database for the file: one commit queue, however many handles."""
    with _shared_lock:
        database = _shared.get((path, synchronous))
        if database is None or not database.is_the_file() or not database.hold():
            database = _shared[path, synchronous] = Database(path, synchronous, busy_seconds)
            _log.info("opened %s", path)
        return database
