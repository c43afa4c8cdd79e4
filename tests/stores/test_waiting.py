"""Waiting for what another writer has: the pauses stay short, and end at the deadline. By a clock of the test's own."""

from __future__ import annotations

import time
from pathlib import Path

import apsw
import pytest

from everstep import StoreUnavailable
from everstep.runtime.blocking import run_to_end
from everstep.stores import waiting
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite.store import SQLiteStore
from everstep.stores.waiting import Rhythm, Waiting
from everstep.testing import follow
from tests.stores.clocks import Clock

RHYTHM = Rhythm(early=(1.0, 2.0), late=(10.0, 20.0), late_after=100.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(waiting, "time", made)
    return made


def test_pauses_stay_short_and_are_made_longer_only_once(clock: Clock) -> None:
    began = clock.now
    patient = Waiting(RHYTHM, began + 1000)
    while clock.now - began < 100:
        assert patient.pause()
    assert all(1 <= seconds <= 2 for seconds in clock.pauses)
    assert len(set(clock.pauses)) > 10  # those who wait do not stay in step
    del clock.pauses[:]
    while clock.now - began < 900:
        assert patient.pause()
    assert all(10 <= seconds <= 20 for seconds in clock.pauses)


def test_waiting_ends_at_the_deadline(clock: Clock) -> None:
    deadline = clock.now + 50.5
    patient = Waiting(RHYTHM, deadline)
    while patient.pause():
        assert clock.now < deadline
    assert clock.now == pytest.approx(deadline)
    count = len(clock.pauses)
    assert not patient.pause()
    assert len(clock.pauses) == count


def test_a_pause_is_not_longer_than_it_is_told(clock: Clock) -> None:
    assert Waiting(RHYTHM, clock.now + 1000).pause(0.25)
    assert clock.pauses == [0.25]


def test_a_commit_looks_for_the_lock_of_the_file_often_however_long_it_has_waited(tmp_path: Path, clock: Clock) -> None:
    store = SQLiteStore(tmp_path / "a.db").blocking
    run_to_end(store.commit(follow("t", "c")))
    other = apsw.Connection(str(tmp_path / "a.db"), vfs=sqlite_connecting.checksum_vfs())
    other.execute("BEGIN IMMEDIATE")

    def let_go(pauses: int) -> None:
        if pauses == 6000:
            other.execute("ROLLBACK")

    clock.after_pause = let_go
    run_to_end(store.commit(follow("t", "c")))
    assert len(clock.pauses) == 6000
    assert max(clock.pauses[:3000]) < 0.0005  # for about half a second: who came later must not look more often
    assert max(clock.pauses) < 0.002
    other.close()
    run_to_end(store.close())


def test_a_commit_waits_for_the_lock_of_the_file_until_its_deadline(tmp_path: Path, clock: Clock) -> None:
    store = SQLiteStore(tmp_path / "a.db", busy_timeout_seconds=30).blocking
    run_to_end(store.commit(follow("t", "c")))
    other = apsw.Connection(str(tmp_path / "a.db"), vfs=sqlite_connecting.checksum_vfs())
    other.execute("BEGIN IMMEDIATE")
    clock.now = began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        run_to_end(store.commit(follow("t", "c")))
    assert sum(clock.pauses) == pytest.approx(30, abs=5)  # less what really went by before the first pause
    assert clock.now - began >= 30
    other.close()
    run_to_end(store.close())
