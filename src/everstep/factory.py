"""From a name, a path or a URL to a backend or an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Unpack

from everstep.backends import (
    MemoryCheckpointer,
    PostgresCheckpointer,
    RedisCheckpointer,
    SQLiteCheckpointer,
    StoreBackend,
)
from everstep.config import SnapshotConfig
from everstep.errors import InvalidInput
from everstep.opening.addresses import Address, file_path, place_of, shown_name
from everstep.opening.options import PlacedOptions, StoreOptions, resolved

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

DEFAULT_URL = "sqlite:///checkpoints.db"
_BACKENDS: dict[str, Callable[..., StoreBackend]] = {
    "memory": MemoryCheckpointer,
    "sqlite": SQLiteCheckpointer,
    "postgres": PostgresCheckpointer,
    "redis": RedisCheckpointer,
}


class EngineOptions(PlacedOptions, total=False):
    """The options of all stores, and the engine's configuration."""

    config: SnapshotConfig | None


def open(  # noqa: A001  # the name people read as everstep.open
    url: Address | None = None, config: SnapshotConfig | None = None, **options: Unpack[StoreOptions]
) -> CheckpointEngine:
    """Return an engine on the store at `url`, which is a URL or the path of a SQLite file.

    `agent.db`, `sqlite:///path` (a fourth slash makes it absolute), `memory://`,
    `postgresql://user:password@host/database`, `redis://user:password@host:6379/0`, `rediss://` for TLS, or
    `redis+cluster://host:port,host:port`.

    Without one it reads the environment variable EVERSTEP_STORE, then takes `sqlite:///checkpoints.db`.
    """
    from everstep.engine import CheckpointEngine  # a saver needs backends only

    if url is None:
        url = os.environ.get("EVERSTEP_STORE") or DEFAULT_URL
    return CheckpointEngine(backend_from_url(url, {**options}, "everstep.open", also=("config",)), config)


def create_checkpointer(
    backend: str = "sqlite", *, db_path: Address = "checkpoints.db", **options: Unpack[PlacedOptions]
) -> StoreBackend:
    """Return the backend of that name; one without a file ignores `db_path`."""
    return backend_of_kind(backend, db_path, {**options}, "create_checkpointer")


async def create_checkpoint_engine(
    backend: str = "sqlite", db_path: Address = "checkpoints.db", **options: Unpack[EngineOptions]
) -> CheckpointEngine:
    """Return an engine on the backend of that name. `config=` is the engine's; other options are the backend's."""
    from everstep.engine import CheckpointEngine

    config = options.pop("config", None)
    made = backend_of_kind(backend, db_path, {**options}, "create_checkpoint_engine", also=("config",))
    return CheckpointEngine(made, config)


def backend_from_url(url: object, options: dict[str, Any], caller: str, *, also: Collection[str] = ()) -> StoreBackend:
    """Return the backend at a URL or path; see `open`. `caller` is what the person called, with the options `also`."""
    kind, where = place_of(url)
    return _BACKENDS[kind](**resolved(kind, caller, where, options, also=also))


def backend_of_kind(
    kind: object, db_path: object, options: dict[str, Any], caller: str, *, also: Collection[str] = ()
) -> StoreBackend:
    """Return the backend of that name. Where a server is, its options say."""
    if not isinstance(kind, str) or kind not in _BACKENDS:
        known = ", ".join(map(repr, _BACKENDS))
        raise InvalidInput(f"unknown backend {shown_name(kind)}; known are {known}. everstep.open takes a URL")
    if kind != "sqlite":
        return _BACKENDS[kind](**resolved(kind, caller, None, options, also=also))
    own = resolved(kind, caller, None, options, also=("db_path", *also))
    own.setdefault("path", file_path(db_path))
    return _BACKENDS[kind](**own)
