"""Running a graph as the owner of a claim: what tasks and `send` share.

A claim is taken before anything runs, kept while it runs, and let go with a note of how the run ended. Everything is
written once, as coroutines over a face; only the graph itself is called in two ways.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from everstep.errors import StoreError, TaskLost, TaskRunning
from everstep.langgraph import configs
from everstep.langgraph.saved import is_call
from everstep.langgraph.saver import HarnessCheckpointer
from everstep.repository.claims import FAILED, RETURNED, Claim, Claims, Found
from everstep.types import TASK_NAMESPACE

logger = logging.getLogger("everstep")

T = TypeVar("T")

_INTERRUPT_ID: Final = re.compile("[0-9a-f]{32}")
_PAUSE_FIRST = 0.02
_PAUSE_MAX = 1.0
_last: set[asyncio.Future[Any]] = set()
"""What must be done even if its caller is cancelled: the event loop alone would not keep it."""


class Blocking:
    """What blocking callers do in their own way."""

    def __init__(self, saver: HarnessCheckpointer) -> None:
        self.saver = saver
        repository = saver.backend.blocking.repository
        self.store = repository.store
        self.claims = Claims(repository, TaskRunning, TaskLost)

    async def invoke(self, graph: Any, given: Any, config: Any, **options: Any) -> Any:
        return graph.invoke(given, config, **options)

    async def state(self, graph: Any, config: Any) -> Any:
        return graph.get_state(config)

    async def history(self, graph: Any, config: Any, limit: int | None) -> list[Any]:
        return list(graph.get_state_history(config, limit=limit))

    async def saved(self, config: Any) -> Any:
        return self.saver.get_tuple(config)

    async def listed(self, config: Any, limit: int | None) -> list[Any]:
        return list(self.saver.list(config, limit=limit))

    async def rewind(self, task_id: str, checkpoint_id: str) -> None:
        self.saver.engine.sync.rewind(checkpoint_id, thread_id=task_id, namespace="")

    async def delete(self, task_id: str) -> None:
        self.saver.delete_thread(task_id)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def turn(self, place: Future[None], seconds: float | None) -> None:
        """Wait until it is the turn of a place in a queue; TimeoutError after so many seconds."""
        place.result(seconds)

    async def to_end(self, last: Coroutine[Any, Any, T]) -> T:
        return await last

    async def or_back(self, take: Coroutine[Any, Any, T], give_back: Callable[[T], Coroutine[Any, Any, None]]) -> T:  # noqa: ARG002  # nobody cancels it
        return await take


class Awaiting:
    """The same for asynchronous callers."""

    def __init__(self, saver: HarnessCheckpointer) -> None:
        self.saver = saver
        self.store = saver.backend.store
        self.claims = Claims(saver.backend.repository, TaskRunning, TaskLost)

    async def invoke(self, graph: Any, given: Any, config: Any, **options: Any) -> Any:
        return await graph.ainvoke(given, config, **options)

    async def state(self, graph: Any, config: Any) -> Any:
        return await graph.aget_state(config)

    async def history(self, graph: Any, config: Any, limit: int | None) -> list[Any]:
        return [state async for state in graph.aget_state_history(config, limit=limit)]

    async def saved(self, config: Any) -> Any:
        return await self.saver.aget_tuple(config)

    async def listed(self, config: Any, limit: int | None) -> list[Any]:
        return [saved async for saved in self.saver.alist(config, limit=limit)]

    async def rewind(self, task_id: str, checkpoint_id: str) -> None:
        await self.saver.engine.rewind(checkpoint_id, thread_id=task_id, namespace="")

    async def delete(self, task_id: str) -> None:
        await self.saver.adelete_thread(task_id)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def turn(self, place: Future[None], seconds: float | None) -> None:
        """Wait until it is the turn of a place in a queue; TimeoutError after so many seconds."""
        if not place.done():
            await asyncio.wait_for(asyncio.wrap_future(place), seconds)

    async def to_end(self, last: Coroutine[Any, Any, T]) -> T:
        """Return what `last` does, which is done even if the caller is cancelled meanwhile."""
        return await asyncio.shield(self._held(last))

    async def or_back(self, take: Coroutine[Any, Any, T], give_back: Callable[[T], Coroutine[Any, Any, None]]) -> T:
        """Return what `take` does; if the caller is cancelled meanwhile, it is given back."""
        taking = self._held(take)

        async def back() -> None:
            await asyncio.wait([taking])
            if not taking.cancelled() and taking.exception() is None:
                await give_back(taking.result())

        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            await self.to_end(back())
            raise

    def _held(self, last: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a coroutine that nobody may hold on to."""
        running = asyncio.ensure_future(last)
        _last.add(running)
        running.add_done_callback(_last.discard)
        return running


Face = Blocking | Awaiting


async def take(
    face: Face,
    task_id: str,
    found: Found | None,
    lease_seconds: float,
    given: Any = None,
    *,
    is_task: bool = True,
) -> Claim:
    """Claim a thread; a claim whose owner is cancelled before it knows of it would stand until it runs out."""
    return await face.or_back(
        face.claims.take(task_id, found, lease_seconds, given, is_task=is_task),
        give_back,
    )


async def run(face: Face, claim: Claim, graph: Any, work: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` does with the graph, and let the claim go in the end, whatever that is.

    The graph that it gets puts nothing once the claim is gone.
    """
    fenced = graph.copy({"checkpointer": face.saver.behind(claim)})
    try:
        with claim.renewed():
            values = await work(fenced)
    except TaskLost:
        raise
    except Exception as error:
        ended = FAILED
        if is_interruption(error):
            ended = ""
        await face.to_end(let_go(face, claim, ended, error))
        raise
    except BaseException:  # an interruption from outside is no failure: the run can be resumed
        await face.to_end(let_go(face, claim, ""))
        raise
    await face.to_end(let_go(face, claim, RETURNED))
    return values


async def go_on(face: Face, graph: Any, config: Mapping[str, Any], **options: Any) -> Any:
    """Return what a graph comes to that goes on from the head of its thread."""
    where = await _where_to_go_on(face, graph, config)
    return await face.invoke(graph, None, where, **options)


async def _where_to_go_on(face: Face, graph: Any, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with which everything runs that comes next at the head.

    A subgraph that remembers its last turn, and has not begun with this one, is taken for finished by LangGraph, which
    then gives the result of that last turn. This is so after a rewind, and after a crash at that place. If the config
    names the checkpoint, LangGraph looks where the subgraph stood then, and runs it.
    """
    thread = await face.store.thread(configs.thread_id(configs.configurable(config)))
    if thread is None:
        return config
    inside = {namespace: thread.heads[namespace][0] for namespace in thread.heads if _is_of_subgraph(namespace)}
    remembering = {namespace.split("|")[0] for namespace in inside if not is_call(namespace)}
    if not remembering:
        return config
    saved = await face.saved(config)
    if saved is None or saved.pending_writes:
        # Nodes that have ended here would run again with the others.
        return config
    state = await face.state(graph, config)
    if remembering.isdisjoint(state.next):
        return config
    step = await _made_by_a_step(face, saved)
    if step is None or any(head > step for head in inside.values()):
        return config
    return {**config, "configurable": {**config["configurable"], "checkpoint_id": saved.checkpoint["id"]}}


def _is_of_subgraph(namespace: str) -> bool:
    return namespace not in ("", TASK_NAMESPACE)


async def _made_by_a_step(face: Face, saved: Any) -> str | None:
    """Return the last checkpoint that was not made by hand: what is newer in subgraphs belongs to what comes next.

    None: it is not there any more.
    """
    while saved is not None and saved.metadata.get("source") in ("update", "fork") and saved.parent_config is not None:
        saved = await face.saved(saved.parent_config)
    found: str | None = saved.checkpoint["id"] if saved is not None else None
    return found


async def let_go(face: Face, claim: Claim, ended: str, error: Exception | None = None) -> None:
    """Let a claim go and keep how the run ended. If that fails, the claim runs out by itself."""
    try:
        head = await face.store.read(claim.task_id)
        last: str | None = None
        if head is not None:
            last = head.stored.record.key.checkpoint_id
        # A failure of before stays until a run gets past it.
        failure = claim.task.error
        if ended == RETURNED:
            failure = None
        elif ended == FAILED and error is not None:
            failure = {"type": type(error).__name__, "text": _text(error), "checkpoint_id": last}
        if not ended or isinstance(error, StoreError):
            # A store that failed has stopped the graph somewhere: it has not come to an end of its own.
            last = None
        await claim.release(ended, failure, begun=head is not None, last=last)
    except (StoreError, TaskLost):
        logger.warning("how the run of thread %r ended could not be kept", claim.task_id, exc_info=True)


async def give_back(claim: Claim) -> None:
    """Let a claim go with which nothing was run. If that fails, it runs out by itself."""
    try:
        await claim.release(claim.task.ended, claim.task.error, begun=False, last=claim.task.last)
    except (StoreError, TaskLost):
        logger.warning("the claim of thread %r could not be given back", claim.task_id, exc_info=True)


def pauses(longest: float = _PAUSE_MAX) -> Iterator[float]:
    """Yield how long to wait before looking again: longer each time, and never the same for two that wait."""
    pause = _PAUSE_FIRST
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # no secret
        pause = min(pause * 1.5, longest)


def checkpoint_id(state: Any) -> str | None:
    """Return the checkpoint that a state is of; None if there is none."""
    if state.created_at is None:
        return None
    found: str | None = state.config["configurable"].get("checkpoint_id")
    return found


def is_finished(state: Any) -> bool:
    """Whether nothing is left to run."""
    # `next` leaves out what has run but is not part of a checkpoint yet; `tasks` does not.
    return checkpoint_id(state) is not None and not state.tasks


def nodes_that_ran_last(graph: Any, saved: Any) -> list[str]:
    """Return the nodes that ran right before a checkpoint was saved."""
    if saved is None:
        return []
    last: dict[str, Any] = {}
    for name, versions in saved.checkpoint["versions_seen"].items():
        if name in graph.nodes and name != "__start__" and versions:
            last[name] = max(versions.values())
    newest = max(last.values(), default=None)
    return sorted(name for name in last if last[name] == newest)


def output(graph: Any, state: Any) -> Any:
    """Return the values of a state as the graph itself would."""
    names = graph.output_channels
    if isinstance(names, str) or not isinstance(state.values, Mapping):
        return state.values
    return {name: state.values[name] for name in names if name in state.values}


def with_name(answer: Any, state: Any) -> Any:
    """Return an answer with the name of its question, where only one is asked.

    Without a name it would answer the node's next question too, if the node fails in between.
    """
    asked = [found.id for found in state.interrupts]
    if len(asked) == 1 and not _is_by_name(answer):
        return {asked[0]: answer}
    return answer


def _is_by_name(answer: Any) -> bool:
    """Whether answers are given by the ids of their questions, as LangGraph tells it."""
    if not isinstance(answer, Mapping) or not answer:
        return False
    return all(isinstance(name, str) and _INTERRUPT_ID.fullmatch(name) is not None for name in answer)


def is_interruption(error: Exception) -> bool:
    """Whether a run was ended from outside, and did not fail: it can be resumed."""
    # A graph that is asked to drain stops between two steps. By name: LangGraph need not be imported for this.
    return is_ending() or any(cls.__name__ == "GraphDrained" for cls in type(error).__mro__)


def is_ending() -> bool:
    """Whether this process is about to end: then nodes cannot be started any more, which is no failure of theirs."""
    return not threading.main_thread().is_alive()


def _text(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:
        text = "its text cannot be read"
    return text.encode("utf-8", "replace").decode()[:10_000]
