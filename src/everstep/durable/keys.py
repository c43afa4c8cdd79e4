"""The keys by which the steps of a run are known: each has a name, a number or a choice, and the scope it is in."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
from collections.abc import Iterator
from typing import Any

from everstep.errors import InvalidInput
from everstep.runtime import checks
from everstep.runtime.contexts import holding

KEY_MAX = 500
# A context variable, so that tasks and threads that run side by side each have a scope of their own.
_scope: contextvars.ContextVar[str] = contextvars.ContextVar("everstep_run_scope", default="")


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Give the steps inside keys of their own."""
    with holding(_scope, f"{_scope.get()}{checks.text(name, 'the name of a scope', KEY_MAX)}/"):
        yield


def outside_of_scopes() -> contextlib.AbstractContextManager[None]:
    """Begin a run whose keys are its own, also where a scope of another run has begun it."""
    return holding(_scope, "")


class Keys:
    """The keys of the steps that the code has asked for."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        # Steps may be asked for by several threads at once, in `SyncRun.gather`.
        self._lock = threading.Lock()

    def take(self, name: str, chosen: str | None) -> str:
        """Return the key of the next step of that name, or the one that was chosen."""
        prefix = _scope.get()
        with self._lock:
            if chosen is not None:
                key = prefix + checks.text(chosen, "key", KEY_MAX)
                if key in self._taken:
                    raise InvalidInput(f"the key {key!r} is taken by another step of this run; choose one for each")
                self._taken.add(key)
                return key
            while True:
                number = self._next(prefix + name)
                key = prefix + name
                if number:
                    key = f"{key}#{number + 1}"
                # Somebody may have chosen a key that looks like a numbered one.
                if key not in self._taken:
                    self._taken.add(key)
                    return key

    def count(self, name: str) -> int:
        """Return how often that was asked before."""
        with self._lock:
            return self._next(name)

    def _next(self, name: str) -> int:
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        return number


def name_of(function: Any) -> str:
    """Return the name that the steps of a function have."""
    # A partial has no name of its own; the function that it calls has one. Asked by its class: a mock has
    # every attribute, and so would be followed for ever.
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)
