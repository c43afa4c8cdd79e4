"""The engine: what a person with an agent loop does with checkpoints. Reads like the feature list.

Arguments are checked here and triggers decide here. The work is done by a timeline: on a store
(`timeline/store.py`), or on a backend of somebody's own (`timeline/foreign.py`). Each method ends within the
store's time limit as a whole (`runtime/deadlines.py`), but for `collect`, whose work may be large: there each call of
the store does.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from everstep.backends import CheckpointBackend, StoreBackend, SyncBackend
from everstep.capture.decorators import Capture, F, Scope
from everstep.capture.leasing import Lease, SyncLease
from everstep.capture.live import LiveThread, SyncLiveThread
from everstep.config import SnapshotConfig, SnapshotTrigger
from everstep.durable.programs import Programs
from everstep.errors import InvalidInput, UnsupportedByBackend
from everstep.reports import (
    CheckpointTree,
    DeletedThreads,
    Diff,
    GCReport,
    Operation,
    Reference,
    RepairReport,
    RunInfo,
    Sizes,
    Stats,
    ThreadPage,
    TimeTravelResult,
    UpkeepProgress,
    VerifyReport,
)
from everstep.repository.ledger import Save
from everstep.repository.step import Step, check_values
from everstep.runtime import checks
from everstep.runtime.blocking import Closing, SyncFace, blocking, describe_on_store
from everstep.runtime.calls import Figures, public_call
from everstep.stores.protocol import ANY, AnyHead, Key, Store
from everstep.timeline.labels import checked_name, checked_note
from everstep.timeline.protocol import Resolve, Timeline
from everstep.timeline.store import StoreTimeline
from everstep.timeline.tags import checked_tag
from everstep.types import Checkpoint, CheckpointMetadata
from everstep.upkeep import repair as repairing
from everstep.upkeep import verify as upkeep

if TYPE_CHECKING:  # few engines have durable runs: what these need is loaded when it is used
    from everstep.durable.functions import DurableFunction, SyncDurableFunction
    from everstep.durable.run import Run, SyncRun

logger = logging.getLogger("everstep")

P = ParamSpec("P")
R = TypeVar("R")
OnChange = Literal["error", "fork", "rerun"]


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
            logger.exception("a snapshot of thread %s failed; the agent goes on without it", checks.shown(thread_id))
            return ""

    functools.update_wrapper(snapshot_safe, save, assigned=())  # its signature, under its own name
    return snapshot_safe


class CheckpointEngine(Closing):
    """Saves, reads and changes the history of threads. `engine.sync` has the same methods, blocking."""

    def __init__(self, checkpointer: CheckpointBackend, config: SnapshotConfig | None = None) -> None:
        if not isinstance(checkpointer, CheckpointBackend):
            raise InvalidInput(f"checkpointer is a CheckpointBackend, not {type(checkpointer).__name__}")
        if config is not None and not isinstance(config, SnapshotConfig):
            raise InvalidInput(f"config is a SnapshotConfig, not {type(config).__name__}")
        self._backend = checkpointer
        self._config = config or SnapshotConfig()
        self._timeline: Timeline = _timeline(checkpointer, self._config)
        self._limit = None
        if isinstance(checkpointer, StoreBackend):
            self._limit = checkpointer.limit_seconds
        self._figures = _figures(checkpointer)
        self._capture = Capture(self)
        self._programs = Programs()
        self._is_blocking = False

    def __repr__(self) -> str:
        return describe_on_store(self, self._store)

    @property
    def _store(self) -> object:
        """What it works on: the store of its backend, or a backend of somebody's own."""
        return getattr(self._backend, "store", self._backend)

    @property
    def limit_seconds(self) -> float | None:
        """How long one call may take; None: a backend of somebody's own knows, or there is nothing to wait for."""
        return self._limit

    @property
    def figures(self) -> Figures:
        """Where calls are counted: with those of everything else on the same backend."""
        return self._figures

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
        # Not by the initializer: both faces share the capture, the programs and the figures.
        twin = object.__new__(CheckpointEngine)
        twin.__dict__.update(self.__dict__)
        twin._timeline = self._timeline.blocking
        twin._is_blocking = True
        return SyncEngine(twin, twin._timeline.run)

    # -- saving

    @public_call("snapshot")
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
        check_values(messages, state, tools_result)
        step = Step(thread_id, namespace, trigger, next_node, tags, summary, metadata, messages, state)
        expect = _expected(expected_head)
        if parent_checkpoint_id is not None:
            checks.checkpoint_id(parent_checkpoint_id)
        if step.trigger not in self._config.triggers:
            return ""
        return await self._timeline.save(step, (list(messages), state, tools_result), parent_checkpoint_id, expect)

    @public_call("append")
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
        if state is None:
            state = {}
        if tools_result is None:
            tools_result = {}
        check_values(messages, state, tools_result)
        step = Step(thread_id, namespace, trigger, next_node, tags, summary, metadata, messages, state)
        expect = _expected(expected_head)
        if step.trigger not in self._config.triggers:
            return ""
        return await self._timeline.append(step, list(messages), state, tools_result, expect)

    snapshot_safe = _logged(snapshot)

    # -- capture

    def snapshot_on(self, trigger: SnapshotTrigger | str) -> Callable[[F], F]:
        """Return a decorator that saves a checkpoint before and after each call of a function, generator or coroutine.

        The checkpoint says in `tools_result` what was called, with which arguments, and how it ended. It belongs to the
        live thread around the call (see `thread`), else to the thread "default"; `everstep.on_thread` names another for
        one call. What cannot be saved is logged and does not disturb the call. Calls are saved only if `trigger` is
        among the triggers of the configuration.
        """
        return self._capture.snapshot_on(trigger)

    def snapshot_scope(
        self, thread_id: str, state: dict[str, Any], trigger: SnapshotTrigger | str = SnapshotTrigger.STATE_CHANGE
    ) -> Scope:
        """Return a context manager that saves `state`, a dict, on entering and with what it holds then on leaving.

        It gives `state` itself. The conversation is that of the live thread of this name, or else the head's. An
        exception is noted in the metadata (`error`) and by the tag "error", and goes on. A save that fails is logged.
        """
        return Scope(self._capture, thread_id, state, trigger)

    def thread(self, thread_id: str, *, interval_seconds: float | None = None) -> LiveThread:
        """Return the thread as the agent has it in an `async with` block: messages, state, tools_result, next_node.

        They are loaded from the head on entering, and yours to change. Decorated calls inside save them; leaving the
        block saves what has changed since, also by an exception, which is noted. `interval_seconds` saves in between if
        "interval" is among the triggers. If others wrote meanwhile, what was changed here is put onto their head;
        HeadMoved where both have changed the same value.
        """
        return LiveThread(self._capture, thread_id, interval_seconds)

    def lease(self, thread_id: str, ttl_seconds: float = 30.0, *, wait_seconds: float = 0.0) -> Lease:
        """Return the lease of a thread for an `async with` block: one owner at a time.

        What `lease.engine` saves to the thread is refused with LeaseLost once somebody else has taken the lease over.
        That happens if it was not renewed for `ttl_seconds`, which it is while the block runs, or at once if the
        process of its owner has died on this machine. A lease that somebody else holds is waited for so long, and is
        LeaseHeld then.
        """
        return Lease(self, thread_id, ttl_seconds, wait_seconds)

    # -- durable runs

    @overload
    def durable(self, function: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /) -> DurableFunction[R]: ...

    @overload
    def durable(
        self, function: None = None, /, *, name: str | None = None, on_change: OnChange = "error"
    ) -> Callable[[Callable[Concatenate[Run, ...], Coroutine[Any, Any, R]]], DurableFunction[R]]: ...

    def durable(self, function: Any = None, /, *, name: str | None = None, on_change: OnChange = "error") -> Any:
        """Make a coroutine function durable: a run of it goes on after a crash, and no recorded step is done again.

        Its first parameter is the run (`everstep.Run`). Runs are recorded under its name, or `name`. `on_change` says
        what happens if a run that is taken up asks for something else than what it has recorded: "error"
        (ReplayMismatch), "fork" (it goes on in a branch that begins before that step), or "rerun" (steps with
        effect="none" are done anew).
        """
        from everstep.durable.functions import DurableFunction, program_of

        def decorate(found: Callable[..., Any]) -> DurableFunction[Any]:
            program = program_of(found, name, on_change, is_async=True)
            self._programs.add(program)
            return DurableFunction(self, program)

        return decorate if function is None else decorate(function)

    async def resume(self, thread_id: str, *, on_change: OnChange | None = None) -> Any:
        """Take a run up, whatever process began it, and return its result; wait for what it waits for.

        Its function must be known here: import the module that has it. A run that failed is tried again at the step
        that failed. If somebody else runs it, wait for that. `on_change` counts in place of the function's own.
        """
        from everstep.durable import lists

        return await lists.resume(self, thread_id, on_change)

    async def recover(self, *, concurrency: int = 8) -> list[RunInfo]:
        """Take up every run whose owner has died, or that waited for what has come; return how they stand then.

        Only runs of functions that are known here. Each is run until it ends or has to wait again. What goes wrong in
        one is recorded there.
        """
        from everstep.durable import lists

        return await lists.recover(self, concurrency)

    @public_call("runs", has_deadline=False)
    async def runs(self, status: str | None = None) -> list[RunInfo]:
        """Return the durable runs of the store, or those of that status, the one that was active last first."""
        from everstep.durable import lists

        return await lists.list_runs(self, status)

    @public_call("answer")
    async def answer(self, thread_id: str, value: Any, *, key: str | None = None) -> str:
        """Answer a question of a run (`run.ask`); if it has asked several, say which one. Return the checkpoint's id.

        The run goes on when it is taken up: by whoever waits for its result, by `recover`, or by `resume`.
        """
        from everstep.durable import lists

        return await lists.answer(self, thread_id, value, key)

    @public_call("signal")
    async def signal(self, thread_id: str, event: str, value: Any = None) -> str:
        """Tell a run of an event (`run.wait_for`), whether it waits for it yet or not. Return the checkpoint's id."""
        from everstep.durable import lists

        return await lists.signal(self, thread_id, event, value)

    @public_call("save")
    async def _amend(
        self,
        thread_id: str,
        state: dict[str, Any] | None,
        tools_result: dict[str, Any] | None,
        trigger: SnapshotTrigger | str,
        *,
        tags: Iterable[str] = (),
        summary: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Save a step with the head's conversation and next node, and `state` and `tools_result` where given.

        Unlike `append` these take the place of the head's. The cost does not depend on how long the conversation is.
        """
        check_values((), {} if state is None else state, {} if tools_result is None else tools_result)
        step = Step(thread_id, "", trigger, None, tags, summary, metadata, (), state or {})
        if step.trigger not in self._config.triggers:
            return ""
        return await self._timeline.append(step, [], state, tools_result, ANY, replace=True)

    _amend_safe = _logged(_amend)

    @public_call("save")
    async def _save_live(
        self,
        thread_id: str,
        save: Save,
        trigger: SnapshotTrigger | str,
        *,
        tags: Iterable[str] = (),
        summary: str | None = None,
        metadata: dict[str, Any] | None = None,
        kind: str = "",
        metadata_after: Callable[[str | None], Mapping[str, Any]] | None = None,
    ) -> str:
        """Save what a live thread holds, on top of a head that it knows, or together with what others did."""
        messages, state, tools_result, next_node = save.values
        check_values(messages, state, tools_result)
        step = Step(thread_id, "", trigger, next_node, tags, summary, metadata, messages, state, kind, metadata_after)
        if step.trigger not in self._config.triggers:
            return ""
        save.begin(step)
        try:
            made = await self._timeline.save_onto(step, save)
        except BaseException as exc:
            save.give_up(exc)
            raise
        save.land(made)
        return made

    _save_live_safe = _logged(_save_live)

    # -- reading

    @public_call("get")
    async def get(
        self, checkpoint_id: str, *, thread_id: str | None = None, namespace: str | None = None
    ) -> Checkpoint | None:
        """Return the checkpoint of that id, hidden or not; AmbiguousCheckpoint if several threads hold it."""
        return await self._timeline.get(checkpoint_id, thread_id, namespace)

    @public_call("get_latest")
    async def get_latest(self, thread_id: str, *, namespace: str = "") -> Checkpoint | None:
        """Return the thread's head, or None."""
        return await self._timeline.get_latest(checks.thread_id(thread_id), checks.namespace(namespace))

    @public_call("resolve")
    async def resolve(self, ref: str, *, thread_id: str | None = None) -> Reference:
        """Return the checkpoint that a reference means; `str()` of the result is its canonical text.

        `trip` (the head), `trip~3` (three parents back), `trip#42` (the newest of step 42), `trip@551f` (the beginning
        of an id, or of its last part), `trip@milestone` (a tag), `trip@{2026-11-15T10:00}` (the newest not later; UTC
        unless it says otherwise), or a whole checkpoint id. With `thread_id` the thread is known: `@`, `~3`, `#42`,
        `551f`, `milestone`. The text as a thread's own name wins, then as a checkpoint id.
        """
        named = _named(thread_id)
        return await self._timeline.resolve(checks.text(ref, "ref"), named)

    @public_call("list_time_travel_points")
    async def list_time_travel_points(
        self, thread_id: str, limit: int = 50, *, offset: int = 0, namespace: str = ""
    ) -> list[CheckpointMetadata]:
        """Return the metadata of the thread's checkpoints, newest first."""
        limit = checks.count(limit, "limit")
        offset = checks.count(offset, "offset")
        return await self._timeline.list_points(checks.thread_id(thread_id), limit, offset, checks.namespace(namespace))

    @public_call("get_checkpoint_tree")
    async def get_checkpoint_tree(self, thread_id: str, limit: int = 200, *, branches: bool = True) -> CheckpointTree:
        """Return the thread's newest checkpoints as nodes and edges, with its branches and merges.

        `everstep.draw` turns it into text. An edge with `gap` leads over checkpoints that retention removed.
        """
        return await self._timeline.tree(checks.thread_id(thread_id), checks.count(limit, "limit"), branches=branches)

    @public_call("diff")
    async def diff(
        self,
        a: str,
        b: str,
        *,
        thread_id: str | None = None,
        other_thread_id: str | None = None,
        namespace: str | None = None,
    ) -> Diff:
        """Return what changed from checkpoint `a` to checkpoint `b`, by path; messages are matched by id.

        `thread_id` says where `a` is, `other_thread_id` where `b` is (the same, if not given).
        """
        before = await self._timeline.locate(a, thread_id, namespace)
        if other_thread_id is None:
            other_thread_id = thread_id
        return await self._timeline.diff(before, await self._timeline.locate(b, other_thread_id, namespace))

    # -- finding

    @public_call("list_threads")
    async def list_threads(
        self,
        limit: int = 50,
        *,
        prefix: str = "",
        filter: Mapping[str, Any] | None = None,  # noqa: A002  # what the thing is called everywhere
        tags: Iterable[str] = (),
        since: datetime | None = None,
        cursor: str | None = None,
    ) -> ThreadPage:
        """Return each thread's latest checkpoint, most recently active first; `cursor` is that of the page before.

        Only threads whose name begins with `prefix`, whose latest checkpoint has all `tags` and every entry of `filter`
        in its metadata with exactly that value, and that were active at `since` (a datetime with a timezone) or later.
        """
        return await self._timeline.list_threads(
            limit, prefix=prefix, filter=filter, tags=tags, since=since, cursor=cursor
        )

    @public_call("delete_threads", has_deadline=False)
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
        return await self._timeline.delete_threads(
            prefix=prefix, filter=filter, tags=tags, since=since, everything=everything, dry_run=dry_run
        )

    @public_call("sizes", has_deadline=False)
    async def sizes(self, thread_id: str | None = None) -> Sizes:
        """Return what a thread takes, or (None) all of them: records, pieces of values, pending writes.

        It reads all that they are made of, so it takes a while where that is much.
        """
        return await self._timeline.sizes(thread_id)

    # -- going back

    async def rewind(
        self,
        checkpoint_id: str,
        *,
        later: Literal["hide", "delete", "keep"] = "hide",
        thread_id: str | None = None,
        namespace: str | None = None,
        compensate: bool = False,
    ) -> TimeTravelResult:
        """Make that checkpoint the head. What came later on its line is hidden, deleted or kept.

        Hidden checkpoints stay readable by id and come back with `undo`, until retention takes them. On the thread of
        a durable run, or of a graph with steps, the effects that are left behind have happened all the same:
        `compensate` calls the functions that take them back (`undo` of their steps) first, the newest effect first.
        """
        if later not in ("hide", "delete", "keep"):
            raise InvalidInput(f"later is 'hide', 'delete' or 'keep', not {checks.shown(later)}")
        undone: list[str] = []
        if compensate:
            from everstep.durable import undoing

            # Located before the effects are taken back, so that a wrong name stops everything.
            key = await self._timeline.locate(checkpoint_id, thread_id, namespace)
            undone = await undoing.compensate(self, key, is_blocking=self._is_blocking)
        done = await self._rewind_to(checkpoint_id, later, thread_id, namespace)
        done.compensated = undone
        return done

    @public_call("rewind")
    async def _rewind_to(
        self, checkpoint_id: str, later: str, thread_id: str | None, namespace: str | None
    ) -> TimeTravelResult:
        key = await self._timeline.locate(checkpoint_id, thread_id, namespace)
        return await self._rewind(key, later)

    @public_call("time_travel_to_step")
    async def time_travel_to_step(self, thread_id: str, step: int, *, namespace: str = "") -> TimeTravelResult | None:
        """Rewind to the newest checkpoint whose step is not greater; None if there is none."""
        thread_id = checks.thread_id(thread_id)
        namespace = checks.namespace(namespace)
        key = await self._timeline.at_step(thread_id, checks.whole(step, "step"), namespace)
        if key is None:
            return None
        return await self._rewind(key, "hide")

    async def _rewind(self, key: Key, later: str) -> TimeTravelResult:
        done = await self._timeline.rewind(key, later)
        logger.info("thread %r is back at %s; %d left behind (%s)", key[0], key[2], done.rewind_depth, later)
        return done

    @public_call("undo")
    async def undo(self, thread_id: str) -> Operation:
        """Take the thread's newest operation back and return it. Snapshots taken since are hidden, not lost.

        Raises CannotUndo if there is nothing to undo or what it needs was deleted: deletion and retention are final.
        """
        undone = await self._timeline.undo(checks.thread_id(thread_id))
        logger.info("thread %r: undone: %s of %s", thread_id, undone.kind, undone.created_at)
        return undone

    @public_call("redo")
    async def redo(self, thread_id: str) -> Operation:
        """Do again what `undo` took back last, and return it."""
        redone = await self._timeline.redo(checks.thread_id(thread_id))
        logger.info("thread %r: done again: %s of %s", thread_id, redone.kind, redone.created_at)
        return redone

    @public_call("operations")
    async def operations(self, thread_id: str, limit: int = 50) -> list[Operation]:
        """Return the thread's log of rewinds, branches, merges, pins, tags, notes and names, newest first."""
        return await self._timeline.operations(checks.thread_id(thread_id), checks.count(limit, "limit"))

    # -- branching and merging

    @public_call("branch")
    async def branch(
        self,
        from_checkpoint_id: str,
        branch_name: str,
        *,
        thread_id: str | None = None,
        namespace: str | None = None,
        effects: Literal["share", "allow"] = "share",
    ) -> str:
        """Start a new thread at that checkpoint and return its id. Copies no state.

        A branch of a durable run shares the effects of its family: what was performed there is not performed again.
        With `effects="allow"` it may perform them once more.
        """
        if not checks.text(branch_name, "branch_name", 512):
            raise InvalidInput("branch_name is empty; give the branch a name")
        if effects not in ("share", "allow"):
            raise InvalidInput(f"effects is 'share' or 'allow', not {checks.shown(effects)}")
        return await self._timeline.branch(from_checkpoint_id, thread_id, namespace, branch_name, effects)

    @public_call("merge_branch")
    async def merge_branch(
        self,
        branch_thread_id: str,
        into_thread_id: str,
        *,
        resolve: Resolve = None,
        namespace: str = "",
        graph: Any = None,
    ) -> str:
        """Merge what a branch did into another thread of its family and return the id of the merge.

        Both changed one path differently: MergeConflict, and nothing is written, unless `resolve` says what to do:
        "ours", "theirs", a mapping path -> value, or a function of the Conflict. On threads of a LangGraph saver,
        `graph` (compiled or not) lets the reducers of its channels decide.
        """
        branch = checks.thread_id(branch_thread_id)
        into = checks.thread_id(into_thread_id)
        made = await self._timeline.merge(branch, into, resolve, checks.namespace(namespace), graph)
        logger.info("thread %r is merged into thread %r: %s", branch, into, made)
        return made

    # -- keeping

    @public_call("pin")
    async def pin(self, checkpoint_id: str, *, thread_id: str | None = None, namespace: str | None = None) -> None:
        """Keep a checkpoint from retention."""
        await self._timeline.pin(await self._timeline.locate(checkpoint_id, thread_id, namespace), pinned=True)

    @public_call("unpin")
    async def unpin(self, checkpoint_id: str, *, thread_id: str | None = None, namespace: str | None = None) -> None:
        """Leave a checkpoint to retention again."""
        await self._timeline.pin(await self._timeline.locate(checkpoint_id, thread_id, namespace), pinned=False)

    @public_call("tag")
    async def tag(
        self, checkpoint_id: str, tag: str, *, thread_id: str | None = None, namespace: str | None = None
    ) -> None:
        """Give a checkpoint a tag: `thread@tag` then means it, or the newest that has the tag.

        The tag is kept in the thread's log, where undo takes it back; the checkpoint itself stays as it was written,
        and so do its metadata. Pin it too if retention should leave it.
        """
        key = await self._timeline.locate(checkpoint_id, thread_id, namespace)
        await self._timeline.tag(key, checked_tag(tag), is_given=True)

    @public_call("untag")
    async def untag(
        self, checkpoint_id: str, tag: str, *, thread_id: str | None = None, namespace: str | None = None
    ) -> None:
        """Take a tag from a checkpoint, whoever gave it."""
        key = await self._timeline.locate(checkpoint_id, thread_id, namespace)
        await self._timeline.tag(key, checks.text(tag, "tag"), is_given=False)

    @public_call("note")
    async def note(
        self, checkpoint_id: str, note: str, *, thread_id: str | None = None, namespace: str | None = None
    ) -> None:
        """Note something about a checkpoint, in place of what was noted before; an empty note takes that away.

        It is kept in the thread's log, as tags are: undo takes it back, and the checkpoint stays as it was written.
        """
        key = await self._timeline.locate(checkpoint_id, thread_id, namespace)
        await self._timeline.note(key, checked_note(note))

    @public_call("rename_branch")
    async def rename_branch(self, thread_id: str, name: str) -> None:
        """Call a branch by another name wherever people read one; an empty name is the one that it was made with.

        Its thread id stays, and so does everything that names it by that. Undo takes it back.
        """
        await self._timeline.rename(checks.thread_id(thread_id), checked_name(name))

    @public_call("archive_branch")
    async def archive_branch(self, thread_id: str) -> None:
        """Leave a branch out of the lists that people read: `everstep threads`, `everstep branch list` and the page.

        Nothing else changes: it can be read, merged and gone on with, and `list_threads` lists it. Undo, or
        `unarchive_branch`, brings it back.
        """
        await self._timeline.archive(checks.thread_id(thread_id), is_archived=True)

    @public_call("unarchive_branch")
    async def unarchive_branch(self, thread_id: str) -> None:
        """Put a branch back into the lists."""
        await self._timeline.archive(checks.thread_id(thread_id), is_archived=False)

    def stats(self) -> Stats:
        """Return what this process has done on the backend so far: calls, errors, seconds, bytes, retries, by name."""
        return self._figures.stats()

    @public_call("collect", has_deadline=False)
    async def collect(self, thread_id: str | None = None, *, dry_run: bool = False) -> GCReport:
        """Apply the retention policy now, to one thread or to all, and give the space back."""
        named = _named(thread_id)
        report = await self._timeline.collect(named, dry_run=dry_run)
        logger.info("collected %s: %s", "all threads" if named is None else f"thread {named!r}", report)
        return report

    # -- looking after the store

    @public_call("verify", has_deadline=False)
    async def verify(
        self, thread_id: str | None = None, *, progress: Callable[[UpkeepProgress], None] | None = None
    ) -> VerifyReport:
        """Check all that is stored of a thread, or (None) of all of them, and return what is wrong, if anything is.

        Every hash, checksum and reference is looked at, and tables are compared with what is found through them. It
        changes nothing, does not stop at what it finds, and does not mind that others write meanwhile.
        """
        named = _named(thread_id)
        report = await upkeep.verify(self._timeline_store("verify"), named, progress)
        logger.log(logging.INFO if report.ok else logging.WARNING, "verified: %s", report)
        return report

    @public_call("repair", has_deadline=False)
    async def repair(
        self,
        thread_id: str | None = None,
        *,
        dry_run: bool = False,
        keep: str | os.PathLike[str] | None = None,
        progress: Callable[[UpkeepProgress], None] | None = None,
    ) -> RepairReport:
        """Set aside what is damaged of a thread, or (None) of all of them, so that all the rest can be used.

        Damaged checkpoints are removed, heads move to the newest that is whole, and tables and indexes are made to
        agree. What is removed is first written to the file `keep` as it is stored; if none is named, to
        `everstep-repair-<time>.jsonl` beside a SQLite file or in the current folder. With `dry_run` only tell. Nobody
        else should use the store meanwhile.
        """
        named = _named(thread_id)
        store = self._timeline_store("repair")
        report = await repairing.repair(store, named, dry_run=dry_run, keep=keep, progress=progress)
        if isinstance(self._timeline, StoreTimeline):
            for name in report.threads:
                self._timeline.forget(name)
        logger.warning("repaired: %s", report)
        return report

    def _timeline_store(self, what: str) -> Store:
        """Return the store on the face that is used, if there is one."""
        if not isinstance(self._timeline, StoreTimeline):
            raise UnsupportedByBackend(f"{what} needs one of Everstep's own stores, not a backend of your own")
        return self._timeline.store

    async def close(self) -> None:
        """Close the backend."""
        await self._timeline.close()


def _handed_on(method: Callable[Concatenate[CheckpointEngine, P], R]) -> Callable[Concatenate[SyncEngine, P], R]:
    """Return a method of the blocking view for one of the engine's that waits for nothing."""

    def call(self: SyncEngine, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._driven, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class SyncEngine(SyncFace[CheckpointEngine]):
    """The blocking view of an engine: the same names, parameters and results."""

    def __repr__(self) -> str:
        return describe_on_store(self, self._driven._store)

    snapshot = blocking(CheckpointEngine.snapshot)
    append = blocking(CheckpointEngine.append)
    snapshot_safe = blocking(CheckpointEngine.snapshot_safe)
    get = blocking(CheckpointEngine.get)
    get_latest = blocking(CheckpointEngine.get_latest)
    resolve = blocking(CheckpointEngine.resolve)
    list_time_travel_points = blocking(CheckpointEngine.list_time_travel_points)
    get_checkpoint_tree = blocking(CheckpointEngine.get_checkpoint_tree)
    diff = blocking(CheckpointEngine.diff)
    list_threads = blocking(CheckpointEngine.list_threads)
    delete_threads = blocking(CheckpointEngine.delete_threads)
    sizes = blocking(CheckpointEngine.sizes)
    rewind = blocking(CheckpointEngine.rewind)
    time_travel_to_step = blocking(CheckpointEngine.time_travel_to_step)
    undo = blocking(CheckpointEngine.undo)
    redo = blocking(CheckpointEngine.redo)
    operations = blocking(CheckpointEngine.operations)
    branch = blocking(CheckpointEngine.branch)
    merge_branch = blocking(CheckpointEngine.merge_branch)
    pin = blocking(CheckpointEngine.pin)
    unpin = blocking(CheckpointEngine.unpin)
    tag = blocking(CheckpointEngine.tag)
    untag = blocking(CheckpointEngine.untag)
    note = blocking(CheckpointEngine.note)
    rename_branch = blocking(CheckpointEngine.rename_branch)
    archive_branch = blocking(CheckpointEngine.archive_branch)
    unarchive_branch = blocking(CheckpointEngine.unarchive_branch)
    collect = blocking(CheckpointEngine.collect)
    runs = blocking(CheckpointEngine.runs)
    answer = blocking(CheckpointEngine.answer)
    signal = blocking(CheckpointEngine.signal)
    verify = blocking(CheckpointEngine.verify)
    repair = blocking(CheckpointEngine.repair)
    close = blocking(CheckpointEngine.close)

    snapshot_on = _handed_on(CheckpointEngine.snapshot_on)
    snapshot_scope = _handed_on(CheckpointEngine.snapshot_scope)
    stats = _handed_on(CheckpointEngine.stats)

    def thread(self, thread_id: str, *, interval_seconds: float | None = None) -> SyncLiveThread:
        """Return the thread as the agent has it in a `with` block: messages, state, tools_result, next_node.

        They are loaded from the head on entering, and yours to change. Decorated calls inside save them; leaving the
        block saves what has changed since, also by an exception, which is noted. `interval_seconds` saves in between if
        "interval" is among the triggers. If others wrote meanwhile, what was changed here is put onto their head;
        HeadMoved where both have changed the same value.
        """
        return SyncLiveThread(self._driven._capture, thread_id, interval_seconds)

    def lease(self, thread_id: str, ttl_seconds: float = 30.0, *, wait_seconds: float = 0.0) -> SyncLease:
        """Return the lease of a thread for a `with` block: one owner at a time.

        What `lease.engine` saves to the thread is refused with LeaseLost once somebody else has taken the lease over.
        That happens if it was not renewed for `ttl_seconds`, which it is while the block runs, or at once if the
        process of its owner has died on this machine. A lease that somebody else holds is waited for so long, and is
        LeaseHeld then.
        """
        return SyncLease(self, thread_id, ttl_seconds, wait_seconds)

    @overload
    def durable(self, function: Callable[Concatenate[SyncRun, P], R], /) -> SyncDurableFunction[R]: ...

    @overload
    def durable(
        self, function: None = None, /, *, name: str | None = None, on_change: OnChange = "error"
    ) -> Callable[[Callable[Concatenate[SyncRun, ...], R]], SyncDurableFunction[R]]: ...

    def durable(self, function: Any = None, /, *, name: str | None = None, on_change: OnChange = "error") -> Any:
        """Make a plain function durable, whose first parameter is an `everstep.SyncRun`: see `CheckpointEngine`."""
        from everstep.durable.functions import SyncDurableFunction, program_of

        def decorate(found: Callable[..., Any]) -> SyncDurableFunction[Any]:
            program = program_of(found, name, on_change, is_async=False)
            self._driven._programs.add(program)
            return SyncDurableFunction(self, program)

        return decorate if function is None else decorate(function)

    def resume(self, thread_id: str, *, on_change: OnChange | None = None) -> Any:
        """Take a run of a plain function up and return its result. See `CheckpointEngine.resume`."""
        from everstep.durable import lists

        return self._run(lists.resume_blocking(self._driven, thread_id, on_change))

    def recover(self) -> list[RunInfo]:
        """Take up every run of a plain function that has something to do. See `CheckpointEngine.recover`."""
        from everstep.durable import lists

        found: list[RunInfo] = self._run(lists.recover_one_by_one(self._driven))
        return found

    @property
    def checkpointer(self) -> SyncBackend:
        """The backend, blocking too."""
        backend = self._driven._backend
        if isinstance(backend, StoreBackend):
            return backend.sync
        return SyncBackend(backend, self._run)

    @property
    def config(self) -> SnapshotConfig:
        """When it saves and how much."""
        return self._driven.config


def _timeline(checkpointer: CheckpointBackend, config: SnapshotConfig) -> Timeline:
    if isinstance(checkpointer, StoreBackend):
        return StoreTimeline(checkpointer, config)
    from everstep.timeline.foreign import PlainTimeline  # rarely needed

    return PlainTimeline(checkpointer, config)


def _figures(checkpointer: CheckpointBackend) -> Figures:
    if isinstance(checkpointer, StoreBackend):
        return checkpointer.figures
    return Figures(type(checkpointer).__name__)


def _named(thread_id: str | None) -> str | None:
    """Return the name of a thread after a look at it; None means all threads, or that it is not known."""
    if thread_id is None:
        return None
    return checks.thread_id(thread_id)


def _expected(expected_head: str | AnyHead | None) -> str | AnyHead | None:
    if expected_head is None or expected_head is ANY:
        return expected_head
    return checks.checkpoint_id(expected_head)
