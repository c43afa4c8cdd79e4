"""What people said later about branches and checkpoints: other names, notes, and what was put away. Pure.

Like tags that are given later, these are entries in the log of a thread: the newest word counts, what was undone does
not. They change nothing else. A branch keeps its thread id, so whatever names it by that goes on to find it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.stores.protocol import Key, Operation

RENAMED = "rename"
ARCHIVED = "archive"
UNARCHIVED = "unarchive"
NOTED = "note"
"""What such operations are called in the log."""

_NEEDED: Mapping[str, tuple[str, ...]] = {
    RENAMED: ("name",),
    ARCHIVED: (),
    UNARCHIVED: (),
    NOTED: ("namespace", "checkpoint_id", "note"),
}
"""The texts that an entry of each kind has."""


class Labels(NamedTuple):
    """What was said about a branch."""

    name: str = ""
    """What it is called now; empty: what it was called when it was made."""
    is_archived: bool = False


NO_LABELS = Labels()


def labels_of(thread_id: str, log: Sequence[Operation]) -> Labels:
    """Return what a thread's log says about it; the log is newest first."""
    found = NO_LABELS
    # From the oldest to the newest, so that the newest word counts.
    for entry in reversed(log):
        if entry.undone or entry.kind not in (RENAMED, ARCHIVED, UNARCHIVED):
            continue
        if entry.kind == RENAMED:
            found = found._replace(name=_details(thread_id, entry)["name"])
        else:
            found = found._replace(is_archived=entry.kind == ARCHIVED)
    return found


def notes_in(thread_id: str, log: Sequence[Operation]) -> Mapping[Key, str]:
    """Return the notes that a thread's log has, by checkpoint; the log is newest first."""
    found: dict[Key, str] = {}
    for entry in reversed(log):
        if entry.undone or entry.kind != NOTED:
            continue
        details = _details(thread_id, entry)
        found[Key(thread_id, details["namespace"], details["checkpoint_id"])] = details["note"]
    return {key: note for key, note in found.items() if note}


def lasting(log: Sequence[Operation]) -> frozenset[int]:
    """Return the entries that say what a branch is called and whether it is archived, by seq; the log is newest first.

    Retention leaves them, however old they are: they are about the thread, which is still there, and not about
    checkpoints, which may be gone.
    """
    found: dict[str, int] = {}
    for entry in log:
        about = {RENAMED: "name", ARCHIVED: "archive", UNARCHIVED: "archive"}.get(entry.kind)
        if about is not None and not entry.undone:
            found.setdefault(about, entry.seq)
    return frozenset(found.values())


def says_what(entry: Operation) -> bool:
    """Whether an entry of a log is whole if it is a name, a note or the like; all others are."""
    return entry.kind not in _NEEDED or _whole_details(entry) is not None


def _details(thread_id: str, entry: Operation) -> Mapping[str, Any]:
    details = _whole_details(entry)
    if details is None:
        raise CheckpointCorrupted(
            f"operation {entry.seq} is a {entry.kind}, and does not say what", thread_id=thread_id
        )
    return details


def _whole_details(entry: Operation) -> Mapping[str, Any] | None:
    details = entry.data.get("details")
    if type(details) is not dict:
        return None
    for name in _NEEDED[entry.kind]:
        if type(details.get(name)) is not str:
            return None
    return details
