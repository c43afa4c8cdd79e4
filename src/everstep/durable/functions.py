"""Durable functions, as `engine.durable` makes them, and the handles of runs that go on in the background."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from everstep.durable import running
from everstep.durable.attempt import Attempt
from everstep.durable.calling import AsyncFace, BlockingFace
from everstep.durable.live import repository_of
from everstep.durable.programs import Program, checked_on_change
from everstep.durable.run import Run, SyncRun
from everstep.durable.running import Part, Runner, Taken
from everstep.errors import InvalidInput
from everstep.repository.new_names import new_token
from everstep.runtime import checks
from everstep.runtime.blocking import run_to_end

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine, SyncEngine

R = TypeVar("R")
logger = logging.getLogger("everstep")

# Event loops hold their tasks weakly: without this set, a run could be collected while it waits.
_background: set[asyncio.Task[Any]] = set()


async def take(engine: CheckpointEngine, program: Program, work: Callable[[Runner], Coroutine[Any, Any, R]]) -> R:
    """Return what comes of some work on a run. That of a plain function is done in a thread."""
    if not program.is_blocking:
        return await work(async_runner(engine, program))
    runner = blocking_runner(engine.sync._driven, program)
    return await asyncio.to_thread(lambda: run_to_end(work(runner)))


def runner_of(engine: CheckpointEngine, program: Program) -> Runner:
    """Return how a run is taken up by a blocking caller, whose engine this is."""
    if not program.is_blocking:
        raise InvalidInput(f"{program.name!r} is asynchronous: take its runs up by the engine, not by engine.sync")
    return blocking_runner(engine, program)


def async_runner(engine: CheckpointEngine, program: Program) -> Runner:
    """Return how a coroutine function is run."""

    async def call(attempt: Attempt, *args: Any, **kwargs: Any) -> Any:
        return await program.function(Run(attempt), *args, **kwargs)

    return Runner(engine, program, AsyncFace(), call)


def blocking_runner(engine: CheckpointEngine, program: Program) -> Runner:
    """Return how a plain function is run in the thread of its caller; the engine is on the blocking face."""

    async def call(attempt: Attempt, *args: Any, **kwargs: Any) -> Any:
        return program.function(SyncRun(attempt), *args, **kwargs)

    return Runner(engine, program, BlockingFace(), call)


def program_of(function: Callable[..., Any], name: str | None, on_change: str, *, is_async: bool) -> Program:
    """Return a function as a program, if it can be one."""
    if not callable(function):
        raise InvalidInput(f"durable decorates a function, not {checks.shown(function)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(
            f"{function.__qualname__}: a durable function returns its result, and does not yield; put what it yields "
            "into run.messages or run.state"
        )
    if inspect.iscoroutinefunction(function) != is_async:
        wanted = "an async def; for a plain function use engine.sync.durable" if is_async else "a plain function"
        raise InvalidInput(f"{getattr(function, '__qualname__', function)!s}: durable takes {wanted} here")
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise InvalidInput(f"{function.__qualname__}: the first parameter of a durable function is the run")
    if any(parameter.name == "thread_id" for parameter in parameters):
        raise InvalidInput(
            f"{function.__qualname__}: thread_id names the thread of a run; give that parameter another name"
        )
    return Program(name or function.__qualname__, function, checked_on_change(on_change), not is_async)


class _Durable(Generic[R]):
    """What both kinds of durable functions share."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.__doc__ = program.function.__doc__
        self.__wrapped__ = program.function

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._program.name}>"

    @property
    def name(self) -> str:
        """Under which name its runs are recorded."""
        return self._program.name

    def _thread(self, thread_id: str | None) -> str:
        if thread_id is None:
            return f"{self._program.name}-{new_token()}"
        return checks.thread_id(thread_id)


class DurableFunction(_Durable[R]):
    """A coroutine function whose runs survive their process. Call it, or `start` it in the background."""

    def __init__(self, engine: CheckpointEngine, program: Program) -> None:
        super().__init__(program)
        self._engine = engine

    async def __call__(self, *args: Any, thread_id: str | None = None, **kwargs: Any) -> R:
        """Run it to its end and return its result; join it if there is a run of these arguments in that thread."""
        runner = async_runner(self._engine, self._program)
        result: R = await running.to_the_end(runner, self._thread(thread_id), (args, kwargs))
        return result

    async def start(self, *args: Any, thread_id: str | None = None, **kwargs: Any) -> RunHandle[R]:
        """Begin it, and go on in the background; once this returns the run is stored."""
        runner = async_runner(self._engine, self._program)
        taken = await running.take_up(runner, self._thread(thread_id), (args, kwargs))
        return RunHandle(runner, taken)


class RunHandle(Generic[R]):
    """A run that goes on in the background, as long as it has something to do."""

    def __init__(self, runner: Runner, taken: Taken) -> None:
        self._runner = runner
        self.thread_id = taken._attempt.thread_id
        self._task = asyncio.create_task(taken.finish())
        _background.add(self._task)
        self._task.add_done_callback(_ended)

    def __repr__(self) -> str:
        return f"<RunHandle {self._runner.program.name} {self.thread_id!r}>"

    async def status(self) -> str:
        """Return how it stands: running, interrupted, waiting, ready, done or failed."""
        from everstep.durable.lists import info_of  # it lists runs, for which it comes here

        return (await info_of(repository_of(self._runner.engine), self.thread_id)).status

    async def result(self) -> R:
        """Return its result; wait for that, and take the run up again when what it waits for has come."""
        # Shielded: whoever stops waiting for the result does not stop the run.
        part = await asyncio.shield(self._task)
        result: R = await running.to_the_end(self._runner, part.thread_id, None, part)
        return result


def _ended(task: asyncio.Task[Any]) -> None:
    _background.discard(task)
    # Asking for the exception also keeps asyncio from complaining about a result that nobody fetched.
    if not task.cancelled() and task.exception() is not None:
        logger.info("a run in the background has failed: %r", task.exception())


class SyncDurableFunction(_Durable[R]):
    """A plain function whose runs survive their process. Call it, or `start` it in a thread."""

    def __init__(self, face: SyncEngine, program: Program) -> None:
        super().__init__(program)
        self._face = face

    def __call__(self, *args: Any, thread_id: str | None = None, **kwargs: Any) -> R:
        """Run it to its end and return its result; join it if there is a run of these arguments in that thread."""
        runner = blocking_runner(self._face._driven, self._program)
        result: R = run_to_end(running.to_the_end(runner, self._thread(thread_id), (args, kwargs)))
        return result

    def start(self, *args: Any, thread_id: str | None = None, **kwargs: Any) -> SyncRunHandle[R]:
        """Begin it, and go on in a thread; once this returns the run is stored."""
        runner = blocking_runner(self._face._driven, self._program)
        taken = run_to_end(running.take_up(runner, self._thread(thread_id), (args, kwargs)))
        return SyncRunHandle(runner, taken)


class SyncRunHandle(Generic[R]):
    """A run that goes on in a thread, as long as it has something to do."""

    def __init__(self, runner: Runner, taken: Taken) -> None:
        self._runner = runner
        self.thread_id = taken._attempt.thread_id
        self._taken = taken
        self._part: Part | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._finish, name=f"everstep run {self.thread_id}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<SyncRunHandle {self._runner.program.name} {self.thread_id!r}>"

    def _finish(self) -> None:
        try:
            self._part = run_to_end(self._taken.finish())
        except BaseException as exc:
            self._error = exc

    def status(self) -> str:
        """Return how it stands: running, interrupted, waiting, ready, done or failed."""
        from everstep.durable.lists import info_of  # it lists runs, for which it comes here

        return run_to_end(info_of(repository_of(self._runner.engine), self.thread_id)).status

    def result(self) -> R:
        """Return its result; wait for that, and take the run up again when what it waits for has come."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        if self._part is None:
            raise RuntimeError("the thread of the run has ended without an outcome")
        result: R = run_to_end(running.to_the_end(self._runner, self._part.thread_id, None, self._part))
        return result
