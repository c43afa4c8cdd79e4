"""Everstep: a memory that AI agents can trust. See `everstep.open` and `CheckpointEngine`."""

from everstep.backends import (
    CheckpointBackend,
    MemoryCheckpointer,
    SQLiteCheckpointer,
    StoreBackend,
    SyncBackend,
)
from everstep.config import CheckpointGC, SnapshotConfig, SnapshotTrigger
from everstep.drawing import draw
from everstep.engine import CheckpointEngine, SyncEngine
from everstep.errors import (
    AmbiguousCheckpoint,
    CannotUndo,
    CheckpointCorrupted,
    CheckpointNotFound,
    CommitUnknown,
    EverstepError,
    HeadMoved,
    InvalidInput,
    MergeConflict,
    MissingDependency,
    SnapshotTooLarge,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreMismatch,
    StoreReadOnly,
    StoreUnavailable,
    UnregisteredType,
    UnstorableValue,
    UnsupportedByBackend,
)
from everstep.factory import create_checkpoint_engine, create_checkpointer, open  # noqa: A004  # read as everstep.open
from everstep.live import LiveThread, SyncLiveThread
from everstep.types import (
    MISSING,
    Checkpoint,
    CheckpointMetadata,
    Conflict,
    Diff,
    Difference,
    GCReport,
    Operation,
    TimeTravelResult,
)
from everstep.values.registry import register

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022  # the plain order of sorted()
    "AmbiguousCheckpoint",
    "CannotUndo",
    "Checkpoint",
    "CheckpointBackend",
    "CheckpointCorrupted",
    "CheckpointEngine",
    "CheckpointGC",
    "CheckpointMetadata",
    "CheckpointNotFound",
    "CommitUnknown",
    "Conflict",
    "Diff",
    "Difference",
    "EverstepError",
    "GCReport",
    "HeadMoved",
    "InvalidInput",
    "LiveThread",
    "MISSING",
    "MemoryCheckpointer",
    "MergeConflict",
    "MissingDependency",
    "Operation",
    "SQLiteCheckpointer",
    "SnapshotConfig",
    "SnapshotTooLarge",
    "SnapshotTrigger",
    "StoreBackend",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreMismatch",
    "StoreReadOnly",
    "StoreUnavailable",
    "SyncBackend",
    "SyncEngine",
    "SyncLiveThread",
    "TimeTravelResult",
    "UnregisteredType",
    "UnstorableValue",
    "UnsupportedByBackend",
    "create_checkpoint_engine",
    "create_checkpointer",
    "draw",
    "open",
    "register",
]
