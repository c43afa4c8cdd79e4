"""The threads of a family, as lists and rows show them."""

from __future__ import annotations

from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointCorrupted, CheckpointNotFound
from everstep.stores.keyvalue.reading import ReadRows
from everstep.stores.memory import MemoryStore
from everstep.views import branches, history, operations, threads
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


async def test_what_branches_are_called_is_asked_once_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    look = MemoryStore._look

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal looked
        looked += 1
        return await look(*args, **options)

    monkeypatch.setattr(MemoryStore, "_look", counted)

    async def looks(size: int) -> list[int]:
        nonlocal looked
        engine = everstep.CheckpointEngine(everstep.StoreBackend(MemoryStore()))
        start = await engine.append("trip", [])
        made = [await engine.branch(start, f"b{number}") for number in range(size)]
        await engine.rename_branch(made[1], "renamed")
        counts = []
        for asked in (
            engine.resolve("trip@b2"),
            engine.resolve("trip@renamed"),
            branches.family(engine, "trip"),
            branches.require_free_name(engine, "trip", "another"),
            history.page(engine, "trip", limit=3),
        ):
            looked = 0
            await asked
            counts.append(looked)
        assert (await engine.resolve("trip@renamed")).thread_id == made[1]
        return counts

    few = await looks(3)
    assert min(few) > 0
    assert await looks(60) == few


async def test_a_page_of_threads_counts_their_branches(engine: everstep.CheckpointEngine) -> None:
    start = await engine.append("trip", [])
    first = await engine.branch(start, "first")
    await engine.branch(start, "second")
    await engine.branch((await engine.resolve(first)).checkpoint_id, "inner")
    await engine.append("alone", [])
    told = {row["thread_id"]: row["branches"] for row in (await threads.page(engine))["threads"]}
    assert (told["trip"], told[first], told["alone"]) == (2, 1, 0)
    assert sorted(told.values()) == [0, 0, 0, 1, 2]
    # Of its family it is the only one here.
    (inner,) = (await threads.page(engine, prefix=f"{first}-"))["threads"]
    assert inner["branches"] == 0
    assert inner["origin"].startswith(f"{first}@")


async def test_a_damaged_log_leaves_the_names_of_the_other_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = everstep.CheckpointEngine(everstep.StoreBackend(MemoryStore()))
    start = await engine.append("trip", [])
    one = await engine.branch(start, "one")
    other = await engine.branch(start, "other")
    await engine.rename_branch(one, "called")
    await engine.rename_branch(other, "lost")

    def operations_of(rows: Any, thread_id: str, limit: int) -> Any:
        if thread_id == other:
            raise CheckpointCorrupted("an entry is damaged", thread_id=thread_id)
        return whole(rows, thread_id, limit)

    whole = ReadRows.operations
    monkeypatch.setattr(ReadRows, "operations", operations_of)
    told = (await branches.family(engine, "trip"))["branches"]
    assert [branch["name"] for branch in told] == ["trip", "called", "other"]
    listed = {row["thread_id"]: row["name"] for row in (await threads.page(engine))["threads"]}
    assert (listed[one], listed[other]) == ("called", "other")
    rows = (await history.page(engine, "trip"))["rows"]
    chips = {row["thread_id"]: row["chips"][0]["text"] for row in rows}
    assert (chips[one], chips[other]) == ("called", "other")


class Plain:
    """A store that has what the protocol asks for, and nothing besides."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name in ("logs", "origins"):
            raise AttributeError(name)
        return getattr(self._store, name)


async def test_a_store_that_is_asked_thread_by_thread_tells_the_same() -> None:
    store = MemoryStore()
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store))
    trip = await plan_trip(engine)
    await engine.rename_branch(trip.cheap, "by bus")
    plain = everstep.CheckpointEngine(everstep.StoreBackend(Plain(store)))
    assert await branches.family(plain, "trip") == await branches.family(engine, "trip")
    assert await threads.page(plain) == await threads.page(engine)
    assert (await plain.resolve("trip@by bus")).thread_id == trip.cheap
