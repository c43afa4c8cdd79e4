"""What callers hold: a checkpoint, its metadata, differences and conflicts. Plain values; they know nothing of storage.

What is printed of a value (`str(diff)`) comes from users and models: it is cut short, and its control characters are
never printed as they are.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypedDict, TypeVar

from everstep.errors import InvalidInput

T = TypeVar("T")

TASK_NAMESPACE = "everstep:task"
"""Of a thread that is a task: what is known of it besides its checkpoints, and no part of its history."""


def utc_now() -> str:
    """Return the present time as ISO 8601 in UTC. For people to read: nothing is ordered by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass
class CheckpointMetadata:
    """What a list of checkpoints shows: everything but the values."""

    thread_id: str
    checkpoint_id: str
    step: int
    parent_checkpoint_id: str | None = None
    created_at: str = field(default_factory=utc_now)
    tags: list[str] = field(default_factory=list)
    summary: str = ""
    parents: list[str] = field(default_factory=list)
    """All parents; a merge has two. `parent_checkpoint_id` is the first."""
    namespace: str = ""
    trigger: str = ""
    size_bytes: int = 0
    """The size of the values, encoded as a whole. What the checkpoint added to the store is far less."""
    pinned: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    """Further data of the caller's; listing can filter by it."""

    def __post_init__(self) -> None:
        if self.parent_checkpoint_id is not None:
            self.parents = [self.parent_checkpoint_id, *self.parents[1:]]
        elif self.parents:
            self.parent_checkpoint_id = self.parents[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name; values are not copied."""
        return {name: getattr(self, name) for name in _METADATA_FIELDS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckpointMetadata:
        """Return the metadata in `data`. Missing optional keys get their defaults; unknown keys are refused."""
        return _from_fields(cls, data, _METADATA_FIELDS)


@dataclass
class Checkpoint:
    """One saved step of a thread."""

    metadata: CheckpointMetadata
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation."""
    state: dict[str, Any] = field(default_factory=dict)
    """The agent's own state."""
    tools_result: dict[str, Any] = field(default_factory=dict)
    """Results of tool calls."""
    next_node: str = ""
    """Where execution continues."""

    def to_dict(self) -> dict[str, Any]:
        """Return `{"metadata": {...}, "messages", "state", "tools_result", "next_node"}`; values are not copied."""
        values = {name: getattr(self, name) for name in _CHECKPOINT_FIELDS}
        return values | {"metadata": self.metadata.to_dict()}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint in `d`. Missing optional keys get their defaults; unknown keys are refused."""
        metadata = d.get("metadata") if isinstance(d, Mapping) else None
        if not isinstance(metadata, Mapping):
            raise InvalidInput('a checkpoint is a mapping with "metadata", itself a mapping')
        return _from_fields(cls, {**d, "metadata": CheckpointMetadata.from_dict(metadata)}, _CHECKPOINT_FIELDS)


@dataclass
class TimeTravelResult:
    """What a rewind did."""

    checkpoint: Checkpoint
    """The new head. Its values are read when they are first looked at."""
    thread_id: str
    rewind_depth: int
    """Checkpoints left behind."""
    snapshot_count_before: int
    """Visible checkpoints of the thread before."""
    can_replay: bool = True


@dataclass
class Operation:
    """An entry of a thread's log."""

    id: int
    kind: str
    """"rewind", "branch", "merge", "pin" or "unpin"."""
    created_at: str
    undone: bool
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CallStats:
    """What the calls of one name have done in this process."""

    calls: int
    errors: int
    """How many of them raised."""
    seconds: float
    bytes_added: int
    """What they wrote: what was new in it, as it was sent to the store."""
    objects_added: int
    retries: int
    """Tries beyond the first: another writer was faster, or the server was away."""


@dataclass(frozen=True)
class Stats:
    """What a process has done on one backend since it was made; see `CheckpointEngine.stats`."""

    store: str
    """Where it is; without a password."""
    calls: Mapping[str, CallStats]
    """By name: the engine's methods as they are, `backend.` before a backend's, `saver.` before a LangGraph saver's."""


@dataclass
class GCReport:
    """What `collect` removed, or (`dry_run`) would remove."""

    threads: int = 0
    """Threads looked at."""
    checkpoints: int = 0
    hidden: int = 0
    """How many of them were hidden."""
    operations: int = 0
    """Entries of logs that nothing is left to undo for."""
    objects: int = 0
    """Pieces of values that no checkpoint needs any more."""
    size_bytes: int = 0
    """What the checkpoints and those objects took, as they were stored: an estimate of the space that comes back.

    A database's own share, such as indexes and half-full pages, is not in it.
    """
    dry_run: bool = False


class ThreadPage(list[CheckpointMetadata]):
    """What `list_threads` found: each thread's latest, and where to go on."""

    def __init__(self, found: Iterable[CheckpointMetadata] = (), *, cursor: str | None = None) -> None:
        super().__init__(found)
        self.cursor = cursor
        """For the next page; None: these were the last."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _thread_page, (list(self), self.cursor)


def _thread_page(found: list[CheckpointMetadata], cursor: str | None) -> ThreadPage:
    return ThreadPage(found, cursor=cursor)


@dataclass(frozen=True)
class DeletedThreads:
    """What `delete_threads` removed, or (`dry_run`) would remove."""

    thread_ids: list[str] = field(default_factory=list)
    checkpoints: int = 0
    dry_run: bool = False


@dataclass(frozen=True)
class Sizes:
    """What threads take, as it is stored: compressed, and without what the store needs for its own order."""

    threads: int = 0
    checkpoints: int = 0
    """Hidden ones included."""
    record_bytes: int = 0
    """Of the checkpoints themselves: metadata, and the roots of their values."""
    exclusive_bytes: int = 0
    """Of the pieces of values that nobody else needs: what deleting would free."""
    shared_bytes: int = 0
    """Of the pieces that other threads of the family need too: branches, and what they came from."""
    write_bytes: int = 0
    """Of pending writes, without the pieces of their values."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.record_bytes + self.exclusive_bytes + self.shared_bytes + self.write_bytes

    def __add__(self, other: Sizes) -> Sizes:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Sizes(*(one + two for one, two in pairs))


@dataclass(frozen=True)
class CopyReport:
    """What `copy` did."""

    threads: int = 0
    """Threads that are now in the target as they are in the source."""
    checkpoints: int = 0
    """Checkpoints that were sent."""
    objects: int = 0
    """Pieces of values that were sent with them."""
    bytes: int = 0
    """The size of values that were sent, as they are stored."""
    skipped: int = 0
    """Checkpoints that were there already."""
    verified: int = 0
    """Checkpoints that were compared with the source afterwards, with all that their values are made of."""


@dataclass(frozen=True)
class CopyProgress:
    """How far `copy` is. Totals are those of the beginning, or more if the source has grown."""

    threads_done: int
    threads_total: int
    checkpoints_done: int
    checkpoints_total: int


class UnreadCheckpoint(Checkpoint):
    """A checkpoint whose values are read from the store when they are first looked at, by a blocking call."""

    def __init__(
        self, metadata: CheckpointMetadata, *values: Any, read: Callable[[], Sequence[Any]] | None = None, **fields: Any
    ) -> None:
        """Without `read` it is made like any other, as `dataclasses.replace` does."""
        if read is None:
            super().__init__(metadata, *values, **fields)
        else:
            self.metadata, self.next_node, self._read = metadata, fields.get("next_node", ""), read

    def __getattr__(self, name: str) -> Any:
        if name not in ("messages", "state", "tools_result"):
            raise AttributeError(name)
        self.messages, self.state, self.tools_result = self._read()
        return self.__dict__[name]

    def __repr__(self) -> str:
        known = ("messages", "state", "tools_result")
        shown = {name: self.__dict__.get(name, "not read yet") for name in known}
        return f"Checkpoint({self.metadata!r}, {shown}, next_node={self.next_node!r})"

    def __eq__(self, other: object) -> bool:
        return self._plain() == (other._plain() if isinstance(other, UnreadCheckpoint) else other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_checkpoint, (self.metadata, self.messages, self.state, self.tools_result, self.next_node)

    def _plain(self) -> Checkpoint:
        return _plain_checkpoint(self.metadata, self.messages, self.state, self.tools_result, self.next_node)


def _plain_checkpoint(*fields: Any) -> Checkpoint:
    return Checkpoint(*fields)


class Missing:
    """The type of MISSING, which stands where there is no value: None is a value."""

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:  # by name: a copy, and one from another process, is the same object
        return "MISSING"


MISSING: Final = Missing()


@dataclass(frozen=True)
class Difference:
    """One path that is not the same in two checkpoints."""

    path: str
    """Such as `state.plan[3].due`, `messages[4]`, or `messages['m3'].content` for a message with an id."""
    kind: Literal["added", "removed", "changed"]
    before: Any
    """MISSING if it was added."""
    after: Any
    """MISSING if it was removed."""

    def __str__(self) -> str:
        if self.kind == "added":
            return f"+ {self.path}: {_shown(self.path, self.after)}"
        if self.kind == "removed":
            return f"- {self.path}: {_shown(self.path, self.before)}"
        return f"~ {self.path}: {_shown(self.path, self.before)} -> {_shown(self.path, self.after)}"


@dataclass(frozen=True)
class Diff:
    """What changed from checkpoint `a` to checkpoint `b`. False if nothing did; `str()` is made to be read."""

    a: str
    b: str
    changes: list[Difference]

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes)) or "no changes"


@dataclass(frozen=True)
class Conflict:
    """A path that both sides of a merge changed, each in its own way."""

    path: str
    base: Any
    """The value both came from; MISSING if there was none."""
    ours: Any
    """The value in the thread that is merged into; MISSING if it was removed there."""
    theirs: Any
    """The value in the branch; MISSING if it was removed there."""


_SHOWN_MAX = 80
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _SHOWN_MAX


def _shown(path: str, value: Any) -> str:
    """Return a value in one short line; a message as its role and text."""
    try:
        if path.startswith("messages[") and isinstance(value, dict) and isinstance(value.get("content"), str):
            role = value.get("role")
            text = (f"[{role:.20}] " if isinstance(role, str) else "") + value["content"][: _SHOWN_MAX + 1]
        else:
            text = _short.repr(value)
    except Exception:  # the repr of somebody's own class, or an integer too long to print
        text = f"a {type(value).__name__}"
    text = text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."
    return "".join([char if char.isprintable() else repr(char)[1:-1] for char in text])


_METADATA_FIELDS = tuple(f.name for f in dataclasses.fields(CheckpointMetadata))
_CHECKPOINT_FIELDS = tuple(f.name for f in dataclasses.fields(Checkpoint))


def _from_fields(cls: type[T], data: Mapping[str, Any], names: tuple[str, ...]) -> T:
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{cls.__name__} is made from a mapping, not {type(data).__name__}")
    unknown = [name for name in data if name not in names]
    if unknown:
        raise InvalidInput(f"unknown key {unknown[0]!r} for {cls.__name__}; known are {', '.join(names)}")
    try:
        return cls(**data)
    except TypeError as exc:
        raise InvalidInput(f"{cls.__name__} needs more: {exc}") from exc


class TreeNode(TypedDict):
    """A checkpoint in what `get_checkpoint_tree` returns."""

    id: str
    thread_id: str
    namespace: str
    step: int
    tags: list[str]
    summary: str
    created_at: str
    next_node: str
    trigger: str
    parents: list[str]
    size_bytes: int
    head: bool
    """It is the newest of its thread."""
    branch: str | None
    """The name of the branch that begins with it."""
    pinned: bool
    hidden: bool


_Ends = TypedDict("_Ends", {"from": str, "to": str})  # "from" cannot be written as a name


class TreeEdge(_Ends):
    """How two checkpoints of a tree follow each other: `from` the id of the older one `to` that of the newer."""

    from_thread: str
    to_thread: str
    gap: bool
    """It leads over checkpoints that were removed."""


class CheckpointTree(TypedDict):
    """What `get_checkpoint_tree` returns, and `everstep.draw` takes."""

    thread_id: str
    total_checkpoints: int
    """How many there are; `nodes` may be fewer."""
    nodes: list[TreeNode]
    """The newest first."""
    edges: list[TreeEdge]
