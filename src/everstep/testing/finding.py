"""Threads are found by their names, metadata, tags and times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everstep.stores.protocol import Change, Hidden, Key, Move, Operation, Search, Store, Write
from everstep.testing.builders import committed, follow, make_record, names_found, names_of, put


class FindingContract:
    """Threads are found by their names, metadata, tags and times."""

    async def test_threads_are_found_by_what_their_names_begin_with(self, store: Store) -> None:
        # Wildcards of SQL, letters that sort apart, and the last character of all, after which no text comes.
        names = ["a", "a%", "a_b", "ab", "A", "ä", "a\U0010ffff", "a:\n", "b"]
        for name in names:
            await store.commit(follow(name, "c"))
        assert await names_found(store) == names[::-1]
        for prefix in ("a", "a%", "a_", "ä", "a\U0010ffff", "\U0010ffff", "zz"):
            assert await names_found(store, prefix=prefix) == [n for n in names[::-1] if n.startswith(prefix)], prefix

    async def test_threads_are_found_by_metadata_of_their_latest_checkpoint(self, store: Store) -> None:
        # Values that compare equal in Python but are not the same, and one too long for most indexes.
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
        # Only the latest checkpoint counts, so the thread is no longer found by what the first one said.
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
            # A store that learns which keys are worth an index must not learn new ones with every turn.
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
        assert names_of((*first, *rest)) == ["t6", "t5", "t4", "t2", "t1"]
        odd = await store.search(Search(filter={"k": 1}, limit=1))
        more = await store.search(Search(filter={"k": 1}, after=odd[-1].position))
        assert names_of((*odd, *more)) == ["t5", "t1"]

    async def test_pages_of_what_many_have_and_of_what_few_have_are_whole(self, store: Store) -> None:
        metadata: dict[str, dict[str, Any]] = {}
        for n in range(60):
            name = f"b{n}" if n % 3 else f"a{n}"
            metadata[name] = {"all": 1, "half": n % 2, "few": n % 20, "old": n < 10}
            await store.commit(put(make_record("c", name, metadata=metadata[name])))
        names = list(metadata)
        # The threads that get a second checkpoint below move to the front, one after the other.
        order = [name for name in names[::-1] if name not in names[:60:7]]
        for name in names[:60:7]:
            await store.commit(put(make_record("d", name, metadata=metadata[name], parents=["c"], step=2)))
            order.insert(0, name)
        asked: list[tuple[str, dict[str, Any]]] = [
            ("", {}), ("a", {}), ("b", {"all": 1}), ("", {"all": 1}), ("", {"half": 1}), ("", {"few": 3}),
            ("b", {"half": 0, "few": 4}), ("", {"old": True}), ("", {"all": 1, "old": True}), ("", {"all": 2}),
        ]  # fmt: skip
        for prefix, entries in asked:
            fitting = [name for name in order if name.startswith(prefix)]
            expected = [name for name in fitting if entries.items() <= metadata[name].items()]
            # Pages of one, pages that end within what is found, and one page that holds it all.
            for limit in (1, 7, 100):
                search = Search(prefix=prefix, filter=entries, limit=limit)
                found: list[str] = []
                while hits := await store.search(search):
                    found += names_of(hits)
                    search = replace(search, after=hits[-1].position)
                assert found == expected, (prefix, entries, limit)

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
        stored = await committed(store, put(make_record("c", "hidden", metadata={"k": 1})))
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
        # Without a root, the namespace whose name comes first stands for the thread.
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
