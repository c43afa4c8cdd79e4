"""The files of a folder of backups: a family that is spread over some of them, read from its first file to its last.

An increment names the file and the place that it rests on, so a chain is found from its end. Nothing is sent to a store
before all of a family's chain was looked at.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.stores.protocol import Key, Object, Stored
from everstep.stores.records import pack_record
from everstep.transfer import archive, increments
from everstep.transfer.archive import CHANGED, DONE, FAMILY, Item, out_of_shape
from everstep.transfer.exporting import Run, file_error
from everstep.transfer.families import Family, Group, Pass, Receiver, lacking
from everstep.transfer.increments import Found, Held, PartGroups, Place, Wanted


class Spread(NamedTuple):
    """A family of a folder, with what was noted of it when it was backed up."""

    identity: bytes
    place: Place
    """Where its last file begins to tell of it."""
    token: str
    """How it was then."""
    threads: int
    checkpoints: int


def name_of(number: int) -> str:
    """Return the name of the file of a backup."""
    return f"{number:06}.everstep"


def read_held(folder: Path, identity: bytes, place: Place) -> Held:
    """Return what the files up to this place have of a family."""
    held = Held(identity)
    for found in _chain(folder, identity, place):
        held.add_part(found, _items_at(folder, identity, found))
    return held


def _chain(folder: Path, identity: bytes, place: Place) -> list[Place]:
    """Return the places that a family stands at, the oldest first."""
    places = [place]
    while (first := _first_item(folder, identity, places[-1]))[0] == CHANGED:
        before = increments.read_changed(first).rests_on
        if before.number >= places[-1].number:
            raise out_of_shape("it rests on what came later")
        places.append(before)
    return places[::-1]


def opened(path: Path) -> BinaryIO:
    """Open a file that a backup must have."""
    try:
        return path.open("rb")
    except FileNotFoundError as exc:
        raise CheckpointCorrupted(f"the backup lacks a file: {path}") from exc
    except OSError as exc:
        raise file_error(exc, path) from exc


def _first_item(folder: Path, identity: bytes, place: Place) -> Item:
    with closing(_items_at(folder, identity, place)) as items:
        return next(items)


def _items_at(folder: Path, identity: bytes, place: Place) -> Generator[Item]:
    """Yield all that a file has of a family: pass after pass, the last of which is whole."""
    with opened(folder / name_of(place.number)) as content:
        reader = archive.ItemReader(content)
        reader.go_to(place.offset, place.check)
        reader.fill()
        item = reader.read()
        while item is not None and not _is_first(item, identity):
            item = reader.read()  # of families that come before it in the same frame
        if item is None:
            raise out_of_shape("a family is not where it should be")
        while True:
            yield item
            is_whole = item[0] == DONE and archive.read_done(item)[0]
            if is_whole:
                return
            after_pass = item[0] == DONE
            while (item := reader.read()) is None:
                reader.fill()
            if after_pass and not _is_first(item, identity):
                raise out_of_shape("a family was begun and not finished")


def _is_first(item: Item, identity: bytes) -> bool:
    return item[0] in (FAMILY, CHANGED) and len(item) > 1 and item[1] == identity


class ChainSource:
    """Families of a folder of backups, as they were at one of them."""

    def __init__(self, folder: Path, families: Sequence[Spread], run: Run, token_of: Callable[[Family], str]) -> None:
        self._folder = folder
        self._families = sorted(families, key=lambda family: family.place)
        self._run = run
        self._token_of = token_of
        self.threads_total = sum(family.threads for family in families)
        self.checkpoints_total = sum(family.checkpoints for family in families)

    async def passes(self) -> AsyncGenerator[Pass, None]:
        span = 0
        for spread in self._families:
            coming = await self._run(self._open, spread)
            span += coming.span
            if span >= archive.SPANS_MAX:
                raise out_of_shape("its numbers are out of bounds")
            yield coming
            if not coming.is_finished:
                name = next(iter(coming.family.raws))
                raise CheckpointCorrupted("the backup is damaged: a head is missing", thread_id=name)

    def _open(self, spread: Spread) -> _ChainPass:
        held = read_held(self._folder, spread.identity, spread.place)
        coming = _ChainPass(self._folder, held, self._run)
        if self._token_of(coming.family) != spread.token:
            name = next(iter(coming.family.raws))
            raise CheckpointCorrupted("the backup is damaged: a thread is not as it was then", thread_id=name)
        return coming


class _ChainPass(Pass):
    """A family that was looked at, and now comes out of its files."""

    def __init__(self, folder: Path, held: Held, run: Run) -> None:
        self._wanted = Wanted(held)
        super().__init__(self._wanted.family)
        self.span = self._wanted.span
        self._folder = folder
        self._held = held
        self._run = run

    async def groups(self, receiver: Receiver) -> AsyncGenerator[Group, None]:
        reader = PartGroups(self._held, self._wanted)
        # A checkpoint may need what came with another one that has been deleted since: so objects wait for the next.
        waiting: list[Object] = []
        for place in self._held.places:
            items = _items_at(self._folder, self._held.identity, place)
            while (found := await self._run(_next_found, items, reader)) is not None:
                waiting += found.objects
                wanted = [stored for entry, stored in found.checkpoints if receiver.wants(entry)]
                if wanted:
                    yield Group(wanted, await lacking(waiting, receiver), _packed(wanted))
                    waiting = []
        if waiting:
            yield Group((), await lacking(waiting, receiver))


def _next_found(items: Iterator[Item], reader: PartGroups) -> Found | None:
    """Return what the next item brings that is wanted; None: there is no more."""
    for item in items:
        found = reader.add(item)
        if any(found):
            return found
    return None


def _packed(checkpoints: Sequence[Stored]) -> dict[Key, tuple[bytes, bytes]]:
    return {stored.record.key: pack_record(stored.record) for stored in checkpoints}
