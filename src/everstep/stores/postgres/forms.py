"""What rows look like: parts of statements that several of them share, and how rows become what a store speaks of."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted
from everstep.stores.facts import kept_tags
from everstep.stores.protocol import Hidden, Key, Loaded, Object, Stored, Write
from everstep.stores.records import pack_id, record_digest, unpack_id, unpack_record, unpack_write
from everstep.values import codec

# Covers do not overlap: the first one that ends at a seq or later has it, or none has.
COVERED = """coalesce((SELECT v.after < c.seq FROM {covers} v WHERE v.family = c.family AND v.line = c.line
              AND v.segment = [segment] AND v.upto >= c.seq ORDER BY v.upto LIMIT 1), false)"""
HIDDEN = f"({COVERED.replace('[segment]', '0')} OR {COVERED.replace('[segment]', 'c.segment')})"
MARKS_MAX = 50_000
"""How many marks of deleted threads are kept."""
LINES_COUNTED_MAX = 1000
STORED_COUNTED_MAX = 1000
"""Up to how many namespaces of a thread, and checkpoints of a namespace, are counted when something is not found."""
# How many threads are read at once.
OUTLINES = 10_000
# By how much a page grows in which too little matched.
GROWTH = 32
# Within a segment order of arrival is ancestry: unless the head was moved, nothing of its segment comes after it. (Not
# so in the middle of a copy, which brings checkpoints first and heads last.)
STALE = "(NOT l.head_was_moved AND NOT l.incoming AND {is_followed}(l.family, l.id, l.head, c.segment))"
# Of a family whose guard is held: see `Adopting.reserve`.
NUMBER = "nextval('{numbers}') + f.shift"
LISTED = (
    "c.seq, c.id, c.step, c.segment, c.pinned, c.added, c.info, substr(c.root, 1, 8), "
    + HIDDEN
    + ", t.name, l.namespace, t.family"
)
OF_THREADS = """JOIN {lines} l ON l.family = c.family AND l.id = c.line
                 JOIN {threads} t ON t.family = l.family AND t.id = l.thread"""
LOAD = "SELECT * FROM {load}(%s, %s, %s, %s, %s)"
_UNKNOWN = 3
"""The kind of the row that LOAD gives where there is no thread of that name, nor anything left of one."""


class KnownHead(NamedTuple):
    """A head that the next checkpoint may simply follow: it was not moved."""

    line: int
    head: Stored


def labels(metadata: Mapping[str, Any], tags: Collection[str] = ()) -> list[int] | None:
    """Return a number per entry of the metadata and per tag, by which filters find it; None if there are none.

    LangGraph's step would fill the index, being another one each time; its parents are empty almost everywhere.
    """
    found: list[int] = []
    for key, value in metadata.items():
        if key != "step" and (type(value) is not dict or value):
            found.append(_label(codec.pack([key, value], "metadata")))
    for tag in kept_tags(tags):
        found.append(_label(b"tag\0" + tag.encode()))
    return found or None


def _label(entry: bytes) -> int:
    """Return eight bytes of a hash: an index of numbers is small, and a false match is looked at again."""
    return int.from_bytes(hashlib.sha256(entry).digest()[:8], "big", signed=True)


def to_hidden(row: Sequence[Any]) -> Hidden:
    """Return a stretch that is not listed."""
    namespace, after, upto, segment, writes_of, operation = row
    return Hidden(
        namespace.decode(), after, upto, segment, unpacked_id(writes_of) if writes_of is not None else None, operation
    )


def deletion_mark(thread_id: str) -> bytes:
    """Return how a deleted thread is named: not by its name, which is deleted too."""
    return hashlib.sha256(thread_id.encode()).digest()[:16]


def packed_id(text: str) -> bytes:
    """Return an id as writes keep it: a UUID as 17 bytes that are no UTF-8, any other text as its own bytes."""
    packed = pack_id(text)
    return packed.encode() if isinstance(packed, str) else _UUID_MARK + packed


def unpacked_id(packed: bytes) -> str:
    """Return what `packed_id` was given."""
    return unpack_id(packed[1:]) if packed[:1] == _UUID_MARK else packed.decode()


_UUID_MARK = b"\xff"


def columns(objects: Sequence[Object]) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return objects as hashes, children and bodies: each once, and in order, so that writers do not lock crosswise."""
    each = sorted({obj.hash: obj for obj in objects}.values())
    return [obj.hash for obj in each], [obj.children for obj in each], [obj.body for obj in each]


# Every row of a thread that others count on. Of a thread that is whole, the numbers agree.
def ask_whole(thread_id: str, namespace: str | None = None, stored_max: int = 0) -> tuple[str, tuple[Any, ...]]:
    """Return the question whether a thread is whole: see `Rows.check_whole`."""
    lines_max = LINES_COUNTED_MAX if namespace else 1 << 40
    return "SELECT * FROM {whole}(%s, %s, %s, %s)", (thread_id.encode(), to_bytes(namespace), lines_max, stored_max)


def check_answer(thread_id: str, rows: Sequence[Any], asked: tuple[str, tuple[Any, ...]]) -> None:
    """Raise CheckpointCorrupted if the answer to `ask_whole` shows damage."""
    *_, lines_max, stored_max = asked[1]
    for row in rows:
        whole = _Whole(*row)
        damage = _damage_of_thread(whole, lines_max)
        if not damage and whole.family is not None and whole.line is not None:
            damage = _damage_of_line(whole, stored_max)
        if damage:
            raise damaged(damage, thread_id)


class _Whole(NamedTuple):
    """A row of `whole`: a thread, one of its lines, and beside each count what was found."""

    family: int | None
    named: int | None
    thread: int | None
    kept: int | None
    line: int | None
    head: int | None
    head_found: int | None
    is_stale: bool
    lines: int
    lines_found: int
    operations: int
    operations_found: int
    is_torn: bool
    segments: int
    segments_found: int
    stored: int
    stored_found: int


def _damage_of_thread(whole: _Whole, lines_max: int) -> str:
    """Return what is wrong with a thread; "": nothing."""
    if whole.family is None:
        return "its name is missing" if whole.named is not None else ""
    if whole.thread is None:
        return "its row of threads is missing"
    if whole.kept is None:
        return "its family is missing"
    if whole.lines != whole.lines_found and whole.lines_found < lines_max:
        return "a namespace is missing"
    if whole.operations != whole.operations_found:
        return "an operation is missing"
    return ""


def _damage_of_line(whole: _Whole, stored_max: int) -> str:
    """Return what is wrong with a line; "": nothing."""
    if whole.head is not None and whole.head_found is None:
        return "its head points to a checkpoint that is missing"
    if whole.is_stale:
        return STALE_HEAD
    if whole.is_torn:
        return LOST_STRETCH
    if whole.segments != whole.segments_found:
        return "what a segment follows is missing"
    if whole.stored <= stored_max and whole.stored != whole.stored_found:
        return "a checkpoint is missing"
    return ""


LOST_STRETCH = "what hides some of its checkpoints is missing"
STALE_HEAD = "its head is older than the newest checkpoint that follows it"


def damaged(what: str, thread_id: str) -> CheckpointCorrupted:
    """Return the error for a thread that has lost rows."""
    return CheckpointCorrupted(f"rows of the thread are lost or do not agree: {what}", thread_id=thread_id)


def encoded_columns(rows: Iterable[Sequence[str]]) -> tuple[list[bytes], ...]:
    """Return the columns of rows of texts, as `unnest` takes them."""
    return tuple([text.encode() for text in column] for column in zip(*rows, strict=True))


def name_bytes(thread_id: str, namespace: str) -> tuple[bytes, bytes]:
    """Return names as they are stored: text columns cannot hold NUL."""
    return thread_id.encode(), namespace.encode()


def key_of(names: Sequence[bytes]) -> Key:
    """Return the checkpoint that a thread, a namespace and an id name, as they are stored."""
    return Key(*map(bytes.decode, names))


def to_bytes(text: str | None) -> bytes | None:
    """Return a text as it is stored."""
    return None if text is None else text.encode()


def to_stored(thread_id: str, namespace: str, family: int, row: Sequence[Any]) -> Stored:
    """Return a checkpoint with its root; the last column says whether it is hidden."""
    seq, checkpoint_id, step, segment, pinned, added, info, children, root, hidden = row
    record = unpack_record(Key(thread_id, namespace, checkpoint_id.decode()), step, children, info, root)
    return Stored(record, seq, str(family), pinned, hidden, record_digest(info, root), segment, added)


def is_unknown(rows: Sequence[Any]) -> bool:
    """Whether the rows that LOAD gave tell that there is no such thread, and nothing that is left of one."""
    return bool(rows) and rows[0][0] == _UNKNOWN


def to_loaded(thread_id: str, namespace: str, rows: Sequence[Any]) -> tuple[Loaded, KnownHead | None]:
    """Return what the rows of one checkpoint say."""
    _, _, generation, seq, step, segment, added, family, line, flags, name, info, children, root = rows[0]
    row = seq, name, step, segment, bool(flags & 1), added, info, children, root, bool(flags & 2)
    stored = to_stored(thread_id, namespace, family, row)
    found: list[Object] = []
    attached: list[Write] = []
    for other in rows:
        if other[0] == 1:
            found.append(Object(*other[10:13]))
        elif other[0] == 2:
            attached.append(unpack_write(name.decode(), other[2], unpacked_id(other[10]), other[3], *other[11:13]))
    attached.sort(key=lambda write: (write.task_path, write.task_id, write.idx))
    return Loaded(stored, generation, found, attached), None if flags & 4 else KnownHead(line, stored)


def to_listed(row: Sequence[Any]) -> Stored:
    """Return a checkpoint as it is listed: without its values."""
    seq, checkpoint_id, step, segment, pinned, added, info, root_digest, hidden, name, namespace, family = row
    record = unpack_record(Key(name.decode(), namespace.decode(), checkpoint_id.decode()), step, b"", info, None)
    return Stored(record, seq, str(family), pinned, hidden, record_digest(info, root_digest), segment, added)
