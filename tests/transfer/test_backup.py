"""Backups of a store that goes on, and every point of it brought back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import CheckpointCorrupted, CheckpointEngine, InvalidInput, MemoryCheckpointer, SQLiteCheckpointer
from everstep.transfer import families
from tests.timeline.histories import Walker, seen
from tests.tools.between import Between


def restored(folder: Path, at: Any = None) -> dict[str, Any]:
    target = MemoryCheckpointer()
    everstep.restore(folder, target, at)
    return seen(target.store)


@pytest.mark.parametrize("seed", range(6))
def test_every_point_is_brought_back_as_it_was(seed: int, tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    walker = Walker(source, seed, gc_policy="keep_last_n", gc_param=10)
    moments = []
    for _ in range(5):
        walker.walk(20)
        moments.append(seen(source.store))
        report = everstep.backup(source, tmp_path)
        assert report.number == len(moments)
    for number, moment in enumerate(moments, 1):
        assert restored(tmp_path, number) == moment
    assert restored(tmp_path) == moments[-1]


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    for n in range(20):
        engine.append(f"t{n}", [{"role": "user", "content": "x" * 500}], {})
    assert everstep.backup(source, tmp_path).threads == 20
    engine.append("t7", [], {"n": 1})
    report = everstep.backup(source, tmp_path)
    assert (report.number, report.threads, report.checkpoints, report.unchanged) == (2, 1, 1, 19)
    report = everstep.backup(source, tmp_path)
    assert (report.threads, report.unchanged) == (0, 20)
    assert restored(tmp_path) == seen(source.store)


def test_what_was_deleted_since_is_not_brought_back(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    ids = [engine.append("t", [], {"n": n}) for n in range(4)]
    branch = engine.branch(ids[1], "b")
    engine.append("gone", [], {})
    before = seen(source.store)
    everstep.backup(source, tmp_path)
    engine.rewind(ids[2], later="delete", thread_id="t")
    for name in ("gone", branch):
        source.sync.delete_thread(name)
    everstep.backup(source, tmp_path)
    assert restored(tmp_path) == seen(source.store)
    assert restored(tmp_path, 1) == before


def test_a_point_in_time(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    moments = []
    for n in range(3):
        engine.append("t", [], {"n": n})
        everstep.backup(source, tmp_path)
        moments.append((datetime.now(UTC), seen(source.store)))
    for time, expected in moments:
        assert restored(tmp_path, time) == restored(tmp_path, time.isoformat()) == expected
        assert restored(tmp_path, time.replace(tzinfo=None)) == expected
    for at in (0, 4, moments[0][0] - timedelta(days=1), "yesterday", 1.5):
        with pytest.raises(InvalidInput):
            restored(tmp_path, at)
    with pytest.raises(InvalidInput, match="no backup"):
        restored(tmp_path / "nowhere")


def test_a_store_that_is_written_to_meanwhile(tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    for name in "abc":
        engine.append(name, [], {"n": 1})
    between = Between(source.store)
    between.before("read_many", lambda: engine.append("a", [], {"n": 2}))
    everstep.backup(between, tmp_path)
    assert between.is_over
    target = MemoryCheckpointer()
    everstep.restore(tmp_path, target)
    for name in "abc":
        assert target.sync.get_latest(name) is not None
    everstep.backup(source, tmp_path)
    assert restored(tmp_path) == seen(source.store)


@pytest.mark.parametrize("name", ["000001.everstep", "000001.families", "manifest.json", "000002.families"])
def test_damage_is_noticed(name: str, tmp_path: Path) -> None:
    source = MemoryCheckpointer()
    engine = CheckpointEngine(source).sync
    engine.append("t", [], {"n": 1})
    everstep.backup(source, tmp_path)
    engine.append("u", [], {"n": 1})
    everstep.backup(source, tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    for changed in (content[: len(content) // 2], content[:30] + b"\0" + content[31:], None):
        if changed is None:
            path.unlink()
        else:
            path.write_bytes(changed)
        with pytest.raises((CheckpointCorrupted, InvalidInput)):
            restored(tmp_path, 1 if "1" in name else 2)


def test_the_asynchronous_twins(tmp_path: Path) -> None:
    source, target = MemoryCheckpointer(), MemoryCheckpointer()
    Walker(source, 3).walk(40)

    async def both() -> None:
        await everstep.backup_async(source, tmp_path)
        await everstep.restore_async(tmp_path, target)

    asyncio.run(both())
    assert seen(target.store) == seen(source.store)


def test_a_backup_that_is_killed_anywhere_leaves_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends at once at each step that it reports, and before and after each file gets its name."""
    monkeypatch.setattr(families, "PART_CHECKPOINTS", 3)
    path = tmp_path / "agent.db"
    folder = tmp_path / "backups"
    walker = Walker(SQLiteCheckpointer(path), 4, gc_policy="keep_last_n", gc_param=10)
    walker.walk(25)
    walker.backend.sync.close()
    moments = [points(path)]
    everstep.backup(f"sqlite:///{path}", folder)
    steps = 0
    for stop in range(60):
        walker = Walker(SQLiteCheckpointer(path), 100 + stop, gc_policy="keep_last_n", gc_param=10)
        walker.walk(3)
        walker.backend.sync.close()
        was_killed = run_and_kill(lambda: everstep.backup(f"sqlite:///{path}", folder, progress=tick), stop)
        steps += was_killed
        assert restored(folder, len(moments)) == moments[-1]
        assert restored(folder) in (moments[-1], points(path))
        report = everstep.backup(f"sqlite:///{path}", folder)
        while len(moments) < report.number:
            moments.append(points(path))
        if not was_killed:
            break
    assert steps >= 8
    for number, moment in enumerate(moments, 1):
        assert restored(folder, number) == moment


_left = [0]


def tick(_progress: object = None) -> None:
    _left[0] -= 1
    if _left[0] < 0:
        os._exit(9)


def run_and_kill(work: Callable[[], object], after: int) -> bool:
    """Run `work` in another process, which ends after so many steps; return whether it did."""
    child = os.fork()
    if child == 0:
        _left[0] = after
        replace = Path.replace

        def replacing(path: Path, target: Path) -> Path:
            tick()
            result = replace(path, target)
            tick()
            return result

        Path.replace = replacing  # type: ignore[assignment, method-assign]
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


def points(path: Path) -> dict[str, Any]:
    backend = SQLiteCheckpointer(path)
    found = seen(backend.store)
    backend.sync.close()
    return found
