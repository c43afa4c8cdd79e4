"""Everstep as a checkpointer for LangGraph. Start at `saver`."""

from everstep.errors import PendingTurnFailed, SendError, ThreadBusy, ThreadLost
from everstep.langgraph.importing import ImportProgress, ImportReport, aimport_langgraph, import_langgraph
from everstep.langgraph.models import CheckpointBackend, CheckpointerConfig, CheckpointMetadata, CheckpointRecord
from everstep.langgraph.record_backends import (
    MemoryBackend,
    PostgresBackend,
    RecordBackend,
    RedisBackend,
    SQLiteBackend,
    StoreRecordBackend,
)
from everstep.langgraph.saver import HarnessCheckpointer
from everstep.langgraph.sending import asend, send

__all__ = [
    "CheckpointBackend",
    "CheckpointMetadata",
    "CheckpointRecord",
    "CheckpointerConfig",
    "HarnessCheckpointer",
    "ImportProgress",
    "ImportReport",
    "MemoryBackend",
    "PendingTurnFailed",
    "PostgresBackend",
    "RecordBackend",
    "RedisBackend",
    "SQLiteBackend",
    "SendError",
    "StoreRecordBackend",
    "ThreadBusy",
    "ThreadLost",
    "aimport_langgraph",
    "asend",
    "import_langgraph",
    "send",
]
