"""What a live thread has loaded and saved, so that a save can tell its own head from one that somebody else has made.

A save is prepared with the values of that moment. It may be put on top of a head that this live thread has made and
whose values it knows whole; any other head holds something that others did. Then what this live thread has changed
since is done to that head's values (`rebase`), and once that is committed the live thread takes over what others did.

Saves of one live thread may be under way at the same time, from several tasks and threads. Each counts what it holds
from an epoch: how often the live thread had taken over changes of others when the save was prepared. Two saves can be
compared if there is an epoch in which both are known.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from everstep.errors import CommitUnknown, EverstepError, HeadMoved
from everstep.history import rebase
from everstep.history.rebase import Conflict, Tools, Values
from everstep.runtime import forks

if TYPE_CHECKING:
    from everstep.repository.step import Step

_DOUBTFUL_MAX = 8  # saves that may be stored or not, since their answer was lost


class Save:
    """One save of a live thread, from its preparation on."""

    def __init__(
        self, ledger: Ledger, number: int, values: Sequence[Any], packed: bytes | None, tools: Tools = "merge"
    ) -> None:
        self.values = values
        """Messages, state, results of tools, next node: as they were then."""
        self.packed = packed
        """The same as bytes; None: something in them cannot be stored, and the save will say so."""
        self.checkpoint_id: str | None = None
        self.number = number
        self.epoch = ledger.epoch
        self.tools = tools
        self.known: dict[int, bytes] = {ledger.epoch: packed} if packed is not None else {}
        """By epoch: what the live thread itself held, in the values it had after that."""
        self.whole: int | None = ledger.epoch
        """The epoch in which this is all that the checkpoint holds; None: others have added what is not known yet."""
        self.result = packed
        """What the checkpoint holds."""
        self.landed_before = 0
        self._ledger = ledger
        self._step: Step | None = None

    @property
    def thread_id(self) -> str:
        return self._ledger.thread_id

    def contained_in(self, later: Values, held: Values) -> Values:
        """Return what it has to say after one that was prepared later: all that it held is in there, but its record."""
        return later._replace(tools_result=held.tools_result) if self.tools == "keep" else later

    def begin(self, step: Step) -> None:
        """Note that it is under way, as a step: that names the checkpoint."""
        self._step = step
        self._ledger.begin(self)

    def give_up(self, error: BaseException) -> None:
        """Note that it has failed. Unless it is certain that nothing was written, its checkpoint may turn up."""
        is_certain = isinstance(error, EverstepError) and not isinstance(error, CommitUnknown)
        self._ledger.give_up(self, is_certain=is_certain)

    def land(self, checkpoint_id: str) -> None:
        """Note that it is stored."""
        self._ledger.land(self, checkpoint_id)

    def made(self, checkpoint_id: str) -> bool:
        """Whether a checkpoint is this save."""
        if self.checkpoint_id is not None or self._step is None:
            return self.checkpoint_id == checkpoint_id
        return self._step.named(checkpoint_id)

    @property
    def begins_thread(self) -> bool:
        """Whether there was nothing in the thread when it was looked at last."""
        return self._ledger.is_empty

    def check_follows(self, head_id: str | None) -> None:
        """Raise HeadMoved unless the values, as they were prepared, may be put on top of that head."""
        self._ledger.check_follows(self, head_id)

    async def onto(self, head_id: str | None, values: Values, recent: Callable[[], Awaitable[Sequence[str]]]) -> Values:
        """Return the values to be put on top of a head; HeadMoved if both have changed the same.

        `recent` gives the ids of the thread's last checkpoints, newest first: asked if another save of this live
        thread may be among those that the head follows.
        """
        return await self._ledger.onto(self, head_id, values, recent)


class Ledger:
    """The saves of one live thread."""

    def __init__(self, thread_id: str) -> None:
        self.thread_id = thread_id
        self.epoch = 0
        self._lock = threading.RLock()
        self._numbers = self._landed = self._step = 0
        self._prepared: weakref.WeakSet[Save] = weakref.WeakSet()
        """All that are not done with yet."""
        self._under_way: list[Save] = []
        self._doubtful: deque[Save] = deque(maxlen=_DOUBTFUL_MAX)
        self._last = Save(self, 0, (), None)
        """What was loaded, or saved last."""
        self._fork_guard = forks.hold(self._lock, 0)

    @property
    def checkpoint_id(self) -> str | None:
        """The checkpoint last loaded or saved."""
        return self._last.checkpoint_id

    def load(self, checkpoint_id: str | None, step: int, packed: bytes | None) -> None:
        """Begin with a head, or (None) with an empty thread."""
        self._last = Save(self, 0, (), packed)
        self._last.checkpoint_id, self._step = checkpoint_id, step

    @property
    def is_empty(self) -> bool:
        """Whether nothing was loaded and nothing saved yet."""
        return self._last.checkpoint_id is None

    def is_saved(self, save: Save) -> bool:
        """Whether what a save holds is what was saved or loaded last."""
        return save.packed is not None and self._last.known.get(save.epoch) == save.packed

    def prepare(self, freeze: Callable[[], tuple[Any, bytes | None]], tools: Tools = "merge") -> Save:
        """Return a save of the values that `freeze` returns now."""
        with self._lock:
            self._numbers += 1
            values, packed = freeze()
            save = Save(self, self._numbers, values, packed, tools)
            self._prepared.add(save)
            return save

    def begin(self, save: Save) -> None:
        with self._lock:
            self._under_way.append(save)
            save.landed_before = self._landed

    def give_up(self, save: Save, *, is_certain: bool) -> None:
        with self._lock:
            self._under_way.remove(save)
            if not is_certain:
                self._doubtful.append(save)

    def land(self, save: Save, checkpoint_id: str) -> None:
        step = int(checkpoint_id.rsplit("-", 2)[1])
        with self._lock:
            self._under_way.remove(save)
            save.checkpoint_id = checkpoint_id
            # Of saves at the same time the one with the higher step is the head, whichever is heard of first.
            if save.landed_before == self._landed or step > self._step:
                self._last, self._step = save, step
            self._landed += 1

    # -- whose head it is

    def check_follows(self, save: Save, head_id: str | None) -> None:
        with self._lock:
            found = self._find(head_id)
            if found is None or found.whole != save.epoch:
                raise HeadMoved(self.thread_id, self._last.checkpoint_id, head_id)

    def _find(self, checkpoint_id: str | None) -> Save | None:
        """Return the save that made a checkpoint, or the one that was loaded; None: somebody else made it."""
        if checkpoint_id is None or checkpoint_id == self._last.checkpoint_id:
            return self._last if checkpoint_id == self._last.checkpoint_id else None
        for save in (*self._under_way, *self._doubtful):
            if save.made(checkpoint_id):
                return save
        return None

    async def onto(
        self, save: Save, head_id: str | None, theirs: Values, recent: Callable[[], Awaitable[Sequence[str]]]
    ) -> Values:
        if head_id is None:
            # All that there was has been deleted: there is nothing to put together.
            raise HeadMoved(self.thread_id, self._last.checkpoint_id, None)
        with self._lock:
            base = self._find(head_id)
            may_be_others = len(self._under_way) > 1 or bool(self._doubtful)
        if base is None and may_be_others:
            base = self._newest_of(await recent(), save)
        with self._lock:
            return self._merged(save, base or self._last, head_id, theirs)

    def _newest_of(self, ids: Sequence[str], save: Save) -> Save | None:
        with self._lock:
            for checkpoint_id in ids:
                found = self._find(checkpoint_id)
                if found is not None and found is not save:
                    return found
        return None

    def _merged(self, save: Save, base: Save, head_id: str, theirs: Values) -> Values:
        epochs = save.known.keys() & base.known.keys()
        if not epochs:
            raise HeadMoved(self.thread_id, base.checkpoint_id, head_id)
        epoch = max(epochs)
        before = Values.unpacked(base.known[epoch])
        ours = Values.unpacked(save.known[epoch])
        if save.number < base.number:
            ours = save.contained_in(before, ours)
            save.known = {epoch: ours.packed()}
            save.number = base.number  # it holds now what that one does
        try:
            merged = rebase.merge(before, ours, theirs, save.tools)
        except Conflict as exc:
            raise HeadMoved(self.thread_id, base.checkpoint_id, head_id, exc.names) from None
        save.result = merged.packed()
        save.whole = epoch if save.result == save.known[epoch] else None
        return merged

    # -- taking over what others did

    def take_over(self, save: Save, current: Values, tools: Tools) -> Values:
        """Do to the live thread's own values what others did before a save, and return them.

        Lists and dicts are changed in place. Where this meets what the live thread has changed meanwhile, nothing is
        done: its next save will say so.
        """
        with self._lock:
            before = save.known.get(self.epoch)
            if save.whole is not None or before is None or save.result is None or save is not self._last:
                return current
            try:
                theirs = rebase.plan(Values.unpacked(before), current, Values.unpacked(save.result), tools)
            except Exception:  # a conflict, or a value that cannot be encoded
                return current
            values = theirs.apply(current)
            self._carry_over(save, before, save.result)
            self.epoch += 1
            save.known[self.epoch], save.whole = save.result, self.epoch
            return values

    def _carry_over(self, landed: Save, before: bytes, result: bytes) -> None:
        """Let saves under way be known in the epoch that begins: those prepared from now on are compared with them."""
        for save in list(self._prepared):
            if save is landed:
                continue
            held = save.known.get(self.epoch)
            if held is None:
                continue
            base = Values.unpacked(before)
            ours = Values.unpacked(held)
            theirs = Values.unpacked(result)
            if save.number < landed.number:
                ours = save.contained_in(base, ours)
            try:
                merged = rebase.merge(base, ours, theirs, save.tools)
            except Conflict:
                continue  # it will meet the same conflict
            save.known[self.epoch + 1] = merged.packed()
