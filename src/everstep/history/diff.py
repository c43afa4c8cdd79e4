"""What changed between two checkpoints, path by path. Pure; asks for objects as `values.walk` says.

Equal nodes are never opened. So a comparison costs as much as what changed, or as the value in pieces that holds the
change. A list is matched by content first, and only what finds no match is compared item by item. Its index counts
from the end where that saves opening what comes before.
The law: nothing is reported exactly when the values are equal. So where two different containers show no difference
inside (the order of keys), the container itself is reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, repeat
from typing import Literal, NamedTuple

from everstep.history.message_facts import Facts, Name, id_of, name_path, unique_names
from everstep.reports import Difference
from everstep.types import MISSING
from everstep.values.codec import Codec
from everstep.values.tree import Node
from everstep.values.walk import Entries, Items, Need, Root, Stretch, Walker, bare, key_path, match, stretches, together


class _Change(NamedTuple):
    """A difference whose values have not been read yet."""

    path: str
    before: Node | None
    after: Node | None

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        if self.before is None:
            return "added"
        if self.after is None:
            return "removed"
        return "changed"


def compare(a: Root, b: Root, codec: Codec | None = None) -> Need[list[Difference]]:
    """Return what changed from `a` to `b`: messages, state, tools_result, each in its own order."""
    walker = Walker([a, b], codec)
    before, after = yield from together([walker.values(a), walker.values(b)])
    found = yield from together(
        [
            _messages(walker, bare(before.messages), bare(after.messages)),
            _value(walker, "state", bare(before.state), bare(after.state)),
            _value(walker, "tools_result", bare(before.tools_result), bare(after.tools_result)),
        ]
    )
    changes = _joined(found)
    nodes: list[Node | None] = []
    for change in changes:
        nodes += (change.before, change.after)
    # All values are read at once in the end: one reading of the store, however many paths differ.
    values = yield from walker.read(nodes, MISSING)
    differences: list[Difference] = []
    for change, old, new in zip(changes, values[::2], values[1::2], strict=True):
        differences.append(Difference(change.path, change.kind, old, new))
    return differences


def _joined(found: Iterable[list[_Change]]) -> list[_Change]:
    return list(chain.from_iterable(found))


def _value(walker: Walker, path: str, a: Node | None, b: Node | None) -> Need[list[_Change]]:
    if a == b:
        return []
    if a is None or b is None:
        return [_Change(path, a, b)]
    changes: list[_Change] = []
    mappings = yield from together([walker.entries(a), walker.entries(b)])
    # Only containers of the same kind are opened. A list that became a mapping has changed as a whole.
    if mappings[0] is not None and mappings[1] is not None:
        changes = yield from _mapping(walker, path, mappings[0], mappings[1])
    else:
        lists = yield from together([walker.list_of(a), walker.list_of(b)])
        if lists[0] is not None and lists[1] is not None:
            changes = yield from _list(walker, path, lists[0], lists[1])
    return changes or (yield from _unlike(walker, path, a, b))


def _unlike(walker: Walker, path: str, a: Node, b: Node) -> Need[list[_Change]]:
    """Report two nodes as a whole, unless they are the same value: its pieces depend on what it was before."""
    before, after = yield from walker.packed([a, b])
    return [] if before == after else [_Change(path, a, b)]


def _mapping(walker: Walker, path: str, a: Entries, b: Entries) -> Need[list[_Change]]:
    needs: list[Need[list[_Change]]] = []
    for key in a.nodes | b.nodes:
        before = a.nodes.get(key)
        after = b.nodes.get(key)
        # Most keys are equal, and to write down a path costs time.
        if before != after:
            needs.append(_value(walker, key_path(path, key), before, after))
    return _joined((yield from together(needs)))


def _messages(walker: Walker, a: Node, b: Node) -> Need[list[_Change]]:
    if a == b:
        return []
    before, after = yield from together([walker.messages(a), walker.messages(b)])
    changes = yield from _list(walker, "messages", before, after, named=True)
    return changes or (yield from _unlike(walker, "messages", a, b))


class _Pair(NamedTuple):
    """Places in the parts of two lists: an item before and after, or None where it is new or gone."""

    a: int | None
    b: int | None


_Names = dict[int, Name]
"""The names of items, by their places in the parts of a list."""


def _list(walker: Walker, path: str, a: Items, b: Items, *, named: bool = False) -> Need[list[_Change]]:
    lists, (matches,) = yield from walker.align(a, b)
    a, b = lists
    loose = stretches(matches, len(a.parts), len(b.parts))
    a_names: _Names = {}
    b_names: _Names = {}
    if named:
        a_names, b_names = yield from _names(walker, a, b, loose)
    pairs: list[_Pair] = []
    for stretch in loose:
        pairs += _paired(stretch, a_names, b_names)
    return (yield from _pair_changes(walker, path, (a, a_names), (b, b_names), pairs))


def _pair_changes(
    walker: Walker, path: str, a: tuple[Items, _Names], b: tuple[Items, _Names], pairs: list[_Pair]
) -> Need[list[_Change]]:
    """Compare the items of each pair, under the path of the item."""
    a_items, a_names = a
    b_items, b_names = b
    # What is still there is named by its new place.
    gone: list[int] = []
    here: list[int] = []
    for pair in pairs:
        if pair.b is not None:
            here.append(pair.b)
        elif pair.a is not None:
            gone.append(pair.a)
    a_paths, b_paths = yield from together(
        [_paths(walker, path, a_items, gone, a_names), _paths(walker, path, b_items, here, b_names)]
    )
    needs: list[Need[list[_Change]]] = []
    for pair in pairs:
        where = path
        if pair.b is not None:
            where = b_paths[pair.b]
        elif pair.a is not None:
            where = a_paths[pair.a]
        needs.append(_value(walker, where, _node_at(a_items, pair.a), _node_at(b_items, pair.b)))
    return _joined((yield from together(needs)))


def _node_at(items: Items, place: int | None) -> Node | None:
    return items.parts[place].node if place is not None else None


def _names(walker: Walker, a: Items, b: Items, loose: list[Stretch]) -> Need[list[_Names]]:
    """Return the names of the items that found no match by content, in both lists."""
    a_places: list[int] = []
    b_places: list[int] = []
    for stretch in loose:
        a_places += stretch.a
        b_places += stretch.b
    facts = yield from together([_facts(walker, a, a_places), _facts(walker, b, b_places)])
    return unique_names(facts)


def _facts(walker: Walker, items: Items, places: list[int]) -> Need[dict[int, Facts]]:
    # Equal messages are one node, and are looked at once.
    nodes = list(dict.fromkeys([items.parts[place].node for place in places]))
    found: list[Facts] = yield from together([id_of(walker, node) for node in nodes])
    facts = dict(zip(nodes, found, strict=True))
    return {place: facts[items.parts[place].node] for place in places}


def _paired(stretch: Stretch, a_names: _Names, b_names: _Names) -> list[_Pair]:
    """Pair the items of a stretch: by name, then one by one where both sides have as many nameless ones."""
    # What has no name gets a token that nothing equals.
    a_tokens = [a_names.get(place, ("a", place)) for place in stretch.a]
    b_tokens = [b_names.get(place, ("b", place)) for place in stretch.b]
    pairs: list[_Pair] = []
    matches = match(a_tokens, b_tokens)
    end = {len(stretch.a): len(stretch.b)}
    a_start = b_start = 0
    # Each match ends a stretch of items without one; the end of the lists ends the last of them.
    for a_end, b_end in (matches | end).items():
        old = stretch.a[a_start:a_end]
        new = stretch.b[b_start:b_end]
        are_nameless = a_names.keys().isdisjoint(old) and b_names.keys().isdisjoint(new)
        if len(old) == len(new) and are_nameless:
            pairs += map(_Pair, old, new)
        else:
            pairs += map(_Pair, old, repeat(None))
            pairs += map(_Pair, repeat(None), new)
        if a_end in matches:
            pairs.append(_Pair(stretch.a[a_end], stretch.b[b_end]))
        a_start = a_end + 1
        b_start = b_end + 1
    return pairs


def _paths(walker: Walker, path: str, items: Items, places: list[int], names: _Names) -> Need[dict[int, str]]:
    indexes = yield from walker.positions(items, [place for place in places if place not in names])
    paths: dict[int, str] = {}
    for place in places:
        if place in names:
            paths[place] = name_path(names[place])
        else:
            paths[place] = f"{path}[{indexes[place]}]"
    return paths
