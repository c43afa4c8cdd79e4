"""The threads of a family: the one that it began with, and the branches that came from it, each with its head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep.errors import CheckpointNotFound
from everstep.history.labels import Labels
from everstep.runtime import checks
from everstep.stores.protocol import Key, Store, Stored
from everstep.timeline.branch import branch_name
from everstep.timeline.labels import said_of
from everstep.types import TASK_NAMESPACE
from everstep.views.reading import repository_of, stored_by_key
from everstep.views.texts import called, origin_ref

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

# A branch of a branch of a branch: nobody goes that deep by hand.
_DEPTH_MAX = 1000


async def family(engine: CheckpointEngine, thread_id: str, *, archived: bool = True) -> dict[str, Any]:
    """Return the threads of a thread's family, the first one first, then by name; without what is all hidden.

    Without `archived` the branches that were put away are left out, but for the thread itself.
    """
    store = repository_of(engine).store
    thread_id = checks.thread_id(thread_id)
    first = await _first(store, thread_id)
    newest = await store.newest(first, 0, branches=True, without=TASK_NAMESPACE)
    heads: list[Key] = []
    if newest is not None:
        heads = [key for key in newest.heads if not key.namespace]
    if not heads:
        # This says that there is none, and which may be meant.
        await engine.resolve("@", thread_id=thread_id)
        raise CheckpointNotFound("@", thread_id)
    stored = await stored_by_key(store, heads)
    said = await said_of(store, {key.thread_id for key in stored})
    found: list[dict[str, Any]] = []
    for key, head in stored.items():
        labels = said.labels[key.thread_id]
        if archived or not labels.is_archived or key.thread_id == thread_id:
            found.append(await _described(store, head, labels))
    found.sort(key=lambda branch: (branch["thread_id"] != first, branch["name"].casefold(), branch["thread_id"]))
    return {"thread_id": thread_id, "branches": found}


async def _first(store: Store, thread_id: str) -> str:
    """Return the thread that a family began with, or the first one that is still there."""
    for _ in range(_DEPTH_MAX):
        thread = await store.thread(thread_id, brief=True)
        if thread is None or thread.origin is None or await store.thread(thread.origin.thread_id, brief=True) is None:
            break
        thread_id = thread.origin.thread_id
    return thread_id


async def _described(store: Store, head: Stored, labels: Labels) -> dict[str, Any]:
    record = head.record
    thread_id = record.key.thread_id
    thread = await store.thread(thread_id, brief=True)
    return {
        "thread_id": thread_id,
        "name": called(thread_id, labels),
        "is_branch": branch_name(thread_id) is not None,
        "archived": labels.is_archived,
        "origin": origin_ref(thread),
        "id": record.key.checkpoint_id,
        "step": record.step,
        "updated_at": record.created_at,
    }
