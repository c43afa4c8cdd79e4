"""What a saver puts and gets: checkpoints with their values, and the pending writes of tasks. How both are recognized.

`KIND`, the numbers of `SPECIAL_WRITES` and the form in the first byte of a write are stored, and later versions read
them. So there may be more of them, but none that exists may change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from everstep.errors import InvalidInput
from everstep.stores.protocol import Stored, Write
from everstep.types import TASK_NAMESPACE
from everstep.values import tree

KIND = "langgraph"
"""The `kind` of every record that a saver writes."""

SPECIAL_WRITES = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}
"""Channels of which a task has one write, the last one; other writes are numbered by their place."""


class Saved(NamedTuple):
    """A checkpoint with its values."""

    stored: Stored
    checkpoint: dict[str, Any]
    writes: list[tuple[str, str, Any]]
    """(task, channel, value), in the order in which LangGraph applies them."""
    absent: tuple[str, ...] = ()
    """What was not in the checkpoint when it was put, and has been filled in."""
    odd: Mapping[str, Any] = MappingProxyType({})
    """What was in the checkpoint but not as LangGraph has it."""


class Pending(NamedTuple):
    """A write of a task, with its number and the place of the task."""

    task_id: str
    idx: int
    channel: str
    value: Any
    task_path: str = ""


def node_of(write: Write) -> tree.Node:
    """Return the value of a write; the first byte of its body is the form."""
    return tree.Node(write.children, write.body[1:], write.size)


def is_call(namespace: str) -> bool:
    """Whether a namespace is that of one call of a subgraph, `node:task`: it is not read again after the call."""
    return ":" in namespace and namespace != TASK_NAMESPACE


def of_graph(listed: Iterable[Stored]) -> list[Stored]:
    """Return the checkpoints of a thread that its graph wrote: all but the records of who runs it."""
    return [stored for stored in listed if stored.record.key.namespace != TASK_NAMESPACE]


def check_kind(stored: Stored) -> None:
    """Refuse a checkpoint that no saver wrote: an engine, say, has threads in the same store."""
    if stored.record.kind != KIND:
        raise InvalidInput(
            f"thread {stored.record.key.thread_id!r} was not written by a LangGraph saver; use another thread_id"
        )
