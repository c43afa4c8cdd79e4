"""Puts a damaged store right: `engine.repair`.

What is damaged is set aside: written to a file as it is stored, then removed. Everything that is whole stays as it is.
The store makes its tables agree first (`stores/inspection.py`); then checkpoints that cannot be read, or whose objects
are damaged, go as a deletion would take them; then each thread gets back what must be true of it: a head that is
stored, segments that follow something, pins and hidden stretches of what is there.
"""

from __future__ import annotations

import json
import logging
import os
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from everstep.errors import InvalidInput, StoreError
from everstep.history.given_tags import says_which_tag
from everstep.history.labels import says_what
from everstep.reports import RepairReport, UpkeepProgress
from everstep.stores.covers import Covers
from everstep.stores.inspection import Entry, Lost, Mending, Rehearsing
from everstep.stores.protocol import Key, Part, Place, RawLine, RawThread, SharedState, Store, Stored, Write
from everstep.upkeep.looking import Look
from everstep.upkeep.relations import entry_of_id, is_in_order, later_in_segment, only_parent
from everstep.upkeep.verify import Family, Progress, needs, verify

T = TypeVar("T")
logger = logging.getLogger("everstep")

# What was put right may show what else is wrong.
_ROUNDS_MAX = 4


async def repair(
    store: Store,
    thread_id: str | None,
    *,
    dry_run: bool = False,
    keep: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> RepairReport:
    """Put a thread, or (None) the whole store, right, and return what was done."""
    kept = _KeptRows(_keep_path(store, keep), is_written=not dry_run)
    return await _Repair(store, thread_id, dry_run, kept, progress).run()


def _keep_path(store: Store, keep: str | os.PathLike[str] | None) -> Path:
    if keep is not None:
        return Path(keep)
    folder = Path.cwd()
    beside = getattr(store, "path", None)
    if beside is not None:
        folder = Path(beside).parent
    return folder / f"everstep-repair-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.jsonl"


class _Repair:
    def __init__(
        self, store: Store, thread_id: str | None, dry_run: bool, kept: _KeptRows, progress: Progress | None
    ) -> None:
        self._store = store
        self._only = thread_id
        self._progress = progress
        self._kept = kept
        self._report = RepairReport(dry_run=dry_run)

    async def run(self) -> RepairReport:
        report = self._report
        found = await verify(self._store, self._only, self._progress)
        report.found = list(found.findings)
        report.left = list(found.findings)
        if found.ok:
            return report
        if not report.dry_run:
            await self._repair_all()
        elif not await self._rehearse():
            await self._mend_tables()
            await self._repair_families(found.damaged_threads)
        self._tell_what_is_whole_again()
        report.threads = sorted(set(report.threads))
        report.kept_in = await self._kept.close()
        return report

    async def _rehearse(self) -> bool:
        """Repair a copy, and tell what that did; False: there is no copy to be had.

        What is damaged may hide other damage, so only a repair tells all that it would do.
        """
        if not isinstance(self._store, Rehearsing):
            return False
        try:
            async with self._store.rehearsal() as copy:
                tried = _Repair(copy, self._only, False, self._kept, self._progress)
                await tried._repair_all()
        except (OSError, StoreError) as exc:
            logger.info("a repair cannot be tried on a copy: %s", exc)
            return False
        report = self._report
        places = _folder_of(copy), _folder_of(self._store)
        report.actions = [action.replace(*places) for action in tried._report.actions]
        report.removed = tried._report.removed
        report.threads = tried._report.threads
        report.left = tried._report.left
        return True

    async def _repair_all(self) -> None:
        """Go round until nothing is wrong, or nothing more can be done."""
        report = self._report
        for _ in range(_ROUNDS_MAX):
            before = list(report.actions)
            await self._mend_tables()
            # Tables that agree show other damage.
            found = await verify(self._store, self._only)
            for family in await self._repair_families(found.damaged_threads):
                await self._store.sweep(family)
            await self._mend_tables()
            report.left = list((await verify(self._store, self._only)).findings)
            if not report.left or report.actions == before:
                break

    def _tell_what_is_whole_again(self) -> None:
        """Name what is right again and of which nothing went: it was made anew from what else is stored."""
        report = self._report
        still_wrong = {finding.thread_id for finding in report.left}
        right_again: dict[str | None, None] = {}
        for finding in report.found:
            if finding.thread_id not in still_wrong and finding.thread_id not in report.threads:
                right_again[finding.thread_id] = None
        if None in right_again and not report.actions:
            report.actions.append("tables and indexes agree again")
        for name in right_again:
            if name is not None:
                report.actions.append(f"thread {name!r}: it is whole again, by what else is stored")

    async def _repair_families(self, damaged: Sequence[str]) -> set[str]:
        """Put the families of damaged threads right; return those in which objects may have lost their last reader."""
        families: set[str] = set()
        for number, name in enumerate(damaged):
            self._tell(number, len(damaged))
            families |= await self._repair_family(name)
        return families

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(UpkeepProgress("repair", done, total, len(self._report.removed), 0))

    async def _mend_tables(self) -> None:
        if not isinstance(self._store, Mending):
            return
        lost = await self._store.mend_tables(dry_run=True)
        # Before it is removed.
        await self._kept.write(lost)
        if not self._report.dry_run:
            told = set(map(repr, lost))
            lost = await self._store.mend_tables(dry_run=False)
            # Others may have written between the two looks: what went besides is kept, too.
            await self._kept.write([each for each in lost if repr(each) not in told])
        for each in lost:
            self._act(f"set aside: {each.what}", each.thread_id)

    def _act(self, what: str, thread_id: str | None) -> None:
        if thread_id is None:
            self._report.actions.append(what)
            return
        self._report.actions.append(f"thread {thread_id!r}: {what}")
        if thread_id not in self._report.threads:
            self._report.threads.append(thread_id)

    # -- a family

    async def _repair_family(self, name: str) -> set[str]:
        """Put the threads of a family right, and return its name if objects may have lost their last reader."""
        family = await Family.read(self._store, name, ())
        await family.findings()
        gone: set[str] = set()
        for look in family.looks.values():
            if look.raw is None:
                # What is left of it is told as not repaired.
                continue
            bad = _bad_keys(look, family.tainted)
            if bad:
                await self._remove(look.thread_id, bad)
                gone.add(look.raw.family)
        if self._report.dry_run:
            return gone
        tainted = family.tainted
        # Read again: what was removed may have been what another thread names.
        family = await Family.read(self._store, name, ())
        for look in family.looks.values():
            if look.raw is not None:
                await self._settle(look, look.raw, family, tainted)
        return gone

    async def _remove(self, thread_id: str, bad: Sequence[Key]) -> None:
        if isinstance(self._store, Mending):
            await self._kept.write(await self._store.stored_rows(bad))
        if not self._report.dry_run:
            await self._store.delete(thread_id, keys=bad)
        for key in bad:
            self._report.removed.append((key.thread_id, key.namespace, key.checkpoint_id))
            self._act(f"checkpoint {key.checkpoint_id!r} is set aside", thread_id)

    async def _settle(self, look: Look, raw: RawThread, family: Family, tainted: Collection[bytes]) -> None:
        """Give a thread what must be true of it."""
        entries = list(chain.from_iterable(each.entries for each in family.looks.values()))
        settled = settle(raw, look.entries, entries, tainted, family.raws())
        segments = _missing_segments(raw, settled.entries, entries)
        changed = [entry for entry in settled.entries if entry not in look.entries]
        if settled.raw == raw and not segments and not changed:
            return
        checkpoints: list[Stored] = []
        for entry in changed:
            loaded = await self._store.read(*entry.key)
            if loaded is not None:
                checkpoints.append(loaded.stored._replace(segment=entry.segment))
        thread = _with_segments(settled.raw, segments, settled.entries)
        # Before it is removed.
        await self._kept.write(_dropped(raw, settled.raw))
        await self._store.adopt(Part(raw.thread_id, checkpoints=checkpoints, segments=segments, threads=[thread]))
        for what in settled.actions or ["what its parts follow is put right"]:
            self._act(what, raw.thread_id)


def _folder_of(store: Store) -> str:
    """Return the folder of a store that is a file."""
    path: Path = getattr(store, "path", Path())
    return str(path.parent)


def _dropped(before: RawThread, after: RawThread) -> list[Lost]:
    """Return what a thread has no longer: parts of it that name what is not there, or say nothing."""
    name = before.thread_id
    lost: list[Lost] = []
    for operation in _without(before.operations, after.operations):
        lost.append(Lost("an operation of the log", name, stored=operation))
    for stretch in _without(before.hidden, after.hidden):
        lost.append(Lost("a hidden stretch", name, stretch.namespace, stored=stretch))
    for key, write in _without(before.writes, after.writes):
        lost.append(Lost("a pending write", name, key.namespace, key.checkpoint_id, write))
    for seq in sorted(before.pinned - after.pinned):
        lost.append(Lost("a pin", name, stored=[seq]))
    for other, states in before.shared_states.items():
        for state in _without(states, after.shared_states.get(other, ())):
            lost.append(Lost(f"a state in common with thread {other!r}", name, stored=state))
    return lost


def _without(items: Iterable[T], left: Iterable[T]) -> list[T]:
    """Return the items that are not left. Those that are, are the same objects: `settle` makes none of them anew."""
    kept = set(map(id, left))
    return [item for item in items if id(item) not in kept]


def _missing_segments(
    raw: RawThread, entries: Sequence[Entry], family: Sequence[Entry]
) -> dict[int, tuple[Place, ...]]:
    """Return what segments follow of which that is not stored: the parents of their first checkpoints."""
    places = {entry.key: Place(entry.key, entry.segment, entry.seq) for entry in [*family, *entries]}
    firsts: dict[str, dict[int, Entry]] = {}
    for entry in entries:
        firsts.setdefault(entry.key.namespace, {}).setdefault(entry.segment, entry)
    found: dict[int, tuple[Place, ...]] = {}
    for namespace, own in firsts.items():
        line = raw.lines.get(namespace)
        if line is None:
            continue
        lost = own.keys() - line.segments
        is_branch = raw.origin is not None and raw.origin.namespace == namespace
        if not is_branch:
            # The first of a namespace follows nothing.
            lost.discard(min([*own, *line.segments]))
        for segment in sorted(lost):
            found[segment] = _followed(own[segment], segment, places)
    return found


def _followed(first: Entry, segment: int, places: Mapping[Key, Place]) -> tuple[Place, ...]:
    """Return the places that the first checkpoint of a segment follows, as far as they are known."""
    # The one that began the segment is gone, and its parents with it.
    if first.seq != segment:
        return ()
    found: list[Place] = []
    for key in first.parents:
        if key in places and places[key].seq < segment:
            found.append(places[key])
    return tuple(found)


def _with_segments(raw: RawThread, segments: Mapping[int, Any], entries: Sequence[Entry]) -> RawThread:
    """Return a thread whose namespaces know these segments too, those of each by its checkpoints."""
    lines = dict(raw.lines)
    for entry in entries:
        line = lines.get(entry.key.namespace)
        if line is not None and entry.segment in segments:
            lines[entry.key.namespace] = line._replace(segments=line.segments | {entry.segment})
    return raw._replace(lines=lines)


def _bad_keys(look: Look, tainted: Collection[bytes]) -> list[Key]:
    """Return the checkpoints that cannot be read, or that need objects which cannot."""
    bad = list(dict.fromkeys(look.unreadable))
    for entry in look.entries:
        if entry.key not in bad and needs(entry.children, tainted):
            bad.append(entry.key)
    return bad


class Settled(NamedTuple):
    """A thread as it must be, and what was changed for it."""

    raw: RawThread
    entries: list[Entry]
    actions: list[str]


def settle(
    raw: RawThread,
    own: Sequence[Entry],
    family: Sequence[Entry],
    tainted: Collection[bytes],
    raws: Mapping[str, RawThread],
) -> Settled:
    """Return a thread with nothing in it that names what is not there. Pure."""
    entries = _in_segments(own)
    hidden = [stretch for stretch in raw.hidden if stretch.namespace in raw.lines and is_in_order(stretch)]
    changed = raw._replace(
        hidden=hidden,
        lines=_lines(raw, entries, Covers(hidden)),
        pinned=raw.pinned.intersection([entry.seq for entry in entries]),
        writes=_whole_writes(raw, tainted),
        shared_states=_states(raw, tainted, raws),
        began=_began(raw, family),
        operations=[each for each in raw.operations if says_which_tag(each) and says_what(each)],
    )
    actions: list[str] = []
    if entries != list(own):
        actions.append("checkpoints are put into segments of their own")
    actions += _changes(raw, changed)
    if not actions:
        return Settled(raw, entries, actions)
    return Settled(changed, entries, actions)


def _changes(before: RawThread, after: RawThread) -> Iterator[str]:
    """Yield what was changed of a thread, in words."""
    if len(after.hidden) != len(before.hidden):
        yield "hidden stretches without sense are lifted"
    for namespace, line in before.lines.items():
        head = after.lines[namespace].head
        where = f" of namespace {namespace!r}" if namespace else ""
        if head != line.head:
            yield f"the head{where} is {head!r} now, and was {line.head!r}"
    if after.pinned != before.pinned:
        yield "pins of what is not stored are dropped"
    if len(after.writes) != len(before.writes):
        yield f"{len(before.writes) - len(after.writes)} pending writes whose values are damaged are dropped"
    if after.shared_states != {name: list(held) for name, held in before.shared_states.items()}:
        yield "states in common with others that are damaged are dropped"
    if after.began != before.began:
        yield "its beginning is not stored any more"
    if len(after.operations) != len(before.operations):
        yield "operations that do not say which tag they are about, which name or which note, are dropped"


def _lines(raw: RawThread, entries: Sequence[Entry], covers: Covers) -> dict[str, RawLine]:
    """Return the namespaces of a thread with heads that are stored."""
    lines: dict[str, RawLine] = {}
    for namespace, line in raw.lines.items():
        own = [entry for entry in entries if entry.key.namespace == namespace]
        lines[namespace] = _line(line, own, covers, is_copy=bool(raw.note))
    return lines


def _whole_writes(raw: RawThread, tainted: Collection[bytes]) -> list[tuple[Key, Write]]:
    """Return the pending writes of a thread whose namespaces and values are there."""
    writes: list[tuple[Key, Write]] = []
    for key, write in raw.writes:
        if key.namespace in raw.lines and not needs(write.children, tainted):
            writes.append((key, write))
    return writes


def _began(raw: RawThread, family: Sequence[Entry]) -> int:
    """Return the number of the checkpoint where a branch began; 0 if it is not stored any more under that number."""
    if raw.origin is None:
        return raw.began
    for entry in family:
        if entry.key == raw.origin and entry.seq == raw.began:
            return raw.began
    return 0


def _states(raw: RawThread, tainted: Collection[bytes], raws: Mapping[str, RawThread]) -> dict[str, list[SharedState]]:
    """Return the states in common with others that both have, and that are whole."""
    found: dict[str, list[SharedState]] = {}
    for other, states in raw.shared_states.items():
        if other not in raws:
            continue
        theirs = raws[other].shared_states.get(raw.thread_id, ())
        found[other] = []
        for state in states:
            if state in theirs and not needs(state.root.children, tainted):
                found[other].append(state)
    return found


def _line(line: RawLine, entries: Sequence[Entry], covers: Covers, *, is_copy: bool) -> RawLine:
    """Return a namespace with a head that is stored, and that nothing follows which should be the head."""
    head = None
    if line.head is not None:
        head = entry_of_id(entries, line.head)
    if head is not None:
        later = later_in_segment(entries, head)
        if line.head_was_moved or is_copy or not later:
            return line
        newest = later[-1]
        return line._replace(head=newest.key.checkpoint_id, generation=line.generation + 1)
    visible = [entry for entry in entries if not covers.hide(entry.key.namespace, entry.seq, entry.segment)]
    # No head is as it should be, if there is nothing that could be it or if a copy has not come so far.
    if line.head is None and (not visible or not line.generation or is_copy):
        return line
    name = None
    if visible:
        name = visible[-1].key.checkpoint_id
    return line._replace(head=name, head_was_moved=True, generation=line.generation + 1)


def _in_segments(entries: Sequence[Entry]) -> list[Entry]:
    """Return checkpoints so that within a segment each follows the one before; others begin segments of their own."""
    found: list[Entry] = []
    by_key = {entry.key: entry for entry in entries}
    last: dict[tuple[str, int], Key] = {}
    given: dict[Key, int] = {}
    for entry in entries:
        line = entry.key.namespace
        segment = entry.segment
        parent = only_parent(entry, by_key)
        if segment > entry.seq:
            segment = entry.seq
        elif not entry.kind and parent is not None and segment != entry.seq:
            previous = last.get((line, segment))
            if previous is not None and previous != parent.key:
                # It goes on in the segment of its parent if that is the last there, else it begins one.
                segment = given.get(parent.key, 0)
                if last.get((line, segment)) != parent.key:
                    segment = entry.seq
        last[line, segment] = entry.key
        given[entry.key] = segment
        found.append(entry._replace(segment=segment))
    return found


class _KeptRows:
    """A file of JSON lines with what was set aside; made when there is something."""

    def __init__(self, path: Path, *, is_written: bool) -> None:
        self._path = path
        self._is_written = is_written
        self._is_there = False
        if is_written and path.exists():
            raise InvalidInput(f"{path} exists already; name another file to keep what is set aside in")

    async def write(self, rows: Sequence[Lost]) -> None:
        if not rows or not self._is_written:
            return
        text = "".join(json.dumps(_as_json(row)) + "\n" for row in rows)
        self._append(text)

    def _append(self, text: str) -> None:
        # Readable for its owner only, since it holds what the store held.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # On the disk before the store forgets it.
            os.fsync(file.fileno())
        self._is_there = True

    async def close(self) -> str | None:
        """Return where the file is, if there is one."""
        if not self._is_there:
            return None
        return str(self._path)


def _as_json(row: Lost) -> dict[str, Any]:
    found = {"what": row.what, "thread_id": row.thread_id, "namespace": row.namespace}
    return {**found, "checkpoint_id": row.checkpoint_id, "stored": _plain(row.stored)}


def _plain(value: Any) -> Any:
    """Return a row as JSON: bytes as base64, what JSON does not have as text."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"base64": b64encode(bytes(value)).decode()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()
