"""Secrets kept out of what is shown: a function that is called with every text, for as long as one answer is made.

Values are redacted when they are read, before anything is compared or cut, so that no half of a secret is left.
Whatever else an answer holds (titles, metadata, errors) is redacted when it is sent. Names of threads and checkpoints
stay, since they are needed to ask for more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from everstep.views.json_values import Opaque

Redact = Callable[[str], str]
T = TypeVar("T")

REDACTED = "[redacted]"
_NAMES = frozenset(("id", "ref", "thread_id", "namespace", "cursor"))
# Each is found by how it begins: what is shown may be cut off.
_SECRETS = re.compile(
    r"""
    \b(?:sk|pk|rk)-[A-Za-z0-9_-]{8,}                       # keys of model providers
    | \b(?:AKIA|ASIA)[0-9A-Z]{8,}                          # of Amazon
    | \bAIza[0-9A-Za-z_-]{10,}                             # of Google
    | \b(?:gh[pousr]_|github_pat_|glpat-)[A-Za-z0-9_-]{8,} # of GitHub and GitLab
    | \bxox[abeprs]-[A-Za-z0-9-]{8,}                       # of Slack
    | \beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){0,2}      # JSON web tokens
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----(?s:.*?)(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | (?<=://)[^\s/:@]*:[^\s/@]+(?=@)                      # the user and the password of an address
    """,
    re.VERBOSE,
)

_redact: ContextVar[Redact | None] = ContextVar("everstep_redact", default=None)


def redact_secrets(text: str) -> str:
    """Return a text without what looks like a key, a token or a password."""
    return _SECRETS.sub(REDACTED, text)


@contextmanager
def redacting(redact: Redact | None) -> Iterator[None]:
    """Have everything redacted that is read or answered meanwhile."""
    before = _redact.set(redact)
    try:
        yield
    finally:
        _redact.reset(before)


def redacted(value: T) -> T:
    """Return a value as it may be shown: the same one, unless something is redacted now."""
    redact = _redact.get()
    if redact is None:
        return value
    found: T = _each_text(value, redact)
    return found


def _each_text(value: Any, redact: Redact) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return _each_item(value, redact)
    if isinstance(value, (list, set, frozenset)):
        return type(value)([_each_text(item, redact) for item in value])
    if isinstance(value, tuple):
        items = [_each_text(item, redact) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, Opaque):
        return Opaque(value.name, _each_text(value.fields, redact))
    return value


def _each_item(value: dict[Any, Any], redact: Redact) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key, item in value.items():
        if key in _NAMES and isinstance(item, str):
            made[key] = item
            continue
        shown = _each_text(key, redact)
        # Of several keys that look the same now, none is lost.
        while shown in made:
            shown = f"{shown}*"
        made[shown] = _each_text(item, redact)
    return made
