"""Names that are left to chance: how they are made, and what happens when one is in use already."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from everstep.errors import IdTaken, StoreError

T = TypeVar("T")

_TOKEN_BYTES = 8  # names that could meet differ in nothing else: each pair of them does once in 2**64 times
_TRIES = 8


TOKENS: ContextVar[Callable[[], str] | None] = ContextVar("everstep_tokens", default=None)
"""What makes tokens instead of chance, for data that shall look the same each time it is made."""


def new_token() -> str:
    """Return the part of a new name that is left to chance."""
    make = TOKENS.get()
    return make() if make is not None else secrets.token_hex(_TOKEN_BYTES)


class NewNames:
    """Counts the names made by chance that were in use already."""

    def __init__(self, rename: Callable[[], None] | None) -> None:
        self._rename = rename
        self._taken = 0

    def take_another(self, taken: IdTaken) -> None:
        """Make another name, since the last one is in use; raise if that has happened too often."""
        self._taken += 1
        if self._taken == _TRIES:
            raise StoreError(
                f"{_TRIES} new names were all in use already: does os.urandom work on this system?"
            ) from taken
        if self._rename is not None:
            self._rename()


async def under_new_name(act: Callable[[], Awaitable[T]], rename: Callable[[], None] | None = None) -> T:
    """Return what `act` does. Where the name it made is in use already, `rename`, and let it try again.

    The store says so inside its commit, so nothing that is stored is replaced. Once is a rare chance; if it happens
    again and again, what should be left to chance is not.
    """
    names = NewNames(rename)
    while True:
        try:
            return await act()
        except IdTaken as exc:
            names.take_another(exc)
