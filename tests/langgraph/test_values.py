"""Odd values through channels, writes and metadata: what comes back is what was saved, or saving it is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import sys
import uuid
import zoneinfo
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, ConfigDict, PrivateAttr, field_validator

import everstep
from everstep import UnstorableValue
from everstep.langgraph import HarnessCheckpointer
from tests.langgraph.same import assert_same, assert_same_channels, parts_that_change
from tests.langgraph.tools import FacedSaver, at, checkpoint

T = TypeVar("T")


@dataclass
class Plan:
    title: str
    steps: list[Any] = field(default_factory=list)
    hidden: int = field(default=0, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float = 0.0


@dataclass
class Once:
    """Made wrong on purpose if its constructor runs again."""

    value: int

    def __post_init__(self) -> None:
        self.value += 1


@dataclass
class Box(Generic[T]):
    inside: T


class Colour(enum.Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796  # another name of the same
    DARK = ("dark", 1)


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: Any
    right: Any = None


Old = namedtuple("Old", "a b")


class Model(BaseModel):
    name: str
    count: int = 3
    tags: list[str] = []
    inner: Any = None
    _secret: Any = PrivateAttr(default=None)

    @field_validator("name")
    @classmethod
    def _loud(cls, value: str) -> str:
        return value.upper()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    a: int = 1


class Outer:
    @dataclass
    class Inner:
        a: int

    class Shade(enum.Enum):
        GREY = 1


class Text(str):
    pass


class Number(int):
    pass


class Table(dict[str, Any]):
    pass


def model() -> Model:
    made = Model(name="abc", inner={"deep": (1, Open(a=2, more=[3]))})  # type: ignore[call-arg]  # it is open
    made._secret = {"kept": {1, 2}}
    made.count = 2**80
    return made


def deep(levels: int) -> Any:
    value: Any = "deep"
    for n in range(levels):
        value = {"k": value} if n % 2 else [value]
    return value


EXACT: dict[str, Any] = {
    "none": None,
    "true": True,
    "one": 1,
    "one float": 1.0,
    "minus zero": -0.0,
    "nan": float("nan"),
    "infinities": [float("inf"), float("-inf")],
    "big": [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 2**200, -(2**200)],
    "text": "ünïcödé \U0001f600",
    "nul": "a\0b\0",
    "surrogates": ["\ud800", "a\udfffb", {"\udcff": "\udc00\ud800"}],
    "line ends": "\r\n\u2028",
    "empty": ["", b"", [], {}, (), set(), frozenset(), bytearray()],
    "empty list": [],
    "empty dict": {},
    "empty tuple": (),
    "empty text": "",
    "tuple": (1, (2, [3, (4,)])),
    "list of tuples": [(1, 2), [1, 2]],
    "set": {1, "a", None, (1, 2)},
    "frozenset": frozenset({frozenset({1}), "x"}),
    "bytes": b"\x00\xff" * 3,
    "bytearray": bytearray(b"\x00\xff"),
    "mixed bytes": [b"a", bytearray(b"a"), {"k": bytearray(b"b")}],
    "keys": {1: "int", "1": "text", 1.5: "float", None: "none", (1, 2): "tuple", b"b": "bytes", True + 1: "two"},
    "key order": {"b": 1, "a": 2, "": 3},
    "odd keys": {"~": 1, "lc": 2, "type": "human", "__class__": 3, "a.b": 4, "$ref": 5},
    "datetime": dt.datetime(2026, 1, 2, 3, 4, 5, 678901),
    "datetime utc": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "datetime zone": dt.datetime(2026, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"), fold=1),
    "datetime offset": dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, seconds=7), "odd")),
    "date": dt.date(9999, 12, 31),
    "time": dt.time(1, 2, 3, 4, tzinfo=dt.UTC),
    "timedelta": dt.timedelta(days=-1, microseconds=3),
    "decimal": [decimal.Decimal("1.10"), decimal.Decimal("-0"), decimal.Decimal("Infinity")],
    "fraction": fractions.Fraction(1, 3),
    "complex": 1 - 2j,
    "range": range(1, 10, 3),
    "uuid": uuid.UUID(int=7),
    "path": [pathlib.PurePosixPath("/a/b"), pathlib.PureWindowsPath("c:\\x")],
    "enum": [Colour.RED, Colour.CRIMSON, Colour.DARK, Level.LOW, Word.YES, Rights.READ, Rights.READ | Rights.WRITE],
    "enum key": {Colour.RED: 1},
    "nested classes": [Outer.Inner(1), Outer.Shade.GREY],
    "dataclass": Plan("p", [1, Plan("q")], hidden=5),
    "frozen slots": Point(1.5, float("inf")),
    "generic": Box[Any](Box("a")),
    "named tuple": [Pair(1, [2]), Old(1, {"b": 2})],
    "model": model(),
    "model set": Model(name="x", count=3),
    "model extra": Open(a=5, more={"x": (1,)}),  # type: ignore[call-arg]  # it is open
    "deque": [deque([1, (2,)], maxlen=3), deque()],
    "regex": [re.compile("a(b)", re.IGNORECASE | re.DOTALL), re.compile(b"\xff")],
    "addresses": [
        ipaddress.ip_address("10.0.0.1"), ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_interface("::1/64"),
    ],
    "array": np.arange(12, dtype=np.int32).reshape(3, 4),
    "array fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "array odd": [np.array([]), np.array(5), np.array([True]), np.array(["ab"]), np.array([1], dtype=">i8")],
    "array times": np.array(["2026-01-02"], dtype="datetime64[D]"),
    "array named": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "scalars": [np.float32(1.5), np.int64(-3), np.bool_(True), np.datetime64("2026-01-02"), np.str_("s")],
    "message": HumanMessage("x", id="1"),
    "messages below": {"a": [AIMessage("y"), {"b": (HumanMessage("z"),)}]},
    "message and text": ["x", HumanMessage("y")],
    "tuple of messages": (HumanMessage("y"),),
    "document": Document("text", metadata={"a": (1,)}, id="d"),
    "send": [Send("node", {"x": (1, 2)})],
    "interrupt": (Interrupt(value={"ask": (1,)}, id="i"),),
    "overwrite": Overwrite([1]),
    "command": Command(update={"a": 1}, goto=["x"], resume={"i": 1}),
    "item": Item(value={"a": 1}, key="k", namespace=("a", "b"), created_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
                 updated_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)),
    "long text": "0123456789" * 200_000,
    "long list": [{"n": n, "t": f"text {n}"} for n in range(500)],
    "long tuple": tuple(range(5000)),
    "long dict": {f"k{n}": [n] for n in range(1500)},
    "long set": set(range(3000)),
    "deep": deep(80),
    "list of empty": [[], {}, None] * 40,
    "alias": [[1, 2]] * 3,
}  # fmt: skip


async def test_all_values_come_back_exactly_from_every_store(saver: FacedSaver) -> None:
    config = await saver.add("c1", EXACT)
    await saver.put_writes(config, list(EXACT.items()), "task")

    assert_same_channels(await saver.values(), EXACT)
    assert_same_channels({channel: value for _, channel, value in await saver.writes()}, EXACT)
    assert_same_channels((await saver.listed(at()))[0].checkpoint["channel_values"], EXACT)


@pytest.mark.parametrize("name", EXACT)
def test_each_value_comes_back_exactly(name: str) -> None:
    """Alone and as a part, read cold and warm, unchanged and under a parent."""
    value = EXACT[name]
    with HarnessCheckpointer() as saver:
        values = {"v": value, "messages": [value], "in": {"list": [value, value]}}
        saver.put(at(), checkpoint("c1", values))
        saver.put(at(name="c1"), checkpoint("c2", {**values, "messages": [value, value]}))
        saver.put_writes(at(name="c2"), [("v", value), ("__interrupt__", [value])], "task")

        for reader in (saver, HarnessCheckpointer(backend=saver.backend)):
            found = reader.get_tuple(at())
            assert found is not None
            assert_same_channels(found.checkpoint["channel_values"], {**values, "messages": [value, value]})
            assert_same(found.pending_writes, [("task", "__interrupt__", [value]), ("task", "v", value)])
            assert_same_channels(reader.get(at(name="c1"))["channel_values"], values)


@pytest.mark.parametrize("name", EXACT)
def test_two_readers_share_nothing_that_changes(name: str) -> None:
    with HarnessCheckpointer() as saver:
        given = {"v": EXACT[name], "messages": [EXACT[name]]}
        config = saver.put(at(), checkpoint("c1", given), {"m": {"a": [1]}})
        saver.put_writes(config, [("v", EXACT[name])], "task")
        readings = [saver.get_tuple(at()), saver.get_tuple(at()), *saver.list(at()), *saver.list(at())]

        changing: list[dict[int, str]] = [parts_that_change(given)]
        for found in readings:
            assert found is not None
            changing.append(parts_that_change((found.checkpoint, found.metadata, found.pending_writes)))
        for n, some in enumerate(changing):
            for others in changing[n + 1 :]:
                assert not {some[part] for part in some.keys() & others.keys()}


METADATA: dict[str, Any] = {
    name: EXACT[name]
    for name in (
        "none", "one float", "nan", "infinities", "big", "text", "surrogates", "empty", "tuple", "set", "bytes",
        "bytearray", "keys", "key order", "datetime utc", "decimal", "uuid", "long text", "long dict", "deep",
    )
}  # fmt: skip


async def test_metadata_comes_back_exactly(saver: FacedSaver) -> None:
    await saver.add("c1", {}, metadata=METADATA)

    # A dict that reads by attribute too.
    assert_same(dict((await saver.get_tuple(at())).metadata), METADATA)
    assert_same(dict((await saver.listed(at()))[0].metadata), METADATA)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)  # refused before any store is asked
@pytest.mark.parametrize("name", ["enum", "dataclass", "model", "message", "array", "deque"])
async def test_metadata_takes_no_objects(saver: FacedSaver, name: str) -> None:
    with pytest.raises(UnstorableValue, match=r"^metadata\.more\.m\b"):
        await saver.add("c1", {}, metadata={"more": {"m": EXACT[name]}})

    assert await saver.keys() == []


class OldWord(str, enum.Enum):  # noqa: UP042
    NO = "no"


async def test_scalars_of_the_config_are_kept_as_plain_ones(saver: FacedSaver) -> None:
    given = {
        "level": Level.LOW, "word": Word.YES, "old": OldWord.NO, "ratio": np.float64(0.5), "text": Text("x"),
        "number": Number(3), "flag": True, "string": np.str_("s"),
    }  # fmt: skip
    await saver.add("c1", {}, config={"configurable": given}, metadata={"source": OldWord.NO, "step": Level.LOW})

    assert_same(
        dict((await saver.get_tuple(at())).metadata),
        {
            "source": "no", "step": 1, "level": 1, "word": "yes", "old": "no", "ratio": 0.5, "text": "x", "number": 3,
            "flag": True, "string": "s",
        },
    )  # fmt: skip


async def test_nul_is_left_out_of_texts_in_metadata(saver: FacedSaver) -> None:
    """As LangGraph's own savers do, at the top; below it stays."""
    await saver.add("c1", {}, metadata={"a": "x\0y", "b": {"c": "x\0y"}})

    assert (await saver.get_tuple(at())).metadata == {"a": "xy", "b": {"c": "x\0y"}}


async def test_odd_names_of_channels_and_tasks(saver: FacedSaver) -> None:
    names = [
        "",
        "a.b",
        "a b",
        "'\"",
        "ключ",
        "\0",
        "~",
        "forms",
        "seed:x",
        "writes:x",
        "messages",
        "__start__",
        "x" * 500,
    ]
    values = {name: [n, {"name": name}] for n, name in enumerate(names)}
    config = await saver.add("c1", values)
    await saver.put_writes(config, list(values.items()), "a task\0 ' \" ü", "a path")

    assert_same_channels(await saver.values(), values)
    assert {channel: value for _, channel, value in await saver.writes()} == values
    assert (await saver.get(at()))["channel_versions"] == dict.fromkeys(names, 1)
    assert (await saver.writes())[0][0] == "a task\0 ' \" ü"


PLAIN: list[tuple[Any, Any]] = [
    (Text("a"), "a"),
    (Number(3), 3),
    (Table(a=Text("b")), {"a": "b"}),
    (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
    (defaultdict(list, a=[1]), {"a": [1]}),
    (Counter("aab"), {"a": 2, "b": 1}),
    ([Text("a")], ["a"]),
    (ValueError("a", 1), "ValueError('a', 1)"),
    (everstep.EverstepError("x"), "EverstepError('x')"),
    (KeyboardInterrupt(), "KeyboardInterrupt()"),
    ({"e": KeyError("k")}, {"e": "KeyError('k')"}),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN)
async def test_subclasses_of_plain_types_come_back_plain_and_errors_as_their_text(value: Any, expected: Any) -> None:
    saver = FacedSaver(HarnessCheckpointer(), "async")
    config = await saver.add("c1", {"v": value, "messages": [value]})
    await saver.put_writes(config, [("__error__", value)], "task")

    assert_same_channels(await saver.values(), {"v": expected, "messages": [expected]})
    assert_same(await saver.writes(), [("task", "__error__", expected)])


def test_constructors_and_validators_do_not_run_again() -> None:
    with HarnessCheckpointer() as saver:
        once = Once(1)
        saver.put(at(), checkpoint("c1", {"once": once, "model": Model.model_construct(name="low", count="no int")}))
        values = saver.get(at())["channel_values"]

    assert values["once"].value == once.value == 2
    assert (values["model"].name, values["model"].count) == ("low", "no int")


class Plain:
    pass


class Slotted:
    __slots__ = ("a",)


def local_class() -> Any:
    @dataclass
    class Local:
        a: int = 1

    return Local()


def local_model() -> Any:
    class LocalModel(BaseModel):
        a: int = 1

    return LocalModel()


def holding_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


UNSTORABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "function": (lambda: lambda: 0, "function"),
    "file": (lambda: sys.stdout, "TextIOWrapper|EncodedFile|CaptureIO"),
    "object": (object, "object"),
    "plain class": (Plain, "Plain"),
    "slots": (Slotted, "Slotted"),
    "class itself": (lambda: Plan, "type"),
    "module": (lambda: sys, "module"),
    "generator": (lambda: iter(x for x in "a"), "generator"),
    "user dict": (lambda: UserDict(a=1), "UserDict"),
    "chain": (lambda: ChainMap({}), "ChainMap"),
    "array of objects": (lambda: np.array([object()]), "ndarray"),
    "itself": (holding_itself, "list"),
}


@pytest.mark.parametrize("name", UNSTORABLE)
async def test_what_cannot_be_kept_is_refused_with_channel_path_and_type(name: str) -> None:
    saver = FacedSaver(HarnessCheckpointer(), "async")
    make, kind = UNSTORABLE[name]
    for channel, value, path in (
        ("plan", make(), "plan"),
        ("plan", {"steps": [1, make()]}, r"plan\.steps\[1\]"),
        ("plan", (0, {"a": make()}), r"plan\[1\]\.a"),
        ("messages", ["x", {"y": make()}], r"messages\[1\]\.y"),
    ):
        with pytest.raises(UnstorableValue, match=rf"^{path}.*({kind})") as refused:
            await saver.add("c1", {"fine": 1, channel: value})
        assert refused.value.path.startswith(channel)
        with pytest.raises(UnstorableValue, match=rf"^{path}.*({kind})"):
            await saver.put_writes(at(name="c1"), [("fine", 1), (channel, value)], "task")
        with pytest.raises(UnstorableValue, match=rf"^metadata\.{path}.*({kind})"):
            await saver.add("c1", {}, metadata={channel: value})
    assert await saver.keys() == []
    await saver.add("c1", {})
    assert await saver.writes() == []


@pytest.mark.parametrize("kind", ["memory"], indirect=True)  # refused before any store is asked
@pytest.mark.parametrize("name", ["plan", "messages"])
async def test_what_nests_too_deep_is_refused_with_its_channel(saver: FacedSaver, name: str) -> None:
    for value in (deep(150), [deep(150)] * 300, {"k": deep(150)}, {"k": [deep(150)] * 300}):
        with pytest.raises(UnstorableValue, match=f"^{name}.*deeper"):
            await saver.add("c1", {"fine": 1, name: value})
        with pytest.raises(UnstorableValue, match=f"^{name}.*deeper"):
            await saver.put_writes(at(name="c1"), [(name, value)], "task")
    with pytest.raises(UnstorableValue, match=r"^metadata.*deeper"):
        await saver.add("c1", {}, metadata={"k": deep(150)})

    assert await saver.keys() == []


async def test_a_message_with_something_that_cannot_be_kept_is_refused_by_path(saver: FacedSaver) -> None:
    message = HumanMessage("x", additional_kwargs={"callback": [Plain()]})
    with pytest.raises(UnstorableValue, match=r"messages\[1\]\.additional_kwargs\.callback\[0\].*Plain"):
        await saver.add("c1", {"messages": [HumanMessage("y"), message]})
    with pytest.raises(UnstorableValue, match=r"messages.*additional_kwargs\.callback\[0\].*Plain"):
        await saver.put_writes(at(name="c1"), [("messages", message)], "task")

    assert await saver.keys() == []


async def test_after_a_refusal_work_goes_on(saver: FacedSaver) -> None:
    await saver.add("c1", {"messages": ["x" * 2000]})
    with pytest.raises(UnstorableValue):
        await saver.add("c2", {"messages": ["x" * 2000, object()]}, parent="c1", versions={"messages": 2})
    await saver.add("c2", {"messages": ["x" * 2000, "y"]}, parent="c1", versions={"messages": 2})

    assert await saver.values() == {"messages": ["x" * 2000, "y"]}
    assert await saver.ids(at()) == ["c2", "c1"]


def test_a_class_may_be_registered_or_allowed() -> None:
    value = local_class()
    allowed = HarnessCheckpointer(allow=[type(value)])
    allowed.put(at(), checkpoint("c1", {"v": value}))

    assert_same_channels(allowed.get(at())["channel_values"], {"v": value})


@pytest.mark.parametrize("options", [{}, {"allow": [Plain]}, {"strict": True}, {"strict": True, "allow": [Plain]}])
def test_a_refusal_says_what_helps(options: Any) -> None:
    """An object of a plain class is not helped by `allow=`: only its own two functions can keep it."""
    with pytest.raises(UnstorableValue, match=r"register\(cls, to_state=\.\.\., from_state=") as refused:
        HarnessCheckpointer(**options).put(at(), checkpoint("c1", {"v": Plain()}))
    if "strict" not in options:
        assert "pass it in allow=" not in str(refused.value)


texts = st.text(st.characters(exclude_categories=()))
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=()), max_size=3) | st.integers(), inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.builds(Pair, inner, inner)
        | st.builds(Plan, st.text(), st.lists(inner, max_size=2))
    ),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(plain_values, min_size=1, max_size=4), st.lists(plain_values, max_size=3))
def test_any_values_come_back_exactly_over_several_steps(first: list[Any], more: list[Any]) -> None:
    with HarnessCheckpointer() as saver:
        saver.put(at(), checkpoint("c0", {"a": first, "messages": first, "b": first[0]}))
        for n, value in enumerate(more):
            values = {"a": [*first, *more[: n + 1]], "messages": [*more[n:], *first], "b": value}
            saver.put(at(name=f"c{n}"), checkpoint(f"c{n + 1}", values), {}, dict.fromkeys(values, n))
            for reader in (saver, HarnessCheckpointer(backend=saver.backend)):
                assert_same_channels(reader.get(at())["channel_values"], values)


# -- what new_versions leaves out --------------------------------------------------------------------------------------


async def test_two_branches_with_equal_versions_keep_their_own_values(saver: FacedSaver) -> None:
    await saver.add("c1", {"a": "root", "b": ["root"] * 300}, versions={"a": 1, "b": 1})
    for name, text in (("c2", "left"), ("c3", "right")):
        values: dict[str, Any] = {"a": text, "b": [text] * 300}
        await saver.add(name, values, parent="c1", versions={"a": 2, "b": 2})
        await saver.get_tuple(at(name="c1"))
    for name, parent, text in (("c4", "c2", "left"), ("c5", "c3", "right")):
        values = {"a": text, "b": [text] * 300, "c": 1}
        await saver.add(name, values, parent=parent, versions={"a": 2, "b": 2, "c": 3}, new={"c": 3})

    for name, text in (("c1", "root"), ("c2", "left"), ("c3", "right"), ("c4", "left"), ("c5", "right")):
        values = await saver.values(name=name)
        assert (values["a"], values["b"]) == (text, [text] * 300)


async def test_a_copy_put_under_another_parent_without_new_versions_keeps_its_values(saver: FacedSaver) -> None:
    await saver.add("c1", {"a": "old", "messages": ["x"] * 200}, versions={"a": 1, "messages": 1})
    values: dict[str, Any] = {"a": "new", "messages": ["x"] * 200 + ["y"]}
    await saver.add("c2", values, parent="c1", versions={"a": 2, "messages": 2})
    await saver.get_tuple(at(name="c1"))  # what was read last is what a saver remembers

    await saver.add("c3", values, parent="c1", versions={"a": 2, "messages": 2}, new={})
    await saver.add("c4", values, parent="c1", versions={"a": "2", "messages": "2"}, new={})
    await saver.add("c5", values, parent="unknown", versions={"a": 1, "messages": 1}, new={})
    await saver.add("c6", values, versions={"a": 1, "messages": 1}, new={})

    for name in ("c3", "c4", "c5", "c6"):
        assert await saver.values(name=name) == values


async def test_channels_without_a_version_are_looked_at(saver: FacedSaver) -> None:
    await saver.add("c1", {"a": 1}, versions={})
    await saver.add("c2", {"a": 2}, parent="c1", versions={}, new={})

    assert await saver.values() == {"a": 2}


async def test_a_channel_that_comes_and_goes(saver: FacedSaver) -> None:
    big = ["x" * 100] * 50
    await saver.add("c1", {"a": big}, versions={"a": 1})
    await saver.add("c2", {}, parent="c1", versions={"a": 2}, new={"a": 2})
    await saver.add("c3", {"a": big}, parent="c2", versions={"a": 3}, new={"a": 3})
    await saver.add("c4", {"a": big, "b": 1}, parent="c3", versions={"a": 3, "b": 4}, new={"b": 4})

    assert [await saver.values(name=f"c{n}") for n in range(1, 5)] == [{"a": big}, {}, {"a": big}, {"a": big, "b": 1}]


async def test_a_channel_may_change_its_shape(saver: FacedSaver) -> None:
    long, short = [f"{n} " * 20 for n in range(100)], ["x"]
    shapes = [
        long, short, [*short, *long], [], long[:50], long, {"messages": long}, "text " * 500, [HumanMessage("x")] * 60,
        [HumanMessage("x")] * 61, ["mixed", HumanMessage("x")], HumanMessage("x"), tuple(long), long[::-1], None, long,
    ]  # fmt: skip
    for n, value in enumerate(shapes):
        await saver.add(
            f"c{n:02}",
            {"messages": value, "other": value},
            parent=f"c{n - 1:02}" if n else None,
            versions={"messages": n, "other": n},
        )

    for n, value in enumerate(shapes):
        assert_same_channels(await saver.values(name=f"c{n:02}"), {"messages": value, "other": value})


@pytest.mark.parametrize("length", [1, 3, 50, 400])
def test_changes_in_place_are_saved(length: int) -> None:
    """A list that is changed anywhere, though it was saved before: items, and what is inside them."""
    with HarnessCheckpointer() as saver:
        channel: list[Any] = [{"n": n, "inside": {"list": [n]}, "text": "t" * 30} for n in range(length)]
        saver.put(at(), checkpoint("c000", {"messages": channel, "other": channel}), {}, {"messages": 1, "other": 1})
        for step, place in enumerate([0, length // 2, length - 1], 1):
            channel[place]["inside"]["list"].append(step)
            channel[place]["n"] = True
            expected = [{**item, "inside": {"list": list(item["inside"]["list"])}} for item in channel]
            versions = {"messages": step, "other": step}
            saver.put(
                at(name=f"c{step - 1:03}"),
                checkpoint(f"c{step:03}", {"messages": channel, "other": channel}, versions),
                {},
                versions,
            )
            for reader in (saver, HarnessCheckpointer(backend=saver.backend)):
                assert_same_channels(reader.get(at())["channel_values"], {"messages": expected, "other": expected})
