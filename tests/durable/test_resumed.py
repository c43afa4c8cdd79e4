"""A run that failed or was cut off, and is taken up: what is done again, what is not, and what it holds then."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import everstep
from everstep.durable import calling
from tests.durable.worlds import Killed, killed

pytestmark = pytest.mark.parametrize("face", ["async"], indirect=True)


class Service:
    """Something that steps call, which may be down."""

    def __init__(self) -> None:
        self.is_down = True
        self.calls: list[Any] = []

    def call(self, name: Any) -> Any:
        self.calls.append(name)
        if self.is_down:
            raise ConnectionError(f"{name} is down")
        return name

    def note(self, name: Any) -> Any:
        self.calls.append(name)
        return name


@pytest.fixture
def service() -> Service:
    return Service()


async def failed(run: Any, kind: type[Exception] = ConnectionError) -> None:
    with pytest.raises(kind):
        await run


# -- what failed


async def test_what_was_done_about_a_failure_need_not_be_done_again(
    engine: everstep.CheckpointEngine, service: Service
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> Any:
        try:
            return await run.step(service.call, "fetch", key="fetch")
        except ConnectionError:
            await run.step(service.note, "told", key="tell")
            raise

    await failed(work(thread_id="t"))
    await failed(engine.resume("t"))
    assert service.calls == ["fetch", "told", "fetch"]
    service.is_down = False
    assert await engine.resume("t") == "fetch"
    assert service.calls == ["fetch", "told", "fetch", "fetch"]


async def test_a_failure_that_was_caught_is_not_tried_again_though_what_came_of_it_failed(
    engine: everstep.CheckpointEngine, service: Service
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> Any:
        try:
            return await run.step(service.call, "first", key="first")
        except ConnectionError:
            return await run.step(service.call, "second", key="second")

    await failed(work(thread_id="t"))
    service.is_down = False
    assert await engine.resume("t") == "second"
    assert service.calls == ["first", "second", "second"]


async def test_a_failure_that_the_code_has_put_into_another_error_is_tried_again(
    engine: everstep.CheckpointEngine, service: Service
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> Any:
        try:
            return await run.step(service.call, "first", key="first")
        except ConnectionError:
            raise LookupError("nothing found")  # noqa: B904  # as many write it

    await failed(work(thread_id="t"), LookupError)
    service.is_down = False
    assert await engine.resume("t") == "first"


async def test_all_that_failed_side_by_side_is_tried_again_at_once(
    engine: everstep.CheckpointEngine, service: Service
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> Any:
        return await run.gather(
            *(run.step(service.call, number, key=f"call {number}") for number in range(3)),
            run.gather(run.step(service.call, "inner", key="inner"), run.step(service.note, "note", key="note")),
        )

    @engine.durable
    async def nested(run: everstep.Run) -> Any:
        inner = run.gather(*(run.step(service.call, name, key=name) for name in ("a", "b")))
        return await run.gather(inner, run.step(service.call, "c", key="c"))

    await failed(work(thread_id="t"))
    service.is_down = False
    assert await engine.resume("t") == [0, 1, 2, ["inner", "note"]]
    assert service.calls.count("note") == 1

    # The same error comes through both.
    service.is_down = True
    await failed(nested(thread_id="u"))
    service.is_down = False
    assert await engine.resume("u") == [["a", "b"], "c"]


async def test_who_waits_for_a_result_does_not_try_a_failed_run_again(
    engine: everstep.CheckpointEngine, service: Service
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> Any:
        await run.ask("Go?")
        return await run.step(service.call, "call")

    handle = await work.start(thread_id="t")
    while (await engine.runs())[0].status != "waiting":
        await asyncio.sleep(0.001)
    await engine.answer("t", "yes")
    assert [info.status for info in await engine.recover()] == ["failed"]
    with pytest.raises(ConnectionError, match="call is down"):
        await handle.result()
    assert service.calls == ["call"]


async def test_that_it_could_not_be_found_out_is_recorded(engine: everstep.CheckpointEngine, service: Service) -> None:
    """The function of `on_unknown` fails, and the code goes another way."""

    def charge() -> str:
        service.calls.append("charge")
        raise Killed

    def find_out(_: everstep.Unknown) -> Any:
        return everstep.happened(service.call("find out"))

    is_broken = True

    @engine.durable
    async def work(run: everstep.Run) -> Any:
        try:
            paid = await run.step(charge, effect="once", on_unknown=find_out)
        except ConnectionError:
            paid = await run.step(service.note, "invoice", key="invoice")
        if is_broken:
            raise LookupError
        return paid

    await killed(work(thread_id="t"))
    await failed(engine.resume("t"), LookupError)
    is_broken = service.is_down = False
    assert await engine.resume("t") == "invoice"
    assert service.calls == ["charge", "find out", "invoice"]


async def test_a_value_that_cannot_be_saved_stops_the_run_and_not_one_step(engine: everstep.CheckpointEngine) -> None:
    is_broken = True
    calls: list[str] = []

    @engine.durable
    async def work(run: everstep.Run) -> Any:
        run.state["part"] = threading.Lock() if is_broken else "whole"
        try:
            return await run.step(calls.append, "first", key="first")
        except everstep.UnstorableValue:
            run.state.clear()
            return await run.step(calls.append, "second", key="second")

    await failed(work(thread_id="t"), everstep.UnstorableValue)
    is_broken = False
    await engine.resume("t")
    assert calls == ["first"]


# -- how it is called


async def test_an_effect_may_be_called_as_the_end_of_a_run_is(engine: everstep.CheckpointEngine) -> None:
    is_broken = True

    def end() -> int:
        return 42

    @engine.durable
    async def work(run: everstep.Run) -> int:
        found = await run.step(end, effect="once")
        if is_broken:
            raise LookupError
        return found

    await failed(work(thread_id="t"), LookupError)
    is_broken = False
    assert await engine.resume("t") == 42


@pytest.mark.parametrize("timeout", [None, 60])
async def test_a_step_that_raises_stop_iteration_has_failed(
    engine: everstep.CheckpointEngine, timeout: float | None
) -> None:
    def first_of_none() -> Any:
        return next(iter([]))

    @engine.durable
    async def work(run: everstep.Run) -> str:
        try:
            await run.step(first_of_none, timeout=timeout)
        except RuntimeError as error:
            return str(error)
        return "no error"

    assert "StopIteration" in await asyncio.wait_for(work(thread_id="t"), 20)


async def test_steps_with_a_time_limit_do_not_wait_for_a_thread(engine: everstep.CheckpointEngine) -> None:
    """All are at work at once, however few processors there are: none uses up its time before it is called."""
    count = 100
    all_here = threading.Barrier(count)

    @engine.durable
    async def work(run: everstep.Run) -> int:
        steps = [run.step(all_here.wait, timeout=60, key=f"step {number}") for number in range(count)]
        return len(set(await run.gather(*steps)))

    assert await work(thread_id="t") == count


async def test_steps_with_a_time_limit_have_so_many_threads_at_most(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "_THREADS_MAX", 3)
    begun: list[int] = []
    goes_on = threading.Event()

    def act(number: int) -> int:
        begun.append(number)
        goes_on.wait()
        return number

    @engine.durable
    async def work(run: everstep.Run) -> Any:
        return await run.gather(*(run.step(act, number, timeout=60, key=f"step {number}") for number in range(9)))

    running = asyncio.create_task(work(thread_id="t"))
    while len(begun) < 3:
        await asyncio.sleep(0.001)
    # All that could begin has begun by now.
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(begun) == 3
    goes_on.set()
    assert await running == list(range(9))


async def test_the_order_in_which_arguments_are_named_does_not_matter(engine: everstep.CheckpointEngine) -> None:
    is_broken = True

    def act(**options: int) -> list[int]:
        return sorted(options.values())

    @engine.durable
    async def work(run: everstep.Run) -> Any:
        if is_broken:
            await run.step(act, one=1, two=2)
            raise LookupError
        return await run.step(act, two=2, one=1)

    await failed(work(thread_id="t"), LookupError)
    is_broken = False
    assert await engine.resume("t") == [1, 2]


async def test_who_joins_a_run_that_was_forked_goes_on_in_the_branch(engine: everstep.CheckpointEngine) -> None:
    version, is_broken = 1, True

    def act(number: int) -> int:
        return number

    @engine.durable
    async def work(run: everstep.Run) -> Any:
        made = await run.step(act, version)
        if is_broken:
            raise LookupError
        return made

    await failed(work(thread_id="t"), LookupError)
    version, is_broken = 2, False
    assert await engine.resume("t", on_change="fork") == 2
    assert await work(thread_id="t") == 2
    assert sorted(info.status for info in await engine.runs()) == ["done", "paused"]


# -- what it holds


def contents(checkpoint: everstep.Checkpoint | None) -> list[Any]:
    assert checkpoint is not None
    return [message["content"] for message in checkpoint.messages]


@pytest.mark.parametrize("change", ["none", "a step before", "steps without effect"])
async def test_what_is_recorded_before_the_code_has_caught_up_is_saved_with_what_is_stored(
    engine: everstep.CheckpointEngine, service: Service, change: str
) -> None:
    version = 1

    def act(number: int, version: int) -> int:
        if number == 3 and service.is_down:
            raise ConnectionError
        return number

    @engine.durable(on_change="rerun")
    async def work(run: everstep.Run) -> Any:
        if version == 2 and change == "a step before":
            await run.step(act, 0, 0, key="new")
        for number in (1, 2, 3):
            asked = version if change == "steps without effect" else 1
            found = await run.step(act, number, asked, key=f"step {number}", effect="none")
            run.messages.append({"role": "assistant", "content": found})
            run.state["count"] = run.state.get("count", 0) + 1
        return run.state["count"]

    await failed(work(thread_id="t"))
    version = 2
    service.is_down = False
    assert await engine.resume("t") == 3
    latest = await engine.get_latest("t")
    assert contents(latest) == [1, 2, 3]


async def test_what_went_on_side_by_side_is_held_once_when_it_is_taken_up(
    engine: everstep.CheckpointEngine,
) -> None:
    is_cut_off = True
    others_are_done, first_is_done = asyncio.Event(), asyncio.Event()

    async def act(name: str) -> str:
        if name == "cut off" and is_cut_off:
            await others_are_done.wait()
            raise Killed
        return name

    @engine.durable
    async def work(run: everstep.Run) -> None:
        async def first() -> None:
            with run.scope("first"):
                await run.step(act, "cut off")
                first_is_done.set()

        async def second() -> None:
            with run.scope("second"):
                found = await run.step(act, "said")
                # When it is taken up, the other branch records something before this one goes on.
                if not is_cut_off:
                    await first_is_done.wait()
                run.messages.append({"role": "user", "content": found})
                await run.step(act, "next")
                others_are_done.set()

        await run.gather(first(), second())

    await killed(work(thread_id="t"))
    is_cut_off = False
    await engine.resume("t")
    assert contents(await engine.get_latest("t")) == ["said"]
