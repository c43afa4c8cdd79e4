"""The newest checkpoints of many lines, without a look at all of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from everstep.stores.protocol import Key, Newest, Query, Stored

L = TypeVar("L")
_GROWTH = 4


class NewestLine(NamedTuple):
    """A line of a thread that may be among those whose newest checkpoints are asked for."""

    thread_id: str
    namespace: str
    head: Key | None
    last: int
    """The highest seq; 0: it has no checkpoints."""
    total: int = 0
    """How many checkpoints it has, where the store keeps count."""
    is_hiding: bool = False
    """Whether something of it, or of its thread, is hidden."""
    ref: int = 0
    """The store's own number of it."""


def newest(
    thread_id: str,
    limit: int,
    without: str | None,
    born: Mapping[str, Sequence[str]],
    lines: Sequence[NewestLine],
    rows: Callable[[Sequence[NewestLine], int, int], Sequence[Stored]],
    count: Callable[[Sequence[NewestLine]], int],
) -> Newest | None:
    """Return the newest checkpoints of a thread and of its branches: see `Store.newest`.

    `born` are the branches of each thread, and `lines` the lines of all threads that may be asked for. `rows` gives
    their checkpoints as `newest_of` takes them, and `count` says how many of some lines are not hidden.
    """
    alive = {line.thread_id for line in lines if line.head is not None}
    names = frozenset(descent(thread_id, born, alive.__contains__))
    if not names:
        return None
    asked: list[NewestLine] = []
    for line in lines:
        if line.last and line.thread_id in names and line.namespace != without:
            asked.append(line)
    heads = frozenset(line.head for line in asked if line.head is not None)
    return Newest(newest_of([(line.last, line) for line in asked], limit, rows), heads, count(asked))


def visible(count: Callable[[Query], int], lines: Sequence[NewestLine]) -> int:
    """Return how many checkpoints of some lines are not hidden; `count` is asked only where something is."""
    total = 0
    for line in lines:
        if line.is_hiding:
            total += count(Query(thread_id=line.thread_id, namespace=line.namespace))
        else:
            total += line.total
    return total


def newest_of(
    lines: Sequence[tuple[int, L]], limit: int, rows: Callable[[Sequence[L], int, int], Sequence[Stored]]
) -> list[Stored]:
    """Return the newest visible checkpoints of lines, each given with its highest seq; newest first.

    `rows` gives, of each of some lines, up to so many of the newest after a seq. It is first asked for the lines whose
    highest seq is among the highest. If some of their checkpoints are hidden, more lines are looked at.
    """
    if not limit:
        return []
    ordered = sorted(lines, key=lambda line: line[0], reverse=True)
    size = limit
    while True:
        chosen = ordered[:size]
        after = 0
        if len(chosen) == size < len(ordered):
            # What is older than this may be in lines that are not asked yet.
            after = chosen[-1][0] - 1
        found: Sequence[Stored] = ()
        if chosen:
            found = rows([line for _, line in chosen], after, limit)
        if len(found) >= limit or after == 0:
            return sorted(found, key=lambda stored: stored.seq, reverse=True)[:limit]
        size *= _GROWTH


def descent(thread_id: str, born: Mapping[str, Sequence[str]], has_head: Callable[[str], bool]) -> list[str]:
    """Return a thread, its branches, theirs, and so on; one without a head is left out with what came from it."""
    found: dict[str, None] = {}
    pending = [thread_id]
    while pending:
        name = pending.pop()
        if name not in found and has_head(name):
            found[name] = None
            pending.extend(born.get(name, ()))
    return list(found)
