"""What the saver takes from LangGraph where it is installed, and the same shapes where it is not."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

__all__ = [
    "BaseCheckpointSaver",
    "CheckpointTuple",
    "RunnableConfig",
    "SavedTuple",
    "maybe_add_typed_methods",
    "new_checkpoint_id",
    "next_version",
    "number_of",
]

V = TypeVar("V")

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
    from langgraph.checkpoint.serde.base import maybe_add_typed_methods
else:
    try:
        from langchain_core.runnables import RunnableConfig
        from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
        from langgraph.checkpoint.serde.base import maybe_add_typed_methods
    except ImportError:  # everything works without it, on its own
        RunnableConfig = dict[str, Any]

        class BaseCheckpointSaver(Generic[V]):
            """Stands in for LangGraph's base class."""

            def __init__(self, *, serde: Any = None) -> None:
                self.serde = serde

        class CheckpointTuple(NamedTuple):
            """A checkpoint and what belongs to it, in LangGraph's shape."""

            config: dict[str, Any]
            checkpoint: dict[str, Any]
            metadata: dict[str, Any]
            parent_config: dict[str, Any] | None = None
            pending_writes: list[tuple[str, str, Any]] | None = None

        def maybe_add_typed_methods(serde: Any) -> Any:
            """Return the serializer as it is."""
            return serde


class SavedTuple(CheckpointTuple):
    """LangGraph's CheckpointTuple, with the names of its checkpoint at hand."""

    __slots__ = ()

    @property
    def thread_id(self) -> str:
        """The thread it belongs to."""
        return str(self.config["configurable"]["thread_id"])

    @property
    def checkpoint_ns(self) -> str:
        """Its namespace; "" for the graph itself."""
        return str(self.config["configurable"]["checkpoint_ns"])

    @property
    def checkpoint_id(self) -> str:
        """Its id."""
        return str(self.config["configurable"]["checkpoint_id"])

    @property
    def parent_checkpoint_id(self) -> str | None:
        """The id of the checkpoint it follows."""
        if self.parent_config is None:
            return None
        return str(self.parent_config["configurable"]["checkpoint_id"])


_last_ticks = 0


def new_checkpoint_id(after: Iterable[str] = ()) -> str:
    """Return a UUID of version 6: later ones are greater, within one process always, and than those in `after`."""
    global _last_ticks
    # Tenths of a microsecond since 1582, as in every UUID that has a time; the clock itself counts from 1970.
    ticks = max(time.time_ns() // 100 + 0x01B21DD213814000, _last_ticks + 1)
    for old in after:
        ticks = max(ticks, _ticks(old) + 1)
    _last_ticks = ticks
    high = (ticks >> 12) & 0xFFFFFFFFFFFF
    tail = int.from_bytes(os.urandom(8), "big") & 0x3FFFFFFFFFFFFFFF
    return str(uuid.UUID(int=(high << 80) | (6 << 76) | ((ticks & 0xFFF) << 64) | (2 << 62) | tail))


def _ticks(checkpoint_id: str) -> int:
    try:
        found = uuid.UUID(checkpoint_id)
    except ValueError:
        return 0
    if found.version != 6:
        return 0
    return (found.int >> 80) << 12 | (found.int >> 64) & 0xFFF


def next_version(current: Any) -> Any:
    """Return the version of a channel after `current`: a number, or text of the form that other savers gave it."""
    if isinstance(current, str):
        return f"{number_of(current) + 1:032}.0000000000000000"
    return number_of(current) + 1


def number_of(version: Any) -> int:
    """Return the number in a version."""
    if version is None:
        return 0
    if isinstance(version, str):
        return int(version.split(".")[0])
    return int(version)
