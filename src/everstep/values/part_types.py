"""Whether a value holds something of a type, in the least time that it takes to look. Pure.

The packer writes a bytearray as if it were bytes, so a value that it packed by itself may have to be searched for one.
To ask each part for its type takes longer than packing it. So parts are looked at many at a time where they are likely
to be alike: whole lists, or, in a list of rows, what stands at the same place in each of them. To add up numbers, or to
join texts, fails at the first part that is something else, and takes a third of the time.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

CONTAINERS = frozenset((list, dict))
"""What the packer enters by itself."""
PACKED = CONTAINERS | {type(None), bool, int, float, str, bytes}
"""What it writes by itself, exactly."""

_LONG_LIST = 32
_SHORT_TEXT = 64  # longer ones take longer to join than to look at
_SMALL_NUMBER = 1 << 31  # so many of these can be added up that it never takes a long number
_ROW_PARTS_MAX = 32
_BATCH = 1024  # what is listed of so many containers stays in a processor's cache


def holds(value: Any, kinds: frozenset[type]) -> bool:
    """Whether there is something of these types in the parts of `value` that the packer writes by itself.

    Only of a value that it has packed: a number of a class of its own may do anything when it is added up.
    """
    if type(value) is list and len(value) >= _LONG_LIST:
        return _any_holds([value], kinds)
    level: list[Any] = [value]
    # Most values are small: then one level after the other is quicker than any order among them.
    while len(level) < _LONG_LIST:
        types = set(map(type, level))
        if not types.isdisjoint(kinds):
            return True
        if types.isdisjoint(CONTAINERS):
            return False
        level = gc.get_referents(*[part for part in level if type(part) in CONTAINERS])
    return _any_holds([level], kinds)


def rows_hold(rows: list[tuple[Any, ...]], kinds: frozenset[type]) -> bool:
    """Whether there is something of these types in rows that the packer has packed, and that hold no containers."""
    for columns in _columns(rows):
        for column in columns:
            if not kinds.isdisjoint(_types(column)):
                return True
    return False


def _any_holds(columns: Sequence[list[Any]], kinds: frozenset[type]) -> bool:
    """Whether there is something of these types in the columns, or in containers that are in them."""
    nested: list[list[Any]] = []
    found: set[type] = set()
    for column in columns:
        types = _types(column)
        if not types.isdisjoint(kinds):
            return True
        if not types.isdisjoint(CONTAINERS):
            nested.append(column)
            found |= types
    if not nested:
        return False
    level = nested[0] if len(nested) == 1 else list(itertools.chain.from_iterable(nested))
    if not found <= PACKED:
        level = [part for part in level if type(part) in CONTAINERS]
    if found == {list} and len(level[0]) >= _LONG_LIST:
        return _any_holds(level, kinds)
    return any(_any_holds(inside, kinds) for inside in _columns(level))


def _columns(containers: Sequence[Any]) -> Iterator[Sequence[list[Any]]]:
    """Yield all that is in these containers, some of them at a time, as lists whose items are likely to be alike."""
    for start in range(0, len(containers), _BATCH):
        some = containers[start : start + _BATCH]
        parts = gc.get_referents(*some)
        width, left = divmod(len(parts), len(some))
        if left or width > _ROW_PARTS_MAX or len(parts) < _LONG_LIST:
            yield [parts]
        else:
            yield [parts[place::width] for place in range(width)]


def _types(parts: list[Any]) -> set[type]:
    """Return the types of these parts. Numbers of all kinds count as one."""
    first: Any = parts[0] if parts else None
    kind = type(first)
    try:
        if kind is float or kind is int:
            sum(parts, 0 if kind is int and first < _SMALL_NUMBER else 0.0)
            return {float}
        if kind is str and len(first) <= _SHORT_TEXT:
            "".join(parts)
            return {str}
    except (TypeError, OverflowError):
        pass  # they are not all alike
    return set(map(type, parts))
