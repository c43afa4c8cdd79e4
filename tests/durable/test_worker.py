"""Workers: they take up what has something to do, beside each other, and let go of it when they are stopped."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.durable.worker import Worker
from everstep.reports import RunInfo


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[everstep.CheckpointEngine]:
    made = everstep.open(tmp_path / "runs.db", synchronous="off")
    yield made
    made.sync.close()


async def until(condition: Callable[[], Any]) -> None:
    """Wait for something, for a long time if need be."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def statuses(engine: everstep.CheckpointEngine) -> dict[str, str]:
    return {info.thread_id: info.status for info in await engine.runs()}


async def begun(engine: everstep.CheckpointEngine, function: Any, count: int) -> list[str]:
    """Start runs that wait for an answer, and return their threads."""
    names = [f"run-{number}" for number in range(count)]
    for name in names:
        handle = await function.start(thread_id=name)
        await asyncio.shield(handle._task)
    return names


async def test_a_worker_takes_up_what_has_got_its_answer(engine: everstep.CheckpointEngine) -> None:
    told: list[RunInfo] = []

    @engine.durable
    async def ask(run: everstep.Run) -> Any:
        return await run.step(str.upper, await run.ask("What?"))

    worker = Worker([engine], 2, told=told.append)
    names = await begun(engine, ask, 5)
    working = asyncio.create_task(worker.watch())
    for name in names:
        await engine.answer(name, "yes")
    await until(lambda: len(told) >= 5)
    worker.stop()
    await working
    assert await statuses(engine) == dict.fromkeys(names, "done")
    assert {(info.thread_id, info.status) for info in told} == {(name, "done") for name in names}


async def test_what_is_there_is_taken_up_once_without_watching(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def ask(run: everstep.Run) -> Any:
        return await run.ask("What?")

    names = await begun(engine, ask, 3)
    for name in names[:2]:
        await engine.answer(name, 1)
    await Worker([engine], 1).take_up_all()
    assert await statuses(engine) == {names[0]: "done", names[1]: "done", names[2]: "waiting"}


@pytest.mark.parametrize("is_blocking", [False, True])
async def test_a_stop_lets_the_step_end_and_the_run_go(engine: everstep.CheckpointEngine, is_blocking: bool) -> None:
    entered, go_on = threading.Event(), threading.Event()
    calls: list[str] = []

    def slow() -> str:
        calls.append("slow")
        entered.set()
        assert go_on.wait(60)
        return "recorded"

    def later(before: str) -> str:
        calls.append("later")
        return before

    async def work(run: everstep.Run) -> str:
        await run.ask("Begin?")
        return await run.step(later, await run.step(slow))

    def plain_work(run: everstep.SyncRun) -> str:
        run.ask("Begin?")
        return run.step(later, run.step(slow))

    if is_blocking:
        engine.sync.durable(name="work")(plain_work).start(thread_id="t")._thread.join()
    else:
        await begun(engine, engine.durable(name="work")(work), 1)
    [name] = await statuses(engine)
    await engine.answer(name, True)
    worker = Worker([engine])
    working = asyncio.create_task(worker.watch())
    await until(entered.is_set)
    worker.stop()
    await asyncio.sleep(0)
    assert not working.done()
    go_on.set()
    await working
    assert calls == ["slow"]
    # Nobody holds it, and whoever comes next goes on without the step that was recorded.
    assert await statuses(engine) == {name: "ready"}
    await Worker([engine]).take_up_all()
    assert await statuses(engine) == {name: "done"}
    assert calls == ["slow", "later"]


async def test_a_run_that_was_let_go_beside_a_question_is_taken_up_before_the_answer(
    engine: everstep.CheckpointEngine,
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        entered.set()
        assert go_on.wait(60)

    @engine.durable
    async def work(run: everstep.Run) -> Any:
        async def two() -> None:
            await run.step(slow)
            await run.step(str, key="second")

        await run.ask("Begin?", key="begin")
        return (await run.gather(run.ask("What?", key="what"), two()))[0]

    [name] = await begun(engine, work, 1)
    await engine.answer(name, True)
    worker = Worker([engine])
    working = asyncio.create_task(worker.watch())
    await until(entered.is_set)
    worker.stop()
    go_on.set()
    await working
    assert await statuses(engine) == {name: "ready"}
    await engine.answer(name, "answered", key="what")
    await Worker([engine]).take_up_all()
    assert await statuses(engine) == {name: "done"}


class Odd(BaseException):
    """What is no failure."""


@pytest.mark.parametrize("error", [SystemExit(), asyncio.CancelledError(), Odd(), BaseExceptionGroup("odd", [Odd()])])
async def test_a_run_that_comes_no_further_is_left_alone_for_a_while(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    calls: list[int] = []

    @engine.durable
    async def leave(run: everstep.Run) -> None:
        await run.ask("Begin?")
        calls.append(1)
        raise error

    [name] = await begun(engine, leave, 1)
    await engine.answer(name, True)
    worker = Worker([engine])
    await worker.take_up_all()
    await worker.take_up_all()
    assert calls == [1]
    monkeypatch.setattr("everstep.durable.worker.time.monotonic", lambda: 1e12)
    await worker.take_up_all()
    assert calls == [1, 1]


async def test_what_leaves_one_run_does_not_leave_the_others(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> None:
        await run.ask("Begin?")
        if run.thread_id == "run-0":
            raise asyncio.CancelledError

    names = await begun(engine, work, 3)
    for name in names:
        await engine.answer(name, True)
    await engine.recover()
    assert await statuses(engine) == {names[0]: "ready", names[1]: "done", names[2]: "done"}


async def test_sleepers_are_woken_and_are_not_looked_for_among_all_that_wait(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @engine.durable
    async def nap(run: everstep.Run) -> int:
        for _ in range(2):
            await run.sleep(3600)
        return 1

    @engine.durable
    async def ask(run: everstep.Run) -> Any:
        return await run.ask("What?")

    moment = [time.time()]
    monkeypatch.setattr("everstep.durable.worker.time.time", lambda: moment[0])  # the module that all share
    for number in range(30):
        await asyncio.shield((await ask.start(thread_id=f"ask-{number}"))._task)
    worker = Worker([engine], 1)
    await worker.take_up_all()
    await asyncio.shield((await nap.start(thread_id="nap-1"))._task)
    await asyncio.shield((await nap.start(thread_id="nap-2"))._task)
    await worker.take_up_all()
    assert set(worker._candidates[0]._from) == {"nap-1", "nap-2"}
    for _ in range(2):
        moment[0] += 3700
        await worker.take_up_all()
    found = await statuses(engine)
    assert (found["nap-1"], found["nap-2"]) == ("done", "done")
    await worker.take_up_all()
    assert worker._candidates[0]._from == {}


async def test_what_an_engine_searches_for_is_only_what_has_happened_since(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @engine.durable
    async def ask(run: everstep.Run) -> Any:
        return await run.ask("What?")

    now = time.monotonic()
    clock = [now]
    monkeypatch.setattr("everstep.durable.worker.time.monotonic", lambda: clock[0])
    await begun(engine, ask, 3)
    worker = Worker([engine])
    await worker.take_up_all()
    store = worker._candidates[0]._repository.store
    listed: list[int] = []
    search = store.search

    async def counted(asked: Any) -> Any:
        hits = await search(asked)
        listed.append(len(hits))
        return hits

    monkeypatch.setattr(store, "search", counted)
    counts = []
    for seconds in (0, 20, 20, 300):  # after the last of these everything is looked at again
        clock[0] += seconds
        listed.clear()
        await worker.take_up_all()
        counts.append(sum(listed))
    # What may have been on its way is looked at again, once that cannot be it is nothing, and at last all there is.
    assert counts == [3, 3, 0, 3]


async def test_a_run_is_taken_up_when_its_owner_has_died_meanwhile(engine: everstep.CheckpointEngine) -> None:
    entered, go_on = threading.Event(), threading.Event()
    is_killed = [True]

    class Killed(BaseException):
        pass

    def slow() -> str:
        entered.set()
        assert go_on.wait(60)
        if is_killed[0]:
            is_killed[0] = False
            raise Killed
        return "done"

    @engine.durable
    async def work(run: everstep.Run) -> str:
        return await run.step(slow)

    handle = await work.start(thread_id="t")
    await until(entered.is_set)
    worker = Worker([engine])
    await worker.take_up_all()
    assert await statuses(engine) == {"t": "running"}
    go_on.set()
    with pytest.raises(Killed):
        await asyncio.shield(handle._task)
    await worker.take_up_all()
    assert await statuses(engine) == {"t": "done"}


async def test_a_look_that_was_cut_off_is_begun_anew(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    @engine.durable
    async def ask(run: everstep.Run) -> Any:
        return await run.ask("What?")

    names = await begun(engine, ask, 2)
    await engine.answer(names[0], 1)
    await engine.recover()
    await engine.answer(names[1], 1)
    worker = Worker([engine])
    store = worker._candidates[0]._repository.store
    search = store.search
    looks: list[Any] = []

    async def cut_off(asked: Any) -> Any:
        looks.append(asked)
        if len(looks) == 2:
            raise everstep.StoreUnavailable("no server")
        return await search(asked)

    monkeypatch.setattr(store, "search", cut_off)
    with pytest.raises(everstep.StoreUnavailable):
        await worker.take_up_all()
    await worker.take_up_all()
    assert looks[2].since is None
    assert await statuses(engine) == dict.fromkeys(names, "done")


async def test_two_workers_do_everything_once(tmp_path: Path) -> None:
    calls: list[str] = []
    engines = [everstep.open(tmp_path / "runs.db", synchronous="off") for _ in range(2)]
    for engine in engines:

        @engine.durable(name="ask")
        async def ask(run: everstep.Run) -> Any:
            await run.ask("What?")
            return await run.step(calls.append, run.thread_id)

    names = await begun(engines[0], ask, 12)
    workers = [Worker([engine], 4) for engine in engines]
    working = [asyncio.create_task(worker.watch()) for worker in workers]
    for name in names:
        await engines[0].answer(name, 1)
    async with asyncio.timeout(60):
        while await engines[0].runs("ready") or await engines[0].runs("running"):
            await asyncio.sleep(0.02)
    for worker in workers:
        worker.stop()
    await asyncio.gather(*working)
    assert await statuses(engines[0]) == dict.fromkeys(names, "done")
    assert sorted(calls) == sorted(names)
    for engine in engines:
        await engine.close()


async def test_a_store_that_does_not_answer_does_not_end_a_worker(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[everstep.StoreError] = []

    async def fail(*_: Any) -> Any:
        raise everstep.StoreUnavailable("no server")

    worker = Worker([engine], troubled=troubles.append)
    monkeypatch.setattr(worker._candidates[0], "ready", fail)
    working = asyncio.create_task(worker.watch())
    await until(lambda: len(troubles) >= 2)
    worker.stop()
    await working


PROGRAM = """
import asyncio, sys
import everstep

engine = everstep.open("runs.db")

class Refused(Exception):
    pass

def refuse():
    raise Refused("no")

@engine.durable
async def careful(run):
    try:
        await run.step(refuse)
    except Refused as error:
        found = repr(error)
    await run.ask("Go on?")
    return found

if __name__ == "__main__":
    if sys.argv[1] == "start":
        async def begin():
            await asyncio.shield((await careful.start(thread_id="t"))._task)
        asyncio.run(begin())
    else:
        print(asyncio.run(engine.resume("t")))
"""


@pytest.mark.parametrize("first", ["file", "import"])
def test_a_caught_error_is_the_same_class_in_a_program_and_in_a_worker(tmp_path: Path, first: str) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    imported = "import asyncio, app\nasync def go():\n    {}\nasyncio.run(go())"
    starts = {
        "file": ["app.py", "start"],
        "import": ["-c", imported.format("await asyncio.shield((await app.careful.start(thread_id='t'))._task)")],
    }
    ends = {
        "import": ["app.py", "end"],
        "file": ["-c", imported.format("print(await app.engine.resume('t'))")],
    }
    answer = "import everstep\nwith everstep.open('runs.db').sync as engine:\n    engine.answer('t', 1)"
    done = [
        subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        for words in (starts[first], ["-c", answer], ends[first])
    ]
    assert [each.stderr for each in done] == ["", "", ""]
    assert done[-1].stdout == "Refused('no')\n"
