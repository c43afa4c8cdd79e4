"""What is special to the Redis store: its keys, time to live, aliases, scripts, replicas, and what can go wrong."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import redis as redis_py
from langgraph.checkpoint.base import empty_checkpoint

from everstep import (
    CheckpointCorrupted,
    CommitUnknown,
    EverstepError,
    HeadMoved,
    HeadRegressed,
    InvalidInput,
    StoreClosed,
    StoreError,
    StoreMismatch,
    StoreUnavailable,
)
from everstep.errors import BaseGone, DurabilityWarning, StoreFull, StoreReadOnly
from everstep.langgraph import HarnessCheckpointer
from everstep.runtime.blocking import run_to_end as go
from everstep.stores.protocol import (
    BaseRef,
    Change,
    Deleted,
    Draft,
    Hidden,
    Key,
    Move,
    Object,
    Operation,
    Pin,
    Query,
    Record,
    Search,
    Stored,
    Write,
)
from everstep.stores.redis import link as redis_link
from everstep.stores.redis.items import BUCKETS, bucket_of, escaped
from everstep.stores.redis.store import RedisStore
from everstep.stores.sweeping import Sweep
from everstep.testing import ids, make_object, make_record, put
from everstep.values import tree
from everstep.values.compress import expand
from tests.faults.proxy import Proxy
from tests.tools import servers
from tests.tools.servers import LOOPBACK, ValkeyCluster, ValkeyServer, free_port, wait_until


class Shelf:
    """A prefix of its own on a server, with as many stores as a test wants."""

    def __init__(self, url: str) -> None:
        self.url, self.prefix = url, servers.redis_prefix()
        self.client: Any = redis_py.Redis.from_url(url)
        self._opened: list[RedisStore] = []

    def open(self, **options: Any) -> Any:
        store = RedisStore(options.pop("url", self.url), key_prefix=self.prefix, **options)
        self._opened.append(store)
        return store.blocking

    def names(self, pattern: str = "*") -> list[bytes]:
        return sorted(self.client.scan_iter(f"{self.prefix}{pattern}", 1000))

    def key(self, pattern: str) -> bytes:
        (found,) = self.names(pattern)
        return found

    def close(self) -> None:
        for store in self._opened:
            go(store.blocking.close())
        self.client.close()


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf(servers.redis())
    yield shelf
    shelf.close()


@pytest.fixture(scope="module")
def own() -> Iterator[ValkeyServer]:
    """A server to do harm to; each test leaves it as it was."""
    with ValkeyServer(durable=False) as server:
        yield server


@pytest.fixture
def own_shelf(own: ValkeyServer) -> Iterator[Shelf]:
    shelf = Shelf(own.url)
    yield shelf
    shelf.close()


def name_in(other_than: str, like: str = "b") -> str:
    """Return a name whose bucket is not that of the other."""
    return next(name for n in range(100) if bucket_of(name := f"{like}{n}") != bucket_of(other_than))


def record(
    name: str, thread_id: str = "t", namespace: str = "", parents: Sequence[Key] = (), objects: Sequence[Object] = (),
    **more: Any,
) -> Record:  # fmt: skip
    return make_record(name, thread_id, namespace, roots=objects, **more)._replace(parents=tuple(parents))


def follow(thread_id: str, name: str, namespace: str = "", objects: Sequence[Object] = (), **more: Any) -> Change:
    """Return the change that puts the next checkpoint of a line."""

    def build(head: Stored | None) -> Draft:
        parents = [head.record.key] if head is not None else []
        return Draft(record(name, thread_id, namespace, parents, objects[-1:]), objects)

    return Change(thread_id, namespace, build=build, **more)


def branch(thread_id: str, name: str, origin: Key, **more: Any) -> Change:
    return put(record(name, thread_id, parents=[origin]), origin=origin, **more)


def the_ids(store: Any, thread_id: str = "t", namespace: str = "") -> list[str]:
    return ids(go(store.list_checkpoints(Query(thread_id=thread_id, namespace=namespace, hidden="also"))))


# -- keys --------------------------------------------------------------------------------------------------------------


def test_keys_are_as_documented(shelf: Shelf) -> None:
    store = shelf.open()
    leaf = make_object(b"body")
    for name in ("b", "a", "c"):
        go(store.commit(put(record(name, "a thread", "ns", objects=(leaf,)), leaf)))
    start = f"{shelf.prefix}{{{bucket_of('a thread')}}}:"
    index = shelf.key("*:index").decode()
    assert index.startswith(start)
    assert shelf.client.zrange(index, 0, -1) == [b"b", b"a", b"c"]
    items = [key.decode() for key in shelf.names("*:item:*")]
    assert items == [f"{index.removesuffix('index')}item:{name}" for name in "abc"]
    shown = json.loads(shelf.client.get(items[0]))
    assert (shown["thread_id"], shown["namespace"], shown["checkpoint_id"], shown["step"]) == ("a thread", "ns", "a", 1)
    assert "root" in shown


def test_buckets_never_change() -> None:
    assert BUCKETS == 128
    assert [bucket_of(name) for name in ("t", "a", "thread-1", "größe", "x" * 1000)] == [77, 18, 111, 103, 68]


HOSTILE = [
    "*", "?", "[a-z]", "a:b", ":b", "b:b", "{x}", "a\nb", "\0", "%41", "A", "a b 1 - x", "é\u2028", "x" * 1000, "@",
]  # fmt: skip


def test_hostile_names_stay_apart(shelf: Shelf) -> None:
    store = shelf.open()
    lines = [(one, two) for one in HOSTILE for two in ("", *HOSTILE[:6])]
    for thread_id, namespace in lines:
        for name in ("1\n2", thread_id):
            go(store.commit(follow(thread_id, name, namespace)))
    again = shelf.open()
    for thread_id, namespace in lines:
        assert the_ids(again, thread_id, namespace) == [thread_id, "1\n2"]
        assert go(again.read(thread_id, namespace)).stored.record.key == (thread_id, namespace, thread_id)
    assert sorted(go(again.find("1\n2"))) == sorted(Key(*line, "1\n2") for line in lines)
    assert {row.record.key.thread_id for row in go(again.list_threads(100, 0))} == set(HOSTILE)
    assert all(key.count(b"{") == key.count(b"}") == 1 for key in shelf.names("{*") if b":item:" not in key)
    for thread_id in HOSTILE:
        go(again.delete(thread_id))
    left = {key.removeprefix(shelf.prefix.encode()) for key in shelf.names()}
    marks = {b"{%d}:gone" % bucket_of(thread_id) for thread_id in HOSTILE}
    assert left == {b"format", b"identity", b"buckets", *marks}


def test_stores_of_other_prefixes_see_nothing(shelf: Shelf) -> None:
    store, other = shelf.open(), RedisStore(shelf.url, key_prefix=f"{shelf.prefix}x:").blocking
    go(store.commit(put(record("c"))))
    assert go(other.read("t")) is None
    assert go(other.find("c")) == []
    assert go(other.list_threads(10, 0)) == []
    go(other.commit(put(record("d"))))
    assert the_ids(store) == ["c"]
    go(other.close())


def test_listing_reads_no_objects(shelf: Shelf) -> None:
    store = shelf.open()
    leaf = make_object(b"x" * 1000)
    go(store.commit(put(record("c", objects=(leaf,)), leaf)))
    shelf.client.delete(shelf.key("*:objects"))
    assert the_ids(store) == ["c"]
    assert go(store.list_threads(1, 0))[0].record.body == b""


def test_long_numbers_in_metadata_come_back(shelf: Shelf) -> None:
    store = shelf.open()
    metadata = {"long": 10**5000, "float": 0.1, "text": "\ud800", "root": "x", "nested": {"a": [1, None, True]}}
    go(store.commit(put(record("c", metadata=metadata))))
    assert go(store.read("t")).stored.record.metadata == metadata
    assert go(store.list_checkpoints(Query(thread_id="t", filter={"long": 10**5000})))[0].record.metadata == metadata


# -- time to live ------------------------------------------------------------------------------------------------------

LIFE = 1000.0
ENDLESS = ("active", "names", "facts", "counts", "ids", "gone", "life", "aliases")  # of a bucket, not of a family
_MS = 1000


def lives(shelf: Shelf) -> dict[str, int]:
    """Return the milliseconds that each key of the buckets has left; -1: no end."""
    names = shelf.names("{*")
    with shelf.client.pipeline() as together:  # as of one moment
        for name in names:
            together.pttl(name)
        left = together.execute()
    return {name.decode().partition("}:")[2]: each for name, each in zip(names, left, strict=True)}


def pass_time(shelf: Shelf, seconds: float) -> None:
    """Let time pass for what ends some time: keys come nearer to their end, and so do the dates inside."""
    for key in shelf.names("{*"):
        left = shelf.client.pttl(key)
        if left != -1:
            shelf.client.pexpire(key, max(1, left - int(seconds * _MS)))
    for key in shelf.names("{*"):
        if shelf.client.type(key) == b"hash" and (ends := shelf.client.hget(key, "until")) is not None:
            shelf.client.hset(key, "until", int(ends) - int(seconds * 1_000_000))
    wait_until(lambda: all(shelf.client.pttl(key) != 1 for key in shelf.names("{*")), "keys to expire")


def check_lives(shelf: Shelf) -> None:
    """Nothing of a family ends before it."""
    found = lives(shelf)
    family = min(left for key, left in found.items() if key.startswith("family:") and key.count(":") == 1)
    for key, left in found.items():
        if key not in ENDLESS:
            assert left == -1 or left >= family - 50, (key, left, family)


def rich_family(store: Any) -> str:
    """Make a thread with a branch in another bucket, pins, writes, objects, a log and something hidden."""
    leaf = make_object(b"leaf")
    go(store.commit(put(record("1", objects=(leaf,)), leaf)))
    go(store.commit(follow("t", "2")))
    go(store.commit(follow("t", "n1", "ns")))
    other = name_in("t")
    origin = Key("t", "", "1")
    go(store.commit(branch(other, "1", origin, log=Operation("branch", {}), log_thread="t")))
    go(store.commit(Change("t", pins=[Pin(origin, True)], log=Operation("pin", {}))))
    seq = go(store.read("t", "", "1")).stored.seq
    newest = go(store.thread("t")).newest[""]
    go(store.commit(Change("t", moves=[Move("", "1")], hide=[Hidden("", seq, newest)], log=Operation("rewind", {}))))
    go(store.put_writes(Key("t", "", "1"), [Write("task", 0, "c", b"", b"w", 1)], ()))
    return other


def test_a_family_lives_as_long_as_one_of_its_threads_is_active(shelf: Shelf) -> None:
    store = shelf.open(ttl_seconds=LIFE)
    other = rich_family(store)
    check_lives(shelf)
    assert all(left > 0 for key, left in lives(shelf).items() if key not in ENDLESS)
    turns = [(other, ""), ("t", "ns"), ("t", ""), (other, "")]
    for n in range(16):
        pass_time(shelf, LIFE * 0.47)
        go(store.commit(follow(turns[n % 4 if n < 8 else 0][0], f"later {n}", turns[n % 4 if n < 8 else 0][1])))
        check_lives(shelf)
    again = shelf.open()
    assert {"1", "2", "later 2", "later 6"} == set(the_ids(again))
    assert len(the_ids(again, "t", "ns")) == 3
    assert len(the_ids(again, other)) == 13
    assert len(go(again.read("t", "", "1", objects=True)).objects) == 1


def test_heads_and_indexes_end_with_the_family_and_items_later(shelf: Shelf) -> None:
    store = shelf.open(ttl_seconds=LIFE)
    leaf = make_object(b"leaf")
    go(store.commit(put(record("1", objects=(leaf,)), leaf)))
    found = lives(shelf)
    for key in ("thread:t:heads", "thread:t::index"):
        assert LIFE * _MS * 0.9 < found[key] <= LIFE * _MS
    for key in ("thread:t::item:1", next(key for key in found if key.endswith(":objects"))):
        assert LIFE * _MS * 1.9 < found[key] <= LIFE * _MS * 2


def test_an_idle_namespace_does_not_end_before_its_thread(shelf: Shelf) -> None:
    store = shelf.open(ttl_seconds=LIFE)
    go(store.commit(follow("t", "1", "")))
    pass_time(shelf, LIFE * 0.4)
    go(store.commit(follow("t", "2", "")))
    go(store.commit(follow("t", "n1", "ns")))
    pass_time(shelf, LIFE * 0.05)
    go(store.commit(follow("t", "3", "")))
    check_lives(shelf)


def test_objects_that_come_later_end_too(shelf: Shelf) -> None:
    store = shelf.open(ttl_seconds=LIFE)
    go(store.commit(follow("t", "1")))
    leaf = make_object(b"leaf")
    head = go(store.read("t")).stored.record.key
    go(store.commit(put(record("2", parents=(head,), objects=(leaf,)), leaf)))
    assert all(left > 0 for key, left in lives(shelf).items() if key not in ENDLESS)


def test_the_time_to_live_may_be_changed(shelf: Shelf) -> None:
    stores = [shelf.open(ttl_seconds=life) for life in (LIFE, LIFE * 30, LIFE / 10, LIFE * 30)]
    for n in range(12):
        go(stores[n % 4].commit(follow("t", f"{n}", "ns" if n % 3 else "")))
        check_lives(shelf)
        pass_time(shelf, LIFE / 100)
    go(shelf.open().commit(follow("t", "last")))
    assert {left for key, left in lives(shelf).items()} == {-1}
    go(stores[0].commit(follow("t", "and again", "ns")))
    assert lives(shelf)["thread:t:heads"] > 0


def test_a_store_without_it_ends_it_also_if_it_has_put_before(shelf: Shelf) -> None:
    plain, mortal = shelf.open(), shelf.open(ttl_seconds=LIFE)
    go(plain.commit(follow("t", "1")))
    go(plain.commit(follow("t", "2")))
    go(mortal.commit(follow("t", "n1", "ns")))
    go(plain.commit(follow("t", "3")))
    assert {left for key, left in lives(shelf).items()} == {-1}


def test_renewing_is_not_done_with_every_commit(shelf: Shelf) -> None:
    store = shelf.open(ttl_seconds=LIFE)
    for n in range(50):
        go(store.commit(follow("t", f"{n}")))
    before = shelf.client.info("commandstats").get("cmdstat_pexpire", {}).get("calls", 0)
    for n in range(10):
        go(store.commit(put(record(f"x{n}"), head="never")))
    after = shelf.client.info("commandstats")["cmdstat_pexpire"]["calls"]
    assert after - before < 10 * 20


def test_a_family_whose_time_is_over_is_absent_everywhere(shelf: Shelf) -> None:
    first = shelf.open(ttl_seconds=LIFE)
    other = rich_family(first)
    pass_time(shelf, LIFE * 1.01)
    for store in (first, shelf.open(ttl_seconds=LIFE), shelf.open()):
        for thread_id in ("t", other):
            assert go(store.read(thread_id)) is None
            assert go(store.read(thread_id, "", "1")) is None
            assert go(store.thread(thread_id)) is None
            assert go(store.operations(thread_id, 10)) == []
            assert the_ids(store, thread_id) == []
            assert go(store.count(Query(thread_id=thread_id, namespace=None))) == 0
            assert go(store.delete(thread_id)) == Deleted(0, frozenset())
        assert go(store.find("1")) == []
        assert go(store.list_threads(10, 0, headless=True)) == []
        assert go(store.list_checkpoints(Query(namespace=None))) == []


@pytest.mark.parametrize("first", ["t", "other"])
def test_a_name_can_be_used_again_after_its_family_ended(shelf: Shelf, first: str) -> None:
    store = shelf.open(ttl_seconds=LIFE)
    other = rich_family(store)
    if first == "other":
        go(store.commit(follow(other, "the last move")))
    pass_time(shelf, LIFE * 1.01)
    again = shelf.open(ttl_seconds=LIFE)
    for thread_id in ("t", other) if first == "t" else (other, "t"):
        for name in ("0", "2", "1"):
            go(again.commit(follow(thread_id, name)))
        go(again.commit(follow(thread_id, "n1", "ns")))
        assert the_ids(again, thread_id) == ["1", "2", "0"]
        assert ids(go(again.list_checkpoints(Query(thread_id=thread_id)))) == ["1", "2", "0"]
        assert go(again.read(thread_id, "", "1", writes=True)).writes == []
        assert go(again.operations(thread_id, 10)) == []
        thread = go(again.thread(thread_id))
        assert thread.protected == frozenset()
        assert (thread.origin, thread.hidden) == (None, {})
    assert {key.thread_id for key in go(again.find("2"))} == {"t", other}


def test_what_ended_leaves_the_indexes(shelf: Shelf) -> None:
    store = shelf.open(ttl_seconds=LIFE)
    names = [name for n in range(40_000) if bucket_of(name := f"n{n}") == bucket_of("t")][:10]
    for name in names:
        go(store.commit(follow(name, f"id of {name}")))
    idle = branch("t", "1", go(store.read(names[0])).stored.record.key)
    go(store.commit(idle))
    for _ in range(2):
        pass_time(shelf, LIFE * 0.9)
        go(store.commit(follow("t", str(uuid.uuid4()))))  # keeps its parent alive, which was active long ago
    pass_time(shelf, LIFE * 0.5)

    def is_clean() -> bool:
        go(store.put_writes(Key("t", "", "1"), [Write("task", -1, "c", b"", b"w", 1)], ()))
        active = set(shelf.client.zrange(shelf.key("*:active"), 0, -1))
        ended = [known for known in shelf.client.hkeys(shelf.key("*:ids")) if known.startswith(b"id of")]
        found = {*shelf.client.zrange(shelf.key("*:names"), 0, -1), *shelf.client.hkeys(shelf.key("*:facts"))}
        return found == active == {b"t", names[0].encode()} and ended == [f"id of {names[0]}".encode()]

    wait_until(is_clean, "the index to be purged")


def test_aliases_live_as_long_as_their_family_whatever_is_done(shelf: Shelf) -> None:
    other = name_in("t")

    def writes(store: Any, n: int) -> None:
        go(store.put_writes(Key("t", "", "1"), [Write(f"{n}", 0, "c", b"", b"w", 1)], ()))

    def plans(store: Any, n: int) -> None:
        go(store.commit(put(record(f"p{n}"), head="never")))

    def puts(store: Any, n: int) -> None:
        go(store.commit(follow("t", f"f{n}")))

    for act in (writes, plans, puts):
        store = shelf.open(ttl_seconds=LIFE)
        go(store.delete("t"))
        go(store.delete(other))
        go(store.commit(follow("t", "1")))
        go(store.commit(branch(other, "1", Key("t", "", "1"))))
        for n in range(10):
            pass_time(shelf, LIFE * 0.9)
            act(store, n)
        assert go(shelf.open().read(other)) is not None


# -- aliases -----------------------------------------------------------------------------------------------------------


def test_a_branch_is_found_from_its_name_in_any_process(shelf: Shelf) -> None:
    store, second = shelf.open(), shelf.open()
    go(store.commit(follow("t", "1")))
    names = [name_in("t", f"branch {n} ") for n in range(5)]
    for name in names:
        go(store.commit(branch(name, "1", Key("t", "", "1"))))
        assert go(second.read(name)) is not None
    assert [row.record.key.thread_id for row in go(second.list_threads(10, 0))] == [*reversed(names), "t"]
    assert len(go(second.find("1"))) == 6
    go(second.delete("t"))
    assert ids(go(store.list_checkpoints(Query(thread_id=names[0])))) == ["1"]
    go(second.commit(follow("t", "new")))
    assert the_ids(store) == ["new"]
    assert go(store.thread("t")).family != go(store.thread(names[0])).family
    for name in names:
        go(second.delete(name))
    assert shelf.names("*:alias:*") == []
    go(store.commit(follow(names[0], "its own")))
    assert the_ids(second, names[0]) == ["its own"]


def test_one_name_taken_by_two_families_at_once_goes_to_one(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store, second = shelf.open(), shelf.open()
    kin = name_in("x")
    assert bucket_of("t") != bucket_of("x")
    for name in ("t", "x"):
        go(store.commit(follow(name, "1")))
    go(store.commit(branch(kin, "1", Key("x", "", "1"))))  # keeps the family in the bucket of the name
    go(store.delete("x"))

    def sent(*args: Any) -> Any:
        monkeypatch.undo()
        go(second.commit(branch("x", "second", Key(kin, "", "1"))))  # between the alias and the commit of the other
        return store._server._sent(*args)

    monkeypatch.setattr(store._server, "_sent", sent)
    with pytest.raises(InvalidInput, match="not of the family"):
        go(store.commit(branch("x", "first", Key("t", "", "1"))))
    for each in (store, second, shelf.open()):
        assert the_ids(each, "x") == ["second"]
        assert sorted(ids(go(each.list_checkpoints(Query())))) == ["1", "1", "second"]
    assert go(store.find("first")) == []


def test_a_branch_of_another_family_is_not_shadowed(shelf: Shelf) -> None:
    store = shelf.open()
    two, three = name_in("one", "two"), name_in("one", "x")
    assert len({bucket_of(name) for name in ("one", two, three)}) == 3
    for name in ("one", two):
        go(store.commit(follow(name, "1")))
    go(store.commit(branch(three, "b", Key("one", "", "1"))))
    for other in (store, shelf.open()):
        with pytest.raises(InvalidInput, match="not of the family"):
            go(other.commit(branch(three, "c", Key(two, "", "1"))))
    assert the_ids(shelf.open(), three) == ["b"]


def test_an_alias_that_leads_nowhere_is_no_obstacle(shelf: Shelf) -> None:
    """As after a crash between alias and commit."""
    store = shelf.open()
    go(store.commit(follow("t", "1")))
    for n, make in enumerate((follow, branch)):
        name = next(f"n{n}" for n in range(n, 100_000) if bucket_of(f"n{n}") == bucket_of("t") and n > 10)
        store = shelf.open()
        shelf.client.set(f"{shelf.prefix}{{{bucket_of(name)}}}:alias:{name}", f"{(bucket_of(name) + 1) % BUCKETS} x")
        go(store.commit(follow(name, "1") if make is follow else branch(name, "1", Key("t", "", "1"))))
        go(store.commit(follow(name, "2")))
        assert the_ids(shelf.open(), name) == ["2", "1"]
        go(store.delete(name))
        assert go(shelf.open().read(name)) is None


def test_deleting_an_old_branch_does_not_lose_the_new_one(shelf: Shelf) -> None:
    """One process deletes a branch and is held up before it drops the alias; another makes it anew."""
    slow, quick = shelf.open(), shelf.open()
    other = name_in("t")
    go(slow.commit(follow("t", "1")))
    go(slow.commit(branch(other, "old", Key("t", "", "1"))))
    server, call = slow._server, slow._server._call

    def held_up(bucket: int, *args: Any, **more: Any) -> Any:
        if args[0] == "unalias":
            go(quick.commit(branch(other, "new", Key("t", "", "1"))))
        return call(bucket, *args, **more)

    server._call = held_up
    assert go(slow.delete(other)).checkpoints == 1
    assert the_ids(shelf.open(), other) == ["new"]


def test_a_beginning_is_spared_for_its_own_branches_only(shelf: Shelf) -> None:
    store = shelf.open()
    go(store.commit(follow("t", "1")))
    go(store.commit(branch("old branch", "b", Key("t", "", "1"))))
    go(store.delete("t"))
    go(store.commit(follow("t", "1")))
    go(store.commit(follow("t", "2")))
    go(store.commit(branch("new branch", "b", Key("t", "", "1"))))
    go(store.delete("old branch"))
    assert go(store.delete("t", before_step=100, spare=True)).checkpoints == 0


# -- sweeping ----------------------------------------------------------------------------------------------------------


def test_two_sweeps_at_once_leave_what_is_needed(shelf: Shelf) -> None:
    """One has marked nothing yet when the other removes what led it to something that a new checkpoint needs."""
    from everstep.stores.redis.server import SweepDriver

    store = shelf.open()
    low = make_object(b"low")
    high = make_object(b"high", low)
    go(store.commit(put(record("c", objects=(high,)), low, high)))
    stored = go(store.read("t")).stored
    driver = SweepDriver(store._driver, store._server)
    first = Sweep(stored.family)
    go(first._begin(driver))
    beside = make_object(b"beside", low)
    base = BaseRef(stored.record.key, stored.digest)
    go(store.commit(put(record("d", parents=(stored.record.key,), objects=(beside,)), beside, base=base)))
    go(store.delete("t", keys=[stored.record.key]))
    assert go(shelf.open().sweep(stored.family)).objects == 1
    assert go(first.go_on(driver, None)) is False, "it was overtaken"
    assert {found.hash for found in go(store.read("t", objects=True)).objects} == {beside.hash, low.hash}
    assert go(store.sweep(stored.family)).finished


# -- several at once ---------------------------------------------------------------------------------------------------


def state_of(n: int) -> list[Object]:
    """Return a root object with leaves, most of which its neighbours share."""
    leaves = [make_object(b"leaf %d" % m) for m in range(n, n + 6)]
    return [*leaves, make_object(b"root %d" % n, *leaves)]


class Worker(threading.Thread):
    """Does things to a family, as a process of its own would, and notes what was acknowledged."""

    def __init__(self, store: Any, seed: int, until: float) -> None:
        super().__init__()
        self.store, self.random, self.until, self.seed = store, random.Random(seed), until, seed
        self.acked: dict[Key, str] = {}
        self.deleted: set[Key] = set()
        self.errors: list[BaseException] = []
        self.done = 0

    def run(self) -> None:
        acts = [self.snapshot] * 6 + [self.never, self.rewind, self.prune, self.sweep, self.read, self.pin, self.branch]
        while time.monotonic() < self.until and not self.errors:
            try:
                self.random.choice(acts)(self.random.choice(["t", "t", "u"]))
                self.done += 1
            except (HeadMoved, BaseGone, LookupError):
                pass
            except BaseException as exc:
                self.errors.append(exc)

    def snapshot(self, thread_id: str, **more: Any) -> None:
        name, objects = uuid.uuid4().hex, state_of(self.random.randrange(50))

        def build(head: Stored | None) -> Draft:
            parents = (head.record.key,) if head is not None else ()
            step = head.record.step + 1 if head is not None else 1
            return Draft(record(name, thread_id, step=step, parents=parents, objects=objects[-1:]), objects)

        stored = go(self.store.commit(Change(thread_id, build=build, **more)))
        self.acked[stored.record.key] = objects[-1].hash.hex()

    def never(self, thread_id: str) -> None:
        self.snapshot(thread_id, head="never")

    def rewind(self, thread_id: str) -> None:
        found = go(self.store.list_checkpoints(Query(thread_id=thread_id, limit=4)))
        thread = go(self.store.thread(thread_id))
        if len(found) < 4 or thread is None:
            return
        target, newest = found[-1], thread.newest[""]
        change = Change(
            thread_id, expect=found[0].record.key.checkpoint_id, log=Operation("rewind", {}),
            moves=[Move("", target.record.key.checkpoint_id)], hide=[Hidden("", target.seq, newest, target.segment)],
        )  # fmt: skip
        go(self.store.commit(change))

    def prune(self, thread_id: str) -> None:
        found = go(self.store.list_checkpoints(Query(thread_id=thread_id, order="oldest", limit=3, hidden="also")))
        keys = [row.record.key for row in found]
        self.deleted.update(keys)
        go(self.store.delete(thread_id, keys=keys, spare=True))

    def pin(self, thread_id: str) -> None:
        found = go(self.store.list_checkpoints(Query(thread_id=thread_id, limit=2, offset=2)))
        if found:
            go(self.store.commit(Change(thread_id, pins=[Pin(found[0].record.key, True)], log=Operation("pin", {}))))

    def branch(self, thread_id: str) -> None:
        found = go(self.store.list_checkpoints(Query(thread_id=thread_id, limit=1, offset=2)))
        if found:
            name, origin = f"b{self.random.randrange(8)}", found[0].record.key
            if self.random.random() < 0.3:
                go(self.store.delete(name))
            else:
                begun = record(uuid.uuid4().hex, name, parents=(origin,), objects=state_of(1)[-1:])
                with contextlib.suppress(InvalidInput):
                    go(self.store.commit(Change(name, build=lambda _: Draft(begun, state_of(1)), origin=origin)))

    def sweep(self, thread_id: str) -> None:
        thread = go(self.store.thread(thread_id))
        if thread is not None:
            go(self.store.sweep(thread.family, effort=self.random.choice([None, 5])))

    def read(self, thread_id: str) -> None:
        loaded = go(self.store.read(thread_id, objects=True))
        if loaded is not None:
            check_whole(loaded)


def check_whole(loaded: Any) -> None:
    found = {obj.hash: obj for obj in loaded.objects}
    pending = [loaded.stored.record.children]
    while pending:
        joined = pending.pop()
        pending += [found[joined[n : n + 16]].children for n in range(0, len(joined), 16)]


@pytest.mark.parametrize("life", [None, LIFE])
def test_many_at_once_lose_nothing(shelf: Shelf, life: float | None) -> None:
    stores = [shelf.open(ttl_seconds=life) for _ in range(4)]
    seed = random.SystemRandom().randrange(1 << 30)
    workers = [Worker(store, seed + n, time.monotonic() + 4) for n, store in enumerate(stores)]
    go(stores[0].commit(follow("t", "first", objects=state_of(0))))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.errors for worker in workers] == [[]] * 4, f"seed {seed}"
    assert all(worker.done > 10 for worker in workers)
    check_family(shelf, workers, f"seed {seed}")


def check_family(shelf: Shelf, workers: Sequence[Worker], hint: str) -> None:
    store = shelf.open()
    deleted = set().union(*(worker.deleted for worker in workers))
    listed = go(store.list_checkpoints(Query(order="oldest", hidden="also")))
    there = {row.record.key: row for row in listed}
    for worker in workers:
        for key, root in worker.acked.items():
            assert key in there or key in deleted, f"{key} is lost; {hint}"
            if key in there:
                loaded = go(store.read(*key, objects=True))
                check_whole(loaded)
                assert loaded.stored.record.children.hex() == root
    for name in {key.thread_id for key in there}:
        rows = [row for row in listed if row.record.key.thread_id == name]
        assert len({row.seq for row in rows}) == len(rows)
        thread = go(store.thread(name))
        head = go(store.read(name)).stored
        assert thread.heads[""][0] == head.record.key.checkpoint_id
        assert head.record.key in there
        segments: dict[int, list[Stored]] = {}
        for row in rows:
            segments.setdefault(row.segment, []).append(row)
        for run in segments.values():  # inside a run each follows the one before, but for those that were deleted
            for before, after in itertools.pairwise(run):
                parent = after.record.parents[0]
                assert parent == before.record.key or parent in deleted, hint


def test_a_checkpoint_that_is_put_beside_the_head_is_not_born_hidden(shelf: Shelf) -> None:
    """Its number is fetched first: what comes in between must not have a greater one."""
    slow, quick = shelf.open(), shelf.open()
    go(slow.commit(follow("t", "1")))
    call = slow._server._call_once
    seqs: list[int] = []

    def held_up(bucket: int, args: Sequence[Any], **more: Any) -> Any:
        if args[0] == "commit" and not seqs:
            seqs.append(go(quick.commit(put(record("quick"), head="never"))).seq)
        return call(bucket, args, **more)

    slow._server._call_once = held_up
    assert go(slow.commit(put(record("slow"), head="never"))).seq > seqs[0]


# -- half a change -----------------------------------------------------------------------------------------------------


def view(store: Any) -> Any:
    """Return all that can be seen of a store."""
    rows = go(store.list_checkpoints(Query(namespace=None, hidden="also")))
    threads = sorted({row.record.key.thread_id for row in rows})
    loaded = [go(store.read(*row.record.key, objects=True, writes=True)) for row in rows]
    for one in loaded:
        for found in one.objects:
            if tree.address(found.children, expand(found.body)) != found.hash:
                raise CheckpointCorrupted("as the engine would say")
    many = go(store.read_many([row.record.key for row in rows], writes=True))
    assert many == [one._replace(objects=()) for one in loaded]
    return (
        rows,
        loaded,
        [go(store.thread(name, branches=True, ancestry=True))._replace(garbage=0.0) for name in threads],
        [go(store.operations(name, 100)) for name in threads],
        sorted(go(store.find("1"))),
    )


def changes(store: Any, other: str) -> list[Callable[[], Any]]:
    key, leaf = Key("t", "", "1"), make_object(b"another leaf")
    writes = [Write("task 2", 0, "c", b"", b"w", 1)]
    seqs = [row.seq for row in go(store.list_checkpoints(Query(thread_id="t", hidden="also")))]
    return [
        lambda: go(store.commit(put(record("new", parents=(key,), objects=(leaf,)), leaf))),
        lambda: go(store.commit(put(record("new", parents=(key,), objects=(leaf,)), leaf, prune=seqs))),
        lambda: go(store.commit(Change("t", pins=[Pin(key, False)], log=Operation("pin", {})))),
        lambda: go(store.commit(branch("branch of a branch", "x", Key(other, "", "1")))),
        lambda: go(store.put_writes(key, writes, ())),
        lambda: go(store.put_writes(Key("t", "new namespace", "1"), writes, ())),
        lambda: go(store.delete(other)),
        lambda: go(store.delete("t", keys=[Key("t", "", "2")])),
        lambda: go(store.delete("t")),
    ]


@pytest.mark.parametrize("life", [None, LIFE])
def test_a_key_of_another_type_breaks_nothing_in_two(shelf: Shelf, life: float | None) -> None:
    store = shelf.open(ttl_seconds=life)
    other = rich_family(store)
    before, refused = view(store), 0
    backup = {key: (shelf.client.dump(key), shelf.client.pttl(key)) for key in shelf.names("{*")}

    def restore() -> None:
        for key in shelf.names("{*"):
            shelf.client.delete(key)
        for key, (dump, left) in backup.items():
            shelf.client.restore(key, max(left, 0), dump)

    for key in backup:
        if b":item:" in key or b":alias:" in key:
            continue
        for n in range(len(changes(store, other))):
            store = shelf.open(ttl_seconds=life)
            change = changes(store, other)[n]
            shelf.client.delete(key)
            shelf.client.rpush(key, "in the way")
            with contextlib.suppress(StoreError):
                change()
                restore()
                continue
            refused += 1
            assert shelf.client.lrange(key, 0, -1) == [b"in the way"]
            shelf.client.delete(key)
            dump, left = backup[key]
            shelf.client.restore(key, max(left, 0), dump)
            assert view(shelf.open(ttl_seconds=life)) == before, (key, n)
    assert refused > 60


def test_a_server_without_memory_refuses_whole_changes_and_lets_go(own: ValkeyServer, own_shelf: Shelf) -> None:
    store = own_shelf.open(allow_eviction=True)
    leaves = [make_object(os.urandom(1000)) for _ in range(100)]
    go(store.commit(put(record("1", objects=tuple(leaves)), *leaves)))
    go(store.commit(follow("t", "2")))
    family = go(store.read("t")).stored.family
    with own.connect() as client:
        client.config_set("maxmemory", "1mb")
        before = own_shelf.client.dbsize()
        for change in (follow("t", "3"), follow("new", "1"), Change("t", pins=[Pin(Key("t", "", "1"), True)])):
            with pytest.raises(StoreFull, match="maxmemory"):
                go(store.commit(change))
        assert own_shelf.client.dbsize() == before
        assert the_ids(store) == ["2", "1"]
        assert go(store.delete("t", keys=[Key("t", "", "1")])).checkpoints == 1
        assert go(store.sweep(family)).objects == 100
        client.config_set("maxmemory", "0")
    go(store.commit(follow("t", "3")))
    assert the_ids(store) == ["3", "2"]


def test_thousands_of_parts_are_one_change(shelf: Shelf) -> None:
    store = shelf.open()
    leaves = [make_object(b"%d" % n) for n in range(20_000)]
    tops = [make_object(b"top %d" % n, *leaves[n * 100 : n * 100 + 100]) for n in range(200)]
    go(store.commit(put(record("1", objects=tuple(tops)), *leaves, *tops)))
    go(store.commit(put(record("2", parents=(Key("t", "", "1"),), objects=tuple(tops)), *leaves, *tops)))
    assert len(go(store.read("t", objects=True)).objects) == 20_200
    writes = [Write(f"{n}", 0, "c", b"", b"w", 1) for n in range(5000)]
    go(store.put_writes(Key("t", "", "2"), writes, leaves))
    assert len(go(store.read("t", writes=True)).writes) == 5000
    family = go(store.read("t")).stored.family
    assert len(go(store.fetch(family, [leaf.hash for leaf in leaves]))) == 20_000
    keys = [Key("t", "", f"{n}") for n in range(9000)]
    assert go(store.delete("t", keys=keys)) == Deleted(2, frozenset())


# -- damage ------------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_never_silently_wrong(shelf: Shelf) -> None:
    store = shelf.open()
    rich_family(store)
    before, noticed, tried, rng = view(store), 0, 0, random.Random(7)
    for key in shelf.names("{*"):
        if any(
            part in key
            for part in (
                b":index",
                b":ids",
                b":active",
                b":names",
                b":facts",
                b":counts",
                b":fact:",
                b":pins",
                b":began",
                b":written",
                b":threads",
                b":alias",
            )
        ):
            continue  # names only, or numbers that are not ours to check
        is_hash = shelf.client.type(key) == b"hash"
        values: dict[bytes, bytes] = shelf.client.hgetall(key) if is_hash else {b"": shelf.client.get(key)}
        for field, value in values.items():
            if (key.count(b":") == 3 and b"family:" in key) or field in (b"made", b"version", b"name", b"began"):
                continue  # counters
            for _ in range(12):
                at, bit = rng.randrange(len(value)), 1 << rng.randrange(8)
                flipped = value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :]
                if field.startswith(b"@") and at < value.index(b" "):
                    continue  # the generation
                shelf.client.hset(key, field, flipped) if is_hash else shelf.client.set(key, flipped)
                tried += 1
                try:
                    found = view(shelf.open())
                except EverstepError:
                    noticed += 1
                else:
                    assert strip(found) == strip(before), (key, field, at, bit)
                shelf.client.hset(key, field, value) if is_hash else shelf.client.set(key, value)
    assert view(store) == before
    assert noticed > tried * 0.5


def test_sizes_that_were_not_noted_are_a_loss(shelf: Shelf) -> None:
    store = shelf.open()
    rich_family(store)
    heads = shelf.key("*thread:t:heads")
    # Three sizes and four: the beginning is right, and that is not enough.
    for sizes in (b"1 2 3", shelf.client.hget(heads, "sizes").rpartition(b" ")[0]):
        shelf.client.hset(heads, "sizes", sizes)
        with pytest.raises(CheckpointCorrupted):
            go(shelf.open().read("t"))


def strip(found: Any) -> Any:
    """Leave out estimates, and numbers that the server gives and no checksum covers."""
    rows, loaded, *rest = found
    plain = [
        one._replace(stored=one.stored._replace(added_bytes=0), writes=[write._replace(seq=0) for write in one.writes])
        for one in loaded
    ]
    return [row._replace(added_bytes=0) for row in rows], plain, rest


def test_what_was_dropped_by_the_server_is_reported(shelf: Shelf) -> None:
    store = shelf.open()
    rich_family(store)
    go(store.commit(follow("t", "3")))
    for pattern in ("*:thread:t::item:3", "*:thread:t::index", "*:family:*[0-9]"):
        key = shelf.key(pattern)
        dump = shelf.client.dump(key)
        shelf.client.delete(key)
        for look in (store, shelf.open()):
            with pytest.raises(CheckpointCorrupted):
                go(look.read("t"))
        with pytest.raises(CheckpointCorrupted):
            go(shelf.open().commit(follow("t", "4")))
        shelf.client.restore(key, 0, dump)
    assert go(store.read("t")).stored.record.key.checkpoint_id == "3"


# -- heads that went back ----------------------------------------------------------------------------------------------


def test_a_head_that_went_back_is_reported_once(shelf: Shelf) -> None:
    store = shelf.open()
    for n in range(3):
        go(store.commit(follow("t", f"{n}")))
    backup = {key: shelf.client.dump(key) for key in shelf.names("{*")}
    looks: list[Callable[[], Any]] = [
        lambda: store.read("t"),
        lambda: store.read_many([Key("t", "", "0")]),
        lambda: store.commit(follow("t", "later")),
        lambda: store.commit(Change("t", log=Operation("x", {}))),
    ]
    for look in looks:
        go(store.commit(follow("t", "lost")))
        for key in shelf.names("{*"):
            shelf.client.delete(key)
        for key, dump in backup.items():
            shelf.client.restore(key, 0, dump)
        with pytest.raises(HeadRegressed):
            go(look())
        assert the_ids(store) == ["2", "1", "0"]
    go(store.commit(follow("t", "goes on")))


def test_deleting_and_beginning_again_is_no_loss(shelf: Shelf) -> None:
    store, other = shelf.open(), shelf.open()
    go(store.commit(follow("t", "root")))
    go(store.commit(branch("keeps the family", "b", Key("t", "", "root"))))
    for _ in range(3):
        for n in range(3):
            go(store.commit(follow("keeps the family", f"{n}", "ns")))
        assert go(other.read("keeps the family", "ns")) is not None
        go(other.delete("keeps the family", keys=[Key("keeps the family", "ns", f"{n}") for n in range(3)]))
        go(other.delete("t"))
        go(other.commit(follow("t", "root")))
        go(store.commit(follow("keeps the family", "0", "ns")))
        go(store.commit(follow("t", "after")))


# -- confirmation by replicas ------------------------------------------------------------------------------------------


def wait_no_time(store: Any) -> None:
    """Let confirmations by replicas be asked for without patience, so that a test needs none either."""
    link = store._server._link
    exchange = link._exchange

    def impatient(pool: Any, commands: Sequence[tuple[Any, ...]], until: float) -> list[Any]:
        shortened = [(*command[:2], 1) if command[0] == b"WAIT" else command for command in commands]
        found: list[Any] = exchange(pool, shortened, until)
        return found

    link._exchange = impatient


def test_too_few_replicas_are_reported_and_a_retry_succeeds(own: ValkeyServer, own_shelf: Shelf) -> None:
    store = own_shelf.open(wait_replicas=1)
    wait_no_time(store)
    first = put(record("1"))
    with pytest.raises(CommitUnknown, match="0 of 1 replicas") as caught:
        go(store.commit(first))
    assert (caught.value.checkpoint_id, caught.value.thread_id) == ("1", "t")
    go(own_shelf.open().commit(first))
    leaf = make_object(b"leaf")
    acts: list[Callable[[], Any]] = [
        lambda: store.commit(first),
        lambda: store.commit(follow("t", "2")),
        lambda: store.put_writes(Key("t", "", "1"), [Write("task", 0, "c", b"", b"w", 1)], ()),
        lambda: store.put_writes(Key("t", "new", "1"), [Write("task", 0, "c", b"", b"w", 1)], ()),
        lambda: store.commit(branch(name_in("t"), "b", Key("t", "", "1"))),
        lambda: store.delete("t", keys=[Key("t", "", "9")]),
    ]
    for act in acts:
        with pytest.raises(CommitUnknown):
            go(act())
    family = go(store.read("t")).stored.family
    assert go(store.sweep(family)).finished
    with ValkeyServer(durable=False, replicaof=f"{LOOPBACK} {own.port}", repl_diskless_sync_delay="0") as replica:

        def is_followed() -> bool:
            with replica.connect() as client:
                info: Any = client.info("replication")
                return bool(info["master_link_status"] == "up")

        wait_until(is_followed, "the replica")
        store = own_shelf.open(wait_replicas=1)
        go(store.commit(first))
        go(store.commit(put(record("3", objects=(leaf,)), leaf)))
        assert the_ids(own_shelf.open(url=replica.url), "t") == the_ids(store)
        reader = own_shelf.open(url=replica.url)
        with pytest.raises(StoreReadOnly):
            go(reader.commit(follow("t", "4")))
        with pytest.raises(StoreReadOnly):
            go(reader.commit(follow("new", "1")))
        with pytest.raises(StoreReadOnly):
            go(reader.delete("t"))


def test_a_lost_answer_does_not_stand_in_for_replicas(own_shelf: Shelf) -> None:
    store = own_shelf.open(wait_replicas=1, timeout_seconds=1)
    go(own_shelf.open().commit(follow("t", "1")))
    run = store._server._link.run

    def loses(base: bytes, args: Sequence[Any], deadline: float, *, writes: bool = False) -> Any:
        if args[0] in ("put", "put_and_prune", "commit"):
            store._server._link.run = run
            with contextlib.suppress(redis_link.NotReplicated):
                run(base, args, deadline, writes=writes)
            store._server._registered.update(range(BUCKETS))
            raise redis_link.AnswerLost
        return run(base, args, deadline, writes=writes)

    go(store.read("t"))
    store._server._registered.update(range(BUCKETS))
    store._server._link.run = loses
    with pytest.raises(CommitUnknown):
        go(store.commit(follow("t", "2")))
    assert the_ids(own_shelf.open()) == ["2", "1"]


# -- servers that cannot be used ---------------------------------------------------------------------------------------


class Stub:
    """A server that gives every command the same answer, after letting clients in."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.port = answer, free_port()
        import socketserver

        stub = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    while data := self.request.recv(1 << 16):
                        self.request.sendall(stub.answer * data.count(b"*"))

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self._server = Listener((LOOPBACK, self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def __enter__(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", StoreUnavailable),
        (b"-NOAUTH Authentication required.\r\n", StoreError),
        (b"-MASTERDOWN Link with MASTER is down\r\n", StoreUnavailable),
        (b"-ERR max number of clients reached\r\n", StoreError),
        (b"-READONLY You can't write against a read only replica.\r\n", StoreReadOnly),
        (b"-MISCONF Errors writing to the AOF file: No space left on device\r\n", StoreFull),
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", StoreFull),
        (b"$20\r\nredis_version:6.2.14\r\n", StoreMismatch),
    ],
)
def test_a_server_that_refuses_is_told_apart(answer: bytes, kind: type[StoreError]) -> None:
    with Stub(answer) as url:
        store = RedisStore(url, timeout_seconds=5).blocking
        for act in (lambda: store.read("t"), lambda: store.commit(follow("t", "1"))):
            with pytest.raises(kind) as caught:
                go(act())
            assert not isinstance(caught.value, CommitUnknown)
        go(store.close())


def test_addresses_that_lead_nowhere(own: ValkeyServer) -> None:
    for url, kind, seconds in (
        (f"redis://{LOOPBACK}:{free_port()}", StoreUnavailable, 1),
        ("redis://no-such-host.invalid", StoreUnavailable, 1),
        (f"redis+cluster://{LOOPBACK}:{free_port()},{LOOPBACK}:{free_port()}", StoreUnavailable, 1),
        (f"redis+cluster://{LOOPBACK}:{own.port}", StoreMismatch, 30),
        (f"redis://{LOOPBACK}:{own.port}/99", StoreMismatch, 30),
        (f"redis://user:wrong@{LOOPBACK}:{own.port}", StoreError, 30),
    ):
        store = RedisStore(url, timeout_seconds=seconds).blocking
        for act in (store.read("t"), store.commit(follow("t", "1"))):
            with pytest.raises(kind) as caught:
                go(act)
            assert type(caught.value) is kind, url
        go(store.close())


def test_a_cluster_is_told_from_a_server() -> None:
    seed = servers.redis_cluster()
    store = RedisStore(seed.replace("redis+cluster", "redis")).blocking
    with pytest.raises(StoreMismatch, match=r"redis\+cluster"):
        go(store.read("t"))
    go(store.close())
    host = seed.partition("://")[2]
    store = RedisStore(f"redis+cluster://{LOOPBACK}:{free_port()},{host}", key_prefix=f"{uuid.uuid4()}:").blocking
    go(store.commit(follow("t", "1")))
    assert the_ids(store) == ["1"]
    go(store.close())


SECRET = "s3cr:et/@#?[%&=+ é"


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@localhost",
        f"redis://{SECRET}@localhost",
        "redis://:pass/s3cr@host",
        "redis://user:s3cr@host:s3cr",
        "redis://host?db=s3cr",
        "redis+cluster://:s3cr@one,two:s3cr",
        "redis://host/0?password=s3cr&s3cret=1&db=x",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        RedisStore(url)
    shown = "".join(map(str, (caught.value, repr(caught.value), caught.value.__cause__)))
    assert "s3cr" not in shown


@pytest.mark.parametrize(
    "url",
    [
        "redis://h?socket_timeout=1",
        "redis://h?decode_responses=1",
        "redis://h/db",
        "redis://a,b",
        "redis+cluster://h/1",
    ],
)
def test_options_that_would_not_work_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        RedisStore(url)


def test_any_password_works_and_is_never_shown(own: ValkeyServer, own_shelf: Shelf) -> None:
    from urllib.parse import quote

    with own.connect() as client:
        client.execute_command("ACL", "SETUSER", "name", "on", f">{SECRET}", "~*", "&*", "+@all")
    login = f"redis://name:{quote(SECRET, safe='')}@{LOOPBACK}:{own.port}"
    store = own_shelf.open(url=login)
    go(store.commit(follow("t", "1")))
    assert the_ids(store) == ["1"]
    with own.connect() as client:
        client.execute_command("ACL", "SETUSER", "name", "resetpass", ">other")
    for url in (login, login.replace(str(own.port), str(free_port()))):
        with pytest.raises(StoreError) as caught:
            go(own_shelf.open(url=url, timeout_seconds=1).read("t"))
        seen: BaseException | None = caught.value
        while seen is not None:
            assert SECRET not in f"{seen} {seen!r}"
            assert quote(SECRET, safe="") not in f"{seen} {seen!r}"
            seen = seen.__cause__ or seen.__context__
    assert "s3cr" not in repr(store)


def test_users_with_few_rights(own: ValkeyServer, own_shelf: Shelf) -> None:
    go(own_shelf.open().commit(follow("t", "1")))
    rights = {
        "reader": ("+@read", "+eval", "+evalsha"),
        "partial": ("+@all", "-zadd"),
        "modest": ("+@all", "-@dangerous", "-info"),
    }
    with own.connect() as client:
        for name, words in rights.items():
            client.execute_command("ACL", "SETUSER", name, "on", ">pw", "~*", *words)
    before = own_shelf.client.dbsize()
    for name in ("reader", "partial"):
        store = own_shelf.open(url=f"redis://{name}:pw@{LOOPBACK}:{own.port}")
        assert the_ids(store) == ["1"]
        for act in (
            store.commit(follow("t", "2")),
            store.commit(follow("new", "1")),
            store.put_writes(Key("t", "", "1"), [Write("task", 0, "c", b"", b"w", 1)], ()),
            store.delete("t"),
        ):
            with pytest.raises(StoreReadOnly, match="does not let this user"):
                go(act)
    assert own_shelf.client.dbsize() == before
    store = own_shelf.open(url=f"redis://modest:pw@{LOOPBACK}:{own.port}")
    go(store.commit(follow("t", "2")))
    assert the_ids(store) == ["2", "1"]


def test_a_server_that_drops_keys_is_refused(own: ValkeyServer, own_shelf: Shelf) -> None:
    with own.connect() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        go(own_shelf.open().commit(follow("t", "1")))
        client.config_set("maxmemory", "1gb")
        with pytest.raises(StoreMismatch, match="noeviction"):
            go(own_shelf.open().read("t"))
        assert the_ids(own_shelf.open(allow_eviction=True)) == ["1"]
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")


def test_a_warning_says_what_a_crash_can_lose(own: ValkeyServer, own_shelf: Shelf) -> None:
    with own.connect() as client:
        with pytest.warns(DurabilityWarning, match="appendonly is off"):
            go(own_shelf.open().read("t"))
        client.config_set("appendonly", "yes")
        with pytest.warns(DurabilityWarning, match="appendfsync is everysec"):
            go(own_shelf.open().read("t"))
        client.config_set("appendfsync", "always")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            go(own_shelf.open().read("t"))
        client.config_set("appendfsync", "everysec")
        client.config_set("appendonly", "no")


# -- trouble on the way ------------------------------------------------------------------------------------------------


def test_a_call_whose_time_is_over_sends_nothing(shelf: Shelf) -> None:
    store = shelf.open()
    go(store.commit(follow("t", "1")))
    with pytest.raises(StoreUnavailable):
        store._server.do(lambda server: server.commit(follow("t", "2")), time.monotonic() - 1)
    assert the_ids(store) == ["1"]


def test_a_server_that_comes_back_is_used_again() -> None:
    with ValkeyServer() as server:
        store = RedisStore(server.url, timeout_seconds=5).blocking
        go(store.commit(follow("t", "1")))
        server.kill()
        with pytest.raises(StoreUnavailable):
            go(store.commit(follow("t", "2")))
        server.start()
        go(store.commit(follow("t", "3")))
        assert the_ids(store) == ["3", "1"]
        slow = RedisStore(server.url, timeout_seconds=2).blocking
        go(slow.commit(follow("t", "4")))
        server.pause()
        with pytest.raises(CommitUnknown) as caught:
            go(slow.commit(follow("t", "5")))
        assert caught.value.checkpoint_id == "5"
        with pytest.raises(StoreUnavailable):
            go(slow.read("t"))
        server.resume()
        go(slow.commit(follow("t", "6")))
        assert the_ids(store) in (["6", "5", "4", "3", "1"], ["6", "4", "3", "1"])
        for opened in (slow, store):
            go(opened.close())


def test_a_failover_does_not_use_up_the_time_of_a_call() -> None:
    """A master that does not answer any more is replaced; who waits for it asks the new one."""
    with ValkeyCluster(durable=False, node_timeout_ms=500) as cluster:
        store = RedisStore(cluster.url, timeout_seconds=6).blocking
        go(store.commit(follow("t", "1")))
        old = cluster.master_of(f"everstep:{{{bucket_of('t')}}}:")
        old.pause()
        go(store.commit(follow("t", "2")))
        assert the_ids(store) == ["2", "1"]
        go(store.close())


class Losing:
    """Loses the answer to the first change of a store that it sees, as a failover does: before or after it was done."""

    def __init__(self, store: Any, meanwhile: Callable[[], Any]) -> None:
        self._link, self._meanwhile = store._server._link, meanwhile
        self._run = self._link.run
        self._link.run = self

    def __call__(self, base: bytes, args: Sequence[Any], deadline: float, *, writes: bool = False) -> Any:
        if args[0] not in ("put", "put_and_prune", "commit"):
            return self._run(base, args, deadline, writes=writes)
        self._link.run = self._run
        self._meanwhile()
        raise redis_link.AnswerLost


def test_after_a_failover_buckets_are_noted_again(shelf: Shelf) -> None:
    """A replica that took over may not have heard of the bucket, whose threads nobody would list."""
    store = shelf.open()
    go(store.commit(follow("t", "1")))
    Losing(store, lambda: shelf.client.delete(f"{shelf.prefix}buckets"))
    go(store.commit(follow("t", "2")))
    go(store.commit(follow("t", "3")))
    assert ids(go(shelf.open().list_threads(10, 0))) == ["3"]
    assert go(shelf.open().find("1")) == [Key("t", "", "1")]


def test_what_another_stored_under_the_same_id_is_not_taken_for_a_lost_put(shelf: Shelf) -> None:
    store, other = shelf.open(), shelf.open()
    go(store.commit(follow("t", "1")))
    theirs = put(record("2", parents=[Key("t", "", "1")], body=b"theirs"))
    Losing(store, lambda: go(other.commit(theirs)))
    saved = go(store.commit(put(record("2", parents=[Key("t", "", "1")], body=b"ours"))))
    assert saved.record.body == b"ours"
    assert go(shelf.open().read("t")).stored.record.body == b"ours"


REFUSALS = [
    redis_py.exceptions.MovedError(f"1 {LOOPBACK}:1"),
    redis_py.exceptions.AskError(f"1 {LOOPBACK}:1"),
    redis_py.exceptions.TryAgainError("TRYAGAIN"),
    redis_py.exceptions.ClusterDownError("CLUSTERDOWN"),
    redis_py.exceptions.BusyLoadingError("LOADING"),
    redis_py.exceptions.ReadOnlyError("READONLY"),
]


def refuse_once(store: Any, refusal: Exception) -> list[tuple[Any, ...]]:
    """Let the server answer the next change with an error; return the commands that it is sent from then on."""
    link = store._server._link
    exchange, sent = link._exchange, list[tuple[Any, ...]]()

    def refusing(pool: Any, commands: Sequence[tuple[Any, ...]], until: float) -> list[Any]:
        is_first = not any(command[0] == b"EVALSHA" for command in sent)
        sent.extend(commands)
        if is_first and commands[0][0] == b"EVALSHA":
            return [refusal]
        found: list[Any] = exchange(pool, commands, until)
        return found

    link._exchange = refusing
    return sent


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: type(each).__name__)
def test_what_a_cluster_refuses_in_passing_is_asked_again_where_the_slot_is_now(refusal: Exception) -> None:
    """As a master does that has just become a replica, or has given its slot away."""
    store = Shelf(servers.redis()).open(url=servers.redis_cluster())
    go(store.commit(follow("t", "1")))
    sent = refuse_once(store, refusal)
    go(store.commit(follow("t", "2")))
    assert the_ids(store) == ["2", "1"]
    assert (b"CLUSTER", b"SLOTS") in sent, "somebody else may have the slot now"
    go(store.close())


def test_a_single_server_that_refuses_is_not_asked_again(shelf: Shelf) -> None:
    store = shelf.open()
    go(store.commit(follow("t", "1")))
    sent = refuse_once(store, redis_py.exceptions.ReadOnlyError("READONLY"))
    with pytest.raises(StoreReadOnly):
        go(store.commit(follow("t", "2")))
    assert len(sent) == 1


def test_a_closed_store_stays_closed(shelf: Shelf) -> None:
    store = shelf.open()
    go(store.commit(follow("t", "1")))
    go(store.close())
    go(store.close())
    for act in (store.read("t"), store.commit(follow("t", "2")), store.list_threads(1, 0), store.delete("t")):
        with pytest.raises(StoreClosed):
            go(act)


def test_a_child_process_has_connections_of_its_own(shelf: Shelf) -> None:
    store = shelf.open()
    go(store.commit(follow("t", "parent 1")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            for n in range(20):
                go(store.commit(follow("t", f"child {n}")))
            os._exit(0)
        finally:
            os._exit(1)
    for n in range(20):
        go(store.commit(follow("t", f"parent {n + 2}")))
    assert os.waitpid(child, 0)[1] == 0
    assert len(the_ids(store)) == 41


@pytest.mark.parametrize(("number", "word"), [("12", "upgrade"), ("1", "before the first release")])
def test_keys_of_an_unknown_format_are_left_alone(shelf: Shelf, number: str, word: str) -> None:
    shelf.client.set(f"{shelf.prefix}format", number)
    with pytest.raises(StoreMismatch, match=word):
        go(shelf.open().commit(follow("t", "1")))
    assert len(shelf.names()) == 1


def test_the_names_in_keys_are_escaped_alike_here_and_there(shelf: Shelf) -> None:
    name = "".join(map(chr, range(256))) + "\u2028\U0001f600"
    store = shelf.open()
    go(store.commit(follow(name, "1")))
    go(store.commit(follow(name, "2")))
    assert shelf.names("*:heads") == [f"{shelf.prefix}{{{bucket_of(name)}}}:thread:{escaped(name)}:heads".encode()]


def counted(store: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of commands of each exchange with a server."""
    link, sizes = store._server._link, list[int]()
    exchange = link._exchange

    def counts(pool: Any, commands: Sequence[Any], until: float) -> Any:
        sizes.append(len(commands))
        return exchange(pool, commands, until)

    monkeypatch.setattr(link, "_exchange", counts)
    return sizes


def test_a_saver_puts_in_one_round_trip(own_shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = own_shelf.open()
    saver = HarnessCheckpointer(backend=store)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    trips: list[int] = []
    for step in range(6):
        if step == 3:
            trips = counted(store, monkeypatch)
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(9 - step)  # what follows the head is newer than it, whatever its id
        checkpoint["channel_values"] = {"n": step}
        config = saver.put(config, checkpoint, {"step": step}, {"n": step})
    assert trips == [1, 1, 1]
    assert go(store.read("t")).stored.record.key.checkpoint_id == "4"


def test_many_are_read_in_few_round_trips(own_shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = own_shelf.open()
    for n in range(150):
        go(store.commit(follow("t", f"{n}")))
    one = [Key("t", "", f"{n}") for n in range(150)]
    branches = [Key(name_in("t", f"branch {n} "), "", "1") for n in range(5)]
    for key in branches:
        go(store.commit(branch(key.thread_id, "1", Key("t", "", "1"))))
    others = [Key(f"other {n}", "ns", "1") for n in range(200)]
    for key in others:
        go(store.commit(put(make_record("1", key.thread_id, "ns"))))

    cold = own_shelf.open()
    assert go(cold.read("ghost")) is None
    trips = counted(cold, monkeypatch)
    own_shelf.client.script_flush()
    assert len(go(cold.read_many(one, writes=True))) == 150
    assert trips == [1]
    trips.clear()
    assert len(go(cold.read_many([*one, *branches, Key("ghost", "", "1")]))) == 155
    assert trips == [7, 5]  # the branches' own buckets say where they are
    trips.clear()
    assert len(go(cold.read_many([*one, *branches, *others]))) == 355
    assert trips == [128, 78]
    trips.clear()
    listed = go(cold.list_checkpoints(Query(order="id", namespace=None, limit=3)))
    assert ids(listed) == ["99", "98", "97"]
    assert len(trips) < 15
    trips.clear()
    assert len(go(cold.list_checkpoints(Query(checkpoint_id="1", namespace=None)))) == 206
    assert len(trips) < 15


def test_many_are_read_although_answers_are_lost(own_shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    store = own_shelf.open()
    keys = [Key(f"t{n}", "", "1") for n in range(5)]
    for key in keys:
        go(store.commit(follow(key.thread_id, "1")))
    link = store._server._link
    exchange, losses = link._exchange, iter((True, False, True, True))

    def loses(pool: Any, commands: Sequence[Any], until: float) -> Any:
        found = exchange(pool, commands, until)
        if next(losses, False):
            raise redis_link.AnswerLost
        return found

    monkeypatch.setattr(link, "_exchange", loses)
    assert [loaded.stored.record.key for loaded in go(store.read_many(keys))] == keys
    assert next(losses, None) is None
    assert store._server._registered == set()

    losses = itertools.repeat(True)
    with pytest.raises(StoreUnavailable):
        go(store.read_many(keys))


def test_one_damaged_checkpoint_among_many_is_reported(shelf: Shelf) -> None:
    store = shelf.open()
    keys = [Key(f"t{n}", "", "1") for n in range(3)]
    for key in keys:
        go(store.commit(follow(key.thread_id, "1")))
    shelf.client.delete(shelf.key("*:thread:t1::item:1"))
    with pytest.raises(CheckpointCorrupted) as caught:
        go(store.read_many(keys))
    assert caught.value.thread_id == "t1"
    shelf.client.hset(shelf.key("*:thread:t2:heads"), "@", "no line")
    for read in (store.read(*keys[2]), store.read_many(keys[2:])):
        with pytest.raises(CheckpointCorrupted):
            go(read)


@pytest.mark.parametrize("namespace", ["", None])
def test_a_page_of_a_long_thread_is_read_without_the_rest(own: ValkeyServer, own_shelf: Shelf, namespace: Any) -> None:
    with Proxy(own.port) as proxy:
        store = own_shelf.open(url=own.url_at(proxy.port))
        for n in range(600):
            go(store.commit(put(make_record(f"c{n:03}", namespace="" if n % 2 else "sub", step=n))))
        for query, asked in (
            (Query(thread_id="t", namespace=namespace, limit=5), store.list_checkpoints),
            (Query(thread_id="t", namespace=namespace, limit=5, order="oldest", after_seq=590), store.list_checkpoints),
            (Query(thread_id="t", namespace=namespace), store.count),
        ):
            before = proxy.counts
            assert go(asked(query))
            assert (proxy.counts - before).bytes_down < 10_000


# -- finding threads


def looks(client: Any) -> int:
    """Return how many threads the server was asked about, one by one, since its statistics were reset."""
    found = client.info("commandstats")
    return sum(found.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("sismember", "zscore"))


def test_a_page_of_what_many_threads_have_looks_at_few_of_them(own_shelf: Shelf) -> None:
    """Whether they are in one bucket or in many; and what few have costs no look at the others."""
    store = own_shelf.open()
    together = [name for n in range(60_000) if bucket_of(name := f"n{n}") == bucket_of("t")][:40]
    apart = [f"apart{n}" for n in range(40)]
    for names in (together, apart):
        for n, name in enumerate(names):
            kept = {"of": names[0], "all": "yes", "old": n < 20, "few": n == 7}
            go(store.commit(put(record("c", name, metadata=kept))))
    for asked, most in (({"all": "yes"}, 120), ({"of": together[0]}, 20), ({"few": True}, 40), ({"all": "no"}, 0)):
        own_shelf.client.config_resetstat()
        hits = go(store.search(Search(filter=asked, limit=3)))
        assert len(hits) <= 3
        assert looks(own_shelf.client) <= most, asked
    # Those that were active last do not have it: then all that do are looked at, once.
    own_shelf.client.config_resetstat()
    found = [
        hit.position.thread_id for hit in go(store.search(Search(filter={"of": together[0], "old": True}, limit=3)))
    ]
    assert found == together[19:16:-1]


def test_buckets_that_give_an_error_together_are_asked_one_by_one(
    own_shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = own_shelf.open()
    names = [f"t{n}" for n in range(5)]
    for name in names:
        go(store.commit(follow(name, "c")))
    refused: list[int] = []

    def refuse(self: redis_link.Link, verb: str, bases: Sequence[bytes], *_: Any) -> list[Any]:
        refused.append(len(bases))
        return [redis_py.ResponseError("CROSSSLOT Keys in request don't hash to the same slot")] * len(bases)

    monkeypatch.setattr(redis_link.Link, "run_on_each", refuse)
    assert [hit.position.thread_id for hit in go(store.search(Search()))] == names[::-1]
    assert refused
