"""The careful way to pack a value: it is walked, and what cannot be stored is named by its path."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import ormsgpack

from everstep.errors import UnstorableValue
from everstep.values.codec.plain import DEPTH_MAX, ROWS_DEPTH, bulk_of
from everstep.values.codec.scalars import MAKERS
from everstep.values.codec.tags import FROZENSET, MAP, ROWS, SET, TUPLE
from everstep.values.codec.tokens import array_header
from everstep.values.packer import OPTIONS, TUPLES_AS_LISTS

if TYPE_CHECKING:
    from everstep.values.codec.packing import Codec

_PLAIN = frozenset((type(None), bool, float, bytes))
_TEXT = frozenset((str,))
_SIZED = frozenset((list, dict, tuple, set, frozenset))


def has_text_keys(mapping: dict[Any, Any]) -> bool:
    """Whether MessagePack's own map can hold these keys: strings that are valid Unicode."""
    keys = list(mapping)
    return set(map(type, keys)) <= _TEXT and not _surrogates("".join(keys))


def lowered(codec: Codec, value: Any, path: str, above: list[int]) -> Any:
    """Return `value` in types the packer writes exactly; `above` holds the containers being walked, by identity."""
    if _is_exact(value):
        return value
    make = MAKERS.get(type(value))
    if make is not None:
        return codec.made(make(value, path), path)
    _check_nesting(value, path, above)
    above.append(id(value))
    try:
        return _lowered_container(codec, value, path, above)
    finally:
        above.pop()


def _lowered_container(codec: Codec, value: Any, path: str, above: list[int]) -> Any:
    kind = type(value)
    if kind is list:
        own = value.copy()
        is_rows = set(map(type, own)) == {tuple} and len(above) < DEPTH_MAX
        rows = bulk_of(ROWS, own, own, ROWS_DEPTH, TUPLES_AS_LISTS).content() if is_rows else None
        if rows is not None:
            return ormsgpack.Ext(ROWS, rows)
        return [lowered(codec, item, f"{path}[{n}]", above) for n, item in enumerate(own)]
    if kind is dict and has_text_keys(value):
        return {key: lowered(codec, item, join_path(path, key), above) for key, item in list(value.items())}
    return ormsgpack.Ext(*_lowered_tagged(codec, value, path, above))


def _lowered_tagged(codec: Codec, value: Any, path: str, above: list[int]) -> tuple[int, bytes]:
    tag, content = codec.opened(value, path)
    if tag == MAP:
        keys = content[: len(content) // 2]
        paths = [f"{path} (key {_shown(key)})" for key in keys] + [join_path(path, key) for key in keys]
    elif tag == TUPLE:
        paths = [f"{path}[{n}]" for n in range(len(content))]
    else:  # a set has no positions; the fields of an object read as `path.field`
        paths = [path] * len(content)
    parts = [lowered(codec, item, where, above) for item, where in zip(content, paths, strict=True)]
    if tag in (SET, FROZENSET):
        if is_sortable(parts):
            return tag, ormsgpack.packb(sorted(parts), option=OPTIONS)
        return tag, packed_set([ormsgpack.packb(item, option=OPTIONS) for item in parts])
    return tag, ormsgpack.packb(parts, option=OPTIONS)


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


def is_sortable(members: list[Any]) -> bool:
    """Whether the members of a set are all texts or all numbers, which have an order by themselves."""
    kind = type(members[0]) if members else None
    return (kind is str or kind is int) and operator.countOf(map(type, members), kind) == len(members)


def packed_set(items: list[bytes]) -> bytes:
    """Return the content of a set from its packed members."""
    return array_header(len(items)) + b"".join(sorted(items))
