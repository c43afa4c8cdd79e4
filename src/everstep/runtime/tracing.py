"""Spans of OpenTelemetry, where an application has set it up. Otherwise nothing is imported and nothing is done."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from everstep.version import __version__

if TYPE_CHECKING:
    from everstep.runtime.calls import Call

_API = "opentelemetry.trace"
_PROVIDER = "_TRACER_PROVIDER"  # what an application sets it up with; None until it has
# The provider that was asked last, and what it gave.
_tracers: tuple[Any, Any] = (None, None)
# The function that knew of none; it has looked by then whether the environment names one.
_asked: Any = None


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
    # Asking looks into the environment, for every call. A version that keeps its provider elsewhere is asked.
    if api.get_tracer_provider is _asked and getattr(api, _PROVIDER, api) is None:
        return None
    return _begin(api, name)


def _begin(api: Any, name: str) -> Span | None:
    global _asked
    ask = api.get_tracer_provider
    provider = ask()
    if isinstance(provider, api.ProxyTracerProvider):
        _asked = ask
        return None  # the interface is there, but nothing is set up behind it
    return Span(_tracer(provider).start_as_current_span(f"everstep.{name}"))


def _tracer(provider: Any) -> Any:
    global _tracers
    known, tracer = _tracers
    if known is not provider:
        tracer = provider.get_tracer("everstep", __version__)
        _tracers = (provider, tracer)
    return tracer
