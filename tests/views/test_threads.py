"""Pages of threads: order, search, status, kinds."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointNotFound, InvalidInput
from everstep.views import threads
from tests.views.conftest import plan_trip


async def names(engine: Any, **asked: Any) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = await threads.page(engine, cursor=cursor, **asked)
        json.dumps(page)
        found += [thread["thread_id"] for thread in page["threads"]]
        cursor = page["cursor"]
        if cursor is None:
            return found


async def test_a_thread_is_told_in_one_line(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    (thread, *_) = (await threads.page(engine, text="trip"))["threads"]
    moment = datetime.fromisoformat(thread.pop("updated_at"))
    assert abs(moment - datetime.now(UTC)) < timedelta(minutes=5)
    assert thread == {
        "thread_id": "trip",
        "name": "trip",
        "archived": False,
        "kind": "engine",
        "status": None,
        "steps": 6,
        "summary": "Merge scenic",
        "tags": ["merge"],
        "metadata": {},
        "branches": 2,
        "origin": None,
        "head": trip.ids[-1],
    }
    branch = await threads.one(engine, trip.cheap)
    assert (branch["origin"], branch["steps"]) == (f"trip@{trip.ids[2]}", 1)
    with pytest.raises(CheckpointNotFound):
        await threads.one(engine, "absent")


async def test_pages_are_the_whole_in_pieces(engine: everstep.CheckpointEngine) -> None:
    made = [f"t{n}" for n in range(25)]
    for name in made:
        await engine.append(name, [{"role": "user", "content": f"about {name}"}], tags=["odd"] if "1" in name else [])
    assert await names(engine, limit=7) == made[::-1]
    assert await names(engine, limit=25) == made[::-1]
    assert await names(engine, limit=24) == made[::-1]
    odd = [name for name in made[::-1] if "1" in name]
    assert await names(engine, limit=2, tags=["odd"]) == odd
    assert await names(engine, limit=3, text="ABOUT T1") == [name for name in odd if name != "t21"]
    assert await names(engine, text="nowhere") == []
    assert await names(engine, prefix="t2", limit=1) == ["t24", "t23", "t22", "t21", "t20", "t2"]


async def test_threads_are_found_by_tags_and_metadata(engine: everstep.CheckpointEngine) -> None:
    await engine.append("t1", [], {}, tags=["urgent"], metadata={"customer": "Ada", "seats": 4})
    await engine.append("t2", [], {}, metadata={"customer": "Grace", "nested": {"customer": "Ada"}})
    assert await names(engine, text="ada") == ["t1"]
    assert await names(engine, text="customer=grace") == ["t2"]
    assert await names(engine, text="seats=4") == ["t1"]
    assert await names(engine, text="URGENT") == ["t1"]
    assert sorted(await names(engine, text="customer=")) == ["t1", "t2"]


async def test_a_search_that_stops_early_says_so(
    engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(6):
        await engine.append(f"t{n}", [{"role": "user", "content": "x"}])
    monkeypatch.setattr(threads, "SCANNED_MAX", 2)
    monkeypatch.setattr(threads, "_BATCH", 2)
    page = await threads.page(engine, text="t0")
    assert (page["threads"], page["more"]) == ([], True)
    assert await names(engine, text="t0") == ["t0"]


async def test_failed_threads_are_found(engine: everstep.CheckpointEngine) -> None:
    await engine.append("fine", [{"role": "user", "content": "x"}])
    with pytest.raises(ZeroDivisionError):
        async with engine.snapshot_scope("broken", {"a": 1}):
            _ = 1 / 0
    assert await names(engine, status="failed") == ["broken"]
    assert await names(engine, status="waiting") == []
    with pytest.raises(InvalidInput, match="status is one of"):
        await threads.page(engine, status="sad")
