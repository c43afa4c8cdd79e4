"""Backends: the seven published methods that take and return checkpoints, and the ones that are built in.

A built-in backend is a store with this face; the engine works on the store below it. Somebody's own subclass of
CheckpointBackend has only the face.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from everstep.errors import AmbiguousCheckpoint, CheckpointNotFound, InvalidInput
from everstep.opening.addresses import Address, file_path
from everstep.opening.options import resolved
from everstep.repository.fences import Fence
from everstep.repository.repository import Repository, copied, reclaim, to_checkpoint, to_metadata
from everstep.repository.step import check_messages
from everstep.runtime import checks
from everstep.runtime.blocking import Closing, SyncFace, blocking, describe_on_store
from everstep.runtime.calls import Figures, public_call
from everstep.stores.protocol import Key, Query, Record, Store
from everstep.types import Checkpoint, CheckpointMetadata

if TYPE_CHECKING:
    from everstep.reports import DeletedThreads, DroppedEffect, Sizes, ThreadPage

logger = logging.getLogger("everstep")

_SQLITE_PATH = "checkpoints.db"
_REDIS_URL = "redis://localhost:6379/0"


class CheckpointBackend(ABC):
    """Where checkpoints are kept. Subclass it to bring a store of your own."""

    @abstractmethod
    async def put(self, checkpoint: Checkpoint) -> str:
        """Store the checkpoint with the id, parent and step it has, and return its id.

        The same id with the same content is a no-op; with other content it replaces the old one in place.
        """

    @abstractmethod
    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """Return the checkpoint of that id, or None."""

    @abstractmethod
    async def get_latest(self, thread_id: str) -> Checkpoint | None:
        """Return the thread's head, or None."""

    @abstractmethod
    async def list_threads(self, limit: int = 50, offset: int = 0) -> list[CheckpointMetadata]:
        """Return each thread's latest, most recently active first."""

    @abstractmethod
    async def list_checkpoints(self, thread_id: str, limit: int = 100, offset: int = 0) -> list[CheckpointMetadata]:
        """Return the thread's checkpoints, newest first. Never loads values."""

    @abstractmethod
    async def delete_thread(self, thread_id: str) -> int:
        """Delete the thread and return how many checkpoints it had."""

    @abstractmethod
    async def delete_before(self, thread_id: str, before_step: int) -> int:
        """Delete checkpoints whose step is strictly smaller, and return how many."""

    async def close(self) -> None:  # noqa: B027  # a backend that holds nothing has nothing to do
        """Let go of connections."""


class StoreBackend(CheckpointBackend, Closing):
    """A backend over a store. `sync` is its blocking view."""

    def __init__(self, store: Store, repository: Repository | None = None) -> None:
        self._repository = repository or Repository(store)

    @property
    def store(self) -> Store:
        """The store below."""
        return self._repository.store

    def __repr__(self) -> str:
        return describe_on_store(self, self.store)

    @property
    def limit_seconds(self) -> float | None:
        """How long one call may take as a whole; deleting may take so long with each of its steps."""
        return self.store.limit_seconds

    @property
    def figures(self) -> Figures:
        """What was done on it in this process."""
        return self._repository.figures

    @property
    def repository(self) -> Repository:
        """How checkpoints get in and out of it."""
        return self._repository

    @property
    def blocking(self) -> StoreBackend:
        """The same methods, never suspending."""
        return StoreBackend(self.store, self._repository.over(self.store.blocking))

    def behind(self, fence: Fence) -> StoreBackend:
        """Return the same as one whose saves a fence may stop: see `Repository.behind`."""
        return StoreBackend(self.store, self._repository.behind(fence))

    @property
    def sync(self) -> SyncBackend:
        """The same methods, blocking. Works inside a running event loop too."""
        return SyncBackend(self.blocking)

    @public_call("backend.put")
    async def put(self, checkpoint: Checkpoint) -> str:
        record = _record(checks.kind(checkpoint, Checkpoint, "checkpoint"))
        values = (checkpoint.messages, checkpoint.state, checkpoint.tools_result)
        checks.kind(checkpoint.messages, list, "messages")
        checks.kind(checkpoint.state, dict, "state")
        checks.kind(checkpoint.tools_result, dict, "tools_result")
        check_messages(checkpoint.messages)
        thread_id, namespace, checkpoint_id = record.key
        if record.parents and record.parents != self._repository.recent_heads(thread_id, namespace):
            before = await self.store.read(*record.key)
            if before is not None and _parent_ids(before.stored.record) == _parent_ids(record):
                # The parent of a branch's first checkpoint is in another thread, which a plain id does not
                # tell.
                record = record._replace(parents=before.stored.record.parents)
        await self._repository.save(thread_id, values, lambda _: record, namespace=namespace)
        return checkpoint_id

    @public_call("backend.get")
    async def get(
        self, checkpoint_id: str, *, thread_id: str | None = None, namespace: str | None = None
    ) -> Checkpoint | None:
        key = await self.locate(checkpoint_id, thread_id, namespace)
        if key is None:
            return None
        return await self._load(*key)

    @public_call("backend.get_latest")
    async def get_latest(self, thread_id: str, *, namespace: str = "") -> Checkpoint | None:
        return await self._load(checks.thread_id(thread_id), checks.namespace(namespace))

    async def _load(self, thread_id: str, namespace: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """Return a checkpoint, or the head if none is named; None if it is not there."""
        found = await self._repository.load(thread_id, namespace, checkpoint_id)
        if found is None:
            return None
        return to_checkpoint(*found)

    @public_call("backend.list_threads")
    async def list_threads(
        self,
        limit: int = 50,
        offset: int = 0,
        *,
        prefix: str = "",
        filter: Mapping[str, Any] | None = None,  # noqa: A002  # what the thing is called everywhere
        tags: Iterable[str] = (),
        since: datetime | None = None,
        cursor: str | None = None,
    ) -> ThreadPage:
        """Return each thread's latest, most recently active first; `cursor` is that of the page before.

        Only threads whose name begins with `prefix`, whose latest checkpoint has all `tags` and every entry of `filter`
        in its metadata with exactly that value, and that were active at `since` or later.
        """
        # A saver does not need it, and it takes a while to load.
        from everstep.repository.finding import make_search, page_of

        search = make_search(prefix, filter, tags, since, limit, cursor)
        return await page_of(self.store, search, checks.count(offset, "offset"))

    @public_call("backend.delete_threads", has_deadline=False)
    async def delete_threads(
        self,
        *,
        prefix: str = "",
        filter: Mapping[str, Any] | None = None,  # noqa: A002  # what the thing is called everywhere
        tags: Iterable[str] = (),
        since: datetime | None = None,
        everything: bool = False,
        dry_run: bool = False,
    ) -> DeletedThreads:
        """Delete the threads that `list_threads` would list, and tell which; with `dry_run` only tell.

        To delete all there are, say `everything=True` and nothing else.
        """
        from everstep.reports import DeletedThreads
        from everstep.repository.effects import let_go
        from everstep.repository.finding import check_deletion, every_thread, make_search

        search = make_search(prefix, filter, tags, since)
        check_deletion(search, everything=everything)
        names: list[str] = []
        effects: list[DroppedEffect] = []
        checkpoints = 0
        async for name in every_thread(self.store, search):
            names.append(name)
            if dry_run:
                checkpoints += await self.store.count(Query(thread_id=name, namespace=None, hidden="also"))
            else:
                # Before the thread goes: what it did to the world is told, and nobody could look it up
                # afterwards.
                effects += await let_go(self._repository, name)
                checkpoints += await self._delete(name, None)
        return DeletedThreads(names, checkpoints, dry_run, effects)

    @public_call("backend.sizes", has_deadline=False)
    async def sizes(self, thread_id: str | None = None) -> Sizes:
        """Return what a thread takes, or (None) all of them. It reads all that they are made of."""
        from everstep.repository.sizes import sizes_of_all, sizes_of_thread

        if thread_id is None:
            return await sizes_of_all(self.store)
        return await sizes_of_thread(self.store, checks.thread_id(thread_id))

    @public_call("backend.list_checkpoints")
    async def list_checkpoints(
        self,
        thread_id: str,
        limit: int = 100,
        offset: int = 0,
        *,
        namespace: str | None = "",
        filter: dict[str, Any] | None = None,  # noqa: A002  # what the thing is called everywhere
    ) -> list[CheckpointMetadata]:
        query = Query(
            thread_id=checks.thread_id(thread_id),
            namespace=None if namespace is None else checks.namespace(namespace),
            filter={} if filter is None else checks.kind(filter, dict, "filter"),
            limit=checks.count(limit, "limit"),
            offset=checks.count(offset, "offset"),
        )
        return [to_metadata(stored) for stored in await self.store.list_checkpoints(query)]

    @public_call("backend.delete_thread", has_deadline=False)
    async def delete_thread(self, thread_id: str) -> int:
        from everstep.repository.effects import let_go

        await let_go(self._repository, checks.thread_id(thread_id))
        return await self._delete(thread_id, None)

    @public_call("backend.delete_before", has_deadline=False)
    async def delete_before(self, thread_id: str, before_step: int) -> int:
        return await self._delete(checks.thread_id(thread_id), checks.whole(before_step, "before_step"))

    async def close(self) -> None:
        await self.store.close()

    async def locate(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Key | None:
        """Return the one checkpoint of that id in that thread and namespace (None: in any)."""
        checks.checkpoint_id(checkpoint_id)
        if thread_id is not None:
            thread_id = checks.thread_id(thread_id)
        if namespace is not None:
            namespace = checks.namespace(namespace)
        if thread_id is not None and namespace is not None:
            return Key(thread_id, namespace, checkpoint_id)
        found = await self.store.find(checkpoint_id)
        if thread_id is not None:
            found = [key for key in found if key.thread_id == thread_id]
        if namespace is not None:
            found = [key for key in found if key.namespace == namespace]
        if len(found) > 1:
            raise AmbiguousCheckpoint(checkpoint_id, [(key.thread_id, key.namespace) for key in found])
        if not found:
            return None
        return found[0]

    async def require(self, checkpoint_id: str, thread_id: str | None = None, namespace: str | None = None) -> Key:
        """Return what `locate` finds, or raise CheckpointNotFound."""
        key = await self.locate(checkpoint_id, thread_id, namespace)
        if key is None:
            raise CheckpointNotFound(checkpoint_id, thread_id)
        return key

    async def _delete(self, thread_id: str, before_step: int | None) -> int:
        deleted = await self.store.delete(thread_id, before_step=before_step)
        self._repository.forget(thread_id)
        await reclaim(self.store, deleted, thread_id)
        what = "whole" if before_step is None else f"before step {before_step}"
        logger.info("thread %r deleted (%s): %d checkpoints", thread_id, what, deleted.checkpoints)
        return deleted.checkpoints


class SyncBackend(SyncFace[Any]):
    """The blocking view of a backend: the same names, parameters and results."""

    def __repr__(self) -> str:
        return describe_on_store(self, getattr(self._driven, "store", self._driven))

    put = blocking(StoreBackend.put)
    get = blocking(StoreBackend.get)
    get_latest = blocking(StoreBackend.get_latest)
    list_threads = blocking(StoreBackend.list_threads)
    delete_threads = blocking(StoreBackend.delete_threads)
    sizes = blocking(StoreBackend.sizes)
    list_checkpoints = blocking(StoreBackend.list_checkpoints)
    delete_thread = blocking(StoreBackend.delete_thread)
    delete_before = blocking(StoreBackend.delete_before)
    close = blocking(StoreBackend.close)


class MemoryCheckpointer(StoreBackend):
    """Checkpoints in this process's memory."""

    def __init__(self) -> None:
        # Stores are imported when they are used: some need a driver that is not installed.
        from everstep.stores.memory import MemoryStore

        super().__init__(MemoryStore())


class SQLiteCheckpointer(StoreBackend):
    """Checkpoints in one SQLite file, which is created on first use."""

    def __init__(self, path: Address = _SQLITE_PATH, **options: Any) -> None:
        """`options`: `synchronous` ("full", "normal", "off") and `busy_timeout_seconds`."""
        own = resolved("sqlite", type(self).__name__, _unless(path, _SQLITE_PATH), options)
        own["path"] = file_path(own.get("path", path))
        from everstep.stores.sqlite.store import SQLiteStore  # imported when used: the driver takes a moment to load

        super().__init__(SQLiteStore(**own))


class PostgresCheckpointer(StoreBackend):
    """Checkpoints in a PostgreSQL database (14 or newer). Tables are created on first use."""

    def __init__(self, dsn: str = "", **pool_options: Any) -> None:
        """Make no connection yet.

        `pool_options`: `schema`, `table_prefix`, `timeout_seconds`, `min_size`, `max_size`, `max_idle_seconds`,
        `prepare_threshold`, and a few names that drivers have for them: see `everstep.options`.
        """
        own = resolved("postgres", type(self).__name__, _unless(dsn, ""), pool_options)
        from everstep.stores.postgres.store import PostgresStore  # imported when used: the driver is optional

        super().__init__(PostgresStore(**own))


class RedisCheckpointer(StoreBackend):
    """Checkpoints on a Redis or Valkey server, or a cluster of them."""

    def __init__(
        self,
        url: str = _REDIS_URL,
        *,
        key_prefix: str = "everstep:",
        ttl_seconds: float | None = None,
        **options: Any,
    ) -> None:
        """A family of threads is gone `ttl_seconds` after its last put; None: never.

        `options`: `wait_replicas`, `timeout_seconds`, `allow_eviction`, `max_threads`.
        """
        own = resolved("redis", type(self).__name__, _unless(url, _REDIS_URL), options)
        from everstep.stores.redis.store import RedisStore  # imported when used: the driver is optional

        super().__init__(RedisStore(key_prefix=key_prefix, ttl_seconds=ttl_seconds, **own))


def _unless(value: Any, default: Any) -> Any:
    """Return what a person gave; None if that is what there is anyway."""
    if value == default:
        return None
    return value


def _parent_ids(record: Record) -> list[str]:
    return [parent.checkpoint_id for parent in record.parents]


def _record(checkpoint: Checkpoint) -> Record:
    metadata = checks.kind(checkpoint.metadata, CheckpointMetadata, "metadata")
    thread_id = checks.thread_id(metadata.thread_id)
    namespace = checks.namespace(metadata.namespace)
    others = checks.kind(metadata.parents, list, "parents")[1:]
    parents: list[Any] = []
    if metadata.parent_checkpoint_id is not None:
        parents = [metadata.parent_checkpoint_id, *others]
    if len(parents) > 2:
        raise InvalidInput(f"a checkpoint has at most 2 parents, not {len(parents)}")
    return Record(
        key=Key(thread_id, namespace, checks.checkpoint_id(metadata.checkpoint_id)),
        step=checks.whole(metadata.step, "step"),
        parents=tuple(Key(thread_id, namespace, checks.checkpoint_id(p)) for p in parents if p is not None),
        created_at=checks.text(metadata.created_at, "created_at"),
        children=b"",
        body=b"",
        sizes=(),
        tags=tuple(checks.text(tag, "tag") for tag in checks.kind(metadata.tags, list, "tags")),
        summary=checks.text(metadata.summary, "summary"),
        next_node=checks.text(checkpoint.next_node, "next_node"),
        trigger=checks.text(metadata.trigger, "trigger"),
        metadata=copied(checks.kind(metadata.metadata, dict, "metadata"), "metadata"),
    )
