"""Histories that come from another store."""

from __future__ import annotations

import pytest

from everstep.errors import CheckpointNotFound, HeadMoved, InvalidInput
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import (
    Change,
    Hidden,
    Key,
    Move,
    Operation,
    Part,
    Pin,
    Query,
    RawLine,
    RawThread,
    Store,
    Write,
)
from everstep.testing.builders import (
    Reopen,
    committed,
    elsewhere,
    follow,
    hashes_of,
    identities_of,
    ids,
    keys_of,
    kinds_of,
    make_object,
    make_record,
    moved_by,
    names_found,
    new_thread,
    plain,
    put,
    raw_thread,
    required,
    shared_states_of,
    stored_objects,
    take_over,
    thread_ids_of,
)
from everstep.transfer import renumber


class TakingOverContract:
    """Histories that come from another store."""

    async def test_a_raw_thread_tells_what_nothing_else_does(self, store: Store) -> None:
        assert await store.raw("t") is None
        first = await committed(store, put(make_record()))
        second = await committed(store, put(make_record("c2", step=2)))
        key = first.record.key
        later = Key("t", "sub", "later")
        await store.put_writes(key, [Write("task", 0, "ch", b"", b"w", 1)], [])
        await store.put_writes(later, [Write("task", 0, "ch", b"", b"v", 1)], [])
        loaded = await required(store.read("t", "", "c1", writes=True))
        stretch = Hidden("", 0, loaded.writes[0].seq, None, "c1")
        await store.commit(
            Change(thread_id="t", moves=[Move("", "c1")], hide=[stretch], pins=[Pin(key, True)], log=Operation("a", {}))
        )
        await store.commit(put(make_record("b1", "branch"), origin=key, log=Operation("b", {}), log_thread="t"))

        raw = await required(store.raw("t", family_threads=True))
        branch = await required(store.raw("branch"))
        assert (raw.thread_id, raw.origin, raw.began, raw.note) == ("t", None, 0, b"")
        assert raw.lines.keys() == {"", "sub"}
        assert raw.lines[""][:3] == ("c1", True, 3)
        assert raw.lines["sub"][:3] == (None, False, 0)
        assert (raw.lines[""].newest, raw.lines["sub"].newest) == (second.seq, 0)
        assert raw.pinned == {first.seq}
        assert kinds_of(raw.operations) == ["a", "b"]
        assert list(raw.hidden) == [stretch._replace(operation=raw.operations[0].seq)]
        assert [(at, write.body) for at, write in raw.writes] == [(key, b"w"), (later, b"v")]
        assert sorted(raw.family_threads) == ["branch", "t"]
        assert raw.identity == branch.identity
        assert (branch.origin, branch.began, list(branch.family_threads)) == (key, first.seq, [])
        assert branch.lines[""].active > raw.lines[""].active > 0

    async def test_a_beginning_that_is_deleted_has_no_number(self, store: Store) -> None:
        first = await committed(store, put(make_record()))
        await store.commit(put(make_record("b1", "branch"), origin=first.record.key))
        await store.delete("t")
        raw = await required(store.raw("branch"))
        assert (raw.origin, raw.began) == (first.record.key, 0)

    async def test_a_family_has_an_identity_for_life(self, store: Store, reopen: Reopen) -> None:
        for name in ("t", "other", "deleted"):
            await store.commit(follow(name, "c"))
        before = await identities_of(store, "t", "other", "deleted")
        await store.delete("deleted")
        store = await reopen()
        # The same name again is another family, so it must not get the identity of the deleted one.
        await store.commit(follow("deleted", "c"))
        after = await identities_of(store, "t", "other", "deleted")
        assert before[:2] == after[:2]
        assert before[2] not in after
        assert len(set(after)) == 3

    async def test_reserved_numbers_are_not_given(self, store: Store) -> None:
        await committed(store, follow("other", "o"))
        base = await store.adopt(Part("t", reserve=100))
        again = await store.adopt(Part("t", reserve=10))
        assert again >= base + 100
        stored = await committed(store, put(make_record(), log=Operation("x", {})))
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])
        raw = await required(store.raw("t"))
        # Checkpoints, operations and writes each count for themselves, and all three must respect what is
        # reserved.
        assert min(stored.seq, raw.operations[0].seq, raw.writes[0][1].seq) > again + 10

    async def test_a_thread_is_taken_over_as_it_was(self, store: Store, reopen: Reopen) -> None:
        source = await elsewhere()
        # So that the store has given numbers of its own, and those that come must be moved.
        await store.commit(follow("before", "x"))
        (_, part), number = await take_over(store, source, "t", "branch")
        store = await reopen()

        for given in part.threads:
            assert await raw_thread(store, given.thread_id) == plain(given)
        for name in ("t", "branch"):
            query = Query(thread_id=name, namespace=None, hidden="also")
            ours = await source.list_checkpoints(query)
            theirs = await store.list_checkpoints(query)
            for their, our in zip(theirs, ours, strict=True):
                assert their.record == our.record
                assert (their.seq, their.segment) == (number(our.seq), number(our.segment))
                assert (their.pinned, their.hidden, their.digest) == (our.pinned, our.hidden, our.digest)
            assert await store.count(query) == len(ours)
            assert await store.count(Query(thread_id=name)) == await source.count(Query(thread_id=name))
        one = await required(source.thread("t", ancestry=True))
        other = await required(store.thread("t", ancestry=True))
        assert set(map(number, one.ancestry)) == other.ancestry.keys()
        assert set(map(number, one.segments)) == other.segments.keys()
        assert set(map(number, one.protected)) == other.protected
        assert other.heads == one.heads
        read = await required(store.read("t", "", "c-1", objects=True))
        assert len(read.objects) == 2
        visible = await required(store.read("t", "", "c-3", writes=True))
        assert [write.idx for write in visible.writes] == [1]

    async def test_taking_over_again_changes_nothing(self, store: Store) -> None:
        parts, _ = await take_over(store, await elsewhere(), "t", "branch")
        before = await raw_thread(store, "t"), await raw_thread(store, "branch")
        protected = await store.thread("t", ancestry=True)
        for part in parts:
            await store.adopt(part)
        assert (await raw_thread(store, "t"), await raw_thread(store, "branch")) == before
        assert await store.thread("t", ancestry=True) == protected
        query = Query(thread_id="t", namespace=None, hidden="also")
        assert await store.count(query) == len(await store.list_checkpoints(query)) == 5

    async def test_a_thread_goes_on_where_it_was_taken_over(self, store: Store) -> None:
        source = await elsewhere()
        _, number = await take_over(store, source, "t", "branch")
        ours = await committed(source, follow("t", "n"))
        theirs = await committed(store, follow("t", "n"))
        await committed(source, follow("t", "n"))
        too = await committed(store, follow("t", "n"))
        assert theirs.record == ours.record
        assert theirs.seq > max(number(ours.seq - 1), max(e.seq for e in await store.operations("t", 9)))
        # The head had been moved: a new segment.
        assert theirs.segment == theirs.seq == too.segment
        one = await required(source.thread("t"))
        other = await required(store.thread("t"))
        for their, our in zip(other.segments[theirs.segment], one.segments[ours.segment], strict=True):
            assert their == (our.key, number(our.segment), number(our.seq))
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ids(
            await source.list_checkpoints(Query(thread_id="t"))
        )

    async def test_what_is_half_there_is_not_listed(self, store: Store) -> None:
        source = await elsewhere()
        # Checkpoints without their thread are what an import leaves behind that was broken off.
        for stored in await source.list_checkpoints(Query(thread_id="t", namespace=None)):
            loaded = await required(source.read(*stored.record.key, objects=True))
            await store.adopt(Part("t", objects=loaded.objects, checkpoints=[loaded.stored]))
        assert await store.list_threads(9, 0) == []
        assert await store.read("t") is None
        assert await store.read("t", "", "c-1") is not None

    async def test_a_thread_that_is_given_anew_loses_what_it_had(self, store: Store) -> None:
        await take_over(store, await elsewhere(), "t", "branch")
        key = Key("t", "", "c-2")
        line = RawLine("c-1", head_was_moved=True, generation=9, active=1)
        await store.adopt(Part("t", gone=[key, Key("t", "", "nope")], threads=[RawThread("t", "", b"", {"": line})]))

        raw = await raw_thread(store)
        assert raw.lines == {"": line._replace(active=0)}
        assert (raw.pinned, raw.hidden, raw.operations, raw.writes, raw.note) == (frozenset(), [], [], [], b"")
        # What was hidden is visible again, since the stretches went with the old thread.
        assert ids(await store.list_checkpoints(Query(thread_id="t", namespace=None))) == ["c-4", "c-3", "c-1"]
        assert await store.count(Query(thread_id="t")) == 3
        # A thread that is not named keeps what it has in common.
        assert raw.shared_states.keys() == {"branch"}
        assert await store.read("t", "sub") is None

    async def test_segments_and_shared_states_are_given_anew(self, store: Store) -> None:
        (_, part), _ = await take_over(store, await elsewhere(), "t", "branch")
        branch = next(raw for raw in part.threads if raw.thread_id == "branch")
        assert branch.lines[""].segments
        (common,) = branch.shared_states["t"]
        common = common._replace(place=common.place._replace(seq=common.place.seq + 1))
        lines = {"": branch.lines[""]._replace(segments=frozenset())}
        await store.adopt(Part("t", threads=[branch._replace(lines=lines, shared_states={"t": [common]})]))

        thread = await required(store.thread("branch", ancestry=True))
        origin = await required(store.thread("t"))
        assert thread.segments == {}
        # The family still knows what the segment follows, even if no thread claims it.
        assert thread.ancestry.keys() >= branch.lines[""].segments
        assert shared_states_of(thread) == {"t": [common]}
        assert shared_states_of(origin) == {"branch": [common]}

    async def test_a_checkpoint_may_be_given_anew(self, store: Store) -> None:
        (part, _), _ = await take_over(store, await elsewhere(), "t", "branch")
        old = next(s for s in part.checkpoints if s.record.key == Key("t", "", "c-1"))
        leaf = make_object(b"other leaf")
        record = old.record._replace(children=leaf.hash, body=b"replaced")
        await store.adopt(Part("t", objects=[leaf], checkpoints=[old._replace(record=record)]))
        # Under a new number the checkpoint moves to the end of its thread, and is still one checkpoint.
        await store.adopt(Part("t", checkpoints=[old._replace(record=record, seq=old.seq + 500)]))

        loaded = await required(store.read("t", "", "c-1", objects=True))

        assert (loaded.stored.record, loaded.stored.seq, list(loaded.objects)) == (record, old.seq + 500, [leaf])
        assert loaded.stored.pinned
        listed = ids(await store.list_checkpoints(Query(thread_id="t", hidden="also")))
        assert listed == ["c-1", "c-4", "c-3", "c-2"]

    async def test_nothing_is_taken_over_by_halves(self, store: Store) -> None:
        await store.commit(follow("other", "o"))
        stored = await committed(store, follow("t", "mine"))
        theirs = stored._replace(record=make_record("x", "other"), seq=stored.seq + 50)
        headless = RawThread("t", "", b"", {"": RawLine("nope", head_was_moved=False, generation=1, active=1)})
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
        leaf = make_object(b"leaf")
        top = make_object(b"top", make_object(b"leaf"))
        thread = await required(store.thread("t"))
        await store.sweep(thread.family)
        assert await stored_objects(store, thread.family, top) == {leaf.hash, top.hash}
        await store.delete("t")
        await store.delete("branch")
        assert await store.fetch(thread.family, [leaf.hash]) == []

    @pytest.mark.parametrize("again", [0, 1])
    async def test_retention_spares_where_a_branch_that_was_taken_over_began(self, store: Store, again: int) -> None:
        parts, _ = await take_over(store, await elsewhere(), "t", "branch")
        # Either half coming twice must not make the store forget, or count twice, where the branch began.
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
        raw = await required(store.raw("t"))
        assert raw.note == b"first"
        await store.delete("t")
        assert await store.raw("t") is None

    async def test_activity_comes_along(self, store: Store) -> None:
        for name in ("old", "new"):
            await store.commit(follow(name, "x"))
        raw = await required(store.raw("old"))
        late = raw._replace(lines={"": raw.lines[""]._replace(active=raw.lines[""].active + 10**9)})
        await store.adopt(Part("old", threads=[late]))
        assert thread_ids_of(await store.list_threads(9, 0)) == ["old", "new"]

    async def test_whole_new_threads_come_at_once(self, store: Store, reopen: Reopen) -> None:
        source = MemoryStore()
        await store.commit(follow("old", "x"))
        parts = [await new_thread(source, "a"), await new_thread(source, "b")]
        await store.adopt_new(parts)
        store = await reopen()

        for part in parts:
            listed = await store.list_checkpoints(Query(thread_id=part.thread_id, namespace=None))
            theirs = await store.read_many(keys_of(listed[::-1]))
            # Numbers may be moved as a whole; the distance of the first one then holds for all of them.
            by = theirs[0].stored.seq - part.checkpoints[0].seq
            moved = moved_by(by)
            for their, our in zip(theirs, part.checkpoints, strict=True):
                expected = renumber.stored(our, moved)
                assert their.stored.record == our.record
                assert (their.stored.seq, their.stored.segment) == (expected.seq, expected.segment)
                assert their.stored.added_bytes == our.added_bytes
            found = await raw_thread(store, part.thread_id)
            given = plain(renumber.thread(part.threads[0], moved))
            assert (found.lines, found.writes) == (given.lines, given.writes)
            thread = await required(store.thread(part.thread_id, ancestry=True))
            for segment, follows in renumber.segments(part.segments, moved).items():
                assert tuple(thread.ancestry[segment]) == follows
            loaded = await required(store.read(part.thread_id, "", "c-1", objects=True))
            assert len(loaded.objects) == 2
            assert await names_found(store, filter={"of": part.thread_id}) == [part.thread_id]
            assert await names_found(store, prefix=part.thread_id) == [part.thread_id]
            later = await committed(store, follow(part.thread_id, "later"))
            assert later.seq > part.reserve + by
            assert later.record.parents[0].checkpoint_id == "d-2"
            # A sweep right away shows that the store knows what the new checkpoints need.
            await store.sweep(thread.family)
            assert len(await store.fetch(thread.family, hashes_of(part.objects))) == 2
        assert sorted(await names_found(store)) == ["a", "b", "old"]

    async def test_a_thread_that_is_here_does_not_come_as_a_new_one(self, store: Store) -> None:
        part = await new_thread(MemoryStore(), "t")
        await store.commit(follow("t", "mine"))
        before = await store.raw("t")
        with pytest.raises(HeadMoved):
            await store.adopt_new([part])
        assert await store.raw("t") == before
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["mine-1"]

    async def test_a_new_thread_without_its_head_does_not_come(self, store: Store) -> None:
        part = await new_thread(MemoryStore(), "t")
        with pytest.raises(CheckpointNotFound):
            await store.adopt_new([part._replace(checkpoints=part.checkpoints[:-2])])
        assert await store.raw("t") is None

    async def test_no_new_threads_are_nothing(self, store: Store) -> None:
        await store.adopt_new([])
        assert await names_found(store) == []
