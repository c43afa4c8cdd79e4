"""What the packer writes by itself, exactly: plain values, rows of tuples, and mappings with other keys."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import ormsgpack

from everstep.values import part_types
from everstep.values.codec.tags import MAP, ROWS
from everstep.values.codec.tokens import array_header, tag_header, text_header
from everstep.values.long_values import LongValue, long_value
from everstep.values.packer import MISTAKEN, OPTIONS, TUPLES_AS_LISTS, may_hold_extension, pack_within, pack_wrapped
from everstep.values.part_types import CONTAINERS
from everstep.values.stretches import Listed, Version, searched

DEPTH_MAX = 100
"""How deep containers may nest, counted from the value that is saved."""

FAST_DEPTHS = (36, 20, 12, 8, 5, 5, 5, 5)
"""How deep a value may nest, and what is in so many tagged containers: together not too deep for anybody.

What nests deeper needs the careful way.
"""
PLAIN_DEPTH = sum(FAST_DEPTHS)
"""How deep a value may nest that holds nothing that is tagged."""
_FEW_PARTS = 16
_FEW_INSIDE = 32
_SHORT_BYTES = 4096
_NO_CONTAINERS = bytes(byte for byte in range(256) if not 0x80 <= byte < 0xA0 and byte not in b"\xdc\xdd\xde\xdf")
"""What neither begins a list nor a mapping."""
_BYTES = frozenset((bytes, bytearray, memoryview))
ROWS_DEPTH = 2  # a list of rows, and nothing that nests inside of them
LONG_BYTES_MIN = 32 << 10


class Bulk(NamedTuple):
    """A list of tuples, or a mapping with keys that are no text, as the one list that the packer gets for it."""

    tag: int
    items: list[Any]
    columns: Any
    """The same in lists whose items are likely to be alike."""
    options: int
    packed: bytes | None
    """None: it is not all plain, so the packer refuses it."""
    start: int
    """Where it begins in `packed`."""

    def holds(self, some: Any, kinds: frozenset[type]) -> bool:
        """Whether there is something of these types in some of the items."""
        return part_types.rows_hold(some, kinds) if self.tag == ROWS else part_types.holds(some, kinds)

    def content(self) -> bytes | None:
        """Return what it is packed to; None if it is not all plain, or holds what the packer mistakes."""
        if self.packed is None:
            return None
        content = self.packed[self.start :]
        return None if may_hold_mistaken(content) and self.holds(self.columns, MISTAKEN) else content


def open_bulk(value: Any, level: int) -> Bulk | None:
    """Return a list of tuples, or a mapping with other keys, in `level` tagged containers; None for anything else."""
    kind = type(value)
    if kind is list and type(next(iter(value), None)) is tuple:
        rows = value.copy()
        if operator.countOf(map(type, rows), tuple) < len(rows):
            return None
        return bulk_of(ROWS, rows, rows, ROWS_DEPTH, TUPLES_AS_LISTS)
    if kind is not dict or {str}.issuperset(map(type, value)):
        return None
    if level + 1 >= len(FAST_DEPTHS):
        raise TypeError("so many tagged containers inside one another need the careful way")
    keys, values = map(list, (value, value.values()))  # in one step, in which no other thread can change it
    if {str}.issuperset(map(type, keys)):
        raise TypeError("a mapping that changes meanwhile needs the careful way")
    return bulk_of(MAP, keys + values, [keys, values], FAST_DEPTHS[level + 1], OPTIONS)


def bulk_of(tag: int, items: list[Any], columns: Any, depth_max: int, options: int) -> Bulk:
    """Hand a bulk to the packer as the list `items`, in which nothing may nest deeper than `depth_max`."""
    try:
        packed, start = pack_wrapped(items, depth_max, options=options)
    except TypeError:  # something nests too deep in it, or is a number or text that the packer does not take
        return Bulk(tag, items, columns, options, None, 0)
    return Bulk(tag, items, columns, options, packed, start)


def searched_bulk(bulk: Bulk, packed: bytes, before: Version | None) -> LongValue | None:
    """Return what a bulk is packed to, which is long; None if it holds what the packer mistakes."""
    header = tag_header(bulk.tag, len(packed) - bulk.start)
    value = long_value(header, packed, bulk.start)
    if not may_hold_mistaken(packed):
        return value
    header_bytes = len(header) + len(array_header(len(bulk.items)))
    return searched(value, Listed(bulk.items, header_bytes, bulk.options, bulk.holds), bulk.columns, before)


def packed_short(value: Any) -> bytes | None:
    """Return what the packer makes of a list or dict by itself, if that is short and surely does not nest too deep.

    Most values are so. Few of their parts are looked at, here and not in functions of their own: what is called once
    for each put is slow to be found.
    """
    if len(value) > _FEW_PARTS:
        return None
    inside = 0
    for part in value if type(value) is list else value.values():
        if type(part) in CONTAINERS:
            inside += len(part)
    if inside > _FEW_INSIDE:
        return None
    try:
        packed = ormsgpack.packb(value, None, OPTIONS)
    except TypeError:
        return None
    # It nests no deeper than there are bytes in it that may begin a container.
    if len(packed) > _SHORT_BYTES or len(packed.translate(None, _NO_CONTAINERS)) > PLAIN_DEPTH:
        return None
    return packed


def packed_plain(value: Any, before: Version | None) -> bytes | LongValue | None:
    """Return what the packer makes of a container by itself, while nothing else runs; None if it is not plain."""
    short = packed_short(value)
    if short is not None and not may_hold_mistaken(short):
        return short
    packed, start = pack_wrapped(value, PLAIN_DEPTH)
    is_long = len(packed) >= LONG_BYTES_MIN
    if not may_hold_mistaken(packed):
        return long_value(b"", packed, start) if is_long else packed[start:]
    if type(value) is list and is_long:
        listed = Listed(value, len(array_header(len(value))), OPTIONS, part_types.holds)
        return searched(long_value(b"", packed, start), listed, value, before)
    if part_types.holds(value, MISTAKEN):
        return None
    return long_value(b"", packed, start) if is_long else packed[start:]


def packed_content(content: list[Any], depth_max: int) -> bytes | None:
    """Return the parts of a tagged container or of an object, packed, if all of them are plain; None if they are not.

    The packer does not call back for these, so nothing else runs while it reads them.
    """
    try:
        packed = pack_within(content, depth_max)
    except TypeError:
        return None
    return None if may_hold_mistaken(packed) and part_types.holds(content, MISTAKEN) else packed


def packed_text(text: str) -> LongValue | None:
    """Return a long text, packed; None if it is not valid Unicode."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return None
    return long_value(text_header(len(encoded)), encoded)


def may_hold_bytes(packed: bytes) -> bool:
    """Whether there may be a bytes value in these bytes: if its marker cannot be seen there is none."""
    return 0xC4 in packed or 0xC5 in packed or 0xC6 in packed


def may_hold_mistaken(packed: bytes) -> bool:
    """Whether there may be something in these bytes that the packer has mistaken for something else."""
    # The same as `may_hold_bytes`: this is asked of each value.
    return 0xC4 in packed or 0xC5 in packed or 0xC6 in packed or may_hold_extension(packed)


def holds_bytes(value: Any) -> bool:
    """Whether bytes, or what the packer takes for bytes, are in the parts of `value` that it writes by itself."""
    return part_types.holds(value, _BYTES)


def own_kinds(values: Iterable[Any]) -> set[type]:
    """Return the types of these values; raise TypeError if there is one that the packer mistakes for another."""
    kinds = set(map(type, values))
    if not kinds.isdisjoint(MISTAKEN):
        raise TypeError("what the packer mistakes for something else needs the careful way")
    return kinds


def refuse_mistaken(value: Any) -> None:
    """Raise TypeError if there is something in a value that the packer mistakes for something else."""
    if part_types.holds(value, MISTAKEN):
        raise TypeError("what the packer mistakes for something else needs the careful way")
