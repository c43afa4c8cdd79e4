"""The newest checkpoints of many lines, without a look at all of each. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from everstep.stores.protocol import Stored

L = TypeVar("L")
_GROWTH = 4


def newest_of(
    lines: Sequence[tuple[int, L]], limit: int, rows: Callable[[Sequence[L], int, int], Sequence[Stored]]
) -> list[Stored]:
    """Return the newest visible checkpoints of lines, each given with its highest seq; newest first.

    `rows` gives, of each of some lines, up to so many of the newest after a seq. It is first asked for the lines whose
    highest seq is among the highest. If some of what stands there is hidden, more lines are looked at.
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
