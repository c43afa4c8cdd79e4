"""What it costs to look after a store: verify, export and import, increments, a page of rows. Part of `make bench`."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everstep
from benchmarks.common import KEEP_ALL, message, paired, ratio, report
from everstep.views import history

THREADS = 20
STEPS = 300
ROUNDS = 5
LONG = 5_000
PAGE = 200


def operating(folder: Path) -> None:
    """20 threads of 300 steps with 1.2 kB each, in a SQLite file."""
    path = folder / "agent.db"
    with everstep.open(path, KEEP_ALL, synchronous="off").sync as engine:
        for name, _ in itertools.product(range(THREADS), range(STEPS)):
            engine.append(f"t{name}", [message()], {"name": name})
    _verify(path)
    _through_a_file(path, folder)
    _increment(folder)
    _rows(folder)


def _verify(path: Path) -> None:
    seconds: list[float] = []
    with everstep.open(path).sync as engine:
        for _ in range(ROUNDS):
            started = time.process_time()
            found = engine.verify()
            seconds.append(time.process_time() - started)
    median = statistics.median(seconds)
    rate = path.stat().st_size / 1e6 / median
    report("verify, of the file's bytes", f"{rate:.0f} MB/s", ">= 50 MB/s", rate >= 50)
    report("  of the bytes of values and metadata in it", f"{found.bytes / 1e6 / median:.0f} MB/s", "", True)


def _through_a_file(path: Path, folder: Path) -> None:
    numbers = itertools.count()
    exported = folder / "all.everstep"
    everstep.export_threads(path, exported)

    def new(suffix: str) -> Path:
        return folder / f"{next(numbers)}.{suffix}"

    arms: dict[str, Callable[[], Any]] = {
        "copy": lambda: everstep.copy(path, new("db")),
        "export": lambda: everstep.export_threads(path, new("everstep")),
        "import": lambda: everstep.import_threads(exported, new("db")),
    }
    seconds = paired(arms, ROUNDS)
    for arm in ("export", "import"):
        speed = ratio(seconds, "copy", arm)
        report(f"{arm}: speed against a copy", f"{speed:.2f}x", ">= 0.5x", speed >= 0.5)


def _increment(folder: Path) -> None:
    engine = everstep.open("memory://", KEEP_ALL).sync
    for step in (100, 1_000):
        while len(engine.list_time_travel_points("t", 2_000)) < step:
            engine.append("t", [message() for _ in range(1)])
        everstep.backup(engine, folder / "backups")
        engine.append("t", [message()])
        size = everstep.backup(engine, folder / "backups").bytes
        report(f"increment of one step after {step:,}", f"{size:,} bytes", "<= 2,000 bytes", size <= 2_000)


def _rows(folder: Path) -> None:
    """A page in the middle of a history, as the server sends it."""
    path = folder / "long.db"
    with everstep.open(path, KEEP_ALL, synchronous="off").sync as filled:
        for n in range(LONG):
            filled.append("t", [message(200)], {"n": n})

    async def pages() -> list[float]:
        spent: list[float] = []
        async with everstep.open(path, KEEP_ALL) as engine:
            cursor = None
            while True:
                started = time.process_time()
                page = await history.page(engine, "t", limit=PAGE, cursor=cursor)
                json.dumps(page)
                spent.append((time.process_time() - started) * 1000)
                cursor = page["cursor"]
                if cursor is None:
                    return spent

    milliseconds = statistics.median(asyncio.run(pages()))
    report(f"a page of {PAGE} rows: CPU", f"{milliseconds:.0f} ms", "<= 50 ms", milliseconds <= 50)
