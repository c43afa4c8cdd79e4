"""A family of which most is in earlier files: how an increment tells what has changed, and how that is put together.

What is told of a family (threads, heads, pins, operations, the index of its checkpoints and so on) is taken apart into
rows. An increment says which rows of the file before it stay, and brings those that are new; then come the checkpoints
and objects that no earlier file of its chain has. Pure, but for the files that are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from everstep.stores.protocol import Key, Object, RawThread, Stored
from everstep.stores.records import pack_record, record_digest
from everstep.transfer import archive
from everstep.transfer.archive import (
    CHANGED,
    CHECKPOINTS,
    DONE,
    FAMILY,
    HIDDEN,
    INDEX,
    KEPT,
    LOG,
    OBJECTS,
    ROWS,
    SEGMENTS,
    SHARED,
    THREAD,
    WRITES,
    FamilyReader,
    Item,
    out_of_shape,
)
from everstep.transfer.families import Entry, Family, pieces, roots_of
from everstep.transfer.frames import CHECK_BYTES
from everstep.values import codec, compress, tree

_LINE = -1
_SEGMENT = -2
_PIN = -3
"""Rows that stand inside the item of a thread where a family is told whole. The others have the kind of their item."""

_ROWS_IN_ITEM = 1000


class Place(NamedTuple):
    """Where a family begins in the files of a folder."""

    number: int
    """Which file."""
    offset: int
    """Where in it the frame begins."""
    check: bytes
    """The checksum of the frame before."""


# -- rows --------------------------------------------------------------------------------------------------------------


def rows_of(family: Family) -> list[bytes]:
    """Return what is told of a family as rows, each of which stays as it is while others change."""
    rows: list[Item] = []
    for _, raw in sorted(family.raws.items()):
        rows += _thread_rows(raw)
    for segment, follows in sorted(family.ancestry.items()):
        rows.append([SEGMENTS, segment, [archive.place_row(place) for place in follows]])
    for entry in family.entries:
        rows.append([INDEX, *entry.key, entry.seq, entry.segment, entry.digest, entry.added_bytes])
    return [codec.pack(row) for row in rows]


def _thread_rows(raw: RawThread) -> Iterator[Item]:
    for kind, *fields in archive.thread_items(raw):
        if kind == THREAD:
            name, lines, origin, began, pinned = fields
            yield [THREAD, name, origin, began]
            for namespace, head, was_moved, generation, active, segments, newest in lines:
                yield [_LINE, namespace, head, was_moved, generation, active, newest]
                for segment in segments:
                    yield [_SEGMENT, segment]
            for seq in pinned:
                yield [_PIN, seq]
        else:
            for row in fields[0]:
                yield [kind, *row]


def family_of(identity: bytes, rows: Sequence[bytes]) -> tuple[Family, int]:
    """Return the family that these rows tell of, and how many numbers it takes; all is checked as in any file."""
    unpacked = [_unpack_row(row) for row in rows]
    counts = [0, 0, 0]
    for row in unpacked:
        if row[0] in _COUNTED:
            counts[_COUNTED.index(row[0])] += 1
    reader = FamilyReader([FAMILY, identity, *counts])
    for item in _items_of(unpacked):
        reader.add(item)
    family = reader.finish()
    return family, reader.span


_COUNTED = (THREAD, SEGMENTS, INDEX)


def _unpack_row(packed: bytes) -> Item:
    row = archive.unpack_plain(packed)
    if not archive.is_item(row):
        raise out_of_shape("a row is not a list with a kind")
    found: Item = row
    return found


def _items_of(rows: Sequence[Item]) -> Iterator[Item]:
    """Yield rows as the items of a file that holds the family whole."""
    names: dict[Any, int] = {}
    at = 0
    while at < len(rows):
        kind = rows[at][0]
        end = at + 1
        if kind == THREAD:
            while end < len(rows) and rows[end][0] in (_LINE, _SEGMENT, _PIN):
                end += 1
            item = _thread_item(rows[at], rows[at + 1 : end])
            if type(item[1]) is str:
                names.setdefault(item[1], len(names))
            yield item
        elif kind in (HIDDEN, LOG, WRITES, SHARED, SEGMENTS, INDEX):
            while end < len(rows) and rows[end][0] == kind and end - at < _ROWS_IN_ITEM:
                end += 1
            found = [row[1:] for row in rows[at:end]]
            if kind == INDEX:
                found = [_with_number(row, names) for row in found]
            yield [kind, found]
        else:
            raise out_of_shape("a row is where it cannot be")
        at = end


def _thread_item(thread: Item, rows: Sequence[Item]) -> Item:
    if len(thread) != 4:
        raise out_of_shape("a thread is not what it should be")
    _, name, origin, began = thread
    lines: list[Item] = []
    pinned: list[Any] = []
    for kind, *fields in rows:
        if kind == _LINE and len(fields) == 6:
            lines.append([*fields[:-1], [], fields[-1]])
        elif kind == _SEGMENT and len(fields) == 1 and lines:
            lines[-1][-2].append(fields[0])
        elif kind == _PIN and len(fields) == 1:
            pinned.append(fields[0])
        else:
            raise out_of_shape("a thread is not what it should be")
    return [THREAD, name, lines, origin, began, pinned]


def _with_number(row: Item, names: Mapping[str, int]) -> Item:
    """Return a row of the index as a file has it that holds the family whole: the thread by its number."""
    if not row or type(row[0]) is not str or row[0] not in names:
        raise out_of_shape("a checkpoint belongs to no thread")
    return [names[row[0]], *row[1:]]


# -- writing -----------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """What is told of a family that has changed."""

    items: list[Item]
    positions: dict[Key, int]
    """Where the checkpoints stand among the rows of the index that are new."""


def change_items(held: Held, family: Family) -> Change:
    """Return what turns the rows that `held` ends with into those of the family."""
    after = rows_of(family)
    index = dict(zip(after[len(after) - len(family.entries) :], family.entries, strict=True))
    # A checkpoint that is to come is found by its row, which must then be among those that are new.
    is_to_come = {row for row, entry in index.items() if content_of(entry) not in held.checkpoints}
    items: list[Item] = [[CHANGED, family.identity, list(held.places[-1]), len(after)]]
    positions: dict[Key, int] = {}
    for stretch in _stretches(held.rows, after, is_to_come):
        if type(stretch) is range:
            items.append([KEPT, stretch.start, len(stretch)])
            continue
        for batch in pieces(stretch, _ROWS_IN_ITEM):
            items.append([ROWS, batch])
        for row in stretch:
            if row in index:
                positions[index[row].key] = len(positions)
    return Change(items, positions)


def _stretches(
    before: Sequence[bytes], after: Sequence[bytes], new: Collection[bytes]
) -> Iterator[range | list[bytes]]:
    """Yield `after` as stretches of `before`, each part of which is used once, and lists of rows that are new."""
    places: dict[bytes, list[int]] = defaultdict(list)
    for number, row in reversed(list(enumerate(before))):
        places[row].append(number)
    used = bytearray(len(before))
    kept = range(0)
    brought: list[bytes] = []
    for row in after:
        place = _place_in(before, row, kept.stop, places, used)
        if place is None or row in new:
            brought.append(row)
            continue
        used[place] = True
        if kept and place == kept.stop and not brought:
            kept = range(kept.start, place + 1)
            continue
        if kept:
            yield kept
        if brought:
            yield brought
            brought = []
        kept = range(place, place + 1)
    if kept:
        yield kept
    if brought:
        yield brought


def _place_in(
    before: Sequence[bytes], row: bytes, follows: int, places: Mapping[bytes, list[int]], used: bytearray
) -> int | None:
    """Return where a row stands that was not used yet: where the last one ended, or else as early as may be."""
    if follows < len(before) and not used[follows] and before[follows] == row:
        return follows
    found = places.get(row)
    while found:
        place = found.pop()
        if not used[place]:
            return place
    return None


# -- reading -----------------------------------------------------------------------------------------------------------


class Held:
    """What the files of a chain have of a family, from the first on."""

    def __init__(self, identity: bytes) -> None:
        self.identity = identity
        self.places: list[Place] = []
        """Where it stands, the oldest first."""
        self.rows: list[bytes] = []
        """What is told of it in the last file."""
        self.objects: dict[bytes, bytes] = {}
        """Hash of each object, and those of its children."""
        self.checkpoints: dict[tuple[Key, bytes], bytes] = {}
        """Each checkpoint that has come, by its content, and the hashes of its children."""
        self.brought: list[list[Entry]] = []
        """For each pass of each file: the checkpoints that it may bring."""

    def add_part(self, place: Place, items: Iterable[Item]) -> None:
        """Take what a file has of the family: all of its passes."""
        before = self.rows
        self.places.append(place)
        reader: _PassReader | None = None
        for item in items:
            if item[0] in (FAMILY, CHANGED):
                # Each pass tells anew what has changed since the file before.
                reader = _PassReader(self, item, before)
            elif reader is None:
                raise out_of_shape("an item is where it cannot be")
            else:
                reader.add(item)


class _PassReader:
    """Reads one pass of a family, and notes what it brings."""

    def __init__(self, held: Held, item: Item, before: Sequence[bytes]) -> None:
        self._held = held
        self._entries: list[Entry] | None = None
        """The checkpoints that may come; None: more is told of the family."""
        self._told: _Whole | _Patch
        if item[0] == FAMILY:
            self._told = _Whole(item)
        else:
            self._told = _Patch(before, read_changed(item).rows)

    def add(self, item: Item) -> None:
        """Take the next item."""
        if self._entries is None:
            if self._told.add(item):
                return
            self._held.rows, self._entries = self._told.finish()
            self._held.brought.append(self._entries)
        if item[0] == OBJECTS:
            for children, body in archive.read_objects(item):
                self._held.objects[tree.address(children, body)] = children
        elif item[0] == CHECKPOINTS:
            for position, _, children, _, _ in archive.read_checkpoints(item):
                self._held.checkpoints[content_of(entry_at(self._entries, position))] = children
        elif item[0] != DONE:
            raise out_of_shape("an item is where it cannot be")


class _Whole:
    """Takes rows from a family that is told whole."""

    def __init__(self, item: Item) -> None:
        self._reader = FamilyReader(item)

    def add(self, item: Item) -> bool:
        """Take an item; return False if it is not about what comes before the checkpoints."""
        return self._reader.add(item)

    def finish(self) -> tuple[list[bytes], list[Entry]]:
        """Return all rows, and the checkpoints that may come."""
        family = self._reader.finish()
        return rows_of(family), list(family.entries)


class _Patch:
    """Puts rows together from those of the file before and those that are new."""

    def __init__(self, before: Sequence[bytes], size: int) -> None:
        self._before = before
        self._used = bytearray(len(before))
        self._size = size
        self._rows: list[bytes] = []
        self._entries: list[Entry] = []
        """The checkpoints whose rows are new."""

    def add(self, item: Item) -> bool:
        """Take an item; return False if it is not about rows."""
        if item[0] == KEPT:
            start, count = archive.read_kept(item)
            used = self._used[start : start + count]
            # Each row stays once: so a small file cannot tell of many.
            if not count or len(used) < count or any(used):
                raise out_of_shape("it keeps what is not there")
            self._used[start : start + count] = b"\1" * count
            self._rows += self._before[start : start + count]
        elif item[0] == ROWS:
            rows = archive.read_rows(item)
            self._rows += rows
            for row in rows:
                unpacked = _unpack_row(row)
                if unpacked[0] == INDEX:
                    self._entries.append(archive.read_entry(unpacked[1:]))
        else:
            return False
        return True

    def finish(self) -> tuple[list[bytes], list[Entry]]:
        """Return all rows, and the checkpoints that may come."""
        if len(self._rows) != self._size:
            raise out_of_shape("a family has more or less than it says")
        return self._rows, self._entries


def content_of(entry: Entry) -> tuple[Key, bytes]:
    """Return what tells the content of a checkpoint from that of all others."""
    return entry.key, entry.digest


def entry_at(entries: Sequence[Entry], position: int) -> Entry:
    """Return the checkpoint at a place of the index."""
    if position >= len(entries):
        raise out_of_shape("a checkpoint is not in the index")
    return entries[position]


class Changed(NamedTuple):
    """The first item of a family that has changed."""

    identity: bytes
    rests_on: Place
    rows: int
    """How many there are in all, kept or new."""


def read_changed(item: Item) -> Changed:
    """Return what the first item says."""
    identity, (number, offset, check), rows = archive.read_changed(item)
    if len(check) != CHECK_BYTES:
        raise out_of_shape("a checksum is cut off")
    return Changed(identity, Place(number, offset, check), rows)


class Wanted:
    """What of a chain is needed for the family as its last file tells of it."""

    def __init__(self, held: Held) -> None:
        self.family, self.span = family_of(held.identity, held.rows)
        self.entries: dict[tuple[Key, bytes], Entry] = {}
        roots: list[bytes] = []
        for entry in self.family.entries:
            content = content_of(entry)
            if content in held.checkpoints:
                self.entries[content] = entry
                roots += tree.hashes(held.checkpoints[content])
        for raw in self.family.raws.values():
            roots += roots_of(raw)
        self.objects = _reachable(roots, held.objects)


def _reachable(roots: Iterable[bytes], children: Mapping[bytes, bytes]) -> set[bytes]:
    """Return the hashes at or below `roots`, all of which must be there."""
    found: set[bytes] = set()
    level = set(roots)
    while level:
        if not level <= children.keys():
            raise out_of_shape("a part of its values is missing in the files")
        found |= level
        below = chain.from_iterable(tree.hashes(children[key]) for key in level if children[key])
        level = set(below) - found
    return found


class Found(NamedTuple):
    """What an item brings that is wanted."""

    objects: list[Object]
    checkpoints: list[tuple[Entry, Stored]]
    """Each as the last file has it in its index, and whole."""


class PartGroups:
    """Takes what is wanted out of the files of a chain, in the order of their items."""

    def __init__(self, held: Held, wanted: Wanted) -> None:
        self._entries = dict(wanted.entries)
        """What has not come yet."""
        self._objects = set(wanted.objects)
        self._passes = iter(held.brought)
        self._brought: list[Entry] = []

    def add(self, item: Item) -> Found:
        """Return the objects and checkpoints of an item that are wanted and come for the first time."""
        if item[0] in (FAMILY, CHANGED):
            self._brought = next(self._passes, [])
        elif item[0] == OBJECTS:
            return Found(self._take_objects(item), [])
        elif item[0] == CHECKPOINTS:
            return Found([], list(self._take_checkpoints(item)))
        return Found([], [])

    def _take_objects(self, item: Item) -> list[Object]:
        found: list[tuple[bytes, bytes, bytes]] = []
        for children, body in archive.read_objects(item):
            key = tree.address(children, body)
            if key in self._objects:
                self._objects.discard(key)
                found.append((key, children, body))
        squeezed = compress.squeeze_all([body for _, _, body in found])
        return [Object(key, children, body) for (key, children, _), body in zip(found, squeezed, strict=True)]

    def _take_checkpoints(self, item: Item) -> Iterator[tuple[Entry, Stored]]:
        for position, step, children, info, body in archive.read_checkpoints(item):
            content = content_of(entry_at(self._brought, position))
            # Its number is that which the last file tells: it may have been deleted and put again.
            entry = self._entries.pop(content, None)
            if entry is None:
                continue
            record = archive.read_record(entry.key, step, children, info, body)
            digest = record_digest(*pack_record(record))
            yield (
                entry,
                Stored(record, entry.seq, "", digest=digest, segment=entry.segment, added_bytes=entry.added_bytes),
            )
