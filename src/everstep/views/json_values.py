"""Any stored value as JSON for showing: the one place that does so. Nobody's own code is called, not even a repr.

JSON's own types are exact. Everything else says what it is: `{"$type": "datetime", "text": "..."}`. With `max_bytes`
the result stays about that small: long texts become `{"$cut": their length, "text": the beginning}`, and of containers
that do not fit the first items are shown: `{"$type": "list", "$cut": how many there are, "items": [...]}`.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import fractions
import math
import pathlib
import uuid
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

DEPTH_MAX = 120
"""Containers inside one another that are shown; no reader of JSON fails on so many."""
_TEXT_SHOWN = 2000
_TEXT_SHOWN_LEAST = 100
_PREVIEW_BYTES = 32
_EXACT_INT_MAX = 2**53 - 1
"""The integers that every reader of JSON keeps exact."""
_DIGITS_MAX = 4000

_SAID_BY_STR: dict[type, str] = {
    dt.datetime: "datetime",
    dt.date: "date",
    dt.time: "time",
    dt.timedelta: "timedelta",
    decimal.Decimal: "decimal",
    fractions.Fraction: "fraction",
    uuid.UUID: "uuid",
    complex: "complex",
    range: "range",
    pathlib.PurePosixPath: "path",
    pathlib.PureWindowsPath: "path",
    pathlib.PosixPath: "path",
    pathlib.WindowsPath: "path",
}
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}


class Opaque:
    """An object of a class that is not rebuilt: its name, and what is kept of it as plain data."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: Any) -> None:
        self.name = name
        self.fields = fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and (self.name, self.fields) == (other.name, other.fields)

    def __hash__(self) -> int:
        return hash(self.name)


def to_json(value: Any, *, max_bytes: int | None = None) -> Any:
    """Return `value` as plain JSON; with `max_bytes` not much larger than that."""
    return _Shower(max_bytes).shown(value, 0)


class _Shower:
    """One look at a value: what is left of the room that it may take, and the containers that are open."""

    def __init__(self, max_bytes: int | None) -> None:
        self._left = max_bytes
        self._open: set[int] = set()

    def shown(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return self._counted(value, 4)
        if kind is str:
            return self._text(value)
        if kind is int:
            return self._integer(value)
        if kind is float:
            return self._float(value)
        if kind is bytes or kind is bytearray or kind is memoryview:
            return self._bytes(bytes(value))
        if kind is dict or kind in _SEQUENCES or kind is Opaque:
            return self._container(value, kind, depth)
        if kind is dt.datetime:
            return self._typed(_SAID_BY_STR[kind], value.isoformat())
        if kind in _SAID_BY_STR:
            return self._typed(_SAID_BY_STR[kind], str(value))
        # Not even `str` is called: it would run code of a class that is only known from what is stored.
        return self._typed(_name_of(kind), "")

    def _float(self, value: float) -> Any:
        if math.isfinite(value):
            return self._counted(value, 8)
        # JSON has no such numbers.
        return self._typed("float", _float_name(value))

    def _counted(self, value: T, size: int) -> T:
        if self._left is not None:
            self._left -= size
        return value

    def _typed(self, name: str, text: str) -> dict[str, Any]:
        return self._counted({"$type": _readable(name), "text": _readable(text)}, 24 + len(text))

    def _text(self, text: str) -> Any:
        if self._left is not None and len(text) > max(self._left, _TEXT_SHOWN_LEAST):
            shown = min(_TEXT_SHOWN, max(self._left, _TEXT_SHOWN_LEAST))
            return self._counted({"$cut": len(text), "text": _readable(text[:shown])}, shown)
        try:
            # A surrogate without its other half cannot be sent as UTF-8, and JSON readers differ on it.
            text.encode()
        except UnicodeEncodeError:
            return self._typed("str", text)
        return self._counted(text, len(text) + 2)

    def _integer(self, number: int) -> Any:
        if -_EXACT_INT_MAX <= number <= _EXACT_INT_MAX:
            return self._counted(number, 8)
        # Python refuses to write very long numbers in decimal, since that takes quadratic time.
        text = str(number) if number.bit_length() < _DIGITS_MAX * 3 else f"{number:#x}"
        if len(text) > _DIGITS_MAX:
            return {"$type": "int", "$cut": len(text), "text": text[:_TEXT_SHOWN]}
        return self._typed("int", text)

    def _bytes(self, content: bytes) -> dict[str, Any]:
        preview = base64.b64encode(content[:_PREVIEW_BYTES]).decode()
        return self._counted({"$type": "bytes", "size": len(content), "preview": preview}, 80)

    def _container(self, value: Any, kind: type, depth: int) -> Any:
        if depth >= DEPTH_MAX:
            return {"$type": _name_of(kind), "text": f"nests deeper than {DEPTH_MAX} levels"}
        # By identity, as equality would have to walk through what contains itself.
        if id(value) in self._open:
            return {"$type": _name_of(kind), "text": "contains itself"}
        self._open.add(id(value))
        try:
            if kind is dict:
                return self._mapping(value, depth)
            if kind is Opaque:
                return {"$type": _readable(value.name), "fields": self.shown(value.fields, depth + 1)}
            return self._sequence(value, _SEQUENCES[kind], depth)
        finally:
            self._open.discard(id(value))

    def _mapping(self, value: dict[Any, Any], depth: int) -> Any:
        items: list[tuple[Any, Any]] = []
        is_plain = True
        for key, held in value.items():
            if self._is_full():
                # A mapping that is cut must not look like one that has only these keys.
                shown = [[self.shown(name, depth + 1), item] for name, item in items]
                return {"$type": "dict", "$cut": len(value), "items": shown}
            is_plain = is_plain and _is_plain_key(key)
            self._counted(None, len(key) + 4 if type(key) is str else 8)
            items.append((key, self.shown(held, depth + 1)))
        if is_plain:
            return dict(items)
        return {"$type": "dict", "items": [[self.shown(key, depth + 1), item] for key, item in items]}

    def _sequence(self, value: Any, name: str, depth: int) -> Any:
        items: list[Any] = []
        for item in value:
            if self._is_full():
                return {"$type": name, "$cut": len(value), "items": items}
            items.append(self.shown(item, depth + 1))
        self._counted(None, 2)
        if name == "list":
            return items
        return {"$type": name, "items": items}

    def _is_full(self) -> bool:
        return self._left is not None and self._left <= 0


class Kind(NamedTuple):
    """What a value is, for a tree of values."""

    name: str
    items: int | None
    """How many items are in it; None: it is no container."""


def kind_of(value: Any) -> Kind:
    """Return what a value is, in the words of JSON where it has them."""
    kind = type(value)
    if value is None:
        return Kind("null", None)
    names: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", bytes: "bytes"}
    if kind in names:
        return Kind(names[kind], None)
    if kind is dict:
        return Kind("object", len(value))
    if kind is list:
        return Kind("array", len(value))
    if kind in _SEQUENCES:
        return Kind(_SEQUENCES[kind], len(value))
    if kind is Opaque:
        inner = kind_of(value.fields)
        return Kind(_readable(value.name), inner.items)
    return Kind(_SAID_BY_STR.get(kind) or _name_of(kind), None)


def size_of(value: Any) -> int:
    """Return about how many bytes a value takes when it is packed."""
    total = 0
    pending = [value]
    seen: set[int] = set()
    while pending:
        found = pending.pop()
        kind = type(found)
        if kind is str:
            total += 2 + (len(found) if found.isascii() else len(found.encode("utf-8", "replace")))
        elif kind is bytes:
            total += 2 + len(found)
        elif kind is float:
            total += 9
        elif kind is int:
            total += 1 + found.bit_length() // 8
        elif kind is dict or kind in _SEQUENCES or kind is Opaque:
            total += 2
            # A value that contains itself would otherwise never end.
            if id(found) not in seen:
                seen.add(id(found))
                pending.extend(_inside(found, kind))
        else:
            total += 1 if found is None or kind is bool else 12
    return total


def _inside(value: Any, kind: type) -> list[Any]:
    if kind is dict:
        return [*value.keys(), *value.values()]
    if kind is Opaque:
        return [value.fields]
    return list(value)


def _is_plain_key(key: Any) -> bool:
    # A key that looks like our own marks must not be taken for one.
    if type(key) is not str or key in ("$type", "$cut"):
        return False
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def _float_name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if value > 0:
        return "Infinity"
    return "-Infinity"


def _name_of(kind: type) -> str:
    """Return the name of a class, by the way that no metaclass can change."""
    if kind is Opaque:
        return "object"
    # Through `type` itself: a metaclass may define these names as properties, which would run its code.
    module = type.__dict__["__module__"].__get__(kind)
    name = type.__dict__["__qualname__"].__get__(kind)
    if type(module) is not str or type(name) is not str:
        return "object"
    if module == "builtins":
        return name
    return f"{module}.{name}"


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
