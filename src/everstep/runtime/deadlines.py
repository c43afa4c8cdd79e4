"""How long a public call may take: its deadline begins at the door and holds for everything inside.

The limit is the store's: `timeout_seconds` on a server, the busy timeout of SQLite. The outermost call sets the
deadline (`calls.public_call`), and what it calls inherits it; nothing inside can put it off. Stores ask `end_of` how
long each of their own waits may take. Not every worker thread inherits it: a store asks before it hands work to one,
and gives the answer along.

Jobs whose work is as large as what they are given (collecting, copying, importing, deleting) have no deadline as a
whole: each of their calls of the store has one of its own. Nor does the time count that functions of the caller's take
(the `resolve` of a merge, the reducers of a graph): see `held_by_caller`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from everstep.runtime import calls


def end_of(seconds: float) -> float:
    """Return until when (by `time.monotonic`) something may take that has so many seconds of its own."""
    until = time.monotonic() + seconds
    call = calls.current.get()
    if call is None or call.is_over or call.deadline is None:
        return until
    return call.deadline if call.deadline < until else until


def has_passed() -> bool:
    """Whether the public call that is under way has used up its time."""
    call = calls.under_way()
    return call is not None and call.deadline is not None and time.monotonic() >= call.deadline


@contextmanager
def held_by_caller() -> Iterator[None]:
    """Put the deadline off by the time that is spent inside: a function of the caller's takes as long as it takes."""
    call = calls.under_way()
    started = time.monotonic()
    try:
        yield
    finally:
        if call is not None and call.deadline is not None:
            call.deadline += time.monotonic() - started
