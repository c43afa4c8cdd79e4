"""SQLite's own locks on the index of the log, made to belong to a handle of the file and not to the process.

By these locks one connection writes at a time, and pages stay that somebody reads. They are locks of the process. So
two copies of SQLite in one process, ours and that of Python's `sqlite3`, do not see each other's: both write the log at
once, and a few commits later the file is destroyed. Whoever keeps tables of his own in the same file does that.

The system has the same locks by handle (F_OFD_SETLK). SQLite has one handle of the index for all connections of a
process, keeps account of them itself, and calls the system by a table that may be changed: `xSetSystemCall` of its VFS.
What is set there is a few instructions that ask for the other kind of lock, for the index alone, and go on to the
system's `fcntl`. A function in Python would not do: it needs the interpreter's lock while SQLite holds one of its own,
and somebody who has the first may be waiting for the second.

Where this cannot be done (see `separate`) everything else works as before.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from pathlib import Path

import apsw

from everstep.stores.sqlite.handle_locks import has_handle_locks

# int fcntl(int file, int command, struct flock *lock). F_GETLK, F_SETLK and F_SETLKW are 5 to 7, their twins 36 to 38.
# The locks of the index begin at its bytes 120 to 128, and nothing else does: those of a database file begin a gigabyte
# from its beginning, or at 0 where all are given back. The address of the system's own function follows the code.
_CODE = {
    "x86_64": bytes.fromhex(
        "f30f1efa"  #          endbr64
        "448d5efb"  #          lea   -5(%rsi), %r11d
        "4183fb02"  #          cmp   $2, %r11d
        "7718"  #              ja    go            which is no question about locks
        "4c8b5a08"  #          mov   8(%rdx), %r11 where it begins
        "4983eb78"  #          sub   $120, %r11
        "4983fb08"  #          cmp   $8, %r11
        "770a"  #              ja    go            which is no lock of an index
        "83c61f"  #            add   $31, %esi
        "c7421800000000"  #    movl  $0, 24(%rdx)  as the system wants it: no process
        "4c8b1d03000000"  # go:mov   3(%rip), %r11 the address behind the code
        "41ffe3"  #            jmp   *%r11
    ),
    "aarch64": bytes.fromhex(
        "5f2403d5"  #          bti   c
        "28140051"  #          sub   w8, w1, #5
        "1f090071"  #          cmp   w8, #2
        "e8000054"  #          b.hi  go
        "480440f9"  #          ldr   x8, [x2, #8]
        "08e101d1"  #          sub   x8, x8, #120
        "1f2100f1"  #          cmp   x8, #8
        "68000054"  #          b.hi  go
        "217c0011"  #          add   w1, w1, #31
        "5f1800b9"  #          str   wzr, [x2, #24]
        "50000058"  #       go:ldr   x16, the address behind the code
        "00021fd6"  #          br    x16
    ),
}
_ADDRESS = struct.Struct("<Q")
_PAGE_BYTES = 65536  # at least one page of memory on every machine
_READ, _WRITE, _EXECUTE = 1, 2, 4
_PRIVATE_ANONYMOUS = 0x22
_FAILED = ctypes.c_void_p(-1).value
_IN_USE = [b"128", b"128"]
"""The byte of the index that everybody has locked who has it open."""
_LOCKS = Path("/proc/locks")


class _Separate:
    """Whether it was done. It is done once in a process, for all files."""

    is_settled = False
    is_done = False


def separate() -> None:
    """Let the locks belong to a handle, if that can be: on Linux with a usual processor, where code may be made.

    It must happen before any file is open, since a lock is given back as what it was taken as. If somebody has one
    open, by APSW as well, it is tried again when the next file is opened.
    """
    if _Separate.is_settled:
        return
    code = _CODE.get(platform.machine()) if sys.platform == "linux" else None
    if code is None or ctypes.sizeof(ctypes.c_void_p) != _ADDRESS.size or not has_handle_locks():
        _Separate.is_settled = True
        return
    if any(connection.filename for connection in apsw.connections()):
        return
    _Separate.is_settled = True
    _Separate.is_done = _set_call(code)


def are_separate() -> bool:
    """Whether these locks belong to a handle."""
    return _Separate.is_done


def _set_call(code: bytes) -> bool:
    vfs = apsw.VFS("everstep-locks", "unix")
    try:
        real = vfs.xGetSystemCall("fcntl")
        address = _made_callable(code + _ADDRESS.pack(real)) if real else None
        if address is None:
            return False
        vfs.xSetSystemCall("fcntl", address)
        return True
    except (apsw.Error, AttributeError):
        return False
    finally:
        vfs.unregister()


def _made_callable(code: bytes) -> int | None:
    """Return the address of code in memory that is never given back: connections may be closed at the very end."""
    system = ctypes.CDLL(None)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    system.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    system.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = system.mmap(None, _PAGE_BYTES, _READ | _WRITE, _PRIVATE_ANONYMOUS, -1, 0)
    if address in (None, _FAILED):
        return None
    ctypes.memmove(address, code, len(code))
    # Some systems let no program make code: then it is as it was.
    if system.mprotect(address, _PAGE_BYTES, _READ | _EXECUTE) != 0:
        system.munmap(address, _PAGE_BYTES)
        return None
    return int(address)


def is_open_beside(index_path: str) -> bool:
    """Whether another copy of SQLite in this process has a log's index open: it has a lock of the process on it.

    Where our own are locks of the process as well, this cannot be told.
    """
    if not _Separate.is_done:
        return False
    try:
        index = os.stat(index_path).st_ino
        # As bytes: a store may be closed with the interpreter, when there is neither `open` nor any encoding left.
        listed = _LOCKS.read_bytes().splitlines()
    except OSError:
        return False
    own = b"%d" % os.getpid()
    inode = b":%d" % index
    for line in listed:
        # 1: POSIX  ADVISORY  READ 1234 fd:01:5678 128 128
        fields = line.split()
        if fields[1:2] == [b"POSIX"] and fields[4] == own and fields[6:] == _IN_USE and fields[5].endswith(inode):
            return True
    return False
