"""Durable runs: recorded steps are not called again, whatever ends the process in between."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import datetime
from typing import Any

import pytest

import everstep
from everstep.durable import lists
from everstep.durable.calling import Effect
from everstep.durable.live import RunLive, repository_of
from everstep.durable.running import Runner
from everstep.repository.claims import Claims
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Store
from tests.durable.worlds import Killed, World, killed

pytestmark = pytest.mark.parametrize("face", ["async"], indirect=True)


async def test_a_recorded_step_is_not_called_again(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.durable
    async def trip(run: everstep.Run, city: str) -> list[str]:
        first = await run.step(world.do, f"weather of {city}")
        second = await run.step(world.do, "plan", first)
        return [first, second]

    world.kill_at("plan")
    await killed(trip("Oslo", thread_id="t"))
    assert [info.status for info in await engine.runs()] == ["interrupted"]
    assert await engine.resume("t") == ["weather of Oslo", "weather of Oslo"]
    assert world.calls == ["weather of Oslo", "plan", "plan"]
    assert await trip("Oslo", thread_id="t") == ["weather of Oslo", "weather of Oslo"]
    assert world.calls == ["weather of Oslo", "plan", "plan"]


async def test_a_run_with_other_arguments_is_refused(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def trip(run: everstep.Run, city: str) -> str:
        return await run.step(str.upper, city)

    @engine.durable
    async def other(run: everstep.Run, city: str) -> str:
        return city

    assert await trip("Oslo", thread_id="t") == "OSLO"
    with pytest.raises(everstep.RunExists, match="Rome"):
        await trip("Rome", thread_id="t")
    with pytest.raises(everstep.RunExists, match="other"):
        await other("Oslo", thread_id="t")


async def test_steps_are_known_by_name_and_occurrence(engine: everstep.CheckpointEngine, world: World) -> None:
    wanted = ["a", "b"]

    @engine.durable
    async def work(run: everstep.Run) -> list[str]:
        found = [await run.step(world.do, name) for name in wanted]
        if "new" in wanted:
            found.append(await run.step(world.do, "new", key="added"))
        found.append(await run.step(world.do, "last", key="last"))
        return found

    world.kill_at("last")
    await killed(work(thread_id="t"))
    wanted.append("new")
    world.calls.clear()
    assert await engine.resume("t") == ["a", "b", "new", "new", "last"]
    assert world.calls == ["new", "new", "last"]


async def test_a_chosen_key_is_taken_once(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.durable
    async def twice(run: everstep.Run) -> None:
        await run.step(world.do, "x", key="k")
        await run.step(world.do, "y", key="k")

    with pytest.raises(everstep.InvalidInput, match="taken"):
        await twice(thread_id="t")


async def test_scopes_give_parallel_work_keys_of_its_own(engine: everstep.CheckpointEngine, world: World) -> None:
    delays = {1: 0.02, 2: 0.0}

    @engine.durable
    async def days(run: everstep.Run) -> list[list[str]]:
        async def one(day: int) -> list[str]:
            with run.scope(f"day {day}"):
                await asyncio.sleep(delays[day])
                first = await run.step(world.do, f"walk {day}")
                return [first, await run.step(world.do, f"eat {day}")]

        return await run.gather(*(one(day) for day in (1, 2)))

    world.kill_at("eat 1")
    await killed(days(thread_id="t"))
    done = [call for call in world.calls if call != "eat 1"]
    delays[1], delays[2] = delays[2], delays[1]
    world.calls.clear()
    assert await engine.resume("t") == [["walk 1", "eat 1"], ["walk 2", "eat 2"]]
    assert set(world.calls) == {"walk 1", "eat 1", "walk 2", "eat 2"} - set(done)


async def test_steps_that_end_together_share_a_commit(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def many(run: everstep.Run) -> list[int]:
        return await run.gather(*(run.step(_double, number) for number in range(20)))

    assert await many(thread_id="t") == [2 * number for number in range(20)]
    points = await engine.list_time_travel_points("t")
    assert len(points) < 10  # the start, the end, and a few for all steps


async def _double(number: int) -> int:
    return 2 * number


async def test_a_question_waits_over_restarts(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.durable
    async def trip(run: everstep.Run) -> str:
        plan = await run.step(world.do, "plan")
        answer = await run.ask("Book it?", {"plan": plan})
        return f"{answer} {await run.step(world.do, 'book')}"

    handle = await trip.start(thread_id="t")
    await asyncio.wait([handle._task])
    assert await handle.status() == "waiting"
    [info] = await engine.runs("waiting")
    assert [(wait.kind, wait.question) for wait in info.waits] == [("ask", "Book it?")]
    assert await engine.recover() == []
    with pytest.raises(everstep.NotWaiting, match="Book it"):
        await engine.answer("t", "yes", key="another")
    await engine.answer("t", "yes")
    with pytest.raises(everstep.NotWaiting):
        await engine.answer("t", "no")
    [info] = await engine.recover()
    assert info.status == "done"
    assert await handle.result() == "yes book"
    assert world.calls == ["plan", "book"]


async def test_a_run_that_is_just_let_go_is_recovered(
    engine: everstep.CheckpointEngine, caplog: pytest.LogCaptureFixture
) -> None:
    @engine.durable
    async def trip(run: everstep.Run) -> str:
        return str(await run.ask("Where to?"))

    handle = await trip.start(thread_id="t")
    await asyncio.wait([handle._task])
    # As if the answer came before the claim was given back.
    claims = Claims(repository_of(engine))
    claim = await claims.take("t", await claims.find("t"), 30.0, is_task=False)
    await engine.answer("t", "Oslo")
    caplog.set_level("INFO", "everstep")
    recovering = asyncio.create_task(engine.recover())
    while "by somebody else" not in caplog.text:
        await asyncio.sleep(0.001)
    await claim.release("", None, begun=True)

    assert [info.status for info in await recovering] == ["done"]


async def test_an_event_that_came_while_the_wait_for_it_was_recorded_is_not_lost_in_a_crash(
    engine: everstep.CheckpointEngine, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RunLive.record

    @engine.durable
    async def trip(run: everstep.Run) -> str:
        return str(await run.wait_for("card"))

    async def killed_after_that(live: RunLive, *args: Any, **about: Any) -> str:
        if not live.run_metadata["run_waits"]:
            return await recorded(live, *args, **about)
        monkeypatch.setattr(RunLive, "record", recorded)
        await engine.signal("t", "card", "Ada")
        await recorded(live, *args, **about)
        raise Killed

    monkeypatch.setattr(RunLive, "record", killed_after_that)
    await killed(trip(thread_id="t"))

    assert [info.status for info in await engine.recover()] == ["done"]
    assert await trip(thread_id="t") == "Ada"


async def test_a_run_does_not_wait_any_more_for_an_event_that_came_while_it_began_to_wait(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RunLive.record
    statuses: list[str] = []

    @engine.durable
    async def trip(run: everstep.Run) -> str:
        card = await run.wait_for("card")
        await run.step(str, card)
        statuses.extend([info.status for info in await engine.runs()])
        return str(card)

    async def signalled_first(live: RunLive, *args: Any, **about: Any) -> str:
        if live.run_metadata["run_waits"]:
            monkeypatch.setattr(RunLive, "record", recorded)
            await engine.signal("t", "card", "Ada")
        return await recorded(live, *args, **about)

    monkeypatch.setattr(RunLive, "record", signalled_first)

    assert await trip(thread_id="t") == "Ada"
    assert statuses == ["running"]


async def test_a_run_that_waits_says_so_whatever_else_came_in_between(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = RunLive.record

    @engine.durable
    async def trip(run: everstep.Run) -> str:
        return str(await run.wait_for("card"))

    async def signalled_first(live: RunLive, *args: Any, **about: Any) -> str:
        if live.run_metadata["run_waits"]:
            monkeypatch.setattr(RunLive, "record", recorded)
            await engine.signal("t", "something else")
        return await recorded(live, *args, **about)

    monkeypatch.setattr(RunLive, "record", signalled_first)
    handle = await trip.start(thread_id="t")
    await asyncio.wait([handle._task])

    assert [info.status for info in await engine.runs()] == ["waiting"]
    await engine.signal("t", "card", "Ada")
    assert [info.status for info in await engine.recover()] == ["done"]


async def test_a_run_that_somebody_keeps_is_left_to_them(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @engine.durable
    async def trip(run: everstep.Run) -> str:
        return str(await run.ask("Where to?"))

    monkeypatch.setattr(lists, "_LETTING_GO_SECONDS", 0.05)
    handle = await trip.start(thread_id="t")
    await asyncio.wait([handle._task])
    claims = Claims(repository_of(engine))
    await claims.take("t", await claims.find("t"), 30.0, is_task=False)
    await engine.answer("t", "Oslo")

    assert [info.status for info in await engine.recover()] == ["ready"]


async def test_a_run_whose_answer_came_just_in_time_is_waited_for(
    engine: everstep.CheckpointEngine, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = asyncio.Event()
    recorded = RunLive.record

    @engine.durable
    async def trip(run: everstep.Run) -> str:
        return str(await run.step(world.do, await run.ask("Where to?")))

    async def answered_at_once(live: RunLive, *args: Any, **about: Any) -> str:
        made = await recorded(live, *args, **about)
        if live.run_metadata["run_status"] == "waiting":
            await engine.answer("t", "Oslo")
            await goes_on.wait()
        return made

    monkeypatch.setattr(RunLive, "record", answered_at_once)
    await trip.start(thread_id="t")
    while [info.status for info in await engine.runs()] != ["ready"]:
        await asyncio.sleep(0.001)
    caplog.set_level("INFO", "everstep")
    recovering = asyncio.create_task(engine.recover())
    while caplog.text.count("by somebody else") < 3:
        assert not recovering.done()
        await asyncio.sleep(0.001)
    goes_on.set()

    assert [info.status for info in await recovering] == ["done"]
    assert world.calls == ["Oslo"]


async def test_a_run_that_another_takes_up_is_not_waited_for(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @engine.durable
    async def trip(run: everstep.Run) -> str:
        return str(await run.ask("Where to?"))

    async def taken_first(runner: Runner, thread_id: str) -> bool:
        claims = Claims(repository_of(engine))
        await claims.take(thread_id, await claims.find(thread_id), 30.0, is_task=False)
        return False

    monkeypatch.setattr(lists, "_LETTING_GO_SECONDS", 1e6)
    monkeypatch.setattr(lists, "take_quietly", taken_first)
    handle = await trip.start(thread_id="t")
    await asyncio.wait([handle._task])
    await engine.answer("t", "Oslo")

    assert [info.status for info in await engine.recover()] == ["ready"]


async def test_a_run_that_is_deleted_meanwhile_is_left_out(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @engine.durable
    async def trip(run: everstep.Run) -> str:
        return str(await run.ask("Where to?"))

    async def deleted_first(runner: Runner, thread_id: str) -> bool:
        await engine.delete_threads(prefix=thread_id)
        return False

    monkeypatch.setattr(lists, "take_quietly", deleted_first)
    handle = await trip.start(thread_id="t")
    await asyncio.wait([handle._task])
    await engine.answer("t", "Oslo")

    assert await engine.recover() == []


async def test_who_waits_for_the_result_takes_the_run_up_when_the_answer_is_there(
    engine: everstep.CheckpointEngine,
) -> None:
    @engine.durable
    async def trip(run: everstep.Run) -> str:
        return str(await run.ask("Where to?"))

    waiting = asyncio.create_task(trip(thread_id="t"))
    while not await engine.runs("waiting"):
        await asyncio.sleep(0.01)
    await engine.answer("t", "Oslo")
    assert await waiting == "Oslo"


async def test_two_questions_at_once(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.durable
    async def trip(run: everstep.Run) -> list[str]:
        return await run.gather(
            run.ask("Where?", key="where"), run.ask("When?", key="when"), run.step(world.do, "look")
        )

    handle = await trip.start(thread_id="t")
    await asyncio.wait([handle._task])
    with pytest.raises(everstep.NotWaiting, match="several"):
        await engine.answer("t", "Oslo")
    await engine.answer("t", "May", key="when")
    [info] = await engine.recover()
    assert (info.status, [wait.key for wait in info.waits]) == ("waiting", ["where"])
    await engine.answer("t", "Oslo")
    assert await handle.result() == ["Oslo", "May", "look"]
    assert world.calls == ["look"]


async def test_events_may_come_before_they_are_waited_for(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.durable
    async def trip(run: everstep.Run) -> list[Any]:
        await run.ask("Ready?")
        return [await run.wait_for("paid"), await run.wait_for("paid")]

    handle = await trip.start(thread_id="t")
    await asyncio.wait([handle._task])
    await engine.signal("t", "paid", 1)
    await engine.answer("t", "yes")
    [info] = await engine.recover()
    assert (info.status, [wait.event for wait in info.waits]) == ("waiting", ["paid"])
    await engine.signal("t", "paid", 2)
    assert await handle.result() == [1, 2]
    with pytest.raises(everstep.NotWaiting, match="ended"):
        await engine.signal("t", "paid", 3)


async def test_a_long_sleep_is_left_and_taken_up(
    engine: everstep.CheckpointEngine, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    @engine.durable
    async def nap(run: everstep.Run) -> str:
        await run.step(world.do, "before")
        await run.sleep(3600)
        return await run.step(world.do, "after")

    handle = await nap.start(thread_id="t")
    await asyncio.wait([handle._task])
    assert await handle.status() == "waiting"
    assert await engine.recover() == []
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    assert await handle.status() == "ready"
    [info] = await engine.recover()
    assert info.status == "done"
    assert world.calls == ["before", "after"]


async def test_a_caught_failure_is_replayed_as_it_was(engine: everstep.CheckpointEngine, world: World) -> None:
    def fails() -> None:
        world.do("fails")
        raise FileNotFoundError(2, "no such file", "plan.txt")

    @engine.durable
    async def work(run: everstep.Run) -> tuple[int | None, str]:
        try:
            await run.step(fails)
        except FileNotFoundError as error:
            number = error.errno
        return number, await run.step(world.do, "after")

    world.kill_at("after")
    await killed(work(thread_id="t"))
    assert await engine.resume("t") == (2, "after")
    assert world.calls == ["fails", "after", "after"]


async def test_a_failure_that_ended_the_run_is_tried_again(engine: everstep.CheckpointEngine, world: World) -> None:
    broken = [True]

    def flaky() -> str:
        world.do("flaky")
        if broken[0]:
            raise ValueError("not today")
        return "fine"

    @engine.durable
    async def work(run: everstep.Run) -> str:
        await run.step(world.do, "before")
        return await run.step(flaky)

    with pytest.raises(ValueError, match="not today"):
        await work(thread_id="t")
    assert [info.status for info in await engine.runs()] == ["failed"]
    assert await engine.recover() == []
    broken[0] = False
    assert await engine.resume("t") == "fine"
    assert world.calls == ["before", "flaky", "flaky"]


async def test_what_the_code_puts_into_messages_is_there_once_after_a_failure(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    is_broken = True

    @engine.durable
    async def work(run: everstep.Run) -> None:
        run.messages.append({"role": "user", "content": "first"})
        run.state["count"] = run.state.get("count", 0) + 1
        await run.step(world.do, "one")
        run.messages.append({"role": "user", "content": "second"})
        if is_broken:
            raise ConnectionError("down")
        await run.step(world.do, "two")

    with pytest.raises(ConnectionError):
        await work(thread_id="t")
    is_broken = False
    await engine.resume("t")
    head = await engine.get_latest("t")
    assert head is not None
    assert [message["content"] for message in head.messages] == ["first", "second"]
    assert head.state == {"count": 1}


async def test_retries_and_their_failures_are_recorded(engine: everstep.CheckpointEngine) -> None:
    left = [ValueError("one"), KeyError("two")]

    def flaky() -> str:
        if left:
            raise left.pop(0)
        return "fine"

    @engine.durable
    async def work(run: everstep.Run) -> str:
        return await run.step(flaky, retries=2, backoff=0)

    assert await work(thread_id="t") == "fine"
    points = await engine.list_time_travel_points("t")
    [entry] = [e for p in points for e in p.metadata["run_entries"] if e["op"] == "step"]
    assert (entry["tries"], entry["failures"]) == (3, ["ValueError: one", "KeyError: 'two'"])

    left[:] = [ValueError("one"), KeyError("two")]

    @engine.durable
    async def picky(run: everstep.Run) -> str:
        return await run.step(flaky, retries=2, backoff=0, retry_on=KeyError)

    with pytest.raises(ValueError, match="one"):
        await picky(thread_id="u")


async def test_a_step_that_takes_too_long_fails(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> None:
        await run.step(asyncio.sleep, 60, timeout=0.01)

    with pytest.raises(TimeoutError, match="longer than"):
        await work(thread_id="t")


async def test_what_is_made_by_chance_is_the_same_again(engine: everstep.CheckpointEngine, world: World) -> None:
    seen: list[Any] = []

    @engine.durable
    async def work(run: everstep.Run) -> None:
        seen.append((run.now(), run.random(), run.uuid(), run.random()))
        await run.step(world.do, "first")
        await run.step(world.do, "second")

    world.kill_at("second")
    await killed(work(thread_id="t"))
    await engine.resume("t")
    assert seen[0] == seen[1]
    assert seen[0][1] != seen[0][3]


@pytest.mark.parametrize("effect", ["none", "retry", "once"])
async def test_a_time_that_was_handed_to_a_step_is_the_same_after_a_crash_in_that_step(
    engine: everstep.CheckpointEngine, world: World, effect: Effect
) -> None:
    seen: list[Any] = []

    def book(moment: datetime, name: str) -> str:
        seen.append((moment, everstep.step_key()))
        world.do(name)
        return moment.isoformat()

    @engine.durable
    async def work(run: everstep.Run) -> list[str]:
        moment = run.now()
        # The second one must not be faster than the commit that the first one waits for.
        steps = [run.step(book, moment, name, effect=effect, on_unknown=_it_did_not) for name in ("train", "hotel")]
        return await run.gather(*steps)

    world.kill_at("hotel")
    await killed(work(thread_id="t"))
    booked = await engine.resume("t")
    assert booked == [seen[0][0].isoformat()] * 2
    assert len({moment for moment, _ in seen}) == 1
    assert len({key for _, key in seen}) == 2


def _it_did_not(_: everstep.Unknown) -> dict[str, Any]:
    return everstep.did_not_happen()


async def test_the_idempotency_key_is_the_same_in_every_try(engine: everstep.CheckpointEngine, world: World) -> None:
    keys: list[str] = []

    def pay(amount: int) -> None:
        keys.append(everstep.step_key())
        world.do("pay")

    @engine.durable
    async def work(run: everstep.Run) -> None:
        await run.step(pay, 1)
        await run.step(pay, 1)

    world.kill_at("pay")
    await killed(work(thread_id="t"))
    await engine.resume("t")
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(everstep.InvalidInput, match="inside a step"):
        everstep.step_key()


async def test_messages_and_state_are_saved_with_the_next_step(engine: everstep.CheckpointEngine, world: World) -> None:
    await engine.append("t", [{"role": "user", "content": "hello"}], {"old": 1})

    @engine.durable
    async def work(run: everstep.Run) -> dict[str, Any]:
        assert [m["content"] for m in run.messages] == ["hello"]
        run.messages.append({"role": "assistant", "content": "one"})
        run.state["n"] = run.state.get("n", 0) + 1
        await run.step(world.do, "first")
        run.messages.append({"role": "assistant", "content": "two"})
        run.state["n"] += 1
        await run.step(world.do, "second")
        return run.state

    world.kill_at("second")
    await killed(work(thread_id="t"))
    await engine.append("t", [{"role": "user", "content": "meanwhile"}], {"theirs": True})
    assert await engine.resume("t") == {"old": 1, "n": 2, "theirs": True}
    head = await engine.get_latest("t")
    assert head is not None
    assert [m["content"] for m in head.messages] == ["hello", "one", "meanwhile", "two"]
    assert head.state == {"old": 1, "n": 2, "theirs": True}


async def test_decorated_calls_inside_a_run_are_saved_in_it(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.snapshot_on("tool_call")
    async def noted(what: str) -> str:
        return what

    @engine.durable
    async def work(run: everstep.Run) -> str:
        await noted("before")
        await run.step(world.do, "first")
        await noted("between")
        return await run.step(world.do, "second")

    world.kill_at("second")
    await killed(work(thread_id="t"))
    before = len(await engine.list_time_travel_points("t"))
    assert await engine.resume("t") == "second"
    assert [info.status for info in await engine.runs("done")] == ["done"]
    added = len(await engine.list_time_travel_points("t")) - before
    assert added == 4  # the call after the last recorded step, which takes two, the step, and the end


async def test_a_runner_that_was_paused_writes_nothing_more(engine: everstep.CheckpointEngine, world: World) -> None:
    backend = engine.checkpointer
    assert isinstance(backend, everstep.StoreBackend)
    claims = Claims(backend.blocking.repository)

    def paused() -> None:
        found = run_to_end(claims.find("t"))
        assert found is not None
        late = found._replace(task=found.task._replace(until=0.0))
        run_to_end(claims.take("t", late, 60.0, is_task=False))

    @engine.durable
    async def work(run: everstep.Run) -> str:
        await run.step(paused)
        return await run.step(world.do, "never")

    with pytest.raises(everstep.RunLost):
        await work(thread_id="t")
    assert world.calls == []
    points = await engine.list_time_travel_points("t")
    assert [point.summary.rpartition(": ")[2] for point in points] == ["started"]


async def test_one_runner_at_a_time(engine: everstep.CheckpointEngine, world: World) -> None:
    entered = asyncio.Event()
    go_on = asyncio.Event()

    async def slow() -> str:
        entered.set()
        await go_on.wait()
        return str(world.do("slow"))

    @engine.durable
    async def work(run: everstep.Run) -> str:
        return await run.step(slow)

    first = asyncio.create_task(work(thread_id="t"))
    await entered.wait()
    second = asyncio.create_task(work(thread_id="t"))
    assert await engine.recover() == []
    with pytest.raises(everstep.RunHeld):
        await work.start(thread_id="t")
    go_on.set()
    assert [await first, await second] == ["slow", "slow"]
    assert world.calls == ["slow"]


async def test_retention_keeps_all_of_a_run(store: Store, world: World) -> None:
    whole = getattr(store, "whole", store)
    config = everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=3)
    engine = everstep.CheckpointEngine(everstep.StoreBackend(whole), config)

    @engine.durable
    async def work(run: everstep.Run) -> str:
        for number in range(12):
            await run.step(world.do, f"step {number}")
        return await run.step(world.do, "last")

    world.kill_at("last")
    await killed(work(thread_id="t"))
    for number in range(6):
        await engine.append("t", [{"role": "user", "content": str(number)}])
    await engine.collect()
    world.calls.clear()
    assert await engine.resume("t") == "last"
    assert world.calls == ["last"]


async def test_a_step_is_one_commit(engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where commits come in; an effect that is performed once takes two, and is recorded with the next."""
    repository: Any = engine._timeline.repository  # type: ignore[attr-defined]
    store = repository.store
    commits: list[str] = []
    commit = store.commit

    async def counted(change: Any) -> Any:
        commits.append(change.namespace)
        return await commit(change)

    monkeypatch.setattr(store, "commit", counted)
    seen: list[int] = []

    @engine.durable
    async def work(run: everstep.Run) -> None:
        for number in range(3):
            seen.append(len(commits))
            await run.step(_double, number)
        seen.append(len(commits))
        await run.step(_double, 3, effect="once")
        seen.append(len(commits))
        await run.step(_double, run.now().year)  # the time, and then the step that may go by it
        seen.append(len(commits))

    await work(thread_id="t")
    assert [after - before for before, after in itertools.pairwise(seen)] == [1, 1, 1, 2, 2]
