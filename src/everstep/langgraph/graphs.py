"""What is used of a graph of LangGraph's, as types: so that what its `invoke` returns is what ours return."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

V_co = TypeVar("V_co", covariant=True)


class Graph(Protocol[V_co]):
    """A compiled graph."""

    def invoke(self, given: Any, config: Any = None, /) -> V_co:
        """Run it and return its values."""


class AsyncGraph(Protocol[V_co]):
    """A compiled graph, for event loops."""

    async def ainvoke(self, given: Any, config: Any = None, /) -> V_co:
        """Run it and return its values."""


class Builder(Protocol[V_co]):
    """A graph that is not compiled yet."""

    def compile(self) -> Graph[V_co]:
        """Return the compiled graph."""
