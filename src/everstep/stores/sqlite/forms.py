"""What rows look like: the columns that are read, and what they become; what is refused when it does not fit.

Ids of checkpoints and tasks pass through `pack_id` on their way in and `unpack_id` on their way out. A packed id is a
BLOB, and SQLite sorts every BLOB after every TEXT.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everstep.errors import CheckpointCorrupted
from everstep.stores.protocol import Key, Stored
from everstep.stores.records import pack_id, record_digest, unpack_id, unpack_record

# Covers do not overlap: the first one that ends at a seq or later has it, or none has.
COVERED = """coalesce((SELECT v.after < c.seq FROM covers v
                        WHERE v.line = c.line AND v.segment = {} AND v.upto >= c.seq ORDER BY v.upto LIMIT 1), 0)"""
HIDDEN = f"({COVERED.format('0')} OR {COVERED.format('c.segment')})"
# A head that is older than the newest of its segment, though nobody moved it: its page is of an earlier time.
# In what comes from another store (it has a note) a head may be set later than what follows it arrives.
STALE = """(NOT l.head_was_moved AND t.note IS NULL AND EXISTS (SELECT 1 FROM checkpoints n
             WHERE n.line = l.id AND n.seq > c.seq AND n.segment = c.segment))"""
COLUMNS = "c.seq, c.id, c.step, c.segment, c.pinned, c.added, c.info, c.children, c.root"
_LISTED_FORM = """c.seq, c.id, c.step, c.segment, c.pinned, c.added, c.info, substr(c.root, 1, 8), {},
                  t.name, l.namespace, t.family"""
LISTED = _LISTED_FORM.format(HIDDEN)
LISTED_VISIBLE = _LISTED_FORM.format("0")
FROM_CHECKPOINTS = "FROM checkpoints c JOIN lines l ON l.id = c.line JOIN threads t ON t.id = l.thread"
NEXT_WRITE = "(SELECT 1 + value FROM counters WHERE name = 'writes')"
NARROW = 1000  # threads that an index may give for them to be put in order one by one


def next_number(table: str, number: str = "seq") -> str:
    """Return the query for a number that no row of the table has or had."""
    return f"""(SELECT 1 + max(coalesce((SELECT max({number}) FROM {table}), 0),
                               (SELECT value FROM counters WHERE name = '{table}')))"""


def packed_or_none(text: str | None) -> str | bytes | None:
    """Return an id as it is kept; None stays None."""
    return None if text is None else pack_id(text)


def to_stored(thread_id: str, namespace: str, family: int | str, row: Sequence[Any]) -> Stored:
    """Return a row of `COLUMNS`, and whether it is hidden, as a checkpoint."""
    seq, checkpoint_id, step, segment, pinned, added, info, children, root, hidden = row
    record = unpack_record(Key(thread_id, namespace, unpack_id(checkpoint_id)), step, children, info, root)
    return Stored(record, seq, str(family), bool(pinned), bool(hidden), record_digest(info, root), segment, added)


def to_listed(row: Sequence[Any]) -> Stored:
    """Return a row of `LISTED` as a checkpoint without its values."""
    seq, checkpoint_id, step, segment, pinned, added, info, root_digest, hidden, thread_id, namespace, family = row
    record = unpack_record(Key(thread_id, namespace, unpack_id(checkpoint_id)), step, b"", info, None)
    return Stored(
        record, seq, str(family), bool(pinned), bool(hidden), record_digest(info, root_digest), segment, added
    )


def as_damage(exc: Exception) -> CheckpointCorrupted:
    """Return an error about a row as one about damage: whatever it raised, nothing of it is to be believed."""
    if isinstance(exc, CheckpointCorrupted):
        return exc
    return CheckpointCorrupted(f"a row holds something impossible: {exc!r}")


def check_head(thread_id: str, head: int | None, found: object, is_stale: bool) -> None:
    """Refuse a head whose checkpoint was not found, or that is older than what follows it."""
    if head is not None and found is None:
        raise CheckpointCorrupted("the head's checkpoint is missing", thread_id=thread_id)
    if is_stale:
        raise CheckpointCorrupted("the head is older than the newest checkpoint that follows it", thread_id=thread_id)


def check_newest(thread_id: str, head: int | None, newest: int | None) -> None:
    """Refuse a list of a namespace's checkpoints that ends before the head."""
    if head is not None and (newest is None or newest < head):
        raise CheckpointCorrupted("the head is not among the thread's checkpoints", thread_id=thread_id)
