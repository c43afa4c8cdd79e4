"""What only PostgreSQL can get wrong when it takes over: others write at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from everstep.errors import InvalidInput
from everstep.runtime.blocking import run_to_end as run
from everstep.stores.postgres.rows import Rows
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import Key, Part, Query, RawLine, RawThread, Store, Write
from everstep.testing import follow, make_record, put
from tests.tools import servers


@pytest.fixture
def stores() -> Iterator[list[Store]]:
    """Three that share their tables, as processes do."""
    servers.clear_postgres()
    made = [PostgresStore(servers.postgres(), max_size=4).blocking for _ in range(3)]
    yield list(made)
    for store in made:
        run(store.close())


def test_reserved_numbers_are_nobody_elses_in_the_family(stores: list[Store]) -> None:
    reserving, *writing = stores
    first = run(reserving.commit(follow("t", "first")))
    assert first is not None
    for name in ("a", "b"):
        run(reserving.commit(put(make_record("begun", name), origin=first.record.key)))
    is_over, failures = threading.Event(), list[BaseException]()
    given: list[list[int]] = [[], []]

    def write(store: Store, seqs: list[int], name: str) -> None:
        try:
            while not is_over.is_set() or len(seqs) < 20:
                stored = run(store.commit(follow(name, "c")))
                run(store.put_writes(Key(name, "", "w"), [Write(str(len(seqs)), 0, "ch", b"", b"", 0)], []))
                assert stored is not None
                seqs.append(stored.seq)
        except BaseException as exc:
            failures.append(exc)

    threads = [
        threading.Thread(target=write, args=(store, seqs, name))
        for store, seqs, name in zip(writing, given, ("a", "b"), strict=True)
    ]
    for thread in threads:
        thread.start()
    stretches: list[range] = []
    while len(stretches) < 15 or min(map(len, given)) < 20:
        base = run(reserving.adopt(Part("t", reserve=5)))
        stretches.append(range(base + 1, base + 6))
        if failures:
            break
    is_over.set()
    for thread in threads:
        thread.join(60)

    assert failures == []
    raws: list[Any] = [run(reserving.raw(name)) for name in ("a", "b")]
    seqs = [seq for each in given for seq in each] + [write.seq for raw in raws for _, write in raw.writes]
    assert len(set(seqs)) == len(seqs)
    assert all(each == sorted(each) for each in given)
    reserved = {number for stretch in stretches for number in stretch}
    assert len(reserved) == 5 * len(stretches)
    assert not reserved & set(seqs)


def test_a_large_reservation_moves_no_other_family(stores: list[Store]) -> None:
    store = stores[0]
    first = run(store.commit(follow("other", "o")))
    base = run(store.adopt(Part("t", reserve=10**15)))
    second, ours = run(store.commit(follow("other", "o"))), run(store.commit(follow("t", "c")))
    assert first is not None
    assert second is not None
    assert ours is not None
    assert second.seq - first.seq < 1000
    assert ours.seq > base + 10**15


def test_a_thread_that_is_made_elsewhere_meanwhile_is_refused(
    stores: list[Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, _ = stores
    stored = run(store.commit(follow("t", "c")))
    assert stored is not None
    coming = stored._replace(record=make_record("x", "new"), seq=stored.seq + 1)
    join, calls = Rows.join, []

    def intrude(self: Rows, thread_id: str, family: str | None) -> str:
        calls.append(thread_id)
        if calls.count("new") == 1:
            run(other.commit(put(make_record("mine", "new"))))
        return join(self, thread_id, family)

    monkeypatch.setattr(Rows, "join", intrude)
    with pytest.raises(InvalidInput, match="'new' exists"):
        run(store.adopt(Part("t", checkpoints=[coming])))
    assert [s.record.key.checkpoint_id for s in run(store.list_checkpoints(Query(thread_id="new")))] == ["mine"]


def test_a_head_that_gets_another_number_stays_the_head(stores: list[Store]) -> None:
    store = stores[0]
    run(store.commit(follow("t", "c")))
    base = run(store.adopt(Part("t", reserve=10)))
    loaded = run(store.read("t"))
    assert loaded is not None
    run(store.adopt(Part("t", checkpoints=[loaded.stored._replace(seq=base + 3)])))
    found, after = run(store.read("t")), run(stores[1].commit(follow("t", "c")))
    assert found is not None
    assert after is not None
    assert (found.stored.record.key.checkpoint_id, found.stored.seq) == ("c-1", base + 3)
    assert after.record.step == 2


def test_what_a_namespace_that_goes_had_is_garbage(stores: list[Store]) -> None:
    store = stores[0]
    run(store.commit(follow("t", "c")))
    for name in ("s1", "s2", "s3"):
        run(store.commit(put(make_record(name, namespace="sub"))))
    raw: Any = run(store.raw("t"))
    kept = RawThread("t", "", b"", {"": raw.lines[""]})
    run(store.adopt(Part("t", threads=[kept])))
    thread = run(store.thread("t"))
    assert thread is not None
    assert thread.garbage > 0
    run(store.commit(put(make_record("s4", namespace="sub"))))
    begun = run(store.read("t", "sub"))
    assert begun is not None
    assert begun.generation > 3  # it never goes down while the family lives


def test_a_lower_generation_from_elsewhere_is_no_loss(stores: list[Store]) -> None:
    store = stores[0]
    for _ in range(5):
        run(store.commit(follow("t", "c")))
    line = RawLine("c-2", head_was_moved=True, generation=2, active=1)
    run(store.adopt(Part("t", threads=[RawThread("t", "", b"", {"": line})])))
    loaded = run(store.read("t"))
    assert loaded is not None
    assert loaded.generation == 2
