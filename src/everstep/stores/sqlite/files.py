"""What the file system lets this process do with a database file, and how to say what it does not."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from tempfile import TemporaryFile

from everstep.errors import StoreError, StoreReadOnly
from everstep.stores.open_files import too_many_now

_COMPANIONS_BYTES = 40_960


def can_write(path: Path) -> bool:
    """Whether a file may be written. Its log counts too, which has to be made beside it if it is not there.

    Of a file that is not there SQLite says what is wrong.
    """
    if not os.path.exists(path):
        return True
    if not _may(path, os.W_OK):
        return False
    log = Path(f"{path}-wal")
    index = Path(f"{path}-shm")
    return _may(path.parent, os.W_OK) or (_may(log, os.W_OK) and _may(index, os.W_OK))


def is_unchanging(path: Path) -> bool:
    """Whether the file is whole without its log, which nobody has open: then SQLite needs no files beside it.

    With a log there is somebody who writes, or who was killed. If the log's index is there, SQLite reads both without
    writing. If only the log is there, the index would have to be made, and would then belong to the reader.
    """
    log = Path(f"{path}-wal")
    index = Path(f"{path}-shm")
    if os.path.exists(log) and os.path.getsize(log) > 0:
        if os.path.exists(index):
            return False
        raise StoreReadOnly(
            f"{path} may only be read here, and its newest checkpoints are still in {log.name}; open the store once "
            "where it may be written, which moves them into the file"
        )
    return not os.path.exists(index)


def has_space(path: Path) -> bool:
    """Whether there is room for the files that SQLite makes beside a database."""
    if shutil.disk_usage(path.parent).free < _COMPANIONS_BYTES:
        return False
    try:  # the disk may have room of which this user has used up his share
        with TemporaryFile(dir=path.parent, buffering=0) as trial:
            trial.write(bytes(_COMPANIONS_BYTES))
    except OSError as exc:
        return exc.errno not in (errno.ENOSPC, errno.EDQUOT)
    return True


def why_not_opened(path: Path) -> StoreError:
    """Return what is wrong with a file that SQLite could not open."""
    crowded = too_many_now()
    if crowded is not None:
        return crowded
    if os.path.isdir(path):
        return StoreReadOnly(f"{path} is a folder; name a file in it")
    folder = path.parent
    if not os.path.isdir(folder):
        return StoreReadOnly(f"{path} cannot be made: the folder {folder} does not exist; make it first")
    if not _may(folder, os.X_OK):
        return StoreReadOnly(f"{path} cannot be opened: this user may not enter the folder {folder}")
    if not os.path.exists(path):
        return StoreReadOnly(f"{path} cannot be made: this user may not write to the folder {folder}")
    if not _may(path, os.R_OK):
        return StoreReadOnly(f"{path} cannot be opened: this user may not read it; check its owner and permissions")
    return StoreReadOnly(
        f"{path} cannot be opened; check its permissions, those of the files {path.name}-wal and {path.name}-shm "
        "beside it, and those of its folder"
    )


def _may(path: Path, what: int) -> bool:
    if os.access in os.supports_effective_ids:
        return os.access(path, what, effective_ids=True)
    return os.access(path, what)
