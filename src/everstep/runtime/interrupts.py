"""Ctrl-C at the wrong moment: put off until work that must not be torn is whole.

Python runs signal handlers in the main thread, between any two steps of its code; one that raises (as Ctrl-C does)
would leave a lock taken or a transaction half told. Inside `deferred()` handlers only take note, and run at its end.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the C module: its wrapper makes enum members of all
import os
import threading
from types import FrameType
from typing import Any

# Those that people give handlers that raise. Looked up each time, so few.
_SIGNALS = [int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]
_main = threading.main_thread().ident
_active: list[deferred] = []


class deferred:  # noqa: N801  # used like a function
    """Run a block whole: signals that come meanwhile are handled after it. Does nothing outside the main thread."""

    __slots__ = ("_came", "_handlers")

    def __enter__(self) -> None:
        self._came: list[tuple[int, FrameType | None]] = []
        self._handlers: list[tuple[int, Any]] = []
        if threading.get_ident() != _main:
            return
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers.append((number, handler))
                    signal.signal(number, self._note)
            # A process whose signals are all ignored has nothing to put back.
            if self._handlers:
                _active.append(self)
        except BaseException:
            self.restore()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._handlers:
            return
        failure = self.restore()
        handlers = dict(self._handlers)
        for number, frame in self._came:
            try:
                handlers[number](number, frame)
            except BaseException as exc:
                failure = failure or exc
        if failure is not None:
            raise failure

    def restore(self) -> BaseException | None:
        """Put every handler back; return what one of them raised meanwhile."""
        if self in _active:
            _active.remove(self)
        failure = None
        for number, handler in self._handlers:
            try:
                signal.signal(number, handler)
            except BaseException as exc:  # raised by a handler that is back already: the others must follow
                failure = exc
                signal.signal(number, handler)
        return failure

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))


def _after_in_child() -> None:
    """A child forked by another thread has a new main thread, which is not inside any of these blocks."""
    global _main
    if threading.get_ident() != _main:
        _main = threading.get_ident()
        while _active:
            _active.pop().restore()


os.register_at_fork(after_in_child=_after_in_child)
