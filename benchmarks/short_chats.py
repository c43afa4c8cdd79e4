"""Chats of a few turns in LangGraph's SqliteSaver and in ours: most chats are short. Part of `make bench`.

Each round is a new chat for each saver, in turn, on a store that holds chats already. What counts is the CPU time of
whole turns: LangGraph's own part is in it, and is the same on both sides.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from benchmarks.common import ratio, report
from benchmarks.on_langgraph import QUICK
from benchmarks.savers import SCRIPT, chat, closing_saver

LENGTHS = {10: 1.0, 50: 1.3}
"""How many turns, and how many times faster ours is to be."""
TURNS = 600
"""So many of each saver are measured for each length."""


def short_chats(folder: Path) -> None:
    """Report chats of 10 and of 50 turns."""
    places = {"sqlite": str(folder / "stock.db"), "everstep": f"sqlite:///{folder / 'everstep.db'}"}
    with contextlib.ExitStack() as stack:
        graphs = {kind: chat(stack.enter_context(closing_saver(kind, place))) for kind, place in places.items()}
        numbers = itertools.count()
        for length, target in LENGTHS.items():
            rounds = (TURNS // 10 if QUICK else TURNS) // length
            # The first chats of a process compile statements and fill what is remembered.
            _measured(graphs, length, 2, numbers)
            seconds = _measured(graphs, length, rounds, numbers)
            times = ratio(seconds, "sqlite", "everstep")
            name = f"LangGraph: a turn of a chat of {length} turns against SqliteSaver"
            report(name, f"{times:.2f}x", f">= {target}x", times >= target)


def _measured(
    graphs: dict[str, Any], length: int, rounds: int, numbers: itertools.count[int]
) -> dict[str, list[float]]:
    """Return the CPU seconds of each new chat, by saver."""
    seconds: dict[str, list[float]] = {kind: [] for kind in graphs}
    for _ in range(rounds):
        for kind, graph in graphs.items():
            config: RunnableConfig = {"configurable": {"thread_id": f"chat {next(numbers)}"}}
            seconds[kind].append(_seconds_of_chat(graph, config, length))
    return seconds


def _seconds_of_chat(graph: Any, config: RunnableConfig, length: int) -> float:
    gc.collect()
    started = time.process_time()
    for turn in range(length):
        graph.invoke({"messages": [HumanMessage(SCRIPT[2 * turn])]}, config)
    return time.process_time() - started
