"""Histories with a checkpoint that cannot be read: all others are shown as ever, and the damaged one is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointCorrupted
from everstep.runtime.blocking import run_to_end
from everstep.views import blame as blames
from everstep.views import branches, checkpoint, history, storage
from everstep.views.index import Index
from tests.upkeep.sites import Site, site

KINDS = ("sealed", "sqlite", "postgres", "redis")


@pytest.fixture(params=KINDS)
def harmed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = site(str(request.param), tmp_path)
    yield made
    made.close()


def engine_on(harmed: Site) -> everstep.CheckpointEngine:
    return everstep.CheckpointEngine(everstep.StoreBackend(harmed.open()))


def pages_of(engine: everstep.CheckpointEngine, limit: int, **asked: Any) -> list[dict[str, Any]]:
    """Return the pages of the history of `t`."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        found.append(run_to_end(history.page(engine, "t", limit=limit, cursor=cursor, **asked)))
        cursor = found[-1]["cursor"]
        if cursor is None:
            return found


def rows_of(engine: everstep.CheckpointEngine, limit: int = 200, **asked: Any) -> list[dict[str, Any]]:
    return [row for page in pages_of(engine, limit, **asked) for row in page["rows"]]


def without_lanes(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the lines beside it, and without what the thread as a whole says about it."""
    shown = {name: value for name, value in row.items() if name not in ("lane", "edges", "head", "active")}
    shown["chips"] = [chip["text"] for chip in row["chips"] if chip["text"] not in ("HEAD", "b")]
    return shown


@pytest.mark.parametrize("limit", [2, 200])
def test_one_damaged_checkpoint_leaves_all_other_rows_as_they_are(harmed: Site, limit: int) -> None:
    truth = rows_of(engine_on(harmed))
    for number, lost in enumerate(truth):
        harmed.put_back()
        harmed.flip(lost["id"])
        pages = pages_of(engine_on(harmed), limit)
        rows = [row for page in pages for row in page["rows"]]
        assert pages[0]["total"] == len(rows) == len(truth), lost["title"]
        for row, was in zip(rows, truth, strict=True):
            if row["kind"] != "damaged":
                assert without_lanes(row) == without_lanes(was), lost["title"]
        damaged = rows[number]
        assert [row["kind"] for row in rows].count("damaged") == 1
        assert damaged["kind"] == "damaged"
        assert (damaged["step"], damaged["thread_id"]) == (None, lost["thread_id"])
        if harmed.kind != "sealed":
            # Its values have one checksum each, which covers the id.
            assert (damaged["id"], damaged["ref"]) == (lost["id"], lost["ref"])
        assert damaged["title"].startswith("Cannot be read: ")
        assert "everstep verify" in damaged["damage"]["hint"]
        assert "everstep repair" in damaged["damage"]["hint"]
        assert "damaged" in [chip["text"] for chip in damaged["chips"]]


def test_a_damaged_checkpoint_stays_on_its_line(harmed: Site) -> None:
    truth = rows_of(engine_on(harmed))
    (place,) = [number for number, row in enumerate(truth) if row["step"] == 2 and row["thread_id"] == "t"]
    harmed.flip(truth[place]["id"])
    rows = rows_of(engine_on(harmed))
    assert [row["lane"] for row in rows] == [row["lane"] for row in truth]
    assert [len(row["edges"]) for row in rows] == [len(row["edges"]) for row in truth]


def test_several_damaged_checkpoints_side_by_side_are_each_a_row(harmed: Site) -> None:
    truth = rows_of(engine_on(harmed))
    for row in truth[:3]:
        harmed.flip(row["id"])
    rows = rows_of(engine_on(harmed))
    assert [row["kind"] == "damaged" for row in rows] == [True] * 3 + [False] * (len(truth) - 3)


def test_what_is_hidden_is_shown_around_damage_too(harmed: Site) -> None:
    truth = rows_of(engine_on(harmed), hidden=True)
    for lost in truth:
        harmed.put_back()
        harmed.flip(lost["id"])
        engine = engine_on(harmed)
        rows = rows_of(engine, hidden=True)
        assert [row["kind"] == "damaged" for row in rows] == [row["id"] == lost["id"] for row in truth]
        if lost["hidden"] and harmed.kind != "sealed":
            assert "damaged" not in [row["kind"] for row in rows_of(engine)]


def test_filters_pass_over_a_damaged_checkpoint_or_look_for_it(harmed: Site) -> None:
    truth = rows_of(engine_on(harmed))
    harmed.flip(truth[-2]["id"])
    engine = engine_on(harmed)
    assert [row["kind"] for row in rows_of(engine, errors=True)] == ["damaged"]
    assert [row["kind"] for row in rows_of(engine, kinds=["damaged"])] == ["damaged"]
    assert "damaged" not in [row["kind"] for row in rows_of(engine, path="state.n")]


def test_what_changed_and_the_family_are_told_around_damage(harmed: Site) -> None:
    truth = rows_of(engine_on(harmed))
    for lost in truth:
        harmed.put_back()
        harmed.flip(lost["id"])
        engine = engine_on(harmed)
        changes = run_to_end(history.changed(engine, "t", [row["ref"] for row in truth]))
        if harmed.kind == "sealed":
            assert len(changes) >= len(truth) - 2
            continue
        assert set(changes) == {row["ref"] for row in truth} - {lost["ref"]}
        found = run_to_end(branches.family(engine, "t"))["branches"]
        assert [branch["name"] for branch in found] == ["t", "b"]


def test_who_wrote_a_value_is_told_around_damage(harmed: Site) -> None:
    def blame() -> dict[str, Any]:
        return run_to_end(blames.history_of(engine_on(harmed), "t", "/n"))

    truth = blame()
    assert (truth["left_out"], truth["damage"]) == ([], None)
    before = {row["id"]: row for row in truth["changes"]}
    assert len(before) == 3
    own = [row for row in rows_of(engine_on(harmed), branches=False) if not row["namespace"]]
    parents = {row["id"]: row["parents"] for row in own}
    for lost in parents:
        harmed.put_back()
        harmed.flip(lost)
        found = blame()
        # Of those that follow it nobody can tell either.
        unknown = {lost, *(name for name, above in parents.items() if above[:1] == [lost])}
        told = {each["id"] for each in found["left_out"]}
        if harmed.kind != "sealed":
            assert told == unknown
        assert len(told) == len(unknown)
        assert {row["id"] for row in found["changes"]} == before.keys() - unknown
        for row in found["changes"]:
            assert (row["before"], row["after"]) == (before[row["id"]]["before"], before[row["id"]]["after"])
        assert found["looked_at"] == truth["looked_at"]
        assert "everstep verify" in found["damage"]["hint"]


def test_what_a_thread_takes_is_told_around_damage(harmed: Site) -> None:
    def sizes(thread_id: str | None) -> dict[str, Any]:
        return run_to_end(storage.sizes(engine_on(harmed), thread_id))

    truth = sizes("t")
    everything = sizes(None)
    assert (truth["left_out"], truth["damage"], everything["left_out"]) == (0, None, 0)
    for lost in [row for row in rows_of(engine_on(harmed), branches=False) if row["thread_id"] == "t"]:
        harmed.put_back()
        harmed.flip(lost["id"])
        found = sizes("t")
        assert found["checkpoints"] == truth["checkpoints"]
        assert found["left_out"] >= 1
        assert 0 < found["record_bytes"] < truth["record_bytes"]
        assert 0 < found["full_bytes"] < truth["full_bytes"]
        assert "everstep verify" in found["damage"]["hint"]
        together = sizes(None)
        assert (together["threads"], together["checkpoints"]) == (everything["threads"], everything["checkpoints"])
        assert together["left_out"] >= 1
        assert together["record_bytes"] == everything["record_bytes"] - truth["record_bytes"] + found["record_bytes"]


def test_neighbours_of_a_damaged_checkpoint_can_be_opened(harmed: Site) -> None:
    truth = rows_of(engine_on(harmed))
    for lost in truth:
        harmed.put_back()
        harmed.flip(lost["id"])
        engine = engine_on(harmed)
        with pytest.raises(CheckpointCorrupted):
            run_to_end(checkpoint.detail(engine, named(lost)))
        for row in truth:
            if lost["id"] in row["parents"] or row["id"] in lost["parents"]:
                assert run_to_end(checkpoint.detail(engine, named(row)))["id"] == row["id"]


def named(row: dict[str, Any]) -> everstep.Reference:
    """Return what names a row exactly, so that nothing else has to be read to find it."""
    return everstep.Reference(row["thread_id"], row["namespace"], row["id"], row["step"] or 0)


async def test_an_index_goes_past_damage(tmp_path: Path) -> None:
    harmed = site("sqlite", tmp_path)
    try:
        truth = rows_of(engine_on(harmed))
        harmed.flip(truth[3]["id"])
        engine = everstep.CheckpointEngine(everstep.StoreBackend(harmed.make()))
        async with engine:
            index = Index(engine, "t")
            await index.build()
            assert index.total == len(truth)
            page = await index.page(2)
        assert [row["kind"] == "damaged" for row in page["rows"]][:3] == [False, True, False]
    finally:
        harmed.close()
