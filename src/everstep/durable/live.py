"""The live thread of a run: its values, and the saves that stand behind the run's claim.

When a run is taken up, its code runs again from the beginning, and builds again what it put into messages and state.
So these begin as they were when the run began. What the head holds, from this run and from others, is put together
with them when there is something to save for the first time.
"""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from everstep.capture.decorators import Capture
from everstep.capture.live import Live, Pending, frozen, unfiltered
from everstep.config import SnapshotTrigger
from everstep.errors import RunLost, UnsupportedByBackend
from everstep.history.rebase import Values
from everstep.repository.claims import Claim
from everstep.repository.repository import Repository
from everstep.stores.protocol import Stored
from everstep.timeline.store import StoreTimeline
from everstep.values import codec

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine


def timeline_of(engine: CheckpointEngine) -> StoreTimeline:
    """Return the timeline of an engine that is on a store."""
    timeline = engine._timeline
    if not isinstance(timeline, StoreTimeline):
        raise UnsupportedByBackend("durable runs need one of Everstep's own stores, not a backend of your own")
    return timeline


def repository_of(engine: CheckpointEngine) -> Repository:
    """Return how an engine gets at its store."""
    return timeline_of(engine).repository


class RunLive(Live):
    """What a run holds, as its code sees it. Decorated calls inside the run are saved here."""

    def __init__(self, capture: Capture, thread_id: str, claim: Claim) -> None:
        super().__init__(capture, thread_id, None)
        self._claim = claim
        self._behind: dict[int, CheckpointEngine] = {}
        self._base: Values | None = None
        """What there was when the run began, as long as nothing is saved in this process."""
        self._stored: RunLive | None = None
        """What the head holds, while the code has not caught up with it."""
        self.is_replaying = False
        """Whether the code is behind what is recorded."""
        self.run_metadata: Mapping[str, Any] = {}
        """What the metadata of every checkpoint says of the run."""

    def begin(self, values: Sequence[Any], next_node: str) -> None:
        """Begin with these values, which were there when the run began."""
        messages, state, tools_result = values
        self._set(Values(messages, state, tools_result, next_node))
        # Packed and unpacked, which makes a copy: the code changes the values that it holds.
        self._base = Values.unpacked(Values(messages, state, tools_result, next_node).packed())

    def follow(self, checkpoint_id: str | None, step: int) -> None:
        """Take the values that are held for those of that checkpoint."""
        self._base = None
        self._ledger.load(checkpoint_id, step, self._frozen()[1])

    @contextlib.contextmanager
    def opened(self, engine: CheckpointEngine) -> Iterator[None]:
        """Let decorated calls find it."""
        self._entered = True
        self._open()
        try:
            yield
        finally:
            # What is not saved by now is made again when the run is taken up. So the coroutine that would save what
            # is left is closed unused: a run saves with its steps only.
            self._leave(engine, None).close()

    async def record(
        self,
        engine: CheckpointEngine,
        trigger: SnapshotTrigger,
        results: dict[str, Any] | None,
        *,
        is_caught_up: bool,
        **about: Any,
    ) -> str:
        """Save what there is now with what the run has to record; None: nothing with a value.

        As long as the code has not caught up with what is stored, it has not made all of that again. What is recorded
        then is saved with the stored values: what the code makes later would else be there twice.
        """
        held = self
        if self._base is not None and not is_caught_up:
            held = await self._as_stored(engine)
        else:
            await self._settle(engine)
        return await held._record_held(engine, trigger, results, about)

    async def _as_stored(self, engine: CheckpointEngine) -> RunLive:
        """Return one that holds what the head holds, apart from what the code has."""
        # Kept, since all that a long run does side by side may be recorded in this way.
        if self._stored is None:
            stored = RunLive(self._capture, self.thread_id, self._claim)
            await stored.drop_changes(engine)
            self._stored = stored
        self._stored.run_metadata = self.run_metadata
        return self._stored

    async def _record_held(
        self, engine: CheckpointEngine, trigger: SnapshotTrigger, results: dict[str, Any] | None, about: dict[str, Any]
    ) -> str:
        before = (self.tools_result, self._record)
        if results is not None:
            self.tools_result = self._record = results
        now = self._now(None, "keep" if results is not None else None)
        about["metadata"] = {**self.run_metadata, **about.get("metadata", {})}
        try:
            return await self._write(self.behind_claim(engine)._save_live, now, trigger, about | {"kind": "run"})
        except BaseException:
            # Results that could not be saved must not make the next save fail, too.
            self.tools_result, self._record = before
            raise

    async def drop_changes(self, engine: CheckpointEngine) -> None:
        """Hold what the head holds, in the place of what the code has made of it."""
        stored, values = await self._load_head(engine)
        self.begin(values, stored.record.next_node)
        self.follow(stored.record.key.checkpoint_id, stored.record.step)

    async def _load_head(self, engine: CheckpointEngine) -> tuple[Stored, Sequence[Any]]:
        found = await repository_of(engine).load(self.thread_id)
        if found is None:
            raise RunLost(self.thread_id)
        return found

    def save_call(
        self,
        engine: CheckpointEngine,
        trigger: SnapshotTrigger,
        state: dict[str, Any] | None,
        tools_result: dict[str, Any] | None,
        about: dict[str, Any],
    ) -> Pending:
        """Return the save of a decorated call. While the run is replayed it is there already."""
        # The call was saved when it was made for the first time.
        if self.is_replaying:
            return _nothing()
        behind = self.behind_claim(engine)
        return self._settled_call(behind, super().save_call, trigger, state, tools_result, about)

    async def _settled_call(self, engine: CheckpointEngine, save_call: Any, *args: Any) -> str:
        await self._settle(engine)
        made: str = await save_call(engine, *args)
        return made

    def behind_claim(self, engine: CheckpointEngine) -> CheckpointEngine:
        """Return an engine as one whose saves are taken only as long as the claim is this run's."""
        found = self._behind.get(id(engine._timeline))
        if found is None:
            # A copy of the engine, since the one of the caller must go on saving without this run's claim.
            found = unfiltered(copy.copy(engine))
            found._timeline = timeline_of(engine).behind(self._claim)
            self._behind[id(engine._timeline)] = found
        return found

    async def _settle(self, engine: CheckpointEngine) -> None:
        """Put what the head holds together with what the code has made again."""
        base = self._base
        if base is None:
            return
        stored, (messages, state, tools_result) = await self._load_head(engine)
        theirs = Values(messages, state, tools_result, stored.record.next_node)
        if self._base is None:
            return  # another save was faster
        self._base = self._stored = None
        held = Values(self.messages, self.state, self.tools_result, self.next_node)
        merged = put_together(base, held, theirs)
        self._ledger.load(stored.record.key.checkpoint_id, stored.record.step, frozen(list(theirs))[1])
        self._fill(merged)

    def _set(self, values: Values) -> None:
        self.messages, self.state, self.tools_result, self.next_node = values

    def _fill(self, values: Values) -> None:
        """Hold these values, in the same list and dicts."""
        # The code may hold these very objects, so they are filled and not replaced.
        self.messages[:] = values.messages
        for mine, new in ((self.state, values.state), (self.tools_result, values.tools_result)):
            if mine is not new:
                mine.clear()
                mine.update(new)
        self.next_node = values.next_node


async def _nothing() -> str:
    return ""


def put_together(base: Values, made_again: Values, stored: Values) -> Values:
    """Return what a run holds after it was taken up; pure.

    `base` is what there was when it began, `made_again` what its code has made of that in this process, and `stored`
    the head: what the code had made of it before, and what others have added.
    """
    next_node = made_again.next_node
    if next_node == base.next_node:
        # The code has not touched it: what others have set counts.
        next_node = stored.next_node
    return Values(
        _messages(base.messages, made_again.messages, stored.messages),
        _state(base.state, made_again.state, stored.state),
        dict(stored.tools_result),
        next_node,
    )


def _messages(base: Sequence[Any], made_again: Sequence[Any], stored: Sequence[Any]) -> list[Any]:
    """Return the stored messages, and those of the run's code that are not among them yet."""
    old = [codec.pack(message) for message in base]
    mine = [codec.pack(message) for message in made_again]
    # If the code has changed what was there, what it makes of it is what counts.
    if mine[: len(old)] != old:
        return list(made_again)
    # Counted and not only looked up: the same message may well stand there twice.
    there = collections.Counter([codec.pack(message) for message in stored[len(old) :]])
    added: list[Any] = []
    for message, packed in zip(made_again[len(old) :], mine[len(old) :], strict=True):
        if there[packed] > 0:
            there[packed] -= 1
        else:
            added.append(message)
    return [*stored, *added]


def _state(base: Mapping[Any, Any], made_again: Mapping[Any, Any], stored: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the stored state with the keys that the run's code has changed."""
    found = dict(stored)
    for key, value in made_again.items():
        if key not in base or codec.pack(value) != codec.pack(base[key]):
            found[key] = value
        elif key in found and codec.pack(found[key]) == codec.pack(value):
            # Equal to what is stored, but the object that the code holds: what it changes later is seen.
            found[key] = value
    for key in base:
        if key not in made_again:
            found.pop(key, None)
    return found
