"""Lists of the Redis store: rows as scripts give them, and which of them a query asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from everstep.stores.protocol import Key, Query, Stored
from everstep.stores.records import matches
from everstep.stores.redis.items import unpack_item


class ListRow(NamedTuple):
    """A line of a list, before its checkpoint is unpacked."""

    seq: int
    key: Key
    item: bytes
    marks: int
    """1: it is pinned, 2: a branch began there, 4: it is hidden."""
    family: str

    @property
    def is_pinned(self) -> bool:
        return bool(self.marks & 1)

    @property
    def is_protected(self) -> bool:
        return bool(self.marks & 3)

    @property
    def is_hidden(self) -> bool:
        return bool(self.marks & 4)


def page_rows(thread_id: str, namespace: str, reply: Sequence[Any]) -> list[ListRow]:
    """Return the rows of a page that a script gave."""
    family = reply[1].decode()
    flat = reply[2]
    rows: list[ListRow] = []
    for name, seq, item, marks in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True):
        rows.append(ListRow(number(seq), Key(thread_id, namespace, name.decode()), item, marks, family))
    return rows


def range_of(query: Query) -> tuple[str, str]:
    """Return the numbers between which a query's checkpoints lie, as a sorted set takes them."""
    low = "-inf" if query.after_seq is None else f"({query.after_seq}"
    return low, "+inf" if query.before_seq is None else f"({query.before_seq}"


# A page of thousands of rows is looked through by these two numbers; to decode each of them would take far
# longer.
_FIRST = re.compile(rb'{"digest":"[0-9a-f]+","added":\d+,"segment":(\d+),"step":(-?\d+),')


def _first(row: ListRow) -> tuple[int, int]:
    """Return segment and step, which come first in an item."""
    found = _FIRST.match(row.item)
    if found is None:
        # This says what is wrong with it.
        unpack_item(row.item, row.key, row.seq, row.family, whole=False)
        raise AssertionError("an item that can be read begins as it should")
    return int(found[1]) or row.seq, int(found[2])


def listed(row: ListRow) -> Stored:
    """Return a row as callers see it."""
    return unpack_item(row.item, row.key, row.seq, row.family, pinned=row.is_pinned, hidden=row.is_hidden, whole=False)


def is_asked_for(query: Query, row: ListRow, wanted: dict[str, bytes]) -> bool:
    """Whether a query asks for this row."""
    if not _is_in_range(query, row) or not _is_in_segment(query, row):
        return False
    if query.hidden != "also":
        # The segment of a damaged one is not known, nor whether it is hidden: this raises then.
        _first(row)
        if row.is_hidden != (query.hidden == "only"):
            return False
    if not wanted:
        return True
    stored = unpack_item(row.item, row.key, row.seq, row.family, whole=False)
    return matches(stored.record.metadata, wanted)


def _is_in_range(query: Query, row: ListRow) -> bool:
    if query.before_id is not None and row.key.checkpoint_id >= query.before_id:
        return False
    if query.before_seq is not None and row.seq >= query.before_seq:
        return False
    if query.after_seq is not None and row.seq <= query.after_seq:
        return False
    return query.protected is None or row.is_protected == query.protected


def _is_in_segment(query: Query, row: ListRow) -> bool:
    if query.step_max is None and query.segment is None:
        return True
    segment, step = _first(row)
    if query.step_max is not None and step > query.step_max:
        return False
    return query.segment is None or query.segment == segment


def number(score: bytes) -> int:
    """Return a score of a sorted set, which is a whole number, as one."""
    return int(float(score))
