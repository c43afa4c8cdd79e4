"""Values come back exactly, or are refused with their place."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import math
import pathlib
import struct
import subprocess
import sys
import uuid
import zoneinfo
from typing import Any, Generic, NamedTuple, TypeVar

import ormsgpack
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everstep
from everstep.errors import CheckpointCorrupted, EverstepError, InvalidInput, UnregisteredType, UnstorableValue
from everstep.values import codec, packer, registry
from everstep.values.codec import careful
from tests.values.samples import Colour, Point, check_read, same, values


@given(values())
def test_what_is_packed_is_what_comes_back(value: Any) -> None:
    packed = codec.pack(value)
    back = codec.unpack(packed)
    assert same(back, value)
    assert codec.pack(back) == packed


@given(values())
def test_both_ways_of_packing_give_the_same_bytes(value: Any) -> None:
    by_walking = ormsgpack.packb(careful.lowered(codec.DEFAULT, value, "value", []), option=packer.OPTIONS)
    assert codec.pack(value) == by_walking


@given(values(), values())
def test_different_values_have_different_bytes(a: Any, b: Any) -> None:
    assert (codec.pack(a) == codec.pack(b)) == same(a, b)


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), ([1], (1,)), (b"x", bytearray(b"x")), (b"x", "x"),
     ({1}, frozenset({1})),
     ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({}, []), (None, False), (dt.datetime(2026, 1, 1), dt.date(2026, 1, 1)),
     (dt.datetime(2026, 10, 25, 2, 30, fold=0), dt.datetime(2026, 10, 25, 2, 30, fold=1)), ({1: "a"}, {"1": "a"}),
     (decimal.Decimal("1.0"), decimal.Decimal("1.00")), ([b"x", {"k": b""}], [b"x", {"k": bytearray()}])],
)  # fmt: skip
def test_look_alikes_stay_apart(a: Any, b: Any) -> None:
    assert codec.pack(a) != codec.pack(b)
    assert same(codec.unpack(codec.pack(a)), a)
    assert same(codec.unpack(codec.pack(b)), b)


def test_a_nan_keeps_its_bits() -> None:
    odd = struct.unpack("<d", b"\x01\x02\x03\0\0\0\xf8\x7f")[0]
    assert struct.pack("<d", codec.unpack(codec.pack([odd]))[0]) == b"\x01\x02\x03\0\0\0\xf8\x7f"
    assert math.isinf(codec.unpack(codec.pack(float("-inf"))))


def test_the_order_of_a_set_does_not_matter() -> None:
    items = [str(n) for n in range(50)]
    assert codec.pack(set(items)) == codec.pack({*items[25:], *items[:25]})


# -- registered classes


@everstep.register
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: tuple[int, ...]
    b: int = dataclasses.field(init=False, default=5)


@everstep.register
@dataclasses.dataclass
class Strict:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("negative")


@everstep.register
class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    when: dt.datetime | None = None
    inner: Point | None = None
    _secret: int = pydantic.PrivateAttr(default=3)


@everstep.register
class Pair(NamedTuple):
    left: int
    right: Any


@everstep.register
class Perm(enum.Flag):
    R = 1
    W = 2


@everstep.register
class Level(enum.IntEnum):
    LOW = 1


class Plain:
    def __init__(self, n: int) -> None:
        self.n = n


def test_registered_classes_come_back() -> None:
    point = Point(1, Point(2, (3,)), ["a"])
    point.extra = "set later"  # type: ignore[attr-defined]
    model = Model(name="n", inner=Point(1), when=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), more=[1, (2,)])  # type: ignore[call-arg]
    model._secret = 9
    for value in (point, Frozen((1, 2)), model, Pair(1, [2]), Perm.R | Perm.W, Perm.R, Level.LOW, Colour.CRIMSON):
        back = codec.unpack(codec.pack({"v": [value]}))["v"][0]
        assert back == value
        assert type(back) is type(value)
    assert codec.unpack(codec.pack(point)).extra == "set later"
    copy = codec.unpack(codec.pack(model))
    assert (copy._secret, copy.more, copy.model_fields_set) == (9, [1, (2,)], model.model_fields_set)


def test_what_was_saved_comes_back_even_if_the_constructor_would_refuse_it() -> None:
    value = Strict(1)
    value.n = -1
    assert codec.unpack(codec.pack(value)).n == -1


def test_a_field_added_later_gets_its_default() -> None:
    entry = registry.for_type(Point)
    assert entry is not None
    assert entry.from_state({"x": 1}) == Point(1)


def test_ways_of_ones_own() -> None:
    everstep.register(Plain, name="tests.Plain", to_state=lambda p: {"n": p.n}, from_state=lambda s: Plain(s["n"]))
    assert codec.unpack(codec.pack(Plain(7))).n == 7


def test_register_refuses_what_makes_no_sense() -> None:
    class Other:
        pass

    for call in (
        lambda: everstep.register(Other),
        lambda: everstep.register("name"),  # type: ignore[type-var]
        lambda: everstep.register(Other, to_state=vars),
        lambda: everstep.register(Point, name=""),
        lambda: everstep.register(Other, name=f"{Point.__module__}.Point", to_state=vars, from_state=vars),
    ):
        with pytest.raises(InvalidInput):
            call()


def test_nothing_of_an_object_is_lost_silently() -> None:
    class BaseRef:
        __slots__ = ("hidden",)

    @dataclasses.dataclass
    class Child(BaseRef):
        x: int

    everstep.register(Child, name="slotted child")
    child = Child(1)
    child.hidden = 7  # type: ignore[attr-defined]
    assert codec.unpack(codec.pack(child)).hidden == 7

    class Tagged(Pair):
        pass

    everstep.register(Tagged, name="tagged")
    tagged = Tagged(1, 2)
    tagged.note = "n"  # type: ignore[attr-defined]
    with pytest.raises(UnstorableValue, match="attributes"):
        codec.pack(tagged)


def test_classes_that_cannot_be_rebuilt_are_refused_when_registered() -> None:
    @dataclasses.dataclass
    class Err(Exception):
        code: int

    with pytest.raises(InvalidInput, match="rebuilt"):
        everstep.register(Err)


def test_two_local_classes_of_one_name_are_told_apart() -> None:
    def make() -> type:
        @dataclasses.dataclass
        class Local:
            x: int

        return Local

    everstep.register(make())
    with pytest.raises(InvalidInput, match="pass another name"):
        everstep.register(make())


def test_a_generic_class_comes_back() -> None:
    T = TypeVar("T")

    @dataclasses.dataclass
    class Box(Generic[T]):
        x: T

    everstep.register(Box, name="box")
    assert codec.unpack(codec.pack(Box[int](3))) == Box(3)


def test_an_interrupt_in_a_classs_own_code_passes() -> None:
    class Slow:
        pass

    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    everstep.register(Slow, name="slow", to_state=lambda _: 1, from_state=interrupted)
    with pytest.raises(KeyboardInterrupt):
        codec.unpack(codec.pack([Slow()]))
    everstep.register(Slow, name="slow", to_state=interrupted, from_state=interrupted)
    with pytest.raises(KeyboardInterrupt):
        codec.pack([{"deep": (Slow(),)}])
    assert codec.unpack(codec.pack([1])) == [1]


def test_a_class_that_is_not_registered_here_is_named() -> None:
    @dataclasses.dataclass
    class Gone:
        x: int

    everstep.register(Gone, name="gone")
    packed = codec.pack([Gone(1)])
    del registry._by_name["gone"]
    with pytest.raises(UnregisteredType, match="gone"):
        codec.unpack(packed)


def _nameless_zone() -> zoneinfo.ZoneInfo:
    with open(f"{zoneinfo.TZPATH[0]}/UTC", "rb") as file:
        return zoneinfo.ZoneInfo.from_file(file)


class TextChild(str):
    __slots__ = ()


class _Loose(NamedTuple):
    a: int


@dataclasses.dataclass
class NotRegistered:
    x: int = 1


@pytest.mark.parametrize(
    "bad",
    [object(), print, int, memoryview(b"x"), NotRegistered(), TextChild("x"), collections.OrderedDict(a=1), iter([]),
     _Loose(1), Ellipsis, NotImplemented, dt.datetime(2026, 1, 1, tzinfo=_nameless_zone())],
)  # fmt: skip
def test_an_unknown_type_is_named_with_its_path(bad: Any) -> None:
    for value, path in ((bad, "v"), ({"a": [0, bad]}, "v.a[1]"), ((1, bad), "v[1]"), ({2: bad}, "v[2]")):
        with pytest.raises(UnstorableValue) as caught:
            codec.pack(value, "v")
        assert caught.value.path == path
        assert caught.value.type_name


def test_a_field_of_an_object_is_named() -> None:
    with pytest.raises(UnstorableValue) as caught:
        codec.pack({"plan": [Point(1, object())]}, "state")
    assert caught.value.path == "state.plan[0].y"


def test_a_failing_to_state_is_reported() -> None:
    class Broken:
        pass

    everstep.register(Broken, name="broken", to_state=lambda _: 1 / 0, from_state=lambda s: s)
    with pytest.raises(UnstorableValue, match="ZeroDivisionError"):
        codec.pack({"a": Broken()}, "state")


def test_cycles_are_refused_through_every_kind_of_container() -> None:
    a: list[Any] = []
    a.append({"k": (a,)})
    point = Point(1)
    point.y = [point]
    for value in (a, point):
        with pytest.raises(UnstorableValue, match="contains itself"):
            codec.pack(value)


def test_the_same_object_twice_is_not_a_cycle() -> None:
    shared = [1]
    assert codec.unpack(codec.pack([shared, (shared, shared)])) == [[1], ([1], [1])]


def wrappers() -> dict[str, Any]:
    return {
        "list": lambda v: [v],
        "dict": lambda v: {"k": v},
        "tuple": lambda v: (v,),
        "odd dict": lambda v: {1: v},
        "dataclass": lambda v: Point(1, v),
    }


@pytest.mark.parametrize("name", wrappers())
def test_the_depth_limit_is_exact(name: str) -> None:
    wrap = wrappers()[name]
    levels = 2 if name == "dataclass" else 1  # an object and the mapping of its fields

    def nested(times: int) -> Any:
        value: Any = "x" * 300
        for _ in range(times):
            value = wrap(value)
        return value

    fits = codec.DEPTH_MAX // levels
    assert codec.depth(codec.pack(nested(fits))) == fits * levels
    assert same(codec.unpack(codec.pack(nested(fits))), nested(fits))
    with pytest.raises(UnstorableValue, match="deeper"):
        codec.pack(nested(fits + 1), "v")
    for above in (1, 5, 30):  # what nests little is looked at no less
        codec.pack(nested(fits - above), "v", above * levels)
        with pytest.raises(UnstorableValue, match="deeper"):
            codec.pack(nested(fits - above + 1), "v", above * levels)


@given(values())
def test_depth_is_counted_without_building(value: Any) -> None:
    def deep(v: Any) -> int:
        if isinstance(v, dict):
            return 1 + max((deep(x) for pair in v.items() for x in pair), default=0) if v else 0
        if isinstance(v, (list, tuple, set, frozenset)):
            return 1 + max(map(deep, v), default=0) if v else 0
        return 1 if isinstance(v, Colour) else 0

    counted = codec.depth(codec.pack(value))
    assert deep(value) <= counted <= deep(value) + 2


# -- classes that would do something if they could


RAN: list[str] = []


def _made() -> list[Any]:
    RAN.append("factory")
    return []


@dataclasses.dataclass
class Grown:
    """A dataclass that has got fields since values of it were saved."""

    a: int
    constant: str = "x"
    plain: list[Any] = dataclasses.field(default_factory=list)
    later: int = dataclasses.field(init=False)


@dataclasses.dataclass
class GrownByCall:
    a: int
    made: list[Any] = dataclasses.field(default_factory=_made)


@dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    __private: int = 5


class OnlyOne(pydantic.BaseModel):
    a: int = 1

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        RAN.append("__new__")
        return super().__new__(cls)


class Guessed(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        RAN.append("_missing_")
        return cls.ONE


class Unknown(enum.Enum):
    """Makes a member for every value, as clients of services do."""

    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        made: Any = object.__new__(cls)
        made._name_, made._value_ = "UNKNOWN", value
        return made


def stored(cls: type, state: Any) -> bytes:
    content = codec.pack([f"{cls.__module__}.{cls.__qualname__}", state])
    return codec.tag_header(codec.OBJECT, len(content)) + content


def test_registered_classes_run_nothing_when_they_are_rebuilt() -> None:
    for cls in (Grown, GrownByCall, Slotted, OnlyOne, Guessed):
        everstep.register(cls)
    RAN.clear()
    grown = codec.unpack(stored(Grown, {"a": 7}))
    assert (grown.a, grown.constant, grown.plain) == (7, "x", [])
    assert not hasattr(grown, "later")
    with pytest.raises(CheckpointCorrupted, match=r"GrownByCall.made.*function"):
        codec.unpack(stored(GrownByCall, {"a": 7}))
    assert codec.unpack(stored(OnlyOne, [{"a": 7}, None, [], None])).a == 7
    for state in (["TWO"], [None, 2], [None, [1]], [], 5):
        with pytest.raises(CheckpointCorrupted):
            codec.unpack(stored(Guessed, state))
    with pytest.raises(CheckpointCorrupted):
        codec.unpack(stored(Slotted, {"a": 1, "__class__": 2}))
    assert RAN == []


def test_slots_with_private_names_are_kept() -> None:
    everstep.register(Slotted)
    value = Slotted(1, 9)
    back = codec.unpack(codec.pack(value))
    assert (back.a, back._Slotted__private) == (1, 9)


def test_a_member_that_only_missing_could_make_is_refused_at_save() -> None:
    everstep.register(Unknown)
    assert codec.unpack(codec.pack(Unknown.ONE)) is Unknown.ONE
    with pytest.raises(UnstorableValue, match="_missing_"):
        codec.pack(Unknown("new"))


# -- hostile bytes


def damaged_values() -> st.SearchStrategy[bytes]:
    """Packed values with one byte changed: most of them are still a value, but another one."""

    @st.composite
    def damaged(draw: st.DrawFn) -> bytes:
        packed = bytearray(codec.pack(draw(values())))
        packed[draw(st.integers(0, len(packed) - 1))] ^= draw(st.integers(1, 255))
        return bytes(packed)

    return damaged()


@given(st.binary(max_size=200) | damaged_values())
def test_any_bytes_are_a_value_or_an_error_of_ours(data: bytes) -> None:
    check_read(data)


@given(st.integers(0, 127), st.binary(max_size=60))
def test_any_tagged_bytes_are_a_value_or_an_error_of_ours(tag: int, data: bytes) -> None:
    check_read(ormsgpack.packb(ormsgpack.Ext(tag, data)))


@given(st.integers(0, 127), values())
def test_any_value_under_any_tag_is_a_value_or_an_error_of_ours(tag: int, value: Any) -> None:
    check_read(ormsgpack.packb(ormsgpack.Ext(tag, codec.pack(value))))


@given(values(), st.data())
def test_a_cut_value_is_an_error(value: Any, data: st.DataObject) -> None:
    packed = codec.pack(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(CheckpointCorrupted):
        codec.unpack(packed[:cut])
    with pytest.raises(CheckpointCorrupted):
        codec.unpack(packed + b"\xc0")


HOSTILE = {
    "deep lists": b"\x91" * 100_000 + b"\xc0",
    "deep tuples": None,
    "tuples of deep lists": None,
    "huge list": b"\xdd\xff\xff\xff\xff",
    "huge bytes": b"\xc6\xff\xff\xff\xff" + b"x",
    "huge tag": b"\xc9\xff\xff\xff\xff\x05" + b"x",
    "pickle": ormsgpack.packb(ormsgpack.Ext(0, b"cos\nsystem\n(S'touch X'\ntR.")),
    "constructor": ormsgpack.packb(ormsgpack.Ext(8, ormsgpack.packb(["os.system", "touch X"]))),
    "unknown class": ormsgpack.packb(ormsgpack.Ext(8, ormsgpack.packb(["builtins.eval", ["1"]]))),
    "zone": ormsgpack.packb(ormsgpack.Ext(21, ormsgpack.packb(["../../etc/passwd"]))),
    "zone import": ormsgpack.packb(ormsgpack.Ext(21, ormsgpack.packb(["os.path"]))),
    "fraction of text": ormsgpack.packb(ormsgpack.Ext(36, ormsgpack.packb(["1e999999999", 1]))),
    "fraction": ormsgpack.packb(ormsgpack.Ext(36, ormsgpack.packb([1, 0]))),
    "path": ormsgpack.packb(ormsgpack.Ext(37, ormsgpack.packb([9, "x"]))),
    "range": ormsgpack.packb(ormsgpack.Ext(35, ormsgpack.packb([1, 2, 0]))),
    "set of lists": ormsgpack.packb(ormsgpack.Ext(6, ormsgpack.packb([[1], [2]]))),
}


def _tuples(inner: bytes, times: int) -> bytes:
    for _ in range(times):
        inner = codec.tag_header(codec.TUPLE, len(inner) + 1) + b"\x91" + inner
    return inner


HOSTILE["deep tuples"] = _tuples(b"\xc0", 3000)
deep_lists = b"\x91" * 1000
mixed = b"\xc0"
for _ in range(150):
    mixed = deep_lists + codec.tag_header(codec.TUPLE, len(mixed) + 1) + b"\x91" + mixed
HOSTILE["tuples of deep lists"] = mixed
for tag in (16, 35):
    nested = b"\x01"
    for _ in range(190):
        nested = b"\x91" * 199 + nested
        nested = codec.tag_header(tag, len(nested)) + nested
    HOSTILE[f"deep lists in tag {tag}"] = nested


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_raise_and_do_nothing(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = HOSTILE[name]
    assert data is not None
    before = set(sys.modules)
    with pytest.raises(EverstepError):
        codec.unpack(data)
    assert list(tmp_path.iterdir()) == []
    assert set(sys.modules) == before


def test_nothing_is_imported_or_rebuilt_in_a_fresh_process() -> None:
    packed = codec.pack(Point(1))
    code = (
        "import sys; from everstep.values import codec; from everstep.errors import UnregisteredType\n"
        f"try: codec.unpack({packed!r})\n"
        "except UnregisteredType: print('tests.values.test_codec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_what_everstep_imports_is_not_taken_for_an_extension() -> None:
    """Then every value would be searched for marks of extensions."""
    code = (
        "import everstep.durable, everstep.langgraph, langgraph.graph; from everstep.values import packer\n"
        "print(packer.may_hold_extension(bytes(range(256))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_fractions_and_uuids_are_exact() -> None:
    for value in (
        fractions.Fraction(1, 3),
        uuid.UUID(int=2**127),
        pathlib.Path("/tmp/x"),
        range(5),
        decimal.Decimal("-sNaN123"),
    ):
        back = codec.unpack(codec.pack(value))
        assert str(back) == str(value)
        assert type(back) is type(value)


@dataclasses.dataclass
class Guarded:
    city: str = "Oslo"
    calls: dataclasses.InitVar[int] = 0

    @property
    def shouted(self) -> str:
        return self.city.upper()

    @shouted.setter
    def shouted(self, value: str) -> None:
        raise AssertionError(f"a stored value called the setter with {value!r}")


def test_a_forged_state_cannot_run_a_setter() -> None:
    everstep.register(Guarded)
    honest = codec.pack(Guarded("Bergen"))
    assert codec.unpack(honest) == Guarded("Bergen")
    forged = codec.pack([f"{Guarded.__module__}.Guarded", {"city": "Bergen", "shouted": "RUN"}])
    rebuilt = codec.unpack(codec.tag_header(codec.OBJECT, len(forged)) + forged)
    assert rebuilt == Guarded("Bergen")
    assert vars(rebuilt) == {"city": "Bergen"}


EXTENSION = ormsgpack.Ext(codec.INT, b"\x05")
"""Packed as it is, it would be read as 5."""
WITH_EXTENSIONS: dict[str, Any] = {
    "alone": EXTENSION,
    "list": [1, EXTENSION],
    "dict": {"a": {"b": [EXTENSION]}},
    "many numbers": [*range(5000), EXTENSION],
    "many texts": [*["x"] * 5000, EXTENSION],
    "records": [{"a": n, "b": EXTENSION} for n in range(100)],
    "tuple": (1, EXTENSION),
    "rows": [(1, 2), (3, EXTENSION)],
    "other keys": {1: EXTENSION},
    "as a key": {EXTENSION: 1},
    "set": {EXTENSION},
    "beside bytes": {"a": bytearray(b"x"), "b": EXTENSION},
    "beside tagged": [(1,), {2}, {3: 4}, EXTENSION],
}


@pytest.mark.parametrize("is_counted", [True, False])
@pytest.mark.parametrize("name", WITH_EXTENSIONS)
def test_an_extension_of_the_packer_is_not_taken_for_one_of_ours(
    name: str, is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "_EXTENSIONS_ARE_COUNTED", packer._EXTENSIONS_ARE_COUNTED and is_counted)
    with pytest.raises(UnstorableValue, match="Ext"):
        codec.pack(WITH_EXTENSIONS[name])
    with pytest.raises(UnstorableValue, match="Ext"):
        codec.pack_items([WITH_EXTENSIONS[name]], "messages")
