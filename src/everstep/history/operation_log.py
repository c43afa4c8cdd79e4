"""The log of operations: what undo and redo read. Pure.

An entry carries what it takes to swap the thread between "done" and "undone": heads to restore, stretches to hide, and
the number from which on checkpoints are new. Undo and redo are the same swap, and each notes what the other needs.
While an operation is done, its stretches are what it hid; while it is undone, they are what came after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any, NamedTuple

from everstep.errors import CannotUndo
from everstep.reports import Operation
from everstep.stores.protocol import Hidden, Key, Pin, Thread
from everstep.stores.protocol import Operation as Entry
from everstep.types import utc_now

# A log may be long, and undo has to read what it looks through.
DEPTH_MAX = 2000
"""How far back undo looks."""


class Undo(NamedTuple):
    """What it takes to swap."""

    thread_id: str
    """The thread whose head or pins it is about: a branch's own, else the log's."""
    heads: Mapping[str, str | None]
    """By namespace: the head to go to."""
    hide: Sequence[Hidden]
    """What to hide again."""
    newest: Mapping[str, int]
    """By namespace: what is newer than this is new, and will be hidden."""
    pins: Sequence[Pin] = ()
    since: int | None = None
    """If it is about the whole thread: what is newer than this is new in the namespaces that `newest` does not name."""
    kept: Sequence[Hidden] = ()
    """Pending writes that no swap exchanges, though it does others of their checkpoint."""


class Swap(NamedTuple):
    """What a swap commits, besides heads and pins."""

    hide: Sequence[Hidden]
    entry: Entry


def entry(kind: str, details: Mapping[str, Any], undo: Undo, after: int, made_at_seq: int) -> Entry:
    """Return a new entry for the log; `after` is the operation that was the newest when it was made."""
    data = {
        "created_at": utc_now(),
        "details": dict(details),
        "after": after,
        "made_at_seq": made_at_seq,
        "undo": _packed(undo),
    }
    return Entry(kind, data)


def shown(found: Entry) -> Operation:
    """Return what callers see of an entry."""
    return Operation(found.seq, found.kind, found.data["created_at"], found.undone, dict(found.data["details"]))


def top(entries: Sequence[Entry]) -> int:
    """Return the seq of the newest operation that is not undone, or 0 if there is none. Entries are newest first."""
    for found in entries:
        if not found.undone:
            return found.seq
    return 0


def to_undo(entries: Sequence[Entry]) -> Entry:
    """Return the operation that undo takes back."""
    for found in entries:
        if not found.undone:
            return found
    raise CannotUndo("there is nothing to undo; operations() shows the log, deletion and retention are final")


def to_redo(entries: Sequence[Entry]) -> Entry:
    """Return the operation that redo does again: the newest of those undone that was done right after the present top.

    Those are newer than the top, so `entries` may end with it.
    """
    present = top(entries)
    for found in entries:
        if found.undone and _stood_on(found, entries) == present:
            return found
    raise CannotUndo("there is nothing to redo")


def _stood_on(found: Entry, entries: Sequence[Entry]) -> int:
    """Return the operation that an entry was made on; if retention took that, the newest before it that is done."""
    after: int = found.data["after"]
    older = [other for other in entries if other.seq <= after]
    if older and older[0].seq == after:
        return after
    return top(older)


def undo_of(found: Entry) -> Undo:
    """Return what it takes to swap an operation."""
    packed = found.data["undo"]
    # What later versions have added comes after these five, and is missing in older entries.
    thread_id, heads, hide, newest, pins = packed[:5]
    undo = Undo(
        thread_id,
        dict(heads),
        _of_operation(starmap(Hidden, hide), found),
        dict(newest),
        [Pin(Key(*key), pinned) for key, pinned in pins],
    )
    if len(packed) > 5:
        undo = undo._replace(since=packed[5])
    if len(packed) > 6:
        undo = undo._replace(kept=_of_operation(starmap(Hidden, packed[6]), found))
    return undo


def _of_operation(stretches: Iterable[Hidden], found: Entry) -> list[Hidden]:
    """Return stretches as ones that this operation hides."""
    return [stretch._replace(operation=found.seq) for stretch in stretches]


def written(found: Entry, undo: Undo, thread: Thread) -> set[tuple[str, str]]:
    """Return the checkpoints (namespace, id) whose pending writes a swap exchanges: those hidden, those shown."""
    places: set[tuple[str, str]] = set()
    for stretch in (*undo.hide, *thread.hidden.get(found.seq, ())):
        if stretch.writes_of is not None:
            places.add((stretch.namespace, stretch.writes_of))
    if found.kind == "rewind":
        # What was written to its target since the rewind goes aside too, though no stretch names it yet.
        details = found.data["details"]
        places.add((details["namespace"], details["checkpoint_id"]))
    return places


def swapped(found: Entry, undo: Undo, thread: Thread, writes: Sequence[Hidden]) -> Swap:
    """Return what to hide now, and the entry as it is after the swap; `writes` are those pending now."""
    # Writes may have come and gone since the entry was made: those pending now count, not those it names.
    hide = [stretch for stretch in undo.hide if stretch.writes_of is None]
    hide += _of_operation(writes, found)
    # What has come since the operation goes aside with the swap, and comes back when it is swapped again.
    for namespace, newest in undo.newest.items():
        if thread.newest.get(namespace, 0) > newest:
            hide.append(Hidden(namespace, newest, thread.newest[namespace], operation=found.seq))
    # The entry now says how to come back from here: what undo does is the redo of the redo.
    data = {**found.data, "undo": _packed(_way_back(found, undo, thread))}
    return Swap(hide, Entry(found.kind, data, found.seq, undone=not found.undone))


def _way_back(found: Entry, undo: Undo, thread: Thread) -> Undo:
    """Return what it takes to undo the swap: the thread as it is before it."""
    since = max(thread.newest.values(), default=0) if undo.since is not None else None
    return Undo(
        undo.thread_id,
        {name: thread.head_id(name) for name in undo.heads},
        thread.hidden.get(found.seq, ()),
        {name: thread.newest.get(name, 0) for name in undo.newest},
        [Pin(pin.key, not pin.pinned) for pin in undo.pins],
        since,
        undo.kept,
    )


def renumbered(
    found: Entry, checkpoint: Callable[[int], int], operation: Callable[[int], int], write: Callable[[int], int]
) -> Entry:
    """Return an entry for another store, with the numbers that checkpoints, operations and writes have there."""
    entry = found._replace(seq=operation(found.seq))
    # An entry that an adapter has written has nothing to swap, and no numbers inside.
    if "undo" not in found.data:
        return entry  # not written here

    def other_numbers(stretches: Sequence[Hidden]) -> list[Hidden]:
        return [renumbered_stretch(stretch, checkpoint, operation, write) for stretch in stretches]

    undo = undo_of(found)
    undo = undo._replace(
        hide=other_numbers(undo.hide),
        newest={namespace: checkpoint(newest) for namespace, newest in undo.newest.items()},
        kept=other_numbers(undo.kept),
    )
    if undo.since is not None:
        undo = undo._replace(since=checkpoint(undo.since))
    after = operation(found.data["after"])
    made_at_seq = checkpoint(found.data["made_at_seq"])
    return entry._replace(data={**found.data, "after": after, "made_at_seq": made_at_seq, "undo": _packed(undo)})


def renumbered_stretch(
    stretch: Hidden, checkpoint: Callable[[int], int], operation: Callable[[int], int], write: Callable[[int], int]
) -> Hidden:
    """Return a hidden stretch with other numbers: those of writes if it hides writes, else of checkpoints."""
    number = write if stretch.writes_of is not None else checkpoint
    if stretch.segment is not None:
        stretch = stretch._replace(segment=checkpoint(stretch.segment))
    return stretch._replace(after=number(stretch.after), to=number(stretch.to), operation=operation(stretch.operation))


def _packed(undo: Undo) -> list[Any]:
    packed: list[Any] = [
        undo.thread_id,
        dict(undo.heads),
        _packed_stretches(undo.hide),
        dict(undo.newest),
        [[list(pin.key), pin.pinned] for pin in undo.pins],
    ]
    # Few operations need the last two. They are found by their places, so the first must be there for the second.
    if undo.since is not None or undo.kept:
        packed.append(undo.since)
    if undo.kept:
        packed.append(_packed_stretches(undo.kept))
    return packed


def _packed_stretches(stretches: Sequence[Hidden]) -> list[Any]:
    # The operation is left out: it is the one that the entry is about.
    return [list(stretch[:5]) for stretch in stretches]
