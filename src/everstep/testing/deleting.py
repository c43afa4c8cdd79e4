"""Checkpoints stand alone; what is deleted goes, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from everstep.errors import HeadMoved
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Hidden,
    Key,
    Move,
    Operation,
    Pin,
    Query,
    Root,
    SharedState,
    Store,
    Swept,
    Write,
)
from everstep.testing.builders import (
    ODD_NAMES,
    commit_leaves,
    commit_steps,
    committed,
    follow,
    hashes_of,
    head_id,
    ids,
    keys_of,
    kinds_of,
    make_leaves,
    make_object,
    make_record,
    put,
    raw_thread,
    required,
    seqs_of,
    shared_states_of,
    stored_objects,
    thread_ids_of,
    with_protected,
    written_ids,
)


class DeletionContract:
    """Checkpoints stand alone; what is deleted goes, and nothing else."""

    # -- 3 self-contained, 4 exact deletion

    async def test_a_survivor_keeps_what_it_shares_with_the_deleted(self, store: Store) -> None:
        shared = make_object(b"shared")
        old = make_object(b"old")
        new = make_object(b"new")
        first = await committed(store, put(make_record(roots=[shared, old]), shared, old))
        base = BaseRef(first.record.key, first.digest)
        await store.commit(put(make_record("c2", step=2, roots=[shared, new]), new, base=base))

        deleted = await store.delete("t", keys=[Key("t", "", "c1")])
        for family in deleted.families:
            await store.sweep(family)

        assert deleted.checkpoints == 1
        loaded = await required(store.read("t", objects=True))
        assert sorted(loaded.objects) == sorted([shared, new])
        assert await store.fetch(first.family, [old.hash]) == []

    async def test_a_sweep_says_what_it_removed(self, store: Store) -> None:
        keep = make_object(b"keep")
        drop = make_object(b"drop" * 100)
        first = await committed(store, put(make_record(roots=[drop]), drop))
        await store.commit(put(make_record("c2", step=2, roots=[keep]), keep))
        assert await store.sweep(first.family) == Swept(0, 0)
        await store.delete("t", keys=[Key("t", "", "c1")])
        swept = await store.sweep(first.family)
        assert swept == Swept(1, len(drop.body))

    async def test_a_sweep_keeps_what_writes_need(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await committed(store, put(make_record()))
        await store.put_writes(Key("t", "", "later"), [Write("task", 0, "ch", leaf.hash, b"", 1)], [leaf])
        await store.sweep(first.family)
        assert await store.fetch(first.family, [leaf.hash]) == [leaf]

    async def test_a_deleted_thread_takes_along_what_it_had_in_common(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await committed(store, put(make_record(roots=[leaf]), leaf))
        common = SharedState(first.place, Root(leaf.hash, b"common", (6,)))
        key = first.record.key
        await store.commit(put(make_record("b1", "branch", step=0), origin=key, shared_states={"t": common}))
        await store.delete("t", keys=[key])
        # The thread begins anew under its name; that must not bring back what it had in common.
        await store.put_writes(Key("t", "", "x"), [Write("task", 0, "ch", b"", b"", 0)], [])
        await store.sweep(first.family)
        # A thread that is gone has nothing in common.
        assert await store.fetch(first.family, [leaf.hash]) == []

    async def test_a_sweep_keeps_what_two_threads_have_in_common(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await committed(store, put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("c2", step=2)))
        common = SharedState(first.place, Root(leaf.hash, b"common", (6,)))
        await store.commit(
            put(make_record("b1", "branch", step=0), origin=first.record.key, shared_states={"t": common})
        )
        await store.delete("t", keys=[first.record.key])
        await store.sweep(first.family)

        branch = await required(store.thread("branch"))
        origin = await required(store.thread("t"))

        assert branch.origin == first.record.key
        assert shared_states_of(branch) == {"t": [common]}
        assert shared_states_of(origin) == {"branch": [common]}
        assert await store.fetch(first.family, [leaf.hash]) == [leaf]

    async def test_deleting_a_thread_removes_it_and_nothing_else(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("s1", "t", "sub")))
        await store.commit(put(make_record("c1", "other", roots=[leaf]), leaf))
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])

        deleted = await store.delete("t")

        # Its family went with it, so there is none left to be swept.
        assert deleted == (2, frozenset())
        assert await store.thread("t") is None
        assert await store.find("c1") == [Key("other", "", "c1")]
        other = await required(store.read("other", objects=True, writes=True))
        assert list(other.objects) == [leaf]
        assert list(other.writes) == []

    async def test_a_deleted_thread_can_begin_again(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record(roots=[leaf]), leaf, log=Operation("x", {})))
        await store.delete("t")
        again = await committed(store, follow("t", "new"))
        assert again.record.step == 1
        assert await store.operations("t", 10) == []
        # The new thread of that name is another family, which has none of the old one's objects.
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
        one, two, three = await commit_steps(store, 3)
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
        first = await committed(store, put(make_record(roots=[leaf]), leaf))
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
        # The checkpoint comes after all, and must not find the writes that were deleted.
        await store.commit(put(make_record("later")))
        loaded = await required(store.read("t", writes=True))
        assert list(loaded.writes) == []

    async def test_a_lost_namespace_does_not_change_how_active_its_thread_was(self, store: Store) -> None:
        await store.commit(put(make_record("a", "one")))
        await store.commit(put(make_record("b", "two")))
        await store.commit(put(make_record("c", "one", "sub")))
        await store.delete("one", keys=[Key("one", "sub", "c")])
        assert thread_ids_of(await store.list_threads(9, 0)) == ["one", "two"]

    async def test_deleting_a_checkpoint_takes_its_writes(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(put(make_record("c2", step=2)))
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])
        await store.delete("t", keys=[Key("t", "", "c1")])
        # Under the same id again: writes of the deleted one would look like its own.
        await store.commit(put(make_record("c1")))
        loaded = await required(store.read("t", "", "c1", writes=True))
        assert list(loaded.writes) == []

    # -- retention's deletions

    async def test_pruning_goes_with_the_commit_and_spares_heads_pins_and_beginnings(self, store: Store) -> None:
        stored = await commit_steps(store, 6)
        seqs = seqs_of(stored)
        await store.put_writes(stored[2].record.key, [Write("task", 0, "ch", b"", b"", 0)], [])
        await store.commit(Change(thread_id="t", pins=[Pin(stored[1].record.key, True)]))
        await store.commit(put(make_record("b", "branch", step=0), origin=stored[3].record.key))
        thread = await required(store.thread("t"))
        await store.commit(follow("t", "c")._replace(prune=seqs))
        assert thread.protected == {seqs[1], seqs[3]}
        assert await store.count(Query(thread_id="t", protected=True)) == 2
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-7", "c-4", "c-2"]
        await store.commit(Change(thread_id="t", pins=[Pin(stored[1].record.key, False)]))
        await store.delete("branch")
        # The last number was never given to a checkpoint, and asking for it must not fail.
        await store.commit(Change(thread_id="t", prune=[*seqs, seqs[-1] + 1]))
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-7"]

    async def test_a_commit_that_fails_prunes_nothing(self, store: Store) -> None:
        one = await committed(store, follow("t", "c"))
        await store.commit(follow("t", "c"))
        with pytest.raises(HeadMoved):
            await store.commit(follow("t", "c", expect="c-1")._replace(prune=[one.seq]))
        assert await store.read("t", "", "c-1") is not None

    async def test_a_deletion_can_spare_what_retention_must_keep(self, store: Store) -> None:
        stored = await commit_steps(store, 4)
        keys = keys_of(stored)
        await store.commit(Change(thread_id="t", pins=[Pin(keys[0], True)]))
        await store.commit(put(make_record("b", "branch", step=0), origin=keys[1]))
        assert (await store.delete("t", keys=keys, spare=True)).checkpoints == 1
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-4", "c-2", "c-1"]
        assert (await store.delete("t", keys=keys[:1])).checkpoints == 1

    async def test_what_is_spared_keeps_its_pending_writes(self, store: Store) -> None:
        stored = await with_protected(store)
        early = Key("t", "", "early")
        gone = await store.delete("t", keys=[*keys_of(stored), early], spare=True)

        assert gone.checkpoints == 2
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-5", "c-2", "c-1"]
        # Early writes are not those of a protected one.
        assert await written_ids(store) == ["c-1", "c-2", "c-5"]
        await self._check_writes(store, ["c-1", "c-2", "c-5"])
        await self._check_hidden_writes(store)

    async def test_what_is_spared_below_a_step_keeps_its_pending_writes(self, store: Store) -> None:
        await with_protected(store)
        gone = await store.delete("t", before_step=4, spare=True)
        assert gone.checkpoints == 1
        # Early writes have no step.
        assert await written_ids(store) == ["c-1", "c-2", "c-4", "c-5", "early"]
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
        raw = await required(store.raw("t"))
        assert list(raw.lines) == [""]

    async def test_what_a_commit_does_not_prune_keeps_its_pending_writes(self, store: Store) -> None:
        stored = await with_protected(store)
        await store.commit(follow("t", "c")._replace(prune=seqs_of(stored)))
        assert await written_ids(store) == ["c-1", "c-2", "early"]
        await self._check_writes(store, ["c-1", "c-2"])
        # Once more without a new checkpoint, where the head itself is among what should go.
        other = await with_protected(store, "other")
        await store.commit(Change(thread_id="other", prune=seqs_of(other)))
        assert await written_ids(store, "other") == ["c-1", "c-2", "c-5", "early"]

    async def test_without_sparing_writes_go_with_what_is_deleted(self, store: Store) -> None:
        stored = await with_protected(store)
        assert (await store.delete("t", keys=keys_of(stored[:2]))).checkpoints == 2
        assert await written_ids(store) == ["c-3", "c-4", "c-5", "early"]
        assert (await store.delete("t", before_step=6)).checkpoints == 3
        assert await written_ids(store) == ["early"]

    async def test_a_thread_that_has_early_writes_only_is_still_there(self, store: Store) -> None:
        first = await committed(store, put(make_record()))
        record = make_record("b", "branch", step=0)._replace(parents=(first.record.key,))
        common = SharedState(first.place, Root(b"", b"", ()))
        await store.commit(put(record, origin=first.record.key, shared_states={"t": common}))
        await store.commit(Change(thread_id="branch", log=Operation("kept", {})))
        await store.put_writes(Key("branch", "", "early"), [Write("task", 0, "ch", b"", b"", 0)], [])

        await store.delete("branch", before_step=100)

        thread = await required(store.thread("branch"))
        origin = await required(store.thread("t"))
        assert (thread.heads, thread.origin, set(thread.shared_states)) == ({}, first.record.key, {"t"})
        assert kinds_of(await store.operations("branch", 10)) == ["kept"]
        # The branch lives, as far as its origin is concerned.
        assert origin.protected == {first.seq}
        assert ids(await store.list_threads(10, 0, headless=True)) == ["c1"]

        await store.delete("branch", keys=[Key("branch", "", "early")])

        origin = await required(store.thread("t"))
        assert (await store.thread("branch"), origin.protected, origin.shared_states) == (None, frozenset(), {})
        assert await store.operations("branch", 10) == []

    async def test_a_head_that_falls_back_is_no_activity(self, store: Store) -> None:
        await store.commit(follow("t", "c"))
        await store.commit(follow("t", "c"))
        await store.commit(follow("other", "d"))
        before = await required(store.read("t"))
        await store.delete("t", keys=[Key("t", "", "c-2")])
        after = await required(store.read("t"))
        assert ids(await store.list_threads(10, 0)) == ["d-1", "c-1"]
        # Who read the head before must notice that it moved, although nobody was active.
        assert after.generation == before.generation + 1
        assert (await raw_thread(store)).lines[""].head_was_moved

    async def test_a_namespace_left_empty_is_gone_and_the_others_stay(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(put(make_record("s1", "t", "sub")))
        await store.commit(Change(thread_id="t", log=Operation("kept", {})))
        await store.delete("t", keys=[Key("t", "sub", "s1")])
        assert list((await raw_thread(store)).lines) == [""]
        assert len(await store.operations("t", 10)) == 1

    async def _check_hidden_writes(self, store: Store) -> None:
        """Nothing is hidden but writes that are there."""
        raw = await required(store.raw("t"))
        assert sorted({stretch.writes_of or "" for stretch in raw.hidden}) == await written_ids(store)

    async def _check_writes(self, store: Store, names: Sequence[str]) -> None:
        """Of these checkpoints one write can be seen and one is hidden, as they were put."""
        raw = await required(store.raw("t"))
        held: dict[str, list[str]] = {}
        for key, write in raw.writes:
            held.setdefault(key.checkpoint_id, []).append(write.task_id)
        for name in names:
            loaded = await required(store.read("t", "", name, writes=True))
            assert [write.task_id for write in loaded.writes] == ["new"]
            assert sorted(held[name]) == ["new", "old"]

    async def test_numbers_of_pruned_checkpoints_are_not_given_again(self, store: Store) -> None:
        stored = await commit_steps(store, 3)
        seqs = seqs_of(stored)
        # The head goes back, so that the newest numbers belong to checkpoints that may go.
        await store.commit(Change(thread_id="t", moves=[Move("", "c-1")]))
        await store.commit(Change(thread_id="t", prune=seqs))
        again = await committed(store, follow("t", "d"))
        assert again.seq > seqs[-1]

    async def test_entries_of_the_log_can_be_dropped(self, store: Store) -> None:
        await store.commit(put(make_record()))
        for kind in "abc":
            await store.commit(Change(thread_id="t", log=Operation(kind, {})))
        entries = await store.operations("t", 10)
        await store.delete("t", keys=[], operations=[entries[1].seq, entries[2].seq])
        assert kinds_of(await store.operations("t", 10)) == ["c"]

    async def test_a_stretch_that_hides_nothing_any_more_is_dropped(self, store: Store) -> None:
        one, two, three = await commit_steps(store, 3)
        hide = [Hidden("", one.seq, three.seq, one.segment)]
        await store.commit(Change(thread_id="t", moves=[Move("", "c-1")], hide=hide, log=Operation("rewind", {})))
        await store.delete("t", keys=[two.record.key])
        kept = await required(store.thread("t"))
        await store.delete("t", keys=[three.record.key])
        dropped = await required(store.thread("t"))
        assert len(kept.hidden) == 1
        assert dropped.hidden == {}

    async def test_garbage_is_noted_and_swept_a_little_at_a_time(self, store: Store) -> None:
        leaves = make_leaves(40, times=100)
        keys = (await commit_leaves(store, leaves))[:30]
        first = await required(store.thread("t"))
        assert first.garbage == 0
        # What a sweep would remove is asked for first, and the sweep must then remove exactly that.
        pretended = await store.sweep(first.family, pretend=keys)
        await store.delete("t", keys=keys)
        second = await required(store.thread("t"))
        assert second.garbage > 0
        swept = objects = 0
        finished = False
        while not finished:
            # So little effort that it takes several turns, each of which must go on where the last one ended.
            done = await store.sweep(first.family, effort=7)
            swept = swept + done.size_bytes
            objects = objects + done.objects
            finished = done.finished
        assert (objects, swept) == pretended[:2]
        assert objects == 30
        assert await stored_objects(store, first.family, *leaves) == set(hashes_of(leaves[30:]))
        third = await required(store.thread("t"))
        assert third.garbage == 0

    async def test_a_sweep_in_parts_keeps_what_is_committed_meanwhile(self, store: Store) -> None:
        leaves = make_leaves(30)
        keys = await commit_leaves(store, leaves)
        loaded = await required(store.read("t"))
        family = loaded.stored.family
        await store.delete("t", keys=keys[:29])
        for n in range(29):
            await store.sweep(family, effort=2)
            # The same object is needed again while the sweep may have listed it as garbage already.
            again = leaves[n]
            await store.commit(put(make_record(f"d{n}", step=n, roots=[again]), again))
        await store.sweep(family, effort=1000)
        assert await stored_objects(store, family, *leaves) == set(hashes_of(leaves))
