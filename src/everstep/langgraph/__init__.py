"""Everstep as a checkpointer for LangGraph. Start at `saver`."""

from everstep.langgraph.models import CheckpointBackend, CheckpointerConfig, CheckpointMetadata, CheckpointRecord
from everstep.langgraph.saver import HarnessCheckpointer

__all__ = ["CheckpointBackend", "CheckpointMetadata", "CheckpointRecord", "CheckpointerConfig", "HarnessCheckpointer"]
