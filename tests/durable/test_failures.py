"""What steps raise, and what they return that cannot be stored."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

import everstep
from everstep.durable import failures
from everstep.stores.protocol import Store

pytestmark = pytest.mark.parametrize("face", ["async"], indirect=True)


@pytest.fixture
def engine(store: Store) -> everstep.CheckpointEngine:
    whole = getattr(store, "whole", store)
    return everstep.CheckpointEngine(everstep.StoreBackend(whole), everstep.SnapshotConfig(max_snapshot_size_mb=0.1))


def _lock() -> Any:
    return threading.Lock()


def _large() -> Any:
    return "".join(str(number) for number in range(100_000))


@pytest.mark.parametrize("make", [_lock, _large])
async def test_a_result_that_cannot_be_stored_fails_its_step(
    engine: everstep.CheckpointEngine, make: Callable[[], Any]
) -> None:
    calls: list[str] = []

    def work_() -> Any:
        calls.append("called")
        return make()

    @engine.durable
    async def work(run: everstep.Run) -> None:
        await run.step(work_, key="bad")

    with pytest.raises((everstep.UnstorableValue, everstep.SnapshotTooLarge)):
        await work(thread_id="t")
    # It has failed, as with any other error: nobody calls it again and again.
    assert [info.status for info in await engine.runs()] == ["failed"]
    assert await engine.recover() == []
    assert calls == ["called"]


async def test_a_caught_result_that_cannot_be_stored_is_replayed(engine: everstep.CheckpointEngine) -> None:
    caught: list[str] = []
    is_broken = True

    @engine.durable
    async def work(run: everstep.Run) -> list[Any]:
        try:
            await run.step(_lock, key="bad")
        except everstep.UnstorableValue as error:
            caught.append(str(error))
        both = await run.gather(run.step(str, 1, key="one"), run.step(str, 2, key="two"))
        if is_broken:
            raise ConnectionError("down")
        return both

    with pytest.raises(ConnectionError):
        await work(thread_id="t")
    is_broken = False
    assert await engine.resume("t") == ["1", "2"]
    assert len(caught) == 2
    assert caught[0] == caught[1]
    assert caught[0].startswith("bad.result: cannot store a _thread.lock")


async def test_what_ends_together_with_a_result_that_cannot_be_stored_is_recorded(
    engine: everstep.CheckpointEngine,
) -> None:
    calls: list[str] = []

    async def act(name: str, result: Any) -> Any:
        calls.append(name)
        return result

    @engine.durable
    async def work(run: everstep.Run) -> None:
        await run.gather(
            run.step(act, "a", "a", key="a"), run.step(act, "bad", _lock(), key="bad"), run.step(act, "c", "c", key="c")
        )

    for _ in range(2):
        with pytest.raises(everstep.UnstorableValue):
            await (work(thread_id="t") if not calls else engine.resume("t"))
    assert sorted(calls) == ["a", "bad", "bad", "c"]


async def test_a_run_whose_result_or_values_cannot_be_stored_has_failed(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def result(run: everstep.Run) -> Any:
        await run.step(str, 1)
        return _lock()

    @engine.durable
    async def state(run: everstep.Run) -> Any:
        await run.step(str, 1, key="one")
        run.state["lock"] = _lock()
        await run.step(str, 2, key="two")

    @engine.durable
    async def details(run: everstep.Run) -> Any:
        await run.ask("Which?", _lock())

    for function in (result, state, details):
        with pytest.raises(everstep.UnstorableValue):
            await function(thread_id=function.name)
    found = await engine.runs()
    assert [info.status for info in found] == ["failed"] * 3
    assert [info.waits for info in found] == [[]] * 3
    # What had been recorded is there.
    assert len(await engine.list_time_travel_points(state.name, 10)) == 3


async def test_a_run_that_cannot_begin_leaves_nothing(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def work(run: everstep.Run, given: Any) -> None:
        pass

    with pytest.raises(everstep.UnstorableValue):
        await work(_lock(), thread_id="t")
    assert list(await engine.list_threads()) == []


class Sloppy(Exception):
    __slots__ = ("place",)

    def __init__(self, place: str, *, number: int) -> None:
        self.place = place
        self.number = number

    def __str__(self) -> str:
        return f"{self.place} {self.number}"


class Own(ExceptionGroup[Exception]):
    pass


def _raised(act: Callable[[], Any]) -> Exception:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError


def _errors() -> list[Exception]:
    return [
        _raised(lambda: open("/nowhere/at all")),
        _raised(lambda: json.loads("{")),
        _raised(lambda: b"\xff".decode()),
        _raised(lambda: [].nothing),  # type: ignore[attr-defined]
        _raised(lambda: __import__("nowhere")),
        SyntaxError("bad", ("file", 3, 4, "text")),
        Sloppy("here", number=3),
        ExceptionGroup("several", [ValueError("a"), Own("inner", [KeyError("b")])]),
        StopAsyncIteration(5),
        TimeoutError(),
    ]


@pytest.mark.parametrize("error", _errors(), ids=lambda error: type(error).__name__)
def test_an_error_is_made_again_as_it_was(error: Exception, face: str) -> None:
    made = failures.made_again("t", "step", failures.recorded(error))
    assert type(made) is type(error)
    assert _shape(made) == _shape(error)
    for name in ("filename", "errno", "name", "lineno", "start"):
        assert getattr(made, name, None) == getattr(error, name, None)


def _shape(error: BaseException) -> Any:
    if isinstance(error, BaseExceptionGroup):
        return [error.message, *map(_shape, error.exceptions)]
    return [type(error), str(error)]


async def test_what_cannot_be_done_about_an_effect_is_refused(engine: everstep.CheckpointEngine) -> None:
    refused: list[str] = []

    @engine.durable
    async def work(run: everstep.Run) -> None:
        for options in ({"on_unknown": "aks"}, {"undo": print}, {"undo": "refund", "effect": "once"}):
            try:
                await run.step(str, 1, **options)
            except everstep.InvalidInput as error:
                refused.append(str(error)[:12])

    await work(thread_id="t")
    assert refused == ["on_unknown i", "undo takes b", "undo is a fu"]


async def test_a_group_of_tasks_may_wait_and_fail(engine: everstep.CheckpointEngine) -> None:
    is_broken = False

    async def draw() -> str:
        if is_broken:
            raise ConnectionError("down")
        return "drawn"

    @engine.durable
    async def work(run: everstep.Run) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            drawing = group.create_task(run.step(draw))
            answer = group.create_task(run.ask("Which?"))
        return [drawing.result(), answer.result()]

    handle = await work.start(thread_id="t")
    while await handle.status() == "running":
        await asyncio.sleep(0)
    await engine.answer("t", "that")
    assert await handle.result() == ["drawn", "that"]
    is_broken = True
    with pytest.raises(ExceptionGroup):
        await work(thread_id="broken")
    assert (await engine.runs("failed"))[0].thread_id == "broken"


class Refused(Exception):
    def __init__(self, text: str, response: Any) -> None:
        super().__init__(text)
        self.response = response


async def test_what_an_error_held_and_could_not_be_stored_is_told_when_it_is_asked_for(
    engine: everstep.CheckpointEngine,
) -> None:
    is_broken = True

    def call() -> None:
        raise Refused("too many requests", threading.Lock())

    @engine.durable
    async def work(run: everstep.Run) -> bool:
        response: Any = None
        try:
            await run.step(call)
        except Refused as error:
            response = error.response
        if is_broken:
            raise LookupError
        assert "lock" in repr(response)
        return bool(response.locked())

    with pytest.raises(LookupError):
        await work(thread_id="t")
    is_broken = False
    with pytest.raises(everstep.UnstorableValue, match=r"response of a recorded Refused.locked: .* Let the step"):
        await engine.resume("t")
