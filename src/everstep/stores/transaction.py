"""What a commit means, once, for the stores that run it inside the process.

`apply` reads and changes rows through the small Transaction interface; memory and SQLite supply it. The order of the
checks is the contract: a repeated put is recognised first, and nothing is changed before every check has passed.
Servers do the usual changes in one statement or script, and come here for the others. What a deletion means is in
`deletion`, and what it means to take over a history from another store in `adoption`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from everstep.errors import BaseGone, CheckpointNotFound, HeadMoved, IdTaken, InvalidInput
from everstep.stores.protocol import (
    ANY,
    ASIDE,
    BaseRef,
    Change,
    Draft,
    Hidden,
    Key,
    Object,
    Operation,
    Place,
    RawThread,
    Record,
    SharedState,
    Stored,
    Write,
)
from everstep.stores.records import pack_record, record_digest


class Line(NamedTuple):
    """One namespace of one thread, as a transaction sees it."""

    ref: Any
    """The store's own handle."""
    thread_id: str
    namespace: str
    family: str
    head: Stored | None
    head_was_moved: bool = False
    """The head was moved: what comes next follows it, but not the newest of its segment."""


class Packed(NamedTuple):
    """A record in the form that is kept."""

    record: Record
    info: bytes
    root: bytes

    @property
    def digest(self) -> bytes:
        return record_digest(self.info, self.root)


class Transaction(Protocol):
    """Rows of one store, inside one transaction."""

    def line(self, thread_id: str, namespace: str) -> Line | None: ...
    def family(self, thread_id: str) -> str | None: ...
    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        """Make the thread (in that family, or a new one) and the namespace, where they are missing."""

    def checkpoint(self, key: Key) -> Stored | None: ...
    def is_taken_back(self, line: Line) -> bool:
        """Whether the thread is a branch all of which an undo has hidden, and redo could show again."""

    def insert(self, line: Line, packed: Packed, segment: int | None, added_bytes: int, *, is_head: bool) -> Stored:
        """Keep a new checkpoint, in that segment or (None) in one of its own; `is_head`: `set_head` will follow."""

    def add_segment(self, line: Line, segment: int, follows: Sequence[Place]) -> None: ...
    def replace(self, line: Line, old: Stored, packed: Packed, /) -> Stored: ...
    def add_objects(self, family: str, objects: Sequence[Object]) -> None:
        """Keep objects. One that is there already becomes as young as a new one: no sweep under way takes it."""

    def set_head(self, line: Line, stored: Stored | None, *, head_was_moved: bool = False) -> None:
        """Move the head, add one to the generation, and note the thread as active."""

    def prune(self, line: Line, seqs: Sequence[int]) -> None:
        """Delete what is not protected of these checkpoints, with their writes: see `deletion.prune`."""

    def set_origin(self, thread_id: str, origin: Stored) -> None: ...
    def set_shared_state(self, thread_id: str, other: str, common: SharedState) -> None: ...
    def set_pinned(self, stored: Stored, pinned: bool) -> None: ...
    def add_operation(self, thread_id: str, operation: Operation) -> int: ...
    def is_undone(self, thread_id: str, seq: int) -> bool | None:
        """Whether an operation is marked as undone; None: it is not in the log."""

    def set_operation(self, thread_id: str, operation: Operation) -> None: ...
    def hide(self, line: Line, hidden: Hidden) -> None: ...
    def show(self, thread_id: str, operation: int) -> list[Hidden]:
        """Lift the stretches that an operation hides, and return them."""

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None: ...
    def writes(self, line: Line, checkpoint_id: str) -> Sequence[Write]:
        """Return all writes of a checkpoint, hidden ones included."""

    def move_write(self, line: Line, checkpoint_id: str, write: Write, idx: int) -> None:
        """Give a write another idx; another write that has it is replaced."""

    # -- what comes from another store: see `adoption`

    def join(self, thread_id: str, family: str | None) -> str:
        """Make the thread (in that family, or a new one) if it is missing, and return its family."""

    def reserve(self, family: str, count: int) -> int: ...
    def set_note(self, thread_id: str, note: bytes) -> None: ...
    def remove(self, keys: Sequence[Key]) -> None:
        """Delete checkpoints, and nothing else; a head that is deleted is for `restore` to move."""

    def keep(self, family: str, checkpoints: Sequence[tuple[Stored, Packed]]) -> None:
        """Put or replace checkpoints under their own numbers, with the pins they have here."""

    def keep_segments(self, family: str, segments: Mapping[int, Sequence[Place]]) -> None: ...
    def restore(self, raw: RawThread) -> None: ...


def apply(tx: Transaction, change: Change) -> Stored | None:
    """Apply `change` and return the checkpoint it made. See `Store.commit`.

    Everything is looked up and checked first, in the order that `Store.commit` promises; only then is anything written.
    """
    line = tx.line(change.thread_id, change.namespace)
    head = _head_of(line)
    new: _New | None = None
    existing: Stored | None = None
    if change.build is not None:
        # Inside the transaction, on the head that it will really follow: so nothing has to be tried again.
        draft = change.build(head)
        new = _New(draft, _packed(draft, change))
        if line is not None:
            existing = tx.checkpoint(draft.record.key)
        # It was committed before: whoever lost the answer asks again.
        if existing is not None and existing.digest == new.packed.digest:
            return existing
    checked = _check(tx, change, line, new, existing)

    # From here on it is written.
    is_new_line = line is None
    line = line or tx.create(change.thread_id, change.namespace, checked.family)
    made: Stored | None = None
    if new is not None:
        # Before the checkpoint that needs them: a store that is cut off in between keeps rubbish, and no
        # dangling pointer.
        tx.add_objects(line.family, new.draft.objects)
        if existing is not None:
            made = tx.replace(line, existing, new.packed)
        else:
            made = _insert(tx, change, line, new, is_new_line, checked.known)
    for beside in checked.beside:
        _insert_beside(tx, change, line.family, beside)
    _put_writes(tx, change)
    if checked.operation is not None:
        entry = checked.operation.apply(tx, change, made)
        if made is not None and entry:
            made = made._replace(entry=entry)
    # One that starts a segment tells that somebody has changed what is visible since that was planned.
    if change.prune and (made is None or made.segment != made.seq):
        tx.prune(line, change.prune)
    return made


class _New(NamedTuple):
    """A checkpoint that is to be kept, and its record in the form that is kept."""

    draft: Draft
    packed: Packed


class _Checked(NamedTuple):
    """What was looked up to check a change."""

    family: str | None
    """The one that its thread belongs to or will join; None: a new one."""
    known: Mapping[Key, Stored]
    beside: Sequence[_New]
    """Checkpoints of other namespaces."""
    operation: _Operation | None


def _check(tx: Transaction, change: Change, line: Line | None, new: _New | None, existing: Stored | None) -> _Checked:
    """Check what `Store.commit` promises, in its order, and return what was looked up for that."""
    head = _head_of(line)
    _check_head(change, head)
    for draft in change.other_namespaces:
        _check_head_beside(tx, draft.record)
    if change.fresh:
        _check_fresh(tx, change, existing)
    origin = _found(tx, change.origin) if change.origin is not None else None
    family = _family(tx, change, line, origin)
    known = {stored.record.key: stored for stored in (head, origin) if stored is not None}
    if new is not None:
        _check_bases(tx, new.draft, known, family)
    beside: list[_New] = []
    for draft in change.other_namespaces:
        _check_bases(tx, draft, known, family)
        beside.append(_New(draft, _packed_beside(draft, change)))
    operation = _Operation(tx, change, family, origin) if not is_plain(change) else None
    if new is not None and line is not None and head is None:
        _check_not_taken_back(tx, change, line)
    return _Checked(family, known, beside, operation)


def _head_of(line: Line | None) -> Stored | None:
    return line.head if line is not None else None


def _put_writes(tx: Transaction, change: Change) -> None:
    for key, write in change.writes:
        written = tx.line(change.thread_id, key.namespace)
        if written is not None:
            tx.put_write(written, key.checkpoint_id, write)


def _packed_beside(draft: Draft, change: Change) -> Packed:
    """Return the record of a checkpoint of another namespace in the form that is kept."""
    return _packed(draft, change._replace(namespace=draft.record.key.namespace))


def _insert_beside(tx: Transaction, change: Change, family: str, new: _New) -> None:
    """Keep a checkpoint of another namespace, which becomes its head."""
    namespace = new.draft.record.key.namespace
    line = tx.line(change.thread_id, namespace)
    is_new_line = line is None
    line = line or tx.create(change.thread_id, namespace, family)
    tx.add_objects(family, new.draft.objects)
    _insert(tx, change._replace(head="always"), line, new, is_new_line)


def _check_fresh(tx: Transaction, change: Change, existing: Stored | None) -> None:
    """Refuse a name made by chance that is in use already. This is in the commit, so no other writer comes between."""
    if existing is not None:
        raise IdTaken(f"the new id {existing.record.key.checkpoint_id!r} is stored already")
    if change.origin is not None:
        if tx.family(change.thread_id) is not None:
            raise IdTaken(f"the new thread {change.thread_id!r} exists already")
        # What is not there holds no other ids.
        return
    for draft in change.other_namespaces:
        if tx.checkpoint(draft.record.key) is not None:
            raise IdTaken(f"the new id {draft.record.key.checkpoint_id!r} is stored already")


def not_of_family(thread_id: str) -> IdTaken:
    """Return the error for a branch whose name another thread has."""
    return IdTaken(f"thread {thread_id!r} exists and is not of the family it should branch from")


def _check_not_taken_back(tx: Transaction, change: Change, line: Line) -> None:
    """Refuse to begin a thread anew that is hidden as a whole, since an undo took the branch back."""
    # The thread does not begin with these.
    if change.head == "never" or change.moves:
        return
    if tx.is_taken_back(line):
        raise InvalidInput(
            f"thread {line.thread_id!r} is hidden: the branch was taken back by undo; redo() on the thread it came "
            "from brings it back, or use another thread id"
        )


class _Operation:
    """What a change does besides adding a checkpoint: looked up and checked first, applied later."""

    def __init__(self, tx: Transaction, change: Change, family: str | None, origin: Stored | None) -> None:
        _check_related(tx, change, family)
        for amended in change.amend:
            if tx.is_undone(_log_thread(change), amended.seq) is not (not amended.undone):
                raise HeadMoved(change.thread_id, f"operation {amended.seq}", "changed by another writer")
        self._origin = origin
        self._targets = [(move, _moved_to(tx, change, move.checkpoint_id, move.namespace)) for move in change.moves]
        self._pins = [(_found(tx, pin.key), pin.pinned) for pin in change.pins]

    def apply(self, tx: Transaction, change: Change, stored: Stored | None) -> int:
        """Do it, and return the number of the entry that it added to a log; 0: it added none."""
        if self._origin is not None:
            tx.set_origin(change.thread_id, self._origin)
        for other, common in change.shared_states.items():
            tx.set_shared_state(change.thread_id, other, common)
        for move, target in self._targets:
            moved = tx.line(change.thread_id, move.namespace)
            # It was replaced just now.
            if target is not None and stored is not None and target.record.key == stored.record.key:
                target = stored
            # A namespace that does not exist has no head to take away.
            if moved is not None:
                tx.set_head(moved, target, head_was_moved=True)
        for found, pinned in self._pins:
            tx.set_pinned(found, pinned)
        return _apply_log(tx, change)


def is_plain(change: Change) -> bool:
    """Whether a change only adds a checkpoint, as most do, and maybe lets some go."""
    # The fields of operations come last, so that one comparison is enough.
    return change[_FIRST_OF_OPERATIONS:] == _NO_OPERATION


_FIRST_OF_OPERATIONS = Change._fields.index("origin")
_NO_OPERATION = tuple(Change._field_defaults[name] for name in Change._fields[_FIRST_OF_OPERATIONS:])


def _insert(
    tx: Transaction,
    change: Change,
    line: Line,
    new: _New,
    is_new_line: bool,
    known: Mapping[Key, Stored] = MappingProxyType({}),
) -> Stored:
    """Keep a new checkpoint; `known` are stored ones that were looked up before."""
    head = line.head
    record = new.draft.record
    moves = change.head == "always" or (change.head == "newer" and is_newer(record, head))
    parents = record.parents
    # A checkpoint that names no parent follows the head.
    if not parents and head is not None:
        parents = (head.record.key,)
    follows: list[Place] = []
    segment: int | None = None
    # Whatever follows the head, and nothing else, goes on with its segment.
    if moves and head is not None and not line.head_was_moved and parents == (head.record.key,):
        segment = head.segment
    else:
        follows = _places(tx, parents, line.family, known)
    stored = tx.insert(line, new.packed, segment, added_bytes(new.draft, new.packed), is_head=moves)
    # The first segment of a line follows nothing, which need not be noted.
    if segment is None and (follows or not is_new_line):
        tx.add_segment(line, stored.segment, follows)
    if moves:
        tx.set_head(line, stored)
    return stored


def _places(tx: Transaction, parents: Sequence[Key], family: str, known: Mapping[Key, Stored]) -> list[Place]:
    """Return where those parents of a checkpoint are that are stored in its family."""
    found: list[Place] = []
    for key in parents:
        parent = known.get(key) or tx.checkpoint(key)
        if parent is not None and parent.family == family:
            found.append(parent.place)
    return found


def added_bytes(draft: Draft, packed: Packed) -> int:
    """Return how many bytes a checkpoint adds to its family, objects that are there already included."""
    total = len(packed.info) + len(packed.root)
    for obj in draft.objects:
        total += len(obj.children) + len(obj.body)
    return total


def apply_writes(
    tx: Transaction, key: Key, writes: Sequence[Write], objects: Sequence[Object], base: BaseRef | None
) -> None:
    """Attach writes. See `Store.put_writes`."""
    line = tx.line(key.thread_id, key.namespace)
    family = _family_of(tx, key.thread_id, line)
    if base is not None:
        known: dict[Key, Stored] = {}
        head = _head_of(line)
        if head is not None:
            known[head.record.key] = head
        _check_base(tx, base, known, family)
    line = line or tx.create(key.thread_id, key.namespace, family)
    tx.add_objects(line.family, objects)
    for write in writes:
        tx.put_write(line, key.checkpoint_id, write)


_last_micros = 0


def now_micros() -> int:
    """Return microseconds that only grow within this process: what orders threads by activity."""
    global _last_micros
    # Two commits within one tick of the clock must still have an order.
    _last_micros = max(time.time_ns() // 1000, _last_micros + 1)
    return _last_micros


def _packed(draft: Draft, change: Change) -> Packed:
    if draft.record.key[:2] != (change.thread_id, change.namespace):
        raise InvalidInput(f"a checkpoint of {draft.record.key[:2]} cannot be committed to {change.thread_id!r}")
    return Packed(draft.record, *pack_record(draft.record))


def _check_head(change: Change, head: Stored | None) -> None:
    actual = head.record.key.checkpoint_id if head is not None else None
    if change.expect is not ANY and change.expect != actual:
        raise HeadMoved(change.thread_id, change.expect, actual)


def _check_head_beside(tx: Transaction, record: Record) -> None:
    """Refuse a checkpoint of another namespace that does not follow the head which that has by now."""
    thread_id, namespace, _ = record.key
    line = tx.line(thread_id, namespace)
    if line is None or not record.parents:
        return
    actual = line.head.record.key.checkpoint_id if line.head is not None else None
    expected: str | None = None
    for parent in record.parents:
        if parent[:2] == record.key[:2]:
            expected = parent.checkpoint_id
            break
    if expected != actual:
        raise HeadMoved(thread_id, expected, actual)


def _family(tx: Transaction, change: Change, line: Line | None, origin: Stored | None) -> str | None:
    """Return the family the thread belongs to or will join; None: a new one."""
    own = _family_of(tx, change.thread_id, line)
    if origin is None:
        return own
    if own is not None and own != origin.family:
        raise not_of_family(change.thread_id)
    return origin.family


def _family_of(tx: Transaction, thread_id: str, line: Line | None) -> str | None:
    """Return the family of a thread: without asking for it if one of its lines is at hand."""
    return line.family if line is not None else tx.family(thread_id)


def _check_related(tx: Transaction, change: Change, family: str | None) -> None:
    others = set(change.shared_states)
    if change.log_thread is not None:
        others.add(change.log_thread)
    for other in others:
        theirs = tx.family(other)
        if theirs is None or theirs != family:
            raise InvalidInput(f"threads {change.thread_id!r} and {other!r} are not of one family")


def _check_bases(tx: Transaction, draft: Draft, known: Mapping[Key, Stored], family: str | None) -> None:
    for base in draft.bases:
        _check_base(tx, base, known, family)


def _check_base(tx: Transaction, base: BaseRef, known: Mapping[Key, Stored], family: str | None) -> None:
    found = known.get(base.key) or tx.checkpoint(base.key)
    if found is None or found.digest != base.digest or found.family != family:
        raise BaseGone(f"{base.key} is no longer stored as it was")


def _moved_to(tx: Transaction, change: Change, checkpoint_id: str | None, namespace: str) -> Stored | None:
    if checkpoint_id is None:
        return None
    return _found(tx, Key(change.thread_id, namespace, checkpoint_id))


def _found(tx: Transaction, key: Key) -> Stored:
    found = tx.checkpoint(key)
    if found is None:
        raise CheckpointNotFound(key.checkpoint_id, key.thread_id)
    return found


def is_newer(record: Record, head: Stored | None) -> bool:
    """Whether a checkpoint that moves the head only if it is newer does so."""
    if head is None or record.key.checkpoint_id > head.record.key.checkpoint_id:
        return True
    return head.record.key in record.parents


def _log_thread(change: Change) -> str:
    return change.log_thread if change.log_thread is not None else change.thread_id


def _apply_log(tx: Transaction, change: Change) -> int:
    """Change the log, and what is hidden by its entries; return the number of the new entry, or 0."""
    log_thread = _log_thread(change)
    logged = tx.add_operation(log_thread, change.log) if change.log is not None else 0
    for operation in change.amend:
        tx.set_operation(log_thread, operation)
    shown: list[Hidden] = []
    for seq in change.show:
        shown += tx.show(change.thread_id, seq)
    for hidden in change.hide:
        line = tx.line(change.thread_id, hidden.namespace)
        if line is not None:
            tx.hide(line, hidden._replace(operation=hidden.operation or logged))
            _put_aside(tx, line, hidden)
    for hidden in shown:
        line = tx.line(change.thread_id, hidden.namespace)
        if line is not None:
            _put_back(tx, line, hidden)
    return logged


def _put_aside(tx: Transaction, line: Line, hidden: Hidden) -> None:
    """Free the places of pending writes that are hidden."""
    if hidden.writes_of is None:
        return
    held = tx.writes(line, hidden.writes_of)
    # Further away than all that was put aside before: each rewind has a shelf of its own.
    offset = (1 + max([abs(write.idx) // ASIDE for write in held], default=0)) * ASIDE
    for write in held:
        if hidden.after < write.seq <= hidden.to and abs(write.idx) < ASIDE:
            tx.move_write(line, hidden.writes_of, write, write.idx + (offset if write.idx >= 0 else -offset))


def _put_back(tx: Transaction, line: Line, hidden: Hidden) -> None:
    """Give pending writes that are shown again the places they had."""
    if hidden.writes_of is None:
        return
    for write in tx.writes(line, hidden.writes_of):
        if hidden.after < write.seq <= hidden.to and abs(write.idx) >= ASIDE:
            idx = write.idx % ASIDE if write.idx >= 0 else -(-write.idx % ASIDE)
            tx.move_write(line, hidden.writes_of, write, idx)
