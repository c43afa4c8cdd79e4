"""Rows of checkpoints with their lines: lane and edges of each, newest first, page after page. Pure.

A line leads to a place of the ancestry (see `stores.protocol`): a segment, and the highest number that counts in it.
The next row of that segment ends it; if all of the segment that is shown has gone by, it leads on to what the segment
follows. So rows that are removed, hidden or filtered out need not be known: the line goes on to the nearest that is
shown, and says that it leads over a gap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from everstep.errors import InvalidInput
from everstep.history.checkpoint_tree import Segments, Walk, segments_from
from everstep.history.lanes import Lanes
from everstep.stores.protocol import Place, Stored

APART_MAX = 8
"""Lanes up to which two lines to the same checkpoint run side by side."""


class Target(NamedTuple):
    """Where a line leads: the newest row of a segment whose number is not greater."""

    segment: int
    seq: int


class Graph:
    """The lines below the rows so far."""

    def __init__(self, threads: Collection[str]) -> None:
        """`threads` are those whose checkpoints are shown: lines to others end at once."""
        self._threads = threads
        self._lanes = Lanes[Target](apart=APART_MAX)
        self._blank: set[int] = set()
        self._expected: dict[int, str | None] = {}
        """By lane: the id of the parent that it should come to; None: nobody knows."""
        self._begun: dict[int, dict[str, Any]] = {}
        """By lane: the edge that it begins with, if that is in this page."""

    def keep(self, head: Stored) -> None:
        """Keep the first lane for a head that comes later."""
        self._blank.add(self._lanes.keep(Target(head.segment, head.seq)))

    @property
    def width(self) -> int:
        """How many lanes there are side by side."""
        return self._lanes.count

    @property
    def segments(self) -> set[int]:
        """The segments that lines lead to."""
        return {target.segment for target in self._lanes.open.values()}

    @property
    def state(self) -> list[list[Any]]:
        """What a later page needs to go on."""
        lines = self._lanes.open.items()
        return [[lane, *target, self._expected.get(lane), lane in self._blank] for lane, target in sorted(lines)]

    def restore(self, state: Any) -> None:
        """Go on from a state."""
        try:
            # What comes from a cursor has gone through somebody's hands.
            lines = [(_number(lane), Target(_number(segment), _number(seq))) for lane, segment, seq, _, _ in state]
            self._lanes.restore(lines)
            for lane, _, _, expected, is_blank in state:
                if is_blank:
                    self._blank.add(lane)
                if isinstance(expected, str):
                    self._expected[lane] = expected
        except (TypeError, ValueError) as exc:
            raise InvalidInput("cursor is not one that a page of history gave; pass it as it is") from exc

    def place(self, stored: Stored, segments: Segments) -> tuple[int, list[dict[str, Any]]]:
        """Return the lane of the next row and the edges in it."""
        self._lead_on(stored.seq, segments)
        before = self._lanes.open
        met = {target for target in before.values() if _leads_to(target, stored)}
        lane, ended = self._lanes.enter(met)
        # A lane that is only kept for a head has no line in it yet, so nothing ends there.
        edges = [self._ending(line, lane, stored) for line in ended if line not in self._blank]
        self._blank.difference_update(ended)
        passing = [line for line in before if line not in ended and line not in self._blank]
        parents = self._parents(stored, segments)
        for link in self._lanes.leave(lane, list(parents)):
            edge = {"from": lane, "to": link.end, "kind": "out", "gap": False}
            if link.kind != "joins":
                self._expected[link.end] = parents[link.target]
                self._begun[link.end] = edge
            elif link.end in self._blank:
                # From here on something leads there.
                self._blank.discard(link.end)
            edges.append(edge)
        edges += [{"from": line, "to": line, "kind": "pass", "gap": False} for line in sorted(passing)]
        return lane, edges

    def _ending(self, line: int, lane: int, stored: Stored) -> dict[str, Any]:
        expected = self._expected.pop(line, None)
        is_gap = expected is not None and expected != stored.record.key.checkpoint_id
        begun = self._begun.pop(line, None)
        if begun is not None and is_gap:
            begun["gap"] = True
        return {"from": line, "to": lane, "kind": "in", "gap": is_gap}

    def _parents(self, stored: Stored, segments: Segments) -> dict[Target, str | None]:
        """Return where the lines from a row lead, and the ids of the parents that should be there."""
        parents = stored.record.parents
        if stored.seq != stored.segment:
            # What cannot be read names no parent.
            expected = None
            if parents:
                expected = parents[0].checkpoint_id
            return {Target(stored.segment, stored.seq - 1): expected}
        return {
            Target(place.segment, place.seq): place.key.checkpoint_id
            for place in self._followed(stored.segment, segments)
        }

    def _followed(self, segment: int, segments: Segments) -> list[Place]:
        """Return what a segment follows, as far as it is shown."""
        return [place for place in segments.get(segment, ()) if place.key.thread_id in self._threads]

    def _lead_on(self, seq: int, segments: Segments) -> None:
        """Let lines to segments of which nothing is left to come lead to what those follow."""
        # A set, since several lanes may lead to one target and are turned together.
        for target in {target for target in self._lanes.open.values() if target.segment > seq}:
            self._lanes.turn(target, self._beyond(target, seq, segments))

    def _beyond(self, target: Target, seq: int, segments: Segments) -> Target | None:
        seen: set[int] = set()
        while target.segment > seq and target.segment not in seen:
            seen.add(target.segment)
            follows = self._followed(target.segment, segments)
            if not follows:
                return None
            target = Target(follows[0].segment, follows[0].seq)
        return target


def needed_segments(listed: Sequence[Stored], others: Iterable[int]) -> Walk[Segments]:
    """Return what the segments of these rows and of open lines follow."""
    oldest = min([stored.seq for stored in listed], default=0)
    # What a segment follows matters once its first checkpoint, whose number is its name, has gone by.
    pending = {segment for segment in others if segment > oldest}
    for stored in listed:
        if stored.segment > oldest or stored.seq == stored.segment:
            pending.add(stored.segment)
    return (yield from segments_from(pending, lambda place: place.segment > oldest))


def _leads_to(target: Target, stored: Stored) -> bool:
    return target.segment == stored.segment and target.seq >= stored.seq


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise ValueError("no number")
    return value
