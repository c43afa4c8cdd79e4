"""A commit is durable, atomic, idempotent, and never forks a thread silently."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from everstep.errors import BaseGone, CheckpointNotFound, HeadMoved, IdTaken, InvalidInput, UnstorableValue
from everstep.runtime.blocking import run_to_end
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
    Swept,
    Write,
)
from everstep.testing.builders import (
    Reopen,
    committed,
    follow,
    hashes_of,
    head_id,
    ids,
    join,
    kinds_of,
    make_object,
    make_record,
    pinned_of,
    put,
    required,
)


class CommitContract:
    """A commit is durable, atomic, idempotent, and never forks a thread silently."""

    # -- 1 durable

    async def test_what_was_committed_survives_reopening(self, store: Store, reopen: Reopen) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("c2", step=2, parents=["c1"])))
        await store.put_writes(Key("t", "", "c2"), [Write("task", 0, "channel", leaf.hash, b"w", 1, "path")], [])
        before = await store.thread("t")
        store = await reopen()

        loaded = await required(store.read("t", "", "c1", objects=True))
        with_writes = await required(store.read("t", writes=True))

        assert list(loaded.objects) == [leaf]
        assert with_writes.stored.record.key.checkpoint_id == "c2"
        assert [w.channel for w in with_writes.writes] == ["channel"]
        assert await store.thread("t") == before

    async def test_operations_pins_and_hiding_survive_reopening(self, store: Store, reopen: Reopen) -> None:
        first = await committed(store, put(make_record()))
        second = await committed(store, put(make_record("c2", step=2)))
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
        assert pinned_of(await store.list_checkpoints(Query(thread_id="t", hidden="also"))) == [False, True]
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
        first = await committed(store, put(make_record()))
        before = await store.thread("t")
        impossible: list[dict[str, Any]] = [
            {"pins": [Pin(first.record.key, True), Pin(Key("t", "", "nope"), True)]},
            {"moves": [Move("", "nope")]},
        ]
        for parts in impossible:
            with pytest.raises(CheckpointNotFound):
                await store.commit(put(make_record("c2", roots=[leaf]), leaf, log=Operation("x", {}), **parts))

        # Each thing the change asked for is looked for by itself, since a store may have written any of them
        # first.
        assert await store.thread("t") == before
        assert await store.read("t", "", "c2") is None
        assert await store.fetch(first.family, [leaf.hash]) == []
        assert await store.operations("t", 10) == []
        assert pinned_of(await store.list_checkpoints(Query(thread_id="t"))) == [False]

    async def test_a_log_that_cannot_be_stored_leaves_nothing(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await committed(store, put(make_record()))
        before = await store.thread("t")
        log = Operation("x", {"part": object()})
        with pytest.raises(UnstorableValue):
            await store.commit(put(make_record("c2", roots=[leaf]), leaf, pins=[Pin(first.record.key, True)], log=log))

        assert await store.thread("t") == before
        assert await store.read("t", "", "c2") is None
        assert await store.fetch(first.family, [leaf.hash]) == []
        assert await store.operations("t", 10) == []
        assert pinned_of(await store.list_checkpoints(Query(thread_id="t"))) == [False]

    async def test_a_record_of_another_thread_is_refused(self, store: Store) -> None:
        draft = Draft(make_record(thread_id="other"), ())
        with pytest.raises(InvalidInput):
            await store.commit(Change(thread_id="t", build=lambda _: draft))
        assert await store.list_threads(10, 0) == []

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

        # Threads of their own, not tasks: the blocking face is what several threads may use at once.
        workers = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            await join(worker)

        found = await store.list_checkpoints(Query(thread_id="t"))
        assert [s.record.step for s in found] == list(range(80, 0, -1))
        for newer, older in itertools.pairwise(found):
            assert newer.record.parents == (older.record.key,)

    async def test_each_move_of_the_head_counts_a_generation(self, store: Store) -> None:
        seen = []
        for _ in range(3):
            await store.commit(follow("t", "c"))
            loaded = await required(store.read("t"))
            seen.append(loaded.generation)
        await store.commit(Change(thread_id="t", moves=[Move("", "c-1")]))
        loaded = await required(store.read("t"))
        # Sorted and without doubles is the same list only if each number is larger than the one before.
        assert [*seen, loaded.generation] == sorted({*seen, loaded.generation})

    async def test_a_head_moves_only_to_a_newer_id_when_so_asked(self, store: Store) -> None:
        await store.commit(put(make_record("m"), head="newer"))
        # Its id is the smaller one, and it names no parent, so the head stays.
        await store.commit(put(make_record("a"), head="newer"))
        assert await head_id(store) == "m"
        # Its id is smaller too, but it says that it follows the head.
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
            await join(rival)
        assert stored is not None
        assert stored.record.key.checkpoint_id == "own-2"
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["rival-3", "own-2", "c-1"]

    async def test_a_turn_sees_what_it_commits_on(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record("a", roots=[leaf]), leaf))
        await store.commit(Change(thread_id="t", log=Operation("kind", {"n": 1})))

        async def work(inside: Store) -> Stored:
            loaded = await required(inside.read("t", objects=True, writes=True))
            assert hashes_of(loaded.objects) == [leaf.hash]
            assert hashes_of(await inside.fetch(loaded.stored.family, [leaf.hash])) == [leaf.hash]
            assert [each.stored.seq for each in await inside.read_many([loaded.stored.record.key])] == [
                loaded.stored.seq
            ]
            assert await inside.find("a") == [loaded.stored.record.key]
            assert ids(await inside.list_checkpoints(Query(thread_id="t"))) == ["a"]
            assert ids(await inside.list_threads(5, 0)) == ["a"]
            assert await inside.count(Query(thread_id="t")) == 1
            newest = await required(inside.newest("t", 5))
            assert ids(newest.listed) == ["a"]
            assert await inside.segments(loaded.stored.family, [loaded.stored.segment]) == {}
            assert kinds_of(await inside.operations("t", 5)) == ["kind"]
            thread = await required(inside.thread("t", branches=True, ancestry=True))
            assert thread.heads[""][0] == "a"
            base = BaseRef(loaded.stored.record.key, loaded.stored.digest)
            return await committed(inside, put(make_record("b", parents=["a"], roots=[leaf]), base=base, expect="a"))

        stored = await store.in_turn("t", work)
        loaded = await required(store.read("t", objects=True))
        assert loaded.stored == stored
        assert hashes_of(loaded.objects) == [leaf.hash]

    async def test_a_turn_that_fails_changes_nothing_and_ends(self, store: Store) -> None:
        await store.commit(follow("t", "c"))

        async def work(inside: Store) -> None:
            await inside.commit(follow("t", "own", expect="another"))

        with pytest.raises(HeadMoved):
            await store.in_turn("t", work)
        # The next writer would wait forever if the turn that failed had not been given up.
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
        # It comes late, expects a head that has moved, and logs: all of that was settled the first time.
        again = await store.commit(put(record, expect=None, log=Operation("x", {})))
        assert again == first
        assert await head_id(store) == "c2"
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c2", "c1"]
        assert await store.operations("t", 10) == []

    async def test_other_content_under_the_same_id_replaces_it_in_place(self, store: Store) -> None:
        old = make_object(b"old")
        new = make_object(b"new")
        first = await committed(store, put(make_record(roots=[old]), old))
        await store.commit(put(make_record("c2", step=2)))
        second = await committed(store, put(make_record(roots=[new], body=b"other", metadata={"k": 1}), new))

        assert second.seq == first.seq
        assert await head_id(store) == "c2"
        loaded = await required(store.read("t", "", "c1", objects=True))
        assert (loaded.stored.record.body, list(loaded.objects)) == (b"other", [new])
        assert loaded.stored.record.metadata == {"k": 1}
        assert ids(await store.list_checkpoints(Query(thread_id="t"))) == ["c2", "c1"]

    async def test_an_id_made_by_chance_replaces_nothing(self, store: Store) -> None:
        kept = make_record(body=b"kept")
        await store.commit(put(kept))
        await store.commit(put(make_record("c2", step=2, parents=["c1"])))

        # What simply follows the head may be committed another way than the rest.
        for parents in (["c2"], ["c1"]):
            with pytest.raises(IdTaken):
                await store.commit(put(make_record(parents=parents, body=b"other"), fresh=True))
        # Who expects another head hears of that first, since a retry with a new id would not help.
        with pytest.raises(HeadMoved):
            await store.commit(put(make_record(body=b"other"), fresh=True, expect="gone"))

        loaded = await required(store.read(*kept.key))
        assert loaded.stored.record == kept
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
        first = await committed(store, put(make_record()))
        origin = first.record.key

        def branch(thread_id: str, name: str) -> Change:
            record = make_record(name, thread_id, step=0)._replace(parents=(origin,))
            return put(record, fresh=True, origin=origin, log=Operation("branch", {}), log_thread="t")

        made = await committed(store, branch("branch", "b1"))
        await store.commit(put(make_record("x1", "stranger")))
        await store.commit(put(make_record("n1", "with a namespace", "sub")))
        # What is stored already adds nothing to the log.
        assert await store.commit(branch("branch", "b1")) == made._replace(entry=0)
        for name in ("branch", "stranger", "with a namespace"):
            with pytest.raises(IdTaken):
                await store.commit(branch(name, "b2"))

        assert ids(await store.list_checkpoints(Query(namespace=None, order="oldest"))) == ["c1", "b1", "x1", "n1"]
        assert [entry.seq for entry in await store.operations("t", 10)] == [made.entry]

    async def test_an_id_made_by_chance_replaces_nothing_in_another_namespace(self, store: Store) -> None:
        await store.commit(put(make_record("s1", "t", "sub", body=b"kept")))
        other_namespaces = [Draft(make_record("s1", "t", "sub", body=b"other"), ())]
        with pytest.raises(IdTaken):
            await store.commit(put(make_record(), fresh=True, other_namespaces=other_namespaces))
        assert ids(await store.list_checkpoints(Query(thread_id="t", namespace=None))) == ["s1"]
        loaded = await required(store.read("t", "sub"))
        assert loaded.stored.record.body == b"kept"

    async def test_a_checkpoint_in_another_namespace_follows_the_head_of_that(self, store: Store) -> None:
        await store.commit(put(make_record()))
        first, second = (make_record(name, "t", "sub") for name in ("s1", "s2"))
        await store.commit(put(first))
        await store.commit(put(second))
        # A parent that is not the head, and one of another thread: both would fork the namespace silently.
        for parent in (first.key, Key("elsewhere", "sub", "s2")):
            late = make_record("s3", "t", "sub")._replace(parents=(parent,))
            with pytest.raises(HeadMoved):
                await store.commit(put(make_record("c2"), other_namespaces=[Draft(late, ())]))
        assert ids(await store.list_checkpoints(Query(thread_id="t", namespace=None))) == ["s2", "s1", "c1"]
        following = make_record("s3", "t", "sub", parents=["s2"])
        await store.commit(put(make_record("c2"), other_namespaces=[Draft(following, ())]))
        loaded = await required(store.read("t", "sub"))
        assert loaded.stored.record.key == following.key

    # -- leaving objects out

    async def test_objects_may_be_left_out_while_their_base_is_stored(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await committed(store, put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("c2", step=2)))
        base = BaseRef(first.record.key, first.digest)
        await store.commit(put(make_record("c3", step=3, roots=[leaf]), base=base))
        loaded = await required(store.read("t", objects=True))
        assert list(loaded.objects) == [leaf]

    async def test_a_base_that_is_not_the_head_is_checked_too(self, store: Store) -> None:
        for _ in range(2):  # so that the store knows the head, and may take a short way
            await store.commit(follow("t", "c"))
        record = make_record("c-3", step=3, parents=["c-2"])
        draft = Draft(record, (), (BaseRef(Key("t", "", "gone"), b"\0" * 16),))
        with pytest.raises(BaseGone):
            await store.commit(Change("t", build=lambda _: draft))
        assert await head_id(store) == "c-2"
        first = await required(store.read("t", "", "c-1"))
        draft = Draft(record, (), (BaseRef(first.stored.record.key, first.stored.digest),))
        await store.commit(Change("t", build=lambda _: draft))
        assert await head_id(store) == "c-3"

    async def test_a_base_that_is_gone_or_replaced_is_refused(self, store: Store) -> None:
        first = await committed(store, put(make_record()))
        base = BaseRef(first.record.key, first.digest)
        await store.commit(put(make_record(body=b"other")))
        with pytest.raises(BaseGone):
            await store.commit(put(make_record("c2", step=2), base=base))
        await store.delete("t")
        with pytest.raises(BaseGone):
            await store.commit(put(make_record("c2", step=2), base=base))
        assert await store.thread("t") is None

    async def test_a_base_of_another_family_is_refused(self, store: Store) -> None:
        first = await committed(store, put(make_record()))
        await store.commit(put(make_record("c1", "u")))
        with pytest.raises(BaseGone):
            await store.commit(put(make_record("c2", "u", step=2), base=BaseRef(first.record.key, first.digest)))

    async def test_an_object_sent_again_is_not_swept(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        first = await committed(store, put(make_record(roots=[leaf]), leaf))
        await store.commit(put(make_record("c2", step=2)))
        await store.delete("t", keys=[Key("t", "", "c1")])
        await store.commit(put(make_record("c3", step=3, roots=[leaf]), leaf))
        assert await store.sweep(first.family) == Swept(0, 0)
        assert await store.fetch(first.family, [leaf.hash]) == [leaf]
