"""A page of threads that are chosen from those that a store finds: how far to look, and where the next page begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from everstep.repository.finding import pack_cursor
from everstep.stores.protocol import Hit

T = TypeVar("T")


class Scan(Generic[T]):
    """The threads that are looked at for one page, and what is shown of those that fit."""

    def __init__(self, limit: int, looked_max: int) -> None:
        self._limit = limit
        self._looked_max = looked_max
        self._looked = 0
        self._found: list[tuple[Hit, T]] = []
        self._is_over = False
        self.last: Hit | None = None
        """The one that was looked at last."""

    @property
    def goes_on(self) -> bool:
        """Whether there is more to look at. One too many is looked for, which tells whether others follow."""
        return len(self._found) <= self._limit and self._looked < self._looked_max and not self._is_over

    def look_at(self, hits: Sequence[Hit], count: int) -> Sequence[Hit]:
        """Note what a search for one more than `count` gave, and return what is to be looked at of it."""
        self._is_over = len(hits) <= count
        hits = hits[:count]
        self._looked += len(hits)
        if hits:
            self.last = hits[-1]
        return hits

    def add(self, hit: Hit, shown: T) -> None:
        """Take one that fits."""
        self._found.append((hit, shown))

    def end(self) -> tuple[list[T], str | None]:
        """Return the page, and the cursor of the next one; None: this is the last."""
        if len(self._found) > self._limit:
            self._is_over = False
            self._found = self._found[: self._limit]
            self.last = self._found[-1][0]
        shown = [each for _, each in self._found]
        if self.last is None or self._is_over:
            return shown, None
        return shown, pack_cursor(self.last.position)

    @property
    def is_cut_short(self) -> bool:
        """Whether it has ended before the page was full, though there are others: ask after `end`."""
        return not self._is_over and len(self._found) < self._limit
