"""What callers hold: a checkpoint and its metadata. Plain values; they know nothing of storage."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from everstep.errors import InvalidInput

T = TypeVar("T")

TASK_NAMESPACE = "everstep:task"
"""Of a thread that is a task: what is known of it besides its checkpoints, and no part of its history."""

RUN_KIND = "run"
"""The kind of the checkpoints of a durable run. They are the engine's own, and retention keeps them all."""

RUN_METADATA = ("run", "run_status", "run_waits", "run_effects")
"""Of a durable run: its name, how it stands, what it waits for, and whether it may repeat effects of its family."""


CLOCK: ContextVar[Callable[[], datetime] | None] = ContextVar("everstep_clock", default=None)
"""What tells the time instead of the clock, for data that shall look the same each time it is made."""


def utc_now() -> str:
    """Return the present time as ISO 8601 in UTC. For people to read: nothing is ordered by it."""
    clock = CLOCK.get()
    moment = datetime.now(UTC)
    if clock is not None:
        moment = clock()
    return moment.isoformat(timespec="microseconds")


def stopwatch() -> float:
    """Return seconds to measure with how long something takes."""
    clock = CLOCK.get()
    if clock is None:
        return time.monotonic()
    return clock().timestamp()


@dataclass
class CheckpointMetadata:
    """What a list of checkpoints shows: everything but the values."""

    thread_id: str
    checkpoint_id: str
    step: int
    parent_checkpoint_id: str | None = None
    created_at: str = field(default_factory=utc_now)
    tags: list[str] = field(default_factory=list)
    summary: str = ""
    parents: list[str] = field(default_factory=list)
    """All parents; a merge has two. `parent_checkpoint_id` is the first."""
    namespace: str = ""
    trigger: str = ""
    size_bytes: int = 0
    """The size of the values, encoded as a whole. What the checkpoint added to the store is far less."""
    pinned: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further data of the caller's; listing can filter by it."""

    def __post_init__(self) -> None:
        if self.parent_checkpoint_id is not None:
            self.parents = [self.parent_checkpoint_id, *self.parents[1:]]
        elif self.parents:
            self.parent_checkpoint_id = self.parents[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; values are not copied."""
        return {name: getattr(self, name) for name in _METADATA_FIELDS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckpointMetadata:
        """Return the metadata in `data`. Missing optional keys get their defaults; unknown keys are refused."""
        return _from_fields(cls, data, _METADATA_FIELDS)


@dataclass
class Checkpoint:
    """One saved step of a thread."""

    metadata: CheckpointMetadata
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation."""
    state: dict[str, Any] = field(default_factory=dict)
    """The agent's own state."""
    tools_result: dict[str, Any] = field(default_factory=dict)
    """Results of tool calls."""
    next_node: str = ""
    """Where execution continues."""

    def to_dict(self) -> dict[str, Any]:
        """Return `{"metadata": {...}, "messages", "state", "tools_result", "next_node"}`; values are not copied."""
        values = {name: getattr(self, name) for name in _CHECKPOINT_FIELDS}
        return values | {"metadata": self.metadata.to_dict()}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint in `d`. Missing optional keys get their defaults; unknown keys are refused."""
        if not isinstance(d, Mapping) or not isinstance(d.get("metadata"), Mapping):
            raise InvalidInput('a checkpoint is a mapping with "metadata", itself a mapping')
        metadata = CheckpointMetadata.from_dict(d["metadata"])
        return _from_fields(cls, {**d, "metadata": metadata}, _CHECKPOINT_FIELDS)


class UnreadCheckpoint(Checkpoint):
    """A checkpoint whose values are read from the store when they are first looked at, by a blocking call."""

    def __init__(
        self, metadata: CheckpointMetadata, *values: Any, read: Callable[[], Sequence[Any]] | None = None, **fields: Any
    ) -> None:
        """Without `read` it is made like any other, as `dataclasses.replace` does."""
        if read is None:
            super().__init__(metadata, *values, **fields)
        else:
            self.metadata = metadata
            self.next_node = fields.get("next_node", "")
            self._read = read

    def __getattr__(self, name: str) -> Any:
        # Only for the values: copying and pickling ask for methods that are not there, and must not read the
        # store.
        if name not in ("messages", "state", "tools_result"):
            raise AttributeError(name)
        self.messages, self.state, self.tools_result = self._read()
        return self.__dict__[name]

    def __repr__(self) -> str:
        known = ("messages", "state", "tools_result")
        shown = {name: self.__dict__.get(name, "not read yet") for name in known}
        return f"Checkpoint({self.metadata!r}, {shown}, next_node={self.next_node!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, UnreadCheckpoint):
            other = other._plain()
        return self._plain() == other

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_checkpoint, (self.metadata, self.messages, self.state, self.tools_result, self.next_node)

    def _plain(self) -> Checkpoint:
        return _plain_checkpoint(self.metadata, self.messages, self.state, self.tools_result, self.next_node)


def _plain_checkpoint(*fields: Any) -> Checkpoint:
    return Checkpoint(*fields)


class Missing:
    """The type of MISSING, which stands where there is no value: None is a value."""

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False

    # By name: a copy, and one from another process, is the same object.
    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()


_METADATA_FIELDS = tuple(f.name for f in dataclasses.fields(CheckpointMetadata))
_CHECKPOINT_FIELDS = tuple(f.name for f in dataclasses.fields(Checkpoint))


def _from_fields(cls: type[T], data: Mapping[str, Any], names: tuple[str, ...]) -> T:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{cls.__name__} is made from a mapping, not {type(data).__name__}")
    unknown = [name for name in data if name not in names]
    if unknown:
        raise InvalidInput(f"unknown key {unknown[0]!r} for {cls.__name__}; known are {', '.join(names)}")
    try:
        return cls(**data)
    except TypeError as exc:
        raise InvalidInput(f"{cls.__name__} needs more: {exc}") from exc
