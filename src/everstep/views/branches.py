"""The threads of a family: the one that it began with, and the branches that came from it, each with its head."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everstep.errors import CheckpointCorrupted, CheckpointNotFound, InvalidInput
from everstep.history.labels import NO_LABELS, Labels
from everstep.repository.around_damage import readable, threads_around
from everstep.runtime import checks
from everstep.stores.abilities import ReadsFamilies
from everstep.stores.protocol import Key, Loaded, Store, Thread
from everstep.timeline.branch import branch_name
from everstep.timeline.labels import said_around
from everstep.types import TASK_NAMESPACE
from everstep.views.reading import repository_of
from everstep.views.texts import called, called_like, place_ref

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
    heads = await _heads(store, first)
    if not heads:
        # This says that there is none, and which may be meant.
        await engine.resolve("@", thread_id=thread_id)
        raise CheckpointNotFound("@", thread_id)
    there = await readable(store, heads)
    names = [key.thread_id for key in heads]
    labels_by_thread = (await said_around(store, names))[0].labels
    origins = await _origins(store, thread_id, names)
    found: list[dict[str, Any]] = []
    for key in heads:
        if key not in there.loaded and key not in there.damage:
            # It was deleted meanwhile.
            continue
        labels = labels_by_thread.get(key.thread_id, NO_LABELS)
        if archived or not labels.is_archived or key.thread_id == thread_id:
            found.append(_described(key, there.loaded.get(key), labels, origins.get(key.thread_id)))
    found.sort(key=lambda branch: (branch["thread_id"] != first, branch["name"].casefold(), branch["thread_id"]))
    return {"thread_id": thread_id, "branches": found}


async def require_free_name(engine: CheckpointEngine, thread_id: str, name: str, but: str | None = None) -> None:
    """Refuse a name for a branch of a thread's family that another branch of it has; `but` is the one it is for.

    The engine allows it. People who read such names, and write `trip@cheap`, would not know which one is meant.
    """
    store = repository_of(engine).store
    others: list[str] = []
    for head in await _heads(store, await _first(store, thread_id)):
        if head.thread_id != but and branch_name(head.thread_id) is not None:
            others.append(head.thread_id)
    labels = (await said_around(store, others))[0].labels
    for other in others:
        if called(other, labels.get(other, NO_LABELS)) == called_like(name):
            raise InvalidInput(
                f"there is a branch called {checks.shown(name)} already, {checks.shown(other)}, and nobody could tell "
                "the two apart; choose another name, or rename or delete that one first"
            )


async def _first(store: Store, thread_id: str) -> str:
    """Return the thread that a family began with, or the first one that is still there."""
    for _ in range(_DEPTH_MAX):
        thread = await _thread(store, thread_id)
        if thread is None or thread.origin is None or await _thread(store, thread.origin.thread_id) is None:
            break
        thread_id = thread.origin.thread_id
    return thread_id


async def _heads(store: Store, first: str) -> list[Key]:
    """Return the heads of a thread and of all that came from it."""
    try:
        newest = await store.newest(first, 0, branches=True, without=TASK_NAMESPACE)
        keys = newest.heads if newest is not None else frozenset()
    except CheckpointCorrupted:
        keys = frozenset()
        for known in (await threads_around(store, first, branches=True)).values():
            keys |= known.heads
    return [key for key in keys if not key.namespace]


async def _thread(store: Store, thread_id: str) -> Thread | None:
    """Return what is known of a thread; None if it is not there, or cannot be read: whoever opens it is told."""
    try:
        return await store.thread(thread_id, brief=True)
    except CheckpointCorrupted:
        return None


async def _origins(store: Store, thread_id: str, names: Sequence[str]) -> Mapping[str, Key]:
    """Return where the threads of a family began, as far as that can be read."""
    if isinstance(store, ReadsFamilies):
        with contextlib.suppress(CheckpointCorrupted):
            return await store.origins(thread_id)
    found: dict[str, Key] = {}
    for name in names:
        thread = await _thread(store, name)
        if thread is not None and thread.origin is not None:
            found[name] = thread.origin
    return found


def _described(key: Key, head: Loaded | None, labels: Labels, origin: Key | None) -> dict[str, Any]:
    """Return a thread of a family; without a `head` that can be read nobody knows which step it has come to."""
    record = head.stored.record if head is not None else None
    return {
        "thread_id": key.thread_id,
        "name": called(key.thread_id, labels),
        "is_branch": branch_name(key.thread_id) is not None,
        "archived": labels.is_archived,
        "origin": place_ref(origin),
        "id": key.checkpoint_id,
        "step": record.step if record is not None else None,
        "updated_at": record.created_at if record is not None else "",
    }
