"""The packer, ormsgpack, with our options; and made to refuse what nests deeper than we say. Pure.

By itself it refuses a value at a depth of its own. So a value is handed to it inside as many lists as are too many. To
walk a large value instead takes many times as long as packing it.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import ormsgpack

OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
"""What it cannot write exactly goes to a hook, or is refused."""
TUPLES_AS_LISTS = OPTIONS & ~ormsgpack.OPT_PASSTHROUGH_TUPLE


class _Wrapper:
    """Lists in lists. Each takes one byte."""

    def __init__(self, levels: int) -> None:
        self.innermost: list[Any] = [None]
        self.outermost = self.innermost
        for _ in range(levels - 1):
            self.outermost = [self.outermost]
        self.levels = levels


def _own_limit() -> int:
    """Return how deep a value may nest that the packer takes."""
    value: list[Any] = []
    depth = 1
    while depth < 4096:
        try:
            ormsgpack.packb(value)
        except TypeError:
            return depth - 1
        value = [value]
        depth += 1
    raise ImportError("this release of ormsgpack does not limit how deep a value nests")


MISTAKEN = frozenset((bytearray, memoryview, ormsgpack.Ext))
"""What the packer writes by itself, but so that something else would be read."""
MISTAKEN_OR_BYTES = MISTAKEN | {bytes}
_OWN_LIMIT = _own_limit()
_idle: defaultdict[int, deque[_Wrapper]] = defaultdict(lambda: deque(maxlen=16))
"""Wrappers that nobody uses, by the depth that they leave."""


def _counts_extensions() -> bool:
    """Whether the number of references to their type tells how many extensions there are."""
    before = sys.getrefcount(ormsgpack.Ext)
    extension = ormsgpack.Ext(0, b"")
    is_counted = sys.getrefcount(ormsgpack.Ext) > before
    del extension
    return is_counted


_EXTENSIONS_ARE_COUNTED = _counts_extensions()
_REFERENCES = sys.getrefcount(ormsgpack.Ext)
"""While there is no extension. Another one in a module of ours would look like one, so `MISTAKEN` stands here."""


def may_hold_extension(packed: bytes) -> bool:
    """Whether there may be an `ormsgpack.Ext` of somebody else in these bytes: the packer writes it as one of ours.

    Mostly there is none in the whole process. Where there are some, the bytes are searched for the marks of one.
    """
    if _EXTENSIONS_ARE_COUNTED and sys.getrefcount(ormsgpack.Ext) <= _REFERENCES:
        return False
    # One after the other: this is asked of each object in a value, and a loop takes ten times as long.
    is_sized = 0xC7 in packed or 0xC8 in packed or 0xC9 in packed
    return is_sized or 0xD4 in packed or 0xD5 in packed or 0xD6 in packed or 0xD7 in packed or 0xD8 in packed


def pack_wrapped(
    value: Any, depth_max: int, hook: Callable[[Any], Any] | None = None, options: int = OPTIONS
) -> tuple[bytes, int]:
    """Return bytes with what the packer makes of a container, and where that begins in them.

    TypeError if it nests deeper than `depth_max`, or holds what the packer refuses.
    """
    idle = _idle[depth_max]
    try:
        wrapper = idle.pop()
    except IndexError:
        wrapper = _Wrapper(_OWN_LIMIT - depth_max)
    wrapper.innermost[0] = value
    try:
        return ormsgpack.packb(wrapper.outermost, hook, options), wrapper.levels
    finally:
        wrapper.innermost[0] = None
        idle.append(wrapper)


def pack_within(value: Any, depth_max: int, hook: Callable[[Any], Any] | None = None, options: int = OPTIONS) -> bytes:
    """Return what the packer makes of a container; TypeError as in `pack_wrapped`."""
    packed, start = pack_wrapped(value, depth_max, hook, options)
    return packed[start:]
