"""Durable runs whose code has changed, that were branched or rewound, and the effects they had on the world."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

import everstep
from everstep.durable import functions, lists, running
from everstep.durable.live import repository_of
from everstep.repository.effects import Effects, host_of
from tests.durable.worlds import Killed, World, killed

pytestmark = pytest.mark.parametrize("face", ["async"], indirect=True)


async def step_of(engine: everstep.CheckpointEngine, thread_id: str, key: str) -> str:
    """Return the checkpoint that has recorded a step."""
    for point in await engine.list_time_travel_points(thread_id):
        if any(entry["key"] == key for entry in point.metadata.get("run_entries", ())):
            return point.checkpoint_id
    raise AssertionError(f"{key} is not recorded")


# -- code that has changed


async def test_other_arguments_are_an_error_that_tells_them(engine: everstep.CheckpointEngine, world: World) -> None:
    asked = ["red"]

    @engine.durable
    async def work(run: everstep.Run) -> str:
        try:
            await run.step(world.do, "paint", asked[0], key="paint")
        except everstep.EverstepError:
            pass  # it must not get away with that
        return await run.step(world.do, "last", key="last")

    world.kill_at("last")
    await killed(work(thread_id="t"))
    asked[0] = "blue"
    with pytest.raises(everstep.ReplayMismatch) as caught:
        await engine.resume("t")
    assert [(d.path, d.before, d.after) for d in caught.value.differences] == [("args[1]", "red", "blue")]
    asked[0] = "red"
    assert await engine.resume("t") == "last"


async def test_recorded_steps_that_are_not_asked_for_are_an_error(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    keys = ["old", "last"]

    @engine.durable
    async def work(run: everstep.Run) -> list[str]:
        return [await run.step(world.do, key, key=key) for key in keys]

    world.kill_at("last")
    await killed(work(thread_id="t"))
    keys[0] = "new"
    with pytest.raises(everstep.ReplayMismatch, match="'old'"):
        await engine.resume("t")
    assert [info.status for info in await engine.runs()] == ["failed"]


async def test_a_fork_goes_on_before_the_step_and_leaves_the_old_line(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    color = ["red"]

    @engine.durable(on_change="fork")
    async def work(run: everstep.Run) -> list[str]:
        first = await run.step(world.do, "first", key="first")
        second = await run.step(world.do, "paint", color[0], key="paint")
        return [first, second, await run.step(world.do, "last", key="last")]

    assert await work(thread_id="t") == ["first", "red", "last"]
    head = await engine.get_latest("t")
    color[0] = "blue"
    assert await engine.resume("t") == ["first", "red", "last"]  # it is done, and nothing is asked for
    await engine.rewind(await step_of(engine, "t", "paint"))
    world.calls.clear()
    assert await engine.resume("t") == ["first", "blue", "last"]
    assert world.calls == ["paint", "last"]
    old = await engine.get(head.metadata.checkpoint_id) if head is not None else None
    assert old is not None
    assert old.tools_result["result"] == ["first", "red", "last"]
    names = {info.thread_id for info in await engine.runs("done")}
    assert len(names) == 1
    assert names != {"t"}


async def test_a_run_goes_on_in_one_branch_however_often_it_is_taken_up(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    colours = ["red"]

    @engine.durable(on_change="fork")
    async def work(run: everstep.Run) -> list[str]:
        painted = await run.step(world.do, "paint", colours[0], key="paint")
        return [painted, await run.step(world.do, "last", key="last")]

    world.kill_at("last")
    await killed(work(thread_id="t"))
    colours[0] = "blue"
    world.kill_at("last")
    await killed(engine.resume("t"))
    for _ in range(3):
        await engine.recover()
    assert world.calls == ["paint", "last", "paint", "last", "last"]
    assert await engine.resume("t") == ["blue", "last"]
    assert sorted([info.status for info in await engine.runs()]) == ["done", "paused"]
    # With the code that it was begun with it goes on where it was.
    colours[0] = "red"
    assert await engine.resume("t") == ["red", "last"]
    assert sorted([info.status for info in await engine.runs()]) == ["done", "done"]


async def test_a_branch_that_was_taken_up_is_recovered(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> str:
        await run.step(world.do, "one", key="one")
        result: str = await run.step(world.do, "two", key="two")
        return result

    await work(thread_id="t")
    branch = await engine.branch(await step_of(engine, "t", "one"), "again")
    assert await engine.recover() == []  # nobody takes up a branch that was only made
    world.kill_at("two")
    await killed(engine.resume(branch))
    assert [(info.thread_id, info.status) for info in await engine.recover()] == [(branch, "done")]


@pytest.mark.parametrize("now", [("Cancel it?", 412), ("Book it?", 9999)], ids=["question", "details"])
async def test_an_answer_is_to_the_question_that_was_asked(
    engine: everstep.CheckpointEngine, now: tuple[str, int]
) -> None:
    asked = [("Book it?", 412)]

    @engine.durable
    async def book(run: everstep.Run) -> str:
        question, price = asked[-1]
        first = await run.ask(question, {"price": price})
        return f"{question} {first} {await run.ask('Really?')}"

    await begin_and_wait(book, "t")
    await engine.answer("t", "yes")
    asked.append(now)
    with pytest.raises(everstep.ReplayMismatch, match="another question") as raised:
        await lists.resume_once(engine, "t", None)
    assert len(raised.value.differences) == 1
    # In a branch it is asked anew.
    await lists.resume_once(engine, "t", "fork")
    [branch] = await engine.runs("waiting")
    await engine.answer(branch.thread_id, "no")
    await engine.recover()
    await engine.answer(branch.thread_id, "no")
    assert await engine.resume(branch.thread_id) == f"{now[0]} no no"


async def test_a_question_that_nobody_has_answered_may_change(engine: everstep.CheckpointEngine) -> None:
    asked = ["Bok it?"]

    @engine.durable
    async def book(run: everstep.Run) -> str:
        return str(await run.ask(asked[-1], {"price": len(asked)}))

    await begin_and_wait(book, "t")
    asked.append("Book it?")
    await lists.resume_once(engine, "t", None)
    [run] = await engine.runs("waiting")
    assert [wait.question for wait in run.waits] == ["Book it?"]
    await engine.answer("t", "yes")
    assert await engine.resume("t") == "yes"


async def begin_and_wait(function: everstep.DurableFunction[Any], thread_id: str) -> None:
    """Begin a run, and come back when it waits."""
    handle = await function.start(thread_id=thread_id)
    while await handle.status() != "waiting":
        await asyncio.sleep(0.001)
    await asyncio.shield(handle._task)


async def test_rerun_does_steps_without_effect_anew(engine: everstep.CheckpointEngine, world: World) -> None:
    color = ["red"]

    @engine.durable(on_change="rerun")
    async def work(run: everstep.Run, effect: Any) -> list[str]:
        painted = await run.step(world.do, "paint", color[0], key="paint", effect=effect)
        return [painted, await run.step(world.do, "last", key="last")]

    world.kill_at("last")
    await killed(work("none", thread_id="t"))
    world.kill_at("last")
    await killed(work("retry", thread_id="u"))
    color[0] = "blue"
    assert await engine.resume("t") == ["blue", "last"]
    with pytest.raises(everstep.ReplayMismatch):
        await engine.resume("u")


# -- branches and rewinds


async def test_a_branch_goes_on_from_its_step_without_what_came_before(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> list[str]:
        return [await run.step(world.do, name, key=name) for name in ("one", "two", "three")]

    await work(thread_id="t")
    branch = await engine.branch(await step_of(engine, "t", "two"), "again")
    assert [info.thread_id for info in await engine.runs("paused")] == [branch]
    assert await engine.recover() == []
    world.calls.clear()
    assert await engine.resume(branch) == ["one", "two", "three"]
    assert world.calls == ["three"]


# -- effects


async def test_an_effect_is_performed_once_and_its_fate_is_asked_for(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    @engine.durable
    async def pay(run: everstep.Run) -> str:
        return await run.step(world.do, "charge", effect="once")

    world.kill_at("charge")
    await killed(pay(thread_id="t"))
    [info] = await engine.recover()
    assert info.status == "waiting"
    assert "Did do happen?" in str(info.waits[0].question)
    assert info.waits[0].effect == "do"
    with pytest.raises(everstep.InvalidInput, match="happened"):
        await engine.answer("t", "yes")  # refused at once: once recorded, it could not be taken back
    assert [info.status for info in await engine.runs()] == ["waiting"]
    await engine.answer("t", everstep.happened("receipt"))
    assert await engine.resume("t") == "receipt"
    assert world.calls == ["charge"]


@pytest.mark.parametrize("did_happen", [True, False])
async def test_a_person_says_whether_it_happened(
    engine: everstep.CheckpointEngine, world: World, did_happen: bool
) -> None:
    @engine.durable
    async def pay(run: everstep.Run) -> str:
        return await run.step(world.do, "charge", effect="once")

    world.kill_at("charge")
    await killed(pay(thread_id="t"))
    await engine.recover()
    await engine.answer("t", everstep.happened("receipt 7") if did_happen else everstep.did_not_happen())
    assert await engine.resume("t") == ("receipt 7" if did_happen else "charge")
    assert world.calls == (["charge"] if did_happen else ["charge", "charge"])


async def test_an_effect_takes_arguments_that_cannot_be_stored(engine: everstep.CheckpointEngine) -> None:
    is_first = True

    def charge(card: object) -> str:
        nonlocal is_first
        if is_first:
            is_first = False
            raise Killed
        return f"charged {type(card).__name__}"

    @engine.durable
    async def pay(run: everstep.Run) -> str:
        return await run.step(charge, object(), effect="once")

    await killed(pay(thread_id="t"))
    await engine.recover()
    await engine.answer("t", everstep.did_not_happen())
    assert await engine.resume("t") == "charged object"


async def test_a_function_finds_out_whether_it_happened(engine: everstep.CheckpointEngine, world: World) -> None:
    asked: list[everstep.Unknown] = []

    def find_out(unknown: everstep.Unknown) -> dict[str, Any]:
        asked.append(unknown)
        return everstep.happened("found")

    @engine.durable
    async def pay(run: everstep.Run, way: Any) -> str:
        return await run.step(world.do, "charge", effect="once", on_unknown=find_out if way == "look" else way)

    world.kill_at("charge")
    await killed(pay("look", thread_id="t"))
    assert await engine.resume("t") == "found"
    assert [tuple(each.args) for each in asked] == [("charge",)]
    world.kill_at("charge")
    await killed(pay("fail", thread_id="u"))
    with pytest.raises(everstep.EffectUnknown):
        await engine.resume("u")
    assert world.calls == ["charge", "charge"]


async def test_a_rewound_run_gets_the_outcome_of_its_effect(engine: everstep.CheckpointEngine, world: World) -> None:
    price = [100]

    @engine.durable(on_change="fork")
    async def pay(run: everstep.Run) -> list[str]:
        await run.step(world.do, "before", key="before")
        receipt = await run.step(world.do, "charge", f"receipt {price[0]}", key="charge", effect="once")
        return [receipt, await run.step(world.do, "after", key="after")]

    assert await pay(thread_id="t") == ["receipt 100", "after"]
    await engine.rewind(await step_of(engine, "t", "before"))
    assert await engine.resume("t") == ["receipt 100", "after"]
    assert world.calls.count("charge") == 1
    branch = await engine.branch(await step_of(engine, "t", "before"), "dear")
    price[0] = 200
    with pytest.raises(everstep.EffectConflict):
        await engine.resume(branch)
    allowed = await engine.branch(await step_of(engine, "t", "before"), "allowed", effects="allow")
    assert await engine.resume(allowed) == ["receipt 200", "after"]
    assert world.calls.count("charge") == 2
    shared = await engine.branch(await step_of(engine, allowed, "after"), "shared again")
    head = await engine.get_latest(shared)
    assert head is not None
    assert head.metadata.metadata["run_effects"] == "share"


async def test_a_run_that_is_rewound_while_it_runs_goes_on_from_there(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    is_rewound = False

    @engine.durable
    async def work(run: everstep.Run) -> str:
        nonlocal is_rewound
        await run.step(world.do, "one", key="one")
        await run.step(world.do, "two", key="two")
        if not is_rewound:
            is_rewound = True
            await engine.rewind(await step_of(engine, "t", "one"))
        await run.step(world.do, "three", key="three")
        result: str = await run.step(world.do, "four", key="four")
        return result

    with pytest.raises(everstep.RunLost):
        await work(thread_id="t")
    assert world.calls == ["one", "two", "three"]
    assert [info.status for info in await engine.recover()] == ["done"]
    assert world.calls == ["one", "two", "three", "two", "four"]


async def test_what_a_deleted_branch_did_to_the_world_is_told(
    engine: everstep.CheckpointEngine, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    @engine.durable
    async def pay(run: everstep.Run) -> str:
        await run.step(world.do, "before", key="before")
        if run.thread_id == "t":
            return await run.step(world.do, "ask", key="ask")
        return await run.step(world.do, "charge", key="charge", effect="once")

    await pay(thread_id="t")
    branch = await engine.branch(await step_of(engine, "t", "before"), "paid")
    await engine.resume(branch)
    deleted = await engine.delete_threads(prefix=branch)
    assert deleted.effects == [everstep.DroppedEffect(branch, "charge", "done")]
    assert "charge (done)" in caplog.text
    assert (await engine.delete_threads(prefix="t")).effects == []


async def test_a_branch_whose_beginning_was_deleted_pays_for_nothing_again(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    @engine.durable
    async def pay(run: everstep.Run) -> str:
        await run.step(world.do, "before", key="before")
        return await run.step(world.do, "charge", "receipt", key="charge", effect="once")

    assert await pay(thread_id="t") == "receipt"
    branch = await engine.branch(await step_of(engine, "t", "before"), "a")
    (first,) = await engine.list_time_travel_points(branch)
    later = await engine.branch(first.checkpoint_id, "b")
    await engine.checkpointer.delete_thread("t")
    for thread_id in (branch, later):
        with pytest.raises(everstep.RunError, match="lost its beginning"):
            await engine.resume(thread_id)
        with pytest.raises(everstep.RunError, match="lost its beginning"):
            await pay(thread_id=thread_id)
    assert world.calls == ["before", "charge"]
    await engine.checkpointer.delete_thread(branch)
    repository = repository_of(engine)
    assert await host_of(repository, later) == later
    known = await Effects(repository, later).find("charge")
    assert known is not None
    assert known.about["status"] == "done"
    assert known.about["thread"] == "t"


async def test_a_thread_whose_effects_cannot_be_read_can_be_deleted(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def damaged(*_args: object, **_options: object) -> None:
        raise everstep.CheckpointCorrupted("rows are lost", thread_id="t")

    await engine.append("t", [{"role": "user", "content": "hi"}])
    with monkeypatch.context() as harm:
        harm.setattr(type(repository_of(engine).store), "thread", damaged)
        assert await engine.checkpointer.delete_thread("t") == 1
    assert "cannot be read" in caplog.text
    assert await engine.get_latest("t") is None


async def test_a_failed_effect_is_not_repeated_by_itself(engine: everstep.CheckpointEngine, world: World) -> None:
    def charge() -> None:
        world.do("charge")
        raise ValueError("declined")

    @engine.durable
    async def pay(run: everstep.Run) -> str:
        try:
            await run.step(charge, effect="once")
        except ValueError:
            return await run.step(world.do, "after")
        return "never"

    world.kill_at("after")
    await killed(pay(thread_id="t"))
    assert await engine.resume("t") == "after"
    assert world.calls.count("charge") == 1

    @engine.durable
    async def pay_or_fail(run: everstep.Run) -> None:
        await run.step(charge, effect="once", on_unknown="fail")

    with pytest.raises(ValueError, match="declined"):
        await pay_or_fail(thread_id="u")
    with pytest.raises(everstep.EffectUnknown):
        await engine.resume("u")
    assert world.calls.count("charge") == 2


@pytest.mark.parametrize("ends_by", ["a time limit", "a result that cannot be stored"])
async def test_an_unknown_effect_that_the_code_caught_is_replayed_as_that(
    engine: everstep.CheckpointEngine, world: World, ends_by: str
) -> None:
    async def charge() -> object:
        world.do("charge")
        if ends_by == "a time limit":
            await asyncio.sleep(60)
        return object()

    @engine.durable
    async def pay(run: everstep.Run, is_caught: bool) -> object:
        try:
            return await run.step(charge, effect="once", timeout=0.05 if ends_by == "a time limit" else None)
        except (everstep.EffectUnknown, everstep.UnstorableValue):
            if not is_caught:
                raise
        await run.step(world.do, "tell")
        return await run.step(world.do, "last")

    world.kill_at("last")
    await killed(pay(True, thread_id="t"))
    await asyncio.wait_for(engine.resume("t"), 60)
    assert world.calls == ["charge", "tell", "last", "last"]

    # One that ended the run is asked for, as after a crash.
    with pytest.raises((everstep.EffectUnknown, everstep.UnstorableValue)):
        await pay(False, thread_id="u")
    handle = await pay.start(False, thread_id="u")
    await asyncio.shield(handle._task)
    await engine.answer("u", everstep.happened("receipt"))
    assert await handle.result() == "receipt"
    assert world.calls.count("charge") == 2


async def test_a_rewind_takes_effects_back(engine: everstep.CheckpointEngine, world: World) -> None:
    refunds: list[str] = []

    async def refund(receipt: str) -> None:
        refunds.append(receipt)

    @engine.durable
    async def pay(run: everstep.Run) -> None:
        await run.step(world.do, "before", key="before")
        await run.step(world.do, "hotel", key="hotel", effect="once", undo=refund)
        await run.step(world.do, "flight", key="flight", effect="once", undo=refund)

    await pay(thread_id="t")
    before = await step_of(engine, "t", "before")
    done = await engine.rewind(before, compensate=True)
    assert refunds == ["flight", "hotel"] == done.compensated
    world.calls.clear()
    await engine.resume("t")
    assert world.calls == ["hotel", "flight"]
    await engine.rewind(before)
    world.calls.clear()
    await engine.resume("t")
    assert world.calls == []


class Desk:
    """Takes effects back, by name."""

    def __init__(self, name: str, refunds: list[str]) -> None:
        self._name = name
        self._refunds = refunds

    def __call__(self, receipt: str) -> None:
        self.refund(receipt)

    def refund(self, receipt: str) -> None:
        self._refunds.append(f"{receipt} at {self._name}")


@pytest.mark.parametrize(
    "named",
    [
        lambda desk: lambda receipt: desk(receipt),
        lambda desk: desk,
        lambda desk: desk.refund,
        lambda desk: functools.partial(Desk.refund, desk),
        lambda desk: Mock(side_effect=desk),
    ],
    ids=["lambda", "object", "method", "partial", "mock"],
)
async def test_an_effect_is_taken_back_by_the_very_function_that_was_named_with_it(
    engine: everstep.CheckpointEngine, world: World, named: Callable[[Desk], Callable[[str], Any]]
) -> None:
    refunds: list[str] = []

    @engine.durable
    async def pay(run: everstep.Run) -> None:
        for name in ("train", "hotel"):
            await run.step(world.do, name, key=name, effect="once", undo=named(Desk(name, refunds)))

    await pay(thread_id="t")
    await engine.rewind(await step_of(engine, "t", "start"), compensate=True)
    assert refunds == ["hotel at hotel", "train at train"]


async def test_a_branch_that_repeats_effects_takes_back_its_own(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    refunds: list[int] = []

    def charge() -> int:
        world.do("charge")
        return len(world.calls)

    @engine.durable
    async def pay(run: everstep.Run) -> int:
        await run.step(len, "", key="before")
        return await run.step(charge, effect="once", undo=refunds.append)

    assert await pay(thread_id="t") == 1
    before = await step_of(engine, "t", "before")
    branch = await engine.branch(before, "again", effects="allow")
    assert await engine.resume(branch) == 2
    first = (await engine.list_time_travel_points(branch))[-1]
    await engine.rewind(first.checkpoint_id, compensate=True)
    assert refunds == [2]
    await engine.rewind(before, compensate=True)
    assert refunds == [2, 1]


async def test_a_rewind_takes_back_an_effect_that_a_crash_has_cut_off(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    refunds: list[str] = []

    @engine.durable
    async def work(run: everstep.Run) -> None:
        await run.step(world.do, "one", key="one")
        await run.step(world.do, "pay", key="pay", effect="once", undo=refunds.append)
        raise Killed  # before the next commit, which would have recorded the step

    await killed(work(thread_id="t"))
    done = await engine.rewind(await step_of(engine, "t", "one"), compensate=True)
    assert done.compensated == ["pay"]
    assert refunds == ["pay"]


async def test_a_rewind_does_not_guess_whether_an_effect_is_to_be_taken_back(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    refunds: list[str] = []

    @engine.durable
    async def work(run: everstep.Run) -> None:
        await run.step(world.do, "one", key="one")
        await run.step(world.do, "pay", key="pay", effect="once", undo=refunds.append)

    world.kill_at("pay")
    await killed(work(thread_id="t"))
    before = await engine.get_latest("t")
    with pytest.raises(everstep.EffectUnknown):
        await engine.rewind(await step_of(engine, "t", "one"), compensate=True)
    assert refunds == []
    assert await engine.get_latest("t") == before


async def test_an_effect_keeps_its_result_whatever_the_code_makes_of_it(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> list[int]:
        paid: list[int] = await run.step(world.do, "pay", [1], key="pay", effect="once")
        paid.append(2)
        await run.step(world.do, "tell", len(paid), key="tell")
        await run.step(world.do, "last", key="last")
        return paid

    world.kill_at("last")
    await killed(work(thread_id="t"))
    assert await engine.resume("t") == [1, 2]


async def test_a_compensation_that_is_cut_off_goes_on(engine: everstep.CheckpointEngine, world: World) -> None:
    refunds: list[str] = []

    def refund(receipt: str) -> None:
        if receipt == "hotel" and "hotel" not in refunds:
            refunds.append(receipt)
            raise Killed
        refunds.append(receipt)

    @engine.durable
    async def pay(run: everstep.Run) -> None:
        await run.step(world.do, "hotel", key="hotel", effect="once", undo=refund)
        await run.step(world.do, "flight", key="flight", effect="once", undo=refund)

    await pay(thread_id="t")
    start = await step_of(engine, "t", "start")
    await killed(engine.rewind(start, compensate=True))
    head = await engine.get_latest("t")
    assert head is not None
    assert head.metadata.checkpoint_id != start
    await engine.rewind(start, compensate=True)
    assert refunds == ["flight", "hotel", "hotel"]


async def test_a_damaged_run_does_not_keep_the_others_from_being_found(
    engine: everstep.CheckpointEngine, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> str:
        return await run.step(world.do, "only", key="only")

    for name in ("one", "two", "three"):
        await work(thread_id=name)
    kind = type(engine.checkpointer.store)  # type: ignore[attr-defined]
    search = kind.search

    async def found(self: Any, asked: Any) -> Any:
        hits = await search(self, asked)
        for n, hit in enumerate(hits):
            if hit.position.thread_id == "two":
                hits[n] = hit._replace(stored=None, damage=everstep.CheckpointCorrupted("harmed", thread_id="two"))
        return hits

    monkeypatch.setattr(kind, "search", found)
    with caplog.at_level("WARNING", "everstep"):
        assert sorted(info.thread_id for info in await engine.runs()) == ["one", "three"]
    assert "run 'two' is damaged" in caplog.text


async def test_what_a_merged_branch_has_done_comes_along(engine: everstep.CheckpointEngine, world: World) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> list[str]:
        done = [await run.step(world.do, name, key=name) for name in ("one", "two")]
        return [*done, await run.step(world.do, "three", effect="once")]

    world.kill_at("three")
    await killed(work(thread_id="t"))
    branch = await engine.branch(await step_of(engine, "t", "two"), "ahead")
    assert await _taken_up(engine, branch) == "waiting"  # for whether the third one happened
    await engine.answer(branch, everstep.happened("three"))
    assert await engine.resume(branch) == ["one", "two", "three"]
    await engine.merge_branch(branch, "t", resolve="theirs")
    assert await engine.resume("t") == ["one", "two", "three"]
    assert world.calls == ["one", "two", "three"]


async def test_a_run_has_ended_when_a_branch_that_has_is_merged(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> str:
        answer: str = await run.ask("Which?")
        await run.step(world.do, "act")
        return answer

    runner = functions.async_runner(engine, engine._programs.find(work.name))
    await running.take_part(runner, "t", ((), {}))
    head = await engine.get_latest("t")
    assert head is not None
    branch = await engine.branch(head.metadata.checkpoint_id, "ahead")
    await engine.answer(branch, "that")
    assert await engine.resume(branch) == "that"
    await engine.merge_branch(branch, "t", resolve="theirs")
    assert [(info.thread_id, info.status) for info in await engine.recover()] == [("t", "done")]
    assert await engine.recover() == []
    assert world.calls == ["act"]


async def _taken_up(engine: everstep.CheckpointEngine, thread_id: str) -> str:
    """Take a run up until it waits, and return its status."""
    program = engine._programs.find((await engine.runs("paused"))[0].name)
    await running.take_part(functions.async_runner(engine, program), thread_id, None)
    return next(info.status for info in await engine.runs() if info.thread_id == thread_id)


async def test_a_run_whose_compensation_is_cut_off_does_not_go_on_as_if_nothing_was_taken_back(
    engine: everstep.CheckpointEngine,
) -> None:
    done: list[int] = []
    is_down = True

    def pay(amount: int) -> int:
        done.append(amount)
        return amount

    def refund(amount: int) -> None:
        if amount == 1 and is_down:
            raise ConnectionError("down")
        done.append(-amount)

    @engine.durable
    async def order(run: everstep.Run) -> list[int]:
        paid = [await run.step(pay, amount, effect="once", undo=refund) for amount in (1, 2)]
        await run.ask("Ship?")
        return paid

    handle = await order.start(thread_id="t")
    await asyncio.wait([handle._task])
    first = (await engine.list_time_travel_points("t"))[-1].checkpoint_id
    with pytest.raises(ConnectionError):
        await engine.rewind(first, compensate=True)

    assert [info.status for info in await engine.runs()] == ["paused"]
    with pytest.raises(everstep.EverstepError):
        await engine.answer("t", "yes")
    assert await engine.recover() == []
    with pytest.raises(everstep.EverstepError, match=r"engine.rewind\('.*', compensate=True\)"):
        await engine.resume("t")
    is_down = False
    assert (await engine.rewind(first, compensate=True)).compensated == ["pay"]
    assert done == [1, 2, -2, -1]
    assert [info.status for info in await engine.recover()] == ["waiting"]
    assert done == [1, 2, -2, -1, 1, 2]


async def test_what_is_performed_once_more_has_another_idempotency_key(engine: everstep.CheckpointEngine) -> None:
    """A service would else answer with what was undone since, and nothing would be paid."""
    keys: list[str] = []
    is_cut_off = False

    def pay() -> None:
        keys.append(everstep.step_key())
        if is_cut_off:
            raise Killed

    @engine.durable
    async def order(run: everstep.Run) -> None:
        await run.step(pay, effect="once", undo=str, on_unknown=lambda _: everstep.did_not_happen())

    await order(thread_id="t")
    first = (await engine.list_time_travel_points("t"))[-1].checkpoint_id
    await engine.rewind(first, compensate=True)
    is_cut_off = True
    await killed(engine.resume("t"))
    is_cut_off = False
    await engine.resume("t")
    assert keys[1] == keys[2] != keys[0]

    branch = await engine.branch(first, "once more", effects="allow", thread_id="t")
    is_cut_off = True
    await killed(engine.resume(branch))
    is_cut_off = False
    await engine.resume(branch)
    assert keys[3] == keys[4] not in keys[:3]
