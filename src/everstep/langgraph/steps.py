"""`step` and `astep`: calls inside the nodes of a graph that are not made again when the node runs again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, overload

from everstep.durable import calling
from everstep.durable.calling import AsyncFace, BlockingFace, Effect, Options
from everstep.durable.keys import name_of
from everstep.durable.run import OnUnknown, RetryOn
from everstep.errors import InvalidInput
from everstep.langgraph.nodes import running_node
from everstep.langgraph.recording import Call, Steps, scope_of_step
from everstep.runtime import checks
from everstep.runtime.blocking import run_to_end

R = TypeVar("R")


@overload
def step(
    function: Callable[..., Coroutine[Any, Any, R]],
    /,
    *args: Any,
    key: str | None = None,
    retries: int = 0,
    backoff: float = 1.0,
    timeout: float | None = None,
    retry_on: RetryOn = Exception,
    effect: Effect = "retry",
    undo: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "ask",
    **kwargs: Any,
) -> R: ...


@overload
def step(
    function: Callable[..., R],
    /,
    *args: Any,
    key: str | None = None,
    retries: int = 0,
    backoff: float = 1.0,
    timeout: float | None = None,
    retry_on: RetryOn = Exception,
    effect: Effect = "retry",
    undo: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "ask",
    **kwargs: Any,
) -> R: ...


def step(
    function: Callable[..., Any],
    /,
    *args: Any,
    key: str | None = None,
    retries: int = 0,
    backoff: float = 1.0,
    timeout: float | None = None,
    retry_on: RetryOn = Exception,
    effect: Effect = "retry",
    undo: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "ask",
    **kwargs: Any,
) -> Any:
    """Call a function inside a node, record its result and return it; a recorded one is not called again.

    When the node runs again after a crash, a question or a failure, its steps give what they gave before. A step is
    known by its name and by how often the node asked for that, or by `key`. The options are those of `Run.step`. With
    `effect="once"` the effect is known to all branches of the thread, also after a rewind: by `key`, or by where in the
    graph it stands. If nobody knows whether it happened, `on_unknown="ask"` interrupts the graph with the question;
    the answer is `Command(resume=everstep.happened(result))` or `Command(resume=everstep.did_not_happen())`.
    """
    options = calling.checked(retries, backoff, timeout, retry_on, effect)
    return run_to_end(_asked(function, args, kwargs, key, options, undo, on_unknown, is_blocking=True))


@overload
def astep(
    function: Callable[..., Coroutine[Any, Any, R]],
    /,
    *args: Any,
    key: str | None = None,
    retries: int = 0,
    backoff: float = 1.0,
    timeout: float | None = None,
    retry_on: RetryOn = Exception,
    effect: Effect = "retry",
    undo: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "ask",
    **kwargs: Any,
) -> Coroutine[Any, Any, R]: ...


@overload
def astep(
    function: Callable[..., R],
    /,
    *args: Any,
    key: str | None = None,
    retries: int = 0,
    backoff: float = 1.0,
    timeout: float | None = None,
    retry_on: RetryOn = Exception,
    effect: Effect = "retry",
    undo: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "ask",
    **kwargs: Any,
) -> Coroutine[Any, Any, R]: ...


def astep(
    function: Callable[..., Any],
    /,
    *args: Any,
    key: str | None = None,
    retries: int = 0,
    backoff: float = 1.0,
    timeout: float | None = None,
    retry_on: RetryOn = Exception,
    effect: Effect = "retry",
    undo: Callable[..., Any] | None = None,
    on_unknown: OnUnknown = "ask",
    **kwargs: Any,
) -> Coroutine[Any, Any, Any]:
    """Return the coroutine of a step, for asynchronous nodes; see `step`."""
    options = calling.checked(retries, backoff, timeout, retry_on, effect)
    return _asked(function, args, kwargs, key, options, undo, on_unknown, is_blocking=False)


def _asked(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    key: str | None,
    options: Options,
    undo: Callable[..., Any] | None,
    on_unknown: Any,
    *,
    is_blocking: bool,
) -> Coroutine[Any, Any, Any]:
    """Return the coroutine of a step. Its key is given now: in the order in which the node asks for steps."""
    if not callable(function):
        raise InvalidInput(f"a step is a function and its arguments, not {checks.shown(function)}")
    calling.check_effect(options.effect, undo, on_unknown)
    node = running_node()
    _check_goes_on()
    name = name_of(function)
    full = node.keys.take(f"{scope_of_step()}{name}", key)
    chosen = full if key is not None else None
    threads = node.saver.threads(blocking=is_blocking)
    steps = Steps(node, threads, BlockingFace() if is_blocking else AsyncFace())
    return steps.step(Call(full, name, function, args, kwargs, options, chosen, undo, on_unknown))


def _check_goes_on() -> None:
    """Raise the interrupt that the node is left by, if this is called in a `finally:` block on its way out.

    The node comes back here when it has its answer. A step recorded now would not be called then.
    """
    from langgraph.errors import GraphInterrupt

    error = sys.exception()
    if isinstance(error, GraphInterrupt):
        raise error
