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
import importlib.machinery
import ipaddress
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

from everstep.errors import CheckpointCorrupted, InvalidInput, UnregisteredType, UnstorableValue
from everstep.langgraph import plain_classes
from everstep.langgraph.local_classes import IN_PROCESS, LocalClasses
from everstep.values import class_forms, class_looks, codec, registry
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
    "the saver does not know how to rebuild its class; call everstep.register(cls, to_state=..., from_state=...), or "
    "store plain data"
)
_ADVICE_STRICT = (
    "the saver is strict and rebuilds only the classes that it is allowed; pass a dataclass, pydantic model, enum or "
    "named tuple in allow=[...]; for any other class call everstep.register(cls, to_state=..., from_state=...), or "
    "store plain data"
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
        self.strict = strict
        self._serde = serde
        self._classes = {_name(cls): cls for cls in self._allow if isinstance(cls, type)}
        self._names = SAFE | set(self._classes) | {(e[0], e[1]) for e in self._allow if not isinstance(e, type)}
        self._declared: frozenset[Name] = frozenset()
        """Classes that a graph declares, by module and `__name__`."""
        self._gives_data = not strict
        """Whether an object whose class is not known is read as plain data."""
        self._by_type: dict[type, Registered] = {}
        self._by_name: dict[str, Registered] = {}
        self._passing: dict[type, Registered] = {}
        """Classes that cannot be found by name; not many are held, because a function may define ever more of them."""
        self._local = LocalClasses()
        self.codec = codec.Codec(self, _ADVICE_STRICT if strict else ADVICE)

    def extended(self, allow: Iterable[type | tuple[str, ...]]) -> Kinds:
        """Return the same rules with more classes allowed."""
        more = frozenset(allow)
        found = Kinds(self._allow | more, strict=self.strict, serde=self._serde)
        found._declared = self._declared | {(e[0], e[1]) for e in more if not isinstance(e, type)}
        found._gives_data = self._gives_data
        found._local = self._local
        return found

    def exact(self) -> Kinds:
        """Return the same rules, but for unknown classes: they are refused. For what is read to be written again."""
        found = self.extended(())
        found._gives_data = False
        return found

    def for_type(self, cls: type) -> Registered | None:
        """Return how objects of exactly this class are kept."""
        found = registry.for_type(cls) or self._by_type.get(cls) or self._passing.get(cls)
        if found is None:
            found = _special(cls) or self._rebuilt(cls) or plain_classes.plain_kind(cls)
            if found is None and not self.strict:
                found = plain_classes.described(cls)
            if found is not None:
                self._remember(cls, found)
        return found

    def _remember(self, cls: type, found: Registered) -> None:
        name = class_looks.full_name(cls)
        if name in self._classes or (name is not None and class_looks.find_class(*name) is cls):
            self._by_type[cls] = found
            return
        if len(self._passing) >= _PASSING_MAX:
            self._passing.clear()
        self._passing[cls] = found
        if found.cls is cls and _is_rebuilt(found):
            self._local.add(found)
            IN_PROCESS.add(found)

    def for_name(self, name: str) -> Registered:
        """Return how objects stored under this name are rebuilt; refuse what may not be."""
        found = registry.for_name(name) or _SPECIAL_BY_NAME.get(name)
        if found is not None:
            return found
        cls = self._class(name)
        found = self._by_name.get(name)
        # A class may be defined again, as by a cell of a notebook. Where it is gone, the one that was there still does.
        if found is not None and (cls is None or cls is found.cls):
            return found
        if cls is None:
            # Another class of that name may come at any time, so this is not remembered.
            return self._for_local_name(name) or self._as_data(name, None)
        found = self._under_name(cls, name)
        if found is None or not _is_rebuilt(found):
            return self._as_data(name, cls)
        self._by_name[name] = found
        return found

    def is_certain(self, name: str) -> bool:
        """Whether a name means the same class at all times: one that can be found by it, and is not in a notebook."""
        if registry.for_name(name) is not None or name in _SPECIAL_BY_NAME:
            return True
        return not name.startswith("__main__:") and self._class(name) is not None

    def _class(self, name: str) -> type | None:
        module, separator, qualname = name.partition(":")
        found = self._classes.get((module, qualname)) if separator else None
        if found is None and separator:
            found = (
                safe_class(module, qualname) if (module, qualname) in SAFE else class_looks.find_class(module, qualname)
            )
        return found

    def _for_local_name(self, name: str) -> Registered | None:
        module, _, qualname = name.partition(":")
        if self.strict and not self._is_allowed((module, qualname)):
            return None
        if name in self._local:
            return self._local.get(name)
        return IN_PROCESS.get(name)

    def _under_name(self, cls: type, name: str) -> Registered | None:
        """Return how objects of a class are rebuilt that were stored under this name."""
        found = self.for_type(cls)
        if found is not None and found.name != name:
            # The class was registered under another name since.
            found = self._rebuilt(cls, is_trusted=registry.for_type(cls) is not None)
        return found if found is not None and found.name == name else None

    def _as_data(self, name: str, cls: type | None) -> Registered:
        """Return how objects are read whose class cannot be had: as plain data, unless that is refused."""
        module, _, qualname = name.partition(":")
        is_name = qualname != "" and all(part.isidentifier() for part in module.split("."))
        if not self._gives_data or not is_name or module in _SAFE_MODULES:
            raise _refused(name, cls is not None, self.strict)
        found = class_looks.find_object(module, qualname)
        if found is not None:
            if class_looks.is_class(found) and plain_classes.is_described(found):
                return plain_classes.data_entry(name, _NOT_REBUILT)
            raise _refused(name, found=True)  # no saver has written that
        if "<locals>" in qualname:
            return plain_classes.data_entry(name, _DEFINED_IN_FUNCTION)
        if module not in sys.modules and _is_there(module):
            raise _refused(name)  # it only has to be imported
        return plain_classes.data_entry(name, f"{_GONE} everstep.register(cls, name={name!r})")

    def is_storable(self, value: Any) -> bool:
        """Whether a value can be kept."""
        try:
            self.codec.pack(value)
        except UnstorableValue:
            return False
        return True

    def _is_allowed(self, name: Name) -> bool:
        return name in self._names or (name[0], name[1].rpartition(".")[2]) in self._declared

    def _rebuilt(self, cls: type, *, is_trusted: bool = False) -> Registered | None:
        name = class_looks.full_name(cls)
        if name is None or (self.strict and not is_trusted and not self._is_allowed(name)):
            return None
        stored_name = ":".join(name)
        try:
            to_state, from_state = class_forms.known_ways(
                cls, self_describing=name not in SAFE, is_storable=None if self.strict else self.is_storable
            )
        except InvalidInput:
            return self._rebuilt_otherwise(cls, name)
        if class_looks.is_subclass(cls, enum.Enum) and self._gives_data:
            from_state = _member_or_value(stored_name, from_state)
        return Registered(cls, stored_name, to_state, from_state)

    def _rebuilt_otherwise(self, cls: type, name: Name) -> Registered | None:
        ways = class_forms.secret_ways(cls)
        if ways is None and self._serde is not None and self._is_allowed(name):
            ways = _ways_of_serializer(self._serde)
        return Registered(cls, ":".join(name), *ways) if ways is not None else None


def _ways_of_serializer(serde: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return how LangGraph's serializer keeps objects and gets them back."""

    def to_state(value: Any) -> list[Any]:
        try:
            return list(serde.dumps_typed(value))
        except TypeError as exc:
            reason = "allow= alone is not enough; call everstep.register(cls, to_state=..., from_state=...)"
            raise TypeError(f"{exc}: {reason}") from exc

    def from_state(state: Any) -> Any:
        return serde.loads_typed(tuple(state))

    return to_state, from_state


_PASSING_MAX = 64

_NOT_REBUILT = (
    "because a saver does not rebuild objects of its class; call everstep.register(cls, to_state=..., from_state=...) "
    "to have them rebuilt"
)
_DEFINED_IN_FUNCTION = (
    "because its class is defined inside a function and is not known in this process, or there are several of that "
    "name; define the class in a module and import that before reading, or pass it in allow=[...]"
)
_GONE = (
    "because there is no such class in this process; import the module that defines it before reading, or, if it was "
    "moved or renamed, call"
)


def _is_rebuilt(entry: Registered) -> bool:
    """Whether objects come back as such, and not as something plainer."""
    return entry.from_state is not plain_classes.same and ":" in entry.name


def _member_or_value(name: str, from_state: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a way to read members of an enum that gives the value of one which the class has no more."""

    def member_or_value(state: Any) -> Any:
        try:
            return from_state(state)
        except CheckpointCorrupted:
            if type(state) is not list or len(state) != 2:
                raise
            value = plain_classes.as_data(name, state)
            plain_classes.warn_once(name, "because its class has no such member now; give it one of that name or value")
            return value

    return member_or_value


@functools.lru_cache(1024)
def _is_there(module: str) -> bool:
    """Whether there is such a module to import. Nothing is imported to find out."""
    if module in sys.stdlib_module_names:
        return True
    path: Any = None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:number]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
        if path is None:
            return number == len(parts)
    return True


def _refused(name: str, found: bool = False, strict: bool = False) -> UnregisteredType:
    module, separator, _ = name.partition(":")
    if not separator:
        return UnregisteredType(name)
    if not found and module in _SAFE_MODULES:
        return UnregisteredType(name, f"and there is no {module} here; install {module.partition('.')[0]}")
    if not found and "<locals>" in name:
        return UnregisteredType(name, f"which cannot be rebuilt, {_DEFINED_IN_FUNCTION}")
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
    return class_looks.full_name(cls) or ("", "")


def safe_class(module: str, qualname: str) -> type | None:
    """Return one of LangGraph's own classes; None if it is not installed. Its module is imported if need be."""
    if module in _SAFE_MODULES and _is_importable(module):
        return class_looks.find_class(module, qualname)
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
    if issubclass(cls, BaseException) and class_looks.dataclass_fields(cls) is None:
        return _EXCEPTION
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.generic) and not issubclass(cls, (numpy.object_, numpy.void)):
        return _SPECIAL_BY_NAME[_SCALAR]
    return None
