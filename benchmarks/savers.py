"""The LangGraph savers that are compared, one that does nothing but remember, and the chat that all of them save."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, Checkpoint, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from psycopg.rows import dict_row

from benchmarks.common import WORDS
from everstep.langgraph import HarnessCheckpointer

# -- the chat ----------------------------------------------------------------------------------------------------------

_RNG = random.Random(30)
SCRIPT = [" ".join(_RNG.choices(WORDS, k=30 if n % 2 == 0 else 100)) for n in range(2000)]
"""What is said: 30 words by the user, 100 by the model, in turn."""

CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}}


class Plain(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Delta(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]


def chat(saver: BaseCheckpointSaver[Any], shape: type[Any] = Plain) -> Any:
    """Return a graph whose one node says what the script says."""

    def model(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(SCRIPT[len(state["messages"])])]}

    graph = StateGraph(shape).add_node("model", model).set_entry_point("model").set_finish_point("model")
    return graph.compile(checkpointer=saver)


def take_turn(graph: Any, turn: int) -> None:
    graph.invoke({"messages": [HumanMessage(SCRIPT[2 * turn])]}, CONFIG)


# -- the savers --------------------------------------------------------------------------------------------------------


def everstep_saver(url: str, **options: Any) -> Any:
    return HarnessCheckpointer.from_url(url, **options)


def open_saver(kind: str, place: str) -> Any:
    """Return a new saver. `place` is a URL for everstep and postgres, a path for sqlite and delta."""
    if kind == "everstep":
        return everstep_saver(place)
    if kind == "postgres":
        return postgres_saver(place)
    if kind in ("sqlite", "delta"):
        return sqlite_saver(Path(place))
    return {"memory": InMemorySaver, "floor": Floor}[kind]()


def schema(kind: str) -> type[Any]:
    return Delta if kind == "delta" else Plain


@contextlib.contextmanager
def closing_saver(kind: str, place: str) -> Iterator[Any]:
    saver = open_saver(kind, place)
    try:
        yield saver
    finally:
        if kind == "everstep":
            saver.close()
        elif hasattr(saver, "conn"):
            saver.conn.close()


def sqlite_saver(path: Path) -> SqliteSaver:
    """As durable as ours: WAL, as it sets itself, and a commit waits for the disk."""
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    return SqliteSaver(connection)


def postgres_saver(url: str) -> PostgresSaver:
    saver = PostgresSaver(psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row))
    saver.setup()
    return saver


class Floor(BaseCheckpointSaver[int]):
    """Keeps the objects as they are, without a copy: what LangGraph itself costs."""

    def __init__(self) -> None:
        super().__init__()
        self._saved: dict[str, tuple[Checkpoint, Any, RunnableConfig | None]] = {}
        self._writes: dict[str, dict[tuple[str, int], tuple[str, str, Any]]] = defaultdict(dict)
        self._latest = ""

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        name = config["configurable"].get("checkpoint_id") or self._latest
        if name not in self._saved:
            return None
        checkpoint, metadata, parent = self._saved[name]
        writes = list(self._writes[name].values())
        return CheckpointTuple(_config(name), checkpoint, metadata, parent, writes)

    def list(self, *_: Any, **__: Any) -> Iterator[CheckpointTuple]:
        for name in sorted(self._saved, reverse=True):
            found = self.get_tuple(_config(name))
            if found:
                yield found

    def put(self, config: RunnableConfig, checkpoint: Checkpoint, metadata: Any, new_versions: Any) -> RunnableConfig:
        del new_versions  # all values are kept
        parent = config["configurable"].get("checkpoint_id")
        self._latest = checkpoint["id"]
        self._saved[self._latest] = checkpoint, metadata, _config(parent) if parent else None
        return _config(self._latest)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        del task_path
        mine = self._writes[config["configurable"]["checkpoint_id"]]
        for position, (channel, value) in enumerate(writes):
            mine[task_id, WRITES_IDX_MAP.get(channel, position)] = task_id, channel, value


def _config(checkpoint_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}
