"""Live updates: server-sent events that say when something has changed, not what.

The id of an event is a digest of what was seen, so that nothing is kept for those who come back: a browser sends the
last id it got, and hears at once if the store looks different now.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from everstep.engine import CheckpointEngine
from everstep.errors import EverstepError
from everstep.web.answers import to_bytes

FILE_SECONDS = 0.2
"""How often the file of a SQLite store is looked at: two calls of `stat`."""
SERVER_SECONDS = 1.0
"""How often other stores are asked for the newest activity."""
HEARTBEAT_SECONDS = 15.0
THREADS_WATCHED = 50
_CLOCK_TICK_NS = 50_000_000


class Watcher:
    """What one listener has seen of a store, and of the thread that is open there."""

    def __init__(self, engine: CheckpointEngine, thread_id: str | None = None) -> None:
        self._engine = engine
        self._thread_id = thread_id
        path = getattr(getattr(engine.checkpointer, "store", None), "path", None)
        self._files = [] if path is None else [os.fspath(path), f"{os.fspath(path)}-wal"]
        self._stamp: object = None

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next look."""
        return FILE_SECONDS if self._files else SERVER_SECONDS

    def may_have_changed(self) -> bool:
        """Whether it is worth asking the store. A file says so by its times and size; a server does not."""
        if not self._files:
            return True
        stamp = [_stamp(path) for path in self._files]
        has_changed = stamp != self._stamp
        # A file system counts time in ticks: what was written in this very one could look the same afterwards.
        is_fresh = any(time.time_ns() - mtime < _CLOCK_TICK_NS for mtime, _ in stamp)
        self._stamp = None if is_fresh else stamp
        return has_changed

    async def look(self) -> str:
        """Return a digest of what there is: the newest threads, and the head and the log of the open one."""
        newest = await self._engine.list_threads(THREADS_WATCHED)
        seen: list[Any] = [(latest.thread_id, latest.checkpoint_id) for latest in newest]
        if self._thread_id is not None:
            points = await self._engine.list_time_travel_points(self._thread_id, 1)
            seen.append([point.checkpoint_id for point in points])
            log = await self._engine.operations(self._thread_id, 5)
            seen.append([(operation.id, operation.undone) for operation in log])
        return hashlib.blake2b(to_bytes(seen), digest_size=8).hexdigest()


async def stream(
    engine: CheckpointEngine,
    thread_id: str | None,
    last_id: str | None,
    is_stopping: Callable[[], bool] = lambda: False,
) -> AsyncIterator[bytes]:
    """Yield an event for every change, and a sign of life where there is none, until the server stops."""
    watcher = Watcher(engine, thread_id)
    # A browser comes back a second after it was cut off.
    yield b"retry: 1000\n\n"
    seen: str | None = last_id
    silent_since = time.monotonic()
    is_first = True
    while not is_stopping():
        if watcher.may_have_changed():
            try:
                now = await watcher.look()
            except EverstepError as exc:
                yield _event("trouble", seen or "", {"error": type(exc).__name__})
            else:
                # The first look of a new listener only says where it begins.
                kind = "hello" if is_first and seen in (None, now) else "change"
                if now != seen or is_first:
                    yield _event(kind, now, {"thread": thread_id})
                    silent_since = time.monotonic()
                seen = now
                is_first = False
        # Proxies and browsers give up on a stream that is silent for too long.
        if time.monotonic() - silent_since > HEARTBEAT_SECONDS:
            yield b": still here\n\n"
            silent_since = time.monotonic()
        await asyncio.sleep(watcher.pause_seconds)


def _event(kind: str, event_id: str, data: object) -> bytes:
    return f"event: {kind}\nid: {event_id}\ndata: ".encode() + to_bytes(data) + b"\n\n"


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
