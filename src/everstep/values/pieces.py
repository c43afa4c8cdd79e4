"""Long bytes in pieces: cut by size once, then kept where they still stand. Pure.

A new version of a value is laid over the pieces of the old one. What is the same at the beginning and at the end stays
as it is, without a look at single items; in between, old pieces are looked for by their first bytes. Everything else
is cut by size. That takes a small part of the time of packing the value, and of a search for cuts by content.

The price: which pieces a value has depends on what it was before. Equal pieces mean equal values, not the other way
round.
"""

from __future__ import annotations

from collections.abc import Sequence

_SIZES = ((64 << 10, 4 << 10), (512 << 10, 8 << 10))
"""How large the pieces of a value are that is smaller than this. Small ones leave half of a database's pages empty."""
PIECE_BYTES_MAX = 32 << 10

_PROBE_BYTES = 64
_PROBES_MAX = 4
"""How many of the next old pieces are looked for where the old and the new value part."""
_WINDOW_BYTES = 128 << 10
"""How far they are looked for."""


def piece_size(total: int) -> int:
    """Return how large the pieces of a value of `total` bytes are."""
    for below, size in _SIZES:
        if total < below:
            return size
    return PIECE_BYTES_MAX


class Layer:
    """A new version of some bytes, cut into pieces.

    `pieces` are those of the new version; `kept` says of each which piece of the old version it is, -1 if it is new.
    """

    def __init__(self, data: bytes, start: int, old: Sequence[bytes], size: int, unit: int = 1) -> None:
        """Cut `data` from `start` on into pieces of about `size`; each has a multiple of `unit` bytes."""
        self.pieces: list[bytes] = []
        self.kept: list[int] = []
        self._data = data
        self._old = old
        self._size = size
        self._start = start
        self._unit = unit
        self._lay()

    def _lay(self) -> None:
        place, at = self._keep(0, self._start, len(self._old), len(self._data))
        back, end = self._kept_at_the_end(place, at)
        while at < end:
            place, there = self._find(place, at, back, end)
            self._cut(at, there)
            place, at = self._keep(place, there, back, end)
        self.pieces.extend(self._old[back:])
        self.kept.extend(range(back, len(self._old)))

    def _cut(self, at: int, end: int) -> None:
        """Cut what is new. The last piece may be half as large again, so that no crumbs are left."""
        # What is added again and again at one place takes the small pieces before it along: each byte is written a few
        # times, and there are never many small pieces.
        while self.pieces and at < end and len(self.pieces[-1]) < 2 * (end - at):
            if len(self.pieces[-1]) + end - at > self._size:
                break
            at -= len(self.pieces.pop())
            self.kept.pop()
        while at < end:
            stop = at + self._size
            if stop + self._size // 2 >= end:
                stop = end
            self.pieces.append(self._data[at:stop])
            self.kept.append(-1)
            at = stop

    def _keep(self, place: int, at: int, last: int, end: int) -> tuple[int, int]:
        """Keep old pieces as long as they stand here one after the other; return the next one and where it would be."""
        first = place
        startswith = self._data.startswith
        for piece in self._old[place:last]:
            if at + len(piece) > end or not startswith(piece, at):
                break
            at += len(piece)
            place += 1
        self.pieces.extend(self._old[first:place])
        self.kept.extend(range(first, place))
        return place, at

    def _kept_at_the_end(self, place: int, at: int) -> tuple[int, int]:
        """Return the first of the old pieces that the new version ends with, and where it begins."""
        last = len(self._old)
        end = len(self._data)
        while last > place:
            piece = self._old[last - 1]
            if end - len(piece) < at or not self._data.endswith(piece, at, end):
                break
            end -= len(piece)
            last -= 1
        return last, end

    def _find(self, place: int, at: int, last: int, end: int) -> tuple[int, int]:
        """Return one of the next old pieces and where it stands further on; (last, end) if none is found."""
        window = min(end, at + _WINDOW_BYTES)
        for probed in range(place, min(place + _PROBES_MAX, last)):
            piece = self._old[probed]
            there = self._data.find(piece[:_PROBE_BYTES], at, window)
            if there < 0 or (there - self._start) % self._unit or there + len(piece) > end:
                continue
            if self._data.startswith(piece, there):
                return probed, there
        return last, end
