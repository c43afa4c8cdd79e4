"""Retention by age over a whole store, the threads of LangGraph's savers included."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from everstep.backends import CheckpointBackend, StoreBackend
from everstep.config import CheckpointGC, SnapshotConfig
from everstep.engine import CheckpointEngine
from everstep.errors import InvalidInput, UnsupportedByBackend
from everstep.langgraph.saved import KIND, is_call
from everstep.reports import GCReport
from everstep.retention.keeper import Keeper, Scope
from everstep.runtime import checks
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Store, Stored

_DAY = 86_400.0
_SECONDS_MIN = 1e-9
_SECONDS_MAX = 1e14


async def cleanup_old_checkpoints(
    store: Any, days: float = 7, *, dry_run: bool = False, whole_threads: bool = False
) -> GCReport:
    """Delete checkpoints older than so many days in all threads, and give the space back.

    `store` is a saver, an engine, a backend or a store. An idle thread keeps its head, with what that needs: the
    subgraphs of its unfinished nodes, and those that remember from call to call. With `whole_threads` a thread that
    has nothing younger goes whole. Pinned checkpoints stay, and those where a living branch began, and their threads.
    """
    return await _cleaned(store, days, dry_run, whole_threads, blocking=False)


def cleanup_old_checkpoints_sync(
    store: Any, days: float = 7, *, dry_run: bool = False, whole_threads: bool = False
) -> GCReport:
    """Do what `cleanup_old_checkpoints` does, blocking."""
    return run_to_end(_cleaned(store, days, dry_run, whole_threads, blocking=True))


async def _cleaned(given: Any, days: float, dry_run: bool, whole_threads: bool, *, blocking: bool) -> GCReport:
    if isinstance(days, bool) or not isinstance(days, (int, float)) or not days >= 0:
        raise InvalidInput(f"days is a number, 0 or more, not {checks.shown(days)}")
    # A policy keeps for some time, if only a moment.
    seconds = min(max(days * _DAY, _SECONDS_MIN), _SECONDS_MAX)
    policy = SnapshotConfig(gc_policy=CheckpointGC.KEEP_AGE, gc_param=seconds)
    store = _store(given)
    if isinstance(store, CheckpointBackend):
        if whole_threads:
            raise UnsupportedByBackend("whole_threads needs a store of Everstep; this backend has none")
        engine = CheckpointEngine(store, policy)
        if blocking:
            return engine.sync.collect(dry_run=dry_run)
        return await engine.collect(dry_run=dry_run)
    if blocking:
        store = store.blocking
    return await Keeper(policy).collect(store, None, dry_run=dry_run, scope=Scope(_over, whole_threads))


def _store(given: Any) -> Store | CheckpointBackend:
    found: Any = getattr(given, "backend", given)
    if isinstance(given, CheckpointEngine):
        found = given.checkpointer
    if isinstance(found, StoreBackend):
        return found.store
    if isinstance(found, CheckpointBackend):
        return found
    if hasattr(found, "commit") and hasattr(found, "blocking"):
        return cast(Store, found)
    raise InvalidInput(f"store is a saver, an engine, a backend or a store, not {type(given).__name__}")


def _over(heads: Collection[Stored]) -> list[str]:
    """Return the namespaces of subgraph calls that nothing waits for: all but those of the root head's own tasks."""
    ours = [stored.record for stored in heads if stored.record.kind == KIND]
    root = next((record.key.checkpoint_id for record in ours if not record.key.namespace), None)
    found = []
    for record in ours:
        parents = record.metadata.get("parents")
        parent = None
        if isinstance(parents, dict):
            parent = parents.get("")
        # A call is named "node:task"; a subgraph that remembers from call to call is just "node".
        if is_call(record.key.namespace) and root is not None and parent != root:
            found.append(record.key.namespace)
    return found
