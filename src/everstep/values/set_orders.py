"""The members of a large set in order, from the order of one like it that was asked for lately.

A set is packed in order, so that equal sets give equal bytes. To sort ten thousand texts takes ten times as long as
packing them; but a set in a graph's state mostly is the one of the step before with a few members more or less. The
order of that one, with the new members at its end, is nearly sorted already, and soon finished.
"""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_WORTH = 256
"""So many members are sorted sooner than an order is looked for."""
_MEMBERS_MAX = 100_000
"""How many members all remembered orders have together."""
_ORDERS_MAX = 4
_PROBES = 8


class _Order:
    __slots__ = ("_known", "ordered")

    def __init__(self, ordered: list[Any]) -> None:
        self.ordered = ordered
        self._known: set[Any] | None = None
        """The same as a set, once it has been needed."""

    def is_like(self, members: list[Any]) -> bool:
        """Whether it seems to have many of these members."""
        ordered = self.ordered
        if type(ordered[0]) is not type(members[0]) or len(ordered) > 2 * len(members):
            return False
        some = members[:_PROBES]
        known = 0
        for member in some:
            place = bisect.bisect_left(ordered, member)
            known += place < len(ordered) and ordered[place] == member
        return 2 * known >= len(some)

    def become(self, members: list[Any]) -> None:
        """Become the order of these members: first those that it knows, which are in order, and then all others."""
        known = self._known if self._known is not None else set(self.ordered)
        added = list(itertools.filterfalse(known.__contains__, members))
        if len(members) - len(added) < len(self.ordered):
            known = set(members)
            self.ordered = list(filter(known.__contains__, self.ordered))
        else:
            known.update(added)
        self._known = known
        self.ordered += added
        self.ordered.sort()  # takes little time where most of it is in order


class SetOrders:
    """Remembers the order of a few sets. What it makes of a set does not depend on what it remembers."""

    def __init__(self) -> None:
        self._orders: deque[_Order] = deque()  # its operations are atomic; what one thread uses is not in here

    def use(self, members: list[Any], use: Callable[[list[Any]], T]) -> T:
        """Return what `use` makes of the members of a set in order, which are its own only meanwhile.

        All are texts, or all are numbers, and none is of a class of its own.
        """
        if not _WORTH <= len(members) <= _MEMBERS_MAX:
            return use(sorted(members))
        order = self._take(members)
        if order is None:
            order = _Order(sorted(members))
        else:
            order.become(members)
        used = use(order.ordered)
        self._orders.append(order)
        self._limit()
        return used

    def _take(self, members: list[Any]) -> _Order | None:
        """Take out the order of a set like this one."""
        for order in list(self._orders):
            if order.is_like(members):
                try:
                    self._orders.remove(order)
                except ValueError:
                    continue  # another thread has taken it
                return order
        return None

    def _limit(self) -> None:
        """Forget the oldest ones if they are too many, or too large together."""
        orders = list(self._orders)
        while len(orders) > _ORDERS_MAX or sum([len(order.ordered) for order in orders]) > _MEMBERS_MAX:
            oldest = orders.pop(0)
            try:
                self._orders.remove(oldest)
            except ValueError:
                pass  # another thread has taken it
