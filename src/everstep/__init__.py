"""Everstep: a memory that AI agents can trust. See `everstep.open` and `CheckpointEngine`."""

from everstep.backends import (
    CheckpointBackend,
    MemoryCheckpointer,
    SQLiteCheckpointer,
    StoreBackend,
    SyncBackend,
)
from everstep.config import CheckpointGC, SnapshotConfig, SnapshotTrigger
from everstep.engine import CheckpointEngine, SyncEngine
from everstep.errors import (
    AmbiguousCheckpoint,
    CheckpointCorrupted,
    CheckpointNotFound,
    CommitUnknown,
    EverstepError,
    HeadMoved,
    InvalidInput,
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
from everstep.types import Checkpoint, CheckpointMetadata
from everstep.values.registry import register

__version__ = "0.1.0"

__all__ = [
    "AmbiguousCheckpoint",
    "Checkpoint",
    "CheckpointBackend",
    "CheckpointCorrupted",
    "CheckpointEngine",
    "CheckpointGC",
    "CheckpointMetadata",
    "CheckpointNotFound",
    "CommitUnknown",
    "EverstepError",
    "HeadMoved",
    "InvalidInput",
    "MemoryCheckpointer",
    "MissingDependency",
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
    "UnregisteredType",
    "UnstorableValue",
    "UnsupportedByBackend",
    "create_checkpoint_engine",
    "create_checkpointer",
    "open",
    "register",
]
