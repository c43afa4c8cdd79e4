"""Rows on pages that no table leads to any more, since a page above them is broken.

The pages of a file are looked at one by one, and what is on them is read as SQLite wrote it: see "Database File Format"
at sqlite.org/fileformat2.html. A page tells that it holds rows, and not of which table. That is told by the number and
the kinds of their columns, and by the checksum that nearly every row of ours has.

Pages that SQLite has freed still hold the rows that were deleted. A list names these pages, and they are left out.
Where that list cannot be read only objects are looked for: one that nobody needs goes with the next sweep.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import apsw

from everstep.stores.sqlite.schema import SEALED, seal

Value = int | float | str | bytes | None
Row = tuple[Value, ...]

HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_PAGE_BYTES_AT = 16
_RESERVED_BYTES_AT = 20
_FREE_PAGES_AT = 32
_ROWS = 0x0D  # of a table that has row numbers
_ROWS_BY_KEY = 0x0A
_ROWS_BY_KEY_WITH_PAGES = 0x02
_CELLS_AT = {_ROWS: 8, _ROWS_BY_KEY: 8, _ROWS_BY_KEY_WITH_PAGES: 12}
_COUNT_AT = 3
_SHORT = struct.Struct(">H")
_NUMBER = struct.Struct(">I")
_TWO_NUMBERS = struct.Struct(">II")
_FLOAT = struct.Struct(">d")
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)
_KINDS: dict[str, tuple[type, ...]] = {"INTEGER": (int,), "TEXT": (str, bytes), "BLOB": (bytes,)}
_ONLY_ADDED = frozenset(("objects",))
"""Tables of which a row too many does no harm."""
_SOUGHT = frozenset(
    ("families", "threads", "shared_states", "lines", "segments", "checkpoints", "objects", "writes", "operations",
     "hidden", "counters")
)  # fmt: skip
"""Tables whose rows cannot be taken for those of another table or index. What is left out follows from other rows."""
_NO_ROW = (IndexError, ValueError, struct.error)
"""What reading a cell raises that holds no row, or a broken one. A text that is none is a ValueError."""


class Shape(NamedTuple):
    """What the rows of a table look like."""

    kinds: Sequence[tuple[type, ...]]
    """Of each column."""
    rowid: int | None
    """The place of the column that is the number of the row."""
    has_rowids: bool
    sealed: Sequence[int]
    """The places of the columns that the checksum covers."""
    seal: int | None

    def fits(self, row: Sequence[Value]) -> bool:
        """Whether the values of a row are of the kinds that its columns have."""
        return all(isinstance(value, kinds) for value, kinds in zip(row, self.kinds, strict=True))

    def is_sealed(self, row: Sequence[Value]) -> bool:
        """Whether a row is as its checksum says, if it has one."""
        if self.seal is None:
            return True
        covered: list[Any] = [row[place] for place in self.sealed]
        return seal(*covered) == row[self.seal]


class LostPages:
    """All pages of a file that nobody else writes to."""

    def __init__(self, file: BinaryIO, own_header: bytes) -> None:
        """`own_header` is what the file began with before anything was done to it: it says which pages are free."""
        self._file = file
        header = file.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
        (page_bytes,) = _SHORT.unpack_from(header, _PAGE_BYTES_AT)
        # 1 stands for the largest, which does not fit there. A file that is cut off within its header has no page.
        self._page_bytes = page_bytes if page_bytes > 1 else 65536
        self._usable_bytes = self._page_bytes - header[_RESERVED_BYTES_AT]
        self._count = file.seek(0, 2) // self._page_bytes
        self._free: set[int] | None = None
        if own_header.startswith(_MAGIC) and len(own_header) >= HEADER_BYTES:
            self._free = self._free_pages(*_TWO_NUMBERS.unpack_from(own_header, _FREE_PAGES_AT))

    def can_tell(self, table: str) -> bool:
        """Whether rows of a table can be told from those that were deleted, and from those of others."""
        return table in _SOUGHT and (self._free is not None or table in _ONLY_ADDED)

    def rows(self, connection: apsw.Connection, table: str) -> Iterator[Row]:
        """Yield every row of a table that is on any page, those included that the table leads to."""
        shape = shape_of(connection, table)
        pages = {_ROWS} if shape.has_rowids else {_ROWS_BY_KEY, _ROWS_BY_KEY_WITH_PAGES}
        free = self._free or ()
        for number in range(1, self._count + 1):
            if number in free:
                continue
            page = self._read(number)
            begin = HEADER_BYTES if number == 1 else 0
            if page[begin] not in pages:
                continue
            for at in self._cells(page, begin):
                row = self._row(page, page[begin], at, shape)
                if row is not None:
                    yield row

    def _read(self, number: int) -> bytes:
        self._file.seek((number - 1) * self._page_bytes)
        return self._file.read(self._page_bytes)

    def _free_pages(self, first: int, count: int) -> set[int] | None:
        """Return the pages that the list of free pages names; None: it is broken."""
        found: set[int] = set()
        trunk = first
        while trunk:
            if trunk in found or not 1 < trunk <= self._count:
                return None
            page = self._read(trunk)
            found.add(trunk)
            trunk, names = _TWO_NUMBERS.unpack_from(page)
            if names > self._usable_bytes // _NUMBER.size - 2:
                return None
            found.update(struct.unpack_from(f">{names}I", page, _TWO_NUMBERS.size))
        return found if len(found) == count else None

    # -- what is on a page

    def _cells(self, page: bytes, begin: int) -> Iterator[int]:
        """Yield where the cells of a page begin."""
        first = begin + _CELLS_AT[page[begin]]
        (count,) = _SHORT.unpack_from(page, begin + _COUNT_AT)
        end = min(first + count * _SHORT.size, self._usable_bytes)
        for place in range(first, end - 1, _SHORT.size):
            (at,) = _SHORT.unpack_from(page, place)
            if at >= end:
                yield at

    def _row(self, page: bytes, kind: int, at: int, shape: Shape) -> Row | None:
        """Return the row of a cell; None: it is not one of this table, or broken."""
        rowid = None
        try:
            if kind == _ROWS_BY_KEY_WITH_PAGES:
                at += _NUMBER.size
            size, at = _varint(page, at)
            if kind == _ROWS:
                rowid, at = _varint(page, at)
            row = _values(self._payload(page, kind, at, size), len(shape.kinds))
        except _NO_ROW:
            return None
        if shape.rowid is not None and row[shape.rowid] is None:
            row[shape.rowid] = rowid
        if not shape.fits(row) or not shape.is_sealed(row):
            return None
        return tuple(row)

    def _payload(self, page: bytes, kind: int, at: int, size: int) -> bytes:
        """Return the bytes of a row, which go on in other pages if there are many."""
        if size > self._count * self._page_bytes:
            raise ValueError("longer than the file")
        here = self._bytes_here(kind, size)
        if at + here > self._usable_bytes:
            raise ValueError("beyond the page")
        parts = [page[at : at + here]]
        if here == size:
            return parts[0]
        (number,) = _NUMBER.unpack_from(page, at + here)
        left = size - here
        # It ends: each round reads some of a row that is no longer than the file.
        while left > 0:
            if not 1 < number <= self._count:
                raise ValueError("a page that is not there")
            following = self._read(number)
            (number,) = _NUMBER.unpack_from(following)
            part = following[_NUMBER.size : min(_NUMBER.size + left, self._usable_bytes)]
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _bytes_here(self, kind: int, size: int) -> int:
        """Return how many bytes of a row are on its own page."""
        most = self._usable_bytes - 35
        if kind != _ROWS:
            most = (self._usable_bytes - 12) * 64 // 255 - 23
        if size <= most:
            return size
        least = (self._usable_bytes - 12) * 32 // 255 - 23
        here = least + (size - least) % (self._usable_bytes - _NUMBER.size)
        return here if here <= most else least


def shape_of(connection: apsw.Connection, table: str) -> Shape:
    """Return what the rows of a table look like, as the table was made."""
    columns: list[Any] = connection.execute(f"PRAGMA table_info({table})").fetchall()
    names = [name for _, name, *_ in columns]
    keys = [name for _, name, _, _, _, key in columns if key]
    (without,) = connection.execute("SELECT wr FROM pragma_table_list WHERE name = ?", (table,)).fetchall()[0]
    rowid = None
    kinds: list[tuple[type, ...]] = []
    for place, name, kind, is_needed, *_ in columns:
        if not without and keys == [name] and kind == "INTEGER":
            rowid = place
        may_be: tuple[type, ...] = _KINDS[kind]
        if not is_needed and place != rowid:
            may_be = (*may_be, type(None))
        kinds.append(may_be)
    sealed: list[int] = []
    if table in SEALED:
        sealed = [names.index(name) for name in SEALED[table].split(", ")]
    return Shape(kinds, rowid, not without, sealed, names.index("seal") if sealed else None)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of one to nine bytes, and where it ends."""
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    value = value << 8 | data[at + 8]
    if value >= 1 << 63:
        value -= 1 << 64
    return value, at + 9


def _values(payload: bytes, count: int) -> list[Value]:
    """Return the values of a row; ValueError unless there are so many."""
    end, at = _varint(payload, 0)
    kinds: list[int] = []
    while at < end and len(kinds) <= count:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if len(kinds) != count or at != end:
        raise ValueError("another number of columns")
    sizes = list(map(_size_of, kinds))
    if end + sum(sizes) != len(payload):
        raise ValueError("another length")
    values: list[Value] = []
    for kind, size in zip(kinds, sizes, strict=True):
        values.append(_value(kind, payload[end : end + size]))
        end += size
    return values


def _size_of(kind: int) -> int:
    if kind < len(_INTEGER_BYTES):
        return _INTEGER_BYTES[kind]
    if kind == 7:
        return _FLOAT.size
    if kind in (8, 9):
        return 0
    if kind < 12:
        raise ValueError("a kind of value that there is not")
    return (kind - 12) // 2


def _value(kind: int, data: bytes) -> Value:
    if kind == 0:
        return None
    if kind < len(_INTEGER_BYTES):
        return int.from_bytes(data, "big", signed=True)
    if kind == 7:
        number: float = _FLOAT.unpack(data)[0]
        return number
    if kind in (8, 9):
        return kind - 8
    return data.decode() if kind % 2 else data
