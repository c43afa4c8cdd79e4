"""Finding threads by name, metadata, tags and time, by an index and in the order of their activity."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.stores.facts import Wanted, prefix_end
from everstep.stores.postgres.forms import GROWTH, LISTED, OUTLINES, labels, to_bytes, to_listed
from everstep.stores.postgres.threads import ReadingThreads
from everstep.stores.protocol import Hit, Position, Search, Stored

# Threads that have lost rows come too, if something is left of them: whoever asks for their page is told.
_OF_ONE_THREAD = """max(active) AS active, count(*) AS lines,
                    coalesce(min(namespace) FILTER (WHERE head IS NOT NULL), min(namespace)) AS first"""
_SHOWN = f"l.head, coalesce(l.family, t.family), coalesce(l.thread, t.id), a.lines, t.lines, {LISTED}"
_OF_SHOWN = """JOIN {lines} l ON l.family = a.family AND l.thread = a.thread AND l.namespace = a.first
               FULL JOIN {threads} t ON t.family = a.family AND t.id = a.thread"""
_IS_SHOWN = "(l.head IS NOT NULL OR c.seq IS NOT NULL OR t.lines IS DISTINCT FROM coalesce(a.lines, 0))"
_MICROS = "CASE WHEN isfinite(a.active) THEN (extract(epoch FROM a.active) * 1000000)::bigint ELSE 0 END"
# How many threads an index may give for them to be put in order one by one.
_NARROW = 1000
# How much more is looked at than it takes if threads with a label are spread evenly.
_LOOKS_MORE = 1.25
# How many checkpoints, of which most may be old ones that are no head any more.
_NARROW_LABELS = 10_000


class Searching(ReadingThreads):
    """Searches threads."""

    def list_threads(self, limit: int, offset: int, headless: bool) -> list[Stored]:
        oldest = "(SELECT min(seq) FROM {checkpoints} o WHERE o.family = l.family AND o.line = l.id)"
        head = f"coalesce(l.head, {oldest})" if headless else "l.head"
        rows = self._all(
            f"""SELECT {_SHOWN} FROM (SELECT family, thread, {_OF_ONE_THREAD} FROM {{lines}} GROUP BY family, thread) a
                {_OF_SHOWN} LEFT JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = {head}
                WHERE {_IS_SHOWN}
                ORDER BY a.active DESC NULLS LAST, coalesce(a.thread, t.id) DESC LIMIT %s OFFSET %s""",
            (limit, offset),
        )
        found: list[Stored] = []
        for shown in self._shown(rows):
            if isinstance(shown, CheckpointCorrupted):
                raise shown
            found.append(shown)
        return found

    def search(self, search: Search) -> list[Hit]:
        wanted = Wanted.of(search)
        found: list[Hit] = []
        after = search.after
        for source in self._sources(search):
            size = search.limit
            is_more_left = True
            while is_more_left and len(found) < search.limit:
                rows = self._all(*_search_text(search, source, after, size))
                for (active, *_), shown in zip(rows, self._shown([row[1:] for row in rows]), strict=True):
                    if isinstance(shown, CheckpointCorrupted):
                        if not shown.thread_id:
                            # Nothing is left of the thread but a row without a name, so there is nothing that
                            # a page could name.
                            raise shown
                        after = Position(active or 0, shown.thread_id)
                        found.append(Hit(None, after, shown))
                        continue
                    after = Position(active, shown.record.key.thread_id)
                    if wanted.fits(shown.record):
                        found.append(Hit(shown, after))
                is_more_left = len(rows) == size
                # Some entries have no label; and, once in an age, two have the same.
                size = min(size * GROWTH, OUTLINES)
            if len(found) >= search.limit:
                break
        return found[: search.limit]

    def _sources(self, search: Search) -> Iterator[_Source]:
        """Yield where the threads of a search may be found, one after the other: what is in the first comes first."""
        if search.prefix and self._is_narrow(search, _BEGINNING, _NARROW):
            yield _Source(_BEGINNING.select.replace("{prefix}", _begins_with("n", search)))
            return
        # An index on labels gives all rows that have them before the first can be looked at. Where many threads have
        # them a page is full before that: then those that were active last are looked at first.
        size = search.limit
        is_labelled = labels(search.filter, search.tags) is not None
        if is_labelled:
            expected = self._expected_looks(search)
            if expected is not None:
                size = min(max(size, expected), OUTLINES)
            elif self._is_narrow(search, _LABELLED, _NARROW_LABELS):
                yield _Source(_LABELLED.select)
                return
            else:
                is_labelled = False
        for moments in self._moments(search, size):
            yield moments
            # Once: what was active last was not enough.
            if is_labelled and self._is_narrow(search, _LABELLED, _NARROW_LABELS):
                yield _Source(_LABELLED.select, None, moments.first)
                return
            is_labelled = False
        if search.since is None and search.after is None:
            # Threads that were never active: only those who look for losses want them.
            yield _Source(None, None, _NEVER)

    def _moments(self, search: Search, size: int) -> Iterator[_Source]:
        """Yield stretches of time, the last one first: each has so many threads that were active then, and more."""
        before = search.after.active + 1 if search.after is not None else None
        while search.since is None or before is None or before > search.since:
            first = self._one(_FIRST_MOMENT, {"before": before, "size": size})[0]
            if first is None:
                return
            yield _Source(_OF_MOMENTS, first, before)
            before = first
            size = min(size * GROWTH, OUTLINES)

    def _expected_looks(self, search: Search) -> int | None:
        """Return at how many threads to look for a page of those that have some labels, by what the server guesses.

        None: it is less work to look at all rows that have them.
        """
        rows: float = self._one("SELECT reltuples FROM pg_class WHERE oid = '{checkpoints}'::regclass")[0]
        if rows <= 0:
            # The server has not counted its rows yet, so it cannot guess. A page of those that were active last costs
            # little, and will do if most have them.
            return search.limit
        explained = self._one(
            f"EXPLAIN (FORMAT JSON) SELECT 1 {_LABELLED.table}", {"labels": labels(search.filter, search.tags)}
        )[0]
        labelled: float = explained[0]["Plan"]["Plan Rows"]
        looks = search.limit * rows / max(labelled, 1)
        return round(looks * _LOOKS_MORE) if looks < labelled else None

    def _is_narrow(self, search: Search, index: _Index, most: int) -> bool:
        """Whether an index gives no more than so many rows for a search."""
        table = index.table.replace("{prefix}", _begins_with("n", search))
        count: int = self._one(
            f"SELECT count(*) FROM (SELECT 1 {table} LIMIT {most + 1}) x", _search_values(search, None, 0)
        )[0]
        return count <= most

    def _shown(self, rows: Iterable[Sequence[Any]]) -> list[Stored | CheckpointCorrupted]:
        """Return what threads are listed by, or what is wrong with them."""
        found: list[Stored | CheckpointCorrupted] = []
        for row in rows:
            family, thread = row[1:3]
            try:
                found.append(_shown_head(row))
            except CheckpointCorrupted as exc:
                found.append(exc.located(self._name_of(family, thread), None))
        return found


class _Index(NamedTuple):
    """What finds threads by something else than their activity."""

    table: str
    """What to count: more rows than threads, maybe."""
    select: str
    """The query for the threads."""


_BEGINNING = _Index(
    "FROM {threads} n WHERE {prefix}",
    "SELECT n.family, n.id AS thread FROM {threads} n WHERE {prefix}",
)
_LABELLED = _Index(
    "FROM {checkpoints} c WHERE c.labels @> %(labels)s::bigint[]",
    "SELECT DISTINCT o.family, o.thread FROM {checkpoints} c "
    "JOIN {lines} o ON o.family = c.family AND o.id = c.line AND o.head = c.seq "
    "WHERE c.labels @> %(labels)s::bigint[]",
)


def _begins_with(table: str, search: Search) -> str:
    upper = "" if prefix_end(search.prefix) is None else f" AND {table}.name < %(prefix_end)s"
    return f"{table}.name >= %(prefix)s{upper}"


def _search_values(search: Search, after: Position | None, limit: int) -> dict[str, Any]:
    return {
        "prefix": search.prefix.encode(),
        "prefix_end": to_bytes(prefix_end(search.prefix)),
        "labels": labels(search.filter, search.tags),
        "since": search.since,
        "active": after.active if after is not None else None,
        "name": after.thread_id.encode() if after is not None else None,
        "limit": limit,
    }


def _search_text(search: Search, source: _Source, after: Position | None, limit: int) -> tuple[str, dict[str, Any]]:
    """Return the query for some threads that a search may be about, in its order, and the values in it."""
    conditions = [_IS_SHOWN]
    if search.prefix:
        conditions.append(_begins_with("t", search))
    values = {**_search_values(search, after, limit), "first": source.first, "before": source.before}
    if values["labels"] is not None:
        conditions.append("c.labels @> %(labels)s::bigint[]")
    if search.since is not None:
        conditions.append(f"a.active >= {_MOMENT.format('since')}")
    if after is not None:
        conditions.append(f"(a.active, t.name) < ({_MOMENT.format('active')}, %(name)s::bytea)")
    if source.first is not None:
        conditions.append(f"a.active >= {_MOMENT.format('first')}")
    if source.before is _NEVER:
        conditions.append("(a.active IS NULL OR NOT isfinite(a.active))")
    elif source.before is not None:
        conditions.append(f"a.active < {_MOMENT.format('before')}")
    lines = "{lines}"
    joined = _OF_SHOWN
    if source.text is not None:
        lines = (
            f"(SELECT x.* FROM (SELECT DISTINCT * FROM ({source.text}) y) s JOIN {{lines}} x USING (family, thread)) z"
        )
        joined = joined.replace("FULL JOIN", "LEFT JOIN")
    text = f"""SELECT {_MICROS}, {_SHOWN} FROM
                 (SELECT family, thread, {_OF_ONE_THREAD} FROM {lines} GROUP BY family, thread) a
               {joined} LEFT JOIN {{checkpoints}} c ON c.family = l.family AND c.line = l.id AND c.seq = l.head
               WHERE {" AND ".join(conditions)}
               ORDER BY a.active DESC NULLS LAST, t.name DESC LIMIT %(limit)s"""
    return text, values


_MOMENT = "'epoch'::timestamptz + %({})s::bigint * interval '1 microsecond'"
_MINUTE = "date_bin(interval '1 minute', {}, 'epoch'::timestamptz)"
_BEFORE = f"""minute <= coalesce({_MINUTE.format(_MOMENT.format("before"))}, 'infinity')
              AND active < coalesce({_MOMENT.format("before")}, 'infinity')"""
_OF_MOMENTS = f"""SELECT family, thread FROM {{lines}} WHERE minute >= {_MINUTE.format(_MOMENT.format("first"))}
                  AND active >= {_MOMENT.format("first")} AND {_BEFORE}"""
# Only the minutes that are needed are put in order: they are an index.
_FIRST_MOMENT = f"""SELECT (extract(epoch FROM min(active)) * 1000000)::bigint FROM
                    (SELECT active FROM {{lines}} WHERE {_BEFORE} ORDER BY minute DESC, active DESC LIMIT %(size)s) x"""
_NEVER = -1


class _Source(NamedTuple):
    """Where some threads of a search are found."""

    text: str | None
    """The query for them; None: they are among all."""
    first: int | None = None
    """When they were active at the earliest, in microseconds."""
    before: int | None = None
    """They were not active at that moment or later; _NEVER: not at all."""


def _shown_head(row: Sequence[Any]) -> Stored:
    """Return what a thread is listed by, a row of `_SHOWN`; raise if it has lost rows, or this one is damaged."""
    head_seq, _, _, lines, lines_kept, *columns = row
    if lines_kept is not None and lines_kept != (lines or 0):
        raise CheckpointCorrupted("a namespace is missing")
    if head_seq is not None and columns[0] is None:
        raise CheckpointCorrupted("its head points to a checkpoint that is missing")
    if columns[9] is None:
        raise CheckpointCorrupted("its row of threads is missing")
    return to_listed(columns)
