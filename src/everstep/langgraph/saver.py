"""The saver: LangGraph's methods, base and extended, on any store. One object for `invoke` and `ainvoke`.

Each method is written once, as a coroutine over a store; the blocking twin drives it over the store's blocking face.
"""

from __future__ import annotations

import copy
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, Unpack, cast

from everstep.backends import StoreBackend
from everstep.config import CheckpointGC, SnapshotConfig
from everstep.errors import InvalidInput
from everstep.factory import backend_from_url
from everstep.langgraph import configs
from everstep.langgraph.channels import Channels
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.classes import Kinds
from everstep.langgraph.compat import (
    BaseCheckpointSaver,
    RunnableConfig,
    SavedTuple,
    maybe_add_typed_methods,
    new_checkpoint_id,
    next_version,
)
from everstep.langgraph.models import (
    CheckpointerConfig,
    CheckpointRecord,
    OnBackend,
    TupleMetadata,
    backend_of,
    record_of,
)
from everstep.langgraph.saved import Saved, is_call
from everstep.opening.addresses import Address
from everstep.opening.options import StoreOptions
from everstep.repository.fences import Fence
from everstep.repository.new_names import under_new_name
from everstep.runtime import checks
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Key, Query, Store

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

T = TypeVar("T")
Config = Any
"""LangGraph's RunnableConfig."""


class SaverOptions(StoreOptions, total=False):
    """The options of `from_url`: those of the saver, and those of the store that the URL names."""

    serde: Any
    strict: bool
    allow: Iterable[type | tuple[str, ...]]
    retention: SnapshotConfig | None
    is_secret: Callable[[str], bool]


class HarnessCheckpointer(OnBackend, BaseCheckpointSaver[Any]):
    """A checkpointer for LangGraph on any store of Everstep. Works without LangGraph too."""

    def __init__(
        self,
        config: CheckpointerConfig | None = None,
        *,
        backend: Any = None,
        serde: Any = None,
        strict: bool = False,
        allow: Iterable[type | tuple[str, ...]] = (),
        retention: SnapshotConfig | None = None,
        is_secret: Callable[[str], bool] = configs.is_secret,
    ) -> None:
        """Keep checkpoints where `config` says, or in `backend`: a store, a backend, or a record-level one.

        `serde` gets every value if it is given. Otherwise values are kept exactly and in parts, and these classes are
        rebuilt: LangGraph's own, those in `allow`, and, unless `strict`, every dataclass, pydantic model, enum and
        named tuple that is imported. `retention` is applied after each put. What `is_secret` says of a name in
        `configurable` decides whether it is kept out of the metadata.
        """
        super().__init__(serde=serde)
        if config is not None and backend is not None:
            raise InvalidInput("pass either a config or a backend, not both")
        if retention is not None and not isinstance(retention, SnapshotConfig):
            raise InvalidInput(f"retention is a SnapshotConfig, not {type(retention).__name__}")
        self._config = config if config is not None else CheckpointerConfig()
        self._backend = _backend(backend) if backend is not None else backend_of(self._config)
        self._custom = maybe_add_typed_methods(serde) if serde is not None else None
        self._is_secret = is_secret
        channels = Channels(Kinds(allow, strict=strict, serde=getattr(self, "serde", None)), self._custom)
        keeper = None
        if retention is not None:
            from everstep.retention.keeper import Keeper

            keeper = Keeper(retention, is_call)
        repository = self._backend.repository
        self._use(Threads(repository, channels, keeper), channels)
        self._clones: dict[frozenset[Any], HarnessCheckpointer] = {}

    def _use(self, threads: Threads, channels: Channels) -> None:
        self._channels = channels
        self._threads = threads
        self._blocking = threads.over(self._backend.repository.over(self._backend.store.blocking))

    @classmethod
    def from_url(cls, url: Address, **options: Unpack[SaverOptions]) -> Self:
        """Return a saver on the store at `url`; a plain path means SQLite. Options are the saver's or the store's."""
        return cls._at(url, {**options}, "from_url")

    @classmethod
    def from_conn_string(cls, url: Address, **options: Unpack[SaverOptions]) -> Self:
        """Return what `from_url` does, under the name that other savers have for it."""
        return cls._at(url, {**options}, "from_conn_string")

    @classmethod
    def _at(cls, url: Address, options: dict[str, Any], name: str) -> Self:
        own = {name: options.pop(name) for name in _OWN_OPTIONS if name in options}
        return cls(backend=backend_from_url(url, options, f"{cls.__name__}.{name}", also=_OWN_OPTIONS), **own)

    def setup(self) -> Awaitable[None]:
        """Do nothing, awaited or not: tables are made on first use. Code written for other savers calls this."""
        return _Done()

    @property
    def engine(self) -> CheckpointEngine:
        """What rewinds, branches, compares and merges the saver's threads. It applies no retention of its own."""
        from everstep.engine import CheckpointEngine  # few need it

        return CheckpointEngine(self._backend, SnapshotConfig(gc_policy=CheckpointGC.KEEP_ALL))

    # -- reading

    def get_tuple(self, config: Config) -> SavedTuple | None:
        """Return the checkpoint that `config` names, or the head of the thread; None if there is none."""
        return run_to_end(_get(self._blocking, config))

    async def aget_tuple(self, config: Config) -> SavedTuple | None:
        """Return the checkpoint that `config` names, or the head of the thread; None if there is none."""
        return await _get(self._threads, config)

    def get(self, config: Config) -> Any:
        """Return the checkpoint alone."""
        found = self.get_tuple(config)
        return found.checkpoint if found is not None else None

    async def aget(self, config: Config) -> Any:
        """Return the checkpoint alone."""
        found = await self.aget_tuple(config)
        return found.checkpoint if found is not None else None

    def get_record(self, config: Config) -> CheckpointRecord | None:
        """Return the checkpoint as a record."""
        return run_to_end(_get_record(self._blocking, config))

    async def aget_record(self, config: Config) -> CheckpointRecord | None:
        """Return the checkpoint as a record."""
        return await _get_record(self._threads, config)

    def list(
        self,
        config: Config | None = None,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  # LangGraph's name
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[SavedTuple]:
        """Yield checkpoints, the greatest id first; see the documentation for what is matched."""
        found = self._blocking.listed(*_query(config, filter, before, limit))
        return map(_tuple, _drained(found))

    def alist(
        self,
        config: Config | None = None,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  # LangGraph's name
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[SavedTuple]:
        """Yield checkpoints, the greatest id first; see the documentation for what is matched."""
        return _tuples(self._threads.listed(*_query(config, filter, before, limit)))

    def list_records(
        self,
        config: Config | None = None,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  # LangGraph's name
        before: Config | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointRecord]:
        """Yield as records what `list` yields as tuples."""
        return map(record_of, _drained(self._blocking.listed(*_query(config, filter, before, limit))))

    def alist_records(
        self,
        config: Config | None = None,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  # LangGraph's name
        before: Config | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointRecord]:
        """Yield as records what `alist` yields as tuples."""
        return _records(self._threads.listed(*_query(config, filter, before, limit)))

    def get_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Any:
        """Return what the values of these channels are made from: the last stored value, and the writes since."""
        return run_to_end(_history(self._blocking, config, channels))

    async def aget_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Any:
        """Return what the values of these channels are made from: the last stored value, and the writes since."""
        return await _history(self._threads, config, channels)

    # -- writing

    def put(self, config: Config, checkpoint: Any, metadata: Any = None, new_versions: Any = None) -> RunnableConfig:
        """Store a checkpoint that follows the one `config` names, and return the config that names it."""
        return run_to_end(self._put(self._blocking, config, checkpoint, metadata, new_versions))

    async def aput(
        self, config: Config, checkpoint: Any, metadata: Any = None, new_versions: Any = None
    ) -> RunnableConfig:
        """Store a checkpoint that follows the one `config` names, and return the config that names it."""
        return await self._put(self._threads, config, checkpoint, metadata, new_versions)

    async def _put(
        self, threads: Threads, config: Config, checkpoint: Any, metadata: Any, new_versions: Any
    ) -> RunnableConfig:
        thread_id, namespace, parent = configs.place_of(config)
        if not isinstance(checkpoint, (dict, Mapping)):
            raise InvalidInput(f"a checkpoint is a dict, not {type(checkpoint).__name__}")
        _check_fields(checkpoint, new_versions)
        kept = configs.metadata_of(config, metadata, self._is_secret)
        given = checkpoint.get("id")
        if given is not None:
            key = Key(thread_id, namespace, checks.checkpoint_id(given))
            await threads.put(key, parent, checkpoint, kept, new_versions)
            return _config_of(key)

        async def put_under_new_id() -> Key:
            key = Key(thread_id, namespace, new_checkpoint_id())
            await threads.put(key, parent, checkpoint, kept, new_versions, fresh=True)
            return key

        return _config_of(await under_new_name(put_under_new_id))

    def put_writes(self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = "") -> None:
        """Attach a task's results to the checkpoint that `config` names, which may come later."""
        # The graph is about to give new messages their ids, on another thread: let it. Without an id a message is kept
        # twice, here and in its channel.
        time.sleep(0)
        run_to_end(_put_writes(self._blocking, config, writes, task_id, task_path))

    async def aput_writes(
        self, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Attach a task's results to the checkpoint that `config` names, which may come later."""
        await _put_writes(self._threads, config, writes, task_id, task_path)

    # -- deleting and copying

    def delete_thread(self, thread_id: Any) -> int:  # type: ignore[override]  # LangGraph expects nothing back
        """Delete a thread with all its namespaces, and return how many checkpoints it had."""
        return run_to_end(self._blocking.delete_thread(_thread_id(thread_id)))

    async def adelete_thread(self, thread_id: Any) -> int:  # type: ignore[override]  # the same
        """Delete a thread with all its namespaces, and return how many checkpoints it had."""
        return await self._threads.delete_thread(_thread_id(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what these runs wrote, in all threads."""
        run_to_end(self._blocking.delete_for_runs(_texts(run_ids, "run_ids")))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what these runs wrote, in all threads."""
        await self._threads.delete_for_runs(_texts(run_ids, "run_ids"))

    def copy_thread(self, source_thread_id: Any, target_thread_id: Any) -> None:
        """Copy a thread: the same ids, order, metadata, namespaces and writes."""
        run_to_end(self._blocking.copy_thread(_thread_id(source_thread_id), _thread_id(target_thread_id)))

    async def acopy_thread(self, source_thread_id: Any, target_thread_id: Any) -> None:
        """Copy a thread: the same ids, order, metadata, namespaces and writes."""
        await self._threads.copy_thread(_thread_id(source_thread_id), _thread_id(target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace ("keep_latest"), or nothing ("delete")."""
        run_to_end(_prune(self._blocking, thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep the newest checkpoint of each namespace ("keep_latest"), or nothing ("delete")."""
        await _prune(self._threads, thread_ids, strategy)

    # -- the rest of the contract

    def get_next_version(self, current: Any, channel: None = None) -> Any:  # noqa: ARG002  # LangGraph's signature
        """Return the version after `current`: a number, or text of the form that other savers gave it."""
        return next_version(current)

    def with_allowlist(self, extra_allowlist: Collection[Any]) -> Self:
        """Return this saver with more classes that it rebuilds; connections and memory are shared."""
        extra = frozenset(extra_allowlist)
        clone = self._clones.get(extra)
        if clone is None:
            clone = copy.copy(self)
            if self._custom is not None and hasattr(BaseCheckpointSaver, "with_allowlist"):
                clone._custom = super().with_allowlist(extra).serde  # LangGraph's own serializers have such a list too
            channels = Channels(self._channels.kinds.extended(extra), clone._custom)
            clone._use(self._threads.by(channels), channels)
            clone._clones = {}
            if len(self._clones) >= _CLONES_MAX:
                self._clones.pop(next(iter(self._clones)), None)
            self._clones[extra] = clone
        return cast(Self, clone)

    @property
    def channels(self) -> Channels:
        """How it keeps values."""
        return self._channels

    def threads(self, *, blocking: bool) -> Threads:
        """Return how it puts and reads, on one of its faces."""
        return self._blocking if blocking else self._threads

    def behind(self, fence: Fence) -> Self:
        """Return this saver as one that puts nothing once the fence is gone; connections and memory are shared."""
        clone = copy.copy(self)
        clone._use(self._threads.behind(fence), self._channels)
        clone._clones = {}
        return clone

    def close(self) -> None:
        """Let go of the store."""
        run_to_end(self._backend.store.blocking.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_CLONES_MAX = 64  # a graph that is built anew for every request may bring classes of its own each time
_OWN_OPTIONS = ("serde", "strict", "allow", "retention", "is_secret")


class _Done:
    """Nothing to wait for. Unlike a coroutine it may be left alone."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


def _backend(backend: Any) -> StoreBackend:
    found = getattr(backend, "backend", backend)
    if isinstance(found, StoreBackend):
        return found
    if hasattr(found, "commit") and hasattr(found, "blocking"):
        return StoreBackend(cast(Store, found))
    raise InvalidInput(f"backend= takes a store or a backend, not {type(backend).__name__}")


def _thread_id(value: Any) -> str:
    return configs.thread_id({"thread_id": value})


def _texts(values: Any, name: str) -> list[str]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput(f"{name} is a list of strings, not {type(values).__name__}")
    return [value if isinstance(value, str) else str(value) for value in values]


def _check_fields(checkpoint: Mapping[str, Any], new_versions: Any) -> None:
    """Refuse a checkpoint with something else where there should be mappings."""
    values = checkpoint.get("channel_values")
    versions = checkpoint.get("channel_versions")
    seen = checkpoint.get("versions_seen")
    if not type(values) is type(versions) is type(seen) is type(new_versions) is dict:  # as they mostly are
        configs.check_mappings(
            new_versions=new_versions, channel_values=values, channel_versions=versions, versions_seen=seen
        )
    for entry in (seen or {}).values():
        if type(entry) is not dict:
            checks.kind(entry, dict, "an entry of versions_seen")


def _config_of(key: Key) -> RunnableConfig:
    return cast(RunnableConfig, configs.config_of(*key))


async def _get(threads: Threads, config: Config) -> SavedTuple | None:
    saved = await _saved(threads, config)
    return _tuple(saved) if saved is not None else None


async def _get_record(threads: Threads, config: Config) -> CheckpointRecord | None:
    saved = await _saved(threads, config, writes=False)
    return record_of(saved) if saved is not None else None


async def _saved(threads: Threads, config: Config, *, writes: bool = True) -> Saved | None:
    return await threads.get(*configs.place_of(config), writes=writes)


class _Listing(NamedTuple):
    query: Query
    limit: int | None


def _query(config: Config | None, wanted: Any, before: Config | None, limit: Any) -> _Listing:
    inner = configs.configurable(config) if config is not None else {}
    wanted = wanted or {}
    if not isinstance(wanted, Mapping) or not all(isinstance(key, str) for key in wanted):
        raise InvalidInput("filter is a dict of metadata keys (strings) and values")
    query = Query(
        # A config without a thread is a mistake, and must not show the threads of everybody: only None asks for all.
        thread_id=configs.thread_id(inner) if config is not None else None,
        namespace=configs.namespace(inner) if inner.get("checkpoint_ns") is not None else None,
        checkpoint_id=configs.checkpoint_id(inner),
        before_id=configs.checkpoint_id(configs.configurable(before, "before")) if before is not None else None,
        filter=dict(wanted),
        order="id",
    )
    return _Listing(query, checks.count(limit, "limit") if limit is not None else None)


async def _tuples(found: AsyncIterator[Saved]) -> AsyncIterator[SavedTuple]:
    async for saved in found:
        yield _tuple(saved)


async def _records(found: AsyncIterator[Saved]) -> AsyncIterator[CheckpointRecord]:
    async for saved in found:
        yield record_of(saved)


def _drained(found: AsyncIterator[Saved]) -> Iterator[Saved]:
    while True:
        try:
            saved = run_to_end(cast(Coroutine[Any, Any, Saved], found.__anext__()))
        except StopAsyncIteration:
            return
        yield saved


async def _history(threads: Threads, config: Config, channels: Sequence[str]) -> Any:
    place = configs.place_of(config)
    return await threads.history(*place, list(dict.fromkeys(channels))) if channels else {}


async def _put_writes(
    threads: Threads, config: Config, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> None:
    thread_id, namespace, checkpoint_id = configs.place_of(config)
    if checkpoint_id is None:
        raise InvalidInput("put_writes needs a config with a checkpoint_id: writes belong to a checkpoint")
    key = Key(thread_id, namespace, checkpoint_id)
    writes = configs.pairs(writes)
    await threads.put_writes(key, writes, checks.text(task_id, "task_id"), checks.text(task_path, "task_path"))


async def _prune(threads: Threads, thread_ids: Sequence[str], strategy: str) -> None:
    names = _texts(thread_ids, "thread_ids")
    if strategy not in ("keep_latest", "delete"):
        raise InvalidInput(f"the strategy is 'keep_latest' or 'delete', not {strategy!r:.40}")
    if strategy == "keep_latest":
        await threads.prune([_thread_id(name) for name in names])
        return
    for name in names:
        await threads.delete_thread(_thread_id(name))


def _tuple(saved: Saved) -> SavedTuple:
    record = saved.stored.record
    parent_config: Any = None
    for parent in record.parents:
        # A branch begins at a checkpoint of another thread, which is no parent to LangGraph.
        if parent.thread_id == record.key.thread_id:
            parent_config = configs.config_of(*parent)
            break
    config: Any = configs.config_of(*record.key)
    checkpoint: Any = saved.checkpoint
    metadata: Any = TupleMetadata(record)
    return SavedTuple(config, checkpoint, metadata, parent_config, saved.writes)
