"""PostgreSQL, through psycopg 3: one pool of blocking connections per store, worker threads for asynchronous callers.

The usual commit and the usual read are one call of a function in the database: one round trip each, no session state,
so that PgBouncer may be used in transaction mode. Everything else is a short transaction around `apply`. Every
call has a deadline.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar

from everstep.errors import InvalidInput, MissingDependency
from everstep.reports import Finding
from everstep.runtime import checks
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.stores.abilities import Origin
from everstep.stores.deletion import Deletion
from everstep.stores.inside import Inside
from everstep.stores.inspection import Lost
from everstep.stores.looks import Looks
from everstep.stores.protocol import BaseRef, Change, Deleted, Key, Loaded, Object, Part, Store, Stored, Swept, Write
from everstep.stores.workers import AsyncDriver, Driver

try:
    from everstep.stores.postgres.asking import Tables
    from everstep.stores.postgres.checking import mend, problems, stored_rows, thread_names
    from everstep.stores.postgres.database import Database
    from everstep.stores.postgres.pool import can_watch, checked_dsn
    from everstep.stores.postgres.puts import Prepared
    from everstep.stores.postgres.rows import Rows
    from everstep.stores.postgres.turn import Turn
except ImportError as exc:
    raise MissingDependency("psycopg", "postgres") from exc

T = TypeVar("T")


class PostgresStore(Looks):
    """A store in a PostgreSQL database. `blocking` is the same store for callers that may wait on their own thread."""

    def __init__(
        self,
        dsn: str = "",
        *,
        schema: str | None = None,
        table_prefix: str = "everstep_",
        timeout_seconds: float = 30.0,
        min_size: int = 0,
        max_size: int = 8,
        max_idle_seconds: float = 600.0,
        prepare_threshold: int | Literal["auto"] | None = "auto",
    ) -> None:
        """Nothing is opened yet.

        `timeout_seconds` bounds each public call as a whole, with connecting and trying again. At most `max_size`
        connections are open; each is opened when it is needed, and closed after it was idle for `max_idle_seconds`,
        unless only `min_size` are left. Statements that were used `prepare_threshold` times are prepared on the server;
        "auto": after a few times, unless there is a pooler in between, which may give the next ones another session.
        """
        self._database = Database(
            checked_dsn(checks.kind(dsn, str, "dsn")),
            Tables(schema, table_prefix),
            schema,
            _number(min_size, "min_size", 0, _number(max_size, "max_size", 1, 1000)),
            max_size,
            _number(max_idle_seconds, "max_idle_seconds", 0, 10**9),
            _threshold(prepare_threshold),
        )
        timeout = _number(timeout_seconds, "timeout_seconds", 0.001, 86_400)
        self._workers = AsyncDriver(timeout, max_size)
        self._driver: Driver = self._workers
        self._blocking = Driver(timeout)

    @property
    def blocking(self) -> PostgresStore:
        twin = object.__new__(PostgresStore)
        twin.__dict__.update(self.__dict__)
        twin._driver = self._blocking
        return twin

    @property
    def limit_seconds(self) -> float:
        return self._driver.timeout_seconds

    @property
    def address(self) -> str:
        """Where it is, without user and password."""
        return self._database.address

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._database.is_closed

    def __repr__(self) -> str:
        return describe_on_store(self, self)

    async def in_turn(
        self,
        thread_id: str,
        work: Callable[[Store], Coroutine[Any, Any, T]],
        seconds: float = 0.0,  # noqa: ARG002  # the server notices that a connection is gone
    ) -> T:
        """The work is done inside a transaction that has the lock of the family alone."""
        # The work goes on in a worker thread, and must find the deadline of its call there.
        context = contextvars.copy_context()

        def inside(turn: Turn) -> T:
            return context.run(run_to_end, work(Inside(self, turn.rows, turn.load, turn.commit)))

        return await self._driver.run(lambda deadline: self._database.in_turn((thread_id, ""), inside, deadline))

    async def commit(self, change: Change) -> Stored | None:
        deadline = self._driver.deadline()
        if self._driver is self._workers and can_watch(asyncio.get_running_loop()):
            done = await self._database.commit_soon(change, deadline)
            if isinstance(done, Prepared):
                return await self._driver.run(lambda _: self._database.commit_again(change, done, deadline))
            if isinstance(done, Stored):
                return done
            refused = done
        else:
            refused = None
        return await self._driver.run(lambda _: self._database.commit(change, deadline, refused))

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        await self._driver.run(lambda deadline: self._database.put_writes(key, writes, objects, base, deadline))

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        return await self._driver.run(
            lambda deadline: self._database.load(thread_id, namespace, checkpoint_id, objects, writes, deadline)
        )

    async def origin(self, checkpoint_id: str) -> Origin | None:
        """See `FindsOrigins`."""
        return await self._driver.run(lambda deadline: self._database.origin(checkpoint_id, deadline))

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        if not keys:
            return []
        return await self._driver.run(lambda deadline: self._database.load_many(keys, writes, deadline))

    async def fetch_many(self, wanted: Mapping[str, Collection[bytes]]) -> list[Object]:
        """See `ReadsTogether`."""
        return await self._read(lambda rows: rows.below_many(wanted))

    async def present(self, thread_ids: Sequence[str]) -> set[str]:
        """See `ReadsTogether`."""
        return await self._read(lambda rows: rows.present(thread_ids))

    async def heads(self, lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """See `ReadsTogether`."""
        return await self._read(lambda rows: rows.heads(lines))

    async def clock(self) -> float:
        return await self._read(lambda rows: rows.clock())

    async def size_bytes(self) -> int:
        """Return what the tables take on disk, with their indexes."""
        return await self._read(lambda rows: rows.size_bytes())

    async def _delete(self, deletion: Deletion) -> Deleted:
        return await self._write(lambda tx: tx.delete(deletion), deletion.thread_id)

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        return (await self._database.sweeps.run(_SweepDriver(self), family, effort, pretend))[0]

    async def adopt(self, part: Part) -> int:
        return await self._driver.run(lambda deadline: self._database.adopt(part, deadline))

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        if parts:
            await self._driver.run(lambda deadline: self._database.adopt_new(parts, deadline))

    async def thread_names(self) -> list[str]:
        """Return the name of every thread, damaged ones included: see `Checking`."""
        return await self._read(thread_names)

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with tables and indexes: see `Checking`."""
        return await self._driver.run(lambda deadline: self._database.view(problems, deadline))

    async def mend_tables(self, *, dry_run: bool) -> list[Lost]:
        """Make tables and indexes agree: see `Mending`."""
        lost = await self._write(lambda rows: mend(rows, dry_run=dry_run), "")
        # Repairs go past what was noted of heads, so that would look like a loss.
        self._database.forget_heads()
        return lost

    async def stored_rows(self, keys: Sequence[Key]) -> list[Lost]:
        """Return checkpoints as they are stored: see `Mending`."""
        return await self._read(lambda rows: stored_rows(rows, keys))

    async def close(self) -> None:
        await self._driver.run(lambda _: self._database.close())
        self._workers.dismiss()

    async def _read(self, work: Callable[[Rows], T]) -> T:
        """Run one statement."""
        return await self._driver.run(lambda deadline: self._database.read(work, deadline))

    async def _look(self, work: Callable[[Rows], T], thread_id: str | None = None, *, is_view: bool = False) -> T:
        if thread_id is None:
            return await self._read(work)
        return await self._driver.run(
            lambda deadline: self._database.about_thread(thread_id, work, deadline, is_view=is_view)
        )

    async def _write(self, work: Callable[[Rows], T], thread_id: str, *, is_repeatable: bool = False) -> T:
        return await self._driver.run(
            lambda deadline: self._database.write(work, deadline, thread_id, is_repeatable=is_repeatable)
        )


class _SweepDriver:
    """How a sweep gets at the tables: each of its steps is a call of its own."""

    def __init__(self, store: PostgresStore) -> None:
        self.read = store._read
        self._store = store

    async def write(self, work: Callable[[Rows], T], thread_id: str) -> T:
        """Run a transaction which may be run again even if it was committed: the sweep notices that, or starts anew."""
        return await self._store._write(work, thread_id, is_repeatable=True)


def _number(value: Any, name: str, low: float, high: float) -> Any:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(f"{name} is a number from {low:g} to {high:g}, not {checks.shown(value)}")
    return value


def _threshold(value: Any) -> Any:
    if value is None or value == "auto":
        return value
    return _number(value, "prepare_threshold, if it is neither None nor 'auto',", 0, 10**9)
