"""The packer of values: the fast way, which hands a value to the packer whole, and when to take another."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import ormsgpack

from everstep.errors import EverstepError, UnstorableValue
from everstep.values import registry
from everstep.values.codec import careful
from everstep.values.codec.plain import (
    DEPTH_MAX,
    FAST_DEPTHS,
    LONG_BYTES_MIN,
    PLAIN_DEPTH,
    Bulk,
    may_hold_mistaken,
    open_bulk,
    own_kinds,
    packed_content,
    packed_plain,
    packed_short,
    packed_text,
    refuse_mistaken,
    searched_bulk,
)
from everstep.values.codec.scalars import MAKERS
from everstep.values.codec.tags import FROZENSET, MAP, OBJECT, ROWS, SET, TUPLE
from everstep.values.codec.tokens import END, ENDED, array_header, bytes_header, depth, tag_header
from everstep.values.codec.unpacking import Types, Unpacking, is_long_bytes, joined_bytes
from everstep.values.long_values import LongValue, long_value
from everstep.values.packer import OPTIONS, pack_within
from everstep.values.part_types import CONTAINERS, PACKED
from everstep.values.set_orders import SetOrders
from everstep.values.stretches import Version

_ABOVE_MAX = DEPTH_MAX - PLAIN_DEPTH
_BULKS = frozenset((set, frozenset, dict))  # of what is not plain, these may be packed at once
_EMPTY_DICT = b"\x80"
_hidden = threading.local()  # an interrupt that the packer hides
_set_orders = SetOrders()


class Codec:
    """Packs and unpacks values; objects of the classes that `types` knows."""

    __slots__ = ("advice", "types")

    def __init__(self, types: Types, advice: str) -> None:
        self.types = types
        self.advice = advice

    def pack(self, value: Any, path: str = "value", depth_above: int = 0) -> bytes:
        """Return the canonical bytes of `value`; `path` is what errors call it. Raises UnstorableValue.

        It stands `depth_above` containers down, where it may nest so much less deep.
        """
        # There are many of these: no state, no keyword arguments.
        if type(value) is dict and not value and depth_above <= _ABOVE_MAX:
            return _EMPTY_DICT
        packed = self.pack_long(value, path, depth_above)
        return packed.whole() if isinstance(packed, LongValue) else packed

    def pack_long(
        self, value: Any, path: str = "value", depth_above: int = 0, before: Version | None = None
    ) -> bytes | LongValue:
        """Return what `pack` does, but that a long value is not put together. `before` is what it was, if anything."""
        try:
            if depth_above <= _ABOVE_MAX:
                plain = self.pack_plain(value, before)
                return plain or self._packed_bulk(value, before) or self._packed_tagged(value, 0)
            packed = self._packed_tagged(value, 0)
            if depth_above + depth(packed) <= DEPTH_MAX:
                return packed
        except (TypeError, EverstepError, RuntimeError):  # the packer's own errors are TypeErrors and hide their cause
            _raise_hidden()
        return ormsgpack.packb(careful.lowered(self, value, path, [0] * depth_above), option=OPTIONS)

    def pack_plain(self, value: Any, before: Version | None = None) -> bytes | LongValue | None:
        """Return what `pack_long` makes of a value that the packer writes exactly, by itself; None for any other."""
        kind = type(value)
        try:
            if kind in CONTAINERS:
                return packed_plain(value, before)
            if kind is str and len(value) >= LONG_BYTES_MIN:
                return packed_text(value)
            if kind is bytes and len(value) >= LONG_BYTES_MIN:
                return long_value(bytes_header(len(value)), value)
            return ormsgpack.packb(value, None, OPTIONS) if kind in PACKED else None
        except (TypeError, EverstepError, RuntimeError):
            return None

    def pack_items(
        self, items: list[Any], path: str, first: int = 0, depth_above: int = 1, *, quick: bytes | None = None
    ) -> bytes:
        """Return the bytes of each of these items one after the other; the first is `path[first]`.

        `quick` is what `pack_items_quickly` has made of them just now, if it was asked.
        """
        try:
            packed = quick if quick is not None else self.pack_items_quickly(items)
            if packed is None:
                return self._packed_own(self._own_items(items, 0, 0), 0)[len(array_header(len(items))) :]
            if may_hold_mistaken(packed):
                refuse_mistaken(items)
            return packed
        except (TypeError, EverstepError, RuntimeError):
            _raise_hidden()
        return b"".join([self.pack(item, f"{path}[{first + n}]", depth_above) for n, item in enumerate(items)])

    def pack_items_quickly(self, items: list[Any]) -> bytes | None:
        """Return what `pack_items` does, but that there may be buffers among the items; None if they are not plain."""
        header = len(array_header(len(items)))
        packed = packed_short(items)
        if packed is not None:
            return packed[header:]
        try:
            return pack_within(items, PLAIN_DEPTH)[header:]
        except TypeError:
            return None

    def pack_each_quickly(self, items: list[Any]) -> list[bytes] | None:
        """Return each item as the packer writes it by itself, which may be inexact; None if it refuses one."""
        pack_one = ormsgpack.packb
        try:
            return [pack_one(item, None, OPTIONS) for item in items]
        except TypeError:
            return None

    def unpack(self, packed: bytes) -> Any:
        """Return the value that `pack` turned into these bytes."""
        return Unpacking(self.types).read([b"\x92", packed, END])

    def unpack_plain(self, packed: bytes) -> Any:
        """Return what `unpack` does, sooner where the value is plain: lists, dicts with text keys, and scalars."""
        try:
            value, end = ormsgpack.unpackb(b"\x92%b%b" % (packed, END))
        except ValueError:
            # Something in it is tagged, or it cannot be read at all.
            return self.unpack(packed)
        return value if end == ENDED else self.unpack(packed)

    def unpack_parts(self, parts: list[bytes]) -> Any:
        """Return the value whose bytes are the joined `parts`."""
        if len(parts) > 1 and is_long_bytes(parts[0]):
            return joined_bytes(parts)
        return Unpacking(self.types).read([b"\x92", *parts, END])

    def unpack_and_tell(self, parts: list[bytes]) -> tuple[Any, bool]:
        """Return what `unpack_parts` does, and whether it is plain: lists, dicts with text keys, and scalars."""
        reader = Unpacking(self.types)
        return reader.read([b"\x92", *parts, END]), not reader.tagged

    def _packed_tagged(self, value: Any, level: int) -> bytes:
        """Return what the packer makes of a value that is in `level` tagged containers.

        It calls back, and then another thread may change the value while it reads: so it gets containers of its own.
        """
        if level >= len(FAST_DEPTHS):
            raise TypeError("so many tagged containers inside one another need the careful way")
        own_kinds([value])
        return self._packed_own(self._own_containers(value, 0, level), level)

    def _packed_bulk(self, value: Any, before: Version | None) -> bytes | LongValue | None:
        """Return what is packed without a step for each part; None if that cannot be done with this value."""
        bulk = open_bulk(value, 0)
        if bulk is not None and bulk.packed is not None and len(bulk.packed) >= LONG_BYTES_MIN:
            return searched_bulk(bulk, bulk.packed, before)
        tagged = self._tagged_bulk(value, 0, bulk)
        if tagged is None:
            return None
        tag, content = tagged
        header = tag_header(tag, len(content))
        return long_value(header, content) if len(content) >= LONG_BYTES_MIN else header + content

    def _packed_own(self, own: Any, level: int) -> bytes:
        """Return what the packer makes of a value that nobody else can change."""
        if type(own) in CONTAINERS:
            return pack_within(own, FAST_DEPTHS[level], self._hook(level))
        return ormsgpack.packb(own, self._hook(level), OPTIONS)

    def _hook(self, level: int) -> Callable[[Any], ormsgpack.Ext]:
        return functools.partial(self._tagged_fast, level)

    def _own_containers(self, value: Any, depth: int, level: int) -> Any:
        """Return `value` with new lists and dicts; those that the packer would not take as they are, packed."""
        kind = type(value)
        if depth > DEPTH_MAX:
            raise TypeError("a value that nests too deep, or contains itself, needs the careful way")
        if kind not in CONTAINERS:
            return value
        tagged = self._tagged_bulk(value, level)
        if tagged is not None:
            return ormsgpack.Ext(*tagged)
        own = value.copy()
        if kind is list:
            return self._own_items(own, depth, level)
        if not own_kinds(own.values()).isdisjoint(CONTAINERS):
            for key, item in own.items():
                if type(item) in CONTAINERS:
                    own[key] = self._own_containers(item, depth + 1, level)
        return own

    def _tagged_bulk(self, value: Any, level: int, bulk: Bulk | None = None) -> tuple[int, bytes] | None:
        """Return the tag and the content of what is packed without a step for each part; None for anything else.

        `bulk` is what `_bulk` made of it, if it was asked.
        """
        kind = type(value)
        if kind is set or kind is frozenset:
            return (SET if kind is set else FROZENSET), self._packed_members(list(value), level)
        bulk = bulk or open_bulk(value, level)
        if bulk is None:
            return None
        content = bulk.content()
        if content is not None:
            return bulk.tag, content
        if bulk.tag == ROWS:
            return None
        if bulk.packed is not None:
            raise TypeError("what the packer mistakes for something else needs the careful way")
        return MAP, self._packed_content(bulk.items, level + 1)

    def _own_items(self, items: list[Any], depth: int, level: int) -> list[Any]:
        if own_kinds(items).isdisjoint(CONTAINERS):
            return items
        return [self._own_containers(item, depth + 1, level) if type(item) in CONTAINERS else item for item in items]

    def _packed_content(self, content: list[Any], level: int) -> bytes:
        """Return the items of a tagged container, packed."""
        if level >= len(FAST_DEPTHS):
            raise TypeError("so many tagged containers inside one another need the careful way")
        plain = packed_content(content, FAST_DEPTHS[level])
        if plain is not None:
            return plain
        own = self._own_items(content, 0, level)
        if own is content:  # it holds no lists and no mappings
            return ormsgpack.packb(own, self._hook(level), OPTIONS)
        return self._packed_own(own, level)

    def _tagged_fast(self, level: int, value: Any) -> ormsgpack.Ext:
        """Return the extension value for `value`; the packer calls this for what it does not know."""
        kind = type(value)
        make = MAKERS.get(kind)
        if make is not None:
            return self.made(make(value, ""), "")
        bulk = self._tagged_bulk(value, level) if kind in _BULKS else None
        if bulk is not None:
            return ormsgpack.Ext(*bulk)
        try:
            tag, content = self.opened(value, "")
        except Exception:
            raise
        except BaseException as exc:  # Ctrl-C in a caller's to_state: the packer would swallow it
            _hidden.interrupt = exc
            raise
        return ormsgpack.Ext(tag, self._packed_content(content, level + 1))

    def _packed_members(self, members: list[Any], level: int) -> bytes:
        """Return the members of a set in order, packed."""
        if careful.is_sortable(members):
            return _set_orders.use(members, _packed_flat)
        return careful.packed_set([self._packed_tagged(item, level + 1) for item in members])

    def made(self, found: tuple[int, bytes | list[Any]], path: str) -> ormsgpack.Ext:
        """Return the extension value of a tag with its bytes, or with the parts that are packed for it."""
        tag, content = found
        return ormsgpack.Ext(tag, content if isinstance(content, bytes) else self.pack(content, path))

    def opened(self, value: Any, path: str) -> tuple[int, list[Any]]:
        """Return the tag and the content of a tagged container; raise UnstorableValue for an unknown type."""
        kind = type(value)
        if kind is tuple:
            return TUPLE, list(value)
        if kind is set or kind is frozenset:
            return (SET if kind is set else FROZENSET), list(value)
        if kind is dict:
            own = value.copy()
            return MAP, [*own, *own.values()]
        entry = self.types.for_type(kind)
        if entry is None:
            raise UnstorableValue(path, f"a {kind.__module__}.{kind.__qualname__}", self._advice(value))
        try:
            return OBJECT, [entry.name, entry.to_state(value)]
        except Exception as exc:
            raise UnstorableValue(path, f"a {entry.name}", f"its to_state failed: {exc!r}") from exc

    def _advice(self, value: Any) -> str:
        if isinstance(value, (memoryview, type)) or callable(value):
            return "only data can be stored; keep it outside the state, or store what it is made from"
        return self.advice


DEFAULT = Codec(registry, "its class is not registered; call everstep.register(cls), or store plain data")
"""With the classes that were registered."""

pack = DEFAULT.pack
pack_items = DEFAULT.pack_items
unpack = DEFAULT.unpack
unpack_parts = DEFAULT.unpack_parts


def _raise_hidden() -> None:
    """Raise an interrupt that the packer has hidden."""
    interrupt, _hidden.interrupt = getattr(_hidden, "interrupt", None), None
    if interrupt is not None:
        raise interrupt from None


def _packed_flat(items: list[Any]) -> bytes:
    return ormsgpack.packb(items, None, OPTIONS)
