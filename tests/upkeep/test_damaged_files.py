"""SQLite files in the states that people bring: a lost beginning, other programs, files that are somebody else's."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointCorrupted, StoreMismatch
from everstep.stores.sqlite import checksums, opening, schema
from everstep.stores.sqlite.connecting import connect
from everstep.stores.sqlite.schema import PAGE_BYTES
from tests.upkeep.contents import all_of

THREADS = ("a", "b", "c")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a few threads, closed."""
    path = tmp_path / "agent.db"
    with everstep.open(path).sync as engine:
        for step in range(30):
            engine.append(THREADS[step % 3], [{"role": "user", "content": f"{step} " * 40}], {"step": step})
        engine.rewind(engine.resolve("a~3").checkpoint_id)
        engine.branch(engine.resolve("b").checkpoint_id, "side")
    return path


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def name_another_version(path: Path) -> None:
    run_elsewhere(path, "PRAGMA user_version = 7077888")


def name_another_application(path: Path) -> None:
    run_elsewhere(path, "PRAGMA application_id = 0")


def forget_both(path: Path) -> None:
    run_elsewhere(path, "PRAGMA application_id = 0; PRAGMA user_version = 0")


def lose_the_header(path: Path) -> None:
    overwrite(path, 0, bytes(100))


def lose_the_first_page(path: Path) -> None:
    overwrite(path, 0, b"!" * PAGE_BYTES)


def make_it_anew_elsewhere(path: Path) -> None:
    """What `sqlite3 old.db .dump | sqlite3 new.db` does, which SQLite's own manual recommends."""
    with sqlite3.connect(path) as source:
        text = "\n".join(source.iterdump())
    source.close()
    path.unlink()
    with sqlite3.connect(path) as target:
        target.executescript(text)
    target.close()


def run_elsewhere(path: Path, statements: str) -> None:
    """Let SQLite do something without what this library adds to it."""
    with sqlite3.connect(path) as connection:
        connection.executescript(statements)
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        name_another_version, name_another_application, forget_both, lose_the_header, lose_the_first_page,
        make_it_anew_elsewhere,
    ],
)  # fmt: skip
def test_a_store_that_lost_its_beginning_is_put_right(damage: object, path: Path, tmp_path: Path) -> None:
    whole = all_of(path)
    assert callable(damage)
    damage(path)
    with everstep.open(path).sync as engine:
        assert not engine.verify().ok
        planned = engine.repair(dry_run=True)
        assert planned.actions
        assert not planned.left, str(planned)
        report = engine.repair(keep=tmp_path / "kept.jsonl")
        assert report.ok, str(report)
    assert all_of(path) == whole
    with everstep.open(path).sync as engine:
        engine.append("a", [{"role": "user", "content": "more"}])
        assert engine.verify().ok
    left = {each.name for each in tmp_path.iterdir() if not each.name.endswith((".damaged", "-wal", "-shm"))}
    assert left == {"agent.db", "kept.jsonl"}, "nothing is left of what it took to read it"


def foreign_database(path: Path) -> None:
    run_elsewhere(path, "CREATE TABLE checkpoints (thread_id); CREATE TABLE writes (a); CREATE TABLE notes (text)")


def foreign_text(path: Path) -> None:
    path.write_text("This is my diary, and no database.\n" * 500)


@pytest.mark.parametrize("make", [foreign_database, foreign_text])
def test_a_file_of_somebody_else_is_left_alone(make: object, tmp_path: Path) -> None:
    path = tmp_path / "mine.db"
    assert callable(make)
    make(path)
    before = path.read_bytes()
    with everstep.open(path).sync as engine:
        for call in (engine.verify, engine.repair, lambda: engine.repair(dry_run=True)):
            with pytest.raises(StoreMismatch):
                call()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_a_newer_version_is_not_damaged(path: Path) -> None:
    connection = connect(path, 1000)
    connection.pragma("user_version", schema.VERSION + 1)
    connection.close()
    with everstep.open(path).sync as engine:
        for call in (engine.verify, engine.repair):
            with pytest.raises(StoreMismatch, match="newer Everstep"):
                call()


@pytest.mark.parametrize("change", ["info = 7", "id = CAST(id AS BLOB)"])
def test_a_checkpoint_that_nobody_can_name_is_set_aside(change: str, path: Path, tmp_path: Path) -> None:
    """As one flipped bit makes it, where a row says of which type its columns are."""
    connection = connect(path, 1000)
    connection.execute(f"UPDATE checkpoints SET {change} WHERE seq = 12")
    connection.close()
    with everstep.open(path).sync as engine:
        report = engine.repair(keep=tmp_path / "kept.jsonl")
        assert report.ok, str(report)
        assert engine.verify().ok
    assert "a row of checkpoints that cannot be read" in (tmp_path / "kept.jsonl").read_text()


def test_what_keeps_all_from_being_read_is_told_once_for_each_thread(path: Path) -> None:
    run_elsewhere(path, "DELETE FROM covers")
    with everstep.open(path).sync as engine:
        report = engine.verify()
        assert any(finding.what.startswith("something hidden that no cover has") for finding in report.findings)
        told = [(finding.what, finding.thread_id) for finding in report.findings]
        assert len(told) == len(set(told))
        assert not [finding for finding in report.findings if finding.kind in ("head", "pin", "origin")], str(report)
        repaired = engine.repair()
    assert repaired.ok
    assert "thread 'c': it is whole again, by what else is stored" in repaired.actions


@pytest.fixture
def refused(path: Path) -> Path:
    """A store that cannot be opened: another program has written its first page, and rows contradict each other."""
    run_elsewhere(path, f"DELETE FROM covers; PRAGMA user_version = {schema.VERSION}")
    return path


def test_a_file_that_is_refused_is_looked_at_once(refused: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To find out that it is damaged, all of it is read: not for every call."""
    looks: list[Path] = []
    plain = checksums.renew_checksums

    def counted(path: Path, *rest: Any) -> None:
        looks.append(path)
        plain(path, *rest)

    monkeypatch.setattr(opening, "renew_checksums", counted)
    with everstep.open(refused).sync as engine:
        with pytest.raises(CheckpointCorrupted):
            engine.get_latest("a")
        first = len(looks)
        assert first > 0
        for name in THREADS:
            with pytest.raises(CheckpointCorrupted, match="no cover has"):
                engine.get_latest(name)
        assert len(looks) == first
        assert engine.repair().ok
        assert engine.get_latest("a") is not None


def test_a_file_that_was_refused_is_opened_when_it_is_put_back(path: Path) -> None:
    whole = path.read_bytes()
    run_elsewhere(path, f"DELETE FROM covers; PRAGMA user_version = {schema.VERSION}")
    with everstep.open(path).sync as engine:
        with pytest.raises(CheckpointCorrupted):
            engine.get_latest("a")
        path.write_bytes(whole)
        assert engine.get_latest("a") is not None
