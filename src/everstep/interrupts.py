"""Ctrl-C at the wrong moment: put off until work that must not be torn is whole.

Python runs signal handlers in the main thread, between any two steps of its code; one that raises (as Ctrl-C does)
would leave a lock taken or a transaction half told. Inside `deferred()` handlers only take note, and run at its end.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the C module: its wrapper makes enum members of all
import threading
from types import FrameType, TracebackType
from typing import Any

# Those that people give handlers that raise. Looked up each time, so few.
_SIGNALS = [int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]
_main = threading.main_thread().ident


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
        except BaseException:
            self._restore()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handlers:
            self._restore()
            handlers = dict(self._handlers)
            for number, frame in self._came:
                handlers[number](number, frame)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def _restore(self) -> None:
        for number, handler in self._handlers:
            signal.signal(number, handler)
