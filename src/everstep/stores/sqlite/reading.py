"""What is read of checkpoints: one of them, with its objects and pending writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import apsw

from everstep.stores.protocol import Key, Loaded, Object, Stored, Write
from everstep.stores.records import pack_id, unpack_id, unpack_metadata, unpack_write
from everstep.stores.sqlite.forms import COLUMNS, HIDDEN, check_head, to_stored
from everstep.stores.sqlite.remembering import FOLLOWS, Remembering
from everstep.values.tree import hashes

_FOLLOWS_AND_HIDES = f"SELECT EXISTS ({FOLLOWS}), EXISTS (SELECT 1 FROM covers WHERE line = ?1)"
# Statements that are run for each call are small, and follow-up questions have statements of their own: a subquery
# takes several times as long as a short statement that is compiled already.
_HEAD = f"""SELECT l.head, l.head_was_moved OR t.note IS NOT NULL, l.id, l.generation, t.family, {COLUMNS}
            FROM threads t JOIN lines l ON l.thread = t.id
            LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id WHERE t.name = ? AND l.namespace = ?"""
_BY_ID = f"""SELECT l.id, l.generation, t.family, {COLUMNS} FROM threads t JOIN lines l ON l.thread = t.id
             JOIN checkpoints c ON c.line = l.id AND c.id = ? WHERE t.name = ? AND l.namespace = ?"""

# As `Object._make` does, in a third of the time: a tree has thousands.
_AS_OBJECT: Callable[[tuple[bytes, ...]], Object] = partial(tuple.__new__, Object)


def place_of_write(write: Write) -> tuple[str, str, int]:
    """Return the place of a write among all writes of its checkpoint."""
    return write.task_path, write.task_id, write.idx


class Reading(Remembering):
    """Checkpoints, objects and pending writes."""

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> Loaded | None:
        if checkpoint_id is not None:
            row = self._execute(_BY_ID, (pack_id(checkpoint_id), thread_id, namespace)).get
            if row is None:
                return None
            line, generation, family, *checkpoint = row
            hides = self._hides(line)
        else:
            row = self._execute(_HEAD, (thread_id, namespace)).get
            if row is None:
                self._check_has_lines(thread_id)
                return None
            head, may_be_older, line, generation, family, *checkpoint = row
            seq, _, _, segment, *_ = checkpoint
            follows, hides = self._execute(_FOLLOWS_AND_HIDES, (line, seq, segment)).get
            check_head(thread_id, head, seq, bool(follows) and not may_be_older)
            if head is None:
                return None
        hidden = hides and self._is_hidden(checkpoint[0])
        stored = to_stored(thread_id, namespace, family, (*checkpoint, hidden))
        found = self.below(stored.family, hashes(stored.record.children)) if objects else []
        attached = self._writes(line, stored.record.key.checkpoint_id) if writes else []
        return Loaded(stored, generation, found, attached)

    def load_known(self, thread_id: str, namespace: str, checkpoint_id: str | None, writes: bool) -> Loaded | None:
        """Return what `load` does, if it is a head that is remembered, and nobody else has written since; else None."""
        line, _ = self._lines.get((thread_id, namespace), (0, ""))
        known = self._heads.get(line)
        if known is None or known.stored is None or known.was_moved:
            return None
        stored = known.stored
        record = stored.record
        if checkpoint_id not in (None, record.key.checkpoint_id):
            return None
        attached = self._writes(line, record.key.checkpoint_id) if writes else []
        head, generation = self._execute("SELECT head, generation FROM lines WHERE id = ?", (line,)).get
        if head != stored.seq or self._version != self._connection.data_version():
            return None
        record = record._replace(metadata=unpack_metadata(known.info))
        return Loaded(Stored(record, *stored[1:]), generation, [], attached)

    def _is_hidden(self, seq: int) -> bool:
        """Whether a checkpoint is hidden."""
        return bool(self._execute(f"SELECT {HIDDEN} FROM checkpoints c WHERE c.seq = ?", (seq,)).get)

    def _hides(self, line: int) -> bool:
        """Whether anything of a line is hidden."""
        return self._execute("SELECT 1 FROM covers WHERE line = ? LIMIT 1", (line,)).get is not None

    def load_many(self, keys: Sequence[Key], writes: bool) -> list[Loaded]:
        found = [self.load(*key, objects=False, writes=writes) for key in keys]
        return [loaded for loaded in found if loaded is not None]

    def _writes(self, line: int, checkpoint_id: str) -> list[Write]:
        found = self._written(
            line,
            checkpoint_id,
            """AND NOT EXISTS (SELECT 1 FROM hidden h WHERE h.line = ?1 AND h.writes_of = ?2
                               AND w.seq > h.after AND w.seq <= h.upto)""",
        )
        return sorted(found, key=place_of_write)

    def _written(self, line: int, checkpoint_id: str, condition: str = "") -> list[Write]:
        rows = self._execute(
            f"SELECT seq, task, idx, info, children FROM writes w WHERE line = ?1 AND checkpoint = ?2 {condition}",
            (line, pack_id(checkpoint_id)),
        )
        return [unpack_write(checkpoint_id, seq, unpack_id(task), *rest) for seq, task, *rest in rows]

    def find(self, checkpoint_id: str) -> list[Key]:
        rows = self._execute(
            """SELECT t.name, l.namespace FROM checkpoints c JOIN lines l ON l.id = c.line
               JOIN threads t ON t.id = l.thread WHERE c.id = ? ORDER BY c.seq""",
            (pack_id(checkpoint_id),),
        )
        return [Key(thread_id, namespace, checkpoint_id) for thread_id, namespace in rows]

    def below(self, family: str, wanted: Iterable[bytes]) -> list[Object]:
        """Return these objects and all below them, one query per level."""
        found: list[Object] = []
        seen = set(wanted)
        level = tuple(seen)
        while level:
            rows = self._objects(family, level)
            found.extend(rows)
            fresh = {key for _, children, _ in rows if children for key in hashes(children)} - seen
            seen |= fresh
            level = tuple(fresh)
        return found

    def shallow(self, family: str, wanted: Collection[bytes]) -> list[Object]:
        """Return just these objects."""
        return self._objects(family, tuple(wanted)) if wanted else []

    def _objects(self, family: str, wanted: tuple[bytes, ...]) -> list[Object]:
        # By their numbers: what was written together lies together in the file.
        rows = self._execute(
            """SELECT hash, children, body FROM objects WHERE id IN
               (SELECT o.id FROM carray(?) k CROSS JOIN objects o ON o.family = ? AND o.hash = k.value)""",
            (apsw.carray(wanted), int(family)),
        ).fetchall()
        return list(map(_AS_OBJECT, rows))
