"""A process may open so many files and connections at once. What to say when there is no room for one more."""

from __future__ import annotations

import errno
import os

from everstep.errors import StoreUnavailable

_CODES = (errno.EMFILE, errno.ENFILE)
_ADVICE = (
    "too many files and connections are open, so that the store cannot be reached; close what is not needed (engines "
    "and savers too), or raise the limit (ulimit -n)"
)


def too_many_now() -> StoreUnavailable | None:
    """Return the error if this process can open no more files now; None if it can."""
    try:
        # The surest way to know is to try: limits can be changed while a process runs.
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as exc:
        if exc.errno in _CODES:
            return StoreUnavailable(_ADVICE)
    return None


def too_many_behind(error: Exception) -> StoreUnavailable | None:
    """Return the error if that is why a driver could not connect, whether its own error says so or not."""
    said = str(error)
    if any(os.strerror(code) in said for code in _CODES):
        return StoreUnavailable(_ADVICE)
    return too_many_now()
