"""Who wrote this: the checkpoints of a thread in which the value at a path changed, newest first."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from everstep.errors import InvalidInput
from everstep.history.merge_base import root_to_show
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.stores.protocol import Key, Stored
from everstep.types import MISSING
from everstep.values import codec
from everstep.values.tree import Node
from everstep.values.walk import Need, Walker, bare, together
from everstep.views import rows
from everstep.views.changes import Room, kind_of_change
from everstep.views.differences import first_parents, reader_of
from everstep.views.history import look
from everstep.views.listing import Listing
from everstep.views.paths import parsed, pointer
from everstep.views.reading import number_of_cursor, repository_of

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

# A value that never changed would otherwise be looked for through all of history in one answer.
SCANNED_MAX = 5000
_BATCH = 200
_VALUE_BYTES_MAX = 4000
_TOPS = {"messages": 0, "state": 1, "tools_result": 2}


async def history_of(
    engine: CheckpointEngine, thread_id: str, path: str, *, limit: int = 50, cursor: str | None = None
) -> dict[str, Any]:
    """Return the checkpoints of a thread that changed what stands at a path, newest first, with both values.

    Each is compared with its first parent. Up to 5,000 are looked at; `cursor` leads on from there.
    """
    thread_id = checks.thread_id(thread_id)
    parts = parsed(path)
    if not parts or parts[0] not in _TOPS:
        raise InvalidInput(f"{checks.shown(path)} is not in messages, state or tools_result")
    limit = min(max(1, checks.count(limit, "limit")), 500)
    repository = repository_of(engine)
    listing = Listing(repository.store, thread_id, hidden=False, branches=False)
    await listing.open(_BATCH, number_of_cursor(cursor, "blame"))
    if not listing.exists:
        # This says that there is no such thread, and which one may be meant.
        await engine.resolve("@", thread_id=thread_id)
    found: list[dict[str, Any]] = []
    room = Room(_VALUE_BYTES_MAX)
    looked = 0
    last: int | None = None
    is_over = False
    while len(found) < limit and looked < SCANNED_MAX and not is_over:
        listed = [each for each in await listing.take(_BATCH) if not each.record.key.namespace]
        is_over = not listed
        for stored, before, after in await _changed(repository, listed, parts):
            last = stored.seq
            looked += 1
            if before is not after:
                found.append(await _entry(repository, stored, before, after, room, listing.heads, thread_id))
                if len(found) == limit:
                    break
    return {
        "thread_id": thread_id,
        "path": pointer(parts),
        "changes": found,
        "looked_at": looked,
        "cursor": None if is_over or last is None else str(last),
    }


async def _entry(
    repository: Repository,
    stored: Stored,
    before: Any,
    after: Any,
    room: Room,
    heads: frozenset[Key],
    thread_id: str,
) -> dict[str, Any]:
    seen = (await look(repository, [stored])).seen.get(stored.record.key, rows.NOTHING)
    return {
        **rows.row_of(stored, seen, heads, thread_id),
        "op": kind_of_change(before, after),
        "before": room.shown(before),
        "after": room.shown(after),
        "words": room.words(before, after),
    }


async def _changed(
    repository: Repository, listed: Sequence[Stored], parts: Sequence[str]
) -> list[tuple[Stored, Any, Any]]:
    """Return checkpoints with the value at a path before and after; the same object twice where nothing changed."""
    keys = [each.record.key for each in listed]
    # What was removed since it was listed is not there any more.
    whole = [loaded.stored for loaded in await repository.store.read_many(keys)]
    if not whole:
        return []
    parents = await first_parents(repository, whole)
    # One walker for all of them: what checkpoints share is read once.
    walker = Walker((), reader_of(whole[0].record.kind))
    everyone = {each.record.key: each for each in [*whole, *parents.values()]}
    needs = [_node_at(walker, each, parts) for each in everyone.values()]
    nodes = dict(zip(everyone, await repository.walk(together(needs), [whole[0].family]), strict=True))
    differing = _differing(whole, nodes)
    found: dict[Key, tuple[Any, Any]] = {}
    if differing:
        pairs = list(chain.from_iterable(differing.values()))
        values = iter(await repository.walk(_values(walker, pairs), [whole[0].family], walker.objects))
        for key in differing:
            pair = next(values), next(values)
            if not _is_same(*pair):
                found[key] = pair
    return [(each, *found.get(each.record.key, (None, None))) for each in whole]


def _differing(whole: Sequence[Stored], nodes: Mapping[Key, Node | None]) -> dict[Key, tuple[Node | None, Node | None]]:
    """Return the nodes before and after, of the checkpoints where they are not the same."""
    differing: dict[Key, tuple[Node | None, Node | None]] = {}
    for stored in whole:
        key = stored.record.key
        before = None
        if stored.record.parents:
            first = stored.record.parents[0]
            if first not in nodes:
                # Retention took the one before, so nobody knows whether it changed here.
                continue
            before = nodes[first]
        if before != nodes[key]:
            differing[key] = (before, nodes[key])
    return differing


def _is_same(before: Any, after: Any) -> bool:
    """Whether two values are the same though they are stored in other pieces."""
    if before is MISSING or after is MISSING:
        return before is after
    try:
        return codec.DEFAULT.pack(before) == codec.DEFAULT.pack(after)
    except Exception:  # an object of a class that is not known here
        return bool(before == after)


def _values(walker: Walker, nodes: Sequence[Node | None]) -> Generator[Any, Any, list[Any]]:
    return (yield from walker.read(list(nodes), MISSING))


def _node_at(walker: Walker, stored: Stored, parts: Sequence[str]) -> Need[Node | None]:
    """Return the node at a path; None if there is nothing."""
    node: Node | None = (yield from walker.values(root_to_show(stored.record)))[_TOPS[parts[0]]]
    for part in parts[1:]:
        if node is None:
            return None
        node = yield from _inside(walker, node, part)
    if node is None:
        return None
    return bare(node)


def _inside(walker: Walker, node: Node, part: str) -> Need[Node | None]:
    entries = yield from walker.entries(node)
    if entries is not None:
        found = entries.nodes.get(codec.pack(part))
        # A pointer is text; the key may have been a number.
        if found is None and part.lstrip("-").isdigit():
            found = entries.nodes.get(codec.pack(int(part)))
        return found
    items = yield from walker.list_of(node)
    if items is None or not part.isdigit() or int(part) >= items.length:
        return None
    return (yield from walker.all_items(items))[int(part)]
