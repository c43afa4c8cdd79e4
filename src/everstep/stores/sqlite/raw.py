"""The database file below SQLite: its bytes as they are on disk, without the write-ahead log.

SQLite's own handle of the file is used. A handle of ours would have to be closed at some time, and closing any handle
of a file drops every lock that this process has on it.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import apsw

_CALLS = (
    "xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock", "xUnlock", "xCheckReservedLock",
    "xFileControl", "xSectorSize", "xDeviceCharacteristics", "xShmMap",
)  # fmt: skip
_SYNC_FULL = 3
# Of the log's index in shared memory: "The WAL-Index File Format" at sqlite.org/walformat.html.
_SHARED_REGION_BYTES = 32768
_WAL_STATE = struct.Struct("32x8s56x4s28x4s")  # aSalt, nBackfill, nBackfillAttempted
_LOG_PAGES = struct.Struct("=16xI")  # mxFrame
_COMMITS = slice(8, 12)  # iChange
_SHARED_HEADER_BYTES = 132


class _Methods(ctypes.Structure):
    """The beginning of `sqlite3_io_methods`."""

    _fields_ = (("iVersion", ctypes.c_int), *((name, ctypes.c_void_p) for name in _CALLS))


_transfer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
_map_shared = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)
)
_file_size = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64))


WalState = tuple[bytes, bytes, bytes]
"""How far the log has been moved into the file, as all connections to it know: salt, moved, attempted.

The log has another salt each time that it begins anew. It was moved up to a frame, a number as it is in memory; the
same is set as attempted before the first page is written.
"""


class RawFile:
    """The main file of a connection, as long as that is open. Used by one thread at a time, as the connection is."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._file = ctypes.c_void_p()
        connection.file_control("main", apsw.SQLITE_FCNTL_FILE_POINTER, ctypes.addressof(self._file))
        methods = ctypes.cast(self._file, ctypes.POINTER(ctypes.POINTER(_Methods))).contents.contents
        self._read = _transfer(methods.xRead)
        self._write = _transfer(methods.xWrite)
        self._sync = _sync(methods.xSync)
        self._size = _file_size(methods.xFileSize)
        # Mapping it would make the file that holds it, which is not for those to do who may only read.
        self._shared = None if connection.readonly("main") else _shared_memory(self._file, methods)
        self.wal_state: Callable[[], WalState | None] = lambda: None
        """Returns the state of the log; None where no memory is shared. Every commit asks, so it is no method."""
        self.log_pages: Callable[[], tuple[int]] = lambda: (0,)
        """The same for how many pages the log holds, those that have been moved included."""
        if self._shared is not None:
            self.wal_state = functools.partial(_WAL_STATE.unpack_from, self._shared)
            self.log_pages = functools.partial(_LOG_PAGES.unpack_from, self._shared)

    def moved_pages(self) -> int:
        """Return how many pages of the log have been moved into the file, by whatever process."""
        state = self.wal_state()
        if state is None:
            return 0
        _, moved, _ = state
        return int.from_bytes(moved, sys.byteorder)

    def commits(self) -> int:
        """Return a number that is one more after each commit, of whatever process; it begins anew some time."""
        if self._shared is None:
            return 0
        shared: Any = self._shared
        return int.from_bytes(shared[_COMMITS], sys.byteorder)

    def size_bytes(self) -> int:
        size = ctypes.c_int64()
        _checked(self._size(self._file, ctypes.byref(size)))
        return size.value

    def read(self, at: int, length: int) -> bytes:
        """Return bytes of the file; what is beyond its end is zero."""
        buffer = ctypes.create_string_buffer(length)
        _checked(self._read(self._file, buffer, length, at), apsw.SQLITE_IOERR_SHORT_READ)
        return buffer.raw

    def unsealed_pages(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, content) of the pages whose checksum is not right."""
        page_bytes: int = self._connection.pragma("page_size")
        is_right = "SELECT verify_checksum(?)"
        for at in range(0, self.size_bytes() // page_bytes * page_bytes, page_bytes):
            page = self.read(at, page_bytes)
            if not self._connection.execute(is_right, (page,)).get:
                yield at, page

    def seal_page(self, at: int, page: bytes) -> None:
        """Write a page as it is; on the way its checksum is computed. Torn by a crash, it is still the same page."""
        buffer = ctypes.create_string_buffer(page, len(page))
        _checked(self._write(self._file, buffer, len(page), at))

    def sync(self) -> None:
        _checked(self._sync(self._file, _SYNC_FULL))


def _shared_memory(file: ctypes.c_void_p, methods: _Methods) -> ctypes.Array[ctypes.c_char] | None:
    """Return the beginning of the log's index; it stays where it is mapped as long as the connection is open."""
    address = ctypes.c_void_p()
    code = _map_shared(methods.xShmMap)(file, 0, _SHARED_REGION_BYTES, 0, ctypes.byref(address))
    if code != apsw.SQLITE_OK or address.value is None:
        return None
    return (ctypes.c_char * _SHARED_HEADER_BYTES).from_address(address.value)


def _checked(code: int, *allowed: int) -> None:
    if code not in (apsw.SQLITE_OK, *allowed):
        raise apsw.exception_for(code)
