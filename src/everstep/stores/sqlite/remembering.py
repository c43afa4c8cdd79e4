"""What a connection remembers of lines and their heads, and when that is not to be trusted any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import apsw

from everstep.errors import CheckpointCorrupted
from everstep.stores.protocol import Key, Stored
from everstep.stores.records import pack_id
from everstep.stores.sqlite.forms import COLUMNS, check_head, to_stored
from everstep.stores.transaction import Line

_REMEMBERED_MAX = 10_000
_HEADS_BYTES_MAX = 32 << 20
# Of a thread that has no such line there is a row without one: so it need not be looked for once more.
_LINE = """SELECT t.id, t.family, l.id FROM threads t LEFT JOIN lines l ON l.thread = t.id AND l.namespace = ?
           WHERE t.name = ?"""
FOLLOWS = "SELECT 1 FROM checkpoints WHERE line = ? AND seq > ? AND segment = ? LIMIT 1"
_HEAD_OF_LINE = f"""SELECT l.head, l.head_was_moved, l.head_was_moved OR t.note IS NOT NULL, {COLUMNS} FROM lines l
                    JOIN threads t ON t.id = l.thread
                    LEFT JOIN checkpoints c ON c.seq = l.head AND c.line = l.id WHERE l.id = ?"""


class Head(NamedTuple):
    """The head of a line, as it was read or written last."""

    stored: Stored | None
    was_moved: bool
    info: bytes = b""
    """Of its row: the metadata in the record may be the caller's own, who may change it."""


class Remembering:
    """The lines of threads, read once and remembered while nobody else changes the file."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._execute: Callable[..., Any] = connection.execute
        # What this connection has read or written, trusted while nobody else has changed the file: see `begin`.
        self._version = -1
        self._threads: dict[str, tuple[int, str]] = {}
        self._lines: dict[tuple[str, str], tuple[int, str]] = {}
        self._heads: dict[int, Head] = {}
        self._heads_bytes = 0
        self._facts: dict[int, dict[int, set[int]]] = {}
        self._unpacked: tuple[Any, Stored] | None = None
        """The checkpoint that a branch begins with, and its row: it is asked for again when the branch is kept."""
        self._next_seq: int | None = None
        self._next_object: int | None = None
        self._next_operation: int | None = None
        self._write_numbers: Iterator[int] = iter(())
        self._made: set[str] = set()
        """Threads that this transaction has made: nothing can have been noted of them before."""
        self._missing: set[str] = set()
        """Threads that this transaction has looked for in vain: nobody else can make them before its end."""

    def begin(self) -> None:
        """Start a write transaction; what is remembered stays only if no other connection wrote since."""
        self._execute("BEGIN IMMEDIATE")
        self._made.clear()
        self._missing.clear()
        is_full = (
            max(len(self._threads), len(self._lines), len(self._heads), len(self._facts)) >= _REMEMBERED_MAX
            or self._heads_bytes > _HEADS_BYTES_MAX
        )
        if self._version != self._connection.data_version() or is_full:
            self.forget()

    def note_committed(self) -> None:
        """Note the file as it is after a commit of our own."""
        self._version = self._connection.data_version()

    def forget(self) -> None:
        """Drop what is remembered: after a rollback, a deletion, or somebody else's change."""
        self._version = -1
        self._next_seq = None
        self._next_object = None
        self._next_operation = None
        self._write_numbers = iter(())
        self._threads.clear()
        self._lines.clear()
        self._facts.clear()
        self._forget_heads()

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._heads_bytes = 0

    def _remember_head(self, ref: int, head: Head) -> None:
        before = self._heads.get(ref)
        self._heads[ref] = head
        if head.stored is not None:
            self._heads_bytes += len(head.stored.record.body) + len(head.stored.record.children)
        if before is not None and before.stored is not None:
            self._heads_bytes -= len(before.stored.record.body) + len(before.stored.record.children)

    def line(self, thread_id: str, namespace: str) -> Line | None:
        known = self._line(thread_id, namespace)
        if known is None:
            return None
        ref, family = known
        known_head = self._heads.get(ref)
        if known_head is None:
            seq, head_was_moved, may_be_older, *row = self._execute(_HEAD_OF_LINE, (ref,)).get
            check_head(thread_id, seq, row[0], not may_be_older and self._is_stale(ref, row))
            head = to_stored(thread_id, namespace, family, (*row, False)) if seq is not None else None
            known_head = Head(head, bool(head_was_moved), row[6])
            self._remember_head(ref, known_head)
        return Line(ref, thread_id, namespace, family, known_head.stored, known_head.was_moved)

    def _line(self, thread_id: str, namespace: str) -> tuple[int, str] | None:
        """Return the number and family of a line."""
        known = self._lines.get((thread_id, namespace))
        if known is None:
            if thread_id in self._missing:
                return None
            row = self._execute(_LINE, (namespace, thread_id)).get
            if row is None:
                self._missing.add(thread_id)
                return None
            thread, family, ref = row
            self._threads[thread_id] = thread, str(family)
            if ref is None:
                self._check_has_lines(thread_id)
                return None
            known = self._lines[thread_id, namespace] = ref, str(family)
        return known

    def family(self, thread_id: str) -> str | None:
        thread = self._thread(thread_id)
        return None if thread is None else thread[1]

    def _thread(self, thread_id: str) -> tuple[int, str] | None:
        """Return the number and family of a thread."""
        known = self._threads.get(thread_id)
        if known is None:
            if thread_id in self._missing:
                return None
            row = self._execute("SELECT id, family FROM threads WHERE name = ?", (thread_id,)).get
            if row is None:
                self._missing.add(thread_id)
                return None
            known = self._threads[thread_id] = row[0], str(row[1])
        return known

    def _required_thread(self, thread_id: str) -> int:
        thread = self._thread(thread_id)
        if thread is None:
            raise CheckpointCorrupted("its thread is missing", thread_id=thread_id)
        return thread[0]

    def checkpoint(self, key: Key) -> Stored | None:
        known = self._line(key.thread_id, key.namespace)
        if known is None:
            return None
        row = self._execute(
            f"SELECT {COLUMNS} FROM checkpoints c WHERE c.id = ? AND c.line = ?",
            (pack_id(key.checkpoint_id), known[0]),
        ).get
        if row is None:
            return None
        if self._unpacked is not None and self._unpacked[0] == (*key, known[1], *row):
            return self._unpacked[1]
        return to_stored(key.thread_id, key.namespace, known[1], (*row, False))

    def _unpack_once(self, thread_id: str, namespace: str, family: str, row: Sequence[Any]) -> Stored:
        """Return a checkpoint by its columns, ready for being asked for again."""
        found = to_stored(thread_id, namespace, family, (*row, False))
        self._unpacked = (*found.record.key, family, *row), found
        return found

    def _is_stale(self, line: int, head: Sequence[Any]) -> bool:
        """Whether something follows a head, given by its columns, that nobody has moved: see `STALE`."""
        seq, _, _, segment, *_ = head
        return self._execute(FOLLOWS, (line, seq, segment)).get is not None

    def _check_has_lines(self, thread_id: str) -> None:
        """A thread has a namespace, but for one that another store has begun to give us."""
        lost = self._execute(
            """SELECT 1 FROM threads t WHERE t.name = ? AND t.note IS NULL
               AND NOT EXISTS (SELECT 1 FROM lines l WHERE l.thread = t.id)""",
            (thread_id,),
        ).get
        if lost is not None:
            raise CheckpointCorrupted("the thread is there, but none of its namespaces", thread_id=thread_id)
