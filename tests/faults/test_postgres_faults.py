"""PostgreSQL goes away in every way, and what was acknowledged is there, once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import everstep
from everstep import CheckpointEngine, SnapshotConfig
from tests.faults.contract import OpenEngine, ServerFaults, assert_nothing_lost, proxy, rng
from tests.faults.servers_harness import Writers
from tests.tools.servers import PostgresServer

__all__ = ["proxy", "rng"]
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def open_engine(server: PostgresServer) -> Iterator[OpenEngine]:
    prefix = f"t{random.getrandbits(40)}_"
    opened: list[CheckpointEngine] = []

    def open_engine(port: int | None = None, *, timeout_seconds: float = 5, **options: Any) -> CheckpointEngine:
        engine = everstep.open(
            server.url_at(port or server.port), SnapshotConfig(gc_policy="keep_all"),
            table_prefix=prefix, timeout_seconds=timeout_seconds, **options,
        )  # fmt: skip
        opened.append(engine)
        return engine

    yield open_engine
    for engine in opened:
        engine.sync.close()


class TestPostgresFaults(ServerFaults):
    def test_engines_that_start_at_once_make_the_tables_once(self, open_engine: OpenEngine) -> None:
        engines = [open_engine() for _ in range(6)]
        together = threading.Barrier(len(engines))

        def start(engine: CheckpointEngine) -> str:
            together.wait()
            return engine.sync.append("t", [], {})

        with ThreadPoolExecutor(len(engines)) as workers:
            assert len(set(workers.map(start, engines))) == len(engines)

    def test_terminated_backends_lose_nothing(
        self, server: PostgresServer, open_engine: OpenEngine, rng: random.Random
    ) -> None:
        with Writers(open_engine, "terminated") as writers, server.connect() as admin:
            writers.advance()
            for _ in range(20):
                victims = [row[0] for row in admin.execute(BACKENDS)]
                if victims:
                    admin.execute("SELECT pg_terminate_backend(%s)", (rng.choice(victims),))
                writers.advance(1)
            writers.advance()
        assert_nothing_lost(writers, open_engine())
