"""From a name or a URL to a backend or an engine."""

from __future__ import annotations

import os
import re
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
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
# What people write who mean a server: a scheme without its slashes, a login before a host, a password by its name.
_SERVERS = r"(postgres|postgresql|redis|rediss|unix|valkey|memory|sqlite)(\+\w+)?"
_MISTYPED = re.compile(
    rf"\s*([a-z][a-z0-9+.-]+:/"
    rf"|{_SERVERS}:"
    rf"|({_SERVERS}\W*/+|//)?[^/]*:[^/]*@)"
    rf"|(^|.*[\s?&;'\"])(ssl)?(password|passwd|passfile)\s*=",
    re.IGNORECASE | re.DOTALL,
)


def open(  # noqa: A001  # the name people read as everstep.open
    url: str | None = None, config: SnapshotConfig | None = None, **options: Any
) -> CheckpointEngine:
    """Return an engine on the store at `url`.

    `memory://`, `sqlite:///path` (a fourth slash makes it absolute), `postgresql://user:password@host/database`,
    `redis://user:password@host:6379/0`, `rediss://` for TLS, or `redis+cluster://host:port,host:port`.

    Without a URL it reads the environment variable EVERSTEP_STORE, then takes `sqlite:///checkpoints.db`.
    """
    url = url if url is not None else os.environ.get("EVERSTEP_STORE") or DEFAULT_URL
    return CheckpointEngine(backend_from_url(url, options), config)


def create_checkpointer(backend: str = "sqlite", *, db_path: str = "checkpoints.db", **options: Any) -> StoreBackend:
    """Return the backend of that name; one without a file ignores `db_path`."""
    if backend == "memory":
        return made(MemoryCheckpointer, options)
    if backend == "sqlite":
        return made(SQLiteCheckpointer, {"path": db_path, **options})
    if backend == "postgres":
        return made(PostgresCheckpointer, options)
    if backend == "redis":
        return made(RedisCheckpointer, options)
    # A URL in this place may hold a password.
    what = repr(backend) if isinstance(backend, str) and _WORD.fullmatch(backend) else "that was passed"
    raise InvalidInput(f"unknown backend {what}; known are {', '.join(map(repr, _BACKENDS))}")


async def create_checkpoint_engine(
    backend: str = "sqlite", db_path: str = "checkpoints.db", **options: Any
) -> CheckpointEngine:
    """Return an engine on the backend of that name. `config=` is the engine's; other options are the backend's."""
    config = options.pop("config", None)
    return CheckpointEngine(create_checkpointer(backend, db_path=db_path, **options), config)


def backend_from_url(url: str, options: dict[str, Any]) -> StoreBackend:
    """Return the backend at a URL; see `open`. No error shows more of it than its scheme: it may hold a password."""
    if not isinstance(url, str):
        raise InvalidInput(f"a store's URL is a string, not {type(url).__name__}")
    scheme, separator, rest = url.partition("://")
    if scheme == "memory" and separator and not rest:
        return made(MemoryCheckpointer, options)
    if scheme == "sqlite" and separator:
        return made(SQLiteCheckpointer, {"path": sqlite_path(rest), **options})
    if scheme in ("postgresql", "postgres") and separator:
        return made(PostgresCheckpointer, {"dsn": url, **options})
    if scheme in _REDIS and separator:
        return made(RedisCheckpointer, {"url": url, **options})
    if separator and _WORD.fullmatch(scheme):
        raise InvalidInput(f"unknown store URL {scheme + separator!r}; known are {_SCHEMES}")
    raise InvalidInput(f"this is not the URL of a store, which has a scheme and ://; known are {_SCHEMES}")


def sqlite_path(rest: str) -> str:
    """Return the path in a URL, from what stands behind `sqlite://`."""
    if not rest.startswith("/") or len(rest) == 1:
        raise InvalidInput("write sqlite:///relative/path or sqlite:////absolute/path")
    return plain_path(unquote(rest[1:]))


def plain_path(text: str) -> str:
    """Return `text` if it is the path of a file. A URL that was mistyped is not: a file would be named like it."""
    if _MISTYPED.match(text):
        raise InvalidInput(
            "this looks like the address of a server, mistyped, and not like the path of a file; known are "
            f"{_SCHEMES}. A file that really has such a name is written with ./ before it"
        )
    return text


def made(backend: Callable[..., StoreBackend], options: dict[str, Any]) -> StoreBackend:
    """Return the backend with these options, or say which is wrong."""
    try:
        return backend(**options)
    except TypeError as exc:
        raise InvalidInput(f"an option is wrong: {exc}") from exc
