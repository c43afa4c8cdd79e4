"""Stores to copy from and to, and copies that are stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep import (
    CheckpointEngine,
    MemoryCheckpointer,
    PostgresCheckpointer,
    RedisCheckpointer,
    SQLiteCheckpointer,
    StoreBackend,
)
from everstep.stores.protocol import Part, Store
from tests.tools import servers

Make = Callable[[str], StoreBackend]


def open_backend(kind: str, folder: Path, number: int) -> StoreBackend:
    if kind == "memory":
        return MemoryCheckpointer()
    if kind == "sqlite":
        return SQLiteCheckpointer(folder / f"{number}.db")
    if kind in ("redis", "cluster"):
        url = servers.redis() if kind == "redis" else servers.redis_cluster()
        return RedisCheckpointer(url, key_prefix=servers.redis_prefix())
    prefix = f"copy{number}_"
    servers.clear_postgres(prefix)
    return PostgresCheckpointer(servers.postgres(), table_prefix=prefix, max_size=2)


def busy(backend: StoreBackend) -> None:
    """Use numbers, so that those of a copy cannot be the same."""
    engine = CheckpointEngine(backend).sync
    for n in range(7):
        engine.append("resident", [], {"n": n})
    engine.rewind(engine.list_time_travel_points("resident")[3].checkpoint_id)


def of_copy(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was there before the copy."""
    found = {name: what for name, what in found.items() if name != "resident"}
    found["threads"] = [head for head in found["threads"] if head["thread_id"] != "resident"]
    found["every thread"] = [name for name in found["every thread"] if name != "resident"]
    return found


class Recording:
    """A store that notes what it adopts, and lets a test come in between."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.parts: list[Part] = []
        self.before: Callable[[Part], Part | None] = lambda part: part

    @property
    def blocking(self) -> Recording:
        twin = Recording(self._store.blocking)
        twin.parts, twin.before = self.parts, self.before
        return twin

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def adopt(self, part: Part) -> int:
        self.parts.append(part)
        changed = self.before(part)
        if changed is None:
            raise Killed
        return await self._store.adopt(changed)


class Killed(BaseException):
    pass


def stopping_after(count: int) -> Callable[[Part], Part | None]:
    left = iter(range(count))
    return lambda part: part if next(left, None) is not None else None
