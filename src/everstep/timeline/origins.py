"""Checkpoints that branches began at lately: who tries several ways from one place need not read it each time."""

from __future__ import annotations

import threading
from collections import OrderedDict

from everstep.runtime import forks
from everstep.stores.abilities import Origin

_COUNT_MAX = 64
_ROOT_BYTES_MAX = 64 << 10


class RecentOrigins:
    """Origins by the id of their checkpoint, as they were found last.

    They may be out of date: the commit that begins a branch at one is told so, and looks (`Change.remembered`).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[str, Origin] = OrderedDict()
        self._fork_guard = forks.hold(self._lock, 2)

    def get(self, checkpoint_id: str) -> Origin | None:
        return self._held.get(checkpoint_id)

    def put(self, origin: Origin) -> None:
        """Remember an origin; a very large root is not worth its room."""
        record = origin.stored.record
        if len(record.body) + len(record.children) > _ROOT_BYTES_MAX:
            return
        with self._lock:
            self._held.pop(record.key.checkpoint_id, None)
            self._held[record.key.checkpoint_id] = origin
            if len(self._held) > _COUNT_MAX:
                self._held.popitem(last=False)
