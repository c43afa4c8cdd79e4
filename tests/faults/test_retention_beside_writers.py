"""Retention and sweeps beside three processes that write: nothing among the newest is lost, what stays is whole.

Run as a script this file is one of those processes:

    python test_retention_beside_writers.py writer PATH NUMBER SEED ROUNDS BRANCH
    python test_retention_beside_writers.py collector PATH
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw

import everstep
from everstep import CheckpointEngine, CheckpointNotFound, SnapshotConfig, SQLiteCheckpointer
from everstep.engine import SyncEngine
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Query, Store, Stored
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.values.tree import hashes

KEEP = 20
WRITERS, LANES, ROUNDS = 3, 4, 45
PLAN_COMMITS = 64
"""A process looks at a thread again after so many commits of its own: until then it does not see others' work."""
SIZE_MAX = 1_000_000
"""The file has about 350 kB with what is kept; everything that is written would be several MB."""
SHARED, ALONE = "shared", "alone"
WHOLE_SNAPSHOT = 12
"""One in so many saves starts the conversation anew, so that it stays short."""


def config() -> SnapshotConfig:
    return SnapshotConfig(gc_policy="keep_last_n", gc_param=KEEP)


def message(who: str, n: int) -> dict[str, Any]:
    return {"id": f"{who} {n}", "role": "user", "content": f"{who} says {n}. " * (1 + n % 25)}


def whole(who: str, n: int) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Return the values that start a conversation anew."""
    return [message(who, i) for i in range(n - n % 7, n + 1)], {"by": who, "n": n, "text": f"{who} {n} " * 30}, {"n": n}


# -- the writers -------------------------------------------------------------------------------------------------------


class Lane:
    """One thread of execution, or task, of a writer. Notes what was acknowledged."""

    def __init__(self, who: str, seed: int, beside: str) -> None:
        self.who, self.rng, self.other_namespaces = who, random.Random(f"{seed} {who}"), beside
        self.n = 0
        self.acknowledged: list[tuple[str, str]] = []
        self.pinned: list[str] = []
        self.late = 0

    def next_save(self) -> tuple[str, int]:
        self.n += 1
        return self.rng.choice([SHARED, SHARED, self.other_namespaces, ALONE]), self.n

    def tags(self, kind: str, n: int) -> list[str]:
        return [f"{kind}={self.who}={n}"]


async def work(engine: CheckpointEngine, lane: Lane, rounds: int) -> None:
    """Save, branch, merge and delete; `engine` may be the blocking one, whose methods are then awaited by `Awaited`."""
    for round_ in range(rounds):
        for _ in range(6):
            await save(engine, lane, *lane.next_save())
        if round_ % 9 == 0:
            await pin(engine, lane)
        if round_ % 3 == 0:
            await branch_and_merge(engine, lane, into=lane.rng.choice([SHARED, lane.other_namespaces]))
        else:
            scrap = f"scrap {lane.who} {round_}"  # a family that comes and goes
            await engine.snapshot(scrap, *whole(lane.who, round_))
            await engine.checkpointer.delete_thread(scrap)


async def save(engine: CheckpointEngine, lane: Lane, thread_id: str, n: int) -> None:
    if lane.rng.randrange(WHOLE_SNAPSHOT) == 0:
        made = await engine.snapshot(thread_id, *whole(lane.who, n), tags=lane.tags("whole", n))
    else:
        new = {f"last {lane.who}": n}
        made = await engine.append(thread_id, [message(lane.who, n)], new, new, tags=lane.tags("more", n))
    lane.acknowledged.append((thread_id, made))


async def pin(engine: CheckpointEngine, lane: Lane) -> None:
    """Keep the last checkpoint, if it is not too late. Other processes have planned to let it go, and must not."""
    thread_id, made = lane.acknowledged[-1]
    try:
        await engine.pin(made, thread_id=thread_id)
        lane.pinned.append(made)
    except CheckpointNotFound:
        lane.late += 1


async def branch_and_merge(engine: CheckpointEngine, lane: Lane, into: str) -> None:
    while True:
        head = await engine.get_latest(into)
        assert head is not None
        try:
            branch = await engine.branch(head.metadata.checkpoint_id, lane.who)
            break
        except CheckpointNotFound:
            lane.late += 1  # so many others wrote meanwhile that it is not among the newest any more
    side = f"side {branch}"
    for _ in range(1 + lane.rng.randrange(3)):
        lane.n += 1
        new = {side: lane.n}
        await engine.append(branch, [message(lane.who, lane.n)], new, new, tags=lane.tags("more", lane.n))
    if lane.rng.random() < 0.7:
        lane.acknowledged.append((into, await engine.merge_branch(branch, into)))
    await engine.checkpointer.delete_thread(branch)


class Awaited:
    """The blocking face of an engine or backend under the names of the other, for `work`."""

    def __init__(self, sync: Any) -> None:
        self._sync = sync

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._sync, name)
        if name == "checkpointer":
            return Awaited(found)

        async def call(*args: Any, **options: Any) -> Any:
            return found(*args, **options)

        return call


def write(path: str, number: int, seed: int, rounds: int, beside: str) -> None:
    engine = everstep.open(f"sqlite:///{path}", config())
    lanes = [Lane(f"w{number}{lane}", seed, beside) for lane in range(LANES)]
    if number == 0:  # tasks of one event loop

        async def all_lanes() -> None:
            await asyncio.gather(*(work(engine, lane, rounds) for lane in lanes))
            await engine.close()

        asyncio.run(all_lanes())
    else:  # threads
        blocking: Any = Awaited(engine.sync)
        with ThreadPoolExecutor(LANES) as pool:
            for done in [pool.submit(run_to_end, work(blocking, lane, rounds)) for lane in lanes]:
                done.result()
        engine.sync.close()
    acknowledged = [made for lane in lanes for made in lane.acknowledged]
    pinned = [made for lane in lanes for made in lane.pinned]
    print(json.dumps({"acknowledged": acknowledged, "pinned": pinned, "late": sum(lane.late for lane in lanes)}))


def collect(path: str) -> None:
    """Collect and sweep until standard input ends."""
    engine = CheckpointEngine(SQLiteCheckpointer(path), config())
    blocking, store = engine.sync, store_of(engine)
    report = {"collects": 0, "checkpoints": 0, "objects": 0, "size_max": 0}
    while not select.select([sys.stdin], [], [], 0)[0]:
        report["size_max"] = max(report["size_max"], os.path.getsize(path))
        done = blocking.collect()
        for thread_id in (SHARED, ALONE):
            thread = run_to_end(store.thread(thread_id))
            if thread is not None:
                report["objects"] += run_to_end(store.sweep(thread.family)).objects
        report["collects"] += 1
        report["checkpoints"] += done.checkpoints
        report["objects"] += done.objects
    blocking.close()
    print(json.dumps(report))


def store_of(engine: CheckpointEngine) -> Store:
    """Return the blocking store of an engine."""
    backend = engine.checkpointer
    assert isinstance(backend, SQLiteCheckpointer)
    return backend.blocking.store


# -- the test ----------------------------------------------------------------------------------------------------------


def start(*args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, args)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=300)
    assert not err, err[-3000:]  # retention that fails says so in the log, which is shown there
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(out)
    return result


def test_retention_beside_three_writers(tmp_path: Path) -> None:
    path, seed = tmp_path / "shared.db", random.SystemRandom().randrange(10**6)
    print("seed", seed)
    engine = CheckpointEngine(SQLiteCheckpointer(path), config())
    sync = engine.sync
    first = sync.snapshot(SHARED, *whole("first", 1), tags=["whole=first=1"])
    sync.snapshot(ALONE, *whole("first", 1), tags=["whole=first=1"])
    beside = sync.branch(first, "beside")
    collector = start("collector", path)
    writers = [start("writer", path, number, seed, ROUNDS, beside) for number in range(WRITERS)]
    reports = [finished(writer) for writer in writers]
    collected = finished(collector)
    acknowledged = [tuple(a) for report in reports for a in report["acknowledged"]]
    pinned = {made for report in reports for made in report["pinned"]}
    print(collected, "late", [report["late"] for report in reports], "acknowledged", len(acknowledged))
    assert len(acknowledged) > 3000
    assert len(pinned) > 10
    assert collected["collects"] > 10
    assert collected["objects"] > 500
    store = store_of(engine)
    assert sorted(head.record.key.thread_id for head in run_to_end(store.list_threads(1000, 0))) == sorted(
        [SHARED, ALONE, beside]
    )
    for thread_id in (SHARED, ALONE, beside):
        ids = {made for thread, made in acknowledged if thread == thread_id}
        check_line(store, thread_id, ids, pinned, first_step=0 if thread_id == beside else 1)
        check_values(sync, store, thread_id)
    sync.collect()
    for thread_id in (SHARED, ALONE, beside):
        thread = run_to_end(store.thread(thread_id))
        assert thread is not None
        stored = everything(store, thread_id)
        free = [s for s in stored if s.seq not in thread.protected]
        assert len(free) == KEEP
        protected = {s.record.key.checkpoint_id for s in stored if s.seq in thread.protected}
        origin = {first} if thread_id == SHARED else set()  # where `other_namespaces` began
        assert protected == origin | {made for made in pinned if (thread_id, made) in acknowledged}
        check_values(sync, store, thread_id)
    again = sync.collect()
    assert (again.checkpoints, again.objects) == (0, 0)
    sync.close()
    check_file(path, collected["size_max"])


def everything(store: Store, thread_id: str) -> list[Stored]:
    """Return every checkpoint of a thread, oldest first."""
    return run_to_end(store.list_checkpoints(Query(thread_id=thread_id, hidden="also", order="oldest")))


def check_line(store: Store, thread_id: str, acknowledged: set[str], pinned: set[str], first_step: int) -> None:
    """Each commit is one step, none is used twice, and the newest and what is pinned are all there."""
    steps = Counter(int(made.removeprefix(f"ckpt-{thread_id}-").split("-")[0]) for made in acknowledged)
    last = first_step + len(acknowledged)
    assert steps == Counter(range(first_step + 1, last + 1))
    head = run_to_end(store.read(thread_id))
    assert head is not None
    assert head.stored.record.step == last
    stored = everything(store, thread_id)
    newest = [s.record for s in stored[-KEEP:]]
    assert [record.step for record in newest] == list(range(last - KEEP + 1, last + 1))
    assert {record.key.checkpoint_id for record in newest} <= acknowledged
    parents = [record.parents[0].checkpoint_id for record in newest]
    assert parents[1:] == [record.key.checkpoint_id for record in newest[:-1]]
    # After a process has looked it leaves N. Each may then add what it does not see as too many, until it looks again.
    mine = pinned & acknowledged
    assert mine <= {s.record.key.checkpoint_id for s in stored}
    assert len(stored) <= KEEP + WRITERS * (PLAN_COMMITS + LANES) + 1 + len(mine)


def check_values(sync: SyncEngine, store: Store, thread_id: str) -> None:
    """Every stored checkpoint has exactly what was saved, as far as its tags and its parents tell."""
    for stored in everything(store, thread_id):
        found = sync.get(stored.record.key.checkpoint_id, thread_id=thread_id, namespace="")
        assert found is not None
        values = found.messages, found.state, found.tools_result
        for one in found.messages:
            who, n = one["id"].split(" ")
            assert one == message(who, int(n))
        if stored.record.tags[0] == "branch":
            continue
        before = [sync.get(key.checkpoint_id, thread_id=thread_id) for key in stored.record.parents[:1]]
        if stored.record.tags[0] == "merge":
            branch = stored.record.parents[1].thread_id
            who, n = branch.split("-branch-")[-1].split("-")[0], found.state[f"side {branch}"]
            assert found.messages[-1] == message(who, n)
            mine = {f"side {branch}": n}
        else:
            kind, who, n = stored.record.tags[0].split("=")
            if kind == "whole":
                assert values == whole(who, int(n))
                continue
            assert found.messages[-1] == message(who, int(n))
            mine = {f"last {who}": int(n)}
        assert mine.items() <= found.state.items()
        assert mine.items() <= found.tools_result.items()
        for parent in before:
            if parent is None:
                continue  # retention took it
            added = len(found.messages) - len(parent.messages)
            assert added == 1 or (added > 0 and stored.record.tags[0] == "merge")
            assert found.messages[: len(parent.messages)] == parent.messages
            assert (found.state, found.tools_result) == (parent.state | mine, parent.tools_result | mine)


def check_file(path: Path, size_max: int) -> None:
    """The file is whole, holds what is needed and nothing else, and never was much bigger than that."""
    connection = apsw.Connection(str(path), vfs=sqlite_connecting.checksum_vfs())
    assert connection.pragma("integrity_check") == "ok"
    rows = connection.execute("SELECT family, hash, children FROM objects")
    objects = {(family, key): children for family, key, children in rows}
    roots = connection.execute(
        """SELECT t.family, c.children FROM checkpoints c JOIN lines l ON l.id = c.line
           JOIN threads t ON t.id = l.thread
           UNION ALL SELECT t.family, c.children FROM shared_states c JOIN threads t ON t.id = c.low"""
    )
    needed = {(family, key) for family, children in roots for key in hashes(children)}
    pending = list(needed)
    while pending:
        family, key = pending.pop()
        fresh = {(family, below) for below in hashes(objects[family, key])} - needed
        needed |= fresh
        pending += fresh
    assert objects.keys() == needed
    connection.close()
    print("bytes", path.stat().st_size, "at most", size_max)
    assert size_max < SIZE_MAX


if __name__ == "__main__":
    if sys.argv[1] == "writer":
        write(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        collect(sys.argv[2])
