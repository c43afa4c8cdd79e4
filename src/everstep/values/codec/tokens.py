"""Looks into packed bytes, and puts them together, without building values. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import ormsgpack

from everstep.errors import CheckpointCorrupted
from everstep.values.codec.tags import MAP, ROWS, TREE_TAGS, TUPLE
from everstep.values.part_types import CONTAINERS, PACKED

ENDED = b"\xe5everstep.end"
END = ormsgpack.packb(ENDED)
"""Follows a value when it is unpacked, so that rubbish behind it shows."""

_ROW_PARTS = PACKED - CONTAINERS
_TINY_LISTS = [bytes((0x90 | count,)) for count in range(16)]
_TINY_MAPS = [bytes((0x80 | count,)) for count in range(16)]
_CONTAINER_BYTES = bytes((*range(0x80, 0xA0), 0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9), 0xDC, 0xDD, 0xDE, 0xDF))
_EXT_FIRST = frozenset(b"\xc7\xc8\xc9\xd4\xd5\xd6\xd7\xd8")
_FIXED_SIZES = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
LENGTHS = {
    0xC4: (1, 0, False), 0xC5: (2, 0, False), 0xC6: (4, 0, False),
    0xC7: (1, 0, True), 0xC8: (2, 0, True), 0xC9: (4, 0, True),
    0xD9: (1, 0, False), 0xDA: (2, 0, False), 0xDB: (4, 0, False),
    0xDC: (2, 1, False), 0xDD: (4, 1, False), 0xDE: (2, 2, False), 0xDF: (4, 2, False),
}  # fmt: skip


def array_header(count: int) -> bytes:
    """Return what stands before the items of a list."""
    return _TINY_LISTS[count] if count < 16 else _header(count, 0x90, None, b"\xdc", b"\xdd")


def map_header(count: int) -> bytes:
    """Return what stands before the pairs of a mapping."""
    return _TINY_MAPS[count] if count < 16 else _header(count, 0x80, None, b"\xde", b"\xdf")


def text_header(size_bytes: int) -> bytes:
    """Return what stands before the UTF-8 bytes of a long string."""
    return _header(size_bytes, None, b"\xd9", b"\xda", b"\xdb")


def bytes_header(size_bytes: int) -> bytes:
    """Return what stands before long bytes."""
    if size_bytes < 0x100:
        return b"\xc4%c" % size_bytes
    return _header(size_bytes, None, b"\xc4", b"\xc5", b"\xc6")


def tag_header(tag: int, size_bytes: int) -> bytes:
    """Return what stands before the content of an extension value."""
    fixed = {1: b"\xd4", 2: b"\xd5", 4: b"\xd6", 8: b"\xd7", 16: b"\xd8"}.get(size_bytes)
    return (fixed or _header(size_bytes, None, b"\xc7", b"\xc8", b"\xc9")) + bytes((tag,))


def _header(size: int, tiny: int | None, byte: bytes | None, short: bytes, word: bytes) -> bytes:
    if tiny is not None and size < 16:
        return bytes((tiny | size,))
    if byte is not None and size < 0x100:
        return byte + bytes((size,))
    if size > 0xFFFFFFFF:
        raise CheckpointCorrupted("a stored value has an impossible size")
    return short + struct.pack(">H", size) if size < 0x10000 else word + struct.pack(">I", size)


# -- looking into packed bytes -----------------------------------------------------------------------------------------


def is_text(packed: bytes) -> bool:
    """Whether these are the bytes of a string of valid Unicode."""
    return 0xA0 <= packed[0] < 0xC0 or packed[0] in b"\xd9\xda\xdb"


def is_list(packed: bytes) -> bool:
    """Whether these are the bytes of a list."""
    return 0x90 <= packed[0] < 0xA0 or packed[0] in b"\xdc\xdd"


def is_mapping(packed: bytes) -> bool:
    """Whether these are the bytes of a mapping whose keys are all text; others have the tag MAP."""
    return 0x80 <= packed[0] < 0x90 or packed[0] in b"\xde\xdf"


def untagged(packed: bytes) -> tuple[int, bytes] | None:
    """Return the tag and the content of a tagged value, None for any other."""
    if packed[0] not in _EXT_FIRST:
        return None
    header, size = _ext_span(packed, 0)
    if header + size != len(packed):
        raise CheckpointCorrupted("a stored value has a wrong size")
    return packed[header - 1], packed[header:]


def items(packed: bytes) -> list[bytes]:
    """Return the packed items of a list, or the keys and values of a mapping in turn, each exactly as written."""
    opened = _opened_one_level(packed)
    if type(opened) is dict:
        flat = [part for pair in opened.items() for part in pair]
        if len(flat) != _token(packed, 0)[1]:
            raise CheckpointCorrupted("a stored mapping has the same keys twice")
        opened = flat
    if type(opened) is not list:
        raise CheckpointCorrupted("a stored list is out of shape")
    pack_one = ormsgpack.packb
    return [pack_one(item) for item in opened]


def part_count(packed: bytes) -> int:
    """Return how many items `listed` would return, or keys and values `pairs`, by what the bytes say; 0 for others."""
    tag, content = untagged(packed) or (0, b"")
    if tag in (MAP, ROWS) and content:
        packed = content
    if not is_list(packed) and not is_mapping(packed):
        return 0
    return _token(packed, 0)[1]


def listed(packed: bytes) -> list[bytes] | None:
    """Return the packed items of a list; None if the value is something else."""
    if is_list(packed):
        return items(packed)
    tag, content = untagged(packed) or (0, b"")
    if tag != ROWS:
        return None
    found = []
    for row in items(content):
        if not is_list(row):
            raise CheckpointCorrupted("a stored list is out of shape")
        found.append(tag_header(TUPLE, len(row)) + row)
    return found


def pairs(packed: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the packed keys and values of a mapping; None if the value is something else."""
    if is_mapping(packed):
        flat = items(packed)
        return list(zip(flat[::2], flat[1::2], strict=True))
    tag, content = untagged(packed) or (0, b"")
    if tag != MAP:
        return None
    parts = items(content)
    count = len(parts) // 2
    if len(parts) % 2 or not is_list(content):
        raise CheckpointCorrupted("a stored mapping is out of shape")
    return list(zip(parts[:count], parts[count:], strict=True))


def mapping_of(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the packed mapping of these packed keys and values."""
    if all(is_text(key) for key, _ in entries):
        return b"".join([map_header(len(entries)), *[part for pair in entries for part in pair]])
    parts = [array_header(2 * len(entries)), *[key for key, _ in entries], *[value for _, value in entries]]
    content = b"".join(parts)
    return tag_header(MAP, len(content)) + content


def list_of(items: Sequence[bytes]) -> bytes:
    """Return the packed list of these packed items."""
    rows = _packed_rows(items)
    if rows is not None:
        return rows
    return b"".join([array_header(len(items)), *items])


def _packed_rows(items: Sequence[bytes]) -> bytes | None:
    """Return a list of tuples of plain values as it is packed; None if it is something else."""
    rows: list[bytes] = []
    for item in items:
        tag, row = untagged(item) or (0, b"")
        if tag != TUPLE or not all(type(part) in _ROW_PARTS for part in _opened_one_level(row)):
            return None
        rows.append(row)
    if not rows:
        return None
    content = b"".join([array_header(len(rows)), *rows])
    return tag_header(ROWS, len(content)) + content


def _opened_one_level(packed: bytes) -> Any:
    """Return the value of these bytes with what is tagged left as it is: packed again, it gives the same bytes."""
    try:
        value, end = ormsgpack.unpackb(b"".join([b"\x92", packed, END]), ext_hook=ormsgpack.Ext)
    except Exception as exc:
        raise CheckpointCorrupted(f"a stored value cannot be decoded: {exc}") from exc
    if end != ENDED:
        raise CheckpointCorrupted("a stored value has bytes behind its end")
    return value


def _ext_span(packed: bytes, at: int) -> tuple[int, int]:
    """Return the size of a tagged value's header and of its content."""
    first = packed[at]
    if first >= 0xD4:
        return 2, 1 << (first - 0xD4)
    width = LENGTHS[first][0]
    return width + 2, int.from_bytes(packed[at + 1 : at + 1 + width], "big")


def containers_at_most(packed: bytes) -> int:
    """Return a number that the nesting depth cannot exceed: how many bytes could open a container."""
    return len(packed) - len(packed.translate(None, _CONTAINER_BYTES))


def depth(packed: bytes) -> int:
    """Return how deep the containers in one packed value nest, without building it."""
    deepest = 0
    at = 0
    end = len(packed)
    open_items: list[int] = []  # values still to come, per container that is open
    while at < end:
        while open_items and open_items[-1] == 0:
            open_items.pop()
        if open_items:
            open_items[-1] -= 1
        size, items = _token(packed, at)
        at += size
        if items < 0:  # a tagged container: what it holds stands in its place
            if open_items:
                open_items[-1] += 1
        elif items:
            open_items.append(items)
            deepest = max(deepest, len(open_items))
    return deepest


def _token(packed: bytes, at: int) -> tuple[int, int]:
    """Return (bytes to step over, values that follow inside, or -1 for a tag before its content)."""
    first = packed[at]
    if first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC1, 0xC2, 0xC3):
        return 1, 0
    if first < 0x90:
        return 1, 2 * (first & 15)
    if first < 0xA0:
        return 1, first & 15
    if first < 0xC0:
        return 1 + (first & 31), 0
    fixed = _FIXED_SIZES.get(first)
    if fixed is not None:
        return fixed, 0
    if 0xD4 <= first <= 0xD8:
        return _ext(packed, at + 1, 1 << (first - 0xD4))
    width, scale, ext = LENGTHS[first]
    number = int.from_bytes(packed[at + 1 : at + 1 + width], "big")
    if ext:
        return _ext(packed, at + 1 + width, number, 1 + width)
    return (1 + width, number * scale) if scale else (1 + width + number, 0)


def _ext(packed: bytes, tag_at: int, size: int, before: int = 1) -> tuple[int, int]:
    # The content of a tagged container is one more value; other tags hold bytes or a flat list.
    tag = packed[tag_at] if tag_at < len(packed) else 0
    return (before + 1, -1) if tag in TREE_TAGS else (before + 1 + size, 0)
