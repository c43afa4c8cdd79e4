"""Whether a long list holds what the packer mistakes for something else, from what is known of it before. Pure.

The packer writes a bytearray as if it were bytes. So a list that it packed is searched for one, which takes about as
long as packing it. But most of a list that is packed again is as it was: the same bytes, in which no bytes value
begins. Only what stands between them is searched.

How it is known where that begins: of the list before it is noted how many bytes its items take, some hundred at a time.
What begins with the same bytes begins with the same items. Those that changed are packed once more, and must give just
the bytes that stand there. So what follows begins where an item begins, as it did before: the same bytes are the same
items there too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ormsgpack

from everstep.values.long_values import HEAD_BYTES, LongValue, Stretches
from everstep.values.packer import MISTAKEN, MISTAKEN_OR_BYTES

_STRETCHES = 64
"""In so many stretches a list is measured."""


class Version(NamedTuple):
    """A value as it was packed before."""

    parts: Sequence[bytes]
    """Its head, and what follows."""
    stretches: Stretches | None


class Listed(NamedTuple):
    """A list that was packed, and how."""

    items: list[Any]
    header_bytes: int
    """How many bytes of the packed value stand before the first item."""
    options: int
    holds: Callable[[Any, frozenset[type]], bool]
    """Whether there is something of these types in some of the items."""


def searched(value: LongValue, listed: Listed, whole: Any, before: Version | None) -> LongValue | None:
    """Return a packed list with what is known of it by now; None if it holds what the packer mistakes.

    `whole` is what is searched where all of it must be.
    """
    front, back = _common_ends(value, listed.header_bytes, before) if before is not None else (0, 0)
    is_mostly_known = 4 * (front + back) >= 3 * value.size
    if before is not None and before.stretches is not None and is_mostly_known:
        stretches = _searched_between(value, listed, before.stretches, front, back)
        if stretches is not None:
            return value._replace(stretches=stretches)
    if listed.holds(whole, MISTAKEN_OR_BYTES):
        return None if listed.holds(whole, MISTAKEN) else value
    # To measure a list is to pack it once more: that pays where it will be much the same the next time.
    return value._replace(stretches=_measured(value, listed)) if is_mostly_known else value


def _searched_between(value: LongValue, listed: Listed, known: Stretches, front: int, back: int) -> Stretches | None:
    """Return the stretches of a list that is as before but between `front` and `back` bytes, and holds no bytes there.

    None if that is not so, or not known.
    """
    if known.header_bytes != listed.header_bytes:
        return None
    first, begin = _fitting(known.sizes, front - known.header_bytes)
    behind, end = _fitting(known.sizes[first:][::-1], back)
    last = len(known.sizes) - behind
    skipped = sum(known.counts[:first])
    left = sum(known.counts[last:])
    if skipped + left > len(listed.items):
        return None
    between = listed.items[skipped : len(listed.items) - left]
    step = _step(len(listed.items))
    measured = _stretches_of(value, listed, between, known.header_bytes + begin, value.size - end, step)
    if measured is None or listed.holds(between, MISTAKEN_OR_BYTES):
        return None
    counts, sizes = measured
    return Stretches(
        known.header_bytes,
        known.counts[:first] + counts + known.counts[last:],
        known.sizes[:first] + sizes + known.sizes[last:],
    )


def _fitting(sizes: Sequence[int], most: int) -> tuple[int, int]:
    """Return how many of the first sizes are no more than `most` together, and what they are together."""
    total = 0
    for place, size in enumerate(sizes):
        if total + size > most:
            return place, total
        total += size
    return len(sizes), total


def _measured(value: LongValue, listed: Listed) -> Stretches | None:
    """Return the stretches of a list; None if it is not what was packed, since somebody changes it."""
    items = listed.items
    found = _stretches_of(value, listed, items, listed.header_bytes, value.size, _step(len(items)))
    return Stretches(listed.header_bytes, *found) if found is not None else None


def _stretches_of(
    value: LongValue, listed: Listed, items: list[Any], at: int, end: int, step: int
) -> tuple[list[int], list[int]] | None:
    """Return the stretches of items that stand in a value from `at` to `end`; None if others stand there."""
    counts: list[int] = []
    sizes: list[int] = []
    for start in range(0, len(items), step):
        some = items[start : start + step]
        packed = ormsgpack.packb(some, None, listed.options)[_header_bytes(len(some)) :]
        if value.cut(at, at + len(packed)) != packed:
            return None
        at += len(packed)
        counts.append(len(some))
        sizes.append(len(packed))
    return (counts, sizes) if at == end else None


def _step(length: int) -> int:
    return max(length // _STRETCHES, 1)


def _header_bytes(length: int) -> int:
    """Return how many bytes the packer writes before the items of a list."""
    if length < 0x10:
        return 1
    return 3 if length < 0x10000 else 5


def _common_ends(value: LongValue, header_bytes: int, before: Version) -> tuple[int, int]:
    """Return how many bytes a value begins with, and ends with, as the one before it did; its header does not count."""
    head, *pieces = before.parts
    if head[header_bytes:] != value.head[header_bytes:]:
        return 0, 0
    data = value.data
    at = value.start
    kept = 0
    for piece in pieces:
        if not data.startswith(piece, at):
            break
        at += len(piece)
        kept += 1
    end = len(data)
    for piece in reversed(pieces[kept:]):
        if not data.endswith(piece, at, end):
            break
        end -= len(piece)
    return HEAD_BYTES + at - value.start, len(data) - end
