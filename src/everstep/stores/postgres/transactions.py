"""Statements and transactions through a pool of connections: what met others, or was lost, is run again."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from typing import Literal, TypeVar

import psycopg

from everstep.errors import CheckpointCorrupted, CommitUnknown, DurabilityWarning, StoreUnavailable
from everstep.runtime import forks
from everstep.runtime.calls import tried_again
from everstep.stores.heads import Heads
from everstep.stores.postgres.asking import Tables
from everstep.stores.postgres.forms import KnownHead
from everstep.stores.postgres.migrating import check_server, migrate
from everstep.stores.postgres.pool import (
    RACES,
    Connection,
    Pauses,
    Pool,
    address_of,
    connect,
    is_lost,
    is_starting,
    may_be_done,
    rolled_back,
    translated,
)
from everstep.stores.postgres.rows import Rows
from everstep.stores.protocol import Key
from everstep.stores.sweeping import Sweeps

_ONE_STATE = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
_PREPARE_AFTER = 5  # uses; preparing what is used once would only cost

logger = logging.getLogger("everstep")
T = TypeVar("T")


class Transactions:
    """How work on the tables is run."""

    def __init__(
        self,
        dsn: str,
        tables: Tables,
        schema: str | None,
        min_size: int,
        max_size: int,
        max_idle_seconds: float,
        prepare_threshold: int | Literal["auto"] | None,
    ) -> None:
        self._dsn = dsn
        self._tables = tables
        self._schema = schema
        self._prepare = prepare_threshold
        self._pool = Pool(self._connect, max_size, max_idle_seconds, min_size, self._stop_preparing)
        self._heads: Heads[KnownHead] = Heads()
        self._absent: set[tuple[str, str]] = set()
        """Lines that were looked for, and had no head then."""
        self._lock = threading.Lock()
        self._is_ready = self._has_warned = False
        self.sweeps = Sweeps()
        self._fork_guard = forks.hold(self._lock, 2)

    @property
    def address(self) -> str:
        return address_of(self._dsn)

    @property
    def is_closed(self) -> bool:
        return self._pool.is_closed

    def close(self) -> None:
        self._pool.close()

    def forget_heads(self) -> None:
        """Forget what was seen: tables were changed behind it."""
        self._heads.clear()

    def read(self, work: Callable[[Rows], T], deadline: float) -> T:
        """Run one statement, which sees one state of the database."""
        with translated():
            pauses = Pauses(deadline)
            while True:
                try:
                    with self._pool.connection(deadline) as connection:
                        return work(Rows(connection, self._tables))
                except psycopg.OperationalError as exc:
                    self._try_again(exc, pauses)

    def view(self, work: Callable[[Rows], T], deadline: float) -> T:
        """Run several statements on one state of the database."""

        def whole(rows: Rows) -> T:
            with rolled_back(rows.connection):
                rows.begin(_ONE_STATE)
                result = work(rows)
                rows.commit()
                return result

        return self.read(whole, deadline)

    def write(self, work: Callable[[Rows], T], deadline: float, thread_id: str, *, is_repeatable: bool = False) -> T:
        """Run a transaction. Those that met another writer, or were lost before their end, are run again.

        So is one whose end is not known, if it is repeatable.
        """
        with translated():
            pauses = Pauses(deadline)
            while True:
                committing = False
                try:
                    with self._pool.connection(deadline) as connection, rolled_back(connection):
                        rows = Rows(connection, self._tables)
                        rows.begin()
                        result = work(rows)
                        # From here on a lost connection leaves open what happened, unless the work may be done twice.
                        committing = not is_repeatable
                        rows.commit()
                        return result
                except RACES as exc:
                    if not pauses.wait():
                        raise
                    tried_again("PostgreSQL: %s", type(exc).__name__)
                except psycopg.OperationalError as exc:
                    if committing and may_be_done(exc):
                        raise CommitUnknown(None, thread_id) from exc
                    self._try_again(exc, pauses)

    def _call(self, work: Callable[[Rows], T], key: Key, deadline: float, was_lost: bool = False) -> tuple[T, bool]:
        """Call a function that changes nothing when it is called again; return also whether an answer was lost."""
        with translated():
            pauses = Pauses(deadline)
            while True:
                is_asked = False
                try:
                    with self._pool.connection(deadline) as connection:
                        is_asked = True
                        return work(Rows(connection, self._tables)), was_lost
                except psycopg.errors.NotNullViolation as exc:  # it makes a number from a row that is not there
                    raise CheckpointCorrupted("the row of its family is missing", thread_id=key.thread_id) from exc
                except (*RACES, psycopg.OperationalError, StoreUnavailable) as exc:
                    was_lost = was_lost or (is_asked and may_be_done(exc))
                    try:
                        self._call_again(exc, pauses)
                    except (psycopg.Error, StoreUnavailable):
                        if not was_lost:
                            raise
                        raise CommitUnknown(key.checkpoint_id, key.thread_id) from exc

    def _call_again(self, exc: psycopg.Error | StoreUnavailable, pauses: Pauses) -> None:
        """Wait a little if calling again may help, else raise."""
        if not isinstance(exc, RACES):
            self._try_again(exc, pauses)
            return
        if not pauses.wait():
            raise exc
        tried_again("PostgreSQL: %s", type(exc).__name__)

    def _try_again(self, exc: psycopg.Error | StoreUnavailable, pauses: Pauses) -> None:
        """Wait a little if trying again may help, else raise.

        A server that was never reached is more likely named wrongly than away for a moment.
        """
        if isinstance(exc, StoreUnavailable) or not is_lost(exc):
            raise exc
        if not (self._is_ready or is_starting(exc)) or not pauses.wait():
            raise exc
        tried_again("the connection to PostgreSQL was lost (%s)", type(exc).__name__)

    def _connect(self, deadline: float) -> Connection:
        connection = connect(self._dsn, deadline, prepare_threshold=None)
        connection.deadline = deadline
        try:
            # Only the first connection looks at the server and the tables; those who come with it do the same,
            # which is harmless.
            if not self._is_ready:
                self._warn_once(check_server(connection))
                migrate(connection, self._tables, self._schema)
                self._is_ready = True
                logger.info("opened %s", self.address)
            if self._prepare != "auto":
                connection.prepare_threshold = self._prepare
            elif connection.is_direct():
                connection.prepare_threshold = _PREPARE_AFTER
        except BaseException:
            connection.close()
            raise
        return connection

    def _stop_preparing(self) -> None:
        self._prepare = None

    def _warn_once(self, losses: str) -> None:
        """Say what the server may lose. Several connections may be opened at once, and one warning is enough."""
        with self._lock:
            is_news = not self._has_warned
            self._has_warned = True
        if is_news and losses:
            warnings.warn(f"this PostgreSQL server acknowledges too early: {losses}", DurabilityWarning, stacklevel=2)
