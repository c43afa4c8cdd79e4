"""A family's numbers in another store: which they become there, and what is noted to go on later. Pure.

A store numbers checkpoints, writes and operations by itself, and history is told by those numbers (segments, hidden
stretches, what an undo needs), so a copy must keep their order and equality. Numbers are reserved in the target a
stretch at a time, more than are needed now, and each kind fills a stretch from its beginning. 0 is "none" and stays 0.

What was reserved, and how a thread looked when it was copied, is noted with the thread in the target: a later copy
finds there which numbers it has given, and whether somebody has changed the thread since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.history.operation_log import renumbered, renumbered_stretch
from everstep.stores.protocol import Place, RawLine, RawThread, SharedState, Stored
from everstep.values import codec

Kind = int
KINDS = CHECKPOINT, WRITE, OPERATION = 0, 1, 2
Number = Callable[[Kind, int], int]

_SPARE_MIN = 1000
_NOTE_VERSION = 1


class Stretch(NamedTuple):
    """Reserved numbers: `base` < number <= `base` + `size`."""

    base: int
    size: int
    after: tuple[int | None, ...]
    """By kind: the source's number that comes before the first of this stretch; None: it had none of that kind yet."""


class Numbers:
    """What the source's numbers of a family become."""

    def __init__(self, stretches: Sequence[Stretch] = ()) -> None:
        self.stretches = list(stretches)

    def __call__(self, kind: Kind, number: int) -> int:
        """Return the target's number for one of the source's."""
        if number <= 0:
            return 0
        base = 0
        for stretch in reversed(self.stretches):
            after = stretch.after[kind]
            if after is not None:
                base = stretch.base
                if number > after:
                    return base + number - after
        return base  # a bound below all that there is

    def covers(self, kind: Kind, number: int) -> bool:
        """Whether the source's number has a place in what is reserved."""
        end = self._end(kind)
        return end is not None and number <= end

    def reserved(self, number: int) -> bool:
        """Whether the target's number comes from the source."""
        return any(s.base < number <= s.base + s.size for s in self.stretches)

    def needed(self, spans: Mapping[Kind, tuple[int, int]]) -> int:
        """Return how many numbers to reserve for these, given as (lowest, highest) by kind; 0: they have a place.

        A kind that had no numbers before starts in the last stretch, if there is room.
        """
        missing = 0
        for kind, (lowest, highest) in spans.items():
            end = self._end(kind)
            if end is None and self.stretches and highest - _before(lowest) <= self.stretches[-1].size:
                last = self.stretches[-1]
                after = tuple(_before(lowest) if k == kind else last.after[k] for k in KINDS)
                self.stretches[-1] = last._replace(after=after)
            else:
                missing = max(missing, highest - (end if end is not None else _before(lowest)))
        # As many again as the family has had: so the stretches stay few, however often it is copied.
        return missing + max(_SPARE_MIN, missing, sum(s.size for s in self.stretches)) if missing > 0 else 0

    def add(self, base: int, size: int, spans: Mapping[Kind, tuple[int, int]]) -> None:
        """Note what was reserved."""
        after = []
        for kind in KINDS:
            end = self._end(kind)
            after.append(end if end is not None or kind not in spans else _before(spans[kind][0]))
        last = self.stretches[-1] if self.stretches else None
        goes_on = last is not None and last.base + last.size == base
        if (
            last is not None
            and goes_on
            and all((a is None) == (b is None) for a, b in zip(last.after, after, strict=True))
        ):
            self.stretches[-1] = last._replace(size=last.size + size)
        else:
            self.stretches.append(Stretch(base, size, tuple(after)))

    def _end(self, kind: Kind) -> int | None:
        """Return the source's highest number that has a place."""
        ends = [after + s.size for s in self.stretches if (after := s.after[kind]) is not None]
        return ends[-1] if ends else None


def _before(lowest: int) -> int:
    return max(0, lowest - 2)  # a stretch that is hidden may begin one before the first number


def spans(
    raws: Iterable[RawThread], ancestry: Mapping[int, Sequence[Place]], checkpoints: Iterable[int]
) -> dict[Kind, tuple[int, int]]:
    """Return the lowest and the highest number by kind in all that is to be copied."""
    seen: dict[Kind, tuple[int, int]] = {}

    def note(kind: Kind, number: int) -> int:
        if number > 0:
            lowest, highest = seen.get(kind, (number, number))
            seen[kind] = min(lowest, number), max(highest, number)
        return number

    for raw in raws:
        thread(raw, note)
    segments(ancestry, note)
    for seq in checkpoints:
        note(CHECKPOINT, seq)
    return seen


# -- with other numbers ------------------------------------------------------------------------------------------------


def thread(raw: RawThread, number: Number) -> RawThread:
    """Return a thread with its numbers in the target."""
    checkpoint, write, operation = _by_kind(number)
    return raw._replace(
        lines={name: _line(line, checkpoint) for name, line in raw.lines.items()},
        began=checkpoint(raw.began),
        pinned=frozenset(checkpoint(seq) for seq in raw.pinned),
        hidden=[renumbered_stretch(stretch, checkpoint, operation, write) for stretch in raw.hidden],
        operations=[renumbered(entry, checkpoint, operation, write) for entry in raw.operations],
        writes=[(key, held._replace(seq=write(held.seq))) for key, held in raw.writes],
        shared_states={
            other: [SharedState(_place(common.place, checkpoint), common.root) for common in shared_states]
            for other, shared_states in raw.shared_states.items()
        },
    )


def segments(ancestry: Mapping[int, Sequence[Place]], number: Number) -> dict[int, tuple[Place, ...]]:
    """Return what segments follow, with their numbers in the target."""
    checkpoint, _, _ = _by_kind(number)
    return {
        checkpoint(segment): tuple(_place(place, checkpoint) for place in ancestry[segment]) for segment in ancestry
    }


def stored(found: Stored, number: Number) -> Stored:
    """Return a checkpoint with its numbers in the target."""
    return found._replace(seq=number(CHECKPOINT, found.seq), segment=number(CHECKPOINT, found.segment))


def _by_kind(number: Number) -> Iterator[Callable[[int], int]]:
    return (partial(number, kind) for kind in KINDS)


def _line(line: RawLine, checkpoint: Callable[[int], int]) -> RawLine:
    return line._replace(
        segments=frozenset(checkpoint(segment) for segment in line.segments), newest=checkpoint(line.newest)
    )


def _place(place: Place, checkpoint: Callable[[int], int]) -> Place:
    return place._replace(segment=checkpoint(place.segment), seq=checkpoint(place.seq))


# -- what is noted, and what differs -----------------------------------------------------------------------------------


class Note(NamedTuple):
    """What a copy leaves with a thread in the target."""

    identity: bytes
    """The family that it comes from."""
    stretches: Sequence[Stretch]
    fingerprint: bytes | None
    """How the thread looked then; None: it is not all there yet."""


def pack_note(note: Note) -> bytes:
    """Return a note as bytes."""
    stretches = [[s.base, s.size, list(s.after)] for s in note.stretches]
    return codec.pack([_NOTE_VERSION, note.identity, stretches, note.fingerprint], "note")


def unpack_note(data: bytes) -> Note:
    """Return what `pack_note` wrote."""
    try:
        version, identity, stretches, fingerprint = codec.unpack(data)
        if version != _NOTE_VERSION:
            raise CheckpointCorrupted(f"a copy was begun by another version of Everstep: {version!r}")
        return Note(identity, [Stretch(base, size, tuple(after)) for base, size, after in stretches], fingerprint)
    except (TypeError, ValueError) as exc:
        raise CheckpointCorrupted(f"what a copy noted cannot be read: {exc}") from exc


def fingerprint(raw: RawThread) -> bytes:
    """Return what tells whether somebody has changed a thread."""
    return hashlib.sha256(codec.pack(list(_content(raw).values()), "thread")).digest()[:16]


def is_bare(raw: RawThread) -> bool:
    """Whether a thread holds nothing but checkpoints that no head has ever led to."""
    return not raw.operations and not raw.writes and all(line.generation == 0 for line in raw.lines.values())


def difference(expected: RawThread, found: RawThread) -> str | None:
    """Return what is not the same in two threads, by name; None: nothing."""
    theirs = _content(found) | _related(found)
    for name, content in (_content(expected) | _related(expected)).items():
        if theirs[name] != content:
            return name
    return None


def _content(raw: RawThread) -> dict[str, Any]:
    """Return what a thread's own writers change. Activity and common states tell nothing that this does not."""
    led = sorted(name for name, line in raw.lines.items() if line.generation)  # others may be half there
    return {
        "heads": [[name, *raw.lines[name][:3], sorted(raw.lines[name].segments)] for name in led],
        "origin": list(raw.origin) if raw.origin is not None else None,
        "pins": sorted(raw.pinned),
        "hidden stretches": sorted((list(stretch) for stretch in raw.hidden), key=repr),
        "log": [[o.kind, dict(o.data), o.seq, o.undone] for o in raw.operations],
        "pending writes": [[*key, *write] for key, write in raw.writes],
    }


def _related(raw: RawThread) -> dict[str, Any]:
    shared_states = {
        name: sorted(held, key=lambda common: common.place.seq) for name, held in raw.shared_states.items()
    }
    return {"beginning": raw.began, "common states": shared_states}
