"""Everything this package raises.

* EverstepError
  x InvalidInput          a wrong argument (also a ValueError)
    + PathNotFound        a checkpoint has nothing there (also a LookupError)
  x UnstorableValue       a value of a type that cannot be kept exactly (also a TypeError and a ValueError)
  x UnregisteredType      stored data names a class this process has not registered
  x SnapshotTooLarge      over `max_snapshot_size_mb`; nothing was written
  x CheckpointNotFound    (also a LookupError and a ValueError)
  x AmbiguousCheckpoint   several threads hold that id (also a LookupError)
  x CheckpointCorrupted   the bytes are there but are not what was written
  x HeadMoved             another writer was first; nothing was written
  x MergeConflict         both sides changed the same paths; nothing was written
  x CannotUndo            nothing to undo or redo, or its data is gone (also a ValueError)
  x LeaseHeld             somebody else has the lease of the thread
  x LeaseLost             somebody else has taken it over; nothing was written since
  x TaskError             about a task of a TaskManager
    + TaskNotFound        (also a LookupError)
    + TaskExists          that id is taken; nothing was written
    + TaskRunning         somebody else runs it (also a LeaseHeld)
    + TaskLost            somebody else has taken it over; nothing was written since (also a LeaseLost)
  x SendError             about a call of `everstep.langgraph.send`
    + ThreadBusy          others ran the thread for too long; the input was not taken
    + ThreadLost          somebody else has taken the thread over; nothing was written since
    + PendingTurnFailed   the turn before failed while it was finished; the input was not taken
  x RunError              about a durable run
    + RunNotFound         there is no run in that thread (also a LookupError)
    + RunExists           the thread has another run, or the same with other arguments; nothing was written
    + RunHeld             somebody else runs it (also a LeaseHeld)
    + RunLost             somebody else has taken it over; nothing was written since (also a LeaseLost)
    + NotWaiting          the run waits for nothing of that kind; nothing was written
    + ReplayMismatch      the code does not ask for what the run has recorded
    + StepFailed          a recorded failure whose class is not known here
    + EffectConflict      an effect was performed before, with other arguments
    + EffectUnknown       an effect was begun, and nobody knows whether it happened
  x UnsupportedByBackend  this backend cannot do that
  x MissingDependency     an optional package is not installed (also an ImportError)
  x StoreError            the store said no; the driver's error is `__cause__`
    + StoreUnavailable    worth trying again
      - StoreReadFailed   the disk failed at one read
    + StoreClosed         used after close()
    + StoreFull           no space left; nothing was written
    + StoreReadOnly       the place cannot be written
    + StoreMismatch       not an Everstep store, or one of another version
    + CommitUnknown       the answer was lost: ask for `checkpoint_id`
    + HeadRegressed       the server lost writes that it had acknowledged

and the warnings

* DurabilityWarning     a setting of the server may lose what was acknowledged
* UnknownClassWarning   the class of a stored object is not known here; its fields were given as plain data
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.reports import Conflict, Difference


class EverstepError(Exception):
    """The base of every error this package raises.

    All of them can be copied and pickled, so that they come through queues and pools of processes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (type(self), self.args, self.__dict__.copy())


def _made_again(kind: type[EverstepError], args: tuple[Any, ...], fields: dict[str, Any]) -> EverstepError:
    """Return an error as it was: its own initializer takes other arguments than the message that is kept."""
    error = kind.__new__(kind, *args)
    super(EverstepError, error).__init__(*args)  # what the built-in class that it is too sets for itself
    error.__dict__.update(fields)
    return error


class InvalidInput(EverstepError, ValueError):
    """An argument that makes no sense. Nothing was read or written."""


class PathNotFound(InvalidInput, LookupError):
    """A checkpoint has nothing at that path."""

    def __init__(self, path: str, checkpoint_id: str) -> None:
        super().__init__(f"there is nothing at {path!r:.200} in checkpoint {checkpoint_id!r}")
        self.path = path
        self.checkpoint_id = checkpoint_id


class UnstorableValue(EverstepError, TypeError, ValueError):
    """A value that could not come back as it is. Nothing was written."""

    def __init__(self, path: str, type_name: str, reason: str) -> None:
        super().__init__(f"{path}: cannot store {type_name}: {reason}")
        self.path = path
        self.type_name = type_name
        self.reason = reason

    def under(self, path: str) -> UnstorableValue:
        """Return the same error for a value whose own path begins at `path`."""
        return UnstorableValue(path + self.path, self.type_name, self.reason)


class UnregisteredType(EverstepError):
    """Stored data holds an object of a class that this process has not registered, or may not rebuild."""

    def __init__(self, name: str, reason: str = "") -> None:
        reason = reason or (
            "which is not registered in this process; call everstep.register(cls) for that class before reading"
        )
        super().__init__(f"the stored value is a {name!r}, {reason}")
        self.name = name


class SnapshotTooLarge(EverstepError):
    """The snapshot adds more than the configured limit. Nothing was written."""

    def __init__(self, size_bytes: int, size_bytes_max: int) -> None:
        super().__init__(
            f"the snapshot adds {size_bytes:,} bytes, the limit is {size_bytes_max:,}; "
            "raise SnapshotConfig.max_snapshot_size_mb or keep large values outside the state"
        )
        self.size_bytes = size_bytes
        self.size_bytes_max = size_bytes_max


class CheckpointNotFound(EverstepError, LookupError, ValueError):
    """No checkpoint has that id, or is meant by that reference."""

    def __init__(
        self, checkpoint_id: str, thread_id: str | None = None, *, reason: str = "", similar: Sequence[str] = ()
    ) -> None:
        """`reason` says what there is not, if it is more than an id; `similar` are threads that may have been meant."""
        where = ""
        if thread_id is not None:
            where = f" in thread {thread_id!r}"
        message = reason or (
            f"no checkpoint {checkpoint_id!r}{where}; list_time_travel_points() shows what there is, "
            "as does list_checkpoints() of a backend"
        )
        if similar:
            message += f"; did you mean {' or '.join(map(repr, similar))}?"
        super().__init__(message)
        self.checkpoint_id = checkpoint_id
        self.thread_id = thread_id
        self.similar = list(similar)


class AmbiguousCheckpoint(EverstepError, LookupError):
    """Several threads or namespaces hold a checkpoint of that id, or several ids begin so."""

    def __init__(
        self,
        checkpoint_id: str,
        places: list[tuple[str, str]],
        *,
        candidates: Sequence[str] = (),
        more: bool = False,
        advice: str = "give more of the id",
    ) -> None:
        """`candidates` are references that may be meant, if a part of an id was given; `more`: there are others."""
        if candidates:
            others = " and others" if more else ""
            message = f"{checkpoint_id!r} may be {', '.join(candidates[:5])}{others}; {advice}"
        else:
            shown = ", ".join(f"thread {t!r} namespace {n!r}" for t, n in places[:5])
            message = f"checkpoint id {checkpoint_id!r} is in {shown}; pass thread_id= (and namespace=)"
        super().__init__(message)
        self.checkpoint_id = checkpoint_id
        self.places = places
        self.candidates = list(candidates[:5])


_HELP_WITH_DAMAGE = "`everstep verify` tells what is damaged, `everstep repair` sets it aside"


class CheckpointCorrupted(EverstepError):
    """Stored bytes do not match their checksum or cannot be decoded.

    Without `is_damage` they are as they were written, and the class of a value has changed since.
    """

    def __init__(
        self,
        reason: str,
        *,
        thread_id: str | None = None,
        checkpoint_id: str | None = None,
        path: str | None = None,
        is_damage: bool = True,
    ) -> None:
        named = (("thread", thread_id), ("checkpoint", checkpoint_id), ("at", path))
        where = ", ".join(f"{word} {value!r}" for word, value in named if value is not None)
        message = reason
        if where:
            message += f" ({where})"
        self.what = message
        """What is damaged, without advice."""
        if thread_id is not None and is_damage:  # there is a store to look at, not just bytes
            message += f"; {_HELP_WITH_DAMAGE}"
        super().__init__(message)
        self.is_damage = is_damage
        self.reason = reason
        self.thread_id = thread_id
        self.checkpoint_id = checkpoint_id
        self.path = path

    def located(self, thread_id: str, checkpoint_id: str | None) -> CheckpointCorrupted:
        """Return the same error with the thread and checkpoint filled in where they were unknown."""
        return CheckpointCorrupted(
            self.reason,
            thread_id=self.thread_id or thread_id,
            checkpoint_id=self.checkpoint_id or checkpoint_id,
            path=self.path,
            is_damage=self.is_damage,
        )


class HeadMoved(EverstepError):
    """The head is not the one the writer named. Nothing was written.

    `conflicts` names the values that this writer and another have both changed, if that is why: of a live thread, whose
    other changes are put onto the new head.
    """

    def __init__(self, thread_id: str, expected: str | None, actual: str | None, conflicts: Sequence[str] = ()) -> None:
        both = f"; another writer has changed the same: {', '.join(conflicts)}" if conflicts else ""
        super().__init__(
            f"thread {thread_id!r}: expected the head {expected!r}, found {actual!r}{both}; "
            "read the new head and decide again"
        )
        self.thread_id = thread_id
        self.expected = expected
        self.actual = actual
        self.conflicts = tuple(conflicts)


class CannotUndo(EverstepError, ValueError):
    """There is nothing to undo or redo, or what it needs is not stored any more. Nothing was changed."""


class MergeConflict(EverstepError):
    """Both sides changed the same paths, each in its own way. Nothing was written."""

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        paths = ", ".join(conflict.path for conflict in conflicts[:5])
        more = f" and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
        super().__init__(
            f"both sides changed {paths}{more}; pass resolve='ours' or 'theirs', a mapping of path to value, "
            "or a function that takes a Conflict and returns the value (MISSING removes it)"
        )
        self.conflicts = list(conflicts)


class LeaseHeld(EverstepError):
    """Another process, or another caller in this one, has the lease of the thread."""

    def __init__(self, thread_id: str, host: str, pid: int) -> None:
        Exception.__init__(self, f"thread {thread_id!r} is leased to process {pid} on {host}; try again later")
        self.thread_id = thread_id
        self.host = host
        self.pid = pid


class LeaseLost(EverstepError):
    """The lease was taken over, or its thread deleted, while its owner did not renew it. Nothing was written since."""

    def __init__(self, thread_id: str) -> None:
        text = f"the lease of thread {thread_id!r} is not this owner's any more: it was taken over or deleted meanwhile"
        Exception.__init__(self, text)
        self.thread_id = thread_id


class TaskError(EverstepError):
    """Something about a task of a TaskManager."""

    def __init__(self, task_id: str, what: str) -> None:
        Exception.__init__(self, f"task {task_id!r} {what}")
        self.task_id = task_id


class TaskNotFound(TaskError, LookupError):
    """No task has that id."""

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id, "does not exist; list_tasks() shows what there is")


class TaskExists(TaskError):
    """The id of a new task is taken. Nothing was written."""

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id, "exists; resume_task goes on with it, a new task needs another id")


class TaskRunning(TaskError, LeaseHeld):
    """Another caller runs the task."""

    def __init__(self, task_id: str, host: str, pid: int) -> None:
        TaskError.__init__(self, task_id, f"is run by process {pid} on {host}; wait=True waits for its end")
        self.thread_id = task_id
        self.host = host
        self.pid = pid


class TaskLost(TaskError, LeaseLost):
    """The task was taken over, or deleted, while this process was not renewing its claim. Nothing was written since."""

    def __init__(self, task_id: str) -> None:
        what = "is not this process's any more: it was taken over or deleted meanwhile"
        TaskError.__init__(self, task_id, what)
        self.thread_id = task_id


class SendError(EverstepError):
    """Something about a call of `everstep.langgraph.send`."""

    def __init__(self, thread_id: str, what: str) -> None:
        super().__init__(f"thread {thread_id!r} {what}")
        self.thread_id = thread_id


class ThreadBusy(SendError):
    """Others ran the thread for longer than the call waits. The input was not taken."""

    def __init__(self, thread_id: str, timeout_seconds: float | None) -> None:
        super().__init__(
            thread_id,
            f"was run by others for all of {timeout_seconds} seconds, and the input was not taken; send it again "
            "later, or wait longer: timeout_seconds=...",
        )
        self.timeout_seconds = timeout_seconds


class ThreadLost(SendError):
    """The thread was taken over, or deleted, while this process was not renewing its claim. Nothing was written since.

    Whoever took it over finishes what was stored of this turn.
    """

    def __init__(self, thread_id: str) -> None:
        super().__init__(
            thread_id,
            "was taken over or deleted while this process did not renew its claim; if the input was taken, others "
            "finish its turn: look at the thread, or send it again under the same request_id",
        )


class PendingTurnFailed(SendError):
    """A turn that an earlier run could not finish has failed now. The input of this call was not taken.

    The failure is the `__cause__`.
    """

    def __init__(self, thread_id: str, error: Exception) -> None:
        super().__init__(
            thread_id,
            f"had an unfinished turn, which failed ({type(error).__name__}), and the input was not taken; send it "
            "again to go past that turn, or send None to try that turn again",
        )


class RunError(EverstepError):
    """Something about a durable run."""

    def __init__(self, thread_id: str, what: str) -> None:
        Exception.__init__(self, f"run {thread_id!r} {what}")
        self.thread_id = thread_id


class RunNotFound(RunError, LookupError):
    """There is no run in the thread."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id, "does not exist; engine.runs() shows what there is")


class RunExists(RunError):
    """The thread has a run of another function, or of the same with other arguments. Nothing was written."""

    def __init__(self, thread_id: str, found: str, asked: str) -> None:
        super().__init__(
            thread_id,
            f"is there already, as {found}, and was started as {asked}; use another thread id, or start it with the "
            "arguments it has",
        )


class RunHeld(RunError, LeaseHeld):
    """Another process, or another caller in this one, runs it."""

    def __init__(self, thread_id: str, host: str, pid: int) -> None:
        super().__init__(thread_id, f"is run by process {pid} on {host}; wait for its end, or try again later")
        self.host = host
        self.pid = pid


class RunLost(RunError, LeaseLost):
    """The run was taken over or deleted while this process was not renewing its lease, or somebody has rewound it.

    Nothing was written since, but for the step that was to be recorded when the rewind was noticed.
    """

    def __init__(self, thread_id: str) -> None:
        super().__init__(thread_id, "is not this process's any more: it was taken over, rewound or deleted meanwhile")


class NotWaiting(RunError):
    """The run waits for no answer of that kind. Nothing was written."""


class ReplayMismatch(RunError):
    """The code asks for something else than what the run has recorded. `differences` says what."""

    def __init__(
        self,
        thread_id: str,
        key: str,
        what: str,
        differences: Sequence[Difference] = (),
        *,
        instead: str = "Go on in a branch with on_change='fork', or with the code that recorded it",
    ) -> None:
        shown = "".join([f"\n  {difference}" for difference in differences])
        super().__init__(thread_id, f"{what}{shown}\n{instead}")
        self.key = key
        self.differences = list(differences)


class StepFailed(RunError):
    """A step failed, as was recorded; the class of its error is not known in this process."""

    def __init__(self, thread_id: str, key: str, kind: str, text: str) -> None:
        super().__init__(thread_id, f"failed in step {key!r}: {kind}: {text}")
        self.key = key
        self.kind = kind
        self.text = text


class EffectConflict(RunError):
    """An effect of the same name was performed in this family of threads, with other arguments."""

    def __init__(self, thread_id: str, key: str, elsewhere: str) -> None:
        super().__init__(
            thread_id,
            f"comes to the effect {key!r}, which thread {elsewhere!r} has performed with other arguments; make the "
            "branch with effects='allow' to perform it once more",
        )
        self.key = key


class EffectUnknown(RunError):
    """An effect was begun, and nobody knows whether it happened."""

    def __init__(self, thread_id: str, key: str) -> None:
        super().__init__(
            thread_id,
            f"was cut off while it performed the effect {key!r}: nobody knows whether it happened. Find out, and let "
            "on_unknown='ask' or a function say so",
        )
        self.key = key


class UnsupportedByBackend(EverstepError):
    """The backend does not offer what this call needs."""


class MissingDependency(EverstepError, ImportError):
    """An optional package is needed for this and is not installed."""

    def __init__(self, package: str, extra: str = "", *, instead: str = "") -> None:
        what = instead or f"pip install 'everstep[{extra}]'"
        super().__init__(f"{package} is not installed; run: {what}")
        self.package = package
        self.extra = extra


class StoreError(EverstepError):
    """The database or server refused or failed."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or is busy; the same call may work later."""


class StoreReadFailed(StoreUnavailable):
    """The disk failed at one read. Nothing was changed, and the same call may work later."""


class StoreClosed(StoreError):
    """The store was closed before this call."""


class StoreFull(StoreError):
    """There is no space left. Nothing was written; earlier checkpoints are intact."""


class StoreReadOnly(StoreError):
    """The store cannot be written: permissions, a read-only place, or a missing folder."""


class StoreMismatch(StoreError):
    """The place holds something that is not an Everstep store of a version this package knows."""


class CommitUnknown(StoreError):
    """The commit may or may not have happened; `checkpoint_id` answers it when read back."""

    def __init__(self, checkpoint_id: str | None, thread_id: str, reason: str = "") -> None:
        message = f"the store failed while committing to thread {thread_id!r}"
        if checkpoint_id is not None:
            message = f"the store failed while committing checkpoint {checkpoint_id!r} of thread {thread_id!r}"
        if reason:
            message += f" ({reason})"
        super().__init__(f"{message}; it may be stored: read it back, or save it again under the same id")
        self.checkpoint_id = checkpoint_id
        self.thread_id = thread_id


class HeadRegressed(StoreError):
    """A thread's head is older than one this process has seen, or gone: the server lost writes. Nothing was written."""

    def __init__(self, thread_id: str, seen_generation: int, found_generation: int) -> None:
        """A `found_generation` of 0 means that nothing is left of what was seen."""
        if found_generation:
            what = f"its head went back from move {seen_generation} to {found_generation}"
        else:
            what = f"it is gone, though nobody deleted it, and its head had moved {seen_generation} times"
        super().__init__(
            f"thread {thread_id!r}: {what}: the server lost writes that it had acknowledged, as after a failover or a "
            "restart without persistence; look at what is left (list_time_travel_points()) and save what is missing "
            "again. The next call goes on from there"
        )
        self.thread_id = thread_id
        self.seen_generation = seen_generation
        self.found_generation = found_generation


class DurabilityWarning(UserWarning):
    """The server is set up so that a crash may lose what it has acknowledged."""


class UnknownClassWarning(UserWarning):
    """The class of a stored object cannot be had in this process, so the reader got its fields as plain data."""


class IdTaken(InvalidInput):
    """A name that was made for something new is in use already. Nothing was written.

    Between the store and the engine only: the engine makes another name.
    """


class BaseGone(EverstepError):
    """The checkpoint that left-out objects rest on is no longer stored as it was.

    Between the store and the repository only: the repository sends the objects again.
    """
