"""One checkpoint with all that is known of it but its values: where it stands, what it holds, how to get at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from everstep.errors import CheckpointCorrupted
from everstep.repository.around_damage import readable
from everstep.repository.repository import Repository
from everstep.stores.protocol import Key, Loaded, Query, Stored
from everstep.views import rows
from everstep.views.changes import ref_of
from everstep.views.commands import as_command
from everstep.views.differences import changed_since_parent
from everstep.views.history import look
from everstep.views.json_values import to_json
from everstep.views.paths import token_of
from everstep.views.reading import Ref, Values, head_of, repository_of, stored_of, values_of, written
from everstep.views.texts import as_text, one_line, plain_text

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

_VALUE_BYTES_MAX = 20_000
# A checkpoint from which many branches began: each child is a read of its own.
_CHILDREN_MAX = 50
_WRITES_MAX = 100
_KEYS_MAX = 500


async def detail(engine: CheckpointEngine, ref: Ref) -> dict[str, Any]:
    """Return a checkpoint as a row, without lanes, and what only a closer look tells."""
    repository = repository_of(engine)
    stored = await stored_of(engine, ref)
    key = stored.record.key
    loaded = await repository.store.read(*key, writes=True)
    values = await values_of(repository, stored)
    head = await head_of(repository.store, key.thread_id, key.namespace)
    heads: list[Key] = []
    if head is not None:
        heads.append(head.record.key)
    looked = await look(repository, [stored])
    seen = looked.seen.get(key, rows.NOTHING)
    if seen.message is None and values.messages:
        seen = seen._replace(message=values.messages[-1])
    row = rows.row_of(stored, seen, heads, key.thread_id, next_node=values.next_node)
    pending: list[dict[str, Any]] = []
    if loaded is not None:
        pending = await _writes(repository, loaded)
    return row | {
        "damage": row["damage"] or rows.damage_as_json(looked.trouble),
        "parents": [await _named(repository, parent) for parent in stored.record.parents],
        "children": await _children(repository, stored),
        "metadata": to_json(dict(stored.record.metadata), max_bytes=_VALUE_BYTES_MAX),
        "summary": plain_text(stored.record.summary),
        "size_bytes": sum(stored.record.sizes),
        "messages": len(values.messages),
        "state_keys": _keys(values),
        "writes": pending,
        "tools_result": to_json(values.tools_result, max_bytes=_VALUE_BYTES_MAX),
        "tools_result_is_own": await _has_own_result(repository, stored, row),
        "error": _error(stored, seen, values),
        "copy": _copies(key),
    }


async def _has_own_result(repository: Repository, stored: Stored, row: Mapping[str, Any]) -> bool:
    """Whether the result of tools came with this checkpoint; else it stands there since an earlier one."""
    if row["kind"] in ("merge", "fork"):
        return False
    # The same call may have had the same result before.
    if row["kind"] == "tool" or not stored.record.parents:
        return True
    changed = (await changed_since_parent(repository, [stored])).get(stored.record.key)
    return changed is not None and changed.has_results


def _keys(values: Values) -> list[str]:
    found = list(enumerate(values.state))[:_KEYS_MAX]
    return [one_line(token_of(key, place), 200) for place, key in found]


async def _named(repository: Repository, key: Key) -> dict[str, Any]:
    found = await readable(repository.store, [key])
    if key in found.loaded:
        return {**ref_of(found.loaded[key].stored), "damaged": False}
    # Retention took it, or it cannot be read, and its name is all that its child still knows of it.
    name = f"{key.thread_id}@{key.checkpoint_id}"
    is_damaged = key in found.damage
    return {"id": key.checkpoint_id, "ref": name, "thread_id": key.thread_id, "step": None, "damaged": is_damaged}


async def _children(repository: Repository, stored: Stored) -> list[dict[str, Any]]:
    """Return what follows a checkpoint: in its line, where a line began anew, and where a branch did."""
    store = repository.store
    key = stored.record.key
    found: dict[Key, Stored] = {}

    async def add(**asked: Any) -> None:
        try:
            listed = await store.list_checkpoints(Query(hidden="also", order="oldest", limit=1, **asked))
        except CheckpointCorrupted:
            # Nobody knows what it follows.
            return
        for child in listed:
            # The next one in the order of arrival need not be its child: one between may have been removed.
            if key in child.record.parents:
                found[child.record.key] = child

    line = {"thread_id": key.thread_id, "namespace": key.namespace}
    await add(**line, segment=stored.segment, after_seq=stored.seq)
    try:
        thread = await store.thread(key.thread_id, branches=True)
    except CheckpointCorrupted:
        thread = None
    if thread is None:
        return [ref_of(child) for child in found.values()]
    for segment, follows in thread.segments.items():
        if len(found) < _CHILDREN_MAX and any(place.key == key for place in follows):
            await add(thread_id=key.thread_id, namespace=None, segment=segment)
    for name in thread.branches:
        if len(found) >= _CHILDREN_MAX:
            break
        try:
            branch = await store.thread(name, brief=True)
        except CheckpointCorrupted:
            continue
        if branch is not None and branch.origin == key:
            await add(thread_id=name, namespace=key.namespace)
    return [ref_of(child) for child in sorted(found.values(), key=lambda child: child.seq)]


async def _writes(repository: Repository, loaded: Loaded) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for write in loaded.writes[:_WRITES_MAX]:
        try:
            value = to_json(await written(repository, loaded.stored.family, write), max_bytes=_VALUE_BYTES_MAX // 10)
        except CheckpointCorrupted as exc:
            # The checkpoint itself is whole.
            value = {"$type": "damaged", "text": plain_text(exc.reason)}
        names = rows.nodes_of([write._replace(idx=0)])
        found.append(
            {
                "task": write.task_id,
                "node": names[0] if names else None,
                "channel": one_line(write.channel, 200),
                "value": value,
            }
        )
    return found


def _error(stored: Stored, seen: rows.Seen, values: Values) -> dict[str, Any] | None:
    """Return the failure that a step ended with, from wherever it was noted."""
    told = rows.error_of(stored.record.metadata)
    if told is None and seen.failure is not None:
        told = {"type": "Error", "message": seen.failure, "traceback": None}
    called: Mapping[str, Any] = values.tools_result
    if told is None and called.get("status") == "error" and type(called.get("error")) is dict:
        told = rows.error_of(called)
    if told is None:
        return None
    for name, text in told.items():
        if as_text(text):
            told[name] = plain_text(text)[:_VALUE_BYTES_MAX]
    return told


def _short_ref(key: Key) -> str:
    """Return the shortest text that always means a checkpoint: its id, where that says which thread it is of."""
    if key.checkpoint_id.startswith(f"ckpt-{key.thread_id}-"):
        return key.checkpoint_id
    return f"{key.thread_id}@{key.checkpoint_id}"


def _copies(key: Key) -> dict[str, str]:
    """Return how to get at a checkpoint by other ways."""
    ref = _short_ref(key)
    namespace = ""
    if key.namespace:
        namespace = f", namespace={key.namespace!r}"
    address = f"$EVERSTEP_URL/api/v1/checkpoint?ref={quote(ref, safe='')}"
    return {
        "ref": ref,
        "python": f"await engine.get({key.checkpoint_id!r}, thread_id={key.thread_id!r}{namespace})",
        "cli": as_command("show", ref),
        "curl": f'curl -s "{address}"',
    }
