"""The log beside a file that is open: another SQLite in this process takes its locks away, or somebody removes it.

What was acknowledged is there afterwards, also when the process is killed.
"""

from __future__ import annotations

import logging
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from everstep import StoreError
from tests.faults.files import count, opened, remove, vacuum_into, work

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


def steps_in(path: Path, thread_id: str = "t") -> int:
    with opened(path) as engine:
        report = engine.verify()
        assert report.ok, report
        return count(engine, thread_id)


def run_and_kill(path: Path, code: str) -> None:
    """Save 10 steps in another process, run code there while the store is open, save 10 more, and kill it."""
    script = "\n".join([_BEGIN, code, _END])
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


_BEGIN = """
import os, signal, sqlite3, subprocess, sys
from pathlib import Path
from tests.faults.files import count, opened, remove, work
path = Path(sys.argv[1])
engine = opened(path)
work(engine, 10)
"""
_END = """
work(engine, 10)
assert count(engine) == 20
os.kill(os.getpid(), signal.SIGKILL)
"""

# -- another SQLite in the same process

_LOOK = """
other = sqlite3.connect(path)
assert other.execute("SELECT count(*) FROM checkpoints").fetchone() == (10,)
"""
_LOOKS = {
    "and goes": _LOOK + "other.close()",
    "and stays": _LOOK,
    "and stays while it is written": _LOOK
    + """
work(engine, 5, "u")
assert other.execute("SELECT count(*) FROM checkpoints").fetchone() == (15,)
other.close()
""",
    "and moves the log": _LOOK
    + """
other.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
other.close()
""",
    "before another process does": _LOOK
    + """
other.close()
look = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT name FROM threads').fetchall()"
subprocess.run([sys.executable, "-c", look, path], check=True)
""",
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks that belong to a handle")
@pytest.mark.parametrize("look", _LOOKS)
def test_pythons_own_sqlite_looks(path: Path, look: str) -> None:
    run_and_kill(path, _LOOKS[look] + f"\nassert Path(f'{path}-wal').stat().st_size > 0")
    assert steps_in(path) == 20


_WRITER = """
import sys
from pathlib import Path
from tests.faults.files import opened, work
work(opened(Path(sys.argv[1])), 100, "theirs")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has locks that belong to a handle")
def test_pythons_own_sqlite_looks_again_and_again_while_two_processes_write(path: Path) -> None:
    engine = opened(path)
    work(engine, 1)
    is_over = threading.Event()
    looks: list[int] = []

    def look() -> None:
        while not is_over.is_set():
            with closing(sqlite3.connect(path)) as other:
                looks.append(other.execute("SELECT count(*) FROM threads").fetchone()[0])

    looker = threading.Thread(target=look)
    looker.start()
    try:
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], cwd=ROOT)
        work(engine, 99)
        assert writer.wait(120) == 0
    finally:
        is_over.set()
        looker.join()
    assert looks
    assert (count(engine), count(engine, "theirs")) == (100, 100)
    engine.close()
    assert not Path(f"{path}-wal").exists()
    assert (steps_in(path), steps_in(path, "theirs")) == (100, 100)


# -- the log is removed


@pytest.mark.parametrize("ends", [("-wal",), ("-shm",), ("-wal", "-shm")], ids=" ".join)
def test_a_log_that_is_removed_loses_nothing(path: Path, ends: tuple[str, ...]) -> None:
    run_and_kill(path, f"remove(path, *{ends})")
    assert steps_in(path) == 20


def test_who_reads_moves_what_a_removed_log_held_into_the_file(path: Path) -> None:
    with opened(path) as engine:
        work(engine, 10)
        remove(path, "-wal")
        assert count(engine) == 10
        shutil.copyfile(path, path.with_name("copy.db"))
    assert steps_in(path.with_name("copy.db")) == 10


def test_a_removed_log_is_told_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path) as engine, caplog.at_level(logging.WARNING, "everstep"):
        for _ in range(2):
            work(engine, 2)
            remove(path, "-wal")
            work(engine, 2)
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            assert "agent.db-wal was removed" in caplog.text
            caplog.clear()
    assert not Path(f"{path}-wal").exists()
    assert steps_in(path) == 8


_OTHER = """
import sys
from pathlib import Path
from tests.faults.files import count, opened, work
engine = opened(Path(sys.argv[1]))
for line in sys.stdin:
    try:
        work(engine, 1)
        print("saved", flush=True)
    except Exception as exc:
        print("refused", exc, flush=True)
engine.close()
"""


class Other:
    """Another process that has the store open, and saves a step when it is asked to."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _OTHER, str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def save(self) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


def test_who_notices_first_waits_for_the_others(path: Path) -> None:
    engine = opened(path)
    other = Other(path)
    work(engine, 3)
    assert other.save() == "saved"
    remove(path, "-wal")
    for _ in range(2):
        with pytest.raises(StoreError, match="others have the file open"):
            work(engine, 1)
        with pytest.raises(StoreError, match="others have the file open"):
            count(engine)
    assert not Path(f"{path}-wal").exists()
    assert other.save() == "saved"  # nobody else has it open any more
    work(engine, 1)
    assert count(engine) == 6
    assert other.save() == "saved"
    other.close()
    engine.close()
    assert steps_in(path) == 7


def test_a_log_that_somebody_else_has_begun_is_left_alone(path: Path) -> None:
    engine = opened(path)
    work(engine, 3)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint").fetchall()
    remove(path, "-wal", "-shm")
    other = Other(path)
    assert other.save() == "saved"
    for _ in range(2):
        with pytest.raises(StoreError, match="begun a new one"):
            work(engine, 1)
        with pytest.raises(StoreError, match="begun a new one"):
            count(engine)
    engine.close()
    assert other.save() == "saved"
    other.close()
    assert steps_in(path) == 5


def test_a_removed_log_is_not_moved_into_a_backup_that_was_copied_over_the_file(path: Path) -> None:
    engine = opened(path)
    work(engine, 3)
    backup = path.with_name("backup.db")
    vacuum_into(path, backup)
    work(engine, 3)
    remove(path, "-wal", "-shm")
    shutil.copyfile(backup, path)
    with pytest.raises(StoreError, match="overwritten"):
        work(engine, 1)
    engine.close()
    assert path.read_bytes() == backup.read_bytes()
    assert steps_in(path) == 3
