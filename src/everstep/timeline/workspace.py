"""What every operation on a timeline works with: a store, what is remembered of it, and how to try again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from everstep.config import SnapshotConfig
from everstep.errors import BaseGone, CheckpointNotFound, HeadMoved, InvalidInput
from everstep.history import operation_log
from everstep.repository.repository import Repository
from everstep.repository.turns import Beaten, until_done
from everstep.retention.keeper import Keeper
from everstep.stores.abilities import Origin
from everstep.stores.protocol import Change, Key, Operation, Pin, Store, Stored

T = TypeVar("T")


class Workspace:
    """A store, the repository and the keeper over it, and the configuration."""

    def __init__(self, repository: Repository, keeper: Keeper, config: SnapshotConfig) -> None:
        self.repository = repository
        self.keeper = keeper
        self.config = config

    @property
    def store(self) -> Store:
        """The store that is read and written."""
        return self.repository.store

    async def until_done(
        self,
        thread_id: str,
        attempt: Callable[[Workspace], Coroutine[Any, Any, T]],
        doing: str,
        *,
        calls_back: bool = False,
    ) -> T:
        """Return what `attempt` does; it is done again if another writer was first: see `repository/turns.py`."""

        async def once(store: Store, _is_first: bool) -> T:
            try:
                return await attempt(self._over(store))
            except (HeadMoved, BaseGone):
                raise Beaten from None

        return await until_done(self.store, thread_id, once, doing, calls_back=calls_back)

    def _over(self, store: Store) -> Workspace:
        """Return the same over what a turn works on."""
        if store is self.store:
            return self
        return Workspace(self.repository.over(store), self.keeper, self.config)

    async def require(self, key: Key) -> Stored:
        """Return a checkpoint that must be there."""
        loaded = await self.store.read(*key)
        if loaded is None:
            raise CheckpointNotFound(key.checkpoint_id, key.thread_id)
        return loaded.stored

    async def require_head(self, thread_id: str, namespace: str) -> Stored:
        """Return the head of a thread that must have one."""
        loaded = await self.store.read(thread_id, namespace)
        if loaded is None:
            raise InvalidInput(f"thread {thread_id!r} has no checkpoints")
        return loaded.stored

    async def origin(self, key: Key) -> Origin:
        """Return a checkpoint that must be there, and the top of its thread's log."""
        return Origin(await self.require(key), await self.top_operation(key.thread_id))

    def forget(self, thread_id: str) -> None:
        """Forget what is remembered of a thread whose head was moved."""
        self.repository.forget(thread_id)
        self.keeper.forget(thread_id)

    async def newest_operations(self, thread_id: str) -> list[Operation]:
        """Return the newest entries of the log, down to the one that undo would take back: redo needs no older ones."""
        # Nearly always the newest entry is the one that counts, so one is read first and more only if it was
        # undone.
        limit = 1
        while True:
            entries = await self.store.operations(thread_id, limit)
            if operation_log.top(entries) or len(entries) < limit or limit == operation_log.DEPTH_MAX:
                return entries
            limit = min(limit * 16, operation_log.DEPTH_MAX)

    async def top_operation(self, thread_id: str) -> int:
        """Return the number of the operation that undo would take back; 0 if there is none."""
        return operation_log.top(await self.newest_operations(thread_id))

    async def log(self, key: Key, kind: str, details: Mapping[str, str], made_at_seq: int, *pins: Pin) -> None:
        """Note in a thread's log what was said about it or a checkpoint: nothing else changes, but for a pin.

        Of the key the thread and the namespace count.
        """
        taken_back = [pin._replace(pinned=not pin.pinned) for pin in pins]
        undo = operation_log.Undo(key.thread_id, {}, [], {}, taken_back)
        entry = operation_log.entry(kind, details, undo, await self.top_operation(key.thread_id), made_at_seq)
        await self.store.commit(Change(thread_id=key.thread_id, namespace=key.namespace, pins=pins, log=entry))
