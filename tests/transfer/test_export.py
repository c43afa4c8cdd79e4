"""Histories in a file: what comes back out of it, and what a damaged or forged one can do, which is nothing."""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import secrets
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import everstep
from everstep import (
    CheckpointCorrupted,
    CheckpointEngine,
    CopyProgress,
    CopyReport,
    EverstepError,
    ExportReport,
    InvalidInput,
    MemoryCheckpointer,
    StoreBackend,
)
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Key, Query, Write
from everstep.transfer import archive, families, frames
from everstep.transfer.archive import (
    CHECKPOINTS,
    DONE,
    END,
    FAMILY,
    HIDDEN,
    INDEX,
    LOG,
    OBJECTS,
    SEGMENTS,
    SHARED,
    START,
    THREAD,
    WRITES,
    Item,
    ItemReader,
    ItemWriter,
)
from everstep.values import codec, compress
from tests.timeline.histories import Walker, same_tokens, seen
from tests.tools.between import Between
from tests.transfer.copies import Killed, Make, Recording, busy, of_copy, stopping_after

WAYS = [("memory", "sqlite"), ("sqlite", "memory")]
SERVER_WAYS = [("sqlite", "postgres"), ("postgres", "redis"), ("redis", "sqlite"), ("cluster", "memory")]
WALKS = [(*way, seed) for way in WAYS for seed in range(10)] + [(*way, seed) for way in SERVER_WAYS for seed in (1, 2)]


def exported(source: Any, threads: list[str] | None = None) -> bytes:
    out = io.BytesIO()
    everstep.export_threads(source, out, threads)
    return out.getvalue()


def items_of(data: bytes) -> list[Item]:
    reader = ItemReader(io.BytesIO(data))
    found: list[Item] = []
    while not found or found[-1][0] != END:
        item = reader.read()
        if item is None:
            reader.fill()
        else:
            found.append(item)
    return found


def file_of(items: list[Item]) -> bytes:
    out = io.BytesIO()
    writer = ItemWriter(out)
    for item in items:
        writer.add(item)
    writer.flush()
    return out.getvalue()


def a_history(backend: StoreBackend) -> None:
    """Fill a store with something of each kind: branches, a merge, a pin, pending writes, what is hidden, a log."""
    engine = CheckpointEngine(backend).sync
    for n in range(4):
        engine.append("t", [{"role": "user", "content": f"{n} " * 900}], {"n": n}, tags=["tag"])
    ids = [point.checkpoint_id for point in engine.list_time_travel_points("t")]
    branch = engine.branch(ids[1], "b")
    engine.append(branch, [], {"b": 1})
    engine.merge_branch(branch, "t")
    engine.pin(ids[0])
    loaded = run_to_end(backend.store.blocking.read("t", "", ids[1], objects=True))
    assert loaded is not None
    write = Write("task", 0, "ch", loaded.objects[0].hash, b"body", 0)
    run_to_end(backend.store.blocking.put_writes(Key("t", "", ids[1]), [write], loaded.objects))
    engine.rewind(ids[1])
    engine.append("other", [{"role": "user", "content": "hello"}], {"x": 1})


class TestWhatComesAlong:
    @pytest.mark.parametrize(("one", "other", "seed"), WALKS)
    def test_everything_that_can_be_seen_and_done(
        self,
        one: str,
        other: str,
        seed: int,
        make: Make,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        same_tokens(monkeypatch)
        source, target = make(one), make(other)
        Walker(source, seed, gc_policy="keep_last_n", gc_param=6 + 20 * (seed % 2)).walk(60)
        if seed % 3:
            busy(target)
        path = tmp_path / "histories.everstep"

        told = everstep.export_threads(source, path)
        report = everstep.import_threads(path, target)

        count = run_to_end(source.store.blocking.count(Query(namespace=None, hidden="also")))
        assert told.checkpoints == report.checkpoints == report.verified == count
        assert (told.threads, told.objects, told.bytes) == (report.threads, report.objects, path.stat().st_size)
        assert of_copy(seen(target.store)) == seen(source.store)
        if seed % 3:
            target.sync.delete_thread("resident")
        done = []
        for backend in (source, target):
            same_tokens(monkeypatch, 1000)
            done.append(Walker(backend, seed + 1000, gc_policy="keep_all").walk(30))
        assert done[0] == done[1]
        assert seen(target.store, times=False) == seen(source.store, times=False)

    def test_undo_works_after_an_import(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        a_history(source)
        everstep.import_threads(io.BytesIO(exported(source)), target)
        for backend in (source, target):
            CheckpointEngine(backend).sync.undo("t")
        assert seen(target.store, times=False) == seen(source.store, times=False)

    def test_an_empty_store(self) -> None:
        out = io.BytesIO()
        report = everstep.export_threads(MemoryStore(), out)
        assert report == ExportReport(bytes=len(out.getvalue()))
        assert everstep.import_threads(io.BytesIO(out.getvalue()), MemoryStore()) == CopyReport()

    def test_threads_that_only_have_pending_writes(self) -> None:
        source, target = MemoryStore(), MemoryStore()
        run_to_end(source.blocking.put_writes(Key("w", "", "c"), [Write("task", 0, "ch", b"", b"body", 4)], []))
        everstep.import_threads(io.BytesIO(exported(source, ["w"])), target)
        raw = run_to_end(target.blocking.raw("w"))
        assert raw is not None
        assert [write.body for _, write in raw.writes] == [b"body"]

    def test_large_values_come_in_many_frames(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source, everstep.SnapshotConfig(gc_policy="keep_all")).sync
        for n in range(600):
            engine.append("t", [], {"n": n, "large": secrets.token_hex(6000)} if n % 6 == 0 else {"n": n})
        told: list[CopyProgress] = []
        out = io.BytesIO()

        everstep.export_threads(source, out, progress=told.append)
        assert len(out.getvalue()) > 500_000
        assert told[-1] == CopyProgress(1, 1, 600, 600)
        told.clear()
        everstep.import_threads(io.BytesIO(out.getvalue()), target, progress=told.append)

        assert len({progress.checkpoints_done for progress in told}) >= 2
        assert told[-1] == CopyProgress(1, 1, 600, 600)
        assert seen(target.store) == seen(source.store)


class TestChoosing:
    def test_some_threads_with_their_families(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        a_history(source)
        data = exported(source)
        assert everstep.import_threads(io.BytesIO(exported(source, ["other"])), MemoryStore()).threads == 1
        assert everstep.import_threads(io.BytesIO(data), target, ["t"]).threads == 2
        assert "other" not in seen(target.store)["every thread"]
        with pytest.raises(InvalidInput, match="no thread 'nobody' in the file"):
            everstep.import_threads(io.BytesIO(data), target, ["nobody"])
        with pytest.raises(InvalidInput, match="no thread 'nobody' in the source"):
            exported(source, ["nobody"])

    def test_a_path_that_is_there_is_not_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "precious"
        path.write_text("mine")
        with pytest.raises(InvalidInput, match="there already"):
            everstep.export_threads(MemoryStore(), path)
        assert path.read_text() == "mine"

    def test_only_its_owner_can_read_a_file(self, tmp_path: Path) -> None:
        source = MemoryStore()
        everstep.export_threads(source, tmp_path / "x")
        everstep.backup(source, tmp_path / "backups")
        for path in [tmp_path / "x", tmp_path / "backups", *(tmp_path / "backups").iterdir()]:
            assert path.stat().st_mode & 0o077 == 0, path

    def test_nothing_is_written_through_a_link(self, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("mine")
        (tmp_path / "x.part").symlink_to(victim)
        everstep.export_threads(MemoryStore(), tmp_path / "x")
        assert victim.read_text() == "mine"
        assert (tmp_path / "x").is_file()
        assert not (tmp_path / "x").is_symlink()

    def test_of_two_that_write_the_same_file_one_gets_it_whole(self, tmp_path: Path) -> None:
        source = MemoryCheckpointer()
        a_history(source)
        path = tmp_path / "x"

        def export_meanwhile(_: Any) -> None:
            if not path.exists():
                everstep.export_threads(source, path)

        with pytest.raises(EverstepError):
            everstep.export_threads(source, path, progress=export_meanwhile)
        assert everstep.import_threads(path, MemoryStore()).checkpoints > 0
        assert [file.name for file in tmp_path.iterdir()] == ["x"]

    def test_an_export_that_fails_leaves_no_file(self, tmp_path: Path) -> None:
        source = MemoryCheckpointer()
        a_history(source)
        between = Between(source.store)
        between.before("fetch", fail)
        with pytest.raises(ZeroDivisionError):
            everstep.export_threads(between, tmp_path / "x.everstep")
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("file", [3, None, io.StringIO("text")])
    def test_files_that_make_no_sense_are_refused(self, file: Any) -> None:
        with pytest.raises(InvalidInput):
            everstep.import_threads(file, MemoryStore())

    def test_a_path_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="no file"):
            everstep.import_threads(tmp_path / "typo.everstep", MemoryStore())

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(everstep.StoreError, match="No such file"):
            everstep.export_threads(MemoryStore(), tmp_path / "typo" / "x.everstep")

    def test_through_a_pipe(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        Walker(source, 4).walk(60)
        out, into = os.pipe()

        def write() -> None:
            with os.fdopen(into, "wb", buffering=0) as pipe:
                everstep.export_threads(source, pipe)

        writer = threading.Thread(target=write)
        writer.start()
        with os.fdopen(out, "rb", buffering=0) as pipe:
            everstep.import_threads(pipe, target)
        writer.join()
        assert seen(target.store) == seen(source.store)

    @pytest.mark.parametrize("kind", ["sqlite", "postgres"])
    def test_the_asynchronous_twins(self, kind: str, make: Make, tmp_path: Path) -> None:
        source, target = make("sqlite"), make(kind)
        Walker(source, 3).walk(50)

        async def both() -> CopyReport:
            await everstep.export_threads_async(source, tmp_path / "x.everstep")
            return await everstep.import_threads_async(tmp_path / "x.everstep", target)

        assert asyncio.run(both()) == everstep.copy(source, make("memory"))
        assert seen(target.store) == seen(source.store)


def fail() -> None:
    raise ZeroDivisionError


class TestAgain:
    def test_importing_twice_sends_nothing(self, make: Make) -> None:
        source, target = make("sqlite"), Recording(make("sqlite").store)
        Walker(source, 8).walk(100)
        data = exported(source)
        first = everstep.import_threads(io.BytesIO(data), target)
        target.parts.clear()

        second = everstep.import_threads(io.BytesIO(data), target)

        assert target.parts == []
        assert second == CopyReport(first.threads, 0, 0, 0, first.checkpoints, first.checkpoints)

    @pytest.mark.parametrize("kind", ["memory", "sqlite"])
    def test_an_import_that_broke_off_anywhere_is_finished_by_the_next(
        self,
        kind: str,
        make: Make,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        source = make("memory")
        monkeypatch.setattr(families, "PART_CHECKPOINTS", 5)
        Walker(source, 21, gc_policy="keep_last_n", gc_param=20).walk(120)
        data, expected = exported(source), seen(source.store)
        counted = Recording(make(kind).store)
        everstep.import_threads(io.BytesIO(data), counted)
        assert len(counted.parts) >= 6
        for stop in range(len(counted.parts)):
            target = make(kind)
            recording = Recording(target.store)
            recording.before = stopping_after(stop)
            with pytest.raises(Killed):
                everstep.import_threads(io.BytesIO(data), recording)
            found = seen(target.store)
            for name in listed(found):  # it is whole
                assert found[name] == expected[name]
            everstep.import_threads(io.BytesIO(data), target)
            assert seen(target.store) == expected

    def test_a_later_export_brings_what_is_new(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        walker = Walker(source, 5, deletes_threads=False, gc_policy="keep_last_n", gc_param=20)
        for _ in range(6):
            walker.walk(15)
            everstep.import_threads(io.BytesIO(exported(source)), target)
            assert seen(target.store) == seen(source.store)

    def test_copy_and_import_know_each_other(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        a_history(source)
        everstep.copy(source, target)
        assert everstep.import_threads(io.BytesIO(exported(source)), target).checkpoints == 0

    def test_an_older_export_does_not_take_back_what_is_newer(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        a_history(source)
        older = exported(source)
        CheckpointEngine(source).sync.append("t", [], {"new": 1})
        everstep.import_threads(io.BytesIO(exported(source)), target)
        before = seen(target.store)
        with pytest.raises(InvalidInput, match="'t' is older in the file"):
            everstep.import_threads(io.BytesIO(older), target)
        assert seen(target.store) == before

    def test_a_thread_of_the_same_name_is_not_touched(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        a_history(source)
        CheckpointEngine(target).sync.append("t", [], {"mine": 1})
        before = seen(target.store)
        with pytest.raises(InvalidInput, match="'t' exists in the target and is not a copy"):
            everstep.import_threads(io.BytesIO(exported(source)), target, ["t"])
        assert seen(target.store) == before

    def test_what_was_done_to_the_copy_is_not_lost(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        a_history(source)
        data = exported(source)
        everstep.import_threads(io.BytesIO(data), target)
        CheckpointEngine(target).sync.append("t", [], {"mine": 1})
        before = seen(target.store)
        with pytest.raises(InvalidInput, match="'t' was changed in the target"):
            everstep.import_threads(io.BytesIO(data), target)
        assert seen(target.store) == before


class TestWhileTheSourceIsWritten:
    def test_a_head_that_is_gone_before_it_was_read_takes_another_pass(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        engine = CheckpointEngine(source).sync
        ids = [engine.append("t", [{"role": "user", "content": secrets.token_hex(900)}], {"n": n}) for n in range(4)]

        def replace_the_head() -> None:
            deleted = run_to_end(source.store.blocking.delete("t", keys=[Key("t", "", ids[3])]))
            for family in deleted.families:
                run_to_end(source.store.blocking.sweep(family))
            engine.append("t", [{"role": "user", "content": "another"}], {"n": 9})

        between = Between(source.store)
        between.before("read_many", replace_the_head)
        data = exported(between)

        assert between.is_over
        kinds = [item[0] for item in items_of(data)]
        assert kinds.count(FAMILY) == kinds.count(DONE) == 2
        everstep.import_threads(io.BytesIO(data), target)
        assert seen(target.store) == seen(source.store)
        everstep.import_threads(io.BytesIO(data), MemoryStore(), ["t"])

    def test_a_thread_that_is_deleted_meanwhile_is_left_out(self) -> None:
        source, target = MemoryCheckpointer(), MemoryCheckpointer()
        engine = CheckpointEngine(source).sync
        for name in "abc":
            engine.append(name, [{"role": "user", "content": secrets.token_hex(900)}], {})
        between = Between(source.store)
        between.before("read_many", lambda: source.sync.delete_thread("a"))
        data = exported(between)
        assert between.is_over
        everstep.import_threads(io.BytesIO(data), target)
        assert sorted(listed(seen(target.store))) == ["b", "c"]


# -- damage and malice -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source() -> StoreBackend:
    backend = MemoryCheckpointer()
    a_history(backend)
    return backend


@pytest.fixture(scope="module")
def data(source: StoreBackend) -> bytes:
    return exported(source)


@pytest.fixture(scope="module")
def expected(source: StoreBackend) -> dict[str, Any]:
    return seen(source.store)


def listed(found: dict[str, Any]) -> list[str]:
    return [head["thread_id"] for head in found["threads"]]


def refused(data: bytes, expected: dict[str, Any]) -> EverstepError:
    """Import what must be refused; return how it was. What is listed then is whole."""
    target = MemoryCheckpointer()
    with pytest.raises((CheckpointCorrupted, InvalidInput)) as caught:
        everstep.import_threads(io.BytesIO(data), target)
    found = seen(target.store)
    for name in listed(found):
        assert found[name] == expected[name]
    return caught.value


class TestDamage:
    def test_a_file_that_is_cut_off_anywhere(self, data: bytes, expected: dict[str, Any]) -> None:
        for size in itertools.chain(range(64), range(64, len(data), 97), range(len(data) - 40, len(data))):
            refused(data[:size], expected)

    @settings(max_examples=300)
    @given(place=st.integers(0, 10**9), bit=st.integers(0, 7))
    def test_a_bit_that_is_flipped_anywhere(self, place: int, bit: int, data: bytes, expected: dict[str, Any]) -> None:
        changed = bytearray(data)
        changed[place % len(data)] ^= 1 << bit
        refused(bytes(changed), expected)

    @settings(max_examples=100)
    @given(one=st.integers(0, 10**9), other=st.integers(0, 10**9), added=st.binary(max_size=40))
    def test_bytes_that_are_lost_or_added(
        self, one: int, other: int, added: bytes, data: bytes, expected: dict[str, Any]
    ) -> None:
        start, end = sorted((one % len(data), other % len(data)))
        changed = data[:start] + added + data[end:]
        if changed != data:
            refused(changed, expected)

    @pytest.mark.parametrize("junk", [b"", b"S", b"SQLite format 3\0" * 9, b"\0" * 100, bytes(range(256)) * 20])
    def test_what_is_no_export(self, junk: bytes, expected: dict[str, Any]) -> None:
        assert isinstance(refused(junk, expected), InvalidInput)

    def test_a_newer_version_says_what_to_do(self, data: bytes, expected: dict[str, Any]) -> None:
        newer = data[:8] + (3).to_bytes(2, "big") + data[10:]
        assert "install a newer version" in str(refused(newer, expected))

    def test_something_behind_the_end(self, data: bytes, expected: dict[str, Any]) -> None:
        refused(data + b"\0", expected)
        refused(data + data, expected)

    def test_frames_that_are_doubled_left_out_or_exchanged(
        self, monkeypatch: pytest.MonkeyPatch, source: StoreBackend, expected: dict[str, Any]
    ) -> None:
        monkeypatch.setattr(archive, "_FRAME_BYTES", 200)
        data = exported(source)
        header, *parts = cut_into_frames(data)
        assert len(parts) > 8
        everstep.import_threads(io.BytesIO(b"".join([header, *parts])), MemoryStore())
        for n in range(len(parts)):
            refused(b"".join([header, *parts[:n], *parts[n + 1 :]]), expected)
            refused(b"".join([header, *parts[: n + 1], *parts[n:]]), expected)
        for n in range(len(parts) - 1):
            refused(b"".join([header, *parts[:n], parts[n + 1], parts[n], *parts[n + 2 :]]), expected)


def cut_into_frames(data: bytes) -> list[bytes]:
    found = [data[:12]]
    at = 12
    while at < len(data):
        size = 20 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at : at + size])
        at += size
    return found


Forge = Callable[[list[Item]], None]


def first(items: list[Item], kind: int) -> Item:
    return next(item for item in items if item[0] == kind)


def setting(kind: int, *path: int, to: Any) -> Forge:
    """Return what changes one field of the first item of a kind."""

    def forge(items: list[Item]) -> None:
        found: Any = first(items, kind)
        for step in path[:-1]:
            found = found[step]
        found[path[-1]] = to

    return forge


def dropping(kind: int) -> Forge:
    return lambda items: items.remove(first(items, kind))


def doubling(kind: int) -> Forge:
    return lambda items: items.insert(items.index(first(items, kind)), first(items, kind))


def moving_to_the_front(kind: int) -> Forge:
    def forge(items: list[Item]) -> None:
        found = first(items, kind)
        items.remove(found)
        items.insert(1, found)

    return forge


def a_cycle(items: list[Item]) -> None:
    segment = first(items, SEGMENTS)[1][0]
    for place in segment[1]:
        place[1] = place[2] = segment[0] + 5


def an_unknown_kind(items: list[Item]) -> None:
    items.insert(3, [99, "what is this"])


def another_body(items: list[Item]) -> None:
    item = first(items, OBJECTS)
    item[1][1] += b"x"


def a_child_that_is_not_there(items: list[Item]) -> None:
    first(items, CHECKPOINTS)[1][0][2] = b"\7" * 16


def two_of_one_number(items: list[Item]) -> None:
    rows = first(items, INDEX)[1]
    rows[1][3] = rows[0][3]


def out_of_order(items: list[Item]) -> None:
    first(items, INDEX)[1].reverse()


def the_same_name(items: list[Item]) -> None:
    rows = first(items, INDEX)[1]
    rows[1][:3] = rows[0][:3]


def the_same_checkpoint(items: list[Item]) -> None:
    rows = first(items, CHECKPOINTS)[1]
    rows[1] = rows[0]


def a_thread_twice(items: list[Item]) -> None:
    names = [item for item in items if item[0] == THREAD]
    names[1][1] = names[0][1]


def metadata(**changes: Any) -> Forge:
    """Return what changes fields of the metadata of the first checkpoint, by position."""

    def forge(items: list[Item]) -> None:
        row = first(items, CHECKPOINTS)[1][0]
        fields = codec.unpack(row[3])
        for name, value in changes.items():
            fields[int(name[1:])] = value
        row[3] = codec.pack(fields)

    return forge


def undo_data(value: Any) -> Forge:
    def forge(items: list[Item]) -> None:
        first(items, LOG)[1][0][1]["undo"] = value

    return forge


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


HUGE = 1 << 60
FORGERIES: dict[str, Forge] = {
    "no start": dropping(START),
    "a start that promises nothing": setting(START, 2, to="many"),
    "no family": dropping(FAMILY),
    "no thread": dropping(THREAD),
    "no index": dropping(INDEX),
    "no segments": dropping(SEGMENTS),
    "no objects": dropping(OBJECTS),
    "no checkpoints": dropping(CHECKPOINTS),
    "no end of a family": dropping(DONE),
    "no end": dropping(END),
    "a family twice": doubling(FAMILY),
    "an item of a thread twice": doubling(THREAD),
    "an index twice": doubling(INDEX),
    "objects twice": doubling(OBJECTS),
    "checkpoints twice": doubling(CHECKPOINTS),
    "the end of a family twice": doubling(DONE),
    "the end twice": doubling(END),
    "checkpoints first": moving_to_the_front(CHECKPOINTS),
    "a log without a thread": moving_to_the_front(LOG),
    "the end first": moving_to_the_front(END),
    "an unknown kind": an_unknown_kind,
    "a kind that is no number": setting(FAMILY, 0, to="family"),
    "an item that is no list": lambda items: items.insert(2, "item"),  # type: ignore[arg-type]
    "an empty item": lambda items: items.insert(2, []),
    "an identity of no bytes": setting(FAMILY, 1, to="name"),
    "an endless identity": setting(FAMILY, 1, to=b"x" * 5000),
    "more threads than there are": setting(FAMILY, 2, to=9),
    "more segments than there are": setting(FAMILY, 3, to=9),
    "fewer checkpoints than there are": setting(FAMILY, 4, to=1),
    "a thread without a name": setting(THREAD, 1, to=""),
    "a thread whose name is too long": setting(THREAD, 1, to="n" * 5000),
    "a thread whose name is no text": setting(THREAD, 1, to=b"t"),
    "a thread whose name is half a letter": setting(THREAD, 1, to="\ud800"),
    "two threads of one name": a_thread_twice,
    "a head that is not there": setting(THREAD, 2, 0, 1, to="nowhere"),
    "a head that is no text": setting(THREAD, 2, 0, 1, to=3),
    "a generation below zero": setting(THREAD, 2, 0, 3, to=-1),
    "a generation beyond all": setting(THREAD, 2, 0, 3, to=1 << 70),
    "an activity that is no number": setting(THREAD, 2, 0, 4, to=1.5),
    "a segment beyond all": setting(THREAD, 2, 0, 5, to=[HUGE]),
    "a newest beyond all": setting(THREAD, 2, 0, 6, to=HUGE),
    "a namespace that is missing": setting(THREAD, 2, 0, 0, to="elsewhere"),
    "an origin of two parts": setting(THREAD, 3, to=["t", ""]),
    "a beginning below zero": setting(THREAD, 4, to=-3),
    "pins that are no list": setting(THREAD, 5, to=7),
    "a pin that is true": setting(THREAD, 5, to=[True]),
    "a hidden stretch beyond all": setting(HIDDEN, 1, 0, 2, to=HUGE),
    "a hidden stretch far away": setting(HIDDEN, 1, 0, 2, to=(1 << 53) - 1),
    "a hidden stretch of no namespace": setting(HIDDEN, 1, 0, 0, to=None),
    "an operation of no kind": setting(LOG, 1, 0, 0, to=None),
    "an operation without data": setting(LOG, 1, 0, 1, to=[]),
    "an operation whose data is missing": setting(LOG, 1, 0, 1, to={"undo": []}),
    "an operation beyond all": setting(LOG, 1, 0, 2, to=HUGE),
    "operations out of order": lambda items: first(items, LOG)[1].reverse(),
    "an undo of nothing": undo_data([]),
    "an undo of numbers": undo_data([1, 2, 3, 4, 5]),
    "an undo of texts": undo_data(["t", {}, [["", "a", "b"]], {"": "x"}, []]),
    "an undo beyond all": undo_data(["t", {}, [], {"": HUGE}, []]),
    "an undo below zero": undo_data(["t", {}, [], {"": -5}, []]),
    "a write of a number": setting(WRITES, 1, 0, 5, to=4),
    "a write whose hash is cut off": setting(WRITES, 1, 0, 5, to=b"short"),
    "a write of what is not there": setting(WRITES, 1, 0, 5, to=b"\7" * 16),
    "a write beyond all": setting(WRITES, 1, 0, 9, to=HUGE),
    "a write of a checkpoint without a name": setting(WRITES, 1, 0, 1, to=""),
    "a common state of what is not there": setting(SHARED, 1, 0, 2, to=b"\7" * 16),
    "a common state of no size": setting(SHARED, 1, 0, 4, to=["a"]),
    "a common state far away": setting(SHARED, 1, 0, 1, 2, to=(1 << 53) - 1),
    "a segment that follows itself": a_cycle,
    "a segment that follows a text": setting(SEGMENTS, 1, 0, 1, to=["t"]),
    "a segment of no number": setting(SEGMENTS, 1, 0, 0, to="1"),
    "a checkpoint of no thread": setting(INDEX, 1, 0, 0, to=77),
    "a checkpoint of no namespace": setting(INDEX, 1, 0, 1, to="elsewhere"),
    "a checkpoint without a name": setting(INDEX, 1, 0, 2, to=""),
    "a checkpoint of number zero": setting(INDEX, 1, 0, 3, to=0),
    "a checkpoint beyond all": setting(INDEX, 1, -1, 3, to=HUGE),
    "a checkpoint far away": setting(INDEX, 1, -1, 3, to=(1 << 53) - 1),
    "a checkpoint before its segment": setting(INDEX, 1, 0, 4, to=1 << 30),
    "a checkpoint whose checksum is a text": setting(INDEX, 1, 0, 5, to="x"),
    "a size below zero": setting(INDEX, 1, 0, 6, to=-1),
    "two checkpoints of one number": two_of_one_number,
    "two checkpoints of one name": the_same_name,
    "an index out of order": out_of_order,
    "objects of an odd number": setting(OBJECTS, 1, to=[b""]),
    "objects of texts": setting(OBJECTS, 1, to=["", ""]),
    "an object whose reference is cut off": setting(OBJECTS, 1, 0, to=b"short"),
    "an object that refers to what is not there": setting(OBJECTS, 1, 0, to=b"\7" * 16),
    "another body": another_body,
    "a checkpoint that is not in the index": setting(CHECKPOINTS, 1, 0, 0, to=999),
    "a checkpoint below the index": setting(CHECKPOINTS, 1, 0, 0, to=-1),
    "a checkpoint twice": the_same_checkpoint,
    "a step beyond all": setting(CHECKPOINTS, 1, 0, 1, to=1 << 63),
    "a step that is a text": setting(CHECKPOINTS, 1, 0, 1, to="1"),
    "a checkpoint whose reference is cut off": setting(CHECKPOINTS, 1, 0, 2, to=b"short"),
    "a checkpoint of what is not there": a_child_that_is_not_there,
    "metadata of nothing": setting(CHECKPOINTS, 1, 0, 3, to=b""),
    "metadata that is no list": setting(CHECKPOINTS, 1, 0, 3, to=codec.pack({})),
    "metadata that is cut off": setting(CHECKPOINTS, 1, 0, 3, to=b"\x99\x01"),
    "metadata that claims to be long": setting(CHECKPOINTS, 1, 0, 3, to=b"\xdd\xff\xff\xff\xff"),
    "metadata that nests": setting(CHECKPOINTS, 1, 0, 3, to=b"\x91" * 100_000 + b"\x90"),
    "a time that is a list": metadata(_0=[1]),
    "a time beyond all": metadata(_0=1 << 62),
    "parents that are numbers": metadata(_1=[1, 2]),
    "parents of two parts": metadata(_1=[["a", "b"]]),
    "tags that are numbers": metadata(_2=[1]),
    "a summary that is a number": metadata(_3=1),
    "a node that is a list": metadata(_4=[]),
    "a trigger that is bytes": metadata(_5=b"x"),
    "a kind that is a number": metadata(_6=3),
    "sizes that are texts": metadata(_7=["a"]),
    "sizes below zero": metadata(_7=[-1]),
    "metadata that is a list": metadata(_8=[]),
    "an object of some class": setting(CHECKPOINTS, 1, 0, 3, to=b"\x99" + b"\xc7\x05\x08\xa4Name" * 9),
    "a family with fewer checkpoints in the end": setting(DONE, 2, to=1),
    "a family with more objects in the end": setting(DONE, 3, to=10_000),
    "a family that is not whole": setting(DONE, 1, to=False),
    "a family that may be whole": setting(DONE, 1, to=1),
    "fewer families in the end": setting(END, 1, to=1),
    "more threads in the end": setting(END, 2, to=9),
    "more checkpoints in the end": setting(END, 3, to=99),
    "more objects in the end": setting(END, 4, to=99),
}


class TestForgery:
    """Whoever forges a file can make all its checksums right."""

    def test_what_is_not_forged_is_accepted(self, data: bytes, source: StoreBackend) -> None:
        target = MemoryCheckpointer()
        kinds = {item[0] for item in items_of(data)}
        assert kinds == set(range(13))
        everstep.import_threads(io.BytesIO(file_of(items_of(data))), target)
        assert seen(target.store) == seen(source.store)

    @pytest.mark.parametrize("forgery", sorted(FORGERIES))
    def test_it_is_refused(self, forgery: str, data: bytes, expected: dict[str, Any]) -> None:
        items = items_of(data)
        FORGERIES[forgery](items)
        assert repr(items) != repr(items_of(data))
        refused(file_of(items), expected)

    @settings(max_examples=200)
    @given(drawn=st.data())
    def test_any_field_may_be_anything(self, drawn: st.DataObject, data: bytes) -> None:
        """Not every change can be noticed; but each import ends as it should, or with one of our errors."""
        items = items_of(data)
        found: Any = items
        while isinstance(found, list) and found:
            place = drawn.draw(st.integers(0, len(found) - 1))
            if not isinstance(found[place], list) or not found[place] or drawn.draw(st.booleans()):
                break
            found = found[place]
        found[place] = drawn.draw(
            st.one_of(
                st.none(),
                st.booleans(),
                st.integers(-(2**63), 2**64 - 1),
                st.text(max_size=5),
                st.binary(max_size=20),
                st.just([]),
                st.just({}),
                st.floats(),
            )
        )
        target = MemoryCheckpointer()
        try:
            everstep.import_threads(io.BytesIO(file_of(items)), target)
        except (CheckpointCorrupted, InvalidInput):
            pass
        store = target.store.blocking
        for head in run_to_end(store.list_threads(100, 0)):
            CheckpointEngine(target).sync.get_checkpoint_tree(head.record.key.thread_id)

    def bombs(self) -> Iterator[bytes]:
        content = codec.array_header(1) + codec.pack([OBJECTS, [b"", bytes(300 << 20)]])
        yield compress.ZSTD + zstandard.ZstdCompressor().compress(content)
        dicts = b"\xdd" + (4 << 20).to_bytes(4, "big") + b"\x80" * (4 << 20)
        yield compress.ZSTD + zstandard.ZstdCompressor().compress(dicts)
        yield compress.ZSTD + b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\xff"
        yield b"\x09unknown form"
        yield b""

    def test_bombs_take_no_memory(self, expected: dict[str, Any]) -> None:
        for payload in self.bombs():
            out = io.BytesIO()
            writer = frames.FrameWriter(out)
            writer.check = frames._check(writer.check, payload)
            writer._write(frames._FRAME.pack(len(payload), writer.check) + payload)
            tracemalloc.start()
            try:
                refused(out.getvalue(), expected)
                assert tracemalloc.get_traced_memory()[1] < 40 << 20
            finally:
                tracemalloc.stop()

    def test_a_length_that_is_not_true_takes_no_memory(self, expected: dict[str, Any]) -> None:
        out = io.BytesIO()
        frames.FrameWriter(out)
        tracemalloc.start()
        try:
            refused(out.getvalue() + b"\xff" * 4 + bytes(1000), expected)
            assert tracemalloc.get_traced_memory()[1] < 20 << 20
        finally:
            tracemalloc.stop()

    def test_many_families_do_not_use_up_all_numbers(
        self, data: bytes, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archive, "SPANS_MAX", 3)
        assert "numbers are out of bounds" in str(refused(data, expected))


def test_what_is_written_is_the_same_each_time(source: StoreBackend) -> None:
    """So that whoever keeps exports under version control, or in a store that knows equal files, gains by it."""
    one, other = (items_of(exported(source))[1:] for _ in range(2))
    assert one == other
