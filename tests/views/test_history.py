"""Rows of a history: their kinds and titles, their lanes, pages, filters, and what changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointNotFound, InvalidInput
from everstep.views import history
from tests.views.conftest import plan_trip


async def every_row(engine: Any, thread: str, **asked: Any) -> list[dict[str, Any]]:
    """Return all rows, page by page."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        page = await history.page(engine, thread, cursor=cursor, **asked)
        json.dumps(page)
        found += page["rows"]
        cursor = page["cursor"]
        if cursor is None:
            return found


def graph(rows: list[dict[str, Any]]) -> list[tuple[int, list[tuple[int, int, str]]]]:
    return [(row["lane"], [(edge["from"], edge["to"], edge["kind"]) for edge in row["edges"]]) for row in rows]


async def test_rows_say_what_happened(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    page = await history.page(engine, "trip")
    told = [(row["step"], row["kind"], row["title"], [chip["text"] for chip in row["chips"]]) for row in page["rows"]]
    assert told == [
        (6, "merge", "Merge scenic", ["HEAD"]),
        (5, "merge", "Merge cheap", []),
        (4, "llm", "Now a place to stay.", []),
        (2, "llm", "A boat leaves at ten.", ["scenic"]),
        (1, "llm", "The lighthouse has a room.", []),
        (1, "llm", "The hostel is by the station.", ["cheap"]),
        (0, "fork", "Branch scenic", []),
        (0, "fork", "Branch cheap", []),
        (3, "tool", "hotels answered", []),
        (2, "llm", "The night train fits.", []),
        (1, "input", "Plan a weekend in Oslo.", ["start"]),
    ]
    assert (page["total"], page["cursor"], page["lanes"]) == (11, None, 3)
    assert page["counts"] == {"input": 1, "llm": 5, "tool": 1, "fork": 2, "merge": 2}
    top = page["rows"][0]
    assert (top["id"], top["head"], top["active"], len(top["parents"])) == (trip.ids[-1], True, True, 2)
    assert [row["active"] for row in page["rows"]] == [True] + [False] * 10
    known = page["rows"][9]
    assert (known["duration_ms"], known["tokens"], known["cost"]) == (420, 42, 0.01)
    assert page["rows"][8]["added_bytes"] > 0


async def test_lines_run_side_by_side_to_where_they_part(engine: everstep.CheckpointEngine) -> None:
    await plan_trip(engine)
    rows = (await history.page(engine, "trip"))["rows"]
    assert graph(rows) == [
        (0, [(0, 0, "out"), (0, 1, "out")]),
        (0, [(0, 0, "in"), (0, 0, "out"), (0, 2, "out"), (1, 1, "pass")]),
        (0, [(0, 0, "in"), (0, 0, "out"), (1, 1, "pass"), (2, 2, "pass")]),
        (1, [(1, 1, "in"), (1, 1, "out"), (0, 0, "pass"), (2, 2, "pass")]),
        (1, [(1, 1, "in"), (1, 1, "out"), (0, 0, "pass"), (2, 2, "pass")]),
        (2, [(2, 2, "in"), (2, 2, "out"), (0, 0, "pass"), (1, 1, "pass")]),
        (1, [(1, 1, "in"), (1, 1, "out"), (0, 0, "pass"), (2, 2, "pass")]),
        (2, [(2, 2, "in"), (2, 2, "out"), (0, 0, "pass"), (1, 1, "pass")]),
        (0, [(0, 0, "in"), (1, 0, "in"), (2, 0, "in"), (0, 0, "out")]),
        (0, [(0, 0, "in"), (0, 0, "out")]),
        (0, [(0, 0, "in")]),
    ]
    assert {chip["lane"] for chip in rows[3]["chips"]} == {1}


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 10])
async def test_pages_are_the_whole_in_pieces(engine: everstep.CheckpointEngine, limit: int) -> None:
    trip = await plan_trip(engine)
    await engine.rewind(trip.ids[3], thread_id="trip")
    await engine.append("trip", [{"role": "user", "content": "again"}])
    for asked in ({}, {"hidden": True}, {"branches": False}):
        whole = await every_row(engine, "trip", **asked)
        assert await every_row(engine, "trip", limit=limit, **asked) == whole


async def test_every_line_ends_where_it_should(engine: everstep.CheckpointEngine) -> None:
    """Follow the edges from row to row: they lead from each child to its parents, and to nothing else."""
    trip = await plan_trip(engine)
    await engine.rewind(trip.ids[4], thread_id="trip")
    for n in range(3):
        await engine.append("trip", [{"role": "user", "content": str(n)}])
        made = await engine.branch(trip.ids[n], f"b{n}", thread_id="trip")
        await engine.append(made, [{"role": "user", "content": str(n)}])
    for hidden in (False, True):
        rows = await every_row(engine, "trip", hidden=hidden, limit=4)
        links = followed(rows)
        wanted = {(row["ref"], parent) for row in rows for parent in row["parents"]}
        assert {(child, parent.partition("@")[2]) for child, parent in links} == wanted


def followed(rows: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return which rows the lines lead to from which."""
    open_lanes: dict[int, set[str]] = {}
    links: set[tuple[str, str]] = set()
    for row in rows:
        below: dict[int, set[str]] = {}
        for edge in row["edges"]:
            above = open_lanes.get(edge["from"], set())
            if edge["kind"] == "in":
                assert above, "a line begins in the air"
                links |= {(child, row["ref"]) for child in above}
            elif edge["kind"] == "out":
                below.setdefault(edge["to"], set()).add(row["ref"])
            else:
                assert above, "a line begins in the air"
                below.setdefault(edge["to"], set()).update(above)
        ended = {edge["from"] for edge in row["edges"] if edge["kind"] != "out"}
        assert open_lanes.keys() <= ended, "a line ends in the air"
        open_lanes = below
    assert not open_lanes
    return links


async def test_filters_say_what_they_leave_out(engine: everstep.CheckpointEngine) -> None:
    await plan_trip(engine)
    tools = await history.page(engine, "trip", kinds=["tool"])
    assert [row["title"] for row in tools["rows"]] == ["hotels answered"]
    assert (tools["hidden_by_filter"], tools["counts"]["llm"], tools["cursor"]) == (10, 5, None)
    asked = await history.page(engine, "trip", user_turns=True)
    assert [row["step"] for row in asked["rows"]] == [1]
    said = await history.page(engine, "trip", text="LIGHTHOUSE")
    assert [row["title"] for row in said["rows"]] == ["The lighthouse has a room."]
    nothing = await history.page(engine, "trip", errors=True)
    assert (nothing["rows"], nothing["hidden_by_filter"]) == ([], 11)
    for path in ("/hotel", "state.hotel", "/hotel/*", "state.hotel.*", "state.hotel[*]", "/state/hotel"):
        rows = (await history.page(engine, "trip", path=path))["rows"]
        assert [(row["kind"], row["step"]) for row in rows] == [("merge", 5), ("llm", 1), ("tool", 3)]
    with pytest.raises(InvalidInput, match="a kind is one of"):
        await history.page(engine, "trip", kinds=["nonsense"])


async def test_lines_lead_over_what_a_filter_hides(engine: everstep.CheckpointEngine) -> None:
    await plan_trip(engine)
    rows = await every_row(engine, "trip", kinds=["merge", "input"])
    assert [row["kind"] for row in rows] == ["merge", "merge", "input"]
    assert rows[0]["edges"][0]["gap"] is False
    assert rows[1]["edges"][0]["gap"] is False
    ends = [edge for edge in rows[2]["edges"] if edge["kind"] == "in"]
    assert [edge["gap"] for edge in ends] == [True] * 3  # of the main line and of both branches


async def test_what_is_hidden_is_shown_if_asked_for(engine: everstep.CheckpointEngine) -> None:
    ids = [await engine.append("t", [{"role": "user", "content": str(n)}]) for n in range(4)]
    await engine.rewind(ids[1])
    assert [row["step"] for row in (await history.page(engine, "t"))["rows"]] == [2, 1]
    page = await history.page(engine, "t", hidden=True)
    assert [(row["step"], row["hidden"]) for row in page["rows"]] == [(4, True), (3, True), (2, False), (1, False)]
    assert (page["total"], page["rows"][2]["active"]) == (4, True)
    assert [row["lane"] for row in page["rows"]] == [1, 1, 0, 0]
    await engine.undo("t")
    assert len((await history.page(engine, "t"))["rows"]) == 4


async def test_errors_of_calls_and_of_scopes(engine: everstep.CheckpointEngine) -> None:
    @engine.snapshot_on("tool_call")
    async def search(what: str) -> str:
        raise RuntimeError(what)

    async with engine.thread("t"):
        with pytest.raises(RuntimeError):
            await search("no network \x1b[31m")
    with pytest.raises(KeyError):
        async with engine.snapshot_scope("t", {"a": 1}):
            raise KeyError("gone")
    rows = (await history.page(engine, "t"))["rows"]
    assert [(row["kind"], row["title"]) for row in rows] == [
        ("error", "KeyError: 'gone'"),
        ("state", "State saved"),
        ("error", "search failed"),
        ("tool", "search started"),
    ]
    assert "failed" in [chip["text"] for chip in rows[0]["chips"]]


async def test_what_changed_in_each_row(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    rows = (await history.page(engine, "trip"))["rows"]
    by_ref = await history.changed(engine, "trip", [row["ref"] for row in rows])
    assert [by_ref[row["ref"]]["text"] for row in rows] == [
        "view, sunday, +2 messages",
        "hotel, +1 message",
        "+1 message",
        "sunday, +1 message",
        "view, +1 message",
        "hotel, +1 message",
        "",
        "",
        "hotel, tools_result, +1 message",
        "travel, +1 message",
        "+1 message",
    ]
    by_id = await history.changed(engine, "trip", [*trip.ids, "absent"])
    assert by_id.keys() == set(trip.ids)
    found = by_id[trip.ids[2]]
    assert found["keys"] == ["state.hotel", "tools_result.hotels"]
    assert found["messages"] == {"added": 1, "edited": 0, "removed": 0}


async def test_edited_and_removed_messages_are_counted(engine: everstep.CheckpointEngine) -> None:
    first = [{"id": "a", "role": "user", "content": "one"}, {"id": "b", "role": "user", "content": "two"}]
    await engine.snapshot("t", first, {}, {})
    later = [{"id": "b", "role": "user", "content": "two!"}, {"id": "c", "role": "user", "content": "three"}]
    made = await engine.snapshot("t", later, {"x": 1, "y": 2, "z": 3, "w": 4}, {})
    change = (await history.changed(engine, "t", [made]))[made]
    assert change["messages"] == {"added": 1, "edited": 1, "removed": 1}
    assert change["text"] == "x, y, z, 1 more, +1 message, 1 message edited, -1 message"


async def test_a_thread_that_is_not_there(engine: everstep.CheckpointEngine) -> None:
    await plan_trip(engine)
    with pytest.raises(CheckpointNotFound, match="did you mean 'trip'"):
        await history.page(engine, "tripp")
    for cursor in ("", "x", "eyJ2IjoxfQ", "{}"):
        with pytest.raises(InvalidInput, match="cursor"):
            await history.page(engine, "trip", cursor=cursor)


async def test_a_thread_all_of_which_is_hidden_is_empty_not_absent(engine: everstep.CheckpointEngine) -> None:
    made = await engine.append("t", [{"role": "user", "content": "x"}])
    branch = await engine.branch(made, "b")
    await engine.undo("t")
    page = await history.page(engine, branch)
    assert (page["rows"], page["cursor"]) == ([], None)
