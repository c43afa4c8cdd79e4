"""Effects on the world: what the threads of a family have begun and performed, kept beside their history.

A rewind does not undo the world, so effects do not stand on the line of a thread. Each is a checkpoint of its own in
the thread that the family began with, named by its key: whoever begins the same effect finds it. The intent is stored
before the call, the outcome takes its place afterwards.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from everstep.errors import BaseGone, CheckpointCorrupted, IdTaken
from everstep.reports import DroppedEffect
from everstep.repository.fences import Fence
from everstep.repository.repository import Repository
from everstep.repository.step import new_record
from everstep.stores.protocol import Key, Query, Record, Stored
from everstep.types import RUN_KIND, TASK_NAMESPACE, utc_now

logger = logging.getLogger("everstep")

PREFIX = "!effect-"
"""What the ids of effects begin with."""


class Effect(NamedTuple):
    """An effect as it is stored."""

    stored: Stored
    values: Mapping[str, Any]

    @property
    def about(self) -> Mapping[str, Any]:
        """What is known of it.

        `key`, `args` (their digest), `thread`, `status` (begun, done, failed or undone), `begun` (how often), `undo`.
        """
        found: Mapping[str, Any] = self.stored.record.metadata["effect"]
        return found


class Effects:
    """The effects of one family of threads."""

    def __init__(self, repository: Repository, host: str, claim: Fence | None = None) -> None:
        self._repository = repository
        self._host = host
        self._claim = claim

    async def find(self, key: str) -> Effect | None:
        """Return an effect by its key."""
        loaded = await self._repository.load(*self._name(key))
        if loaded is None:
            return None
        stored, (_, _, values) = loaded
        return Effect(stored, values)

    async def begin(
        self, key: str, about: Mapping[str, Any], values: Mapping[str, Any], before: Effect | None
    ) -> Effect:
        """Store the intent to perform an effect; IdTaken if somebody else has begun it since it was looked for."""
        return await self._keep(key, {**about, "key": key, "status": "begun"}, values, before)

    async def end(self, effect: Effect, status: str, values: Mapping[str, Any]) -> Effect:
        """Store how an effect ended; IdTaken if somebody else has done that."""
        key = effect.about["key"]
        return await self._keep(key, {**effect.about, "status": status}, {**effect.values, **values}, effect)

    async def copy(self, effect: Effect) -> None:
        """Keep an effect of another thread; IdTaken if it is there."""
        await self._keep(effect.about["key"], effect.about, effect.values, None)

    async def stored(self) -> Sequence[Stored]:
        """Return the records of all of them, the newest first."""
        query = Query(thread_id=self._host, namespace=TASK_NAMESPACE, hidden="also")
        listed = await self._repository.store.list_checkpoints(query)
        return [stored for stored in listed if stored.record.key.checkpoint_id.startswith(PREFIX)]

    async def list(self) -> list[Effect]:
        """Return all of them, the newest first."""
        listed = await self.stored()
        if not listed:
            return []
        values = await self._repository.tools_results(listed)
        return [Effect(stored, held) for stored, held in zip(listed, values, strict=True)]

    async def _keep(
        self, key: str, about: Mapping[str, Any], values: Mapping[str, Any], before: Effect | None
    ) -> Effect:
        claim = self._claim
        replaced: Stored | None = None
        if before is not None:
            replaced = before.stored
        while True:
            record = self._record(key, about)
            rests_on = []
            if claim is not None:
                rests_on.append(claim.base)
            try:
                stored = await self._repository.keep_beside(
                    record, ([], {}, dict(values)), before=replaced, rests_on=rests_on
                )
                return Effect(stored, values)
            except BaseGone:
                if claim is not None:
                    stood = claim.base
                    await claim.find(self._repository.store)  # RunLost if it is not this run's any more
                    if claim.base != stood:
                        continue  # it was renewed meanwhile
                raise IdTaken(f"the effect {key!r} was changed by somebody else") from None

    def _record(self, key: str, about: Mapping[str, Any]) -> Record:
        return new_record(
            self._name(key),
            0,
            (),
            summary=f"Effect {key}: {about['status']}",
            kind=RUN_KIND,
            metadata={"effect": {**about, "at": utc_now()}},
        )

    def _name(self, key: str) -> Key:
        return Key(self._host, TASK_NAMESPACE, PREFIX + hashlib.sha256(key.encode()).hexdigest()[:40])


async def let_go(repository: Repository, thread_id: str) -> list[DroppedEffect]:
    """Return what `_let_go` does; a damaged thread must be deletable, so what cannot be read of it is only told."""
    try:
        return await _let_go(repository, thread_id)
    except CheckpointCorrupted as exc:
        logger.warning("what thread %r did to the world cannot be read: %s", thread_id, exc)
        return []


async def _let_go(repository: Repository, thread_id: str) -> list[DroppedEffect]:
    """Return what a thread that is about to be deleted has performed: the world keeps it.

    If the family keeps its effects in that thread, each of its branches gets a copy first: they stay behind, and do not
    perform again what was performed.
    """
    thread = await repository.store.thread(thread_id, brief=True)
    if thread is None or (thread.origin is None and TASK_NAMESPACE not in thread.newest):
        return []  # most threads: they have neither an origin nor effects of their own
    host = await host_of(repository, thread_id)
    effects = Effects(repository, host)
    if host == thread_id:
        await _copy_to_branches(repository, effects, thread_id)
    dropped = list[DroppedEffect]()
    for stored in await effects.stored():
        about = stored.record.metadata["effect"]
        if about["thread"] == thread_id:
            dropped.append(DroppedEffect(thread_id, about["key"], about["status"]))
    if dropped:
        keys = ", ".join([f"{effect.key} ({effect.status})" for effect in dropped])
        logger.warning("thread %r goes; what it did to the world stays: %s", thread_id, keys)
    return dropped


async def _copy_to_branches(repository: Repository, effects: Effects, thread_id: str) -> None:
    """Copy the effects of a family to the threads that began as branches of the one that it keeps them in."""
    held = await effects.list()
    thread = await repository.store.thread(thread_id, branches=True, brief=True) if held else None
    for branch in thread.branches if thread is not None else ():
        copies = Effects(repository, branch)
        for effect in held:
            with suppress(IdTaken):  # an earlier deletion got so far
                await copies.copy(effect)


async def host_of(repository: Repository, thread_id: str) -> str:
    """Return the thread that a family began with, or the nearest to it that is there."""
    found = thread_id
    while True:
        thread = await repository.store.thread(found, brief=True)
        if thread is None or thread.origin is None:
            return found
        if await repository.store.thread(thread.origin.thread_id, brief=True) is None:
            return found
        found = thread.origin.thread_id
