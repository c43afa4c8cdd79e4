"""Real graphs on the saver: their whole histories are those they have on LangGraph's own InMemorySaver."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Overwrite

from everstep.langgraph import HarnessCheckpointer
from everstep.runtime.blocking import run_to_end
from tests.conftest import Place
from tests.langgraph.graphs import GRAPHS, Chat, chat, delta_chat, human, in_memory, nested, shapes, tiny_delta
from tests.langgraph.same import assert_same

CONFIG: dict[str, Any] = {"configurable": {"thread_id": "t"}}


class Runner:
    """A graph, its calls awaited whichever way they are made."""

    def __init__(self, app: Any, way: str, durability: Any = "async") -> None:
        self.app, self._way, self._durability = app, way, durability

    async def turn(self, given: Any, config: Any = None) -> Any:
        config = config or CONFIG
        if self._way == "ainvoke":
            return await self.app.ainvoke(given, config, durability=self._durability)
        if self._way == "astream":
            return [part async for part in self.app.astream(given, config, durability=self._durability)][-1]
        if self._way == "stream":
            return list(self.app.stream(given, config, durability=self._durability))[-1]
        return self.app.invoke(given, config, durability=self._durability)

    async def history(self, config: Any = None) -> list[Any]:
        if self._way.startswith("a"):
            return [found async for found in self.app.aget_state_history(config or CONFIG)]
        return list(self.app.get_state_history(config or CONFIG))

    async def state(self, config: Any = None, **options: Any) -> Any:
        if self._way.startswith("a"):
            return await self.app.aget_state(config or CONFIG, **options)
        return self.app.get_state(config or CONFIG, **options)

    async def update(self, config: Any, values: Any, as_node: str | None = None) -> Any:
        if self._way.startswith("a"):
            return await self.app.aupdate_state(config, values, as_node)
        return self.app.update_state(config, values, as_node)

    def finish(self, story: Any) -> Any:
        return asyncio.run(story) if self._way.startswith("a") else run_to_end(story)


@pytest.fixture
def saver(place: Place) -> Any:
    with HarnessCheckpointer(backend=place.open()) as saver:
        yield saver


def assert_same_histories(runner: Runner, story: Callable[[Runner], Any], build: Callable[[Any], Any]) -> None:
    """What a story leaves behind on the runner's graph is what it leaves behind on an InMemorySaver."""
    reference = Runner(build(in_memory()), "invoke", runner._durability)
    expected = shapes(reference.finish(_told(story, reference)))
    found = shapes(runner.finish(_told(story, runner)))

    assert len(found) == len(expected)
    for n, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        assert_same(ours, theirs, f"{n}")


async def _told(story: Callable[[Runner], Any], runner: Runner) -> list[Any]:
    await story(runner)
    return await runner.history()


# -- turns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("name", GRAPHS)
def test_histories_are_those_of_the_in_memory_saver(saver: Any, name: str, way: str) -> None:
    build, turns = GRAPHS[name]

    async def story(runner: Runner) -> None:
        for given in turns:
            await runner.turn(copy.deepcopy(given))

    assert_same_histories(Runner(build(saver), way, durability_of(name)), story, build)


def durability_of(name: str) -> str:
    # The channel of a join is a set that LangGraph changes in place while the step before is being saved, so that with
    # "async" the history of these graphs depends on how fast the saver is, whichever it is.
    return "sync" if name in ("fan", "asking") else "async"


@pytest.mark.parametrize("way", ["stream", "astream"])
@pytest.mark.parametrize("durability", ["sync", "exit"])
@pytest.mark.parametrize("name", GRAPHS)
def test_histories_at_other_durabilities(tmp_path: Any, name: str, durability: str, way: str) -> None:
    build, turns = GRAPHS[name]

    async def story(runner: Runner) -> None:
        for given in turns:
            await runner.turn(copy.deepcopy(given))

    with HarnessCheckpointer.from_url(str(tmp_path / "a.db")) as saver:
        assert_same_histories(Runner(build(saver), way, durability), story, build)


@pytest.mark.parametrize("name", GRAPHS)
def test_another_process_reads_the_same(tmp_path: Any, name: str) -> None:
    """A saver that was just opened, between turns and for the history."""
    build, turns = GRAPHS[name]
    reference = Runner(build(in_memory()), "invoke", durability_of(name))
    for given in turns:
        run_to_end(reference.turn(copy.deepcopy(given)))
        with HarnessCheckpointer.from_url(str(tmp_path / "a.db")) as saver:
            run_to_end(Runner(build(saver), "invoke", durability_of(name)).turn(copy.deepcopy(given)))

    with HarnessCheckpointer.from_url(str(tmp_path / "a.db")) as saver:
        found = shapes(run_to_end(Runner(build(saver), "invoke").history()))
    assert_same(found, shapes(run_to_end(reference.history())))


# -- random stories ----------------------------------------------------------------------------------------------------


def random_story(seed: int) -> Callable[[Runner], Any]:
    """Turns, updates, forks, copies and turns from older checkpoints, the same for the same seed."""

    async def story(runner: Runner) -> None:
        chance = random.Random(seed)
        for n in range(7):
            kind = chance.choice(["turn", "turn", "update", "as node", "fork", "copy", "again", "overwrite"])
            history = await runner.history()
            old = chance.choice(history).config if history else CONFIG
            if kind == "turn" or not history:
                await runner.turn(human(n))
            elif kind == "update":
                await runner.update(CONFIG, {"messages": [AIMessage("said", id=f"u{n}")]}, "answer")
            elif kind == "as node":
                await runner.update(old, {"turns": 100 + n}, "note")
            elif kind == "fork":
                await runner.turn(human(n), old)
            elif kind == "copy":
                await runner.update(old, None, "__copy__")
            elif kind == "overwrite":
                await runner.update(CONFIG, {"messages": Overwrite([HumanMessage("new", id=f"o{n}")])}, "answer")
            else:
                await runner.turn(None, old)

    return story


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("build", [chat, delta_chat])
def test_random_conversations_have_the_same_histories(build: Any, seed: int) -> None:
    with HarnessCheckpointer() as saver:
        assert_same_histories(Runner(build(saver), ("invoke", "ainvoke")[seed % 2]), random_story(seed), build)


@pytest.mark.parametrize("build", [chat, delta_chat])
def test_a_random_conversation_on_every_store(saver: Any, build: Any) -> None:
    assert_same_histories(Runner(build(saver), "ainvoke"), random_story(11), build)


# -- interrupts, forks, subgraphs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_a_failed_node_goes_on_from_its_pending_writes(saver: Any, way: str) -> None:
    build, _ = GRAPHS["asking"]

    async def story(runner: Runner) -> None:
        await runner.turn({"items": ["start"]})
        waiting = await runner.state()
        assert [asked.value for asked in waiting.interrupts] == [{"ask": "first", "n": 1}]
        assert next(task.result for task in waiting.tasks if task.name == "beside") == {"items": ["beside"]}
        await runner.turn(Command(resume="one"))
        await runner.turn(Command(resume="two"))
        values = (await runner.state()).values
        assert values == {"items": ["start", ("asked", "one", "two"), "beside"], "done": True}
        # Back to the question, and another answer.
        asked = [found for found in await runner.history() if found.interrupts or found.next == ("ask", "beside")]
        await runner.turn(Command(resume="other"), asked[-1].config)

    assert_same_histories(Runner(build(saver), way, "sync"), story, build)


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
def test_time_travel_in_subgraphs(saver: Any, way: str) -> None:
    async def story(runner: Runner) -> None:
        await runner.turn({"items": ["a"]})
        waiting = await runner.state(subgraphs=True)
        (inner,) = [task.state for task in waiting.tasks if task.state is not None]
        assert inner.values["items"][-1] == "before"
        assert inner.config["configurable"]["checkpoint_ns"]
        await runner.update(inner.config, {"items": ["put in"]})
        history = await runner.history({"configurable": dict(inner.config["configurable"], checkpoint_id=None)})
        assert history[0].values["items"][-1] == "put in"
        await runner.turn(Command(resume="answer"))
        values = (await runner.state()).values
        assert values["items"][-2:] == ["put in", "answer"]
        before = next(found for found in await runner.history() if found.next == ("inner",))
        await runner.turn(None, before.config)
        await runner.turn(Command(resume="second"))
        assert (await runner.state()).values["items"][-1] == "second"

    assert_same_histories(Runner(nested(saver), way), story, nested)


def test_a_fork_shows_both_lines(saver: Any) -> None:
    app = chat(saver)
    for n in range(3):
        app.invoke(human(n), CONFIG)
    before = app.get_state(CONFIG)
    middle = next(found for found in app.get_state_history(CONFIG) if found.values.get("turns") == 1 and not found.next)

    forked = app.update_state(middle.config, {"messages": [HumanMessage("fork", id="f")]}, as_node="__start__")
    app.invoke(None, forked)

    assert [message.id for message in app.get_state(CONFIG).values["messages"]] == ["h0", "a1-h0", "f", "a2-f"]
    assert_same(app.get_state(before.config).values, before.values)


# -- delta channels ----------------------------------------------------------------------------------------------------


def talked(saver: Any, turns: int = 8, thread: str = "t") -> Any:
    app = delta_chat(saver)
    for n in range(turns):
        run = {"metadata": {"run_id": f"run {n}"}, "configurable": {"thread_id": thread}}
        app.invoke(human(n), run)
    return app


def states(app: Any, thread: str = "t") -> dict[str, Any]:
    history = app.get_state_history({"configurable": {"thread_id": thread}})
    return {found.config["configurable"]["checkpoint_id"]: found.values for found in history}


def go_on(app: Any, thread: str = "t") -> Any:
    return app.invoke(human(99), {"configurable": {"thread_id": thread}})


@pytest.fixture
def expected_after() -> Any:
    """What the conversation is after one more turn, without anything done to it."""
    reference = talked(in_memory())
    go_on(reference)
    return reference.get_state(CONFIG).values


def test_delta_threads_survive_prune(saver: Any, expected_after: Any) -> None:
    app = talked(saver)
    before = app.get_state(CONFIG)

    saver.prune(["t"])

    assert_same(states(app), {before.config["configurable"]["checkpoint_id"]: before.values})
    go_on(app)
    assert_same(app.get_state(CONFIG).values, expected_after)
    saver.prune(["t"])
    assert_same(app.get_state(CONFIG).values, expected_after)


def test_delta_threads_survive_prune_in_a_new_process(place: Place, expected_after: Any) -> None:
    with HarnessCheckpointer(backend=place.open()) as saver:
        talked(saver)
        saver.prune(["t"])
        reader = HarnessCheckpointer(backend=saver.backend)
        app = delta_chat(reader)
        go_on(app)
        assert_same(app.get_state(CONFIG).values, expected_after)


def test_delta_threads_are_copied_whole(saver: Any, expected_after: Any) -> None:
    app = talked(saver)
    before = states(app)

    saver.copy_thread("t", "copy")
    saver.delete_thread("t")

    assert_same(states(app, "copy"), before)
    go_on(app, "copy")
    assert_same(app.get_state({"configurable": {"thread_id": "copy"}}).values, expected_after)


def test_delta_threads_survive_the_deletion_of_older_runs(saver: Any, expected_after: Any) -> None:
    app = talked(saver)
    before = states(app)

    saver.delete_for_runs([f"run {n}" for n in (0, 1, 3, 4, 6)])

    after = states(app)
    assert 0 < len(after) < len(before)
    assert_same(after, {name: before[name] for name in after})
    go_on(app)
    assert_same(app.get_state(CONFIG).values, expected_after)


def test_delta_threads_with_one_saver_per_turn(tmp_path: Any, expected_after: Any) -> None:
    for n in [*range(8), 99]:
        with HarnessCheckpointer.from_url(str(tmp_path / "a.db")) as saver:
            delta_chat(saver).invoke(human(n), CONFIG)
            saver.prune(["t"])

    with HarnessCheckpointer.from_url(str(tmp_path / "a.db")) as saver:
        assert_same(delta_chat(saver).get_state(CONFIG).values, expected_after)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_tiny_delta_threads_with_one_saver_per_turn(tmp_path: Any, durability: Any) -> None:
    reference = tiny_delta(in_memory())
    for n in range(7):
        reference.invoke({"log": [f"in {n}"]}, CONFIG)
        with HarnessCheckpointer.from_url(str(tmp_path / "a.db")) as saver:
            tiny_delta(saver).invoke({"log": [f"in {n}"]}, CONFIG, durability=durability)
        with HarnessCheckpointer.from_url(str(tmp_path / "a.db")) as saver:
            saver.prune(["t"])
            assert_same(tiny_delta(saver).get_state(CONFIG).values, reference.get_state(CONFIG).values)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_delta_history_is_that_of_the_walk_through_ancestors(saver: Any, durability: Any) -> None:
    """What each checkpoint keeps of its channels' history is what LangGraph's own way finds."""
    app = delta_chat(saver)
    for n in range(5):
        app.invoke(human(n), CONFIG, durability=durability)
    walk = super(HarnessCheckpointer, saver).get_delta_channel_history

    for found in saver.list(CONFIG):
        kept = saver.get_delta_channel_history(config=found.config, channels=["messages", "log", "none"])
        expected = walk(config=found.config, channels=["messages", "log", "none"])
        if "messages" in found.checkpoint["channel_values"]:
            kept.pop("messages"), expected.pop("messages")  # nobody asks for what is there
        for name in kept:
            assert_same(_replayed(kept[name]), _replayed(expected[name]), name)

    nothing: dict[str, Any] = {"writes": []}
    unknown = {"configurable": {"thread_id": "t", "checkpoint_id": "unknown"}}
    assert saver.get_delta_channel_history(config=unknown, channels=["a", "b"]) == {"a": nothing, "b": nothing}
    assert saver.get_delta_channel_history(config=CONFIG, channels=[]) == {}


def _replayed(history: Any) -> Any:
    return [history.get("seed", "none"), [(channel, value) for _, channel, value in history["writes"]]]


def test_a_channel_may_become_a_delta_channel_and_go_back(saver: Any) -> None:
    plain = chat(saver)
    reference = chat(in_memory())
    for n in range(3):
        plain.invoke(human(n), CONFIG)
        reference.invoke(human(n), CONFIG)
    delta = delta_chat(saver)
    for n in range(3, 6):
        delta.invoke(human(n), CONFIG)
        reference.invoke(human(n), CONFIG)
    assert_same(delta.get_state(CONFIG).values["messages"], reference.get_state(CONFIG).values["messages"])
    saver.prune(["t"])
    assert_same(delta.get_state(CONFIG).values["messages"], reference.get_state(CONFIG).values["messages"])


def test_messages_may_be_changed_in_place_by_nodes(saver: Any) -> None:
    """A node that changes an old message and returns it: the next checkpoint has it changed, the ones before do not."""

    def edit(state: Any) -> dict[str, Any]:
        first = state["messages"][0]
        first.additional_kwargs["edits"] = [*first.additional_kwargs.get("edits", []), len(state["messages"])]
        first.content = f"edited {len(state['messages'])}"
        return {"messages": [first]}

    graph = StateGraph(Chat)
    graph.add_node("edit", edit)
    graph.add_edge(START, "edit")

    histories = []
    for checkpointer in (saver, in_memory()):
        app: Any = graph.compile(checkpointer)
        for n in range(4):
            app.invoke(human(n), CONFIG, durability="sync")
        # Values alone: the pending write of the first input is changed while LangGraph has it saved in the background.
        histories.append([found.values for found in app.get_state_history(CONFIG)])
    assert_same(histories[0], histories[1])
    first = saver.get(CONFIG)["channel_values"]["messages"][0]
    assert (first.content, first.additional_kwargs) == ("edited 4", {"edits": [1, 2, 3, 4]})
