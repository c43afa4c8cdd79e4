"""The Store protocol on top of any backend of ordered keys and values: each method is one transaction."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Self, TypeVar

from everstep.reports import Finding
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.stores.adoption import adopt, adopt_new
from everstep.stores.deletion import Deletion, delete
from everstep.stores.inside import Inside
from everstep.stores.inspection import Lost
from everstep.stores.keyvalue.changing import ChangeRows
from everstep.stores.keyvalue.checking import Inspection, mend
from everstep.stores.keyvalue.interface import KeyValues, Reading, SealedReading, SealedWriting, Writing
from everstep.stores.keyvalue.reading import ReadRows
from everstep.stores.keyvalue.rows import WorkedOut
from everstep.stores.looks import Looks
from everstep.stores.protocol import BaseRef, Change, Deleted, Key, Loaded, Object, Part, Store, Stored, Swept, Write
from everstep.stores.sweeping import Sweeps
from everstep.stores.transaction import apply, apply_writes
from everstep.stores.workers import AsyncDriver, Driver

T = TypeVar("T")
# More would only wait for one another: one writes at a time.
_WORKERS = 8
_FOR_EVER = float("inf")


class KeyValueStore(Looks):
    """A store on a backend. `blocking` is the same store for callers that may wait on their own thread."""

    _make_rows = ChangeRows

    def __init__(self, backend: KeyValues) -> None:
        self._backend = backend
        self._is_format_known = False
        self._seen = WorkedOut()
        self._sweeps = Sweeps()
        self._driver = Driver(_FOR_EVER)
        if backend.limit_seconds is not None:
            self._driver = AsyncDriver(backend.limit_seconds, _WORKERS)

    @property
    def blocking(self) -> Self:
        # It never waits, so that both faces are the same.
        if not isinstance(self._driver, AsyncDriver):
            return self
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._driver = Driver(self._driver.timeout_seconds)
        return twin

    @property
    def limit_seconds(self) -> float | None:
        return self._backend.limit_seconds

    @property
    def address(self) -> str:
        """Where it is."""
        return self._backend.address

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._backend.is_closed

    def __repr__(self) -> str:
        return describe_on_store(self, self)

    async def _look(
        self,
        work: Callable[[ReadRows], T],
        thread_id: str | None = None,  # noqa: ARG002  # it is read the same way, whatever it is about
        *,
        is_view: bool = False,  # noqa: ARG002  # every look sees one state
    ) -> T:
        def inside(deadline: float) -> T:
            with self._backend.read(deadline) as tx:
                rows = ReadRows(self._sealed_reading(tx), self._seen)
                self._check_format(rows)
                return work(rows)

        return await self._driver.run(inside)

    async def _write(self, work: Callable[[ChangeRows], T]) -> T:
        def inside(deadline: float) -> T:
            with self._backend.write(deadline) as tx:
                rows = self._make_rows(self._sealed_writing(tx), self._seen)
                self._check_format(rows)
                done = work(rows)
                # Inside the block: what is written after it would not be part of the transaction.
                rows.finish()
            return done

        return await self._driver.run(inside)

    def _sealed_reading(self, tx: Reading) -> Reading:
        """Return a transaction that finds out what is damaged, if the backend does not do that by itself."""
        return tx if self._backend.finds_damage else SealedReading(tx)

    def _sealed_writing(self, tx: Writing) -> Writing:
        """The same for one that writes."""
        return tx if self._backend.finds_damage else SealedWriting(tx)

    def _check_format(self, rows: ReadRows) -> None:
        if not self._is_format_known:
            rows.check_format()
            self._is_format_known = True

    async def in_turn(
        self,
        thread_id: str,  # noqa: ARG002  # nobody changes anything meanwhile
        work: Callable[[Store], Coroutine[Any, Any, T]],
        seconds: float = 0.0,  # noqa: ARG002  # others wait however long it takes
    ) -> T:
        def inside(rows: ChangeRows) -> T:
            return run_to_end(work(Inside(self, rows, rows.load, lambda change: apply(rows, change))))

        return await self._write(inside)

    async def clock(self) -> float:
        return time.time()

    async def commit(self, change: Change) -> Stored | None:
        return await self._write(lambda rows: apply(rows, change))

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        await self._write(lambda rows: apply_writes(rows, key, writes, objects, base))

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        return await self._look(lambda rows: rows.load(thread_id, namespace, checkpoint_id, objects, writes))

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        return await self._look(lambda rows: rows.load_many(keys, writes))

    async def _delete(self, deletion: Deletion) -> Deleted:
        return await self._write(lambda rows: delete(rows, deletion))

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        if self._backend.limit_seconds is None:
            # What never waits is done whole.
            effort = None
        swept, _ = await self._sweeps.run(_Sweeper(self), family, effort, pretend)
        return swept

    async def adopt(self, part: Part) -> int:
        return await self._write(lambda rows: adopt(rows, part))

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        await self._write(lambda rows: adopt_new(rows, parts))

    async def thread_names(self) -> list[str]:
        """Return the name of every thread, damaged ones included: see `Checking`."""
        return await self._inspect(lambda tx: Inspection(tx).names())

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with tables and indexes: see `Checking`."""
        return await self._inspect(lambda tx: [found.finding for found in Inspection(tx).problems()])

    async def mend_tables(self, *, dry_run: bool) -> list[Lost]:
        """Make tables and indexes agree: see `Mending`."""

        def inside(deadline: float) -> list[Lost]:
            with self._backend.write(deadline) as tx:
                return mend(self._sealed_writing(tx), dry_run=dry_run)

        lost = await self._driver.run(inside)
        # What was worked out from rows may be found by numbers that mean something else now.
        self._seen.clear()
        return lost

    async def stored_rows(self, keys: Sequence[Key]) -> list[Lost]:
        """Return checkpoints as they are stored: see `Mending`."""
        return await self._inspect(lambda tx: list(itertools.chain.from_iterable(map(Inspection(tx).stored, keys))))

    async def _inspect(self, work: Callable[[Reading], T]) -> T:
        """Run `work` on whatever is there."""

        def inside(deadline: float) -> T:
            with self._backend.read(deadline) as tx:
                return work(self._sealed_reading(tx))

        return await self._driver.run(inside)

    async def close(self) -> None:
        self._backend.close()
        if isinstance(self._driver, AsyncDriver):
            self._driver.dismiss()


class _Sweeper:
    """How a sweep gets at the rows."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    async def read(self, work: Callable[[Any], T]) -> T:
        return await self._store._look(work)

    async def write(self, work: Callable[[Any], T], thread_id: str) -> T:  # noqa: ARG002  # all threads have one lock
        return await self._store._write(work)
