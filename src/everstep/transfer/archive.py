"""Families as the items of an `.everstep` file, and back. Pure, but for the file that is read or written.

Whoever wrote a file may mean harm. Every item is checked for its shape and its numbers before anything is done with it;
an object is stored under the hash of what came, and a checkpoint that refers to one that did not come is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, starmap
from typing import Any, BinaryIO, NamedTuple

from everstep.errors import CheckpointCorrupted, EverstepError
from everstep.history.operation_log import undo_of
from everstep.runtime import checks
from everstep.stores.protocol import (
    Hidden,
    Key,
    Object,
    Operation,
    Place,
    RawLine,
    RawThread,
    Record,
    Root,
    SharedState,
    Stored,
    Write,
)
from everstep.stores.records import PLAIN_CODEC, pack_info, pack_record, record_digest, unpack_info
from everstep.transfer.families import Entry, Family, Group, family_spans, pieces
from everstep.transfer.frames import VERSION, FrameReader, FrameWriter
from everstep.values import codec, compress, tree

Item = list[Any]

START, FAMILY, THREAD, HIDDEN, LOG, WRITES, SHARED, SEGMENTS, INDEX, OBJECTS, CHECKPOINTS, DONE, END = range(13)
CHANGED, KEPT, ROWS = range(13, 16)  # in increments only: see `increments`
"""The first field of an item says what it is."""

_FRAME_BYTES = 1 << 20
_ROWS = 1000  # in one item
_OBJECT_BYTES = 1 << 20  # in one item
_NUMBER_MAX = 1 << 53
_SPAN_MAX = 1 << 50
SPANS_MAX = 1 << 60
"""How far the numbers of a family reach, and those of all families of a file together.

They are reserved in the target, and a forged file must not use up all that there are. Some stores number by
microseconds: they get that far in 35 years.
"""
_SIGNED_MAX = _ACTIVE_MAX = 1 << 62


# -- writing -----------------------------------------------------------------------------------------------------------


class ItemWriter:
    """Gathers items into frames."""

    def __init__(self, file: BinaryIO, version: int = VERSION) -> None:
        self.frames = FrameWriter(file, version)
        self._items: list[bytes] = []
        self.size_bytes = 0
        """How much was gathered for the next frame."""

    def add(self, item: Item) -> bool:
        """Take an item; return whether there is enough for a frame."""
        packed = codec.pack(item)
        self._items.append(packed)
        self.size_bytes += len(packed)
        return self.size_bytes >= _FRAME_BYTES

    def flush(self) -> None:
        """Write all that was gathered."""
        if self._items:
            self.frames.write(codec.array_header(len(self._items)) + b"".join(self._items))
            self._items = []
            self.size_bytes = 0


def family_items(family: Family) -> Iterator[Item]:
    """Yield what is told of a family before its checkpoints come."""
    yield [FAMILY, family.identity, len(family.raws), len(family.ancestry), len(family.entries)]
    for raw in family.raws.values():
        yield from thread_items(raw)
    segments: list[Any] = []
    for segment, follows in sorted(family.ancestry.items()):
        segments.append([segment, list(map(place_row, follows))])
    yield from _in_batches(SEGMENTS, segments)
    # A family may have very many checkpoints: a thread is named by its number there, not by its name.
    threads = {name: number for number, name in enumerate(family.raws)}
    entries: list[Any] = []
    for entry in family.entries:
        thread_id, namespace, checkpoint_id = entry.key
        entries.append(
            [threads[thread_id], namespace, checkpoint_id, entry.seq, entry.segment, entry.digest, entry.added_bytes]
        )
    yield from _in_batches(INDEX, entries)


def thread_items(raw: RawThread) -> Iterator[Item]:
    """Yield what is told of a thread."""
    lines: list[Any] = []
    for namespace, line in raw.lines.items():
        lines.append(
            [
                namespace,
                line.head,
                line.head_was_moved,
                line.generation,
                line.active,
                sorted(line.segments),
                line.newest,
            ]
        )
    origin = None
    if raw.origin is not None:
        origin = list(raw.origin)
    yield [THREAD, raw.thread_id, lines, origin, raw.began, sorted(raw.pinned)]
    yield from _in_batches(HIDDEN, list(map(list, raw.hidden)))
    yield from _in_batches(LOG, [[entry.kind, dict(entry.data), entry.seq, entry.undone] for entry in raw.operations])
    yield from _in_batches(WRITES, [[key.namespace, key.checkpoint_id, *write] for key, write in raw.writes])
    shared: list[Any] = []
    for other, held in raw.shared_states.items():
        for common in held:
            children, body, sizes = common.root
            shared.append([other, place_row(common.place), children, body, list(sizes)])
    yield from _in_batches(SHARED, shared)


def _in_batches(kind: int, rows: Sequence[Any]) -> Iterator[Item]:
    for batch in pieces(rows, _ROWS):
        yield [kind, batch]


def group_items(group: Group, positions: Mapping[Key, int]) -> Iterator[Item]:
    """Yield a group; `positions` says where its checkpoints are in the index of the family."""
    bodies = compress.expand_all([obj.body for obj in group.objects])
    flat: list[bytes] = []
    size = 0
    for obj, body in zip(group.objects, bodies, strict=True):
        flat += (obj.children, body)
        size += len(obj.children) + len(body)
        if size >= _OBJECT_BYTES:
            yield [OBJECTS, flat]
            flat = []
            size = 0
    if flat:
        yield [OBJECTS, flat]
    rows: list[Any] = []
    for stored in group.checkpoints:
        record = stored.record
        rows.append([positions[record.key], record.step, record.children, pack_info(record), record.body])
    yield [CHECKPOINTS, rows]


def place_row(place: Place) -> list[Any]:
    """Return a place as a row."""
    return [list(place.key), place.segment, place.seq]


# -- reading -----------------------------------------------------------------------------------------------------------


def unpack_plain(content: bytes) -> Any:
    """Return what a part of a file holds: plain values."""
    try:
        return PLAIN_CODEC.unpack(content)
    except CheckpointCorrupted:
        raise
    except EverstepError as exc:  # such as a class
        raise out_of_shape("it holds what no export holds") from exc


def is_item(row: Any) -> bool:
    """Whether that is a list with a kind."""
    return type(row) is list and bool(row) and type(row[0]) is int


class ItemReader:
    """Reads items, one after the other."""

    def __init__(self, file: BinaryIO) -> None:
        self._frames = FrameReader(file)
        self._items: list[Item] = []
        """Those of the last frame that are still to come, the last first."""

    @property
    def version(self) -> int:
        """The format of the file."""
        return self._frames.version

    def go_to(self, offset: int, check: bytes) -> None:
        """Go on with the frame that begins there; `check` is the checksum of the one before."""
        self._frames.go_to(offset, check)
        self._items = []

    def read(self) -> Item | None:
        """Return the next item; None if it takes another frame: see `fill`."""
        if not self._items:
            return None
        return self._items.pop()

    def fill(self) -> None:
        """Read a frame."""
        content = self._frames.read()
        if content is None:
            raise CheckpointCorrupted("the file ends too early: it was cut off, or its writer was stopped")
        items = unpack_plain(content)
        if type(items) is not list or not items:
            raise out_of_shape("a frame is not a list of items")
        for item in items:
            if not is_item(item):
                raise out_of_shape("an item is not a list with a kind")
        self._items = items[::-1]

    def check_end(self) -> None:
        """Refuse anything behind the last item."""
        if self._items or self._frames.read() is not None:
            raise out_of_shape("there is something behind its end")


class FamilyReader:
    """Puts together what the items tell of a family before its checkpoints come."""

    def __init__(self, item: Item) -> None:
        _check_shape(item, (_number, _identity, _number, _number, _number))
        _, self.identity, self._threads, self._segments, self._checkpoints = item
        self._raws: dict[str, RawThread] = {}
        self._names: list[str] = []
        self._ancestry: dict[int, tuple[Place, ...]] = {}
        self._entries: list[Entry] = []
        self._keys: set[Key] = set()
        self.span = 0
        """How many numbers it takes."""

    def add(self, item: Item) -> bool:
        """Take an item; return False if it is not about what comes before the checkpoints."""
        kind = item[0]
        if kind == THREAD:
            self._add_thread(item)
        elif kind in _THREAD_ROWS:
            self._add_rows(item)
        elif kind == SEGMENTS:
            _check_shape(item, (_number, [(_number, [_PLACE])]))
            for segment, follows in item[1]:
                self._ancestry[segment] = tuple(map(_place, follows))
        elif kind == INDEX:
            _check_shape(item, _INDEX)
            for row in item[1]:
                self._add_entry(row)
        else:
            return False
        return True

    def _add_thread(self, item: Item) -> None:
        _check_shape(item, _THREAD)
        _, name, rows, origin, began, pinned = item
        if checks.thread_id(name) in self._raws:
            raise out_of_shape(f"thread {name!r} is there twice")
        lines: dict[str, RawLine] = {}
        for namespace, head, was_moved, generation, active, segments, newest in rows:
            lines[checks.namespace(namespace)] = RawLine(
                head, was_moved, generation, active, frozenset(segments), newest
            )
        if origin is not None:
            origin = Key(*origin)
        self._raws[name] = RawThread(name, "", self.identity, lines, origin, began, frozenset(pinned))
        self._names.append(name)

    def _add_rows(self, item: Item) -> None:
        """Add to the last thread."""
        if not self._names:
            raise out_of_shape("something of a thread comes before the thread")
        name = self._names[-1]
        raw = self._raws[name]
        kind = item[0]
        _check_shape(item, (_number, [_THREAD_ROWS[kind]]))
        rows = item[1]
        if kind == HIDDEN:
            raw = raw._replace(hidden=[*raw.hidden, *starmap(Hidden, rows)])
        elif kind == LOG:
            raw = raw._replace(operations=[*raw.operations, *starmap(Operation, rows)])
        elif kind == WRITES:
            raw = raw._replace(writes=[*raw.writes, *(_key_and_write(name, row) for row in rows)])
        else:
            raw = raw._replace(shared_states=_with_shared(raw, rows))
        self._raws[name] = raw

    def _add_entry(self, row: list[Any]) -> None:
        thread, namespace, checkpoint_id, seq, segment, digest, added_bytes = row
        if thread >= len(self._names):
            raise out_of_shape("a checkpoint belongs to no thread")
        key = Key(self._names[thread], namespace, checks.checkpoint_id(checkpoint_id))
        if namespace not in self._raws[key.thread_id].lines:
            raise out_of_shape("a checkpoint belongs to no namespace", key)
        if key in self._keys:
            raise out_of_shape("a checkpoint is there twice", key)
        last = 0
        if self._entries:
            last = self._entries[-1].seq
        if not 0 < segment <= seq or seq <= last:
            raise out_of_shape("a checkpoint has an impossible number", key)
        self._keys.add(key)
        self._entries.append(Entry(key, seq, segment, digest, added_bytes))

    def finish(self) -> Family:
        """Return the family, which is all there."""
        counts = len(self._raws), len(self._ancestry), len(self._entries)
        if counts != (self._threads, self._segments, self._checkpoints) or not self._raws:
            raise out_of_shape("a family has more or less than it says")
        for segment, follows in self._ancestry.items():
            _check_follows(segment, follows)
        for raw in self._raws.values():
            _check_log(raw)
        family = Family("", self.identity, self._raws, self._ancestry, self._entries)
        for lowest, highest in family_spans(family).values():
            self.span = max(self.span, highest - lowest)
            if highest >= _NUMBER_MAX or self.span >= _SPAN_MAX:
                raise out_of_shape("its numbers are out of bounds")
        return family


class GroupReader:
    """Puts together groups of checkpoints, and sees that nothing is missing."""

    def __init__(self, family: Family, seen: set[bytes]) -> None:
        """`seen` are the hashes of the objects of the family that came before, in earlier passes."""
        self._family = family
        self._seen = seen
        self._positions: set[int] = set()
        self._objects: list[Object] = []
        self.objects = 0
        """How many have come."""

    @property
    def checkpoints(self) -> int:
        """How many have come."""
        return len(self._positions)

    def add_objects(self, item: Item) -> None:
        """Take objects."""
        objects = read_objects(item)
        bodies = compress.squeeze_all([body for _, body in objects])
        for (below, body), squeezed in zip(objects, bodies, strict=True):
            key = tree.address(below, body)
            if key in self._seen:
                raise out_of_shape("an object is there twice")
            self._seen.add(key)
            self._objects.append(Object(key, below, squeezed))
        self.objects += len(objects)

    def take_group(self, item: Item, wants: Callable[[Entry], bool]) -> Group:
        """Return what has come since the last group, and the checkpoints of this item that somebody wants."""
        rows = read_checkpoints(item)
        for obj in self._objects:
            self._check_there(obj.children, None)
        found: list[Stored] = []
        packed: dict[Key, tuple[bytes, bytes]] = {}
        for position, step, children, info, body in rows:
            entry = self._take_entry(position)
            self._check_there(children, entry.key)
            if not wants(entry):
                continue
            record = read_record(entry.key, step, children, info, body)
            packed[entry.key] = pack_record(record)
            digest = record_digest(*packed[entry.key])
            found.append(
                Stored(record, entry.seq, "", digest=digest, segment=entry.segment, added_bytes=entry.added_bytes)
            )
        objects = self._objects
        self._objects = []
        are_all_held = bool(rows) and not found
        if are_all_held:  # whoever has all of these checkpoints has their objects too
            objects = []
        return Group(found, objects, packed)

    def _take_entry(self, position: int) -> Entry:
        """Return the checkpoint at this place of the index, which must not have come before."""
        if position >= len(self._family.entries) or position in self._positions:
            raise out_of_shape("a checkpoint is there twice, or is not in the index")
        self._positions.add(position)
        return self._family.entries[position]

    def check_threads(self) -> None:
        """Refuse threads that refer to objects which did not come."""
        for raw in self._family.raws.values():
            for common in chain.from_iterable(raw.shared_states.values()):
                self._check_there(common.root.children, Key(raw.thread_id, "", ""))
            for key, write in raw.writes:
                self._check_there(write.children, key)

    def _check_there(self, children: bytes, key: Key | None) -> None:
        for address in tree.hashes(children):
            if address not in self._seen:
                raise out_of_shape("a part of its values is missing in the file", key)


class Summary(NamedTuple):
    """What the last item of a file says."""

    families: int
    threads: int
    checkpoints: int
    objects: int


def read_start(item: Item) -> tuple[int, int]:
    """Return how many threads and checkpoints the first item promises."""
    if item[0] != START:
        raise out_of_shape("it does not start as an export does")
    _check_shape(item, (_number, _text, _number, _number))
    return item[2], item[3]


def read_done(item: Item) -> tuple[bool, int, int]:
    """Return whether a pass is whole, and how many checkpoints and objects it had."""
    _check_shape(item, (_number, _flag, _number, _number))
    return item[1], item[2], item[3]


def read_end(item: Item) -> Summary:
    """Return what the last item says."""
    if item[0] != END:
        raise out_of_shape("an item is where it cannot be")
    _check_shape(item, (_number, _number, _number, _number, _number))
    return Summary(*item[1:])


def read_objects(item: Item) -> list[tuple[bytes, bytes]]:
    """Return objects as the hashes of their children, and their bodies."""
    _check_shape(item, (_number, [_bytes]))
    flat = item[1]
    if len(flat) % 2:
        raise out_of_shape("an object has no body")
    for children in flat[::2]:
        _check_hashes(children)
    return list(zip(flat[::2], flat[1::2], strict=True))


def read_checkpoints(item: Item) -> list[Any]:
    """Return checkpoints as rows: position in the index, step, hashes of children, metadata, body."""
    _check_shape(item, (_number, [_CHECKPOINT]))
    rows: list[Any] = item[1]
    return rows


def read_changed(item: Item) -> Item:
    """Return what the first item of a family that has changed says: identity, what it rests on, number of rows."""
    _check_shape(item, (_number, _identity, (_number, _number, _bytes), _number))
    return item[1:]


def read_kept(item: Item) -> tuple[int, int]:
    """Return which rows stay: the first of them, and how many."""
    _check_shape(item, (_number, _number, _number))
    return item[1], item[2]


def read_rows(item: Item) -> list[bytes]:
    """Return rows that are new, each packed."""
    _check_shape(item, (_number, [_bytes]))
    rows: list[bytes] = item[1]
    return rows


def read_entry(row: Item) -> Entry:
    """Return a checkpoint from its row in the index of an increment."""
    if not _fits(row, (*_KEY, _number, _number, _bytes, _number)):
        raise out_of_shape("a checkpoint is not what it should be")
    thread_id, namespace, checkpoint_id, *rest = row
    return Entry(Key(thread_id, namespace, checkpoint_id), *rest)


def read_record(key: Key, step: int, children: bytes, info: bytes, body: bytes) -> Record:
    """Return a checkpoint from the fields of its row, the metadata of which are checked."""
    try:
        record = unpack_info(key, step, children, info, body)
    except CheckpointCorrupted:
        raise
    except EverstepError as exc:
        raise out_of_shape(f"its metadata cannot be decoded: {exc}", key) from exc
    # A name or a time of another type would fail much later, in whatever reads it.
    texts = [record.created_at, record.summary, record.next_node, record.trigger, record.kind, *record.tags]
    for parent in record.parents:
        texts += parent
    if set(map(type, texts)) != {str} or not all(map(_number, record.sizes)):
        raise out_of_shape("its metadata is out of shape", key)
    if record.repeats is not None and not _signed(record.repeats):
        raise out_of_shape("its metadata is out of shape", key)
    return record


def _key_and_write(thread_id: str, row: list[Any]) -> tuple[Key, Write]:
    namespace, checkpoint_id, *write = row
    return Key(thread_id, checks.namespace(namespace), checks.checkpoint_id(checkpoint_id)), Write(*write)


def _with_shared(raw: RawThread, rows: list[Any]) -> dict[str, list[SharedState]]:
    """Return the shared states of a thread, with those of some more rows."""
    shared = {other: list(held) for other, held in raw.shared_states.items()}
    for other, place, children, body, sizes in rows:
        root = Root(children, body, tuple(sizes))
        shared.setdefault(other, []).append(SharedState(_place(place), root))
    return shared


def _place(row: list[Any]) -> Place:
    key, segment, seq = row
    return Place(Key(*key), segment, seq)


# -- what is looked at before it is used -------------------------------------------------------------------------------


def _number(value: Any) -> bool:
    return type(value) is int and 0 <= value < _NUMBER_MAX


def _signed(value: Any) -> bool:
    return type(value) is int and -_SIGNED_MAX < value < _SIGNED_MAX


def _active(value: Any) -> bool:
    return type(value) is int and 0 <= value < _ACTIVE_MAX


def _text(value: Any) -> bool:
    if type(value) is not str:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bytes(value: Any) -> bool:
    return type(value) is bytes


def _hashes(value: Any) -> bool:
    return type(value) is bytes and len(value) % tree.HASH_BYTES == 0


def _identity(value: Any) -> bool:
    return type(value) is bytes and 0 < len(value) <= 1024


def _flag(value: Any) -> bool:
    return type(value) is bool


def _mapping(value: Any) -> bool:
    return type(value) is dict


def _or_none(check: Any) -> Callable[[Any], bool]:
    return lambda value: value is None or _fits(value, check)


_KEY = (_text, _text, _text)
_PLACE = (_KEY, _number, _number)
_LINE = (_text, _or_none(_text), _flag, _number, _active, [_number], _number)
_THREAD = (_number, _text, [_LINE], _or_none(_KEY), _number, [_number])
_INDEX = (_number, [(_number, _text, _text, _number, _number, _bytes, _number)])
_CHECKPOINT = (_number, _signed, _hashes, _bytes, _bytes)
_THREAD_ROWS: dict[int, Any] = {
    HIDDEN: (_text, _number, _number, _or_none(_number), _or_none(_text), _number),
    LOG: (_text, _mapping, _number, _flag),
    WRITES: (_text, _text, _text, _signed, _text, _hashes, _bytes, _number, _text, _number),
    SHARED: (_text, _PLACE, _hashes, _bytes, [_number]),
}


def _fits(value: Any, shape: Any) -> bool:
    """Whether a value has this shape: a check, a list of one shape, or a list with a shape for each place."""
    if type(shape) is tuple:
        if type(value) is not list or len(value) != len(shape):
            return False
        return all(_fits(part, inner) for part, inner in zip(value, shape, strict=True))
    if type(shape) is list:
        return type(value) is list and all(_fits(part, shape[0]) for part in value)
    fits: bool = shape(value)
    return fits


def _check_shape(item: Item, shape: Any) -> None:
    if not _fits(item, shape):
        raise out_of_shape(f"an item of kind {item[0]!r:.20} is not what it should be")


def _check_hashes(children: bytes) -> None:
    if len(children) % tree.HASH_BYTES:
        raise out_of_shape("a reference is cut off")


def _check_follows(segment: int, follows: Sequence[Place]) -> None:
    for place in follows:
        # What follows itself would be walked for ever.
        if place.seq >= segment or place.segment > place.seq:
            raise out_of_shape("a segment follows what came later")


def _check_log(raw: RawThread) -> None:
    """Refuse a log that undo and redo could not read, or whose operations are out of order."""
    for before, after in pairwise(raw.operations):
        if before.seq >= after.seq:
            raise out_of_shape("the log of a thread is out of order", Key(raw.thread_id, "", ""))
    try:
        for entry in raw.operations:
            if "undo" in entry.data:  # one without was not written by the engine
                _check_operation(entry)
    # The data of an entry may be anything: whatever goes wrong while it is read, the file is to blame.
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as exc:
        raise out_of_shape(f"the log of a thread cannot be read: {exc}", Key(raw.thread_id, "", "")) from exc


def _check_operation(entry: Operation) -> None:
    data = entry.data
    undo = undo_of(entry)
    numbers = [data["after"], data["made_at_seq"], *undo.newest.values(), undo.since or 0]
    for stretch in (*undo.hide, *undo.kept):
        numbers += [stretch.after, stretch.to, stretch.segment or 0]
    if type(data["details"]) is not dict or type(data["created_at"]) is not str:
        raise ValueError("it is out of shape")
    if not all(map(_number, numbers)):
        raise ValueError("it is out of shape")


def out_of_shape(reason: str, key: Key | None = None) -> CheckpointCorrupted:
    """Return what to raise about a file that is not as any writer would leave it."""
    if key is None:
        return CheckpointCorrupted(f"the file is damaged: {reason}")
    return CheckpointCorrupted(
        f"the file is damaged: {reason}", thread_id=key.thread_id, checkpoint_id=key.checkpoint_id or None
    )
