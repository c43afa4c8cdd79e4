"""Steps as bars along a time axis: how long each took, and which ran at the same time.

A checkpoint is made when its step has ended, so a bar ends there and begins as much earlier as the step took. An agent
waits for people longer than it works: long waits are cut out of the axis, and the cuts are told.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.views import history

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

_CUT_FROM = 3
"""A wait is cut to so many times the usual one."""


class _Span(NamedTuple):
    """A time with a beginning and an end, in milliseconds from some moment on."""

    start: float
    end: float


async def bars(engine: CheckpointEngine, thread_id: str, *, limit: int = 200, branches: bool = True) -> dict[str, Any]:
    """Return the newest steps of a thread and its branches as bars, the oldest first.

    `left` and `width` are parts of the whole axis, which is `shown_ms` long; `cuts` are waits that it leaves out. A
    step of which nobody noted how long it took has `duration_ms` None and no width.
    """
    page = await history.page(engine, thread_id, limit=limit, branches=branches)
    return {"thread_id": thread_id, "total": page["total"], **axis_of(page["rows"])}


def axis_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows, newest first, as bars on an axis. Rows with a time that nobody can read are left out."""
    timed: list[tuple[Mapping[str, Any], _Span]] = []
    for row in rows:
        span = _span_of(row)
        if span is not None:
            timed.append((row, span))
    timed.sort(key=lambda pair: (pair[1].start, pair[1].end))
    axis = _Axis([span for _, span in timed])
    bars = [_bar(row, axis.place(span.start), axis.place(span.end)) for row, span in timed]
    return {"shown_ms": axis.length, "cuts": axis.cuts, "bars": bars}


_OF_ROW = ("id", "ref", "thread_id", "step", "kind", "title", "lane", "created_at", "duration_ms")
"""What a bar has of its row."""


def _bar(row: Mapping[str, Any], left: float, right: float) -> dict[str, Any]:
    """Return a row as a bar between two places of the axis."""
    bar = {name: row[name] for name in _OF_ROW}
    bar["left"] = left
    bar["width"] = max(0.0, right - left)
    return bar


def _span_of(row: Mapping[str, Any]) -> _Span | None:
    try:
        ended = datetime.fromisoformat(row["created_at"])
    except ValueError:  # a checkpoint that somebody put with a time of another form
        return None
    ended = ended if ended.tzinfo is not None else ended.replace(tzinfo=UTC)
    # A checkpoint is made when its step has ended, so a bar reaches back from there.
    end = (ended - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1)
    return _Span(end - max(0.0, row["duration_ms"] or 0.0), end)


class _Axis:
    """Time without long waits."""

    def __init__(self, spans: Sequence[_Span]) -> None:
        """`spans` are in the order of their beginnings."""
        busy: list[_Span] = []
        # Steps of branches that ran at the same time are one busy time: nothing between them may be cut.
        for span in spans:
            if busy and span.start <= busy[-1].end:
                busy[-1] = _Span(busy[-1].start, max(busy[-1].end, span.end))
            else:
                busy.append(span)
        self._busy = busy
        self._shown: list[float] = []
        """Where on the axis each busy time begins."""
        waits = [after.start - before.end for before, after in itertools.pairwise(busy)]
        # The median, not the mean: one night without work would make every other wait look short.
        wait_max = _CUT_FROM * median(waits) if waits else 0.0
        at = 0.0
        found: list[tuple[float, float]] = []
        for number, span in enumerate(busy):
            if number:
                wait = waits[number - 1]
                if wait > wait_max:
                    found.append((at + wait_max / 2, wait - wait_max))
                at += min(wait, wait_max)
            self._shown.append(at)
            at += span.end - span.start
        self.length = at
        self.cuts = [{"at": self._part(place), "left_out_ms": left_out} for place, left_out in found]

    def place(self, moment: float) -> float:
        """Return where a moment of a busy time is, from 0 to 1."""
        number = max(0, bisect_right(self._busy, moment, key=lambda span: span.start) - 1)
        return self._part(self._shown[number] + moment - self._busy[number].start)

    def _part(self, place: float) -> float:
        return min(1.0, max(0.0, place / self.length)) if self.length else 0.0
