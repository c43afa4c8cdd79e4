"""Threads that are listed and searched for: by the index that gives the fewest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.stores.facts import Wanted, prefix_end
from everstep.stores.protocol import Hit, Position, Search, Stored
from everstep.stores.sqlite.forms import FROM_CHECKPOINTS, LISTED, NARROW, STALE, as_damage, check_head, to_listed
from everstep.stores.sqlite.threads import ReadingThreads

_LISTED_HEAD = f"""SELECT l.head, {STALE}, {LISTED} FROM lines l JOIN threads t ON t.id = l.thread
                   LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id
                   WHERE l.thread = ? AND l.head IS NOT NULL ORDER BY l.namespace LIMIT 1"""
# A thread is found by the line of it that moved last.
_BY_ACTIVITY = """SELECT l.thread, l.active, t.name, (SELECT k.active FROM lines k NOT INDEXED WHERE k.id = l.id)
                  FROM {} CROSS JOIN threads t ON t.id = l.thread WHERE NOT EXISTS
                  (SELECT 1 FROM lines o WHERE o.thread = l.thread AND o.id <> l.id
                   AND (o.active > l.active OR o.active = l.active AND o.id > l.id))"""


class Candidate(NamedTuple):
    """A thread that a search may be about."""

    thread: int
    active_kept: Any
    """When it was active last by its own row, beside what the index says."""
    position: Position


class Searching(ReadingThreads):
    """Lists of threads."""

    def list_threads(self, limit: int, offset: int, headless: bool) -> list[Stored]:
        head = "coalesce(l.head, (SELECT min(seq) FROM checkpoints WHERE line = l.id))" if headless else "l.head"
        first = "coalesce(min(CASE WHEN head IS NOT NULL THEN namespace END), min(namespace))"
        rows = self._execute(
            f"""SELECT p.head, {STALE}, {LISTED} FROM
                  (SELECT l.id, a.active, {head} AS head FROM
                    (SELECT thread, max(active) AS active, {first} AS first FROM lines GROUP BY thread) a
                  JOIN lines l ON l.thread = a.thread AND l.namespace = a.first WHERE {head} IS NOT NULL
                  ORDER BY a.active DESC, a.thread DESC LIMIT ? OFFSET ?) p
                JOIN lines l ON l.id = p.id JOIN threads t ON t.id = l.thread
                LEFT JOIN checkpoints c ON c.seq = p.head AND c.line = l.id
                ORDER BY p.active DESC, t.id DESC""",
            (limit, offset),
        )
        found = []
        for head_seq, is_stale, *row in rows:
            check_head(row[9], head_seq, row[0], is_stale)
            found.append(to_listed(row))
        return found

    def search(self, search: Search) -> list[Hit]:
        wanted = Wanted.of(search)
        found: list[Hit] = []
        if not search.limit:
            return found
        for candidate in self._in_order(search, wanted):
            hit = self.hit(candidate, wanted)
            if hit is not None:
                found.append(hit)
            if len(found) == search.limit:
                break
        return found

    def hit(self, candidate: Candidate, wanted: Wanted) -> Hit | None:
        """Return what a search shows of a thread; None: it is not about it."""
        position = candidate.position
        row = self._execute(_LISTED_HEAD, (candidate.thread,)).get
        if row is None:
            return None  # it has writes only, or all of it is hidden
        try:
            stored = _listed_head(position, candidate.active_kept, row)
        except (CheckpointCorrupted, TypeError, ValueError, AttributeError) as exc:
            return Hit(None, position, as_damage(exc).located(position.thread_id, None))
        if not wanted.fits(stored.record):
            return None
        return Hit(stored, position)

    def searched_candidates(self, search: Search, limit: int) -> list[Candidate]:
        """Return the first threads that a search may be about, without a look at any checkpoint."""
        self._check_activity_of_lines()
        conditions, values = _search_conditions(search, Wanted.of(search))
        rows = self._execute(
            f"{_BY_ACTIVITY.format('lines l')} AND {conditions} ORDER BY l.active DESC, t.name DESC", values
        )
        return list(map(_candidate, islice(rows, limit)))

    def _in_order(self, search: Search, wanted: Wanted) -> Iterator[Candidate]:
        """Yield the threads that a search may be about, in its order: by the index that gives the fewest."""
        conditions, values = _search_conditions(search, wanted)
        sources = _search_sources(search, wanted)
        counts = []
        for text, bound in sources:
            counted: int = self._execute(f"SELECT count(*) FROM ({text} LIMIT ?)", (*bound, NARROW + 1)).get
            counts.append(counted)
        narrowest = min(range(len(sources)), key=counts.__getitem__, default=None)
        if narrowest is None or counts[narrowest] > NARROW:
            # There are many: those that were active last are looked at one by one, and will be enough soon.
            self._check_activity()
            source = "lines l"
            bound = list[Any]()
        else:
            text, bound = sources[narrowest]
            source = f"(SELECT DISTINCT thread FROM ({text})) s CROSS JOIN lines l ON l.thread = s.thread"
        rows = self._execute(
            f"{_BY_ACTIVITY.format(source)} AND {conditions} ORDER BY l.active DESC, t.name DESC", (*bound, *values)
        )
        yield from map(_candidate, rows)

    def _check_activity(self) -> None:
        """Refuse an index of activity that is older than the threads: one that was active last would be missing."""
        row = self._execute(
            f"""SELECT t.name, l.active {FROM_CHECKPOINTS}
                ORDER BY c.seq DESC LIMIT 1"""
        ).get
        if row is None:
            return
        name, active = row
        self._check_index_of_activity(active, name)

    def _check_activity_of_lines(self) -> None:
        """Do the same without a look at any checkpoint: this way reads all lines."""
        row = self._execute(
            "SELECT t.name, max(l.active) FROM lines l NOT INDEXED JOIN threads t ON t.id = l.thread"
        ).get
        name, active = row
        if active is not None:
            self._check_index_of_activity(active, name)

    def _check_index_of_activity(self, active: int, thread_id: str) -> None:
        newest = self._execute("SELECT active FROM lines INDEXED BY lines_by_activity ORDER BY active DESC LIMIT 1").get
        if newest is None or newest < active:
            raise CheckpointCorrupted("the index of activity is older than the thread", thread_id=thread_id)


def _candidate(row: Sequence[Any]) -> Candidate:
    thread, active, name, active_kept = row
    return Candidate(thread, active_kept, Position(active, name))


def _listed_head(position: Position, active_kept: Any, row: Sequence[Any]) -> Stored:
    """Return what a thread is listed by, a row of `_LISTED_HEAD`; raise if it is damaged."""
    head_seq, is_stale, *columns = row
    if position.active != active_kept:
        raise CheckpointCorrupted("the index of activity is not that of the thread")
    check_head(position.thread_id, head_seq, columns[0], is_stale)
    return to_listed(columns)


def _search_sources(search: Search, wanted: Wanted) -> list[tuple[str, list[Any]]]:
    """Return the ways to find the threads that a search may be about: queries for their ids, and the values in them."""
    found: list[tuple[str, list[Any]]] = []
    if search.prefix:
        condition, values = _begins_with(search.prefix)
        found.append((f"SELECT t.id AS thread FROM threads t WHERE {condition}", values))
    for labels in wanted.labels:
        text = "SELECT f.thread FROM facts n JOIN lines f ON f.id = n.line WHERE n.label IN (?, ?, ?)"
        found.append((text, list(labels)))
    if search.since is not None:
        found.append(("SELECT f.thread FROM lines f INDEXED BY lines_by_activity WHERE f.active >= ?", [search.since]))
    return found


def _search_conditions(search: Search, wanted: Wanted) -> tuple[str, list[Any]]:
    """Return what a search asks of a thread without a look at its checkpoints, and the values in it."""
    conditions = ["1"]
    values = list[Any]()
    if search.prefix:
        condition, bounds = _begins_with(search.prefix)
        conditions.append(condition)
        values += bounds
    if search.since is not None:
        conditions.append("l.active >= ?")
        values.append(search.since)
    if search.after is not None:
        conditions.append("(l.active, t.name) < (?, ?)")
        values += search.after
        conditions.append("l.active <= ?")  # so that the index is used
        values.append(search.after.active)
    for labels in wanted.labels:
        conditions.append(
            """EXISTS (SELECT 1 FROM lines f JOIN facts n ON n.line = f.id AND n.label IN (?, ?, ?)
                       WHERE f.thread = l.thread)"""
        )
        values += labels
    return " AND ".join(conditions), values


def _begins_with(prefix: str) -> tuple[str, list[Any]]:
    end = prefix_end(prefix)
    if end is None:
        return "t.name >= ?", [prefix]
    return "t.name >= ? AND t.name < ?", [prefix, end]
