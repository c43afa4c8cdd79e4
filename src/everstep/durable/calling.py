"""Calling the functions of steps, on both faces: with a time limit, again after a failure, and with their key."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import random
import threading
import time
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast

from everstep.errors import InvalidInput
from everstep.runtime import checks
from everstep.runtime.contexts import holding
from everstep.types import stopwatch
from everstep.values.storable import described

Effect = Literal["none", "retry", "once"]

# Doubled without an end, a pause would soon be longer than anybody waits.
_BACKOFF_SECONDS_MAX = 60.0
_THREADS_MAX = 256  # of one run, for steps with a time limit
_key: contextvars.ContextVar[str | None] = contextvars.ContextVar("everstep_step_key", default=None)


def step_key() -> str:
    """Return the key of the step that is being called: the same in every try of it, also after a crash.

    Hand it to a service as an idempotency key: the service then does once what it is asked for twice.
    """
    key = _key.get()
    if key is None:
        raise InvalidInput("step_key() is called inside a step of a durable run")
    return key


def is_in_step() -> bool:
    """Whether this is called inside a step."""
    return _key.get() is not None


def outside_of_steps() -> contextlib.AbstractContextManager[None]:
    """Begin something that belongs to no step, also where a step has begun it."""
    return holding(_key, None)


class Options(NamedTuple):
    """How a step is called."""

    retries: int = 0
    """How often it is tried again after a failure."""
    backoff: float = 1.0
    """Seconds before the first of these tries; twice as long before each one after it."""
    timeout: float | None = None
    """Seconds that one try may take."""
    retry_on: tuple[type[Exception], ...] = (Exception,)
    effect: Effect = "retry"


def checked(retries: object, backoff: object, timeout: object, retry_on: object, effect: object) -> Options:
    """Return the options of a step; InvalidInput says what is wrong with them."""
    # Compared one by one, which tells the type checker what it is.
    if effect != "none" and effect != "retry" and effect != "once":
        raise InvalidInput(f"effect is 'none', 'retry' or 'once', not {checks.shown(effect)}")
    # True and False are numbers to Python, and a mistake here.
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise InvalidInput(f"retries is a whole number from 0 on, not {checks.shown(retries)}")
    if retries and effect == "once":
        raise InvalidInput("a step with effect='once' is tried once; retries are for effect='retry' and 'none'")
    limit: float | None = None
    kinds = _error_classes(retry_on)
    if timeout is not None:
        limit = _seconds(timeout, "timeout")
    pause = 0.0
    if backoff != 0:
        pause = _seconds(backoff, "backoff")
    return Options(retries, pause, limit, kinds, effect)


def check_effect(effect: Effect, undo: object, on_unknown: object) -> None:
    """Raise InvalidInput if what is to be done about an effect is not what can be done about one of its class."""
    check_on_unknown(on_unknown)
    if undo is None:
        return
    if not callable(undo):
        raise InvalidInput(f"undo is a function of the result that takes the effect back, not {checks.shown(undo)}")
    if effect != "once":
        raise InvalidInput(
            f"undo takes back what is performed once, and effect={effect!r} may be performed several times; "
            "use effect='once'"
        )


def check_on_unknown(on_unknown: object) -> None:
    """Raise InvalidInput if that cannot tell whether an effect happened."""
    if on_unknown not in ("ask", "fail") and not callable(on_unknown):
        raise InvalidInput(f"on_unknown is 'ask', 'fail' or a function, not {checks.shown(on_unknown)}")


def _error_classes(retry_on: object) -> tuple[type[Exception], ...]:
    kinds = (retry_on,)
    if isinstance(retry_on, tuple):
        kinds = retry_on
    if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise InvalidInput(f"retry_on is a class of errors, or a tuple of them, not {checks.shown(retry_on)}")
    return cast(tuple[type[Exception], ...], kinds)


def _seconds(value: object, name: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e9:
        raise InvalidInput(f"{name} is a number of seconds above 0, not {checks.shown(value)}")
    return float(value)


class TimedOut(TimeoutError):
    """A step took longer than its time limit."""


class Face(Protocol):
    """How the code of a run is run: in an event loop, or in the thread of its caller."""

    def lock(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a lock: one task or thread at a time."""

    async def call(self, function: Callable[[], Any], timeout: float | None) -> Any:
        """Return what a function returns, or what it returns gives when it is awaited."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def let_others(self) -> None:
        """Let others go on who can."""


class AsyncFace:
    """In an event loop. Plain functions are called in a thread, so that they do not hold up the loop."""

    def lock(self) -> contextlib.AbstractAsyncContextManager[None]:
        return asyncio.Lock()

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_THREADS_MAX)

    async def call(self, function: Callable[[], Any], timeout: float | None) -> Any:
        if timeout is None or is_async(function):
            return await self._called(function, timeout)
        # Whoever waits for a thread has all its time still.
        async with self._places:
            return await self._called(function, timeout)

    async def _called(self, function: Callable[[], Any], timeout: float | None) -> Any:
        try:
            async with asyncio.timeout(timeout) as limit:
                if is_async(function):
                    return await function()
                if timeout is None:
                    found = await asyncio.to_thread(_without_stop, function)
                else:
                    found = await _in_own_thread(function)
                # A plain function may return a coroutine: a lambda around an `async def`, say.
                if inspect.isawaitable(found):
                    found = await found
                return found
        except TimeoutError as exc:
            if limit.expired():
                raise TimedOut(f"the step took longer than {timeout} seconds") from exc
            raise

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def let_others(self) -> None:
        await asyncio.sleep(0)


def _without_stop(function: Callable[[], Any]) -> Any:
    """Return what a function returns. No future can hold a StopIteration: it would never end."""
    try:
        return function()
    except StopIteration as exc:
        raise RuntimeError("the step raised StopIteration") from exc


async def _in_own_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a thread of its own.

    It may take longer than it shall. Then it must neither keep others from the threads that they share, so that their
    time runs out before they are called, nor this process from ending.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def end(result: Any, error: BaseException | None) -> None:
        if ended.done():
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(result)

    def tell(result: Any, error: BaseException | None) -> None:
        # The loop may be closed by now, and nobody waits for it any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end, result, error)

    _start_thread(functools.partial(_without_stop, function), tell)
    return await ended


class BlockingFace:
    """In the thread of the caller. Coroutine functions get a loop of their own."""

    def lock(self) -> contextlib.AbstractAsyncContextManager[None]:
        return _ThreadLock()

    async def call(self, function: Callable[[], Any], timeout: float | None) -> Any:
        # In the thread of the caller, where a debugger and thread-local values find it, as long as nothing
        # asks for another one.
        if timeout is None and not is_async(function):
            found = function()
            if not inspect.isawaitable(found):
                return found
            # A plain function may return a coroutine: a lambda around an `async def`, say.
            return _in_thread(functools.partial(_awaited, found, None), None)
        return _in_thread(functools.partial(_to_the_end, function, timeout), timeout)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def let_others(self) -> None:
        pass


class _ThreadLock(contextlib.AbstractAsyncContextManager[None]):
    """A lock of threads for coroutines that never suspend."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


def _to_the_end(function: Callable[[], Any], timeout: float | None) -> Any:
    found = function()
    if not inspect.isawaitable(found):
        return found
    return _awaited(found, timeout)


def _awaited(found: Awaitable[Any], timeout: float | None) -> Any:
    """Return what an awaitable gives, in an event loop of its own."""

    async def limited() -> Any:
        try:
            async with asyncio.timeout(timeout) as limit:
                return await found
        except TimeoutError as exc:
            if limit.expired():
                raise TimedOut(f"the step took longer than {timeout} seconds") from exc
            raise

    return asyncio.run(limited())


def _in_thread(function: Callable[[], Any], timeout: float | None) -> Any:
    """Return what a function returns in another thread. One that takes too long goes on there, and nobody listens."""
    outcome: list[Any] = []
    ended = threading.Event()

    def tell(result: Any, error: BaseException | None) -> None:
        outcome[:] = [result, error]
        ended.set()

    _start_thread(function, tell)
    if not ended.wait(timeout):
        raise TimedOut(f"the step took longer than {timeout} seconds")
    result, error = outcome
    if error is not None:
        raise error
    return result


def _start_thread(function: Callable[[], Any], tell: Callable[[Any, BaseException | None], None]) -> None:
    """Call a function in another thread, and tell what it returned or raised."""
    # A new thread has an empty context: without this the step would not know its key.
    context = contextvars.copy_context()

    def work() -> None:
        try:
            result = context.run(function)
        except BaseException as exc:
            tell(None, exc)
        else:
            tell(result, None)

    # A daemon: a step that never ends must not keep the process from ending.
    threading.Thread(target=work, name="everstep step", daemon=True).start()


def is_async(function: Callable[..., Any]) -> bool:
    """Whether what a function returns is to be awaited, as far as can be told before it is called."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    # Most are functions. They are called by themselves, and not by a method of their class.
    if type(inner) is types.FunctionType:
        return inspect.iscoroutinefunction(inner)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(type(inner).__call__)


class Outcome(NamedTuple):
    """How a call ended."""

    result: Any
    error: Exception | None
    tries: Sequence[str]
    """What went wrong in each try that failed."""
    seconds: float


async def call(
    face: Face, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: Options, key: str
) -> Outcome:
    """Call the function of a step until it succeeds or its tries are used up."""
    failed: list[str] = []
    began = stopwatch()
    token = _key.set(key)
    try:
        while True:
            try:
                result = await face.call(functools.partial(function, *args, **kwargs), options.timeout)
                return Outcome(result, None, failed, stopwatch() - began)
            except Exception as exc:
                failed.append(told(exc))
                if len(failed) > options.retries or not isinstance(exc, options.retry_on):
                    return Outcome(None, exc, failed, stopwatch() - began)
            await face.sleep(_pause(options.backoff, len(failed)))
    finally:
        _key.reset(token)


def told(error: Exception) -> str:
    """Return what is kept of a try that failed."""
    return f"{type(error).__name__}: {described(error)['message']}"[:500]


def _pause(backoff: float, failures: int) -> float:
    """Return how long to wait after so many failures; a little by chance, so that not all come back at once."""
    seconds = min(backoff * 2.0 ** (failures - 1), _BACKOFF_SECONDS_MAX)
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311  # nothing rests on its being secret


NoteBeside = Callable[[BaseException, Sequence[BaseException]], None]
"""Is told what is raised of several errors, and all of them."""


async def gathered(work: Sequence[Awaitable[Any]], note: NoteBeside) -> list[Any]:
    """Return the results of coroutines that run side by side. Each comes to its end, then the first error is raised.

    A run that is to wait waits when none of them has anything left to do.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        # The caller is cancelled: its steps go with it, and are awaited so that none of them outlives the
        # run.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    errors: list[BaseException | None] = []
    results: list[Any] = []
    for task in tasks:
        error: BaseException | None = asyncio.CancelledError()
        if not task.cancelled():
            error = task.exception()
        errors.append(error)
        if error is None:
            results.append(task.result())
    return results_of(errors, results, note)


def results_of(errors: Sequence[BaseException | None], results: Sequence[Any], note: NoteBeside) -> list[Any]:
    """Return results, or raise: an error of one of them first, and that the run is to wait after that."""
    raised = [error for error in errors if error is not None]
    # An error counts more than a wait: a run that has failed has nothing to wait for.
    for error in raised:
        if isinstance(error, Exception):
            note(error, raised)
            raise error
    for error in raised:
        raise error
    return list(results)
