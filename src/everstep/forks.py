"""Forking a process that holds locks and open databases.

A child inherits the locks but not the threads that would release them, and SQLite's own tables of file locks but not
the locks. So before a fork everything registered here is brought to rest, and woken on both sides after it.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Restful(Protocol):
    """Something that can be brought to rest before a fork."""

    rest_order: int
    """Who comes first: something whose work may use another comes before that other."""

    def rest(self) -> None:
        """Wait for work under way, let go of what a child must not inherit, and hold off new work."""

    def wake(self, *, in_child: bool) -> None:
        """Go on. Called on both sides, by the thread that forked."""


_known: weakref.WeakSet[Restful] = weakref.WeakSet()
_resting: list[Restful] = []


def register(thing: Restful) -> None:
    """Bring `thing` to rest at every fork while it lives."""
    _known.add(thing)


def _before() -> None:
    # Looked up anew each time: what is brought to rest may have been making something new until then.
    while awake := [thing for thing in _known if not any(thing is other for other in _resting)]:
        thing = min(awake, key=lambda thing: thing.rest_order)
        thing.rest()
        _resting.append(thing)


def _after(*, in_child: bool) -> None:
    while _resting:
        _resting.pop().wake(in_child=in_child)


os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(in_child=False), after_in_child=lambda: _after(in_child=True)
)
