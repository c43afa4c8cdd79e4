"""Steps through the body of a node, which may be forged. Pure."""

from __future__ import annotations

from typing import NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.values import costs
from everstep.values.long_values import HEAD_BYTES
from everstep.values.tree.node import (
    HASH_BYTES,
    LEVELS_MAX,
    LIST,
    MAP,
    PACKED,
    PIECES,
    REF,
    WHOLE,
)


class Cursor:
    """A place in a body and in its children."""

    __slots__ = ("at", "body", "child", "children")

    def __init__(self, children: bytes, body: bytes) -> None:
        self.children = children
        self.body = body
        self.at = 0
        self.child = 0

    def byte(self) -> int:
        value = self.body[self.at]
        self.at += 1
        return value

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.body[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise CheckpointCorrupted("a stored node has an impossible number")

    def take(self, size: int) -> bytes:
        data = self.body[self.at : self.at + size]
        if len(data) != size:
            raise CheckpointCorrupted("a stored node is cut short")
        self.at += size
        return data

    def refs(self, count: int) -> list[bytes]:
        end = self.child + count * HASH_BYTES
        if end > len(self.children):
            raise CheckpointCorrupted("a stored node has too few children")
        found = [self.children[at : at + HASH_BYTES] for at in range(self.child, end, HASH_BYTES)]
        self.child = end
        return found

    def finish(self) -> None:
        if self.at != len(self.body) or self.child != len(self.children):
            raise CheckpointCorrupted("a stored node has more than it should")


class PiecesNote(NamedTuple):
    """A value in pieces that is met when a node is stepped over."""

    keys: bytes
    height: int
    size: int
    head: bytes
    first: int
    """The number of its first child."""


class Notes:
    """What is met when a node is stepped over."""

    __slots__ = ("in_pieces", "weight")

    def __init__(self) -> None:
        self.in_pieces: list[PiecesNote] = []
        self.weight = 0


def skip(cursor: Cursor, notes: Notes | None = None) -> None:
    """Step over one node."""
    op = cursor.byte()
    if op == PACKED:
        cursor.take(cursor.number())
    elif op in (REF, WHOLE):
        cursor.refs(1)
    elif op == LIST:
        _skip_list(cursor, notes)
    elif op == MAP:
        _skip_mapping(cursor, notes)
    elif op == PIECES:
        _skip_pieces(cursor, notes)
    else:
        raise CheckpointCorrupted(f"a stored node is of the unknown kind {op}")


def _skip_list(cursor: Cursor, notes: Notes | None) -> None:
    cursor.number()
    cursor.number()
    if notes is not None:
        notes.weight += costs.LIST
    height = cursor.number()
    if height > LEVELS_MAX:
        raise CheckpointCorrupted("a stored list has an impossible height")
    for _ in range(height - 1):
        cursor.refs(cursor.number())
    skip_items(cursor, notes)


def _skip_mapping(cursor: Cursor, notes: Notes | None) -> None:
    count = cursor.number()
    cursor.number()
    if notes is not None:
        notes.weight += costs.MAPPING + costs.PAIR * min(count, len(cursor.body))
    for _ in range(cursor.number()):
        cursor.number()
        cursor.take(cursor.number())
        skip(cursor, notes)
    skip(cursor, notes)


def _skip_pieces(cursor: Cursor, notes: Notes | None) -> None:
    size, height, count = pieces_numbers(cursor)
    head = Cursor.take(cursor, HEAD_BYTES)
    child = cursor.child
    cursor.refs(count)
    if notes is not None:
        keys = cursor.children[child : cursor.child]
        notes.in_pieces.append(PiecesNote(keys, height, size, head, child // HASH_BYTES))


def skip_items(cursor: Cursor, notes: Notes | None) -> None:
    """Step over the items of a list that stand here."""
    while run := cursor.number():
        if run & 1:
            for _ in range(run >> 1):
                skip(cursor, notes)
        else:
            cursor.refs(run >> 1)


def pieces_numbers(cursor: Cursor) -> tuple[int, int, int]:
    """Read of a value in pieces its size, how many levels of pieces and groups it has, and how many of the highest."""
    size = cursor.number()
    height = cursor.number()
    count = cursor.number()
    if not 0 < height <= LEVELS_MAX:
        raise CheckpointCorrupted("a stored value has an impossible height")
    return size, height, count
