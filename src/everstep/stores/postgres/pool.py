"""Connections to PostgreSQL: each wait ends at a deadline, lost ones are noticed, errors come out as ours.

The pool is our own because its promises are narrower than those of psycopg's: a connection is made by the call that
needs it, so that its errors come at once and within the call's deadline, and no threads work in the background.
"""

from __future__ import annotations

import asyncio
import re
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.generators import execute, fetch_many, send
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.waiting import wait_async

from everstep.errors import (
    CheckpointCorrupted,
    EverstepError,
    InvalidInput,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreMismatch,
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.runtime import forks
from everstep.stores.open_files import too_many_behind

RACES = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
)
"""Another writer was in the way: the transaction did nothing, and may be run again."""
# How often a wait looks at its deadline.
_WAKE_SECONDS = 0.1
_PLAIN_HOST = re.compile(r"[\w.,:/-]*")
_PLAIN_NAME = re.compile(r"[\w.-]*")
# The driver has no code for what a server says before a session begins, so its words have to do.
_STARTING = ("the database system is", "terminating connection due to", "server closed the connection")
_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied", "not permitted")


class Late(psycopg.OperationalError):
    """The deadline has passed."""


class Unsent(Late):
    """The deadline had passed before anything was sent: the server was not asked."""


class NotPrepared(Unsent):
    """A statement that was prepared is not known, or not as it was: the server did nothing."""


class Connection(psycopg.Connection[Any]):
    """A connection whose waits end at a deadline, whatever the network does."""

    deadline = float("inf")

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        self._check_time()
        try:
            return super().wait(_until(self.deadline, gen), *args, **kwargs)
        except Late:
            # Nobody knows what it would answer next: the answer to this statement may still come.
            self.close()
            raise

    def call(self, query: bytes, types: Sequence[int], values: Sequence[bytes | None]) -> bytes | None:
        """Run a query whose values are in the server's binary form, and return the one value it gives, also in it.

        A cursor would look at each value to find out how to send it, which takes longer than the server's work.
        """
        self._check_time()
        self.pgconn.send_query_params(query, values, types, [1] * len(values), 1)
        gen = _until(self.deadline, execute(self.pgconn))
        try:
            return _value(super().wait(gen))
        except Late:
            self.close()
            raise

    def call_and_commit(self, query: bytes, types: Sequence[int], values: Sequence[bytes | None]) -> bytes | None:
        """The same, and commit the transaction, in one round trip where the driver can do that.

        If the call fails there is nothing to be committed, and the transaction has failed.
        """
        if not psycopg.Pipeline.is_supported():
            value = self.call(query, types, values)
            self.execute("COMMIT")
            return value
        self._check_time()
        self.pgconn.enter_pipeline_mode()
        try:
            self.pgconn.send_query_params(query, values, types, [1] * len(values), 1)
            self.pgconn.send_query_params(b"COMMIT", None)
            self.pgconn.pipeline_sync()
            called, committed = super().wait(_until(self.deadline, _answers(self.pgconn, 2)))
            self.pgconn.exit_pipeline_mode()
        except BaseException:
            self.close()  # nobody knows what it would answer next
            raise
        value = _value(called)
        _check(committed, ExecStatus.COMMAND_OK)
        return value

    @contextmanager
    def in_one_go(self) -> Iterator[None]:
        """Send the statements that are executed inside in one round trip, where the driver can do that."""
        if not psycopg.Pipeline.is_supported():
            yield
            return
        failure: BaseException | None = None
        try:
            with self.pipeline():
                try:
                    yield
                except BaseException as exc:
                    failure = exc
        except psycopg.Error:
            # What was sent after a statement that failed was not done, which is known. The driver would log it.
            if failure is None:
                raise
        if failure is not None:
            raise failure

    async def call_async(self, query: bytes, types: Sequence[int], values: Sequence[bytes | None]) -> bytes | None:
        """The same; the event loop goes on meanwhile."""
        self._check_time()
        self.pgconn.send_query_params(query, values, types, [1] * len(values), 1)
        gen = _until(self.deadline, execute(self.pgconn))
        return _value(await wait_async(gen, self.pgconn.socket, interval=_WAKE_SECONDS))

    def is_direct(self) -> bool:
        """Whether this is a session of the server itself: a pooler between says the number of a process of its own."""
        found = self.execute("SELECT pg_backend_pid()").fetchone()
        return found == (self.info.backend_pid,)

    def _check_time(self) -> None:
        """Refuse to begin what must be over: statements that are quick one by one must not be slow together."""
        if time.monotonic() >= self.deadline:
            raise Unsent("there was no time left to ask PostgreSQL")

    @property
    def is_lost(self) -> bool:
        """Whether the server hung up while nobody asked it anything. No round trip: hanging up can be read."""
        if self.closed:
            return True
        # Not on Windows. Elsewhere `select` fails for sockets with a number above 1023.
        if not hasattr(select, "poll"):
            return bool(select.select([self], [], [], 0)[0])
        poll = select.poll()
        poll.register(self, select.POLLIN)
        return bool(poll.poll(0))


def can_watch(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether an event loop can wait for a socket that is not its own, as `call_async` asks of it; Windows' may not."""
    return type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader


def _value(results: Sequence[Any]) -> bytes | None:
    _check(results, ExecStatus.TUPLES_OK)
    found: bytes | None = results[-1].get_value(0, 0)
    return found


def _check(results: Sequence[Any], wanted: ExecStatus) -> None:
    if results[-1].status != wanted:
        error = psycopg.errors.error_from_result(results[-1])
        # Without a code it is not the server that refuses, but the connection that broke: it may have been done.
        raise error if error.sqlstate is not None else psycopg.OperationalError(str(error))


def _answers(pgconn: Any, count: int) -> Generator[Any, Any, list[Any]]:
    """Send what is on its way, and return the results of each statement up to the end of the pipeline."""
    yield from send(pgconn)
    answers: list[Any] = []
    while len(answers) < count:
        answer = yield from fetch_many(pgconn)
        answers.append(answer)
    # The end of the pipeline has an answer of its own.
    yield from fetch_many(pgconn)
    return answers


def _until(deadline: float, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """Go on with a generator of psycopg, which is woken ten times a second, until the deadline."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            # First of all: an answer that has come counts, however late its reader is.
            wanted = gen.send(ready)
            if time.monotonic() >= deadline:
                raise Late("PostgreSQL did not answer in time")
    except StopIteration as finished:
        return finished.value


def checked_dsn(dsn: str) -> str:
    """Return a URL or a text of key=value, if it is one. Errors show nothing of it."""
    scheme, separator, rest = dsn.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        place, port = _ends(rest)
        path = rest[len(place) :].partition("?")[0]
        # A slash or a question mark in a password ends the host early: then there is an @ where none belongs.
        is_cut = "@" not in place and ("@" in path or ("@" in rest[len(place) :] and not port.isdigit()))
        if place.count("@") > 1 or is_cut:
            raise InvalidInput("the PostgreSQL URL cannot be read: in a password write @ as %40, / as %2F, : as %3A")
    try:
        conninfo_to_dict(dsn)
        return dsn
    except psycopg.ProgrammingError:
        pass  # its text, and the error itself, would quote from the password
    raise InvalidInput("dsn is neither a PostgreSQL URL nor a text of key=value pairs")


def address_of(dsn: str) -> str:
    """Return where a database is: nothing of who connects to it. An odd part is left out, since it may hold more."""
    found = conninfo_to_dict(dsn)
    host, port, name = (str(found.get(key) or "") for key in ("host", "port", "dbname"))
    address = "postgresql://"
    if _PLAIN_HOST.fullmatch(host):
        address += host
        if port.isdigit():
            address += f":{port}"
    if name and _PLAIN_NAME.fullmatch(name):
        address += f"/{name}"
    return address


def _ends(rest: str) -> tuple[str, str]:
    """Return the part of a URL before its path, and the port in it ("0": none)."""
    place = re.split("[/?#]", rest, maxsplit=1)[0]
    host = place.rpartition("@")[2]
    if ":" not in host:
        return place, "0"
    return place, host.rpartition(":")[2]


def connect(dsn: str, deadline: float, **settings: Any) -> Connection:
    """Connect, with names resolved too, by the deadline. What comes too late is closed again."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise Late("there was no time left to connect to PostgreSQL")
    outcome: Future[Connection] = Future()

    # In a thread, since the system resolves names without a time limit.
    def work() -> None:
        try:
            # A name that stands for several addresses: each has its turn.
            made = Connection.connect(
                dsn, autocommit=True, fallback_application_name="everstep", connect_timeout=int(left) + 1, **settings
            )
        except BaseException as exc:
            # A traceback would keep the socket open, and the server waiting, until somebody collects garbage.
            outcome.set_exception(exc.with_traceback(None))
        else:
            outcome.set_result(made)

    threading.Thread(target=work, name="everstep-connect", daemon=True).start()
    try:
        return outcome.result(left)
    except TimeoutError:
        outcome.add_done_callback(_discard)
        raise Late("PostgreSQL did not accept a connection in time") from None


def _discard(late: Future[Connection]) -> None:
    if late.exception() is None:
        late.result().close()


class Pool:
    """Connections of one process, made when they are needed."""

    fork_order = 1

    def __init__(
        self,
        connect: Callable[[float], Connection],
        size_max: int,
        idle_seconds_max: float,
        size_min: int = 0,
        stop_preparing: Callable[[], None] = lambda: None,
    ) -> None:
        """Connections that were idle for too long are closed, until `size_min` are left.

        `stop_preparing` is called when a statement that was prepared is not known: new connections shall prepare none.
        """
        self._connect = connect
        self._stop_preparing = stop_preparing
        self._idle_seconds_max = idle_seconds_max
        self._size_min = size_min
        self._size_max = size_max
        self._changed = threading.Condition()
        self._idle: deque[tuple[float, Connection]] = deque()
        self._used = 0
        self._lent: set[Connection] = set()
        self._resting = self._closed = False
        weakref.finalize(self, _close_all, self._idle)
        forks.register(self)

    @contextmanager
    def connection(self, deadline: float) -> Iterator[Connection]:
        """Lend a connection in autocommit. One that is not idle afterwards is closed: it was lost, or left inside."""
        self._take_turn(deadline)
        connection = None
        try:
            # The one that was used last is the likeliest to be alive, and the others grow old and are closed.
            connection = self._idle_one() or self._connect(deadline)
            connection.deadline = deadline
            yield connection
        except psycopg.Error as exc:
            if connection is None or not _was_not_prepared(exc):
                raise
            connection.close()
            self._forget_prepared()
            raise NotPrepared("a statement that was prepared is not known any more") from exc
        finally:
            self._end_turn(connection)

    def _forget_prepared(self) -> None:
        """Go on without prepared statements: a pooler gives each transaction another session, or the tables changed."""
        self._stop_preparing()
        with self._changed:
            _close_all(self._idle)

    def lend(self, deadline: float) -> Connection | None:
        """Lend an idle connection to a coroutine, without waiting; None: there is none. `take_back` ends it.

        One is left for threads: what an event loop has borrowed does not come back while it waits for one of them.
        """
        with self._changed:
            if self._closed or self._resting or self._used >= self._size_max or len(self._lent) + 1 >= self._size_max:
                return None
            connection = self._idle_one()
            if connection is None:
                return None
            self._used += 1
            self._lent.add(connection)
        connection.deadline = deadline
        return connection

    def take_back(self, connection: Connection) -> None:
        """End a loan. One that a forked child finds is its parent's, and is left alone."""
        with self._changed:
            if connection in self._lent:
                self._lent.remove(connection)
                self._end_turn(connection)

    def _take_turn(self, deadline: float) -> None:
        with self._changed:
            while not self._closed and (self._resting or self._used >= self._size_max):
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise StoreUnavailable(f"all {self._size_max} connections to PostgreSQL are in use; try again")
            if self._closed:
                raise StoreClosed("this PostgreSQL store is closed")
            self._used += 1

    def _idle_one(self) -> Connection | None:
        while True:
            with self._changed:
                if not self._idle:
                    return None
                _, connection = self._idle.pop()
            if not connection.is_lost:
                return connection
            connection.close()

    def _end_turn(self, connection: Connection | None) -> None:
        now = time.monotonic()
        old: list[Connection] = []
        # A connection inside a transaction, or of which nobody knows the state, is not handed to the next
        # one.
        is_good = connection is not None and connection.pgconn.transaction_status == TransactionStatus.IDLE
        with self._changed:
            self._used -= 1
            if connection is not None and is_good and not self._closed:
                self._idle.append((now, connection))
            elif connection is not None:
                old.append(connection)
            while self._has_too_many() and now - self._idle[0][0] > self._idle_seconds_max:
                old.append(self._idle.popleft()[1])
            # Before a fork somebody waits for all of them; otherwise one more connection is of use to one.
            self._changed.notify_all() if self._resting else self._changed.notify()
        for each in old:
            each.close()

    def _has_too_many(self) -> bool:
        return bool(self._idle) and len(self._idle) + self._used > self._size_min

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._changed:
            self._closed = True
            _close_all(self._idle)
            self._changed.notify_all()

    def before_fork(self) -> None:
        """Before a fork: a child must not inherit connections, so those in use are waited for.

        Not those lent to coroutines: their event loop may be what forks. Their sockets are not used in the child.
        """
        self._changed.acquire()
        self._resting = True
        while self._used > len(self._lent):
            self._changed.wait()
        _close_all(self._idle)

    def after_fork(self, *, in_child: bool) -> None:
        self._resting = False
        if in_child:
            # Nobody waits here: those who did stayed behind in the parent.
            self._changed = threading.Condition()
            self._used = 0
            # They belong to coroutines of the parent.
            self._lent = set()
        else:
            self._changed.notify_all()
            self._changed.release()


def _close_all(idle: deque[tuple[float, Connection]]) -> None:
    while idle:
        idle.pop()[1].close()


@contextmanager
def rolled_back(connection: Connection) -> Iterator[None]:
    """Roll the transaction back that an error has left open: the connection can be used again."""
    try:
        yield
    except BaseException:
        if connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            # If that fails, the connection is lost, and the pool closes it.
            with suppress(psycopg.Error):
                connection.execute("ROLLBACK")
        raise


class Pauses:
    """When to try again after a lost connection: at once, then ever later, until the deadline."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._next = 0.0

    def wait(self) -> bool:
        """Wait, and return True; False at once if there is no time left."""
        if time.monotonic() + self._next >= self._deadline:
            return False
        time.sleep(self._next)
        self._next = min(max(self._next * 2, 0.02), 0.5)
        return True


def is_lost(exc: psycopg.Error) -> bool:
    """Whether the connection is gone or could not be made, in contrast to a refusal that would come again."""
    if exc.sqlstate is not None:
        # Classes of codes: the connection failed, or the server goes down, comes up, or has no place left.
        return exc.sqlstate[:2] == "08" or exc.sqlstate in ("57P01", "57P02", "57P03", "53300")
    return isinstance(exc, psycopg.OperationalError) and not any(words in str(exc) for words in _REFUSED)


def may_be_done(exc: psycopg.Error | StoreUnavailable) -> bool:
    """Whether what was asked of the server may be done, though its answer was lost."""
    return isinstance(exc, psycopg.Error) and not isinstance(exc, Unsent) and is_lost(exc)


def _was_not_prepared(exc: psycopg.Error) -> bool:
    """Whether the server refuses a statement only because it was prepared, or was not."""
    if isinstance(exc, psycopg.errors.FeatureNotSupported):
        return "cached plan" in str(exc)
    return isinstance(exc, (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement))


def is_starting(exc: psycopg.Error) -> bool:
    """Whether the server says that it is on its way up or down."""
    return exc.sqlstate in ("57P01", "57P02", "57P03") or any(words in str(exc) for words in _STARTING)


_NOT_OURS = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.UndefinedFunction)
_TAKEN = (psycopg.errors.DuplicateTable, psycopg.errors.DuplicateFunction)
_TRANSLATIONS: Sequence[tuple[type[psycopg.Error] | tuple[type[psycopg.Error], ...], type[EverstepError], str]] = (
    (Late, StoreUnavailable, "{}; try again"),
    (RACES, StoreUnavailable, "too many writers at once; nothing was written, try again"),
    (
        (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory),
        StoreFull,
        "the PostgreSQL server has no space left; nothing was written ({})",
    ),
    (
        psycopg.errors.ReadOnlySqlTransaction,
        StoreReadOnly,
        "this PostgreSQL server can only be read, as a replica can: {}",
    ),
    (psycopg.errors.InsufficientPrivilege, StoreReadOnly, "PostgreSQL does not let this role do that: {}"),
    (
        (psycopg.errors.DataCorrupted, psycopg.errors.IndexCorrupted),
        CheckpointCorrupted,
        "the PostgreSQL server reports damaged data: {}",
    ),
    (_NOT_OURS, StoreMismatch, "the tables are not those of this version of Everstep: {}"),
    (_TAKEN, StoreMismatch, "something else has the names of our tables here: {}; choose a table_prefix"),
    (
        psycopg.errors.QueryCanceled,
        StoreUnavailable,
        "PostgreSQL ended the statement before it was done, and nothing was written ({}). If that is its "
        "statement_timeout, raise it for this role (ALTER ROLE ... SET statement_timeout); a call is bounded by "
        "timeout_seconds anyway",
    ),
)
"""What errors of psycopg become; the first that fits counts, since some are kinds of others."""


@contextmanager
def translated() -> Iterator[None]:
    """Turn psycopg's errors into ours."""
    try:
        yield
    except psycopg.Error as exc:
        raise _ours(exc) from exc


def _ours(exc: psycopg.Error) -> EverstepError:
    for theirs, ours, text in _TRANSLATIONS:
        if isinstance(exc, theirs):
            return ours(text.format(exc))
    if not isinstance(exc, psycopg.OperationalError):
        return StoreError(f"PostgreSQL: {type(exc).__name__}: {exc}")
    if is_lost(exc):
        return too_many_behind(exc) or StoreUnavailable(f"PostgreSQL cannot be reached: {exc}")
    # Without a code, or with one of these classes, nobody was let in: trying again would end the same way.
    if exc.sqlstate is None or exc.sqlstate[:2] in ("28", "3D"):
        return StoreError(f"PostgreSQL refused the connection: {exc}")
    return StoreUnavailable(f"PostgreSQL cannot be reached: {exc}")
