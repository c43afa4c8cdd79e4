"""A change of the Redis store, planned on what was read and then sent as one call.

`CommitPlan` implements what `transaction.apply` works on, and `adopt.Plan` adds what comes from other stores. What it
reads comes from the server and is noted as a check, what it writes is noted as commands. The script makes the checks
and carries out the commands at once; if something has changed meanwhile it does nothing, and the plan is made anew.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, Protocol

from everstep.errors import CheckpointCorrupted
from everstep.stores.facts import kept, new_facts
from everstep.stores.protocol import (
    SHARED_STATES_MAX,
    Hidden,
    Key,
    Object,
    Operation,
    Place,
    Record,
    SharedState,
    Stored,
    Write,
)
from everstep.stores.records import pack_origin, pack_shared_state
from everstep.stores.redis.items import (
    bucket_of,
    escaped,
    line_name,
    pack_facts,
    pack_hidden,
    pack_item,
    pack_log,
    pack_objects,
    pack_segment,
    pack_write,
    pairs,
    raw_writes,
    unpack_facts,
    unpack_hidden,
    unpack_item,
    unpack_log,
)
from everstep.stores.transaction import Line, Packed
from everstep.values.tree import FORMAT

# How many numbers are asked for at once: a commit needs a few, and those left over are lost.
_RESERVED = 4
_LINE = re.compile(rb"(\d+) ([-t]) (-|[0-9a-f]+) (.*)", re.DOTALL)


class Stale(Exception):
    """What was read has changed: plan anew."""


class Elsewhere(Exception):
    """The thread is kept in another bucket, or may be."""

    def __init__(self, alias: bytes, remains: bytes) -> None:
        super().__init__()
        self.alias = alias
        self.remains = remains


class Script(Protocol):
    """Calls the script on the bucket of the plan."""

    def __call__(self, *args: Any) -> Any: ...


class _Seen:
    """A thread as it was read."""

    def __init__(
        self, fields: dict[bytes, bytes], generation: bytes, remains: bytes, alias: bytes = b"", facts: bytes = b""
    ) -> None:
        self.fields = fields
        self.generation = generation
        self.remains = remains
        self.alias = alias
        self.facts = facts

    @property
    def family(self) -> str | None:
        return self.fields[b"family"].decode() if self.fields else None


class LineState:
    """A line's own fields, as they are or will be."""

    def __init__(self, raw: bytes) -> None:
        found = _LINE.fullmatch(raw)
        if found is None:
            raise CheckpointCorrupted(f"the head of a line cannot be read: {raw[:100]!r}")
        self.generation = int(found[1])
        self.head_was_moved = found[2] == b"t"
        self.digest: str | None = None
        if found[3] != b"-":
            self.digest = found[3].decode()
        self.checkpoint_id = found[4].decode(errors="replace")

    def check(self, head: Stored) -> Stored:
        """Return the head that was read, if it is the one that the line names."""
        if head.digest.hex() != self.digest:
            key = head.record.key
            raise CheckpointCorrupted(
                "the head is not the one that its line names", thread_id=key[0], checkpoint_id=key[2]
            )
        return head

    def set(self, stored: Stored | None, *, head_was_moved: bool) -> None:
        self.generation += 1
        self.head_was_moved = head_was_moved
        self.digest = None
        self.checkpoint_id = ""
        if stored is not None:
            self.digest = stored.digest.hex()
            self.checkpoint_id = stored.record.key.checkpoint_id

    @property
    def raw(self) -> bytes:
        mark = "t" if self.head_was_moved else "-"
        return f"{self.generation} {mark} {self.digest or '-'} {self.checkpoint_id}".encode()


class CommitPlan:
    """One change of one family."""

    def __init__(self, script: Script, bucket: int, life_ms: int, home: str) -> None:
        """`home` is the thread the change is about."""
        self._script = script
        self._bucket = bucket
        self._life = life_ms
        self._home = home
        self._seen: dict[str, _Seen] = {}
        self._items: dict[Key, tuple[bytes, Stored | None]] = {}
        self._lines: dict[tuple[str, str], LineState] = {}
        self._heads: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._moved: set[tuple[str, str]] = set()
        self._changed: set[str] = set()
        self._numbers: list[int] = []
        self._checks: dict[tuple[str, str, bytes], bytes] = {}
        self._commands: list[list[Any]] = []
        self._written: dict[tuple[str, str, str], dict[tuple[str, int], Write]] = {}
        self._pruned: Sequence[int] = ()
        self._family: str | None = None
        self._new_family_number = 0
        self._segments_kept: dict[int, tuple[str, Sequence[Place]]] = {}
        self.generations: dict[tuple[str, str], tuple[str, int]] = {}
        """Family and generation of the lines that were read."""
        self.created: list[str] = []
        """Threads that this makes."""
        self._facts: dict[str, dict[int, set[int]]] = {}

    def arguments(self, thread_id: str, namespace: str) -> list[Any]:
        """Return what the script takes, after everything was noted."""
        for thread in sorted(self._changed):
            if thread not in self.created:
                version = self._look(thread).fields.get(b"version", b"")
                self._check("field", f"thread:{escaped(thread)}:heads", b"version", version)
            self._do("HINCRBY", f"thread:{escaped(thread)}:heads", "version", 1)
        for segment, (line, follows) in self._segments_kept.items():
            self._do("HSET", f"family:{self._family}:segments", segment, pack_segment(line, segment, follows))
        for thread, name in sorted(self._moved):
            self._do("HSET", f"thread:{escaped(thread)}:heads", "@" + name, self._lines[thread, name].raw)
        for thread in sorted({*self.created, *self._facts}):
            self._commands.append(["facts", thread, pack_facts(self._facts.get(thread, {}))])
        if self._new_family_number:
            self._do("HSET", f"family:{self._family}", "seq", self._new_family_number)
        flat: list[Any] = ["commit", len(self._checks)]
        for (kind, key, field), expected in self._checks.items():
            flat += (kind, key, field, expected)
        flat.append(len(self._commands))
        for command in self._commands:
            flat += (len(command), *command)
        flat += (self._family or "", thread_id, namespace, self._life, len(self._pruned), *self._pruned)
        return flat

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self._commands or self._changed or self._moved or self._pruned)

    @property
    def family_name(self) -> str:
        return self._family or ""

    def state(self, thread_id: str, namespace: str) -> LineState | None:
        """Return the line as it will be."""
        return self._lines.get((thread_id, namespace))

    # -- reading

    def _look(self, thread_id: str, namespace: str = "") -> _Seen:
        seen = self._seen.get(thread_id)
        if seen is not None:
            return seen
        reply = self._script("look", thread_id, namespace)
        if reply[0] == b"found":
            seen = _Seen(dict(pairs(reply[1])), reply[2], b"", facts=reply[5])
            if reply[3]:
                # Kept as bytes: whether the head is needed is known later, and to decode it takes time.
                self._heads[thread_id, namespace] = int(float(reply[3])), reply[4]
            # A family may be dropped, and made anew, between the look and the commit.
            self._check("exists", f"family:{seen.family}", b"", b"1")
        else:
            if thread_id == self._home:
                raise Elsewhere(reply[1], reply[2])
            seen = _Seen({}, b"", reply[2], reply[1])
        self._seen[thread_id] = seen
        if thread_id == self._home:
            self._family = seen.family
        self._check("field", f"thread:{escaped(thread_id)}:heads", b"family", seen.fields.get(b"family", seen.remains))
        return seen

    def accept_absence(self, remains: bytes, alias: bytes) -> None:
        """Go on with a thread that was looked for everywhere and is nowhere; `alias` is what its own bucket has."""
        self._seen[self._home] = _Seen({}, b"", remains, alias)
        self._check("field", f"thread:{escaped(self._home)}:heads", b"family", remains)

    def line(self, thread_id: str, namespace: str) -> Line | None:
        seen = self._look(thread_id, namespace)
        where = thread_id, namespace
        state = self._lines.get(where)
        if state is None:
            raw = seen.fields.get(b"@" + namespace.encode())
            if seen.fields:
                self._check("field", f"thread:{escaped(thread_id)}:heads", b"@" + namespace.encode(), raw or b"")
            if raw is None:
                return None
            state = self._lines[where] = LineState(raw)
            self.generations[where] = seen.family or "", state.generation
        head = None
        if state.digest is not None:
            head = self._head(where, state, seen.family or "")
        return Line(where, thread_id, namespace, seen.family or "", head, state.head_was_moved)

    def _head(self, where: tuple[str, str], state: LineState, family: str) -> Stored:
        """Return the head of a line as it will be: as it was read with its thread, unless this plan has moved it."""
        key = Key(*where, state.checkpoint_id)
        found = self._heads.get(where)
        if found is not None and where not in self._moved:
            return state.check(unpack_item(found[1], key, found[0], family))
        head = self.checkpoint(key)
        if head is None:
            raise CheckpointCorrupted(
                "the head is not in the index", thread_id=key.thread_id, checkpoint_id=key.checkpoint_id
            )
        return head

    def family(self, thread_id: str) -> str | None:
        return self._look(thread_id).family

    def checkpoint(self, key: Key) -> Stored | None:
        if key not in self._items:
            self._items[key] = self._read_checkpoint(key)
        expected, stored = self._items[key]
        self._check("item", f"thread:{line_name(key.thread_id, key.namespace)}", key.checkpoint_id.encode(), expected)
        return stored

    def _read_checkpoint(self, key: Key) -> tuple[bytes, Stored | None]:
        """Return a checkpoint, and what the script finds of it until somebody changes it; nothing if it is absent."""
        reply = self._script("checkpoint", *key)
        if reply[0] != b"found":
            return b"", None
        stored = unpack_item(reply[3], key, int(float(reply[2])), reply[1].decode(), pinned=reply[4] == b"1")
        return b"%b %b" % (reply[2], stored.digest.hex().encode()), stored

    def is_taken_back(self, line: Line) -> bool:
        seen = self._look(line.thread_id)
        if b"origin" not in seen.fields:
            return False
        self._check_version(line.thread_id)
        wanted: set[int] = set()
        for stretch in self._script("get", "HVALS", f"thread:{escaped(line.thread_id)}:hidden"):
            hidden = unpack_hidden(stretch)
            # Such a stretch hides all that the namespace had, as taking back a whole branch does.
            if (hidden.namespace, hidden.after, hidden.segment, hidden.writes_of) == (line.namespace, 0, None, None):
                wanted.add(hidden.operation)
        if not wanted:
            return False
        for name in self._script("get", "SMEMBERS", f"family:{line.family}:threads"):
            self._check_version(name.decode())
            if any(self.is_undone(name.decode(), seq) for seq in wanted):
                return True
        return False

    def is_undone(self, thread_id: str, seq: int) -> bool | None:
        self._check_version(thread_id)
        found = self._script("get", "HGET", f"thread:{escaped(thread_id)}:log", seq)
        return unpack_log(found, seq).undone if found is not None else None

    def _check(self, kind: str, key: str, field: bytes, expected: bytes) -> None:
        # The first one counts: it is what was read, and later ones may be about what this plan has done.
        self._checks.setdefault((kind, key, field), expected)

    def _check_version(self, thread_id: str) -> None:
        version = self._look(thread_id).fields.get(b"version", b"")
        self._check("field", f"thread:{escaped(thread_id)}:heads", b"version", version)

    def _do(self, command: str, key: str, *values: Any) -> None:
        self._commands.append([command, key, *values])

    def _check_generation(self, family: str, generation: bytes) -> None:
        """New lines count on from here: see `settle` in the script."""
        self._check("field", f"family:{family}", b"generation", generation)

    def _number(self) -> int:
        """Return a number that no other checkpoint, write or operation of the family gets."""
        if self._new_family_number:
            self._new_family_number += 1
            return self._new_family_number
        if not self._numbers:
            first = self._script("numbers", self._family, _RESERVED)
            # The family is gone since it was looked at.
            if not first:
                raise Stale
            self._numbers = [int(first) + n for n in range(_RESERVED)]
        return self._numbers.pop(0)

    # -- writing

    def create(self, thread_id: str, namespace: str, family: str | None) -> Line:
        where = thread_id, namespace
        family = self.join(thread_id, family)
        if where not in self._lines:
            seen = self._look(thread_id)
            if thread_id not in self.created:
                self._check("field", f"thread:{escaped(thread_id)}:heads", b"@" + namespace.encode(), b"")
                self._check_generation(family, seen.generation)
            self._commands.append(["clear_line", thread_id, namespace])
            self._lines[where] = LineState(b"%b - - " % (seen.generation or b"0"))
            self._moved.add(where)
        return Line(where, thread_id, namespace, family, None)

    def join(self, thread_id: str, family: str | None) -> str:
        """Make the thread (in that family, or a new one) if it is missing, and return its family."""
        seen = self._look(thread_id)
        if seen.family is not None:
            return seen.family
        moment, seen.generation = self._script("begin", family or "")
        now = int(moment)
        if family is None:
            family = f"{self._bucket}.{now}"
            self._new_family_number = now
            self._check("exists", f"family:{family}", b"", b"0")
            self._do("HSET", f"family:{family}", "format", FORMAT)
        elif not self._new_family_number:
            self._check("exists", f"family:{family}", b"", b"1")
            self._check_generation(family, seen.generation)
        if bucket_of(thread_id) == self._bucket:
            self._check("text", f"alias:{escaped(thread_id)}", b"", seen.alias)
            # It leads nowhere.
            if seen.alias:
                self._do("UNLINK", f"alias:{escaped(thread_id)}")
                self._do("SREM", "aliases", thread_id)
        self._commands.append(["clear", thread_id])
        values = {"family": family, "name": thread_id, "made": now, "version": 1}
        self._do("HSET", f"thread:{escaped(thread_id)}:heads", *itertools.chain(*values.items()))
        self._do("SADD", f"family:{family}:threads", thread_id)
        self._commands.append(["active", thread_id])
        seen.fields = {key.encode(): str(value).encode() for key, value in values.items()}
        self._family = family
        self.created.append(thread_id)
        return family

    def insert(self, line: Line, packed: Packed, segment: int | None, added_bytes: int, *, is_head: bool) -> Stored:
        record = packed.record
        seq = self._number()
        known = line.head.record if line.head is not None else None
        self._note(line.thread_id, record, known)
        name = f"thread:{line_name(line.thread_id, line.namespace)}"
        self._put_item(record.key, pack_item(packed, segment or 0, added_bytes))
        self._do("ZADD", f"{name}:index", seq, record.key.checkpoint_id)
        self._commands.append(["id", record.key.checkpoint_id, line.thread_id, line.namespace])
        if not is_head:
            # Two of these at once would not come in the order of their numbers.
            self._changed.add(line.thread_id)
        stored = Stored(record, seq, line.family, digest=packed.digest, segment=segment or seq, added_bytes=added_bytes)
        self._items[record.key] = b"", stored
        return stored

    def _note(self, thread_id: str, record: Record, known: Record | None) -> None:
        """Keep what a thread can be found by."""
        new = new_facts(record, known)
        if not new:
            return
        held = self._facts.get(thread_id)
        if held is None:
            raw = self._look(thread_id).facts
            held = unpack_facts(raw)
            if thread_id not in self.created:
                self._check("field", "facts", thread_id.encode(), raw.strip(b"?"))
        self._facts[thread_id] = kept(held, new)

    def labels(self, thread_id: str) -> frozenset[int]:
        """Return the numbers that the thread will be found by, as far as they were looked at."""
        return frozenset(itertools.chain(*self._facts.get(thread_id, {}).values()))

    def _put_item(self, key: Key, item: bytes) -> None:
        name = f"thread:{line_name(key.thread_id, key.namespace)}:item:{key.checkpoint_id}"
        if self._life:
            # Twice as long as the head of its thread, which must never name what has ended before it.
            self._do("SET", name, item, "PX", self._life * 2)
        else:
            self._do("SET", name, item)

    def add_segment(self, line: Line, segment: int, follows: Sequence[Place]) -> None:
        name = line_name(line.thread_id, line.namespace)
        self._do("HSET", f"family:{line.family}:segments", segment, pack_segment(name, segment, follows))

    def replace(self, line: Line, old: Stored, packed: Packed, /) -> Stored:
        self._note(line.thread_id, packed.record, old.record)
        segment = old.segment
        if segment == old.seq:
            # It begins its segment: see `pack_item`.
            segment = 0
        self._put_item(packed.record.key, pack_item(packed, segment, old.added_bytes))
        state = self._lines[line.ref]
        if state.checkpoint_id == old.record.key.checkpoint_id and state.digest is not None:
            state.digest = packed.digest.hex()
            self._moved.add(line.ref)
        return old._replace(record=packed.record, digest=packed.digest)

    def add_objects(self, family: str, objects: Sequence[Object]) -> None:
        if objects:
            self._commands.append(["objects", f"family:{family}", *pack_objects(objects)])

    def set_head(self, line: Line, stored: Stored | None, *, head_was_moved: bool = False) -> None:
        self._lines[line.ref].set(stored, head_was_moved=head_was_moved)
        self._moved.add(line.ref)
        self._commands.append(["active", line.thread_id])

    def prune(self, line: Line, seqs: Sequence[int]) -> None:  # noqa: ARG002  # a change prunes its own line only
        self._pruned = seqs

    def set_origin(self, thread_id: str, origin: Stored) -> None:
        self._commands.append(["release", thread_id])
        key = origin.record.key
        began = f"{origin.seq} {line_name(key.thread_id, key.namespace)}\n{key.checkpoint_id}"
        sealed = pack_origin(key, thread_id)
        self._do("HSET", f"thread:{escaped(thread_id)}:heads", "began", began, "origin", sealed)
        self._do("HINCRBY", f"thread:{line_name(key.thread_id, key.namespace)}:began", key.checkpoint_id, 1)
        self._changed.add(thread_id)

    def set_shared_state(self, thread_id: str, other: str, common: SharedState) -> None:
        one, two = sorted((thread_id, other))
        first = f"{len(one.encode())} {one}{two}"
        family = self._look(thread_id).family
        fields = self._script("get", "HKEYS", f"family:{family}:shared_states")
        seqs: set[int] = set()
        for field in fields:
            seq, names = field.split(b" ", 1)
            if names == first.encode():
                seqs.add(int(seq))
        kept = sorted(seqs | {common.place.seq})[-SHARED_STATES_MAX:]
        for dropped in seqs - set(kept):
            self._do("HDEL", f"family:{family}:shared_states", f"{dropped} {first}")
        if common.place.seq in kept:
            children = common.root.children
            value = b"%d %b%b" % (len(children), children, pack_shared_state(common, one, two))
            self._do("HSET", f"family:{family}:shared_states", f"{common.place.seq} {first}", value)
        self._changed.update((thread_id, other))

    def set_pinned(self, stored: Stored, pinned: bool) -> None:
        key = stored.record.key
        command = "SADD" if pinned else "SREM"
        self._do(command, f"thread:{line_name(key.thread_id, key.namespace)}:pins", key.checkpoint_id)
        self._changed.add(key.thread_id)

    def add_operation(self, thread_id: str, operation: Operation) -> int:
        seq = self._number()
        self._log(thread_id, operation, seq)
        return seq

    def set_operation(self, thread_id: str, operation: Operation) -> None:
        if self.is_undone(thread_id, operation.seq) is not None:
            self._log(thread_id, operation, operation.seq)

    def _log(self, thread_id: str, operation: Operation, seq: int) -> None:
        self._do("HSET", f"thread:{escaped(thread_id)}:log", seq, pack_log(operation, seq))
        self._changed.add(thread_id)

    def hide(self, line: Line, hidden: Hidden) -> None:
        field = f"{hidden.operation}:{self._number()}"
        stretch = pack_hidden(hidden)
        self._do("HSET", f"thread:{escaped(line.thread_id)}:hidden", field, stretch)
        self._commands.append(["cover", line.thread_id, stretch])
        self._changed.add(line.thread_id)

    def show(self, thread_id: str, operation: int) -> list[Hidden]:
        key = f"thread:{escaped(thread_id)}:hidden"
        found = list[Hidden]()
        held = self._script("stretches", thread_id, operation)
        for field, value in pairs(held):
            self._do("HDEL", key, field)
            found.append(unpack_hidden(value))
        if found:
            self._commands.append(["cover_again", thread_id])
        self._changed.add(thread_id)
        return found

    def put_write(self, line: Line, checkpoint_id: str, write: Write) -> None:
        name = f"thread:{line_name(line.thread_id, line.namespace)}"
        field, value = pack_write(checkpoint_id, write)
        # Special writes, whose numbers are negative, replace one another; of others the first one counts.
        command = "HSET" if write.idx < 0 else "HSETNX"
        self._do(command, f"{name}:writes:{checkpoint_id}", field, b"%d %b" % (self._number(), value))
        self._do("SADD", f"{name}:written", checkpoint_id)

    def writes(self, line: Line, checkpoint_id: str) -> list[Write]:
        where = line.thread_id, line.namespace, checkpoint_id
        if where not in self._written:
            key = f"thread:{line_name(*where[:2])}:writes:{checkpoint_id}"
            held = self._script("get", "HGETALL", key)
            for field, value in pairs(held):
                self._check("field", key, field, value)
            self._written[where] = {(write.task_id, write.idx): write for write in raw_writes(checkpoint_id, held)}
        return list(self._written[where].values())

    def move_write(self, line: Line, checkpoint_id: str, write: Write, idx: int) -> None:
        key = f"thread:{line_name(line.thread_id, line.namespace)}:writes:{checkpoint_id}"
        moved = write._replace(idx=idx)
        self._do("HDEL", key, pack_write(checkpoint_id, write)[0])
        field, value = pack_write(checkpoint_id, moved)
        self._do("HSET", key, field, b"%d %b" % (write.seq, value))
        held = self._written[line.thread_id, line.namespace, checkpoint_id]
        del held[write.task_id, write.idx]
        held[write.task_id, idx] = moved
