"""The bytes of an `.everstep` file: a header, then frames, each compressed and with a checksum.

The checksum of a frame covers the one before it, so a frame that is left out, doubled or in another place is noticed as
soon as one that was changed. What a frame may grow to is bounded by the bytes that are there: see `values.compress`.
docs/stored-format.md describes every byte.
"""

from __future__ import annotations

import hashlib
import struct
from typing import BinaryIO

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.values import compress

MAGIC = b"EVERSTEP"
VERSION = 1
INCREMENT_VERSION = 2
"""Of a file that rests on others: the increment of a backup. Else it is the same."""
CHECK_BYTES = 16

_HEADER = struct.Struct(">8sHH")  # magic, version, reserved
_FRAME = struct.Struct(">I16s")  # how many bytes follow, their checksum
_READ_BYTES = 1 << 20  # at once: a length that is not true costs no more than what is there


class FrameWriter:
    """Writes frames to a file, one after the other."""

    def __init__(self, file: BinaryIO, version: int = VERSION) -> None:
        self._file = file
        header = _HEADER.pack(MAGIC, version, 0)
        self.check = _check(b"", header)
        """The checksum of the last frame: it covers all that was written."""
        self.size_bytes = 0
        """What was written."""
        self._write(header)

    def write(self, content: bytes) -> None:
        """Write a frame."""
        payload = compress.squeeze(content)
        self.check = _check(self.check, payload)
        self._write(_FRAME.pack(len(payload), self.check))
        self._write(payload)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:  # a pipe that is not buffered may take a part
            left = left[self._file.write(left) :]
        self.size_bytes += len(data)


class FrameReader:
    """Reads what a FrameWriter wrote."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        header = self._read(_HEADER.size)
        if header[: len(MAGIC)] != MAGIC[: len(header)] or not header:
            raise InvalidInput("this is not an export of Everstep: it begins with other bytes")
        if len(header) < _HEADER.size:
            raise _ends_early()
        version: int
        _, version, reserved = _HEADER.unpack(header)
        self.version = version
        if self.version > INCREMENT_VERSION:
            raise InvalidInput(
                f"the file was written by a newer version of Everstep, in format {self.version}, and this one knows "
                f"formats up to {INCREMENT_VERSION}; install a newer version to read it"
            )
        if not self.version or reserved:
            raise CheckpointCorrupted("the header of the file is damaged")
        self._last = _check(b"", header)

    def go_to(self, offset: int, check: bytes) -> None:
        """Go on with the frame that begins there; `check` is the checksum of the one before."""
        self._file.seek(offset)
        self._last = check

    def read(self) -> bytes | None:
        """Return the content of the next frame; None: the file ends here."""
        head = self._read(_FRAME.size)
        if not head:
            return None
        if len(head) < _FRAME.size:
            raise _ends_early()
        size, check = _FRAME.unpack(head)
        payload = self._read(size)
        if len(payload) < size:
            raise _ends_early()
        self._last = _check(self._last, payload)
        if self._last != check:
            raise CheckpointCorrupted("a part of the file does not match its checksum")
        return compress.expand_all([payload])[0]

    def _read(self, size: int) -> bytes:
        """Return so many bytes, or fewer if there are no more."""
        parts: list[bytes] = []
        while size > 0:
            part = self._file.read(min(size, _READ_BYTES))
            if not part:
                break
            if not isinstance(part, bytes):
                raise InvalidInput("a file that is imported is opened in binary mode")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _check(before: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(b"%d:%b%b" % (len(payload), before, payload)).digest()[:CHECK_BYTES]


def _ends_early() -> CheckpointCorrupted:
    return CheckpointCorrupted("the file ends too early: it was cut off, or its writer was stopped")
