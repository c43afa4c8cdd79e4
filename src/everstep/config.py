"""When snapshots are taken and how long they are kept. Values are checked when they are given."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeVar

from everstep.errors import InvalidInput

E = TypeVar("E", bound=Enum)


class SnapshotTrigger(StrEnum):
    """Why a snapshot is taken."""

    TOOL_CALL = "tool_call"
    LLM_CALL = "llm_call"
    STATE_CHANGE = "state_change"
    TASK_BOUNDARY = "task_boundary"
    MANUAL = "manual"
    INTERVAL = "interval"


class CheckpointGC(StrEnum):
    """Which checkpoints retention keeps."""

    KEEP_ALL = "keep_all"
    KEEP_LAST_N = "keep_last_n"
    KEEP_AGE = "keep_age"
    KEEP_MILESTONES = "keep_milestones"


_DEFAULT_TRIGGERS = frozenset(
    (SnapshotTrigger.MANUAL, SnapshotTrigger.TOOL_CALL, SnapshotTrigger.LLM_CALL, SnapshotTrigger.STATE_CHANGE)
)


@dataclass(frozen=True)
class SnapshotConfig:
    """How an engine saves and keeps. Strings are accepted for triggers and policy."""

    triggers: Iterable[SnapshotTrigger | str] = _DEFAULT_TRIGGERS
    """Snapshots with another trigger are not taken."""
    gc_policy: CheckpointGC | str = CheckpointGC.KEEP_LAST_N
    gc_param: float = 100
    """A count, or seconds for KEEP_AGE."""
    delta_snapshots: bool = True
    """False: each checkpoint is one unsplit object, nothing shared inside it."""
    max_snapshot_size_mb: float = 10.0
    """Encoded bytes one snapshot may add, before compression: a long past does not count."""

    def __post_init__(self) -> None:
        if isinstance(self.triggers, (str, SnapshotTrigger)):
            raise InvalidInput("triggers is a collection of triggers; put the one you mean in a list")
        try:
            triggers = frozenset(as_trigger(trigger) for trigger in self.triggers)
        except TypeError as exc:
            raise InvalidInput(f"triggers is a collection of triggers, not {self.triggers!r}") from exc
        policy = _member(CheckpointGC, self.gc_policy, "gc_policy")
        if not _is_number(self.gc_param) or self.gc_param <= 0:
            raise InvalidInput(f"gc_param is a number above 0, not {self.gc_param!r}")
        if policy in (CheckpointGC.KEEP_LAST_N, CheckpointGC.KEEP_MILESTONES) and self.gc_param != int(self.gc_param):
            raise InvalidInput(f"gc_param is a whole number of checkpoints for {policy.value}, not {self.gc_param!r}")
        if policy is CheckpointGC.KEEP_MILESTONES and self.gc_param < 2:
            raise InvalidInput("gc_param is at least 2 for keep_milestones: the first and the last always stay")
        if not isinstance(self.delta_snapshots, bool):
            raise InvalidInput(f"delta_snapshots is True or False, not {self.delta_snapshots!r}")
        if not _is_number(self.max_snapshot_size_mb) or self.max_snapshot_size_mb <= 0:
            raise InvalidInput(f"max_snapshot_size_mb is a number above 0, not {self.max_snapshot_size_mb!r}")
        # The class is frozen, and what was given as text is kept as what it means.
        object.__setattr__(self, "triggers", triggers)
        object.__setattr__(self, "gc_policy", policy)

    @property
    def size_bytes_max(self) -> int:
        """The size limit in bytes."""
        return int(self.max_snapshot_size_mb * 1_000_000)


def as_trigger(trigger: SnapshotTrigger | str) -> SnapshotTrigger:
    """Return the trigger that a name or a member stands for."""
    return _member(SnapshotTrigger, trigger, "trigger")


def _member(enum: type[E], given: object, name: str) -> E:
    try:
        return enum(given)
    except ValueError:
        known = ", ".join(repr(member.value) for member in enum)
        raise InvalidInput(f"{name} is one of {known}, not {given!r}") from None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e15 < value < 1e15
