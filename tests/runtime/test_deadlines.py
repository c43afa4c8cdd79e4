"""How long a call may take: a deadline that begins at the door and holds for everything inside."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import pytest

import everstep
from everstep import CommitUnknown, SnapshotConfig, StoreUnavailable
from everstep.runtime import deadlines
from everstep.runtime.blocking import run_to_end
from everstep.runtime.calls import Figures, public_call
from everstep.stores.memory import MemoryStore
from everstep.stores.postgres.store import PostgresStore
from everstep.stores.redis.store import RedisStore
from everstep.stores.sqlite.queue import CommitQueue, Job
from everstep.stores.sqlite.store import SQLiteStore
from tests.conftest import OneFace
from tests.faults.proxy import Proxy
from tests.tools import servers

LIMIT = 1.0
PATIENCE = 30.0
"""A call with that limit that has not ended by then does not end in time."""


class Watching(MemoryStore):
    """Notes when each call of the store would have to end."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    @property
    def limit_seconds(self) -> Any:
        return 100.0

    def __getattribute__(self, name: str) -> Any:
        if name in ("read", "commit", "thread", "operations", "find", "count", "list_checkpoints"):
            self.ends.append(deadlines.end_of(1e6))
        return super().__getattribute__(name)


async def test_one_deadline_holds_for_every_call_of_the_store(face: str) -> None:
    store = Watching()
    engine = OneFace(everstep.CheckpointEngine(everstep.StoreBackend(store)), face)
    first = await engine.append("t", [{"role": "user", "content": "one"}])
    branch = await engine.branch(first, "b")
    await engine.append(branch, [{"role": "user", "content": "two"}])
    await engine.append("t", state={"k": 1})
    before = time.monotonic()
    store.ends.clear()
    await engine.merge_branch(branch, "t")
    assert len(store.ends) > 3
    assert len(set(store.ends)) == 1, "each call of the store had a deadline of its own"
    assert before < store.ends[0] - 100 <= time.monotonic()


class Door:
    """Something with a limit."""

    limit_seconds = 100.0

    def __init__(self, inner: Door | None = None, limit_seconds: float = 100.0) -> None:
        self._inner, self.limit_seconds = inner, limit_seconds
        self.figures = Figures("door")

    @public_call("end")
    async def end(self) -> float:
        return await self._inner.end() if self._inner is not None else deadlines.end_of(1e9)

    @public_call("leave")
    async def leave_behind(self) -> asyncio.Task[float]:
        """Start a task, and do not wait for it."""

        async def later() -> float:
            await asyncio.sleep(0)
            return deadlines.end_of(1e9)

        return asyncio.create_task(later())


async def test_the_time_of_a_function_of_the_callers_does_not_count(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that decides a merge may ask a model, or a person, and take longer than the store may."""
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    store = Watching()
    engine = OneFace(everstep.CheckpointEngine(everstep.StoreBackend(store)), face)
    first = await engine.append("t", state={"k": 0})
    branch = await engine.branch(first, "b")
    await engine.append(branch, state={"k": 1})
    await engine.append("t", state={"k": 2})

    def decide(_: everstep.Conflict) -> int:
        clock[0] += 5000
        store.ends.clear()
        return 3

    await engine.merge_branch(branch, "t", resolve=decide)
    assert store.ends
    assert set(store.ends) == {1000.0 + 5000 + 100}


def test_the_outermost_call_sets_the_deadline() -> None:
    assert run_to_end(Door(Door(limit_seconds=1000)).end()) < time.monotonic() + 101
    assert deadlines.end_of(1e9) > time.monotonic() + 1e8, "the deadline outlived its call"


async def test_a_task_is_not_bound_by_the_deadline_of_a_call_that_has_ended() -> None:
    task = await Door().leave_behind()
    assert await task > time.monotonic() + 1e8


@pytest.fixture(params=("postgres", "redis"))
def far(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Proxy]]:
    """A store behind a proxy."""
    if request.param == "postgres":
        servers.clear_postgres()
        url = servers.postgres()
    else:
        url = servers.redis()
    port = urlsplit(url).port
    assert port is not None
    with Proxy(port) as proxy:
        away = url.replace(f":{port}", f":{proxy.port}")
        store: Any
        if request.param == "postgres":
            store = PostgresStore(away, timeout_seconds=PATIENCE)
        else:
            store = RedisStore(away, key_prefix=servers.redis_prefix(), timeout_seconds=PATIENCE)
        yield store, proxy
        proxy.heal()
        run_to_end(store.blocking.close())


async def test_a_call_of_many_round_trips_ends_in_time_as_a_whole(far: tuple[Any, Proxy], face: str) -> None:
    """Each of its calls of the store would end in time by itself."""
    store, proxy = far
    whole = everstep.CheckpointEngine(everstep.StoreBackend(store), SnapshotConfig())
    engine = OneFace(whole, face)
    first = await engine.append("t", [{"role": "user", "content": "one"}])
    branch = await engine.branch(first, "b")
    await engine.append(branch, [{"role": "user", "content": "two"}])
    await engine.append("t", state={"k": 1})
    whole._limit = LIMIT  # only now, since a slow machine may need longer to connect
    proxy.delay(LIMIT * 0.045)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await engine.merge_branch(branch, "t")
    assert time.monotonic() - began < PATIENCE
    proxy.heal()
    whole._limit = PATIENCE
    assert await engine.merge_branch(branch, "t")


async def test_a_locked_file_is_waited_for_until_the_end_of_the_call(tmp_path: Path, face: str) -> None:
    """Waits of one call count together."""
    path = tmp_path / "a.db"
    store = SQLiteStore(path, busy_timeout_seconds=2 * PATIENCE)
    run_to_end(everstep.StoreBackend(store).blocking.put(_checkpoint()))

    class Short(Door):
        @public_call("write")
        async def write(self) -> None:
            used = store if face == "async" else store.blocking
            await everstep.StoreBackend(used).put(_checkpoint("other"))

    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await Short(limit_seconds=0.1).write()
    assert time.monotonic() - began < PATIENCE
    other.execute("ROLLBACK")
    other.close()
    await Short(limit_seconds=100).write()
    await store.blocking.close()


def test_a_job_with_time_left_outlives_one_of_its_batch_that_has_none(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    run_to_end(store.blocking.thread("t"))
    database = store._database.get()
    other = apsw.Connection(str(store.path))
    other.execute("BEGIN IMMEDIATE")
    late = Job(lambda _: "late", "t", time.monotonic())
    patient = Job(lambda _: "done", "t", time.monotonic() + 100)
    free = threading.Timer(0.05, lambda: other.execute("ROLLBACK"))
    free.start()
    database._run_batch([late, patient])
    free.join()
    assert isinstance(late.error, StoreUnavailable)
    assert patient.outcome() == "done"
    other.close()
    run_to_end(store.blocking.close())


def test_a_job_that_waits_for_itself_ends() -> None:
    """As one that is given to the queue by the work of another one."""
    found: list[Exception] = []

    def run(batch: Any) -> None:
        for job in batch:
            job.finish(job.work(None))

    queue = CommitQueue(run, lambda: pytest.fail("there is no worker"))

    def outer(_: Any) -> str:
        try:
            queue.do(Job(lambda _: "inner", "t", time.monotonic() - 1))
        except StoreUnavailable as exc:
            found.append(exc)
        return "outer"

    assert queue.do(Job(outer, "t")) == "outer"
    assert len(found) == 1
    assert queue.do(Job(lambda _: "next", "t")) == "next"


def _checkpoint(name: str = "one") -> everstep.Checkpoint:
    metadata = everstep.CheckpointMetadata(thread_id="t", checkpoint_id=name, step=1)
    return everstep.Checkpoint(metadata, [], {}, {}, "")


def test_a_lost_answer_that_nobody_has_time_to_look_for_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error that says that nothing was written."""
    store = RedisStore(servers.redis(), key_prefix=servers.redis_prefix())
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store)).sync
    engine.append("t", [{"role": "user", "content": "one"}])

    def lost(_args: Any, _bucket: int, _thread_id: str, draft: Any, drafts: list[Any]) -> list[bytes]:
        drafts.append(draft)
        return [b"stale", b"", b"", b"", b""]

    def late(*_args: Any, **_options: Any) -> None:
        raise StoreUnavailable("no time left")

    monkeypatch.setattr(store._server, "_sent", lost)
    monkeypatch.setattr(store._server, "load", late)
    with pytest.raises(CommitUnknown) as unknown:
        engine.append("t", [{"role": "user", "content": "two"}])
    assert unknown.value.checkpoint_id is not None
    run_to_end(store.blocking.close())
