"""Tasks: running, failing, asking, resuming, rolling back; and who runs them when there are many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import everstep
from everstep import errors
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import TaskManager
from everstep.repository import claims
from everstep.repository.claims import Claims, Found, Owner
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Change, Query
from everstep.types import TASK_NAMESPACE
from tests.langgraph.scripts import Script, Work, log
from tests.langgraph.task_worker import steps
from tests.langgraph.tools import FacedSaver, at, checkpoint, task_claims
from tests.tools import servers
from tests.tools.between import Between
from tests.tools.nursery import Child


class Faced:
    """A manager whose methods are awaited whichever face is under test."""

    def __init__(self, manager: TaskManager, face: str) -> None:
        self.whole, self._face = manager, face

    def __getattr__(self, name: str) -> Any:
        if self._face == "async":
            return getattr(self.whole, f"a{name}")
        found = getattr(self.whole, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return call


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Broken(Exception):
    pass


def fail(text: str = "no") -> Callable[[Any], Any]:
    def act(_: Any) -> Any:
        raise Broken(text)

    return act


@pytest.fixture
def make(saver: FacedSaver, face: str) -> Callable[..., Faced]:
    return lambda graph, **options: Faced(TaskManager(graph, saver.whole, **options), face)


# -- one after another


async def test_a_task_runs_to_its_end(make: Callable[..., Faced]) -> None:
    script = Script(look=log(1), act=log(2, 3, 4, 5, 6))
    tasks = make(script.graph())
    task_id = await tasks.create_task({"logs": [0]})
    status = await tasks.get_task_status(task_id)
    assert status.pop("updated_at").startswith("20")
    assert status == {
        "task_id": task_id, "status": "finished", "stage": "act", "next": [], "logs": [2, 3, 4, 5, 6], "error": None,
        "interrupts": [],
    }  # fmt: skip
    assert await tasks.resume_task(task_id) == {"logs": [0, 1, 2, 3, 4, 5, 6]}
    assert script.ran == ["look", "act"]


async def test_the_stage_is_what_the_state_says(make: Callable[..., Faced]) -> None:
    tasks = make(Script(look=lambda _: {"current_stage": "looking"}, act=fail()).graph())
    await tasks.create_task({"logs": []}, task_id="t")
    assert (await tasks.get_task_status("t"))["stage"] == "looking"


async def test_a_failure_is_kept_and_the_task_goes_on_after_it(
    make: Callable[..., Faced], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(look=log("look"), act=fail("first time"), end=log("end"))
    tasks = make(script.graph())
    with caplog.at_level(logging.ERROR, "everstep"):
        assert await tasks.create_task({"logs": []}, task_id="t") == "t"
    assert "first time" in caplog.text
    status = await tasks.get_task_status("t")
    assert (status["status"], status["error"], status["next"]) == ("failed", "Broken: first time", ["act"])
    assert status["stage"] == "look"

    script.acts["act"] = fail("again")
    with pytest.raises(Broken, match="again"):
        await tasks.resume_task("t")
    assert (await tasks.get_task_status("t"))["error"] == "Broken: again"

    script.acts["act"] = log("act")
    assert await tasks.resume_task("t") == {"logs": ["look", "act", "end"]}
    assert script.ran == ["look", "act", "act", "act", "end"]
    status = await tasks.get_task_status("t")
    assert (status["status"], status["error"]) == ("finished", None)


async def test_a_failure_that_was_got_past_is_not_shown_while_the_task_goes_on(make: Callable[..., Faced]) -> None:
    seen: list[Any] = []
    script = Script(act=fail(), end=lambda _: seen.append(tasks.whole.get_task_status("t")))
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    script.acts["act"] = lambda _: seen.append(tasks.whole.get_task_status("t"))
    await tasks.resume_task("t")
    assert [(status["status"], status["error"]) for status in seen] == [("running", "Broken: no"), ("running", None)]


async def test_a_node_that_failed_and_then_asks_has_no_failure(make: Callable[..., Faced]) -> None:
    script = Script(act=fail())
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    script.acts["act"] = lambda _: {"logs": [interrupt("?")]}
    await tasks.resume_task("t")
    status = await tasks.get_task_status("t")
    assert (status["status"], status["error"], status["interrupts"]) == ("interrupted", None, ["?"])


async def test_a_task_that_failed_before_its_first_checkpoint_begins_again(
    make: Callable[..., Faced], saver: FacedSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(answer=lambda state: {"messages": [AIMessage(f"to {state['messages'][-1].content}", id="a")]})
    tasks = make(script.graph(Chat))

    async def refuse(*_: Any) -> Any:
        raise errors.StoreUnavailable("not now")

    with monkeypatch.context() as patched:
        patched.setattr(HarnessCheckpointer, "_put", refuse)
        await tasks.create_task({"messages": [HumanMessage("this", id="h")]}, task_id="t")
    status = await tasks.get_task_status("t")
    assert (status["status"], status["error"]) == ("failed", "StoreUnavailable: not now")
    assert (status["stage"], status["next"], status["logs"]) == (None, [], [])
    assert [entry["task_id"] for entry in await tasks.list_tasks()] == ["t"]
    with pytest.raises(errors.TaskExists):
        await tasks.create_task({"messages": []}, task_id="t")
    with pytest.raises(errors.InvalidInput, match="has not begun"):
        await tasks.resume_task("t", "an answer")
    assert (await tasks.get_task_status("t"))["status"] == "failed"

    values = await tasks.resume_task("t")
    assert [message.content for message in values["messages"]] == ["this", "to this"]
    record = saver.whole.backend.sync.get_latest("t", namespace=TASK_NAMESPACE)
    assert record is not None
    assert record.state == {}  # the input is not needed any more


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_an_input_is_kept_by_the_rules_of_the_saver(
    make_saver: Callable[..., Any], face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Noting(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            seen.append(obj)
            return super().dumps_typed(obj)

    tasks = Faced(TaskManager(Script(act=log("act")).graph(), make_saver(serde=Noting()).whole), face)

    async def refuse(*_: Any) -> Any:
        raise errors.StoreUnavailable("not now")

    with monkeypatch.context() as patched:
        patched.setattr(HarnessCheckpointer, "_put", refuse)
        await tasks.create_task({"logs": ["in"]}, task_id="t")
    assert seen[0] == {"logs": ["in"]}
    assert await tasks.resume_task("t") == {"logs": ["in", "act"]}


async def test_what_has_run_but_is_in_no_checkpoint_is_not_finished(
    make: Callable[..., Faced], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between a node's results and the checkpoint that takes them in."""
    script = Script(act=log("act"))
    tasks = make(script.graph())
    put, left = HarnessCheckpointer._put, [2]

    async def twice(self: Any, *args: Any) -> Any:
        if not left[0]:
            raise errors.StoreUnavailable("not now")
        left[0] -= 1
        return await put(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(HarnessCheckpointer, "_put", twice)
        await tasks.create_task({"logs": []}, task_id="t")
    status = await tasks.get_task_status("t")
    assert (status["status"], status["next"]) == ("failed", ["act"])
    assert await tasks.resume_task("t") == {"logs": ["act"]}
    assert script.ran == ["act"]
    assert (await tasks.get_task_status("t"))["status"] == "finished"


async def test_an_input_that_cannot_be_stored_says_so(make: Callable[..., Faced]) -> None:
    tasks = make(Script(act=log(1)).graph())
    await tasks.create_task({"logs": [threading.Lock()]}, task_id="t")
    status = await tasks.get_task_status("t")
    assert status["status"] == "failed"
    assert status["error"].startswith("UnstorableValue: ")
    with pytest.raises(errors.InvalidInput, match=r"could not be stored .*lock"):
        await tasks.resume_task("t")
    assert (await tasks.get_task_status("t"))["status"] == "failed"


async def test_a_question_is_answered(make: Callable[..., Faced]) -> None:
    script = Script(look=log("look"), ask=lambda _: {"logs": [interrupt({"how": "many"})]}, end=log("end"))
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    status = await tasks.get_task_status("t")
    assert (status["status"], status["next"], status["interrupts"]) == ("interrupted", ["ask"], [{"how": "many"}])
    assert status["error"] is None
    again = await tasks.resume_task("t")
    assert [asked.value for asked in again["__interrupt__"]] == [{"how": "many"}]
    assert await tasks.resume_task("t", 3) == {"logs": ["look", 3, "end"]}
    assert (await tasks.get_task_status("t"))["status"] == "finished"
    assert await tasks.resume_task("t", 4) == {"logs": ["look", 3, "end"]}


async def test_an_answer_may_be_none(make: Callable[..., Faced]) -> None:
    tasks = make(Script(ask=lambda _: {"logs": [interrupt("what")]}).graph())
    await tasks.create_task({"logs": []}, task_id="t")
    assert await tasks.resume_task("t", None) == {"logs": [None]}


@pytest.mark.parametrize("by_name", [True, False])
async def test_an_answer_is_for_one_question_though_its_node_fails(make: Callable[..., Faced], by_name: bool) -> None:
    failures = ["no"]

    def ask(_: Any) -> Any:
        first = interrupt("first?")
        if failures:
            raise Broken(failures.pop())
        return {"logs": [first, interrupt("second?")]}

    tasks = make(Script(ask=ask).graph())
    await tasks.create_task({"logs": []}, task_id="t")
    answer: Any = {"yes": 1}
    if by_name:
        (asked,) = tasks.whole._graph.get_state({"configurable": {"thread_id": "t"}}).interrupts
        answer = {asked.id: answer}
    with pytest.raises(Broken):
        await tasks.resume_task("t", answer)
    await tasks.resume_task("t")
    assert (await tasks.get_task_status("t"))["interrupts"] == ["second?"]
    assert await tasks.resume_task("t", "no") == {"logs": [{"yes": 1}, "no"]}


async def test_a_breakpoint_is_an_interrupt(make: Callable[..., Faced]) -> None:
    script = Script(look=log("look"), act=log("act"))
    tasks = make(script.graph().compile(interrupt_before=["act"]))
    await tasks.create_task({"logs": []}, task_id="t")
    assert (await tasks.get_task_status("t"))["status"] == "interrupted"
    assert await tasks.resume_task("t") == {"logs": ["look", "act"]}


async def test_a_compiled_graph_is_not_changed(make: Callable[..., Faced]) -> None:
    held = InMemorySaver()
    graph = Script(act=log(1)).graph().compile(checkpointer=held)
    await make(graph).create_task({"logs": []}, task_id="t")
    assert graph.checkpointer is held
    assert list(held.list(None)) == []


async def test_functions_are_tasks_too(make: Callable[..., Faced]) -> None:
    @entrypoint()
    def double(n: int) -> int:
        return 2 * n

    tasks = make(double)
    assert await tasks.resume_task(await tasks.create_task(4)) == 8


async def test_what_is_there_is_not_overwritten(make: Callable[..., Faced], saver: FacedSaver) -> None:
    script = Script(act=log(1))
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    await saver.add("c1", {"x": 1}, thread="chat")
    before = await saver.keys(None)
    for taken in ("t", "chat"):
        with pytest.raises(errors.TaskExists, match=taken):
            await tasks.create_task({"logs": []}, task_id=taken)
    assert await saver.keys(None) == before
    assert script.ran == ["act"]


async def test_what_is_not_there_is_said_so(make: Callable[..., Faced]) -> None:
    tasks = make(Script(act=log(1)).graph())
    assert await tasks.get_task_status("ghost") == {"task_id": "ghost", "status": "not_found"}
    with pytest.raises(errors.TaskNotFound, match="ghost"):
        await tasks.resume_task("ghost")
    with pytest.raises(LookupError):
        await tasks.rollback_task("ghost", "c1")
    assert await tasks.get_task_history("ghost") == []
    assert await tasks.delete_task("ghost") is False
    assert await tasks.list_tasks() == []


async def test_a_thread_that_a_graph_left_can_be_resumed(make: Callable[..., Faced], saver: FacedSaver) -> None:
    script = Script(look=log("look"), act=fail())
    config: Any = {"configurable": {"thread_id": "t"}}
    with pytest.raises(Broken):
        script.graph().compile(checkpointer=saver.whole).invoke({"logs": []}, config)
    tasks = make(script.graph())
    status = await tasks.get_task_status("t")
    assert (status["status"], status["stage"], status["next"]) == ("failed", "look", ["act"])
    assert "Broken" in status["error"]
    assert await tasks.list_tasks() == []
    script.acts["act"] = log("act")
    assert await tasks.resume_task("t") == {"logs": ["look", "act"]}
    assert [status["task_id"] for status in await tasks.list_tasks()] == ["t"]


async def test_history_tells_what_ran(make: Callable[..., Faced]) -> None:
    tasks = make(Script(look=log("look"), act=log("act")).graph())
    await tasks.create_task({"logs": []}, task_id="t")
    history = await tasks.get_task_history("t")
    assert [(entry["stage"], entry["next"], entry["step"]) for entry in history] == [
        ("act", [], 2), ("look", ["act"], 1), (None, ["look"], 0), (None, ["__start__"], -1),
    ]  # fmt: skip
    assert [entry["checkpoint_id"] for entry in history] == sorted(
        {entry["checkpoint_id"] for entry in history}, reverse=True
    )
    assert await tasks.get_task_history("t", limit=2) == history[:2]


async def test_tasks_are_listed_the_last_active_first(make: Callable[..., Faced], saver: FacedSaver) -> None:
    script = Script(ask=lambda _: {"logs": [interrupt("?")]})
    tasks = make(script.graph())
    for name in ("a", "b", "c"):
        await tasks.create_task({"logs": []}, task_id=name)
    await saver.add("c1", {"x": 1}, thread="chat")
    await tasks.resume_task("a", "yes")
    listed = await tasks.list_tasks()
    assert [(status["task_id"], status["status"]) for status in listed] == [
        ("a", "finished"), ("c", "interrupted"), ("b", "interrupted"),
    ]  # fmt: skip
    assert await tasks.list_tasks(limit=1, offset=1) == listed[1:2]
    assert await tasks.list_tasks(limit=5, offset=2) == listed[2:]


@pytest.mark.parametrize("face", ["blocking"], indirect=True)  # an event loop takes it for itself
async def test_an_interruption_from_outside_leaves_the_task_to_be_resumed(make: Callable[..., Faced]) -> None:
    def stop(_: Any) -> Any:
        raise KeyboardInterrupt

    script = Script(look=log("look"), act=stop)
    tasks = make(script.graph())
    with pytest.raises(KeyboardInterrupt):
        await tasks.create_task({"logs": []}, task_id="t")
    status = await tasks.get_task_status("t")
    assert (status["status"], status["error"]) == ("stopped", None)
    script.acts["act"] = log("act")
    assert await tasks.resume_task("t") == {"logs": ["look", "act"]}


@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_a_task_that_is_cancelled_can_be_resumed(make: Callable[..., Faced]) -> None:
    inside = asyncio.Event()

    async def hold(_: Any) -> Any:
        inside.set()
        await asyncio.Event().wait()

    script = Script(look=log("look"))
    graph = script.graph()
    graph.add_node("hold", hold)
    graph.add_edge("look", "hold")
    tasks = make(graph)
    running = asyncio.create_task(tasks.create_task({"logs": []}, task_id="t"))
    await inside.wait()
    assert (await tasks.get_task_status("t"))["status"] == "running"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    status = await tasks.get_task_status("t")
    assert (status["status"], status["next"], status["error"]) == ("stopped", ["hold"], None)


@pytest.mark.parametrize("face", ["async"], indirect=True)
@pytest.mark.parametrize("call", ["create_task", "start_task", "resume_task", "rollback_task"])
@pytest.mark.parametrize("when", ["claiming", "claimed"])
async def test_whoever_is_cancelled_while_claiming_owns_nothing(
    make: Callable[..., Faced], monkeypatch: pytest.MonkeyPatch, call: str, when: str
) -> None:
    script = Script(look=log("look"), act=fail())
    tasks = make(script.graph())
    given: list[Any] = [{"logs": []}]
    if call in ("resume_task", "rollback_task"):
        await tasks.create_task({"logs": []}, task_id="t")
        given = ["t"] + [found["checkpoint_id"] for found in (await tasks.get_task_history("t"))[:1]]
        given = given[: 1 if call == "resume_task" else 2]
    options = {"task_id": "t"} if call in ("create_task", "start_task") else {}
    swap, inside, go_on = Claims.swap, asyncio.Event(), asyncio.Event()

    async def held(self: Claims, *arguments: Any) -> Any:
        monkeypatch.setattr(Claims, "swap", swap)
        found = await swap(self, *arguments) if when == "claimed" else None
        inside.set()
        await go_on.wait()
        return found if found is not None else await swap(self, *arguments)

    monkeypatch.setattr(Claims, "swap", held)
    running = asyncio.create_task(getattr(tasks, call)(*given, **options))
    await inside.wait()
    running.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await tasks.get_task_status("t"))["status"] in ("stopped", "failed")
    script.acts["act"] = log("act")
    assert await tasks.resume_task("t") == {"logs": ["look", "act"]}


@pytest.mark.parametrize(
    ("checkpointer", "graph", "options", "text"),
    [
        (InMemorySaver(), Script(act=log()).graph(), {}, "HarnessCheckpointer, not InMemorySaver"),
        (None, Script(act=log()).graph(), {"lease_seconds": 0}, "lease_seconds"),
        (None, Script(act=log()).graph(), {"lease_seconds": float("nan")}, "lease_seconds"),
        (None, Script(act=log()).graph(), {"config": 1}, "config"),
        (None, "graph", {}, "a graph of LangGraph, compiled or not, not str"),
    ],
)
def test_arguments_are_checked(checkpointer: Any, graph: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.InvalidInput, match=text):
        TaskManager(graph, checkpointer or HarnessCheckpointer(), **options)


def test_a_config_is_passed_to_every_run() -> None:
    def act(_: Any, config: RunnableConfig) -> Any:
        return {"logs": [config["configurable"]["who"], config["configurable"]["thread_id"]]}

    graph: Any = StateGraph(Work)
    graph.add_node("act", act).add_edge(START, "act")
    given = {"configurable": {"who": "me"}, "recursion_limit": 7}
    tasks = TaskManager(graph, HarnessCheckpointer(), config=given)
    assert tasks.resume_task(tasks.create_task({"logs": []}, task_id="t")) == {"logs": ["me", "t"]}


# -- rolling back


async def test_a_task_goes_on_from_an_earlier_checkpoint(make: Callable[..., Faced]) -> None:
    script = Script(look=log("look"), act=log("act"), end=log("end"))
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    point = (await tasks.get_task_history("t"))[2]
    assert point["next"] == ["act"]
    script.acts["act"] = log("otherwise")
    assert await tasks.rollback_task("t", point["checkpoint_id"]) == {"logs": ["look", "otherwise", "end"]}
    assert script.ran == ["look", "act", "end", "act", "end"]
    history = await tasks.get_task_history("t")
    assert [entry["stage"] for entry in history] == ["end", "act", "look", None, None]
    assert point["checkpoint_id"] in [entry["checkpoint_id"] for entry in history]
    assert (await tasks.get_task_status("t"))["status"] == "finished"


async def test_a_rollback_can_be_undone(make: Callable[..., Faced], saver: FacedSaver) -> None:
    script = Script(look=log("look"), act=log("act"))
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    before = await tasks.get_task_history("t")
    script.acts["act"] = fail()
    with pytest.raises(Broken):
        await tasks.rollback_task("t", before[1]["checkpoint_id"])
    assert (await tasks.get_task_status("t"))["status"] == "failed"
    engine = everstep.CheckpointEngine(saver.whole.backend).sync
    engine.undo("t")
    assert await tasks.get_task_history("t") == before
    status = await tasks.get_task_status("t")
    assert (status["status"], status["error"]) == ("finished", None)
    assert [status["task_id"] for status in await tasks.list_tasks()] == ["t"]
    engine.redo("t")
    status = await tasks.get_task_status("t")
    assert (status["status"], status["error"]) == ("failed", "Broken: no")
    script.acts["act"] = log("at last")
    assert await tasks.resume_task("t") == {"logs": ["look", "at last"]}


async def test_a_branch_of_a_task_is_a_task_of_its_own(make: Callable[..., Faced], saver: FacedSaver) -> None:
    script = Script(look=log("look"), act=fail())
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    point = (await tasks.get_task_history("t"))[0]["checkpoint_id"]
    engine = everstep.CheckpointEngine(saver.whole.backend).sync
    branch = engine.branch(point, "other", thread_id="t", namespace="")
    assert [status["task_id"] for status in await tasks.list_tasks()] == ["t"]
    script.acts["act"] = log("act")
    assert await tasks.resume_task(branch) == {"logs": ["look", "act"]}
    assert (await tasks.get_task_status("t"))["status"] == "failed"
    engine.merge_branch(branch, "t")
    assert (await tasks.get_task_status("t"))["logs"] == ["look", "act"]


async def test_a_rollback_to_the_end_runs_nothing(make: Callable[..., Faced]) -> None:
    script = Script(look=log("look"))
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    last = (await tasks.get_task_history("t"))[0]["checkpoint_id"]
    assert await tasks.rollback_task("t", last) == {"logs": ["look"]}
    assert script.ran == ["look"]


async def test_a_rollback_to_a_failed_node_runs_it_again(make: Callable[..., Faced]) -> None:
    script = Script(look=log("look"), act=fail())
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    first = (await tasks.get_task_history("t"))[1]
    script.acts["act"] = log("act")
    assert await tasks.rollback_task("t", first["checkpoint_id"]) == {"logs": ["look", "act"]}
    assert script.ran == ["look", "act", "look", "act"]


async def test_a_question_stands_again_after_a_rollback(make: Callable[..., Faced]) -> None:
    tasks = make(Script(ask=lambda _: {"logs": [interrupt("?")]}).graph())
    await tasks.create_task({"logs": []}, task_id="t")
    await tasks.resume_task("t", "yes")
    point = (await tasks.get_task_history("t"))[1]["checkpoint_id"]
    again = await tasks.rollback_task("t", point)
    assert [asked.value for asked in again["__interrupt__"]] == ["?"]
    assert (await tasks.get_task_status("t"))["status"] == "interrupted"
    assert await tasks.resume_task("t", "no") == {"logs": ["no"]}


class Rounds(TypedDict, total=False):
    rounds: Annotated[int, operator.add]
    stage: str


class Remembering:
    """A graph that goes twice through a subgraph with a memory of its own; the subgraph counts what it has done."""

    def __init__(self) -> None:
        class Memory(TypedDict, total=False):
            stage: str
            seen: Annotated[int, operator.add]

        self.inner = Script(count=lambda _: {"seen": 1}, check=lambda _: {})
        self.outer = Script(look=lambda _: {"rounds": 1}, think=lambda state: {"stage": f"round {state['rounds']}"})
        graph = self.outer.graph(Rounds)
        graph.add_node("inner", self.inner.graph(Memory).compile(checkpointer=True))
        graph.add_edge("think", "inner")
        graph.add_conditional_edges("inner", lambda state: "look" if state["rounds"] < 2 else END, ["look", END])
        self.graph = graph

    def seen(self, saver: HarnessCheckpointer) -> Any:
        """Return how often the subgraph remembers to have run."""
        found = saver.get_tuple(at(ns="inner"))
        assert found is not None
        return found.checkpoint["channel_values"]["seen"]


@pytest.mark.parametrize("by_hand", [[], ["__copy__"], ["think"], ["think", "think"]])
async def test_a_subgraph_that_remembers_runs_again_after_a_rewind(
    make: Callable[..., Faced], saver: FacedSaver, by_hand: list[str]
) -> None:
    """LangGraph itself takes it for finished there, because of the turn before."""
    script = Remembering()
    tasks = make(script.graph)
    await tasks.create_task({"rounds": 0}, task_id="t")
    expected = await tasks.resume_task("t")
    assert (script.inner.ran, script.seen(saver.whole)) == (["count", "check"] * 2, 2)
    point = next(entry for entry in await tasks.get_task_history("t") if "inner" in entry["next"])

    script.inner.ran.clear()
    assert await tasks.rollback_task("t", point["checkpoint_id"]) == expected
    assert (script.inner.ran, script.seen(saver.whole)) == (["count", "check"], 2)

    script.inner.ran.clear()
    saver.whole.engine.sync.rewind(point["checkpoint_id"], thread_id="t", namespace="")
    graph = script.graph.compile(saver.whole)
    for node in by_hand:
        graph.update_state(at(), None if node == "__copy__" else {"stage": "round 2"}, as_node=node)
    assert await tasks.resume_task("t") == expected
    assert (script.inner.ran, script.seen(saver.whole)) == (["count", "check"], 2)


@pytest.mark.parametrize(
    ("durability", "by_hand"), [("sync", []), ("sync", ["think"]), ("sync", ["think", "think"]), ("exit", [])]
)
async def test_a_subgraph_that_remembers_goes_on_where_it_failed(
    make: Callable[..., Faced], saver: FacedSaver, durability: str, by_hand: list[str]
) -> None:
    script = Remembering()
    script.inner.acts["check"] = lambda state: fail()(state) if state["seen"] == 2 else {}
    tasks = make(script.graph, durability=durability)
    await tasks.create_task({"rounds": 0}, task_id="t")
    assert script.inner.ran == ["count", "check"] * 2
    with pytest.raises(Broken):
        await tasks.resume_task("t")
    script.inner.acts["check"] = lambda _: {}
    for node in by_hand:
        script.graph.compile(saver.whole).update_state(at(), {"stage": "round 2"}, as_node=node)
    await tasks.resume_task("t")
    assert script.inner.ran == ["count", "check", "count", "check", "check", "check"]
    assert script.seen(saver.whole) == 2


async def test_a_rollback_to_nowhere_changes_nothing(make: Callable[..., Faced]) -> None:
    tasks = make(Script(look=log("look"), act=fail()).graph())
    await tasks.create_task({"logs": []}, task_id="t")
    before = await tasks.get_task_status("t")
    with pytest.raises(errors.CheckpointNotFound):
        await tasks.rollback_task("t", "nowhere")
    assert await tasks.get_task_status("t") == before


async def test_a_thread_is_no_task_because_a_rollback_of_it_failed(
    make: Callable[..., Faced], saver: FacedSaver
) -> None:
    script = Script(look=log("look"))
    script.graph().compile(checkpointer=saver.whole).invoke({"logs": []}, {"configurable": {"thread_id": "plain"}})
    tasks = make(script.graph())
    with pytest.raises(errors.CheckpointNotFound):
        await tasks.rollback_task("plain", "nowhere")
    assert await tasks.list_tasks() == []


# -- in the background, and two at once


class Held:
    """A node that says that it runs and holds until it may go on."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, _: Any) -> Any:
        self.inside.set()
        assert self.go.wait(60)
        return {"logs": ["held"]}


async def entered(held: Held) -> None:
    async with asyncio.timeout(servers.START_SECONDS):
        while not held.inside.is_set():
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def started(manager: TaskManager, held: Held, **options: Any) -> Iterator[None]:
    """Run a task on a thread until it holds."""
    manager.start_task({"logs": []}, task_id="t", **options)
    try:
        assert held.inside.wait(60)
        yield
    finally:
        held.go.set()
        manager.wait_task("t", 60)


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_started_task_is_not_waited_for(make: Callable[..., Faced]) -> None:
    held = Held()
    tasks = make(Script(look=log("look"), hold=held).graph()).whole
    with started(tasks, held):
        status = tasks.get_task_status("t")
        assert (status["status"], status["next"], status["stage"]) == ("running", ["hold"], "look")
        assert tasks.wait_task("t", 0.01)["status"] == "running"
        for refused in (tasks.resume_task, tasks.delete_task, lambda name: tasks.rollback_task(name, "c")):
            with pytest.raises(errors.TaskRunning, match=rf"'t' is run by process {os.getpid()} on ") as caught:
                refused("t")
            assert caught.value.pid == os.getpid()
        with pytest.raises(errors.TaskExists):
            tasks.start_task({"logs": []}, task_id="t")
    assert tasks.get_task_status("t")["status"] == "finished"


@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_a_started_task_runs_in_the_event_loop(make: Callable[..., Faced]) -> None:
    held = Held()
    tasks = make(Script(look=log("look"), hold=held).graph()).whole
    assert await tasks.astart_task({"logs": []}, task_id="t") == "t"
    await entered(held)
    assert (await tasks.aget_task_status("t"))["status"] == "running"
    with pytest.raises(errors.TaskRunning):
        await tasks.aresume_task("t")
    waiting = asyncio.create_task(tasks.aresume_task("t", wait=True))
    assert (await tasks.await_task("t", 0.05))["status"] == "running"
    assert not waiting.done()
    held.go.set()
    assert await waiting == {"logs": ["look", "held"]}
    assert (await tasks.await_task("t"))["status"] == "finished"


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_failure_in_the_background_is_kept_and_logged(
    make: Callable[..., Faced], caplog: pytest.LogCaptureFixture
) -> None:
    tasks = make(Script(act=fail("in the background")).graph()).whole
    with caplog.at_level(logging.ERROR, "everstep"):
        tasks.start_task({"logs": []}, task_id="t")
        assert tasks.wait_task("t")["status"] == "failed"

        def is_logged() -> bool:
            return any("in the background" in (record.exc_text or "") for record in caplog.records)

        servers.wait_until(is_logged, "the failure in the log")


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_who_waits_for_a_task_gets_what_the_other_made_of_it(make: Callable[..., Faced]) -> None:
    held, found = Held(), list[Any]()
    script = Script(look=log("look"), hold=held)
    tasks = make(script.graph()).whole
    with started(tasks, held):
        waiting = threading.Thread(target=lambda: found.append(tasks.resume_task("t", wait=True)))
        waiting.start()
        held.go.set()
        waiting.join(60)
    assert found == [{"logs": ["look", "held"]}]
    assert script.ran == ["look", "hold"]


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_of_many_that_resume_at_once_one_runs(make: Callable[..., Faced]) -> None:
    script = Script(look=log("look"), act=fail())
    tasks = make(script.graph()).whole
    tasks.create_task({"logs": []}, task_id="t")
    held, barrier, found = Held(), threading.Barrier(4), list[Any]()
    script.acts["act"] = held

    def resume() -> None:
        barrier.wait()
        try:
            found.append(tasks.resume_task("t"))
        except errors.TaskRunning as error:
            found.append(error)
        if len(found) == 3:
            held.go.set()

    threads = [threading.Thread(target=resume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(isinstance(each, errors.TaskRunning) for each in found) == 3
    assert {"logs": ["look", "held"]} in found
    assert script.ran == ["look", "act", "act"]


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_task_that_is_deleted_by_force_stops_and_does_not_come_back(
    make: Callable[..., Faced], saver: FacedSaver, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    tasks = make(Script(look=log("look"), hold=held, end=log("end")).graph()).whole
    with started(tasks, held):
        assert tasks.delete_task("t", force=True) is True
        assert tasks.get_task_status("t") == {"task_id": "t", "status": "not_found"}
        held.go.set()
        servers.wait_until(lambda: "TaskLost" in caplog.text, "the task to notice that it is lost")
    assert tasks.get_task_status("t") == {"task_id": "t", "status": "not_found"}
    assert run_to_end(saver.whole.backend.store.blocking.thread("t")) is None


# -- claims


def owner_of(saver: HarnessCheckpointer, **changes: Any) -> None:
    """Change the owner of the task t."""
    records = task_claims(saver.backend.blocking.repository)
    found = run_to_end(records.find("t"))
    assert found is not None
    until = changes.pop("until", found.task.until)
    owner = (found.task.owner or claims.this_process())._replace(**changes)
    run_to_end(records.swap("t", found.task._replace(owner=owner, until=until), found.stored))


@pytest.mark.parametrize(
    ("changes", "runs"),
    [
        ({}, True),
        ({"until": 0.0}, False),
        ({"pid": 2**22 + 1}, False),  # no process has such a number
        ({"pid": 2**22 + 1, "machine": "another"}, True),
        ({"started": "1"}, False),  # this number was another process's then
        ({"started": "1", "machine": ""}, True),
    ],
)
def test_a_claim_holds_while_its_owner_may_live(changes: dict[str, Any], runs: bool) -> None:
    saver = HarnessCheckpointer()
    script = Script(look=log("look"), act=fail())
    tasks = TaskManager(script.graph(), saver)
    tasks.create_task({"logs": []}, task_id="t")
    script.acts["act"] = log("act")
    owner_of(saver, **{"until": time.time() + 1000, **changes})
    assert tasks.get_task_status("t")["status"] == ("running" if runs else "stopped")
    if runs:
        with pytest.raises(errors.TaskRunning):
            tasks.resume_task("t")
    else:
        assert tasks.resume_task("t") == {"logs": ["look", "act"]}


async def test_who_waits_goes_on_when_a_claim_has_run_out(make: Callable[..., Faced], saver: FacedSaver) -> None:
    script = Script(look=log("look"), act=fail())
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    script.acts["act"] = log("act")
    until = time.time() + 0.3
    owner_of(saver.whole, until=until, machine="another")
    assert await tasks.resume_task("t", wait=True) == {"logs": ["look", "act"]}
    assert time.time() > until


def test_an_ended_process_is_dead_before_anybody_waited_for_it() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    here = claims.this_process()
    started_at = claims._started(child.pid)
    assert started_at
    owner = Owner(here.host, child.pid, here.machine, started_at, "run")
    assert not claims.is_dead(owner)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert claims.is_dead(owner)
    child.communicate()
    assert claims.is_dead(owner)


async def test_there_is_one_record_of_a_task(make: Callable[..., Faced], saver: FacedSaver) -> None:
    script = Script(ask=lambda _: {"logs": [interrupt("?")]})
    tasks = make(script.graph(), lease_seconds=0.05)
    await tasks.create_task({"logs": ["x" * 10_000]}, task_id="t")
    for answer in ("yes", "no"):
        await tasks.resume_task("t", answer)
    listed = run_to_end(
        saver.whole.backend.store.blocking.list_checkpoints(
            Query(thread_id="t", namespace=TASK_NAMESPACE, hidden="also")
        )
    )
    assert len(listed) == 1


def later_than(records: Claims, first: Found) -> Found:
    """Wait until a claim has been renewed, and return its record."""
    for _ in range(6000):
        found = run_to_end(records.find("t"))
        if found is not None and found.task.until > first.task.until:
            return found
        time.sleep(0.01)
    raise AssertionError("the claim was not renewed within a minute")


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_claim_is_renewed_while_a_node_runs(make: Callable[..., Faced], saver: FacedSaver) -> None:
    held = Held()
    tasks = make(Script(look=log("look"), hold=held, end=log("end")).graph(), lease_seconds=0.3).whole
    records = task_claims(saver.whole.backend.blocking.repository)
    with started(tasks, held):
        first = run_to_end(records.find("t"))
        assert first is not None
        renewed = later_than(records, first)
        assert renewed.task.owner == first.task.owner
        held.go.set()
        assert tasks.wait_task("t")["status"] == "finished"


async def contents(saver: FacedSaver) -> Any:
    """Return all checkpoints of the task t, with their writes."""
    raw = run_to_end(saver.whole.backend.store.blocking.raw("t"))
    assert raw is not None
    return await saver.keys({"configurable": {"thread_id": "t"}}), [(key, write[:3]) for key, write in raw.writes]


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
async def test_not_one_checkpoint_gets_in_after_a_takeover(make: Callable[..., Faced], saver: FacedSaver) -> None:
    """Whatever the clocks say: the store itself refuses."""
    held = Held()
    script = Script(look=log("look"), act=held, end=log("end"))
    tasks = make(script.graph()).whole
    lost: list[BaseException] = []

    def run() -> None:
        try:
            tasks.create_task({"logs": []}, task_id="t")
        except errors.TaskLost as error:
            lost.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert held.inside.wait(60)
    owner_of(saver.whole, until=0.0)  # as if it had been paused
    script.acts["act"] = log("act")
    assert tasks.resume_task("t") == {"logs": ["look", "act", "end"]}
    before = await contents(saver)
    held.go.set()
    thread.join(60)
    assert len(lost) == 1
    assert await contents(saver) == before
    assert tasks.resume_task("t") == {"logs": ["look", "act", "end"]}
    assert script.ran == ["look", "act", "act", "end"]


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_who_was_paused_but_not_replaced_goes_on(make: Callable[..., Faced], saver: FacedSaver) -> None:
    held = Held()
    tasks = make(Script(look=log("look"), act=held, end=log("end")).graph()).whole
    with started(tasks, held):
        owner_of(saver.whole, until=0.0)
        held.go.set()
        servers.wait_until(lambda: tasks.get_task_status("t")["status"] == "finished", "the end of the task")
        records = task_claims(saver.whole.backend.blocking.repository)

        def is_let_go() -> bool:
            found = run_to_end(records.find("t"))
            return found is not None and found.task.owner is None

        servers.wait_until(is_let_go, "the task to be let go of")
    found = run_to_end(records.find("t"))
    assert found is not None
    assert found.task.ended == claims.RETURNED


# -- what another process does in between


def is_record(change: Change, *_: Any, **__: Any) -> bool:
    """Whether a commit is about the record of a task, not its checkpoints."""
    return change.namespace == TASK_NAMESPACE


async def test_what_somebody_finishes_before_it_is_claimed_is_not_run_again(
    make: Callable[..., Faced], saver: FacedSaver, face: str
) -> None:
    script = Script(look=log("look"), ask=lambda _: {"logs": [interrupt("?")]}, act=log("act"))
    await make(script.graph()).create_task({"logs": []}, task_id="t")
    other = script.graph().compile(checkpointer=saver.whole)
    between = Between(saver.whole.backend.store)
    tasks = Faced(TaskManager(script.graph(), HarnessCheckpointer(backend=between)), face)
    answer: Any = Command(resume="early")
    between.before("commit", lambda: other.invoke(answer, {"configurable": {"thread_id": "t"}}), is_record)

    assert await tasks.resume_task("t", "late") == {"logs": ["look", "early", "act"]}

    assert between.is_over
    assert script.ran == ["look", "ask", "ask", "act"]
    status = await tasks.get_task_status("t")
    assert (status["status"], status["logs"]) == ("finished", ["look", "early", "act"])
    found = run_to_end(task_claims(saver.whole.backend.blocking.repository).find("t"))
    assert found is not None
    assert (found.task.owner, found.task.ended) == (None, claims.RETURNED)


async def test_what_somebody_begins_before_it_is_claimed_is_not_begun_again(
    make: Callable[..., Faced], saver: FacedSaver, face: str
) -> None:
    script = Script(look=log("look"), act=log("act"))
    kept = make(script.graph()).whole._kept({"logs": []})
    claim = run_to_end(task_claims(saver.whole.backend.blocking.repository).take("t", None, 30.0, kept))
    run_to_end(claim._blocking.swap("t", claim.task._replace(owner=None), claim._stored))  # it ended before it began
    other = script.graph().compile(checkpointer=saver.whole)
    between = Between(saver.whole.backend.store)
    tasks = Faced(TaskManager(script.graph(), HarnessCheckpointer(backend=between)), face)
    between.before("commit", lambda: other.invoke({"logs": []}, {"configurable": {"thread_id": "t"}}), is_record)

    assert await tasks.resume_task("t") == {"logs": ["look", "act"]}

    assert between.is_over
    assert script.ran == ["look", "act"]


async def test_nobody_begins_a_task_while_it_is_deleted(
    make: Callable[..., Faced], saver: FacedSaver, face: str
) -> None:
    script = Script(look=log("look"), act=fail())
    there = make(script.graph())
    await there.create_task({"logs": []}, task_id="t")
    between = Between(saver.whole.backend.store)
    tasks = Faced(TaskManager(script.graph(), HarnessCheckpointer(backend=between)), face)
    refused: list[BaseException] = []

    def begin() -> None:
        try:
            there.whole.resume_task("t")
        except errors.TaskRunning as error:
            refused.append(error)

    between.before("delete", begin, lambda _, **options: not options)

    assert await tasks.delete_task("t") is True

    assert between.is_over
    assert len(refused) == 1
    assert script.ran == ["look", "act"]
    assert (await there.get_task_status("t"))["status"] == "not_found"


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_claim_outlives_a_renewal_that_fails(saver: FacedSaver, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise errors.StoreUnavailable("no network")

    between = Between(saver.whole.backend.store)
    records = task_claims(everstep.StoreBackend(between).repository.over(between.blocking))
    claim = run_to_end(records.take("t", None, 0.03))
    first = run_to_end(records.find("t"))
    assert first is not None
    between.before("commit", fails, is_record)
    with caplog.at_level(logging.WARNING, "everstep"), claim.renewed():
        renewed = later_than(records, first)
    assert between.is_over
    assert "could not be renewed" in caplog.text
    assert renewed.task.owner == first.task.owner
    assert claim.base  # it is still this process's


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_renewal_that_comes_late_does_not_take_back_what_was_let_go(saver: FacedSaver) -> None:
    records = task_claims(saver.whole.backend.repository.over(saver.whole.backend.store.blocking))
    claim = run_to_end(records.take("t", None, 30.0))

    class Late(threading.Event):
        """The time to renew has come, and before that is done the run ends."""

        def wait(self, timeout: float | None = None) -> bool:
            if not self.is_set():
                self.set()
                run_to_end(claim.release(claims.RETURNED, None, begun=True))
                return False
            return super().wait(timeout)

    claim._ended = Late()
    claim._renew()

    found = run_to_end(records.find("t"))
    assert found is not None
    assert (found.task.owner, found.task.ended) == (None, claims.RETURNED)


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_what_is_lost_stays_lost(saver: FacedSaver) -> None:
    store = saver.whole.backend.store.blocking
    records = task_claims(saver.whole.backend.repository.over(store))
    claim = run_to_end(records.take("t", None, 30.0))
    assert claim.base
    owner_of(saver.whole, run="another")
    with pytest.raises(errors.TaskLost):
        run_to_end(claim.find(store))
    with pytest.raises(errors.TaskLost):
        _ = claim.base


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_record_that_stayed_is_no_fence_for_its_owner(saver: FacedSaver) -> None:
    """As after a rewind of the whole thread, with which a record stays that the next one should have replaced."""
    repository = saver.whole.backend.repository.over(saver.whole.backend.store.blocking)
    records = task_claims(repository)
    old = run_to_end(records.take("t", None, 30.0))
    found = run_to_end(records.find("t"))
    assert found is not None
    gone = found.task._replace(owner=None, until=0.0)
    run_to_end(
        repository.save(
            "t", ([], {}, {}), lambda head: claims._record("t", gone, head, "second"), namespace=TASK_NAMESPACE
        )
    )
    assert run_to_end(repository.store.read(*old.base.key)) is not None  # it stayed

    run_to_end(records.take("t", run_to_end(records.find("t")), 30.0))

    fenced = saver.whole.behind(old)
    with pytest.raises(errors.TaskLost):
        fenced.put(at(), checkpoint("c1", {"n": 1}), {}, {"n": 1})
    assert saver.whole.get_tuple(at()) is None


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_forked_child_does_not_own_what_its_parent_runs(make: Callable[..., Faced], monkeypatch: Any) -> None:
    held = Held()
    tasks = make(Script(look=log("look"), act=held).graph()).whole
    records = task_claims(tasks._saver.backend.blocking.repository)
    claim = run_to_end(records.take("t", None, 30.0))
    assert claim.base
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(errors.TaskLost):
        _ = claim.base


# -- the record beside the checkpoints


async def test_other_parts_leave_the_record_alone(make: Callable[..., Faced], saver: FacedSaver) -> None:
    tasks = make(Script(look=log("look"), act=fail()).graph())
    await tasks.create_task({"logs": []}, task_id="t")
    backend, config = saver.whole.backend, {"configurable": {"thread_id": "t"}}
    assert {key[1] for key in await saver.keys(config)} == {""}
    assert [each.namespace for each in backend.sync.list_threads()] == [""]
    engine = everstep.CheckpointEngine(backend).sync
    tree = engine.get_checkpoint_tree("t")
    assert TASK_NAMESPACE not in everstep.draw(tree)
    assert len(tree["nodes"]) == tree["total_checkpoints"] == len(await saver.keys(config))

    await saver.copy_thread("t", "copy")
    store = backend.store.blocking
    raw = run_to_end(store.raw("copy"))
    assert raw is not None
    assert list(raw.lines) == [""]
    assert (await tasks.get_task_status("copy"))["status"] == "failed"  # as LangGraph keeps it
    assert [status["task_id"] for status in await tasks.list_tasks()] == ["t"]

    before = await tasks.get_task_status("t")
    await saver.prune(["t"])
    assert len(await saver.keys(config)) == 1
    await saver.delete_for_runs(["none"])
    engine.collect()
    assert await tasks.get_task_status("t") == before
    assert await saver.delete_thread("t") == 1
    assert await tasks.get_task_status("t") == {"task_id": "t", "status": "not_found"}
    assert run_to_end(store.thread("t")) is None


async def test_records_of_a_thread_are_those_of_its_graph(tmp_path: Path) -> None:
    from everstep.langgraph import CheckpointerConfig, SQLiteBackend

    path = str(tmp_path / "records.db")
    tasks = TaskManager(Script(look=log("look")).graph(), HarnessCheckpointer.from_url(path))
    await tasks.acreate_task({"logs": []}, task_id="t")
    async with SQLiteBackend(CheckpointerConfig(sqlite_path=path)) as records:
        whole = await records.alist("t")
        assert [record.checkpoint_ns for record in whole] == [""] * 3
        assert await records.alist("t", limit=1) == whole[:1]
        assert await records.alist("t", limit=3) == whole
        found = await task_claims(tasks._saver.backend.repository).find("t")
        assert found is not None
        assert await records.aget("t", found.stored.record.key.checkpoint_id) is None
        assert await records.adelete("t") == 3


async def test_a_task_moves_to_another_store(make: Callable[..., Faced], saver: FacedSaver, tmp_path: Path) -> None:
    script = Script(look=log("look"), act=fail("here"))
    tasks = make(script.graph())
    await tasks.create_task({"logs": []}, task_id="t")
    other = HarnessCheckpointer.from_url(str(tmp_path / "other.db"))
    moved = TaskManager(script.graph(), other)
    for _ in range(2):  # the second time only what is new
        everstep.copy(everstep.CheckpointEngine(saver.whole.backend), everstep.CheckpointEngine(other.backend))
        assert moved.get_task_status("t") == await tasks.get_task_status("t")
        with pytest.raises(Broken):
            await tasks.resume_task("t")
    script.acts["act"] = log("act")
    assert moved.resume_task("t") == {"logs": ["look", "act"]}
    assert (await tasks.get_task_status("t"))["status"] == "failed"
    other.close()


# -- processes


class Worker(Child):
    """Another process with the same graph on the same store."""

    def __init__(
        self, place: tuple[str, dict[str, Any]], ran: Path, verb: str, *, holds: str = "", **more: Any
    ) -> None:
        url, options = place
        lease, face = more.get("lease", 30.0), more.get("face", "blocking")
        arguments = [url, json.dumps(options), str(ran), verb, holds, str(lease), face]
        super().__init__("tests.langgraph.task_worker", *arguments)
        assert self.line() == "ready"


@pytest.fixture
def workers() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make_worker(*args: Any, **kwargs: Any) -> Worker:
        made.append(Worker(*args, **kwargs))
        return made[-1]

    yield make_worker
    for worker in made:
        worker.close()


many = pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"], indirect=True)


def ran(file: Path) -> list[str]:
    return file.read_text().split()


@many
def test_a_task_that_is_killed_in_a_node_goes_on_from_there(
    saver: FacedSaver, shared: Any, face: str, workers: Callable[..., Worker], tmp_path: Path
) -> None:
    file = tmp_path / "ran"
    tasks = TaskManager(steps(file), saver.whole)
    killed = workers(shared, file, "create", holds="second", face=face)
    killed.go_on()
    assert killed.line() == "in second"
    assert tasks.get_task_status("t")["status"] == "running"
    killed.close()
    status = tasks.get_task_status("t")
    assert (status["status"], status["stage"], status["next"]) == ("stopped", "first", ["second"])

    second = workers(shared, file, "resume", holds="second", face=face)
    second.go_on()
    assert second.line() == "in second"
    second.close()

    third = workers(shared, file, "resume", face=face)
    third.go_on()
    assert json.loads(third.line()) == {"logs": ["first", "second", "third"]}
    assert ran(file) == ["first", "second", "second", "second", "third"]
    assert tasks.resume_task("t") == {"logs": ["first", "second", "third"]}
    assert [entry["stage"] for entry in tasks.get_task_history("t")] == ["third", "second", "first", None, None]


@many
def test_a_task_that_is_killed_in_its_first_node_begins_again(
    saver: FacedSaver, shared: Any, face: str, workers: Callable[..., Worker], tmp_path: Path
) -> None:
    file = tmp_path / "ran"
    killed = workers(shared, file, "create", holds="first", face=face)
    killed.go_on()
    assert killed.line() == "in first"
    killed.close()
    tasks = TaskManager(steps(file), saver.whole)
    assert tasks.resume_task("t") == {"logs": ["first", "second", "third"]}
    assert ran(file) == ["first", "first", "second", "third"]


@many
def test_of_two_processes_that_resume_at_once_one_runs(
    saver: FacedSaver, shared: Any, face: str, workers: Callable[..., Worker], tmp_path: Path
) -> None:
    file = tmp_path / "ran"
    killed = workers(shared, file, "create", holds="second", face=face)
    killed.go_on()
    assert killed.line() == "in second"
    killed.close()
    both = [workers(shared, file, "resume", holds="second", face=face) for _ in range(2)]
    for worker in both:
        worker.go_on()
    lines = [worker.line() for worker in both]
    assert "in second" in lines
    runner, beaten = both if lines[0] == "in second" else both[::-1]
    refusal = next(line for line in lines if line != "in second")
    assert f"TaskRunning: task 't' is run by process {runner.pid} on " in json.loads(refusal)
    assert beaten is not runner
    runner.go_on()
    assert json.loads(runner.line()) == {"logs": ["first", "second", "third"]}
    assert ran(file) == ["first", "second", "second", "third"]


@many
async def test_an_owner_that_was_paused_and_replaced_writes_nothing(
    saver: FacedSaver, shared: Any, face: str, workers: Callable[..., Worker], tmp_path: Path
) -> None:
    file = tmp_path / "ran"
    paused = workers(shared, file, "create", holds="second", face=face)
    paused.go_on()
    assert paused.line() == "in second"

    def is_written() -> bool:
        raw = run_to_end(saver.whole.backend.store.blocking.raw("t"))
        return raw is not None and "branch:to:second" in [write[2] for _, write in raw.writes]

    servers.wait_until(is_written, "its writes")  # it must not be stopped in the middle of a transaction
    paused.send(signal.SIGSTOP)
    owner_of(saver.whole, until=0.0)
    tasks = Faced(TaskManager(steps(file), saver.whole), face)
    assert await tasks.resume_task("t") == {"logs": ["first", "second", "third"]}
    before = await contents(saver)
    paused.send(signal.SIGCONT)
    paused.go_on()
    assert "TaskLost: task 't' is not this process's any more" in json.loads(paused.line())
    assert await contents(saver) == before
    assert ran(file) == ["first", "second", "second", "third"]
    status = await tasks.get_task_status("t")
    assert (status["status"], status["error"]) == ("finished", None)


ENDING = """
import sys, threading
from pathlib import Path
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import TaskManager
from tests.langgraph import task_worker

inside = threading.Event()

def hold():
    inside.set()
    (threading.main_thread().join if sys.argv[3] == "goes on" else threading.Event().wait)()

task_worker.say = lambda line: hold()
graph = task_worker.steps(Path(sys.argv[2]), holds="second")
TaskManager(graph, HarnessCheckpointer.from_url(sys.argv[1])).start_task({"logs": []}, task_id="t")
[running] = [thread for thread in threading.enumerate() if thread.name == "everstep-task-t"]
inside.wait()
if sys.argv[3] == "goes on":
    threading.Thread(target=running.join).start()  # keeps the process until the task has seen its end
"""


@pytest.mark.parametrize(("kind", "face"), [("sqlite", "blocking")], indirect=True)
@pytest.mark.parametrize(("node", "ends"), [("holds", ["stopped"]), ("goes on", ["stopped", "finished"])])
def test_a_process_that_ends_leaves_what_it_started_to_be_resumed(
    saver: FacedSaver, shared: Any, tmp_path: Path, node: str, ends: list[str]
) -> None:
    """Nodes cannot be started any more when a process ends: that is no failure of theirs."""
    file = tmp_path / "ran"
    command = [sys.executable, "-c", ENDING, shared[0], str(file), node]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    tasks = TaskManager(steps(file), saver.whole)
    status = tasks.get_task_status("t")
    assert status["status"] in ends
    assert status["error"] is None
    assert tasks.resume_task("t") == {"logs": ["first", "second", "third"]}


def _damage_hits(monkeypatch: pytest.MonkeyPatch, thread_id: str) -> None:
    """Let the store find one thread damaged."""
    search = MemoryStore.search

    async def found(self: MemoryStore, asked: Any) -> Any:
        hits = await search(self, asked)
        damage = errors.CheckpointCorrupted("it was harmed", thread_id=thread_id)
        return [
            hit._replace(stored=None, damage=damage) if hit.position.thread_id == thread_id else hit for hit in hits
        ]

    monkeypatch.setattr(MemoryStore, "search", found)


def test_a_damaged_task_does_not_keep_the_others_from_being_listed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saver = HarnessCheckpointer.from_url("memory://")
    graph = StateGraph(Work).add_node("a", lambda _: {"current_stage": "done"}).set_entry_point("a")
    manager = TaskManager(graph, saver)
    for name in ("one", "two", "three"):
        manager.create_task({"current_stage": "new"}, task_id=name)
    _damage_hits(monkeypatch, "two")
    with caplog.at_level(logging.WARNING, "everstep"):
        assert [task["task_id"] for task in manager.list_tasks()] == ["three", "one"]
    assert "'two' is damaged" in caplog.text
