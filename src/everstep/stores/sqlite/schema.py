"""The tables of the SQLite store: their version, how they are made, and the checksum of a row.

A change of the tables is one more numbered file in `sql/`, which brings older files up to date.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from importlib import resources
from typing import Any, cast

import apsw

FIRST = 10
"""The first version that was released. Files of earlier ones are refused."""
VERSION = 10
APPLICATION_ID = 0x45565354  # "EVST"
PAGE_BYTES = 2048
"""Of a new file. An empty one is half as large as with SQLite's own 4,096, and a short chat is a seventh smaller."""

SEALED = {
    "families": "id, format, sweeps, live",
    "threads": "id, name, family, began, origin, note",
    "lines": "id, thread, namespace, head, head_was_moved, generation, active, unreferenced",
    "segments": "family, segment, line",
    "checkpoints": "seq, line, segment, pinned, branches, added",
    "writes": "line, checkpoint, task, idx, seq",
    "operations": "seq, thread, undone",
    "hidden": "line, operation, after, upto, segment, writes_of",
    "covers": "line, segment, upto, after",
    "counters": "name, value",
}
"""By table: the columns that its rows' `seal` covers, in order. The triggers in the schema say the same."""


def seal(*values: str | bytes | int | None) -> int:
    """Return the checksum of a row. The text of the values is the same in every version of Python."""
    return zlib.crc32(ascii(values).encode())


def add_functions(connection: apsw.Connection) -> None:
    """Give a connection the function that the triggers of the tables use."""
    connection.create_scalar_function("seal", cast(Any, seal), deterministic=True, flags=apsw.SQLITE_INNOCUOUS)


def migrate(connection: apsw.Connection, version: int) -> Iterator[int]:
    """Bring the tables up to date, file by file; yield the version after each."""
    for number in range(max(version + 1, FIRST), VERSION + 1):
        connection.execute(resources.files("everstep.stores.sqlite").joinpath(f"sql/sqlite-{number}.sql").read_text())
        yield number
