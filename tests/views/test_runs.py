"""Durable runs as views: pages by status, one run with its steps and waits, and how its checkpoints look elsewhere."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import everstep
from everstep.errors import InvalidInput, RunNotFound
from everstep.views import history, runs, threads


class Killed(BaseException):
    """What a test raises in the place of a kill."""


async def begin(function: Any, *args: Any, thread_id: str) -> None:
    """Run a run until it waits."""
    await asyncio.shield((await function.start(*args, thread_id=thread_id))._task)


async def names(engine: Any, **asked: Any) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await runs.page(engine, cursor=cursor, **asked)
        json.dumps(page)
        found += [run["thread_id"] for run in page["runs"]]
        cursor = page["cursor"]
        if cursor is None:
            return found


@pytest.fixture
def asks(engine: everstep.CheckpointEngine) -> Any:
    @engine.durable(name="asks")
    async def run_it(run: everstep.Run, word: str) -> str:
        said = await run.step(str.upper, word, key="shout")
        if await run.ask("Go on?", {"said": said}) == "no":
            raise ValueError("not today")
        return said

    return run_it


async def test_pages_of_runs_go_by_activity_and_status(engine: everstep.CheckpointEngine, asks: Any) -> None:
    await engine.append("chat", [{"role": "user", "content": "no run"}])
    for number in range(7):
        await begin(asks, "x", thread_id=f"r{number}")
    for number, word in ((0, "yes"), (1, "yes"), (2, "no")):
        await engine.answer(f"r{number}", word)
    assert await names(engine, status="ready", limit=1) == ["r2", "r1", "r0"]
    await engine.recover()
    assert set(await names(engine, limit=2)) == {f"r{number}" for number in range(7)}
    assert await names(engine, status="waiting", limit=3) == ["r6", "r5", "r4", "r3"]
    assert set(await names(engine, status="done")) == {"r0", "r1"}
    assert await names(engine, status="failed") == ["r2"]
    assert await names(engine, status="interrupted") == []
    with pytest.raises(InvalidInput, match="status"):
        await runs.page(engine, status="odd")


async def test_one_run_has_its_steps_waits_and_end(engine: everstep.CheckpointEngine, asks: Any) -> None:
    await begin(asks, "hi", thread_id="r")
    run = await runs.one(engine, "r")
    assert (run["name"], run["status"], run["summary"]) == ("asks", "waiting", "Asks: Go on?")
    assert run["arguments"] == {"args": ["hi"], "kwargs": {}}
    assert [wait["details"] for wait in run["waits"]] == [{"said": "HI"}]
    assert [(entry["op"], entry["key"], entry["tries"]) for entry in run["entries"]] == [
        ("start", "start", None),
        ("step", "shout", 1),
        ("ask", "ask", None),
    ]
    done = await runs.answer(engine, "r", "no")
    assert done["status"] == "ready"
    await engine.recover()
    failed = await runs.one(engine, "r")
    assert failed["error"] == {"type": "ValueError", "message": "not today"}
    assert failed["result"] is None
    json.dumps(failed)


async def test_steps_are_paged_from_the_newest_back(engine: everstep.CheckpointEngine) -> None:
    @engine.durable
    async def many(run: everstep.Run) -> None:
        for number in range(12):
            await run.step(str, number)

    await many(thread_id="r")
    found: list[str] = []
    cursor = None
    while True:
        page = await runs.one(engine, "r", limit=5, cursor=cursor)
        found = [entry["key"] for entry in page["entries"]] + found
        cursor = page["cursor"]
        if cursor is None:
            break
    assert found == ["start", "str", *[f"str#{number}" for number in range(2, 13)], "end"]
    for wrong in ("-1", "x", "9" * 30):
        with pytest.raises(InvalidInput, match="cursor"):
            await runs.one(engine, "r", cursor=wrong)


async def test_a_branch_shows_the_steps_it_came_with(engine: everstep.CheckpointEngine, asks: Any) -> None:
    await begin(asks, "hi", thread_id="r")
    entries = (await runs.one(engine, "r"))["entries"]
    branch = await engine.branch(entries[1]["id"], "other")
    forked = await runs.one(engine, branch)
    assert [entry["key"] for entry in forked["entries"] if entry["op"] != "branch"] == ["start", "shout"]
    assert forked["origin"] == entries[1]["ref"]
    [told] = (await runs.one(engine, "r"))["branches"]
    assert (told["thread_id"], told["name"], told["status"]) == (branch, "other", "paused")


async def test_effects_of_the_family_and_an_unknown_one(engine: everstep.CheckpointEngine) -> None:
    is_killed = [True]

    def charge(price: int) -> str:
        if is_killed[0]:
            is_killed[0] = False
            raise Killed
        return f"receipt {price}"

    @engine.durable
    async def pay(run: everstep.Run) -> str:
        await run.step(str.upper, "hold", key="hold", effect="once")
        return await run.step(charge, 7, effect="once")

    with pytest.raises(Killed):
        await pay(thread_id="r")
    await engine.recover()
    run = await runs.one(engine, "r")
    assert [(effect["key"], effect["status"]) for effect in run["effects"]] == [("charge", "begun"), ("hold", "done")]
    [wait] = run["waits"]
    assert (wait["effect"], wait["details"]) == ("charge", {"args": [7], "kwargs": {}})
    with pytest.raises(InvalidInput, match="nobody knows"):
        await runs.answer(engine, "r", "yes")
    await runs.answer(engine, "r", did_happen=True, result="receipt 7")
    assert await engine.resume("r") == "receipt 7"
    assert (await runs.one(engine, "r"))["result"] == "receipt 7"


async def test_rows_of_a_run_say_what_happened(engine: everstep.CheckpointEngine) -> None:
    fails = [True, True]

    def flaky() -> str:
        if fails:
            fails.pop()
            raise TimeoutError("slow")
        return "there"

    def broken() -> None:
        raise ValueError("broken")

    # Not in threads of their own, which may end one after the other: then there is a checkpoint for each.
    async def upper() -> str:
        return "A"

    async def lower() -> str:
        return "b"

    @engine.durable
    async def work(run: everstep.Run) -> Any:
        await run.step(flaky, retries=2, backoff=0)
        with pytest.raises(ValueError, match="broken"):
            await run.step(broken)
        await run.gather(run.step(upper), run.step(lower))
        return await run.ask("Now?")

    await begin(work, thread_id="r")
    rows = (await history.page(engine, "r"))["rows"]
    told = [(row["kind"], row["title"], [chip["text"] for chip in row["chips"]]) for row in rows]
    assert told == [
        ("interrupt", "Asks: Now?", ["HEAD", "waits"]),
        ("tool", "upper, lower done", []),
        ("error", "broken failed: ValueError: broken", ["failed"]),
        ("tool", "flaky done", ["3 tries"]),
        ("input", f"{work.name} started", ["start"]),
    ]
    assert all(row["duration_ms"] is not None for row in rows[1:4])
    await engine.answer("r", "yes")
    rows = (await history.page(engine, "r"))["rows"]
    assert [(row["kind"], row["title"]) for row in rows[:2]] == [("input", "Answer to: Now?"), ("state", "Asked: Now?")]
    assert [chip["text"] for chip in rows[1]["chips"]] == ["asked"]


async def test_a_thread_of_a_run_has_its_status(engine: everstep.CheckpointEngine, asks: Any) -> None:
    await begin(asks, "x", thread_id="r")
    thread = await threads.one(engine, "r")
    assert (thread["kind"], thread["status"], thread["summary"]) == ("run", "waiting", "Asks: Go on?")
    found = await threads.page(engine, status="waiting")
    assert [each["thread_id"] for each in found["threads"]] == ["r"]
    await engine.answer("r", "yes")
    await engine.resume("r")
    assert (await threads.one(engine, "r"))["status"] == "done"


async def test_what_is_no_run_is_not_found(engine: everstep.CheckpointEngine) -> None:
    await engine.append("chat", [{"role": "user", "content": "no run"}])
    for name in ("chat", "nobody"):
        with pytest.raises(RunNotFound):
            await runs.one(engine, name)
        with pytest.raises(RunNotFound):
            await runs.answer(engine, name, "yes")
