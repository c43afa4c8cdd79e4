"""A packed value that is long: where its bytes stand, so that they are not copied before they are cut. Pure."""

from __future__ import annotations

from typing import NamedTuple

HEAD_BYTES = 16
"""The first bytes of a value, which stand in its node: counts change there."""


class Stretches(NamedTuple):
    """What is known of a packed list that holds no bytes values: see `stretches`."""

    header_bytes: int
    """How many bytes stand before its first item."""
    counts: list[int]
    """How many items each stretch of it has."""
    sizes: list[int]
    """How many bytes these take."""


class LongValue(NamedTuple):
    """A packed value: its head, and then what stands in `data` from `start` on."""

    head: bytes
    data: bytes
    start: int
    stretches: Stretches | None = None

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.head) + len(self.data) - self.start

    def cut(self, first: int, last: int) -> bytes:
        """Return the bytes of the value from `first` up to `last`."""
        shift = self.start - HEAD_BYTES
        if first >= HEAD_BYTES:
            return self.data[first + shift : last + shift]
        return (self.head + self.data[self.start : max(last + shift, self.start)])[first:last]

    def whole(self) -> bytes:
        """Return it in one piece."""
        return b"".join([self.head, memoryview(self.data)[self.start :]])


def long_value(header: bytes, data: bytes, start: int = 0) -> LongValue:
    """Return the value that is `header`, and then what stands in `data` from `start` on; both together are long."""
    behind = start + HEAD_BYTES - len(header)
    return LongValue(header + data[start:behind], data, behind)
