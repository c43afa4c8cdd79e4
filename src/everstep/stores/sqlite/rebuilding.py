"""A damaged file that is put right in place, or copied into a new one: see `mending`."""

from __future__ import annotations

import contextlib
import os
import time
from contextlib import closing
from pathlib import Path

import apsw

from everstep.stores.inspection import Lost
from everstep.stores.sqlite.checksums import seal_pages
from everstep.stores.sqlite.connecting import connect
from everstep.stores.sqlite.mending import BrokenStructure, copy_rows, mend, restore_schema
from everstep.stores.sqlite.opening import open_file
from everstep.stores.sqlite.raw import RawFile


def mend_file(path: Path, busy_ms: int, *, dry_run: bool) -> list[Lost]:
    """Make the tables of a file agree, and give its pages their checksums, whatever is on them."""
    with closing(connect(path, busy_ms)) as connection:
        connection.pragma("checksum_verification", 0)
        connection.execute("BEGIN IMMEDIATE")
        lost = mend(connection)
        if dry_run:
            connection.execute("ROLLBACK")
            return lost
        connection.execute("COMMIT")
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        connection.execute("BEGIN IMMEDIATE")
        seal_pages(connection, RawFile(connection))
        connection.execute("COMMIT")
        return lost


def rebuild_file(path: Path, busy_ms: int) -> Path:
    """Copy what can be read of a file into a new one in its place, and return where the old one is kept."""
    with contextlib.suppress(BrokenStructure, apsw.Error), closing(connect(path, busy_ms)) as connection:
        connection.pragma("checksum_verification", 0)
        restore_schema(connection)
    stamp = time.time_ns()
    fresh = Path(f"{path}.{stamp}.new")
    aside = Path(f"{path}.{stamp}.damaged")
    with closing(open_file(fresh, busy_ms)) as target:
        with closing(connect(path, busy_ms)) as source:
            source.execute("PRAGMA writable_schema = ON")  # else a file that is shorter than it says is not read
            source.pragma("checksum_verification", 0)
            copy_rows(source, target)
        target.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    os.rename(path, aside)
    for end in ("-wal", "-shm"):
        if os.path.exists(f"{path}{end}"):
            os.rename(f"{path}{end}", f"{aside}{end}")
    os.rename(fresh, path)
    return aside
