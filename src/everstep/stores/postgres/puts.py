"""The usual commit: a checkpoint that follows the head as last seen, as one call of a function in the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everstep.stores.heads import SeenHead
from everstep.stores.postgres.forms import KnownHead, columns, labels
from everstep.stores.protocol import ANY, BaseRef, Change, Draft, Record, Stored
from everstep.stores.records import pack_record
from everstep.stores.transaction import Packed, added_bytes, is_newer, is_plain


class Prepared(NamedTuple):
    """A put that is ready to be sent, once or again."""

    draft: Draft
    values: Sequence[Any]
    stored: Stored
    """What it will be, but for its seq."""
    seen: SeenHead[KnownHead]
    known: KnownHead


class Refused(NamedTuple):
    """A put that the server refused: the head was another one, mostly."""

    bases: Sequence[BaseRef]
    """What the checkpoint rests on."""


def prepare(
    change: Change, seen: SeenHead[KnownHead], known: KnownHead, stored_bases: Sequence[BaseRef] = ()
) -> Prepared | None:
    """Return the call for a checkpoint that follows the head as last seen; None: it must be done the long way.

    What it rests on is that head, one of `stored_bases`, which nobody can delete meanwhile, or one more: a fence.
    """
    head = known.head
    if change.build is None or not is_plain(change) or change.expect not in (ANY, head.record.key.checkpoint_id):
        return None
    draft = change.build(head)
    record = draft.record
    others = set(draft.bases) - {BaseRef(head.record.key, head.digest), *stored_bases}
    if len(others) > 1 or not _follows(change, record, head):
        return None
    packed = Packed(record, *pack_record(record))
    added = added_bytes(draft, packed)
    values = (
        int(seen.family), known.line, seen.generation, head.seq, head.digest, head.segment, added, record.step,
        record.key.checkpoint_id.encode(), labels(record.metadata, record.tags), packed.info, record.children,
        packed.root, *columns(draft.objects), list(change.prune), *_fence(others),
    )  # fmt: skip
    stored = Stored(record, 0, head.family, digest=packed.digest, segment=head.segment, added_bytes=added)
    return Prepared(draft, values, stored, seen, known)


def noting(build: Callable[[Stored | None], Draft], drafts: list[Draft]) -> Callable[[Stored | None], Draft]:
    """Return a `build` that notes what it makes: a lost answer must be told from a commit that never was."""

    def built(head: Stored | None) -> Draft:
        draft = build(head)
        drafts.append(draft)
        return draft

    return built


def _follows(change: Change, record: Record, head: Stored) -> bool:
    """Whether a new checkpoint follows the head and nothing else, and becomes the head."""
    if record.key[:2] != (change.thread_id, change.namespace):
        return False
    if record.parents not in ((), (head.record.key,)):
        return False
    return change.head == "always" or (change.head == "newer" and is_newer(record, head))


def _fence(others: set[BaseRef]) -> tuple[bytes | None, ...]:
    """Return what one more checkpoint is called that a put rests on, and its digest; nothing if there is none."""
    # There is one at most: `prepare` sees to that.
    for base in others:
        return *map(str.encode, base.key), base.digest
    return (None,) * 4
