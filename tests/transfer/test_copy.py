"""Histories move between stores whole: what can be seen, and what can be done with it afterwards."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everstep
from everstep import (
    CheckpointCorrupted,
    CheckpointEngine,
    CopyProgress,
    CopyReport,
    InvalidInput,
    MemoryCheckpointer,
    StoreBackend,
    UnsupportedByBackend,
)
from everstep.runtime.blocking import run_to_end
from everstep.stores.keyvalue.changing import ChangeRows
from everstep.stores.keyvalue.keys import number
from everstep.stores.keyvalue.rows import OBJECTS, family_name
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Key, Part, Query, RawThread, Write
from everstep.testing import put
from everstep.transfer import families
from tests.timeline.histories import Walker, same_tokens, seen
from tests.tools.between import Between
from tests.transfer.copies import Killed, Make, Recording, busy, of_copy, stopping_after

WAYS = [("memory", "sqlite"), ("sqlite", "memory"), ("sqlite", "sqlite"), ("memory", "memory")]
SERVER_WAYS = {
    # Each store gives and takes with each seed once; the other ways show that no two of them are strangers.
    ("sqlite", "postgres"): (1, 2, 3), ("postgres", "sqlite"): (1, 2, 3), ("postgres", "postgres"): (3,),
    ("redis", "cluster"): (1, 2, 3), ("cluster", "redis"): (1, 2, 3), ("sqlite", "redis"): (1, 2),
    ("redis", "postgres"): (2,), ("postgres", "cluster"): (1,),
}  # fmt: skip
WALKS = [(*way, seed) for way in WAYS for seed in range(12)] + [
    (*way, seed) for way, seeds in SERVER_WAYS.items() for seed in seeds
]


class TestWhatComesAlong:
    @pytest.mark.parametrize(("one", "other", "seed"), WALKS)
    def test_everything_that_can_be_seen_and_done(
        self, one: str, other: str, seed: int, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        same_tokens(monkeypatch)
        source, target = make(one), make(other)
        config: dict[str, Any] = {"gc_policy": "keep_last_n", "gc_param": 6} if seed % 2 else {"gc_policy": "keep_all"}
        Walker(source, seed, **config).walk(60)
        if seed % 3:
            busy(target)

        report = everstep.copy(source, target)

        assert (
            report.checkpoints
            == report.verified
            == run_to_end(source.store.blocking.count(Query(namespace=None, hidden="also")))
        )
        assert of_copy(seen(target.store)) == seen(source.store)
        if seed % 3:
            target.sync.delete_thread("resident")
        told = []
        for backend in (source, target):
            same_tokens(monkeypatch, 1000)
            told.append(Walker(backend, seed + 1000, **config).walk(40))
        assert told[0] == told[1]
        assert seen(target.store, times=False) == seen(source.store, times=False)

    @settings(max_examples=15)
    @given(st.integers(0, 10**9), st.lists(st.integers(1, 12), min_size=2, max_size=6))
    def test_a_copy_keeps_up_with_its_source(self, seed: int, stretches: list[int]) -> None:
        source, target, other = MemoryCheckpointer(), MemoryCheckpointer(), MemoryCheckpointer()
        walker = Walker(source, seed, deletes_threads=False, gc_policy="keep_last_n", gc_param=20)
        elsewhere = Walker(other, seed + 1)
        for steps in stretches:
            walker.walk(steps)
            elsewhere.engine.append("resident", [], {"n": steps})
            names = seen(source.store)["every thread"]
            everstep.copy(other, target)  # other families take numbers in between
            everstep.copy(source, target, names)
            found = of_copy(seen(target.store))
            expected = seen(source.store)
            assert {name: found.get(name) for name in names} == {name: expected[name] for name in names}

    def test_a_copy_of_a_copy_is_one(self, make: Make) -> None:
        backends = [make(kind) for kind in ("sqlite", "memory", "sqlite", "memory")]
        Walker(backends[0], 5).walk(80)
        for one, other in itertools.pairwise(backends):
            everstep.copy(one, other)
        assert seen(backends[-1].store) == seen(backends[0].store)

    def test_large_values_come_in_parts(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source, everstep.SnapshotConfig(gc_policy="keep_all")).sync
        for n in range(1200):
            engine.append("t", [{"role": "user", "content": secrets.token_hex(6000)}] if n % 20 == 0 else [], {"n": n})
        told: list[CopyProgress] = []

        report = everstep.copy(source, target, progress=told.append)

        assert report.objects >= 50
        assert report.bytes > 200_000
        assert len({progress.checkpoints_done for progress in told}) >= 3
        assert told[-1] == CopyProgress(1, 1, 1200, 1200)

    def test_threads_that_only_have_pending_writes(self, make: Make) -> None:
        source, target = make("sqlite"), make("memory")
        run_to_end(source.store.blocking.put_writes(Key("w", "", "c"), [Write("task", 0, "ch", b"", b"body", 4)], []))
        assert everstep.copy(source, target, ["w"]) == CopyReport(threads=1)
        raw = run_to_end(target.store.blocking.raw("w"))
        assert raw is not None
        assert [(key, write.body) for key, write in raw.writes] == [(Key("w", "", "c"), b"body")]

    def test_an_empty_store(self, make: Make) -> None:
        assert everstep.copy(make("sqlite"), make("memory")) == CopyReport()


class TestChoosing:
    def test_families_are_kept_together(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        first = engine.append("t", [], {"n": 1})
        engine.append("unrelated", [], {"n": 1})
        branch = engine.branch(first, "b")
        twig = engine.branch(engine.append(branch, [], {"n": 2}), "twig")
        source.sync.delete_thread("t")

        report = everstep.copy(source, target, [twig])

        assert report.threads == 2
        assert {head.thread_id for head in target.sync.list_threads()} == {branch, twig}

    def test_the_order_of_activity_is_kept(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        branch = engine.branch(engine.append("a", [], {}), "b")
        for name in ("c", branch, "d", "a"):
            engine.append(name, [], {})
        everstep.copy(source, target)
        assert [head.thread_id for head in target.sync.list_threads()] == ["a", "d", branch, "c"]

    @pytest.mark.parametrize("threads", ["t", [""], ["nobody"], [1]])
    def test_wrong_names_are_refused(self, threads: Any, make: Make) -> None:
        with pytest.raises(InvalidInput):
            everstep.copy(make("memory"), make("sqlite"), threads)

    def test_urls_engines_backends_and_stores(self, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/one.db"
        with everstep.open(url).sync as engine:
            engine.append("t", [], {"n": 1})
        other = everstep.open(f"sqlite:///{tmp_path}/two.db")
        sides = [other, other.sync, other.checkpointer, other.checkpointer.sync, MemoryStore(), f"{url}2"]  # type: ignore[attr-defined]
        for side in sides:
            everstep.copy(url, side)
        assert other.sync.get_latest("t").state == {"n": 1}  # type: ignore[union-attr]
        for side in sides:
            assert everstep.copy(side, MemoryStore()).checkpoints == 1
        other.sync.append("t", [], {})  # still open

    @pytest.mark.parametrize(("side", "word"), [("memory://", "new, empty"), ("nowhere://", "unknown"), (3, "not 3")])
    def test_sides_that_make_no_sense_are_refused(self, side: Any, word: str, make: Make) -> None:
        for sides in ((side, make("memory")), (make("memory"), side)):
            with pytest.raises(InvalidInput, match=word):
                everstep.copy(*sides)

    def test_a_source_that_is_not_there_is_not_made(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="not there"):
            everstep.copy(f"sqlite:///{tmp_path}/typo.db", MemoryStore())
        assert list(tmp_path.iterdir()) == []

    def test_a_plain_backend_says_what_it_lacks(self) -> None:
        class Own(everstep.CheckpointBackend):
            put = get = get_latest = list_threads = list_checkpoints = delete_thread = delete_before = None  # type: ignore[assignment]

        for sides in ((Own(), MemoryStore()), (MemoryStore(), Own())):
            with pytest.raises(UnsupportedByBackend, match="Own"):
                everstep.copy(*sides)

    @pytest.mark.parametrize("kind", ["sqlite", "postgres"])
    def test_the_asynchronous_twin(self, kind: str, make: Make) -> None:
        source, target = make("sqlite"), make(kind)
        Walker(source, 3).walk(50)
        report = asyncio.run(everstep.copy_async(source, target))
        assert report == everstep.copy(source, make("memory"))
        assert seen(target.store) == seen(source.store)


class TestAgain:
    @pytest.mark.parametrize("kind", ["sqlite", "postgres"])
    def test_copying_twice_sends_nothing(self, kind: str, make: Make) -> None:
        source, target = make("sqlite"), Recording(make(kind).store)
        Walker(source, 8).walk(100)
        first = everstep.copy(source, target)
        target.parts.clear()

        second = everstep.copy(source, target)

        assert target.parts == []
        assert second == CopyReport(first.threads, 0, 0, 0, first.checkpoints, first.checkpoints)

    def test_only_what_is_new_is_sent(self, make: Make) -> None:
        source, target = make("sqlite"), make("memory")
        engine = CheckpointEngine(source).sync
        engine.append("t", [{"role": "user", "content": secrets.token_hex(9000)} for _ in range(9)], {})
        engine.append("u", [], {})
        everstep.copy(source, target)
        engine.append("t", [{"role": "user", "content": secrets.token_hex(9000)}], {})

        report = everstep.copy(source, target)

        assert (report.checkpoints, report.skipped, report.threads) == (1, 2, 2)
        assert report.bytes < 40_000
        assert seen(target.store) == seen(source.store)

    def test_what_the_source_deleted_goes_but_whole_threads_stay(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        ids = [engine.append("t", [], {"n": n}) for n in range(5)]
        engine.append("kept", [], {})
        everstep.copy(source, target)
        engine.rewind(ids[2], later="delete")
        source.sync.delete_thread("kept")

        everstep.copy(source, target)

        copied = CheckpointEngine(target).sync
        assert [point.step for point in copied.list_time_travel_points("t")] == [3, 2, 1]
        assert copied.get(ids[4]) is None
        assert copied.get_latest("kept") is not None

    @pytest.mark.parametrize("kind", ["sqlite", "postgres"])
    def test_a_checkpoint_that_was_deleted_and_put_again(self, kind: str, make: Make) -> None:
        source, target = make("sqlite"), make(kind)
        engine = CheckpointEngine(source).sync
        ids = [engine.append("t", [], {"n": n}) for n in range(3)]
        last = engine.get(ids[2])
        everstep.copy(source, target)
        assert last is not None
        run_to_end(source.store.blocking.delete("t", keys=[Key("t", "", ids[2])]))
        source.sync.put(last)
        engine.append("t", [], {})

        everstep.copy(source, target)

        assert seen(target.store) == seen(source.store)

    def test_a_thread_of_the_same_name_is_not_touched(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        for backend in (source, target):
            CheckpointEngine(backend).sync.append("t", [], {"n": 1})
        before = seen(target.store)
        with pytest.raises(InvalidInput, match="'t' exists in the target and is not a copy"):
            everstep.copy(source, target)
        assert seen(target.store) == before

    def test_a_copy_of_another_source_is_not_touched(self, make: Make) -> None:
        one, other, target = make("memory"), make("memory"), make("sqlite")
        for backend in (one, other):
            CheckpointEngine(backend).sync.append("t", [], {"n": 1})
        everstep.copy(one, target)
        before = seen(target.store)
        with pytest.raises(InvalidInput, match="'t' exists in the target and is not a copy"):
            everstep.copy(other, target)
        assert seen(target.store) == before

    def test_a_copy_of_a_twin_that_went_another_way_is_not_touched(self, make: Make, tmp_path: Path) -> None:
        source, target = tmp_path / "source.db", make("memory")
        with everstep.open(f"sqlite:///{source}").sync as engine:
            engine.append("t", [], {"n": 1})
        twin = source.with_name("twin.db")
        twin.write_bytes(source.read_bytes())
        for path in (source, twin):
            with everstep.open(f"sqlite:///{path}").sync as engine:
                engine.append("t", [], {"n": path.name})
        everstep.copy(f"sqlite:///{source}", target)
        before = seen(target.store)
        with pytest.raises(InvalidInput, match="'t' exists in the target and is not a copy"):
            everstep.copy(f"sqlite:///{twin}", target)
        assert seen(target.store) == before

    @pytest.mark.parametrize("kind", ["sqlite", "postgres"])
    def test_a_copy_of_which_the_source_has_kept_nothing_goes_on(self, kind: str, make: Make) -> None:
        source, target = make(kind), make(kind)
        engine = CheckpointEngine(source, everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=5)).sync
        for _ in range(3):
            for n in range(20):
                engine.append("t", [{"role": "user", "content": str(n)}], {"n": n})
            assert everstep.copy(source, target).checkpoints == 5
            assert seen(target.store) == seen(source.store)

    def test_a_thread_that_was_begun_anew_in_the_source_does_not_replace_the_old_one(self, make: Make) -> None:
        source, target = make("sqlite"), make("memory")
        engine = CheckpointEngine(source).sync
        engine.append("t", [], {"n": 1})
        everstep.copy(source, target)
        before = seen(target.store)
        source.sync.delete_thread("t")
        engine.append("t", [], {"n": 1})
        with pytest.raises(InvalidInput, match="'t' exists in the target and is not a copy"):
            everstep.copy(source, target)
        assert seen(target.store) == before

    def test_a_store_is_not_copied_to_itself(self, make: Make) -> None:
        source = make("sqlite")
        CheckpointEngine(source).sync.append("t", [], {"n": 1})
        with pytest.raises(InvalidInput, match="'t'"):
            everstep.copy(source, source)

    @pytest.mark.parametrize("change", ["append", "rewind", "undo", "pin", "write", "branch", "aside"])
    def test_what_was_done_to_the_copy_is_not_lost(self, change: str, make: Make) -> None:
        source, target = make("sqlite"), make("memory")
        engine, copied = CheckpointEngine(source).sync, CheckpointEngine(target).sync
        ids = [engine.append("t", [], {"n": n}) for n in range(4)]
        engine.rewind(ids[2])
        everstep.copy(source, target)
        values = run_to_end(source.store.blocking.read("t", "", ids[0]))
        assert values is not None
        aside = values.stored.record._replace(key=Key("t", "aside", "aside"))
        changes: dict[str, Callable[[], object]] = {
            "append": lambda: copied.append("t", [], {}),
            "rewind": lambda: copied.rewind(ids[1]),
            "undo": lambda: copied.undo("t"),
            "pin": lambda: copied.pin(ids[0]),
            "write": lambda: run_to_end(
                target.store.blocking.put_writes(Key("t", "", ids[0]), [Write("task", 0, "ch", b"", b"", 0)], [])
            ),
            "branch": lambda: copied.branch(ids[1], "b"),
            "aside": lambda: run_to_end(target.store.blocking.commit(put(aside, head="never"))),
        }
        changes[change]()
        engine.append("t", [], {})
        before = seen(target.store)

        with pytest.raises(InvalidInput, match="'t' was changed in the target"):
            everstep.copy(source, target)

        assert seen(target.store) == before


class TestInterrupted:
    @pytest.mark.parametrize(
        ("one", "other", "steps"),
        [*((*way, 150) for way in WAYS), ("sqlite", "postgres", 50), ("postgres", "sqlite", 50)],
    )
    def test_a_copy_that_broke_off_anywhere_is_finished_by_the_next(
        self, one: str, other: str, steps: int, make: Make
    ) -> None:
        source = make(one)
        Walker(source, 21, gc_policy="keep_last_n", gc_param=20).walk(steps)
        counted = Recording(make(other).store)
        everstep.copy(source, counted)
        assert len(counted.parts) >= 6
        expected = seen(source.store)

        for stop in range(len(counted.parts)):
            target = make(other)
            recording = Recording(target.store)
            recording.before = stopping_after(stop)
            with pytest.raises(Killed):
                everstep.copy(source, recording)
            everstep.copy(source, target)
            assert seen(target.store) == expected, stop

    def test_a_copy_that_broke_off_is_continued_not_begun_anew(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("everstep.transfer.families.PART_CHECKPOINTS", 10)
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        for n in range(60):
            engine.append("t", [{"role": "user", "content": secrets.token_hex(3000)}], {"n": n})
        recording = Recording(target.store)
        recording.before = stopping_after(5)
        with pytest.raises(Killed):
            everstep.copy(source, recording)
        sent = sum(len(part.objects) for part in recording.parts[:-1])
        assert target.sync.list_threads() == []

        report = everstep.copy(source, target)

        assert (report.skipped, report.checkpoints) == (40, 20)
        whole = everstep.copy(source, make("memory"))
        assert report.objects == whole.objects - sent

    def test_a_thread_that_is_begun_in_the_target_meanwhile(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        CheckpointEngine(source).sync.append("t", [], {"n": 1})
        recording = Recording(target.store)

        def intrude(part: Part) -> Part:
            if part.checkpoints:
                CheckpointEngine(target).sync.append("t", [], {"mine": 1})
            return part

        recording.before = intrude
        with pytest.raises(InvalidInput, match="'t' was changed in the target"):
            everstep.copy(source, recording)
        assert CheckpointEngine(target).sync.get_latest("t").state == {"mine": 1}  # type: ignore[union-attr]


class TestWhileTheSourceIsWritten:
    @pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
    def test_each_thread_is_as_it_was_at_some_moment(self, kind: str, make: Make) -> None:
        source, target = make(kind), make("postgres" if kind == "postgres" else "sqlite")
        engine = CheckpointEngine(source, everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=10)).sync
        moments = []

        def go_on(part: Part | None = None) -> Part | None:
            ids = [engine.append("t", [{"role": "user", "content": secrets.token_hex(2000)}], {}) for _ in range(7)]
            moments.append([point.checkpoint_id for point in engine.list_time_travel_points("t")])
            if len(moments) % 3 == 0:
                engine.rewind(ids[-2])
                moments.append([point.checkpoint_id for point in engine.list_time_travel_points("t")])
            return part

        go_on()
        recording = Recording(target.store)
        recording.before = go_on
        everstep.copy(source, recording)

        copied = CheckpointEngine(target).sync
        found = [point.checkpoint_id for point in copied.list_time_travel_points("t")]
        assert any(set(found) <= set(moment) and found[0] == moment[0] for moment in moments)
        for checkpoint_id in found:
            assert copied.get(checkpoint_id) == engine.get(checkpoint_id) or engine.get(checkpoint_id) is None
        everstep.copy(source, target)
        assert seen(target.store) == seen(source.store)

    def test_a_checkpoint_that_is_deleted_and_put_again_meanwhile(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        last = [engine.append("t", [], {"n": n}) for n in range(3)][-1]
        recording = Recording(target.store)

        def put_again(part: Part) -> Part:
            if part.reserve:
                found = engine.get(last)
                assert found is not None
                run_to_end(source.store.blocking.delete("t", keys=[Key("t", "", last)]))
                source.sync.put(found)
            return part

        recording.before = put_again
        everstep.copy(source, recording)
        assert seen(target.store) == seen(source.store)

    def test_what_comes_between_two_looks_at_the_source_belongs_to_a_later_moment(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        first = engine.append("t", [], {"n": 0})

        class Written(Recording):
            async def raw(self, thread_id: str, *, family_threads: bool = False) -> RawThread | None:
                found = await source.store.raw(thread_id, family_threads=family_threads)
                engine.append("t", [], {"n": 1})
                return found

            @property
            def blocking(self) -> Recording:
                return self

        everstep.copy(Written(source.store), target)
        assert [point.checkpoint_id for point in CheckpointEngine(target).sync.list_time_travel_points("t")] == [first]

    def test_a_thread_that_changes_places_while_pages_are_turned_is_copied(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The one that was active last comes first, on a page that has been read already."""
        monkeypatch.setattr(families, "_PAGE", 2)
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        for name in "abcd":
            engine.append(name, [], {"n": name})
        between = Between(source.store)
        between.after("list_threads", lambda: engine.append("a", [], {"again": True}))

        everstep.copy(between, target)

        assert between.is_over
        assert seen(target.store) == seen(source.store)

    def test_a_target_that_is_changed_meanwhile_keeps_the_change(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine, other = CheckpointEngine(source).sync, CheckpointEngine(target).sync
        engine.append("t", [], {"n": 1})
        everstep.copy(source, target)
        engine.append("t", [], {"n": 2})
        between = Between(target.store)
        between.after("adopt", lambda: other.append("t", [], {"own": 1}), lambda part: bool(part.checkpoints))

        with pytest.raises(InvalidInput, match="'t' was changed in the target"):
            everstep.copy(source, between)

        assert between.is_over
        found = other.get_latest("t")
        assert found is not None
        assert found.state == {"n": 1, "own": 1}

    def test_a_checkpoint_whose_objects_are_swept_meanwhile_is_left_out(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        ids = [engine.snapshot("t", [], {"text": [secrets.token_hex(500) for _ in range(20)]}, {}) for _ in range(3)]

        def sweep() -> None:
            deleted = run_to_end(source.store.blocking.delete("t", keys=[Key("t", "", ids[1])]))
            for family in deleted.families:
                run_to_end(source.store.blocking.sweep(family))

        between = Between(source.store)
        between.before("fetch", sweep)
        everstep.copy(between, target)

        assert between.is_over
        assert seen(target.store) == seen(source.store)
        assert [point.checkpoint_id for point in engine.list_time_travel_points("t")] == [ids[2], ids[0]]

    def test_a_thread_that_is_deleted_meanwhile_is_left_out(self, make: Make) -> None:
        source, target = make("memory"), make("sqlite")
        engine = CheckpointEngine(source).sync
        for name in ("a", "b"):
            engine.append(name, [], {})
        recording = Recording(target.store)

        def delete(part: Part) -> Part:
            for name in {"a", "b"} - {part.thread_id}:
                source.sync.delete_thread(name)
            return part

        recording.before = delete
        assert everstep.copy(source, recording).threads == 1


def lose_an_object_of_each_family(store: MemoryStore) -> None:
    """Let a store lose objects that are needed."""

    def lose(rows: ChangeRows) -> None:
        for thread in rows._every_thread():
            found, _ = rows.objects_after(family_name(thread.family), b"", 1)
            for address, _, _ in found:
                rows._delete(OBJECTS + number(thread.family) + address)

    run_to_end(store._write(lose))


class TestVerification:
    """A store that loses or changes something while it takes over is found out."""

    @pytest.fixture
    def source(self, make: Make) -> StoreBackend:
        source = make("memory")
        engine = CheckpointEngine(source).sync
        for n in range(4):
            engine.append("t", [{"role": "user", "content": secrets.token_hex(3000)} for _ in range(4)], {"n": n})
        ids = [point.checkpoint_id for point in engine.list_time_travel_points("t")]
        branch = engine.branch(ids[1], "b")
        engine.append(branch, [], {"b": 1})
        engine.merge_branch(branch, "t")
        engine.pin(ids[0])
        store = source.store.blocking
        run_to_end(store.put_writes(Key("t", "", ids[1]), [Write("task", 0, "ch", b"", b"", 0)], []))
        engine.rewind(ids[1])
        return source

    FAULTS: dict[str, Callable[[Part], Part]] = {
        "an object": lambda part: part._replace(objects=part.objects[1:]),
        "a checkpoint": lambda part: part._replace(checkpoints=[s for n, s in enumerate(part.checkpoints) if n != 1]),
        "tags": lambda part: part._replace(
            checkpoints=[s._replace(record=s.record._replace(tags=("other",))) for s in part.checkpoints]
        ),
        "parents": lambda part: part._replace(
            checkpoints=[s._replace(record=s.record._replace(parents=())) for s in part.checkpoints]
        ),
        "a step": lambda part: part._replace(
            checkpoints=[s._replace(record=s.record._replace(step=s.record.step + 1)) for s in part.checkpoints]
        ),
        "the order": lambda part: part._replace(
            checkpoints=[s._replace(seq=s.seq + 500 * (n == 0)) for n, s in enumerate(part.checkpoints)]
        ),
        "a run": lambda part: part._replace(checkpoints=[s._replace(segment=s.seq) for s in part.checkpoints]),
        "ancestry": lambda part: part._replace(segments=dict.fromkeys(part.segments, ())),
        "a pin": lambda part: part._replace(threads=[raw._replace(pinned=frozenset()) for raw in part.threads]),
        "a head": lambda part: part._replace(
            threads=[
                raw._replace(lines={name: line._replace(head=None) for name, line in raw.lines.items()})
                for raw in part.threads
            ]
        ),
        "what is turned": lambda part: part._replace(
            threads=[
                raw._replace(
                    lines={
                        name: line._replace(head_was_moved=not line.head_was_moved) for name, line in raw.lines.items()
                    }
                )
                for raw in part.threads
            ]
        ),
        "the log": lambda part: part._replace(
            threads=[raw._replace(operations=raw.operations[1:]) for raw in part.threads]
        ),
        "what is undone": lambda part: part._replace(
            threads=[raw._replace(operations=[o._replace(undone=True) for o in raw.operations]) for raw in part.threads]
        ),
        "what is hidden": lambda part: part._replace(threads=[raw._replace(hidden=()) for raw in part.threads]),
        "writes": lambda part: part._replace(threads=[raw._replace(writes=()) for raw in part.threads]),
        "common states": lambda part: part._replace(
            threads=[raw._replace(shared_states=dict.fromkeys(raw.shared_states, ())) for raw in part.threads]
        ),
        "a beginning": lambda part: part._replace(threads=[raw._replace(began=0) for raw in part.threads]),
        "an origin": lambda part: part._replace(threads=[raw._replace(origin=None) for raw in part.threads]),
    }

    @pytest.mark.parametrize("fault", sorted(FAULTS))
    @pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
    def test_what_is_lost_is_found(self, fault: str, kind: str, source: StoreBackend, make: Make) -> None:
        target = Recording(make(kind).store)
        target.before = self.FAULTS[fault]
        with pytest.raises(CheckpointCorrupted) as caught:
            everstep.copy(source, target)
        assert caught.value.thread_id is not None

    def test_without_faults_nothing_is_found(self, source: StoreBackend, make: Make) -> None:
        target = Recording(make("sqlite").store)
        assert everstep.copy(source, target).verified > 0
        assert all(any(change(part) != part for part in target.parts) for change in self.FAULTS.values())

    def test_the_checkpoint_that_lacks_something_is_named(self, source: StoreBackend, make: Make) -> None:
        target = Recording(make("sqlite").store)
        target.before = self.FAULTS["an object"]
        with pytest.raises(CheckpointCorrupted, match="missing in the copy") as caught:
            everstep.copy(source, target)
        assert caught.value.checkpoint_id is not None
        lost = next(part for part in target.parts if part.objects).objects[0]
        loaded = run_to_end(
            source.store.blocking.read(caught.value.thread_id or "", "", caught.value.checkpoint_id, objects=True)
        )
        assert loaded is not None
        assert lost in loaded.objects

    def test_what_is_lost_later_is_found_by_the_next_copy(self, source: StoreBackend, make: Make) -> None:
        target = MemoryStore()
        everstep.copy(source, target)
        lose_an_object_of_each_family(target)
        with pytest.raises(CheckpointCorrupted, match="missing in the copy"):
            everstep.copy(source, target)
        everstep.copy(source, target, verify=False)  # nobody asked

    def test_a_source_that_lacks_something_is_not_copied(self, source: StoreBackend, make: Make) -> None:
        store = source.store
        assert isinstance(store, MemoryStore)
        lose_an_object_of_each_family(store)
        target = make("sqlite")
        with pytest.raises(CheckpointCorrupted, match="missing in the source"):
            everstep.copy(source, target)
        assert target.sync.list_threads() == []
