"""What a deletion means, once, for the stores that run it inside the process.

`delete` works on the small Removal interface, which memory, SQLite and PostgreSQL supply; the script of the Redis store
does the same on the server.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from everstep.stores.protocol import Deleted, Key
from everstep.stores.transaction import Line


class Deletion(NamedTuple):
    """What is to be deleted: see `Store.delete`."""

    thread_id: str
    keys: Collection[Key] | None = None
    before_step: int | None = None
    spare: bool = False
    operations: Collection[int] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is about everything that the thread has."""
        return self.keys is None and self.before_step is None

    def named(self, namespace: str) -> set[str] | None:
        """Return which checkpoints of a namespace are named; None: none is, so that all are meant."""
        if self.keys is None:
            return None
        return {key.checkpoint_id for key in self.keys if key[:2] == (self.thread_id, namespace)}


class Candidate(NamedTuple):
    """A stored checkpoint that was named to be deleted."""

    checkpoint_id: str
    seq: int
    added_bytes: int
    is_protected: bool
    """It is the head, is pinned, or a living branch began there."""


class Removal(Protocol):
    """Rows of one store, inside one transaction, as `delete` works on them. Nothing is unpacked on the way."""

    def family(self, thread_id: str) -> str | None: ...
    def lines(self, thread_id: str) -> Sequence[Line]:
        """Return all namespaces of a thread, their heads left aside: one that is damaged can be deleted too."""

    def candidates(
        self,
        line: Line,
        *,
        ids: Collection[str] | None = None,
        seqs: Collection[int] | None = None,
        before_step: int | None = None,
    ) -> Sequence[Candidate]:
        """Return what is stored of these checkpoints, or of those below a step, or (with none of them) all."""

    def discard(self, line: Line, gone: Sequence[Candidate]) -> None:
        """Delete checkpoints, and nothing else, and note their bytes as garbage."""

    def discard_all(self, line: Line) -> int:
        """Delete all checkpoints of a namespace with all its writes, and return how many checkpoints there were."""

    def written(self, line: Line) -> Collection[str]:
        """Return the ids that have pending writes, whether a checkpoint of that id is stored or not."""

    def discard_writes(self, line: Line, ids: Collection[str]) -> None:
        """Delete all pending writes of these ids, hidden ones included."""

    def fall_back(self, line: Line) -> None:
        """If the head is gone, move it to the newest checkpoint left that is not hidden, or to none.

        The move counts a generation and turns the line, but it does not make the thread active.
        """

    def drop_idle_stretches(self, line: Line) -> None:
        """Drop the hidden stretches of a namespace that have nothing left to hide."""

    def is_empty(self, line: Line) -> bool:
        """Whether a namespace has neither checkpoints nor pending writes."""

    def drop_line(self, line: Line) -> None:
        """Drop an empty namespace. What its segments followed stays with the family."""

    def drop_operations(self, thread_id: str, seqs: Collection[int]) -> None: ...
    def drop_thread(self, thread_id: str) -> None:
        """Drop a thread without namespaces: its log, its states in common, and its count at its origin."""

    def drop_family(self, family: str) -> bool:
        """Drop a family that has no threads, with all its objects, and return whether that was so."""


def delete(tx: Removal, deletion: Deletion) -> Deleted:
    """Delete checkpoints of a thread, or all of it. See `Store.delete`."""
    thread_id = deletion.thread_id
    family = tx.family(thread_id)
    if family is None:
        return Deleted(0, frozenset())
    # First, while the thread is still there: its log goes with it.
    tx.drop_operations(thread_id, deletion.operations)
    count = 0
    for line in tx.lines(thread_id):
        count += _delete_from(tx, line, deletion)
        _settle(tx, line)
    # Asked again, since those that became empty are gone by now.
    if not tx.lines(thread_id):
        tx.drop_thread(thread_id)
    if tx.drop_family(family) or not count:
        return Deleted(count, frozenset())
    return Deleted(count, frozenset({family}))


def doomed_keys(tx: Removal, deletion: Deletion) -> list[Key]:
    """Return what `delete` would delete, the oldest first, then the writes whose checkpoint is not stored."""
    ages: dict[Key, int] = {}
    early: list[Key] = []
    for line in tx.lines(deletion.thread_id):
        found = _candidates(tx, line, deletion, deletion.named(line.namespace))
        for each in _unspared(found, deletion.spare):
            ages[Key(deletion.thread_id, line.namespace, each.checkpoint_id)] = each.seq
        if deletion.is_whole:
            stored = {each.checkpoint_id for each in found}
            for name in tx.written(line):
                if name not in stored:
                    early.append(Key(deletion.thread_id, line.namespace, name))
    return sorted(ages, key=ages.__getitem__) + early


def delete_some(tx: Removal, deletion: Deletion) -> int:
    """Delete checkpoints, and leave the thread and its namespaces even if they are empty then: `delete` drops them."""
    count = 0
    for line in tx.lines(deletion.thread_id):
        count += _delete_from(tx, line, deletion)
        tx.fall_back(line)
        tx.drop_idle_stretches(line)
    return count


def _delete_from(tx: Removal, line: Line, deletion: Deletion) -> int:
    """Delete from one namespace and return how many checkpoints went."""
    named = deletion.named(line.namespace)
    if named is not None and not named:
        return 0
    # The whole namespace, and nothing to look at: a store may have a quicker way.
    if deletion.is_whole and not deletion.spare:
        return tx.discard_all(line)
    found = _candidates(tx, line, deletion, named)
    gone = _unspared(found, deletion.spare)
    if gone:
        tx.discard(line, gone)
    gone_names = [each.checkpoint_id for each in gone]
    stay = {each.checkpoint_id for each in found}.difference(gone_names)
    # Writes go with their checkpoint. Early ones, whose checkpoint is not stored, have no step.
    doomed: Collection[str]
    if named is not None:
        doomed = named
    elif deletion.before_step is not None:
        doomed = gone_names
    else:
        doomed = tx.written(line)
    tx.discard_writes(line, [name for name in doomed if name not in stay])
    return len(gone)


def _candidates(tx: Removal, line: Line, deletion: Deletion, named: Collection[str] | None) -> Sequence[Candidate]:
    """Return the checkpoints of a namespace that a deletion is about; what is named goes whatever its step is."""
    if named is not None:
        return tx.candidates(line, ids=named)
    return tx.candidates(line, before_step=deletion.before_step)


def _unspared(found: Sequence[Candidate], spare: bool) -> Sequence[Candidate]:
    """Return what is to go of these: all, or with `spare` what is not protected."""
    if not spare:
        return found
    return [each for each in found if not each.is_protected]


def discard_each(tx: Removal, line: Line) -> int:
    """What `Removal.discard_all` does, for a store that has no quicker way."""
    found = tx.candidates(line)
    if found:
        tx.discard(line, found)
    tx.discard_writes(line, tx.written(line))
    return len(found)


def _settle(tx: Removal, line: Line) -> None:
    """After deletion: drop what nothing is left of, and let the head fall back if it is gone."""
    # Before the head falls back, which looks at what is hidden.
    tx.drop_idle_stretches(line)
    if tx.is_empty(line):
        tx.drop_line(line)
    else:
        tx.fall_back(line)


def prune(tx: Removal, line: Line, seqs: Sequence[int]) -> None:
    """Delete what is not protected of these checkpoints, with their writes.

    It is part of a commit and must be quick: what hides nothing any more is dropped by the next `delete`. The head is
    protected, so none falls back.
    """
    gone = [each for each in tx.candidates(line, seqs=seqs) if not each.is_protected]
    if gone:
        tx.discard(line, gone)
        tx.discard_writes(line, [each.checkpoint_id for each in gone])
