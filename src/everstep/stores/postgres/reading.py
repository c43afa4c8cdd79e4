"""Checkpoints, objects and lists of them, in SQL."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everstep.stores.heads import SeenHead
from everstep.stores.postgres.asking import TABLES, Asking
from everstep.stores.postgres.forms import (
    GROWTH,
    HIDDEN,
    LISTED,
    LOAD,
    LOST_STRETCH,
    MARKS_MAX,
    OF_THREADS,
    STALE,
    STALE_HEAD,
    STORED_COUNTED_MAX,
    KnownHead,
    ask_whole,
    check_answer,
    damaged,
    deletion_mark,
    encoded_columns,
    is_unknown,
    key_of,
    labels,
    name_bytes,
    to_bytes,
    to_listed,
    to_loaded,
)
from everstep.stores.protocol import Key, Loaded, Object, Query, Stored
from everstep.stores.records import matches, packed_filter, unpack_operation

# A stretch that hides checkpoints of the line is lost.
_TORN = """(l.stretches <> {stretches}(l.family, l.id) OR l.stretches > 0
            AND NOT EXISTS (SELECT 1 FROM {covers} v WHERE v.family = l.family AND v.line = l.id)
            AND EXISTS (SELECT 1 FROM {hidden} h JOIN {checkpoints} x ON x.family = h.family AND x.line = h.line
                        AND x.seq > h.after AND x.seq <= h.upto
                        WHERE h.family = l.family AND h.line = l.id AND h.writes_of IS NULL))"""
_OF_THREADS_IF_THERE = OF_THREADS.replace("JOIN", "LEFT JOIN")
"""The same with checkpoints whose own rows are lost: they must not be left out silently."""
_FROM_CHECKPOINTS = f"FROM {{checkpoints}} c {OF_THREADS}"
_OF_LINES = {
    # By family too, so that the tables are entered by their keys.
    "thread": "t.name = %(thread)s AND l.family = (SELECT family FROM {names} WHERE name = %(thread)s)",
    "namespace": "l.namespace = %(namespace)s",
}
_OF_CHECKPOINTS = {
    "checkpoint_id": "c.id = %(checkpoint_id)s",
    "before_id": "c.id < %(before_id)s",
    "before_seq": "c.seq < %(before_seq)s",
    "after_seq": "c.seq > %(after_seq)s",
    "step_max": "c.step <= %(step_max)s",
    "segment": "c.segment = %(segment)s",
    "protected": "(c.pinned OR c.branches > 0) = %(protected)s",
    "labels": "c.labels @> %(labels)s::bigint[]",
}


class Reading(Asking):
    """Reads checkpoints and objects."""

    def clock(self) -> float:
        """Return the server's time, in seconds since 1970."""
        return float(self._one("SELECT extract(epoch FROM clock_timestamp())::float8")[0])

    def generation_seen(self, thread_id: str, namespace: str) -> tuple[str, int] | None:
        """Return a line's family and generation, without a lock."""
        row = self._one(
            """SELECT l.family, l.generation FROM {names} n JOIN {lines} l ON l.family = n.family
               AND l.thread = n.thread WHERE n.name = %s AND l.namespace = %s""",
            name_bytes(thread_id, namespace),
        )
        return None if row is None else (str(row[0]), row[1])

    def was_deleted(self, thread_id: str, seen: SeenHead[KnownHead]) -> bool:
        """Whether a line that was seen, and is not there any more, was deleted, as far as can be told.

        A line that is deleted from a family that lives on leaves its generation there; a thread that is deleted leaves
        a mark. If so many were deleted since that the mark may have made room, that is taken for a deletion.
        """
        row = self._one(
            """SELECT coalesce((SELECT generation FROM {families} WHERE id = %(f)s), -1) >= %(g)s
               OR EXISTS (SELECT 1 FROM {gone} WHERE name = %(n)s AND seq >= %(s)s)
               OR (SELECT count(*) >= %(m)s AND min(seq) >= %(s)s FROM {gone})""",
            {
                "f": int(seen.family),
                "g": seen.generation,
                "n": deletion_mark(thread_id),
                "s": seen.seq,
                "m": MARKS_MAX,
            },
        )
        return bool(row[0])

    def load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, objects: bool, writes: bool
    ) -> tuple[Loaded, KnownHead | None] | None:
        """Read a checkpoint, its objects and its writes in one statement: one round trip, one state."""
        rows = self._all(LOAD, (*name_bytes(thread_id, namespace), to_bytes(checkpoint_id), objects, writes))
        if is_unknown(rows):
            return None
        if not rows:
            # Nothing was found, which is right for most who ask. Whether rows are lost is looked at only
            # then.
            self.check_whole(thread_id, namespace, stored_max=0 if checkpoint_id is None else STORED_COUNTED_MAX)
            return None
        return self._checked_load(thread_id, namespace, checkpoint_id, rows)

    def _checked_load(
        self, thread_id: str, namespace: str, checkpoint_id: str | None, rows: Sequence[Any]
    ) -> tuple[Loaded, KnownHead | None]:
        if rows[0][9] & _IS_TORN:
            raise damaged(STALE_HEAD if checkpoint_id is None else LOST_STRETCH, thread_id)
        return to_loaded(thread_id, namespace, rows)

    def origin(self, checkpoint_id: str) -> tuple[Loaded, int] | None:
        """Read what a branch begins with, and the top of its thread's log; None: ask for them one by one."""
        rows = self._all("SELECT * FROM {origin}(%s)", (checkpoint_id.encode(),))
        kinds = [row[0] for row in rows]
        if kinds[:2] != [_A_CHECKPOINT, _ITS_NAMES]:
            return None
        thread_id, namespace, _ = key_of((*rows[1][10:12], b""))
        loaded, _ = self._checked_load(thread_id, namespace, checkpoint_id, rows[:1])
        top = 0
        for entry in rows[2:]:
            operation = unpack_operation(entry[10], entry[2], bool(entry[9]))
            # Then an older one may be the top.
            if operation.undone:
                return None
            top = operation.seq
        return loaded, top

    def check_whole(self, thread_id: str, namespace: str | None = None, *, stored_max: int = 0) -> None:
        """Raise CheckpointCorrupted if rows of a thread are missing (or of one namespace of it), or do not agree.

        With `stored_max` checkpoints are counted too, in namespaces that have no more than so many. One statement,
        which sees one state of the database.
        """
        asked = ask_whole(thread_id, namespace, stored_max)
        check_answer(thread_id, self._all(*asked), asked)

    def load_many(self, keys: Sequence[Key], writes: bool) -> list[Loaded]:
        """Read checkpoints and their writes in one statement."""
        asked = list(dict.fromkeys(keys))
        threads, namespaces, names = encoded_columns(asked)
        parts = [_LOAD_CHECKPOINT]
        if writes:
            parts.append(_LOAD_WRITES)
        places: dict[int, list[Any]] = {}
        for row in self._all(
            _LOAD_MANY.replace("{torn}", "(l.stretches > 0)") + " UNION ALL ".join(parts),
            {"t": threads, "n": namespaces, "c": names},
        ):
            places.setdefault(row[1], []).append(row)
        found = {}
        hiding: set[tuple[int, int]] = set()
        for place, rows in places.items():
            key = asked[place - 1]
            if rows[0][9] & _IS_TORN:
                hiding.add((rows[0][7], rows[0][8]))
            found[key] = to_loaded(key.thread_id, key.namespace, rows)[0]
        # Once for all of them: what is hidden can be told only if nothing is lost that hides it.
        self._check_stretches(hiding)
        for thread_id, namespace in dict.fromkeys(key[:2] for key in asked if key not in found):
            self.check_whole(thread_id, namespace, stored_max=STORED_COUNTED_MAX)
        return [found[key] for key in keys if key in found]

    def find(self, checkpoint_id: str) -> list[Key]:
        rows = self._all(
            f"""SELECT t.name, l.namespace, c.id, c.family, c.line FROM {{checkpoints}} c {_OF_THREADS_IF_THERE}
                WHERE c.id = %s ORDER BY c.seq""",
            (checkpoint_id.encode(),),
        )
        self._check_owned((row[3], row[4]) for row in rows if row[0] is None)
        return [key_of(row[:3]) for row in rows]

    def below(self, family: str, wanted: Iterable[bytes]) -> list[Object]:
        """Return these objects and all below them."""
        rows = self._all("SELECT hash, children, body FROM {below}(%s, %s)", (int(family), b"".join(wanted)))
        return [Object(*row) for row in rows]

    def below_many(self, wanted: Mapping[str, Iterable[bytes]]) -> list[Object]:
        """Return these objects of several families, and all below them."""
        rows = self._all(
            """SELECT b.hash, b.children, b.body FROM unnest(%s::bigint[], %s::bytea[]) AS w (family, wanted)
               CROSS JOIN LATERAL {below}(w.family, w.wanted) b""",
            ([int(family) for family in wanted], [b"".join(keys) for keys in wanted.values()]),
        )
        return [Object(*row) for row in rows]

    def present(self, thread_ids: Sequence[str]) -> set[str]:
        """Return which of these threads are there, also if rows of them are lost."""
        names = [name.encode() for name in thread_ids]
        text = "SELECT name FROM {names} WHERE name = ANY(%s) UNION SELECT name FROM {threads} WHERE name = ANY(%s)"
        return {bytes(name).decode() for (name,) in self._all(text, (names, names))}

    def heads(self, lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Return the ids of the heads of these lines."""
        rows = self._all(
            f"""SELECT w.place, c.id, {STALE} FROM unnest(%s::bytea[], %s::bytea[]) WITH ORDINALITY
                  AS w (name, namespace, place)
                JOIN {{names}} n ON n.name = w.name
                JOIN {{lines}} l ON l.family = n.family AND l.thread = n.thread AND l.namespace = w.namespace
                JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head""",
            ([name.encode() for name, _ in lines], [namespace.encode() for _, namespace in lines]),
        )
        found: dict[tuple[str, str], str] = {}
        for place, checkpoint_id, is_stale in rows:
            line = lines[place - 1]
            if is_stale:
                raise damaged(STALE_HEAD, line[0])
            found[line] = bytes(checkpoint_id).decode()
        return found

    def shallow(self, family: str, wanted: Collection[bytes]) -> list[Object]:
        """Return just these objects."""
        rows = self._all(
            "SELECT hash, children, body FROM {objects} WHERE family = %s AND hash = ANY(%s)",
            (int(family), list(wanted)),
        )
        return [Object(*row) for row in rows]

    def list_checkpoints(self, query: Query) -> list[Stored]:
        found = self._list_checkpoints(query)
        if query.thread_id is not None:
            # A query that reads everything may as well count it: a checkpoint that is missing is noticed.
            is_all = _is_of_all(query) and (query.limit is None or len(found) < query.limit)
            if is_all or not found:
                self.check_whole(query.thread_id, query.namespace, stored_max=1 << 40 if is_all else 0)
        return found

    def _list_checkpoints(self, query: Query) -> list[Stored]:
        order = {"seq": "c.seq DESC", "id": "c.id DESC, c.seq DESC", "oldest": "c.seq"}[query.order]
        if query.filter:
            wanted = packed_filter(query.filter)
            end = None if query.limit is None else query.offset + query.limit
            size = end
            while True:
                found = self._page(query, order, size, 0)
                matching = [stored for stored in found if matches(stored.record.metadata, wanted)]
                if size is None or len(found) < size or len(matching[:end]) == end:
                    return matching[query.offset : end]
                # Some entries have no label; and, once in an age, two have the same.
                size *= GROWTH
        return self._page(query, order, query.limit, query.offset)

    def _page(self, query: Query, order: str, limit: int | None, offset: int) -> list[Stored]:
        lines, where, values = self._where(query)
        bound = {**values, "end": None if limit is None else limit + offset}
        is_whole = limit is None or query.checkpoint_id is not None
        if query.thread_id is None and is_whole:
            source = f"FROM {{checkpoints}} c {_OF_THREADS_IF_THERE} WHERE {where} AND ({lines}) IS NOT FALSE"
        elif is_whole:
            source = f"{_FROM_CHECKPOINTS} WHERE {where} AND {lines}"
        elif query.thread_id is None:  # no more than that from the index: who they belong to is looked up later
            own = f"SELECT {lines} FROM {{lines}} l WHERE l.family = c.family AND l.id = c.line"
            source = f"""FROM (SELECT * FROM {{checkpoints}} c
                               WHERE {where} AND {f"({own}) IS NOT FALSE" if query.namespace is not None else "true"}
                               ORDER BY {order} LIMIT %(end)s) c {_OF_THREADS_IF_THERE}"""
        else:  # no more than that from each line, in the order of the key: the rest of a long line is not looked at
            source = f"""FROM {{lines}} l JOIN {{threads}} t ON t.family = l.family AND t.id = l.thread
                         CROSS JOIN LATERAL (
                             SELECT * FROM {{checkpoints}} c WHERE c.family = l.family AND c.line = l.id AND {where}
                             ORDER BY {order} LIMIT %(end)s) c
                         WHERE {lines}"""
        rows = self._all(
            f"""SELECT {LISTED}, l.id, l.stretches, c.family, c.line {source}
                ORDER BY {order} LIMIT %(limit)s OFFSET %(offset)s""",
            {**bound, "limit": limit, "offset": offset},
        )
        self._check_owned((row[14], row[15]) for row in rows if row[9] is None)
        self._check_stretches({(row[11], row[12]) for row in rows if row[13]})
        return [to_listed(row[:12]) for row in rows]

    def _check_owned(self, orphans: Iterable[tuple[int, int]]) -> None:
        """Raise CheckpointCorrupted for checkpoints (by family and line) whose namespace or thread is lost."""
        for family, line in orphans:
            row = self._one(
                """SELECT l.thread FROM {lines} l WHERE l.family = %(f)s AND l.id = %(l)s
                   UNION ALL SELECT t.id FROM {threads} t WHERE t.family = %(f)s AND t.lines <>
                       (SELECT count(*) FROM {lines} l WHERE l.family = t.family AND l.thread = t.id)
                   LIMIT 1""",
                {"f": family, "l": line},
            )
            name = self._name_of(family, row[0]) if row is not None else ""
            raise damaged("a namespace or the thread of a checkpoint is missing", name)

    def _check_stretches(self, lines: Collection[tuple[int, int]]) -> None:
        """Raise CheckpointCorrupted if a line has lost some of what it hides. Once per page, not per row."""
        if not lines:
            return
        torn = self._one(
            f"""SELECT l.family, l.thread FROM unnest(%s::bigint[], %s::bigint[]) AS u (family, line)
                JOIN {{lines}} l ON l.family = u.family AND l.id = u.line
                WHERE {_TORN} LIMIT 1""",
            ([family for family, _ in lines], [line for _, line in lines]),
        )
        if torn is not None:
            raise damaged(LOST_STRETCH, self._name_of(*torn))

    def count(self, query: Query) -> int:
        # What labels find has to be looked at, one by one.
        if query.filter or query.offset or query.limit is not None:
            return len(self.list_checkpoints(query))
        lines, where, values = self._where(query)
        text = f"SELECT count(*) {_FROM_CHECKPOINTS} WHERE {where} AND {lines}"
        if query.hidden == "no":
            # What is covered in every segment is hidden. Where covers are of single segments, every row is looked at.
            every = self._where(replace(query, hidden="also"))[1]
            text = f"""SELECT CASE WHEN EXISTS (
                    SELECT 1 FROM {{lines}} l JOIN {{threads}} t ON t.family = l.family AND t.id = l.thread
                    JOIN {{covers}} v ON v.family = l.family AND v.line = l.id AND v.segment > 0 WHERE {lines}
                ) THEN ({text}) ELSE (
                    SELECT count(*) {_FROM_CHECKPOINTS} WHERE {every} AND {lines}
                ) - (
                    SELECT count(*) {_FROM_CHECKPOINTS} JOIN {{covers}} v ON v.family = l.family AND v.line = l.id
                    AND v.segment = 0 AND c.seq > v.after AND c.seq <= v.upto WHERE {every} AND {lines}
                ) END"""
        found: int = self._one(text, values)[0]
        if query.thread_id is not None and (_is_of_all(query) or not found):
            self.check_whole(query.thread_id, query.namespace, stored_max=1 << 40 if _is_of_all(query) else 0)
        return found

    def size_bytes(self) -> int:
        sql = "SELECT sum(pg_total_relation_size(to_regclass(name)))::bigint FROM unnest(%(names)s::text[]) AS name"
        # What is no table counts nothing.
        names = [self._tables("{" + name + "}") for name in TABLES]
        found: int = self._one(sql, {"names": names})[0]
        return found

    def _where(self, query: Query) -> tuple[str, str, dict[str, Any]]:
        """Return what a query asks of lines and what of checkpoints, and the values in it."""
        values = {
            "thread": to_bytes(query.thread_id),
            "namespace": to_bytes(query.namespace),
            "checkpoint_id": to_bytes(query.checkpoint_id),
            "before_id": to_bytes(query.before_id),
            "before_seq": query.before_seq,
            "after_seq": query.after_seq,
            "step_max": query.step_max,
            "segment": query.segment,
            "protected": query.protected,
            "labels": labels(query.filter),
        }
        asked = {name: value for name, value in values.items() if value is not None}
        lines = [text for name, text in _OF_LINES.items() if name in asked]
        where = [text for name, text in _OF_CHECKPOINTS.items() if name in asked]
        # IS TRUE: a plain NOT EXISTS would be made a join, which may look at a whole line.
        where += {"no": [f"(NOT {HIDDEN}) IS TRUE"], "only": [HIDDEN], "also": []}[query.hidden]
        return " AND ".join(lines) or "true", " AND ".join(where) or "true", asked

    def _name_of(self, family: int, thread: int) -> str:
        """Return the name of a damaged thread, wherever it is kept."""
        row = self._one(
            """SELECT name FROM {threads} WHERE family = %(f)s AND id = %(t)s
               UNION ALL SELECT name FROM {names} WHERE family = %(f)s AND thread = %(t)s LIMIT 1""",
            {"f": family, "t": thread},
        )
        return "" if row is None else bytes(row[0]).decode()


# One row shape for all three: kind, place among those asked for, eight numbers, four byte strings. The checkpoint comes
# first.
_IS_TORN = 8
# What rows of {origin} are.
_A_CHECKPOINT = 0
_ITS_NAMES = 4
_CHOSEN = f"""SELECT l.generation, l.head_was_moved, c.*, {HIDDEN} AS hidden, {{torn}} AS torn FROM {{names}} n
        JOIN {{lines}} l ON l.family = n.family AND l.thread = n.thread
        JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id"""
# OFFSET 0: each is looked up by itself, by the keys of the tables.
_LOAD_MANY = f"""WITH chosen AS (
        SELECT a.place, c.* FROM unnest(%(t)s::bytea[], %(n)s::bytea[], %(c)s::bytea[])
            WITH ORDINALITY AS a (thread, namespace, id, place)
        CROSS JOIN LATERAL (
            {_CHOSEN} WHERE n.name = a.thread AND l.namespace = a.namespace AND c.id = a.id OFFSET 0
        ) c
    )"""
_LOAD_CHECKPOINT = """ SELECT 0, place, generation, seq, step, segment, added, family, line,
    pinned::int + 2 * hidden::int + 4 * head_was_moved::int + 8 * torn::int, id, info, children, root FROM chosen"""
_LOAD_WRITES = """SELECT 2, place, w.seq, w.idx, 0, 0, 0, 0, 0, 0, w.task, w.info, w.children, ''::bytea FROM chosen
    CROSS JOIN LATERAL (
        SELECT * FROM {writes} w WHERE w.family = chosen.family AND w.line = chosen.line
        AND w.checkpoint = {packed}(chosen.id)
        AND NOT EXISTS (SELECT 1 FROM {hidden} h WHERE h.family = w.family AND h.line = w.line
                        AND h.writes_of = w.checkpoint AND w.seq > h.after AND w.seq <= h.upto) OFFSET 0
    ) w"""


def _is_of_all(query: Query) -> bool:
    """Whether a query looks at every checkpoint of a namespace, so that counting them costs no more."""
    asked = (
        query.checkpoint_id, query.before_id, query.before_seq, query.after_seq,
        query.step_max, query.segment, query.protected,
    )  # fmt: skip
    return not query.filter and all(each is None for each in asked)
