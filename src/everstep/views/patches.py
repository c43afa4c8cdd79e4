"""A small differ for plain values: lists by content and by name, texts word by word, JSON Patch (RFC 6902). Pure.

What two sequences begin and end with is left aside first, so that long conversations cost what changed in them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from everstep.errors import InvalidInput, UnstorableValue
from everstep.runtime import checks
from everstep.types import MISSING
from everstep.values.walk import match, stretches
from everstep.views.paths import found_at, pointer
from everstep.views.reading import CODEC

_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
# To compare two texts word by word takes quadratic time in the worst case.
_TEXT_MAX = 200_000
_OPERATIONS_MAX = 100_000


class Pair(NamedTuple):
    """Places of an item in two lists; None where it is new or gone."""

    a: int | None
    b: int | None


def aligned(a: Sequence[Any], b: Sequence[Any], name_of: Callable[[Any], Hashable | None]) -> list[Pair]:
    """Return which items of two lists changed and stand for one another, in order; those that are equal are left out.

    Between items that are equal, those of one name are a pair; nameless ones are, if as many stand on both sides.
    """
    matches = match([_packed(item) for item in a], [_packed(item) for item in b])
    pairs: list[Pair] = []
    for stretch in stretches(matches, len(a), len(b)):
        pairs += _paired(a, b, stretch.a, stretch.b, name_of)
    return pairs


def _paired(
    a: Sequence[Any], b: Sequence[Any], old: range, new: range, name_of: Callable[[Any], Hashable | None]
) -> list[Pair]:
    before = [name_of(a[place]) for place in old]
    after = [name_of(b[place]) for place in new]
    # As many on both sides, and under the same names or none: they are the same ones, edited.
    if before == after:
        return list(map(Pair, old, new))
    named = match(_tokens("a", old, before), _tokens("b", new, after))
    pairs: list[Pair] = []
    for stretch in stretches(named, len(old), len(new)):
        for place in stretch.a:
            pairs.append(Pair(old[place], None))
        for place in stretch.b:
            pairs.append(Pair(None, new[place]))
    for here, there in named.items():
        pairs.append(Pair(old[here], new[there]))
    return sorted(pairs, key=lambda pair: _place_in(pair, named, old, new))


def _tokens(side: str, places: range, names: Sequence[Hashable | None]) -> list[Hashable]:
    """Return what tells items apart: their names. What has none gets a token that nothing equals."""
    tokens: list[Hashable] = []
    for place, name in zip(places, names, strict=True):
        if name is None:
            tokens.append((side, place))
        else:
            tokens.append(("name", name))
    return tokens


def _place_in(pair: Pair, named: dict[int, int], old: range, new: range) -> float:
    """Return where a pair stands in the new list; what is gone stands before what came after it."""
    if pair.b is not None:
        return pair.b
    if pair.a is None:
        return 0
    later = [new[there] for here, there in named.items() if old[here] > pair.a]
    return min(later, default=new.stop) - 0.5


def _packed(item: Any) -> Hashable:
    try:
        return CODEC.pack(item)
    except UnstorableValue:  # an object that this process has made of what is stored: it is like no other
        return id(item)


def _written(value: Any) -> bytes:
    """Return a JSON value as bytes that are the same only for the same value."""
    try:
        return CODEC.pack(value)
    except UnstorableValue:  # values that nest almost too deep to be stored nest too deep with what is around them
        return b"json:" + json.dumps(value).encode()


# -- texts


def words(before: Any, after: Any) -> list[list[str]] | None:
    """Return two texts word by word: `[" ", same]`, `["-", old]`, `["+", new]`; None if one is no text, or too long."""
    if type(before) is not str or type(after) is not str or len(before) + len(after) > _TEXT_MAX:
        return None
    old = _WORDS.findall(before)
    new = _WORDS.findall(after)
    matches = match(old, new)
    found: list[list[str]] = []
    a_at = b_at = 0
    for a_place, b_place in [*matches.items(), (len(old), len(new))]:
        _add(found, "-", old[a_at:a_place])
        _add(found, "+", new[b_at:b_place])
        if a_place < len(old):
            _add(found, " ", [old[a_place]])
        a_at = a_place + 1
        b_at = b_place + 1
    return _joined_over_spaces(found)


def _add(found: list[list[str]], sign: str, added: Sequence[str]) -> None:
    text = "".join(added)
    if not text:
        return
    if found and found[-1][0] == sign:
        found[-1][1] += text
    else:
        found.append([sign, text])


def _joined_over_spaces(found: list[list[str]]) -> list[list[str]]:
    """Return the same with changes joined that only white space parts: `a b` to `c d` is one change, not two."""
    joined: list[list[str]] = []
    place = 0
    while place < len(found):
        sign, text = found[place]
        is_between = sign == " " and text.isspace() and joined and joined[-1][0] != " " and place + 1 < len(found)
        if is_between:
            _into_change(joined, text, text)
        elif sign == " ":
            joined.append([sign, text])
        else:
            _into_change(joined, text if sign == "-" else "", text if sign == "+" else "")
        place += 1
    return joined


def _into_change(joined: list[list[str]], gone: str, come: str) -> None:
    """Add to the change at the end: what is gone stands before what has come."""
    parts = {"-": "", "+": ""}
    while joined and joined[-1][0] != " ":
        sign, text = joined.pop()
        parts[sign] = text + parts[sign]
    parts["-"] += gone
    parts["+"] += come
    joined.extend([sign, text] for sign, text in parts.items() if text)


# -- JSON Patch


def make_patch(a: Any, b: Any, name_of: Callable[[Any], Hashable | None] = lambda _: None) -> list[dict[str, Any]]:
    """Return the operations that turn one JSON value into another."""
    found: list[dict[str, Any]] = []
    _patch(a, b, [], found, name_of)
    return found


def make_patch_at(
    way: Sequence[str], a: Any, b: Any, name_of: Callable[[Any], Hashable | None] = lambda _: None
) -> list[dict[str, Any]]:
    """Return the operations that change only what is at the end of a way.

    Where the way ends early on one side, they are about the value that it ends in.
    """
    parts = list(way)
    while parts and not _can_be_changed(a, b, parts):
        parts.pop()
    old = found_at(a, parts)
    new = found_at(b, parts)
    found: list[dict[str, Any]] = []
    if old is MISSING and new is MISSING:
        return found
    if old is MISSING:
        found.append({"op": "add", "path": pointer(parts), "value": new})
    elif new is MISSING:
        found.append({"op": "remove", "path": pointer(parts)})
    else:
        _patch(old, new, parts, found, name_of)
    return found


def _can_be_changed(a: Any, b: Any, parts: Sequence[str]) -> bool:
    """Whether what is there can be put, changed or removed without a change of what is around it."""
    if found_at(a, parts) is not MISSING and found_at(b, parts) is not MISSING:
        return True
    above = parts[:-1]
    return type(found_at(a, above)) is dict and type(found_at(b, above)) is dict


def _patch(
    a: Any, b: Any, at: list[str], found: list[dict[str, Any]], name_of: Callable[[Any], Hashable | None]
) -> None:
    if _written(a) == _written(b):
        return
    if type(a) is dict and type(b) is dict:
        for key in a:
            if key not in b:
                found.append({"op": "remove", "path": pointer([*at, key])})
        for key, value in b.items():
            if key in a:
                _patch(a[key], value, [*at, key], found, name_of)
            else:
                found.append({"op": "add", "path": pointer([*at, key]), "value": value})
    elif type(a) is list and type(b) is list:
        _patch_list(a, b, at, found, name_of)
    else:
        found.append({"op": "replace", "path": pointer(at), "value": b})


def _patch_list(
    a: list[Any], b: list[Any], at: list[str], found: list[dict[str, Any]], name_of: Callable[[Any], Hashable | None]
) -> None:
    """Work from the end, so that the places before stay what they were."""
    matches = match([_written(item) for item in a], [_written(item) for item in b])
    for stretch in reversed(stretches(matches, len(a), len(b))):
        common = _pairs_from_start(a, b, stretch.a, stretch.b, name_of)
        found += [{"op": "remove", "path": pointer([*at, str(place)])} for place in reversed(stretch.a[common:])]
        for shift, place in enumerate(stretch.b[common:]):
            where = stretch.a.start + common + shift
            found.append({"op": "add", "path": pointer([*at, str(where)]), "value": b[place]})
        for here, there in zip(stretch.a[:common], stretch.b[:common], strict=True):
            _patch(a[here], b[there], [*at, str(here)], found, name_of)


def _pairs_from_start(
    a: list[Any], b: list[Any], old: range, new: range, name_of: Callable[[Any], Hashable | None]
) -> int:
    """Return how many items, from the start of a stretch, stand for one another."""
    count = 0
    for here, there in zip(old, new, strict=False):
        if name_of(a[here]) != name_of(b[there]):
            break
        count += 1
    return count


def apply_patch(value: Any, operations: Any) -> Any:
    """Return a JSON value with a patch applied; InvalidInput if the patch is none, or does not fit."""
    if not isinstance(operations, list) or len(operations) > _OPERATIONS_MAX:
        raise InvalidInput("a patch is a list of operations, as RFC 6902 says")
    # In a dictionary of its own, so that a patch may replace the whole value, too.
    document = {"": copy.deepcopy(value)}
    for operation in operations:
        try:
            _apply(document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise InvalidInput(f"the operation {checks.shown(operation)} does not fit: {exc}") from exc
    return document[""]


def _apply(document: dict[str, Any], operation: Any) -> None:
    if not isinstance(operation, dict):
        raise TypeError("an operation is an object")
    name = operation["op"]
    path = _parts(operation["path"])
    if name == "add":
        # Copied, or two places of the document would share what a later operation changes.
        _put(document, path, copy.deepcopy(operation["value"]), is_new=True)
    elif name == "replace":
        _get(document, path)
        _put(document, path, copy.deepcopy(operation["value"]), is_new=False)
    elif name == "remove":
        _remove(document, path)
    elif name == "test":
        if _written(_get(document, path)) != _written(operation["value"]):
            raise ValueError("the value is another one")
    elif name in ("move", "copy"):
        source = _parts(operation["from"])
        moved = copy.deepcopy(_get(document, source))
        if name == "move":
            if path[: len(source)] == source and path != source:
                raise ValueError("a value cannot be moved into itself")
            _remove(document, source)
        _put(document, path, moved, is_new=True)
    else:
        raise ValueError("there is no such operation")


def _parts(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise ValueError("a path is a JSON pointer")
    return ["", *[part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]]


def _get(document: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        document = document[_index(document, part)]
    return document


def _put(document: Any, parts: Sequence[str], value: Any, *, is_new: bool) -> None:
    holder = _get(document, parts[:-1])
    if isinstance(holder, list):
        place = len(holder) if parts[-1] == "-" and is_new else _index(holder, parts[-1], is_new=is_new)
        holder[place : place if is_new else place + 1] = [value]
    elif isinstance(holder, dict):
        holder[parts[-1]] = value
    else:
        raise TypeError("nothing can be put into this")


def _remove(document: Any, parts: Sequence[str]) -> None:
    holder = _get(document, parts[:-1])
    del holder[_index(holder, parts[-1])]


def _index(holder: Any, part: str, *, is_new: bool = False) -> Any:
    if isinstance(holder, dict):
        return part
    if not isinstance(holder, list) or not re.fullmatch(r"0|[1-9][0-9]{0,17}", part):
        raise ValueError(f"there is no {part!r}")
    # A new item may stand behind the last one, an old one may not.
    if int(part) > len(holder) - (not is_new):
        raise IndexError(f"the list has {len(holder)} items")
    return int(part)
