"""Redis or Valkey, one server or a cluster. See redis-1.lua for the keys, and `link` for the connections.

A family lives in one of 128 buckets, that of its first thread's name; a branch whose own name gives another bucket
has an alias there. The usual commit and the usual read are one call of the script; everything else is planned on what
was read (`plan`) and sent as one call that checks that nothing has changed.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from everstep.errors import InvalidInput
from everstep.reports import Finding
from everstep.runtime import checks
from everstep.runtime.blocking import describe_on_store, run_to_end
from everstep.stores.inspection import Lost as LostRow
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Deleted,
    Hit,
    Key,
    Loaded,
    Newest,
    Object,
    Operation,
    Outline,
    Part,
    Place,
    Query,
    RawThread,
    Search,
    Store,
    Stored,
    Swept,
    Thread,
    Write,
)
from everstep.stores.redis.checking import confirmed
from everstep.stores.redis.link import Link
from everstep.stores.redis.server import Server, SweepDriver
from everstep.stores.redis.turns import Turn
from everstep.stores.workers import AsyncDriver, Driver

T = TypeVar("T")


class RedisStore:
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
        life_ms = 0
        if ttl_seconds is not None:
            life_ms = max(1, round(ttl_seconds * 1000))
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

        def whole(at: float) -> T:
            # On one thread from its beginning to its end: else those who wait might have all the threads, and whoever
            # has the turn might wait for one of them.
            turn = self._server.take_turn(thread_id, seconds, at)
            inside = object.__new__(RedisStore)
            inside.__dict__.update(self._twin.__dict__)
            inside._turn = turn
            try:
                return context.run(run_to_end, work(inside))
            finally:
                if turn is not None and not turn.is_used:
                    self._server.end_turn(turn, at)

        return await self._run(whole)

    async def commit(self, change: Change) -> Stored | None:
        return await self._run(lambda at: self._server.commit(change, at, self._turn))

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        await self._run(lambda at: self._server.put_writes(key, writes, objects, base, at))

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
        return await self._run(lambda at: self._server.load(thread_id, namespace, checkpoint_id, objects, writes, at))

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        return await self._run(lambda at: self._server.load_many(keys, writes, at)) if keys else []

    async def find(self, checkpoint_id: str) -> list[Key]:
        return await self._run(lambda at: self._server.find(checkpoint_id, at))

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        return await self._run(lambda at: self._server.fetch(family, hashes, below, at))

    async def fetch_many(self, wanted: Mapping[str, Collection[bytes]]) -> list[Object]:
        """See `ReadsTogether`."""
        return await self._run(lambda at: self._server.fetch_many(wanted, at))

    async def present(self, thread_ids: Sequence[str]) -> set[str]:
        """See `ReadsTogether`."""
        return await self._run(lambda at: self._server.present(thread_ids, at))

    async def heads(self, lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """See `ReadsTogether`."""
        return await self._run(lambda at: self._server.heads(lines, at))

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        return await self._about(query.thread_id, lambda at: self._server.list_checkpoints(query, at))

    async def clock(self) -> float:
        return await self._run(lambda at: self._server.clock(at))

    async def count(self, query: Query) -> int:
        return await self._about(query.thread_id, lambda at: self._server.count(query, at))

    async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
        return await self._run(lambda at: self._server.list_threads(limit, offset, headless, at))

    async def search(self, search: Search) -> list[Hit]:
        return await self._run(lambda at: self._server.search(search, at))

    async def thread(
        self, thread_id: str, *, branches: bool = False, ancestry: bool = False, brief: bool = False
    ) -> Thread | None:
        return await self._about(
            thread_id, lambda at: self._server.thread(thread_id, branches, ancestry, at, brief=brief)
        )

    async def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        return await self._run(lambda at: self._server.started(thread_id, namespace, after, at))

    async def segments(
        self, family: str, segments: Collection[int], *, older: int = 0
    ) -> Mapping[int, Sequence[Place]]:
        return await self._run(lambda at: self._server.segments(family, segments, older, at))

    async def newest(
        self, thread_id: str, limit: int, *, branches: bool = False, without: str | None = None
    ) -> Newest | None:
        return await self._run(lambda at: self._server.newest(thread_id, limit, branches, without, at))

    async def outlines(self, position: int = 0) -> tuple[list[Outline], int | None]:  # noqa: ARG002  # all at once
        return await self._run(lambda at: self._server.outlines(at))

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        return await self._about(thread_id, lambda at: self._server.operations(thread_id, limit, at))

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        return await self._run(lambda at: self._server.delete(thread_id, keys, before_step, spare, operations, at))

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        driver = SweepDriver(self._driver, self._server, pretend=pretend is not None)
        return (await self._server.sweeps.run(driver, family, effort, pretend))[0]

    async def raw(self, thread_id: str, *, family_threads: bool = False) -> RawThread | None:
        return await self._about(thread_id, lambda at: self._server.raw(thread_id, family_threads, at))

    async def adopt(self, part: Part) -> int:
        return await self._run(lambda at: self._server.adopt(part, at))

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        # One after the other: each family is in one bucket, and a script works on one bucket.
        for part in parts:
            await self._run(lambda at, part=part: self._server.adopt_new(part, at))  # type: ignore[misc]

    async def thread_names(self) -> list[str]:
        """Return the name of every thread, damaged ones included: see `Checking`."""
        return await self._run(self._server.every_name)

    async def check_tables(self) -> list[Finding]:
        """Return what is wrong with keys and indexes: see `Checking`."""
        found = await self._run(lambda at: confirmed(lambda: self._server.problems(at)))
        return [problem.finding for problem in found]

    async def mend_tables(self, *, dry_run: bool) -> list[LostRow]:
        """Make keys and indexes agree: see `Mending`."""
        return await self._run(lambda at: self._server.mend(at, dry_run=dry_run))

    async def stored_rows(self, keys: Sequence[Key]) -> list[LostRow]:
        """Return checkpoints as they are stored: see `Mending`."""
        return await self._run(lambda at: self._server.stored_rows(keys, at))

    async def close(self) -> None:
        if isinstance(self._driver, AsyncDriver):
            self._driver.dismiss()
        self._server.close()

    async def _about(self, thread_id: str | None, work: Callable[[float], T]) -> T:
        """Read something about a thread (None: about all of them)."""
        return await self._run(lambda at: self._server.about_thread(thread_id, work, at))

    async def _run(self, work: Callable[[float], T]) -> T:
        return await self._driver.run(work)


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
