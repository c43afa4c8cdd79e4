"""Packed bytes to values. Builds plain types and registered classes; it never imports or looks up anything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import ormsgpack

from everstep.errors import CheckpointCorrupted, EverstepError, UnregisteredType
from everstep.values import registry
from everstep.values.codec import scalars
from everstep.values.codec.plain import DEPTH_MAX
from everstep.values.codec.tags import FROZENSET, MAP, OBJECT, ROWS, SET, TUPLE
from everstep.values.codec.tokens import END, ENDED, LENGTHS, containers_at_most, depth

_LONG_BYTES = frozenset((b"\xc5", b"\xc6"))


def is_long_bytes(packed: bytes) -> bool:
    """Whether these are the first bytes of a long bytes value."""
    return packed[:1] in _LONG_BYTES


def joined_bytes(parts: list[bytes]) -> bytes:
    """Return the long bytes value of which these are the packed parts, with no more than one copy."""
    header = 1 + LENGTHS[parts[0][0]][0]
    size = int.from_bytes(parts[0][1:header], "big")
    if len(parts[0]) < header or sum(map(len, parts)) != header + size:
        raise CheckpointCorrupted("a stored value is not of the size it says")
    return b"".join([parts[0][header:], *parts[1:]])


class Types(Protocol):
    """Which classes are saved and rebuilt, and how. `everstep.values.registry` is one."""

    def for_type(self, cls: type, /) -> registry.Registered | None: ...
    def for_name(self, name: str, /) -> registry.Registered | None: ...


class Unpacking:
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
        """Return the value framed by an array of two and END behind it."""
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
        if end != ENDED:
            raise CheckpointCorrupted("a stored value has bytes behind its end")
        return value

    def content(self, data: bytes) -> Any:
        """Return the value inside a tagged one."""
        # Each tagged level starts a new run of the packer's own recursion; two are safe, more must prove it.
        if self.level > 2 and containers_at_most(data) > DEPTH_MAX and depth(data) > DEPTH_MAX:
            raise CheckpointCorrupted(f"a stored value nests deeper than {DEPTH_MAX} levels")
        return self.read([b"\x92", data, END])

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

    def _rebuild(self, tag: int, data: bytes) -> Any:
        self.level += 1
        self.tagged = True
        try:
            if self.level > DEPTH_MAX:
                raise CheckpointCorrupted(f"a stored value nests deeper than {DEPTH_MAX} levels")
            read_scalar = scalars.READERS.get(tag)
            if read_scalar is not None:
                return read_scalar(data)
            build = _CONTAINERS.get(tag)
            if build is None:
                raise CheckpointCorrupted(f"a stored value has the unknown type tag {tag}")
            return build(data, self)
        except BaseException as exc:
            self.failure = self.failure or exc
            raise
        finally:
            self.level -= 1


def _read_map(data: bytes, reader: Unpacking) -> dict[Any, Any]:
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


def _read_set(data: bytes, reader: Unpacking, kind: type) -> Any:
    items = reader.items(data)
    try:
        return kind(items)
    except TypeError:
        if reader.as_data is None:
            raise
        return items  # members whose class is not known here are dicts, which no set holds


def _read_rows(data: bytes, reader: Unpacking) -> list[Any]:
    rows = reader.items(data)
    if set(map(type, rows)) != {list}:
        raise CheckpointCorrupted("a stored list of tuples is out of shape")
    return list(map(tuple, rows))


def _read_object(data: bytes, reader: Unpacking) -> Any:
    found = reader.items(data)
    if len(found) != 2 or type(found[0]) is not str:
        raise CheckpointCorrupted("a stored object is out of shape")
    name, state = found
    return reader.entry(name).from_state(state)


_CONTAINERS: dict[int, Callable[[bytes, Unpacking], Any]] = {
    MAP: _read_map,
    TUPLE: lambda data, reader: tuple(reader.items(data)),
    SET: lambda data, reader: _read_set(data, reader, set),
    FROZENSET: lambda data, reader: _read_set(data, reader, frozenset),
    OBJECT: _read_object,
    ROWS: _read_rows,
}
