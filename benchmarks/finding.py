"""What it costs to find threads among N and among 10 N, taking turns. Part of `make bench`.

What is found is the same in both, so each figure is what the others cost that are not found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import everstep
from benchmarks.after_many import HELLO, SMALL, stores
from benchmarks.common import paired, ratio, report

FOUND = 20  # threads of each kind that is searched for
INSIDE, ON_SERVERS = 10_000, 1_000  # N: what is in the process is filled faster


def _filled(engine: everstep.SyncEngine, count: int) -> dict[str, Callable[[], Any]]:
    for n in range(count):
        user = n % (count // FOUND)
        engine.append(f"user {user}:{n}", HELLO, metadata={"user": user, "kind": "chat"}, tags=[f"team {user}"])
    asked: dict[str, dict[str, Any]] = {
        "by prefix": {"prefix": "user 7:"},
        "by metadata": {"filter": {"user": 7}},
        "by metadata that all have, and that few have": {"filter": {"kind": "chat", "user": 7}},
        "by tag": {"tags": ["team 7"]},
        "by metadata that nobody has": {"filter": {"user": "nobody"}},
        "those that were active last": {"filter": {"kind": "chat"}, "limit": FOUND},
    }
    return {what: lambda words=words: engine.list_threads(**words) for what, words in asked.items()}  # type: ignore[misc]


def finding(folder: Path) -> None:
    """N is 10,000 in the process and in SQLite, and 1,000 on servers."""
    with stores(folder) as opened:
        for name, opener in opened.items():
            few = INSIDE if name in ("memory", "SQLite") else ON_SERVERS
            engines = {count: opener(SMALL) for count in (few, 10 * few)}
            acts = {count: _filled(engine, count) for count, engine in engines.items()}
            for what in acts[few]:
                seconds = paired({"few": acts[few][what], "many": acts[10 * few][what]}, 9)
                cost = ratio(seconds, "many", "few")
                report(f"{name}: threads found {what}, of 10 N against N", f"{cost:.2f}x", "<= 3x", cost <= 3)
            for engine in engines.values():
                engine.close()
