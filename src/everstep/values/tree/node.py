"""Nodes and objects: what a value is written as, and how an object is addressed. Pure."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.values.codec.tokens import map_header
from everstep.values.long_values import Stretches
from everstep.values.stretches import Version

FORMAT = 1
"""The address function: the first 16 bytes of SHA-256 over format, children and body. Belongs to a family."""

HASH_BYTES = 16
VALUE_BYTES_MAX = 1 << 30
"""The largest value that is saved, packed: what cannot be read back in one piece is not accepted."""
PIECES_MAX = 48
"""So many pieces are listed in the node of a value itself."""
LEVELS_MAX = 32
"""How many levels of groups a list, or a value in pieces, may have."""

PACKED, REF, LIST, MAP, PIECES, REST, GROUP, NODES, WHOLE = range(9)

REF_BODY = bytes((REF,))
REST_BODY = bytes((REST,))
PACKED_BODY = bytes((PACKED,))
NODES_BODY = bytes((NODES,))

sha256 = hashlib.sha256
_OBJECT_SEED = hashlib.sha256(b"\x010:")  # of an object that refers to nothing
_COPIED_MAX = 4096  # a body up to this size is copied before it is hashed: that is one call less


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
        if len(body) < _COPIED_MAX:
            return sha256(b"\x010:" + body).digest()[:HASH_BYTES]
        hashing = _OBJECT_SEED.copy()
        hashing.update(body)
        return hashing.digest()[:HASH_BYTES]
    return sha256(b"\x01%d:%b%b" % (len(children), children, body)).digest()[:HASH_BYTES]


def mismatched(objects: Mapping[bytes, Content]) -> list[bytes]:
    """Return the hashes that are not the address of their content."""
    size = HASH_BYTES
    found: list[bytes] = []
    for key, (children, body) in objects.items():
        is_short = not children and len(body) < _COPIED_MAX  # as most are, so it is done in place
        if key != (sha256(b"\x010:" + body).digest()[:size] if is_short else address(children, body)):
            found.append(key)
    return found


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


_TINY_NUMBERS = [bytes((value,)) for value in range(0x80)]


def number_bytes(value: int) -> bytes:
    """Return a number as nodes write it: seven bits in each byte, the lowest first."""
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


class MissingObject(CheckpointCorrupted):
    """An object that a node refers to is not at hand."""

    def __init__(self, key: bytes) -> None:
        super().__init__(f"the object {key.hex()} is missing")


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


EMPTY_LIST = Node(b"", bytes((LIST, 0, 1, 1, 0)), 1, (([], []),))
EMPTY_MAP = Node(b"", bytes((PACKED, 1)) + map_header(0), 1)
