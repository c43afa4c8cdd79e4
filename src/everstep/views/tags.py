"""The tags of a thread: how many checkpoints have each, and which is the newest of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from everstep.history.given_tags import NO_CHANGES
from everstep.stores.protocol import Key
from everstep.timeline.tags import changes_of
from everstep.types import CheckpointMetadata
from everstep.views.reading import repository_of

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

_LOOKED_AT_MAX = 100_000


async def listing(engine: CheckpointEngine, thread: str) -> dict[str, Any]:
    """Return `{"thread_id", "tags": [...]}`, the most frequent tag first, with those that were given later."""
    meant = await engine.resolve(thread)
    changes = await changes_of(repository_of(engine).store, [meant.thread_id])
    counts: Counter[str] = Counter()
    newest: dict[str, CheckpointMetadata] = {}
    for point in await engine.list_time_travel_points(meant.thread_id, _LOOKED_AT_MAX, namespace=meant.namespace):
        key = Key(point.thread_id, point.namespace, point.checkpoint_id)
        tags = changes.get(key, NO_CHANGES).applied_to(point.tags)
        counts.update(tags)
        for name in tags:
            newest.setdefault(name, point)
    found: list[dict[str, Any]] = []
    for name, count in counts.most_common():
        point = newest[name]
        found.append({"tag": name, "checkpoints": count, "newest": point.checkpoint_id, "step": point.step})
    return {"thread_id": meant.thread_id, "tags": found}
