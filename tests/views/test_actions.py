"""What people do: told before, done once, refused before anything is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointNotFound, InvalidInput, MergeConflict
from everstep.views import actions, blame, history, state, storage, threads
from tests.views.conftest import plan_trip


async def test_a_rewind_is_told_before(engine: everstep.CheckpointEngine) -> None:
    ids = [await engine.append("t", [{"role": "user", "content": str(n)}]) for n in range(30)]
    plan = await actions.plan_rewind(engine, "t#7")
    json.dumps(plan)
    assert (plan["hidden"], plan["deleted"], plan["total"]) == (23, 0, 30)
    assert plan["text"] == "23 later steps are hidden, nothing is deleted."
    assert [each["step"] for each in plan["which"]] == list(range(30, 10, -1))
    assert plan["head"]["id"] == ids[29]
    done = await engine.rewind(ids[6])
    assert done.rewind_depth == plan["hidden"]
    assert (await actions.plan_rewind(engine, "t"))["text"] == "Nothing changes: this is the head already."


async def test_a_fork_without_edits_is_a_branch(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    made = await actions.fork(engine, "trip#3", "again")
    assert (made["step"], (await threads.one(engine, made["thread_id"]))["origin"]) == (0, f"trip@{trip.ids[2]}")


async def test_a_fork_with_edits_has_one_more_step(engine: everstep.CheckpointEngine) -> None:
    await engine.append("t", [{"role": "user", "content": "x"}], {"plan": ["a", "b"], "n": 1}, next_node="go")
    edits: dict[str, Any] = {
        "set": {"/plan/1": "B", "/deep/down": {"x": 1}, "/n": everstep.MISSING},
        "patch": [{"op": "add", "path": "/state/plan/-", "value": "c"}],
    }
    made = await actions.fork(engine, "t", "edit", **edits)
    found = await engine.get_latest(made["thread_id"])
    assert found is not None
    assert found.state == {"plan": ["a", "B", "c"], "deep": {"down": {"x": 1}}}
    assert (found.next_node, found.messages) == ("go", [{"role": "user", "content": "x"}])
    assert "edit" in found.metadata.tags
    rows = (await history.page(engine, made["thread_id"]))["rows"]
    assert [row["title"] for row in rows] == ["Edited plan/1, deep/down, n, state/plan", "Branch edit"]
    assert (await state.value(engine, "t", "/plan")) == ["a", "b"]
    other = await actions.fork(engine, "t", "said", messages=[{"role": "user", "content": "y"}])
    assert (await state.value(engine, other["ref"], "/messages/0/content")) == "y"


@pytest.mark.parametrize(
    "edits",
    [
        {"set": {"": 1}},
        {"set": {"/plan/9": 1}},
        {"set": {"/state": 5}},
        {"set": {"/messages/0": "no message"}},
        {"patch": [{"op": "remove", "path": "/state/absent"}]},
        {"patch": [{"op": "add", "path": "/else", "value": 1}]},
        {"patch": [{"op": "replace", "path": "", "value": []}]},
        {"set": {"/x": object()}},
    ],
)
async def test_a_fork_that_cannot_be_is_refused_before_anything_is_written(
    engine: everstep.CheckpointEngine, edits: dict[str, Any]
) -> None:
    await engine.append("t", [{"role": "user", "content": "x"}], {"plan": ["a"]})
    with pytest.raises((InvalidInput, everstep.UnstorableValue)):
        await actions.fork(engine, "t", "bad", **edits)
    assert [each["thread_id"] for each in (await threads.page(engine))["threads"]] == ["t"]


async def test_half_a_fork_is_taken_back(engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    await engine.append("t", [], {"a": 1})

    async def fail(*_: Any, **__: Any) -> str:
        raise everstep.StoreFull("no space left")

    monkeypatch.setattr(engine, "snapshot", fail)
    with pytest.raises(everstep.StoreFull):
        await actions.fork(engine, "t", "edit", set={"/a": 2})
    assert [each["thread_id"] for each in (await threads.page(engine))["threads"]] == ["t"]


async def with_conflicts(engine: everstep.CheckpointEngine) -> str:
    """Make a thread and a branch that both changed the same, and return the branch."""
    base = await engine.append("t", [{"role": "user", "content": "x"}], {"hotel": "?", "list": [0], "keep": 1})
    branch = await engine.branch(base, "side")
    await engine.append(branch, [{"role": "user", "content": "y"}], {"hotel": "theirs", "list": [0, 2], "new": 1})
    await engine.append("t", [], {"hotel": "ours", "list": [0, 1]})
    return branch


async def test_a_merge_is_told_before_and_decided_by_path(engine: everstep.CheckpointEngine) -> None:
    branch = await with_conflicts(engine)
    plan = await actions.plan_merge(engine, branch, "t")
    json.dumps(plan)
    shown = {each["path"]: (each["base"], each["ours"], each["theirs"]) for each in plan["conflicts"]}
    assert shown["state.hotel"] == ("?", "ours", "theirs")
    assert [each["path"] for each in plan["result"]["state"]] == ["state.new"]
    assert [each["op"] for each in plan["result"]["messages"]] == ["added"]
    assert plan["auto"] == 2
    assert f"{len(shown)} " in plan["text"] or "is in conflict" in plan["text"]
    with pytest.raises(MergeConflict):
        await actions.merge(engine, branch, "t")
    some = {"state.hotel": {"take": "theirs"}}
    partly = await actions.plan_merge(engine, branch, "t", some)
    assert partly["resolved"] == 1
    assert "state.hotel" not in [each["path"] for each in partly["conflicts"]]
    rest = {each["path"]: {"value": "own"} for each in partly["conflicts"]}
    made = await actions.merge(engine, branch, "t", some | rest)
    found = await engine.get_latest("t")
    assert found is not None
    assert (found.metadata.checkpoint_id, found.state["hotel"], found.state["new"]) == (made["id"], "theirs", 1)
    assert (await actions.plan_merge(engine, branch, "t"))["up_to_date"] is True


async def test_decisions_that_make_no_sense(engine: everstep.CheckpointEngine) -> None:
    branch = await with_conflicts(engine)
    for resolve in (
        {"state.other": {"take": "ours"}},
        {"state.hotel": "ours"},
        {"state.hotel": {"take": "both"}},
        {"state.hotel": {"take": "nobody"}},
        "nobody",
        5,
    ):
        with pytest.raises(InvalidInput):
            await actions.merge(engine, branch, "t", resolve)
    with pytest.raises(CheckpointNotFound):
        await actions.plan_merge(engine, "absent", "t")
    with pytest.raises(InvalidInput, match="into itself"):
        await actions.plan_merge(engine, "t", "t")


async def test_who_wrote_a_value(engine: everstep.CheckpointEngine) -> None:
    trip = await plan_trip(engine)
    found = await blame.history_of(engine, "trip", "/hotel")
    json.dumps(found)
    assert [(each["step"], each["op"], each["before"], each["after"]) for each in found["changes"]] == [
        (5, "changed", "fjord", "hostel"),
        (3, "added", {"$type": "missing"}, "fjord"),
    ]
    assert found["changes"][0]["title"] == "Merge cheap"
    assert found["looked_at"] == 6
    assert found["cursor"] is None
    assert [each["id"] for each in (await blame.history_of(engine, "trip", "/absent"))["changes"]] == []
    one = await blame.history_of(engine, "trip", "/hotel", limit=1)
    rest = await blame.history_of(engine, "trip", "/hotel", limit=5, cursor=one["cursor"])
    assert [each["id"] for each in one["changes"] + rest["changes"]] == [trip.ids[4], trip.ids[2]]
    said = await blame.history_of(engine, "trip", "/messages/0")
    assert [each["step"] for each in said["changes"]] == [1]


async def test_what_threads_take(engine: everstep.CheckpointEngine) -> None:
    for n in range(20):
        await engine.append("t", [{"role": "user", "content": "x" * 500 + str(n)}], {"n": n})
    found = await storage.sizes(engine, "t")
    json.dumps(found)
    assert (found["checkpoints"], found["policy"]["name"]) == (20, "keep_all")
    assert found["full_bytes"] > 20 * 5000
    assert found["ratio"] > 2
    assert found["retention"]["checkpoints"] == 0
    everything = await storage.sizes(engine)
    assert everything["full_bytes"] == found["full_bytes"]
    with pytest.raises(CheckpointNotFound):
        await storage.sizes(engine, "absent")
