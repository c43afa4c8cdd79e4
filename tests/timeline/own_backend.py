"""A backend of somebody's own, with the seven published methods."""

from __future__ import annotations

import asyncio
import copy

from everstep import (
    Checkpoint,
    CheckpointBackend,
    CheckpointMetadata,
)


class Own(CheckpointBackend):
    """Dictionaries, with a real wait in every method."""

    def __init__(self) -> None:
        self.held: dict[str, Checkpoint] = {}
        self.closed = False

    async def put(self, checkpoint: Checkpoint) -> str:
        await asyncio.sleep(0)
        self.held[checkpoint.metadata.checkpoint_id] = copy.deepcopy(checkpoint)
        return checkpoint.metadata.checkpoint_id

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        await asyncio.sleep(0)
        return copy.deepcopy(self.held.get(checkpoint_id))

    async def get_latest(self, thread_id: str) -> Checkpoint | None:
        listed = await self.list_checkpoints(thread_id, 1)
        return await self.get(listed[0].checkpoint_id) if listed else None

    async def list_threads(self, limit: int = 50, offset: int = 0) -> list[CheckpointMetadata]:
        await asyncio.sleep(0)
        latest = {c.metadata.thread_id: c.metadata for c in self.held.values()}
        return list(latest.values())[::-1][offset : offset + limit]

    async def list_checkpoints(self, thread_id: str, limit: int = 100, offset: int = 0) -> list[CheckpointMetadata]:
        await asyncio.sleep(0)
        found = [c.metadata for c in self.held.values() if c.metadata.thread_id == thread_id]
        return copy.deepcopy(found[::-1][offset : offset + limit])

    async def delete_thread(self, thread_id: str) -> int:
        return await self.delete_before(thread_id, 1 << 60)

    async def delete_before(self, thread_id: str, before_step: int) -> int:
        await asyncio.sleep(0)
        gone = [
            name for name, c in self.held.items() if c.metadata.thread_id == thread_id and c.metadata.step < before_step
        ]
        for name in gone:
            del self.held[name]
        return len(gone)

    async def close(self) -> None:
        self.closed = True
