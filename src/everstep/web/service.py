"""What all endpoints share: the engine, what may be done with it, and where rows of long histories begin."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any, cast

from everstep.backends import CheckpointBackend
from everstep.config import SnapshotConfig
from everstep.engine import CheckpointEngine
from everstep.errors import EverstepError, InvalidInput
from everstep.factory import open as open_store
from everstep.opening.addresses import Address, is_address
from everstep.reports import GCReport
from everstep.views import history
from everstep.views.redaction import Redact
from everstep.web.events import NewestThreads
from everstep.web.places import Places
from everstep.web.reaching import Reach, reach

Store = Address | CheckpointEngine | CheckpointBackend

IMPORT_BYTES_MAX = 1024**3
"""How large a file may be that is imported over the page: it is written to the disk of the server first."""


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
        redact: Redact | None = None,
        needs_token: bool = False,
    ) -> None:
        """`address` is shown in place of that of the store; `redact` is called with every text that is shown."""
        self._given = store
        self._options = options
        self.is_own = is_address(store)
        """Whether it was opened here, and is closed here."""
        # What is redacted can only be looked at: an edit of what is shown would store it without the secrets.
        self._is_for_looking = read_only or redact is not None
        self.redact = redact
        self.demo = demo
        self._shown_address = address
        self._needs_token = needs_token
        self.is_stopping = False
        """Whether the server is about to end: live updates, which never end by themselves, then do."""
        self._open()

    def _open(self) -> None:
        self.engine = open_engine(self._given, self._options)
        self.places = Places(self.engine)
        self.newest = NewestThreads(self.engine)
        self._file = _file_of(self.engine)
        # Told at the start, so that the page does not offer what would fail when it is pressed.
        self.read_only = self._is_for_looking or not _is_writable(self.engine)

    async def reopen(self, failed: CheckpointEngine) -> bool:
        """Open the file of the store anew if another one is in its place; return whether there is another engine now.

        Whoever removes the file of an agent and starts it again goes on looking at what it does.
        """
        # Several requests fail at the same time, and the first of them has opened it.
        if self.engine is not failed:
            return True
        file = _file_of(failed)
        if not self.is_own or file is None or file == self._file:
            return False
        self._open()
        # It cannot write what it still holds: the file that this belongs to is gone.
        with contextlib.suppress(EverstepError):
            await failed.close()
        return True

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
    def reach(self) -> Reach:
        """How somebody reaches the store from elsewhere."""
        given = self._given if is_address(self._given) else None
        found = reach(cast("Address | None", given), self._store, self._options or {})
        return found._replace(needs_token=self._needs_token)

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


def _path_of(engine: CheckpointEngine) -> str | None:
    """Return where the file of a SQLite store is; None of other stores."""
    path = getattr(getattr(engine.checkpointer, "store", None), "path", None)
    return None if path is None else os.fspath(path)


def _is_writable(engine: CheckpointEngine) -> bool:
    """Whether the file of a SQLite store can be written; other stores say so when it is tried."""
    path = _path_of(engine)
    return path is None or not os.path.exists(path) or os.access(path, os.W_OK)


def _file_of(engine: CheckpointEngine) -> tuple[int, int] | None:
    """Return which file a SQLite store is now, whatever its name was given to before; None if there is none."""
    path = _path_of(engine)
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)
