"""Which classes a saver keeps and rebuilds. Classes are looked up among what is imported.

Only modules of LangGraph's own, which stand in a table here, are imported where they are not yet.

Rebuilding calls no constructor, no validator, no default factory and no method of the stored value's choosing:
dataclasses, pydantic models, enums and named tuples get their fields back as they were. Classes with a way of their own
stand in a table; they take nothing but built-in values of exactly the types that were stored, because a number, a text
or a list of some other class could bring a method along. See docs/decisions/0017-hostile-bytes.md for what does run.
"""

from __future__ import annotations

import collections
import enum
import functools
import importlib
import ipaddress
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from everstep.errors import CheckpointCorrupted, InvalidInput, UnregisteredType
from everstep.values import codec, registry
from everstep.values.registry import Registered

Name = tuple[str, str]
"""A module, and the name of a class in it."""

_MESSAGES = {
    "base": ("BaseMessage", "BaseMessageChunk"),
    "human": ("HumanMessage", "HumanMessageChunk"),
    "ai": ("AIMessage", "AIMessageChunk"),
    "system": ("SystemMessage", "SystemMessageChunk"),
    "chat": ("ChatMessage", "ChatMessageChunk"),
    "tool": ("ToolMessage", "ToolMessageChunk"),
    "function": ("FunctionMessage", "FunctionMessageChunk"),
    "modifier": ("RemoveMessage",),
}
_GRAPH = ("Send", "TimeoutPolicy", "Interrupt", "Command", "StateSnapshot", "PregelTask", "Overwrite")

SAFE: frozenset[Name] = frozenset(
    [
        *((f"langchain_core.messages.{module}", name) for module, names in _MESSAGES.items() for name in names),
        *(("langgraph.types", name) for name in _GRAPH),
        ("langchain_core.documents.base", "Document"),
        ("langgraph.checkpoint.serde.types", "_DeltaSnapshot"),
        ("langgraph.store.base", "Item"),
        ("langgraph.store.base", "GetOp"),
    ]
)
"""What LangGraph itself puts into channels and writes: rebuilt also with `strict`."""

_SAFE_MODULES = frozenset(module for module, _ in SAFE)

ADVICE = (
    "the saver does not rebuild its class; pass it in allow=[...], call everstep.register(cls), or store plain data"
)


class Kinds:
    """The classes that a saver keeps and rebuilds: `codec.Types` with a saver's rules."""

    def __init__(
        self, allow: Iterable[type | tuple[str, ...]] = (), *, strict: bool = False, serde: Any = None
    ) -> None:
        """`serde` keeps classes that are allowed but have no way of their own."""
        self._allow = frozenset(allow)
        for entry in self._allow:
            if not isinstance(entry, type) and not _is_name(entry):
                raise InvalidInput(f"allow= takes classes or (module, name) pairs, not {entry!r:.80}")
        self.strict, self._serde = strict, serde
        self._classes = {_name(cls): cls for cls in self._allow if isinstance(cls, type)}
        self._names = SAFE | set(self._classes) | {(e[0], e[1]) for e in self._allow if not isinstance(e, type)}
        self._by_type: dict[type, Registered] = {}
        self._by_name: dict[str, Registered] = {}
        self.codec = codec.Codec(self, ADVICE)

    def extended(self, allow: Iterable[type | tuple[str, ...]]) -> Kinds:
        """Return the same rules with more classes allowed."""
        return Kinds(self._allow | frozenset(allow), strict=self.strict, serde=self._serde)

    def for_type(self, cls: type) -> Registered | None:
        """Return how objects of exactly this class are kept."""
        found = registry.for_type(cls) or self._by_type.get(cls)
        if found is None:
            found = _special(cls) or self._rebuilt(cls) or _plain(cls)
            if found is not None:
                self._by_type[cls] = found
        return found

    def for_name(self, name: str) -> Registered:
        """Return how objects stored under this name are rebuilt; refuse what may not be."""
        found = registry.for_name(name) or self._by_name.get(name) or _SPECIAL_BY_NAME.get(name)
        if found is None:
            cls = self._class(name)
            found = self.for_type(cls) if cls is not None else None
            if found is None or found.name != name:
                raise _refused(name, cls is not None, self.strict)
            self._by_name[name] = found
        return found

    def _class(self, name: str) -> type | None:
        module, separator, qualname = name.partition(":")
        found = self._classes.get((module, qualname)) if separator else None
        if found is None and separator:
            found = (
                safe_class(module, qualname) if (module, qualname) in SAFE else registry.find_class(module, qualname)
            )
        return found

    def _rebuilt(self, cls: type) -> Registered | None:
        name = registry.full_name(cls)
        if name is None or (name not in self._names and (self.strict or registry.find_class(*name) is not cls)):
            return None
        try:
            ways: tuple[Callable[[Any], Any], Callable[[Any], Any]] = registry.known_ways(cls)
        except InvalidInput:
            if self._serde is None or name not in self._names:
                return None
            serde = self._serde
            ways = (lambda value: list(serde.dumps_typed(value)), lambda state: serde.loads_typed(tuple(state)))
        return Registered(cls, ":".join(name), *ways)


def _refused(name: str, found: bool = False, strict: bool = False) -> UnregisteredType:
    module = name.partition(":")[0]
    if not found and module in _SAFE_MODULES:
        return UnregisteredType(name, f"and there is no {module} here; install {module.partition('.')[0]}")
    if not found:
        return UnregisteredType(
            name,
            "whose class is not imported in this process; import its module before reading, or pass it in allow=[...]",
        )
    kinds = (
        "safe and allowed classes" if strict else "dataclasses, pydantic models, enums, named tuples and allowed ones"
    )
    reason = f"which this saver does not rebuild (only {kinds}); pass the class in allow=[...] if you trust it"
    return UnregisteredType(name, reason)


def _is_name(entry: object) -> bool:
    return isinstance(entry, tuple) and len(entry) >= 2 and all(isinstance(part, str) for part in entry)


def _name(cls: type) -> Name:
    return registry.full_name(cls) or ("", "")


def safe_class(module: str, qualname: str) -> type | None:
    """Return one of LangGraph's own classes; None if it is not installed. Its module is imported if need be."""
    if module in _SAFE_MODULES and _is_importable(module):
        return registry.find_class(module, qualname)
    return None


@functools.cache
def _is_importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


# -- classes with a way of their own -----------------------------------------------------------------------------------


def _out_of_shape() -> CheckpointCorrupted:
    return CheckpointCorrupted("a stored object is out of shape")


def _checked(kind: type, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `make` for states of exactly one type."""

    def from_state(state: Any) -> Any:
        if type(state) is not kind:
            raise _out_of_shape()
        return make(state)

    return from_state


def _deque(state: list[Any]) -> collections.deque[Any]:
    items, length_max = state
    if type(items) is not list or type(length_max) not in (int, type(None)):
        raise _out_of_shape()
    return collections.deque(items, length_max)


def _pattern(state: list[Any]) -> re.Pattern[Any]:
    text, flags = state
    if type(text) not in (str, bytes) or type(flags) is not int:
        raise _out_of_shape()
    return re.compile(text, flags & ~re.DEBUG)  # which would print it


_SPECIAL: dict[type, Registered] = {
    collections.deque: Registered(
        collections.deque, "deque", lambda value: [list(value), value.maxlen], _checked(list, _deque)
    ),
    re.Pattern: Registered(
        re.Pattern,
        "pattern",
        lambda value: [value.pattern, value.flags],
        _checked(list, _pattern),
    ),
}
for _cls in (
    ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network,
    ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network,
):  # fmt: skip
    _SPECIAL[_cls] = Registered(_cls, f"ipaddress.{_cls.__name__}", str, _checked(str, _cls))

_EXCEPTION = Registered(Exception, "exception", repr, _checked(str, str))
"""An error comes back as its text, as with LangGraph's own savers: a class from stored data is never called."""


def _send_state(send: Any) -> list[Any]:
    return [getattr(send, name, None) for name in type(send).__slots__]


def _send_from(state: list[Any]) -> Any:
    cls = safe_class("langgraph.types", "Send")
    if cls is None:
        raise _refused("langgraph.types:Send")
    send: Any = object.__new__(cls)
    for name, value in zip(_slots_of(cls), state, strict=False):
        object.__setattr__(send, name, value)
    return send


def _slots_of(cls: type) -> tuple[str, ...]:
    return tuple(getattr(cls, "__slots__", ()))


def _item_from(state: dict[str, Any]) -> Any:
    cls = safe_class("langgraph.store.base", "Item")
    if cls is None:
        raise _refused("langgraph.store.base:Item")
    item: Any = object.__new__(cls)
    for name, value in state.items():
        if name not in _slots_of(cls):
            raise _out_of_shape()
        object.__setattr__(item, name, value)
    return item


def _array_state(array: Any) -> list[Any]:
    if array.dtype.hasobject:
        raise TypeError("an array of objects cannot be kept")
    order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return [array.dtype.descr if array.dtype.names else array.dtype.str, list(array.shape), order, array.tobytes(order)]


def _array_from(state: list[Any]) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise _refused("numpy:ndarray")
    kind, shape, order, data = state
    if not (_is_plain(kind) and _is_plain(shape) and type(order) is str and type(data) is bytes):
        raise _out_of_shape()
    if isinstance(kind, list):
        kind = [tuple(tuple(part) if isinstance(part, list) else part for part in field) for field in kind]
    dtype = numpy.dtype(kind)
    if dtype.hasobject:
        raise CheckpointCorrupted("a stored array claims to hold objects")
    return numpy.ndarray(tuple(shape), dtype, bytearray(data), order=order)


def _is_plain(value: Any) -> bool:
    """Whether this is text, a number, or a list or tuple of such: what describes an array."""
    if type(value) in (list, tuple):
        return all(_is_plain(item) for item in value)
    return type(value) in (str, int)


def _scalar_from(state: list[Any]) -> Any:
    return _array_from([state[0], [], "C", state[1]])[()]


_SPECIAL_NAMED: dict[Name, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    ("langgraph.types", "Send"): (_send_state, _checked(list, _send_from)),
    ("langgraph.store.base", "Item"): (
        lambda item: {name: getattr(item, name) for name in type(item).__slots__},
        _checked(dict, _item_from),
    ),
    ("numpy", "ndarray"): (_array_state, _checked(list, _array_from)),
}

_SCALAR = "numpy:generic"
_SPECIAL_BY_NAME: dict[str, Registered] = {
    entry.name: entry
    for entry in (
        *_SPECIAL.values(),
        _EXCEPTION,
        *(Registered(object, ":".join(name), *ways) for name, ways in _SPECIAL_NAMED.items()),
        Registered(object, _SCALAR, lambda value: [value.dtype.str, value.tobytes()], _checked(list, _scalar_from)),
        Registered(object, "=", lambda value: value, lambda state: state),
    )
}


def special_for_name(name: str) -> Registered | None:
    """Return how a class with a way of its own is rebuilt."""
    return _SPECIAL_BY_NAME.get(name)


def _special(cls: type) -> Registered | None:
    if cls in _SPECIAL:
        return _SPECIAL[cls]
    if _name(cls) in _SPECIAL_NAMED:
        return _SPECIAL_BY_NAME[":".join(_name(cls))]
    if issubclass(cls, BaseException):
        return _EXCEPTION
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.generic) and not issubclass(cls, (numpy.object_, numpy.void)):
        return _SPECIAL_BY_NAME[_SCALAR]
    return None


def _plain(cls: type) -> Registered | None:
    """Return how a subclass of a plain type is kept: as that type, which is what LangGraph's own savers do."""
    is_one_of_ours = registry.dataclass_fields(cls) is not None or registry.class_attribute(cls, "_fields") is not None
    if registry.is_subclass(cls, enum.Enum) or is_one_of_ours:
        return None
    for kind in (str, bytes, int, float, dict, list, tuple, set, frozenset):
        if issubclass(cls, kind):
            return Registered(cls, "=", kind, lambda state: state)
    return None
