"""What changed between two checkpoints: by path, by message, word by word, and as a patch that can be applied."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everstep
from everstep.errors import InvalidInput
from everstep.types import MISSING
from everstep.views import changes, patches, paths
from tests.views.conftest import plan_trip

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text("ab~/", max_size=3),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text("ab~/", max_size=2), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, JSON, st.lists(st.sampled_from(["a", "b", "ab", "0", "1"]), max_size=3))
def test_a_patch_of_a_part_makes_that_part_the_same(a: Any, b: Any, way: list[str]) -> None:
    made = patches.apply_patch(a, patches.make_patch_at(way, a, b, changes.name_of))
    assert _written(paths.found_at(made, way)) == _written(paths.found_at(b, way))


def _written(value: Any) -> str | None:
    return None if value is MISSING else json.dumps(value, sort_keys=True)


@given(JSON, JSON)
def test_a_patch_turns_one_value_into_the_other(a: Any, b: Any) -> None:
    operations = patches.make_patch(a, b, changes.name_of)
    made = patches.apply_patch(a, operations)
    assert made == b
    assert _orders(made) == _orders(b)
    assert bool(operations) == (json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True))


def _orders(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@given(st.lists(st.sampled_from("abcd")), st.lists(st.sampled_from("abcd")))
def test_a_patch_of_named_items(a: list[str], b: list[str]) -> None:
    old = [{"id": name, "n": place % 2} for place, name in enumerate(a)]
    new = [{"id": name, "n": 1} for name in b]
    assert patches.apply_patch(old, patches.make_patch(old, new, changes.name_of)) == new


@given(st.text("ab \n.", max_size=40), st.text("ab \n.", max_size=40))
def test_words_give_both_texts_back(before: str, after: str) -> None:
    found = patches.words(before, after)
    assert found is not None
    assert "".join(text for sign, text in found if sign != "+") == before
    assert "".join(text for sign, text in found if sign != "-") == after
    assert all(text for _, text in found)


def test_words_are_joined_where_only_spaces_are_between() -> None:
    found = patches.words(
        "The plan: night train, hostel by the station, 840.", "The plan: night train, lighthouse, 888."
    )
    assert found == [
        [" ", "The plan: night train, "],
        ["-", "hostel by the station"],
        ["+", "lighthouse"],
        [" ", ", "],
        ["-", "840"],
        ["+", "888"],
        [" ", "."],
    ]


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        ({"op": "remove", "path": "/x"}, "fit"),
        ({"op": "add", "path": "/l/9", "value": 1}, "3 items"),
        ({"op": "add", "path": "/l/01", "value": 1}, "no '01'"),
        ({"op": "replace", "path": "/l/3", "value": 1}, "3 items"),
        ({"op": "test", "path": "/l/0", "value": 1.0}, "another"),
        ({"op": "nonsense", "path": ""}, "no such"),
        ({"op": "move", "from": "/l", "path": "/l/0"}, "into itself"),
        ({"path": "/x"}, "op"),
        ({"op": "add", "path": "x", "value": 1}, "pointer"),
        ("x", "object"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(operation: Any, why: str) -> None:
    document = {"l": [1, 2, 3]}
    with pytest.raises(InvalidInput, match=why):
        patches.apply_patch(document, [{"op": "add", "path": "/y", "value": 1}, operation])
    assert document == {"l": [1, 2, 3]}


def test_the_operations_of_the_rfc() -> None:
    document = {"a": {"b": [1, 2]}}
    operations = [
        {"op": "test", "path": "/a/b/0", "value": 1},
        {"op": "add", "path": "/a/b/-", "value": 3},
        {"op": "copy", "from": "/a/b", "path": "/c"},
        {"op": "move", "from": "/a/b/0", "path": "/d"},
        {"op": "replace", "path": "/c/1", "value": "x"},
    ]
    assert patches.apply_patch(document, operations) == {"a": {"b": [2, 3]}, "c": [1, "x", 3], "d": 1}
    assert patches.apply_patch(document, [{"op": "replace", "path": "", "value": 5}]) == 5


async def test_a_merge_against_its_first_parent(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    found = await changes.compare(engine, None, "trip")
    json.dumps(found)
    assert (found["a"]["id"], found["b"]["id"]) == (trip.ids[4], trip.ids[5])
    assert [(each["op"], each["path"], each["after"]) for each in found["state"]] == [
        ("added", "state.view", "sea"),
        ("added", "state.sunday", "islands"),
    ]
    assert [(each["op"], each["role"]) for each in found["messages"]] == [("added", "assistant")] * 2
    assert found["counts"]["messages"] == {"added": 2, "removed": 0, "changed": 0}
    other = await changes.compare(engine, "trip#2", "trip#5")
    (hotel,) = [each for each in other["state"] if each["path"] == "state.hotel"]
    assert (hotel["op"], hotel["after"], hotel["before"]) == ("added", "hostel", {"$type": "missing"})
    whole = await changes.compare(engine, None, "trip#1")
    assert whole["a"] is None
    assert whole["counts"]["messages"]["added"] == 1
    assert (await changes.compare(engine, "trip", "trip"))["patch"] == []


async def test_messages_are_matched_by_id_never_by_place(engine: everstep.CheckpointEngine) -> None:
    def said(name: str, text: str) -> dict[str, Any]:
        return {"id": name, "role": "assistant", "content": text}

    old = [said(f"m{n}", f"message {n} is here") for n in range(50)]
    new = [said("new", "first of all"), *old[1:20], said("m20", "message 20 was here"), *old[21:]]
    await engine.snapshot("t", old, {"note": "the old words"}, {})
    await engine.snapshot("t", new, {"note": "the new words"}, {})
    found = await changes.compare(engine, None, "t")
    told = [(each["op"], each["id"], each["index"]) for each in found["messages"]]
    assert sorted(told) == [("added", "new", 0), ("changed", "m20", 20), ("removed", "m0", 0)]
    (edited,) = [each for each in found["messages"] if each["op"] == "changed"]
    assert edited["words"] == [[" ", "message 20 "], ["-", "is"], ["+", "was"], [" ", " here"]]
    assert found["state"][0]["words"] == [[" ", "the "], ["-", "old"], ["+", "new"], [" ", " words"]]
    assert len(found["patch"]) <= 5
    before = {"messages": old, "state": {"note": "the old words"}, "tools_result": {}, "next_node": ""}
    made = patches.apply_patch(before, found["patch"])
    assert (made["messages"], made["state"]) == (new, {"note": "the new words"})


async def test_what_is_large_is_cut_and_the_patch_is_had_apart(engine: everstep.CheckpointEngine) -> None:
    await engine.append("t", [], {"a": 1})
    many = {f"k{n}": "x" * 3000 for n in range(800)}
    await engine.append("t", [{"role": "user", "content": "y" * 5_000_000}], many | {"big": "z" * 5_000_000})
    found = await changes.compare(engine, None, "t")
    assert len(json.dumps(found)) < 200_000
    assert (found["patch"], found["more"], found["counts"]["state"]["added"]) == (None, True, 801)
    whole = await changes.patch(engine, None, "t")
    assert len(whole) == found["patch_operations"] == 802
