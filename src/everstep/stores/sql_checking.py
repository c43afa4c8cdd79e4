"""How stores that keep their rows in SQL look at them, and put them right: rules, checksums inside rows, covers.

Each store says in its own SQL what cannot be, and how its rows are read. The names of tables are in braces in every
statement, and a row that is looked at is called x.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.reports import Finding
from everstep.stores.covers import Covers
from everstep.stores.inspection import Lost, finding_about
from everstep.stores.protocol import Hidden
from everstep.stores.records import unpack_operation, unpack_shared_state

# Of one kind: a lost table would otherwise be reported row by row.
FINDINGS_MAX = 1000
UNREADABLE = (CheckpointCorrupted, TypeError, ValueError, AttributeError, OverflowError)
"""What is raised by whoever reads a row that holds something else than was written."""

Span = tuple[int, int, int]
"""A part of a line that is covered: segment, after, and up to."""


class Tables(NamedTuple):
    """The tables of a store."""

    ask: Callable[[str, Sequence[Any]], Iterable[Any]]
    """Returns the rows that a statement gives."""
    do: Callable[[str, Sequence[Any]], object]
    text: Callable[[Any], str | None]
    """Returns the name of a thread, or the id of a checkpoint, as it can be shown."""
    mark: str
    """Stands for a value in a statement."""
    line: Sequence[str]
    """The columns that name a line, where something belongs to one."""


class Rule(NamedTuple):
    """What cannot be, as the condition that finds it, and what puts it right."""

    kind: str
    table: str
    what: str
    number: str
    condition: str
    fix: str = ""
    """A statement; "delete": the rows that were found go."""


def broken_rules(tables: Tables, rules: Iterable[Rule], owners: Mapping[str, str]) -> list[Finding]:
    """Return the rows that cannot be; `owners` are, by table, the names of the threads that they are of."""
    found: list[Finding] = []
    for rule in rules:
        owner = owners.get(rule.table, "NULL")
        query = f"SELECT {owner}, {rule.number} FROM {{{rule.table}}} AS x WHERE {rule.condition} LIMIT {FINDINGS_MAX}"
        for name, number in tables.ask(query, ()):
            found.append(finding_about(rule.kind, f"{rule.what} ({number!r})", tables.text(name)))
    return found


def apply_fixes(tables: Tables, rules: Iterable[Rule], *, dry_run: bool = False) -> list[Lost]:
    """Put right what rules say, one after the other, and return the rows that went."""
    gone: list[Lost] = []
    for rule in rules:
        if rule.fix == "delete":
            gone += _take(tables, rule.table, rule.what, rule.condition, (), dry_run)
        elif rule.fix and not dry_run:
            tables.do(rule.fix, ())
    return gone


class Content(NamedTuple):
    """A table whose rows have a checksum inside: what names a row, whose it is, and how it is read."""

    kind: str
    """Of a finding."""
    table: str
    keys: Sequence[str]
    owner: str
    """An expression for the name of the thread that a row is of."""
    values: str
    """What `read` takes, and where it is from."""
    read: Callable[..., object]
    checkpoint: str = "NULL"
    """An expression for the checkpoint that a row is of."""


class _Unreadable(NamedTuple):
    place: Sequence[Any]
    owner: str | None
    checkpoint_id: str | None
    values: Sequence[Any]
    error: Exception


def findings(tables: Tables, contents: Iterable[Content]) -> list[Finding]:
    """Return what cannot be read."""
    found: list[Finding] = []
    for content in contents:
        for unreadable in _unreadable(tables, content):
            found.append(cannot_be_read(content.kind, unreadable.error, unreadable.owner, unreadable.checkpoint_id))
    return found


def cannot_be_read(kind: str, error: Exception, thread_id: str | None, checkpoint_id: str | None) -> Finding:
    """Return the finding for something that one of UNREADABLE was raised about."""
    if isinstance(error, CheckpointCorrupted):
        return finding_about(kind, error.reason, error.thread_id or thread_id, error.checkpoint_id or checkpoint_id)
    return finding_about(kind, f"cannot be read: {error!r:.200}", thread_id, checkpoint_id)


def _take(tables: Tables, table: str, what: str, condition: str, values: Sequence[Any], dry_run: bool) -> list[Lost]:
    """Delete rows, and return them."""
    gone = list(tables.ask(f"SELECT x.* FROM {{{table}}} AS x WHERE {condition}", values))
    if gone and not dry_run:
        tables.do(f"DELETE FROM {{{table}}} AS x WHERE {condition}", values)
    return [Lost(what, stored=[table, *row]) for row in gone]


def take_unreadable(
    tables: Tables, contents: Iterable[Content], origins: Content, *, dry_run: bool = False
) -> list[Lost]:
    """Delete the rows that cannot be read, and return them; of a thread goes only where it began."""
    lost: list[Lost] = []
    for content in contents:
        condition = " AND ".join(f"x.{key} = {tables.mark}" for key in content.keys)
        what = f"a row of {content.table} that cannot be read"
        for unreadable in list(_unreadable(tables, content)):
            lost += _take(tables, content.table, what, condition, unreadable.place, dry_run)
    for unreadable in list(_unreadable(tables, origins)):
        lost.append(Lost("where a branch began", unreadable.owner, stored=unreadable.values[0]))
        if not dry_run:
            forget = f"UPDATE {{threads}} SET origin = NULL, began = NULL WHERE name = {tables.mark}"
            tables.do(forget, unreadable.place)
    return lost


def _unreadable(tables: Tables, content: Content) -> Iterator[_Unreadable]:
    count = len(content.keys)
    keys = ", ".join(f"x.{key}" for key in content.keys)
    for row in tables.ask(f"SELECT {keys}, {content.owner}, {content.checkpoint}, {content.values}", ()):
        owner, checkpoint_id, *values = row[count:]
        try:
            content.read(*values)
        except UNREADABLE as exc:
            yield _Unreadable(row[:count], tables.text(owner), tables.text(checkpoint_id), values, exc)


def cover_again(tables: Tables) -> None:
    """Make what hidden stretches cover together anew, where it is not that."""
    place = ", ".join(tables.line)
    stretches: dict[tuple[int, ...], list[Hidden]] = {}
    for *line, after, upto, segment in tables.ask(
        f"SELECT {place}, after, upto, segment FROM {{hidden}} WHERE writes_of IS NULL", ()
    ):
        stretches.setdefault(tuple(line), []).append(Hidden("", after, upto, segment))
    covered: dict[tuple[int, ...], set[Span]] = {}
    for *line, segment, after, upto in tables.ask(f"SELECT {place}, segment, after, upto FROM {{covers}}", ()):
        covered.setdefault(tuple(line), set()).add((segment, after, upto))
    for own in {*stretches, *covered}:
        expected = set(Covers(stretches.get(own, ())).spans())
        if covered.get(own, set()) != expected:
            _set_covers(tables, own, expected)


def _set_covers(tables: Tables, line: tuple[int, ...], spans: Iterable[Span]) -> None:
    columns = (*tables.line, "segment", "after", "upto")
    insert = f"INSERT INTO {{covers}} ({', '.join(columns)}) VALUES ({', '.join([tables.mark] * len(columns))})"
    own = " AND ".join(f"{column} = {tables.mark}" for column in tables.line)
    tables.do(f"DELETE FROM {{covers}} WHERE {own}", line)
    for span in spans:
        tables.do(insert, (*line, *span))


def read_operation(data: bytes, seq: int) -> object:
    """Return an entry of a log."""
    return unpack_operation(data, seq, False)


def read_shared_state(low: str, high: str, seq: int, data: bytes, children: bytes) -> object:
    """Return a common state of two threads."""
    common = unpack_shared_state(data, children, low, high)
    if common.place.seq != seq:
        raise CheckpointCorrupted(f"a common state of {low!r} and {high!r} has another number than {seq}")
    return common
