"""Everstep: a memory that AI agents can trust. See `everstep.open` and `CheckpointEngine`."""

from everstep.backends import (
    CheckpointBackend,
    MemoryCheckpointer,
    PostgresCheckpointer,
    RedisCheckpointer,
    SQLiteCheckpointer,
    StoreBackend,
    SyncBackend,
)
from everstep.config import CheckpointGC, SnapshotConfig, SnapshotTrigger
from everstep.copying import copy as copy
from everstep.copying import copy_async
from everstep.drawing import draw
from everstep.engine import CheckpointEngine, SyncEngine
from everstep.errors import (
    AmbiguousCheckpoint,
    CannotUndo,
    CheckpointCorrupted,
    CheckpointNotFound,
    CommitUnknown,
    DurabilityWarning,
    EverstepError,
    HeadMoved,
    HeadRegressed,
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
from everstep.factory import create_checkpoint_engine, create_checkpointer
from everstep.factory import open as open  # noqa: A004  # read as everstep.open
from everstep.live import LiveThread, SyncLiveThread
from everstep.types import (
    MISSING,
    CallStats,
    Checkpoint,
    CheckpointMetadata,
    Conflict,
    CopyProgress,
    CopyReport,
    Diff,
    Difference,
    GCReport,
    Operation,
    Stats,
    TimeTravelResult,
)
from everstep.values.registry import register

__version__ = "0.1.0"

# Without `open` and `copy`: `from everstep import *` must not take the place of the builtin and the module.
__all__ = [  # noqa: RUF022  # the plain order of sorted()
    "AmbiguousCheckpoint",
    "CallStats",
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
    "CopyProgress",
    "CopyReport",
    "Diff",
    "Difference",
    "DurabilityWarning",
    "EverstepError",
    "GCReport",
    "HeadMoved",
    "HeadRegressed",
    "InvalidInput",
    "LiveThread",
    "MISSING",
    "MemoryCheckpointer",
    "MergeConflict",
    "MissingDependency",
    "Operation",
    "PostgresCheckpointer",
    "RedisCheckpointer",
    "SQLiteCheckpointer",
    "SnapshotConfig",
    "SnapshotTooLarge",
    "SnapshotTrigger",
    "Stats",
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
    "copy_async",
    "create_checkpoint_engine",
    "create_checkpointer",
    "draw",
    "register",
]
