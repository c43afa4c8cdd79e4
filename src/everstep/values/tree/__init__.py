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

from everstep.values.tree.lists import Levels
from everstep.values.tree.node import (
    EMPTY_LIST,
    EMPTY_MAP,
    FORMAT,
    GROUP,
    HASH_BYTES,
    LIST,
    MAP,
    NODES,
    PACKED,
    PIECES,
    REF,
    REF_BODY,
    REST,
    VALUE_BYTES_MAX,
    WHOLE,
    Content,
    InPieces,
    MissingObject,
    Node,
    address,
    content_of,
    hashes,
    mismatched,
    number_bytes,
    reachable,
)
from everstep.values.tree.opening import (
    Mapped,
    Part,
    entries,
    in_pieces,
    inline,
    inline_value,
    is_list,
    list_length,
    nodes,
    opened,
    opened_group,
    opened_mapping,
    packed_size,
)
from everstep.values.tree.reader import Reader
from everstep.values.tree.repetition import (
    check_repeats,
    is_mostly_new,
    refuse_repeats,
    repeats,
    repeats_nothing,
    writable_repeats,
)
from everstep.values.tree.writer import WHOLE_MAX, Writer, made_of

__all__ = [
    "EMPTY_LIST",
    "EMPTY_MAP",
    "FORMAT",
    "GROUP",
    "HASH_BYTES",
    "LIST",
    "MAP",
    "NODES",
    "PACKED",
    "PIECES",
    "REF",
    "REF_BODY",
    "REST",
    "VALUE_BYTES_MAX",
    "WHOLE",
    "WHOLE_MAX",
    "Content",
    "InPieces",
    "Levels",
    "Mapped",
    "MissingObject",
    "Node",
    "Part",
    "Reader",
    "Writer",
    "address",
    "check_repeats",
    "content_of",
    "entries",
    "hashes",
    "in_pieces",
    "inline",
    "inline_value",
    "is_list",
    "is_mostly_new",
    "list_length",
    "made_of",
    "mismatched",
    "nodes",
    "number_bytes",
    "opened",
    "opened_group",
    "opened_mapping",
    "packed_size",
    "reachable",
    "refuse_repeats",
    "repeats",
    "repeats_nothing",
    "writable_repeats",
]
