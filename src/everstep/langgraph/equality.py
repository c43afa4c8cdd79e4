"""Whether two values are the same, their types and all their parts included: `==` hides too much."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from everstep.errors import EverstepError
from everstep.langgraph.messages import Shape, fields_of
from everstep.values.codec import Codec

_PAIRS_MAX = 10_000
_SIMPLE = frozenset((str, int, bool, bytes, bytearray, type(None)))


def difference(found: Any, expected: Any, path: str, codec: Codec) -> str | None:
    """Return where two values differ first; None if they are the same. `codec` compares many messages at once."""
    kind = type(expected)
    if type(found) is not kind:
        return path
    if kind in _SIMPLE:
        return _unless(found == expected, path)
    if kind is list:
        if len(found) == len(expected) and _same_messages(found, expected, codec):
            return None
        return _items(found, expected, path, codec)
    if kind is tuple:
        return _items(found, expected, path, codec)
    if kind is deque:
        if found.maxlen != expected.maxlen:
            return path
        return _items(found, expected, path, codec)
    if kind is dict:
        return _entries(found, expected, path, codec)
    return _of_another_kind(found, expected, path, codec)


def _unless(is_same: bool, path: str) -> str | None:
    if is_same:
        return None
    return path


def same_packed(found: Any, expected: Any, codec: Codec) -> bool:
    """Whether two values are the same as they are stored, which is found out at once; False also if that is not sure.

    The same bytes are the same values, with their types and the order of their keys.
    """
    try:
        return codec.pack(found) == codec.pack(expected)
    except EverstepError:
        return False


class SameItems:
    """Compares lists of which most items were compared a moment ago: the same objects, which nobody has changed."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._known: dict[tuple[int, int], tuple[Any, Any]] = {}
        """Pairs that are the same, by identity; they are kept, so that no other object gets theirs."""

    def lists(self, found: Any, expected: Any) -> bool:
        """Whether these are lists, and the same; False also if that is not sure."""
        if type(found) is not list or type(expected) is not list or len(found) != len(expected):
            return False
        known = self._known
        new = [pair for pair in zip(found, expected, strict=True) if (id(pair[0]), id(pair[1])) not in known]
        if not new:
            return True
        if len(known) > _PAIRS_MAX:
            known.clear()
        ours, theirs = map(list, zip(*new, strict=True))
        if not _same_messages(ours, theirs, self._codec):
            return False
        for pair in new:
            known[id(pair[0]), id(pair[1])] = pair
        return True


def _items(found: Any, expected: Any, path: str, codec: Codec) -> str | None:
    if len(found) != len(expected):
        return path
    for n, (one, other) in enumerate(zip(found, expected, strict=True)):
        inner = difference(one, other, f"{path}[{n}]", codec)
        if inner is not None:
            return inner
    return None


def _entries(found: Mapping[Any, Any], expected: Mapping[Any, Any], path: str, codec: Codec) -> str | None:
    # By their text, in order: keys that are equal may still be of different types, as 1 and True are.
    if list(map(repr, found)) != list(map(repr, expected)):
        return path
    for (key, item), (wanted_key, wanted) in zip(found.items(), expected.items(), strict=True):
        inner = difference(key, wanted_key, path, codec)
        if inner is None:
            inner = difference(item, wanted, f"{path}[{key!r}]", codec)
        if inner is not None:
            return inner
    return None


def _same_messages(found: list[Any], expected: list[Any], codec: Codec) -> bool:
    """Whether these are lists of models without anything unusual, and the same; False also if that is not sure."""
    classes = list(map(type, expected))
    if not classes or not all(issubclass(cls, BaseModel) for cls in set(classes)):
        return False
    if list(map(type, found)) != classes:
        return False
    given = [frozenset(model.__pydantic_fields_set__) for model in expected]
    shape = Shape(classes, given, [None] * len(classes))
    fields = fields_of(found, shape)
    wanted = fields_of(expected, shape)
    if fields is None or wanted is None:
        return False
    return same_packed(fields, wanted, codec)


def _of_another_kind(found: Any, expected: Any, path: str, codec: Codec) -> str | None:
    if type(expected) is float:
        # By its digits: not-a-number is not equal to itself, and zero is equal to minus zero.
        return _unless(found.hex() == expected.hex(), path)
    if isinstance(expected, enum.Enum):
        return _unless(found is expected, path)
    if isinstance(expected, (set, frozenset)):
        return difference(sorted(found, key=repr), sorted(expected, key=repr), path, codec)
    # An array cannot be here unless numpy was imported.
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(expected, (numpy.ndarray, numpy.generic)):
        same = (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
        return _unless(same, path)
    parts = _parts(expected)
    if parts is not None:
        return difference(_parts(found), parts, path, codec)
    try:
        return _unless(bool(found == expected) or repr(found) == repr(expected), path)
    except Exception:  # whatever somebody's own class does
        return path


def _parts(value: Any) -> dict[str, Any] | None:
    """Return all that an object is made of; None if it is not one of those."""
    if isinstance(value, BaseModel):
        return {
            "": dict(value.__dict__),
            "__pydantic_fields_set__": value.__pydantic_fields_set__,
            "__pydantic_extra__": value.__pydantic_extra__,
            "__pydantic_private__": value.__pydantic_private__,
        }
    # A named tuple: plain ones were compared before.
    if isinstance(value, tuple):
        return {"": tuple(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    # LangGraph's own classes have slots, and some have no `==` of their own.
    if type(value).__module__.partition(".")[0] == "langgraph":
        slots = _slots(type(value))
        if slots:
            return {name: getattr(value, name, None) for name in slots}
    return None


def _slots(cls: type) -> list[str]:
    """Return the names of the slots of a class and of those it is made from."""
    found: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        # One slot may be named by a string instead of a list.
        if isinstance(slots, str):
            slots = (slots,)
        found.extend(slots)
    return found
