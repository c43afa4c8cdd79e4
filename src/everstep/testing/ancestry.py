"""What follows what, within a thread and within its family."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from everstep.errors import CheckpointNotFound, InvalidInput
from everstep.history.checkpoint_tree import is_hidden
from everstep.stores.protocol import (
    SHARED_STATES_MAX,
    BaseRef,
    Change,
    Hidden,
    Key,
    Move,
    Operation,
    Place,
    Query,
    Root,
    SharedState,
    Store,
    Stored,
    Write,
)
from everstep.testing.builders import (
    Reopen,
    commit_steps,
    committed,
    fill,
    follow,
    head_id,
    ids,
    keys_of,
    make_object,
    make_record,
    places_of,
    put,
    required,
    segments_of,
    seqs_of,
    shared_states_of,
)


class AncestryContract:
    """What follows what, within a thread and within its family."""

    # -- families

    async def test_a_branch_joins_its_origins_family(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await committed(store, put(make_record(roots=[leaf]), leaf))
        origin = first.record.key
        base = BaseRef(first.record.key, first.digest)
        branch = await committed(store, put(make_record("b", "branch", step=0, roots=[leaf]), base=base, origin=origin))

        assert branch.family == first.family
        loaded = await required(store.read("branch", objects=True))
        assert list(loaded.objects) == [leaf]

    async def test_the_branches_of_a_thread_are_known(self, store: Store) -> None:
        first = await committed(store, put(make_record()))
        names = ["zoe", "anna"]
        for name in names:
            await store.commit(put(make_record("b", name, step=0), origin=first.record.key))
        nested = make_record("b", "nested", step=0)
        await store.commit(put(nested, origin=Key("anna", "", "b")))
        # A deletion of nothing must not cost the thread what it knows of its branches.
        await store.delete("t", keys=[])
        thread = await required(store.thread("t", branches=True))
        anna = await required(store.thread("anna", branches=True))
        assert list(thread.branches) == names
        assert list(anna.branches) == ["nested"]

    async def test_a_branch_of_nothing_is_refused(self, store: Store) -> None:
        with pytest.raises(CheckpointNotFound):
            await store.commit(put(make_record("b", "branch"), origin=Key("gone", "", "c")))
        assert await store.thread("branch") is None

    async def test_threads_of_their_own_share_nothing(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await committed(store, put(make_record(roots=[leaf]), leaf))
        other = await committed(store, put(make_record("c1", "u")))
        assert first.family != other.family
        assert await store.fetch(other.family, [leaf.hash]) == []

    async def test_a_merge_renews_what_threads_have_in_common(self, store: Store) -> None:
        first = await committed(store, put(make_record()))
        shared_states: list[SharedState] = []
        # Two more than a thread keeps, so that the oldest ones must have made room.
        for n in range(1, SHARED_STATES_MAX + 3):
            shared_states.append(SharedState(first.place._replace(seq=n), Root(b"", b"%d" % n, (3,))))
        await store.commit(
            put(make_record("b", "branch"), origin=first.record.key, shared_states={"t": shared_states[0]})
        )
        # The last one comes twice: what is known already must not push an older one out.
        for n, common in enumerate([*shared_states[1:], shared_states[-1]], 2):
            await store.commit(put(make_record(f"c{n}", step=n), shared_states={"branch": common}))
        for one, other in (("branch", "t"), ("t", "branch")):
            thread = await required(store.thread(one))
            assert shared_states_of(thread) == {other: shared_states[-SHARED_STATES_MAX:]}

    async def test_threads_of_two_families_have_nothing_in_common(self, store: Store) -> None:
        first = await committed(store, put(make_record()))
        await store.commit(put(make_record("c1", "u")))
        common = SharedState(first.place, Root(b"", b"", ()))
        for other in ("u", "nobody"):
            with pytest.raises(InvalidInput):
                await store.commit(put(make_record("c2", step=2), shared_states={other: common}))
            with pytest.raises(InvalidInput):
                await store.commit(put(make_record("c2", step=2), log=Operation("x", {}), log_thread=other))
        assert await head_id(store) == "c1"

    # -- runs: ancestry

    async def test_checkpoints_that_follow_each_other_are_one_run(self, store: Store) -> None:
        stored = await commit_steps(store, 3)
        thread = await required(store.thread("t"))
        first = min(seqs_of(stored))
        assert segments_of(stored) == [first] * 3
        assert thread.segments == {}
        assert segments_of(await store.list_checkpoints(Query(thread_id="t"))) == [first] * 3

    async def test_an_older_parent_starts_a_segment(self, store: Store) -> None:
        one, _two = await commit_steps(store, 2)
        third = await committed(store, put(make_record("x", step=2, parents=["c-1"])))
        fourth = await committed(store, follow("t", "d"))
        thread = await required(store.thread("t"))
        assert (third.segment, fourth.segment) == (third.seq, third.seq)
        assert thread.segments == {third.seq: (Place(one.record.key, one.segment, one.seq),)}

    async def test_a_checkpoint_without_parents_follows_the_head(self, store: Store) -> None:
        one = await committed(store, put(make_record()))
        two = await committed(store, put(make_record("c2", step=2)))
        assert two.segment == one.segment

    async def test_an_unknown_parent_starts_a_segment_that_follows_nothing(self, store: Store) -> None:
        await store.commit(put(make_record()))
        two = await committed(store, put(make_record("c2", step=2, parents=["nobody"])))
        thread = await required(store.thread("t"))
        assert two.segment == two.seq
        assert thread.segments == {two.seq: ()}

    async def test_what_follows_a_moved_head_starts_a_segment(self, store: Store) -> None:
        one, _two = await commit_steps(store, 2)
        await store.commit(Change(thread_id="t", moves=[Move("", "c-1")]))
        three = await committed(store, follow("t", "d"))
        four = await committed(store, follow("t", "d"))
        thread = await required(store.thread("t"))
        assert (three.segment, four.segment) == (three.seq, three.seq)
        assert thread.segments == {three.seq: (one.place,)}

    async def test_what_follows_a_deleted_head_starts_a_segment(self, store: Store) -> None:
        one, two = await commit_steps(store, 2)
        await store.delete("t", keys=[two.record.key])
        three = await committed(store, follow("t", "d"))
        thread = await required(store.thread("t"))
        assert thread.segments == {three.seq: (one.place,)}

    async def test_a_checkpoint_that_does_not_become_the_head_starts_a_segment(self, store: Store) -> None:
        one = await committed(store, put(make_record("c5")))
        side = await committed(store, put(make_record("c1", parents=["c5"]), head="never"))
        two = await committed(store, put(make_record("c6", parents=["c5"])))
        assert side.segment == side.seq
        assert two.segment == one.segment

    async def test_a_branch_and_a_merge_say_what_they_follow(self, store: Store, reopen: Reopen) -> None:
        one = await committed(store, put(make_record()))
        begun = make_record("b", "branch", step=0)._replace(parents=(one.record.key,))
        branch = await committed(store, put(begun, origin=one.record.key))
        two = await committed(store, follow("t", "c"))
        merged = make_record("m", step=3)._replace(parents=(two.record.key, branch.record.key))
        merge = await committed(store, put(merged))
        # The checkpoints that were followed go; that they were followed must stay known.
        await store.delete("t", keys=[one.record.key, two.record.key])
        store = await reopen()

        thread = await required(store.thread("t", ancestry=True))
        other = await required(store.thread("branch"))
        assert other.segments == {branch.seq: (one.place,)}
        assert other.ancestry == {}
        assert thread.segments == {merge.seq: (two.place, branch.place)}
        assert thread.ancestry == {**thread.segments, **other.segments}
        # A merge still follows what the branch had, even when the branch itself is no longer there.
        await store.delete("branch")
        await store.commit(put(make_record("x", "other")))
        alone = await required(store.thread("t", ancestry=True))
        stranger = await required(store.thread("other", ancestry=True))
        assert alone.ancestry == thread.ancestry
        assert stranger.ancestry == {}

    async def test_what_segments_follow_is_told_one_by_one(self, store: Store) -> None:
        one = await committed(store, put(make_record()))
        begun = make_record("b", "branch", step=0)._replace(parents=(one.record.key,))
        branch = await committed(store, put(begun, origin=one.record.key))
        family = one.family
        unknown = branch.seq + 1000
        expected = {branch.seq: (one.place,)}
        assert await store.segments(family, [branch.seq]) == expected
        assert await store.segments(family, [branch.seq, unknown]) == expected
        assert await store.segments(family, []) == {}
        # A store may read ahead and tell of neighbours nobody asked for; it need not.
        assert await store.segments(family, [unknown], older=8) in ({}, expected)
        await store.delete("branch")
        assert await store.segments(family, [branch.seq]) == expected

    async def test_segments_that_began_later_are_told_unless_they_are_hidden(self, store: Store) -> None:
        one, _two = await commit_steps(store, 2)
        starts: list[Stored] = []
        for name in ("x", "y", "z"):
            starts.append(await committed(store, put(make_record(name, step=2, parents=["c-1"]))))
        x, y, z = seqs_of(starts)
        assert await store.started("t", "", one.seq) == [x, y, z]
        assert await store.started("t", "", x) == [y, z]
        assert await store.started("t", "sub", 0) == await store.started("nobody", "", 0) == []
        # The stretch reaches over both runs but names one, so the other is not hidden by it.
        await store.commit(Change(thread_id="t", hide=[Hidden("", y - 1, z, y)], log=Operation("rewind", {})))
        assert await store.started("t", "", one.seq) == [x, z]
        await store.commit(Change(thread_id="t", hide=[Hidden("", y - 1, z)], log=Operation("rewind", {})))
        assert await store.started("t", "", one.seq) == [x]

    async def test_a_brief_look_leaves_out_what_grows(self, store: Store) -> None:
        await fill(store)
        whole = await required(store.thread("t"))
        brief = await required(store.thread("t", brief=True))
        assert whole.hidden and whole.protected
        assert brief == whole._replace(hidden={}, segments={}, protected=frozenset())

    async def test_stretches_that_overlap_are_lifted_one_by_one(self, store: Store, reopen: Reopen) -> None:
        stored = await commit_steps(store, 8)
        seqs = seqs_of(stored)
        stretches = {"a": (1, 5), "b": (3, 7), "c": (4, 5), "d": (2, 3), "e": (6, 8)}
        numbers: dict[str, int] = {}
        for name, (after, to) in stretches.items():
            hide = [Hidden("", seqs[after - 1], seqs[to - 1])]
            await store.commit(Change(thread_id="t", hide=hide, log=Operation(name, {})))
            numbers[name] = (await store.operations("t", 1))[0].seq
        store = await reopen()
        left = dict(stretches)
        # They are lifted in another order than they were laid, so that no store gets by with a stack.
        for name in ("b", "e", "a", "d", "c"):
            covered: set[int] = set()
            for after, to in left.values():
                covered.update(range(after + 1, to + 1))
            expected = [f"c-{n}" for n in range(8, 0, -1) if n not in covered]
            query = Query(thread_id="t")
            assert ids(await store.list_checkpoints(query)) == expected
            assert await store.count(query) == len(expected)
            for offset in range(len(expected) + 1):
                oldest = await store.list_checkpoints(Query(thread_id="t", order="oldest", offset=offset, limit=2))
                assert ids(oldest) == expected[::-1][offset : offset + 2]
            part = Query(thread_id="t", after_seq=seqs[2], before_seq=seqs[6])
            within = ids(await store.list_checkpoints(part))
            assert within == [each for each in expected if each in ("c-4", "c-5", "c-6")]
            assert await store.count(part) == len(within)
            await store.commit(Change(thread_id="t", show=[numbers[name]]))
            del left[name]
        assert await store.count(Query(thread_id="t")) == 8

    async def test_stretches_of_single_segments_hide_what_is_theirs(self, store: Store) -> None:
        """Stretches at random, hidden and shown and with checkpoints that go, against a look at each of them."""
        rng = random.Random(3)  # noqa: S311  # no secret
        await store.commit(put(make_record("c0")))
        for n in range(1, 16):
            # A parent a few steps back now and then starts a new run, which is what the stretches are about.
            record = make_record(f"c{n}", step=n, parents=[f"c{rng.randrange(max(0, n - 3), n)}"])
            await store.commit(put(record))
        every = await store.list_checkpoints(Query(thread_id="t", hidden="also"))
        segments = sorted(set(segments_of(every)))
        assert len(segments) > 2
        hidden: dict[int, Hidden] = {}
        for turn in range(24):
            first, last = sorted(rng.sample([0, *seqs_of(every)], 2))
            stretch = Hidden("", first, last, rng.choice([None, *segments]))
            if turn < 12:
                await store.commit(Change(thread_id="t", hide=[stretch], log=Operation("x", {})))
                hidden[(await store.operations("t", 1))[0].seq] = stretch
            else:
                await store.commit(Change(thread_id="t", show=[hidden.popitem()[0]]))
            # Once while stretches are laid and once while they are lifted, the oldest two are deleted.
            if turn in (6, 18):
                every, gone = every[:-2], every[-2:]
                await store.delete("t", keys=keys_of(gone))
            await self._check_hidden(store, every, list(hidden.values()))

    async def _check_hidden(self, store: Store, every: Sequence[Stored], stretches: Sequence[Hidden]) -> None:
        covered: list[Stored] = []
        visible: list[Stored] = []
        for stored in every:
            if is_hidden(stored, stretches):
                covered.append(stored)
            else:
                visible.append(stored)
        low = every[-2].seq
        high = every[1].seq
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
        for loaded in await store.read_many(keys_of(every)):
            assert loaded.stored.hidden is (loaded.stored.seq in seqs_of(covered))
        # A segment begins where its number is the number of its checkpoint; one whose first checkpoint is gone is not
        # told.
        shown = [stored.segment for stored in visible[::-1] if stored.segment == stored.seq > low]
        started = [segment for segment in await store.started("t", "", low) if segment in seqs_of(every)]
        assert started == shown

    async def test_threads_are_outlined_for_collections(self, store: Store) -> None:
        assert await store.outlines() == ([], None)
        one = make_object(b"one")
        stored = await committed(store, put(make_record("c-1", roots=[one]), one))
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
        one = make_object(b"one")
        two = make_object(b"two")

        async def is_swept() -> bool:
            found, _ = await store.outlines()
            return next(outline.is_swept for outline in found if outline.thread_id == "t")

        stored = await committed(store, put(make_record("c-1", roots=[one]), one))
        assert not await is_swept()
        # A sweep that only pretends has looked at everything, and yet it is no sweep.
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
        origins = await commit_steps(store, 3)
        for name, origin in (("one", origins[1]), ("two", origins[0])):
            begun = make_record("b", name, step=0)._replace(parents=(origin.record.key,))
            await store.commit(put(begun, origin=origin.record.key))
        await store.commit(put(make_record("s", "two", "sub")))
        await store.commit(follow("t", "c"))
        await store.commit(follow("stranger", "c"))

        found = await required(store.newest("t", 3, branches=True))
        assert places_of(found.listed) == [("t", "c-4"), ("two", "s"), ("two", "b")]
        assert found.heads == {Key("t", "", "c-4"), Key("two", "sub", "s"), Key("two", "", "b"), Key("one", "", "b")}
        assert found.total == 7
        every = await required(store.newest("t", 100, branches=True, without="sub"))
        names = places_of(every.listed)
        assert names == [("t", "c-4"), ("two", "b"), ("one", "b"), ("t", "c-3"), ("t", "c-2"), ("t", "c-1")]
        assert (every.total, Key("two", "sub", "s") in every.heads) == (6, False)
        alone = await required(store.newest("t", 2))
        assert ids(alone.listed) == ["c-4", "c-3"]
        assert alone.total == 4
        assert alone.heads == {Key("t", "", "c-4")}
        own = await required(store.newest("one", 10, branches=True))
        assert places_of(own.listed) == [("one", "b")]

    async def test_the_newest_leave_out_what_is_hidden(self, store: Store) -> None:
        for name in ("t", *(f"b{n}" for n in range(6))):
            origin = None if name == "t" else Key("t", "", "c-1")
            parents = (origin,) if origin is not None else ()
            await store.commit(put(make_record("c-1", name)._replace(parents=parents), origin=origin))
        for n in range(1, 6):
            two = await committed(store, follow(f"b{n}", "c"))
            hide = [Hidden("", two.seq - 1, two.seq)]
            await store.commit(
                Change(thread_id=f"b{n}", moves=[Move("", "c-1")], hide=hide, log=Operation("rewind", {}))
            )
        found = await required(store.newest("t", 2, branches=True))
        assert places_of(found.listed) == [("b5", "c-1"), ("b4", "c-1")]
        assert found.total == 7

    async def test_a_stretch_hides_one_run_only(self, store: Store) -> None:
        one, _two = await commit_steps(store, 2)
        other = await committed(store, put(make_record("x", step=2, parents=["c-1"])))
        three = await committed(store, put(make_record("y", step=3, parents=["c-2"])))
        await store.commit(
            Change(thread_id="t", hide=[Hidden("", one.seq, three.seq, other.segment)], log=Operation("a", {}))
        )
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["y", "c-2", "c-1"]
        assert ids(await store.list_checkpoints(Query(thread_id="t", hidden="only"))) == ["x"]
