"""What hidden stretches cover together, so that many of them cost no more than one. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from everstep.stores.protocol import Hidden


class Covers:
    """The union of the stretches of a thread that hide checkpoints, by namespace and segment."""

    def __init__(self, stretches: Iterable[Hidden] = ()) -> None:
        self._spans: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        """Where each span begins and where it ends, in order. They neither overlap nor touch."""
        for stretch in stretches:
            self.add(stretch)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, stretch: Hidden) -> None:
        """Take in a stretch, joined with what it overlaps or touches."""
        if stretch.writes_of is not None:
            return
        starts, ends = self._spans.setdefault((stretch.namespace, stretch.segment or 0), ([], []))
        # The first span that ends where the new one begins, or later, and the last that begins where it ends,
        # or earlier: what lies between becomes one.
        first = bisect_left(ends, stretch.after)
        last = bisect_right(starts, stretch.to)
        after = stretch.after
        to = stretch.to
        if first < last:
            after = min(after, starts[first])
            to = max(to, ends[last - 1])
        starts[first:last] = [after]
        ends[first:last] = [to]

    def hide(self, namespace: str, seq: int, segment: int) -> bool:
        """Whether a checkpoint is covered."""
        # Segment 0 stands for all segments.
        return self._has(namespace, 0, seq) or self._has(namespace, segment, seq)

    def reach(self, namespace: str) -> tuple[int, int]:
        """Return between which numbers all that is covered of a namespace is: the first is not, the last may be."""
        own = [spans for (name, _), spans in self._spans.items() if name == namespace]
        return min((starts[0] for starts, _ in own), default=0), max((ends[-1] for _, ends in own), default=0)

    def spans(self) -> Iterator[tuple[int, int, int]]:
        """Yield what is covered of all namespaces as segment (0: of all), after, and up to."""
        for (_, segment), (starts, ends) in self._spans.items():
            for after, to in zip(starts, ends, strict=True):
                yield segment, after, to

    def _has(self, namespace: str, segment: int, seq: int) -> bool:
        spans = self._spans.get((namespace, segment))
        if spans is None:
            return False
        starts, ends = spans
        at = bisect_left(ends, seq)
        return at < len(ends) and starts[at] < seq
