"""`send`: nothing that was answered is lost, and calls for one thread line up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, GraphOutput, interrupt

import everstep
from everstep import errors
from everstep.langgraph import HarnessCheckpointer, asend, runs, send
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.tasks import TaskManager
from everstep.repository import claims
from everstep.repository.claims import Claims, Found
from everstep.runtime.blocking import run_to_end
from everstep.runtime.queues import Queues, queues
from everstep.stores.protocol import Change, Query
from everstep.types import TASK_NAMESPACE
from tests.langgraph.tools import FacedSaver, task_claims
from tests.tools.between import Between
from tests.tools.nursery import Child

T: Any = {"configurable": {"thread_id": "t"}}


class Work(TypedDict, total=False):
    logs: Annotated[list[Any], operator.add]


class Broken(Exception):
    pass


class Killed(BaseException):
    """No failure of a node, but an end from outside."""


class Script:
    """A graph of nodes one after another that do what a test says, and a note of what ran."""

    def __init__(self, **acts: Callable[[Any], Any]) -> None:
        self.acts, self.ran = acts, list[str]()

    def graph(self, saver: FacedSaver | HarnessCheckpointer | bool, **options: Any) -> Any:
        graph: Any = StateGraph(Work)
        before = START
        for name in self.acts:
            graph.add_node(name, self._node(name))
            graph.add_edge(before, name)
            before = name
        return graph.compile(checkpointer=getattr(saver, "whole", saver), **options)

    def _node(self, name: str) -> Callable[[Any], Any]:
        def run(state: Any) -> Any:
            self.ran.append(name)
            return self.acts[name](state)

        return run


def log(line: Any) -> Callable[[Any], Any]:
    return lambda _: {"logs": [line]}


def ask(state: Any) -> Any:
    return {"logs": [interrupt(f"after {state['logs'][-1]}?")]}


def fail(_: Any) -> Any:
    raise Broken("no")


def logs(*lines: Any) -> dict[str, Any]:
    return {"logs": list(lines)}


@pytest.fixture
def post(face: str) -> Callable[..., Any]:
    """`send`, awaited whichever face is under test."""
    if face == "async":
        return asend

    async def call(*args: Any, **kwargs: Any) -> Any:
        return send(*args, **kwargs)

    return call


def records_of(saver: FacedSaver | HarnessCheckpointer) -> Claims:
    return task_claims(getattr(saver, "whole", saver).backend.blocking.repository)


def record(saver: FacedSaver | HarnessCheckpointer) -> Found:
    found = run_to_end(records_of(saver).find("t"))
    assert found is not None
    return found


def claim_as(saver: FacedSaver | HarnessCheckpointer, **owner: Any) -> None:
    """Claim the thread t as another run does: of a process that lives, if nothing else is said."""
    records = records_of(saver)
    claim = run_to_end(records.take("t", run_to_end(records.find("t")), 30.0, is_task=False))
    found = record(saver)
    changed = claim.task._replace(owner=claims.this_process()._replace(**owner))
    run_to_end(records.swap("t", changed, found.stored))


def kill(saver: FacedSaver | HarnessCheckpointer) -> None:
    """Leave the thread t as a process does that was killed while it ran it."""
    claim_as(saver, pid=2**22 + 1)  # no process has such a number


def stop_before(graph: Any, node: str, given: Any = None) -> Any:
    """Run the graph up to a node, and return where it stands: as if it had been killed there."""
    graph.invoke(given if given is not None else logs("in"), T, interrupt_before=[node])
    state = graph.get_state(T)
    assert state.next == (node,)
    return state


def write_results(saver: FacedSaver, state: Any, *writes: tuple[str, Any]) -> None:
    """Put the results of the node that is next, and no checkpoint: what a kill between the two leaves."""
    [task] = state.tasks
    saver.whole.put_writes(state.config, list(writes), task.id, "~__pregel_pull, act")


def lines(saver: FacedSaver | HarnessCheckpointer, graph: Any) -> list[Any]:
    found: list[Any] = graph.get_state(T).values["logs"]
    return found


# -- what is pending


async def test_it_does_what_invoke_does(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver)
    assert await post(graph, logs("one"), T) == logs("one", "look", "act")
    assert await post(graph, logs("two"), T) == logs("one", "look", "act", "two", "look", "act")
    assert graph.checkpointer is saver.whole
    query = Query(thread_id="t", namespace=TASK_NAMESPACE, hidden="also")
    assert run_to_end(saver.whole.backend.store.blocking.count(query)) == 1
    assert (record(saver).task.owner, record(saver).task.ended) == (None, claims.RETURNED)


@pytest.mark.parametrize("is_sent", [True, False])
async def test_what_looks_finished_and_is_not_is_finished_first(
    saver: FacedSaver, post: Callable[..., Any], is_sent: bool
) -> None:
    """The trap: results that are in no checkpoint yet are shown as values, and the next input drops them."""
    script = Script(act=log("act"))
    graph = script.graph(saver)
    write_results(saver, stop_before(graph, "act"), ("logs", ["act"]))
    if is_sent:
        kill(saver)
    state = graph.get_state(T)
    assert (state.next, state.values) == ((), logs("in", "act"))

    saver.whole.copy_thread("t", "naive")
    graph.invoke(logs("more"), {"configurable": {"thread_id": "naive"}})
    assert graph.get_state({"configurable": {"thread_id": "naive"}}).values == logs("in", "more", "act")

    assert await post(graph, logs("more"), T) == logs("in", "act", "more", "act")
    assert script.ran == ["act", "act"]


async def test_results_that_came_after_a_turn_had_stopped_are_finished_first(
    saver: FacedSaver, post: Callable[..., Any]
) -> None:
    """Whoever ran the node did not send, so the record still tells of a turn that has stopped by itself."""
    graph = Script(act=log("act")).graph(saver)
    await post(graph, logs("in"), T, interrupt_before=["act"])
    write_results(saver, graph.get_state(T), ("logs", ["act"]))

    assert await post(graph, logs("more"), T) == logs("in", "act", "more", "act")


async def test_a_turn_after_one_that_has_come_to_its_end_reads_the_state_once(
    saver: FacedSaver, post: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `invoke` does. Nor is an input looked for, which only tasks keep, nor when this process was started."""
    graph = Script(act=log("act")).graph(saver)
    await post(graph, logs("in"), T)
    asked: list[str] = []
    for kind, name in ((Threads, "get"), (Claims, "given"), (claims, "_started")):
        method = getattr(kind, name)

        def counting(*args: Any, name: str = name, method: Any = method, **options: Any) -> Any:
            asked.append(name)
            return method(*args, **options)

        monkeypatch.setattr(kind, name, counting)

    assert await post(graph, logs("more"), T) == logs("in", "act", "more", "act")

    assert asked == ["get"]


@pytest.mark.parametrize("is_sent", [True, False])
async def test_what_was_cut_off_goes_on_first(saver: FacedSaver, post: Callable[..., Any], is_sent: bool) -> None:
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver)
    stop_before(graph, "act")
    if is_sent:
        kill(saver)
    assert await post(graph, logs("more"), T) == logs("in", "look", "act", "more", "look", "act")
    assert script.ran == ["look", "act", "look", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_what_was_changed_by_hand_was_not_cut_off(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver)
    await post(graph, logs("in"), T)
    graph.update_state(T, logs("changed"), as_node="look")
    assert graph.get_state(T).next == ("act",)
    assert await post(graph, logs("more"), T) == logs("in", "look", "act", "changed", "more", "look", "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_to_go_on_is_not_to_go_on_twice(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver, interrupt_before=["act"])
    graph.invoke(logs("in"), T)
    kill(saver)
    assert await post(graph, None, T) == logs("in", "look", "act")
    assert await post(graph, None, T) == logs("in", "look", "act")
    assert script.ran == ["look", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_what_a_store_could_not_put_is_finished_later(
    saver: FacedSaver, post: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is told, but the node has not failed: what it wrote is not dropped."""
    script = Script(act=log("act"))
    graph = script.graph(saver)
    put, left = HarnessCheckpointer._put, [2]

    async def twice(self: Any, *args: Any) -> Any:
        if not left[0]:
            raise errors.StoreUnavailable("not now")
        left[0] -= 1
        return await put(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(HarnessCheckpointer, "_put", twice)
        with pytest.raises(errors.StoreUnavailable, match="not now"):
            await post(graph, logs("in"), T)
    assert graph.get_state(T).next == ()
    assert await post(graph, logs("more"), T) == logs("in", "act", "more", "act")
    assert script.ran == ["act", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("part", ["metadata", "configurable"])
async def test_the_id_of_a_run_is_not_given_to_the_turn_before(
    saver: FacedSaver, post: Callable[..., Any], part: str
) -> None:
    """LangGraph ignores an input whose run is that of the last checkpoint."""
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver)
    stop_before(graph, "act")
    config = {"configurable": {"thread_id": "t"}}
    config[part] = {**config.get(part, {}), "run_id": "r"}
    found = await post(graph, logs("more"), config)
    assert found == logs("in", "look", "act", "more", "look", "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_take_over_that_is_given_back_leaves_what_is_pending(saver: FacedSaver) -> None:
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver)
    send(graph, logs("zero"), T)
    stop_before(graph, "act")
    kill(saver)
    records = records_of(saver)
    claim = run_to_end(records.take("t", record(saver), 30.0, is_task=False))
    run_to_end(runs.give_back(claim))
    assert record(saver).task.ended == ""
    assert send(graph, logs("more"), T)["logs"][-6:] == ["in", "look", "act", "more", "look", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_graphs_inside_a_graph_go_on_too(saver: FacedSaver, post: Callable[..., Any]) -> None:
    inner = Script(look=log("look"), act=log("act"))
    outer = StateGraph(Work)
    inside: Any = inner.graph(None)  # type: ignore[arg-type]  # it gets that of the graph around it
    outer.add_node("inside", inside)
    outer.add_edge(START, "inside")
    graph: Any = outer.compile(checkpointer=saver.whole)
    inner.acts["act"] = _dying
    with pytest.raises(Killed):
        graph.invoke(logs("in"), T)
    inner.acts["act"] = log("act")
    kill(saver)
    inner.ran.clear()
    found = await post(graph, logs("more"), T)
    assert inner.ran == ["act", "look", "act"]
    assert found["logs"].count("in") >= 1
    assert found["logs"][-1] == "act"


def _dying(_: Any) -> Any:
    raise Killed


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_functions_may_be_sent_to(saver: FacedSaver, post: Callable[..., Any]) -> None:
    @entrypoint(checkpointer=saver.whole)
    def double(value: int) -> int:
        return value * 2

    assert await post(double, 4, T) == 8


# -- questions and breakpoints


@pytest.mark.parametrize("kind", ["memory", "sqlite"], indirect=True)
async def test_a_question_is_answered(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), ask=ask, act=log("act"))
    graph = script.graph(saver)
    asked = await post(graph, logs("in"), T)
    assert [found.value for found in asked["__interrupt__"]] == ["after look?"]
    assert await post(graph, Command(resume="yes"), T) == logs("in", "look", "yes", "act")
    assert script.ran == ["look", "ask", "ask", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_turn_that_is_finished_may_end_with_a_question(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), ask=ask, act=log("act"))
    graph = script.graph(saver)
    stop_before(graph, "ask")
    kill(saver)
    assert await post(graph, Command(resume="yes"), T) == logs("in", "look", "yes", "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_question_is_not_answered_by_finishing(saver: FacedSaver, post: Callable[..., Any]) -> None:
    """A process that was killed right after it had asked, or before it gave an answer."""
    script = Script(ask=ask, act=log("act"))
    graph = script.graph(saver)
    await post(graph, logs("in"), T)
    kill(saver)
    asked = await post(graph, None, T)
    assert [found.value for found in asked["__interrupt__"]] == ["after in?"]
    kill(saver)
    assert await post(graph, Command(resume="yes"), T) == logs("in", "yes", "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_an_answer_that_was_cut_off_is_asked_for_again(saver: FacedSaver, post: Callable[..., Any]) -> None:
    """It is taken with the results of its node, or not at all."""
    script = Script(ask=ask, act=log("act"))
    graph = script.graph(saver)
    await post(graph, logs("in"), T)
    script.acts["ask"] = lambda state: _dying(ask(state))
    with pytest.raises(Killed):
        await post(graph, Command(resume="yes"), T)
    kill(saver)
    script.acts["ask"] = ask
    asked = await post(graph, None, T)
    assert [found.value for found in asked["__interrupt__"]] == ["after in?"]
    assert await post(graph, Command(resume="yes"), T) == logs("in", "yes", "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_an_answer_by_name_is_for_its_own_question(saver: FacedSaver, post: Callable[..., Any]) -> None:
    """Whoever gives it again, because his process died, does not answer the next question with it."""
    script = Script(first=ask, act=_dying, second=ask)
    graph = script.graph(saver)
    [asked] = (await post(graph, logs("in"), T))["__interrupt__"]
    answer: Any = Command(resume={asked.id: "one"})
    with pytest.raises(Killed):
        await post(graph, answer, T)
    kill(saver)
    script.acts["act"] = log("act")
    found = await post(graph, answer, T)
    assert found["logs"] == ["in", "one", "act"]
    assert [question.value for question in found["__interrupt__"]] == ["after act?"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_an_answer_is_for_one_question_though_its_node_fails(saver: FacedSaver, post: Callable[..., Any]) -> None:
    broken = [True]

    def two(_: Any) -> Any:
        first = interrupt("first?")
        if broken[0]:
            raise Broken
        return {"logs": [first, interrupt("second?")]}

    graph = Script(two=two).graph(saver)
    await post(graph, logs("in"), T)
    with pytest.raises(Broken):
        await post(graph, Command(resume="one"), T)
    broken[0] = False
    asked = await post(graph, None, T)
    assert [found.value for found in asked["__interrupt__"]] == ["second?"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_new_input_drops_a_question_as_invoke_does(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(ask=ask, act=log("act"))
    graph = script.graph(saver)
    await post(graph, logs("in"), T)
    saver.whole.copy_thread("t", "other")
    expected = graph.invoke(logs("more"), {"configurable": {"thread_id": "other"}})
    script.ran.clear()
    asked = await post(graph, logs("more"), T)
    assert asked["logs"] == expected["logs"] == ["in", "more"]
    assert [found.value for found in asked["__interrupt__"]] == ["after more?"]
    assert script.ran == ["ask"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("where", [{"interrupt_before": ["act"]}, {"interrupt_after": ["look"]}])
@pytest.mark.parametrize("by", ["graph", "call"])
async def test_a_breakpoint_is_not_passed_by_finishing(
    saver: FacedSaver, post: Callable[..., Any], is_killed: bool, where: dict[str, Any], by: str
) -> None:
    script = Script(look=log("look"), act=log("act"))
    options = where if by == "call" else {}
    graph = script.graph(saver, **(where if by == "graph" else {}))
    assert await post(graph, logs("in"), T, **options) == logs("in", "look")
    if is_killed:
        kill(saver)
    assert await post(graph, logs("more"), T, **options) == logs("in", "look", "more", "look")
    assert script.ran == ["look", "look"]
    assert await post(graph, None, T, **options) == logs("in", "look", "more", "look", "act")
    assert await post(graph, logs("last"), T, **options) == logs("in", "look", "more", "look", "act", "last", "look")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_turn_that_is_finished_stops_at_its_breakpoint(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=log("act"), end=log("end"))
    stop_before(script.graph(saver), "act")
    kill(saver)
    graph = script.graph(saver, interrupt_before=["end"])
    assert await post(graph, logs("more"), T) == logs("in", "look", "act", "more", "look", "act")
    assert script.ran == ["look", "act", "look", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_breakpoint_inside_a_graph_is_not_passed(
    saver: FacedSaver, post: Callable[..., Any], is_killed: bool
) -> None:
    inner = Script(look=log("look"), act=log("act"))
    outer = StateGraph(Work)
    inside: Any = inner.graph(None, interrupt_before=["act"])  # type: ignore[arg-type]  # that of the graph around it
    outer.add_node("inside", inside)
    outer.add_edge(START, "inside")
    graph: Any = outer.compile(checkpointer=saver.whole)
    await post(graph, logs("in"), T)
    if is_killed:
        kill(saver)
    await post(graph, logs("more"), T)
    assert inner.ran == ["look", "look"]


# -- failures


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_failure_is_told_and_gone_past(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=fail)
    graph = script.graph(saver)
    with pytest.raises(Broken, match="no"):
        await post(graph, logs("in"), T)
    script.acts["act"] = log("act")
    assert await post(graph, logs("more"), T) == logs("in", "look", "more", "look", "act")
    assert script.ran == ["look", "act", "look", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_failed_turn_can_be_tried_again(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=fail)
    graph = script.graph(saver)
    with pytest.raises(Broken, match="no"):
        await post(graph, logs("in"), T)
    script.acts["act"] = log("act")
    assert await post(graph, None, T) == logs("in", "look", "act")
    assert script.ran == ["look", "act", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_pending_turn_that_fails_is_not_in_the_way_for_ever(
    saver: FacedSaver, post: Callable[..., Any]
) -> None:
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver)
    stop_before(graph, "act")
    kill(saver)
    script.acts["act"] = fail
    with pytest.raises(errors.PendingTurnFailed, match=r"thread 't' had an unfinished turn.*\(Broken\)") as caught:
        await post(graph, logs("more"), T)
    assert isinstance(caught.value.__cause__, Broken)
    assert graph.get_state(T).values == logs("in", "look")
    script.acts["act"] = log("act")
    assert await post(graph, logs("more"), T) == logs("in", "look", "more", "look", "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_results_that_cannot_be_put_together_are_not_in_the_way_for_ever(
    saver: FacedSaver, post: Callable[..., Any]
) -> None:
    class One(TypedDict, total=False):
        value: str

    both = [True]
    builder = StateGraph(One)
    builder.add_node("a", lambda _: {"value": "a"})
    builder.add_node("b", lambda _: {"value": "b"} if both[0] else {})
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    graph: Any = builder.compile(checkpointer=saver.whole)
    with pytest.raises(InvalidUpdateError):
        await post(graph, {"value": "in"}, T)
    both[0] = False
    assert await post(graph, {"value": "in"}, T) == {"value": "a"}


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_a_turn_that_is_cancelled_is_finished_by_the_next(saver: FacedSaver) -> None:
    inside = asyncio.Event()

    async def wait(_: Any) -> Any:
        inside.set()
        await asyncio.Event().wait()

    acts: list[Any] = [wait]

    async def act(state: Any) -> Any:
        return await acts[0](state)

    builder: Any = StateGraph(Work)
    builder.add_node("look", log("look")).add_node("act", act)
    graph = builder.add_edge(START, "look").add_edge("look", "act").compile(checkpointer=saver.whole)
    running = asyncio.create_task(asend(graph, logs("in"), T))
    await inside.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    async def done(_: Any) -> Any:
        return logs("act")

    acts[0] = done
    assert await asend(graph, logs("more"), T) == logs("in", "look", "act", "more", "look", "act")


# -- the same input again


async def test_the_same_request_is_taken_once(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver)
    for _ in range(2):
        assert await post(graph, logs("one"), T, request_id="1") == logs("one", "look", "act")
    expected = logs("one", "look", "act", "two", "look", "act")
    assert await post(graph, logs("two"), T, request_id="2") == expected
    assert await post(graph, logs("two"), T, request_id="2") == expected
    assert await post(graph, logs("one"), T, request_id="1") == logs("one", "look", "act")
    assert script.ran == ["look", "act", "look", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_request_that_was_cut_off_is_finished_and_not_taken_again(
    saver: FacedSaver, post: Callable[..., Any]
) -> None:
    script = Script(look=log("look"), act=_dying)
    graph = script.graph(saver)
    with pytest.raises(Killed):
        await post(graph, logs("one"), T, request_id="1")
    kill(saver)
    script.acts["act"] = log("act")
    assert await post(graph, logs("one"), T, request_id="1") == logs("one", "look", "act")
    kill(saver)  # before its input was taken
    assert await post(graph, logs("two"), T, request_id="2") == logs("one", "look", "act", "two", "look", "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_request_is_not_taken_for_the_turn_that_it_finished(
    saver: FacedSaver, post: Callable[..., Any]
) -> None:
    """Killed while it finished the turn before, it has still to be taken."""
    script = Script(look=log("look"), act=_dying, end=_dying)
    graph = script.graph(saver)
    with pytest.raises(Killed):
        await post(graph, logs("one"), T, request_id="1")
    script.acts["act"] = log("act")
    with pytest.raises(Killed):
        await post(graph, logs("two"), T, request_id="2")
    script.acts["end"] = log("end")
    expected = logs("one", "look", "act", "end", "two", "look", "act", "end")
    assert await post(graph, logs("two"), T, request_id="2") == expected


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_request_that_failed_is_tried_again(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=fail)
    graph = script.graph(saver)
    for _ in range(2):
        with pytest.raises(Broken):
            await post(graph, logs("one"), T, request_id="1")
    script.acts["act"] = log("act")
    assert await post(graph, logs("one"), T, request_id="1") == logs("one", "look", "act")
    assert script.ran == ["look", "act", "act", "act"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_request_that_asks_gives_its_question_again(
    saver: FacedSaver, post: Callable[..., Any], version: str
) -> None:
    script = Script(ask=ask)
    graph = script.graph(saver)
    first = await post(graph, logs("one"), T, request_id="1", version=version)
    assert await post(graph, logs("one"), T, request_id="1", version=version) == first
    assert script.ran == ["ask"]
    for _ in range(2):
        answered = await post(graph, Command(resume="yes"), T, request_id="2", version=version)
        assert (answered.value if isinstance(answered, GraphOutput) else answered) == logs("one", "yes")
    assert script.ran == ["ask", "ask"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_request_that_stopped_at_a_breakpoint_stays_there(saver: FacedSaver, post: Callable[..., Any]) -> None:
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver, interrupt_before=["act"])
    for _ in range(2):
        assert await post(graph, logs("one"), T, request_id="1") == logs("one", "look")
    assert script.ran == ["look"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_request_that_was_taken_back_is_taken_again(saver: FacedSaver, post: Callable[..., Any]) -> None:
    graph = Script(act=log("act")).graph(saver)
    await post(graph, logs("one"), T, request_id="1")
    start = graph.get_state(T).config["configurable"]["checkpoint_id"]
    await post(graph, logs("two"), T, request_id="2")
    saver.whole.engine.sync.rewind(start, thread_id="t")
    assert await post(graph, logs("two"), T, request_id="2") == logs("one", "act", "two", "act")


async def test_a_turn_that_was_taken_back_runs_its_subgraph_with_a_memory(
    saver: FacedSaver, post: Callable[..., Any]
) -> None:
    """LangGraph takes a subgraph for finished that has a turn before to remember."""
    inner = Script(note=log("noted"))
    builder: Any = StateGraph(Work)
    builder.add_node("act", log("act"))
    builder.add_node("inner", inner.graph(True))
    builder.add_edge(START, "act")
    builder.add_edge("act", "inner")
    graph = builder.compile(checkpointer=saver.whole)
    for turn in ("one", "two"):
        await post(graph, logs(turn), T)
    point = next(state for state in graph.get_state_history(T) if state.next == ("inner",))
    for again in (None, logs("three")):
        saver.whole.engine.sync.rewind(point.config["configurable"]["checkpoint_id"], thread_id="t", namespace="")
        inner.ran.clear()
        await post(graph, again, T)
        assert inner.ran == ["note"] * (1 if again is None else 2)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_request_is_known_whatever_is_kept_secret(
    make_saver: Callable[..., Any], post: Callable[..., Any]
) -> None:
    graph = Script(act=log("act")).graph(make_saver(is_secret=lambda _: True))
    for _ in range(2):
        assert await post(graph, logs("one"), T, request_id="1") == logs("one", "act")


# -- in line


class Held:
    """A node that says that it runs and holds until it may go on."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, _: Any) -> Any:
        self.inside.set()
        assert self.go.wait(60)
        return logs("held")


@contextlib.contextmanager
def holding(graph: Any, held: Held) -> Iterator[None]:
    """Send on another thread, which holds in a node meanwhile."""
    thread = threading.Thread(target=send, args=(graph, logs("first"), T))
    thread.start()
    try:
        assert held.inside.wait(60)
        yield
    finally:
        held.go.set()
        thread.join(60)


def _slowly(state: Any) -> Any:
    time.sleep(0.002)  # so that those who do not line up get in one another's way
    return {"logs": [f"answer to {state['logs'][-1]}"]}


def _in_pairs(found: list[Any]) -> set[str]:
    """Return what was asked, if every question has its answer right behind it."""
    asked, answers = found[::2], found[1::2]
    assert answers == [f"answer to {question}" for question in asked]
    return set(asked)


@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_threads_line_up(saver: FacedSaver) -> None:
    graph = Script(answer=_slowly).graph(saver)
    names = [f"{number}" for number in range(8)]
    threads = [threading.Thread(target=send, args=(graph, logs(name), T)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert _in_pairs(lines(saver, graph)) == set(names)
    assert len(lines(saver, graph)) == 16


@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_tasks_of_an_event_loop_line_up(saver: FacedSaver) -> None:
    graph = Script(answer=_slowly).graph(saver)
    names = [f"{number}" for number in range(8)]
    await asyncio.gather(*(asend(graph, logs(name), T) for name in names))
    found = (await graph.aget_state(T)).values["logs"]
    assert _in_pairs(found) == set(names)
    assert found[::2] == names


@pytest.mark.parametrize("kind", ["memory", "sqlite"], indirect=True)
@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_threads_and_event_loops_stand_in_one_line(saver: FacedSaver) -> None:
    graph = Script(answer=_slowly).graph(saver)
    names = [f"{number}" for number in range(8)]
    calls = [asyncio.to_thread(send, graph, logs(name), T) for name in names[:4]]
    await asyncio.gather(*calls, *(asend(graph, logs(name), T) for name in names[4:]))
    assert _in_pairs((await graph.aget_state(T)).values["logs"]) == set(names)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_who_came_first_is_first(saver: FacedSaver) -> None:
    held = Held()
    script = Script(act=held)
    graph = script.graph(saver)
    threads = []
    with holding(graph, held):
        script.acts["act"] = lambda _: {}
        for number in range(6):
            threads.append(threading.Thread(target=send, args=(graph, logs(number), T)))
            threads[-1].start()
            while len(_waiting(saver)) < number + 2:
                time.sleep(0.001)
    for thread in threads:
        thread.join(60)
    assert lines(saver, graph) == ["first", "held", 0, 1, 2, 3, 4, 5]
    assert not _waiting(saver)


def _waiting(saver: FacedSaver) -> Any:
    return queues._queues.get((id(saver.whole.backend.store), "t"), ())


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("who", ["this process", "another"])
@pytest.mark.parametrize("seconds", [0, 0.05])
async def test_who_waits_too_long_is_told_so(
    saver: FacedSaver, post: Callable[..., Any], face: str, who: str, seconds: float
) -> None:
    held = Held()
    script = Script(act=held)
    # Another process has a queue of its own: here, another object for the same store.
    store = saver.whole.backend.store
    graph = script.graph(HarnessCheckpointer(backend=Between(store)) if who == "another" else saver)
    with holding(script.graph(saver), held):
        with pytest.raises(errors.ThreadBusy, match=rf"'t' was run by others for all of {seconds}.* seconds") as caught:
            await post(graph, logs("second"), T, timeout_seconds=seconds)
        assert (caught.value.thread_id, caught.value.timeout_seconds) == ("t", seconds)
        script.acts["act"] = log("act")
    assert await post(graph, logs("third"), T, timeout_seconds=None) == logs("first", "held", "third", "act")
    assert not _waiting(saver)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_who_waits_goes_on_when_a_claim_has_run_out(saver: FacedSaver, post: Callable[..., Any]) -> None:
    """A process of another machine of which nothing is known but that it does not renew its claim."""
    script = Script(look=log("look"), act=log("act"))
    graph = script.graph(saver)
    stop_before(graph, "act")
    claim_as(saver, machine="another", pid=2**22 + 1)
    with pytest.raises(errors.ThreadBusy):
        await post(graph, logs("more"), T, timeout_seconds=0.05)
    found = record(saver)
    soon = found.task._replace(until=time.time() + 0.1)
    run_to_end(records_of(saver).swap("t", soon, found.stored))
    assert await post(graph, logs("more"), T) == logs("in", "look", "act", "more", "look", "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("face", ["async"], indirect=True)
@pytest.mark.parametrize("where", ["queue", "claim"])
async def test_who_is_cancelled_while_waiting_is_not_in_the_way(saver: FacedSaver, where: str) -> None:
    held = Held()
    script = Script(act=held)
    store = saver.whole.backend.store
    graph = script.graph(HarnessCheckpointer(backend=Between(store)) if where == "claim" else saver)
    with holding(script.graph(saver), held):
        waiting = [asyncio.create_task(asend(graph, logs(number), T)) for number in range(3)]
        while where == "queue" and len(_waiting(saver)) < 4:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        script.acts["act"] = log("act")
        held.go.set()
        assert await waiting[2] == logs("first", "held", 2, "act")


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("face", ["async"], indirect=True)
@pytest.mark.parametrize("when", ["claiming", "claimed"])
async def test_who_is_cancelled_while_claiming_owns_nothing(
    saver: FacedSaver, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    graph = Script(act=log("act")).graph(saver)
    swap, inside, go_on = Claims.swap, asyncio.Event(), asyncio.Event()

    async def held(self: Claims, *arguments: Any) -> Any:
        monkeypatch.setattr(Claims, "swap", swap)
        found = await swap(self, *arguments) if when == "claimed" else None
        inside.set()
        await go_on.wait()
        return found if found is not None else await swap(self, *arguments)

    monkeypatch.setattr(Claims, "swap", held)
    running = asyncio.create_task(asend(graph, logs("one"), T))
    await inside.wait()
    running.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asend(graph, logs("two"), T, timeout_seconds=5) == logs("two", "act")


def test_a_place_goes_on_to_the_next() -> None:
    line = Queues()
    first, second, third = line.join("a"), line.join("a"), line.join("a")
    assert line.join("b").done()
    assert [place.done() for place in (first, second, third)] == [True, False, False]
    line.leave("a", second)
    assert not third.done()
    fourth = line.join("a")
    third.cancel()
    line.leave("a", first)
    assert not fourth.done()
    line.leave("a", third)
    assert fourth.done()
    line.leave("a", fourth)
    line.leave("a", fourth)
    assert line.join("a").done()


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_forked_child_stands_in_no_line(saver: FacedSaver) -> None:
    """A child inherits the queue but not the threads in it."""
    place = queues.join((id(saver.whole.backend.store), "t"))
    try:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                send(Script(act=log("act")).graph(saver), logs("child"), T, timeout_seconds=20)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        queues.leave((id(saver.whole.backend.store), "t"), place)


# -- with others on the same thread


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_tasks_and_turns_keep_out_of_one_another_s_way(saver: FacedSaver) -> None:
    held = Held()
    script = Script(act=held)
    graph = script.graph(saver)
    tasks = TaskManager(graph, saver.whole)
    with holding(graph, held):
        with pytest.raises(errors.TaskRunning):
            tasks.resume_task("t")
        assert tasks.list_tasks() == []
    script.acts["act"] = held_again = Held()
    running = threading.Thread(target=tasks.create_task, args=(logs("in"),), kwargs={"task_id": "task"})
    running.start()
    assert held_again.inside.wait(60)
    with pytest.raises(errors.ThreadBusy):
        send(graph, logs("more"), {"configurable": {"thread_id": "task"}}, timeout_seconds=0)
    held_again.go.set()
    running.join(60)
    assert [task["task_id"] for task in tasks.list_tasks()] == ["task"]
    script.acts["act"] = log("act")
    send(graph, logs("more"), {"configurable": {"thread_id": "task"}})
    assert [task["task_id"] for task in tasks.list_tasks()] == ["task"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_thread_that_is_deleted_meanwhile_does_not_come_back(saver: FacedSaver) -> None:
    held = Held()
    graph = Script(act=held).graph(saver)
    lost: list[BaseException] = []

    def run() -> None:
        try:
            send(graph, logs("in"), T)
        except errors.ThreadLost as error:
            lost.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert held.inside.wait(60)
    saver.whole.delete_thread("t")
    held.go.set()
    thread.join(60)
    assert "thread 't' was taken over or deleted" in str(lost[0])
    assert saver.whole.get_tuple(T) is None


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_who_finds_the_claim_taken_at_the_last_moment_waits(saver: FacedSaver) -> None:
    graph = Script(act=log("act")).graph(saver)
    between = Between(saver.whole.backend.store)
    late = Script(act=log("late")).graph(HarnessCheckpointer(backend=between))

    def is_record(change: Change, *_: Any, **__: Any) -> bool:
        return change.namespace == TASK_NAMESPACE

    between.before("commit", lambda: send(graph, logs("early"), T), is_record)
    assert send(late, logs("more"), T) == logs("early", "act", "more", "late")
    assert between.is_over


# -- arguments


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_options_are_those_of_invoke(saver: FacedSaver, post: Callable[..., Any], face: str) -> None:
    class Context(TypedDict):
        name: str

    def act(state: Any, runtime: Runtime[Any]) -> Any:
        return logs(runtime.context["name"])

    builder: Any = StateGraph(Work, context_schema=Context)
    graph = builder.add_node("act", act).add_edge(START, "act").compile(checkpointer=saver.whole)
    assert await post(graph, logs("in"), T, context={"name": "Ada"}) == logs("in", "Ada")
    updates = await post(graph, logs("in"), T, context={"name": "Bob"}, stream_mode="updates")
    assert updates == [{"act": logs("Bob")}]
    whole = await post(graph, logs("in"), T, context={"name": "Cyd"}, version="v2")
    assert whole.value["logs"][-1] == "Cyd"
    assert await post(graph, logs("in"), T, context={"name": "Dan"}, output_keys=[]) is None


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize(("options", "durability"), [({}, "sync"), ({"durability": "exit"}, "exit")])
async def test_a_finished_node_is_kept_before_the_next_runs(
    saver: FacedSaver, post: Callable[..., Any], options: dict[str, Any], durability: str
) -> None:
    seen: list[Any] = []
    graph = Script(look=log("look"), act=lambda _: seen.append(saver.whole.get_tuple(T))).graph(saver)
    await post(graph, logs("in"), T, **options)
    if durability == "exit":
        assert seen == [None]
    else:
        assert seen[0].checkpoint["channel_values"]["logs"] == ["in", "look"]


def _uncompiled() -> Any:
    builder: Any = StateGraph(Work)
    return builder.add_node("act", log("act")).add_edge(START, "act")


@pytest.mark.parametrize(
    ("graph", "config", "options", "text"),
    [
        (_uncompiled(), T, {}, r"not compiled; pass graph.compile"),
        ("graph", T, {}, "a compiled graph of LangGraph, not str"),
        (_uncompiled().compile(), T, {}, "has no checkpointer; compile it with a HarnessCheckpointer"),
        (_uncompiled().compile(checkpointer=True), T, {}, "has no checkpointer"),
        (_uncompiled().compile(checkpointer=InMemorySaver()), T, {}, "has a InMemorySaver; import_langgraph"),
        (None, {}, {}, "configurable"),
        (None, {"configurable": {}}, {}, "the config names no thread"),
        (None, {"configurable": {"thread_id": "t", "checkpoint_id": "c"}}, {}, "leave checkpoint_id out"),
        (None, {"configurable": {"thread_id": "t", "checkpoint_ns": "a:b"}}, {}, "inside a node"),
        (None, T, {"timeout_seconds": -1}, "timeout_seconds is a number, 0 or more, not -1"),
        (None, T, {"timeout_seconds": "1"}, "timeout_seconds is a number, 0 or more, not '1'"),
        (None, T, {"lease_seconds": 0}, "lease_seconds is a number above 0, not 0"),
        (None, T, {"request_id": ""}, "request_id is a name for the input, not ''"),
        (None, T, {"request_id": "a\x00"}, "request_id is a name"),
        (None, T, {"request_id": 1}, "request_id is a string"),
    ],
)  # fmt: skip
def test_arguments_are_checked(graph: Any, config: Any, options: dict[str, Any], text: str) -> None:
    graph = graph if graph is not None else _uncompiled().compile(checkpointer=HarnessCheckpointer())
    with pytest.raises(errors.InvalidInput, match=text):
        send(graph, logs("in"), config, **options)
    with pytest.raises(errors.InvalidInput, match=text):
        asyncio.run(asend(graph, logs("in"), config, **options))


def test_going_on_has_no_name() -> None:
    graph = _uncompiled().compile(checkpointer=HarnessCheckpointer())
    with pytest.raises(errors.InvalidInput, match="request_id is the name of an input, and there is none"):
        send(graph, None, T, request_id="1")


def test_a_thread_of_the_engine_is_left_alone() -> None:
    saver = HarnessCheckpointer()
    engine = everstep.CheckpointEngine(saver.backend).sync
    engine.snapshot("t", [{"role": "user", "content": "hello"}], {}, {})
    with pytest.raises(errors.InvalidInput):
        send(_uncompiled().compile(checkpointer=saver), logs("in"), T)
    assert run_to_end(records_of(saver).find("t")) is None


# -- processes


class Worker(Child):
    """Another process that sends to the same thread, and holds in its node until it gets a line."""

    def __init__(self, place: tuple[str, dict[str, Any]], *arguments: str) -> None:
        url, options = place
        super().__init__("tests.langgraph.send_worker", url, json.dumps(options), *arguments)


@pytest.fixture
def workers() -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make_worker(*args: Any) -> Worker:
        made.append(Worker(*args))
        return made[-1]

    yield make_worker
    for worker in made:
        worker.close()


many = pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"], indirect=True)


def holds(worker: Worker) -> None:
    assert worker.line() == "ready"
    worker.go_on()
    assert worker.line() == "in act"


@many
async def test_a_turn_that_was_killed_is_finished_by_another_process(
    saver: FacedSaver, shared: Any, face: str, workers: Callable[..., Worker], post: Callable[..., Any]
) -> None:
    killed = workers(shared, face, "one")
    holds(killed)
    killed.close()
    graph = Script(look=log("look"), act=log("act")).graph(saver)
    assert await post(graph, logs("two"), T) == logs("one", "look", "act", "two", "look", "act")


@many
async def test_who_was_paused_and_replaced_writes_nothing(
    saver: FacedSaver, shared: Any, face: str, workers: Callable[..., Worker], post: Callable[..., Any]
) -> None:
    paused = workers(shared, face, "one")
    holds(paused)
    graph = Script(look=log("look"), act=log("act")).graph(saver)
    while not any(channel == "branch:to:act" for channel in _written(saver)):
        time.sleep(0.01)  # it must not be stopped in the middle of a transaction
    os.kill(paused.pid, signal.SIGSTOP)
    found = record(saver)
    run_to_end(records_of(saver).swap("t", found.task._replace(until=0.0), found.stored))
    expected = logs("one", "look", "act", "two", "look", "act")
    assert await post(graph, logs("two"), T) == expected
    before = _contents(saver)
    os.kill(paused.pid, signal.SIGCONT)
    paused.go_on()
    assert "ThreadLost: thread 't' was taken over" in json.loads(paused.line())
    assert _contents(saver) == before
    assert graph.get_state(T).values == expected


def _contents(saver: FacedSaver) -> Any:
    raw = run_to_end(saver.whole.backend.store.blocking.raw("t"))
    assert raw is not None
    return [found.config for found in saver.whole.list(T)], [(key, write[:3]) for key, write in raw.writes]


def _written(saver: FacedSaver) -> list[str]:
    return [write[2] for _, write in _contents(saver)[1]]


@many
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_processes_line_up(saver: FacedSaver, shared: Any, workers: Callable[..., Worker]) -> None:
    """Two of them, with eight calls at once in each: threads in one, an event loop in the other."""
    both = [workers(shared, "blocking", "a", "8"), workers(shared, "async", "b", "8")]
    for worker in both:
        assert worker.line() == "ready"
    for worker in both:
        worker.go_on()
    for worker in both:
        assert json.loads(worker.line()) == 8
    found = lines(saver, Script(answer=_slowly).graph(saver))
    assert len(found) == 32
    assert _in_pairs(found) == {f"{name}{number}" for name in "ab" for number in range(8)}


@pytest.mark.long
@many
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_nothing_is_lost_however_often_processes_are_killed(shared: Any) -> None:
    """See `tests.send_trial`, which can be run for longer."""
    command = [
        sys.executable,
        "-m",
        "tests.langgraph.send_trial",
        shared[0],
        json.dumps(shared[1]),
        "10",
        "6",
        "send",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["kills_at_work"] > 0
    assert (outcome["lost"], outcome["doubled"], outcome["disordered"], outcome["errors"]) == ([], [], [], [])
    assert outcome["turns"] == 60
