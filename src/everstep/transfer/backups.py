"""Backups of a live store in a folder: the first file holds everything, a later one what changed since.

A backup is an `.everstep` file, and a list that says where each family stands that the store had then: the families
that have changed since the list before, or all. Both are written aside and get their names when they are on the disk;
last the manifest does, which counts. So whoever is killed leaves the backups that there were, and a file that the next
one replaces.

Before an increment of a family is written, all that earlier files have of it is read. What cannot be read cannot be
rested on: such a family is written whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput, StoreError, StoreUnavailable
from everstep.reports import BackupReport, CopyReport, counted
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Key, Store
from everstep.transfer import archive, chains, frames
from everstep.transfer.chains import ChainSource, Spread
from everstep.transfer.exporting import ArchiveSource, Exporter, Run, file_error, runner, sync_folder, write_aside
from everstep.transfer.families import Entry, Family, Pass, StorePass, StoreSource
from everstep.transfer.increments import Change, Held, Place, change_items, content_of
from everstep.transfer.receiving import NAMES_MAX, Progress, Target
from everstep.transfer.sides import Side, opened
from everstep.types import utc_now
from everstep.values import codec

_MANIFEST = "manifest.json"
_FORMAT = 2
_DELETED_MAX = 2
_FEW = 500
_APART_BYTES = 64 << 10  # families that begin in one frame: so little is read to get at one
_log = logging.getLogger("everstep")

Folder = str | os.PathLike[str]


def backup(store: Side, folder: Folder, *, progress: Progress | None = None) -> BackupReport:
    """Back up a store into a folder and return what was written. The store may be in use.

    The first backup holds everything, a later one what has changed since the one before: so it takes what was written,
    however long the threads are. Each thread is backed up as it was at one moment. A backup counts when all of it is on
    the disk. One at a time: a second one that ends meanwhile makes this one fail.
    """
    return run_to_end(_backup(store, Path(folder), progress, blocking=True))


async def backup_async(store: Side, folder: Folder, *, progress: Progress | None = None) -> BackupReport:
    """Back up a store without blocking the event loop. See `backup`."""
    return await _backup(store, Path(folder), progress, blocking=False)


def restore(
    folder: Folder,
    store: Side,
    at: int | str | datetime | None = None,
    *,
    progress: Progress | None = None,
    verify: bool = True,
) -> CopyReport:
    """Bring what a store had at some backup into another store, and return what was done.

    `at` is the number of a backup, or a time (ISO 8601, or a datetime; UTC if it has no zone): the newest backup that
    is not later; None: the newest. As with `import_threads` nothing is overwritten, and it may be run again.
    """
    return run_to_end(_restore(Path(folder), store, at, progress, verify, blocking=True))


async def restore_async(
    folder: Folder,
    store: Side,
    at: int | str | datetime | None = None,
    *,
    progress: Progress | None = None,
    verify: bool = True,
) -> CopyReport:
    """Bring back what a store had at some backup without blocking the event loop. See `restore`."""
    return await _restore(Path(folder), store, at, progress, verify, blocking=False)


class _Known(NamedTuple):
    """A family in a backup, as the list of families has it."""

    number: int
    """The last backup whose file tells of it."""
    token: str
    """How it was then: equal if nothing has changed."""
    offset: int | None = None
    """Where in the file it begins; None: the file was written by an older version, and has all of the family."""
    check: str = ""
    threads: int = 0
    checkpoints: int = 0

    @property
    def place(self) -> Place | None:
        """Where its last file begins to tell of it, if that is known."""
        if self.offset is None:
            return None
        return Place(self.number, self.offset, bytes.fromhex(self.check))


async def _backup(store: Side, folder: Path, progress: Progress | None, *, blocking: bool) -> BackupReport:
    run = runner(blocking)
    async with opened(store, "source", blocking) as one:
        # For its owner only, since it holds what the store holds.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        manifest = _read_manifest(folder)
        known: dict[str, _Known] = {}
        number = 1
        version = frames.VERSION
        if manifest:
            known = _read_families(folder, manifest)
            number = manifest[-1]["number"] + 1
            version = frames.INCREMENT_VERSION
        name = chains.name_of(number)
        time = utc_now()
        source = _ChangedFamilies(one, folder, known, number, run)
        async with write_aside(folder / name, run) as out:
            writer = _IncrementWriter(out, source, progress, run, version)
            report = await writer.write_all()
        families, changes = _list_of_families(known, source.families, manifest)
        async with write_aside(folder / f"{number:06}.families", run) as out:
            out.write(families)
        # The manifest is what counts: two backups at once must not each leave out the other.
        if _read_manifest(folder) != manifest:
            raise StoreUnavailable(f"another backup into {folder} has ended meanwhile; try again")
        entry = {
            "number": number,
            "time": time,
            "file": name,
            "bytes": report.bytes,
            "check": hashlib.sha256(families).hexdigest(),
            "changes": changes,
        }
        async with write_aside(folder / _MANIFEST, run) as out:
            out.write(json.dumps({"format": _FORMAT, "backups": [*manifest, entry]}, indent=1).encode())
        await run(sync_folder, folder)
    return BackupReport(number, report.threads, report.checkpoints, report.objects, report.bytes, source.unchanged)


async def _restore(
    folder: Path,
    store: Side,
    at: int | str | datetime | None,
    progress: Progress | None,
    verify: bool,
    *,
    blocking: bool,
) -> CopyReport:
    run = runner(blocking)
    manifest = _read_manifest(folder)
    chosen = _choose(manifest, at, folder)
    known = _read_families(folder, [entry for entry in manifest if entry["number"] <= chosen["number"]])
    spread: list[Spread] = []
    by_file: dict[int, set[bytes]] = defaultdict(set)
    for identity, held in known.items():
        place = held.place
        if place is None:
            by_file[held.number].add(bytes.fromhex(identity))
        else:
            spread.append(Spread(bytes.fromhex(identity), place, held.token, held.threads, held.checkpoints))
    total = CopyReport()
    async with opened(store, "target", blocking) as other:
        for number, identities in sorted(by_file.items()):
            report = await _restore_whole(folder / chains.name_of(number), identities, other, progress, verify, run)
            total = _sum(total, report)
        source = ChainSource(folder, spread, run, _token)
        report = await Target(other, source, progress, verify=verify, may_go_back=False).take_all()
    return _sum(total, report)


async def _restore_whole(
    path: Path, identities: set[bytes], other: Store, progress: Progress | None, verify: bool, run: Run
) -> CopyReport:
    """Bring back families of a file that has all of each."""
    with chains.opened(path) as content:
        source = ArchiveSource(content, None, run, identities)
        report = await Target(other, source, progress, verify=verify, may_go_back=False).take_all()
    if source.taken != identities:
        raise CheckpointCorrupted(f"the backup lacks a family that {path} should have")
    return report


def _sum(one: CopyReport, other: CopyReport) -> CopyReport:
    names = ("threads", "checkpoints", "objects", "bytes", "skipped", "verified")
    total = counted(one, **{name: getattr(other, name) for name in names})
    taken = one.thread_ids + other.thread_ids
    kept = one.kept_ids + other.kept_ids
    return replace(total, thread_ids=taken[:NAMES_MAX], kept_ids=kept[:NAMES_MAX])


class _ChangedFamilies(StoreSource):
    """The families of a store that are not as they were at the backup before."""

    def __init__(self, store: Store, folder: Path, known: Mapping[str, _Known], number: int, run: Run) -> None:
        super().__init__(store, None)
        self._folder = folder
        self._known = known
        self.number = number
        self._run = run
        self._coming: bytes | None = None
        self.held: Held | None = None
        """What earlier files have of the family that comes; None: it is written whole."""
        self.place: Place | None = None
        """Where that family begins in the file; the writer notes it."""
        self.families: dict[str, _Known] = {}
        """All that there are, by identity."""
        self.unchanged = 0

    async def passes(self) -> AsyncGenerator[StorePass, None]:
        async with aclosing(super().passes()) as passes:
            async for coming in passes:
                family = coming.family
                identity = family.identity.hex()
                token = _token(family)
                known = self._known.get(identity)
                if known is not None and known.token == token:
                    # The earlier backup has it: its place is named again, and nothing is written.
                    self.families[identity] = known
                    self.unchanged += len(family.raws)
                    coming.is_finished = True
                    continue
                if self._coming != family.identity:  # else it is one more pass of the same
                    self._coming = family.identity
                    self.place = None
                    self.held = await self._run(self._rest_on, known, family)
                    if self.held is not None:
                        coming.skip(self.held.objects)
                yield coming
                if coming.is_finished and self.place is not None:
                    _, offset, check = self.place
                    counts = len(family.raws), len(family.entries)
                    self.families[identity] = _Known(self.number, token, offset, check.hex(), *counts)

    def _rest_on(self, known: _Known | None, family: Family) -> Held | None:
        """Return what earlier files have of a family; None if it had better be written whole."""
        if known is None or known.place is None:
            return None
        try:
            held = chains.read_held(self._folder, family.identity, known.place)
        except (CheckpointCorrupted, InvalidInput, StoreError) as exc:
            _log.warning(
                "an earlier backup in %s cannot be read, so the family of thread %r is written whole: %s",
                self._folder,
                next(iter(family.raws)),
                exc,
            )
            return None
        # A restore reads all that the chain holds: when most of it has been deleted since, it is begun anew.
        if len(held.checkpoints) > _DELETED_MAX * (len(family.entries) + _FEW):
            return None
        return held


class _IncrementWriter(Exporter):
    """Writes what families have beyond what earlier files hold."""

    _source: _ChangedFamilies

    async def _write_told(self, coming: Pass) -> dict[Key, int]:
        if self._items.size_bytes >= _APART_BYTES:
            await self._run(self._items.flush)
        if self._source.place is None:
            frames = self._items.frames
            self._source.place = Place(self._source.number, frames.size_bytes, frames.check)
        held = self._source.held
        if held is None:
            return await super()._write_told(coming)
        change: Change = await self._run(change_items, held, coming.family)
        for item in change.items:
            await self._write(item)
        return change.positions

    def wants(self, entry: Entry) -> bool:
        held = self._source.held
        return held is None or content_of(entry) not in held.checkpoints


def _token(family: Family) -> str:
    """Return what is another as soon as anything of a family is."""
    in_order = family._replace(raws=dict(sorted(family.raws.items())))
    checksum = hashlib.sha256()
    for item in archive.family_items(in_order):
        checksum.update(codec.pack(item))
    return checksum.hexdigest()


def _read_manifest(folder: Path) -> list[dict[str, Any]]:
    """Return the backups of a folder, the oldest first."""
    try:
        content = json.loads((folder / _MANIFEST).read_bytes())
        if content["format"] > _FORMAT:
            raise InvalidInput(f"the backups in {folder} are of a newer version of Everstep; install that one")
        backups: list[dict[str, Any]] = content["backups"]
        if backups and backups[0].get("changes"):
            raise ValueError("the first backup has no list of families")
        for entry in backups:
            types = type(entry["number"]), type(entry["check"]), type(entry.get("changes", 0))
            if types != (int, str, int):
                raise ValueError("an entry is out of shape")
            datetime.fromisoformat(entry["time"])
        return backups
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise file_error(exc, folder / _MANIFEST) from exc
    except InvalidInput:  # it is a ValueError too
        raise
    except (ValueError, TypeError, KeyError) as exc:
        raise CheckpointCorrupted(f"the manifest of the backups in {folder} cannot be read: {exc}") from exc


def _read_families(folder: Path, manifest: Sequence[Mapping[str, Any]]) -> dict[str, _Known]:
    """Return the families that the last of some backups had: the last list of all, and what has changed since."""
    begin = max(place for place, entry in enumerate(manifest) if not entry.get("changes"))
    families: dict[str, _Known] = {}
    for entry in manifest[begin:]:
        content = _read_list(folder, entry)
        if not entry.get("changes"):
            content = {"changed": content, "gone": []}
        for identity in content["gone"]:
            del families[identity]
        for identity, known in content["changed"].items():
            families[identity] = _Known(*known)
    return families


def _read_list(folder: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / f"{entry['number']:06}.families"
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise CheckpointCorrupted(f"the backup lacks a file: {path}") from exc
    if hashlib.sha256(content).hexdigest() != entry["check"]:
        raise CheckpointCorrupted(f"{path} does not match its checksum")
    found: dict[str, Any] = json.loads(content)
    return found


def _list_of_families(
    known: Mapping[str, _Known], families: Mapping[str, _Known], manifest: Sequence[Mapping[str, Any]]
) -> tuple[bytes, int]:
    """Return the families of a store as a list of changes, and how many changes follow the last list of all by now.

    When these are as many as there are families, all are listed again, which is no change.
    """
    changed = {identity: held for identity, held in families.items() if known.get(identity) != held}
    gone = [identity for identity in known if identity not in families]
    changes = len(changed) + len(gone) + 1
    if manifest:
        changes += manifest[-1].get("changes", 0)
    if not manifest or changes > len(families):
        return json.dumps(families).encode(), 0
    return json.dumps({"changed": changed, "gone": gone}).encode(), changes


def _choose(manifest: Sequence[dict[str, Any]], at: int | str | datetime | None, folder: Path) -> dict[str, Any]:
    """Return the backup that is meant."""
    found = list(manifest)
    wanted = ""
    if isinstance(at, int):
        wanted = f" for {at}"
        found = [entry for entry in found if entry["number"] == at]
    elif at is not None:
        wanted = f" for {at}"
        moment = _moment(at)
        found = [entry for entry in found if datetime.fromisoformat(entry["time"]) <= moment]
    if not found:
        raise InvalidInput(f"there is no backup{wanted} in {folder}")
    return found[-1]


def _moment(at: str | datetime) -> datetime:
    if not isinstance(at, datetime):
        try:
            at = datetime.fromisoformat(at)
        except (ValueError, TypeError) as exc:
            raise InvalidInput(f"at is the number of a backup or a time, not {at!r:.100}") from exc
    if at.tzinfo is None:
        return at.replace(tzinfo=UTC)
    return at
