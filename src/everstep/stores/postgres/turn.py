"""A turn: the work of a writer in one transaction while nobody else changes the family."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import psycopg

from everstep.stores.heads import SeenHead
from everstep.stores.postgres.forms import KnownHead
from everstep.stores.postgres.pool import may_be_done
from everstep.stores.postgres.puts import Prepared, prepare
from everstep.stores.postgres.rows import Rows
from everstep.stores.protocol import BaseRef, Change, Draft, Loaded, Stored

if TYPE_CHECKING:
    from everstep.stores.postgres.database import Database


class Turn:
    """What a turn does inside its transaction, and what is to be noted when that is committed.

    Others wait meanwhile, so a far client must not ask often: the transaction begins with a look at the head, and the
    usual commit ends it, which is one round trip each.
    """

    def __init__(
        self,
        database: Database,
        rows: Rows,
        line: tuple[str, str],
        deadline: float,
        bases: Sequence[BaseRef] = (),
    ) -> None:
        """`bases` are those that the change rests on, if that is known before: they are looked at with the head."""
        self.rows = rows
        self._database = database
        self._line = line
        self._deadline = deadline
        self._bases = bases
        self._stored_bases: Sequence[BaseRef] = ()
        self._head: tuple[Loaded, KnownHead | None] | None = None
        """As it was when the turn began, until somebody asks for it."""
        self._seen: dict[tuple[str, str], tuple[SeenHead[KnownHead], KnownHead]] = {}
        self._notes: list[Callable[[], object]] = []
        self.draft: Draft | None = None
        """What it has committed."""
        self.is_ending = False
        """The transaction is committed, or may be."""

    def begin(self) -> None:
        left = self._deadline - time.monotonic()
        self._head, self._stored_bases = self.rows.begin_turn(*self._line, self._bases, left)

    def end(self) -> None:
        """Commit, if that was not done with the change."""
        if not self.is_ending:
            self.is_ending = True
            self.rows.commit()

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> Loaded | None:
        line = thread_id, namespace
        found = None
        # What the turn began with is handed out once. After a commit it would be old.
        if line == self._line and checkpoint_id is None and not objects and not writes:
            found = self._head
            self._head = None
        if found is None:
            found = self.rows.load(thread_id, namespace, checkpoint_id, objects, writes)
        if found is None:
            return None
        loaded, known = found
        if checkpoint_id is None and known is not None:
            self._database.check_seen_within(self.rows, line, loaded.stored.family, loaded.generation)
            self._seen[line] = SeenHead(loaded.stored.family, loaded.generation, known), known
        return loaded

    def commit(self, change: Change) -> Stored | None:
        """Commit in one round trip if that can be."""
        line = change.thread_id, change.namespace
        put = prepare(change, *self._seen[line], self._stored_bases) if line in self._seen else None
        if put is not None:
            stored = self._put(put)
            if stored is not None:
                return stored
        # The draft is noted, since an answer that is lost must be told from a commit that never was.
        noted = change._replace(build=self._build(change.build)) if change.build is not None else change
        stored, head = self._database.apply(self.rows, noted, self._database._heads.get(line))
        self._notes.append(lambda: self._database._note_head(line, stored, head))
        return stored

    def commit_onto_head(self, change: Change) -> Stored | None:
        """Commit what does not care which head it follows."""
        self.load(*self._line, None, objects=False, writes=False)
        return self.commit(change)

    def _put(self, put: Prepared) -> Stored | None:
        """Commit a checkpoint, and end the turn; None: it was refused (its id is there), and the turn goes on."""
        self.draft = put.draft
        self.is_ending = True
        try:
            seq = self.rows.put_and_end(put.values)
        except psycopg.OperationalError as exc:
            if not may_be_done(exc):
                raise
            # The end of the turn was sent and its answer lost: putting it once more tells what became of it.
            stored = self._database.put_again(put, self._deadline)
            if stored is None:
                raise psycopg.errors.SerializationFailure("a turn was lost, and is taken again") from exc
            return stored
        if seq is not None:
            self._notes.append(lambda: self._database._kept(put, seq))
            return put.stored._replace(seq=seq)
        # Nothing was written, and the lock is gone with the transaction. Whoever was let in meanwhile is noticed: the
        # change names the head it follows.
        self.draft = None
        self.is_ending = False
        self.begin()
        return None

    def _build(self, build: Callable[[Stored | None], Draft]) -> Callable[[Stored | None], Draft]:
        def built(head: Stored | None) -> Draft:
            self.draft = build(head)
            return self.draft

        return built

    def note(self) -> None:
        """It is committed."""
        for note in self._notes:
            note()
