"""A store that takes over families, wherever they come from.

First come the checkpoints of a family with their objects, in parts that each are all or nothing; last the threads
themselves, with their heads: so a thread that is half there is not listed, and whoever is killed goes on later. What
was done is found in the store, never kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.history import checkpoint_tree
from everstep.reports import CopyProgress, CopyReport, counted
from everstep.stores.protocol import Key, Object, Part, RawThread, Record, Store, Stored
from everstep.stores.records import pack_record, record_digest
from everstep.transfer import families, renumber
from everstep.transfer.families import Entry, Family, Group, Lost, Pass, Source, differs, entry_of, pieces
from everstep.transfer.renumber import CHECKPOINT, Note, Numbers
from everstep.values.tree import hashes, reachable

Progress = Callable[[CopyProgress], object]

PART_SEGMENTS = 5000
# Objects wait in memory for their threads, and a family may have very many.
_WAITING_BYTES_MAX = 8 << 20
# A family may hold millions of threads, and nobody reads a list of them.
NAMES_MAX = 100


class Target:
    """A store that families go to, and what has been done so far."""

    def __init__(
        self, store: Store, source: Source, progress: Progress | None, *, verify: bool, may_go_back: bool = True
    ) -> None:
        """With `may_go_back` what comes is the newest there is, so what the store has beyond it was deleted there.

        Without it a file comes. It may have been written from this very store, and what was deleted since comes back.
        """
        self.store = store
        self._source = source
        self._progress = progress
        self._verify = verify
        self._may_go_back = may_go_back
        self.report = CopyReport()
        self._taken_names: list[str] = []
        self._kept_names: list[str] = []

    async def take_all(self) -> CopyReport:
        """Take over all that the source gives."""
        async with aclosing(self._source.passes()) as passes:
            async for coming in passes:
                coming.is_finished = await self._take(coming)
        return replace(self.report, thread_ids=tuple(self._taken_names), kept_ids=tuple(self._kept_names))

    async def _take(self, coming: Pass) -> bool:
        """Take over a family; return False if that takes another pass."""
        before = self.report.checkpoints
        family = coming.family
        raws = await self._raws(family)
        # A copy follows its source wherever it goes; a file may be older than what was written here since.
        if not self._may_go_back:
            family = _without_originals(family, raws)
        there = await self._there(family, raws)
        if not self._may_go_back:
            _check_not_older(family, there)
        arrival = _Arrival(self, family, there)
        finished = await arrival.take(coming)
        if finished is None:
            return False
        sent = self.report.checkpoints - before
        self.count(threads=len(family.raws), skipped=max(0, len(finished.entries) - sent))
        self._note_names(coming.family, family)
        if self._verify:
            await self._compare(family, finished)
        self.tell()
        return True

    # -- what the store has

    async def _raws(self, family: Family) -> dict[str, RawThread]:
        """Return the threads that the store has under the names of the family's."""
        raws: dict[str, RawThread] = {}
        for name in family.raws:
            raw = await self.store.raw(name)
            if raw is not None:
                raws[name] = raw
        return raws

    async def _there(self, family: Family, found: Mapping[str, RawThread]) -> _There:
        """Return what the store has of the family; InvalidInput if that is something else."""
        raws: dict[str, RawThread] = {}
        for name, raw in found.items():
            if name in family.raws:
                raws[name] = _among(raw, family.raws)
        # The first copy: any thread will do as the anchor.
        if not raws:
            return _There(next(iter(family.raws)), {}, {}, {}, Numbers())
        notes = _notes(raws, family)
        # A thread notes all that was reserved by the time it was copied, so the longest list is the newest.
        anchor = max(notes, key=lambda name: renumber.total_size(notes[name].stretches))
        numbers = Numbers(notes[anchor].stretches)
        entries: dict[Key, Entry] = {}
        for name, raw in raws.items():
            is_foreign = name not in notes and not renumber.is_bare(raw)
            if is_foreign or raw.family != raws[anchor].family:
                raise _not_a_copy(name)
            _check_untouched(raw, notes.get(name))
            for entry in await families.entries(self.store, name):
                # The store gave this number itself, so somebody has written here.
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
        records = [stored.record for stored in part.checkpoints]
        self.count(
            checkpoints=len(part.checkpoints),
            objects=len(part.objects),
            bytes=_size_bytes(part.objects) + _size_bytes(records),
        )
        self.tell()

    def count(self, **more: int) -> None:
        """Add to the report."""
        self.report = counted(self.report, **more)

    def _note_names(self, coming: Family, taken: Family) -> None:
        """Note which threads of a family were taken over, and which were kept as they were."""
        for name in coming.raws:
            names = self._kept_names
            if name in taken.raws:
                names = self._taken_names
            if len(names) < NAMES_MAX:
                names.append(name)

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
        thread = await self.store.thread(copied.anchor, ancestry=True)
        if thread is None:
            raise _other_ancestry(copied)
        for segment, follows in renumber.segments(family.ancestry, copied.numbers).items():
            if tuple(thread.ancestry.get(segment, ())) != follows:
                raise _other_ancestry(copied)
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
        different: str | None = "it is missing"
        if raw is not None:
            different = renumber.difference(expected, _among(raw, family))
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
            await self._check_below(family, chain.from_iterable(roots.values()), seen, group[0].key)
        except CheckpointCorrupted:
            # One of them spoils the answer about all, so each is looked at by itself.
            for key, below in roots.items():
                await self._check_below(family, below, seen, key)
            raise

    async def _check_below(self, family: str, roots: Iterable[bytes], seen: set[bytes], key: Key) -> None:
        try:
            await families.walk(roots, seen, partial(families.fetch_verified, self.store, family))
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
        # The store keeps its own of this thread, but what comes later may need objects that come with this checkpoint.
        if self._is_of_kept_thread(entry.key):
            return True
        found = self._there.entries.get(entry.key)
        return found is None or found.digest != entry.digest or self._is_renumbered(entry)

    async def held(self, asked: Sequence[bytes]) -> list[Object]:
        if not self._there.raws:
            return []
        # Begun earlier: ask.
        return await self._target.store.fetch(self._there.raws[self._there.anchor].family, asked, below=False)

    def _is_of_kept_thread(self, key: Key) -> bool:
        return key.thread_id not in self._family.raws

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
        # There was no part that it could go with.
        if note is not None:
            await self._target.adopt(Part(self._there.anchor, note))
        finished = None
        if not coming.has_moved_on:
            finished = await self._send_threads()
        if finished is None:
            # The next pass brings the checkpoints and threads again, but not these.
            await self._target.adopt(Part(self._there.anchor, objects=self._held_back()))
        return finished

    def _held_back(self) -> list[Object]:
        """Return the objects that come with threads."""
        objects = list(self._waiting)
        for group in self._late:
            objects += group.objects
        return objects

    # -- checkpoints and their objects

    async def _reserve(self) -> bytes | None:
        """Reserve the numbers that the family needs; return what to note of it with the first part that uses them."""
        family = self._family
        there = self._there
        numbers = there.numbers
        before = list(numbers.stretches)
        spans = families.family_spans(family)
        old = there.notes.get(there.anchor, Note(family.identity, (), None))
        size = numbers.needed(spans)
        if size:
            note = None
            # From the first part on the family is known as a copy.
            if not there.notes:
                note = renumber.pack_note(old)
            base = await self._target.store.adopt(Part(there.anchor, note, reserve=size))
            numbers.add(base, size, spans)
        if numbers.stretches == before:
            return None
        return renumber.pack_note(old._replace(stretches=numbers.stretches))

    async def _send_segments(self, note: bytes | None) -> bytes | None:
        """Send what segments follow; return the note if it is still to be sent."""
        anchor = self._there.anchor
        found = await self._target.store.thread(anchor, ancestry=True)
        missing = renumber.segments(self._family.ancestry, self._there.numbers)
        if found is not None:
            for segment in missing.keys() & found.ancestry.keys():
                del missing[segment]
        for batch in pieces(list(missing.items()), PART_SEGMENTS):
            await self._target.adopt(Part(anchor, note, segments=dict(batch)))
            # Once is enough.
            note = None
        return note

    async def _send_group(self, group: Group, note: bytes | None) -> bool:
        """Send a group, but for what has to wait; return whether there was something to send."""
        now: list[Stored] = []
        late: list[Stored] = []
        for stored in group.checkpoints:
            if self._is_of_kept_thread(stored.record.key):
                continue
            if self._is_renumbered(entry_of(stored)):
                late.append(stored)
            else:
                now.append(renumber.stored(stored, self._there.numbers))
        objects = group.objects
        if late and now:
            self._late.append(Group(late, _needed(late, objects)))
        # If all checkpoints of the group are late, so are its objects.
        elif late:
            self._late.append(Group(late, objects))
        # These are for threads, or for checkpoints that come later.
        elif not now:
            objects = self._released(await families.lacking(objects, self))
        has_objects_for_now = bool(objects) and not late
        if not now and not has_objects_for_now:
            return False
        part = Part(self._there.anchor, note, objects=objects, checkpoints=now, packed=group.packed)
        await self._target.adopt(part)
        for stored in now:
            self._entries[stored.record.key] = entry_of(stored)
        return True

    def _released(self, objects: Sequence[Object]) -> list[Object]:
        """Let objects wait for their threads; return those that wait by now, if they are too many."""
        self._waiting += objects
        if _size_bytes(self._waiting) <= _WAITING_BYTES_MAX:
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
        moved = self._late_checkpoints()
        entries = self._entries_then(moved)
        threads = _expected(family, entries, there.numbers)
        if not families.has_all_heads(threads.values(), entries):
            return None

        gone = there.entries.keys() - entries.keys()
        touched = {key.thread_id for key in (*gone, *moved)}
        changed: list[RawThread] = []
        for name, raw in threads.items():
            if name in touched or not _is_done(raw, there):
                changed.append(raw)
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

    def _late_checkpoints(self) -> dict[Key, Stored]:
        """Return the checkpoints that come with the threads, with their numbers in the target."""
        found: dict[Key, Stored] = {}
        for group in self._late:
            for stored in group.checkpoints:
                found[stored.record.key] = renumber.stored(stored, self._there.numbers)
        return found

    def _entries_then(self, moved: Mapping[Key, Stored]) -> dict[Key, Entry]:
        """Return the checkpoints that the store has when the threads have come."""
        wanted: set[Key] = set()
        for entry in self._family.entries:
            if not self._is_renumbered(entry):
                wanted.add(entry.key)
        entries = {key: entry for key, entry in self._entries.items() if key in wanted}
        for key, stored in moved.items():
            entries[key] = entry_of(stored)
        return entries

    async def _send_batch(self, part: Part) -> None:
        """Send threads with all that belongs to them."""
        # Once more, at the last moment: a copy must not undo what somebody did to it.
        for raw in part.threads:
            found = await self._target.store.raw(raw.thread_id)
            if found is not None:
                _check_untouched(found, self._there.notes.get(raw.thread_id))
        threads: list[RawThread] = []
        for raw in part.threads:
            done = Note(self._family.identity, self._there.numbers.stretches, renumber.fingerprint(raw))
            threads.append(raw._replace(note=renumber.pack_note(done)))
        await self._target.adopt(part._replace(threads=threads))


# -- decisions ---------------------------------------------------------------------------------------------------------


def _needed(checkpoints: Sequence[Stored], objects: Sequence[Object]) -> list[Object]:
    """Return those of some objects that these checkpoints reach."""
    by_hash = {obj.hash: obj for obj in objects}

    def children_of(key: bytes) -> bytes | None:
        if key not in by_hash:
            return None
        return by_hash[key].children

    children = b"".join(stored.record.children for stored in checkpoints)
    found, _ = reachable(children, children_of)
    return [obj for obj in objects if obj.hash in found]


def _size_bytes(held: Iterable[Object | Record]) -> int:
    return sum(len(each.children) + len(each.body) for each in held)


def _without_originals(family: Family, found: Mapping[str, RawThread]) -> Family:
    """Return a family without the threads that were not copied here, but written here: it was read from this store.

    They stay as they are, and the others, which were deleted here, come back as a family of their own.
    """
    raws = dict(family.raws)
    for name, raw in found.items():
        if raw.identity == family.identity:
            del raws[name]
    # Nothing was deleted, so the file can only mean to take back what was done since.
    if not raws:
        raise _not_a_copy(next(iter(family.raws)))
    entries = [entry for entry in family.entries if entry.key.thread_id in raws]
    return family._replace(raws=raws, entries=entries)


def _expected(family: Family, entries: Mapping[Key, Entry], numbers: Numbers) -> dict[str, RawThread]:
    """Return the threads as the target shall have them, with what could be copied."""
    stored = {entry.seq for entry in entries.values()}
    threads: dict[str, RawThread] = {}
    for name, raw in family.raws.items():
        thread = _among(renumber.thread(raw, numbers), family.raws)
        # A checkpoint that could not be copied can be neither pinned nor a beginning.
        thread = thread._replace(pinned=thread.pinned & stored)
        if thread.began not in stored:
            thread = thread._replace(began=0)
        threads[name] = thread
    return threads


def _is_done(raw: RawThread, there: _There) -> bool:
    """Whether the target has a thread as it shall be."""
    found = there.raws.get(raw.thread_id)
    note = there.notes.get(raw.thread_id)
    if found is None or note is None or note.fingerprint is None:
        return False
    return renumber.difference(raw, found) is None and raw.active == found.active


def _among(raw: RawThread, names: Collection[str]) -> RawThread:
    """Return a thread without what it has in common with others than these, which the source may have deleted."""
    return raw._replace(shared_states={name: held for name, held in raw.shared_states.items() if name in names})


def _notes(raws: Mapping[str, RawThread], family: Family) -> dict[str, Note]:
    """Return what earlier copies noted with threads; InvalidInput if one of them is no copy of this family."""
    notes: dict[str, Note] = {}
    for name, raw in raws.items():
        if raw.note:
            notes[name] = renumber.unpack_note(raw.note)
    if not notes:
        raise _not_a_copy(next(iter(raws)))
    for name, note in notes.items():
        if note.identity != family.identity:
            raise _not_a_copy(name)
    return notes


def _check_untouched(raw: RawThread, note: Note | None) -> None:
    """Refuse a thread that somebody has changed since it was copied."""
    if note is None or note.fingerprint is None:
        # It is not all there yet: only its checkpoints may have come.
        is_untouched = renumber.is_bare(raw)
    else:
        is_untouched = note.fingerprint == renumber.fingerprint(raw)
    if not is_untouched:
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
            generation = 0
            coming = family.raws[name].lines.get(namespace)
            if coming is not None:
                generation = coming.generation
            if line.generation > generation:
                raise InvalidInput(
                    f"thread {name!r} is older in the file than the copy of it that the target has; delete it there, "
                    "or choose another store"
                )


def _other_ancestry(copied: _There) -> CheckpointCorrupted:
    return differs("the copy has another ancestry", Key(copied.anchor, "", ""))


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
