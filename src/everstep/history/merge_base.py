"""What a merge is done against: the last common ancestor, or several of them merged into one.

Two threads that were merged into one another crosswise have two common ancestors, and neither of them alone is right:
merging against one would take the other's changes for news. So they are merged first, against their own common
ancestors. Where they conflict, nobody knows what the base is. Such paths are uncertain, and a merge treats any
difference there as a conflict.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from everstep.errors import InvalidInput
from everstep.history.adapter import is_own
from everstep.history.three_way import Merged, merge
from everstep.reports import Conflict
from everstep.stores.protocol import Record
from everstep.values import tree
from everstep.values.codec import Codec
from everstep.values.walk import Need, Root

P = TypeVar("P")


class MergeBase(NamedTuple):
    """The values to merge against."""

    root: Root
    uncertain: frozenset[str] = frozenset()
    objects: Mapping[bytes, tree.Content] = MappingProxyType({})
    """The objects of the base that no store holds, because the base itself was made by a merge."""


class MergeBaseFinder(Generic[P]):
    """Makes the base from common ancestors, which are named by a P."""

    def __init__(
        self,
        root_of: Callable[[P], Awaitable[Root]],
        below: Callable[[Sequence[P], P], Awaitable[Sequence[P]]],
        walk: Callable[[Need[Merged], Mapping[bytes, tree.Content]], Awaitable[Merged]],
        view: Callable[[Root], Root] = lambda root: root,
        reader: Codec | None = None,
    ) -> None:
        """`below` gives the best common ancestors of some checkpoints taken together and another one.

        `view` gives the part of a checkpoint's values that is merged, `reader` reads them.
        """
        self._root_of = root_of
        self._below = below
        self._walk = walk
        self._view = view
        self._reader = reader

    async def merged(self, ancestors: Sequence[P]) -> MergeBase:
        """Return the base that all of these make together."""
        # One after the other, since a merge has two sides: each step joins one ancestor to the base made so
        # far.
        base = MergeBase(await self._root_of(ancestors[0]))
        for done, ancestor in enumerate(ancestors[1:], 1):
            older = await self._below(ancestors[:done], ancestor)
            if not older:
                raise InvalidInput("the common ancestors of these threads have no ancestor in common themselves")
            base = await self._joined(await self.merged(older), base, await self._root_of(ancestor))
        return base

    async def _joined(self, older: MergeBase, one: MergeBase, other: Root) -> MergeBase:
        uncertain = older.uncertain | one.uncertain
        conflicting: list[str] = []

        def take_ours(conflict: Conflict) -> Any:
            # Any value will do: what counts is that the path is uncertain from now on.
            conflicting.append(conflict.path)
            return conflict.ours

        # What earlier merges have made is in no store, so it is handed on to the next one.
        objects = {**older.objects, **one.objects}
        need = merge(
            self._view(older.root),
            self._view(one.root),
            self._view(other),
            resolve=take_ours,
            uncertain=uncertain,
            reader=self._reader,
        )
        found = await self._walk(need, objects)
        return MergeBase(root_of_nodes(found.nodes), uncertain | frozenset(conflicting), {**objects, **found.objects})


def root_of_nodes(nodes: Sequence[tree.Node]) -> Root:
    """Return the root that holds these nodes."""
    children = b""
    body = b""
    sizes: list[int] = []
    for node in nodes:
        children += node.children
        body += node.body
        sizes.append(node.size)
    return Root(children, body, tuple(sizes))


def root_to_show(record: Record) -> Root:
    """Return the values of a checkpoint as people are shown them, whoever wrote it."""
    return record.root if is_own(record.kind) else shown_root(record.root)


def shown_root(root: Root) -> Root:
    """Return what is shown of an adapter's values. The adapter keeps data of its own where the results of tools are."""
    return root_of_nodes([*tree.nodes(*root)[:2], tree.EMPTY_MAP])
