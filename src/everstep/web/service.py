"""What all endpoints share: the engine, what may be done with it, and where rows of long histories begin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from everstep.backends import CheckpointBackend
from everstep.config import SnapshotConfig
from everstep.engine import CheckpointEngine
from everstep.errors import InvalidInput
from everstep.factory import open as open_store
from everstep.opening.addresses import Address, is_address
from everstep.reports import GCReport
from everstep.views import history
from everstep.web.places import Places

Store = Address | CheckpointEngine | CheckpointBackend


class Service:
    """A store behind the page."""

    def __init__(
        self,
        store: Store,
        *,
        read_only: bool,
        demo: bool = False,
        options: Mapping[str, Any] | None = None,
        address: str | None = None,
    ) -> None:
        """`address` is shown in place of that of the store."""
        self.engine = open_engine(store, options)
        self.is_own = is_address(store)
        """Whether it was opened here, and is closed here."""
        # Told at the start, so that the page does not offer what would fail when it is pressed.
        self.read_only = read_only or not _is_writable(self.engine)
        self.demo = demo
        self._shown_address = address
        self.places = Places(self.engine)
        self.is_stopping = False
        """Whether the server is about to end: live updates, which never end by themselves, then do."""

    @property
    def _store(self) -> Any:
        return getattr(self.engine.checkpointer, "store", self.engine.checkpointer)

    @property
    def address(self) -> str:
        """Where the store is; no store tells its password."""
        if self._shown_address is not None:
            return self._shown_address
        return str(getattr(self._store, "address", type(self._store).__name__))

    @property
    def kind(self) -> str:
        """Which kind of store it is."""
        return type(self._store).__name__.removesuffix("Store").lower()

    async def history(self, thread_id: str, *, offset: int | None = None, **asked: Any) -> dict[str, Any]:
        """Return a page of rows; `offset` is how many rows are left out at the top."""
        # Only what is left out at the top needs the places of rows, and those cost a walk through the
        # history.
        if not offset:
            return await history.page(self.engine, thread_id, **asked)
        return await self.places.page(thread_id, offset, **asked)

    async def collect(self, thread_id: str | None, *, policy: str | None, param: int | None, dry_run: bool) -> GCReport:
        """Apply a retention policy; without one, that of the engine that was passed in, which else keeps all."""
        if policy is None:
            return await self.engine.collect(thread_id, dry_run=dry_run)
        config = SnapshotConfig(gc_policy=policy, gc_param=param if param is not None else 100)
        # The backend stays that of the engine, so that this one is not closed.
        return await CheckpointEngine(self.engine.checkpointer, config).collect(thread_id, dry_run=dry_run)

    async def close(self) -> None:
        """Close what was opened here."""
        if self.is_own:
            await self.engine.close()


def open_engine(store: Store, options: Mapping[str, Any] | None = None) -> CheckpointEngine:
    """Return the engine on a store that is given by its address (with options), as a backend, or as an engine.

    Nothing that is done on the page may start a retention that an application has chosen otherwise: it keeps all.
    """
    if isinstance(store, CheckpointEngine):
        return store
    if isinstance(store, CheckpointBackend):
        return CheckpointEngine(store, SnapshotConfig(gc_policy="keep_all"))
    if is_address(store):
        return open_store(store, SnapshotConfig(gc_policy="keep_all"), **(options or {}))
    raise InvalidInput(f"a store is a URL, a path, an engine or a backend, not {type(store).__name__}")


def _is_writable(engine: CheckpointEngine) -> bool:
    """Whether the file of a SQLite store can be written; other stores say so when it is tried."""
    path = getattr(getattr(engine.checkpointer, "store", None), "path", None)
    return path is None or not os.path.exists(path) or os.access(path, os.W_OK)
