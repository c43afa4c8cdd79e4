"""PostgreSQL, through psycopg 3: one pool of blocking connections per store, worker threads for asynchronous callers.

The usual commit is one call of a function in the database and the usual read one statement: one round trip each, no
session state, so that PgBouncer may stand between in transaction mode. Everything else is a short transaction around
`apply`. Every wait has a deadline. Driver errors are translated in `_translated`, and nowhere else.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from typing import Any, NamedTuple, TypeVar

from everstep import checks, forks
from everstep.errors import (
    CheckpointCorrupted,
    CommitUnknown,
    EverstepError,
    InvalidInput,
    MissingDependency,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreMismatch,
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.stores.protocol import (
    ANY,
    Base,
    Change,
    Deleted,
    Draft,
    Key,
    Loaded,
    Object,
    Operation,
    Query,
    Stored,
    Swept,
    Thread,
    Write,
)
from everstep.stores.records import pack_record, record_digest
from everstep.stores.sweeping import Sweep
from everstep.stores.transaction import apply, apply_writes, is_plain

try:
    import psycopg
    from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

    from everstep.stores.postgres_rows import Rows, Tables, columns, labels
except ImportError as exc:
    raise MissingDependency("psycopg", "postgres") from exc

T = TypeVar("T")
SCHEMA_VERSION = 1
_HEADS_MAX = 10_000
_TRIES = 5
_MIGRATION_LOCK = 0x45565354  # any number, the same for everybody


class PostgresStore:
    """A store in a PostgreSQL database. `blocking` is the same store for callers that may wait on their own thread."""

    def __init__(
        self,
        dsn: str = "",
        *,
        schema: str | None = None,
        table_prefix: str = "everstep_",
        timeout_seconds: float = 30.0,
        **pool_options: Any,
    ) -> None:
        """Nothing is opened yet. `pool_options` go to psycopg's ConnectionPool: `max_size` (8) and others."""
        self._database = _Database(dsn, schema, table_prefix, timeout_seconds, pool_options)
        self._driver: _Driver = _AsyncDriver(self._database)

    @property
    def blocking(self) -> PostgresStore:
        twin = object.__new__(PostgresStore)
        twin._database, twin._driver = self._database, _Driver(self._database)
        return twin

    async def commit(self, change: Change) -> Stored | None:
        return await self._driver.run(lambda: self._database.commit(change))

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: Base | None = None
    ) -> None:
        await self._driver.write(lambda tx: apply_writes(tx, key, writes, objects, base), key.thread_id)

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        return await self._driver.read(lambda rows: rows.load(thread_id, namespace, checkpoint_id, objects, writes))

    async def find(self, checkpoint_id: str) -> list[Key]:
        return await self._driver.read(lambda rows: rows.find(checkpoint_id))

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        return await self._driver.read(lambda rows: (rows.below if below else rows.shallow)(family, hashes))

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        return await self._driver.read(lambda rows: rows.list_checkpoints(query))

    async def count(self, query: Query) -> int:
        return await self._driver.read(lambda rows: rows.count(query))

    async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
        return await self._driver.read(lambda rows: rows.list_threads(limit, offset, headless))

    async def thread(self, thread_id: str, *, branches: bool = False) -> Thread | None:
        return await self._driver.view(lambda rows: rows.thread(thread_id, branches))

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        return await self._driver.read(lambda rows: rows.operations(thread_id, limit))

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        return await self._driver.write(
            lambda tx: tx.delete(thread_id, keys, before_step, spare, operations), thread_id
        )

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        if effort is not None and pretend is None:
            return await self._sweep_a_little(family, effort)
        while True:
            sweep = Sweep(family, pretend)
            if await sweep.go_on(self._driver, None):
                return sweep.swept

    async def _sweep_a_little(self, family: str, effort: int) -> Swept:
        """Go on with this process's sweep of the family, unless somebody is at it."""
        sweep = self._database.sweeps.pop(family, None) or Sweep(family)
        before = sweep.swept
        if not await sweep.go_on(self._driver, effort):
            return Swept(0, 0, finished=False)
        if not sweep.swept.finished:
            self._database.sweeps[family] = sweep
        done = sweep.swept
        return Swept(done.objects - before.objects, done.size_bytes - before.size_bytes, done.finished)

    async def close(self) -> None:
        await self._driver.run(self._database.close)


# -- drivers: the same work, awaited or not ----------------------------------------------------------------------------


class _Driver:
    """Works on the calling thread; never suspends."""

    def __init__(self, database: _Database) -> None:
        self._database = database

    async def run(self, work: Callable[[], T]) -> T:
        return work()

    async def read(self, work: Callable[[Rows], T]) -> T:
        """Run one statement."""
        return await self.run(lambda: self._database.read(work))

    async def view(self, work: Callable[[Rows], T]) -> T:
        """Run several statements that see the same."""
        return await self.run(lambda: self._database.view(work))

    async def write(self, work: Callable[[Rows], T], thread_id: str) -> T:
        return await self.run(lambda: self._database.write(work, thread_id))


class _AsyncDriver(_Driver):
    """Works on worker threads; the event loop goes on meanwhile."""

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._database.workers(), work)


# -- the pool ----------------------------------------------------------------------------------------------------------


class _Connection(psycopg.Connection[Any]):
    """A connection whose waits end at a deadline, whatever the network does."""

    deadline: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if timeout is None and self.deadline is not None:
            timeout = max(self.deadline - time.monotonic(), 0.001)
        return super().wait(gen, interval, timeout)


class _Known(NamedTuple):
    """A head as this process saw it last."""

    family: int
    line: int
    head: Stored


class _Database:
    """The connections of one store in one process, and what they have seen."""

    rest_order = 1

    def __init__(
        self, dsn: str, schema: str | None, table_prefix: str, timeout_seconds: float, pool_options: dict[str, Any]
    ) -> None:
        if not isinstance(timeout_seconds, (int, float)) or not 0 < timeout_seconds <= 86_400:
            raise InvalidInput(f"timeout_seconds is a number from 0 to 86400, not {checks.shown(timeout_seconds)}")
        for name, value in (("schema", schema or "public"), ("table_prefix", table_prefix)):
            if not isinstance(value, str) or "\\0" in value or len(value.encode()) > 40:
                raise InvalidInput(f"{name} is a short name, not {checks.shown(value)}")
        self._dsn, self._schema, self._timeout = checks.kind(dsn, str, "dsn"), schema, timeout_seconds
        self.tables = Tables(schema, table_prefix)
        self._options = {"min_size": 1, "max_size": 8, "name": "everstep", **pool_options}
        self.sweeps: dict[str, Sweep] = {}
        self._lock = threading.Lock()
        self._pool: ConnectionPool[_Connection] | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._heads: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._closed = False
        forks.register(self)

    def rest(self) -> None:
        """Before a fork: the child must not inherit connections."""
        self._lock.acquire()
        self._let_go()

    def wake(self, *, in_child: bool) -> None:  # noqa: ARG002  # the same on both sides
        self._lock.release()

    def workers(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(self._options["max_size"], "everstep-postgres")
            return self._workers

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._let_go()

    def _let_go(self) -> None:
        if self._pool is not None:
            self._pool.close(timeout=5)
        if self._workers is not None:
            self._workers.shutdown(wait=False)
        self._pool = self._workers = None
        self._heads.clear()

    def _opened(self) -> ConnectionPool[_Connection]:
        with self._lock:
            if self._closed:
                raise StoreClosed("this PostgreSQL store is closed")
            if self._pool is None:
                settings: dict[str, Any] = {
                    "autocommit": True,
                    "prepare_threshold": None,
                    "application_name": "everstep",
                }
                settings["connect_timeout"] = max(2, int(self._timeout))
                pool = ConnectionPool(
                    self._dsn, connection_class=_Connection, kwargs=settings, open=False,
                    reconnect_timeout=self._timeout, **self._options,
                )  # fmt: skip
                with self._connect_once() as connection:
                    self._migrate(connection)
                pool.open()
                self._pool = pool
            return self._pool

    @contextmanager
    def _connect_once(self) -> Iterator[_Connection]:
        """Connect without the pool: what is wrong is said at once, instead of tried again and again."""
        connection = _Connection.connect(self._dsn, autocommit=True, connect_timeout=max(2, int(self._timeout)))
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def _connection(self) -> Iterator[_Connection]:
        with self._opened().connection(timeout=self._timeout) as connection:
            connection.deadline = time.monotonic() + self._timeout
            try:
                yield connection
            except psycopg.errors._WaitTimeout:
                connection.close()  # nobody knows what it would answer next
                raise
            finally:
                connection.deadline = None

    # -- work

    def read(self, work: Callable[[Rows], T]) -> T:
        """Run one statement, which sees one state of the database. Lost connections are tried once more."""
        with _translated():
            for last in (False, True):
                try:
                    with self._connection() as connection:
                        return work(Rows(connection, self.tables))
                except psycopg.OperationalError as exc:
                    if last or not _is_lost(exc):
                        raise
            raise AssertionError("unreachable")

    def view(self, work: Callable[[Rows], T]) -> T:
        """Run several statements on one state of the database."""

        def whole(rows: Rows) -> T:
            with rows.connection.transaction():
                rows.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                return work(rows)

        return self.read(whole)

    def write(self, work: Callable[[Rows], T], thread_id: str, checkpoint_id: str | None = None) -> T:
        """Run a transaction; those that met another writer are run again."""
        with _translated():
            for tries in range(_TRIES):
                committing = False
                try:
                    with self._connection() as connection:
                        with connection.transaction():
                            result = work(Rows(connection, self.tables))
                            committing = True
                        return result
                except (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure) as exc:
                    if tries == _TRIES - 1:
                        raise StoreUnavailable("too many writers at once; try again") from exc
                except psycopg.errors.DeadlockDetected:
                    if tries == _TRIES - 1:
                        raise
                except psycopg.OperationalError as exc:
                    if committing:
                        raise CommitUnknown(checkpoint_id, thread_id) from exc
                    if tries or not _is_lost(exc):
                        raise
            raise AssertionError("unreachable")

    def commit(self, change: Change) -> Stored | None:
        """Commit in one round trip if that can be, else the long way."""
        if change.build is not None and is_plain(change) and change.head == "always":
            stored = self._put(change)
            if stored is not None:
                return stored
        line = change.thread_id, change.namespace
        self._heads.pop(line, None)
        drafts: list[Draft] = []

        def build(head: Stored | None) -> Draft:
            drafts[:] = [change.build(head)] if change.build is not None else []
            return drafts[0]

        noted = change._replace(build=build) if change.build is not None else change

        def work(rows: Rows) -> tuple[Stored | None, _Known | None]:
            stored = apply(rows, noted)
            known = rows.known(*line) if stored is not None else None
            return stored, _Known(*known) if known is not None else None

        try:
            stored, known = self.write(work, change.thread_id)
        except CommitUnknown as exc:
            found = self._found(drafts[0]) if drafts else None
            if found is None:
                name = drafts[0].record.key.checkpoint_id if drafts else None
                raise CommitUnknown(name, change.thread_id) from exc.__cause__
            return found
        if known is not None:
            self._remember(line, known)
        return stored

    def _put(self, change: Change) -> Stored | None:
        """Commit a checkpoint that follows the head as last seen; None: it must be done the long way."""
        line = change.thread_id, change.namespace
        known = self._heads.get(line)
        if known is None or change.build is None:
            return None
        head = known.head
        if change.expect is not ANY and change.expect != head.record.key.checkpoint_id:
            return None
        draft = change.build(head)
        record = draft.record
        bases_are_head = all(base == Base(head.record.key, head.digest) for base in draft.bases)
        if record.key[:2] != line or record.parents != (head.record.key,) or not bases_are_head:
            return None
        info, root = pack_record(record)
        added = sum([len(obj.children) + len(obj.body) for obj in draft.objects]) + len(info) + len(root)
        values = (
            known.family, known.line, head.seq, head.digest, head.run, added, record.step,
            record.key.checkpoint_id.encode(), labels(record.metadata), info, record.children, root,
            *columns(draft.objects), list(change.prune),
        )  # fmt: skip
        seq = self._call_put(values, draft)
        if isinstance(seq, Stored):
            return seq
        if seq is None:
            return None
        stored = Stored(record, seq, head.family, digest=record_digest(info, root), run=head.run, added_bytes=added)
        self._remember(line, _Known(known.family, known.line, stored))
        return stored

    def _call_put(self, values: Sequence[Any], draft: Draft) -> int | Stored | None:
        """Call the function. A lost answer is asked again: the same call twice is one, since it names its head."""
        lost: Exception | None = None
        with _translated():
            for _ in range(3):
                try:
                    with self._connection() as connection:
                        seq: int | None = Rows(connection, self.tables).put(values)
                    if seq is None and lost is not None:
                        found = self._found(draft)
                        if found is not None:
                            return found
                    return seq
                except psycopg.OperationalError as exc:
                    if not _is_lost(exc):
                        raise
                    lost = exc
            raise CommitUnknown(draft.record.key.checkpoint_id, draft.record.key.thread_id) from lost

    def _found(self, draft: Draft) -> Stored | None:
        """Return the draft's checkpoint if it is stored as it is."""
        loaded = self.read(lambda rows: rows.load(*draft.record.key, objects=False, writes=False))
        same = loaded is not None and loaded.stored.digest == record_digest(*pack_record(draft.record))
        return loaded.stored if same and loaded is not None else None

    def _remember(self, line: tuple[str, str], known: _Known) -> None:
        with self._lock:
            self._heads[line] = known
            self._heads.move_to_end(line)
            if len(self._heads) > _HEADS_MAX:
                self._heads.popitem(last=False)

    # -- the schema

    def _migrate(self, connection: _Connection) -> None:
        """Bring the schema up to date; several processes may try at once."""
        connection.deadline = time.monotonic() + self._timeout
        version = self._version(connection)
        if version == SCHEMA_VERSION:
            return
        if version > SCHEMA_VERSION:
            raise StoreMismatch(
                f"the tables were made by a newer Everstep: their schema is {version}, this one knows "
                f"{SCHEMA_VERSION}; upgrade everstep"
            )
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            version = self._version(connection)
            for number in range(version + 1, SCHEMA_VERSION + 1):
                text = resources.files("everstep.stores").joinpath(f"sql/postgres-{number}.sql").read_text()
                connection.execute(self.tables(text).encode())
            connection.execute(self.tables("UPDATE {meta} SET version = %s"), (SCHEMA_VERSION,))

    def _version(self, connection: _Connection) -> int:
        server = connection.info.server_version // 10000
        if server < 14:
            raise StoreMismatch(f"PostgreSQL {server} is too old; 14 or newer is needed")
        name = self.tables("{meta}").replace("%%", "%")
        if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone() == (None,):
            return 0
        row = connection.execute(self.tables("SELECT version FROM {meta}")).fetchone()
        return int(row[0]) if row is not None else 0


# -- errors ------------------------------------------------------------------------------------------------------------


def _is_lost(exc: Exception) -> bool:
    """Whether the connection is gone, and not the server's refusal of a statement."""
    return getattr(exc, "sqlstate", None) is None or str(exc.sqlstate)[:2] in ("08", "57")  # type: ignore[attr-defined]


@contextmanager
def _translated() -> Iterator[None]:
    """Turn psycopg's errors into ours. Their texts never hold the password."""
    try:
        yield
    except EverstepError:
        raise
    except (PoolTimeout, psycopg.errors._WaitTimeout) as exc:
        raise StoreUnavailable("PostgreSQL did not answer in time; try again") from exc
    except PoolClosed as exc:
        raise StoreClosed("this PostgreSQL store is closed") from exc
    except (psycopg.errors.DiskFull, psycopg.errors.OutOfMemory) as exc:
        raise StoreFull(f"the PostgreSQL server has no space left; nothing was written ({exc})") from exc
    except (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.InsufficientPrivilege) as exc:
        raise StoreReadOnly(f"PostgreSQL does not let this role write here: {exc}") from exc
    except psycopg.errors.DataCorrupted as exc:
        raise CheckpointCorrupted(f"the PostgreSQL server reports damaged data: {exc}") from exc
    except psycopg.errors.UndefinedTable as exc:
        raise StoreMismatch(f"a table of the store is missing: {exc}") from exc
    except psycopg.OperationalError as exc:
        state = exc.sqlstate
        if state is not None and state[:2] in ("28", "3D"):
            raise StoreError(f"PostgreSQL refused the connection: {exc}") from exc
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {exc}") from exc
    except psycopg.Error as exc:
        raise StoreError(f"PostgreSQL: {type(exc).__name__}: {exc}") from exc
    except OSError as exc:
        raise StoreUnavailable(f"PostgreSQL cannot be reached: {exc}") from exc
