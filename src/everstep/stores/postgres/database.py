"""The tables of one store, through the connections of one process: what is read, committed, and seen of heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

import psycopg

from everstep.errors import BaseGone, CommitUnknown, HeadMoved, StoreError
from everstep.runtime.calls import tried_again
from everstep.stores.abilities import Origin
from everstep.stores.heads import SeenHead
from everstep.stores.postgres import beginnings
from everstep.stores.postgres.forms import KnownHead
from everstep.stores.postgres.pool import RACES, Pauses, is_lost, may_be_done, rolled_back, translated
from everstep.stores.postgres.puts import Prepared, Refused, noting, prepare
from everstep.stores.postgres.rows import Rows
from everstep.stores.postgres.transactions import Transactions
from everstep.stores.postgres.turn import Turn
from everstep.stores.protocol import ANY, BaseRef, Change, Draft, Key, Loaded, Object, Part, Stored, Write
from everstep.stores.records import pack_record, record_digest
from everstep.stores.transaction import apply, apply_writes

T = TypeVar("T")
_ABSENT_MAX = 10_000


class Database(Transactions):
    """The tables of one store, through the connections of one process."""

    # -- reading

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool, deadline: float
    ) -> Loaded | None:
        line = thread_id, namespace
        since = self._heads.get(line)
        found = self.read(lambda rows: rows.load(thread_id, namespace, checkpoint_id, objects, writes), deadline)
        if found is None:
            self._check_missing(line, since, deadline)
            if checkpoint_id is None:
                self._note_absent(line)
            return None
        loaded, known = found
        stored = loaded.stored
        self._check_seen(line, stored.family, loaded.generation, since, deadline)
        if checkpoint_id is None:
            self._heads.note(line, stored.family, loaded.generation, known, since, stored.seq)
        return loaded

    def _note_absent(self, line: tuple[str, str]) -> None:
        """Note a line that has no head, so that its first commit need not look for one."""
        if len(self._absent) >= _ABSENT_MAX:
            self._absent.clear()
        self._absent.add(line)

    def origin(self, checkpoint_id: str, deadline: float) -> Origin | None:
        """Return what a branch begins with; None: ask for it one by one."""
        found = self.read(lambda rows: rows.origin(checkpoint_id), deadline)
        if found is None:
            return None
        loaded, top = found
        stored = loaded.stored
        seen = self._heads.get(stored.record.key[:2])
        # Either the server has lost something, or another thread of this process has written meanwhile.
        if seen is not None and (seen.family != stored.family or seen.generation > loaded.generation):
            return None
        return Origin(stored, top)

    def load_many(self, keys: Sequence[Key], writes: bool, deadline: float) -> list[Loaded]:
        # Noted before the read: what others write meanwhile must not look like a loss.
        since = {key[:2]: self._heads.get(key[:2]) for key in keys}
        found = self.read(lambda rows: rows.load_many(keys, writes), deadline)
        for loaded in found:
            line = loaded.stored.record.key[:2]
            self._check_seen(line, loaded.stored.family, loaded.generation, since.pop(line, None), deadline)
        for line, seen in since.items():
            self._check_missing(line, seen, deadline)
        return found

    def about_thread(self, thread_id: str, work: Callable[[Rows], T], deadline: float, *, is_view: bool = False) -> T:
        """Read something about a thread. If there is nothing, and there was something before, look for a loss."""
        seen = self._heads.any_of(thread_id)
        found = self.view(work, deadline) if is_view else self.read(work, deadline)
        if not found and seen is not None:
            namespace, since = seen
            self._check_missing((thread_id, namespace), since, deadline)
        return found

    def _check_missing(self, line: tuple[str, str], since: SeenHead[KnownHead] | None, deadline: float) -> None:
        """After something of a line was not found that had been seen: HeadRegressed if the server lost the line."""
        if since is None:
            return
        found = self.read(lambda rows: rows.generation_seen(*line), deadline)
        if found is not None:
            self._check_seen(line, *found, since, deadline)
        else:
            self._check_seen(line, None, 0, since, deadline)
            self._heads.forget(line)

    def _check_seen(
        self,
        line: tuple[str, str],
        family: str | None,
        generation: int,
        since: SeenHead[KnownHead] | None,
        deadline: float,
    ) -> None:
        def was_deleted(seen: SeenHead[KnownHead]) -> bool:
            return self.read(lambda rows: rows.was_deleted(line[0], seen), deadline)

        self._heads.check(line, family, generation, since, was_deleted)

    def check_seen_within(self, rows: Rows, line: tuple[str, str], family: str, generation: int) -> None:
        """Inside a transaction: HeadRegressed if the server lost what was seen of a line that was read."""
        since = self._heads.get(line)
        self._heads.check(line, family, generation, since, lambda seen: rows.was_deleted(line[0], seen))

    def _check_locked(self, rows: Rows, line: tuple[str, str], since: SeenHead[KnownHead] | None) -> None:
        """Inside a transaction, before anything is changed: HeadRegressed if the server lost what was seen."""
        family, generation = rows.generation(*line) or (None, 0)
        self._heads.check(line, family, generation, since, lambda seen: rows.was_deleted(line[0], seen))

    # -- commits

    def commit(self, change: Change, deadline: float, refused: Refused | None = None) -> Stored | None:
        """Commit in one round trip if that can be, else in a turn or the long way; `refused`: the first was tried."""
        line = change.thread_id, change.namespace
        since = self._heads.get(line)
        if since is not None and since.known is not None:
            refused = None
            put = prepare(change, since, since.known)
            if put is not None:
                stored = self._put(put, deadline)
                if stored is not None:
                    return stored
                refused = Refused(put.draft.bases)
            # Refused, or more than the short way does: the head is read anew.
            self._heads.doubt(line)
        if refused is not None:
            self._check_expected(change, deadline)
            return self.in_turn(line, lambda turn: turn.commit_onto_head(change), deadline, refused.bases)
        if since is None:
            stored = self._begin_line(change, deadline)
            if stored is not None:
                return stored
        if change.remembered is not None:
            raise BaseGone(f"{change.origin} is not as it was remembered, or cannot be branched from in one step")
        return self._commit_long(change, since, deadline)

    def _begin_line(self, change: Change, deadline: float) -> Stored | None:
        """Begin a thread, a namespace or a branch in one round trip; None: it must be done the long way."""
        line = change.thread_id, change.namespace
        beginning = None
        if change.origin is not None:
            beginning = beginnings.of_branch(change)
        elif line in self._absent:
            self._absent.discard(line)
            beginning = beginnings.of_line(change)
        if beginning is None:
            return None
        function, values, draft, _ = beginning
        answer, was_lost = self._call(lambda rows: rows.begin_line(function, values), draft.record.key, deadline)
        if answer is None:
            # If it is there since an answer was lost, what is built anew would follow it.
            return self._found(draft, deadline) if was_lost else None
        stored, generation, known = beginning.begun(answer)
        self._note_head(line, stored, (stored.family, generation, known))
        return stored

    def _commit_long(self, change: Change, since: SeenHead[KnownHead] | None, deadline: float) -> Stored | None:
        """Commit in a transaction around `apply`."""
        drafts: list[Draft] = []
        noted = change
        if change.build is not None:
            noted = change._replace(build=noting(change.build, drafts))
        try:
            stored, head = self.write(lambda rows: self.apply(rows, noted, since), deadline, change.thread_id)
        except CommitUnknown as exc:
            if not drafts:
                raise CommitUnknown(None, change.thread_id) from exc.__cause__
            # Only the last one counts: a transaction that is run again builds anew.
            stored = self._found(drafts[-1], deadline)
            if stored is None:
                raise CommitUnknown(drafts[-1].record.key.checkpoint_id, change.thread_id) from exc.__cause__
            return stored
        self._note_head((change.thread_id, change.namespace), stored, head)
        return stored

    def _check_expected(self, change: Change, deadline: float) -> None:
        """After a put was refused: HeadMoved if another writer was first.

        That takes one round trip and no lock. The long way has many, and a far client would hold the others up
        meanwhile for nothing. A change that may be a repeated one goes the long way: it may be stored.
        """
        if change.expect is ANY or not change.fresh:
            return
        loaded = self.load(change.thread_id, change.namespace, None, objects=False, writes=False, deadline=deadline)
        actual = loaded.stored.record.key.checkpoint_id if loaded is not None else None
        if actual != change.expect:
            raise HeadMoved(change.thread_id, change.expect, actual)

    def _note_head(
        self, line: tuple[str, str], stored: Stored | None, head: tuple[str, int, KnownHead | None] | None
    ) -> None:
        """Note a head as it is after a commit that made this checkpoint."""
        if head is not None:
            family, generation, known = head
            seq = known.head.seq if known is not None else 0
            if stored is not None and stored.record.key[:2] == line:
                seq = max(seq, stored.seq)
            self._heads.note(line, family, generation, known, None, seq)

    def apply(
        self, rows: Rows, change: Change, since: SeenHead[KnownHead] | None
    ) -> tuple[Stored | None, tuple[str, int, KnownHead | None] | None]:
        """Apply a change inside a transaction; return the checkpoint it made, and the head as it is then."""
        line = change.thread_id, change.namespace
        rows.look(*line, _threads_beside(change), _checkpoints_named(change))
        self._check_locked(rows, line, since)
        return apply(rows, change), rows.head(*line)

    async def commit_soon(self, change: Change, deadline: float) -> Stored | Prepared | Refused | None:
        """Commit in one round trip, on this event loop, if that can be; None, or Refused: a worker thread must do it.

        A Prepared put was sent, and its answer was lost: see `commit_again`. Most commits come this way: to hand work
        to a thread and back takes about as long as the rest.
        """
        line = change.thread_id, change.namespace
        since = self._heads.get(line)
        if since is None or since.known is None:
            return None
        # Lent without waiting. If none is free, a worker thread waits for one instead of the event loop.
        connection = self._pool.lend(deadline)
        if connection is None:
            return None
        put = None
        seq = None
        try:
            put = prepare(change, since, since.known)
            if put is not None:
                seq = await Rows(connection, self._tables).put_async(put.values)
        except psycopg.Error as exc:
            tried_again("PostgreSQL: %s", type(exc).__name__)
            # What was refused comes out when it is done again.
            return put if may_be_done(exc) else None
        finally:
            self._pool.take_back(connection)
        if put is not None and seq is not None:
            return self._kept(put, seq)
        self._heads.doubt(line)
        return Refused(put.draft.bases) if put is not None else None

    def commit_again(self, change: Change, put: Prepared, deadline: float) -> Stored | None:
        """Commit what may be stored already, since the answer to its put was lost."""
        stored = self._put(put, deadline, was_lost=True)
        return stored if stored is not None else self.commit(change, deadline)

    def _put(self, put: Prepared, deadline: float, *, was_lost: bool = False) -> Stored | None:
        """Send a prepared put; None: it must be done the long way."""
        seq, was_lost = self._call(lambda rows: rows.put(put.values), put.draft.record.key, deadline, was_lost)
        if seq is not None:
            return self._kept(put, seq)
        return self._found(put.draft, deadline) if was_lost else None

    def put_again(self, put: Prepared, deadline: float) -> Stored | None:
        """Put what may be stored already, since the answer was lost that ended a turn; None: it is not, nor will be.

        The one who asks still has a place in the pool, so this is done through a connection besides those: else all
        might wait for one another.
        """
        key = put.draft.record.key
        pauses = Pauses(deadline)
        while True:
            try:
                with closing(self._connect(deadline)) as connection:
                    connection.deadline = deadline
                    rows = Rows(connection, self._tables)
                    seq = rows.put(put.values)  # waits for the end of the turn
                    if seq is not None:
                        return self._kept(put, seq)
                    found = rows.load(*key, objects=False, writes=False)
            except psycopg.Error as exc:
                if not is_lost(exc) or not pauses.wait():
                    raise CommitUnknown(key.checkpoint_id, key.thread_id) from exc
            else:
                return found[0].stored if found is not None and found[0].stored.digest == put.stored.digest else None

    def _kept(self, put: Prepared, seq: int) -> Stored:
        stored = put.stored._replace(seq=seq)
        known = KnownHead(put.known.line, stored)
        self._heads.note(stored.record.key[:2], put.seen.family, put.seen.generation + 1, known, None, seq)
        return stored

    def _found(self, draft: Draft, deadline: float) -> Stored | None:
        """After an answer was lost: return the draft's checkpoint if it is stored as it is."""
        key = draft.record.key
        try:
            found = self.read(lambda rows: rows.load(*key, objects=False, writes=False), deadline)
        except StoreError as exc:
            raise CommitUnknown(key.checkpoint_id, key.thread_id) from exc
        if found is None or found[0].stored.digest != record_digest(*pack_record(draft.record)):
            return None
        return found[0].stored

    def in_turn(
        self,
        line: tuple[str, str],
        work: Callable[[Turn], T],
        deadline: float,
        bases: Sequence[BaseRef] = (),
    ) -> T:
        """Do work, which may commit once, in one transaction while nobody else changes the family of the line."""
        with translated():
            pauses = Pauses(deadline)
            while True:
                done: list[tuple[Turn, T]] = []
                try:
                    with self._pool.connection(deadline) as connection, rolled_back(connection):
                        turn = Turn(self, Rows(connection, self._tables), line, deadline, bases)
                        turn.begin()
                        done.append((turn, work(turn)))
                        turn.end()
                except RACES as exc:
                    if not pauses.wait():
                        raise
                    tried_again("PostgreSQL: %s", type(exc).__name__)
                    continue
                except psycopg.OperationalError as exc:
                    if not done or not may_be_done(exc):
                        self._try_again(exc, pauses)
                        continue
                    self._check_committed(done[-1][0].draft, line[0], deadline, exc)
                turn, result = done[-1]
                turn.note()
                return result

    def _check_committed(self, draft: Draft | None, thread_id: str, deadline: float, lost: Exception) -> None:
        """After the answer to a COMMIT was lost: CommitUnknown unless the draft is found."""
        if draft is None:
            raise CommitUnknown(None, thread_id) from lost
        if self._found(draft, deadline) is None:
            raise CommitUnknown(draft.record.key.checkpoint_id, thread_id) from lost

    # -- writes and histories of other stores

    def put_writes(
        self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None, deadline: float
    ) -> None:
        since = self._heads.get(key[:2])
        # One round trip for nearly all of them; what the function does not do goes the long way.
        done, _ = self._call(lambda rows: rows.attach(key, writes, objects, base), key, deadline)
        if done:
            return

        def work(rows: Rows) -> None:
            self._check_locked(rows, key[:2], since)
            apply_writes(rows, key, writes, objects, base)

        self.write(work, deadline, key.thread_id)

    def adopt(self, part: Part, deadline: float) -> int:
        try:
            return self.write(lambda tx: tx.adopt(part), deadline, part.thread_id)
        finally:  # generations come from elsewhere: they may be lower than those seen here
            for name in {part.thread_id, *(raw.thread_id for raw in part.threads)}:
                self._heads.forget_thread(name)

    def adopt_new(self, parts: Sequence[Part], deadline: float) -> None:
        try:
            self.write(lambda tx: tx.adopt_new(parts), deadline, parts[0].thread_id)
        finally:
            for part in parts:
                self._heads.forget_thread(part.thread_id)


def _threads_beside(change: Change) -> set[str]:
    """Return the other threads that a change speaks of."""
    threads = set(change.shared_states)
    if change.log_thread is not None:
        threads.add(change.log_thread)
    return threads


def _checkpoints_named(change: Change) -> list[Key]:
    """Return the checkpoints that a change speaks of."""
    keys = [pin.key for pin in change.pins]
    if change.origin is not None:
        keys.append(change.origin)
    for move in change.moves:
        if move.checkpoint_id is not None:
            keys.append(Key(change.thread_id, move.namespace, move.checkpoint_id))
    return keys
