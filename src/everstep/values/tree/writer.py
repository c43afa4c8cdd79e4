"""Values to nodes, and the objects that they need. Pure."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from everstep.errors import UnstorableValue
from everstep.values import codec, costs
from everstep.values.codec import tokens
from everstep.values.long_values import LongValue, long_value
from everstep.values.overlap import Overlap
from everstep.values.pieces import PIECE_BYTES_MAX, Layer, piece_size
from everstep.values.tree.lists import Cutter, Levels, read_list
from everstep.values.tree.node import (
    EMPTY_LIST,
    HASH_BYTES,
    MAP,
    NODES_BODY,
    PACKED,
    PIECES,
    PIECES_MAX,
    REF_BODY,
    REST_BODY,
    WHOLE,
    Content,
    InPieces,
    Level,
    Node,
    address,
    number_bytes,
    sha256,
)
from everstep.values.tree.opening import list_length, opened

_INLINE_MAX = 48  # a part up to this size stands in its parent, where it is written again with each change beside it
WHOLE_MAX = 4096
"""A value up to this size is one object; a larger one is kept in pieces. An item of a list is one up to a piece's."""
_PIECES_IN_GROUP = 32
_LEAF_SEED = b"\x010:" + REST_BODY


class Writer:
    """Turns values into nodes and collects the objects they need, but for the `known` ones."""

    def __init__(
        self,
        known: Collection[bytes] = frozenset(),
        objects: dict[bytes, Content] | None = None,
        packer: codec.Codec = codec.DEFAULT,
    ) -> None:
        self._known = known
        self._codec = packer
        self.objects: dict[bytes, Content] = {}
        self.added_bytes = 0
        if objects is not None:
            self.objects = objects
            self.added_bytes = sum([len(children) + len(body) for children, body in objects.values()])
        self._whole: list[bytes] = []
        self._pieces: list[bytes] = []

    def whole(self, packed: bytes) -> Node:
        """Write a packed value as one object, however large."""
        return Node(self._leaf(packed), bytes((WHOLE,)), len(packed))

    def value(self, value: Any, path: str, depth: int = 0, old: InPieces | None = None) -> Node:
        """Write `value`, which stands `depth` containers down; `old` is what stood there before."""
        return self.packed(self._codec.pack(value, path, depth), old)

    def packed(self, packed: bytes, old: InPieces | None = None) -> Node:
        """Write a value that is packed already."""
        if len(packed) > WHOLE_MAX:
            return self.long(long_value(b"", packed), old)
        return self.item(packed)

    def item(self, packed: bytes) -> Node:
        """Write an item of a list that is packed already.

        It is never written over an older one, so it is cut only where it is too large for one object.
        """
        size = len(packed)
        if size > PIECE_BYTES_MAX:
            return self.placed(self._in_pieces(long_value(b"", packed), None, PIECE_BYTES_MAX))
        if size > _INLINE_MAX:
            return Node(self._leaf(packed), REF_BODY, size)
        self._whole.append(packed)
        return Node(b"", b"%c%c%b" % (PACKED, size, packed), size)

    def long(self, value: LongValue, old: InPieces | None = None) -> Node:
        """Write a long value that is packed already, in pieces."""
        return self.placed(self._in_pieces(value, old, piece_size(value.size)))

    def list_node(self, items: Iterable[Any], path: str) -> Node:
        """Write a list as a list node, whatever its size."""
        return self.extended(EMPTY_LIST, items, path)

    def extended(self, node: Node, items: Iterable[Any], path: str) -> Node:
        """Return the list node `node` with `items` added at its end."""
        length = list_length(node)
        packed: list[bytes] = []
        for item in items:
            try:
                packed.append(self._codec.pack(item, "", 1))
            except UnstorableValue as exc:  # paths cost time and are rarely needed: put together on the way up
                raise exc.under(f"{path}[{length + len(packed)}]") from exc
        return self.extended_packed(node, packed)

    def extended_by(self, node: Node, parts: Iterable[Node]) -> Node:
        """Return the list node `node` with items added at its end that are written already."""
        count, size, tails, cuts = read_list(node)
        list_ = Levels(self, tails, cuts)
        size -= len(tokens.array_header(count))
        for part in parts:
            list_.add_item(part)
            size += part.size
            count += 1
        return list_.list_node(count, size + len(tokens.array_header(count)))

    def extended_packed(self, node: Node, items: Iterable[bytes]) -> Node:
        """Return the list node `node` with items added at its end that are packed already."""
        return self.extended_by(node, [self.item(item) for item in items])

    def replaced(self, node: Node, common: Overlap, size: int, objects: Mapping[bytes, Content]) -> Node:
        """Return a list node of this size, packed, of which `common` says what it is made of, by the one before it.

        Groups that are kept stay as they are; `objects` must have all groups of the old list, but not its items.
        """
        found = opened(node.children, node.body)
        cutter = Cutter(Levels(self, [[]], [[]]), objects)
        cutter.take(found.parts, common.skip, common.skip + common.front)
        for item in common.added:
            cutter.levels.add_part(self.item(item))
        cutter.take(found.parts, found.length - common.back, found.length)
        self.leave_out(cutter.lengths.keys())
        return cutter.levels.list_node(common.front + len(common.added) + common.back, size)

    def packed_list(self, packed: bytes) -> Node:
        """Write a list that is packed already as a list node, whatever its size."""
        return self.extended_packed(EMPTY_LIST, tokens.items(packed))

    def mapping(self, entries: Iterable[tuple[bytes, bytes | Node]], old: Node | None = None) -> Node:
        """Write a mapping of packed text keys. Values that are given as nodes stand alone, the others together.

        `old` is the node that this made of the values that stood together before.
        """
        alone: list[Node] = []
        together: list[bytes] = []
        count = size = before = 0
        for key, value in entries:
            count += 1
            size += len(key)
            if isinstance(value, Node):
                body = number_bytes(before) + number_bytes(len(key)) + key + value.body
                alone.append(Node(value.children, body, value.size))
                size += value.size
                before = 0
            else:
                together += (key, value)
                size += len(value)
                before += len(key) + len(value)
        size += len(tokens.map_header(count))
        small = self.packed(tokens.map_header(len(together) // 2) + b"".join(together), made_of(old))
        children = b"".join([part.children for part in alone]) + small.children
        parts = [bytes((MAP,)), number_bytes(count), number_bytes(size), number_bytes(len(alone))]
        return Node(children, b"".join([*parts, *[part.body for part in alone], small.body]), size, small.made)

    def weight_at_most(self) -> int:
        """Return what all weighs that was written and not kept from before, at most: it may repeat what is there."""
        scale = costs.Scale(sys.maxsize)
        weight = sum([costs.weight_at_most(piece) for piece in self._pieces])
        for packed in self._whole:
            # To weigh a large one exactly takes longer than to count its bytes.
            weight += scale.weight(packed) if len(packed) <= WHOLE_MAX else costs.weight_at_most(packed)
        return weight

    def leave_out(self, known: Collection[bytes]) -> None:
        """Forget the objects that turn out to be known."""
        for key in [key for key in self.objects if key in known]:
            children, body = self.objects.pop(key)
            self.added_bytes -= len(children) + len(body)

    def store(self, children: bytes, body: bytes) -> bytes:
        """Keep an object if it is new, and return its hash."""
        key = address(children, body)
        if key not in self._known and key not in self.objects:
            self.objects[key] = children, body
            self.added_bytes += len(children) + len(body)
        return key

    def _leaf(self, packed: bytes) -> bytes:
        self._whole.append(packed)
        key = sha256(_LEAF_SEED + packed).digest()[:HASH_BYTES]  # address(b"", REST + packed), with one copy less
        if key not in self._known and key not in self.objects:
            self.objects[key] = b"", REST_BODY + packed
            self.added_bytes += len(packed) + 1
        return key

    def _in_pieces(self, value: LongValue, old: InPieces | None, piece_bytes: int) -> Node:
        levels = [self._pieces_level(value, _level_of(old, 0), piece_bytes)]
        while len(levels[-1].keys) > PIECES_MAX:
            listed = b"".join(levels[-1].keys)
            levels.append(self._groups_level(listed, _level_of(old, len(levels))))
        made = InPieces(value.head, levels, value.stretches)
        numbers = number_bytes(value.size) + number_bytes(len(levels)) + number_bytes(len(levels[-1].keys))
        body = bytes((PIECES,)) + numbers + made.head
        return Node(b"".join(levels[-1].keys), body, value.size, made)

    def _pieces_level(self, value: LongValue, old: Level, piece_bytes: int) -> Level:
        """Cut a value into pieces, and store those that are new."""
        layer = Layer(value.data, value.start, old.pieces, piece_bytes)
        keys: list[bytes] = []
        for piece, kept in zip(layer.pieces, layer.kept, strict=True):
            if kept >= 0:
                keys.append(old.keys[kept])
            else:
                self._pieces.append(piece)
                keys.append(self.store(b"", piece))
        return Level(layer.pieces, keys)

    def _groups_level(self, listed: bytes, old: Level) -> Level:
        """Cut a list of hashes into groups, and store those that are new."""
        layer = Layer(listed, 0, old.pieces, _PIECES_IN_GROUP * HASH_BYTES, HASH_BYTES)
        keys: list[bytes] = []
        for group, kept in zip(layer.pieces, layer.kept, strict=True):
            keys.append(old.keys[kept] if kept >= 0 else self.store(group, NODES_BODY))
        return Level(layer.pieces, keys)

    def placed(self, node: Node, inline_max: int = _INLINE_MAX) -> Node:
        """Return `node` itself if it is small, else a reference to it as an object."""
        if len(node.children) + len(node.body) <= inline_max:
            return node
        return Node(self.store(node.children, node.body), REF_BODY, node.size, node.made)


def _level_of(old: InPieces | None, height: int) -> Level:
    if old is None or height >= len(old.levels):
        return Level([], [])
    return old.levels[height]


def made_of(node: Node | None) -> InPieces | None:
    """Return what the next version of a value in pieces is laid over, if that is at hand."""
    made = node.made if node is not None else None
    return made if isinstance(made, InPieces) else None
