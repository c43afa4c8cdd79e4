"""The engine, on every store and both faces: each row of its documentation."""

from __future__ import annotations

import asyncio
import enum
import logging
import threading
from typing import Any

import pytest

import everstep
from everstep import (
    CheckpointNotFound,
    HeadMoved,
    InvalidInput,
    MemoryCheckpointer,
    SnapshotConfig,
    SnapshotTooLarge,
    SnapshotTrigger,
    StoreFull,
    UnstorableValue,
)
from everstep.stores.protocol import Store

USER = {"role": "user", "content": "What is the weather in Oslo?"}
AI = {"role": "assistant", "content": "Let me look."}


# What needs something to run in between makes no sense on the blocking face.
only_async = pytest.mark.parametrize("face", ["async"], indirect=True)


async def test_a_snapshot_comes_back(engine: Any) -> None:
    checkpoint_id = await engine.snapshot(
        "t", [USER, AI], {"n": 1, "plan": ["a", ("b",)]}, {"w": b"\0"}, next_node="tool"
    )

    checkpoint = await engine.get(checkpoint_id)

    assert checkpoint.messages == [USER, AI]
    assert checkpoint.state == {"n": 1, "plan": ["a", ("b",)]}
    assert checkpoint.tools_result == {"w": b"\0"}
    assert checkpoint.next_node == "tool"
    assert checkpoint == await engine.get_latest("t")


async def test_ids_steps_and_parents_follow_the_thread(engine: Any) -> None:
    first = await engine.snapshot("t", [], {}, {})
    second = await engine.snapshot("t", [], {}, {})
    one, two = (await engine.get(first)).metadata, (await engine.get(second)).metadata
    assert [first[:9], second[:9]] == ["ckpt-t-1-", "ckpt-t-2-"]
    assert (one.step, one.parent_checkpoint_id, one.parents) == (1, None, [])
    assert (two.step, two.parent_checkpoint_id, two.parents) == (2, first, [first])


async def test_metadata_says_when_why_and_what(engine: Any) -> None:
    given = {"run": 7}
    await engine.snapshot("t", [USER], {}, {}, "tool_call", tags=["x", "tool_call"], metadata=given)
    given["run"] = 8
    metadata = (await engine.get_latest("t")).metadata
    assert metadata.tags == ["x", "tool_call"]
    assert metadata.trigger == "tool_call"
    assert metadata.metadata == {"run": 7}
    assert metadata.summary == "[user] What is the weather in Oslo?"
    assert metadata.created_at.endswith("+00:00")
    assert metadata.size_bytes > len(USER["content"])


@pytest.mark.parametrize(
    ("messages", "state", "expected"),
    [
        ([{"role": "user", "content": "x" * 300}], {}, "[user] " + "x" * 100),
        ([], {"a": 1, "b": 2}, "State: 2 keys"),
        ([], {}, "State: 0 keys"),
        (
            [{"role": "ai", "content": [{"type": "text", "text": "hi"}, {"type": "image"}, "there"]}],
            {},
            "[ai] hi there",
        ),
        ([{"content": None}], {}, "[?] "),
        ([{"role": "u", "content": "\ud800"}], {}, "[u] ?"),
        ([{"role": "r" * 1000, "content": 10**5000}], {}, f"[{'r' * 40}] a int"),
    ],
)
async def test_the_summary_defaults_to_the_last_message(engine: Any, messages: Any, state: Any, expected: str) -> None:
    await engine.snapshot("t", messages, state, {})
    assert (await engine.get_latest("t")).metadata.summary == expected


async def test_a_summary_can_be_given(engine: Any) -> None:
    await engine.snapshot("t", [USER], {}, {}, summary="")
    assert (await engine.get_latest("t")).metadata.summary == ""


async def test_a_trigger_that_is_not_configured_saves_nothing(make_engine: Any) -> None:
    engine = make_engine(triggers=["tool_call"])
    assert await engine.snapshot("t", [], {}, {}) == ""
    assert await engine.append("t", [USER]) == ""
    assert await engine.snapshot("t", [], {}, {}, SnapshotTrigger.TOOL_CALL) != ""
    assert len(await engine.list_time_travel_points("t")) == 1


async def test_later_changes_by_the_caller_do_not_reach_what_was_saved(engine: Any) -> None:
    messages, state = [dict(USER)], {"list": [1]}
    checkpoint_id = await engine.snapshot("t", messages, state, {})
    messages[0]["content"] = "changed"
    state["list"].append(2)
    read = await engine.get(checkpoint_id)
    read.messages.append("mine")
    read.state["list"].append(3)
    again = await engine.get(checkpoint_id)
    assert again.messages == [USER]
    assert again.state == {"list": [1]}


async def test_an_explicit_older_parent_starts_a_second_line(engine: Any) -> None:
    first = await engine.snapshot("t", [], {"n": 1}, {})
    second = await engine.snapshot("t", [], {"n": 2}, {})
    other = await engine.snapshot("t", [], {"n": 3}, {}, parent_checkpoint_id=first)

    found = await engine.list_time_travel_points("t")

    assert [m.checkpoint_id for m in found] == [other, second, first]
    assert [m.step for m in found] == [2, 2, 1]
    assert (await engine.get_latest("t")).state == {"n": 3}
    assert (await engine.get(other)).metadata.parent_checkpoint_id == first


async def test_an_unknown_parent_is_refused(engine: Any) -> None:
    await engine.snapshot("t", [], {}, {})
    elsewhere = await engine.snapshot("other", [], {}, {})
    for parent in ("nope", elsewhere):
        with pytest.raises(CheckpointNotFound):
            await engine.snapshot("t", [], {}, {}, parent_checkpoint_id=parent)
    assert len(await engine.list_time_travel_points("t")) == 1


async def test_expected_head_decides_who_goes_on(engine: Any) -> None:
    first = await engine.snapshot("t", [], {}, {}, expected_head=None)
    with pytest.raises(HeadMoved) as caught:
        await engine.snapshot("t", [], {}, {}, expected_head=None)
    assert caught.value.actual == first
    second = await engine.append("t", [USER], expected_head=first)
    for call in (engine.snapshot("t", [], {}, {}, expected_head=first), engine.append("t", [AI], expected_head=first)):
        with pytest.raises(HeadMoved):
            await call
    assert (await engine.get_latest("t")).metadata.checkpoint_id == second


async def test_append_adds_messages_and_sets_keys(engine: Any) -> None:
    await engine.append("t", [USER], {"a": 1, "b": 1}, {"x": 1})
    await engine.append("t", [AI, USER], {"b": 2, "c": 3})
    await engine.append("t", tools_result={"y": 2}, next_node="n")
    checkpoint = await engine.get_latest("t")
    assert checkpoint.messages == [USER, AI, USER]
    assert checkpoint.state == {"a": 1, "b": 2, "c": 3}
    assert checkpoint.tools_result == {"x": 1, "y": 2}
    assert (checkpoint.next_node, checkpoint.metadata.step) == ("n", 3)


async def test_append_and_snapshot_make_the_same_checkpoint(make_engine: Any, store: Any) -> None:
    engine = make_engine(gc_policy="keep_all")
    messages = [{"role": "user", "content": f"message {n} " * 20} for n in range(150)]
    for n in range(0, 150, 10):
        await engine.append("a", messages[n : n + 10], {"n": n})
    await engine.snapshot("b", messages, {"n": 140}, {})
    one, two = [(await store.read(t)).stored.record for t in "ab"]
    assert (one.children, one.body, one.sizes) == (two.children, two.body, two.sizes)


@pytest.mark.parametrize("split", [True, False])
async def test_mixed_snapshots_and_appends_read_back(make_engine: Any, split: bool) -> None:
    engine = make_engine(delta_snapshots=split, gc_policy="keep_all")
    messages: list[Any] = []
    expected = {}
    for n in range(60):
        message = {"role": "user", "content": f"{n} " * (n % 7 * 100)}
        messages = [*messages, message]
        if n % 3 == 0:
            checkpoint_id = await engine.snapshot("t", messages, {"n": n, "big": "x" * 5000}, {})
        else:
            checkpoint_id = await engine.append("t", [message], {"n": n})
        expected[checkpoint_id] = (messages, n)
    for checkpoint_id, (saved, n) in expected.items():
        checkpoint = await engine.get(checkpoint_id)
        assert checkpoint.messages == saved
        assert checkpoint.state["n"] == n


async def test_without_deltas_each_checkpoint_is_one_object(make_engine: Any, store: Store) -> None:
    engine = make_engine(delta_snapshots=False)
    await engine.snapshot("t", [USER] * 500, {"a": "x" * 50_000}, {})
    loaded = await store.read("t", objects=True)
    assert loaded is not None
    assert len(loaded.objects) == 1


async def test_an_unsplit_thread_can_go_on_split(make_engine: Any) -> None:
    await make_engine(delta_snapshots=False).snapshot("t", [USER], {"a": 1}, {})
    engine = make_engine()
    await engine.append("t", [AI], {"b": 2})
    await engine.append("t", [USER])
    checkpoint = await engine.get_latest("t")
    assert (checkpoint.messages, checkpoint.state) == ([USER, AI, USER], {"a": 1, "b": 2})


def _prose(seed: int, words: int) -> str:
    return " ".join(str(seed * 1_000_003 + n) for n in range(words))


async def test_the_size_limit_is_for_what_is_added(make_engine: Any) -> None:
    engine = make_engine(max_snapshot_size_mb=0.1, gc_policy="keep_all")
    messages: list[Any] = []
    for n in range(8):
        messages.append({"role": "user", "content": _prose(n, 8_000)})
        await engine.snapshot("t", messages, {}, {})
    with pytest.raises(SnapshotTooLarge) as caught:
        await engine.snapshot("t", [*messages, {"role": "user", "content": _prose(9, 20_000)}], {}, {})
    assert caught.value.size_bytes_max == 100_000 < caught.value.size_bytes
    with pytest.raises(SnapshotTooLarge):
        await engine.append("t", [{"content": _prose(9, 20_000)}])
    assert len(await engine.list_time_travel_points("t")) == 8


async def test_an_append_that_was_too_large_leaves_nothing_behind(make_engine: Any) -> None:
    """Its messages are written down when it is refused; the next append begins at the same head."""
    engine = make_engine(max_snapshot_size_mb=0.1)
    too_large = [USER, {"content": _prose(9, 20_000)}]
    expected: list[Any] = []
    for n in range(12):
        with pytest.raises(SnapshotTooLarge):
            await engine.append("t", too_large)
        expected.append({"role": "user", "content": f"message {n}"})
        await engine.append("t", expected[-1:])
    assert (await make_engine().get_latest("t")).messages == expected


async def test_an_append_that_the_store_refused_leaves_nothing_behind(
    make_engine: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    expected: list[Any] = []

    async def refuse(store: Store, change: Any) -> Any:
        raise StoreFull("there is no space left")

    for n in range(12):
        with monkeypatch.context() as patch:
            for each in (store, store.blocking):
                patch.setattr(type(each), "commit", refuse)
            with pytest.raises(StoreFull):
                await engine.append("t", [USER, AI])
        expected.append({"role": "user", "content": f"message {n}"})
        await engine.append("t", expected[-1:])
    assert (await make_engine().get_latest("t")).messages == expected


async def test_the_past_does_not_count_in_a_new_process_either(make_engine: Any) -> None:
    messages = [{"role": "user", "content": f"{n} " * 20_000} for n in range(5)]
    await make_engine(max_snapshot_size_mb=1).snapshot("t", messages, {}, {})
    fresh = make_engine(max_snapshot_size_mb=0.01)
    await fresh.snapshot("t", [*messages, USER], {}, {})
    assert len((await fresh.get_latest("t")).messages) == 6


async def test_snapshot_safe_logs_and_goes_on(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "everstep"):
        assert await engine.snapshot_safe("t", [], {"socket": object()}, {}) == ""
    assert "UnstorableValue" in caplog.text
    assert "state.socket" in caplog.text
    assert await engine.snapshot_safe("t", [], {}, {}) != ""


async def test_an_unstorable_value_names_its_place(engine: Any) -> None:
    await engine.snapshot("t", [USER], {}, {})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"messages": [USER, {"role": "tool", "content": [1, object()]}]}, "messages[1].content[1]"),
        ({"state": {"plan": [1, 2, {"due": object()}]}}, "state.plan[2].due"),
        ({"state": {"big": ["x" * 100] * 100 + [{"k": object()}]}}, "state.big[100].k"),
        ({"tools_result": {"two words": object()}}, "tools_result['two words']"),
    ]
    for values, path in cases:
        arguments = {"messages": [], "state": {}, "tools_result": {}} | values
        with pytest.raises(UnstorableValue) as caught:
            await engine.snapshot("t", **arguments)
        assert caught.value.path == path
        with pytest.raises(UnstorableValue):
            await engine.append("t", **values)
    assert len(await engine.list_time_travel_points("t")) == 1


async def test_listing_is_newest_first_with_a_limit(engine: Any) -> None:
    for n in range(5):
        await engine.snapshot("t", [], {"n": n}, {})
    assert [m.step for m in await engine.list_time_travel_points("t")] == [5, 4, 3, 2, 1]
    assert [m.step for m in await engine.list_time_travel_points("t", limit=2)] == [5, 4]
    assert await engine.list_time_travel_points("t", limit=0) == []
    assert await engine.list_time_travel_points("nobody") == []


async def test_what_is_not_there_is_none(engine: Any) -> None:
    assert await engine.get_latest("t") is None
    assert await engine.get("ckpt-t-1-00000000") is None


async def test_namespaces_are_lines_of_their_own(engine: Any) -> None:
    await engine.snapshot("t", [USER], {}, {})
    inner = await engine.snapshot("t", [AI], {}, {}, namespace="sub")
    assert (await engine.get_latest("t")).messages == [USER]
    assert (await engine.get_latest("t", namespace="sub")).metadata.checkpoint_id == inner
    assert (await engine.get(inner)).metadata.namespace == "sub"


def test_a_sync_call_inside_a_running_loop_works() -> None:
    engine = everstep.CheckpointEngine(MemoryCheckpointer())

    async def main() -> None:
        engine.sync.snapshot("t", [USER], {}, {})
        await engine.snapshot("t", [USER, AI], {}, {})
        assert engine.sync.get_latest("t").metadata.step == 2  # type: ignore[union-attr]

    asyncio.run(main())


def test_both_faces_have_the_same_methods() -> None:
    for face, source in (
        (everstep.SyncEngine, everstep.CheckpointEngine),
        (everstep.SyncBackend, everstep.StoreBackend),
    ):
        methods = {
            name for name, value in vars(source).items() if asyncio.iscoroutinefunction(value) and name[0] != "_"
        } - {"locate", "require"}
        assert methods <= set(vars(face))


async def test_engines_are_context_managers() -> None:
    async with everstep.CheckpointEngine(MemoryCheckpointer()) as engine:
        await engine.snapshot("t", [], {}, {})
    with pytest.raises(everstep.StoreClosed):
        await engine.get_latest("t")
    with everstep.CheckpointEngine(MemoryCheckpointer()).sync as sync:
        sync.snapshot("t", [], {}, {})
    with pytest.raises(everstep.StoreClosed):
        sync.get_latest("t")


@only_async
async def test_cancellation_passes_through_snapshot_safe(
    engine: Any, monkeypatch: pytest.MonkeyPatch, face: str
) -> None:
    async def cancelled(*args: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(engine.checkpointer.store, "commit", cancelled, raising=False)
    with pytest.raises(asyncio.CancelledError):
        await engine.snapshot_safe("t", [], {}, {})


# -- what others do meanwhile


def two_engines(store: Store) -> list[everstep.SyncEngine]:
    """Two engines that remember apart, as in two processes."""
    return [everstep.CheckpointEngine(everstep.StoreBackend(store)).sync for _ in range(2)]


def test_an_old_memory_of_the_head_does_no_harm(store: Store) -> None:
    one, two = two_engines(store)
    one.snapshot("t", [USER], {"big": "x" * 500}, {})
    two.append("t", [AI])
    one.checkpointer.delete_thread("t")
    two.append("t", [USER], {"k": 1})
    assert two.get_latest("t").messages == [USER]  # type: ignore[union-attr]
    first = one.snapshot("u", [], {}, {})
    second = two.append("u", [USER], expected_head=first)
    third = one.append("u", [AI], expected_head=second)
    one.checkpointer.delete_thread("u")
    with pytest.raises(HeadMoved):
        two.append("u", [AI], expected_head=third)
    two.append("u", [AI], expected_head=None)


def test_a_retried_put_is_not_taken_for_the_head(store: Store) -> None:
    engine = two_engines(store)[0]
    old = everstep.Checkpoint(everstep.CheckpointMetadata("t", "a", 1))
    engine.checkpointer.put(old)
    head = engine.snapshot("t", [], {}, {})
    engine.checkpointer.put(old)
    engine.append("t", [USER], expected_head=head)


def test_a_base_that_is_deleted_meanwhile_is_sent_again(store: Store) -> None:
    one, two = two_engines(store)
    messages = [{"role": "user", "content": f"{n} " * 100} for n in range(50)]
    one.snapshot("t", messages, {}, {})
    two.checkpointer.delete_thread("t")
    two.snapshot("t", [], {}, {})
    one.snapshot("t", [*messages, USER], {}, {})
    assert two.get_latest("t").messages == [*messages, USER]  # type: ignore[union-attr]


def test_setting_a_key_adds_only_what_changed() -> None:
    engine = everstep.open("memory://", SnapshotConfig(max_snapshot_size_mb=0.1)).sync
    state = {}
    for n in range(4):
        state[f"k{n}"] = _prose(n, 7_000)
        engine.snapshot("t", [], state, {})
    engine.append("t", state={"x": 1})
    assert engine.get_latest("t").state == state | {"x": 1}  # type: ignore[union-attr]


def test_values_changed_by_another_thread_are_still_readable() -> None:
    engine = everstep.open("memory://", SnapshotConfig(gc_policy="keep_all")).sync
    state: dict[str, Any] = {f"k{n}": "x" * 100 for n in range(300)}
    stop = threading.Event()

    def change() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            state[f"k{n % 300}"] = "x" * (100 + n % 900)
            state.pop(f"extra {n % 7}", None)
            state[f"extra {n % 5}"] = n

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(15):
            found = engine.get(engine.snapshot("t", [], state, {}))
            assert found is not None
            assert set(found.state["k1"]) == {"x"}
    finally:
        stop.set()
        other.join()


@only_async
async def test_what_is_saved_is_what_there_was_at_the_call(engine: Any, face: str) -> None:
    state, messages = {"n": 1}, [{"n": 1}]

    async def change() -> None:
        state["n"] = messages[0]["n"] = 2

    first = await engine.snapshot("c", [], {}, {})
    for save in (
        engine.snapshot("a", messages, state, {}, metadata={"state": state}),
        engine.append("b", messages, state, metadata={"state": state}),
        engine.snapshot("c", messages, state, {}, parent_checkpoint_id=first, metadata={"state": state}),
    ):
        state["n"] = messages[0]["n"] = 1
        await asyncio.gather(save, change())
    for thread in "abc":
        found = await engine.get_latest(thread)
        assert (found.state, found.messages) == ({"n": 1}, [{"n": 1}])
        assert found.metadata.metadata == {"state": {"n": 1}}


@only_async
async def test_a_base_lost_on_the_way_does_not_change_what_is_saved(store: Store, face: str) -> None:
    one, two = (everstep.CheckpointEngine(everstep.StoreBackend(store)) for _ in range(2))
    messages = [{"role": "user", "content": "m" * 300}]
    await one.snapshot("t", messages, {"k": "v" * 300}, {})
    await two.checkpointer.delete_thread("t")
    state = {"k": "v" * 300, "n": 1}
    saving = asyncio.create_task(one.snapshot("t", messages, state, {}))
    await asyncio.sleep(0)
    state["n"] = 2
    found = await two.get(await saving)
    assert found is not None
    assert found.state["n"] == 1
    assert found.messages == messages


async def test_metadata_takes_plain_types_only(engine: Any) -> None:
    await engine.snapshot("t", [], {}, {})
    deep: Any = 1
    for _ in range(150):
        deep = (deep,)
    for metadata in ({"c": Shade.DARK}, {"x": [{"y": Shade.DARK}]}, {"deep": deep}):
        with pytest.raises(UnstorableValue):
            await engine.snapshot("t", [], {}, {}, metadata=metadata)
    assert len(await engine.list_time_travel_points("t")) == 1


@everstep.register
class Shade(enum.Enum):
    DARK = 1


@pytest.mark.parametrize(
    "wrap", [lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: {"k": v}, lambda v: frozenset([v])]
)
@pytest.mark.parametrize("leaf", ["x", "y" * 5000])
@pytest.mark.parametrize(("kind", "face"), [("memory", "blocking")], indirect=True)  # about values, not stores
async def test_what_is_accepted_can_be_read_back_at_any_depth(engine: Any, wrap: Any, leaf: str) -> None:
    value: Any = leaf
    saved = 0
    for depth in range(1, 130):
        value = wrap(value)
        if depth % 11 and depth < 95:
            continue
        try:
            checkpoint_id = await engine.snapshot("t", [], {"v": value}, {})
        except UnstorableValue:
            assert depth >= 99  # the mapping around it counts too
            continue
        saved += 1
        assert depth < 100
        assert (await engine.get(checkpoint_id)).state == {"v": value}
    assert saved >= 10


# -- bad input: a clear error, and nothing lost


@pytest.mark.parametrize("thread_id", ["", None, 7, b"t", "x" * 10_000, "\ud800", ["t"]])
async def test_impossible_thread_ids_are_refused(engine: Any, store: Store, thread_id: Any) -> None:
    calls = [
        lambda: engine.snapshot(thread_id, [], {}, {}),
        lambda: engine.append(thread_id, [USER]),
        lambda: engine.get_latest(thread_id),
        lambda: engine.list_time_travel_points(thread_id),
    ]
    for call in calls:
        with pytest.raises(InvalidInput, match="thread_id"):
            await call()  # type: ignore[no-untyped-call]
    assert await store.list_threads(10, 0) == []


@pytest.mark.parametrize(
    "thread_id", ["a\0b", "a\nb", "../../etc/passwd", "é" * 500, " ", "'; DROP TABLE x; --", "{a}"]
)
async def test_odd_thread_ids_work(engine: Any, thread_id: str) -> None:
    checkpoint_id = await engine.snapshot(thread_id, [USER], {}, {})
    assert (await engine.get(checkpoint_id)).metadata.thread_id == thread_id
    assert (await engine.get_latest(thread_id)).messages == [USER]


async def test_impossible_arguments_are_refused(engine: Any) -> None:
    await engine.snapshot("t", [USER], {}, {})
    bad: list[dict[str, Any]] = [
        {"messages": "text"},
        {"messages": None},
        {"messages": 5},
        {"state": []},
        {"state": None},
        {"tools_result": "x"},
        {"trigger": "sometimes"},
        {"trigger": None},
        {"next_node": 5},
        {"tags": "one"},
        {"tags": [1]},
        {"tags": None},
        {"tags": 5},
        {"summary": 5},
        {"metadata": []},
        {"namespace": None},
        {"parent_checkpoint_id": 5},
        {"parent_checkpoint_id": ""},
        {"expected_head": 5},
        {"expected_head": ""},
    ]
    for change in bad:
        arguments = {"messages": [], "state": {}, "tools_result": {}} | change
        with pytest.raises(InvalidInput):
            await engine.snapshot("t", **arguments)
    for limit in (-1, 1.5, "3", None, True, 10**30, 10**5000):
        with pytest.raises(InvalidInput, match="limit"):
            await engine.list_time_travel_points("t", limit=limit)
    for checkpoint_id in ("", None, 5, "x" * 10_000):
        with pytest.raises(InvalidInput, match="checkpoint_id"):
            await engine.get(checkpoint_id)
    assert len(await engine.list_time_travel_points("t")) == 1


async def test_cyclic_and_too_deep_values_are_refused(engine: Any) -> None:
    cyclic: dict[str, Any] = {"name": "loop"}
    cyclic["self"] = [cyclic]
    deep: Any = "bottom"
    for _ in range(250):
        deep = {"k": deep}
    very_deep: Any = "bottom"
    for _ in range(5000):
        very_deep = [very_deep]
    for value in (cyclic, deep, very_deep):
        with pytest.raises(UnstorableValue):
            await engine.snapshot("t", [], {"value": value}, {})
        with pytest.raises(UnstorableValue):
            await engine.snapshot("t", [{"content": value}], {}, {})
    assert await engine.get_latest("t") is None


@pytest.mark.parametrize(
    "config",
    [
        {"triggers": ["nonsense"]},
        {"triggers": "manual"},
        {"triggers": 5},
        {"gc_policy": "keep_some"},
        {"gc_policy": None},
        {"gc_param": 0},
        {"gc_param": -5},
        {"gc_param": float("nan")},
        {"gc_param": "many"},
        {"gc_param": 2.5},
        {"gc_param": True},
        {"gc_param": 10**400},
        {"max_snapshot_size_mb": 1e308},
        {"max_snapshot_size_mb": 0},
        {"max_snapshot_size_mb": float("inf")},
        {"max_snapshot_size_mb": "10"},
        {"delta_snapshots": "yes"},
    ],
)
def test_wrong_configuration_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        SnapshotConfig(**config)


def test_configuration_takes_names_and_members() -> None:
    config = SnapshotConfig(triggers=["manual", SnapshotTrigger.INTERVAL], gc_policy="keep_age", gc_param=2.5)
    assert config.triggers == {SnapshotTrigger.MANUAL, SnapshotTrigger.INTERVAL}
    assert config.gc_policy is everstep.CheckpointGC.KEEP_AGE
    assert SnapshotConfig().triggers == {"manual", "tool_call", "llm_call", "state_change"}


def test_an_engine_needs_a_backend() -> None:
    for wrong in (None, "sqlite", object()):
        with pytest.raises(InvalidInput):
            everstep.CheckpointEngine(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        everstep.CheckpointEngine(MemoryCheckpointer(), {"triggers": []})  # type: ignore[arg-type]
