"""Channel values as nodes and back. What did not change is not written again; a list that grew costs what was added.

A checkpoint has three nodes, like the engine's: the channel `messages` if it holds a list, the other channels by name,
and the rest of the checkpoint (versions and so on). Each value is kept in one of the forms below. Bytes decide what
has changed, never Python's equality, identity or a promise: a message changed in place is seen.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from everstep.errors import CheckpointCorrupted, EverstepError, UnstorableValue
from everstep.langgraph.classes import Kinds
from everstep.langgraph.gc_pause import QUIET
from everstep.langgraph.messages import Bare, Messages, Packed, Shape, Template, fields_of, shape_of
from everstep.values import codec, compress, tree
from everstep.values.long_values import LongValue, long_value
from everstep.values.overlap import NOTHING, Chunked, Overlap, chunked, chunked_packed, extended, overlap, single_items
from everstep.values.tree import repetition

PLAIN: Final = 0
CHAT: Final = 1
"""A list of messages, each as a dict."""
MESSAGE: Final = 2
"""A message: a list of one."""
FOREIGN: Final = 3
"""Bytes of the graph's own serializer: [type, bytes]."""

LIST_CHANNEL = "messages"
SEED = "seed:"
WRITES = "writes:"
KEPT = (SEED, WRITES)
"""How the names of trees in the rest of a checkpoint begin: what values of delta channels are made from."""

_NO_MESSAGES = frozenset((type(None), bool, int, float, str, bytes, dict))
"""The types of values of a dict that neither are messages nor lists of them."""
_TEMPLATES_MAX = 1 << 16
_TEMPLATES_BYTES_MAX = 32 << 20
_MANY_BYTES = 1 << 16
_LENGTH_FREE = 1 << 16  # a conversation up to this length is read without asking how much of it is the same
_FEW_KEYS = 64  # so many values are looked at before they are packed
_ROOT_BYTES = 128  # a mapping up to this size stands in the root itself
_TOGETHER_MAX = 1024  # values up to this size stand together


def repeats_max() -> int:
    """Return what repetition in the values of a checkpoint may cost: messages take twice as much as plain dicts."""
    return repetition.REPEATS_MAX // 2


Form = int | dict[str, int]
"""How a value is kept; a dict that holds messages has a form for some of its keys."""


class Written(NamedTuple):
    """A value as it is written: its form, and what is needed to write its successor cheaply."""

    form: Form
    size: int
    whole: bytes | None
    """The whole value, packed; None if it is in pieces, which the node has, or a list of items."""
    node: tree.Node | None
    """None: it is small, and stands together with others; a list node if it `is_list`."""
    items: Chunked | None = None
    """The items of a list; None: it is none, or is kept packed."""
    top: bool = False
    """It stands by itself, not in a mapping."""
    shape: Shape | None = None
    """Of a list of messages all of which are usual: they are compared in few steps."""
    copies: Copies | None = None
    """Of a list of messages."""

    @property
    def packed(self) -> bytes:
        """The whole value, packed."""
        return self.whole if self.whole is not None else b"".join(self.parts)

    @property
    def parts(self) -> list[bytes]:
        """The whole value, packed, in parts."""
        if self.whole is not None:
            return [self.whole]
        if self.items is not None:
            return self.items.parts()
        made = tree.made_of(self.node)
        if made is None:
            raise RuntimeError("a value that was written is not at hand")
        return made.parts()

    @property
    def is_list(self) -> bool:
        """Whether `node` is a list node that can be extended."""
        return self.items is not None


class Small(NamedTuple):
    """The values of a mapping that are small, and stand together."""

    entries: Mapping[str, bytes]
    """By name: the name and the value, packed."""
    packed: bytes
    """All of them, as a mapping."""


NONE_SMALL = Small({}, codec.map_header(0))


class Copies:
    """The messages of a conversation to make copies of, once it has been read again: copies share their texts."""

    __slots__ = ("owner", "reads", "state")

    def __init__(self, owner: object, reads: int = 0, state: _Ready | None = None) -> None:
        self.owner = owner
        self.reads = reads
        self.state = state

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
        self.kinds = kinds
        self._custom = custom
        self._codec = kinds.codec
        self._messages = Messages(kinds)
        self.rules: Final = object()
        """Stands for these rules where they are remembered: what is remembered must not keep classes alive."""
        self._templates: dict[bytes, Template | Packed | Bare] = {}
        self._templates_bytes = 0  # about: readers may come at once
        self._groups: dict[bytes, list[bytes | tree.Node]] = {}

    # -- writing

    def stands_alone(self, name: str, value: Any) -> bool:
        """Whether a channel is the conversation, which has a place of its own."""
        return name == LIST_CHANNEL and type(value) is list and self._custom is None

    def written(
        self,
        writer: tree.Writer,
        name: str,
        value: Any,
        old: Written | None,
        objects: Mapping[bytes, tree.Content] = MappingProxyType({}),
        *,
        top: bool = False,
    ) -> Written:
        """Write a value; `old` is what stood there before, of objects some of which are in `objects`.

        With `top` a list stands by itself, not in a mapping.
        """
        grown = self._grown(value, old) if old is not None and old.shape is not None else None
        if grown is not None:
            lowered, shape = grown
            return self._list(writer, CHAT, old, lowered, name, objects, top=top, shape=shape)
        if type(value) is dict and len(value) > _FEW_KEYS and self._custom is None:
            packed = self._codec.pack_plain(value)
            if packed is not None:  # then there are no messages in it, and it takes longer to look for them
                return self._in_bulk(writer, PLAIN, packed, old)
        form, lowered = self.lowered(value, name)
        if isinstance(form, dict):
            return self._mixed(writer, name, form, lowered)
        if form not in (CHAT, MESSAGE) and not top:
            made = tree.made_of(old.node) if old is not None else None
            packed = self._codec.pack_long(lowered, name, 1, made.version() if made is not None else None)
            return self._in_bulk(writer, form, packed, old)
        shape = shape_of(value, lowered) if form == CHAT else None
        return self._list(writer, form, old, lowered, name, objects, top=top, shape=shape)

    def _grown(self, value: Any, old: Written | None) -> tuple[list[Any], Shape | None] | None:
        """Return what is packed for a conversation of the same shape as before, which may have grown, and its shape.

        None: it may be something else. That looks at each message; this takes few steps.
        """
        if old is None or old.items is None or old.shape is None or type(value) is not list:
            return None
        kept = old.items.length
        fields = fields_of(value[:kept], old.shape) if len(value) >= kept else None
        if fields is None or len(value) == kept:
            return None if fields is None else (fields, old.shape)
        fresh = value[kept:]
        lowered = self._messages.lowered(fresh)
        if lowered is None:
            return None
        more = shape_of(fresh, lowered)
        return fields + lowered, old.shape.with_more(more) if more is not None else None

    def _in_bulk(self, writer: tree.Writer, form: Form, packed: bytes | LongValue, old: Written | None) -> Written:
        """Write a value as packed bytes, over the pieces of the old one."""
        if isinstance(packed, LongValue):
            return self._in_pieces(writer, form, packed, old)
        size = len(packed)
        if old is not None and old.form == form and old.whole == packed:
            return old
        if size <= _TOGETHER_MAX:
            return Written(form, size, packed, None)
        if size > tree.WHOLE_MAX:
            return self._in_pieces(writer, form, long_value(b"", packed), old)
        return Written(form, size, packed, writer.packed(packed))

    def _in_pieces(self, writer: tree.Writer, form: Form, value: LongValue, old: Written | None) -> Written:
        """Write a long value over the pieces of the old one."""
        before = old.node if old is not None else None
        # From the bytes: another thread may be changing the value, and all of its parts are to be of one moment.
        node = writer.long(value, tree.made_of(before))
        if old is not None and before is not None and old.form == form and node[:2] == before[:2]:
            writer.leave_out({before.children})
            return old if value.stretches is None else old._replace(node=before._replace(made=node.made))
        return Written(form, value.size, None, node)

    def _mixed(self, writer: tree.Writer, name: str, forms: dict[str, int], lowered: dict[str, Any]) -> Written:
        """Write a dict that holds messages; if it is large, each as an object, since it comes again in other places."""
        parts = [codec.map_header(len(lowered))]
        lists: dict[bytes, list[bytes]] = {}
        for key, item in lowered.items():
            packed_key = self._codec.pack(key)
            path = codec.join_path(name, key)
            if key in forms:
                messages = [self._codec.pack(message, path, 3) for message in item]
                lists[packed_key] = messages
                packed = b"".join([codec.array_header(len(messages)), *messages])
            else:
                packed = self._codec.pack(item, path, 2)
            parts += [packed_key, packed]
        whole = b"".join(parts)
        if len(whole) <= _TOGETHER_MAX:
            return Written(forms, len(whole), whole, None)
        entries: list[tuple[bytes, bytes | tree.Node]] = []
        for packed_key, packed in zip(parts[1::2], parts[2::2], strict=True):
            if packed_key in lists:
                node = writer.extended_packed(tree.EMPTY_LIST, lists[packed_key])
                entries.append((packed_key, writer.placed(node)))
            elif len(packed) <= _TOGETHER_MAX:
                entries.append((packed_key, packed))
            else:
                entries.append((packed_key, writer.packed(packed)))
        return Written(forms, len(whole), whole, writer.placed(writer.mapping(entries)))

    def extended(self, writer: tree.Writer, name: str, old: Written | None, items: Sequence[Any]) -> Written:
        """Write a plain list with items added at its end, without looking at those it has."""
        before = NOTHING
        if old is not None:
            before = old.items if old.items is not None else chunked_packed(codec.items(old.packed))
        added = [self._codec.pack(item, f"{name}[{before.length + n}]", 2) for n, item in enumerate(items)]
        return self._listed(writer, PLAIN, old, extended(before, added), {}, top=False)

    def _list(
        self,
        writer: tree.Writer,
        form: Form,
        old: Written | None,
        items: list[Any],
        name: str,
        objects: Mapping[bytes, tree.Content],
        *,
        top: bool,
        shape: Shape | None,
    ) -> Written:
        """Write a list item by item."""
        if old is not None and (old.form != form or old.top != top):
            old = None
        before = old.items if old is not None and old.items is not None else NOTHING
        packed = chunked(items, self._codec, name, before)
        return self._listed(writer, form, old, packed, objects, top=top, shape=shape, values=items)

    def _listed(
        self,
        writer: tree.Writer,
        form: Form,
        old: Written | None,
        items: Chunked,
        objects: Mapping[bytes, tree.Content],
        *,
        top: bool,
        shape: Shape | None = None,
        values: list[Any] | None = None,
    ) -> Written:
        """Write a list of packed items; what it has in common with the old one stays as it is.

        `values` are what the items were packed from, if that is at hand.
        """
        size = len(codec.array_header(items.length)) + sum(map(len, items.chunks))
        if not top and size <= _TOGETHER_MAX:
            packed = items.packed()
            return old if old is not None and old.whole == packed else Written(form, size, packed, None)
        if old is None or old.node is None or old.items is None:
            single = single_items(items, values, self._codec) if values is not None else codec.items(items.packed())
            node = writer.extended_packed(tree.EMPTY_LIST, single)
            return Written(form, size, None, node, items, top, shape, self._new_copies(form))
        common = overlap(items, old.items)
        if common.front == items.length == old.items.length:
            return old if old.shape is shape else old._replace(shape=shape)
        if common.front == old.items.length:
            node = writer.extended_packed(old.node, common.added)
            copies = old.copies.grown(common.added) if old.copies is not None else None
        else:
            node = _edited(writer, old.node, items, common, size, objects)
            copies = self._new_copies(form)
        return Written(form, size, None, node, items, top, shape, copies)

    def _new_copies(self, form: Form) -> Copies | None:
        return Copies(self.rules) if form == CHAT else None

    def anew(self, writer: tree.Writer, old: Written) -> Written:
        """Write a value again whose objects may be gone."""
        if old.is_list:
            return old._replace(node=writer.extended_packed(tree.EMPTY_LIST, codec.items(old.packed)), top=False)
        return self._in_bulk(writer, old.form, old.packed, None)

    def pending(self, writer: tree.Writer, name: str, value: Any) -> tuple[int, tree.Node]:
        """Write a pending write: its form and its node."""
        form, lowered = self.lowered(value, name)
        if isinstance(form, dict):
            return PLAIN, writer.packed(self._codec.pack(value, name))
        if form in (CHAT, MESSAGE):  # as a list node, whose items are the same objects as those of the conversation
            packed = [self._codec.pack(message, name, 1) for message in lowered]
            return form, writer.extended_packed(tree.EMPTY_LIST, packed)
        return form, writer.packed(self._codec.pack(lowered, name))

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
        elif type(value) is dict and value and {str}.issuperset(map(type, value)):
            kinds = set(map(type, value.values()))
            if not _NO_MESSAGES.issuperset(kinds) and codec.has_text_keys(value):
                return self._lowered_dict(value)
        return PLAIN, value

    def _lowered_dict(self, value: dict[str, Any]) -> tuple[Form, Any]:
        lowered = dict(value)
        forms = dict[str, int]()
        for key, item in list(lowered.items()):
            if type(item) is list and item:
                messages = self._messages.lowered(item)
                form = CHAT
            elif hasattr(item, "__pydantic_fields_set__"):
                messages = self._messages.lowered([item])
                form = MESSAGE
            else:
                continue
            if messages is not None:
                lowered[key], forms[key] = messages, form
        return (forms, lowered) if forms else (PLAIN, value)

    def small(
        self, values: Mapping[str, Written], before: Small = NONE_SMALL, changed: Collection[str] | None = None
    ) -> Small:
        """Return the small ones of these values; only `changed` ones are others than `before`, in the same places."""
        entries = dict(before.entries)
        for name in values if changed is None else changed:
            value = values[name]
            if value.node is not None:
                entries.pop(name, None)
                continue
            if changed is not None and name not in entries:
                return self.small(values)  # its place is among those that were small already
            entries[name] = _packed_name(name) + (value.whole if value.whole is not None else value.packed)
        return Small(entries, b"".join([codec.map_header(len(entries)), *entries.values()]))

    def mapping(
        self, writer: tree.Writer, values: Mapping[str, Written], small: Small, old: tree.Node | None = None
    ) -> tree.Node:
        """Write a mapping of written values, `small` ones among them; `old` is the node of the one before it."""
        if len(small.entries) == len(values):
            return writer.packed(small.packed, tree.made_of(old) if old is not None and old.made is not None else None)
        entries: list[tuple[bytes, bytes | tree.Node]] = []
        for name, value in values.items():
            part = value.packed if value.node is None else value.node
            if value.node is not None and value.is_list:
                part = writer.placed(value.node)
            entries.append((_packed_name(name), part))
        return writer.placed(writer.mapping(entries, old), _ROOT_BYTES)

    def envelope(
        self, writer: tree.Writer, rest: dict[str, Any], kept: dict[str, Written]
    ) -> tuple[tree.Node, bytes | None]:
        """Write what a checkpoint is besides its values; return its node, and it packed if it holds no trees (`kept`).

        It differs from step to step, so it stands in the root, compressed; as a mapping if it holds trees.
        """
        whole = self._codec.pack(rest, "checkpoint")
        if not kept and len(whole) <= tree.WHOLE_MAX:
            squeezed = compress.squeeze_fast(whole)
            return tree.inline(codec.bytes_header(len(squeezed)) + squeezed), whole
        written: dict[str, Written] = {}
        for name, value in rest.items():
            written[name] = self._in_bulk(writer, PLAIN, self._codec.pack(value, name, 1), None)
        written.update(kept)
        return self.mapping(writer, written, self.small(written)), None

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

    def conversation(
        self, node: tree.Node, objects: Mapping[bytes, tree.Content], *, shares: bool = False
    ) -> list[Any]:
        """Return the messages of a list node, from templates: for readers of many checkpoints of one history.

        With `shares` they are those that others get who share.
        """
        parts: list[bytes | tree.Node] = []
        opened = tree.opened(node.children, node.body)
        if opened.length > _LENGTH_FREE:
            tree.refuse_repeats(tree.repeats(node.children, node.body, objects.get, repeats_max()), repeats_max())
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
        made: list[Any] = []
        with QUIET:
            for item in templates:
                if isinstance(item, tree.Node):
                    made.append(self._messages.decoded(_joined(item, objects)))
                elif item is not None:
                    made.append(item.shared() if shares else item.copy())
        return made

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
        return self.read(form, self.plain(node, objects))

    def opened_envelope(
        self, node: tree.Node, objects: Mapping[bytes, tree.Content]
    ) -> tuple[dict[str, Any], dict[str, tree.Node]]:
        """Return what `envelope` wrote: plain values, and the nodes of trees."""
        packed = self.packed_envelope(node, objects)
        if packed is not None:
            return self.unpacked_envelope(packed), {}
        entries = self._entries(node, objects)
        named = {name: value if isinstance(value, tree.Node) else tree.inline(value) for name, value in entries.items()}
        kept = {name: value for name, value in named.items() if name.startswith(KEPT)}
        if sum([_size_of(value, objects) for value in kept.values()]) >= repetition.REPEATS_FREE:
            # They are read one by one, and any number of them may be the same.
            tree.refuse_repeats(tree.repeats(node.children, node.body, objects.get, repeats_max()), repeats_max())
        rest = {name: self.plain(value, objects) for name, value in named.items() if name not in kept}
        return _checked_envelope(rest), kept

    def packed_envelope(self, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> bytes | None:
        """Return what a checkpoint is besides its values, packed; None if it is kept as a mapping."""
        if node.body[0] != tree.PACKED:
            return None
        value = tree.inline_value(node)
        if value is not None and 2 < len(value) < 0x100 and value[:2] == codec.bytes_header(len(value) - 2):
            return compress.expand(value[2:])  # short bytes, as `envelope` mostly writes them
        squeezed = self.plain(node, objects)
        return compress.expand(squeezed) if type(squeezed) is bytes else None

    def unpacked_envelope(self, packed: bytes) -> dict[str, Any]:
        """Return what was packed, if its parts are of the types that are written."""
        return _checked_envelope(self._codec.unpack(packed))

    def plain(self, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> Any:
        """Return the plain value of a node."""
        packed = tree.inline_value(node)
        return self._codec.unpack_parts([packed] if packed is not None else _parts(node, objects))

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

    def unwritten_all(self, values: Mapping[str, Written], small: Small, forms: Mapping[str, Form]) -> dict[str, Any]:
        """Return the values that were written, `small` ones among them; `forms` are those that are not plain."""
        found: dict[str, Any] = self._codec.unpack(small.packed)
        for name, form in forms.items():
            if name in found:
                found[name] = self.read(form, found[name])
        if len(found) == len(values):
            return found
        return {name: found[name] if name in found else self.unwritten(value) for name, value in values.items()}

    def unwritten(self, written: Written) -> Any:
        """Return the value that was written."""
        if written.size < _MANY_BYTES:
            return self.read(written.form, self._codec.unpack_parts(written.parts))
        with QUIET:
            templates = self._ready(written)
            if templates is not None:
                return [template.copy() for template in templates]
            return self.read(written.form, self._codec.unpack_parts(written.parts))

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
        found: dict[str, Written] = {}
        for name, value in self._entries(node, objects).items():
            form = forms.get(name, PLAIN)
            if isinstance(value, tree.Node):
                found[name] = self.thawed(form, value, objects)
            else:
                found[name] = Written(form, len(value), value, None)
        return found

    def _entries(self, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> dict[str, bytes | tree.Node]:
        """Return the values of a mapping by name: packed, or the nodes of those that stand alone."""
        mapped = tree.entries(node, objects)
        entries: Sequence[tuple[bytes, bytes | tree.Node]] | None
        if mapped is not None:
            entries = mapped.ordered(_joined(mapped.together, objects))
        else:
            entries = codec.pairs(_joined(node, objects))
        if entries is None:
            raise CheckpointCorrupted("a stored mapping is out of shape")
        return {_unpacked_name(key): value for key, value in entries}

    def thawed_mapping(self, node: tree.Node, objects: Mapping[bytes, tree.Content]) -> tree.Node:
        """Return the node of a mapping that was read, so that the next one can be written over it."""
        mapped = tree.entries(node, objects)
        return node._replace(made=tree.in_pieces(node if mapped is None else mapped.together, objects))

    def thawed(
        self, form: Form, node: tree.Node, objects: Mapping[bytes, tree.Content], *, top: bool = False
    ) -> Written:
        """Return a value that was read as it was written, so that its successor can be written from it."""
        parts = _parts(node, objects)
        size = sum(map(len, parts))
        inner = tree.Node(*tree.content_of(node.children, objects), 0) if node.body == tree.REF_BODY else node
        if tree.is_list(inner):
            items = Chunked.uncut(tree.list_length(inner), b"".join(parts))
            return Written(form, size, None, inner._replace(size=size), items, top, copies=self._new_copies(form))
        made = tree.in_pieces(node, objects)
        whole = b"".join(parts) if made is None else None
        return Written(form, size, whole, node._replace(size=size, made=made))


def _edited(
    writer: tree.Writer,
    node: tree.Node,
    items: Chunked,
    common: Overlap,
    size: int,
    objects: Mapping[bytes, tree.Content],
) -> tree.Node:
    """Write a list in the middle or at the beginning of which something has changed."""
    try:
        return writer.replaced(node, common, size, objects)
    except tree.MissingObject:  # its groups are not in memory any more
        return writer.extended_packed(tree.EMPTY_LIST, codec.items(items.packed()))


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
    if type(envelope) is not dict:
        raise CheckpointCorrupted("a stored checkpoint is out of shape")
    for name, kind in _ENVELOPE.items():
        if name in envelope and type(envelope[name]) is not kind:
            raise CheckpointCorrupted("a stored checkpoint is out of shape")
    return envelope


def _size_of(node: tree.Node, objects: Mapping[bytes, tree.Content]) -> int:
    """Return how large a value is when packed; nothing more of it is read."""
    if node.body == tree.REF_BODY:
        return tree.packed_size(*tree.content_of(node.children, objects))
    return tree.packed_size(node.children, node.body)


def _joined(node: tree.Node, objects: Mapping[bytes, tree.Content]) -> bytes:
    return b"".join(_parts(node, objects))


def _parts(node: tree.Node, objects: Mapping[bytes, tree.Content]) -> list[bytes]:
    """Return the value of a node, packed, in parts."""
    reader = tree.Reader(objects, node.size or tree.VALUE_BYTES_MAX, repeats_max())
    return reader.fields(node.children, node.body, 1)[0]
