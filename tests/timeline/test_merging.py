"""Diff and merge under the engine: bases, conflicts, what survives retention, criss-cross."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import everstep
from everstep import MISSING, CheckpointNotFound, Conflict, InvalidInput, MergeConflict
from everstep.stores.protocol import Key, Store
from tests.timeline.short_histories import forked, head, latest, say, state, texts, write

only_async = pytest.mark.parametrize("face", ["async"], indirect=True)


class TestMerge:
    async def test_both_sides_are_in_the_result(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [say("theirs")], {"b": 1}, {"tool": "b"})
        await engine.append("t", [say("ours")], {"a": 1}, next_node="go on")
        ours, theirs = await latest(engine), await latest(engine, branch)
        merged = await engine.get(await engine.merge_branch(branch, "t"))
        assert merged.metadata.checkpoint_id == await latest(engine)
        assert [m["content"] for m in merged.messages] == ["base", "ours", "theirs"]
        assert (merged.state, merged.tools_result) == ({"k": 0, "a": 1, "b": 1}, {"tool": "b"})
        assert merged.metadata.parents == [ours, theirs]
        assert (merged.metadata.step, merged.metadata.tags, merged.next_node) == (3, ["merge"], "go on")
        assert branch in merged.metadata.summary
        assert await state(engine, branch) == {"k": 0, "b": 1}

    async def test_a_target_that_has_not_moved_becomes_the_branch(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [say("theirs")], {"k": 5}, {"x": 1}, next_node="theirs")
        await engine.merge_branch(branch, "t")
        ours, theirs = await engine.get_latest("t"), await engine.get_latest(branch)
        assert (ours.messages, ours.state, ours.tools_result) == (theirs.messages, theirs.state, theirs.tools_result)
        assert ours.next_node == "theirs"

    async def test_merging_nothing_changes_nothing(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append("t", [say("ours")], {"k": 1})
        before = await engine.get_latest("t")
        await engine.merge_branch(branch, "t")
        after = await engine.get_latest("t")
        assert (after.messages, after.state) == (before.messages, before.state)
        again = await engine.merge_branch(branch, "t")
        assert again == after.metadata.checkpoint_id == await latest(engine)

    async def test_what_was_merged_is_the_base_of_the_next_merge(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [say("b1")], {"k": 1})
        await engine.append("t", [say("t1")], {"a": 1})
        await engine.merge_branch(branch, "t")
        await engine.append(branch, [say("b2")], {"k": 0})  # back to what it was at first
        await engine.append("t", [say("t2")], {"a": 2})
        await engine.merge_branch(branch, "t")
        assert await state(engine) == {"k": 0, "a": 2}
        assert await texts(engine) == ["base", "t1", "b1", "t2", "b2"]

    async def test_a_message_is_resolved_to_a_mapping_only(self, engine: Any) -> None:
        branch = await forked(engine)
        for thread_id in ("t", branch):
            await engine.append(thread_id, [{"role": "ai", "content": thread_id, "id": "m"}])
        for wrong in ("text", None, 5, ["m"]):
            with pytest.raises(InvalidInput, match=r"messages\[.*\] must be resolved to a dict"):
                await engine.merge_branch(branch, "t", resolve=lambda _, wrong=wrong: wrong)
        await engine.merge_branch(branch, "t", resolve=lambda _: {"role": "ai", "content": "both", "id": "m"})
        assert await texts(engine) == ["base", "both"]

    async def test_the_other_way_round(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append("t", [say("t1")], {"a": 1})
        await engine.append(branch, [say("b1")], {"b": 1})
        await engine.merge_branch("t", branch)
        assert await state(engine, branch) == {"k": 0, "b": 1, "a": 1}
        await engine.append("t", [], {"a": 2})
        await engine.append(branch, [], {"b": 2})
        await engine.merge_branch(branch, "t")
        assert await state(engine) == {"k": 0, "a": 2, "b": 2}
        assert await texts(engine) == ["base", "b1", "t1"]  # as the branch has them: here they were left alone

    async def test_siblings_and_grandchildren(self, engine: Any) -> None:
        one = await forked(engine)
        two = await engine.branch((await engine.list_time_travel_points("t"))[-1].checkpoint_id, "other")
        await engine.append(one, [], {"one": 1})
        await engine.append(two, [], {"two": 1})
        deep = await engine.branch(await latest(engine, two), "deep")
        await engine.append(deep, [], {"deep": 1})
        await engine.merge_branch(deep, one)
        assert await state(engine, one) == {"k": 0, "one": 1, "two": 1, "deep": 1}
        await engine.append(two, [], {"two": 2})
        await engine.merge_branch(two, one)
        assert (await state(engine, one))["two"] == 2
        await engine.merge_branch(one, "t")
        assert await state(engine) == {"k": 0, "one": 1, "two": 2, "deep": 1}

    async def test_after_a_rewind_past_a_merge_the_older_base_counts(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [], {"b": 1})
        before = await engine.append("t", [], {"a": 1})
        await engine.merge_branch(branch, "t")
        await engine.rewind(before)
        await engine.append("t", [], {"a": 2})
        await engine.merge_branch(branch, "t")
        assert await state(engine) == {"k": 0, "a": 2, "b": 1}

    async def test_a_criss_cross_merge_is_right(self, engine: Any) -> None:
        branch = await forked(engine, k=0, j=0)
        t1 = await engine.append("t", [say("t1")], {"k": 1})
        b1 = await engine.append(branch, [say("b1")], {"j": 1})
        await engine.merge_branch(branch, "t")
        t2 = await latest(engine)
        await engine.rewind(t1, later="keep")
        await engine.merge_branch("t", branch)
        await engine.rewind(t2, later="keep")
        assert await state(engine) == await state(engine, branch) == {"k": 1, "j": 1}
        await engine.append("t", [say("t3")], {"k": 2})
        await engine.append(branch, [say("b3")], {"j": 2})
        await engine.merge_branch(branch, "t")
        assert await state(engine) == {"k": 2, "j": 2}
        assert (await engine.get(b1)).state == {"k": 0, "j": 1}
        assert sorted(await texts(engine)) == ["b1", "b3", "base", "t1", "t3"]

    async def test_a_criss_cross_whose_bases_conflict_is_a_conflict(self, engine: Any) -> None:
        branch = await forked(engine, k=0)
        t1 = await engine.append("t", [], {"k": "t"})
        await engine.append(branch, [], {"k": "b"})
        await engine.merge_branch(branch, "t", resolve={"state.k": "left"})
        t2 = await latest(engine)
        await engine.rewind(t1, later="keep")
        await engine.merge_branch("t", branch, resolve={"state.k": "right"})
        await engine.rewind(t2, later="keep")
        with pytest.raises(MergeConflict) as caught:
            await engine.merge_branch(branch, "t")
        assert [(c.path, c.ours, c.theirs) for c in caught.value.conflicts] == [("state.k", "left", "right")]

    async def test_whole_snapshots_merge_too(self, make_engine: Any, store: Store) -> None:
        whole, split = make_engine(delta_snapshots=False), make_engine()
        first = await whole.append("t", [say("base")], {"k": 0})
        branch = await whole.branch(first, "idea")
        await whole.append(branch, [say("b")], {"b": 1})
        await split.append("t", [say("t")], {"a": 1})
        await whole.merge_branch(branch, "t")
        assert await state(whole) == {"k": 0, "a": 1, "b": 1}
        assert await texts(whole) == ["base", "t", "b"]
        loaded = await store.read("t")
        assert loaded is not None
        assert len(loaded.stored.record.sizes) == 1  # one unsplit object

    async def test_large_values_are_merged_by_an_engine_that_has_seen_nothing(self, make_engine: Any) -> None:
        messages = [say(f"word {n} " * 200) for n in range(200)]
        deep = {f"k{n}": {"text": "v" * 300, "list": ["x" * 90] * 20} for n in range(50)}
        engine = make_engine()
        first = await engine.snapshot("t", messages, {"deep": deep}, {})
        branch = await engine.branch(first, "idea")
        for thread, place in ((branch, 5), ("t", 150)):
            changed = [*messages[:place], say(thread), *messages[place + 1 :]]
            await engine.snapshot(thread, changed, {"deep": deep | {f"k{place % 50}": {"text": thread}, thread: 1}}, {})
        await make_engine().diff(first, await latest(engine, branch))
        await make_engine().merge_branch(branch, "t")
        merged = await make_engine().get_latest("t")
        assert (merged.messages[5], merged.messages[150]) == (say(branch), say("t"))
        assert len(merged.messages) == 200
        assert merged.state["deep"] == deep | {"k5": {"text": branch}, "k0": {"text": "t"}, branch: 1, "t": 1}

    @only_async
    async def test_a_writer_that_comes_between_is_not_lost(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [], {"b": 1})
        done = await asyncio.gather(
            engine.merge_branch(branch, "t"), *(engine.append("t", [], {f"a{n}": n}) for n in range(10))
        )
        assert done[0]
        assert await state(engine) == {"k": 0, "b": 1} | {f"a{n}": n for n in range(10)}


class TestConflicts:
    async def test_nothing_is_written(self, engine: Any) -> None:
        branch = await forked(engine, k=0, gone=1, plan={"due": "mon", "who": "me"})
        await engine.append(branch, [], {"k": 1, "plan": {"due": "tue", "who": "me"}, "new": [1]})
        await engine.snapshot("t", [say("base")], {"k": 2, "plan": {"due": "wed", "who": "you"}, "new": [2]}, {})
        before = await engine.get_latest("t")
        with pytest.raises(MergeConflict) as caught:
            await engine.merge_branch(branch, "t")
        assert caught.value.conflicts == [
            Conflict("state.k", 0, 2, 1),
            Conflict("state.plan.due", "mon", "wed", "tue"),
            Conflict("state.new", MISSING, [2], [1]),
        ]
        assert "state.plan.due" in str(caught.value)
        assert await engine.get_latest("t") == before
        assert await engine.operations("t", 1) != []
        assert (await engine.operations("t", 1))[0].kind == "branch"

    @pytest.mark.parametrize(
        ("resolve", "expected"),
        [
            ("ours", {"k": 2, "a": 1, "b": 1}),
            ("theirs", {"k": 1, "a": 1, "b": 1}),
            ({"state.k": 9}, {"k": 9, "a": 1, "b": 1}),
            ({"state.k": MISSING}, {"a": 1, "b": 1}),
            (lambda conflict: conflict.ours + conflict.theirs, {"k": 3, "a": 1, "b": 1}),
        ],
    )
    async def test_resolve_says_what_to_do(self, engine: Any, resolve: Any, expected: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [], {"k": 1, "b": 1})
        await engine.append("t", [], {"k": 2, "a": 1})
        await engine.merge_branch(branch, "t", resolve=resolve)
        assert await state(engine) == expected

    async def test_deleted_here_changed_there(self, engine: Any) -> None:
        branch = await forked(engine, k=0, x=1)
        await engine.snapshot(branch, [], {"k": 0}, {})
        await engine.append("t", [], {"x": 2})
        with pytest.raises(MergeConflict) as caught:
            await engine.merge_branch(branch, "t")
        assert [(c.path, c.base, c.ours, c.theirs) for c in caught.value.conflicts] == [("state.x", 1, 2, MISSING)]

    @pytest.mark.parametrize("resolve", ["OURS", 3, [("state.k", 1)], {"state.nothing": 1}])
    async def test_a_resolve_that_makes_no_sense_is_refused(self, engine: Any, resolve: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [], {"k": 1})
        await engine.append("t", [], {"k": 2})
        with pytest.raises(InvalidInput):
            await engine.merge_branch(branch, "t", resolve=resolve)
        assert await state(engine) == {"k": 2}

    async def test_a_resolver_that_raises_or_returns_what_cannot_be_stored(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [], {"k": 1})
        await engine.append("t", [], {"k": 2})

        def fail(conflict: Conflict) -> None:
            raise KeyError(conflict.path)

        async def wait(conflict: Conflict) -> int:
            return 1

        with pytest.raises(KeyError):
            await engine.merge_branch(branch, "t", resolve=fail)
        with pytest.raises(everstep.UnstorableValue) as caught:
            await engine.merge_branch(branch, "t", resolve=lambda _: {"x": object()})
        assert caught.value.path == "state.k.x"
        with pytest.raises(InvalidInput):
            await engine.merge_branch(branch, "t", resolve=wait)
        assert await state(engine) == {"k": 2}
        assert len(await engine.list_time_travel_points("t")) == 2

    async def test_messages(self, engine: Any) -> None:
        base = [say("a", id="1"), say("b", id="2"), say("c", id="3")]
        first = await engine.snapshot("t", base, {}, {})
        branch = await engine.branch(first, "idea")
        await engine.snapshot(branch, [base[0], say("B!", id="2"), say("n", id="5")], {}, {})
        await engine.snapshot("t", [say("A!", id="1"), base[1], base[2], say("m", id="4")], {}, {})
        await engine.merge_branch(branch, "t")
        assert await texts(engine) == ["A!", "B!", "m", "n"]
        await engine.snapshot(branch, [say("X", id="1")], {}, {})
        await engine.snapshot("t", [say("Y", id="1")], {}, {})
        with pytest.raises(MergeConflict) as caught:
            await engine.merge_branch(branch, "t")
        assert [c.path for c in caught.value.conflicts] == ["messages['1'].content"]


class TestWhatCannotBeMerged:
    async def test_a_thread_into_itself(self, engine: Any) -> None:
        await write(engine, 1)
        with pytest.raises(InvalidInput, match="itself"):
            await engine.merge_branch("t", "t")

    async def test_unrelated_threads(self, engine: Any) -> None:
        await write(engine, 1)
        await write(engine, 1, "u")
        with pytest.raises(InvalidInput, match="unrelated"):
            await engine.merge_branch("u", "t")
        assert await head(engine) == 1

    async def test_a_thread_without_checkpoints(self, engine: Any) -> None:
        branch = await forked(engine)
        for one, other in (("nobody", "t"), ("t", "nobody")):
            with pytest.raises(InvalidInput, match="no checkpoints"):
                await engine.merge_branch(one, other)
        await engine.undo("t")
        with pytest.raises(InvalidInput, match="no checkpoints"):
            await engine.merge_branch(branch, "t")


class TestBasesSurvive:
    async def test_retention_on_both_sides(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=2)
        branch = await forked(engine)
        for n in range(6):
            await engine.append(branch, [say(f"b{n}")], {"b": n})
            await engine.append("t", [say(f"t{n}")], {"a": n})
        await engine.merge_branch(branch, "t")
        for n in range(6, 12):
            await engine.append(branch, [say(f"b{n}")], {"b": n, "k": n})
            await engine.append("t", [say(f"t{n}")], {"a": n})
        await engine.collect()
        await engine.merge_branch(branch, "t")
        assert await state(engine) == {"k": 11, "a": 11, "b": 11}
        assert len(await texts(engine)) == 25

    async def test_siblings_with_retention(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=2)
        one = await forked(engine)
        two = await engine.branch((await engine.list_time_travel_points("t"))[-1].checkpoint_id, "other")
        await engine.append(one, [], {"k": 1})
        await engine.append(two, [], {"x": 1})
        await engine.merge_branch(one, two)
        for n in range(5):
            await engine.append(one, [], {"k": 0, "n": n})
            await engine.append(two, [], {"x": n})
        await engine.collect()
        await engine.merge_branch(one, two)
        assert await state(engine, two) == {"k": 0, "n": 4, "x": 4}

    async def test_deletion_of_the_origins_checkpoint(self, engine: Any, backend: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [], {"b": 1})
        await engine.append("t", [], {"a": 1})
        await backend.delete_before("t", 2)
        await engine.merge_branch(branch, "t")
        assert await state(engine) == {"k": 0, "a": 1, "b": 1}

    async def test_a_base_that_is_gone_for_good_is_said(self, engine: Any, store: Store) -> None:
        one = await forked(engine)
        two = await engine.branch(await engine.append("t", [], {"a": 1}), "other")
        await engine.append(one, [], {"b": 1})
        before = await latest(engine, two)
        await store.delete("t")
        with pytest.raises(InvalidInput, match="was deleted; there is nothing to merge against"):
            await engine.merge_branch(one, two)
        assert await latest(engine, two) == before

    async def test_siblings_whose_common_checkpoint_was_deleted(self, engine: Any, store: Store) -> None:
        one = await forked(engine)
        first = (await engine.list_time_travel_points("t"))[-1].checkpoint_id
        second = await engine.append("t", [], {"a": 1})
        two = await engine.branch(second, "other")
        await engine.append(one, [], {"b": 1})
        await store.delete("t", keys=[Key("t", "", first)])
        merged = await engine.merge_branch(one, two)  # what "t" and the first branch had in common is still known
        assert (await engine.get(merged)).state == {"k": 0, "a": 1, "b": 1}
        await store.delete("t")
        await engine.append(two, [], {"c": 1})
        await engine.append(one, [], {"c": 1})
        await engine.merge_branch(one, two)  # by what the two have in common since
        assert await state(engine, two) == {"k": 0, "a": 1, "b": 1, "c": 1}

    async def test_an_older_base_counts_again_after_an_undo(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=3)
        branch = await forked(engine)
        await engine.append(branch, [], {"k": 1})
        await engine.merge_branch(branch, "t")
        for n in range(3):
            await engine.append(branch, [], {"b": n})
        await engine.merge_branch(branch, "t")
        for n in range(10):
            await engine.append(branch, [], {"b": n})
        await engine.undo("t")
        await engine.merge_branch(branch, "t")
        assert await state(engine) == {"k": 1, "b": 9}

    async def test_a_thread_in_between_may_be_deleted(self, engine: Any, backend: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [], {"b": 1})
        inner = await engine.branch(await latest(engine, branch), "inner")
        await engine.append(inner, [], {"c": 1})
        await engine.append("t", [], {"a": 1})
        await backend.delete_thread(branch)
        await engine.merge_branch(inner, "t")
        assert await state(engine) == {"k": 0, "a": 1, "b": 1, "c": 1}

    async def test_a_deleted_branch_still_counts_as_a_way_work_came(self, engine: Any, backend: Any) -> None:
        first = await engine.append("t", [], {"k": 0})
        b = await engine.branch(first, "b")
        bb = await engine.branch(await latest(engine, b), "bb")
        await engine.append("t", [], {"t": 1})
        await engine.merge_branch("t", bb)
        await engine.append(bb, [], {"k": 1})
        await engine.merge_branch(bb, b)
        await engine.merge_branch(b, "t")
        await engine.append("t", [], {"k": 0})
        await engine.append(bb, [], {"z": 1})
        await backend.delete_thread(b)
        await engine.merge_branch(bb, "t")
        assert await state(engine) == {"k": 0, "t": 1, "z": 1}

    async def test_an_older_parent_taken_since_is_the_base(self, make_engine: Any) -> None:
        engine = make_engine(gc_param=2)
        first = await engine.append("t", [], {"k": 0})
        branch = await engine.branch(await engine.append("t", [], {"x": 1}), "b")
        await engine.append(branch, [], {"b": 1})
        await engine.snapshot("t", [], {"k": 0, "a": 1}, {}, parent_checkpoint_id=first)
        for n in range(5):
            await engine.append("t", [], {"a": n})
        await engine.collect()
        await engine.merge_branch(branch, "t")
        assert await state(engine) == {"k": 0, "a": 4, "x": 1, "b": 1}


class TestUndoOfMerges:
    async def test_undo_and_redo(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [say("b")], {"b": 1})
        before = await engine.append("t", [say("t")], {"a": 1})
        merged = await engine.merge_branch(branch, "t")
        (entry, *_) = await engine.operations("t")
        assert (entry.kind, entry.details) == ("merge", {"from": branch, "checkpoint_id": merged})
        await engine.undo("t")
        assert await latest(engine) == before
        assert await state(engine) == {"k": 0, "a": 1}
        await engine.redo("t")
        assert await latest(engine) == merged
        await engine.undo("t")
        again = await engine.merge_branch(branch, "t")
        assert again != merged
        assert await state(engine) == {"k": 0, "a": 1, "b": 1}

    async def test_undo_after_new_snapshots(self, engine: Any) -> None:
        branch = await forked(engine)
        await engine.append(branch, [], {"b": 1})
        before = await latest(engine)
        await engine.merge_branch(branch, "t")
        await engine.append("t", [], {"c": 1})
        await engine.undo("t")
        assert await latest(engine) == before
        await engine.redo("t")
        assert await state(engine) == {"k": 0, "b": 1, "c": 1}


class TestDiff:
    async def test_what_changed_by_path(self, engine: Any) -> None:
        one = await engine.snapshot("t", [say("a")], {"plan": [{"due": "mon"}], "x": 1, "n": 1}, {})
        two = await engine.snapshot("t", [say("a"), say("b")], {"plan": [{"due": "tue"}], "n": True}, {"tool": [1]})
        found = await engine.diff(one, two)
        assert (found.a, found.b) == (one, two)
        assert {(c.path, c.kind, c.before, c.after) for c in found if c.kind != "added"} == {
            ("state.plan[0].due", "changed", "mon", "tue"), ("state.x", "removed", 1, MISSING),
            ("state.n", "changed", 1, True),
        }  # fmt: skip
        assert {(c.path, c.kind) for c in found if c.kind == "added"} == {
            ("messages[1]", "added"), ("tools_result.tool", "added"),
        }  # fmt: skip
        assert not await engine.diff(one, one)
        back = await engine.diff(two, one)
        assert len(back) == len(found)

    async def test_between_threads_that_have_nothing_to_do_with_each_other(self, engine: Any) -> None:
        long = [say("word " * 300 + str(n)) for n in range(30)]
        one = await engine.snapshot("t", long, {"a": 1}, {})
        two = await engine.snapshot("u", [*long, say("more")], {"a": 1}, {})
        assert [c.path for c in await engine.diff(one, two)] == ["messages[30]"]

    async def test_a_checkpoint_that_is_not_there(self, engine: Any) -> None:
        (one,) = await write(engine, 1)
        for pair in ((one, "nobody"), ("nobody", one)):
            with pytest.raises(CheckpointNotFound):
                await engine.diff(*pair)

    async def test_where_to_go_on_is_a_difference_too(self, engine: Any) -> None:
        one = await engine.append("t", next_node="a")
        two = await engine.append("t", next_node="b")
        assert [(c.path, c.before, c.after) for c in await engine.diff(one, two)] == [("next_node", "a", "b")]

    async def test_hidden_ones_can_be_compared(self, engine: Any) -> None:
        ids = await write(engine, 2)
        await engine.rewind(ids[0])
        assert len(await engine.diff(ids[0], ids[1])) == 2
