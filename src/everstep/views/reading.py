"""What views read: checkpoints by reference, and their values as plain data, whatever classes they are of."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.backends import StoreBackend
from everstep.errors import CheckpointCorrupted, CheckpointNotFound, InvalidInput, UnsupportedByBackend
from everstep.history.adapter import adapter_of, is_own
from everstep.history.merge_base import shown_root
from everstep.reports import Reference
from everstep.repository.repository import Repository
from everstep.runtime import checks
from everstep.stores.protocol import Key, Query, Store, Stored, Write
from everstep.values import codec, tree
from everstep.values.registry import Registered
from everstep.values.walk import Need, Root, Walker, together
from everstep.views.json_values import Opaque
from everstep.views.redaction import redacted

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

Ref = str | Reference
"""How callers name a checkpoint."""


class _NoClasses:
    """Every class as what is kept of its objects: nothing of anybody's own is imported, made or called."""

    def for_type(self, cls: type, /) -> Registered | None:
        return Registered(Opaque, "opaque", _told, _told) if cls is Opaque else None

    def for_name(self, name: str, /) -> Registered:
        return Registered(Opaque, name, _told, lambda state: Opaque(name, state))


def _told(value: Opaque) -> Any:
    return [value.name, value.fields]


CODEC = codec.Codec(_NoClasses(), "its class is not known here; give plain data")
"""Reads every value. What it writes is for comparing, never to be stored."""


class Values(NamedTuple):
    """What a checkpoint holds."""

    messages: list[Any]
    state: dict[str, Any]
    tools_result: dict[str, Any]
    next_node: str


def repository_of(engine: CheckpointEngine) -> Repository:
    """Return what an engine reads checkpoints with."""
    backend = engine.checkpointer
    if not isinstance(backend, StoreBackend):
        raise UnsupportedByBackend(
            f"{type(backend).__name__} cannot be looked into; the built-in backends can (memory, SQLite, servers)"
        )
    return backend.repository


def number_of_cursor(cursor: str | None, giver: str) -> int | None:
    """Return the number that a cursor is; `giver` is what gave it."""
    if cursor is None:
        return None
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise InvalidInput(f"cursor is not one that {giver} gave; begin without one")
    return int(cursor)


async def stored_by_key(store: Store, keys: Sequence[Key]) -> dict[Key, Stored]:
    """Return those of these checkpoints that are stored."""
    if not keys:
        return {}
    return {loaded.stored.record.key: loaded.stored for loaded in await store.read_many(keys)}


async def require_thread(engine: CheckpointEngine, thread_id: str) -> None:
    """Raise CheckpointNotFound if there is no such thread. One that is all hidden, or damaged, is one nevertheless."""
    query = Query(thread_id=checks.thread_id(thread_id), namespace=None, hidden="also")
    try:
        count = await repository_of(engine).store.count(query)
    except CheckpointCorrupted:
        return
    if not count:
        # This says what may have been meant.
        await engine.resolve("@", thread_id=thread_id)


async def head_of(store: Store, thread_id: str, namespace: str = "") -> Stored | None:
    """Return the head of a thread, if there is one that can be read."""
    try:
        loaded = await store.read(thread_id, namespace)
    except CheckpointCorrupted:
        return None
    return loaded.stored if loaded is not None else None


async def stored_of(engine: CheckpointEngine, ref: Ref) -> Stored:
    """Return the checkpoint that a reference means."""
    found = await engine.resolve(ref) if isinstance(ref, str) else ref
    key = Key(found.thread_id, found.namespace, found.checkpoint_id)
    loaded = await repository_of(engine).store.read(*key)
    if loaded is None:
        raise CheckpointNotFound(key.checkpoint_id, key.thread_id)
    return loaded.stored


async def values_of(repository: Repository, stored: Stored) -> Values:
    """Return the values of a checkpoint as plain data."""
    key = stored.record.key
    try:
        return redacted(await _values(repository, stored))
    except CheckpointCorrupted as exc:
        # It was deleted meanwhile, which is no damage.
        if await repository.store.read(*key) is None:
            raise CheckpointNotFound(key.checkpoint_id, key.thread_id) from None
        raise exc.located(key.thread_id, key.checkpoint_id) from exc


async def _values(repository: Repository, stored: Stored) -> Values:
    record = stored.record
    if not is_own(record.kind):
        loaded = await repository.load(*record.key)
        if loaded is None:
            raise CheckpointNotFound(record.key.checkpoint_id, record.key.thread_id)
        found, (messages, state, tools_result) = loaded
        return Values(messages, state, tools_result, found.record.next_node)
    messages, state, tools_result = await repository.walk(_read(record.root), [stored.family])
    if type(messages) is not list or type(state) is not dict or type(tools_result) is not dict:
        raise CheckpointCorrupted("a stored checkpoint is out of shape")
    return Values(messages, state, tools_result, record.next_node)


async def root_values(
    repository: Repository, stored: Stored, root: Root | None, objects: Mapping[bytes, tree.Content]
) -> list[Any]:
    """Return the values below a root that may not be stored (None: that of the checkpoint), of the same family."""
    adapter = adapter_of(stored.record.kind)
    found = root if root is not None else stored.record.root
    if adapter is None:
        return await repository.walk(_read(found), [stored.family], objects)
    return await repository.walk(_read(shown_root(found), adapter.codec), [stored.family], objects)


def _read(root: Root, reader: codec.Codec = CODEC) -> Need[list[Any]]:
    walker = Walker([root], reader)
    nodes = yield from walker.values(root)
    return (yield from walker.read(list(nodes)))


# -- a look at the end of a conversation, without reading all of it


async def last_messages(repository: Repository, stored: Mapping[Key, Stored]) -> dict[Key, Any]:
    """Return the newest message of each checkpoint (of one family), as it is kept; None where there is none."""
    if not stored:
        return {}
    found = list(stored.values())
    reader = adapter_of(found[0].record.kind)
    walker = Walker((), CODEC if reader is None else reader.codec)
    need = together([_last_message(walker, each.record.root) for each in found])
    messages = await repository.walk(need, [found[0].family])
    return dict(zip(stored, messages, strict=True))


def _last_message(walker: Walker, root: Root) -> Need[Any]:
    # What is too large to be a checkpoint of ours is damaged, and would be read only to find that out.
    if not root.sizes or root.sizes[0] > tree.VALUE_BYTES_MAX:
        return None
    nodes = tree.nodes(*root)
    # A checkpoint that was not split into parts has one node for all of them.
    if len(nodes) != 3:
        nodes = list((yield from walker.values(root)))
    items = yield from walker.list_of(nodes[0])
    if items is None or not items.length:
        return None
    part = items.parts[-1]
    while part.level:
        yield from walker.want([part.node.children])
        part = walker.group(part)[-1]
    (message,) = yield from walker.read([part.node])
    return message


async def written(repository: Repository, family: str, write: Write) -> Any:
    """Return the value of a pending write, as values are shown elsewhere. It is LangGraph's savers who attach them."""
    from everstep.langgraph import display  # loaded when such a thread is met

    value = await repository.walk(_value(write, display.CODEC), [family])
    return display.shown(write.body[0], value)


def _value(write: Write, reader: codec.Codec) -> Generator[Any, Any, Any]:
    walker = Walker((), reader)
    # The first byte says in which form the value is kept.
    (value,) = yield from walker.read([tree.Node(write.children, write.body[1:], write.size)])
    return value
