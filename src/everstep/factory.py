"""From a name or a URL to a backend or an engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from everstep.backends import (
    MemoryCheckpointer,
    PostgresCheckpointer,
    RedisCheckpointer,
    SQLiteCheckpointer,
    StoreBackend,
)
from everstep.config import SnapshotConfig
from everstep.engine import CheckpointEngine
from everstep.errors import InvalidInput

DEFAULT_URL = "sqlite:///checkpoints.db"
_SCHEMES = (
    "memory://, sqlite:///path, postgresql://... (pip install 'everstep[postgres]'), redis://..., rediss://... and "
    "redis+cluster://... (pip install 'everstep[redis]')"
)
_BACKENDS = ("memory", "sqlite", "postgres", "redis")
_REDIS = ("redis", "rediss", "redis+cluster", "rediss+cluster", "unix")


def open(  # noqa: A001  # the name people read as everstep.open
    url: str | None = None, config: SnapshotConfig | None = None, **options: Any
) -> CheckpointEngine:
    """Return an engine on the store at `url`.

    `memory://`, `sqlite:///path` (a fourth slash makes it absolute), `postgresql://user:password@host/database`,
    `redis://user:password@host:6379/0`, `rediss://` for TLS, or `redis+cluster://host:port,host:port`.

    Without a URL it reads the environment variable EVERSTEP_STORE, then takes `sqlite:///checkpoints.db`.
    """
    url = url if url is not None else os.environ.get("EVERSTEP_STORE") or DEFAULT_URL
    return CheckpointEngine(_from_url(url, options), config)


def create_checkpointer(backend: str = "sqlite", *, db_path: str = "checkpoints.db", **options: Any) -> StoreBackend:
    """Return the backend of that name; one without a file ignores `db_path`."""
    if backend == "memory":
        return _made(MemoryCheckpointer, options)
    if backend == "sqlite":
        return _made(SQLiteCheckpointer, {"path": db_path, **options})
    if backend == "postgres":
        return _made(PostgresCheckpointer, options)
    if backend == "redis":
        return _made(RedisCheckpointer, options)
    raise InvalidInput(f"unknown backend {backend!r}; known are {', '.join(map(repr, _BACKENDS))}")


async def create_checkpoint_engine(
    backend: str = "sqlite", db_path: str = "checkpoints.db", **options: Any
) -> CheckpointEngine:
    """Return an engine on the backend of that name. `config=` is the engine's; other options are the backend's."""
    config = options.pop("config", None)
    return CheckpointEngine(create_checkpointer(backend, db_path=db_path, **options), config)


def _from_url(url: str, options: dict[str, Any]) -> StoreBackend:
    if not isinstance(url, str):
        raise InvalidInput(f"a store's URL is a string, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if scheme == "memory" and separator and not rest:
        return _made(MemoryCheckpointer, options)
    if scheme == "sqlite" and separator:
        if not rest.startswith("/") or len(rest) == 1:
            raise InvalidInput(f"{url!r}: write sqlite:///relative/path or sqlite:////absolute/path")
        return _made(SQLiteCheckpointer, {"path": unquote(rest[1:]), **options})
    if scheme in ("postgresql", "postgres") and separator:
        return _made(PostgresCheckpointer, {"dsn": url, **options})
    if scheme in _REDIS and separator:
        return _made(RedisCheckpointer, {"url": url, **options})
    raise InvalidInput(f"unknown store URL {scheme + separator!r}; known are {_SCHEMES}")


def _made(backend: Callable[..., StoreBackend], options: dict[str, Any]) -> StoreBackend:
    try:
        return backend(**options)
    except TypeError as exc:
        raise InvalidInput(f"an option is wrong: {exc}") from exc
