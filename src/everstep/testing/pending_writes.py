"""Pending writes of checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.errors import BaseGone
from everstep.stores.protocol import BaseRef, Change, Draft, Hidden, Key, Operation, Store, Write
from everstep.testing.builders import (
    Reopen,
    bodies_of,
    committed,
    follow,
    hashes_of,
    make_object,
    make_record,
    put,
    required,
    stored_objects,
)


class PendingWritesContract:
    """Pending writes of checkpoints."""

    async def test_writes_may_come_before_their_checkpoint(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        key = Key("t", "", "c1")
        await store.put_writes(key, [Write("task", 0, "channel", leaf.hash, b"body", 9, "path")], [leaf])
        await store.commit(put(make_record()))
        loaded = await required(store.read("t", writes=True))
        (write,) = loaded.writes
        assert write._replace(seq=0) == Write("task", 0, "channel", leaf.hash, b"body", 9, "path")
        assert await store.fetch(loaded.stored.family, [leaf.hash]) == [leaf]

    async def test_of_regular_writes_the_first_stays_of_special_ones_the_last(self, store: Store) -> None:
        key = Key("t", "", "c1")
        await store.commit(put(make_record()))
        for body in (b"first", b"second"):
            await store.put_writes(key, [Write("t1", 0, "a", b"", body, 0), Write("t1", -1, "err", b"", body, 0)], [])
        loaded = await required(store.read("t", writes=True))
        assert bodies_of(loaded) == [(-1, b"second"), (0, b"first")]

    async def test_writes_come_in_the_order_of_path_task_and_index(self, store: Store) -> None:
        key = Key("t", "", "c1")
        await store.commit(put(make_record()))
        # Indexes that sort differently as texts, and paths that sort differently by language than by bytes.
        places = [("~b", "t1", 0), ("", "t3", 0), ("~a", "t2", 10), ("~a", "t2", 9), ("~B", "t4", 0), ("~ä", "t5", 0)]
        for path, task, idx in places:
            await store.put_writes(key, [Write(task, idx, "ch", b"", b"", 0, path)], [])
        loaded = await required(store.read("t", writes=True))
        assert [(w.task_path, w.task_id, w.idx) for w in loaded.writes] == sorted(places)

    async def test_writes_can_be_hidden_and_shown(self, store: Store) -> None:
        await store.commit(put(make_record()))
        await store.put_writes(Key("t", "", "c1"), [Write("task", 0, "ch", b"", b"", 0)], [])
        loaded = await required(store.read("t", writes=True))
        stretch = Hidden("", 0, loaded.writes[0].seq, None, "c1")
        await store.commit(Change(thread_id="t", hide=[stretch], log=Operation("rewind", {})))
        (operation,) = await store.operations("t", 1)
        hidden = await required(store.read("t", writes=True))
        await store.commit(Change(thread_id="t", show=[operation.seq]))
        shown = await required(store.read("t", writes=True))
        assert (len(hidden.writes), len(shown.writes)) == (0, 1)

    async def test_what_is_written_anew_stands_beside_hidden_writes(self, store: Store, reopen: Reopen) -> None:
        key = Key("t", "", "c1")

        async def check_shown(held: Store, body: bytes) -> None:
            loaded = await required(held.read("t", writes=True))
            assert bodies_of(loaded) == [(-1, body), (0, body), (1, body)]

        async def hide(**change: Any) -> None:
            loaded = await required(store.read("t", writes=True))
            seqs = [write.seq for write in loaded.writes]
            operation = change["amend"][0].seq if change else 0
            stretch = Hidden("", min(seqs) - 1, max(seqs), None, "c1", operation)
            log = None if change else Operation("rewind", {})
            await store.commit(Change(thread_id="t", hide=[stretch], log=log, **change))

        await store.commit(put(make_record()))
        for body in (b"one", b"two", b"three"):
            await store.put_writes(key, [Write("t1", n, "a", b"", body, 0) for n in (0, 1, -1)], [])
            await check_shown(store, body)
            # The last ones stay visible, so that what is shown again has something beside it.
            if body != b"three":
                await hide()
                hidden = await required(store.read("t", writes=True))
                assert list(hidden.writes) == []
        second, first = await store.operations("t", 10)
        await hide(show=[second.seq], amend=[second._replace(undone=True)])
        await check_shown(store, b"two")
        store = await reopen()
        await check_shown(store, b"two")
        await hide(show=[first.seq], amend=[first._replace(undone=True)])
        await check_shown(store, b"one")
        # A regular write that comes late loses to the one that is shown, as it would have at first.
        await store.put_writes(key, [Write("t1", 0, "a", b"", b"late", 0)], [])
        await check_shown(store, b"one")

    async def test_shown_writes_take_the_place_of_what_came_since(self, store: Store) -> None:
        key = Key("t", "", "c1")
        await store.commit(put(make_record()))
        await store.put_writes(key, [Write("t1", 0, "a", b"", b"first", 0)], [])
        loaded = await required(store.read("t", writes=True))
        stretch = Hidden("", 0, loaded.writes[0].seq, None, "c1")
        await store.commit(Change(thread_id="t", hide=[stretch], log=Operation("rewind", {})))
        await store.put_writes(key, [Write("t1", 0, "a", b"", b"since", 0)], [])
        (operation,) = await store.operations("t", 1)
        await store.commit(Change(thread_id="t", show=[operation.seq]))
        loaded = await required(store.read("t", writes=True))
        assert bodies_of(loaded) == [(0, b"first")]

    async def test_hidden_writes_are_kept_by_a_sweep_and_go_with_their_checkpoint(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        other = make_object(b"other")
        key = Key("t", "", "c1")
        stored = await committed(store, put(make_record()))
        for each in (leaf, other):
            await store.put_writes(key, [Write("t1", 0, "a", each.hash, b"", 0)], [each])
            loaded = await required(store.read("t", writes=True))
            stretch = Hidden("", loaded.writes[0].seq - 1, loaded.writes[0].seq, None, "c1")
            await store.commit(Change(thread_id="t", hide=[stretch], log=Operation("rewind", {})))
        # A second checkpoint keeps the thread, and so its family, when the first one is deleted.
        await store.commit(follow("t", "c"))
        await store.sweep(stored.family)
        assert await stored_objects(store, stored.family, leaf, other) == {leaf.hash, other.hash}
        await store.delete("t", keys=[key])
        await store.sweep(stored.family)
        assert await store.fetch(stored.family, [leaf.hash, other.hash]) == []

    async def test_one_commit_makes_checkpoints_in_several_namespaces_with_their_writes(self, store: Store) -> None:
        leaf = make_object(b"leaf")
        other = make_object(b"other")
        value = make_object(b"value")
        drafts: list[Draft] = []
        writes: list[tuple[Key, Write]] = []
        for name, root in (("", leaf), ("inner", other)):
            source = await committed(store, put(make_record("c", namespace=name, roots=[root]), root))
            record = make_record("c", "branch", namespace=source.record.key.namespace, roots=[root])
            record = record._replace(parents=(source.record.key,))
            drafts.append(Draft(record, [value], [BaseRef(source.record.key, source.digest)]))
            writes.append((record.key, Write("task", 0, "a", value.hash, name.encode(), 0)))
        change = Change(
            thread_id="branch",
            build=lambda _: drafts[0],
            origin=Key("t", "", "c"),
            other_namespaces=drafts[1:],
            writes=writes,
            log=Operation("branch", {}),
            log_thread="t",
        )
        await store.commit(change)
        # The same change again, as after a lost answer, makes nothing twice.
        await store.commit(change)
        for name, root in (("", leaf), ("inner", other)):
            loaded = await required(store.read("branch", name, objects=True, writes=True))
            assert hashes_of(loaded.objects) == [root.hash]
            assert [(write.body, write.children) for write in loaded.writes] == [(name.encode(), value.hash)]
            thread = await required(store.thread("branch", ancestry=True))
            assert [place.key for place in thread.segments[loaded.stored.segment]] == [Key("t", name, "c")]
        assert len(await store.operations("t", 10)) == 1
        # One draft whose base is not there must keep the other from being committed too.
        bad = drafts[1]._replace(bases=[BaseRef(Key("t", "inner", "c"), b"wrong")])
        changed = drafts[0]._replace(record=drafts[0].record._replace(key=Key("third", "", "c")))
        bad = bad._replace(record=bad.record._replace(key=Key("third", "inner", "c")))
        with pytest.raises(BaseGone):
            await store.commit(
                Change(thread_id="third", build=lambda _: changed, origin=Key("t", "", "c"), other_namespaces=[bad])
            )
        assert await store.thread("third") is None
