"""Lists of the Redis store: rows as scripts give them, and which of them a query asks for. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from everstep.stores.covers import Covers
from everstep.stores.protocol import Key, Query, Stored
from everstep.stores.records import matches
from everstep.stores.redis_items import unpack_covers, unpack_item


class Row(NamedTuple):
    """A line of a list, before its checkpoint is unpacked."""

    seq: int
    key: Key
    item: bytes
    marks: int
    family: str
    hidden: Covers


def page_rows(thread_id: str, namespace: str, reply: Sequence[Any]) -> list[Row]:
    """Return the rows of a page that a script gave."""
    family, hidden, flat = reply[1].decode(), unpack_covers(reply[2]), reply[3]
    return [
        Row(number(flat[n + 1]), Key(thread_id, namespace, flat[n].decode()), flat[n + 2], flat[n + 3], family, hidden)
        for n in range(0, len(flat), 4)
    ]


def range_of(query: Query) -> tuple[str, str]:
    """Return the numbers between which a query's checkpoints lie, as a sorted set takes them."""
    low = "-inf" if query.after_seq is None else f"({query.after_seq}"
    return low, "+inf" if query.before_seq is None else f"({query.before_seq}"


_FIRST = re.compile(rb'{"digest":"[0-9a-f]+","added":\d+,"run":(\d+),"step":(-?\d+),')


def _first(row: Row) -> tuple[int, int]:
    """Return run and step, which stand first in an item."""
    found = _FIRST.match(row.item)
    if found is None:
        unpack_item(row.item, row.key, row.seq, row.family, whole=False)  # says what is wrong with it
        raise AssertionError("an item that can be read begins as it should")
    return int(found[1]) or row.seq, int(found[2])


def listed(row: Row) -> Stored:
    """Return a row as callers see it."""
    return unpack_item(
        row.item, row.key, row.seq, row.family, pinned=bool(row.marks & 1), hidden=_is_hidden(row), whole=False
    )


def _is_hidden(row: Row) -> bool:
    return bool(row.hidden) and row.hidden.hide(row.key.namespace, row.seq, _first(row)[0])


def is_asked_for(query: Query, row: Row, wanted: dict[str, bytes]) -> bool:
    """Whether a query asks for this row."""
    if (
        (query.before_id is not None and row.key.checkpoint_id >= query.before_id)
        or (query.before_seq is not None and row.seq >= query.before_seq)
        or (query.after_seq is not None and row.seq <= query.after_seq)
        or (query.spared is not None and bool(row.marks) != query.spared)
    ):
        return False
    if query.step_max is not None or query.run is not None:
        run, step = _first(row)
        if (query.step_max is not None and step > query.step_max) or query.run not in (None, run):
            return False
    if query.hidden != "also" and _is_hidden(row) != (query.hidden == "only"):
        return False
    if not wanted:
        return True
    stored = unpack_item(row.item, row.key, row.seq, row.family, whole=False)
    return matches(stored.record.metadata, wanted)


def number(score: bytes) -> int:
    """Return a score of a sorted set, which is a whole number, as one."""
    return int(float(score))
