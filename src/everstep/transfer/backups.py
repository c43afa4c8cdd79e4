"""Backups of a live store in a folder: the first file holds everything, a later one the families that changed since.

A backup is an `.everstep` file and a list of all families that the store had then, each with the file that has it as it
was. Both are written aside and get their names when they are on the disk; last the manifest does, which counts. So
whoever is killed leaves the backups that there were, and a file that the next one replaces.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput, StoreUnavailable
from everstep.reports import BackupReport, CopyReport
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Store
from everstep.transfer import archive
from everstep.transfer.exporting import ArchiveSource, Exporter, file_error, runner, sync_folder, write_aside
from everstep.transfer.families import Family, Pass, StoreSource
from everstep.transfer.receiving import Progress, Target
from everstep.transfer.sides import Side, opened
from everstep.types import utc_now
from everstep.values import codec

_MANIFEST = "manifest.json"
_FORMAT = 1

Folder = str | os.PathLike[str]


def backup(store: Side, folder: Folder, *, progress: Progress | None = None) -> BackupReport:
    """Back up a store into a folder and return what was written. The store may be in use.

    The first backup holds everything; later ones hold the families (threads with their branches) that have changed
    since the one before, and a list of all. Each thread is backed up as it was at one moment. A backup counts when all
    of it is on the disk. One at a time: a second one that ends meanwhile makes this one fail.
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


class _Held(NamedTuple):
    """A family in a backup."""

    number: int
    """The backup whose file has it."""
    token: str
    """How it was then: equal if nothing has changed."""


async def _backup(store: Side, folder: Path, progress: Progress | None, *, blocking: bool) -> BackupReport:
    run = runner(blocking)
    async with opened(store, "source", blocking) as one:
        folder.mkdir(parents=True, exist_ok=True)
        manifest = _read_manifest(folder)
        known: dict[str, _Held] = {}
        number = 1
        if manifest:
            known = _read_families(folder, manifest[-1])
            number = manifest[-1]["number"] + 1
        name = f"{number:06}.everstep"
        time = utc_now()
        source = _ChangedFamilies(one, known, number)
        async with write_aside(folder / name, run) as out:
            report = await Exporter(out, source, progress, run).write_all()
        families = json.dumps(source.families).encode()
        async with write_aside(folder / f"{number:06}.families", run) as out:
            out.write(families)
        # The manifest is what counts: two backups at once must not each leave out the other.
        if _read_manifest(folder) != manifest:
            raise StoreUnavailable(f"another backup into {folder} has ended meanwhile; try again")
        check = hashlib.sha256(families).hexdigest()
        manifest = [*manifest, {"number": number, "time": time, "file": name, "bytes": report.bytes, "check": check}]
        async with write_aside(folder / _MANIFEST, run) as out:
            out.write(json.dumps({"format": _FORMAT, "backups": manifest}, indent=1).encode())
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
    chosen = _choose(_read_manifest(folder), at, folder)
    by_file: dict[int, set[bytes]] = defaultdict(set)
    for identity, held in _read_families(folder, chosen).items():
        by_file[held.number].add(bytes.fromhex(identity))
    total = CopyReport()
    async with opened(store, "target", blocking) as other:
        for number, identities in sorted(by_file.items()):
            path = folder / f"{number:06}.everstep"
            try:
                content = path.open("rb")
            except FileNotFoundError as exc:
                raise CheckpointCorrupted(f"the backup lacks a file: {path}") from exc
            except OSError as exc:
                raise file_error(exc, path) from exc
            with content:
                source = ArchiveSource(content, None, run, identities)
                report = await Target(other, source, progress, verify=verify, may_go_back=False).take_all()
            if source.taken != identities:
                raise CheckpointCorrupted(f"the backup lacks a family that {path} should have")
            total = _sum(total, report)
    return total


def _sum(one: CopyReport, other: CopyReport) -> CopyReport:
    names = ("threads", "checkpoints", "objects", "bytes", "skipped", "verified")
    return dataclasses.replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})


class _ChangedFamilies(StoreSource):
    """The families of a store that are not as they were at the backup before."""

    def __init__(self, store: Store, known: Mapping[str, _Held], number: int) -> None:
        super().__init__(store, None)
        self._known = known
        self._number = number
        self.families: dict[str, _Held] = {}
        """All that there are, by identity."""
        self.unchanged = 0

    async def passes(self) -> AsyncGenerator[Pass, None]:
        async with aclosing(super().passes()) as passes:
            async for coming in passes:
                identity = coming.family.identity.hex()
                token = _token(coming.family)
                held = self._known.get(identity)
                if held is not None and held.token == token:
                    # The earlier backup has it: its file is named again, and nothing is written.
                    self.families[identity] = held
                    self.unchanged += len(coming.family.raws)
                    coming.is_finished = True
                    continue
                yield coming
                if coming.is_finished:
                    self.families[identity] = _Held(self._number, token)


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
        for entry in backups:
            if type(entry["number"]) is not int or type(entry["check"]) is not str:
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


def _read_families(folder: Path, entry: Mapping[str, Any]) -> dict[str, _Held]:
    path = folder / f"{entry['number']:06}.families"
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise CheckpointCorrupted(f"the backup lacks a file: {path}") from exc
    if hashlib.sha256(content).hexdigest() != entry["check"]:
        raise CheckpointCorrupted(f"{path} does not match its checksum")
    return {identity: _Held(*held) for identity, held in json.loads(content).items()}


def _choose(manifest: Collection[dict[str, Any]], at: int | str | datetime | None, folder: Path) -> dict[str, Any]:
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
