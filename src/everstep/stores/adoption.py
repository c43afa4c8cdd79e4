"""What it means to take over a history from another store, once for all stores: see `Store.adopt`."""

from __future__ import annotations

from collections.abc import Sequence

from everstep.errors import CheckpointNotFound, HeadMoved, InvalidInput
from everstep.stores.protocol import Key, Part, Place, RawLine, RawThread, Stored
from everstep.stores.records import pack_record
from everstep.stores.transaction import Packed, Transaction


def adopt(tx: Transaction, part: Part) -> int:
    """Take over a part of a family. See `Store.adopt`."""
    packed: list[tuple[Stored, Packed]] = []
    coming: set[Key] = set()
    names = {raw.thread_id for raw in part.threads}
    for stored in part.checkpoints:
        record = stored.record
        packed.append((stored, Packed(record, *(part.packed.get(record.key) or pack_record(record)))))
        coming.add(record.key)
        names.add(record.key.thread_id)
    family = tx.family(part.thread_id)
    # Before anything is written: a name that belongs to somebody else must not be taken over by halves.
    for name in names.union(key.thread_id for key in part.gone):
        if tx.family(name) not in (None, family):
            raise InvalidInput(f"thread {name!r} exists and is not of the family of {part.thread_id!r}")
    for raw in part.threads:
        _check_heads(tx, raw, coming, part.gone)

    # From here on it is written.
    family = tx.join(part.thread_id, family)
    highest = tx.reserve(family, part.reserve) if part.reserve else 0
    if part.note is not None:
        tx.set_note(part.thread_id, part.note)
    # Before others come, which may have the same numbers or names.
    tx.remove(part.gone)
    for name in names:
        tx.join(name, family)
    tx.add_objects(family, part.objects)
    tx.keep(family, packed)
    tx.keep_segments(family, part.segments)
    for raw in part.threads:
        tx.restore(raw)
    return highest


def adopt_new(tx: Transaction, parts: Sequence[Part]) -> None:
    """Take over threads that are not there. See `Store.adopt_new`."""
    for part in parts:
        check_new(part.thread_id, is_there=tx.family(part.thread_id) is not None)
        family = tx.join(part.thread_id, None)
        highest = tx.reserve(family, part.reserve)
        adopt(tx, _shifted(part._replace(reserve=0), highest))


def check_new(thread_id: str, *, is_there: bool) -> None:
    """Refuse a thread that was to come as a new one and is there."""
    if is_there:
        raise HeadMoved(thread_id, "a thread that was not there", "made by another writer")


def _shifted(part: Part, by: int) -> Part:
    """Return a part of one whole thread with greater numbers."""
    if not by:
        return part
    segments: dict[int, list[Place]] = {}
    for segment, follows in part.segments.items():
        segments[segment + by] = [place._replace(segment=place.segment + by, seq=place.seq + by) for place in follows]
    return part._replace(
        checkpoints=[stored._replace(seq=stored.seq + by, segment=stored.segment + by) for stored in part.checkpoints],
        segments=segments,
        threads=[_shifted_thread(raw, by) for raw in part.threads],
    )


def _shifted_thread(raw: RawThread, by: int) -> RawThread:
    lines: dict[str, RawLine] = {}
    for namespace, line in raw.lines.items():
        lines[namespace] = line._replace(segments=frozenset([segment + by for segment in line.segments]))
    return raw._replace(lines=lines, writes=[(key, write._replace(seq=write.seq + by)) for key, write in raw.writes])


def _check_heads(tx: Transaction, raw: RawThread, coming: set[Key], gone: Sequence[Key]) -> None:
    for namespace, line in raw.lines.items():
        if line.head is not None:
            key = Key(raw.thread_id, namespace, line.head)
            if key not in coming and (key in gone or tx.checkpoint(key) is None):
                raise CheckpointNotFound(line.head, raw.thread_id)
