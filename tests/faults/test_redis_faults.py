"""Valkey goes away in every way, and what was acknowledged is there, once; a cluster too, if replicas confirm."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import everstep
from everstep import CheckpointEngine, SnapshotConfig
from everstep.errors import CommitUnknown, HeadRegressed
from everstep.runtime.blocking import run_to_end
from everstep.stores.redis.items import bucket_of
from tests.faults.contract import OpenEngine, ServerFaults, proxy
from tests.faults.servers_harness import Attempt, Writers, check, save
from tests.tools.servers import LOOPBACK, ValkeyCluster, ValkeyServer

__all__ = ["proxy"]


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster() as cluster:
        yield cluster


@pytest.fixture
def open_engine(server: ValkeyServer) -> Iterator[OpenEngine]:
    yield from opener(lambda port: server.url_at(port or server.port))


@pytest.fixture
def open_clustered(cluster: ValkeyCluster) -> Iterator[OpenEngine]:
    cluster.wait_until_whole()
    yield from opener(lambda _: ",".join([cluster.url, *(f"{LOOPBACK}:{node.port}" for node in cluster.nodes[1:])]))


def opener(url: Callable[[int | None], str]) -> Iterator[OpenEngine]:
    prefix = f"t{random.getrandbits(40)}:"
    opened: list[CheckpointEngine] = []

    def open_engine(port: int | None = None, *, timeout_seconds: float = 5, **options: Any) -> CheckpointEngine:
        engine = everstep.open(
            url(port), SnapshotConfig(gc_policy="keep_all"),
            key_prefix=prefix, timeout_seconds=timeout_seconds, **options,
        )  # fmt: skip
        opened.append(engine)
        return engine

    yield open_engine
    for engine in opened:
        engine.sync.close()


class TestRedisFaults(ServerFaults):
    def test_a_server_that_keeps_nothing_is_found_out(self) -> None:
        """Without a file of what it did, a killed server has lost it: the check must say so."""
        with ValkeyServer(durable=False) as server:
            engine = everstep.open(server.url)
            saved = [run_to_end(save(engine.sync, "t", 0, n)) for n in range(1, 6)]
            engine.sync.close()
            server.kill()
            server.start()
            left = everstep.open(server.url)
            attempts = [Attempt("t", 0, n, "acknowledged", name) for n, name in enumerate(saved, 1)]
            assert len(check(attempts, left)) == len(saved)
            left.sync.close()


# -- a cluster ---------------------------------------------------------------------------------------------------------


def slot_key(thread_id: str) -> str:
    """A key of the slot where the thread is kept."""
    return f"{{{bucket_of(thread_id)}}}"


@pytest.mark.parametrize("harm", ["killed", "paused"])
def test_what_replicas_confirmed_outlives_the_master(
    cluster: ValkeyCluster, open_clustered: OpenEngine, harm: str
) -> None:
    with Writers(lambda: open_clustered(wait_replicas=1), harm) as writers:
        writers.advance()
        key = slot_key(writers.threads[-1])
        master = cluster.master_of(key)
        master.kill() if harm == "killed" else master.pause()
        cluster.wait_for_failover(key, master)
        master.start() if harm == "killed" else master.resume()
        writers.advance()
    cluster.wait_until_whole()
    assert writers.faults == []
    assert check(writers.attempts, open_clustered()) == []


def test_a_head_that_went_back_is_reported(cluster: ValkeyCluster, open_clustered: OpenEngine) -> None:
    """The replica is cut off, the master goes on alone and dies, and the replica takes over without the end."""
    read, written = names_of_one_master(cluster, 2)
    key = slot_key(read)
    master = cluster.master_of(key)
    (replica,) = cluster.replicas_of(master)
    engine, careful = open_clustered(), open_clustered(wait_replicas=1, timeout_seconds=1)
    kept = {
        thread_id: [careful.sync.append(thread_id, [], {"n": n}) for n in range(3)] for thread_id in (read, written)
    }

    replica.pause()
    with master.connect() as admin:
        admin.client_kill_filter(_type="replica")
    lost = {thread_id: engine.sync.append(thread_id, [], {"n": 3}) for thread_id in (read, written)}
    with pytest.raises(CommitUnknown, match="0 of 1 replicas"):
        careful.sync.append(read, [], {"n": 4})
    engine.sync.append(written, [], {"n": 4})
    master.kill()
    replica.resume()
    assert cluster.wait_for_failover(key, master) is replica

    with pytest.raises(HeadRegressed):
        engine.sync.get_latest(read)
    with pytest.raises(HeadRegressed):
        asyncio.run(engine.append(written, [], {"n": 5}))
    for thread_id in (read, written):
        assert engine.sync.get(lost[thread_id], thread_id=thread_id, namespace="") is None
        again = engine.sync.append(thread_id, [], {"n": "again"})
        points = open_clustered().sync.list_time_travel_points(thread_id)
        assert [point.checkpoint_id for point in reversed(points)] == [*kept[thread_id], again]
    master.start()
    cluster.wait_until_whole()


def names_of_one_master(cluster: ValkeyCluster, count: int) -> list[str]:
    """Names of threads in different buckets that the same master serves."""
    master = cluster.master_of(slot_key("thread 0"))
    names = (f"thread {n}" for n in itertools.count())
    return list(itertools.islice((name for name in names if cluster.master_of(slot_key(name)) is master), count))
