"""A store as seen from inside one of its own transactions: what a turn works on, where a turn is a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from everstep.stores.looks import Looks
from everstep.stores.protocol import Change, Key, Loaded, Store, Stored

T = TypeVar("T")


class Inside(Looks):
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

    async def in_turn(self, thread_id: str, work: Any, seconds: float = 0.0) -> Any:  # noqa: ARG002  # it is one
        return await work(self)

    async def _look(
        self,
        work: Callable[[Any], T],
        thread_id: str | None = None,  # noqa: ARG002  # all in the transaction
        *,
        is_view: bool = False,  # noqa: ARG002  # which sees one state
    ) -> T:
        return work(self._rows)

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

    # -- what has no place in a turn

    async def _refuse(self, *_args: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("a turn ends with one commit: this is done before or after it")

    put_writes = _delete = sweep = adopt = adopt_new = close = _refuse
