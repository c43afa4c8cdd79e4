"""A bytearray that the packer would write as bytes is found wherever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everstep.values import codec, part_types

BUFFERS = frozenset((bytearray, memoryview))

MANY = 3000
"""More than are looked at together."""

PLACES: dict[str, Callable[[Any], Any]] = {
    "a list of numbers": lambda part: [*range(MANY), part, *range(196, 199)],
    "a list of large numbers": lambda part: [1 << 62, 0.5, part],
    "a list of texts": lambda part: [*map(str, range(MANY)), part],
    "a list of long texts": lambda part: ["long " * 40, part],
    "a list of one": lambda part: [part],
    "the last of many rows": lambda part: [*[{"id": n, "x": 0.5} for n in range(MANY)], {"id": 1, "x": part}],
    "rows of several lengths": lambda part: [{"id": 1}, {"id": 2, "x": part, "y": None}, {}],
    "lists of numbers": lambda part: [*[[n, 196, 197] for n in range(MANY)], [1, part, 2]],
    "long lists of numbers": lambda part: [[*range(99)], [*range(98), part]],
    "long and short lists": lambda part: [[*range(99)], [part], []],
    "a mapping": lambda part: {"a": [1, {"b": {"c": [part]}}]},
    "beside something else": lambda part: [(1, 2), {"a": part}],
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("part", [bytearray(b"\xc4"), memoryview(b"\xc4")], ids=["bytearray", "memoryview"])
def test_a_buffer_is_found_wherever_it_is(place: str, part: Any) -> None:
    assert part_types.holds(PLACES[place](part), BUFFERS)
    others: list[Any] = [None, True, 196, 0.5, "text", b"\xc4\xc5\xc6", []]
    for other in others:
        assert not part_types.holds(PLACES[place](other), BUFFERS)


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("row", [0, MANY // 2, MANY - 1])
def test_a_buffer_is_found_in_every_column_of_many_rows(at: int, row: int) -> None:
    rows: list[Any] = [(n, f"row {n}", 0.5) for n in range(MANY)]
    assert not part_types.rows_hold(rows, BUFFERS)
    rows[row] = (*rows[row][:at], bytearray(b"\xc4"), *rows[row][at + 1 :])
    assert part_types.rows_hold(rows, BUFFERS)
    assert codec.unpack(codec.pack(rows)) == rows
    assert type(codec.unpack(codec.pack(rows))[row][at]) is bytearray


@pytest.mark.parametrize(
    "inside", [(), (1,), [], [1], {}, {"a": 1}, {1: 2}, {1}, bytearray(b"\xc4"), b"\xc4", None, True, 1 << 70, "\ud800"]
)
def test_rows_are_what_they_were_whatever_one_of_them_holds(inside: Any) -> None:
    rows = [(n, f"row {n}", 0.5) for n in range(50)] + [(1, inside, 196)]
    found = codec.unpack(codec.pack(rows))
    assert found == rows
    assert type(found[-1][1]) is type(inside)
    assert codec.unpack(codec.pack([*rows, [1, 2]])) == [*rows, [1, 2]]


@pytest.mark.parametrize("inside", [(), (1,), [2], {"a": ()}, bytearray(b"\xc4"), b"\xc4", 1 << 70, "\ud800"])
def test_mappings_with_other_keys_are_what_they_were_whatever_they_hold(inside: Any) -> None:
    plain: dict[Any, Any] = {n: f"row {n}" for n in range(300)} | {0.5: inside, "text": 1}
    for value in (plain, plain | {(1, 2): 196}):
        found = codec.unpack(codec.pack(value))
        assert found == value
        assert list(found) == list(value)
        assert type(found[0.5]) is type(inside)
