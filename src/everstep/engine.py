"""The engine: what a person with an agent loop does with checkpoints. Reads like the feature list.

No SQL and no bytes here: values go through the repository, everything else is a call to the store below the backend.
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec

from everstep import checks
from everstep.backends import CheckpointBackend, StoreBackend, SyncBackend
from everstep.config import SnapshotConfig, SnapshotTrigger, as_trigger
from everstep.errors import CheckpointNotFound, InvalidInput, UnsupportedByBackend
from everstep.faces import Closing, SyncFace, blocking
from everstep.repository import copied
from everstep.stores.protocol import ANY, AnyHead, Key, Record, Stored
from everstep.types import Checkpoint, CheckpointMetadata, utc_now

logger = logging.getLogger("everstep")

P = ParamSpec("P")


def _logged(
    save: Callable[Concatenate[CheckpointEngine, P], Coroutine[Any, Any, str]],
) -> Callable[Concatenate[CheckpointEngine, P], Coroutine[Any, Any, str]]:
    """Return `save` as one that never breaks the agent."""

    async def snapshot_safe(self: CheckpointEngine, /, *args: P.args, **kwargs: P.kwargs) -> str:
        """As `snapshot`, but an Exception is logged with its traceback and "" returned. Cancellation passes."""
        try:
            return await save(self, *args, **kwargs)
        except Exception:
            thread_id = args[0] if args else kwargs.get("thread_id")
            logger.exception("a snapshot of thread %r failed; the agent goes on without it", thread_id)
            return ""

    functools.update_wrapper(snapshot_safe, save, assigned=())  # its signature, under its own name
    return snapshot_safe


class CheckpointEngine(Closing):
    """Saves and reads the steps of threads. `engine.sync` has the same methods, blocking."""

    def __init__(self, checkpointer: CheckpointBackend, config: SnapshotConfig | None = None) -> None:
        if not isinstance(checkpointer, CheckpointBackend):
            raise InvalidInput(f"checkpointer is a CheckpointBackend, not {type(checkpointer).__name__}")
        if not isinstance(checkpointer, StoreBackend):
            raise UnsupportedByBackend(
                f"{type(checkpointer).__name__} is not built on a store; this version runs on the built-in backends"
            )
        if config is not None and not isinstance(config, SnapshotConfig):
            raise InvalidInput(f"config is a SnapshotConfig, not {type(config).__name__}")
        self._backend = checkpointer
        self._config = config or SnapshotConfig()

    @property
    def checkpointer(self) -> CheckpointBackend:
        """The backend the engine was made with."""
        return self._backend

    @property
    def config(self) -> SnapshotConfig:
        """When it saves and how much."""
        return self._config

    @property
    def sync(self) -> SyncEngine:
        """The same methods, blocking. Works inside a running event loop too."""
        backend = StoreBackend(self._backend.store, self._backend.repository.over(self._backend.store.blocking))
        return SyncEngine(CheckpointEngine(backend, self._config))

    async def snapshot(
        self,
        thread_id: str,
        messages: Sequence[dict[str, Any]],
        state: dict[str, Any],
        tools_result: dict[str, Any],
        trigger: SnapshotTrigger | str = SnapshotTrigger.MANUAL,
        parent_checkpoint_id: str | None = None,
        next_node: str = "",
        *,
        tags: Iterable[str] = (),
        summary: str | None = None,
        expected_head: str | AnyHead | None = ANY,
        metadata: dict[str, Any] | None = None,
        namespace: str = "",
    ) -> str:
        """Save one step and return its id; "" if the trigger is not configured.

        The step follows the head at the moment of the commit, or `parent_checkpoint_id`, which starts a second line
        if it is older. `expected_head` (an id, or None for "the thread must be empty") makes a beaten writer fail
        with HeadMoved. Over the size limit: SnapshotTooLarge, and nothing is written.
        """
        _check_values(messages, state, tools_result)
        step = _Step(thread_id, namespace, trigger, next_node, tags, summary, metadata, messages, state)
        expect = _expected(expected_head)
        if step.trigger not in self._config.triggers:
            return ""
        parent = None
        values: tuple[Any, ...] = (list(messages), state, tools_result)
        if parent_checkpoint_id is not None:
            # Copied before the wait: what the caller changes later belongs to a later step.
            values = copied(values[0], "messages"), copied(state, "state"), copied(tools_result, "tools_result")
            parent = await self._stored(parent_checkpoint_id, step.thread_id, step.namespace)
        stored = await self._backend.repository.save(
            step.thread_id,
            values,
            lambda head: step.record(parent or head),
            namespace=step.namespace,
            expect=expect,
            split=self._config.delta_snapshots,
            size_bytes_max=self._config.size_bytes_max,
        )
        return stored.record.key.checkpoint_id

    async def append(
        self,
        thread_id: str,
        messages: Sequence[dict[str, Any]] = (),
        state: dict[str, Any] | None = None,
        tools_result: dict[str, Any] | None = None,
        trigger: SnapshotTrigger | str = SnapshotTrigger.MANUAL,
        next_node: str = "",
        *,
        tags: Iterable[str] = (),
        summary: str | None = None,
        expected_head: str | AnyHead | None = ANY,
        metadata: dict[str, Any] | None = None,
        namespace: str = "",
    ) -> str:
        """Save one step given only what is new: messages to add, keys to set. Return its id.

        It is applied to the head found at the commit. The cost does not depend on how long the conversation is.
        """
        state, tools_result = state if state is not None else {}, tools_result if tools_result is not None else {}
        _check_values(messages, state, tools_result)
        step = _Step(thread_id, namespace, trigger, next_node, tags, summary, metadata, messages, state)
        expect = _expected(expected_head)
        if step.trigger not in self._config.triggers:
            return ""
        stored = await self._backend.repository.append(
            step.thread_id,
            list(messages),
            state,
            tools_result,
            step.record,
            namespace=step.namespace,
            expect=expect,
            split=self._config.delta_snapshots,
            size_bytes_max=self._config.size_bytes_max,
        )
        return stored.record.key.checkpoint_id

    snapshot_safe = _logged(snapshot)

    async def get(
        self, checkpoint_id: str, *, thread_id: str | None = None, namespace: str | None = None
    ) -> Checkpoint | None:
        """Return the checkpoint of that id, hidden or not; AmbiguousCheckpoint if several threads hold it."""
        return await self._backend.get(checkpoint_id, thread_id=thread_id, namespace=namespace)

    async def get_latest(self, thread_id: str, *, namespace: str = "") -> Checkpoint | None:
        """Return the thread's head, or None."""
        return await self._backend.get_latest(thread_id, namespace=namespace)

    async def list_time_travel_points(
        self, thread_id: str, limit: int = 50, *, offset: int = 0, namespace: str = ""
    ) -> list[CheckpointMetadata]:
        """Return the metadata of the thread's checkpoints, newest first."""
        return await self._backend.list_checkpoints(thread_id, limit, offset, namespace=namespace)

    async def close(self) -> None:
        """Close the backend."""
        await self._backend.close()

    async def _stored(self, checkpoint_id: str, thread_id: str, namespace: str) -> Stored:
        """Return a checkpoint of the thread, without its values."""
        checks.checkpoint_id(checkpoint_id)
        loaded = await self._backend.store.read(thread_id, namespace, checkpoint_id)
        if loaded is None:
            raise CheckpointNotFound(checkpoint_id, thread_id)
        return loaded.stored


class SyncEngine(SyncFace[CheckpointEngine]):
    """The blocking view of an engine: the same names, parameters and results."""

    snapshot = blocking(CheckpointEngine.snapshot)
    append = blocking(CheckpointEngine.append)
    snapshot_safe = blocking(CheckpointEngine.snapshot_safe)
    get = blocking(CheckpointEngine.get)
    get_latest = blocking(CheckpointEngine.get_latest)
    list_time_travel_points = blocking(CheckpointEngine.list_time_travel_points)
    close = blocking(CheckpointEngine.close)

    @property
    def checkpointer(self) -> SyncBackend:
        """The backend, blocking too."""
        return SyncBackend(self._driven._backend)

    @property
    def config(self) -> SnapshotConfig:
        """When it saves and how much."""
        return self._driven.config


class _Step:
    """The checked arguments of one save, and the record they make once the parent is known."""

    def __init__(
        self,
        thread_id: str,
        namespace: str,
        trigger: SnapshotTrigger | str,
        next_node: str,
        tags: Iterable[str],
        summary: str | None,
        metadata: dict[str, Any] | None,
        messages: Sequence[Any],
        state: dict[str, Any],
    ) -> None:
        self.thread_id, self.namespace = checks.thread_id(thread_id), checks.namespace(namespace)
        self.trigger = as_trigger(trigger)
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise InvalidInput("tags is a collection of strings; put the one you mean in a list")
        named = [checks.text(tag, "tag") for tag in tags]
        self._tags = tuple(dict.fromkeys([*named, self.trigger.value]))
        self._summary = checks.text(summary, "summary") if summary is not None else _summary(messages, state)
        self._next_node = checks.text(next_node, "next_node")
        self._metadata = copied(checks.kind(metadata, dict, "metadata"), "metadata") if metadata is not None else {}
        self._created_at, self._hex = utc_now(), secrets.token_hex(4)

    def record(self, parent: Stored | None) -> Record:
        """Return the record, without values, of the step that follows `parent`."""
        step = parent.record.step + 1 if parent is not None else 1
        return Record(
            key=Key(self.thread_id, self.namespace, f"ckpt-{self.thread_id}-{step}-{self._hex}"),
            step=step,
            parents=(parent.record.key,) if parent is not None else (),
            created_at=self._created_at,
            children=b"",
            body=b"",
            sizes=(),
            tags=self._tags,
            summary=self._summary,
            next_node=self._next_node,
            trigger=self.trigger.value,
            metadata=self._metadata,
        )


def _summary(messages: Sequence[Any], state: dict[str, Any]) -> str:
    """Return `[role] first 100 characters` of the last message, or `State: N keys`."""
    last = messages[-1] if messages else None
    if not isinstance(last, dict):
        return f"State: {len(state)} keys"
    content, role = last.get("content", ""), last.get("role", "?")
    text = content if isinstance(content, str) else _plain_text(content)
    role = role if isinstance(role, str) else checks.shown(role)
    # A lone surrogate is fine in a value, but a summary is text that every store can hold.
    return f"[{role[:40]}] {text[:100]}".encode("utf-8", "replace").decode()


def _plain_text(content: Any) -> str:
    """Return the text of content that comes in blocks."""
    if not isinstance(content, (list, tuple)):
        return "" if content is None else checks.shown(content)
    texts = (
        block if isinstance(block, str) else block.get("text", "")
        for block in content
        if isinstance(block, (str, dict))
    )
    return " ".join(text for text in texts if isinstance(text, str) and text)


def _check_values(messages: object, state: object, tools_result: object) -> None:
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise InvalidInput(f"messages is a list, not {type(messages).__name__}")
    checks.kind(state, dict, "state")
    checks.kind(tools_result, dict, "tools_result")


def _expected(expected_head: str | AnyHead | None) -> str | AnyHead | None:
    return expected_head if expected_head is None or expected_head is ANY else checks.checkpoint_id(expected_head)
