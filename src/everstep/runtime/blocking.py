"""One source, two faces: coroutines awaited by asynchronous callers and driven to their end by blocking ones.

Over a store's blocking face a coroutine never suspends, so one `send` finishes it: no event loop, no other thread, and
no deadlock inside somebody else's running loop. Only a backend of somebody's own may suspend: it gets a private loop.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from everstep.errors import InvalidInput

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


def describe_on_store(thing: object, store: object, *more: str) -> str:
    """Return what the repr of a thing that works on a store says: where that is, and whether it is open or closed.

    A store of somebody's own, which does not say where it is, is named by its class.
    """
    where = getattr(store, "address", None) or type(store).__name__
    closed = getattr(store, "is_closed", None)
    facts = [str(where), *more]
    if closed is not None:
        facts.append("closed" if closed else "open")
    return f"<{type(thing).__name__} {', '.join(facts)}>"


class NeedsAsync:
    """Something for `async with`. A plain `with` raises an error that says what to write, which a TypeError does not.

    It does not simply work: inside the block the methods would still have to be awaited, and nothing would be saved.
    """

    if not TYPE_CHECKING:  # so that type checkers report it too

        def __enter__(self):
            name = type(self).__name__
            raise InvalidInput(
                f"a {name} is entered with `async with`, inside a coroutine; in blocking code use the blocking face: "
                "`with everstep.open(...).sync as engine`, `with engine.sync.thread(...) as live`"
            )

        def __exit__(self, *_):
            raise AssertionError("it was never entered")


class NeedsPlainWith:
    """Something for a plain `with`, for those who write `async with`."""

    if not TYPE_CHECKING:

        async def __aenter__(self):
            name = type(self).__name__
            raise InvalidInput(
                f"a {name} is blocking and entered with a plain `with`; inside a coroutine leave the .sync out and "
                "write `async with`"
            )

        async def __aexit__(self, *_):
            raise AssertionError("it was never entered")


class Closing(NeedsAsync):
    """Something to be closed, as an asynchronous context manager."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.close()


class PrivateLoop:
    """An event loop on a thread of its own, for coroutines that suspend. Started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Return the coroutine's result; the calling thread waits."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._started()).result()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # A forked child has the loop, but not its thread.
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                thread = threading.Thread(target=_serve, args=(self._loop,), name="everstep-loop", daemon=True)
                thread.start()
                weakref.finalize(self, _stop, self._loop, thread, self._pid)
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
    if pid == os.getpid() and not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join()


class SyncFace(NeedsPlainWith, Generic[A]):
    """Holds the object whose coroutines a blocking face drives; a plain context manager."""

    def __init__(self, driven: A, run: Callable[[Coroutine[Any, Any, Any]], Any] = run_to_end) -> None:
        self._driven = driven
        self._run = run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._run(self._driven.close())


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncFace[A], P], R]:
    """Return the blocking twin of an asynchronous method, with its parameters and documentation."""
    name = method.__name__

    def call(self: SyncFace[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._run(getattr(self._driven, name)(*args, **kwargs))
        return result

    functools.update_wrapper(call, method)
    return call
