"""Tags that are given to a checkpoint later: entries of its thread's log, which undo takes back like any other."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from everstep.errors import InvalidInput
from everstep.history import operation_log
from everstep.history.adapter import described
from everstep.history.given_tags import GIVEN, NO_CHANGES, TAKEN, TagChanges, tag_changes
from everstep.runtime import checks
from everstep.stores.protocol import Key, Store
from everstep.timeline.workspace import Workspace

TAG_BYTES_MAX = 200
# The signs that a reference may begin with.
_SIGNS = "@#~{"


def checked_tag(tag: str) -> str:
    """Return a tag that somebody may give: one that a reference can name."""
    checks.text(tag, "tag", TAG_BYTES_MAX)
    if not tag or tag != tag.strip() or not tag.isprintable():
        raise InvalidInput("a tag is a word or some, in one line and without space around; it is not empty")
    if tag[0] in _SIGNS:
        raise InvalidInput(f"a tag does not begin with {tag[0]!r}: in a reference that would mean something else")
    return tag


async def set_tag(work: Workspace, key: Key, tag: str, *, is_given: bool) -> bool:
    """Give a checkpoint a tag, or take one away, and return whether that changed anything."""
    stored = await work.require(key)
    changes = (await changes_of(work.store, [key.thread_id])).get(key, NO_CHANGES)
    # Nothing changes, so there is nothing for undo to take back either.
    if (tag in changes.applied_to(described(stored.record)[0])) == is_given:
        return False
    details = {"checkpoint_id": key.checkpoint_id, "namespace": key.namespace, "tag": tag}
    await work.log(key, GIVEN if is_given else TAKEN, details, stored.seq)
    return True


async def changes_of(store: Store, threads: Collection[str]) -> Mapping[Key, TagChanges]:
    """Return what the logs of threads say about tags, as far back as undo looks."""
    found: dict[Key, TagChanges] = {}
    for thread_id in sorted(threads):
        found |= tag_changes(thread_id, await store.operations(thread_id, operation_log.DEPTH_MAX))
    return found
