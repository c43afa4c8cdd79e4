"""A user's hold on a database: opened when it is first used, shared with the other handles of the process."""

from __future__ import annotations

import contextlib
import logging
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
from everstep.stores.sqlite.mending import BrokenStructure
from everstep.stores.sqlite.rebuilding import mend_file, rebuild_file
from everstep.stores.sqlite.translating import translated
from everstep.stores.sweeping import Sweeps

_log = logging.getLogger("everstep")
T = TypeVar("T")

_shared: weakref.WeakValueDictionary[tuple[Path, str], Database] = weakref.WeakValueDictionary()
_shared_lock = threading.Lock()

_INSPECT_CACHE_KIB = 16 << 10


class Handle:
    """A user's hold on a database; opens it on first use."""

    fork_order = 0

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
        self._closed = False
        self.sweeps = Sweeps()
        forks.register(self)

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
                self.database = open_shared(self.path, self._synchronous, self.busy_seconds)
            return self.database

    def inspect(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` on a connection that reads pages whatever their checksums are, as of one moment."""
        self._check_open()
        with contextlib.suppress(CheckpointCorrupted, StoreMismatch):
            self.get()  # a new file is made a store first
        with translated(self.path), closing(connect(self.path, int(self.busy_seconds * 1000))) as connection:
            connection.pragma("checksum_verification", 0)
            connection.execute("PRAGMA query_only=1")
            # Each check goes through whole tables: what the one before it read need not be read again.
            with contextlib.suppress(apsw.Error):  # if the table of tables cannot be read, that is for `work` to tell
                connection.execute(f"PRAGMA cache_size=-{_INSPECT_CACHE_KIB}")
            connection.execute("BEGIN")
            return work(connection)

    def mend(self, *, dry_run: bool) -> list[Lost]:
        """Make tables agree, and give pages their checksums; see `mending`."""
        self._check_open()
        busy_ms = int(self.busy_seconds * 1000)
        with translated(self.path):
            try:
                lost = mend_file(self.path, busy_ms, dry_run=dry_run)
            except (BrokenStructure, apsw.CorruptError, apsw.SQLError, UnicodeDecodeError) as exc:
                if dry_run:
                    return [Lost(f"the structure of the file is broken ({exc}): its rows would be copied to a new one")]
                self._let_go()
                aside = rebuild_file(self.path, busy_ms)
                lost = [Lost(f"the structure of the file was broken; it is kept as {aside}")]
                lost += mend_file(self.path, busy_ms, dry_run=False)
        if not dry_run:
            self._let_go()  # what is remembered of it may be wrong
        return lost

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the store {self.path} is closed")

    def _let_go(self) -> None:
        """Close the file; the next call opens it anew."""
        with self._lock:
            database, self.database = self.database, None
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

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # the same on both sides
        self._lock.release()


def open_shared(path: Path, synchronous: Synchronous, busy_seconds: float) -> Database:
    """Return this process's database for the file: one commit queue, however many handles."""
    with _shared_lock:
        database = _shared.get((path, synchronous))
        if database is None or not database.is_the_file() or not database.hold():
            database = _shared[path, synchronous] = Database(path, synchronous, busy_seconds)
            _log.info("opened %s", path)
        return database
