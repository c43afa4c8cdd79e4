"""Opens nodes one step: what they hold, while what they refer to stays closed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.values.codec import tokens
from everstep.values.long_values import HEAD_BYTES
from everstep.values.tree.cursor import Cursor, pieces_numbers, skip
from everstep.values.tree.node import (
    GROUP,
    HASH_BYTES,
    LEVELS_MAX,
    LIST,
    MAP,
    NODES,
    PACKED,
    PACKED_BODY,
    PIECES,
    PIECES_MAX,
    REF_BODY,
    REST,
    Content,
    InPieces,
    Level,
    Node,
    content_of,
    hashes,
    number_bytes,
)

_PIECE_BYTES_MIN = 64  # on average; a writer makes larger ones


def nodes(children: bytes, body: bytes, sizes: Sequence[int]) -> list[Node]:
    """Return the nodes of these sizes that stand one after the other, without opening what they refer to."""
    cursor = Cursor(children, body)
    found = []
    try:
        for size in sizes:
            at = cursor.at
            child = cursor.child
            if body[at] == PACKED and body[at + 1] < 0x80:  # short, as most are; `finish` notices what is cut off
                cursor.at += 2 + body[at + 1]
            else:
                skip(cursor)
            found.append(Node(children[child : cursor.child], body[at : cursor.at], size))
        cursor.finish()
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    return found


def list_length(node: Node) -> int:
    """Return how many items a list node has."""
    cursor = Cursor(node.children, node.body)
    try:
        if cursor.byte() != LIST:
            raise CheckpointCorrupted("a stored list is out of shape")
        return cursor.number()
    except IndexError as exc:
        raise CheckpointCorrupted("a stored list cannot be read") from exc


def is_list(node: Node) -> bool:
    """Whether `extended` can add to this node."""
    return node.body[0] == LIST


def inline(packed: bytes) -> Node:
    """Return the node of a packed value that stands where it is, whatever its size."""
    return Node(b"", bytes((PACKED,)) + number_bytes(len(packed)) + packed, len(packed))


def inline_value(node: Node) -> bytes | None:
    """Return the packed value of a node where it stands; None if it is elsewhere."""
    if node.body[:1] != PACKED_BODY:
        return None
    value = node.body[2:]
    if node.children or not value or node.body[1] != len(value) or len(value) >= 0x80:  # else it is short, as most are
        value = _long_inline_value(node)
    if node.size and len(value) > node.size:
        raise CheckpointCorrupted("a stored value is larger than its record says")
    return value


def _long_inline_value(node: Node) -> bytes:
    cursor = Cursor(node.children, node.body)
    cursor.at = 1
    try:
        value = cursor.take(cursor.number())
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    cursor.finish()
    return value


def entries(node: Node, objects: Mapping[bytes, Content]) -> Mapped | None:
    """Return the values of a mapping node, without opening those that stand alone; None if it is kept otherwise."""
    children = node.children
    body = node.body
    if body == REF_BODY:
        children, body = content_of(children, objects)
    return opened_mapping(children, body) if body[:1] == bytes((MAP,)) else None


def packed_size(children: bytes, body: bytes) -> int:
    """Return the size of a node's or an object's value when packed. A reference has none: look at its object."""
    cursor = Cursor(children, body)
    try:
        op = cursor.byte()
        if op == REST:
            return len(body) - 1
        if op not in (PACKED, LIST, MAP, PIECES):
            raise CheckpointCorrupted(f"a stored node of the kind {op} has no size")
        if op in (LIST, MAP):
            cursor.number()
        return cursor.number()
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc


class Part(NamedTuple):
    """A part of a list: an item (level 0), or a finished group of parts of the level below."""

    level: int
    node: Node


class Parts(NamedTuple):
    """A list, opened one step."""

    length: int
    """How many items it has."""
    size: int
    """Of the whole, packed."""
    parts: list[Part]


class Mapped(NamedTuple):
    """A mapping, opened one step."""

    length: int
    size: int
    """Of the whole, packed."""
    alone: list[tuple[int, bytes, Node]]
    """The values that stand alone: how many bytes of the others stand before it, its packed key, and its node."""
    together: Node
    """The other ones: a mapping, packed."""

    def ordered(self, together: bytes) -> list[tuple[bytes, bytes | Node]]:
        """Return all packed keys with their values, in order; `together` is that node's value."""
        flat = tokens.items(together) if tokens.is_mapping(together) else None
        if flat is None or len(flat) // 2 + len(self.alone) != self.length:
            raise CheckpointCorrupted("a stored mapping is out of shape")
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        found: list[tuple[bytes, bytes | Node]] = []
        at = 0
        for before, key, node in self.alone:
            while before > 0 and at < len(pairs):
                found.append(pairs[at])
                before -= len(pairs[at][0]) + len(pairs[at][1])
                at += 1
            if before:
                raise CheckpointCorrupted("a stored mapping is out of shape")
            found.append((key, node))
        found.extend(pairs[at:])
        return found


def opened_mapping(children: bytes, body: bytes) -> Mapped:
    """Open a mapping node one step."""
    cursor = Cursor(children, body)
    try:
        if cursor.byte() != MAP:
            raise CheckpointCorrupted("a stored mapping is out of shape")
        length = cursor.number()
        size = cursor.number()
        alone: list[tuple[int, bytes, Node]] = []
        for _ in range(cursor.number()):
            before = cursor.number()
            key = cursor.take(cursor.number())
            alone.append((before, key, _read_node(cursor)))
        together = _read_node(cursor)
        cursor.finish()
    except IndexError as exc:
        raise CheckpointCorrupted("a stored mapping cannot be read") from exc
    return Mapped(length, size, alone, together)


def opened(children: bytes, body: bytes) -> Parts:
    """Return the parts of a list node, in order; the groups among them stay closed."""
    cursor = Cursor(children, body)
    try:
        if cursor.byte() != LIST:
            raise CheckpointCorrupted("a stored list is out of shape")
        length = cursor.number()
        size = cursor.number()
        tails = read_tails(cursor)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored list cannot be read") from exc
    levels = range(len(tails) - 1, -1, -1)
    return Parts(length, size, [Part(level, node) for level in levels for node in tails[level]])


def opened_group(level: int, children: bytes, body: bytes) -> list[Part]:
    """Return the parts of a finished group of a list."""
    cursor = Cursor(children, body)
    try:
        kind = cursor.byte()
        if level == 1 and kind == GROUP:
            parts = [Part(0, node) for node in read_items(cursor)]
        elif level > 1 and kind == NODES:
            parts = [Part(level - 1, Node(key, REF_BODY, 0)) for key in cursor.refs(len(children) // HASH_BYTES)]
        else:
            parts = []
        cursor.finish()
    except IndexError as exc:
        raise CheckpointCorrupted("a stored list cannot be read") from exc
    if not parts:
        raise CheckpointCorrupted("a stored list is out of shape")
    return parts


def _read_node(cursor: Cursor) -> Node:
    """Read the node that stands here, without opening what it refers to."""
    at = cursor.at
    child = cursor.child
    skip(cursor)
    return Node(cursor.children[child : cursor.child], cursor.body[at : cursor.at], 0)


def read_items(cursor: Cursor) -> list[Node]:
    """Read the items of a list that stand here."""
    found: list[Node] = []
    while run := cursor.number():
        if run & 1:
            found.extend([_read_node(cursor) for _ in range(run >> 1)])
        else:
            found.extend([Node(key, REF_BODY, 0) for key in cursor.refs(run >> 1)])
    return found


def read_tails(cursor: Cursor) -> list[list[Node]]:
    """Read the open ends that stand here, and return them with the lowest level first."""
    height = cursor.number()
    if not 0 < height <= LEVELS_MAX:
        raise CheckpointCorrupted("a stored list has an impossible height")
    tails = [[Node(key, REF_BODY, 0) for key in cursor.refs(cursor.number())] for _ in range(height - 1)]
    tails.append(read_items(cursor))
    cursor.finish()
    return tails[::-1]


def in_pieces(node: Node, objects: Mapping[bytes, Content]) -> InPieces | None:
    """Open a value in pieces that has been read; None if it is kept otherwise."""
    children = node.children
    body = node.body
    if body == REF_BODY:
        children, body = content_of(children, objects)
    if body[:1] != bytes((PIECES,)):
        return None
    cursor = Cursor(children, body)
    cursor.byte()
    size, height, count = pieces_numbers(cursor)
    head = cursor.take(HEAD_BYTES)
    keys = cursor.refs(count)
    levels: list[Level] = []
    for _ in range(height - 1):
        groups = [content_of(key, objects)[0] for key in keys]
        levels.insert(0, Level(groups, keys))
        if sum(map(len, groups)) > HASH_BYTES * (PIECES_MAX + size // _PIECE_BYTES_MIN):
            return None  # no writer makes such small pieces
        keys = hashes(b"".join(groups))
    levels.insert(0, Level([content_of(key, objects)[1] for key in keys], keys))
    return InPieces(head, levels)
