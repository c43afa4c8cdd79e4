"""Durable runs of plain functions."""

from __future__ import annotations

import asyncio
import threading

import pytest

import everstep
from everstep.stores.protocol import Store
from tests.durable.worlds import Killed, World

pytestmark = pytest.mark.parametrize("face", ["blocking"], indirect=True)


@pytest.fixture
def engine(store: Store) -> everstep.SyncEngine:
    whole = getattr(store, "whole", store)
    return everstep.CheckpointEngine(everstep.StoreBackend(whole)).sync


async def greet(name: str) -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


def test_a_plain_function_is_taken_up(engine: everstep.SyncEngine, world: World) -> None:
    @engine.durable
    def trip(run: everstep.SyncRun, city: str) -> list[str]:
        hello = run.step(greet, city)
        run.state["greeted"] = True
        answer = run.ask("Book it?")
        run.sleep(0.001)
        return [hello, answer, run.step(world.do, "book", effect="once")]

    handle = trip.start("Oslo", thread_id="t")
    handle._thread.join()
    assert handle.status() == "waiting"
    engine.answer("t", "yes")
    world.kill_at("book")
    with pytest.raises(Killed):
        engine.resume("t")
    assert [info.status for info in engine.recover()] == ["waiting"]
    engine.answer("t", everstep.happened("booked"))
    assert handle.result() == ["hello Oslo", "yes", "booked"]
    assert trip("Oslo", thread_id="t") == ["hello Oslo", "yes", "booked"]
    assert world.calls == ["book"]


def test_functions_side_by_side(engine: everstep.SyncEngine, world: World) -> None:
    both = threading.Barrier(2, timeout=30)

    def meet(name: str) -> str:
        both.wait()
        return name

    @engine.durable
    def work(run: everstep.SyncRun) -> list[str]:
        def one(name: str) -> str:
            with run.scope(name):
                return run.step(meet, name)

        return run.gather(lambda: one("a"), lambda: one("b"), run.step(world.do, "c"))

    assert work(thread_id="t") == ["a", "b", "c"]
    assert world.calls == ["c"]


def test_a_time_limit(engine: everstep.SyncEngine) -> None:
    never = threading.Event()

    @engine.durable
    def work(run: everstep.SyncRun) -> None:
        run.step(never.wait, 60, timeout=0.01)

    with pytest.raises(TimeoutError):
        work(thread_id="t")
    never.set()


def test_an_asynchronous_engine_takes_up_plain_functions(engine: everstep.SyncEngine, world: World) -> None:
    whole = engine._driven

    @engine.durable
    def work(run: everstep.SyncRun) -> str:
        return str(run.step(world.do, "work"))

    world.kill_at("work")
    with pytest.raises(Killed):
        work(thread_id="t")
    assert asyncio.run(whole.resume("t")) == "work"


def test_what_is_no_durable_function_is_refused(engine: everstep.SyncEngine) -> None:
    with pytest.raises(everstep.InvalidInput, match="plain function"):
        engine.durable(greet)  # type: ignore[arg-type]
    with pytest.raises(everstep.InvalidInput, match="the run"):
        engine.durable(lambda: None)  # type: ignore[arg-type,misc]
    with pytest.raises(everstep.RunNotFound):
        engine.resume("nothing")
    with pytest.raises(everstep.InvalidInput, match="status is one of"):
        engine.runs("sleeping")


async def test_a_plain_function_runs_where_there_is_an_event_loop(engine: everstep.SyncEngine) -> None:
    @engine.durable
    def work(run: everstep.SyncRun) -> str:
        return run.step(str.upper, "done")

    assert work(thread_id="t") == "DONE"
    assert [info.status for info in engine.runs()] == ["done"]
