"""What two writers changed in the values of a thread since they parted, put together; pure.

Three states are compared, by their encoded bytes: the one that both started from (`base`), `ours`, and `theirs`. What
they changed is done to ours. Messages added at the end by both are kept, theirs first. An edit elsewhere is one stretch
of messages that took the place of another, and two of them fit if they do not overlap. Keys of the state and of the
results of tools are compared one by one. Where both changed the same value, each in its own way, that is a conflict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from everstep.values import codec

Tools = Literal["merge", "last", "keep"]
"""How the results of tools are put together: key by key; ours as a whole, if we changed them; ours in any case."""


class Values(NamedTuple):
    """What a checkpoint of the engine's own holds."""

    messages: list[Any]
    state: dict[Any, Any]
    tools_result: dict[Any, Any]
    next_node: str

    @classmethod
    def unpacked(cls, packed: bytes) -> Values:
        """Return values that `packed` was given: new objects each time."""
        messages, state, tools_result, next_node = codec.unpack(packed)
        return cls(list(messages), state, tools_result, next_node)

    def packed(self) -> bytes:
        """Return them as bytes, by which they are compared."""
        return codec.pack([self.messages, self.state, self.tools_result, self.next_node])

    def copy(self) -> Values:
        """Return them in containers of their own."""
        return Values(list(self.messages), dict(self.state), dict(self.tools_result), self.next_node)


class Conflict(Exception):
    """Both changed the same values, which are named."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(", ".join(names))
        self.names = tuple(names)


class Splice(NamedTuple):
    """A stretch of a list that takes the place of another."""

    start: int
    stop: int
    items: Sequence[Any]


class Update(NamedTuple):
    """Keys of a dict that are set or removed."""

    put: Mapping[Any, Any]
    removed: Sequence[Any]


class RebasePlan(NamedTuple):
    """What they changed, to be done to ours."""

    messages: Sequence[Splice]
    """The last place first."""
    state: Update
    tools_result: Update
    next_node: str | None
    """None: as it is."""

    def apply(self, values: Values) -> Values:
        """Return the values after all is done; lists and dicts are changed in place, what they hold is not."""
        for start, stop, items in self.messages:
            values.messages[start:stop] = items
        for mapping, update in ((values.state, self.state), (values.tools_result, self.tools_result)):
            # Removed first: what is put may be an equal key of another type, such as 1 for True.
            for key in update.removed:
                mapping.pop(key, None)
            mapping.update(update.put)
        if self.next_node is None:
            return values
        return values._replace(next_node=self.next_node)


def merge(base: Values, ours: Values, theirs: Values, tools: Tools = "merge") -> Values:
    """Return ours with what they changed; Conflict where that cannot be."""
    return plan(base, ours, theirs, tools).apply(ours.copy())


def plan(base: Values, ours: Values, theirs: Values, tools: Tools = "merge") -> RebasePlan:
    """Return what they changed. The results of tools may be the record of a call, which is one value: see `Tools`."""
    conflicts: list[str] = []
    messages = _splices(base.messages, ours.messages, theirs.messages)
    if messages is None:
        conflicts.append("messages")
    state = _update("state", base.state, ours.state, theirs.state, conflicts)
    tools_result = _NO_UPDATE
    if not _is_ours_kept(tools, base, ours):
        tools_result = _update("tools_result", base.tools_result, ours.tools_result, theirs.tools_result, conflicts)
    next_node = None
    if theirs.next_node not in (base.next_node, ours.next_node):
        next_node = theirs.next_node
        if ours.next_node != base.next_node:
            conflicts.append("next_node")
    if conflicts:
        raise Conflict(conflicts)
    return RebasePlan(messages or (), state, tools_result, next_node)


def _is_ours_kept(tools: Tools, base: Values, ours: Values) -> bool:
    """Whether our results of tools stay as they are, whatever they changed."""
    if tools == "last":
        return codec.pack(ours.tools_result) != codec.pack(base.tools_result)
    return tools == "keep"


_NO_UPDATE = Update({}, ())


class _Side(NamedTuple):
    """What became of a list: one stretch (`start` to `stop`) that others took the place of, and what was added."""

    start: int
    stop: int
    items: list[bytes]
    added: list[bytes]

    @property
    def is_edited(self) -> bool:
        return self.stop > self.start or bool(self.items)

    @property
    def growth(self) -> int:
        """How far the edit has moved what is behind it."""
        return len(self.items) - (self.stop - self.start)


def _splices(base: Sequence[Any], ours: Sequence[Any], theirs: Sequence[Any]) -> list[Splice] | None:
    """Return what is to be done to our list so that it has what they did, the last place first.

    None means that the two edits overlap.
    """
    old = list(map(codec.pack, base))
    mine = _side(old, list(map(codec.pack, ours)))
    other = _side(old, list(map(codec.pack, theirs)))
    found: list[Splice] = []
    if other.added:
        # What was added is kept from both sides, even if it is the same: people do say things twice.
        end = len(old) + mine.growth
        found.append(Splice(end, end, theirs[len(theirs) - len(other.added) :]))
    did_same_edit = mine[:3] == other[:3]
    if not other.is_edited or did_same_edit:
        return found
    start = _start_in_ours(mine, other)
    if start is None:
        return None
    length = other.stop - other.start
    items = theirs[other.start : other.start + len(other.items)]
    found.append(Splice(start, start + length, items))
    return found


def _start_in_ours(mine: _Side, other: _Side) -> int | None:
    """Return where the stretch that they replaced begins in our list; None if our own edit is in the way."""
    if not mine.is_edited:
        return other.start
    # Both have replaced the same stretch, or inserted at the same place, and nothing tells what comes first.
    if mine[:2] == other[:2]:
        return None
    if other.stop <= mine.start:
        return other.start
    if mine.stop <= other.start:
        return other.start + mine.growth
    return None


def _side(old: Sequence[bytes], new: Sequence[bytes]) -> _Side:
    """Return what became of a list. It was edited between the equal items at its beginning and those at its end."""
    added: Sequence[bytes] = ()
    end = len(old)
    # The last message is where it was, so what is behind it was added. Otherwise the end belongs to the edit.
    if len(new) > end and (end == 0 or old[-1] == new[end - 1]):
        added = new[end:]
        new = new[:end]
    shorter = min(end, len(new))
    start = 0
    while start < shorter and old[start] == new[start]:
        start += 1
    same = 0
    # Not over the beginning that is equal too: an item must not be counted from both ends.
    while same < shorter - start and old[-1 - same] == new[-1 - same]:
        same += 1
    return _Side(start, end - same, list(new[start : len(new) - same]), list(added))


def _update(
    name: str, base: Mapping[Any, Any], ours: Mapping[Any, Any], theirs: Mapping[Any, Any], conflicts: list[str]
) -> Update:
    """Return what they did to a dict, and add to `conflicts` the keys that we changed too, in another way."""
    # Keys too are compared by their bytes: 1 and True are one key of a dict, and two different ones here.
    keys: dict[bytes, Any] = {}
    old = _packed_values(base, keys)
    one = _packed_values(ours, keys)
    two = _packed_values(theirs, keys)
    put: dict[Any, Any] = {}
    removed: list[Any] = []
    for packed in {**old, **two}:
        before = old.get(packed)
        mine = one.get(packed)
        other = two.get(packed)
        # They have changed nothing, or the same as we did.
        if other in (before, mine):
            continue
        key = keys[packed]
        if mine != before:
            conflicts.append(f"{name}[{key!r}]")
        elif other is None:
            removed.append(key)
        else:
            put[key] = theirs[key]
    return Update(put, removed)


def _packed_values(mapping: Mapping[Any, Any], keys: dict[bytes, Any]) -> dict[bytes, bytes]:
    """Return the encoded values of a mapping by its encoded keys, and note which keys these are."""
    found: dict[bytes, bytes] = {}
    for key, value in mapping.items():
        packed = codec.pack(key)
        keys[packed] = key
        found[packed] = codec.pack(value)
    return found
