"""Functions in the database whose values are sent in the server's binary form: nothing looks at each of them first."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from everstep.stores.postgres.asking import Tables

# The numbers of types are the same on every server.
_INT8, _BYTEA, _INT8S, _BYTEAS = 20, 17, 1016, 1001


class Function:
    """A function, and what it takes."""

    def __init__(self, name: str, *types: int) -> None:
        self._types = types
        self._text = f"SELECT {{{name}}}({', '.join(f'${number}' for number in range(1, len(types) + 1))})"

    def called(self, tables: Tables, values: Sequence[Any]) -> tuple[bytes, Sequence[int], list[bytes | None]]:
        """Return the query that calls it, what its values are, and the values as the server takes them."""
        encoded: list[bytes | None] = []
        for kind, value in zip(self._types, values, strict=True):
            encoded.append(None if value is None else _ENCODERS[kind](value))
        return tables(self._text).encode(), self._types, encoded


def _array(kind: int, items: Sequence[bytes]) -> bytes:
    # The header of an array: its dimensions, whether it has NULLs, and what its items are.
    parts = [_ARRAY.pack(1 if items else 0, 0, kind)]
    if items:
        parts.append(_PAIR.pack(len(items), 1))
    for item in items:
        parts += (len(item).to_bytes(4, "big"), item)
    return b"".join(parts)


_ARRAY = struct.Struct(">iiI")
_PAIR = struct.Struct(">ii")
_NUMBER_8 = struct.Struct(">q")
_ENCODERS: dict[int, Callable[[Any], bytes]] = {
    _INT8: _NUMBER_8.pack,
    _BYTEA: bytes,
    _INT8S: lambda items: _array(_INT8, [_NUMBER_8.pack(item) for item in items]),
    _BYTEAS: lambda items: _array(_BYTEA, items),
}
PUT = Function(
    "put", *[_INT8] * 4, _BYTEA, *[_INT8] * 3, _BYTEA, _INT8S, *[_BYTEA] * 3, *[_BYTEAS] * 3, _INT8S, *[_BYTEA] * 4
)
"""Commits a checkpoint that follows the head: see `puts.prepare`."""
_CHECKPOINT = (_INT8, _INT8, _BYTEA, _INT8S, _BYTEA, _BYTEA, _BYTEA)
"""What the row of a first checkpoint holds."""
BEGIN = Function("begin", _BYTEA, _BYTEA, _INT8, *_CHECKPOINT, *[_BYTEAS] * 3, *[_BYTEA] * 3)
"""Begins a thread, or a namespace of one: see `beginnings.of_line`."""
BRANCH = Function("branch", *[_BYTEA] * 6, _INT8, _BYTEA, *_CHECKPOINT, *[_BYTEA] * 4, _INT8)
"""Begins a branch: see `beginnings.of_branch`."""
