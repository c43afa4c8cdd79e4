"""What is added at the head of a run without its code: answers, events, that it was taken up or goes on elsewhere.

The values of the thread stay as they are there. A run that is taken up begins with the values that its code began with,
so it must not save before its code has made again what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.config import SnapshotTrigger
from everstep.durable.entries import ENTRIES
from everstep.errors import HeadMoved, RunNotFound
from everstep.repository.repository import Repository
from everstep.repository.step import Step
from everstep.repository.turns import BEATEN_MAX, overtaken
from everstep.runtime import checks
from everstep.stores.protocol import Stored
from everstep.timeline.store import StoreTimeline
from everstep.types import RUN_KIND, RUN_METADATA


class Note(NamedTuple):
    """An entry that is added, and what changes with it."""

    about: Mapping[str, Any]
    metadata: Mapping[str, Any]
    """What the metadata of the head says of the run from now on; what it does not name stays."""
    summary: str
    values: dict[str, Any] | None = None
    tags: Sequence[str] = ()


async def head_of(repository: Repository, thread_id: str) -> Stored:
    """Return the newest checkpoint of a run."""
    loaded = await repository.store.read(checks.thread_id(thread_id))
    if loaded is None or loaded.stored.record.kind != RUN_KIND:
        raise RunNotFound(thread_id)
    return loaded.stored


async def add(timeline: StoreTimeline, thread_id: str, make: Callable[[Stored], Note]) -> str:
    """Add a note that is made from the head, and return its checkpoint."""
    # The run may go on meanwhile and move its head: then the note is made anew, since what the run waits for
    # may be another thing.
    for _ in range(BEATEN_MAX):
        head = await head_of(timeline.repository, thread_id)
        note = make(head)
        metadata = {name: head.record.metadata[name] for name in RUN_METADATA if name in head.record.metadata}
        step = Step(
            thread_id,
            "",
            SnapshotTrigger.STATE_CHANGE,
            None,
            list(note.tags),
            note.summary[:200],
            {**metadata, **note.metadata, ENTRIES: [dict(note.about)]},
            (),
            {},
            RUN_KIND,
        )
        expected = head.record.key.checkpoint_id
        try:
            return await timeline.append(step, [], None, note.values, expected, replace=True)
        except HeadMoved:
            continue
    raise overtaken(f"a note of {note.about['op']!r}", thread_id)
