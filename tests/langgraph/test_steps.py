"""Steps inside nodes: what was recorded is not called again when the node runs again."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypedDict, assert_type

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, RetryPolicy, Send, interrupt

import everstep
from everstep import errors
from everstep.langgraph import HarnessCheckpointer, astep, recording, step
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Change, Store
from tests.langgraph.tools import FacedSaver

T: Any = {"configurable": {"thread_id": "t"}}
Step = Callable[..., Coroutine[Any, Any, Any]]
Act = Callable[[Any, Step], Coroutine[Any, Any, Any]]

in_memory = pytest.mark.parametrize("kind", ["memory"], indirect=True)


class Work(TypedDict, total=False):
    logs: Annotated[list[Any], operator.add]


class Declined(Exception):
    pass


class Killed(BaseException):
    """What a test raises in the place of a kill."""


class World:
    """What steps do, counted."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.killed_at: Any = None
        self.declines: list[Any] = []
        self.keys: list[str] = []

    def do(self, name: Any) -> str:
        self.calls.append(name)
        self.keys.append(everstep.step_key())
        if name in self.declines:
            self.declines.remove(name)
            raise Declined(name)
        self.check(name)
        return f"did {name}"

    def check(self, name: Any) -> None:
        """End here if that is what the test wants."""
        if name == self.killed_at:
            self.killed_at = None
            raise Killed(name)


@pytest.fixture
def world() -> World:
    return World()


class Graphs:
    """Graphs of nodes one after another, written once for both faces."""

    def __init__(self, saver: FacedSaver, face: str) -> None:
        self.saver, self.is_async = saver, face == "async"

    def make(self, *acts: Act, **options: Any) -> Any:
        graph: Any = StateGraph(Work)
        before = START
        for act in acts:
            name = act.__name__
            graph.add_node(name, self._node(act), **options)
            graph.add_edge(before, name)
            before = name
        return graph.compile(checkpointer=self.saver.whole)

    def _node(self, act: Act) -> Any:
        if self.is_async:

            async def node(state: Any) -> Any:
                return await act(state, astep)

            return node

        async def stepped(*args: Any, **kwargs: Any) -> Any:
            return step(*args, **kwargs)

        return lambda state: run_to_end(act(state, stepped))

    async def run(self, graph: Any, given: Any, config: Any = T, **options: Any) -> Any:
        options = {"durability": "sync", **options}
        if self.is_async:
            return await graph.ainvoke(given, config, **options)
        return graph.invoke(given, config, **options)

    async def killed(self, graph: Any, given: Any, config: Any = T, **options: Any) -> None:
        with pytest.raises(Killed):
            await self.run(graph, given, config, **options)


@pytest.fixture
def graphs(saver: FacedSaver, face: str) -> Graphs:
    return Graphs(saver, face)


def start() -> dict[str, Any]:
    return {"logs": ["hello"]}


# -- what is recorded


async def test_a_recorded_step_is_not_called_again(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        first = await step(world.do, "look")
        second = await step(world.do, "look")
        world.check("between")
        return {"logs": [first, second, await step(world.do, "say")]}

    graph = graphs.make(act)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    assert (await graphs.run(graph, None))["logs"] == ["hello", "did look", "did look", "did say"]
    assert world.calls == ["look", "look", "say"]
    again = await graphs.run(graph, start())  # a new turn is a new task
    assert again["logs"][4:] == ["hello", "did look", "did look", "did say"]
    assert world.calls == ["look", "look", "say"] * 2


async def test_a_step_is_known_by_its_name_and_not_by_its_position(graphs: Graphs, world: World) -> None:
    is_changed = False

    def other(name: str) -> str:
        return world.do(name)

    async def act(_: Any, step: Step) -> Any:
        added = [await step(other, "new")] if is_changed else []
        found = await step(world.do, "look")
        world.check("between")
        return {"logs": [*added, found]}

    graph = graphs.make(act)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    is_changed = True
    assert (await graphs.run(graph, None))["logs"] == ["hello", "did new", "did look"]
    assert world.calls == ["look", "new"]


@in_memory
async def test_a_question_between_steps_does_not_repeat_them(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        first = await step(world.do, "look")
        answer = interrupt("go on?")
        return {"logs": [first, await step(world.do, answer)]}

    graph = graphs.make(act)
    await graphs.run(graph, start())
    assert (await graphs.run(graph, Command(resume="buy")))["logs"] == ["hello", "did look", "did buy"]
    assert world.calls == ["look", "buy"]


@in_memory
async def test_what_a_finally_block_asks_for_is_asked_for_after_the_question(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        await step(world.do, "open")
        try:
            return {"logs": [await step(world.do, interrupt("go on?"))]}
        finally:
            await step(world.do, "close", key="close")

    graph = graphs.make(act)
    await graphs.run(graph, start())
    assert world.calls == ["open"]
    assert (await graphs.run(graph, Command(resume="use")))["logs"] == ["hello", "did use"]
    assert world.calls == ["open", "use", "close"]


async def test_a_step_inside_a_step_does_not_take_the_key_of_another(graphs: Graphs, world: World) -> None:
    inner = step

    def outer() -> str:
        world.do("outer")
        return inner(world.do, "inner")

    async def act(_: Any, step: Step) -> Any:
        first = await step(outer)
        second = await step(world.do, "second")
        world.check("between")
        return {"logs": [first, second]}

    graph = graphs.make(act)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    assert (await graphs.run(graph, None))["logs"] == ["hello", "did inner", "did second"]
    assert world.calls == ["outer", "inner", "second"]


async def test_a_step_inside_a_step_is_not_called_again(graphs: Graphs, world: World) -> None:
    inner = step

    def outer() -> str:
        found = inner(world.do, "inner")
        world.check("between")
        return found

    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(outer)]}

    graph = graphs.make(act)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    assert (await graphs.run(graph, None))["logs"] == ["hello", "did inner"]
    assert world.calls == ["inner"]


@in_memory
async def test_results_come_back_as_they_were(graphs: Graphs, world: World) -> None:
    made: list[Any] = []

    def model() -> Any:
        return {"messages": [AIMessage("hi", id="a")], "pair": (1, b"x")}

    async def act(_: Any, step: Step) -> Any:
        found = await step(model)
        made.append({**found, "messages": list(found["messages"])})
        found["messages"].clear()  # what the node does with it is its own affair
        world.check("between")
        return {}

    graph = graphs.make(act, retry_policy=RetryPolicy(retry_on=Declined, initial_interval=0.0, jitter=False))
    world.killed_at = "between"
    await graphs.killed(graph, start())
    await graphs.run(graph, None)
    assert made[0] == made[1] == {"messages": [AIMessage("hi", id="a")], "pair": (1, b"x")}


@in_memory
async def test_other_arguments_are_not_answered_with_the_recorded_result(graphs: Graphs, world: World) -> None:
    given = ["oslo", "rome", "rome"]

    async def act(_: Any, step: Step) -> Any:
        found = await step(world.do, given.pop(0))
        world.check("between")
        return {"logs": [found]}

    graph = graphs.make(act)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    with pytest.raises(errors.ReplayMismatch, match="oslo"):
        await graphs.run(graph, None)
    assert world.calls == ["oslo"]


@in_memory
async def test_a_pure_step_with_other_arguments_is_called(graphs: Graphs, world: World) -> None:
    given = ["oslo", "rome"]

    async def act(_: Any, step: Step) -> Any:
        found = await step(world.do, given.pop(0), effect="none")
        world.check("between")
        return {"logs": [found]}

    graph = graphs.make(act)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    assert (await graphs.run(graph, None))["logs"] == ["hello", "did rome"]


@in_memory
@pytest.mark.parametrize("face", ["async"], indirect=True)
async def test_steps_side_by_side_have_keys_of_their_own(graphs: Graphs, world: World) -> None:
    async def one(step: Step, name: str) -> str:
        return str(await step(world.do, name, key=name))

    async def act(_: Any, step: Step) -> Any:
        both = await asyncio.gather(step(world.do, "x"), step(world.do, "y"), one(step, "a"), one(step, "b"))
        world.check("between")
        return {"logs": both}

    graph = graphs.make(act)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    expected = ["hello", "did x", "did y", "did a", "did b"]
    assert (await graphs.run(graph, None))["logs"] == expected
    assert sorted(world.calls) == ["a", "b", "x", "y"]


@in_memory
async def test_a_subgraph_keeps_its_steps(graphs: Graphs, world: World) -> None:
    async def inner(_: Any, step: Step) -> Any:
        first = await step(world.do, "inner")
        world.check("between")
        return {"logs": [first, await step(world.do, "pay", effect="once")]}

    below: Any = StateGraph(Work)
    below.add_node("inner", graphs._node(inner))
    below.add_edge(START, "inner")
    above: Any = StateGraph(Work)
    above.add_node("below", below.compile())
    above.add_edge(START, "below")
    graph = above.compile(checkpointer=graphs.saver.whole)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    assert (await graphs.run(graph, None))["logs"][-2:] == ["did inner", "did pay"]
    assert world.calls == ["inner", "pay"]


# -- failures


async def test_a_failure_that_the_node_caught_is_raised_again(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        try:
            await step(world.do, "card")
        except Declined as declined:
            found = f"declined {declined}"
        answer = interrupt("go on?")
        world.check("between")
        return {"logs": [found, answer]}

    graph = graphs.make(act)
    world.declines = ["card"]
    await graphs.run(graph, start())
    world.killed_at = "between"
    await graphs.killed(graph, Command(resume="yes"))
    assert (await graphs.run(graph, None))["logs"] == ["hello", "declined card", "yes"]
    assert world.calls == ["card"]


async def test_a_failure_that_ended_the_node_is_tried_again(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        first = await step(world.do, "look")
        try:
            return {"logs": [first, await step(world.do, "card")]}
        except Declined as declined:
            raise ValueError("the node failed") from declined

    graph = graphs.make(act)
    world.declines = ["card"]
    with pytest.raises(ValueError, match="the node failed"):
        await graphs.run(graph, start())
    assert (await graphs.run(graph, None))["logs"] == ["hello", "did look", "did card"]
    assert world.calls == ["look", "card", "card"]


@in_memory
async def test_a_retry_policy_repeats_what_failed_and_nothing_else(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "look"), await step(world.do, "card")]}

    policy = RetryPolicy(retry_on=Declined, initial_interval=0.0, jitter=False)
    graph = graphs.make(act, retry_policy=policy)
    world.declines = ["card"]
    for durability in ("sync", "exit"):
        world.calls.clear()
        config = {"configurable": {"thread_id": durability}}
        world.declines = ["card"]
        assert (await graphs.run(graph, start(), config, durability=durability))["logs"][1:] == ["did look", "did card"]
        assert world.calls == ["look", "card", "card"]


@in_memory
async def test_a_step_is_tried_again_by_itself(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "card", retries=2, backoff=0, retry_on=Declined)]}

    world.declines = ["card", "card"]
    assert (await graphs.run(graphs.make(act), start()))["logs"] == ["hello", "did card"]
    assert world.calls == ["card"] * 3
    assert len(set(world.keys)) == 1


# -- effects


async def test_an_effect_is_performed_once(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        found = await step(world.do, "pay", effect="once")
        world.check("between")
        return {"logs": [found]}

    graph = graphs.make(act)
    world.killed_at = "between"
    await graphs.killed(graph, start())
    assert (await graphs.run(graph, None))["logs"] == ["hello", "did pay"]
    assert world.calls == ["pay"]
    await graphs.run(graph, start())
    assert world.calls == ["pay", "pay"]  # in the next turn it is another one
    assert len(set(world.keys)) == 2


async def test_the_graph_asks_whether_an_effect_happened(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        before = interrupt("really?")
        found = await step(world.do, "pay", effect="once")
        return {"logs": [before, found, interrupt("content?")]}

    graph = graphs.make(act)
    await graphs.run(graph, start())
    world.killed_at = "pay"
    await graphs.killed(graph, Command(resume="yes"))
    asked = await graphs.run(graph, None)
    assert "Did do happen?" in asked["__interrupt__"][0].value["question"]
    asked = await graphs.run(graph, Command(resume=everstep.happened("receipt")))
    assert asked["__interrupt__"][0].value == "content?"
    # The last answer is the node's own, though the step asks nothing any more.
    assert (await graphs.run(graph, Command(resume="very")))["logs"] == ["hello", "yes", "receipt", "very"]
    assert world.calls == ["pay"]


async def test_an_answer_is_for_one_try_only(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "pay", effect="once")]}

    graph = graphs.make(act)
    world.killed_at = "pay"
    await graphs.killed(graph, start())
    await graphs.run(graph, None)
    world.killed_at = "pay"
    await graphs.killed(graph, Command(resume=everstep.did_not_happen()))
    asked = await graphs.run(graph, None)
    assert len(asked["__interrupt__"]) == 1
    assert world.calls == ["pay", "pay"]
    assert (await graphs.run(graph, Command(resume=everstep.happened("second"))))["logs"] == ["hello", "second"]
    assert world.calls == ["pay", "pay"]


@in_memory
async def test_an_answer_that_is_none_can_be_given_anew(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "pay", effect="once")]}

    graph = graphs.make(act)
    world.killed_at = "pay"
    await graphs.killed(graph, start())
    await graphs.run(graph, None)
    assert "everstep.happened" in (await graphs.run(graph, Command(resume="yes")))["__interrupt__"][0].value["question"]
    assert (await graphs.run(graph, Command(resume=everstep.happened(1))))["logs"] == ["hello", 1]


@in_memory
async def test_a_function_finds_out_or_the_step_fails(graphs: Graphs, world: World) -> None:
    decide: list[Any] = ["fail", lambda unknown: everstep.happened(f"found {unknown.args[0]}")]

    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "pay", effect="once", on_unknown=decide[0])]}

    graph = graphs.make(act)
    world.killed_at = "pay"
    await graphs.killed(graph, start())
    with pytest.raises(errors.EffectUnknown):
        await graphs.run(graph, None)
    decide.pop(0)
    assert (await graphs.run(graph, None))["logs"] == ["hello", "found pay"]
    assert world.calls == ["pay"]


@in_memory
async def test_that_an_effect_stays_unknown_is_caught_in_the_same_way_when_the_node_runs_again(
    graphs: Graphs, world: World
) -> None:
    goes_on = threading.Event()

    def pay() -> None:
        world.calls.append("pay")
        goes_on.wait()

    async def act(_: Any, step: Step) -> Any:
        paid = "paid"
        try:
            await step(pay, effect="once", timeout=0.05)
        except errors.EffectUnknown:
            paid = "unknown"
        return {"logs": [paid, interrupt("Go on?")]}

    graph = graphs.make(act)
    asked = await graphs.run(graph, start())
    assert [each.value for each in asked["__interrupt__"]] == ["Go on?"]
    # The answer is to that question, and not to whether the effect happened.
    assert (await graphs.run(graph, Command(resume="yes")))["logs"] == ["hello", "unknown", "yes"]
    assert world.calls == ["pay"]
    goes_on.set()


@in_memory
async def test_an_effect_that_failed_and_was_caught_fails_again(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        try:
            await step(world.do, "pay", effect="once")
        except Declined as declined:
            return {"logs": [f"declined {declined}", interrupt("other card?")]}
        return {}

    graph = graphs.make(act)
    world.declines = ["pay"]
    await graphs.run(graph, start())
    assert (await graphs.run(graph, Command(resume="no")))["logs"] == ["hello", "declined pay", "no"]
    assert world.calls == ["pay"]


@in_memory
async def test_an_effect_that_ended_its_node_is_asked_for(graphs: Graphs, world: World) -> None:
    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "pay", effect="once")]}

    graph = graphs.make(act)
    world.declines = ["pay"]
    with pytest.raises(Declined):
        await graphs.run(graph, start())
    assert "__interrupt__" in await graphs.run(graph, None)
    assert (await graphs.run(graph, Command(resume=everstep.did_not_happen())))["logs"] == ["hello", "did pay"]


@in_memory
async def test_a_function_that_asks_before_it_acts_is_called_again(graphs: Graphs, world: World) -> None:
    def pay() -> str:
        return world.do(interrupt("pay?"))

    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(pay, effect=effect)]}

    for effect in ("once", "retry"):
        graph = graphs.make(act)
        config = {"configurable": {"thread_id": effect}}
        asked = await graphs.run(graph, start(), config)
        assert asked["__interrupt__"][0].value == "pay?"
        assert (await graphs.run(graph, Command(resume="card"), config))["logs"] == ["hello", "did card"]
    assert world.calls == ["card", "card"]


@in_memory
async def test_an_effect_waits_for_its_checkpoint(graphs: Graphs, world: World) -> None:
    """Otherwise the graph would go on from an earlier one after a crash, and come to another effect."""

    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "pay", effect="once")]}

    graph = graphs.make(act)
    await graphs.run(graph, start(), durability="async")
    assert world.calls == ["pay"]
    with pytest.raises(errors.InvalidInput, match="durability"):
        await graphs.run(graph, start(), {"configurable": {"thread_id": "exit"}}, durability="exit")
    assert world.calls == ["pay"]


class LateStore:
    """A store in which the second checkpoint is stored only when somebody has looked for it in vain."""

    def __init__(self, store: Store, world: World, looked: threading.Event, puts: list[Any]) -> None:
        self._store, self._world, self._looked, self._puts = store, world, looked, puts

    @property
    def blocking(self) -> LateStore:
        return LateStore(self._store.blocking, self._world, self._looked, self._puts)

    async def commit(self, change: Change) -> Any:
        self._puts.append(change)
        if len(self._puts) == 2:
            self._looked.wait(5)
            self._world.calls.append("checkpoint")
        return await self._store.commit(change)

    async def read(self, *args: Any, **options: Any) -> Any:
        found = await self._store.read(*args, **options)
        if found is None and len(args) == 3 and not options:
            self._looked.set()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@in_memory
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
async def test_an_effect_comes_after_its_checkpoint(graphs: Graphs, world: World) -> None:
    store: Any = LateStore(MemoryStore(), world, threading.Event(), [])
    graphs.saver = FacedSaver(HarnessCheckpointer(backend=store), "blocking")

    async def act(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "pay", effect="once", key="order")]}

    await graphs.run(graphs.make(act), start(), durability="async")
    assert world.calls == ["checkpoint", "pay"]


@in_memory
async def test_a_graph_inside_without_checkpoints_performs_no_effects(
    graphs: Graphs, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def inner(_: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, "pay", effect="once")]}

    monkeypatch.setattr(recording, "_STORED_SECONDS", 0.05)
    below: Any = StateGraph(Work)
    below.add_node("inner", graphs._node(inner))
    below.add_edge(START, "inner")
    above: Any = StateGraph(Work)
    above.add_node("below", below.compile(checkpointer=False))
    above.add_edge(START, "below")
    with pytest.raises(errors.InvalidInput, match="graphs inside it"):
        await graphs.run(above.compile(checkpointer=graphs.saver.whole), start(), durability="async")
    assert world.calls == []


@in_memory
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
async def test_tasks_that_a_function_calls_have_steps_too(graphs: Graphs, world: World) -> None:
    @task
    def pay(name: str) -> Any:
        done = step(world.do, name, effect="once"), step(world.do, f"{name} noted")
        world.check(f"after {name}")
        return done

    @entrypoint(checkpointer=graphs.saver.whole)
    def trip(city: str) -> Any:
        found = step(world.do, city)
        return [found, *pay("rail").result(), *pay("hotel").result()]

    world.killed_at = "after hotel"
    with pytest.raises(Killed):
        trip.invoke("Oslo", T, durability="sync")
    expected = ["did Oslo", "did rail", "did rail noted", "did hotel", "did hotel noted"]
    assert trip.invoke(None, T, durability="sync") == expected
    assert [f"did {call}" for call in world.calls] == expected


@in_memory
async def test_tasks_that_are_sent_at_once_perform_one_effect_each(graphs: Graphs, world: World) -> None:
    async def pay(state: Any, step: Step) -> Any:
        return {"logs": [await step(world.do, state["n"], effect="once")]}

    graph: Any = StateGraph(Work)
    graph.add_node("pay", graphs._node(pay))
    graph.add_conditional_edges(START, lambda _: [Send("pay", {"n": 1}), Send("pay", {"n": 2})])
    made = graph.compile(checkpointer=graphs.saver.whole)
    assert (await graphs.run(made, start()))["logs"] == ["hello", "did 1", "did 2"]


# -- rewinds, branches, time travel


class Paying:
    """Two nodes: one that decides how much, and one that pays it."""

    def __init__(self, graphs: Graphs, world: World, **options: Any) -> None:
        self.amount = 5

        async def plan(_: Any, step: Step) -> Any:
            return {"logs": [await step(world.do, f"plan {self.amount}")]}

        async def pay(_: Any, step: Step) -> Any:
            return {"logs": [await step(world.do, f"pay {self.amount}", effect="once", **options)]}

        self.graph = graphs.make(plan, pay)


async def _history(graphs: Graphs, graph: Any, config: Any = T) -> list[Any]:
    if graphs.is_async:
        return [state async for state in graph.aget_state_history(config)]
    return list(graph.get_state_history(config))


async def _checkpoint(graphs: Graphs, graph: Any, node: str) -> Any:
    """Return the config of the checkpoint before a node."""
    return next(state.config for state in await _history(graphs, graph) if state.next == (node,))


async def _branch(graphs: Graphs, config: Any, **options: Any) -> str:
    engine = graphs.saver.whole.engine
    name = config["configurable"]["checkpoint_id"]
    if graphs.is_async:
        return str(await engine.branch(name, "b", thread_id="t", **options))
    return str(engine.sync.branch(name, "b", thread_id="t", **options))


@pytest.mark.parametrize("options", [{}, {"key": "order 7"}])
@pytest.mark.parametrize("way", ["rewind", "branch", "travel", "update"])
async def test_going_back_does_not_undo_the_world(
    graphs: Graphs, world: World, way: str, options: dict[str, Any]
) -> None:
    paying = Paying(graphs, world, **options)
    graph = paying.graph
    await graphs.run(graph, start())
    assert world.calls == ["plan 5", "pay 5"]
    before = await _checkpoint(graphs, graph, "plan")
    there = await _elsewhere(graphs, graph, way, before)
    world.calls.clear()
    assert (await graphs.run(graph, None, there))["logs"][-1] == "did pay 5"
    planned = ["plan 5"] if way != "branch" else []  # a branch takes along what the node has done already
    assert world.calls == planned  # what may be repeated is; the effect is not

    paying.amount = 7
    there = await _elsewhere(graphs, graph, way, before)
    with pytest.raises(errors.EffectConflict):
        await graphs.run(graph, None, there)
    assert [call for call in world.calls if call.startswith("pay")] == []


async def _elsewhere(graphs: Graphs, graph: Any, way: str, before: Any) -> Any:
    """Go back to a checkpoint and return the config to go on with."""
    if way == "branch":
        return {"configurable": {"thread_id": await _branch(graphs, before)}}
    if way == "travel":
        return before
    if way == "update":
        if graphs.is_async:
            return await graph.aupdate_state(before, {"logs": ["edited"]}, as_node=START)
        return graph.update_state(before, {"logs": ["edited"]}, as_node=START)
    await _rewind(graphs, before)
    return T


async def _rewind(graphs: Graphs, config: Any, **options: Any) -> Any:
    engine = graphs.saver.whole.engine
    name = config["configurable"]["checkpoint_id"]
    if graphs.is_async:
        return await engine.rewind(name, thread_id="t", **options)
    return engine.sync.rewind(name, thread_id="t", **options)


@in_memory
async def test_a_branch_may_be_allowed_to_perform_effects_anew(graphs: Graphs, world: World) -> None:
    paying = Paying(graphs, world)
    await graphs.run(paying.graph, start())
    before = await _checkpoint(graphs, paying.graph, "plan")
    branch = await _branch(graphs, before, effects="allow")
    paying.amount = 9
    config = {"configurable": {"thread_id": branch}}
    assert (await graphs.run(paying.graph, None, config))["logs"][-1] == "did pay 9"
    assert world.calls[-1] == "pay 9"
    # And of that one the same is true.
    [state] = [state for state in await _history(graphs, paying.graph, config) if state.next == ("plan",)]
    engine = graphs.saver.whole.engine.sync
    inner = engine.branch(state.config["configurable"]["checkpoint_id"], "c", thread_id=branch)
    paying.amount = 11
    with pytest.raises(errors.EffectConflict):
        await graphs.run(paying.graph, None, {"configurable": {"thread_id": inner}})


async def test_a_rewind_takes_effects_back(graphs: Graphs, world: World) -> None:
    def refund(receipt: str) -> None:
        world.calls.append(f"refund of {receipt}")

    paying = Paying(graphs, world, undo=refund)
    await graphs.run(paying.graph, start())
    between = await _checkpoint(graphs, paying.graph, "pay")
    await graphs.run(paying.graph, start())
    assert world.calls == ["plan 5", "pay 5"] * 2
    world.calls.clear()
    done = await _rewind(graphs, between, compensate=True)
    assert len(done.compensated) == 2
    assert world.calls == ["refund of did pay 5"] * 2
    world.calls.clear()
    paying.amount = 6
    assert (await graphs.run(paying.graph, None))["logs"][-1] == "did pay 6"
    assert world.calls == ["pay 6"]
    done = await _rewind(graphs, await _checkpoint(graphs, paying.graph, "pay"), compensate=True)
    assert world.calls == ["pay 6", "refund of did pay 6"]


@in_memory
async def test_a_rewind_takes_back_what_it_leaves_behind_and_nothing_else(graphs: Graphs, world: World) -> None:
    paying = Paying(graphs, world, undo=world.calls.append)
    await graphs.run(paying.graph, start())
    end = (await _history(graphs, paying.graph))[0]
    await graphs.run(paying.graph, start())
    world.calls.clear()
    await _rewind(graphs, end.config, compensate=True)
    assert world.calls == ["did pay 5"]


@in_memory
async def test_what_is_performed_once_more_has_another_idempotency_key(graphs: Graphs, world: World) -> None:
    paying = Paying(graphs, world, undo=str)
    await graphs.run(paying.graph, start())
    before = await _checkpoint(graphs, paying.graph, "plan")
    branch = await _branch(graphs, before, effects="allow")
    await graphs.run(paying.graph, None, {"configurable": {"thread_id": branch}})
    await _rewind(graphs, await _checkpoint(graphs, paying.graph, "pay"), compensate=True)
    await graphs.run(paying.graph, None)
    keys = [key for call, key in zip(world.calls, world.keys, strict=True) if call == "pay 5"]
    assert len(set(keys)) == len(keys) == 3


# -- types, and what is refused


@in_memory
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
async def test_a_step_has_the_type_of_its_function(graphs: Graphs) -> None:
    async def count(name: str) -> int:
        return len(name)

    def node(_: Any) -> Any:
        found = step(str.upper, "x", key="up"), step(count, "four")
        assert_type(found, tuple[str, int])
        return {"logs": list(found)}

    async def anode(_: Any) -> Any:
        found = await astep(str.upper, "x", key="up"), await astep(count, "four")
        assert_type(found, tuple[str, int])
        return {"logs": list(found)}

    for one in (node, anode):
        graph: Any = StateGraph(Work)
        made = graph.add_node("node", one).add_edge(START, "node").compile(checkpointer=graphs.saver.whole)
        config: Any = {"configurable": {"thread_id": one.__name__}}
        result = made.invoke({}, config) if one is node else asyncio.run(made.ainvoke({}, config))
        assert result["logs"] == ["X", 4]


@in_memory
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
async def test_what_is_no_place_for_a_step_is_refused(graphs: Graphs) -> None:
    with pytest.raises(errors.InvalidInput, match="inside a node"):
        step(str.upper, "x")

    def node(_: Any) -> Any:
        return {"logs": [step(str.upper, "x")]}

    graph: Any = StateGraph(Work)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    with pytest.raises(errors.InvalidInput, match="no checkpointer"):
        graph.compile().invoke(start())
    with pytest.raises(errors.InvalidInput, match="InMemorySaver"):
        graph.compile(checkpointer=InMemorySaver()).invoke(start(), T)
    assert isinstance(graphs.saver.whole, HarnessCheckpointer)
