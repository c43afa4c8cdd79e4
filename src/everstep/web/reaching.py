"""How somebody reaches the store of the page from elsewhere: with the command, and in Python.

What the page gives to copy works where it is pasted, and never holds a password: an address with one, or with anything
that may be one, is that of the environment.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from everstep.opening.addresses import Address, is_in_memory, place_of

_VARIABLE = "EVERSTEP_STORE"
_IN_MEMORY = "This store is in the memory of its server: only requests, as with curl, reach it."
_SECRET = f"{_VARIABLE} must hold the URL of the store: it has a password, or may have one, and is not shown here."
_UNKNOWN = f"{_VARIABLE} must hold the URL of the store."


class Reach(NamedTuple):
    """How to reach a store."""

    command: str
    """What commands begin with."""
    python: str | None
    """The arguments of `everstep.open`; None: it cannot be opened from elsewhere."""
    options: str
    """Those that come last."""
    note: str | None
    """What has to be done before."""
    needs_token: bool = False
    """Whether requests have to show the token of the page."""


def reach(given: Address | None, store: Any, options: Mapping[str, Any]) -> Reach:
    """Return how to reach a store that was opened with an address; None: somebody has passed it in, open."""
    path = getattr(store, "path", None)
    in_python = "".join(f", {name}={_quoted(value)}" for name, value in options.items())
    if path is not None:
        # The command may be pasted in any folder.
        url = f"sqlite:///{quote(os.path.abspath(path))}"
        return Reach(f"everstep --store {shlex.quote(url)}", _quoted(url), in_python, None)
    if given is None:
        if str(getattr(store, "address", "")).startswith("memory"):
            return Reach("everstep", None, "", _IN_MEMORY)
        return _from_environment(in_python, _UNKNOWN, options)
    if is_in_memory(given):
        return Reach("everstep", None, "", _IN_MEMORY)
    if _may_hold_a_secret(str(given)):
        return _from_environment(in_python, _SECRET, options)
    return _noting(Reach(f"everstep --store {shlex.quote(str(given))}", _quoted(str(given)), in_python, None), options)


def _from_environment(in_python: str, note: str, options: Mapping[str, Any]) -> Reach:
    # Not as an argument, which everybody on the machine can see; and nothing is done where the variable is not set.
    command = f'{_VARIABLE}="${{{_VARIABLE}:?}}" everstep'
    found = Reach(command, f'os.environ["{_VARIABLE}"]', in_python, note)
    return _noting(found, options)


def _noting(found: Reach, options: Mapping[str, Any]) -> Reach:
    """Return the same with a note about options, which commands take from a file."""
    if not options:
        return found
    named = ", ".join(options)
    # An option belongs to the store that its file names, so that --store would leave it out.
    note = f"Run commands where the file is found that says how this store is opened ({named})."
    return found._replace(command="everstep", note=note)


def _quoted(value: Any) -> str:
    """Return a value as Python has it, texts in double quotes as everywhere on the page."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _may_hold_a_secret(address: str) -> bool:
    """Whether there is more in the URL of a server than where it is and who asks."""
    parts = urlsplit(address)
    if parts.query or parts.fragment or parts.password is not None:
        return True
    # Redis knows passwords without a name, and some write them where a name belongs.
    return place_of(address).kind == "redis" and "@" in parts.netloc
