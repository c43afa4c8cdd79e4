"""Threads that a server lost as a whole: reported once to each process that saw them. Deleted ones are not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import redis as redis_py

import everstep
from everstep import HeadRegressed
from everstep.runtime.blocking import run_to_end
from everstep.stores.postgres import reading as postgres_reading
from everstep.stores.postgres import removing as postgres_removing
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import Change, Draft, Key, Operation, Query, Store, Stored, Write
from everstep.stores.redis.items import bucket_of
from everstep.stores.redis.store import RedisStore
from everstep.testing import head_id, make_record, put
from tests.conftest import OneFace
from tests.stores.postgres_tools import own_postgres
from tests.tools import servers
from tests.tools.servers import ValkeyServer

TABLES = [
    "names", "families", "threads", "shared_states", "lines", "segments", "checkpoints", "objects", "writes",
    "operations", "hidden", "gone",
]  # fmt: skip


class Site:
    """A place on a server that can be emptied, and as many stores on it as there would be processes."""

    def __init__(self, kind: str, face: str) -> None:
        self.kind, self._face = kind, face
        self._prefix = servers.redis_prefix()
        self._opened: list[Any] = []
        if kind == "postgres":
            servers.clear_postgres()

    def open(self, **options: Any) -> Store:
        store: PostgresStore | RedisStore
        if self.kind == "postgres":
            store = PostgresStore(servers.postgres(), max_size=4)
        else:
            url = servers.redis() if self.kind == "redis" else servers.redis_cluster()
            store = RedisStore(url, key_prefix=self._prefix, **options)
        self._opened.append(store)
        return store if self._face == "async" else store.blocking

    def engine(self) -> Any:
        return OneFace(everstep.CheckpointEngine(everstep.StoreBackend(self.open())), self._face)

    def wipe(self) -> None:
        """Lose everything, as a server that is started anew without its data."""
        if self.kind == "postgres":
            with psycopg.connect(servers.postgres(), autocommit=True) as connection:
                names = ", ".join(f"everstep_{name}" for name in TABLES)
                connection.execute(f"TRUNCATE {names}".encode())
            return
        for key in self.keys("*"):
            self.client.delete(key)

    @property
    def client(self) -> Any:
        if self.kind == "redis":
            return redis_py.Redis.from_url(servers.redis())
        return redis_py.RedisCluster.from_url(servers.redis_cluster().replace("+cluster", ""))

    def keys(self, pattern: str) -> list[bytes]:
        return list(self.client.scan_iter(f"{self._prefix}{pattern}", 1000))

    def close(self) -> None:
        for store in self._opened:
            run_to_end(store.blocking.close())


@pytest.fixture(params=["postgres", "redis", "cluster"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def site(kind: str, face: str) -> Iterator[Site]:
    site = Site(kind, face)
    yield site
    site.close()


def next_step(thread_id: str, name: str, namespace: str = "") -> Change:
    """Return the change that adds the next step to a namespace of a thread."""

    def build(head: Stored | None) -> Draft:
        step = head.record.step + 1 if head is not None else 1
        parents = [head.record.key.checkpoint_id] if head is not None else []
        return Draft(make_record(f"{name}-{step}", thread_id, namespace, step=step, parents=parents), ())

    return Change(thread_id, namespace, build=build)


async def save(store: Store, thread_id: str, count: int = 3, namespace: str = "") -> None:
    for _ in range(count):
        await store.commit(next_step(thread_id, "c", namespace))


LOOKS: dict[str, Callable[[Store], Any]] = {
    "read": lambda store: store.read("t"),
    "read of an id": lambda store: store.read("t", "", "c-2"),
    "read_many": lambda store: store.read_many([Key("t", "", "c-2")]),
    "list_checkpoints": lambda store: store.list_checkpoints(Query(thread_id="t")),
    "count": lambda store: store.count(Query(thread_id="t")),
    "thread": lambda store: store.thread("t"),
    "operations": lambda store: store.operations("t", 10),
    "raw": lambda store: store.raw("t"),
    "commit": lambda store: store.commit(next_step("t", "later")),
    "commit that expects": lambda store: store.commit(next_step("t", "later")._replace(expect="c-3")),
    "operation": lambda store: store.commit(Change("t", log=Operation("x", {}))),
    "put_writes": lambda store: store.put_writes(Key("t", "", "c-3"), [Write("task", 0, "c", b"", b"w", 1)], ()),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
async def test_a_lost_thread_is_reported_once(site: Site, look: Any) -> None:
    store = site.open()
    await save(store, "t")
    await save(store, "t", namespace="beside")
    site.wipe()
    with pytest.raises(HeadRegressed, match="gone, though nobody deleted it") as caught:
        await look(store)
    assert (caught.value.thread_id, caught.value.found_generation) == ("t", 0)
    assert await store.read("t") is None
    assert await store.read("t", "beside") is None
    await save(store, "t", 1)
    assert await head_id(store) == "c-1"
    assert await store.count(Query(thread_id="t", namespace=None)) == 1


@pytest.mark.parametrize("look", [LOOKS["read"], LOOKS["commit"], LOOKS["read_many"]], ids=["read", "commit", "many"])
async def test_a_lost_thread_that_another_process_began_anew_is_reported_once(site: Site, look: Any) -> None:
    store, other = site.open(), site.open()
    await save(store, "t")
    site.wipe()
    await save(other, "t", 5)
    with pytest.raises(HeadRegressed):
        await look(store)
    assert await head_id(store) == "c-5"
    await save(store, "t", 1)
    assert await head_id(store) == "c-6"


async def test_a_lost_namespace_of_a_thread_that_is_left_is_reported(site: Site) -> None:
    """As when a replica takes over that the namespace had not reached."""
    store = site.open()
    await save(store, "t")
    await save(store, "t", namespace="late")
    site.wipe()
    await save(site.open(), "t", 1)
    with pytest.raises(HeadRegressed):
        await store.read("t", "late")
    assert await head_id(store) == "c-1", "all of the thread was seen to be another one"


@pytest.mark.parametrize("again", [False, True], ids=["gone", "begun anew"])
async def test_a_thread_that_was_deleted_is_no_loss(site: Site, again: bool) -> None:
    for look in LOOKS.values():
        store, other = site.open(), site.open()
        await save(store, "t")
        await save(store, "t", namespace="beside")
        await other.delete("t")
        if again:
            await save(other, "t", 1)
        with contextlib.suppress(everstep.HeadMoved):
            await look(store)
        await store.delete("t")


async def test_what_a_process_deletes_itself_is_no_loss(site: Site) -> None:
    store = site.open()
    for _ in range(3):
        await save(store, "t")
        await store.delete("t")
        assert await store.read("t") is None
    await save(store, "t", 1)
    assert await head_id(store) == "c-1"


async def test_an_older_deletion_does_not_excuse_a_loss(site: Site) -> None:
    """The mark that the first thread of that name left is there; that the second one is gone is a loss."""
    store, other = site.open(), site.open()
    await save(other, "t")
    await other.delete("t")
    await save(store, "t")
    if site.kind == "postgres":
        with psycopg.connect(servers.postgres(), autocommit=True) as connection:
            names = ", ".join(f"everstep_{name}" for name in TABLES if name != "gone")
            connection.execute(f"TRUNCATE {names}".encode())
    else:
        for key in site.keys("{*"):
            if not key.endswith(b":gone"):
                site.client.delete(key)
    with pytest.raises(HeadRegressed):
        await store.read("t")


async def test_a_namespace_whose_checkpoints_were_all_deleted_is_no_loss(site: Site) -> None:
    store, other = site.open(), site.open()
    await save(store, "t")
    await save(store, "t", namespace="beside")
    await other.delete("t", keys=[Key("t", "beside", f"c-{n}") for n in (1, 2, 3)])
    assert await store.read("t", "beside") is None
    await save(store, "t", 1, namespace="beside")


async def test_a_branch_that_was_deleted_is_no_loss(site: Site) -> None:
    store, other = site.open(), site.open()
    await save(store, "t")
    origin = (await store.read("t")).stored.record.key  # type: ignore[union-attr]
    branch = next(name for n in range(100) if bucket_of(name := f"b{n}") != bucket_of("t"))
    await store.commit(put(make_record("b", branch), origin=origin))
    await save(store, branch, 2)
    await other.delete(branch)
    assert await store.read(branch) is None
    await save(store, branch, 1)
    await other.delete("t")
    await other.delete(branch)
    assert await store.read("t") is None
    assert await store.read(branch) is None


async def test_marks_of_deletions_are_bounded_and_what_they_do_not_tell_is_no_alarm(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = site.open(), site.open()
    names = [name for n in range(200_000) if bucket_of(name := f"n{n}") == bucket_of("t")]
    count = 140
    if site.kind == "postgres":
        monkeypatch.setattr(postgres_reading, "MARKS_MAX", 20)
        monkeypatch.setattr(postgres_removing, "MARKS_MAX", 20)
        monkeypatch.setattr(postgres_removing, "_MARKS_TRIMMED_EVERY", 1)
        count = 30
    await save(store, "t")
    await other.delete("t")
    for name in names[:count]:
        await save(other, name, 1)
        await other.delete(name)
    if site.kind == "postgres":
        with psycopg.connect(servers.postgres(), autocommit=True) as connection:
            assert connection.execute("SELECT count(*) FROM everstep_gone").fetchone() == (21,)
    else:
        (key,) = site.keys("*:gone")
        assert site.client.zcard(key) == 128
    assert await store.read("t") is None, "its mark has made room"
    await save(store, "t")
    await other.delete("t")
    assert await store.read("t") is None, "its mark is among the last"
    await save(store, "t")
    if site.kind == "postgres":
        with psycopg.connect(servers.postgres(), autocommit=True) as connection:
            for name in TABLES[:-1]:
                connection.execute(f"TRUNCATE everstep_{name}".encode())
    else:
        for key in site.keys("{*"):
            if not key.endswith(b":gone"):
                site.client.delete(key)
    with pytest.raises(HeadRegressed):
        await store.read("t")


async def test_the_engine_does_not_begin_a_lost_conversation_anew_unasked(site: Site) -> None:
    engine = site.engine()
    for n in range(3):
        await engine.append("t", [{"role": "user", "content": str(n)}])
    site.wipe()
    with pytest.raises(HeadRegressed):
        await engine.append("t", [{"role": "user", "content": "3"}])
    await engine.append("t", [{"role": "user", "content": "3"}])
    assert (await engine.get_latest("t")).metadata.step == 1
    site.wipe()
    with pytest.raises(HeadRegressed):
        await engine.get_latest("t")
    assert await engine.get_latest("t") is None


async def test_what_langgraph_deletes_is_no_loss(site: Site) -> None:
    from langgraph.checkpoint.base import empty_checkpoint

    from everstep.langgraph import HarnessCheckpointer

    one, other = (HarnessCheckpointer(backend=site.open()) for _ in range(2))
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for _ in range(2):
        one.put(config, empty_checkpoint(), {}, {})
        assert one.get_tuple(config) is not None
        other.delete_thread("t")
        assert one.get_tuple(config) is None
    one.put(config, empty_checkpoint(), {}, {})
    site.wipe()
    with pytest.raises(HeadRegressed):
        one.get_tuple(config)
    assert one.get_tuple(config) is None


@pytest.mark.parametrize("kind", ["redis", "cluster"])
@pytest.mark.parametrize("own_life", [60, None], ids=["of its own", "of another process"])
async def test_a_thread_whose_time_is_over_is_no_loss(site: Site, own_life: float | None) -> None:
    store = site.open(ttl_seconds=own_life) if own_life else site.open()
    if not own_life:
        await save(store, "t")
    await save(store if own_life else site.open(ttl_seconds=60), "t")
    assert await store.thread("t") is not None
    # Time passes for what the server keeps, without waiting for it.
    for key in site.keys("{*"):
        if site.client.pttl(key) > 0:
            site.client.delete(key)
    for look in (LOOKS["read"], LOOKS["thread"]):
        assert await look(store) is None
    await save(store, "t", 1)
    assert await head_id(store) == "c-1"


def test_a_server_that_restarts_without_its_data_is_reported() -> None:
    with ValkeyServer(durable=False) as server:
        store: Any = RedisStore(server.url).blocking
        for thread_id in ("t", "u"):
            run_to_end(save(store, thread_id))
        server.kill()
        server.start()
        with pytest.raises(HeadRegressed):
            run_to_end(store.commit(next_step("t", "later")))
        run_to_end(save(store, "t", 1))
        with server.connect() as client:
            client.flushall()
        for thread_id in ("t", "u"):
            with pytest.raises(HeadRegressed):
                run_to_end(store.read(thread_id))
            assert run_to_end(store.read(thread_id)) is None
        run_to_end(store.close())


def test_a_family_with_numbers_of_its_own_leaves_a_mark_above_them() -> None:
    """A family that was copied here counts ahead of the others; see `shift` in the schema."""
    own = own_postgres()
    schema = "marks_of_copies"
    own.do(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    store, other = (PostgresStore(own.url, schema=schema).blocking for _ in range(2))
    run_to_end(save(store, "t"))
    own.do(f"UPDATE {schema}.everstep_families SET shift = shift + 1000")
    run_to_end(save(store, "t"))
    run_to_end(other.delete("t"))
    assert run_to_end(store.read("t")) is None
    for each in (store, other):
        run_to_end(each.close())
    own.do(f"DROP SCHEMA {schema} CASCADE")
