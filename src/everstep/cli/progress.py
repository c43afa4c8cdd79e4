"""How far long work is: one line on standard error, written again and again. Only for people, and after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from everstep.cli.output import Output

if TYPE_CHECKING:
    from everstep.langgraph.import_reports import ImportProgress
    from everstep.reports import CopyProgress, UpkeepProgress

# What is over within a second needs no bar, and would only flicker.
_SHOWN_AFTER_SECONDS = 1.0
_EACH_SECONDS = 0.1
_BAR = 24


class Progress:
    """Shows a bar, or a count where the end is not known."""

    def __init__(self, title: str, *, is_shown: bool) -> None:
        self._title = title
        self._is_shown = is_shown
        self._began = time.monotonic()
        self._last = 0.0
        self._width = 0

    def update(self, done: int, total: int | None, noun: str) -> None:
        """Tell how far it is."""
        now = time.monotonic()
        if not self._is_shown or now - self._began < _SHOWN_AFTER_SECONDS or now - self._last < _EACH_SECONDS:
            return
        self._last = now
        if total:
            filled = min(_BAR, _BAR * done // total)
            words = f"{self._title}  {'█' * filled}{'░' * (_BAR - filled)}  {done:,} of {total:,} {noun}"
        else:
            words = f"{self._title}  {done:,} {noun}"
        # Padded with spaces, so that nothing of a longer line is left.
        sys.stderr.write("\r" + words.ljust(self._width))
        sys.stderr.flush()
        self._width = len(words)

    def count_checkpoints(self, at: CopyProgress | ImportProgress) -> None:
        """Tell how many checkpoints are brought over."""
        self.update(at.checkpoints_done, at.checkpoints_total, "checkpoints")

    def count_threads(self, at: UpkeepProgress) -> None:
        """Tell how many threads are looked at."""
        self.update(at.threads_done, at.threads_total, "threads")

    def clear(self) -> None:
        """Leave nothing behind."""
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()


@contextmanager
def show_progress(output: Output, title: str) -> Iterator[Progress]:
    """Give something to report progress to, which is gone from the screen in the end."""
    progress = Progress(title, is_shown=sys.stderr.isatty() and not output.quiet)
    try:
        yield progress
    finally:
        progress.clear()
