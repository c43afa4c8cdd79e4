"""`make bench`: size and speed of the core, beside what it is compared with, in one run.

Times are paired: each arm runs a small block in turn, and what counts is the median of the ratios within a round.
Absolute times depend on the machine and the moment; the ratios much less.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import apsw

import everstep
from benchmarks import (
    after_many,
    durable_runs,
    finding,
    many_threads,
    on_langgraph,
    on_servers,
    operating,
    short_chats,
    writers,
)
from benchmarks import shapes as many_shapes
from benchmarks.common import KEEP_ALL, RNG, durable, files_bytes, message, paired, ratio, report, words
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Query
from everstep.values import codec, compress, tree


def open_engine(path: Path, **options: Any) -> everstep.CheckpointEngine:
    return everstep.open(f"sqlite:///{path}", KEEP_ALL, **options)


def bytes_stored(folder: Path) -> None:
    engine = open_engine(folder / "400.db").sync
    messages: list[Any] = []
    for _ in range(400):
        messages.append(message())
        engine.snapshot("t", messages, {"turn": len(messages)}, {})
    database, everything = (folder / "400.db").stat().st_size, files_bytes(folder / "400.db")
    full = sum(point.size_bytes for point in engine.list_time_travel_points("t", 1000))
    engine.close()
    report("400 steps of 1.2 kB: all files", f"{everything / 1e6:.3f} MB", "<= 1.0 MB", everything <= 1_000_000)
    report("400 steps of 1.2 kB: the database itself", f"{database / 1e6:.3f} MB", "<= 0.7 MB", database <= 700_000)
    report("  against a full copy per step", f"1/{full / everything:.0f}", "", True)


def bytes_per_step(folder: Path) -> None:
    """A window of 100 steps around each point, in a file whose WAL has been written back."""
    sizes = {}
    engine = open_engine(folder / "steps.db", synchronous="off").sync
    for step in range(1, 10_051):
        if step in (51, 151, 9_951):
            engine.close()
            sizes[step] = (folder / "steps.db").stat().st_size
            engine = open_engine(folder / "steps.db", synchronous="off").sync
        engine.append("t", [message()])
    engine.close()
    end = (folder / "steps.db").stat().st_size
    early, late = (sizes[151] - sizes[51]) / 100, (end - sizes[9_951]) / 100
    report("bytes per step at step 10,000 against step 100", f"{late / early:.2f}x", "<= 1.2x", late / early <= 1.2)
    report("  bytes per step, early and late", f"{early:.0f} / {late:.0f}", "", True)


class BareSQLite:
    """One row, one durable commit: what the disk and SQLite cost."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.execute("PRAGMA synchronous=FULL; CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)")

    def put(self, body: bytes) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO t (body) VALUES (?)", (body,))
        self._connection.execute("COMMIT")


def durable_rate(folder: Path) -> None:
    engine = open_engine(folder / "rate.db").sync
    durable(engine, BareSQLite(folder / "bare.db").put, "", "a bare one-row commit", 0.6)
    engine.close()


def many_tasks(folder: Path) -> None:
    steps = 10

    def run(engine: everstep.CheckpointEngine, tasks: int, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        async def one(name: str) -> None:
            for _ in range(steps):
                await engine.append(name, [{"role": "user", "content": text}])

        async def all_of_them() -> None:
            await asyncio.gather(*(one(f"t{n}") for n in range(tasks)))

        return lambda: loop.run_until_complete(all_of_them())

    text = words(1200)
    loop = asyncio.new_event_loop()
    durable, fast = open_engine(folder / "tasks.db"), open_engine(folder / "fast.db", synchronous="off")
    arms = {"one": run(durable, 1, loop), "64": run(durable, 64, loop), "64 off": run(fast, 64, loop)}
    seconds = paired(arms, 12)
    scale = 64 * ratio(seconds, "one", "64")
    off = ratio(seconds, "64 off", "64")
    report("64 async tasks on 64 threads against one", f"{scale:.1f}x", ">= 5x, or", scale >= 5 or off >= 0.5)
    report("  against the same with synchronous=OFF", f"{off:.2f}x", ">= 0.5x", scale >= 5 or off >= 0.5)
    loop.run_until_complete(durable.close())
    loop.run_until_complete(fast.close())
    loop.close()


def append_cost(_: Path) -> None:
    short, long = (everstep.open("memory://", KEEP_ALL).sync for _ in range(2))
    text = words(1000)
    for engine, length in ((short, 10), (long, 10_000)):
        for at in range(0, length, 500):
            numbers = range(at, min(at + 500, length))
            engine.append("t", [{"role": "user", "content": f"{n} {text}"} for n in numbers])

    def appends(engine: everstep.SyncEngine) -> Callable[[], None]:
        def run() -> None:
            for _ in range(20):
                engine.append("t", [{"role": "user", "content": text}])

        return run

    seconds = paired({"short": appends(short), "long": appends(long)}, 30)
    cost = ratio(seconds, "long", "short")
    report("append at 10,000 messages against append at 10", f"{cost:.2f}x", "<= 2x", cost <= 2)


def snapshot_cpu(folder: Path) -> None:
    engine = open_engine(folder / "cpu.db", synchronous="off").sync
    messages = [message(1000) for _ in range(1000)]
    engine.snapshot("t", messages, {}, {})
    spent = []
    for _ in range(20):
        messages[RNG.randrange(1000)] = message(1000)
        started = time.process_time()
        engine.snapshot("t", messages, {}, {})
        spent.append(time.process_time() - started)
    cpu = statistics.median(spent) * 1000
    report("snapshot of 1,000 messages of 1 kB, one of them new: CPU", f"{cpu:.2f} ms", "<= 5 ms", cpu <= 5)
    engine.close()


def loading(folder: Path) -> None:
    path = folder / "load.db"
    engine = open_engine(path).sync
    messages = [message(1000) for _ in range(1000)]
    for at in range(0, 1000, 50):
        engine.append("t", messages[at : at + 50])
    blob = compress.squeeze(codec.pack([messages, {}, {}]))
    key = tree.address(b"", compress.expand(blob))

    def from_one_blob() -> None:
        body = compress.expand(blob)
        if tree.address(b"", body) != key:
            raise ValueError("changed")
        codec.unpack(body)

    def warm() -> None:
        engine.get_latest("t")

    def cold() -> None:
        fresh = everstep.CheckpointEngine(everstep.StoreBackend(engine.checkpointer._driven.store), KEEP_ALL).sync
        fresh.get_latest("t")

    seconds = paired({"blob": from_one_blob, "warm": warm, "cold": cold}, 25)
    for arm in ("warm", "cold"):
        cost = ratio(seconds, arm, "blob")
        report(f"loading a head of 1,000 messages, {arm}, against one blob", f"{cost:.2f}x", "<= 3x", cost <= 3)
    engine.close()


def listing(folder: Path) -> None:
    engine = open_engine(folder / "list.db", synchronous="off").sync
    for _ in range(10_000):
        engine.append("t", [{"role": "user", "content": "hello"}])
    store = engine.checkpointer._driven.store
    started = time.perf_counter()
    found = run_to_end(store.list_checkpoints(Query(thread_id="t")))
    seconds = time.perf_counter() - started
    no_payload = all(stored.record.body == b"" for stored in found)
    report("listing 10,000 checkpoints reads no values", f"{seconds * 1000:.0f} ms", "no payload", no_payload)
    engine.close()


def importing(folder: Path) -> None:
    """As after an installation: modules are compiled once, and the compiled files are found."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder)

    def fresh(code: str) -> Callable[[], None]:
        def run() -> None:
            subprocess.run([sys.executable, "-c", code], check=True, env=environment)

        return run

    arms = {
        "nothing": fresh(""),
        "standard": fresh("import json, dataclasses, asyncio"),
        "everstep": fresh("import everstep"),
    }
    seconds = paired(arms, 9)
    nothing = statistics.median(seconds["nothing"])
    cost = statistics.median(
        (a - nothing) / (b - nothing) for a, b in zip(seconds["everstep"], seconds["standard"], strict=True)
    )
    report("import everstep against json + dataclasses + asyncio", f"{cost:.2f}x", "<= 3x", cost <= 3)


def going_back(folder: Path) -> None:
    """Branches and rewinds at a history of 10 and of 10,000, taking turns."""
    histories = {length: _history(folder / f"{length}.db", length) for length in (10, 10_000)}
    acts: dict[str, Callable[[everstep.SyncEngine, list[str]], Any]] = {
        "branch": lambda engine, ids: engine.branch(ids[-4], "b"),
        "rewind": lambda engine, ids: engine.rewind(ids[-4]),
    }
    for name, act in acts.items():
        seconds: dict[str, list[float]] = {"10": [], "10000": []}
        for _ in range(60):
            for length, (engine, ids) in histories.items():
                started = time.perf_counter()
                act(engine, ids)
                seconds[str(length)].append(time.perf_counter() - started)
                engine.undo("t")
        cost = statistics.median(seconds["10000"]) / statistics.median(seconds["10"])
        report(f"{name} at history 10,000 against history 10", f"{cost:.2f}x", "within noise", cost <= 1.25)
    engine, ids = histories[10_000]
    for name, act in acts.items():
        engine.close()
        before = (folder / "10000.db").stat().st_size
        engine = open_engine(folder / "10000.db").sync
        for _ in range(100):
            act(engine, ids)
            if name == "rewind":
                engine.undo("t")
        engine.close()
        added = ((folder / "10000.db").stat().st_size - before) / 100
        engine = open_engine(folder / "10000.db").sync
        what = "a rewind and its undo add" if name == "rewind" else "a branch adds"
        report(f"  {what}", f"{added:.0f} bytes", "< 2 kB", added < 2000)
    engine.close()
    histories[10][0].close()


def _history(path: Path, length: int) -> tuple[everstep.SyncEngine, list[str]]:
    with open_engine(path, synchronous="off").sync as engine:
        ids = [engine.append("t", [{"role": "user", "content": words(300)}], {"n": n}) for n in range(length)]
    return open_engine(path).sync, ids


class Counting:
    """A store that counts the objects it hands out."""

    def __init__(self, store: Any) -> None:
        self._store, self.objects = store, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def blocking(self) -> Counting:
        return self

    async def fetch(self, family: str, hashes: Any, *, below: bool = True) -> Any:
        found = await self._store.fetch(family, hashes, below=below)
        self.objects += len(found)
        return found


def touching(folder: Path) -> None:
    """Objects that a diff and a merge look at, with nothing in memory, at 10,000 messages."""
    engine = open_engine(folder / "touch.db", synchronous="off").sync
    for _ in range(100):
        engine.append("t", [message(300) for _ in range(100)], {f"key {n}": n for n in range(20)})
    before = engine.list_time_travel_points("t", 1)[0].checkpoint_id
    after = engine.append("t", [message(300)], {"key 3": "changed"})
    branch = engine.branch(before, "b")
    engine.append(branch, [message(300)], {"key 7": "theirs"})
    store = engine.checkpointer._driven.store
    acts: dict[str, Callable[[everstep.SyncEngine], Any]] = {
        "diff of neighbours": lambda cold: cold.diff(before, after),
        "merge of one key and one message": lambda cold: cold.merge_branch(branch, "t"),
    }
    for name, act in acts.items():
        counting = Counting(store)
        act(everstep.CheckpointEngine(everstep.StoreBackend(counting), KEEP_ALL).sync)
        touched = counting.objects
        report(f"{name} at 10,000 messages", f"{touched} objects", "< 100", 0 < touched < 100)
    engine.close()


def retention(folder: Path) -> None:
    """KEEP_LAST_N=100 over a window of 50 messages: snapshot 10,000 beside snapshot 200, taking turns.

    In seconds of CPU: of 10,000 commits the slowest is the one for which the disk took longest, whatever retention did.
    """
    config = everstep.SnapshotConfig(gc_param=100)
    pool = [message() for _ in range(3000)]

    def run(path: Path) -> Callable[[], float]:
        engine = everstep.open(f"sqlite:///{path}", config).sync
        turns = itertools.count()

        def step() -> float:
            turn = next(turns)
            window = [pool[n % 3000] for n in range(max(0, turn - 50), turn)]
            started = time.process_time()
            engine.snapshot("t", window, {"turn": turn}, {})
            return time.process_time() - started

        return step

    old, young = run(folder / "old.db"), run(folder / "young.db")
    old()  # opens the file
    every = [old() for _ in range(199)]
    size = files_bytes(folder / "old.db")
    every += [old() for _ in range(9_700)]
    for _ in range(150):
        young()
    pairs = [(old(), young()) for _ in range(100)]
    every += [late for late, _ in pairs]
    cost = statistics.fmean(late for late, _ in pairs) / statistics.fmean(early for _, early in pairs)
    worst, growth = max(every) / statistics.median(every), files_bytes(folder / "old.db") / size
    report("KEEP_LAST_N=100: snapshot 10,000 against snapshot 200", f"{cost:.2f}x", "<= 1.3x", cost <= 1.3)
    report("  the slowest of 10,000 against the median", f"{worst:.1f}x", "<= 20x", worst <= 20)
    report("  all files at 10,000 against those at 200", f"{growth:.2f}x", "<= 1.5x", growth <= 1.5)


def drawing(_: Path) -> None:
    nodes = [{"id": f"c{n}", "thread_id": "t", "step": n, "summary": "a step"} for n in range(100_000, 0, -1)]
    edges = [{"from": f"c{n}", "to": f"c{n + 1}"} for n in range(1, 100_000)]
    edges += [{"from": f"c{n}", "to": f"c{n + 40}"} for n in range(1, 99_000, 100)]
    found = {"thread_id": "t", "total_checkpoints": 100_000, "nodes": nodes, "edges": edges}
    started = time.perf_counter()
    everstep.draw(found)
    seconds = time.perf_counter() - started
    report("drawing 100,000 checkpoints with 990 merges", f"{seconds:.2f} s", "< 2 s", seconds < 2)


def shapes(_: Path) -> None:
    many_shapes.run()


ALL: Iterable[Callable[[Path], None]] = (
    bytes_stored, bytes_per_step, durable_rate, many_tasks, append_cost, snapshot_cpu, loading, listing, importing,
    going_back, touching, retention, after_many.after_many, finding.finding, drawing, operating.operating,
    on_servers.postgres, on_servers.valkey, writers.writers, on_langgraph.langgraph, on_langgraph.langgraph_tasks,
    on_langgraph.langgraph_branch, short_chats.short_chats, on_langgraph.langgraph_import, many_threads.import_threads,
    durable_runs.against_dbos, durable_runs.waiting_runs, shapes,
)  # fmt: skip
GROUPS = {
    "import": ("langgraph_import", "import_threads"),
    "search": ("finding",),
    "operate": ("operating",),
    "runs": ("against_dbos", "waiting_runs"),
}
"""Parts that have a name together."""


def main() -> None:
    known = [bench.__name__ for bench in ALL]
    wanted = [part for word in sys.argv[1:] for part in GROUPS.get(word, (word,))]
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        sys.exit(f"there is no part {', '.join(unknown)}; there are {', '.join([*known, *GROUPS])}")
    for bench in ALL:
        if wanted and bench.__name__ not in wanted:
            continue
        # What the parts before have left is not looked through in the middle of this one.
        gc.collect()
        gc.freeze()
        with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
            bench(Path(folder))


if __name__ == "__main__":
    main()
