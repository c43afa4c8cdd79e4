"""Packed values as objects: write, extend, join, walk. Pure: bytes in, bytes out.

A value has one of two forms. **Items**: a list whose items are added, edited and merged one by one, as a conversation
is; and a mapping whose large values stand by themselves (the channels of a graph). **Packed bytes**: everything else,
as the packer made them; in one object if they are small, in pieces if they are not (see `pieces`).

The items of a list stand in groups, the groups in groups of groups. Where a group ends depends on the content of its
last part (and on the level), with a least and a greatest length, so an edit in the middle moves no boundary far away,
and equal items cannot degenerate. Only finished groups become objects: the open end of every level stays inside the
list's own node, which is why an append writes one short node and the new item.

An object is (hash, children, body): the hashes it refers to stand in `children`, in order of use; the body only says
"next child". A store can walk and mark trees without ever opening a body. Joining gives back exactly the bytes that
`codec.pack` makes of the whole value: that is the law the tests check.

Equal parts are one object, however often they occur. So a few stored bytes can stand for a value of any size, and what
that costs a reader is bounded: see `repeats`.

A list, and each of its items, is a function of its value. A value in pieces is not: its pieces depend on what it was
before, unless it is written without that. Equal nodes mean equal values; of different ones nobody knows without
reading both. Every node that is not small says how large its value is when packed, so that a size is never more than
one object away.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, UnstorableValue
from everstep.values import codec, costs
from everstep.values.long_values import HEAD_BYTES, LongValue, Stretches, long_value
from everstep.values.overlap import Overlap
from everstep.values.pieces import Layer, piece_size
from everstep.values.stretches import Version

FORMAT = 1
"""The address function: the first 16 bytes of SHA-256 over format, children and body. Belongs to a family."""

HASH_BYTES = 16
VALUE_BYTES_MAX = 1 << 30
"""The largest value that is saved, packed: what cannot be read back in one piece is not accepted."""

_INLINE_MAX = 48  # a part up to this size stands in its parent, where it is written again with each change beside it
WHOLE_MAX = 4096
"""A value up to this size is one object; a larger one is kept in pieces."""
_PIECES_MAX = 48  # so many pieces are listed in the node itself
_PIECES_IN_GROUP = 32
_PIECE_MIN = 64  # on average; a writer makes larger ones
_GROUP_MIN = 4
_GROUP_MAX = 32
_GROUP_ODDS = 96  # in 256: that a group ends after a part
_LEVELS_MAX = 32

REPEATS_MAX = int(os.environ.get("EVERSTEP_REPEATS_MAX", 192 << 20))
"""What a value may cost beyond its own objects because parts of it occur again; see `repeats`."""
REPEATS_FREE = 1 << 20
"""Bytes that occur again without anybody looking closer, so what is smaller is written without a look."""

PACKED, REF, LIST, MAP, PIECES, REST, GROUP, NODES, WHOLE = range(9)

REF_BODY = bytes((REF,))
_ONLY_REFS = {REF_BODY}
_REST_BODY = bytes((REST,))
_PACKED_BODY = bytes((PACKED,))
_NODES_BODY = bytes((NODES,))
_OBJECT_SEED = hashlib.sha256(b"\x010:")  # of an object that refers to nothing
_LEAF_SEED = b"\x010:" + _REST_BODY
_sha256 = hashlib.sha256


Content = tuple[bytes, bytes]
"""An object's (children, body)."""

Tails = tuple[tuple[list["Node"], list[int]], ...]
"""The open ends of a list, lowest level first, with a byte for each part (see `Levels`). Never changed."""


class Level(NamedTuple):
    """The pieces of a value and their hashes; or, above that, groups of hashes and the hashes of these groups."""

    pieces: list[bytes]
    keys: list[bytes]


class InPieces(NamedTuple):
    """A value in pieces, opened: what its next version is laid over."""

    head: bytes
    levels: list[Level]
    stretches: Stretches | None = None
    """What is known of the items of a list."""

    def parts(self) -> list[bytes]:
        """Return the whole value, packed, in parts."""
        return [self.head, *self.levels[0].pieces]

    def version(self) -> Version:
        """Return what a packer of the next version can make use of."""
        return Version(self.parts(), self.stretches)


class Node(NamedTuple):
    """A value, written down: the hashes it refers to, its own bytes, and its size when packed as a whole."""

    children: bytes
    body: bytes
    size: int
    """0 where it is not known without looking at an object: see `packed_size`."""
    made: Tails | InPieces | None = None
    """How a list or a value in pieces was made, if that is at hand: its next version is written from it."""


def address(children: bytes, body: bytes) -> bytes:
    """Return the hash under which an object is stored."""
    if not children:
        return _sha256(b"\x010:" + body).digest()[:HASH_BYTES]
    return _sha256(b"\x01%d:%b%b" % (len(children), children, body)).digest()[:HASH_BYTES]


def mismatched(objects: Mapping[bytes, Content]) -> list[bytes]:
    """Return the hashes that are not the address of their content."""
    sha256 = _sha256
    size = HASH_BYTES
    return [
        key
        for key, (children, body) in objects.items()
        if key != (address(children, body) if children else sha256(b"\x010:" + body).digest()[:size])
    ]


def hashes(children: bytes) -> list[bytes]:
    """Return the single hashes in `children`."""
    count, rest = divmod(len(children), HASH_BYTES)
    if rest or count > _SPLIT_MAX:
        return [children[at : at + HASH_BYTES] for at in range(0, len(children), HASH_BYTES)]
    return list(_splitter(count)(children))


_SPLIT_MAX = 256


@functools.lru_cache(_SPLIT_MAX + 1)
def _splitter(count: int) -> Callable[[bytes], tuple[bytes, ...]]:
    return struct.Struct(f"{HASH_BYTES}s" * count).unpack


# -- writing -----------------------------------------------------------------------------------------------------------


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
        size = len(packed)
        if size > WHOLE_MAX:
            return self.long(long_value(b"", packed), old)
        if size > _INLINE_MAX:
            return Node(self._leaf(packed), REF_BODY, size)
        self._whole.append(packed)
        return Node(b"", b"%c%c%b" % (PACKED, size, packed), size)

    def long(self, value: LongValue, old: InPieces | None = None) -> Node:
        """Write a long value that is packed already, in pieces."""
        return self.placed(self._in_pieces(value, old))

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
        count, size, tails, cuts = _read_list(node)
        list_ = Levels(self, tails, cuts)
        size -= len(codec.array_header(count))
        for part in parts:
            list_.add_item(part)
            size += part.size
            count += 1
        return list_.list_node(count, size + len(codec.array_header(count)))

    def extended_packed(self, node: Node, items: Iterable[bytes]) -> Node:
        """Return the list node `node` with items added at its end that are packed already."""
        return self.extended_by(node, [self.packed(item) for item in items])

    def replaced(self, node: Node, common: Overlap, size: int, objects: Mapping[bytes, Content]) -> Node:
        """Return a list node of this size, packed, of which `common` says what it is made of, by the one before it.

        Groups that are kept stay as they are; `objects` must have all groups of the old list, but not its items.
        """
        found = opened(node.children, node.body)
        cutter = _Cutter(Levels(self, [[]], [[]]), objects)
        cutter.take(found.parts, common.skip, common.skip + common.front)
        for item in common.added:
            cutter.levels.add_part(self.packed(item))
        cutter.take(found.parts, found.length - common.back, found.length)
        self.leave_out(cutter.lengths.keys())
        return cutter.levels.list_node(common.front + len(common.added) + common.back, size)

    def packed_list(self, packed: bytes) -> Node:
        """Write a list that is packed already as a list node, whatever its size."""
        return self.extended_packed(EMPTY_LIST, codec.items(packed))

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
                body = _number(before) + _number(len(key)) + key + value.body
                alone.append(Node(value.children, body, value.size))
                size += value.size
                before = 0
            else:
                together += (key, value)
                size += len(value)
                before += len(key) + len(value)
        size += len(codec.map_header(count))
        small = self.packed(codec.map_header(len(together) // 2) + b"".join(together), made_of(old))
        children = b"".join([part.children for part in alone]) + small.children
        parts = [bytes((MAP,)), _number(count), _number(size), _number(len(alone))]
        return Node(children, b"".join([*parts, *[part.body for part in alone], small.body]), size, small.made)

    def weight_at_most(self) -> int:
        """Return what all weighs that was written and not kept from before, at most: it may repeat what is there."""
        scale = costs.Scale(sys.maxsize)
        whole = sum([scale.weight(packed) for packed in self._whole])
        return whole + sum([costs.weight_at_most(piece) for piece in self._pieces])

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
        key = _sha256(_LEAF_SEED + packed).digest()[:HASH_BYTES]  # address(b"", REST + packed), with one copy less
        if key not in self._known and key not in self.objects:
            self.objects[key] = b"", _REST_BODY + packed
            self.added_bytes += len(packed) + 1
        return key

    def _in_pieces(self, value: LongValue, old: InPieces | None) -> Node:
        levels = [self._pieces_level(value, _level_of(old, 0))]
        while len(levels[-1].keys) > _PIECES_MAX:
            listed = b"".join(levels[-1].keys)
            levels.append(self._groups_level(listed, _level_of(old, len(levels))))
        made = InPieces(value.head, levels, value.stretches)
        numbers = _number(value.size) + _number(len(levels)) + _number(len(levels[-1].keys))
        body = bytes((PIECES,)) + numbers + made.head
        return Node(b"".join(levels[-1].keys), body, value.size, made)

    def _pieces_level(self, value: LongValue, old: Level) -> Level:
        """Cut a value into pieces, and store those that are new."""
        layer = Layer(value.data, value.start, old.pieces, piece_size(value.size))
        keys: list[bytes] = []
        for piece, kept in zip(layer.pieces, layer.kept, strict=True):
            if kept >= 0:
                keys.append(old.keys[kept])
            else:
                self._pieces.append(piece)
                keys.append(self._piece(piece))
        return Level(layer.pieces, keys)

    def _groups_level(self, listed: bytes, old: Level) -> Level:
        """Cut a list of hashes into groups, and store those that are new."""
        layer = Layer(listed, 0, old.pieces, _PIECES_IN_GROUP * HASH_BYTES, HASH_BYTES)
        keys: list[bytes] = []
        for group, kept in zip(layer.pieces, layer.kept, strict=True):
            keys.append(old.keys[kept] if kept >= 0 else self.store(group, _NODES_BODY))
        return Level(layer.pieces, keys)

    def _piece(self, piece: bytes) -> bytes:
        """Keep a piece if it is new, and return its hash: what `store` does, without a copy of what is hashed."""
        hashing = _OBJECT_SEED.copy()
        hashing.update(piece)
        key = hashing.digest()[:HASH_BYTES]
        if key not in self._known and key not in self.objects:
            self.objects[key] = b"", piece
            self.added_bytes += len(piece)
        return key

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


class Levels:
    """The open ends of a list, one per level; level 0 holds parts, the others references to finished groups.

    Each part has a byte that its content decides; the bytes of the last four parts decide whether a group ends, so
    that even a list of booleans has places to end at.
    """

    def __init__(self, writer: Writer, tails: list[list[Node]], cuts: list[list[int]]) -> None:
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
        body = bytes((LIST,)) + _number(count) + _number(size) + body
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
        body = _NODES_BODY if level else bytes((GROUP,)) + _runs(tail)
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
        numbers = [_number(len(self.tails))]
        for tail in self.tails[:0:-1]:
            numbers.append(_number(len(tail)))
            children.extend([part.children for part in tail])
        children.extend([part.children for part in self.tails[0]])
        return b"".join(children), b"".join(numbers) + _runs(self.tails[0])


def _ends_group(cuts: list[int]) -> bool:
    """Whether a group ends here, by the bytes of its last four parts."""
    mixed = cuts[-1] * 0x9E3B + cuts[-2] * 0x79B1 + cuts[-3] * 0x85EB + cuts[-4] * 0xC2B3
    return (mixed >> 8) & 0xFF < _GROUP_ODDS or len(cuts) >= _GROUP_MAX


class _Cutter:
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
            if part.level == 1 and body == b"%c%b\0" % (GROUP, _number(2 * count)):
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
        return _number(end * 2) + b"\x00"
    while at < end:
        start = at
        plain = parts[at].body == REF_BODY
        while at < end and (parts[at].body == REF_BODY) is plain:
            at += 1
        out.append(_number((at - start) * 2 + (0 if plain else 1)))
        if not plain:
            out.extend([part.body for part in parts[start:at]])
    return b"".join(out) + b"\x00"


def _cut(part: Node, level: int = 0) -> int:
    if part.body == REF_BODY:
        return part.children[level % HASH_BYTES]
    return zlib.crc32(part.body + part.children) & 0xFF


_TINY_NUMBERS = [bytes((value,)) for value in range(0x80)]


def _number(value: int) -> bytes:
    if value < 0x80:
        return _TINY_NUMBERS[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# -- reading -----------------------------------------------------------------------------------------------------------


class MissingObject(CheckpointCorrupted):
    """An object that a node refers to is not at hand."""

    def __init__(self, key: bytes) -> None:
        super().__init__(f"the object {key.hex()} is missing")


class _Cursor:
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


class Reader:
    """Joins nodes back into packed bytes. `objects` holds the verified content of every object below them.

    The bytes may be forged. Nothing is joined beyond what the node around it claims; an object that occurs again is
    joined once more, and copied from then on; and what occurs again is bounded by `REPEATS_MAX`. So time and memory
    depend on what is stored.
    """

    def __init__(
        self, objects: Mapping[bytes, Content], size_max: int = VALUE_BYTES_MAX, repeats_max: int | None = None
    ) -> None:
        self._objects = objects
        self._repeats_max = REPEATS_MAX if repeats_max is None else repeats_max
        self._left = size_max
        self._seen: set[bytes] = set()
        self._joined: dict[Any, bytes] = {}
        self._repeated = 0
        self._root: Content | None = b"", b""
        """What to look at when much is repeated; None: that has been done."""

    def fields(self, children: bytes, body: bytes, count: int) -> list[list[bytes]]:
        """Return the packed parts of each of the `count` nodes that stand one after the other."""
        cursor = _Cursor(children, body)
        parts: list[list[bytes]] = [[] for _ in range(count)]
        self._root = children, body
        try:
            for out in parts:
                self._node(cursor, out)
            cursor.finish()
        except IndexError as exc:
            raise CheckpointCorrupted("a stored node cannot be read") from exc
        return parts

    def _object(self, key: bytes) -> _Cursor:
        content = self._objects.get(key)
        if content is None:
            raise MissingObject(key)
        return _Cursor(*content)

    def _emit(self, out: list[bytes], data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise CheckpointCorrupted("a stored value is larger than its record says")
        out.append(data)

    def _again(self, key: bytes, kind: Any, out: list[bytes], join: Callable[[list[bytes]], None]) -> None:
        """Join an object that has occurred before once more, and copy it from then on."""
        joined = self._joined.get((key, kind))
        if joined is not None:
            self._emit(out, joined)
        else:
            parts: list[bytes] = []
            repeated = self._repeated
            join(parts)
            self._repeated = repeated  # counted below, with all that is inside
            joined = self._joined[key, kind] = b"".join(parts)
            out.append(joined)
        self._count_repeated(len(joined))

    def _count_repeated(self, size: int) -> None:
        self._repeated += size
        if self._repeated > REPEATS_FREE and self._root is not None:
            root, self._root = self._root, None
            refuse_repeats(repeats(*root, self._objects.get, self._repeats_max), self._repeats_max)

    def _node(self, cursor: _Cursor, out: list[bytes]) -> None:
        op = cursor.byte()
        if op == PACKED:
            self._emit(out, cursor.take(cursor.number()))
        elif op == REST:
            self._emit(out, cursor.take(len(cursor.body) - cursor.at))
        elif op in (REF, WHOLE):
            self._reference(cursor.refs(1)[0], out)
        elif op == LIST:
            self._list(cursor, out)
        elif op == MAP:
            self._mapping(cursor, out)
        elif op == PIECES:
            self._pieces(cursor, out)
        else:
            raise CheckpointCorrupted(f"a stored node is of the unknown kind {op}")

    def _reference(self, key: bytes, out: list[bytes]) -> None:
        if key in self._seen:
            self._again(key, REF, out, lambda parts: self._join_reference(key, parts))
            return
        self._seen.add(key)
        self._join_reference(key, out)

    def _join_reference(self, key: bytes, out: list[bytes]) -> None:
        inner = self._object(key)
        self._node(inner, out)
        inner.finish()

    def _claimed(self, size: int) -> int:
        """Allow as many bytes as a node says it has, and return how many were allowed before."""
        left = self._left
        if size > left:
            raise CheckpointCorrupted("a stored value is larger than its record says")
        self._left = size
        return left

    def _claim_met(self, size: int, left: int) -> None:
        """Check that a node has all the bytes that it says it has."""
        if self._left:
            raise CheckpointCorrupted("a stored value is not of the size its node says")
        self._left = left - size

    def _list(self, cursor: _Cursor, out: list[bytes]) -> None:
        count = cursor.number()
        size = cursor.number()
        left = self._claimed(size)
        self._emit(out, codec.array_header(count))
        top = cursor.number() - 1
        if not 0 <= top < _LEVELS_MAX:
            raise CheckpointCorrupted("a stored list has an impossible height")
        for level in range(top, 0, -1):
            for key in cursor.refs(cursor.number()):
                self._finished(key, level, out, self._group)
        self._group(cursor, out)
        self._claim_met(size, left)

    def _pieces(self, cursor: _Cursor, out: list[bytes]) -> None:
        size, height, count = _pieces_numbers(cursor)
        left = self._claimed(size)
        self._emit(out, cursor.take(HEAD_BYTES))
        for key in cursor.refs(count):
            self._finished(key, height - 1, out, None)
        self._claim_met(size, left)

    def _mapping(self, cursor: _Cursor, out: list[bytes]) -> None:
        """Join a mapping: the values that stand together are cut apart where another stands between them."""
        count = cursor.number()
        size = cursor.number()
        left = self._claimed(size)
        self._emit(out, codec.map_header(count))
        alone: list[tuple[int, list[bytes]]] = []
        for _ in range(cursor.number()):
            before = cursor.number()
            parts = list[bytes]()
            self._emit(parts, cursor.take(cursor.number()))
            self._node(cursor, parts)
            alone.append((before, parts))
        header = codec.map_header(max(count - len(alone), 0))
        self._left += len(header)  # it stands before those that stand together, and not in what is joined
        parts = list[bytes]()
        self._node(cursor, parts)
        together = b"".join(parts)
        if not together.startswith(header):
            raise CheckpointCorrupted("a stored mapping is out of shape")
        at = len(header)
        for before, one in alone:
            out.append(together[at : at + before])
            out.extend(one)
            at += before
        if at > len(together):
            raise CheckpointCorrupted("a stored mapping is out of shape")
        out.append(together[at:])
        self._claim_met(size, left)

    def _finished(self, key: bytes, level: int, out: list[bytes], items: _JoinItems | None) -> None:
        """Join a finished group of a list; or a piece (level 0) or a group of pieces of a value, without `items`."""
        if key in self._seen:
            again = (level, items is None)
            self._again(key, again, out, lambda joined: self._join_group(key, level, joined, items))
            return
        self._seen.add(key)
        self._join_group(key, level, out, items)

    def _join_group(self, key: bytes, level: int, out: list[bytes], items: _JoinItems | None) -> None:
        left = self._left
        children, body = content_of(key, self._objects)
        if level == 0 and not children:
            self._emit(out, body)
        elif level == 1 and items is not None and body == _GROUPS_OF_REFS.get(len(children)):
            self._items(hashes(children), out)
        else:
            self._join_other_group(_Cursor(children, body), level, out, items)
        if self._left == left:  # no writer makes a group of nothing
            raise CheckpointCorrupted("a stored list has an empty group")

    def _join_other_group(self, group: _Cursor, level: int, out: list[bytes], items: _JoinItems | None) -> None:
        """Join a group of groups, or one in which some items stand themselves."""
        kind = group.byte() if level else None
        if level == 1 and kind == GROUP and items is not None:
            items(group, out)
        elif kind == NODES:
            for child in group.refs(len(group.children) // HASH_BYTES):
                self._finished(child, level - 1, out, items)
        else:
            raise CheckpointCorrupted("a stored list is out of shape")
        group.finish()

    def _group(self, cursor: _Cursor, out: list[bytes]) -> None:
        while run := cursor.number():
            if run & 1:
                for _ in range(run >> 1):
                    self._node(cursor, out)
            else:
                self._items(cursor.refs(run >> 1), out)

    def _items(self, keys: list[bytes], out: list[bytes]) -> None:
        """Join items that are objects; usually all of them are whole values."""
        objects = self._objects
        try:
            bodies = [objects[key][1] for key in keys]
        except KeyError as exc:
            raise MissingObject(exc.args[0]) from None
        if all([body[:1] == _REST_BODY for body in bodies]):  # noqa: C419  # a list is faster here
            size = sum(map(len, bodies)) - len(bodies)
            self._left -= size
            if self._left < 0:
                raise CheckpointCorrupted("a stored value is larger than its record says")
            out.extend([body[1:] for body in bodies])
            known = len(self._seen)
            self._seen.update(keys)
            if len(self._seen) - known < len(keys):  # some occur again: which does not matter here
                self._count_repeated(size)
            return
        for key in keys:
            self._reference(key, out)


_JoinItems = Callable[[_Cursor, list[bytes]], None]


def _pieces_numbers(cursor: _Cursor) -> tuple[int, int, int]:
    """Read of a value in pieces its size, how many levels of pieces and groups it has, and how many of the highest."""
    size = cursor.number()
    height = cursor.number()
    count = cursor.number()
    if not 0 < height <= _LEVELS_MAX:
        raise CheckpointCorrupted("a stored value has an impossible height")
    return size, height, count


def in_pieces(node: Node, objects: Mapping[bytes, Content]) -> InPieces | None:
    """Open a value in pieces that has been read; None if it is kept otherwise."""
    children = node.children
    body = node.body
    if body == REF_BODY:
        children, body = content_of(children, objects)
    if body[:1] != bytes((PIECES,)):
        return None
    cursor = _Cursor(children, body)
    cursor.byte()
    size, height, count = _pieces_numbers(cursor)
    head = cursor.take(HEAD_BYTES)
    keys = cursor.refs(count)
    levels: list[Level] = []
    for _ in range(height - 1):
        groups = [content_of(key, objects)[0] for key in keys]
        levels.insert(0, Level(groups, keys))
        if sum(map(len, groups)) > HASH_BYTES * (_PIECES_MAX + size // _PIECE_MIN):
            return None  # no writer makes such small pieces
        keys = hashes(b"".join(groups))
    levels.insert(0, Level([content_of(key, objects)[1] for key in keys], keys))
    return InPieces(head, levels)


# -- what repetition costs ---------------------------------------------------------------------------------------------


def repeats(
    children: bytes,
    body: bytes,
    content: Callable[[bytes], Content | None],
    most: int = sys.maxsize,
    scale: costs.Scale | None = None,
) -> int:
    """Return what it costs to build the values of these nodes beyond building each object below them once.

    That is 0 for a value no part of which occurs twice, however large it is. Of an object that occurs n times, n - 1
    count, weighed by what it is made of (see `costs`). A value in pieces is weighed as a whole, and of that counts the
    share that its pieces have in what occurs again. Objects that are not at hand count nothing. Takes time by the
    number of objects, not by how often they occur; and, up to half a second, by what there is to weigh. What would
    take longer may count too much. Stops somewhere above `most`.
    """
    roots = hashes(children)
    below = _opened_all(roots, content)
    if len(roots) + sum([len(keys) for keys in below.values()]) == len(below):
        return 0  # each is referred to once
    scale = scale or costs.Scale()
    tally = _Tally(content, most, scale)
    tally.count(roots, _notes_of(children, body, scale, is_object=False), 1)
    for key in reversed(below):  # whoever refers to it comes first
        tally.add_object(key, below[key])
        if tally.cost > most:
            return tally.cost
    for note, times in tally.in_pieces.items():
        tally.add_in_pieces(note, times)
        if tally.cost > most:
            break
    return tally.cost


def repeats_nothing(children: bytes, content: Callable[[bytes], Content | None]) -> bool:
    """Whether all objects below these nodes are at hand, and each is referred to once: `repeats` is 0 then."""
    seen: set[bytes] = set()
    pending = hashes(children)
    while pending:
        count = len(seen) + len(pending)
        seen.update(pending)
        found = list(map(content, pending))
        if len(seen) < count or None in found:
            return False
        pending = hashes(b"".join([below for below, _ in filter(None, found)]))
    return True


def is_mostly_new(added_bytes: int, size: int) -> bool:
    """Whether so much of a value is new that a look at all its objects takes less time than to weigh what is new."""
    return added_bytes * 8 > size


class _Tally:
    """How often objects occur, and what that costs."""

    def __init__(self, content: Callable[[bytes], Content | None], most: int, scale: costs.Scale) -> None:
        self._content = content
        self._most = most
        self._scale = scale
        self.times: dict[bytes, int] = {}
        self.in_pieces: dict[_PiecesNote, int] = {}
        self.cost = 0
        self._seen: set[bytes] = set()

    def count(self, children: Sequence[bytes], notes: _Notes, times: int) -> None:
        """Count what a node or object refers to that occurs so often."""
        times_of = self.times
        at = 0
        for note in notes.in_pieces:
            for child in children[at : note.first]:
                times_of[child] = times_of.get(child, 0) + times
            at = note.first + len(note.keys) // HASH_BYTES
            alike = note._replace(first=0)
            self.in_pieces[alike] = self.in_pieces.get(alike, 0) + times
        for child in children[at:]:
            times_of[child] = times_of.get(child, 0) + times

    def add_object(self, key: bytes, children: Sequence[bytes]) -> None:
        """Add what an object costs by itself beyond building it once, and count what it refers to."""
        found = self._content(key)
        times = self.times.get(key, 0)
        if found is None or times == 0 or (times == 1 and not children):
            return
        notes = _notes_of(*found, self._scale, is_object=True)
        self.cost += (times - 1) * notes.weight
        self.count(children, notes, times)

    def add_in_pieces(self, note: _PiecesNote, times: int) -> None:
        """Add what a value in pieces costs that occurs so often, beyond building each piece once."""
        new_bytes = HEAD_BYTES + sum([self._new_bytes(key, note.height - 1) for key in hashes(note.keys)])
        if times == 1 and new_bytes >= note.size:
            return
        repeated_bytes = max(note.size * times - min(new_bytes, note.size), 1)
        if repeated_bytes > min(self._most, REPEATS_MAX):
            self.cost += repeated_bytes  # which is too much already, though it is not weighed
            return
        # What is weighed up to here costs more than any reader allows, though only its repeated share counts.
        most = (self._most + 1) * note.size // repeated_bytes + 1
        weight = self._scale.weight_in_pieces(self._join(note), most, repeated_bytes / max(note.size, 1))
        self.cost += weight * repeated_bytes // max(note.size, 1)

    def _new_bytes(self, key: bytes, level: int) -> int:
        """Return how many bytes there are in pieces that have not been met yet."""
        if key in self._seen:
            return 0
        self._seen.add(key)
        found = self._content(key)
        if found is None:
            return 0
        if level == 0:
            return len(found[1])
        return sum([self._new_bytes(child, level - 1) for child in hashes(found[0])])

    def _join(self, note: _PiecesNote) -> bytes:
        """Return a value in pieces as a whole, and no more of it than it says it has."""
        joined: dict[tuple[bytes, int], bytes] = {}

        def join(keys: bytes, level: int) -> bytes:
            parts: list[bytes] = []
            size = 0
            for key in hashes(keys):
                part = joined.get((key, level))
                if part is None:
                    below, body = self._content(key) or (b"", b"")
                    part = joined[key, level] = join(below, level - 1) if level else body
                parts.append(part)
                size += len(part)
                if size > note.size:
                    break
            return b"".join(parts)[: note.size]

        return note.head + join(note.keys, note.height - 1)


def _opened_all(roots: Sequence[bytes], content: Callable[[bytes], Content | None]) -> dict[bytes, list[bytes]]:
    """Return every object at or below these with those it refers to; these come before it."""
    done: dict[bytes, list[bytes]] = {}
    opened: dict[bytes, list[bytes]] = {}
    pending = list(roots)
    while pending:
        key = pending[-1]
        if key in done:
            pending.pop()
            continue
        if key not in opened:
            found = content(key)
            opened[key] = hashes(found[0]) if found is not None else []
            above = _with_children(opened[key], content, done)
            if above:
                if not opened.keys().isdisjoint(above):
                    raise CheckpointCorrupted("a stored object holds itself")
                pending.extend(above)
                continue
        pending.pop()
        done[key] = opened.pop(key)
    return done


def _with_children(
    keys: Sequence[bytes], content: Callable[[bytes], Content | None], done: dict[bytes, list[bytes]]
) -> list[bytes]:
    """Return those of these objects that refer to others. What refers to nothing, as most, is done with this."""
    found = list[bytes]()
    for key in dict.fromkeys(keys):  # many may be the same
        if key in done:
            continue
        inner = content(key)
        if inner is None or not inner[0]:
            done[key] = []
        else:
            found.append(key)
    return found


def refuse_repeats(cost: int, limit: int) -> None:
    """Refuse to read what repeats itself more than the limit of readers allows."""
    if cost > limit:
        raise CheckpointCorrupted(
            f"a stored value repeats parts of itself so often that reading it costs {cost:,} more than what is stored; "
            f"the limit is {limit:,}. If it was written on purpose, raise EVERSTEP_REPEATS_MAX ({REPEATS_MAX:,})"
        )


def writable_repeats(limit: int) -> int:
    """Return up to which cost a value is written, by the limit of readers. The rest makes up for estimates."""
    return limit * 3 // 4


def check_repeats(cost: int, limit: int, size: int, path: str) -> None:
    """Refuse to write what could not be read: a value that repeats itself more than the limit of readers allows."""
    writable = writable_repeats(limit)
    if cost > writable:
        raise UnstorableValue(
            path,
            f"a value of {size:,} bytes",
            f"parts of it occur again and again, which would cost {cost:,} when it is read; the limit is "
            f"{writable:,} (EVERSTEP_REPEATS_MAX is {REPEATS_MAX:,}). Keep what is repeated once, and refer to it",
        )


class _PiecesNote(NamedTuple):
    """A value in pieces that is met when a node is stepped over."""

    keys: bytes
    height: int
    size: int
    head: bytes
    first: int
    """The number of its first child."""


class _Notes:
    """What is met when a node is stepped over."""

    __slots__ = ("in_pieces", "weight")

    def __init__(self) -> None:
        self.in_pieces: list[_PiecesNote] = []
        self.weight = 0


class _Weigher(_Cursor):
    """A place in a body; what is taken from it is weighed."""

    __slots__ = ("notes", "scale")

    def __init__(self, children: bytes, body: bytes, scale: costs.Scale) -> None:
        super().__init__(children, body)
        self.notes = _Notes()
        self.scale = scale

    def take(self, size: int) -> bytes:
        data = super().take(size)
        self.notes.weight += self.scale.weight(data)
        return data


def _notes_of(children: bytes, body: bytes, scale: costs.Scale, *, is_object: bool) -> _Notes:
    """Return what an object, or nodes one after the other, cost by themselves, and which values in pieces are there."""
    cursor = _Weigher(children, body, scale)
    try:
        if is_object and body[:1] == _REST_BODY:
            cursor.byte()
            cursor.take(len(body) - 1)
        elif is_object and body[:1] == bytes((GROUP,)):
            cursor.byte()
            _skip_items(cursor, cursor.notes)
        elif not is_object or body != _NODES_BODY:
            while cursor.at < len(body):
                _skip(cursor, cursor.notes)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    return cursor.notes


def nodes(children: bytes, body: bytes, sizes: Sequence[int]) -> list[Node]:
    """Return the nodes of these sizes that stand one after the other, without opening what they refer to."""
    cursor = _Cursor(children, body)
    found = []
    try:
        for size in sizes:
            at = cursor.at
            child = cursor.child
            if body[at] == PACKED and body[at + 1] < 0x80:  # short, as most are; `finish` notices what is cut off
                cursor.at += 2 + body[at + 1]
            else:
                _skip(cursor)
            found.append(Node(children[child : cursor.child], body[at : cursor.at], size))
        cursor.finish()
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    return found


def list_length(node: Node) -> int:
    """Return how many items a list node has."""
    cursor = _Cursor(node.children, node.body)
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
    return Node(b"", bytes((PACKED,)) + _number(len(packed)) + packed, len(packed))


def inline_value(node: Node) -> bytes | None:
    """Return the packed value of a node where it stands; None if it is elsewhere."""
    if node.body[:1] != _PACKED_BODY:
        return None
    value = node.body[2:]
    if node.children or not value or node.body[1] != len(value) or len(value) >= 0x80:  # else it is short, as most are
        value = _long_inline_value(node)
    if node.size and len(value) > node.size:
        raise CheckpointCorrupted("a stored value is larger than its record says")
    return value


def _long_inline_value(node: Node) -> bytes:
    cursor = _Cursor(node.children, node.body)
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


def content_of(key: bytes, objects: Mapping[bytes, Content]) -> Content:
    """Return an object; `objects` may be a memory that another thread takes things out of."""
    content = objects.get(key)
    if content is None:
        raise MissingObject(key)
    return content


def reachable(children: bytes, children_of: Callable[[bytes], bytes | None]) -> tuple[set[bytes], list[bytes]]:
    """Return every hash at or below `children`, and those whose own children are not known."""
    found: set[bytes] = set()
    unknown: list[bytes] = []
    pending = hashes(children)
    while pending:
        key = pending.pop()
        if key in found:
            continue
        found.add(key)
        below = children_of(key)
        if below is None:
            unknown.append(key)
        elif below:
            pending.extend(hashes(below))
    return found, unknown


def _skip(cursor: _Cursor, notes: _Notes | None = None) -> None:
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


def _skip_list(cursor: _Cursor, notes: _Notes | None) -> None:
    cursor.number()
    cursor.number()
    if notes is not None:
        notes.weight += costs.LIST
    height = cursor.number()
    if height > _LEVELS_MAX:
        raise CheckpointCorrupted("a stored list has an impossible height")
    for _ in range(height - 1):
        cursor.refs(cursor.number())
    _skip_items(cursor, notes)


def _skip_mapping(cursor: _Cursor, notes: _Notes | None) -> None:
    count = cursor.number()
    cursor.number()
    if notes is not None:
        notes.weight += costs.MAPPING + costs.PAIR * min(count, len(cursor.body))
    for _ in range(cursor.number()):
        cursor.number()
        cursor.take(cursor.number())
        _skip(cursor, notes)
    _skip(cursor, notes)


def _skip_pieces(cursor: _Cursor, notes: _Notes | None) -> None:
    size, height, count = _pieces_numbers(cursor)
    head = _Cursor.take(cursor, HEAD_BYTES)
    child = cursor.child
    cursor.refs(count)
    if notes is not None:
        keys = cursor.children[child : cursor.child]
        notes.in_pieces.append(_PiecesNote(keys, height, size, head, child // HASH_BYTES))


def _skip_items(cursor: _Cursor, notes: _Notes | None) -> None:
    """Step over the items of a list that stand here."""
    while run := cursor.number():
        if run & 1:
            for _ in range(run >> 1):
                _skip(cursor, notes)
        else:
            cursor.refs(run >> 1)


def packed_size(children: bytes, body: bytes) -> int:
    """Return the size of a node's or an object's value when packed. A reference has none: look at its object."""
    cursor = _Cursor(children, body)
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
        flat = codec.items(together) if codec.is_mapping(together) else None
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
    cursor = _Cursor(children, body)
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
    cursor = _Cursor(children, body)
    try:
        if cursor.byte() != LIST:
            raise CheckpointCorrupted("a stored list is out of shape")
        length = cursor.number()
        size = cursor.number()
        tails = _read_tails(cursor)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored list cannot be read") from exc
    levels = range(len(tails) - 1, -1, -1)
    return Parts(length, size, [Part(level, node) for level in levels for node in tails[level]])


def opened_group(level: int, children: bytes, body: bytes) -> list[Part]:
    """Return the parts of a finished group of a list."""
    cursor = _Cursor(children, body)
    try:
        kind = cursor.byte()
        if level == 1 and kind == GROUP:
            parts = [Part(0, node) for node in _read_items(cursor)]
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


def _read_node(cursor: _Cursor) -> Node:
    """Read the node that stands here, without opening what it refers to."""
    at = cursor.at
    child = cursor.child
    _skip(cursor)
    return Node(cursor.children[child : cursor.child], cursor.body[at : cursor.at], 0)


def _read_items(cursor: _Cursor) -> list[Node]:
    """Read the items of a list that stand here."""
    found: list[Node] = []
    while run := cursor.number():
        if run & 1:
            found.extend([_read_node(cursor) for _ in range(run >> 1)])
        else:
            found.extend([Node(key, REF_BODY, 0) for key in cursor.refs(run >> 1)])
    return found


def _read_tails(cursor: _Cursor) -> list[list[Node]]:
    """Read the open ends that stand here, and return them with the lowest level first."""
    height = cursor.number()
    if not 0 < height <= _LEVELS_MAX:
        raise CheckpointCorrupted("a stored list has an impossible height")
    tails = [[Node(key, REF_BODY, 0) for key in cursor.refs(cursor.number())] for _ in range(height - 1)]
    tails.append(_read_items(cursor))
    cursor.finish()
    return tails[::-1]


def _read_list(node: Node) -> tuple[int, int, list[list[Node]], list[list[int]]]:
    """Return how many items a list node has, its size, and its open ends, lowest level first, with each part's byte."""
    cursor = _Cursor(node.children, node.body)
    try:
        if cursor.byte() != LIST:
            raise CheckpointCorrupted("a stored list is out of shape")
        count = cursor.number()
        if isinstance(node.made, tuple) and not isinstance(node.made, InPieces):
            return count, node.size, [tail.copy() for tail, _ in node.made], [cuts.copy() for _, cuts in node.made]
        size = cursor.number()
        tails = _read_tails(cursor)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored list cannot be read") from exc
    return count, size, tails, [[_cut(part, level) for part in tail] for level, tail in enumerate(tails)]


_GROUPS_OF_REFS = {count * HASH_BYTES: bytes((GROUP, 2 * count, 0)) for count in range(1, _GROUP_MAX + 1)}
"""The bodies of groups all items of which are objects, by the size of their children."""
EMPTY_LIST = Node(b"", bytes((LIST, 0, 1, 1, 0)), 1, (([], []),))
EMPTY_MAP = Node(b"", bytes((PACKED, 1)) + codec.map_header(0), 1)
