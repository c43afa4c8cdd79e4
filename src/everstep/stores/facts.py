"""What threads are found by: a number for each small entry of a checkpoint's metadata, and for each of its tags. Pure.

A store keeps these numbers per line (a namespace of a thread), not per checkpoint, and takes none back as long as the
line is there. So most commits add none: what the head has is noted already. Looking for a number gives every line that
ever had the entry, and maybe more; who asks looks at what was found (`Wanted.fits`), so that a number too many does no
harm.

An entry that is another one each time would fill the index. After `VALUES_MAX` values of a key, a line has one number
that stands for all of them; after `FACTS_MAX` numbers it has one for everything.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from everstep.config import SnapshotTrigger
from everstep.stores.protocol import Search
from everstep.stores.records import matches, packed_filter
from everstep.values import codec

VALUES_MAX = 8
FACTS_MAX = 64
EVERYTHING = 0
"""The number of a line that has too many to be kept: it must always be looked at."""

# Nobody searches for a longer text by its exact value.
_TEXT_MAX = 512
_MISSING = object()
# LangGraph's own: one is another each time, the other is the same in all threads.
_NEVER = ("step", "source")
_TRIGGERS = frozenset(trigger.value for trigger in SnapshotTrigger)
_KINDS = frozenset((str, int, bool, type(None)))
# The key that all tags are kept under. A filter that asks for metadata of this name just finds more.
_TAGS = ""


class Fact(NamedTuple):
    """An entry that a line can be found by."""

    key: int
    label: int
    """Of the entry: its key and its value."""


def new_facts(record: Described, known: Described | None) -> list[Fact]:
    """Return the facts of a record that `known`, one that is noted already, does not have."""
    found: list[Fact] = []
    before: Mapping[str, Any] = {}
    noted: Sequence[str] = ()
    if known is not None:
        before = known.metadata
        noted = known.tags
    for key, value in record.metadata.items():
        if type(value) not in _KINDS or key in _NEVER:
            continue
        # The types are compared, too: 1 and True are equal, and are different entries.
        old = before.get(key, _MISSING)
        if (type(old) is not type(value) or old != value) and _is_kept(key, value):
            found.append(_fact(key, value))
    # Mostly the checkpoint before has the same tags.
    if record.tags != noted:
        found += [_fact(_TAGS, tag) for tag in kept_tags(record.tags) if tag not in noted]
    return found


def kept_tags(tags: Collection[str]) -> list[str]:
    """Return the tags that are kept: not those that the engine adds to every checkpoint."""
    own = [tag for tag in tags if tag not in _TRIGGERS]
    return [tag for tag in own if _is_kept(_TAGS, tag)]


def is_noted(fact: Fact, labels: Collection[int]) -> bool:
    """Whether a line that has these numbers is found by the fact."""
    return fact.label in labels or EVERYTHING in labels or stands_for(fact) in labels


def stands_for(fact: Fact) -> int:
    """Return the number that a line has instead of all values of this fact's key."""
    return _of_key(fact.key)


@functools.lru_cache(1024)  # there are few keys, and each line asks for them
def _of_key(key: int) -> int:
    return _number(b"any", key.to_bytes(8, "big", signed=True))


def kept(held: Mapping[int, Collection[int]], new: Sequence[Fact]) -> dict[int, set[int]]:
    """Return the numbers of a line by key after these were added, within the bounds; `held` is not changed."""
    facts = {key: set(labels) for key, labels in held.items()}
    if EVERYTHING in facts:
        return facts
    for fact in new:
        labels = facts.setdefault(fact.key, set())
        if labels and stands_for(fact) in labels:
            continue
        labels.add(fact.label)
        if len(labels) > VALUES_MAX:
            facts[fact.key] = {stands_for(fact)}
    return {EVERYTHING: {EVERYTHING}} if sum(map(len, facts.values())) > FACTS_MAX else facts


class Described(Protocol):
    """What has metadata and tags."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tags(self) -> Sequence[str]: ...


class Wanted:
    """What a search asks of the checkpoint that a thread is listed by."""

    def __init__(self, filter: Mapping[str, Any], tags: Collection[str] = ()) -> None:  # noqa: A002  # its name everywhere
        self._filter = packed_filter(filter)
        self._tags = frozenset(tags)
        facts = [_fact(key, value) for key, value in filter.items() if _is_kept(key, value)]
        facts += [_fact(_TAGS, tag) for tag in kept_tags(self._tags)]
        self.labels: list[tuple[int, int, int]] = [(fact.label, stands_for(fact), EVERYTHING) for fact in facts]
        """For each entry that is kept: a line that has it has one of these numbers."""

    @classmethod
    def of(cls, search: Search) -> Wanted:
        """Return what a search asks for."""
        return cls(search.filter, search.tags)

    def __bool__(self) -> bool:
        return bool(self._filter or self._tags)

    def fits(self, record: Described) -> bool:
        """Whether the record has every tag, and every entry with exactly that value."""
        return self._tags.issubset(record.tags) and matches(record.metadata, self._filter)


def prefix_end(prefix: str) -> str | None:
    """Return the least text that is greater than all that begin with `prefix`, by code points; None: there is none."""
    while prefix:
        last = ord(prefix[-1]) + 1
        # Surrogates are no characters, and no text can hold one.
        if last == 0xD800:
            last = 0xE000
        if last <= 0x10FFFF:
            return prefix[:-1] + chr(last)
        prefix = prefix[:-1]
    return None


def _is_kept(key: str, value: object) -> bool:
    """Whether an entry is kept: it is if people search by values of its type, and it is short."""
    kind = type(value)
    if kind is str and len(value) > _TEXT_MAX:  # type: ignore[arg-type]
        return False
    return kind in _KINDS and key not in _NEVER


# The same few entries come with every commit. Typed, since 1 and True are different entries.
@functools.lru_cache(4096, typed=True)
def _fact(key: str, value: object) -> Fact:
    packed = codec.pack([key, value], "metadata")
    return Fact(_number(b"key", codec.pack(key, "metadata")), _number(b"entry", packed))


def _number(kind: bytes, data: bytes) -> int:
    """Return a number of 63 bits that is not 0."""
    return 1 + (int.from_bytes(hashlib.sha256(kind + b"\0" + data).digest()[:8], "big") >> 2)
