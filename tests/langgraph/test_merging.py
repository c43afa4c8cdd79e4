"""Merging threads of the LangGraph saver, with the graph's reducers and without, and what the graph does then."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels import Topic
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command
from pydantic import BaseModel

from everstep import EverstepError, MergeConflict
from tests.langgraph.graphs import added, folded
from tests.langgraph.stories import TOLD, Begin, Story, World, face, here, kind, name_of, where  # noqa: F401  # fixtures


def longest(old: str, new: str) -> str:
    return max(old, new, key=len)


def joined(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**(old or {}), **new}


class Notes(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    items: Annotated[list[Any], operator.add]
    total: Annotated[int, operator.add]
    best: Annotated[str, longest]
    facts: Annotated[dict[str, Any], joined]
    topic: Annotated[list[str], Topic(str, accumulate=True)]
    book: dict[str, Any]
    word: str
    grown: Annotated[list[Any], DeltaChannel(added, snapshot_frequency=1000)]
    talk: Annotated[list[Any], DeltaChannel(folded, snapshot_frequency=3)]


def notes(checkpointer: Any, world: World) -> Any:
    """A graph that takes down what it is given, and goes on in two steps."""

    def work(name: str) -> Any:
        def run(_: Any) -> dict[str, Any]:
            world.did(name)
            return {}

        return run

    graph: Any = StateGraph(Notes)
    graph.add_node("one", work("one"))
    graph.add_node("two", work("two"))
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    return graph.compile(checkpointer)


async def parted(story: Story, before: Any, ours: list[Any], theirs: list[Any]) -> str:
    """Return a branch that was given other things than the thread it began in."""
    await story.turn(before)
    branch: str = await story.engine.branch(name_of(await story.state()), "b", thread_id="t")
    for given in ours:
        await story.turn(given)
    for given in theirs:
        await story.turn(given, branch)
    story.world.took()
    return branch


async def value(story: Story, name: str, thread: str = "t") -> Any:
    found = (await story.state(thread)).values.get(name)
    if isinstance(found, list) and found and hasattr(found[0], "content"):
        return [message.content for message in found]
    return found


def said(*names: str) -> list[Any]:
    return [HumanMessage(name, id=name) for name in names]


REDUCED: list[tuple[str, Any, Any, Any, Any]] = [
    ("messages", said("a"), [said("b"), said("c")], [said("d"), said("e")], ["a", "b", "c", "d", "e"]),
    ("messages", said("a", "x"), [said("b")], [[RemoveMessage(id="x")], said("d")], ["a", "b", "d"]),
    ("messages", said("a", "x"), [[RemoveMessage(id="x")]], [said("d")], ["a", "d"]),
    ("messages", said("a"), [said("b")], [[HumanMessage("edited", id="a")]], ["edited", "b"]),
    ("messages", [("user", "no id")], [[("user", "b")]], [[("user", "c")]], ["no id", "b", "c"]),
    ("items", [1], [[2], [3]], [[4], [5]], [1, 2, 3, 4, 5]),
    ("items", [1], [[2]], [[2]], [1, 2, 2]),
    ("items", [], [[2]], [[3]], [2, 3]),
    ("total", 1, [2, 3], [10, 20], 36),
    ("total", 1, [5], [5], 11),
    ("best", "a", ["bbb"], ["cccc", "d"], "cccc"),
    ("best", "a", ["bbbbb"], ["cccc"], "bbbbb"),
    ("facts", {"a": 1}, [{"b": 2}, {"a": 5}], [{"c": 3}, {"c": 4}], {"a": 5, "b": 2, "c": 4}),
    ("facts", {"a": 1}, [{"a": 2}], [{"a": 3}], {"a": 3}),
    ("topic", ["a"], [["b"]], [["c"], ["d"]], ["a", "b", "c", "d"]),
]


@pytest.mark.parametrize(("name", "before", "ours", "theirs", "expected"), REDUCED)
@here
async def test_reducers_decide(begin: Begin, name: str, before: Any, ours: Any, theirs: Any, expected: Any) -> None:
    """What theirs wrote goes through the reducer, onto ours."""
    story = begin(notes)
    branch = await parted(story, {name: before}, [{name: each} for each in ours], [{name: each} for each in theirs])
    untouched = await story.whole(branch)

    await story.engine.merge_branch(branch, "t", graph=story.app)

    assert await value(story, name) == expected
    assert await story.whole(branch) == untouched
    await story.turn({"word": "on"})
    assert story.world.took() == ["one", "two"]


@here
async def test_a_builder_will_do_for_the_graph(begin: Begin) -> None:
    story = begin(notes)
    branch = await parted(story, {"total": 1}, [{"total": 2}], [{"total": 3}])
    await story.engine.merge_branch(branch, "t", graph=story.app.builder)
    assert await value(story, "total") == 6


THREE_WAY: list[tuple[str, Any, Any, Any, Any]] = [
    ("messages", said("a"), said("b"), said("c"), ["a", "b", "c"]),
    ("messages", said("a", "x"), said("b"), [RemoveMessage(id="x")], ["a", "b"]),
    ("messages", said("a", "x"), [RemoveMessage(id="x")], said("b"), ["a", "b"]),
    ("book", {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}),
    ("book", {"a": 1, "d": {"e": 1}}, {"d": {"e": 1}}, {"a": 1, "d": {"e": 2}}, {"d": {"e": 2}}),
    ("book", {"l": [1, 2]}, {"l": [9, 2]}, {"l": [1, 2, 3]}, {"l": [9, 2, 3]}),
    ("word", "a", "b", "b", "b"),
    ("facts", {"a": 1}, {"b": 2}, {"c": 3}, {"a": 1, "b": 2, "c": 3}),
]


@pytest.mark.parametrize(("name", "before", "ours", "theirs", "expected"), THREE_WAY)
@here
async def test_three_way_rules_decide(
    begin: Begin, name: str, before: Any, ours: Any, theirs: Any, expected: Any
) -> None:
    story = begin(notes)
    branch = await parted(story, {name: before}, [{name: ours}], [{name: theirs}])
    await story.engine.merge_branch(branch, "t")
    assert await value(story, name) == expected


@pytest.mark.parametrize("name", ["word", "total", "items", "topic", "book", "messages"])
@here
async def test_one_side_changed(begin: Begin, name: str) -> None:
    """Its value counts; what the other side did elsewhere stays."""
    values = {"word": "w", "total": 1, "items": [1], "topic": ["x"], "book": {"k": 1}, "messages": said("m")}
    for graph in (None, "graph"):
        story = begin(notes)
        thread = f"{name}-{graph}"
        await story.turn({"best": "b"}, thread)
        branch = await story.engine.branch(name_of(await story.state(thread)), "b")
        await story.turn({name: values[name]}, branch)
        await story.turn({"facts": {"ours": 1}}, thread)
        await story.engine.merge_branch(branch, thread, graph=story.app if graph else None)
        state = (await story.state(thread)).values
        assert (state["best"], state["facts"]) == ("b", {"ours": 1})
        assert await value(story, name, thread) == await value(story, name, branch)


async def test_conflicts_are_listed_and_nothing_is_written(begin: Begin) -> None:
    story = begin(notes)
    before = {"word": "a", "book": {"k": {"x": 1}, "same": 1}, "total": 1, "messages": said("m")}
    ours = {"word": "b", "book": {"k": {"x": 2}, "same": 2}, "total": 1, "messages": [HumanMessage("o", id="m")]}
    theirs = {"word": "c", "book": {"k": {}, "same": 2}, "total": 5, "messages": [HumanMessage("t", id="m")]}
    branch = await parted(story, before, [ours], [theirs])
    threads = [await story.whole(thread) for thread in ("t", branch)]

    with pytest.raises(MergeConflict) as caught:
        await story.engine.merge_branch(branch, "t")

    found = {each.path: each for each in caught.value.conflicts}
    assert set(found) == {"state.word", "state.book.k.x", "state.total", "messages['m'].content"}
    assert (found["state.word"].base, found["state.word"].ours, found["state.word"].theirs) == ("a", "b", "c")
    assert (found["state.total"].base, found["state.total"].ours, found["state.total"].theirs) == (1, 2, 6)
    assert [await story.whole(thread) for thread in ("t", branch)] == threads
    assert await story.engine.operations(branch) == []

    with pytest.raises(MergeConflict) as caught:
        await story.engine.merge_branch(branch, "t", graph=story.app)
    assert {each.path for each in caught.value.conflicts} == {"state.word", "state.book.k.x"}
    assert [await story.whole(thread) for thread in ("t", branch)] == threads


@pytest.mark.parametrize("way", ["ours", "theirs", "mapping", "function"])
@here
async def test_conflicts_are_settled(begin: Begin, way: str) -> None:
    story = begin(notes)
    before, after = {"word": "a", "book": {"k": 1}, "messages": said("m")}, {"theirs": "c", "ours": "b"}
    mine, yours = [{"word": word, "book": {"k": word}, "messages": [HumanMessage(word, id="m")]} for word in ("b", "c")]
    branch = await parted(story, before, [mine], [yours])
    mapping = {"state.word": "mine", "state.book.k": KEPT, "messages['m'].content": "new"}
    resolve = {
        "mapping": mapping,
        "function": lambda each: [each.ours, each.theirs] if "word" in each.path else each.ours,
    }
    await story.engine.merge_branch(branch, "t", resolve=resolve.get(way, way))
    word, book, messages = [await value(story, name) for name in ("word", "book", "messages")]
    if way in after:
        assert (word, book, messages) == (after[way], {"k": after[way]}, [after[way]])
    elif way == "mapping":
        assert (word, book, messages) == ("mine", {"k": {"a": [1]}}, ["new"])
    else:
        assert (word, book, messages) == (["b", "c"], {"k": "b"}, ["b"])
    assert isinstance((await story.state()).values["messages"][0], HumanMessage)


KEPT = {"a": [1]}


async def test_a_target_that_has_not_moved_becomes_the_branch(begin: Begin) -> None:
    """Next nodes included; pending work is done once more, from there."""
    story = begin("asking")
    await story.turn({"log": [0]})
    head = name_of(await story.state())
    branch = await story.engine.branch(head, "b")
    await story.turn({"twice0?": "A", "once0?": "B"}, branch)
    await story.turn({"twice1?": "C"}, branch)
    before = await story.whole()

    merged = await story.engine.merge_branch(branch, "t", graph=story.app)
    state = await story.state()
    assert (name_of(state), state.next, state.values) == (merged, (), (await story.state(branch)).values)
    history = await story.history()
    assert merged > max(name_of(found) for found in history[1:])
    assert history[0].parent_config["configurable"]["checkpoint_id"] == head
    story.world.took()
    await story.turn({"log": [1]})
    assert story.world.took() == ["beside"]

    await story.engine.undo("t")
    assert await story.whole() == before
    await story.engine.redo("t")
    assert {asked.value for asked in (await story.state()).interrupts} == {"twice0?", "once0?"}
    await story.turn({"twice0?": 1, "once0?": 2})
    await story.turn({"twice1?": 3})
    assert await story.log() == [*state.values["log"], 1, "beside", ("once", 2), ("twice", 1, 3), "end"]


async def half_told(story: Story) -> tuple[list[Any], list[Any], list[Any], str]:
    """Take half of the turns, the others in thread and branch; return both halves, the log between, and the branch."""
    half = len(story.told.turns) // 2
    first, second = story.told.turns[:half], story.told.turns[half:]
    for given in first:
        await story.turn(given)
    start = await story.log()
    branch = await story.engine.branch(name_of(await story.state()), "b")
    for thread in (branch, "t"):
        for given in second:
            await story.turn(given, thread)
    return first, second, start, branch


@pytest.mark.parametrize("name", TOLD)
async def test_two_ways_of_any_graph_are_merged_and_go_on(begin: Begin, name: str) -> None:
    story = begin(name)
    first, _, start, branch = await half_told(story)
    ours, theirs, before = await story.log(), await story.log(branch), await story.whole()
    assert ours[: len(start)] == theirs[: len(start)] == start
    assert len(theirs) > len(start)

    merge = await story.engine.merge_branch(branch, "t", graph=story.app)

    state, merged = await story.state(), ours + theirs[len(start) :]
    assert (name_of(state), state.values["log"], state.next) == (merge, merged, ())
    assert all(found.checkpoint["id"] <= merge for found in await story.listed())
    story.world.took()
    await story.turn(None)
    assert story.world.took() == []
    for given in first:
        await story.turn(given)
    assert (await story.state()).next == ()
    assert (await story.log())[: len(merged)] == merged
    assert len(await story.log()) > len(merged)
    assert story.world.took()
    await story.engine.undo("t")
    assert await story.whole() == before
    await story.engine.redo("t")
    assert (await story.log())[: len(merged)] == merged


@pytest.mark.parametrize("name", TOLD)
async def test_a_way_is_merged_into_a_step_that_is_not_finished(begin: Begin, name: str) -> None:
    """The target stands in the middle of its turn: what it had next runs after the merge, and the turn ends."""
    story = begin(name)
    _, second, start, branch = await half_told(story)
    ended, theirs = await story.log(), await story.log(branch)
    middle = next(found for found in await story.history() if found.next and "__start__" not in found.next)
    await story.engine.rewind(name_of(middle), thread_id="t", namespace="")

    await story.engine.merge_branch(branch, "t", graph=story.app)

    state = await story.state()
    assert state.next == middle.next
    assert state.values["log"] == middle.values["log"] + theirs[len(start) :]
    story.world.took()
    await story.turn(None)
    for given in second[1:]:
        if (await story.state()).interrupts:
            await story.turn(given)
    assert (await story.state()).next == ()
    assert story.world.took()
    assert await story.log() == middle.values["log"] + theirs[len(start) :] + ended[len(middle.values["log"]) :]


async def test_the_graph_goes_on_where_the_target_was(begin: Begin) -> None:
    story = begin("asking")
    await story.turn({"log": [0]})
    await story.turn({"twice0?": "A", "once0?": "B"})
    await story.turn({"twice1?": "C"})
    branch = await story.engine.branch(name_of(await story.state()), "b")
    await story.turn({"log": ["theirs"]}, branch)
    await story.turn({"twice0?": "D", "once0?": "E"}, branch)
    await story.turn({"twice1?": "F"}, branch)
    await story.turn({"log": ["ours"]})
    asking = await story.whole()
    story.world.took()

    await story.engine.merge_branch(branch, "t", graph=story.app)

    start = [0, "beside", ("once", "B"), ("twice", "A", "C"), "end", "ours"]
    theirs = ["theirs", "beside", ("once", "E"), ("twice", "D", "F"), "end"]
    state = await story.state()
    assert (state.values["log"], state.next) == (start + theirs, ("twice", "once", "beside"))
    await story.turn(None)
    assert story.world.took() == ["beside"]
    await story.turn({"twice0?": 1, "once0?": 2})
    await story.turn({"twice1?": 3})
    assert story.world.took() == ["end", "once", "twice"]
    assert await story.log() == [*start, *theirs, "beside", ("once", 2), ("twice", 1, 3), "end"]
    await story.engine.undo("t")
    assert await story.whole() == asking


async def test_merging_again_and_back_and_forth(begin: Begin) -> None:
    story = begin(notes)
    branch = await parted(story, {"items": [0], "total": 1}, [{"items": ["o1"], "total": 1}], [{"items": ["t1"]}])
    first = await story.engine.merge_branch(branch, "t", graph=story.app)
    assert await story.engine.merge_branch(branch, "t", graph=story.app) == first
    assert await value(story, "items") == [0, "o1", "t1"]

    await story.turn({"items": ["t2"], "total": 10}, branch)
    second = await story.engine.merge_branch(branch, "t", graph=story.app)
    assert second > first
    assert (await value(story, "items"), await value(story, "total")) == ([0, "o1", "t1", "t2"], 12)

    await story.engine.merge_branch("t", branch, graph=story.app)
    assert (await value(story, "items", branch), await value(story, "total", branch)) == (
        [0, "o1", "t1", "t2"], 12,
    )  # fmt: skip
    await story.turn({"items": ["o3"], "total": 100})
    await story.turn({"items": ["t3"], "total": 1000}, branch)
    await story.engine.merge_branch(branch, "t", graph=story.app)
    assert (await value(story, "items"), await value(story, "total")) == ([0, "o1", "t1", "t2", "o3", "t3"], 1112)


@pytest.mark.parametrize("mid", [False, True])
@here
async def test_a_branch_is_brought_up_to_date_before_it_is_merged(begin: Begin, *, mid: bool) -> None:
    """Sums tell what counts once: a branch that took its origin in, and the origin of a branch that it took in."""
    story = begin(notes)
    await story.turn({"total": 1})
    place = (await story.history())[1 if mid else 0]  # in the middle of a turn, or at its end
    branch = await story.engine.branch(name_of(place), "b", thread_id="t")
    await story.turn({"total": 10})
    await story.turn({"total": 100}, branch)
    await story.engine.merge_branch("t", branch, graph=story.app)
    assert await value(story, "total", branch) == 111
    await story.turn({"total": 1000})
    await story.turn({"total": 10000}, branch)
    await story.engine.merge_branch(branch, "t", graph=story.app)
    assert await value(story, "total") == 11111

    await story.turn({"total": 1})
    await story.turn({"total": 10}, branch)
    await story.engine.merge_branch("t", branch, graph=story.app)
    assert await value(story, "total", branch) == 11122


@here
async def test_sums_of_a_branch_of_a_branch(begin: Begin) -> None:
    def build(checkpointer: Any, world: World) -> Any:
        class Sum(TypedDict):
            total: Annotated[int, operator.add]

        def add(name: str, count: int) -> Any:
            def run(_: Any) -> dict[str, Any]:
                world.did(name)
                return {"total": count}

            return run

        graph: Any = StateGraph(Sum)
        for place, name in enumerate("abc"):
            graph.add_node(name, add(name, 10 ** (place + 1)))
        graph.add_edge(START, "a")
        graph.add_edge(START, "b")
        graph.add_edge(["a", "b"], "c")
        return graph.compile(checkpointer)

    story = begin(build)
    await story.turn({"total": 1})
    middle = (await story.history())[2]
    first = await story.engine.branch(name_of(middle), "b", thread_id="t")  # a and b are pending
    second = await story.engine.branch(name_of(middle), "c", thread_id=first)
    for thread in (first, second):
        await story.turn(None, thread)
        assert await value(story, "total", thread) == 1111
    await story.turn({"total": 5}, second)
    await story.engine.merge_branch(second, "t", graph=story.app)
    # What was pending where they parted counts once; c ran on both sides.
    assert await value(story, "total") == 1111 + 1000 + 5 + 1110

    await story.turn({"total": 7}, first)
    middle = (await story.history(first))[2]
    third = await story.engine.branch(name_of(middle), "d", thread_id=first)
    await story.turn(None, third)
    await story.turn({"total": 9}, third)
    assert await value(story, "total", third) == 1111 + 7 + 1110 + 9 + 1110
    await story.engine.merge_branch(third, "t", graph=story.app)
    assert await value(story, "total") == (1111 + 1000 + 5 + 1110) + 1000 + 7 + 1110 + 9 + 1110


@here
async def test_lists_of_a_branch_that_is_brought_up_to_date(begin: Begin) -> None:
    """Its own items follow the target's, though they came first in the branch."""
    story = begin(notes)
    branch = await parted(story, {"items": [0]}, [{"items": ["o1"]}], [{"items": ["t1"]}])
    await story.engine.merge_branch("t", branch, graph=story.app)
    assert await value(story, "items", branch) == [0, "t1", "o1"]
    await story.turn({"items": ["o2"]})
    await story.turn({"items": ["t2"]}, branch)
    await story.engine.merge_branch(branch, "t", graph=story.app)
    assert await value(story, "items") == [0, "o1", "o2", "t1", "t2"]


@here
async def test_what_a_branch_took_from_a_third_is_not_lost(begin: Begin) -> None:
    story = begin(notes)
    branch = await parted(story, {"items": [0]}, [{"items": ["o1"]}], [{"items": ["t1"]}])
    third = await story.engine.branch(name_of((await story.history(branch))[-1]), "c", thread_id=branch)
    await story.turn({"items": ["c1"]}, third)
    await story.engine.merge_branch("t", branch, graph=story.app)
    await story.engine.merge_branch(third, branch, graph=story.app)
    await story.turn({"items": ["o2"]})
    await story.turn({"items": ["t2"]}, branch)
    assert await value(story, "items", branch) == [0, "t1", "o1", "c1", "t2"]
    try:
        await story.engine.merge_branch(branch, "t", graph=story.app)
    except MergeConflict:
        assert await value(story, "items") == [0, "o1", "o2"]
    else:
        assert set(await value(story, "items")) == {0, "o1", "o2", "t1", "c1", "t2"}


@pytest.mark.parametrize("way", ["later", "dropped", "rewound"])
@here
async def test_what_was_pending_where_they_parted(begin: Begin, way: str) -> None:
    """It counts once if the target went on with it, wherever that was; and not at all as the target's if it did not."""
    story = begin("joined")
    await story.killed({"log": [0]}, "t", failing="b", after=["a"])
    middle = name_of(await story.state())
    theirs = await story.engine.branch(middle, "theirs")
    await story.turn(None, theirs)
    if way == "dropped":
        await story.turn({"log": ["new"]})
        target, expected = "t", [0, "new", "a", "b", "c", "a", "b", "c"]
    else:
        await story.turn(None)
        target = await story.engine.branch(name_of(await story.state()), "later", thread_id="t")
        await story.turn({"log": ["new"]}, target)
        expected = [0, "a", "b", "c", "new", "a", "b", "c", "c"]
    if way == "rewound":
        await story.engine.rewind(middle, thread_id="t")
        with pytest.raises(MergeConflict):  # what the target went on with cannot be known any more
            await story.engine.merge_branch(theirs, target, graph=story.app)
        return
    await story.engine.merge_branch(theirs, target, graph=story.app)
    assert await story.log(target) == expected


@here
async def test_a_branch_of_a_branch_that_has_not_moved_gives_way(begin: Begin) -> None:
    story = begin("joined")
    await story.turn({"log": [0]})
    name, branch = name_of((await story.history())[2]), "t"
    for _ in range(3):
        branch = await story.engine.branch(name, "b", thread_id=branch)
    await story.engine.merge_branch("t", branch, graph=story.app)
    state = await story.state(branch)
    assert (state.values["log"], state.next) == ([0, "a", "b", "c"], ())


@here
async def test_an_input_that_ran_again_counts_once_or_is_a_conflict(begin: Begin) -> None:
    """Two threads that went on from the same unfinished step, one of them after its results were undone."""
    story = begin("joined")
    await story.turn({"log": [0]})
    start = name_of((await story.history())[-1])
    branch = await story.engine.branch(name_of(await story.state()), "b")
    await story.engine.rewind(start, thread_id="t")
    await story.turn(None)
    await story.turn({"log": [1]}, branch)
    try:
        await story.engine.merge_branch(branch, "t", graph=story.app)
    except MergeConflict:
        assert await story.log() == [0, "a", "b", "c"]
    else:
        assert (await story.log()).count(0) == 1


@here
async def test_values_without_writes_are_taken_as_they_are(begin: Begin) -> None:
    """With `durability="exit"` nothing says what was written: what a list has more at its end was."""
    story = begin(notes)
    story.durability = "exit"
    branch = await parted(story, {"items": [0], "messages": said("m")}, [{"items": ["o"]}], [{"items": ["t"]}])
    await story.turn({"messages": said("theirs")}, branch)
    await story.engine.merge_branch(branch, "t", graph=story.app)
    assert (await value(story, "items"), await value(story, "messages")) == ([0, "o", "t"], ["m", "theirs"])

    story = begin("sending")  # its list of what is sent is empty then
    story.durability = "exit"
    await story.turn({"log": [0]}, "s")
    branch = await story.engine.branch(name_of(await story.state("s")), "b")
    for thread in ("s", branch):
        await story.turn({"log": [thread]}, thread)
    await story.engine.merge_branch(branch, "s", graph=story.app)
    assert [each for each in await story.log("s") if each in (0, "s", branch)] == [0, "s", branch]


@here
async def test_criss_cross(begin: Begin) -> None:
    """Both took the other's in before either went on."""
    story = begin(notes)
    branch = await parted(story, {"items": [0], "messages": said("m")}, [{"items": ["o1"]}], [{"items": ["t1"]}])
    third = await story.engine.branch(name_of(await story.state()), "c", thread_id="t")
    await story.engine.merge_branch(branch, "t", graph=story.app)
    await story.engine.merge_branch(third, branch, graph=story.app)
    assert await value(story, "items", branch) == [0, "t1", "o1"]
    await story.turn({"messages": said("o2")})
    await story.turn({"messages": said("t2")}, branch)
    await story.engine.merge_branch(branch, "t", resolve="ours")
    assert await value(story, "items") == [0, "o1", "t1"]
    assert await value(story, "messages") == ["m", "o2", "t2"]
    await story.turn({"items": ["more"]})
    assert await value(story, "items") == [0, "o1", "t1", "more"]


async def test_merges_after_a_rewind_and_an_undo(begin: Begin) -> None:
    story = begin(notes)
    branch = await parted(story, {"items": [0]}, [{"items": ["o1"]}, {"items": ["o2"]}], [{"items": ["t1"]}])
    history = await story.history()
    await story.engine.rewind(name_of(history[4]), thread_id="t")
    assert await value(story, "items") == [0, "o1"]
    first = await story.engine.merge_branch(branch, "t", graph=story.app)
    assert first > name_of(history[0])  # greater than what is hidden, too
    assert await value(story, "items") == [0, "o1", "t1"]
    await story.engine.undo("t")
    assert await value(story, "items") == [0, "o1"]
    await story.engine.undo("t")
    assert await value(story, "items") == [0, "o1", "o2"]
    await story.engine.merge_branch(branch, "t", graph=story.app)
    assert await value(story, "items") == [0, "o1", "o2", "t1"]

    await story.turn({"items": ["t2"]}, branch)
    await story.engine.rewind(name_of((await story.history(branch))[4]), thread_id=branch)
    assert await value(story, "items", branch) == [0, "t1"]
    await story.turn({"items": ["t3"]}, branch)
    await story.engine.merge_branch(branch, "t", graph=story.app)
    assert await value(story, "items") == [0, "o1", "o2", "t1", "t3"]


@pytest.mark.parametrize("name", ["grown", "talk"])
@pytest.mark.parametrize(
    ("before", "ours", "theirs"), [(1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 1, 4), (4, 0, 2), (0, 1, 1)]
)
@here
async def test_delta_channels(begin: Begin, name: str, before: int, ours: int, theirs: int) -> None:
    """Their writes follow ours, whether values were stored on the way or not."""
    story = begin(notes)

    def turns(prefix: str, count: int) -> list[Any]:
        return [{name: said(f"{prefix}{n}") if name == "talk" else [f"{prefix}{n}"]} for n in range(count)]

    await story.turn({"word": "w"})
    for given in turns("b", before):
        await story.turn(given)
    branch = await story.engine.branch(name_of(await story.state()), "b")
    for given in turns("o", ours):
        await story.turn(given)
    for given in turns("t", theirs):
        await story.turn(given, branch)
    await story.engine.merge_branch(branch, "t", graph=story.app)
    expected = [f"{prefix}{n}" for prefix, count in [("b", before), ("o", ours), ("t", theirs)] for n in range(count)]
    assert await value(story, name) == expected
    for given in turns("later", 4):
        await story.turn(given)
        expected += [given[name][0].content if name == "talk" else given[name][0]]
        assert await value(story, name) == expected
    story.saver.prune(["t"])
    assert await value(story, name) == expected


@pytest.mark.parametrize("frequency", [1, 2, 1000])
@here
async def test_what_was_pending_in_a_delta_channel_counts_once(begin: Begin, frequency: int) -> None:
    def build(checkpointer: Any, world: World) -> Any:
        channel: Any = DeltaChannel(added, snapshot_frequency=frequency)
        Grown = TypedDict("Grown", {"log": Annotated[list[Any], channel]})  # noqa: UP013  # the annotation is a value
        graph: Any = StateGraph(Grown)
        for name in "abc":
            graph.add_node(name, world.node(name))
        graph.add_edge(START, "a")
        graph.add_edge(START, "b")
        graph.add_edge(["a", "b"], "c")
        return graph.compile(checkpointer)

    story = begin(build)
    await story.killed({"log": [0]}, "t", failing="b", after=["a"])
    branch = await story.engine.branch(name_of(await story.state()), "b")
    for thread in (branch, "t"):
        await story.turn(None, thread)
        assert await story.log(thread) == [0, "a", "b", "c"]
        await story.turn({"log": [thread]}, thread)
    await story.engine.merge_branch(branch, "t", graph=story.app)
    # a was pending, and b has done the same on both sides; c ran twice.
    assert await story.log() == [0, "a", "b", "c", "t", "a", "b", "c", "c", branch, "a", "b", "c"]
    await story.turn({"log": ["more"]})
    assert (await story.log())[-5:] == ["c", "more", "a", "b", "c"]


class Detail(BaseModel):
    words: list[str] = []
    best: int = 0


class Model(BaseModel):
    items: Annotated[list[Any], operator.add] = []
    detail: Detail = Detail()
    name: str = ""


@dataclass
class Data:
    items: Annotated[list[Any], operator.add] = field(default_factory=list)
    detail: dict[str, Any] = field(default_factory=dict)
    name: str = ""


@pytest.mark.parametrize("schema", [Model, Data])
async def test_models_as_state(begin: Begin, schema: Any) -> None:
    def build(checkpointer: Any, world: World) -> Any:
        def one(state: Any) -> dict[str, Any]:
            assert isinstance(state, schema)
            world.did("one")
            return {"items": [len(state.items)]}

        graph: Any = StateGraph(schema)
        graph.add_node("one", one)
        graph.add_edge(START, "one")
        return graph.compile(checkpointer)

    detail: Any = Detail(words=["a"], best=2) if schema is Model else {"words": ["a"], "best": 2}
    story = begin(build)
    branch = await parted(
        story, {"items": ["b"]}, [{"items": ["o"], "name": "ours"}], [{"items": ["t"], "detail": detail}]
    )
    await story.engine.merge_branch(branch, "t", graph=story.app)
    values = (await story.state()).values
    assert values["items"] == ["b", 1, "o", 3, "t", 3]
    assert (values["detail"], values["name"]) == (detail, "ours")
    await story.turn({"items": []})
    assert (await story.state()).values["items"][-1] == 6
    shown = await story.engine.get_latest("t")
    assert shown.state["detail"] == {"words": ["a"], "best": 2}


async def test_what_subgraphs_remember_is_merged(begin: Begin) -> None:
    story = begin("lasting")
    await story.turn({"log": [0]})
    branch = await story.engine.branch(name_of(await story.state()), "b")
    await story.turn({"log": ["ours"]})
    await story.turn({"log": ["t1"]}, branch)
    await story.turn({"log": ["t2"]}, branch)
    before = await story.whole()

    await story.engine.merge_branch(branch, "t", graph=story.app, resolve="ours")
    assert (await story.state()).values["log"] == [
        0, "first", "last", "ours", "first", "last", "t1", "first", "last", "t2", "first", "last",
    ]  # fmt: skip
    merged = await story.whole()
    story.world.took()
    await story.turn({"log": ["more"]})
    assert story.world.took() == ["first", "last", "x", "y"]
    assert (await story.state()).values["seen"] == 2 + 2 + 4 + 2

    await story.engine.undo("t")
    assert await story.whole() == before
    await story.turn({"log": ["more"]})
    assert (await story.state()).values["seen"] == 6
    await story.engine.redo("t")
    assert (await story.state()).values["seen"] == 10
    assert name_of(merged["state"]) in [name_of(found) for found in await story.history()]


async def test_what_a_merge_gave_to_subgraphs_stays_with_it(begin: Begin) -> None:
    story = begin("lasting")
    await story.turn({"log": [0]})
    branch = await story.engine.branch(name_of(await story.state()), "b")
    await story.turn({"log": ["ours"]})
    await story.turn({"log": ["t1"]}, branch)
    merge = await story.engine.merge_branch(branch, "t", graph=story.app, resolve="ours")
    merged = await story.whole()
    await story.turn({"log": ["more"]})
    seen = (await story.state()).values["seen"]

    await story.engine.rewind(merge, thread_id="t", namespace="")

    assert await story.whole() == merged
    await story.turn({"log": ["again"]})
    assert (await story.state()).values["seen"] == seen


@pytest.mark.parametrize("taken_back", ["rewind", "undo"])
async def test_a_memory_that_is_hidden_is_given_by_a_merge(begin: Begin, taken_back: str) -> None:
    story = begin("lasting")
    await story.update({"log": ["first"]}, as_node="last")
    first = name_of(await story.state())
    if taken_back == "rewind":
        await story.turn({"log": [0]})
    branch = await story.engine.branch(name_of(await story.state()), "b")
    if taken_back == "undo":
        await story.turn({"log": [0]}, branch)
    await story.update({"log": ["theirs"]}, branch, as_node="last")
    if taken_back == "rewind":
        before = await story.whole()
        await story.engine.rewind(first, thread_id="t", namespace="")
    else:
        before = await story.whole()
        await story.engine.merge_branch(branch, "t", graph=story.app)
        await story.engine.undo("t")

    await story.engine.merge_branch(branch, "t", graph=story.app)
    await story.turn({"log": [1]})
    assert (await story.state()).values["seen"] == 4

    await story.engine.undo("t")
    if taken_back == "rewind":
        await story.engine.undo("t")
    assert await story.whole() == before


@here
async def test_commands_and_updates_on_a_merged_thread(begin: Begin) -> None:
    story = begin(notes)
    branch = await parted(story, {"items": [0]}, [{"items": ["o"]}], [{"items": ["t"]}])
    merged = await story.engine.merge_branch(branch, "t", graph=story.app)
    await story.turn(Command(update={"items": ["command"]}, goto="two"))
    assert story.world.took() == ["two"]
    assert await value(story, "items") == [0, "o", "t", "command"]
    await story.update({"items": ["update"]}, as_node="one")
    assert (await story.state()).next == ("two",)
    await story.turn(None)
    assert story.world.took() == ["two"]
    config = {"configurable": {"thread_id": "t", "checkpoint_id": merged}}
    await story.turn({"items": ["fork"]}, config=config)
    assert await value(story, "items") == [0, "o", "t", "command", "fork"]  # as LangGraph does: it was pending there


@here
async def test_a_reducer_does_not_look_into_what_a_serializer_of_its_own_packed(begin: Begin) -> None:
    class Serializer(JsonPlusSerializer):
        pass

    story = begin(notes, serde=Serializer())
    branch = await parted(story, {"items": [0]}, [{"items": ["o"]}], [{"items": ["t"]}])
    with pytest.raises(MergeConflict) as caught:
        await story.engine.merge_branch(branch, "t", graph=story.app)
    assert [conflict.path for conflict in caught.value.conflicts] == ["state.items"]
    await story.engine.merge_branch(branch, "t", graph=story.app, resolve="theirs")
    assert await value(story, "items") == [0, "t"]


@here
async def test_what_is_refused(begin: Begin) -> None:
    story = begin(notes)
    branch = await parted(story, {"items": [0]}, [{"items": ["o"]}], [{"items": ["t"]}])
    await story.turn({"items": [0]}, "other")
    before = [await story.whole(thread) for thread in ("t", branch, "other")]
    for graph in ("graph", 3, Notes, object()):
        with pytest.raises(EverstepError, match="graph="):
            await story.engine.merge_branch(branch, "t", graph=graph)
    for threads in [("t", "t"), ("other", "t"), ("t", "other"), ("nobody", "t"), ("t", "nobody")]:
        with pytest.raises(EverstepError):
            await story.engine.merge_branch(*threads)
    with pytest.raises(EverstepError):
        await story.engine.merge_branch(branch, "t", resolve="mine")
    for call in ("snapshot", "append"):
        with pytest.raises(EverstepError, match="langgraph"):
            await getattr(story.engine, call)("t", [], {"a": 1}, {})
    for call in ("rewind", "pin", "unpin"):
        with pytest.raises(EverstepError):
            await getattr(story.engine, call)("1f000000-0000-6000-8000-000000000000", thread_id="t")
    with pytest.raises(EverstepError):
        await story.engine.branch("nothing", "b", thread_id="t")
    assert [await story.whole(thread) for thread in ("t", branch, "other")] == before
