"""A list that is packed over the one before it: whatever changed, it is packed to the bytes that it has alone."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.values import codec, part_types, stretches, tree
from everstep.values.long_values import LongValue, long_value


def _rows(count: int) -> list[Any]:
    return [{"id": n, "name": f"row {n}", "value": n * 0.37} for n in range(count)]


MAKERS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: list(range(40_000)),
    "fractions": lambda: [n * 0.37 for n in range(10_000)],
    "rows": lambda: _rows(4000),
    "tuples": lambda: [(n, f"row {n}", n * 0.5) for n in range(4000)],
    "other keys": lambda: {n: n * 3 for n in range(12_000)},
    "lists": lambda: [[n + m for m in range(300)] for n in range(100)],
    "few items": lambda: ["x" * 20_000, list(range(9000)), 0xC4C5C6],
}


class _Kept:
    """What is known of a value from one time to the next, as a saver keeps it."""

    def __init__(self) -> None:
        self.made: tree.InPieces | None = None

    def packed(self, value: Any) -> bytes:
        before = self.made.version() if self.made is not None else None
        packed = codec.DEFAULT.pack_long(value, "value", 1, before)
        if isinstance(packed, bytes):  # as what is packed part by part
            packed = long_value(b"", packed)
        node = tree.Writer().long(packed, self.made)
        assert isinstance(node.made, tree.InPieces)
        self.made = node.made
        return b"".join(self.made.parts())


def _put_in(value: Any, place: int, part: Any) -> None:
    """Let a part stand somewhere in a value."""
    if isinstance(value, dict):
        value[list(value)[place % len(value)]] = part
        return
    at = place % len(value)
    if isinstance(value[at], tuple):
        value[at] = (*value[at][:-1], part)
    elif isinstance(value[at], dict):
        value[at]["value"] = part
    elif isinstance(value[at], list):
        value[at][place % len(value[at])] = part
    else:
        value[at] = part


@pytest.mark.parametrize("name", MAKERS)
def test_a_bytearray_is_found_wherever_it_comes(name: str) -> None:
    value = MAKERS[name]()
    kept = _Kept()
    rng = random.Random(7)
    for round_ in range(12):
        assert kept.packed(value) == codec.pack(value)
        _put_in(value, rng.randrange(1 << 20), round_)
    for at_once in (b"\xc4\x01", bytearray(b"\xc4\x01"), bytearray(b"\xc4\x01"), memoryview(b"").tobytes(), 5):
        changed = copy.deepcopy(value)
        _put_in(changed, 3, at_once)
        packed = kept.packed(changed)
        assert packed == codec.pack(changed)
        found = codec.unpack(packed)
        assert found == changed
        assert repr(found) == repr(changed)


@pytest.mark.parametrize("name", MAKERS)
def test_bytes_that_become_a_bytearray_are_seen_though_the_packer_writes_the_same(name: str) -> None:
    value = MAKERS[name]()
    _put_in(value, 11, b"\xc4\xc5")
    kept = _Kept()
    for place in (1, 2, 3):
        kept.packed(value)
        _put_in(value, 1000 + place, place)
    _put_in(value, 11, bytearray(b"\xc4\xc5"))
    found = codec.unpack(kept.packed(value))
    assert repr(found) == repr(value)


def test_only_what_changed_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    holds = part_types.holds

    def counted(value: Any, kinds: frozenset[type]) -> bool:
        searched.append(len(value))
        return holds(value, kinds)

    monkeypatch.setattr(part_types, "holds", counted)
    value = list(range(100_000))
    kept = _Kept()
    for number in range(6):
        searched.clear()
        value[number * 7919 % len(value)] = number
        kept.packed(value)
    assert sum(searched) < 10_000
    assert kept.made is not None
    assert kept.made.stretches is not None
    assert sum(kept.made.stretches.counts) == len(value)


def test_a_list_that_another_thread_changes_meanwhile_is_searched_whole() -> None:
    value: list[Any] = list(range(50_000))
    kept = _Kept()
    for _ in range(2):
        kept.packed(value)
    assert kept.made is not None
    value[7000] = 1
    packed = codec.DEFAULT.pack_long(value)
    assert isinstance(packed, LongValue)
    listed = stretches.Listed(value, 3, 0, part_types.holds)
    assert stretches.searched(packed, listed, value, kept.made.version()) is not None
    value[7001] = 2  # after it was packed, and before it is searched
    value[40_000] = bytearray(b"")
    assert stretches.searched(packed, listed, value, kept.made.version()) is None


_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=3),
    st.binary(max_size=3).map(bytearray),
    st.text(max_size=3),
    st.just(0xC4),
    st.lists(st.integers(0xC3, 0xC7), max_size=3),
)
_edits = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 20), _scalars), max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["numbers", "fractions", "rows", "tuples"]), st.lists(_edits, min_size=2, max_size=5))
def test_any_edits_are_packed_exactly(name: str, versions: list[list[tuple[int, int, Any]]]) -> None:
    value = MAKERS[name]()
    kept = _Kept()
    for _ in range(2):
        kept.packed(value)
    for edits in versions:
        for what, place, part in edits:
            at = place % len(value)
            if what == 0:
                value[at] = part
            elif what == 1:
                value.insert(at, part)
            elif what == 2:
                del value[at]
            else:
                value.append(part)
        packed = kept.packed(value)
        assert packed == codec.pack(value)
        assert repr(codec.unpack(packed)) == repr(value)


def test_items_are_cut_out_of_a_value_wherever_they_stand() -> None:
    data = bytes(range(200))
    for header in (b"", b"abc"):
        value = long_value(header, data, 7)
        whole = header + data[7:]
        assert value.whole() == whole
        for first, last in ((0, 5), (3, 16), (3, 40), (16, 20), (20, 190), (0, len(whole)), (9, 9)):
            assert value.cut(first, last) == whole[first:last]


def test_headers_of_lists_are_as_long_as_the_packer_writes_them() -> None:
    for length in (0, 1, 15, 16, 65_535, 65_536):
        packed = ormsgpack.packb([0] * length)
        assert stretches._header_bytes(length) == len(packed) - length
