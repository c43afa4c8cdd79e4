"""Heads that are moved, checkpoints that are hidden or pinned, and the log."""

from __future__ import annotations

import pytest

from everstep.errors import BaseGone, HeadMoved, UnstorableValue
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Draft,
    Hidden,
    Key,
    Move,
    Operation,
    Pin,
    Query,
    Store,
    Stored,
    Write,
)
from everstep.testing.builders import (
    commit_steps,
    committed,
    follow,
    head_id,
    ids,
    kinds_of,
    make_record,
    put,
    required,
    seqs_of,
    thread_ids_of,
)


class MovingContract:
    """Heads that are moved, checkpoints that are hidden or pinned, and the log."""

    async def test_hidden_is_not_deleted(self, store: Store) -> None:
        one, _two, three = await commit_steps(store, 3)
        await store.commit(
            Change(
                thread_id="t",
                moves=[Move("", "c-1")],
                hide=[Hidden("", one.seq, three.seq)],
                log=Operation("rewind", {"n": 2}),
            )
        )

        loaded = await required(store.read("t", "", "c-3"))

        assert loaded.stored.hidden
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-1"]
        everything = await store.list_checkpoints(Query(thread_id="t", hidden="also"))
        assert [(s.record.step, s.hidden) for s in everything] == [(3, True), (2, True), (1, False)]

    async def test_showing_lifts_what_one_operation_hid(self, store: Store) -> None:
        stored = await commit_steps(store, 3)
        seqs = seqs_of(stored)
        await store.commit(Change(thread_id="t", hide=[Hidden("", seqs[1], seqs[2])], log=Operation("a", {})))
        await store.commit(Change(thread_id="t", hide=[Hidden("", 0, seqs[0])], log=Operation("b", {})))
        first = (await store.operations("t", 10))[1]

        amended = Operation("a", {"note": 1}, first.seq, undone=True)
        await store.commit(Change(thread_id="t", show=[first.seq], amend=[amended]))

        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-3", "c-2"]
        second, changed = await store.operations("t", 10)
        assert (second.kind, second.undone) == ("b", False)
        assert changed == amended
        thread = await required(store.thread("t"))
        assert [list(h) for h in thread.hidden.values()] == [[Hidden("", 0, seqs[0], operation=second.seq)]]

    async def test_an_operation_is_undone_once(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(Change(thread_id="t", log=Operation("a", {})))
        (entry,) = await store.operations("t", 1)
        undone = entry._replace(undone=True)
        await store.commit(Change(thread_id="t", amend=[undone]))
        # One that is undone already, and one that never was; the rest of the change must not happen either.
        for wrong in (undone, entry._replace(seq=entry.seq + 99, undone=True)):
            with pytest.raises(HeadMoved):
                await store.commit(Change(thread_id="t", moves=[Move("", None)], amend=[wrong]))
        assert await head_id(store) == "c1"

    async def test_a_commit_that_starts_a_segment_prunes_nothing(self, store: Store) -> None:
        stored = await commit_steps(store, 3)
        seqs = seqs_of(stored)
        await store.commit(Change(thread_id="t", moves=[Move("", "c-2")]))
        # What to prune was reckoned for the run that the head was on, and that is no longer the case.
        await store.commit(follow("t", "d")._replace(prune=seqs[:1]))
        assert await store.read("t", "", "c-1") is not None

    async def test_an_amended_operation_can_hide_anew(self, store: Store) -> None:
        stored = await commit_steps(store, 3)
        seqs = seqs_of(stored)
        await store.commit(Change(thread_id="t", hide=[Hidden("", seqs[1], seqs[2])], log=Operation("a", {})))
        (first,) = await store.operations("t", 10)
        hide = [Hidden("", 0, seqs[0], operation=first.seq)]
        await store.commit(Change(thread_id="t", show=[first.seq], hide=hide))
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c-3", "c-2"]

    async def test_an_operation_can_be_logged_with_another_thread(self, store: Store) -> None:
        first = await committed(store, put(make_record()))
        log = Operation("branch", {"to": "branch"})
        await store.commit(put(make_record("b", "branch"), origin=first.record.key, log=log, log_thread="t"))
        assert kinds_of(await store.operations("t", 9)) == ["branch"]
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
        old = await committed(store, put(make_record(body=b"old")))
        await store.commit(put(make_record(body=b"new"), moves=[Move("", "c1")]))
        # A store that remembers heads must have forgotten the digest of the old content.
        with pytest.raises(BaseGone):
            await store.commit(put(make_record("c2"), base=BaseRef(old.record.key, old.digest)))
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
        assert thread_ids_of(await store.list_threads(9, 0)) == ["two", "one"]

    async def test_an_operation_that_cannot_be_packed_changes_nothing(self, store: Store) -> None:
        with pytest.raises(UnstorableValue):
            await store.commit(put(make_record(), log=Operation("x", {"a": object()})))
        assert await store.find("c1") == []

    async def test_a_pin_can_be_set_and_lifted(self, store: Store) -> None:
        stored = await committed(store, put(make_record()))
        for pinned in (True, False):
            await store.commit(Change(thread_id="t", pins=[Pin(stored.record.key, pinned)]))
            loaded = await required(store.read("t"))
            assert loaded.stored.pinned is pinned

    async def test_the_log_is_newest_first_and_exact(self, store: Store) -> None:
        await store.commit(put(make_record()))
        for n in range(5):
            await store.commit(Change(thread_id="t", log=Operation(f"op{n}", {"n": n, "t": (1, b"x")})))
        found = await store.operations("t", 3)
        assert kinds_of(found) == ["op4", "op3", "op2"]
        assert found[0].data == {"n": 4, "t": (1, b"x")}
        assert found[0].seq > found[1].seq
