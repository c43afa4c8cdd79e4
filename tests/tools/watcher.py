"""Ends the servers of a test process when that process is gone, however it went, and removes their folders.

Reads folders from standard input, one a line; it ends when the last writer of the pipe is gone. A server is known by
its working folder, so one that was just being started is found too, and no number of a process is ever used twice.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

PATIENCE_SECONDS = 10


def inside(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in `folder` or below."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone meanwhile, or somebody else's
    return found


def tell(processes: list[psutil.Process], number: int) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def end(folder: Path) -> None:
    """End every process that works in `folder`: politely, so that shared memory is given back, then not."""
    tell(inside(folder), signal.SIGCONT)
    tell(inside(folder), signal.SIGINT)
    until = time.monotonic() + PATIENCE_SECONDS
    while left := inside(folder):
        if time.monotonic() > until:
            tell(left, signal.SIGKILL)
        psutil.wait_procs(left, timeout=0.1)


def main() -> None:
    """Watch until the pipe ends."""
    folders = [Path(line.rstrip("\n")) for line in sys.stdin]
    for folder in folders:
        end(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
