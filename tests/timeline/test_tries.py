"""Whatever tries again has an end: here it never succeeds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import everstep
from everstep import StoreUnavailable
from everstep.errors import HeadMoved
from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import TaskManager
from everstep.repository import turns
from everstep.repository.claims import Claims
from everstep.runtime.blocking import run_to_end
from everstep.stores import sweeping
from everstep.stores.memory import MemoryStore
from everstep.stores.protocol import BaseRef, Key, Store, Stored
from everstep.testing import follow
from everstep.transfer import copying
from tests.langgraph.scripts import Script, log
from tests.langgraph.tools import at, checkpoint, task_claims


class Moving:
    """A fence that is never where it was."""

    thread_id = "t"
    base = BaseRef(Key("t", "", "nowhere"), bytes(16))

    def __init__(self) -> None:
        self.looks = 0

    async def find(self, _store: Store) -> None:
        self.looks += 1


def test_a_put_behind_a_fence_that_always_moves() -> None:
    fence = Moving()
    saver = HarnessCheckpointer(backend=everstep.MemoryCheckpointer()).behind(fence)
    with pytest.raises(StoreUnavailable, match="renewed faster"):
        saver.put(at("t"), checkpoint("c1", {"channel": 1}), {}, {})
    assert fence.looks == turns.BEATEN_MAX
    with pytest.raises(StoreUnavailable, match="renewed faster"):
        saver.put_writes(
            {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c1"}}, [("channel", 1)], "task"
        )


def test_a_claim_that_others_always_take(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = TaskManager(Script(one=log("one"), two=log("two")).graph(), HarnessCheckpointer(), lease_seconds=60)
    tasks.start_task({}, task_id="t")
    tasks.wait_task("t")
    tries: list[str] = []

    async def beaten(_self: Claims, task_id: str, *_: Any) -> None:
        tries.append(task_id)
        raise HeadMoved(task_id, "a", "b")

    monkeypatch.setattr(Claims, "swap", beaten)
    with pytest.raises(StoreUnavailable, match="a claim of thread 't' was overtaken"):
        tasks.delete_task("t")
    assert len(tries) == turns.BEATEN_MAX


def test_a_renewal_that_is_always_beaten(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = everstep.MemoryCheckpointer()
    claim = run_to_end(task_claims(backend.repository).take("t", None, 60.0))
    tries: list[str] = []

    async def beaten(_self: Claims, task_id: str, *_: Any) -> None:
        tries.append(task_id)
        raise HeadMoved(task_id, "a", "b")

    monkeypatch.setattr(Claims, "swap", beaten)
    with pytest.raises(StoreUnavailable, match="was overtaken"):
        run_to_end(claim.release("returned", None, begun=True))
    assert len(tries) == turns.BEATEN_MAX


def test_a_sweep_that_others_always_make_void(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[sweeping.Sweep] = []

    async def void(self: sweeping.Sweep, _driver: Any, _effort: int | None) -> bool:
        rounds.append(self)
        return False

    monkeypatch.setattr(sweeping.Sweep, "go_on", void)
    swept, removed = run_to_end(sweeping.Sweeps().run(None, "1", None, None))  # type: ignore[arg-type]
    assert not swept.finished
    assert removed == 0
    assert len({id(sweep) for sweep in rounds}) == 10


async def test_a_source_in_which_threads_are_always_made() -> None:
    class Busy(MemoryStore):
        rounds = 0

        async def list_threads(self, limit: int, offset: int, *, headless: bool = False) -> list[Stored]:
            if offset == 0:
                self.rounds += 1
                await self.commit(follow(f"new {self.rounds}", "c"))
            return await super().list_threads(limit, offset, headless=headless)

    source, target = Busy(), MemoryStore()
    await source.commit(follow("t", "c"))
    async with asyncio.timeout(60):
        await copying.copy_async(everstep.StoreBackend(source), everstep.StoreBackend(target))
    assert await target.read("t") is not None
