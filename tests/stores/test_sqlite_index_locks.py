"""SQLite's locks belong to a handle: another copy of SQLite in this process sees them, and takes none away."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import os
import platform
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from everstep import StoreUnavailable
from everstep.stores.sqlite import index_locks
from everstep.stores.sqlite.handle import open_shared
from everstep.stores.sqlite.presence import Presence
from everstep.stores.sqlite.queue import Job
from tests.faults.files import count, opened, work

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in index_locks._CODE, reason="there are no such locks here"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "agent.db"
    with opened(path) as engine:
        count(engine)
    return path


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """Python's own SQLite, on the same file, for tables of the application."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE app (number)")
        yield connection


def run(code: str, *arguments: object) -> str:
    """Run code in a process of its own, and return what it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# -- what stands in the place of the system's call


class _Lock(ctypes.Structure):
    """The C structure flock."""

    _fields_ = (
        ("kind", ctypes.c_short),
        ("whence", ctypes.c_short),
        ("start", ctypes.c_int64),
        ("length", ctypes.c_int64),
        ("process", ctypes.c_int),
    )


_Call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_TWINS = {5: 36, 6: 37, 7: 38}
_COMMANDS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 36, 37, 38, 1024, 1030]
_STARTS = [0, 1, 119, 120, 121, 128, 129, 4096, 0x4000_0000, 0x4000_0002, -1]


def test_only_locks_of_an_index_are_asked_for_by_handle() -> None:
    asked: list[tuple[int, int, int]] = []

    def system(file: int, command: int, lock: int) -> int:
        asked.append((file, command, lock))
        return 7

    real = _Call(system)
    address = ctypes.cast(real, ctypes.c_void_p).value
    assert address is not None
    code = index_locks._CODE[platform.machine()] + index_locks._ADDRESS.pack(address)
    made = index_locks._made_callable(code)
    assert made is not None
    call = _Call(made)
    for command, start in itertools.product(_COMMANDS, _STARTS):
        lock = _Lock(1, 0, start, 1, 99)
        assert call(3, command, ctypes.addressof(lock)) == 7
        is_of_index = command in _TWINS and 120 <= start <= 128
        expected = _TWINS[command] if is_of_index else command
        assert asked.pop() == (3, expected, ctypes.addressof(lock))
        assert (lock.kind, lock.start, lock.length) == (1, start, 1)
        assert lock.process == (0 if is_of_index else 99)
    # Other commands have a number in that place, which is no address.
    assert call(3, 2, 1) == 7
    assert asked == [(3, 2, 1)]


# -- both write


def test_what_the_other_one_writes_is_waited_for(path: Path, other: sqlite3.Connection) -> None:
    with opened(path, busy_timeout_seconds=0.05) as engine:
        work(engine, 1)
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO app VALUES (1)")
        with pytest.raises(StoreUnavailable):
            work(engine, 1)
        other.execute("COMMIT")
        work(engine, 1)
        assert count(engine) == 2


def test_the_other_one_waits_for_what_is_written_here(path: Path, other: sqlite3.Connection) -> None:
    database = open_shared(path, "full", 1.0)
    is_inside, may_end = threading.Event(), threading.Event()

    def hold(rows: object) -> None:
        is_inside.set()
        assert may_end.wait(60)

    writer = threading.Thread(target=lambda: database.queue.do(Job(hold, "")))
    writer.start()
    try:
        assert is_inside.wait(60)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("INSERT INTO app VALUES (1)")
    finally:
        may_end.set()
        writer.join()
    other.execute("INSERT INTO app VALUES (1)")
    database.release()


def test_nothing_is_lost_when_both_write_on_threads_of_one_process(path: Path) -> None:
    is_over = threading.Event()
    written: list[int] = []

    def write() -> None:
        with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
            connection.execute("CREATE TABLE app (number)")
            while not is_over.is_set():
                connection.execute("INSERT INTO app VALUES (1)")
                written.append(1)
                if len(written) % 10 == 0:  # it moves pages without their checksums, which are renewed
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    writer = threading.Thread(target=write)
    writer.start()
    with opened(path) as engine:
        try:
            while len(written) < 50 or count(engine) < 200:
                work(engine, 20)
        finally:
            is_over.set()
            writer.join()
        steps = count(engine)
        assert engine.verify().ok
        latest = engine.get_latest("t")
        assert latest is not None
        assert len(latest.messages) == steps
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM app").fetchone() == (len(written),)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


_BOTH = """
import json, sqlite3, sys, threading
from pathlib import Path
from tests.faults.files import opened, work

path, name, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def write():
    for number in range(rounds):
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        for _ in range(3):
            connection.execute("INSERT INTO app VALUES (?)", (number,))
        connection.close()

writer = threading.Thread(target=write)
writer.start()
for _ in range(rounds):
    with opened(path) as engine:
        work(engine, 3, name)
writer.join()
"""


@pytest.mark.long
def test_nothing_is_lost_when_both_open_and_close_the_file_in_three_processes(path: Path) -> None:
    rounds = 40
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE app (number)")
    names = ["one", "two", "three"]
    running = [
        subprocess.Popen([sys.executable, "-c", _BOTH, str(path), name, str(rounds)], cwd=ROOT) for name in names
    ]
    assert [process.wait(300) for process in running] == [0, 0, 0]
    with opened(path) as engine:
        assert [count(engine, name) for name in names] == [3 * rounds] * 3
        assert engine.verify().ok
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM app").fetchone() == (9 * rounds,)


def test_nobody_moves_the_log_while_checksums_are_renewed(path: Path, other: sqlite3.Connection) -> None:
    with opened(path) as engine:
        work(engine, 1)
        presence = Presence(path)
        with presence.log_stays(0.0):
            busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            assert busy == 1
            with pytest.raises(StoreUnavailable, match="moves the log"), Presence(path).log_stays(0.0):
                pass
        busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0
        work(engine, 1)
        assert count(engine) == 2


# -- the store is closed while the other one has the file open

_TRY_TO_WRITE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
try:
    connection.execute("BEGIN IMMEDIATE")
    print("written")
except sqlite3.OperationalError as exc:
    print(exc)
"""


def test_closing_the_store_takes_no_lock_from_the_other_one(path: Path, other: sqlite3.Connection) -> None:
    with opened(path) as engine:
        work(engine, 1)
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO app VALUES (1)")
    assert run(_TRY_TO_WRITE, path) == "database is locked"
    other.execute("COMMIT")
    assert run(_TRY_TO_WRITE, path) == "written"


def test_closing_the_store_leaves_the_other_one_its_log(path: Path, other: sqlite3.Connection) -> None:
    with opened(path) as engine:
        work(engine, 1)
    log = Path(f"{path}-wal")
    assert log.exists(), "it belongs to the other one as well"
    other.execute("INSERT INTO app VALUES (1)")
    with opened(path) as engine:
        work(engine, 1)
        assert count(engine) == 2
    other.close()
    # Whoever closes a store next lets go of it.
    with opened(path) as engine:
        count(engine)
    assert not log.exists()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM app").fetchone() == (1,)


def test_a_file_that_is_kept_open_is_closed_before_a_fork(path: Path, other: sqlite3.Connection) -> None:
    with opened(path) as engine:
        work(engine, 1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with opened(path) as engine:
                work(engine, 1)
                code = 0 if count(engine) == 2 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with opened(path) as engine:
        work(engine, 1)
        assert count(engine) == 3


# -- where it cannot be done

_WITHOUT = """
import json, sys
from pathlib import Path
from everstep.stores.sqlite import index_locks
from tests.faults.files import count, opened, work
{prelude}
with opened(Path(sys.argv[1])) as engine:
    work(engine, 3)
    is_first = index_locks.are_separate()
{between}
with opened(Path(sys.argv[1])) as engine:
    work(engine, 3)
    print(json.dumps([is_first, index_locks.are_separate(), count(engine)]))
"""


@pytest.mark.parametrize(
    "prelude",
    [
        "index_locks._CODE.clear()",
        "index_locks.has_handle_locks = lambda: False",
        "index_locks._EXECUTE = 1 << 20",
    ],
    ids=["another processor", "no such locks", "no code may be made"],
)
def test_a_store_works_without(path: Path, prelude: str) -> None:
    printed = run(_WITHOUT.format(prelude=prelude, between=""), path)
    assert json.loads(printed) == [False, False, 6]


def test_it_is_not_done_while_somebody_has_a_file_open_by_the_same_library(path: Path, tmp_path: Path) -> None:
    prelude = f"import apsw; theirs = apsw.Connection({str(tmp_path / 'theirs.db')!r})"
    printed = run(_WITHOUT.format(prelude=prelude, between="theirs.close()"), path)
    assert json.loads(printed) == [False, True, 6]


def test_locks_of_other_programs_are_seen(path: Path) -> None:
    """The two kinds of lock are in each other's way, as they must be between processes of both kinds."""
    with opened(path) as engine:
        work(engine, 1)
        index = os.open(f"{path}-shm", os.O_RDWR)
        try:
            # What SQLite locks as long as it has the file open: a lock of this process sees it.
            with pytest.raises(OSError, match="unavailable"):
                fcntl.lockf(index, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 128)
        finally:
            os.close(index)
        work(engine, 1)
