"""Python values to canonical bytes and back, exactly. The one place that knows how a value is written.

The bytes are MessagePack, packed and unpacked by ormsgpack, with extension types for what MessagePack cannot tell
apart (a tuple from a list, a bytearray from bytes). Equal values with equal types and key order give equal bytes:
everything above compares bytes, never Python values. Two ways lead to the same bytes: the fast one hands the value
to the packer whole; the careful one walks it, is used when the fast one may be inexact, and names the path of what
cannot be stored. Unpacking builds plain types and registered classes; it never imports or looks up anything else.

What people keep in bulk has no step of the interpreter for each of its items: a list of tuples of plain values is one
extension (ROWS), a mapping with keys of other types is its keys and then its values, and a set of texts or of numbers
is sorted as it is (see `set_orders`). A long value is not put together before it is cut (see `long_values`).
"""

from __future__ import annotations

from everstep.values.codec.careful import has_text_keys, join_path
from everstep.values.codec.packing import DEFAULT, Codec, pack, pack_items, unpack, unpack_parts
from everstep.values.codec.plain import DEPTH_MAX, holds_bytes, may_hold_bytes
from everstep.values.codec.tags import DATETIME, FROZENSET, INT, MAP, OBJECT, PATH, SET, TREE_TAGS, TUPLE, UUID, ZONE
from everstep.values.codec.tokens import (
    array_header,
    bytes_header,
    depth,
    is_list,
    is_mapping,
    items,
    list_of,
    listed,
    map_header,
    mapping_of,
    pairs,
    part_count,
    tag_header,
    untagged,
)
from everstep.values.codec.unpacking import Types

__all__ = [
    "DATETIME",
    "DEFAULT",
    "DEPTH_MAX",
    "FROZENSET",
    "INT",
    "MAP",
    "OBJECT",
    "PATH",
    "SET",
    "TREE_TAGS",
    "TUPLE",
    "UUID",
    "ZONE",
    "Codec",
    "Types",
    "array_header",
    "bytes_header",
    "depth",
    "has_text_keys",
    "holds_bytes",
    "is_list",
    "is_mapping",
    "items",
    "join_path",
    "list_of",
    "listed",
    "map_header",
    "mapping_of",
    "may_hold_bytes",
    "pack",
    "pack_items",
    "pairs",
    "part_count",
    "tag_header",
    "unpack",
    "unpack_parts",
    "untagged",
]
