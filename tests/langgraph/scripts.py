"""Graphs that do what a script says, and what they did."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph


class Script:
    """A graph of nodes that do what a test says, and a note of what ran."""

    def __init__(self, **acts: Callable[[Any], Any]) -> None:
        self.acts, self.ran = acts, list[str]()

    def graph(self, schema: Any = None) -> Any:
        graph: Any = StateGraph(schema or Work)
        before = START
        for name in self.acts:
            graph.add_node(name, self._node(name))
            graph.add_edge(before, name)
            before = name
        return graph

    def _node(self, name: str) -> Callable[[Any], Any]:
        def run(state: Any) -> Any:
            self.ran.append(name)
            return self.acts[name](state)

        return run


class Work(TypedDict, total=False):
    logs: Annotated[list[Any], operator.add]
    current_stage: str


def log(*lines: Any) -> Callable[[Any], Any]:
    return lambda _: {"logs": list(lines)}
