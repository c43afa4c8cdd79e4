"""What another process does between two calls of this one: each at a moment that is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

import everstep
from everstep.config import CheckpointGC
from everstep.repository.cache import ObjectCache
from everstep.retention import keeper
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Change, Draft, Key, Query, Store, Swept
from everstep.stores.sweeping import Sweep, Sweeps
from tests.conftest import OneFace, Place
from tests.timeline.short_histories import forked, latest, make_backend, numbers, say, state, texts, write
from tests.tools.between import Between


@pytest.fixture
def between(store: Store) -> Between:
    return Between(store)


@pytest.fixture
def make_here(between: Between, face: str) -> Callable[..., Any]:
    """An engine in whose way things happen."""

    def make(**config: Any) -> Any:
        backend: Any = everstep.StoreBackend(between)
        return OneFace(everstep.CheckpointEngine(backend, everstep.SnapshotConfig(**config)), face)

    return make


@pytest.fixture
def here(make_here: Callable[..., Any]) -> Any:
    return make_here()


@pytest.fixture
def there(store: Store) -> Any:
    """What another process does, blocking."""
    return everstep.CheckpointEngine(everstep.StoreBackend(store), everstep.SnapshotConfig(gc_policy="keep_all")).sync


def is_merge(change: Change, *_: Any, **__: Any) -> bool:
    return change.log is not None and change.log.kind == "merge"


class TestMerging:
    async def test_what_is_appended_meanwhile_is_in_the_merge(self, here: Any, there: Any, between: Between) -> None:
        branch = await forked(here)
        await here.append(branch, [say("theirs")], {"b": 1})
        await here.append("t", [say("ours")], {"a": 1})
        between.before("commit", lambda: there.append("t", [say("meanwhile")], {"m": 1}), is_merge)

        await here.merge_branch(branch, "t")

        assert between.is_over
        assert await texts(here) == ["base", "ours", "meanwhile", "theirs"]
        assert await state(here) == {"k": 0, "a": 1, "b": 1, "m": 1}

    async def test_a_head_that_is_deleted_before_its_objects_are_read_is_not_in_the_merge(
        self, here: Any, there: Any, between: Between, store: Store
    ) -> None:
        first = there.append("t", [say("base")], {"k": 0})
        branch = there.branch(first, "idea")
        there.append(branch, [say("theirs")], {"b": 1})
        last = there.append(branch, large("deleted"), {"b": 2})
        there.append("t", [say("ours")], {"a": 1})
        between.after("thread", lambda: delete(store, branch, last))

        await here.merge_branch(branch, "t")

        assert between.is_over
        assert (await texts(here), await state(here)) == (["base", "ours", "theirs"], {"k": 0, "a": 1, "b": 1})

    async def test_a_base_that_was_deleted_and_put_again_is_what_it_was(
        self, here: Any, there: Any, store: Store
    ) -> None:
        """Its name stands for other values by now: what both threads had in common is kept with them."""
        branch = await forked(here, k=0)
        (first,) = [point.checkpoint_id for point in await here.list_time_travel_points("t")]
        await here.append(branch, [], {"k": 5})
        await here.append("t", [], {"a": 1})
        there.append("other", [say("base")], {"k": 5})
        other = await store.read("other", objects=True)
        assert other is not None
        delete(store, "t", first)
        record = other.stored.record._replace(key=Key("t", "", first))
        await store.commit(Change("t", build=lambda _: Draft(record, other.objects), head="never"))

        await here.merge_branch(branch, "t")

        assert await state(here) == {"k": 5, "a": 1}

    async def test_what_is_deleted_meanwhile_is_not(
        self, here: Any, there: Any, between: Between, store: Store
    ) -> None:
        branch = await forked(here)
        await here.append(branch, [say("theirs")], {"b": 1})
        last = await here.append(branch, [say("deleted")], {"b": 2})
        await here.append("t", [say("ours")], {"a": 1})
        doomed = Key(branch, "", last)
        between.before("commit", lambda: run_to_end(store.blocking.delete(branch, keys=[doomed])), is_merge)

        merged = await here.merge_branch(branch, "t")

        assert between.is_over
        assert await texts(here) == ["base", "ours", "theirs"]
        assert await state(here) == {"k": 0, "a": 1, "b": 1}
        parents = (await here.get(merged)).metadata.parents
        assert parents[1] == await latest(here, branch)


def large(text: str) -> list[dict[str, Any]]:
    """Return messages that are stored apart from the record."""
    return [say(f"{text} {n} " * 40) for n in range(40)]


def delete(store: Store, thread: str, *names: str) -> None:
    """Delete checkpoints, and sweep what only they needed."""
    blocking = store.blocking
    deleted = run_to_end(blocking.delete(thread, keys=[Key(thread, "", name) for name in names] or None))
    for family in deleted.families:
        run_to_end(blocking.sweep(family))


def replace(store: Store, checkpoint: Any, **state: Any) -> None:
    """Put other values under the name of a checkpoint."""
    backend = everstep.StoreBackend(store)
    backend.sync.put(dataclasses.replace(checkpoint, state=state))


class TestReading:
    async def test_what_is_deleted_between_its_record_and_its_objects_is_not_there(
        self, here: Any, there: Any, between: Between, store: Store
    ) -> None:
        await here.append("t", large("first"), {})
        last = there.append("t", large("second"), {})
        between.after("read", lambda: delete(store, "t", last))
        assert await here.get(last, thread_id="t") is None
        assert between.is_over

    async def test_a_head_that_is_deleted_before_its_objects_are_read_is_the_one_before_it(
        self, here: Any, there: Any, between: Between, store: Store
    ) -> None:
        await here.append("t", large("first"), {"n": 1})
        last = there.append("t", large("second"), {"n": 2})
        between.after("read", lambda: delete(store, "t", last))
        found = await here.get_latest("t")
        assert between.is_over
        assert (found.messages, found.state) == (large("first"), {"n": 1})
        there.append("t", large("third"), {})
        between.after("read", lambda: delete(store, "t"))
        assert await here.get_latest("t") is None
        assert between.is_over

    async def test_what_is_deleted_while_it_is_compared_is_not_found(
        self, here: Any, there: Any, between: Between, store: Store
    ) -> None:
        first = there.append("t", large("first"), {})
        second = there.snapshot("t", large("second"), {}, {})
        between.before("fetch", lambda: delete(store, "t", first))
        with pytest.raises(everstep.CheckpointNotFound):
            await here.diff(first, second, thread_id="t")
        assert between.is_over


class TestSaving:
    async def test_what_is_appended_to_a_head_that_was_replaced_stands_on_what_is_there(
        self, here: Any, there: Any, between: Between, store: Store
    ) -> None:
        await here.append("t", [say("first")], {"n": 1})
        found = there.get_latest("t")
        between.before("commit", lambda: replace(store, found, other=1))
        await here.append("t", [say("second")], {"m": 2})
        assert between.is_over
        assert (await state(here), await texts(here)) == ({"other": 1, "m": 2}, ["first", "second"])

    async def test_what_the_caller_changes_while_it_is_saved_belongs_to_a_later_step(
        self, here: Any, between: Between, store: Store
    ) -> None:
        messages, values = large("first"), {"text": "x" * 5000}
        last = await here.snapshot("t", messages, values, {})

        def change() -> None:
            delete(store, "t", last)  # so that everything must be sent again
            messages.append(say("late"))
            values["late"] = "yes"

        between.before("commit", change)
        made = await here.snapshot("t", messages, values, {})
        assert between.is_over
        saved = await here.get(made)
        assert (saved.messages, saved.state) == (large("first"), {"text": "x" * 5000})

    async def test_what_the_caller_changes_while_the_head_is_read_belongs_to_a_later_step(
        self, here: Any, there: Any, between: Between
    ) -> None:
        there.append("t", [say("first")], {})
        messages, values, result = [say("second")], {"n": 1}, {"r": 1}

        def change() -> None:
            messages[0]["content"] = "late"
            values["late"] = 1
            result["late"] = 1

        between.before("read", change)
        await here.append("t", messages, values, result)
        assert between.is_over
        found = await here.get_latest("t")
        assert [message["content"] for message in found.messages] == ["first", "second"]
        assert (found.state, found.tools_result) == ({"n": 1}, {"r": 1})

    async def test_after_a_thread_was_deleted_and_begun_again_a_step_is_one_call(
        self, make_here: Any, between: Between, store: Store
    ) -> None:
        engine = make_here(gc_policy="keep_all")
        await write(engine, 3)
        delete(store, "t")
        await write(engine, 2)
        between.calls.clear()
        await write(engine, 1)
        assert between.calls == ["commit"]

    async def test_after_an_older_step_was_put_again_the_next_one_is_one_call(
        self, make_here: Any, between: Between
    ) -> None:
        engine = make_here(gc_policy="keep_all")
        ids = await write(engine, 3)
        old = await engine.get(ids[0])
        await make_backend(engine).put(old)
        between.calls.clear()
        await write(engine, 1)
        assert between.calls == ["commit"]

    async def test_after_a_rewind_the_next_step_is_tried_once(self, make_here: Any, between: Between) -> None:
        engine = make_here(gc_policy="keep_all")
        ids = await write(engine, 3)
        await engine.rewind(ids[0])
        between.calls.clear()
        await write(engine, 1)
        assert between.calls.count("commit") == 1

    async def test_a_branch_begins_with_what_its_origin_is_by_now(
        self, here: Any, there: Any, between: Between, store: Store
    ) -> None:
        ids = await write(here, 2)
        found = there.get(ids[0])
        between.before("commit", lambda: replace(store, found, other=1))
        branch = await here.branch(ids[0], "idea")
        assert between.is_over
        assert await state(here, branch) == {"other": 1}

    async def test_a_branch_of_what_is_deleted_meanwhile_is_not_made(
        self, here: Any, between: Between, store: Store
    ) -> None:
        ids = await write(here, 2)
        between.before("commit", lambda: delete(store, "t", ids[0]))
        with pytest.raises(everstep.CheckpointNotFound):
            await here.branch(ids[0], "idea")
        assert between.is_over


class TestGoingBack:
    async def test_what_is_appended_before_a_rewind_is_left_behind_too(
        self, here: Any, there: Any, between: Between
    ) -> None:
        ids = await write(here, 3)
        between.before("commit", lambda: there.append("t", [], {"n": 4}), lambda change: change.log is not None)

        result = await here.rewind(ids[0])

        assert between.is_over
        assert (result.rewind_depth, result.snapshot_count_before) == (3, 4)
        assert await numbers(here) == [1]
        await here.undo("t")
        assert await numbers(here) == [4, 3, 2, 1]

    async def test_what_is_appended_before_an_undo_is_hidden_by_it_and_comes_back(
        self, here: Any, there: Any, between: Between
    ) -> None:
        ids = await write(here, 3)
        await here.rewind(ids[0])
        between.before("commit", lambda: there.append("t", [], {"n": 4}), lambda change: bool(change.amend))

        await here.undo("t")

        assert between.is_over
        assert await numbers(here) == [3, 2, 1]
        await here.redo("t")
        assert await numbers(here) == [4, 1]

    async def test_two_that_undo_at_once_take_back_one_operation_each(
        self, here: Any, there: Any, between: Between
    ) -> None:
        ids = await write(here, 4)
        await here.rewind(ids[2])
        await here.rewind(ids[1])
        between.before("commit", lambda: there.undo("t"), lambda change: bool(change.amend))

        await here.undo("t")

        assert between.is_over
        assert [operation.undone for operation in await here.operations("t")] == [True, True]
        assert await numbers(here) == [4, 3, 2, 1]

    async def test_two_that_undo_a_pin_at_once_take_back_one_operation_each(
        self, here: Any, there: Any, between: Between
    ) -> None:
        """No head moves with a pin: it is the log that says that somebody was first."""
        ids = await write(here, 2)
        await here.pin(ids[0])
        await here.pin(ids[1])
        between.before("commit", lambda: there.undo("t"), lambda change: bool(change.amend))

        await here.undo("t")

        assert between.is_over
        assert [operation.undone for operation in await here.operations("t")] == [True, True]
        assert [(await here.get(name)).metadata.pinned for name in ids] == [False, False]

    async def test_a_branch_whose_name_is_another_threads_by_now_is_not_taken_back(
        self, here: Any, there: Any, store: Store
    ) -> None:
        ids = await write(here, 1)
        branch = await here.branch(ids[0], "idea")
        delete(store, branch)
        there.append(branch, [], {"n": 7})
        with pytest.raises(everstep.CannotUndo, match="deleted"):
            await here.undo("t")
        assert await numbers(here, branch) == [7]

    async def test_what_was_undone_is_done_again_though_retention_took_what_it_stood_on(self, make_here: Any) -> None:
        engine = make_here(gc_param=3)
        ids = await write(engine, 3)
        await engine.rewind(ids[1], later="keep")
        newer = await write(engine, 6, start=4)
        await engine.rewind(newer[-2], later="keep")
        await engine.undo("t")
        await engine.collect()
        assert [operation.undone for operation in await engine.operations("t")] == [True]

        assert (await engine.redo("t")).details["checkpoint_id"] == newer[-2]

        assert (await engine.get_latest("t")).state == {"n": 8}

    async def test_what_was_undone_is_done_again_though_what_it_stood_on_left_the_log(
        self, here: Any, there: Any, between: Between
    ) -> None:
        """A rewind that deletes takes its own entry out of the log, a moment after it has put it there."""
        ids = await write(here, 3)
        await here.pin(ids[1])

        def pin_and_undo() -> None:
            there.pin(ids[0])
            there.undo("t")

        between.before("delete", pin_and_undo)
        await here.rewind(ids[1], later="delete")
        assert between.is_over
        assert [(found.kind, found.undone) for found in await here.operations("t")] == [("pin", True), ("pin", False)]

        assert (await here.redo("t")).details["checkpoint_id"] == ids[0]


class TestRetention:
    async def test_what_was_planned_before_a_collection_is_planned_anew(self, make_here: Any, there: Any) -> None:
        engine = make_here(gc_param=3)
        await write(engine, 3)
        for n in range(4, 9):
            there.append("t", [], {"n": n})
        await engine.collect()
        assert await numbers(engine) == [8, 7, 6]
        await write(engine, 1, start=9)
        assert await numbers(engine) == [9, 8, 7]

    async def test_what_was_planned_before_somebody_moved_the_head_is_planned_anew(
        self, make_here: Any, there: Any, store: Store
    ) -> None:
        engine = make_here(gc_param=3)
        ids = await write(engine, 3)
        there.rewind(ids[0])
        await write(engine, 2, start=4)
        assert await numbers(engine) == [5, 4, 1]
        await write(engine, 1, start=6)
        assert await numbers(engine) == [6, 5, 4]
        hidden = await store.list_checkpoints(Query(thread_id="t", hidden="only"))
        assert [stored.record.key.checkpoint_id for stored in hidden] == [ids[2], ids[1]]

    async def test_what_was_planned_before_a_pin_is_planned_anew(self, make_here: Any) -> None:
        engine = make_here(gc_param=3)
        ids = await write(engine, 3)
        await engine.pin(ids[1])
        await write(engine, 1, start=4)
        assert await numbers(engine) == [4, 3, 2, 1]

    async def test_a_beginning_that_was_about_to_go_counts_on_top_of_n(self, make_here: Any) -> None:
        engine = make_here(gc_param=3)
        ids = await write(engine, 3)
        await engine.branch(ids[1], "idea")
        await write(engine, 1, start=4)
        assert await numbers(engine) == [4, 3, 2, 1]
        await write(engine, 1, start=5)
        assert await numbers(engine) == [5, 4, 3, 2]

    async def test_a_pin_between_the_look_and_the_deletion_holds(
        self, make_here: Any, there: Any, between: Between
    ) -> None:
        ids = await write(make_here(gc_policy="keep_all"), 6)
        between.before("delete", lambda: there.pin(ids[1]))

        await write(make_here(gc_param=3), 1, start=7)

        assert between.is_over
        assert await numbers(make_here(gc_policy="keep_all")) == [7, 6, 5, 2]

    async def test_the_log_is_trimmed_while_work_goes_on(self, make_here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeper, "_PLAN_COMMITS_MIN", 1)  # the store is looked at with every snapshot
        engine = make_here(gc_param=2)
        ids = await write(engine, 2)
        await engine.rewind(ids[0], later="keep")
        await write(engine, keeper._LOOKS_PER_TRIM, start=3)
        newer = await write(engine, 2, start=30)
        await engine.rewind(newer[0])
        await write(engine, keeper._LOOKS_PER_TRIM - 4, start=40)
        assert [operation.details["checkpoint_id"] for operation in await engine.operations("t")] == [newer[0]]


def test_a_collection_takes_in_every_thread_however_many_there_are() -> None:
    store = MemoryStore()
    keeping, engine = (
        everstep.CheckpointEngine(everstep.StoreBackend(store), everstep.SnapshotConfig(**options)).sync
        for options in ({"gc_policy": CheckpointGC.KEEP_ALL}, {"gc_param": 1})
    )
    for n in range(1003):
        for _ in range(2):
            keeping.append(f"t{n}", [], {})
    report = engine.collect()
    assert (report.threads, report.checkpoints) == (1003, 1003)
    assert run_to_end(store.blocking.count(Query(thread_id=None, namespace=None))) == 1003


def test_what_is_remembered_of_objects_is_bounded() -> None:
    memory, body = ObjectCache(bytes_max=20_000), bytes(880)
    for n in range(100):
        memory.add({n.to_bytes(32): (b"", body)})
        memory.add({n.to_bytes(32): (b"", body)})  # what is there already does not count twice
        assert len(memory.contents) <= 20
    assert len(memory.contents) >= 15
    assert memory.content((99).to_bytes(32)) is not None


class TestSweeping:
    def test_what_is_swept_is_not_swept_with_every_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeper, "_PLAN_COMMITS_MIN", 1)  # the store is looked at with every snapshot
        between = Between(MemoryStore())
        backend: Any = everstep.StoreBackend(between)
        engine = everstep.CheckpointEngine(backend, everstep.SnapshotConfig(gc_param=2)).sync
        for n in range(10):
            engine.snapshot("t", [], {"text": [f"{n} {m} " * 50 for m in range(50)]}, {})
        for _ in range(3):
            engine.append("t", [], {})
        assert "sweep" in between.calls
        between.calls.clear()
        for _ in range(20):
            engine.append("t", [], {})
        assert between.calls.count("sweep") <= 10  # what is let go with each step is garbage too

    def test_a_family_is_swept_only_if_the_last_sweep_that_began_has_ended(self, place: Place) -> None:
        """One that began before something was deleted does not speak for one that began later and came to no end."""
        first, second = place.open(), place.open()
        engine = everstep.CheckpointEngine(everstep.StoreBackend(first), everstep.SnapshotConfig()).sync
        for n in range(3):
            engine.snapshot("t", [], {"text": [f"{n} {m} " * 50 for m in range(50)]}, {})
        stored = run_to_end(first.blocking.list_checkpoints(Query(thread_id="t")))
        run_to_end(first.blocking.sweep(stored[0].family, effort=1))
        run_to_end(second.blocking.delete("t", keys=[stored[1].record.key]))
        run_to_end(second.blocking.sweep(stored[0].family, effort=1))
        assert run_to_end(first.blocking.sweep(stored[0].family, effort=1 << 20)).finished
        looks = [run_to_end(first.blocking.outlines())[0][0].is_swept]
        looks.append(run_to_end(second.blocking.sweep(stored[0].family)).finished)
        looks.append(run_to_end(first.blocking.outlines())[0][0].is_swept)
        is_done_at_once = isinstance(first, MemoryStore)
        assert looks == [is_done_at_once, True, True]
        for store in {first, second}:
            run_to_end(store.blocking.close())

    async def test_a_sweep_that_another_overtook_is_void(self) -> None:
        """What it has met so far may be old: it begins anew, and reports nothing as removed that it did not remove."""

        class Rows:
            overtaken = True

            def sweep_begin(self, _family: str, _ticket: int) -> None:
                pass

            def sweep_start(self, _family: str, _without: Any) -> tuple[int, int, int, list[bytes]]:
                return 1, 10, 5, [b"kept"]

            def links(self, _family: str, wanted: Any) -> list[tuple[bytes, bytes, int]]:
                return [(key, b"", 7) for key in wanted]

            def objects_after(self, *_: Any) -> tuple[list[tuple[bytes, int, int]], bytes | None]:
                return [(b"kept", 1, 7), (b"gone", 1, 3), (b"sent again", 6, 3)], None

            def remove_objects(self, _family: str, doomed: Any, _expected: int) -> int | None:
                assert doomed == [(b"gone", 1)]
                if self.overtaken:
                    self.overtaken = False
                    return None
                return 2

            def sweep_end(self, _family: str, live_bytes: int, _doomed: int, _ticket: int) -> None:
                assert not self.overtaken
                ended.append(live_bytes)

        class Driver:
            async def read(self, work: Callable[[Any], Any]) -> Any:
                return work(rows)

            async def write(self, work: Callable[[Any], Any], _thread_id: str) -> Any:
                return work(rows)

        ended: list[int] = []
        rows = Rows()
        assert not await Sweep("f").go_on(Driver(), None)
        assert ended == []
        rows.overtaken = True
        swept, _ = await Sweeps().run(Driver(), "f", None, None)
        assert (swept, ended) == (Swept(1, 3), [7])
