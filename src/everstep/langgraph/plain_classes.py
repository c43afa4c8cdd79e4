"""What a saver keeps of objects that it does not rebuild, and what readers get who do not have the class.

LangGraph's own savers keep such objects too, and give their parts back as plain data. So does ours, with a warning. The
only class code that runs is that of the object which is saved; nothing of a class runs at reading.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import ipaddress
import operator
import pathlib
import sys
import uuid
import warnings
import zoneinfo
from collections.abc import Callable
from typing import Any

from everstep.errors import UnknownClassWarning, UnregisteredType
from everstep.values import class_forms, class_looks
from everstep.values.registry import Data, Registered

_WARNED_MAX = 1024
_warned: set[str] = set()
"""The classes that were warned of, by name."""


# -- reading without the class -----------------------------------------------------------------------------------------


def data_entry(name: str, reason: str) -> Registered:
    """Return how objects of a class that is not rebuilt are read: as plain data, with one warning for each class."""

    def from_state(state: Any) -> Any:
        found = as_data(name, state)
        warn_once(name, reason)
        return found

    return Registered(Data, name, lambda value: value, from_state)


def as_data(name: str, state: Any) -> Any:
    """Return the state of an object as LangGraph's own savers would give it: fields by name, or the value of an enum.

    `state` is what stored bytes say: types are looked at, and nothing of it is called.
    """
    kind = type(state)
    if kind is dict or kind is tuple:
        return state
    if kind is list:
        found = _listed_data(state)
        if found is not _UNKNOWN:
            return found
    raise UnregisteredType(name, "which this saver does not rebuild; pass the class in allow=[...] if you trust it")


_UNKNOWN = object()
"""Stands for the data of a state whose form nobody knows; None is the data of some objects."""


def _listed_data(state: list[Any]) -> Any:
    """Return the data of a state that is kept as a list: the length of the list tells what kind of object it was."""
    if 4 <= len(state) <= 6:
        return _model_data(state)
    if len(state) == 1 and type(state[0]) is str:
        # A member of an enum whose value was not kept.
        return state[0]
    if len(state) == 2:
        return _pair_data(state[0], state[1])
    return _UNKNOWN


def _model_data(state: list[Any]) -> Any:
    """Return the fields of a pydantic model, or the value of a root model, whose fifth part says that it is one."""
    fields = state[0]
    extra = state[1]
    if type(fields) is not dict or type(extra) not in (dict, type(None)):
        return _UNKNOWN
    data = class_forms.as_plain(fields | (extra or {}))
    if len(state) > 4 and state[4] is not False:
        return data.get("root")
    return data


def _pair_data(first: Any, second: Any) -> Any:
    if first is None:
        # What an object said of itself: see `described`.
        return second
    if type(first) is str and type(second) is list and len(second) == 1:
        # A member of an enum: its name, and its value.
        return second[0]
    if type(first) is dict and type(second) is dict:
        # A named tuple that had attributes, too.
        return first
    return _UNKNOWN


def warn_once(name: str, reason: str) -> None:
    """Say that objects of a class came back as plain data."""
    if name in _warned:
        return
    if len(_warned) >= _WARNED_MAX:
        _warned.clear()
    _warned.add(name)
    warnings.warn(f"a stored {name!r} was read as plain data, {reason}", UnknownClassWarning, stacklevel=2)


# -- writing without a way back ----------------------------------------------------------------------------------------


def described(cls: type) -> Registered | None:
    """Return how objects are kept that LangGraph's own savers keep as what they say of themselves."""
    name = class_looks.full_name(cls)
    to_state = _description(cls)
    if name is None or to_state is None:
        return None
    return Registered(cls, ":".join(name), to_state, same)


_METHODS = ("model_dump", "get_secret_value", "dict", "_asdict")
"""What LangGraph's serializer calls of any object that has it, in the order in which it asks."""


def is_described(cls: type) -> bool:
    """Whether `described` may have kept objects of this class. Runs nothing of it."""
    if any(class_looks.class_attribute(cls, name) is not None for name in _METHODS):
        return True
    return class_looks.is_subclass(cls, enum.Enum) or class_looks.dataclass_fields(cls) is not None


def _description(cls: Any) -> Callable[[Any], Any] | None:
    for method in _METHODS:
        if callable(getattr(cls, method, None)):
            ask = operator.methodcaller(method)
            return lambda value: [None, ask(value)]
    if issubclass(cls, enum.Enum):
        return lambda value: [None, value.value]
    fields = class_looks.dataclass_fields(cls)
    if fields is not None:
        names = [field.name for field in fields]
        return lambda value: {name: getattr(value, name) for name in names}
    return None


# -- subclasses of plain types -----------------------------------------------------------------------------------------


def plain_kind(cls: type) -> Registered | None:
    """Return how a subclass of a plain type is kept: as that type, which LangGraph's own savers do, too, or nearly."""
    if cls is memoryview:
        return Registered(cls, "=", bytes, same)
    is_named_tuple = issubclass(cls, tuple) and class_looks.class_attribute(cls, "_fields") is not None
    if class_looks.is_subclass(cls, enum.Enum) or is_named_tuple:
        return None
    for kind, convert in _PLAIN_KINDS.items():
        if issubclass(cls, kind):
            return Registered(cls, "=", convert, same)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.ndarray):
        return Registered(cls, "=", numpy.asarray, same)
    return None


def same(state: Any) -> Any:
    """Return what was kept, as it is."""
    return state


def _datetime(value: dt.datetime) -> Any:
    """Return a plain time, or its text where that says more: pandas counts nanoseconds, and has a time that is none."""
    try:
        plain = dt.datetime(
            value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond,
            value.tzinfo, fold=value.fold,
        )  # fmt: skip
    except (TypeError, ValueError):
        return value.isoformat()
    if plain.isoformat() != value.isoformat():
        return value.isoformat()
    return plain


def _time(value: dt.time) -> dt.time:
    return dt.time(value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold)


def _address(kind: Any) -> Callable[[Any], Any]:
    return lambda value: kind(str(value))


_PLAIN_KINDS: dict[type, Callable[[Any], Any]] = {
    str: str,
    bytes: bytes,
    bytearray: bytearray,
    int: int,
    float: float,
    dict: dict,
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.deque: lambda value: collections.deque(value, value.maxlen),
    dt.datetime: _datetime,  # before dates, which times are, too
    dt.date: lambda value: dt.date(value.year, value.month, value.day),
    dt.time: _time,
    dt.timedelta: lambda value: dt.timedelta(value.days, value.seconds, value.microseconds),
    uuid.UUID: lambda value: uuid.UUID(int=value.int),
    decimal.Decimal: decimal.Decimal,
    pathlib.PurePath: lambda value: pathlib.Path(str(value)),
    zoneinfo.ZoneInfo: lambda value: zoneinfo.ZoneInfo(value.key),
    # Interfaces before addresses, which they are, too.
    ipaddress.IPv4Interface: _address(ipaddress.IPv4Interface),
    ipaddress.IPv6Interface: _address(ipaddress.IPv6Interface),
    ipaddress.IPv4Address: _address(ipaddress.IPv4Address),
    ipaddress.IPv6Address: _address(ipaddress.IPv6Address),
    ipaddress.IPv4Network: _address(ipaddress.IPv4Network),
    ipaddress.IPv6Network: _address(ipaddress.IPv6Network),
}
