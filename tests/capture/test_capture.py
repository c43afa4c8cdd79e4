"""Decorated calls, scopes and live threads: what an agent does is saved while it does it, and never in its way."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

import everstep
from everstep import (
    Checkpoint,
    CheckpointEngine,
    EverstepError,
    InvalidInput,
    SnapshotConfig,
    SnapshotTrigger,
    StoreBackend,
    StoreUnavailable,
    UnstorableValue,
)
from everstep.capture import live
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import Change, Store, Stored
from everstep.values.storable import storable

USER = {"role": "user", "content": "What is the weather in Oslo?"}
AI = {"role": "assistant", "content": "Let me look."}
ALL = list(SnapshotTrigger)

only_async = pytest.mark.parametrize("face", ["async"], indirect=True)


class Agent:
    """An engine, the face of it under test, and what is stored."""

    def __init__(self, engine: CheckpointEngine, face: str) -> None:
        self.engine, self.face = engine, face
        self.side: Any = engine if face == "async" else engine.sync
        self.snapshot_on = self.side.snapshot_on

    def thread(self, *args: Any, **kwargs: Any) -> Any:
        return self._block(self.side.thread(*args, **kwargs))

    def scope(self, *args: Any) -> Any:
        return self._block(self.side.snapshot_scope(*args))

    @contextlib.asynccontextmanager
    async def _block(self, manager: Any) -> AsyncIterator[Any]:
        if self.face == "async":
            async with manager as value:
                yield value
        else:
            with manager as value:
                yield value

    async def save(self, block: Any, **about: Any) -> str:
        saved = block.save(**about)
        return str(await saved if self.face == "async" else saved)

    def latest(self, thread_id: str = "default") -> Checkpoint:
        found = self.engine.sync.get_latest(thread_id)
        assert found is not None
        return found

    def history(self, thread_id: str = "default") -> list[Checkpoint]:
        """The thread's checkpoints, oldest first."""
        found = reversed(self.engine.sync.list_time_travel_points(thread_id))
        return [self.engine.sync.get(m.checkpoint_id) for m in found]  # type: ignore[misc]

    def statuses(self, thread_id: str = "default") -> list[str]:
        return [f"{c.tools_result['name']} {c.tools_result['status']}" for c in self.history(thread_id)]


@pytest.fixture
def make_agent(store: Store, face: str) -> Callable[..., Agent]:
    return lambda **config: Agent(CheckpointEngine(StoreBackend(store), SnapshotConfig(**config)), face)


@pytest.fixture
def agent(make_agent: Callable[..., Agent]) -> Agent:
    return make_agent()


class GatedStore(MemoryStore):
    """A store whose commits fail while it is broken, and on the asynchronous face wait while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.broken = False

    @property
    def blocking(self) -> Any:
        return Ungated(self)

    async def commit(self, change: Change) -> Stored | None:
        if not self.gate.is_set():
            self.waiting.set()
            await self.gate.wait()
        return await self.commit_now(change)

    async def commit_now(self, change: Change) -> Stored | None:
        if self.broken:
            raise StoreUnavailable("no network")
        return await super().commit(change)

    async def someone_waits(self) -> None:
        async with asyncio.timeout(20):
            await self.waiting.wait()
        self.waiting.clear()


class Ungated:
    """The blocking face of a gated store."""

    def __init__(self, store: GatedStore) -> None:
        self._store, self.blocking, self.commit = store, self, store.commit_now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def gated() -> GatedStore:
    return GatedStore()


@pytest.fixture
def gated_agent(gated: GatedStore) -> Agent:
    return Agent(CheckpointEngine(StoreBackend(gated)), "async")


async def _fail(block: Any, change: Callable[[Any], Any], error: BaseException | None) -> None:
    """Change what a block gives, and leave it, by an error if there is one."""
    async with block as value:
        change(value)
        if error is not None:
            raise error


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


# -- decorated calls


async def test_a_call_is_saved_before_and_after(agent: Agent) -> None:
    seen = []

    @agent.snapshot_on("tool_call")
    def plain(city: str, *, days: int) -> str:
        seen.append(agent.latest().tools_result["status"])
        return f"sun for {days} days in {city}"

    @agent.snapshot_on(SnapshotTrigger.LLM_CALL)
    async def waits(city: str) -> dict[str, str]:
        seen.append(agent.latest().tools_result["status"])
        return {"city": city}

    assert plain("Oslo", days=3) == "sun for 3 days in Oslo"
    assert await waits("Rome") == {"city": "Rome"}

    assert seen == ["started", "started"]
    first, second, third, fourth = agent.history()
    started = {"name": "plain", "args": ["Oslo"], "kwargs": {"days": 3}, "status": "started"}
    assert first.tools_result == started
    assert second.tools_result == started | {"status": "ok", "result": "sun for 3 days in Oslo"}
    assert third.tools_result == {"name": "waits", "args": ["Rome"], "kwargs": {}, "status": "started"}
    assert fourth.tools_result["result"] == {"city": "Rome"}
    assert [c.metadata.trigger for c in (first, fourth)] == ["tool_call", "llm_call"]
    assert second.metadata.summary == "plain: ok"


async def test_inside_a_live_thread_its_messages_and_state_are_saved(agent: Agent) -> None:
    async with agent.thread("t") as block:

        @agent.snapshot_on("tool_call")
        async def weather(city: str) -> str:
            block.state["asked"] = city
            return "sun"

        block.messages.append(USER)
        block.next_node = "tool"
        await weather("Oslo")
        assert block.tools_result["result"] == "sun"

    before, after = agent.history("t")
    assert (before.messages, before.state, before.next_node) == ([USER], {}, "tool")
    assert (after.messages, after.state, after.next_node) == ([USER], {"asked": "Oslo"}, "tool")
    assert after.tools_result["status"] == "ok"


async def test_without_a_live_thread_the_stored_conversation_stays(make_agent: Callable[..., Agent]) -> None:
    for split in (True, False):
        agent = make_agent(delta_snapshots=split)
        name = f"t{split}"
        agent.engine.sync.snapshot(name, [USER, AI], {"a": 1, "b": [2]}, {"old": 1, "error": "x"}, next_node="n")

        @agent.snapshot_on("tool_call")
        def weather() -> str:
            return "sun"

        weather(_checkpoint_thread_id=name)  # type: ignore[call-arg]
        kept = agent.latest(name)
        assert (kept.messages, kept.state, kept.next_node) == ([USER, AI], {"a": 1, "b": [2]}, "n")
        assert kept.tools_result == {"name": "weather", "args": [], "kwargs": {}, "status": "ok", "result": "sun"}

        weather(_checkpoint_thread_id=name, _checkpoint_state={"b": 3})  # type: ignore[call-arg]
        assert (agent.latest(name).messages, agent.latest(name).state) == ([USER, AI], {"b": 3})
        weather(_checkpoint_thread_id=name, _checkpoint_state={})  # type: ignore[call-arg]
        assert agent.latest(name).state == {}


async def test_thread_and_state_can_be_named_for_one_call(agent: Agent) -> None:
    given: dict[str, Any] = {"step": 1}

    @agent.snapshot_on("tool_call")
    async def tool(**kwargs: Any) -> dict[str, Any]:
        given["step"] = 2
        return kwargs

    async with agent.thread("outer") as outer, agent.thread("inner") as inner:
        outer.messages.append(USER)
        inner.messages.append(AI)
        inner.state["own"] = True
        assert await tool(x=1, _checkpoint_thread_id="elsewhere", _checkpoint_state=given) == {"x": 1}
        await tool(_checkpoint_thread_id="outer")
        await tool(_checkpoint_state=given)
        assert inner.state == {"own": True}

    assert [c.state for c in agent.history("elsewhere")] == [{"step": 1}, {"step": 2}]
    assert agent.latest("elsewhere").messages == []
    assert agent.latest("elsewhere").tools_result["kwargs"] == {"x": 1}
    assert agent.latest("outer").messages == [USER]
    assert [c.state for c in agent.history("inner")] == [{"step": 2}, {"step": 2}, {"own": True}]
    assert all(c.messages == [AI] for c in agent.history("inner"))


async def test_the_exception_of_a_function_propagates_and_is_kept(agent: Agent) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @agent.snapshot_on("tool_call")
    def plain(error: BaseException) -> None:
        raise error

    @agent.snapshot_on("tool_call")
    async def waits(error: BaseException) -> None:
        raise error

    for error in (ValueError("boom \ud800"), Broken("x"), KeyboardInterrupt("stop"), SystemExit(3)):
        with pytest.raises(type(error)) as caught:
            plain(error)
        assert caught.value is error
        kept = agent.latest().tools_result
        assert kept["status"] == "error"
        assert kept["error"]["type"].endswith(type(error).__name__)
        assert "result" not in kept
    with pytest.raises(ValueError, match="boom"):
        await waits(ValueError("boom \ud800"))
    assert agent.latest().tools_result["error"] == {"type": "ValueError", "message": "boom \ud800"}


async def test_an_error_of_an_earlier_call_does_not_stay(agent: Agent) -> None:
    @agent.snapshot_on("tool_call")
    def tool(fails: bool) -> int:
        return 1 // (not fails)

    with pytest.raises(ZeroDivisionError):
        tool(True)
    tool(False)
    assert "error" not in agent.latest().tools_result


async def test_a_trigger_that_is_not_configured_only_passes_the_call_on(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(triggers=["manual"])

    @agent.snapshot_on("tool_call")
    def plain(**kwargs: Any) -> Any:
        return kwargs

    @agent.snapshot_on("tool_call")
    async def waits(**kwargs: Any) -> Any:
        return kwargs

    @agent.snapshot_on("tool_call")
    def stream() -> Any:
        return (yield 1)

    @agent.snapshot_on("tool_call")
    async def async_stream() -> Any:
        yield 1

    async with agent.scope("t", {}), agent.thread("u") as block:
        assert plain(a=1, _checkpoint_thread_id="x", _checkpoint_state={}) == {"a": 1}
        assert await waits(a=1, _checkpoint_thread_id="x") == {"a": 1}
        assert list(stream()) == [1]
        assert [item async for item in async_stream()] == [1]
        assert block.tools_result == {}
    assert agent.engine.sync.checkpointer.list_threads() == []


# -- what is kept of arguments and results


async def test_arguments_are_kept_as_they_were_before_the_call(agent: Agent) -> None:
    @agent.snapshot_on("tool_call")
    def take(items: list[int], *, into: list[int]) -> list[int]:
        while items:
            into.append(items.pop())
        return into

    kept: list[int] = []
    assert take([1, 2], into=kept) is kept
    kept.append(9)
    found = agent.latest().tools_result
    assert (found["args"], found["kwargs"], found["result"]) == ([[1, 2]], {"into": []}, [2, 1])


async def test_values_are_never_cut(agent: Agent) -> None:
    @agent.snapshot_on("tool_call")
    def echo(text: str) -> str:
        return text

    text = " ".join(str(n) for n in range(100_000))
    echo(text)
    assert agent.latest().tools_result["args"] == [text]
    assert agent.latest().tools_result["result"] == text


class Opaque:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Opaque {self.name}>"


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __bool__(self) -> bool:
        raise RuntimeError("no truth")

    __eq__ = __hash__ = None  # type: ignore[assignment]


async def test_only_the_unstorable_part_becomes_a_marked_repr(agent: Agent) -> None:
    one, two = Opaque("one"), Opaque("two")

    @agent.snapshot_on("tool_call")
    def call(*args: Any, **kwargs: Any) -> Any:
        return [1, (2, one), {"k": {one}}]

    call(1, {"deep": [("x", one)], one: 1, two: 2}, key=frozenset([3, two]))

    found = agent.latest().tools_result
    mark = {"__unstorable__": "<Opaque one>"}
    keys: dict[Any, int] = {("__unstorable__", "<Opaque one>", 1): 1, ("__unstorable__", "<Opaque two>", 2): 2}
    assert found["args"] == [1, {"deep": [("x", mark)], **keys}]
    (member,) = found["kwargs"]["key"] - {3}
    assert member[:2] == ("__unstorable__", "<Opaque two>")
    assert found["result"][:2] == [1, (2, mark)]
    assert found["result"][2] == {"k": {("__unstorable__", "<Opaque one>", 0)}}


def _nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def _cyclic() -> Any:
    value: dict[str, Any] = {"fine": 1}
    value["self"] = [value, Opaque("in")]
    return value


@pytest.mark.parametrize("kind", ["memory"], indirect=True)  # what is kept of a value is the same everywhere
@pytest.mark.parametrize(
    "value",
    [Hostile(), [Hostile()], _cyclic(), _nested(96), _nested(97), _nested(98), _nested(99), _nested(5000), lambda: 1,
     {1: {2, 3}}, -0.0, "x\ud800", memoryview(b"x"), Exception("e"), Opaque("x" * 50_000)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
async def test_no_value_breaks_the_call_or_its_record(make_agent: Callable[..., Agent], value: Any) -> None:
    for split in (True, False):
        agent = make_agent(delta_snapshots=split)

        @agent.snapshot_on("tool_call")
        def echo(value: Any) -> Any:
            yield value
            return value

        def run(value: Any) -> Iterator[Any]:
            returned = yield from echo(value)
            assert returned is value

        assert [item is value for item in run(value)] == [True]
        assert agent.statuses()[-1] == "echo ok"


def test_a_cyclic_value_is_kept_up_to_where_it_repeats() -> None:
    kept = storable(_cyclic())
    assert kept["fine"] == 1
    assert kept["self"][0].keys() == {"__unstorable__"}
    assert kept["self"][1] == {"__unstorable__": "<Opaque in>"}


def test_storable_values_keep_their_types() -> None:
    for value in (True, 1, 1.0, (1, [2]), {3}, frozenset([4]), bytearray(b"5"), {(1, 2): None}, 10**40, b"\0"):
        kept = storable([value, Opaque("x")])[0]
        assert kept == value
        assert type(kept) is type(value)
    assert str(storable(-0.0)) == "-0.0"


# -- what can be decorated


async def test_methods_of_every_kind_work(agent: Agent) -> None:
    class Tools(Opaque):
        @agent.snapshot_on("tool_call")
        def method(self, n: int) -> int:
            return n

        @agent.snapshot_on("tool_call")
        async def waits(self, n: int) -> int:
            return n

        @classmethod
        @agent.snapshot_on("tool_call")
        def of_class(cls, n: int) -> Any:
            return cls, n

        @agent.snapshot_on("tool_call")
        @classmethod
        def outside_class(cls, n: int) -> Any:
            return cls, n

        @agent.snapshot_on("tool_call")
        @staticmethod
        def static(n: int) -> int:
            return n

        def undecorated(self, n: int) -> int:
            return n

    tools = Tools("me")
    assert tools.method(1) == 1
    assert agent.latest().tools_result["args"] == [{"__unstorable__": "<Opaque me>"}, 1]
    assert await tools.waits(2) == 2
    assert Tools.of_class(3) == (Tools, 3)
    assert Tools.outside_class(4) == tools.outside_class(4) == (Tools, 4)
    assert agent.latest().tools_result["args"][1] == 4
    assert Tools.static(5) == tools.static(5) == 5
    assert agent.snapshot_on("tool_call")(tools.undecorated)(6) == 6
    assert agent.latest().tools_result["args"] == [6]
    assert agent.latest().tools_result["name"] == "undecorated"


async def test_partials_and_callable_objects_work(agent: Agent) -> None:
    class Plain:
        def __call__(self, n: int) -> int:
            return n

    class Waits:
        async def __call__(self, n: int) -> int:
            return n

    async def add(a: int, b: int) -> int:
        return a + b

    decorate = agent.snapshot_on("tool_call")
    assert decorate(functools.partial(max, 1))(2) == 2
    assert agent.latest().tools_result["name"] == "max"
    assert await decorate(functools.partial(add, 1))(2) == 3
    assert decorate(Plain())(4) == 4
    assert await decorate(Waits())(5) == 5
    assert agent.statuses()[-1] == "Waits ok"
    assert agent.latest().tools_result["result"] == 5


async def test_the_wrapper_is_of_the_same_kind_and_keeps_its_name(agent: Agent) -> None:
    def plain(a: int) -> int:
        """What it does."""
        return a

    async def waits() -> None: ...

    def stream() -> Iterator[int]:
        yield 1

    async def async_stream() -> AsyncIterator[int]:
        yield 1

    for function in (plain, waits, stream, async_stream):
        wrapper = agent.snapshot_on("tool_call")(function)
        assert wrapper.__name__ == function.__name__
        assert wrapper.__doc__ == function.__doc__
        assert inspect.signature(wrapper) == inspect.signature(function)
        for is_kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
            assert is_kind(wrapper) == is_kind(function)


async def test_nested_calls_are_saved_in_order(agent: Agent) -> None:
    @agent.snapshot_on("tool_call")
    def inner(n: int) -> int:
        return n + 1

    @agent.snapshot_on("llm_call")
    async def outer(n: int) -> int:
        return inner(n) * 2

    async with agent.thread("t"):
        assert await outer(1) == 4
    assert agent.statuses("t") == ["outer started", "inner started", "inner ok", "outer ok"]


# -- streams


async def test_the_items_of_a_generator_are_its_result(agent: Agent) -> None:
    @agent.snapshot_on("llm_call")
    def stream() -> Any:
        chunk = {"text": ""}
        for word in ("sun", "rain"):
            chunk["text"] += word
            yield chunk
        return "done"

    running = stream()
    assert agent.engine.sync.get_latest("default") is None
    next(running)
    assert agent.latest().tools_result["status"] == "started"
    for _ in running:
        pass
    kept = agent.latest().tools_result
    assert kept["status"] == "ok"
    assert kept["result"] == [{"text": "sun"}, {"text": "sunrain"}]
    assert kept["returned"] == "done"


async def test_the_items_of_an_async_generator_are_its_result(agent: Agent) -> None:
    @agent.snapshot_on("llm_call")
    async def stream(n: int) -> AsyncIterator[int]:
        for item in range(n):
            yield item

    assert [item async for item in stream(3)] == [0, 1, 2]
    assert agent.latest().tools_result["result"] == [0, 1, 2]
    assert [item async for item in stream(0)] == []
    assert agent.latest().tools_result == {
        "name": "stream", "args": [0], "kwargs": {}, "status": "ok", "result": [],
    }  # fmt: skip


async def test_send_and_throw_and_return_reach_a_generator(agent: Agent) -> None:
    @agent.snapshot_on("llm_call")
    def echo() -> Any:
        got = None
        while got != "end":
            try:
                got = yield got
            except KeyError as exc:
                got = f"caught {exc.args[0]}"
        return "returned"

    running = echo()
    assert next(running) is None
    assert running.send(1) == 1
    assert running.throw(KeyError("x")) == "caught x"
    with pytest.raises(StopIteration) as stopped:
        running.send("end")
    assert stopped.value.value == "returned"
    assert agent.latest().tools_result["result"] == [None, 1, "caught x"]

    running = echo()
    next(running)
    with pytest.raises(ValueError, match="not caught"):
        running.throw(ValueError("not caught"))
    assert agent.latest().tools_result["status"] == "error"
    assert agent.latest().tools_result["result"] == [None]


async def test_asend_and_athrow_reach_an_async_generator(agent: Agent) -> None:
    @agent.snapshot_on("llm_call")
    async def echo() -> Any:
        got = None
        while got != "end":
            try:
                got = yield got
            except KeyError as exc:
                got = f"caught {exc.args[0]}"

    running = echo()
    assert await anext(running) is None
    assert await running.asend(1) == 1
    assert await running.athrow(KeyError("x")) == "caught x"
    with pytest.raises(StopAsyncIteration):
        await running.asend("end")
    assert agent.latest().tools_result["result"] == [None, 1, "caught x"]

    running = echo()
    await anext(running)
    with pytest.raises(ValueError, match="not caught"):
        await running.athrow(ValueError("not caught"))
    assert agent.latest().tools_result["status"] == "error"


async def test_a_stream_that_is_closed_early_keeps_its_items(agent: Agent) -> None:
    closed = []

    @agent.snapshot_on("llm_call")
    def stream() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append("plain")

    @agent.snapshot_on("llm_call")
    async def async_stream() -> AsyncIterator[int]:
        try:
            for item in range(100):
                yield item
        finally:
            closed.append("async")

    for item in stream():
        if item == 2:
            break
    assert agent.latest().tools_result["status"] == "closed"
    assert agent.latest().tools_result["result"] == [0, 1, 2]
    assert "error" not in agent.latest().tools_result
    async with contextlib.aclosing(async_stream()) as running:  # type: ignore[type-var]
        async for item in running:
            if item == 1:
                break
    assert agent.latest().tools_result["status"] == "closed"
    assert agent.latest().tools_result["result"] == [0, 1]
    assert closed == ["plain", "async"]


@only_async
async def test_a_forgotten_async_stream_is_closed_and_noted(agent: Agent, face: str) -> None:
    @agent.snapshot_on("llm_call")
    async def stream() -> AsyncIterator[int]:
        yield 1
        yield 2

    async for _ in stream():
        break
    await until(lambda: agent.latest().tools_result["status"] == "closed")
    assert agent.latest().tools_result["result"] == [1]


async def test_a_stream_that_fails_keeps_its_items_and_its_error(agent: Agent) -> None:
    @agent.snapshot_on("llm_call")
    async def stream() -> AsyncIterator[int]:
        yield 1
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError):
        async for _ in stream():
            pass
    kept = agent.latest().tools_result
    assert (kept["status"], kept["result"]) == ("error", [1])
    assert kept["error"] == {"type": "ConnectionError", "message": "lost"}


class Forever:
    def __await__(self) -> Generator[None, None, None]:
        while True:
            yield


async def test_a_coroutine_that_is_closed_is_noted_without_waiting(gated: GatedStore, gated_agent: Agent) -> None:
    agent = gated_agent

    @agent.snapshot_on("tool_call")
    async def waits() -> None:
        await Forever()

    async def use() -> None:
        async with agent.engine.thread("t") as block:
            block.messages.append(USER)
            try:
                await waits()
            finally:
                block.messages.append(AI)

    running = use()
    running.send(None)
    gated.gate.clear()
    running.close()
    assert [c.tools_result["status"] for c in agent.history("t")] == ["started", "closed", "closed"]
    assert agent.latest("t").messages == [USER, AI]
    assert agent.latest("t").metadata.metadata["error"]["type"] == "GeneratorExit"


async def test_closing_an_async_stream_does_not_block_the_loop(gated: GatedStore, gated_agent: Agent) -> None:
    @gated_agent.snapshot_on("llm_call")
    async def stream() -> Any:
        yield 1
        yield 2

    running = stream()
    await anext(running)
    gated.gate.clear()
    closing = asyncio.create_task(running.aclose())
    await gated.someone_waits()
    gated.gate.set()
    await closing
    assert gated_agent.statuses() == ["stream started", "stream closed"]


# -- a save that fails


async def test_a_snapshot_that_fails_does_not_break_the_call(
    gated: GatedStore, gated_agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    agent = gated_agent

    @agent.snapshot_on("tool_call")
    def plain() -> int:
        return 1

    @agent.snapshot_on("tool_call")
    async def waits() -> int:
        return 2

    @agent.snapshot_on("tool_call")
    async def stream() -> AsyncIterator[int]:
        yield 3

    async with agent.thread("t"):
        gated.broken = True
        with caplog.at_level(logging.CRITICAL):
            assert (plain(), await waits(), [x async for x in stream()]) == (1, 2, [3])
        async with agent.scope("t", {"a": 1}) as state:
            state["a"] = 2
        assert caplog.text.count("no network") >= 2
        gated.broken = False


async def test_wrong_keywords_are_logged_and_the_call_goes_on(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    @agent.snapshot_on("tool_call")
    def tool() -> int:
        return 1

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"_checkpoint_thread_id": ""}, "InvalidInput: thread_id is empty"),
        ({"_checkpoint_thread_id": 5}, "InvalidInput: thread_id is a string, not int"),
        ({"_checkpoint_state": 5}, "InvalidInput: state is a dict, not int"),
        ({"_checkpoint_state": {"x": Opaque("x")}}, "UnstorableValue: state.x: cannot store"),
    ]
    for keywords, said in wrong:
        for inside in (contextlib.nullcontext(), agent.thread("t")):
            caplog.clear()
            with caplog.at_level(logging.ERROR, "everstep"):
                async with inside:
                    assert tool(**keywords) == 1
                    assert said in caplog.text
    assert agent.engine.sync.get_latest("default") is None


async def test_an_unstorable_state_does_not_break_calls_and_is_named_on_leaving(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    @agent.snapshot_on("tool_call")
    def tool() -> int:
        return 1

    async def work() -> None:
        async with agent.thread("t") as block:
            block.state["socket"] = Opaque("x")
            assert tool() == 1
            assert "state.socket" in caplog.text

    with caplog.at_level(logging.ERROR, "everstep"), pytest.raises(UnstorableValue, match=r"state\.socket"):
        await work()
    assert agent.engine.sync.get_latest("t") is None


def test_decorated_functions_work_without_a_loop() -> None:
    engine = everstep.open("memory://")

    @engine.snapshot_on("tool_call")
    def plain(n: int) -> int:
        return n

    @engine.snapshot_on("tool_call")
    def stream(n: int) -> Iterator[int]:
        yield n

    @engine.sync.snapshot_on("tool_call")
    async def waits(n: int) -> int:
        return n

    with engine.sync.thread("t") as block:
        block.messages.append(USER)
        assert plain(1) == 1
        assert list(stream(2)) == [2]
        assert asyncio.run(waits(3)) == 3
    found = engine.sync.get_latest("t")
    assert found is not None
    assert (found.tools_result["result"], found.messages, found.metadata.step) == (3, [USER], 6)


def test_the_garbage_collector_inside_a_save_does_not_wait_for_it(caplog: pytest.LogCaptureFixture) -> None:
    class Store(MemoryStore):
        doomed: Any = None

        async def commit(self, change: Change) -> Stored | None:
            if self.doomed is not None:
                doomed, self.doomed = self.doomed, None
                doomed.close()
            return await super().commit(change)

    store = Store()
    agent = Agent(CheckpointEngine(StoreBackend(store)), "blocking")

    @agent.snapshot_on("tool_call")
    def stream() -> Iterator[int]:
        with agent.engine.sync.thread("t", interval_seconds=1) as block:
            block.state["a"] = 1
            yield 1
            yield 2

    running = stream()
    next(running)
    store.doomed = running
    with caplog.at_level(logging.WARNING, "everstep"):
        agent.engine.sync.snapshot("other", [], {}, {})
    assert "garbage collector" in caplog.text
    assert agent.statuses() == ["stream started"]
    assert agent.engine.sync.get_latest("t") is None
    assert live.find(agent.engine._capture, None) is None


# -- live threads


async def test_a_live_thread_is_loaded_from_the_head(agent: Agent) -> None:
    async with agent.thread("t") as block:
        assert (block.messages, block.state, block.tools_result, block.next_node) == ([], {}, {}, "")
        assert (block.thread_id, block.checkpoint_id) == ("t", None)
    saved = agent.engine.sync.snapshot("t", [USER], {"a": 1}, {"r": 2}, next_node="n")
    async with agent.thread("t") as block:
        assert (block.messages, block.state, block.tools_result, block.next_node) == ([USER], {"a": 1}, {"r": 2}, "n")
        assert block.checkpoint_id == saved
    assert len(agent.history("t")) == 1


async def test_leaving_saves_what_changed(agent: Agent) -> None:
    changes: list[Callable[[Any], Any]] = [
        lambda block: block.messages.append(USER),
        lambda block: block.state.update(n=1),
        lambda block: block.state.update(n=True),  # equal in Python, and yet another value
        lambda block: block.state.update(n=1.0),
        lambda block: block.tools_result.update(r=1),
        lambda block: setattr(block, "next_node", "n"),
        lambda block: setattr(block, "messages", [AI]),
    ]
    for change in changes:
        before = len(agent.history("t"))
        async with agent.thread("t") as block:
            change(block)
        assert len(agent.history("t")) == before + 1
        assert block.checkpoint_id == agent.latest("t").metadata.checkpoint_id
    found = agent.latest("t")
    assert (found.messages, found.tools_result, found.next_node) == ([AI], {"r": 1}, "n")
    assert type(found.state["n"]) is float
    assert found.metadata.trigger == "state_change"
    async with agent.thread("t") as block:
        block.state["n"] = 2
        block.state["n"] = 1.0
    assert agent.latest("t") == found


async def test_leaving_by_an_exception_saves_and_notes_it(agent: Agent) -> None:
    error = ValueError("boom \ud800" + "x" * 5000)
    with pytest.raises(ValueError, match="boom") as caught:
        await _fail(agent.thread("t"), lambda block: block.messages.append(USER), error)
    assert caught.value is error
    found = agent.latest("t")
    assert found.messages == [USER]
    assert found.metadata.tags == ["error", "state_change"]
    assert found.metadata.metadata["error"]["type"] == "ValueError"
    assert found.metadata.metadata["error"]["message"].startswith("boom \\ud800xxx")


async def test_nothing_that_changed_is_lost_for_want_of_a_trigger(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(triggers=["tool_call"])
    async with agent.thread("t") as block:
        block.messages.append(USER)
        assert await agent.save(block) == ""
    assert agent.latest("t").messages == [USER]
    assert agent.engine.config.triggers == {"tool_call"}


async def test_task_boundaries_are_saved_where_configured(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(triggers=["task_boundary"])
    async with agent.thread("t"):
        assert len(agent.history("t")) == 1
    assert [c.metadata.metadata for c in agent.history("t")] == [{"boundary": "start"}, {"boundary": "end"}]
    with pytest.raises(KeyError):
        await _fail(agent.thread("t"), lambda block: block.state.update(a=1), KeyError("k"))
    last = agent.latest("t")
    assert (last.state, last.metadata.trigger) == ({"a": 1}, "task_boundary")
    assert last.metadata.metadata == {"boundary": "end", "error": {"type": "KeyError", "message": "'k'"}}
    assert last.metadata.step == 4


async def test_a_live_thread_can_be_saved_at_any_time(agent: Agent) -> None:
    async with agent.thread("t") as block:
        block.messages.append(USER)
        saved = await agent.save(block, tags=["x"], summary="now", metadata={"m": 1})
        assert block.checkpoint_id == saved
    found = agent.latest("t")
    assert found.metadata.checkpoint_id == saved
    assert (found.metadata.summary, found.metadata.metadata) == ("now", {"m": 1})
    assert found.metadata.tags == ["x", "manual"]
    with pytest.raises(EverstepError, match="not live"):
        await agent.save(block)


async def test_the_innermost_live_thread_counts_and_the_outer_one_is_back(agent: Agent) -> None:
    @agent.snapshot_on("tool_call")
    def tool(n: int) -> None: ...

    async with agent.thread("outer"):
        async with agent.thread("inner"):
            tool(1)
        tool(2)
        with pytest.raises(ValueError, match="x"):
            async with agent.thread("inner"):
                raise ValueError("x")
        tool(3)
    tool(4)
    assert [c.tools_result["args"] for c in agent.history("inner")] == [[1], [1]]
    assert [c.tools_result["args"] for c in agent.history("outer")] == [[2], [2], [3], [3]]
    assert [c.tools_result["args"] for c in agent.history()] == [[4], [4]]


async def test_blocks_left_out_of_turn_do_not_hide_each_other(agent: Agent) -> None:
    @agent.snapshot_on("tool_call")
    def tool() -> None: ...

    def holding(name: str) -> Generator[None, None, None]:
        with agent.engine.sync.thread(name):
            yield

    first, second = holding("first"), holding("second")
    next(first)
    next(second)
    first.close()
    tool()
    second.close()
    tool()
    assert len(agent.history("second")) == len(agent.history()) == 2
    assert agent.engine.sync.get_latest("first") is None


async def test_both_faces_share_the_live_thread(agent: Agent) -> None:
    @agent.engine.snapshot_on("tool_call")
    def one() -> None: ...

    @agent.engine.sync.snapshot_on("tool_call")
    def two() -> None: ...

    @agent.engine.sync.snapshot_on("tool_call")
    async def three() -> None: ...

    with agent.engine.sync.thread("t"):
        one()
        two()
        await three()
    async with agent.engine.thread("t"):
        one()
        two()
        await three()
    assert len(agent.history("t")) == 12


async def test_engines_do_not_see_each_others_live_threads(make_agent: Callable[..., Agent]) -> None:
    one, two = make_agent(), make_agent()

    @one.snapshot_on("tool_call")
    def first() -> None: ...

    @two.snapshot_on("tool_call")
    def second() -> None: ...

    async with one.thread("one"):
        second()
        async with two.thread("two"):
            first()
            second()
    assert one.statuses() == ["second started", "second ok"]
    assert one.statuses("one") == ["first started", "first ok"]
    assert one.statuses("two") == ["second started", "second ok"]


async def test_two_live_threads_of_one_name_line_up_and_both_are_kept(agent: Agent) -> None:
    async with agent.thread("t") as one, agent.thread("t") as two:
        one.messages.append(USER)
        two.messages.append(AI)
    assert [c.messages for c in agent.history("t")] == [[AI], [AI, USER]]
    assert [c.metadata.step for c in agent.history("t")] == [1, 2]


async def test_a_live_thread_is_entered_once(agent: Agent) -> None:
    manager = agent.side.thread("t")
    async with agent._block(manager):
        with pytest.raises(EverstepError, match="once"):
            async with agent._block(manager):
                raise AssertionError
    with pytest.raises(EverstepError, match="once"):
        async with agent._block(manager):
            raise AssertionError


async def test_errors_of_loading_and_of_the_last_save_come_out(
    gated: GatedStore, gated_agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(block: Any) -> None:
        block.messages.append(USER)
        gated.broken = True

    with pytest.raises(StoreUnavailable):
        await _fail(gated_agent.thread("t"), spoil, None)
    with caplog.at_level(logging.ERROR, "everstep"), pytest.raises(ValueError, match="first"):
        await _fail(gated_agent.thread("t"), spoil, ValueError("first"))
    assert "no network" in caplog.text

    async def unreadable(*args: Any, **kwargs: Any) -> None:
        raise StoreUnavailable("cannot read")

    monkeypatch.setattr(gated, "read", unreadable)
    with pytest.raises(StoreUnavailable, match="cannot read"):
        async with gated_agent.thread("t"):
            raise AssertionError
    assert live.find(gated_agent.engine._capture, None) is None


async def test_a_task_boundary_that_cannot_be_saved_at_the_start_is_logged(
    gated: GatedStore, caplog: pytest.LogCaptureFixture
) -> None:
    engine = CheckpointEngine(StoreBackend(gated), SnapshotConfig(triggers=ALL))
    gated.broken = True
    with caplog.at_level(logging.ERROR, "everstep"):
        async with engine.thread("t"):
            assert "no network" in caplog.text
            gated.broken = False


# -- scopes


async def test_a_scope_saves_its_state_on_entering_and_on_leaving(agent: Agent) -> None:
    agent.engine.sync.snapshot("t", [USER], {"old": 1}, {"r": 1}, next_node="n")
    given: dict[str, Any] = {"a": 1, "b": 2}
    async with agent.scope("t", given) as state:
        assert state is given
        del state["a"]
        state["c"] = [3]
    _, first, second = agent.history("t")
    assert (first.state, second.state) == ({"a": 1, "b": 2}, {"b": 2, "c": [3]})
    for found in (first, second):
        assert (found.messages, found.tools_result, found.next_node) == ([USER], {"r": 1}, "n")
        assert found.metadata.trigger == "state_change"


async def test_a_scope_notes_the_exception_it_is_left_by(agent: Agent) -> None:
    with pytest.raises(ValueError, match="boom"):
        await _fail(agent.scope("t", {}, "manual"), lambda state: state.update(a=1), ValueError("boom"))
    found = agent.latest("t")
    assert found.state == {"a": 1}
    assert found.metadata.tags == ["error", "manual"]
    assert found.metadata.metadata == {"error": {"type": "ValueError", "message": "boom"}}


async def test_a_scope_inside_its_live_thread_saves_the_live_conversation(agent: Agent) -> None:
    async with agent.thread("t") as block, agent.thread("u"):
        block.messages.append(USER)
        async with agent.scope("t", {"a": 1}):
            block.messages.append(AI)
        block.state["own"] = 1
    assert [c.messages for c in agent.history("t")] == [[USER], [USER, AI], [USER, AI]]
    assert [c.state for c in agent.history("t")] == [{"a": 1}, {"a": 1}, {"own": 1}]


# -- many tasks


@only_async
async def test_many_tasks_on_threads_of_their_own_do_not_mix(agent: Agent, face: str) -> None:
    @agent.snapshot_on("tool_call")
    async def tool(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @agent.snapshot_on("tool_call")
    def plain(n: int) -> int:
        return n

    async def work(n: int) -> None:
        async with agent.engine.thread(f"t{n}") as block:
            for turn in range(3):
                block.messages.append({"n": n, "turn": turn})
                await tool(n)
                await asyncio.to_thread(plain, n)

    await asyncio.gather(*(work(n) for n in range(12)))
    for n in range(12):
        history = agent.history(f"t{n}")
        assert [c.metadata.step for c in history] == list(range(1, 13))
        assert all(c.tools_result["args"] == [n] for c in history)
        assert [len(c.messages) for c in history] == [1] * 4 + [2] * 4 + [3] * 4
        assert {m["n"] for m in history[-1].messages} == {n}
    assert agent.engine.sync.get_latest("default") is None


@only_async
async def test_many_tasks_at_once_in_one_live_thread_lose_nothing(agent: Agent, face: str) -> None:
    async with agent.engine.thread("t") as block:

        @agent.snapshot_on("tool_call")
        async def tool(n: int) -> int:
            await asyncio.sleep(0)
            block.messages.append({"n": n})
            return n

        async with asyncio.TaskGroup() as group:
            for n in range(20):
                group.create_task(tool(n))
    history = agent.history("t")
    assert len([c for c in history if "result" in c.tools_result]) >= 20
    assert {c.tools_result["result"] for c in history if "result" in c.tools_result} == set(range(20))
    assert sorted(m["n"] for m in history[-1].messages) == list(range(20))
    assert block.checkpoint_id == history[-1].metadata.checkpoint_id


def test_many_system_threads_in_one_live_thread_lose_nothing(place: Any) -> None:
    store = place.open()
    agent = Agent(CheckpointEngine(StoreBackend(store)), "blocking")
    with agent.engine.sync.thread("t") as block:

        @agent.snapshot_on("tool_call")
        def tool(n: int) -> None:
            block.state[f"k{n}"] = n

        context = [contextvars.copy_context() for _ in range(8)]
        threads = [threading.Thread(target=context[n].run, args=(tool, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert agent.latest("t").state == {f"k{n}": n for n in range(8)}
    assert {tuple(c.tools_result["args"]) for c in agent.history("t")} == {(n,) for n in range(8)}
    agent.engine.sync.close()


async def test_an_older_save_that_lands_last_is_followed_by_what_there_is(
    gated: GatedStore, gated_agent: Agent
) -> None:
    async with gated_agent.engine.thread("t") as block:
        gated.gate.clear()
        block.state["n"] = 1
        slow = asyncio.create_task(block.save())
        await gated.someone_waits()
        block.state["n"] = 2
        gate, gated.gate = gated.gate, asyncio.Event()
        gated.gate.set()
        newer = await block.save()
        gate.set()
        older = await slow
        assert block.checkpoint_id == older
    assert [c.state["n"] for c in gated_agent.history("t")] == [2, 1, 2]
    assert newer == gated_agent.history("t")[0].metadata.checkpoint_id


async def test_of_two_saves_at_once_the_head_counts_whichever_is_heard_of_first(
    gated_agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gated_agent.engine.thread("t") as block:
        heard: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]
        save_onto = gated_agent.engine._timeline.save_onto

        async def slowly(step: Any, save: Any) -> str:
            made = await save_onto(step, save)
            await heard[save.values[1]["n"]].wait()
            return made

        monkeypatch.setattr(gated_agent.engine._timeline, "save_onto", slowly)
        saves = []
        for n in range(2):
            block.state["n"] = n
            saves.append(asyncio.create_task(block._write(gated_agent.engine._save_live, block._now(), "manual", {})))
        await until(lambda: len(gated_agent.history("t")) == 2)
        heard[1].set()
        head = await saves[1]
        heard[0].set()
        await saves[0]
        assert block.checkpoint_id == head
    assert gated_agent.latest("t").metadata.checkpoint_id == head


async def test_what_is_saved_is_what_there_was_at_that_moment(gated: GatedStore, gated_agent: Agent) -> None:
    agent = gated_agent
    async with agent.engine.thread("t") as block:
        given = {"n": 1}

        @agent.snapshot_on("tool_call")
        async def tool(**kwargs: Any) -> str:
            block.state["n"] = 2
            gated.gate.clear()
            return "done"

        gated.gate.clear()
        block.state["n"] = 1
        call = asyncio.create_task(tool())
        await gated.someone_waits()
        block.state["n"] = 100
        gated.gate.set()
        await gated.someone_waits()
        block.state["n"] = 200
        gated.gate.set()
        await call
        assert [c.state["n"] for c in agent.history("t")] == [1, 2]

        call = asyncio.create_task(tool(_checkpoint_thread_id="u", _checkpoint_state=given))
        await gated.someone_waits()
        given["n"] = 3
        gated.gate.set()
        await call
        assert [c.state["n"] for c in agent.history("u")] == [1, 1]


async def test_what_changes_while_the_last_save_is_handed_over_is_not_in_it(gated_agent: Agent) -> None:
    given = {"n": 1}

    def change() -> None:
        given["n"] = 2
        block.state["n"] = 2

    @gated_agent.snapshot_on("tool_call")
    async def tool() -> None:
        asyncio.get_running_loop().call_soon(change)  # runs before any task that is made from now on

    async with gated_agent.engine.thread("t") as block:
        block.state["n"] = 1
        await tool()
        assert block.state["n"] == 2
        assert gated_agent.latest("t").state == {"n": 1}
        given["n"] = 1
        await tool(_checkpoint_thread_id="u", _checkpoint_state=given)  # type: ignore[call-arg]
        assert given["n"] == 2
        assert gated_agent.latest("u").state == {"n": 1}


# -- tasks and contexts that outlive


@only_async
async def test_a_task_that_outlives_its_live_thread_does_not_begin_there(agent: Agent, face: str) -> None:
    @agent.snapshot_on("tool_call")
    async def tool(n: int) -> None: ...

    left, outer_left = asyncio.Event(), asyncio.Event()

    async def late() -> None:
        await left.wait()
        await tool(1)
        await outer_left.wait()
        await tool(2)

    async with agent.engine.thread("outer"):
        async with agent.engine.thread("inner"):
            task = asyncio.create_task(late())
        left.set()
        await until(lambda: len(agent.engine.sync.list_time_travel_points("outer")) == 2)
    outer_left.set()
    await task
    assert agent.engine.sync.get_latest("inner") is None
    assert agent.latest("outer").tools_result["args"] == [1]
    assert agent.latest().tools_result["args"] == [2]


@only_async
async def test_the_end_of_a_call_goes_where_it_began(agent: Agent, face: str) -> None:
    go_on, running = asyncio.Event(), asyncio.Event()

    @agent.snapshot_on("tool_call")
    async def tool() -> str:
        running.set()
        await go_on.wait()
        return "late"

    async with agent.engine.thread("t") as block:
        block.messages.append(USER)
        task = asyncio.create_task(tool())
        await running.wait()
        block.messages.append(AI)
        block.next_node = "n"
    block.messages.append({"role": "user", "content": "not part of it"})
    go_on.set()
    await task
    found = agent.latest("t")
    assert found.tools_result["result"] == "late"
    assert (found.messages, found.next_node) == ([USER, AI], "n")


@only_async
async def test_blocks_may_be_entered_and_left_in_different_tasks(agent: Agent, face: str) -> None:
    @agent.snapshot_on("tool_call")
    def tool(n: int) -> None: ...

    async with agent.engine.thread("outer"):
        manager = agent.engine.thread("inner")
        await asyncio.create_task(manager.__aenter__())
        tool(1)
        await manager.__aexit__(None, None, None)
        tool(2)
        manager = agent.engine.thread("inner")
        block = await manager.__aenter__()
        tool(3)
        block.state["n"] = 3
        await asyncio.create_task(manager.__aexit__(None, None, None))
        tool(4)
    assert [c.tools_result["args"] for c in agent.history("outer")] == [[1], [1], [2], [2], [4], [4]]
    assert [c.tools_result["args"] for c in agent.history("inner")] == [[3], [3], [3]]
    assert agent.latest("inner").state == {"n": 3}


# -- cancellation


async def test_a_call_cancelled_during_its_first_save_does_not_happen(gated: GatedStore, gated_agent: Agent) -> None:
    called = []

    @gated_agent.snapshot_on("tool_call")
    async def tool() -> None:
        called.append(1)

    gated.gate.clear()
    task = asyncio.create_task(tool())
    await gated.someone_waits()
    task.cancel()
    await gated.someone_waits()
    gated.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert called == []
    assert gated_agent.statuses() == ["tool cancelled"]


@only_async
async def test_a_cancelled_call_is_noted_and_stays_cancelled(agent: Agent, face: str) -> None:
    running = asyncio.Event()

    @agent.snapshot_on("tool_call")
    async def forever() -> None:
        running.set()
        await asyncio.Event().wait()

    @agent.snapshot_on("llm_call")
    async def stream() -> AsyncIterator[int]:
        yield 1
        await forever()

    async def listen() -> None:
        async for _ in stream():
            pass

    async with agent.engine.thread("t"):
        task = asyncio.create_task(listen())
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert task.cancelled()
    assert agent.statuses("t") == ["stream started", "forever started", "forever cancelled", "stream cancelled"]
    kept = agent.latest("t").tools_result
    assert (kept["result"], kept["error"]["type"]) == ([1], "asyncio.exceptions.CancelledError")


@only_async
async def test_timeouts_and_task_groups_still_work(agent: Agent, face: str) -> None:
    running = asyncio.Event()

    @agent.snapshot_on("tool_call")
    async def forever() -> None:
        running.set()
        await asyncio.Event().wait()

    @agent.snapshot_on("tool_call")
    async def fails() -> None:
        await running.wait()
        raise ValueError("boom")

    async def in_time() -> None:
        async with agent.engine.thread("t"):
            async with asyncio.timeout(None) as limit:
                expiry = asyncio.create_task(expire(limit))
                await forever()
            await expiry

    async def expire(limit: asyncio.Timeout) -> None:
        await running.wait()
        limit.reschedule(0)

    async def in_a_group() -> None:
        async with agent.engine.thread("u"), asyncio.TaskGroup() as group:
            group.create_task(forever())
            group.create_task(fails())

    with pytest.raises(TimeoutError):
        await in_time()
    assert agent.statuses("t") == ["forever started", "forever cancelled"]
    running.clear()
    with pytest.raises(ExceptionGroup) as caught:
        await in_a_group()
    assert [str(error) for error in caught.value.exceptions] == ["boom"]
    assert sorted(agent.statuses("u")) == ["fails error", "fails started", "forever cancelled", "forever started"]


async def test_a_second_cancellation_is_not_kept_waiting_and_the_end_is_still_saved(
    gated: GatedStore, gated_agent: Agent
) -> None:
    running = asyncio.Event()

    @gated_agent.snapshot_on("tool_call")
    async def forever() -> None:
        running.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(forever())
    await running.wait()
    gated.gate.clear()
    task.cancel()
    await gated.someone_waits()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gated_agent.statuses() == ["forever started"]
    gated.gate.set()
    await until(lambda: not live._going_on)
    assert gated_agent.statuses() == ["forever started", "forever cancelled"]


async def test_a_live_thread_cancelled_while_it_leaves_is_still_saved(
    gated: GatedStore, gated_agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(name: str) -> None:
        async with gated_agent.engine.thread(name) as block:
            block.messages.append(USER)

    for name, broken in (("t", False), ("u", True)):
        gated.gate.clear()
        task = asyncio.create_task(work(name))
        await gated.someone_waits()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gated.broken = broken
        with caplog.at_level(logging.ERROR, "everstep"):
            gated.gate.set()
            await until(lambda: not live._going_on)
    assert gated_agent.latest("t").messages == [USER]
    assert [record.name for record in caplog.records] == ["everstep"]
    assert "no network" in caplog.text


# -- intervals


async def test_changes_are_saved_at_intervals(make_agent: Callable[..., Agent]) -> None:
    agent = make_agent(triggers=ALL)
    ticks = []

    def saved() -> bool:
        found = agent.engine.sync.get_latest("t")
        return found is not None and found.state.get("n") == 1 and found.metadata.trigger == "interval"

    async with agent.thread("t", interval_seconds=0.005) as block:
        ticking, save_changes = block._ticking, block._save_changes

        async def counted(engine: Any) -> None:
            await save_changes(engine)
            ticks.append(1)

        block._save_changes = counted
        block.state["n"] = 1
        await _wait(agent, saved)
        before = len(ticks)
        await _wait(agent, lambda: len(ticks) > before + 3)
        assert len(agent.history("t")) == 2  # the start, and one change
        block.state["n"] = 2
    assert ticking.done() if agent.face == "async" else not ticking.is_alive()
    assert [c.metadata.trigger for c in agent.history("t")][:2] == ["task_boundary", "interval"]
    assert agent.latest("t").metadata.trigger == "task_boundary"
    assert agent.latest("t").state == {"n": 2}


async def _wait(agent: Agent, condition: Callable[[], Any]) -> None:
    if agent.face == "async":
        await until(condition)
        return
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


async def test_without_the_trigger_there_is_no_timer(agent: Agent) -> None:
    async with agent.thread("t", interval_seconds=0.001) as block:
        assert block._ticking is None


async def test_a_state_changed_by_another_thread_is_saved_at_intervals(place: Any) -> None:
    store = place.open()
    agent = Agent(CheckpointEngine(StoreBackend(store), SnapshotConfig(triggers=["interval"])), "blocking")
    with agent.engine.sync.thread("t", interval_seconds=0.001) as block:
        end, n = time.monotonic() + 20, 0
        while len(agent.engine.sync.list_time_travel_points("t", limit=5)) < 5:
            assert time.monotonic() < end
            n += 1
            block.state = {"a": n, "b": n}
            block.state[f"k{n % 50}"] = n
    for found in agent.history("t"):
        assert found.state["a"] == found.state["b"]
    agent.engine.sync.close()


async def test_a_save_at_an_interval_that_fails_is_logged(gated: GatedStore, caplog: pytest.LogCaptureFixture) -> None:
    engine = CheckpointEngine(StoreBackend(gated), SnapshotConfig(triggers=["interval"]))
    with caplog.at_level(logging.ERROR, "everstep"):
        async with engine.thread("t", interval_seconds=0.002) as block:
            gated.broken = True
            block.state["n"] = 1
            await until(lambda: "no network" in caplog.text)
            gated.broken = False
            await until(lambda: engine.sync.get_latest("t"))


async def test_leaving_waits_for_a_save_at_an_interval(gated: GatedStore) -> None:
    engine = CheckpointEngine(StoreBackend(gated), SnapshotConfig(triggers=["interval"]))

    async def work() -> None:
        async with engine.thread("t", interval_seconds=0.002) as block:
            block.state["n"] = 1
            await gated.someone_waits()

    gated.gate.clear()
    task = asyncio.create_task(work())
    await gated.someone_waits()
    for _ in range(5):
        await asyncio.sleep(0)
    gated.gate.set()
    await task
    points = engine.sync.list_time_travel_points("t")
    assert [m.trigger for m in points] == ["interval"]


async def test_a_save_of_a_task_that_outlives_the_block_does_not_land_after_the_last_one(
    gated: GatedStore, gated_agent: Agent
) -> None:
    async def work() -> asyncio.Task[str]:
        async with gated_agent.engine.thread("t") as block:
            gated.gate.clear()
            block.state["n"] = 1
            saving = asyncio.create_task(block.save())
            await gated.someone_waits()
            block.state["n"] = 2
            gated.gate = asyncio.Event()
            gated.gate.set()  # nothing but the first save waits from now on
            asyncio.get_running_loop().call_later(0.01, first.set)
        return saving

    first = gated.gate
    await (await work())
    assert [c.state["n"] for c in gated_agent.history("t")] == [1, 2]


async def test_cancelled_while_waiting_for_the_timer_it_still_saves(gated: GatedStore) -> None:
    engine = CheckpointEngine(StoreBackend(gated), SnapshotConfig(triggers=["interval"]))
    leaving = asyncio.Event()

    async def work() -> None:
        async with engine.thread("t", interval_seconds=0.002) as block:
            block.state["n"] = 1
            await gated.someone_waits()
            block.state["n"] = 2
            leaving.set()

    gated.gate.clear()
    task = asyncio.create_task(work())
    await leaving.wait()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    gated.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not live._going_on)
    found = engine.sync.get_latest("t")
    assert found is not None
    assert found.state == {"n": 2}


# -- bad input: a clear error, and nothing lost


async def test_impossible_arguments_are_refused_at_once(agent: Agent) -> None:
    side = agent.side
    for trigger in ("sometimes", None, 5, len):
        with pytest.raises(InvalidInput, match="trigger"):
            side.snapshot_on(trigger)
        with pytest.raises(InvalidInput, match="trigger"):
            side.snapshot_scope("t", {}, trigger)
    for function in (None, 5, "name"):
        with pytest.raises(InvalidInput, match="functions"):
            side.snapshot_on("manual")(function)
    for thread_id in ("", None, 5, "\ud800"):
        with pytest.raises(InvalidInput, match="thread_id"):
            side.thread(thread_id)
        with pytest.raises(InvalidInput, match="thread_id"):
            side.snapshot_scope(thread_id, {})
    with pytest.raises(InvalidInput, match="state"):
        side.snapshot_scope("t", [])
    for seconds in (0, -1, float("nan"), float("inf"), True, "5", 10**400):
        with pytest.raises(InvalidInput, match="interval_seconds"):
            side.thread("t", interval_seconds=seconds)


def test_a_record_that_is_too_large_does_not_cost_the_conversation() -> None:
    engine = everstep.open("memory://", everstep.SnapshotConfig(max_snapshot_size_mb=0.01)).sync

    @engine.snapshot_on("tool_call")
    def large() -> bytes:
        return os.urandom(20_000)

    with engine.thread("t") as live:
        live.messages.append({"content": "hi"})
        large()
        live.messages.append({"content": "precious"})
    latest = engine.get_latest("t")
    assert latest is not None
    assert [m["content"] for m in latest.messages] == ["hi", "precious"]
    assert latest.tools_result["status"] == "started"
