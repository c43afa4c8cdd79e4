"""Live threads: a thread as the agent has it now, and the saves that nothing may interrupt or be broken by.

A live thread is found through a context variable: tasks and `asyncio.to_thread` inherit it, a bare `threading.Thread`
does not. Values are frozen when a save is prepared, before its first wait: a checkpoint holds what there was at that
moment, and whether anything changed is a comparison of encoded bytes. What others do to the thread meanwhile is put
together with what this one does: see `ledger`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import copy
import dataclasses
import logging
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from everstep.config import SnapshotTrigger
from everstep.errors import EverstepError, InvalidInput
from everstep.history.rebase import Tools, Values
from everstep.repository.ledger import Ledger, Save
from everstep.runtime import checks
from everstep.runtime.blocking import NeedsAsync, NeedsPlainWith, describe_on_store
from everstep.values import codec
from everstep.values.storable import described

if TYPE_CHECKING:
    from everstep.capture.decorators import Capture
    from everstep.engine import CheckpointEngine

logger = logging.getLogger("everstep")

Pending = Coroutine[Any, Any, Any]
Frozen = tuple[Any, bytes | None]

# Enough to tell what went wrong; the text of an error may hold a whole document.
_NOTE_MAX = 1_000
# Modules whose code may hold a lock while the garbage collector strikes: see `may_save`.
_HOLDING_LOCKS = ("everstep.stores", "everstep.repository.repository", "everstep.runtime.forks")
_innermost: contextvars.ContextVar[Live | None] = contextvars.ContextVar("everstep_live_thread", default=None)
# Event loops hold their tasks weakly: without this set a save could be collected while it waits.
_going_on: set[asyncio.Task[Any]] = set()


class Live:
    """What both faces of a live thread share."""

    def __init__(self, capture: Capture, thread_id: str, interval_seconds: float | None) -> None:
        self.thread_id = checks.thread_id(thread_id)
        self.messages: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {}
        self.tools_result: dict[str, Any] = {}
        self.next_node = ""
        self.is_open = False
        """Whether its block has been entered and not yet left."""
        self._capture = capture
        self._entered = False
        seconds = _checked_interval(interval_seconds)
        self._interval: float | None = None
        if capture.saves(SnapshotTrigger.INTERVAL):
            self._interval = seconds
        self._outer: Live | None = None
        self._ledger = Ledger(self.thread_id)
        self._record: dict[str, Any] | None = None
        """The last record of a call: if it is what there is in `tools_result`, it counts as one value."""
        self._under_way: set[concurrent.futures.Future[None]] = set()

    def __repr__(self) -> str:
        state = "live" if self.is_open else "not live"
        return describe_on_store(self, self._capture.engine._store, repr(self.thread_id), state)

    @property
    def checkpoint_id(self) -> str | None:
        """The checkpoint last loaded or saved."""
        return self._ledger.checkpoint_id

    def save_call(
        self,
        engine: CheckpointEngine,
        trigger: SnapshotTrigger,
        state: dict[str, Any] | None,
        tools_result: dict[str, Any] | None,
        about: dict[str, Any],
    ) -> Pending:
        """Return the save of a call or scope; a given state counts for this save only."""
        before = self.tools_result
        if tools_result is None:
            now = self._now(state)
        else:
            # A copy: the call goes on with its own.
            self.tools_result = self._record = dict(tools_result)
            now = self._now(state, "keep")
        return self._save_call(self._write(engine._save_live_safe, now, trigger, about), before)

    async def _save_call(self, save: Pending, before: dict[str, Any]) -> str:
        """Run the save of a call. A record that could not be saved must not make the thread's own save fail later."""
        record = self.tools_result
        made: str = await save
        if not made and self.tools_result is record:
            self.tools_result = before
        return made

    async def _enter(self, engine: CheckpointEngine) -> None:
        """Load the head. Errors of the store come out; nothing has begun then."""
        if self._entered:
            raise EverstepError(f"thread {self.thread_id!r}: a live thread is entered once; call thread() again")
        # Set before the first wait, so that two tasks cannot enter it side by side.
        self._entered = True
        head = await engine.get_latest(self.thread_id)
        if head is not None:
            self.messages = head.messages
            self.state = head.state
            self.tools_result = head.tools_result
            self.next_node = head.next_node
            self._ledger.load(head.metadata.checkpoint_id, head.metadata.step, self._frozen()[1])
        else:
            self._ledger.load(None, 0, self._frozen()[1])
        now = self._now()
        if self._capture.saves(SnapshotTrigger.TASK_BOUNDARY):
            about = noted(None, boundary="start")
            await self._write(engine._save_live_safe, now, SnapshotTrigger.TASK_BOUNDARY, about)

    def _open(self) -> None:
        self.is_open = True
        self._outer = _open_from(_innermost.get())
        _innermost.set(self)

    def _leave(self, engine: CheckpointEngine, error: BaseException | None) -> Pending:
        """Leave, and return the save of what there is now.

        No token is kept: a block may be left in another task or context than it was entered in, or out of turn. Where
        the variable still names a live thread that has been left, it is passed over.
        """
        self.is_open = False
        if _innermost.get() is self:
            _innermost.set(_open_from(self._outer))
        return self._save_last(engine, self._now(), error)

    def _leave_blocking(self, error: BaseException | None) -> None:
        last = self._leave(self._capture.blocking, error)
        if may_save(error):
            self._capture.run(last)
        else:
            last.close()

    async def _save_last(self, engine: CheckpointEngine, now: Save, error: BaseException | None) -> None:
        if self._capture.saves(SnapshotTrigger.TASK_BOUNDARY):
            trigger = SnapshotTrigger.TASK_BOUNDARY
            about = noted(error, boundary="end")
        elif self._changed(now):
            trigger = SnapshotTrigger.STATE_CHANGE
            about = noted(error)
        else:
            return
        try:
            await self._write(unfiltered(engine)._save_live, now, trigger, about)
        except Exception:
            # An error of the block matters more to its caller than an error of the save, which must not hide it.
            if error is None:
                raise
            logger.exception("thread %r: what it held when it was left by an error is not saved", self.thread_id)

    def _save(self, engine: CheckpointEngine, trigger: SnapshotTrigger | str, **about: Any) -> Pending:
        if not self.is_open:
            raise EverstepError(f"thread {self.thread_id!r} is not live: save inside its block")
        return self._write(engine._save_live, self._now(), trigger, about)

    async def _save_changes(self, engine: CheckpointEngine) -> None:
        now = self._now()
        if self._changed(now):
            await self._write(engine._save_live_safe, now, SnapshotTrigger.INTERVAL, {})

    async def _write(
        self, write: Callable[..., Pending], now: Save, trigger: SnapshotTrigger | str, about: dict[str, Any]
    ) -> str:
        ended = concurrent.futures.Future[None]()
        # So that whoever waits for it cannot cancel it.
        ended.set_running_or_notify_cancel()
        self._under_way.add(ended)
        try:
            made: str = await write(self.thread_id, now, trigger, **about)
            # Without an id nothing was saved: the trigger is not configured, or the failure was logged.
            if made:
                self._take_over(now)
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)
        return made

    def _take_over(self, save: Save) -> None:
        """Hold what others did before a save, too. The caller's own lists and dicts stay the ones they were."""
        if save.whole is None:
            held = Values(self.messages, self.state, self.tools_result, self.next_node)
            self.next_node = self._ledger.take_over(save, held, self._tools()).next_node

    def _tools(self) -> Tools:
        """How our results of tools are put together with those of others: the record of a call is one value."""
        return "merge" if self.tools_result is not self._record else "last"

    def _now(self, state: dict[str, Any] | None = None, tools: Tools | None = None) -> Save:
        """Return a save of what there is now."""
        return self._ledger.prepare(lambda: self._frozen(state), tools or self._tools())

    def _frozen(self, state: dict[str, Any] | None = None) -> Frozen:
        if state is None:
            state = self.state
        return frozen([self.messages, state, self.tools_result, self.next_node])

    def _changed(self, now: Save) -> bool:
        return not self._ledger.is_saved(now)


class LiveThread(NeedsAsync, Live):
    """The thread as the agent has it: `messages`, `state`, `tools_result` and `next_node`, loaded from the head.

    Decorated calls inside the block use it; the innermost block counts, and after it the one around it. On leaving it
    saves what changed since the last save, whichever triggers are configured, as "state_change"; with "task_boundary"
    configured it saves at the start and at the end in any case. Leaving by an exception is noted in the metadata
    (`error`) and by the tag "error". An error of the last save comes out, unless the block itself raised. With
    `interval_seconds` and "interval" configured, changes are saved in between.

    A live thread knows the head that it was loaded from or has saved. A save that finds another one there puts what
    this live thread has changed since onto it: messages added, keys set or removed, `next_node`. From then on it holds
    what others did, too, in the same list and dicts. Where both have changed the same value it raises HeadMoved, which
    names it (`conflicts`), and nothing is written.
    A task that outlives the block, and begins a call then, uses the live thread around the block or none.
    """

    _ticking: asyncio.Task[None] | None = None

    async def save(
        self,
        trigger: SnapshotTrigger | str = SnapshotTrigger.MANUAL,
        *,
        tags: Iterable[str] = (),
        summary: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Save the thread as it is and return the checkpoint's id; "" if the trigger is not configured."""
        made: str = await self._save(self._capture.engine, trigger, tags=tags, summary=summary, metadata=metadata)
        return made

    async def __aenter__(self) -> Self:
        await self._enter(self._capture.engine)
        if self._interval is not None:
            self._stop = asyncio.Event()
            self._ticking = asyncio.create_task(self._tick(self._interval))
        self._open()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A coroutine that is being closed cannot wait, so the last save is done by the blocking face.
        if isinstance(error, GeneratorExit):
            if self._ticking is not None:
                self._ticking.cancel()
            self._leave_blocking(error)
            return
        await to_its_end(self._in_turn(self._leave(self._capture.engine, error)))

    async def _in_turn(self, last: Pending) -> None:
        """Run the last save after those that are under way: one of them might land later, with older values."""
        if self._ticking is not None:
            self._stop.set()
            await asyncio.wait([self._ticking])
        # Decorated calls of other tasks, which outlive the block.
        for ended in list(self._under_way):
            await asyncio.wrap_future(ended)
        await last

    async def _tick(self, seconds: float) -> None:
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
            except TimeoutError:
                await self._save_changes(self._capture.engine)


class SyncLiveThread(NeedsPlainWith, Live):
    """A LiveThread for blocking callers: a plain context manager, and `save` returns when it is saved."""

    _ticking: threading.Thread | None = None

    def save(
        self,
        trigger: SnapshotTrigger | str = SnapshotTrigger.MANUAL,
        *,
        tags: Iterable[str] = (),
        summary: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> str:
        """Save the thread as it is and return the checkpoint's id; "" if the trigger is not configured."""
        made: str = self._capture.run(
            self._save(self._capture.blocking, trigger, tags=tags, summary=summary, metadata=metadata)
        )
        return made

    def __enter__(self) -> Self:
        self._capture.run(self._enter(self._capture.blocking))
        if self._interval is not None:
            self._stop = threading.Event()
            name = f"everstep interval {self.thread_id}"
            self._ticking = threading.Thread(target=self._tick, args=(self._interval,), name=name, daemon=True)
            self._ticking.start()
        self._open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if self._ticking is not None:
                self._stop.set()
                # In the garbage collector this thread may hold a lock that the ticking one waits for.
                if may_save(error):
                    self._ticking.join()
        except BaseException as exc:
            error = error or exc
            raise
        finally:
            self._leave_blocking(error)

    def _tick(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            self._capture.run(self._save_changes(self._capture.blocking))


def find(capture: Capture, thread_id: str | None) -> Live | None:
    """Return the innermost open live thread of the engine, of that name if one is given."""
    live = _open_from(_innermost.get())
    while live is not None and (live._capture is not capture or thread_id not in (None, live.thread_id)):
        live = _open_from(live._outer)
    return live


def _open_from(live: Live | None) -> Live | None:
    while live is not None and not live.is_open:
        live = live._outer
    return live


def unfiltered(engine: CheckpointEngine) -> CheckpointEngine:
    """Return the engine with every trigger configured: a change is not dropped because of the name it has."""
    twin = copy.copy(engine)
    twin._config = dataclasses.replace(engine.config, triggers=frozenset(SnapshotTrigger))
    return twin


def _checked_interval(seconds: object) -> float | None:
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 < seconds <= threading.TIMEOUT_MAX:
        raise InvalidInput(f"interval_seconds is a number above 0, not {checks.shown(seconds)}")
    return seconds


def frozen(values: Any) -> Frozen:
    """Return a copy made in one go, and its bytes; the values themselves if that fails: the save will say why."""
    try:
        packed = codec.pack(values)
        return codec.unpack(packed), packed
    except Exception:
        return values, None


def noted(error: BaseException | None, **metadata: Any) -> dict[str, Any]:
    """Return what a checkpoint's metadata tells of an error, in text that every store can hold."""
    if error is None:
        return {"metadata": metadata}
    texts: dict[str, str] = {}
    for key, text in described(error).items():
        # A lone surrogate cannot be stored, and a message may have been cut in the middle of a character.
        encodable = text.encode("utf-8", "backslashreplace").decode()
        texts[key] = encodable[:_NOTE_MAX]
    return {"metadata": metadata | {"error": texts}, "tags": ["error"]}


async def to_its_end(save: Pending) -> None:
    """Await a save that goes on even if the waiting task is cancelled meanwhile."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # driven without a loop: there is nothing that cancels
        await save
        return
    task = loop.create_task(save)
    _going_on.add(task)
    task.add_done_callback(_going_on.discard)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_log_failure)
        raise


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a snapshot failed after its task was cancelled", exc_info=task.exception())


def may_save(error: BaseException | None) -> bool:
    """Whether this thread can wait for a save now.

    The garbage collector closes generators wherever it strikes, also in the middle of another save by this thread:
    waiting for its locks would never end.
    """
    if not isinstance(error, GeneratorExit):
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith(_HOLDING_LOCKS):
        frame = frame.f_back
    if frame is None and not sys.is_finalizing():
        return True
    logger.warning("a call or live thread was closed by the garbage collector; its end is not saved")
    return False
