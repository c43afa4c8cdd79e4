"""What is left of a damaged store is copied, and what is not is named."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import CheckpointCorrupted, CheckpointEngine, MemoryCheckpointer, StoreBackend
from everstep.runtime.blocking import run_to_end
from everstep.stores.keyvalue.changing import ChangeRows
from everstep.stores.keyvalue.keys import number, numbers
from everstep.stores.keyvalue.rows import CHECKPOINTS, OBJECTS, family_number
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Key, Write
from tests.timeline.histories import Walker, seen


@pytest.fixture
def source() -> MemoryCheckpointer:
    """Three threads, two of one family; each checkpoint has an object of its own."""
    backend = MemoryCheckpointer()
    engine = CheckpointEngine(backend).sync
    for name in ("one", "two"):
        for n in range(4):
            engine.snapshot(name, [], {"n": n, "text": [secrets.token_hex(300) for _ in range(9)]}, {})
    branch = engine.branch(engine.list_time_travel_points("one")[1].checkpoint_id, "b")
    engine.append(branch, [], {"b": 1})
    return backend


def ids(backend: StoreBackend, thread_id: str) -> list[str]:
    """Return the checkpoints of a thread, the oldest first."""
    points = CheckpointEngine(backend).sync.list_time_travel_points(thread_id, 100)
    return [point.checkpoint_id for point in points][::-1]


def copied(source: StoreBackend) -> tuple[MemoryCheckpointer, everstep.CopyReport]:
    target = MemoryCheckpointer()
    return target, everstep.copy(source, target, skip_damaged=True)


def change_key(backend: StoreBackend, key: bytes, value: bytes | None) -> None:
    def change(rows: ChangeRows) -> None:
        if value is None:
            rows._delete(key)
        else:
            rows._put(key, value)

    assert isinstance(backend.store, MemoryStore)
    run_to_end(backend.store._write(change))
    backend.store._seen = type(backend.store._seen)()


def lose_an_object(backend: StoreBackend, thread_id: str, checkpoint_id: str) -> None:
    """Lose an object that this checkpoint alone needs."""
    store = backend.store.blocking
    loaded = run_to_end(store.read(thread_id, "", checkpoint_id, objects=True))
    assert loaded is not None
    own = {obj.hash for obj in loaded.objects}
    for other in ids(backend, thread_id):
        if other != checkpoint_id:
            theirs = run_to_end(store.read(thread_id, "", other, objects=True))
            assert theirs is not None
            own -= {obj.hash for obj in theirs.objects}
    family = family_number(loaded.stored.family)
    change_key(backend, OBJECTS + number(family) + min(own), None)


def test_without_damage_it_is_the_same() -> None:
    source = MemoryCheckpointer()
    Walker(source, 7).walk(80)
    target, report = copied(source)
    assert report == everstep.copy(source, MemoryCheckpointer())
    assert seen(target.store) == seen(source.store)


def test_a_checkpoint_that_lacks_an_object_is_left_out(source: MemoryCheckpointer) -> None:
    every = ids(source, "two")
    lose_an_object(source, "two", every[1])
    with pytest.raises(CheckpointCorrupted):
        everstep.copy(source, MemoryCheckpointer())

    target, report = copied(source)

    assert [(found.thread_id, found.checkpoint_id) for found in report.damaged] == [("two", every[1])]
    assert ids(target, "two") == [every[0], *every[2:]]
    assert ids(target, "one") == ids(source, "one")
    assert report.threads == 3


def test_a_head_that_lacks_an_object_falls_back(source: MemoryCheckpointer) -> None:
    every = ids(source, "two")
    lose_an_object(source, "two", every[3])
    target, report = copied(source)
    assert [found.checkpoint_id for found in report.damaged] == [every[3]]
    assert ids(target, "two") == every[:3]
    engine = CheckpointEngine(target).sync
    assert engine.get_latest("two").state["n"] == 2  # type: ignore[union-attr]
    engine.append("two", [], {"goes": "on"})
    assert run_to_end(target.store.blocking.read("two")).stored.record.step == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("place", [0, 2, 3])
def test_a_row_that_is_damaged_is_left_out(place: int, source: MemoryCheckpointer) -> None:
    every = ids(source, "two")
    before = {name: ids(source, name) for name in ("one", "two")}
    damage_row(source, "two", every[place])
    target, report = copied(source)
    left = [one for one in every if one != every[place]]
    assert ids(target, "two") == left
    assert ids(target, "one") == before["one"]
    assert "two" in {found.thread_id for found in report.damaged}


def damage_row(backend: StoreBackend, thread_id: str, checkpoint_id: str) -> None:
    loaded = run_to_end(backend.store.blocking.read(thread_id, "", checkpoint_id))
    assert loaded is not None

    def change(rows: ChangeRows) -> None:
        line = rows._line(thread_id, "")
        assert line is not None
        key = CHECKPOINTS + numbers(line.number, loaded.stored.seq)
        value = rows._get(key)
        assert value is not None
        rows._put(key, value[:-1] + bytes([value[-1] ^ 1]))

    assert isinstance(backend.store, MemoryStore)
    run_to_end(backend.store._write(change))
    backend.store._seen = type(backend.store._seen)()


def test_a_pending_write_that_lacks_its_value_is_left_out(source: MemoryCheckpointer) -> None:
    key = Key("two", "", ids(source, "two")[0])
    writes = [Write("task", n, "ch", children, b"body", 0) for n, children in enumerate((b"", b"\7" * 16))]
    run_to_end(source.store.blocking.put_writes(key, writes, []))
    target, report = copied(source)
    raw = run_to_end(target.store.blocking.raw("two"))
    assert raw is not None
    assert [write.idx for _, write in raw.writes] == [0]
    assert [found.kind for found in report.damaged] == ["write"]


def test_a_file_with_flipped_bytes(tmp_path: Path) -> None:
    """Whatever is damaged: all that can be read of other threads comes along, and something is named."""
    path = tmp_path / "agent.db"
    with everstep.open(f"sqlite:///{path}").sync as engine:
        made = {
            f"t{n}": [engine.append(f"t{n}", [{"role": "user", "content": secrets.token_hex(400)}], {}) for _ in "123"]
            for n in range(20)
        }
    with closing(sqlite3.connect(path)) as connection:
        row, root = connection.execute(
            "SELECT rowid, info FROM checkpoints ORDER BY rowid LIMIT 1 OFFSET 31"
        ).fetchone()
        connection.execute("UPDATE checkpoints SET info = ? WHERE rowid = ?", (root[:-1] + b"?", row))
        connection.commit()
    with pytest.raises(CheckpointCorrupted):
        everstep.copy(f"sqlite:///{path}", MemoryCheckpointer())
    target = MemoryCheckpointer()
    report = everstep.copy(f"sqlite:///{path}", target, skip_damaged=True)
    assert report.damaged
    missing = {name for name in made if ids_or_none(target, name) != made[name]}
    assert 0 < len(missing) < 10  # a page of the file, at most
    assert missing <= {found.thread_id for found in report.damaged}


def ids_or_none(backend: StoreBackend, thread_id: str) -> Any:
    try:
        return ids(backend, thread_id)
    except everstep.EverstepError:
        return None
