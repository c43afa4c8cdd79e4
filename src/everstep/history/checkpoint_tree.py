"""Who came from whom: what follows a checkpoint, common ancestors, and the tree that people see. Pure.

Ancestry is read from runs (see `stores.protocol`), never from parents alone: a parent that retention has removed would
cut the chain, and a guess across the cut would give a wrong merge base.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import TypeVar

from everstep.history.adapter import described, is_own
from everstep.reports import CheckpointTree, TreeEdge, TreeNode
from everstep.stores.protocol import Hidden, Key, Place, Stored, Thread, Write

T = TypeVar("T")


def later(target: Stored, newest: int, started: Sequence[int], thread_id: str) -> Walk[list[Hidden]]:
    """Return the stretches of what follows `target` in its namespace and is not hidden as a whole.

    One stretch over all segments if nothing else that is visible arrived later, as usual; else one for each segment.
    `started` are the visible segments of the namespace that began after it.
    """
    namespace = target.record.key.namespace
    following = []
    for segment in started:
        known = yield [segment]
        is_following = yield from Ancestors(known.get(segment, ()), thread_id).hold(target.place)
        if is_following:
            following.append(segment)
    if len(following) == len(started):
        return [Hidden(namespace, target.seq, newest)]
    own = Hidden(namespace, target.seq, newest, target.segment)
    return [own, *(Hidden(namespace, segment - 1, newest, segment) for segment in following)]


def all_later(thread: Thread, target: Stored) -> list[Hidden]:
    """Return the stretches of all that follows `target`, hidden or not, segment by segment."""
    namespace = target.record.key.namespace
    newest = thread.newest[target.record.key.namespace]
    segments = [Hidden(namespace, segment - 1, newest, segment) for segment in sorted(_following(thread, target))]
    return [Hidden(namespace, target.seq, newest, target.segment), *segments]


def _following(thread: Thread, target: Stored) -> set[int]:
    """Return the segments of the thread that came from `target` or from what followed it."""
    found: set[int] = set()
    for segment in sorted(thread.segments):  # a segment comes after what it follows
        for place in thread.segments[segment]:
            if place.key.thread_id == thread.thread_id and (
                place.segment in found or (place.segment == target.segment and place.seq >= target.seq)
            ):
                found.add(segment)
    return found


def writes(found: Iterable[Write], key: Key, thread: Thread, others: Iterable[Write] = ()) -> list[Hidden]:
    """Return the stretches of these pending writes, which are visible.

    What is hidden already is not among them, nor are the `others`, which are visible too.
    """
    gaps = [h.to for held in thread.hidden.values() for h in held if (h.namespace, h.writes_of) == key[1:]]
    gaps += [write.seq for write in others]
    stretches: list[Hidden] = []
    for seq in sorted(write.seq for write in found):
        if stretches and not any(stretches[-1].to < gap < seq for gap in gaps):
            stretches[-1] = stretches[-1]._replace(to=seq)
        else:
            stretches.append(Hidden(key.namespace, seq - 1, seq, None, key.checkpoint_id))
    return stretches


def is_hidden(stored: Stored, stretches: Iterable[Hidden]) -> bool:
    """Whether one of these stretches hides the checkpoint."""
    return is_place_hidden(stored.record.key.namespace, stored.segment, stored.seq, stretches)


def is_place_hidden(namespace: str, segment: int, seq: int, stretches: Iterable[Hidden]) -> bool:
    """Whether one of these stretches hides the checkpoint of this place."""
    return any(
        h.writes_of is None and h.namespace == namespace and h.segment in (None, segment) and h.after < seq <= h.to
        for h in stretches
    )


def is_among(write: Write, key: Key, stretches: Iterable[Hidden]) -> bool:
    """Whether one of these stretches holds a pending write of the checkpoint."""
    return any((h.namespace, h.writes_of) == key[1:] and h.after < write.seq <= h.to for h in stretches)


def is_unmoved(stored: Stored, bases: Sequence[Place]) -> bool:
    """Whether nothing happened since one of these places: it is that checkpoint, or the beginning of a branch there."""
    key = stored.record.key
    parents = stored.record.parents
    if stored.place in bases:
        return True
    begins = len(parents) == 1 and parents[0].thread_id != key.thread_id
    # Where a branch begins under its origin's id, so does a branch of it.
    return begins and any(place.key == parents[0] or place.key[1:] == key[1:] for place in bases)


# -- ancestors ---------------------------------------------------------------------------------------------------------

Segments = Mapping[int, Sequence[Place]]
"""What each segment of a family follows."""

Walk = Generator[Collection[int], Segments, T]
"""A walk through ancestry. It yields the segments it must know about, and is sent what at least these follow.

Everything that a segment follows has a smaller seq than the segment. So walks go down by seq, and stop as soon as what
is left cannot change the answer: they look at what lies between, not at the whole family.
"""

_OURS = 1
_THEIRS = 2
_COVERED = 4
_SIDES = _OURS | _THEIRS


class _Frontier:
    """The places that a search for common ancestors has still to look at, newest first."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int]] = []
        self._places: dict[tuple[int, int], tuple[Place, int]] = {}
        self._open = {_OURS: 0, _THEIRS: 0}

    def add(self, place: Place, marks: int) -> None:
        where = -place.seq, place.segment
        before = self._places.get(where)
        if before is None:
            heapq.heappush(self._order, where)
        else:
            self._count(before[1], -1)
            marks |= before[1]
        self._places[where] = place, marks
        self._count(marks, 1)

    def take(self) -> tuple[Place, int]:
        place, marks = self._places.pop(heapq.heappop(self._order))
        self._count(marks, -1)
        return place, marks

    def has(self, side: int) -> bool:
        """Whether something is left of a side that no common ancestor covers."""
        return self._open[side] > 0

    @property
    def newest(self) -> int:
        return -self._order[0][0]

    @property
    def segments(self) -> set[int]:
        return {segment for _, segment in self._order}

    def _count(self, marks: int, change: int) -> None:
        for side in (_OURS, _THEIRS):
            if marks & side and not marks & _COVERED:
                self._open[side] += change


class _Reached:
    """The segments that a search has come to, with the marks of who came there."""

    def __init__(self) -> None:
        self._marks: dict[int, int] = {}
        self._alone: dict[int, list[int]] = {_OURS: [], _THEIRS: []}

    def marks(self, segment: int) -> int:
        return self._marks.get(segment, 0)

    def set(self, segment: int, marks: int) -> None:
        self._marks[segment] = marks
        if marks in self._alone:
            heapq.heappush(self._alone[marks], segment)

    def has_alone(self, side: int, newest: int) -> bool:
        """Whether a segment that only this side came to begins before `newest`, so that the other may come there."""
        segments = self._alone[side]
        while segments and self._marks[segments[0]] != side:
            heapq.heappop(segments)
        return bool(segments) and segments[0] <= newest


def common_ancestors(ours: Iterable[Place], theirs: Iterable[Place]) -> Walk[list[Place]]:
    """Return the best common ancestors of some places and some others: not ancestors of one another. Newest first."""
    frontier = _Frontier()
    reached = _Reached()
    for side, places in ((_OURS, ours), (_THEIRS, theirs)):
        for place in places:
            frontier.add(place, side)
    best: list[Place] = []
    while _can_meet(frontier, reached):
        place, marks = frontier.take()
        before = reached.marks(place.segment)
        marks |= before
        if marks & _SIDES == _SIDES and not marks & _COVERED:
            best.append(place)
            marks |= _COVERED  # as is all that it follows
        if marks == before:
            continue
        reached.set(place.segment, marks)
        spread = marks & ~before
        if marks & _COVERED:
            spread = 0 if before & _COVERED else _COVERED
        if spread:
            known = yield {place.segment, *frontier.segments}
            for followed in known.get(place.segment, ()):
                frontier.add(followed, spread)
    return best


def _can_meet(frontier: _Frontier, reached: _Reached) -> bool:
    """Whether the two sides may still come to the same segment."""
    for side, other in ((_OURS, _THEIRS), (_THEIRS, _OURS)):
        if frontier.has(side) and (frontier.has(other) or reached.has_alone(other, frontier.newest)):
            return True
    return False


class Ancestors:
    """The ancestors of some places, themselves included, found as far down as somebody asks."""

    def __init__(self, places: Iterable[Place], thread_id: str | None = None) -> None:
        """With `thread_id` only the ways that stay in that thread count."""
        self._thread_id = thread_id
        self._pending: list[tuple[int, Place]] = []
        self._reached: dict[int, int] = {}
        for place in places:
            self._add(place)

    def _add(self, place: Place) -> None:
        if self._thread_id is None or place.key.thread_id == self._thread_id:
            heapq.heappush(self._pending, (-place.seq, place))

    def hold(self, place: Place) -> Walk[bool]:
        """Return whether `place` is among them."""
        while self._pending and self._pending[0][1].seq >= place.seq:
            _, found = heapq.heappop(self._pending)
            if self._reached.get(found.segment, 0) >= found.seq:
                continue
            is_new = found.segment not in self._reached
            self._reached[found.segment] = found.seq
            if is_new:
                known = yield {found.segment, *(other.segment for _, other in self._pending)}
                for followed in known.get(found.segment, ()):
                    self._add(followed)
        return self._reached.get(place.segment, 0) >= place.seq


# -- the tree ----------------------------------------------------------------------------------------------------------


def tree(
    thread_id: str, listed: Sequence[Stored], heads: Collection[Key], segments: Segments, total: int
) -> CheckpointTree:
    """Return checkpoints (newest first) as nodes and edges. An edge over removed checkpoints says `gap`."""
    links = _Links(listed, segments)
    return {
        "thread_id": thread_id,
        "total_checkpoints": total,
        "nodes": [_node(stored, heads) for stored in listed],
        "edges": [edge for stored in listed for edge in links.edges(stored)],
    }


def tree_segments(listed: Sequence[Stored]) -> Walk[Segments]:
    """Return the segments that tell how listed checkpoints hang together. What is older than all says nothing."""
    oldest = min([stored.seq for stored in listed], default=0)
    pending = {stored.segment for stored in listed}
    found: dict[int, Sequence[Place]] = {}
    while pending:
        known = yield pending
        found.update((segment, known.get(segment, ())) for segment in pending)
        followed = {place for segment in pending for place in found[segment]}
        pending = {place.segment for place in followed if place.seq >= oldest} - found.keys()
    return found


def _node(stored: Stored, heads: Collection[Key]) -> TreeNode:
    record = stored.record
    tags, summary = described(record)
    return {
        "id": record.key.checkpoint_id,
        "thread_id": record.key.thread_id,
        "namespace": record.key.namespace,
        "step": record.step,
        "tags": list(tags),
        "summary": summary,
        "created_at": record.created_at,
        "next_node": record.next_node,
        "trigger": record.trigger,
        "parents": [parent.checkpoint_id for parent in record.parents],
        "size_bytes": sum(record.sizes),
        "head": record.key in heads,
        "branch": branch_name(record.tags) if record.step == 0 or not is_own(record.kind) else None,
        "pinned": stored.pinned,
        "hidden": stored.hidden,
    }


def branch_name(tags: Sequence[str]) -> str | None:
    """Return the name in the tags of a branch's first checkpoint."""
    return tags[1] if len(tags) >= 2 and tags[0] == "branch" else None


class _Links:
    """Finds the nearest listed ancestors of listed checkpoints."""

    def __init__(self, listed: Sequence[Stored], segments: Segments) -> None:
        self._ancestry = segments
        self._keys = {stored.record.key for stored in listed}
        self._runs: dict[int, list[tuple[int, Key]]] = {}
        self._before: dict[Key, Key | None] = {}
        for stored in reversed(listed):
            segment = self._runs.setdefault(stored.segment, [])
            self._before[stored.record.key] = segment[-1][1] if segment else None
            segment.append((stored.seq, stored.record.key))

    def edges(self, stored: Stored) -> list[TreeEdge]:
        child = stored.record.key
        parents = stored.record.parents
        before = self._before[child]
        if before is not None:
            found = [before]
        else:
            follows = self._ancestry.get(stored.segment, ())
            found = [key for place in follows if (key := self._nearest(place)) is not None]
        return [
            {
                "from": key.checkpoint_id,
                "to": child.checkpoint_id,
                "from_thread": key.thread_id,
                "to_thread": child.thread_id,
                "gap": bool(parents) and key not in parents,
            }
            for key in dict.fromkeys(found)
        ]

    def _nearest(self, place: Place) -> Key | None:
        """Return the newest listed checkpoint at or before `place`, in its segment or in what that follows."""
        pending = [place]
        seen = set[int]()
        while pending:
            place = pending.pop()
            for seq, key in reversed(self._runs.get(place.segment, ())):
                if seq <= place.seq:
                    return key
            if place.segment not in seen:
                seen.add(place.segment)
                pending.extend(reversed(self._ancestry.get(place.segment, ())))
        return None
