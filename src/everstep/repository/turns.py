"""Turns: a writer that others were faster than too often does its work where nobody can come in between.

What is saved mostly rests on the head that its writer saw, and the store refuses it if the head is another one by then.
A writer that is far away, or whose values are large, could be beaten for ever by writers that are nearer. So after a
few quick tries, or a slow one, it asks the store for a turn (`Store.in_turn`): everything is read anew and committed
there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from everstep.errors import StoreUnavailable
from everstep.runtime import calls, deadlines
from everstep.stores.protocol import Store

T = TypeVar("T")

_TRIES = 3
_TRIES_SECONDS = 0.02
"""Beaten tries that have taken longer than this together are enough, too: one that is slow will be beaten again."""
_TURNS = 5
"""A turn may end before its work does: on a server that gives a writer only so much time, to go on without it if it
has died. The next one is longer."""


BEATEN_MAX = 20
"""So often another writer may be first where that is rare, and where there is no turn to be had."""


class Beaten(Exception):
    """What was prepared does not fit what is stored by now. Nothing was written; never seen outside."""


async def until_done(
    store: Store,
    thread_id: str,
    attempt: Callable[[Store, bool], Coroutine[Any, Any, T]],
    doing: str,
    *,
    tries: int = _TRIES,
    calls_back: bool = False,
) -> T:
    """Return what `attempt` returns. It raises Beaten if another writer was first, and is then called again.

    It is told the store to work on, and whether it is called for the first time: only then may it rely on what is
    remembered. It changes the store by one commit, as its last act, and nothing else that it does may last: a turn
    may end without it. `doing` says in an error what could not be done. After so many `tries` it gets a turn; with
    none it begins with that. An attempt that calls functions of the caller's (`calls_back`) gets more tries instead
    of a turn: nobody waits for such a function.
    """
    began = time.monotonic()
    if calls_back:
        return await _without_turns(store, thread_id, attempt, doing)
    seconds = 0.0
    for number in range(tries):
        started = time.monotonic()
        try:
            return await attempt(store, number == 0)
        except Beaten:
            seconds = max(seconds, time.monotonic() - started)
            calls.tried_again("%s of thread %r met another writer", doing, thread_id)
        if time.monotonic() - began > _TRIES_SECONDS:
            break
    for _ in range(_TURNS):
        started = time.monotonic()
        try:
            return await store.in_turn(thread_id, lambda inner: attempt(inner, False), seconds)
        except Beaten:
            seconds = max(seconds * 2, time.monotonic() - started)
            calls.tried_again("%s of thread %r met another writer in its turn", doing, thread_id)
        if deadlines.has_passed():
            break
    raise overtaken(doing, thread_id, time.monotonic() - began)


async def _without_turns(
    store: Store, thread_id: str, attempt: Callable[[Store, bool], Coroutine[Any, Any, T]], doing: str
) -> T:
    began = time.monotonic()
    for number in range(BEATEN_MAX):
        try:
            return await attempt(store, number == 0)
        except Beaten:
            if deadlines.has_passed():
                break
            calls.tried_again("%s of thread %r met another writer", doing, thread_id)
    raise overtaken(doing, thread_id, time.monotonic() - began)


def overtaken(doing: str, thread_id: str, seconds: float | None = None) -> StoreUnavailable:
    """Return the error for what others were faster than every time."""
    lasting = f" for {seconds:.1f} s" if seconds is not None else ""
    return StoreUnavailable(
        f"{doing} of thread {thread_id!r} was overtaken by other writers again and again{lasting}; nothing was "
        "written. Try again, or let fewer writers work on one thread"
    )
