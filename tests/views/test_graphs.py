"""Threads that LangGraph wrote, as people see them: nodes, questions, failures, messages; and tasks."""

from __future__ import annotations

import json
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import everstep
from everstep.errors import InvalidInput
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import TaskManager
from everstep.stores.protocol import Store
from everstep.views import actions, blame, changes, checkpoint, history, jumps, state, threads, transcript


class Trip(TypedDict):
    messages: Annotated[list[Any], add_messages]
    plan: str


def _agent(_: Trip) -> dict[str, Any]:
    call = {"id": "c1", "name": "search", "args": {"q": 1}}
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    return {"messages": [AIMessage("I look it up.", tool_calls=[call], usage_metadata=usage)], "plan": "look"}


def _tools(_: Trip) -> dict[str, Any]:
    return {"messages": [ToolMessage("found \x1b[31mit", tool_call_id="c1", name="search")]}


def _ask(_: Trip) -> dict[str, Any]:
    return {"plan": interrupt({"question": "Book it?"})}


def _book(trip: Trip) -> dict[str, Any]:
    if trip["plan"] == "fail":
        raise ValueError("no money")
    return {"plan": "booked"}


def build() -> Any:
    graph: Any = StateGraph(Trip)
    nodes = {"agent": _agent, "tools": _tools, "ask": _ask, "book": _book}
    before = START
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(before, name)
        before = name
    return graph


@pytest.fixture
def graph(plain_store: Store) -> Any:
    return build().compile(checkpointer=HarnessCheckpointer(backend=plain_store))


CONFIG: Any = {"configurable": {"thread_id": "lg"}}


async def rows_of(engine: everstep.CheckpointEngine) -> list[tuple[int, str, str]]:
    page = await history.page(engine, "lg")
    json.dumps(page)
    return [(row["step"], row["kind"], row["title"]) for row in page["rows"]]


async def test_a_graph_that_waits_for_an_answer(engine: everstep.CheckpointEngine, graph: Any) -> None:
    await graph.ainvoke({"messages": [HumanMessage("Oslo?")]}, CONFIG)
    assert await rows_of(engine) == [
        (2, "interrupt", "Asks: Book it?"),
        (1, "llm", "I look it up."),
        (0, "input", "Oslo?"),
        (-1, "input", "Input"),
    ]
    thread = await threads.one(engine, "lg")
    assert (thread["status"], thread["summary"]) == ("waiting", "Asks: Book it?")
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    assert await rows_of(engine) == [
        (4, "state", "book"),
        (3, "state", "ask"),
        (2, "tool", "search answered"),
        (1, "llm", "I look it up."),
        (0, "input", "Oslo?"),
        (-1, "input", "Input"),
    ]
    rows = (await history.page(engine, "lg"))["rows"]
    assert rows[3]["tokens"] == 7
    assert "asked" in [chip["text"] for chip in rows[2]["chips"]]
    thread = await threads.one(engine, "lg")
    assert (thread["status"], thread["kind"], thread["summary"]) == (None, "langgraph", "search answered")
    changed = await history.changed(engine, "lg", [row["ref"] for row in rows])
    assert [changed[row["ref"]]["text"] for row in rows] == [
        "plan", "plan", "+1 message", "plan, +1 message", "+1 message", "",
    ]  # fmt: skip


async def test_a_graph_that_failed(engine: everstep.CheckpointEngine, graph: Any) -> None:
    await graph.ainvoke({"messages": [HumanMessage("Oslo?")]}, CONFIG)
    with pytest.raises(ValueError, match="no money"):
        await graph.ainvoke(Command(resume="fail"), CONFIG)
    top = (await rows_of(engine))[0]
    assert top == (3, "error", "book failed: ValueError('no money')")
    assert (await threads.page(engine, status="failed"))["threads"][0]["thread_id"] == "lg"
    detail = await checkpoint.detail(engine, "lg")
    json.dumps(detail)
    assert (detail["error"]["message"], detail["next_node"]) == (top[2], "book")
    assert [(write["node"], write["channel"]) for write in detail["writes"]] == [("book", "__error__")]


async def test_the_values_of_a_graph(engine: everstep.CheckpointEngine, graph: Any) -> None:
    await graph.ainvoke({"messages": [HumanMessage("Oslo?")]}, CONFIG)
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    assert await state.value(engine, "lg") == {"plan": "booked"}
    page = await transcript.page(engine, "lg")
    json.dumps(page)
    assert [each["role"] for each in page["messages"]] == ["user", "assistant", "tool"]
    assert page["messages"][1]["tool_calls"][0]["result"]["text"] == "found it"
    found = await changes.compare(engine, "lg#0", "lg#1")
    json.dumps(found)
    assert [each["path"] for each in found["state"]] == ["state.plan", "next_node"]
    assert [(each["op"], each["role"]) for each in found["messages"]] == [("added", "ai")]
    who = await blame.history_of(engine, "lg", "/plan")
    assert [(each["title"], each["after"]) for each in who["changes"]] == [
        ("book", "booked"), ("ask", "yes"), ("I look it up.", "look"),
    ]  # fmt: skip
    assert (await history.page(engine, "lg", path="/plan"))["hidden_by_filter"] == 3


async def test_going_back_forking_and_merging(engine: everstep.CheckpointEngine, graph: Any) -> None:
    await graph.ainvoke({"messages": [HumanMessage("Oslo?")]}, CONFIG)
    await graph.ainvoke(Command(resume="yes"), CONFIG)
    assert (await actions.plan_rewind(engine, "lg#1"))["hidden"] == 3
    with pytest.raises(InvalidInput, match="update_state"):
        await actions.fork(engine, "lg#2", "edit", set={"/plan": "x"})
    made = await actions.fork(engine, "lg#4", "side")
    side = {"configurable": {"thread_id": made["thread_id"]}}
    await graph.aupdate_state(side, {"plan": "theirs"})
    await graph.aupdate_state(CONFIG, {"plan": "ours"})
    plan = await actions.plan_merge(engine, made["thread_id"], "lg")
    json.dumps(plan)
    (conflict,) = plan["conflicts"]
    assert (conflict["path"], conflict["ours"], conflict["theirs"]) == ("state.plan", "ours", "theirs")
    await actions.merge(engine, made["thread_id"], "lg", {"state.plan": {"take": "theirs"}})
    assert await state.value(engine, "lg") == {"plan": "theirs"}
    rows = (await history.page(engine, "lg"))["rows"]
    assert [(row["kind"], row["title"]) for row in rows[:2]] == [("merge", "Merge side"), ("state", "State edited")]
    assert [row["title"] for row in rows if row["kind"] == "fork"] == ["Branch side"]


async def test_a_task(engine: everstep.CheckpointEngine, plain_store: Store) -> None:
    tasks = TaskManager(build(), HarnessCheckpointer(backend=plain_store))
    await tasks.acreate_task({"messages": [HumanMessage("Oslo?")]}, task_id="lg")
    thread = await threads.one(engine, "lg")
    assert (thread["kind"], thread["status"]) == ("task", "waiting")
    assert len(await rows_of(engine)) == 4
    with pytest.raises(ValueError, match="no money"):
        await tasks.aresume_task("lg", "fail")
    assert (await threads.one(engine, "lg"))["status"] == "failed"
    # What the task itself keeps is no row, so it moves none.
    rows = (await history.page(engine, "lg"))["rows"]
    assert [await jumps.place_of(engine, "lg", row["id"]) for row in rows] == list(range(len(rows)))
