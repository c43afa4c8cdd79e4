"""A pause of the garbage collector while many objects are built at once.

A list of a thousand messages is some ten thousand objects, all of which stay: collections in between look at them again
and again and find nothing, and take most of the time. The switch is the process's, so the pause is kept as short as the
building itself, nothing waits inside it, and it is left as it was found. See docs/decisions/0009-langgraph.md.
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType

from everstep.runtime import forks

_lock = threading.Lock()
_inside = 0
_was_enabled = False


class Quiet:
    """While inside, the collector does not start by itself. Several threads may be inside at once."""

    fork_order = 4

    def __init__(self) -> None:
        forks.register(self)

    def before_fork(self) -> None:
        _lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        global _inside
        if in_child and _inside > 0:  # those who were inside are not in the child
            _inside = 0
            if _was_enabled:
                gc.enable()
        _lock.release()

    def __enter__(self) -> None:
        global _inside, _was_enabled
        with _lock:
            if _inside == 0:
                _was_enabled = gc.isenabled()
                gc.disable()
            _inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _inside
        with _lock:
            _inside -= 1
            is_over = _inside == 0 and _was_enabled
        # Without the lock: a collection may begin at once, and what it ends may wait for other locks.
        if is_over:
            gc.enable()


QUIET = Quiet()
