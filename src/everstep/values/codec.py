"""Python values to canonical bytes and back, exactly. The one place that knows how a value is written.

The bytes are MessagePack, packed and unpacked by ormsgpack, with extension types for what MessagePack cannot tell
apart (a tuple from a list, a bytearray from bytes). Equal values with equal types and key order give equal bytes:
everything above compares bytes, never Python values. Two ways lead to the same bytes: the fast one hands the value
to the packer whole; the careful one walks it, is used when the fast one may be inexact, and names the path of what
cannot be stored. Unpacking builds plain types and registered classes; it never imports or looks up anything else.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import itertools
import pathlib
import pickle  # for the name of an error; nothing is ever unpickled
import re
import struct
import threading
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Protocol

import ormsgpack

from everstep.errors import CheckpointCorrupted, EverstepError, UnregisteredType, UnstorableValue
from everstep.values import registry

DEPTH_MAX = 100
"""How deep containers may nest, counted from the value that is saved."""

INT, STR, BYTEARRAY, MAP, TUPLE, SET, FROZENSET, OBJECT = 1, 2, 3, 4, 5, 6, 7, 8
DATETIME, DATE, TIME, TIMEDELTA, TIMEZONE, ZONE = 16, 17, 18, 19, 20, 21
UUID, DECIMAL, COMPLEX, RANGE, FRACTION, PATH = 32, 33, 34, 35, 36, 37

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_hidden = threading.local()  # an interrupt that the packer hides
_PLAIN = frozenset((type(None), bool, float, bytes))
_COPIED = frozenset((list, dict))
_END = ormsgpack.packb(b"\xe5everstep.end")  # follows a value when it is unpacked, so that rubbish behind it shows


def check_depth(packed: bytes, depth_above: int, path: str) -> None:
    """Raise UnstorableValue if these bytes, `depth_above` containers down, nest deeper than DEPTH_MAX."""
    if depth_above + len(packed) <= DEPTH_MAX:
        return
    if depth_above + _containers_at_most(packed) > DEPTH_MAX and depth_above + depth(packed) > DEPTH_MAX:
        raise UnstorableValue(path, "a value", f"it nests deeper than {DEPTH_MAX} levels")


def has_text_keys(mapping: dict[Any, Any]) -> bool:
    """Whether MessagePack's own map can hold these keys: strings that are valid Unicode."""
    return all(type(key) is str and not _surrogates(key) for key in list(mapping))


def array_header(count: int) -> bytes:
    """Return what stands before the items of a list."""
    return _header(count, 0x90, None, b"\xdc", b"\xdd")


def map_header(count: int) -> bytes:
    """Return what stands before the pairs of a mapping."""
    return _header(count, 0x80, None, b"\xde", b"\xdf")


def text_header(size_bytes: int) -> bytes:
    """Return what stands before the UTF-8 bytes of a long string."""
    return _header(size_bytes, None, b"\xd9", b"\xda", b"\xdb")


def bytes_header(size_bytes: int) -> bytes:
    """Return what stands before long bytes."""
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


def is_bytes(packed: bytes) -> bool:
    """Whether these are the bytes of a bytes value."""
    return packed[0] in b"\xc4\xc5\xc6"


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
    found: list[bytes] = []
    try:
        at, count = _token(packed, 0)
        for _ in range(count):
            end = _end(packed, at)
            found.append(packed[at:end])
            at = end
    except IndexError as exc:
        raise CheckpointCorrupted("a stored value is cut short") from exc
    if at != len(packed):
        raise CheckpointCorrupted("a stored value has a wrong size")
    return found


def length(packed: bytes) -> int:
    """Return how many items a packed list has."""
    if not is_list(packed):
        raise CheckpointCorrupted("a stored list is out of shape")
    return _token(packed, 0)[1]


def text_size(packed: bytes) -> int:
    """Return how long a packed string or bytes value is, by what it says itself."""
    return _token(packed, 0)[0]


def payload(packed: bytes) -> bytes:
    """Return the bytes inside a packed string or bytes value."""
    first = packed[0]
    return packed[1 if 0xA0 <= first < 0xC0 else 1 + _LENGTHS[first][0] :]


def _end(packed: bytes, at: int) -> int:
    """Return where the value that begins at `at` ends."""
    values = 1
    while values:
        if packed[at] in _EXT_FIRST:
            header, size = _ext_span(packed, at)
            at += header + size
            values -= 1
        else:
            size, inside = _token(packed, at)
            at += size
            values += inside - 1
    if at > len(packed):
        raise IndexError
    return at


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
        self.types, self.advice = types, advice

    def pack(self, value: Any, path: str = "value") -> bytes:
        """Return the canonical bytes of `value`; `path` is what errors call it. Raises UnstorableValue."""
        try:
            return self._pack_fast(value)
        except (TypeError, EverstepError, RuntimeError):  # the packer's own errors are TypeErrors and hide their cause
            interrupt, _hidden.interrupt = getattr(_hidden, "interrupt", None), None
            if interrupt is not None:
                raise interrupt from None
            return ormsgpack.packb(self._lower(value, path, []), option=_OPTIONS)

    def packs_to(self, value: Any, packed: bytes) -> bool:
        """Whether `value` packs to these bytes, which hold no bytes value: then a quick look is an exact one."""
        try:
            return self._packed_at_once(value) == packed
        except (TypeError, EverstepError, RuntimeError):  # `pack` will say what is wrong
            interrupt, _hidden.interrupt = getattr(_hidden, "interrupt", None), None
            if interrupt is not None:
                raise interrupt from None
            return False

    def unpack(self, packed: bytes) -> Any:
        """Return the value that `pack` turned into these bytes."""
        return self.unpack_parts([packed])

    def unpack_parts(self, parts: list[bytes]) -> Any:
        """Return the value whose bytes are the joined `parts`."""
        return _Reader(self.types).read([b"\x92", *parts, _END])

    def unpack_and_tell(self, parts: list[bytes]) -> tuple[Any, bool]:
        """Return what `unpack_parts` does, and whether it is plain: lists, dicts with text keys, and scalars."""
        reader = _Reader(self.types)
        return reader.read([b"\x92", *parts, _END]), not reader.tagged

    def opened(self, value: Any, path: str) -> tuple[int, list[Any]]:
        """Return (tag, items) of a value that is stored as a tagged list, so that a large one can be split."""
        tag, content = self._opened(value, path)
        if tag in (SET, FROZENSET):
            content.sort(key=lambda item: self.pack(item, path))
        return tag, content

    def _pack_fast(self, value: Any) -> bytes:
        packed = self._packed_at_once(value)
        # The packer writes a bytearray as bytes. Where the bytes marker cannot be seen there is none.
        if (0xC4 in packed or 0xC5 in packed or 0xC6 in packed) and _holds_buffer(value):
            raise TypeError("a bytearray needs the careful way")
        return packed

    def _packed_at_once(self, value: Any) -> bytes:
        """Return what the packer makes of `value`, though another thread may be changing it.

        Without a callback nothing else runs meanwhile. With one it does, and the packer reads beyond the end of a list
        that has shrunk, so it gets containers of its own.
        """
        try:
            return ormsgpack.packb(value, None, _OPTIONS)
        except TypeError:
            return ormsgpack.packb(_own_containers(value, 0), self._tagged_fast, _OPTIONS)

    def _tagged_fast(self, value: Any) -> ormsgpack.Ext:
        """Return the extension value for `value`; the packer calls this for what it does not know."""
        make = _MAKERS.get(type(value))
        if make is not None:
            return ormsgpack.Ext(*make(value, ""))
        try:
            tag, content = self._opened(value, "")
        except Exception:
            raise
        except BaseException as exc:  # Ctrl-C in a caller's to_state: the packer would swallow it
            _hidden.interrupt = exc
            raise
        if tag in (SET, FROZENSET):
            return ormsgpack.Ext(tag, _packed_set([self._pack_fast(item) for item in content]))
        return ormsgpack.Ext(tag, self._pack_fast(content))

    def _opened(self, value: Any, path: str) -> tuple[int, list[Any]]:
        """Return the tag and the content of a tagged container; raise UnstorableValue for an unknown type."""
        kind = type(value)
        if kind is tuple:
            return TUPLE, list(value)
        if kind is set or kind is frozenset:
            return (SET if kind is set else FROZENSET), list(value)
        if kind is dict:
            return MAP, [part for pair in list(value.items()) for part in pair]
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
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**64 else ormsgpack.Ext(*_MAKERS[int](value, path))
        if kind is str:
            return ormsgpack.Ext(*_MAKERS[str](value, path)) if _surrogates(value) else value
        if kind in _MAKERS:
            return ormsgpack.Ext(*_MAKERS[kind](value, path))
        if id(value) in above:
            raise UnstorableValue(path, f"a {kind.__name__}", "it contains itself")
        if len(above) >= DEPTH_MAX:
            raise UnstorableValue(path, f"a {kind.__name__}", f"it nests deeper than {DEPTH_MAX} levels")
        above.append(id(value))
        try:
            if kind is list:
                return [self._lower(item, f"{path}[{n}]", above) for n, item in enumerate(list(value))]
            if kind is dict and has_text_keys(value):
                return {key: self._lower(item, join_path(path, key), above) for key, item in list(value.items())}
            return ormsgpack.Ext(*self._lower_tagged(value, path, above))
        finally:
            above.pop()

    def _lower_tagged(self, value: Any, path: str, above: list[int]) -> tuple[int, bytes]:
        tag, content = self._opened(value, path)
        if tag == MAP:
            paths = [p for key in content[::2] for p in (f"{path} (key {_shown(key)})", join_path(path, key))]
        elif tag == TUPLE:
            paths = [f"{path}[{n}]" for n in range(len(content))]
        else:  # a set has no positions; the fields of an object read as `path.field`
            paths = [path] * len(content)
        lowered = [self._lower(item, where, above) for item, where in zip(content, paths, strict=True)]
        if tag in (SET, FROZENSET):
            return tag, _packed_set([ormsgpack.packb(item, option=_OPTIONS) for item in lowered])
        return tag, ormsgpack.packb(lowered, option=_OPTIONS)


DEFAULT = Codec(registry, "its class is not registered; call everstep.register(cls), or store plain data")
"""With the classes that were registered."""

pack, unpack, unpack_parts, opened = DEFAULT.pack, DEFAULT.unpack, DEFAULT.unpack_parts, DEFAULT.opened


def _own_containers(value: Any, depth: int) -> Any:
    """Return `value` with new lists and dicts; what they hold is the same."""
    kind = type(value)
    if depth > DEPTH_MAX:
        raise TypeError("a value that nests too deep, or contains itself, needs the careful way")
    if kind is list:
        return [_own_containers(item, depth + 1) if type(item) in _COPIED else item for item in value.copy()]
    if kind is dict:
        pairs = value.copy().items()
        return {key: _own_containers(item, depth + 1) if type(item) in _COPIED else item for key, item in pairs}
    return value


def _packed_set(items: list[bytes]) -> bytes:
    return array_header(len(items)) + b"".join(sorted(items))


def _holds_buffer(value: Any) -> bool:
    """Whether a bytearray or memoryview is in the parts of `value` that the packer writes by itself."""
    return _holds(value, (bytearray, memoryview))


def holds_bytes(value: Any) -> bool:
    """Whether bytes, or what the packer takes for bytes, are in the parts of `value` that it writes by itself."""
    return _holds(value, (bytes, bytearray, memoryview))


def _holds(value: Any, kinds: tuple[type, ...]) -> bool:
    # Level by level, so that a list of many small mappings takes few steps of the interpreter.
    level = [value]
    while level:
        found = set(map(type, level))
        if not found.isdisjoint(kinds):
            return True
        below: list[Any] = []
        if dict in found:
            below += itertools.chain.from_iterable([item.values() for item in level if type(item) is dict and item])
        if list in found:
            below += itertools.chain.from_iterable([item for item in level if type(item) is list and item])
        level = below
    return False


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

UNSPLIT = frozenset(_MAKERS)
"""Types that are one piece however large."""


# -- unpacking ---------------------------------------------------------------------------------------------------------


class _Reader:
    """One unpacking: counts tagged levels and keeps the error that the packer would hide."""

    def __init__(self, types: Types) -> None:
        self.types = types
        self.level, self.tagged = 0, False
        self.failure: BaseException | None = None
        self.entries: dict[str, registry.Registered] = {}
        """The classes that were asked for: each is looked up once."""
        self.as_data: str | None = None
        """A class the objects of which came back as plain data, if there is one."""

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
    items = reader.items(data)
    flat = iter(items)
    try:
        return dict(zip(flat, flat, strict=True))
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
TREE_TAGS = frozenset((MAP, TUPLE, SET, FROZENSET, OBJECT))
"""Tags whose content is a packed list."""


def _containers_at_most(packed: bytes) -> int:
    """Return a number that the nesting depth cannot exceed: how many bytes could open a container."""
    return len(packed) - len(packed.translate(None, _CONTAINER_BYTES))


def depth(packed: bytes) -> int:
    """Return how deep the containers in one packed value nest, without building it."""
    deepest, at, end = 0, 0, len(packed)
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
