"""What an import from LangGraph's own savers did, and how far it is: as values, and on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

_LINE_SECONDS = 1.0


@dataclass(frozen=True)
class ImportReport:
    """What `import_langgraph` did."""

    threads: int = 0
    """Threads that are now in the target as they are in the source."""
    checkpoints: int = 0
    """Checkpoints that were put."""
    writes: int = 0
    """Pending writes that were attached."""
    skipped: int = 0
    """Checkpoints that were there already."""
    verified: int = 0
    """Checkpoints that were read again and compared with what the stock saver reads, with their writes."""
    secrets: int = 0
    """Entries of metadata that were left behind, because their names are those of secrets."""
    bytes_read: int = 0
    """Bytes of checkpoints and writes that were read from the source; those read to compare do not count."""
    source_bytes: int = 0
    """What the source takes on disk."""
    target_bytes_before: int | None = None
    target_bytes: int | None = None
    """What the target takes on disk, all of its threads; None: it cannot tell."""
    seconds: float = 0.0

    @property
    def mb_per_second(self) -> float:
        """How fast the source was read, all in all."""
        return self.bytes_read / 1e6 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class ImportProgress:
    """How far an import is. Totals are those of the beginning, or more if the source has grown."""

    threads_done: int
    threads_total: int
    checkpoints_done: int
    checkpoints_total: int
    bytes_read: int
    checkpoints_verified: int = 0


Progress = Callable[[ImportProgress], object]
"""What a caller gives to be told how far it is."""


class Teller:
    """Tells how far it is: to a function, and on the terminal."""

    def __init__(self, progress: Progress | None, quiet: bool) -> None:
        self._progress = progress
        self._quiet = quiet
        self._shows_line = not quiet and sys.stderr.isatty()
        self._told = 0.0

    def tell(self, now: ImportProgress) -> None:
        """Tell how far it is."""
        if self._progress is not None:
            self._progress(now)
        if self._shows_line and time.monotonic() - self._told >= _LINE_SECONDS:
            self._told = time.monotonic()
            text = (
                f"{now.threads_done:,} of {now.threads_total:,} threads, {now.checkpoints_done:,} of "
                f"{now.checkpoints_total:,} checkpoints, {_mb(now.bytes_read)} read"
            )
            _say(f"\r\x1b[K{text}", sys.stderr)

    def end(self, report: ImportReport) -> None:
        """Tell what was done."""
        if self._quiet:
            return
        if self._shows_line and self._told:
            _say("\r\x1b[K", sys.stderr)
        summary = (
            f"imported {_counted(report.threads, 'thread')}: {_counted(report.checkpoints, 'checkpoint')}, "
            f"{_counted(report.writes, 'write')}; {report.skipped:,} were there, {report.verified:,} verified, "
            f"{_counted(report.secrets, 'secret')} left behind; {report.seconds:.1f} s, {report.mb_per_second:.0f} MB/s"
        )
        after = "of a size that this store cannot tell"
        if report.target_bytes is not None:
            after = _mb(report.target_bytes)
            if report.target_bytes_before:
                after += f", of which {_mb(report.target_bytes_before)} were there"
        _say(f"{summary}\nbefore: {_mb(report.source_bytes)}; after: {after}\n", sys.stdout)


def _say(text: str, stream: TextIO) -> None:
    stream.write(text)
    stream.flush()


def _counted(number: int, word: str) -> str:
    return f"1 {word}" if number == 1 else f"{number:,} {word}s"


def _mb(size_bytes: int) -> str:
    if size_bytes < 1_000_000:
        return f"{size_bytes / 1e3:,.1f} kB"
    return f"{size_bytes / 1e6:,.1f} MB"
