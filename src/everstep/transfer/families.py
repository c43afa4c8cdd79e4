"""A family on its way from one place to another: what it is made of, and how it is read from a store.

A family travels in passes. A pass is the family as of one moment, without values (`Family`), and then its checkpoints
with the objects they need, a group at a time: each group is whole together with those before it. A store that is
written to meanwhile may have lost a head by the time its group is read: the pass is then not finished, and another one
follows.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from everstep.errors import CheckpointCorrupted, InvalidInput, StoreUnavailable
from everstep.repository.repository import verified
from everstep.stores.protocol import Key, Object, Place, Query, RawThread, Store, Stored, Thread
from everstep.transfer import renumber
from everstep.values.tree import hashes

T = TypeVar("T")

# How much goes in one part. Each part is all or nothing, and small enough for one transaction of any store.
PART_CHECKPOINTS = 500
PART_BYTES = 8 << 20
PART_THREADS = 100
_PAGE = 1000
FETCHED_MAX = 2000  # objects that are asked for at once
_PASSES_MAX = 20
_ROUNDS_MAX = 20  # through the list of threads


class Entry(NamedTuple):
    """A checkpoint as a list shows it, in short."""

    key: Key
    seq: int
    segment: int
    digest: bytes
    added_bytes: int


class Family(NamedTuple):
    """A family: its threads, each as of one moment, and the checkpoints they had then."""

    name: str
    identity: bytes
    raws: Mapping[str, RawThread]
    ancestry: Mapping[int, Sequence[Place]]
    entries: Sequence[Entry]
    """In the order of their numbers."""


class Group(NamedTuple):
    """Checkpoints, and the objects at or below them that did not come before. Without checkpoints: those of threads."""

    checkpoints: Sequence[Stored]
    objects: Sequence[Object]
    packed: Mapping[Key, tuple[bytes, bytes]] = MappingProxyType({})
    """What `records.pack_record` gives for checkpoints, if the sender has it at hand."""


class Receiver(Protocol):
    """Who a family goes to, as its sender sees it."""

    def wants(self, entry: Entry) -> bool:
        """Whether a checkpoint must be sent."""

    async def held(self, asked: Sequence[bytes]) -> list[Object]:
        """Return those of these objects that need not be sent, since they are there."""


class Pass:
    """One pass of a family. Whoever takes it says in the end whether it was enough."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.has_moved_on = False
        """What threads need besides their checkpoints was gone before it could be read."""
        self.is_finished = False

    def groups(self, receiver: Receiver) -> AsyncGenerator[Group, None]:
        """Yield all that the receiver wants; those that are not there any more are left out."""
        raise NotImplementedError


class Source(Protocol):
    """Where families come from."""

    threads_total: int
    checkpoints_total: int
    """How many there are to come, as far as that is known."""

    def passes(self) -> AsyncGenerator[Pass, None]:
        """Yield passes of families, one after the other."""


class Lost(Exception):
    """An object is not there. Within this package only."""


# -- a store -----------------------------------------------------------------------------------------------------------


class StoreSource:
    """The families of a store."""

    def __init__(self, store: Store, names: Sequence[str] | None) -> None:
        """`names` are threads whose families are wanted; None: all."""
        self._store = store
        self._names = names
        self.threads_total = 0
        self.checkpoints_total = 0

    async def passes(self) -> AsyncGenerator[StorePass, None]:
        if self._names is None:
            families = await self._all_families()
            counted: Iterable[str | None] = [None]  # all threads at once
        else:
            families = await self._families_of(self._names)
            counted = chain.from_iterable(families)
        self.threads_total = sum(map(len, families))
        for thread_id in counted:
            self.checkpoints_total += await self._count(Query(thread_id=thread_id, namespace=None, hidden="also"))
        for names in families:
            sent: set[bytes] = set()
            for _ in range(_PASSES_MAX):
                family = await self._read(names)
                if family is None:
                    break
                coming = self._make_pass(family, sent)
                yield coming
                if coming.is_finished:
                    break
            else:
                raise StoreUnavailable(
                    f"the family of thread {names[0]!r} changes faster than it can be copied; try again"
                )

    def _make_pass(self, family: Family, sent: set[bytes]) -> StorePass:
        return StorePass(self._store, family, sent)

    async def _all_families(self) -> list[list[str]]:
        """Return the names of all threads by family, those that were active last at the end.

        A thread that becomes active while we turn the pages changes places, and may be missed. So the list is read
        again until nothing new turns up.
        """
        found: dict[str, dict[str, None]] = {}
        seen: set[str] = set()
        for _ in range(_ROUNDS_MAX):
            before = len(seen)
            offset = 0
            while True:
                page, size = await self._list_threads(offset)
                for name, family in page:
                    seen.add(name)
                    found.setdefault(family, {})[name] = None
                if size == 0:
                    break
                offset += size
            if len(seen) == before:
                break
        return [list(names)[::-1] for names in reversed(found.values())]

    async def _list_threads(self, offset: int) -> tuple[list[tuple[str, str]], int]:
        """Return threads with their families, and how many places of the list that covers; 0: it ends here."""
        page = await self._store.list_threads(_PAGE, offset, headless=True)
        return [(head.record.key.thread_id, head.family) for head in page], len(page)

    async def _families_of(self, names: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = []
        seen: set[str] = set()
        for name in names:
            if name in seen:
                continue
            raw = await self._raw(name, family_threads=True)
            if raw is None:
                self._refuse_missing(name)
                continue
            found.append(list(raw.family_threads))
            seen.update(raw.family_threads)
        return found

    def _refuse_missing(self, name: str) -> None:
        raise InvalidInput(f"there is no thread {name!r} in the source")

    async def _read(self, names: Sequence[str]) -> Family | None:
        """Return the family as it is now; None if it is gone."""
        raws = await self._read_threads(names)
        found: list[Entry] = []
        for name, raw in raws.items():
            for entry in await self._entries(name):
                # What came later belongs to a later moment of the thread.
                line = raw.lines.get(entry.key.namespace)
                if line is not None and entry.seq <= line.newest:
                    found.append(entry)
        found.sort(key=lambda entry: entry.seq)
        for raw in raws.values():
            thread = await self._thread(raw.thread_id)
            if thread is not None and thread.family == raw.family:
                return Family(raw.family, raw.identity, raws, thread.ancestry, found)
        return None

    # Single reads, for a source that goes on where one of them fails.

    async def _raw(self, name: str, *, family_threads: bool) -> RawThread | None:
        return await self._store.raw(name, family_threads=family_threads)

    async def _entries(self, name: str) -> list[Entry]:
        return await entries(self._store, name)

    async def _thread(self, name: str) -> Thread | None:
        return await self._store.thread(name, ancestry=True)

    async def _count(self, query: Query) -> int:
        return await self._store.count(query)

    async def _read_threads(self, names: Sequence[str]) -> dict[str, RawThread]:
        """Return these threads of one family, and those that have come to it meanwhile."""
        raws: dict[str, RawThread] = {}
        family: str | None = None
        pending = dict.fromkeys(names)
        while pending:
            name = next(iter(pending))
            del pending[name]
            raw = await self._raw(name, family_threads=not raws)
            # It was deleted meanwhile, and perhaps a new thread of the same name was made.
            if raw is None or family not in (None, raw.family):
                continue
            family = raw.family
            raws[name] = raw
            pending |= dict.fromkeys(other for other in raw.family_threads if other not in raws)
        return raws


class StorePass(Pass):
    """One pass of a family that a store has."""

    def __init__(self, store: Store, family: Family, sent: set[bytes]) -> None:
        """`sent` are the objects that the receiver has, with all below them, as far as we know."""
        super().__init__(family)
        self._store = store
        self._sent = sent

    def skip(self, objects: Iterable[bytes]) -> None:
        """Leave these objects out, and all below them, in this pass and those that follow it."""
        self._sent.update(objects)

    async def groups(self, receiver: Receiver) -> AsyncGenerator[Group, None]:
        wanted = (entry for entry in self.family.entries if receiver.wants(entry))
        for group in grouped(wanted):
            async with aclosing(self._load(group, receiver)) as loaded:
                async for part in loaded:
                    yield part
        for batch in pieces(list(self.family.raws.values()), PART_THREADS):
            objects = await self._load_threads(batch, receiver)
            if objects is None:
                self.has_moved_on = True
                return
            if objects:
                yield Group((), objects)

    async def _load(self, group: Sequence[Entry], receiver: Receiver) -> AsyncGenerator[Group, None]:
        """Yield checkpoints and the objects that the receiver lacks: in one part, or more."""
        numbers = {entry.key: entry.seq for entry in group}
        found: list[Stored] = []
        roots: list[bytes] = []
        for loaded in await self._store.read_many(list(numbers)):
            stored = loaded.stored
            # One that was replaced meanwhile has another number, and belongs to a later moment.
            if stored.seq == numbers[stored.record.key]:
                found.append(stored)
                roots += hashes(stored.record.children)
        if not found:
            return
        try:
            objects = await self._lacking(roots, receiver)
        except Lost:
            async with aclosing(self._load_one_by_one(group, found, receiver)) as parts:
                async for part in parts:
                    yield part
            return
        yield Group(found, objects)

    async def _load_one_by_one(
        self, group: Sequence[Entry], found: Sequence[Stored], receiver: Receiver
    ) -> AsyncGenerator[Group, None]:
        """Load a group of which an object is missing: its checkpoint was deleted meanwhile, or it is damaged."""
        if len(group) > 1:
            for entry in group:
                async with aclosing(self._load([entry], receiver)) as parts:
                    async for part in parts:
                        yield part
            return
        key = group[0].key
        loaded = await self._store.read(*key)
        # If it is still there as it was, nobody has deleted anything: the source is damaged.
        if loaded is not None and loaded.stored.digest == found[0].digest:
            raise differs("a part of its values is missing in the source", key)

    async def _load_threads(self, batch: Sequence[RawThread], receiver: Receiver) -> list[Object] | None:
        """Return the objects that threads need besides their checkpoints; None: the source has moved on."""
        try:
            return await self._lacking(chain.from_iterable(map(roots_of, batch)), receiver)
        except Lost:
            # Gone because somebody has changed a thread meanwhile? Then another pass will do.
            for raw in batch:
                found = await self._store.raw(raw.thread_id)
                if found is None or found != raw._replace(family_threads=found.family_threads):
                    return None
            raise CheckpointCorrupted(
                "a part of a pending write, or of what two threads have in common, is missing in the source",
                thread_id=batch[0].thread_id,
            ) from None

    async def _lacking(self, roots: Iterable[bytes], receiver: Receiver) -> list[Object]:
        """Return the objects at or below `roots` that the receiver lacks."""
        lacking: list[Object] = []

        async def fetch(asked: Sequence[bytes]) -> list[Object]:
            held = await receiver.held(asked)
            known = {obj.hash for obj in held}
            rest = [key for key in asked if key not in known]
            if not rest:
                return held
            objects = await fetch_verified(self._store, self.family.name, rest)
            lacking.extend(objects)
            return held + objects

        await walk(roots, self._sent, fetch)
        return lacking


async def fetch_verified(store: Store, family: str, asked: Sequence[bytes]) -> list[Object]:
    """Return the objects of a family with these hashes; CheckpointCorrupted if one does not match its hash."""
    objects = await store.fetch(family, asked, below=False)
    verified(objects)
    return objects


async def lacking(objects: Sequence[Object], receiver: Receiver) -> list[Object]:
    """Return those of some objects that the receiver has not."""
    found: list[Object] = []
    for batch in pieces(objects, FETCHED_MAX):
        held = {obj.hash for obj in await receiver.held([obj.hash for obj in batch])}
        found += [obj for obj in batch if obj.hash not in held]
    return found


async def listed(store: Store, thread_id: str) -> AsyncIterator[Stored]:
    """Yield every checkpoint of a thread, hidden or not, the oldest first."""
    query = Query(thread_id=thread_id, namespace=None, hidden="also", order="oldest", limit=_PAGE)
    while page := await store.list_checkpoints(query):
        for stored in page:
            yield stored
        query = replace(query, after_seq=page[-1].seq)


async def entries(store: Store, thread_id: str) -> list[Entry]:
    """Return every checkpoint of a thread, hidden or not, the oldest first."""
    return [entry_of(stored) async for stored in listed(store, thread_id)]


async def walk(
    roots: Iterable[bytes], seen: set[bytes], fetch: Callable[[Sequence[bytes]], Awaitable[list[Object]]]
) -> None:
    """Fetch every object at or below `roots` that was not seen, and note them as seen; Lost if one is missing."""
    visited: set[bytes] = set()
    level = [key for key in dict.fromkeys(roots) if key not in seen]
    while level:
        visited.update(level)
        below: dict[bytes, None] = {}
        for asked in pieces(level, FETCHED_MAX):
            objects = await fetch(asked)
            if len(objects) < len(asked):
                raise Lost
            for obj in objects:
                if obj.children:  # most have none
                    below.update(dict.fromkeys(hashes(obj.children)))
        level = [key for key in below if key not in seen and key not in visited]
    seen |= visited


# -- what is told of a family, pure ------------------------------------------------------------------------------------


def entry_of(stored: Stored) -> Entry:
    """Return a checkpoint in short."""
    return Entry(stored.record.key, stored.seq, stored.segment, stored.digest, stored.added_bytes)


def roots_of(raw: RawThread) -> list[bytes]:
    """Return the hashes that a thread needs besides its checkpoints."""
    return hashes(b"".join(raw.roots()))


def family_spans(family: Family) -> dict[renumber.Kind, tuple[int, int]]:
    """Return the lowest and the highest number of each kind that a family uses."""
    used: list[int] = []
    for entry in family.entries:
        used += (entry.seq, entry.segment)
    return renumber.spans(family.raws.values(), family.ancestry, used)


def has_all_heads(threads: Iterable[RawThread], stored: Collection[Key]) -> bool:
    """Whether the head of each namespace is among the checkpoints that are stored."""
    for raw in threads:
        for namespace, line in raw.lines.items():
            if line.head is not None and Key(raw.thread_id, namespace, line.head) not in stored:
                return False
    return True


def pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items in pieces of this size; the last may be shorter."""
    return (items[at : at + size] for at in range(0, len(items), size))


def grouped(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield entries in groups for which one part is about large enough."""
    group = list[Entry]()
    size = 0
    for entry in entries:
        group.append(entry)
        size += entry.added_bytes
        if len(group) >= PART_CHECKPOINTS or size >= PART_BYTES:
            yield group
            group = []
            size = 0
    if group:
        yield group


def differs(reason: str, key: Key) -> CheckpointCorrupted:
    """Return what to raise about a checkpoint, or (with an empty id) about a thread."""
    return CheckpointCorrupted(reason, thread_id=key.thread_id, checkpoint_id=key.checkpoint_id or None)
