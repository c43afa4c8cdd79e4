"""Where a store is: a URL, or the path of a file. Read here, and nowhere else.

No error shows more of an address than its scheme: there may be a password in it.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from everstep.errors import InvalidInput

KNOWN = (
    "the path of a file, memory://, sqlite:///path, postgresql://... (pip install 'everstep[postgres]'), redis://..., "
    "rediss://... and redis+cluster://... (pip install 'everstep[redis]')"
)
Address = str | os.PathLike[str]
_KINDS = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "redis+cluster": "redis",
    "rediss+cluster": "redis",
    "unix": "redis",
}
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
# What people write who mean a server: the bare name of a backend, a scheme without its slashes, a host with a port, a
# login before a host, a text of key=value pairs, a password by its name.
_SERVERS = r"(postgres|postgresql|redis|rediss|unix|valkey|memory|sqlite)(\+\w+)?"
_MISTYPED = re.compile(
    rf"\s*([a-z][a-z0-9+.-]+:/"
    rf"|{_SERVERS}(:|\s*$)"
    rf"|[a-z0-9.-]+:\d+(/\w*)?$"
    rf"|(host|hostaddr|port|dbname|user|service)\s*="
    rf"|({_SERVERS}\W*/+|//)?[^/]*:[^/]*@)"
    rf"|(^|.*[\s?&;'\"])(ssl)?(password|passwd|passfile)\s*=",
    re.IGNORECASE | re.DOTALL,
)


class Place(NamedTuple):
    """What an address names."""

    kind: str
    """"memory", "sqlite", "postgres" or "redis"."""
    where: str
    """The path of the file, or the URL of the server."""


def place_of(address: object) -> Place:
    """Return which store an address names. `:memory:`, as SQLite writes it, is a store in memory."""
    # A path object says by its type that a file is meant, whatever its name looks like.
    if isinstance(address, os.PathLike):
        return Place("sqlite", file_path(address))
    if not isinstance(address, str):
        raise InvalidInput(f"a store's address is a URL or the path of a file, not {type(address).__name__}")
    scheme, separator, rest = address.partition("://")
    if address == ":memory:" or (scheme == "memory" and separator and not rest):
        return Place("memory", "")
    if scheme == "sqlite" or not separator:
        return Place("sqlite", file_path(address))
    kind = _KINDS.get(scheme)
    if kind is not None:
        return Place(kind, address)
    # Only a plain word is repeated: what stands before :// may hold a password if the rest was mistyped.
    if _WORD.fullmatch(scheme):
        raise InvalidInput(f"unknown store URL {scheme + separator!r}; known are {KNOWN}")
    raise InvalidInput(f"this is not the address of a store; known are {KNOWN}")


def file_path(address: object) -> str:
    """Return the path of a SQLite file that a path or a `sqlite:///` URL names.

    A URL of a server that was mistyped is neither: a file would be named like it.
    """
    path = address
    if isinstance(address, os.PathLike):
        path = os.fspath(address)
    if not isinstance(path, str) or not path:
        raise InvalidInput("a SQLite store needs the path of a file, such as agent.db")
    scheme, separator, rest = path.partition("://")
    if scheme == "sqlite" and separator and not isinstance(address, os.PathLike):
        if not rest.startswith("/") or len(rest) == 1:
            raise InvalidInput("write sqlite:///relative/path or sqlite:////absolute/path")
        if "?" in rest:
            raise InvalidInput(
                "a sqlite:/// URL has no options after a '?': give them to open() by name. A question mark in the name "
                "of a file is written %3F"
            )
        path = unquote(rest[1:])
    if _MISTYPED.match(path):
        raise InvalidInput(
            "this looks like the address of a server, mistyped, and not like the path of a file; known are "
            f"{KNOWN}. A file that really has such a name is written with ./ before it, or with its whole path"
        )
    return path


def is_address(value: object) -> bool:
    """Whether this is where a store is, in contrast to a store."""
    return isinstance(value, (str, os.PathLike))


def is_in_memory(address: object) -> bool:
    """Whether opening this address makes a new, empty store in memory."""
    return isinstance(address, str) and (address.startswith("memory:") or address == ":memory:")


def shown_name(value: object) -> str:
    """Return a name for an error message if it is a plain word: anything else may hold a password."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return repr(value)
    return "that was passed"


def without_password(address: str) -> str:
    """Return the address of a store as it may be shown."""
    place = place_of(address)
    if place.kind == "memory":
        return "memory://"
    if place.kind == "sqlite":
        return f"sqlite:///{place.where}"
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
