"""How a writer waits for what another one has for a moment: the lock of a file, a turn.

Such a thing is free again soon, and then somebody takes it at once. Whoever sleeps longer each time is there less and
less often when it is free, and those that come later are served first, again and again. So the pauses stay short.
Only after a while, when it is one long job that is waited for and not many short ones, they are made longer, once, to
leave the processor to others.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple


class Rhythm(NamedTuple):
    """Between which bounds, in seconds, the length of each pause is drawn: those who wait must not stay in step."""

    early: tuple[float, float]
    late: tuple[float, float]
    """The same after `late_after` seconds."""
    late_after: float


class Waiting:
    """One wait, from the first pause to the deadline."""

    __slots__ = ("_deadline", "_rhythm", "_since")

    def __init__(self, rhythm: Rhythm, deadline: float) -> None:
        """`deadline` is by `time.monotonic`."""
        self._rhythm = rhythm
        self._deadline = deadline
        self._since: float | None = None

    def pause(self, longest: float = float("inf")) -> bool:
        """Sleep a little, no longer than `longest` and not beyond the deadline; return whether there is time left."""
        now = time.monotonic()
        if now >= self._deadline:
            return False
        if self._since is None:
            self._since = now
        is_late = now - self._since >= self._rhythm.late_after
        bounds = self._rhythm.late if is_late else self._rhythm.early
        seconds = random.uniform(*bounds)  # noqa: S311  # no secret
        time.sleep(min(seconds, longest, self._deadline - now))
        return time.monotonic() < self._deadline
