"""Pydantic models: how a saver is configured, and a checkpoint as a record that goes to JSON and back."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from everstep.backends import (
    MemoryCheckpointer,
    PostgresCheckpointer,
    RedisCheckpointer,
    SQLiteCheckpointer,
    StoreBackend,
)
from everstep.errors import MissingDependency
from everstep.langgraph.threads import Saved

try:
    from pydantic import BaseModel, ConfigDict, Field
except ImportError as exc:
    raise MissingDependency("pydantic", "langgraph") from exc


class CheckpointBackend(StrEnum):
    """Where a saver keeps its checkpoints."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    POSTGRES = "postgres"
    REDIS = "redis"


class CheckpointerConfig(BaseModel):
    """How a saver is set up. Only what its backend needs is looked at."""

    model_config = ConfigDict(extra="forbid")

    backend: CheckpointBackend = CheckpointBackend.MEMORY
    key_prefix: str = "everstep:"
    redis_url: str = "redis://localhost:6379/0"
    ttl_seconds: int | None = Field(default=None, gt=0)
    sqlite_path: str = "checkpoints.db"
    postgres_dsn: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    """More options of the backend."""


class CheckpointMetadata(BaseModel):
    """What is known about a checkpoint besides its values."""

    model_config = ConfigDict(extra="allow")

    source_layer: str = ""
    step: int = 0
    timestamp: float = 0.0
    parents: dict[str, str] = Field(default_factory=dict)
    writes: dict[str, Any] = Field(default_factory=dict)


class CheckpointRecord(BaseModel):
    """A checkpoint with its place."""

    checkpoint: dict[str, Any]
    checkpoint_id: str
    checkpoint_ns: str = ""
    metadata: CheckpointMetadata = Field(default_factory=CheckpointMetadata)
    parent_checkpoint_id: str | None = None
    thread_id: str


def backend_of(config: CheckpointerConfig) -> StoreBackend:
    """Return the backend that a configuration names."""
    if config.backend is CheckpointBackend.SQLITE:
        return SQLiteCheckpointer(config.sqlite_path, **config.options)
    if config.backend is CheckpointBackend.POSTGRES:
        return PostgresCheckpointer(config.postgres_dsn, **config.options)
    if config.backend is CheckpointBackend.REDIS:
        return RedisCheckpointer(
            config.redis_url, key_prefix=config.key_prefix, ttl_seconds=config.ttl_seconds, **config.options
        )
    return MemoryCheckpointer(**config.options)


def record_of(saved: Saved) -> CheckpointRecord:
    """Return a checkpoint as a record, with what was put and nothing that was filled in."""
    stored, checkpoint = saved.stored.record, saved.checkpoint
    metadata = dict(stored.metadata)
    metadata.setdefault("source_layer", metadata.get("source", ""))
    metadata.setdefault("step", stored.step)
    if "timestamp" not in metadata:
        metadata["timestamp"] = _timestamp(stored.created_at)
    return CheckpointRecord(
        checkpoint={name: value for name, value in checkpoint.items() if name not in saved.absent},
        checkpoint_id=stored.key.checkpoint_id,
        checkpoint_ns=stored.key.namespace,
        metadata=CheckpointMetadata(**metadata),
        parent_checkpoint_id=stored.parents[0].checkpoint_id if stored.parents else None,
        thread_id=stored.key.thread_id,
    )


def _timestamp(created_at: str) -> float:
    try:
        return datetime.fromisoformat(created_at).timestamp()
    except ValueError:
        return 0.0
