"""Copies of a store's file, made the ways that people make them."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import everstep

KEEP_ALL = everstep.SnapshotConfig(gc_policy="keep_all")
_WRITER = """
import os, signal, sys
from pathlib import Path
from tests.faults.contents import fill
fill(Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def write_and_be_killed(path: Path) -> None:
    """Fill a store in a process that is killed: its write-ahead log is left."""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", _WRITER, str(path)], cwd=root, check=False)
    assert done.returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size > 0


def read_with_sqlite(path: Path) -> None:
    """Look into the file with an ordinary SQLite program, which moves the log into the file when it closes it."""
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM checkpoints").fetchone()[0] > 0
    assert not Path(f"{path}-wal").exists()


def back_up(source: Path, target: Path) -> None:
    """Copy as `.backup` does, and Python's `Connection.backup`."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


def vacuum_into(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as old:
        old.execute("VACUUM INTO ?", (str(target),))


def move_the_log(source: Path, target: Path) -> None:
    """Copy the file with its log, and let an ordinary SQLite program read it."""
    for end in ("", "-wal"):
        shutil.copyfile(f"{source}{end}", f"{target}{end}")
    read_with_sqlite(target)


COPIES: dict[str, Callable[[Path, Path], None]] = {
    "log moved by another program": move_the_log,
    "backup": back_up,
    "vacuum into": vacuum_into,
}


def opened(path: Path, **options: Any) -> everstep.SyncEngine:
    return everstep.open(f"sqlite:///{path}", KEEP_ALL, **options).sync


def work(engine: everstep.SyncEngine, steps: int, thread_id: str = "t") -> None:
    for n in range(steps):
        engine.append(thread_id, [{"content": f"{n} " * 100}])


def count(engine: everstep.SyncEngine, thread_id: str = "t") -> int:
    return len(engine.list_time_travel_points(thread_id, 10_000))


def remove(path: Path, *ends: str) -> None:
    """Remove what lies beside a file."""
    for end in ends:
        Path(f"{path}{end}").unlink()
