"""Where the files of the tests lie: in memory, if there is room.

A store waits for the disk at every commit. The tests end processes and not machines, so it would show nothing here, and
it would take longer than all that they do.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil  # type: ignore[import-untyped]

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""Several times what the files of all tests ever took at once."""


def use_memory(folder: Path = MEMORY) -> None:
    """Let this process and those that it starts make their temporary files in memory.

    Not if TMPDIR names another place, if there is little room, or if nothing may be executed there: some tests write
    programs.
    """
    if "TMPDIR" not in os.environ and _is_fit(folder):
        os.environ["TMPDIR"] = str(folder)
        tempfile.tempdir = None  # it remembers the old one


def _is_fit(folder: Path) -> bool:
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    room_bytes: int = min(shutil.disk_usage(folder).free, psutil.virtual_memory().available)
    return room_bytes >= ROOM_BYTES
