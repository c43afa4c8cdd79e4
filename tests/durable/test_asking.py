"""When the code of a run may ask for something: not inside a step, not on its way out, not after it was stopped."""

from __future__ import annotations

import asyncio
import functools
from typing import Any
from unittest.mock import AsyncMock, Mock, call

import pytest

import everstep
from everstep.durable.live import repository_of
from tests.durable.worlds import World, killed

pytestmark = [
    pytest.mark.parametrize("face", ["async"], indirect=True),
    pytest.mark.parametrize("kind", ["memory", "sqlite"], indirect=True),
]


async def test_a_step_cannot_ask_for_anything_of_its_run(engine: everstep.CheckpointEngine, world: World) -> None:
    asks: list[Any] = [
        lambda run: run.step(world.do, "inner"),
        lambda run: run.ask("Go on?"),
        lambda run: run.wait_for("event"),
        lambda run: run.sleep(100),
        lambda run: run.gather(),
        lambda run: run.now(),
        lambda run: run.uuid(),
    ]

    @engine.durable
    async def work(run: everstep.Run, number: int) -> None:
        await run.step(lambda: asks[number](run))

    @engine.sync.durable
    def blocking(run: everstep.SyncRun, number: int) -> None:
        run.step(lambda: asks[number](run))

    for number in range(len(asks)):
        with pytest.raises(everstep.InvalidInput, match="a step cannot ask"):
            await work(number, thread_id=f"t{number}")
        with pytest.raises(everstep.InvalidInput, match="a step cannot ask"):
            await asyncio.to_thread(blocking, number, thread_id=f"b{number}")
    assert world.calls == []


@pytest.mark.parametrize("begun_in", ["scope", "step"])
async def test_a_run_that_another_one_begins_has_keys_of_its_own(
    engine: everstep.CheckpointEngine, world: World, begun_in: str
) -> None:
    @engine.durable
    async def inner(run: everstep.Run) -> list[str]:
        return [await run.step(world.do, "first"), await run.step(world.do, "second")]

    @engine.durable
    async def outer(run: everstep.Run) -> list[str]:
        if begun_in == "step":
            return await run.step(inner, thread_id="inner")
        with run.scope("day 1"):
            return await inner(thread_id="inner")

    world.kill_at("second")
    await killed(outer(thread_id="outer"))
    assert await engine.resume("inner") == ["first", "second"]
    assert await engine.resume("outer") == ["first", "second"]
    assert world.calls == ["first", "second", "second"]


@pytest.mark.parametrize("is_grouped", [False, True])
async def test_what_a_finally_block_asks_for_is_asked_for_when_the_wait_is_over(
    engine: everstep.CheckpointEngine, world: World, is_grouped: bool
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> str:
        await run.step(world.do, "open")
        try:
            if is_grouped:
                async with asyncio.TaskGroup() as group:
                    answer = group.create_task(run.ask("Go on?"))
                return str(await run.step(world.do, f"use {answer.result()}"))
            return str(await run.step(world.do, f"use {await run.ask('Go on?')}"))
        finally:
            await run.gather(run.step(world.do, "close"))

    handle = await work.start(thread_id="t")
    while await handle.status() == "running":
        await asyncio.sleep(0.01)
    assert (await handle.status(), world.calls) == ("waiting", ["open"])
    await engine.answer("t", "it")
    assert await handle.result() == "use it"
    assert world.calls == ["open", "use it", "close"]


async def test_a_finally_block_of_blocking_code_is_left_alone_too(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    @engine.sync.durable
    def work(run: everstep.SyncRun) -> str:
        try:
            return str(run.step(world.do, f"use {run.ask('Go on?')}"))
        finally:
            run.gather(lambda: run.step(world.do, "close"))

    handle = await asyncio.to_thread(work.start, thread_id="t")
    while await asyncio.to_thread(handle.status) == "running":
        await asyncio.sleep(0.01)
    await engine.answer("t", "it")
    assert await asyncio.to_thread(handle.result) == "use it"
    assert world.calls == ["use it", "close"]


async def test_a_finally_block_of_a_failed_run_is_done(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> None:
        try:
            raise ValueError("broken")
        finally:
            await run.step(world.do, "close")

    with pytest.raises(ValueError, match="broken"):
        await work(thread_id="t")
    assert world.calls == ["close"]


async def test_nothing_can_be_asked_of_a_run_that_its_code_has_left(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    runs: list[everstep.Run] = []

    @engine.durable
    async def work(run: everstep.Run) -> str:
        runs.append(run)
        return str(await run.step(world.do, "work"))

    await work(thread_id="t")
    with pytest.raises(everstep.RunError, match="has been left by its code"):
        await runs[0].step(world.do, "late")
    assert world.calls == ["work"]


async def test_a_store_that_fails_is_no_failure_of_a_step(
    engine: everstep.CheckpointEngine, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents often catch what a tool raises, and tell the model."""
    is_down = True
    store = repository_of(engine).store
    commit = store.commit

    async def fail_once(change: Any) -> Any:
        nonlocal is_down
        if is_down and "second" in world.calls:
            is_down = False  # so that the claim can be given back, and nobody waits until it runs out
            raise everstep.StoreUnavailable("the store is down")
        return await commit(change)

    @engine.durable
    async def work(run: everstep.Run) -> list[str]:
        found: list[str] = []
        for name in ("first", "second", "third"):
            try:
                found.append(await run.step(world.do, name))
            except Exception as error:
                found.append(await run.step(world.do, f"failed: {type(error).__name__}"))
        return found

    monkeypatch.setattr(store, "commit", fail_once)
    with pytest.raises(everstep.StoreUnavailable):
        await work(thread_id="t")
    assert world.calls == ["first", "second"]
    assert await work(thread_id="t") == ["first", "second", "third"]
    assert world.calls == ["first", "second", "second", "third"]


async def test_after_a_mismatch_nothing_is_done_any_more(engine: everstep.CheckpointEngine, world: World) -> None:
    asked = "old"

    @engine.durable
    async def work(run: everstep.Run) -> None:
        try:
            await run.step(world.do, asked, key="one")
        except Exception as error:
            await run.step(world.do, f"tell of {error}", effect="once")
        await run.step(world.do, "last")

    world.kill_at("last")
    await killed(work(thread_id="t"))
    asked = "new"
    with pytest.raises(everstep.ReplayMismatch, match="'one'"):
        await engine.resume("t")
    assert world.calls == ["old", "last"]


async def test_a_function_that_yields_is_no_durable_function(engine: everstep.CheckpointEngine) -> None:
    def blocking(run: everstep.SyncRun) -> Any:
        yield 1

    async def asynchronous(run: everstep.Run) -> Any:
        yield 1

    with pytest.raises(everstep.InvalidInput, match="does not yield"):
        engine.sync.durable(blocking)
    with pytest.raises(everstep.InvalidInput, match="does not yield"):
        engine.durable(asynchronous)


async def test_a_plain_function_may_return_a_coroutine_on_both_faces(engine: everstep.CheckpointEngine) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    @engine.durable
    async def work(run: everstep.Run) -> list[Any]:
        return [await run.step(lambda: double(1), key="one"), await run.step(lambda: double(2), key="two", timeout=60)]

    @engine.sync.durable
    def blocking(run: everstep.SyncRun) -> list[Any]:
        return [run.step(lambda: double(1), key="one"), run.step(lambda: double(2), key="two", timeout=60)]

    assert await work(thread_id="t") == [2, 4]
    assert await asyncio.to_thread(blocking, thread_id="b") == [2, 4]


async def test_a_mock_may_be_a_step(engine: everstep.CheckpointEngine) -> None:
    pay = Mock(return_value="paid")
    tell = AsyncMock(return_value="told")

    @engine.durable
    async def work(run: everstep.Run) -> list[str]:
        return [await run.step(pay, 1), await run.step(functools.partial(pay, 2)), await run.step(tell, timeout=60)]

    @engine.sync.durable
    def blocking(run: everstep.SyncRun) -> list[str]:
        return [run.step(pay, 1), run.step(functools.partial(pay, 2)), run.step(tell, timeout=60)]

    assert await work(thread_id="t") == ["paid", "paid", "told"]
    assert await asyncio.to_thread(blocking, thread_id="b") == ["paid", "paid", "told"]
    assert pay.mock_calls == [call(1), call(2)] * 2


async def test_a_run_does_not_wait_for_itself(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def work(run: everstep.Run, again: bool) -> str:
        if again:
            return await run.step(work, True, thread_id="t")
        return "done"

    @engine.sync.durable
    def blocking(run: everstep.SyncRun) -> Any:
        return blocking(thread_id="b")

    with pytest.raises(everstep.RunError, match="waited for by its own code"):
        await work(True, thread_id="t")
    with pytest.raises(everstep.RunError, match="waited for by its own code"):
        await asyncio.to_thread(blocking, thread_id="b")
    # Another run may well be called by it.
    assert await work(False, thread_id="other") == "done"
