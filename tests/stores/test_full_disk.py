"""Deleting where the disk is full: in steps, with the room that was set aside for it."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import everstep
from everstep import StoreFull
from everstep.stores.deletion import Deletion
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite import database as sqlite_database
from everstep.stores.sqlite import files
from everstep.stores.sqlite import store as sqlite_store
from everstep.stores.sqlite import translating as sqlite_translating
from everstep.stores.sqlite.full_disk import Reserve, Steps
from everstep.stores.sqlite.opening import open_file
from everstep.stores.sqlite.rows import Rows
from everstep.stores.sqlite.verify import verify

SIZE = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture(autouse=True)
def _small_files_have_a_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_database, "_RESERVE_FROM_PAGES", 256)


@pytest.fixture
def engine(path: Path) -> Iterator[everstep.SyncEngine]:
    with everstep.open(path, synchronous="off").sync as engine:
        yield engine


def fill(engine: everstep.SyncEngine, thread_id: str, steps: int, size: int = 100) -> None:
    for n in range(steps):
        engine.append(thread_id, [{"role": "user", "content": f"{n} {os.urandom(size).hex()}"}])


def test_deleting_makes_room_on_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stores.small_disk", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    happened = [line.split()[0] for line in done.stdout.splitlines() if line.endswith(" True")]
    deleted = ["deleted", "collected", "deleted", "shorter", "deleted"]
    assert [what for what in happened if what != "filled"] == deleted, done.stdout + done.stderr
    assert happened.count("filled") == 4, done.stdout


# -- deletions that do not fit at once


@pytest.fixture
def fits_few(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let no commit delete more than five checkpoints, or five objects; return how many checkpoints each deleted."""
    sizes: list[int] = []
    delete, delete_some, remove, drop = Rows.delete, Rows.delete_some, Rows.remove_objects, Rows.drop_family

    def limited(rows: Rows, *args: Any) -> Any:
        deleted = delete(rows, *args)
        _refuse_many(deleted.checkpoints)
        return deleted

    def limited_some(rows: Rows, deletion: Deletion) -> int:
        count = delete_some(rows, deletion)
        _refuse_many(count)
        sizes.append(count)
        return count

    def limited_objects(rows: Rows, family: str, doomed: Any, sweeps: int) -> int | None:
        _refuse_many(len(doomed))
        return remove(rows, family, doomed, sweeps)

    def limited_family(rows: Rows, family: str) -> bool:
        objects, _ = rows.objects_after(family, b"", 10)
        is_dropped = drop(rows, family)
        if is_dropped:
            _refuse_many(len(objects))
        return is_dropped

    monkeypatch.setattr(Rows, "delete", limited)
    monkeypatch.setattr(Rows, "delete_some", limited_some)
    monkeypatch.setattr(Rows, "remove_objects", limited_objects)
    monkeypatch.setattr(Rows, "drop_family", limited_family)
    return sizes


def _refuse_many(count: int) -> None:
    if count > 5:
        raise apsw.exception_for(apsw.SQLITE_FULL)


def left(path: Path, table: str) -> int:
    connection = sqlite_connecting.connect(path, 1000)
    try:
        verify(connection)
        return int(connection.execute(f"SELECT count(*) FROM {table}").get)
    finally:
        connection.close()


def test_a_thread_goes_in_steps_and_nothing_is_left_of_it(
    engine: everstep.SyncEngine, path: Path, fits_few: list[int]
) -> None:
    fill(engine, "t", 40)
    assert engine.checkpointer.delete_thread("t") == 40
    assert sum(fits_few) == 40
    assert max(fits_few) <= 5
    assert {left(path, table) for table in ("threads", "lines", "checkpoints", "objects", "families")} == {0}


def test_only_what_is_asked_for_goes_in_steps(engine: everstep.SyncEngine, path: Path, fits_few: list[int]) -> None:
    fill(engine, "t", 40)
    newest = engine.get_latest("t")
    assert engine.checkpointer.delete_before("t", 31) == 30
    assert [point.step for point in engine.list_time_travel_points("t", 100)] == list(range(40, 30, -1))
    assert engine.get_latest("t") == newest
    assert left(path, "checkpoints") == 10


def test_an_ordinary_deletion_is_one_commit(engine: everstep.SyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(sqlite_store, "Steps", fail)
    fill(engine, "t", 40)
    assert engine.checkpointer.delete_thread("t") == 40


def test_a_commit_may_have_the_room_of_the_log(
    engine: everstep.SyncEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(engine, "t", 3)
    log, insert = Path(f"{path}-wal"), Rows.insert

    def need_room(*args: Any, **options: Any) -> Any:
        if log.stat().st_size:
            raise apsw.exception_for(apsw.SQLITE_FULL)
        return insert(*args, **options)

    monkeypatch.setattr(Rows, "insert", need_room)
    fill(engine, "t", 1)
    assert len(engine.list_time_travel_points("t")) == 4


@pytest.mark.usefixtures("fits_few")
def test_a_deletion_that_was_interrupted_harms_nothing_and_can_go_on(
    engine: everstep.SyncEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> Any:
        raise StoreFull("somebody else was faster")

    fill(engine, "t", 40)
    fill(engine, "other", 3)
    other = engine.get_latest("other")
    with monkeypatch.context() as patched:
        patched.setattr(Steps, "sweep", interrupt)
        with pytest.raises(StoreFull, match="then delete again"):
            engine.checkpointer.delete_thread("t")
    assert left(path, "checkpoints") == 3
    assert engine.get_latest("t") is None
    assert engine.list_time_travel_points("t") == []
    assert [thread.thread_id for thread in engine.list_threads()] == ["other"]
    assert engine.checkpointer.delete_thread("t") == 0
    assert left(path, "threads") == 1
    assert engine.get_latest("other") == other


@pytest.mark.usefixtures("fits_few")
def test_a_thread_whose_deletion_was_interrupted_can_be_used_again(
    engine: everstep.SyncEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> Any:
        raise StoreFull("somebody else was faster")

    fill(engine, "t", 40)
    with monkeypatch.context() as patched:
        patched.setattr(Steps, "sweep", interrupt)
        with pytest.raises(StoreFull):
            engine.checkpointer.delete_thread("t")
    fill(engine, "t", 1)
    found = engine.get_latest("t")
    assert found is not None
    assert len(found.messages) == 1
    engine.collect()
    assert left(path, "checkpoints") == 1


# -- the reserve


def reserve_of(path: Path) -> Path:
    return Path(f"{path}-reserve")


def test_a_file_of_some_size_sets_room_aside(path: Path) -> None:
    path.touch()
    path.chmod(0o660)
    with everstep.open(path, synchronous="off").sync as engine:
        fill(engine, "t", 20, 5000)
        assert not reserve_of(path).exists()
        fill(engine, "t", 20, 100_000)
        stat = reserve_of(path).stat()
    assert stat.st_mode & 0o777 == 0o660
    assert 0.4e6 < stat.st_size < 2e6
    assert stat.st_blocks * 512 >= stat.st_size
    assert not any(reserve_of(path).read_bytes())


def test_a_deletion_sets_room_aside_before_it_takes_all(engine: everstep.SyncEngine, path: Path) -> None:
    fill(engine, "t", 20, 100_000)
    fill(engine, "other", 1)
    reserve_of(path).unlink()
    engine.checkpointer.delete_thread("other")
    assert reserve_of(path).exists()


def test_nothing_is_set_aside_where_room_is_scarce(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.touch()
    reserve = Reserve(path)
    monkeypatch.setattr(reserve, "_free_bytes", lambda: 2 * SIZE - 1)
    reserve.keep(SIZE, leaving_bytes=SIZE)
    assert not reserve_of(path).exists()
    monkeypatch.setattr(reserve, "_free_bytes", lambda: 2 * SIZE)
    reserve.keep(SIZE, leaving_bytes=SIZE)
    assert reserve_of(path).stat().st_size == SIZE


def test_a_reserve_that_does_not_fit_is_not_left_half_made(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left")

    path.touch()
    monkeypatch.setattr(os, "posix_fallocate", fail)
    Reserve(path).keep(SIZE, leaving_bytes=SIZE)
    assert not reserve_of(path).exists()


@pytest.mark.usefixtures("fits_few")
def test_what_was_given_up_is_set_aside_again(
    engine: everstep.SyncEngine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meanwhile: list[bool] = []
    delete_some = Rows.delete_some

    def watched(*args: Any) -> int:
        meanwhile.append(reserve_of(path).exists())
        return delete_some(*args)

    monkeypatch.setattr(Rows, "delete_some", watched)
    fill(engine, "t", 40)
    Reserve(path).keep(SIZE, leaving_bytes=0)
    engine.checkpointer.delete_thread("t")
    assert set(meanwhile) == {False}
    assert reserve_of(path).stat().st_size == SIZE


def test_opening_on_a_full_disk_takes_a_little_of_the_reserve(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with everstep.open(path).sync as engine:
        fill(engine, "t", 3)
    Reserve(path).keep(SIZE, leaving_bytes=0)
    opened = open_file

    def need_room(*args: Any) -> Any:
        if reserve_of(path).stat().st_size == SIZE:
            raise apsw.exception_for(apsw.SQLITE_FULL)
        return opened(*args)

    monkeypatch.setattr(sqlite_database, "open_file", need_room)
    with everstep.open(path).sync as engine:
        assert len(engine.list_time_travel_points("t")) == 3
    assert SIZE * 3 // 4 < reserve_of(path).stat().st_size < SIZE


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.ENOSPC])
def test_a_user_whose_share_of_the_disk_is_used_up_is_told_that_it_is_full(
    path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """SQLite itself tells a full disk from a full share, which it calls a failed write."""
    failed: Any = apsw.IOError("disk I/O error")
    failed.extendedresult = apsw.SQLITE_IOERR_WRITE
    assert not isinstance(sqlite_translating.translation(path, failed), StoreFull)

    def no_more(*arguments: Any, **options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files, "TemporaryFile", no_more)
    assert isinstance(sqlite_translating.translation(path, failed), StoreFull)
