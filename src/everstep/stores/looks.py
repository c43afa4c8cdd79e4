"""What a store reads, each method as one look at its rows: the same for every store whose rows have these methods.

Here is also how a deletion is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from everstep.stores.deletion import Deletion
from everstep.stores.protocol import (
    Deleted,
    Hit,
    Key,
    Newest,
    Object,
    Operation,
    Outline,
    Place,
    Query,
    RawThread,
    Search,
    Stored,
    Thread,
)

T = TypeVar("T")


class Looks(ABC):
    """The methods of a store that read, but for those that read checkpoints with their values."""

    @abstractmethod
    async def _look(self, work: Callable[[Any], T], thread_id: str | None = None, *, is_view: bool = False) -> T:
        """Return what some work finds in the rows; `thread_id` is the thread that it is about.

        With `is_view` it takes several statements, which must see one state.
        """

    async def find(self, checkpoint_id: str) -> list[Key]:
        return await self._look(lambda rows: rows.find(checkpoint_id))

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        if below:
            return await self._look(lambda rows: rows.below(family, hashes))
        return await self._look(lambda rows: rows.shallow(family, hashes))

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        return await self._look(lambda rows: rows.list_checkpoints(query), query.thread_id)

    async def count(self, query: Query) -> int:
        return await self._look(lambda rows: rows.count(query), query.thread_id)

    async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
        return await self._look(lambda rows: rows.list_threads(limit, offset, headless))

    async def search(self, search: Search) -> list[Hit]:
        return await self._look(lambda rows: rows.search(search))

    async def thread(
        self, thread_id: str, *, branches: bool = False, ancestry: bool = False, brief: bool = False
    ) -> Thread | None:
        return await self._look(lambda rows: rows.thread(thread_id, branches, ancestry, brief), thread_id, is_view=True)

    async def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        return await self._look(lambda rows: rows.started(thread_id, namespace, after), thread_id)

    async def segments(
        self, family: str, segments: Collection[int], *, older: int = 0
    ) -> Mapping[int, Sequence[Place]]:
        return await self._look(lambda rows: rows.segments(family, segments, older))

    async def newest(
        self, thread_id: str, limit: int, *, branches: bool = False, without: str | None = None
    ) -> Newest | None:
        return await self._look(lambda rows: rows.newest(thread_id, limit, branches, without), thread_id, is_view=True)

    async def outlines(self, position: int = 0) -> tuple[list[Outline], int | None]:
        return await self._look(lambda rows: rows.outlines(position))

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        return await self._look(lambda rows: rows.operations(thread_id, limit), thread_id)

    async def logs(self, thread_ids: Sequence[str], limit: int) -> dict[str, list[Operation]]:
        """Return the logs of several threads: see `ReadsFamilies`."""
        if not thread_ids:
            return {}
        return await self._look(lambda rows: rows.logs(thread_ids, limit))

    async def origins(self, thread_id: str) -> dict[str, Key]:
        """Return where the branches of a family began: see `ReadsFamilies`."""
        return await self._look(lambda rows: rows.origins(thread_id), thread_id)

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        return await self._delete(Deletion(thread_id, keys, before_step, spare, operations))

    @abstractmethod
    async def _delete(self, deletion: Deletion) -> Deleted:
        """Delete from a thread."""

    async def raw(self, thread_id: str, *, family_threads: bool = False) -> RawThread | None:
        return await self._look(lambda rows: rows.raw(thread_id, family_threads), thread_id, is_view=True)
