"""Laws of the three-way merge, and a plain merge of Python values to check it against."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep import MISSING, Conflict, InvalidInput, MergeConflict, UnstorableValue
from everstep.history.three_way import Merged, merge
from everstep.values import codec, tree
from tests.history.drawn_values import LONG, MESSAGES, PLAIN, STATES
from tests.values.shelves import Shelf, written
from tests.values.trees import message

Fields = tuple[list[Any], dict[str, Any], dict[str, Any]]


class Case:
    """Three checkpoints to merge."""

    def __init__(self, base: Any, ours: Any, theirs: Any, *, whole: tuple[bool, bool, bool] = (False,) * 3) -> None:
        self.shelf = Shelf()
        self.roots = [
            self.shelf.root(*fields, whole=one) for fields, one in zip((base, ours, theirs), whole, strict=True)
        ]

    def merge(self, **options: Any) -> Merged:
        merged: Merged = self.shelf.run(merge(*self.roots, **options))
        if not merged.conflicts:
            self.check(merged)
        return merged

    def values(self, **options: Any) -> Any:
        merged = self.merge(**options)
        assert merged.conflicts == []
        return read(merged, self.shelf)

    def check(self, merged: Merged) -> None:
        """The messages are as if written anew, and nothing the result needs is missing or sent without need."""
        fields = read(merged, self.shelf)
        anew = written(tree.Writer(), fields)
        assert merged.nodes[0][:3] == anew[0][:3]
        assert [node.size for node in merged.nodes] == [node.size for node in anew]
        sides = b"".join(root.children for root in self.roots[1:])
        below, missing = tree.reachable(sides, lambda key: self.shelf.objects[key][0])
        assert not missing
        needed, lost = tree.reachable(
            b"".join(node.children for node in merged.nodes),
            lambda key: merged.objects[key][0] if key in merged.objects else b"" if key in below else None,
        )
        assert not lost
        assert merged.objects.keys() <= needed


def read(merged: Merged, shelf: Shelf) -> list[Any]:
    objects = shelf.objects | merged.objects
    return [
        codec.unpack_parts(tree.Reader(objects, node.size).fields(node.children, node.body, 1)[0])
        for node in merged.nodes
    ]


def state_case(base: Any, ours: Any, theirs: Any) -> Case:
    return Case(([], base), ([], ours), ([], theirs))


def talk(base: Any, ours: Any, theirs: Any) -> Case:
    return Case((base,), (ours,), (theirs,))


def same(a: Any, b: Any) -> bool:
    if a is MISSING or b is MISSING:
        return a is b
    return codec.pack(a) == codec.pack(b)


def sides(conflicts: list[Conflict]) -> list[tuple[str, Any, Any, Any]]:
    return [(c.path, c.base, c.ours, c.theirs) for c in conflicts]


# -- against a plain merge


def plain_merge(path: str, b: Any, o: Any, t: Any, conflicts: dict[str, tuple[Any, Any, Any]]) -> Any:
    """The rules for mappings and lists, on Python values."""
    if same(o, t):
        return o
    if same(b, o):
        return t
    if same(b, t):
        return o
    if type(o) is dict and type(t) is dict and (b is MISSING or type(b) is dict):
        old = b if type(b) is dict else {}
        keys = [*o, *(key for key in t if key not in o)]
        found = {
            key: plain_merge(
                codec.join_path(path, key),
                old.get(key, MISSING),
                o.get(key, MISSING),
                t.get(key, MISSING),
                conflicts,
            )
            for key in keys
        }
        return {key: value for key, value in found.items() if value is not MISSING}
    if type(o) is list and type(t) is list and type(b) is list and same_places(b, o, t):
        rows = itertools.zip_longest(b, o, t, fillvalue=MISSING)
        parts = [plain_merge(f"{path}[{n}]", *row, conflicts) for n, row in enumerate(rows)]
        return [part for part in parts if part is not MISSING]
    conflicts[path] = b, o, t
    return MISSING


def same_places(b: list[Any], o: list[Any], t: list[Any]) -> bool:
    """Items were changed in place, or added at the end by one side that changed none."""
    grown = [x for x in (o, t) if len(x) > len(b)]
    kept = [x for x in (o, t) if len(x) == len(b)]
    return len(kept) == 2 or (len(kept) == len(grown) == 1 and same(grown[0][: len(b)], b))


@st.composite
def edits(draw: Any, value: Any) -> Any:
    """A value made from another one by a few changes."""
    if type(value) is dict and draw(st.integers(0, 9)):
        kept = {key: draw(edits(item)) if draw(st.booleans()) else item for key, item in value.items()}
        if draw(st.integers(0, 3)) == 0 and kept:
            kept.pop(draw(st.sampled_from(list(kept))))
        return kept | draw(st.dictionaries(st.sampled_from(["a", "new", "other", "z z"]), PLAIN, max_size=1))
    if type(value) is list and draw(st.integers(0, 9)):
        items = [draw(edits(item)) if draw(st.integers(0, 3)) == 0 else item for item in value]
        return (
            items[: draw(st.integers(0, len(items)))]
            if draw(st.integers(0, 4)) == 0
            else items + draw(st.lists(PLAIN, max_size=1))
        )
    return draw(PLAIN) if draw(st.booleans()) else value


@st.composite
def three_states(draw: Any) -> tuple[Any, Any, Any]:
    filler = draw(st.sampled_from([{}, {"long": LONG}, {f"f{n}": "some text of some length" * 3 for n in range(60)}]))
    base = draw(STATES) | filler
    ours, theirs = draw(edits(base)), draw(edits(base))
    return tuple(value if type(value) is dict else {"v": value} for value in (base, ours, theirs))  # type: ignore[return-value]


@given(three_states(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
@settings(max_examples=80)
def test_mappings_and_lists_merge_as_their_values_do(states: tuple[Any, Any, Any], whole: Any) -> None:
    expected: dict[str, Any] = {}
    plain = plain_merge("state", *states, expected)
    case = Case(*(([], state, {"t": state}) for state in states), whole=whole)
    merged = case.merge()
    found = {c.path: (c.base, c.ours, c.theirs) for c in merged.conflicts if c.path.startswith("state")}
    assert found.keys() == expected.keys()
    assert all(same(*both) for path in found for both in zip(found[path], expected[path], strict=True))
    assert [c.path.replace("tools_result.t", "state", 1) for c in merged.conflicts][len(found) :] == list(found)
    if not expected:
        assert same(read(merged, case.shelf)[1:], [plain, {"t": plain}])
    for side in ("ours", "theirs"):
        settled = {path: values[1 if side == "ours" else 2] for path, values in expected.items()}
        settled |= {path.replace("state", "tools_result.t", 1): value for path, value in settled.items()}
        assert same(case.values(resolve=side), case.values(resolve=settled))


@given(three_states(), MESSAGES, MESSAGES, MESSAGES)
@settings(max_examples=40)
def test_a_side_that_did_nothing_gives_way(states: tuple[Any, Any, Any], mb: Any, mx: Any, my: Any) -> None:
    base, changed = (mb, states[0], states[1]), (mx, states[1], states[2])
    for ours, theirs in ((changed, base), (base, changed), (changed, changed)):
        case = Case(base, ours, theirs)
        assert same(case.values(), list(changed))
        assert case.merge().objects == {}


@given(three_states(), MESSAGES, MESSAGES, MESSAGES)
@settings(max_examples=40)
def test_conflicts_are_the_same_from_both_sides(states: tuple[Any, Any, Any], mb: Any, mo: Any, mt: Any) -> None:
    fields = [(m, s) for m, s in zip((mb, mo, mt), states, strict=True)]
    there = Case(*fields).merge().conflicts
    back = Case(fields[0], fields[2], fields[1]).merge().conflicts
    key: Callable[[Any], Any] = lambda four: four[0]  # noqa: E731
    mirrored = sorted([(path, b, t, o) for path, b, o, t in sides(back)], key=key)
    assert repr(sorted(sides(there), key=key)) == repr(mirrored)
    assert len({c.path for c in there}) == len(there)


# -- mappings and lists, by example


def test_changes_of_both_sides_come_together() -> None:
    base = {"plan": [{"due": "mon"}, {"due": "tue"}], "a": 1, "gone": 1, "deep": {"x": {"y": 1, "z": LONG}}}
    ours = {"plan": [{"due": "wed"}, {"due": "tue"}], "a": 2, "deep": {"x": {"y": 2, "z": LONG}}, "o": 1}
    theirs = {"plan": [{"due": "mon"}, {"due": "fri"}], "t": 1, "a": 1, "gone": 1, "deep": {"x": {"y": 1, "z": "s"}}}
    assert list(state_case(base, ours, theirs).values()[1].items()) == [
        ("plan", [{"due": "wed"}, {"due": "fri"}]),
        ("a", 2),
        ("deep", {"x": {"y": 2, "z": "s"}}),
        ("o", 1),
        ("t", 1),
    ]


def test_conflicts_name_the_path_and_all_three_values() -> None:
    base = {"a": 1, "b": 1, "l": [1, 2], "t": (1,)}
    ours = {"a": 2, "l": [1, 2, 3], "t": (2,), "m": {"k": 1, "o": 1}}
    theirs = {"a": 1.0, "b": 2, "l": [1, 2, 4], "t": (3,), "m": {"k": 2, "t": 1}}
    assert sides(state_case(base, ours, theirs).merge().conflicts) == [
        ("state.a", 1, 2, 1.0),
        ("state.l", [1, 2], [1, 2, 3], [1, 2, 4]),
        ("state.t", (1,), (2,), (3,)),
        ("state.m.k", MISSING, 1, 2),
        ("state.b", 1, MISSING, 2),
    ]
    assert state_case(base, ours, theirs).merge().nodes == []


def test_types_make_a_difference() -> None:
    assert state_case({"a": 1}, {"a": True}, {"a": 1}).values()[1]["a"] is True
    assert [c.path for c in state_case({"a": 1}, {"a": True}, {"a": 1.0}).merge().conflicts] == ["state.a"]


def test_keys_that_are_no_text() -> None:
    base: dict[Any, Any] = {1: "a", 2: "b"}
    found = state_case({"m": base}, {"m": base | {1: LONG}}, {"m": base | {"x": LONG}}).values()
    assert found[1] == {"m": {1: LONG, 2: "b", "x": LONG}}
    mixed: dict[Any, Any] = {1: "a", "x": LONG}
    case = state_case({"m": mixed}, {"m": {"x": LONG}}, {"m": mixed | {"y": LONG}})
    assert case.values()[1] == {"m": {"x": LONG, "y": LONG}}


def test_a_mapping_may_shrink_and_grow_over_every_limit() -> None:
    long = {f"k{n}": "t" * 60 for n in range(40)}
    half = dict(list(long.items())[:20]) | {"last": 1}
    rest = dict(list(long.items())[20:])
    state_case({"m": long | {"last": 1}}, {"m": half}, {"m": rest | {"last": 1}}).values()
    assert state_case({"m": {}}, {"m": half}, {"m": rest}).values()[1] == {"m": half | rest}
    assert state_case({"m": {"x": 1}}, {"m": {"x": 1, "b": LONG * 20}}, {"m": {"x": 2}}).values()


def test_deep_nesting_is_no_trouble() -> None:
    def nested(leaf: Any) -> Any:
        for _ in range(codec.DEPTH_MAX - 2):
            leaf = {"n": leaf}
        return leaf

    case = state_case(nested({"a": 1}), nested({"a": 1, "o": 1}), nested({"a": 1, "t": LONG}))
    assert case.values()[1] == nested({"a": 1, "o": 1, "t": LONG})


# -- messages


def said(name: str, text: str = "text", **more: Any) -> dict[str, Any]:
    return {"id": name, "role": "user", "content": text, **more}


def names(messages: list[Any]) -> list[Any]:
    return [m.get("id") or m.get("tool_call_id") or m["content"] for m in messages]


@st.composite
def conversations(draw: Any) -> tuple[list[Any], list[Any], list[Any], list[str]]:
    """Base, ours, theirs, made by edits that do not touch each other, and the ids that must come out."""
    length = draw(st.sampled_from([0, 1, 3, 8, 40, 300]))
    text = draw(st.sampled_from(["short", "text " * 30, LONG * 2]))
    base = [said(f"m{n}", text) for n in range(length)]
    owner = {n: draw(st.sampled_from("ot")) for n in draw(st.sets(st.integers(0, max(length - 1, 0)), max_size=8))}
    what = {n: draw(st.sampled_from(["edit", "remove"])) for n in owner if n < length}
    new = {
        (side, gap): draw(st.integers(1, 3))
        for side in "ot"
        for gap in draw(st.sets(st.integers(-1, length - 1), max_size=4))
    }
    sequences: dict[str, list[Any]] = {}
    follow: dict[tuple[str, int], list[str]] = {}
    for side in "ot":
        out: list[Any] = []
        last = -1
        for n in range(-1, length):
            mine = what.get(n) if owner.get(n) == side else None
            if n >= 0 and mine != "remove":
                out.append(base[n] | {"content": f"by {side}"} if mine == "edit" else base[n])
                last = n
            added = [said(f"{side}{n}.{i}", text) for i in range(new.get((side, n), 0))]
            out.extend(added)
            follow.setdefault((side, last), []).extend(m["id"] for m in added)
        if last < length - 1:  # what stands at a side's end is new after all of the base
            follow[side, length - 1] = follow.pop((side, last), [])
        sequences[side] = out
    expected: list[str] = []
    for n in range(-1, length):
        expected.extend([f"m{n}"] if n >= 0 and what.get(n) != "remove" else [])
        expected.extend(follow.get(("o", n), []) + follow.get(("t", n), []))
    return base, sequences["o"], sequences["t"], expected


@given(conversations())
@settings(max_examples=60)
def test_everything_that_was_said_comes_out_in_order(talked: Any) -> None:
    base, ours, theirs, expected = talked
    merged = talk(base, ours, theirs).values()[0]
    assert names(merged) == expected
    by_name = {m["id"]: m for m in merged}
    for side, mark in ((ours, "by o"), (theirs, "by t")):
        assert all(by_name[m["id"]] == m for m in side if m["content"] == mark or m["id"][0] in "ot")
    other_way = talk(base, theirs, ours).values()[0]
    assert sorted(names(other_way)) == sorted(names(merged))


@given(MESSAGES, MESSAGES, MESSAGES)
@settings(max_examples=100)
def test_any_messages_merge_or_conflict(base: Any, ours: Any, theirs: Any) -> None:
    case = talk(base, ours, theirs)
    conflicts = case.merge().conflicts
    assert len(case.values(resolve="ours")) == 3
    assert (
        len(
            case.values(
                resolve=dict.fromkeys([c.path for c in conflicts if c.path != "messages"], MISSING)
                | ({"messages": ["x"]} if conflicts and conflicts[0].path == "messages" else {})
            )
        )
        == 3
    )


def test_both_added() -> None:
    a, b, c, d = (said(x) for x in "abcd")
    plain = {"role": "user", "content": "no id"}
    assert names(talk([a], [a, b], [a, c, d]).values()[0]) == ["a", "b", "c", "d"]
    assert names(talk([a], [a, plain, b], [a, plain, c]).values()[0]) == ["a", "no id", "b", "c"]
    assert names(talk([a], [a, b, plain], [a, c, plain]).values()[0]) == ["a", "b", "no id", "c", "no id"]
    assert names(talk([a], [a, b, d], [a, c, d]).values()[0]) == ["a", "b", "d", "c"]
    assert sides(talk([a], [a, b], [a, c, said("b", "other")]).merge().conflicts) == [
        ("messages['b']", MISSING, b, said("b", "other"))
    ]


def test_edits_of_one_message() -> None:
    a, b = said("a"), {"role": "user", "content": "no id"}
    both = talk([a, b], [a | {"o": 1}, b], [a | {"t": 1}, b])
    assert both.values()[0] == [a | {"o": 1, "t": 1}, b]
    clash = talk([a, b], [a | {"content": "o"}, b | {"content": "o"}], [a | {"content": "t"}, b | {"content": "t"}])
    assert sides(clash.merge().conflicts) == [
        ("messages['a'].content", "text", "o", "t"),
        ("messages[1].content", "no id", "o", "t"),
    ]
    gone = talk([a, b], [b], [a | {"content": "t"}, b])
    assert sides(gone.merge().conflicts) == [("messages['a']", a, MISSING, a | {"content": "t"})]
    assert names(gone.values(resolve="ours")[0]) == ["no id"]
    assert names(gone.values(resolve="theirs")[0]) == ["a", "no id"]
    assert names(talk([a, b], [b], [a, b, said("c")]).values()[0]) == ["no id", "c"]


def test_an_index_in_the_middle_of_a_long_conversation() -> None:
    base = [message(n) for n in range(3000)]
    ours, theirs = list(base), list(base)
    ours[1700], theirs[1700] = message(-1), message(-2)
    assert [c.path for c in talk(base, ours, ["new", *theirs]).merge().conflicts] == ["messages[1700].content"]


def test_a_new_order_is_one_conflict_if_the_other_side_changed_anything() -> None:
    a, b, c, d = (said(x) for x in "abcd")
    assert names(talk([a, b, c], [b, a, c], [a, b, c]).values()[0]) == ["b", "a", "c"]
    case = talk([a, b, c], [b, a, c], [a, b, c, d])
    assert sides(case.merge().conflicts) == [("messages", [a, b, c], [b, a, c], [a, b, c, d])]
    assert names(case.values(resolve={"messages": [d, a]})[0]) == ["d", "a"]
    for wrong in (MISSING, {"a": 1}, "text", None):
        with pytest.raises(InvalidInput, match="list"):
            case.merge(resolve={"messages": wrong})


def test_a_name_that_two_messages_have_names_neither() -> None:
    twice = [said("x", "1"), said("x", "2")]
    ours, theirs = [said("x", "o"), twice[1]], [twice[0], said("x", "t")]
    assert [m["content"] for m in talk(twice, ours, theirs).values()[0]] == ["o", "t"]
    clash = talk(twice, ours, [said("x", "3"), said("x", "t")]).merge().conflicts
    assert [c.path for c in clash] == ["messages[0].content"]


# -- tool calls


def call(*calls: str, style: str = "openai") -> dict[str, Any]:
    if style == "blocks":
        return {"role": "assistant", "content": [{"type": "tool_use", "id": one, "name": "f"} for one in calls]}
    if style == "single":
        return {"role": "assistant", "content": "", "tool_call": {"id": calls[0]}}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": one, "args": LONG} for one in calls]}


def result(one: str, text: str = "42", style: str = "openai", **more: Any) -> dict[str, Any]:
    if style == "blocks":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": one, "content": text}], **more}
    return {"role": "tool", "tool_call_id": one, "content": text, **more}


@pytest.mark.parametrize("style", ["openai", "blocks", "single"])
@pytest.mark.parametrize("length", [0, 3, 2000])
def test_a_result_follows_its_call(style: str, length: int) -> None:
    before = [message(n) for n in range(length)]
    asked, answered = call("c1", style=style), result("c1", style=style)
    base, hey, answer = [*before, asked], said("hey"), said("answer")
    one, two = [*base, hey], [*base, answered, answer]
    assert talk(base, one, two).values()[0][length:] == [asked, answered, hey, answer]
    assert talk(base, two, one).values()[0][length:] == [asked, answered, answer, hey]
    early = [hey, *base]
    case = talk(base, early, two)
    assert case.values()[0] == [hey, *before, asked, answered, answer]


def test_results_of_one_message_stand_together() -> None:
    base = [said("a"), call("c1", "c2", "c3")]
    ours = [*base, result("c1"), said("u")]
    theirs = [*base, said("v"), result("c2"), result("c3"), said("w")]
    assert names(talk(base, ours, theirs).values()[0])[2:] == ["c1", "v", "c2", "c3", "u", "w"]


def test_a_call_that_moves_takes_its_result_along() -> None:
    base = [call("c1")]
    ours = [*base, said("u"), call("c2"), result("c2"), said("x")]
    theirs = [*base, result("c1"), said("answer")]
    assert talk(base, ours, theirs).values()[0] == [base[0], theirs[1], *ours[1:], theirs[2]]


def test_what_is_added_between_a_call_and_its_result_elsewhere() -> None:
    b, x = said("b"), said("x")
    ours = [call("c1"), b, result("c1")]
    assert talk([b], ours, [x, b]).values()[0] == [call("c1"), b, result("c1"), x]


def test_two_answers_to_one_call_conflict() -> None:
    base = [call("c1")]
    case = talk(base, [*base, result("c1", "1")], [*base, result("c1", "2")])
    assert sides(case.merge().conflicts) == [
        ("messages[tool_call_id='c1']", MISSING, result("c1", "1"), result("c1", "2"))
    ]
    uuids = talk(base, [*base, result("c1", id="x")], [*base, result("c1", id="y")])
    assert [c.path for c in uuids.merge().conflicts] == ["messages[tool_call_id='c1']"]
    assert names(uuids.values(resolve="theirs")[0])[1:] == ["y"]
    assert len(talk(base, [*base, result("c1")], [*base, result("c1"), said("a")]).values()[0]) == 3


def test_a_result_whose_call_was_dropped_is_a_conflict_about_the_call() -> None:
    a, asked = said("a"), call("c1")
    case = talk([a, asked], [a, said("b")], [a, asked, result("c1"), said("c")])
    assert sides(case.merge().conflicts) == [("messages[1]", asked, MISSING, asked)]
    assert names(case.values(resolve="ours")[0]) == ["a", "b", "c"]
    assert case.values(resolve="theirs")[0] == [a, asked, result("c1"), said("b"), said("c")]
    back = talk([a, asked], [a, asked, result("c1", id="r")], [a, said("b")])
    assert sides(back.merge().conflicts) == [("messages[1]", asked, asked, MISSING)]
    assert names(back.values(resolve="theirs")[0]) == ["a", "b"]
    edited = talk([a, asked | {"id": "q"}], [a, said("q", "no call")], [a, asked | {"id": "q"}, result("c1")])
    assert [c.path for c in edited.merge().conflicts] == ["messages['q']"]
    assert edited.values(resolve="ours")[0] == [a, said("q", "no call")]
    assert edited.values(resolve="theirs")[0] == [a, asked | {"id": "q"}, result("c1")]


def test_items_of_the_responses_api_stay_together() -> None:
    asked = {"type": "function_call", "call_id": "c1", "name": "f"}
    answered = {"type": "function_call_output", "call_id": "c1", "output": "1"}
    ours, theirs = [asked, said("hey")], [asked, answered, said("answer")]
    assert talk([asked], ours, theirs).values()[0] == [asked, answered, said("hey"), said("answer")]


def test_lists_whose_items_moved_are_one_value() -> None:
    todo = [{"id": n, "s": "todo"} for n in range(3)]
    done = [todo[0], todo[1] | {"s": "DONE"}, todo[2]]
    case = state_case({"l": todo}, {"l": todo[1:]}, {"l": done})
    assert sides(case.merge().conflicts) == [("state.l", todo, todo[1:], done)]
    assert [c.path for c in state_case({"l": [1, 2, 3]}, {"l": [2, 3]}, {"l": [1, 2]}).merge().conflicts] == ["state.l"]
    assert [c.path for c in state_case({"l": [1]}, {"l": [1, 2]}, {"l": [1, 3]}).merge().conflicts] == ["state.l"]
    assert state_case({"l": [1, 2]}, {"l": [1, 2, 3]}, {"l": [5, 2]}).values()[1] == {"l": [5, 2, 3]}


def test_the_record_of_a_captured_call_is_not_mixed_with_another() -> None:
    def record(arg: str, found: str) -> dict[str, Any]:
        return {"name": "search", "args": [arg], "kwargs": {}, "status": "ok", "result": found}

    ours, theirs, base = record("b", "x"), record("a", "y"), record("a", "x")
    assert Case(([], {}, base), ([], {}, ours), ([], {}, theirs)).values()[2] == ours
    assert Case(([], {}, base), ([], {}, base), ([], {}, theirs)).values()[2] == theirs


def test_a_merge_may_be_larger_than_each_of_its_sides() -> None:
    ours, theirs = {"p": {"hotel": "the grand hotel at the harbour"}}, {"p": {"travel": "by night train from afar"}}
    assert state_case({"p": {}}, ours, theirs).values()[1] == {"p": ours["p"] | theirs["p"]}
    grown = "a value that is longer than the whole state was on any of the sides " * 3
    assert state_case({"a": 1}, {"a": 2}, {"a": 3}).values(resolve={"state.a": grown})[1] == {"a": grown}


@st.composite
def tool_talks(draw: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Conversations in which both sides answer and make calls."""
    base: list[Any] = [said(f"m{n}") for n in range(draw(st.integers(0, 3)))]
    base += [call("p1", "p2", style=draw(st.sampled_from(["openai", "blocks"]))) | {"id": "ask"}]
    base += [said(f"n{n}") for n in range(draw(st.integers(0, 2)))]

    def side(mark: str, pending: list[str]) -> list[Any]:
        out: list[Any] = []
        for m in base:
            if draw(st.integers(0, 3)) == 0:
                out.append(said(f"{mark} before {m['id']}"))
            out.append(m)
        for n in range(draw(st.integers(0, 4))):
            kind = draw(st.sampled_from(["say", "call", "answer"]))
            if kind == "answer" and pending:
                one = pending.pop(0)
                out.append(result(one, id=f"{mark} result {one}"))
            elif kind == "call":
                out.append(call(f"{mark}{n}") | {"id": f"{mark} call {n}"})
                pending.append(f"{mark}{n}")
            else:
                out.append(said(f"{mark} says {n}"))
        return out

    return base, side("o", ["p1"]), side("t", ["p2"])


@given(tool_talks())
@settings(max_examples=100)
def test_nothing_comes_between_a_call_and_its_result(talked: Any) -> None:
    base, ours, theirs = talked
    merged = talk(base, ours, theirs).values()[0]
    assert sorted(names(merged)) == sorted({*names(ours), *names(theirs)})
    for side in (ours, theirs):
        for answer in [m for m in side if "tool_call_id" in m]:
            allowed = between(side, answer)
            results = {m["id"] for m in merged if "tool_call_id" in m}
            assert between(merged, answer) <= allowed | results
    for side in (base, ours, theirs):
        plain = [name for name in names(side) if " result " not in name]
        assert len(plain) == len([name for name in names(merged) if name in plain])


def between(messages: list[Any], answer: Any) -> set[str]:
    end = messages.index(answer)
    one = answer["tool_call_id"]
    start = max(n for n, m in enumerate(messages[:end]) if one in str(m.get("tool_calls", "")) + str(m["content"]))
    return {m["id"] for m in messages[start + 1 : end]}


# -- resolve


CLASH = ({"a": 1, "b": {"c": 1}, "l": [1]}, {"a": 2, "b": {"c": 2}, "l": [2]}, {"a": 3, "b": {"c": 3}, "l": [3]})


def test_resolve_by_side_mapping_or_function() -> None:
    case = state_case(*CLASH)
    assert [c.path for c in case.merge().conflicts] == ["state.a", "state.b.c", "state.l[0]"]
    assert case.values(resolve="ours")[1] == CLASH[1]
    assert case.values(resolve="theirs")[1] == CLASH[2]
    assert [c.path for c in case.merge(resolve={"state.a": 9}).conflicts] == ["state.b.c", "state.l[0]"]
    some = {"state.a": LONG * 9, "state.b.c": MISSING, "state.l[0]": MISSING}
    assert case.values(resolve=some)[1] == {"a": LONG * 9, "b": {}, "l": []}
    seen: list[Conflict] = []

    def decide(conflict: Conflict) -> Any:
        seen.append(conflict)
        return [conflict.base, conflict.ours, conflict.theirs]

    assert case.values(resolve=decide)[1] == {"a": [1, 2, 3], "b": {"c": [1, 2, 3]}, "l": [[1, 2, 3]]}
    assert [c.path for c in seen] == ["state.a", "state.b.c", "state.l[0]"]


def test_resolving_by_side_reads_each_side_once() -> None:
    """A value in pieces must be read to know what changed in it."""
    big = {"a": "x" * 200_000}
    case = state_case(big, {"a": "y" * 200_000}, {"a": "z" * 200_000})
    objects = len(case.shelf.objects)
    case.merge(resolve="ours")
    assert case.shelf.asked <= objects
    assert case.shelf.trips <= 3


@pytest.mark.parametrize("wrong", ["mine", 1, ["state.a"], b"ours", True])
def test_resolve_must_make_sense(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="resolve"):
        state_case({}, {}, {}).merge(resolve=wrong)


def test_a_path_that_is_no_conflict_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"state\.x.*state\.a, state\.b\.c"):
        state_case(*CLASH).merge(resolve={"state.a": 1, "state.x": 1})
    with pytest.raises(InvalidInput, match="none"):
        state_case({}, {}, {}).merge(resolve={"state.x": 1})


def test_what_a_function_raises_comes_out() -> None:
    class Own(Exception):
        pass

    def refuse(_: Conflict) -> Any:
        raise Own

    with pytest.raises(Own):
        state_case(*CLASH).merge(resolve=refuse)


def test_an_async_function_is_refused() -> None:
    async def later(_: Conflict) -> Any: ...

    with pytest.raises(InvalidInput, match="plain function"):
        state_case(*CLASH).merge(resolve=later)

    async def inside() -> None:
        future = asyncio.get_running_loop().create_future()
        with pytest.raises(InvalidInput, match="plain function"):
            state_case(*CLASH).merge(resolve=lambda _: future)

    asyncio.run(inside())


def test_an_unstorable_answer_names_its_path() -> None:
    with pytest.raises(UnstorableValue) as caught:
        state_case(*CLASH).merge(resolve={"state.a": 1, "state.b.c": {"x": [object()]}, "state.l[0]": 1})
    assert caught.value.path == "state.b.c.x[0]"


def test_the_state_as_a_whole_stays_a_mapping() -> None:
    case = state_case(1, 2, {"a": 1})
    assert [c.path for c in case.merge().conflicts] == ["state"]
    with pytest.raises(InvalidInput, match="dict"):
        case.merge(resolve={"state": MISSING})
    assert case.values(resolve=lambda _: {"b": 1})[1] == {"b": 1}


def test_the_error_says_what_to_do() -> None:
    conflicts = [Conflict(f"state.k{n}", 1, 2, 3) for n in range(8)]
    error = MergeConflict(conflicts)
    assert error.conflicts == conflicts
    text = str(error)
    assert all(word in text for word in ("state.k0", "state.k4", "3 more", "'ours'", "'theirs'", "mapping", "function"))


# -- an uncertain base


def test_where_the_base_is_uncertain_any_difference_is_a_conflict() -> None:
    base = {"a": 1, "b": {"c": 1, "d": 1}, "e": 1}
    theirs = {"a": 2, "b": {"c": 2, "d": 1}, "e": 2}
    case = state_case(base, base, theirs)
    assert case.values()[1] == theirs
    uncertain = frozenset({"state.a", "state.b", "state.zzz"})
    assert sides(case.merge(uncertain=uncertain).conflicts) == [("state.a", 1, 1, 2), ("state.b.c", 1, 1, 2)]
    assert case.values(uncertain=uncertain, resolve="theirs")[1] == theirs
    assert state_case(base, theirs, theirs).values(uncertain=uncertain)[1] == theirs


def test_uncertain_messages() -> None:
    a, b = said("a"), {"content": "no id"}
    case = talk([a, b, said("z")], [a, b, said("z")], [said("a", "new"), {"content": "new"}, said("z"), said("c")])
    paths = frozenset({"messages['a']", "messages[1]", "messages['c']"})
    found = sides(case.merge(uncertain=paths).conflicts)
    assert [path for path, *_ in found] == ["messages['a'].content", "messages[1].content", "messages['c']"]
    assert found[2][1:] == (MISSING, MISSING, said("c"))
    assert [c.path for c in case.merge(uncertain=frozenset({"messages"})).conflicts] == ["messages"]


# -- cost


def test_two_short_continuations_of_a_long_history_are_cheap() -> None:
    history = [message(n) for n in range(10_000)]
    state: dict[str, Any] = {f"key {n}": {"text": "x" * n, "n": n} for n in range(100)}
    case = Case(
        (history, state),
        ([*history, message(-1)], state | {"key 20": {"text": "ours"}}),
        ([*history, message(-2)], state | {"key 70": {"text": "theirs"}}),
    )
    merged = case.merge()
    assert merged.conflicts == []
    assert case.shelf.asked <= 40
    assert case.shelf.trips <= 8
    assert len(merged.objects) <= 5


def test_edits_far_apart_in_a_long_history_are_cheap() -> None:
    history: list[dict[str, Any]] = [message(n) | {"id": f"m{n}"} for n in range(10_000)]
    ours = [*history[:2000], history[2000] | {"content": "ours"}, *history[2001:]]
    theirs = [*history[:8000], *history[8001:]]
    case = talk(history, ours, theirs)
    assert len(case.values()[0]) == 9_999
    case.merge()
    assert case.shelf.asked <= 200


def test_different_histories_of_ten_thousand_messages_end_in_time() -> None:
    lists = [[{"content": f"{side} {n}"} for n in range(10_000)] for side in "bot"]
    assert len(Case(*((one,) for one in lists)).merge().conflicts) == 10_000


def test_arguments_are_not_changed() -> None:
    states = copy.deepcopy(CLASH)
    state_case(*states).merge(resolve="ours")
    assert states == CLASH
