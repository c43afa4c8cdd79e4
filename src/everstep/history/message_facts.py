"""What a message is known by, and which tool calls it makes and answers. Pure; shared by diff and merge.

A message is any value in the list of messages; most are mappings in the shape of one framework or another. Nothing
here may fail because a message looks different: what is not understood has no name, no calls and no answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from everstep.values import codec
from everstep.values.tree import Node
from everstep.values.walk import Entries, Need, Walker, shown, together, whole

Name = tuple[str, str | int]
"""("id", its id) or ("tool_call_id", the call it answers)."""

# The keys by which frameworks name messages and calls: OpenAI, Anthropic and LangChain each have some of
# them.
_NAMES = ("id", "type", "content", "tool_calls", "tool_call", "tool_call_id", "tool_use_id", "call_id")
# Packed once: messages are looked at in their stored form, where keys are bytes.
_KEYS = {name: codec.pack(name) for name in _NAMES}

Idents = list[str | int]
"""Ids of messages or of tool calls."""


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
    idents, *found = yield from together(
        [
            _idents(walker, entries, "id"),
            # Calls, in the shapes of the frameworks that are known:
            _listed(walker, entries),
            _inside(walker, entries),
            _blocks(walker, entries, "tool_use", "id"),
            _typed(walker, entries, "function_call"),
            # Answers, likewise:
            _idents(walker, entries, "tool_call_id"),
            _blocks(walker, entries, "tool_result", "tool_use_id"),
            _typed(walker, entries, "function_call_output"),
        ]
    )
    calls = chain.from_iterable(found[:4])
    answers = tuple(chain.from_iterable(found[4:]))
    # A result without an id of its own is known by the call it answers.
    names = _names("id", idents) + _names("tool_call_id", answers[:1])
    return Facts(names, frozenset(calls), answers)


def _names(kind: str, idents: Iterable[str | int]) -> tuple[Name, ...]:
    return tuple((kind, ident) for ident in idents)


def id_of(walker: Walker, message: Node) -> Need[Facts]:
    """Look only for the id of a message."""
    entries = yield from walker.entries(message)
    if entries is None:
        return Facts()
    idents = yield from _idents(walker, entries, "id")
    return Facts(_names("id", idents))


def unique_names(lists: Iterable[Mapping[int, Facts]]) -> list[dict[int, Name]]:
    """Return, for each list, the best names of its messages, but for names that occur twice in some list.

    Only what was looked at counts: to look for a twin among messages that nobody changed would mean reading them all.
    """
    lists = list(lists)
    twice: set[Name] = set()
    for facts in lists:
        seen: set[Name] = set()
        for name in chain.from_iterable(fact.names for fact in facts.values()):
            if name in seen:
                twice.add(name)
            seen.add(name)
    return [_best_names(facts, twice) for facts in lists]


def _best_names(facts: Mapping[int, Facts], twice: Collection[Name]) -> dict[int, Name]:
    """Return the first name of each message that no other has."""
    best: dict[int, Name] = {}
    for place, fact in facts.items():
        for name in fact.names:
            if name not in twice:
                best[place] = name
                break
    return best


def name_path(name: Name) -> str:
    """Return the path of a message by its name: `messages['m3']`; what could be taken for an index says what it is."""
    kind, ident = name
    if kind == "id" and type(ident) is str:
        return f"messages[{shown(ident)}]"
    return f"messages[{kind}={shown(ident)}]"


def _idents(walker: Walker, entries: Entries, key: str) -> Need[Idents]:
    """Return the string or integer under `key`, in a list that is empty if there is none."""
    node = entries.nodes.get(_KEYS[key])
    if node is None:
        return []
    packed = whole((yield from walker.resolve(node)))
    # A container or a tagged value is no id. It is not unpacked either, since that may be large or run a
    # class.
    if packed is None or codec.is_list(packed) or codec.is_mapping(packed) or codec.untagged(packed):
        return []
    value = codec.unpack(packed)
    # The types themselves: True is an int too, and an empty string names nothing.
    is_ident = type(value) is int or (type(value) is str and value != "")
    return [value] if is_ident else []


def _each_ident(walker: Walker, mappings: Iterable[Entries], key: str) -> Need[list[Idents]]:
    return together([_idents(walker, mapping, key) for mapping in mappings])


def _inside(walker: Walker, entries: Entries) -> Need[Idents]:
    """Return the id in `tool_call: {"id"}`."""
    node = entries.nodes.get(_KEYS["tool_call"])
    if node is None:
        return []
    call = yield from walker.entries(node)
    if call is None:
        return []
    return (yield from _idents(walker, call, "id"))


def _typed(walker: Walker, entries: Entries, kind: str) -> Need[Idents]:
    """Return the `call_id` of an item that is of this type."""
    found = yield from _idents(walker, entries, "type")
    if found != [kind]:
        return []
    return (yield from _idents(walker, entries, "call_id"))


def _listed(walker: Walker, entries: Entries) -> Need[Idents]:
    """Return the ids in `tool_calls: [{"id"}]`."""
    calls = yield from _mappings(walker, entries.nodes.get(_KEYS["tool_calls"]))
    found = yield from _each_ident(walker, calls, "id")
    return list(chain.from_iterable(found))


def _blocks(walker: Walker, entries: Entries, kind: str, key: str) -> Need[Idents]:
    """Return what is under `key` in the blocks of `content` that are of this kind."""
    blocks = yield from _mappings(walker, entries.nodes.get(_KEYS["content"]))
    kinds = yield from _each_ident(walker, blocks, "type")
    chosen: list[Entries] = []
    for block, idents in zip(blocks, kinds, strict=True):
        if idents == [kind]:
            chosen.append(block)
    found = yield from _each_ident(walker, chosen, key)
    return list(chain.from_iterable(found))


def _mappings(walker: Walker, node: Node | None) -> Need[list[Entries]]:
    """Return the mappings in a list; nothing if it is no list."""
    if node is None:
        return []
    found = yield from walker.list_of(node)
    if found is None:
        return []
    items = yield from walker.all_items(found)
    opened = yield from together(map(walker.entries, items))
    return [entries for entries in opened if entries is not None]
