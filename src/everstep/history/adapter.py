"""Threads that an adapter wrote, as the engine sees them.

The code of an adapter is loaded when the first such thread is met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from everstep.errors import InvalidInput
from everstep.stores.protocol import Draft, Hidden, Key, Loaded, Place, Record, Store, Stored, Thread, Write
from everstep.types import RUN_KIND
from everstep.values.codec import Codec
from everstep.values.tree import Content

# It looks at records as people see them, for which it comes here; the others few need.
if TYPE_CHECKING:
    from everstep.history.ancestry import Ancestry
    from everstep.history.merge_base import MergeBase
    from everstep.history.three_way import Resolve
    from everstep.reports import Difference


class WayBack(NamedTuple):
    """What a rewind does to a thread."""

    heads: Mapping[str, str | None]
    """The head of each namespace after the rewind."""
    later: Sequence[Hidden]
    """The checkpoints that are left behind."""
    writes: Sequence[Hidden]
    """Pending writes that the rewind takes back."""
    depth: int
    """How many visible checkpoints are left behind."""
    before: int
    """How many visible checkpoints there were."""
    kept: Sequence[Hidden] = ()
    """Pending writes that stay although others of their checkpoint are undone."""


class Beginning(NamedTuple):
    """A branch: its first checkpoints, one for each namespace it needs."""

    origin: Stored
    drafts: Sequence[Draft]
    """The first one is made from the origin."""
    writes: Sequence[tuple[Key, Write]]


class Adapter(Protocol):
    """What is special about the threads of one kind."""

    codec: Codec
    """Reads values as the engine shows them."""
    merge_codec: Codec
    """Reads and writes the values of conflicts."""

    def opened(self, record: Record, objects: Mapping[bytes, Content]) -> tuple[list[Any], str]:
        """Return messages, state and results of tool calls, and the next node."""

    def described(self, record: Record) -> tuple[tuple[str, ...], str]:
        """Return tags and summary."""

    def unpacked(self, form: Any, packed: bytes) -> Any:
        """Return a value that is kept by itself, such as the result of an effect."""

    async def shown(
        self, repository: Any, changes: Sequence[Difference], before: Stored, after: Stored
    ) -> list[Difference]:
        """Return what changed between two checkpoints, one of them of this kind, as people see it."""

    async def way_back(self, store: Store, thread: Thread, target: Loaded) -> WayBack:
        """Return what a rewind to `target` does."""

    async def beginning(self, repository: Any, source: Stored, thread_id: str, name: str) -> Beginning:
        """Return how a branch begins."""

    def lasting(self, thread: Thread) -> list[str]:
        """Return the namespaces in which something is remembered from call to call."""

    def taken_over(self, source: Stored, thread_id: str) -> Draft:
        """Return a checkpoint as the first of its namespace in another thread."""

    def subgraph(self, graph: Any, namespace: str) -> Any:
        """Return the graph that runs in a namespace, or None."""

    async def merged(
        self,
        repository: Any,
        sides: tuple[Stored, Stored],
        base: MergeBase,
        bases: Sequence[Place],
        ancestry: Ancestry,
        *,
        resolve: Resolve,
        graph: Any,
    ) -> Draft:
        """Return the checkpoint that a merge of ours and theirs makes; `base` is made of the common ancestors.

        `ancestry` is the family's. It has no id yet: see `named`.
        """

    async def named(self, store: Store, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the checkpoints of one merge with their ids, the first one's namespace being what is merged."""


def is_own(kind: str) -> bool:
    """Whether checkpoints of this kind hold what the engine's own do."""
    return kind in ("", RUN_KIND)


def adapter_of(kind: str) -> Adapter | None:
    """Return the adapter that knows about threads of this kind, or None if they are the engine's own."""
    if is_own(kind):
        return None
    if kind == "langgraph":
        from everstep.langgraph.adapter import ADAPTER  # loaded when such a thread is met

        return ADAPTER
    raise InvalidInput(f"the thread was written by an adapter for {kind!r}, which this version does not know")


def described(record: Record) -> tuple[tuple[str, ...], str]:
    """Return the tags and the summary that people see."""
    adapter = adapter_of(record.kind)
    if adapter is None:
        return record.tags, record.summary
    return adapter.described(record)
