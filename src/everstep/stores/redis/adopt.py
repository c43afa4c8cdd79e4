"""Taking over threads from another store: the part of a plan that only `adoption.adopt` uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everstep.errors import CheckpointNotFound
from everstep.stores.protocol import Key, Place, RawThread, SharedState, Stored, Write
from everstep.stores.records import pack_origin
from everstep.stores.redis.items import (
    escaped,
    line_name,
    pack_hidden,
    pack_item,
    pack_log,
    pack_write,
    pairs,
    unpack_segment,
)
from everstep.stores.redis.plan import CommitPlan
from everstep.stores.transaction import Packed


class Plan(CommitPlan):
    """A plan that takes over threads, too. Nobody else writes to a family that is being copied, so it checks little."""

    def reserve(self, family: str, count: int) -> int:
        if self._new_family_number:
            self._new_family_number += count
            return self._new_family_number - count
        return int(self._script("numbers", family, count)) - 1

    def set_note(self, thread_id: str, note: bytes) -> None:
        self._do("HSET", f"thread:{escaped(thread_id)}:heads", "note", note)
        self._changed.add(thread_id)

    def remove(self, keys: Sequence[Key]) -> None:
        for key in keys:
            line = self.line(key.thread_id, key.namespace)
            if line is not None:
                self._commands.append(["remove", key.thread_id, key.namespace, line.family, key.checkpoint_id])
                self._items[key] = b"", None

    def keep(self, family: str, checkpoints: Sequence[tuple[Stored, Packed]]) -> None:
        for stored, packed in checkpoints:
            key = stored.record.key
            line = self.line(key.thread_id, key.namespace) or self.create(key.thread_id, key.namespace, family)
            segment = stored.segment
            if segment == stored.seq:
                # It begins its segment: see `pack_item`.
                segment = 0
            self._note(key.thread_id, stored.record, None)
            self._put_item(key, pack_item(packed, segment, stored.added_bytes))
            self._do("ZADD", f"thread:{line_name(key.thread_id, key.namespace)}:index", stored.seq, key.checkpoint_id)
            self._commands.append(["id", key.checkpoint_id, key.thread_id, key.namespace])
            state = self._lines[line.ref]
            # The head is replaced by one of the same name, so the line names another digest.
            if state.digest is not None and state.checkpoint_id == key.checkpoint_id:
                state.digest = packed.digest.hex()
            self._moved.add(line.ref)
            self._items[key] = b"", stored._replace(digest=packed.digest)
        for thread_id in {stored.record.key.thread_id for stored, _ in checkpoints}:
            # They come after the head, until `restore` sets it.
            self._do("HSET", f"thread:{escaped(thread_id)}:heads", "incoming", 1)

    def keep_segments(self, family: str, segments: Mapping[int, Sequence[Place]]) -> None:
        if not segments:
            return
        held = self._held_segments(family)
        for segment, follows in segments.items():
            # Of one that is new here, `restore` says which line it belongs to.
            line = held[segment][0] if segment in held else ""
            self._segments_kept[segment] = line, follows

    def _held_segments(self, family: str) -> dict[int, tuple[str, Sequence[Place]]]:
        """Return the segments of the family: the line of each, and what it follows."""
        if self._new_family_number:
            # The family is made by this plan, so there are no others.
            return dict(self._segments_kept)
        flat = self._script("get", "HGETALL", f"family:{family}:segments")
        held: dict[int, tuple[str, Sequence[Place]]] = {}
        for number, value in pairs(flat):
            segment = int(number)
            line, follows = unpack_segment(segment, value)
            held[segment] = line.decode(), follows
        return held | self._segments_kept

    def restore(self, raw: RawThread) -> None:
        thread_id = raw.thread_id
        family = self._family or ""
        thread = f"thread:{escaped(thread_id)}"
        # A copy, since what is dropped here is taken out of what was read.
        for field in list(self._look(thread_id).fields):
            namespace = field[1:].decode()
            if field.startswith(b"@") and namespace not in raw.lines:
                self._commands.append(["drop", thread_id, namespace, family])
                self._lines.pop((thread_id, namespace), None)
                self._moved.discard((thread_id, namespace))
        self._restore_lines(raw, family)
        self._do("DEL", f"{thread}:hidden")
        for place, hidden in enumerate(raw.hidden):
            self._do("HSET", f"{thread}:hidden", f"{hidden.operation}:{place}", pack_hidden(hidden))
        self._do("DEL", f"{thread}:log")
        for operation in raw.operations:
            self._do("HSET", f"{thread}:log", operation.seq, pack_log(operation, operation.seq))
        self._commands.append(["cover_again", thread_id])
        self._do("HDEL", f"{thread}:heads", "incoming")
        self._restore_origin(raw)
        for other, shared_states in raw.shared_states.items():
            if self._look(other).family == family:
                self._restore_shared_states(thread_id, other, shared_states)
        self.set_note(thread_id, raw.note)

    def _restore_lines(self, raw: RawThread, family: str) -> None:
        thread_id = raw.thread_id
        self._restore_segments(raw, family)
        active = 0
        for namespace, given in raw.lines.items():
            active = max(active, given.active)
            line = self.line(thread_id, namespace) or self.create(thread_id, namespace, family)
            head: Stored | None = None
            if given.head is not None:
                head = self.checkpoint(Key(thread_id, namespace, given.head))
                if head is None:
                    raise CheckpointNotFound(given.head, thread_id)
            state = self._lines[line.ref]
            state.set(head, head_was_moved=given.head_was_moved)
            state.generation = given.generation
            self._moved.add(line.ref)
            # What was pending before is not part of what the thread shall have.
            self._commands.append(["unwrite", thread_id, namespace])
            self._commands.append(["pin", thread_id, namespace, *sorted(raw.pinned)])
        self._commands.append(["active", thread_id, active])
        for key, write in raw.writes:
            self._restore_write(key, write)

    def _restore_segments(self, raw: RawThread, family: str) -> None:
        """Note which line each segment belongs to; one that was this thread's and is not given belongs to none."""
        owner: dict[int, str] = {}
        for namespace, given in raw.lines.items():
            owner.update(dict.fromkeys(given.segments, namespace))
        for segment, (name, follows) in self._held_segments(family).items():
            if segment in owner:
                self._segments_kept[segment] = line_name(raw.thread_id, owner[segment]), follows
            elif name.startswith(line_name(raw.thread_id, "")):
                self._segments_kept[segment] = "", follows

    def _restore_write(self, key: Key, write: Write) -> None:
        name = f"thread:{line_name(key.thread_id, key.namespace)}"
        field, value = pack_write(key.checkpoint_id, write)
        self._do("HSET", f"{name}:writes:{key.checkpoint_id}", field, b"%d %b" % (write.seq, value))
        self._do("SADD", f"{name}:written", key.checkpoint_id)

    def _restore_origin(self, raw: RawThread) -> None:
        heads = f"thread:{escaped(raw.thread_id)}:heads"
        self._commands.append(["release", raw.thread_id])
        self._do("HDEL", heads, "began", "origin")
        if raw.origin is None:
            return
        self._do("HSET", heads, "origin", pack_origin(raw.origin, raw.thread_id))
        if raw.began:
            line = line_name(raw.origin.thread_id, raw.origin.namespace)
            name = raw.origin.checkpoint_id
            self._do("HSET", heads, "began", f"{raw.began} {line}\n{name}")
            self._do("HINCRBY", f"thread:{line}:began", name, 1)

    def _restore_shared_states(self, thread_id: str, other: str, shared_states: Sequence[SharedState]) -> None:
        one, two = sorted((thread_id, other))
        first = f" {len(one.encode())} {one}{two}".encode()
        for field in self._script("get", "HKEYS", f"family:{self._family}:shared_states"):
            if field.partition(b" ")[2] == first[1:]:
                self._do("HDEL", f"family:{self._family}:shared_states", field)
        for common in shared_states:
            self.set_shared_state(thread_id, other, common)
