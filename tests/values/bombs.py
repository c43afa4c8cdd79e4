"""Rows that are small when stored and huge when they are read, for `test_bombs`. Also what reads them, in a process."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep import CheckpointEngine, EverstepError
from everstep.backends import StoreBackend
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.channels import CHAT
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import ANY, Change, Draft, Key, Object, Record
from everstep.values import codec, compress, tree

NUMBER = tree.number_bytes


class Forge:
    """Objects with the right addresses and any content."""

    def __init__(self) -> None:
        self.objects: dict[bytes, tree.Content] = {}

    def add(self, children: bytes, body: bytes) -> bytes:
        key = tree.address(children, body)
        self.objects[key] = children, body
        return key

    def leaf(self, packed: bytes) -> bytes:
        return self.add(b"", bytes((tree.REST,)) + packed)

    def groups(self, first: bytes, levels: int, wide: int = 16) -> bytes:
        """Return a group of groups, each of which holds the one below many times."""
        key = self.add(first * wide, bytes((tree.GROUP,)) + NUMBER(wide * 2) + b"\x00")
        for _ in range(levels - 1):
            key = self.add(key * wide, bytes((tree.NODES,)))
        return key

    def list_of(self, key: bytes, levels: int, count: int, item_size: int) -> tree.Node:
        """Return a list node above a group, with the right claims: it is joined without complaint."""
        size = len(codec.array_header(count)) + count * item_size
        body = bytes((tree.LIST,)) + NUMBER(count) + NUMBER(size) + NUMBER(levels + 1) + b"\x01" + b"\x00" * levels
        return tree.Node(key, body, size)


def repeated(packed: bytes, levels: int) -> tuple[tree.Node, Forge]:
    """Return a list of 16 ** levels equal items."""
    forge = Forge()
    key = forge.groups(forge.leaf(packed), levels)
    return forge.list_of(key, levels, 16**levels, len(packed)), forge


def nested_lists(levels: int) -> tuple[tree.Node, Forge]:
    """Return lists of lists: each holds the one below 16 times."""
    forge = Forge()
    key, size = forge.leaf(codec.pack("x" * 100)), 102
    node = tree.Node(key, tree.REF_BODY, size)
    for _ in range(levels):
        size = 3 + 16 * size
        node = tree.Node(key, bytes((tree.LIST, 16)) + NUMBER(size) + b"\x01" + NUMBER(32) + b"\x00", size)
        key = forge.add(node.children, node.body)
    return node, forge


def empty_groups(levels: int) -> tuple[tree.Node, Forge]:
    """Return a list whose groups hold nothing, many times over."""
    forge = Forge()
    key = forge.add(b"", bytes((tree.GROUP, 0)))
    for _ in range(levels - 1):
        key = forge.add(key * 30, bytes((tree.NODES,)))
    body = bytes((tree.LIST, 0)) + NUMBER(1 << 20) + NUMBER(levels + 1) + b"\x01" + b"\x00" * levels
    return tree.Node(key, body, 1 << 20), forge


def in_list(node: tree.Node, forge: Forge) -> tuple[tree.Node, Forge]:
    """Return a list of one item: messages must be a list."""
    key = node.children if node.body == tree.REF_BODY else forge.add(node.children, node.body)
    size = node.size + 1
    return tree.Node(key, bytes((tree.LIST, 1)) + NUMBER(size) + b"\x01\x02\x00", size), forge


def in_pieces(packed: bytes, head: bytes, levels: int) -> tuple[tree.Node, Forge]:
    """Return a value whose pieces are all the same one; `head` stands before them."""
    forge = Forge()
    key = forge.add(b"", packed)
    for _ in range(levels):
        key = forge.add(key * 16, bytes((tree.NODES,)))
    size = len(head) + len(packed) * 16**levels
    body = bytes((tree.PIECES,)) + NUMBER(size) + NUMBER(levels + 1) + b"\x01" + head
    return in_list(tree.Node(key, body, size), forge)


def header(first: int, size: int) -> bytes:
    return bytes((first,)) + min(size, 0xFFFFFFFF).to_bytes(4, "big")


def long_text(levels: int) -> tuple[tree.Node, Forge]:
    return in_pieces(b"x" * 420_000, header(0xDB, 11 + 420_000 * 16**levels) + b"x" * 11, levels)


def packed_dicts(levels: int) -> tuple[tree.Node, Forge]:
    """Return a list of empty dicts: one byte each when packed, and 72 in memory."""
    return in_pieces(b"\x80" * 1_000, header(0xDD, 11 + 1_000 * 16**levels) + b"\x80" * 11, levels)


def small_pieces(levels: int) -> tuple[tree.Node, Forge]:
    """Return a list of numbers, each of which is a piece."""
    return in_pieces(b"\x01", header(0xDD, 11 + 16**levels) + b"\x01" * 11, levels)


def empty_texts(levels: int) -> tuple[tree.Node, Forge]:
    """Return a list of empty texts, in the longer of their two forms: slow to weigh."""
    return in_pieces(b"\xd9\x00" * 100, header(0xDD, 11 + 100 * 16**levels) + b"\x01" * 11, levels)


def squeezed_pieces(levels: int) -> tuple[tree.Node, Forge]:
    """Return a list of empty dicts in pieces, none of which is like another; each shrinks to almost nothing."""
    forge = Forge()
    pieces = [b"\x80" * (1_000_000 + n) for n in range(8 * levels)]
    keys = b"".join([forge.add(b"", piece) for piece in pieces])
    total = sum(map(len, pieces))
    head = header(0xDD, 11 + total) + b"\x80" * 11
    body = bytes((tree.PIECES,)) + NUMBER(16 + total) + b"\x01" + NUMBER(len(pieces)) + head
    return in_list(tree.Node(keys, body, 16 + total), forge)


def squeezed_twice(levels: int) -> tuple[tree.Node, Forge]:
    """Return lists of numbers, each of which occurs twice and shrinks to almost nothing: there is much to weigh."""
    forge = Forge()
    items = [codec.array_header(70_000 + n) + b"\x01" * (70_000 + n) for n in range(100 * levels)]
    keys = b"".join([forge.leaf(packed) * 2 for packed in items])
    count = 2 * len(items)
    size = len(codec.array_header(count)) + 2 * sum(map(len, items))
    body = bytes((tree.LIST,)) + NUMBER(count) + NUMBER(size) + b"\x01" + NUMBER(2 * count) + b"\x00"
    return tree.Node(keys, body, size), forge


def nested_maps(levels: int) -> tuple[tree.Node, Forge]:
    """Return mappings of mappings: each has the one below under 16 keys."""
    forge = Forge()
    node = tree.Node(forge.leaf(codec.pack("x" * 100)), tree.REF_BODY, 102)
    for _ in range(levels):
        keys = [codec.pack(f"k{n:02}") for n in range(16)]
        parts = b"".join([b"\x00" + NUMBER(len(key)) + key + tree.REF_BODY for key in keys])
        size = 3 + 16 * (4 + node.size)
        below = node.children if node.body == tree.REF_BODY else forge.add(node.children, node.body)
        body = bytes((tree.MAP, 16)) + NUMBER(size) + b"\x10" + parts + tree.EMPTY_MAP.body
        node = tree.Node(below * 16, body, size)
    return in_list(node, forge)


def small_claim(levels: int) -> tuple[tree.Node, Forge]:
    """Return a list that claims less than it holds."""
    node, forge = repeated(codec.pack("x" * 100), levels)
    body = bytes((tree.LIST,)) + NUMBER(16**levels) + NUMBER(900_000) + node.body[-levels - 2 :]
    return tree.Node(node.children, body, 900_000), forge


BOMBS: dict[str, Callable[[int], tuple[tree.Node, Forge]]] = {
    "texts": lambda levels: repeated(codec.pack("x" * 100), levels),
    "empty lists": lambda levels: repeated(b"\x90", levels),
    "empty dicts": lambda levels: repeated(b"\x80", levels),
    "numbers": lambda levels: repeated(b"\x01", levels),
    "negative numbers": lambda levels: repeated(b"\xe0", levels),
    "floats": lambda levels: repeated(codec.pack(1.5), levels),
    "short texts": lambda levels: repeated(codec.pack("ab"), levels),
    "small dicts": lambda levels: repeated(codec.pack({"a": 1}), levels),
    "messages": lambda levels: repeated(codec.pack({"type": "human", "content": "x"}), levels),
    "rows of numbers": lambda levels: repeated(codec.pack([1] * 200), levels),
    "rows of dicts": lambda levels: repeated(codec.pack([{}] * 200), levels),
    "lists of lists": lambda levels: repeated(codec.pack([[], {}, [[]]] * 200), levels),
    "tuples": lambda levels: repeated(codec.pack(((), (), (()))), levels),
    "nested lists": nested_lists,
    "nested maps": nested_maps,
    "empty groups": empty_groups,
    "long text": long_text,
    "packed dicts": packed_dicts,
    "small pieces": small_pieces,
    "empty texts": empty_texts,
    "squeezed pieces": squeezed_pieces,
    "squeezed twice": squeezed_twice,
    "small claim": small_claim,
}


def squeezed(objects: dict[bytes, tree.Content]) -> list[Object]:
    """Return objects as small as a forger can make them."""
    import zstandard

    found = []
    for key, (children, body) in objects.items():
        packed = zstandard.ZstdCompressor(level=19).compress(body)
        found.append(Object(key, children, b"\x01" + packed if len(body) > 60_000 else b"\x00" + body))
    return found


async def store_bomb(store: Any, checkpoint_id: str, node: tree.Node, forge: Forge, kind: str = "") -> None:
    """Store a checkpoint whose messages are the bomb."""
    rest = tree.EMPTY_MAP
    if kind == "langgraph":
        envelope = {"v": 4, "channel_versions": {}, "versions_seen": {}, "forms": {"messages": CHAT}}
        rest = tree.inline(codec.pack(compress.squeeze_fast(codec.pack(envelope))))
    record = Record(
        key=Key("t", "", checkpoint_id),
        step=1,
        parents=(),
        created_at="2026-01-01T00:00:00.000000+00:00",
        children=node.children,
        body=node.body + tree.EMPTY_MAP.body + rest.body,
        sizes=(node.size, tree.EMPTY_MAP.size, rest.size),
        kind=kind,
    )
    draft = Draft(record, squeezed(forge.objects))
    await store.commit(Change("t", "", ANY, build=lambda _: draft))


def readings(kind: str) -> dict[str, Callable[[], Any]]:
    """Return what is done with two checkpoints, c1 and c2."""
    engine = CheckpointEngine(StoreBackend(STORE)).sync
    found: dict[str, Callable[[], Any]] = {
        "get": lambda: engine.get("c1"),
        "latest": lambda: engine.get_latest("t"),
        "diff": lambda: engine.diff("c1", "c2"),
    }
    if not kind:
        found["append"] = lambda: engine.append("t", [{"role": "user", "content": "x"}], {"a": 1})
        return found
    saver = HarnessCheckpointer(backend=STORE)
    config = {"configurable": {"thread_id": "t"}}
    found["get_tuple"] = lambda: saver.get_tuple(config)
    found["list"] = lambda: list(saver.list(config))
    return found


STORE = MemoryStore()
LEVELS = (2, 5, 6, 7)


def main(kind: str, memory_bytes: int, cpu_seconds: int) -> None:
    """Read every bomb in several sizes, and print what came of it."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    for bomb in BOMBS:
        explode(bomb, kind)


def peak_mb() -> int:
    """Return the most memory that this process has had. What `getrusage` says counts the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def explode(bomb: str, kind: str) -> None:
    """Read a bomb; print its name, its size, what was done and the outcome, for people with seconds and megabytes."""
    for levels in LEVELS:
        node, forge = BOMBS[bomb](levels)
        if node.size > tree.VALUE_BYTES_MAX or 16**levels >= 1 << 32:
            break
        other, more = BOMBS[bomb](max(levels - 1, 1))
        for name, bombed, objects in (("c1", node, forge), ("c2", other, more)):
            asyncio.run(store_bomb(STORE, name, bombed, objects, kind))
        for way, read in readings(kind).items():
            before = time.process_time()
            try:
                read()
                outcome = "read"
            except EverstepError as error:
                outcome = type(error).__name__
            peak = peak_mb()
            seconds = f"{time.process_time() - before:.2f}"
            print(bomb, levels, way, outcome, seconds, peak, sep="\t", flush=True)
        asyncio.run(STORE.delete("t"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
