"""What threads take, against what full copies would, and what retention would give back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from everstep.runtime import checks
from everstep.stores.protocol import Query, Store
from everstep.views.reading import repository_of

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

_PAGE = 1000


async def sizes(engine: CheckpointEngine, thread_id: str | None = None, *, plan: bool = True) -> dict[str, Any]:
    """Return what a thread takes, or (None) all of them. It reads all that they are made of, so it takes a while.

    `full_bytes` is what its checkpoints would take as full copies, `ratio` how many times that is what is stored. With
    `plan` also what retention would remove now, as the engine is configured.
    """
    store = repository_of(engine).store
    if thread_id is not None:
        thread_id = (await engine.resolve("@", thread_id=checks.thread_id(thread_id))).thread_id
    found = await engine.sizes(thread_id)
    full = await _full_bytes(store, thread_id)
    retention: dict[str, Any] | None = None
    if plan:
        retention = asdict(await engine.collect(thread_id, dry_run=True))
    policy = engine.config.gc_policy
    return {
        "thread_id": thread_id,
        **asdict(found),
        "total_bytes": found.total_bytes,
        "full_bytes": full,
        "ratio": round(full / found.total_bytes, 2) if found.total_bytes else None,
        "policy": {"name": getattr(policy, "value", policy), "param": engine.config.gc_param},
        "retention": retention,
    }


async def _full_bytes(store: Store, thread_id: str | None) -> int:
    if thread_id is not None:
        return await _full_of_thread(store, thread_id)
    total = 0
    position: int | None = 0
    while position is not None:
        outlines, position = await store.outlines(position)
        for outline in outlines:
            total += await _full_of_thread(store, outline.thread_id)
    return total


async def _full_of_thread(store: Store, thread_id: str) -> int:
    total = 0
    before: int | None = None
    while True:
        query = Query(thread_id=thread_id, namespace=None, hidden="also", before_seq=before, limit=_PAGE)
        listed = await store.list_checkpoints(query)
        total += sum(sum(stored.record.sizes) for stored in listed)
        if len(listed) < _PAGE:
            return total
        before = listed[-1].seq
