"""Real graphs, small and deterministic, and what is compared of their histories."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, StateSnapshot, interrupt


class Pickled:
    """A serializer that loses nothing, for savers to compare with: LangGraph's own makes lists of tuples."""

    def dumps_typed(self, value: Any) -> tuple[str, bytes]:
        return "pickle", pickle.dumps(value)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return pickle.loads(data[1])


def in_memory() -> InMemorySaver:
    return InMemorySaver(serde=Pickled())


def folded(state: Any, writes: Sequence[Any]) -> Any:
    """Apply `add_messages` to each write: a reducer for delta channels."""
    for write in writes:
        state = add_messages(state, write)
    return state


def added(state: Any, writes: Sequence[Any]) -> Any:
    return [*(state or []), *(item for write in writes for item in write)]


class Chat(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]
    turns: int


class DeltaChat(TypedDict):
    messages: Annotated[list[BaseMessage], DeltaChannel(folded, snapshot_frequency=3)]
    log: Annotated[list[Any], DeltaChannel(added, snapshot_frequency=1000)]
    turns: int


def _answer(state: Any) -> dict[str, Any]:
    turns = state.get("turns", 0) + 1
    last = state["messages"][-1]
    found: list[Any] = [AIMessage(f"answer {turns} to {last.content}", id=f"a{turns}-{last.id}")]
    if turns % 4 == 0:  # now and then something is taken back
        found.append(RemoveMessage(id=state["messages"][0].id))
    return {"messages": found, "turns": turns}


def _note(state: Any) -> dict[str, Any]:
    return {"log": [("note", len(state["messages"]), {"turn": state["turns"]})]}


def chat(checkpointer: Any, schema: Any = Chat) -> Any:
    graph = StateGraph(schema)
    graph.add_node("answer", _answer)
    graph.add_node("note", _note if schema is DeltaChat else lambda state: {"turns": state["turns"]})
    graph.add_edge(START, "answer")
    graph.add_edge("answer", "note")
    graph.add_edge("note", END)
    return graph.compile(checkpointer)


def delta_chat(checkpointer: Any) -> Any:
    return chat(checkpointer, DeltaChat)


class Tiny(TypedDict):
    log: Annotated[list[Any], DeltaChannel(added, snapshot_frequency=2)]


def tiny_delta(checkpointer: Any) -> Any:
    """Checkpoints so small that nothing in them is an object of its own."""
    graph = StateGraph(Tiny)
    graph.add_node("add", lambda state: {"log": [len(state["log"])]})
    graph.add_node("idle", lambda state: {})
    graph.add_edge(START, "add")
    graph.add_edge("add", "idle")
    return graph.compile(checkpointer)


class Adding(TypedDict):
    items: Annotated[list[Any], operator.add]
    whole: list[Any]
    total: Annotated[int, operator.add]
    messages: list[Any]


def adding(checkpointer: Any) -> Any:
    """Reducers of one's own, and lists without one that are given whole each time."""

    def work(state: Any) -> dict[str, Any]:
        whole = [*state.get("whole", []), {"n": len(state["items"])}]
        messages = [*state.get("messages", []), HumanMessage("x", id=str(len(whole)))]
        return {"items": [(len(whole), "x" * 50)], "whole": whole, "total": 1, "messages": messages}

    graph = StateGraph(Adding)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    graph.add_conditional_edges("work", lambda state: "work" if state["total"] % 3 else END, ["work", END])
    return graph.compile(checkpointer)


class Fan(TypedDict):
    items: Annotated[list[Any], operator.add]
    done: bool


def fan(checkpointer: Any) -> Any:
    """Nodes side by side, and workers sent out."""
    graph = StateGraph(Fan)
    graph.add_node("left", lambda state: {"items": ["left"]})
    graph.add_node("right", lambda state: {"items": ["right"]})
    graph.add_node("worker", lambda state: {"items": [("worked", state["n"])]})
    graph.add_node("end", lambda state: {"done": True})
    graph.add_edge(START, "left")
    graph.add_edge(START, "right")
    graph.add_conditional_edges("left", lambda state: [Send("worker", {"n": n}) for n in range(3)], ["worker"])
    graph.add_edge(["worker", "right"], "end")
    return graph.compile(checkpointer)


def asking(checkpointer: Any) -> Any:
    """A node that asks, beside one that does not: its result waits as a pending write."""

    def ask(state: Any) -> dict[str, Any]:
        first = interrupt({"ask": "first", "n": len(state["items"])})
        second = interrupt({"ask": "second"})
        return {"items": [("asked", first, second)]}

    graph = StateGraph(Fan)
    graph.add_node("ask", ask)
    graph.add_node("beside", lambda state: {"items": ["beside"]})
    graph.add_node("end", lambda state: {"done": True})
    graph.add_edge(START, "ask")
    graph.add_edge(START, "beside")
    graph.add_edge(["ask", "beside"], "end")
    return graph.compile(checkpointer)


class Sub(TypedDict):
    items: Annotated[list[Any], operator.add]
    inner: str


def nested(checkpointer: Any) -> Any:
    """A graph in a graph, which asks, and keeps a history of its own."""

    def ask(state: Any) -> dict[str, Any]:
        return {"items": [interrupt("inner?")], "inner": "asked"}

    inner = StateGraph(Sub)
    inner.add_node("before", lambda state: {"items": ["before"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "before")
    inner.add_edge("before", "ask")
    graph = StateGraph(Fan)
    graph.add_node("first", lambda state: {"items": ["first"]})
    graph.add_node("inner", inner.compile(checkpointer=True))
    graph.add_node("end", lambda state: {"done": True})
    graph.add_edge(START, "first")
    graph.add_edge("first", "inner")
    graph.add_edge("inner", "end")
    return graph.compile(checkpointer)


def functions(checkpointer: Any) -> Any:
    """The functional API: what a run returned is there for the next."""

    @task
    def double(n: int) -> int:
        return 2 * n

    @entrypoint(checkpointer)
    def flow(given: Any, *, previous: Any = None) -> Any:
        doubled = [double(n).result() for n in range(3)]
        return {"given": given, "doubled": doubled, "before": (previous or {}).get("given")}

    return flow


def human(n: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"question {n}", id=f"h{n}")]}


GRAPHS: Mapping[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "chat": (chat, [human(n) for n in range(6)]),
    "delta chat": (delta_chat, [human(n) for n in range(6)]),
    "tiny delta": (tiny_delta, [{"log": [f"in {n}"]} for n in range(4)]),
    "adding": (adding, [{"items": [n]} for n in range(3)]),
    "fan": (fan, [{"items": [n]} for n in range(3)]),
    "asking": (asking, [{"items": [0]}, Command(resume="one"), Command(resume="two"), {"items": [1]}]),
    "nested": (nested, [{"items": [0]}, Command(resume="yes"), {"items": [1]}, Command(resume={"deep": (1,)})]),
    "functions": (functions, [1, {"x": 2}, [3]]),
}
"""By name: how a graph is made, and what is passed to it, turn by turn."""


def shapes(history: Iterable[StateSnapshot]) -> list[dict[str, Any]]:
    """Return what two histories of the same graph must have in common: all but ids and times."""
    listed = list(history)
    places = {snapshot.config["configurable"]["checkpoint_id"]: n for n, snapshot in enumerate(listed)}

    def place(config: Any) -> Any:
        return config and places.get(config["configurable"]["checkpoint_id"], "elsewhere")

    return [
        {
            "values": snapshot.values,
            "next": snapshot.next,
            "metadata": _without_ids(dict(snapshot.metadata or {}), places),
            "parent": place(snapshot.parent_config),
            "tasks": [
                (task.name, task.path, task.error, [asked.value for asked in task.interrupts], task.result)
                for task in snapshot.tasks
            ],
            "interrupts": [asked.value for asked in snapshot.interrupts],
        }
        for snapshot in listed
    ]


def _without_ids(metadata: dict[str, Any], places: Mapping[str, int]) -> dict[str, Any]:
    parents = {ns.split(":")[0]: places.get(name, "elsewhere") for ns, name in (metadata.get("parents") or {}).items()}
    counters = metadata.get("counters_since_delta_snapshot")
    rest = {name: value for name, value in metadata.items() if name not in ("parents", "thread_id", "run_id")}
    if counters is not None:
        rest["counters_since_delta_snapshot"] = {name: list(count) for name, count in counters.items()}
    return {**rest, "parents": parents}
