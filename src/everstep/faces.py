"""One source, two faces: coroutines awaited by asynchronous callers and driven to their end by blocking ones.

Over a store's blocking face a coroutine never suspends, so one `send` finishes it: no event loop, no other thread, and
no deadlock inside somebody else's running loop.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

A = TypeVar("A", bound="Closing")
P = ParamSpec("P")
R = TypeVar("R")


def run_to_end(coroutine: Coroutine[Any, Any, R]) -> R:
    """Return the result of a coroutine whose driver never waits."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        result: R = finished.value
        return result
    coroutine.close()
    raise RuntimeError("a blocking driver suspended: this is a bug in the driver")


class Closing:
    """Something to be closed, as an asynchronous context manager."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SyncFace(Generic[A]):
    """Holds the object whose coroutines a blocking face drives; a plain context manager."""

    def __init__(self, driven: A) -> None:
        self._driven = driven

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_to_end(self._driven.close())


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncFace[A], P], R]:
    """Return the blocking twin of an asynchronous method, with its parameters and documentation."""

    def call(self: SyncFace[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return run_to_end(method(self._driven, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call
