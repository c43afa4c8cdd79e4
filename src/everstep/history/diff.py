"""What changed between two checkpoints, path by path. Pure; asks for objects as `values.walk` says.

Equal nodes are never opened: the cost is that of what changed, or of the value in pieces in which it is. A list is
matched by content first, and only what finds no match is compared item by item; its index counts from the end where
that saves opening what stands before.
The law: nothing is reported exactly when the values are equal. So where two different containers show no difference
inside (the order of keys), the container itself is reported.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from everstep.history.message_facts import Facts, Name, id_of, name_path, unique_names
from everstep.reports import Difference
from everstep.types import MISSING
from everstep.values.codec import Codec
from everstep.values.tree import Node
from everstep.values.walk import (
    Entries,
    Items,
    Need,
    Root,
    Stretch,
    Walker,
    bare,
    key_path,
    match,
    stretches,
    together,
)


class _Change(NamedTuple):
    """A difference whose values have not been read yet."""

    path: str
    before: Node | None
    after: Node | None

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


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
    changes = [change for part in found for change in part]
    values = yield from walker.read([node for change in changes for node in change[1:]], MISSING)
    pairs = zip(values[::2], values[1::2], strict=True)
    return [Difference(change.path, change.kind, *pair) for change, pair in zip(changes, pairs, strict=True)]


def _value(walker: Walker, path: str, a: Node | None, b: Node | None) -> Need[list[_Change]]:
    if a == b:
        return []
    if a is None or b is None:
        return [_Change(path, a, b)]
    changes: list[_Change] = []
    mappings = yield from together([walker.entries(a), walker.entries(b)])
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
    keys = [key for key in a.nodes | b.nodes if a.nodes.get(key) != b.nodes.get(key)]
    needs = [_value(walker, key_path(path, key), a.nodes.get(key), b.nodes.get(key)) for key in keys]
    return [change for changes in (yield from together(needs)) for change in changes]


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


def _list(walker: Walker, path: str, a: Items, b: Items, *, named: bool = False) -> Need[list[_Change]]:
    lists, (matches,) = yield from walker.align(a, b)
    a, b = lists
    loose = stretches(matches, len(a.parts), len(b.parts))
    a_names: dict[int, Name] = {}
    b_names: dict[int, Name] = {}
    if named:
        a_places = [stretch.a for stretch in loose]
        b_places = [stretch.b for stretch in loose]
        facts = yield from together([_facts(walker, a, a_places), _facts(walker, b, b_places)])
        a_names, b_names = unique_names(facts)
    pairs: list[_Pair] = []
    for stretch in loose:
        pairs += _paired(stretch, a_names, b_names)
    gone = [pair.a for pair in pairs if pair.a is not None and pair.b is None]
    here = [pair.b for pair in pairs if pair.b is not None]
    a_paths, b_paths = yield from together(
        [_paths(walker, path, a, gone, a_names), _paths(walker, path, b, here, b_names)]
    )
    needs: list[Need[list[_Change]]] = []
    for pair in pairs:
        before = None if pair.a is None else a.parts[pair.a].node
        after = None if pair.b is None else b.parts[pair.b].node
        # What is still there is named by its new place.
        where = b_paths[pair.b] if pair.b is not None else a_paths[pair.a or 0]
        needs.append(_value(walker, where, before, after))
    changes: list[_Change] = []
    for found in (yield from together(needs)):
        changes += found
    return changes


def _facts(walker: Walker, items: Items, stretches: list[range]) -> Need[dict[int, Facts]]:
    places = [place for stretch in stretches for place in stretch]
    nodes = list(dict.fromkeys([items.parts[place].node for place in places]))  # equal ones are looked at once
    found: list[Facts] = yield from together([id_of(walker, node) for node in nodes])
    facts = dict(zip(nodes, found, strict=True))
    return {place: facts[items.parts[place].node] for place in places}


def _paired(stretch: Stretch, a_names: dict[int, Name], b_names: dict[int, Name]) -> list[_Pair]:
    """Pair the items of a stretch: by name, then one by one where as many nameless ones stand on both sides."""
    a_tokens = [a_names.get(place, ("a", place)) for place in stretch.a]
    b_tokens = [b_names.get(place, ("b", place)) for place in stretch.b]
    pairs: list[_Pair] = []
    matches = match(a_tokens, b_tokens)
    end = {len(stretch.a): len(stretch.b)}
    a_start = b_start = 0
    for a_end, b_end in (matches | end).items():
        old = stretch.a[a_start:a_end]
        new = stretch.b[b_start:b_end]
        are_nameless = a_names.keys().isdisjoint(old) and b_names.keys().isdisjoint(new)
        if len(old) == len(new) and are_nameless:
            pairs += [_Pair(*both) for both in zip(old, new, strict=True)]
        else:
            pairs += [_Pair(place, None) for place in old]
            pairs += [_Pair(None, place) for place in new]
        if a_end in matches:
            pairs.append(_Pair(stretch.a[a_end], stretch.b[b_end]))
        a_start = a_end + 1
        b_start = b_end + 1
    return pairs


def _paths(walker: Walker, path: str, items: Items, places: list[int], names: dict[int, Name]) -> Need[dict[int, str]]:
    indexes = yield from walker.positions(items, [place for place in places if place not in names])
    paths: dict[int, str] = {}
    for place in places:
        if place in names:
            paths[place] = name_path(names[place])
        else:
            paths[place] = f"{path}[{indexes[place]}]"
    return paths
