"""Retention: the four policies as functions, and at work under the engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everstep
from everstep import CannotUndo, InvalidInput, SnapshotConfig
from everstep.config import CheckpointGC
from everstep.retention.keeper import Keeper
from everstep.retention.policies import Item, let_go
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Query, Store, Stored
from tests.timeline.short_histories import make_backend, numbers, steps, write

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def items(*numbers: int) -> list[Item]:
    """Return checkpoints of these steps, a second apart, the last one now."""
    times = [NOW - timedelta(seconds=len(numbers) - 1 - n) for n in range(len(numbers))]
    return [Item(n + 1, step, times[n].isoformat()) for n, step in enumerate(numbers)]


def kept(policy: str, param: float, found: list[Item]) -> list[int]:
    gone = let_go(CheckpointGC(policy), param, found, NOW)
    return [item.step for item in found if item not in gone]


class TestPolicies:
    def test_keep_all(self) -> None:
        assert kept("keep_all", 1, items(1, 2, 3)) == [1, 2, 3]

    @pytest.mark.parametrize(("count", "expected"), [(1, [4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4]), (9, [1, 2, 3, 4])])
    def test_keep_last_n(self, count: int, expected: list[int]) -> None:
        assert kept("keep_last_n", count, items(1, 2, 3, 4)) == expected

    def test_keep_age(self) -> None:
        assert kept("keep_age", 2, items(1, 2, 3, 4)) == [2, 3, 4]
        assert kept("keep_age", 0.5, items(1, 2, 3, 4)) == [4]

    @pytest.mark.parametrize("created_at", ["", "yesterday", "2020-01-01", "9999-12-31T23:59:59+00:00"])
    def test_a_time_that_cannot_be_read_or_is_to_come_is_not_old(self, created_at: str) -> None:
        assert let_go(CheckpointGC.KEEP_AGE, 1, [Item(1, 1, created_at)], NOW) == []

    def test_milestones_thin_by_doubling_the_stride(self) -> None:
        assert kept("keep_milestones", 10, items(*range(1, 11))) == list(range(1, 11))
        assert kept("keep_milestones", 10, items(*range(1, 12))) == [1, 3, 5, 7, 9, 11]
        assert kept("keep_milestones", 10, items(*range(1, 19))) == [1, 3, 5, 7, 9, 11, 13, 15, 17, 18]
        assert kept("keep_milestones", 10, items(*range(1, 21))) == [1, 5, 9, 13, 17, 20]
        assert kept("keep_milestones", 2, items(1, 2, 3)) == [1, 3]

    @given(st.integers(2, 40), st.integers(1, 400))
    def test_one_by_one_and_all_at_once_keep_the_same(self, count: int, length: int) -> None:
        found: list[Item] = []
        for step in range(1, length + 1):
            found.append(Item(step, step, ""))
            gone = let_go(CheckpointGC.KEEP_MILESTONES, count, found, NOW)
            found = [item for item in found if item not in gone]
        left = [item.step for item in found]
        assert left == kept("keep_milestones", count, [Item(n, n, "") for n in range(1, length + 1)])
        assert (left[0], left[-1]) == (1, length)
        assert len(left) <= count
        assert len(left) >= min(length, count / 2)
        gaps = {b - a for a, b in itertools.pairwise(left[:-1])}
        assert len(gaps) <= 1

    @given(st.integers(2, 10), st.lists(st.integers(0, 20), max_size=60))
    def test_milestones_never_keep_too_many_whatever_the_steps(self, count: int, numbers: list[int]) -> None:
        found = items(*numbers)
        gone = let_go(CheckpointGC.KEEP_MILESTONES, count, found, NOW)
        left = [item for item in found if item not in gone]
        assert len(left) <= count
        if found:
            assert left[-1] == found[-1]

    def test_the_grid_stays_when_its_first_point_is_deleted(self) -> None:
        assert kept("keep_milestones", 5, items(6, 9, 13, 17, 21, 25)) == [6, 9, 17, 25]

    @pytest.mark.parametrize(
        ("policy", "param"),
        [
            ("keep_last_n", 0), ("keep_last_n", -1), ("keep_last_n", 1.5), ("keep_last_n", "5"), ("keep_age", 0),
            ("keep_age", float("nan")), ("keep_milestones", 1), ("keep_milestones", 2.5), ("keep_last_n", True),
            ("keep_some", 3), ("keep_last_n", None), ("keep_age", float("inf")),
        ],
    )  # fmt: skip
    def test_values_that_make_no_sense_are_refused(self, policy: Any, param: Any) -> None:
        with pytest.raises(InvalidInput):
            SnapshotConfig(gc_policy=policy, gc_param=param)


class TestKeepLastN:
    async def test_exactly_the_newest_n_stay(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=5)
        for n in range(1, 30):
            await write(engine, 1, start=n)
            assert await numbers(engine) == list(range(n, max(n - 5, 0), -1))

    async def test_one_is_enough(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=1)
        await write(engine, 4)
        assert await numbers(engine) == [4]

    async def test_the_default_keeps_a_hundred(self, engine: Any) -> None:
        await write(engine, 250)
        assert len(await steps(engine)) == 100

    async def test_survivors_read_back_exactly(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=3)
        await write(engine, 20)
        await engine.collect()
        for point in await engine.list_time_travel_points("t"):
            found = await engine.get(point.checkpoint_id)
            assert [m["content"] for m in found.messages] == [f"m{n}" for n in range(1, point.step + 1)]

    async def test_a_smaller_n_applies_at_once(self, make_engine: Any) -> None:
        await write(make_engine(gc_policy="keep_all"), 30)
        await write(make_engine(gc_param=4), 1, start=31)
        assert await numbers(make_engine()) == [31, 30, 29, 28]

    async def test_pins_and_beginnings_stay_on_top_of_n(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=3)
        ids = await write(engine, 2)
        await engine.pin(ids[0])
        branch = await engine.branch(ids[1], "idea")
        await write(engine, 10, start=3)
        assert await numbers(engine) == [12, 11, 10, 2, 1]
        await engine.unpin(ids[0])
        await write(engine, 1, start=13)
        assert await numbers(engine) == [13, 12, 11, 2]
        await make_backend(engine).delete_thread(branch)
        await engine.collect()
        assert await numbers(engine) == [13, 12, 11]

    async def test_a_pin_set_by_somebody_else_is_respected(self, make_engine: Any) -> None:
        engine, other = make_engine(gc_param=3), make_engine(gc_param=3)
        ids = await write(engine, 3)
        await other.pin(ids[1])
        await write(engine, 5, start=4)
        assert (await engine.get(ids[1])).state == {"n": 2}

    async def test_an_older_head_stays(self, make_engine: Any) -> None:
        engine = make_engine(gc_policy="keep_all")
        ids = await write(engine, 6)
        await engine.rewind(ids[0], later="keep")
        await make_engine(gc_param=2).collect()
        assert await numbers(engine) == [6, 5, 1]

    async def test_hidden_ones_fall_under_the_policy_and_are_counted_apart(
        self, make_engine: Any, store: Store
    ) -> None:
        engine = make_engine(gc_param=3)
        ids = await write(engine, 3)
        await engine.rewind(ids[0])
        await write(engine, 2, start=10)
        assert await store.count(Query(thread_id="t", hidden="only")) == 2
        for n in range(3):
            points = await engine.list_time_travel_points("t")
            await engine.rewind(points[-1].checkpoint_id)
            await write(engine, 2, start=20 + 10 * n)
        await engine.collect()
        assert await store.count(Query(thread_id="t", hidden="only")) == 3
        assert await store.count(Query(thread_id="t")) == 3

    async def test_what_is_undone_for_good_is_final_and_the_log_is_trimmed(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=3)
        ids = await write(engine, 3)
        await engine.rewind(ids[1], later="keep")
        assert len(await engine.operations("t")) == 1
        await write(engine, 8, start=4)
        with pytest.raises(CannotUndo, match="final"):
            await engine.undo("t")
        await engine.collect()
        assert await engine.operations("t") == []
        assert len(await numbers(engine)) == 3

    async def test_each_namespace_is_kept_apart(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=2)
        for n in range(4):
            await engine.append("t", [], {"n": n})
            await engine.append("t", [], {"n": n}, namespace="sub")
        assert len(await engine.list_time_travel_points("t")) == 2
        assert len(await engine.list_time_travel_points("t", namespace="sub")) == 2

    async def test_a_failed_save_lets_nothing_go(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=2)
        await write(engine, 2)
        for _ in range(3):
            with pytest.raises(everstep.HeadMoved):
                await engine.append("t", [], {"n": 0}, expected_head="nobody")
        assert await numbers(engine) == [2, 1]
        await write(engine, 1, start=3)
        assert await numbers(engine) == [3, 2]


class TestKeepAge:
    async def test_only_the_young_stay(self, make_engine: Any, backend: Any) -> None:
        engine = make_engine(gc_policy="keep_age", gc_param=3600)
        for n in range(1, 6):
            await put_aged(backend, n, hours=6 - n)
        await write(engine, 1, start=6)
        assert await steps(engine) == [6]

    async def test_an_idle_threads_head_stays(self, make_engine: Any, backend: Any) -> None:
        engine = make_engine(gc_policy="keep_age", gc_param=3600)
        for n in range(1, 4):
            await put_aged(backend, n, hours=10 - n)
        report = await engine.collect()
        assert (report.checkpoints, report.threads) == (2, 1)
        assert await steps(engine) == [3]

    async def test_what_grows_old_goes_with_the_next_snapshot(self, make_engine: Any, backend: Any) -> None:
        engine = make_engine(gc_policy="keep_age", gc_param=3600)
        await put_aged(backend, 1, hours=0.5)
        await write(engine, 1, start=2)
        assert await steps(engine) == [2, 1]
        await put_aged(backend, 1, hours=2, again=True)  # time passes
        engine = make_engine(gc_policy="keep_age", gc_param=3600)
        await write(engine, 1, start=3)
        assert await steps(engine) == [3, 2]


class TestMilestones:
    @pytest.mark.parametrize("face", ["blocking"], indirect=True)
    async def test_after_two_thousand_snapshots_they_are_evenly_spread(self, make_engine: Any) -> None:
        engine = make_engine(gc_policy="keep_milestones", gc_param=50)
        for n in range(2000):
            await engine.append("t", [], {"n": n})
        found = (await steps(engine))[::-1]
        assert (found[0], found[-1]) == (1, 2000)
        assert 25 <= len(found) <= 50
        assert {b - a for a, b in itertools.pairwise(found[:-1])} == {64}

    async def test_one_by_one_it_never_keeps_more_than_n(self, make_engine: Any) -> None:
        engine = make_engine(gc_policy="keep_milestones", gc_param=6)
        for n in range(60):
            await engine.append("t", [], {"n": n})
            found = (await steps(engine))[::-1]
            assert len(found) <= 6
            assert (found[0], found[-1]) == (1, n + 1)
            assert len({b - a for a, b in itertools.pairwise(found[:-1])}) <= 1

    async def test_saves_that_fail_do_not_disturb_the_grid(self, make_engine: Any) -> None:
        engine = make_engine(gc_policy="keep_milestones", gc_param=10)
        for n in range(100):
            await engine.append("t", [], {"n": n})
            with pytest.raises(everstep.UnstorableValue):
                await engine.append("t", [], {"n": object()})
        found = (await steps(engine))[::-1]
        assert len(found) <= 10
        assert {b - a for a, b in itertools.pairwise(found[:-1])} == {16}

    async def test_another_engine_goes_on_with_the_same_grid(self, make_engine: Any) -> None:
        for n in range(100):
            engine = make_engine(gc_policy="keep_milestones", gc_param=8)
            await engine.append("t", [], {"n": n})
        found = (await steps(engine))[::-1]
        assert {b - a for a, b in itertools.pairwise(found[:-1])} == {16}


class TestCollect:
    async def test_a_dry_run_tells_and_removes_nothing(self, make_engine: Any) -> None:
        await write(make_engine(gc_policy="keep_all"), 10)
        engine = make_engine(gc_param=4)
        told = await engine.collect(dry_run=True)
        assert (told.dry_run, told.checkpoints, told.threads) == (True, 6, 1)
        assert len(await numbers(engine)) == 10
        done = await engine.collect()
        assert not done.dry_run
        assert (done.checkpoints, done.objects, done.size_bytes) == (told.checkpoints, told.objects, told.size_bytes)
        assert await numbers(engine) == [10, 9, 8, 7]
        again = await engine.collect()
        assert (again.checkpoints, again.objects, again.size_bytes) == (0, 0, 0)

    async def test_a_dry_run_counts_the_checkpoints_too(self, make_engine: Any) -> None:
        """Small values are in no objects of their own, and what goes with them takes space all the same."""
        keeping = make_engine(gc_policy="keep_all")
        for n in range(10):
            await keeping.append("t", [], {"n": n}, metadata={"note": "x" * 1000})
        told = await make_engine(gc_param=4).collect(dry_run=True)
        assert told.objects == 0
        assert 6 * 1000 < told.size_bytes < 6 * 2000

    async def test_one_thread_or_all(self, make_engine: Any) -> None:
        keeping, engine = make_engine(gc_policy="keep_all"), make_engine(gc_param=2)
        for thread in "abc":
            await write(keeping, 5, thread)
        assert (await engine.collect("b")).checkpoints == 3
        assert [len(await steps(engine, thread)) for thread in "abc"] == [5, 2, 5]
        report = await engine.collect()
        assert (report.checkpoints, report.threads) == (6, 3)
        assert (await engine.collect("nobody")).threads == 0
        with pytest.raises(InvalidInput):
            await engine.collect("")

    async def test_keep_all_collects_only_garbage(self, make_engine: Any, store: Store) -> None:
        engine = make_engine(gc_policy="keep_all")
        ids = await write(engine, 4)
        loaded = await store.read("t", "", ids[0])
        assert loaded is not None
        await store.delete("t", keys=[loaded.stored.record.key])
        assert (await engine.collect()).checkpoints == 0
        assert await numbers(engine) == [4, 3, 2]

    async def test_an_undone_branch_is_collected_too(self, make_engine: Any, store: Store) -> None:
        keeping, engine = make_engine(gc_policy="keep_all"), make_engine(gc_param=2)
        ids = await write(keeping, 2)
        branch = await keeping.branch(ids[1], "idea")
        await write(keeping, 2, branch, start=5)
        await keeping.undo("t")
        report = await engine.collect()
        assert (report.checkpoints, report.hidden) == (1, 1)
        assert await store.count(Query(thread_id=branch, hidden="only")) == 2

    async def test_space_comes_back_without_asking(self, make_engine: Any, store: Store) -> None:
        engine = make_engine(gc_param=10)
        for n in range(400):
            await engine.snapshot("t", [], {"text": f"{n} " * 200}, {})
        loaded = await store.read("t")
        assert loaded is not None
        family = loaded.stored.family
        swept = await store.sweep(family, pretend=[])
        assert swept.objects < 100  # of 400 that were written


class Failing(MemoryStore):
    """A store whose retention fails."""

    async def thread(
        self, thread_id: str, *, branches: bool = False, ancestry: bool = False, brief: bool = False
    ) -> Any:
        raise everstep.StoreUnavailable("try again")


def test_retention_that_fails_does_not_fail_the_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    engine = everstep.CheckpointEngine(everstep.StoreBackend(Failing()), SnapshotConfig(gc_param=1)).sync
    with caplog.at_level(logging.ERROR):
        for n in range(70):
            assert engine.append("t", [], {"n": n})
    assert "will be tried again" in caplog.text
    assert engine.get_latest("t") is not None


class Raced(MemoryStore):
    """A store in which somebody else does something just after it was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[Callable[[], Awaitable[object]]] = []

    async def count(self, query: Query) -> int:
        counted = await super().count(query)
        if self.others:
            await self.others.pop()()
        return counted


@pytest.mark.parametrize("kept", [3, 300])
async def test_what_another_process_has_let_go_is_not_made_up_for(kept: int) -> None:
    store = Raced()
    backend = everstep.StoreBackend(store)
    free = everstep.CheckpointEngine(backend, SnapshotConfig(gc_policy="keep_all"))
    for n in range(1, kept + 3):
        await free.append("t", [], {"n": n})
    engine = everstep.CheckpointEngine(backend, SnapshotConfig(gc_param=kept))
    store.others.append(everstep.CheckpointEngine(backend, SnapshotConfig(gc_param=kept)).collect)
    await engine.append("t", [], {"n": kept + 3})
    assert store.others == []
    points = await engine.list_time_travel_points("t", 1000)
    assert [point.step for point in points] == list(range(kept + 3, 3, -1))


@pytest.mark.parametrize("kept", [3, 300])
async def test_what_another_process_pins_meanwhile_is_not_counted(kept: int) -> None:
    store = Raced()
    backend = everstep.StoreBackend(store)
    free = everstep.CheckpointEngine(backend, SnapshotConfig(gc_policy="keep_all"))
    for n in range(1, kept):
        made = await free.append("t", [], {"n": n})
    engine = everstep.CheckpointEngine(backend, SnapshotConfig(gc_param=kept))
    store.others.append(lambda: free.pin(made))
    await engine.append("t", [], {"n": kept})
    assert store.others == []
    await engine.append("t", [], {"n": kept + 1})
    points = await engine.list_time_travel_points("t", 1000)
    assert [point.step for point in points] == list(range(kept + 1, 0, -1))


async def test_a_save_that_is_noted_late_costs_no_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two saves of one process: what was committed second may be noted first, and much later ones too."""
    noted = asyncio.Event()
    committed = asyncio.Event()
    upkeep = Keeper.upkeep

    async def slow(self: Keeper, store: Store, stored: Stored) -> None:
        if stored.record.step == 4:
            committed.set()
            await noted.wait()
        await upkeep(self, store, stored)

    monkeypatch.setattr(Keeper, "upkeep", slow)
    engine = everstep.open("memory://", SnapshotConfig(gc_param=3))
    for _ in range(3):
        await engine.append("t", [])
    late = asyncio.create_task(engine.append("t", []))
    await committed.wait()
    for step in range(5, 12):
        await engine.append("t", [])
        found = [point.step for point in await engine.list_time_travel_points("t", 100)]
        assert found[:3] == [step, step - 1, step - 2]
    noted.set()
    await late
    await engine.append("t", [])
    assert [point.step for point in await engine.list_time_travel_points("t", 100)] == [12, 11, 10]


async def put_aged(backend: Any, step: int, *, hours: float, again: bool = False) -> None:
    created = (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="microseconds")
    parent = f"c{step - 1}" if step > 1 else None
    metadata = everstep.CheckpointMetadata("t", f"c{step}", step, parent, created)
    await backend.put(everstep.Checkpoint(metadata, state={"n": step, "again": again}))
