"""A backend of somebody's own, with just the seven methods, under the engine."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import everstep
from everstep import (
    Checkpoint,
    CheckpointEngine,
    CheckpointNotFound,
    HeadMoved,
    InvalidInput,
    MergeConflict,
    SnapshotConfig,
    UnsupportedByBackend,
)
from tests.conftest import OneFace
from tests.timeline.own_backend import Own
from tests.timeline.short_histories import head, numbers, steps, write


@pytest.fixture
def own() -> Own:
    return Own()


# The test itself always runs in a loop; on the blocking face the engine's calls block inside it.
@pytest.fixture(params=["async", "blocking"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(own: Own, how: str) -> Any:
    return lambda **config: OneFace(CheckpointEngine(own, SnapshotConfig(**config)), how)


@pytest.fixture
def engine(make: Any) -> Any:
    return make()


async def test_snapshots_line_up(engine: Any) -> None:
    first = await engine.snapshot("t", [{"role": "user", "content": "hi"}], {"a": (1, 2)}, {}, next_node="x")
    second = await engine.append("t", [{"role": "ai", "content": "yes"}], {"b": 2}, {"tool": 1}, tags=["x"])
    found = await engine.get(second)
    assert first.startswith("ckpt-t-1-")
    assert second.startswith("ckpt-t-2-")
    assert (len(found.messages), found.state, found.tools_result) == (2, {"a": (1, 2), "b": 2}, {"tool": 1})
    assert (found.metadata.step, found.metadata.parents, found.metadata.tags) == (2, [first], ["x", "manual"])
    assert (await engine.get_latest("t")) == found
    assert (await engine.get(first)).next_node == "x"
    assert await engine.get("nobody") is None
    assert await engine.get(first, thread_id="other") is None
    assert await steps(engine) == [2, 1]


async def test_an_older_parent_and_an_expected_head(engine: Any) -> None:
    ids = await write(engine, 2)
    new = await engine.snapshot("t", [], {"n": 9}, {}, parent_checkpoint_id=ids[0])
    assert (await engine.get(new)).metadata.parents == [ids[0]]
    with pytest.raises(HeadMoved):
        await engine.append("t", expected_head=ids[0])
    with pytest.raises(HeadMoved):
        await engine.snapshot("t", [], {}, {}, expected_head=None)
    with pytest.raises(CheckpointNotFound):
        await engine.snapshot("u", [], {}, {}, parent_checkpoint_id=ids[0])
    assert len(await steps(engine)) == 3


async def test_many_tasks_line_up(own: Own) -> None:
    engine = CheckpointEngine(own)
    await asyncio.gather(*(engine.append("t", [{"content": str(n)}]) for n in range(30)))
    assert await steps(engine) == list(range(30, 0, -1))
    latest = await engine.get_latest("t")
    assert latest is not None
    assert sorted(int(m["content"]) for m in latest.messages) == list(range(30))


async def test_what_is_saved_is_what_was_given(engine: Any) -> None:
    state = {"list": [1]}
    saved = await engine.snapshot("t", [], state, {})
    state["list"].append(2)
    assert (await engine.get(saved)).state == {"list": [1]}
    with pytest.raises(everstep.UnstorableValue):
        await engine.snapshot("t", [], {"x": object()}, {})
    with pytest.raises(everstep.UnstorableValue):
        await engine.append("t", [{"x": object()}])


async def test_the_size_limit(make: Any) -> None:
    engine = make(max_snapshot_size_mb=0.001)
    with pytest.raises(everstep.SnapshotTooLarge):
        await engine.append("t", [{"content": "x" * 2000}])
    assert await engine.get_latest("t") is None


async def test_rewind_copies_the_target(engine: Any) -> None:
    ids = await write(engine, 4)
    result = await engine.rewind(ids[1])
    assert (result.rewind_depth, result.snapshot_count_before) == (2, 4)
    assert result.checkpoint.state == {"n": 2}
    assert result.checkpoint.metadata.step == 5
    assert result.checkpoint.metadata.parents == [ids[1]]
    assert await numbers(engine) == [2, 4, 3, 2, 1]
    assert await head(engine) == 2
    assert (await engine.time_travel_to_step("t", 1)).checkpoint.state == {"n": 1}
    assert await engine.time_travel_to_step("t", 0) is None
    with pytest.raises(CheckpointNotFound):
        await engine.rewind("nobody")
    with pytest.raises(UnsupportedByBackend):
        await engine.rewind(ids[0], later="delete")


async def test_branch_copies_and_the_tree_shows_it(engine: Any) -> None:
    ids = await write(engine, 2)
    branch = await engine.branch(ids[0], "idea")
    await write(engine, 1, branch, start=5)
    first = (await engine.list_time_travel_points(branch))[-1]
    assert (first.step, first.tags, first.parents) == (0, ["branch", "idea"], [ids[0]])
    tree = await engine.get_checkpoint_tree("t")
    assert tree["total_checkpoints"] == 4
    assert (ids[0], first.checkpoint_id) in {(edge["from"], edge["to"]) for edge in tree["edges"]}
    assert "branch 'idea'" in everstep.draw(tree)
    assert len((await engine.get_checkpoint_tree("t", branches=False))["nodes"]) == 2


async def test_diff(engine: Any) -> None:
    ids = await write(engine, 2)
    found = await engine.diff(*ids)
    assert [(change.path, change.kind) for change in found] == [("messages[1]", "added"), ("state.n", "changed")]
    with pytest.raises(CheckpointNotFound):
        await engine.diff(ids[0], "nobody")


async def resolved_to_no_message(engine: Any) -> None:
    """A message that both wrote can be resolved to a message only."""
    await engine.append("v", [{"role": "ai", "content": "first"}])
    branch = await engine.branch((await engine.get_latest("v")).metadata.checkpoint_id, "other idea")
    for thread_id in ("v", branch):
        await engine.append(thread_id, [{"role": "ai", "content": thread_id, "id": "m"}])
    for wrong in ("text", None, 5, ["m"]):
        with pytest.raises(InvalidInput, match=r"messages\[.*\] must be resolved to a dict"):
            await engine.merge_branch(branch, "v", resolve=lambda _, wrong=wrong: wrong)
    done = await engine.merge_branch(branch, "v", resolve=lambda _: {"role": "ai", "content": "new", "id": "m"})
    assert (await engine.get(done)).messages[1]["content"] == "new"


async def test_merge(engine: Any) -> None:
    ids = await write(engine, 1)
    branch = await engine.branch(ids[0], "idea")
    await engine.append(branch, [{"role": "ai", "content": "theirs"}], {"b": 1})
    await engine.append("t", [{"role": "ai", "content": "ours"}], {"a": 1})
    merged = await engine.get(await engine.merge_branch(branch, "t"))
    assert [m["content"] for m in merged.messages] == ["m1", "ours", "theirs"]
    assert merged.state == {"n": 1, "a": 1, "b": 1}
    assert len(merged.metadata.parents) == 2
    assert await engine.merge_branch(branch, "t") == merged.metadata.checkpoint_id
    await engine.append(branch, [], {"a": 5})
    await engine.append("t", [], {"a": 6})
    with pytest.raises(MergeConflict) as caught:
        await engine.merge_branch(branch, "t")
    assert [(c.path, c.ours, c.theirs) for c in caught.value.conflicts] == [("state.a", 6, 5)]
    assert (await engine.get_latest("t")).state["a"] == 6
    done = await engine.merge_branch(branch, "t", resolve={"state.a": 7})
    assert (await engine.get(done)).state["a"] == 7
    with pytest.raises(InvalidInput):
        await engine.merge_branch("t", "t")
    await resolved_to_no_message(engine)
    await write(engine, 1, "u")
    with pytest.raises(InvalidInput, match="unrelated"):
        await engine.merge_branch("u", "t")
    with pytest.raises(InvalidInput, match="no checkpoints"):
        await engine.merge_branch("nobody", "t")


async def test_keep_last_n_and_collect(make: Any, own: Own) -> None:
    engine = make(gc_param=3)
    await write(engine, 8)
    assert await numbers(engine) == [8, 7, 6]
    report = await make(gc_param=1).collect(dry_run=True)
    assert report.size_bytes > 0
    assert (report.checkpoints, len(own.held)) == (2, 3)
    assert (await make(gc_param=1).collect()).checkpoints == 2
    assert (await make(gc_policy="keep_all").collect("t")).checkpoints == 0


async def test_keep_age(make: Any, own: Own) -> None:
    engine = make(gc_policy="keep_age", gc_param=3600)
    await write(engine, 3)
    for n, held in enumerate(own.held.values()):
        held.metadata.created_at = (datetime.now(UTC) - timedelta(hours=3 - n, minutes=30)).isoformat()
    assert (await engine.collect()).checkpoints == 2
    assert await steps(engine) == [3]
    for held in own.held.values():
        held.metadata.created_at = "2020-01-01T00:00:00+00:00"
    await write(engine, 13, start=4)
    assert await steps(engine) == list(range(16, 3, -1))


async def test_retention_that_fails_does_not_fail_the_snapshot(
    make: Any, own: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(thread_id: str, before_step: int) -> int:
        raise OSError("no")

    monkeypatch.setattr(own, "delete_before", fail)
    engine = make(gc_param=1)
    with caplog.at_level(logging.ERROR):
        await write(engine, 2)
    assert await steps(engine) == [2, 1]
    assert "will be tried again" in caplog.text


async def test_the_rest_is_refused_and_says_so(engine: Any, own: Own) -> None:
    ids = await write(engine, 1)
    calls: list[Any] = [
        lambda: engine.undo("t"), lambda: engine.redo("t"), lambda: engine.operations("t"),
        lambda: engine.pin(ids[0]), lambda: engine.unpin(ids[0]),
        lambda: engine.append("t", namespace="sub"), lambda: engine.get_latest("t", namespace="sub"),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(UnsupportedByBackend, match="Own"):
            await call()
    with pytest.raises(UnsupportedByBackend):
        CheckpointEngine(own, SnapshotConfig(gc_policy="keep_milestones"))


async def test_errors_of_the_backend_come_out(engine: Any, own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(thread_id: str) -> None:
        raise ConnectionError("down")

    monkeypatch.setattr(own, "get_latest", fail)
    with pytest.raises(ConnectionError):
        await engine.append("t")
    assert await engine.snapshot_safe("t", [], {}, {}) == ""


def test_the_blocking_face_works_without_a_loop(own: Own) -> None:
    with CheckpointEngine(own).sync as engine:
        saved = engine.append("t", [{"content": "x"}])
        found = engine.get(saved)
        assert found is not None
        assert [m.checkpoint_id for m in engine.checkpointer.list_checkpoints("t")] == [saved]
    assert own.closed


async def test_closing(own: Own) -> None:
    async with CheckpointEngine(own) as engine:
        await engine.append("t")
    assert own.closed


async def test_capture_works_on_it(own: Own) -> None:
    engine = CheckpointEngine(own)

    @engine.snapshot_on("tool_call")
    async def double(n: int) -> int:
        return 2 * n

    @engine.snapshot_on("tool_call")
    def half(n: int) -> int:
        return n // 2

    async with engine.thread("t") as live:
        live.messages.append({"role": "user", "content": "hi"})
        live.state["n"] = await double(4)
        live.state["h"] = half(4)
    found = await engine.get_latest("t")
    assert found is not None
    assert (found.state, len(found.messages)) == ({"n": 8, "h": 2}, 1)
    assert found.tools_result["name"] == "half"
    await double(1)
    outside = await engine.get_latest("default")
    assert outside is not None
    assert outside.tools_result["result"] == 2


def test_capture_works_on_its_blocking_face(own: Own) -> None:
    with CheckpointEngine(own).sync as engine:

        @engine.snapshot_on("tool_call")
        def double(n: int) -> int:
            return 2 * n

        with engine.thread("t") as live:
            live.state["n"] = double(4)
        with engine.snapshot_scope("t", {"n": 9}):
            pass
        found = engine.get_latest("t")
        assert found is not None
        assert found.state == {"n": 9}


class Sharing(Own):
    """Hands out what it holds, as a simple backend does."""

    async def put(self, checkpoint: Checkpoint) -> str:
        self.held[checkpoint.metadata.checkpoint_id] = checkpoint
        return checkpoint.metadata.checkpoint_id

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        await asyncio.sleep(0)
        return self.held.get(checkpoint_id)


def test_what_a_backend_holds_is_not_changed_by_callers() -> None:
    with CheckpointEngine(Sharing()).sync as engine:
        first = engine.append("t", [{"content": "0"}], {"x": [0]})
        with engine.thread("t") as live:
            live.messages.append({"content": "1"})
            live.state["x"].append(1)
        engine.append("t", [], {"y": 1})
        found = engine.get(first)
        assert found is not None
        assert (found.messages, found.state) == ([{"content": "0"}], {"x": [0]})
        found.state["x"].append(9)
        again = engine.get(first)
        assert again is not None
        assert again.state == {"x": [0]}


def test_writers_from_all_faces_and_loops_line_up(own: Own) -> None:
    engine = CheckpointEngine(own, SnapshotConfig(gc_policy="keep_all"))

    async def some() -> None:
        await asyncio.gather(*(engine.append("t", [{"n": n}]) for n in range(10)))

    def block() -> None:
        for n in range(10):
            engine.sync.append("t", [{"n": n}])

    with ThreadPoolExecutor(4) as workers:
        done = [workers.submit(asyncio.run, some()) for _ in range(2)] + [workers.submit(block) for _ in range(2)]
        for each in done:
            each.result()
    latest = engine.sync.get_latest("t")
    assert latest is not None
    assert (latest.metadata.step, len(latest.messages)) == (40, 40)
    assert sorted(c.metadata.step for c in own.held.values()) == list(range(1, 41))


async def test_siblings_and_grandchildren_merge(engine: Any) -> None:
    (first,) = await write(engine, 1)
    one, two = await engine.branch(first, "one"), await engine.branch(first, "two")
    await engine.append(one, [], {"one": 1})
    await engine.append(two, [], {"two": 1})
    deep = await engine.branch((await engine.get_latest(two)).metadata.checkpoint_id, "deep")
    await engine.append(deep, [], {"deep": 1})
    await engine.merge_branch(deep, "t")
    await engine.merge_branch(one, two)
    assert (await engine.get_latest("t")).state == {"n": 1, "two": 1, "deep": 1}
    assert (await engine.get_latest(two)).state == {"n": 1, "one": 1, "two": 1}
    assert (await engine.get_latest("t")).metadata.size_bytes > 0


async def test_a_long_past_is_no_reason_to_refuse_a_short_step(make: Any) -> None:
    engine = make(max_snapshot_size_mb=0.001)
    for n in range(5):
        await engine.append("t", [{"content": f"{n}" * 500}])
    assert len((await engine.get_latest("t")).messages) == 5
