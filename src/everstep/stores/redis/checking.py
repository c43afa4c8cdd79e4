"""A look at all keys of a Redis store: each index of a bucket against what it leads to, and how to put it right.

Keys are found with SCAN, in small steps that hold nobody up. Others may write meanwhile, so that what is found here may
have been right a moment later: who tells it looks again (`confirmed`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from everstep.errors import CheckpointCorrupted
from everstep.reports import Finding
from everstep.stores.facts import EVERYTHING, is_noted, new_facts
from everstep.stores.inspection import Lost, finding_about
from everstep.stores.protocol import Key
from everstep.stores.records import unpack_origin
from everstep.stores.redis.items import (
    bucket_of,
    escaped,
    line_name,
    line_of,
    pack_facts,
    pairs,
    raw_writes,
    unpack_facts,
    unpack_hidden,
    unpack_item,
    unpack_log,
    unpack_segment,
    unpack_shared_states,
)
from everstep.stores.redis.plan import LineState
from everstep.stores.transaction import now_micros
from everstep.values.tree import FORMAT

Send = Callable[..., Any]
"""Sends a command (its name, the key within the bucket, arguments) to the bucket it is called with."""

_OF_THREAD = re.compile(rb"thread:([^:]*):(heads|log|hidden|covers)")
_OF_LINE = re.compile(rb"thread:([^:]*):([^:]*):(index|pins|began|written)")
_OF_CHECKPOINT = re.compile(rb"thread:([^:]*):([^:]*):(item|writes):(.*)", re.DOTALL)
_OF_FAMILY = re.compile(rb"family:([^:]*)(:objects|:threads|:segments|:shared_states)?")
_OF_WAITING = re.compile(rb"family:[^:]*:(line|turn:!?[0-9a-f]+)")
"""What writers leave that wait for one another. It ends by itself."""
_OF_BUCKET = re.compile(rb"active|names|facts|fact:\d+|counts|ids|alias:.*|aliases|gone|life", re.DOTALL)
_LOOKS = 2
_NO_HEAD = f"{1 << 40} t - "  # a line whose head is not known; no generation was higher


class Problem(NamedTuple):
    """Something that is wrong, and the commands that put it right."""

    finding: Finding
    fix: Sequence[tuple[Any, ...]] = ()
    bucket: int = 0


def confirmed(look: Callable[[], Sequence[Problem]]) -> list[Problem]:
    """Return what is found by every look."""
    found = list(look())
    for _ in range(_LOOKS - 1):
        if not found:
            break
        again = {problem.finding for problem in look()}
        found = [problem for problem in found if problem.finding in again]
    return found


class Bucket:
    """The keys of one bucket, as a scan found them, and what they hold."""

    def __init__(self, number: int, send: Send, keys: Sequence[bytes], aliases: Callable[[str], bytes]) -> None:
        self._number = self.number = number
        self._send = send
        self._alias = aliases
        self._unknown: list[bytes] = []
        self._threads: dict[bytes, list[bytes]] = {}
        """By thread, escaped: its keys."""
        self._items: dict[tuple[bytes, bytes, bytes], set[bytes]] = {}
        """By thread, namespace (both escaped) and kind: the ids that have such a key."""
        self._families: dict[bytes, set[bytes]] = {}
        for key in keys:
            self._sort(key)
        self._heads: dict[bytes, dict[bytes, bytes]] = {}
        self._branches: dict[tuple[bytes, bytes, bytes], int] = {}
        """By line, id and seq: how many branches say that they began there."""

    def _sort(self, key: bytes) -> None:
        if found := _OF_THREAD.fullmatch(key) or _OF_LINE.fullmatch(key):
            self._threads.setdefault(found[1], []).append(key)
        elif found := _OF_CHECKPOINT.fullmatch(key):
            self._threads.setdefault(found[1], []).append(key)
            self._items.setdefault((found[1], found[2], found[3]), set()).add(found[4])
        elif found := _OF_FAMILY.fullmatch(key):
            self._families.setdefault(found[1], set()).add(found[2] or b"")
        elif not (_OF_BUCKET.fullmatch(key) or _OF_WAITING.fullmatch(key)):
            self._unknown.append(key)

    def names(self) -> set[str]:
        """Return the names of all threads that a key tells of."""
        found = set(self.thread_ids())
        found.update(map(_text, self._ask("ZRANGE", "active", 0, -1)))
        for family in self._families:
            found.update(map(_text, self._ask("SMEMBERS", _family(family, ":threads"))))
        return found

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with this bucket."""
        # Some of its threads end by themselves: what is missing of those is not lost.
        ends = bool(self._ask("EXISTS", "life"))
        for name in self._threads:
            heads = self._hash(f"thread:{name.decode()}:heads")
            if heads:
                self._heads[name] = heads
                began = re.fullmatch(rb"(\d+) ([^\n]*)\n(.*)", heads.get(b"began", b""), re.DOTALL)
                if began:
                    place = began[2], began[3], began[1]
                    self._branches[place] = self._branches.get(place, 0) + 1
            elif not ends:
                fix = self._heads_again(name)
                yield self._problem("thread", "the head of the thread is missing", _name(name), None, fix)
        for name, heads in self._heads.items():
            yield from self._thread(name, heads, ends)
        if not ends:
            yield from self._listings()
            yield from self._used_families()
            yield from self._ids()
        for key in self._unknown:
            if self._ask("EXISTS", key):
                yield self._problem("row", f"a key of no kind: {key!r:.100}", None, None, [("UNLINK", key)])

    def _heads_again(self, name: bytes) -> list[tuple[Any, ...]]:
        """Return the commands that make the head of a thread anew from its other keys, if its family knows it."""
        thread_id = _name(name)
        namespaces: list[bytes] = []
        for key in self._threads[name]:
            found = _OF_LINE.fullmatch(key)
            if found and found[3] == b"index":
                namespaces.append(found[2])
        family = self._family_with(thread_id)
        if family is None or not namespaces:
            return [("UNLINK", key) for key in self._threads[name]]
        heads = f"thread:{escaped(thread_id)}:heads"
        fix: list[tuple[Any, ...]] = [("HSET", heads, "family", family, "name", thread_id, "made", 0, "version", 0)]
        for namespace in namespaces:
            fix.append(("HSET", heads, b"@" + _name(namespace).encode(), _NO_HEAD))
        return fix

    def _family_with(self, thread_id: str) -> bytes | None:
        """Return the family that names a thread as one of its own."""
        for family in self._families:
            if self._ask("SISMEMBER", _family(family, ":threads"), thread_id):
                return family
        return None

    # -- threads

    def _thread(self, name: bytes, heads: dict[bytes, bytes], ends: bool) -> Iterator[Problem]:
        thread_id = _name(name)
        if heads.get(b"name", thread_id.encode()) != thread_id.encode():
            fixed = [("HSET", f"thread:{name.decode()}:heads", "name", thread_id)]
            yield self._problem("thread", f"it says that its name is {heads[b'name']!r:.100}", thread_id, None, fixed)
        yield from self._family_of(thread_id, heads.get(b"family", b""), ends)
        if bucket_of(thread_id) != self._number:
            yield from self._alias_of(thread_id)
        labels = set[int]()
        for held in unpack_facts(self._ask("HGET", "facts", thread_id) or b"").values():
            labels.update(held)
        known: set[bytes] = set()
        for field, value in heads.items():
            if field.startswith(b"@"):
                namespace = _text(field[1:])
                known.add(escaped(namespace).encode())
                yield from self._line(thread_id, namespace, value, heads, labels)
        for key in self._threads[name]:
            of = _OF_LINE.fullmatch(key) or _OF_CHECKPOINT.fullmatch(key)
            if of is not None and of[2] not in known and self._ask("EXISTS", key):
                what = f"a key of a namespace that is not there: {key!r:.100}"
                yield self._problem("row", what, thread_id, None, [("UNLINK", key)])

    def _family_of(self, thread_id: str, family: bytes, ends: bool) -> Iterator[Problem]:
        fix: list[tuple[Any, ...]]
        is_there = b"" in self._families.get(family, ())
        if not is_there and not ends and not self._ask("EXISTS", _family(family, "")):
            fix = [("HSET", _family(family, ""), "seq", now_micros(), "format", FORMAT)]
            yield self._problem("thread", "its family is missing", thread_id, None, fix)
        elif not self._ask("SISMEMBER", _family(family, ":threads"), thread_id):
            fix = [("SADD", _family(family, ":threads"), thread_id)]
            yield self._problem("thread", "its family does not know it", thread_id, None, fix)

    def _alias_of(self, thread_id: str) -> Iterator[Problem]:
        """Look whether the bucket of a thread's name says that it is kept in this one."""
        leads = self._alias(thread_id).split(b" ")[0]
        if leads != b"%d" % self._number:
            alias = ("SET", f"alias:{escaped(thread_id)}", f"{self._number} {secrets.token_hex(16)}")
            noted = ("SADD", "aliases", thread_id)
            lost = self._problem("index", "no alias leads to where it is kept", thread_id, None, [alias, noted])
            yield lost._replace(bucket=bucket_of(thread_id))

    def _line(
        self, thread_id: str, namespace: str, value: bytes, heads: dict[bytes, bytes], labels: set[int]
    ) -> Iterator[Problem]:
        fix: list[tuple[Any, ...]]
        line = f"thread:{line_name(thread_id, namespace)}"
        own = escaped(thread_id).encode(), escaped(namespace).encode()
        index = dict(pairs(self._ask("ZRANGE", f"{line}:index", 0, -1, "WITHSCORES")))
        try:
            state = LineState(value)
        except CheckpointCorrupted as exc:
            fix = [("HSET", f"thread:{escaped(thread_id)}:heads", b"@" + namespace.encode(), _NO_HEAD)]
            yield self._problem("head", exc.reason, thread_id, None, fix)
            return
        if state.digest is not None:
            yield from self._head(thread_id, namespace, state, index, labels)
        counted = heads.get(b"#" + namespace.encode())
        if counted is not None and int(counted) != len(index) and self._is_still(thread_id, heads):
            what = f"its index has {len(index)} of {int(counted)} checkpoints"
            yield self._problem("index", what, thread_id)
        yield from self._line_items(thread_id, line, set(index), self._items.get((*own, b"item"), set()))
        for pin in set(self._ask("SMEMBERS", f"{line}:pins")) - set(index):
            fix = [("SREM", f"{line}:pins", pin)]
            yield self._problem("pin", "it is pinned, and not stored", thread_id, _text(pin), fix)
        yield from self._line_writes(thread_id, line, self._items.get((*own, b"writes"), set()))
        yield from self._began(thread_id, line, index)
        yield from self._line_ids(thread_id, line, index)

    # The server changes while it is looked at: what seems to be wrong is asked for once more before it is reported.

    def _line_items(self, thread_id: str, line: str, index: set[bytes], items: set[bytes]) -> Iterator[Problem]:
        """Compare the index of a line with the checkpoints that are there."""
        fix: list[tuple[Any, ...]]
        for lost in sorted(index - items):
            key = f"{line}:item:".encode() + lost
            if not self._ask("EXISTS", key) and self._ask("ZSCORE", f"{line}:index", lost):
                fix = [("ZREM", f"{line}:index", lost)]
                yield self._problem("checkpoint", "its item is missing", thread_id, _text(lost), fix)
        for extra in sorted(items - index):
            key = f"{line}:item:".encode() + extra
            if self._ask("EXISTS", key) and not self._ask("ZSCORE", f"{line}:index", extra):
                what = "it is not in the index of its namespace"
                yield self._problem("index", what, thread_id, _text(extra), [("UNLINK", key)])

    def _line_writes(self, thread_id: str, line: str, attached: set[bytes]) -> Iterator[Problem]:
        """Compare the checkpoints that are noted to have writes with those that have some."""
        written = set(self._ask("SMEMBERS", f"{line}:written"))
        for name in [*sorted(written - attached), *sorted(attached - written)]:
            is_there = self._ask("EXISTS", f"{line}:writes:".encode() + name)
            is_noted_there = self._ask("SISMEMBER", f"{line}:written", name)
            if name in written and not is_there and is_noted_there:
                fix = [("SREM", f"{line}:written", name)]
                yield self._problem("write", "its pending writes are missing", thread_id, _text(name), fix)
            elif name in attached and is_there and not is_noted_there:
                fix = [("SADD", f"{line}:written", name)]
                yield self._problem("write", "its pending writes are not noted", thread_id, _text(name), fix)

    def _line_ids(self, thread_id: str, line: str, index: Collection[bytes]) -> Iterator[Problem]:
        """Look whether the checkpoints of a line are found by their ids."""
        own_name = line.removeprefix("thread:").encode()
        for name in index:
            held = (self._ask("HGET", "ids", name) or b"").split(b"\n")
            if own_name not in held and self._ask("ZSCORE", f"{line}:index", name):
                fix = [("HSET", "ids", name, b"\n".join([*filter(None, held), own_name]))]
                yield self._problem("index", "it is not found by its id", thread_id, _text(name), fix)

    def _is_still(self, thread_id: str, heads: dict[bytes, bytes]) -> bool:
        return self._hash(f"thread:{escaped(thread_id)}:heads") == heads

    def _head(
        self, thread_id: str, namespace: str, state: LineState, index: dict[bytes, bytes], labels: set[int]
    ) -> Iterator[Problem]:
        fix: list[tuple[Any, ...]]
        name = state.checkpoint_id.encode()
        if name not in index:
            value = f"{state.generation + 1} t - "
            fix = [("HSET", f"thread:{escaped(thread_id)}:heads", b"@" + namespace.encode(), value)]
            yield self._problem("head", "the head is not stored", thread_id, state.checkpoint_id, fix)
            return
        item = self._ask("GET", f"thread:{line_name(thread_id, namespace)}:item:".encode() + name)
        if item is None:
            # That it is missing is reported elsewhere.
            return
        try:
            stored = unpack_item(item, Key(thread_id, namespace, state.checkpoint_id), int(float(index[name])), "")
        except CheckpointCorrupted:
            # Whoever reads it reports that.
            return
        if stored.digest.hex() != state.digest:
            state.set(stored, head_was_moved=state.head_was_moved)
            value = state.raw.decode()
            fix = [("HSET", f"thread:{escaped(thread_id)}:heads", b"@" + namespace.encode(), value)]
            what = "the head is not the one that its line names"
            yield self._problem("head", what, thread_id, state.checkpoint_id, fix)
        if not all(is_noted(fact, labels) for fact in new_facts(stored.record, None)):
            fix = [
                ("HSET", "facts", thread_id, pack_facts({EVERYTHING: {EVERYTHING}})),
                ("SADD", f"fact:{EVERYTHING}", thread_id),
            ]
            what = "it would not be found by its metadata or tags"
            yield self._problem("index", what, thread_id, state.checkpoint_id, fix)

    def _began(self, thread_id: str, line: str, index: dict[bytes, bytes]) -> Iterator[Problem]:
        counts = self._hash(f"{line}:began")
        named = line.removeprefix("thread:").encode()
        expected: dict[bytes, int] = {}
        for (of, name, seq), count in self._branches.items():
            # Not at one of the same name that came later: see `release_origin` in the script.
            if of == named and index.get(name) == seq:
                expected[name] = count
        for name in sorted(set(counts) | set(expected)):
            if int(counts.get(name, b"0")) != expected.get(name, 0):
                fix: list[tuple[Any, ...]] = [("HDEL", f"{line}:began", name)]
                if name in expected:
                    fix = [("HSET", f"{line}:began", name, expected[name])]
                what = f"{int(counts.get(name, b'0'))} branches are counted there, and {expected.get(name, 0)} say so"
                yield self._problem("origin", what, thread_id, _text(name), fix)

    # -- what cannot be read

    def unreadable(self) -> Iterator[Problem]:
        """Yield what has a checksum of its own and does not match it, but for checkpoints and objects."""
        for name in self._threads:
            yield from self._unreadable_of_thread(name)
        for (name, namespace, kind), ids in self._items.items():
            if kind != b"writes":
                continue
            for checkpoint_id in ids:
                key = b"thread:" + name + b":" + namespace + b":writes:" + checkpoint_id
                for field, value in self._hash(key).items():
                    read_write = partial(raw_writes, _text(checkpoint_id), [field, value])
                    yield from self._checked(key, field, "write", name, read_write)
        for family in self._families:
            for segment, value in self._hash(_family(family, ":segments")).items():
                read_segment = partial(_read_segment, segment, value)
                yield from self._checked(_family(family, ":segments"), segment, "segment", None, read_segment)
            for field, value in self._hash(_family(family, ":shared_states")).items():
                read_state = partial(_read_shared_state, field, value)
                yield from self._checked(_family(family, ":shared_states"), field, "shared state", None, read_state)

    def _unreadable_of_thread(self, name: bytes) -> Iterator[Problem]:
        thread = f"thread:{name.decode()}"
        for seq, value in self._hash(f"{thread}:log").items():
            yield from self._checked(f"{thread}:log", seq, "operation", name, partial(_read_log, seq, value))
        for field, value in self._hash(f"{thread}:hidden").items():
            yield from self._checked(f"{thread}:hidden", field, "hidden", name, partial(unpack_hidden, value))
        heads = self._hash(f"{thread}:heads")
        if b"origin" in heads:
            read_origin = partial(unpack_origin, heads[b"origin"], _name(name))
            for problem in self._checked(f"{thread}:heads", b"origin", "origin", name, read_origin):
                yield problem._replace(fix=[*problem.fix, ("HDEL", f"{thread}:heads", "began")])
        if b"began" in heads and not re.fullmatch(rb"\d+ [^\n]*\n.*", heads[b"began"], re.DOTALL):
            yield self._problem("origin", "where it began", _name(name), None, [("HDEL", f"{thread}:heads", "began")])

    def _checked(
        self, key: str | bytes, field: bytes, kind: str, name: bytes | None, read: Callable[[], Any]
    ) -> Iterator[Problem]:
        try:
            read()
        except (CheckpointCorrupted, ValueError, TypeError, IndexError, KeyError) as exc:
            owner = _name(name) if name is not None else None
            yield self._problem(kind, f"it cannot be read: {exc}", owner, None, [("HDEL", key, field)])

    def stored(self, command: Sequence[Any]) -> Lost | None:
        """Return what a command would delete, to be kept elsewhere before; None: nothing."""
        verb, key, *fields = command
        if verb == "HDEL":
            return Lost(f"field {fields[0]!r} of {key!r}", stored=self._ask("HGET", key, fields[0]))
        if verb == "UNLINK":
            return Lost(f"key {key!r}", stored=self._ask("DUMP", key))
        if verb in ("ZREM", "SREM"):
            return Lost(f"member {fields[0]!r} of {key!r}")
        return None

    def thread_ids(self) -> list[str]:
        """Return the names of the threads that are kept here."""
        return [_name(name) for name in self._threads]

    # -- indexes of the bucket

    def _listings(self) -> Iterator[Problem]:
        names = {_name(name).encode() for name in self._heads}
        active = set(self._ask("ZRANGE", "active", 0, -1))
        yield from self._listing("active", names, names, active)
        # A thread that has nothing to be found by yet is in none of the others.
        wanted = active & names
        yield from self._listing("names", names, wanted, set(self._ask("ZRANGE", "names", 0, -1)))
        yield from self._listing("facts", names, wanted, set(self._ask("HKEYS", "facts")))
        yield from self._facts()

    def _listing(self, listing: str, names: set[bytes], wanted: set[bytes], held: set[bytes]) -> Iterator[Problem]:
        """Compare a listing of threads with those that should be in it, and with those that are there."""
        add: tuple[Any, ...]
        for name in sorted(wanted - held):
            if self._has(name):
                add = ("ZADD", listing, 0, name)
                if listing == "facts":
                    add = ("HSET", listing, name, "0.0")
                what = f"it is missing in the listing of {listing}"
                yield self._problem("index", what, _text(name), None, [add])
        for name in sorted(held - names):
            if not self._has(name):
                verb = "HDEL" if listing == "facts" else "ZREM"
                what = f"{listing} lists a thread that is not there"
                yield self._problem("index", what, _text(name), None, [(verb, listing, name)])

    def _has(self, name: bytes) -> bool:
        return bool(self._ask("EXISTS", f"thread:{escaped(name.decode())}:heads"))

    def _facts(self) -> Iterator[Problem]:
        expected: dict[int, set[bytes]] = {}
        for name, value in self._hash("facts").items():
            for labels in unpack_facts(value).values():
                for label in labels:
                    expected.setdefault(label, set()).add(name)
        counts = {int(label): int(count) for label, count in self._hash("counts").items()}
        for label in sorted({*expected, *counts}):
            fix: list[tuple[Any, ...]]
            held = set(self._ask("SMEMBERS", f"fact:{label}"))
            wanted = expected.get(label, set())
            for name in sorted(wanted - held):
                fix = [("SADD", f"fact:{label}", name)]
                yield self._problem("index", "it is not found by what it has", _text(name), None, fix)
            for name in sorted(held - wanted):
                fix = [("SREM", f"fact:{label}", name)]
                yield self._problem("index", "it is found by what it does not have", _text(name), None, fix)
            if counts.get(label, 0) != len(wanted):
                fix = [("HDEL", "counts", label)]
                owner: str | None = None
                if wanted:
                    fix = [("HSET", "counts", label, len(wanted))]
                    owner = _text(min(wanted))
                what = f"{counts.get(label, 0)} threads are counted for an entry that {len(wanted)} have"
                yield self._problem("index", what, owner, None, fix)

    def _used_families(self) -> Iterator[Problem]:
        used = {heads.get(b"family", b"") for heads in self._heads.values()}
        for family, parts in self._families.items():
            for name in self._ask("SMEMBERS", _family(family, ":threads")):
                if escaped(name.decode()).encode() not in self._heads and not self._has(name):
                    fix = [("SREM", _family(family, ":threads"), name)]
                    what = "its family names it, and it is not there"
                    yield self._problem("thread", what, _text(name), None, fix)
            if family not in used and not self._ask("SMEMBERS", _family(family, ":threads")):
                keys = [("UNLINK", _family(family, part.decode())) for part in parts]
                if any(self._ask("EXISTS", key) for _, key in keys):
                    yield self._problem("row", f"family {_text(family)} has no threads", None, None, keys)

    def _ids(self) -> Iterator[Problem]:
        for name, held in self._hash("ids").items():
            lines = held.split(b"\n")
            gone = [line for line in lines if not self._is_indexed(line, name)]
            if not gone:
                continue
            fix: list[tuple[Any, ...]] = [("HDEL", "ids", name)]
            left = [line for line in lines if line not in gone]
            if left:
                fix = [("HSET", "ids", name, b"\n".join(left))]
            owner, _ = line_of(gone[0])
            yield self._problem("index", "the index of ids has it, and it is not stored", owner, _text(name), fix)

    def _is_indexed(self, line: bytes, name: bytes) -> bool:
        return self._ask("ZSCORE", b"thread:" + line + b":index", name) is not None

    # -- asking

    def _ask(self, *command: Any) -> Any:
        return self._send(self._number, *command)

    def _hash(self, key: str | bytes) -> dict[bytes, bytes]:
        return dict(pairs(self._ask("HGETALL", key)))

    def _problem(
        self,
        kind: str,
        what: str,
        thread_id: str | None,
        checkpoint_id: str | None = None,
        fix: Sequence[tuple[Any, ...]] = (),
    ) -> Problem:
        return Problem(finding_about(kind, what, thread_id, checkpoint_id), fix, self._number)


def _read_log(seq: bytes, value: bytes) -> None:
    unpack_log(value, int(seq))


def _read_segment(segment: bytes, value: bytes) -> None:
    unpack_segment(int(segment), value)


def _read_shared_state(field: bytes, value: bytes) -> None:
    seq, size, names = field.split(b" ", 2)
    one = names[: int(size)].decode()
    (states,) = unpack_shared_states([field, value], one).values()
    if states[0].place.seq != int(seq):
        raise CheckpointCorrupted("it has another number")


def _family(family: bytes, part: str) -> str:
    return f"family:{family.decode('utf-8', 'replace')}{part}"


def _name(name: bytes) -> str:
    return unquote(name.decode("utf-8", "replace"))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
