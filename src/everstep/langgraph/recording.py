"""Steps inside nodes: called once and recorded, or given as they were recorded; effects that are performed once.

A step is known by its node's task, which is the same when the node runs again from the same checkpoint. An effect that
is performed once is known to the whole family of threads, as in a durable run: by its key, or by where in the graph it
stands. See `repository/effects.py`.
"""

from __future__ import annotations

import contextvars
import hashlib
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.durable import calling, failures, undoing
from everstep.durable.calling import Face, Options
from everstep.durable.entries import Arguments
from everstep.durable.replay import differences_of
from everstep.durable.unknown_effects import Unknown
from everstep.errors import EffectConflict, EffectUnknown, IdTaken, InvalidInput, ReplayMismatch
from everstep.history.ancestry import ancestry_of
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.nodes import Node
from everstep.langgraph.saved import KIND
from everstep.repository.effects import Effect, Effects, host_of
from everstep.runtime import checks
from everstep.stores.protocol import Key, Query, Stored

_STORED_SECONDS = 10.0
"""How long the checkpoint that a node runs from may take to be stored."""
_PAUSE_SECONDS_MAX = 0.05


# A step that is replayed asks for nothing: what it asks for when it is called must not shift the keys of others.
_around: contextvars.ContextVar[str] = contextvars.ContextVar("everstep_around_step", default="")


def scope_of_step() -> str:
    """Return what the keys of steps begin with that are asked for here: inside a step, with the key of that."""
    return _around.get()


class Call(NamedTuple):
    """A step that is asked for."""

    key: str
    """Among the steps of its node."""
    name: str
    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Options
    chosen: str | None = None
    """The key that it has in the whole family, if it was given one."""
    undo: Callable[..., Any] | None = None
    on_unknown: Any = "ask"


class _Answer(NamedTuple):
    """What a person has said of an effect."""

    of: int
    """How often it had been begun when that was asked."""
    value: Any


class _Bubble(NamedTuple):
    """What LangGraph raises to interrupt a node, or to leave it: no failure, and no result."""

    error: Exception


class Steps:
    """The steps of one node, on one face."""

    def __init__(self, node: Node, threads: Threads, face: Face) -> None:
        self._node = node
        self._threads = threads
        self._face = face
        self._repository = threads.repository
        self._store = threads.repository.store

    async def step(self, call: Call) -> Any:
        """Call a function and record what it came to, or give what is recorded."""
        await self._node.load(self._threads)
        arguments = Arguments.of(call.args, call.kwargs)
        if call.options.effect == "once":
            return await self._perform(call, arguments)
        key = call.key
        found = self._node.find(key)
        if found is not None and self._is_replayed(call, arguments, found.about):
            return self._replayed(key, found.about)
        name = f"{self._node.thread_id}/{self._node.task_id}/{key}/{arguments.digest[:16]}"
        outcome = await self._called(call, name)
        await self._node.record(self._threads, key, self._about(call, arguments, outcome))
        return _given(outcome)

    def _is_replayed(self, call: Call, arguments: Arguments, found: Mapping[str, Any]) -> bool:
        """Whether what is recorded is given; False: the function is called."""
        if found["status"] == "error" and self._node.has_ended_by(call.key):
            return False
        if found["args"] == arguments.digest:
            return True
        if call.options.effect == "none":
            return False
        what = f"has recorded step {call.key!r} of node {self._node.name!r} with other arguments than it asks for now"
        raise ReplayMismatch(
            self._node.thread_id, call.key, what, differences_of(found["shown"], arguments.shown), instead=_INSTEAD
        )

    def _replayed(self, key: str, found: Mapping[str, Any]) -> Any:
        if found["status"] == "ok":
            return self._unpacked(found)
        raise failures.made_again(self._node.thread_id, key, found["error"])

    async def _called(self, call: Call, step_key: str) -> calling.Outcome:
        function = _letting_through(call.function)
        around = _around.get()
        _around.set(f"{call.key}/")
        try:
            outcome = await calling.call(self._face, function, call.args, call.kwargs, call.options, step_key)
        finally:
            _around.set(around)
        if isinstance(outcome.result, _Bubble) and call.options.effect != "once":
            raise outcome.result.error
        return outcome

    # -- effects that are performed once

    async def _perform(self, call: Call, arguments: Arguments) -> Any:
        """Perform an effect, or give what became of it when it was performed before."""
        answers = self._answers(call)
        await self._until_stored()
        host, repeating = await self._family()
        key = call.chosen if call.chosen is not None else f"{await self._place()}/{call.key}"
        asked_as = f"{host}/{key}/{arguments.digest[:16]}"
        if repeating is not None:
            key = f"{repeating}\n{key}"
            # What shall happen once more is not what happened outside of this branch.
            asked_as = f"{asked_as}/{hashlib.sha256(repeating.encode()).hexdigest()[:12]}"
        if call.undo is not None:
            undoing.remember_again(call.undo, key, asked_as)
        effects = Effects(self._repository, host, self._threads.fence)
        before = await effects.find(key)
        step_key = undoing.performed_as(asked_as, undoing.times_undone(before))
        status = before.about["status"] if before is not None else ""
        if before is not None and status in ("begun", "done", "failed"):
            if before.about["args"] != arguments.digest:
                raise EffectConflict(self._node.thread_id, key, str(before.about["thread"]))
            if status == "done":
                return self._unpacked(before.values)
            if status == "failed" and not self._is_tried_again(call, before):
                raise failures.made_again(self._node.thread_id, call.key, before.values["error"])
            self._raise_caught(call, arguments)
            answer = await self._answer(call, arguments, step_key, before, answers)
            if answer["happened"]:
                await effects.end(before, "done", self._packed(call, answer.get("result")))
                return answer.get("result")
        begun = await self._begin(effects, key, call, arguments, asked_as, before)
        outcome = await self._called(call, step_key)
        return await self._end(effects, begun, call, arguments, outcome)

    def _raise_caught(self, call: Call, arguments: Arguments) -> None:
        """Raise what the node has caught: that it stays unknown whether an effect happened."""
        found = self._node.find(call.key)
        if found is None or found.about["status"] != "error" or self._node.has_ended_by(call.key):
            return
        if found.about["args"] == arguments.digest:
            raise failures.made_again(self._node.thread_id, call.key, found.about["error"])

    def _is_tried_again(self, call: Call, found: Effect) -> bool:
        return found.about.get("task") != self._node.task_id or self._node.has_ended_by(call.key)

    async def _begin(
        self, effects: Effects, key: str, call: Call, arguments: Arguments, asked_as: str, before: Effect | None
    ) -> Effect:
        about = {
            "args": arguments.digest,
            "thread": self._node.thread_id,
            "name": call.name,
            "undo": undoing.remember(call.undo, key, asked_as) if call.undo is not None else None,
            "undone": undoing.times_undone(before),
            "task": self._node.task_id,
            "checkpoint": self._node.checkpoint.checkpoint_id,
            "kind": KIND,
            "begun": _begun(before) + 1,
        }
        step_key = undoing.performed_as(asked_as, undoing.times_undone(before))
        values = {"step": key, "step_key": step_key, "asked_as": asked_as, **arguments.shown}
        try:
            return await effects.begin(key, about, values, before)
        except IdTaken:
            raise EffectUnknown(self._node.thread_id, key) from None

    async def _end(
        self, effects: Effects, begun: Effect, call: Call, arguments: Arguments, outcome: calling.Outcome
    ) -> Any:
        if isinstance(outcome.result, _Bubble):
            # It has asked a question, and is called again with the answer: as if it had not begun.
            await effects.end(begun, "interrupted", {})
            raise outcome.result.error
        if isinstance(outcome.error, calling.TimedOut):
            # Recorded, since the node may catch it and go on: then it is not asked about when the node runs again.
            unknown = EffectUnknown(self._node.thread_id, str(begun.values["step"]))
            unknown.__cause__ = outcome.error
            outcome = outcome._replace(error=unknown)
            await self._node.record(self._threads, call.key, self._about(call, arguments, outcome))
        elif outcome.error is not None:
            await effects.end(begun, "failed", {"error": failures.recorded(outcome.error)})
            await self._node.record(self._threads, call.key, self._about(call, arguments, outcome))
        else:
            await effects.end(begun, "done", self._packed(call, outcome.result))
        return _given(outcome)

    # -- effects of which it is not known whether they happened

    def _answers(self, call: Call) -> list[_Answer]:
        """Return the answers to what this step has asked before.

        LangGraph gives answers in the order in which a node asks: so it asks again what it has asked, whatever is
        known by now.
        """
        answers: list[_Answer] = []
        while (asked := self._node.find(f"{call.key}?{len(answers) + 1}")) is not None:
            answers.append(_Answer(int(asked.about["of"]), _interrupt()(asked.about["question"])))
        return answers

    async def _answer(
        self, call: Call, arguments: Arguments, step_key: str, found: Effect, answers: list[_Answer]
    ) -> Mapping[str, Any]:
        """Return whether an effect that was begun has happened."""
        if call.on_unknown == "fail":
            raise EffectUnknown(self._node.thread_id, call.key)
        if call.on_unknown == "ask":
            return await self._asked(call, arguments, found, answers)
        unknown = Unknown(self._node.thread_id, call.key, step_key, call.args, call.kwargs)
        answer = await self._face.call(lambda: call.on_unknown(unknown), None)
        if not _is_answer(answer):
            raise InvalidInput(f"whether {call.key!r} happened is answered by {_ANSWERS}, not {checks.shown(answer)}")
        return dict(answer)

    async def _asked(
        self, call: Call, arguments: Arguments, found: Effect, answers: list[_Answer]
    ) -> Mapping[str, Any]:
        """Return what a person says of it. The graph stops here until then."""
        number = _begun(found)
        text = f"Did {call.name} happen? It was begun, and its outcome is not known. Answer with {_ANSWERS}."
        for answer in answers:
            if answer.of == number and _is_answer(answer.value):
                return dict(answer.value)
        while True:
            question = {"question": text, "step": call.key, **arguments.shown}
            about = {"status": "asked", "args": arguments.digest, "question": question, "of": number}
            await self._node.record(self._threads, f"{call.key}?{len(answers) + 1}", about)
            answers.append(_Answer(number, _interrupt()(question)))
            if _is_answer(answers[-1].value):
                return dict(answers[-1].value)

    # -- where it stands

    async def _until_stored(self) -> None:
        """Wait for the checkpoints that the node runs from.

        If the effect came first, and the process ended in between, the graph would go on from an earlier checkpoint,
        and might come to another effect in the place of this one.
        """
        end = time.monotonic() + _STORED_SECONDS
        pause = 0.001
        for namespace, checkpoint_id in self._node.around.items():
            key = Key(self._node.thread_id, namespace, checkpoint_id)
            while await self._store.read(*key) is None:
                if time.monotonic() > end or not self._node.is_kept:
                    raise InvalidInput(
                        "an effect that is performed once needs the checkpoint that its node runs from, and that is "
                        "not stored: run the graph with durability='sync' or 'async', and graphs inside it with a "
                        "checkpointer"
                    )
                await self._face.sleep(pause)
                pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    async def _family(self) -> tuple[str, str | None]:
        """Return the thread that keeps the effects, and the branch that may perform them once more, if this is one."""
        thread_id = self._node.thread_id
        host = await host_of(self._repository, thread_id)
        found = thread_id
        while found != host:
            thread = await self._store.thread(found, brief=True)
            if thread is None or thread.origin is None:
                break
            first = await self._store.read(found, "", thread.origin.checkpoint_id)
            if first is not None and first.stored.record.metadata.get("run_effects") == "allow":
                return host, found
            found = thread.origin.thread_id
        return host, None

    async def _place(self) -> str:
        """Return where in the graph the node stands: the same when it comes there again after a rewind or a branch."""
        node = self._node
        around = node.checkpoint.namespace
        if around:  # the task around it says where it stands
            return f"{around}|{node.name}{node.number}@{node.step}"
        return f"{node.name}{node.number}@{node.step - await self._by_hand()}"

    async def _by_hand(self) -> int:
        """Return how many checkpoints before the node were made by time travel or by `update_state`, not by a step."""
        loaded = await self._store.read(*self._node.checkpoint)
        if loaded is None:
            return 0
        ours = loaded.stored
        ancestry = ancestry_of(self._store, ours.family)
        count = 0
        for stored in await self._made_by_hand():
            if stored.seq == ours.seq:
                count += 1
            elif stored.seq < ours.seq:
                common = await ancestry.common([stored.place], [ours.place])
                count += [place.seq for place in common] == [stored.seq]
        return count

    async def _made_by_hand(self) -> list[Stored]:
        found: list[Stored] = []
        thread_id: str | None = self._node.thread_id
        while thread_id is not None:
            for source in ("fork", "update"):
                query = Query(thread_id=thread_id, namespace="", filter={"source": source}, hidden="also")
                found += await self._store.list_checkpoints(query)
            thread = await self._store.thread(thread_id, brief=True)
            thread_id = thread.origin.thread_id if thread is not None and thread.origin is not None else None
        return found

    # -- as it is kept

    def _about(self, call: Call, arguments: Arguments, outcome: calling.Outcome) -> dict[str, Any]:
        """Return what is recorded of a step."""
        about = {
            "name": call.name,
            "args": arguments.digest,
            "shown": dict(arguments.shown),
            "effect": call.options.effect,
            "status": "ok" if outcome.error is None else "error",
            "tries": len(outcome.tries) + (outcome.error is None),
            "seconds": round(outcome.seconds, 6),
            "failures": list(outcome.tries),
        }
        if outcome.error is None:
            return {**about, **self._packed(call, outcome.result)}
        return {**about, "error": failures.recorded(outcome.error), "repr": repr(outcome.error)}

    def _packed(self, call: Call, result: Any) -> dict[str, Any]:
        form, packed = self._threads.channels.packed(result, f"the result of {call.name}")
        return {"form": form, "result": packed}

    def _unpacked(self, values: Mapping[str, Any]) -> Any:
        return self._threads.channels.unpacked(values["form"], values["result"])


_ANSWERS = "everstep.happened(result) or everstep.did_not_happen()"
_INSTEAD = "Let the node ask for the same when it runs again, or call the step with effect='none'"


def _begun(found: Effect | None) -> int:
    """Return how often an effect was begun."""
    return int(found.about.get("begun", 0)) if found is not None else 0


def _is_answer(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("happened"), bool)


def _given(outcome: calling.Outcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


def _letting_through(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that gives what LangGraph raises to interrupt a node as a result: nothing is tried again."""
    from langgraph.errors import GraphBubbleUp

    async def awaited(found: Awaitable[Any]) -> Any:
        try:
            return await found
        except GraphBubbleUp as bubble:
            return _Bubble(bubble)

    if calling.is_async(function):

        async def called(*args: Any, **kwargs: Any) -> Any:
            return await awaited(function(*args, **kwargs))

        return called

    def called_at_once(*args: Any, **kwargs: Any) -> Any:
        try:
            found = function(*args, **kwargs)
        except GraphBubbleUp as bubble:
            return _Bubble(bubble)
        return awaited(found) if inspect.isawaitable(found) else found

    return called_at_once


def _interrupt() -> Callable[[Any], Any]:
    from langgraph.types import interrupt

    return interrupt
