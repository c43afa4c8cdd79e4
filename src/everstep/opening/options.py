"""The options of the stores: their names, the other names that people know them by, and what to say to the rest."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypedDict

from everstep.errors import InvalidInput
from everstep.runtime import checks


class StoreOptions(TypedDict, total=False):
    """The options of all stores, and the other names that people know them by. Which one takes which, KNOWN says."""

    synchronous: Literal["full", "normal", "off"]
    busy_timeout_seconds: float
    schema: str | None
    table_prefix: str
    timeout_seconds: float
    min_size: int
    max_size: int
    max_idle_seconds: float
    prepare_threshold: int | Literal["auto"] | None
    key_prefix: str
    ttl_seconds: float | None
    wait_replicas: int
    allow_eviction: bool
    max_threads: int
    timeout: float
    command_timeout: float
    pool_size: int
    max_idle: float
    socket_timeout: float


class PlacedOptions(StoreOptions, total=False):
    """The same, and where the store is: for what takes the name of a store instead of a URL."""

    path: str | os.PathLike[str]
    dsn: str
    url: str
    conn_string: str
    connection_string: str
    conninfo: str
    database: str
    redis_url: str


class Known(NamedTuple):
    """What one kind of store takes."""

    place: str
    """The option that says where it is; "" if it is nowhere."""
    names: tuple[str, ...]
    """The other options."""
    aliases: Mapping[str, str]
    """Names that drivers and other savers have for the same thing, and ours."""
    advice: Mapping[str, str]
    """What to do instead of using a name that has no place here."""


def _each(names: str, advice: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), advice)


_IN_POSTGRES_URL = "write it into the URL, as in dsn='postgresql://user:password@host:5432/database'"
_IN_REDIS_URL = "write it into the URL, as in url='redis://user:password@host:6379/0'"
_OWN_CONNECTIONS = "the store opens connections of its own; pass the URL as {}="

KNOWN: Mapping[str, Known] = {
    "memory": Known("", (), {}, {}),
    "sqlite": Known(
        "path",
        ("synchronous", "busy_timeout_seconds"),
        {**_each("conn_string connection_string database db_path", "path"), "timeout": "busy_timeout_seconds"},
        {
            **_each("conn connection", _OWN_CONNECTIONS.format("path")),
            "check_same_thread": "leave it out: every thread may use the store",
        },
    ),
    "postgres": Known(
        "dsn",
        ("schema", "table_prefix", "timeout_seconds", "min_size", "max_size", "max_idle_seconds", "prepare_threshold"),
        {
            **_each("conn_string connection_string conninfo url", "dsn"),
            **_each("command_timeout timeout", "timeout_seconds"),
            "pool_size": "max_size",
            "max_idle": "max_idle_seconds",
        },
        {
            **_each("host port user username password database dbname", _IN_POSTGRES_URL),
            **_each("conn connection pool", _OWN_CONNECTIONS.format("dsn")),
            **_each("pool_timeout connect_timeout statement_timeout", "use timeout_seconds, which bounds a whole call"),
            **_each("max_lifetime max_inactive_connection_lifetime", "use max_idle_seconds"),
            "max_overflow": "use max_size, which counts all connections",
            "pipeline": "leave it out: a commit is one round trip",
        },
    ),
    "redis": Known(
        "url",
        ("key_prefix", "ttl_seconds", "wait_replicas", "timeout_seconds", "allow_eviction", "max_threads"),
        {
            **_each("conn_string connection_string redis_url", "url"),
            **_each("socket_timeout timeout", "timeout_seconds"),
        },
        {
            **_each("host port user username password db database", _IN_REDIS_URL),
            **_each("client connection connection_pool redis_client", _OWN_CONNECTIONS.format("url")),
            **_each("checkpoint_prefix namespace prefix", "use key_prefix"),
            "connection_args": "write them into the URL, after a ?",
            "max_connections": "use max_threads: there is one connection for each",
            "socket_connect_timeout": "use timeout_seconds, which bounds a whole call",
            "ttl": "use ttl_seconds, a number of seconds",
        },
    ),
}


def resolved(
    kind: str, caller: str, where: str | None, options: Mapping[str, Any], *, also: Collection[str] = ()
) -> dict[str, Any]:
    """Return the options of a store of that kind under our names, with `where` it is unless that is None.

    `caller` is what the person called, which takes the options in `also` too.
    """
    known = KNOWN[kind]
    own: dict[str, Any] = {}
    # A store in memory has no place.
    if where is not None and known.place:
        own[known.place] = where
    for name, value in options.items():
        ours = known.aliases.get(name, name)
        if ours not in (known.place, *known.names):
            raise InvalidInput(_refusal(known, caller, name, [*known.names, *also]))
        # Two names of one option would otherwise silently let the last one win.
        if ours in own:
            other = ""
            if name != ours:
                other = f", which is the same as {name}"
            raise InvalidInput(f"{caller} was given {ours} twice{other}")
        own[ours] = value
    return own


def _refusal(known: Known, caller: str, name: str, names: Iterable[str]) -> str:
    listed = sorted(names)
    shown = ", ".join(listed) or "none"
    # What people bring from a driver is known exactly; a guess is for slips of the pen.
    advice = known.advice.get(name) or _guess(name, [*listed, *known.aliases])
    refusal = f"{caller} has no option {checks.shown(name)}"
    if advice:
        refusal += f": {advice}"
    if not refusal.endswith("?"):
        refusal += ";"
    return f"{refusal} its options are {shown}"


def _guess(name: str, names: Collection[str]) -> str:
    import difflib  # for mistakes only

    close = difflib.get_close_matches(name, names, 1)
    if not close:
        return ""
    return f"did you mean {close[0]}?"
