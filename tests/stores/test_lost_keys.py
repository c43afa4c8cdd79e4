"""Single keys, fields and members of the Redis store that are lost: told for their thread, and no harm to others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py

from everstep import CheckpointCorrupted
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Draft, Key, Query, Search
from everstep.stores.redis.items import bucket_of
from everstep.stores.redis.store import RedisStore
from everstep.testing import follow, make_record, put
from tests.stores.losses import LOOKS, THE_SAME, check_append, check_delete, check_listing, fill, go, view
from tests.tools import servers

UNNOTICED = (":began", ":written", ":shared_states", ":writes:", ":objects")
"""What is not counted, or noticed elsewhere; docs/servers.md says so."""


class Keys:
    """A prefix of its own, which can be put back as it was."""

    def __init__(self) -> None:
        self._prefix = servers.redis_prefix()
        self.client: Any = redis_py.Redis.from_url(servers.redis())
        self._opened: list[RedisStore] = []
        self._kept: dict[bytes, bytes] = {}

    def open(self) -> Any:
        self._opened.append(RedisStore(servers.redis(), key_prefix=self._prefix))
        return self._opened[-1].blocking

    def names(self) -> list[bytes]:
        return sorted(self.client.scan_iter(f"{self._prefix}*", 1000))

    def keep(self) -> None:
        self._kept = {name: self.client.dump(name) for name in self.names()}

    def put_back(self) -> None:
        for name in set(self.names()) - set(self._kept):
            self.client.delete(name)
        for name, value in self._kept.items():
            self.client.restore(name, 0, value, replace=True)

    def losses(self, part: bytes) -> Iterator[tuple[str, Callable[[], Any]]]:
        """Yield every way to lose one thing of the keys with this part in their names."""
        for name in self.names():
            if part not in name:
                continue
            yield f"{name!r}", functools.partial(self.client.delete, name)
            kind = self.client.type(name)
            if kind == b"hash":
                for field in self.client.hkeys(name):
                    yield f"{name!r} {field!r}", functools.partial(self.client.hdel, name, field)
            elif kind == b"zset":
                for member in self.client.zrange(name, 0, -1):
                    yield f"{name!r} {member!r}", functools.partial(self.client.zrem, name, member)
            elif kind == b"set":
                for member in self.client.smembers(name):
                    yield f"{name!r} {member!r}", functools.partial(self.client.srem, name, member)

    def close(self) -> None:
        self.client.close()
        for store in self._opened:
            run_to_end(store.blocking.close())


@pytest.fixture
def keys() -> Iterator[Keys]:
    keys = Keys()
    yield keys
    keys.close()


def is_counted(what: str) -> bool:
    return not any(part in what for part in UNNOTICED)


@pytest.mark.parametrize("part", ["thread:t:", "family"])
def test_a_lost_key_is_told_for_its_thread_alone(keys: Keys, part: str) -> None:
    store = keys.open()
    fill(store)
    go(store.commit(follow("after", "last")))
    truth, others = view(store, LOOKS), view(store, THE_SAME)
    family = go(store.read("t")).stored.family
    keys.keep()
    noticed, tried = 0, 0
    for what, lose in keys.losses(part.encode() if part != "family" else f"family:{family}".encode()):
        if not is_counted(what):
            continue
        lose()
        fresh = keys.open()
        found = view(fresh, LOOKS)
        damage = {name: value for name, value in found.items() if isinstance(value, CheckpointCorrupted)}
        for name, value in found.items():
            if name in damage:
                assert value.thread_id == "t", (what, name, value)
            else:
                assert value == truth[name], (what, name)
        assert view(fresh, THE_SAME) == others, what
        noticed += bool(damage)
        tried += 1
        check_append(keys, what, is_damaged=bool(damage))
        for check in (check_listing, check_delete):
            keys.put_back()
            lose()
            check(keys, what)
        keys.put_back()
    assert noticed > tried / 2


def test_a_lost_index_of_ids_is_told(keys: Keys) -> None:
    store = keys.open()
    fill(store)
    keys.keep()
    (name,) = [name for name in keys.names() if name.endswith(b"{%d}:ids" % bucket_of("t"))]
    assert go(store.find("t-1")) == [Key("t", "", "t-1")]
    assert go(store.find("nowhere")) == []
    losses = [functools.partial(keys.client.delete, name), functools.partial(keys.client.hdel, name, "t-1")]
    for lose in losses:
        lose()
        with pytest.raises(CheckpointCorrupted, match="index of ids") as caught:
            go(keys.open().find("t-1"))
        assert (caught.value.thread_id, caught.value.checkpoint_id) == ("t", "t-1")
        keys.put_back()


def test_lost_indexes_of_threads_are_made_anew(keys: Keys) -> None:
    store = keys.open()
    for n in range(20):
        go(store.commit(put(make_record("c", f"t{n}", metadata={"k": n % 2}, tags=["tag"]))))
    keys.keep()
    searches = [Search(filter={"k": 1}), Search(prefix="t1"), Search(tags=frozenset({"tag"}))]
    truth = [go(store.search(search)) for search in searches]
    assert [len(hits) for hits in truth] == [10, 11, 20]
    for part in (b":names", b":facts", b":counts", b":fact:"):
        lost = [name for name in keys.names() if part in name]
        assert lost, part
        for name in lost:
            keys.client.delete(name)
        assert [go(keys.open().search(search)) for search in searches] == truth, part
        keys.put_back()


def test_a_lost_alias_is_told(keys: Keys) -> None:
    """Else a branch that is kept elsewhere would begin anew."""
    store = keys.open()
    go(store.commit(follow("t", "c")))
    branch = next(name for n in range(100) if bucket_of(name := f"b{n}") != bucket_of("t"))
    go(store.commit(put(make_record("b-1", branch), origin=Key("t", "", "c-1"))))
    (alias,) = [name for name in keys.names() if b":alias:" in name]
    keys.client.delete(alias)
    fresh = keys.open()
    calls: list[Callable[[], Any]] = [
        lambda: fresh.read(branch),
        lambda: fresh.commit(follow(branch, "c")),
        lambda: fresh.thread(branch),
    ]
    for call in calls:
        with pytest.raises(CheckpointCorrupted, match="alias") as caught:
            go(call())
        assert caught.value.thread_id == branch
    assert go(fresh.read("t")).stored.record.step == 1
    go(fresh.delete(branch))
    assert go(fresh.read(branch)) is None
    assert [row.record.key.thread_id for row in go(fresh.list_threads(10, 0, headless=True))] == ["t"]
    assert go(fresh.commit(follow(branch, "c"))).record.step == 1
    assert go(fresh.thread("t", branches=True)).branches == []


def test_lost_pending_writes_are_told(keys: Keys) -> None:
    store = keys.open()
    fill(store)
    (name,) = [name for name in keys.names() if b":writes:" in name]
    keys.client.delete(name)
    with pytest.raises(CheckpointCorrupted, match="pending writes"):
        go(keys.open().read("t", writes=True))
    assert go(keys.open().read("t")).stored.record.step == 3


def test_a_family_that_lost_a_thread_is_not_removed_with_another(keys: Keys) -> None:
    """Its set of threads says that none is left, and their objects would go."""
    store = keys.open()
    fill(store)
    go(store.commit(follow("branch", "b")))
    family = go(store.read("t")).stored.family
    (threads,) = [name for name in keys.names() if name.endswith(f"family:{family}:threads".encode())]
    keys.client.srem(threads, "t")
    fresh = keys.open()
    go(fresh.delete("branch"))
    assert go(fresh.read("t", objects=True)).objects
    with pytest.raises(CheckpointCorrupted):
        go(fresh.sweep(family))
    assert go(fresh.read("t", objects=True)).objects


def test_a_head_that_is_older_than_its_newest_checkpoint_is_told(keys: Keys) -> None:
    store = keys.open()
    for _ in range(2):
        go(store.commit(follow("t", "c")))
    (name,) = [name for name in keys.names() if name.endswith(b":heads")]
    old = keys.client.hgetall(name)
    go(store.commit(follow("t", "c")))
    keys.client.hset(name, "@", old[b"@"])
    with pytest.raises(CheckpointCorrupted, match="older") as caught:
        go(keys.open().read("t"))
    assert caught.value.thread_id == "t"
    keys.client.hset(name, "#", old[b"#"])
    calls: list[Callable[[Any], Any]] = [lambda it: it.read("t"), lambda it: it.commit(follow("t", "c"))]
    for call in calls:
        with pytest.raises(CheckpointCorrupted, match="3 of 2"):
            go(call(keys.open()))
    go(keys.open().delete("t"))
    assert go(keys.open().list_checkpoints(Query(thread_id="t"))) == []


def test_threads_of_before_are_counted_from_now_on(keys: Keys) -> None:
    """Keys that an older version made have no counts."""
    store = keys.open()
    fill(store)
    for name in keys.names():
        if keys.client.type(name) == b"hash":
            for field in keys.client.hkeys(name):
                if field == b"sizes" or field.startswith(b"#"):
                    keys.client.hdel(name, field)
    fresh = keys.open()
    before = view(fresh, LOOKS)
    assert not [value for value in before.values() if isinstance(value, Exception)]
    go(fresh.commit(follow("t", "c")))
    go(fresh.commit(follow("t", "c")))
    go(fresh.commit(put(make_record("x", "t", "ns"))))
    go(fresh.delete("t", keys=[Key("t", "", "c-4")]))
    assert go(keys.open().read("t")).stored.record.step == 5
    assert go(keys.open().thread("t")) is not None


def test_a_change_does_not_count_anew_what_is_damaged(keys: Keys) -> None:
    store = keys.open()
    for name in ("n-1", "n-2"):
        go(store.commit(put(make_record(name, "t", "ns"))))
    go(store.commit(follow("t", "c")))
    (index,) = [name for name in keys.names() if name.endswith(b":ns:index")]
    keys.client.zrem(index, "n-1")
    beside = Draft(make_record("n-3", "t", "ns", parents=["n-2"]), ())
    for _ in range(2):
        with pytest.raises(CheckpointCorrupted, match="1 of 2"):
            go(keys.open().commit(follow("t", "c")._replace(other_namespaces=[beside])))
    assert go(keys.open().read("t")).stored.record.step == 1
