"""Live updates: server-sent events that say when something has changed, not what.

The id of an event is a digest of what was seen, so that nothing is kept for those who come back: a browser sends the
last id it got, and hears at once if the store looks different now.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from everstep.engine import CheckpointEngine
from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.views import errors
from everstep.views.redaction import redacted
from everstep.web.answers import to_bytes

FILE_SECONDS = 0.2
"""How often the file of a SQLite store is looked at: two calls of `stat`."""
SERVER_SECONDS = 1.0
"""How often other stores are asked for the newest activity."""
HEARTBEAT_SECONDS = 15.0
THREADS_WATCHED = 50
_CLOCK_TICK_NS = 50_000_000


class NewestThreads:
    """The threads of a store that were active last, asked for once for all who listen."""

    def __init__(self, engine: CheckpointEngine) -> None:
        self._engine = engine
        self._asking = asyncio.Lock()
        self._asked_at = -math.inf
        self._seen: list[tuple[str, str]] = []

    async def look(self, age_max: float) -> list[tuple[str, str]]:
        """Return each thread with its newest checkpoint, as they were at most so many seconds ago."""
        async with self._asking:
            now = time.monotonic()
            if now - self._asked_at >= age_max:
                newest = await self._engine.list_threads(THREADS_WATCHED)
                self._seen = [(latest.thread_id, latest.checkpoint_id) for latest in newest]
                self._asked_at = now
            return self._seen


class Watcher:
    """What one listener has seen of a store, and of the thread that is open there."""

    def __init__(
        self, engine: CheckpointEngine, thread_id: str | None = None, newest: NewestThreads | None = None
    ) -> None:
        """`newest` is that of all listeners of the store, if there are others."""
        self._engine = engine
        self._thread_id = thread_id
        self._newest = newest or NewestThreads(engine)
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
        # A file is looked at when it has changed, a server every time: there what others have just seen will do.
        age_max = 0.0 if self._files else SERVER_SECONDS / 2
        seen: list[Any] = [*await self._newest.look(age_max)]
        if self._thread_id is not None:
            seen += await self._look_at_thread(self._thread_id)
        return hashlib.blake2b(to_bytes(seen), digest_size=8).hexdigest()

    async def _look_at_thread(self, thread_id: str) -> list[Any]:
        try:
            points = await self._engine.list_time_travel_points(thread_id, 1)
            log = await self._engine.operations(thread_id, 5)
        except CheckpointCorrupted as exc:
            # Its other rows are shown all the same, and other threads go on.
            return [str(exc)]
        newest = [point.checkpoint_id for point in points]
        return [newest, [(operation.id, operation.undone) for operation in log]]


async def _as_it_is() -> bool:
    return False


async def stream(
    engine: CheckpointEngine,
    thread_id: str | None,
    last_id: str | None,
    is_stopping: Callable[[], bool] = lambda: False,
    newest: NewestThreads | None = None,
    reopen: Callable[[], Awaitable[bool]] = _as_it_is,
) -> AsyncIterator[bytes]:
    """Yield an event for every change, and a sign of life where there is none, until the server stops.

    Where the store cannot be read, one event says so, and one when it can be again. `reopen` may open it anew then: if
    it did, the stream ends, and whoever comes back hears of the store as it is now.
    """
    watcher = Watcher(engine, thread_id, newest)
    # A browser comes back a second after it was cut off.
    yield b"retry: 1000\n\n"
    seen: str | None = last_id
    silent_since = time.monotonic()
    is_first = True
    is_in_trouble = False
    while not is_stopping():
        # A file that could not be read may be as it was when it can be again.
        if is_in_trouble or watcher.may_have_changed():
            try:
                now = await watcher.look()
            except EverstepError as exc:
                if await reopen():
                    return
                if not is_in_trouble:
                    yield _event("trouble", seen or "", redacted(errors.as_json(exc)))
                is_in_trouble = True
            else:
                # The first look of a new listener only says where it begins.
                kind = "hello" if is_first and seen in (None, now) else "change"
                if now != seen or is_first or is_in_trouble:
                    yield _event(kind, now, {"thread": thread_id})
                    silent_since = time.monotonic()
                seen = now
                is_first = False
                is_in_trouble = False
        # Proxies and browsers give up on a stream that is silent for too long.
        if time.monotonic() - silent_since > HEARTBEAT_SECONDS:
            yield b": still here\n\n"
            silent_since = time.monotonic()
        await asyncio.sleep(SERVER_SECONDS if is_in_trouble else watcher.pause_seconds)


def _event(kind: str, event_id: str, data: object) -> bytes:
    return f"event: {kind}\nid: {event_id}\ndata: ".encode() + to_bytes(data) + b"\n\n"


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
