"""Lists of checkpoints around those that cannot be read: one of them spoils the answer about all that stand beside it.

A damaged one keeps its place in the list: its number is found by asking for ever fewer checkpoints, and what else a row
needs by counting, which opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.stores.newest import descent
from everstep.stores.protocol import Key, Loaded, Query, Record, Search, Store, Stored

# More than any store has given.
_SEQ_MAX = 1 << 62
_BRANCHES_MAX = 1000
_PAGE = 1000


class Page(NamedTuple):
    """Some checkpoints, newest first."""

    listed: Sequence[Stored]
    is_over: bool
    """Whether nothing is below them."""
    last: int | None
    """The number of the last one that was looked at."""
    damage: CheckpointCorrupted | None = None
    """Why the last one could not be read, if it could not."""


async def list_around(store: Store, query: Query, namespaces: Iterable[str]) -> Page:
    """Return what a query lists, newest first, down to the first that cannot be read: that one is the last.

    `namespaces` are those that the thread is known to have. If nothing can be listed, what the store says is raised.
    """
    try:
        return _page(query, await store.list_checkpoints(query))
    except CheckpointCorrupted as exc:
        error = exc
    seq = await _newest_damaged(store, query)
    if seq is None:
        raise error
    above = await store.list_checkpoints(replace(query, after_seq=seq))
    if query.limit is not None and len(above) >= query.limit:
        # A store may look further than it was asked to, and then meets what does not belong to this page.
        return _page(query, above)
    own = replace(query, after_seq=seq - 1, before_seq=seq + 1)
    try:
        await store.list_checkpoints(own)
    except CheckpointCorrupted as exc:
        error = exc
    placed = await _stand_in(store, own, seq, error, above, namespaces)
    if placed.hidden and query.hidden == "no":
        # A store may look at what is hidden before it leaves that out.
        return Page(above, is_over=False, last=seq)
    return Page([*above, placed], is_over=False, last=seq, damage=error)


class Around(NamedTuple):
    """All that a query lists, newest first."""

    listed: Sequence[Stored]
    """Each that cannot be read has something in its place."""
    damage: Mapping[int, CheckpointCorrupted]
    """Why those could not be read, by their numbers."""
    trouble: CheckpointCorrupted | None = None
    """Why the list ends where it does, if that is not its end."""

    @property
    def left_out(self) -> int:
        """How many could not be read, as far as that is known."""
        return len(self.damage) + (self.trouble is not None)


async def list_all_around(store: Store, query: Query, namespaces: Iterable[str]) -> Around:
    """Return all that a query lists, in pages, with something in the place of what cannot be read."""
    names = list(namespaces)
    listed: list[Stored] = []
    damage: dict[int, CheckpointCorrupted] = {}
    query = replace(query, limit=_PAGE)
    while True:
        try:
            page = await list_around(store, query, names)
        except CheckpointCorrupted as exc:
            return Around(listed, damage, exc)
        listed += page.listed
        if page.last is None:
            return Around(listed, damage)
        if page.damage is not None:
            damage[page.last] = page.damage
        if page.is_over:
            return Around(listed, damage)
        query = replace(query, before_seq=page.last)


def _page(query: Query, listed: Sequence[Stored]) -> Page:
    is_over = query.limit is None or len(listed) < query.limit
    return Page(listed, is_over, listed[-1].seq if listed else None)


async def _newest_damaged(store: Store, query: Query) -> int | None:
    """Return the number of the newest one that cannot be read; None: not even that nothing is there can be."""
    # All above `high` can be read, and what is above `low` cannot.
    high = await _top(store, query)
    if not await _is_readable(store, query, high):
        return None
    # What is damaged often lies side by side, and then is near.
    step = 1
    low = max(0, high - step)
    while low > 0 and await _is_readable(store, query, low):
        step *= 2
        high, low = low, max(0, low - step)
    while high - low > 1:
        middle = (low + high) // 2
        if await _is_readable(store, query, middle):
            high = middle
        else:
            low = middle
    return high


async def _top(store: Store, query: Query) -> int:
    """Return a number above which nothing is listed."""
    if query.before_seq is not None:
        return query.before_seq - 1
    try:
        thread = await store.thread(query.thread_id or "", brief=True)
    except CheckpointCorrupted:
        return _SEQ_MAX
    return max(thread.newest.values(), default=_SEQ_MAX) if thread is not None else _SEQ_MAX


async def _is_readable(store: Store, query: Query, after: int) -> bool:
    try:
        await store.list_checkpoints(replace(query, after_seq=after))
    except CheckpointCorrupted:
        return False
    return True


async def _stand_in(
    store: Store, own: Query, seq: int, error: CheckpointCorrupted, above: Sequence[Stored], namespaces: Iterable[str]
) -> Stored:
    """Return what stands for a checkpoint that cannot be read: its place, and its name if that is known."""
    namespace = own.namespace or ""
    for name in namespaces if own.namespace is None else ():
        if await _is_one(store, replace(own, namespace=name, hidden="also")):
            namespace = name
    own = replace(own, namespace=namespace)
    beside = [*above[-1:], *await _one_below(store, own, seq)]
    segment = await _segment_of(store, own, seq, [neighbour.segment for neighbour in beside])
    family = beside[0].family if beside else ""
    name = error.checkpoint_id or f"damaged-{seq}"
    record = Record(Key(own.thread_id or "", namespace, name), 0, (), "", b"", b"", ())
    is_hidden = await _is_one(store, replace(own, hidden="only"))
    return Stored(record, seq, family, hidden=is_hidden, segment=segment)


async def _segment_of(store: Store, own: Query, seq: int, beside: Sequence[int]) -> int:
    """Return the segment of a checkpoint that cannot be read: one of those beside it, or one that it begins."""
    for segment in beside:
        try:
            if await store.count(replace(own, segment=segment, hidden="also", limit=None)):
                return segment
        except CheckpointCorrupted:
            # Such a store cannot tell without reading it. What stands between two of a segment is most likely of it.
            return segment if set(beside) == {segment} else seq
    return seq


async def _one_below(store: Store, own: Query, seq: int) -> Sequence[Stored]:
    try:
        return await store.list_checkpoints(replace(own, after_seq=None, before_seq=seq, hidden="also", limit=1))
    except CheckpointCorrupted:
        return ()


async def _is_one(store: Store, query: Query) -> bool:
    try:
        return await store.count(replace(query, limit=None)) == 1
    except CheckpointCorrupted:
        return False


# -- some of them, by name


class Readable(NamedTuple):
    """What could be read of some checkpoints, and why the others could not."""

    loaded: dict[Key, Loaded]
    damage: dict[Key, CheckpointCorrupted]


async def readable(store: Store, keys: Sequence[Key], *, writes: bool = False) -> Readable:
    """Return those of these checkpoints that are stored, around those that cannot be read."""
    if not keys:
        return Readable({}, {})
    try:
        loaded = await store.read_many(keys, writes=writes)
    except CheckpointCorrupted as exc:
        if len(keys) == 1:
            return Readable({}, {keys[0]: exc})
    else:
        return Readable({each.stored.record.key: each for each in loaded}, {})
    # One of them is damaged, and has spoiled the answer about all: halves are tried until it stands alone.
    middle = len(keys) // 2
    first = await readable(store, keys[:middle], writes=writes)
    second = await readable(store, keys[middle:], writes=writes)
    return Readable({**first.loaded, **second.loaded}, {**first.damage, **second.damage})


# -- who is there


class Known(NamedTuple):
    """A thread, as far as anything of it can be read."""

    origin: Key | None
    heads: frozenset[Key]


async def threads_around(store: Store, thread_id: str, *, branches: bool) -> dict[str, Known]:
    """Return a thread and, if asked for, its branches, theirs, and so on, also where something of them is damaged."""
    found = {thread_id: await _known(store, thread_id)}
    if not branches:
        return found
    for name in await family_around(store, thread_id):
        if name not in found:
            found[name] = await _known(store, name)
    born: dict[str, list[str]] = {}
    for name, known in found.items():
        if known.origin is not None:
            born.setdefault(known.origin.thread_id, []).append(name)
        elif not known.heads and name.startswith(f"{thread_id}-branch-"):
            # Nothing but its name tells where it began.
            born.setdefault(thread_id, []).append(name)
    return {name: found[name] for name in descent(thread_id, born, found.__contains__)}


async def _known(store: Store, thread_id: str) -> Known:
    try:
        thread = await store.thread(thread_id, brief=True)
    except CheckpointCorrupted:
        return await _known_raw(store, thread_id)
    if thread is None:
        return Known(None, frozenset())
    return Known(thread.origin, frozenset(Key(thread_id, name, head[0]) for name, head in thread.heads.items()))


async def _known_raw(store: Store, thread_id: str) -> Known:
    """Return the same from the rows of the thread alone, which are not compared with one another."""
    try:
        raw = await store.raw(thread_id)
    except CheckpointCorrupted:
        raw = None
    if raw is None:
        return Known(None, frozenset())
    heads = [Key(thread_id, name, line.head) for name, line in raw.lines.items() if line.head is not None]
    return Known(raw.origin, frozenset(heads))


async def family_around(store: Store, thread_id: str) -> Sequence[str]:
    """Return the threads of a family, as far as anybody can tell."""
    try:
        raw = await store.raw(thread_id, family_threads=True)
    except CheckpointCorrupted:
        # Branches have the name of what they began from in theirs.
        hits = await store.search(Search(prefix=f"{thread_id}-branch-", limit=_BRANCHES_MAX))
        return [hit.position.thread_id for hit in hits]
    return raw.family_threads if raw is not None else ()
