"""What a list has in common with the one before it: what it begins and ends with. Pure.

Items are packed some at a time, in native code, and compared as bytes. Only where two lists part are single items
looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everstep.values import codec

_CHUNK = 64


class Chunked:
    """The items of a list, packed: `_CHUNK` of them in each chunk but the last.

    Those of a list that was read are cut into chunks when they are first compared with others: many are only read.
    """

    __slots__ = ("_chunks", "_plain", "_uncut", "length")

    def __init__(self, length: int, chunks: list[bytes], plain: list[bool]) -> None:
        self.length = length
        self._chunks = chunks
        self._plain = plain
        self._uncut: bytes | None = None

    @classmethod
    def uncut(cls, length: int, packed: bytes) -> Chunked:
        """Return the items of a list of this length that is packed."""
        found = cls(length, [], [])
        found._uncut = packed
        return found

    @property
    def chunks(self) -> list[bytes]:
        """The items, in chunks."""
        self._cut()
        return self._chunks

    @property
    def plain(self) -> list[bool]:
        """Of each chunk, whether it surely holds no bytes values: what packs to the same is then surely the same."""
        self._cut()
        return self._plain

    def _cut(self) -> None:
        # Another thread may be here, too: it is looked at once, and taken away last.
        packed = self._uncut
        if packed is None:
            return
        cut = chunked_packed(codec.items(packed))
        self._chunks = cut.chunks
        self._plain = cut.plain
        self._uncut = None

    def packed(self) -> bytes:
        """Return the list, packed."""
        return b"".join(self.parts())

    def parts(self) -> list[bytes]:
        """Return the list, packed, in parts."""
        uncut = self._uncut
        if uncut is not None:
            return [uncut]
        return [codec.array_header(self.length), *self._chunks]


class Overlap(NamedTuple):
    """What a list is made of, by one before it: some of its items, new ones, and its last items."""

    skip: int
    """How many of its first items are gone."""
    front: int
    """How many of those that follow are kept."""
    added: list[bytes]
    back: int
    """How many of its last items are kept."""


NOTHING = Chunked(0, [], [])


def chunked(items: list[Any], packer: codec.Codec, path: str, old: Chunked = NOTHING) -> Chunked:
    """Pack the items of a list; those that are as in `old` are not kept in memory twice."""
    found = Chunked(len(items), [], [])
    for place, start in enumerate(range(0, len(items), _CHUNK)):
        some = items[start : start + _CHUNK]
        before = old.chunks[place] if place < len(old.chunks) else None
        quick: bytes | None = None
        if before is not None and old.plain[place]:
            quick = packer.pack_items_quickly(some)
            if quick == before:
                found.chunks.append(before)
                found.plain.append(True)
                continue
        chunk = packer.pack_items(some, path, start, quick=quick)
        found.chunks.append(before if before == chunk else chunk)
        found.plain.append(not codec.may_hold_bytes(chunk) or not codec.holds_bytes(some))
    return found


def single_items(listed: Chunked, values: list[Any], packer: codec.Codec) -> list[bytes]:
    """Return the items of a list one by one, packed; `values` are what it was packed from.

    To pack each of them again takes less time than to find where each one ends.
    """
    single = packer.pack_each_quickly(values)
    if single is not None and b"".join(single) == b"".join(listed.chunks):
        return single
    return codec.items(listed.packed())


def chunked_packed(items: Sequence[bytes]) -> Chunked:
    """Return packed items as chunks."""
    chunks = [b"".join(items[start : start + _CHUNK]) for start in range(0, len(items), _CHUNK)]
    return Chunked(len(items), chunks, [not codec.may_hold_bytes(chunk) for chunk in chunks])


def extended(old: Chunked, items: Sequence[bytes]) -> Chunked:
    """Return a list with packed items added at its end."""
    room = -old.length % _CHUNK
    chunks = old.chunks.copy()
    plain = old.plain.copy()
    if room and items:
        chunks[-1] = b"".join([chunks[-1], *items[:room]])
        plain[-1] = not codec.may_hold_bytes(chunks[-1])
    more = chunked_packed(items[room:])
    return Chunked(old.length + len(items), chunks + more.chunks, plain + more.plain)


def overlap(new: Chunked, old: Chunked) -> Overlap:
    """Return what a list has in common with an older one."""
    front = _equal_chunks(new, old)
    if front == new.length == old.length:
        return Overlap(0, front, [], 0)
    back = _equal_chunks_at_the_end(new, old, front)
    added = _rest(new, front, back)
    before = _rest(old, front, back)
    if added.startswith(before):
        kept = old.length - front - back
        return Overlap(0, front + kept, _items(added[len(before) :], new.length - old.length), back)
    new_items = _items(added, new.length - front - back)
    old_items = _items(before, old.length - front - back)
    skip = 0
    if front == 0 and new_items and new_items[0] in old_items:
        skip = old_items.index(new_items[0])
        old_items = old_items[skip:]
    more, more_back = _equal_ends(new_items, old_items)
    return Overlap(skip, front + more, new_items[more : len(new_items) - more_back], back + more_back)


def _equal_chunks(new: Chunked, old: Chunked) -> int:
    """Return how many items are the same from the beginning, in whole chunks."""
    for place, (chunk, before) in enumerate(zip(new.chunks, old.chunks, strict=False)):
        if chunk is not before and chunk != before:
            return place * _CHUNK
    # The last chunk may have fewer items, in the shorter of the lists.
    if new.length == old.length:
        return new.length
    return min(new.length, old.length) // _CHUNK * _CHUNK


def _equal_chunks_at_the_end(new: Chunked, old: Chunked, front: int) -> int:
    """Return how many items behind the first `front` are the same at the end, in whole chunks."""
    if new.length != old.length:
        return 0
    place = len(new.chunks)
    while place * _CHUNK > front and new.chunks[place - 1] == old.chunks[place - 1]:
        place -= 1
    return max(new.length - place * _CHUNK, 0)


def _rest(listed: Chunked, front: int, back: int) -> bytes:
    """Return the items between the first and the last ones, packed; both are whole chunks."""
    last = len(listed.chunks) - -(-back // _CHUNK)
    return b"".join(listed.chunks[front // _CHUNK : last])


def _items(packed: bytes, count: int) -> list[bytes]:
    if count == 1:  # as when a conversation goes on
        return [packed]
    return codec.items(codec.array_header(count) + packed)


def _equal_ends(new: list[bytes], old: list[bytes]) -> tuple[int, int]:
    """Return how many items are the same at the beginning, and how many of the others at the end."""
    most = min(len(new), len(old))
    front = 0
    while front < most and new[front] == old[front]:
        front += 1
    back = 0
    while back < most - front and new[-1 - back] == old[-1 - back]:
        back += 1
    return front, back
