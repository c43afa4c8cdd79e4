"""Calling a graph again after a failure, from where it was."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

from everstep.errors import InvalidInput, SnapshotTooLarge, StoreClosed, TaskError, UnregisteredType, UnstorableValue
from everstep.langgraph import configs, runs
from everstep.langgraph.graphs import AsyncGraph, Graph
from everstep.runtime import checks
from everstep.runtime.blocking import run_to_end

logger = logging.getLogger("everstep")

V = TypeVar("V")

_HOPELESS: tuple[type[Exception], ...] = (
    InvalidInput, UnstorableValue, UnregisteredType, SnapshotTooLarge, StoreClosed, TaskError,
)  # fmt: skip
_HOPELESS_NAMES = frozenset(
    ("GraphRecursionError", "InvalidUpdateError", "EmptyInputError", "GraphBubbleUp", "UnknownInterruptError")
)


def safe_invoke(
    app: Graph[V],
    state: Any,
    config: Mapping[str, Any],
    max_retries: int = 3,
    *,
    backoff_seconds: float = 0.5,
    backoff_seconds_max: float = 30.0,
    sleep: Callable[[float], object] = time.sleep,
    **options: Any,
) -> V:
    """Return what `app.invoke(state, config)` does, tried up to `max_retries` times in all.

    After a failure it goes on from the last checkpoint, or begins again with `state` if there is none of this call.
    The pause before each try is up to twice as long as the one before, and random. When the tries are used up the last
    error is raised, with notes of those before; an error that another try cannot change is raised at once. `options`
    are those of `invoke`.
    """
    graph: Any = app

    async def pause(seconds: float) -> None:
        sleep(seconds)

    async def invoke(given: Any, where: Any) -> Any:
        return graph.invoke(given, where, **options)

    async def last(where: Any) -> Any:
        return graph.get_state(where)

    async def saved(where: Any) -> Any:
        return graph.checkpointer.get_tuple(where)

    backoff = _backoff(backoff_seconds, backoff_seconds_max)
    values: V = run_to_end(_tried(app, state, config, max_retries, backoff, _Calls(invoke, last, saved, pause)))
    return values


async def asafe_invoke(
    app: AsyncGraph[V],
    state: Any,
    config: Mapping[str, Any],
    max_retries: int = 3,
    *,
    backoff_seconds: float = 0.5,
    backoff_seconds_max: float = 30.0,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    **options: Any,
) -> V:
    """Return what `app.ainvoke(state, config)` does, tried up to `max_retries` times in all; see `safe_invoke`."""
    graph: Any = app

    async def pause(seconds: float) -> None:
        await sleep(seconds)

    async def invoke(given: Any, where: Any) -> Any:
        return await graph.ainvoke(given, where, **options)

    async def last(where: Any) -> Any:
        return await graph.aget_state(where)

    async def saved(where: Any) -> Any:
        return await graph.checkpointer.aget_tuple(where)

    backoff = _backoff(backoff_seconds, backoff_seconds_max)
    values: V = await _tried(app, state, config, max_retries, backoff, _Calls(invoke, last, saved, pause))
    return values


async def _tried(
    app: Any,
    state: Any,
    config: Mapping[str, Any],
    tries: int,
    backoff: tuple[float, float],
    calls: _Calls,
) -> Any:
    if checks.count(tries, "max_retries") < 1:
        raise InvalidInput("max_retries is the number of tries in all: at least 1")
    if isinstance(getattr(app, "checkpointer", None), (bool, type(None))):
        raise InvalidInput("the graph has no checkpointer to go on from; compile it with one")
    inner = configs.configurable(config)
    configs.thread_id(inner)
    # Without a checkpoint that is named in it: what this call wrote is the head.
    head_place = {name: value for name, value in inner.items() if name != "checkpoint_id"}
    head: Any = {**config, "configurable": head_place}
    begun = await calls.last(head)
    before = runs.checkpoint_id(begun)
    given = state
    answers: _Answers | None = None
    if getattr(state, "resume", None) is not None:
        answers = _Answers(state, begun, await calls.saved(head))
        given = answers.given
    where = dict(config)
    failures = list[str]()
    for number in range(1, tries + 1):
        try:
            return await calls.invoke(given, where)
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
        await calls.pause(seconds * random.uniform(0.5, 1.0))  # noqa: S311  # no secret
        if runs.checkpoint_id(await calls.last(head)) != before:
            # The input is in a checkpoint by now: given again it would be taken twice.
            given = None
            where = head
        elif answers is not None:
            given = answers.left(await calls.saved(head))
    raise RuntimeError("a try returns or raises")


class _Calls(NamedTuple):
    """What is done in another way on each face."""

    invoke: Callable[[Any, Any], Coroutine[Any, Any, Any]]
    last: Callable[[Any], Coroutine[Any, Any, Any]]
    saved: Callable[[Any], Coroutine[Any, Any, Any]]
    pause: Callable[[float], Coroutine[Any, Any, None]]


class _Answers:
    """A Command that answers questions: each answer is given once, and to its own question.

    LangGraph keeps an answer without a name pending when the node fails, and gives it to the next question.
    """

    def __init__(self, command: Any, begun: Any, saved: Any) -> None:
        self._command = command
        self._tasks: dict[str, str] = {}
        """By question, the task that asks it."""
        for task in begun.tasks:
            for asked in task.interrupts:
                self._tasks[asked.id] = task.id
        self._used = _used(saved)
        self._by_name = self._named(command.resume)

    def _named(self, resume: Any) -> dict[str, Any] | None:
        """Return the answers by their questions; None if it is not clear which one an answer is for."""
        if isinstance(resume, Mapping) and resume and resume.keys() <= self._tasks.keys():
            return dict(resume)
        if len(self._tasks) == 1:
            return dict.fromkeys(self._tasks, resume)
        return None

    @property
    def given(self) -> Any:
        """The command, with the names of questions where that is clear."""
        if self._by_name is None:
            return self._command
        return dataclasses.replace(self._command, resume=self._by_name)

    def left(self, saved: Any) -> Any:
        """Return what is to be given after a failure: the answers that no node has taken; None: all were."""
        if self._by_name is None:
            return self._command
        used = _used(saved)
        left: dict[str, Any] = {}
        for name, answer in self._by_name.items():
            task = self._tasks[name]
            if used.get(task, 0) == self._used.get(task, 0):
                left[name] = answer
        if not left:
            return None
        return dataclasses.replace(self._command, resume=left)


def _used(saved: Any) -> dict[str, int]:
    """Return how many answers each task has taken."""
    if saved is None:
        return {}
    found: dict[str, int] = {}
    for task, channel, value in saved.pending_writes or ():
        if channel == "__resume__" and isinstance(value, list):
            found[task] = len(value)
    return found


def _is_hopeless(error: Exception) -> bool:
    # By name: LangGraph need not be imported for this.
    return isinstance(error, _HOPELESS) or any(cls.__name__ in _HOPELESS_NAMES for cls in type(error).__mro__)


def _backoff(first: float, most: float) -> tuple[float, float]:
    return checks.seconds(first, "backoff_seconds"), checks.seconds(most, "backoff_seconds_max")
