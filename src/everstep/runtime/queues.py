"""Queues of those in this process who wait for the same thread: first come, first served.

Only the first of a queue asks the store for the claim. So a hundred requests for one thread cost the store what one
costs, and nobody who came later is first by luck. Other processes have queues of their own.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Hashable
from concurrent.futures import Future, InvalidStateError


class Queues:
    """A queue for each key, as long as somebody is in it. Threads and event loops may wait in the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Hashable, deque[Future[None]]] = {}

    def join(self, key: Hashable) -> Future[None]:
        """Return a place at the end of a queue: it is done as soon as it is the first. Whoever joins must leave."""
        place: Future[None] = Future()
        with self._lock:
            queue = self._queues.setdefault(key, deque())
            queue.append(place)
            if queue[0] is place:
                place.set_result(None)
        return place

    def leave(self, key: Hashable, place: Future[None]) -> None:
        """Give a place up, whether it was its turn or not."""
        with self._lock:
            queue = self._queues.get(key)
            # A forked child has left the queues of its parent.
            if queue is None or place not in queue:
                return
            queue.remove(place)
            if not queue:
                del self._queues[key]
                return
            # A place whose owner was just cancelled takes no turn; its owner is about to leave, which calls the next.
            with contextlib.suppress(InvalidStateError):
                if not queue[0].done():
                    queue[0].set_result(None)

    def forget(self) -> None:
        """Forget everybody: for a forked child, in which nobody waits."""
        self._lock = threading.Lock()
        self._queues = {}


queues = Queues()
os.register_at_fork(after_in_child=queues.forget)
