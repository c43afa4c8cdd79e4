"""Workflows that outlive their process: tasks that are created, looked at, resumed, rolled back and deleted.

A task is a thread of the checkpointer: its checkpoints are LangGraph's, and what is known besides (who runs it, how it
ended) is one record beside them: see `claims`. Each method is written once, as a coroutine over a face; only the graph
itself is called in two ways.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
import time
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, Literal, NotRequired, TypedDict

# The standard one has no defaults before Python 3.13.
from typing_extensions import TypeVar

from everstep.errors import (
    CheckpointNotFound,
    HeadMoved,
    IdTaken,
    InvalidInput,
    MissingDependency,
    TaskError,
    TaskExists,
    TaskLost,
    TaskNotFound,
    TaskRunning,
    UnstorableValue,
)
from everstep.langgraph import runs
from everstep.langgraph.cleanup import cleanup_old_checkpoints, cleanup_old_checkpoints_sync
from everstep.langgraph.graphs import Builder, Graph
from everstep.langgraph.retries import asafe_invoke, safe_invoke
from everstep.langgraph.runs import Face
from everstep.langgraph.saver import HarnessCheckpointer
from everstep.repository.claims import FAILED, RETURNED, Claim, Found
from everstep.repository.new_names import under_new_name
from everstep.repository.turns import BEATEN_MAX, overtaken
from everstep.runtime import checks
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Search

__all__ = [
    "TaskCheckpoint",
    "TaskError",
    "TaskExists",
    "TaskLost",
    "TaskManager",
    "TaskNotFound",
    "TaskRunning",
    "TaskStatus",
    "asafe_invoke",
    "cleanup_old_checkpoints",
    "cleanup_old_checkpoints_sync",
    "safe_invoke",
]

logger = logging.getLogger("everstep")

V = TypeVar("V", default=dict[str, Any])

_ABSENT: Final = object()
_LOGS = 5
_PAGE = 100


class TaskStatus(TypedDict):
    """The status of a task. One that is not there has the first two keys only."""

    task_id: str
    status: Literal["running", "finished", "interrupted", "failed", "stopped", "not_found"]
    stage: NotRequired[Any]
    """The state's own `current_stage`, or the nodes that ran last; None if none did."""
    next: NotRequired[list[str]]
    """The nodes that are to run."""
    updated_at: NotRequired[str | None]
    logs: NotRequired[list[Any]]
    """The last few of the state's `logs`."""
    error: NotRequired[str | None]
    """The failure that the task has not got past."""
    interrupts: NotRequired[list[Any]]
    """The questions that wait for an answer."""


class TaskCheckpoint(TypedDict):
    """A checkpoint of a task: what ran before it, and what is to run after it."""

    checkpoint_id: str
    stage: Any
    next: list[str]
    step: int | None
    source: str | None
    created_at: str | None


class TaskManager(Generic[V]):
    """Runs a graph as tasks that can be resumed by any process. Each method has an `a` twin for event loops.

    One manager is for one graph; any number of managers, threads and processes may use it with the same store.
    """

    def __init__(
        self,
        graph: Graph[V] | Builder[V],
        checkpointer: HarnessCheckpointer,
        *,
        config: Mapping[str, Any] | None = None,
        context: Any = None,
        durability: str = "sync",
        lease_seconds: float = 30.0,
    ) -> None:
        """Run `graph`, compiled or not, with this checkpointer; a compiled graph is copied, not changed.

        `config` and `context` are passed to every run. With the default `durability` a node that has finished never
        runs again; LangGraph's "async" saves it while the next one runs already. A process that has not renewed its
        claim for `lease_seconds` may be replaced; one that is known to be dead is replaced at once.
        """
        if not isinstance(checkpointer, HarnessCheckpointer):
            raise InvalidInput(f"checkpointer is a HarnessCheckpointer, not {type(checkpointer).__name__}")
        if config is not None and not isinstance(config, Mapping):
            raise InvalidInput(f"config is a dict, not {type(config).__name__}")
        self._saver = checkpointer
        self._lease = checks.seconds(lease_seconds, "lease_seconds", above_zero=True)
        self._graph = _compiled(graph, checkpointer)
        self._config = dict(config or {})
        self._options: dict[str, Any] = {"durability": durability}
        if context is not None:
            self._options["context"] = context
        self._blocking = runs.Blocking(checkpointer)
        self._awaiting = runs.Awaiting(checkpointer)
        self._started: set[asyncio.Task[Any]] = set()

    # -- running

    def create_task(self, input: Any, *, task_id: str | None = None) -> str:  # noqa: A002  # the published name
        """Begin a task, run it to its end, an interrupt or a failure, and return its id.

        A failure is logged and kept: `get_task_status` shows it, `resume_task` goes on from there. TaskExists if the
        id is taken.
        """
        return run_to_end(self._create(self._blocking, input, task_id))

    async def acreate_task(self, input: Any, *, task_id: str | None = None) -> str:  # noqa: A002  # the same
        """Begin a task, run it to its end, an interrupt or a failure, and return its id; see `create_task`."""
        return await self._create(self._awaiting, input, task_id)

    def start_task(self, input: Any, *, task_id: str | None = None) -> str:  # noqa: A002  # the same
        """Begin a task that runs on a thread of its own, and return its id once it is claimed.

        The thread does not keep the process alive, since at its end nodes cannot be started any more: what is not
        finished then can be resumed. `wait_task` waits.
        """
        claim = run_to_end(self._begin(self._blocking, input, task_id))

        def run() -> None:
            run_to_end(self._logged(self._run(self._blocking, claim, input), claim.task_id))

        context = contextvars.copy_context()
        name = f"everstep-task-{claim.task_id}"
        threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
        return claim.task_id

    async def astart_task(self, input: Any, *, task_id: str | None = None) -> str:  # noqa: A002  # the same
        """Begin a task that runs in the event loop, and return its id once it is claimed.

        If the loop ends before the task does, it can be resumed.
        """
        claim = await self._begin(self._awaiting, input, task_id)
        running = asyncio.create_task(self._logged(self._run(self._awaiting, claim, input), claim.task_id))
        self._started.add(running)
        running.add_done_callback(self._started.discard)
        return claim.task_id

    def resume_task(self, task_id: str, resume: Any = _ABSENT, *, wait: bool = False) -> V:
        """Go on with a task where it stopped, and return its values.

        `resume` answers an interrupt. A task that is finished returns its values and runs nothing; one that somebody
        else runs is TaskRunning, or waited for. A failure is kept as by `create_task`, and raised: there is no id to
        return, and values of a failed run are none.
        """
        return run_to_end(self._resume(self._blocking, task_id, resume, wait))

    async def aresume_task(self, task_id: str, resume: Any = _ABSENT, *, wait: bool = False) -> V:
        """Go on with a task where it stopped, and return its values; see `resume_task`."""
        return await self._resume(self._awaiting, task_id, resume, wait)

    def rollback_task(self, task_id: str, checkpoint_id: str, *, wait: bool = False) -> V:
        """Take a task back to a checkpoint of its history, go on from there, and return its values.

        What came later is hidden: the engine's `undo` brings it back.
        """
        return run_to_end(self._rollback(self._blocking, task_id, checkpoint_id, wait))

    async def arollback_task(self, task_id: str, checkpoint_id: str, *, wait: bool = False) -> V:
        """Take a task back to a checkpoint, go on from there, and return its values; see `rollback_task`."""
        return await self._rollback(self._awaiting, task_id, checkpoint_id, wait)

    def wait_task(self, task_id: str, timeout: float | None = None) -> TaskStatus:
        """Wait until nobody runs the task, or for so many seconds, and return its status."""
        return run_to_end(self._wait(self._blocking, task_id, timeout))

    async def await_task(self, task_id: str, timeout: float | None = None) -> TaskStatus:
        """Wait until nobody runs the task, or for so many seconds, and return its status."""
        return await self._wait(self._awaiting, task_id, timeout)

    # -- looking

    def get_task_status(self, task_id: str) -> TaskStatus:
        """Return the status of a task: see `TaskStatus` for the keys."""
        return run_to_end(self._status(self._blocking, task_id))

    async def aget_task_status(self, task_id: str) -> TaskStatus:
        """Return the status of a task: see `TaskStatus` for the keys."""
        return await self._status(self._awaiting, task_id)

    def get_task_history(self, task_id: str, *, limit: int | None = None) -> list[TaskCheckpoint]:
        """Return the task's checkpoints, the newest first: what ran before each, and what is to run after it."""
        return run_to_end(self._history(self._blocking, task_id, limit))

    async def aget_task_history(self, task_id: str, *, limit: int | None = None) -> list[TaskCheckpoint]:
        """Return the task's checkpoints, the newest first: what ran before each, and what is to run after it."""
        return await self._history(self._awaiting, task_id, limit)

    def list_tasks(self, limit: int = 50, offset: int = 0) -> list[TaskStatus]:
        """Return the status of each task, the most recently active first. Threads that are no tasks are left out."""
        return run_to_end(self._list(self._blocking, limit, offset))

    async def alist_tasks(self, limit: int = 50, offset: int = 0) -> list[TaskStatus]:
        """Return the status of each task, the most recently active first. Threads that are no tasks are left out."""
        return await self._list(self._awaiting, limit, offset)

    # -- deleting

    def delete_task(self, task_id: str, *, force: bool = False) -> bool:
        """Delete a task with all its checkpoints, and return whether there was one.

        TaskRunning while somebody runs it, unless `force`: then the run stops with TaskLost at its next checkpoint.
        """
        return run_to_end(self._delete(self._blocking, task_id, force))

    async def adelete_task(self, task_id: str, *, force: bool = False) -> bool:
        """Delete a task with all its checkpoints, and return whether there was one; see `delete_task`."""
        return await self._delete(self._awaiting, task_id, force)

    # -- each method once

    async def _create(self, face: Face, given: Any, task_id: str | None) -> str:
        claim = await self._begin(face, given, task_id)
        try:
            await self._run(face, claim, given)
        except TaskLost:
            raise
        except Exception:
            if runs.is_ending():
                raise
            logger.exception("task %r failed; resume_task goes on with it", claim.task_id)
        return claim.task_id

    async def _logged(self, run: Coroutine[Any, Any, Any], task_id: str) -> None:
        """Do a run that nobody waits for."""
        try:
            await run
        except Exception:
            if not runs.is_ending():
                logger.exception("task %r failed; resume_task goes on with it", task_id)

    async def _begin(self, face: Face, given: Any, task_id: str | None) -> Claim:
        """Claim a new task."""
        if task_id is not None:
            return await self._begin_as(face, given, checks.thread_id(task_id))

        async def begin_under_new_name() -> Claim:
            try:
                return await self._begin_as(face, given, str(uuid.uuid4()))
            except TaskExists as exc:
                raise IdTaken(str(exc)) from None

        return await under_new_name(begin_under_new_name)

    async def _begin_as(self, face: Face, given: Any, task_id: str) -> Claim:
        if await face.store.read(task_id) is not None:
            raise TaskExists(task_id)
        try:
            return await self._take(face, task_id, None, self._kept(given))
        except HeadMoved:
            raise TaskExists(task_id) from None

    def _kept(self, given: Any) -> dict[str, Any]:
        """Return an input as it is kept until there is a checkpoint."""
        try:
            form, packed = self._saver.channels.packed(given, "input")
        except (UnstorableValue, InvalidInput) as exc:
            return {"refused": str(exc)}
        return {"form": form, "value": packed}

    async def _run(self, face: Face, claim: Claim, given: Any) -> V:
        """Run the graph as the owner of a claim, and let the claim go in the end, whatever that is."""

        async def work(graph: Any) -> Any:
            config = self._of(claim.task_id)
            if given is None:
                return await runs.go_on(face, graph, config, **self._options)
            return await face.invoke(graph, given, config, **self._options)

        return await runs.run(face, claim, self._graph, work)

    async def _take(self, face: Face, task_id: str, found: Found | None, given: Any = None) -> Claim:
        return await runs.take(face, task_id, found, self._lease, given)

    async def _claimed(self, face: Face, task_id: str, wait: bool) -> tuple[Claim | None, Any]:
        """Return the claim of a task that is not finished, and its state; of a finished one only the state."""
        beaten = 0
        for pause in runs.pauses():
            found = await face.claims.find(task_id)
            if found is None or not found.task.runs:
                state = await face.state(self._graph, self._of(task_id))
                if found is None and runs.checkpoint_id(state) is None:
                    raise TaskNotFound(task_id)
                if runs.is_finished(state):
                    return None, state
                try:
                    claim = await self._take(face, task_id, found)
                except HeadMoved:
                    # Somebody else was first: what that one does is looked at, without a pause.
                    beaten += 1
                    if beaten == BEATEN_MAX:
                        raise overtaken("a claim", task_id) from None
                    continue
                return claim, await self._state_of_claimed(face, claim)
            if not wait and found.task.owner is not None:
                raise TaskRunning(task_id, found.task.owner.host, found.task.owner.pid)
            await face.pause(pause)
        raise RuntimeError("waiting has no end")

    async def _state_of_claimed(self, face: Face, claim: Claim) -> Any:
        """Return the state of a task, read once more: before it was claimed, somebody else may have gone on with it."""
        try:
            return await face.state(self._graph, self._of(claim.task_id))
        except BaseException:
            await face.to_end(runs.give_back(claim))
            raise

    async def _resume(self, face: Face, task_id: str, resume: Any, wait: bool) -> V:
        task_id = checks.thread_id(task_id)
        claim, state = await self._claimed(face, task_id, wait)
        if claim is None:
            return self._output(state)
        try:
            given = self._going_on(claim, state, resume)
        except BaseException:
            await face.to_end(runs.give_back(claim))
            raise
        # By somebody else, just before it was claimed.
        if runs.is_finished(state):
            await face.to_end(runs.let_go(face, claim, RETURNED))
            return self._output(state)
        return await self._run(face, claim, given)

    def _going_on(self, claim: Claim, state: Any, resume: Any) -> Any:
        """Return what a task is to go on with."""
        if runs.checkpoint_id(state) is not None:
            # To LangGraph None is no answer, unless it is given by the name of the question.
            if resume is None:
                resume = dict.fromkeys(found.id for found in state.interrupts) or _ABSENT
            if resume is _ABSENT:
                return None
            return _command()(resume=runs.with_name(resume, state))
        if resume is not _ABSENT:
            raise InvalidInput(f"task {claim.task_id!r} has not begun yet: there is nothing to answer")
        kept = claim.task.input or {"refused": "it was not kept"}
        if "refused" in kept:
            raise InvalidInput(
                f"task {claim.task_id!r} failed before its first checkpoint, and its input could not be stored "
                f"({kept['refused']}); delete it and create it again"
            )
        return self._saver.channels.unpacked(kept["form"], kept["value"])

    async def _rollback(self, face: Face, task_id: str, checkpoint_id: str, wait: bool) -> V:
        task_id = checks.thread_id(task_id)
        checkpoint_id = checks.checkpoint_id(checkpoint_id)
        if await face.claims.find(task_id) is None and await face.store.read(task_id, "", checkpoint_id) is None:
            # Claimed, a thread that is none would become a task.
            if await face.store.read(task_id) is None:
                raise TaskNotFound(task_id)
            raise CheckpointNotFound(checkpoint_id, task_id)
        claim = await self._any_claim(face, task_id, wait)
        try:
            await face.rewind(task_id, checkpoint_id)
            state = await face.state(self._graph, self._of(task_id))
        except BaseException:
            await face.to_end(runs.give_back(claim))
            raise
        if runs.is_finished(state):
            await face.to_end(runs.let_go(face, claim, RETURNED))
            return self._output(state)
        return await self._run(face, claim, None)

    async def _any_claim(self, face: Face, task_id: str, wait: bool) -> Claim:
        """Return the claim of a task, finished or not."""
        beaten = 0
        for pause in runs.pauses():
            found = await face.claims.find(task_id)
            if found is None and await face.store.read(task_id) is None:
                raise TaskNotFound(task_id)
            try:
                return await self._take(face, task_id, found)
            except HeadMoved:
                beaten += 1
                if beaten == BEATEN_MAX:
                    raise overtaken("a claim", task_id) from None
                continue
            except TaskRunning:
                if not wait:
                    raise
            await face.pause(pause)
        raise RuntimeError("waiting has no end")

    async def _wait(self, face: Face, task_id: str, timeout: float | None) -> TaskStatus:
        task_id = checks.thread_id(task_id)
        end = time.monotonic() + timeout if timeout is not None else math.inf
        for pause in runs.pauses():
            found = await face.claims.find(task_id)
            left = end - time.monotonic()
            if found is None or not found.task.runs or left <= 0:
                break
            await face.pause(min(pause, left))
        return await self._status(face, task_id)

    async def _status(self, face: Face, task_id: str) -> TaskStatus:
        task_id = checks.thread_id(task_id)
        found = await face.claims.find(task_id)
        state = await face.state(self._graph, self._of(task_id))
        last = runs.checkpoint_id(state)
        if found is None and last is None:
            return {"task_id": task_id, "status": "not_found"}
        saved = await face.saved(state.config) if last is not None else None
        updated_at = state.created_at
        if not updated_at and found is not None:
            # Nothing but the claim is stored of it yet.
            updated_at = found.stored.record.created_at
        values = _fields_of(state)
        return {
            "task_id": task_id,
            "status": _status(found, state),
            "stage": _stage(self._graph, values, saved),
            "next": list(state.next or dict.fromkeys(task.name for task in state.tasks)),
            "updated_at": updated_at,
            "logs": _last_logs(values),
            "error": _error(found, state),
            "interrupts": [asked.value for asked in state.interrupts],
        }

    async def _history(self, face: Face, task_id: str, limit: int | None) -> list[TaskCheckpoint]:
        config = self._of(checks.thread_id(task_id))
        if limit is not None:
            limit = checks.count(limit, "limit")
        states = await face.history(self._graph, config, limit)
        here = {"configurable": {**config["configurable"], "checkpoint_ns": ""}}
        saved = {each.checkpoint_id: each for each in await face.listed(here, limit)}
        found: list[TaskCheckpoint] = []
        for state in states:
            name = state.config["configurable"]["checkpoint_id"]
            metadata = state.metadata or {}
            found.append(
                {
                    "checkpoint_id": name,
                    "stage": _stage(self._graph, _fields_of(state), saved.get(name)),
                    "next": list(state.next),
                    "step": metadata.get("step"),
                    "source": metadata.get("source"),
                    "created_at": state.created_at,
                }
            )
        return found

    async def _list(self, face: Face, limit: int, offset: int) -> list[TaskStatus]:
        limit = checks.count(limit, "limit")
        offset = checks.count(offset, "offset")
        found: list[str] = []
        search = Search(limit=_PAGE)
        while len(found) < offset + limit:
            page = await face.store.search(search)
            for hit in page:
                name = hit.position.thread_id
                if hit.damage is not None:
                    logger.warning("thread %r is damaged, so it is not listed: %s", name, hit.damage.reason)
                elif len(found) < offset + limit and await _is_task(face, name):
                    found.append(name)
            if len(page) < _PAGE:
                break
            search = replace(search, after=page[-1].position)
        listed = [await self._status(face, name) for name in found[offset:]]
        return [status for status in listed if status["status"] != "not_found"]

    async def _delete(self, face: Face, task_id: str, force: bool) -> bool:
        task_id = checks.thread_id(task_id)
        if not force:
            try:
                # So that nobody begins meanwhile.
                await self._any_claim(face, task_id, wait=False)
            except TaskNotFound:
                return False
        elif await face.claims.find(task_id) is None and await face.store.read(task_id) is None:
            return False
        await face.delete(task_id)
        return True

    def _output(self, state: Any) -> V:
        values: V = runs.output(self._graph, state)
        return values

    def _of(self, task_id: str) -> dict[str, Any]:
        """Return the config of a task."""
        inner = {**self._config.get("configurable", {}), "thread_id": task_id}
        return {**self._config, "configurable": inner}


async def _is_task(face: Face, thread_id: str) -> bool:
    """Whether a thread is a task: not if a graph alone has run in it, or `send`."""
    found = await face.claims.find(thread_id)
    return found is not None and found.task.is_task


def _fields_of(state: Any) -> Mapping[str, Any]:
    """Return the values of a state by name; a graph whose state is one value has none."""
    return state.values if isinstance(state.values, Mapping) else {}


def _last_logs(values: Mapping[str, Any]) -> list[Any]:
    logs = values.get("logs")
    return list(logs)[-_LOGS:] if isinstance(logs, (list, tuple)) else []


def _compiled(graph: Any, checkpointer: HarnessCheckpointer) -> Any:
    if hasattr(graph, "compile"):
        return graph.compile(checkpointer=checkpointer)
    if not all(hasattr(graph, name) for name in ("copy", "invoke", "get_state", "output_channels")):
        raise InvalidInput(f"graph is a graph of LangGraph, compiled or not, not {type(graph).__name__}")
    return graph.copy({"checkpointer": checkpointer})


def _command() -> Any:
    try:
        from langgraph.types import Command
    except ImportError as exc:
        raise MissingDependency("langgraph", "langgraph") from exc
    return Command


def _status(
    found: Found | None, state: Any
) -> Literal["running", "finished", "interrupted", "failed", "stopped", "not_found"]:
    if found is not None and found.task.runs:
        return "running"
    if runs.is_finished(state):
        return "finished"
    if found is None:
        # A thread that no manager has run: only its state tells.
        if any(task.error is not None for task in state.tasks):
            return "failed"
        if state.interrupts:
            return "interrupted"
        return "stopped"
    # Its owner is gone, or let it go without an end.
    if found.task.owner is not None or not found.task.ended:
        return "stopped"
    if found.task.ended == FAILED:
        return "failed"
    return "interrupted"


def _error(found: Found | None, state: Any) -> str | None:
    """Return the failure that the task has not got past."""
    if runs.is_finished(state):
        return None
    if found is not None:
        if found.task.ended == RETURNED:
            return None
        kept = found.task.error
        if kept is not None and kept["checkpoint_id"] == runs.checkpoint_id(state):
            return f"{kept['type']}: {kept['text']}"
    for task in state.tasks:
        if task.error is not None:
            return str(task.error)
    return None


def _stage(graph: Any, values: Mapping[str, Any], saved: Any) -> Any:
    """Return the state's own `current_stage`, or the nodes that ran last; None if none did."""
    if values.get("current_stage") is not None:
        return values["current_stage"]
    return ", ".join(runs.nodes_that_ran_last(graph, saved)) or None
