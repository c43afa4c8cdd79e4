"""Calling a graph again after a failure."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from everstep import errors
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import asafe_invoke, safe_invoke
from tests.langgraph.tools import FacedSaver

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Work(TypedDict):
    logs: Annotated[list[Any], operator.add]


class Broken(Exception):
    pass


class Flaky:
    """A graph whose second node fails as often as it is told to; it notes what ran."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.ran = list(failures), list[str]()

    def graph(self, checkpointer: Any) -> Any:
        graph: Any = StateGraph(Work)
        graph.add_node("first", self._first)
        graph.add_node("second", self._second)
        graph.add_edge(START, "first")
        graph.add_edge("first", "second")
        return graph.compile(checkpointer)

    def _first(self, _: Any) -> Any:
        self.ran.append("first")
        return {"logs": ["first"]}

    def _second(self, _: Any) -> Any:
        self.ran.append("second")
        if self.failures:
            raise self.failures.pop(0)
        return {"logs": ["second"]}


@pytest.fixture
def tried(face: str) -> Callable[..., Any]:
    """`safe_invoke` of either face, with the pauses it made."""

    async def call(app: Any, state: Any, config: Any = CONFIG, *args: Any, pauses: Any = None, **options: Any) -> Any:
        pauses = pauses if pauses is not None else []

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)

        if face == "async":
            return await asafe_invoke(app, state, config, *args, sleep=sleep, **options)
        return safe_invoke(app, state, config, *args, sleep=pauses.append, **options)

    return call


async def test_it_goes_on_from_the_last_checkpoint(tried: Callable[..., Any], saver: FacedSaver) -> None:
    flaky, pauses = Flaky(Broken("1"), Broken("2")), list[float]()
    found = await tried(flaky.graph(saver.whole), {"logs": ["in"]}, pauses=pauses, backoff_seconds=1.0)
    assert found == {"logs": ["in", "first", "second"]}
    assert flaky.ran == ["first", "second", "second", "second"]
    assert [round(pause) in expected for pause, expected in zip(pauses, ({0, 1}, {1, 2}), strict=True)] == [True, True]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_pauses_grow_to_a_limit(tried: Callable[..., Any], saver: FacedSaver) -> None:
    flaky, pauses = Flaky(*[Broken(str(n)) for n in range(7)]), list[float]()
    await tried(
        flaky.graph(saver.whole), {"logs": []}, CONFIG, 8, pauses=pauses, backoff_seconds=1, backoff_seconds_max=8
    )
    bounds = [1, 2, 4, 8, 8, 8, 8]
    assert all(bound / 2 <= pause <= bound for pause, bound in zip(pauses, bounds, strict=True))
    assert len(set(pauses)) == len(pauses)


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_the_last_error_is_raised_with_those_before(tried: Callable[..., Any], saver: FacedSaver) -> None:
    flaky = Flaky(Broken("one"), ValueError("two"), Broken("three"), Broken("four"))
    with pytest.raises(Broken, match="three") as caught:
        await tried(flaky.graph(saver.whole), {"logs": []})
    notes = [note for note in caught.value.__notes__ if note.startswith("try ")]
    assert notes == ["try 1 of 3: Broken: one", "try 2 of 3: ValueError: two"]
    assert flaky.ran.count("second") == 3


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_one_try_is_one_try(tried: Callable[..., Any], saver: FacedSaver) -> None:
    flaky, pauses = Flaky(Broken("one")), list[float]()
    with pytest.raises(Broken):
        await tried(flaky.graph(saver.whole), {"logs": []}, CONFIG, 1, pauses=pauses)
    assert (flaky.ran, pauses) == (["first", "second"], [])


async def test_without_a_checkpoint_of_this_call_it_begins_again(
    tried: Callable[..., Any], saver: FacedSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = Flaky()
    app = flaky.graph(saver.whole)
    await tried(app, {"logs": ["before"]})
    put, failures = HarnessCheckpointer._put, [errors.StoreUnavailable("not now")]

    async def sometimes(self: Any, *args: Any) -> Any:
        if failures:
            raise failures.pop()
        return await put(self, *args)

    monkeypatch.setattr(HarnessCheckpointer, "_put", sometimes)
    found = await tried(app, {"logs": ["again"]}, durability="sync")
    assert found == {"logs": ["before", "first", "second", "again", "first", "second"]}


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_call_from_an_earlier_checkpoint_goes_on_from_its_own(
    tried: Callable[..., Any], saver: FacedSaver
) -> None:
    flaky = Flaky()
    app = flaky.graph(saver.whole)
    await tried(app, {"logs": ["in"]})
    earlier = next(state.config for state in app.get_state_history(CONFIG) if state.next == ("first",))
    flaky.ran.clear()
    flaky.failures = [Broken("1")]
    assert await tried(app, None, earlier) == {"logs": ["in", "first", "second"]}
    assert flaky.ran == ["first", "second", "second"]


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_question_is_a_result_and_an_answer_is_tried_again(
    tried: Callable[..., Any], saver: FacedSaver
) -> None:
    failures = [Broken("after the answer")]

    def ask(_: Any) -> Any:
        answer = interrupt("?")
        if failures:
            raise failures.pop()
        return {"logs": [answer]}

    graph: Any = StateGraph(Work)
    app = graph.add_node("ask", ask).add_edge(START, "ask").compile(saver.whole)
    asked = await tried(app, {"logs": []})
    assert [question.value for question in asked["__interrupt__"]] == ["?"]
    assert await tried(app, Command(resume="yes")) == {"logs": ["yes"]}


@pytest.mark.parametrize("early", [False, True], ids=["after the answer", "before it"])
async def test_an_answer_is_given_to_one_question_only(
    tried: Callable[..., Any], saver: FacedSaver, early: bool
) -> None:
    failures: list[Exception] = []

    def ask(_: Any) -> Any:
        if early and failures:
            raise failures.pop()
        one = interrupt("first?")
        if failures:
            raise failures.pop()
        return {"logs": [one, interrupt("second?")]}

    graph: Any = StateGraph(Work)
    app = graph.add_node("ask", ask).add_edge(START, "ask").compile(saver.whole)
    await tried(app, {"logs": []})
    failures.append(Broken())
    asked = await tried(app, Command(resume="A"))
    assert [question.value for question in asked["__interrupt__"]] == ["second?"]
    failures.append(Broken())
    assert await tried(app, Command(resume="B")) == {"logs": ["A", "B"]}


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
@pytest.mark.parametrize(
    "error", [GraphRecursionError("too deep"), errors.InvalidInput("no"), errors.StoreClosed("closed")]
)
async def test_what_another_try_cannot_change_is_raised_at_once(
    tried: Callable[..., Any], saver: FacedSaver, error: Exception
) -> None:
    flaky, pauses = Flaky(error), list[float]()
    with pytest.raises(type(error)):
        await tried(flaky.graph(saver.whole), {"logs": []}, pauses=pauses)
    assert pauses == []


@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_an_interruption_passes(tried: Callable[..., Any], saver: FacedSaver, face: str) -> None:
    pauses: list[float] = []

    class Stop(BaseException):
        pass

    flaky = Flaky(Stop())  # type: ignore[arg-type]
    with pytest.raises(Stop):
        await tried(flaky.graph(saver.whole), {"logs": []}, pauses=pauses)
    assert pauses == []


def test_any_checkpointer_will_do_but_there_must_be_one() -> None:
    flaky = Flaky(Broken("1"))
    assert safe_invoke(flaky.graph(InMemorySaver()), {"logs": []}, CONFIG, backoff_seconds=0) == {
        "logs": ["first", "second"]
    }
    with pytest.raises(errors.InvalidInput, match="no checkpointer"):
        safe_invoke(flaky.graph(None), {"logs": []}, CONFIG)


@pytest.mark.parametrize(
    ("config", "tries", "options"),
    [
        ({}, 3, {}),
        ({"configurable": {}}, 3, {}),
        (CONFIG, 0, {}),
        (CONFIG, 1.5, {}),
        (CONFIG, 3, {"backoff_seconds": -1}),
        (CONFIG, 3, {"backoff_seconds_max": float("nan")}),
    ],
)
def test_arguments_are_checked(config: Any, tries: Any, options: dict[str, Any]) -> None:
    flaky = Flaky()
    with pytest.raises(errors.InvalidInput):
        safe_invoke(flaky.graph(HarnessCheckpointer()), {"logs": []}, config, tries, **options)
    assert flaky.ran == []
