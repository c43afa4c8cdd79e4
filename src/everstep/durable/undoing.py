"""Compensation: the functions that take effects back, called when a run is rewound to before them."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, cast

from everstep.durable import journal, modules, notes
from everstep.durable.calling import AsyncFace, BlockingFace, Face, Options, call
from everstep.durable.entries import ENTRIES, Entry
from everstep.durable.live import repository_of, timeline_of
from everstep.durable.statuses import PAUSED
from everstep.errors import CheckpointNotFound, EffectUnknown, HeadMoved, InvalidInput, RunHeld, RunLost, RunNotFound
from everstep.history.adapter import adapter_of
from everstep.repository.claims import Claims
from everstep.repository.effects import Effect, Effects, host_of
from everstep.repository.repository import Repository
from everstep.stores.protocol import Key, Query, Stored
from everstep.timeline.store import StoreTimeline
from everstep.types import RUN_KIND

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

_known: OrderedDict[tuple[str, str, str], Callable[..., Any]] = OrderedDict()
"""Functions that steps of this process have named, by their effects and their names, the oldest first."""

# A worker names functions for as long as it lives, and each of them may hold on to much.
_KNOWN_MAX = 5_000
_LOCAL = "<locals>"
_LEASE_SECONDS = 30.0


def times_undone(before: Effect | None) -> int:
    """Return how often an effect has been taken back, so that it may be performed once more."""
    if before is None:
        return 0
    times = int(before.about["undone"])
    if before.about["status"] == "undone":
        times += 1
    return times


def performed_as(asked_as: str, times_undone: int) -> str:
    """Return the idempotency key of an effect, which is another one for each time that it shall happen."""
    return f"{asked_as}/{times_undone + 1}" if times_undone else asked_as


def remember(function: Callable[..., Any], key: str, asked_as: str) -> str:
    """Note what takes an effect back that is about to be performed, and return its name for other processes."""
    path = _path_of(function)
    _known[key, asked_as, path] = function
    while len(_known) > _KNOWN_MAX:
        _known.popitem(last=False)
    return path


def remember_again(function: Callable[..., Any], key: str, asked_as: str) -> None:
    """Note what takes an effect back, if this process has not performed it: its step was replayed."""
    if (key, asked_as, _path_of(function)) not in _known:
        remember(function, key, asked_as)


def _path_of(function: Callable[..., Any]) -> str:
    """Return the name by which another process finds a function, or one by which nobody finds anything."""
    module = str(getattr(function, "__module__", None) or type(function).__module__)
    name = str(getattr(function, "__qualname__", None) or type(function).__qualname__)
    # Of a method, a partial or a mock, or of a function in the place of another one, the name says too little:
    # what stands under it in the module would be called in its place.
    if _found(sys.modules.get(module), name) != function and _LOCAL not in name:
        name = f"{_LOCAL}.{name}"
    return f"{modules.lasting_name(module)}:{name}"


def _function(effect: Effect) -> Callable[..., Any] | None:
    """Return what takes an effect back: the very function that was named with it."""
    path = str(effect.about["undo"])
    known = _known.get((str(effect.about["key"]), str(effect.values["asked_as"]), path))
    if known is not None:
        return known
    module, _, name = path.partition(":")
    found = _found(modules.loaded(module), name)
    if not callable(found):
        return None
    return cast(Callable[..., Any], found)


def _found(module: Any, name: str) -> Any:
    """Return what a module has under a name; None if that is nothing."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


async def compensate(engine: CheckpointEngine, target: Key, *, is_blocking: bool) -> list[str]:
    """Take back the effects that a rewind to `target` leaves behind, the newest first, and return their keys.

    Each is noted as undone when its function has returned. If that is cut off, calling it again goes on.
    """
    repository = repository_of(engine)
    claims = Claims(repository, RunHeld, RunLost)
    thread_id = target.thread_id
    try:
        claim = await claims.take(thread_id, await claims.find(thread_id), _LEASE_SECONDS, is_task=False)
    except HeadMoved as exc:
        raise RunHeld(thread_id, "another host", 0) from exc
    # Behind the claim of the run: nobody may perform an effect while it is taken back.
    with claim.renewed():
        try:
            effects = Effects(repository, await host_of(repository, thread_id), claim)
            left = await _left_behind(repository, effects, target)
            if left:
                await _note(timeline_of(engine).behind(claim), thread_id, target)
            face: Face = AsyncFace()
            if is_blocking:
                face = BlockingFace()
            for effect, undo in left:
                await _undo(face, effects, effect, undo)
            return [str(effect.values["step"]) for effect, _ in left]
        finally:
            await claim.release("", None, begun=True)


async def _note(timeline: StoreTimeline, thread_id: str, target: Key) -> None:
    """Note on a run that it is being taken back.

    If that is cut off, it must not go on as if its effects stood: nobody takes it up until it is rewound.
    """
    about = {"op": "taken back", "key": "taken back", "to": target.checkpoint_id}
    changed = {"run_status": PAUSED, "run_waits": []}
    note = notes.Note(about, changed, f"Taken back to {target.checkpoint_id}")
    # The thread of a graph has no run: it goes on when somebody invokes the graph.
    with contextlib.suppress(RunNotFound):
        await notes.add(timeline, thread_id, lambda _: note)


async def _undo(face: Face, effects: Effects, effect: Effect, undo: Callable[..., Any]) -> None:
    # Its own key, the same in every try, so that a service can tell a repeated undo from a new one.
    key = f"{effect.values['step_key']}/undo"
    outcome = await call(face, undo, [_result(effect)], {}, Options(), key)
    if outcome.error is not None:
        raise outcome.error
    await effects.end(effect, "undone", {})


def _result(effect: Effect) -> Any:
    adapter = adapter_of(str(effect.about.get("kind", "")))
    if adapter is None:
        return effect.values.get("result")
    return adapter.unpacked(effect.values["form"], effect.values["result"])


async def _left_behind(
    repository: Repository, effects: Effects, target: Key
) -> list[tuple[Effect, Callable[..., Any]]]:
    """Return the effects that are performed after a checkpoint, the newest first, each with what takes it back."""
    found: list[tuple[Effect, Callable[..., Any]]] = []
    for effect in await _later_effects(repository, effects, target):
        if effect.about["status"] not in ("begun", "done") or effect.about["undo"] is None:
            continue
        # What may have happened is neither taken back nor left alone: somebody has to find out first.
        if effect.about["status"] == "begun":
            raise EffectUnknown(target.thread_id, str(effect.values["step"]))
        undo = _function(effect)
        # Before the first of them is undone: a rewind that takes back half of its effects would be the worst
        # of all.
        if undo is None:
            raise _not_loaded(effect)
        found.append((effect, undo))
    return found


def _not_loaded(effect: Effect) -> InvalidInput:
    path = str(effect.about["undo"])
    advice = "import its module first"
    if _LOCAL in path:
        advice = "other processes only find functions at the top level of a module, so rewind where the step was called"
    return InvalidInput(
        f"the effect {effect.values['step']!r} is taken back by {path}, which is not loaded here; {advice}. "
        "Nothing was done"
    )


async def _later_effects(repository: Repository, effects: Effects, target: Key) -> list[Effect]:
    head = await repository.store.read(target.thread_id)
    kept = await repository.store.read(*target)
    if kept is None:
        raise CheckpointNotFound(target.checkpoint_id, target.thread_id)
    if adapter_of(kept.stored.record.kind) is not None:
        # The ids of a graph's checkpoints say which is later; what ran from the checkpoint itself is to run again.
        return [effect for effect in await effects.list() if _is_of_graph_since(effect, target)]
    if head is None or head.stored.record.kind != RUN_KIND:
        raise RunNotFound(target.thread_id)
    before = {entry.key for entry in await _performed(repository, kept.stored)}
    performed = await _performed(repository, head.stored)
    # Those that a crash has cut off from the line of the run are newer than all that it has recorded.
    found = await _cut_off(repository, effects, target.thread_id, {entry.key for entry in performed})
    for entry in reversed(performed):
        if entry.key in before:
            continue
        effect = await _effect_of(effects, entry)
        if effect is not None:
            found.append(effect)
    return found


async def _effect_of(effects: Effects, entry: Entry) -> Effect | None:
    """Return the effect that a step has performed, or was given."""
    # A run that repeats effects keeps its own under the name of its thread. The family may have one of that
    # key, too: it was performed by another thread, and is not this one's to take back.
    own = await effects.find(f"{entry.checkpoint.thread_id}\n{entry.key}")
    return own or await effects.find(entry.key)


async def _cut_off(
    repository: Repository, effects: Effects, thread_id: str, performed: AbstractSet[str]
) -> list[Effect]:
    """Return the effects of a thread that none of its checkpoints has recorded, the newest first.

    A step with an effect is recorded with the next commit. What was rewound before is hidden, but recorded.
    """
    found: list[Effect] = []
    for effect in await effects.list():
        if effect.about["thread"] == thread_id and effect.values.get("step") not in performed:
            found.append(effect)
    if not found:
        return []
    listed = await repository.store.list_checkpoints(Query(thread_id=thread_id, hidden="also"))
    recorded: set[str] = set()
    for stored in listed:
        for about in stored.record.metadata.get(ENTRIES, ()):
            recorded.add(str(about["key"]))
    return [effect for effect in found if effect.values.get("step") not in recorded]


def _is_of_graph_since(effect: Effect, target: Key) -> bool:
    if effect.about["thread"] != target.thread_id:
        return False
    return str(effect.about.get("checkpoint", "")) >= target.checkpoint_id


async def _performed(repository: Repository, stored: Stored) -> list[Entry]:
    """Return the steps with effects on the line of a checkpoint, in their order."""
    if stored.record.kind != RUN_KIND:
        return []
    recorded = await journal.load(repository, stored)
    return [entry for entry in recorded.steps() if entry.about.get("effect") == "once"]
