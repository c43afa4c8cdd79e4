"""What it takes to build a packed value: about its bytes in memory, or as much time, at 4 ns each.

A packed byte may be an empty dict, which takes 72 bytes when it is built, or a letter of a text. So a value is weighed
by what it is made of, and not by its size. That takes a step for each of its parts: it is done only where it matters.
"""

from __future__ import annotations

from everstep.values import codec

LIST = 96
PAIR = 60
TEXT = 64
TAGGED = 500
MAPPING = 136
BYTE_MAX = 170
"""What a packed byte weighs at most: a tag with nothing in it takes three."""
_LONG = 16_384  # what the letters of a longer text take is not looked at
_LARGE, _VERY_LARGE = 1 << 20, 32 << 20  # between these a quick look comes first: it may show that little counts
_QUICK_MAX = 16 << 20
_STEPS_MAX = 3_600_000
"""How many parts a `Scale` looks at closely: about 0.3 s. Only small numbers are more than that within all limits."""
_SLOW_STEP = 2  # a part whose size is written behind its first byte takes as long as two more
_SLOT = 12  # a place in a list, and what is not made anew
_NUMBER = 40

_SIZES = [0] * 256
_WEIGHTS = [0] * 256
"""By the first byte of a part: how many bytes it takes, and what it weighs. 0: that is written behind it."""


def _part(first: int, size: int, weight: int) -> None:
    _SIZES[first], _WEIGHTS[first] = size, size + weight


for _first in (*range(0x80), *range(0xC0, 0xC4)):
    _part(_first, 1, _SLOT)
for _count in range(0x10):
    _part(0x80 + _count, 1, MAPPING + PAIR * _count if _count else LIST)
    _part(0x90 + _count, 1, LIST)
for _size in range(0x20):
    _part(0xA0 + _size, 1 + _size, TEXT + 4 * _size)
    _part(0xE0 + _size, 1, _NUMBER)
for _first, _size in ((0xCA, 4), (0xCB, 8), *((kind, 1 << (kind & 3)) for kind in range(0xCC, 0xD4))):
    _part(_first, 1 + _size, _NUMBER)
_TEXTS = frozenset((0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB))
_LISTS = frozenset((0xDC, 0xDD))
_MAPPINGS = frozenset((0xDE, 0xDF))
_TAGS = frozenset((0xC7, 0xC8, 0xC9))
_HEADERS = {
    0xC4: 2, 0xC5: 3, 0xC6: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5, 0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5, 0xC7: 2, 0xC8: 3, 0xC9: 5,
    0xD4: 1, 0xD5: 1, 0xD6: 1, 0xD7: 1, 0xD8: 1,
}  # fmt: skip
"""By the first byte of another part: how many bytes it takes with the size that follows."""


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


def _kinds() -> bytes:
    """Return which of these a part is, by the byte that it begins with."""
    found = bytearray(0x100)
    for kind, (_, firsts) in enumerate(_QUICK):
        for first in firsts:
            found[first] = kind
    return bytes(found)


_KINDS = _kinds()
_WITH_PAIRS = 3  # the kind of mappings
_QUICK_BYTE = min(each for each, _ in _QUICK)


def weight_at_most(packed: bytes) -> int:
    """Return a weight that a value is not above, without a step for each of its parts.

    Each byte counts as if a part began with it.
    """
    kinds = packed.translate(_KINDS)
    counts = [kinds.count(kind) for kind in range(len(_QUICK))]
    pairs = PAIR // 2 * len(packed) if counts[_WITH_PAIRS] else 0  # a pair takes two bytes at least
    return pairs + sum([each * count for (each, _), count in zip(_QUICK, counts, strict=True)])


def weight(packed: bytes) -> int:
    """Return what it takes to build the value of these bytes."""
    return Scale(_SLOW_STEP * len(packed)).weight(packed)


class Scale:
    """Weighs values, which may be forged, in a bounded time: when all steps are used up, a quick look must do."""

    def __init__(self, steps: int = _STEPS_MAX) -> None:
        self._steps = steps

    def weight_in_pieces(self, packed: bytes, most: int, share: float) -> int:
        """Return what a value weighs that may be large, or more; something above `most` if that is more.

        Only a share of the weight counts: where that is little, a quick look is enough.
        """
        if _LARGE < len(packed) <= _VERY_LARGE:
            quick = weight_at_most(packed)
            if quick * share <= _QUICK_MAX:
                return quick
        return self.weight(packed, most)

    def weight(self, packed: bytes, most: int | None = None) -> int:
        """Return what it takes to build the value of these bytes, or more; something above `most` if that is more."""
        pending: list[tuple[int, int]] = []
        end = len(packed)
        at, total = self._weighed(packed, 0, end, pending)
        while pending and self._steps > 0:
            if at < end:
                pending.append((at, end))
            at, end = pending.pop()
            at, more = self._weighed(packed, at, end, pending)
            total += more
        if at < end:
            pending.append((at, end))
        for at, end in pending:
            least = _QUICK_BYTE * (end - at)
            is_too_much = most is not None and total + least > most
            total += least if is_too_much else weight_at_most(packed[at:end])
        return total

    def _weighed(self, packed: bytes, at: int, end: int, pending: list[tuple[int, int]]) -> tuple[int, int]:
        """Weigh the parts from `at` to `end`; return how far that came, and the weight. What is in tags is pending."""
        sizes = _SIZES
        weights = _WEIGHTS
        headers = _HEADERS
        texts = _TEXTS
        total = slow = 0
        step = 0
        for step in range(self._steps):  # noqa: B007
            if at >= end:
                break
            first = packed[at]
            if size := sizes[first]:
                at += size
                total += weights[first]
                continue
            slow += 1
            if _SLOW_STEP * slow > self._steps:
                break
            header = headers[first]
            if header == 2 and at + 1 < end:
                size = packed[at + 1]
            elif header > 1:
                size = int.from_bytes(packed[at + 1 : at + header], "big")
            else:  # a tag with a few bytes
                size = 1 << (first - 0xD4)
            total += header
            at += header
            if first in texts:
                text = packed[at : at + size]
                at += size
                total += TEXT + (2 * len(text) if text.isascii() else _bytes_weight(text))
            elif first in _LISTS:
                total += LIST
            elif first in _MAPPINGS:
                total += MAPPING + PAIR * min(size, end - at)
            else:
                total += TAGGED
                tag = packed[at : at + 1]
                at = at + 1
                if tag and tag[0] in codec.TREE_TAGS:
                    pending.append((at, min(at + size, end)))
                else:
                    total += 2 * min(size, end - at)
                at += size
        self._steps -= 1 + step + _SLOW_STEP * slow
        return at, total


def _bytes_weight(data: bytes) -> int:
    """Return what the bytes of a text take that is not ASCII: as they are, and up to 4 for each of its letters."""
    if len(data) > _LONG:
        return 2 * len(data)
    highest = max(data)
    if highest >= 0xF0:
        return 5 * len(data)
    return (3 if highest >= 0xC4 else 2) * len(data)
