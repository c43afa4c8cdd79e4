"""What it takes to build a packed value: about its bytes in memory, or as much time, at 4 ns each.

A packed byte may be an empty dict, which takes 72 bytes when it is built, or a letter of a text. So a value is weighed
by what it is made of, and not by its size. That takes a step for each of its parts: it is done only where it matters.
"""

from __future__ import annotations

from everstep.values import codec

LIST, PAIR, TEXT, TAGGED = 96, 60, 64, 500
MAPPING = 136
BYTE_MAX = 170
"""What a packed byte weighs at most: a tag with nothing in it takes three."""
_LONG = 16_384  # what the letters of a longer text take is not looked at
_LARGE = 1 << 20  # what is larger is weighed with a quick look, unless it seems to weigh much
_QUICK_MAX = 16 << 20
_SLOT = 12  # a place in a list, and what is not made anew
_NUMBER = 40

_STEPS: list[tuple[int, int] | None] = [None] * 256
"""By the first byte of a part: how many bytes it takes, and what it weighs. None: that is written behind it."""
for _first in range(0x80):
    _STEPS[_first] = 1, 1 + _SLOT
for _first in range(0x10):
    _STEPS[0x80 + _first] = 1, 1 + (MAPPING + PAIR * _first if _first else LIST)
    _STEPS[0x90 + _first] = 1, 1 + LIST
for _first in range(0x20):
    _STEPS[0xA0 + _first] = 1 + _first, 1 + TEXT + 5 * _first
    _STEPS[0xE0 + _first] = 1, 1 + _NUMBER
for _first in (0xC0, 0xC1, 0xC2, 0xC3):
    _STEPS[_first] = 1, 1 + _SLOT
for _first, _size in ((0xCA, 4), (0xCB, 8), *((kind, 1 << (kind & 3)) for kind in range(0xCC, 0xD4))):
    _STEPS[_first] = 1 + _size, 1 + _size + _NUMBER
_LENGTH_SIZES = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4,
}  # fmt: skip
_LISTS, _MAPPINGS, _TAGS = frozenset((0xDC, 0xDD)), frozenset((0xDE, 0xDF)), frozenset((0xC7, 0xC8, 0xC9))


_MAPPING_FIRSTS = bytes((*range(0x81, 0x90), *_MAPPINGS))
_TAG_FIRSTS = bytes((*_TAGS, *range(0xD4, 0xD9)))
_SMALL_FIRSTS = bytes((*range(0x80), *range(0xC0, 0xC4)))
_NUMBER_FIRSTS = bytes((*range(0xCA, 0xD4), *range(0xE0, 0x100)))
_OTHER_FIRSTS = bytes(range(0x100)).translate(None, _MAPPING_FIRSTS + _TAG_FIRSTS + _SMALL_FIRSTS + _NUMBER_FIRSTS)
_QUICK = (
    (1 + _SLOT, _SMALL_FIRSTS),
    (9 + _NUMBER, _NUMBER_FIRSTS),
    (5 + LIST, _OTHER_FIRSTS),
    (5 + MAPPING, _MAPPING_FIRSTS),
    (5 + TAGGED, _TAG_FIRSTS),
)
"""What a part weighs at most without what is in it, by the bytes that it may begin with."""


def weight_at_most(packed: bytes) -> int:
    """Return a weight that a value is not above, without a step for each of its parts.

    Each byte counts as if a part began with it.
    """
    size = len(packed)
    has_mappings = len(packed.translate(None, _MAPPING_FIRSTS)) < size
    total = PAIR // 2 * size if has_mappings else 0  # a pair takes two bytes at least
    for each, firsts in _QUICK:
        total += each * (size - len(packed.translate(None, firsts)))
    return total


def weight_in_pieces(packed: bytes, most: int, share: float) -> int:
    """Return what a value weighs that may be large, about; something above `most` if that is more.

    Only a share of the weight counts: where that is little, a quick look is enough.
    """
    if len(packed) > _LARGE:
        quick = weight_at_most(packed)
        if quick * share <= _QUICK_MAX:
            return quick
    return weight(packed, most)


def weight(packed: bytes, most: int | None = None) -> int:
    """Return what it takes to build the value of these bytes, which may be forged; not much above `most`."""
    total = 0
    pending = [(0, len(packed))]
    while pending:
        at, end = pending.pop()
        while at < end:
            if most is not None and total > most:
                return total
            first = packed[at]
            step = _STEPS[first]
            if step is not None:
                at += step[0]
                total += step[1]
                continue
            if 0xD4 <= first < 0xD9:
                header, size = 1, 1 << (first - 0xD4)
            else:
                header = 1 + _LENGTH_SIZES[first]
                size = int.from_bytes(packed[at + 1 : at + header], "big")
            total += header
            at += header
            if first in _LISTS:
                total += LIST
            elif first in _MAPPINGS:
                total += MAPPING + PAIR * min(size, end - at)
            elif first in _TAGS or 0xD4 <= first < 0xD9:
                total += TAGGED
                tag, at = packed[at : at + 1], at + 1
                if tag and tag[0] in codec.TREE_TAGS:
                    pending.append((at, min(at + size, end)))
                else:
                    total += 2 * min(size, end - at)
                at += size
            else:
                total += TEXT + _bytes_weight(packed[at : min(at + size, end)])
                at += size
    return total


def _bytes_weight(data: bytes) -> int:
    """Return what the bytes of a text take: as they are, and in a text that has up to 4 for each of its letters."""
    if len(data) > _LONG or data.isascii():
        return 2 * len(data)
    highest = max(data)
    if highest >= 0xF0:
        return 5 * len(data)
    return (3 if highest >= 0xC4 else 2) * len(data)
