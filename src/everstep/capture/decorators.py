"""Capture: what an agent does is saved while it does it. Decorated calls and scopes, over the engine.

Nothing here may break or change the agent's own call: what cannot be saved is logged, and the call goes on. Each save
is prepared at once, with the values of that moment, and awaited afterwards.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Self, TypeVar

from everstep.capture.live import Live, Pending, find, frozen, may_save, noted, to_its_end
from everstep.config import SnapshotTrigger, as_trigger
from everstep.errors import InvalidInput
from everstep.runtime import checks
from everstep.values.storable import described, storable

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

logger = logging.getLogger("everstep")

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

_MARK = "_everstep_is_captured"

# The containers around what a record holds: the record itself, and the list of an unsplit checkpoint. The
# limit of depth counts them.
_ABOVE = 2


class Capture:
    """What the two faces of an engine share: its live threads are those that carry this object."""

    def __init__(self, engine: CheckpointEngine) -> None:
        self.engine = engine

    @functools.cached_property
    def blocking(self) -> CheckpointEngine:
        """The engine over the blocking store: its coroutines never wait."""
        return self.engine.sync._driven

    def run(self, save: Pending) -> Any:
        """Run a save of the blocking engine to its end."""
        return self.blocking._timeline.run(save)

    def saves(self, trigger: SnapshotTrigger) -> bool:
        """Whether snapshots for that reason are configured."""
        return trigger in self.engine.config.triggers

    def snapshot_on(self, trigger: SnapshotTrigger | str) -> Callable[[F], F]:
        """Return a decorator for functions, coroutine functions, generators and async generators.

        Each call is saved before and after, with `tools_result = {"name", "args", "kwargs", "status", ...}`; status is
        "started", then "ok", "error", "cancelled" or "closed" (a stream or coroutine that was not run to its end), with
        `result` or `error`. The result of a stream is the list of what it yielded; it is saved from its first item on,
        and a generator's return value is `returned`. Arguments are kept as they were before the call. What cannot be
        stored is replaced, alone, by `{"__unstorable__": its repr}`.

        Inside a live thread its messages and state are saved, and the record becomes its `tools_result`. Otherwise the
        conversation, state and next node are those of the head. `_checkpoint_thread_id` and `_checkpoint_state` (which
        is saved in place of the state, with what it holds then) count for one call and are not passed on. The end of a
        call goes to the thread where it began, even if that has been left meanwhile. Plain functions save through the
        blocking face, with or without a running loop.
        """
        reason = as_trigger(trigger)

        def decorate(function: Any) -> Any:
            # Such an object is no function, and must stay what it is for the class to bind it: we go inside.
            if isinstance(function, (classmethod, staticmethod)):
                return type(function)(decorate(function.__func__))
            if not callable(function):
                raise InvalidInput(f"snapshot_on decorates functions, not {checks.shown(function)}")
            begin = functools.partial(_Call, self, _name(function), reason)
            made = functools.wraps(function)(_wrapper(function, begin))
            setattr(made, _MARK, True)
            return made

        return decorate


def on_thread(function: Callable[P, R], thread_id: str, *, state: dict[str, Any] | None = None) -> Callable[P, R]:
    """Return a function or method that `snapshot_on` has decorated, for calls that are saved in that thread.

    `state` is saved in place of the thread's, with what it holds then. The same as the keywords `_checkpoint_thread_id`
    and `_checkpoint_state` of the decorated function, which type checkers do not know.
    """
    if not getattr(function, _MARK, False):
        raise InvalidInput(f"on_thread takes a function that snapshot_on has decorated, not {checks.shown(function)}")
    call: Any = function
    return functools.partial(call, _checkpoint_thread_id=thread_id, _checkpoint_state=state)


class _Place(NamedTuple):
    """Where a call or scope is saved: in a live thread as it is then, or on top of a thread's head."""

    thread_id: str
    live: Live | None
    state: dict[str, Any] | None

    def save(
        self, engine: CheckpointEngine, trigger: SnapshotTrigger, tools_result: dict[str, Any] | None, **about: Any
    ) -> Pending:
        """Return the save, of values as they are now."""
        # A live thread that was left meanwhile has made its last save: what comes later goes onto the head.
        if self.live is not None and self.live.is_open:
            return self.live.save_call(engine, trigger, self.state, tools_result, about)
        return engine._amend_safe(self.thread_id, frozen(self.state)[0], tools_result, trigger, **about)


def _place(capture: Capture, thread_id: str | None, state: dict[str, Any] | None) -> _Place:
    live = None
    # What is no name is refused, and logged, by the save.
    if thread_id is None or isinstance(thread_id, str):
        live = find(capture, thread_id)
    if live is not None:
        return _Place(live.thread_id, live, state)
    if thread_id is None:
        thread_id = "default"
    return _Place(thread_id, None, state)


class _Around(ABC):
    """Saves before and after what happens inside, on either face. A save that fails is logged."""

    _waits_when_closed = False

    def __init__(self, capture: Capture, trigger: SnapshotTrigger) -> None:
        self._capture = capture
        self._trigger = trigger
        self._on = capture.saves(trigger)

    @abstractmethod
    def _before(self, engine: CheckpointEngine) -> Pending:
        """Return the save on entering."""

    @abstractmethod
    def _after(self, engine: CheckpointEngine, error: BaseException | None) -> Pending:
        """Return the save on leaving."""

    def __enter__(self) -> Any:
        if self._on:
            self._capture.run(_prepared(self._before, self._capture.blocking))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._on and may_save(error):
            self._capture.run(_prepared(self._after, self._capture.blocking, error))

    async def __aenter__(self) -> Any:
        try:
            if self._on:
                await _prepared(self._before, self._capture.engine)
        except BaseException as exc:  # cancelled while saving: what was announced will not happen
            await self.__aexit__(type(exc), exc, None)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, GeneratorExit) and not self._waits_when_closed:
            # A coroutine that is being closed cannot wait.
            self.__exit__(kind, error, trace)
        elif self._on:
            await to_its_end(_prepared(self._after, self._capture.engine, error))


def _prepared(save: Callable[..., Pending], *args: Any) -> Pending:
    """Return a save of what there is now; what goes wrong on the way is logged."""
    try:
        return save(*args)
    except Exception:
        logger.exception("a snapshot of a call or scope failed; the agent goes on without it")
        return _nothing()


async def _nothing() -> None:
    pass


class Scope(_Around):
    """A block around which `state` is saved, on entering and with what it holds on leaving; `with` and `async with`.

    The conversation is that of the live thread of this name, if one is open, and otherwise the head's. An exception is
    noted in the metadata (`error`) and by the tag "error", and goes on. A save that fails is logged.
    """

    def __init__(self, capture: Capture, thread_id: str, state: dict[str, Any], trigger: SnapshotTrigger | str) -> None:
        super().__init__(capture, as_trigger(trigger))
        self._thread_id = checks.thread_id(thread_id)
        self._state: dict[str, Any] = checks.kind(state, dict, "state")

    def __enter__(self) -> dict[str, Any]:
        super().__enter__()
        return self._state

    async def __aenter__(self) -> dict[str, Any]:
        await super().__aenter__()
        return self._state

    def _before(self, engine: CheckpointEngine) -> Pending:
        self._place = _place(self._capture, self._thread_id, self._state)
        return self._place.save(engine, self._trigger, None)

    def _after(self, engine: CheckpointEngine, error: BaseException | None) -> Pending:
        return self._place.save(engine, self._trigger, None, **noted(error))


class _Call(_Around):
    """One call of a decorated function, and what is known of it so far."""

    def __init__(
        self, capture: Capture, name: str, trigger: SnapshotTrigger, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Take our own keywords out of `kwargs`."""
        super().__init__(capture, trigger)
        thread_id = kwargs.pop("_checkpoint_thread_id", None)
        state = kwargs.pop("_checkpoint_state", None)
        self._result: dict[str, Any] = {}
        if self._on:
            taken = {"args": storable(list(args), _ABOVE), "kwargs": storable(kwargs, _ABOVE)}
            self._record: dict[str, Any] = {"name": name, **taken, "status": "started"}
            self._place = _place(capture, thread_id, state)

    def returned(self, result: Any) -> Any:
        """Take note of the result, and pass it on."""
        return self._kept("result", result)

    def ended(self, returned: Any) -> Any:
        """Take note of what a generator returned, and pass it on."""
        # As most generators do: it would tell nothing.
        if returned is None:
            return None
        return self._kept("returned", returned)

    def streams(self) -> None:
        """Make the result what will be heard."""
        self._result["result"] = []
        # An asynchronous stream may still wait while it is closed; a plain generator does not come to that.
        self._waits_when_closed = True

    def heard(self, item: Any) -> Any:
        """Take note of an item of a stream, as it is now, and pass it on."""
        if self._on:
            # Copied now, since whoever listens may change the item.
            self._result["result"].append(storable(item, _ABOVE + 1))
        return item

    def _kept(self, name: str, value: Any) -> Any:
        if self._on:
            self._result[name] = storable(value, _ABOVE)
        return value

    def _before(self, engine: CheckpointEngine) -> Pending:
        return self._save(engine, self._record)

    def _after(self, engine: CheckpointEngine, error: BaseException | None) -> Pending:
        if error is None:
            outcome: dict[str, Any] = {"status": "ok"}
        elif isinstance(error, GeneratorExit):  # whoever listened to the stream has heard enough
            outcome = {"status": "closed"}
        elif isinstance(error, asyncio.CancelledError):
            outcome = {"status": "cancelled", "error": described(error)}
        else:
            outcome = {"status": "error", "error": described(error)}
        return self._save(engine, self._record | outcome | self._result)

    def _save(self, engine: CheckpointEngine, record: dict[str, Any]) -> Pending:
        return self._place.save(engine, self._trigger, record, summary=f"{record['name']}: {record['status']}")


def _wrapper(function: Any, begin: Callable[[tuple[Any, ...], dict[str, Any]], _Call]) -> Any:
    """Return a function of the same kind that notes its calls."""

    def plain(*args: Any, **kwargs: Any) -> Any:
        with begin(args, kwargs) as call:
            return call.returned(function(*args, **kwargs))

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        async with begin(args, kwargs) as call:
            return call.returned(await function(*args, **kwargs))

    def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with begin(args, kwargs) as call:
            call.streams()
            return call.ended((yield from _Heard(function(*args, **kwargs), call)))

    async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        async with begin(args, kwargs) as call:
            call.streams()
            stream = function(*args, **kwargs)
            step = stream.__anext__()
            while True:
                try:
                    item = call.heard(await step)
                except StopAsyncIteration:
                    return
                try:
                    sent = yield item
                except GeneratorExit:
                    await stream.aclose()
                    raise
                # What the caller throws or sends is for the generator, which may go on with another item.
                except BaseException as exc:
                    step = stream.athrow(exc)
                else:
                    step = stream.asend(sent)

    kinds: list[tuple[Callable[[Any], bool], Any]] = [
        (inspect.iscoroutinefunction, coroutine),
        (inspect.isasyncgenfunction, async_generator),
        (inspect.isgeneratorfunction, generator),
    ]
    # An object may be called: then its class says what kind of call that is.
    # In this order: an async generator function is no coroutine function, but a class may claim to be
    # several.
    for is_kind, made in kinds:
        if is_kind(function) or is_kind(type(function).__call__):
            return made
    return plain


class _Heard:
    """A generator whose items are taken note of; `yield from` passes sends, throws and closes on to it."""

    def __init__(self, source: Generator[Any, Any, Any], call: _Call) -> None:
        self._source = source
        self._call = call

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._call.heard(next(self._source))

    def send(self, value: Any) -> Any:
        return self._call.heard(self._source.send(value))

    def throw(self, *error: Any) -> Any:
        return self._call.heard(self._source.throw(*error))

    def close(self) -> None:
        self._source.close()


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)
