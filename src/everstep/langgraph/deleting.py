"""Deleting what savers put: whole threads, the checkpoints of some runs, all but the newest ones.

A thread holds more than what its graph wrote: who may run it, and effects that its branches rely on, in a namespace of
its own. These are not counted, pruning leaves them alone, and effects are let go before the whole thread is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everstep.langgraph.last_written import Lines
from everstep.langgraph.saved import KIND, check_kind, of_graph
from everstep.repository.repository import Repository, reclaim
from everstep.stores.protocol import Key, Query
from everstep.types import TASK_NAMESPACE

if TYPE_CHECKING:
    from everstep.retention.keeper import Keeper

logger = logging.getLogger("everstep")


class Deleter:
    """Deletes over one face of a store, and forgets what was remembered of the threads."""

    def __init__(self, repository: Repository, lines: Lines, keeper: Keeper | None) -> None:
        self._repository = repository
        self._store = repository.store
        self._lines = lines
        self._keeper = keeper

    async def delete_thread(self, thread_id: str) -> int:
        """Delete a thread with all its namespaces, and return how many checkpoints it had."""
        others = await self._store.count(Query(thread_id=thread_id, namespace=TASK_NAMESPACE, hidden="also"))
        if others:  # claims, or effects that branches need
            from everstep.repository.effects import let_go

            await let_go(self._repository, thread_id)
        deleted = await self._store.delete(thread_id)
        self.forget(thread_id)
        await reclaim(self._store, deleted, thread_id)
        count = max(deleted.checkpoints - others, 0)
        logger.info("thread %r deleted (whole): %d checkpoints", thread_id, count)
        return count

    async def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that these runs wrote, in all threads."""
        keys: dict[str, list[Key]] = {}
        for run_id in dict.fromkeys(run_ids):
            query = Query(namespace=None, filter={"run_id": run_id}, hidden="also")
            for stored in await self._store.list_checkpoints(query):
                if stored.record.kind == KIND:
                    keys.setdefault(stored.record.key.thread_id, []).append(stored.record.key)
        for thread_id, of_runs in keys.items():
            await self._delete(thread_id, of_runs)

    async def prune(self, thread_ids: Sequence[str]) -> None:
        """Keep the newest checkpoint of each namespace of these threads, with its writes."""
        for thread_id in dict.fromkeys(thread_ids):
            thread = await self._store.thread(thread_id)
            if thread is None:
                continue
            query = Query(thread_id=thread_id, namespace=None, hidden="also")
            listed = of_graph(await self._store.list_checkpoints(query))
            for stored in listed[:1]:
                check_kind(stored)
            heads = {(namespace, head[0]) for namespace, head in thread.heads.items()}
            await self._delete(thread_id, [s.record.key for s in listed if s.record.key[1:] not in heads])

    async def _delete(self, thread_id: str, keys: Sequence[Key]) -> None:
        deleted = await self._store.delete(thread_id, keys=keys)
        self.forget(thread_id)
        await reclaim(self._store, deleted, thread_id)
        logger.info("thread %r: %d checkpoints deleted", thread_id, deleted.checkpoints)

    def forget(self, thread_id: str) -> None:
        """Forget what was remembered of a thread that is not as it was."""
        self._lines.forget(thread_id)
        if self._keeper is not None:
            self._keeper.forget(thread_id)
