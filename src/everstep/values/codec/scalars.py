"""Values that are no containers and that MessagePack does not know, as tagged bytes or plain lists, and back."""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import pathlib
import pickle  # for the name of an error; nothing is ever unpickled
import re
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any

import ormsgpack

from everstep.errors import CheckpointCorrupted, UnstorableValue
from everstep.values.codec.tags import (
    BYTEARRAY,
    COMPLEX,
    DATE,
    DATETIME,
    DECIMAL,
    FRACTION,
    INT,
    PATH,
    RANGE,
    STR,
    TIME,
    TIMEDELTA,
    TIMEZONE,
    UUID,
    ZONE,
)
from everstep.values.codec.tokens import containers_at_most, depth

_DECIMALS = decimal.Context(capitals=1)  # the text of a number must not depend on the caller's context
_PATHS = (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)


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


def _path_text(value: pathlib.PurePath, path: str) -> str:
    if type(value)(str(value)).parts != value.parts:
        raise UnstorableValue(path, f"the path {value!r}", "its text does not lead back to it")
    return str(value)


MAKERS: dict[type, Callable[[Any, str], tuple[int, bytes | list[Any]]]] = {
    int: lambda v, _: (INT, v.to_bytes(v.bit_length() // 8 + 1, "big", signed=True)),
    str: lambda v, _: (STR, v.encode("utf-8", "surrogatepass")),
    bytearray: lambda v, _: (BYTEARRAY, bytes(v)),
    dt.datetime: lambda v, path: (
        DATETIME,
        [v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.fold, _utc_offset(v.tzinfo, path)],
    ),
    dt.date: lambda v, _: (DATE, [v.year, v.month, v.day]),
    dt.time: lambda v, path: (TIME, [v.hour, v.minute, v.second, v.microsecond, v.fold, _utc_offset(v.tzinfo, path)]),
    dt.timedelta: lambda v, _: (TIMEDELTA, [v.days, v.seconds, v.microseconds]),
    dt.timezone: lambda v, path: (TIMEZONE, _utc_offset(v, path)),
    zoneinfo.ZoneInfo: lambda v, path: (ZONE, [_utc_offset(v, path)]),
    uuid.UUID: lambda v, _: (UUID, v.bytes),
    decimal.Decimal: lambda v, _: (DECIMAL, _DECIMALS.to_sci_string(v).encode()),
    complex: lambda v, _: (COMPLEX, [v.real, v.imag]),
    range: lambda v, _: (RANGE, [v.start, v.stop, v.step]),
    fractions.Fraction: lambda v, _: (FRACTION, [v.numerator, v.denominator]),
}
"""By type: the tag of a value, and its bytes, or a list of plain parts that is packed for it."""

for _n, _kind in enumerate(_PATHS):
    # As text: nothing is opened or resolved, and a lone surrogate in a file name survives.
    MAKERS[_kind] = lambda v, path, n=_n: (PATH, [n, _path_text(v, path)])  # type: ignore[misc]  # n is bound early


def _flat_part(tag: int, data: bytes) -> Any:
    """Return a number or text inside a value that is no container: nothing there is an object of some class."""
    if tag not in (INT, STR):
        raise CheckpointCorrupted("a stored value holds what it cannot")
    return int.from_bytes(data, "big", signed=True) if tag == INT else data.decode("utf-8", "surrogatepass")


def _flat(data: bytes) -> list[Any]:
    """Return the list inside a tagged value that is no container: numbers, texts and lists of these."""
    if containers_at_most(data) > 4 and depth(data) > 4:
        raise CheckpointCorrupted("a stored value nests where it cannot")
    found = ormsgpack.unpackb(data, ext_hook=_flat_part)
    if type(found) is not list:
        raise CheckpointCorrupted("a stored value is out of shape")
    return found


def _zone(data: Any) -> dt.tzinfo | None:
    if data is None:
        return None
    if isinstance(data, str):
        if not re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", data):
            raise CheckpointCorrupted("a stored time zone has an impossible name")
        return zoneinfo.ZoneInfo(data)
    seconds, microseconds, *name = data
    return dt.timezone(dt.timedelta(seconds=seconds, microseconds=microseconds), *name)


def _read_datetime(data: bytes) -> dt.datetime:
    year, month, day, hour, minute, second, microsecond, fold, zone = _flat(data)
    return dt.datetime(year, month, day, hour, minute, second, microsecond, _zone(zone), fold=fold)


def _read_time(data: bytes) -> dt.time:
    hour, minute, second, microsecond, fold, zone = _flat(data)
    return dt.time(hour, minute, second, microsecond, _zone(zone), fold=fold)


def _read_fraction(data: bytes) -> fractions.Fraction:
    numerator, denominator = _flat(data)
    if type(numerator) is not int or type(denominator) is not int:  # a text might stand for a power of ten
        raise CheckpointCorrupted("a stored fraction is out of shape")
    return fractions.Fraction(numerator, denominator)


def _read_path(data: bytes) -> pathlib.PurePath:
    n, text = _flat(data)
    if not isinstance(text, str) or n not in (0, 1, 2, 3):
        raise CheckpointCorrupted("a stored path is out of shape")
    try:
        return _PATHS[n](text)
    except NotImplementedError:  # the other system's paths exist here only in their pure form
        return _PATHS[n - 2](text)


READERS: dict[int, Callable[[bytes], Any]] = {
    INT: lambda data: int.from_bytes(data, "big", signed=True),
    STR: lambda data: data.decode("utf-8", "surrogatepass"),
    BYTEARRAY: lambda data: bytearray(data),
    DATETIME: _read_datetime,
    DATE: lambda data: dt.date(*_flat(data)),
    TIME: _read_time,
    TIMEDELTA: lambda data: dt.timedelta(*_flat(data)),
    TIMEZONE: lambda data: _zone(_flat(data)),
    ZONE: lambda data: _zone(_flat(data)[0]),
    UUID: lambda data: uuid.UUID(bytes=data),
    DECIMAL: lambda data: decimal.Decimal(data.decode()),
    COMPLEX: lambda data: complex(*_flat(data)),
    RANGE: lambda data: range(*_flat(data)),
    FRACTION: _read_fraction,
    PATH: _read_path,
}
"""By tag: the value of what was tagged."""
