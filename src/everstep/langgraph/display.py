"""A saver's checkpoints as plain data: what the engine shows of them.

Messages are dicts, and so are objects: no class is looked up, so that every process sees the same.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from everstep.errors import CheckpointCorrupted
from everstep.langgraph.channels import CHAT, LIST_CHANNEL, MESSAGE, PLAIN, SEED, WRITES, Channels, Form
from everstep.langgraph.classes import ADVICE, Kinds, special_for_name
from everstep.langgraph.messages import MARK
from everstep.reports import Difference
from everstep.stores.protocol import Record
from everstep.values import codec, registry, tree
from everstep.values.registry import Registered
from everstep.values.walk import key_path

_TO = "branch:to:"
_JOIN = "join:"
_SENT = "__pregel_tasks"
_START = "__start__"
_INTERNAL = ("__", _TO, _JOIN)
_INTERNAL_PATH = re.compile(r"state(\.__|\['(__|branch:to:|join:))")


class _PlainTypes:
    """Every class as plain data, but for those that somebody has registered with the engine."""

    def for_type(self, cls: type) -> Registered | None:
        return registry.for_type(cls)

    def for_name(self, name: str) -> Registered:
        found = registry.for_name(name)
        if found is None and _is_special(name):
            found = special_for_name(name)
        return found or Registered(object, name, _keep, _WAYS.get(name, _fields))


def _is_special(name: str) -> bool:
    """Whether a name may be one of ours instead of a class's: arrays are, where numpy is imported anyway."""
    if name.startswith("numpy:"):
        return "numpy" in sys.modules
    return ":" not in name


def _keep(value: Any) -> Any:
    return value


def _fields(state: Any) -> Any:
    """Return what is kept of an object as data: fields by name, the name of an enum's member, or a tuple."""
    if not isinstance(state, list):
        return state
    match state:
        case [dict() as fields, extra, _, _, *_]:
            return fields | (extra or {})  # a pydantic model
        case [value]:
            return value
        case [str() as name, list()]:
            return name  # a member of an enum, with its value
        case [dict() as items, attributes]:
            return items | attributes  # a named tuple
        case [None, value]:
            return value
        case _:
            return state


def _sent(state: Any) -> Any:
    if not isinstance(state, list) or len(state) < 2:
        return state
    return {"node": state[0], "arg": state[1]}


def _snapshot(state: Any) -> Any:
    if isinstance(state, tuple) and state:
        return state[0]
    return state


_WAYS: dict[str, Callable[[Any], Any]] = {
    "langgraph.types:Send": _sent,
    "langgraph.checkpoint.serde.types:_DeltaSnapshot": _snapshot,
}


class _Plainly:
    """What `Channels` needs to know of classes."""

    codec = codec.Codec(_PlainTypes(), ADVICE)


CODEC: Final = _Plainly.codec
_CHANNELS: Final = Channels(cast(Kinds, _Plainly()))


def opened(record: Record, objects: Mapping[bytes, tree.Content]) -> tuple[list[Any], str]:
    """Return messages, state and results of tool calls (none), and the nodes that come next."""
    if len(record.sizes) != 3:
        raise CheckpointCorrupted("a stored checkpoint is out of shape")
    conversation, others, rest = tree.nodes(record.children, record.body, record.sizes)
    envelope, kept = _CHANNELS.opened_envelope(rest, objects)
    forms: Mapping[str, Form] = envelope.get("forms", {})
    channels = _CHANNELS.mapping_of(others, objects)
    if LIST_CHANNEL in forms and LIST_CHANNEL not in channels:
        channels[LIST_CHANNEL] = _CHANNELS.plain(conversation, objects)
    values = {name: shown(forms.get(name, PLAIN), value) for name, value in channels.items()}
    _add_deltas(values, envelope.get("seeds", {}), kept, objects)
    messages = []
    if isinstance(values.get(LIST_CHANNEL), list):
        messages = values.pop(LIST_CHANNEL)
    state = {name: value for name, value in values.items() if not is_internal(name)}
    return [messages, state, {}], ", ".join(_next(values))


def _add_deltas(
    values: dict[str, Any],
    forms: Mapping[str, Form],
    kept: Mapping[str, tree.Node],
    objects: Mapping[bytes, tree.Content],
) -> None:
    """Add the values of delta channels that are not stored whole."""
    for key in kept:
        if not key.startswith(WRITES):
            continue
        name = key.removeprefix(WRITES)
        if name in values:
            continue
        folded = _delta_value(name, forms.get(name, PLAIN), kept, objects)
        if folded is not None:
            values[name] = folded


def _delta_value(
    name: str, form: Form, kept: Mapping[str, tree.Node], objects: Mapping[bytes, tree.Content]
) -> list[Any] | None:
    """Return the value of a delta channel: its last whole one, and what was written since."""
    start: Any = []
    seed = kept.get(SEED + name)
    if seed is not None:
        start = shown(form, _CHANNELS.plain(seed, objects))
    items = _CHANNELS.delta_items(kept[WRITES + name], objects)
    return _folded(start, [shown(form, value) for _, form, value in items])


def forms(rest: tree.Node, objects: Mapping[bytes, tree.Content]) -> Mapping[str, Form]:
    """Return the forms of channels, from what a checkpoint is besides its values."""
    found: Mapping[str, Form] = _CHANNELS.opened_envelope(rest, objects)[0].get("forms", {})
    return found


def difference(change: Difference, before: Mapping[str, Form], after: Mapping[str, Form]) -> Difference:
    """Return a difference as values are shown: a channel of one message is that message, not a list of it."""
    path = change.path
    values = [change.before, change.after]
    for name in before.keys() | after.keys():
        where = path_of(name)
        kinds = [before.get(name, PLAIN), after.get(name, PLAIN)]
        if path == where:
            values = [shown(kind, value) for kind, value in zip(kinds, values, strict=True)]
        elif MESSAGE in kinds and path.startswith(f"{where}[0]"):
            path = where + path.removeprefix(f"{where}[0]")
    if path.startswith("messages["):
        values = [_bare(value) for value in values]
    return Difference(path, change.kind, *values)


def is_internal(name: str) -> bool:
    """Whether a channel is LangGraph's own bookkeeping."""
    return name.startswith(_INTERNAL)


def starts_nodes(name: str) -> bool:
    """Whether nodes come next, or wait for others, if this channel has a value that is not empty."""
    return name.startswith((_TO, _JOIN)) or name in (_SENT, _START)


def path_of(name: str) -> str:
    """Return the path of a channel in the state."""
    return key_path("state", codec.pack(name))


def is_internal_path(path: str) -> bool:
    """Whether a path leads into LangGraph's own bookkeeping."""
    return _INTERNAL_PATH.match(path) is not None


def described(record: Record) -> tuple[tuple[str, ...], str]:
    """Return tags and a summary: those of a branch or merge, or what LangGraph says of the checkpoint."""
    tags = record.tags
    source = record.metadata.get("source")
    if not tags and isinstance(source, str):
        tags = (source,)
    return tags, record.summary


def shown(form: Form, value: Any) -> Any:
    """Return a value that is kept in this form."""
    if isinstance(form, dict) and isinstance(value, dict):
        return {key: shown(form.get(key, PLAIN), item) for key, item in value.items()}
    if form in (CHAT, MESSAGE) and isinstance(value, list):
        messages = [_bare(message) for message in value]
        if form == CHAT:
            return messages
        # A channel of one message is kept as a list of it.
        return next(iter(messages), None)
    return value


def _bare(message: Any) -> Any:
    """Return a message without the mark of what its fields do not say."""
    if not isinstance(message, dict):
        return message
    return {key: field for key, field in message.items() if key != MARK}


def _next(values: Mapping[str, Any]) -> list[str]:
    """Return the nodes that come next, as LangGraph's own channels say: those triggered, the first, those sent to."""
    names = [name.removeprefix(_TO) for name in values if name.startswith(_TO)]
    if _START in values:
        names.append(_START)
    sent = values.get(_SENT)
    if isinstance(sent, list):
        names += [send["node"] for send in sent if isinstance(send, dict)]
    return list(dict.fromkeys(names))


def _folded(start: Any, writes: list[Any]) -> list[Any] | None:
    """Return a list and what was written to it since, as LangGraph's own reducers would; None: it is no list."""
    if not isinstance(start, list):
        return None
    found = list(start)
    for write in writes:
        items = write
        if not isinstance(write, list):
            items = [write]
        for item in items:
            _fold(found, item)
    return found


def _fold(found: list[Any], item: Any) -> None:
    """Add an item, or put it in the place of the one of its id, or remove that one."""
    if not isinstance(item, dict) or item.get("id") is None:
        found.append(item)
        return
    is_removal = item.get("type") == "remove"
    for place, old in enumerate(found):
        if isinstance(old, dict) and old.get("id") == item["id"]:
            if is_removal:
                del found[place]
            else:
                found[place] = item
            return
    if not is_removal:
        found.append(item)
