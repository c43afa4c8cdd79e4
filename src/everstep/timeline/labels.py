"""Names of branches, notes about checkpoints, branches that are put away: entries of the log, which undo takes back."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from everstep.errors import CheckpointCorrupted, CheckpointNotFound, InvalidInput
from everstep.history import operation_log
from everstep.history.given_tags import TagChanges, tag_changes
from everstep.history.labels import ARCHIVED, NOTED, RENAMED, UNARCHIVED, Labels, labels_of, notes_in
from everstep.runtime import checks
from everstep.stores.abilities import ReadsFamilies
from everstep.stores.protocol import Key, Operation, Store, Thread
from everstep.timeline.branch import branch_name
from everstep.timeline.workspace import Workspace

NAME_BYTES_MAX = 512
NOTE_BYTES_MAX = 8192
_LOGS_AT_ONCE = 1000


class Said(NamedTuple):
    """What the logs of threads say about them and their checkpoints."""

    tags: Mapping[Key, TagChanges]
    notes: Mapping[Key, str]
    labels: Mapping[str, Labels]


async def said_of(store: Store, threads: Collection[str]) -> Said:
    """Return what the logs of threads say, as far back as undo looks."""
    tags: dict[Key, TagChanges] = {}
    notes: dict[Key, str] = {}
    labels: dict[str, Labels] = {}
    for thread_id, log in (await _logs_of(store, sorted(threads))).items():
        tags |= tag_changes(thread_id, log)
        notes |= notes_in(thread_id, log)
        labels[thread_id] = labels_of(thread_id, log)
    return Said(tags, notes, labels)


async def said_around(store: Store, threads: Collection[str]) -> tuple[Said, CheckpointCorrupted | None]:
    """Return what the logs of threads say, around those that cannot be read, and why one of these cannot."""
    try:
        return await said_of(store, threads), None
    except CheckpointCorrupted:
        # One of them has spoiled the answer about all.
        pass
    found = Said({}, {}, {})
    trouble: CheckpointCorrupted | None = None
    for thread_id in sorted(threads):
        try:
            said = await said_of(store, [thread_id])
        except CheckpointCorrupted as exc:
            trouble = exc
            continue
        found = Said({**found.tags, **said.tags}, {**found.notes, **said.notes}, {**found.labels, **said.labels})
    return found, trouble


async def _logs_of(store: Store, threads: Sequence[str]) -> Mapping[str, Sequence[Operation]]:
    """Return the logs of threads: many at once where a store can do that, since a family may have very many."""
    found: dict[str, Sequence[Operation]] = {}
    if not isinstance(store, ReadsFamilies):
        for thread_id in threads:
            found[thread_id] = await store.operations(thread_id, operation_log.DEPTH_MAX)
        return found
    for start in range(0, len(threads), _LOGS_AT_ONCE):
        found |= await store.logs(threads[start : start + _LOGS_AT_ONCE], operation_log.DEPTH_MAX)
    return found


def checked_name(name: str) -> str:
    """Return a name that a branch may have; an empty one is the name that it was made with."""
    checks.text(name, "name", NAME_BYTES_MAX)
    if name != name.strip() or (name and not name.isprintable()):
        raise InvalidInput("the name of a branch is one line, without space around")
    return name


def checked_note(note: str) -> str:
    """Return a note as it is kept; an empty one takes away what was noted."""
    return checks.text(note, "note", NOTE_BYTES_MAX).strip()


def is_branch(thread: Thread) -> bool:
    """Whether a thread began as a branch of another, which may be deleted by now."""
    return thread.origin is not None or branch_name(thread.thread_id) is not None


async def rename(work: Workspace, thread_id: str, name: str) -> None:
    """Call a branch by another name."""
    thread = await _require_branch(work, thread_id)
    if (await _labels(work, thread_id)).name != name:
        await _log(work, thread, RENAMED, {"name": name})


async def archive(work: Workspace, thread_id: str, *, is_archived: bool) -> None:
    """Put a branch away, or bring it back."""
    thread = await _require_branch(work, thread_id)
    if (await _labels(work, thread_id)).is_archived != is_archived:
        await _log(work, thread, ARCHIVED if is_archived else UNARCHIVED, {})


async def note(work: Workspace, key: Key, text: str) -> None:
    """Note something about a checkpoint, or, if there is nothing to say, take away what was noted."""
    stored = await work.require(key)
    notes = notes_in(key.thread_id, await work.store.operations(key.thread_id, operation_log.DEPTH_MAX))
    # Nothing changes, so there is nothing for undo to take back either.
    if notes.get(key, "") == text:
        return
    details = {"checkpoint_id": key.checkpoint_id, "namespace": key.namespace, "note": text}
    await work.log(key, NOTED, details, stored.seq)


async def _require_branch(work: Workspace, thread_id: str) -> Thread:
    thread = await work.store.thread(thread_id)
    if thread is None or not thread.newest:
        raise CheckpointNotFound("@", thread_id)
    if not is_branch(thread):
        raise InvalidInput(f"{thread_id!r} is not a branch: it did not begin at a checkpoint of another thread")
    return thread


async def _labels(work: Workspace, thread_id: str) -> Labels:
    return labels_of(thread_id, await work.store.operations(thread_id, operation_log.DEPTH_MAX))


async def _log(work: Workspace, thread: Thread, kind: str, details: Mapping[str, str]) -> None:
    await work.log(Key(thread.thread_id, min(thread.newest), ""), kind, details, max(thread.newest.values()))
