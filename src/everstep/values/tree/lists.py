"""Lists of items: how they are grouped, extended and edited. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Protocol

from everstep.errors import CheckpointCorrupted
from everstep.values.tree.cursor import Cursor
from everstep.values.tree.node import (
    GROUP,
    HASH_BYTES,
    LIST,
    NODES_BODY,
    REF_BODY,
    Content,
    InPieces,
    Node,
    content_of,
    number_bytes,
)
from everstep.values.tree.opening import Part, opened_group, read_tails

_GROUP_MIN = 4
GROUP_MAX = 32
_GROUP_ODDS = 96  # in 256: that a group ends after a part
_ONLY_REFS = {REF_BODY}


class Stores(Protocol):
    """Where finished groups go."""

    def store(self, children: bytes, body: bytes) -> bytes:
        """Keep an object if it is new, and return its hash."""
        ...


class Levels:
    """The open ends of a list, one per level; level 0 holds parts, the others references to finished groups.

    Each part has a byte that its content decides; the bytes of the last four parts decide whether a group ends, so
    that even a list of booleans has places to end at.
    """

    def __init__(self, writer: Stores, tails: list[list[Node]], cuts: list[list[int]]) -> None:
        self._writer = writer
        self.tails = tails
        self.cuts = cuts

    def takes(self, level: int) -> bool:
        """Whether a finished group of this level can be added as it is: nothing below it is open."""
        return level == 0 or not any(self.tails[:level])

    def add_part(self, part: Node, level: int = 0) -> None:
        """Add an item of a list, or a finished group that `takes` accepts."""
        while len(self.tails) <= level:
            self.tails.append([])
            self.cuts.append([])
        self._add(part, _cut(part, level), level)

    def list_node(self, count: int, size: int) -> Node:
        """Return the list node that is written so far, of `count` items and this packed size."""
        children, body = self._written()
        body = bytes((LIST,)) + number_bytes(count) + number_bytes(size) + body
        return Node(children, body, size, tuple(zip(self.tails, self.cuts, strict=True)))

    def add_item(self, item: Node) -> None:
        """Add an item of a list: what `add_part` does, in fewer steps."""
        tail = self.tails[0]
        cuts = self.cuts[0]
        tail.append(item)
        cuts.append(item.children[0] if item.body == REF_BODY else _cut(item))
        if len(tail) >= _GROUP_MIN and _ends_group(cuts):
            self._finish_group(0)

    def _add(self, part: Node, cut: int, level: int) -> None:
        tail = self.tails[level]
        cuts = self.cuts[level]
        tail.append(part)
        cuts.append(cut)
        if len(tail) >= _GROUP_MIN and _ends_group(cuts):
            self._finish_group(level)

    def _finish_group(self, level: int) -> None:
        """Make an object of the open end of a level; a reference to it is a part of the level above."""
        tail = self.tails[level]
        children = b"".join([part.children for part in tail])
        body = NODES_BODY if level else bytes((GROUP,)) + _runs(tail)
        key = self._writer.store(children, body)
        self.tails[level], self.cuts[level] = [], []
        if level + 1 == len(self.tails):
            self.tails.append([])
            self.cuts.append([])
        # Each level looks at another byte of the hash, so that one unlucky hash does not end every level at once.
        self._add(Node(key, REF_BODY, 0), key[(level + 1) % HASH_BYTES], level + 1)

    def _written(self) -> Content:
        """Return the children and bytes of all open ends, the highest level first."""
        children: list[bytes] = []
        numbers = [number_bytes(len(self.tails))]
        for tail in self.tails[:0:-1]:
            numbers.append(number_bytes(len(tail)))
            children.extend([part.children for part in tail])
        children.extend([part.children for part in self.tails[0]])
        return b"".join(children), b"".join(numbers) + _runs(self.tails[0])


def _ends_group(cuts: list[int]) -> bool:
    """Whether a group ends here, by the bytes of its last four parts."""
    mixed = cuts[-1] * 0x9E3B + cuts[-2] * 0x79B1 + cuts[-3] * 0x85EB + cuts[-4] * 0xC2B3
    return (mixed >> 8) & 0xFF < _GROUP_ODDS or len(cuts) >= GROUP_MAX


class Cutter:
    """Adds stretches of an old list to a new one, in groups where they fit."""

    def __init__(self, levels: Levels, objects: Mapping[bytes, Content]) -> None:
        self.levels = levels
        self._objects = objects
        self.lengths: dict[bytes, int] = {}
        """How many items there are in each group that was looked at."""

    def take(self, parts: Sequence[Part], first: int, last: int) -> None:
        """Add the items from `first` up to `last`, counted from the beginning of these parts."""
        at = 0
        for part in parts:
            if at >= last:
                return
            length = self._length(part)
            if at + length > first:
                is_inside = first <= at and at + length <= last
                if is_inside and self.levels.takes(part.level):
                    self.levels.add_part(part.node, part.level)
                else:
                    self.take(self._group(part), first - at, last - at)
            at += length

    def _group(self, part: Part) -> list[Part]:
        return opened_group(part.level, *content_of(part.node.children, self._objects))

    def _length(self, part: Part) -> int:
        if part.level == 0:
            return 1
        key = part.node.children
        length = self.lengths.get(key)
        if length is None:
            children, body = content_of(key, self._objects)
            count = len(children) // HASH_BYTES
            if part.level == 1 and body == b"%c%b\0" % (GROUP, number_bytes(2 * count)):
                length = count  # none of them stands in the group itself
            else:
                length = sum([self._length(below) for below in self._group(part)])
            self.lengths[key] = length
        return length


def _runs(parts: Sequence[Node]) -> bytes:
    """Write parts as runs: 2n for n references, 2n+1 for n nodes that follow. Ends with a 0."""
    out: list[bytes] = []
    at = 0
    end = len(parts)
    if {part.body for part in parts} == _ONLY_REFS:  # as in most conversations
        return number_bytes(end * 2) + b"\x00"
    while at < end:
        start = at
        plain = parts[at].body == REF_BODY
        while at < end and (parts[at].body == REF_BODY) is plain:
            at += 1
        out.append(number_bytes((at - start) * 2 + (0 if plain else 1)))
        if not plain:
            out.extend([part.body for part in parts[start:at]])
    return b"".join(out) + b"\x00"


def _cut(part: Node, level: int = 0) -> int:
    if part.body == REF_BODY:
        return part.children[level % HASH_BYTES]
    return zlib.crc32(part.body + part.children) & 0xFF


def read_list(node: Node) -> tuple[int, int, list[list[Node]], list[list[int]]]:
    """Return how many items a list node has, its size, and its open ends, lowest level first, with each part's byte."""
    cursor = Cursor(node.children, node.body)
    try:
        if cursor.byte() != LIST:
            raise CheckpointCorrupted("a stored list is out of shape")
        count = cursor.number()
        if isinstance(node.made, tuple) and not isinstance(node.made, InPieces):
            return count, node.size, [tail.copy() for tail, _ in node.made], [cuts.copy() for _, cuts in node.made]
        size = cursor.number()
        tails = read_tails(cursor)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored list cannot be read") from exc
    return count, size, tails, [[_cut(part, level) for part in tail] for level, tail in enumerate(tails)]
