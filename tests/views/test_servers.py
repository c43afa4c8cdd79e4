"""Once over everything that reads or writes the store, on the servers too."""

from __future__ import annotations

import json

import pytest

import everstep
from everstep.views import actions, blame, changes, checkpoint, history, state, storage, threads, transcript
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
