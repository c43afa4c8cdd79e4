"""The threads of a family, as lists and rows show them."""

from __future__ import annotations

import pytest

import everstep
from everstep.errors import CheckpointNotFound
from everstep.views import branches, history, operations
from tests.views.conftest import plan_trip


async def test_a_family_is_the_same_whoever_asks(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    first = (await branches.family(engine, "trip"))["branches"]
    assert [(one["name"], one["is_branch"]) for one in first] == [("trip", False), ("cheap", True), ("scenic", True)]
    assert (await branches.family(engine, trip.cheap))["branches"] == first
    heads = [(await engine.resolve(one["thread_id"])).checkpoint_id for one in first]
    assert [one["id"] for one in first] == heads
    assert first[1]["origin"] == f"trip@{trip.ids[2]}"
    with pytest.raises(CheckpointNotFound):
        await branches.family(engine, "absent")


async def test_a_branch_of_a_branch_is_one_of_them(engine: everstep.CheckpointEngine) -> None:
    start = await engine.append("trip", [])
    cheap = await engine.branch(start, "cheap")
    inner = await engine.branch((await engine.resolve(cheap)).checkpoint_id, "cheaper")
    assert [one["name"] for one in (await branches.family(engine, inner))["branches"]] == ["trip", "cheap", "cheaper"]
    await engine.checkpointer.delete_thread("trip")
    assert [one["name"] for one in (await branches.family(engine, inner))["branches"]] == ["cheap", "cheaper"]


async def test_what_was_taken_back_or_put_away_is_left_out(engine: everstep.CheckpointEngine) -> None:
    start = await engine.append("trip", [])
    kept = await engine.branch(start, "kept")
    await engine.branch(start, "undone")
    await engine.undo("trip")
    await engine.archive_branch(kept)
    assert [one["name"] for one in (await branches.family(engine, "trip"))["branches"]] == ["trip", "kept"]
    assert [one["name"] for one in (await branches.family(engine, "trip", archived=False))["branches"]] == ["trip"]
    own = (await branches.family(engine, kept, archived=False))["branches"]
    assert [(one["name"], one["archived"]) for one in own] == [("trip", False), ("kept", True)]


async def test_rows_and_the_log_show_names_marks_and_notes(engine: everstep.CheckpointEngine) -> None:
    start = await engine.append("trip", [])
    branch = await engine.branch(start, "cheap")
    await engine.rename_branch(branch, "by bus")
    await engine.archive_branch(branch)
    await engine.note(start, "begin\nhere")
    rows = (await history.page(engine, "trip"))["rows"]
    chips = {row["thread_id"]: [(chip["text"], chip["tone"]) for chip in row["chips"]] for row in rows}
    assert chips[branch] == [("by bus", "branch"), ("archived", "plain")]
    assert chips["trip"] == [("HEAD", "branch"), ("start", "plain"), ("begin here", "note")]
    told = [operation["text"] for operation in (await operations.log(engine, "trip"))["operations"]]
    assert told[0] == "note about #1: begin here"
    told = [operation["text"] for operation in (await operations.log(engine, branch))["operations"]]
    assert told == ["archive", "rename to by bus"]
