"""A clock that tests move."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Stands in for `time`: whoever sleeps is woken at once, and is told that it was as long as he wanted."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.pauses: list[float] = []
        self.after_pause: Callable[[int], object] = lambda _: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        self.after_pause(len(self.pauses))
