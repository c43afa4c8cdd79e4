"""What calls report: differences and conflicts, trees, sizes, what was copied or removed. Plain values.

What is printed of a value (`str(diff)`) comes from users and models: it is cut short, and its control characters are
never printed as they are.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from everstep.types import Checkpoint, CheckpointMetadata

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")


def counted(report: R, **more: int) -> R:
    """Return a report whose figures of these names are higher by so much."""
    return dataclasses.replace(report, **{name: getattr(report, name) + number for name, number in more.items()})


@dataclass(frozen=True)
class Reference:
    """A checkpoint that a reference means; see `CheckpointEngine.resolve`. `str()` is `thread@id`, a reference too."""

    thread_id: str
    namespace: str
    checkpoint_id: str
    step: int

    def __str__(self) -> str:
        return f"{self.thread_id}@{self.checkpoint_id}"


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
    compensated: list[str] = field(default_factory=list)
    """The effects of a durable run that were taken back, by their keys, the newest first."""


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


@dataclass(frozen=True)
class DamagedThread:
    """A thread that belongs to a page of `list_threads`, and whose latest checkpoint cannot be read."""

    thread_id: str
    reason: str
    """What is wrong with it."""


class ThreadPage(list[CheckpointMetadata]):
    """What `list_threads` found: each thread's latest, and where to go on."""

    def __init__(
        self,
        found: Iterable[CheckpointMetadata] = (),
        *,
        cursor: str | None = None,
        damaged: Iterable[DamagedThread] = (),
    ) -> None:
        super().__init__(found)
        self.cursor = cursor
        """For the next page; None: these were the last."""
        self.damaged = list(damaged)
        """Threads of this page that cannot be read, and why. `verify` tells more, `repair` mends what can be mended."""

    # A list is copied and pickled item by item, which would lose the cursor.
    def __reduce__(self) -> tuple[Any, ...]:
        return _thread_page, (list(self), self.cursor, self.damaged)


def _thread_page(
    found: list[CheckpointMetadata], cursor: str | None, damaged: Iterable[DamagedThread] = ()
) -> ThreadPage:
    return ThreadPage(found, cursor=cursor, damaged=damaged)


@dataclass(frozen=True)
class DroppedEffect:
    """Something that a deleted thread did to the world, which stays done."""

    thread_id: str
    key: str
    status: str
    """As far as it got: begun, done, failed or undone."""


@dataclass(frozen=True)
class DeletedThreads:
    """What `delete_threads` removed, or (`dry_run`) would remove."""

    thread_ids: list[str] = field(default_factory=list)
    checkpoints: int = 0
    dry_run: bool = False
    effects: list[DroppedEffect] = field(default_factory=list)
    """What the threads did to the world: steps with effect="once". Deleting does not take it back."""


@dataclass(frozen=True)
class Sizes:
    """What threads take, as it is stored: compressed, and without what the store needs for its own order."""

    threads: int = 0
    checkpoints: int = 0
    """Hidden ones included, and those that cannot be read."""
    record_bytes: int = 0
    """Of the checkpoints themselves: metadata, and the roots of their values."""
    exclusive_bytes: int = 0
    """Of the pieces of values that nobody else needs: what deleting would free."""
    shared_bytes: int = 0
    """Of the pieces that other threads of the family need too: branches, and what they came from."""
    write_bytes: int = 0
    """Of pending writes, without the pieces of their values."""
    left_out: int = 0
    """What could not be read, of the threads or of their relatives, and is not in here: checkpoints, pieces of values,
    and threads that nobody can tell all of."""

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.record_bytes + self.exclusive_bytes + self.shared_bytes + self.write_bytes

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(*map(operator.add, dataclasses.astuple(self), dataclasses.astuple(other)))


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
    damaged: tuple[Finding, ...] = ()
    """With `skip_damaged`: what could not be read, and was left out."""
    thread_ids: tuple[str, ...] = field(default=(), compare=False)
    """The names of those threads, the first hundred of them."""
    kept_ids: tuple[str, ...] = field(default=(), compare=False)
    """Threads that the target has itself, and that were left as they are, the first hundred of them: see
    `import_threads`."""


@dataclass(frozen=True)
class ExportReport:
    """What `export_threads` wrote."""

    threads: int = 0
    checkpoints: int = 0
    objects: int = 0
    """Pieces of values."""
    bytes: int = 0
    """The size of the file."""


@dataclass(frozen=True)
class BackupReport:
    """What `backup` wrote."""

    number: int
    """Of this backup: what `restore` takes as `at`."""
    threads: int = 0
    """Threads of families that are new or have changed."""
    checkpoints: int = 0
    """What was written of them: checkpoints that no earlier backup has."""
    objects: int = 0
    bytes: int = 0
    """The size of the file."""
    unchanged: int = 0
    """Threads that an earlier backup has as they are."""


@dataclass(frozen=True)
class CopyProgress:
    """How far `copy`, an export or an import is. Totals are those of the beginning, or more if the source has grown."""

    threads_done: int
    threads_total: int
    checkpoints_done: int
    checkpoints_total: int


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a store."""

    kind: str
    """What it is about: "checkpoint", "object", "head", "segment", "hidden", "operation", "pin", "write",
    "shared state", "origin", "thread", "index" (a table and what is found through it do not agree), "row" or "file"."""
    what: str
    """A sentence for people."""
    thread_id: str | None = None
    checkpoint_id: str | None = None
    threads: tuple[str, ...] = ()
    """All threads that it touches, as far as that is known."""

    def __str__(self) -> str:
        named = (("thread", self.thread_id), ("checkpoint", self.checkpoint_id))
        where = ", ".join(f"{word} {value!r}" for word, value in named if value is not None)
        if not where:
            return f"{self.kind}: {self.what}"
        return f"{self.kind}: {self.what} ({where})"


@dataclass
class VerifyReport:
    """What `verify` looked at, and what is wrong."""

    threads: int = 0
    checkpoints: int = 0
    objects: int = 0
    """Pieces of values."""
    bytes: int = 0
    """What was read, as it is stored."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def damaged_threads(self) -> list[str]:
        """The threads that something is wrong with, by name."""
        return sorted(set().union(*(finding.threads for finding in self.findings)))

    def __str__(self) -> str:
        looked = f"{self.threads} threads, {self.checkpoints} checkpoints, {self.objects} objects, {self.bytes:,} bytes"
        if self.ok:
            return f"{looked}: all is as it was written"
        return "\n".join([f"{looked}: {len(self.findings)} findings", *map(str, self.findings)])


@dataclass(frozen=True)
class UpkeepProgress:
    """How far `verify` or `repair` is."""

    doing: str
    """"tables", "threads" or "repair"."""
    threads_done: int
    threads_total: int
    checkpoints_done: int
    bytes_done: int


_NAMED_MAX = 5


def set_aside(thread_id: str, checkpoint_id: str) -> str:
    """Return the sentence that says that a repair has removed a checkpoint."""
    return f"thread {thread_id!r}: checkpoint {checkpoint_id!r} is set aside"


@dataclass
class RepairReport:
    """What `repair` did, or (`dry_run`) would do."""

    found: list[Finding] = field(default_factory=list)
    """What was wrong before."""
    actions: list[str] = field(default_factory=list)
    """What was done about it, a sentence each."""
    threads: list[str] = field(default_factory=list)
    """The threads that were changed."""
    removed: list[tuple[str, str, str]] = field(default_factory=list)
    """The checkpoints that were set aside: thread, namespace, id."""
    left: list[Finding] = field(default_factory=list)
    """What is still wrong; of a dry run that was tried on a copy: what would be."""
    kept_in: str | None = None
    """The file that has what was set aside; None: nothing was."""
    dry_run: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong any more."""
        return not self.left and not (self.dry_run and self.found)

    def __str__(self) -> str:
        if not self.found:
            return "nothing to repair"
        word = "would be done" if self.dry_run else "done"
        lines = [f"{len(self.found)} findings, {len(self.actions)} actions {word}", *self._short_actions()]
        if self.kept_in is not None:
            lines.append(f"what was set aside is in {self.kept_in}")
        if not self.dry_run:
            lines += [f"still wrong: {finding}" for finding in self.left]
        elif self.left != self.found:
            lines += [f"would still be wrong: {finding}" for finding in self.left]
        return "\n".join(lines)

    def _short_actions(self) -> list[str]:
        """Return the actions; where many checkpoints of a thread are set aside, one line tells of all of them."""
        by_thread: dict[str, list[str]] = {}
        for thread_id, _, checkpoint_id in self.removed:
            by_thread.setdefault(thread_id, []).append(checkpoint_id)
        lines = []
        told = set[str]()
        for thread_id, ids in by_thread.items():
            if len(ids) > _NAMED_MAX:
                lines.append(
                    f"thread {thread_id!r}: {len(ids):,} checkpoints are set aside, from {ids[0]!r} to {ids[-1]!r}"
                )
                told |= {set_aside(thread_id, checkpoint_id) for checkpoint_id in ids}
        return lines + [action for action in self.actions if action not in told]


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
            text = value["content"][: _SHOWN_MAX + 1]
            role = value.get("role")
            if isinstance(role, str):
                text = f"[{role:.20}] {text}"
        else:
            text = _short.repr(value)
    except Exception:  # the repr of somebody's own class, or an integer too long to print
        text = f"a {type(value).__name__}"
    if len(text) > _SHOWN_MAX:
        text = text[: _SHOWN_MAX - 3] + "..."
    # What an agent wrote must not move the cursor or colour the terminal.
    return "".join([char if char.isprintable() else repr(char)[1:-1] for char in text])


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


# "from" cannot be written as a name of a field.
_Ends = TypedDict("_Ends", {"from": str, "to": str})


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


@dataclass(frozen=True)
class RunWait:
    """Something that a run waits for."""

    kind: str
    """"ask", "event" or "sleep"."""
    key: str
    question: str | None = None
    event: str | None = None
    until: float | None = None
    """Seconds since 1970."""
    effect: str | None = None
    """The step of which nobody knows whether it happened, if that is what is asked: see `everstep.happened`."""


@dataclass(frozen=True)
class RunInfo:
    """A run, and how it stands."""

    thread_id: str
    name: str
    """The function."""
    status: str
    """running; interrupted (nobody runs it, and it is not at its end); waiting; ready (what it waited for has come);
    done; failed; paused (a branch that nobody has taken up yet)."""
    checkpoint_id: str
    updated_at: str
    waits: list[RunWait] = field(default_factory=list)
