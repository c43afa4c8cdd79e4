"""Many small threads of a PostgresSaver, brought over by `import_langgraph` and verified. Part of `make bench`.

The stock saver writes them into a real PostgreSQL, as a graph of two nodes does it. How many checkpoints come over in a
second is told by the clock, and by the processor time of the importing process: the servers take theirs besides.
"""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import psycopg
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from benchmarks.common import report, words
from benchmarks.on_langgraph import QUICK
from benchmarks.savers import closing_saver
from everstep.errors import DurabilityWarning
from everstep.langgraph import HarnessCheckpointer, import_langgraph
from tests.tools import servers

THREADS = 40 if QUICK else 400
TURNS = 3
ROUNDS = 1 if QUICK else 3
PER_SECOND = 1_000

Opener = Callable[[], HarnessCheckpointer]


class _State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    plan: str


class _Rate(NamedTuple):
    """Checkpoints per second."""

    by_clock: float
    by_cpu: float


def import_threads(folder: Path) -> None:
    """Four checkpoints a turn, three turns a thread."""
    with ExitStack() as running, warnings.catch_warnings():
        warnings.simplefilter("ignore", DurabilityWarning)  # the disk is not what is measured
        postgres = running.enter_context(servers.PostgresServer(durable=False))
        valkey = running.enter_context(servers.ValkeyServer(durable=False))
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE stock")
        source = postgres.url.rpartition("/")[0] + "/stock"
        _fill(source)
        numbers = itertools.count()
        targets: dict[str, Opener] = {
            "SQLite": lambda: HarnessCheckpointer.from_url(f"sqlite:///{folder}/{next(numbers)}.db"),
            "PostgreSQL": lambda: HarnessCheckpointer.from_url(postgres.url, table_prefix=f"import{next(numbers)}_"),
            "Valkey": lambda: HarnessCheckpointer.from_url(valkey.url, key_prefix=f"import{next(numbers)}:"),
        }
        rates: dict[str, list[_Rate]] = {name: [] for name in targets}
        for _ in range(ROUNDS):
            for name, opener in targets.items():
                rates[name].append(_measure(source, opener))
        for name, found in rates.items():
            by_clock = statistics.median(rate.by_clock for rate in found)
            by_cpu = statistics.median(rate.by_cpu for rate in found)
            wanted = f">= {PER_SECOND:,} by the clock"
            figure = f"{by_clock:,.0f} / {by_cpu:,.0f}"
            report(f"PostgresSaver to {name}: checkpoints/s by clock / CPU", figure, wanted, by_clock >= PER_SECOND)


def _fill(url: str) -> None:
    """Let the stock saver write small threads."""

    def think(_: Any) -> dict[str, Any]:
        return {"plan": words(60)}

    def answer(_: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(words(300))]}

    built: Any = StateGraph(_State)
    built.add_node("think", think).add_node("answer", answer)
    built.add_edge(START, "think").add_edge("think", "answer")
    with closing_saver("postgres", url) as saver:
        graph = built.compile(checkpointer=saver)
        for n in range(THREADS):
            for _ in range(TURNS):
                graph.invoke({"messages": [HumanMessage(words(120))]}, {"configurable": {"thread_id": f"user {n}"}})


def _measure(source: str, opener: Opener) -> _Rate:
    saver = opener()
    try:
        cpu = time.process_time()
        clock = time.perf_counter()
        done = import_langgraph(source, saver, quiet=True)
        clock = time.perf_counter() - clock
        cpu = time.process_time() - cpu
    finally:
        saver.close()
    if done.verified != done.checkpoints or done.threads != THREADS:
        raise RuntimeError(f"not all came over: {done}")
    return _Rate(done.checkpoints / clock, done.checkpoints / cpu)
