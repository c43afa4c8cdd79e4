"""Valkey goes away in every way, and what was acknowledged is there, once; a cluster too, if replicas confirm."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import everstep
from everstep import CheckpointEngine, SnapshotConfig
from everstep.errors import HeadRegressed
from everstep.stores.redis import bucket_of
from tests.faults.contract import OpenEngine, ServerFaults, assert_nothing_lost, proxy
from tests.faults.servers_harness import Writers
from tests.servers import ValkeyCluster, ValkeyServer, wait_until

__all__ = ["proxy"]


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster() as cluster:
        yield cluster


def opener(url_at: Any) -> Iterator[OpenEngine]:
    prefix = f"t{random.getrandbits(40)}:"
    opened: list[CheckpointEngine] = []

    def open_engine(port: int | None = None, *, timeout_seconds: float = 5, **options: Any) -> CheckpointEngine:
        engine = everstep.open(
            url_at(port), SnapshotConfig(gc_policy="keep_all"),
            key_prefix=prefix, timeout_seconds=timeout_seconds, **options,
        )  # fmt: skip
        opened.append(engine)
        return engine

    open_engine.prefix = prefix  # type: ignore[attr-defined]
    yield open_engine
    for engine in opened:
        engine.sync.close()


@pytest.fixture
def open_engine(server: ValkeyServer) -> Iterator[OpenEngine]:
    yield from opener(lambda port: server.url_at(port or server.port))


class TestRedisFaults(ServerFaults):
    pass
