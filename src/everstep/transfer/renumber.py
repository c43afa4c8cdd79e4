"""A family's numbers in another store: which they become there, and what is noted to go on later. Pure.

A store numbers checkpoints, writes and operations by itself, and history is told by those numbers (segments, hidden
stretches, what an undo needs), so a copy must keep their order and equality. Numbers are reserved in the target a
stretch at a time, more than are needed now, and each kind fills a stretch from its beginning. 0 is "none" and stays 0.

What was reserved, and how a thread looked when it was copied, is noted with the thread in the target: a later copy
finds there which numbers it has given, and whether somebody has changed the thread since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.history.operation_log import renumbered, renumbered_stretch
from everstep.stores.protocol import Place, RawLine, RawThread, SharedState, Stored
from everstep.values import codec

Kind = int
CHECKPOINT = 0
WRITE = 1
OPERATION = 2
KINDS = (CHECKPOINT, WRITE, OPERATION)
Number = Callable[[Kind, int], int]

# Reserved beyond what is needed now, so that a copy that is brought up to date often has few stretches.
_SPARE_MIN = 1000
_NOTE_VERSION = 1


class Stretch(NamedTuple):
    """Reserved numbers: `base` < number <= `base` + `size`."""

    base: int
    size: int
    after: tuple[int | None, ...]
    """By kind: the source's number that comes before the first of this stretch; None: it had none of that kind yet."""

    @property
    def end(self) -> int:
        """The last number."""
        return self.base + self.size


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
        # A bound below all that there is.
        return base

    def covers(self, kind: Kind, number: int) -> bool:
        """Whether the source's number has a place in what is reserved."""
        end = self._end(kind)
        return end is not None and number <= end

    def reserved(self, number: int) -> bool:
        """Whether the target's number comes from the source."""
        return any(stretch.base < number <= stretch.end for stretch in self.stretches)

    def needed(self, spans: Mapping[Kind, tuple[int, int]]) -> int:
        """Return how many numbers to reserve for these, given as (lowest, highest) by kind; 0: they have a place.

        A kind that had no numbers before starts in the last stretch, if there is room.
        """
        missing = 0
        for kind, (lowest, highest) in spans.items():
            end = self._end(kind)
            if end is not None:
                missing = max(missing, highest - end)
            elif not self._start_in_last(kind, lowest, highest):
                missing = max(missing, highest - _before(lowest))
        if missing == 0:
            return 0
        # As many again as the family has had: so the stretches stay few, however often it is copied.
        return missing + max(_SPARE_MIN, missing, total_size(self.stretches))

    def _start_in_last(self, kind: Kind, lowest: int, highest: int) -> bool:
        """Let a kind that had no numbers start in the last stretch; return False if it does not fit."""
        before = _before(lowest)
        if not self.stretches or highest - before > self.stretches[-1].size:
            return False
        last = self.stretches[-1]
        after = list(last.after)
        after[kind] = before
        self.stretches[-1] = last._replace(after=tuple(after))
        return True

    def add(self, base: int, size: int, spans: Mapping[Kind, tuple[int, int]]) -> None:
        """Note what was reserved."""
        after: list[int | None] = []
        for kind in KINDS:
            end = self._end(kind)
            if end is None and kind in spans:
                end = _before(spans[kind][0])
            after.append(end)
        new = Stretch(base, size, tuple(after))
        # One that follows at once makes the last one longer, unless a kind begins with it.
        if self.stretches and self.stretches[-1].end == base and _have_same_kinds(self.stretches[-1], new):
            last = self.stretches.pop()
            new = last._replace(size=last.size + size)
        self.stretches.append(new)

    def _end(self, kind: Kind) -> int | None:
        """Return the source's highest number that has a place."""
        for stretch in reversed(self.stretches):
            after = stretch.after[kind]
            if after is not None:
                return after + stretch.size
        return None


def _have_same_kinds(one: Stretch, other: Stretch) -> bool:
    return all((one.after[kind] is None) == (other.after[kind] is None) for kind in KINDS)


def total_size(stretches: Iterable[Stretch]) -> int:
    """Return how many numbers are reserved in all."""
    return sum(stretch.size for stretch in stretches)


def _before(lowest: int) -> int:
    # A stretch that is hidden may begin one before the first number.
    return max(0, lowest - 2)


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

    # The same code that renumbers goes over everything once, so that no number can be forgotten.
    for raw in raws:
        thread(raw, note)
    segments(ancestry, note)
    for seq in checkpoints:
        note(CHECKPOINT, seq)
    return seen


# -- with other numbers ------------------------------------------------------------------------------------------------


def thread(raw: RawThread, number: Number) -> RawThread:
    """Return a thread with its numbers in the target."""
    checkpoint = partial(number, CHECKPOINT)
    write = partial(number, WRITE)
    operation = partial(number, OPERATION)
    shared_states: dict[str, list[SharedState]] = {}
    for other, held in raw.shared_states.items():
        shared_states[other] = [SharedState(_place(common.place, checkpoint), common.root) for common in held]
    return raw._replace(
        lines={name: _line(line, checkpoint) for name, line in raw.lines.items()},
        began=checkpoint(raw.began),
        pinned=frozenset(map(checkpoint, raw.pinned)),
        hidden=[renumbered_stretch(stretch, checkpoint, operation, write) for stretch in raw.hidden],
        operations=[renumbered(entry, checkpoint, operation, write) for entry in raw.operations],
        writes=[(key, found._replace(seq=write(found.seq))) for key, found in raw.writes],
        shared_states=shared_states,
    )


def segments(ancestry: Mapping[int, Sequence[Place]], number: Number) -> dict[int, tuple[Place, ...]]:
    """Return what segments follow, with their numbers in the target."""
    checkpoint = partial(number, CHECKPOINT)
    found: dict[int, tuple[Place, ...]] = {}
    for segment, follows in ancestry.items():
        found[checkpoint(segment)] = tuple(_place(place, checkpoint) for place in follows)
    return found


def stored(found: Stored, number: Number) -> Stored:
    """Return a checkpoint with its numbers in the target."""
    return found._replace(seq=number(CHECKPOINT, found.seq), segment=number(CHECKPOINT, found.segment))


def _line(line: RawLine, checkpoint: Callable[[int], int]) -> RawLine:
    return line._replace(segments=frozenset(map(checkpoint, line.segments)), newest=checkpoint(line.newest))


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
    stretches = [[stretch.base, stretch.size, list(stretch.after)] for stretch in note.stretches]
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
    heads: list[Any] = []
    for name, line in sorted(raw.lines.items()):
        # Others may be half there.
        if line.generation:
            heads.append([name, line.head, line.head_was_moved, line.generation, sorted(line.segments)])
    origin = None
    if raw.origin is not None:
        origin = list(raw.origin)
    return {
        "heads": heads,
        "origin": origin,
        "pins": sorted(raw.pinned),
        "hidden stretches": sorted(map(list, raw.hidden), key=repr),
        "log": [[entry.kind, dict(entry.data), entry.seq, entry.undone] for entry in raw.operations],
        "pending writes": [[*key, *write] for key, write in raw.writes],
    }


def _related(raw: RawThread) -> dict[str, Any]:
    shared_states: dict[str, list[SharedState]] = {}
    for name, held in raw.shared_states.items():
        shared_states[name] = sorted(held, key=lambda common: common.place.seq)
    return {"beginning": raw.began, "common states": shared_states}
