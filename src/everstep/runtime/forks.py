"""Forking a process that holds locks and open databases.

A child inherits the locks but not the threads that would release them, and SQLite's own tables of file locks but not
the locks. So before a fork everything registered here is brought to rest, and woken on both sides after it.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # its own fork hook must be registered before ours
import logging
import os
import threading
import weakref
from typing import Protocol


class Lock(Protocol):
    """A lock of any kind."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...


class Restful(Protocol):
    """Something that can be brought to rest before a fork."""

    fork_order: int
    """Who comes first: something whose work may use another comes before that other."""

    def before_fork(self) -> None:
        """Wait for work under way, let go of what a child must not inherit, and hold off new work."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on. Called on both sides, by the thread that forked."""


_known: weakref.WeakSet[Restful] = weakref.WeakSet()
_known_lock = threading.Lock()
_resting: list[Restful] = []
# One fork at a time: what one thread brought to rest, another must not wake.
_forking = threading.Lock()


def register(thing: Restful) -> None:
    """Bring `thing` to rest at every fork while it lives. Call it last in `__init__`."""
    with _known_lock:
        _known.add(thing)


class _HeldLock:
    """A lock that only the thread that forks may hold meanwhile."""

    def __init__(self, lock: Lock, order: int) -> None:
        self.fork_order = order
        self._lock = lock

    def before_fork(self) -> None:
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:  # noqa: ARG002  # the same on both sides
        self._lock.release()


def hold(lock: Lock, order: int) -> object:
    """See to it that nobody is inside a lock at a fork, as long as what is returned lives; `order`: see `Restful`."""
    held = _HeldLock(lock, order)
    register(held)
    return held


def _before() -> None:
    """Bring everything to rest; ends with the register locked."""
    _forking.acquire()
    while True:
        _known_lock.acquire()
        # Looked up anew each time: what is brought to rest may have been making something new until then.
        resting = {id(thing) for thing in _resting}
        awake = [thing for thing in _known if id(thing) not in resting]
        if not awake:
            return
        _known_lock.release()
        first = min(thing.fork_order for thing in awake)
        for thing in awake:
            if thing.fork_order == first:
                thing.before_fork()
                _resting.append(thing)


def _after(*, in_child: bool) -> None:
    _known_lock.release()
    while _resting:
        thing = _resting.pop()
        try:
            thing.after_fork(in_child=in_child)
        except Exception:  # the others must wake all the same
            logging.getLogger("everstep").exception("%r did not wake after a fork", thing)
    _forking.release()


# Who registers last is called first. Executors have a lock of their own that is taken before a fork, and who holds one
# of our locks may be waiting for that: so they must have registered before us.
os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(in_child=False), after_in_child=lambda: _after(in_child=True)
)
