"""Checkpoints out of a store: each is read with its writes, and decoded with the objects that are in memory already.

Objects that are not in memory are fetched a moment after the record. Others may have deleted the checkpoint meanwhile,
replaced it or written to it: then it is looked at again, and what was read first is not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.langgraph.decoding import Decoder
from everstep.langgraph.last_written import Line, Lines
from everstep.langgraph.saved import Saved, check_kind
from everstep.repository.repository import Repository, verified
from everstep.stores.protocol import Key, Loaded
from everstep.values import tree

T = TypeVar("T")

_LOOKS_MAX = 4  # at a checkpoint that others replace or write to meanwhile


class Reader:
    """Reads single checkpoints, and remembers what it read as the lines that the next ones are written over."""

    def __init__(self, repository: Repository, decoder: Decoder, lines: Lines) -> None:
        self._repository = repository
        self._store = repository.store
        self._memory = repository.memory
        self._decoder = decoder
        self._lines = lines

    async def get(self, thread_id: str, namespace: str, checkpoint_id: str | None, *, writes: bool) -> Saved | None:
        """Return a checkpoint (None: the head) with its values and, if they are asked for, its writes."""
        for _ in range(_LOOKS_MAX):
            cold = not self._lines.has(thread_id, namespace)
            loaded = await self._store.read(thread_id, namespace, checkpoint_id, objects=cold, writes=writes)
            if loaded is None:
                return None
            if loaded.objects:
                self._memory.add(verified(loaded.objects))
            line = self._lines.get(loaded.stored.record.key)
            if line is not None and line.base.digest == loaded.stored.digest:
                saved = await self.saved(loaded, line)
            else:
                saved = await self._read_and_remember(loaded)
            if saved is not None or checkpoint_id is not None:
                return saved
            # A head that was deleted just now: the one before it is the head.
        return None

    async def _read_and_remember(self, loaded: Loaded) -> Saved | None:
        """Return a checkpoint that was read, and remember its line. None: it was deleted since."""
        line = await self.decode(loaded, lambda found, objects: self._decoder.line(found.stored, objects))
        if line is None:
            return None
        saved = await self.saved(loaded, line)
        # Only now: what could not be read must not be continued as if it had been.
        if saved is not None and saved.stored.digest == line.base.digest:
            line.checked_by = self._decoder.rules
            self._lines.add(line)
        return saved

    async def writes_of(self, key: Key) -> list[tuple[str, str, Any]] | None:
        """Return the writes of a checkpoint, as `get` does, and read nothing else of it; None: it is not there."""
        loaded = await self._store.read(*key, writes=True)
        if loaded is None:
            return None
        return await self.decode(loaded, self._decoder.writes) if loaded.writes else []

    async def saved(self, loaded: Loaded, line: Line | None = None) -> Saved | None:
        """Return a checkpoint that was read, with its values; `line` is what is remembered of it.

        None: it was deleted since.
        """
        written = children_of_writes(loaded)
        if written:  # to have these at hand; those of the checkpoint mostly are
            await self._repository.objects(loaded.stored.family, written)
        return await self.decode(loaded, lambda found, objects: self._decoder.saved(found, line, objects))

    def saved_at_hand(self, loaded: Loaded) -> Saved | None:
        """Return a checkpoint that was read, with its values, if all of it is in memory, and right."""
        try:
            check_kind(loaded.stored)
            return self._decoder.saved(loaded, None, self._memory.contents)
        except EverstepError:
            return None  # `saved` fetches what is missing, and says what is wrong

    async def decode(self, loaded: Loaded, work: Callable[[Loaded, Mapping[bytes, tree.Content]], T]) -> T | None:
        """Return what `work` makes of a checkpoint and its objects, fetching what is not at hand.

        If it was replaced or written to between its record and its objects, `work` gets it as it is by now. None: it
        was deleted.
        """
        key = loaded.stored.record.key
        check_kind(loaded.stored)
        try:
            try:
                return work(loaded, self._memory.contents)
            except tree.MissingObject:
                objects = await self._repository.objects(loaded.stored.family, _children(loaded))
            for _ in range(_LOOKS_MAX - 1):
                try:
                    return work(loaded, objects)
                except tree.MissingObject:
                    again = await self._store.read(*key, objects=True, writes=True)
                if again is None:
                    return None
                loaded = again
                check_kind(loaded.stored)
                objects = await self._repository.objects(loaded.stored.family, _children(loaded))
                objects |= verified(loaded.objects)
            return work(loaded, objects)
        except CheckpointCorrupted as exc:
            raise exc.located(key.thread_id, key.checkpoint_id) from exc


def children_of_writes(loaded: Loaded) -> bytes:
    """Return the hashes of what the writes of a checkpoint need."""
    if not loaded.writes:
        return b""
    return b"".join([write.children for write in loaded.writes])


def _children(loaded: Loaded) -> bytes:
    """Return the hashes of what a checkpoint and its writes need."""
    return loaded.stored.record.children + children_of_writes(loaded)
