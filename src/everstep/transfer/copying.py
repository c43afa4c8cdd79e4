"""Histories from one store to another: everything that undo, merge and retention need, numbers in relation.

A family is copied as a whole. First its checkpoints with their objects, in parts that each are all or nothing; last the
threads themselves, with their heads: so a thread that is half there is not listed, and whoever is killed goes on later.
What was done is found in the target, never kept elsewhere. A source that is written to meanwhile is copied thread by
thread as of one moment; what retention removes under our hands is left out.
"""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from everstep import factory
from everstep.backends import CheckpointBackend, StoreBackend
from everstep.engine import CheckpointEngine
from everstep.errors import CheckpointCorrupted, InvalidInput, StoreUnavailable, UnsupportedByBackend
from everstep.history import checkpoint_tree
from everstep.opening.addresses import Address, is_in_memory
from everstep.reports import CopyProgress, CopyReport
from everstep.repository.repository import verified
from everstep.runtime import checks
from everstep.runtime.blocking import SyncFace, run_to_end
from everstep.stores.protocol import Key, Object, Part, Place, Query, RawThread, Store, Stored
from everstep.stores.records import pack_record, record_digest
from everstep.transfer import renumber
from everstep.transfer.renumber import CHECKPOINT, Note, Numbers
from everstep.values.tree import hashes

T = TypeVar("T")
Side = Address | CheckpointEngine | CheckpointBackend | SyncFace[Any] | Store
Progress = Callable[[CopyProgress], object]

_PART_CHECKPOINTS = 500
_PART_BYTES = 8 << 20
_PART_THREADS = 100
_PART_RUNS = 5000
_PAGE = 1000
_FETCHED_MAX = 2000  # objects that are asked for at once
_PASSES_MAX = 20
_ROUNDS_MAX = 20  # through the list of threads


def copy(
    source: Side,
    target: Side,
    threads: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    verify: bool = True,
) -> CopyReport:
    """Copy histories from one store to another and return what was done: everything, or the families of `threads`.

    Checkpoints, branches, merges, tags, pins, pending writes, what is hidden and the log of operations come along: undo
    and redo work on the copy. A family (a thread, its branches, the thread it came from) is always copied as a whole.

    Run it again after a crash, or later: it goes on where it stopped, and brings what is new; what the source has
    deleted of a thread goes, threads it has deleted stay. A thread of the target that is not a copy of the source's, or
    that somebody has changed there since, is InvalidInput, and its family is left as it is; but single checkpoints that
    were deleted or replaced there come back as the source has them. With `verify` everything is read back and compared:
    a difference is CheckpointCorrupted. Either side is a URL, the path of a file, or an open engine, backend or store,
    which stays open. `progress` is called with a CopyProgress after each part.
    """
    return run_to_end(_copy(source, target, threads, progress, verify, blocking=True))


async def copy_async(
    source: Side,
    target: Side,
    threads: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    verify: bool = True,
) -> CopyReport:
    """Copy histories from one store to another without blocking the event loop. See `copy`."""
    return await _copy(source, target, threads, progress, verify, blocking=False)


async def _copy(
    source: Side,
    target: Side,
    threads: Iterable[str] | None,
    progress: Progress | None,
    verify: bool,
    *,
    blocking: bool,
) -> CopyReport:
    if isinstance(threads, str):
        raise InvalidInput(f"threads is a list of thread ids, not the string {threads!r:.100}")
    names = None if threads is None else [checks.thread_id(name) for name in threads]
    async with _opened(source, "source", blocking) as one, _opened(target, "target", blocking) as other:
        copier = _Copier(one, other, progress, verify)
        await copier.run(names)
        return copier.report


# -- the two sides -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(side: Side, which: str, blocking: bool) -> AsyncIterator[Store]:
    """Give the store of a side; one that was opened here is closed in the end."""
    if not isinstance(side, (str, os.PathLike)):
        store = _store(side, which)
        yield store.blocking if blocking else store
        return
    if is_in_memory(side):
        raise InvalidInput(f"the {which} {side!r} would be a new, empty store; pass an open engine or backend")
    store = _store(factory.open(side), which)
    path = getattr(store, "path", None)
    if which == "source" and path is not None and not path.exists():
        raise InvalidInput(f"the source is not there: no file {path}")
    store = store.blocking if blocking else store
    try:
        yield store
    finally:
        await store.close()


def _store(side: Any, which: str) -> Store:
    if isinstance(side, SyncFace):
        side = side._driven
    if isinstance(side, CheckpointEngine):
        side = side.checkpointer
    if isinstance(side, StoreBackend):
        return side.store
    if isinstance(side, CheckpointBackend):
        raise UnsupportedByBackend(
            f"the {which} is a {type(side).__name__}, which has the seven published methods only: branches, hidden "
            "checkpoints and the log of operations cannot be copied with them"
        )
    if not hasattr(side, "adopt"):
        raise InvalidInput(f"the {which} is a URL, a path, an engine, a backend or a store, not {checks.shown(side)}")
    store: Store = side
    return store


# -- what is read ------------------------------------------------------------------------------------------------------


class _Entry(NamedTuple):
    """A checkpoint as a list shows it, in short."""

    key: Key
    seq: int
    segment: int
    digest: bytes
    added_bytes: int


class _Family(NamedTuple):
    """A family of the source: its threads, each as of one moment, and the checkpoints they had then."""

    name: str
    identity: bytes
    raws: Mapping[str, RawThread]
    ancestry: Mapping[int, Sequence[Place]]
    entries: Sequence[_Entry]


class _There(NamedTuple):
    """What the target has of a family."""

    anchor: str
    """The thread that parts are sent for."""
    raws: Mapping[str, RawThread]
    notes: Mapping[str, Note]
    entries: Mapping[Key, _Entry]
    numbers: Numbers


class _Lost(Exception):
    """An object is not there. Within this module only."""


async def _listed(store: Store, thread_id: str) -> AsyncIterator[Stored]:
    """Yield every checkpoint of a thread, hidden or not, the oldest first."""
    query = Query(thread_id=thread_id, namespace=None, hidden="also", order="oldest", limit=_PAGE)
    while page := await store.list_checkpoints(query):
        for stored in page:
            yield stored
        query = replace(query, after_seq=page[-1].seq)


async def _entries(store: Store, thread_id: str) -> list[_Entry]:
    return [_entry(stored) async for stored in _listed(store, thread_id)]


async def _families(store: Store) -> list[list[str]]:
    """Return the names of all threads by family, those that were active last at the end.

    A thread that becomes active while we turn the pages changes places: so until nothing new turns up, or what does was
    made since.
    """
    found: dict[str, dict[str, None]] = {}
    seen: set[str] = set()
    for _ in range(_ROUNDS_MAX):
        before = len(seen)
        offset = 0
        while page := await store.list_threads(_PAGE, offset, headless=True):
            for head in page:
                name = head.record.key.thread_id
                seen.add(name)
                found.setdefault(head.family, {})[name] = None
            offset += len(page)
        if len(seen) == before:
            break
    return [list(names)[::-1] for names in reversed(found.values())]


async def _walk(
    roots: Iterable[bytes], seen: set[bytes], fetch: Callable[[Sequence[bytes]], Awaitable[list[Object]]]
) -> None:
    """Fetch every object at or below `roots` that was not seen, and note them as seen; _Lost if one is missing."""
    visited: set[bytes] = set()
    level = [key for key in dict.fromkeys(roots) if key not in seen]
    while level:
        visited.update(level)
        below: dict[bytes, None] = {}
        for asked in _pieces(level, _FETCHED_MAX):
            objects = await fetch(asked)
            if len(objects) < len(asked):
                raise _Lost
            below.update((key, None) for obj in objects if obj.children for key in hashes(obj.children))
        level = [key for key in below if key not in seen and key not in visited]
    seen |= visited


def _pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _groups(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    """Yield entries in groups for which one part is about large enough."""
    group = list[_Entry]()
    size = 0
    for entry in entries:
        group.append(entry)
        size += entry.added_bytes
        if len(group) >= _PART_CHECKPOINTS or size >= _PART_BYTES:
            yield group
            group = []
            size = 0
    if group:
        yield group


# -- copying -----------------------------------------------------------------------------------------------------------


class _Copier:
    """One copy, under way."""

    def __init__(self, source: Store, target: Store, progress: Progress | None, verify: bool) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._verify = verify
        self.report = CopyReport()
        self._threads_total = self._checkpoints_total = 0
        self._sent: set[bytes] = set()
        """Objects that the target's family has, with all below them, as far as we know."""

    async def run(self, names: Sequence[str] | None) -> None:
        families = await _families(self._source) if names is None else await self._families_of(names)
        self._threads_total = sum(map(len, families))
        for thread_id in [None] if names is None else [name for family in families for name in family]:
            self._checkpoints_total += await self._source.count(
                Query(thread_id=thread_id, namespace=None, hidden="also")
            )
        for family in families:
            await self._copy_family(family)

    async def _families_of(self, names: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = []
        seen: set[str] = set()
        for name in names:
            if name not in seen:
                raw = await self._source.raw(name, family_threads=True)
                if raw is None:
                    raise InvalidInput(f"there is no thread {name!r} in the source")
                found.append(list(raw.family_threads))
                seen.update(raw.family_threads)
        return found

    async def _copy_family(self, names: Sequence[str]) -> None:
        before = self.report.checkpoints
        self._sent = set()
        for _ in range(_PASSES_MAX):
            family = await self._read(names)
            if family is None:
                return
            there = await self._there(family)
            there = await self._send_checkpoints(family, there)
            finished = await self._send_threads(family, there)
            if finished is not None:
                sent = self.report.checkpoints - before
                self._count(threads=len(family.raws), skipped=max(0, len(finished.entries) - sent))
                if self._verify:
                    await self._compare(family, finished)
                self._tell()
                return
        raise StoreUnavailable(f"the family of thread {names[0]!r} changes faster than it can be copied; try again")

    async def _read(self, names: Sequence[str]) -> _Family | None:
        """Return the family as it is now; None if it is gone."""
        raws = await self._read_threads(names)
        entries: list[_Entry] = []
        for name, raw in raws.items():
            # What came later belongs to a later moment of the thread.
            newest = {namespace: line.newest for namespace, line in raw.lines.items()}
            listed = await _entries(self._source, name)
            entries += [entry for entry in listed if entry.seq <= newest.get(entry.key.namespace, 0)]
        entries.sort(key=lambda entry: entry.seq)
        for raw in raws.values():
            thread = await self._source.thread(raw.thread_id, ancestry=True)
            if thread is not None and thread.family == raw.family:
                return _Family(raw.family, raw.identity, raws, thread.ancestry, entries)
        return None

    async def _read_threads(self, names: Sequence[str]) -> dict[str, RawThread]:
        """Return these threads of one family, and those that have come to it meanwhile."""
        raws: dict[str, RawThread] = {}
        family: str | None = None
        pending = dict.fromkeys(names)
        while pending:
            name = next(iter(pending))
            del pending[name]
            raw = await self._source.raw(name, family_threads=not raws)
            if raw is None or family not in (None, raw.family):
                continue
            family = raw.family
            raws[name] = raw
            pending |= dict.fromkeys(name for name in raw.family_threads if name not in raws)
        return raws

    # -- what the target has

    async def _there(self, family: _Family) -> _There:
        """Return what the target has of the family; InvalidInput if that is something else."""
        raws: dict[str, RawThread] = {}
        for name in family.raws:
            raw = await self._target.raw(name)
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
        entries: dict[Key, _Entry] = {}
        for name, raw in raws.items():
            if raw.family != raws[anchor].family or (name not in notes and not renumber.is_bare(raw)):
                raise _not_a_copy(name)
            _check_untouched(raw, notes.get(name))
            for entry in await _entries(self._target, name):
                if not numbers.reserved(entry.seq):
                    raise _moved_on(name)
                entries[entry.key] = entry
        there = _There(anchor, raws, notes, entries, numbers)
        _check_related(family, there)
        return there

    # -- checkpoints and their objects

    async def _send_checkpoints(self, family: _Family, there: _There) -> _There:
        """Send what the target does not have yet, and return what it has then."""
        numbers = there.numbers
        note = await self._reserve(family, there)
        target = await self._target.thread(there.anchor, ancestry=True)
        known = target.ancestry if target is not None else {}
        missing = [
            (segment, to) for segment, to in renumber.segments(family.ancestry, numbers).items() if segment not in known
        ]
        for segments in _pieces(missing, _PART_RUNS):
            await self._adopt(Part(there.anchor, note, segments=dict(segments)))
            note = None
        entries = dict(there.entries)
        for group in _groups(entry for entry in family.entries if _is_wanted(entry, entries, numbers)):
            for stored, objects in await self._load(family, there, group):
                await self._adopt(Part(there.anchor, note, objects=objects, checkpoints=stored))
                note = None
                entries |= {s.record.key: _entry(s) for s in stored}
        if note is not None:
            await self._adopt(Part(there.anchor, note))
        return there._replace(entries=entries)

    async def _reserve(self, family: _Family, there: _There) -> bytes | None:
        """Reserve the numbers that the family needs; return what to note of it with the first part that uses them."""
        numbers = there.numbers
        before = list(there.numbers.stretches)
        used = [number for entry in family.entries for number in (entry.seq, entry.segment)]
        spans = renumber.spans(family.raws.values(), family.ancestry, used)
        old = there.notes.get(there.anchor, Note(family.identity, (), None))
        size = numbers.needed(spans)
        if size:
            note = renumber.pack_note(old) if not there.notes else None  # from the first on it is known as a copy
            numbers.add(await self._target.adopt(Part(there.anchor, note, reserve=size)), size, spans)
        return renumber.pack_note(old._replace(stretches=numbers.stretches)) if numbers.stretches != before else None

    async def _load(
        self, family: _Family, there: _There, group: Sequence[_Entry]
    ) -> list[tuple[list[Stored], list[Object]]]:
        """Return checkpoints with their numbers in the target and the objects that it lacks: in one part, or more.

        Those that are not there any more are left out.
        """
        found: list[Stored] = []
        for entry in group:
            loaded = await self._source.read(*entry.key)
            if loaded is not None and loaded.stored.seq == entry.seq:
                found.append(loaded.stored)
        if not found:
            return []
        roots = [key for stored in found for key in hashes(stored.record.children)]
        try:
            objects = await self._lacking(family, there, roots)
        except _Lost:
            return await self._load_one_by_one(family, there, group, found)
        return [([renumber.stored(stored, there.numbers) for stored in found], objects)]

    async def _load_one_by_one(
        self, family: _Family, there: _There, group: Sequence[_Entry], found: Sequence[Stored]
    ) -> list[tuple[list[Stored], list[Object]]]:
        """Load a group of which an object is missing: its checkpoint was deleted meanwhile, or it is damaged."""
        if len(group) > 1:
            parts: list[tuple[list[Stored], list[Object]]] = []
            for entry in group:
                parts += await self._load(family, there, [entry])
            return parts
        key = group[0].key
        loaded = await self._source.read(*key)
        if loaded is None or loaded.stored.digest != found[0].digest:
            return []
        raise _differs("a part of its values is missing in the source", key) from None

    async def _lacking(self, family: _Family, there: _There, roots: Iterable[bytes]) -> list[Object]:
        """Return the objects at or below `roots` that the target lacks."""
        lacking: list[Object] = []

        async def fetch(asked: Sequence[bytes]) -> list[Object]:
            held: list[Object] = []
            if there.raws:  # begun earlier: ask
                held = await self._target.fetch(there.raws[there.anchor].family, asked, below=False)
            known = {obj.hash for obj in held}
            rest = [key for key in asked if key not in known]
            objects = await self._source.fetch(family.name, rest, below=False) if rest else []
            verified(objects)
            lacking.extend(objects)
            return held + objects

        await _walk(roots, self._sent, fetch)
        return lacking

    # -- threads

    async def _send_threads(self, family: _Family, there: _There) -> _There | None:
        """Make the threads what they are in the source, and return what the target shall have now.

        None if the source has moved on so far that a head could not be copied: it takes another pass.
        """
        late = [entry for entry in family.entries if _is_renumbered(entry, there.entries, there.numbers)]
        moved: dict[Key, Stored] = {}
        objects_of: dict[str, list[Object]] = defaultdict(list)
        for entry in late:
            for stored, objects in await self._load(family, there, [entry]):
                moved |= {each.record.key: each for each in stored}
                objects_of[entry.key.thread_id] += objects
        wanted = {entry.key for entry in family.entries} - {entry.key for entry in late}
        entries = {key: entry for key, entry in there.entries.items() if key in wanted}
        entries |= {key: _entry(stored) for key, stored in moved.items()}
        threads = _expected(family, entries, there.numbers)
        if not _has_all_heads(threads.values(), entries):
            return None

        gone = there.entries.keys() - entries.keys()
        touched = {key.thread_id for key in (*gone, *moved)}
        changed = [raw for name, raw in threads.items() if name in touched or not _is_done(raw, there)]
        for batch in _pieces(changed, _PART_THREADS):
            names = {raw.thread_id for raw in batch}
            part = Part(
                there.anchor,
                objects=list(itertools.chain(*[objects_of[name] for name in names])),
                checkpoints=[stored for key, stored in moved.items() if key.thread_id in names],
                gone=[key for key in gone if key.thread_id in names],
                threads=batch,
            )
            if not await self._send_batch(family, there, part):
                return None
        return there._replace(raws=threads, entries=entries)

    async def _send_batch(self, family: _Family, there: _There, part: Part) -> bool:
        """Send threads with all that belongs to them; return False if the source has moved on, and it cannot be had."""
        batch = part.threads
        try:
            objects = await self._lacking(family, there, [key for raw in batch for key in _roots(raw)])
        except _Lost:
            for raw in batch:
                found = await self._source.raw(raw.thread_id)
                if found != family.raws[raw.thread_id]._replace(
                    family_threads=found.family_threads if found is not None else ()
                ):
                    return False
            raise CheckpointCorrupted(
                "a part of a pending write, or of what two threads have in common, is missing in the source",
                thread_id=batch[0].thread_id,
            ) from None
        for raw in batch:  # once more, at the last moment
            found = await self._target.raw(raw.thread_id)
            if found is not None:
                _check_untouched(found, there.notes.get(raw.thread_id))
        done = Note(family.identity, there.numbers.stretches, None)
        threads = [
            raw._replace(note=renumber.pack_note(done._replace(fingerprint=renumber.fingerprint(raw)))) for raw in batch
        ]
        await self._adopt(part._replace(objects=[*part.objects, *objects], threads=threads))
        return True

    # -- telling

    async def _adopt(self, part: Part) -> None:
        await self._target.adopt(part)
        self._count(
            checkpoints=len(part.checkpoints),
            objects=len(part.objects),
            bytes=sum(len(obj.children) + len(obj.body) for obj in part.objects)
            + sum(len(stored.record.children) + len(stored.record.body) for stored in part.checkpoints),
        )
        self._tell()

    def _count(self, **more: int) -> None:
        self.report = replace(self.report, **{name: getattr(self.report, name) + n for name, n in more.items()})

    def _tell(self) -> None:
        if self._progress is not None:
            threads = self.report.threads
            checkpoints = self.report.checkpoints + self.report.skipped
            self._progress(
                CopyProgress(
                    threads,
                    max(threads, self._threads_total),
                    checkpoints,
                    max(checkpoints, self._checkpoints_total),
                )
            )

    # -- comparing

    async def _compare(self, family: _Family, copied: _There) -> None:
        """Read everything back and raise CheckpointCorrupted where it is not as it should be."""
        expected = renumber.segments(family.ancestry, copied.numbers)
        thread = await self._target.thread(copied.anchor, ancestry=True)
        found = thread.ancestry if thread is not None else {}
        if thread is None or any(tuple(found.get(segment, ())) != to for segment, to in expected.items()):
            raise _differs("the copy has another ancestry", Key(copied.anchor, "", ""))
        by_thread: dict[str, dict[Key, _Entry]] = {name: {} for name in copied.raws}
        for entry in copied.entries.values():
            by_thread[entry.key.thread_id][entry.key] = entry
        seen: set[bytes] = set()
        for name, raw in copied.raws.items():
            await self._compare_thread(raw, by_thread[name], family.raws)
            for group in _groups(by_thread[name].values()):
                await self._compare_values(thread.family, group, seen)
                self._count(verified=len(group))
            await self._check_below(thread.family, _roots(raw), seen, Key(name, "", ""))

    async def _compare_thread(
        self, expected: RawThread, entries: Mapping[Key, _Entry], family: Collection[str]
    ) -> None:
        name = expected.thread_id
        raw = await self._target.raw(name)
        different = renumber.difference(expected, _among(raw, family)) if raw is not None else "it is missing"
        if different is not None:
            raise _differs(f"the copy is not like the source: {different}", Key(name, "", ""))
        left = dict(entries)
        async for stored in _listed(self._target, name):
            entry = left.pop(stored.record.key, None)
            if entry is None:
                raise _differs("the copy has a checkpoint that the source has not", stored.record.key)
            pinned = stored.seq in expected.pinned
            hidden = checkpoint_tree.is_hidden(stored, expected.hidden)
            if _entry(stored) != entry or (stored.pinned, stored.hidden) != (pinned, hidden):
                raise _differs("the copy of the checkpoint is not like the source's", entry.key)
        for key in left:
            raise _differs("the checkpoint is missing in the copy", key)

    async def _compare_values(self, family: str, group: Sequence[_Entry], seen: set[bytes]) -> None:
        roots: dict[Key, list[bytes]] = {}
        for entry in group:
            loaded = await self._target.read(*entry.key)
            if loaded is None or record_digest(*pack_record(loaded.stored.record)) != entry.digest:
                raise _differs("the copy of the checkpoint is not like the source's", entry.key)
            roots[entry.key] = hashes(loaded.stored.record.children)
        try:
            await self._check_below(family, itertools.chain(*roots.values()), seen, group[0].key)
        except CheckpointCorrupted:
            for key, below in roots.items():  # which one is it?
                await self._check_below(family, below, seen, key)
            raise

    async def _check_below(self, family: str, roots: Iterable[bytes], seen: set[bytes], key: Key) -> None:
        async def fetch(asked: Sequence[bytes]) -> list[Object]:
            objects = await self._target.fetch(family, asked, below=False)
            verified(objects)
            return objects

        try:
            await _walk(roots, seen, fetch)
        except _Lost:
            raise _differs("a part of its values is missing in the copy", key) from None
        except CheckpointCorrupted as exc:
            raise exc.located(key.thread_id, key.checkpoint_id or None) from exc


# -- decisions ---------------------------------------------------------------------------------------------------------


def _entry(stored: Stored) -> _Entry:
    return _Entry(stored.record.key, stored.seq, stored.segment, stored.digest, stored.added_bytes)


def _is_wanted(entry: _Entry, there: Mapping[Key, _Entry], numbers: Numbers) -> bool:
    """Whether a checkpoint must be sent. One that has another number by now waits: see `_is_renumbered`."""
    found = there.get(entry.key)
    return found is None or (found.digest != entry.digest and found.seq == numbers(CHECKPOINT, entry.seq))


def _is_renumbered(entry: _Entry, there: Mapping[Key, _Entry], numbers: Numbers) -> bool:
    """Whether the source has deleted a checkpoint and put it again: it changes places with the threads, not before."""
    found = there.get(entry.key)
    return found is not None and found.seq != numbers(CHECKPOINT, entry.seq)


def _expected(family: _Family, entries: Mapping[Key, _Entry], numbers: Numbers) -> dict[str, RawThread]:
    """Return the threads as the target shall have them, with what could be copied."""
    stored = {entry.seq for entry in entries.values()}
    threads = {name: _among(renumber.thread(raw, numbers), family.raws) for name, raw in family.raws.items()}
    return {
        name: raw._replace(began=raw.began if raw.began in stored else 0, pinned=raw.pinned & stored)
        for name, raw in threads.items()
    }


def _roots(raw: RawThread) -> list[bytes]:
    """Return the hashes that a thread needs besides its checkpoints."""
    found = [common.root.children for held in raw.shared_states.values() for common in held]
    found += [write.children for _, write in raw.writes]
    return [key for children in found for key in hashes(children)]


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


def _check_related(family: _Family, there: _There) -> None:
    """Refuse what comes from a twin of the source, which went another way: a store uses no number twice."""
    by_number = {entry.seq: entry.key for entry in there.entries.values()}
    for entry in family.entries:
        number = there.numbers(CHECKPOINT, entry.seq)
        if there.numbers.covers(CHECKPOINT, entry.seq) and by_number.get(number, entry.key) != entry.key:
            raise _not_a_copy(entry.key.thread_id)


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


def _has_all_heads(threads: Iterable[RawThread], entries: Mapping[Key, _Entry]) -> bool:
    for raw in threads:
        for namespace, line in raw.lines.items():
            if line.head is not None and Key(raw.thread_id, namespace, line.head) not in entries:
                return False
    return True


def _differs(reason: str, key: Key) -> CheckpointCorrupted:
    return CheckpointCorrupted(reason, thread_id=key.thread_id, checkpoint_id=key.checkpoint_id or None)
