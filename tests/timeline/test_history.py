"""Going back and forth: rewind, time travel, undo, redo, the log, branches, the tree, pins."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

import everstep
from everstep import CannotUndo, Checkpoint, CheckpointNotFound, InvalidInput
from everstep.stores.protocol import Key, Store, Write
from tests.timeline.short_histories import head, numbers, steps, write


class TestRewind:
    async def test_the_target_becomes_the_head_and_what_came_later_leaves_history(self, engine: Any) -> None:
        ids = await write(engine, 5)
        result = await engine.rewind(ids[1])
        assert (result.thread_id, result.rewind_depth, result.snapshot_count_before) == ("t", 3, 5)
        assert result.can_replay
        assert await steps(engine) == [2, 1]
        assert await head(engine) == 2

    async def test_the_result_holds_the_checkpoint(self, engine: Any) -> None:
        ids = await write(engine, 3)
        result = await engine.rewind(ids[1])
        assert isinstance(result.checkpoint, Checkpoint)
        expected = await engine.get(ids[1])
        assert result.checkpoint == expected
        assert expected == result.checkpoint
        assert result.checkpoint != await engine.get(ids[0])
        assert result.checkpoint.to_dict() == expected.to_dict()
        assert copy.deepcopy(result.checkpoint) == expected
        assert pickle.loads(pickle.dumps(result.checkpoint)) == expected
        assert dataclasses.replace(result.checkpoint, next_node="x").next_node == "x"

    async def test_a_large_checkpoint_is_read_when_it_is_looked_at(self, engine: Any, store: Store) -> None:
        first = await engine.snapshot("t", [{"role": "user", "content": "word " * 200_000}], {"n": 1}, {})
        await write(engine, 1, start=2)
        result = await engine.rewind(first)
        assert "not read yet" in repr(result.checkpoint)
        expected = await engine.get(first)
        assert result.checkpoint == expected
        assert expected == result.checkpoint
        assert result.checkpoint != await engine.get_latest("nobody")
        assert result.checkpoint.to_dict() == expected.to_dict()
        assert copy.deepcopy(result.checkpoint) == expected
        assert pickle.loads(pickle.dumps(result.checkpoint)) == expected
        replaced = dataclasses.replace(result.checkpoint, next_node="x")
        assert (replaced.next_node, replaced.state) == ("x", {"n": 1})
        with pytest.raises(AttributeError):
            getattr(result.checkpoint, "nothing")  # noqa: B009

    async def test_hidden_is_readable_by_id(self, engine: Any) -> None:
        ids = await write(engine, 3)
        await engine.rewind(ids[0])
        assert (await engine.get(ids[2])).state == {"n": 3}

    async def test_nothing_before_the_target_is_touched(self, engine: Any) -> None:
        ids = await write(engine, 4)
        before = [await engine.get(checkpoint_id) for checkpoint_id in ids[:2]]
        await engine.rewind(ids[1])
        assert [await engine.get(checkpoint_id) for checkpoint_id in ids[:2]] == before

    async def test_the_next_step_follows_the_target(self, engine: Any) -> None:
        ids = await write(engine, 4)
        await engine.rewind(ids[1])
        (new,) = await write(engine, 1, start=9)
        found = await engine.get(new)
        assert (found.metadata.step, found.metadata.parents) == (3, [ids[1]])
        assert [m["content"] for m in found.messages] == ["m1", "m2", "m9"]
        assert await numbers(engine) == [9, 2, 1]

    async def test_delete_removes_what_came_later_now(self, engine: Any) -> None:
        ids = await write(engine, 4)
        result = await engine.rewind(ids[1], later="delete")
        assert result.rewind_depth == 2
        assert await numbers(engine) == [2, 1]
        assert await engine.get(ids[2]) is None
        assert await engine.operations("t") == []
        with pytest.raises(CannotUndo):
            await engine.undo("t")

    async def test_delete_also_removes_what_was_hidden_before(self, engine: Any) -> None:
        ids = await write(engine, 4)
        await engine.rewind(ids[2])
        await engine.rewind(ids[0], later="delete")
        assert [await engine.get(checkpoint_id) for checkpoint_id in ids[1:]] == [None] * 3
        with pytest.raises(CannotUndo, match="final"):
            await engine.undo("t")

    async def test_delete_removes_what_an_earlier_rewind_to_it_hid(self, engine: Any) -> None:
        ids = await write(engine, 4)
        await engine.rewind(ids[1])
        await engine.rewind(ids[1], later="delete")
        assert [await engine.get(checkpoint_id) is not None for checkpoint_id in ids] == [True, True, False, False]

    async def test_keep_leaves_it_listed(self, engine: Any) -> None:
        ids = await write(engine, 4)
        result = await engine.rewind(ids[1], later="keep")
        assert result.rewind_depth == 2
        assert await numbers(engine) == [4, 3, 2, 1]
        assert await head(engine) == 2
        await write(engine, 1, start=9)
        assert await numbers(engine) == [9, 4, 3, 2, 1]

    async def test_only_its_own_line_is_left_behind(self, engine: Any) -> None:
        ids = await write(engine, 4)
        await engine.snapshot("t", [], {"n": 31}, {}, parent_checkpoint_id=ids[1])
        await write(engine, 1, start=32)
        result = await engine.rewind(ids[2])
        assert result.rewind_depth == 1
        assert await numbers(engine) == [32, 31, 3, 2, 1]
        result = await engine.rewind(ids[1])
        assert result.rewind_depth == 3
        assert await numbers(engine) == [2, 1]
        await engine.undo("t")
        assert await numbers(engine) == [32, 31, 3, 2, 1]
        await engine.undo("t")
        assert await numbers(engine) == [32, 31, 4, 3, 2, 1]
        assert await head(engine) == 32

    async def test_the_end_of_another_line_can_be_made_the_head(self, engine: Any) -> None:
        ids = await write(engine, 3)
        await engine.snapshot("t", [], {"n": 21}, {}, parent_checkpoint_id=ids[0])
        result = await engine.rewind(ids[2])
        assert result.rewind_depth == 0
        assert await numbers(engine) == [21, 3, 2, 1]
        assert await head(engine) == 3

    async def test_rewinding_to_the_head_changes_and_logs_nothing(self, engine: Any) -> None:
        ids = await write(engine, 2)
        result = await engine.rewind(ids[1])
        assert (result.rewind_depth, result.snapshot_count_before) == (0, 2)
        assert await engine.operations("t") == []

    async def test_rewinding_again_and_again(self, engine: Any) -> None:
        ids = await write(engine, 3)
        for round_ in range(4):
            await write(engine, 2, start=10 * round_ + 10)
            assert (await engine.rewind(ids[2])).rewind_depth == 2
        assert await numbers(engine) == [3, 2, 1]
        assert (await engine.rewind(ids[0])).rewind_depth == 2

    async def test_pending_writes_of_the_target_are_hidden_and_come_back(self, engine: Any, store: Store) -> None:
        ids = await write(engine, 2)
        key = Key("t", "", ids[0])
        await store.put_writes(key, [Write("task", 0, "channel", b"", b"", 0)], [])
        await engine.rewind(ids[0])
        hidden = await store.read(*key, writes=True)
        await engine.undo("t")
        shown = await store.read(*key, writes=True)
        assert hidden is not None
        assert shown is not None
        assert (len(hidden.writes), len(shown.writes)) == (0, 1)

    async def test_an_unknown_id_is_not_found(self, engine: Any) -> None:
        await write(engine, 1)
        with pytest.raises(CheckpointNotFound) as caught:
            await engine.rewind("nobody")
        assert isinstance(caught.value, ValueError)

    async def test_a_deleted_one_is_not_found_and_a_hidden_one_refused(self, engine: Any, backend: Any) -> None:
        ids = await write(engine, 4)
        await backend.delete_before("t", 2)
        with pytest.raises(CheckpointNotFound):
            await engine.rewind(ids[0])
        await engine.rewind(ids[1])
        with pytest.raises(InvalidInput, match=r"undo\(\)"):
            await engine.rewind(ids[3])
        assert await numbers(engine) == [2]

    @pytest.mark.parametrize("later", ["", "HIDE", None, 3])
    async def test_later_is_one_of_three(self, engine: Any, later: Any) -> None:
        ids = await write(engine, 1)
        with pytest.raises(InvalidInput):
            await engine.rewind(ids[0], later=later)


class TestTimeTravel:
    async def test_it_goes_to_the_newest_not_above_the_step(self, engine: Any) -> None:
        ids = await write(engine, 5)
        result = await engine.time_travel_to_step("t", 3)
        assert result.checkpoint.metadata.checkpoint_id == ids[2]
        assert await numbers(engine) == [3, 2, 1]

    async def test_a_step_that_is_gone_gives_the_one_before(self, make_engine: Any) -> None:
        engine = make_engine(gc_policy="keep_milestones", gc_param=4)
        await write(engine, 9)
        assert await steps(engine) == [9, 5, 1]
        result = await engine.time_travel_to_step("t", 8)
        assert result.checkpoint.metadata.step == 5

    async def test_nothing_that_old_is_none(self, engine: Any) -> None:
        assert await engine.time_travel_to_step("t", 3) is None
        await write(engine, 2)
        assert await engine.time_travel_to_step("t", 0) is None
        assert await numbers(engine) == [2, 1]

    async def test_beyond_the_end_is_the_head(self, engine: Any) -> None:
        await write(engine, 2)
        assert (await engine.time_travel_to_step("t", 99)).rewind_depth == 0

    @pytest.mark.parametrize("face", ["blocking"], indirect=True)
    async def test_a_long_history_is_no_limit(self, make_engine: Any) -> None:
        engine = make_engine(gc_policy="keep_all")
        ids = await write(engine, 1200)
        result = await engine.time_travel_to_step("t", 2)
        assert (result.checkpoint.metadata.checkpoint_id, result.rewind_depth) == (ids[1], 1198)

    @pytest.mark.parametrize("step", ["3", 2.0, None, True])
    async def test_a_step_is_a_whole_number(self, engine: Any, step: Any) -> None:
        with pytest.raises(InvalidInput):
            await engine.time_travel_to_step("t", step)


class TestUndo:
    async def test_undo_and_redo_of_a_rewind(self, engine: Any) -> None:
        ids = await write(engine, 4)
        await engine.rewind(ids[1])
        undone = await engine.undo("t")
        assert (undone.kind, undone.undone) == ("rewind", True)
        assert await numbers(engine) == [4, 3, 2, 1]
        assert await head(engine) == 4
        redone = await engine.redo("t")
        assert (redone.id, redone.undone) == (undone.id, False)
        assert await numbers(engine) == [2, 1]
        assert await head(engine) == 2

    async def test_undo_after_new_snapshots_hides_them_and_redo_brings_them_back(self, engine: Any) -> None:
        ids = await write(engine, 4)
        await engine.rewind(ids[1])
        new = await write(engine, 2, start=8)
        await engine.undo("t")
        assert await numbers(engine) == [4, 3, 2, 1]
        assert (await engine.get(new[0])).state == {"n": 8}
        more = await write(engine, 1, start=5)
        await engine.redo("t")
        assert await numbers(engine) == [9, 8, 2, 1]
        assert await head(engine) == 9
        await engine.undo("t")
        assert await numbers(engine) == [5, 4, 3, 2, 1]
        assert (await engine.get_latest("t")).metadata.checkpoint_id == more[0]

    async def test_several_operations_are_undone_one_by_one(self, engine: Any) -> None:
        ids = await write(engine, 5)
        states = [(await numbers(engine), await head(engine))]
        for target, later in ((ids[3], "hide"), (ids[1], "keep"), (ids[0], "hide")):
            await engine.rewind(target, later=later)
            states.append((await numbers(engine), await head(engine)))
        for expected in reversed(states[:-1]):
            await engine.undo("t")
            assert (await numbers(engine), await head(engine)) == expected
        with pytest.raises(CannotUndo, match="nothing to undo"):
            await engine.undo("t")
        for expected in states[1:]:
            await engine.redo("t")
            assert (await numbers(engine), await head(engine)) == expected
        with pytest.raises(CannotUndo, match="nothing to redo"):
            await engine.redo("t")

    async def test_a_new_operation_ends_what_could_be_redone(self, engine: Any) -> None:
        ids = await write(engine, 4)
        await engine.rewind(ids[2])
        await engine.rewind(ids[1])
        await engine.undo("t")
        await engine.pin(ids[0])
        with pytest.raises(CannotUndo):
            await engine.redo("t")
        await engine.undo("t")  # the pin
        await engine.undo("t")  # the first rewind
        assert await numbers(engine) == [4, 3, 2, 1]
        assert (await engine.redo("t")).kind == "rewind"
        assert (await engine.redo("t")).kind == "pin"

    async def test_nothing_to_undo(self, engine: Any) -> None:
        for thread in ("t", "nobody"):
            with pytest.raises(CannotUndo) as caught:
                await engine.undo(thread)
            assert isinstance(caught.value, ValueError)
            with pytest.raises(CannotUndo):
                await engine.redo(thread)
            await write(engine, 1)

    async def test_undo_with_its_data_gone_says_so_and_changes_nothing(self, engine: Any) -> None:
        ids = await write(engine, 4)
        await engine.rewind(ids[1], later="keep")
        await engine.rewind(ids[0], later="delete")
        with pytest.raises(CannotUndo, match="final"):
            await engine.undo("t")
        assert await numbers(engine) == [1]
        assert await head(engine) == 1

    async def test_undo_of_a_branch_hides_it_and_leaves_the_thread_alone(self, engine: Any, backend: Any) -> None:
        ids = await write(engine, 2)
        branch = await engine.branch(ids[0], "idea")
        await write(engine, 2, branch, start=5)
        await write(engine, 1, start=3)
        await engine.undo("t")
        assert await engine.get_latest(branch) is None
        assert await numbers(engine, branch) == []
        assert branch not in [m.thread_id for m in await backend.list_threads()]
        assert await numbers(engine) == [3, 2, 1]
        await engine.redo("t")
        assert await numbers(engine, branch) == [6, 5, 1]

    async def test_nothing_is_undone_or_saved_in_a_branch_that_was_taken_back(self, engine: Any) -> None:
        ids = await write(engine, 1)
        branch = await engine.branch(ids[0], "idea")
        inner = await write(engine, 2, branch, start=5)
        await engine.rewind(inner[0])
        await engine.undo("t")
        with pytest.raises(CannotUndo, match="hidden"):
            await engine.undo(branch)
        with pytest.raises(InvalidInput, match=r"redo\(\)"):
            await engine.append(branch, [], {"n": 9})
        await engine.redo("t")
        assert await numbers(engine, branch) == [5, 1]
        await engine.undo(branch)
        assert await numbers(engine, branch) == [6, 5, 1]

    async def test_a_branch_that_nothing_can_bring_back_is_begun_anew(self, engine: Any, backend: Any) -> None:
        ids = await write(engine, 1)
        branch = await engine.branch(ids[0], "idea")
        await engine.undo("t")
        await backend.delete_thread("t")
        await write(engine, 1, branch, start=7)
        assert await numbers(engine, branch) == [7]

    async def test_undo_of_a_deleted_branch_says_so(self, engine: Any, backend: Any) -> None:
        ids = await write(engine, 2)
        branch = await engine.branch(ids[0], "idea")
        await backend.delete_thread(branch)
        with pytest.raises(CannotUndo, match="deleted"):
            await engine.undo("t")

    async def test_pins_are_undone(self, engine: Any) -> None:
        ids = await write(engine, 2)
        await engine.pin(ids[0])
        await engine.pin(ids[0])
        await engine.unpin(ids[0])
        await engine.unpin(ids[1])
        assert [o.kind for o in await engine.operations("t")] == ["unpin", "pin"]
        await engine.undo("t")
        assert (await engine.get(ids[0])).metadata.pinned
        await engine.undo("t")
        assert not (await engine.get(ids[0])).metadata.pinned
        await engine.redo("t")
        assert (await engine.get(ids[0])).metadata.pinned

    async def test_the_log_tells_what_was_done(self, engine: Any) -> None:
        ids = await write(engine, 3)
        await engine.rewind(ids[1])
        branch = await engine.branch(ids[0], "idea")
        newest, older = await engine.operations("t")
        assert newest.kind == "branch"
        assert newest.details == {"checkpoint_id": ids[0], "thread_id": branch, "name": "idea"}
        assert older.details["checkpoint_id"] == ids[1]
        assert (older.details["from"], older.details["left_behind"]) == (ids[2], 1)
        assert older.created_at.endswith("+00:00")
        assert len(await engine.operations("t", 1)) == 1
        with pytest.raises(InvalidInput):
            await engine.operations("t", -1)

    async def test_plain_snapshots_are_not_logged(self, engine: Any) -> None:
        await write(engine, 3)
        assert await engine.operations("t") == []

    async def test_an_undone_rewind_can_be_gone_on_from(self, engine: Any) -> None:
        ids = await write(engine, 3)
        await engine.rewind(ids[0])
        await engine.undo("t")
        (new,) = await write(engine, 1, start=4)
        assert (await engine.get(new)).metadata.parents == [ids[2]]
        assert (await engine.rewind(ids[1])).rewind_depth == 2


class TestBranch:
    async def test_a_branch_starts_at_its_source(self, engine: Any) -> None:
        ids = await write(engine, 3)
        await engine.append("t", [], {"n": 4}, next_node="tool:search")
        source = await engine.get_latest("t")
        name = await engine.branch(source.metadata.checkpoint_id, "idea")
        first = await engine.get_latest(name)
        assert name.startswith("t-branch-idea-")
        assert (first.messages, first.state, first.tools_result) == (source.messages, source.state, source.tools_result)
        assert first.next_node == "tool:search"
        assert (first.metadata.step, first.metadata.tags) == (0, ["branch", "idea"])
        assert first.metadata.parent_checkpoint_id == source.metadata.checkpoint_id
        assert first.metadata.summary == f"Branch 'idea' from {source.metadata.checkpoint_id}"
        assert first.metadata.checkpoint_id != ids[2]

    async def test_a_branch_and_its_origin_go_their_own_ways(self, engine: Any) -> None:
        ids = await write(engine, 2)
        branch = await engine.branch(ids[0], "idea")
        await write(engine, 2, branch, start=20)
        await write(engine, 1, start=3)
        assert await numbers(engine) == [3, 2, 1]
        assert await numbers(engine, branch) == [21, 20, 1]
        assert [m["content"] for m in (await engine.get_latest(branch)).messages] == ["m1", "m20", "m21"]
        assert await steps(engine, branch) == [2, 1, 0]

    async def test_a_branch_survives_its_origin(self, engine: Any, backend: Any) -> None:
        ids = await write(engine, 2)
        branch = await engine.branch(ids[1], "idea")
        await backend.delete_thread("t")
        assert (await engine.get_latest(branch)).state == {"n": 2}
        assert [m["content"] for m in (await engine.get_latest(branch)).messages] == ["m1", "m2"]

    async def test_a_branch_of_a_branch_and_of_a_hidden_checkpoint(self, engine: Any) -> None:
        ids = await write(engine, 3)
        await engine.rewind(ids[0])
        branch = await engine.branch(ids[2], "old line")
        inner = await engine.branch((await engine.get_latest(branch)).metadata.checkpoint_id, "deeper")
        assert (await engine.get_latest(inner)).state == {"n": 3}

    async def test_two_branches_of_one_name_are_two(self, engine: Any) -> None:
        ids = await write(engine, 1)
        assert await engine.branch(ids[0], "x") != await engine.branch(ids[0], "x")

    @pytest.mark.parametrize("name", ["", None, 3, "x" * 2000, "\ud800"])
    async def test_a_branch_needs_a_name(self, engine: Any, name: Any) -> None:
        ids = await write(engine, 1)
        with pytest.raises(InvalidInput):
            await engine.branch(ids[0], name)

    async def test_an_id_that_would_be_too_long_is_explained(self, engine: Any) -> None:
        head = await engine.append("t" * 600, [], {"n": 1})
        with pytest.raises(InvalidInput, match="shorter name"):
            await engine.branch(head, "n" * 420)

    async def test_a_branch_of_nothing_is_not_found(self, engine: Any) -> None:
        with pytest.raises(CheckpointNotFound):
            await engine.branch("nobody", "x")

    async def test_a_parent_of_another_thread_is_not_found(self, engine: Any) -> None:
        ids = await write(engine, 1)
        await write(engine, 1, "u")
        with pytest.raises(CheckpointNotFound):
            await engine.snapshot("u", [], {}, {}, parent_checkpoint_id=ids[0])


class TestTree:
    async def test_a_line(self, engine: Any) -> None:
        ids = await write(engine, 3)
        tree = await engine.get_checkpoint_tree("t")
        assert (tree["thread_id"], tree["total_checkpoints"]) == ("t", 3)
        assert [node["id"] for node in tree["nodes"]] == ids[::-1]
        assert [node["step"] for node in tree["nodes"]] == [3, 2, 1]
        assert [node["head"] for node in tree["nodes"]] == [True, False, False]
        assert {(edge["from"], edge["to"]) for edge in tree["edges"]} == {(ids[0], ids[1]), (ids[1], ids[2])}
        assert not any(edge["gap"] for edge in tree["edges"])
        assert {"id", "step", "tags", "summary", "created_at"} <= tree["nodes"][0].keys()

    async def test_branches_are_in_it_unless_told_not_to(self, engine: Any) -> None:
        ids = await write(engine, 2)
        branch = await engine.branch(ids[0], "idea")
        inner = await engine.branch((await engine.get_latest(branch)).metadata.checkpoint_id, "deeper")
        tree = await engine.get_checkpoint_tree("t")
        assert tree["total_checkpoints"] == 4
        assert {node["thread_id"] for node in tree["nodes"]} == {"t", branch, inner}
        assert [node["branch"] for node in tree["nodes"]] == ["deeper", "idea", None, None]
        first = (await engine.get_latest(branch)).metadata.checkpoint_id
        assert (ids[0], first) in {(edge["from"], edge["to"]) for edge in tree["edges"]}
        alone = await engine.get_checkpoint_tree("t", branches=False)
        assert [node["id"] for node in alone["nodes"]] == ids[::-1]

    async def test_what_is_hidden_is_not_in_it(self, engine: Any) -> None:
        ids = await write(engine, 3)
        branch = await engine.branch(ids[0], "idea")
        await engine.undo("t")
        await engine.rewind(ids[1])
        tree = await engine.get_checkpoint_tree("t")
        assert [node["id"] for node in tree["nodes"]] == ids[1::-1]
        assert branch not in {node["thread_id"] for node in tree["nodes"]}

    async def test_edges_lead_over_what_retention_removed(self, make_engine: Any) -> None:
        engine = make_engine(gc_policy="keep_milestones", gc_param=4)
        await write(engine, 9)
        tree = await engine.get_checkpoint_tree("t")
        named = {node["id"]: node["step"] for node in tree["nodes"]}
        edges = {(named[edge["from"]], named[edge["to"]]): edge["gap"] for edge in tree["edges"]}
        assert edges == {(1, 5): True, (5, 9): True}

    async def test_an_edge_into_a_branch_survives_its_beginning(self, engine: Any, store: Store) -> None:
        ids = await write(engine, 3)
        branch = await engine.branch(ids[1], "idea")
        await store.delete("t", keys=[Key("t", "", ids[1])])
        tree = await engine.get_checkpoint_tree("t")
        first = (await engine.get_latest(branch)).metadata.checkpoint_id
        edges = {(edge["from"], edge["to"]): edge["gap"] for edge in tree["edges"]}
        assert edges == {(ids[0], ids[2]): True, (ids[0], first): True}

    async def test_a_limit_shows_the_newest(self, engine: Any) -> None:
        ids = await write(engine, 5)
        tree = await engine.get_checkpoint_tree("t", 2)
        assert [node["id"] for node in tree["nodes"]] == [ids[4], ids[3]]
        assert tree["total_checkpoints"] == 5
        assert [(edge["from"], edge["to"]) for edge in tree["edges"]] == [(ids[3], ids[4])]

    async def test_a_thread_that_is_not_there_is_an_empty_tree(self, engine: Any) -> None:
        tree = await engine.get_checkpoint_tree("nobody")
        assert tree == {"thread_id": "nobody", "total_checkpoints": 0, "nodes": [], "edges": []}

    async def test_it_can_be_drawn(self, engine: Any) -> None:
        ids = await write(engine, 2)
        branch = await engine.branch(ids[0], "idea")
        text = everstep.draw(await engine.get_checkpoint_tree("t"))
        assert f"HEAD {branch}" in text
        assert "branch 'idea'" in text
        assert text.count("step ") == 3
