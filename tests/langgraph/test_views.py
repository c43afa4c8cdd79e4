"""What the engine shows of threads of the LangGraph saver, and what retention leaves of them."""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel

import everstep
from everstep import CheckpointGC, CheckpointNotFound, SnapshotConfig
from everstep.langgraph import HarnessCheckpointer
from tests.langgraph.graphs import added, folded
from tests.langgraph.stories import Begin, Story, World, face, kind, name_of, where  # noqa: F401  # fixtures
from tests.langgraph.tools import at, run_without


class Colour(Enum):
    RED = "red"


class Plan(BaseModel):
    city: str
    days: int = 2


@dataclass
class Seat:
    row: int
    colour: Colour = Colour.RED


class Trip(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    plan: Plan
    seats: Annotated[list[Seat], operator.add]
    last: AnyMessage
    grown: Annotated[list[Any], DeltaChannel(added, snapshot_frequency=1000)]
    talk: Annotated[list[Any], DeltaChannel(folded, snapshot_frequency=2)]


def trip(checkpointer: Any, world: World) -> Any:
    def answer(state: Any) -> dict[str, Any]:
        world.did("answer")
        count = len(state["messages"])
        call = {"name": "look", "args": {"n": count}, "id": f"call{count}", "type": "tool_call"}
        message = AIMessage(f"answer {count}", id=f"a{count}", tool_calls=[call])
        return {
            "messages": [message], "plan": Plan(city=f"city {count}"), "seats": [Seat(count)], "last": message,
            "grown": [count], "talk": [message],
        }  # fmt: skip

    graph: Any = StateGraph(Trip)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    return graph.compile(checkpointer)


def asked(n: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"question {n}", id=f"h{n}")]}


def shown(count: int) -> dict[str, Any]:
    """Return what is shown of the state after some turns."""
    last = 2 * count - 1
    return {
        "plan": {"city": f"city {last}", "days": 2},
        "seats": [{"row": n, "colour": "RED"} for n in range(1, last + 1, 2)],
        "grown": list(range(1, last + 1, 2)),
    }


async def test_checkpoints_are_shown_as_plain_data(begin: Begin) -> None:
    story = begin(trip)
    for n in range(3):
        await story.turn(asked(n))
    found = await story.engine.get_latest("t")
    assert [(message["type"], message["content"], message["id"]) for message in found.messages] == [
        ("human", "question 0", "h0"), ("ai", "answer 1", "a1"),
        ("human", "question 1", "h1"), ("ai", "answer 3", "a3"),
        ("human", "question 2", "h2"), ("ai", "answer 5", "a5"),
    ]  # fmt: skip
    assert found.messages[1]["tool_calls"][0]["args"] == {"n": 1}
    assert {name: found.state[name] for name in shown(3)} == shown(3)
    assert found.state["last"]["content"] == "answer 5"
    assert [message["id"] for message in found.state["talk"]] == ["a1", "a3", "a5"]
    assert set(found.state) == {*shown(3), "last", "talk"}
    assert (found.next_node, found.tools_result) == ("", {})
    assert everstep.Checkpoint.from_dict(found.to_dict()) == found

    points = await story.engine.list_time_travel_points("t")
    assert [point.step for point in points] == [7, 6, 5, 4, 3, 2, 1, 0, -1]
    nodes = [(await story.engine.get(point.checkpoint_id)).next_node for point in points]
    assert nodes == ["", "answer", "__start__"] * 3


async def test_differences_between_any_two(begin: Begin) -> None:
    story = begin(trip)
    for n in range(3):
        await story.turn(asked(n))
    history = await story.history()
    branch = await story.engine.branch(name_of(history[3]), "b")
    await story.turn(asked(9), branch)
    first, last, other = name_of(history[6]), name_of(history[0]), name_of(await story.state(branch))

    same = await story.engine.diff(last, last)
    assert same.changes == []
    found = {change.path for change in (await story.engine.diff(first, last)).changes}
    assert {"state.plan", "state.seats[1]", "messages['h1']", "messages['a5']"} <= found
    assert not any("__" in path or "branch:to" in path for path in found)
    across = {change.path for change in (await story.engine.diff(last, other)).changes}
    assert {"messages['h2']", "messages['h9']"} <= across
    assert "messages['h1']" not in across


async def test_a_tree_with_branches_and_merges_is_drawn(begin: Begin) -> None:
    story = begin("lasting")
    await story.turn({"log": [0]})
    branch = await story.engine.branch(name_of(await story.state()), "idea")
    await story.turn({"log": [1]}, branch)
    await story.turn({"log": [2]})
    merged = await story.engine.merge_branch(branch, "t", graph=story.app, resolve="ours")
    await story.engine.rewind(merged, thread_id="t")

    tree = await story.engine.get_checkpoint_tree("t")
    nodes = {(node["thread_id"], node["namespace"], node["id"]) for node in tree["nodes"]}
    listed = [*await story.listed(), *await story.listed(branch)]
    assert nodes == {tuple(found.config["configurable"].values()) for found in listed}
    into = {(edge["from_thread"], edge["to_thread"]) for edge in tree["edges"] if edge["to"] == merged}
    assert into == {("t", "t"), (branch, "t")}
    drawn = everstep.draw(tree)
    assert "idea" in drawn
    assert "Merge" in drawn
    assert "HEAD t" in drawn


def test_a_process_without_the_classes_sees_the_same(tmp_path: Path) -> None:
    """Nothing is imported for it: neither LangGraph nor the classes of the state."""
    path = tmp_path / "a.db"
    with HarnessCheckpointer.from_url(str(path)) as saver:
        app = trip(saver, World())
        for n in range(2):
            app.invoke(asked(n), at("t", None))
        engine: Any = saver.engine.sync
        expected = engine.get_latest("t").to_dict()
        ids = [point.checkpoint_id for point in engine.list_time_travel_points("t")]
        changes = [change.path for change in engine.diff(ids[-1], ids[0]).changes]
    code = (
        "import sys, json, everstep\n"
        "engine = everstep.open('sqlite:///' + sys.argv[1]).sync\n"
        "ids = [point.checkpoint_id for point in engine.list_time_travel_points('t')]\n"
        "changes = [change.path for change in engine.diff(ids[-1], ids[0]).changes]\n"
        "print(json.dumps([engine.get_latest('t').to_dict(), changes]))\n"
        "branch = engine.branch(ids[1], 'b')\n"
        "engine.rewind(ids[2], thread_id='t')\n"
        "everstep.draw(engine.get_checkpoint_tree('t'))\n"
    )
    found = run_without(["langgraph", "langchain_core", "tests"], code, str(path))
    assert found.stderr == ""
    assert json.loads(found.stdout) == json.loads(json.dumps([expected, changes]))
    with HarnessCheckpointer.from_url(str(path)) as saver:
        app = trip(saver, World())
        assert len(app.get_state(at("t", None)).values["messages"]) == 2
        app.invoke(None, at("t", None))
        app.invoke(asked(7), at("t", None))
        assert len(app.get_state(at("t", None)).values["messages"]) == 6


# -- retention ---------------------------------------------------------------------------------------------------------


def keep(count: int) -> dict[str, Any]:
    return {"retention": SnapshotConfig(gc_policy=CheckpointGC.KEEP_LAST_N, gc_param=count)}


async def test_retention_spares_pins_and_where_branches_began(begin: Begin) -> None:
    story = begin(trip, **keep(4))
    await story.turn(asked(0))
    pinned, begun = [name_of(found) for found in (await story.history())[:2]]
    await story.engine.pin(pinned)
    branch = await story.engine.branch(begun, "b", thread_id="t")
    for n in range(1, 12):
        await story.turn(asked(n))
    names = [name_of(found) for found in await story.history()]
    assert {pinned, begun} <= set(names)
    assert len(names) < 20
    state = (await story.state()).values
    assert len(state["messages"]) == 24
    assert state["grown"] == list(range(1, 24, 2))
    assert len(state["talk"]) == 12

    await story.turn(None, branch)
    assert (await story.state(branch)).values["grown"] == [1]
    await story.turn(asked(50), branch)
    assert (await story.state(branch)).values["grown"] == [1, 3]
    await story.engine.rewind(pinned, thread_id="t")
    assert (await story.state()).values["grown"] == [1]
    await story.turn(asked(60))
    assert [message.id for message in (await story.state()).values["messages"]] == ["h0", "a1", "h60", "a3"]


async def test_a_difference_says_what_comes_next(begin: Begin) -> None:
    story = begin("looping")
    await story.tell()
    history = await story.history()
    ended, asked_for = [await story.engine.get(name_of(history[n]), thread_id="t") for n in (6, 5)]
    found = await story.engine.diff(name_of(history[6]), name_of(history[5]), thread_id="t")
    assert [str(change.path) for change in found] == ["next_node"]
    assert (found.changes[0].before, found.changes[0].after) == (ended.next_node, asked_for.next_node)
    assert ended.next_node != asked_for.next_node


async def test_a_difference_shows_one_message_as_get_does(begin: Begin) -> None:
    story = begin(trip)
    for n in range(2):
        await story.turn(asked(n))
    history = await story.history()
    names = name_of(history[3]), name_of(history[0])
    found = {change.path: change for change in await story.engine.diff(*names, thread_id="t")}
    shown = [(await story.engine.get(name, thread_id="t")).state["last"] for name in names]
    assert found["state.last.content"].before == shown[0]["content"]
    assert found["state.last.content"].after == shown[1]["content"]
    assert not any(path.startswith("state.last[") for path in found)


async def test_the_graph_goes_on_from_any_survivor(begin: Begin) -> None:
    story = begin("lasting", **keep(5))
    for n in range(8):
        await story.turn({"log": [n]})
    history = await story.history()
    assert 5 <= len(history) < 30
    assert (await story.state()).values["seen"] == 16
    for found in [found for found in history if not found.next][:2]:
        branch = await story.engine.branch(name_of(found), "b", thread_id="t")
        await story.turn({"log": ["more"]}, branch)
        assert await story.log(branch) == [*found.values["log"], "more", "first", "last"]


async def test_calls_of_subgraphs_go_with_the_checkpoints_of_then(begin: Begin) -> None:
    story = begin("subgraph", **keep(6))
    for n in range(60):
        await story.turn({"log": [n]})
    thread = await story.engine.get_checkpoint_tree("t", limit=1000)
    namespaces = {node["namespace"] for node in thread["nodes"]}
    assert 1 < len(namespaces) < 40
    history = await story.history()
    assert len(history) < 80
    log = await story.log()
    await story.engine.rewind(name_of(history[4]), thread_id="t")
    await story.turn(None)
    assert await story.log() == [
        *history[4].values["log"],
        *log[len(history[4].values["log"]) : len(await story.log())],
    ]
    await story.engine.undo("t")
    assert await story.log() == log


async def test_hidden_ones_are_let_go_and_cannot_be_undone_to(begin: Begin) -> None:
    story = begin("looping", **keep(3))
    await story.turn({"log": [0], "n": 1})
    history = await story.history()
    await story.engine.rewind(name_of(history[2]))
    for n in range(6):
        await story.turn({"log": [n]})
    assert (await story.state()).next == ()
    log = await story.log()
    assert log[:2] == history[2].values["log"][:2]
    try:
        await story.engine.undo("t")
    except everstep.CannotUndo:
        assert await story.log() == log
    else:
        assert await story.log() == history[0].values["log"]
    await story.turn({"log": ["more"]})
    assert "more" in await story.log()


async def test_without_a_policy_everything_stays(begin: Begin) -> None:
    story = begin("joined")
    for n in range(8):
        await story.turn({"log": [n]})
    assert len(await story.history()) == 32
    with pytest.raises(CheckpointNotFound):
        await story.engine.rewind("nothing", thread_id="t")
