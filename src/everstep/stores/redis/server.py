"""All that is done on the server, as one class, blocking. Each part has its own file.

Here are histories that come from another store (see `adoption.adopt`), and sweeps (see `sweeping`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from everstep.errors import CommitUnknown, InvalidInput
from everstep.stores.adoption import adopt, adopt_new
from everstep.stores.protocol import Key, Part
from everstep.stores.redis.adopt import Plan
from everstep.stores.redis.calls import bucket_of_family
from everstep.stores.redis.items import line_name
from everstep.stores.redis.link import Link, Unsure
from everstep.stores.redis.mending import Mending
from everstep.stores.sweeping import Sweeps
from everstep.stores.workers import Driver

T = TypeVar("T")


class Server(Mending):
    """What the store does."""

    def __init__(self, link: Link, prefix: str, life_ms: int, wait_replicas: int) -> None:
        super().__init__(link, prefix, life_ms, wait_replicas)
        self.sweeps = Sweeps()

    # -- what comes from another store

    def adopt(self, part: Part) -> int:
        self._check_allowed()
        highest = 0
        family = self._family_of(part.thread_id)
        names = {stored.record.key.thread_id for stored in part.checkpoints}
        names.update(raw.thread_id for raw in part.threads)
        for name in names:
            # It may be in another bucket, where no plan looks.
            if self._family_of(name) not in (None, family):
                raise InvalidInput(f"thread {name!r} exists and is not of the family of {part.thread_id!r}")

        def work(plan: Plan) -> None:
            nonlocal highest
            highest = adopt(plan, part)

        self._take_over_planned(part, work)
        return highest

    def adopt_new(self, part: Part) -> None:
        self._check_allowed()
        self._take_over_planned(part, lambda plan: adopt_new(plan, [part]))

    def _take_over_planned(self, part: Part, work: Callable[[Plan], None]) -> None:
        # Generations come from elsewhere: they may be lower than those seen here.
        taken_over = {part.thread_id, *(raw.thread_id for raw in part.threads)}
        for name in taken_over:
            self._heads.forget_thread(name)
        start = functools.partial(self._search, part.thread_id)
        try:
            self._planned_alone(work, (part.thread_id, ""), start)
        except Unsure as exc:
            raise CommitUnknown(None, part.thread_id, str(exc)) from exc
        finally:
            for name in taken_over:
                self._heads.forget_thread(name)

    # -- sweeping

    def sweep_start(self, family: str, without: Collection[Key] | None) -> tuple[int, int, int, list[bytes]] | None:
        """Begin an epoch: what is sent again from now on is of it, and not removed."""
        pretend = without is not None
        names = [f"thread:{line_name(key[0], key[1])}:item:{key[2]}" for key in without or ()]
        keys = [self._base(bucket_of_family(family)) + name.encode() for name in names]
        found = self._call(bucket_of_family(family), "roots", family, int(pretend), len(keys), *keys)
        if not found:
            return None
        epoch, removals, doomed, roots = found
        last_epoch = int(epoch)
        # What was stored up to the epoch before this sweep may go; one that only pretends has begun no epoch.
        if not pretend:
            last_epoch -= 1
        return int(removals), int(doomed), last_epoch, roots

    def links(self, family: str, wanted: Sequence[bytes]) -> list[tuple[bytes, bytes, int]]:
        flat = self._call(bucket_of_family(family), "links", family, len(wanted), *wanted)
        return list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    def objects_after(self, family: str, last: bytes, limit: int) -> tuple[list[tuple[bytes, int, int]], bytes | None]:
        """Return (hash, epoch, size); the server's cursor says from where to go on."""
        cursor, flat = self._call(bucket_of_family(family), "scan", family, last or b"0", limit)
        found = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        if cursor == b"0":
            return found, None
        return found, cursor

    def remove_objects(self, family: str, doomed: Sequence[tuple[bytes, int]], expected_sweeps: int) -> int | None:
        flat = list(itertools.chain(*doomed))
        removals = self._call(bucket_of_family(family), "discard", family, expected_sweeps, len(flat), *flat)
        return int(removals) if removals else None

    def sweep_begin(self, family: str, ticket: int) -> None:
        self._call(bucket_of_family(family), "sweep", family, ticket)

    def sweep_end(self, family: str, live_bytes: int, unreferenced_bytes: int, ticket: int) -> None:
        self._call(bucket_of_family(family), "swept", family, live_bytes, unreferenced_bytes, ticket)


class SweepDriver:
    """How a sweep gets at a family: each of its steps is a call of its own."""

    def __init__(self, driver: Driver, server: Server) -> None:
        self._driver = driver
        self._server = server

    async def read(self, work: Callable[[Any], T]) -> T:
        return await self._driver.run(lambda deadline: self._server.do(work, deadline))

    async def write(self, work: Callable[[Any], T], thread_id: str) -> T:  # noqa: ARG002  # a family's, not a thread's
        return await self.read(work)
