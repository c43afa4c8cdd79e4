"""A checkpoint comes back exactly as it was written, or its damage is told."""

from __future__ import annotations

import pytest

from everstep.errors import CheckpointCorrupted, UnregisteredType
from everstep.repository.repository import Repository
from everstep.stores.protocol import Key, Loaded, Query, Record, Store, Write
from everstep.testing.builders import (
    ODD_NAMES,
    as_listed,
    fill,
    hashes_of,
    ids,
    make_leaves,
    make_object,
    make_record,
    put,
    required,
)
from everstep.values import codec, tree
from everstep.values.compress import squeeze


class ReadingContract:
    """A checkpoint comes back exactly as it was written, or its damage is told."""

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

        loaded = await required(store.read("t", "ns", "c1", objects=True))

        assert loaded.stored.record == record
        assert list(loaded.objects) == [leaf]

    @pytest.mark.parametrize("repeats", [None, 0, 5 << 40])
    async def test_a_hint_for_writers_reads_back(self, store: Store, repeats: int | None) -> None:
        record = make_record()._replace(repeats=repeats)
        await store.commit(put(record))

        loaded = await required(store.read("t"))
        listed = await store.list_checkpoints(Query(thread_id="t"))

        assert loaded.stored.record == record
        assert [stored.record.repeats for stored in listed] == [repeats]

    async def test_reading_brings_every_object_below_the_root_once(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        other = make_object(b"other")
        middle = make_object(b"middle", leaf, other)
        top = make_object(b"top", middle, leaf)
        await store.commit(put(make_record(roots=[top, leaf]), leaf, other, middle, top))

        loaded = await required(store.read("t", objects=True))

        assert sorted(loaded.objects) == sorted([leaf, other, middle, top])

    async def test_reading_without_objects_brings_none(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        await store.commit(put(make_record(roots=[leaf]), leaf))
        loaded = await required(store.read("t"))
        assert list(loaded.objects) == []

    async def test_fetching_brings_what_is_there_and_leaves_out_the_rest(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        missing = make_object(b"missing")
        await store.commit(put(make_record(roots=[leaf]), leaf))
        loaded = await required(store.read("t"))
        assert await store.fetch(loaded.stored.family, [leaf.hash, missing.hash]) == [leaf]

    async def test_many_objects_come_back_in_one_call(self, store: Store) -> None:
        leaves = make_leaves(3000)
        top = make_object(b"top", *leaves)
        await store.commit(put(make_record(roots=[top]), top, *leaves))
        loaded = await required(store.read("t", objects=True))
        assert set(hashes_of(loaded.objects)) == {top.hash, *hashes_of(leaves)}

    async def test_a_record_without_objects_is_fine(self, store: Store) -> None:
        await store.commit(put(make_record()))
        loaded = await required(store.read("t", objects=True))
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
        hidden = Key("t", "", "c-4")
        with_writes = Key("t", "", "c-3")
        pinned = Key("t", "", "c-1")
        keys = [
            with_writes, Key("branch", "", "b1"), Key("t", "", "not stored"), hidden, Key("ghost", "", "c-1"), odd.key,
            Key("t", "ghost", "c-1"), Key("t", "sub", "c-1"), pinned, Key("t", "sub", "s1"), with_writes,
        ]  # fmt: skip

        for writes in (False, True):
            each: list[Loaded] = []
            for key in keys:
                one = await store.read(*key, writes=writes)
                if one is not None:
                    each.append(one)
            many = await store.read_many(keys, writes=writes)
            assert list(map(as_listed, many)) == list(map(as_listed, each))

        found = {loaded.stored.record.key: loaded for loaded in many}
        assert len(many) == 7 and len(found) == 6
        for key, loaded in found.items():
            assert loaded.stored.hidden == (key == hidden)
            assert loaded.stored.pinned == (key == pinned)
            assert len(loaded.writes) == (key == with_writes)
        assert found[odd.key].stored.record == odd

    async def test_reading_many_may_find_none(self, store: Store) -> None:
        key = Key("t", "", "c1")
        assert await store.read_many([]) == []
        assert await store.read_many([key]) == []
        await store.put_writes(key, [Write("task", 0, "ch", b"", b"w", 1)], [])
        assert await store.read_many([key, key], writes=True) == []

    async def test_a_long_history_is_read_in_one_call(self, store: Store) -> None:
        records = [make_record(f"c-{n}", body=b"%d" % n) for n in range(250)]
        records += [make_record("c-1", f"other {n}") for n in range(10)]
        for record in records:
            await store.commit(put(record))
        await store.put_writes(Key("t", "", "c-7"), [Write("task", 0, "ch", b"", b"w", 1)], [])

        # In another order than they came in, and some of them twice.
        wanted = [*records[249::-1], *records[250:], *records[245:250]]
        found = await store.read_many([record.key for record in wanted], writes=True)

        assert [loaded.stored.record for loaded in found] == wanted
        assert [loaded.stored.record.key.checkpoint_id for loaded in found if loaded.writes] == ["c-7"]

    # -- 8 exact, whatever the names

    @pytest.mark.parametrize("name", ODD_NAMES)
    async def test_any_text_can_be_a_name(self, store: Store, name: str) -> None:
        record = make_record(name, name, name, metadata={name: name})
        await store.commit(put(record))
        await store.put_writes(record.key, [Write(name, 0, name, b"", b"", 0, name)], [])

        loaded = await required(store.read(name, name, name, writes=True))

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
            loaded = await required(store.read(thread_id, namespace, "x"))
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
        thread = await required(store.thread("t"))
        assert {ns: checkpoint_id for ns, (checkpoint_id, _) in thread.heads.items()} == {"": "c1", "sub": "c1"}
        assert ids(await store.list_checkpoints(Query(thread_id="t", namespace="sub"))) == ["c1"]
        assert len(await store.list_checkpoints(Query(thread_id="t", namespace=None))) == 2

    async def test_an_id_is_found_in_every_thread_that_holds_it(self, store: Store) -> None:
        keys = [Key("t", "", "c"), Key("t", "sub", "c"), Key("u", "", "c")]
        for key in keys:
            await store.commit(put(make_record(key.checkpoint_id, key.thread_id, key.namespace)))
        assert sorted(await store.find("c")) == sorted(keys)
