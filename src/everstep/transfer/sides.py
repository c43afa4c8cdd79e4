"""The stores that histories come from and go to: what may name one, and who closes it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from everstep import factory
from everstep.backends import CheckpointBackend, StoreBackend
from everstep.engine import CheckpointEngine
from everstep.errors import InvalidInput, UnsupportedByBackend
from everstep.opening.addresses import Address, is_in_memory
from everstep.runtime import checks
from everstep.runtime.blocking import SyncFace
from everstep.stores.protocol import Store

Side = Address | CheckpointEngine | CheckpointBackend | SyncFace[Any] | Store


@asynccontextmanager
async def opened(side: Side, which: str, blocking: bool) -> AsyncIterator[Store]:
    """Give the store of a side; one that was opened here is closed in the end."""
    if not isinstance(side, (str, os.PathLike)):
        yield _face(_store(side, which), blocking)
        return
    if is_in_memory(side):
        raise InvalidInput(f"the {which} {side!r} would be a new, empty store; pass an open engine or backend")
    store = _store(factory.open(side), which)
    path = getattr(store, "path", None)
    if which == "source" and path is not None and not path.exists():
        raise InvalidInput(f"the source is not there: no file {path}")
    store = _face(store, blocking)
    try:
        yield store
    finally:
        await store.close()


def _face(store: Store, blocking: bool) -> Store:
    if blocking:
        return store.blocking
    return store


def thread_names(threads: Iterable[str] | None) -> list[str] | None:
    """Return the names of the threads that somebody asks for; None means all of them."""
    if isinstance(threads, str):
        raise InvalidInput(f"threads is a list of thread ids, not the string {threads!r:.100}")
    if threads is None:
        return None
    return list(map(checks.thread_id, threads))


def _store(side: Any, which: str) -> Store:
    if isinstance(side, SyncFace):
        side = side._driven
    if isinstance(side, CheckpointEngine):
        side = side.checkpointer
    if isinstance(side, StoreBackend):
        return side.store
    if isinstance(side, CheckpointBackend):
        raise UnsupportedByBackend(
            f"the {which} is a {type(side).__name__}, which has the seven published methods only: branches, hidden "
            "checkpoints and the log of operations cannot be copied with them"
        )
    # A store of somebody's own is known by what it can do, not by its class.
    if not hasattr(side, "adopt"):
        raise InvalidInput(f"the {which} is a URL, a path, an engine, a backend or a store, not {checks.shown(side)}")
    store: Store = side
    return store
