"""`send`: one turn of a conversation that cannot be lost, and does not get in the way of another.

LangGraph keeps what a node has written before it keeps the checkpoint that these writes are part of. A process that is
killed in between leaves a thread that looks finished (`next` is empty, and the values are those after the step), though
it is not; the next input would drop these writes. So `send` finishes what is pending first, and decides by `tasks` and
by the record of the last run what that is. All of this happens behind the claim of the thread: see `claims`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from everstep.errors import (
    EverstepError,
    HeadMoved,
    InvalidInput,
    PendingTurnFailed,
    TaskLost,
    TaskRunning,
    ThreadBusy,
    ThreadLost,
)
from everstep.langgraph import configs, runs
from everstep.langgraph.runs import Awaiting, Blocking, Face
from everstep.langgraph.saver import HarnessCheckpointer
from everstep.repository.claims import FAILED, Claim, Task
from everstep.runtime import checks
from everstep.runtime.blocking import run_to_end
from everstep.runtime.queues import queues
from everstep.stores.protocol import Query, Stored

if TYPE_CHECKING:
    from langgraph.pregel import Pregel
    from langgraph.types import Command, GraphOutput
    from langgraph.typing import ContextT, InputT, OutputT, StateT

_PAUSE_MAX = 0.2
"""Between two looks at a claim. Everybody who waits looks about as often, so nobody waits for ever."""
_REQUEST_ID_BYTES_MAX = 2048
_ABOUT_THE_RESULT = frozenset(("stream_mode", "print_mode", "output_keys", "version"))
"""Options of `invoke` that say what is returned: a turn that is only finished returns nothing."""


@overload
def send(
    graph: Pregel[StateT, ContextT, InputT, OutputT],
    input: InputT | Command[Any] | None,
    config: Mapping[str, Any],
    *,
    request_id: str | None = None,
    timeout_seconds: float | None = 60.0,
    lease_seconds: float = 30.0,
    stream_mode: Literal["values"] = ...,
    version: Literal["v2"],
    **options: Any,
) -> GraphOutput[OutputT]: ...


@overload
def send(
    graph: Pregel[StateT, ContextT, InputT, OutputT],
    input: InputT | Command[Any] | None,
    config: Mapping[str, Any],
    *,
    request_id: str | None = None,
    timeout_seconds: float | None = 60.0,
    lease_seconds: float = 30.0,
    **options: Any,
) -> dict[str, Any] | Any: ...


def send(
    graph: Any,
    input: Any,  # noqa: A002  # LangGraph's name
    config: Mapping[str, Any],
    *,
    request_id: str | None = None,
    timeout_seconds: float | None = 60.0,
    lease_seconds: float = 30.0,
    **options: Any,
) -> Any:
    """Finish what is pending in the thread, run the graph with `input`, and return what `graph.invoke` returns.

    Calls for one thread line up, in this process and in others: each waits up to `timeout_seconds` for those before it
    (None: as long as it takes), and raises ThreadBusy after that. A call whose process has not renewed its claim for
    `lease_seconds` may be replaced; one whose process is known to be dead is replaced at once.

    `request_id` is a name for this input, new for each: if the same call is made again, because its process died or its
    answer was lost, the input is not taken again, and the result of its turn is returned.

    `options` are those of `invoke`. The durability is "sync" unless it is given: a node that has finished never runs
    again. See the documentation for questions (interrupts) and failures.
    """
    turn = _Turn(graph, input, config, request_id, timeout_seconds, lease_seconds, options)
    return run_to_end(turn.take(Blocking(turn.saver)))


@overload
async def asend(
    graph: Pregel[StateT, ContextT, InputT, OutputT],
    input: InputT | Command[Any] | None,
    config: Mapping[str, Any],
    *,
    request_id: str | None = None,
    timeout_seconds: float | None = 60.0,
    lease_seconds: float = 30.0,
    stream_mode: Literal["values"] = ...,
    version: Literal["v2"],
    **options: Any,
) -> GraphOutput[OutputT]: ...


@overload
async def asend(
    graph: Pregel[StateT, ContextT, InputT, OutputT],
    input: InputT | Command[Any] | None,
    config: Mapping[str, Any],
    *,
    request_id: str | None = None,
    timeout_seconds: float | None = 60.0,
    lease_seconds: float = 30.0,
    **options: Any,
) -> dict[str, Any] | Any: ...


async def asend(
    graph: Any,
    input: Any,  # noqa: A002  # LangGraph's name
    config: Mapping[str, Any],
    *,
    request_id: str | None = None,
    timeout_seconds: float | None = 60.0,
    lease_seconds: float = 30.0,
    **options: Any,
) -> Any:
    """Finish what is pending in the thread, run the graph with `input`, and return what `graph.ainvoke` returns.

    See `send`.
    """
    turn = _Turn(graph, input, config, request_id, timeout_seconds, lease_seconds, options)
    return await turn.take(Awaiting(turn.saver))


class _Turn:
    """One call of `send`."""

    def __init__(
        self,
        graph: Any,
        given: Any,
        config: Mapping[str, Any],
        request_id: str | None,
        timeout_seconds: float | None,
        lease_seconds: float,
        options: Mapping[str, Any],
    ) -> None:
        self.saver = _saver_of(graph)
        self._graph = graph
        self._given = given
        self._thread_id = _thread_id_of(config)
        self._config = dict(config)
        if request_id is not None:
            if given is None:
                raise InvalidInput("request_id is the name of an input, and there is none")
            self._config = _with_request_id(self._config, _checked_request_id(request_id))
        self._request_id = request_id
        if timeout_seconds is not None:
            timeout_seconds = checks.seconds(timeout_seconds, "timeout_seconds")
        self._timeout = timeout_seconds
        self._lease = checks.seconds(lease_seconds, "lease_seconds", above_zero=True)
        self._options = {"durability": "sync", **options}

    async def take(self, face: Face) -> Any:
        """Wait for the thread, and run."""
        end = time.monotonic() + self._timeout if self._timeout is not None else None
        key = id(self.saver.backend.store), self._thread_id
        place = queues.join(key)
        try:
            try:
                await face.turn(place, self._timeout)
            except TimeoutError:
                raise ThreadBusy(self._thread_id, self._timeout) from None
            before, claim = await self._claim(face, end)
            try:
                return await runs.run(face, claim, self._graph, lambda fenced: self._run(face, fenced, before))
            except TaskLost as exc:
                raise ThreadLost(self._thread_id) from exc
        finally:
            queues.leave(key, place)

    async def _claim(self, face: Face, end: float | None) -> tuple[Task | None, Claim]:
        """Return what is known of the last run, and the claim of the thread, as soon as nobody else has it."""
        for pause in runs.pauses(_PAUSE_MAX):
            found = await face.claims.find(self._thread_id)
            before = found.task if found is not None else None
            if before is None:
                # A thread that is none of LangGraph's is refused before anything is written to it.
                await face.saved(self._config)
            if before is None or not before.runs:
                try:
                    claim = await runs.take(face, self._thread_id, found, self._lease, is_task=False)
                except (HeadMoved, TaskRunning):
                    pass  # somebody else was first
                else:
                    return before, claim
            await face.pause(self._shortened(pause, end))
        raise RuntimeError("waiting has no end")

    def _shortened(self, pause: float, end: float | None) -> float:
        """Return how long to pause, so that the caller waits no longer than it wants to."""
        if end is None:
            return pause
        left = end - time.monotonic()
        if left <= 0:
            raise ThreadBusy(self._thread_id, self._timeout)
        return min(pause, left)

    async def _run(self, face: Face, graph: Any, before: Task | None) -> Any:
        """Run the graph as the owner of the claim."""
        if self._given is None:  # to go on is all that was asked for
            return await self._invoke(face, graph, None)
        await self._finish(face, graph, before)
        if self._request_id is not None:
            taken = await self._find_taken(face, self._request_id)
            if taken is not None:
                return await self._result_of(face, graph, taken)
        if getattr(self._given, "resume", None) is not None:
            state = await face.state(graph, self._config)
            answer = runs.with_name(self._given.resume, state)
            return await self._invoke(face, graph, dataclasses.replace(self._given, resume=answer))
        return await self._invoke(face, graph, self._given)

    async def _invoke(self, face: Face, graph: Any, given: Any) -> Any:
        if given is None:
            return await runs.go_on(face, graph, self._config, **self._options)
        return await face.invoke(graph, given, self._config, **self._options)

    # -- what is pending

    async def _finish(self, face: Face, graph: Any, before: Task | None) -> None:
        """Run to its end, or to a question, what an earlier run has begun and could not finish."""
        try:
            if await self._is_cut_off(face, graph, before):
                options = {name: value for name, value in self._options.items() if name not in _ABOUT_THE_RESULT}
                await runs.go_on(face, graph, _for_another_turn(self._config), **options)
        except EverstepError:
            raise
        except Exception as error:
            if runs.is_interruption(error):
                raise
            raise PendingTurnFailed(self._thread_id, error) from error

    async def _is_cut_off(self, face: Face, graph: Any, before: Task | None) -> bool:
        """Whether the last run of the thread was ended from outside, at a place where nobody meant it to stop."""
        head = await face.store.read(self._thread_id, writes=True)
        if head is None:
            return False
        has_ended = _ended_at(before, head.stored.record.key.checkpoint_id)
        if has_ended:
            if before is not None and before.ended == FAILED:
                # Its caller got the error. Such a state may not even be readable.
                return False
            if not head.writes:
                # It stopped by itself, and no node has run since: most turns begin so.
                return False
        state = await face.state(graph, self._config)
        if not state.tasks:
            return False
        if not state.next:
            # Every node has run, and no checkpoint has taken that in: it looks finished, but is not.
            return True
        if has_ended:
            # It stopped by itself, before nodes that have not run yet.
            return False
        saved = await face.saved(self._config)
        if await self._is_at_breakpoint(face, graph, state, saved):
            return False
        if before is not None and (before.owner is not None or not before.ended):
            # The record of the last run says that it was not ended.
            return True
        return not _has_reason_to_wait(state, saved)

    async def _is_at_breakpoint(self, face: Face, graph: Any, state: Any, saved: Any) -> bool:
        """Whether the graph, or one inside it, stopped before or after a node because it was told to."""
        before = self._options.get("interrupt_before") or graph.interrupt_before_nodes
        after = self._options.get("interrupt_after") or graph.interrupt_after_nodes
        if _is_told_to_stop(graph, state, saved, before, after):
            return True
        return await self._is_inside_at_breakpoint(face, graph, state)

    async def _is_inside_at_breakpoint(self, face: Face, graph: Any, state: Any) -> bool:
        """Whether a graph that is a node of this one stopped at a breakpoint of its own."""
        inside = dict(graph.get_subgraphs())
        for task in state.tasks:
            if not isinstance(task.state, Mapping) or task.name not in inside:
                continue
            inner = inside[task.name]
            saved = await face.saved(task.state)
            if saved is None:  # it has not begun
                continue
            inner_state = await face.state(self._graph, task.state)
            if _is_told_to_stop(inner, inner_state, saved, inner.interrupt_before_nodes, inner.interrupt_after_nodes):
                return True
            if await self._is_inside_at_breakpoint(face, inner, inner_state):
                return True
        return False

    # -- what was sent before

    async def _find_taken(self, face: Face, request_id: str) -> Stored | None:
        """Return the last checkpoint of the turn that was sent under this name; None if there is no such turn."""
        query = Query(thread_id=self._thread_id, filter={configs.REQUEST_ID: request_id}, limit=1)
        found = await face.store.list_checkpoints(query)
        return next(iter(found), None)

    async def _result_of(self, face: Face, graph: Any, taken: Stored) -> Any:
        """Return what a turn came to that was sent before; one that failed is tried again if it was the last."""
        query = Query(
            thread_id=self._thread_id, after_seq=taken.seq, filter={"source": "input"}, order="oldest", limit=1
        )
        later = await face.store.list_checkpoints(query)
        if later:
            # The next input follows the last checkpoint of this turn.
            parents = later[0].record.parents or (taken.record.key,)
            state = await face.state(graph, configs.config_of(*parents[0]))
            return self._returned(graph, state)
        state = await face.state(graph, self._config)
        saved = await face.saved(self._config)
        if state.interrupts or await self._is_at_breakpoint(face, graph, state, saved):
            return self._returned(graph, state)
        return await self._invoke(face, graph, None)

    def _returned(self, graph: Any, state: Any) -> Any:
        """Return a state in the form of a result of `invoke`."""
        values = runs.output(graph, state)
        if self._options.get("version") == "v2":
            from langgraph.types import GraphOutput

            return GraphOutput(value=values, interrupts=tuple(state.interrupts))
        if not state.interrupts:
            return values
        asked = {"__interrupt__": list(state.interrupts)}
        return {**values, **asked} if isinstance(values, dict) else asked


def _saver_of(graph: Any) -> HarnessCheckpointer:
    if hasattr(graph, "compile"):
        raise InvalidInput("the graph is not compiled; pass graph.compile(checkpointer=...)")
    if not all(hasattr(graph, name) for name in ("copy", "invoke", "get_state", "output_channels")):
        raise InvalidInput(f"graph is a compiled graph of LangGraph, not {type(graph).__name__}")
    saver = graph.checkpointer
    if isinstance(saver, HarnessCheckpointer):
        return saver
    if saver is None or isinstance(saver, bool):
        raise InvalidInput("the graph has no checkpointer; compile it with a HarnessCheckpointer")
    raise InvalidInput(
        f"send needs a graph with a HarnessCheckpointer, and this one has a {type(saver).__name__}; "
        "import_langgraph brings its threads over"
    )


def _thread_id_of(config: Mapping[str, Any]) -> str:
    inner = configs.configurable(config)
    if configs.checkpoint_id(inner) is not None:
        raise InvalidInput(
            "send goes on at the end of the thread, and the config names a checkpoint; leave checkpoint_id out, or "
            "take the thread back to it first: saver.engine.sync.rewind(checkpoint_id, thread_id=...)"
        )
    if configs.namespace(inner):
        raise InvalidInput(
            "the config is that of a running graph (it has a checkpoint_ns); inside a node call graph.invoke, or send "
            "to another thread with a config of its own"
        )
    return configs.thread_id(inner)


def _checked_request_id(request_id: str) -> str:
    if not checks.text(request_id, "request_id", _REQUEST_ID_BYTES_MAX) or "\x00" in request_id:
        raise InvalidInput(f"request_id is a name for the input, not {checks.shown(request_id)}")
    return request_id


def _ended_at(task: Task | None, checkpoint_id: str) -> bool:
    """Whether the last run came to an end of its own, at this checkpoint."""
    return task is not None and task.owner is None and task.last == checkpoint_id


def _has_reason_to_wait(state: Any, saved: Any) -> bool:
    """Whether a state explains by itself why nothing runs: it waits for an answer, has failed, or was made by hand.

    This decides where nothing is known of who was here last.
    """
    if state.interrupts or any(task.error is not None for task in state.tasks):
        return True
    return saved.metadata.get("source") in ("update", "fork")


def _with_request_id(config: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """Return a config whose run keeps the caller's name for the turn with each checkpoint."""
    metadata = config.get("metadata") or {}
    return {**config, "metadata": {**metadata, configs.REQUEST_ID: request_id}}


def _for_another_turn(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the names of this turn.

    LangGraph would take the input of this turn for a part of the run before if both had the same id.
    """
    kept = {name: value for name, value in config.items() if name != "run_id"}
    for part in ("metadata", "configurable"):
        given = config.get(part) or {}
        kept[part] = {name: value for name, value in given.items() if name not in ("run_id", configs.REQUEST_ID)}
    return kept


def _is_told_to_stop(
    graph: Any, state: Any, saved: Any, before: str | Sequence[str], after: str | Sequence[str]
) -> bool:
    """Whether LangGraph stops at this checkpoint, before or after one of these nodes ("*": of all)."""
    if not before and not after:
        return False
    if not state.tasks or _has_begun(state, saved) or _is_told_to_go_on(saved.checkpoint):
        return False
    if _names_one_of(before, [task.name for task in state.tasks]):
        return True
    # After an input no node has run yet.
    has_run = saved.metadata.get("source") == "loop"
    return has_run and _names_one_of(after, runs.nodes_that_ran_last(graph, saved))


def _has_begun(state: Any, saved: Any) -> bool:
    """Whether one of the tasks that come next has written something already."""
    waiting = {task.id for task in state.tasks}
    return any(task_id in waiting for task_id, _, _ in saved.pending_writes or ())


def _is_told_to_go_on(checkpoint: Mapping[str, Any]) -> bool:
    """Whether somebody has resumed from this checkpoint: LangGraph notes the versions then, as seen by interrupts."""
    passed = checkpoint["versions_seen"].get("__interrupt__", {})
    for channel, version in checkpoint["channel_versions"].items():
        if channel not in passed or version > passed[channel]:
            return False
    return True


def _names_one_of(breakpoints: str | Sequence[str], nodes: Sequence[str]) -> bool:
    if breakpoints == "*":
        return bool(nodes)
    return any(node in breakpoints for node in nodes)
