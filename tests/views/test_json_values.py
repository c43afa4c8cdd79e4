"""Any value as JSON: exact where JSON has it, said where not, and nothing of anybody's own is called."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.views.json_values import DEPTH_MAX, Opaque, kind_of, size_of, to_json

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)  # fmt: skip


@given(PLAIN)
def test_what_json_has_is_exact(value: Any) -> None:
    assert to_json(value) == value or _has_marks(value)
    assert json.loads(json.dumps(to_json(value))) == to_json(value)


def _has_marks(value: Any) -> bool:
    return '"$' in json.dumps(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), {"$type": "float", "text": "NaN"}),
        (float("-inf"), {"$type": "float", "text": "-Infinity"}),
        (2**53, {"$type": "int", "text": "9007199254740992"}),
        (b"abc", {"$type": "bytes", "size": 3, "preview": "YWJj"}),
        ((1, 2), {"$type": "tuple", "items": [1, 2]}),
        ({1: "a"}, {"$type": "dict", "items": [[1, "a"]]}),
        ({"$type": "lie"}, {"$type": "dict", "items": [["$type", "lie"]]}),
        (dt.date(2026, 11, 15), {"$type": "date", "text": "2026-11-15"}),
        (decimal.Decimal("1.10"), {"$type": "decimal", "text": "1.10"}),
        (uuid.UUID(int=5), {"$type": "uuid", "text": "00000000-0000-0000-0000-000000000005"}),
        ("\ud800", {"$type": "str", "text": "?"}),
        (Opaque("shop:Order", {"id": 1}), {"$type": "shop:Order", "fields": {"id": 1}}),
    ],
)
def test_what_json_has_not_says_what_it_is(value: Any, shown: Any) -> None:
    assert to_json(value) == shown
    assert json.loads(json.dumps(shown)) == shown


def test_nobodys_own_code_is_called() -> None:
    class Loud(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(name)

    class Own(metaclass=Loud):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

        def __repr__(self) -> str:
            raise AssertionError

        __str__ = __repr__

    class OwnText(str):
        def __str__(self) -> str:
            raise AssertionError

        __slots__ = ()

    shown = to_json([Own(), OwnText("x")])
    assert [each["$type"].rpartition(".")[2] for each in shown] == ["Own", "OwnText"]


def test_cycles_depth_and_huge_numbers_end() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert to_json(circle) == [{"$type": "list", "text": "contains itself"}]
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    shown = to_json(deep)
    assert f"deeper than {DEPTH_MAX}" in json.dumps(shown)
    huge = to_json(10**100_000)
    assert huge["$cut"] > 50_000
    assert len(json.dumps(huge)) < 3000
    twice = [1]
    assert to_json([twice, twice]) == [[1], [1]]


def test_a_limit_cuts_what_is_long_and_only_then() -> None:
    text = "x" * 5_000_000
    assert to_json(text) == text
    assert to_json(text, max_bytes=10_000) == {"$cut": 5_000_000, "text": "x" * 2000}
    assert to_json(text, max_bytes=500) == {"$cut": 5_000_000, "text": "x" * 500}
    many = to_json(list(range(100_000)), max_bytes=8000)
    assert (many["$type"], many["$cut"], len(many["items"])) == ("list", 100_000, 1000)
    wide = to_json({str(n): n for n in range(100_000)}, max_bytes=8000)
    assert (wide["$type"], wide["$cut"]) == ("dict", 100_000)
    assert len(json.dumps(to_json([[["y" * 1500] * 50] * 50] * 50, max_bytes=20_000))) < 60_000
    assert to_json({"a": ["b" * 100]}, max_bytes=20_000) == {"a": ["b" * 100]}


def test_sizes_and_kinds() -> None:
    assert size_of({"a": "b" * 1000}) == pytest.approx(1005, abs=5)
    assert kind_of({"a": 1}) == ("object", 1)
    assert kind_of([1, 2]) == ("array", 2)
    assert kind_of(True) == ("boolean", None)
