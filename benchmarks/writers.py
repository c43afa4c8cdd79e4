"""How long writers of one thread wait for one another, near ones and a far one. Part of `make bench`.

Each writer is a process of its own that appends to the same thread, again and again. The far one is 15 ms away: so
long a round trip takes through a proxy. What counts is the longest of a writer's appends beside its median: nobody
may be overtaken for ever, and nobody may hold up the others for long.

    python -m benchmarks.writers <url> <seconds>    is one writer: it says that it is ready, and begins when told
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import everstep
from benchmarks.common import KEEP_ALL, report
from tests.faults.proxy import Proxy
from tests.tools import servers

ROUND_TRIP_SECONDS = 0.015
SECONDS = 1 if os.environ.get("EVERSTEP_BENCH_QUICK") else 6
LONGEST_MAX = 20
"""So many medians the longest wait may take."""


class Waits(NamedTuple):
    """How long the appends of one writer took."""

    appends: int
    median: float
    longest: float

    @property
    def ratio(self) -> float:
        return self.longest / self.median


def writers(folder: Path) -> None:
    """Near writers alone, and beside a far one, on every store that several processes may share."""
    for count in (2, 4):
        _report(f"SQLite, {count} writers", _race({f"{n}": f"sqlite:///{folder}/{count}.db" for n in range(count)}))
    with servers.PostgresServer() as postgres:
        _on_server("PostgreSQL", postgres)
    with servers.ValkeyServer() as valkey:
        _on_server("Valkey", valkey)


def _on_server(name: str, server: servers.Server) -> None:
    near = {f"near {n}": server.url for n in range(4)}
    _report(f"{name}, 4 near writers", _race(near))
    with Proxy(server.port) as proxy:
        proxy.delay(ROUND_TRIP_SECONDS / 2)
        _report(f"{name}, 4 near writers and a far one", _race({**near, "far": server.url_at(proxy.port)}))


def _race(urls: Mapping[str, str]) -> dict[str, Waits]:
    """Let writers work at the same time, and return how long each of them waited, by name."""
    command = [sys.executable, "-m", "benchmarks.writers"]
    with contextlib.ExitStack() as running:
        started: dict[str, subprocess.Popen[str]] = {}
        for name, url in urls.items():
            writer = subprocess.Popen(
                [*command, url, str(SECONDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            started[name] = running.enter_context(writer)
            running.callback(writer.kill)
        for writer in started.values():
            _answer(writer)
        for writer in started.values():
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        return {name: _waits(json.loads(_answer(writer))) for name, writer in started.items()}


def _answer(writer: subprocess.Popen[str]) -> str:
    assert writer.stdout is not None
    return writer.stdout.readline()


def _waits(seconds: list[float]) -> Waits:
    return Waits(len(seconds), statistics.median(seconds), max(seconds))


def _report(name: str, found: Mapping[str, Waits]) -> None:
    for writer, waits in found.items():
        figure = f"{waits.median * 1e3:.1f} / {waits.longest * 1e3:.0f} ms"
        is_reached = waits.appends > 0 and waits.ratio < LONGEST_MAX
        what = f"{name}: {writer}, median / longest of {waits.appends}"
        report(what, figure, f"{waits.ratio:.0f}x, < {LONGEST_MAX}x", is_reached)


def write(url: str, seconds: float) -> Iterator[str]:
    """Append until the time is over, beginning when told; the last answer is how long each append took."""
    engine = everstep.open(url, KEEP_ALL).sync
    message = {"role": "user", "content": "a message of the usual length, more or less " * 5}
    engine.append("shared", [message])
    yield "ready"
    sys.stdin.readline()
    taken: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        started = time.perf_counter()
        engine.append("shared", [message])
        taken.append(time.perf_counter() - started)
    engine.close()
    yield json.dumps(taken)


if __name__ == "__main__":
    address, lasting = sys.argv[1:]
    for line in write(address, float(lasting)):
        print(line, flush=True)
