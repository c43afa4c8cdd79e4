"""Which checkpoints a policy lets go: functions of metadata. Pure.

Everything works on lines oldest first, visible and hidden ones apart. Heads, pinned checkpoints and those where living
branches began never count and never go: they stay on top of N.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from everstep.config import CheckpointGC

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# Further away than any real time, and still within what an array of 64-bit numbers holds.
_NEVER = 2**62


class Item(NamedTuple):
    """What a policy looks at."""

    seq: int
    step: int
    created_at: str


def let_go(policy: CheckpointGC, param: float, items: Sequence[Item], now: datetime) -> list[Item]:
    """Return which of `items` (oldest first; none of them spared) the policy does not keep."""
    return _POLICIES[policy](items, param, now)


def _keep_all(_items: Sequence[Item], _param: float, _now: datetime) -> list[Item]:
    return []


def _keep_last_n(items: Sequence[Item], count: float, _now: datetime) -> list[Item]:
    return list(items[: max(len(items) - int(count), 0)])


def _keep_age(items: Sequence[Item], seconds: float, now: datetime) -> list[Item]:
    return [item for item in items if is_older(moment_of(item.created_at), seconds, now)]


def moment_of(created_at: str) -> int:
    """Return when something was made, in microseconds. A time that cannot be read is one that never comes."""
    try:
        return (datetime.fromisoformat(created_at) - _EPOCH) // _MICROSECOND
    except (ValueError, TypeError, OverflowError):
        return _NEVER


def is_older(moment: int, seconds: float, now: datetime) -> bool:
    """Whether a moment is longer ago than that."""
    return ((now - _EPOCH) // _MICROSECOND - moment) / 1_000_000 > seconds


def _keep_milestones(items: Sequence[Item], count: float, _now: datetime) -> list[Item]:
    """Keep the first, the last, and those on a grid over the whole history; its stride doubles as history grows."""
    grid = grid_of(items, int(count))
    kept = [item for item in items if grid.holds(item.step) or item in (items[0], items[-1])]
    # Steps may not tell checkpoints apart, as after a rewind: then every second one goes, by order.
    while len(kept) > count:
        if len(kept) > 2:
            kept = [*kept[:-1:2], kept[-1]]
        else:
            kept = kept[-1:]
    keep = {item.seq for item in kept}
    return [item for item in items if item.seq not in keep]


class Grid(NamedTuple):
    """The steps that are milestones: those that leave the remainder `anchor` when divided by `stride`."""

    stride: int
    anchor: int

    def holds(self, step: int) -> bool:
        """Whether the checkpoint of a step is on the grid."""
        return step % self.stride == self.anchor

    def fits(self, span: int, count: int) -> bool:
        """Whether no more than `count` checkpoints are kept over so many steps."""
        return span // self.stride + 1 + (span % self.stride > 0) <= count


def grid_of(items: Sequence[Item], count: int) -> Grid:
    """Return the finest grid on which no more than `count` of these stay, first and last included."""
    if not items:
        return Grid(1, 0)
    steps = [item.step for item in items]
    span = max(steps) - min(steps)
    stride = 1
    # Doubled, so that what was kept on a finer grid is still on the coarser one.
    while not Grid(stride, 0).fits(span, count) and stride <= span:
        stride *= 2
    remainders = Counter(step % stride for step in steps)
    anchor = steps[0] % stride
    most, held = remainders.most_common(1)[0]
    # Earlier thinning left most of them on one remainder. If the first of those was deleted, the grid stays.
    if remainders[anchor] * 2 < held:
        anchor = most
    return Grid(stride, anchor)


_POLICIES: dict[CheckpointGC, Callable[[Sequence[Item], float, datetime], list[Item]]] = {
    CheckpointGC.KEEP_ALL: _keep_all,
    CheckpointGC.KEEP_LAST_N: _keep_last_n,
    CheckpointGC.KEEP_AGE: _keep_age,
    CheckpointGC.KEEP_MILESTONES: _keep_milestones,
}
