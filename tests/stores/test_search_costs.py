"""A page of threads costs what it shows: the same work among N threads and among 10 N."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
import redis as redis_py

import everstep
from benchmarks.finding import fill
from everstep.stores.redis.items import BUCKETS, bucket_of
from tests.tools import servers

SMALL = everstep.SnapshotConfig(gc_param=100)
FEW, MANY = 200, 2_000
PAGE = 10
ASKED: dict[str, dict[str, Any]] = {
    "prefix": {"prefix": "user 7:"},
    "a prefix that all have": {"prefix": "user "},
    "metadata": {"filter": {"user": 7}},
    "metadata that all have": {"filter": {"kind": "chat"}},
    "metadata that all and few have": {"filter": {"kind": "chat", "user": 7}},
    "metadata that nobody has": {"filter": {"user": "nobody"}},
    "tag": {"tags": ["team 7"]},
    "since": {"since": datetime.now(UTC) - timedelta(hours=1)},
    "all": {},
}


def in_few_buckets(name: str) -> bool:
    """Whether a thread is in one of those buckets that are in use with few threads already."""
    return bucket_of(name) < BUCKETS // 16


@pytest.fixture(params=["redis", "cluster"])
def servers_of(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[Any]]]:
    """Yield the address of a server or cluster, and a client of each server."""
    if request.param == "redis":
        with servers.ValkeyServer(durable=False) as server, server.connect() as client:
            yield server.url, [client]
        return
    url = servers.redis_cluster()
    cluster: Any = redis_py.RedisCluster.from_url(url.replace("redis+cluster", "redis"))
    clients = [cluster.get_redis_connection(node) for node in cluster.get_primaries()]
    yield url, clients
    cluster.close()


def calls(clients: list[Any]) -> int:
    """Return how many commands were run, those within scripts included."""
    return sum(row["calls"] for client in clients for row in client.info("commandstats").values())


def test_a_server_does_the_same_among_ten_times_as_many(servers_of: tuple[str, list[Any]]) -> None:
    url, clients = servers_of
    found: list[dict[str, int]] = []
    for count in (FEW, MANY):
        with everstep.open(url, SMALL, key_prefix=servers.redis_prefix()).sync as engine:
            fill(engine._driven, count, chosen=in_few_buckets)
            costs = {}
            for what, asked in ASKED.items():
                engine.list_threads(PAGE, **asked)  # a script that is new to the server is sent twice
                before = calls(clients)
                page = engine.list_threads(PAGE, **asked)
                costs[what] = calls(clients) - before
                assert (what == "metadata that nobody has") == (not page)
            found.append(costs)
    for what, few in found[0].items():
        assert found[1][what] <= 1.5 * few + 60, (what, few, found[1][what])


def test_buckets_that_cannot_have_what_is_asked_for_are_left_alone() -> None:
    """Of each bucket little more is asked than when it was used last, and whether it has what few threads have."""
    with (
        servers.ValkeyServer(durable=False) as server,
        server.connect() as client,
        everstep.open(server.url, SMALL, key_prefix="t:").sync as engine,
    ):
        fill(engine._driven, 2 * FEW)
        buckets = client.scard("t:buckets")
        assert buckets > BUCKETS // 2
        found = {}
        for what, asked in ASKED.items():
            engine.list_threads(PAGE, **asked)
            before = calls([client])
            engine.list_threads(PAGE, **asked)
            found[what] = calls([client]) - before
    for what, count in found.items():
        assert count <= 3 * buckets + 900, (what, count, buckets)


class Steps:
    """Counts what SQLite does, in steps of its virtual machine by the hundred."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.set_progress_handler(self._step, 100)

    def _step(self) -> bool:
        self.count += 1
        return False


def test_a_file_is_looked_into_no_deeper_among_ten_times_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    monkeypatch.setattr(apsw, "connection_hooks", [*apsw.connection_hooks, steps.watch])
    found: list[dict[str, int]] = []
    for count in (FEW, MANY):
        with everstep.open(f"sqlite:///{tmp_path}/{count}.db", SMALL, synchronous="off").sync as engine:
            fill(engine._driven, count)
            costs = {}
            for what, asked in ASKED.items():
                asked = {**asked, "since": datetime.now(UTC) - timedelta(seconds=30)} if what == "since" else asked
                engine.list_threads(PAGE, **asked)
                steps.count = 0
                engine.list_threads(PAGE, **asked)
                costs[what] = steps.count
            found.append(costs)
    for what, few in found[0].items():
        # Where there are several indexes their entries are counted, up to a thousand, to see which gives the fewest.
        counting = 90 if what == "metadata that all and few have" else 15
        assert found[1][what] <= 1.2 * few + counting, (what, few, found[1][what])
