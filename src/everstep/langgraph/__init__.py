"""Everstep as a checkpointer for LangGraph. Start at `saver`."""

from typing import TYPE_CHECKING

from everstep.errors import PendingTurnFailed, SendError, ThreadBusy, ThreadLost
from everstep.langgraph.models import CheckpointBackend, CheckpointerConfig, CheckpointMetadata, CheckpointRecord
from everstep.langgraph.saver import HarnessCheckpointer
from everstep.runtime.public_names import names_from

if TYPE_CHECKING:
    from everstep.langgraph.import_reports import ImportProgress, ImportReport
    from everstep.langgraph.importing import aimport_langgraph, import_langgraph
    from everstep.langgraph.record_backends import (
        MemoryBackend,
        PostgresBackend,
        RecordBackend,
        RedisBackend,
        SQLiteBackend,
        StoreRecordBackend,
    )
    from everstep.langgraph.sending import asend, send
    from everstep.langgraph.steps import astep, step
    from everstep.langgraph.tool_calls import DurableTools
else:
    __getattr__, __dir__ = names_from(
        __name__,
        {
            "everstep.langgraph.import_reports": ("ImportProgress", "ImportReport"),
            "everstep.langgraph.importing": ("aimport_langgraph", "import_langgraph"),
            "everstep.langgraph.record_backends": (
                "MemoryBackend",
                "PostgresBackend",
                "RecordBackend",
                "RedisBackend",
                "SQLiteBackend",
                "StoreRecordBackend",
            ),
            "everstep.langgraph.sending": ("asend", "send"),
            "everstep.langgraph.steps": ("astep", "step"),
            "everstep.langgraph.tool_calls": ("DurableTools",),
        },
    )

__all__ = [
    "CheckpointBackend",
    "CheckpointMetadata",
    "CheckpointRecord",
    "CheckpointerConfig",
    "DurableTools",
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
    "astep",
    "import_langgraph",
    "send",
    "step",
]
