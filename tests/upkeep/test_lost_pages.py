"""SQLite files with a broken page above others: what is on those is found again, and nothing that was deleted."""

from __future__ import annotations

import io
import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from langgraph.checkpoint.base import empty_checkpoint

import everstep
from everstep.langgraph import HarnessCheckpointer
from everstep.stores.sqlite.connecting import connect
from everstep.stores.sqlite.lost_pages import HEADER_BYTES, LostPages
from everstep.stores.sqlite.rebuilding import copy_file
from everstep.stores.sqlite.schema import PAGE_BYTES
from tests.upkeep.contents import all_of

SOUGHT = (
    "families", "threads", "shared_states", "lines", "segments", "checkpoints", "objects", "writes", "operations",
    "hidden",
)  # fmt: skip
STEPS = 300
THREADS = 100


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose tables take several pages each."""
    path = tmp_path_factory.mktemp("made") / "agent.db"
    noise = random.Random(1)
    config = everstep.SnapshotConfig(gc_policy="keep_all")
    with everstep.open(path, config=config, synchronous="off").sync as engine:
        for step in range(STEPS):
            thread = f"thread {step % THREADS}"
            message = {"role": "user", "content": f"{step} {noise.random()} " * 20}
            engine.append(thread, [message], {"step": step, "odd": b"\xff" * step})
        for number in range(0, 40, 2):
            origin = engine.resolve(f"thread {number}~1").checkpoint_id
            side = engine.branch(origin, "side")
            engine.append(side, [], {"side": number})
            engine.rewind(origin)
            engine.merge_branch(side, f"thread {number}")
            engine.rewind(engine.resolve(f"thread {number + 1}~1").checkpoint_id)
        engine.append("large", [], {"noise": noise.randbytes(100_000)}, summary="long " * 30)
    return path


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made, tmp_path / "agent.db"))


@pytest.fixture
def connection(path: Path) -> Iterator[apsw.Connection]:
    with closing(connect(path, 1000)) as connection:
        yield connection


def lost_pages(path: Path, tmp_path: Path) -> LostPages:
    copy = tmp_path / "pages"
    copy_file(path, copy, 1000)
    content = copy.read_bytes()
    return LostPages(io.BytesIO(content), content[:HEADER_BYTES])


def rows_of(connection: apsw.Connection, table: str) -> list[tuple[object, ...]]:
    return sorted(connection.execute(f"SELECT * FROM {table} NOT INDEXED"), key=repr)


@pytest.mark.parametrize("table", SOUGHT)
def test_rows_are_read_from_pages_as_sqlite_reads_them(
    table: str, path: Path, tmp_path: Path, connection: apsw.Connection
) -> None:
    if table == "writes":
        connection.executemany(
            "INSERT INTO writes VALUES (?1, ?2, 'task', ?3, ?3, ?4, x'', seal(?1, ?2, 'task', ?3, ?3))",
            [(1, f"checkpoint {number}", number, b"info" * number) for number in range(600)],
        )
    expected = rows_of(connection, table)
    assert expected
    lost = lost_pages(path, tmp_path)
    assert lost.can_tell(table)
    assert sorted(lost.rows(connection, table), key=repr) == expected


def test_every_kind_of_number_is_read(path: Path, tmp_path: Path, connection: apsw.Connection) -> None:
    connection.execute("DELETE FROM operations")
    for power in range(63):
        for number in (-(1 << power), (1 << power) - 1):
            connection.execute("INSERT INTO operations (thread, undone, data) VALUES (?, ?, x'00')", (number, power))
    connection.execute("INSERT INTO operations (seq, thread, undone, data) VALUES (?, 0, 1, x'00')", ((1 << 62) + 5,))
    lost = lost_pages(path, tmp_path)
    assert sorted(lost.rows(connection, "operations"), key=repr) == rows_of(connection, "operations")


def break_page(path: Path, number: int, content: bytes = bytes(PAGE_BYTES)) -> None:
    with open(path, "r+b") as file:
        file.seek((number - 1) * PAGE_BYTES)
        file.write(content)


def root_of(path: Path, table: str, *, holds_rows: bool = False) -> int:
    with closing(connect(path, 1000)) as connection:
        found: Any = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
        has_pages = connection.execute(
            "SELECT count(*) > 0 FROM dbstat WHERE name = ? AND pagetype = 'internal'", (table,)
        ).get
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    assert holds_rows or has_pages, "its rows are on other pages"
    return int(found)


@pytest.mark.parametrize("content", [bytes(PAGE_BYTES), b"\xa5" * PAGE_BYTES], ids=["zeros", "noise"])
@pytest.mark.parametrize("table", ["threads", "lines", "segments", "checkpoints", "objects", "operations"])
def test_a_table_whose_first_page_is_broken_is_found_again(
    table: str, content: bytes, path: Path, tmp_path: Path
) -> None:
    whole = all_of(path)
    break_page(path, root_of(path, table), content)
    with everstep.open(path).sync as engine:
        assert not engine.verify().ok
        assert engine.repair(dry_run=True).actions
        report = engine.repair(keep=tmp_path / "kept.jsonl")
        assert report.ok, str(report)
        assert engine.verify().ok
    found = all_of(path)
    # Of a table with keys the first page holds rows, too.
    if table == "segments":
        assert len(found) > len(whole) * 3 // 4
    else:
        assert found == whole


def test_the_list_of_tables_is_found_again(path: Path, tmp_path: Path) -> None:
    whole = all_of(path)
    for number in pages_of(path, "sqlite_schema"):
        if number > 1:
            break_page(path, number)
    with everstep.open(path).sync as engine:
        report = engine.repair(keep=tmp_path / "kept.jsonl")
        assert report.ok, str(report)
    assert all_of(path) == whole


@pytest.mark.parametrize("knows_free", [True, False])
def test_what_was_deleted_does_not_come_back(knows_free: bool, path: Path, tmp_path: Path) -> None:
    with everstep.open(path).sync as engine:
        for number in range(10, 20):
            engine.delete_threads(prefix=f"thread {number}")
    whole = all_of(path)
    break_page(path, root_of(path, "checkpoints"))
    with open(path, "r+b") as file:
        file.seek(32)
        free = file.read(8)
        assert int.from_bytes(free[4:]) > 0, "there are free pages"
        if not knows_free:
            file.seek(32)
            file.write(bytes(4) + free[4:])
    with everstep.open(path).sync as engine:
        assert engine.repair(keep=tmp_path / "kept.jsonl").ok
    found = all_of(path)
    if knows_free:
        assert found == whole
    else:
        assert found.items() <= whole.items()


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_file_that_was_cut_off_is_repaired(share: float, path: Path, tmp_path: Path) -> None:
    whole = all_of(path)
    with open(path, "r+b") as file:
        file.truncate(int(path.stat().st_size * share))
    with everstep.open(path).sync as engine:
        assert not engine.verify().ok
        assert engine.repair(dry_run=True).actions
        report = engine.repair(keep=tmp_path / "kept.jsonl")
        assert report.ok, str(report)
        engine.append("new", [], {"step": 1})
    found = all_of(path)
    assert {name for name in found if name not in whole} == {name for name in found if name.startswith("ckpt-new-")}
    assert all(found[name] == held for name, held in whole.items() if name in found)


def test_a_name_that_is_no_text_any_more_is_no_end(path: Path, tmp_path: Path) -> None:
    whole = all_of(path)
    content = path.read_bytes()
    # Twice, in the table and in its index, with a page that no checksum and no structure agrees with.
    assert content.count(b"thread 7") >= 2
    path.write_bytes(content.replace(b"thread 7", b"thread\xff7"))
    break_page(path, root_of(path, "objects"))
    with everstep.open(path).sync as engine:
        report = engine.repair(keep=tmp_path / "kept.jsonl")
        assert report.ok, str(report)
    found = all_of(path)
    assert len(found) > len(whole) * 3 // 4
    assert found.items() <= whole.items()


def page_of(path: Path, number: int) -> bytes:
    with open(path, "rb") as file:
        file.seek((number - 1) * PAGE_BYTES)
        return file.read(PAGE_BYTES)


@pytest.mark.parametrize("other", ["lines", "threads_by_family", "checkpoints_by_id"])
def test_a_page_of_another_table_is_in_the_place_of_one(other: str, path: Path, tmp_path: Path) -> None:
    whole = all_of(path)
    break_page(path, root_of(path, "threads"), page_of(path, root_of(path, other, holds_rows=True)))
    with everstep.open(path).sync as engine:
        report = engine.repair(keep=tmp_path / "kept.jsonl")
        assert report.ok, str(report)
        assert engine.verify().ok
    assert all_of(path) == whole


def pages_of(path: Path, name: str) -> list[int]:
    with closing(connect(path, 1000)) as connection:
        found: list[Any] = connection.execute("SELECT pageno FROM dbstat WHERE name = ?", (name,)).fetchall()
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    return [number for (number,) in found]


@pytest.fixture
def by_graphs(tmp_path: Path) -> Path:
    """A store whose checkpoints have names that say nothing of their threads."""
    path = tmp_path / "graphs.db"
    with HarnessCheckpointer.from_url(f"sqlite:///{path}", synchronous="off") as saver:
        for thread in ("Oslo", "Rome"):
            for namespace in ("", "inner"):
                config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
                for step in range(5):
                    checkpoint: Any = empty_checkpoint() | {
                        "channel_values": {"count": step},
                        "channel_versions": {"count": step + 1},
                    }
                    config = saver.put(config, checkpoint, {"step": step}, {"count": step + 1})
                    saver.put_writes(config, [("count", step + 1)], "task")
    return path


def put_by_graphs(path: Path) -> list[object]:
    with HarnessCheckpointer.from_url(f"sqlite:///{path}") as saver:
        return sorted(saver.list(None), key=repr)


@pytest.mark.parametrize("table", ["threads", "lines"])
def test_names_that_are_lost_are_found_in_indexes(table: str, by_graphs: Path, tmp_path: Path) -> None:
    whole = put_by_graphs(by_graphs)
    assert len(whole) == 20
    for number in pages_of(by_graphs, table):
        break_page(by_graphs, number)
    with everstep.open(by_graphs).sync as engine:
        assert not engine.verify().ok
        report = engine.repair(keep=tmp_path / "kept.jsonl")
        assert report.ok, str(report)
        assert engine.verify().ok
    assert put_by_graphs(by_graphs) == whole
