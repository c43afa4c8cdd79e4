"""What changed between two checkpoints: nothing exactly when they are equal, and cheap when little did."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep import MISSING, Diff, Difference
from everstep.history.diff import compare
from everstep.values import codec
from everstep.values.tree import lists
from tests.history.drawn_values import LONG, MESSAGES, STATES
from tests.values.shelves import Shelf
from tests.values.trees import message


def changes(a: tuple[Any, ...], b: tuple[Any, ...], *, whole: tuple[bool, bool] = (False, False)) -> list[Difference]:
    shelf = Shelf()
    roots = [shelf.root(*fields, whole=one) for fields, one in zip((a, b), whole, strict=True)]
    found: list[Difference] = shelf.run(compare(roots[0], roots[1]))
    return found


def in_state(a: Any, b: Any) -> list[tuple[str, str, Any, Any]]:
    return [(d.path, d.kind, d.before, d.after) for d in changes(([], a), ([], b))]


def in_messages(a: list[Any], b: list[Any]) -> list[tuple[str, str, Any, Any]]:
    return [(d.path, d.kind, d.before, d.after) for d in changes((a,), (b,))]


# -- laws


@given(MESSAGES, STATES, st.booleans(), st.booleans())
@settings(max_examples=40)
def test_nothing_changed_between_equal_values(messages: list[Any], state: Any, one: bool, other: bool) -> None:
    assert changes((messages, state), (messages, state), whole=(one, other)) == []


@given(MESSAGES, MESSAGES, STATES, STATES)
@settings(max_examples=120)
def test_something_changed_exactly_when_the_values_differ(ma: list[Any], mb: list[Any], sa: Any, sb: Any) -> None:
    found = changes((ma, sa), (mb, sb))
    assert bool(found) == (codec.pack([ma, sa]) != codec.pack([mb, sb]))
    assert any(d.path.startswith("messages") for d in found) == (codec.pack(ma) != codec.pack(mb))
    assert all((d.before is MISSING) == (d.kind == "added") for d in found)
    assert all((d.after is MISSING) == (d.kind == "removed") for d in found)
    assert all(codec.pack(d.before) != codec.pack(d.after) for d in found if d.kind == "changed")
    again = changes((ma, sa), (mb, sb), whole=(True, False))
    assert again == found


@given(MESSAGES, MESSAGES, STATES, STATES)
@settings(max_examples=60)
def test_the_way_back_is_the_mirror_image(ma: list[Any], mb: list[Any], sa: Any, sb: Any) -> None:
    there, back = changes(([], sa), ([], sb)), changes(([], sb), ([], sa))
    kinds = {"added": "removed", "removed": "added", "changed": "changed"}
    key = {(d.path, d.kind) for d in there if "[" not in d.path}
    assert key == {(d.path, kinds[d.kind]) for d in back if "[" not in d.path}
    assert bool(changes((ma,), (mb,))) == bool(changes((mb,), (ma,)))


# -- mappings


def test_values_that_another_release_grouped_otherwise_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    messages, big = [message(n) for n in range(100)], {str(n): "x" * n for n in range(100)}
    state = {"big": big, "t": tuple(range(2000))}
    shelf = Shelf()
    old = shelf.root(messages, state)
    monkeypatch.setattr(lists, "_GROUP_ODDS", 32)
    new, more = shelf.root(messages, state), shelf.root(messages, state | {"n": 1})
    moved = shelf.root(messages, state | {"big": dict(reversed(big.items()))})

    assert old != new
    assert shelf.run(compare(old, new)) == []
    assert [d.path for d in shelf.run(compare(old, moved))] == ["state.big"]
    assert [d.path for d in shelf.run(compare(old, more))] == ["state.n"]


def test_a_change_is_reported_where_it_is() -> None:
    a = {"plan": [{"due": "fri"}, {"due": "mon", "who": LONG}], "x": 1, "n": 1}
    b = {"plan": [{"due": "fri"}, {"due": "tue", "who": LONG}], "n": True, "odd key": None}
    assert in_state(a, b) == [
        ("state.plan[1].due", "changed", "mon", "tue"),
        ("state.x", "removed", 1, MISSING),
        ("state.n", "changed", 1, True),
        ("state['odd key']", "added", MISSING, None),
    ]


def test_the_order_of_keys_is_reported_only_if_nothing_else_is() -> None:
    assert in_state({"m": {"a": 1, "b": 2}}, {"m": {"b": 2, "a": 1}}) == [
        ("state.m", "changed", {"a": 1, "b": 2}, {"b": 2, "a": 1})
    ]
    assert in_state({"a": 1, "b": 2}, {"b": 2, "a": 3}) == [("state.a", "changed", 1, 3)]


def test_other_types_are_one_value() -> None:
    assert in_state({"t": (1, 2), "s": {1, 2}}, {"t": (1, 3), "s": {2, 1}}) == [("state.t", "changed", (1, 2), (1, 3))]
    assert in_state({"v": [1]}, {"v": (1,)}) == [("state.v", "changed", [1], (1,))]
    assert in_state({"v": {1: "a", 2: "b"}}, {"v": {1: "a", 2: "c"}}) == [("state.v[2]", "changed", "b", "c")]


def test_a_mapping_that_outgrows_its_packed_form_shows_only_what_is_new() -> None:
    small = {f"k{n}": "some text" for n in range(30)}
    assert in_state({"m": small}, {"m": small | {"big": LONG * 9}}) == [("state.m.big", "added", MISSING, LONG * 9)]


# -- lists


def test_lists_are_matched_by_content() -> None:
    items: list[dict[str, Any]] = [{"n": n} for n in range(200)]
    assert in_state({"l": items}, {"l": [*items[:70], "new", *items[70:]]}) == [
        ("state.l[70]", "added", MISSING, "new")
    ]
    assert in_state({"l": items}, {"l": items[:70] + items[72:]}) == [
        ("state.l[70]", "removed", {"n": 70}, MISSING),
        ("state.l[71]", "removed", {"n": 71}, MISSING),
    ]
    edited = copy.deepcopy(items)
    edited[150]["n"] = "edited"
    assert in_state({"l": items}, {"l": ["new", *edited]}) == [
        ("state.l[0]", "added", MISSING, "new"),
        ("state.l[151].n", "changed", 150, "edited"),
    ]


def test_messages_are_matched_by_their_ids() -> None:
    a = [{"id": f"m{n}", "content": f"text {n}"} for n in range(5)]
    b = [a[0], {"id": "new", "content": "x"}, {"id": "m1", "content": "edited"}, a[3], a[4] | {"more": 1}]
    assert in_messages(a, b) == [
        ("messages['new']", "added", MISSING, b[1]),
        ("messages['m1'].content", "changed", "text 1", "edited"),
        ("messages['m2']", "removed", a[2], MISSING),
        ("messages['m4'].more", "added", MISSING, 1),
    ]


def test_messages_without_an_id_of_their_own_are_named_by_index() -> None:
    a = [{"content": "a"}, {"content": "b", "id": "x"}, {"content": "c", "id": "x"}]
    b = [{"content": "a2"}, {"content": "b", "id": "x"}, {"content": "c2", "id": "x"}]
    assert [path for path, *_ in in_messages(a, b)] == ["messages[0].content", "messages['x'].content"]
    assert [path for path, *_ in in_messages([{"id": 7, "c": 1}], [{"id": 7, "c": 2}])] == ["messages[id=7].c"]


def test_only_a_string_or_integer_that_no_other_message_has_is_an_id() -> None:
    for ident in ("", None, True, 1.0, ["m1"]):
        assert [path for path, *_ in in_messages([{"id": ident, "c": 1}], [{"id": ident, "c": 2}])] == ["messages[0].c"]
    twice = [{"id": "x", "c": 1}, {"id": "x", "c": 2}]
    changed = [{"id": "x", "c": 3}, {"id": "x", "c": 4}]
    assert [path for path, *_ in in_messages(twice, changed)] == ["messages[0].c", "messages[1].c"]


def test_a_moved_message_is_gone_from_one_place_and_new_in_another() -> None:
    a = [{"id": f"m{n}"} for n in range(4)]
    b = [a[1], a[2], a[0], a[3]]
    assert in_messages(a, b) == [
        ("messages['m0']", "removed", a[0], MISSING),
        ("messages['m0']", "added", MISSING, a[0]),
    ]


# -- cost


@pytest.mark.parametrize("ids", [True, False])
def test_neighbours_in_a_long_history_cost_a_few_objects(ids: bool) -> None:
    history = [message(n) | ({"id": f"m{n}"} if ids else {}) for n in range(10_000)]
    state: dict[str, Any] = {f"key {n}": {"text": "x" * n, "n": n} for n in range(100)}
    shelf = Shelf()
    a = shelf.root(history, state)
    b = shelf.root([*history, message(-1)], state | {"key 50": {"text": "other", "n": 50}})
    found = shelf.run(compare(a, b))
    assert [d.path for d in found] == ["messages[10000]", "state['key 50'].text"]
    assert shelf.asked <= 30
    assert shelf.trips <= 8


def test_an_edit_in_a_long_history_costs_a_few_objects() -> None:
    history: list[dict[str, Any]] = [message(n) | {"id": f"m{n}"} for n in range(10_000)]
    edited = [*history[:5000], history[5000] | {"content": "edited"}, *history[5001:]]
    shelf = Shelf()
    found = shelf.run(compare(shelf.root(history), shelf.root(edited)))
    assert [d.path for d in found] == ["messages['m5000'].content"]
    assert shelf.asked <= 60


# -- what people see


def test_a_difference_reads_as_one_short_line() -> None:
    diff = Diff(
        "a",
        "b",
        [
            Difference("state.plan[1].due", "changed", "mon", "tue"),
            Difference("messages[4]", "added", MISSING, {"role": "user", "content": "hello"}),
            Difference("state.x", "removed", 1, MISSING),
        ],
    )
    assert str(diff).splitlines() == [
        "~ state.plan[1].due: 'mon' -> 'tue'",
        "+ messages[4]: [user] hello",
        "- state.x: 1",
    ]
    assert (len(diff), bool(diff), [d.path for d in diff][1]) == (3, True, "messages[4]")
    assert (bool(Diff("a", "b", [])), str(Diff("a", "b", []))) == (False, "no changes")


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        "\x1b[31m\n\u202e",
        {"role": "\x07", "content": "\r\n\x00"},
        "y" * 10**6,
        10**6000,
        Rude(),
        [[[[[[["\x9b"]]]]]]],
        "\ud800",
    ],
    ids=["escape", "message", "long", "number", "rude", "nested", "surrogate"],
)
def test_nothing_in_a_value_can_spoil_the_terminal(value: Any) -> None:
    line = str(Difference("messages['m']", "changed", value, {"k": value}))
    assert line.isprintable()
    assert len(line) < 900


def test_missing_is_one_object_everywhere() -> None:
    assert (repr(MISSING), bool(MISSING)) == ("MISSING", False)
    assert copy.copy(MISSING) is copy.deepcopy([MISSING])[0] is pickle.loads(pickle.dumps(MISSING)) is MISSING
