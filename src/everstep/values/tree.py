"""Packed values as trees of objects: split, extend, join, walk. Pure: bytes in, bytes out.

A value is written as a node: its own bytes if it is small, else a reference to an object, or a list, mapping or long
text whose parts are nodes again. The parts of a list stand in groups, the groups in groups of groups. Where a group
ends depends on the content of its last part (and on the level), with a least and a greatest length, so an edit in the
middle moves no boundary far away, and equal items cannot degenerate. Only finished groups become objects: the open
end of every level stays inside the list's own node, which is why an append writes one short node and the new item.

An object is (hash, children, body): the hashes it refers to stand in `children`, in order of use; the body only says
"next child". A store can walk and mark trees without ever opening a body. Joining gives back exactly the bytes that
`codec.pack` makes of the whole value: that is the law the tests check.

Equal parts are one object, however often they occur. So a few stored bytes can stand for a value of any size, and what
that costs a reader is bounded: see `repeats`.

Every split node says how large its value is when packed, so that a size is never more than one object away. A node is
a function of its value and of the place it stands in (ITEM_MAX in a list, ENTRY_MAX elsewhere), and of nothing else:
compare and merge rest on that.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, UnstorableValue
from everstep.values import codec, costs

FORMAT = 1
"""The address function: the first 16 bytes of SHA-256 over format, children and body. Belongs to a family."""

HASH_BYTES = 16
VALUE_BYTES_MAX = 1 << 30
"""The largest value that is saved, packed: what cannot be read back in one piece is not accepted."""

_INLINE_MAX = 48  # a part up to this size stands in its parent, where it is written again with each change beside it
ITEM_MAX = 4096  # an item of a list is written once, so it is kept whole up to this size
ENTRY_MAX = 1024  # a value of a mapping is changed in place, so it is split sooner
_TEXT_MAX = 16384  # strings and bytes beyond this are cut by content
_GROUP_MIN, _GROUP_MAX = 4, 32
_GROUP_ODDS, _PAIRS_ODDS = 96, 32  # in 256: that a group ends after a part; a mapping has no open end that is rewritten
_LEVELS_MAX = 32

REPEATS_MAX = int(os.environ.get("EVERSTEP_REPEATS_MAX", 192 << 20))
"""What a value may cost beyond its own objects because parts of it occur again; see `repeats`."""
REPEATS_FREE = 1 << 20
"""Bytes that occur again without anybody looking closer, so what is smaller is written without a look."""

PACKED, REF, LIST, MAP, TEXT, BYTES, TAG, REST, GROUP, PAIRS, NODES, WHOLE, RAW = range(13)

REF_BODY = bytes((REF,))
_REST_BODY = bytes((REST,))
_LEAF_SEED = b"\x010:" + _REST_BODY
_sha256 = hashlib.sha256


Content = tuple[bytes, bytes]
"""An object's (children, body)."""


class Node(NamedTuple):
    """A value, written down: the hashes it refers to, its own bytes, and its size when packed as a whole."""

    children: bytes
    body: bytes
    size: int
    """0 where it is not known without looking at an object: see `packed_size`."""
    tails: tuple[tuple[list[Node], list[int]], ...] = ()
    """A list's open ends (see `Levels`), if they are at hand: saves reading them back. Never changed."""


def address(children: bytes, body: bytes) -> bytes:
    """Return the hash under which an object is stored."""
    if not children:
        return _sha256(b"\x010:" + body).digest()[:HASH_BYTES]
    return _sha256(b"\x01%d:%b%b" % (len(children), children, body)).digest()[:HASH_BYTES]


def mismatched(objects: Mapping[bytes, Content]) -> list[bytes]:
    """Return the hashes that are not the address of their content."""
    sha256, size = _sha256, HASH_BYTES
    return [
        key
        for key, (children, body) in objects.items()
        if key != (address(children, body) if children else sha256(b"\x010:" + body).digest()[:size])
    ]


def hashes(children: bytes) -> list[bytes]:
    """Return the single hashes in `children`."""
    return [children[at : at + HASH_BYTES] for at in range(0, len(children), HASH_BYTES)]


# -- writing -----------------------------------------------------------------------------------------------------------


class Writer:
    """Turns values into nodes and collects the objects they need, but for the `known` ones."""

    def __init__(
        self,
        known: Collection[bytes] = frozenset(),
        objects: dict[bytes, Content] | None = None,
        packer: codec.Codec = codec.DEFAULT,
    ) -> None:
        self._known, self._codec = known, packer
        self.objects = objects if objects is not None else {}
        self.added_bytes = sum(len(children) + len(body) for children, body in self.objects.values())

    def whole(self, value: Any, path: str) -> Node:
        """Write `value` as one object, however large."""
        packed = self._codec.pack(value, path)
        return Node(self._leaf(packed, -1, path), bytes((WHOLE,)), len(packed))  # the list around is not the caller's

    def value(self, value: Any, path: str, whole_max: int = ENTRY_MAX, depth: int = 0) -> Node:
        """Write `value`, split where it is larger than `whole_max`."""
        packed = self._codec.pack(value, path)
        size = len(packed)
        if size <= whole_max or (size <= _TEXT_MAX and type(value) in (str, bytes)):
            return self._atom(packed, depth, path)
        if depth >= codec.DEPTH_MAX:
            raise UnstorableValue(path, f"a {type(value).__name__}", f"it nests deeper than {codec.DEPTH_MAX} levels")
        return self.placed(self._split(value, packed, path, depth))

    def list_node(self, items: Iterable[Any], path: str, depth: int = 0) -> Node:
        """Write a list as a list node, whatever its size."""
        return self.extended(EMPTY_LIST, items, path, depth)

    def extended(self, node: Node, items: Iterable[Any], path: str, depth: int = 0) -> Node:
        """Return the list node `node` with `items` added at its end."""
        count, size, tails, cuts = _read_list(node)
        list_ = Levels(self, tails, cuts, GROUP)
        size -= len(codec.array_header(count))
        for item in items:
            try:
                part = self.value(item, "", ITEM_MAX, depth + 1)
            except UnstorableValue as exc:  # paths cost time and are rarely needed: put together on the way up
                raise exc.under(f"{path}[{count}]") from exc
            list_.add(part, part.children[0] if part.body is REF_BODY else _cut(part))
            size += part.size
            count += 1
        return list_.list_node(count, size + len(codec.array_header(count)))

    def items_of(self, node: Node, items: Iterable[Any], path: str) -> list[Node]:
        """Write items to be added to the list node `node`, or to another: see `extended_by`."""
        parts: list[Node] = []
        for item in items:
            try:
                parts.append(self.value(item, "", ITEM_MAX, 1))
            except UnstorableValue as exc:
                raise exc.under(f"{path}[{_read_list(node)[0] + len(parts)}]") from exc
        return parts

    def extended_by(self, node: Node, parts: Iterable[Node]) -> Node:
        """Return the list node `node` with items added at its end that are written already."""
        count, size, tails, cuts = _read_list(node)
        list_ = Levels(self, tails, cuts, GROUP)
        size -= len(codec.array_header(count))
        for part in parts:
            list_.add_part(part)
            size += part.size
            count += 1
        return list_.list_node(count, size + len(codec.array_header(count)))

    def extended_packed(self, node: Node, items: Iterable[bytes], path: str, depth: int = 0) -> Node:
        """Return the list node `node` with items added at its end that are packed already."""
        count, size, tails, cuts = _read_list(node)
        list_ = Levels(self, tails, cuts, GROUP)
        size -= len(codec.array_header(count))
        for item in items:
            list_.add_part(self.packed(item, path, ITEM_MAX, depth + 1))
            size += len(item)
            count += 1
        return list_.list_node(count, size + len(codec.array_header(count)))

    def packed(self, packed: bytes, path: str, whole_max: int = ENTRY_MAX, depth: int = 0) -> Node:
        """Write a value that is packed already: the node that `value` makes of it, without building the value."""
        size = len(packed)
        if size <= whole_max or (size <= _TEXT_MAX and (codec.is_text(packed) or codec.is_bytes(packed))):
            return self._atom(packed, depth, path)
        if depth >= codec.DEPTH_MAX:
            raise UnstorableValue(path, "a value", f"it nests deeper than {codec.DEPTH_MAX} levels")
        return self.placed(self._split_packed(packed, path, depth))

    def packed_list(self, packed: bytes, path: str, depth: int = 0) -> Node:
        """Write a list that is packed already as a list node, whatever its size."""
        return self.extended_packed(EMPTY_LIST, codec.items(packed), path, depth)

    def list_of(self, parts: Iterable[Node], count: int, size: int) -> Node:
        """Write a list whose items are written already, as items; `size` is that of the list, packed."""
        list_ = Levels(self, [[]], [[]], GROUP)
        for part in parts:
            list_.add_part(part)
        return self.placed(list_.list_node(count, size))

    def map_of(
        self, entries: Iterable[tuple[bytes, Node]], count: int, size: int, *, inline_max: int = _INLINE_MAX
    ) -> Node:
        """Write a mapping of packed text keys whose values are written already, as entries of a mapping."""
        return self.placed(self._map_of(entries, count, size), inline_max)

    def leave_out(self, known: Collection[bytes]) -> None:
        """Forget the objects that turn out to be known."""
        self._known = known
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

    def _leaf(self, packed: bytes, depth: int, path: str) -> bytes:
        key = _sha256(_LEAF_SEED + packed).digest()[:HASH_BYTES]  # address(b"", REST + packed), with one copy less
        if key not in self._known and key not in self.objects:
            codec.check_depth(packed, depth, path)
            self.objects[key] = b"", _REST_BODY + packed
            self.added_bytes += len(packed) + 1
        return key

    def _atom(self, packed: bytes, depth: int, path: str) -> Node:
        size = len(packed)
        if size > _INLINE_MAX:
            return Node(self._leaf(packed, depth, path), REF_BODY, size)
        codec.check_depth(packed, depth, path)
        return Node(b"", b"%c%c%b" % (PACKED, size, packed), size)

    def inline(self, packed: bytes) -> Node:
        """Write a packed value where it stands, whatever its size."""
        return inline(packed)

    def placed(self, node: Node, inline_max: int = _INLINE_MAX) -> Node:
        """Return `node` itself if it is small, else a reference to it as an object."""
        if len(node.children) + len(node.body) <= inline_max:
            return node
        return Node(self.store(node.children, node.body), REF_BODY, node.size)

    def _split(self, value: Any, packed: bytes, path: str, depth: int) -> Node:
        kind = type(value)
        if kind is list:
            return self.list_node(value, path, depth)
        if kind is dict and codec.has_text_keys(value):
            return self._map_node(value, path, depth)
        if kind is str and packed[0] in b"\xda\xdb":
            return self._cut_node(TEXT, value.encode(), len(packed))
        if kind is bytes:
            return self._cut_node(BYTES, value, len(packed))
        if kind is bytearray:
            return _tagged(codec.BYTEARRAY, self._cut_node(RAW, bytes(value), len(value)))
        if kind in codec.UNSPLIT:
            return Node(self._leaf(packed, depth, path), REF_BODY, len(packed))
        tag, items = self._codec.opened(value, path)
        return _tagged(tag, self.list_node(items, path, depth))

    def _split_packed(self, packed: bytes, path: str, depth: int) -> Node:
        """Do what `_split` does, from the bytes alone."""
        if codec.is_list(packed):
            return self.packed_list(packed, path, depth)
        if codec.is_mapping(packed):
            flat = codec.items(packed)
            nodes = [self.packed(item, path, ENTRY_MAX, depth + 1) for item in flat[1::2]]
            return self._map_of(zip(flat[::2], nodes, strict=True), len(nodes), len(packed))
        if codec.is_text(packed) or codec.is_bytes(packed):
            return self._cut_node(TEXT if codec.is_text(packed) else BYTES, codec.payload(packed), len(packed))
        tag, content = codec.untagged(packed) or (0, b"")
        if tag == codec.BYTEARRAY:
            return _tagged(tag, self._cut_node(RAW, content, len(content)))
        if tag in codec.TREE_TAGS:
            return _tagged(tag, self.packed_list(content, path, depth))
        return Node(self._leaf(packed, depth, path), REF_BODY, len(packed))

    def _map_node(self, mapping: dict[str, Any], path: str, depth: int) -> Node:
        pairs = list(mapping.items())  # whoever changes the mapping meanwhile changes it for the next snapshot
        size = len(codec.map_header(len(pairs)))
        entries: list[tuple[bytes, Node]] = []
        for key, item in pairs:
            packed_key = codec.pack(key, path)
            try:
                part = self.value(item, "", ENTRY_MAX, depth + 1)
            except UnstorableValue as exc:
                raise exc.under(codec.join_path(path, key)) from exc
            entries.append((packed_key, part))
            size += len(packed_key) + part.size
        return self._map_of(entries, len(entries), size)

    def _map_of(self, entries: Iterable[tuple[bytes, Node]], count: int, size: int) -> Node:
        pairs = Levels(self, [[]], [[]], PAIRS)
        for key, part in entries:
            entry = Node(part.children, _number(len(key)) + key + part.body, 0)
            # The key alone decides where a group ends: a changed value moves no boundary.
            pairs.add(entry, zlib.crc32(key) & 0xFF)
        children, body = pairs.written()
        return Node(children, bytes((MAP,)) + _number(count) + _number(size) + body, size)

    def _cut_node(self, op: int, data: bytes, size: int) -> Node:
        pieces = Levels(self, [[]], [[]], NODES)
        for piece in _pieces(data):
            key = self.store(b"", _REST_BODY + piece)
            pieces.add(Node(key, REF_BODY, len(piece)), key[0])
        children, body = pieces.written()
        return Node(children, bytes((op,)) + _number(size) + body, size)


def _tagged(tag: int, inner: Node) -> Node:
    size = len(codec.tag_header(tag, inner.size)) + inner.size
    return Node(inner.children, bytes((TAG, tag)) + inner.body, size)


class Levels:
    """The open ends of a list, one per level; level 0 holds parts, the others references to finished groups.

    Each part has a byte that its content decides; the bytes of the last four parts decide whether a group ends, so
    that even a list of booleans has places to end at.
    """

    def __init__(self, writer: Writer, tails: list[list[Node]], cuts: list[list[int]], kind: int) -> None:
        self._writer, self.tails, self.cuts, self._kind = writer, tails, cuts, kind
        self._odds = _PAIRS_ODDS if kind == PAIRS else _GROUP_ODDS

    def takes(self, level: int) -> bool:
        """Whether a finished group of this level can be added as it is: nothing below it is open."""
        return level == 0 or not any(self.tails[:level])

    def add_part(self, part: Node, level: int = 0) -> None:
        """Add an item of a list, or a finished group that `takes` accepts."""
        while len(self.tails) <= level:
            self.tails.append([])
            self.cuts.append([])
        self.add(part, _cut(part, level), level)

    def list_node(self, count: int, size: int) -> Node:
        """Return the list node that is written so far, of `count` items and this packed size."""
        children, body = self.written()
        body = bytes((LIST,)) + _number(count) + _number(size) + body
        return Node(children, body, size, tuple(zip(self.tails, self.cuts, strict=True)))

    def add(self, part: Node, cut: int, level: int = 0) -> None:
        tail, cuts = self.tails[level], self.cuts[level]
        tail.append(part)
        cuts.append(cut)
        count = len(tail)
        if count < _GROUP_MIN:
            return
        mixed = cuts[-1] * 0x9E3B + cuts[-2] * 0x79B1 + cuts[-3] * 0x85EB + cuts[-4] * 0xC2B3
        if (mixed >> 8) & 0xFF >= self._odds and count < _GROUP_MAX:
            return
        children, body = self._written(level)
        key = self._writer.store(children, bytes((self._kind if level == 0 else NODES,)) + body)
        self.tails[level], self.cuts[level] = [], []
        if level + 1 == len(self.tails):
            self.tails.append([])
            self.cuts.append([])
        # Each level looks at another byte of the hash, so that one unlucky hash does not end every level at once.
        self.add(Node(key, REF_BODY, 0), key[(level + 1) % HASH_BYTES], level + 1)

    def written(self) -> Content:
        """Return the children and bytes of all open ends, the highest level first."""
        children, body = self._written(0)
        all_children, numbers = [children], [_number(len(self.tails))]
        for tail in self.tails[:0:-1]:
            numbers.append(_number(len(tail)))
            all_children.insert(-1, b"".join([part.children for part in tail]))
        return b"".join(all_children), b"".join(numbers) + body

    def _written(self, level: int) -> Content:
        tail = self.tails[level]
        children = b"".join([part.children for part in tail])
        if level > 0:
            return children, b""
        if self._kind == GROUP:
            return children, _runs(tail)
        body = _number(len(tail))
        return children, body if self._kind == NODES else body + b"".join([part.body for part in tail])


def _runs(parts: Sequence[Node]) -> bytes:
    """Write parts as runs: 2n for n references, 2n+1 for n nodes that follow. Ends with a 0."""
    out: list[bytes] = []
    at, end = 0, len(parts)
    while at < end:
        start, plain = at, parts[at].body == REF_BODY
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


def _number(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_PIECE_MIN, _PIECE_MAX, _PIECE_MASK = 2048, 32768, 0x7F
# A piece may end after some of these: found fast, and not too common in prose, numbers, base64, other scripts' UTF-8
# and binary data alike.
_PIECE_ENDS = re.compile(rb"[c3S\x03\x8b\xab\xe3\xf3]")


def _pieces(data: bytes) -> Iterable[bytes]:
    """Cut long data where its content says so: the same stretch of bytes is cut the same wherever it stands."""
    start, end = 0, len(data)
    while start < end:
        cut = min(start + _PIECE_MAX, end)
        for found in _PIECE_ENDS.finditer(data, start + _PIECE_MIN, cut):
            at = found.end()
            if zlib.crc32(data[at - 32 : at]) & _PIECE_MASK == 0:
                cut = at
                break
        yield data[start:cut]
        start = cut


# -- reading -----------------------------------------------------------------------------------------------------------


class MissingObject(CheckpointCorrupted):
    """An object that a node refers to is not at hand."""

    def __init__(self, key: bytes) -> None:
        super().__init__(f"the object {key.hex()} is missing")


class _Cursor:
    """A place in a body and in its children."""

    __slots__ = ("at", "body", "child", "children")

    def __init__(self, children: bytes, body: bytes) -> None:
        self.children, self.body, self.at, self.child = children, body, 0, 0

    def byte(self) -> int:
        value = self.body[self.at]
        self.at += 1
        return value

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
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
            cost = repeats(*root, self._objects.get)
            refuse_repeats(cost, self._repeats_max)

    def _node(self, cursor: _Cursor, out: list[bytes]) -> None:
        op = cursor.byte()
        if op == PACKED:
            self._emit(out, cursor.take(cursor.number()))
        elif op == REST:
            self._emit(out, cursor.take(len(cursor.body) - cursor.at))
        elif op in (REF, WHOLE):
            self._reference(cursor.refs(1)[0], out)
        elif op == TAG:
            tag, left, content = cursor.byte(), self._left, list[bytes]()
            self._node(cursor, content)
            self._emit(out, codec.tag_header(tag, left - self._left))
            out.extend(content)
        elif op in (LIST, MAP, TEXT, BYTES, RAW):
            self._split(op, cursor, out)
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

    def _split(self, op: int, cursor: _Cursor, out: list[bytes]) -> None:
        """Join the parts of a split node, which says how large they are together."""
        count = cursor.number() if op in (LIST, MAP) else 0
        size, left = cursor.number(), self._left
        if size > left:
            raise CheckpointCorrupted("a stored value is larger than its record says")
        self._left = size  # not one byte more than it says
        if op == LIST:
            self._emit(out, codec.array_header(count))
            self._levels(cursor, out, self._group)
        elif op == MAP:
            self._emit(out, codec.map_header(count))
            self._levels(cursor, out, self._pairs)
        else:
            inner: list[bytes] = []
            self._levels(cursor, inner, self._refs)
            header = {TEXT: codec.text_header, BYTES: codec.bytes_header}.get(op)
            self._emit(out, header(size - self._left) if header else b"")
            out.extend(inner)
        if self._left:
            raise CheckpointCorrupted("a stored value is not of the size its node says")
        self._left = left - size

    def _levels(self, cursor: _Cursor, out: list[bytes], parts: Callable[[_Cursor, list[bytes]], None]) -> None:
        top = cursor.number() - 1
        if not 0 <= top < _LEVELS_MAX:
            raise CheckpointCorrupted("a stored list has an impossible height")
        for level in range(top, 0, -1):
            for key in cursor.refs(cursor.number()):
                self._finished(key, level, out, parts)
        parts(cursor, out)

    def _finished(
        self, key: bytes, level: int, out: list[bytes], parts: Callable[[_Cursor, list[bytes]], None]
    ) -> None:
        if key in self._seen:
            self._again(key, (level, parts), out, lambda joined: self._join_group(key, level, joined, parts))
            return
        self._seen.add(key)
        self._join_group(key, level, out, parts)

    def _join_group(
        self, key: bytes, level: int, out: list[bytes], parts: Callable[[_Cursor, list[bytes]], None]
    ) -> None:
        left = self._left
        group = self._object(key)
        kind = group.byte()
        if level == 1 and kind in (GROUP, PAIRS, NODES):
            parts(group, out)
        elif kind == NODES:
            for child in group.refs(len(group.children) // HASH_BYTES):
                self._finished(child, level - 1, out, parts)
        else:
            raise CheckpointCorrupted("a stored list is out of shape")
        group.finish()
        if self._left == left:  # no writer makes a group of nothing
            raise CheckpointCorrupted("a stored list has an empty group")

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

    def _pairs(self, cursor: _Cursor, out: list[bytes]) -> None:
        for _ in range(cursor.number()):
            self._emit(out, cursor.take(cursor.number()))
            self._node(cursor, out)

    def _refs(self, cursor: _Cursor, out: list[bytes]) -> None:
        for key in cursor.refs(cursor.number()):
            self._piece(key, out)

    def _piece(self, key: bytes, out: list[bytes]) -> None:
        if key in self._seen:
            self._again(key, RAW, out, lambda parts: self._node(self._object(key), parts))
            return
        self._seen.add(key)
        self._node(self._object(key), out)


# -- what repetition costs ---------------------------------------------------------------------------------------------


def repeats(children: bytes, body: bytes, content: Callable[[bytes], Content | None]) -> int:
    """Return what it costs to build the values of these nodes beyond building each object below them once.

    That is 0 for a value no part of which occurs twice, however large it is. Of an object that occurs n times, n - 1
    count, weighed by what it is made of (see `costs`). Objects that are not at hand count nothing. Takes time by the
    number of objects, not by how often they occur.
    """
    roots = hashes(children)
    below = _opened_all(roots, content)
    if len(roots) + sum([len(keys) for keys in below.values()]) == len(below):
        return 0  # each is referred to once
    times = dict.fromkeys(below, 0)
    for key in roots:
        times[key] += 1
    cost = 0
    pieces: set[bytes] = set()
    values: set[bytes] = set()
    for key, is_piece in zip(roots, _pieces_among(children, body), strict=True):
        (pieces if is_piece else values).add(key)
    for key in reversed(below):  # whoever refers to it comes first
        found = content(key)
        if found is None:
            continue
        is_piece = key in pieces and key not in values
        inside = below[key]
        weight, raw = _weighed(found, is_piece) if inside or times[key] > 1 else (0, ())
        cost += (times[key] - 1) * weight
        for place, child in enumerate(inside):
            times[child] += times[key]
            (pieces if is_piece or any(place in run for run in raw) else values).add(child)
    return cost


def _pieces_among(children: bytes, body: bytes) -> list[bool]:
    """Return of each child of these nodes whether it is a piece of a text."""
    cursor, notes = _Cursor(children, body), _Notes()
    try:
        while cursor.at < len(body):
            _skip(cursor, notes)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    return [any(place in run for run in notes.raw) for place in range(len(children) // HASH_BYTES)]


def _opened_all(roots: Sequence[bytes], content: Callable[[bytes], Content | None]) -> dict[bytes, list[bytes]]:
    """Return every object at or below these with those it refers to; these come before it."""
    done: dict[bytes, list[bytes]] = {}
    opened: dict[bytes, list[bytes]] = {}
    nothing: list[bytes] = []
    pending = list(roots)
    while pending:
        key = pending[-1]
        if key in done:
            pending.pop()
            continue
        if key not in opened:
            found = content(key)
            keys = hashes(found[0]) if found is not None else nothing
            opened[key] = keys
            above = []
            for child in keys:
                if child in done:
                    continue
                inner = content(child)
                if inner is None or not inner[0]:  # most are: they need no turn of their own
                    done[child] = nothing
                else:
                    above.append(child)
            if above:
                if not opened.keys().isdisjoint(above):
                    raise CheckpointCorrupted("a stored object holds itself")
                pending.extend(above)
                continue
        pending.pop()
        done[key] = opened.pop(key)
    return done


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


class _Notes:
    """What is met when a node is stepped over."""

    __slots__ = ("raw", "weight")

    def __init__(self) -> None:
        self.raw: list[range] = []
        """Which children are pieces of texts."""
        self.weight = 0


class _Weigher(_Cursor):
    """A place in a body; what is taken from it is weighed."""

    __slots__ = ("notes",)

    def __init__(self, children: bytes, body: bytes) -> None:
        super().__init__(children, body)
        self.notes = _Notes()

    def take(self, size: int) -> bytes:
        data = super().take(size)
        self.notes.weight += costs.weight(data)
        return data


def _weighed(content: Content, is_piece: bool) -> tuple[int, Sequence[range]]:
    """Return what an object costs by itself, and which of its children are pieces of texts."""
    children, body = content
    if is_piece:
        return 2 * len(body), ()
    if body[:1] == _REST_BODY:
        return costs.weight(body[1:]), ()
    cursor = _Weigher(children, body)
    try:
        _skip_object(cursor, cursor.notes)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    return cursor.notes.weight, cursor.notes.raw


def _skip_object(cursor: _Cursor, notes: _Notes) -> None:
    """Step over an object."""
    kind = cursor.body[0]
    if kind in (GROUP, PAIRS):
        cursor.byte()
        _skip_parts(cursor, LIST if kind == GROUP else MAP, notes)
    elif kind != NODES:
        _skip(cursor, notes)


def nodes(children: bytes, body: bytes, sizes: Sequence[int]) -> list[Node]:
    """Return the nodes of these sizes that stand one after the other, without opening what they refer to."""
    cursor, found = _Cursor(children, body), []
    try:
        for size in sizes:
            at, child = cursor.at, cursor.child
            _skip(cursor)
            found.append(Node(children[child : cursor.child], body[at : cursor.at], size))
        cursor.finish()
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    return found


def is_list(node: Node) -> bool:
    """Whether `extended` can add to this node."""
    return node.body[0] == LIST


def inline(packed: bytes) -> Node:
    """Return the node of a packed value that stands where it is, whatever its size."""
    return Node(b"", bytes((PACKED,)) + _number(len(packed)) + packed, len(packed))


def entries(node: Node, objects: Mapping[bytes, Content]) -> dict[bytes, Node] | None:
    """Return the values of a mapping node by packed key, without opening them; None if it is kept whole."""
    children, body = node.children, node.body
    if body == REF_BODY:
        children, body = content_of(children, objects)
    if body[:1] != bytes((MAP,)):
        return None
    pending, found = opened(children, body).parts[::-1], dict[bytes, Node]()
    groups = set[bytes]()
    while pending:
        level, part = pending.pop()
        if level == 0:
            key, value = pair(part)
            found[key] = value
        else:
            if part.children in groups:  # no key of a mapping occurs twice, so no group does
                raise CheckpointCorrupted("a stored mapping has the same keys twice")
            groups.add(part.children)
            pending.extend(opened_group(level, *content_of(part.children, objects))[::-1])
    return found


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
    elif op in (LIST, MAP):
        cursor.number()
        cursor.number()
        if notes is not None:
            notes.weight += costs.LIST if op == LIST else costs.MAPPING
        _skip_levels(cursor, op, notes)
    elif op in (TEXT, BYTES, RAW):
        start = cursor.child
        cursor.number()
        _skip_levels(cursor, op, notes)
        if notes is not None:
            notes.weight += costs.TEXT
            notes.raw.append(range(start // HASH_BYTES, cursor.child // HASH_BYTES))
    elif op == TAG:
        cursor.byte()
        if notes is not None:
            notes.weight += costs.TAGGED
        _skip(cursor, notes)
    else:
        raise CheckpointCorrupted(f"a stored node is of the unknown kind {op}")


def _skip_levels(cursor: _Cursor, op: int, notes: _Notes | None) -> None:
    height = cursor.number()
    if height > _LEVELS_MAX:
        raise CheckpointCorrupted("a stored list has an impossible height")
    for _ in range(height - 1):
        cursor.refs(cursor.number())
    _skip_parts(cursor, op, notes)


def _skip_parts(cursor: _Cursor, op: int, notes: _Notes | None) -> None:
    if op == LIST:
        while run := cursor.number():
            if run & 1:
                for _ in range(run >> 1):
                    _skip(cursor, notes)
            else:
                cursor.refs(run >> 1)
    elif op == MAP:
        pairs = cursor.number()
        if notes is not None:
            notes.weight += costs.PAIR * min(pairs, len(cursor.body))
        for _ in range(pairs):
            cursor.take(cursor.number())
            _skip(cursor, notes)
    else:
        cursor.refs(cursor.number())


def packed_size(children: bytes, body: bytes) -> int:
    """Return the size of a node's or an object's value when packed. A reference has none: look at its object."""
    cursor = _Cursor(children, body)
    try:
        op = cursor.byte()
        if op == REST:
            return len(body) - 1
        tag = cursor.byte() if op == TAG else None
        inner = cursor.byte() if op == TAG else op
        if inner not in (PACKED, LIST, MAP, TEXT, BYTES, RAW):
            raise CheckpointCorrupted(f"a stored node of the kind {inner} has no size")
        if inner in (LIST, MAP):
            cursor.number()
        size = cursor.number()
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    return size if tag is None else len(codec.tag_header(tag, size)) + size


class Part(NamedTuple):
    """A part of a list or mapping: an item or pair (level 0), or a finished group of parts of the level below."""

    level: int
    node: Node


class Parts(NamedTuple):
    """A list or mapping, opened one step."""

    length: int
    """How many items or pairs it has."""
    size: int
    """Of the whole, packed."""
    parts: list[Part]


def opened(children: bytes, body: bytes) -> Parts:
    """Return the parts of a list or mapping node, in order; the groups among them stay closed."""
    cursor = _Cursor(children, body)
    try:
        op = cursor.byte()
        if op not in (LIST, MAP):
            raise CheckpointCorrupted("a stored list is out of shape")
        length, size = cursor.number(), cursor.number()
        tails = _read_tails(cursor, GROUP if op == LIST else PAIRS)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored list cannot be read") from exc
    levels = range(len(tails) - 1, -1, -1)
    return Parts(length, size, [Part(level, node) for level in levels for node in tails[level]])


def opened_group(level: int, children: bytes, body: bytes) -> list[Part]:
    """Return the parts of a finished group: of a list, or the pairs of a mapping."""
    cursor = _Cursor(children, body)
    try:
        kind = cursor.byte()
        if level == 1 and kind in (GROUP, PAIRS):
            parts = [Part(0, node) for node in _lowest(cursor, kind)]
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


def pair(entry: Node) -> tuple[bytes, Node]:
    """Return the packed key and the value of a mapping's part at level 0."""
    cursor = _Cursor(entry.children, entry.body)
    key = cursor.take(cursor.number())
    return key, Node(entry.children, entry.body[cursor.at :], 0)


def _lowest(cursor: _Cursor, kind: int) -> list[Node]:
    """Read the items of a list or the pairs of a mapping that stand here."""
    found: list[Node] = []
    if kind == PAIRS:
        for _ in range(cursor.number()):
            at, child = cursor.at, cursor.child
            cursor.take(cursor.number())
            _skip(cursor)
            found.append(Node(cursor.children[child : cursor.child], cursor.body[at : cursor.at], 0))
        return found
    while run := cursor.number():
        if run & 1:
            for _ in range(run >> 1):
                at, child = cursor.at, cursor.child
                _skip(cursor)
                found.append(Node(cursor.children[child : cursor.child], cursor.body[at : cursor.at], 0))
        else:
            found.extend([Node(key, REF_BODY, 0) for key in cursor.refs(run >> 1)])
    return found


def _read_tails(cursor: _Cursor, kind: int) -> list[list[Node]]:
    """Read the open ends that stand here, and return them with the lowest level first."""
    height = cursor.number()
    if not 0 < height <= _LEVELS_MAX:
        raise CheckpointCorrupted("a stored list has an impossible height")
    tails = [[Node(key, REF_BODY, 0) for key in cursor.refs(cursor.number())] for _ in range(height - 1)]
    tails.append(_lowest(cursor, kind))
    cursor.finish()
    return tails[::-1]


def _read_list(node: Node) -> tuple[int, int, list[list[Node]], list[list[int]]]:
    """Return how many items a list node has, its size, and its open ends, lowest level first, with each part's byte."""
    cursor = _Cursor(node.children, node.body)
    try:
        if cursor.byte() != LIST:
            raise CheckpointCorrupted("a stored list is out of shape")
        count = cursor.number()
        if node.tails:
            return count, node.size, [tail.copy() for tail, _ in node.tails], [cuts.copy() for _, cuts in node.tails]
        size, tails = cursor.number(), _read_tails(cursor, GROUP)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored list cannot be read") from exc
    return count, size, tails, [[_cut(part, level) for part in tail] for level, tail in enumerate(tails)]


EMPTY_LIST = Node(b"", bytes((LIST, 0, 1, 1, 0)), 1)
EMPTY_MAP = Node(b"", bytes((PACKED, 1)) + codec.map_header(0), 1)
