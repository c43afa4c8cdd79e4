"""Public calls: each has a deadline that holds for everything inside, and figures that tell what it did.

The outermost call counts; what it calls inherits its deadline (see `deadlines`) and adds to its figures. When it ends,
its figures are added to those of the backend (`engine.stats()`), and to its span where OpenTelemetry is set up
(`tracing`).
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from everstep.runtime import forks, tracing

if TYPE_CHECKING:
    from everstep.reports import Stats

logger = logging.getLogger("everstep")

P = ParamSpec("P")
R = TypeVar("R")


class Call:
    """A public call that is under way."""

    __slots__ = ("bytes_added", "deadline", "is_over", "name", "objects_added", "retries", "thread_id")

    def __init__(self, name: str, seconds: float | None = None, thread: Any = None) -> None:
        """`thread` is the id of a thread or the key of a checkpoint; anything else says nothing."""
        if isinstance(thread, tuple) and thread:
            thread = thread[0]
        self.name = name
        self.thread_id: str | None = thread if isinstance(thread, str) else None
        self.deadline = time.monotonic() + seconds if seconds is not None else None
        """When it must end, by `time.monotonic`."""
        self.is_over = False
        """It has ended. A task that it started has inherited it, and must not be bound by it."""
        self.bytes_added = 0
        self.objects_added = 0
        self.retries = 0


class Figures:
    """What was done on one backend in this process: the sum of all calls, by name."""

    def __init__(self, store: str) -> None:
        """`store` is how the store is called in spans and statistics."""
        self.store = store
        self._lock = threading.Lock()
        self._sums: dict[str, list[float]] = {}
        self._fork_guard = forks.hold(self._lock, 2)

    def add(self, call: Call, seconds: float, *, failed: bool) -> None:
        """Add what a call did."""
        with self._lock:
            sums = self._sums.get(call.name)
            if sums is None:
                sums = self._sums[call.name] = [0, 0, 0.0, 0, 0, 0]
            sums[0] += 1
            sums[2] += seconds
            if call.bytes_added:
                sums[3] += call.bytes_added
                sums[4] += call.objects_added
            if failed or call.retries:
                sums[1] += failed
                sums[5] += call.retries

    def stats(self) -> Stats:
        """Return the sums as they are now."""
        from everstep.reports import CallStats, Stats  # few ask for them

        with self._lock:
            sums = {name: list(numbers) for name, numbers in self._sums.items()}
        calls = {}
        for name, (count, errors, seconds, *rest) in sorted(sums.items()):
            bytes_added, objects_added, retries = map(int, rest)
            calls[name] = CallStats(int(count), int(errors), seconds, bytes_added, objects_added, retries)
        return Stats(self.store, calls)


class Watched(Protocol):
    """Something with public calls."""

    @property
    def limit_seconds(self) -> float | None:
        """How long one call may take; None: there is nothing to wait for."""

    @property
    def figures(self) -> Figures:
        """Where its calls are counted."""


S = TypeVar("S", bound=Watched)

current: ContextVar[Call | None] = ContextVar("everstep_call", default=None)
"""The public call that is under way here, or was until a moment ago: see `under_way`."""


def under_way() -> Call | None:
    """Return the public call that is under way here."""
    call = current.get()
    return None if call is None or call.is_over else call


def public_call(
    name: str, *, has_deadline: bool = True
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, R]]], Callable[Concatenate[S, P], Coroutine[Any, Any, R]]
]:
    """Return a decorator for methods that people call: a call with a deadline and figures under that name.

    A job whose work is as large as what it is given has no deadline as a whole: each of its calls of the store has.
    """

    def decorate(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
        place = _place_of_thread(method)

        @functools.wraps(method)
        async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            outer = current.get()
            if outer is not None and not outer.is_over:
                return await method(self, *args, **kwargs)
            thread = args[place] if place < len(args) else kwargs.get("thread_id")
            entered = Call(name, self.limit_seconds if has_deadline else None, thread)
            span: tracing.Span | None = None
            error: BaseException | None = None
            started = time.perf_counter()
            try:
                # In here, so that Ctrl-C at any moment leaves nothing behind: a call that never ends would be part of
                # every later one, and its deadline would hold for all of them.
                current.set(entered)
                span = tracing.begin(name)
                return await method(self, *args, **kwargs)
            except BaseException as exc:
                error = exc
                raise
            finally:
                entered.is_over = True
                # Not `reset`: a coroutine that is thrown away may end in another context.
                current.set(outer)
                figures = self.figures
                figures.add(entered, time.perf_counter() - started, failed=error is not None)
                if span is not None:
                    span.end(entered, figures.store, error)

        return call

    return decorate


def _place_of_thread(method: Callable[..., Any]) -> int:
    """Return at which place behind `self` the thread is passed; a place that there is not, if it is not."""
    names = list(inspect.signature(method).parameters)
    for place, name in enumerate(names[1:]):
        if name in ("thread_id", "into_thread_id", "key"):
            return place
    return len(names)


def about(thread_id: str) -> None:
    """Say which thread the call is about, where its caller did not."""
    call = current.get()
    if call is not None and call.thread_id is None:
        call.thread_id = thread_id


def added(bytes_added: int, objects_added: int) -> None:
    """Count what was written."""
    call = current.get()
    if call is not None:
        call.bytes_added += bytes_added
        call.objects_added += objects_added


def tried_again(reason: str, *args: object) -> None:
    """Count one more try of the call that is under way, and say why in the log, for those who look closely."""
    call = current.get()
    if call is not None:
        call.retries += 1
    logger.debug("trying again: " + reason, *args)
