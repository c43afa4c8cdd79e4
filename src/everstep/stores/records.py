"""Records as the bytes that every store keeps, with a checksum over each row's own columns.

Stores that have no checksums of their own still notice a changed byte, a swapped row or a truncated one. `Query.filter`
also lives here, so that it means the same everywhere.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, UnstorableValue
from everstep.stores.protocol import ASIDE, Key, Operation, Place, Record, Root, SharedState, Write
from everstep.values import codec, compress, registry

# Against accidents and not against people: whoever can write to the store can also compute a checksum.
DIGEST_BYTES = 8
_OUR_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}\+00:00")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Packed lists begin with this or more; what is compressed, with less.
_INFO_PLAIN = b"\x90"
# The fields of a record's info. A record of large values has one field more.
_FIELDS = 9
_HEADER, _HEADER_MORE = codec.array_header(_FIELDS), codec.array_header(_FIELDS + 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME_MIN = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_TIME_MAX = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_sha256 = hashlib.sha256


def digest(*parts: bytes) -> bytes:
    """Return a checksum of the parts, each bound to its place."""
    # With their lengths, or bytes could move from one part to the next unnoticed.
    sized: list[int | bytes] = []
    for part in parts:
        sized += (len(part), part)
    joined = b"%d:%b" * len(parts) % tuple(sized)
    return _sha256(joined).digest()[:DIGEST_BYTES]


class _NoClasses:
    """Metadata holds plain types only: a list must be readable in a process that has not registered any class."""

    def for_type(self, _cls: type, /) -> None:
        return None

    def for_name(self, _name: str, /) -> None:
        return None


PLAIN_CODEC = codec.Codec(_NoClasses(), "")


def pack_record(record: Record) -> tuple[bytes, bytes]:
    """Return (info, root): what listing needs, and the root's body; each begins with its checksum."""
    info = pack_info(record)
    name = _name(record.key, record.step)
    root = digest(name, record.children, record.body) + record.body
    # An adapter's metadata says the same things again and again.
    if record.kind:
        info = compress.squeeze_fast(info)
    return digest(name, info) + info, root


def pack_info(record: Record) -> bytes:
    """Return what listing needs of a record besides its key and step, without a checksum."""
    line = record.key[:2]
    parents: list[Any] = []
    for parent in record.parents:
        parents.append(pack_id(parent[2]) if parent[:2] == line else list(parent))
    fields = [
        _pack_time(record.created_at), parents, list(record.tags), record.summary, record.next_node,
        record.trigger, record.kind, list(record.sizes),
    ]  # fmt: skip
    packed = [
        _HEADER if record.repeats is None else _HEADER_MORE,
        # Nothing else in it is of a type that the packer would take for another one.
        codec.DEFAULT.pack_items_quickly(fields) or codec.DEFAULT.pack_items(fields, "checkpoint"),
        _packed_metadata(record.metadata),
    ]
    if record.repeats is not None:
        packed.append(codec.pack(record.repeats))
    return b"".join(packed)


def _packed_metadata(metadata: Mapping[str, Any]) -> bytes:
    try:
        return PLAIN_CODEC.pack(dict(metadata), "metadata", 1)
    except UnstorableValue:
        # This gives the usual advice if it cannot be kept anywhere.
        codec.pack(dict(metadata), "metadata", 1)
        _refuse_objects(metadata, "metadata")
        raise


def unpack_record(key: Key, step: int, children: bytes, info: bytes, root: bytes | None) -> Record:
    """Return the record; without `root` (when listing) its children and body are empty."""
    packed = _proved_info(key, step, children, info, root)
    if root is None:
        return unpack_info(key, step, b"", packed, b"")
    return unpack_info(key, step, children, packed, root[DIGEST_BYTES:])


def _proved_info(key: Key, step: int, children: bytes, info: bytes, root: bytes | None) -> bytes:
    """Return what `pack_info` gave, after a look at the checksums."""
    name = _name(key, step)
    named = b"%d:%b" % (len(name), name)
    packed = info[DIGEST_BYTES:]
    # As `digest` does, for the many rows of a list.
    if _sha256(b"%b%d:%b" % (named, len(packed), packed)).digest()[:DIGEST_BYTES] != info[:DIGEST_BYTES]:
        raise _corrupted("the checkpoint's metadata does not match its checksum", key)
    if root is not None:
        body = root[DIGEST_BYTES:]
        bound = b"%b%d:%b%d:%b" % (named, len(children), children, len(body), body)
        if _sha256(bound).digest()[:DIGEST_BYTES] != root[:DIGEST_BYTES]:
            raise _corrupted("the checkpoint's root does not match its checksum", key)
    if packed[:1] >= _INFO_PLAIN:
        return packed
    try:
        return compress.expand(packed)
    except CheckpointCorrupted as exc:
        raise exc.located(key.thread_id, key.checkpoint_id) from exc


class CheckedRecord(NamedTuple):
    """What those need of a record who only check it."""

    kind: str
    parents: tuple[Key, ...]
    tags: Sequence[str]
    metadata: Mapping[str, Any]


def check_record(
    key: Key, step: int, children: bytes, info: bytes, root: bytes, before: Key | None = None
) -> CheckedRecord:
    """Return some of a record; raise wherever `unpack_record` would. `before` is the one before it on its line."""
    packed = _proved_info(key, step, children, info, root)
    try:
        created, parents, tags, _, _, _, kind, _, metadata, _ = _fields_of(packed)
        if type(created) is not int or not _TIME_MIN <= created <= _TIME_MAX:
            _unpack_time(created)
        if before is not None and parents == [before.checkpoint_id]:
            # The usual case: one key for both, since there are as many as checkpoints.
            return CheckedRecord(kind, (before,), tags, metadata)
        return CheckedRecord(kind, tuple([_parent(parent, key) for parent in parents]), tags, metadata)
    except (TypeError, ValueError, OverflowError) as exc:
        raise _undecodable(exc, key) from exc
    except CheckpointCorrupted as exc:
        raise exc.located(key.thread_id, key.checkpoint_id) from exc


def _fields_of(packed: bytes) -> list[Any]:
    """Return what `pack_info` packed, with None where there is no number of repeats; raise if it is out of shape."""
    fields = _listed(PLAIN_CODEC.unpack_plain(packed))
    if len(fields) == _FIELDS:
        fields.append(None)
    _, parents, tags, _, _, _, _, sizes, metadata, repeats = fields
    if type(metadata) is not dict or not (repeats is None or type(repeats) is int):
        raise CheckpointCorrupted("the checkpoint's metadata is out of shape")
    # An object might bring a way to iterate of its own.
    if not type(parents) is type(tags) is type(sizes) is list:
        raise CheckpointCorrupted("the checkpoint's metadata is out of shape")
    return fields


def unpack_info(key: Key, step: int, children: bytes, packed: bytes, body: bytes) -> Record:
    """Return the record of which `pack_info` gave `packed`."""
    try:
        created, parents, tags, summary, next_node, trigger, kind, sizes, metadata, repeats = _fields_of(packed)
        return Record(
            key, step, tuple([_parent(parent, key) for parent in parents]), _unpack_time(created),
            children, body, tuple(sizes), tuple(tags), summary, next_node, trigger, kind,
            metadata, repeats,
        )  # fmt: skip
    except (TypeError, ValueError, OverflowError) as exc:
        raise _undecodable(exc, key) from exc
    except CheckpointCorrupted as exc:
        raise exc.located(key.thread_id, key.checkpoint_id) from exc


def unpack_metadata(info: bytes) -> dict[str, Any]:
    """Return the metadata of a record of which `pack_record` gave `info`: objects that nobody else has."""
    packed = info[DIGEST_BYTES:]
    if packed[:1] < _INFO_PLAIN:
        packed = compress.expand(packed)
    metadata: dict[str, Any] = PLAIN_CODEC.unpack(packed)[_FIELDS - 1]
    return metadata


class FoundBy(NamedTuple):
    """What a checkpoint is found by."""

    tags: tuple[str, ...]
    metadata: Mapping[str, Any]


def unpack_found_by(info: bytes) -> FoundBy:
    """Return what a checkpoint is found by, from what `pack_record` gave; its checksum is not looked at."""
    packed = info[DIGEST_BYTES:]
    if packed[:1] < _INFO_PLAIN:
        packed = compress.expand(packed)
    fields = _listed(PLAIN_CODEC.unpack_plain(packed))
    tags = fields[2]
    metadata = fields[_FIELDS - 1]
    if type(tags) is not list or type(metadata) is not dict:
        raise CheckpointCorrupted("the checkpoint's metadata is out of shape")
    return FoundBy(tuple(tags), metadata)


def record_digest(info: bytes, root: bytes) -> bytes:
    """Return what tells this content of a checkpoint from any other."""
    return info[:DIGEST_BYTES] + root[:DIGEST_BYTES]


def pack_sealed(value: Any, *bound: bytes) -> bytes:
    """Return `value` packed behind a checksum that also covers `bound`, the columns it belongs to."""
    packed = codec.pack(value, "metadata")
    return digest(packed, *bound) + packed


def _pack_own_sealed(fields: list[Any], *bound: bytes) -> bytes:
    """Return what `pack_sealed` does of texts, numbers and bytes that this library made."""
    packed = _pack_own(fields)
    return digest(packed, *bound) + packed


def _pack_own(fields: list[Any]) -> bytes:
    """Return texts, numbers and bytes that this library made, packed.

    So nothing is among them that has to be looked for, since the packer would write it as something else.
    """
    items = codec.DEFAULT.pack_items_quickly(fields)
    if items is None:
        return codec.pack(fields, "metadata")
    return codec.array_header(len(fields)) + items


def unpack_sealed(data: bytes, what: str, *bound: bytes) -> Any:
    """Return what `pack_sealed` kept."""
    packed = data[DIGEST_BYTES:]
    if digest(packed, *bound) != data[:DIGEST_BYTES]:
        raise CheckpointCorrupted(f"{what} does not match its checksum")
    return _listed(codec.unpack(packed))


def _listed(found: Any) -> list[Any]:
    """Return a list that was stored; an object in its place would be asked for its items by a method of its own."""
    if type(found) is not list:
        raise CheckpointCorrupted("a stored record is out of shape")
    return found


def pack_origin(origin: Key, thread_id: str) -> bytes:
    """Return where a branch began as bytes, bound to the branch."""
    return _pack_own_sealed(list(origin), thread_id.encode())


def unpack_origin(data: bytes, thread_id: str) -> Key:
    """Return what `pack_origin` kept."""
    return Key(*unpack_sealed(data, f"the origin of thread {thread_id!r}", thread_id.encode()))


def pack_write(checkpoint_id: str, write: Write) -> bytes:
    """Return what a pending write is besides its place and its children, bound to both."""
    bound = _write_bound(checkpoint_id, write.task_id, write.idx, write.children)
    return _pack_own_sealed([write.channel, write.task_path, write.size, write.body], *bound)


def unpack_write(checkpoint_id: str, seq: int, task_id: str, idx: int, data: bytes, children: bytes) -> Write:
    """Return what `pack_write` kept."""
    what = f"a pending write of checkpoint {checkpoint_id!r}"
    channel, path, size, body = unpack_sealed(data, what, *_write_bound(checkpoint_id, task_id, idx, children))
    return Write(task_id, idx, channel, children, body, size, path, seq)


def _write_bound(checkpoint_id: str, task_id: str, idx: int, children: bytes) -> tuple[bytes, ...]:
    # The same for one that is put aside: a write is moved without being written anew.
    place = idx % ASIDE if idx >= 0 else -(-idx % ASIDE)
    return checkpoint_id.encode(), task_id.encode(), b"%d" % place, children


def pack_shared_state(common: SharedState, one: str, other: str) -> bytes:
    """Return a common state as bytes, bound to the two threads that have it."""
    root = common.root
    fields = [_packed_place(common.place), root.body, list(root.sizes)]
    return _pack_own_sealed(fields, one.encode(), other.encode(), root.children)


@functools.lru_cache(1024)
def unpack_shared_state(data: bytes, children: bytes, one: str, other: str) -> SharedState:
    """Return what `pack_shared_state` kept."""
    what = f"what threads {one!r} and {other!r} have in common"
    place, body, sizes = unpack_sealed(data, what, one.encode(), other.encode(), children)
    return SharedState(_place(place), Root(children, body, tuple(sizes)))


def pack_segment(segment: int, follows: Sequence[Place]) -> bytes:
    """Return what a segment follows as bytes, bound to the segment."""
    packed = pack_follows(follows)
    return digest(packed, b"%d" % segment) + packed


def pack_follows(follows: Sequence[Place]) -> bytes:
    """Return the same without its checksum, for a server that gives the segment its number."""
    return _pack_own([_packed_place(place) for place in follows])


# A thread that is rewound again and again has many, and reads them each time.
@functools.lru_cache(16_384)
def unpack_segment(segment: int, data: bytes) -> tuple[Place, ...]:
    """Return what `pack_segment` kept."""
    return tuple(_place(place) for place in unpack_sealed(data, f"segment {segment}", b"%d" % segment))


def _packed_place(place: Place) -> list[Any]:
    return [list(place.key), place.segment, place.seq]


def _place(packed: list[Any]) -> Place:
    key, segment, seq = packed
    return Place(Key(*key), segment, seq)


def pack_operation(operation: Operation, seq: int) -> bytes:
    """Return an operation as bytes, bound to its place in the log."""
    packed = pack_operation_data(operation)
    return digest(packed, b"%d" % seq) + packed


def pack_operation_data(operation: Operation) -> bytes:
    """Return the same without its checksum, for a server that gives the operation its number."""
    return codec.pack([operation.kind, dict(operation.data)], "metadata")


def unpack_operation(data: bytes, seq: int, undone: bool) -> Operation:
    """Return what `pack_operation` kept."""
    kind, content = unpack_sealed(data, f"operation {seq}", b"%d" % seq)
    return Operation(kind, content, seq, undone)


@functools.lru_cache(256)  # the parent of a checkpoint is the one before it
def pack_id(text: str) -> str | bytes:
    """Return 16 bytes if an id is the usual text of a UUID, else the id unchanged."""
    if len(text) == 36 and _UUID.fullmatch(text):
        return bytes.fromhex(text.replace("-", ""))
    return text


# Most of them are in several rows of a list: as ids, as parents, and with each write.
@functools.lru_cache(512)
def unpack_id(packed: str | bytes) -> str:
    """Return what `pack_id` was given."""
    if isinstance(packed, str):
        return packed
    digits = packed.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def packed_filter(wanted: Mapping[str, Any]) -> dict[str, bytes]:
    """Return a filter as bytes per key, ready for `matches`."""
    return {key: codec.pack(value, f"filter[{key!r}]") for key, value in wanted.items()}


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, bytes]) -> bool:
    """Whether every wanted key is there with exactly that value."""
    return all(key in metadata and codec.pack(metadata[key]) == value for key, value in wanted.items())


def _refuse_objects(value: Any, path: str) -> None:
    """Refuse objects of registered classes, and say where they are."""
    if registry.for_type(type(value)) is not None:
        raise UnstorableValue(path, f"a {type(value).__name__}", "metadata holds plain types only")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_objects(key, path)
            _refuse_objects(item, codec.join_path(path, key))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _refuse_objects(item, path)


def _name(key: Key, step: int) -> bytes:
    # With the lengths of the names, so that no two keys give the same bytes.
    thread_id, namespace, checkpoint_id = key
    return f"{step}\0{len(thread_id)}\0{len(namespace)}\0{thread_id}\0{namespace}\0{checkpoint_id}".encode()


def _parent(parent: Any, key: Key) -> Key:
    if isinstance(parent, bytes):
        parent = unpack_id(parent)
    if isinstance(parent, str):
        return Key(key.thread_id, key.namespace, parent)
    return Key(*parent)


def _pack_time(created_at: str) -> str | int:
    """Return the microseconds of a time in the form that `utc_now` writes; any other text stays as it is."""
    if not _OUR_TIME.fullmatch(created_at):
        return created_at
    try:
        return (datetime.fromisoformat(created_at) - _EPOCH) // _MICROSECOND
    except ValueError:
        return created_at


def _unpack_time(created: str | int) -> str:
    if isinstance(created, str):
        return created
    return (_EPOCH + timedelta(microseconds=created)).isoformat(timespec="microseconds")


def _corrupted(reason: str, key: Key) -> CheckpointCorrupted:
    return CheckpointCorrupted(reason, thread_id=key.thread_id, checkpoint_id=key.checkpoint_id)


def _undecodable(error: Exception, key: Key) -> CheckpointCorrupted:
    return _corrupted(f"the checkpoint's metadata cannot be decoded: {error}", key)
