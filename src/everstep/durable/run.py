"""What the code of a run is handed: its steps, its questions, its values. Two faces of one attempt."""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar, overload

from everstep.durable import calling
from everstep.durable.attempt import Attempt
from everstep.durable.calling import Effect
from everstep.durable.keys import scope
from everstep.durable.unknown_effects import Unknown
from everstep.runtime.blocking import run_to_end

R = TypeVar("R")

OnUnknown = str | Callable[[Unknown], Any]
RetryOn = type[Exception] | tuple[type[Exception], ...]


class _Held:
    """The values of the run's thread, and what is recorded of the world."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._attempt.program.name} {self.thread_id!r}>"

    @property
    def thread_id(self) -> str:
        """The thread that the run is recorded in."""
        return self._attempt.thread_id

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation. Yours to change; it is saved with the next step."""
        return self._attempt.live.messages

    @messages.setter
    def messages(self, messages: list[dict[str, Any]]) -> None:
        self._attempt.live.messages = messages

    @property
    def state(self) -> dict[str, Any]:
        """The state. Yours to change; it is saved with the next step."""
        return self._attempt.live.state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._attempt.live.state = state

    @property
    def tools_result(self) -> dict[str, Any]:
        """What was recorded last."""
        return self._attempt.live.tools_result

    def now(self) -> datetime:
        """Return the time, in UTC. It is recorded: the same whenever the run is replayed."""
        return self._attempt.time_and_chance.now()

    def random(self) -> float:
        """Return a number from 0 up to 1, made by chance, and the same whenever the run is replayed."""
        return self._attempt.time_and_chance.random()

    def uuid(self) -> uuid.UUID:
        """Return a UUID made by chance, and the same whenever the run is replayed."""
        return self._attempt.time_and_chance.uuid()

    def scope(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Give the steps inside a `with` block keys of their own: for loops, and for work that goes on side by side."""
        return scope(name)


class Run(_Held):
    """A durable run, as its code has it. Each step is recorded when it has ended, and is not called again after that.

    The code between steps runs again when the run is taken up after a crash: whatever must not happen again belongs
    into a step.
    """

    @overload
    def step(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        key: str | None = None,
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        retry_on: RetryOn = Exception,
        effect: Effect = "retry",
        undo: Callable[..., Any] | None = None,
        on_unknown: OnUnknown = "ask",
        **kwargs: Any,
    ) -> Coroutine[Any, Any, R]: ...

    @overload
    def step(
        self,
        function: Callable[..., R],
        /,
        *args: Any,
        key: str | None = None,
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        retry_on: RetryOn = Exception,
        effect: Effect = "retry",
        undo: Callable[..., Any] | None = None,
        on_unknown: OnUnknown = "ask",
        **kwargs: Any,
    ) -> Coroutine[Any, Any, R]: ...

    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        retry_on: RetryOn = Exception,
        effect: Effect = "retry",
        undo: Callable[..., Any] | None = None,
        on_unknown: OnUnknown = "ask",
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call a function, plain or asynchronous, record its result and return it; a recorded one is not called again.

        A step is known by its name and by how often that was asked for before, or by `key`. After a failure it is tried
        `retries` times more, if the error is one of `retry_on`, after `backoff` seconds and twice as long each time.
        `timeout` limits one try. `effect` says what happens if a crash leaves open whether it was called: "none" and
        "retry" call it again, "once" never does: then `on_unknown` decides, which is "ask" (a person), "fail", or a
        function of an `everstep.Unknown`. `undo` is a function of the result that takes the effect back; see
        `engine.rewind`.
        """
        options = calling.checked(retries, backoff, timeout, retry_on, effect)
        return self._attempt.steps.step(function, args, kwargs, key, options, undo, on_unknown)

    def gather(self, *work: Awaitable[R]) -> Coroutine[Any, Any, list[R]]:
        """Return the results of steps that go on side by side; those that end together are recorded in one commit.

        All of them come to their end, then the first error is raised. Coroutines of several steps each want a
        `run.scope` of their own, so that their keys do not depend on who is faster.
        """
        try:
            self._attempt.code.check_may_ask()
        except BaseException:
            # Or Python would warn of coroutines that nobody awaits.
            for each in work:
                if inspect.iscoroutine(each):
                    each.close()
            raise
        return calling.gathered(work, self._attempt.failed.note_beside)

    def ask(self, question: str, details: Any = None, *, key: str | None = None) -> Coroutine[Any, Any, Any]:
        """Wait for the answer of a person, over restarts: see `engine.answer`. `details` are kept with the question."""
        return self._attempt.waiting.ask(question, details, key)

    def wait_for(self, event: str) -> Coroutine[Any, Any, Any]:
        """Wait for an event and return its value: see `engine.signal`. The second call waits for the second of them."""
        return self._attempt.waiting.wait_for(event)

    def sleep(self, seconds: float, *, key: str | None = None) -> Coroutine[Any, Any, None]:
        """Wait for so long, over restarts. A long sleep takes no room in this process."""
        return self._attempt.waiting.sleep(seconds, key)


class SyncRun(_Held):
    """A Run for blocking code: the same methods, which return when it is done."""

    @overload
    def step(
        self,
        function: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        key: str | None = None,
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        retry_on: RetryOn = Exception,
        effect: Effect = "retry",
        undo: Callable[..., Any] | None = None,
        on_unknown: OnUnknown = "ask",
        **kwargs: Any,
    ) -> R: ...

    @overload
    def step(
        self,
        function: Callable[..., R],
        /,
        *args: Any,
        key: str | None = None,
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        retry_on: RetryOn = Exception,
        effect: Effect = "retry",
        undo: Callable[..., Any] | None = None,
        on_unknown: OnUnknown = "ask",
        **kwargs: Any,
    ) -> R: ...

    def step(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        key: str | None = None,
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        retry_on: RetryOn = Exception,
        effect: Effect = "retry",
        undo: Callable[..., Any] | None = None,
        on_unknown: OnUnknown = "ask",
        **kwargs: Any,
    ) -> Any:
        """Call a function, plain or asynchronous, record its result and return it; see `Run.step`."""
        options = calling.checked(retries, backoff, timeout, retry_on, effect)
        return run_to_end(self._attempt.steps.step(function, args, kwargs, key, options, undo, on_unknown))

    @overload
    def gather(self, *work: Callable[[], R]) -> list[R]: ...

    @overload
    def gather(self, *work: Callable[[], R] | R) -> list[R]: ...

    def gather(self, *work: Any) -> list[Any]:
        """Return the results of functions without arguments that are called side by side, each in a thread.

        What is no function is taken as the result that it is. All of them come to their end, then the first error is
        raised. Functions of several steps each want a `run.scope` of their own.
        """
        # Here, since the threads know neither of a step that they are begun in, nor of a wait that is on its way out.
        self._attempt.code.check_may_ask()
        results: list[Any] = list(work)
        errors: list[BaseException | None] = [None] * len(work)

        def call(place: int, function: Callable[[], Any]) -> None:
            try:
                results[place] = function()
            except BaseException as exc:
                errors[place] = exc

        threads = []
        for place, function in enumerate(work):
            if callable(function):
                # A copy for each thread: a context can be entered by one thread at a time.
                context = contextvars.copy_context()
                thread = threading.Thread(target=context.run, args=(call, place, function), name="everstep gather")
                threads.append(thread)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return calling.results_of(errors, results, self._attempt.failed.note_beside)

    def ask(self, question: str, details: Any = None, *, key: str | None = None) -> Any:
        """Wait for the answer of a person, over restarts; see `Run.ask`."""
        return run_to_end(self._attempt.waiting.ask(question, details, key))

    def wait_for(self, event: str) -> Any:
        """Wait for an event and return its value; see `Run.wait_for`."""
        return run_to_end(self._attempt.waiting.wait_for(event))

    def sleep(self, seconds: float, *, key: str | None = None) -> None:
        """Wait for so long, over restarts; see `Run.sleep`."""
        run_to_end(self._attempt.waiting.sleep(seconds, key))
