"""LangGraph savers side by side: bytes, time per turn, reads, many at once, moving in. Part of `make bench`.

One chat is saved by all of them in lockstep, each in a process of its own: a turn of each, in an order that changes
from turn to turn, so that what disturbs the machine disturbs all alike. Ratios are taken within a turn. "Turn 400" is
five rounds of 40 turns with turn 400 in the middle of the third; the figure is the median of the rounds' medians. Bytes
are taken to turn 1,000, of PostgresSaver to turn 400: the rest would take longer than all else here.

Every database waits for the disk: SQLite in WAL with synchronous=FULL, PostgreSQL with its defaults. Bytes of SQLite
are those of all files, the WAL included; of PostgreSQL those of tables, indexes and TOAST after a VACUUM.

With EVERSTEP_BENCH_QUICK set, everything is a tenth as long and the plots stay in the temporary folder: this shows that
the benchmark works, not how anything compares.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks import plots
from benchmarks.common import files_bytes, ratio, report
from benchmarks.savers import chat, closing_saver, everstep_saver, schema, take_turn
from everstep.langgraph import HarnessCheckpointer, ImportReport, import_langgraph
from tests.tools import servers

QUICK = bool(os.environ.get("EVERSTEP_BENCH_QUICK"))
SCALE = 10 if QUICK else 1
ROUND = 40 // SCALE
ROUNDS = 5
MARK = 400 // SCALE
END_OF_ROUNDS = MARK + ROUND * ROUNDS // 2
LAST = 1000 // SCALE
SIZES_AT = [turn // SCALE for turn in (100, 200, 300, 400, 600, 800, 1000)]
TIMES_AT = [turn // SCALE for turn in (50, 100, 200, 300, 400)]
PLOTS = Path(__file__).parent.parent / "docs" / "plots"

STOCK, OURS = "SqliteSaver", "Everstep, SQLite"
STOCK_PG, OURS_PG = "PostgresSaver", "Everstep, PostgreSQL"
DELTA, MEMORY, FLOOR = "SqliteSaver + DeltaChannel", "InMemorySaver", "references only"


@dataclass
class Arm:
    """A process with a saver and its chat, and what was measured of it."""

    process: subprocess.Popen[str]
    size: Callable[[], int] | None = None
    seconds: list[float] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)

    def take_turn(self, turn: int) -> None:
        if not self.process.stdin or not self.process.stdout:
            raise ValueError("the process needs pipes")
        print(turn, file=self.process.stdin, flush=True)
        self.seconds.append(json.loads(self.process.stdout.readline()))


def langgraph(folder: Path) -> None:
    """One chat, saved by all: bytes, time per turn, reads."""
    with servers.PostgresServer() as server, contextlib.ExitStack() as stack:
        arms = _arms(folder, server, stack)
        _lockstep(arms, range(MARK))
        _reads(folder)
        _lockstep(arms, range(MARK, END_OF_ROUNDS))
        _lockstep({name: arms[name] for name in (STOCK, DELTA, OURS, OURS_PG)}, range(END_OF_ROUNDS, LAST))
        _report_bytes(arms)
        _report_times(arms)
        _draw(arms, folder if QUICK else PLOTS)


def _arms(folder: Path, server: servers.PostgresServer, stack: contextlib.ExitStack) -> dict[str, Arm]:
    def file(kind: str, name: str, scheme: str = "") -> Arm:
        return Arm(start(kind, f"{scheme}{folder / name}"), lambda: files_bytes(folder / name))

    def tables(kind: str) -> Arm:
        url = _database(server, kind)
        return Arm(start(kind, url), lambda: _tables_bytes(url))

    def start(kind: str, place: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            _command("turns", kind, place), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        stack.callback(process.__exit__, None, None, None)  # closes the pipes, so that it ends, and waits for that
        return process

    return {
        STOCK: file("sqlite", "stock.db"), DELTA: file("delta", "delta.db"),
        OURS: file("everstep", "everstep.db", "sqlite:///"),
        STOCK_PG: tables("postgres"), OURS_PG: tables("everstep"),
        MEMORY: Arm(start("memory", "")), FLOOR: Arm(start("floor", "")),
    }  # fmt: skip


def _database(server: servers.PostgresServer, kind: str) -> str:
    """Return the URL of a new database."""
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {kind}_saver".encode())
    return server.url.removesuffix("/postgres") + f"/{kind}_saver"


def _tables_bytes(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM")
        row = connection.execute("SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables").fetchone()
    return int(row[0]) if row else 0


def _lockstep(arms: dict[str, Arm], turns: Iterable[int]) -> None:
    order = list(arms.values())
    for turn in turns:
        random.Random(turn).shuffle(order)
        for arm in order:
            arm.take_turn(turn)
        if turn + 1 in SIZES_AT:
            for arm in order:
                if arm.size:
                    arm.sizes[turn + 1] = arm.size()


# -- reads -------------------------------------------------------------------------------------------------------------


def _reads(folder: Path) -> None:
    """At turn 400, by processes that did not write."""
    stock, ours = str(folder / "stock.db"), f"sqlite:///{folder / 'everstep.db'}"
    found = _answer("reads", "2" if QUICK else "3", stock, ours)
    first: dict[str, list[list[float]]] = {"stock": [], "everstep": []}
    for _ in range(2 if QUICK else 7):
        first["stock"].append(_answer("first", "sqlite", stock))
        first["everstep"].append(_answer("first", "everstep", ours))
    warm = ratio(found["get_tuple"], "stock", "everstep")
    report(
        f"LangGraph: get_tuple of {2 * MARK} messages against SqliteSaver", f"{warm:.1f}x", ">= 3x, aim 5x", warm >= 3
    )
    cold, opened = (
        ratio({name: [one[n] for one in every] for name, every in first.items()}, "stock", "everstep") for n in (0, 1)
    )
    report("  the first one in a new process", f"{cold:.2f}x", ">= 1x, aim 2x", cold >= 1)
    report("  with the opening of the saver", f"{opened:.2f}x", "", True)
    history = ratio(found["history"], "stock", "everstep")
    report(
        f"LangGraph: history of {3 * MARK:,} checkpoints against SqliteSaver",
        f"{history:.1f}x",
        ">= 3x, aim 5x",
        history >= 3,
    )
    share = ratio(found["history"], "listing", "everstep")
    report("  metadata of them alone, as a share of our history", f"{share:.1%}", "< 2%", share < 0.02)


def _answer(*arguments: str) -> Any:
    return json.loads(subprocess.run(_command(*arguments), check=True, stdout=subprocess.PIPE).stdout)


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.one_process", *arguments]


# -- figures -----------------------------------------------------------------------------------------------------------


def _report_bytes(arms: dict[str, Arm]) -> None:
    sizes = {name: arm.sizes for name, arm in arms.items()}
    for ours, stock, turn, target in (
        (OURS, STOCK, MARK, 180), (OURS_PG, STOCK_PG, MARK, 90), (OURS, STOCK, LAST, 500),
    ):  # fmt: skip
        part = sizes[stock][turn] / sizes[ours][turn]
        report(f"LangGraph: bytes at {turn:,} turns against {stock}", f"1/{part:.0f}", f"<= 1/{target}", part >= target)
        report("  of all files or tables", f"{_mb(sizes[ours][turn])} / {_mb(sizes[stock][turn])}", "", True)
    # Before that the log gets shorter while the file grows: see `stores/sqlite/wal.py`.
    settled = SIZES_AT[1]
    early, late = _growth(sizes[OURS], settled, MARK), _growth(sizes[OURS], MARK, LAST)
    report(
        f"  bytes per turn, {MARK} to {LAST:,} against {settled} to {MARK}",
        f"{late / early:.2f}x",
        "<= 1.1x",
        late <= 1.1 * early,
    )
    for turn in (MARK, LAST):
        share = sizes[OURS][turn] / sizes[DELTA][turn]
        report(
            f"  against DeltaChannel's {_mb(sizes[DELTA][turn])} at {turn:,} turns", f"{share:.2f}x", "< 1x", share < 1
        )


def _growth(sizes: dict[int, int], start: int, end: int) -> float:
    return (sizes[end] - sizes[start]) / (end - start)


def _report_times(arms: dict[str, Arm]) -> None:
    faster = {name: _ratio_at_mark(arms[name], arms[OURS]) for name in (STOCK, MEMORY, DELTA)}
    name = f"LangGraph: time per turn at turn {MARK} against"
    report(f"{name} {STOCK}", f"{faster[STOCK]:.2f}x faster", ">= 2.5x, aim 4x", faster[STOCK] >= 2.5)
    report(f"{name} {MEMORY}", f"{faster[MEMORY]:.2f}x faster", ">= 1.5x, aim 2.5x", faster[MEMORY] >= 1.5)
    slower = _ratio_at_mark(arms[OURS], arms[FLOOR])
    report("  against a saver that keeps references only", f"{slower:.2f}x", "<= 4x, aim 2x", slower <= 4)
    report(f"  against {DELTA}", f"{faster[DELTA]:.2f}x faster", "", True)
    servers_ratio = _ratio_at_mark(arms[STOCK_PG], arms[OURS_PG])
    report(f"  on PostgreSQL, against {STOCK_PG}", f"{servers_ratio:.2f}x faster", "", True)
    for name, arm in arms.items():
        report(f"  {name}", f"{statistics.median(_rounds(arm)[ROUNDS // 2]) * 1000:.1f} ms", "", True)


def _rounds(arm: Arm) -> list[list[float]]:
    start = END_OF_ROUNDS - ROUND * ROUNDS
    return [arm.seconds[at : at + ROUND] for at in range(start, END_OF_ROUNDS, ROUND)]


def _ratio_at_mark(over: Arm, under: Arm) -> float:
    rounds = zip(_rounds(over), _rounds(under), strict=True)
    return statistics.median(ratio({"over": a, "under": b}, "over", "under") for a, b in rounds)


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.3g} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.3g} MB"


# -- plots -------------------------------------------------------------------------------------------------------------

_LOOKS: dict[str, dict[str, Any]] = {
    STOCK: {"colour": "red"}, STOCK_PG: {"colour": "purple"}, MEMORY: {"colour": "brown"}, DELTA: {"colour": "green"},
    FLOOR: {"colour": "grey"}, OURS: {"colour": "blue", "bold": True}, OURS_PG: {"colour": "blue", "dashed": True},
}  # fmt: skip


def _draw(arms: dict[str, Arm], folder: Path) -> None:
    def series(points: Callable[[Arm], Sequence[tuple[float, float]]]) -> list[plots.Series]:
        found = {name: points(arm) for name, arm in arms.items()}
        return [plots.Series(name, line, **_LOOKS[name]) for name, line in found.items() if line]

    def milliseconds(arm: Arm) -> list[tuple[float, float]]:
        return [(at, statistics.median(arm.seconds[max(0, at - 20) : at]) * 1000) for at in TIMES_AT]

    sizes = plots.Plot(
        title="Bytes stored by a LangGraph chat",
        description=f"Size of the database over the turns of a chat, on a logarithmic scale. {_in_words(arms)}",
        x_title="turns, each of one user message of 30 words and one model message of 100",
        series=series(lambda arm: list(arm.sizes.items())),
        show=lambda value: _mb(value) if value >= 1e6 else f"{value / 1e3:g} kB",
        logarithmic=True,
    )
    times = plots.Plot(
        title="Time per turn of a LangGraph chat",
        description="Median time of 20 turns up to turns 50, 100, 200, 300 and 400, in milliseconds, for each saver.",
        x_title="turns",
        series=series(milliseconds),
        show=lambda value: f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms",
    )
    plots.write(sizes, folder, "langgraph-bytes")
    plots.write(times, folder, "langgraph-time")


def _in_words(arms: dict[str, Arm]) -> str:
    at = {name: max(arm.sizes) for name, arm in arms.items() if arm.sizes}
    return " ".join(f"{name}: {_mb(arms[name].sizes[turn])} after {turn:,} turns." for name, turn in at.items())


# -- many at once ------------------------------------------------------------------------------------------------------


def langgraph_tasks(folder: Path) -> None:
    """Many LangGraph threads that put at once, each a chain of small checkpoints."""
    rounds = 3 if QUICK else 10
    rate = asyncio.run(_on_sqlite(folder, rounds))
    report("LangGraph: 64 threads put at once against AsyncSqliteSaver", f"{rate:.1f}x", ">= 5x", rate >= 5)
    with servers.PostgresServer() as server:
        rate = asyncio.run(_on_postgres(_database(server, "postgres"), _database(server, "everstep"), rounds))
    report("LangGraph: 8 tasks, a pool of 10, against AsyncPostgresSaver", f"{rate:.1f}x", ">= 3x", rate >= 3)


def langgraph_branch(folder: Path) -> None:
    """A branch of a thread with 1,200 checkpoints: at its head, in the middle, at its beginning."""
    with contextlib.closing(HarnessCheckpointer.from_url(f"sqlite:///{folder / 'branch.db'}")) as saver:
        graph = chat(saver)
        for turn in range(MARK):
            take_turn(graph, turn)
        engine = saver.engine.sync
        points = engine.list_time_travel_points("t", limit=3 * MARK)
        branches = 30
        objects, seconds = _objects(folder / "branch.db"), list[float]()
        for n in range(branches):
            point = points[(0, len(points) // 2, -1)[n % 3]]
            started = time.perf_counter()
            engine.branch(point.checkpoint_id, f"branch {n}", thread_id="t")
            seconds.append(time.perf_counter() - started)
        added = _objects(folder / "branch.db") - objects
    name = f"LangGraph: a branch of {len(points):,} checkpoints"
    report(name, f"{statistics.median(seconds) * 1e3:.1f} ms", "< 10 ms", statistics.median(seconds) < 0.01)
    report(f"{name}, values it copies", f"{added}", "0", added == 0)


def _objects(path: Path) -> int:
    """Return how many objects a file holds: values, and parts of them."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM objects").fetchone()
    return int(count)


async def _on_sqlite(folder: Path, rounds: int) -> float:
    async with aiosqlite.connect(folder / "stock.db") as connection:
        await connection.execute("PRAGMA synchronous=FULL")
        stock = AsyncSqliteSaver(connection)
        async with _ours(f"sqlite:///{folder / 'everstep.db'}") as ours:
            return await _race(stock, ours, tasks=64, steps=5, rounds=rounds)


async def _on_postgres(stock_url: str, our_url: str, rounds: int) -> float:
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(stock_url, max_size=10, kwargs=options, open=False) as pool:
        stock = AsyncPostgresSaver(pool)  # type: ignore[arg-type]  # rows are dictionaries by the options above
        await stock.setup()
        async with _ours(our_url, max_size=10) as ours:
            return await _race(stock, ours, tasks=8, steps=20, rounds=rounds)


@contextlib.asynccontextmanager
async def _ours(url: str, **options: Any) -> AsyncIterator[Any]:
    async with everstep_saver(url, **options) as saver:
        yield saver


async def _race(stock: Any, ours: Any, *, tasks: int, steps: int, rounds: int) -> float:
    """Return how many times faster ours is; both go on with the same threads from round to round."""
    seconds: dict[str, list[float]] = {"stock": [], "ours": []}
    configs = {name: [_start(n) for n in range(tasks)] for name in seconds}

    async def chain(saver: Any, config: Any) -> Any:
        for step in range(steps):
            checkpoint = empty_checkpoint() | {"channel_values": {"n": step}, "channel_versions": {"n": str(step)}}
            metadata = {"source": "loop", "step": step, "parents": {}}
            config = await saver.aput(config, checkpoint, metadata, {"n": str(step)})
        return config

    for n in range(rounds + 1):
        for name, saver in (("stock", stock), ("ours", ours))[:: 1 if n % 2 else -1]:
            gc.collect()
            started = time.perf_counter()
            configs[name] = await asyncio.gather(*(chain(saver, config) for config in configs[name]))
            seconds[name].append(time.perf_counter() - started)
    return ratio({name: every[1:] for name, every in seconds.items()}, "stock", "ours")


def _start(number: int) -> dict[str, Any]:
    return {"configurable": {"thread_id": f"t{number}", "checkpoint_ns": ""}}


# -- moving in ---------------------------------------------------------------------------------------------------------


def langgraph_import(folder: Path) -> None:
    """Threads of the stock savers brought over: how fast, and how large they are then."""
    _write_chat("sqlite", str(folder / "stock.db"))
    _write_chat("everstep", f"sqlite:///{folder / 'own.db'}")
    _report_import("SqliteSaver", str(folder / "stock.db"), folder, "sqlite", 20)
    own, imported = (files_bytes(folder / name) for name in ("own.db", "sqlite.db"))
    report("  bytes against what the saver writes itself", f"{imported / own:.2f}x", "<= 1.2x", imported <= 1.2 * own)
    report("  of all files, before and after", f"{_mb(files_bytes(folder / 'stock.db'))} / {_mb(imported)}", "", True)
    with servers.PostgresServer() as server:
        url = _database(server, "postgres")
        _write_chat("postgres", url)
        _report_import("PostgresSaver", url, folder, "postgres")


def _write_chat(kind: str, place: str) -> None:
    with closing_saver(kind, place) as saver:
        graph = chat(saver, schema(kind))
        for turn in range(MARK):
            take_turn(graph, turn)


def _report_import(name: str, source: str, folder: Path, kind: str, target: float = 0) -> None:
    def run(n: int, verify: bool) -> ImportReport:
        target = f"sqlite:///{folder}/{kind}{f'-{n}{verify}' if n else ''}.db"
        return import_langgraph(source, target, quiet=True, verify=verify)

    rounds = [(run(2 * n, True), run(2 * n + 1, False)) for n in range(3)]
    with_verify, without = (statistics.median(one[arm].mb_per_second for one in rounds) for arm in (0, 1))
    size = f"{_mb(rounds[0][0].bytes_read)} of {name}"
    wanted = f">= {target} MB/s" if target else ""
    report(f"LangGraph: import of {size}", f"{without:.0f} MB/s", wanted, without >= target)
    report("  and verified", f"{with_verify:.0f} MB/s", wanted, with_verify >= target)
