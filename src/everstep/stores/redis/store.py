"""Redis or Valkey, one server or a cluster. See redis-1.lua for the keys, and `link` for the connections.

A family lives in one of 128 buckets, which the name of its first thread gives; a branch whose own name gives another
bucket has an alias there. The usual commit and the usual read are one call of the script; everything else is planned
on what was read (`plan`) and sent as one call that checks that nothing has changed.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from everstep.errors import InvalidInput
from everstep.reports import Finding
from everstep.runtime import checks
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.stores.deletion import Deletion
from everstep.stores.inspection import Lost
from everstep.stores.looks import Looks
from everstep.stores.protocol import BaseRef, Change, Deleted, Key, Loaded, Object, Part, Store, Stored, Swept, Write
from everstep.stores.redis.checking import confirmed
from everstep.stores.redis.link import Link
from everstep.stores.redis.server import Server, SweepDriver
from everstep.stores.redis.turns import Turn
from everstep.stores.workers import AsyncDriver, Driver

T = TypeVar("T")


class RedisStore(Looks):
    """A store on a Redis or Valkey server or cluster. `blocking` is the same for callers that may wait."""

    _turn: Turn | None = None
    """What changes are made in, if this is what a turn works on."""

    def __init__(
        self,
        url: str = "redis://localhost:6379/0",
        *,
        key_prefix: str = "everstep:",
        ttl_seconds: float | None = None,
        wait_replicas: int = 0,
        timeout_seconds: float = 30.0,
        allow_eviction: bool = False,
        max_threads: int = 32,
    ) -> None:
        """Nothing is opened yet.

        With `wait_replicas` a commit returns when so many replicas have it. `max_threads` carry asynchronous callers.
        """
        _check_options(key_prefix, ttl_seconds, wait_replicas, timeout_seconds, max_threads)
        link = Link(checks.kind(url, str, "url"), timeout_seconds, wait_replicas, allow_eviction)
        life_ms = max(1, round(ttl_seconds * 1000)) if ttl_seconds is not None else 0
        self._server = Server(link, key_prefix, life_ms, wait_replicas)
        self._driver: Driver = AsyncDriver(timeout_seconds, max_threads)
        # Made once, since the blocking face is asked for with every call that drives a coroutine.
        self._twin = object.__new__(RedisStore)
        self._twin._server = self._server
        self._twin._driver = Driver(timeout_seconds)
        self._twin._twin = self._twin

    @property
    def blocking(self) -> RedisStore:
        return self._twin

    @property
    def limit_seconds(self) -> float:
        return self._driver.timeout_seconds

    @property
    def address(self) -> str:
        """Where it is, without user and password."""
        return self._server.address

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._server.is_closed

    def __repr__(self) -> str:
        return describe_on_store(self, self)

    async def in_turn(self, thread_id: str, work: Callable[[Store], Coroutine[Any, Any, T]], seconds: float = 0.0) -> T:
        """Others are told to wait: see `verbs.turn` in the script."""
        context = contextvars.copy_context()

        def whole(server: Server) -> T:
            # On one thread from its beginning to its end: else those who wait might have all the threads, and whoever
            # has the turn might wait for one of them.
            turn = server.take_turn(thread_id, seconds)
            inside = object.__new__(RedisStore)
            inside.__dict__.update(self._twin.__dict__)
            inside._turn = turn
            try:
                return context.run(run_to_end, work(inside))
            finally:
                if turn is not None and not turn.is_used:
                    server.end_turn(turn)

        return await self._run(whole)

    async def commit(self, change: Change) -> Stored | None:
        return await self._run(lambda server: server.commit(change, self._turn))

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        await self._run(lambda server: server.put_writes(key, writes, objects, base))

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        if self._turn is not None and checkpoint_id is None and not objects and not writes:
            head = self._turn.take_head(thread_id, namespace)
            if head is not None:
                return head
        return await self._run(lambda server: server.load(thread_id, namespace, checkpoint_id, objects, writes))

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        return await self._run(lambda server: server.load_many(keys, writes)) if keys else []

    async def fetch_many(self, wanted: Mapping[str, Collection[bytes]]) -> list[Object]:
        """See `ReadsTogether`."""
        return await self._run(lambda server: server.fetch_many(wanted))

    async def present(self, thread_ids: Sequence[str]) -> set[str]:
        """See `ReadsTogether`."""
        return await self._run(lambda server: server.present(thread_ids))

    async def heads(self, lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """See `ReadsTogether`."""
        return await self._run(lambda server: server.heads(lines))

    async def clock(self) -> float:
        return await self._run(lambda server: server.clock())

    async def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        return await self._run(lambda server: server.started(thread_id, namespace, after))

    async def _delete(self, deletion: Deletion) -> Deleted:
        return await self._run(lambda server: server.delete(deletion))

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        driver = SweepDriver(self._driver, self._server)
        return (await self._server.sweeps.run(driver, family, effort, pretend))[0]

    async def adopt(self, part: Part) -> int:
        return await self._run(lambda server: server.adopt(part))

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        # One after the other: each family is in one bucket, and a script works on one bucket.
        for part in parts:
            await self._run(lambda server, part=part: server.adopt_new(part))  # type: ignore[misc]

    async def thread_names(self) -> list[str]:
        """Return the name of every thread, damaged ones included: see `Checking`."""
        return await self._run(lambda server: server.every_name())

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with keys and indexes: see `Checking`."""
        found = await self._run(lambda server: confirmed(server.problems))
        return [problem.finding for problem in found]

    async def mend_tables(self, *, dry_run: bool) -> list[Lost]:
        """Make keys and indexes agree: see `Mending`."""
        return await self._run(lambda server: server.mend(dry_run=dry_run))

    async def stored_rows(self, keys: Sequence[Key]) -> list[Lost]:
        """Return checkpoints as they are stored: see `Mending`."""
        return await self._run(lambda server: server.stored_rows(keys))

    async def close(self) -> None:
        if isinstance(self._driver, AsyncDriver):
            self._driver.dismiss()
        self._server.close()

    async def _look(
        self,
        work: Callable[[Server], T],
        thread_id: str | None = None,
        *,
        is_view: bool = False,  # noqa: ARG002  # a script sees one state
    ) -> T:
        return await self._run(lambda server: server.about_thread(thread_id, work))

    async def _run(self, work: Callable[[Server], T]) -> T:
        return await self._driver.run(lambda deadline: self._server.do(work, deadline))


def _check_options(
    key_prefix: str, ttl_seconds: float | None, wait_replicas: int, timeout_seconds: float, max_threads: int
) -> None:
    # Braces in a key say which part of it decides about the slot, and ours are around the number of the
    # bucket.
    if not isinstance(key_prefix, str) or "{" in key_prefix or "}" in key_prefix:
        raise InvalidInput(f"key_prefix is a text without braces, not {checks.shown(key_prefix)}")
    _check_number("ttl_seconds", ttl_seconds or 1)
    _check_number("timeout_seconds", timeout_seconds)
    _check_number("max_threads", max_threads)
    if ttl_seconds is not None and not ttl_seconds:
        raise InvalidInput("ttl_seconds is a number greater than 0, or None for no end")
    checks.count(wait_replicas, "wait_replicas")


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e10:
        raise InvalidInput(f"{name} is a number greater than 0, not {checks.shown(value)}")
