"""Graphs that note which nodes ran, and what is told with them: turns of a graph and operations of the engine."""

from __future__ import annotations

import copy
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from everstep.langgraph import HarnessCheckpointer
from tests.conftest import OneFace
from tests.langgraph.graphs import shapes
from tests.langgraph.tools import at


class Killed(Exception):
    """What a node raises in place of a process that dies."""


class World:
    """What the nodes of a graph touch outside of its state."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.entries: list[str] = []
        self.failing: set[str] = set()
        self.after: set[str] = set()
        """What is stored before a failing node fails: the names of nodes that ran beside it."""
        self.stored: set[str] = set()
        self.waiting: dict[str, str] = {}
        """By node: what must be stored before it goes on."""
        self._changed = threading.Condition()

    def did(self, name: str) -> None:
        if name in self.failing:
            with self._changed:
                assert self._changed.wait_for(lambda: self.after <= self.stored, 30)
            raise Killed(name)
        with self._changed:
            assert self._changed.wait_for(lambda: name not in self.waiting or self.waiting[name] in self.stored, 30)
        self.ran.append(name)

    def node(self, name: str, **update: Any) -> Any:
        def run(_: Any) -> dict[str, Any]:
            self.did(name)
            return {"log": [name], **update}

        return run

    def wrote(self, config: Any, writes: Sequence[tuple[str, Any]]) -> None:
        with self._changed:
            if not config["configurable"].get("checkpoint_ns"):
                self.stored.update(channel for channel, _ in writes)
            self.stored.update(
                str(name).partition("#")[0] for channel, value in writes if channel == "log" for name in value
            )
            self._changed.notify_all()

    def took(self) -> list[str]:
        """Return what ran since the last time, in the order of names: nodes side by side have no other."""
        found, self.ran = sorted(self.ran), []
        return found


class Watched(HarnessCheckpointer):
    """A saver that tells a world what was written."""

    world: World

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        super().put_writes(config, writes, task_id, task_path)
        self.world.wrote(config, writes)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        await super().aput_writes(config, writes, task_id, task_path)
        self.world.wrote(config, writes)


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]
    n: int
    seen: int


def joined(checkpointer: Any, world: World) -> Any:
    """Nodes side by side, and one that waits for both."""
    graph: Any = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, world.node(name))
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    graph.add_edge(["a", "b"], "c")
    return graph.compile(checkpointer)


def looping(checkpointer: Any, world: World) -> Any:
    """A node that runs until a third is full."""

    def tick(state: Any) -> dict[str, Any]:
        world.did("tick")
        return {"log": ["tick"], "n": state.get("n", 0) + 1}

    graph: Any = StateGraph(Log)
    graph.add_node("tick", tick)
    graph.add_node("done", world.node("done"))
    graph.add_edge(START, "tick")
    graph.add_conditional_edges("tick", lambda state: "tick" if state["n"] % 3 else "done", ["tick", "done"])
    return graph.compile(checkpointer)


class Inner(TypedDict):
    memory: Annotated[list[str], operator.add]
    seen: int


def _inner(world: World, names: Sequence[str], checkpointer: Any) -> Any:
    """A graph with a memory: how much is in it is all that leaves it."""

    def last(state: Any) -> dict[str, Any]:
        world.did(names[1])
        return {"memory": [names[1]], "seen": len(state["memory"]) + 1}

    def first(_: Any) -> dict[str, Any]:
        world.did(names[0])
        return {"memory": [names[0]]}

    inner: Any = StateGraph(Inner)
    inner.add_node(names[0], first)
    inner.add_node(names[1], last)
    inner.add_edge(START, names[0])
    inner.add_edge(names[0], names[1])
    return inner.compile(checkpointer=checkpointer)


def _around(checkpointer: Any, world: World, inner: Any) -> Any:
    graph: Any = StateGraph(Log)
    graph.add_node("first", world.node("first"))
    graph.add_node("inner", inner)
    graph.add_node("last", world.node("last"))
    graph.add_edge(START, "first")
    graph.add_edge("first", "inner")
    graph.add_edge("inner", "last")
    return graph.compile(checkpointer)


def with_subgraph(checkpointer: Any, world: World) -> Any:
    return _around(checkpointer, world, _inner(world, ["x", "y"], None))


def with_lasting(checkpointer: Any, world: World) -> Any:
    """A subgraph that remembers earlier turns."""
    return _around(checkpointer, world, _inner(world, ["x", "y"], True))


def asking(checkpointer: Any, world: World) -> Any:
    """A node that asks twice, beside one that asks once and one that does not."""

    def ask(name: str, count: int) -> Any:
        def run(_: Any) -> dict[str, Any]:
            answers = [interrupt(f"{name}{n}?") for n in range(count)]
            world.did(name)
            return {"log": [(name, *answers)]}

        return run

    graph: Any = StateGraph(Log)
    graph.add_node("twice", ask("twice", 2))
    graph.add_node("once", ask("once", 1))
    graph.add_node("beside", world.node("beside"))
    graph.add_node("end", world.node("end"))
    for name in ("twice", "once", "beside"):
        graph.add_edge(START, name)
    graph.add_edge(["twice", "once", "beside"], "end")
    return graph.compile(checkpointer)


def deep(checkpointer: Any, world: World) -> Any:
    """A question inside a subgraph, beside other nodes there and outside."""

    def question(state: Any) -> dict[str, Any]:
        found = interrupt("deep?")
        world.did("q")
        return {"memory": [found], "seen": len(state["memory"]) + 1}

    def quick(name: str) -> Any:
        def run(_: Any) -> dict[str, Any]:
            world.did(name)
            return {"memory": [name]}

        return run

    inner: Any = StateGraph(Inner)
    inner.add_node("x", quick("x"))
    inner.add_node("p", quick("p"))
    inner.add_node("q", question)
    inner.add_edge(START, "x")
    inner.add_edge("x", "p")
    inner.add_edge("x", "q")
    graph: Any = StateGraph(Log)
    graph.add_node("inner", inner.compile())
    graph.add_node("beside", world.node("beside"))
    graph.add_node("end", world.node("end"))
    graph.add_edge(START, "inner")
    graph.add_edge(START, "beside")
    graph.add_edge(["inner", "beside"], "end")
    return graph.compile(checkpointer)


def sending(checkpointer: Any, world: World) -> Any:
    """Workers that are sent out."""

    def work(state: Any) -> dict[str, Any]:
        world.did("work")
        return {"log": [f"work{state['k']}"]}

    graph: Any = StateGraph(Log)
    graph.add_node("plan", world.node("plan"))
    graph.add_node("work", work)
    graph.add_node("end", world.node("end"))
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", lambda _: [Send("work", {"k": k}) for k in range(3)], ["work"])
    graph.add_edge("work", "end")
    graph.add_edge("end", END)
    return graph.compile(checkpointer)


class Told:
    """How a graph is made, what it is given turn by turn, and which nodes a step of it runs."""

    def __init__(
        self, build: Callable[[Any, World], Any], turns: list[Any], parts: Mapping[str, Sequence[str]]
    ) -> None:
        self.build, self.turns, self.parts = build, turns, parts


def _asked(twice: Any, once: Any, n: int) -> list[Any]:
    first = {"twice0?": (twice, 0), "once0?": once}
    return [{"log": [n]}, first, {"twice1?": (twice, 1)}]


TOLD: Mapping[str, Told] = {
    "joined": Told(joined, [{"log": [0]}, {"log": [1]}], {}),
    "looping": Told(looping, [{"log": [0], "n": 1}, {"log": [1]}], {}),
    "subgraph": Told(with_subgraph, [{"log": [0]}, {"log": [1]}], {"inner": "xy"}),
    "lasting": Told(with_lasting, [{"log": [0]}, {"log": [1]}], {"inner": "xy"}),
    "asking": Told(asking, [*_asked("A", "B", 0), *_asked("C", "D", 1)], {}),
    "deep": Told(deep, [{"log": [0]}, {"deep?": "yes"}, {"log": [1]}, {"deep?": "no"}], {"inner": "xpq"}),
    "sending": Told(sending, [{"log": [0]}, {"log": [1]}], {}),
}
"""A turn that is a mapping with questions for keys answers them."""


class Story:
    """A graph on a saver, and the engine on the same store. Everything is awaited, whichever face it is."""

    def __init__(
        self, backend: Any, told: Told | str | Callable[[Any, World], Any], face: str = "blocking", **options: Any
    ) -> None:
        self.told = TOLD[told] if isinstance(told, str) else told if isinstance(told, Told) else Told(told, [], {})
        self.face, self.world = face, World()
        self.saver = Watched(backend=backend, **options)
        self.saver.world = self.world
        self.app = self.told.build(self.saver, self.world)
        self.engine: Any = OneFace(self.saver.engine, face)
        self.durability: Any = "sync"
        self.marks: list[int] = []
        """After each turn: how many checkpoints there were."""

    async def turn(self, given: Any, thread: str = "t", config: Any = None) -> Any:
        config = config or at(thread, None)
        if isinstance(given, Mapping) and all(str(name).endswith("?") for name in given):
            open_now = (await self.state(config=config)).interrupts
            given = Command(resume={found.id: given[found.value] for found in open_now if found.value in given})
        given = copy.deepcopy(given)
        if self.face == "async":
            return await self.app.ainvoke(given, config, durability=self.durability)
        return self.app.invoke(given, config, durability=self.durability)

    async def killed(self, given: Any, thread: str, failing: str, after: Sequence[str] = ()) -> None:
        """Take a turn that dies in a node, once what ran beside it is stored."""
        self.world.failing, self.world.after, self.world.stored = {failing}, set(after), set()
        try:
            await self.turn(given, thread)
        except Killed:
            return
        finally:
            self.world.failing = set()
        raise AssertionError(f"{failing} did not run")

    async def tell(self) -> None:
        """Take all turns."""
        for given in self.told.turns:
            await self.turn(given)
            self.marks.append(len(await self.history()))

    async def state(self, thread: str = "t", *, config: Any = None, **options: Any) -> Any:
        config = config or at(thread, None)
        if self.face == "async":
            return await self.app.aget_state(config, **options)
        return self.app.get_state(config, **options)

    async def history(self, thread: str = "t", ns: str | None = None) -> list[Any]:
        if self.face == "async":
            return [found async for found in self.app.aget_state_history(at(thread, ns))]
        return list(self.app.get_state_history(at(thread, ns)))

    async def update(self, values: Any, thread: str = "t", as_node: str | None = None, config: Any = None) -> Any:
        config = config or at(thread, None)
        if self.face == "async":
            return await self.app.aupdate_state(config, values, as_node)
        return self.app.update_state(config, values, as_node)

    async def listed(self, thread: str = "t") -> list[Any]:
        """Return the thread's checkpoints with their writes, in all namespaces."""
        if self.face == "async":
            return [found async for found in self.saver.alist(at(thread, None))]
        return list(self.saver.list(at(thread, None)))

    async def whole(self, thread: str = "t") -> dict[str, Any]:
        """Return all that a graph can see of a thread."""
        return {
            "state": await self.state(thread, subgraphs=True),
            "history": await self.history(thread),
            "listed": await self.listed(thread),
        }

    async def log(self, thread: str = "t") -> list[Any]:
        return list((await self.state(thread)).values["log"])

    async def shapes(self, thread: str = "t") -> list[Any]:
        return shapes(await self.history(thread))

    def turn_of(self, position: int) -> int:
        """Return the turn that a checkpoint was made in, by its position in the history of the told thread."""
        made = self.marks[-1] - position
        return next(n for n, mark in enumerate(self.marks) if made <= mark)

    def parts(self, names: Sequence[str]) -> list[str]:
        """Return the nodes that run for these, those of subgraphs in their place."""
        return sorted(part for name in names for part in self.told.parts.get(name, [name]) if part != START)


def name_of(snapshot: Any) -> str:
    """Return the id of a checkpoint in a history."""
    return str(snapshot.config["configurable"]["checkpoint_id"])


# -- where stories are told: fixtures for the modules that import them

EVERYWHERE = [
    ("memory", "blocking"), ("sqlite", "async"), ("postgres", "blocking"), ("redis", "async"), ("cluster", "blocking"),
]  # fmt: skip


@pytest.fixture(params=EVERYWHERE, ids="-".join)
def where(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def kind(where: tuple[str, str]) -> str:
    return where[0]


@pytest.fixture
def face(where: tuple[str, str]) -> str:
    return where[1]


here = pytest.mark.parametrize("where", EVERYWHERE[:2], ids="-".join, indirect=True)
"""For rules that have nothing to do with the store."""

Begin = Callable[..., Story]
