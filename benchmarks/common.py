"""What the benchmarks share: messages, paired timing, one line per figure."""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep import SnapshotConfig
from everstep.values import codec

KEEP_ALL = SnapshotConfig(gc_policy="keep_all")
RNG = random.Random(1)
WORDS = ["".join(RNG.choices("abcdefghijklmnopqrstuvwxyz", k=RNG.randint(2, 10))) for _ in range(5000)]


def words(size_bytes: int) -> str:
    text = ""
    while len(text) < size_bytes:
        text += RNG.choice(WORDS) + " "
    return text[:size_bytes]


def message(size_bytes: int = 1200) -> dict[str, str]:
    return {"role": RNG.choice(("user", "assistant")), "content": words(size_bytes)}


def files_bytes(path: Path) -> int:
    """Return the size of a database with all that lies beside it under its name: its WAL and the index of that."""
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))


def report(name: str, figure: str, target: str, reached: bool) -> None:
    print(f"{'ok  ' if reached else 'MISS'} {name:<58} {figure:>16}   {target}", flush=True)


def paired(arms: dict[str, Callable[[], Any]], rounds: int, *, warm: bool = True) -> dict[str, list[float]]:
    """Return the seconds of each arm per round, the arms taking turns; with `warm` after a turn that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for arm in arms.values() if warm else ():
        arm()
    for n in range(rounds):
        for name in sorted(arms, key=lambda name: hash((name, n))):
            gc.collect()
            started = time.perf_counter()
            arms[name]()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(seconds: dict[str, list[float]], over: str, under: str) -> float:
    """Return the median over rounds of one arm's time by another's."""
    return statistics.median(a / b for a, b in zip(seconds[over], seconds[under], strict=True))


def durable(engine: Any, put: Callable[[bytes], Any], name: str, bare: str, target: float) -> None:
    """Report the rate of durable snapshots and appends against a bare write of the same bytes."""
    pool = [message() for _ in range(4000)]
    packed = [codec.pack(one) for one in pool]
    turns = itertools.count()

    def snapshots() -> None:
        """Each adds 1.2 kB, as the bare row does, to a thread that holds up to five such messages."""
        for turn in itertools.islice(turns, 20):
            start = turn // 5 * 5
            engine.snapshot("s", pool[start % 4000 : turn % 4000 + 1], {"turn": turn}, {})

    def appends() -> None:
        for turn in itertools.islice(turns, 20):
            engine.append("a", [pool[turn % 4000]])

    def rows() -> None:
        for turn in itertools.islice(turns, 20):
            put(packed[turn % 4000])

    seconds = paired({"bare": rows, "snapshot": snapshots, "append": appends}, 40)
    for arm in ("snapshot", "append"):
        rate = ratio(seconds, "bare", arm)
        report(f"{name}durable {arm} against {bare}", f"{rate:.2f}x", f">= {target}x", rate >= target)
