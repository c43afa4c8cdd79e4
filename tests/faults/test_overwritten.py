"""A backup copied over a file that is open (`cp backup.db agent.db`: the same inode): every call says so."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import everstep
from everstep import StoreError
from everstep.stores.sqlite import checksums as sqlite_checksums
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite.raw import RawFile
from everstep.stores.sqlite.schema import PAGE_BYTES
from tests.faults.files import KEEP_ALL, work

CALLS: dict[str, Callable[[everstep.SyncEngine], Any]] = {
    "append": lambda engine: engine.append("t", [{"content": "after"}]),
    "snapshot": lambda engine: engine.snapshot("new", [], {}, {}),
    "get_latest": lambda engine: engine.get_latest("t"),
    "list": lambda engine: engine.list_time_travel_points("t"),
    "threads": lambda engine: engine.checkpointer.list_threads(),
    "delete": lambda engine: engine.checkpointer.delete_thread("t"),
    "collect": lambda engine: engine.collect(),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


_BACKUP = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))"


def back_up(path: Path, target: Path) -> None:
    """Make a backup in another process: two SQLite libraries in one process drop each other's locks."""
    subprocess.run([sys.executable, "-c", _BACKUP, str(path), str(target)], check=True)


def copy_the_file(path: Path, target: Path) -> None:
    shutil.copyfile(path, target)


@pytest.mark.parametrize("make", [back_up, copy_the_file])
@pytest.mark.parametrize("later", [1, 5, 40, 200])
def test_every_call_says_so_until_the_store_is_opened_again(path: Path, make: Any, later: int) -> None:
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        work(engine, 20)
    backup = path.with_name("backup.db")
    engine = everstep.open(f"sqlite:///{path}", KEEP_ALL).sync
    work(engine, 3)
    make(path, backup)
    work(engine, later)
    shutil.copyfile(backup, path)
    for _ in range(2):
        for call in CALLS.values():
            with pytest.raises(StoreError, match="overwritten"):
                call(engine)
    engine.close()
    assert path.read_bytes() == backup.read_bytes(), "closing has written the old log over what was restored"
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as again:
        latest = again.get_latest("t")
        assert latest is not None
        assert latest.metadata.step == (23 if make is back_up else 20)
        work(again, 2)


def test_the_asynchronous_face_says_so_too(path: Path) -> None:
    async def run() -> None:
        engine = everstep.open(f"sqlite:///{path}", KEEP_ALL)
        await engine.append("t", [{"content": "one"}])
        back_up(path, path.with_name("backup.db"))
        await engine.append("t", [{"content": "two"}])
        shutil.copyfile(path.with_name("backup.db"), path)
        with pytest.raises(StoreError, match="overwritten"):
            await engine.get_latest("t")
        with pytest.raises(StoreError, match="overwritten"):
            await engine.append("t", [{"content": "three"}])
        await engine.close()

    asyncio.run(run())


def test_what_the_log_held_is_kept_aside(path: Path) -> None:
    engine = everstep.open(f"sqlite:///{path}", KEEP_ALL).sync
    work(engine, 1)
    back_up(path, path.with_name("backup.db"))
    work(engine, 1)
    shutil.copyfile(path.with_name("backup.db"), path)
    with pytest.raises(StoreError, match="overwritten"):
        engine.get_latest("t")
    engine.close()
    (aside,) = path.parent.glob("agent.db-wal.*")
    assert aside.stat().st_size > 0


@pytest.mark.parametrize("mode", [apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_TRUNCATE])
def test_a_log_that_others_move_into_the_file_is_no_reason(path: Path, mode: int) -> None:
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        for _ in range(10):
            work(engine, 3)
            with closing(sqlite_connecting.connect(path, 1000)) as other:
                other.wal_checkpoint(mode=mode)
            assert engine.get_latest("t") is not None
        assert len(engine.list_time_travel_points("t", 100)) == 30


_WRITER = """
import sys, everstep
engine = everstep.open(f"sqlite:///{sys.argv[1]}", everstep.SnapshotConfig(gc_policy="keep_all")).sync
for n in range(150):
    engine.append(sys.argv[2], [{"content": f"{n} " * 100}])
    assert len(engine.get_latest(sys.argv[2]).messages) == n + 1
engine.close()
"""


def test_processes_that_write_at_once_are_no_reason(path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(path), f"t{n}"]) for n in range(3)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]


_MOVE_LOG = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA wal_checkpoint(TRUNCATE)')"
_READ = "import sys, everstep; everstep.open(f'sqlite:///{sys.argv[1]}').sync.get_latest('t')"


@pytest.mark.parametrize("who", ["another process", "this one"])
def test_checksums_that_are_renewed_are_no_reason(path: Path, who: str) -> None:
    """Another program moves the log into the file, without checksums, and somebody renews them in place."""
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        for n in range(1, 4):
            work(engine, 5)
            subprocess.run([sys.executable, "-c", _MOVE_LOG, str(path)], check=True)
            if who == "another process":
                subprocess.run([sys.executable, "-c", _READ, str(path)], check=True)
            assert engine.get_latest("t") is not None
            with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as second:
                assert len(second.list_time_travel_points("t", 100)) == 5 * n
            assert len(engine.list_time_travel_points("t", 100)) == 5 * n
    with closing(sqlite_connecting.connect(path, 1000)) as connection:
        assert sqlite_checksums.count_renewals(connection) > 0


@pytest.mark.parametrize("is_counted", [True, False])
def test_pages_that_are_written_in_place_are_counted(path: Path, is_counted: bool) -> None:
    """A process that renews checksums has the write lock, and says so before it lets go."""
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        work(engine, 5)
        with closing(sqlite_connecting.connect(path, 1000)) as other:
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            work(engine, 1)  # the log has begun
            other.execute("BEGIN IMMEDIATE")
            raw = RawFile(other)
            raw.seal_page(0, raw.read(0, PAGE_BYTES))
            os.utime(path)  # also where the clock of the file system is coarse
            if is_counted:
                other.execute("INSERT INTO counters (name, value) VALUES ('renewals', 1)")
            other.execute("COMMIT")
        if is_counted:
            work(engine, 1)
            assert len(engine.list_time_travel_points("t", 100)) == 7
        else:
            with pytest.raises(StoreError, match="overwritten"):
                work(engine, 1)


def test_a_copy_over_the_file_after_the_first_commit_of_a_new_log_is_noticed(path: Path) -> None:
    backup = path.with_name("backup.db")
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        work(engine, 5)
        back_up(path, backup)
        with closing(sqlite_connecting.connect(path, 1000)) as other:
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        assert engine.get_latest("t") is not None
        work(engine, 1)  # begins the log anew
        shutil.copyfile(backup, path)
        with pytest.raises(StoreError, match="overwritten"):
            engine.list_time_travel_points("t")


_KILLED_WRITER = """
import os, shutil, signal, sys, everstep
path = sys.argv[1]
engine = everstep.open(f"sqlite:///{path}", everstep.SnapshotConfig(gc_policy="keep_all")).sync
for n in range(12):
    for t in range(12):
        engine.append(f"t{t}", [{"content": f"{t} {n} " * 20}])
    if n == int(sys.argv[2]):
        shutil.copyfile(path, path + ".old")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("copied_at", [2, 8])
def test_an_old_file_beside_a_newer_log_is_never_a_shorter_thread(path: Path, copied_at: int) -> None:
    """The writer was killed, and a copy of the main file alone was put back without the removal of the log."""
    subprocess.run([sys.executable, "-c", _KILLED_WRITER, str(path), str(copied_at)], check=False)
    shutil.copyfile(f"{path}.old", path)
    loud, wrong = 0, []
    engine = everstep.open(f"sqlite:///{path}").sync
    for t in range(12):
        try:
            latest = engine.get_latest(f"t{t}")
            if latest is None or len(latest.messages) != 12:
                wrong.append(t)
        except everstep.EverstepError:
            loud += 1
    engine.close()
    assert wrong == []
    assert loud > 0
