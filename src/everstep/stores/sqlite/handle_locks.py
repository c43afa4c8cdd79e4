"""Locks of the system that belong to one handle of a file, not to the process.

SQLite's own locks belong to the process, and all that it has on a file go when any handle of that file is closed in it.
These stay until their own handle is closed, and processes and other handles see both kinds.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

IS_ABLE = sys.platform == "linux"
"""Whether the system has such locks."""
if sys.platform == "linux":
    import fcntl

# The C structure flock: type, from where, start, length (0: to the end), process; with its padding.
_FLOCK = "hhqqi0q"


class HandleLocks:
    """The locks that one handle has on a file. Nothing is opened before it is needed."""

    def __init__(self, path: str, *, is_shared: bool = False) -> None:
        """Shared locks go beside each other, and their file is opened to be read only."""
        self._path = path
        self._flags = os.O_RDONLY if is_shared else os.O_RDWR
        self._kind = 0
        if sys.platform == "linux":
            self._kind = fcntl.F_RDLCK if is_shared else fcntl.F_WRLCK
        self._file: int | None = None
        self.is_able = IS_ABLE
        """Whether there are such locks where the file is."""

    def lock(self, start: int, length: int) -> bool:
        """Lock bytes of the file; return whether nobody else has them."""
        if sys.platform != "linux":
            return False
        return self._call(fcntl.F_OFD_SETLK, self._kind, start, length) is not None

    def unlock(self, start: int, length: int) -> None:
        if sys.platform == "linux" and self._file is not None:
            self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, start, length)

    def taken(self, first: int, last: int | None = None) -> int:
        """Return a byte from `first` to `last` (None: to the end) that others have locked; 0: there is none."""
        if sys.platform != "linux":
            return 0
        length = 0 if last is None else last - first + 1
        if last is not None and length <= 0:
            return 0
        found = self._call(fcntl.F_OFD_GETLK, self._kind, first, length)
        if found is None:
            return 0
        kind, _, start, _, _ = struct.unpack(_FLOCK, found)
        return 0 if kind == fcntl.F_UNLCK else max(int(start), first)

    def is_free(self, question: bytes) -> bool:
        """Whether nobody has what `question_for` was asked about; for who asks often."""
        if sys.platform != "linux" or not self.is_able:
            return True
        found = self._ask(fcntl.F_OFD_GETLK, question)
        return found is None or found.startswith(_NOBODY)

    def question_for(self, start: int, length: int) -> bytes:
        """Return what `is_free` is asked; length 0: to the end of the file."""
        return struct.pack(_FLOCK, self._kind, os.SEEK_SET, start, length, 0)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes of the file, by this handle; nothing where there is no such file, or there are no such locks."""
        if not self.is_able:
            return b""
        try:
            if self._file is None:
                self._file = os.open(self._path, self._flags)
            return os.pread(self._file, length, start)
        except OSError:
            return b""

    def close(self) -> None:
        """Let go of all that is locked by this handle."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _call(self, command: int, kind: int, start: int, length: int) -> bytes | None:
        """Return the answer of the system; None: somebody else has that place, or there are no such locks here."""
        if not self.is_able:
            return None
        return self._ask(command, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0))

    def _ask(self, command: int, question: bytes) -> bytes | None:
        if sys.platform != "linux":
            return None
        try:
            if self._file is None:
                self._file = os.open(self._path, self._flags)
            return fcntl.fcntl(self._file, command, question)
        except OSError as exc:
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                self.is_able = False
            return None


def has_handle_locks() -> bool:
    """Whether this system gives such locks, tried on a file that nobody else knows."""
    if sys.platform != "linux":
        return False
    try:
        handle = os.memfd_create("everstep-locks")
    except OSError:
        return False
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


# An answer begins with this if nobody has the place.
_NOBODY = struct.pack("h", fcntl.F_UNLCK) if sys.platform == "linux" else b""
