"""How long a public call may take: its deadline begins at the door and holds for everything inside.

The limit is the store's: `timeout_seconds` on a server, the busy timeout of SQLite. The outermost call sets the
deadline, and what it calls inherits it; nothing inside can put it off. Stores ask `end_of` how long each of their own
waits may take. Worker threads do not inherit it: a store asks before it hands work to one, and gives the answer along.

Jobs whose work is as large as what they are given (collecting, copying, importing, deleting) have no deadline as a
whole: each of their calls of the store has one of its own. Nor does the time count that functions of the caller's take
(the `resolve` of a merge, the reducers of a graph): see `held_by_caller`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class _Deadline:
    """When the public call that is under way must end."""

    __slots__ = ("at", "is_over")

    def __init__(self, seconds: float) -> None:
        self.at = time.monotonic() + seconds
        self.is_over = False
        """The call has ended. A task that it started has inherited its deadline, and must not be bound by it."""


_current: ContextVar[_Deadline | None] = ContextVar("everstep_deadline", default=None)


class Limited(Protocol):
    """Something whose methods have a deadline."""

    @property
    def limit_seconds(self) -> float | None:
        """How long one call may take; None: there is nothing to wait for."""
        ...


S = TypeVar("S", bound=Limited)


def limited(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return the method as one that has a deadline, unless the call that it is part of has one already."""

    @functools.wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        outer, seconds = _current.get(), self.limit_seconds
        if seconds is None or (outer is not None and not outer.is_over):
            return await method(self, *args, **kwargs)
        deadline = _Deadline(seconds)
        _current.set(deadline)
        try:
            return await method(self, *args, **kwargs)
        finally:
            deadline.is_over = True
            _current.set(outer)  # not `reset`: a coroutine that is thrown away may end in another context

    return call


def end_of(seconds: float) -> float:
    """Return until when (by `time.monotonic`) something may take that has so many seconds of its own."""
    until = time.monotonic() + seconds
    deadline = _current.get()
    if deadline is None or deadline.is_over:
        return until
    return min(until, deadline.at)


def has_passed() -> bool:
    """Whether the public call that is under way has used up its time."""
    deadline = _current.get()
    return deadline is not None and not deadline.is_over and time.monotonic() >= deadline.at


@contextmanager
def held_by_caller() -> Iterator[None]:
    """Put the deadline off by the time that is spent inside: a function of the caller's takes as long as it takes."""
    deadline = _current.get()
    started = time.monotonic()
    try:
        yield
    finally:
        if deadline is not None:
            deadline.at += time.monotonic() - started
