"""Record-level views: the threads of a saver as pydantic records, without LangGraph's configs.

A view and a saver on the same backend see the same threads. The order here is that of `aput`, not of ids: records come
from anywhere, so their ids need not grow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from everstep.errors import AmbiguousCheckpoint, InvalidInput
from everstep.langgraph.channels import Channels
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.classes import Kinds
from everstep.langgraph.models import (
    CheckpointBackend,
    CheckpointerConfig,
    CheckpointRecord,
    OnBackend,
    backend_of,
    moment,
    record_of,
)
from everstep.runtime import checks
from everstep.runtime.blocking import NeedsAsync
from everstep.stores.protocol import Key, Query
from everstep.types import TASK_NAMESPACE, utc_now


class RecordBackend(NeedsAsync, ABC):
    """Records in, records out: what was put comes back equal. Subclass it to keep them in a place of your own.

    A saver or an engine needs more than this, and so works on the built-in ones only: see `StoreRecordBackend`.
    """

    @abstractmethod
    async def aput(self, record: CheckpointRecord) -> str:
        """Store the record, which becomes the head of its namespace, and return its checkpoint id.

        The id of a stored record replaces that one where it stands.
        """

    @abstractmethod
    async def aget(self, thread_id: str, checkpoint_id: str | None = None) -> CheckpointRecord | None:
        """Return the record of that id in any namespace, or (None) the head of the root namespace."""

    @abstractmethod
    async def alist(self, thread_id: str, *, limit: int | None = None) -> list[CheckpointRecord]:
        """Return the thread's records in all namespaces, the one that was put last first."""

    @abstractmethod
    async def adelete(self, thread_id: str) -> int:
        """Delete the thread with all its namespaces, and return how many records it had."""

    async def aclose(self) -> None:  # one that holds nothing has nothing to do
        """Let go of what is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class StoreRecordBackend(OnBackend, RecordBackend):
    """Records in a store of Everstep. A subclass says in `kind` which one; see `MemoryBackend` and the others."""

    kind: CheckpointBackend

    def __init__(self, config: CheckpointerConfig | None = None) -> None:
        """Only what this backend needs of `config` is looked at; the class says which one it is."""
        if config is not None and not isinstance(config, CheckpointerConfig):
            raise InvalidInput(f"config is a CheckpointerConfig, not {type(config).__name__}")
        self._config = (config or CheckpointerConfig()).model_copy(update={"backend": self.kind})
        self._backend = backend_of(self._config)
        self._threads = Threads(self._backend.repository, Channels(Kinds()))

    async def aput(self, record: CheckpointRecord) -> str:
        checks.kind(record, CheckpointRecord, "record")
        key = _key(record)
        parent_id = record.parent_checkpoint_id
        if parent_id is not None:
            parent_id = checks.checkpoint_id(parent_id)
        regular: dict[str, Any] = {}
        odd: dict[str, Any] = {}
        for name, value in record.checkpoint.items():
            if _is_regular(name, value):
                regular[name] = value
            else:
                odd[name] = value
        await self._threads.put(
            key,
            parent_id,
            regular,
            dict(record.metadata),
            None,
            odd=odd,
            created_at=_time(record.metadata.timestamp),
            head="always",
        )
        return key.checkpoint_id

    async def aget(
        self, thread_id: str, checkpoint_id: str | None = None, *, namespace: str | None = None
    ) -> CheckpointRecord | None:
        """Return the record of that id in any namespace, or (None) the head of the root namespace.

        `namespace` says which namespace is meant. An id that stands in several is AmbiguousCheckpoint without it.
        """
        thread_id = checks.thread_id(thread_id)
        if namespace is not None:
            namespace = checks.namespace(namespace)
        elif checkpoint_id is not None:
            namespace = await self._namespace(thread_id, checks.checkpoint_id(checkpoint_id))
        saved = await self._threads.get(thread_id, namespace or "", checkpoint_id, writes=False)
        if saved is None:
            return None
        return record_of(saved)

    async def alist(self, thread_id: str, *, limit: int | None = None) -> list[CheckpointRecord]:
        if limit is not None:
            checks.count(limit, "limit")
        return [record_of(saved) for saved in await self._threads.newest(checks.thread_id(thread_id), limit)]

    async def adelete(self, thread_id: str) -> int:
        return await self._threads.delete_thread(checks.thread_id(thread_id))

    async def _namespace(self, thread_id: str, checkpoint_id: str) -> str | None:
        query = Query(thread_id=thread_id, namespace=None, checkpoint_id=checkpoint_id, hidden="also")
        listed = [stored.record.key for stored in await self._backend.store.list_checkpoints(query)]
        found = [key for key in listed if key.namespace != TASK_NAMESPACE]
        if len(found) > 1:
            raise AmbiguousCheckpoint(checkpoint_id, [(key.thread_id, key.namespace) for key in found])
        if not found:
            return None
        return found[0].namespace


class MemoryBackend(StoreRecordBackend):
    """Records in this process's memory."""

    kind = CheckpointBackend.MEMORY


class SQLiteBackend(StoreRecordBackend):
    """Records in one SQLite file: `config.sqlite_path`."""

    kind = CheckpointBackend.SQLITE


class PostgresBackend(StoreRecordBackend):
    """Records in a PostgreSQL database: `config.postgres_dsn`."""

    kind = CheckpointBackend.POSTGRES


class RedisBackend(StoreRecordBackend):
    """Records on a Redis or Valkey server or cluster: `config.redis_url`, `key_prefix` and `ttl_seconds`."""

    kind = CheckpointBackend.REDIS


def _key(record: CheckpointRecord) -> Key:
    key = Key(
        checks.thread_id(record.thread_id),
        checks.namespace(record.checkpoint_ns),
        checks.checkpoint_id(record.checkpoint_id),
    )
    inner = record.checkpoint.get("id")
    if inner is not None and inner != key.checkpoint_id:
        raise InvalidInput(f"the record's checkpoint_id is {key.checkpoint_id!r}, its checkpoint says {inner!r:.100}")
    return key


def _is_regular(name: str, value: Any) -> bool:
    """Whether a field of a checkpoint is as LangGraph has it: others are kept aside, so that graphs can read it."""
    if name == "id":
        return value is not None
    if name == "ts":
        return moment(value) is not None
    if name in ("channel_values", "channel_versions"):
        return _is_named(value)
    if name == "versions_seen":
        return _is_named(value) and all(type(seen) is dict for seen in value.values())
    return True


def _is_named(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str for key in value)


def _time(timestamp: float) -> str:
    """Return when a record was made; the same for the same record, so that a repeated put changes nothing."""
    try:
        return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError, OSError):
        return utc_now()
