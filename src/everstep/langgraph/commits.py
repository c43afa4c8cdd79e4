"""Checkpoints and pending writes on their way into a store, counted in the figures of the public call under way.

A store says how many bytes a checkpoint has added. Of writes it says nothing, so all that is sent counts, also what the
store has already.
"""

from __future__ import annotations

from collections.abc import Sequence

from everstep.runtime import calls
from everstep.stores.protocol import BaseRef, Key, Object, Store, Stored, Write


def counted(stored: Stored | None, objects: Sequence[Object]) -> Stored:
    """Return the checkpoint that a commit has made of these objects, and count it."""
    if stored is None:
        raise RuntimeError("the store returned no checkpoint for a change that makes one")
    calls.added(stored.added_bytes, len(objects))
    return stored


async def send_writes(
    store: Store, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
) -> None:
    """Attach writes to a checkpoint. Objects that are not sent must be stored with `base`: if it is gone, BaseGone."""
    await store.put_writes(key, writes, objects, base)
    size = sum([len(write.children) + len(write.body) for write in writes])
    size += sum([len(made.children) + len(made.body) for made in objects])
    calls.added(size, len(objects))
