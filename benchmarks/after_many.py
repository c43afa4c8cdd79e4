"""What operations cost after many others: at N and at 10 N, taking turns. Part of `make bench`.

Each figure is how many times longer the same act takes after ten times as much was done before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import everstep
from benchmarks.common import KEEP_ALL, paired, ratio, report
from tests.tools import servers

Opener = Callable[[everstep.SnapshotConfig], everstep.SyncEngine]
HELLO = [{"role": "user", "content": "hello"}]
SMALL = everstep.SnapshotConfig(gc_param=100)
FEW, MANY = 30, 300


@contextmanager
def stores(folder: Path) -> Iterator[dict[str, Opener]]:
    """Yield what opens an engine on an empty store of each kind."""
    numbers = itertools.count()
    with ExitStack() as running:
        postgres = running.enter_context(servers.PostgresServer(durable=False))
        valkey = running.enter_context(servers.ValkeyServer(durable=False))
        yield {
            "memory": lambda config: everstep.open("memory://", config).sync,
            "SQLite": lambda config: (
                everstep.open(f"sqlite:///{folder}/{next(numbers)}.db", config, synchronous="off").sync
            ),
            "PostgreSQL": lambda config: (
                everstep.open(postgres.url, config, table_prefix=f"after{next(numbers)}_").sync
            ),
            "Valkey": lambda config: everstep.open(valkey.url, config, key_prefix=f"after{next(numbers)}:").sync,
        }


def _branched(engine: everstep.SyncEngine, count: int) -> dict[str, Callable[[], Any]]:
    first = engine.append("t", HELLO)
    for _ in range(count):
        engine.branch(first, "b")
    return {"a tree of 20 with N branches": lambda: engine.get_checkpoint_tree("t", limit=20)}


def _rewound(engine: everstep.SyncEngine, count: int) -> dict[str, Callable[[], Any]]:
    first = engine.append("t", HELLO)
    for _ in range(count):
        engine.append("t", HELLO)
        engine.rewind(first)

    def rewind() -> None:
        engine.append("t", HELLO)
        engine.rewind(first)

    return {
        "a list after N rewinds": lambda: engine.list_time_travel_points("t"),
        "an append and a rewind after N rewinds": rewind,
    }


def _merged(engine: everstep.SyncEngine, count: int) -> dict[str, Callable[[], Any]]:
    branch = engine.branch(engine.append("t", HELLO), "b")

    def merge() -> None:
        engine.append(branch, HELLO)
        engine.merge_branch(branch, "t")

    for _ in range(count):
        merge()
    return {"a merge after N merges": merge}


def _long(engine: everstep.SyncEngine, count: int) -> dict[str, Callable[[], Any]]:
    for _ in range(count):
        for _ in range(5):
            engine.append("t", HELLO)
    engine.collect()
    return {"collect with nothing to do, N checkpoints": engine.collect}


def _wide(engine: everstep.SyncEngine, count: int) -> dict[str, Callable[[], Any]]:
    for n in range(count):
        engine.append(f"t{n}", HELLO)
    engine.collect()
    names = itertools.count()
    return {
        "collect with nothing to do, N threads": engine.collect,
        "the first append of a thread beside N": lambda: engine.append(f"new {next(names)}", HELLO),
    }


_CASES: tuple[tuple[Callable[..., dict[str, Callable[[], Any]]], everstep.SnapshotConfig], ...] = (
    (_branched, KEEP_ALL), (_rewound, KEEP_ALL), (_merged, KEEP_ALL), (_long, KEEP_ALL), (_wide, SMALL),
)  # fmt: skip


def after_many(folder: Path) -> None:
    """N is 30 and 300; a tree and a collection look at each thread once, for its count, and that shows."""
    with stores(folder) as opened:
        for (make, config), (name, opener) in itertools.product(_CASES, opened.items()):
            engines = {count: opener(config) for count in (FEW, MANY)}
            acts = {count: make(engine, count) for count, engine in engines.items()}
            for what, few in acts[FEW].items():
                seconds = paired({"few": few, "many": acts[MANY][what]}, 9)
                cost = ratio(seconds, "many", "few")
                limit = 10 if "N threads" in what or "N branches" in what else 3
                report(f"{name}: {what}, at 10 N against N", f"{cost:.2f}x", f"<= {limit}x", cost <= limit)
            for engine in engines.values():
                engine.close()
