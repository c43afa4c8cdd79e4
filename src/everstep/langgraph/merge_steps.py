"""What was written on a line of a thread since it parted from another: what a merge applies, step by step."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from everstep.history.ancestry import Ancestry
from everstep.history.checkpoint_tree import Ancestors
from everstep.stores.protocol import Key, Place, Record, Store, Stored, Write

_STEPS_MAX = 10_000


class Piece(NamedTuple):
    """A stretch of a line without merges, and what was written on it, step by step."""

    start: Stored
    end: Stored
    steps: list[list[Write]]


class Steps(NamedTuple):
    """What a thread wrote."""

    pieces: Sequence[Piece]
    is_own: bool
    """Whether nothing is missing, and what came by merges is known to the ancestor."""

    @property
    def since(self) -> str:
        """The id of the checkpoint from which on."""
        return self.pieces[0].start.record.key.checkpoint_id

    @property
    def first(self) -> Sequence[Write]:
        """What was pending there."""
        return next(iter(self.pieces[0].steps), ())

    @property
    def writes(self) -> list[list[Write]]:
        return [step for piece in self.pieces for step in piece.steps]


class PartedLine:
    """The line of one thread, theirs, since it parted from another, ours."""

    def __init__(self, store: Store, ours: Stored, theirs: Stored, bases: Sequence[Place], ancestry: Ancestry) -> None:
        """`bases` are the common ancestors; what these know of is on both lines."""
        self._store = store
        self._ours = ours
        self._theirs = theirs
        self._ancestry = ancestry
        self._known = Ancestors(bases)

    async def steps(self, names: Collection[str]) -> Steps:
        """Return what theirs wrote to these channels and the ancestor has not.

        That is what was written on theirs' own line, up to a checkpoint that the ancestor knows of.
        """
        pieces = [Piece(self._theirs, self._theirs, [])]
        seen = set[Key]()
        is_own = True
        while not await self._is_known((child := pieces[-1].start).place):
            parents = child.record.parents
            if not parents or parents[0] in seen or len(seen) >= _STEPS_MAX:
                break
            seen.add(parents[0])
            loaded = await self._store.read(*parents[0], writes=True)
            if loaded is None:
                break
            if len(parents) > 1:
                is_own = is_own and await self._are_known(parents[1:])
                # What was pending before a merge ran again after it, and is no part of either piece.
                pieces.append(Piece(loaded.stored, loaded.stored, []))
                continue
            # A branch begins with its origin once more: that is no step.
            if parents[0].checkpoint_id != child.record.key.checkpoint_id:
                pieces[-1].steps.insert(0, [write for write in loaded.writes if write.channel in names])
            pieces[-1] = pieces[-1]._replace(start=loaded.stored)
        is_own = is_own and await self._is_known(pieces[-1].start.place)
        return Steps(pieces[::-1], is_own=is_own)

    async def _are_known(self, keys: Sequence[Key]) -> bool:
        """Whether these checkpoints are stored, and the ancestor has all of them among its own."""
        others = await self._store.read_many(keys)
        if len(others) != len(keys):
            return False
        for other in others:
            if not await self._is_known(other.stored.place):
                return False
        return True

    async def _is_known(self, place: Place) -> bool:
        """Whether the ancestor has a checkpoint among its own."""
        return await self._ancestry.walk(self._known.hold(place))

    async def shared_writes(self, steps: Steps) -> Sequence[Write] | None:
        """Return what was pending where the threads parted and ours has taken in, too; None: unknown."""
        if not any(steps.first):
            return ()
        return await self._pending(steps.since)

    async def _pending(self, since: str) -> Sequence[Write] | None:
        """Return the writes that were pending where the threads parted, if ours went on with them; None: unknown."""
        found = list[Write]()
        seen = set[Key]()
        record = self._ours.record
        line = deque((key, record) for key in record.parents)
        while line and len(seen) < _STEPS_MAX:
            key, following = line.popleft()
            is_applied = key.checkpoint_id == since and _takes_in(following, since)
            # Ids grow along a line: what comes before `since` need not be looked at.
            if not is_applied and (key in seen or key.checkpoint_id <= since):
                continue
            seen.add(key)
            loaded = await self._store.read(*key, writes=is_applied)
            if loaded is None:
                continue
            if is_applied:
                if not await self._is_as_it_was(key):
                    return None
                found += loaded.writes
            record = loaded.stored.record
            line.extend((parent, record) for parent in record.parents)
        return found

    async def _is_as_it_was(self, key: Key) -> bool:
        """Whether no writes of a checkpoint were undone since ours went on from it, which another thread may do."""
        if key.thread_id == self._ours.record.key.thread_id:
            return True
        thread = await self._store.thread(key.thread_id)
        if thread is None:
            return True
        hidden = itertools.chain(*thread.hidden.values())
        return not any((one.namespace, one.writes_of) == key[1:] for one in hidden)


def _takes_in(record: Record, parent_id: str) -> bool:
    """Whether a checkpoint was made with what was pending at its parent.

    Neither a merge nor a new input is, nor the first checkpoint of a branch, which is its origin once more.
    """
    if record.key.checkpoint_id == parent_id:
        return False
    return len(record.parents) == 1 and record.metadata.get("source") in ("loop", "update")
