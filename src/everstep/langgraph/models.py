"""Pydantic models: how a saver is configured, and a checkpoint as a record that goes to JSON and back."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from everstep.backends import StoreBackend
from everstep.errors import InvalidInput, MissingDependency
from everstep.factory import backend_of_kind
from everstep.langgraph.saved import Saved
from everstep.runtime.blocking import NeedsAsync, describe_on_store
from everstep.stores.protocol import Record

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
except ImportError as exc:
    raise MissingDependency("pydantic", "langgraph") from exc


class CheckpointBackend(StrEnum):
    """Where a saver keeps its checkpoints."""

    MEMORY = "memory"
    SQLITE = "sqlite"
    POSTGRES = "postgres"
    REDIS = "redis"


class CheckpointerConfig(BaseModel):
    """How a saver is set up. Only what its backend needs is looked at.

    Neither its text nor an error about it shows an address or an option: there may be a password in it.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    backend: CheckpointBackend = CheckpointBackend.MEMORY
    key_prefix: str = "everstep:"
    redis_url: str = Field(default="redis://localhost:6379/0", repr=False)
    ttl_seconds: int | None = Field(default=None, gt=0)
    sqlite_path: str = "checkpoints.db"
    postgres_dsn: str = Field(default="", repr=False)
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """More options of the backend."""

    @field_validator("sqlite_path", mode="before")
    @classmethod
    def _as_text(cls, path: object) -> object:
        if isinstance(path, os.PathLike):
            return os.fspath(path)
        return path


class CheckpointMetadata(BaseModel):
    """What is known about a checkpoint besides its values."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    source_layer: str = ""
    step: int = 0
    timestamp: float = Field(default_factory=time.time)
    """Seconds since 1970."""
    parents: dict[str, str] = Field(default_factory=dict)
    writes: dict[str, Any] = Field(default_factory=dict)


class CheckpointRecord(BaseModel):
    """A checkpoint with its place."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    checkpoint: dict[str, Any]
    checkpoint_id: str
    checkpoint_ns: str = ""
    metadata: CheckpointMetadata = Field(default_factory=CheckpointMetadata)
    parent_checkpoint_id: str | None = None
    thread_id: str


class OnBackend(NeedsAsync):
    """What a saver and a view have in common: a backend, what they were made with, and their end."""

    _backend: StoreBackend
    _config: CheckpointerConfig

    def __repr__(self) -> str:
        return describe_on_store(self, self._backend.store)

    @property
    def backend(self) -> StoreBackend:
        """The backend below: a saver, a view or an engine on it sees the same threads."""
        return self._backend

    @property
    def config(self) -> CheckpointerConfig:
        """What it was made with."""
        return self._config

    async def aclose(self) -> None:
        """Let go of the store."""
        await self._backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def backend_of(config: CheckpointerConfig) -> StoreBackend:
    """Return the backend that a configuration names."""
    if not isinstance(config, CheckpointerConfig):
        # LangGraph's own savers take an open connection here.
        raise InvalidInput(
            f"config is a CheckpointerConfig, not {type(config).__name__}; HarnessCheckpointer.from_url(...) takes the "
            "path of a file or a URL, and opens its connections itself"
        )
    own: dict[str, Any] = {}
    if config.backend is CheckpointBackend.POSTGRES:
        own = {"dsn": config.postgres_dsn}
    elif config.backend is CheckpointBackend.REDIS:
        own = {"url": config.redis_url, "key_prefix": config.key_prefix, "ttl_seconds": config.ttl_seconds}
    options = {**own, **config.options}
    return backend_of_kind(config.backend.value, config.sqlite_path, options, "CheckpointerConfig.options")


def record_of(saved: Saved) -> CheckpointRecord:
    """Return a checkpoint as a record, with what was put and nothing that was filled in."""
    stored = saved.stored.record
    checkpoint = saved.checkpoint
    own = {name: value for name, value in checkpoint.items() if name not in saved.absent}
    parent_id: str | None = None
    if stored.parents:
        parent_id = stored.parents[0].checkpoint_id
    return CheckpointRecord(
        checkpoint={**own, **saved.odd},
        checkpoint_id=stored.key.checkpoint_id,
        checkpoint_ns=stored.key.namespace,
        metadata=_metadata(stored),
        parent_checkpoint_id=parent_id,
        thread_id=stored.key.thread_id,
    )


class TupleMetadata(dict[str, Any]):
    """The metadata of a tuple: a dict, as LangGraph has it, that reads by attribute too, as a record's does."""

    def __init__(self, stored: Record) -> None:
        super().__init__(stored.metadata)
        self._stored = stored

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in CheckpointMetadata.model_fields:
            return getattr(_metadata(self._stored), name)
        raise AttributeError(f"the checkpoint's metadata has no {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied or sent elsewhere it is a plain dict."""
        return dict, (dict(self),)


def _metadata(stored: Record) -> CheckpointMetadata:
    fields: dict[str, Any] = {
        "source_layer": "",
        "step": stored.step,
        "timestamp": 0.0,
        "parents": {},
        "writes": {},
    }
    source = stored.metadata.get("source")
    if isinstance(source, str):
        fields["source_layer"] = source
    at = moment(stored.created_at)
    if at is not None:
        fields["timestamp"] = at.timestamp()
    for name, value in stored.metadata.items():
        # LangGraph before 1.0 wrote None where there were no writes.
        if value is not None or name not in fields:
            fields[name] = value
    try:
        return CheckpointMetadata(**fields)
    except ValidationError as exc:
        wrong = ", ".join(str(error["loc"][0]) for error in exc.errors())
        raise InvalidInput(
            f"checkpoint {stored.key.checkpoint_id!r} has metadata that no record has ({wrong}); use get_tuple"
        ) from exc


def moment(text: object) -> datetime | None:
    """Return the time that a text in ISO 8601 names, in UTC if it does not say; None if it names none."""
    if not isinstance(text, str):
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        return found.replace(tzinfo=UTC)
    return found
