"""Retention, sweeps, undo and merge against somebody else, who comes at the worst moment: one test per moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep import CheckpointEngine, SnapshotConfig, SQLiteCheckpointer
from everstep.engine import SyncEngine
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Change, Query, Store
from everstep.stores.sqlite.store import SQLiteStore


def opened(path: Path, keep: int | None = None) -> CheckpointEngine:
    """Return an engine that knows nothing of the others on the file: as in a process of its own."""
    policy = SnapshotConfig(gc_policy="keep_last_n", gc_param=keep) if keep else SnapshotConfig(gc_policy="keep_all")
    return CheckpointEngine(SQLiteCheckpointer(path / "store.db"), policy)


def store_of(engine: CheckpointEngine) -> Store:
    backend = engine.checkpointer
    assert isinstance(backend, SQLiteCheckpointer)
    return backend.blocking.store


def conversation(who: str) -> list[dict[str, Any]]:
    return [{"id": f"{who} {n}", "role": "user", "content": f"{who} says {n}. " * 10} for n in range(50)]


def finish_sweep(store: Store, family: str) -> int:
    """Go on with a sweep that was begun, to its end; return how many objects it took."""
    objects = 0
    while True:
        swept = run_to_end(store.sweep(family, effort=100))
        objects += swept.objects
        if swept.finished:
            return objects


def steps(engine: SyncEngine, thread_id: str) -> list[int]:
    return [point.step for point in reversed(engine.list_time_travel_points(thread_id, 1000))]


def just_after(monkeypatch: pytest.MonkeyPatch, kind: str, then: Callable[[], Any]) -> None:
    """Do something right after the next operation of that kind is committed, before its caller goes on."""
    real = SQLiteStore.commit

    async def commit(self: SQLiteStore, change: Change) -> Any:
        result = await real(self, change)
        if change.log is not None and change.log.kind == kind:
            monkeypatch.setattr(SQLiteStore, "commit", real)
            then()
        return result

    monkeypatch.setattr(SQLiteStore, "commit", commit)


def just_before_undo(monkeypatch: pytest.MonkeyPatch, then: Callable[[], Any]) -> None:
    real = SQLiteStore.commit

    async def commit(self: SQLiteStore, change: Change) -> Any:
        if change.amend:
            monkeypatch.setattr(SQLiteStore, "commit", real)
            then()
        return await real(self, change)

    monkeypatch.setattr(SQLiteStore, "commit", commit)


# -- sweeps ------------------------------------------------------------------------------------------------------------


def test_a_sweep_takes_nothing_that_came_after_it_began(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    sync, store = engine.sync, store_of(engine)
    sync.snapshot("a", conversation("a"), {}, {})
    sync.snapshot("b", conversation("b"), {}, {})  # another family, with the youngest objects
    family = run_to_end(store.read("a")).stored.family  # type: ignore[union-attr]
    assert not run_to_end(store.sweep(family, effort=1)).finished
    sync.checkpointer.delete_thread("b")  # what they are numbered by must not be given to others
    new = sync.snapshot("a", conversation("new"), {}, {})
    assert finish_sweep(store, family) == 0
    found = opened(tmp_path).sync.get(new)
    assert found is not None
    assert found.messages == conversation("new")


def test_a_sweep_takes_nothing_that_was_sent_again(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    sync, store = engine.sync, store_of(engine)
    first = sync.snapshot("a", conversation("a"), {}, {})
    old = sync.snapshot("a", conversation("old"), {}, {})
    family = run_to_end(store.read("a")).stored.family  # type: ignore[union-attr]
    key = run_to_end(store.find(old))[0]
    run_to_end(store.delete("a", keys=[key]))  # its objects are garbage now
    assert not run_to_end(store.sweep(family, effort=1)).finished
    again = opened(tmp_path).sync.snapshot("a", conversation("old"), {}, {})  # and now they are needed
    finish_sweep(store, family)
    reader = opened(tmp_path).sync
    for made, who in ((first, "a"), (again, "old")):
        found = reader.get(made)
        assert found is not None
        assert found.messages == conversation(who)


def test_a_sweep_that_was_overtaken_takes_nothing_that_is_needed(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    sync, store = engine.sync, store_of(engine)
    sync.snapshot("a", conversation("a"), {}, {})
    old = sync.snapshot("a", conversation("old"), {}, {})
    family = run_to_end(store.read("a")).stored.family  # type: ignore[union-attr]
    run_to_end(store.delete("a", keys=run_to_end(store.find(old))))
    assert not run_to_end(store.sweep(family, effort=1)).finished
    other = opened(tmp_path)
    assert run_to_end(store_of(other).sweep(family)).objects > 0  # somebody else has taken it all
    new = other.sync.snapshot("a", conversation("new"), {}, {})
    finish_sweep(store, family)
    found = opened(tmp_path).sync.get(new)
    assert found is not None
    assert found.messages == conversation("new")


def test_a_base_that_was_taken_meanwhile_is_sent_whole(tmp_path: Path) -> None:
    engine = opened(tmp_path)
    sync = engine.sync
    sync.snapshot("a", conversation("a"), {}, {})  # this engine knows its objects now, and would leave them out
    other = opened(tmp_path)
    other.sync.snapshot("a", [], {"n": 1}, {})
    store = store_of(other)
    doomed = [s.record.key for s in run_to_end(store.list_checkpoints(Query(thread_id="a", order="oldest")))][:1]
    run_to_end(store.delete("a", keys=doomed))
    run_to_end(store.sweep(run_to_end(store.read("a")).stored.family))  # type: ignore[union-attr]
    again = sync.snapshot("a", conversation("a"), {}, {})
    found = opened(tmp_path).sync.get(again)
    assert found is not None
    assert found.messages == conversation("a")


# -- retention ---------------------------------------------------------------------------------------------------------


def test_a_rewind_elsewhere_makes_old_checkpoints_the_newest(tmp_path: Path) -> None:
    """What another process hid does not count among the newest N of what is visible."""
    one, other = opened(tmp_path, keep=20).sync, opened(tmp_path, keep=20).sync
    made = [one.append("a", [], {"n": n}) for n in range(1, 21)]
    other.rewind(made[4])
    for n in range(10):
        one.append("a", [], {"n": n})
    assert steps(one, "a") == list(range(1, 16))  # 15 of at most 20
    other.undo("a")
    assert steps(one, "a") == list(range(1, 21))


@pytest.mark.parametrize("how", ["pin", "branch"])
def test_what_is_spared_elsewhere_stays(tmp_path: Path, how: str) -> None:
    """A plan to let a checkpoint go does not hold against a pin, or a branch, that another process made since."""
    one, other = opened(tmp_path, keep=5).sync, opened(tmp_path, keep=5).sync
    made = [one.append("a", [], {"n": n}) for n in range(1, 6)]
    if how == "pin":
        other.pin(made[0])
    else:
        other.branch(made[0], "b")
    for n in range(6, 20):
        one.append("a", [], {"n": n})
    assert steps(one, "a") == [1, 15, 16, 17, 18, 19]
    found = one.get(made[0])
    assert found is not None
    assert found.state == {"n": 1}


def test_a_merge_base_survives_retention_and_undo(tmp_path: Path) -> None:
    engine = opened(tmp_path, keep=3).sync
    branch = engine.branch(engine.append("a", [], {"a": 0}), "b")
    engine.append(branch, [], {"b": 1})
    engine.merge_branch(branch, "a")
    engine.append(branch, [], {"b": 2})
    engine.merge_branch(branch, "a")
    for n in range(3, 9):
        engine.append(branch, [], {"b": n})
    engine.collect()  # takes the state of the branch that was merged first
    engine.undo("a")  # but that is what the two have in common again
    engine.merge_branch(branch, "a")
    found = engine.get_latest("a")
    assert found is not None
    assert found.state == {"a": 0, "b": 8}


def test_redo_works_after_undo_when_retention_has_trimmed_the_log(tmp_path: Path) -> None:
    engine = opened(tmp_path, keep=3).sync
    a, b, _ = [engine.append("a", [], {"n": n}) for n in range(3)]
    engine.rewind(b)
    engine.append("a", [], {"n": 3})
    engine.pin(a)
    engine.unpin(a)
    engine.rewind(b)
    for n in range(4, 6):
        engine.append("a", [], {"n": n})
    engine.collect()  # takes the first checkpoint, and from the log what is about it
    before = steps(engine, "a")
    assert engine.undo("a").id == engine.redo("a").id
    assert steps(engine, "a") == before


# -- operations of two at once -----------------------------------------------------------------------------------------


def test_rewind_with_delete_drops_only_its_own_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = opened(tmp_path).sync, opened(tmp_path).sync
    a, b, _ = [one.append("a", [], {"n": n}) for n in range(3)]
    just_after(monkeypatch, "rewind", lambda: other.pin(a))
    one.rewind(b, later="delete")
    assert [operation.kind for operation in one.operations("a")] == ["pin"]
    assert one.undo("a").kind == "pin"


def test_two_undos_at_once_take_two_operations_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = opened(tmp_path).sync, opened(tmp_path).sync
    a, b = [one.append("a", [], {"n": n}) for n in range(2)]
    one.pin(a)
    one.pin(b)
    undone: list[int] = []
    just_before_undo(monkeypatch, lambda: undone.append(other.undo("a").id))
    undone.append(one.undo("a").id)
    assert sorted(undone) == sorted(operation.id for operation in one.operations("a"))
    assert not any(point.pinned for point in one.list_time_travel_points("a"))


# -- merge -------------------------------------------------------------------------------------------------------------


def test_a_merge_may_look_into_the_store_more_than_once(tmp_path: Path) -> None:
    engine = opened(tmp_path).sync

    def said(who: str, n: int) -> dict[str, Any]:
        return {"id": f"{who}-{n}", "role": "user", "content": f"{who} said {n}. " * 10}

    branch = engine.branch(engine.snapshot("a", [said("a", n) for n in range(10)], {}, {}), "b")
    for n in range(2):
        engine.append(branch, [said("b", n)])
        engine.append("a", [said("a", 1000 + n)])
    engine.merge_branch(branch, "a")
    found = engine.get_latest("a")
    assert found is not None
    assert [m["id"] for m in found.messages[10:]] == ["a-1000", "a-1001", "b-0", "b-1"]
