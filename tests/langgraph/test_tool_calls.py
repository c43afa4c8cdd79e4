"""The tools of agents as steps: however often their process is killed, the card is charged once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

import everstep
from everstep import errors
from everstep.langgraph import DurableTools
from tests.conftest import Place
from tests.langgraph.agent_worker import Model
from tests.langgraph.tools import FacedSaver
from tests.tools import servers
from tests.tools.nursery import Child

in_memory = pytest.mark.parametrize("kind", ["memory"], indirect=True)
T: Any = {"configurable": {"thread_id": "t"}}


# -- the trial

WHOLE = [["human", "5"], ["ai", ""], ["tool", "charged 5"], ["ai", "so: charged 5"]]


class Trial:
    """An agent that is asked to charge a card, in processes that are killed."""

    def __init__(self, url: str, options: dict[str, Any], face: str, effect: str, folder: Path) -> None:
        self._start = url, json.dumps(options), face, effect
        self.durability = "sync"
        self._folder = folder
        self._threads = 0
        self.asked = 0
        self.passed: list[str] = []
        """The points that the process came to that was killed last."""

    def run(self, *points: int | str) -> tuple[list[str], int]:
        """Run processes that are killed at these points, and then others until the agent is through.

        Return where they were killed, and how often the card was charged.
        """
        self._threads += 1
        thread = f"t{self._threads}"
        charges = self._folder / f"{thread}.charges"
        charges.touch()
        ends: list[int | str] = list(points)
        killed: list[str] = []
        answer = ""
        for _ in range(10):
            end = ends.pop(0) if ends else 0
            said = self._process(thread, charges, answer, end)
            if not said.startswith("{"):
                killed.append(said)
                self.passed = Path(f"{charges}.points").read_text().split("\n")
                answer = ""  # whoever comes next finds out how it stands
                continue
            found = json.loads(said)
            times = len(charges.read_text().splitlines())
            if not found["asked"]:
                assert found["messages"] == WHOLE
                return killed, times
            assert times <= 1
            self.asked += 1
            answer = "charged 5" if times else "no"
        raise AssertionError(f"killed at {points} it does not come to its end: {killed}")

    def _process(self, thread: str, charges: Path, answer: str, end: int | str) -> str:
        child = Child(
            "tests.langgraph.agent_worker", *self._start, self.durability, thread, str(charges), answer, str(end)
        )
        try:
            said = child.line()
            assert said, "the process has failed"
            return said
        finally:
            child.close()


@pytest.fixture
def trial(place: Place, saver: FacedSaver, face: str, tmp_path: Path) -> Callable[[str], Trial]:
    """The trial on the store under test, with tools of a class of effect; of none: without the middleware."""
    del saver  # but it is there, and so is its store
    url, options = str(place.path), dict[str, Any]()
    if place.kind == "postgres":
        url = servers.postgres()
    elif place.kind == "redis":
        url, options = servers.redis(), {"key_prefix": place._prefix}
    return lambda effect: Trial(url, options, face, effect, tmp_path)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_killed_at_any_point_the_agent_charges_once(trial: Callable[[str], Trial]) -> None:
    agent = trial("once")
    seen: list[str] = []
    while True:
        killed, charged = agent.run(len(seen) + 1)
        assert charged == 1, killed
        if not killed:
            break
        seen += killed
    assert len(seen) > 20
    # Threads take turns in another order now and then, and a point may have come under another number.
    for point in sorted({"before the charge", "after the charge", "before commit", "after commit"}.difference(seen)):
        killed, charged = agent.run(point)
        assert (killed, charged) == ([point], 1)
    # Between the intent and the outcome nobody knows.
    for point in ("before the charge", "after the charge"):
        asked = agent.asked
        assert agent.run(point) == ([point], 1)
        assert agent.asked == asked + 1

    # And killed again on the way back from where it is not known: before it has asked, and when it is answered.
    for before in ([], [0]):
        again = 0
        while True:
            again += 1
            killed, charged = agent.run("after the charge", *before, again)
            assert charged == 1, killed
            if len(killed) == 1:
                break
        assert again > 5


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
def test_it_charges_once_though_checkpoints_are_stored_later(trial: Callable[[str], Trial]) -> None:
    """The agent asks for the charge anew if its asking was not stored: so the charge must come after that."""
    agent = trial("once")
    agent.durability = "async"
    point = 0
    while True:
        point += 1
        killed, charged = agent.run(point)
        assert charged == 1, killed
        if not killed:
            break
    assert point > 15


@pytest.mark.parametrize("kind", ["postgres", "redis"], indirect=True)
@pytest.mark.parametrize("face", ["async", "blocking"], indirect=True)
def test_killed_around_the_charge_it_charges_once_on_a_server(trial: Callable[[str], Trial]) -> None:
    agent = trial("once")
    for point in (3, 9, "before the charge", "after the charge"):
        killed, charged = agent.run(point)
        assert charged == 1, killed
        assert len(killed) == 1
    assert agent.asked == 2


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_without_the_middleware_it_charges_twice(trial: Callable[[str], Trial]) -> None:
    assert trial("").run("after the charge") == (["after the charge"], 2)


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_a_tool_that_may_be_repeated_is_repeated_only_where_nothing_was_recorded(trial: Callable[[str], Trial]) -> None:
    agent = trial("retry")
    assert agent.run("after the charge") == (["after the charge"], 2)
    found: list[bool] = []
    while True:
        killed, charged = agent.run(len(found) + 1)
        if not killed:
            break
        _, _, since = "\n".join(agent.passed).partition("after the charge")
        _, _, since = since.partition("before commit")
        found.append("after commit" in since)
        if found[-1]:
            assert charged == 1, agent.passed
    assert True in found
    assert agent.asked == 0


# -- one process


class Scripted(Model):
    """Says one thing after the other."""

    script: list[Any]

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.script.pop(0))])


def asks(name: str, *calls: tuple[str, dict[str, Any]]) -> AIMessage:
    """A message that asks for calls of a tool: ids and arguments."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": call_id} for call_id, args in calls])


class Killed(BaseException):
    pass


class Shop:
    """An agent with one tool, and what the tool did."""

    def __init__(self, saver: FacedSaver, face: str, *middleware: Any) -> None:
        self.sold: list[str] = []
        self.ends: list[Any] = []
        self.saver = saver
        self.face = face

        @tool
        def sell(item: str) -> str:
            """Sell an item."""
            self.sold.append(item)
            end = self.ends.pop(0) if self.ends else None
            if isinstance(end, BaseException):
                raise end
            return f"{item}: {interrupt(end)}" if end is not None else f"sold {item}"

        self.tool = sell
        self.model = Scripted(script=[])
        self.agent: Any = create_agent(self.model, [sell], middleware=list(middleware), checkpointer=saver.whole)

    async def run(self, given: Any, config: Any = T) -> Any:
        if isinstance(given, str):
            given = {"messages": [HumanMessage(given)]}
        if self.face == "async":
            return await self.agent.ainvoke(given, config, durability="sync")
        return self.agent.invoke(given, config, durability="sync")

    async def killed(self, given: Any, config: Any = T) -> None:
        with pytest.raises(Killed):
            await self.run(given, config)


def tool_messages(result: Any) -> list[Any]:
    return [message.content for message in result["messages"] if isinstance(message, ToolMessage)]


@in_memory
async def test_a_call_that_was_recorded_is_not_made_again(saver: FacedSaver, face: str) -> None:
    shop = Shop(saver, face, DurableTools())
    shop.model.script = [asks("sell", ("1", {"item": "cup"})), asks("sell", ("2", {"item": "pot"})), AIMessage("done")]
    shop.ends = [None, Killed()]
    await shop.killed("go")
    assert tool_messages(await shop.run(None)) == ["sold cup", "sold pot"]
    assert shop.sold == ["cup", "pot", "pot"]


@in_memory
async def test_a_person_tells_what_became_of_a_call(saver: FacedSaver, face: str) -> None:
    shop = Shop(saver, face, DurableTools({"sell": "once"}))
    shop.model.script = [asks("sell", ("1", {"item": "cup"})), AIMessage("done")]
    shop.ends = [Killed()]
    await shop.killed("go")
    asked = await shop.run(None)
    assert "Did sell happen?" in asked["__interrupt__"][0].value["question"]
    assert asked["__interrupt__"][0].value["kwargs"] == {"item": "cup"}
    result = await shop.run(Command(resume=everstep.happened("sold, says the shop")))
    assert tool_messages(result) == ["sold, says the shop"]
    assert shop.sold == ["cup"]


@in_memory
async def test_models_that_count_their_calls_anew_are_no_trouble(saver: FacedSaver, face: str) -> None:
    shop = Shop(saver, face, DurableTools({"sell": "once"}))
    for item in ("cup", "cup", "pot"):
        shop.model.script = [asks("sell", ("call_1", {"item": item})), AIMessage("done")]
        await shop.run("go")
    assert shop.sold == ["cup", "cup", "pot"]


@in_memory
async def test_a_tool_may_ask_before_it_acts(saver: FacedSaver, face: str) -> None:
    shop = Shop(saver, face, DurableTools(effect="once"))
    shop.model.script = [asks("sell", ("1", {"item": "cup"})), AIMessage("done")]
    shop.ends = ["really?", "really?"]
    assert (await shop.run("go"))["__interrupt__"][0].value == "really?"
    assert tool_messages(await shop.run(Command(resume="yes"))) == ["cup: yes"]


@in_memory
async def test_another_middleware_may_call_a_tool_again(saver: FacedSaver, face: str) -> None:
    retry = ToolRetryMiddleware(max_retries=2, initial_delay=0.0, jitter=False, on_failure="continue")
    shop = Shop(saver, face, retry, DurableTools())
    shop.model.script = [asks("sell", ("1", {"item": "cup"})), AIMessage("done")]
    shop.ends = [ValueError("busy"), None]
    assert tool_messages(await shop.run("go")) == ["sold cup"]
    assert shop.sold == ["cup", "cup"]

    once = Shop(saver, face, retry, DurableTools({"sell": "once"}))
    once.model.script = [asks("sell", ("1", {"item": "cup"})), AIMessage("done")]
    once.ends = [ValueError("busy"), None]
    await once.run("go", {"configurable": {"thread_id": "once"}})
    assert once.sold == ["cup"]


@in_memory
async def test_an_edited_call_is_a_conflict_and_the_same_one_is_not_made_again(saver: FacedSaver, face: str) -> None:
    shop = Shop(saver, face, DurableTools({"sell": "once"}))
    shop.model.script = [asks("sell", ("1", {"item": "cup"})), AIMessage("done"), AIMessage("again")]
    await shop.run("go")
    before = next(state for state in shop.agent.get_state_history(T) if "tools" in state.next)
    result = await shop.run(None, before.config)
    assert [message.content for message in result["messages"]][-2:] == ["sold cup", "again"]
    assert shop.sold == ["cup"]
    asked = before.values["messages"][-1]
    edited = asked.model_copy(update={"tool_calls": [{**asked.tool_calls[0], "args": {"item": "gold"}}]})
    if face == "async":
        there = await shop.agent.aupdate_state(before.config, {"messages": [edited]})
    else:
        there = shop.agent.update_state(before.config, {"messages": [edited]})
    with pytest.raises(errors.EffectConflict):
        await shop.run(None, there)
    assert shop.sold == ["cup"]


@in_memory
async def test_a_rewind_takes_calls_back(saver: FacedSaver, face: str) -> None:
    undone: list[Any] = []
    shop = Shop(saver, face, DurableTools({"sell": "once"}, undo={"sell": undone.append}))
    shop.model.script = [asks("sell", ("1", {"item": "cup"})), AIMessage("done")]
    await shop.run("go")
    before = next(state for state in shop.agent.get_state_history(T) if "model" in state.next)
    name = before.config["configurable"]["checkpoint_id"]
    saver.whole.engine.sync.rewind(name, thread_id="t", compensate=True)
    assert [message.content for message in undone] == []
    before = next(state for state in shop.agent.get_state_history(T) if "tools" in state.next)
    name = before.config["configurable"]["checkpoint_id"]
    saver.whole.engine.sync.rewind(name, thread_id="t", compensate=True)
    assert [message.content for message in undone] == ["sold cup"]


def test_what_is_no_class_of_effect_is_refused() -> None:
    with pytest.raises(errors.InvalidInput, match="twice"):
        DurableTools({"sell": "twice"})  # type: ignore[dict-item]
    with pytest.raises(errors.InvalidInput, match="on_unknown"):
        DurableTools(on_unknown={"sell": "guess", "buy": "ask"})
