"""Leases: one owner of a thread at a time, and a stale one writes nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import InvalidInput, LeaseHeld, LeaseLost, UnsupportedByBackend
from everstep.repository.claims import Claims
from everstep.runtime.blocking import run_to_end
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.protocol import Store
from everstep.stores.redis.store import RedisStore
from tests.timeline.own_backend import Own
from tests.tools import servers

awaited = pytest.mark.parametrize("face", ["async"], indirect=True)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def engine(store: Store) -> everstep.CheckpointEngine:
    whole = getattr(store, "whole", store)
    return everstep.CheckpointEngine(everstep.StoreBackend(whole))


def take_over(engine: everstep.CheckpointEngine, thread_id: str) -> None:
    """Do what another process does that finds a lease which has run out."""
    backend = engine.checkpointer
    assert isinstance(backend, everstep.StoreBackend)
    claims = Claims(backend.blocking.repository)
    found = run_to_end(claims.find(thread_id))
    assert found is not None
    late = found._replace(task=found.task._replace(until=0.0))
    run_to_end(claims.take(thread_id, late, 60.0, is_task=False))


@awaited
async def test_what_an_owner_saves_is_kept(engine: everstep.CheckpointEngine) -> None:
    async with engine.lease("t") as lease:
        await lease.engine.append("t", HELLO)
        async with lease.engine.thread("t") as live:
            live.state["plan"] = "walk"
    found = await engine.get_latest("t")
    assert found is not None
    assert (found.messages, found.state) == (HELLO, {"plan": "walk"})


@awaited
async def test_there_is_one_owner_at_a_time(engine: everstep.CheckpointEngine) -> None:
    async with engine.lease("t") as lease:
        first = lease.epoch
        with pytest.raises(LeaseHeld):
            await engine.lease("t").__aenter__()
        async with engine.lease("another thread"):
            pass
    async with engine.lease("t") as lease:
        assert lease.epoch > first


@awaited
async def test_a_stale_owner_writes_nothing(engine: everstep.CheckpointEngine) -> None:
    await engine.append("t", HELLO)
    head = await engine.get_latest("t")
    lease = engine.lease("t")
    await lease.__aenter__()
    take_over(engine, "t")
    with pytest.raises(LeaseLost):
        await lease.engine.append("t", HELLO)
    with pytest.raises(LeaseLost):
        await lease.engine.snapshot("t", HELLO, {}, {})
    live = lease.engine.thread("t")
    await live.__aenter__()
    live.state["late"] = True
    with pytest.raises(LeaseLost):
        await live.__aexit__(None, None, None)
    with pytest.raises(LeaseLost):
        lease.check()
    await lease.engine.append("other", HELLO)  # it is about one thread
    with pytest.raises(LeaseLost):
        await lease.__aexit__(None, None, None)
    assert await engine.get_latest("t") == head


@awaited
async def test_an_error_of_the_block_is_told_though_the_lease_is_lost(engine: everstep.CheckpointEngine) -> None:
    lease = engine.lease("t")
    await lease.__aenter__()
    take_over(engine, "t")
    error = KeyError("mine")
    await lease.__aexit__(KeyError, error, None)  # which leaves the error of the block as it is


@awaited
async def test_a_renewed_lease_is_still_a_fence(engine: everstep.CheckpointEngine) -> None:
    async with engine.lease("t", 0.3) as lease:
        claim = lease._held()
        before = claim._stored.digest
        servers.wait_until(lambda: claim._stored.digest != before, "a renewal")
        await lease.engine.append("t", HELLO)
        with pytest.raises(LeaseHeld):
            await engine.lease("t").__aenter__()


@awaited
async def test_who_waits_gets_it_when_it_is_free(engine: everstep.CheckpointEngine) -> None:
    lease = engine.lease("t")
    await lease.__aenter__()
    waiting = engine.lease("t", wait_seconds=30)
    assert not await waiting._take(is_last=False)
    await lease.__aexit__(None, None, None)
    async with waiting:
        assert waiting.epoch > 0


@awaited
async def test_a_lease_of_nothing_leaves_nothing(engine: everstep.CheckpointEngine) -> None:
    async with engine.lease("t"):
        pass
    assert await engine.list_threads() == []
    assert await engine.get_latest("t") is None


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("face", ["blocking"], indirect=True)
def test_the_lease_of_a_process_that_died_is_free_at_once(engine: everstep.CheckpointEngine, place: Any) -> None:
    program = f"""
import everstep, os
with everstep.open({str(place.path)!r}).sync as engine, engine.lease("t", 600) as lease:
    lease.engine.append("t", [{{"role": "user", "content": "hello"}}])
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    with engine.sync.lease("t") as lease:
        lease.engine.append("t", HELLO)
    found = engine.sync.get_latest("t")
    assert found is not None
    assert len(found.messages) == 2


def test_blocking_callers_have_them_too(tmp_path: Path) -> None:
    with everstep.open(tmp_path / "agent.db").sync as engine:
        with engine.lease("t") as lease:
            lease.engine.append("t", HELLO)
            with pytest.raises(LeaseHeld), engine.lease("t"):
                pass
        with engine.lease("t"):
            pass


@pytest.mark.parametrize(
    "make",
    [
        lambda engine: engine.lease("t", 0),
        lambda engine: engine.lease("t", float("nan")),
        lambda engine: engine.lease("t", wait_seconds=-1),
        lambda engine: engine.lease(""),
        lambda engine: engine.lease("t").epoch,
    ],
)
def test_arguments_are_checked(make: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInput):
        make(everstep.open("memory://"))


def test_a_backend_of_somebodys_own_has_no_leases() -> None:
    engine = everstep.CheckpointEngine(Own()).sync
    with pytest.raises(UnsupportedByBackend), engine.lease("t"):
        pass


@awaited
async def test_the_clock_of_the_server_counts(
    engine: everstep.CheckpointEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process whose own clock is an hour ahead takes nothing over; where there is no server, that clock is all."""
    has_server = isinstance(getattr(store, "whole", store), (PostgresStore, RedisStore))
    now = time.time()
    assert abs(await store.clock() - now) < 60
    lease = engine.lease("t", 60)
    await lease.__aenter__()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    other = engine.lease("t", 60)
    if has_server:
        with pytest.raises(LeaseHeld):
            await other.__aenter__()
        await lease.__aexit__(None, None, None)
        return
    await other.__aenter__()
    await other.__aexit__(None, None, None)
    with pytest.raises(LeaseLost):
        await lease.__aexit__(None, None, None)
