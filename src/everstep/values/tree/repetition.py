"""What it costs to read a value parts of which occur again and again, and how much of that is allowed. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from everstep.errors import CheckpointCorrupted, UnstorableValue
from everstep.values import costs
from everstep.values.long_values import HEAD_BYTES
from everstep.values.tree.cursor import Cursor, Notes, PiecesNote, skip, skip_items
from everstep.values.tree.node import GROUP, HASH_BYTES, NODES_BODY, REST_BODY, Content, hashes

REPEATS_MAX = int(os.environ.get("EVERSTEP_REPEATS_MAX", 192 << 20))
"""What a value may cost beyond its own objects because parts of it occur again; see `repeats`."""
REPEATS_FREE = 1 << 20
"""Bytes that occur again without anybody looking closer, so what is smaller is written without a look."""


def repeats(
    children: bytes,
    body: bytes,
    content: Callable[[bytes], Content | None],
    most: int = sys.maxsize,
    scale: costs.Scale | None = None,
) -> int:
    """Return what it costs to build the values of these nodes beyond building each object below them once.

    That is 0 for a value no part of which occurs twice, however large it is. Of an object that occurs n times, n - 1
    count, weighed by what it is made of (see `costs`). A value in pieces is weighed as a whole, and of that counts the
    share that its pieces have in what occurs again. Objects that are not at hand count nothing. Takes time by the
    number of objects, not by how often they occur; and, up to half a second, by what there is to weigh. What would
    take longer may count too much. Stops somewhere above `most`.
    """
    roots = hashes(children)
    below = _opened_all(roots, content)
    if len(roots) + sum([len(keys) for keys in below.values()]) == len(below):
        return 0  # each is referred to once
    scale = scale or costs.Scale()
    tally = _Tally(content, most, scale)
    tally.count(roots, _notes_of(children, body, scale, is_object=False), 1)
    for key in reversed(below):  # whoever refers to it comes first
        tally.add_object(key, below[key])
        if tally.cost > most:
            return tally.cost
    for note, times in tally.in_pieces.items():
        tally.add_in_pieces(note, times)
        if tally.cost > most:
            break
    return tally.cost


def repeats_nothing(children: bytes, content: Callable[[bytes], Content | None]) -> bool:
    """Whether all objects below these nodes are at hand, and each is referred to once: `repeats` is 0 then."""
    seen: set[bytes] = set()
    pending = hashes(children)
    while pending:
        count = len(seen) + len(pending)
        seen.update(pending)
        found = list(map(content, pending))
        if len(seen) < count or None in found:
            return False
        pending = hashes(b"".join([below for below, _ in filter(None, found)]))
    return True


def is_mostly_new(added_bytes: int, size: int) -> bool:
    """Whether so much of a value is new that a look at all its objects takes less time than to weigh what is new."""
    return added_bytes * 8 > size


class _Tally:
    """How often objects occur, and what that costs."""

    def __init__(self, content: Callable[[bytes], Content | None], most: int, scale: costs.Scale) -> None:
        self._content = content
        self._most = most
        self._scale = scale
        self.times: dict[bytes, int] = {}
        self.in_pieces: dict[PiecesNote, int] = {}
        self.cost = 0
        self._seen: set[bytes] = set()

    def count(self, children: Sequence[bytes], notes: Notes, times: int) -> None:
        """Count what a node or object refers to that occurs so often."""
        times_of = self.times
        at = 0
        for note in notes.in_pieces:
            for child in children[at : note.first]:
                times_of[child] = times_of.get(child, 0) + times
            at = note.first + len(note.keys) // HASH_BYTES
            alike = note._replace(first=0)
            self.in_pieces[alike] = self.in_pieces.get(alike, 0) + times
        for child in children[at:]:
            times_of[child] = times_of.get(child, 0) + times

    def add_object(self, key: bytes, children: Sequence[bytes]) -> None:
        """Add what an object costs by itself beyond building it once, and count what it refers to."""
        found = self._content(key)
        times = self.times.get(key, 0)
        if found is None or times == 0 or (times == 1 and not children):
            return
        notes = _notes_of(*found, self._scale, is_object=True)
        self.cost += (times - 1) * notes.weight
        self.count(children, notes, times)

    def add_in_pieces(self, note: PiecesNote, times: int) -> None:
        """Add what a value in pieces costs that occurs so often, beyond building each piece once."""
        new_bytes = HEAD_BYTES + sum([self._new_bytes(key, note.height - 1) for key in hashes(note.keys)])
        if times == 1 and new_bytes >= note.size:
            return
        repeated_bytes = max(note.size * times - min(new_bytes, note.size), 1)
        if repeated_bytes > min(self._most, REPEATS_MAX):
            self.cost += repeated_bytes  # which is too much already, though it is not weighed
            return
        # What is weighed up to here costs more than any reader allows, though only its repeated share counts.
        most = (self._most + 1) * note.size // repeated_bytes + 1
        weight = self._scale.weight_in_pieces(self._join(note), most, repeated_bytes / max(note.size, 1))
        self.cost += weight * repeated_bytes // max(note.size, 1)

    def _new_bytes(self, key: bytes, level: int) -> int:
        """Return how many bytes there are in pieces that have not been met yet."""
        if key in self._seen:
            return 0
        self._seen.add(key)
        found = self._content(key)
        if found is None:
            return 0
        if level == 0:
            return len(found[1])
        return sum([self._new_bytes(child, level - 1) for child in hashes(found[0])])

    def _join(self, note: PiecesNote) -> bytes:
        """Return a value in pieces as a whole, and no more of it than it says it has."""
        joined: dict[tuple[bytes, int], bytes] = {}

        def join(keys: bytes, level: int) -> bytes:
            parts: list[bytes] = []
            size = 0
            for key in hashes(keys):
                part = joined.get((key, level))
                if part is None:
                    below, body = self._content(key) or (b"", b"")
                    part = joined[key, level] = join(below, level - 1) if level else body
                parts.append(part)
                size += len(part)
                if size > note.size:
                    break
            return b"".join(parts)[: note.size]

        return note.head + join(note.keys, note.height - 1)


def _opened_all(roots: Sequence[bytes], content: Callable[[bytes], Content | None]) -> dict[bytes, list[bytes]]:
    """Return every object at or below these with those it refers to; these come before it."""
    done: dict[bytes, list[bytes]] = {}
    opened: dict[bytes, list[bytes]] = {}
    pending = list(roots)
    while pending:
        key = pending[-1]
        if key in done:
            pending.pop()
            continue
        if key not in opened:
            found = content(key)
            opened[key] = hashes(found[0]) if found is not None else []
            above = _with_children(opened[key], content, done)
            if above:
                if not opened.keys().isdisjoint(above):
                    raise CheckpointCorrupted("a stored object holds itself")
                pending.extend(above)
                continue
        pending.pop()
        done[key] = opened.pop(key)
    return done


def _with_children(
    keys: Sequence[bytes], content: Callable[[bytes], Content | None], done: dict[bytes, list[bytes]]
) -> list[bytes]:
    """Return those of these objects that refer to others. What refers to nothing, as most, is done with this."""
    found = list[bytes]()
    for key in dict.fromkeys(keys):  # many may be the same
        if key in done:
            continue
        inner = content(key)
        if inner is None or not inner[0]:
            done[key] = []
        else:
            found.append(key)
    return found


def refuse_repeats(cost: int, limit: int) -> None:
    """Refuse to read what repeats itself more than the limit of readers allows."""
    if cost > limit:
        raise CheckpointCorrupted(
            f"a stored value repeats parts of itself so often that reading it costs {cost:,} more than what is stored; "
            f"the limit is {limit:,}. If it was written on purpose, raise EVERSTEP_REPEATS_MAX ({REPEATS_MAX:,})"
        )


def writable_repeats(limit: int) -> int:
    """Return up to which cost a value is written, by the limit of readers. The rest makes up for estimates."""
    return limit * 3 // 4


def check_repeats(cost: int, limit: int, size: int, path: str) -> None:
    """Refuse to write what could not be read: a value that repeats itself more than the limit of readers allows."""
    writable = writable_repeats(limit)
    if cost > writable:
        raise UnstorableValue(
            path,
            f"a value of {size:,} bytes",
            f"parts of it occur again and again, which would cost {cost:,} when it is read; the limit is "
            f"{writable:,} (EVERSTEP_REPEATS_MAX is {REPEATS_MAX:,}). Keep what is repeated once, and refer to it",
        )


class _Weigher(Cursor):
    """A place in a body; what is taken from it is weighed."""

    __slots__ = ("notes", "scale")

    def __init__(self, children: bytes, body: bytes, scale: costs.Scale) -> None:
        super().__init__(children, body)
        self.notes = Notes()
        self.scale = scale

    def take(self, size: int) -> bytes:
        data = super().take(size)
        self.notes.weight += self.scale.weight(data)
        return data


def _notes_of(children: bytes, body: bytes, scale: costs.Scale, *, is_object: bool) -> Notes:
    """Return what an object, or nodes one after the other, cost by themselves, and which values in pieces are there."""
    cursor = _Weigher(children, body, scale)
    try:
        if is_object and body[:1] == REST_BODY:
            cursor.byte()
            cursor.take(len(body) - 1)
        elif is_object and body[:1] == bytes((GROUP,)):
            cursor.byte()
            skip_items(cursor, cursor.notes)
        elif not is_object or body != NODES_BODY:
            while cursor.at < len(body):
                skip(cursor, cursor.notes)
    except IndexError as exc:
        raise CheckpointCorrupted("a stored node cannot be read") from exc
    return cursor.notes
