"""The store contract as tests, shipped so that outside stores can run it too.

Subclass `StoreContract` and provide two pytest fixtures: `store`, an empty store (either face), and `reopen`, a
function that closes it and returns it as a new process would find it (a store that lives in memory returns itself).
The tests are coroutines: run them with the pytest plugin of your choice, or drive them with `faces.run_to_end` if the
fixture gives a blocking face.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstep.errors import (
    BaseGone,
    CheckpointCorrupted,
    CheckpointNotFound,
    HeadMoved,
    IdTaken,
    InvalidInput,
    StoreClosed,
    UnregisteredType,
    UnstorableValue,
)
from everstep.repository.repository import Repository
from everstep.runtime.blocking import run_to_end
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import (
    ANY,
    COMMONS_MAX,
    AnyHead,
    Base,
    Change,
    Common,
    Draft,
    Hidden,
    Key,
    Loaded,
    Move,
    Object,
    Operation,
    Part,
    Pin,
    Place,
    Query,
    RawLine,
    RawThread,
    Record,
    Root,
    Search,
    Store,
    Stored,
    Swept,
    Write,
)
from everstep.transfer import renumber
from everstep.values import codec, tree
from everstep.values.compress import squeeze

Reopen = Callable[[], Awaitable[Store]]

ODD_NAMES = (
    "plain", "with space", "new\nline", "nul\0inside", "../up", "/abs", "quote'\"", "%_*?[a-z]", "{tag}", "a:b",
    "ünï", "漢字", "🙂", "x" * 1000,
)  # fmt: skip


def make_object(body: bytes, *children: Object) -> Object:
    """Return an object as a store takes it."""
    below = b"".join(child.hash for child in children)
    return Object(tree.address(below, body), below, squeeze(body))


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
        children=b"".join(obj.hash for obj in roots),
        body=body,
        sizes=(len(body),),
        tags=tuple(tags),
        metadata=dict(metadata or {}),
    )


def put(record: Record, *objects: Object, base: Base | None = None, **change: Any) -> Change:
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


async def head_id(store: Store, thread_id: str = "t", namespace: str = "") -> str | None:
    """Return the id of the head."""
    loaded = await store.read(thread_id, namespace)
    return loaded.stored.record.key.checkpoint_id if loaded is not None else None


async def stored_objects(store: Store, family: str, *roots: Object) -> set[bytes]:
    """Return the hashes that the store holds at or below these."""
    return {obj.hash for obj in await store.fetch(family, [root.hash for root in roots])}


async def elsewhere() -> MemoryStore:
    """Return a store with a family that has a bit of everything, to be taken over by the one under test."""
    store = MemoryStore()
    await fill(store)
    return store


async def fill(store: Store) -> None:
    """Put a family into an empty store that has a bit of everything."""
    leaf, top = make_object(b"leaf"), make_object(b"top", make_object(b"leaf"))
    first = await store.commit(put(make_record("c-1", roots=[top]), leaf, top))
    stored = [await store.commit(follow("t", "c")) for _ in range(3)]
    third, last = stored[1:]
    assert first is not None and third is not None and last is not None
    await store.commit(put(make_record("s1", "t", "sub")))
    common = Common(first.place, Root(leaf.hash, b"common", (6,)))
    branch = make_record("b1", "branch", step=0)._replace(parents=(first.record.key,))
    log = Operation("branch", {"to": "branch"})
    await store.commit(put(branch, origin=first.record.key, commons={"t": common}, log=log, log_thread="t"))
    writes = [Write("task", n, "ch", leaf.hash, b"w", 1, "path") for n in (0, 1, -1)]
    await store.put_writes(Key("t", "", "c-3"), writes[:2], [])
    await store.put_writes(Key("t", "", "not stored"), writes[2:], [])
    loaded = await store.read("t", "", "c-3", writes=True)
    assert loaded is not None
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
    raws = [raw for name in names if (raw := await source.raw(name)) is not None]
    thread = await source.thread(names[0], ancestry=True)
    assert thread is not None
    base = await store.adopt(Part(names[0], b"begun", reserve=1000))
    numbers = renumber.Numbers([renumber.Stretch(base, 1000, (0, 0, 0))])
    loaded = [
        await source.read(*stored.record.key, objects=True)
        for name in names
        for stored in await source.list_checkpoints(Query(thread_id=name, namespace=None, hidden="also"))
    ]
    found = [each for each in loaded if each is not None]
    roots = [common.root.children for raw in raws for held in raw.commons.values() for common in held]
    kept = await source.fetch(thread.family, [key for root in roots for key in tree.hashes(root)])
    parts = [
        Part(
            names[0],
            objects=[*kept, *(obj for each in found for obj in each.objects)],
            checkpoints=[renumber.stored(each.stored, numbers) for each in found],
            runs=renumber.runs(thread.ancestry, numbers),
        ),
        Part(names[0], threads=[renumber.thread(raw, numbers)._replace(note=b"note") for raw in raws]),
    ]
    for part in parts:
        await store.adopt(part)
    return parts, lambda number: numbers(renumber.CHECKPOINT, number)


async def written_ids(store: Store, thread_id: str = "t") -> list[str]:
    """Return the ids that have pending writes, hidden ones included, whether they are stored or not."""
    raw = await store.raw(thread_id)
    return sorted({key.checkpoint_id for key, _ in raw.writes}) if raw is not None else []


async def with_protected(store: Store, thread_id: str = "t") -> list[Stored]:
    """Put five checkpoints: pinned, the origin of a branch, two plain ones and a head; and early writes.

    Each has a pending write that can be seen and one that is hidden.
    """
    made = [await store.commit(follow(thread_id, "c")) for _ in range(5)]
    stored = [each for each in made if each is not None]
    keys = [each.record.key for each in stored]
    await store.commit(Change(thread_id=thread_id, pins=[Pin(keys[0], True)]))
    await store.commit(put(make_record("b", f"{thread_id} branch", step=0), origin=keys[1]))
    for key in (*keys, keys[0]._replace(checkpoint_id="early")):
        await store.put_writes(key, [Write("old", 0, "ch", b"", b"", 0)], [])
        raw = await store.raw(thread_id)
        assert raw is not None
        hidden = Hidden("", 0, raw.writes[-1][1].seq, None, key.checkpoint_id)
        await store.commit(Change(thread_id=thread_id, hide=[hidden], log=Operation("hide", {})))
        await store.put_writes(key, [Write("new", 0, "ch", b"", b"", 0)], [])
    return stored


async def raw_thread(store: Store, thread_id: str = "t") -> RawThread:
    """Return a thread that must be there, ready to be compared."""
    raw = await store.raw(thread_id)
    assert raw is not None
    return plain(raw)


def plain(raw: RawThread) -> RawThread:
    """Return a raw thread without what is a store's own, ready to be compared."""
    return raw._replace(
        family="",
        identity=b"",
        lines={name: line._replace(active=0, newest=0) for name, line in raw.lines.items()},
        hidden=sorted(raw.hidden, key=repr),
        operations=list(raw.operations),
        writes=list(raw.writes),
        commons={name: list(held) for name, held in raw.commons.items()},
        kin=(),
    )


async def names_found(store: Store, **asked: Any) -> list[str]:
    """Return the names of the threads that a search finds."""
    return [hit.stored.record.key.thread_id for hit in await store.search(Search(**asked))]


class StoreContract:
    """What every store does. One behaviour per test; the names are the sentences of the contract."""

    # -- reading back

    async def test_an_empty_store_has_nothing(self, store: Store) -> None:
        assert await store.read("t") is None
        assert await store.thread("t") is None
        assert await store.find("c1") == []
        assert await store.list_checkpoints(Query()) == []
        assert await store.list_threads(10, 0) == []
        assert await store.operations("t", 10) == []

    async def test_a_record_reads_back_as_it_was_put(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        record = Record(
            Key("t", "ns", "c1"), 7, (Key("t", "ns", "p"), Key("other", "", "q")), "not a time", leaf.hash, b"\0body",
            (1, 2), ("tag", "tag2"), "summary", "next", "manual", "kind", {"a": (1, None), "b": b"\xff"},
        )  # fmt: skip
        await store.commit(put(record, leaf))

        loaded = await store.read("t", "ns", "c1", objects=True)

        assert loaded is not None
        assert loaded.stored.record == record
        assert list(loaded.objects) == [leaf]

    @pytest.mark.parametrize("repeats", [None, 0, 5 << 40])
    async def test_a_hint_for_writers_reads_back(self, store: Store, repeats: int | None) -> None:
        record = make_record()._replace(repeats=repeats)
        await store.commit(put(record))

        loaded = await store.read("t")
        listed = await store.list_checkpoints(Query(thread_id="t"))

        assert loaded is not None
        assert loaded.stored.record == record
        assert [stored.record.repeats for stored in listed] == [repeats]

    async def test_reading_brings_every_object_below_the_root_once(self, store: Store) -> None:
        leaf, other = make_object(b"leaf"), make_object(b"other")
        middle = make_object(b"middle", leaf, other)
        top = make_object(b"top", middle, leaf)
        await store.commit(put(make_record(roots=[top, leaf]), leaf, other, middle, top))

        loaded = await store.read("t", objects=True)

        assert loaded is not None
        assert sorted(loaded.objects) == sorted([leaf, other, middle, top])

    async def test_reading_without_objects_brings_none(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record(roots=[leaf]), leaf))
        loaded = await store.read("t")
        assert loaded is not None
        assert list(loaded.objects) == []

    async def test_fetching_brings_what_is_there_and_leaves_out_the_rest(self, store: Store) -> None:
        leaf, missing = make_object(b"leaf"), make_object(b"missing")
        await store.commit(put(make_record(roots=[leaf]), leaf))
        loaded = await store.read("t")
        assert loaded is not None
        assert await store.fetch(loaded.stored.family, [leaf.hash, missing.hash]) == [leaf]

    async def test_many_objects_come_back_in_one_call(self, store: Store) -> None:
        leaves = [make_object(b"leaf %d" % n) for n in range(3000)]
        top = make_object(b"top", *leaves)
        await store.commit(put(make_record(roots=[top]), top, *leaves))
        loaded = await store.read("t", objects=True)
        assert loaded is not None
        assert {obj.hash for obj in loaded.objects} == {top.hash, *(leaf.hash for leaf in leaves)}

    async def test_a_record_without_objects_is_fine(self, store: Store) -> None:
        await store.commit(put(make_record()))
        loaded = await store.read("t", objects=True)
        assert loaded is not None
        assert list(loaded.objects) == []

    async def test_an_unknown_id_is_none(self, store: Store) -> None:
        await store.commit(put(make_record()))
        assert await store.read("t", "", "nope") is None
        assert await store.read("t", "ns", "c1") is None
        assert await store.read("other", "", "c1") is None

    async def test_many_are_read_as_each_would_be(self, store: Store) -> None:
        await fill(store)
        odd = make_record("c-3", "a:{b}", "漢\0", roots=[make_object(b"leaf")], metadata={"k": (1,)})
        await store.commit(put(odd, make_object(b"leaf")))
        hidden, with_writes, pinned = (Key("t", "", name) for name in ("c-4", "c-3", "c-1"))
        keys = [
            with_writes, Key("branch", "", "b1"), Key("t", "", "not stored"), hidden, Key("ghost", "", "c-1"), odd.key,
            Key("t", "ghost", "c-1"), Key("t", "sub", "c-1"), pinned, Key("t", "sub", "s1"), with_writes,
        ]  # fmt: skip

        for writes in (False, True):
            each = [await store.read(*key, writes=writes) for key in keys]
            many = await store.read_many(keys, writes=writes)
            assert [_listed(loaded) for loaded in many] == [_listed(loaded) for loaded in each if loaded is not None]

        found = {loaded.stored.record.key: loaded for loaded in many}
        assert len(many) == 7 and len(found) == 6
        assert [key for key, loaded in found.items() if loaded.stored.hidden] == [hidden]
        assert [key for key, loaded in found.items() if loaded.stored.pinned] == [pinned]
        assert {key: len(loaded.writes) for key, loaded in found.items() if loaded.writes} == {with_writes: 1}
        assert found[odd.key].stored.record == odd

    async def test_reading_many_may_find_none(self, store: Store) -> None:
        key = Key("t", "", "c1")
        assert await store.read_many([]) == []
        assert await store.read_many([key]) == []
        await store.put_writes(key, [Write("task", 0, "ch", b"", b"w", 1)], [])
        assert await store.read_many([key, key], writes=True) == []

    async def test_a_long_history_is_read_in_one_call(self, store: Store) -> None:
        names = [f"c-{n}" for n in range(1, 251)]
        for name in names:
            await store.commit(put(make_record(name, body=name.encode())))
        others = [make_record("c-1", f"other {n}") for n in range(10)]
        for record in others:
            await store.commit(put(record))
        await store.put_writes(Key("t", "", "c-7"), [Write("task", 0, "ch", b"", b"w", 1)], [])

        keys = [*(Key("t", "", name) for name in reversed(names)), *(record.key for record in others)]
        found = await store.read_many([*keys, *keys[:5]], writes=True)

        assert [loaded.stored.record.key for loaded in found] == [*keys, *keys[:5]]
        assert [loaded.stored.record.body.decode() for loaded in found[:250]] == names[::-1]
        assert [loaded.stored.record.key.checkpoint_id for loaded in found if loaded.writes] == ["c-7"]

    # -- 1 durable

    async def test_what_was_committed_survives_reopening(self, store: Store, reopen: Reopen) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("c2", step=2, parents=["c1"])))
        await store.put_writes(Key("t", "", "c2"), [Write("task", 0, "channel", leaf.hash, b"w", 1, "path")], [])
        before = await store.thread("t")
        store = await reopen()

        loaded = await store.read("t", "", "c1", objects=True)
        with_writes = await store.read("t", writes=True)

        assert loaded is not None and with_writes is not None
        assert list(loaded.objects) == [leaf]
        assert with_writes.stored.record.key.checkpoint_id == "c2"
        assert [w.channel for w in with_writes.writes] == ["channel"]
        assert await store.thread("t") == before

    async def test_operations_pins_and_hiding_survive_reopening(self, store: Store, reopen: Reopen) -> None:
        first = await store.commit(put(make_record()))
        second = await store.commit(put(make_record("c2", step=2)))
        assert first is not None and second is not None
        await store.commit(
            Change(
                thread_id="t",
                moves=[Move("", "c1")],
                hide=[Hidden("", first.seq, second.seq)],
                pins=[Pin(first.record.key, True)],
                log=Operation("rewind", {"to": "c1"}),
            )
        )
        store = await reopen()

        assert await head_id(store) == "c1"
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c1"]
        assert [s.pinned for s in await store.list_checkpoints(Query(thread_id="t", hidden="also"))] == [False, True]
        (operation,) = await store.operations("t", 10)
        assert (operation.kind, operation.data, operation.undone) == ("rewind", {"to": "c1"}, False)

    # -- 2 atomic

    async def test_a_build_that_raises_leaves_nothing(self, store: Store) -> None:
        def build(_: Stored | None) -> Draft:
            raise InvalidInput("no")

        with pytest.raises(InvalidInput, match="no"):
            await store.commit(Change(thread_id="t", build=build, log=Operation("x", {})))
        assert await store.thread("t") is None

    async def test_a_change_with_one_impossible_part_does_nothing_at_all(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record()))
        assert first is not None
        before = await store.thread("t")
        impossible: list[dict[str, Any]] = [
            {"pins": [Pin(first.record.key, True), Pin(Key("t", "", "nope"), True)]},
            {"moves": [Move("", "nope")]},
        ]
        for parts in impossible:
            with pytest.raises(CheckpointNotFound):
                await store.commit(put(make_record("c2", roots=[leaf]), leaf, log=Operation("x", {}), **parts))

        assert await store.thread("t") == before
        assert await store.read("t", "", "c2") is None
        assert await store.fetch(first.family, [leaf.hash]) == []
        assert await store.operations("t", 10) == []
        assert [s.pinned for s in await store.list_checkpoints(Query(thread_id="t"))] == [False]

    async def test_a_record_of_another_thread_is_refused(self, store: Store) -> None:
        draft = Draft(make_record(thread_id="other"), ())
        with pytest.raises(InvalidInput):
            await store.commit(Change(thread_id="t", build=lambda _: draft))
        assert await store.list_threads(10, 0) == []

    # -- 3 self-contained, 4 exact deletion

    async def test_a_survivor_keeps_what_it_shares_with_the_deleted(self, store: Store) -> None:
        shared, old, new = make_object(b"shared"), make_object(b"old"), make_object(b"new")
        first = await store.commit(put(make_record(roots=[shared, old]), shared, old))
        assert first is not None
        base = Base(first.record.key, first.digest)
        await store.commit(put(make_record("c2", step=2, roots=[shared, new]), new, base=base))

        deleted = await store.delete("t", keys=[Key("t", "", "c1")])
        for family in deleted.families:
            await store.sweep(family)

        assert deleted.checkpoints == 1
        loaded = await store.read("t", objects=True)
        assert loaded is not None
        assert sorted(loaded.objects) == sorted([shared, new])
        assert await store.fetch(first.family, [old.hash]) == []

    async def test_a_sweep_says_what_it_removed(self, store: Store) -> None:
        keep, drop = make_object(b"keep"), make_object(b"drop" * 100)
        first = await store.commit(put(make_record(roots=[drop]), drop))
        await store.commit(put(make_record("c2", step=2, roots=[keep]), keep))
        assert first is not None
        assert await store.sweep(first.family) == Swept(0, 0)
        await store.delete("t", keys=[Key("t", "", "c1")])
        swept = await store.sweep(first.family)
        assert swept == Swept(1, len(drop.body))

    async def test_a_sweep_keeps_what_writes_need(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record()))
        assert first is not None
        await store.put_writes(Key("t", "", "later"), [Write("task", 0, "ch", leaf.hash, b"", 1)], [leaf])
        await store.sweep(first.family)
        assert await store.fetch(first.family, [leaf.hash]) == [leaf]

    async def test_a_deleted_thread_takes_along_what_it_had_in_common(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record(roots=[leaf]), leaf))
        assert first is not None
        common = Common(first.place, Root(leaf.hash, b"common", (6,)))
        key = first.record.key
        await store.commit(put(make_record("b1", "branch", step=0), origin=key, commons={"t": common}))
        await store.delete("t", keys=[key])
        await store.put_writes(Key("t", "", "x"), [Write("task", 0, "ch", b"", b"", 0)], [])
        await store.sweep(first.family)
        assert await store.fetch(first.family, [leaf.hash]) == []  # a thread that is gone has nothing in common

    async def test_a_sweep_keeps_what_two_threads_have_in_common(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("c2", step=2)))
        assert first is not None
        common = Common(first.place, Root(leaf.hash, b"common", (6,)))
        await store.commit(put(make_record("b1", "branch", step=0), origin=first.record.key, commons={"t": common}))
        await store.delete("t", keys=[first.record.key])
        await store.sweep(first.family)

        branch, origin = await store.thread("branch"), await store.thread("t")

        assert branch is not None and origin is not None
        assert branch.origin == first.record.key
        assert {name: list(held) for name, held in branch.commons.items()} == {"t": [common]}
        assert {name: list(held) for name, held in origin.commons.items()} == {"branch": [common]}
        assert await store.fetch(first.family, [leaf.hash]) == [leaf]

    async def test_deleting_a_thread_removes_it_and_nothing_else(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("s1", "t", "sub")))
        await store.commit(put(make_record("c1", "other", roots=[leaf]), leaf))
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])

        deleted = await store.delete("t")

        assert deleted == (2, frozenset())
        assert await store.thread("t") is None
        assert await store.find("c1") == [Key("other", "", "c1")]
        other = await store.read("other", objects=True, writes=True)
        assert other is not None
        assert list(other.objects) == [leaf]
        assert list(other.writes) == []

    async def test_a_deleted_thread_can_begin_again(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record(roots=[leaf]), leaf, log=Operation("x", {})))
        await store.delete("t")
        again = await store.commit(follow("t", "new"))
        assert again is not None
        assert again.record.step == 1
        assert await store.operations("t", 10) == []
        assert await store.fetch(again.family, [leaf.hash]) == []

    async def test_deleting_before_a_step_is_strict(self, store: Store) -> None:
        for _ in range(4):
            await store.commit(follow("t", "c"))
        assert (await store.delete("t", before_step=3)).checkpoints == 2
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-4", "c-3"]

    async def test_deleting_what_is_not_there_is_not_an_error(self, store: Store) -> None:
        assert await store.delete("t") == (0, frozenset())
        await store.commit(put(make_record()))
        assert (await store.delete("t", keys=[Key("t", "", "nope"), Key("u", "", "c1")])).checkpoints == 0
        assert (await store.delete("t", before_step=0)).checkpoints == 0
        assert await head_id(store) == "c1"

    async def test_a_deleted_head_falls_back_to_the_newest_left(self, store: Store) -> None:
        for _ in range(3):
            await store.commit(follow("t", "c"))
        await store.delete("t", keys=[Key("t", "", "c-3")])
        assert await head_id(store) == "c-2"

    async def test_a_deleted_head_does_not_fall_back_to_a_hidden_one(self, store: Store) -> None:
        one, two, three = [await store.commit(follow("t", "c")) for _ in range(3)]
        assert one is not None and two is not None and three is not None
        await store.commit(Change(thread_id="t", hide=[Hidden("", one.seq, two.seq)], log=Operation("x", {})))
        await store.delete("t", keys=[three.record.key])
        assert await head_id(store) == "c-1"

    async def test_a_thread_with_no_checkpoints_left_is_gone(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.delete("t", keys=[Key("t", "", "c1")])
        assert await store.thread("t") is None
        assert await store.list_threads(10, 0) == []

    async def test_objects_of_a_family_without_threads_go_at_once(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record(roots=[leaf]), leaf))
        assert first is not None
        await store.delete("t")
        assert await store.fetch(first.family, [leaf.hash]) == []

    async def test_a_checkpoint_of_any_name_can_be_deleted(self, store: Store) -> None:
        for name in ODD_NAMES:
            await store.commit(put(make_record(name)))
        deleted = await store.delete("t", keys=[Key("t", "", name) for name in ODD_NAMES])
        assert deleted.checkpoints == len(ODD_NAMES)

    async def test_deleting_by_name_takes_writes_that_came_too_early(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.put_writes(Key("t", "", "later"), [Write("task", 0, "ch", b"", b"", 0)], [])
        await store.delete("t", keys=[Key("t", "", "later")])
        await store.commit(put(make_record("later")))
        loaded = await store.read("t", writes=True)
        assert loaded is not None
        assert list(loaded.writes) == []

    async def test_a_lost_namespace_does_not_change_how_active_its_thread_was(self, store: Store) -> None:
        await store.commit(put(make_record("a", "one")))
        await store.commit(put(make_record("b", "two")))
        await store.commit(put(make_record("c", "one", "sub")))
        await store.delete("one", keys=[Key("one", "sub", "c")])
        assert [s.record.key.thread_id for s in await store.list_threads(9, 0)] == ["one", "two"]

    async def test_deleting_a_checkpoint_takes_its_writes(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(put(make_record("c2", step=2)))
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])
        await store.delete("t", keys=[Key("t", "", "c1")])
        await store.commit(put(make_record("c1")))
        loaded = await store.read("t", "", "c1", writes=True)
        assert loaded is not None
        assert list(loaded.writes) == []

    # -- 5 order by arrival

    async def test_the_latest_is_what_was_committed_last_whatever_its_time(self, store: Store) -> None:
        await store.commit(put(make_record("new", created_at="2030-01-01T00:00:00.000000+00:00")))
        await store.commit(put(make_record("old", created_at="1990-01-01T00:00:00.000000+00:00")))
        await store.commit(put(make_record("same", created_at="1990-01-01T00:00:00.000000+00:00")))
        assert await head_id(store) == "same"
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["same", "old", "new"]

    async def test_a_sequence_number_is_never_given_twice(self, store: Store) -> None:
        last = 0
        for n in range(4):
            stored = await store.commit(put(make_record(f"c{n}")))
            assert stored is not None
            assert stored.seq > last
            last = stored.seq
            await store.delete("t", keys=[stored.record.key])

    async def test_threads_are_listed_most_recently_active_first(self, store: Store) -> None:
        for name in ("a", "b", "c", "a"):
            await store.commit(follow(name, "x"))
        await store.commit(Change(thread_id="b", moves=[Move("", "x-1")]))
        found = await store.list_threads(10, 0)
        assert [(s.record.key.thread_id, s.record.step) for s in found] == [("b", 1), ("a", 2), ("c", 1)]
        assert [s.record.key.thread_id for s in await store.list_threads(1, 1)] == ["a"]

    # -- finding threads

    async def test_threads_are_found_by_what_their_names_begin_with(self, store: Store) -> None:
        names = ["a", "a%", "a_b", "ab", "A", "ä", "a\U0010ffff", "a:\n", "b"]
        for name in names:
            await store.commit(follow(name, "c"))
        assert await names_found(store) == names[::-1]
        for prefix in ("a", "a%", "a_", "ä", "a\U0010ffff", "\U0010ffff", "zz"):
            assert await names_found(store, prefix=prefix) == [n for n in names[::-1] if n.startswith(prefix)], prefix

    async def test_threads_are_found_by_metadata_of_their_latest_checkpoint(self, store: Store) -> None:
        values: list[Any] = [1, True, 1.0, "1", None, [1], {"a": 1}, "x" * 2000]
        for n, value in enumerate(values):
            await store.commit(put(make_record("c", f"t{n}", metadata={"k": value, "all": "yes", "step": n})))
        await store.commit(put(make_record("c", "without")))
        for n, value in enumerate(values):
            assert await names_found(store, filter={"k": value}) == [f"t{n}"], value
        assert await names_found(store, filter={"k": 1, "all": "yes"}) == ["t0"]
        assert await names_found(store, filter={"all": "yes", "step": 3}) == ["t3"]
        assert await names_found(store, filter={"all": "no"}) == await names_found(store, filter={"other": None}) == []
        assert await names_found(store, filter={"all": "yes"}, limit=2) == ["t7", "t6"]
        await store.commit(put(make_record("d", "t0", metadata={"k": 2}, parents=["c"], step=2)))
        assert await names_found(store, filter={"k": 1}) == []
        assert await names_found(store, filter={"k": 2}) == ["t0"]

    async def test_a_thread_is_found_by_what_its_head_was_moved_to_or_replaced_by(self, store: Store) -> None:
        await store.commit(put(make_record("a", metadata={"k": "old"})))
        await store.commit(put(make_record("b", metadata={"k": "new"}, parents=["a"], step=2)))
        await store.commit(Change(thread_id="t", moves=[Move("", "a")]))
        assert (await names_found(store, filter={"k": "old"}), await names_found(store, filter={"k": "new"})) == (
            ["t"],
            [],
        )
        await store.commit(put(make_record("a", metadata={"k": "other"}, tags=("mark",))))
        assert await names_found(store, filter={"k": "old"}) == []
        assert await names_found(store, filter={"k": "other"}, tags=frozenset({"mark"})) == ["t"]

    async def test_threads_are_found_by_all_of_some_tags(self, store: Store) -> None:
        for n, tags in enumerate([("a",), ("a", "b"), ("b", "manual"), ()]):
            await store.commit(put(make_record("c", f"t{n}", tags=tags)))
        assert await names_found(store, tags=frozenset({"a"})) == ["t1", "t0"]
        assert await names_found(store, tags=frozenset({"a", "b"})) == ["t1"]
        assert await names_found(store, tags=frozenset({"manual"})) == ["t2"]

    async def test_metadata_that_is_another_each_time_is_found_all_the_same(self, store: Store) -> None:
        parents: list[str] = []
        for n in range(40):
            metadata = {"turn": n, "user": "u", f"key {n}": True, f"more {n}": n}
            tags = (f"tag {n}", "stays")
            await store.commit(put(make_record(f"c{n}", metadata=metadata, tags=tags, parents=parents, step=n + 1)))
            parents = [f"c{n}"]
        assert (
            await names_found(store, filter={"turn": 39}) == await names_found(store, filter={"key 39": True}) == ["t"]
        )
        assert await names_found(store, filter={"user": "u"}, tags=frozenset({"stays", "tag 39"})) == ["t"]
        assert (
            await names_found(store, filter={"turn": 38}) == await names_found(store, tags=frozenset({"tag 38"})) == []
        )

    async def test_pages_of_threads_go_on_where_the_last_one_ended(self, store: Store) -> None:
        for n in range(7):
            await store.commit(put(make_record("c", f"t{n}", metadata={"k": n % 2})))
        first = await store.search(Search(limit=3))
        await store.delete("t4")  # where the next page begins
        await store.delete("t3")
        await store.commit(follow("t0", "d"))  # moves to the front
        rest = await store.search(Search(after=first[-1].position, limit=3))
        assert [hit.position.thread_id for hit in (*first, *rest)] == ["t6", "t5", "t4", "t2", "t1"]
        odd = await store.search(Search(filter={"k": 1}, limit=1))
        more = await store.search(Search(filter={"k": 1}, after=odd[-1].position))
        assert [hit.position.thread_id for hit in (*odd, *more)] == ["t5", "t1"]

    async def test_threads_are_found_by_when_they_were_active(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await store.commit(follow(name, "x"))
        b = (await store.search(Search(prefix="b")))[0].position
        assert await names_found(store, since=b.active) == ["c", "b"]
        assert await names_found(store, since=b.active + 1) == ["c"]

    async def test_a_deleted_thread_is_not_found_and_can_be_begun_anew(self, store: Store) -> None:
        for _ in range(2):
            await store.commit(put(make_record("c", "gone", metadata={"k": "v"}, tags=("tag",))))
            assert await names_found(store, prefix="go", filter={"k": "v"}, tags=frozenset({"tag"})) == ["gone"]
            await store.delete("gone")
            assert (
                await names_found(store)
                == await names_found(store, filter={"k": "v"})
                == await names_found(store, prefix="go")
                == []
            )
        await store.commit(put(make_record("d", "gone")))
        assert await names_found(store, filter={"k": "v"}) == []

    async def test_a_thread_without_a_head_is_not_found(self, store: Store) -> None:
        await store.put_writes(Key("writes", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])
        stored = await store.commit(put(make_record("c", "hidden", metadata={"k": 1})))
        assert stored is not None
        hide = Change("hidden", moves=[Move("", None)], hide=[Hidden("", 0, stored.seq)], log=Operation("x", {}))
        await store.commit(hide)
        assert (
            await names_found(store)
            == await names_found(store, filter={"k": 1})
            == await names_found(store, prefix="hid")
            == []
        )

    async def test_a_thread_is_listed_by_its_root_or_its_first_namespace(self, store: Store) -> None:
        await store.commit(put(make_record("b", "t", "sub", metadata={"k": "sub"})))
        await store.commit(put(make_record("a", "t", "other", metadata={"k": "other"})))
        assert (await names_found(store, filter={"k": "other"}), await names_found(store, filter={"k": "sub"})) == (
            ["t"],
            [],
        )
        await store.commit(put(make_record("c", "t", metadata={"k": "root"})))
        assert (await names_found(store, filter={"k": "root"}), await names_found(store, filter={"k": "other"})) == (
            ["t"],
            [],
        )
        assert len(await store.search(Search())) == 1

    async def test_a_thread_with_writes_but_no_checkpoint_is_not_listed(self, store: Store) -> None:
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])
        assert await store.list_threads(10, 0) == []
        assert await store.read("t") is None

    # -- 6 no silent fork

    async def test_a_beaten_writer_gets_both_heads(self, store: Store) -> None:
        await store.commit(follow("t", "c"))
        with pytest.raises(HeadMoved) as caught:
            await store.commit(follow("t", "d", expect="gone"))
        assert (caught.value.expected, caught.value.actual) == ("gone", "c-1")
        with pytest.raises(HeadMoved):
            await store.commit(follow("t", "d", expect=None))
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-1"]

    async def test_an_expected_head_lets_the_writer_through(self, store: Store) -> None:
        await store.commit(follow("t", "c", expect=None))
        await store.commit(follow("t", "c", expect="c-1"))
        assert await head_id(store) == "c-2"

    async def test_an_empty_thread_has_no_head(self, store: Store) -> None:
        with pytest.raises(HeadMoved) as caught:
            await store.commit(follow("t", "c", expect="c-0"))
        assert caught.value.actual is None
        assert await store.thread("t") is None

    async def test_writers_at_once_line_up_on_one_thread(self, store: Store) -> None:
        def write(name: str) -> None:
            for _ in range(20):
                run_to_end(store.blocking.commit(follow("t", name)))

        workers = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            await _joined(worker)

        found = await store.list_checkpoints(Query(thread_id="t"))
        assert [s.record.step for s in found] == list(range(80, 0, -1))
        for newer, older in itertools.pairwise(found):
            assert newer.record.parents == (older.record.key,)

    async def test_each_move_of_the_head_counts_a_generation(self, store: Store) -> None:
        seen = []
        for _ in range(3):
            await store.commit(follow("t", "c"))
            loaded = await store.read("t")
            assert loaded is not None
            seen.append(loaded.generation)
        await store.commit(Change(thread_id="t", moves=[Move("", "c-1")]))
        loaded = await store.read("t")
        assert loaded is not None
        assert [*seen, loaded.generation] == sorted({*seen, loaded.generation})

    async def test_a_head_moves_only_to_a_newer_id_when_so_asked(self, store: Store) -> None:
        await store.commit(put(make_record("m"), head="newer"))
        await store.commit(put(make_record("a"), head="newer"))
        assert await head_id(store) == "m"
        await store.commit(put(make_record("b", parents=["m"]), head="newer"))
        assert await head_id(store) == "b"
        await store.commit(put(make_record("z"), head="newer"))
        assert await head_id(store) == "z"

    async def test_a_head_can_stay_where_it_is(self, store: Store) -> None:
        await store.commit(put(make_record("a")))
        await store.commit(put(make_record("b"), head="never"))
        assert await head_id(store) == "a"
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["b", "a"]

    async def test_a_turn_keeps_other_writers_out(self, store: Store) -> None:
        await store.commit(follow("t", "c"))
        rivals: list[threading.Thread] = []

        async def work(inside: Store) -> Stored | None:
            head = await head_id(inside)
            rival = threading.Thread(target=lambda: run_to_end(store.blocking.commit(follow("t", "rival"))))
            rival.start()
            rivals.append(rival)
            rival.join(0.1)  # whoever can come in between does it now
            assert await head_id(inside) == head
            return await inside.commit(follow("t", "own", expect=head))

        stored = await store.in_turn("t", work)
        for rival in rivals:
            await _joined(rival)
        assert stored is not None
        assert stored.record.key.checkpoint_id == "own-2"
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["rival-3", "own-2", "c-1"]

    async def test_a_turn_sees_what_it_commits_on(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record("a", roots=[leaf]), leaf))
        await store.commit(Change(thread_id="t", log=Operation("kind", {"n": 1})))

        async def work(inside: Store) -> Stored:
            loaded = await inside.read("t", objects=True, writes=True)
            assert loaded is not None
            assert [obj.hash for obj in loaded.objects] == [leaf.hash]
            assert [obj.hash for obj in await inside.fetch(loaded.stored.family, [leaf.hash])] == [leaf.hash]
            assert [each.stored.seq for each in await inside.read_many([loaded.stored.record.key])] == [
                loaded.stored.seq
            ]
            assert await inside.find("a") == [loaded.stored.record.key]
            assert ids(await inside.list_checkpoints(Query(thread_id="t"))) == ["a"]
            assert ids(await inside.list_threads(5, 0)) == ["a"]
            assert await inside.count(Query(thread_id="t")) == 1
            newest = await inside.newest("t", 5)
            assert newest is not None
            assert ids(newest.listed) == ["a"]
            assert await inside.runs(loaded.stored.family, [loaded.stored.run]) == {}
            assert [each.kind for each in await inside.operations("t", 5)] == ["kind"]
            thread = await inside.thread("t", branches=True, ancestry=True)
            assert thread is not None
            assert thread.heads[""][0] == "a"
            base = Base(loaded.stored.record.key, loaded.stored.digest)
            stored = await inside.commit(put(make_record("b", parents=["a"], roots=[leaf]), base=base, expect="a"))
            assert stored is not None
            return stored

        stored = await store.in_turn("t", work)
        loaded = await store.read("t", objects=True)
        assert loaded is not None
        assert loaded.stored == stored
        assert [obj.hash for obj in loaded.objects] == [leaf.hash]

    async def test_a_turn_that_fails_changes_nothing_and_ends(self, store: Store) -> None:
        await store.commit(follow("t", "c"))

        async def work(inside: Store) -> None:
            await inside.commit(follow("t", "own", expect="another"))

        with pytest.raises(HeadMoved):
            await store.in_turn("t", work)
        await store.commit(follow("t", "d"))
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["d-2", "c-1"]

    async def test_a_turn_may_begin_a_thread(self, store: Store) -> None:
        stored = await store.in_turn("t", lambda inside: inside.commit(follow("t", "c")))
        assert stored is not None
        assert await head_id(store) == "c-1"

    # -- 7 idempotent

    async def test_the_same_put_twice_is_one_put(self, store: Store) -> None:
        record = make_record()
        first = await store.commit(put(record))
        await store.commit(put(make_record("c2", step=2)))
        again = await store.commit(put(record, expect=None, log=Operation("x", {})))
        assert again == first
        assert await head_id(store) == "c2"
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c2", "c1"]
        assert await store.operations("t", 10) == []

    async def test_other_content_under_the_same_id_replaces_it_in_place(self, store: Store) -> None:
        old, new = make_object(b"old"), make_object(b"new")
        first = await store.commit(put(make_record(roots=[old]), old))
        await store.commit(put(make_record("c2", step=2)))
        second = await store.commit(put(make_record(roots=[new], body=b"other", metadata={"k": 1}), new))

        assert first is not None and second is not None
        assert second.seq == first.seq
        assert await head_id(store) == "c2"
        loaded = await store.read("t", "", "c1", objects=True)
        assert loaded is not None
        assert (loaded.stored.record.body, list(loaded.objects)) == (b"other", [new])
        assert loaded.stored.record.metadata == {"k": 1}
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c2", "c1"]

    async def test_an_id_made_by_chance_replaces_nothing(self, store: Store) -> None:
        kept = make_record(body=b"kept")
        await store.commit(put(kept))
        await store.commit(put(make_record("c2", step=2, parents=["c1"])))

        for parents in (["c2"], ["c1"]):  # what simply follows the head may be committed another way than the rest
            with pytest.raises(IdTaken):
                await store.commit(put(make_record(parents=parents, body=b"other"), fresh=True))
        with pytest.raises(HeadMoved):
            await store.commit(put(make_record(body=b"other"), fresh=True, expect="gone"))

        loaded = await store.read(*kept.key)
        assert loaded is not None and loaded.stored.record == kept
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c2", "c1"]
        assert await head_id(store) == "c2"

    async def test_the_same_put_twice_is_one_put_also_if_its_id_was_made_by_chance(self, store: Store) -> None:
        first = await store.commit(put(make_record(), fresh=True))
        follower = put(make_record("c2", step=2, parents=["c1"]), fresh=True)
        second = await store.commit(follower)
        assert await store.commit(follower) == second
        assert await store.commit(put(make_record(), fresh=True)) == first
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c2", "c1"]

    async def test_a_branch_named_by_chance_is_no_other_thread(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        assert first is not None
        origin = first.record.key

        def branch(thread_id: str, name: str) -> Change:
            record = make_record(name, thread_id, step=0)._replace(parents=(origin,))
            return put(record, fresh=True, origin=origin, log=Operation("branch", {}), log_thread="t")

        made = await store.commit(branch("branch", "b1"))
        await store.commit(put(make_record("x1", "stranger")))
        await store.commit(put(make_record("n1", "with a namespace", "sub")))
        assert await store.commit(branch("branch", "b1")) == made
        for name in ("branch", "stranger", "with a namespace"):
            with pytest.raises(IdTaken):
                await store.commit(branch(name, "b2"))

        assert ids(await store.list_checkpoints(Query(namespace=None, order="oldest"))) == ["c1", "b1", "x1", "n1"]
        assert len(await store.operations("t", 10)) == 1

    async def test_an_id_made_by_chance_replaces_nothing_in_another_namespace(self, store: Store) -> None:
        await store.commit(put(make_record("s1", "t", "sub", body=b"kept")))
        beside = [Draft(make_record("s1", "t", "sub", body=b"other"), ())]
        with pytest.raises(IdTaken):
            await store.commit(put(make_record(), fresh=True, beside=beside))
        assert ids(await store.list_checkpoints(Query(thread_id="t", namespace=None))) == ["s1"]
        loaded = await store.read("t", "sub")
        assert loaded is not None and loaded.stored.record.body == b"kept"

    async def test_a_checkpoint_in_another_namespace_follows_the_head_of_that(self, store: Store) -> None:
        await store.commit(put(make_record()))
        first, second = (make_record(name, "t", "sub") for name in ("s1", "s2"))
        await store.commit(put(first))
        await store.commit(put(second))
        for parent in (first.key, Key("elsewhere", "sub", "s2")):
            late = make_record("s3", "t", "sub")._replace(parents=(parent,))
            with pytest.raises(HeadMoved):
                await store.commit(put(make_record("c2"), beside=[Draft(late, ())]))
        assert ids(await store.list_checkpoints(Query(thread_id="t", namespace=None))) == ["s2", "s1", "c1"]
        following = make_record("s3", "t", "sub", parents=["s2"])
        await store.commit(put(make_record("c2"), beside=[Draft(following, ())]))
        loaded = await store.read("t", "sub")
        assert loaded is not None and loaded.stored.record.key == following.key

    # -- 8 exact, whatever the names

    @pytest.mark.parametrize("name", ODD_NAMES)
    async def test_any_text_can_be_a_name(self, store: Store, name: str) -> None:
        record = make_record(name, name, name, metadata={name: name})
        await store.commit(put(record))
        await store.put_writes(record.key, [Write(name, 0, name, b"", b"", 0, name)], [])

        loaded = await store.read(name, name, name, writes=True)

        assert loaded is not None
        assert loaded.stored.record == record
        assert loaded.writes[0][:3] == (name, 0, name)
        assert await store.find(name) == [record.key]
        found = await store.list_checkpoints(Query(thread_id=name, namespace=name, filter={name: name}))
        assert ids(found) == [name]
        assert (await store.delete(name)).checkpoints == 1

    async def test_names_that_look_alike_when_joined_stay_apart(self, store: Store) -> None:
        pairs = [("a:b", "c"), ("a", "b:c"), ("a\0b", "c"), ("a", "b\0c"), ("A", "c"), ("a", "c")]
        for thread_id, namespace in pairs:
            await store.commit(put(make_record("x", thread_id, namespace, body=repr((thread_id, namespace)).encode())))
        for thread_id, namespace in pairs:
            loaded = await store.read(thread_id, namespace, "x")
            assert loaded is not None
            assert loaded.stored.record.body == repr((thread_id, namespace)).encode()

    # -- 9 corruption is loud, 10 data is not code

    async def test_an_object_that_is_not_what_its_hash_says_is_reported(self, store: Store) -> None:
        honest = make_object(bytes((tree.REST,)) + codec.pack([[], {}, {}]))
        for wrong in (b"", b"\x00\x07other", squeeze(b"\x07" + bytes(5000)), b"\x63rubbish"):
            await store.delete("t")
            record = make_record(roots=[honest], body=bytes((tree.WHOLE,)))._replace(sizes=(4,))
            await store.commit(put(record, honest._replace(body=wrong)))
            with pytest.raises(CheckpointCorrupted) as caught:
                await Repository(store).load("t")
            assert (caught.value.thread_id, caught.value.checkpoint_id) == ("t", "c1")

    async def test_an_object_that_is_missing_is_reported(self, store: Store) -> None:
        missing = make_object(b"missing")
        await store.commit(put(make_record(roots=[missing], body=bytes((tree.WHOLE,)))))
        with pytest.raises(CheckpointCorrupted, match=missing.hash.hex()):
            await Repository(store).load("t")

    async def test_bytes_that_name_a_function_call_nothing(self, store: Store) -> None:
        call = codec.tag_header(codec.OBJECT, 20) + b"\x92\xa9os.system\xa8touch /x"
        packed = b"\x93" + call + b"\x80\x80"
        forged = make_object(bytes((tree.REST,)) + packed)
        record = make_record(roots=[forged], body=bytes((tree.WHOLE,)))._replace(sizes=(len(packed),))
        await store.commit(put(record, forged))
        with pytest.raises(UnregisteredType, match=r"os\.system"):
            await Repository(store).load("t")

    # -- namespaces, ids

    async def test_namespaces_have_heads_of_their_own(self, store: Store) -> None:
        await store.commit(put(make_record("c1")))
        await store.commit(put(make_record("c1", "t", "sub", step=9)))
        thread = await store.thread("t")
        assert thread is not None
        assert {ns: checkpoint_id for ns, (checkpoint_id, _) in thread.heads.items()} == {"": "c1", "sub": "c1"}
        assert ids(await store.list_checkpoints(Query(thread_id="t", namespace="sub"))) == ["c1"]
        assert len(await store.list_checkpoints(Query(thread_id="t", namespace=None))) == 2

    async def test_an_id_is_found_in_every_thread_that_holds_it(self, store: Store) -> None:
        keys = [Key("t", "", "c"), Key("t", "sub", "c"), Key("u", "", "c")]
        for key in keys:
            await store.commit(put(make_record(key.checkpoint_id, key.thread_id, key.namespace)))
        assert sorted(await store.find("c")) == sorted(keys)

    # -- families

    async def test_a_branch_joins_its_origins_family(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record(roots=[leaf]), leaf))
        assert first is not None
        origin = first.record.key
        base = Base(first.record.key, first.digest)
        branch = await store.commit(put(make_record("b", "branch", step=0, roots=[leaf]), base=base, origin=origin))

        assert branch is not None and branch.family == first.family
        loaded = await store.read("branch", objects=True)
        assert loaded is not None
        assert list(loaded.objects) == [leaf]

    async def test_the_branches_of_a_thread_are_known(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        assert first is not None
        names = ["zoe", "anna"]
        for name in names:
            await store.commit(put(make_record("b", name, step=0), origin=first.record.key))
        nested = make_record("b", "nested", step=0)
        await store.commit(put(nested, origin=Key("anna", "", "b")))
        await store.delete("t", keys=[])
        thread, anna = await store.thread("t", branches=True), await store.thread("anna", branches=True)
        assert thread is not None and anna is not None
        assert list(thread.branches) == names
        assert list(anna.branches) == ["nested"]

    async def test_a_branch_of_nothing_is_refused(self, store: Store) -> None:
        with pytest.raises(CheckpointNotFound):
            await store.commit(put(make_record("b", "branch"), origin=Key("gone", "", "c")))
        assert await store.thread("branch") is None

    async def test_threads_of_their_own_share_nothing(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record(roots=[leaf]), leaf))
        other = await store.commit(put(make_record("c1", "u")))
        assert first is not None and other is not None
        assert first.family != other.family
        assert await store.fetch(other.family, [leaf.hash]) == []

    async def test_a_merge_renews_what_threads_have_in_common(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        assert first is not None
        places = [first.place._replace(seq=n) for n in range(1, COMMONS_MAX + 3)]
        commons = [Common(place, Root(b"", b"%d" % place.seq, (3,))) for place in places]
        await store.commit(put(make_record("b", "branch"), origin=first.record.key, commons={"t": commons[0]}))
        for n, common in enumerate([*commons[1:], commons[-1]], 2):
            await store.commit(put(make_record(f"c{n}", step=n), commons={"branch": common}))
        for one, other in (("branch", "t"), ("t", "branch")):
            thread = await store.thread(one)
            assert thread is not None
            assert {name: list(held) for name, held in thread.commons.items()} == {other: commons[-COMMONS_MAX:]}

    async def test_threads_of_two_families_have_nothing_in_common(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        await store.commit(put(make_record("c1", "u")))
        assert first is not None
        common = Common(first.place, Root(b"", b"", ()))
        for other in ("u", "nobody"):
            with pytest.raises(InvalidInput):
                await store.commit(put(make_record("c2", step=2), commons={other: common}))
            with pytest.raises(InvalidInput):
                await store.commit(put(make_record("c2", step=2), log=Operation("x", {}), log_thread=other))
        assert await head_id(store) == "c1"

    # -- runs: ancestry

    async def test_checkpoints_that_follow_each_other_are_one_run(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(3)]
        thread = await store.thread("t")
        assert thread is not None
        first = min(s.seq for s in stored if s is not None)
        assert [s.run for s in stored if s is not None] == [first] * 3
        assert thread.runs == {}
        assert [s.run for s in await store.list_checkpoints(Query(thread_id="t"))] == [first] * 3

    async def test_an_older_parent_starts_a_run(self, store: Store) -> None:
        one, _two = [await store.commit(follow("t", "c")) for _ in range(2)]
        third = await store.commit(put(make_record("x", step=2, parents=["c-1"])))
        fourth = await store.commit(follow("t", "d"))
        thread = await store.thread("t")
        assert one is not None and third is not None and fourth is not None and thread is not None
        assert (third.run, fourth.run) == (third.seq, third.seq)
        assert thread.runs == {third.seq: (Place(one.record.key, one.run, one.seq),)}

    async def test_a_checkpoint_without_parents_follows_the_head(self, store: Store) -> None:
        one = await store.commit(put(make_record()))
        two = await store.commit(put(make_record("c2", step=2)))
        assert one is not None and two is not None
        assert two.run == one.run

    async def test_an_unknown_parent_starts_a_run_that_follows_nothing(self, store: Store) -> None:
        await store.commit(put(make_record()))
        two = await store.commit(put(make_record("c2", step=2, parents=["nobody"])))
        thread = await store.thread("t")
        assert two is not None and thread is not None
        assert two.run == two.seq
        assert thread.runs == {two.seq: ()}

    async def test_what_follows_a_moved_head_starts_a_run(self, store: Store) -> None:
        one, _two = [await store.commit(follow("t", "c")) for _ in range(2)]
        await store.commit(Change(thread_id="t", moves=[Move("", "c-1")]))
        three = await store.commit(follow("t", "d"))
        four = await store.commit(follow("t", "d"))
        thread = await store.thread("t")
        assert one is not None and three is not None and four is not None and thread is not None
        assert (three.run, four.run) == (three.seq, three.seq)
        assert thread.runs == {three.seq: (one.place,)}

    async def test_what_follows_a_deleted_head_starts_a_run(self, store: Store) -> None:
        one, two = [await store.commit(follow("t", "c")) for _ in range(2)]
        assert one is not None and two is not None
        await store.delete("t", keys=[two.record.key])
        three = await store.commit(follow("t", "d"))
        thread = await store.thread("t")
        assert three is not None and thread is not None
        assert thread.runs == {three.seq: (one.place,)}

    async def test_a_checkpoint_that_does_not_become_the_head_starts_a_run(self, store: Store) -> None:
        one = await store.commit(put(make_record("c5")))
        side = await store.commit(put(make_record("c1", parents=["c5"]), head="never"))
        two = await store.commit(put(make_record("c6", parents=["c5"])))
        assert one is not None and side is not None and two is not None
        assert side.run == side.seq
        assert two.run == one.run

    async def test_a_branch_and_a_merge_say_what_they_follow(self, store: Store, reopen: Reopen) -> None:
        one = await store.commit(put(make_record()))
        assert one is not None
        begun = make_record("b", "branch", step=0)._replace(parents=(one.record.key,))
        branch = await store.commit(put(begun, origin=one.record.key))
        two = await store.commit(follow("t", "c"))
        assert branch is not None and two is not None
        merged = make_record("m", step=3)._replace(parents=(two.record.key, branch.record.key))
        merge = await store.commit(put(merged))
        assert merge is not None
        await store.delete("t", keys=[one.record.key, two.record.key])
        store = await reopen()

        thread, other = await store.thread("t", ancestry=True), await store.thread("branch")

        assert thread is not None and other is not None
        assert other.runs == {branch.seq: (one.place,)}
        assert other.ancestry == {}
        assert thread.runs == {merge.seq: (two.place, branch.place)}
        assert thread.ancestry == {**thread.runs, **other.runs}
        await store.delete("branch")
        await store.commit(put(make_record("x", "other")))
        alone, stranger = await store.thread("t", ancestry=True), await store.thread("other", ancestry=True)
        assert alone is not None and stranger is not None
        assert alone.ancestry == thread.ancestry
        assert stranger.ancestry == {}

    async def test_what_runs_follow_is_told_run_by_run(self, store: Store) -> None:
        one = await store.commit(put(make_record()))
        assert one is not None
        begun = make_record("b", "branch", step=0)._replace(parents=(one.record.key,))
        branch = await store.commit(put(begun, origin=one.record.key))
        assert branch is not None
        family, unknown = one.family, branch.seq + 1000
        expected = {branch.seq: (one.place,)}
        assert await store.runs(family, [branch.seq]) == expected
        assert await store.runs(family, [branch.seq, unknown]) == expected
        assert await store.runs(family, []) == {}
        assert await store.runs(family, [unknown], older=8) in ({}, expected)
        await store.delete("branch")
        assert await store.runs(family, [branch.seq]) == expected

    async def test_runs_that_began_later_are_told_unless_they_are_hidden(self, store: Store) -> None:
        one, two = [await store.commit(follow("t", "c")) for _ in range(2)]
        starts = [await store.commit(put(make_record(name, step=2, parents=["c-1"]))) for name in ("x", "y", "z")]
        assert one is not None and two is not None
        x, y, z = [stored.seq for stored in starts if stored is not None]
        assert await store.started("t", "", one.seq) == [x, y, z]
        assert await store.started("t", "", x) == [y, z]
        assert await store.started("t", "sub", 0) == await store.started("nobody", "", 0) == []
        await store.commit(Change(thread_id="t", hide=[Hidden("", y - 1, z, y)], log=Operation("rewind", {})))
        assert await store.started("t", "", one.seq) == [x, z]
        await store.commit(Change(thread_id="t", hide=[Hidden("", y - 1, z)], log=Operation("rewind", {})))
        assert await store.started("t", "", one.seq) == [x]

    async def test_a_brief_look_leaves_out_what_grows(self, store: Store) -> None:
        await fill(store)
        whole, brief = await store.thread("t"), await store.thread("t", brief=True)
        assert whole is not None and brief is not None
        assert whole.hidden and whole.spared
        assert brief == whole._replace(hidden={}, runs={}, spared=frozenset())

    async def test_stretches_that_overlap_are_lifted_one_by_one(self, store: Store, reopen: Reopen) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(8)]
        seqs = [each.seq for each in stored if each is not None]
        stretches = {"a": (1, 5), "b": (3, 7), "c": (4, 5), "d": (2, 3), "e": (6, 8)}
        numbers: dict[str, int] = {}
        for name, (after, to) in stretches.items():
            hide = [Hidden("", seqs[after - 1], seqs[to - 1])]
            await store.commit(Change(thread_id="t", hide=hide, log=Operation(name, {})))
            numbers[name] = (await store.operations("t", 1))[0].seq
        store = await reopen()
        left = dict(stretches)
        for name in ("b", "e", "a", "d", "c"):
            covered = {n for after, to in left.values() for n in range(after + 1, to + 1)}
            expected = [f"c-{n}" for n in range(8, 0, -1) if n not in covered]
            query = Query(thread_id="t")
            listed = await store.list_checkpoints(query)
            assert [each.record.key.checkpoint_id for each in listed] == expected
            assert await store.count(query) == len(expected)
            for offset in range(len(expected) + 1):
                oldest = await store.list_checkpoints(Query(thread_id="t", order="oldest", offset=offset, limit=2))
                names = [each.record.key.checkpoint_id for each in oldest]
                assert names == expected[::-1][offset : offset + 2]
            after, before = seqs[2], seqs[6]
            part = Query(thread_id="t", after_seq=after, before_seq=before)
            within = [each.record.key.checkpoint_id for each in await store.list_checkpoints(part)]
            assert within == [each for each in expected if each in ("c-4", "c-5", "c-6")]
            assert await store.count(part) == len(within)
            await store.commit(Change(thread_id="t", show=[numbers[name]]))
            del left[name]
        assert await store.count(Query(thread_id="t")) == 8

    async def test_stretches_of_single_runs_hide_what_is_theirs(self, store: Store) -> None:
        """Stretches at random, hidden and shown and with checkpoints that go, against a look at each of them."""
        rng = random.Random(3)  # noqa: S311  # no secret
        await store.commit(put(make_record("c0")))
        for n in range(1, 16):
            record = make_record(f"c{n}", step=n, parents=[f"c{rng.randrange(max(0, n - 3), n)}"])
            await store.commit(put(record))
        every = await store.list_checkpoints(Query(thread_id="t", hidden="also"))
        runs = sorted({stored.run for stored in every})
        assert len(runs) > 2
        hidden: dict[int, Hidden] = {}
        for turn in range(24):
            first, last = sorted(rng.sample([0, *(stored.seq for stored in every)], 2))
            stretch = Hidden("", first, last, rng.choice([None, *runs]))
            if turn < 12:
                await store.commit(Change(thread_id="t", hide=[stretch], log=Operation("x", {})))
                hidden[(await store.operations("t", 1))[0].seq] = stretch
            else:
                await store.commit(Change(thread_id="t", show=[hidden.popitem()[0]]))
            if turn in (6, 18):
                every, gone = every[:-2], every[-2:]
                await store.delete("t", keys=[stored.record.key for stored in gone])
            await self._check_hidden(store, every, list(hidden.values()))

    async def _check_hidden(self, store: Store, every: Sequence[Stored], stretches: Sequence[Hidden]) -> None:
        covered = [
            stored
            for stored in every
            if any(h.after < stored.seq <= h.to and h.run in (None, stored.run) for h in stretches)
        ]
        visible = [stored for stored in every if stored not in covered]
        low, high = every[-2].seq, every[1].seq
        within = [stored for stored in visible if low < stored.seq < high]
        middle = Query(thread_id="t", after_seq=low, before_seq=high)
        for query, expected in (
            (Query(thread_id="t"), visible),
            (Query(thread_id="t", order="oldest"), visible[::-1]),
            (Query(thread_id="t", hidden="only"), covered),
            (middle, within),
            (replace(middle, order="oldest"), within[::-1]),
            (replace(middle, order="oldest", limit=2, offset=1), within[::-1][1:3]),
        ):
            assert ids(await store.list_checkpoints(query)) == ids(expected), query
            assert await store.count(query) == len(expected), query
        for loaded in await store.read_many([stored.record.key for stored in every]):
            assert loaded.stored.hidden is (loaded.stored.seq in {stored.seq for stored in covered})
        shown = [stored.run for stored in visible[::-1] if stored.run == stored.seq > low]
        assert [run for run in await store.started("t", "", low) if run in {stored.seq for stored in every}] == shown

    async def test_threads_are_outlined_for_collections(self, store: Store) -> None:
        assert await store.outlines() == ([], None)
        one = make_object(b"one")
        stored = await store.commit(put(make_record("c-1", roots=[one]), one))
        assert stored is not None
        await store.commit(follow("t", "c"))
        await store.put_writes(Key("waiting", "", "c"), [Write("task", 0, "ch", b"", b"w", 1)], [])
        await store.commit(put(make_record("x", "other"), log=Operation("x", {})))
        found, position = await store.outlines()
        assert position is None
        known = {outline.thread_id: outline for outline in found}
        assert known.keys() == {"t", "other"}, "a thread without checkpoints is none of retention's business"
        assert (known["t"].family, known["t"].most, known["t"].has_log) == (stored.family, 2, False)
        assert (known["other"].most, known["other"].has_log) == (1, True)

    async def test_a_family_is_swept_until_something_goes(self, store: Store) -> None:
        one, two = make_object(b"one"), make_object(b"two")

        async def is_swept() -> bool:
            found, _ = await store.outlines()
            return next(outline.is_swept for outline in found if outline.thread_id == "t")

        stored = await store.commit(put(make_record("c-1", roots=[one]), one))
        assert stored is not None
        assert not await is_swept()
        await store.sweep(stored.family, pretend=[])
        assert not await is_swept()
        await store.sweep(stored.family)
        assert await is_swept()
        await store.commit(follow("t", "c"))
        await store.commit(follow("t", "c"))
        key = Key("t", "", "c-3")
        changes: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.delete("t", keys=[Key("t", "", "c-2")]),
            lambda: store.commit(put(make_record("c-1", roots=[two]), two, head="never")),
            lambda: store.put_writes(key, [Write("task", -1, "ch", one.hash, b"w", 1)], [one]),
            lambda: store.put_writes(key, [Write("task", -1, "ch", two.hash, b"w", 1)], [two]),
            lambda: store.delete("t", keys=[key]),
        ]
        for n, change in enumerate(changes):
            await store.sweep(stored.family)
            assert await is_swept()
            await change()
            # A write that takes the place of none leaves nothing behind; a store may be careful all the same.
            assert n == 2 or not await is_swept(), n
        await store.commit(put(make_record("b", "branch", step=0), origin=Key("t", "", "c-1")))
        await store.sweep(stored.family)
        assert await is_swept()
        await store.delete("branch")
        assert not await is_swept()

    async def test_the_newest_of_a_thread_and_its_branches(self, store: Store) -> None:
        assert await store.newest("t", 10) is None
        origins = [await store.commit(follow("t", "c")) for _ in range(3)]
        for name, origin in (("one", origins[1]), ("two", origins[0])):
            assert origin is not None
            begun = make_record("b", name, step=0)._replace(parents=(origin.record.key,))
            await store.commit(put(begun, origin=origin.record.key))
        await store.commit(put(make_record("s", "two", "sub")))
        await store.commit(follow("t", "c"))
        await store.commit(follow("stranger", "c"))

        found = await store.newest("t", 3, branches=True)
        assert found is not None
        assert [stored.record.key[::2] for stored in found.listed] == [("t", "c-4"), ("two", "s"), ("two", "b")]
        assert found.heads == {Key("t", "", "c-4"), Key("two", "sub", "s"), Key("two", "", "b"), Key("one", "", "b")}
        assert found.total == 7
        every = await store.newest("t", 100, branches=True, without="sub")
        assert every is not None
        names = [stored.record.key[::2] for stored in every.listed]
        assert names == [("t", "c-4"), ("two", "b"), ("one", "b"), ("t", "c-3"), ("t", "c-2"), ("t", "c-1")]
        assert (every.total, Key("two", "sub", "s") in every.heads) == (6, False)
        alone = await store.newest("t", 2)
        assert alone is not None
        assert [stored.record.key.checkpoint_id for stored in alone.listed] == ["c-4", "c-3"]
        assert alone.total == 4
        assert alone.heads == {Key("t", "", "c-4")}
        own = await store.newest("one", 10, branches=True)
        assert own is not None
        assert [stored.record.key[::2] for stored in own.listed] == [("one", "b")]

    async def test_the_newest_leave_out_what_is_hidden(self, store: Store) -> None:
        for name in ("t", *(f"b{n}" for n in range(6))):
            origin = None if name == "t" else Key("t", "", "c-1")
            parents = (origin,) if origin is not None else ()
            await store.commit(put(make_record("c-1", name)._replace(parents=parents), origin=origin))
        for n in range(1, 6):
            two = await store.commit(follow(f"b{n}", "c"))
            assert two is not None
            hide = [Hidden("", two.seq - 1, two.seq)]
            await store.commit(
                Change(thread_id=f"b{n}", moves=[Move("", "c-1")], hide=hide, log=Operation("rewind", {}))
            )
        found = await store.newest("t", 2, branches=True)
        assert found is not None
        assert [stored.record.key[::2] for stored in found.listed] == [("b5", "c-1"), ("b4", "c-1")]
        assert found.total == 7

    async def test_a_stretch_hides_one_run_only(self, store: Store) -> None:
        one, two = [await store.commit(follow("t", "c")) for _ in range(2)]
        other = await store.commit(put(make_record("x", step=2, parents=["c-1"])))
        three = await store.commit(put(make_record("y", step=3, parents=["c-2"])))
        assert one is not None and two is not None and other is not None and three is not None
        await store.commit(
            Change(thread_id="t", hide=[Hidden("", one.seq, three.seq, other.run)], log=Operation("a", {}))
        )
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["y", "c-2", "c-1"]
        assert ids(await store.list_checkpoints(Query(thread_id="t", hidden="only"))) == ["x"]

    # -- retention's deletions

    async def test_pruning_goes_with_the_commit_and_spares_heads_pins_and_beginnings(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(6)]
        seqs = [s.seq for s in stored if s is not None]
        assert stored[1] is not None and stored[2] is not None and stored[3] is not None
        await store.put_writes(stored[2].record.key, [Write("task", 0, "ch", b"", b"", 0)], [])
        await store.commit(Change(thread_id="t", pins=[Pin(stored[1].record.key, True)]))
        await store.commit(put(make_record("b", "branch", step=0), origin=stored[3].record.key))
        thread = await store.thread("t")
        await store.commit(follow("t", "c")._replace(prune=seqs))
        assert thread is not None
        assert thread.spared == {seqs[1], seqs[3]}
        assert await store.count(Query(thread_id="t", spared=True)) == 2
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-7", "c-4", "c-2"]
        await store.commit(Change(thread_id="t", pins=[Pin(stored[1].record.key, False)]))
        await store.delete("branch")
        await store.commit(Change(thread_id="t", prune=[*seqs, seqs[-1] + 1]))
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-7"]

    async def test_a_commit_that_fails_prunes_nothing(self, store: Store) -> None:
        one = await store.commit(follow("t", "c"))
        await store.commit(follow("t", "c"))
        assert one is not None
        with pytest.raises(HeadMoved):
            await store.commit(follow("t", "c", expect="c-1")._replace(prune=[one.seq]))
        assert await store.read("t", "", "c-1") is not None

    async def test_a_deletion_can_spare_what_retention_must_keep(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(4)]
        keys = [s.record.key for s in stored if s is not None]
        await store.commit(Change(thread_id="t", pins=[Pin(keys[0], True)]))
        await store.commit(put(make_record("b", "branch", step=0), origin=keys[1]))
        assert (await store.delete("t", keys=keys, spare=True)).checkpoints == 1
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-4", "c-2", "c-1"]
        assert (await store.delete("t", keys=keys[:1])).checkpoints == 1

    async def test_what_is_spared_keeps_its_pending_writes(self, store: Store) -> None:
        stored = await with_protected(store)
        early = Key("t", "", "early")
        gone = await store.delete("t", keys=[*(each.record.key for each in stored), early], spare=True)

        assert gone.checkpoints == 2
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-5", "c-2", "c-1"]
        assert await written_ids(store) == ["c-1", "c-2", "c-5"]  # early writes are not those of a protected one
        await self._check_writes(store, ["c-1", "c-2", "c-5"])
        await self._check_hidden_writes(store)

    async def test_what_is_spared_below_a_step_keeps_its_pending_writes(self, store: Store) -> None:
        await with_protected(store)
        gone = await store.delete("t", before_step=4, spare=True)
        assert gone.checkpoints == 1
        assert await written_ids(store) == ["c-1", "c-2", "c-4", "c-5", "early"]  # early writes have no step
        await self._check_writes(store, ["c-1", "c-2", "c-4", "c-5"])
        await self._check_hidden_writes(store)

    async def test_what_is_spared_of_a_whole_thread_keeps_its_pending_writes(self, store: Store) -> None:
        await with_protected(store)
        await store.put_writes(Key("t", "sub", "early"), [Write("task", 0, "ch", b"", b"", 0)], [])
        gone = await store.delete("t", spare=True)
        assert gone.checkpoints == 2
        assert await written_ids(store) == ["c-1", "c-2", "c-5"]
        await self._check_writes(store, ["c-1", "c-2", "c-5"])
        await self._check_hidden_writes(store)
        raw = await store.raw("t")
        assert raw is not None
        assert list(raw.lines) == [""]

    async def test_what_a_commit_does_not_prune_keeps_its_pending_writes(self, store: Store) -> None:
        stored = await with_protected(store)
        await store.commit(follow("t", "c")._replace(prune=[each.seq for each in stored]))
        assert await written_ids(store) == ["c-1", "c-2", "early"]
        await self._check_writes(store, ["c-1", "c-2"])
        other = await with_protected(store, "other")
        await store.commit(Change(thread_id="other", prune=[each.seq for each in other]))
        assert await written_ids(store, "other") == ["c-1", "c-2", "c-5", "early"]

    async def test_without_sparing_writes_go_with_what_is_deleted(self, store: Store) -> None:
        stored = await with_protected(store)
        assert (await store.delete("t", keys=[each.record.key for each in stored[:2]])).checkpoints == 2
        assert await written_ids(store) == ["c-3", "c-4", "c-5", "early"]
        assert (await store.delete("t", before_step=6)).checkpoints == 3
        assert await written_ids(store) == ["early"]

    async def test_a_thread_that_has_early_writes_only_is_still_there(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        assert first is not None
        record = make_record("b", "branch", step=0)._replace(parents=(first.record.key,))
        common = Common(first.place, Root(b"", b"", ()))
        await store.commit(put(record, origin=first.record.key, commons={"t": common}))
        await store.commit(Change(thread_id="branch", log=Operation("kept", {})))
        await store.put_writes(Key("branch", "", "early"), [Write("task", 0, "ch", b"", b"", 0)], [])

        await store.delete("branch", before_step=100)

        thread, origin = await store.thread("branch"), await store.thread("t")
        assert thread is not None and origin is not None
        assert (thread.heads, thread.origin, set(thread.commons)) == ({}, first.record.key, {"t"})
        assert [entry.kind for entry in await store.operations("branch", 10)] == ["kept"]
        assert origin.spared == {first.seq}  # the branch lives, as far as its origin is concerned
        assert ids(await store.list_threads(10, 0, headless=True)) == ["c1"]

        await store.delete("branch", keys=[Key("branch", "", "early")])

        origin = await store.thread("t")
        assert origin is not None
        assert (await store.thread("branch"), origin.spared, origin.commons) == (None, frozenset(), {})
        assert await store.operations("branch", 10) == []

    async def test_a_head_that_falls_back_is_no_activity(self, store: Store) -> None:
        await store.commit(follow("t", "c"))
        await store.commit(follow("t", "c"))
        await store.commit(follow("other", "d"))
        before = await store.read("t")
        await store.delete("t", keys=[Key("t", "", "c-2")])
        after = await store.read("t")
        assert before is not None and after is not None
        assert ids(await store.list_threads(10, 0)) == ["d-1", "c-1"]
        assert after.generation == before.generation + 1
        assert (await raw_thread(store)).lines[""].turned

    async def test_a_namespace_left_empty_is_gone_and_the_others_stay(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(put(make_record("s1", "t", "sub")))
        await store.commit(Change(thread_id="t", log=Operation("kept", {})))
        await store.delete("t", keys=[Key("t", "sub", "s1")])
        assert list((await raw_thread(store)).lines) == [""]
        assert len(await store.operations("t", 10)) == 1

    async def _check_hidden_writes(self, store: Store) -> None:
        """Nothing is hidden but writes that are there."""
        raw = await store.raw("t")
        assert raw is not None
        assert sorted({stretch.writes_of or "" for stretch in raw.hidden}) == await written_ids(store)

    async def _check_writes(self, store: Store, names: Sequence[str]) -> None:
        """Of these checkpoints one write can be seen and one is hidden, as they were put."""
        raw = await store.raw("t")
        assert raw is not None
        held: dict[str, list[str]] = {}
        for key, write in raw.writes:
            held.setdefault(key.checkpoint_id, []).append(write.task_id)
        for name in names:
            loaded = await store.read("t", "", name, writes=True)
            assert loaded is not None
            assert [write.task_id for write in loaded.writes] == ["new"]
            assert sorted(held[name]) == ["new", "old"]

    async def test_numbers_of_pruned_checkpoints_are_not_given_again(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(3)]
        seqs = [s.seq for s in stored if s is not None]
        await store.commit(Change(thread_id="t", moves=[Move("", "c-1")]))
        await store.commit(Change(thread_id="t", prune=seqs))
        again = await store.commit(follow("t", "d"))
        assert again is not None
        assert again.seq > seqs[-1]

    async def test_entries_of_the_log_can_be_dropped(self, store: Store) -> None:
        await store.commit(put(make_record()))
        for kind in "abc":
            await store.commit(Change(thread_id="t", log=Operation(kind, {})))
        entries = await store.operations("t", 10)
        await store.delete("t", keys=[], operations=[entries[1].seq, entries[2].seq])
        assert [o.kind for o in await store.operations("t", 10)] == ["c"]

    async def test_a_stretch_that_hides_nothing_any_more_is_dropped(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(3)]
        one, two, three = [s for s in stored if s is not None]
        hide = [Hidden("", one.seq, three.seq, one.run)]
        await store.commit(Change(thread_id="t", moves=[Move("", "c-1")], hide=hide, log=Operation("rewind", {})))
        await store.delete("t", keys=[two.record.key])
        kept = await store.thread("t")
        await store.delete("t", keys=[three.record.key])
        dropped = await store.thread("t")
        assert kept is not None and dropped is not None
        assert len(kept.hidden) == 1
        assert dropped.hidden == {}

    async def test_garbage_is_noted_and_swept_a_little_at_a_time(self, store: Store) -> None:
        leaves = [make_object(b"leaf %d" % n * 100) for n in range(40)]
        for n, leaf in enumerate(leaves):
            await store.commit(put(make_record(f"c{n}", step=n, roots=[leaf]), leaf))
        first = await store.thread("t")
        assert first is not None
        assert first.garbage == 0
        keys = [Key("t", "", f"c{n}") for n in range(30)]
        pretended = await store.sweep(first.family, pretend=keys)
        await store.delete("t", keys=keys)
        second = await store.thread("t")
        assert second is not None
        assert second.garbage > 0
        swept = objects = 0
        finished = False
        while not finished:
            done = await store.sweep(first.family, effort=7)
            swept, objects, finished = swept + done.size_bytes, objects + done.objects, done.finished
        assert (objects, swept) == pretended[:2]
        assert objects == 30
        assert await stored_objects(store, first.family, *leaves) == {leaf.hash for leaf in leaves[30:]}
        third = await store.thread("t")
        assert third is not None
        assert third.garbage == 0

    async def test_a_sweep_in_parts_keeps_what_is_committed_meanwhile(self, store: Store) -> None:
        leaves = [make_object(b"leaf %d" % n) for n in range(30)]
        for n, leaf in enumerate(leaves):
            await store.commit(put(make_record(f"c{n}", step=n, roots=[leaf]), leaf))
        loaded = await store.read("t")
        assert loaded is not None
        family = loaded.stored.family
        await store.delete("t", keys=[Key("t", "", f"c{n}") for n in range(29)])
        for n in range(29):
            await store.sweep(family, effort=2)
            again = leaves[n]
            await store.commit(put(make_record(f"d{n}", step=n, roots=[again]), again))
        await store.sweep(family, effort=1000)
        assert await stored_objects(store, family, *leaves) == {leaf.hash for leaf in leaves}

    # -- counting, and lists in other orders

    async def test_counting_agrees_with_listing(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(6)]
        seqs = [s.seq for s in stored if s is not None]
        await store.commit(put(make_record("s1", "t", "sub")))
        await store.commit(Change(thread_id="t", hide=[Hidden("", seqs[1], seqs[3])], log=Operation("x", {})))
        await store.commit(Change(thread_id="t", pins=[Pin(Key("t", "", "c-1"), True), Pin(Key("t", "", "c-3"), True)]))
        for query in (
            Query(thread_id="t"), Query(thread_id="t", namespace=None), Query(thread_id="t", hidden="also"),
            Query(thread_id="t", hidden="only"), Query(thread_id="t", after_seq=seqs[2]), Query(thread_id="ghost"),
            Query(thread_id="t", after_seq=seqs[2], hidden="also"), Query(thread_id="t", before_seq=seqs[3]),
            Query(thread_id="t", step_max=4, hidden="only"), Query(limit=3), Query(thread_id="t", filter={"a": 1}),
            Query(thread_id="t", spared=True), Query(thread_id="t", spared=False),
            Query(thread_id="t", run=seqs[0]), Query(namespace=None, offset=2),
            Query(thread_id="t", namespace="sub", hidden="only"),
        ):  # fmt: skip
            assert await store.count(query) == len(await store.list_checkpoints(query)), query

    async def test_lists_can_go_from_the_oldest_on(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(4)]
        seqs = [s.seq for s in stored if s is not None]
        query = Query(thread_id="t", order="oldest", after_seq=seqs[0], limit=2)
        assert ids(await store.list_checkpoints(query)) == ["c-2", "c-3"]

    async def test_threads_without_a_head_are_listed_when_asked_for(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(put(make_record("c1", "u")))
        await store.commit(Change(thread_id="t", moves=[Move("", None)]))
        assert [s.record.key.thread_id for s in await store.list_threads(9, 0)] == ["u"]
        assert sorted(s.record.key.thread_id for s in await store.list_threads(9, 0, headless=True)) == ["t", "u"]

    async def test_objects_can_be_fetched_one_level_deep(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        top = make_object(b"top", leaf)
        first = await store.commit(put(make_record(roots=[top]), top, leaf))
        assert first is not None
        assert await store.fetch(first.family, [top.hash], below=False) == [top]
        assert await store.fetch(first.family, [], below=False) == []

    # -- leaving objects out

    async def test_objects_may_be_left_out_while_their_base_is_stored(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("c2", step=2)))
        assert first is not None
        base = Base(first.record.key, first.digest)
        await store.commit(put(make_record("c3", step=3, roots=[leaf]), base=base))
        loaded = await store.read("t", objects=True)
        assert loaded is not None
        assert list(loaded.objects) == [leaf]

    async def test_a_base_that_is_not_the_head_is_checked_too(self, store: Store) -> None:
        for _ in range(2):  # so that the store knows the head, and may take a short way
            await store.commit(follow("t", "c"))
        record = make_record("c-3", step=3, parents=["c-2"])
        draft = Draft(record, (), (Base(Key("t", "", "gone"), b"\0" * 16),))
        with pytest.raises(BaseGone):
            await store.commit(Change("t", build=lambda _: draft))
        assert await head_id(store) == "c-2"
        first = await store.read("t", "", "c-1")
        assert first is not None
        draft = Draft(record, (), (Base(first.stored.record.key, first.stored.digest),))
        await store.commit(Change("t", build=lambda _: draft))
        assert await head_id(store) == "c-3"

    async def test_a_base_that_is_gone_or_replaced_is_refused(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        assert first is not None
        base = Base(first.record.key, first.digest)
        await store.commit(put(make_record(body=b"other")))
        with pytest.raises(BaseGone):
            await store.commit(put(make_record("c2", step=2), base=base))
        await store.delete("t")
        with pytest.raises(BaseGone):
            await store.commit(put(make_record("c2", step=2), base=base))
        assert await store.thread("t") is None

    async def test_a_base_of_another_family_is_refused(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        await store.commit(put(make_record("c1", "u")))
        assert first is not None
        with pytest.raises(BaseGone):
            await store.commit(put(make_record("c2", "u", step=2), base=Base(first.record.key, first.digest)))

    async def test_an_object_sent_again_is_not_swept(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await store.commit(put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("c2", step=2)))
        await store.delete("t", keys=[Key("t", "", "c1")])
        await store.commit(put(make_record("c3", step=3, roots=[leaf]), leaf))
        assert first is not None
        assert await store.sweep(first.family) == Swept(0, 0)
        assert await store.fetch(first.family, [leaf.hash]) == [leaf]

    # -- pending writes

    async def test_writes_may_come_before_their_checkpoint(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        key = Key("t", "", "c1")
        await store.put_writes(key, [Write("task", 0, "channel", leaf.hash, b"body", 9, "path")], [leaf])
        await store.commit(put(make_record()))
        loaded = await store.read("t", writes=True)
        assert loaded is not None
        assert [w._replace(seq=0) for w in loaded.writes] == [
            Write("task", 0, "channel", leaf.hash, b"body", 9, "path")
        ]
        assert await store.fetch(loaded.stored.family, [leaf.hash]) == [leaf]

    async def test_of_regular_writes_the_first_stays_of_special_ones_the_last(self, store: Store) -> None:
        key = Key("t", "", "c1")
        await store.commit(put(make_record()))
        for body in (b"first", b"second"):
            await store.put_writes(key, [Write("t1", 0, "a", b"", body, 0), Write("t1", -1, "err", b"", body, 0)], [])
        loaded = await store.read("t", writes=True)
        assert loaded is not None
        assert [(w.idx, w.body) for w in loaded.writes] == [(-1, b"second"), (0, b"first")]

    async def test_writes_come_in_the_order_of_path_task_and_index(self, store: Store) -> None:
        key = Key("t", "", "c1")
        await store.commit(put(make_record()))
        places = [("~b", "t1", 0), ("", "t3", 0), ("~a", "t2", 10), ("~a", "t2", 9), ("~B", "t4", 0), ("~ä", "t5", 0)]
        for path, task, idx in places:
            await store.put_writes(key, [Write(task, idx, "ch", b"", b"", 0, path)], [])
        loaded = await store.read("t", writes=True)
        assert loaded is not None
        assert [(w.task_path, w.task_id, w.idx) for w in loaded.writes] == sorted(places)

    async def test_writes_can_be_hidden_and_shown(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])
        loaded = await store.read("t", writes=True)
        assert loaded is not None
        stretch = Hidden("", 0, loaded.writes[0].seq, None, "c1")
        await store.commit(Change(thread_id="t", hide=[stretch], log=Operation("rewind", {})))
        (operation,) = await store.operations("t", 1)
        hidden = await store.read("t", writes=True)
        await store.commit(Change(thread_id="t", show=[operation.seq]))
        shown = await store.read("t", writes=True)
        assert hidden is not None and shown is not None
        assert (len(hidden.writes), len(shown.writes)) == (0, 1)

    async def test_what_is_written_anew_stands_beside_hidden_writes(self, store: Store, reopen: Reopen) -> None:
        key = Key("t", "", "c1")

        async def shown(held: Store) -> list[tuple[int, bytes]]:
            loaded = await held.read("t", writes=True)
            assert loaded is not None
            return [(write.idx, write.body) for write in loaded.writes]

        async def hide(**change: Any) -> None:
            loaded = await store.read("t", writes=True)
            assert loaded is not None
            seqs = [write.seq for write in loaded.writes]
            operation = change["amend"][0].seq if change else 0
            stretch = Hidden("", min(seqs) - 1, max(seqs), None, "c1", operation)
            log = None if change else Operation("rewind", {})
            await store.commit(Change(thread_id="t", hide=[stretch], log=log, **change))

        await store.commit(put(make_record()))
        for body in (b"one", b"two", b"three"):
            await store.put_writes(key, [Write("t1", n, "a", b"", body, 0) for n in (0, 1, -1)], [])
            assert await shown(store) == [(n, body) for n in (-1, 0, 1)]
            if body != b"three":
                await hide()
                assert await shown(store) == []
        second, first = await store.operations("t", 10)
        await hide(show=[second.seq], amend=[second._replace(undone=True)])
        assert await shown(store) == [(n, b"two") for n in (-1, 0, 1)]
        store = await reopen()
        assert await shown(store) == [(n, b"two") for n in (-1, 0, 1)]
        await hide(show=[first.seq], amend=[first._replace(undone=True)])
        assert await shown(store) == [(n, b"one") for n in (-1, 0, 1)]
        await store.put_writes(key, [Write("t1", 0, "a", b"", b"late", 0)], [])
        assert await shown(store) == [(n, b"one") for n in (-1, 0, 1)]

    async def test_shown_writes_take_the_place_of_what_came_since(self, store: Store) -> None:
        key = Key("t", "", "c1")
        await store.commit(put(make_record()))
        await store.put_writes(key, [Write("t1", 0, "a", b"", b"first", 0)], [])
        loaded = await store.read("t", writes=True)
        assert loaded is not None
        stretch = Hidden("", 0, loaded.writes[0].seq, None, "c1")
        await store.commit(Change(thread_id="t", hide=[stretch], log=Operation("rewind", {})))
        await store.put_writes(key, [Write("t1", 0, "a", b"", b"since", 0)], [])
        (operation,) = await store.operations("t", 1)
        await store.commit(Change(thread_id="t", show=[operation.seq]))
        loaded = await store.read("t", writes=True)
        assert loaded is not None and [write.body for write in loaded.writes] == [b"first"]

    async def test_hidden_writes_are_kept_by_a_sweep_and_go_with_their_checkpoint(self, store: Store) -> None:
        leaf, other, key = make_object(b"leaf"), make_object(b"other"), Key("t", "", "c1")
        stored = await store.commit(put(make_record()))
        assert stored is not None
        for each in (leaf, other):
            await store.put_writes(key, [Write("t1", 0, "a", each.hash, b"", 0)], [each])
            loaded = await store.read("t", writes=True)
            assert loaded is not None
            stretch = Hidden("", loaded.writes[0].seq - 1, loaded.writes[0].seq, None, "c1")
            await store.commit(Change(thread_id="t", hide=[stretch], log=Operation("rewind", {})))
        await store.commit(follow("t", "c"))
        await store.sweep(stored.family)
        assert {found.hash for found in await store.fetch(stored.family, [leaf.hash, other.hash])} == {
            leaf.hash,
            other.hash,
        }
        await store.delete("t", keys=[key])
        await store.sweep(stored.family)
        assert await store.fetch(stored.family, [leaf.hash, other.hash]) == []

    async def test_one_commit_makes_checkpoints_in_several_namespaces_with_their_writes(self, store: Store) -> None:
        leaf, other, value = make_object(b"leaf"), make_object(b"other"), make_object(b"value")
        sources = [
            await store.commit(put(make_record("c", namespace=name, roots=[root]), root))
            for name, root in (("", leaf), ("inner", other))
        ]
        drafts = []
        for source, root in zip(sources, (leaf, other), strict=True):
            assert source is not None
            record = make_record("c", "branch", namespace=source.record.key.namespace, roots=[root])
            record = record._replace(parents=(source.record.key,))
            drafts.append(Draft(record, [value], [Base(source.record.key, source.digest)]))
        writes = [
            (draft.record.key, Write("task", 0, "a", value.hash, draft.record.key.namespace.encode(), 0))
            for draft in drafts
        ]
        change = Change(
            thread_id="branch",
            build=lambda _: drafts[0],
            origin=Key("t", "", "c"),
            beside=drafts[1:],
            writes=writes,
            log=Operation("branch", {}),
            log_thread="t",
        )
        await store.commit(change)
        await store.commit(change)
        for name, root in (("", leaf), ("inner", other)):
            loaded = await store.read("branch", name, objects=True, writes=True)
            assert loaded is not None
            assert [found.hash for found in loaded.objects] == [root.hash]
            assert [(write.body, write.children) for write in loaded.writes] == [(name.encode(), value.hash)]
            thread = await store.thread("branch", ancestry=True)
            assert thread is not None
            assert [place.key for place in thread.runs[loaded.stored.run]] == [Key("t", name, "c")]
        assert len(await store.operations("t", 10)) == 1
        bad = drafts[1]._replace(bases=[Base(Key("t", "inner", "c"), b"wrong")])
        changed = drafts[0]._replace(record=drafts[0].record._replace(key=Key("third", "", "c")))
        bad = bad._replace(record=bad.record._replace(key=Key("third", "inner", "c")))
        with pytest.raises(BaseGone):
            await store.commit(
                Change(thread_id="third", build=lambda _: changed, origin=Key("t", "", "c"), beside=[bad])
            )
        assert await store.thread("third") is None

    # -- hiding, moving, pins, the log

    async def test_hidden_is_not_deleted(self, store: Store) -> None:
        one, two, three = [await store.commit(follow("t", "c")) for _ in range(3)]
        assert one is not None and two is not None and three is not None
        await store.commit(
            Change(
                thread_id="t",
                moves=[Move("", "c-1")],
                hide=[Hidden("", one.seq, three.seq)],
                log=Operation("rewind", {"n": 2}),
            )
        )

        loaded = await store.read("t", "", "c-3")

        assert loaded is not None and loaded.stored.hidden
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-1"]
        everything = await store.list_checkpoints(Query(thread_id="t", hidden="also"))
        assert [(s.record.step, s.hidden) for s in everything] == [(3, True), (2, True), (1, False)]

    async def test_showing_lifts_what_one_operation_hid(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(3)]
        seqs = [s.seq for s in stored if s is not None]
        await store.commit(Change(thread_id="t", hide=[Hidden("", seqs[1], seqs[2])], log=Operation("a", {})))
        await store.commit(Change(thread_id="t", hide=[Hidden("", 0, seqs[0])], log=Operation("b", {})))
        first = (await store.operations("t", 10))[1]

        amended = Operation("a", {"note": 1}, first.seq, undone=True)
        await store.commit(Change(thread_id="t", show=[first.seq], amend=[amended]))

        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-3", "c-2"]
        second, changed = await store.operations("t", 10)
        assert (second.kind, second.undone) == ("b", False)
        assert changed == amended
        thread = await store.thread("t")
        assert thread is not None
        assert [list(h) for h in thread.hidden.values()] == [[Hidden("", 0, seqs[0], operation=second.seq)]]

    async def test_an_operation_is_undone_once(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(Change(thread_id="t", log=Operation("a", {})))
        (entry,) = await store.operations("t", 1)
        undone = entry._replace(undone=True)
        await store.commit(Change(thread_id="t", amend=[undone]))
        for wrong in (undone, entry._replace(seq=entry.seq + 99, undone=True)):
            with pytest.raises(HeadMoved):
                await store.commit(Change(thread_id="t", moves=[Move("", None)], amend=[wrong]))
        assert await head_id(store) == "c1"

    async def test_a_commit_that_starts_a_run_prunes_nothing(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(3)]
        seqs = [s.seq for s in stored if s is not None]
        await store.commit(Change(thread_id="t", moves=[Move("", "c-2")]))
        await store.commit(follow("t", "d")._replace(prune=seqs[:1]))
        assert await store.read("t", "", "c-1") is not None

    async def test_an_amended_operation_can_hide_anew(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(3)]
        seqs = [s.seq for s in stored if s is not None]
        await store.commit(Change(thread_id="t", hide=[Hidden("", seqs[1], seqs[2])], log=Operation("a", {})))
        (first,) = await store.operations("t", 10)
        hide = [Hidden("", 0, seqs[0], operation=first.seq)]
        await store.commit(Change(thread_id="t", show=[first.seq], hide=hide))
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-3", "c-2"]

    async def test_an_operation_can_be_logged_with_another_thread(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        assert first is not None
        log = Operation("branch", {"to": "branch"})
        await store.commit(put(make_record("b", "branch"), origin=first.record.key, log=log, log_thread="t"))
        assert [o.kind for o in await store.operations("t", 9)] == ["branch"]
        assert await store.operations("branch", 9) == []

    async def test_a_head_can_be_moved_to_nothing(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(Change(thread_id="t", moves=[Move("", None)]))
        assert await store.read("t") is None
        assert await store.read("t", "", "c1") is not None

    async def test_moving_the_head_of_a_namespace_that_is_not_there_moves_no_other(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(Change(thread_id="t", moves=[Move("ghost", None)]))
        assert await head_id(store) == "c1"

    async def test_a_checkpoint_replaced_and_moved_to_at_once_is_the_new_one(self, store: Store) -> None:
        old = await store.commit(put(make_record(body=b"old")))
        await store.commit(put(make_record(body=b"new"), moves=[Move("", "c1")]))
        assert old is not None
        with pytest.raises(BaseGone):
            await store.commit(put(make_record("c2"), base=Base(old.record.key, old.digest)))
        seen: list[bytes] = []

        def build(head: Stored | None) -> Draft:
            seen.append(head.record.body if head is not None else b"")
            return Draft(make_record("c3"), ())

        await store.commit(Change(thread_id="t", build=build))
        assert seen == [b"new"]

    async def test_writes_do_not_make_a_thread_active(self, store: Store) -> None:
        await store.commit(put(make_record("a", "one")))
        await store.commit(put(make_record("b", "two")))
        await store.put_writes(Key("one", "other", "z"), [Write("task", 0, "ch", b"", b"", 0)], [])
        assert [s.record.key.thread_id for s in await store.list_threads(9, 0)] == ["two", "one"]

    async def test_an_operation_that_cannot_be_packed_changes_nothing(self, store: Store) -> None:
        with pytest.raises(UnstorableValue):
            await store.commit(put(make_record(), log=Operation("x", {"a": object()})))
        assert await store.find("c1") == []

    async def test_a_pin_can_be_set_and_lifted(self, store: Store) -> None:
        stored = await store.commit(put(make_record()))
        assert stored is not None
        for pinned in (True, False):
            await store.commit(Change(thread_id="t", pins=[Pin(stored.record.key, pinned)]))
            loaded = await store.read("t")
            assert loaded is not None
            assert loaded.stored.pinned is pinned

    async def test_the_log_is_newest_first_and_exact(self, store: Store) -> None:
        await store.commit(put(make_record()))
        for n in range(5):
            await store.commit(Change(thread_id="t", log=Operation(f"op{n}", {"n": n, "t": (1, b"x")})))
        found = await store.operations("t", 3)
        assert [o.kind for o in found] == ["op4", "op3", "op2"]
        assert found[0].data == {"n": 4, "t": (1, b"x")}
        assert found[0].seq > found[1].seq

    # -- 11 one behaviour: filters, order, paging

    async def test_a_filter_means_exactly_this_value(self, store: Store) -> None:
        values: list[Any] = [1, True, 1.0, "1", None, [1], {"a": 1, "b": 2}, 0, False]
        for n, value in enumerate(values):
            await store.commit(put(make_record(f"c{n}", metadata={"k": value, "n": n})))
        await store.commit(put(make_record("without")))
        for n, value in enumerate(values):
            assert ids(await store.list_checkpoints(Query(filter={"k": value}))) == [f"c{n}"], value
        assert ids(await store.list_checkpoints(Query(filter={"k": {"a": 1}}))) == []
        assert ids(await store.list_checkpoints(Query(filter={"k": 1, "n": 1}))) == []

    async def test_hostile_filters_are_only_data(self, store: Store) -> None:
        hostile = ["x') OR '1'='1", "$.a", "a.b[0]", "k\0", 'k"', "k'; DROP TABLE checkpoints; --", "é" * 1000]
        await store.commit(put(make_record("c", metadata=dict.fromkeys(hostile, "v"))))
        await store.commit(put(make_record("d", metadata={"a": {"b": ["v"]}})))
        for key in hostile:
            assert ids(await store.list_checkpoints(Query(filter={key: "v"}))) == ["c"]
            assert ids(await store.list_checkpoints(Query(filter={"k": key}))) == []

    async def test_paging_walks_everything_once(self, store: Store) -> None:
        for n in range(7):
            await store.commit(put(make_record(f"c{n}", metadata={"even": n % 2 == 0})))
        pages = [ids(await store.list_checkpoints(Query(thread_id="t", limit=3, offset=at))) for at in (0, 3, 6, 9)]
        assert pages == [["c6", "c5", "c4"], ["c3", "c2", "c1"], ["c0"], []]
        even = Query(thread_id="t", filter={"even": True}, limit=2, offset=1)
        assert ids(await store.list_checkpoints(even)) == ["c4", "c2"]
        assert ids(await store.list_checkpoints(Query(thread_id="t", limit=0))) == []

    async def test_lists_can_go_by_id(self, store: Store) -> None:
        for name in ("b", "a", "Z", "ä", "c"):
            await store.commit(put(make_record(name)))
        found = await store.list_checkpoints(Query(thread_id="t", order="id"))
        assert ids(found) == ["ä", "c", "b", "a", "Z"]
        assert ids(await store.list_checkpoints(Query(thread_id="t", order="id", before_id="b"))) == ["a", "Z"]

    async def test_lists_by_id_span_threads_and_namespaces(self, store: Store) -> None:
        names = ["b", "\uffff", "a", "🙂", "Z", "ä", "c", "b2"]
        for n, name in enumerate(names):
            await store.commit(put(make_record(name, f"t{n % 3}", ("", "sub")[n % 2], metadata={"even": n % 2 == 0})))

        async def found(**query: Any) -> list[str]:
            return ids(await store.list_checkpoints(Query(namespace=None, order="id", **query)))

        assert await found() == ["🙂", "\uffff", "ä", "c", "b2", "b", "a", "Z"]
        assert await found(limit=3) == ["🙂", "\uffff", "ä"]
        assert await found(before_id="ä", limit=2, offset=1) == ["b2", "b"]
        assert await found(filter={"even": True}, limit=2) == ["c", "b"]
        assert await found(filter={"even": True}, limit=2, offset=1) == ["b", "a"]
        assert await found(filter={"even": True}, before_id="c", limit=9) == ["b", "a", "Z"]
        assert await found(thread_id="t1", limit=2) == ["\uffff", "b2"]

    async def test_the_numbers_of_writes_grow_and_are_never_used_twice(self, store: Store) -> None:
        seen: list[int] = []
        await store.commit(put(make_record()))
        for at, (name, idx) in enumerate([("c1", 0), ("c2", -1), ("c1", 1), ("c2", -1), ("c3", 0), ("c2", -1)]):
            await store.put_writes(Key("t", "", name), [Write("task", idx, f"{at}", b"", b"w", 1)], [])
            raw = await raw_thread(store)
            seen += [write.seq for _, write in raw.writes if write.channel == f"{at}"]
            assert len({write.seq for _, write in raw.writes}) == len(raw.writes)
        await store.delete("t", keys=[Key("t", "", "c2"), Key("t", "", "c3")])
        await store.put_writes(Key("t", "", "c4"), [Write("task", 0, "last", b"", b"w", 1)], [])
        seen.append((await raw_thread(store)).writes[-1][1].seq)
        assert len(seen) == 7
        assert seen == sorted(set(seen))

    async def test_ids_that_are_uuids_are_texts_like_any_other(self, store: Store) -> None:
        uuid = "61626364-6566-6768-696a-6b6c6d6e6f70"
        names = [
            uuid, "abcdefghijklmnop", "6162", uuid.replace("-", ""), uuid.upper(), uuid + "0", uuid[:-1], "61626364-",
            "61626364.6566-6768-696a-6b6c6d6e6f70", "61626364-6566-6768-696a-6b6c6d6e6f7g", "ffffffff", "ä", "-",
            *(f"{n}1626364-6566-6768-696a-6b6c6d6e6f70" for n in "05f"), "ffffffff-ffff-ffff-ffff-ffffffffffff",
            "00000000-0000-0000-0000-000000000000",
        ]  # fmt: skip
        for n, name in enumerate(names):
            await store.commit(put(make_record(name, "tu"[n % 2], metadata={"odd": n % 2 == 1})))
            await store.put_writes(Key("t", "", "c"), [Write(name, 0, "ch", b"", b"w", 1)], [])
            await store.put_writes(Key("t", "", name), [Write("task", 0, name, b"", b"w", 1)], [])

        async def found(**query: Any) -> list[str]:
            asked = Query(namespace=None, order="id", **query)
            listed = ids(await store.list_checkpoints(asked))
            assert await store.count(asked) == len(listed)
            return listed

        expected = sorted(names, reverse=True)
        assert await found() == expected
        for at in range(len(names)):
            assert await found(limit=3, offset=at) == expected[at : at + 3]
        for before in (*names, "", "0", "6", "61626364-6566-6768-696a-6b6c6d6e6f7", "g", "🙂"):
            less = [name for name in expected if name < before]
            assert await found(before_id=before) == less
            assert await found(before_id=before, limit=4, offset=1) == less[1:5]
            odd = [name for name in less if names.index(name) % 2]
            assert await found(before_id=before, filter={"odd": True}, limit=3) == odd[:3]
            assert await found(before_id=before, thread_id="u") == odd
            by_seq = await store.list_checkpoints(Query(namespace=None, before_id=before))
            assert ids(by_seq) == sorted(less, key=names.index, reverse=True)
        for n, name in enumerate(names):
            assert await store.find(name) == [Key("tu"[n % 2], "", name)]
        raw = await raw_thread(store)
        assert sorted(w.task_id for key, w in raw.writes if key.checkpoint_id == "c") == sorted(names)
        await store.delete("t", keys=[Key("t", "", uuid)])
        assert await found() == [name for name in expected if name != uuid]
        left = [key.checkpoint_id for key, w in (await raw_thread(store)).writes if w.task_id == "task"]
        assert left == names[1:]

    async def test_a_list_can_be_of_one_id(self, store: Store) -> None:
        places = [("t", ""), ("t", "sub"), ("u", ""), ("u", "deep")]
        for n, place in enumerate(places):
            for name in ("a", "same", "z"):
                await store.commit(put(make_record(name, *place, metadata={"n": n})))
        stored = await store.read("t", "", "same")
        assert stored is not None
        hide = Hidden("", stored.stored.seq - 1, stored.stored.seq)
        await store.commit(Change(thread_id="t", hide=[hide], log=Operation("x", {})))

        async def found(**query: Any) -> list[tuple[str, str]]:
            asked = Query(checkpoint_id="same", **query)
            listed = await store.list_checkpoints(asked)
            assert await store.count(asked) == len(listed)
            assert {stored.record.key.checkpoint_id for stored in listed} <= {"same"}
            return [stored.record.key[:2] for stored in listed]

        for order in ("seq", "id"):
            assert await found(namespace=None, order=order) == places[:0:-1]
        assert await found(namespace=None, order="oldest", hidden="also") == places
        assert await found(hidden="only") == [("t", "")]
        assert await found() == [("u", "")]
        assert await found(namespace="sub") == [("t", "sub")]
        assert await found(thread_id="u", namespace=None) == [("u", "deep"), ("u", "")]
        assert await found(thread_id="u", namespace="deep") == [("u", "deep")]
        assert await found(thread_id="t", hidden="also") == [("t", "")]
        assert await found(thread_id="t") == []
        assert await found(namespace=None, filter={"n": 2}) == [("u", "")]
        assert await found(namespace=None, limit=1, offset=1) == [("u", "")]
        assert await found(namespace=None, before_id="same") == []
        assert await found(thread_id="ghost", namespace=None) == []
        assert await store.list_checkpoints(Query(checkpoint_id="none", namespace=None)) == []

    async def test_lists_can_stop_at_a_sequence_or_a_step(self, store: Store) -> None:
        stored = [await store.commit(follow("t", "c")) for _ in range(4)]
        third = stored[2]
        assert third is not None
        before = Query(thread_id="t", before_seq=third.seq)
        assert ids(await store.list_checkpoints(before)) == ["c-2", "c-1"]
        assert ids(await store.list_checkpoints(Query(thread_id="t", step_max=3, limit=1))) == ["c-3"]

    async def test_a_list_can_span_every_thread(self, store: Store) -> None:
        for name in ("a", "b", "a"):
            await store.commit(follow(name, "x"))
        found = await store.list_checkpoints(Query())
        assert [(s.record.key.thread_id, s.record.step) for s in found] == [("a", 2), ("b", 1), ("a", 1)]

    async def test_what_is_listed_agrees_with_what_is_read(self, store: Store) -> None:
        await store.commit(put(make_record(metadata={"k": 1})))
        (listed,) = await store.list_checkpoints(Query(thread_id="t"))
        loaded = await store.read("t")
        assert loaded is not None
        assert listed.digest == loaded.stored.digest
        assert listed.record == loaded.stored.record._replace(children=b"", body=b"")

    # -- from one store to another

    async def test_a_raw_thread_tells_what_nothing_else_does(self, store: Store) -> None:
        assert await store.raw("t") is None
        first = await store.commit(put(make_record()))
        second = await store.commit(put(make_record("c2", step=2)))
        assert first is not None and second is not None
        key, later = first.record.key, Key("t", "sub", "later")
        await store.put_writes(key, [Write("task", 0, "ch", b"", b"w", 1)], [])
        await store.put_writes(later, [Write("task", 0, "ch", b"", b"v", 1)], [])
        loaded = await store.read("t", "", "c1", writes=True)
        assert loaded is not None
        stretch = Hidden("", 0, loaded.writes[0].seq, None, "c1")
        await store.commit(
            Change(thread_id="t", moves=[Move("", "c1")], hide=[stretch], pins=[Pin(key, True)], log=Operation("a", {}))
        )
        await store.commit(put(make_record("b1", "branch"), origin=key, log=Operation("b", {}), log_thread="t"))

        raw, branch = await store.raw("t", kin=True), await store.raw("branch")

        assert raw is not None and branch is not None
        assert (raw.thread_id, raw.origin, raw.began, raw.note) == ("t", None, 0, b"")
        assert raw.lines.keys() == {"", "sub"}
        assert raw.lines[""][:3] == ("c1", True, 3)
        assert raw.lines["sub"][:3] == (None, False, 0)
        assert (raw.lines[""].newest, raw.lines["sub"].newest) == (second.seq, 0)
        assert raw.pinned == {first.seq}
        assert [o.kind for o in raw.operations] == ["a", "b"]
        assert list(raw.hidden) == [stretch._replace(operation=raw.operations[0].seq)]
        assert [(at, write.body) for at, write in raw.writes] == [(key, b"w"), (later, b"v")]
        assert sorted(raw.kin) == ["branch", "t"]
        assert raw.identity == branch.identity
        assert (branch.origin, branch.began, list(branch.kin)) == (key, first.seq, [])
        assert branch.lines[""].active > raw.lines[""].active > 0

    async def test_a_beginning_that_is_deleted_has_no_number(self, store: Store) -> None:
        first = await store.commit(put(make_record()))
        assert first is not None
        await store.commit(put(make_record("b1", "branch"), origin=first.record.key))
        await store.delete("t")
        raw = await store.raw("branch")
        assert raw is not None
        assert (raw.origin, raw.began) == (first.record.key, 0)

    async def test_a_family_has_an_identity_for_life(self, store: Store, reopen: Reopen) -> None:
        for name in ("t", "other", "deleted"):
            await store.commit(follow(name, "c"))
        before = [await store.raw(name) for name in ("t", "other", "deleted")]
        await store.delete("deleted")
        store = await reopen()
        await store.commit(follow("deleted", "c"))
        after = [await store.raw(name) for name in ("t", "other", "deleted")]
        assert [raw.identity for raw in before[:2] if raw] == [raw.identity for raw in after[:2] if raw]
        assert len({raw.identity for raw in before + after if raw}) == 4

    async def test_reserved_numbers_are_not_given(self, store: Store) -> None:
        other = await store.commit(follow("other", "o"))
        base = await store.adopt(Part("t", reserve=100))
        again = await store.adopt(Part("t", reserve=10))
        assert again >= base + 100
        stored = await store.commit(put(make_record(), log=Operation("x", {})))
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])
        raw = await store.raw("t")
        assert other is not None and stored is not None and raw is not None
        assert min(stored.seq, raw.operations[0].seq, raw.writes[0][1].seq) > again + 10

    async def test_a_thread_is_taken_over_as_it_was(self, store: Store, reopen: Reopen) -> None:
        source = await elsewhere()
        await store.commit(follow("before", "x"))
        (_, part), number = await take_over(store, source, "t", "branch")
        store = await reopen()

        for given in part.threads:
            assert await raw_thread(store, given.thread_id) == plain(given)
        for name in ("t", "branch"):
            query = Query(thread_id=name, namespace=None, hidden="also")
            ours, theirs = await source.list_checkpoints(query), await store.list_checkpoints(query)
            assert [s.record for s in theirs] == [s.record for s in ours]
            assert [(s.seq, s.run) for s in theirs] == [(number(s.seq), number(s.run)) for s in ours]
            assert [(s.pinned, s.hidden, s.digest) for s in theirs] == [(s.pinned, s.hidden, s.digest) for s in ours]
            assert await store.count(query) == len(ours)
            assert await store.count(Query(thread_id=name)) == await source.count(Query(thread_id=name))
        one, other = await source.thread("t", ancestry=True), await store.thread("t", ancestry=True)
        assert one is not None and other is not None
        assert {number(run) for run in one.ancestry} == other.ancestry.keys()
        assert {number(run) for run in one.runs} == other.runs.keys()
        assert {number(seq) for seq in one.spared} == other.spared
        assert other.heads == one.heads
        read = await store.read("t", "", "c-1", objects=True)
        assert read is not None
        assert len(read.objects) == 2
        visible = await store.read("t", "", "c-3", writes=True)
        assert visible is not None
        assert [write.idx for write in visible.writes] == [1]

    async def test_taking_over_again_changes_nothing(self, store: Store) -> None:
        parts, _ = await take_over(store, await elsewhere(), "t", "branch")
        before = [await raw_thread(store, name) for name in ("t", "branch")]
        spared = await store.thread("t", ancestry=True)
        for part in parts:
            await store.adopt(part)
        assert [await raw_thread(store, name) for name in ("t", "branch")] == before
        assert await store.thread("t", ancestry=True) == spared
        query = Query(thread_id="t", namespace=None, hidden="also")
        assert await store.count(query) == len(await store.list_checkpoints(query)) == 5

    async def test_a_thread_goes_on_where_it_was_taken_over(self, store: Store) -> None:
        source = await elsewhere()
        _, number = await take_over(store, source, "t", "branch")
        ours, theirs = await source.commit(follow("t", "n")), await store.commit(follow("t", "n"))
        again, too = await source.commit(follow("t", "n")), await store.commit(follow("t", "n"))
        assert ours is not None and theirs is not None and again is not None and too is not None
        assert theirs.record == ours.record
        assert theirs.seq > max(number(ours.seq - 1), max(e.seq for e in await store.operations("t", 9)))
        assert theirs.run == theirs.seq == too.run  # the head had been moved: a new run
        one, other = await source.thread("t"), await store.thread("t")
        assert one is not None and other is not None
        follows = [(place.key, number(place.run), number(place.seq)) for place in one.runs[ours.run]]
        assert [tuple(place) for place in other.runs[theirs.run]] == follows
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ids(
            await source.list_checkpoints(Query(thread_id="t"))
        )

    async def test_what_is_half_there_is_not_listed(self, store: Store) -> None:
        source = await elsewhere()
        for stored in await source.list_checkpoints(Query(thread_id="t", namespace=None)):
            loaded = await source.read(*stored.record.key, objects=True)
            assert loaded is not None
            await store.adopt(Part("t", objects=loaded.objects, checkpoints=[loaded.stored]))
        assert await store.list_threads(9, 0) == []
        assert await store.read("t") is None
        assert await store.read("t", "", "c-1") is not None

    async def test_a_thread_that_is_given_anew_loses_what_it_had(self, store: Store) -> None:
        await take_over(store, await elsewhere(), "t", "branch")
        key = Key("t", "", "c-2")
        line = RawLine("c-1", turned=True, generation=9, active=1)
        await store.adopt(Part("t", gone=[key, Key("t", "", "nope")], threads=[RawThread("t", "", b"", {"": line})]))

        raw = await raw_thread(store)
        assert raw.lines == {"": line._replace(active=0)}
        assert (raw.pinned, raw.hidden, raw.operations, raw.writes, raw.note) == (frozenset(), [], [], [], b"")
        assert ids(await store.list_checkpoints(Query(thread_id="t", namespace=None))) == ["c-4", "c-3", "c-1"]
        assert await store.count(Query(thread_id="t")) == 3
        assert raw.commons.keys() == {"branch"}  # a thread that is not named keeps what it has in common
        assert await store.read("t", "sub") is None

    async def test_runs_and_common_states_are_given_anew(self, store: Store) -> None:
        (_, part), _ = await take_over(store, await elsewhere(), "t", "branch")
        branch = next(raw for raw in part.threads if raw.thread_id == "branch")
        assert branch.lines[""].runs
        (common,) = branch.commons["t"]
        common = common._replace(place=common.place._replace(seq=common.place.seq + 1))
        lines = {"": branch.lines[""]._replace(runs=frozenset())}
        await store.adopt(Part("t", threads=[branch._replace(lines=lines, commons={"t": [common]})]))

        thread, origin = await store.thread("branch", ancestry=True), await store.thread("t")
        assert thread is not None and origin is not None
        assert thread.runs == {}
        assert thread.ancestry.keys() >= branch.lines[""].runs
        assert {name: list(held) for name, held in thread.commons.items()} == {"t": [common]}
        assert {name: list(held) for name, held in origin.commons.items()} == {"branch": [common]}

    async def test_a_checkpoint_may_be_given_anew(self, store: Store) -> None:
        (part, _), _ = await take_over(store, await elsewhere(), "t", "branch")
        old = next(s for s in part.checkpoints if s.record.key == Key("t", "", "c-1"))
        leaf = make_object(b"other leaf")
        record = old.record._replace(children=leaf.hash, body=b"replaced")
        await store.adopt(Part("t", objects=[leaf], checkpoints=[old._replace(record=record)]))
        await store.adopt(Part("t", checkpoints=[old._replace(record=record, seq=old.seq + 500)]))

        loaded = await store.read("t", "", "c-1", objects=True)

        assert loaded is not None
        assert (loaded.stored.record, loaded.stored.seq, list(loaded.objects)) == (record, old.seq + 500, [leaf])
        assert loaded.stored.pinned
        listed = ids(await store.list_checkpoints(Query(thread_id="t", hidden="also")))
        assert listed == ["c-1", "c-4", "c-3", "c-2"]

    async def test_nothing_is_taken_over_by_halves(self, store: Store) -> None:
        await store.commit(follow("other", "o"))
        stored = await store.commit(follow("t", "mine"))
        assert stored is not None
        theirs = stored._replace(record=make_record("x", "other"), seq=stored.seq + 50)
        headless = RawThread("t", "", b"", {"": RawLine("nope", turned=False, generation=1, active=1)})
        before = await store.raw("t"), await store.raw("other")
        with pytest.raises(InvalidInput, match="other"):
            await store.adopt(Part("t", b"note", reserve=5, checkpoints=[theirs]))
        with pytest.raises(InvalidInput, match="other"):
            await store.adopt(Part("new", threads=[before[1] or headless]))
        with pytest.raises(CheckpointNotFound):
            await store.adopt(Part("t", b"note", gone=[stored.record.key], threads=[headless]))
        assert (await store.raw("t"), await store.raw("other")) == before
        assert await store.raw("new") is None
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["mine-1"]

    async def test_a_sweep_keeps_what_was_taken_over(self, store: Store) -> None:
        await take_over(store, await elsewhere(), "t", "branch")
        leaf, top = make_object(b"leaf"), make_object(b"top", make_object(b"leaf"))
        thread = await store.thread("t")
        assert thread is not None
        await store.sweep(thread.family)
        assert await stored_objects(store, thread.family, top) == {leaf.hash, top.hash}
        await store.delete("t")
        await store.delete("branch")
        assert await store.fetch(thread.family, [leaf.hash]) == []

    @pytest.mark.parametrize("again", [0, 1])
    async def test_retention_spares_where_a_branch_that_was_taken_over_began(self, store: Store, again: int) -> None:
        parts, _ = await take_over(store, await elsewhere(), "t", "branch")
        await store.adopt(parts[again])
        await store.commit(Change(thread_id="t", pins=[Pin(Key("t", "", "c-1"), False)]))
        await store.delete("t", before_step=99, spare=True)
        assert ids(await store.list_checkpoints(Query(thread_id="t", hidden="also"))) == ["c-3", "c-1"]
        await store.delete("branch")
        await store.delete("t", before_step=99, spare=True)
        assert ids(await store.list_checkpoints(Query(thread_id="t", hidden="also"))) == ["c-3"]

    async def test_a_note_stays_whatever_becomes_of_the_thread(self, store: Store) -> None:
        await store.adopt(Part("t", b"first"))
        await store.commit(follow("t", "c"))
        await store.adopt(Part("t", reserve=5))
        raw = await store.raw("t")
        assert raw is not None
        assert raw.note == b"first"
        await store.delete("t")
        assert await store.raw("t") is None

    async def test_activity_comes_along(self, store: Store) -> None:
        for name in ("old", "new"):
            await store.commit(follow(name, "x"))
        raw = await store.raw("old")
        assert raw is not None
        late = raw._replace(lines={"": raw.lines[""]._replace(active=raw.lines[""].active + 10**9)})
        await store.adopt(Part("old", threads=[late]))
        assert [s.record.key.thread_id for s in await store.list_threads(9, 0)] == ["old", "new"]

    # -- 12 no surprise waiting

    async def test_the_blocking_face_works_inside_a_running_loop(self, store: Store) -> None:
        async def main() -> None:
            run_to_end(store.blocking.commit(follow("t", "c")))
            assert run_to_end(store.blocking.read("t")) is not None

        thread = threading.Thread(target=lambda: asyncio.run(main()))
        thread.start()
        await _joined(thread)
        assert await head_id(store) == "c-1"

    async def test_a_failing_writer_does_not_hold_up_the_next(self, store: Store) -> None:
        for _ in range(3):
            with pytest.raises(HeadMoved):
                await store.commit(follow("t", "c", expect="never"))
        await store.commit(follow("t", "c"))
        assert await head_id(store) == "c-1"

    async def test_what_breaks_off_one_writer_reaches_that_writer_only(self, store: Store) -> None:
        class BreakOff(BaseException):
            pass

        def build(_: Stored | None) -> Draft:
            raise BreakOff

        with pytest.raises(BreakOff):
            await store.commit(Change(thread_id="t", build=build))
        await store.commit(follow("t", "c"))
        assert await head_id(store) == "c-1"

    async def test_a_closed_store_says_so(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.close()
        await store.close()
        many = store.read_many([Key("t", "", "c1")])
        for call in (store.read("t"), many, store.commit(follow("t", "c")), store.list_threads(1, 0)):
            with pytest.raises(StoreClosed):
                await call


def _listed(loaded: Loaded) -> Loaded:
    """Return what was read with lists in it, ready to be compared."""
    return loaded._replace(objects=list(loaded.objects), writes=list(loaded.writes))


async def _joined(thread: threading.Thread) -> None:
    """Wait for a thread, on either face."""
    thread.join(60)
    assert not thread.is_alive()
