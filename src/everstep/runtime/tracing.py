"""Spans of OpenTelemetry, where an application has set it up. Otherwise nothing is imported and nothing is done."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from everstep.version import __version__

if TYPE_CHECKING:
    from everstep.runtime.calls import Call

_API = "opentelemetry.trace"
_tracers: tuple[Any, Any] = (None, None)  # the provider that was asked last, and what it gave


class Span:
    """The span of one public call; it is the current one until it ends."""

    __slots__ = ("_manager", "_span")

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._span = manager.__enter__()

    def end(self, call: Call, store: str, error: BaseException | None) -> None:
        """End it with the figures of the call."""
        span = self._span
        if span.is_recording():
            span.set_attribute("everstep.store", store)
            if call.thread_id is not None:
                span.set_attribute("everstep.thread_id", call.thread_id)
            span.set_attribute("everstep.bytes_added", call.bytes_added)
            span.set_attribute("everstep.objects_added", call.objects_added)
            span.set_attribute("everstep.retries", call.retries)
        # The manager notes an error itself, and does not swallow it.
        kind = type(error) if error is not None else None
        trace = error.__traceback__ if error is not None else None
        self._leave(kind, error, trace)

    def _leave(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self._manager.__exit__(kind, error, trace)
        except BaseException as exc:
            if exc is not error:
                raise


def begin(name: str) -> Span | None:
    """Begin the span of a call; None: nobody asks for one."""
    api: Any = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    if isinstance(provider, api.ProxyTracerProvider):
        return None  # the interface is there, but nothing is set up behind it
    return Span(_tracer(provider).start_as_current_span(f"everstep.{name}"))


def _tracer(provider: Any) -> Any:
    global _tracers
    known, tracer = _tracers
    if known is not provider:
        tracer = provider.get_tracer("everstep", __version__)
        _tracers = (provider, tracer)
    return tracer
