"""A store as seen from inside one of its own transactions: what a turn works on, where a turn is a transaction."""

# ruff: noqa: ARG002  # what is refused looks at no argument

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from everstep.stores.protocol import (
    BaseRef,
    Change,
    Deleted,
    Hit,
    Key,
    Loaded,
    Newest,
    Object,
    Operation,
    Outline,
    Part,
    Place,
    Query,
    RawThread,
    Search,
    Store,
    Stored,
    Swept,
    Thread,
    Write,
)


class Inside:
    """Reads and commits inside a transaction. Never suspends. Of what changes a store it has `commit` alone."""

    def __init__(
        self,
        store: Store,
        rows: Any,
        load: Callable[[str, str, str | None, bool, bool], Loaded | None],
        commit: Callable[[Change], Stored | None],
    ) -> None:
        """`rows` are the tables of the transaction; `load` and `commit` are what the store does on them."""
        self._store = store
        self._rows = rows
        self._load = load
        self._commit = commit

    @property
    def blocking(self) -> Store:
        """The store itself: what is kept for later must not be bound to the transaction."""
        return self._store.blocking

    @property
    def limit_seconds(self) -> float | None:
        return self._store.limit_seconds

    async def in_turn(self, thread_id: str, work: Any, seconds: float = 0.0) -> Any:
        return await work(self)

    async def clock(self) -> float:
        return await self._store.blocking.clock()

    async def commit(self, change: Change) -> Stored | None:
        return self._commit(change)

    async def read(
        self,
        thread_id: str,
        namespace: str = "",
        checkpoint_id: str | None = None,
        *,
        objects: bool = False,
        writes: bool = False,
    ) -> Loaded | None:
        return self._load(thread_id, namespace, checkpoint_id, objects, writes)

    async def read_many(self, keys: Sequence[Key], *, writes: bool = False) -> list[Loaded]:
        if not keys:
            return []
        found: list[Loaded] = self._rows.load_many(keys, writes)
        return found

    async def find(self, checkpoint_id: str) -> list[Key]:
        found: list[Key] = self._rows.find(checkpoint_id)
        return found

    async def fetch(self, family: str, hashes: Collection[bytes], *, below: bool = True) -> list[Object]:
        find = self._rows.shallow
        if below:
            find = self._rows.below
        found: list[Object] = find(family, hashes)
        return found

    async def list_checkpoints(self, query: Query) -> list[Stored]:
        found: list[Stored] = self._rows.list_checkpoints(query)
        return found

    async def count(self, query: Query) -> int:
        found: int = self._rows.count(query)
        return found

    async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
        found: list[Stored] = self._rows.list_threads(limit, offset, headless)
        return found

    async def search(self, search: Search) -> list[Hit]:
        found: list[Hit] = self._rows.search(search)
        return found

    async def thread(
        self, thread_id: str, *, branches: bool = False, ancestry: bool = False, brief: bool = False
    ) -> Thread | None:
        found: Thread | None = self._rows.thread(thread_id, branches, ancestry, brief)
        return found

    async def started(self, thread_id: str, namespace: str, after: int) -> list[int]:
        found: list[int] = self._rows.started(thread_id, namespace, after)
        return found

    async def segments(
        self, family: str, segments: Collection[int], *, older: int = 0
    ) -> Mapping[int, Sequence[Place]]:
        found: Mapping[int, Sequence[Place]] = self._rows.segments(family, segments, older)
        return found

    async def newest(
        self, thread_id: str, limit: int, *, branches: bool = False, without: str | None = None
    ) -> Newest | None:
        found: Newest | None = self._rows.newest(thread_id, limit, branches, without)
        return found

    async def outlines(self, position: int = 0) -> tuple[list[Outline], int | None]:
        found: tuple[list[Outline], int | None] = self._rows.outlines(position)
        return found

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        found: list[Operation] = self._rows.operations(thread_id, limit)
        return found

    async def raw(self, thread_id: str, *, family_threads: bool = False) -> RawThread | None:
        found: RawThread | None = self._rows.raw(thread_id, family_threads)
        return found

    # -- what has no place in a turn

    async def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None = None
    ) -> None:
        self._refuse()

    async def delete(
        self,
        thread_id: str,
        *,
        keys: Collection[Key] | None = None,
        before_step: int | None = None,
        spare: bool = False,
        operations: Collection[int] = (),
    ) -> Deleted:
        self._refuse()

    async def sweep(self, family: str, *, effort: int | None = None, pretend: Collection[Key] | None = None) -> Swept:
        self._refuse()

    async def adopt(self, part: Part) -> int:
        self._refuse()

    async def adopt_new(self, parts: Sequence[Part]) -> None:
        self._refuse()

    async def close(self) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise RuntimeError("a turn ends with one commit: this is done before or after it")
