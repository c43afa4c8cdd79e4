"""Errors of APSW and of the system as errors of ours. Nothing else mentions the driver's."""

from __future__ import annotations

from pathlib import Path

import apsw

from everstep.errors import (
    CheckpointCorrupted,
    EverstepError,
    StoreError,
    StoreFull,
    StoreMismatch,
    StoreReadFailed,
    StoreReadOnly,
    StoreUnavailable,
)
from everstep.stores.sqlite.files import has_space, why_not_opened

_FAILED_READS = (apsw.SQLITE_IOERR_READ, apsw.SQLITE_IOERR_SHORT_READ, apsw.SQLITE_IOERR_FSTAT)


class ChecksumMismatch(CheckpointCorrupted):
    """A page is not as this library wrote it. Callers never see it: see `Database._renew_checksums`."""


def is_checksum_mismatch(error: apsw.Error) -> bool:
    """Whether SQLite found a page that does not match its checksum."""
    return getattr(error, "extendedresult", 0) in (apsw.SQLITE_IOERR_DATA, apsw.SQLITE_IOERR_CORRUPTFS)


class translated:  # noqa: N801  # used like a function
    """Turn APSW's errors into ours."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (apsw.Error, OSError)):
            ours = as_ours(self._path, error)
            if ours is not error:
                raise ours from error


def as_ours(path: Path, error: Exception) -> Exception:
    """Return an error of APSW's or of the system's as one of ours, which it has caused; any other as it is."""
    if isinstance(error, apsw.Error):
        ours = translation(path, error)
    elif isinstance(error, OSError) and not isinstance(error, EverstepError):
        ours = StoreError(f"{path}: {error}")
    else:
        return error
    ours.__cause__ = error
    return ours


def translation(path: Path, error: apsw.Error) -> EverstepError:
    """Return the error that callers get for an error of APSW's."""
    if isinstance(error, apsw.FullError):
        return _full(path)
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StoreUnavailable(f"{path}: another process held the file locked for too long; try again")
    if isinstance(error, apsw.ReadOnlyError):
        return StoreReadOnly(f"{path} cannot be written; check its permissions and those of its folder")
    if isinstance(error, (apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError)):
        return why_not_opened(path)
    if isinstance(error, apsw.NotADBError):
        return StoreMismatch(f"{path} is not a SQLite database, or its first page is damaged")
    if isinstance(error, (apsw.CorruptError, apsw.FormatError, apsw.SchemaChangeError)):
        return CheckpointCorrupted(f"{path} is damaged: {error}")
    if isinstance(error, apsw.IOError):
        return _translated_failure(path, error)
    # A damaged schema reads as wrong SQL: we send no other.
    return CheckpointCorrupted(f"{path} cannot be read: {type(error).__name__}: {error}")


def _full(path: Path) -> StoreFull:
    return StoreFull(
        f"{path}: no space left; nothing was written, what was stored is intact. Free some, or delete threads"
    )


def _translated_failure(path: Path, error: apsw.IOError) -> EverstepError:
    """The same for errors of the disk."""
    code = getattr(error, "extendedresult", 0)
    if is_checksum_mismatch(error):
        return ChecksumMismatch(f"{path} is damaged: a page does not match its checksum")
    if code in _FAILED_READS:
        return StoreReadFailed(
            f"{path}: the disk could not be read ({error}); nothing was changed. Try again; if it comes again, look "
            "at the machine's log and save what can still be read with everstep.copy"
        )
    if code == apsw.SQLITE_IOERR_SHMSIZE and not has_space(path):
        return StoreFull(f"{path}: there is no space left for the index of its log, some 32 KB; free some")
    # SQLite says "full" of a disk, not of a user's share.
    if code == apsw.SQLITE_IOERR_WRITE and not has_space(path):
        return _full(path)
    return StoreError(f"{path}: the disk failed: {error}")
