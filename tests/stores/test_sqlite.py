"""What is particular to the SQLite store: files, processes, space, and everything that can be wrong with a file."""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.sqlite import SqliteSaver

import everstep
from everstep import CheckpointCorrupted, StoreClosed, StoreError, StoreFull, StoreMismatch, StoreReadOnly
from everstep.errors import CommitUnknown, StoreUnavailable
from everstep.runtime import interrupts
from everstep.runtime.blocking import run_to_end
from everstep.runtime.interrupts import deferred
from everstep.stores.protocol import Change, Draft, Hidden, Key, Operation, Query, Stored, Write
from everstep.stores.records import pack_id, unpack_id
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite import database as sqlite_database
from everstep.stores.sqlite import listing as sqlite_listing
from everstep.stores.sqlite import rows as sqlite_rows
from everstep.stores.sqlite import schema
from everstep.stores.sqlite.store import SQLiteStore
from everstep.testing import follow, make_object, make_record, put

KEEP_ALL = everstep.SnapshotConfig(gc_policy="keep_all")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def engine(path: Path) -> Iterator[everstep.SyncEngine]:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        yield engine


def text(n: int) -> str:
    rng = random.Random(n)
    return " ".join("".join(rng.choices("abcdefghij", k=6)) for _ in range(150))


def fill(engine: everstep.SyncEngine, thread_id: str, steps: int) -> None:
    for n in range(steps):
        engine.append(thread_id, [{"role": "user", "content": text(n)}])


def files_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*") if not file.name.endswith("-shm"))


# -- settings


def test_the_file_is_durable_checksummed_and_in_wal_mode(engine: everstep.SyncEngine, path: Path) -> None:
    fill(engine, "t", 1)
    database = engine.checkpointer._driven.store._database.get()
    connection = database._connections.writer
    assert connection.pragma("journal_mode") == "wal"
    assert connection.pragma("synchronous") == 2
    assert connection.pragma("auto_vacuum") == 2
    assert connection.pragma("checksum_verification") == "1"
    assert path.read_bytes()[20] == 8


def test_a_branch_asks_what_it_begins_with_and_for_its_new_thread_once(engine: everstep.SyncEngine) -> None:
    ids = [engine.append("t", [{"role": "user", "content": str(n)}]) for n in range(3)]
    engine.branch(ids[1], "elsewhere")
    database = engine.checkpointer._driven.store._database.get()
    asked: list[str] = []
    database._connections.writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: asked.append(event["sql"]))
    engine.branch(ids[2], "first")
    # What it begins with, the new thread, and whether what it begins with is still there.
    assert len([sql for sql in asked if sql.startswith("SELECT")]) == 3
    asked.clear()
    engine.branch(ids[2], "second")
    # Whether that is so still, in place of what it begins with; the rest as before.
    assert len([sql for sql in asked if sql.startswith("SELECT")]) == 3


_HOLD = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_who_only_reads_does_not_wait_for_the_lock_of_another_process_to_close(path: Path) -> None:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        fill(engine, "t", 1)
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    # Whoever wrote would wait for a day.
    with everstep.open(f"sqlite:///{path}", busy_timeout_seconds=86_400).sync as engine:
        assert engine.get_latest("t") is not None
    holder.communicate()


def test_two_processes_number_their_operations_in_turn(engine: everstep.SyncEngine, path: Path) -> None:
    here = engine.append("t", [{"role": "user", "content": "hello"}])
    code = "import everstep, sys; everstep.open(sys.argv[1]).sync.branch(sys.argv[2], 'theirs')"
    for name in ("first", "second"):
        engine.branch(here, name)
        subprocess.run([sys.executable, "-c", code, f"sqlite:///{path}", here], check=True)
    names = [entry.details["name"] for entry in engine.operations("t")]
    assert names == ["theirs", "second", "theirs", "first"]
    assert engine.verify().ok


@pytest.mark.parametrize("through", ["path", "link"])
def test_a_new_file_is_for_its_owner_alone(tmp_path: Path, through: str) -> None:
    path = given = tmp_path / "private.db"
    if through == "link":
        given = tmp_path / "link.db"
        given.symlink_to(path)
    before = os.umask(0o022)
    try:
        with everstep.open(f"sqlite:///{given}").sync as engine:
            fill(engine, "t", 1)
            modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.glob("private.db*")}
    finally:
        os.umask(before)
    assert modes == {"private.db": 0o600, "private.db-wal": 0o600, "private.db-shm": 0o600}


def test_the_rights_of_a_file_that_is_there_are_left_alone(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    with everstep.open(f"sqlite:///{path}").sync as engine:
        fill(engine, "t", 1)
        assert {file.stat().st_mode & 0o777 for file in path.parent.glob("store.db*")} == {0o640}


def test_loading_the_checksums_does_not_change_the_applications_default(engine: everstep.SyncEngine) -> None:
    fill(engine, "t", 1)
    assert apsw.vfs_names()[0] != "cksmvfs"


@pytest.mark.parametrize("wrong", ["", ":memory:", None, 5, b"x.db", "a\0b"])
def test_an_impossible_path_is_refused(wrong: Any) -> None:
    with pytest.raises(everstep.InvalidInput):
        SQLiteStore(wrong)


def test_impossible_options_are_refused(path: Path) -> None:
    with pytest.raises(everstep.InvalidInput):
        SQLiteStore(path, synchronous="sometimes")  # type: ignore[arg-type]


def test_a_path_is_a_file_name_not_a_uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with everstep.SQLiteCheckpointer("file:x.db?mode=memory").sync as backend:
        assert backend.list_threads() == []
    assert (tmp_path / "file:x.db?mode=memory").exists()


# -- files that are not right


def _open_and_use(path: Path) -> None:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        engine.get_latest("t")
        engine.append("t", [{"role": "user", "content": "x"}])


def test_a_file_of_another_application_is_left_alone(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE users (name TEXT); INSERT INTO users VALUES ('x')")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreMismatch, match="another application"):
        _open_and_use(path)
    assert path.read_bytes() == before


def test_a_file_of_another_application_with_its_mark_is_left_alone(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA application_id=12345; PRAGMA user_version=3; CREATE TABLE x (y)")
    connection.close()
    with pytest.raises(StoreMismatch, match="another application"):
        _open_and_use(path)


@pytest.mark.parametrize(("version", "word"), [(schema.VERSION + 1, "newer"), (8, "before the first release")])
def test_a_file_of_a_version_that_is_not_read_is_left_alone(path: Path, version: int, word: str) -> None:
    _open_and_use(path)
    connection = apsw.Connection(str(path), vfs=sqlite_connecting.checksum_vfs())
    connection.execute(f"PRAGMA user_version={version}")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreMismatch, match=word):
        _open_and_use(path)
    assert path.read_bytes() == before


@given(st.one_of(st.uuids().map(str), st.text(), st.text("0123456789abcdefABCDEF-", min_size=36, max_size=36)))
def test_an_id_is_packed_if_it_is_the_usual_text_of_a_uuid(name: str) -> None:
    packed = pack_id(name)
    try:
        usual = str(UUID(name)) == name
    except ValueError:
        usual = False
    assert isinstance(packed, bytes) == usual
    assert unpack_id(packed) == name


@given(st.one_of(st.uuids().map(str), st.text(), st.text("0123456789abcdef-", max_size=36)))
def test_packed_ids_are_less_than_the_bound_of_a_text_if_their_texts_are_less(name: str) -> None:
    bound = sqlite_listing._bound(name)
    number = int.from_bytes(bound) if len(bound) == 16 else 1 << 128
    if number < 1 << 128:
        assert unpack_id(bound) >= name
    if number > 0:
        assert unpack_id((number - 1).to_bytes(16)) < name


@pytest.mark.parametrize("content", [b"hello" * 1000, b"\0" * 5000, b"SQLite format 3\0" + b"\xff" * 9000, b"x"])
def test_a_file_that_is_no_database_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises((StoreMismatch, CheckpointCorrupted)):
        _open_and_use(path)
    assert path.read_bytes() == content


def test_a_file_whose_maker_was_killed_half_way_becomes_a_store(path: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.db"
    maker = apsw.Connection(str(half))
    maker.execute("PRAGMA cache_size=1; BEGIN; CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(100000))")
    path.write_bytes(half.read_bytes())
    path.with_name(f"{path.name}-journal").write_bytes((tmp_path / "half.db-journal").read_bytes())
    assert path.stat().st_size > 4096, "pages were written that were never committed"
    _open_and_use(path)
    maker.close()


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    _open_and_use(path)


def test_a_directory_or_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "missing" / "x.db", Path("/proc/x.db")):
        with pytest.raises(StoreReadOnly, match="folder"):
            _open_and_use(wrong)


@contextmanager
def as_somebody_else(folder: Path, mode: int = 0o555) -> Iterator[None]:
    """Be a user whom permissions hold for, as they do not for root; the folder has this mode meanwhile."""
    before, mode_before = os.geteuid(), folder.stat().st_mode
    folder.chmod(mode)
    try:
        if before == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(before)
        folder.chmod(mode_before)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def copied_while_open(engine: everstep.SyncEngine, source: Path, target: Path) -> None:
    """Copy a file and its log as they are, without the log's index."""
    fill(engine, "t", 1)
    for end in ("", "-wal"):
        shutil.copy(f"{source}{end}", f"{target}{end}")


@pytest.mark.parametrize("in_open_folder", [True, False])
def test_a_file_that_may_only_be_read_is_read(shared: Path, in_open_folder: bool) -> None:
    """Nothing is made beside it: the files would belong to the reader, and be in the way of the writer."""
    path = shared / "a.db"
    with everstep.open(path).sync as engine:
        fill(engine, "t", 5)
    path.chmod(0o444)
    with as_somebody_else(shared, 0o777 if in_open_folder else 0o555), everstep.open(path).sync as engine:
        assert engine.get_latest("t").metadata.step == 5  # type: ignore[union-attr]
        assert engine.get_checkpoint_tree("t")["total_checkpoints"] == 5
        assert [head.thread_id for head in engine.checkpointer.list_threads()] == ["t"]
        with pytest.raises(StoreReadOnly, match="cannot be written"):
            fill(engine, "t", 1)
        assert len(engine.list_time_travel_points("t")) == 5
    assert names(shared) == ["a.db"]
    path.chmod(0o600)
    with everstep.open(path).sync as engine:
        fill(engine, "t", 1)


def test_a_file_that_may_only_be_read_is_read_while_others_write(shared: Path) -> None:
    path = shared / "a.db"
    writer = "import sys, everstep; e = everstep.open(sys.argv[1]).sync\n"
    writer += "for line in sys.stdin: e.append('t', [], {'n': int(line)}); print(line, flush=True)"
    path.touch(0o644)
    with subprocess.Popen(
        [sys.executable, "-c", writer, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with as_somebody_else(shared):
            for n in range(3):
                process.stdin.write(f"{n}\n")
                assert process.stdout.readline().strip() == str(n)
                process.stdout.readline()
                with everstep.open(path).sync as engine:
                    assert engine.get_latest("t").state == {"n": n}  # type: ignore[union-attr]
        process.stdin.close()
    with as_somebody_else(shared), everstep.open(path).sync as engine:
        assert engine.get_latest("t").state == {"n": 2}  # type: ignore[union-attr]


def test_who_may_only_read_does_not_keep_a_log_beside_the_file(shared: Path) -> None:
    path = shared / "a.db"
    write = "import sys, everstep; e = everstep.open(sys.argv[1]).sync; e.append('t', [], {'n': 1}); e.close()"
    subprocess.run([sys.executable, "-c", write, str(path)], check=True)
    path.chmod(0o644)
    with as_somebody_else(shared):
        reader = everstep.open(path).sync
        assert reader.get_latest("t") is not None
    subprocess.run([sys.executable, "-c", write, str(path)], check=True)
    assert names(shared) == ["a.db"]
    reader.close()


def test_a_log_that_cannot_be_read_is_not_passed_over(shared: Path) -> None:
    """Without it the newest checkpoints would be missing, and nobody would be told."""
    with everstep.open(shared / "a.db").sync as engine:
        copied_while_open(engine, shared / "a.db", shared / "b.db")
    for file in shared.iterdir():
        file.chmod(0o644)
    with as_somebody_else(shared), pytest.raises(StoreReadOnly, match=r"b\.db-wal; open the store once"):
        _open_and_use(shared / "b.db")


def test_what_is_wrong_with_a_file_is_said(shared: Path) -> None:
    path = shared / "a.db"
    with everstep.open(path).sync as engine:
        fill(engine, "t", 1)
    path.chmod(0)
    with as_somebody_else(shared):
        with pytest.raises(StoreReadOnly, match="may not read it"):
            _open_and_use(path)
        with pytest.raises(StoreReadOnly, match="may not write to the folder"):
            _open_and_use(shared / "new.db")
    with pytest.raises(StoreReadOnly, match="does not exist"):
        _open_and_use(shared / "missing" / "x.db")
    with pytest.raises(StoreReadOnly, match="is a folder"):
        _open_and_use(shared)


def test_a_changed_file_is_noticed_by_those_who_may_only_read(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shared / "a.db"
    with everstep.open(path).sync as engine:
        fill(engine, "t", 1)
    path.chmod(0o444)
    with as_somebody_else(shared), everstep.open(path).sync as engine:
        stamps = itertools.count()
        monkeypatch.setattr(sqlite_database.Database, "_stamp", lambda _: (next(stamps), 0, 0))
        with pytest.raises(StoreUnavailable, match="changed while it was read"):
            engine.get_latest("t")


def test_a_deletion_counts_though_the_disk_is_too_full_to_shorten_the_file(
    engine: everstep.SyncEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> bool:
        raise apsw.exception_for(apsw.SQLITE_FULL)

    fill(engine, "t", 3)
    monkeypatch.setattr(sqlite_rows.Rows, "shrink", fail)
    assert engine.checkpointer.delete_thread("t") == 3
    assert engine.get_latest("t") is None
    assert "too full to shorten" in caplog.text


@pytest.mark.parametrize(("free", "error"), [(4096, StoreFull), (1 << 30, StoreError)])
def test_no_space_for_the_index_of_the_log_is_a_full_disk(
    path: Path, free: int, error: type[StoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise apsw.exception_for(apsw.SQLITE_IOERR_SHMSIZE)

    monkeypatch.setattr(sqlite_database, "open_file", fail)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 30, 0, free))
    with pytest.raises(StoreError) as caught:
        _open_and_use(path)
    assert type(caught.value) is error


def test_one_failed_read_is_worth_another_try(engine: everstep.SyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(engine, "t", 3)
    whole = sqlite_rows.Rows.list_checkpoints

    def fail(*_: Any, **__: Any) -> Any:
        raise apsw.exception_for(apsw.SQLITE_IOERR_READ)

    monkeypatch.setattr(sqlite_rows.Rows, "list_checkpoints", fail)
    with pytest.raises(everstep.StoreReadFailed, match="could not be read"):
        engine.list_time_travel_points("t")
    monkeypatch.setattr(sqlite_rows.Rows, "list_checkpoints", whole)
    assert len(engine.list_time_travel_points("t")) == 3
    assert issubclass(everstep.StoreReadFailed, StoreUnavailable)


def test_a_read_only_file_can_be_read_and_says_so_when_written(engine: everstep.SyncEngine, path: Path) -> None:
    fill(engine, "t", 3)
    database = engine.checkpointer._driven.store._database.get()
    database._connections.writer.execute("PRAGMA query_only=1")
    with pytest.raises(StoreReadOnly):
        fill(engine, "t", 1)
    assert engine.get_latest("t").metadata.step == 3  # type: ignore[union-attr]


def test_a_full_disk_is_a_clear_error_and_nothing_is_lost(engine: everstep.SyncEngine, path: Path) -> None:
    fill(engine, "t", 20)
    database = engine.checkpointer._driven.store._database.get()
    limit = database._connections.writer.pragma("page_count") + 20
    database._connections.writer.execute(f"PRAGMA max_page_count={limit}")
    written = 20
    with pytest.raises(StoreFull):  # noqa: PT012  # which append fails is not known beforehand
        for n in range(1000, 1200):
            engine.append("t", [{"role": "user", "content": text(n)}])
            written += 1
    assert engine.get_latest("t").metadata.step == written  # type: ignore[union-attr]
    database._connections.writer.execute("PRAGMA max_page_count=1000000")
    fill(engine, "t", 1)
    assert len(engine.get_latest("t").messages) == written + 1  # type: ignore[union-attr]


@pytest.mark.parametrize("keep", [0.0, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_loud(path: Path, keep: float) -> None:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        fill(engine, "t", 100)
        expected = engine.get_latest("t"), engine.list_time_travel_points("t", 1000)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with everstep.open(f"sqlite:///{path}").sync as engine:
        if keep == 0.0:  # an empty file is an empty store: nothing in it says otherwise
            assert engine.get_latest("t") is None
            return
        try:
            found = engine.get_latest("t"), engine.list_time_travel_points("t", 1000)
        except everstep.EverstepError:
            return  # loud
        assert found == expected


def test_a_file_that_is_removed_while_open_is_noticed(engine: everstep.SyncEngine, path: Path) -> None:
    fill(engine, "t", 1)
    path.unlink()
    with pytest.raises(StoreError, match="removed"):
        fill(engine, "t", 1)


def test_a_file_that_is_replaced_is_opened_anew(path: Path, tmp_path: Path) -> None:
    first = everstep.open(f"sqlite:///{path}").sync
    fill(first, "t", 2)
    for file in tmp_path.glob("store.db*"):
        file.unlink()
    with everstep.open(f"sqlite:///{path}").sync as second:
        assert second.get_latest("t") is None
        fill(second, "t", 1)
        assert second.get_latest("t").metadata.step == 1  # type: ignore[union-attr]


# -- reads


def damage(path: Path, sql: str, *values: Any) -> None:
    """Change rows behind the store's back, with page checksums that are right."""
    with closing(sqlite_connecting.connect(path, 1000)) as connection:
        connection.execute(sql, values)


def test_a_read_that_fails_in_the_middle_does_not_harm_later_ones(path: Path) -> None:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        fill(engine, "damaged", 1)
        fill(engine, "whole", 1)
        damage(path, "UPDATE checkpoints SET info = zeroblob(20) WHERE id LIKE 'ckpt-damaged-%'")
        for _ in range(3):
            with pytest.raises(CheckpointCorrupted):
                engine.list_time_travel_points("damaged")
            assert len(engine.list_time_travel_points("whole")) == 1


def test_what_one_call_reads_is_of_one_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody deletes the thread after its head was read, and before the objects below it are."""
    store = SQLiteStore(path).blocking
    obj = make_object(b"value")
    run_to_end(store.commit(put(make_record("one", roots=[obj]), obj)))
    below = sqlite_rows.Rows.below

    def delete_first(rows: sqlite_rows.Rows, *args: Any) -> Any:
        run_to_end(store.delete("t"))
        return below(rows, *args)

    monkeypatch.setattr(sqlite_rows.Rows, "below", delete_first)
    loaded = run_to_end(store.read("t", objects=True))
    assert loaded is not None
    assert [found.hash for found in loaded.objects] == [obj.hash]
    monkeypatch.undo()
    assert run_to_end(store.read("t", objects=True)) is None
    run_to_end(store.close())


# -- faults inside a commit


def test_one_bad_job_fails_no_other_in_its_batch(path: Path) -> None:
    """Jobs that gather while another is being committed share a transaction; one of them breaks in the middle."""
    store = SQLiteStore(path).blocking
    run_to_end(store.commit(follow("t", "first")))
    entered, go_on = threading.Event(), threading.Event()

    def slow(head: Stored | None) -> Draft:
        entered.set()
        go_on.wait(30)
        return Draft(make_record("slow", "slow"), ())

    bad_object = make_object(b"x")._replace(body=[1])  # type: ignore[arg-type]  # no SQLite value: fails when bound
    changes = [follow("a", "x"), put(make_record("bad", "bad"), bad_object), follow("b", "x"), follow("a", "y")]
    outcomes: dict[int, Any] = {}

    def commit(n: int) -> None:
        try:
            outcomes[n] = run_to_end(store.commit(changes[n]))
        except Exception as exc:
            outcomes[n] = exc

    leader = threading.Thread(target=lambda: run_to_end(store.commit(Change(thread_id="slow", build=slow))))
    leader.start()
    entered.wait(30)
    workers = [threading.Thread(target=commit, args=(n,)) for n in range(len(changes))]
    for worker in workers:
        worker.start()
    queue = store._database.get().queue
    while len(queue._waiting) < len(changes):
        pass
    go_on.set()
    for worker in (*workers, leader):
        worker.join(30)

    assert isinstance(outcomes[1], Exception)
    assert {outcomes[n].record.key.checkpoint_id for n in (0, 2, 3)} in ({"x-1", "y-2"}, {"x-2", "x-1", "y-1"})
    assert run_to_end(store.read("bad")) is None
    assert run_to_end(store.read("slow")) is not None
    assert len(run_to_end(store.list_checkpoints(Query()))) == 5
    run_to_end(store.close())


class _FailingCommit:
    """A connection whose COMMIT fails: before it happens, or after it has."""

    def __init__(self, connection: apsw.Connection, error: Exception, *, after: bool) -> None:
        self._connection, self._error, self._after = connection, error, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *args: Any) -> Any:
        if sql == "COMMIT":
            if self._after:
                self._connection.execute(sql)
            raise self._error
        return self._connection.execute(sql, *args)


@pytest.mark.parametrize("after", [False, True])
def test_a_commit_whose_outcome_is_unknown_says_so_and_can_be_repeated(path: Path, after: bool) -> None:
    store = SQLiteStore(path).blocking
    run_to_end(store.commit(put(make_record("c1"))))
    database = store._database.get()
    connection = database._connections.writer  # type: ignore[union-attr]
    failing: Any = _FailingCommit(connection, apsw.IOError("the disk is unwell"), after=after)
    database._connections = database._connections._replace(writer=failing)  # type: ignore[union-attr]
    with pytest.raises(CommitUnknown) as caught:
        run_to_end(store.commit(put(make_record("c2", step=2))))
    assert (caught.value.checkpoint_id, caught.value.thread_id) == ("c2", "t")
    database._connections = database._connections._replace(writer=connection)
    assert (run_to_end(store.read("t", "", "c2")) is not None) is after
    run_to_end(store.commit(put(make_record("c2", step=2))))
    assert [s.record.step for s in run_to_end(store.list_checkpoints(Query(thread_id="t")))] == [2, 1]
    run_to_end(store.close())


def test_a_file_locked_for_too_long_is_worth_trying_again(path: Path) -> None:
    patient = SQLiteStore(path).blocking
    run_to_end(patient.commit(follow("t", "c")))  # makes the file, which may take longer than the other waits
    run_to_end(patient.close())
    store = SQLiteStore(path, busy_timeout_seconds=1).blocking
    assert run_to_end(store.read("t")) is not None
    other = apsw.Connection(str(path), vfs=sqlite_connecting.checksum_vfs())
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        run_to_end(store.commit(follow("t", "c")))
    assert run_to_end(store.read("t")) is not None  # readers do not wait for writers
    other.execute("ROLLBACK")
    other.close()
    run_to_end(store.commit(follow("t", "c")))
    run_to_end(store.close())


def test_readers_are_not_blocked_by_a_writer_and_see_nothing_of_it(path: Path) -> None:
    store = SQLiteStore(path).blocking
    run_to_end(store.commit(follow("t", "c")))
    seen: list[int] = []

    def build(head: Stored | None) -> Draft:
        reader = threading.Thread(
            target=lambda: seen.append(len(run_to_end(store.list_checkpoints(Query(thread_id="t")))))
        )
        reader.start()
        reader.join(30)
        return Draft(make_record("c2", step=2), ())

    run_to_end(store.commit(Change(thread_id="t", build=build)))
    assert seen == [1]
    run_to_end(store.close())


# -- processes and threads


def _append_in_child(path: Path, steps: int) -> None:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        fill(engine, "t", steps)


def test_processes_that_start_at_once_share_one_file(path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["everstep.stores.sqlite.store", "tests.stores.test_sqlite"])
    for n in range(10):  # a new file is the hard case
        first = [context.Process(target=_append_in_child, args=(path.with_name(f"{n}.db"), 1)) for _ in range(5)]
        for worker in first:
            worker.start()
        for worker in first:
            worker.join(60)
            assert worker.exitcode == 0
    workers = [context.Process(target=_append_in_child, args=(path, 15)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    with everstep.open(f"sqlite:///{path}").sync as engine:
        points = engine.list_time_travel_points("t", 100)
        assert [point.step for point in points] == list(range(60, 0, -1))
        assert len(engine.get_latest("t").messages) == 60  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_works_on_and_does_not_harm_the_parent(path: Path) -> None:
    engine = everstep.open(f"sqlite:///{path}")
    fill(engine.sync, "t", 5)
    asyncio.run(engine.get_latest("t"))
    for _ in range(3):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                fill(engine.sync, "t", 2)
                asyncio.run(engine.append("t", [{"role": "child"}]))
                engine.sync.close()
                code = 0
            finally:
                os._exit(code)
        fill(engine.sync, "t", 2)
        assert os.waitpid(child, 0)[1] == 0
    assert [p.step for p in engine.sync.list_time_travel_points("t", 100)] == list(range(20, 0, -1))
    engine.sync.close()
    connection = apsw.Connection(str(path), vfs=sqlite_connecting.checksum_vfs())
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_what_a_child_saves_stays_when_the_parent_closes(path: Path) -> None:
    engine = everstep.open(f"sqlite:///{path}").sync
    fill(engine, "t", 1)
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fill(engine, "t", 1)
            os.read(ready, 1)
            fill(engine, "t", 5)
            code = 0
        finally:
            os._exit(code)
    engine.close()
    os.write(told, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(ready)
    os.close(told)
    with everstep.open(f"sqlite:///{path}").sync as again:
        assert again.get_latest("t").metadata.step == 7  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}"])
def test_a_fork_beside_writing_threads_leaves_no_lock_behind(path: Path, url: str) -> None:
    engine = everstep.open(url.format(path)).sync
    stop = threading.Event()

    def write(name: str) -> None:
        while not stop.is_set():
            engine.append(name, [{"role": "user"}])

    workers = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(3)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(8):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    engine.append("child", [{}])
                    engine.get_latest("w0")
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for worker in workers:
            worker.join(60)
    engine.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_that_fork_at_once_do_not_lock_each_other(tmp_path: Path) -> None:
    engines = [everstep.open(f"sqlite:///{tmp_path}/{n}.db").sync for n in range(4)]

    def fork() -> None:
        for _ in range(8):
            for engine in engines:
                engine.append("t", [{}])
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)

    workers = [threading.Thread(target=fork, daemon=True) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        if worker.is_alive():
            faulthandler.dump_traceback()  # who waits for whom
        assert not worker.is_alive()
    for engine in engines:
        assert engine.get_latest("t").metadata.step == 24  # type: ignore[union-attr]
        engine.close()


def test_deferred_signals_are_all_handled_and_handlers_put_back() -> None:
    came: list[int] = []

    class Interrupt(BaseException):
        pass

    def strike(number: int, _: Any) -> None:
        came.append(number)
        raise Interrupt

    numbers = (signal.SIGALRM, signal.SIGTERM)
    before = [signal.signal(number, strike) for number in numbers]
    try:
        with pytest.raises(Interrupt), deferred():  # noqa: PT012  # what is deferred is the point
            for number in numbers:
                os.kill(os.getpid(), number)
            assert came == []
        assert sorted(came) == sorted(numbers)
        assert [signal.getsignal(number) for number in numbers] == [strike, strike]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_nothing_is_kept_where_all_signals_are_ignored() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    try:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        for _ in range(3):
            with deferred():
                pass
        assert not interrupts._active
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.filterwarnings("ignore:coroutine.*never awaited:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_leave_the_store_working(path: Path) -> None:
    """An exception out of a signal handler can strike anywhere in the main thread, also while it leads others."""
    engine = everstep.open(f"sqlite:///{path}", KEEP_ALL).sync
    stop = threading.Event()
    failures: list[BaseException] = []

    class Interrupt(BaseException):
        pass

    def strike(*_: Any) -> None:
        raise Interrupt

    def write() -> None:
        while not stop.is_set():
            try:
                checkpoint_id = engine.append("other", [{"role": "user"}])
                assert engine.get(checkpoint_id) is not None
            except CommitUnknown:
                pass
            except BaseException as exc:
                failures.append(exc)

    other = threading.Thread(target=write)
    other.start()
    before = signal.signal(signal.SIGALRM, strike)
    rng = random.Random(5)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.004))
                until = time.monotonic() + 0.05  # an exception that strikes inside a destructor is swallowed
                while time.monotonic() < until:
                    engine.append("t", [{}])
                    engine.get_latest("t")
            except Interrupt:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    stop.set()
    other.join(30)
    assert not other.is_alive()
    assert failures == []
    points = engine.list_time_travel_points("t", 100_000)
    assert [p.step for p in points] == list(range(len(points), 0, -1))
    fill(engine, "t", 1)
    engine.close()


def test_a_wal_that_cannot_be_moved_does_not_fail_the_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = everstep.open(f"sqlite:///{path}").sync
    fill(engine, "t", 1)
    database = engine.checkpointer._driven.store._database.get()

    class NoCheckpoint(_FailingCommit):
        def execute(self, sql: str, *args: Any) -> Any:
            return self._connection.execute(sql, *args)

        def wal_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
            raise self._error

    failing: Any = NoCheckpoint(database._connections.writer, apsw.FullError("no space"), after=False)
    database._connections = database._connections._replace(writer=failing)
    fill(engine, "t", 100)
    assert engine.get_latest("t").metadata.step == 101  # type: ignore[union-attr]
    engine.close()


def test_handles_on_one_file_share_a_queue_and_close_apart(path: Path) -> None:
    one, two = SQLiteStore(path).blocking, SQLiteStore(path).blocking
    run_to_end(one.commit(follow("t", "c")))
    run_to_end(two.commit(follow("t", "c")))
    assert one._database.get() is two._database.get()
    run_to_end(one.close())
    with pytest.raises(StoreClosed):
        run_to_end(one.read("t"))
    run_to_end(two.commit(follow("t", "c")))
    run_to_end(two.close())
    assert not path.with_name("store.db-wal").exists()


def test_many_tasks_and_threads_at_once(path: Path) -> None:
    engine = everstep.open(f"sqlite:///{path}")

    def in_a_thread(name: str) -> None:
        for n in range(15):
            engine.sync.append(name, [{"n": n}])
            engine.sync.append("shared", [{"from": name}])

    async def in_a_task(name: str) -> None:
        for n in range(15):
            await engine.append(name, [{"n": n}])
            await engine.append("shared", [{"from": name}])

    async def main(loop: int) -> None:
        await asyncio.gather(*(in_a_task(f"task {loop} {n}") for n in range(6)))

    workers = [threading.Thread(target=in_a_thread, args=(f"thread {n}",)) for n in range(3)]
    workers += [threading.Thread(target=lambda loop=loop: asyncio.run(main(loop))) for loop in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert not worker.is_alive()
    assert engine.sync.get_latest("shared").metadata.step == 15 * 15  # type: ignore[union-attr]
    for name in [f"thread {n}" for n in range(3)] + [f"task {loop} {n}" for loop in range(2) for n in range(6)]:
        assert engine.sync.get_latest(name).messages == [{"n": n} for n in range(15)]  # type: ignore[union-attr]
    engine.sync.close()


def test_a_cancelled_wait_leaves_the_queue_working(path: Path) -> None:
    engine = everstep.open(f"sqlite:///{path}")

    async def main() -> None:
        tasks = [asyncio.create_task(engine.append(f"t{n}", [{"n": n}])) for n in range(30)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, (str, asyncio.CancelledError)) for result in results)
        await engine.append("after", [{}])
        await engine.close()

    asyncio.run(main())


def test_a_second_event_loop_works_on_the_same_engine(path: Path) -> None:
    engine = everstep.open(f"sqlite:///{path}")
    for _ in range(3):
        asyncio.run(engine.append("t", [{"role": "user"}]))
    assert len(engine.sync.get_latest("t").messages) == 3  # type: ignore[union-attr]
    engine.sync.close()


# -- space


def test_a_small_file_and_its_wal_stay_small_together(engine: everstep.SyncEngine, path: Path) -> None:
    wal = path.with_name("store.db-wal")
    most = 0
    for _ in range(300):
        fill(engine, "t", 1)
        most = max(most, path.stat().st_size + wal.stat().st_size)
    assert most < 1_000_000


def test_a_large_commit_does_not_leave_a_large_wal(path: Path) -> None:
    config = everstep.SnapshotConfig(max_snapshot_size_mb=100)
    with everstep.open(f"sqlite:///{path}", config).sync as engine:
        engine.snapshot("t", [], {"big": random.Random(1).randbytes(20_000_000)}, {})
        fill(engine, "t", 30)
        assert path.with_name("store.db-wal").stat().st_size < 5_000_000


MARK = b"a secret of somebody "


def marks_in_files(path: Path) -> int:
    return sum(file.read_bytes().count(MARK) for file in path.parent.glob(path.name + "*"))


def remember_secrets(engine: everstep.SyncEngine, thread_id: str, steps: int) -> list[str]:
    """Append messages, short and long, and return the ids of the checkpoints."""
    ids = []
    for n in range(steps):
        content = MARK.decode() + random.Random(n).randbytes(40 * n % 9000).hex()
        ids.append(engine.append(thread_id, [{"content": content}], {"note": f"{MARK.decode()} {n}"}))
    return ids


def forget_threads(engine: everstep.SyncEngine) -> None:
    for n in range(20):
        remember_secrets(engine, f"t{n}", 5)
    for n in range(20):
        engine.checkpointer.delete_thread(f"t{n}")


def forget_by_rewind(engine: everstep.SyncEngine) -> None:
    first = engine.append("t", [{"content": "nothing"}])
    remember_secrets(engine, "t", 8)
    engine.rewind(first, later="delete")


def forget_by_retention(engine: everstep.SyncEngine) -> None:
    for n in range(30):
        engine.snapshot("t", [{"content": MARK.decode() + str(n) * 500}], {}, {})
    for n in range(12):
        engine.snapshot("t", [{"content": f"nothing {n}"}], {}, {})


@pytest.mark.parametrize("forget", [forget_threads, forget_by_rewind, forget_by_retention])
def test_nothing_of_what_was_deleted_is_left_in_the_files(
    path: Path, forget: Callable[[everstep.SyncEngine], None]
) -> None:
    config = everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=10)
    with everstep.open(f"sqlite:///{path}", config).sync as engine:
        engine.append("stays", [{"content": "what stays"}])
        forget(engine)
        assert marks_in_files(path) > 0  # the log still has it
        engine.collect()
        assert marks_in_files(path) == 0
        forget(engine)
    assert marks_in_files(path) == 0
    with everstep.open(f"sqlite:///{path}").sync as engine:
        assert engine.get_latest("stays") is not None


def test_nothing_of_a_replaced_checkpoint_is_left_in_the_files(path: Path) -> None:
    store = SQLiteStore(path).blocking
    for content in (MARK.decode() * 200, MARK.decode(), "nothing"):
        run_to_end(store.commit(put(make_record("same", metadata={"content": content}))))
    run_to_end(store.erase_deleted())
    assert marks_in_files(path) == 0
    run_to_end(store.close())


def test_the_log_is_cut_off_at_the_end_though_others_have_the_file_open(path: Path) -> None:
    with everstep.open(f"sqlite:///{path}").sync as engine:
        remember_secrets(engine, "t", 5)
        with closing(sqlite_connecting.connect(path, 1000)) as other:
            assert other.execute("SELECT count(*) FROM threads").get == 1
            engine.checkpointer.delete_thread("t")
            engine.close()
            assert Path(f"{path}-wal").stat().st_size == 0
            assert marks_in_files(path) == 0


def test_space_comes_back_after_deletion(path: Path) -> None:
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        fill(engine, "keep", 10)
    small = path.stat().st_size
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        fill(engine, "drop", 500)
        assert engine.checkpointer.delete_thread("drop") == 500
    assert path.stat().st_size < small * 1.5 + 100_000
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        assert len(engine.get_latest("keep").messages) == 10  # type: ignore[union-attr]


def test_space_of_old_states_comes_back(path: Path) -> None:
    with everstep.open(f"sqlite:///{path}", KEEP_ALL).sync as engine:
        for n in range(200):
            engine.snapshot("t", [], {"blob": random.Random(n).randbytes(5_000)}, {})
        assert engine.checkpointer.delete_before("t", 191) == 190
        assert engine.get_latest("t").state["blob"] == random.Random(199).randbytes(5_000)  # type: ignore[union-attr]
    assert path.stat().st_size < 400_000


def test_listing_reads_no_values(engine: everstep.SyncEngine, path: Path) -> None:
    fill(engine, "t", 50)
    database = engine.checkpointer._driven.store._database.get()
    database._connections.writer.execute("DROP TABLE objects")
    assert len(engine.list_time_travel_points("t", 100)) == 50
    assert len(engine.checkpointer.list_threads()) == 1


def test_objects_the_store_has_lost_are_sent_again(engine: everstep.SyncEngine, path: Path) -> None:
    state = {"a": text(1), "b": [text(n) for n in range(20)]}
    lost = engine.snapshot("t", [], state, {})
    database = engine.checkpointer._driven.store._database.get()
    database._connections.writer.execute("DELETE FROM objects")
    fresh = everstep.CheckpointEngine(everstep.StoreBackend(engine.checkpointer._driven.store)).sync
    with pytest.raises(CheckpointCorrupted) as caught:
        fresh.get(lost)
    assert (caught.value.thread_id, caught.value.checkpoint_id) == ("t", lost)
    again = fresh.get(fresh.snapshot("t", [], state, {}))
    assert again is not None
    assert again.state == state


def test_storage_grows_with_what_changed(engine: everstep.SyncEngine, path: Path) -> None:
    messages: list[Any] = []
    for n in range(400):
        messages.append({"role": "user", "content": text(n)[:1200]})
        engine.snapshot("t", messages, {"n": n}, {})
    assert files_bytes(path) < 1_000_000


def test_a_sweep_beside_writers_takes_nothing_they_need(path: Path) -> None:
    """Objects come and go and come again while another handle sweeps: every checkpoint reads back."""
    with everstep.open(f"sqlite:///{path}").sync as engine:
        fill(engine, "t", 1)
        family = run_to_end(engine.checkpointer._driven.store.read("t")).stored.family
        stop = threading.Event()
        failures: list[BaseException] = []

        def sweep() -> None:
            store = SQLiteStore(path).blocking
            try:
                while not stop.is_set():
                    points = run_to_end(store.list_checkpoints(Query(thread_id="t")))
                    run_to_end(store.delete("t", keys=[s.record.key for s in points[3:]]))
                    run_to_end(store.sweep(family))
            except BaseException as exc:
                failures.append(exc)
            finally:
                run_to_end(store.close())

        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        for n in range(300):
            state = {"a": text(n % 3), "b": [text(n % 5)] * 20}
            checkpoint_id = engine.snapshot("t", [{"m": text(m)} for m in range(n % 7)], state, {})
            assert engine.checkpointer._driven.repository is not None
            fresh = everstep.CheckpointEngine(everstep.StoreBackend(engine.checkpointer._driven.store)).sync
            found = fresh.get(checkpoint_id)
            assert found is not None
            assert found.state == state
        stop.set()
        sweeper.join(60)
        assert failures == []


def test_a_file_of_langgraphs_own_saver_is_named_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "stock.db"
    with SqliteSaver.from_conn_string(str(path)) as stock:
        stock.setup()
    with pytest.raises(StoreMismatch, match="import_langgraph"):
        run_to_end(SQLiteStore(path).blocking.read("t"))


# -- a page of checkpoints


def test_a_page_holds_what_a_list_and_a_look_at_each_do(path: Path) -> None:
    store = SQLiteStore(path).blocking
    seqs: dict[Key, int] = {}
    for thread_id, namespace, name in itertools.product(("t", "u"), ("", "sub"), ("a", str(UUID(int=7)), "b", "c")):
        key = Key(thread_id, namespace, name)
        leaf = make_object(f"{key}".encode())
        record = make_record(name, thread_id, namespace, roots=[leaf])
        stored = run_to_end(store.commit(put(record, leaf)))
        assert stored is not None
        seqs[key] = stored.seq
        writes = [Write(task, n, "ch", b"", b"w", 1, path) for n, (task, path) in enumerate([("y", "1"), ("x", "2")])]
        run_to_end(store.put_writes(key, [*writes, Write("z", 0, "late", b"", b"w", 1, "0")], []))
    hide = [Hidden("", seqs[Key("t", "", "b")] - 1, seqs[Key("t", "", "b")]), Hidden("", 0, 2, writes_of="a")]
    run_to_end(store.commit(Change(thread_id="t", hide=hide, log=Operation("rewind", {}))))
    queries = [
        Query(thread_id=thread_id, namespace=namespace, order=order, hidden=hidden, limit=limit, offset=offset)
        for thread_id in ("t", None)
        for namespace in ("", None)
        for order in ("id", "seq", "oldest")
        for hidden in ("no", "also", "only")
        for limit, offset in ((None, 0), (3, 0), (2, 2), (0, 0))
    ]
    queries += [Query(thread_id="nobody"), Query(thread_id="t", filter={"none": 1}), Query(filter={}, before_id="b")]
    for query in queries:
        listed = run_to_end(store.list_checkpoints(query))
        one_by_one = run_to_end(store.read_many([each.record.key for each in listed], writes=True))
        assert run_to_end(store.read_page(query)) == one_by_one, query
    run_to_end(store.close())


def test_a_page_with_a_damaged_root_is_not_given(path: Path) -> None:
    store = SQLiteStore(path).blocking
    for name in ("a", "b"):
        run_to_end(store.commit(follow("t", name)))
    with closing(apsw.Connection(str(path))) as other:
        schema.add_functions(other)
        other.execute("UPDATE checkpoints SET root = x'00' WHERE id = 'a-1'")
    with pytest.raises(CheckpointCorrupted):
        run_to_end(store.read_page(Query(thread_id="t")))
    run_to_end(store.close())


def test_pending_writes_change_one_table_and_their_numbers_are_never_used_twice(path: Path) -> None:
    """A number is given before its row is kept, a hundred at a time: what a process has left over is not used."""

    def attach(store: SQLiteStore, task: str) -> None:
        run_to_end(store.put_writes(Key("t", "", "c"), [Write(task, 0, "channel", b"", b"x", 1)], []))

    def numbers() -> list[int]:
        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            return [seq for (seq,) in connection.execute("SELECT seq FROM writes ORDER BY seq")]

    store = SQLiteStore(path).blocking
    attach(store, "a")
    version = counter_value(path, "writes")
    attach(store, "b")
    assert counter_value(path, "writes") == version  # what no writer changes costs no page
    with pytest.raises(ZeroDivisionError):
        run_to_end(store.in_turn("t", lambda inside: fail_after(inside, "c")))
    attach(store, "d")
    run_to_end(store.close())
    store = SQLiteStore(path).blocking
    attach(store, "e")
    run_to_end(store.close())
    found = numbers()
    assert len(set(found)) == 4
    assert max(found) <= counter_value(path, "writes")
    assert found[-1] > version


def counter_value(path: Path, name: str) -> int:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return int(connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).get)


async def fail_after(store: Any, name: str) -> None:
    await store.commit(put(make_record("t", name)))
    raise ZeroDivisionError


def test_what_a_writer_remembers_of_a_head_is_what_is_stored(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SQLiteStore(path).blocking
    given = {"tags": ["stored"]}
    run_to_end(store.commit(put(make_record("c1", metadata=given))))
    run_to_end(store.put_writes(Key("t", "", "c1"), [Write("a", 0, "channel", b"", b"x", 1)], []))
    given["tags"].append("later")  # by whoever put it
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_rows.Rows, "load", None)  # it is remembered: nothing else is looked at
        loaded = run_to_end(store.read("t", writes=True))
        assert loaded is not None
        loaded.stored.record.metadata["tags"].append("read")  # by whoever reads it
        again = run_to_end(store.read("t", "", "c1", writes=True))
    assert again is not None
    assert again.stored.record.metadata == {"tags": ["stored"]}
    assert [write.task_id for write in again.writes] == ["a"]
    fresh = SQLiteStore(path.parent / "." / path.name, synchronous="normal").blocking  # a connection of its own
    assert again == run_to_end(fresh.read("t", writes=True))
    run_to_end(fresh.commit(put(make_record("c2", parents=["c1"]))))
    head = run_to_end(store.read("t"))
    assert head is not None
    assert head.stored.record.key.checkpoint_id == "c2"
    for each in (store, fresh):
        run_to_end(each.close())


def test_a_whole_thread_is_deleted_without_a_look_at_each_checkpoint(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SQLiteStore(path).blocking
    for name in ("c1", "c2", "c3"):
        run_to_end(store.commit(put(make_record(name))))
    for name in ("c3", "early"):
        run_to_end(store.put_writes(Key("t", "", name), [Write("a", 0, "channel", b"", b"x", 1)], []))
    run_to_end(store.commit(put(make_record("other", "u"))))
    monkeypatch.setattr(sqlite_rows.Rows, "candidates", None)
    assert run_to_end(store.delete("t")).checkpoints == 3
    assert run_to_end(store.raw("t")) is None
    run_to_end(store.close())
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        assert connection.execute("SELECT count(*) FROM writes").get == 0
        assert connection.execute("SELECT count(*) FROM checkpoints").get == 1


_LEFT_OPEN = """
import contextlib, sys, everstep

@contextlib.contextmanager
def opened():
    with everstep.open(sys.argv[1]).sync as engine:
        yield engine

left_open = opened()
left_open.__enter__().append("t", [{"role": "user", "content": "x"}])
"""


def test_a_store_that_the_end_of_the_interpreter_closes_is_closed_in_silence(path: Path) -> None:
    """As of a generator that nobody has closed: by then many builtins are gone."""
    done = subprocess.run(
        [sys.executable, "-c", _LEFT_OPEN, f"sqlite:///{path}"], check=True, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert [found.name for found in path.parent.iterdir()] == [path.name], "what is beside the file goes"
