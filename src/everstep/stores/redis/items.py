"""Checkpoints, hidden stretches, writes and objects as the bytes that the Redis store keeps. Pure.

A checkpoint is readable JSON. It is read back by packing what was read: if that does not give the checksum it was
written with, it is damaged. What the script looks at comes first, in this order: see `parse` in redis-1.lua.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

from everstep.errors import CheckpointCorrupted
from everstep.stores import records
from everstep.stores.facts import EVERYTHING
from everstep.stores.protocol import Hidden, Key, Object, Operation, Place, Record, SharedState, Stored, Write
from everstep.stores.records import digest as digest_of
from everstep.stores.records import pack_operation, pack_record, record_digest, unpack_operation
from everstep.stores.transaction import Packed
from everstep.values import codec

_T = TypeVar("_T")

# A bucket is the unit that a cluster moves and a script works on. The number can never change: names are
# spread by it.
BUCKETS = 128
_ESCAPED = re.compile(r"[%:{}\x00-\x1f\x7f]")
_JSON = json.JSONEncoder(separators=(",", ":")).encode
# Left out where they are empty, which is the usual case: memory is what a server of this kind has least of.
_OPTIONAL = ("tags", "summary", "next_node", "trigger", "kind")


def bucket_of(thread_id: str) -> int:
    """Return the bucket of a thread's name, which never changes."""
    digest = hashlib.sha256(thread_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") % BUCKETS


def escaped(name: str) -> str:
    """Return a name as a part of a key. The script does the same."""
    # Most names have nothing to escape, and this runs for every key.
    if not _ESCAPED.search(name):
        return name
    return _ESCAPED.sub(lambda found: f"%{ord(found.group()):02X}", name)


def pairs(flat: Sequence[_T]) -> Iterator[tuple[_T, _T]]:
    """Yield the items of a flat list two by two: the script gives names and values in turn."""
    return zip(flat[::2], flat[1::2], strict=True)


def line_name(thread_id: str, namespace: str) -> str:
    """Return how keys and indexes name a namespace of a thread."""
    return f"{escaped(thread_id)}:{escaped(namespace)}"


# -- checkpoints


def pack_facts(facts: Mapping[int, Collection[int]]) -> str:
    """Return the numbers that a thread is found by as one text."""
    found: list[str] = []
    for key, labels in sorted(facts.items()):
        found += [f"{key}.{label}" for label in sorted(labels)]
    return " ".join(found)


def unpack_facts(text: bytes) -> dict[int, set[int]]:
    """Return what `pack_facts` was given; of a text that is lost or cannot be read: everything."""
    found: dict[int, set[int]] = {}
    for entry in text.split():
        key, _, label = entry.partition(b".")
        if not (key.isdigit() and label.isdigit()):
            return {EVERYTHING: {EVERYTHING}}
        found.setdefault(int(key), set()).add(int(label))
    return found


def pack_item(packed: Packed, segment: int, added_bytes: int) -> bytes:
    """Return a checkpoint as JSON; `segment` is 0 if it begins one."""
    record = packed.record
    # A parent of the same line, which is the usual one, is named by its id alone.
    line = record.key[:2]
    parents = [parent[2] if parent[:2] == line else parent for parent in record.parents]
    shown: dict[str, Any] = {
        "digest": packed.digest.hex(),
        "added": added_bytes,
        "segment": segment,
        "step": record.step,
        "children": record.children.hex(),
        "thread_id": record.key.thread_id,
        "namespace": record.key.namespace,
        "checkpoint_id": record.key.checkpoint_id,
        "created_at": record.created_at,
        "parents": parents,
        "sizes": record.sizes,
    }
    for name in _OPTIONAL:
        if value := getattr(record, name):
            shown[name] = value
    if record.metadata:
        # As JSON where that gives back the same, so that people can read it with the tools of the server.
        if _is_plain(record.metadata):
            shown["metadata"] = dict(record.metadata)
        else:
            shown["packed_metadata"] = b64encode(codec.pack(dict(record.metadata), "metadata")).decode()
    if record.repeats is not None:
        shown["repeats"] = record.repeats
    shown["root"] = b64encode(record.body).decode()
    return _JSON(shown).encode()


def unpack_item(
    item: bytes, key: Key, seq: int, family: str, *, pinned: bool = False, hidden: bool = False, whole: bool = True
) -> Stored:
    """Return what `pack_item` kept; without `whole` the root was left out."""
    if not item:
        raise _corrupted("the checkpoint's item is missing though its index has it", key)
    children = b""
    body = b""
    try:
        if whole:
            shown = json.loads(item)
            children = bytes.fromhex(shown["children"])
            body = b64decode(shown["root"], validate=True)
        else:
            # The script has cut the root off, which comes last, and with it the brace that ends the object.
            shown = json.loads(item + b"}")
        record = Record(
            Key(shown["thread_id"], shown["namespace"], shown["checkpoint_id"]),
            shown["step"],
            tuple(_parent(parent, key) for parent in shown["parents"]),
            shown["created_at"],
            children,
            body,
            tuple(shown["sizes"]),
            tuple(shown.get("tags", ())),
            shown.get("summary", ""),
            shown.get("next_node", ""),
            shown.get("trigger", ""),
            shown.get("kind", ""),
            _metadata(shown),
            shown.get("repeats"),
        )
        digest = bytes.fromhex(shown["digest"])
        # Packed again: the digest is made of the common form, whatever a store keeps.
        info, root = pack_record(record)
        segment = shown["segment"] or seq
        added = shown["added"]
    except (KeyError, TypeError, ValueError, OverflowError) as exc:
        raise _corrupted(f"the checkpoint's item cannot be decoded: {exc}", key) from exc
    except CheckpointCorrupted as exc:
        raise exc.located(key.thread_id, key.checkpoint_id) from exc
    # The first half of a digest is made of the record without its root.
    size = len(digest)
    if not whole:
        size //= 2
    if record.key != key or digest[:size] != record_digest(info, root)[:size]:
        raise _corrupted("the checkpoint's item does not match its checksum", key)
    return Stored(record, seq, family, pinned, hidden, digest, segment, added)


def line_of(name: bytes) -> tuple[str, str]:
    """Return the thread and namespace that `line_name` named."""
    thread_id, _, namespace = name.decode().partition(":")
    return unquote(thread_id), unquote(namespace)


def _metadata(shown: Mapping[str, Any]) -> Mapping[str, Any]:
    packed = shown.get("packed_metadata")
    found: Mapping[str, Any] = shown.get("metadata", {})
    if packed is not None:
        found = codec.unpack(b64decode(packed))
    return found


def _parent(parent: Any, key: Key) -> Key:
    if isinstance(parent, str):
        return Key(key.thread_id, key.namespace, parent)
    return Key(*parent)


def _is_plain(value: Any) -> bool:
    """Whether JSON gives it back exactly."""
    if value is None or type(value) in (str, bool):
        return True
    if type(value) is int:
        # Python refuses to write very long ones as text.
        return -(2**63) <= value < 2**63
    if type(value) is float:
        # Not for infinity and NaN, for which JSON has no words.
        return value - value == 0.0
    if type(value) is list:
        return all(_is_plain(item) for item in value)
    return isinstance(value, Mapping) and all(type(key) is str and _is_plain(item) for key, item in value.items())


def _corrupted(reason: str, key: Key) -> CheckpointCorrupted:
    return CheckpointCorrupted(reason, thread_id=key.thread_id, checkpoint_id=key.checkpoint_id)


# -- hidden stretches


def pack_hidden(hidden: Hidden) -> bytes:
    """Return a stretch as the script reads it; a segment of 0 means all of them."""
    namespace = hidden.namespace.encode()
    writes_of = (hidden.writes_of or "").encode()
    kind = "w" if hidden.writes_of is not None else "c"
    first = f"{hidden.after} {hidden.to} {hidden.segment or 0} {hidden.operation} {kind} {len(namespace)} "
    stretch = first.encode() + namespace + writes_of
    return b"%b %b" % (digest_of(stretch).hex().encode(), stretch)


def unpack_hidden(stretch: bytes) -> Hidden:
    """Return what `pack_hidden` kept."""
    check, _, stretch = stretch.partition(b" ")
    if check != digest_of(stretch).hex().encode():
        raise CheckpointCorrupted("a hidden stretch does not match its checksum")
    try:
        after, to, segment, operation, kind, size, rest = stretch.split(b" ", 6)
        namespace = rest[: int(size)].decode()
        writes_of: str | None = rest[int(size) :].decode()
        if kind != b"w":
            writes_of = None
        return Hidden(namespace, int(after), int(to), int(segment) or None, writes_of, int(operation))
    except ValueError as exc:
        raise CheckpointCorrupted(f"a hidden stretch cannot be decoded: {exc}") from exc


# -- segments


def pack_segment(line: str, segment: int, follows: Sequence[Place]) -> bytes:
    """Return what a segment of a line follows. The script takes the line's name off when that is deleted."""
    name = line.encode()
    return b"\n".join((name, digest_of(name).hex().encode(), records.pack_segment(segment, follows)))


def unpack_segment(segment: int, value: bytes) -> tuple[bytes, tuple[Place, ...]]:
    """Return what `pack_segment` kept; no name: the line was deleted."""
    name, check, data = (*value.split(b"\n", 2), b"", b"")[:3]
    if name and check != digest_of(name).hex().encode():
        raise CheckpointCorrupted(f"the line of segment {segment} does not match its checksum")
    return name, records.unpack_segment(segment, data)


# -- the log


def pack_log(operation: Operation, seq: int) -> bytes:
    """Return an operation and whether it is undone; one wrong bit does not turn the one mark into the other."""
    mark = b"u" if operation.undone else b"-"
    return mark + pack_operation(operation, seq)


def unpack_log(value: bytes, seq: int) -> Operation:
    """Return what `pack_log` kept."""
    if value[:1] not in (b"u", b"-"):
        raise CheckpointCorrupted(f"operation {seq} cannot be decoded")
    return unpack_operation(value[1:], seq, value[:1] == b"u")


# -- writes


def pack_write(checkpoint_id: str, write: Write) -> tuple[bytes, bytes]:
    """Return a write as field and value; its number comes before the value."""
    info = records.pack_write(checkpoint_id, write)
    return f"{write.idx} {write.task_id}".encode(), b"%d %b%b" % (len(write.children), write.children, info)


def unpack_writes(checkpoint_id: str, flat: Sequence[bytes], hidden: Sequence[bytes]) -> list[Write]:
    """Return the writes of a checkpoint that are not hidden, in their order; `hidden` is after, up to, and so on."""
    shown = raw_writes(checkpoint_id, flat)
    for after, upto in pairs([int(number) for number in hidden]):
        shown = [write for write in shown if not after < write.seq <= upto]
    return sorted(shown, key=lambda write: (write.task_path, write.task_id, write.idx))


def raw_writes(checkpoint_id: str, flat: Sequence[bytes]) -> list[Write]:
    """Return all writes of a checkpoint."""
    found = []
    for field, value in pairs(flat):
        try:
            idx, task_id = field.decode().split(" ", 1)
            seq, size, rest = value.split(b" ", 2)
            children = rest[: int(size)]
            info = rest[int(size) :]
            found.append(records.unpack_write(checkpoint_id, int(seq), task_id, int(idx), info, children))
        except ValueError as exc:
            raise CheckpointCorrupted(
                f"a pending write of checkpoint {checkpoint_id!r} cannot be decoded: {exc}"
            ) from exc
    return found


# -- common states


def unpack_shared_states(flat: Sequence[bytes], thread_id: str) -> dict[str, list[SharedState]]:
    """Return what a thread has in common with others, the oldest first."""
    entries: list[tuple[int, str, SharedState]] = []
    for field, value in pairs(flat):
        seq, size, names = field.split(b" ", 2)
        one = names[: int(size)].decode()
        two = names[int(size) :].decode()
        # The family keeps the shared states of all its threads together.
        if thread_id not in (one, two):
            continue
        other = two if one == thread_id else one
        length, rest = value.split(b" ", 1)
        children = rest[: int(length)]
        data = rest[int(length) :]
        entries.append((int(seq), other, records.unpack_shared_state(data, children, one, two)))
    found: dict[str, list[SharedState]] = {}
    for _, other, common in sorted(entries, key=lambda entry: entry[0]):
        found.setdefault(other, []).append(common)
    return found


# -- objects


def pack_objects(objects: Sequence[Object]) -> list[bytes]:
    """Return objects as hash, value, hash, value."""
    flat: list[bytes] = []
    for obj in objects:
        flat += (obj.hash, len(obj.children).to_bytes(4, "big") + obj.children + obj.body)
    return flat


def unpack_objects(flat: Sequence[bytes]) -> list[Object]:
    """Return what the script gives: each value has its epoch in front."""
    found = []
    for key, value in pairs(flat):
        # Four bytes of the epoch, four of the length of the children.
        end = 8 + int.from_bytes(value[4:8], "big")
        found.append(Object(key, value[8:end], value[end:]))
    return found
