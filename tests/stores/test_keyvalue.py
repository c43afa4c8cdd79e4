"""Ordered keys and values: their order, transactions that are taken back, damage that is noticed."""

from __future__ import annotations

import bisect
import itertools
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.errors import CheckpointCorrupted, CheckpointNotFound, EverstepError, HeadMoved, StoreMismatch
from everstep.runtime.blocking import run_to_end
from everstep.stores import memory
from everstep.stores.keyvalue import keys
from everstep.stores.keyvalue.interface import KEY_BYTES_MAX
from everstep.stores.keyvalue.rows import IDENTITY
from everstep.stores.keyvalue.store import KeyValueStore
from everstep.stores.memory import MemoryKeyValues, MemoryStore, SortedKeys
from everstep.stores.protocol import Change, Key, Move, Operation, Position, Query, Search, Write
from everstep.testing.builders import follow, ids, make_object, make_record, put, raw_thread

NAMES = st.text(st.sampled_from(["\0", "\1", "a", "b", "\xff", "漢", "🙂"]), max_size=5)
LONG = [*("x" * n for n in (199, 200, 201, 1000)), "x" * 199 + "\0", "x" * 199 + "\0y", "x" * 198 + "\0\0", "🙂" * 999]


@given(NAMES, NAMES)
def test_names_are_in_the_order_of_their_code_points(one: str, other: str) -> None:
    assert (one < other) == (keys.name(one) < keys.name(other))


@pytest.mark.parametrize("text", LONG)
def test_no_name_begins_like_another_whatever_follows(text: str) -> None:
    for other in (*LONG, "", "x", "\0"):
        assert keys.name(other).startswith(keys.name(text)) == (other == text)


@given(NAMES, st.sampled_from([*LONG, "", "a", "b\0"]))
def test_what_begins_with_a_text_is_found_below_it(beginning: str, rest: str) -> None:
    start = keys.shortened(keys.beginning(beginning))
    assert start <= keys.name(beginning + rest) < (keys.end(b"t" + start)[1:] or b"\xff")


def test_numbers_are_in_their_order() -> None:
    assert keys.number(255) < keys.number(256) < keys.number(1 << 62)
    assert keys.signed(-(1 << 40)) < keys.signed(-1) < keys.signed(0) < keys.signed(1 << 40)
    assert keys.end(b"a\xff\xff") == b"b"


def test_every_key_is_short_enough() -> None:
    lengths: list[int] = []

    class Measured(MemoryKeyValues):
        def put(self, key: bytes, value: bytes) -> None:
            lengths.append(len(key))
            super().put(key, value)

    store = KeyValueStore(Measured())
    name = "\0" * 999
    run_to_end(store.commit(put(make_record(name, name, name))))
    run_to_end(store.put_writes(Key(name, name, name), [Write(name, 1, name, b"", b"", 1)], []))
    assert 400 < max(lengths) <= KEY_BYTES_MAX


@pytest.mark.parametrize("seed", range(5))
def test_sorted_keys_are_what_a_sorted_list_is(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_BLOCK_MAX", 6)
    rng = random.Random(seed)
    sorted_keys, model = SortedKeys(), list[bytes]()
    for _ in range(600):
        key = rng.randbytes(rng.randint(1, 2))
        if key in model:
            sorted_keys.remove(key)
            model.remove(key)
        else:
            sorted_keys.add(key)
            bisect.insort(model, key)
        start, end = sorted([rng.randbytes(1), rng.randbytes(2)])
        wanted = model[bisect.bisect_left(model, start) : bisect.bisect_left(model, end)]
        assert list(sorted_keys.between(start, end)) == wanted
        assert list(sorted_keys.between_reversed(start, end)) == wanted[::-1]
    assert list(sorted_keys.between(b"", b"\xff" * 9)) == model


def test_what_fails_in_the_middle_changes_nothing() -> None:
    """Whatever key was the last one that could be written."""
    backend = MemoryKeyValues()
    store = KeyValueStore(backend)
    run_to_end(store.commit(follow("t", "c")))
    before = dict(backend._values)
    leaf = make_object(b"leaf")
    change = put(
        make_record("c-2", roots=[leaf], metadata={"k": 1}), leaf, log=Operation("x", {}), moves=[Move("", "c-1")]
    )
    for allowed in range(100):
        try:
            with failing_after(backend, allowed):
                run_to_end(store.commit(change))
        except ZeroDivisionError:
            assert backend._values == before
            assert list(backend._keys.between(b"", b"\xff")) == sorted(before)
        else:
            break
    assert allowed > 8
    assert backend._values != before


@contextmanager
def failing_after(backend: MemoryKeyValues, allowed: int) -> Iterator[None]:
    left = [allowed]

    def put(key: bytes, value: bytes) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError
        MemoryKeyValues.put(backend, key, value)

    backend.put = put  # type: ignore[method-assign]
    try:
        yield
    finally:
        del backend.put


class Careless(MemoryKeyValues):
    """A backend that does not notice damage."""

    finds_damage = False


def test_no_flipped_bit_goes_unnoticed() -> None:
    backend = Careless()
    store = KeyValueStore(backend)
    leaf = make_object(b"leaf")
    run_to_end(store.commit(put(make_record("a", roots=[leaf]), leaf)))
    run_to_end(store.commit(Change(thread_id="t", log=Operation("kind", {"n": 1}))))
    run_to_end(store.put_writes(Key("t", "", "a"), [Write("task", 0, "ch", b"", b"w", 1)], []))
    whole = told(store)
    noticed = 0
    for key, value in list(backend._values.items()):
        for at in range(len(value)):
            backend._values[key] = value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :]
            try:
                assert told(store) == whole
            except (CheckpointCorrupted, CheckpointNotFound):
                noticed += 1
            backend._values[key] = value
    assert noticed > 200
    assert told(store) == whole


def test_values_that_are_swapped_are_noticed() -> None:
    backend = Careless()
    store = KeyValueStore(backend)
    for name in ("a", "b"):
        run_to_end(store.commit(follow(name, "c")))
    one, two = (key for key in backend._values if key[:1] == b"l")
    backend._values[one], backend._values[two] = backend._values[two], backend._values[one]
    with pytest.raises(CheckpointCorrupted):
        run_to_end(store.read("a"))


def test_a_thread_with_a_damaged_checkpoint_can_be_deleted_as_a_whole() -> None:
    backend = Careless()
    store = KeyValueStore(backend)
    run_to_end(store.commit(follow("t", "c")))
    run_to_end(store.commit(follow("other", "c")))
    key = next(key for key in backend._values if key[:1] == b"c")
    backend._values[key] = backend._values[key][:-1] + b"?"
    with pytest.raises(CheckpointCorrupted):
        run_to_end(store.read("t"))

    assert run_to_end(store.delete("t")).checkpoints == 1

    assert run_to_end(store.thread("t")) is None
    assert run_to_end(store.find("c-1")) == [Key("other", "", "c-1")]
    assert run_to_end(store.commit(follow("t", "c"))) is not None


def told(store: KeyValueStore) -> Any:
    """Return what a store tells about its thread."""
    loaded = run_to_end(store.read("t", objects=True, writes=True))
    listed = run_to_end(store.list_checkpoints(Query(thread_id="t")))
    return loaded, ids(listed), run_to_end(store.operations("t", 9)), run_to_end(raw_thread(store))


@pytest.mark.parametrize("active", [-5, 0, 1 << 70])
def test_a_search_may_go_on_from_any_place(active: int) -> None:
    store = MemoryStore()
    run_to_end(store.commit(follow("t", "c")))
    found = run_to_end(store.search(Search(after=Position(active, "t"))))
    assert len(found) == (active > 0)


def test_another_format_is_refused() -> None:
    backend = MemoryKeyValues()
    with backend.write(0) as tx:
        tx.put(IDENTITY, b"something else")
    with pytest.raises(StoreMismatch):
        run_to_end(KeyValueStore(backend).read("t"))


def test_a_head_without_its_checkpoint_is_damage() -> None:
    backend = MemoryKeyValues()
    store = KeyValueStore(backend)
    run_to_end(store.commit(follow("t", "c")))
    with backend.write(0) as tx:
        for key in [key for key in backend._values if key[:1] == b"c"]:
            tx.delete(key)
    calls: list[Any] = [
        store.read("t"),
        store.read("t", "", "c-1"),
        store.commit(follow("t", "c")),
        store.list_threads(1, 0),
    ]
    for call in calls:
        with pytest.raises(CheckpointCorrupted, match="'t'"):
            run_to_end(call)
    assert run_to_end(store.delete("t")).checkpoints == 0
    run_to_end(store.commit(follow("t", "c")))


def test_hidden_stretches_seen_in_a_transaction_that_failed_are_not_remembered() -> None:
    """The number that tells one state from another may be given again."""
    store = MemoryStore()
    for _ in range(3):
        run_to_end(store.commit(follow("t", "c")))

    async def hide(inside: Any, seq: int, fails: bool) -> None:
        from everstep.stores.protocol import Hidden

        listed = await inside.list_checkpoints(Query(thread_id="t"))
        assert len(listed) == 3
        await inside.commit(Change(thread_id="t", hide=[Hidden("", seq - 1, seq)], log=Operation("x", {})))
        assert len(await inside.list_checkpoints(Query(thread_id="t"))) == 2
        if fails:
            raise EverstepError

    seqs = [stored.seq for stored in run_to_end(store.list_checkpoints(Query(thread_id="t", order="oldest")))]
    with pytest.raises(EverstepError):
        run_to_end(store.in_turn("t", lambda inside: hide(inside, seqs[0], True)))
    run_to_end(store.in_turn("t", lambda inside: hide(inside, seqs[1], False)))
    assert ids(run_to_end(store.list_checkpoints(Query(thread_id="t")))) == ["c-3", "c-1"]


def test_ctrl_c_at_any_moment_leaves_the_store_in_memory_whole() -> None:
    for moment in itertools.count(1):
        store = MemoryStore()
        run_to_end(store.commit(follow("t", "c")))
        was_struck = False

        def commit(store: MemoryStore = store) -> None:
            run_to_end(store.commit(follow("t", "c")))

        try:
            was_struck = struck_at(moment, commit)
        except KeyboardInterrupt:
            was_struck = True
        there: list[str] = []
        other = threading.Thread(target=lambda: there.extend(listed(store)), daemon=True)  # noqa: B023  # it is joined
        other.start()
        other.join(10)
        assert there in (["c-1"], ["c-2", "c-1"]), moment  # nobody has the lock
        with pytest.raises(HeadMoved):
            run_to_end(store.commit(follow("t", "d", "another")))
        assert listed(store) == there  # what fails later takes nothing back but its own
        if not was_struck:
            assert moment > 50
            return


def struck_at(moment: int, work: Callable[[], None]) -> bool:
    """Do something and let Ctrl-C strike at a call or return inside the store; return whether there were so many."""
    seen = 0

    def strike(frame: FrameType, event: str, _: Any) -> None:
        nonlocal seen
        if event in ("call", "return", "c_call", "c_return") and "everstep/stores/" in frame.f_code.co_filename:
            seen += 1
            if seen == moment:
                signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(strike)
    try:
        work()
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    return seen >= moment


def listed(store: MemoryStore) -> list[str]:
    return ids(run_to_end(store.list_checkpoints(Query(thread_id="t"))))
