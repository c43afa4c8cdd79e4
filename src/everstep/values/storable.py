"""Values of any kind as values that can be stored: whole where possible, marked where not. Pure; never raises.

For what a library meets and does not own: arguments and results of somebody's functions. What a caller asks to be
saved is not treated so: there an unstorable value is an error.
"""

from __future__ import annotations

import functools
from typing import Any

from everstep.values import codec

UNSTORABLE = "__unstorable__"
"""Marks the repr that stands for a value which cannot be stored."""

_REPR_MAX = 10_000


def storable(value: Any, depth_above: int = 0) -> Any:
    """Return a copy of `value`, whole, in which only what cannot be stored is replaced by its marked repr.

    `depth_above` counts the containers it will be put into.
    """
    try:
        return _storable(value, depth_above, ())
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


def _storable(value: Any, above: int, inside: tuple[int, ...]) -> Any:
    """`inside` names the containers around it that were opened here."""
    try:
        packed = codec.pack(value, "value", above)
        return codec.unpack(packed)
    except Exception:  # then some part of it cannot be stored
        kind = type(value)
        item = functools.partial(_storable, above=above + 1, inside=(*inside, id(value)))
    if id(value) not in inside and above < codec.DEPTH_MAX - 1:
        if kind is dict:
            return {_hashable(key, n): item(held) for n, (key, held) in enumerate(list(value.items()))}
        if kind is set or kind is frozenset:
            return kind(_hashable(held, n) for n, held in enumerate(list(value)))
        if kind is list or kind is tuple:
            return kind([item(held) for held in list(value)])
    return {UNSTORABLE: _repr(value)}


def _hashable(key: Any, n: int) -> Any:
    """Return a key or a member of a set, or its marked repr with its number: two may look alike."""
    try:
        return codec.unpack(codec.pack(key))
    except Exception:
        return UNSTORABLE, _repr(key), n


def _repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"<{type_name(type(value))} object, whose repr failed>"
    return text if len(text) <= _REPR_MAX else text[:_REPR_MAX] + "..."
