"""Rows that are small when stored and huge when read: the work is bounded by what is stored, not by what is claimed."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import empty_checkpoint

import everstep
from everstep import CheckpointCorrupted, CheckpointEngine, SnapshotConfig, UnstorableValue
from everstep.backends import StoreBackend
from everstep.history import diff
from everstep.history.message_facts import id_of
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.channels import WRITES, Channels
from everstep.langgraph.classes import Kinds
from everstep.stores.memory import MemoryStore
from everstep.values import codec, compress, costs, tree
from everstep.values.tree import repetition
from tests.values.bombs import BOMBS, Forge, repeated
from tests.values.samples import values
from tests.values.trees import large_values

MEMORY_BYTES = 1 << 30
"""For the whole process, its libraries included. Without a bound the bombs take many times as much."""
PEAK_MB = 800
CPU_SECONDS = 90
"""For all bombs together: they take about 15. Without a bound one of the larger takes as much."""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["", "langgraph"])
def test_a_bomb_of_any_size_is_read_or_refused(kind: str) -> None:
    command = [sys.executable, "-m", "tests.values.bombs", kind, str(MEMORY_BYTES), str(CPU_SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [line.split("\t") for line in done.stdout.splitlines()]
    refused = {(bomb, way) for bomb, _, way, outcome, *_ in outcomes if outcome == "CheckpointCorrupted"}
    assert {bomb for bomb, _ in refused} == set(BOMBS)
    assert {("texts", "get"), ("texts", "diff")} <= refused
    # Whoever uses up all memory is told so by the packer, which looks like a refusal.
    assert max(int(peak_mb) for *_, peak_mb in outcomes) < PEAK_MB


class Counted(dict[bytes, tree.Content]):
    """Objects that count how often they are asked for."""

    asked = 0

    def get(self, key: bytes, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)

    def __getitem__(self, key: bytes) -> tree.Content:
        self.asked += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("levels", [4, 5, 6, 7])
@pytest.mark.parametrize(
    "bomb", ["texts", "numbers", "nested lists", "nested maps", "empty groups", "long text", "packed dicts"]
)
def test_the_steps_depend_on_the_objects_alone(bomb: str, levels: int) -> None:
    node, forge = BOMBS[bomb](levels)
    objects = Counted(forge.objects)
    try:
        tree.Reader(objects, node.size).fields(node.children, node.body, 1)
    except CheckpointCorrupted:
        pass
    assert objects.asked < 100 * (levels + 1)


def test_repeats_are_counted_without_unfolding() -> None:
    for levels in (1, 3, 12, 30):
        forge = Forge()
        key = forge.groups(forge.leaf(b"\x90"), levels)
        objects = Counted(forge.objects)
        cost = tree.repeats(key, b"", objects.get)
        assert 70 * (16**levels - 1) < cost < 200 * 16**levels
        assert objects.asked <= 3 * len(objects)


def test_what_does_not_repeat_costs_nothing() -> None:
    writer = tree.Writer()
    node = writer.list_node([{"role": "user", "content": f"message {n} " * 30} for n in range(5000)], "v")
    assert node.size > repetition.REPEATS_FREE
    assert tree.repeats(node.children, node.body, writer.objects.get) == 0


HONEST: dict[str, Any] = {
    "equal messages": [{"role": "user", "content": "the same " * 20}] * 20_000,
    "zeros": [0.0] * 200_000,
    "equal texts": [{"n": n, "text": "a long text of a tool " * 2000} for n in range(200)],
    "equal bytes": [bytes(range(256)) * 4000] * 20,
    "copies": {f"k{n}": [{"a": m} for m in range(200)] for n in range(100)},
    "empty": [[], {}, ()] * 30_000,
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_repetition_comes_back(name: str) -> None:
    with everstep.open("memory://").sync as engine:
        saved = engine.snapshot("t", [], {"x": HONEST[name]}, {})
        found = engine.get(saved)
        assert found is not None
        assert found.state == {"x": HONEST[name]}


def test_what_could_not_be_read_is_refused_at_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "REPEATS_MAX", 40 << 20)
    message = {"role": "user", "content": "the same " * 50}
    with everstep.open("memory://").sync as engine:
        with pytest.raises(UnstorableValue, match="again and again"):
            engine.snapshot("t", [], {"x": [message] * 50_000}, {})
        with pytest.raises(UnstorableValue, match="again and again"):  # noqa: PT012
            for _ in range(100):
                engine.append("t", [message] * 500, {})
        found = engine.get_latest("t")
        assert found is not None
        assert found.messages[-1] == message


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "REPEATS_FREE", 20_000)
    monkeypatch.setattr(repetition, "REPEATS_MAX", 400_000)


MESSAGE = {"role": "user", "content": "the same " * 50}
NOTE = {"role": "user", "content": ("the same " * 60)[:490]}
"""Takes 512 bytes, so that equal ones make equal pieces."""
UNSPLIT = SnapshotConfig(delta_snapshots=False)


def opened(store: MemoryStore, config: SnapshotConfig | None = None) -> Any:
    """Return an engine that remembers nothing."""
    return CheckpointEngine(StoreBackend(store), config).sync


def appended(store: MemoryStore, _step: int) -> Any:
    return opened(store).append("t", [MESSAGE] * 10, {})


def appended_in_turn(store: MemoryStore, step: int) -> Any:
    """Alternate with a writer that keeps checkpoints whole."""
    return opened(store, UNSPLIT if step % 2 else None).append("t", [MESSAGE] * 10, {})


def state_set(store: MemoryStore, step: int) -> Any:
    return opened(store).append("t", [], {f"k{step}": "x" * 20_000})


def fields_alike(store: MemoryStore, step: int) -> Any:
    """Let the messages repeat what is in the state: none of them is too much by itself."""
    same = [MESSAGE] * (10 * step)
    return opened(store).snapshot("t", same, {"x": same}, {"y": same})


def merged(store: MemoryStore, step: int) -> Any:
    engine = opened(store)
    if step == 0:
        return engine.append("t", [MESSAGE] * 10, {})
    branch = engine.branch(engine.get_latest("t").metadata.checkpoint_id, f"b{step}")
    opened(store).append(branch, [], {f"k{step}": [MESSAGE] * 10})
    opened(store).append("t", [MESSAGE] * 10, {})
    return opened(store).merge_branch(branch, "t")


def lived(store: MemoryStore, _step: int) -> Any:
    with opened(store).thread("t") as thread:
        thread.messages.extend([MESSAGE] * 10)
    return opened(store).get_latest("t").metadata.checkpoint_id


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("save", [appended, appended_in_turn, state_set, fields_alike, merged, lived])
def test_what_is_acknowledged_is_readable_whoever_wrote_the_rest(save: Callable[[MemoryStore, int], Any]) -> None:
    store = MemoryStore()
    for step in range(200):
        before = opened(store).get_latest("t")
        try:
            saved = save(store, step)
        except UnstorableValue:
            break
        assert opened(store).get(saved) is not None
        assert opened(store).get_latest("t") != before
    else:
        pytest.fail("nothing was refused")
    assert step > 3
    assert opened(store).get_latest("t") is not None


@pytest.mark.usefixtures("low_limits")
def test_a_merge_that_could_not_be_read_is_refused() -> None:
    store = MemoryStore()
    begun = opened(store).append("t", [], {"a": 1})
    branch = opened(store).branch(begun, "b")
    opened(store).append(branch, [{"role": "user", "content": "another " * 50}] * 200, {})
    ours = opened(store).append("t", [MESSAGE] * 200, {})
    with pytest.raises(UnstorableValue, match="again and again"):
        opened(store).merge_branch(branch, "t")
    assert opened(store).get_latest("t").metadata.checkpoint_id == ours


@pytest.mark.usefixtures("low_limits")
def test_a_merge_of_savers_threads_that_could_not_be_read_is_refused() -> None:
    store = MemoryStore()

    def put(config: Any, channel: str, size: int) -> Any:
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {channel: [MESSAGE] * size}, {channel: 1}
        return HarnessCheckpointer(backend=store).put(config, checkpoint, {"step": size}, {channel: 1})

    config = put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, "a", 1)
    begun = config["configurable"]["checkpoint_id"]
    branch = opened(store).branch(begun, "b")
    put({"configurable": {"thread_id": branch, "checkpoint_ns": "", "checkpoint_id": begun}}, "theirs", 150)
    ours = put(config, "ours", 150)
    with pytest.raises(UnstorableValue, match="again and again"):
        opened(store).merge_branch(branch, "t")
    found = HarnessCheckpointer(backend=store).get_tuple({"configurable": {"thread_id": "t"}})
    assert found is not None
    assert found.config["configurable"]["checkpoint_id"] == ours["configurable"]["checkpoint_id"]


@pytest.mark.usefixtures("low_limits")
@pytest.mark.parametrize("channel", ["messages", "notes"])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_what_a_saver_acknowledges_is_readable(channel: str, is_fresh: bool) -> None:
    store = MemoryStore()
    saver = HarnessCheckpointer(backend=store)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    value: list[Any] = []
    made = HumanMessage("the same " * 50, id="1") if channel == "messages" else NOTE
    for step in range(200):
        if is_fresh:
            saver = HarnessCheckpointer(backend=store)
        value = value + [made] * 10
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"], checkpoint["channel_versions"] = {channel: value}, {channel: step}
        try:
            config = saver.put(config, checkpoint, {"step": step}, {channel: step})
        except UnstorableValue:
            break
        found = HarnessCheckpointer(backend=store).get_tuple(config)
        assert found is not None
        assert found.checkpoint["channel_values"][channel] == value
        assert len(list(HarnessCheckpointer(backend=store).list(config, limit=2))) >= 1
    else:
        pytest.fail("nothing was refused")
    assert step > 3


@pytest.mark.usefixtures("low_limits")
def test_a_pending_write_that_could_not_be_read_is_refused() -> None:
    saver = HarnessCheckpointer(backend=MemoryStore())
    config = saver.put({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), {"step": 1}, {})
    saver.put_writes(config, [("notes", [NOTE] * 100)], "a")
    with pytest.raises(UnstorableValue, match="again and again"):
        saver.put_writes(config, [("notes", [NOTE] * 3000)], "b")
    found = saver.get_tuple(config)
    assert found is not None
    assert found.pending_writes == [("a", "notes", [NOTE] * 100)]


class CountingStore(MemoryStore):
    """Counts the objects that are loaded."""

    loaded = 0

    async def read(self, *args: Any, **options: Any) -> Any:
        found = await super().read(*args, **options)
        self.loaded += len(found.objects) if found is not None else 0
        return found

    async def fetch(self, *args: Any, **options: Any) -> Any:
        found = await super().fetch(*args, **options)
        self.loaded += len(found)
        return found


def test_a_merge_into_a_large_thread_loads_what_differs() -> None:
    store = CountingStore()
    said = [{"role": "user", "content": f"message {n} " * 300} for n in range(500)]
    first = opened(store).append("t", said, {})
    branch = opened(store).branch(first, "b")
    opened(store).append(branch, [{"role": "user", "content": "on a branch " * 9}], {})
    opened(store).append("t", [{"role": "user", "content": "beside it " * 9}], {})
    store.loaded = 0
    merged = opened(store).merge_branch(branch, "t")
    assert 0 < store.loaded < 100
    assert len(opened(store).get(merged).messages) == 502


@pytest.mark.usefixtures("low_limits")
def test_an_append_to_a_large_thread_loads_nothing() -> None:
    store = CountingStore()
    opened(store).append("t", [{"role": "user", "content": f"message {n} " * 9} for n in range(500)], {})
    looks = 0
    for step in range(200):
        store.loaded = 0
        opened(store).append("t", [{"role": "user", "content": f"another {step} " * 9}], {})
        looks += store.loaded > 0
    # 300,000 may be added before somebody looks again, and each message counts less than 1,000.
    assert looks == 0
    latest = opened(store).get_latest("t")
    branch = opened(store).branch(latest.metadata.checkpoint_id, "b")
    store.loaded = 0
    opened(store).append(branch, [{"role": "user", "content": "on a branch"}], {})
    assert store.loaded == 0
    opened(store).append("t", [MESSAGE] * 180, {})
    assert store.loaded > 500


@pytest.mark.parametrize("value", [
    0, -20, 300, -1.5, None, "", "text", b"bytes", [], {}, (), {"a": 1}, [[1, 2], {"b": [None]}], (1, (2,)), {1, 2},
    {1: 2}, "long " * 30_000, bytes(40_000), [{"role": "user", "content": "x" * n} for n in range(400)],
    {f"key {n}": {"a": [n] * 9} for n in range(500)}, bytearray(40_000), [("tagged", n) for n in range(2000)],
])  # fmt: skip
def test_a_value_in_parts_weighs_what_it_weighs_in_one_piece(value: Any) -> None:
    """An append is allowed by the weight of its bytes, and read by the weight of the objects that they became."""
    writer = tree.Writer()
    weight, packed = costs.weight(codec.pack(value)), codec.pack(value)
    node = writer.list_node([value], "v")
    once = tree.repeats(node.children, node.body, writer.objects.get)
    twice = tree.repeats(node.children * 2, node.body * 2, writer.objects.get)
    if twice:
        assert 0.95 * weight - 80 <= twice - once <= 1.05 * weight + 80
    else:
        assert len(packed) <= 48
    assert writer.weight_at_most() >= 0.95 * weight - 80


@given(values() | large_values())
def test_a_quick_look_weighs_no_less_than_a_close_one(value: Any) -> None:
    packed = codec.pack(value)
    assert costs.weight(packed) <= costs.weight_at_most(packed)


def test_a_long_text_of_equal_pieces_is_weighed_as_a_text() -> None:
    """A quick look would take each letter for a number."""
    writer = tree.Writer()
    node = writer.value("x" * (20 << 20), "v")
    cost = tree.repeats(node.children, node.body, writer.objects.get)
    assert 35 << 20 < cost < 45 << 20


@pytest.mark.parametrize("leaf", [
    1, -20, 300, -(2**40), 1.5, None, True, "", "ab", "x" * 100, "é" * 99, "ж" * 99 + "x", "x\U0001f600" * 99,
    b"", b"x" * 100, [], {}, {"a": 1}, {f"k{n}": n for n in range(6)}, {f"k{n}": n for n in range(90)}, [1] * 100,
    [[]] * 50, (), ((), 1), {1, 2}, {"role": "user", "content": "x"}, Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC),
    UUID(int=5), 2**70,
])  # fmt: skip
def test_nothing_weighs_less_than_it_takes_in_memory(leaf: Any) -> None:
    packed = codec.pack([leaf] * 5000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        value = codec.unpack(packed)
        taken = tracemalloc.get_traced_memory()[0] - before + len(packed)
    finally:
        tracemalloc.stop()
    assert len(value) == 5000
    assert taken <= costs.weight(packed) * 1.1


def test_many_trees_in_the_rest_of_a_checkpoint_are_a_large_one() -> None:
    """Delta channels are read one by one: each of them may be just below the limit."""
    node, forge = repeated(codec.pack("x" * 100), 4)
    key = forge.add(node.children, node.body)
    names = ["v", "channel_versions", "versions_seen", *(f"{WRITES}{n}" for n in range(100))]
    values = [1, {}, {}]
    keys = [codec.pack(name) for name in names]
    plain = [tree.inline(codec.pack(value)).body for value in values]
    bodies = plain + [tree.REF_BODY] * 100
    alone = [b"\x00" + tree.number_bytes(len(name)) + name + body for name, body in zip(keys, bodies, strict=True)]
    parts = tree.number_bytes(103) + b"".join(alone) + tree.EMPTY_MAP.body
    body = bytes((tree.MAP,)) + tree.number_bytes(103) + tree.number_bytes(1000) + parts
    with pytest.raises(CheckpointCorrupted, match="so often"):
        Channels(Kinds()).opened_envelope(tree.Node(key * 100, body, 1000), forge.objects)


def test_many_small_bombs_are_a_large_one() -> None:
    import zstandard

    one = compress.ZSTD + zstandard.ZstdCompressor(level=19).compress(bytes(1 << 20))
    assert len(compress.expand_all([one] * 2)) == 2
    with pytest.raises(CheckpointCorrupted, match="together"):
        compress.expand_all([one] * 2000)


def test_a_body_that_is_huge_once_it_is_built_is_not_squeezed_to_nothing() -> None:
    """Nobody could tell it from a bomb."""
    dense = [bytes([0x80]) * (30_000 + n) for n in range(100)]
    stored = compress.squeeze_all(dense)
    assert [data[:1] for data in stored] == [compress.PLAIN] * 100
    assert compress.expand_all(stored) == dense


def test_what_is_only_long_is_squeezed_to_almost_nothing() -> None:
    """A matrix of zeros with some ones, for example."""
    rows = [codec.pack([int(n == column) for column in range(30_000)]) for n in range(200)]
    stored = compress.squeeze_all(rows)
    assert sum(map(len, stored)) < sum(map(len, rows)) // 300
    assert compress.expand_all(stored) == rows


def test_bodies_that_are_huge_once_they_are_built_are_refused_when_there_are_many() -> None:
    import zstandard

    stored = [compress.ZSTD + zstandard.ZstdCompressor().compress(b"\x80" * (30_000 + n)) for n in range(100)]
    assert len(compress.expand_all(stored[:10])) == 10
    with pytest.raises(CheckpointCorrupted, match="together"):
        compress.expand_all(stored)


class Steps(bytes):
    """Bytes that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        self.looks += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("part", [b"\x01", b"\x80", b"\xd9\x00", b"\x01\xd9\x00", codec.pack(((),)), codec.pack(1.5)])
def test_weighing_takes_a_bounded_number_of_steps(part: bytes) -> None:
    packed = Steps(part * 20_000)
    scale = costs.Scale(3000)
    found = scale.weight(packed)
    assert packed.looks <= 6100
    assert costs.weight(part) * 20_000 <= found <= costs.weight_at_most(part) * 20_000
    packed.looks = 0
    assert scale.weight(packed) == costs.weight_at_most(packed)
    assert packed.looks <= 5
    assert scale.weight(packed, most=1000) > 1000


@pytest.mark.parametrize("size", [100, 4096, 65_536, 65_537, 1 << 20, 5 << 20])
def test_what_the_writer_squeezes_may_come_in_any_number(size: int) -> None:
    stored = compress.squeeze_all([bytes(size - 8) + b"%08d" % n for n in range(3)])
    allowed = [compress._TOGETHER_RATIO * (len(data) + compress._ROW_BYTES) for data in stored]
    assert all(size <= each for each in allowed)


def test_equal_items_between_two_changes_are_compared_and_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def counted(walker: Any, node: tree.Node) -> Any:
        nonlocal asked
        asked += 1
        return id_of(walker, node)

    monkeypatch.setattr(diff, "id_of", counted)
    other = {"role": "user", "content": "another"}
    with everstep.open("memory://").sync as engine:
        before = engine.snapshot("t", [MESSAGE] * 20_000, {}, {})
        after = engine.snapshot("t", [other, *[MESSAGE] * 19_990, other], {}, {})
        assert len(engine.diff(before, after)) > 1
    assert asked <= 4
