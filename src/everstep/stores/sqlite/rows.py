"""All that is done to the tables, as one class. Each part of it has its own file; here is the way of most commits.

Values are always bound; the SQL texts are put together from constants only.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from everstep.errors import BaseGone
from everstep.stores.facts import new_facts
from everstep.stores.protocol import ANY, BaseRef, Change, Key, Object, RememberedOrigin, Stored, Write
from everstep.stores.records import DIGEST_BYTES, pack_id, pack_record
from everstep.stores.sqlite.adopt import Adopting
from everstep.stores.sqlite.changing import SET_HEAD
from everstep.stores.sqlite.remembering import Head
from everstep.stores.transaction import Packed, added_bytes, apply, apply_writes, is_plain, now_micros

_NO_LINE = (0, "")  # lines are numbered from 1
_PLACES = """SELECT c.line, c.segment, c.seq, coalesce(o.seq, 0), coalesce(o.undone, 0) FROM checkpoints c
             LEFT JOIN operations o ON o.seq = (SELECT max(p.seq) FROM operations p WHERE p.thread = ?)
             WHERE c.id = ? LIMIT 2"""
_DIGEST = f"""SELECT substr(info, 1, {DIGEST_BYTES}), substr(root, 1, {DIGEST_BYTES}) FROM checkpoints
              WHERE id = ? AND line = ?"""


class Rows(Adopting):
    """The tables, inside one transaction of one connection."""

    def commit(self, change: Change) -> Stored | None:
        """Do what `transaction.apply` does; in few steps if a new checkpoint follows a head that is remembered."""
        line, family = self._lines.get((change.thread_id, change.namespace), _NO_LINE)
        head = _head_to_follow(change, self._heads.get(line))
        seq = self._next_seq
        if change.remembered is not None and not self._is_so(change.remembered):
            raise BaseGone(f"{change.origin} is not as it was remembered")
        if head is None or seq is None or change.build is None:
            return apply(self, change)
        draft = change.build(head)
        record = draft.record
        key = head.record.key
        if record.parents != (key,) or record.key[:2] != key[:2] or not self._has_all(draft.bases, head, family):
            return apply(self, change)  # which says what is missing
        packed = Packed(record, *pack_record(record))
        added = added_bytes(draft, packed)
        try:
            self._insert(seq, line, packed, head.segment, added)
        except apsw.ConstraintError:
            return apply(self, change)  # it is stored already
        self.add_objects(family, draft.objects)
        self._note(line, new_facts(record, head.record))
        self._execute(SET_HEAD, (seq, False, now_micros(), True, line))
        self._next_seq = seq + 1
        stored = Stored(record, seq, family, False, False, packed.digest, head.segment, added)
        self._remember_head(line, Head(stored, False, packed.info))
        return stored

    def _is_so(self, remembered: RememberedOrigin) -> bool:
        """Whether a checkpoint is where it was, alone of its id, and its thread's log has no newer entry."""
        key, segment, seq = remembered.place
        line = self._line(key.thread_id, key.namespace)
        thread = self._thread(key.thread_id)
        if line is None or thread is None:
            return False
        places = self._execute(_PLACES, (thread[0], pack_id(key.checkpoint_id))).fetchall()
        return bool(places == [(line[0], segment, seq, remembered.top, False)])

    def _has_all(self, bases: Sequence[BaseRef], head: Stored, family: str) -> bool:
        """Whether all that a new checkpoint rests on is stored: mostly that is the head alone."""
        own = head.record.key, head.digest
        return all(base == own or self._has(base, family) for base in bases)

    def _has(self, base: BaseRef, family: str) -> bool:
        """Whether a checkpoint of the family is stored as it is named: mostly the claim that a writer holds."""
        known = self._line(base.key.thread_id, base.key.namespace)
        if known is None or known[1] != family:
            return False
        found = self._execute(_DIGEST, (pack_id(base.key.checkpoint_id), known[0])).get
        return found is not None and b"".join(found) == base.digest

    def attach(self, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None) -> None:
        """Do what `transaction.apply_writes` does; in few steps for a namespace whose head is remembered."""
        line, family = self._lines.get((key.thread_id, key.namespace), _NO_LINE)
        head = self._heads.get(line)
        if head is None or base is not None:
            apply_writes(self, key, writes, objects, base)
            return
        if objects:
            self.add_objects(family, objects)
        for write in writes:
            self._put_write(line, key.checkpoint_id, write)


def _head_to_follow(change: Change, known: Head | None) -> Stored | None:
    """Return the head that a change only adds a checkpoint to; None: it does more, or the head is not remembered."""
    if known is None or known.stored is None or known.was_moved:
        return None
    if change.head == "never" or change.prune or not is_plain(change):
        return None
    if change.expect not in (ANY, known.stored.record.key.checkpoint_id):
        return None
    return known.stored
