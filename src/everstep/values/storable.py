"""Values of any kind as values that can be stored: whole where possible, marked where not. Pure; never raises.

For what a library meets and does not own: arguments and results of somebody's functions. What a caller asks to be
saved is not treated so: there an unstorable value is an error.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterable
from typing import Any

from everstep.values import codec

UNSTORABLE = "__unstorable__"
"""Marks the repr that stands for a value which cannot be stored."""

_REPR_MAX = 10_000


def storable(value: Any, depth_above: int = 0, text_of: Callable[[Any], str] | None = None) -> Any:
    """Return a copy of `value`, whole, in which only what cannot be stored is replaced by its marked repr.

    `depth_above` counts the containers it will be put into. `text_of` gives a text in place of the repr, and never
    raises.
    """
    try:
        return _storable(value, depth_above, (), text_of or _repr)
    except Exception:  # an almost full call stack or memory
        return {UNSTORABLE: f"<{type_name(type(value))}>"}


def described(error: BaseException) -> dict[str, str]:
    """Return the type and the message of an error, whatever its own methods do."""
    try:
        message = str(error)
    except Exception:
        message = _repr(error)
    return {"type": type_name(type(error)), "message": message}


def type_name(kind: type) -> str:
    """Return the name of a class with its module, unless it is built in."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _storable(value: Any, above: int, inside: tuple[int, ...], text_of: Callable[[Any], str]) -> Any:
    """`inside` names the containers around it that were opened here."""
    try:
        packed = codec.pack(value, "value", above)
        return codec.unpack(packed)
    except Exception:  # then some part of it cannot be stored
        kind = type(value)
        item = functools.partial(_storable, above=above + 1, inside=(*inside, id(value)), text_of=text_of)
    if id(value) not in inside and above < codec.DEPTH_MAX - 1:
        if kind is dict:
            return {_hashable(key, n, text_of): item(held) for n, (key, held) in enumerate(list(value.items()))}
        if kind is set or kind is frozenset:
            return kind(_members(list(value), text_of))
        if kind is list or kind is tuple:
            return kind([item(held) for held in list(value)])
    return {UNSTORABLE: text_of(value)}


def _hashable(key: Any, n: int, text_of: Callable[[Any], str]) -> Any:
    """Return a key, or its marked text with its number: two may look alike."""
    try:
        return codec.unpack(codec.pack(key))
    except Exception:
        return UNSTORABLE, text_of(key), n


def _members(held: Iterable[Any], text_of: Callable[[Any], str]) -> list[Any]:
    """Return the members of a set, each whole or as its marked text, with a number among those that look alike."""
    found: list[Any] = []
    alike = collections.Counter[str]()
    for each in held:
        member = _hashable(each, 0, text_of)
        if type(member) is tuple and member[:1] == (UNSTORABLE,):
            # Not its place in the set, which is another one in each process.
            text = str(member[1])
            member = (UNSTORABLE, text, alike[text])
            alike[text] += 1
        found.append(member)
    return found


def _repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"<{type_name(type(value))} object, whose repr failed>"
    return text if len(text) <= _REPR_MAX else text[:_REPR_MAX] + "..."
