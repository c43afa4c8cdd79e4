"""PostgreSQL, through psycopg 3: one pool of blocking connections per store, worker threads for asynchronous callers.

The usual commit and the usual read are one call of a function in the database: one round trip each, no session state,
so that PgBouncer may stand between in transaction mode. Everything else is a short transaction around `apply`. Every
call has a deadline.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
import warnings
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import closing
from importlib import resources
from typing import Any, NamedTuple, TypeVar

from everstep.errors import (
    CheckpointCorrupted,
    CommitUnknown,
    DurabilityWarning,
    HeadMoved,
    InvalidInput,
    MissingDependency,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from everstep.reports import Finding
from everstep.runtime import checks, forks
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.runtime.calls import tried_again
from everstep.stores.heads import Heads, Seen
from everstep.stores.inside import Inside
from everstep.stores.inspection import Lost
from everstep.stores.looks import Looks
from everstep.stores.protocol import (
    ANY,
    BaseRef,
    Change,
    Deleted,
    Draft,
    Key,
    Loaded,
    Object,
    Part,
    Store,
    Stored,
    Swept,
    Write,
)
from everstep.stores.records import pack_record, record_digest
from everstep.stores.sweeping import Sweeps
from everstep.stores.transaction import apply, apply_writes, is_newer, is_plain
from everstep.stores.workers import AsyncDriver, Driver

try:
    import psycopg

    from everstep.stores.postgres.asking import Tables
    from everstep.stores.postgres.checking import mend, problems, stored_rows, thread_names
    from everstep.stores.postgres.forms import Known, columns, labels
    from everstep.stores.postgres.pool import (
        RACES,
        Connection,
        Pauses,
        Pool,
        Unsent,
        address_of,
        can_watch,
        checked_dsn,
        connect,
        is_lost,
        is_starting,
        rolled_back,
        translated,
    )
    from everstep.stores.postgres.rows import Rows
except ImportError as exc:
    raise MissingDependency("psycopg", "postgres") from exc

logger = logging.getLogger("everstep")

T = TypeVar("T")
# Tables of earlier versions were never released, so there is nothing to bring up from them.
SCHEMA_FIRST = 13
SCHEMA_VERSION = 13
SERVER_VERSION_MIN = 14
# Any number will do, as long as it is the same for everybody.
_MIGRATION_LOCK = 0x45565354
_ONE_STATE = "ISOLATION LEVEL REPEATABLE READ READ ONLY"
_LOSSES = {
    "synchronous_commit": "a crash of the server may lose the checkpoints of its last moments",
    "fsync": "a crash of its machine may lose or damage everything",
    "full_page_writes": "a crash of its machine may damage everything",
}


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
        prepare_threshold: int | None = None,
    ) -> None:
        """Nothing is opened yet.

        `timeout_seconds` bounds each public call as a whole, with connecting and trying again. At most `max_size`
        connections are open; each is opened when it is needed, and closed after it was idle for `max_idle_seconds`,
        unless only `min_size` are left. With a `prepare_threshold` the driver prepares statements on the server that it
        uses so often; a pooler between must allow that.
        """
        self._database = _Database(
            checked_dsn(checks.kind(dsn, str, "dsn")),
            Tables(schema, table_prefix),
            schema,
            _number(min_size, "min_size", 0, _number(max_size, "max_size", 1, 1000)),
            max_size,
            _number(max_idle_seconds, "max_idle_seconds", 0, 10**9),
            prepare_threshold,
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

        def inside(turn: _Turn) -> T:
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

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        return await self._write(lambda tx: tx.delete(thread_id, keys, before_step, spare, operations), thread_id)

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


def _fence(others: set[BaseRef]) -> tuple[bytes | None, ...]:
    """Return what one more checkpoint is called that a put rests on, and its digest; nothing if there is none."""
    # There is one at most: `_prepared` sees to that.
    for base in others:
        return *map(str.encode, base.key), base.digest
    return (None,) * 4


def _threads_beside(change: Change) -> set[str]:
    """Return the other threads that a change speaks of."""
    threads = set(change.shared_states)
    if change.log_thread is not None:
        threads.add(change.log_thread)
    return threads


def _checkpoints_named(change: Change) -> list[Key]:
    """Return the checkpoints that a change speaks of."""
    keys = [pin.key for pin in change.pins]
    if change.origin is not None:
        keys.append(change.origin)
    for move in change.moves:
        if move.checkpoint_id is not None:
            keys.append(Key(change.thread_id, move.namespace, move.checkpoint_id))
    return keys


class Prepared(NamedTuple):
    """A put that is ready to be sent, once or again."""

    draft: Draft
    values: Sequence[Any]
    stored: Stored
    """What it will be, but for its seq."""
    seen: Seen[Known]
    known: Known


class Refused(NamedTuple):
    """A put that the server refused: the head was another one, mostly."""

    bases: Sequence[BaseRef]
    """What the checkpoint rests on."""


class _Turn:
    """What a turn does inside its transaction, and what is to be noted when that is committed.

    Others wait meanwhile, so a far client must not ask often: the transaction begins with a look at the head, and the
    usual commit ends it, which is one round trip each.
    """

    def __init__(
        self,
        database: _Database,
        rows: Rows,
        line: tuple[str, str],
        deadline: float,
        bases: Sequence[BaseRef] = (),
    ) -> None:
        """`bases` are those that the change rests on, if that is known before: they are looked at with the head."""
        self.rows = rows
        self._database = database
        self._line = line
        self._deadline = deadline
        self._bases = bases
        self._stored_bases: Sequence[BaseRef] = ()
        self._head: tuple[Loaded, Known | None] | None = None
        """As it was when the turn began, until somebody asks for it."""
        self._seen: dict[tuple[str, str], tuple[Seen[Known], Known]] = {}
        self._notes: list[Callable[[], object]] = []
        self.draft: Draft | None = None
        """What it has committed."""
        self.is_ending = False
        """The transaction is committed, or may be."""

    def begin(self) -> None:
        left = self._deadline - time.monotonic()
        self._head, self._stored_bases = self.rows.begin_turn(*self._line, self._bases, left)

    def end(self) -> None:
        """Commit, if that was not done with the change."""
        if not self.is_ending:
            self.is_ending = True
            self.rows.commit()

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> Loaded | None:
        line = thread_id, namespace
        found = None
        # What the turn began with is handed out once. After a commit it would be old.
        if line == self._line and checkpoint_id is None and not objects and not writes:
            found = self._head
            self._head = None
        if found is None:
            found = self.rows.load(thread_id, namespace, checkpoint_id, objects, writes)
        if found is None:
            return None
        loaded, known = found
        if checkpoint_id is None and known is not None:
            self._database.check_seen_within(self.rows, line, loaded.stored.family, loaded.generation)
            self._seen[line] = Seen(loaded.stored.family, loaded.generation, known), known
        return loaded

    def commit(self, change: Change) -> Stored | None:
        """Commit in one round trip if that can be."""
        line = change.thread_id, change.namespace
        put = None
        if line in self._seen:
            put = self._database._prepared(change, *self._seen[line], self._stored_bases)
        if put is not None:
            stored = self._put(put)
            if stored is not None:
                return stored
        # The draft is noted, since an answer that is lost must be told from a commit that never was.
        noted = change._replace(build=self._build(change.build)) if change.build is not None else change
        stored, head = self._database.apply(self.rows, noted, self._database._heads.get(line))
        self._notes.append(lambda: self._database._note_head(line, stored, head))
        return stored

    def commit_onto_head(self, change: Change) -> Stored | None:
        """Commit what does not care which head it follows."""
        self.load(*self._line, None, objects=False, writes=False)
        return self.commit(change)

    def _put(self, put: Prepared) -> Stored | None:
        """Commit a checkpoint, and end the turn; None: it was refused (its id is there), and the turn goes on."""
        self.draft = put.draft
        self.is_ending = True
        try:
            seq = self.rows.put_and_end(put.values)
        except psycopg.OperationalError as exc:
            if not is_lost(exc) or isinstance(exc, Unsent):
                raise
            # The end of the turn was sent and its answer lost: putting it once more tells what became of it.
            stored = self._database.put_again(put, self._deadline)
            if stored is None:
                raise psycopg.errors.SerializationFailure("a turn was lost, and is taken again") from exc
            return stored
        if seq is not None:
            self._notes.append(lambda: self._database._kept(put, seq))
            return put.stored._replace(seq=seq)
        # Nothing was written, and the lock is gone with the transaction. Whoever was let in meanwhile is noticed: the
        # change names the head it follows.
        self.draft = None
        self.is_ending = False
        self.begin()
        return None

    def _build(self, build: Callable[[Stored | None], Draft]) -> Callable[[Stored | None], Draft]:
        def built(head: Stored | None) -> Draft:
            self.draft = build(head)
            return self.draft

        return built

    def note(self) -> None:
        """It is committed."""
        for note in self._notes:
            note()


class _Database:
    """The tables of one store, through the connections of one process."""

    fork_order = 2

    def __init__(
        self,
        dsn: str,
        tables: Tables,
        schema: str | None,
        min_size: int,
        max_size: int,
        max_idle_seconds: float,
        prepare_threshold: int | None,
    ) -> None:
        self._dsn = dsn
        self._tables = tables
        self._schema = schema
        self._prepare = prepare_threshold
        self._pool = Pool(self._connect, max_size, max_idle_seconds, min_size)
        self._heads: Heads[Known] = Heads()
        self._lock = threading.Lock()
        self._is_ready = self._has_warned = False
        self.sweeps = Sweeps()
        forks.register(self)

    @property
    def address(self) -> str:
        return address_of(self._dsn)

    @property
    def is_closed(self) -> bool:
        return self._pool.is_closed

    def close(self) -> None:
        self._pool.close()

    def before_fork(self) -> None:
        self._lock.acquire()
        self._heads.before_fork()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # the same on both sides
        self._heads.after_fork()
        self._lock.release()

    def forget_heads(self) -> None:
        """Forget what was seen: tables were changed behind it."""
        self._heads.clear()

    # -- work

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
                    if committing and is_lost(exc) and not isinstance(exc, Unsent):
                        raise CommitUnknown(None, thread_id) from exc
                    self._try_again(exc, pauses)

    def _try_again(self, exc: psycopg.OperationalError | StoreUnavailable, pauses: Pauses) -> None:
        """Wait a little if trying again may help, else raise.

        A server that was never reached is more likely named wrongly than away for a moment.
        """
        if isinstance(exc, StoreUnavailable) or not is_lost(exc):
            raise exc
        if not (self._is_ready or is_starting(exc)) or not pauses.wait():
            raise exc
        tried_again("the connection to PostgreSQL was lost (%s)", type(exc).__name__)

    # -- what the store does

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool, deadline: float
    ) -> Loaded | None:
        line = thread_id, namespace
        since = self._heads.get(line)
        found = self.read(lambda rows: rows.load(thread_id, namespace, checkpoint_id, objects, writes), deadline)
        if found is None:
            self._check_missing(line, since, deadline)
            return None
        loaded, known = found
        stored = loaded.stored
        self._check_seen(line, stored.family, loaded.generation, since, deadline)
        if checkpoint_id is None:
            self._heads.note(line, stored.family, loaded.generation, known, since, stored.seq)
        return loaded

    def load_many(self, keys: Sequence[Key], writes: bool, deadline: float) -> list[Loaded]:
        # Noted before the read: what others write meanwhile must not look like a loss.
        since = {key[:2]: self._heads.get(key[:2]) for key in keys}
        found = self.read(lambda rows: rows.load_many(keys, writes), deadline)
        for loaded in found:
            line = loaded.stored.record.key[:2]
            self._check_seen(line, loaded.stored.family, loaded.generation, since.pop(line, None), deadline)
        for line, seen in since.items():
            self._check_missing(line, seen, deadline)
        return found

    def about_thread(self, thread_id: str, work: Callable[[Rows], T], deadline: float, *, is_view: bool = False) -> T:
        """Read something about a thread. If there is nothing, and there was something before, look for a loss."""
        seen = self._heads.any_of(thread_id)
        found = self.view(work, deadline) if is_view else self.read(work, deadline)
        if not found and seen is not None:
            namespace, since = seen
            self._check_missing((thread_id, namespace), since, deadline)
        return found

    def _check_missing(self, line: tuple[str, str], since: Seen[Known] | None, deadline: float) -> None:
        """After something of a line was not found that had been seen: HeadRegressed if the server lost the line."""
        if since is None:
            return
        found = self.read(lambda rows: rows.generation_seen(*line), deadline)
        if found is not None:
            self._check_seen(line, *found, since, deadline)
        else:
            self._check_seen(line, None, 0, since, deadline)
            self._heads.forget(line)

    def _check_seen(
        self, line: tuple[str, str], family: str | None, generation: int, since: Seen[Known] | None, deadline: float
    ) -> None:
        def was_deleted(seen: Seen[Known]) -> bool:
            return self.read(lambda rows: rows.was_deleted(line[0], seen), deadline)

        self._heads.check(line, family, generation, since, was_deleted)

    def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None, deadline: float
    ) -> None:
        since = self._heads.get(key[:2])
        # One round trip for nearly all of them; what the function does not do goes the long way.
        done, _ = self._call(lambda rows: rows.attach(key, writes, objects, base), key, deadline)
        if done:
            return

        def work(rows: Rows) -> None:
            self._check_locked(rows, key[:2], since)
            apply_writes(rows, key, writes, objects, base)

        self.write(work, deadline, key.thread_id)

    def apply(
        self, rows: Rows, change: Change, since: Seen[Known] | None
    ) -> tuple[Stored | None, tuple[str, int, Known | None] | None]:
        """Apply a change inside a transaction; return the checkpoint it made, and the head as it is then."""
        line = change.thread_id, change.namespace
        rows.look(*line, _threads_beside(change), _checkpoints_named(change))
        self._check_locked(rows, line, since)
        return apply(rows, change), rows.head(*line)

    def check_seen_within(self, rows: Rows, line: tuple[str, str], family: str, generation: int) -> None:
        """Inside a transaction: HeadRegressed if the server lost what was seen of a line that was read."""
        since = self._heads.get(line)
        self._heads.check(line, family, generation, since, lambda seen: rows.was_deleted(line[0], seen))

    def _check_locked(self, rows: Rows, line: tuple[str, str], since: Seen[Known] | None) -> None:
        """Inside a transaction, before anything is changed: HeadRegressed if the server lost what was seen."""
        family, generation = rows.generation(*line) or (None, 0)
        self._heads.check(line, family, generation, since, lambda seen: rows.was_deleted(line[0], seen))

    def adopt(self, part: Part, deadline: float) -> int:
        try:
            return self.write(lambda tx: tx.adopt(part), deadline, part.thread_id)
        finally:  # generations come from elsewhere: they may be lower than those seen here
            for name in {part.thread_id, *(raw.thread_id for raw in part.threads)}:
                self._heads.forget_thread(name)

    def adopt_new(self, parts: Sequence[Part], deadline: float) -> None:
        try:
            self.write(lambda tx: tx.adopt_new(parts), deadline, parts[0].thread_id)
        finally:
            for part in parts:
                self._heads.forget_thread(part.thread_id)

    def commit(self, change: Change, deadline: float, refused: Refused | None = None) -> Stored | None:
        """Commit in one round trip if that can be, else in a turn or the long way; `refused`: the first was tried."""
        line = change.thread_id, change.namespace
        since = self._heads.get(line)
        if since is not None and since.known is not None:
            put = self._prepared(change, since, since.known)
            stored = self._put(put, deadline) if put is not None else None
            if stored is not None:
                return stored
            # Refused, or more than the short way does: the head is read anew.
            self._heads.doubt(line)
            refused = Refused(put.draft.bases) if put is not None else None
        if refused is not None:
            self._check_expected(change, deadline)
            return self.in_turn(line, lambda turn: turn.commit_onto_head(change), deadline, refused.bases)
        drafts: list[Draft] = []

        def build(head: Stored | None) -> Draft:
            # Only the last one counts: a transaction that is run again builds anew.
            drafts[:] = [change.build(head)] if change.build is not None else []
            return drafts[0]

        noted = change._replace(build=build) if change.build is not None else change
        try:
            stored, head = self.write(lambda rows: self.apply(rows, noted, since), deadline, change.thread_id)
        except CommitUnknown as exc:
            stored = self._found(drafts[0], deadline) if drafts else None
            if stored is None:
                name = drafts[0].record.key.checkpoint_id if drafts else None
                raise CommitUnknown(name, change.thread_id) from exc.__cause__
            return stored
        self._note_head(line, stored, head)
        return stored

    def _check_expected(self, change: Change, deadline: float) -> None:
        """After a put was refused: HeadMoved if another writer was first.

        That takes one round trip and no lock. The long way has many, and a far client would hold the others up
        meanwhile for nothing. A change that may be a repeated one goes the long way: it may be stored.
        """
        if change.expect is ANY or not change.fresh:
            return
        loaded = self.load(change.thread_id, change.namespace, None, objects=False, writes=False, deadline=deadline)
        actual = loaded.stored.record.key.checkpoint_id if loaded is not None else None
        if actual != change.expect:
            raise HeadMoved(change.thread_id, change.expect, actual)

    def _note_head(
        self, line: tuple[str, str], stored: Stored | None, head: tuple[str, int, Known | None] | None
    ) -> None:
        """Note a head as it is after a commit that made this checkpoint."""
        if head is not None:
            family, generation, known = head
            seq = known.head.seq if known is not None else 0
            if stored is not None and stored.record.key[:2] == line:
                seq = max(seq, stored.seq)
            self._heads.note(line, family, generation, known, None, seq)

    def in_turn(
        self,
        line: tuple[str, str],
        work: Callable[[_Turn], T],
        deadline: float,
        bases: Sequence[BaseRef] = (),
    ) -> T:
        """Do work, which may commit once, in one transaction while nobody else changes the family of the line."""
        with translated():
            pauses = Pauses(deadline)
            while True:
                done: list[tuple[_Turn, T]] = []
                try:
                    with self._pool.connection(deadline) as connection, rolled_back(connection):
                        turn = _Turn(self, Rows(connection, self._tables), line, deadline, bases)
                        turn.begin()
                        done.append((turn, work(turn)))
                        turn.end()
                except RACES as exc:
                    if not pauses.wait():
                        raise
                    tried_again("PostgreSQL: %s", type(exc).__name__)
                    continue
                except psycopg.OperationalError as exc:
                    if not done or not is_lost(exc) or isinstance(exc, Unsent):
                        self._try_again(exc, pauses)
                        continue
                    self._check_committed(done[-1][0].draft, line[0], deadline, exc)
                turn, result = done[-1]
                turn.note()
                return result

    def _check_committed(self, draft: Draft | None, thread_id: str, deadline: float, lost: Exception) -> None:
        """After the answer to a COMMIT was lost: CommitUnknown unless the draft is found."""
        if draft is None:
            raise CommitUnknown(None, thread_id) from lost
        if self._found(draft, deadline) is None:
            raise CommitUnknown(draft.record.key.checkpoint_id, thread_id) from lost

    def put_again(self, put: Prepared, deadline: float) -> Stored | None:
        """Put what may be stored already, since the answer was lost that ended a turn; None: it is not, nor will be.

        The one who asks still has a place in the pool, so this is done through a connection besides those: else all
        might wait for one another.
        """
        key = put.draft.record.key
        pauses = Pauses(deadline)
        while True:
            try:
                with closing(self._connect(deadline)) as connection:
                    connection.deadline = deadline
                    rows = Rows(connection, self._tables)
                    seq = rows.put(put.values)  # waits for the end of the turn
                    if seq is not None:
                        return self._kept(put, seq)
                    found = rows.load(*key, objects=False, writes=False)
            except psycopg.Error as exc:
                if not is_lost(exc) or not pauses.wait():
                    raise CommitUnknown(key.checkpoint_id, key.thread_id) from exc
            else:
                return found[0].stored if found is not None and found[0].stored.digest == put.stored.digest else None

    async def commit_soon(self, change: Change, deadline: float) -> Stored | Prepared | Refused | None:
        """Commit in one round trip, on this event loop, if that can be; None, or Refused: a worker thread must do it.

        A Prepared put was sent, and its answer was lost: see `commit_again`. Most commits come this way: to hand work
        to a thread and back takes about as long as the rest.
        """
        line = change.thread_id, change.namespace
        since = self._heads.get(line)
        # Lent without waiting. If none is free, a worker thread waits for one instead of the event loop.
        connection = self._pool.lend(deadline) if since is not None and since.known is not None else None
        if connection is None or since is None or since.known is None:
            return None
        put = None
        try:
            put = self._prepared(change, since, since.known)
            seq = await Rows(connection, self._tables).put_async(put.values) if put is not None else None
        except psycopg.Error as exc:
            tried_again("PostgreSQL: %s", type(exc).__name__)
            # What was refused comes out when it is done again.
            return put if is_lost(exc) and not isinstance(exc, Unsent) else None
        finally:
            self._pool.take_back(connection)
        if put is None or seq is None:
            self._heads.doubt(line)
            return Refused(put.draft.bases) if put is not None else None
        return self._kept(put, seq)

    def commit_again(self, change: Change, put: Prepared, deadline: float) -> Stored | None:
        """Commit what may be stored already, since the answer to its put was lost."""
        stored = self._put(put, deadline, was_lost=True)
        return stored if stored is not None else self.commit(change, deadline)

    def _put(self, put: Prepared, deadline: float, *, was_lost: bool = False) -> Stored | None:
        """Send a prepared put; None: it must be done the long way."""
        seq, was_lost = self._call(lambda rows: rows.put(put.values), put.draft.record.key, deadline, was_lost)
        if seq is not None:
            return self._kept(put, seq)
        return self._found(put.draft, deadline) if was_lost else None

    def _prepared(
        self, change: Change, seen: Seen[Known], known: Known, stored_bases: Sequence[BaseRef] = ()
    ) -> Prepared | None:
        """Return the call for a checkpoint that follows the head as last seen; None: it must be done the long way.

        What it rests on is that head, one of `stored_bases`, which nobody can delete meanwhile, or one more: a fence.
        """
        head = known.head
        if change.build is None or not is_plain(change) or change.expect not in (ANY, head.record.key.checkpoint_id):
            return None
        draft = change.build(head)
        record = draft.record
        others = set(draft.bases) - {BaseRef(head.record.key, head.digest), *stored_bases}
        if (
            record.key[:2] != (change.thread_id, change.namespace)
            or record.parents not in ((), (head.record.key,))
            or len(others) > 1
            or not (change.head == "always" or (change.head == "newer" and is_newer(record, head)))
        ):
            return None
        info, root = pack_record(record)
        added = sum([len(obj.children) + len(obj.body) for obj in draft.objects]) + len(info) + len(root)
        values = (
            int(seen.family), known.line, seen.generation, head.seq, head.digest, head.segment, added, record.step,
            record.key.checkpoint_id.encode(), labels(record.metadata, record.tags), info, record.children, root,
            *columns(draft.objects), list(change.prune), *_fence(others),
        )  # fmt: skip
        stored = Stored(
            record, 0, head.family, digest=record_digest(info, root), segment=head.segment, added_bytes=added
        )
        return Prepared(draft, values, stored, seen, known)

    def _kept(self, put: Prepared, seq: int) -> Stored:
        stored = put.stored._replace(seq=seq)
        known = Known(put.known.line, stored)
        self._heads.note(stored.record.key[:2], put.seen.family, put.seen.generation + 1, known, None, seq)
        return stored

    def _call(self, work: Callable[[Rows], T], key: Key, deadline: float, was_lost: bool = False) -> tuple[T, bool]:
        """Call a function that changes nothing when it is called again; return also whether an answer was lost."""
        with translated():
            pauses = Pauses(deadline)
            while True:
                asked = False
                try:
                    with self._pool.connection(deadline) as connection:
                        asked = True
                        return work(Rows(connection, self._tables)), was_lost
                except psycopg.errors.NotNullViolation as exc:  # it makes a number from a row that is not there
                    raise CheckpointCorrupted("the row of its family is missing", thread_id=key.thread_id) from exc
                except RACES as exc:
                    if pauses.wait():
                        tried_again("PostgreSQL: %s", type(exc).__name__)
                        continue
                    if was_lost:
                        raise CommitUnknown(key.checkpoint_id, key.thread_id) from exc
                    raise
                except (psycopg.OperationalError, StoreUnavailable) as exc:
                    if asked and isinstance(exc, psycopg.Error) and not isinstance(exc, Unsent):
                        was_lost = was_lost or is_lost(exc)
                    try:
                        self._try_again(exc, pauses)
                    except (psycopg.OperationalError, StoreUnavailable):
                        if not was_lost:
                            raise
                        raise CommitUnknown(key.checkpoint_id, key.thread_id) from exc

    def _found(self, draft: Draft, deadline: float) -> Stored | None:
        """After an answer was lost: return the draft's checkpoint if it is stored as it is."""
        key = draft.record.key
        try:
            found = self.read(lambda rows: rows.load(*key, objects=False, writes=False), deadline)
        except StoreError as exc:
            raise CommitUnknown(key.checkpoint_id, key.thread_id) from exc
        if found is None or found[0].stored.digest != record_digest(*pack_record(draft.record)):
            return None
        return found[0].stored

    # -- connections and the schema

    def _connect(self, deadline: float) -> Connection:
        connection = connect(self._dsn, deadline, prepare_threshold=self._prepare)
        # Only the first connection looks at the server and the tables; those who come with it do the same,
        # which is harmless.
        if not self._is_ready:
            connection.deadline = deadline
            try:
                self._check_server(connection)
                self._migrate(connection)
            except BaseException:
                connection.close()
                raise
            self._is_ready = True
            logger.info("opened %s", self.address)
        return connection

    def _check_server(self, connection: Connection) -> None:
        names = ("server_version_num", "default_transaction_isolation", *_LOSSES)
        asked = ", ".join(f"current_setting('{name}')" for name in names)
        version, isolation, *settings = connection.execute(f"SELECT {asked}".encode()).fetchone() or ("0", "")
        if int(version) // 10_000 < SERVER_VERSION_MIN:
            raise StoreMismatch(
                f"PostgreSQL {int(version) // 10_000} is too old; {SERVER_VERSION_MIN} or newer is needed"
            )
        if isolation != "read committed":  # what others committed while a lock was waited for must be seen
            raise StoreMismatch(
                f"default_transaction_isolation is {isolation!r} here, 'read committed' is needed; for example: "
                "ALTER ROLE ... SET default_transaction_isolation = 'read committed'"
            )
        off = [name for name, value in zip(_LOSSES, settings, strict=True) if value == "off"]
        # Several connections may be opened at once, and one warning is enough.
        with self._lock:
            is_news = not self._has_warned
            self._has_warned = True
        if is_news and off:
            losses = "; ".join(f"{name} is off: {_LOSSES[name]}" for name in off)
            warnings.warn(f"this PostgreSQL server acknowledges too early: {losses}", DurabilityWarning, stacklevel=2)

    def _migrate(self, connection: Connection) -> None:
        """Bring the schema up to date; several processes may try at once."""
        version = self._version(connection)
        if version == SCHEMA_VERSION:
            return
        if version > SCHEMA_VERSION:
            raise StoreMismatch(
                f"the tables were made by a newer Everstep: their schema is {version}, this one knows "
                f"{SCHEMA_VERSION}; upgrade everstep"
            )
        if 0 < version < SCHEMA_FIRST:
            raise StoreMismatch(
                f"the tables were made by a version before the first release: their schema is {version}, which is not "
                "read any more; give the store another schema or table_prefix"
            )
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            if (
                self._schema is not None
                and connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)).fetchone()
                is None
            ):
                connection.execute(psycopg.sql.SQL("CREATE SCHEMA {}").format(psycopg.sql.Identifier(self._schema)))
            for number in range(max(self._version(connection) + 1, SCHEMA_FIRST), SCHEMA_VERSION + 1):
                text = resources.files("everstep.stores.postgres").joinpath(f"sql/postgres-{number}.sql").read_text()
                connection.execute(self._tables(text).encode(), prepare=False)  # several commands
            connection.execute(self._tables("UPDATE {meta} SET version = %s"), (SCHEMA_VERSION,))

    def _version(self, connection: Connection) -> int:
        # Naming a table makes the server look at what others have done to the schema since; without one it may answer
        # from before this transaction waited for its lock.
        query = "SELECT to_regclass(%s) FROM pg_catalog.pg_class LIMIT 1"
        if connection.execute(query, (self._tables("{meta}"),)).fetchone() == (None,):
            return 0
        row = connection.execute(self._tables("SELECT version FROM {meta}")).fetchone()
        return int(row[0]) if row is not None else 0
