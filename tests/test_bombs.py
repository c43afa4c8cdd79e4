"""Rows that are small when stored and huge when read: the work is bounded by what is stored, not by what is claimed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import everstep
from everstep import CheckpointCorrupted, UnstorableValue
from everstep.values import codec, compress, tree
from tests.bombs import BOMBS, Forge

MEMORY_BYTES = 1 << 30
"""For the whole process, its libraries included. Without a bound the bombs take many times as much."""


@pytest.mark.parametrize("kind", ["", "langgraph"])
def test_a_bomb_of_any_size_is_read_or_refused(kind: str) -> None:
    command = [sys.executable, "-m", "tests.bombs", kind, str(MEMORY_BYTES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = [line.split("\t") for line in done.stdout.splitlines()]
    refused = {(bomb, way) for bomb, _, way, outcome, *_ in outcomes if outcome == "CheckpointCorrupted"}
    assert {bomb for bomb, _ in refused} == set(BOMBS)
    assert {("texts", "get"), ("texts", "diff")} <= refused


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
@pytest.mark.parametrize("bomb", ["texts", "numbers", "nested lists", "nested maps", "empty groups", "long text"])
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
        cost = tree.repeats(key, objects.get)
        assert 70 * (16**levels - 1) < cost < 200 * 16**levels
        assert objects.asked == len(objects)


def test_what_does_not_repeat_costs_nothing() -> None:
    writer = tree.Writer()
    node = writer.list_node([{"role": "user", "content": f"message {n} " * 30} for n in range(5000)], "v")
    assert node.size > tree.REPEATS_FREE
    assert tree.repeats(node.children, writer.objects.get) == 0


HONEST: dict[str, Any] = {
    "equal messages": [{"role": "user", "content": "the same " * 20}] * 20_000,
    "zeros": [0.0] * 200_000,
    "equal texts": [{"n": n, "text": "a long text of a tool " * 2000} for n in range(400)],
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
    monkeypatch.setattr(tree, "REPEATS_MAX", 40 << 20)
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


def test_many_small_bombs_are_a_large_one() -> None:
    import zstandard

    one = compress.ZSTD + zstandard.ZstdCompressor(level=19).compress(bytes(1 << 20))
    assert len(compress.expand_all([one] * 10)) == 10
    with pytest.raises(CheckpointCorrupted, match="together"):
        compress.expand_all([one] * 2000)


@pytest.mark.parametrize("size", [100, 4096, 65_536, 65_537, 1 << 20, 5 << 20])
def test_what_the_writer_squeezes_may_come_in_any_number(size: int) -> None:
    stored = compress.squeeze_all([bytes(size - 8) + b"%08d" % n for n in range(3)])
    allowed = [compress._TOGETHER_RATIO * (len(data) + compress._ROW_BYTES) for data in stored]
    assert all(size <= each for each in allowed)


def test_groups_of_a_mapping_do_not_occur_twice() -> None:
    forge = Forge()
    pair = tree._number(2) + codec.pack("k") + tree.REF_BODY
    key = forge.add(forge.leaf(b"\x01"), bytes((tree.PAIRS, 1)) + pair)
    for _ in range(20):
        key = forge.add(key * 30, bytes((tree.NODES,)))
    node = tree.Node(key, bytes((tree.MAP, 1)) + tree._number(4) + b"\x16\x01" + b"\x00" * 21, 4)
    with pytest.raises(CheckpointCorrupted, match="twice"):
        tree.entries(node, forge.objects)
