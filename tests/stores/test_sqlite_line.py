"""The line of processes that wait to write to one file: its order, and those who die or stand still in it."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from everstep import StoreUnavailable
from everstep.runtime.blocking import run_to_end
from everstep.stores import waiting
from everstep.stores.protocol import Query
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite import line as line_module
from everstep.stores.sqlite import wal as sqlite_wal
from everstep.stores.sqlite.line import WritersLine
from everstep.stores.sqlite.schema import PAGE_BYTES
from everstep.stores.sqlite.store import SQLiteStore
from everstep.testing import follow
from tests.stores.clocks import Clock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="locks of open files are Linux's")

BEATEN_MAX = 8


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(waiting, "time", made)
    monkeypatch.setattr(line_module, "time", made)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    made = SQLiteStore(path).blocking
    run_to_end(made.commit(follow("t", "c")))
    yield made
    run_to_end(made.close())


@pytest.fixture
def join(store: SQLiteStore) -> Iterator[Callable[[], WritersLine]]:
    """Returns one who has just got in line."""
    made: list[WritersLine] = []

    def new() -> WritersLine:
        made.append(WritersLine(store.path))
        made[-1].join()
        return made[-1]

    yield new
    for one in made:
        one.close()


def test_whoever_came_first_is_first(join: Callable[[], WritersLine], path: Path) -> None:
    writers = [join() for _ in range(5)]
    for number, writer in enumerate(writers):
        assert [one.is_first() for one in writers[number:]] == [True] + [False] * (4 - number)
        assert not WritersLine(path).is_empty()
        writer.leave()
    assert WritersLine(path).is_empty()


def test_who_comes_back_is_behind_all_others(join: Callable[[], WritersLine]) -> None:
    first = join()
    others = [join() for _ in range(2)]
    first.leave()
    first.join()
    assert others[0].is_first()
    others[0].leave()
    assert others[1].is_first()
    assert not first.is_first()


def test_two_who_come_at_once_get_two_places(
    join: Callable[[], WritersLine], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finds the place free, and then taken."""
    second = WritersLine(path)
    lock = second._locks.lock
    others: list[WritersLine] = []

    def beaten(place: int, length: int) -> bool:
        if not others:
            others.append(join())
        return lock(place, length)

    monkeypatch.setattr(second._locks, "lock", beaten)
    second.join()
    assert others[0].is_first()
    assert not second.is_first()
    second.close()


def test_one_who_dies_in_line_leaves_no_gap(join: Callable[[], WritersLine]) -> None:
    first, second, third = [join() for _ in range(3)]
    second.close()  # as when its process ends
    assert not third.is_first()
    first.leave()
    assert third.is_first()


WAITER = """
import sys
from everstep.stores.sqlite.line import WritersLine
line = WritersLine(sys.argv[1])
line.join()
print("in line", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def waiter(store: SQLiteStore) -> Iterator[subprocess.Popen[str]]:
    """A process that stands in line."""
    command = [sys.executable, "-c", WAITER, str(store.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in line\n"
        yield process
        process.kill()


def test_a_process_that_is_killed_in_line_is_not_waited_for(
    store: SQLiteStore, waiter: subprocess.Popen[str], clock: Clock
) -> None:
    def kill(pauses: int) -> None:
        if pauses == 20:
            waiter.kill()
            waiter.wait()

    clock.after_pause = kill
    run_to_end(store.commit(follow("t", "c")))
    assert len(clock.pauses) == 20


def test_a_process_that_is_stopped_in_line_is_passed_by_once(
    store: SQLiteStore, waiter: subprocess.Popen[str], clock: Clock, join: Callable[[], WritersLine]
) -> None:
    os.kill(waiter.pid, signal.SIGSTOP)
    began = clock.now
    run_to_end(store.commit(follow("t", "c")))
    assert 1.0 <= clock.now - began < 1.1
    clock.pauses.clear()
    run_to_end(store.commit(follow("t", "c")))
    assert clock.pauses == []
    waiter.kill()
    waiter.wait()
    run_to_end(store.commit(follow("t", "c")))
    other = join()  # places begin anew, and this one has that of the process which was passed by
    clock.after_pause = lambda _: other.leave()
    run_to_end(store.commit(follow("t", "c")))
    assert len(clock.pauses) == 1


def test_nobody_goes_past_a_line(store: SQLiteStore, join: Callable[[], WritersLine], clock: Clock) -> None:
    other = join()

    def leave(pauses: int) -> None:
        if pauses == 50:
            other.leave()

    clock.after_pause = leave
    run_to_end(store.commit(follow("t", "c")))
    assert len(clock.pauses) == 50
    assert other.is_empty()


def test_a_wait_in_line_ends_at_the_deadline(
    store: SQLiteStore, join: Callable[[], WritersLine], clock: Clock, path: Path
) -> None:
    """Then the file is looked at once: if nobody has it, it may be taken."""
    first = join()
    hasty = SQLiteStore(path, synchronous="normal", busy_timeout_seconds=0.5).blocking
    clock.now = time.monotonic()
    run_to_end(hasty.commit(follow("t", "c")))
    assert sum(clock.pauses) == pytest.approx(0.5, abs=0.1)
    other = sqlite_connecting.connect(path, busy_ms=0)
    other.execute("BEGIN IMMEDIATE")
    clock.now = time.monotonic()
    with pytest.raises(StoreUnavailable):
        run_to_end(hasty.commit(follow("t", "c")))
    first.leave()
    assert first.is_empty()
    other.close()
    run_to_end(hasty.close())


class Rival:
    """Has the lock of the file, and commits something each time that it is told to."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite_connecting.connect(path, busy_ms=0)
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._connection.execute(
            "INSERT INTO counters (name, value) VALUES ('rival', 1) ON CONFLICT DO UPDATE SET value = value + 1"
        )
        self._connection.execute("COMMIT; BEGIN IMMEDIATE")

    def end(self) -> None:
        self._connection.close()


def test_a_writer_that_others_were_faster_than_gets_in_line(store: SQLiteStore, path: Path, clock: Clock) -> None:
    rival = Rival(path)
    line = WritersLine(path)
    was_empty: list[bool] = []

    def beat(pauses: int) -> None:
        was_empty.append(line.is_empty())
        rival.commit()
        if pauses == 2 * BEATEN_MAX:
            rival.end()

    clock.after_pause = beat
    run_to_end(store.commit(follow("t", "c")))
    assert was_empty == [True] * BEATEN_MAX + [False] * BEATEN_MAX
    assert line.is_empty()
    line.close()


def test_a_writer_that_waits_for_one_long_commit_does_not_hold_others_up(
    store: SQLiteStore, path: Path, clock: Clock
) -> None:
    rival = Rival(path)
    line = WritersLine(path)
    was_empty: list[bool] = []

    def watch(pauses: int) -> None:
        was_empty.append(line.is_empty())
        if pauses == 500:
            rival.end()

    clock.after_pause = watch
    run_to_end(store.commit(follow("t", "c")))
    assert was_empty == [True] * 500
    line.close()


def test_the_line_is_left_when_time_is_over(path: Path, store: SQLiteStore, clock: Clock) -> None:
    rival = Rival(path)
    clock.after_pause = lambda _: rival.commit()
    hasty = SQLiteStore(path, synchronous="normal", busy_timeout_seconds=0.5).blocking
    run_to_end(hasty.thread("t"))
    clock.now = time.monotonic()
    with pytest.raises(StoreUnavailable):
        run_to_end(hasty.commit(follow("t", "c")))
    assert len(clock.pauses) > BEATEN_MAX
    line = WritersLine(path)
    assert line.is_empty()
    line.close()
    rival.end()
    run_to_end(store.commit(follow("t", "c")))
    run_to_end(hasty.close())


def test_without_such_locks_everybody_is_first(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    asked: list[int] = []

    def refuse(_file: int, command: int, _arg: bytes) -> bytes:
        asked.append(command)
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    rival = Rival(path)

    def beat(pauses: int) -> None:
        rival.commit()
        if pauses == 30:
            rival.end()

    clock.after_pause = beat
    run_to_end(store.commit(follow("t", "c")))
    run_to_end(store.commit(follow("t", "c")))
    assert len(asked) <= 1  # it is not asked again
    assert len(clock.pauses) == 30


def test_the_file_of_the_line_is_closed_before_a_fork(store: SQLiteStore, join: Callable[[], WritersLine]) -> None:
    """A handle that the child has too would keep a place in line that its parent had."""
    database = store._database.get()
    connections = database._connections
    assert connections is not None
    connections.line.join()
    child = os.fork()
    if child == 0:
        os._exit(0 if join().is_empty() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert connections.line._locks._file is None
    assert connections.presence._file._file is None
    run_to_end(store.commit(follow("t", "c")))


# -- how often the log is moved into the file


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether all of the log should be moved, each time that some of it was. It is as short as beside a large file."""
    made: list[bool] = []
    monkeypatch.setattr(sqlite_wal, "_TOGETHER_PAGES", 0)
    move = sqlite_wal.WriteAheadLog._move

    def watch(self: Any, connections: Any, *, is_whole: bool) -> None:
        made.append(is_whole)
        move(self, connections, is_whole=is_whole)

    monkeypatch.setattr(sqlite_wal.WriteAheadLog, "_move", watch)
    return made


def log_pages(path: Path) -> int:
    return os.path.getsize(f"{path}-wal") // (PAGE_BYTES + 24)  # with its header


def test_a_small_file_and_its_log_take_a_certain_size_together_and_then_the_log_is_short(
    store: SQLiteStore, path: Path
) -> None:
    """To move the log waits for the disk, so a short history does it rarely; a long one still has a short log."""
    longest = 0
    while os.path.getsize(path) < 2 * sqlite_wal._TOGETHER_PAGES * PAGE_BYTES:
        run_to_end(store.commit(follow("t", "c")))
        longest = max(longest, log_pages(path))
    assert 2 * sqlite_wal.WAL_PAGES_MIN < longest < 2 * sqlite_wal._TOGETHER_PAGES
    for _ in range(2 * sqlite_wal.WAL_PAGES_MIN):
        run_to_end(store.commit(follow("t", "c")))
    assert log_pages(path) < 2 * sqlite_wal.WAL_PAGES_MIN


def test_a_log_that_a_reader_keeps_is_not_moved_with_each_commit(
    moves: list[bool], store: SQLiteStore, path: Path
) -> None:
    reader = sqlite_connecting.connect(path, busy_ms=0)
    reader.execute("BEGIN; SELECT * FROM counters")
    while log_pages(path) < 6 * sqlite_wal.WAL_PAGES_MIN:
        run_to_end(store.commit(follow("t", "c")))
    assert 4 <= len(moves) <= 7
    reader.close()


def test_what_another_process_has_moved_is_not_moved_again(moves: list[bool], store: SQLiteStore, path: Path) -> None:
    reader = sqlite_connecting.connect(path, busy_ms=0)
    other = sqlite_connecting.connect(path, busy_ms=0)
    other.execute("SELECT * FROM counters").fetchall()  # now it knows that there is a log
    run_to_end(store.commit(follow("t", "c")))  # what was there before is moved
    moves.clear()
    while log_pages(path) < 2 * sqlite_wal.WAL_PAGES_MIN:
        run_to_end(store.commit(follow("t", "c")))
        with reader:  # it keeps the log from beginning anew, but not from being moved
            reader.execute("SELECT * FROM counters").fetchall()
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            run_to_end(store.commit(follow("t", "c")))
    assert moves == []
    other.close()
    reader.close()


def test_a_log_that_others_write_to_all_the_time_begins_anew(
    moves: list[bool], store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never in the file as a whole, unless they are kept from writing."""
    move = sqlite_wal.WriteAheadLog._move

    def hardly(self: Any, connections: Any, *, is_whole: bool) -> None:
        if is_whole:
            move(self, connections, is_whole=is_whole)
        else:
            moves.append(False)

    monkeypatch.setattr(sqlite_wal.WriteAheadLog, "_move", hardly)
    while moves.count(True) < 3:
        run_to_end(store.commit(follow("t", "c")))
    assert log_pages(path) <= 6 * sqlite_wal.WAL_PAGES_MIN
    assert 6 <= moves.count(False) <= 12
    assert len(run_to_end(store.list_checkpoints(Query(thread_id="t")))) > 3
