"""Names and numbers as bytes whose order is theirs. Pure."""

from __future__ import annotations

import functools
import hashlib
import struct

# A key may hold two names and some numbers, and has 500 bytes in all.
_NAME_BYTES_MAX = 200
_SHORT_END = b"\0\0"
_LONG_END = b"\0\1"
_OFFSET = 1 << 63

number = struct.Struct(">Q").pack
"""8 bytes for a number from 0 on."""

numbers = struct.Struct(">QQ").pack
"""16 bytes for two numbers: pairs are in the order of the first, then of the second."""


def signed(value: int) -> bytes:
    """Return 8 bytes for a number that may be below 0."""
    return number(value + _OFFSET)


# Cached, since each call works with the same few names again and again.
@functools.lru_cache(1024)
def name(text: str) -> bytes:
    """Return a name with a mark at its end: no other name, and no name with something behind it, begins like this.

    What is beyond the limit of a key is there as a hash. So long names are found, but not in their order.
    """
    escaped = beginning(text)
    if len(escaped) <= _NAME_BYTES_MAX:
        return escaped + _SHORT_END
    return shortened(escaped) + _LONG_END + hashlib.sha256(text.encode()).digest()


def beginning(text: str) -> bytes:
    """Return what all names begin with that begin with this text, if it is not too long."""
    # A zero byte is written as two, so that the mark at the end of a name cannot be part of one.
    return text.encode().replace(b"\0", b"\0\xff")


def shortened(start: bytes) -> bytes:
    """Return as much of a `beginning` as a key can hold; half of what stands for a zero would look like an end."""
    cut = start[:_NAME_BYTES_MAX]
    return cut.removesuffix(b"\0")


def to_bytes(text: str) -> bytes:
    """Return text of any kind as bytes for a value: what is no valid Unicode comes back too."""
    return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Return what `to_bytes` was given."""
    return data.decode("utf-8", "surrogatepass")


def number_at(key: bytes, place: int) -> int:
    """Return the number at a place of a key."""
    return int.from_bytes(key[place : place + 8], "big")


def last_number(key: bytes) -> int:
    """Return the number that a key ends with."""
    return int.from_bytes(key[-8:], "big")


def end(prefix: bytes) -> bytes:
    """Return the least key that is greater than all that begin with `prefix`, which does not begin with 0xff."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1])
