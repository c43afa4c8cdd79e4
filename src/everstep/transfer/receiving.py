"""A store that takes over families, wherever they come from.

First come the checkpoints of a family with their objects, in parts that each are all or nothing; last the threads
themselves, with their heads: so a thread that is half there is not listed, and whoever is killed goes on later. What
was done is found in the store, never kept elsewhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.history import checkpoint_tree
from everstep.reports import CopyProgress, CopyReport
from everstep.repository.repository import verified
from everstep.stores.protocol import Key, Object, Part, RawThread, Store, Stored
from everstep.stores.records import pack_record, record_digest
from everstep.transfer import families, renumber
from everstep.transfer.families import Entry, Family, Group, Lost, Pass, Source, differs, entry_of, pieces
from everstep.transfer.renumber import CHECKPOINT, Note, Numbers
from everstep.values.tree import hashes, reachable

Progress = Callable[[CopyProgress], object]

PART_RUNS = 5000
_WAITING_BYTES_MAX = 8 << 20


class Target:
    """A store that families go to, and what has been done so far."""

    def __init__(
        self, store: Store, source: Source, progress: Progress | None, *, verify: bool, may_go_back: bool = True
    ) -> None:
        """With `may_go_back` what comes is the newest there is, so what the store has beyond it was deleted there."""
        self.store = store
        self._source = source
        self._progress = progress
        self._verify = verify
        self._may_go_back = may_go_back
        self.report = CopyReport()

    async def take_all(self) -> CopyReport:
        """Take over all that the source gives."""
        async with aclosing(self._source.passes()) as passes:
            async for coming in passes:
                coming.is_finished = await self._take(coming)
        return self.report

    async def _take(self, coming: Pass) -> bool:
        """Take over a family; return False if that takes another pass."""
        before = self.report.checkpoints
        family = coming.family
        there = await self._there(family)
        if not self._may_go_back:
            _check_not_older(family, there)
        arrival = _Arrival(self, family, there)
        finished = await arrival.take(coming)
        if finished is None:
            return False
        sent = self.report.checkpoints - before
        self.count(threads=len(family.raws), skipped=max(0, len(finished.entries) - sent))
        if self._verify:
            await self._compare(family, finished)
        self.tell()
        return True

    # -- what the store has

    async def _there(self, family: Family) -> _There:
        """Return what the store has of the family; InvalidInput if that is something else."""
        raws: dict[str, RawThread] = {}
        for name in family.raws:
            raw = await self.store.raw(name)
            if raw is not None:
                raws[name] = _among(raw, family.raws)
        if not raws:
            return _There(next(iter(family.raws)), {}, {}, {}, Numbers())
        notes = {name: renumber.unpack_note(raw.note) for name, raw in raws.items() if raw.note}
        if not notes:
            raise _not_a_copy(next(iter(raws)))
        for name, note in notes.items():
            if note.identity != family.identity:
                raise _not_a_copy(name)
        anchor = max(notes, key=lambda name: sum(s.size for s in notes[name].stretches))
        numbers = Numbers(notes[anchor].stretches)
        entries: dict[Key, Entry] = {}
        for name, raw in raws.items():
            if raw.family != raws[anchor].family or (name not in notes and not renumber.is_bare(raw)):
                raise _not_a_copy(name)
            _check_untouched(raw, notes.get(name))
            for entry in await families.entries(self.store, name):
                if not numbers.reserved(entry.seq):
                    raise _moved_on(name)
                entries[entry.key] = entry
        there = _There(anchor, raws, notes, entries, numbers)
        _check_related(family, there)
        return there

    # -- telling

    async def adopt(self, part: Part) -> None:
        """Let the store take over a part, and count it."""
        await self.store.adopt(part)
        self.count(
            checkpoints=len(part.checkpoints),
            objects=len(part.objects),
            bytes=sum(len(obj.children) + len(obj.body) for obj in part.objects)
            + sum(len(stored.record.children) + len(stored.record.body) for stored in part.checkpoints),
        )
        self.tell()

    def count(self, **more: int) -> None:
        """Add to the report."""
        self.report = replace(self.report, **{name: getattr(self.report, name) + n for name, n in more.items()})

    def tell(self) -> None:
        """Say how far it is, if somebody wants to know."""
        if self._progress is not None:
            threads = self.report.threads
            checkpoints = self.report.checkpoints + self.report.skipped
            self._progress(
                CopyProgress(
                    threads,
                    max(threads, self._source.threads_total),
                    checkpoints,
                    max(checkpoints, self._source.checkpoints_total),
                )
            )

    # -- comparing

    async def _compare(self, family: Family, copied: _There) -> None:
        """Read everything back and raise CheckpointCorrupted where it is not as it should be."""
        expected = renumber.segments(family.ancestry, copied.numbers)
        thread = await self.store.thread(copied.anchor, ancestry=True)
        found = thread.ancestry if thread is not None else {}
        if thread is None or any(tuple(found.get(segment, ())) != to for segment, to in expected.items()):
            raise differs("the copy has another ancestry", Key(copied.anchor, "", ""))
        by_thread: dict[str, dict[Key, Entry]] = {name: {} for name in copied.raws}
        for entry in copied.entries.values():
            by_thread[entry.key.thread_id][entry.key] = entry
        seen: set[bytes] = set()
        for name, raw in copied.raws.items():
            await self._compare_thread(raw, by_thread[name], family.raws)
            for group in families.grouped(by_thread[name].values()):
                await self._compare_values(thread.family, group, seen)
                self.count(verified=len(group))
            await self._check_below(thread.family, families.roots_of(raw), seen, Key(name, "", ""))

    async def _compare_thread(self, expected: RawThread, entries: Mapping[Key, Entry], family: Collection[str]) -> None:
        name = expected.thread_id
        raw = await self.store.raw(name)
        different = renumber.difference(expected, _among(raw, family)) if raw is not None else "it is missing"
        if different is not None:
            raise differs(f"the copy is not like the source: {different}", Key(name, "", ""))
        left = dict(entries)
        async for stored in families.listed(self.store, name):
            entry = left.pop(stored.record.key, None)
            if entry is None:
                raise differs("the copy has a checkpoint that the source has not", stored.record.key)
            pinned = stored.seq in expected.pinned
            hidden = checkpoint_tree.is_hidden(stored, expected.hidden)
            if entry_of(stored) != entry or (stored.pinned, stored.hidden) != (pinned, hidden):
                raise differs("the copy of the checkpoint is not like the source's", entry.key)
        for key in left:
            raise differs("the checkpoint is missing in the copy", key)

    async def _compare_values(self, family: str, group: Sequence[Entry], seen: set[bytes]) -> None:
        roots: dict[Key, list[bytes]] = {}
        by_key = {entry.key: entry for entry in group}
        for loaded in await self.store.read_many(list(by_key)):
            record = loaded.stored.record
            if record_digest(*pack_record(record)) == by_key[record.key].digest:
                roots[record.key] = hashes(record.children)
        for key in by_key.keys() - roots.keys():
            raise differs("the copy of the checkpoint is not like the source's", key)
        try:
            await self._check_below(family, itertools.chain(*roots.values()), seen, group[0].key)
        except CheckpointCorrupted:
            for key, below in roots.items():  # which one is it?
                await self._check_below(family, below, seen, key)
            raise

    async def _check_below(self, family: str, roots: Iterable[bytes], seen: set[bytes], key: Key) -> None:
        async def fetch(asked: Sequence[bytes]) -> list[Object]:
            objects = await self.store.fetch(family, asked, below=False)
            verified(objects)
            return objects

        try:
            await families.walk(roots, seen, fetch)
        except Lost:
            raise differs("a part of its values is missing in the copy", key) from None
        except CheckpointCorrupted as exc:
            raise exc.located(key.thread_id, key.checkpoint_id or None) from exc


class _There(NamedTuple):
    """What a store has of a family."""

    anchor: str
    """The thread that parts are sent for."""
    raws: Mapping[str, RawThread]
    notes: Mapping[str, Note]
    entries: Mapping[Key, Entry]
    numbers: Numbers


class _Arrival:
    """One pass of a family as it arrives."""

    def __init__(self, target: Target, family: Family, there: _There) -> None:
        self._target = target
        self._family = family
        self._there = there
        self._entries = dict(there.entries)
        """What the store has by now."""
        self._late: list[Group] = []
        """Checkpoints that the source has deleted and put again: they change places with the threads, not before."""
        self._waiting: list[Object] = []
        """Objects that only threads need: they come with the first of them."""

    def wants(self, entry: Entry) -> bool:
        found = self._there.entries.get(entry.key)
        return found is None or found.digest != entry.digest or self._is_renumbered(entry)

    async def held(self, asked: Sequence[bytes]) -> list[Object]:
        if not self._there.raws:
            return []
        # Begun earlier: ask.
        return await self._target.store.fetch(self._there.raws[self._there.anchor].family, asked, below=False)

    def _is_renumbered(self, entry: Entry) -> bool:
        found = self._there.entries.get(entry.key)
        return found is not None and found.seq != self._there.numbers(CHECKPOINT, entry.seq)

    async def take(self, coming: Pass) -> _There | None:
        """Take over what comes, and return what the store has then; None: it takes another pass."""
        note = await self._reserve()
        note = await self._send_segments(note)
        async with aclosing(coming.groups(self)) as groups:
            async for group in groups:
                if await self._send_group(group, note):
                    note = None
        if note is not None:
            await self._target.adopt(Part(self._there.anchor, note))
        finished = None if coming.has_moved_on else await self._send_threads()
        if finished is None:
            # The next pass brings the checkpoints and threads again, but not these.
            await self._target.adopt(Part(self._there.anchor, objects=self._held_back()))
        return finished

    def _held_back(self) -> list[Object]:
        """Return the objects that come with threads."""
        return [*self._waiting, *itertools.chain(*[group.objects for group in self._late])]

    # -- checkpoints and their objects

    async def _reserve(self) -> bytes | None:
        """Reserve the numbers that the family needs; return what to note of it with the first part that uses them."""
        family = self._family
        there = self._there
        numbers = there.numbers
        before = list(numbers.stretches)
        used = [number for entry in family.entries for number in (entry.seq, entry.segment)]
        spans = renumber.spans(family.raws.values(), family.ancestry, used)
        old = there.notes.get(there.anchor, Note(family.identity, (), None))
        size = numbers.needed(spans)
        if size:
            note = renumber.pack_note(old) if not there.notes else None  # from the first on it is known as a copy
            numbers.add(await self._target.store.adopt(Part(there.anchor, note, reserve=size)), size, spans)
        return renumber.pack_note(old._replace(stretches=numbers.stretches)) if numbers.stretches != before else None

    async def _send_segments(self, note: bytes | None) -> bytes | None:
        """Send what segments follow; return the note if it is still to be sent."""
        anchor = self._there.anchor
        found = await self._target.store.thread(anchor, ancestry=True)
        known = found.ancestry if found is not None else {}
        segments = renumber.segments(self._family.ancestry, self._there.numbers)
        missing = [(segment, to) for segment, to in segments.items() if segment not in known]
        for batch in pieces(missing, PART_RUNS):
            await self._target.adopt(Part(anchor, note, segments=dict(batch)))
            note = None
        return note

    async def _send_group(self, group: Group, note: bytes | None) -> bool:
        """Send a group, but for what has to wait; return whether there was something to send."""
        now: list[Stored] = []
        late: list[Stored] = []
        for stored in group.checkpoints:
            is_late = self._is_renumbered(entry_of(stored))
            (late if is_late else now).append(stored)
        if late:
            self._late.append(Group(late, _needed(late, group.objects)))
        objects = group.objects if group.checkpoints else self._released(group.objects)
        if not now and not (objects and not late):
            return False
        checkpoints = [renumber.stored(stored, self._there.numbers) for stored in now]
        part = Part(self._there.anchor, note, objects=objects, checkpoints=checkpoints, packed=group.packed)
        await self._target.adopt(part)
        self._entries |= {stored.record.key: entry_of(stored) for stored in checkpoints}
        return True

    def _released(self, objects: Sequence[Object]) -> list[Object]:
        """Let objects wait for their threads; return those that wait by now, if they are too many."""
        self._waiting += objects
        if sum(len(obj.children) + len(obj.body) for obj in self._waiting) <= _WAITING_BYTES_MAX:
            return []
        released = self._waiting
        self._waiting = []
        return released

    # -- threads

    async def _send_threads(self) -> _There | None:
        """Make the threads what they are in the source, and return what the store shall have now.

        None if the source has moved on so far that a head could not be copied: it takes another pass.
        """
        family = self._family
        there = self._there._replace(entries=self._entries)
        renumbered = {entry.key for entry in family.entries if self._is_renumbered(entry)}
        moved = {
            stored.record.key: renumber.stored(stored, there.numbers)
            for group in self._late
            for stored in group.checkpoints
        }
        wanted = {entry.key for entry in family.entries} - renumbered
        entries = {key: entry for key, entry in there.entries.items() if key in wanted}
        entries |= {key: entry_of(stored) for key, stored in moved.items()}
        threads = _expected(family, entries, there.numbers)
        if not families.has_all_heads(threads.values(), entries):
            return None

        gone = there.entries.keys() - entries.keys()
        touched = {key.thread_id for key in (*gone, *moved)}
        changed = [raw for name, raw in threads.items() if name in touched or not _is_done(raw, there)]
        objects = self._held_back()
        for batch in pieces(changed, families.PART_THREADS):
            names = {raw.thread_id for raw in batch}
            await self._send_batch(
                Part(
                    there.anchor,
                    objects=objects,
                    checkpoints=[stored for key, stored in moved.items() if key.thread_id in names],
                    gone=[key for key in gone if key.thread_id in names],
                    threads=batch,
                )
            )
            objects = []
        return there._replace(raws=threads, entries=entries)

    async def _send_batch(self, part: Part) -> None:
        """Send threads with all that belongs to them."""
        for raw in part.threads:  # once more, at the last moment
            found = await self._target.store.raw(raw.thread_id)
            if found is not None:
                _check_untouched(found, self._there.notes.get(raw.thread_id))
        done = Note(self._family.identity, self._there.numbers.stretches, None)
        threads = [
            raw._replace(note=renumber.pack_note(done._replace(fingerprint=renumber.fingerprint(raw))))
            for raw in part.threads
        ]
        await self._target.adopt(part._replace(threads=threads))


# -- decisions ---------------------------------------------------------------------------------------------------------


def _needed(checkpoints: Sequence[Stored], objects: Sequence[Object]) -> list[Object]:
    """Return those of some objects that these checkpoints reach."""
    by_hash = {obj.hash: obj for obj in objects}

    def children_of(key: bytes) -> bytes | None:
        return by_hash[key].children if key in by_hash else None

    children = b"".join(stored.record.children for stored in checkpoints)
    found, _ = reachable(children, children_of)
    return [obj for obj in objects if obj.hash in found]


def _expected(family: Family, entries: Mapping[Key, Entry], numbers: Numbers) -> dict[str, RawThread]:
    """Return the threads as the target shall have them, with what could be copied."""
    stored = {entry.seq for entry in entries.values()}
    threads = {name: _among(renumber.thread(raw, numbers), family.raws) for name, raw in family.raws.items()}
    return {
        name: raw._replace(began=raw.began if raw.began in stored else 0, pinned=raw.pinned & stored)
        for name, raw in threads.items()
    }


def _is_done(raw: RawThread, there: _There) -> bool:
    """Whether the target has a thread as it shall be."""
    found = there.raws.get(raw.thread_id)
    note = there.notes.get(raw.thread_id)
    if found is None or note is None or note.fingerprint is None:
        return False
    return renumber.difference(raw, found) is None and _active(raw) == _active(found)


def _active(raw: RawThread) -> int:
    return max((line.active for line in raw.lines.values()), default=0)


def _among(raw: RawThread, names: Collection[str]) -> RawThread:
    """Return a thread without what it has in common with others than these, which the source may have deleted."""
    return raw._replace(shared_states={name: held for name, held in raw.shared_states.items() if name in names})


def _check_untouched(raw: RawThread, note: Note | None) -> None:
    """Refuse a thread that somebody has changed since it was copied."""
    print_then = note.fingerprint if note is not None else None
    if not renumber.is_bare(raw) if print_then is None else print_then != renumber.fingerprint(raw):
        raise _moved_on(raw.thread_id)


def _check_related(family: Family, there: _There) -> None:
    """Refuse what comes from a twin of the source, which went another way: a store uses no number twice."""
    by_number = {entry.seq: entry.key for entry in there.entries.values()}
    for entry in family.entries:
        number = there.numbers(CHECKPOINT, entry.seq)
        if there.numbers.covers(CHECKPOINT, entry.seq) and by_number.get(number, entry.key) != entry.key:
            raise _not_a_copy(entry.key.thread_id)


def _check_not_older(family: Family, there: _There) -> None:
    """Refuse what is older than the copy that the target has: heads only move on."""
    for name, raw in there.raws.items():
        for namespace, line in raw.lines.items():
            coming = family.raws[name].lines.get(namespace)
            if line.generation > (coming.generation if coming is not None else 0):
                raise InvalidInput(
                    f"thread {name!r} is older in the file than the copy of it that the target has; delete it there, "
                    "or choose another store"
                )


def _not_a_copy(thread_id: str) -> InvalidInput:
    return InvalidInput(
        f"thread {thread_id!r} exists in the target and is not a copy of the source's; delete it there, or copy to "
        "another store"
    )


def _moved_on(thread_id: str) -> InvalidInput:
    return InvalidInput(
        f"thread {thread_id!r} was changed in the target since it was copied, and copying it again would lose that; "
        "delete it there, or copy to another store"
    )
