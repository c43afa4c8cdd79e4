"""One file in one process: its connections, reads, batches of commits.

All handles of a process share one database per file. Before a fork its connections are closed, and opened again on
both sides when needed.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw

from everstep.errors import (
    CheckpointCorrupted,
    EverstepError,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.runtime import deadlines, forks
from everstep.stores.sqlite import kept_open, schema
from everstep.stores.sqlite.batches import (
    Ended,
    Outcome,
    do_job,
    fail_all,
    fail_rest,
    first_deadline,
    is_surely_undone,
    unknown_outcomes,
)
from everstep.stores.sqlite.checksums import count_renewals, renew_checksums
from everstep.stores.sqlite.connecting import ImmutableConnection, connect
from everstep.stores.sqlite.connections import Connections, Patience, begin, roll_back
from everstep.stores.sqlite.full_disk import Reserve
from everstep.stores.sqlite.guard import FileGuard
from everstep.stores.sqlite.line import WritersLine
from everstep.stores.sqlite.opening import open_file
from everstep.stores.sqlite.presence import Presence
from everstep.stores.sqlite.queue import CommitQueue, Job
from everstep.stores.sqlite.raw import RawFile
from everstep.stores.sqlite.rows import Rows
from everstep.stores.sqlite.translating import ChecksumMismatch, as_ours, translated
from everstep.stores.sqlite.wal import WriteAheadLog, wal_pages_for
from everstep.stores.sqlite.worker_threads import workers

_log = logging.getLogger("everstep")
T = TypeVar("T")
Synchronous = Literal["full", "normal", "off"]

# Of the file: a smaller one has no reserve, which would take as much as the file itself.
_RESERVE_FROM_PAGES = 2048
_STEP_PAGES = 128  # that a small deletion writes
SHRINK_PAGES = 2000  # given back in one commit
_READERS_IDLE_MAX = 8
_CLOSING_SECONDS = 0.5  # to wait for others before the log is moved into the file
_OVERWRITTEN = (
    "the file {} was overwritten while it was open, as by copying a backup over it. Nothing is written to it any more: "
    "close the store in every process and open it anew. Next time close it first, and remove its -wal and -shm files"
)
_REPLACED = "the file {} was removed or replaced while it was open; open it anew"
_LOG_REMOVED = (
    "the log of {0} ({0}-wal) was removed while others have the file open, too. What it held is in the file now; "
    "nothing is written here until they have noticed it as well, or closed the file: try again then. Remove neither "
    "the log nor {0}-shm: both go when the last program closes the file"
)
_LOG_LOST = (
    "the log of {0} ({0}-wal) was removed while the file was open, and another program has begun a new one. Nothing is "
    "written any more, and what was committed last may be lost: close the store in every process and open it anew"
)


_WRITTEN_BY_OTHERS = (
    "another SQLite program writes {} faster than its pages can be looked at; nothing was written, try again. Keep the "
    "tables of that program in a file of their own"
)
_RENEWALS_MAX = 8  # of checksums for one call


class _LogRemoved(StoreError):
    """The log was removed, and what it held is to be moved into the file before anything else."""


class Database:
    """One file in one process: one connection that writes, led by the commit queue, and a few that read."""

    fork_order = 1

    def __init__(self, path: Path, synchronous: Synchronous, busy_seconds: float) -> None:
        self._path = path
        self._synchronous = synchronous
        self._busy_ms = int(busy_seconds * 1000)
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._users = 0
        self._resting = False
        self._holds = 1
        self._wal = WriteAheadLog(path, self.keep_reserve)
        self._reserve = Reserve(path)
        self._connections: Connections | None = None
        self._renewing = threading.Lock()
        self._is_replaced = False
        self._has_lost_log = False
        """It was removed, and the file has not been opened since."""
        self._damage: str | None = None
        self.queue = CommitQueue(self._run_batch, self._leaders)
        with self:
            pass  # opened now, so that an error about the file comes at once
        stat = os.stat(path)
        self._identity = stat.st_dev, stat.st_ino
        forks.register(self)

    def is_the_file(self) -> bool:
        """Whether the path still leads to the file that is open."""
        if self._is_replaced:
            return False
        try:
            stat = os.stat(self._path)
        except OSError:
            return False
        return (stat.st_dev, stat.st_ino) == self._identity

    def _stamp(self) -> tuple[int, int, int] | None:
        """Return what changes with the file."""
        try:
            stat = os.stat(self._path)
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _check_file(self, connections: Connections) -> None:
        """Refuse to go on with a file that was removed, replaced or overwritten, or whose log was removed."""
        guard = connections.guard
        if self._is_replaced or not guard.is_as_noted():
            self._check_changed_file(connections)
        # Last: into a file that somebody else has written, the log must not be moved.
        if not guard.has_log():
            raise _LogRemoved(f"the log of {self._path} was removed")

    def _check_changed_file(self, connections: Connections) -> None:
        if not self._is_replaced and not self.is_the_file():
            raise StoreError(_REPLACED.format(self._path))
        if not self._is_replaced and not connections.guard.is_intact():
            self._is_replaced = not self._was_renewed(connections)
        if self._is_replaced:
            raise StoreError(_OVERWRITTEN.format(self._path))

    def _was_renewed(self, connections: Connections) -> bool:
        """Whether the file changed because another process renewed checksums. It holds the write lock meanwhile."""
        try:
            with closing(connect(self._path, self._busy_ms)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                renewals = count_renewals(connection)
                connection.execute("ROLLBACK")
        except apsw.BusyError:
            raise
        except apsw.Error:
            # The file and its log do not belong together, or another SQLite program has moved the log just now.
            return connections.guard.is_intact()
        if renewals <= connections.renewals[0]:
            return connections.guard.is_intact()
        connections.renewals[0] = renewals
        connections.guard.note(anew=True)
        return True

    def hold(self) -> bool:
        with self._idle:
            self._holds += self._holds > 0
            return self._holds > 0

    def release(self) -> None:
        """Close when the last handle lets go. The file then needs no WAL beside it."""
        with self._idle:
            last = self._holds == 1
        if last:
            self._wal.is_due = True
            try:
                # Runs after everybody who came before. If another process has the file locked, the log stays for it.
                self.queue.do(Job(lambda _: None, "", deadlines.end_of(_CLOSING_SECONDS)))
            except EverstepError:
                pass  # a file that cannot be written any more can still be let go
        with self._idle:
            self._holds -= 1
            if self._holds == 0:
                self._idle.wait_for(lambda: self._users == 0)
                self._disconnect(may_stay_open=True)
                workers.dismiss(f"commit {self._path}")

    def read(
        self, work: Callable[[Rows], T], thread_id: str | None = None, quick: Callable[[Rows], T | None] | None = None
    ) -> T:
        """Run `work`, which may be about a thread, on a consistent view of the file.

        `quick` is tried first, by what the writer remembers; None: it does not know.
        """
        found = self._read_as_writer(quick) if quick is not None else None
        if found is not None:
            return found
        try:
            return self._read_renewing(work)
        except CheckpointCorrupted as exc:
            raise _about(exc, thread_id) from exc

    def _read_renewing(self, work: Callable[[Rows], T]) -> T:
        """Read; renew the checksums of pages that another SQLite program has written, as often as it does."""
        for _ in range(_RENEWALS_MAX):
            try:
                return self._read(work)
            except ChecksumMismatch as exc:
                self._renew_checksums(exc)
        raise StoreUnavailable(_WRITTEN_BY_OTHERS.format(self._path))

    def _read_as_writer(self, work: Callable[[Rows], T | None]) -> T | None:
        """Return what the writer knows; None: it does not, or it is busy. What it has written it need not read again.

        Other writers wait meanwhile, so the work is short. Errors are for `_read` to say.
        """
        with self as connections:
            if not self.queue.borrow():
                return None
            try:
                return work(connections.rows) if connections.guard.is_as_noted() else None
            except (apsw.Error, EverstepError, TypeError, ValueError, AttributeError):
                return None
            finally:
                self.queue.give_back()

    def _read(self, work: Callable[[Rows], T]) -> T:
        try:
            return self._read_once(work)
        except _LogRemoved:
            # Whoever leads the commits begins a new one.
            self.queue.do(self._own_job(lambda _: None))
            return self._read_once(work)

    def _read_once(self, work: Callable[[Rows], T]) -> T:
        with translated(self._path), self as connections:
            self._check_file(connections)
            connection = self._take_reader(connections)
            before = self._stamp() if isinstance(connection, ImmutableConnection) else None
            try:
                connection.execute("BEGIN")
                result = work(Rows(connection))
                connection.execute("COMMIT")
                if before is not None and self._stamp() != before:
                    raise StoreUnavailable(f"{self._path} was changed while it was read; try again")
                return result
            except (TypeError, ValueError, AttributeError) as exc:
                if isinstance(exc, EverstepError):
                    raise
                raise CheckpointCorrupted(f"{self._path} holds something impossible: {exc!r}") from exc
            finally:
                self._put_reader(connections, connection)

    def _renew_checksums(self, met: ChecksumMismatch) -> None:
        """Find out whether the file is damaged, or only written by another program; raise or mend."""
        with self._renewing:
            if self._damage is None:
                with self as connections:
                    self._check_file(connections)
                try:
                    self._renew()
                except StoreReadOnly:
                    raise CheckpointCorrupted(
                        f"{met.reason}. Another program may have written it; the file may only be read here, so that "
                        "this cannot be found out: open it once where it may be written"
                    ) from met
                except CheckpointCorrupted as exc:
                    # A damaged file stays damaged: it is not looked at for each call.
                    self._damage = exc.reason
            if self._damage is not None:
                raise CheckpointCorrupted(self._damage) from met

    def _renew(self) -> None:
        with self as connections:
            renew_checksums(self._path, self._busy_ms, connections.presence)

    def give_space_back(self, pages_max: int | None = None) -> None:
        """Shrink the file by (at most so many of) the pages that deletion left free, a few at a time."""
        if pages_max is not None:
            self.queue.do(self._own_job(lambda rows: rows.shrink(pages_max)))
            return
        while self.queue.do(self._own_job(lambda rows: rows.shrink(SHRINK_PAGES))):
            pass

    def _own_job(self, work: Callable[[Rows], T]) -> Job[T]:
        """Return a job that is about the file, not about a thread."""
        return Job(work, "", deadlines.end_of(self._busy_ms / 1000))

    # -- connections

    def __enter__(self) -> Connections:
        """Hold the connections open: neither a fork nor a close comes between."""
        with self._lock:
            if self._resting:
                self._idle.wait_for(lambda: not self._resting)
            if self._holds == 0:
                raise StoreClosed(f"the store {self._path} is closed")
            if self._connections is None:
                self._check_others()
                self._connections = self._connect()
            self._users += 1
            return self._connections

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._lock:
            self._users -= 1
            # A fork or a close waits for it.
            if self._users == 0 and (self._resting or self._holds == 0):
                self._idle.notify_all()

    def before_fork(self) -> None:
        """Before a fork: finish, and close every connection. SQLite forbids carrying one across."""
        self._idle.acquire()
        self._resting = True
        # A thread that forks while it is itself at work here cannot wait for itself.
        if self._idle.wait_for(lambda: self._users == 0, timeout=60):
            self._disconnect()

    def after_fork(self, *, in_child: bool) -> None:
        self._resting = False
        if in_child:
            # The parent's, still in use there: never touch them, not even at exit.
            if self._connections is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connections))
                # But a place in line would stay taken as long as both have it, and the file open.
                self._connections.line.close()
                self._connections.presence.close()
                self._connections = None
            self._users = 0
            self._lock = threading.RLock()
            self._idle = threading.Condition(self._lock)
            self._renewing = threading.Lock()
            self.queue = CommitQueue(self._run_batch, self._leaders)
            return
        self._idle.notify_all()
        self._idle.release()

    def _leaders(self) -> Executor:
        # One thread per file: files do not wait for each other.
        return workers.get(f"commit {self._path}", 1)

    def _connect(self) -> Connections:
        try:
            return self._connect_once()
        except StoreFull:
            if not self._reserve.lend():
                raise
            return self._connect_once()

    def _connect_once(self) -> Connections:
        kept = kept_open.take(self._path)
        presence = kept.presence if kept is not None else Presence(self._path)
        try:
            connections = self._connect_as(presence)
        except BaseException:
            if kept is not None:
                presence.begin()
                kept_open.give_back(kept)
            else:
                presence.close()
            raise
        if kept is not None:
            kept.connection.close()
        return connections

    def _connect_as(self, presence: Presence) -> Connections:
        with translated(self._path):
            writer = open_file(self._path, self._busy_ms, presence)
            writer.setlk_timeout(0, 0)  # it is asked by its handler: see `Patience`
            writer.execute(f"PRAGMA synchronous={self._synchronous}")
            self._wal.measure(writer)
            writer.execute("PRAGMA cache_size=-8000")
            # What is deleted is overwritten, not only forgotten.
            writer.execute("PRAGMA secure_delete=ON")
            writer.wal_autocheckpoint(0)  # see `_bound_wal`
            renewals = count_renewals(writer)
            raw = RawFile(writer)
            guard = FileGuard(self._path, raw)
            line = WritersLine(self._path)
            patience = Patience(raw)
            writer.set_busy_handler(patience.look_again)
            # Who only reads has no log to lose, and is in nobody's way who moves it into the file.
            if writer.readonly("main"):
                presence.end()
            else:
                presence.begin()
            return Connections(writer, Rows(writer), [], raw, guard, line, presence, patience, [renewals])

    def _disconnect(self, *, may_stay_open: bool = False) -> None:
        """Close all that is open on the file; with `may_stay_open` unless that would harm another copy of SQLite."""
        connections = self._connections
        if connections is None:
            return
        connections.line.close()
        kept_open.close_what_is_not_needed()
        with translated(self._path):
            for reader in connections.readers:
                self._close(reader)
            self._connections = None
            may_stay_open = may_stay_open and not self._is_replaced
            if may_stay_open and kept_open.keep(self._path, connections.writer, connections.presence):
                return
            connections.presence.end()
            self._close(connections.writer)
        connections.presence.close()
        if self._is_replaced:
            self._wal.set_aside()

    def _close(self, connection: apsw.Connection) -> None:
        if self._is_replaced:  # what the log holds belongs to the file that was there before
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.close()

    def _take_reader(self, connections: Connections) -> apsw.Connection:
        try:
            return connections.readers.pop()
        except IndexError:
            if not self.is_the_file():
                raise StoreError(_REPLACED.format(self._path)) from None
            connection = connect(self._path, self._busy_ms)
            connection.execute("PRAGMA query_only=1")
            return connection

    def _put_reader(self, connections: Connections, connection: apsw.Connection) -> None:
        is_left_inside = connection.in_transaction  # by an error or an interrupt
        # One that looks for no locks would not notice what somebody who may write the file does to it later.
        is_blind = isinstance(connection, ImmutableConnection)
        if len(connections.readers) >= _READERS_IDLE_MAX or is_left_inside or is_blind:
            connection.close()
        else:
            connections.readers.append(connection)

    # -- commits

    def _run_batch(self, batch: Sequence[Job[Any]], *, is_again: bool = False) -> None:
        """Run the jobs in one transaction. If that fails, each in its own: one bad job fails no other."""
        try:
            with self as connections:
                self._check_file(connections)
                try:
                    if not self._try_together(batch, connections):
                        self._try_each(batch, connections)
                except ChecksumMismatch as exc:  # nothing was kept
                    self._try_renewing(batch, connections, exc)
                self._wal.look_after(connections)
                connections.guard.note()
        except Exception as exc:
            if isinstance(exc, _LogRemoved) and not is_again:
                self._run_with_new_log(batch)
            else:
                fail_rest(batch, exc)

    def _run_with_new_log(self, batch: Sequence[Job[Any]]) -> None:
        try:
            self._begin_new_log()
        except Exception as exc:
            fail_rest(batch, exc)
        else:
            self._run_batch(batch, is_again=True)

    def _begin_new_log(self) -> None:
        """Go on after the log was removed: what it holds is moved into the file, which is closed and opened anew."""
        with self as connections:
            if connections.guard.has_another_log():
                raise StoreError(_LOG_LOST.format(self._path))
            with translated(self._path):
                connections.patience.lasts(deadlines.end_of(self._busy_ms / 1000))
                connections.writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
        with self._idle:
            self._resting = True
            try:
                if not self._idle.wait_for(lambda: self._users == 0, timeout=self._busy_ms / 1000):
                    raise StoreUnavailable(f"the log of {self._path} was removed while the file is read; try again")
                self._disconnect()
                self._has_lost_log = True
                self._check_others()
            finally:
                self._resting = False
                self._idle.notify_all()
        _log.warning("%s-wal was removed while it was in use; what it held is in the file now", self._path)

    def _check_others(self) -> None:
        """After the log was removed: refuse to begin a new one while others write to the one that was removed."""
        if not self._has_lost_log:
            return
        if not self._wal.exists() and Presence.is_elsewhere(self._path):
            raise StoreError(_LOG_REMOVED.format(self._path))
        self._has_lost_log = False

    def _try_renewing(self, batch: Sequence[Job[Any]], connections: Connections, met: ChecksumMismatch) -> None:
        """Renew the checksums of pages that another SQLite program has written, and try again, as often as it does."""
        for _ in range(_RENEWALS_MAX):
            self._renew_checksums(met)
            try:
                self._try_each(batch, connections)
                return
            except ChecksumMismatch as exc:
                met = exc
        raise StoreUnavailable(_WRITTEN_BY_OTHERS.format(self._path))

    def _try_each(self, batch: Sequence[Job[Any]], connections: Connections) -> None:
        """Run those jobs that have no outcome yet, each in a transaction of its own."""
        for job in batch:
            if not job.done:
                self._try_together([job], connections)

    def _try_together(self, batch: Sequence[Job[Any]], connections: Connections, *, has_cut_log: bool = False) -> bool:
        """Return whether every job has its outcome; if not, nothing was kept and each should be tried alone."""
        outcomes: list[Outcome] = []
        is_committing = False
        try:
            begin(connections, first_deadline(batch))
            for job in batch:
                outcomes.append(do_job(job, connections))
            is_committing = True
            connections.writer.execute("COMMIT")
            connections.rows.note_committed()
        except Ended:
            roll_back(connections)
            return False
        except Exception as caught:
            failure = as_ours(self._path, caught)
            roll_back(connections)
            if isinstance(failure, StoreFull) and not has_cut_log and self._wal.cut_off(connections):
                # It may fit where the log was.
                return self._try_together(batch, connections, has_cut_log=True)
            if not is_committing or is_surely_undone(failure):
                return fail_all(batch, failure, caught)
            outcomes = unknown_outcomes(batch, outcomes, failure)
        except BaseException:
            roll_back(connections)
            raise
        for job, (result, error) in zip(batch, outcomes, strict=True):
            job.finish(result, error)
        return True

    def erase_deleted(self) -> None:
        """Leave nothing of what was deleted: the WAL, which still has it, is moved into the file and cut off."""
        if self._wal.has_something():
            self._wal.is_due = True
            self.queue.do(self._own_job(lambda _: None))

    def keep_reserve(self, leaving_bytes: int | None = None) -> None:
        """Set room aside for deleting, if so much is left for others; None: as much again."""
        pages = os.path.getsize(self._path) // schema.PAGE_BYTES
        if pages >= _RESERVE_FROM_PAGES:
            # The log may hold nothing but new pages, which the file has to take in, and a deletion needs a log itself.
            size = (wal_pages_for(pages) + _STEP_PAGES) * schema.PAGE_BYTES
            self._reserve.keep(size, size if leaving_bytes is None else leaving_bytes)

    def give_up_reserve(self) -> int:
        return self._reserve.give_up()

    def restore_reserve(self, size_bytes: int) -> None:
        """Set as much aside as was given up; what else a deletion gave back is for others."""
        self._reserve.keep(size_bytes, leaving_bytes=_STEP_PAGES * schema.PAGE_BYTES)


def _about(error: CheckpointCorrupted, thread_id: str | None) -> CheckpointCorrupted:
    """Return an error that names the thread which could not be read, if that is known."""
    return error if thread_id is None or error.thread_id is not None else error.located(thread_id, None)
