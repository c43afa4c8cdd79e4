"""Python values to canonical bytes and back, exactly. The one place that knows how a value is written.

The bytes are MessagePack, packed and unpacked by ormsgpack, with extension types for what MessagePack cannot tell
apart (a tuple from a list, a bytearray from bytes). Equal values with equal types and key order give equal bytes:
everything above compares bytes, never Python values. Two ways lead to the same bytes: the fast one hands the value
to the packer whole; the careful one walks it, is used when the fast one may be inexact, and names the path of what
cannot be stored. Unpacking builds plain types and registered classes; it never imports or looks up anything else.

What people keep in bulk has no step of the interpreter for each of its items: a list of tuples of plain values is one
extension (ROWS), a mapping with keys of other types is its keys and then its values, and a set of texts or of numbers
is sorted as it is (see `set_orders`). A long value is not put together before it is cut (see `long_values`).
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import functools
import operator
import pathlib
import pickle  # for the name of an error; nothing is ever unpickled
import re
import struct
import threading
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import ormsgpack

from everstep.errors import CheckpointCorrupted, EverstepError, UnregisteredType, UnstorableValue
from everstep.values import part_types, registry
from everstep.values.long_values import LongValue, long_value
from everstep.values.packer import MISTAKEN, OPTIONS, TUPLES_AS_LISTS, may_hold_extension, pack_within, pack_wrapped
from everstep.values.part_types import CONTAINERS, PACKED
from everstep.values.set_orders import SetOrders
from everstep.values.stretches import Listed, Version, searched

DEPTH_MAX = 100
"""How deep containers may nest, counted from the value that is saved."""

INT = 1
STR = 2
BYTEARRAY = 3
MAP = 4
TUPLE = 5
SET = 6
FROZENSET = 7
OBJECT = 8
ROWS = 9
DATETIME = 16
DATE = 17
TIME = 18
TIMEDELTA = 19
TIMEZONE = 20
ZONE = 21
UUID = 32
DECIMAL = 33
COMPLEX = 34
RANGE = 35
FRACTION = 36
PATH = 37

_FAST_DEPTHS = (36, 20, 12, 8, 5, 5, 5, 5)
"""How deep a value may nest, and what is in so many tagged containers: together not too deep for anybody.

What nests deeper needs the careful way.
"""
_FEW_PARTS = 16
_FEW_INSIDE = 32
_SHORT_BYTES = 4096
_NO_CONTAINERS = bytes(byte for byte in range(256) if not 0x80 <= byte < 0xA0 and byte not in b"\xdc\xdd\xde\xdf")
"""What neither begins a list nor a mapping."""
_ABOVE_MAX = DEPTH_MAX - sum(_FAST_DEPTHS)
_hidden = threading.local()  # an interrupt that the packer hides
_PLAIN = frozenset((type(None), bool, float, bytes))
_TEXT = frozenset((str,))
_SIZED = frozenset((list, dict, tuple, set, frozenset))
_BYTES = frozenset((bytes, bytearray, memoryview))
_ROW_PARTS = PACKED - CONTAINERS
_ROWS_DEPTH = 2  # a list of rows, and nothing that nests inside of them
_LONG_BYTES_MIN = 32 << 10
_set_orders = SetOrders()
_END = ormsgpack.packb(b"\xe5everstep.end")  # follows a value when it is unpacked, so that rubbish behind it shows


def has_text_keys(mapping: dict[Any, Any]) -> bool:
    """Whether MessagePack's own map can hold these keys: strings that are valid Unicode."""
    keys = list(mapping)
    return set(map(type, keys)) <= _TEXT and not _surrogates("".join(keys))


_TINY_LISTS = [bytes((0x90 | count,)) for count in range(16)]
_TINY_MAPS = [bytes((0x80 | count,)) for count in range(16)]


def array_header(count: int) -> bytes:
    """Return what stands before the items of a list."""
    return _TINY_LISTS[count] if count < 16 else _header(count, 0x90, None, b"\xdc", b"\xdd")


def map_header(count: int) -> bytes:
    """Return what stands before the pairs of a mapping."""
    return _TINY_MAPS[count] if count < 16 else _header(count, 0x80, None, b"\xde", b"\xdf")


def text_header(size_bytes: int) -> bytes:
    """Return what stands before the UTF-8 bytes of a long string."""
    return _header(size_bytes, None, b"\xd9", b"\xda", b"\xdb")


def bytes_header(size_bytes: int) -> bytes:
    """Return what stands before long bytes."""
    if size_bytes < 0x100:
        return b"\xc4%c" % size_bytes
    return _header(size_bytes, None, b"\xc4", b"\xc5", b"\xc6")


def tag_header(tag: int, size_bytes: int) -> bytes:
    """Return what stands before the content of an extension value."""
    fixed = {1: b"\xd4", 2: b"\xd5", 4: b"\xd6", 8: b"\xd7", 16: b"\xd8"}.get(size_bytes)
    return (fixed or _header(size_bytes, None, b"\xc7", b"\xc8", b"\xc9")) + bytes((tag,))


def _header(size: int, tiny: int | None, byte: bytes | None, short: bytes, word: bytes) -> bytes:
    if tiny is not None and size < 16:
        return bytes((tiny | size,))
    if byte is not None and size < 0x100:
        return byte + bytes((size,))
    if size > 0xFFFFFFFF:
        raise CheckpointCorrupted("a stored value has an impossible size")
    return short + struct.pack(">H", size) if size < 0x10000 else word + struct.pack(">I", size)


# -- looking into packed bytes -----------------------------------------------------------------------------------------


def is_text(packed: bytes) -> bool:
    """Whether these are the bytes of a string of valid Unicode."""
    return 0xA0 <= packed[0] < 0xC0 or packed[0] in b"\xd9\xda\xdb"


def is_list(packed: bytes) -> bool:
    """Whether these are the bytes of a list."""
    return 0x90 <= packed[0] < 0xA0 or packed[0] in b"\xdc\xdd"


def is_mapping(packed: bytes) -> bool:
    """Whether these are the bytes of a mapping whose keys are all text; others have the tag MAP."""
    return 0x80 <= packed[0] < 0x90 or packed[0] in b"\xde\xdf"


def untagged(packed: bytes) -> tuple[int, bytes] | None:
    """Return the tag and the content of a tagged value, None for any other."""
    if packed[0] not in _EXT_FIRST:
        return None
    header, size = _ext_span(packed, 0)
    if header + size != len(packed):
        raise CheckpointCorrupted("a stored value has a wrong size")
    return packed[header - 1], packed[header:]


def items(packed: bytes) -> list[bytes]:
    """Return the packed items of a list, or the keys and values of a mapping in turn, each exactly as written."""
    opened = _opened_one_level(packed)
    if type(opened) is dict:
        flat = [part for pair in opened.items() for part in pair]
        if len(flat) != _token(packed, 0)[1]:
            raise CheckpointCorrupted("a stored mapping has the same keys twice")
        opened = flat
    if type(opened) is not list:
        raise CheckpointCorrupted("a stored list is out of shape")
    pack_one = ormsgpack.packb
    return [pack_one(item) for item in opened]


def part_count(packed: bytes) -> int:
    """Return how many items `listed` would return, or keys and values `pairs`, by what the bytes say; 0 for others."""
    tag, content = untagged(packed) or (0, b"")
    if tag in (MAP, ROWS) and content:
        packed = content
    if not is_list(packed) and not is_mapping(packed):
        return 0
    return _token(packed, 0)[1]


def listed(packed: bytes) -> list[bytes] | None:
    """Return the packed items of a list; None if the value is something else."""
    if is_list(packed):
        return items(packed)
    tag, content = untagged(packed) or (0, b"")
    if tag != ROWS:
        return None
    found = []
    for row in items(content):
        if not is_list(row):
            raise CheckpointCorrupted("a stored list is out of shape")
        found.append(tag_header(TUPLE, len(row)) + row)
    return found


def pairs(packed: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the packed keys and values of a mapping; None if the value is something else."""
    if is_mapping(packed):
        flat = items(packed)
        return list(zip(flat[::2], flat[1::2], strict=True))
    tag, content = untagged(packed) or (0, b"")
    if tag != MAP:
        return None
    parts = items(content)
    count = len(parts) // 2
    if len(parts) % 2 or not is_list(content):
        raise CheckpointCorrupted("a stored mapping is out of shape")
    return list(zip(parts[:count], parts[count:], strict=True))


def mapping_of(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the packed mapping of these packed keys and values."""
    if all(is_text(key) for key, _ in entries):
        return b"".join([map_header(len(entries)), *[part for pair in entries for part in pair]])
    parts = [array_header(2 * len(entries)), *[key for key, _ in entries], *[value for _, value in entries]]
    content = b"".join(parts)
    return tag_header(MAP, len(content)) + content


def list_of(items: Sequence[bytes]) -> bytes:
    """Return the packed list of these packed items."""
    rows = _packed_rows(items)
    if rows is not None:
        return rows
    return b"".join([array_header(len(items)), *items])


def _packed_rows(items: Sequence[bytes]) -> bytes | None:
    """Return a list of tuples of plain values as it is packed; None if it is something else."""
    rows: list[bytes] = []
    for item in items:
        tag, row = untagged(item) or (0, b"")
        if tag != TUPLE or not all(type(part) in _ROW_PARTS for part in _opened_one_level(row)):
            return None
        rows.append(row)
    if not rows:
        return None
    content = b"".join([array_header(len(rows)), *rows])
    return tag_header(ROWS, len(content)) + content


def _opened_one_level(packed: bytes) -> Any:
    """Return the value of these bytes with what is tagged left as it is: packed again, it gives the same bytes."""
    try:
        value, end = ormsgpack.unpackb(b"".join([b"\x92", packed, _END]), ext_hook=ormsgpack.Ext)
    except Exception as exc:
        raise CheckpointCorrupted(f"a stored value cannot be decoded: {exc}") from exc
    if end != b"\xe5everstep.end":
        raise CheckpointCorrupted("a stored value has bytes behind its end")
    return value


def _ext_span(packed: bytes, at: int) -> tuple[int, int]:
    """Return the size of a tagged value's header and of its content."""
    first = packed[at]
    if first >= 0xD4:
        return 2, 1 << (first - 0xD4)
    width = _LENGTHS[first][0]
    return width + 2, int.from_bytes(packed[at + 1 : at + 1 + width], "big")


# -- packing -----------------------------------------------------------------------------------------------------------


class Types(Protocol):
    """Which classes are saved and rebuilt, and how. `everstep.values.registry` is one."""

    def for_type(self, cls: type, /) -> registry.Registered | None: ...
    def for_name(self, name: str, /) -> registry.Registered | None: ...


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
        return ormsgpack.packb(self._lower(value, path, [0] * depth_above), option=OPTIONS)

    def pack_plain(self, value: Any, before: Version | None = None) -> bytes | LongValue | None:
        """Return what `pack_long` makes of a value that the packer writes exactly, by itself; None for any other."""
        kind = type(value)
        try:
            if kind in CONTAINERS:
                return _packed_plain(value, before)
            if kind is str and len(value) >= _LONG_BYTES_MIN:
                return _packed_text(value)
            if kind is bytes and len(value) >= _LONG_BYTES_MIN:
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
            if _may_hold_mistaken(packed):
                _refuse_mistaken(items)
            return packed
        except (TypeError, EverstepError, RuntimeError):
            _raise_hidden()
        return b"".join([self.pack(item, f"{path}[{first + n}]", depth_above) for n, item in enumerate(items)])

    def pack_items_quickly(self, items: list[Any]) -> bytes | None:
        """Return what `pack_items` does, but that there may be buffers among the items; None if they are not plain."""
        header = len(array_header(len(items)))
        packed = _packed_short(items) if _seems_short(items) else None
        if packed is not None:
            return packed[header:]
        try:
            return pack_within(items, _FAST_DEPTHS[0])[header:]
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
        return _Reader(self.types).read([b"\x92", packed, _END])

    def unpack_plain(self, packed: bytes) -> Any:
        """Return what `unpack` does, sooner where the value is plain: lists, dicts with text keys, and scalars."""
        try:
            value, end = ormsgpack.unpackb(b"\x92%b%b" % (packed, _END))
        except ValueError:
            # Something in it is tagged, or it cannot be read at all.
            return self.unpack(packed)
        return value if end == b"\xe5everstep.end" else self.unpack(packed)

    def unpack_parts(self, parts: list[bytes]) -> Any:
        """Return the value whose bytes are the joined `parts`."""
        if len(parts) > 1 and parts[0][:1] in _LONG:
            return _joined_text(parts) if is_text(parts[0]) else b"".join(_payloads(parts))
        return _Reader(self.types).read([b"\x92", *parts, _END])

    def unpack_and_tell(self, parts: list[bytes]) -> tuple[Any, bool]:
        """Return what `unpack_parts` does, and whether it is plain: lists, dicts with text keys, and scalars."""
        reader = _Reader(self.types)
        return reader.read([b"\x92", *parts, _END]), not reader.tagged

    def _packed_tagged(self, value: Any, level: int) -> bytes:
        """Return what the packer makes of a value that is in `level` tagged containers.

        It calls back, and then another thread may change the value while it reads: so it gets containers of its own.
        """
        if level >= len(_FAST_DEPTHS):
            raise TypeError("so many tagged containers inside one another need the careful way")
        _own_kinds([value])
        return self._packed_own(self._own_containers(value, 0, level), level)

    def _packed_bulk(self, value: Any, before: Version | None) -> bytes | LongValue | None:
        """Return what is packed without a step for each part; None if that cannot be done with this value."""
        bulk = _bulk(value, 0)
        if bulk is not None and bulk.packed is not None and len(bulk.packed) >= _LONG_BYTES_MIN:
            return _searched_bulk(bulk, bulk.packed, before)
        tagged = self._tagged_bulk(value, 0, bulk)
        if tagged is None:
            return None
        tag, content = tagged
        header = tag_header(tag, len(content))
        return long_value(header, content) if len(content) >= _LONG_BYTES_MIN else header + content

    def _packed_own(self, own: Any, level: int) -> bytes:
        """Return what the packer makes of a value that nobody else can change."""
        if type(own) in CONTAINERS:
            return pack_within(own, _FAST_DEPTHS[level], self._hook(level))
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
        if not _own_kinds(own.values()).isdisjoint(CONTAINERS):
            for key, item in own.items():
                if type(item) in CONTAINERS:
                    own[key] = self._own_containers(item, depth + 1, level)
        return own

    def _tagged_bulk(self, value: Any, level: int, bulk: _Bulk | None = None) -> tuple[int, bytes] | None:
        """Return the tag and the content of what is packed without a step for each part; None for anything else.

        `bulk` is what `_bulk` made of it, if it was asked.
        """
        kind = type(value)
        if kind is set or kind is frozenset:
            return (SET if kind is set else FROZENSET), self._packed_members(list(value), level)
        bulk = bulk or _bulk(value, level)
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
        if _own_kinds(items).isdisjoint(CONTAINERS):
            return items
        return [self._own_containers(item, depth + 1, level) if type(item) in CONTAINERS else item for item in items]

    def _packed_content(self, content: list[Any], level: int) -> bytes:
        """Return the items of a tagged container, packed."""
        if level >= len(_FAST_DEPTHS):
            raise TypeError("so many tagged containers inside one another need the careful way")
        own = self._own_items(content, 0, level)
        if own is content:  # it holds no lists and no mappings
            return ormsgpack.packb(own, self._hook(level), OPTIONS)
        return self._packed_own(own, level)

    def _tagged_fast(self, level: int, value: Any) -> ormsgpack.Ext:
        """Return the extension value for `value`; the packer calls this for what it does not know."""
        kind = type(value)
        make = _MAKERS.get(kind)
        if make is not None:
            return ormsgpack.Ext(*make(value, ""))
        bulk = self._tagged_bulk(value, level)
        if bulk is not None:
            return ormsgpack.Ext(*bulk)
        try:
            tag, content = self._opened(value, "")
        except Exception:
            raise
        except BaseException as exc:  # Ctrl-C in a caller's to_state: the packer would swallow it
            _hidden.interrupt = exc
            raise
        return ormsgpack.Ext(tag, self._packed_content(content, level + 1))

    def _packed_members(self, members: list[Any], level: int) -> bytes:
        """Return the members of a set in order, packed."""
        if _is_sortable(members):
            return _set_orders.use(members, _packed_flat)
        return _packed_set([self._packed_tagged(item, level + 1) for item in members])

    def _opened(self, value: Any, path: str) -> tuple[int, list[Any]]:
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

    def _lower(self, value: Any, path: str, above: list[int]) -> Any:
        """Return `value` in types the packer writes exactly; `above` holds the containers being walked, by identity."""
        if _is_exact(value):
            return value
        make = _MAKERS.get(type(value))
        if make is not None:
            return ormsgpack.Ext(*make(value, path))
        _check_nesting(value, path, above)
        above.append(id(value))
        try:
            return self._lower_container(value, path, above)
        finally:
            above.pop()

    def _lower_container(self, value: Any, path: str, above: list[int]) -> Any:
        kind = type(value)
        if kind is list:
            own = value.copy()
            is_rows = set(map(type, own)) == {tuple} and len(above) < DEPTH_MAX
            rows = _bulk_of(ROWS, own, own, _ROWS_DEPTH, TUPLES_AS_LISTS).content() if is_rows else None
            if rows is not None:
                return ormsgpack.Ext(ROWS, rows)
            return [self._lower(item, f"{path}[{n}]", above) for n, item in enumerate(own)]
        if kind is dict and has_text_keys(value):
            return {key: self._lower(item, join_path(path, key), above) for key, item in list(value.items())}
        return ormsgpack.Ext(*self._lower_tagged(value, path, above))

    def _lower_tagged(self, value: Any, path: str, above: list[int]) -> tuple[int, bytes]:
        tag, content = self._opened(value, path)
        if tag == MAP:
            keys = content[: len(content) // 2]
            paths = [f"{path} (key {_shown(key)})" for key in keys] + [join_path(path, key) for key in keys]
        elif tag == TUPLE:
            paths = [f"{path}[{n}]" for n in range(len(content))]
        else:  # a set has no positions; the fields of an object read as `path.field`
            paths = [path] * len(content)
        lowered = [self._lower(item, where, above) for item, where in zip(content, paths, strict=True)]
        if tag in (SET, FROZENSET):
            if _is_sortable(lowered):
                return tag, ormsgpack.packb(sorted(lowered), option=OPTIONS)
            return tag, _packed_set([ormsgpack.packb(item, option=OPTIONS) for item in lowered])
        return tag, ormsgpack.packb(lowered, option=OPTIONS)


DEFAULT = Codec(registry, "its class is not registered; call everstep.register(cls), or store plain data")
"""With the classes that were registered."""

pack = DEFAULT.pack
pack_items = DEFAULT.pack_items
unpack = DEFAULT.unpack
unpack_parts = DEFAULT.unpack_parts


def _is_exact(value: Any) -> bool:
    """Whether the packer writes this exactly, and it is no container."""
    kind = type(value)
    if kind is int:
        return bool(-(2**63) <= value < 2**64)
    if kind is str:
        return not _surrogates(value)
    return kind in _PLAIN


def _check_nesting(value: Any, path: str, above: list[int]) -> None:
    """Refuse a container that contains itself, or is too deep."""
    kind = type(value)
    if id(value) in above:
        raise UnstorableValue(path, f"a {kind.__name__}", "it contains itself")
    is_empty = kind in _SIZED and not value
    if len(above) >= DEPTH_MAX and not is_empty:
        raise UnstorableValue(path, f"a {kind.__name__}", f"it nests deeper than {DEPTH_MAX} levels")


def _raise_hidden() -> None:
    """Raise an interrupt that the packer has hidden."""
    interrupt, _hidden.interrupt = getattr(_hidden, "interrupt", None), None
    if interrupt is not None:
        raise interrupt from None


class _Bulk(NamedTuple):
    """A list of tuples, or a mapping with keys that are no text, as the one list that the packer gets for it."""

    tag: int
    items: list[Any]
    columns: Any
    """The same in lists whose items are likely to be alike."""
    options: int
    packed: bytes | None
    """None: it is not all plain, so the packer refuses it."""
    start: int
    """Where it begins in `packed`."""

    def holds(self, some: Any, kinds: frozenset[type]) -> bool:
        """Whether there is something of these types in some of the items."""
        return part_types.rows_hold(some, kinds) if self.tag == ROWS else part_types.holds(some, kinds)

    def content(self) -> bytes | None:
        """Return what it is packed to; None if it is not all plain, or holds what the packer mistakes."""
        if self.packed is None:
            return None
        content = self.packed[self.start :]
        return None if _may_hold_mistaken(content) and self.holds(self.columns, MISTAKEN) else content


def _bulk(value: Any, level: int) -> _Bulk | None:
    """Return a list of tuples, or a mapping with other keys, in `level` tagged containers; None for anything else."""
    kind = type(value)
    if kind is list and type(next(iter(value), None)) is tuple:
        rows = value.copy()
        if operator.countOf(map(type, rows), tuple) < len(rows):
            return None
        return _bulk_of(ROWS, rows, rows, _ROWS_DEPTH, TUPLES_AS_LISTS)
    if kind is not dict or {str}.issuperset(map(type, value)):
        return None
    if level + 1 >= len(_FAST_DEPTHS):
        raise TypeError("so many tagged containers inside one another need the careful way")
    keys, values = map(list, (value, value.values()))  # in one step, in which no other thread can change it
    if {str}.issuperset(map(type, keys)):
        raise TypeError("a mapping that changes meanwhile needs the careful way")
    return _bulk_of(MAP, keys + values, [keys, values], _FAST_DEPTHS[level + 1], OPTIONS)


def _bulk_of(tag: int, items: list[Any], columns: Any, depth_max: int, options: int) -> _Bulk:
    try:
        packed, start = pack_wrapped(items, depth_max, options=options)
    except TypeError:  # something nests too deep in it, or is a number or text that the packer does not take
        return _Bulk(tag, items, columns, options, None, 0)
    return _Bulk(tag, items, columns, options, packed, start)


def _searched_bulk(bulk: _Bulk, packed: bytes, before: Version | None) -> LongValue | None:
    """Return what a bulk is packed to, which is long; None if it holds what the packer mistakes."""
    header = tag_header(bulk.tag, len(packed) - bulk.start)
    value = long_value(header, packed, bulk.start)
    if not _may_hold_mistaken(packed):
        return value
    header_bytes = len(header) + len(array_header(len(bulk.items)))
    return searched(value, Listed(bulk.items, header_bytes, bulk.options, bulk.holds), bulk.columns, before)


def _is_sortable(members: list[Any]) -> bool:
    """Whether the members of a set are all texts or all numbers, which have an order by themselves."""
    kinds = set(map(type, members))
    return kinds == {str} or kinds == {int}


def _seems_short(value: Any) -> bool:
    """Whether there are few parts in a list or dict, and in those that are in it, so that little is packed of it."""
    if len(value) > _FEW_PARTS:
        return False
    parts = value if type(value) is list else value.values()
    inside = [len(part) for part in parts if type(part) in CONTAINERS]
    return sum(inside) <= _FEW_INSIDE


def _packed_short(value: Any) -> bytes | None:
    """Return what the packer makes of a list or dict by itself, if that is short and surely does not nest too deep."""
    try:
        packed = ormsgpack.packb(value, None, OPTIONS)
    except TypeError:
        return None
    # It nests no deeper than there are bytes in it that may begin a container.
    if len(packed) > _SHORT_BYTES or len(packed.translate(None, _NO_CONTAINERS)) > _FAST_DEPTHS[0]:
        return None
    return packed


def _packed_plain(value: Any, before: Version | None) -> bytes | LongValue | None:
    """Return what the packer makes of a container by itself, while nothing else runs; None if it is not plain."""
    if _seems_short(value):
        short = _packed_short(value)
        if short is not None and not _may_hold_mistaken(short):
            return short
    packed, start = pack_wrapped(value, _FAST_DEPTHS[0])
    is_long = len(packed) >= _LONG_BYTES_MIN
    if not _may_hold_mistaken(packed):
        return long_value(b"", packed, start) if is_long else packed[start:]
    if type(value) is list and is_long:
        listed = Listed(value, len(array_header(len(value))), OPTIONS, part_types.holds)
        return searched(long_value(b"", packed, start), listed, value, before)
    if part_types.holds(value, MISTAKEN):
        return None
    return long_value(b"", packed, start) if is_long else packed[start:]


def _packed_text(text: str) -> LongValue | None:
    """Return a long text, packed; None if it is not valid Unicode."""
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        return None
    return long_value(text_header(len(encoded)), encoded)


def _packed_flat(items: list[Any]) -> bytes:
    return ormsgpack.packb(items, None, OPTIONS)


def _packed_set(items: list[bytes]) -> bytes:
    return array_header(len(items)) + b"".join(sorted(items))


def may_hold_bytes(packed: bytes) -> bool:
    """Whether there may be a bytes value in these bytes: if its marker cannot be seen there is none."""
    return 0xC4 in packed or 0xC5 in packed or 0xC6 in packed


def _may_hold_mistaken(packed: bytes) -> bool:
    """Whether there may be something in these bytes that the packer has mistaken for something else."""
    return may_hold_bytes(packed) or may_hold_extension(packed)


def holds_bytes(value: Any) -> bool:
    """Whether bytes, or what the packer takes for bytes, are in the parts of `value` that it writes by itself."""
    return part_types.holds(value, _BYTES)


def _own_kinds(values: Iterable[Any]) -> set[type]:
    """Return the types of these values; raise TypeError if there is one that the packer mistakes for another."""
    kinds = set(map(type, values))
    if not kinds.isdisjoint(MISTAKEN):
        raise TypeError("what the packer mistakes for something else needs the careful way")
    return kinds


def _refuse_mistaken(value: Any) -> None:
    """Raise TypeError if there is something in a value that the packer mistakes for something else."""
    if part_types.holds(value, MISTAKEN):
        raise TypeError("what the packer mistakes for something else needs the careful way")


def join_path(path: str, key: Any) -> str:
    """Return the path of `key` inside the mapping at `path`."""
    return f"{path}.{key}" if type(key) is str and key.isidentifier() else f"{path}[{_shown(key)}]"


def _shown(key: Any) -> str:
    try:
        return f"{key!r:.40}"
    except Exception:  # a repr that fails, or an integer too long to print, must not hide the error it is for
        return f"a {type(key).__name__}"


def _surrogates(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _utc_offset(zone: dt.tzinfo | None, path: str) -> Any:
    """Return plain data for a time zone: None, [seconds, microseconds, name] or the key of a zone."""
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]  # the arguments it was made with
        return [offset.days * 86400 + offset.seconds, offset.microseconds, *name]
    if type(zone) is zoneinfo.ZoneInfo and zone.key is not None:
        try:
            zone.__reduce__()  # refuses a zone that was read from a file: its key need not mean the same
            return zone.key
        except pickle.PicklingError:
            pass
    raise UnstorableValue(path, f"the time zone {zone!r:.60}", "use datetime.timezone or zoneinfo.ZoneInfo")


def _packed_list(tag: int, items: list[Any]) -> tuple[int, bytes]:
    return tag, pack(items)


_DECIMALS = decimal.Context(capitals=1)  # the text of a number must not depend on the caller's context


_MAKERS: dict[type, Callable[[Any, str], tuple[int, bytes]]] = {
    int: lambda v, _: (INT, v.to_bytes(v.bit_length() // 8 + 1, "big", signed=True)),
    str: lambda v, _: (STR, v.encode("utf-8", "surrogatepass")),
    bytearray: lambda v, _: (BYTEARRAY, bytes(v)),
    dt.datetime: lambda v, path: _packed_list(
        DATETIME,
        [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold, _utc_offset(v.tzinfo, path)],
    ),
    dt.date: lambda v, _: _packed_list(DATE, [v.year, v.month, v.day]),
    dt.time: lambda v, path: _packed_list(
        TIME, [v.hour, v.minute, v.second, v.microsecond, v.fold, _utc_offset(v.tzinfo, path)]
    ),
    dt.timedelta: lambda v, _: _packed_list(TIMEDELTA, [v.days, v.seconds, v.microseconds]),
    dt.timezone: lambda v, path: _packed_list(TIMEZONE, _utc_offset(v, path)),
    zoneinfo.ZoneInfo: lambda v, path: _packed_list(ZONE, [_utc_offset(v, path)]),
    uuid.UUID: lambda v, _: (UUID, v.bytes),
    decimal.Decimal: lambda v, _: (DECIMAL, _DECIMALS.to_sci_string(v).encode()),
    complex: lambda v, _: _packed_list(COMPLEX, [v.real, v.imag]),
    range: lambda v, path: (RANGE, pack([v.start, v.stop, v.step], path)),
    fractions.Fraction: lambda v, path: (FRACTION, pack([v.numerator, v.denominator], path)),
}


def _path_text(value: pathlib.PurePath, path: str) -> str:
    if type(value)(str(value)).parts != value.parts:
        raise UnstorableValue(path, f"the path {value!r}", "its text does not lead back to it")
    return str(value)


_PATHS = (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
for _n, _kind in enumerate(_PATHS):
    # As text: nothing is opened or resolved, and a lone surrogate in a file name survives.
    _MAKERS[_kind] = lambda v, path, n=_n: (PATH, pack([n, _path_text(v, path)], path))  # type: ignore[misc]  # n is bound early


# -- unpacking ---------------------------------------------------------------------------------------------------------


_LONG = frozenset((b"\xc5", b"\xc6", b"\xda", b"\xdb"))


def _joined_text(parts: list[bytes]) -> str:
    """Return a long string: decoded part by part, and joined once."""
    payloads = _payloads(parts)
    try:
        return "".join([payload.decode() for payload in payloads])
    except UnicodeDecodeError:
        pass  # a letter may begin in one part and end in the next
    try:
        return b"".join(payloads).decode()
    except UnicodeDecodeError as exc:
        raise CheckpointCorrupted(f"a stored value cannot be decoded: {exc}") from exc


def _payloads(parts: list[bytes]) -> list[bytes]:
    """Return what is inside of a long string or bytes value, of which these are the parts."""
    header = 1 + _LENGTHS[parts[0][0]][0]
    size = int.from_bytes(parts[0][1:header], "big")
    if len(parts[0]) < header or sum(map(len, parts)) != header + size:
        raise CheckpointCorrupted("a stored value is not of the size it says")
    return [parts[0][header:], *parts[1:]]


class _Reader:
    """One unpacking: counts tagged levels and keeps the error that the packer would hide."""

    level = 0
    tagged = False
    failure: BaseException | None = None
    as_data: str | None = None
    """A class the objects of which came back as plain data, if there is one."""

    def __init__(self, types: Types) -> None:
        self.types = types
        self.entries: dict[str, registry.Registered] = {}
        """The classes that were asked for: each is looked up once."""

    def read(self, framed: list[bytes]) -> Any:
        """Return the value framed by an array of two and _END behind it."""
        try:
            value, end = ormsgpack.unpackb(b"".join(framed), ext_hook=self._rebuild)
        except Exception as exc:
            cause = self.failure or exc
            if isinstance(cause, RecursionError):
                raise EverstepError(
                    "the call stack is too deep here to read a stored value; call from higher up"
                ) from None
            # A warning gets here where the caller has made errors of warnings.
            if isinstance(cause, (EverstepError, Warning)) or not isinstance(cause, Exception):
                raise cause from None
            raise CheckpointCorrupted(f"a stored value cannot be decoded: {cause}") from cause
        if end != b"\xe5everstep.end":
            raise CheckpointCorrupted("a stored value has bytes behind its end")
        return value

    def content(self, data: bytes) -> Any:
        """Return the value inside a tagged one."""
        # Each tagged level starts a new run of the packer's own recursion; two are safe, more must prove it.
        if self.level > 2 and _containers_at_most(data) > DEPTH_MAX and depth(data) > DEPTH_MAX:
            raise CheckpointCorrupted(f"a stored value nests deeper than {DEPTH_MAX} levels")
        return self.read([b"\x92", data, _END])

    def items(self, data: bytes) -> list[Any]:
        """Return the items of a tagged container. Anything but a list might bring a way to iterate of its own."""
        found = self.content(data)
        if type(found) is not list:
            raise CheckpointCorrupted("a stored container is out of shape")
        return found

    def entry(self, name: str) -> registry.Registered:
        """Return how objects stored under this name are rebuilt."""
        found = self.entries.get(name)
        if found is None:
            found = self.types.for_name(name)
            if found is None:
                raise UnregisteredType(name)
            if found.cls is registry.Data:
                self.as_data = name
            self.entries[name] = found
        return found

    def flat(self, data: bytes) -> list[Any]:
        """Return the list inside a tagged value that is no container: numbers, texts and lists of these."""
        if _containers_at_most(data) > 4 and depth(data) > 4:
            raise CheckpointCorrupted("a stored value nests where it cannot")
        found = ormsgpack.unpackb(data, ext_hook=_flat_part)
        if type(found) is not list:
            raise CheckpointCorrupted("a stored value is out of shape")
        return found

    def _rebuild(self, tag: int, data: bytes) -> Any:
        self.level += 1
        self.tagged = True
        try:
            if self.level > DEPTH_MAX:
                raise CheckpointCorrupted(f"a stored value nests deeper than {DEPTH_MAX} levels")
            build = _READERS.get(tag)
            if build is None:
                raise CheckpointCorrupted(f"a stored value has the unknown type tag {tag}")
            return build(data, self)
        except BaseException as exc:
            self.failure = self.failure or exc
            raise
        finally:
            self.level -= 1


def _flat_part(tag: int, data: bytes) -> Any:
    """Return a number or text inside a value that is no container: nothing there is an object of some class."""
    if tag not in (INT, STR):
        raise CheckpointCorrupted("a stored value holds what it cannot")
    return int.from_bytes(data, "big", signed=True) if tag == INT else data.decode("utf-8", "surrogatepass")


def _read_map(data: bytes, reader: _Reader) -> dict[Any, Any]:
    parts = reader.items(data)
    count = len(parts) // 2
    try:
        return dict(zip(parts[:count], parts[count:], strict=True))
    except TypeError as exc:
        if reader.as_data is None:
            raise
        # The fields of an object cannot stand for it as a key.
        raise UnregisteredType(
            reader.as_data,
            "which is a key of a dict and whose class is not known here; import it, or pass it in allow=",
        ) from exc


def _read_set(data: bytes, reader: _Reader, kind: type) -> Any:
    items = reader.items(data)
    try:
        return kind(items)
    except TypeError:
        if reader.as_data is None:
            raise
        return items  # members whose class is not known here are dicts, which no set holds


def _read_rows(data: bytes, reader: _Reader) -> list[Any]:
    rows = reader.items(data)
    if set(map(type, rows)) != {list}:
        raise CheckpointCorrupted("a stored list of tuples is out of shape")
    return list(map(tuple, rows))


def _read_object(data: bytes, reader: _Reader) -> Any:
    found = reader.items(data)
    if len(found) != 2 or type(found[0]) is not str:
        raise CheckpointCorrupted("a stored object is out of shape")
    name, state = found
    return reader.entry(name).from_state(state)


def _zone(data: Any) -> dt.tzinfo | None:
    if data is None:
        return None
    if isinstance(data, str):
        if not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", data):
            raise CheckpointCorrupted("a stored time zone has an impossible name")
        return zoneinfo.ZoneInfo(data)
    seconds, microseconds, *name = data
    return dt.timezone(dt.timedelta(seconds=seconds, microseconds=microseconds), *name)


def _read_datetime(data: bytes, reader: _Reader) -> dt.datetime:
    year, month, day, hour, minute, second, microsecond, fold, zone = reader.flat(data)
    return dt.datetime(year, month, day, hour, minute, second, microsecond, _zone(zone), fold=fold)


def _read_time(data: bytes, reader: _Reader) -> dt.time:
    hour, minute, second, microsecond, fold, zone = reader.flat(data)
    return dt.time(hour, minute, second, microsecond, _zone(zone), fold=fold)


def _read_fraction(data: bytes, reader: _Reader) -> fractions.Fraction:
    numerator, denominator = reader.flat(data)
    if type(numerator) is not int or type(denominator) is not int:  # a text might stand for a power of ten
        raise CheckpointCorrupted("a stored fraction is out of shape")
    return fractions.Fraction(numerator, denominator)


def _read_path(data: bytes, reader: _Reader) -> pathlib.PurePath:
    n, text = reader.flat(data)
    if not isinstance(text, str) or n not in (0, 1, 2, 3):
        raise CheckpointCorrupted("a stored path is out of shape")
    try:
        return _PATHS[n](text)
    except NotImplementedError:  # the other system's paths exist here only in their pure form
        return _PATHS[n - 2](text)


_READERS: dict[int, Callable[[bytes, _Reader], Any]] = {
    INT: lambda data, _: int.from_bytes(data, "big", signed=True),
    STR: lambda data, _: data.decode("utf-8", "surrogatepass"),
    BYTEARRAY: lambda data, _: bytearray(data),
    MAP: _read_map,
    TUPLE: lambda data, reader: tuple(reader.items(data)),
    SET: lambda data, reader: _read_set(data, reader, set),
    FROZENSET: lambda data, reader: _read_set(data, reader, frozenset),
    OBJECT: _read_object,
    ROWS: _read_rows,
    DATETIME: _read_datetime,
    DATE: lambda data, reader: dt.date(*reader.flat(data)),
    TIME: _read_time,
    TIMEDELTA: lambda data, reader: dt.timedelta(*reader.flat(data)),
    TIMEZONE: lambda data, reader: _zone(reader.flat(data)),
    ZONE: lambda data, reader: _zone(reader.flat(data)[0]),
    UUID: lambda data, _: uuid.UUID(bytes=data),
    DECIMAL: lambda data, _: decimal.Decimal(data.decode()),
    COMPLEX: lambda data, reader: complex(*reader.flat(data)),
    RANGE: lambda data, reader: range(*reader.flat(data)),
    FRACTION: _read_fraction,
    PATH: _read_path,
}


# -- depth -------------------------------------------------------------------------------------------------------------

_CONTAINER_BYTES = bytes((*range(0x80, 0xA0), 0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9), 0xDC, 0xDD, 0xDE, 0xDF))
TREE_TAGS = frozenset((MAP, TUPLE, SET, FROZENSET, OBJECT, ROWS))
"""Tags whose content is a packed list."""


def _containers_at_most(packed: bytes) -> int:
    """Return a number that the nesting depth cannot exceed: how many bytes could open a container."""
    return len(packed) - len(packed.translate(None, _CONTAINER_BYTES))


def depth(packed: bytes) -> int:
    """Return how deep the containers in one packed value nest, without building it."""
    deepest = 0
    at = 0
    end = len(packed)
    open_items: list[int] = []  # values still to come, per container that is open
    while at < end:
        while open_items and open_items[-1] == 0:
            open_items.pop()
        if open_items:
            open_items[-1] -= 1
        size, items = _token(packed, at)
        at += size
        if items < 0:  # a tagged container: what it holds stands in its place
            if open_items:
                open_items[-1] += 1
        elif items:
            open_items.append(items)
            deepest = max(deepest, len(open_items))
    return deepest


def _token(packed: bytes, at: int) -> tuple[int, int]:
    """Return (bytes to step over, values that follow inside, or -1 for a tag before its content)."""
    first = packed[at]
    if first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC1, 0xC2, 0xC3):
        return 1, 0
    if first < 0x90:
        return 1, 2 * (first & 15)
    if first < 0xA0:
        return 1, first & 15
    if first < 0xC0:
        return 1 + (first & 31), 0
    fixed = _FIXED_SIZES.get(first)
    if fixed is not None:
        return fixed, 0
    if 0xD4 <= first <= 0xD8:
        return _ext(packed, at + 1, 1 << (first - 0xD4))
    width, scale, ext = _LENGTHS[first]
    number = int.from_bytes(packed[at + 1 : at + 1 + width], "big")
    if ext:
        return _ext(packed, at + 1 + width, number, 1 + width)
    return (1 + width, number * scale) if scale else (1 + width + number, 0)


def _ext(packed: bytes, tag_at: int, size: int, before: int = 1) -> tuple[int, int]:
    # The content of a tagged container is one more value; other tags hold bytes or a flat list.
    tag = packed[tag_at] if tag_at < len(packed) else 0
    return (before + 1, -1) if tag in TREE_TAGS else (before + 1 + size, 0)


_EXT_FIRST = frozenset(b"\xc7\xc8\xc9\xd4\xd5\xd6\xd7\xd8")
_FIXED_SIZES = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_LENGTHS = {
    0xC4: (1, 0, False), 0xC5: (2, 0, False), 0xC6: (4, 0, False),
    0xC7: (1, 0, True), 0xC8: (2, 0, True), 0xC9: (4, 0, True),
    0xD9: (1, 0, False), 0xDA: (2, 0, False), 0xDB: (4, 0, False),
    0xDC: (2, 1, False), 0xDD: (4, 1, False), 0xDE: (2, 2, False), 0xDF: (4, 2, False),
}  # fmt: skip
