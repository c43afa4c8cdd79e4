"""The node that is running: where it stands, and what its steps have recorded.

What a step came to is kept as a pending write of the checkpoint that the node runs from, under a task id of its own,
which LangGraph passes over. So it is there when the node runs again, goes along with a branch, is left behind by a
rewind, and goes when the checkpoint does.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

from everstep.durable.keys import Keys
from everstep.errors import InvalidInput, MissingDependency
from everstep.langgraph import configs
from everstep.langgraph.checkpoints import Threads
from everstep.langgraph.saver import HarnessCheckpointer
from everstep.stores.protocol import Key

STEPS = "everstep:step"
"""The channel of these writes. No graph has one of that name."""

_NAMESPACE = uuid.UUID("5d1f7d0c-7f0b-4b62-9d43-4b9d6f6fbb5e")
_PUSH = "__pregel_push"

_OUTSIDE = "everstep.langgraph.step() and astep() are called inside a node of a graph that is running"


class Record(NamedTuple):
    """What a step came to."""

    about: Mapping[str, Any]
    """`key`, `args` (their digest), `status` (ok, error or asked), and `result` or `error`."""
    attempt: int
    """In which run of the node, in this process, it was recorded; 0: before."""


class Node:
    """A node that is running, from its first step on, with all its attempts in this process."""

    def __init__(self, config: Mapping[str, Any], saver: HarnessCheckpointer) -> None:
        inner = configs.configurable(config)
        metadata = config.get("metadata") or {}
        self.saver = saver
        self.thread_id = configs.thread_id(inner)
        self.task_id = str(inner["__pregel_task_id"])
        self.name = str(inner["checkpoint_ns"]).rpartition("|")[2].partition(":")[0]
        self.around = _checkpoints(inner["checkpoint_map"])
        """The checkpoints of all graphs that it runs inside of, by namespace, its own the last."""
        self.checkpoint = Key(self.thread_id, *list(self.around.items())[-1])
        """The one that it runs from."""
        self.is_kept = inner.get("__pregel_durability") != "exit"
        """Whether checkpoints are stored while the graph runs."""
        self.number = _number(metadata.get("langgraph_path") or ())
        self.step = int(metadata.get("langgraph_step") or 0)
        self.keys = Keys()
        self.attempt = 0
        self._token: Any = None
        self._records: dict[str, Record] = {}
        self._tries: dict[str, int] = {}
        self._last: str | None = None
        self._error: str | None = None
        self._is_loaded = False
        self._lock = threading.Lock()

    def enter(self, token: Any) -> None:
        """Note in which attempt the code is: each has a token of its own."""
        with self._lock:
            if self._token is not token:
                self._token = token
                self.attempt += 1
                self.keys = Keys()

    async def load(self, threads: Threads) -> None:
        """Find what was recorded before."""
        if self._is_loaded:
            return
        found = await threads.writes_of(self.checkpoint)
        with self._lock:
            # Another step of the node was faster.
            if self._records:
                return
            own: list[Mapping[str, Any]] = []
            errors: list[str] = []
            for task, channel, value in found or ():
                if channel == STEPS and value["task"] == self.task_id:
                    own.append(value)
                elif channel == "__error__" and task == self.task_id:
                    errors.append(str(value))
            for about in sorted(own, key=lambda about: int(about["order"])):
                self._note(about, 0)
            self._error = next(iter(errors), None)
            self._is_loaded = True

    def find(self, key: str) -> Record | None:
        """Return what is recorded of a step."""
        return self._records.get(key)

    def has_ended_by(self, key: str) -> bool:
        """Whether the failure of a step has ended the node when it ran last: then it is tried again.

        So it is taken if the node has failed, and nothing was recorded after that failure. Otherwise it was caught.
        """
        record = self._records.get(key)
        if record is None:
            return True
        if record.attempt:
            return record.attempt < self.attempt and self._last == key
        return self._error is not None and (self._last == key or self._error == record.about.get("repr"))

    async def record(self, threads: Threads, key: str, about: Mapping[str, Any]) -> None:
        """Record what a step came to: one commit."""
        with self._lock:
            number = self._tries.get(key, 0)
            value = {**about, "key": key, "task": self.task_id, "order": sum(self._tries.values())}
        name = str(uuid.uuid5(_NAMESPACE, f"{self.task_id}/{number}/{key}"))
        if self.is_kept:
            await threads.put_writes(self.checkpoint, [(STEPS, value)], name)
        with self._lock:
            self._note(value, self.attempt)

    def _note(self, about: Mapping[str, Any], attempt: int) -> None:
        key = str(about["key"])
        self._records[key] = Record(about, attempt)
        self._tries[key] = self._tries.get(key, 0) + 1
        self._last = key


_running: weakref.WeakKeyDictionary[Any, Node] = weakref.WeakKeyDictionary()
"""By an object that LangGraph makes for each task that it runs."""
_lock = threading.Lock()


def running_node(config: Mapping[str, Any] | None = None) -> Node:
    """Return the node that is running here. InvalidInput: there is none, or what it does is not kept in a store."""
    if config is None:
        config = _config()
    inner = config.get("configurable") or {}
    pad = inner.get("__pregel_scratchpad")
    if pad is None or "__pregel_task_id" not in inner:
        raise InvalidInput(_OUTSIDE)
    saver = inner.get("__pregel_checkpointer")
    if saver is None or isinstance(saver, bool):
        raise InvalidInput("the graph has no checkpointer; compile it with a HarnessCheckpointer to record its steps")
    if not isinstance(saver, HarnessCheckpointer):
        raise InvalidInput(
            f"steps are recorded by a HarnessCheckpointer, and this graph has a {type(saver).__name__}; "
            "import_langgraph brings its threads over"
        )
    with _lock:
        node = _running.get(pad.get_null_resume)
        if node is None:
            node = _running[pad.get_null_resume] = Node(config, saver)
    node.enter(pad.interrupt_counter)
    return node


def _config() -> Mapping[str, Any]:
    try:
        from langgraph.config import get_config
    except ImportError as exc:
        raise MissingDependency("langgraph", "langgraph") from exc
    try:
        return get_config()
    except RuntimeError:
        raise InvalidInput(_OUTSIDE) from None


def _checkpoints(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the checkpoints that a node runs inside of, the outermost first.

    Tasks that are called by a node have an entry of their own there, though their checkpoint is that of the node.
    """
    kept: dict[str, str] = {}
    for namespace in sorted(found, key=len):
        if found[namespace] not in kept.values():
            kept[namespace] = str(found[namespace])
    return kept


def _number(path: Any) -> str:
    """Return which one a task is of those that were sent to the same node, or called by it, at once."""
    if not path or path[0] != _PUSH:
        return ""
    return f"[{_flat(path[1:])}]"


def _flat(path: Any) -> str:
    # A task that is called by another one has the path of that one inside its own.
    if not isinstance(path, (tuple, list)):
        return str(path)
    return ".".join(map(_flat, path))
