"""Nodes back to packed bytes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everstep.errors import CheckpointCorrupted
from everstep.values.codec import tokens
from everstep.values.long_values import HEAD_BYTES
from everstep.values.tree import repetition
from everstep.values.tree.cursor import Cursor, pieces_numbers
from everstep.values.tree.lists import GROUP_MAX
from everstep.values.tree.node import (
    GROUP,
    HASH_BYTES,
    LEVELS_MAX,
    LIST,
    MAP,
    NODES,
    PACKED,
    PIECES,
    REF,
    REST,
    REST_BODY,
    VALUE_BYTES_MAX,
    WHOLE,
    Content,
    MissingObject,
    content_of,
    hashes,
)

_GROUPS_OF_REFS = {count * HASH_BYTES: bytes((GROUP, 2 * count, 0)) for count in range(1, GROUP_MAX + 1)}
"""The bodies of groups all items of which are objects, by the size of their children."""


class Reader:
    """Joins nodes back into packed bytes. `objects` holds the verified content of every object below them.

    The bytes may be forged. Nothing is joined beyond what the node around it claims; an object that occurs again is
    joined once more, and copied from then on; and what occurs again is bounded by `REPEATS_MAX`. So time and memory
    depend on what is stored.
    """

    def __init__(
        self, objects: Mapping[bytes, Content], size_max: int = VALUE_BYTES_MAX, repeats_max: int | None = None
    ) -> None:
        self._objects = objects
        self._repeats_max = repetition.REPEATS_MAX if repeats_max is None else repeats_max
        self._left = size_max
        self._seen: set[bytes] = set()
        self._joined: dict[Any, bytes] = {}
        self._repeated = 0
        self._root: Content | None = b"", b""
        """What to look at when much is repeated; None: that has been done."""

    def fields(self, children: bytes, body: bytes, count: int) -> list[list[bytes]]:
        """Return the packed parts of each of the `count` nodes that stand one after the other."""
        cursor = Cursor(children, body)
        parts: list[list[bytes]] = [[] for _ in range(count)]
        self._root = children, body
        try:
            for out in parts:
                self._node(cursor, out)
            cursor.finish()
        except IndexError as exc:
            raise CheckpointCorrupted("a stored node cannot be read") from exc
        return parts

    def _object(self, key: bytes) -> Cursor:
        content = self._objects.get(key)
        if content is None:
            raise MissingObject(key)
        return Cursor(*content)

    def _emit(self, out: list[bytes], data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise CheckpointCorrupted("a stored value is larger than its record says")
        out.append(data)

    def _again(self, key: bytes, kind: Any, out: list[bytes], join: Callable[[list[bytes]], None]) -> None:
        """Join an object that has occurred before once more, and copy it from then on."""
        joined = self._joined.get((key, kind))
        if joined is not None:
            self._emit(out, joined)
        else:
            parts: list[bytes] = []
            repeated = self._repeated
            join(parts)
            self._repeated = repeated  # counted below, with all that is inside
            joined = self._joined[key, kind] = b"".join(parts)
            out.append(joined)
        self._count_repeated(len(joined))

    def _count_repeated(self, size: int) -> None:
        self._repeated += size
        if self._repeated > repetition.REPEATS_FREE and self._root is not None:
            root, self._root = self._root, None
            repetition.refuse_repeats(
                repetition.repeats(*root, self._objects.get, self._repeats_max), self._repeats_max
            )

    def _node(self, cursor: Cursor, out: list[bytes]) -> None:
        op = cursor.byte()
        if op == PACKED:
            self._emit(out, cursor.take(cursor.number()))
        elif op == REST:
            self._emit(out, cursor.take(len(cursor.body) - cursor.at))
        elif op in (REF, WHOLE):
            self._reference(cursor.refs(1)[0], out)
        elif op == LIST:
            self._list(cursor, out)
        elif op == MAP:
            self._mapping(cursor, out)
        elif op == PIECES:
            self._pieces(cursor, out)
        else:
            raise CheckpointCorrupted(f"a stored node is of the unknown kind {op}")

    def _reference(self, key: bytes, out: list[bytes]) -> None:
        if key in self._seen:
            self._again(key, REF, out, lambda parts: self._join_reference(key, parts))
            return
        self._seen.add(key)
        self._join_reference(key, out)

    def _join_reference(self, key: bytes, out: list[bytes]) -> None:
        inner = self._object(key)
        self._node(inner, out)
        inner.finish()

    def _claimed(self, size: int) -> int:
        """Allow as many bytes as a node says it has, and return how many were allowed before."""
        left = self._left
        if size > left:
            raise CheckpointCorrupted("a stored value is larger than its record says")
        self._left = size
        return left

    def _claim_met(self, size: int, left: int) -> None:
        """Check that a node has all the bytes that it says it has."""
        if self._left:
            raise CheckpointCorrupted("a stored value is not of the size its node says")
        self._left = left - size

    def _list(self, cursor: Cursor, out: list[bytes]) -> None:
        count = cursor.number()
        size = cursor.number()
        left = self._claimed(size)
        self._emit(out, tokens.array_header(count))
        top = cursor.number() - 1
        if not 0 <= top < LEVELS_MAX:
            raise CheckpointCorrupted("a stored list has an impossible height")
        for level in range(top, 0, -1):
            for key in cursor.refs(cursor.number()):
                self._finished(key, level, out, self._group)
        self._group(cursor, out)
        self._claim_met(size, left)

    def _pieces(self, cursor: Cursor, out: list[bytes]) -> None:
        size, height, count = pieces_numbers(cursor)
        left = self._claimed(size)
        self._emit(out, cursor.take(HEAD_BYTES))
        keys = cursor.refs(count)
        if height == 1:
            self._single_pieces(keys, out)
        else:
            for key in keys:
                self._finished(key, height - 1, out, None)
        self._claim_met(size, left)

    def _single_pieces(self, keys: list[bytes], out: list[bytes]) -> None:
        """Join pieces; usually none of them has occurred before, and all are as a writer makes them."""
        objects = self._objects
        try:
            contents = [objects[key] for key in keys]
        except KeyError as exc:
            raise MissingObject(exc.args[0]) from None
        bodies = [body for children, body in contents if body and not children]
        is_usual = len(bodies) == len(keys) == len(set(keys)) and self._seen.isdisjoint(keys)
        if not is_usual:
            for key in keys:
                self._finished(key, 0, out, None)
            return
        self._seen.update(keys)
        self._left -= sum(map(len, bodies))
        if self._left < 0:
            raise CheckpointCorrupted("a stored value is larger than its record says")
        out.extend(bodies)

    def _mapping(self, cursor: Cursor, out: list[bytes]) -> None:
        """Join a mapping: the values that stand together are cut apart where another stands between them."""
        count = cursor.number()
        size = cursor.number()
        left = self._claimed(size)
        self._emit(out, tokens.map_header(count))
        alone: list[tuple[int, list[bytes]]] = []
        for _ in range(cursor.number()):
            before = cursor.number()
            parts = list[bytes]()
            self._emit(parts, cursor.take(cursor.number()))
            self._node(cursor, parts)
            alone.append((before, parts))
        header = tokens.map_header(max(count - len(alone), 0))
        self._left += len(header)  # it stands before those that stand together, and not in what is joined
        parts = list[bytes]()
        self._node(cursor, parts)
        together = b"".join(parts)
        if not together.startswith(header):
            raise CheckpointCorrupted("a stored mapping is out of shape")
        at = len(header)
        for before, one in alone:
            out.append(together[at : at + before])
            out.extend(one)
            at += before
        if at > len(together):
            raise CheckpointCorrupted("a stored mapping is out of shape")
        out.append(together[at:])
        self._claim_met(size, left)

    def _finished(self, key: bytes, level: int, out: list[bytes], items: _JoinItems | None) -> None:
        """Join a finished group of a list; or a piece (level 0) or a group of pieces of a value, without `items`."""
        if key in self._seen:
            again = (level, items is None)
            self._again(key, again, out, lambda joined: self._join_group(key, level, joined, items))
            return
        self._seen.add(key)
        self._join_group(key, level, out, items)

    def _join_group(self, key: bytes, level: int, out: list[bytes], items: _JoinItems | None) -> None:
        left = self._left
        children, body = content_of(key, self._objects)
        if level == 0 and not children:
            self._emit(out, body)
        elif level == 1 and items is not None and body == _GROUPS_OF_REFS.get(len(children)):
            self._items(hashes(children), out)
        else:
            self._join_other_group(Cursor(children, body), level, out, items)
        if self._left == left:  # no writer makes a group of nothing
            raise CheckpointCorrupted("a stored list has an empty group")

    def _join_other_group(self, group: Cursor, level: int, out: list[bytes], items: _JoinItems | None) -> None:
        """Join a group of groups, or one in which some items stand themselves."""
        kind = group.byte() if level else None
        if level == 1 and kind == GROUP and items is not None:
            items(group, out)
        elif kind == NODES and level == 1 and items is None:
            self._single_pieces(group.refs(len(group.children) // HASH_BYTES), out)
        elif kind == NODES:
            for child in group.refs(len(group.children) // HASH_BYTES):
                self._finished(child, level - 1, out, items)
        else:
            raise CheckpointCorrupted("a stored list is out of shape")
        group.finish()

    def _group(self, cursor: Cursor, out: list[bytes]) -> None:
        while run := cursor.number():
            if run & 1:
                for _ in range(run >> 1):
                    self._node(cursor, out)
            else:
                self._items(cursor.refs(run >> 1), out)

    def _items(self, keys: list[bytes], out: list[bytes]) -> None:
        """Join items that are objects; usually all of them are whole values."""
        objects = self._objects
        try:
            bodies = [objects[key][1] for key in keys]
        except KeyError as exc:
            raise MissingObject(exc.args[0]) from None
        if all([body[:1] == REST_BODY for body in bodies]):  # noqa: C419  # a list is faster here
            size = sum(map(len, bodies)) - len(bodies)
            self._left -= size
            if self._left < 0:
                raise CheckpointCorrupted("a stored value is larger than its record says")
            out.extend([body[1:] for body in bodies])
            known = len(self._seen)
            self._seen.update(keys)
            if len(self._seen) - known < len(keys):  # some occur again: which does not matter here
                self._count_repeated(size)
            return
        for key in keys:
            self._reference(key, out)


_JoinItems = Callable[[Cursor, list[bytes]], None]
