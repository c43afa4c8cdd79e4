"""What threads take, against what full copies would, and what retention would give back."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from everstep.errors import CheckpointCorrupted
from everstep.repository.around_damage import list_all_around
from everstep.stores.protocol import Query, Store
from everstep.views.reading import repository_of, require_thread
from everstep.views.rows import damage_as_json

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine


async def sizes(engine: CheckpointEngine, thread_id: str | None = None, *, plan: bool = True) -> dict[str, Any]:
    """Return what a thread takes, or (None) all of them. It reads all that they are made of, so it takes a while.

    `full_bytes` is what its checkpoints would take as full copies, `ratio` how many times that is what is stored. With
    `plan` also what retention would remove now, as the engine is configured; None where damage is in its way. What
    cannot be read is left out: `left_out` counts it, and `damage` tells of it.
    """
    store = repository_of(engine).store
    if thread_id is not None:
        await require_thread(engine, thread_id)
    found = await engine.sizes(thread_id)
    full = await _full_bytes(store, thread_id)
    retention: dict[str, Any] | None = None
    if plan:
        with contextlib.suppress(CheckpointCorrupted):
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
        "damage": _damage(thread_id, found.left_out),
    }


def _damage(thread_id: str | None, left_out: int) -> dict[str, Any] | None:
    """Return what to say where something cannot be read; None if everything can."""
    if not left_out:
        return None
    what = f"{left_out:,} things cannot be read, and what they take is left out"
    if left_out == 1:
        what = "one thing cannot be read, and what it takes is left out"
    return damage_as_json(CheckpointCorrupted(what, thread_id=thread_id))


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
    query = Query(thread_id=thread_id, namespace=None, hidden="also")
    around = await list_all_around(store, query, ())
    return sum(sum(stored.record.sizes) for stored in around.listed)
