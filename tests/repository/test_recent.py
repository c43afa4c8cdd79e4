"""What a process remembers: bounded, and forgotten at a cost that others have no part in."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import SnapshotConfig
from everstep.langgraph import last_written
from everstep.repository import cache
from everstep.repository.cache import ObjectCache
from everstep.repository.recent import Recent
from everstep.retention import keeper
from everstep.retention.keeper import Keeper
from everstep.retention.policies import Item
from everstep.stores import sweeping
from everstep.stores.protocol import BaseRef, Key, Swept
from everstep.stores.sqlite import remembering
from everstep.stores.sweeping import Sweep, Sweeps
from everstep.values import tree


def test_the_oldest_lines_go_when_there_are_too_many() -> None:
    recent: Recent[str] = Recent(2)
    for name in ("a", "b", "a", "c"):
        recent.put((name, ""), name)
    assert [recent.get((name, "")) for name in "abc"] == ["a", None, "c"]
    assert len(recent) == 2


def test_the_oldest_lines_go_when_they_are_too_large() -> None:
    recent: Recent[str] = Recent(100, size_max=10)
    recent.put(("a", ""), "a", 4)
    recent.put(("b", ""), "b", 6)
    assert recent.size == 10
    recent.put(("b", ""), "b", 7)
    assert (recent.get(("a", "")), recent.get(("b", "")), recent.size) == (None, "b", 7)
    recent.put(("large", ""), "large", 1000)
    assert (len(recent), recent.get(("large", ""))) == (1, "large")
    recent.drop(("large", ""))
    recent.drop(("large", ""))
    assert (len(recent), recent.size) == (0, 0)


def test_a_thread_is_forgotten_with_all_its_namespaces_and_nothing_else() -> None:
    recent: Recent[int] = Recent(100)
    for n, line in enumerate([("t", ""), ("t", "inner"), ("other", "")]):
        recent.put(line, n, 1)
    recent.forget("t")
    recent.forget("unknown")
    assert (recent.get(("t", "")), recent.get(("t", "inner")), recent.get(("other", ""))) == (None, None, 2)
    assert (len(recent), recent.size) == (1, 1)


def _keeper(engine: everstep.SyncEngine) -> Keeper:
    timeline: Any = engine._driven._timeline
    found: Keeper = timeline._work.keeper
    return found


class _Steps(OrderedDict[Any, Any]):
    """Counts how many entries were gone through."""

    steps = 0

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            type(self).steps += 1
            yield key


@pytest.mark.parametrize("others", [10, 1000])
def test_the_first_append_of_a_thread_looks_at_no_other_thread(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    monkeypatch.setattr("everstep.repository.recent.OrderedDict", _Steps)
    engine = everstep.open("memory://").sync
    for n in range(others):
        engine.append(f"t{n}", [{"role": "user", "content": "hello"}])
    _Steps.steps = 0
    engine.append("new", [{"role": "user", "content": "hello"}])
    assert _Steps.steps == 0


def test_a_langgraph_thread_is_forgotten_without_a_look_at_others() -> None:
    held = last_written.Lines()
    held._lines = _Steps()
    for n in range(100):
        held.add(last_written.Line(BaseRef(Key(f"t{n}", "", "id"), b""), {}, {}, tree.EMPTY_MAP, 10))
    _Steps.steps = 0
    held.forget("t5")
    assert _Steps.steps == 0
    assert held.get(Key("t5", "", "id")) is None
    assert not held.has("t5", "")
    assert held.get(Key("t6", "", "id")) is not None


def test_a_plan_that_was_forgotten_does_not_come_back() -> None:
    engine = everstep.open("memory://").sync
    engine.append("t", [])
    plans = _keeper(engine)
    plan = plans._plans.get(("t", ""))
    assert plan is not None
    plans.forget("t")
    plans._extend(("t", ""), plan, Item(1, 1, ""))
    assert plans._plans.get(("t", "")) is None


class _OneByOne:
    """A family of so many objects, none of which is garbage."""

    def __init__(self, size: int) -> None:
        self._keys = [n.to_bytes(16) for n in range(size)]

    async def read(self, work: Any) -> Any:
        return work(self)

    async def write(self, work: Any, thread_id: str) -> Any:
        return work(self)

    def remove_objects(self, *_: Any) -> Any:
        raise AssertionError("nothing is to be removed")

    def sweep_begin(self, *_: Any) -> None:
        pass

    def sweep_start(self, *_: Any) -> Any:
        return 0, 0, 0, list(self._keys)

    def links(self, *_: Any) -> Any:
        return []


def test_sweeps_that_nobody_goes_on_with_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "_MET_MAX", 1000)
    sweeps = Sweeps()
    for n in range(50):
        swept, _ = asyncio.run(sweeps.run(_OneByOne(100), f"family {n}", 1, None))
        assert swept == Swept(0, 0, finished=False)
    assert list(sweeps._held) == [f"family {n}" for n in range(40, 50)]
    assert sum(sweep.size for sweep in sweeps._held.values()) <= 1000
    assert isinstance(sweeps._held["family 49"], Sweep)


def test_what_a_process_holds_levels_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many threads, many steps: with small bounds, twice as many steps take no more memory."""
    monkeypatch.setattr(cache, "_CACHE_BYTES_MAX", 50_000)
    monkeypatch.setattr(cache, "_HEADS_MAX", 20)
    monkeypatch.setattr(remembering, "_REMEMBERED_MAX", 20)
    engine = everstep.open(f"sqlite:///{tmp_path}/a.db", SnapshotConfig(gc_policy="keep_all"), synchronous="off").sync

    def held_after(rounds: int) -> int:
        for n in range(rounds):
            for thread in range(30):
                engine.append(f"t{thread}", [{"role": "user", "content": f"{n} {thread} " + "words " * 20}])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        early = held_after(30)
        late = held_after(30)
    finally:
        tracemalloc.stop()
        engine.close()
    assert late - early < 50_000


def test_heads_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_HEADS_BYTES_MAX", 50_000)
    engine = everstep.open("memory://").sync
    for n in range(100):
        engine.append(f"t{n}", [{"role": "user", "content": "hello"}])
    memory: ObjectCache = engine.checkpointer._driven.repository.memory
    assert memory._heads.size <= 50_000
    assert 10 < len(memory._heads) < 25
    assert memory.head("t99", "") is not None
    assert memory.head("t0", "") is None


def test_heads_of_a_file_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remembering, "_HEADS_BYTES_MAX", 1_000)
    engine = everstep.open(f"sqlite:///{tmp_path}/a.db", synchronous="off").sync
    most = 0
    for n in range(60):
        engine.append(f"t{n % 40}", [{"role": "user", "content": f"{n} " * 100}])
        rows = engine.checkpointer._driven.store._database.get()._connections.rows
        known = [head.stored.record for head in rows._heads.values() if head.stored is not None]
        assert rows._heads_bytes == sum(len(record.body) + len(record.children) for record in known)
        most = max(most, rows._heads_bytes)
    assert 900 < most < 1_200
    engine.close()


@pytest.mark.parametrize("policy", ["keep_last_n", "keep_age", "keep_milestones"])
def test_plans_are_bounded_in_number_and_size(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr(keeper, "_PLANS_MAX", 20)
    monkeypatch.setattr(keeper, "_PLAN_BYTES", 1)
    monkeypatch.setattr(keeper, "_PLANS_BYTES_MAX", 20 + 16 * 60)
    monkeypatch.setattr(keeper, "_PAGE", 8)
    param = 5 if policy == "keep_last_n" else 1000
    engine = everstep.open("memory://", SnapshotConfig(gc_policy=policy, gc_param=param)).sync
    plans = _keeper(engine)
    most = 0
    for n in range(30):
        for thread in range(25):
            engine.append(f"t{thread}", [])
        held = [plan.items for plan, _ in plans._plans._held.values()]
        assert len(held) <= 20
        assert sum(map(len, held)) <= 60 + 20 // 16
        if policy != "keep_milestones":
            assert max(map(len, held)) <= 8, n
        most = max(most, *map(len, held))
    assert most >= 5  # something was planned at all


def _planned(engine: Any) -> list[int]:
    """Return how many checkpoints each plan holds."""
    return [len(plan.items) for plan, _ in _keeper(engine)._plans._held.values()]


def test_a_plan_holds_no_more_than_can_go_until_the_next_look() -> None:
    """So what all plans hold levels off, however long the threads become."""
    engine = everstep.open("memory://", SnapshotConfig(gc_param=100)).sync
    threads, held = 20, []
    for _ in range(400):
        for thread in range(threads):
            engine.append(f"t{thread}", [])
        held.append(sum(_planned(engine)))
    commits = keeper._PLAN_COMMITS_MIN
    assert max(held[: 100 - commits]) == 0  # nothing can go before the next look
    assert max(held[:200]) <= threads * commits
    assert max(held[200:]) <= max(held[:200])
    assert all(len(engine.list_time_travel_points(f"t{thread}", limit=200)) == 100 for thread in range(threads))


def test_threads_that_are_planned_are_looked_at_once_in_many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for the plans of more than 20,000 threads of 100 steps, so none is made anew before its time."""
    looks: list[str] = []
    look = Keeper._look

    async def watched(self: Keeper, store: Any, line: Any) -> None:
        looks.append(line[0])
        await look(self, store, line)

    monkeypatch.setattr(Keeper, "_look", watched)
    engine = everstep.open("memory://", SnapshotConfig(gc_param=100)).sync
    for _ in range(100 + keeper._PLAN_COMMITS_MIN):
        engine.append("t", [])
    del looks[:]
    for _ in range(10 * keeper._PLAN_COMMITS_MIN):
        engine.append("t", [])
    assert len(looks) <= 11
    plans = _keeper(engine)._plans
    largest = keeper._PLAN_BYTES + 16 * keeper._PLAN_COMMITS_MIN
    assert plans.size <= largest
    assert min(keeper._PLANS_MAX, keeper._PLANS_BYTES_MAX // largest) > 20_000
