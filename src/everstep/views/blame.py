"""Who wrote this: the checkpoints of a thread in which the value at a path changed, newest first."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput
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
from everstep.views.differences import reader_of
from everstep.views.history import look
from everstep.views.listing import Listing
from everstep.views.paths import parsed, pointer
from everstep.views.reading import number_of_cursor, repository_of, stored_by_key
from everstep.views.rows import damage_as_json
from everstep.views.texts import plain_text

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

    Each is compared with its first parent. Up to 5,000 are looked at; `cursor` leads on from there. Of those in
    `left_out` nobody can tell whether they changed it: they cannot be read, or what they are compared with cannot.
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
    left_out: list[dict[str, Any]] = []
    room = Room(_VALUE_BYTES_MAX)
    looked = 0
    last: int | None = None
    is_over = False
    while len(found) < limit and looked < SCANNED_MAX and not is_over:
        listed = [each for each in await listing.take(_BATCH) if not each.record.key.namespace]
        is_over = not listed
        compared = await _compared(repository, listed, listing.damage, parts)
        for stored in listed:
            last = stored.seq
            looked += 1
            key = stored.record.key
            if key in compared.damage:
                left_out.append(_left_out(stored, compared.damage[key]))
            elif key in compared.changed:
                before, after = compared.changed[key]
                found.append(await _entry(repository, stored, before, after, room, listing.heads, thread_id))
                if len(found) == limit:
                    break
    return {
        "thread_id": thread_id,
        "path": pointer(parts),
        "changes": found,
        "left_out": left_out,
        "damage": damage_as_json(_damage(thread_id, listing.trouble, len(left_out))),
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


def _left_out(stored: Stored, damage: CheckpointCorrupted) -> dict[str, Any]:
    """Return a checkpoint of which nobody can tell whether it changed the value, and why."""
    return {"id": stored.record.key.checkpoint_id, "reason": plain_text(str(damage.reason))}


def _damage(thread_id: str, trouble: CheckpointCorrupted | None, left_out: int) -> CheckpointCorrupted | None:
    """Return what to say of all that is left out; None if nothing is."""
    if trouble is not None or not left_out:
        return trouble
    what = f"{left_out:,} checkpoints are left out, since they or those before them cannot be read"
    if left_out == 1:
        what = "one checkpoint is left out, since it or the one before it cannot be read"
    return CheckpointCorrupted(what, thread_id=thread_id)


class _Compared(NamedTuple):
    """What became of a value in some checkpoints."""

    changed: dict[Key, tuple[Any, Any]]
    """Where it changed: the value before and after."""
    damage: dict[Key, CheckpointCorrupted]
    """Why nobody can tell."""


async def _compared(
    repository: Repository, listed: Sequence[Stored], damage: Mapping[int, CheckpointCorrupted], parts: Sequence[str]
) -> _Compared:
    """Return what became of a value in checkpoints, around those that are known to be damaged, and others."""
    known: dict[Key, CheckpointCorrupted] = {}
    others: list[Stored] = []
    for stored in listed:
        if stored.seq in damage:
            known[stored.record.key] = damage[stored.seq]
        else:
            others.append(stored)
    found = await _compared_around(repository, others, parts)
    return _Compared(found.changed, {**found.damage, **known})


async def _compared_around(repository: Repository, listed: Sequence[Stored], parts: Sequence[str]) -> _Compared:
    if not listed:
        return _Compared({}, {})
    try:
        return _Compared(await _changed(repository, listed, parts), {})
    except CheckpointCorrupted as exc:
        if len(listed) == 1:
            return _Compared({}, {listed[0].record.key: exc})
    # One of them is damaged, or its parent is: halves are tried until it stands alone.
    middle = len(listed) // 2
    first = await _compared_around(repository, listed[:middle], parts)
    second = await _compared_around(repository, listed[middle:], parts)
    return _Compared({**first.changed, **second.changed}, {**first.damage, **second.damage})


async def _changed(
    repository: Repository, listed: Sequence[Stored], parts: Sequence[str]
) -> dict[Key, tuple[Any, Any]]:
    """Return the value at a path before and after, of the checkpoints where it changed."""
    keys = [each.record.key for each in listed]
    # What was removed since it was listed is not there any more.
    whole = [loaded.stored for loaded in await repository.store.read_many(keys)]
    if not whole:
        return {}
    parents = await _first_parents(repository, whole)
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
    return found


async def _first_parents(repository: Repository, whole: Sequence[Stored]) -> dict[Key, Stored]:
    """Return the first parents of checkpoints that are stored and not among these."""
    wanted: set[Key] = set()
    for each in whole:
        wanted.update(each.record.parents[:1])
    return await stored_by_key(repository.store, sorted(wanted - {each.record.key for each in whole}))


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
