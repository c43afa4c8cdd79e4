"""The code of a run in this process: where it is at work, what has stopped it, and whether it may ask for anything."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Iterator

from everstep.durable import calling
from everstep.durable.keys import outside_of_scopes
from everstep.durable.leaving import left_by
from everstep.errors import InvalidInput, LeaseLost, RunError, StoreError
from everstep.runtime.contexts import holding

Worker = asyncio.Task[object] | threading.Thread
_at_work: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("everstep_runs_at_work", default=frozenset())
"""The threads of the runs whose code has come here."""


def is_within(thread_id: str) -> bool:
    """Whether this is called by the code of a run, or by what that has called."""
    return thread_id in _at_work.get()


class CodeAtWork:
    """What is known of the code of one run, while it is run here."""

    def __init__(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self.stopped: Exception | None = None
        """What keeps this process from going on with the run, though its code may have caught it."""
        self.is_let_go = False
        """Whether a step was not begun because this process is about to stop."""
        self._is_left = False
        """Whether the code has come to its end here."""
        self._own_worker = _worker()
        """The task or thread in which the code is at work."""
        self._beside: set[Worker] = set()
        """Those in which it has done something beside that."""

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the code of the run be at work here, until it comes to its end."""
        self._own_worker = _worker()
        try:
            with (
                holding(_at_work, _at_work.get() | {self._thread_id}),
                outside_of_scopes(),
                calling.outside_of_steps(),
            ):
                yield
        finally:
            self._is_left = True

    def check_may_ask(self) -> None:
        """Raise if the code must not ask for anything here, as nobody would ask for it when the run is replayed."""
        if self._is_left:
            raise RunError(self._thread_id, "has been left by its code here: nothing can be asked of it any more")
        if calling.is_in_step():
            raise InvalidInput(
                "a step cannot ask for anything of its run: when it is replayed its function is not called. "
                "Let the code of the run ask, and hand the result to the step"
            )
        self.check_not_stopped()
        # In a `finally:` block the run is on its way out, and comes back here when it is taken up. What such a block
        # asks for is asked for when it is over.
        leaving = left_by(sys.exception())
        if leaving is not None:
            raise leaving

    def check_not_stopped(self) -> None:
        """Raise what has stopped the run here, if anything has."""
        if self.stopped is not None:
            raise self.stopped

    @contextlib.contextmanager
    def stopped_by_store(self) -> Iterator[None]:
        """Note that the store does not take what the run does.

        Code that catches such an error takes it for the failure of a step. What it does then would be recorded beside
        the step, which has not failed: a replay could not come there again.
        """
        try:
            yield
        except (LeaseLost, StoreError) as error:
            self.stopped = error
            raise

    def is_here(self) -> bool:
        """Whether this is called where the code itself is at work, and not by what it does beside that."""
        return _worker() is self._own_worker

    def note_where(self) -> None:
        """Note where the code asks for something."""
        if not self.is_here():
            self._beside.add(_worker())

    def is_side_by_side(self) -> bool:
        """Whether the code does several things at once, as far as is known."""
        for each in list(self._beside):
            if each.done() if isinstance(each, asyncio.Task) else not each.is_alive():
                self._beside.discard(each)
        return bool(self._beside)


def _worker() -> Worker:
    """Return the task, or else the thread, in which this is called."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop is running
        task = None
    return task or threading.current_thread()
