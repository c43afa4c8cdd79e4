"""What changed from one checkpoint to the next, as paths. What is the same is never opened."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.history.adapter import adapter_of, is_own
from everstep.history.diff import compare
from everstep.history.merge_base import root_of_nodes, root_to_show
from everstep.reports import Difference
from everstep.repository.around_damage import readable
from everstep.repository.repository import Repository
from everstep.stores.protocol import Key, Root, Stored
from everstep.values import codec, tree
from everstep.values.walk import Need, together
from everstep.views.paths import meet, of_filter, parsed
from everstep.views.reading import CODEC
from everstep.views.texts import one_line

_NAMED_MAX = 3
_KEYS_MAX = 50
_EMPTY = root_of_nodes([tree.EMPTY_LIST, tree.EMPTY_MAP, tree.EMPTY_MAP])
# Paths as `history.diff` writes them: a name after a dot, or a quoted one in brackets.
_TOP = re.compile(r"(state|tools_result)(?:\.([^.\[]+)|\[('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]]*)\])")
_MESSAGE = re.compile(r"messages\[('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]]*)\]")


class Changed(NamedTuple):
    """What changed in a checkpoint against its first parent."""

    keys: tuple[str, ...]
    """The paths, at most so many; those of messages left out."""
    added: int
    edited: int
    removed: int
    has_results: bool

    def as_json(self) -> dict[str, Any]:
        """Return what a row shows of it."""
        return {
            "text": self.text,
            "keys": list(self.keys[:_KEYS_MAX]),
            "messages": {"added": self.added, "edited": self.edited, "removed": self.removed},
        }

    @property
    def text(self) -> str:
        """What changed in a few words: `hotel, sunday, +2 messages`."""
        names = list(dict.fromkeys(name for name in map(_top_name, self.keys) if name))
        parts = names[:_NAMED_MAX]
        if len(names) > _NAMED_MAX:
            parts.append(f"{len(names) - _NAMED_MAX} more")
        if self.has_results:
            parts.append("tools_result")
        if self.added:
            parts.append(f"+{_messages(self.added)}")
        if self.edited:
            parts.append(f"{_messages(self.edited)} edited")
        if self.removed:
            parts.append(f"-{_messages(self.removed)}")
        return ", ".join(parts)

    def touches(self, path: str) -> bool:
        """Whether something at a path, below it or above it changed: `/plan`, `/plan/*`, `state.plan.*`, `messages`."""
        wanted = of_filter(path)
        if wanted[:1] == ["messages"]:
            return bool(self.added or self.edited or self.removed)
        return any(meet(way_of(key), wanted) for key in self.keys)


async def changed_since_parent(repository: Repository, stored: Sequence[Stored]) -> dict[Key, Changed]:
    """Return what changed in each checkpoint, which must have its root, or is read again."""
    whole = await _with_roots(repository, stored)
    parents = await first_parents(repository, whole)
    found: dict[Key, Changed] = {}
    groups: dict[tuple[str, str], list[Stored]] = {}
    for each in whole:
        groups.setdefault((each.family, each.record.kind), []).append(each)
    for (family, kind), members in groups.items():
        reader = reader_of(kind)
        roots = [(_parent_root(each, parents), root_to_show(each.record)) for each in members]
        for each, changes in zip(members, await _compare_all(repository, roots, reader, family), strict=True):
            found[each.record.key] = _changed(_seen_by_people(kind, changes))
    return found


async def _compare_all(
    repository: Repository, roots: Sequence[tuple[Root, Root]], reader: codec.Codec, family: str
) -> list[list[Difference]]:
    """Return what differs between the two of each pair; nothing where one of them cannot be read."""
    try:
        needs = [_compared(before, after, reader) for before, after in roots]
        return await repository.walk(together(needs), [family])
    except CheckpointCorrupted:
        if len(roots) == 1:
            # Whoever opens that one is told.
            return [[]]
    # One of them needs an object that is damaged, and has spoiled the answer about all.
    found: list[list[Difference]] = []
    for pair in roots:
        found += await _compare_all(repository, [pair], reader, family)
    return found


def _compared(before: Root, after: Root, reader: codec.Codec) -> Need[list[Difference]]:
    try:
        return (yield from compare(before, after, reader))
    except CheckpointCorrupted:
        # Whoever opens that one is told.
        return []


async def differences(repository: Repository, before: Stored | None, after: Stored) -> list[Difference]:
    """Return what changed from one checkpoint to another, with the values as plain data; None: from nothing."""
    kind = after.record.kind
    if is_own(kind) and before is not None:
        kind = before.record.kind
    root = _EMPTY
    families = [after.family]
    if before is not None:
        root = root_to_show(before.record)
        families.insert(0, before.family)
    changes = await repository.walk(compare(root, root_to_show(after.record), reader_of(kind)), families)
    adapter = adapter_of(kind)
    if adapter is not None and before is not None:
        return await adapter.shown(repository, changes, before, after)
    return _seen_by_people(kind, changes)


async def differences_of_roots(
    repository: Repository, before: Stored, after: Root | None, objects: Mapping[bytes, tree.Content]
) -> list[Difference]:
    """Return what changes from a checkpoint to values that are not stored; None: to nothing, and nothing changes."""
    if after is None:
        return []
    kind = before.record.kind
    need = compare(root_to_show(before.record), root_to_show(before.record.with_root(after)), reader_of(kind))
    return _seen_by_people(kind, await repository.walk(need, [before.family], objects))


def _seen_by_people(kind: str, changes: Sequence[Difference]) -> list[Difference]:
    """Leave out what only the framework is interested in."""
    if is_own(kind):
        return list(changes)
    from everstep.langgraph.display import is_internal_path  # loaded when such a thread is met

    return [change for change in changes if not is_internal_path(change.path)]


def reader_of(kind: str) -> codec.Codec:
    """Return what reads the values of checkpoints of a kind."""
    adapter = adapter_of(kind)
    if adapter is None:
        return CODEC
    return adapter.codec


async def _with_roots(repository: Repository, stored: Sequence[Stored]) -> list[Stored]:
    """Return checkpoints with their roots: those that were listed have none."""
    bare = [each.record.key for each in stored if not each.record.body]
    loaded = (await readable(repository.store, bare)).loaded
    found: list[Stored] = []
    for each in stored:
        if each.record.key in loaded:
            each = loaded[each.record.key].stored
        # Otherwise it was removed since it was listed, or cannot be read.
        if each.record.body:
            found.append(each)
    return found


async def first_parents(repository: Repository, stored: Sequence[Stored]) -> Mapping[Key, Stored]:
    """Return these checkpoints and their first parents, as far as they are stored."""
    known = {each.record.key: each for each in stored}
    wanted: set[Key] = set()
    for each in stored:
        wanted.update(each.record.parents[:1])
    there = (await readable(repository.store, sorted(wanted - known.keys()))).loaded
    return known | {key: loaded.stored for key, loaded in there.items()}


def _parent_root(stored: Stored, parents: Mapping[Key, Stored]) -> Root:
    """Return the values of the first parent: nothing if it has none, its own ones if retention took it."""
    if not stored.record.parents:
        return _EMPTY
    before = parents.get(stored.record.parents[0])
    if before is None or is_own(before.record.kind) != is_own(stored.record.kind):
        # Compared with itself, so that nothing is told to have changed.
        return root_to_show(stored.record)
    return root_to_show(before.record)


def _changed(changes: Sequence[Difference]) -> Changed:
    keys: list[str] = []
    by_message: dict[str, str] = {}
    has_results = False
    for change in changes:
        if change.path.startswith("messages"):
            name = _MESSAGE.match(change.path)
            if name is None:
                by_message.setdefault(change.path, "changed")
            elif name.end() == len(change.path):
                by_message.setdefault(name[0], change.kind)
            else:  # something inside the message
                by_message.setdefault(name[0], "changed")
        elif change.path.startswith("tools_result"):
            has_results = True
            keys.append(change.path)
        elif change.path != "next_node":
            keys.append(change.path)
    kinds = list(by_message.values())
    return Changed(tuple(keys), kinds.count("added"), kinds.count("changed"), kinds.count("removed"), has_results)


def _top_name(path: str) -> str | None:
    """Return the key of the state that a path leads into."""
    found = _TOP.match(path)
    if found is None or found[1] != "state":
        return None
    return one_line((found[2] or found[3]).strip("'\""), 40)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def way_of(path: str) -> list[str]:
    """Return the parts of the path of a difference."""
    try:
        return parsed(path)
    except InvalidInput:  # a key so long that the path has only its beginning
        return [path]
