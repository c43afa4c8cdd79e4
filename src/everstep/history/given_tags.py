"""Tags that were given to checkpoints, or taken from them, after they were written. Pure.

A checkpoint is never changed, so such tags are kept in the log of its thread: the newest word about a tag counts, and
what was undone does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.stores.protocol import Key, Operation

GIVEN = "tag"
TAKEN = "untag"
"""What such operations are called in the log."""


class TagChanges(NamedTuple):
    """What was said about the tags of one checkpoint since it was written."""

    given: tuple[str, ...] = ()
    taken: frozenset[str] = frozenset()

    def applied_to(self, tags: Iterable[str]) -> tuple[str, ...]:
        """Return the tags that a checkpoint has by now; `tags` are those that it was written with."""
        written = [tag for tag in tags if tag not in self.taken]
        return (*written, *(tag for tag in self.given if tag not in written))


NO_CHANGES = TagChanges()


def tag_changes(thread_id: str, log: Sequence[Operation]) -> Mapping[Key, TagChanges]:
    """Return what a thread's log says about tags, by checkpoint; the log is newest first."""
    said: dict[Key, dict[str, bool]] = {}
    # From the oldest to the newest, so that the newest word about a tag counts.
    for entry in reversed(log):
        if entry.undone or entry.kind not in (GIVEN, TAKEN):
            continue
        key, tag = _tagged(thread_id, entry)
        of_checkpoint = said.setdefault(key, {})
        # Taken out first, so that the tag is where it was given last and not where it was given first.
        of_checkpoint.pop(tag, None)
        of_checkpoint[tag] = entry.kind == GIVEN
    return {key: _changes(tags) for key, tags in said.items()}


def says_which_tag(entry: Operation) -> bool:
    """Whether an entry of a log is whole if it is about a tag; all others are."""
    return entry.kind not in (GIVEN, TAKEN) or _named(entry) is not None


def _tagged(thread_id: str, entry: Operation) -> tuple[Key, str]:
    """Return which checkpoint of a thread an entry is about, and which tag."""
    named = _named(entry)
    if named is None:
        raise CheckpointCorrupted(f"operation {entry.seq} is about a tag, and does not say which", thread_id=thread_id)
    namespace, checkpoint_id, tag = named
    return Key(thread_id, namespace, checkpoint_id), tag


def _named(entry: Operation) -> list[str] | None:
    """Return namespace, checkpoint and tag, unless one of them is missing."""
    details = entry.data.get("details")
    if type(details) is not dict:
        return None
    named: list[str] = []
    for name in ("namespace", "checkpoint_id", "tag"):
        if type(details.get(name)) is not str:
            return None
        named.append(details[name])
    return named


def _changes(tags: Mapping[str, bool]) -> TagChanges:
    given: list[str] = []
    taken: list[str] = []
    for tag, is_given in tags.items():
        if is_given:
            given.append(tag)
        else:
            taken.append(tag)
    return TagChanges(tuple(given), frozenset(taken))
