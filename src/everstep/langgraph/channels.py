"""Channel values as nodes and back. What did not change is not written again; a list that grew costs what was added.

A checkpoint has three nodes, like the engine's: the channel `messages` if it holds a list, the other channels by name,
and the rest of the checkpoint (versions and so on). Each value is kept in one of the forms below. Bytes decide what
has changed, never Python's equality, identity or a promise: a message changed in place is seen.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from everstep.errors import CheckpointCorrupted, EverstepError, UnstorableValue
from everstep.langgraph.kinds import Kinds
from everstep.langgraph.messages import Bare, Messages, Packed, Shape, Template, fields_of, shape_of
from everstep.langgraph.quiet import QUIET
from everstep.values import codec, compress, tree

PLAIN: Final = 0
CHAT: Final = 1
"""A list of messages, each as a dict."""
MESSAGE: Final = 2
"""A message: a list of one."""
FOREIGN: Final = 3
"""Bytes of the graph's own serializer: [type, bytes]."""

LIST_CHANNEL = "messages"
SEED, WRITES = "seed:", "writes:"
KEPT = (SEED, WRITES)
"""How the names of trees in the rest of a checkpoint begin: what values of delta channels are made from."""

_TEMPLATES_MAX = 1 << 16
_TEMPLATES_BYTES_MAX = 32 << 20
_MANY_BYTES = 1 << 16
_LENGTH_FREE = 1 << 16  # a conversation up to this length is read without asking how much of it is the same
_ROOT_BYTES = 128  # a mapping up to this size stands in the root itself


def repeats_max() -> int:
    """Return what repetition in the values of a checkpoint may cost: messages take twice as much as plain dicts."""
    return tree.REPEATS_MAX // 2


Form = int | dict[str, int]
"""How a value is kept; a dict that holds messages has a form for some of its keys."""


class Written(NamedTuple):
    """A value as it is written: its form, and what is needed to write its successor cheaply."""

    form: Form
    size: int
    packed: bytes
    """The whole value, packed."""
    node: tree.Node | None
    """As a part of a mapping, None as long as it has not been one; a list node if it `is_list`."""
    length: int = -1
    """How many items a list has; -1: it is none, or is kept whole."""
    has_bytes: bool = True
    """Whether a list may hold bytes values, which are compared with more care."""
    top: bool = False
    """It stands by itself, not in a mapping."""
    shape: Shape | None = None
    """Of a list of messages all of which are usual: they are compared in few steps."""
    copies: Copies | None = None
    """Of a list of messages."""
    split: bool = False
    """A mapping around it is split too, however small: its messages are objects of their own."""
    version: Any = None

    @property
    def is_list(self) -> bool:
        """Whether `node` is a list node that can be extended."""
        return self.length >= 0


class Copies:
    """The messages of a conversation to make copies of, once it has been read again: copies share their texts."""

    __slots__ = ("owner", "reads", "state")

    def __init__(self, owner: object, reads: int = 0, state: _Ready | None = None) -> None:
        self.owner, self.reads, self.state = owner, reads, state

    def grown(self, added: list[bytes]) -> Copies:
        """Return the same for a conversation to which these messages were added."""
        state = self.state
        return Copies(self.owner, self.reads, None if state is None else _Ready(state.done, state.pending + added))


class _Ready(NamedTuple):
    done: list[Template | Packed | Bare]
    pending: list[bytes]
    """Messages that were added since, packed."""


class Channels:
    """Writes and reads values by one saver's rules."""

    def __init__(self, kinds: Kinds, custom: Any = None) -> None:
        """`custom` is the caller's own serializer, which then gets every value."""
        self.kinds, self._custom = kinds, custom
        self._codec, self._messages = kinds.codec, Messages(kinds)
        self.rules: Final = object()
        """Stands for these rules where they are remembered: what is remembered must not keep classes alive."""
        self._templates: dict[bytes, Template | Packed | Bare] = {}
        self._templates_bytes = 0  # about: readers may come at once
        self._groups: dict[bytes, list[bytes | tree.Node]] = {}

    # -- writing

    def stands_alone(self, name: str, value: Any) -> bool:
        """Whether a channel is the conversation, which has a place of its own."""
        return name == LIST_CHANNEL and type(value) is list and self._custom is None

    def written(self, writer: tree.Writer, name: str, value: Any, old: Written | None, *, top: bool = False) -> Written:
        """Write a value; `old` is what stood there before; `top`: a list stands by itself, not in a mapping."""
        if old is not None and old.is_list and old.shape is not None and type(value) is list:
            grown = self._grown(writer, name, value, old, old.shape)
            if grown is not None:
                return grown
        form, lowered = self.lowered(value, name)
        if isinstance(form, dict):
            return self._mixed(writer, name, form, lowered)
        if type(lowered) is not list:
            packed = self._codec.pack(lowered, name)
            if old is not None and old.form == form and old.packed == packed:
                return old
            if len(packed) <= tree.ENTRY_MAX:
                return Written(form, len(packed), packed, None)
            # From the bytes: another thread may be changing the value, and all of its parts are to be of one moment.
            node = writer.packed(packed, name, tree.ENTRY_MAX, 1)
            return Written(form, node.size, packed, node)
        kept = old.length if old is not None and old.is_list and old.form == form and old.length <= len(lowered) else 0
        if old is not None and not (kept and self._is_same(lowered[:kept], old, name)):
            old, kept = None, 0
        fresh = lowered[kept:]
        if old is not None and not fresh:
            return old
        added = [self._codec.pack(item, f"{name}[{kept + n}]") for n, item in enumerate(fresh)]
        before = memoryview(old.packed)[len(codec.array_header(kept)) :] if old is not None else b""
        has_bytes = codec.holds_bytes(lowered if old is not None and old.has_bytes else fresh)
        shape = shape_of(value, lowered) if form == CHAT and not has_bytes else None
        copies = Copies(self.rules) if form == CHAT else None
        written = self._list(writer, name, form, old, before, added, top)
        return written._replace(has_bytes=has_bytes, shape=shape, copies=copies)

    def _grown(self, writer: tree.Writer, name: str, value: list[Any], old: Written, shape: Shape) -> Written | None:
        """Return a conversation that has grown, or is as it was; None if something else happened to it."""
        kept = old.length
        fields = fields_of(value[:kept], shape) if len(value) >= kept else None
        if fields is None or not self._codec.packs_to(fields, old.packed):
            return None
        fresh = value[kept:]
        if not fresh:
            return old
        lowered = self._messages.lowered(fresh)
        if lowered is None:
            return None
        added = [self._codec.pack(item, f"{name}[{kept + n}]") for n, item in enumerate(lowered)]
        before = memoryview(old.packed)[len(codec.array_header(kept)) :]
        has_bytes, new = codec.holds_bytes(lowered), shape_of(fresh, lowered)
        written = self._list(writer, name, CHAT, old, before, added, old.top)
        return written._replace(
            has_bytes=has_bytes,
            shape=shape.with_more(new) if new is not None and not has_bytes else None,
            copies=old.copies.grown(added) if old.copies is not None else None,
        )

    def _mixed(self, writer: tree.Writer, name: str, forms: dict[str, int], lowered: dict[str, Any]) -> Written:
        """Write a dict that holds messages, each as an object of its own: the same ones come again in other places."""
        parts = [codec.map_header(len(lowered))]
        entries: list[tuple[bytes, tree.Node]] = []
        for key, item in lowered.items():
            packed_key, path = self._codec.pack(key), codec.join_path(name, key)
            if key in forms:
                items = [self._codec.pack(message, path) for message in item]
                packed = b"".join([codec.array_header(len(items)), *items])
                node = writer.placed(writer.extended_packed(tree.EMPTY_LIST, items, path, 2))
            else:
                packed = self._codec.pack(item, path)
                node = writer.packed(packed, path, tree.ENTRY_MAX, 2)
            parts += [packed_key, packed]
            entries.append((packed_key, node))
        whole = b"".join(parts)
        node = writer.map_of(entries, len(entries), len(whole))
        return Written(forms, len(whole), whole, node, split=True)

    def _is_same(self, items: list[Any], old: Written, name: str) -> bool:
        """Whether these items are exactly those that were written."""
        if not old.has_bytes:
            return self._codec.packs_to(items, old.packed)
        return self._codec.pack(items, name) == old.packed

    def extended(self, writer: tree.Writer, name: str, old: Written | None, items: Sequence[Any]) -> Written:
        """Write a plain list with items added at its end, without looking at those it has."""
        before, length = b"", 0
        if old is not None:
            length = codec.length(old.packed)
            before = old.packed[len(codec.array_header(length)) :]
        added = [self._codec.pack(item, f"{name}[{length + n}]") for n, item in enumerate(items)]
        if old is not None and not old.is_list:  # it was kept whole so far
            added, before = [*codec.items(old.packed), *added], b""
            old = None
        return self._list(writer, name, PLAIN, old, before, added, top=False)

    def _list(
        self,
        writer: tree.Writer,
        name: str,
        form: Form,
        old: Written | None,
        before: bytes | memoryview,
        added: list[bytes],
        top: bool,
    ) -> Written:
        """Write a list: that of `old`, whose items packed are `before`, and what is added."""
        length = (old.length if old is not None else 0) + len(added)
        packed = b"".join([codec.array_header(length), before, *added])
        if not top and len(packed) <= tree.ENTRY_MAX:
            return Written(form, len(packed), packed, None)
        start = old.node if old is not None and old.node is not None else tree.EMPTY_LIST
        node = writer.extended_packed(start, added, name, 0 if top else 1)
        return Written(form, len(packed), packed, node, length, top=top)

    def whole(self, writer: tree.Writer, name: str, old: Written) -> Written:
        """Write a value again whose objects may be gone."""
        return old._replace(node=writer.packed_list(old.packed, name, 1) if old.is_list else None, top=False)

    def pending(self, writer: tree.Writer, name: str, value: Any) -> tuple[int, tree.Node]:
        """Write a pending write: its form and its node."""
        form, lowered = self.lowered(value, name)
        if isinstance(form, dict):
            return PLAIN, writer.packed(self._codec.pack(value, name), name)
        if form in (CHAT, MESSAGE):  # as a list node, whose items are the same objects as those of the conversation
            packed = [self._codec.pack(message, name) for message in lowered]
            return form, writer.extended_packed(tree.EMPTY_LIST, packed, name)
        return form, writer.packed(self._codec.pack(lowered, name), name)

    def packed(self, value: Any, name: str) -> tuple[Form, bytes]:
        """Return a value that is kept by itself: its form and its bytes. `unpacked` gives it back."""
        form, lowered = self.lowered(value, name)
        return form, self._codec.pack(lowered, name)

    def lowered(self, value: Any, name: str) -> tuple[Form, Any]:
        """Return the form of a value and what is packed for it."""
        if self._custom is not None:
            try:
                kind, data = self._custom.dumps_typed(value)
            except Exception as exc:
                what = f"a {type(value).__module__}.{type(value).__qualname__}"
                raise UnstorableValue(name, what, f"the serializer failed: {exc!r:.200}") from exc
            return FOREIGN, [kind, bytes(data)]
        if type(value) is list and value:
            messages = self._messages.lowered(value)
            if messages is not None:
                return CHAT, messages
        elif hasattr(value, "__pydantic_fields_set__"):
            messages = self._messages.lowered([value])
            if messages is not None:
                return MESSAGE, messages
        elif type(value) is dict and value and codec.has_text_keys(value):
            return self._lowered_dict(value)
        return PLAIN, value

    def _lowered_dict(self, value: dict[str, Any]) -> tuple[Form, Any]:
        lowered, forms = dict(value), dict[str, int]()
        for key, item in list(lowered.items()):
            if type(item) is list and item:
                messages, form = self._messages.lowered(item), CHAT
            elif hasattr(item, "__pydantic_fields_set__"):
                messages, form = self._messages.lowered([item]), MESSAGE
            else:
                continue
            if messages is not None:
                lowered[key], forms[key] = messages, form
        return (forms, lowered) if forms else (PLAIN, value)

    def mapping(self, writer: tree.Writer, values: dict[str, Written]) -> tree.Node:
        """Write a mapping of written values: the node that `Writer.value` makes of it. Values get their nodes."""
        keys = {name: _packed_name(name) for name in values}
        header = codec.map_header(len(values))
        size = len(header) + sum([len(keys[name]) + value.size for name, value in values.items()])
        if size <= tree.ENTRY_MAX and not any(value.split for value in values.values()):
            parts = [part for name, value in values.items() for part in (keys[name], value.packed)]
            try:
                return writer.packed(b"".join([header, *parts]), "checkpoint")
            except UnstorableValue:
                for name, value in values.items():
                    codec.check_depth(value.packed, 1, name)
                raise
        entries: list[tuple[bytes, tree.Node]] = []
        for name, value in values.items():
            if value.node is None:
                value = values[name] = value._replace(node=writer.packed(value.packed, name, tree.ENTRY_MAX, 1))
            node = value.node or tree.EMPTY_LIST
            entries.append((keys[name], writer.placed(node) if value.is_list else node))
        return writer.map_of(entries, len(entries), size, inline_max=_ROOT_BYTES)

    def envelope(self, writer: tree.Writer, rest: dict[str, Any], kept: dict[str, Written]) -> tree.Node:
        """Write what a checkpoint is besides its values.

        It differs from step to step, so it stands in the root, compressed; as a mapping if it holds trees (`kept`).
        """
        whole = self._codec.pack(rest, "checkpoint")
        if not kept and len(whole) <= tree.ENTRY_MAX:
            return writer.inline(self._codec.pack(compress.squeeze_fast(whole)))
        written: dict[str, Written] = {}
        for name, value in rest.items():
            packed = self._codec.pack(value, name)
            written[name] = Written(PLAIN, len(packed), packed, None)
        written.update(kept)
        node = self.mapping(writer, written)
        kept.update({name: written[name] for name in kept})
        return node

    # -- reading

    def read(self, form: Form, stored: Any) -> Any:
        """Return the value that was kept in this form, from what was unpacked.

        Both are what stored bytes say. Types are looked at and nothing else: a method of theirs might do anything.
        """
        if type(form) is dict:
            if type(stored) is not dict:
                raise CheckpointCorrupted("a stored channel is out of shape")
            return {key: self.read(form.get(key, PLAIN), item) for key, item in stored.items()}
        if type(form) is not int:
            raise CheckpointCorrupted("the form of a stored channel is out of shape")
        if form == PLAIN:
            return stored
        if type(stored) is not list:
            raise CheckpointCorrupted("a stored channel is out of shape")
        if form in (CHAT, MESSAGE):
            messages = self._messages.built(stored)
            if form == MESSAGE and len(messages) != 1:
                raise CheckpointCorrupted("a stored message is out of shape")
            return messages if form == CHAT else messages[0]
        if form == FOREIGN:
            return self._loaded(stored)
        raise CheckpointCorrupted(f"a stored channel has the unknown form {form}")

    def unpacked(self, form: Form, packed: bytes) -> Any:
        """Return the value that `packed` was called with."""
        return self.read(form, self._codec.unpack(packed))

    def _loaded(self, stored: list[Any]) -> Any:
        if self._custom is None:
            raise CheckpointCorrupted(
                "the value was saved with a serializer of its own; pass it as serde= to read the thread"
            )
        try:
            kind, data = stored
            return self._custom.loads_typed((kind, data))
        except EverstepError:
            raise
        except Exception as exc:
            raise CheckpointCorrupted(f"the serializer cannot read a stored value: {exc!r:.200}") from exc

    def conversation(self, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> list[Any]:
        """Return the messages of a list node, from templates: for readers of many checkpoints of one history."""
        parts: list[bytes | tree.Node] = []
        opened = tree.opened(node.children, node.body)
        if opened.length > _LENGTH_FREE:
            tree.refuse_repeats(tree.repeats(node.children, node.body, objects.get), repeats_max())
        self._collect(opened.parts, objects, parts, opened.length)
        known = self._templates
        found = {part: known.get(part) for part in parts if isinstance(part, bytes)}
        missing = [key for key, template in found.items() if template is None]
        if missing:
            bodies = [_joined(tree.Node(key, tree.REF_BODY, 0), objects) for key in missing]
            fresh = dict(zip(missing, self._messages.templates(bodies), strict=True))
            found.update(fresh)
            if len(known) > _TEMPLATES_MAX or self._templates_bytes > _TEMPLATES_BYTES_MAX:
                known.clear()
                self._templates_bytes = 0
            known.update(fresh)
            self._templates_bytes += sum(map(len, bodies))
        templates = [found[part] if isinstance(part, bytes) else part for part in parts]
        with QUIET:
            return [
                self._messages.decoded(_joined(item, objects)) if isinstance(item, tree.Node) else item.copy()
                for item in templates
                if item is not None
            ]

    def _collect(
        self,
        parts: Iterable[tree.Part],
        objects: Mapping[bytes, tree.Content],
        found: list[bytes | tree.Node],
        length: int,
    ) -> None:
        """Add the items of a list in order: the hash of an object, or a node that stands in the list itself.

        Not more than `length`, which is what the list says: a few groups that hold one another could be any number.
        """
        groups = self._groups
        for level, node in parts:
            key = node.children
            if level == 0:
                found.append(key if node.body == tree.REF_BODY else node)
                continue
            below = groups.get(key)
            if below is None:
                below = []
                self._collect(tree.opened_group(level, *tree.content_of(key, objects)), objects, below, length)
                if len(groups) > _TEMPLATES_MAX:
                    groups.clear()
                groups[key] = below
            if len(found) + len(below) > length:
                raise CheckpointCorrupted("a stored conversation is not as long as it says")
            found.extend(below)

    def value(self, form: Form, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> Any:
        """Return the value of a node in any form."""
        return self.read(form, self._codec.unpack(_joined(node, objects)))

    def opened_envelope(
        self, node: tree.Node, objects: Mapping[bytes, tree.Content]
    ) -> tuple[dict[str, Any], dict[str, tree.Node]]:
        """Return what `envelope` wrote: plain values, and the nodes of trees."""
        if node.body[0] == tree.PACKED:
            squeezed = self.plain(node, objects)
            if type(squeezed) is bytes:
                return _checked_envelope(self._codec.unpack(compress.expand(squeezed))), {}
        entries = tree.entries(node, objects)
        if entries is None:  # kept whole, being small, its trees as well
            parts = codec.items(_joined(node, objects))
            entries = {key: tree.inline(value) for key, value in zip(parts[::2], parts[1::2], strict=True)}
        named = {_unpacked_name(key): value for key, value in entries.items()}
        kept = {name: value for name, value in named.items() if name.startswith(KEPT)}
        if sum([_size_of(value, objects) for value in kept.values()]) >= tree.REPEATS_FREE:
            # They are read one by one, and any number of them may be the same.
            tree.refuse_repeats(tree.repeats(node.children, node.body, objects.get), repeats_max())
        rest = {name: self.plain(value, objects) for name, value in named.items() if name not in kept}
        return _checked_envelope(rest), kept

    def plain(self, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> Any:
        """Return the plain value of a node."""
        return self._codec.unpack(_joined(node, objects))

    def mapping_of(self, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> dict[str, Any]:
        """Return the values that `mapping` wrote, as they are kept."""
        found = self.plain(node, objects)
        if type(found) is not dict:
            raise CheckpointCorrupted("the channels of a stored checkpoint are out of shape")
        return found

    def delta_items(self, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> list[tuple[str, Any, Any]]:
        """Return the writes that a checkpoint keeps of a delta channel: task, form and what is kept of the value."""
        items = self.plain(node, objects)
        if type(items) is not list:
            raise CheckpointCorrupted("the writes of a stored channel are out of shape")
        for item in items:
            if type(item) is not list or len(item) != 3 or type(item[0]) is not str:
                raise CheckpointCorrupted("the writes of a stored channel are out of shape")
        return [(task, form, value) for task, form, value in items]

    def unwritten(self, written: Written) -> Any:
        """Return the value that was written."""
        if written.size < _MANY_BYTES:
            return self.read(written.form, self._codec.unpack(written.packed))
        with QUIET:
            templates = self._ready(written)
            if templates is not None:
                return [template.copy() for template in templates]
            return self.read(written.form, self._codec.unpack(written.packed))

    def _ready(self, written: Written) -> list[Template | Packed | Bare] | None:
        """Return the messages of a conversation to copy; None if it is read for the first time, or is none."""
        copies = written.copies
        if copies is None or copies.owner is not self.rules:
            return None
        copies.reads += 1
        state = copies.state
        if state is None:
            whole = self._messages.templates_of([written.packed]) if copies.reads > 1 else None
            if whole is None:
                return None
            state = copies.state = _Ready(whole, [])
        elif state.pending:
            state = copies.state = _Ready([*state.done, *self._messages.templates(state.pending)], [])
        return state.done

    def opened(
        self, forms: Mapping[str, Form], node: tree.Node, objects: Mapping[bytes, tree.Content]
    ) -> dict[str, Written]:
        """Return the values of a mapping as they were written."""
        entries = tree.entries(node, objects)
        if entries is not None:
            named = {_unpacked_name(key): value for key, value in entries.items()}
            return {name: self.thawed(forms.get(name, PLAIN), value, objects) for name, value in named.items()}
        flat = codec.items(_joined(node, objects))
        names = [_unpacked_name(key) for key in flat[::2]]
        values = zip(names, flat[1::2], strict=True)
        return {name: Written(forms.get(name, PLAIN), len(packed), packed, None) for name, packed in values}

    def thawed(
        self, form: Form, node: tree.Node, objects: Mapping[bytes, tree.Content], *, top: bool = False
    ) -> Written:
        """Return a value that was read as it was written, so that its successor can be written from it."""
        packed = _joined(node, objects)
        inner = tree.Node(*tree.content_of(node.children, objects), 0) if node.body == tree.REF_BODY else node
        if tree.is_list(inner):
            written = Written(
                form, len(packed), packed, inner._replace(size=len(packed)), codec.length(packed), top=top
            )
            return written._replace(copies=Copies(self.rules)) if form == CHAT else written
        return Written(form, len(packed), packed, node._replace(size=len(packed)) if node.children else None)


def added_to(value: Written, old: Written | None) -> bytes:
    """Return the bytes by which a value has grown: all of them, unless a list has more items at its end."""
    if old is None:
        return value.packed
    if value.packed == old.packed:
        return b""
    if old.is_list and value.is_list:
        start = len(codec.array_header(value.length))
        before = old.packed[len(codec.array_header(old.length)) :]
        if value.packed.startswith(before, start):
            return value.packed[start + len(before) :]
    return value.packed


@functools.lru_cache(4096)  # channels have few names
def _packed_name(name: str) -> bytes:
    return codec.pack(name)


def _unpacked_name(packed: bytes) -> str:
    name = codec.unpack(packed)
    if type(name) is not str:
        raise CheckpointCorrupted("the name of a stored channel is no text")
    return name


_ENVELOPE: dict[str, type] = {
    "channel_versions": dict, "versions_seen": dict, "forms": dict, "seeds": dict, "more": dict, "odd": dict,
    "absent": list,
}  # fmt: skip


def _checked_envelope(envelope: Any) -> dict[str, Any]:
    """Return what a checkpoint is besides its values, if its parts are of the types that are written."""
    if type(envelope) is not dict or any(
        type(envelope[name]) is not kind for name, kind in _ENVELOPE.items() if name in envelope
    ):
        raise CheckpointCorrupted("a stored checkpoint is out of shape")
    return dict(envelope)


def _size_of(node: tree.Node, objects: Mapping[bytes, tree.Content]) -> int:
    """Return how large a value is when packed; nothing more of it is read."""
    if node.body == tree.REF_BODY:
        return tree.packed_size(*tree.content_of(node.children, objects))
    return tree.packed_size(node.children, node.body)


def _joined(node: tree.Node, objects: Mapping[bytes, tree.Content]) -> bytes:
    reader = tree.Reader(objects, node.size or tree.VALUE_BYTES_MAX, repeats_max())
    parts: Sequence[list[bytes]] = reader.fields(node.children, node.body, 1)
    return b"".join(parts[0])
