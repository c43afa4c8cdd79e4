"""People look into their database, and copy it, with the SQLite programs they have: the store goes on."""

from __future__ import annotations

import logging
import multiprocessing
import random
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import CheckpointCorrupted
from everstep.runtime.blocking import run_to_end
from everstep.stores.sqlite import checksums as sqlite_checksums
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite import verify as sqlite_verify
from everstep.stores.sqlite.schema import PAGE_BYTES
from everstep.stores.sqlite.store import SQLiteStore
from everstep.testing import follow
from tests.faults.contents import everything, wrong_after
from tests.faults.files import COPIES, back_up, vacuum_into, write_and_be_killed

FLIPS = 50


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose writer was killed, with the log that it left. Never opened: copy it."""
    path = tmp_path_factory.mktemp("killed") / "killed.db"
    write_and_be_killed(path)
    return path


@pytest.fixture(scope="module")
def truth(killed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the store answers when nobody else has touched it."""
    answers = everything(copied(killed, tmp_path_factory.mktemp("truth") / "truth.db"))
    assert not any(isinstance(answer, Exception) for answer in answers.values())
    return answers


def copied(source: Path, target: Path) -> Path:
    for end in ("", "-wal"):
        if Path(f"{source}{end}").exists():
            shutil.copyfile(f"{source}{end}", f"{target}{end}")
    return target


@pytest.fixture(params=list(COPIES))
def written_by_another(request: pytest.FixtureRequest, killed: Path, tmp_path: Path) -> Path:
    """A copy of the store whose pages were last written by an ordinary SQLite program."""
    source = copied(killed, tmp_path / "source.db")
    COPIES[request.param](source, tmp_path / "copy.db")
    return tmp_path / "copy.db"


def messages(path: Path) -> list[str]:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        found = engine.get_latest("t")
        return [] if found is None else [message["content"] for message in found.messages]


def test_a_file_that_another_program_wrote_is_read_with_one_warning(
    written_by_another: Path, truth: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "everstep"):
        assert everything(written_by_another) == truth
        assert everything(written_by_another) == truth
    assert len(caplog.records) == 1
    assert "another SQLite program" in caplog.text


def test_the_checksums_of_its_pages_are_right_afterwards(written_by_another: Path) -> None:
    with everstep.open(f"sqlite:///{written_by_another}").sync as engine:
        engine.append("chat", [{"role": "user", "content": "one more"}])
    data = written_by_another.read_bytes()
    pages = [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
    with closing(sqlite_connecting.connect(written_by_another, 1000)) as connection:
        right = [connection.execute("SELECT verify_checksum(?)", (page,)).get for page in pages]
    assert right == [1] * len(pages)


def test_single_bit_flips_in_a_file_that_another_program_wrote_are_never_silently_wrong(
    written_by_another: Path, truth: dict[str, Any], tmp_path: Path
) -> None:
    data = written_by_another.read_bytes()
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    noticed = 0
    for _ in range(FLIPS):
        at, bit = rng.randrange(len(data)), rng.randrange(8)
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        wrong, loud = wrong_after(bytes(flipped), truth, tmp_path / "flipped.db")
        assert wrong == [], f"seed {seed}: bit {bit} of byte {at}"
        noticed += loud
    assert noticed > FLIPS // 10  # the others are in places that hold nothing: most of a small file with many tables


ROWS = {
    "families": "live = live + 1",
    "threads": "began = 7",
    "lines": "generation = generation + 1",
    "segments": "line = NULL",
    "checkpoints": "added = added + 1",
    "writes": "seq = seq + 1000",
    "operations": "undone = NOT undone",
    "hidden": "upto = upto + 1",
    "counters": "value = value + 1",
    "objects": "body = body || x'00'",
    "shared_states": "seq = seq + 1",
    "sqlite_sequence": "seq = seq + 1",
}


@pytest.mark.parametrize("table", ROWS)
def test_one_changed_value_in_any_table_is_loud(killed: Path, tmp_path: Path, table: str) -> None:
    """Each kind of row has a checksum, or follows from others. The change comes without the triggers that seal rows."""
    path = tmp_path / "changed.db"
    back_up(copied(killed, tmp_path / "source.db"), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        rowid = {"segments": "segment", "writes": "seq", "shared_states": "seq"}.get(table, "rowid")
        connection.execute(f"UPDATE {table} SET {ROWS[table]} WHERE {rowid} = (SELECT max({rowid}) FROM {table})")
        for _, sql in triggers:
            connection.execute(sql)
    with pytest.raises(CheckpointCorrupted, match="damaged"):
        everything_or_raise(path)


def everything_or_raise(path: Path) -> None:
    for answer in everything(path).values():
        if isinstance(answer, Exception):
            raise answer


def spoil_checksums(path: Path) -> None:
    """Make the checksums wrong of the pages that hold heads. They are not read when the file is opened."""
    with closing(sqlite_connecting.connect(path, 1000)) as connection:
        pages = connection.execute("SELECT pageno FROM dbstat WHERE name = 'lines'").fetchall()
    data = bytearray(path.read_bytes())
    for (number,) in pages:
        data[int(str(number)) * PAGE_BYTES - 1] ^= 1
    path.write_bytes(data)


def renewed_copy(killed: Path, tmp_path: Path) -> Path:
    """Return a copy of the store that our own program wrote last."""
    path = tmp_path / "store.db"
    back_up(copied(killed, tmp_path / "source.db"), path)
    with everstep.open(f"sqlite:///{path}").sync as engine:
        engine.get_latest("chat")
    return path


def test_a_damaged_file_is_looked_at_once(killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = renewed_copy(killed, tmp_path)
    with closing(sqlite_connecting.connect(path, 1000)) as connection:
        connection.execute("UPDATE lines SET total = total + 1")
    spoil_checksums(path)
    looked = []
    verify = sqlite_verify.verify

    def look(*args: Any) -> None:
        looked.append(args)
        verify(*args)

    monkeypatch.setattr(sqlite_verify, "verify", look)
    with everstep.open(f"sqlite:///{path}").sync as engine:
        for _ in range(3):
            with pytest.raises(CheckpointCorrupted, match="wrong count of checkpoints"):
                engine.list_time_travel_points("chat")
            with pytest.raises(CheckpointCorrupted, match="wrong count of checkpoints"):
                engine.append("chat", [{}])
    assert len(looked) == 1


def test_a_program_that_keeps_the_file_open_and_closes_it_last(tmp_path: Path) -> None:
    path = tmp_path / "browsed.db"
    with everstep.open(f"sqlite:///{path}").sync as engine:
        engine.append("t", [{"content": "before"}])
    browser = subprocess.Popen(
        ["python3", "-c", _BROWSER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert browser.stdin is not None
    assert browser.stdout is not None
    assert browser.stdout.readline() == "open\n"
    with everstep.open(f"sqlite:///{path}").sync as engine:
        for n in range(20):
            engine.append("t", [{"content": f"meanwhile {n}"}])
    assert Path(f"{path}-wal").exists()  # the browser still has it open
    browser.communicate("close\n")
    assert not Path(f"{path}-wal").exists()
    assert messages(path) == ["before", *(f"meanwhile {n}" for n in range(20))]


_BROWSER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM checkpoints").fetchall()
print("open", flush=True)
sys.stdin.readline()
connection.close()
"""


@pytest.mark.parametrize("call", ["read", "commit"])
def test_a_call_that_meets_such_a_page_goes_on(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    path = renewed_copy(killed, tmp_path)
    caplog.clear()
    spoil_checksums(path)
    store = SQLiteStore(path).blocking
    with caplog.at_level(logging.WARNING, "everstep"):
        if call == "read":
            assert run_to_end(store.read("chat")) is not None
        else:
            stored = run_to_end(store.commit(follow("chat", "next")))
            assert stored is not None
            assert stored.record.step == 31
    run_to_end(store.close())
    assert len(caplog.records) == 1


def test_who_comes_second_finds_nothing_to_renew(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.db"
    back_up(copied(killed, tmp_path / "source.db"), path)
    with caplog.at_level(logging.WARNING, "everstep"):
        sqlite_checksums.renew_checksums(path, 1000)
        sqlite_checksums.renew_checksums(path, 1000)
    assert len(caplog.records) == 1


def _read_at_once(path: Path, barrier: Any, answers: Any) -> None:
    barrier.wait()
    try:
        with everstep.open(f"sqlite:///{path}").sync as engine:
            latest = engine.get_latest("chat")
            engine.append("chat", [{"role": "user", "content": "from many"}])
            answers.put(len(latest.messages) if latest is not None else None)
    except BaseException as exc:
        answers.put(repr(exc))


def test_processes_that_meet_such_a_file_at_once_all_go_on(killed: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    path = tmp_path / "store.db"
    vacuum_into(copied(killed, tmp_path / "source.db"), path)
    barrier, answers = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_read_at_once, args=(path, barrier, answers)) for _ in range(4)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    assert [answer for answer in found if not isinstance(answer, int)] == []
    with everstep.open(f"sqlite:///{path}").sync as engine:
        latest = engine.get_latest("chat")
        assert latest is not None
        assert sum(message["content"] == "from many" for message in latest.messages) == 4


def test_what_others_add_to_the_schema_does_no_harm(killed: Path, tmp_path: Path, truth: dict[str, Any]) -> None:
    path = tmp_path / "store.db"
    back_up(copied(killed, tmp_path / "source.db"), path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE VIEW names AS SELECT name FROM threads")
        connection.execute("CREATE INDEX by_step ON checkpoints (step)")
        connection.execute("ANALYZE")
    assert everything(path) == truth
