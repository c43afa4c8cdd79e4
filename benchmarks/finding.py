"""What it costs to find threads among N and among 10 N, taking turns. Part of `make bench`.

What is found is the same in both, so each figure is what the others cost that are not found. `python -m
benchmarks.finding 1000 10000 100000` shows the milliseconds of a page of 50 among so many.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import everstep
from benchmarks.after_many import HELLO, SMALL, stores
from benchmarks.common import paired, ratio, report
from everstep.backends import StoreBackend
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Key, Part
from everstep.stores.staging import StagingStore

FOUND = 20  # threads of each kind that is searched for
FEW = 1_000  # N
PAGE = 50
_AT_ONCE = 1_000  # threads that are put in one commit
_APART_MICROS = 1_000_000  # between the last activity of one thread and of the next


def _filled(engine: everstep.CheckpointEngine, count: int) -> dict[str, Callable[[], Any]]:
    """Fill a store with threads that were active one after the other; return what is searched for."""
    fill(engine, count)
    asked: dict[str, dict[str, Any]] = {
        "by prefix": {"prefix": "user 7:"},
        "by a prefix that all have": {"prefix": "user "},
        "by metadata": {"filter": {"user": 7}},
        "by metadata that all have": {"filter": {"kind": "chat"}},
        "by metadata that all have, and that few have": {"filter": {"kind": "chat", "user": 7}},
        "by metadata that one in ten has": {"filter": {"tenth": 3}},
        "by tag": {"tags": ["team 7"]},
        "by metadata that nobody has": {"filter": {"user": "nobody"}},
        "since a moment": {"since": datetime.now(UTC) - timedelta(seconds=FOUND)},
        "those that were active last": {},
    }
    face = engine.sync
    return {what: lambda words=words: face.list_threads(PAGE, **words) for what, words in asked.items()}  # type: ignore[misc]


def fill(engine: everstep.CheckpointEngine, count: int, *, chosen: Callable[[str], bool] = lambda _: True) -> None:
    """Put threads of one message each, in bulk: one is made, and the others are like it. `chosen` tells which names."""
    store: Any = engine.checkpointer.store.blocking  # type: ignore[attr-defined]
    made = _made(store)
    (thread,) = made.threads
    (stored,) = made.checkpoints
    begin = time.time_ns() // 1000 - count * _APART_MICROS
    numbers = itertools.count()
    for start in range(0, count, _AT_ONCE):
        parts: list[Part] = []
        for n in range(start, min(start + _AT_ONCE, count)):
            user = n % (count // FOUND)
            name = next(name for number in numbers if chosen(name := f"user {user}:{number}"))
            key = Key(name, "", stored.record.key.checkpoint_id)
            metadata = {"user": user, "kind": "chat", "tenth": n % 10}
            record = stored.record._replace(key=key, metadata=metadata, tags=(f"team {user}",))
            line = thread.lines[""]._replace(active=begin + n * _APART_MICROS)
            parts.append(
                made._replace(
                    thread_id=name,
                    checkpoints=[stored._replace(record=record)],
                    packed={},
                    threads=[thread._replace(thread_id=name, lines={"": line})],
                )
            )
        run_to_end(store.adopt_new(parts))


def _made(store: Any) -> Part:
    """Return a thread as the engine makes it."""
    stage = StagingStore.new(store, "made")
    everstep.CheckpointEngine(StoreBackend(stage), SMALL).sync.append("made", HELLO)
    return run_to_end(stage.whole())


def finding(folder: Path) -> None:
    """N is 1,000."""
    with stores(folder) as opened:
        for name, opener in opened.items():
            engines = {count: opener(SMALL) for count in (FEW, 10 * FEW)}
            acts = {count: _filled(engine._driven, count) for count, engine in engines.items()}
            for what in acts[FEW]:
                seconds = paired({"few": acts[FEW][what], "many": acts[10 * FEW][what]}, 9)
                cost = ratio(seconds, "many", "few")
                report(f"{name}: threads found {what}, of 10 N against N", f"{cost:.2f}x", "<= 3x", cost <= 3)
            for engine in engines.values():
                engine.close()


def _show(counts: list[int]) -> None:
    """Print the milliseconds of a page among so many threads."""
    with tempfile.TemporaryDirectory() as folder, stores(Path(folder)) as opened:
        for name in opened:
            found: dict[str, list[str]] = {}
            for count in counts:
                engine = opened[name](SMALL)
                for what, act in _filled(engine._driven, count).items():
                    seconds = paired({"page": act}, 9)["page"]
                    found.setdefault(what, []).append(f"{statistics.median(seconds) * 1000:8.2f}")
                engine.close()
            print(f"{name}: a page of {PAGE} among {', '.join(f'{count:,}' for count in counts)} threads, ms")
            for what, figures in found.items():
                print(f"  {what:46}{' '.join(figures)}", flush=True)


if __name__ == "__main__":
    _show([int(word) for word in sys.argv[1:]])
