"""Values of all kinds to test with, and whether two are the same."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import struct
import zoneinfo
from typing import Any

from hypothesis import strategies as st

import everstep
from everstep.errors import EverstepError
from everstep.values import codec

ZONES = ["UTC", "Europe/Oslo", "America/New_York", "Asia/Kolkata"]


def zones() -> st.SearchStrategy[dt.tzinfo | None]:
    fixed = st.builds(
        dt.timezone,
        st.timedeltas(min_value=dt.timedelta(hours=-23), max_value=dt.timedelta(hours=23)),
        st.text(min_size=1, max_size=5),
    )
    return st.none() | st.just(dt.UTC) | fixed | st.sampled_from(ZONES).map(zoneinfo.ZoneInfo)


def texts() -> st.SearchStrategy[str]:
    return st.text(st.characters(codec=None)) | st.text(st.characters(categories=["Cs", "L"]))


def scalars(hashable: bool = False) -> st.SearchStrategy[Any]:
    plain = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.complex_numbers(),
        texts(),
        st.binary(),
        st.uuids(),
        st.decimals().filter(lambda d: not d.is_snan()),  # a signalling NaN cannot be hashed
        st.fractions(),
        st.dates(),
        st.timedeltas(),
        st.times(timezones=zones()),
        st.datetimes(timezones=zones(), allow_imaginary=False),
        st.sampled_from(
            [range(3), range(0, 10**30, 7), pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("c:\\x")]
        ),
        st.sampled_from(list(Colour)),
    )
    return plain if hashable else plain | st.binary().map(bytearray)


@everstep.register
class Colour(enum.Enum):
    RED = "red"
    BLUE = ("b", 1)
    CRIMSON = "red"  # noqa: PIE796  # another name of the same member


def keys() -> st.SearchStrategy[Any]:
    return st.recursive(scalars(hashable=True), lambda k: st.tuples(k, k) | st.frozensets(k, max_size=3), max_leaves=4)


def values() -> st.SearchStrategy[Any]:
    def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.lists(inner, max_size=6),
            st.lists(inner, max_size=6).map(tuple),
            st.dictionaries(texts(), inner, max_size=6),
            st.dictionaries(keys(), inner, max_size=6),
            st.sets(keys(), max_size=6),
            st.frozensets(keys(), max_size=6),
        )

    return st.recursive(scalars(), containers, max_leaves=25)


def same(a: Any, b: Any) -> bool:
    """Equal with equal types, down to the bits of a float and the order of keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (set, frozenset)):
        return sorted(codec.pack(x) for x in a) == sorted(codec.pack(x) for x in b)
    if isinstance(a, decimal.Decimal):
        return str(a) == str(b)
    if isinstance(a, (dt.datetime, dt.time)):
        return repr(a) == repr(b) and a.fold == b.fold
    return bool(a == b)


@everstep.register
@dataclasses.dataclass
class Point:
    x: int
    y: Any = None
    tags: list[str] = dataclasses.field(default_factory=list)


def check_read(data: bytes) -> None:
    """Bytes are refused with an error of ours, or they are a value that can be saved again and comes back the same."""
    try:
        value = codec.unpack(data)
    except EverstepError:
        return
    packed = codec.pack(value)
    assert same(codec.unpack(packed), value)
