"""What changed between two checkpoints: the state by path, messages by id, texts word by word, and as a JSON Patch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from everstep.reports import Difference
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.stores.protocol import Stored
from everstep.types import MISSING
from everstep.views import patches, paths
from everstep.views.differences import differences, way_of
from everstep.views.errors import shown_or_missing
from everstep.views.json_values import size_of, to_json
from everstep.views.reading import Ref, Values, repository_of, stored_by_key, stored_of, values_of
from everstep.views.rows import role_of, text_of

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

SHOWN_BYTES_MAX = 120_000
"""About how much of values one answer holds."""
PATCH_BYTES_MAX = 60_000
# A page with more differences is not read; the whole patch can be had by itself.
_ENTRIES_MAX = 250
_SMALL = 100


async def compare(
    engine: CheckpointEngine, a: Ref | None, b: Ref, *, path: str | None = None, max_value_bytes: int = 20_000
) -> dict[str, Any]:
    """Return what changed from `a` to `b`; None: from the first parent of `b`, or from nothing if it has none.

    With a path, such as `/plan` or `/messages/3`, it is only what changed there, the figures and the patch included.
    A patch that is large is left out: `patch` is null then, and `patch()` gives it.
    """
    limit = checks.count(max_value_bytes, "max_value_bytes")
    wanted = _wanted(path)
    repository = repository_of(engine)
    after = await stored_of(engine, b)
    before = await _before(engine, repository, a, after)
    old = await _old_values(repository, before)
    new = await values_of(repository, after)
    room = Room(limit)
    found: list[Difference] = []
    for each in await differences(repository, before, after):
        if not each.path.startswith("messages") and paths.meet(way_of(each.path), wanted):
            found.append(each)
    state = [state_entry(change, room) for change in found[:_ENTRIES_MAX]]
    pairs = [
        pair for pair in patches.aligned(old.messages, new.messages, name_of) if paths.meet(_way_of_pair(pair), wanted)
    ]
    messages = [_message(old.messages, new.messages, pair, room) for pair in pairs[:_ENTRIES_MAX]]
    operations = patches.make_patch_at(wanted, _document(old), _document(new), name_of)
    named = None
    if before is not None:
        named = ref_of(before)
    return {
        "a": named,
        "b": ref_of(after),
        "state": state,
        "messages": messages,
        "counts": {
            "state": _counts(change.kind for change in found),
            "messages": _counts(_op(pair) for pair in pairs),
        },
        "more": len(found) > len(state) or len(pairs) > len(messages),
        "patch": operations if size_of(operations) <= PATCH_BYTES_MAX else None,
        "patch_operations": len(operations),
    }


async def patch(engine: CheckpointEngine, a: Ref | None, b: Ref, *, path: str | None = None) -> list[dict[str, Any]]:
    """Return the JSON Patch from one checkpoint to another, or of what is at a path, however large it is."""
    wanted = _wanted(path)
    repository = repository_of(engine)
    after = await stored_of(engine, b)
    before = await _before(engine, repository, a, after)
    old = await _old_values(repository, before)
    new = await values_of(repository, after)
    return patches.make_patch_at(wanted, _document(old), _document(new), name_of)


def _wanted(path: str | None) -> list[str]:
    """Return the way that a comparison is about; [] is all of the document."""
    if path is None:
        return []
    return paths.of_filter(path)


def _way_of_pair(pair: patches.Pair) -> list[str]:
    """Return where a message stands: at its new place, or where it was."""
    place = pair.a if pair.b is None else pair.b
    return ["messages", str(place)]


async def _before(engine: CheckpointEngine, repository: Repository, ref: Ref | None, after: Stored) -> Stored | None:
    if ref is not None:
        return await stored_of(engine, ref)
    parents = after.record.parents[:1]
    found = await stored_by_key(repository.store, parents)
    return next(iter(found.values()), None)


async def _old_values(repository: Repository, before: Stored | None) -> Values:
    if before is None:
        return Values([], {}, {}, "")
    return await values_of(repository, before)


def ref_of(stored: Stored) -> dict[str, Any]:
    """Return how a checkpoint is named."""
    key = stored.record.key
    return {
        "id": key.checkpoint_id,
        "ref": f"{key.thread_id}@{key.checkpoint_id}",
        "thread_id": key.thread_id,
        "step": stored.record.step,
    }


class Room:
    """How much of values may still be shown: each up to its own limit, and all together up to another."""

    def __init__(self, each: int, total: int = SHOWN_BYTES_MAX) -> None:
        self._each = each
        self._left = total

    def shown(self, value: Any) -> Any:
        """Return a value as JSON, cut where there is no room."""
        # Something is always shown, however full the answer is.
        found = shown_or_missing(value, max(_SMALL, min(self._each, self._left)))
        self._left -= size_of(found)
        return found

    def words(self, before: Any, after: Any) -> list[list[str]] | None:
        """Return two texts word by word, if there is room for them."""
        if type(before) is not str or type(after) is not str:
            return None
        if len(before) + len(after) > min(self._each, self._left):
            return None
        self._left -= len(before) + len(after)
        return patches.words(before, after)


def state_entry(change: Difference, room: Room) -> dict[str, Any]:
    """Return a change of the state, of results or of the next node."""
    return {
        "op": change.kind,
        "path": change.path,
        "before": room.shown(change.before),
        "after": room.shown(change.after),
        "words": room.words(change.before, change.after),
    }


def _message(old: Sequence[Any], new: Sequence[Any], pair: patches.Pair, room: Room) -> dict[str, Any]:
    before: Any = MISSING
    after: Any = MISSING
    shown: Any = MISSING
    index = None
    if pair.a is not None:
        before = shown = old[pair.a]
        index = pair.a
    # What is still there is named by its new place.
    if pair.b is not None:
        after = shown = new[pair.b]
        index = pair.b
    return {
        "op": _op(pair),
        "id": name_of(shown),
        "index": index,
        "role": role_of(shown),
        "before": room.shown(before),
        "after": room.shown(after),
        "words": room.words(_text_of_message(before), _text_of_message(after)),
    }


def _text_of_message(message: Any) -> str | None:
    if type(message) is not dict:
        return None
    return text_of(message.get("content"))


def message_entries(old: Sequence[Any], new: Sequence[Any], room: Room) -> list[dict[str, Any]]:
    """Return what changed from one conversation to another."""
    pairs = patches.aligned(old, new, name_of)
    return [_message(old, new, pair, room) for pair in pairs[:_ENTRIES_MAX]]


def kind_of_change(before: Any, after: Any) -> Literal["added", "removed", "changed"]:
    """Return what became of a value; MISSING stands for none."""
    if before is MISSING:
        return "added"
    if after is MISSING:
        return "removed"
    return "changed"


def _op(pair: patches.Pair) -> str:
    if pair.a is None:
        return "added"
    if pair.b is None:
        return "removed"
    return "changed"


def name_of(message: Any) -> str | int | None:
    """Return the id that a message is known by, if it has one."""
    if type(message) is not dict:
        return None
    name = message.get("id")
    if type(name) not in (str, int):
        return None
    return name


def _counts(kinds: Any) -> dict[str, int]:
    found = Counter(kinds)
    return {kind: found[kind] for kind in ("added", "removed", "changed")}


def _document(values: Values) -> Any:
    return to_json(values._asdict())
