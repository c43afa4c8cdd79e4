"""Who came from whom: what follows a checkpoint, common ancestors, and the tree that people see. Pure.

Ancestry is read from segments (see `stores.protocol`), never from parents alone. A parent that retention has removed
would cut the chain, and a guess across the cut would give a wrong merge base.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from everstep.history.adapter import described, is_own
from everstep.reports import CheckpointTree, TreeEdge, TreeNode
from everstep.stores.protocol import Hidden, Key, Place, Stored, Thread, Write

T = TypeVar("T")


def later(target: Stored, newest: int, started: Sequence[int], thread_id: str) -> Walk[list[Hidden]]:
    """Return the stretches of what follows `target` in its namespace and is not hidden as a whole.

    Usually nothing else that is visible arrived later, and one stretch over all segments is enough. Otherwise there is
    one for each segment. `started` are the visible segments of the namespace that began after the target.
    """
    namespace = target.record.key.namespace
    following = []
    for segment in started:
        known = yield [segment]
        is_following = yield from Ancestors(known.get(segment, ()), thread_id).hold(target.place)
        if is_following:
            following.append(segment)
    # All that is visible and newer follows the target. Then one stretch does, and it stays one however many
    # segments come.
    if len(following) == len(started):
        return [Hidden(namespace, target.seq, newest)]
    return _stretches_after(target, newest, following)


def all_later(thread: Thread, target: Stored) -> list[Hidden]:
    """Return the stretches of all that follows `target`, hidden or not, segment by segment."""
    newest = thread.newest[target.record.key.namespace]
    return _stretches_after(target, newest, sorted(_following(thread, target)))


def _stretches_after(target: Stored, newest: int, following: Iterable[int]) -> list[Hidden]:
    """Return the rest of the target's own segment, and the segments that follow it as a whole."""
    namespace = target.record.key.namespace
    stretches = [Hidden(namespace, target.seq, newest, target.segment)]
    for segment in following:
        # A segment is named by its first checkpoint, which belongs to the stretch: so it begins one before.
        stretches.append(Hidden(namespace, segment - 1, newest, segment))
    return stretches


def _following(thread: Thread, target: Stored) -> set[int]:
    """Return the segments of the thread that came from `target` or from what followed it."""
    found: set[int] = set()
    # In this order, since a segment comes after what it follows: one pass finds them all.
    for segment in sorted(thread.segments):
        for place in thread.segments[segment]:
            # A way that leaves the thread and comes back, over a merge, does not make a segment part of the rewind.
            if place.key.thread_id != thread.thread_id:
                continue
            is_behind_target = place.segment == target.segment and place.seq >= target.seq
            if is_behind_target or place.segment in found:
                found.add(segment)
    return found


def writes(found: Iterable[Write], key: Key, thread: Thread, others: Iterable[Write] = ()) -> list[Hidden]:
    """Return the stretches of these pending writes, which are visible.

    What is hidden already is not among them, nor are the `others`, which are visible too.
    """
    # A stretch hides all numbers between its ends, so it must not reach over a write that is visible or that
    # another operation hides.
    gaps = [write.seq for write in others]
    for stretch in chain.from_iterable(thread.hidden.values()):
        if _hides_writes_of(stretch, key):
            gaps.append(stretch.to)
    stretches: list[Hidden] = []
    for seq in sorted(write.seq for write in found):
        # Writes with nothing else between them share a stretch.
        if stretches and not any(stretches[-1].to < gap < seq for gap in gaps):
            stretches[-1] = stretches[-1]._replace(to=seq)
        else:
            stretches.append(Hidden(key.namespace, seq - 1, seq, None, key.checkpoint_id))
    return stretches


def _hides_writes_of(stretch: Hidden, key: Key) -> bool:
    return (stretch.namespace, stretch.writes_of) == (key.namespace, key.checkpoint_id)


def is_hidden(stored: Stored, stretches: Iterable[Hidden]) -> bool:
    """Whether one of these stretches hides the checkpoint."""
    return is_place_hidden(stored.record.key.namespace, stored.segment, stored.seq, stretches)


def is_place_hidden(namespace: str, segment: int, seq: int, stretches: Iterable[Hidden]) -> bool:
    """Whether one of these stretches hides the checkpoint of this place."""
    for stretch in stretches:
        if stretch.writes_of is not None or stretch.namespace != namespace:
            continue
        if stretch.segment in (None, segment) and stretch.after < seq <= stretch.to:
            return True
    return False


def is_among(write: Write, key: Key, stretches: Iterable[Hidden]) -> bool:
    """Whether one of these stretches holds a pending write of the checkpoint."""
    return any(_hides_writes_of(stretch, key) and stretch.after < write.seq <= stretch.to for stretch in stretches)


def is_unmoved(stored: Stored, bases: Sequence[Place]) -> bool:
    """Whether nothing happened since one of these places: it is that checkpoint, or the beginning of a branch there."""
    if stored.place in bases:
        return True
    key = stored.record.key
    parents = stored.record.parents
    begins_branch = len(parents) == 1 and parents[0].thread_id != key.thread_id
    if not begins_branch:
        return False
    # Where a branch begins under its origin's id, so does a branch of it: then only the thread differs.
    return any(place.key == parents[0] or place.key[1:] == key[1:] for place in bases)


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
        # A heap of numbers beside a dictionary of places: the marks of a place may change while it waits in
        # the heap.
        self._order: list[tuple[int, int]] = []
        self._places: dict[tuple[int, int], tuple[Place, int]] = {}
        self._open = {_OURS: 0, _THEIRS: 0}

    def add(self, place: Place, marks: int) -> None:
        where = -place.seq, place.segment
        before = self._places.get(where)
        if before is None:
            heapq.heappush(self._order, where)
        else:
            # Both sides came here: it is counted once, under the marks of both.
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
        # A segment that got further marks since it was pushed is no longer this side's alone.
        while segments and self._marks[segments[0]] != side:
            heapq.heappop(segments)
        return bool(segments) and segments[0] <= newest


def common_ancestors(ours: Iterable[Place], theirs: Iterable[Place]) -> Walk[list[Place]]:
    """Return the best common ancestors of some places and some others, newest first.

    None of them is an ancestor of another one.
    """
    frontier = _Frontier()
    reached = _Reached()
    for place in ours:
        frontier.add(place, _OURS)
    for place in theirs:
        frontier.add(place, _THEIRS)
    best: list[Place] = []
    while _can_meet(frontier, reached):
        place, marks = frontier.take()
        before = reached.marks(place.segment)
        marks |= before
        # Both sides have come here, and no better ancestor covers it: this is one of the best.
        if marks & _SIDES == _SIDES and not marks & _COVERED:
            best.append(place)
            marks |= _COVERED  # as is all that it follows
        if marks == before:
            continue
        reached.set(place.segment, marks)
        spread = _marks_to_spread(before, marks)
        if spread:
            # All segments of the frontier are asked for together: one reading for many steps of the walk.
            known = yield {place.segment, *frontier.segments}
            for followed in known.get(place.segment, ()):
                frontier.add(followed, spread)
    return best


def _marks_to_spread(before: int, marks: int) -> int:
    """Return what is news to the places that a segment follows, when its marks changed."""
    if not marks & _COVERED:
        return marks & ~before
    # Below a common ancestor nothing is better than it, so who came there no longer matters.
    if before & _COVERED:
        return 0
    return _COVERED


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
        # Not further down than the place that is asked for. The next question goes on from where this one
        # stopped.
        while self._pending and self._pending[0][1].seq >= place.seq:
            _, found = heapq.heappop(self._pending)
            if self._reached.get(found.segment, 0) >= found.seq:
                continue
            is_new = found.segment not in self._reached
            self._reached[found.segment] = found.seq
            # What a segment follows is the same wherever it was entered, and is looked up once.
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
    nodes: list[TreeNode] = []
    edges: list[TreeEdge] = []
    for stored in listed:
        nodes.append(_node(stored, heads))
        edges.extend(links.edges(stored))
    return {"thread_id": thread_id, "total_checkpoints": total, "nodes": nodes, "edges": edges}


def tree_segments(listed: Sequence[Stored]) -> Walk[Segments]:
    """Return the segments that tell how the listed checkpoints hang together.

    What a segment follows is not looked up if it is older than all of them: nothing down there is listed.
    """
    oldest = min([stored.seq for stored in listed], default=0)
    return (yield from segments_from({stored.segment for stored in listed}, lambda place: place.seq >= oldest))


def segments_from(first: Collection[int], is_needed: Callable[[Place], bool]) -> Walk[Segments]:
    """Return what these segments follow, and what those follow where a place is needed, down to the last of them."""
    found: dict[int, Sequence[Place]] = {}
    pending = set(first)
    while pending:
        known = yield pending
        followed: set[int] = set()
        for segment in pending:
            found[segment] = known.get(segment, ())
            for place in found[segment]:
                if is_needed(place):
                    followed.add(place.segment)
        pending = followed - found.keys()
    return found


def _node(stored: Stored, heads: Collection[Key]) -> TreeNode:
    record = stored.record
    tags, summary = described(record)
    branch = None
    # Only the first checkpoint of a branch names it. An adapter numbers steps in its own way, so all of its count.
    if record.step == 0 or not is_own(record.kind):
        branch = branch_name(record.tags)
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
        "branch": branch,
        "pinned": stored.pinned,
        "hidden": stored.hidden,
    }


def branch_name(tags: Sequence[str]) -> str | None:
    """Return the name in the tags of a branch's first checkpoint."""
    if len(tags) >= 2 and tags[0] == "branch":
        return tags[1]
    return None


class _Links:
    """Finds the nearest listed ancestors of listed checkpoints."""

    def __init__(self, listed: Sequence[Stored], segments: Segments) -> None:
        self._ancestry = segments
        self._listed_in: dict[int, list[tuple[int, Key]]] = {}
        self._before: dict[Key, Key] = {}
        # Oldest first, so that the last of a segment so far is the one before.
        for stored in reversed(listed):
            key = stored.record.key
            segment = self._listed_in.setdefault(stored.segment, [])
            if segment:
                self._before[key] = segment[-1][1]
            segment.append((stored.seq, key))

    def edges(self, stored: Stored) -> list[TreeEdge]:
        """Return the edges from its nearest listed ancestors to a checkpoint."""
        child = stored.record.key
        parents = stored.record.parents
        edges: list[TreeEdge] = []
        for key in self._ancestors(stored):
            edge: TreeEdge = {
                "from": key.checkpoint_id,
                "to": child.checkpoint_id,
                "from_thread": key.thread_id,
                "to_thread": child.thread_id,
                "gap": bool(parents) and key not in parents,
            }
            edges.append(edge)
        return edges

    def _ancestors(self, stored: Stored) -> Iterable[Key]:
        """Return the nearest listed ancestors of a checkpoint, each once, in the order of its parents."""
        before = self._before.get(stored.record.key)
        # Inside a segment each checkpoint follows the one before.
        if before is not None:
            return [before]
        found: dict[Key, None] = {}
        for place in self._ancestry.get(stored.segment, ()):
            key = self._nearest(place)
            if key is not None:
                found[key] = None
        return found

    def _nearest(self, place: Place) -> Key | None:
        """Return the newest listed checkpoint at or before `place`, in its segment or in what that follows."""
        pending = [place]
        seen = set[int]()
        while pending:
            place = pending.pop()
            for seq, key in reversed(self._listed_in.get(place.segment, ())):
                if seq <= place.seq:
                    return key
            # Merges lead to the same segment on several ways; one look is enough.
            if place.segment not in seen:
                seen.add(place.segment)
                pending.extend(reversed(self._ancestry.get(place.segment, ())))
        return None
