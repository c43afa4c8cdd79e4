"""What type checkers know of people's code: mypy, which looks at this file with all others, says whether it is so.

`assert_type` does nothing when it runs; a line that must be an error says so, and mypy complains if it is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, assert_type

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

import everstep
from everstep.errors import InvalidInput
from everstep.factory import EngineOptions
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.saver import _OWN_OPTIONS, SaverOptions
from everstep.langgraph.tasks import TaskCheckpoint, TaskManager, TaskStatus, asafe_invoke, safe_invoke
from everstep.opening.options import KNOWN, PlacedOptions, StoreOptions

ENGINE = everstep.open("memory://")


@ENGINE.snapshot_on("tool_call")
def search(query: str, limit: int = 3) -> list[str]:
    return [query] * limit


@ENGINE.snapshot_on("tool_call")
async def ask(query: str) -> int:
    return len(query)


@ENGINE.snapshot_on("llm_call")
async def stream(prompt: str) -> AsyncIterator[str]:
    yield prompt


class Agent:
    @ENGINE.snapshot_on("tool_call")
    def look(self, place: str) -> str:
        return place

    @ENGINE.snapshot_on("tool_call")
    @staticmethod
    def count(things: list[str]) -> int:
        return len(things)

    @classmethod
    @ENGINE.snapshot_on("tool_call")
    def named(cls, name: str) -> str:
        return name


async def test_a_decorated_function_keeps_its_type_and_a_thread_is_named_by_on_thread() -> None:
    assert_type(search("a"), list[str])
    assert_type(await ask("a"), int)
    assert_type(Agent().look("a"), str)
    with pytest.raises(TypeError):
        search(5, colour="red")  # type: ignore[call-arg, arg-type]

    assert_type(everstep.on_thread(search, "one")("a", limit=2), list[str])
    asking: Callable[[str], Coroutine[Any, Any, int]] = everstep.on_thread(ask, "two")
    assert_type(await asking("abcd"), int)
    assert await everstep.on_thread(ask, "two")("abc") == 3
    assert_type(everstep.on_thread(Agent().look, "three", state={"seen": 1})("Oslo"), str)
    assert [word async for word in everstep.on_thread(stream, "four")("word")] == ["word"]
    assert everstep.on_thread(Agent.count, "five")(["a", "b"]) == 2
    assert everstep.on_thread(Agent.named, "six")("n") == "n"
    with pytest.raises(TypeError):
        everstep.on_thread(search, "one")(colour="red")  # type: ignore[call-arg]

    last = {name: await ENGINE.get_latest(name) for name in ("one", "two", "three", "four", "five", "six")}
    assert {name: one.tools_result["status"] for name, one in last.items() if one is not None} == {
        "one": "error", "two": "ok", "three": "ok", "four": "ok", "five": "ok", "six": "ok",
    }  # fmt: skip
    assert last["three"] is not None
    assert last["three"].state == {"seen": 1}


def test_on_thread_is_for_decorated_functions() -> None:
    for wrong in (print, 5, lambda **kwargs: kwargs):
        with pytest.raises(InvalidInput, match="snapshot_on"):
            everstep.on_thread(wrong, "t")  # type: ignore[arg-type]


def test_the_tree_is_a_dict_with_known_keys() -> None:
    engine = everstep.open("memory://").sync
    first = engine.append("t", [{"role": "user", "content": "a"}])
    second = engine.append("t", [{"role": "user", "content": "b"}])
    tree = engine.get_checkpoint_tree("t")

    assert_type(tree, everstep.CheckpointTree)
    assert_type(tree["nodes"][0]["step"], int)
    assert_type(tree["edges"][0]["from"], str)
    assert (tree["edges"][0]["from"], tree["edges"][0]["to"]) == (first, second)
    assert type(tree) is dict
    assert tree.keys() == everstep.CheckpointTree.__annotations__.keys()
    assert tree["nodes"][0].keys() == everstep.TreeNode.__annotations__.keys()
    assert tree["edges"][0].keys() == everstep.TreeEdge.__annotations__.keys()
    assert isinstance(everstep.draw(tree), str)
    with pytest.raises(KeyError):
        tree["colour"]  # type: ignore[misc]


async def test_what_graphs_return_is_what_tasks_and_retries_return() -> None:
    with HarnessCheckpointer.from_url("memory://", strict=False) as saver:
        builder = StateGraph(MessagesState).add_node("answer", lambda _: {"messages": [("ai", "b")]})
        builder.add_edge(START, "answer")
        graph = builder.compile(checkpointer=saver)
        given: MessagesState = {"messages": [("user", "a")]}  # type: ignore[list-item]  # the short form
        assert_type(safe_invoke(graph, given, {"configurable": {"thread_id": "a"}}), dict[str, Any] | Any)
        assert_type(await asafe_invoke(graph, given, {"configurable": {"thread_id": "b"}}), dict[str, Any] | Any)

        tasks = TaskManager(builder, saver)
        name = tasks.create_task(given)
        status = tasks.get_task_status(name)
        assert_type(status, TaskStatus)
        assert status["status"] == "finished"
        assert status.keys() == TaskStatus.__annotations__.keys()
        assert_type(tasks.get_task_history(name)[0], TaskCheckpoint)
        assert tasks.get_task_history(name)[0].keys() == TaskCheckpoint.__annotations__.keys()
        assert_type(tasks.resume_task(name), dict[str, Any] | Any)
        assert len(tasks.resume_task(name)["messages"]) == 2
        with pytest.raises(KeyError):
            status["colour"]  # type: ignore[typeddict-item]


class Typed:
    """A graph that says what it returns."""

    def invoke(self, given: int, config: object = None) -> str:
        raise NotImplementedError


def never_called(saver: HarnessCheckpointer, tasks: TaskManager) -> None:
    """Say more about types: without parameters a manager gives dicts, as most graphs do."""
    assert_type(safe_invoke(Typed(), 5, {}), str)
    assert_type(TaskManager(Typed(), saver).resume_task("t"), str)
    assert_type(tasks.rollback_task("t", "c"), dict[str, Any])
    # As with LangGraph's own savers, so that a strict program need not change.
    assert_type(saver.put({}, {}), RunnableConfig)
    safe_invoke(5, 5, {})  # type: ignore[arg-type]
    TaskManager("no graph", saver)  # type: ignore[arg-type]


def test_options_have_types_and_these_are_all() -> None:
    names = {name for known in KNOWN.values() for name in known.names}
    aliases = {alias for known in KNOWN.values() for alias, ours in known.aliases.items() if ours != known.place}
    places = {known.place for known in KNOWN.values() if known.place}
    named = {alias for known in KNOWN.values() for alias, ours in known.aliases.items() if ours == known.place}
    assert set(StoreOptions.__annotations__) == names | aliases
    assert set(PlacedOptions.__annotations__) - set(StoreOptions.__annotations__) == (places | named) - {"db_path"}
    assert set(SaverOptions.__annotations__) - set(StoreOptions.__annotations__) == set(_OWN_OPTIONS)
    assert set(EngineOptions.__annotations__) - set(PlacedOptions.__annotations__) == {"config"}
    with pytest.raises(InvalidInput):
        HarnessCheckpointer.from_url("memory://", srtict=True)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput):
        everstep.open("agent.db", synchronous="sometimes")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        everstep.create_checkpointer("sqlite", colour="red")  # type: ignore[call-arg]


def test_what_goes_on_side_by_side_has_the_type_of_its_functions() -> None:
    engine = everstep.open("memory://").sync

    def draw(day: int) -> int:
        return day

    @engine.durable
    def work(run: everstep.SyncRun) -> list[int]:
        found = run.gather(lambda: run.step(draw, 1), lambda: run.step(draw, 2))
        assert_type(found, list[int])
        return found

    assert work(thread_id="t") == [1, 2]
    engine.close()
