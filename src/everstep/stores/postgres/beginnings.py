"""The usual beginnings of threads, namespaces and branches, each as one call of a function in the database."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from everstep.errors import EverstepError
from everstep.stores.postgres.forms import KnownHead, columns, labels
from everstep.stores.postgres.functions import BEGIN, BRANCH, Function
from everstep.stores.protocol import ANY, Change, Draft, Stored
from everstep.stores.records import pack_follows, pack_operation_data, pack_origin, pack_record, pack_shared_state
from everstep.stores.transaction import Packed, added_bytes, is_plain
from everstep.values.tree import FORMAT

_NUMBER_BYTES = 8


class Beginning(NamedTuple):
    """A line that is ready to be begun."""

    function: Function
    values: Sequence[Any]
    draft: Draft
    stored: Stored
    """What its first checkpoint will be, but for its numbers."""

    def begun(self, answer: bytes) -> tuple[Stored, int, KnownHead]:
        """Return its first checkpoint, its generation, and its head, as the function tells."""
        numbers = struct.unpack(f">{len(answer) // _NUMBER_BYTES}q", answer)
        family, line, seq, generation = numbers[:4]
        # Only the beginning of a branch is noted in a log.
        entry = numbers[4] if len(numbers) > 4 else 0
        stored = self.stored._replace(seq=seq, segment=seq, family=str(family), entry=entry)
        return stored, generation, KnownHead(line, stored)


def of_line(change: Change) -> Beginning | None:
    """Return the call for the first checkpoint of a thread or of a namespace of it; None: the long way."""
    if change.build is None or not is_plain(change) or change.prune or change.head == "never":
        return None
    if change.expect is not ANY and change.expect is not None:
        return None
    try:
        draft = change.build(None)
    except EverstepError:
        # There may be a head by now, which it can follow.
        return None
    record = draft.record
    # A parent might be stored in the family, and then it would have to be noted what the line follows.
    if record.parents or len(draft.bases) > 1 or record.key[:2] != (change.thread_id, change.namespace):
        return None
    base: tuple[bytes | None, ...] = (None,) * 3
    for key, digest in draft.bases:
        if key.thread_id != change.thread_id:
            return None
        base = key.namespace.encode(), key.checkpoint_id.encode(), digest
    packed = Packed(record, *pack_record(record))
    added = added_bytes(draft, packed)
    values = (
        *map(str.encode, (change.thread_id, change.namespace)), FORMAT, *_columns(packed, added),
        *columns(draft.objects), *base,
    )  # fmt: skip
    return Beginning(BEGIN, values, draft, Stored(record, 0, "", digest=packed.digest, added_bytes=added))


def of_branch(change: Change) -> Beginning | None:
    """Return the call for a branch that begins with one checkpoint, which adds no objects; None: the long way."""
    if change.build is None or change.origin is None or change.log is None or not _is_usual(change):
        return None
    draft = change.build(None)
    if not _is_first(draft, change):
        return None
    origin = change.origin
    record = draft.record
    common = change.shared_states[origin.thread_id]
    packed = Packed(record, *pack_record(record))
    added = added_bytes(draft, packed)
    values = (
        *map(str.encode, (change.thread_id, change.namespace, *origin)), draft.bases[0].digest, common.place.seq,
        pack_origin(origin, change.thread_id), *_columns(packed, added), pack_follows([common.place]),
        # The older of the two threads comes first. The function sees to that.
        pack_shared_state(common, origin.thread_id, change.thread_id), common.root.children,
        pack_operation_data(change.log), change.remembered.top if change.remembered is not None else None,
    )  # fmt: skip
    return Beginning(BRANCH, values, draft, Stored(record, 0, "", digest=packed.digest, added_bytes=added))


def _columns(packed: Packed, added: int) -> tuple[Any, ...]:
    """Return what the row of a checkpoint holds."""
    record = packed.record
    return (
        added, record.step, record.key.checkpoint_id.encode(), labels(record.metadata, record.tags), packed.info,
        record.children, packed.root,
    )  # fmt: skip


def _is_usual(change: Change) -> bool:
    """Whether a change begins a branch, notes that in the log of the thread it comes from, and does nothing else."""
    usual = Change(
        change.thread_id,
        change.namespace,
        build=change.build,
        fresh=True,
        origin=change.origin,
        shared_states=change.shared_states,
        log=change.log,
        log_thread=change.log_thread,
        other_namespaces=change.other_namespaces,
        writes=change.writes,
        remembered=change.remembered,
    )
    if change != usual or change.origin is None or change.other_namespaces or change.writes:
        return False
    source = change.origin.thread_id
    common = change.shared_states.get(source)
    if common is None or len(change.shared_states) != 1:
        return False
    return change.log_thread == source and common.place.key == change.origin


def _is_first(draft: Draft, change: Change) -> bool:
    """Whether a checkpoint begins the branch, and rests on the one it comes from alone."""
    record = draft.record
    if record.key[:2] != (change.thread_id, change.namespace) or record.parents != (change.origin,):
        return False
    return not draft.objects and [base.key for base in draft.bases] == [change.origin]
