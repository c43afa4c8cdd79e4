"""Pages of long histories by how many rows are above them, so that a scroll bar can jump anywhere.

A history that is one straight line needs nothing for that. Of others an index is kept while people look at them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from everstep.engine import CheckpointEngine
from everstep.errors import InvalidInput
from everstep.views import jumps
from everstep.views.history import page_from
from everstep.views.index import Index

HISTORIES_MAX = 50
"""Histories whose index is kept."""


class _Which(NamedTuple):
    """A history, as it is looked at."""

    thread_id: str
    hidden: bool
    branches: bool


class Places:
    """Pages of histories by their place."""

    def __init__(self, engine: CheckpointEngine) -> None:
        self._engine = engine
        self._indexes: OrderedDict[_Which, Index] = OrderedDict()

    async def page(
        self, thread_id: str, offset: int, *, limit: int, hidden: bool = False, branches: bool = True, **asked: Any
    ) -> dict[str, Any]:
        """Return the rows from a place on. Filters would give them other places, so there must be none."""
        if any(asked.values()):
            raise InvalidInput("offset counts all rows: leave it out where there is a filter or a cursor")
        begin = None if hidden else await jumps.straight(self._engine, thread_id, offset, branches=branches)
        if begin is not None:
            return await page_from(self._engine, thread_id, begin, 0, limit, hidden=hidden, branches=branches)
        index = self._index(_Which(thread_id, hidden, branches))
        # This is quick if nothing has changed.
        await index.build()
        return await index.page(offset, limit=limit)

    async def find(self, thread_id: str, checkpoint_id: str) -> dict[str, Any]:
        """Return which row of the whole history a checkpoint is; None if it is not among them."""
        return {"id": checkpoint_id, "place": await jumps.place_of(self._engine, thread_id, checkpoint_id)}

    def _index(self, which: _Which) -> Index:
        found = self._indexes.pop(which, None)
        if found is None:
            found = Index(self._engine, which.thread_id, hidden=which.hidden, branches=which.branches)
        # Put back at the end: the first one is the one that nobody has asked for the longest.
        self._indexes[which] = found
        if len(self._indexes) > HISTORIES_MAX:
            self._indexes.popitem(last=False)
        return found
