"""Into the middle of a history that is one straight line, as most are: no index is needed, and nothing is gone through.

The row above is found by counting, and the only line that leads on from it is its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from everstep.errors import CheckpointCorrupted
from everstep.repository.around_damage import readable
from everstep.runtime import checks
from everstep.stores.protocol import Query, Store, Stored
from everstep.views.history import Begin
from everstep.views.listing import Listing
from everstep.views.reading import head_of, repository_of

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine


async def straight(engine: CheckpointEngine, thread_id: str, offset: int, *, branches: bool = True) -> Begin | None:
    """Return where a page behind the first `offset` rows begins, if they are one straight line; None if not."""
    store = repository_of(engine).store
    listing = Listing(store, checks.thread_id(thread_id), hidden=False, branches=branches)
    await listing.open(0)
    head = await head_of(store, thread_id)
    if offset < 1 or head is None or len(listing.heads) != 1:
        return None
    # The only head is that of the thread itself: no other namespace has rows. Counting in one is far quicker.
    namespace = head.record.key.namespace
    try:
        row = await _row_above(store, thread_id, namespace, head.seq, offset)
    except CheckpointCorrupted:
        # Whoever goes through all rows comes past it.
        return None
    if row is None or row.seq == row.segment or row.segment != head.segment:
        return None
    # If as many rows of its segment are that new, then all the rows above are of its segment, and follow one another.
    own = Query(thread_id=thread_id, namespace=namespace, segment=row.segment, after_seq=row.seq - 1)
    if await store.count(own) != offset:
        return None
    parent = row.record.parents[0].checkpoint_id if row.record.parents else ""
    return Begin(row.seq, [[0, row.segment, row.seq - 1, parent, False]])


async def _row_above(store: Store, thread_id: str, namespace: str, newest: int, offset: int) -> Stored | None:
    """Return the last of the first `offset` rows of a namespace."""
    # Where nobody else wrote meanwhile the numbers are without gaps: then counting is enough, which is far quicker.
    guess = Query(thread_id=thread_id, namespace=namespace, after_seq=newest - offset)
    if await store.count(guess) == offset:
        found = await store.list_checkpoints(replace(guess, order="oldest", limit=1))
    else:
        behind = Query(thread_id=thread_id, namespace=namespace, offset=offset - 1, limit=1)
        found = await store.list_checkpoints(behind)
    return found[0] if found else None


async def place_of(engine: CheckpointEngine, thread_id: str, checkpoint_id: str) -> int | None:
    """Return how many rows of a thread and its branches are above a checkpoint; None if it is not among them."""
    store = repository_of(engine).store
    listing = Listing(store, checks.thread_id(thread_id), hidden=False, branches=True)
    await listing.open(0)
    found = [key for key in await store.find(checks.checkpoint_id(checkpoint_id)) if key.thread_id in listing.threads]
    loaded = (await readable(store, found[:1])).loaded.get(found[0]) if found else None
    # What cannot be read has a place that nobody knows.
    if loaded is None or loaded.stored.hidden:
        return None
    above = 0
    for name, namespace in {key[:2] for key in listing.heads}:
        above += await store.count(Query(thread_id=name, namespace=namespace, after_seq=loaded.stored.seq))
    return above
