"""Calling a graph again after a failure, from where it was."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from everstep import checks
from everstep.errors import InvalidInput, SnapshotTooLarge, StoreClosed, TaskError, UnregisteredType, UnstorableValue
from everstep.faces import run_to_end
from everstep.langgraph import configs

logger = logging.getLogger("everstep")

_HOPELESS: tuple[type[Exception], ...] = (
    InvalidInput, UnstorableValue, UnregisteredType, SnapshotTooLarge, StoreClosed, TaskError,
)  # fmt: skip
_HOPELESS_NAMES = frozenset(
    ("GraphRecursionError", "InvalidUpdateError", "EmptyInputError", "GraphBubbleUp", "UnknownInterruptError")
)


def safe_invoke(
    app: Any,
    state: Any,
    config: Mapping[str, Any],
    max_retries: int = 3,
    *,
    backoff_seconds: float = 0.5,
    backoff_seconds_max: float = 30.0,
    sleep: Callable[[float], object] = time.sleep,
    **options: Any,
) -> Any:
    """Return what `app.invoke(state, config)` does, tried up to `max_retries` times in all.

    After a failure it goes on from the last checkpoint, or begins again with `state` if there is none of this call.
    The pause before each try is up to twice as long as the one before, and random. When the tries are used up the last
    error is raised, with notes of those before; an error that another try cannot change is raised at once. `options`
    are those of `invoke`.
    """

    async def pause(seconds: float) -> None:
        sleep(seconds)

    async def invoke(given: Any, where: Any) -> Any:
        return app.invoke(given, where, **options)

    async def last(where: Any) -> Any:
        return app.get_state(where)

    backoff = _backoff(backoff_seconds, backoff_seconds_max)
    return run_to_end(_tried(app, state, config, max_retries, backoff, invoke, last, pause))


async def asafe_invoke(
    app: Any,
    state: Any,
    config: Mapping[str, Any],
    max_retries: int = 3,
    *,
    backoff_seconds: float = 0.5,
    backoff_seconds_max: float = 30.0,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    **options: Any,
) -> Any:
    """Return what `app.ainvoke(state, config)` does, tried up to `max_retries` times in all; see `safe_invoke`."""

    async def pause(seconds: float) -> None:
        await sleep(seconds)

    async def invoke(given: Any, where: Any) -> Any:
        return await app.ainvoke(given, where, **options)

    async def last(where: Any) -> Any:
        return await app.aget_state(where)

    backoff = _backoff(backoff_seconds, backoff_seconds_max)
    return await _tried(app, state, config, max_retries, backoff, invoke, last, pause)


async def _tried(
    app: Any,
    state: Any,
    config: Mapping[str, Any],
    tries: int,
    backoff: tuple[float, float],
    invoke: Callable[[Any, Any], Coroutine[Any, Any, Any]],
    last: Callable[[Any], Coroutine[Any, Any, Any]],
    pause: Callable[[float], Coroutine[Any, Any, None]],
) -> Any:
    if checks.count(tries, "max_retries") < 1:
        raise InvalidInput("max_retries is the number of tries in all: at least 1")
    if isinstance(getattr(app, "checkpointer", None), (bool, type(None))):
        raise InvalidInput("the graph has no checkpointer to go on from; compile it with one")
    inner = configs.configurable(config)
    configs.thread_id(inner)
    # Without a checkpoint that is named in it: what this call wrote is the head.
    head: Any = {**config, "configurable": {name: value for name, value in inner.items() if name != "checkpoint_id"}}
    before = _checkpoint_id(await last(head))
    given, where, failures = state, dict(config), list[str]()
    for number in range(1, tries + 1):
        try:
            return await invoke(given, where)
        except Exception as error:
            if number == tries or _is_hopeless(error):
                for note in failures:
                    error.add_note(note)
                raise
            failures.append(f"try {number} of {tries}: {type(error).__name__}: {error}")
            logger.warning(
                "try %d of %d failed; the graph goes on from its last checkpoint", number, tries, exc_info=True
            )
        seconds = min(backoff[0] * 2 ** (number - 1), backoff[1])
        await pause(seconds * random.uniform(0.5, 1.0))  # noqa: S311  # no secret
        if _checkpoint_id(await last(head)) != before:
            given, where = None, head
    raise RuntimeError("a try returns or raises")


def _checkpoint_id(state: Any) -> str | None:
    found: str | None = state.config["configurable"].get("checkpoint_id") if state.created_at is not None else None
    return found


def _is_hopeless(error: Exception) -> bool:
    # By name: LangGraph need not be imported for this.
    return isinstance(error, _HOPELESS) or any(cls.__name__ in _HOPELESS_NAMES for cls in type(error).__mro__)


def _backoff(first: float, most: float) -> tuple[float, float]:
    for name, value in (("backoff_seconds", first), ("backoff_seconds_max", most)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise InvalidInput(f"{name} is a number, 0 or more, not {checks.shown(value)}")
    return first, most
