"""Values of many classes, defined inside a function and in this module: what LangGraph's own savers keep of them.

Run as a program it reads what another process has saved: `python -m tests.langgraph.kinds FILE`.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import ipaddress
import json
import pathlib
import sys
import uuid
import warnings
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from langchain_core.messages import AIMessage
from pydantic import BaseModel, PrivateAttr, RootModel, SecretStr, create_model
from pydantic.v1 import BaseModel as OldModel

from everstep.langgraph import HarnessCheckpointer

Item = TypeVar("Item")


def local_values() -> dict[str, Any]:
    """Return objects of classes that no other process can find."""

    @dataclasses.dataclass
    class Plan:
        city: str
        days: list[int] = dataclasses.field(default_factory=list)

    @dataclasses.dataclass(slots=True, frozen=True)
    class Spot:
        x: int

    class Trip(BaseModel):
        plan: dict[str, int]
        when: dt.datetime

    class Trips(BaseModel):
        first: Trip
        more: list[Trip]
        spot: Spot

    class Open(BaseModel, extra="allow"):
        a: int
        _private: int = PrivateAttr(5)

    class Roots(RootModel[list[int]]):
        pass

    class Box(BaseModel, Generic[Item]):
        item: Item

    class Old(OldModel):
        a: int
        b: list[int] = []

    class Pair(NamedTuple):
        a: int
        b: str = "x"

    class Color(enum.Enum):
        RED = 1
        BLUE = "b"

    class Number(enum.IntEnum):
        ONE = 1

    class Letter(enum.StrEnum):
        A = "a"

    class Rights(enum.Flag):
        READ = 1
        WRITE = 2

    make_class: Any = collections.namedtuple  # the other way to make one
    trip = Trip(plan={"a": 1}, when=dt.datetime(2024, 5, 1))
    return {
        "dataclass": Plan("Oslo", [1]),
        "slots": Spot(3),
        "model": trip,
        "nested": Trips(first=trip, more=[trip], spot=Spot(1)),
        "open": Open.model_validate({"a": 1, "z": 9}),
        "root": Roots([1, 2]),
        "generic": Box[int](item=1),
        "created": create_model("Created", a=(int, 1))(a=3),
        "version 1": Old(a=1, b=[2]),
        "named tuple": Pair(1),
        "namedtuple": make_class("Made", "a b")(1, 2),
        "enum": Color.BLUE,
        "int enum": Number.ONE,
        "str enum": Letter.A,
        "flags": Rights.READ | Rights.WRITE,
        "in a list": [Color.RED, {"plan": Plan("Rome")}],
        "in a set": {Spot(1)},
    }


def data_values() -> dict[str, Any]:
    """Return objects that come back as plain data in this process as well."""

    class Odd(enum.Enum):
        ONE = 1

        @classmethod
        def _missing_(cls, value: object) -> Any:
            member = object.__new__(cls)
            member._value_, member._name_ = value, str(value)
            return member

    class Comparing(type):
        def __hash__(cls) -> int:
            return 1

        def __eq__(cls, other: object) -> bool:
            return cls is other

    @dataclasses.dataclass
    class OfComparing(metaclass=Comparing):
        a: int

    @dataclasses.dataclass
    class Failure(Exception):
        code: int

    class Says:
        def __init__(self, method: str) -> None:
            setattr(type(self), method, lambda self: {"a": 1})

    class Dumps(Says):
        pass

    class Dicts(Says):
        pass

    class AsDicts(Says):
        pass

    return {
        "made by _missing_": Odd(7),
        "metaclass that compares": OfComparing(1),
        "exception": Failure(5),
        "model_dump": Dumps("model_dump"),
        "dict": Dicts("dict"),
        "_asdict": AsDicts("_asdict"),
    }


class Subdict(dict[str, Any]):
    pass


@dataclasses.dataclass
class Fieldless(dict[str, Any]):
    a: int = 1


def plain_values() -> dict[str, tuple[Any, Any]]:
    """Return objects of subclasses of plain types, and what each comes back as in any process."""

    def made(kind: Any, *arguments: Any) -> tuple[Any, Any]:
        return type("Sub", (kind,), {})(*arguments), kind(*arguments)

    return {
        "dict": (Subdict(a=1), {"a": 1}),
        "dataclass of dict": (Fieldless(), {}),
        "str": made(str, "x"),
        "bytearray": made(bytearray, b"x"),
        "deque": made(collections.deque, [1], 3),
        "datetime": made(dt.datetime, 2024, 5, 1, 12),
        "date": made(dt.date, 2024, 5, 1),
        "time": made(dt.time, 5),
        "timedelta": made(dt.timedelta, 5),
        "uuid": made(uuid.UUID, "0" * 32),
        "decimal": made(decimal.Decimal, "1.50"),
        "path": made(type(pathlib.Path()), "/x"),
        "address": made(ipaddress.IPv4Address, "127.0.0.1"),
        "interface": made(ipaddress.IPv6Interface, "::1/64"),
        "memoryview": (memoryview(b"x"), b"x"),
        "masked array": (np.ma.array([1, 2], mask=[False, True]), np.array([1, 2])),
    }


@dataclasses.dataclass(frozen=True)
class Route:
    city: str


class Journey(BaseModel):
    route: Route


class OldJourney(OldModel):
    city: str


class Couple(NamedTuple):
    a: int
    b: str = "x"


class Paint(enum.Enum):
    RED = 1


class Outer:
    class Inner(BaseModel):
        a: int


class Spoken(AIMessage):
    mood: str = ""


def module_values() -> dict[str, Any]:
    """Return objects of classes that every process finds which imports this module."""
    return {
        "dataclass": Route("Oslo"),
        "model": Journey(route=Route("Oslo")),
        "version 1": OldJourney(city="Rome"),
        "named tuple": Couple(1),
        "enum": Paint.RED,
        "inner": Outer.Inner(a=1),
        "secret": SecretStr("s"),
        "in a set": {Route("Rome")},
        "message": Spoken(content="hi", mood="good", id="1"),
    }


def read_elsewhere(path: str) -> None:
    """Print what this process gets of each thread, and the classes that it was warned of."""
    found: dict[str, str] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with HarnessCheckpointer.from_url(path) as saver:
            for name in [saved.config["configurable"]["thread_id"] for saved in saver.list(None)]:
                for _ in range(2):
                    value = saver.get({"configurable": {"thread_id": name}})["channel_values"]["value"]
                found[name] = repr(value)
    told = sorted(f"{warned.category.__name__}: {warned.message}" for warned in caught)
    print(json.dumps({"values": found, "warnings": told}))


if __name__ == "__main__":
    # The classes of this module are to have its own name, not `__main__`.
    from tests.langgraph import kinds

    kinds.read_elsewhere(sys.argv[1])
