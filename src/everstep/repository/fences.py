"""Fences: what must still be stored for a writer's commits to be taken."""

from __future__ import annotations

from typing import Protocol

from everstep.stores.protocol import BaseRef, Store


class Fence(Protocol):
    """A checkpoint that must be stored for anything to be put: whoever takes it away stops the writer behind it."""

    @property
    def thread_id(self) -> str:
        """The thread that it stands before."""

    @property
    def base(self) -> BaseRef:
        """Where the fence stands now."""

    async def find(self, store: Store) -> None:
        """Look where it stands now; raise what the writer is to be told if it is gone."""
