"""Lists and counts: order, filters, pages."""

from __future__ import annotations

from typing import Any

from everstep.stores.protocol import Change, Hidden, Key, Move, Operation, Pin, Query, Store, Write
from everstep.testing.builders import (
    commit_steps,
    committed,
    follow,
    head_id,
    ids,
    make_object,
    make_record,
    put,
    raw_thread,
    required,
    seqs_of,
    steps_of,
    thread_ids_of,
)


class ListingContract:
    """Lists and counts: order, filters, pages."""

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
            stored = await committed(store, put(make_record(f"c{n}")))
            assert stored.seq > last
            last = stored.seq
            await store.delete("t", keys=[stored.record.key])

    async def test_threads_are_listed_most_recently_active_first(self, store: Store) -> None:
        for name in ("a", "b", "c", "a"):
            await store.commit(follow(name, "x"))
        await store.commit(Change(thread_id="b", moves=[Move("", "x-1")]))
        found = await store.list_threads(10, 0)
        assert steps_of(found) == [("b", 1), ("a", 2), ("c", 1)]
        assert thread_ids_of(await store.list_threads(1, 1)) == ["a"]

    # -- counting, and lists in other orders

    async def test_counting_agrees_with_listing(self, store: Store) -> None:
        stored = await commit_steps(store, 6)
        seqs = seqs_of(stored)
        await store.commit(put(make_record("s1", "t", "sub")))
        await store.commit(Change(thread_id="t", hide=[Hidden("", seqs[1], seqs[3])], log=Operation("x", {})))
        await store.commit(Change(thread_id="t", pins=[Pin(Key("t", "", "c-1"), True), Pin(Key("t", "", "c-3"), True)]))
        for query in (
            Query(thread_id="t"), Query(thread_id="t", namespace=None), Query(thread_id="t", hidden="also"),
            Query(thread_id="t", hidden="only"), Query(thread_id="t", after_seq=seqs[2]), Query(thread_id="ghost"),
            Query(thread_id="t", after_seq=seqs[2], hidden="also"), Query(thread_id="t", before_seq=seqs[3]),
            Query(thread_id="t", step_max=4, hidden="only"), Query(limit=3), Query(thread_id="t", filter={"a": 1}),
            Query(thread_id="t", protected=True), Query(thread_id="t", protected=False),
            Query(thread_id="t", segment=seqs[0]), Query(namespace=None, offset=2),
            Query(thread_id="t", namespace="sub", hidden="only"),
        ):  # fmt: skip
            assert await store.count(query) == len(await store.list_checkpoints(query)), query

    async def test_lists_can_go_from_the_oldest_on(self, store: Store) -> None:
        stored = await commit_steps(store, 4)
        seqs = seqs_of(stored)
        query = Query(thread_id="t", order="oldest", after_seq=seqs[0], limit=2)
        assert ids(await store.list_checkpoints(query)) == ["c-2", "c-3"]

    async def test_threads_without_a_head_are_listed_when_asked_for(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.commit(put(make_record("c1", "u")))
        await store.commit(Change(thread_id="t", moves=[Move("", None)]))
        assert thread_ids_of(await store.list_threads(9, 0)) == ["u"]
        assert sorted(thread_ids_of(await store.list_threads(9, 0, headless=True))) == ["t", "u"]

    async def test_objects_can_be_fetched_one_level_deep(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        top = make_object(b"top", leaf)
        first = await committed(store, put(make_record(roots=[top]), top, leaf))
        assert await store.fetch(first.family, [top.hash], below=False) == [top]
        assert await store.fetch(first.family, [], below=False) == []

    # -- 11 one behaviour: filters, order, paging

    async def test_a_filter_means_exactly_this_value(self, store: Store) -> None:
        # Values that are equal in Python are still told apart, as they are when they are stored.
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
        # Characters that UTF-16 and UTF-8 sort differently: code points decide about the order.
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
        # The newest numbers go, and must not be given again.
        await store.delete("t", keys=[Key("t", "", "c2"), Key("t", "", "c3")])
        await store.put_writes(Key("t", "", "c4"), [Write("task", 0, "last", b"", b"w", 1)], [])
        seen.append((await raw_thread(store)).writes[-1][1].seq)
        assert len(seen) == 7
        assert seen == sorted(set(seen))

    async def test_ids_that_are_uuids_are_texts_like_any_other(self, store: Store) -> None:
        # A store may keep ids that are UUIDs as sixteen bytes; these are what could be mistaken for one.
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
        stored = await required(store.read("t", "", "same"))
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
        _, _, third, _ = await commit_steps(store, 4)
        before = Query(thread_id="t", before_seq=third.seq)
        assert ids(await store.list_checkpoints(before)) == ["c-2", "c-1"]
        assert ids(await store.list_checkpoints(Query(thread_id="t", step_max=3, limit=1))) == ["c-3"]

    async def test_a_list_can_span_every_thread(self, store: Store) -> None:
        for name in ("a", "b", "a"):
            await store.commit(follow(name, "x"))
        found = await store.list_checkpoints(Query())
        assert steps_of(found) == [("a", 2), ("b", 1), ("a", 1)]

    async def test_what_is_listed_agrees_with_what_is_read(self, store: Store) -> None:
        await store.commit(put(make_record(metadata={"k": 1})))
        (listed,) = await store.list_checkpoints(Query(thread_id="t"))
        loaded = await required(store.read("t"))
        assert listed.digest == loaded.stored.digest
        assert listed.record == loaded.stored.record._replace(children=b"", body=b"")
