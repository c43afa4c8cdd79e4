"""Once over everything that reads or writes the store, on the servers too."""

from __future__ import annotations

import asyncio
import json

import pytest

import everstep
from everstep.durable.worker import Worker
from everstep.views import (
    actions,
    blame,
    branches,
    changes,
    checkpoint,
    history,
    runs,
    state,
    storage,
    threads,
    transcript,
)
from everstep.views.index import Index
from tests.views.conftest import plan_trip

pytestmark = pytest.mark.parametrize("kind", ["postgres", "redis"], indirect=True)


async def test_a_trip_is_shown_the_same_everywhere(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    page = await history.page(engine, "trip")
    titles = [row["title"] for row in page["rows"]]
    assert titles[:2] + titles[-3:] == [
        "Merge scenic",
        "Merge cheap",
        "hotels answered",
        "The night train fits.",
        "Plan a weekend in Oslo.",
    ]
    rows = []
    cursor = None
    while True:
        part = await history.page(engine, "trip", limit=3, cursor=cursor)
        rows += part["rows"]
        cursor = part["cursor"]
        if cursor is None:
            break
    assert rows == page["rows"]
    index = Index(engine, "trip")
    await index.build()
    assert (await index.page(4, limit=3))["rows"] == rows[4:7]
    changed = await history.changed(engine, "trip", [row["ref"] for row in rows])
    assert changed[rows[0]["ref"]]["text"] == "view, sunday, +2 messages"
    listed = (await threads.page(engine))["threads"]
    assert [(each["thread_id"], each["branches"]) for each in listed] == [
        ("trip", 2),
        (trip.scenic, 0),
        (trip.cheap, 0),
    ]
    found = await changes.compare(engine, None, "trip")
    assert found["counts"]["messages"]["added"] == 2
    detail = await checkpoint.detail(engine, "trip#3")
    assert len(detail["children"]) == 3
    assert await state.value(engine, "trip", "/hotel") == "hostel"
    assert (await transcript.page(engine, "trip"))["total"] == 7
    assert [each["step"] for each in (await blame.history_of(engine, "trip", "/hotel"))["changes"]] == [5, 3]
    assert (await storage.sizes(engine, "trip"))["checkpoints"] == 6
    json.dumps([page, listed, found, detail])


async def test_actions_are_told_and_done_the_same_everywhere(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    plan = await actions.plan_rewind(engine, "trip#3")
    assert (plan["hidden"], len(plan["which"])) == (3, 3)
    await engine.rewind(trip.ids[2], thread_id="trip")
    hidden = (await history.page(engine, "trip", hidden=True))["rows"]
    assert [row["step"] for row in hidden if row["hidden"]] == [6, 5, 4]
    made = await actions.fork(engine, "trip", "edit", set={"/hotel": "own"})
    await engine.append("trip", [], {"hotel": "ours"})
    merge = await actions.plan_merge(engine, made["thread_id"], "trip")
    assert [each["path"] for each in merge["conflicts"]] == ["state.hotel"]
    await actions.merge(engine, made["thread_id"], "trip", {"state.hotel": {"take": "theirs"}})
    assert await state.value(engine, "trip", "/hotel") == "own"


async def test_a_run_is_shown_the_same_everywhere(engine: everstep.CheckpointEngine) -> None:
    @engine.durable(name="work")
    async def work(run: everstep.Run, word: str) -> str:
        said = await run.step(str.upper, word, effect="once")
        return said + str(await run.ask("Go on?", {"said": said}))

    for number in range(3):
        handle = await work.start("hi", thread_id=f"r{number}")
        await asyncio.shield(handle._task)
    first = await runs.page(engine, status="waiting", limit=2)
    second = await runs.page(engine, status="waiting", limit=2, cursor=first["cursor"])
    assert [run["thread_id"] for run in first["runs"] + second["runs"]] == ["r2", "r1", "r0"]
    run = await runs.one(engine, "r0")
    assert [entry["op"] for entry in run["entries"]] == ["start", "step", "ask"]
    assert [effect["status"] for effect in run["effects"]] == ["done"]
    assert run["waits"][0]["details"] == {"said": "HI"}
    await runs.answer(engine, "r0", "!")
    await Worker([engine]).take_up_all()
    assert (await runs.one(engine, "r0"))["result"] == "HI!"
    assert [row["title"] for row in (await history.page(engine, "r0"))["rows"]][:2] == [
        "work done",
        "Answer to: Go on?",
    ]


async def test_names_marks_and_notes_are_kept_everywhere(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    await engine.rename_branch(trip.cheap, "by bus")
    await engine.archive_branch(trip.cheap)
    await engine.note(trip.ids[0], "begin here")
    await engine.append(trip.cheap, [{"role": "user", "content": "Fine."}])
    assert (await engine.resolve("trip@by bus")).thread_id == trip.cheap
    assert (await checkpoint.detail(engine, "trip#1"))["note"] == "begin here"
    assert trip.cheap not in [each["thread_id"] for each in (await threads.page(engine))["threads"]]
    listed = (await branches.family(engine, trip.scenic))["branches"]
    assert [(one["name"], one["archived"]) for one in listed] == [("trip", False), ("by bus", True), ("scenic", False)]
    await engine.undo(trip.cheap)
    assert trip.cheap in [each["thread_id"] for each in (await threads.page(engine))["threads"]]
    assert (await engine.verify()).findings == []
