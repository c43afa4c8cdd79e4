"""Histories that leave the PostgreSQL store for another one, and those that come: see `Store.raw` and `Store.adopt`.

A part is taken over with the family's lock held alone: nobody else adds to the family meanwhile. What comes in large
numbers is sent as arrays, one statement per table.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointNotFound
from everstep.stores.adoption import adopt, check_new
from everstep.stores.postgres.forms import encoded_columns, labels, packed_id, unpacked_id
from everstep.stores.postgres.removing import Removing
from everstep.stores.protocol import SHARED_STATES_MAX, Hidden, Key, Part, Place, RawLine, RawThread, Stored, Write
from everstep.stores.records import (
    pack_operation,
    pack_origin,
    pack_record,
    pack_segment,
    pack_shared_state,
    pack_write,
    unpack_origin,
    unpack_write,
)
from everstep.stores.transaction import Packed
from everstep.values.tree import FORMAT

_ACTIVE = "CASE WHEN isfinite(l.active) THEN (extract(epoch FROM l.active) * 1000000)::bigint ELSE 0 END"
_MADE_ACTIVE = "'epoch'::timestamptz + u.active * interval '1 microsecond'"
_OWN = "SELECT id FROM {lines} WHERE family = %(f)s AND thread = %(t)s"


class Adopting(Removing):
    """Gives threads away and takes them over, as they are."""

    def raw(self, thread_id: str, family_threads: bool) -> RawThread | None:
        row = self._one(
            """SELECT t.id, t.family, t.origin, t.began, t.note, m.identity FROM {names} n
               JOIN {threads} t ON t.family = n.family AND t.id = n.thread CROSS JOIN {meta} m WHERE n.name = %s""",
            (thread_id.encode(),),
        )
        # Asked in the same transaction: what is missing must not be copied as if it had never been there.
        self.check_whole(thread_id, stored_max=1 << 40)
        if row is None:
            return None
        thread, family, sealed, began, note, identity = row
        origin = unpack_origin(sealed, thread_id) if sealed is not None else None
        relatives: Sequence[Any] = ()
        if family_threads:
            relatives = self._all("SELECT name FROM {threads} WHERE family = %s ORDER BY id", (family,))
        return RawThread(
            thread_id,
            str(family),
            identity + b"%d" % family,
            self._raw_lines(family, thread),
            origin,
            began if origin is not None and self._is_stored(origin, family, began) else 0,
            self._pinned(family, thread),
            list(itertools.chain.from_iterable(self._hidden_of(family, thread).values())),
            self.operations(thread_id, None)[::-1],
            self._raw_writes(family, thread, thread_id),
            self._shared_states_of(family, thread, thread_id),
            note or b"",
            [name.decode() for (name,) in relatives],
        )

    def _raw_lines(self, family: int, thread: int) -> dict[str, RawLine]:
        rows = self._all(
            f"""SELECT l.namespace, c.id, l.head_was_moved, l.generation, {_ACTIVE},
                       ARRAY(SELECT r.segment FROM {{segments}} r WHERE r.family = l.family AND r.line = l.id),
                       coalesce((SELECT max(seq) FROM {{checkpoints}} n WHERE n.family = l.family AND n.line = l.id), 0)
                FROM {{lines}} l LEFT JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head
                WHERE l.family = %s AND l.thread = %s""",
            (family, thread),
        )
        lines: dict[str, RawLine] = {}
        for namespace, head, head_was_moved, generation, active, segments, newest in rows:
            name = head.decode() if head is not None else None
            lines[namespace.decode()] = RawLine(name, head_was_moved, generation, active, frozenset(segments), newest)
        return lines

    def _is_stored(self, key: Key, family: int, seq: int | None) -> bool:
        found = self._one(
            "SELECT 1 FROM {checkpoints} WHERE id = %s AND family = %s AND seq = %s",
            (key.checkpoint_id.encode(), family, seq),
        )
        return found is not None

    def _pinned(self, family: int, thread: int) -> frozenset[int]:
        rows = self._all(
            """SELECT c.seq FROM {lines} l JOIN {checkpoints} c ON c.family = l.family AND c.line = l.id
               AND (c.pinned OR c.branches > 0) WHERE l.family = %s AND l.thread = %s AND c.pinned""",
            (family, thread),
        )
        return frozenset(seq for (seq,) in rows)

    def _raw_writes(self, family: int, thread: int, thread_id: str) -> list[tuple[Key, Write]]:
        rows = self._all(
            """SELECT l.namespace, w.checkpoint, w.seq, w.idx, w.task, w.info, w.children FROM {lines} l
               JOIN {writes} w ON w.family = l.family AND w.line = l.id
               WHERE l.family = %s AND l.thread = %s ORDER BY w.seq""",
            (family, thread),
        )
        found: list[tuple[Key, Write]] = []
        for namespace, name, seq, idx, task, info, children in rows:
            key = Key(thread_id, namespace.decode(), unpacked_id(name))
            found.append((key, unpack_write(key.checkpoint_id, seq, unpacked_id(task), idx, info, children)))
        return found

    # -- what comes from another store

    def adopt(self, part: Part) -> int:
        if self.family(part.thread_id) is not None:
            # Others are waited for before anything is locked that they may need.
            self.join(part.thread_id, None)
        return adopt(self, part)

    def adopt_new(self, parts: Sequence[Part]) -> None:
        """Insert whole threads, a statement per table for all of them.

        Nobody else sees these families before the commit, so no lock is needed. Their numbers stay as they are: those
        of the sequence, with the family's shift, are greater.
        """
        lines = self._make_threads(parts)
        self._insert_objects(parts, lines)
        self._insert_checkpoints(parts, lines)
        self._insert_segments(parts, lines)
        self._insert_writes(parts, lines)

    def _make_threads(self, parts: Sequence[Part]) -> dict[tuple[str, str], tuple[int, int]]:
        """Make new threads with their namespaces; return the family and number of each namespace."""
        rows: list[tuple[Any, ...]] = []
        for part in parts:
            rows += _new_line_rows(part)
        made = self._all(
            f"""WITH wanted AS MATERIALIZED (
                    SELECT u.name, u.reserve, u.lines, nextval('{{numbers}}') AS family,
                           nextval('{{numbers}}') AS thread
                    FROM unnest(%(names)s::bytea[], %(reserve)s::bigint[], %(counts)s::bigint[])
                         AS u (name, reserve, lines)
                    WHERE NOT EXISTS (SELECT 1 FROM {{threads}} t WHERE t.name = u.name)
                ), named AS (
                    INSERT INTO {{names}} (name, family, thread) SELECT name, family, thread FROM wanted
                    ON CONFLICT DO NOTHING RETURNING name
                ), grouped AS (
                    INSERT INTO {{families}} (id, format, sweeps, live, generation, shift)
                    SELECT family, %(format)s, 0, 0, 0, reserve FROM wanted
                ), threaded AS (
                    INSERT INTO {{threads}} (family, id, name, note, lines)
                    SELECT family, thread, name, '', lines FROM wanted
                ), lined AS (
                    INSERT INTO {{lines}} (family, id, thread, namespace, head, head_was_moved, generation, active,
                                           unreferenced, stored, segments)
                    SELECT w.family, nextval('{{numbers}}'), w.thread, u.namespace, u.head, u.head_was_moved,
                           u.generation, {_MADE_ACTIVE}, 0, u.stored, u.segments
                    FROM unnest(%(line_names)s::bytea[], %(namespaces)s::bytea[], %(heads)s::bigint[],
                                %(moved)s::boolean[], %(generations)s::bigint[], %(actives)s::bigint[],
                                %(stored)s::bigint[], %(segments)s::bigint[])
                         AS u (name, namespace, head, head_was_moved, generation, active, stored, segments)
                    JOIN wanted w ON w.name = u.name RETURNING family, namespace, id
                )
                SELECT n.name, l.namespace, w.family, l.id FROM named n JOIN wanted w ON w.name = n.name
                LEFT JOIN lined l ON l.family = w.family""",
            {
                "names": [part.thread_id.encode() for part in parts],
                "reserve": [part.reserve for part in parts],
                "counts": [len(part.threads[0].lines) for part in parts],
                "format": FORMAT,
                **_columns(rows, _NEW_LINE_COLUMNS),
            },
        )
        found: set[str] = set()
        lines: dict[tuple[str, str], tuple[int, int]] = {}
        for name, namespace, family, line in made:
            found.add(name.decode())
            # A thread that has none comes with nothing there.
            if namespace is not None:
                lines[name.decode(), namespace.decode()] = family, line
        for part in parts:
            check_new(part.thread_id, is_there=part.thread_id not in found)
        return lines

    def _insert_objects(self, parts: Sequence[Part], lines: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        families = _families(lines)
        rows: list[tuple[int, bytes, bytes, bytes]] = []
        for part in parts:
            rows += [(families[part.thread_id], obj.hash, obj.children, obj.body) for obj in part.objects]
        self._insert(
            """INSERT INTO {objects} (family, id, hash, children, body)
               SELECT u.family, nextval('{numbers}'), u.hash, u.children, u.body
               FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[], %s::bytea[]) AS u (family, hash, children, body)""",
            rows,
        )

    def _insert_checkpoints(self, parts: Sequence[Part], lines: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        rows: list[tuple[Any, ...]] = []
        for part in parts:
            for stored in part.checkpoints:
                record = stored.record
                info, root = part.packed.get(record.key) or pack_record(record)
                rows.append(
                    (*lines[record.key[:2]], stored.seq, stored.segment, stored.added_bytes, record.step,
                     record.key.checkpoint_id.encode(), _labels_text(stored), info, record.children, root)
                )  # fmt: skip
        self._insert(
            """INSERT INTO {checkpoints} (family, line, seq, segment, added, step, branches, pinned, id, labels, info,
                                          children, root)
               SELECT u.family, u.line, u.seq, u.segment, u.added, u.step, 0, false, u.id, u.labels::bigint[], u.info,
                      u.children, u.root
               FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
                           %s::bytea[], %s::text[], %s::bytea[], %s::bytea[], %s::bytea[])
                    AS u (family, line, seq, segment, added, step, id, labels, info, children, root)""",
            rows,
        )

    def _insert_segments(self, parts: Sequence[Part], lines: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        families = _families(lines)
        rows: list[tuple[Any, ...]] = []
        for part in parts:
            owners: dict[int, int] = {}
            for namespace, line in part.threads[0].lines.items():
                owners.update(dict.fromkeys(line.segments, lines[part.thread_id, namespace][1]))
            for segment, follows in part.segments.items():
                rows.append((families[part.thread_id], segment, owners.get(segment), pack_segment(segment, follows)))
        self._insert(
            """INSERT INTO {segments} (family, segment, line, data)
               SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[])""",
            rows,
        )

    def _insert_writes(self, parts: Sequence[Part], lines: Mapping[tuple[str, str], tuple[int, int]]) -> None:
        rows: list[tuple[Any, ...]] = []
        for part in parts:
            for key, write in part.threads[0].writes:
                family, line = lines[key[:2]]
                rows.append(_write_row(family, line, key, write))
        self._insert_write_rows(rows)

    def _insert_write_rows(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self._insert(
            """INSERT INTO {writes} (family, line, seq, idx, checkpoint, task, info, children)
               SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[], %s::bytea[],
                                    %s::bytea[], %s::bytea[])""",
            rows,
        )

    def _insert(self, text: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement that takes rows as columns, if there are any."""
        if rows:
            self._do(text, tuple(list(column) for column in zip(*rows, strict=True)))

    def join(self, thread_id: str, family: str | None) -> str:
        number, _ = self._joined(thread_id, family)
        if number not in self._guarded:
            self._guarded.add(number)
            self._do("SELECT {alone}(%s)", (number,))
            # What comes from another store brings objects before there is anybody who needs them.
            self._do("UPDATE {families} SET swept = 0 WHERE id = %s AND swept > 0", (number,))
        return str(number)

    def reserve(self, family: str, count: int) -> int:
        """Set numbers aside, by a greater distance between the sequence's numbers and the family's.

        The sequence itself cannot be moved: `setval` would take it back behind what other families get from `nextval`
        at the same moment, and nothing but ALTER SEQUENCE makes those wait. Nor need it be: only inside a family are
        numbers compared, and they are part of keys that start with it. Since we are alone in this family, whatever it
        got before is smaller than a number that is drawn now, and what it gets later is greater by `count`.
        """
        highest: int = self._one(
            """UPDATE {families} SET shift = shift + %(n)s WHERE id = %(f)s
               RETURNING nextval('{numbers}') + shift - %(n)s""",
            {"f": int(family), "n": count},
        )[0]
        return highest

    def set_note(self, thread_id: str, note: bytes) -> None:
        self._do(
            """UPDATE {threads} t SET note = %s FROM {names} n
               WHERE n.name = %s AND t.family = n.family AND t.id = n.thread""",
            (note, thread_id.encode()),
        )

    def remove(self, keys: Sequence[Key]) -> None:
        if not keys:
            return
        self._do(
            """WITH gone AS (
                   DELETE FROM {checkpoints} c
                   USING unnest(%s::bytea[], %s::bytea[], %s::bytea[]) AS u (name, namespace, id), {names} n, {lines} l
                   WHERE n.name = u.name AND l.family = n.family AND l.thread = n.thread AND l.namespace = u.namespace
                   AND c.id = u.id AND c.family = l.family AND c.line = l.id RETURNING c.family, c.line, c.added
               )
               UPDATE {lines} l SET unreferenced = l.unreferenced + g.added, stored = l.stored - g.count
               FROM (SELECT family, line, sum(added)::bigint AS added, count(*) FROM gone GROUP BY family, line) g
               WHERE l.family = g.family AND l.id = g.line""",
            encoded_columns(keys),
        )

    def keep(self, family: str, checkpoints: Sequence[tuple[Stored, Packed]]) -> None:
        if not checkpoints:
            return
        own = int(family)
        numbers = self._lines({stored.record.key[:2] for stored, _ in checkpoints})
        lines = [numbers[stored.record.key[:2]] for stored, _ in checkpoints]
        ids = [stored.record.key.checkpoint_id.encode() for stored, _ in checkpoints]
        replaced = self._take_out(own, lines, ids)
        rows: list[tuple[Any, ...]] = []
        is_old: list[bool] = []
        moved: list[tuple[int, int, int]] = []
        for line, name, (stored, packed) in zip(lines, ids, checkpoints, strict=True):
            old = replaced.get((line, name))
            is_old.append(old is not None)
            # A head that is replaced by one of another number is named by that from now on.
            if old is not None and old.seq != stored.seq:
                moved.append((line, old.seq, stored.seq))
            is_pinned = old is not None and old.is_pinned
            rows.append(
                (line, stored.seq, stored.segment, stored.added_bytes, stored.record.step, is_pinned, name,
                 _labels_text(stored), packed.info, stored.record.children, packed.root)
            )  # fmt: skip
        self._do(
            """INSERT INTO {checkpoints} (family, line, seq, segment, added, step, branches, pinned, id, labels, info,
                                          children, root)
               SELECT %(f)s, u.line, u.seq, u.segment, u.added, u.step, coalesce(b.count, 0), u.pinned, u.id,
                      u.labels::bigint[], u.info, u.children, u.root
               FROM unnest(%(line)s::bigint[], %(seq)s::bigint[], %(segment)s::bigint[], %(added)s::bigint[],
                           %(step)s::bigint[], %(pinned)s::boolean[], %(id)s::bytea[], %(labels)s::text[],
                           %(info)s::bytea[], %(children)s::bytea[], %(root)s::bytea[])
                    AS u (line, seq, segment, added, step, pinned, id, labels, info, children, root)
               LEFT JOIN (SELECT began, count(*) FROM {threads} WHERE family = %(f)s GROUP BY began) b
                   ON b.began = u.seq""",
            {"f": own, **_columns(rows, _CHECKPOINT_COLUMNS)},
        )
        self._do(
            """UPDATE {lines} l SET stored = l.stored + u.count, incoming = true
               FROM (SELECT line, count(*) - count(*) FILTER (WHERE is_old) AS count
                     FROM unnest(%s::bigint[], %s::boolean[]) AS u (line, is_old) GROUP BY line) u
               WHERE l.family = %s AND l.id = u.line""",
            (lines, is_old, own),
        )
        self._count_lines(own)
        if moved:
            self._do(
                """UPDATE {lines} l SET head = u.new
                   FROM unnest(%(line)s::bigint[], %(old)s::bigint[], %(new)s::bigint[]) AS u (line, old, new)
                   WHERE l.family = %(f)s AND l.id = u.line AND l.head = u.old""",
                {"f": own, **_columns(moved, ("line", "old", "new"))},
            )

    def _take_out(self, family: int, lines: Sequence[int], ids: Sequence[bytes]) -> dict[tuple[int, bytes], _Replaced]:
        """Delete the checkpoints that others come in the place of, and return what stays of them."""
        rows = self._all(
            """DELETE FROM {checkpoints} c USING unnest(%s::bytea[], %s::bigint[]) AS u (id, line)
               WHERE c.id = u.id AND c.family = %s AND c.line = u.line RETURNING c.line, c.id, c.seq, c.pinned""",
            (ids, lines, family),
        )
        return {(line, name): _Replaced(seq, pinned) for line, name, seq, pinned in rows}

    def _lines(self, places: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
        """Return the numbers of lines; those that are missing are made, in threads that are there.

        They begin at generation 0, other than lines of the store's own: whoever finds one knows that no head was ever
        set.
        """
        rows = self._all(
            """WITH wanted AS (
                   SELECT n.name, n.family, n.thread, u.namespace FROM unnest(%s::bytea[], %s::bytea[])
                   AS u (name, namespace) JOIN {names} n ON n.name = u.name
               ), made AS (
                   INSERT INTO {lines} AS l
                       (family, id, thread, namespace, head_was_moved, generation, active, unreferenced)
                   SELECT family, nextval('{numbers}'), thread, namespace, false, 0, '-infinity', 0 FROM wanted
                   ON CONFLICT (family, thread, namespace) DO UPDATE SET unreferenced = l.unreferenced
                   RETURNING l.thread, l.namespace, l.id
               )
               SELECT w.name, w.namespace, m.id FROM wanted w JOIN made m USING (thread, namespace)""",
            encoded_columns(sorted(places)),
        )
        return {(name.decode(), namespace.decode()): line for name, namespace, line in rows}

    def _count_lines(self, family: int) -> None:
        """Note how many namespaces the threads of a family have, after some were made."""
        self._do(
            """UPDATE {threads} t SET lines = l.count
               FROM (SELECT thread, count(*) FROM {lines} WHERE family = %(f)s GROUP BY thread) l
               WHERE t.family = %(f)s AND t.id = l.thread AND t.lines <> l.count""",
            {"f": family},
        )

    def keep_segments(self, family: str, segments: Mapping[int, Sequence[Place]]) -> None:
        if segments:
            self._do(
                """INSERT INTO {segments} (family, segment, data)
                   SELECT %s, u.segment, u.data FROM unnest(%s::bigint[], %s::bytea[]) AS u (segment, data)
                   ON CONFLICT (family, segment) DO UPDATE SET data = excluded.data""",
                (
                    int(family),
                    list(segments),
                    [pack_segment(segment, follows) for segment, follows in segments.items()],
                ),
            )

    def restore(self, raw: RawThread) -> None:
        family, thread = self._joined(raw.thread_id, None)
        self._do(
            f"""WITH own AS ({_OWN}),
                     w AS (DELETE FROM {{writes}} WHERE family = %(f)s AND line IN (SELECT id FROM own)),
                     v AS (DELETE FROM {{covers}} WHERE family = %(f)s AND line IN (SELECT id FROM own)),
                     h AS (DELETE FROM {{hidden}} WHERE family = %(f)s AND line IN (SELECT id FROM own))
                DELETE FROM {{operations}} WHERE family = %(f)s AND thread = %(t)s""",
            {"f": family, "t": thread},
        )
        self._remove_other_lines(family, thread, raw)
        if raw.lines:
            self._restore_lines(family, raw)
        self._do(
            """INSERT INTO {operations} (family, thread, seq, undone, data)
               SELECT %s, %s, u.* FROM unnest(%s::bigint[], %s::boolean[], %s::bytea[]) AS u""",
            (
                family, thread, [o.seq for o in raw.operations], [o.undone for o in raw.operations],
                [pack_operation(o, o.seq) for o in raw.operations],
            ),
        )  # fmt: skip
        self._do(
            "UPDATE {threads} SET operations = %s, lines = %s WHERE family = %s AND id = %s",
            (len(raw.operations), len(raw.lines), family, thread),
        )
        self._restore_origin(family, thread, raw)
        if raw.shared_states:
            self._restore_shared_states(family, thread, raw)

    def _remove_other_lines(self, family: int, thread: int, raw: RawThread) -> None:
        """Remove the namespaces that the thread shall not have. Their garbage is the thread's, as after deletion."""
        self._forget_places()
        rows = self._all(
            """DELETE FROM {lines} WHERE family = %s AND thread = %s AND namespace <> ALL(%s::bytea[])
               RETURNING id, unreferenced, generation""",
            (family, thread, [namespace.encode() for namespace in raw.lines]),
        )
        if not rows:
            return
        gone = [line for line, _, _ in rows]
        added = self._all(
            "DELETE FROM {checkpoints} WHERE family = %s AND line = ANY(%s) RETURNING added", (family, gone)
        )
        self._do("UPDATE {segments} SET line = NULL WHERE family = %s AND line = ANY(%s)", (family, gone))
        self._do(
            "UPDATE {families} SET generation = greatest(generation, %s) WHERE id = %s",
            (max(generation for _, _, generation in rows), family),
        )
        # What only these lines needed is garbage now, and is swept with the thread's.
        doomed = sum(doomed for _, doomed, _ in rows) + sum(size for (size,) in added)
        self._do(
            f"""UPDATE {{lines}} SET unreferenced = unreferenced + %(d)s
                WHERE family = %(f)s AND id = (SELECT min(own.id) FROM ({_OWN}) own)""",
            {"f": family, "t": thread, "d": doomed},
        )

    def _restore_lines(self, family: int, raw: RawThread) -> None:
        """Set the heads of a thread's namespaces, and what hangs on them."""
        found = self._lines({(raw.thread_id, name) for name in raw.lines})
        numbers = {namespace: line for (_, namespace), line in found.items()}
        own = [numbers[name] for name in raw.lines]
        self._restore_heads(family, raw, numbers)
        self._do(
            """UPDATE {checkpoints} SET pinned = NOT pinned WHERE family = %(f)s AND line = ANY(%(l)s)
               AND ((pinned OR branches > 0) AND pinned OR seq = ANY(%(p)s::bigint[]))
               AND pinned <> (seq = ANY(%(p)s::bigint[]))""",
            {"f": family, "l": own, "p": list(raw.pinned)},
        )
        self._restore_segments(family, raw, numbers)
        hidden = [stretch for stretch in raw.hidden if stretch.namespace in numbers]
        self._insert(
            """INSERT INTO {hidden} (family, line, operation, after, upto, segment, writes_of)
               SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[],
                                    %s::bigint[], %s::bytea[])""",
            [_hidden_row(family, numbers[stretch.namespace], stretch) for stretch in hidden],
        )
        self._do(
            """UPDATE {lines} l
               SET stretches = (SELECT count(*) FROM {hidden} h WHERE h.family = l.family AND h.line = l.id),
                   segments = (SELECT count(*) FROM {segments} r WHERE r.family = l.family AND r.line = l.id)
               WHERE l.family = %s AND l.id = ANY(%s)""",
            (family, own),
        )
        self._insert_write_rows([_write_row(family, numbers[key.namespace], key, write) for key, write in raw.writes])

    def _restore_heads(self, family: int, raw: RawThread, numbers: Mapping[str, int]) -> None:
        """Set the heads of namespaces, given the number of each."""
        rows: list[tuple[Any, ...]] = []
        for namespace, line in raw.lines.items():
            head = line.head.encode() if line.head is not None else None
            rows.append((numbers[namespace], head, line.head_was_moved, line.generation, line.active))
        self._do(
            f"""UPDATE {{lines}} l SET incoming = false, head_was_moved = u.head_was_moved, generation = u.generation,
                       active = {_MADE_ACTIVE},
                       head = (SELECT c.seq FROM {{checkpoints}} c
                               WHERE c.id = u.head AND c.family = l.family AND c.line = l.id)
                FROM unnest(%(line)s::bigint[], %(head)s::bytea[], %(head_was_moved)s::boolean[],
                            %(generation)s::bigint[], %(active)s::bigint[])
                     AS u (line, head, head_was_moved, generation, active) WHERE l.family = %(f)s AND l.id = u.line""",
            {"f": family, **_columns(rows, ("line", "head", "head_was_moved", "generation", "active"))},
        )

    def _restore_segments(self, family: int, raw: RawThread, numbers: Mapping[str, int]) -> None:
        """Note which line each segment belongs to; one that was this thread's and is not given belongs to none."""
        rows: list[tuple[int, int]] = []
        for namespace, line in raw.lines.items():
            rows += [(segment, numbers[namespace]) for segment in line.segments]
        self._do(
            """UPDATE {segments} r SET line = u.line
               FROM {segments} o
               LEFT JOIN unnest(%(segment)s::bigint[], %(line)s::bigint[]) AS u (segment, line)
                   ON u.segment = o.segment
               WHERE o.family = %(f)s AND (u.segment IS NOT NULL OR o.line = ANY(%(own)s))
               AND r.family = o.family AND r.segment = o.segment AND r.line IS DISTINCT FROM u.line""",
            {"f": family, "own": list(numbers.values()), **_columns(rows, ("segment", "line"))},
        )

    def _restore_origin(self, family: int, thread: int, raw: RawThread) -> None:
        # First, since a thread that is restored may have begun elsewhere before.
        self._release_origin(raw.thread_id)
        sealed = pack_origin(raw.origin, raw.thread_id) if raw.origin is not None else None
        self._do(
            "UPDATE {threads} SET began = %s, origin = %s, note = %s WHERE family = %s AND id = %s",
            (raw.began or None, sealed, raw.note, family, thread),
        )
        if raw.origin is not None and raw.began:
            self._do(
                "UPDATE {checkpoints} SET branches = branches + 1 WHERE id = %s AND family = %s AND seq = %s",
                (raw.origin.checkpoint_id.encode(), family, raw.began),
            )

    def _restore_shared_states(self, family: int, thread: int, raw: RawThread) -> None:
        """Replace the states in common with the threads that are named and of the family."""
        names = [other.encode() for other in raw.shared_states]
        others = self._all("SELECT name, thread FROM {names} WHERE family = %s AND name = ANY(%s)", (family, names))
        pairs: list[tuple[int, int]] = []
        rows: list[tuple[Any, ...]] = []
        for encoded, other in others:
            name = encoded.decode()
            # The thread of the smaller number is named first, in the row and under its seal.
            if thread < other:
                pair = thread, other
                both = raw.thread_id, name
            else:
                pair = other, thread
                both = name, raw.thread_id
            pairs.append(pair)
            for common in raw.shared_states[name][-SHARED_STATES_MAX:]:
                rows.append((family, *pair, common.place.seq, pack_shared_state(common, *both), common.root.children))
        self._do(
            """DELETE FROM {shared_states} c USING unnest(%(low)s::bigint[], %(high)s::bigint[]) AS u (low, high)
               WHERE c.family = %(f)s AND c.low = u.low AND c.high = u.high""",
            {"f": family, **_columns(pairs, ("low", "high"))},
        )
        self._insert(
            """INSERT INTO {shared_states} (family, low, high, seq, data, children)
               SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bytea[],
                                    %s::bytea[])""",
            rows,
        )


class _Replaced(NamedTuple):
    """What is known of a checkpoint that another one came in the place of."""

    seq: int
    is_pinned: bool


_NEW_LINE_COLUMNS = ("line_names", "namespaces", "heads", "moved", "generations", "actives", "stored", "segments")
_CHECKPOINT_COLUMNS = (
    "line", "seq", "segment", "added", "step", "pinned", "id", "labels", "info", "children", "root",
)  # fmt: skip


def _columns(rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return rows as columns, which is how a statement takes many at once; of no rows, empty ones."""
    if not rows:
        return {name: [] for name in names}
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _new_line_rows(part: Part) -> list[tuple[Any, ...]]:
    """Return the namespaces of a new thread, in the order of `_NEW_LINE_COLUMNS`."""
    seqs = {stored.record.key: stored.seq for stored in part.checkpoints}
    counts = collections.Counter(key[:2] for key in seqs)
    (raw,) = part.threads
    rows: list[tuple[Any, ...]] = []
    for namespace, line in raw.lines.items():
        head: int | None = None
        if line.head is not None:
            head = seqs.get(Key(part.thread_id, namespace, line.head))
            if head is None:
                raise CheckpointNotFound(line.head, part.thread_id)
        owned = sum(segment in part.segments for segment in line.segments)
        rows.append(
            (part.thread_id.encode(), namespace.encode(), head, line.head_was_moved, line.generation, line.active,
             counts[part.thread_id, namespace], owned)
        )  # fmt: skip
    return rows


def _write_row(family: int, line: int, key: Key, write: Write) -> tuple[Any, ...]:
    return (
        family, line, write.seq, write.idx, packed_id(key.checkpoint_id), packed_id(write.task_id),
        pack_write(key.checkpoint_id, write), write.children,
    )  # fmt: skip


def _hidden_row(family: int, line: int, hidden: Hidden) -> tuple[Any, ...]:
    writes_of = packed_id(hidden.writes_of) if hidden.writes_of is not None else None
    return family, line, hidden.operation, hidden.after, hidden.to, hidden.segment, writes_of


def _families(lines: Mapping[tuple[str, str], tuple[int, int]]) -> dict[str, int]:
    """Return the family of each thread, given that and the number of each namespace."""
    return {thread_id: family for (thread_id, _), (family, _) in lines.items()}


def _labels_text(stored: Stored) -> str | None:
    """Return labels as the text of an array: arrays of different lengths make no array."""
    found = labels(stored.record.metadata, stored.record.tags)
    return "{" + ",".join(map(str, found)) + "}" if found is not None else None
