"""Durable runs beside DBOS: a step, a start, a fork and a resume, durable on both sides. Part of `make bench`.

DBOS gets an environment of its own, made here from the package registry. Both sides run plain functions in processes of
their own that take turns, each with a new database; what counts is the median of the ratios within a round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import everstep
from benchmarks.common import report
from tests.tools import servers

DBOS = "dbos==3.3.0"
STEPS = 300
WORDS = 850
"""In the large results: about 4 kB, what a tool or a model answers."""
ROUNDS = 5
WAITING = 1_000


def against_dbos(folder: Path) -> None:
    """Report both on SQLite and on PostgreSQL."""
    python = _environment(folder)
    numbers = iter(range(1_000_000))
    _compare("SQLite", lambda: f"sqlite:///{folder}/{next(numbers)}.db", python, step=3.0)
    with servers.PostgresServer() as server:
        _compare("PostgreSQL", lambda: _new_database(server.url, next(numbers)), python, step=2.0)


def _environment(folder: Path) -> str:
    subprocess.run([sys.executable, "-m", "venv", folder / "dbos"], check=True)
    python = folder / "dbos/bin/python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", DBOS, "psycopg[binary]"], check=True, stderr=subprocess.DEVNULL
    )
    return str(python)


def _new_database(url: str, number: int) -> str:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE bench_{number}".encode())
    return f"{url.rpartition('/')[0]}/bench_{number}"


def _compare(name: str, new_url: Callable[[], str], python: str, step: float) -> None:
    ratios: dict[str, list[float]] = {"step": [], "start": [], "fork": [], "large_fork": [], "resume": []}
    for _ in range(ROUNDS):
        theirs = _measured(
            [python, str(Path(__file__).with_name("against_dbos.py")), new_url(), str(STEPS), str(WORDS)]
        )
        ours = _measured([sys.executable, "-m", "benchmarks.durable_runs", new_url(), str(STEPS), str(WORDS)])
        for what, found in ratios.items():
            found.append(theirs[what] / ours[what])
    targets = {"step": step, "start": 0.0, "fork": 10.0, "large_fork": 10.0, "resume": 1.0}
    texts = {
        "step": "a step",
        "start": "a run without steps",
        "fork": f"a fork at step {STEPS}, results of 20 bytes",
        "large_fork": f"a fork at step {STEPS}, results of 4 kB",
        "resume": f"fork and resume of {STEPS} recorded steps",
    }
    for what, found in ratios.items():
        rate = statistics.median(found)
        target = f">= {targets[what]:g}x" if targets[what] else ""
        report(f"{name}: {texts[what]}, faster than DBOS", f"{rate:.1f}x", target, rate >= targets[what])


def _measured(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def waiting_runs(folder: Path) -> None:
    """Report what many runs cost that wait for an answer."""
    engine = everstep.open(f"sqlite:///{folder}/waiting.db", synchronous="off").sync

    @engine.durable
    def ask(run: everstep.SyncRun, number: int) -> Any:
        return run.ask(f"Is {number} fine?")

    threads = files = 0
    for number in range(WAITING):
        ask.start(number, thread_id=f"run {number}")._thread.join()
        if number == 0:  # what the first one needs is the engine's own
            threads = threading.active_count()
            files = len(os.listdir("/proc/self/fd"))
    found = len(engine.runs("waiting"))
    more = threading.active_count() - threads + max(0, len(os.listdir("/proc/self/fd")) - files)
    report(f"{found} waiting runs: threads and open files", str(more), "0", found == WAITING and more <= 0)
    engine.close()


def _work(number: int, words: int) -> dict[str, Any]:
    return {"number": number, "text": " ".join([str((number + 7) * word % 9973) for word in range(words)])}


def _ours(url: str, steps: int, words: int) -> None:
    """Measure our side, in a process of its own."""
    engine = everstep.open(url).sync

    @engine.durable
    def flow(run: everstep.SyncRun, steps: int, words: int) -> int:
        for number in range(steps):
            run.step(_work, number, words)
        return steps

    def seconds(act: Callable[[], Any]) -> float:
        started = time.perf_counter()
        act()
        return time.perf_counter() - started

    def fork(thread_id: str) -> Callable[[], str]:
        at = engine.list_time_travel_points(thread_id, 2)[1].checkpoint_id
        return lambda: engine.branch(at, "fork")

    flow(10, 0)
    found = {"step": seconds(lambda: flow(steps, 0, thread_id="small results")) / steps}
    found["start"] = min([seconds(lambda: flow(0, 0)) for _ in range(10)])
    fork_small = fork("small results")
    found["fork"] = min([seconds(fork_small) for _ in range(5)])
    found["resume"] = seconds(lambda: engine.resume(fork_small()))
    flow(steps, words, thread_id="large results")
    fork_large = fork("large results")
    found["large_fork"] = min([seconds(fork_large) for _ in range(5)])
    print(json.dumps(found))
    engine.close()


if __name__ == "__main__":
    _ours(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
