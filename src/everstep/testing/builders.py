"""Objects, records and changes for tests of a store, and short ways to look at what it holds."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import (
    ANY,
    AnyHead,
    BaseRef,
    Change,
    Draft,
    Hidden,
    Hit,
    Key,
    Loaded,
    Move,
    Object,
    Operation,
    Part,
    Pin,
    Query,
    RawThread,
    Record,
    Root,
    Search,
    SharedState,
    Store,
    Stored,
    Thread,
    Write,
)
from everstep.transfer import renumber
from everstep.transfer.families import roots_of
from everstep.values import tree
from everstep.values.compress import squeeze

T = TypeVar("T")
Reopen = Callable[[], Awaitable[Store]]

# What SQL, file systems, patterns, Redis keys and encodings each treat in a way of their own.
ODD_NAMES = (
    "plain", "with space", "new\nline", "nul\0inside", "../up", "/abs", "quote'\"", "%_*?[a-z]", "{tag}", "a:b",
    "ünï", "漢字", "🙂", "x" * 1000,
)  # fmt: skip


def make_object(body: bytes, *children: Object) -> Object:
    """Return an object as a store takes it."""
    below = b"".join(hashes_of(children))
    return Object(tree.address(below, body), below, squeeze(body))


def make_leaves(count: int, times: int = 1) -> list[Object]:
    """Return so many objects with nothing below them, each with a text that stands there so many times."""
    return [make_object(b"leaf %d" % n * times) for n in range(count)]


def make_record(
    checkpoint_id: str = "c1",
    thread_id: str = "t",
    namespace: str = "",
    *,
    step: int = 1,
    parents: Sequence[str] = (),
    roots: Sequence[Object] = (),
    body: bytes = b"body",
    created_at: str = "2026-01-01T00:00:00.000000+00:00",
    metadata: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
) -> Record:
    """Return a record with what the test is about."""
    return Record(
        key=Key(thread_id, namespace, checkpoint_id),
        step=step,
        parents=tuple(Key(thread_id, namespace, parent) for parent in parents),
        created_at=created_at,
        children=b"".join(hashes_of(roots)),
        body=body,
        sizes=(len(body),),
        tags=tuple(tags),
        metadata=dict(metadata or {}),
    )


def put(record: Record, *objects: Object, base: BaseRef | None = None, **change: Any) -> Change:
    """Return the change that commits `record` as it is."""
    draft = Draft(record, objects, (base,) if base is not None else ())
    return Change(thread_id=record.key.thread_id, namespace=record.key.namespace, build=lambda _: draft, **change)


def follow(thread_id: str, name: str, expect: str | AnyHead | None = ANY) -> Change:
    """Return the change that adds the next step to a thread, whatever its head is then."""

    def build(head: Stored | None) -> Draft:
        step = head.record.step + 1 if head is not None else 1
        parents = [head.record.key.checkpoint_id] if head is not None else []
        return Draft(make_record(f"{name}-{step}", thread_id, step=step, parents=parents), ())

    return Change(thread_id=thread_id, expect=expect, build=build)


def ids(found: Sequence[Stored]) -> list[str]:
    """Return the checkpoint ids in order."""
    return [stored.record.key.checkpoint_id for stored in found]


def keys_of(found: Iterable[Stored]) -> list[Key]:
    """Return the full names in order."""
    return [stored.record.key for stored in found]


def seqs_of(found: Iterable[Stored]) -> list[int]:
    """Return the numbers in order."""
    return [stored.seq for stored in found]


def segments_of(found: Iterable[Stored]) -> list[int]:
    """Return the numbers of the segments in order."""
    return [stored.segment for stored in found]


def pinned_of(found: Iterable[Stored]) -> list[bool]:
    """Return in order whether they are pinned."""
    return [stored.pinned for stored in found]


def thread_ids_of(found: Iterable[Stored]) -> list[str]:
    """Return the names of the threads in order."""
    return [stored.record.key.thread_id for stored in found]


def kinds_of(log: Iterable[Operation]) -> list[str]:
    """Return what was done, in order."""
    return [operation.kind for operation in log]


def hashes_of(objects: Iterable[Object]) -> list[bytes]:
    """Return the hashes in order."""
    return [obj.hash for obj in objects]


def shared_states_of(thread: Thread | RawThread) -> dict[str, list[SharedState]]:
    """Return what a thread has in common with others, ready to be compared."""
    return {name: list(held) for name, held in thread.shared_states.items()}


async def required(looking: Awaitable[T | None]) -> T:
    """Return what a store gives, which must be there."""
    found = await looking
    assert found is not None
    return found


async def committed(store: Store, change: Change) -> Stored:
    """Commit a change that makes a checkpoint, and return it."""
    return await required(store.commit(change))


async def commit_steps(store: Store, count: int, thread_id: str = "t") -> list[Stored]:
    """Add so many steps to a thread, and return them."""
    return [await committed(store, follow(thread_id, "c")) for _ in range(count)]


async def commit_leaves(store: Store, leaves: Sequence[Object]) -> list[Key]:
    """Add a step to a thread for each of these objects, which refers to it, and return the names of the steps."""
    records = [make_record(f"c{n}", step=n, roots=[leaf]) for n, leaf in enumerate(leaves)]
    for record, leaf in zip(records, leaves, strict=True):
        await store.commit(put(record, leaf))
    return [record.key for record in records]


async def head_id(store: Store, thread_id: str = "t", namespace: str = "") -> str | None:
    """Return the id of the head."""
    loaded = await store.read(thread_id, namespace)
    return loaded.stored.record.key.checkpoint_id if loaded is not None else None


async def stored_objects(store: Store, family: str, *roots: Object) -> set[bytes]:
    """Return the hashes that the store holds at or below these."""
    return set(hashes_of(await store.fetch(family, hashes_of(roots))))


async def elsewhere() -> MemoryStore:
    """Return a store with a family that has a bit of everything, to be taken over by the one under test."""
    store = MemoryStore()
    await fill(store)
    return store


async def fill(store: Store) -> None:
    """Put a family into an empty store that has a bit of everything."""
    leaf = make_object(b"leaf")
    top = make_object(b"top", make_object(b"leaf"))
    first = await committed(store, put(make_record("c-1", roots=[top]), leaf, top))
    stored = await commit_steps(store, 3)
    third, last = stored[1:]
    await store.commit(put(make_record("s1", "t", "sub")))
    common = SharedState(first.place, Root(leaf.hash, b"common", (6,)))
    branch = make_record("b1", "branch", step=0)._replace(parents=(first.record.key,))
    log = Operation("branch", {"to": "branch"})
    await store.commit(put(branch, origin=first.record.key, shared_states={"t": common}, log=log, log_thread="t"))
    writes = [Write("task", n, "ch", leaf.hash, b"w", 1, "path") for n in (0, 1, -1)]
    await store.put_writes(Key("t", "", "c-3"), writes[:2], [])
    # Writes may come before their checkpoint does, so a thread that moves must take those along too.
    await store.put_writes(Key("t", "", "not stored"), writes[2:], [])
    loaded = await required(store.read("t", "", "c-3", writes=True))
    await store.commit(
        Change(
            thread_id="t",
            moves=[Move("", "c-3")],
            hide=[Hidden("", third.seq, last.seq), Hidden("", 0, loaded.writes[0].seq, None, "c-3")],
            pins=[Pin(first.record.key, True)],
            log=Operation("rewind", {"to": "c-3"}),
        )
    )


async def take_over(store: Store, source: Store, *names: str) -> tuple[list[Part], Callable[[int], int]]:
    """Let `store` adopt threads of `source`; return the parts, and what makes the source's numbers the store's."""
    thread = await required(source.thread(names[0], ancestry=True))
    # The numbers are reserved before anything else comes, as an import does it in its first transaction.
    base = await store.adopt(Part(names[0], b"begun", reserve=1000))
    numbers = renumber.Numbers([renumber.Stretch(base, 1000, (0, 0, 0))])
    raws: list[RawThread] = []
    roots: list[bytes] = []
    checkpoints: list[Stored] = []
    objects: list[Object] = []
    for name in names:
        raw = await source.raw(name)
        if raw is not None:
            raws.append(renumber.thread(raw, numbers)._replace(note=b"note"))
            roots += roots_of(raw)
        for listed in await source.list_checkpoints(Query(thread_id=name, namespace=None, hidden="also")):
            loaded = await required(source.read(*listed.record.key, objects=True))
            checkpoints.append(renumber.stored(loaded.stored, numbers))
            objects += loaded.objects
    parts = [
        Part(
            names[0],
            objects=[*await source.fetch(thread.family, roots), *objects],
            checkpoints=checkpoints,
            segments=renumber.segments(thread.ancestry, numbers),
        ),
        # The threads come last, since a thread must not be seen before all of its checkpoints are there.
        Part(names[0], threads=raws),
    ]
    for part in parts:
        await store.adopt(part)
    return parts, lambda number: numbers(renumber.CHECKPOINT, number)


async def new_thread(source: Store, name: str) -> Part:
    """Put a thread with two namespaces, two segments and pending writes; return all of it, for `adopt_new`."""
    top = make_object(b"top", make_object(b"leaf"))
    await source.commit(put(make_record("c-1", name, roots=[top]), make_object(b"leaf"), top))
    for _ in range(2):
        await source.commit(follow(name, "c"))
    # What follows a head that was moved back begins the second segment.
    await source.commit(Change(thread_id=name, moves=[Move("", "c-1")]))
    second = make_record("d-2", name, step=2)._replace(parents=(Key(name, "", "c-1"),), metadata={"of": name})
    await source.commit(put(second))
    await source.commit(put(make_record("s1", name, "sub")))
    for place in (Key(name, "", "d-2"), Key(name, "early", "not stored")):
        await source.put_writes(place, [Write("task", 0, "ch", b"", b"w", 1, "path")], [])
    raw = await required(source.raw(name))
    thread = await required(source.thread(name, ancestry=True))
    listed = await source.list_checkpoints(Query(thread_id=name, namespace=None))
    read = await source.read_many(keys_of(listed[::-1]))
    return Part(
        name,
        reserve=max(seqs_of(listed) + [write.seq for _, write in raw.writes]),
        objects=await source.fetch(thread.family, [top.hash]),
        checkpoints=[loaded.stored for loaded in read],
        segments=thread.ancestry,
        threads=[raw],
    )


async def written_ids(store: Store, thread_id: str = "t") -> list[str]:
    """Return the ids that have pending writes, hidden ones included, whether they are stored or not."""
    raw = await store.raw(thread_id)
    return sorted({key.checkpoint_id for key, _ in raw.writes}) if raw is not None else []


async def with_protected(store: Store, thread_id: str = "t") -> list[Stored]:
    """Put five checkpoints: pinned, the origin of a branch, two plain ones and a head; and early writes.

    Each has a pending write that can be seen and one that is hidden.
    """
    stored = await commit_steps(store, 5, thread_id)
    keys = keys_of(stored)
    await store.commit(Change(thread_id=thread_id, pins=[Pin(keys[0], True)]))
    await store.commit(put(make_record("b", f"{thread_id} branch", step=0), origin=keys[1]))
    for key in (*keys, keys[0]._replace(checkpoint_id="early")):
        await store.put_writes(key, [Write("old", 0, "ch", b"", b"", 0)], [])
        raw = await required(store.raw(thread_id))
        hidden = Hidden("", 0, raw.writes[-1][1].seq, None, key.checkpoint_id)
        await store.commit(Change(thread_id=thread_id, hide=[hidden], log=Operation("hide", {})))
        await store.put_writes(key, [Write("new", 0, "ch", b"", b"", 0)], [])
    return stored


async def raw_thread(store: Store, thread_id: str = "t") -> RawThread:
    """Return a thread that must be there, ready to be compared."""
    raw = await required(store.raw(thread_id))
    return plain(raw)


def plain(raw: RawThread) -> RawThread:
    """Return a raw thread without what is a store's own, ready to be compared."""
    return raw._replace(
        family="",
        identity=b"",
        lines={name: line._replace(active=0, newest=0) for name, line in raw.lines.items()},
        # Stretches have no order of their own, and each store tells them in the order it finds them.
        hidden=sorted(raw.hidden, key=repr),
        operations=list(raw.operations),
        writes=list(raw.writes),
        shared_states=shared_states_of(raw),
        family_threads=(),
    )


async def identities_of(store: Store, *names: str) -> list[bytes]:
    """Return by what the families of some threads are known among all of all stores."""
    return [(await required(store.raw(name))).identity for name in names]


def moved_by(distance: int) -> Callable[[renumber.Kind, int], int]:
    """Return what moves numbers of any kind by so much."""
    return lambda _, number: number + distance


def places_of(found: Iterable[Stored]) -> list[tuple[str, str]]:
    """Return the threads and the ids, in order."""
    return [(stored.record.key.thread_id, stored.record.key.checkpoint_id) for stored in found]


async def names_found(store: Store, **asked: Any) -> list[str]:
    """Return the names of the threads that a search finds."""
    return [hit.whole.record.key.thread_id for hit in await store.search(Search(**asked))]


def names_of(hits: Iterable[Hit]) -> list[str]:
    """Return the names of threads that were found, in order."""
    return [hit.position.thread_id for hit in hits]


def bodies_of(loaded: Loaded) -> list[tuple[int, bytes]]:
    """Return the places and the bodies of the pending writes, in order."""
    return [(write.idx, write.body) for write in loaded.writes]


def steps_of(found: Iterable[Stored]) -> list[tuple[str, int]]:
    """Return the threads and the steps, in order."""
    return [(stored.record.key.thread_id, stored.record.step) for stored in found]


def as_listed(loaded: Loaded) -> Loaded:
    """Return what was read with lists in it, ready to be compared."""
    return loaded._replace(objects=list(loaded.objects), writes=list(loaded.writes))


async def join(thread: threading.Thread) -> None:
    """Wait for a thread, on either face."""
    thread.join(60)
    assert not thread.is_alive()
