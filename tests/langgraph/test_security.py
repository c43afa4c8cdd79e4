"""Stored bytes that try to call something do nothing but raise; strict savers; secrets; serializers of one's own."""

from __future__ import annotations

import enum
import os
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send
from pydantic import BaseModel, Field, field_validator, model_validator

from everstep import CheckpointCorrupted, EverstepError, UnregisteredType, UnstorableValue
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.channels import CHAT, Channels, Written
from everstep.langgraph.classes import Kinds
from everstep.stores.protocol import Key
from everstep.values import codec
from everstep.values.registry import Registered
from tests.langgraph.same import assert_same, assert_same_channels
from tests.langgraph.tools import FacedSaver, at, checkpoint

CALLS: list[str] = []


@dataclass
class Innocent:
    a: Any = 1

    def __post_init__(self) -> None:
        CALLS.append("__post_init__")

    def __setattr__(self, name: str, value: Any) -> None:
        CALLS.append("__setattr__")
        super().__setattr__(name, value)

    def __setstate__(self, state: Any) -> None:
        CALLS.append("__setstate__")


class Validated(BaseModel):
    a: Any = 1

    @field_validator("a", mode="before")
    @classmethod
    def _field(cls, value: Any) -> Any:
        CALLS.append("validator")
        return value

    @model_validator(mode="before")
    @classmethod
    def _model(cls, value: Any) -> Any:
        CALLS.append("model validator")
        return value

    def model_post_init(self, context: Any) -> None:
        CALLS.append("model_post_init")


class Switch(enum.Enum):
    ON = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        CALLS.append("_missing_")


class Row(NamedTuple):
    a: Any


class Ordinary:
    def __init__(self, *args: Any) -> None:
        CALLS.append("__init__")

    def __reduce__(self) -> Any:
        CALLS.append("__reduce__")
        return Ordinary, ()


class Made(type):
    def __call__(cls, *args: Any) -> Any:
        CALLS.append("metaclass")
        return super().__call__(*args)


@dataclass
class WithMeta(metaclass=Made):
    a: int = 1


def function(*args: Any) -> None:
    CALLS.append("function")


@pytest.fixture
def no_calls(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Whatever the bytes name is not called."""

    def forbidden(*args: Any, **kwargs: Any) -> Any:
        CALLS.append(repr(args))
        raise AssertionError(f"called with {args}")

    CALLS.clear()
    monkeypatch.setattr(os, "system", forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    monkeypatch.setattr(pickle, "loads", forbidden)


class Forged(NamedTuple):
    """Stored as an object of any name and state."""

    name: str
    state: Any


class Forger(Kinds):
    def for_type(self, cls: type) -> Registered | None:
        if cls is Forged:
            return Registered(cls, self._forged, lambda value: value.state, lambda state: state)
        return super().for_type(cls)

    _forged = ""


def forge(saver: HarnessCheckpointer, forged: Forged, where: str) -> None:
    """Store what a saver of this package would never write."""
    kinds = Forger()
    kinds._forged = forged.name
    channels = Channels(kinds)
    forger = HarnessCheckpointer(backend=saver.backend)
    forger._use(forger._threads.by(channels), channels)
    value: Any = {"channel": forged, "below": {"a": [forged]}, "list": [forged] * 40}.get(where)
    config = forger.put(at(), checkpoint("c1", {} if where == "write" else {"messages": [], "x": value}))
    if where == "write":
        forger.put_writes(config, [("x", forged)], "task")


REFUSED: dict[str, tuple[str, Any]] = {
    "os.system": ("os:system", ["true"]),
    "posix.system": ("posix:system", ["true"]),
    "Popen": ("subprocess:Popen", [["true"]]),
    "eval": ("builtins:eval", ["1"]),
    "exec": ("builtins:exec", "1"),
    "import": ("builtins:__import__", ["antigravity"]),
    "type": ("builtins:type", ["X", [], {}]),
    "object": ("builtins:object", {}),
    "getattr": ("builtins:getattr", []),
    "function": (f"{__name__}:function", []),
    "class": (f"{__name__}:Ordinary", []),
    "method": (f"{__name__}:Innocent.__post_init__", []),
    "not imported": ("antigravity:Nothing", {}),
    "not imported below": ("xml.sax.saxutils:XMLGenerator", {}),
    "no module": (":Innocent", {}),
    "no name": (f"{__name__}:", {}),
    "nothing": ("", {}),
    "dots": ("....:....", {}),
    "unregistered": ("Innocent", {}),
    "path": ("pathlib:Path", ["/"]),
    "ordered dict": ("collections:OrderedDict", []),
    "partial": ("functools:partial", ["os:system"]),
    "runnable": ("langchain_core.runnables.base:RunnableLambda", {}),
}


@pytest.mark.usefixtures("no_calls")
@pytest.mark.parametrize("where", ["channel", "below", "list", "write"])
@pytest.mark.parametrize("case", REFUSED)
def test_stored_names_are_refused(case: str, where: str) -> None:
    name, state = REFUSED[case]
    with HarnessCheckpointer() as saver:
        forge(saver, Forged(name, state), where)
        before = set(sys.modules)
        for reader in (saver, HarnessCheckpointer(backend=saver.backend, strict=True)):
            with pytest.raises(UnregisteredType):
                reader.get_tuple(at())
            with pytest.raises(UnregisteredType):
                list(reader.list(at()))
        assert set(sys.modules) == before
        assert CALLS == []


UNKNOWN: dict[str, tuple[str, Any, Any]] = {
    "through a class": (f"{__name__}:Innocent.__class__", {"a": 1}, {"a": 1}),
    "through a module": (f"{__name__}:os.system", ["true"], "true"),
    "through globals": (f"{__name__}:function.__globals__", {}, {}),
    "no such class": (f"{__name__}:Nothing", {"a": [1]}, {"a": [1]}),
    "main": ("__main__:Innocent", [{"a": 1}, {"b": 2}, [], None], {"a": 1, "b": 2}),
    "in a function": (f"{__name__}:function.<locals>.Innocent", ["true", [5]], 5),
}


@pytest.mark.usefixtures("no_calls")
@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
@pytest.mark.parametrize("case", UNKNOWN)
def test_what_names_no_class_is_read_as_data_and_strict_savers_refuse_it(case: str) -> None:
    name, state, data = UNKNOWN[case]
    with HarnessCheckpointer() as saver:
        forge(saver, Forged(name, state), "below")
        before = set(sys.modules)
        assert saver.get(at())["channel_values"]["x"] == {"a": [data]}
        with pytest.raises(UnregisteredType):
            HarnessCheckpointer(backend=saver.backend, strict=True).get_tuple(at())
        assert set(sys.modules) == before
        assert CALLS == []


OUT_OF_SHAPE: dict[str, tuple[str, Any]] = {
    "unknown": (f"{__name__}:Nothing", [1, 2, 3]),
    "unknown number": (f"{__name__}:Nothing", 5),
    "enum unknown": (f"{__name__}:Switch", ["OFF"]),
    "enum shape": (f"{__name__}:Switch", 5),
    "enum empty": (f"{__name__}:Switch", []),
    "dataclass list": (f"{__name__}:Innocent", [1]),
    "dataclass text": (f"{__name__}:Innocent", "a"),
    "dataclass keys": (f"{__name__}:Innocent", {1: 2}),
    "dataclass class": (f"{__name__}:Innocent", {"__class__": 5}),
    "model keys": (f"{__name__}:Validated", {1: 2}),
    "model short": (f"{__name__}:Validated", [{}]),
    "model values": (f"{__name__}:Validated", [5, None, [], None]),
    "model fields": (f"{__name__}:Validated", [{}, None, 5, None]),
    "model lacking": (f"{__name__}:Validated", [{}, None, [], None, False, 0]),
    "model more": (f"{__name__}:Validated", [{}, None, [], None, False, [], 1]),
    "named tuple": (f"{__name__}:Row", 5),
    "deque": ("deque", 5),
    "deque short": ("deque", [[1]]),
    "deque length": ("deque", [[1], "x"]),
    "pattern": ("pattern", ["(", 0]),
    "pattern flags": ("pattern", ["a", "x"]),
    "pattern more": ("pattern", ["a", 0, 1]),
    "address": ("ipaddress.IPv4Address", "not one"),
    "address int": ("ipaddress.IPv4Address", 5),
    "array objects": ("numpy:ndarray", ["O", [1], "C", b"\0" * 8]),
    "array objects inside": ("numpy:ndarray", [[["a", "O"]], [1], "C", b"\0" * 8]),
    "array huge": ("numpy:ndarray", ["<i8", [2**40], "C", b""]),
    "array short": ("numpy:ndarray", ["<i8", [4], "C", b"\0"]),
    "array dtype": ("numpy:ndarray", ["os.system", [1], "C", b"\0"]),
    "array shape": ("numpy:ndarray", ["<i8", "x", "C", b"\0"]),
    "array nothing": ("numpy:ndarray", []),
    "scalar": ("numpy:generic", ["O", b"\0" * 8]),
    "scalar short": ("numpy:generic", ["<f8", b""]),
    "exception": ("exception", [1]),
    "send": ("langgraph.types:Send", 5),
    "item": ("langgraph.store.base:Item", [1]),
}


@pytest.mark.usefixtures("no_calls")
@pytest.mark.parametrize("case", OUT_OF_SHAPE)
def test_stored_states_out_of_shape_are_typed_errors(case: str) -> None:
    import numpy  # noqa: F401  # arrays are only rebuilt where it is imported

    name, state = OUT_OF_SHAPE[case]
    with HarnessCheckpointer() as saver:
        forge(saver, Forged(name, state), "below")
        with pytest.raises((CheckpointCorrupted, UnregisteredType)):
            saver.get_tuple(at())
        assert CALLS == []


def test_what_is_rebuilt_runs_no_code_of_its_class() -> None:
    values = {"innocent": Innocent(5), "validated": Validated(a=6), "switch": Switch.ON, "meta": WithMeta(7)}
    with HarnessCheckpointer() as saver:
        saver.put(at(), checkpoint("c1", values))
        CALLS.clear()
        found = saver.get(at())["channel_values"]
        assert CALLS == []

    assert_same_channels(found, values)


MESSAGES: dict[str, dict[str, Any]] = {
    "unknown type": {"type": "nothing", "content": "x"},
    "no type": {"content": "x"},
    "odd type": {"type": ["human"], "content": "x"},
    "not a message": {"type": "human", "content": "x", "~": [f"{__name__}:Innocent"]},
    "not a class": {"type": "human", "content": "x", "~": ["os:system"]},
    "class of another kind": {"type": "human", "content": "x", "~": [f"{__name__}:Validated"]},
    "odd class": {"type": "human", "content": "x", "~": [5]},
    "odd mark": {"type": "human", "content": "x", "~": 5},
    "odd fields set": {"type": "human", "content": "x", "~": [None, 5]},
    "odd extra": {"type": "human", "content": "x", "~": [None, None, 5]},
}


class RawMessages(Channels):
    """Stores plain dicts as if they had been messages."""

    def written(self, writer: Any, name: str, value: Any, old: Any, objects: Any = None, *, top: bool = False) -> Any:
        written = super().written(writer, name, value, None, top=top)
        return written._replace(form=CHAT) if name == "messages" else written


@pytest.mark.usefixtures("no_calls")
@pytest.mark.parametrize("case", MESSAGES)
def test_forged_messages_are_refused(case: str) -> None:
    with HarnessCheckpointer() as saver:
        channels = RawMessages(Kinds())
        forger = HarnessCheckpointer(backend=saver.backend)
        forger._use(forger._threads.by(channels), channels)
        forger.put(at(), checkpoint("c1", {"messages": [MESSAGES[case]]}))
        with pytest.raises((CheckpointCorrupted, UnregisteredType)):
            saver.get_tuple(at())
        assert CALLS == []


class RawCodec:
    """Writes bytes as they are given."""

    def __init__(self, kinds: Kinds, packed: bytes) -> None:
        self._codec, self._packed = kinds.codec, packed

    def pack(self, value: Any, path: str = "", depth_above: int = 0) -> bytes:
        return self._packed if value == "raw" else self._codec.pack(value, path, depth_above)

    def pack_long(self, value: Any, path: str = "", depth_above: int = 0, before: Any = None) -> bytes:
        return self.pack(value, path, depth_above)

    def pack_items(self, items: list[Any], path: str, first: int = 0, **_: Any) -> bytes:
        return b"".join([self.pack(item, f"{path}[{first + n}]") for n, item in enumerate(items)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)


@pytest.mark.parametrize("tag", [0, 10, 15, 22, 31, 38, 64, 100, 127])
def test_unknown_tags_are_refused(tag: int) -> None:
    with HarnessCheckpointer() as saver:
        kinds = Kinds()
        kinds.codec = RawCodec(kinds, ormsgpack.packb(ormsgpack.Ext(tag, b"\x93\xa2os\xa6system\xa4true")))  # type: ignore[assignment]
        channels = Channels(kinds)
        forger = HarnessCheckpointer(backend=saver.backend)
        forger._use(forger._threads.by(channels), channels)
        forger.put(at(), checkpoint("c1", {"x": "raw", "y": 1}))
        with pytest.raises(CheckpointCorrupted):
            saver.get_tuple(at())


# -- classes that would do something if they could ---------------------------------------------------------------------


class Shared(BaseModel):
    """Gives out the same object again and again."""

    admin: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        CALLS.append("__new__")
        return SHARED[0] if SHARED else super().__new__(cls)


SHARED: list[Shared] = []
SHARED.append(Shared())


def _made_default() -> list[Any]:
    CALLS.append("default_factory")
    return []


@dataclass
class Factored:
    a: int = 1
    items: list[Any] = field(default_factory=_made_default)


class FactoredMessage(HumanMessage):
    more: list[Any] = Field(default_factory=_made_default)


class Hooked(HumanMessage):
    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        CALLS.append("__subclasshook__")
        return NotImplemented


class Guess(enum.IntEnum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        CALLS.append("_missing_")
        return cls.ONE


class Rights(enum.Flag):
    READ = 1
    WRITE = 2

    @classmethod
    def _missing_(cls, value: object) -> Any:
        CALLS.append("_missing_")
        return super()._missing_(value)


class OddRights(enum.Flag):
    READ = 1
    WRITE = 2

    def __setattr__(self, name: str, value: Any) -> None:
        CALLS.append("__setattr__")
        super().__setattr__(name, value)


class ComparesClasses(type):
    def __hash__(cls) -> int:
        CALLS.append("metaclass __hash__")
        return 5

    def __eq__(cls, other: object) -> bool:
        CALLS.append("metaclass __eq__")
        return True


class AsksClasses(type):
    def __getattribute__(cls, name: str) -> Any:
        CALLS.append(f"metaclass {name}")
        return super().__getattribute__(name)

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        CALLS.append("metaclass __module__")
        return "builtins"

    def __instancecheck__(cls, instance: object) -> bool:
        CALLS.append("__instancecheck__")
        return True

    def __subclasscheck__(cls, subclass: type) -> bool:
        CALLS.append("__subclasscheck__")
        return True


@dataclass
class OfComparing(metaclass=ComparesClasses):
    a: int = 1


@dataclass
class OfAsking(metaclass=AsksClasses):
    a: int = 1


class Slot:
    """A descriptor that says when something is set."""

    def __set__(self, instance: Any, value: Any) -> None:
        CALLS.append("descriptor __set__")

    def __get__(self, instance: Any, owner: Any) -> Any:
        CALLS.append("descriptor __get__")
        return 1


@dataclass
class Described:
    a: int = 1
    held = Slot()

    @property
    def shouted(self) -> str:
        return "x"

    @shouted.setter
    def shouted(self, value: str) -> None:
        CALLS.append("setter")


class Proxy:
    """Claims to be a class."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        CALLS.append("__class__")
        return type


proxy = Proxy()


def _says(name: str) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        CALLS.append(f"Trap.{name}")
        raise TypeError(name)

    return method


def _trap() -> type:
    """Return a class of which nothing may be used."""
    names = [
        "iter", "next", "getitem", "setitem", "delitem", "len", "bool", "index", "int", "float", "str", "repr", "bytes",
        "fspath", "contains", "call", "format", "add", "radd", "or", "ror", "and", "sub", "lt", "le", "gt", "ge",
        "enter", "length_hint", "missing", "reversed", "round", "trunc", "copy", "deepcopy", "reduce_ex", "getstate",
        "setstate", "setattr", "delattr", "array", "array_interface", "buffer",
    ]  # fmt: skip
    found = {f"__{name}__": _says(name) for name in names}
    found |= {name: _says(name) for name in ("get", "items", "keys", "values", "startswith", "split", "pop", "dtype")}
    return dataclass(type("Trap", (), {"__annotations__": {"a": int}, "a": 1, "__module__": __name__, **found}))


Trap = _trap()


def _watched(self: Any, name: str) -> Any:
    if name not in ("__class__", "__dict__"):  # what pytest and the forger look at
        CALLS.append(f"Trap getattr {name}")
    return object.__getattribute__(self, name)


Trap.__getattribute__ = _watched  # type: ignore[method-assign, assignment]


def tagged(tag: int, content: bytes) -> bytes:
    return codec.tag_header(tag, len(content)) + content


def packed_list(*items: bytes) -> bytes:
    return codec.array_header(len(items)) + b"".join(items)


def stored_object(name: str, state: Any) -> bytes:
    """Return an object of that name as it is stored; the state may be packed already."""
    packed = state if isinstance(state, bytes) else codec.pack(state)
    return tagged(codec.OBJECT, packed_list(codec.pack(name), packed))


def named(cls: Any) -> str:
    return f"{__name__}:{cls if isinstance(cls, str) else type.__dict__['__qualname__'].__get__(cls)}"


TRAP = stored_object(named("Trap"), {"a": 1})
ONE = codec.pack(1)

HOSTILE: dict[str, bytes] = {
    "__new__": stored_object(named(Shared), [{"admin": True}, None, ["admin"], None]),
    "default_factory": stored_object(named(Factored), {"a": 1}),
    "_missing_ by name": stored_object(named(Guess), ["TWO"]),
    "_missing_ by value": stored_object(named(Guess), [None, 2]),
    "_missing_ by text": stored_object(named(Guess), [None, "ONE"]),
    "_missing_ of flags": stored_object(named(Rights), [None, 64]),
    "_missing_ of flags combined": stored_object(named(Rights), [None, 3]),
    "__setattr__ of flags": stored_object(named(OddRights), [None, 3]),
    "metaclass that compares": stored_object(named("OfComparing"), {"a": 1}),
    "metaclass that asks": stored_object(named("OfAsking"), {"a": 1}),
    "setter": stored_object(named(Described), {"a": 1, "shouted": "x", "held": 2}),
    "__class__": stored_object(named(Described), {"__class__": 1}),
    "proxy": stored_object(named("proxy"), {}),
    "inside a proxy": stored_object(named("proxy.a"), {}),
    "lazy module": stored_object("tests.lazy_module:Thing", {}),
    "no module": stored_object("tests.odd_module:Thing", {}),
    "module __getattr__": stored_object("tests.made_module:Thing", {}),
    "trap": TRAP,
    "list of traps": packed_list(TRAP, TRAP),
    "dict of traps": codec.map_header(1) + codec.pack("a") + TRAP,
    "object of a trap": tagged(codec.OBJECT, TRAP),
    "object named by a trap": tagged(codec.OBJECT, packed_list(TRAP, ONE)),
}
EVERYWHERE = tuple(HOSTILE)
"""What is tried in every place; the rest is about what stands inside a value, and is tried in one."""

for _tag in (codec.TUPLE, codec.SET, codec.FROZENSET, codec.MAP, *range(codec.DATETIME, codec.ZONE + 1)):
    HOSTILE[f"tag {_tag} of a trap"] = tagged(_tag, TRAP)
for _tag in (*range(codec.DATETIME, codec.ZONE + 1), *range(codec.UUID, codec.PATH + 1)):
    for _count in (1, 2, 3, 9):
        HOSTILE[f"tag {_tag} of {_count} traps"] = tagged(_tag, packed_list(*[TRAP] * _count))
        HOSTILE[f"tag {_tag} of {_count} and a trap"] = tagged(_tag, packed_list(*[ONE] * _count, TRAP))
for _name in (
    "deque", "pattern", "exception", "=", "numpy:ndarray", "numpy:generic", "ipaddress.IPv4Address",
    "langgraph.types:Send", "langgraph.store.base:Item", "langgraph.types:Interrupt",
    "langchain_core.messages.ai:AIMessage",
    *(named(cls) for cls in (Innocent, Validated, Switch, Row, Shared, Factored, Rights, Described)),
):  # fmt: skip
    HOSTILE[f"{_name} of a trap"] = stored_object(_name, TRAP)
    for _count in (1, 2, 4):
        HOSTILE[f"{_name} of {_count} traps"] = stored_object(_name, packed_list(*[TRAP] * _count))
    HOSTILE[f"{_name} of none and a trap"] = stored_object(_name, packed_list(codec.pack(None), TRAP))
    HOSTILE[f"{_name} of a tuple of traps"] = stored_object(_name, tagged(codec.TUPLE, packed_list(TRAP)))
    HOSTILE[f"{_name} of a dict of traps"] = stored_object(_name, codec.map_header(1) + codec.pack("a") + TRAP)
    HOSTILE[f"{_name} of a dict and traps"] = stored_object(
        _name, packed_list(codec.map_header(1) + codec.pack("a") + TRAP, codec.pack(None), packed_list(TRAP), TRAP)
    )


class Raw:
    """Bytes to be stored as they are."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed


class RawPacker(RawCodec):
    """Writes `Raw` as it is, in lists and dicts too."""

    def pack(self, value: Any, path: str = "", depth_above: int = 0) -> bytes:
        if type(value) is Raw:
            return value.packed
        if type(value) is list:
            return packed_list(*[self.pack(item, path) for item in value])
        if type(value) is dict:
            pairs = [self.pack(key) + self.pack(item, path) for key, item in value.items()]
            return codec.map_header(len(pairs)) + b"".join(pairs)
        return self._codec.pack(value, path)


class RawChannels(RawMessages):
    """Writes what no saver writes; `spoil` is what it does to the rest of a checkpoint."""

    def __init__(self) -> None:
        kinds = Kinds()
        kinds.codec = RawPacker(kinds, b"")  # type: ignore[assignment]
        super().__init__(kinds)
        self.spoil: Callable[[dict[str, Any]], Any] = lambda rest: rest

    def envelope(self, writer: Any, rest: dict[str, Any], kept: Any) -> Any:
        return super().envelope(writer, self.spoil(rest), kept)


def raw_forger(saver: HarnessCheckpointer) -> tuple[HarnessCheckpointer, RawChannels]:
    channels = RawChannels()
    forger = HarnessCheckpointer(backend=saver.backend)
    forger._use(forger._threads.by(channels), channels)
    return forger, channels


def chat_with(**more: Any) -> list[Any]:
    return [{"type": "human", "content": "x", "id": None, "additional_kwargs": {}, "name": None, **more}]


PLACES: dict[str, Callable[[Raw], dict[str, Any]]] = {
    "channel": lambda raw: {"x": raw},
    "below": lambda raw: {"x": {"a": [raw, 1]}, "y": 1},
    "large": lambda raw: {"x": {"a": [raw, "x" * 5000]}, "y": ["y" * 5000, raw]},
    "messages": lambda raw: {"messages": [raw]},
    "message field": lambda raw: {"messages": chat_with(additional_kwargs=raw)},
    "message content": lambda raw: {"messages": chat_with(content=raw, id=raw)},
    "message type": lambda raw: {"messages": chat_with(type=raw)},
    "mark": lambda raw: {"messages": chat_with(**{"~": raw})},
    "mark class": lambda raw: {"messages": chat_with(**{"~": [raw]})},
    "mark fields": lambda raw: {"messages": chat_with(**{"~": [None, raw]})},
    "mark field": lambda raw: {"messages": chat_with(**{"~": [None, [raw]]})},
    "mark extra": lambda raw: {"messages": chat_with(**{"~": [None, None, raw]})},
    "mark extras": lambda raw: {"messages": chat_with(**{"~": [None, None, [raw]]})},
    "mark private": lambda raw: {"messages": chat_with(**{"~": [None, None, None, raw]})},
}


class LazyModule(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        CALLS.append(f"module {name}")
        return super().__getattribute__(name)


@pytest.fixture
def odd_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("tests.made_module")
    made.__getattr__ = _says("module __getattr__")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "tests.lazy_module", LazyModule("tests.lazy_module"))
    monkeypatch.setitem(sys.modules, "tests.made_module", made)
    monkeypatch.setitem(sys.modules, "tests.odd_module", object.__new__(Trap))


def read_all(saver: HarnessCheckpointer) -> None:
    """Read a thread in every way; what is wrong with it is an error of ours."""
    ways: list[Callable[[], Any]] = [
        lambda: saver.get_tuple(at()),
        lambda: saver.get_tuple(at()),  # from what is remembered
        lambda: list(saver.list(at())),
        lambda: saver.get_delta_channel_history(config=at(), channels=["x", "messages"]),
        lambda: saver.engine.sync.get_latest("t"),
        lambda: saver.with_allowlist([Switch]).get_tuple(at()),
    ]
    for way in ways:
        try:
            way()
        except EverstepError:
            pass


@pytest.mark.usefixtures("no_calls", "odd_modules")
@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
@pytest.mark.parametrize("place", PLACES)
def test_no_class_that_bytes_name_runs_anything(place: str) -> None:
    import numpy  # noqa: F401  # its arrays are rebuilt where it is imported

    for case in HOSTILE if place == "channel" else EVERYWHERE:
        packed = HOSTILE[case]
        with HarnessCheckpointer() as saver:
            forger, _ = raw_forger(saver)
            config = forger.put(at(), checkpoint("c1", PLACES[place](Raw(packed))))
            if place == "channel":
                forger.put_writes(config, [("x", Raw(packed)), ("messages", [Raw(packed)])], "task")
            CALLS.clear()
            read_all(HarnessCheckpointer(backend=saver.backend))
            read_all(HarnessCheckpointer(backend=saver.backend, strict=True))
            read_all(HarnessCheckpointer(backend=saver.backend, allow=[Shared, Factored, Rights]))
            assert CALLS == [], case
    assert SHARED[0].admin is False


RESTS: dict[str, Callable[[dict[str, Any], Raw], Any]] = {
    "all": lambda rest, raw: raw,
    "v": lambda rest, raw: {**rest, "v": raw},
    "versions": lambda rest, raw: {**rest, "channel_versions": raw},
    "version": lambda rest, raw: {**rest, "channel_versions": {"x": raw}},
    "seen": lambda rest, raw: {**rest, "versions_seen": raw},
    "forms": lambda rest, raw: {**rest, "forms": raw},
    "form": lambda rest, raw: {**rest, "forms": {"x": raw}},
    "form below": lambda rest, raw: {**rest, "forms": {"x": {"a": raw}}},
    "form of messages": lambda rest, raw: {**rest, "forms": {"messages": raw}},
    "seeds": lambda rest, raw: {**rest, "seeds": raw},
    "more": lambda rest, raw: {**rest, "more": raw},
    "absent": lambda rest, raw: {**rest, "absent": raw},
    "odd": lambda rest, raw: {**rest, "odd": raw},
    "updated": lambda rest, raw: {**rest, "updated_channels": raw},
    "none": lambda rest, raw: {},
}


@pytest.mark.usefixtures("no_calls")
@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("where", RESTS)
def test_objects_in_the_rest_of_a_checkpoint_are_not_asked_anything(where: str, size: int) -> None:
    with HarnessCheckpointer() as saver:
        forger, channels = raw_forger(saver)
        channels.spoil = lambda rest: RESTS[where]({**rest, "note": "x" * size}, Raw(TRAP))
        values = {"x": {"a": [1]}, "messages": chat_with()}
        config = forger.put(at(), checkpoint("c1", values))
        CALLS.clear()
        reader = HarnessCheckpointer(backend=saver.backend)
        read_all(reader)
        channels.spoil = lambda rest: rest
        try:
            reader.put(config, checkpoint("c2", {"x": {"a": [1]}}), {}, {})
        except EverstepError:
            pass
        assert CALLS == []


@pytest.mark.usefixtures("no_calls")
@pytest.mark.parametrize("case", ["trap", "row", "rows", "form", "task"])
def test_objects_among_the_writes_of_a_delta_channel_are_not_asked_anything(case: str) -> None:
    raw = Raw(TRAP)
    items = {"trap": raw, "row": [raw], "rows": [[raw, raw, raw]], "form": [["t", raw, 1]], "task": [[raw, 0, raw]]}
    with HarnessCheckpointer() as saver:
        forger, channels = raw_forger(saver)
        packed = RawPacker(Kinds(), b"").pack(items[case])
        spoiled = Written(0, len(packed), packed, None)
        whole = Channels.envelope
        channels.envelope = lambda writer, rest, kept: whole(  # type: ignore[method-assign]
            channels, writer, rest, {"writes:x": spoiled, "seed:x": spoiled}
        )
        forger.put(at(), checkpoint("c1", {"y": 1}))
        CALLS.clear()
        read_all(saver)
        with pytest.raises(CheckpointCorrupted):
            saver.get_delta_channel_history(config=at(), channels=["x"])
        assert CALLS == []


def test_messages_are_filled_up_without_calling_anything() -> None:
    for cls in (FactoredMessage, Hooked):
        with HarnessCheckpointer() as saver:
            forger, _ = raw_forger(saver)
            fields = {"type": "human", "content": "x", "~": [named(cls)]}
            forger.put(at(), checkpoint("c1", {"messages": [fields], "y": 1}))
            CALLS.clear()
            if cls is FactoredMessage:
                with pytest.raises(CheckpointCorrupted, match=r"FactoredMessage.more.*function"):
                    saver.get_tuple(at())
            else:  # what LangChain's own classes take from list and dict is there
                found = saver.get(at())["channel_values"]["messages"][0]
                assert (type(found), found.content, found.additional_kwargs) == (cls, "x", {})
            assert CALLS == []


def test_a_model_with_a_shared_object_is_rebuilt_as_one_of_its_own() -> None:
    with HarnessCheckpointer() as saver:
        forger, _ = raw_forger(saver)
        forger.put(at(), checkpoint("c1", {"x": Raw(HOSTILE["__new__"]), "y": Raw(HOSTILE["__new__"])}))
        found = saver.get(at())["channel_values"]
    assert found["x"] is not SHARED[0]
    assert found["x"] is not found["y"]
    assert (found["x"].admin, SHARED[0].admin) == (True, False)


def test_honest_objects_of_such_classes_come_back_exactly() -> None:
    values = {
        "factored": Factored(3, [1]),
        "rights": [Rights.READ, Rights.READ | Rights.WRITE, Rights(0)],
        "guess": Guess.ONE,
        "asking": OfAsking(4),
        "described": Described(5),
        "messages": [FactoredMessage(content="x", more=[1]), Hooked(content="y")],
    }
    with HarnessCheckpointer() as saver:
        saver.put(at(), checkpoint("c1", values))
        CALLS.clear()
        found = HarnessCheckpointer(backend=saver.backend).get(at())["channel_values"]
        assert CALLS == []
    assert_same_channels(found, values)


@pytest.mark.filterwarnings("ignore::everstep.UnknownClassWarning")
def test_what_could_not_be_rebuilt_without_calling_it_is_read_as_data() -> None:
    values = {"rights": OddRights.READ | OddRights.WRITE, "comparing": OfComparing()}
    with HarnessCheckpointer() as saver:
        saver.put(at(), checkpoint("c1", values))
        CALLS.clear()
        found = HarnessCheckpointer(backend=saver.backend).get(at())["channel_values"]
        assert CALLS == []
        # Python remembers the flags that were combined in this process.
        assert found == {"rights": values["rights"], "comparing": {"a": 1}}
        strict = HarnessCheckpointer(strict=True, allow=[OddRights])
        with pytest.raises(UnstorableValue, match="_missing_"):
            strict.put(at(), checkpoint("c1", {"x": values["rights"]}))


class Keyed(BaseModel):
    a: int = 1

    def __hash__(self) -> int:
        CALLS.append("__hash__")
        return 1

    def __eq__(self, other: object) -> bool:
        CALLS.append("__eq__")
        return self is other

    def __del__(self) -> None:
        CALLS.append("__del__")


KEYED = stored_object(named(Keyed), [{"a": 1}, None, ["a"], None])


@pytest.mark.parametrize(
    "packed",
    [
        tagged(codec.SET, packed_list(KEYED, KEYED)),
        tagged(codec.FROZENSET, packed_list(KEYED, KEYED)),
        tagged(codec.MAP, packed_list(KEYED, ONE, KEYED, ONE)),
        KEYED,
    ],
)
def test_what_does_run_is_refused_by_strict_savers(packed: bytes) -> None:
    """Python hashes and compares keys and members, and finalizes what nobody holds: the documents say so."""
    with HarnessCheckpointer() as saver:
        forger, _ = raw_forger(saver)
        forger.put(at(), checkpoint("c1", {"x": Raw(packed)}))
        strict = HarnessCheckpointer(backend=saver.backend, strict=True)
        CALLS.clear()
        with pytest.raises(UnregisteredType, match="Keyed"):
            strict.get_tuple(at())
        with pytest.raises(UnregisteredType, match="Keyed"):
            list(strict.list(at()))
        assert CALLS == []
        saver.get_tuple(at())
        assert "__del__" in CALLS
        assert ("__hash__" in CALLS) is (packed is not KEYED)


# -- strict ------------------------------------------------------------------------------------------------------------


UNSAFE: dict[str, Callable[[], Any]] = {
    "dataclass": Innocent,
    "model": Validated,
    "enum": lambda: Switch.ON,
    "named tuple": lambda: Row(1),
}


@pytest.mark.parametrize("name", UNSAFE)
async def test_strict_refuses_at_save_and_at_read_what_is_not_allowed(make_saver: Any, name: str) -> None:
    value = UNSAFE[name]()
    loose, strict = make_saver(), make_saver(strict=True)
    with pytest.raises(UnstorableValue, match=rf"^x\[1\].*{type(value).__qualname__}.*allow="):
        await strict.add("c1", {"x": [1, value]})
    with pytest.raises(UnstorableValue, match="allow="):
        await strict.put_writes(at(name="c1"), [("x", value)], "task")
    assert await strict.keys() == []

    await loose.add("c1", {"x": [1, value], "messages": [value]})
    with pytest.raises(UnregisteredType, match=f"{type(value).__qualname__}.*allow="):
        await strict.get_tuple(at())
    with pytest.raises(UnregisteredType, match=type(value).__qualname__):
        await strict.listed(at())

    cls = type(value)
    for allowed in (
        make_saver(strict=True, allow=[cls]),
        make_saver(strict=True, allow=[(cls.__module__, cls.__qualname__)]),
        FacedSaver(strict.whole.with_allowlist([(cls.__module__, cls.__qualname__)]), strict.face),
        FacedSaver(strict.whole.with_allowlist([cls]), strict.face),
    ):
        assert_same_channels(await allowed.values(), {"x": [1, value], "messages": [value]})
        await allowed.add("c2", {"x": value}, "other")


async def test_strict_keeps_what_langgraph_itself_uses(make_saver: Any) -> None:
    values = {
        "messages": [HumanMessage("x"), AIMessage("y", tool_calls=[])],
        "tasks": [Send("node", {"x": 1})],
        "interrupt": Interrupt(value=1, id="i"),
        "plain": {"a": (1, {2}), "b": b"x"},
    }
    strict = make_saver(strict=True)
    await strict.add("c1", values)

    assert_same_channels(await strict.values(), values)


class Subclass(HumanMessage):
    pass


def test_strict_refuses_messages_of_other_classes() -> None:
    with HarnessCheckpointer(strict=True) as strict:
        with pytest.raises(UnstorableValue, match=r"messages\[0\].*Subclass"):
            strict.put(at(), checkpoint("c1", {"messages": [Subclass(content="x")]}))
        HarnessCheckpointer(backend=strict.backend).put(at(), checkpoint("c1", {"messages": [Subclass(content="x")]}))
        with pytest.raises(UnregisteredType, match="Subclass"):
            strict.get(at())
        allowed = HarnessCheckpointer(backend=strict.backend, strict=True, allow=[Subclass])
        assert_same(allowed.get(at())["channel_values"], {"messages": [Subclass(content="x")]})


def test_an_allow_list_does_not_reach_the_saver_it_came_from() -> None:
    with HarnessCheckpointer(strict=True) as strict:
        clone = strict.with_allowlist([Innocent])
        clone.put(at(), checkpoint("c1", {"x": Innocent()}))
        assert clone.get(at()) is not None
        with pytest.raises(UnregisteredType):
            strict.get(at())
        with pytest.raises(UnregisteredType):
            strict.with_allowlist([Switch]).get(at())


def _long_chat(cls: type[HumanMessage]) -> list[HumanMessage]:
    """Return a conversation that is long enough for copies of its messages to be kept."""
    return [cls(content="x" * 3000, id=str(n)) for n in range(40)]


@pytest.mark.parametrize("where", ["messages", "others", "x", "write"])
async def test_a_clone_gets_nothing_of_what_another_keeps_at_hand(make_saver: Any, where: str) -> None:
    """What was read often is kept ready to copy; a clone with fewer classes reads it by its own rules."""
    strict = make_saver(strict=True)
    loose = FacedSaver(strict.whole.with_allowlist([Subclass, Innocent]), strict.face)
    made = {"messages": _long_chat(Subclass), "others": _long_chat(Subclass), "x": {"y": [Innocent()]}}
    values = {name: value for name, value in made.items() if name == where}  # one at a time: each is refused
    await loose.add("c1", values)
    if where == "write":
        await loose.put_writes(at(name="c1"), [("x", Innocent())], "task")
    for _ in range(3):
        assert_same_channels(await loose.values(), values)

    fewer = FacedSaver(strict.whole.with_allowlist([Switch]), strict.face)
    for saver in (strict, fewer):
        for _ in range(3):
            with pytest.raises(UnregisteredType):
                await saver.get_tuple(at())
            with pytest.raises(UnregisteredType):
                await saver.get_tuple(at(name="c1"))
            with pytest.raises(UnregisteredType):
                await saver.listed(at())
    assert_same_channels(await loose.values(), values)


@pytest.mark.parametrize("was_read", [False, True])
@pytest.mark.parametrize("new", [None, {}, {"messages": 1}])
async def test_a_clone_puts_nothing_that_it_would_not_read(make_saver: Any, new: Any, was_read: bool) -> None:
    """What another saver wrote last is what the next checkpoint is written from, but not by that one's rules."""
    strict = make_saver(strict=True)
    loose = FacedSaver(strict.whole.with_allowlist([Subclass]), strict.face)
    messages = _long_chat(Subclass)
    await loose.add("c1", {"messages": messages})
    if was_read:  # in a saver that remembers nothing yet
        strict = make_saver(strict=True)
        with pytest.raises(UnregisteredType):
            await strict.get_tuple(at())
    with pytest.raises(UnstorableValue, match=r"messages\[0\].*Subclass"):
        await strict.add("c2", {"messages": messages}, parent="c1", new=new)
    with pytest.raises(UnstorableValue, match=r"messages\[0\].*Subclass"):
        await strict.add("c2", {"messages": [*messages, HumanMessage("more")]}, parent="c1", new=new)
    assert await loose.ids(at()) == ["c1"]


def test_a_clone_goes_on_cheaply_with_what_it_may_read() -> None:
    strict = HarnessCheckpointer(strict=True)
    loose = strict.with_allowlist([Subclass])
    messages = _long_chat(HumanMessage)
    loose.put(at(), checkpoint("c1", {"messages": messages}))
    longer = [*messages, HumanMessage("more", id="more")]
    strict.put(at(name="c1"), checkpoint("c2", {"messages": longer}))

    assert_same_channels(strict.get(at())["channel_values"], {"messages": longer})
    line = strict._threads._lines.get(Key("t", "", "c2"))
    assert line is not None
    assert len(line.fresh) < 5  # not all 41 messages again


# -- secrets -----------------------------------------------------------------------------------------------------------


SECRETS = [
    "openai_api_key", "api_key", "apikey", "OPENAI_API_KEY", "openaiApiKey", "x-api-key", "password", "db_password",
    "passwd", "passphrase", "secret", "client_secret", "clientSecret", "aws_secret_access_key", "access_key",
    "accessKey", "private_key", "token", "access_token", "accessToken", "auth_token", "refresh-token",
    "github.token", "bearer", "authorization", "Authorization", "auth", "credential", "credentials",
    "google_credentials", "cookie", "session_cookie", "pwd", "PASSWORD", "Token", "jwt", "api_token",
    "token_secret", "OPENAI_KEY", "openaiKey", "pass", "db_pass", "SMTP_PASS", "connection_string",
    "connectionString", "conn_str", "db_url", "DATABASE_URL", "redisUrl", "mongo_uri", "dsn", "postgres_dsn",
    "APIKey", "DBPassword", "dbpassword", "api_keys", "refreshTokens", "accesstoken", "api_key_2", "token2",
    "apiKeyValue", "x-goog-api-key", "aws_access_key_id", "AWS_SESSION_TOKEN", "github_pat", "Set-Cookie",
    "cookies", "auth_header", "oauth", "slack_webhook_url", "secrets", "my secret", "signing-key", "otp",
    "HF_TOKEN", "user.password", "proxy_authorization", "service_account_key", "ssh_key", "id_token", "user_pw",
]  # fmt: skip
HARMLESS = [
    "max_tokens", "token_count", "total_tokens", "tokenizer", "author", "authority", "user_id", "model", "run_id",
    "assistant_id", "keyboard", "monkey", "key", "primary_key", "keywords", "passed", "passenger",
    "cookies_enabled", "input_tokens", "max_completion_tokens", "token_limit", "compass", "temperature",
    "tokens_used", "secretary", "secretariat", "thread_key", "cacheKey", "partition_key", "public_key", "key_id",
    "hotkey", "turkey", "tokens", "maxTokens", "eos_token", "price_per_token", "time_to_first_token",
    "tokenization", "passing", "bypass", "first_pass", "passport", "pass_rate", "url", "base_url", "image_url",
    "callbackUrl", "string", "query_string", "authors", "auth_type", "auth_method", "authenticated",
    "langgraph_auth_user", "keys", "monkeys", "session_id", "passwordless", "cookiecutter", "idempotency_key",
    "patch", "pattern", "dsns", "path", "42", "_", "\u00fcber", "webhooks_on",
]  # fmt: skip


@pytest.mark.parametrize("part", ["configurable", "metadata"])
async def test_secrets_of_the_config_are_not_kept(saver: FacedSaver, part: str) -> None:
    given = {name: f"value of {name}" for name in [*SECRETS, *HARMLESS]}
    await saver.add("c1", {}, config={part: given}, metadata={"step": 1})

    found = (await saver.get_tuple(at())).metadata
    assert sorted(set(SECRETS) & set(found)) == []
    assert sorted(set(HARMLESS) - set(found)) == []
    assert await saver.ids(at(), filter={"api_key": "value of api_key"}) == []


async def test_what_is_a_secret_may_be_said(make_saver: Any) -> None:
    saver = make_saver(is_secret=lambda name: name == "colour")
    await saver.add("c1", {}, config={"configurable": {"colour": "red", "password": "kept", "size": 3}})

    assert (await saver.get_tuple(at())).metadata == {"password": "kept", "size": 3}


def test_secrets_are_nowhere_in_the_file(tmp_path: Any) -> None:
    path = tmp_path / "a.db"
    with HarnessCheckpointer.from_url(str(path)) as saver:
        config = {"configurable": {"thread_id": "t", "openai_api_key": "sk-very-secret"}, "metadata": {"token": "sk-2"}}
        saver.put_writes(saver.put(config, checkpoint("c1", {"a": 1}), {}, {}), [("a", 2)], "task")
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"sk-very-secret" not in data
    assert b"sk-2" not in data


# -- serializers -------------------------------------------------------------------------------------------------------


class Turned:
    """A serializer that turns bytes round, and says what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        self.seen.append(value)
        kind, data = JsonPlusSerializer().dumps_typed(value)
        return f"turned {kind}", data[::-1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return JsonPlusSerializer().loads_typed((data[0].removeprefix("turned "), data[1][::-1]))


class OldStyle:
    """A serializer of the time before types."""

    def dumps(self, value: Any) -> bytes:
        return repr(value).encode()[::-1]

    def loads(self, data: bytes) -> Any:
        return eval(data[::-1])


class Cipher(CipherProtocol):
    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "xor"
        return bytes(byte ^ 0x5A for byte in ciphertext)


SERDES: dict[str, Callable[[], Any]] = {
    "turned": Turned,
    "old": OldStyle,
    "encrypted": lambda: EncryptedSerializer(Cipher()),
    "json plus": lambda: JsonPlusSerializer(pickle_fallback=True),
}


@pytest.mark.parametrize("name", SERDES)
async def test_a_serializer_of_ones_own_gets_every_value(make_saver: Any, name: str) -> None:
    saver = make_saver(serde=SERDES[name]())
    text = "readable text " * 50
    values = {"a": 1, "b": [text, {"x": None}], "messages": [text] * 3}
    await saver.add("c1", values)
    await saver.add("c2", {**values, "messages": [text] * 4}, parent="c1", versions={"a": 1, "b": 1, "messages": 2})
    await saver.put_writes(at(name="c2"), [("a", text), ("__error__", [1])], "task")

    assert_same_channels(await saver.values(name="c1"), values)
    assert_same_channels(await saver.values(), {**values, "messages": [text] * 4})
    assert await saver.writes() == [("task", "__error__", [1]), ("task", "a", text)]
    with pytest.raises(EverstepError, match="serde="):
        await make_saver().get_tuple(at())
    assert await saver.delete_thread("t") == 2


@pytest.mark.parametrize("name", ["turned", "old", "encrypted"])
def test_with_a_serializer_no_value_is_readable_in_the_file(tmp_path: Any, name: str) -> None:
    with HarnessCheckpointer.from_url(str(tmp_path / "a.db"), serde=SERDES[name]()) as saver:
        for n in range(3):
            config = saver.put(
                at(), checkpoint(f"c{n}", {"a": "readable-text", "messages": ["readable-text"] * (n + 1)})
            )
            saver.put_writes(config, [("a", "readable-text"), ("messages", {"k": "readable-text"})], "task")
        data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"readable" not in data
        assert saver.get(at())["channel_values"] == {"a": "readable-text", "messages": ["readable-text"] * 3}


def test_messages_go_through_the_serializer_too() -> None:
    serde = Turned()
    with HarnessCheckpointer(serde=serde) as saver:
        messages = [HumanMessage("x", id="1"), AIMessage("y", id="2")]
        saver.put(at(), checkpoint("c1", {"messages": messages}))
        assert messages in serde.seen
        assert saver.get(at())["channel_values"] == {"messages": messages}


def test_a_serializer_that_fails_is_named() -> None:
    with HarnessCheckpointer(serde=JsonPlusSerializer()) as saver:
        with pytest.raises(UnstorableValue, match=r"^plan.*function.*serializer"):
            saver.put(at(), checkpoint("c1", {"plan": function, "a": 1}))
        with pytest.raises(UnstorableValue, match=r"^plan.*serializer"):
            saver.put_writes(at(name="c1"), [("plan", lambda: 0)], "task")
        assert list(saver.list(at())) == []


def test_what_a_serializer_cannot_read_is_corrupted() -> None:
    class Other(Turned):
        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            raise ValueError("wrong key")

    with HarnessCheckpointer(serde=Turned()) as saver:
        saver.put(at(), checkpoint("c1", {"a": 1}))
        with pytest.raises(CheckpointCorrupted, match=r"wrong key.*'t'.*'c1'"):
            HarnessCheckpointer(backend=saver.backend, serde=Other()).get(at())


def test_an_allow_list_reaches_a_serializer_that_has_one() -> None:
    strict = HarnessCheckpointer(serde=JsonPlusSerializer(allowed_msgpack_modules=None))
    clone = strict.with_allowlist([(__name__, "Innocent")])
    clone.put(at(), checkpoint("c1", {"x": Innocent(4)}))

    assert_same(clone.get(at())["channel_values"], {"x": Innocent(4)})
    assert strict.get(at())["channel_values"] != {"x": Innocent(4)}
