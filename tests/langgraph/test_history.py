"""Going back and branching on threads of the LangGraph saver: what the graph sees, runs and keeps after each."""

from __future__ import annotations

from typing import Any

import pytest

from everstep import AmbiguousCheckpoint, EverstepError
from tests.conftest import OneFace, Place
from tests.langgraph.graphs import shapes
from tests.langgraph.same import assert_same
from tests.langgraph.stories import TOLD, Begin, Story, face, here, kind, name_of, where  # noqa: F401  # fixtures
from tests.langgraph.tools import FacedSaver, at


def chosen(store: str, count: int) -> list[int]:
    """Return which checkpoints of a history to try: all where it is cheap, else one that has work pending."""
    return list(range(1, count)) if store == "memory" else [2, count - 2] if store == "sqlite" else [2]


# -- every checkpoint of every graph -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOLD)
async def test_a_rewind_to_any_checkpoint_runs_the_same_again(begin: Begin, place: Place, name: str) -> None:
    story = begin(name)
    await story.tell()
    before, history = await story.whole(), await story.history()
    expected = shapes(history)

    for position in chosen(place.kind, len(history)):
        target = history[position]
        if name == "lasting" and "inner" in target.next and story.turn_of(position):
            continue  # LangGraph itself takes a subgraph with a memory for finished there; see the next test
        story.world.took()
        result = await story.engine.rewind(name_of(target), thread_id="t")

        assert (result.rewind_depth, result.snapshot_count_before) == (position, len(history))
        state = await story.state()
        assert (state.values, state.next, state.interrupts) == (target.values, target.next, ())
        assert (await story.history())[1:] == history[position + 1 :]

        await _rest(story, position, target)

        assert story.world.took() == sorted(
            name for later in history[: position + 1] for name in story.parts(later.next)
        )
        assert_same(await story.shapes(), expected)
        again = await story.whole()
        await story.engine.undo("t")
        assert await story.whole() == before
        await story.engine.redo("t")
        assert await story.whole() == again
        await story.engine.undo("t")
        assert await story.whole() == before


async def _rest(story: Story, position: int, target: Any, thread: str = "t") -> None:
    """Take the turns that came after a checkpoint."""
    if target.next:
        await story.turn(None, thread)
    for given in story.told.turns[story.turn_of(position) + 1 :]:
        await story.turn(given, thread)


async def test_a_subgraph_with_a_memory_goes_back_with_its_graph(begin: Begin) -> None:
    """LangGraph goes on from there if it is told the checkpoint: without, it takes the subgraph for finished."""
    story = begin("lasting")
    await story.tell()
    before, history = await story.whole(), await story.history()
    target = next(found for found in history if "inner" in found.next)
    story.world.took()

    await story.engine.rewind(name_of(target))
    assert (await story.state(subgraphs=True)).tasks[0].state.values == {"memory": ["x", "y"], "seen": 2}
    await story.turn(None, config=target.config)

    assert story.world.took() == ["last", "x", "y"]
    assert (await story.state()).values == history[0].values
    await story.engine.undo("t")
    assert await story.whole() == before


@pytest.mark.parametrize("name", TOLD)
async def test_a_branch_at_any_checkpoint_goes_on_the_same(begin: Begin, place: Place, name: str) -> None:
    """Its writes come along: what ran at that checkpoint is not run again, what was answered is not asked again."""
    story = begin(name)
    await story.tell()
    before, history = await story.whole(), await story.history()
    expected = shapes(history)

    for position in chosen(place.kind, len(history)):
        target = history[position]
        story.world.took()
        branch = await story.engine.branch(name_of(target), "b", thread_id="t")

        (first,) = await story.history(branch)
        assert name_of(first) == name_of(target)
        assert (first.values, first.next, first.tasks, first.parent_config) == (
            target.values, target.next, _of(target.tasks, branch), None,
        )  # fmt: skip
        assert story.world.took() == []
        for given in [None] * bool(target.next) + story.told.turns[_unanswered(story, position, target) :]:
            await story.turn(given, branch)

        assert story.world.took() == sorted(name for later in history[:position] for name in story.parts(later.next))
        found = await story.shapes(branch)
        assert_same(found[:-1], expected[:position])
        assert_same([found[-1]], [{**expected[position], "parent": None}])
        assert await story.whole() == before


def _of(tasks: Any, thread: str) -> Any:
    """Return tasks as they are in another thread: a subgraph's config names it."""
    return tuple(
        task._replace(state={"configurable": {**task.state["configurable"], "thread_id": thread}})
        if task.state is not None
        else task
        for task in tasks
    )


def _unanswered(story: Story, position: int, target: Any) -> int:
    """Return the first turn that is left once what is pending at a checkpoint is applied."""
    following = story.turn_of(position - 1)
    return following + 1 if target.next else following


# -- rewinds -----------------------------------------------------------------------------------------------------------


async def test_a_question_stands_again_after_a_rewind(begin: Begin) -> None:
    """Answers and results are dropped; undo brings them back, and nothing is asked or run twice."""
    story = begin("asking")
    await story.turn({"log": [0]})
    await story.turn({"twice0?": "A0", "once0?": "B"})
    before = await story.whole()
    assert [asked.value for asked in before["state"].interrupts] == ["twice1?"]
    assert story.world.took() == ["beside", "once"]

    await story.engine.rewind(name_of(before["state"]))
    state = await story.state()
    assert (state.next, state.interrupts) == (("twice", "once", "beside"), ())
    assert [(task.interrupts, task.result) for task in state.tasks] == [((), None)] * 3
    await story.turn(None)
    assert story.world.took() == ["beside"]
    assert {asked.value for asked in (await story.state()).interrupts} == {"twice0?", "once0?"}
    await story.turn({"twice0?": "X0", "once0?": "Y"})
    await story.turn({"twice1?": "X1"})
    assert story.world.took() == ["end", "once", "twice"]
    assert await story.log() == [0, "beside", ("once", "Y"), ("twice", "X0", "X1"), "end"]

    await story.engine.undo("t")
    assert await story.whole() == before
    await story.turn({"twice1?": "A1"})
    assert story.world.took() == ["end", "twice"]
    assert await story.log() == [0, "beside", ("once", "B"), ("twice", "A0", "A1"), "end"]


async def test_rewinds_to_one_checkpoint_are_undone_one_by_one(begin: Begin) -> None:
    story = begin("asking")
    await story.turn({"log": [0]})
    head = name_of(await story.state())
    seen: list[Any] = []
    for answer in "ABC":
        if seen:
            await story.turn(None)
        await story.turn({"twice0?": answer, "once0?": answer})
        seen.append(await story.whole())
        await story.engine.rewind(head)
    await story.turn(None)
    await story.turn({"twice0?": "last", "once0?": "last"})
    seen.append(await story.whole())

    for expected in seen[-2::-1]:
        await story.engine.undo("t")
        assert await story.whole() == expected
    for expected in seen[1:]:
        await story.engine.redo("t")
        assert await story.whole() == expected


async def test_a_rewind_of_a_rewind(begin: Begin) -> None:
    story = begin("looping")
    await story.tell()
    first, history = await story.whole(), await story.history()
    await story.engine.rewind(name_of(history[2]))
    second = await story.whole()
    await story.engine.rewind(name_of(history[4]))
    third = await story.whole()
    assert third["history"][1:] == history[5:]

    story.world.took()
    await story.turn(None)
    assert story.world.took() == ["done", "tick", "tick", "tick"]
    assert await story.log() == history[0].values["log"]

    for expected, act in [(second, "undo"), (first, "undo"), (second, "redo")]:
        await getattr(story.engine, act)("t")
        assert await story.whole() == expected
    await story.turn(None)
    assert await story.log() == history[0].values["log"]


async def test_later_ones_are_kept_or_deleted(begin: Begin) -> None:
    story = begin("deep")
    await story.tell()
    before, history = await story.whole(), await story.history()
    names = [name_of(found) for found in history]

    await story.engine.rewind(names[2], later="keep")
    assert [name_of(found) for found in await story.history()] == names
    assert name_of(await story.state()) == names[2]
    assert (await story.state()).next == ("inner", "beside")
    await story.engine.undo("t")
    assert await story.whole() == before

    await story.engine.rewind(names[2], later="delete")
    assert [name_of(found) for found in await story.history()] == names[2:]
    assert [await story.engine.get(name, thread_id="t") for name in names[:2]] == [None, None]
    story.world.took()
    await story.turn(None)
    await story.turn({"deep?": "again"})
    assert story.world.took() == ["beside", "end", "p", "q", "x"]
    assert_same(await story.shapes(), shapes(history))


async def test_time_travel_to_a_step(begin: Begin) -> None:
    """Steps are LangGraph's own, from -1 on."""
    story = begin("joined")
    await story.tell()
    history = await story.history()

    assert await story.engine.time_travel_to_step("t", -2) is None
    for step in (5, 3, 0, -1):
        result = await story.engine.time_travel_to_step("t", step)
        assert result.checkpoint.metadata.step == step
        state = await story.state()
        assert (state.metadata["step"], state.next) == (step, history[6 - step].next)
    await story.turn(None)
    assert await story.log() == [0, "a", "b", "c"]


@pytest.mark.parametrize("first", ["beside", "inner"])
async def test_a_rewind_to_a_checkpoint_of_a_subgraph(begin: Begin, first: str) -> None:
    """What ran beside the subgraph stays, whether that was done before the subgraph asked or after."""
    story = begin("deep")
    story.world.waiting = {"x": "beside"} if first == "beside" else {"beside": "__interrupt__"}
    await story.turn({"log": [0]})
    asking = await story.whole()
    story.world.waiting = {}
    target = next(found.config["configurable"] for found in asking["listed"] if found.metadata["step"] == 0)
    assert target["checkpoint_ns"]  # before x
    story.world.took()

    await story.engine.rewind(target["checkpoint_id"], thread_id="t", namespace=target["checkpoint_ns"])
    state = await story.state(subgraphs=True)
    assert (state.next, state.tasks[0].state.next) == (("inner",), ("x",))
    await story.engine.undo("t")
    assert await story.whole() == asking
    await story.turn({"deep?": "yes"})
    assert story.world.took() == ["end", "q"]
    answered = await story.whole()

    await story.engine.rewind(target["checkpoint_id"], thread_id="t", namespace=target["checkpoint_ns"])
    state = await story.state(subgraphs=True)
    assert (state.next, state.tasks[0].state.next) == (("inner",), ("x",))
    await story.turn(None)
    assert story.world.took() == ["p", "x"]
    await story.turn({"deep?": "other"})
    assert story.world.took() == ["end", "q"]
    assert await story.log() == [0, "beside", "end"]
    again = await story.whole()

    await story.engine.undo("t")
    assert await story.whole() == answered
    await story.engine.redo("t")
    assert await story.whole() == again


@pytest.mark.parametrize("twice", [False, True])
async def test_what_finished_before_a_crash_is_not_run_again_after_a_rewind(begin: Begin, *, twice: bool) -> None:
    """Though the same tasks have hidden writes from before the rewind."""
    story = begin("joined")
    await story.tell()
    before, history = await story.whole(), await story.history()
    story.world.took()
    for _ in range(1 + twice):
        await story.engine.rewind(name_of(history[2]))
        await story.killed(None, "t", failing="b", after=["a"])
        assert story.world.took() == ["a"]
        assert (await story.state()).next == ("b",)
    crashed = await story.whole()
    await story.turn(None)
    assert story.world.took() == ["b", "c"]
    assert [(found.values, found.next) for found in await story.history()] == [
        (found.values, found.next) for found in history
    ]

    await story.engine.undo("t")
    if twice:
        assert await story.whole() != before
        assert (await story.state()).next == ("b",)
        await story.engine.undo("t")
    assert await story.whole() == before
    await story.engine.redo("t")
    assert (await story.state()).next == (("b",) if twice else ())
    assert crashed["state"].next == ("b",)


@here
async def test_a_crash_in_a_subgraph_after_a_rewind(begin: Begin) -> None:
    story = begin("subgraph")
    await story.tell()
    history = await story.history()
    await story.engine.rewind(name_of(history[2]))
    story.world.took()

    await story.killed(None, "t", failing="y")
    assert story.world.took() == ["x"]
    assert (await story.state(subgraphs=True)).tasks[0].state.next == ("y",)
    await story.turn(None)
    assert story.world.took() == ["last", "y"]
    assert [found.values for found in await story.history()] == [found.values for found in history]


async def test_a_rewind_goes_with_langgraphs_own_time_travel(begin: Begin) -> None:
    """Updates, runs from older checkpoints and new input, before a rewind and after."""
    story = begin("joined")
    await story.turn({"log": [0]})
    history = await story.history()
    await story.update({"log": ["updated"]}, as_node="a", config=history[2].config)
    forked = await story.whole()
    assert (await story.state()).values["log"] == [0, "updated"]

    await story.turn({"log": [1]})
    full = await story.whole()
    await story.engine.rewind(name_of(forked["state"]))
    assert [name_of(found) for found in await story.history()] == [name_of(found) for found in forked["history"]]
    await story.turn(None, config=history[1].config)
    assert await story.log() == [0, "a", "b", "c"]
    await story.update({"log": ["more"]})
    assert await story.log() == [0, "a", "b", "c", "more"]
    await story.turn({"log": [2]})
    assert await story.log() == [0, "a", "b", "c", "more", 2, "a", "b", "c"]

    await story.engine.undo("t")
    assert await story.whole() == full


# -- branches ----------------------------------------------------------------------------------------------------------


async def test_questions_are_answered_differently_on_both_sides(begin: Begin) -> None:
    story = begin("asking")
    await story.turn({"log": [0]})
    branch = await story.engine.branch(name_of(await story.state()), "b")
    asked = [found.value for found in (await story.state(branch)).interrupts]
    assert sorted(asked) == ["once0?", "twice0?"]
    await story.turn({"once0?": "theirs"}, branch)
    second = await story.engine.branch(name_of(await story.state(branch)), "c", thread_id=branch)
    assert story.world.took() == ["beside", "once"]
    threads = {"t": ("A", "B"), branch: ("C", "theirs"), second: ("D", "theirs")}
    for thread, (twice, once) in threads.items():
        await story.turn({"twice0?": twice, "once0?": once}, thread)
        await story.turn({"twice1?": twice * 2}, thread)
    assert story.world.took() == sorted(["twice", "end"] * 3 + ["once"])

    for thread, (twice, once) in threads.items():
        assert await story.log(thread) == [0, "beside", ("once", once), ("twice", twice, twice * 2), "end"]
        assert (await story.state(thread)).next == ()


async def test_a_subgraph_that_asks_goes_along(begin: Begin) -> None:
    story = begin("deep")
    await story.turn({"log": [0]})
    before = await story.whole()
    story.world.took()
    branch = await story.engine.branch(name_of(before["state"]), "b")
    inner = (await story.state(branch, subgraphs=True)).tasks[0].state
    assert inner.values == before["state"].tasks[0].state.values
    await story.turn({"deep?": "theirs"}, branch)
    assert story.world.took() == ["end", "q"]
    assert await story.log(branch) == [0, "beside", "end"]
    assert await story.whole() == before
    await story.turn({"deep?": "ours"})
    assert story.world.took() == ["end", "q"]


async def test_a_subgraphs_memory_goes_along(begin: Begin) -> None:
    """As it was at that checkpoint."""
    story = begin("lasting")
    await story.tell()
    history = await story.history()
    late, early = [await story.engine.branch(name_of(history[n]), "b") for n in (0, 5)]
    for thread in (late, early, "t"):
        await story.turn({"log": [2]}, thread)
    seen = [(await story.state(thread)).values["seen"] for thread in (late, early, "t")]
    assert seen == [6, 4, 6]


async def test_a_branch_from_the_middle_of_a_step(begin: Begin) -> None:
    """What finished beside a crash is not run again, on neither side."""
    story = begin("joined")
    await story.killed({"log": [0]}, "t", failing="b", after=["a"])
    branch = await story.engine.branch(name_of(await story.state()), "b")
    assert story.world.took() == ["a"]
    for thread in (branch, "t"):
        assert (await story.state(thread)).next == ("b",)
        await story.turn(None, thread)
        assert story.world.took() == ["b", "c"]
        assert await story.log(thread) == [0, "a", "b", "c"]


async def test_a_branch_from_what_a_rewind_hid(begin: Begin) -> None:
    story = begin("asking")
    await story.turn({"log": [0]})
    await story.turn({"twice0?": "A0", "once0?": "B"})
    await story.turn({"twice1?": "A1"})
    history = await story.history()
    await story.engine.rewind(name_of(history[2]))
    story.world.took()

    branch = await story.engine.branch(name_of(history[1]), "b")
    assert (await story.state(branch)).next == ()
    await story.turn(None, branch)
    assert story.world.took() == []
    assert await story.log(branch) == history[0].values["log"]
    assert (await story.state()).next == ("twice", "once", "beside")


async def test_a_branch_from_a_branch(begin: Begin) -> None:
    story = begin("looping")
    await story.tell()
    history = await story.history()
    first = await story.engine.branch(name_of(history[4]), "b", thread_id="t")
    second = await story.engine.branch(name_of(history[4]), "c", thread_id=first)
    story.world.took()
    await story.turn(None, second)
    assert story.world.took() == ["done", "tick", "tick"]
    assert await story.log(second) == await story.log()
    assert (await story.state(first)).values == history[3].values


@here
async def test_a_branch_from_the_memory_of_a_subgraph_goes_on_in_it(begin: Begin) -> None:
    """The step around it was finished; in the branch it is not, as after a rewind to that checkpoint."""
    story = begin("lasting")
    await story.turn({"log": [0]})
    log, inner = await story.log(), await story.history(ns="inner")
    middle = next(found for found in inner if found.next == ("y",))
    branch = await story.engine.branch(name_of(middle), "b", thread_id="t", namespace="inner")
    ended = await story.state()
    story.world.took()
    assert "inner" in (await story.state(branch)).next
    await story.turn(None, branch, (await story.state(branch)).config)
    assert "y" in story.world.took()
    assert await story.log(branch) == log
    assert await story.state() == ended


async def test_a_branch_from_a_subgraphs_checkpoint(begin: Begin) -> None:
    story = begin("deep")
    await story.turn({"log": [0]})
    await story.turn({"deep?": "yes"})
    before = await story.whole()
    inner = [found.config["configurable"] for found in before["listed"] if found.metadata["step"] == 0]
    target = next(found for found in inner if found["checkpoint_ns"])  # before x
    story.world.took()
    branch = await story.engine.branch(target["checkpoint_id"], "b", thread_id="t", namespace=target["checkpoint_ns"])

    state = await story.state(branch, subgraphs=True)
    assert (state.next, state.tasks[0].state.next) == (("inner",), ())  # x is done, and not applied yet
    await story.turn(None, branch)
    assert story.world.took() == ["p"]
    await story.turn({"deep?": "theirs"}, branch)
    assert story.world.took() == ["end", "q"]
    assert await story.log(branch) == [0, "beside", "end"]
    assert await story.whole() == before


async def test_an_id_in_several_threads_needs_the_thread(begin: Begin) -> None:
    story = begin("joined")
    await story.tell()
    name = name_of(await story.state())
    branch = await story.engine.branch(name, "b")
    for method, arguments in [("get", []), ("rewind", []), ("branch", ["c"]), ("pin", []), ("diff", [name])]:
        with pytest.raises(AmbiguousCheckpoint):
            await getattr(story.engine, method)(name, *arguments)
    for thread in ("t", branch):
        found = await story.engine.get(name, thread_id=thread)
        assert (found.metadata.thread_id, found.state["log"]) == (thread, await story.log())


async def test_a_branch_is_undone_and_done_again(begin: Begin) -> None:
    story = begin("deep")
    await story.turn({"log": [0]})
    before = await story.whole()
    branch = await story.engine.branch(name_of(before["state"]), "b")
    await story.turn({"deep?": "theirs"}, branch)
    done = await story.whole(branch)
    await story.engine.undo("t")
    assert await story.whole() == before
    gone = await story.state(branch)
    assert (gone.values, gone.next) == ({}, ())
    assert await story.history(branch) == []
    assert await story.listed(branch) == []
    with pytest.raises(EverstepError, match="redo"):
        await story.turn({"log": [1]}, branch)
    await story.engine.redo("t")
    assert await story.whole(branch) == done
    await story.turn({"log": [2]}, branch)
    await story.turn({"deep?": "more"}, branch)
    assert await story.log(branch) == [0, "beside", "end", 2, "beside", "end"]


# -- LangGraph's own time travel in subgraphs --------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["rewound", "branched", "merged"])
async def test_subgraphs_travel_in_time_as_on_a_plain_thread(begin: Begin, way: str) -> None:
    """What LangGraph does with the config of a subgraph's checkpoint, here and on a thread nothing was done to."""
    story = begin("deep")
    for thread in ("plain", "t"):
        await story.turn({"log": [0]}, thread)
    thread = "t"
    if way == "rewound":
        before = await story.state()
        await story.turn({"deep?": "first"})
        await story.engine.rewind(name_of(before))
        await story.turn(None)
    if way == "branched":
        thread = await story.engine.branch(name_of(await story.state()), "b", thread_id="t")
    if way == "merged":
        branch = await story.engine.branch(name_of(await story.state()), "b", thread_id="t")
        await story.engine.rewind(name_of((await story.history())[1]), thread_id="t")
        await story.engine.merge_branch(branch, "t", graph=story.app)
        await story.turn(None)
    # A branch has no earlier checkpoints, in its subgraphs neither.
    to = ("p", "q") if way == "branched" else ("x",)
    expected, found = [await _travelled(story, each, to) for each in ("plain", thread)]
    assert found == expected


async def _travelled(story: Story, thread: str, to: tuple[str, ...]) -> list[Any]:
    seen: list[Any] = []
    story.world.took()
    inner = (await story.state(thread, subgraphs=True)).tasks[0].state
    seen += [inner.values, inner.next]
    await story.update({"memory": ["edited"]}, config=inner.config)
    state = await story.state(thread, subgraphs=True)
    seen += [state.next, state.tasks[0].state.values, state.tasks[0].state.next]
    history = await story.history(thread, inner.config["configurable"]["checkpoint_ns"])
    first = [found.next for found in history].index(to)
    seen += [[(found.values, found.next) for found in history[: first + 1]]]
    await story.turn(None, config=history[first].config)
    seen += [story.world.took(), (await story.state(thread)).next]
    await story.turn({"deep?": "again"}, thread)
    seen += [story.world.took(), (await story.state(thread)).values]
    return seen


async def test_what_a_subgraph_began_since_an_undo_is_left_behind_by_the_redo(saver: FacedSaver) -> None:
    engine = OneFace(saver.whole.engine, saver.face)
    await saver.add("b1", {"n": 0}, ns="before")
    for n in (1, 2, 3):
        await saver.add(f"c{n}", {"n": n}, parent=f"c{n - 1}" if n > 1 else None)
    await engine.rewind("c1", thread_id="t")
    for _ in range(2):
        await engine.undo("t")
        if await saver.get_tuple(at(ns="node:1")) is None:
            await saver.add("d1", {"n": 4}, ns="node:1")
        await engine.redo("t")
        assert (await saver.values(), await saver.get_tuple(at(ns="node:1"))) == ({"n": 1}, None)
        assert await saver.values(ns="before") == {"n": 0}
    await engine.undo("t")
    assert (await saver.values(), await saver.values(ns="node:1")) == ({"n": 3}, {"n": 4})
