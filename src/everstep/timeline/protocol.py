"""What the engine needs to be done, whatever the backend: on a store, or on somebody's own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

from everstep.reports import (
    CheckpointTree,
    Conflict,
    DeletedThreads,
    Diff,
    GCReport,
    Operation,
    Reference,
    Sizes,
    ThreadPage,
    TimeTravelResult,
)
from everstep.repository.ledger import Save
from everstep.repository.step import Step
from everstep.stores.protocol import AnyHead, Key
from everstep.types import Checkpoint, CheckpointMetadata

Resolve = str | Mapping[str, Any] | Callable[[Conflict], Any] | None
"""How the caller of a merge decides what both sides have changed."""


class Timeline(Protocol):
    """The operations on the history of threads."""

    @property
    def blocking(self) -> Timeline:
        """The same, never suspending."""

    @property
    def run(self) -> Callable[[Coroutine[Any, Any, Any]], Any]:
        """How a blocking caller gets to the end of a coroutine of the blocking face."""

    async def save(
        self, step: Step, values: tuple[Any, ...], parent_id: str | None, expect: str | AnyHead | None
    ) -> str:
        """Save whole values as the next step."""

    async def save_onto(self, step: Step, save: Save) -> str:
        """Save what a live thread holds as the next step; see `ledger`."""

    async def append(
        self,
        step: Step,
        messages: list[Any],
        state: dict[str, Any] | None,
        tools_result: dict[str, Any] | None,
        expect: str | AnyHead | None,
        *,
        replace: bool = False,
    ) -> str:
        """Save the head's values with something added as the next step; see `Repository.append`."""

    async def get(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Checkpoint | None:
        """Return a checkpoint, hidden or not."""

    async def get_latest(self, thread_id: str, namespace: str) -> Checkpoint | None:
        """Return the head."""

    async def list_points(self, thread_id: str, limit: int, offset: int, namespace: str) -> list[CheckpointMetadata]:
        """Return metadata, newest first."""

    async def tree(self, thread_id: str, limit: int, *, branches: bool) -> CheckpointTree:
        """Return the newest checkpoints of a thread, and of its branches, as nodes and edges."""

    async def diff(self, a: Key, b: Key) -> Diff:
        """Return what changed from `a` to `b`."""

    async def locate(self, checkpoint_id: str, thread_id: str | None, namespace: str | None) -> Key:
        """Return the full name of a checkpoint that must be there."""

    async def resolve(self, ref: str, thread_id: str | None) -> Reference:
        """Return the checkpoint that a reference means."""

    async def rewind(self, key: Key, later: str) -> TimeTravelResult:
        """Make a checkpoint the head; what came later on its line is hidden, deleted or kept."""

    async def at_step(self, thread_id: str, step: int, namespace: str) -> Key | None:
        """Return the newest checkpoint whose step is not greater."""

    async def undo(self, thread_id: str) -> Operation:
        """Take the newest operation back."""

    async def redo(self, thread_id: str) -> Operation:
        """Do again what was undone last."""

    async def operations(self, thread_id: str, limit: int) -> list[Operation]:
        """Return the log, newest first."""

    async def pin(self, key: Key, *, pinned: bool) -> None:
        """Set or lift the mark that keeps a checkpoint from retention."""

    async def tag(self, key: Key, tag: str, *, is_given: bool) -> None:
        """Give a checkpoint a tag, or take one away."""

    async def note(self, key: Key, text: str) -> None:
        """Note something about a checkpoint."""

    async def rename(self, thread_id: str, name: str) -> None:
        """Call a branch by another name."""

    async def archive(self, thread_id: str, *, is_archived: bool) -> None:
        """Put a branch away, or bring it back."""

    async def branch(
        self, checkpoint_id: str, thread_id: str | None, namespace: str | None, name: str, effects: str = "share"
    ) -> str:
        """Start a thread at a checkpoint and return the new thread's id."""

    async def merge(self, branch: str, into: str, resolve: Resolve, namespace: str, graph: Any = None) -> str:
        """Merge the head of one thread into another and return the merge's id."""

    async def collect(self, thread_id: str | None, *, dry_run: bool) -> GCReport:
        """Apply the retention policy and give the space back."""

    async def list_threads(self, limit: int, **asked: Any) -> ThreadPage:
        """Return threads, the one that was active last first."""

    async def delete_threads(self, **asked: Any) -> DeletedThreads:
        """Delete threads by what `list_threads` finds them by."""

    async def sizes(self, thread_id: str | None) -> Sizes:
        """Return what a thread takes, or all of them."""

    async def close(self) -> None:
        """Close the store."""
