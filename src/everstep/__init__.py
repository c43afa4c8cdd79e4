"""Everstep: a memory that AI agents can trust. See `everstep.open` and `CheckpointEngine`."""

from typing import TYPE_CHECKING

from everstep.config import CheckpointGC, SnapshotConfig, SnapshotTrigger
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
    StoreReadFailed,
    StoreReadOnly,
    StoreUnavailable,
    UnknownClassWarning,
    UnregisteredType,
    UnstorableValue,
    UnsupportedByBackend,
)
from everstep.runtime.public_names import names_from
from everstep.types import MISSING, Checkpoint, CheckpointMetadata
from everstep.values.registry import register
from everstep.version import __version__ as __version__

if TYPE_CHECKING:
    from everstep.backends import (
        CheckpointBackend,
        MemoryCheckpointer,
        PostgresCheckpointer,
        RedisCheckpointer,
        SQLiteCheckpointer,
        StoreBackend,
        SyncBackend,
    )
    from everstep.capture.decorators import on_thread
    from everstep.capture.live import LiveThread, SyncLiveThread
    from everstep.engine import CheckpointEngine, SyncEngine
    from everstep.factory import create_checkpoint_engine, create_checkpointer
    from everstep.factory import open as open  # noqa: A004  # read as everstep.open
    from everstep.history.drawing import draw
    from everstep.reports import (
        CallStats,
        CheckpointTree,
        Conflict,
        CopyProgress,
        CopyReport,
        DeletedThreads,
        Diff,
        Difference,
        GCReport,
        Operation,
        Sizes,
        Stats,
        ThreadPage,
        TimeTravelResult,
        TreeEdge,
        TreeNode,
    )
    from everstep.transfer.copying import copy as copy
    from everstep.transfer.copying import copy_async
else:
    __getattr__, __dir__ = names_from(
        __name__,
        {
            "everstep.backends": (
                "CheckpointBackend",
                "MemoryCheckpointer",
                "PostgresCheckpointer",
                "RedisCheckpointer",
                "SQLiteCheckpointer",
                "StoreBackend",
                "SyncBackend",
            ),
            "everstep.capture.decorators": ("on_thread",),
            "everstep.capture.live": ("LiveThread", "SyncLiveThread"),
            "everstep.engine": ("CheckpointEngine", "SyncEngine"),
            "everstep.factory": ("create_checkpoint_engine", "create_checkpointer", "open"),
            "everstep.history.drawing": ("draw",),
            "everstep.reports": (
                "CallStats",
                "CheckpointTree",
                "Conflict",
                "CopyProgress",
                "CopyReport",
                "DeletedThreads",
                "Diff",
                "Difference",
                "GCReport",
                "Operation",
                "Sizes",
                "Stats",
                "ThreadPage",
                "TimeTravelResult",
                "TreeEdge",
                "TreeNode",
            ),
            "everstep.transfer.copying": ("copy", "copy_async"),
        },
    )

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
    "CheckpointTree",
    "CommitUnknown",
    "Conflict",
    "CopyProgress",
    "CopyReport",
    "DeletedThreads",
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
    "Sizes",
    "SnapshotConfig",
    "SnapshotTooLarge",
    "SnapshotTrigger",
    "Stats",
    "StoreBackend",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreMismatch",
    "StoreReadFailed",
    "StoreReadOnly",
    "StoreUnavailable",
    "SyncBackend",
    "SyncEngine",
    "SyncLiveThread",
    "ThreadPage",
    "TimeTravelResult",
    "TreeEdge",
    "TreeNode",
    "UnknownClassWarning",
    "UnregisteredType",
    "UnstorableValue",
    "UnsupportedByBackend",
    "copy_async",
    "create_checkpoint_engine",
    "create_checkpointer",
    "draw",
    "on_thread",
    "register",
]
