"""What a message is known by, and which tool calls it makes and answers. Pure; shared by diff and merge.

A message is any value in the list of messages; most are mappings in the shape of one framework or another. Nothing
here may fail because a message looks different: what is not understood has no name, no calls and no answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from everstep.values import codec
from everstep.values.tree import Node
from everstep.values.walk import Entries, Need, Walker, shown, together, whole

Name = tuple[str, str | int]
"""("id", its id) or ("tool_call_id", the call it answers)."""

_KEYS = {name: codec.pack(name) for name in ("id", "type", "content", "tool_calls", "tool_call", "tool_call_id")}
_KEYS |= {name: codec.pack(name) for name in ("tool_use_id", "call_id")}


class Facts(NamedTuple):
    """What merging needs to know of a message."""

    names: tuple[Name, ...] = ()
    """What it may be known by, the best first."""
    calls: frozenset[str | int] = frozenset()
    """The ids of the tool calls it makes."""
    answers: tuple[str | int, ...] = ()
    """The ids of the tool calls whose results it holds."""


def facts_of(walker: Walker, message: Node) -> Need[Facts]:
    """Look into a message, as far as needed."""
    entries = yield from walker.entries(message)
    if entries is None:
        return Facts()
    ident, listed, single, used, item, answered, results, output = yield from together(
        [
            _idents(walker, entries, "id"),
            _listed(walker, entries),
            _inside(walker, entries),
            _blocks(walker, entries, "tool_use", "id"),
            _typed(walker, entries, "function_call"),
            _idents(walker, entries, "tool_call_id"),
            _blocks(walker, entries, "tool_result", "tool_use_id"),
            _typed(walker, entries, "function_call_output"),
        ]
    )
    answers = (*answered, *results, *output)
    names = [("id", name) for name in ident] + [("tool_call_id", call) for call in answers[:1]]
    return Facts(tuple(names), frozenset([*listed, *single, *used, *item]), answers)


def id_of(walker: Walker, message: Node) -> Need[Facts]:
    """Look only for the id of a message."""
    entries = yield from walker.entries(message)
    if entries is None:
        return Facts()
    ident = yield from _idents(walker, entries, "id")
    return Facts(tuple(("id", name) for name in ident))


def unique_names(lists: Iterable[Mapping[int, Facts]]) -> list[dict[int, Name]]:
    """Return, for each list, the best names of its messages, but for names that occur twice in some list.

    Only what was looked at counts: to look for a twin among messages that nobody changed would mean reading them all.
    """
    lists = list(lists)
    twice: set[Name] = set()
    for facts in lists:
        counts = Counter(name for fact in facts.values() for name in fact.names)
        twice |= {name for name, count in counts.items() if count > 1}
    return [_best_names(facts, twice) for facts in lists]


def _best_names(facts: Mapping[int, Facts], twice: Collection[Name]) -> dict[int, Name]:
    """Return the first name of each message that no other has."""
    best: dict[int, Name] = {}
    for place, fact in facts.items():
        name = next((name for name in fact.names if name not in twice), None)
        if name is not None:
            best[place] = name
    return best


def name_path(name: Name) -> str:
    """Return the path of a message by its name: `messages['m3']`; what could be taken for an index says what it is."""
    kind, ident = name
    return f"messages[{shown(ident)}]" if kind == "id" and type(ident) is str else f"messages[{kind}={shown(ident)}]"


def _idents(walker: Walker, entries: Entries, key: str) -> Need[list[str | int]]:
    """Return the string or integer under `key`, in a list that is empty if there is none."""
    node = entries.nodes.get(_KEYS[key])
    if node is None:
        return []
    packed = whole((yield from walker.resolve(node)))
    if packed is None or codec.is_list(packed) or codec.is_mapping(packed) or codec.untagged(packed):
        return []
    value = codec.unpack(packed)
    return [value] if (type(value) is str and value) or type(value) is int else []


def _inside(walker: Walker, entries: Entries) -> Need[list[str | int]]:
    """Return the id in `tool_call: {"id"}`."""
    node = entries.nodes.get(_KEYS["tool_call"])
    call = (yield from walker.entries(node)) if node is not None else None
    return (yield from _idents(walker, call, "id")) if call is not None else []


def _typed(walker: Walker, entries: Entries, kind: str) -> Need[list[str | int]]:
    """Return the `call_id` of an item that is of this type."""
    found = yield from _idents(walker, entries, "type")
    return (yield from _idents(walker, entries, "call_id")) if found == [kind] else []


def _listed(walker: Walker, entries: Entries) -> Need[list[str | int]]:
    """Return the ids in `tool_calls: [{"id"}]`."""
    calls = yield from _mappings(walker, entries.nodes.get(_KEYS["tool_calls"]))
    found = yield from together([_idents(walker, call, "id") for call in calls])
    return [ident for idents in found for ident in idents]


def _blocks(walker: Walker, entries: Entries, kind: str, key: str) -> Need[list[str | int]]:
    """Return what stands under `key` in the blocks of `content` that are of this kind."""
    blocks = yield from _mappings(walker, entries.nodes.get(_KEYS["content"]))
    kinds = yield from together([_idents(walker, block, "type") for block in blocks])
    chosen = [block for block, found in zip(blocks, kinds, strict=True) if found == [kind]]
    found = yield from together([_idents(walker, block, key) for block in chosen])
    return [ident for idents in found for ident in idents]


def _mappings(walker: Walker, node: Node | None) -> Need[list[Entries]]:
    """Return the mappings in a list; nothing if it is no list."""
    found = (yield from walker.list_of(node)) if node is not None else None
    if found is None:
        return []
    items = yield from walker.all_items(found)
    opened = yield from together([walker.entries(item) for item in items])
    return [entries for entries in opened if entries is not None]
