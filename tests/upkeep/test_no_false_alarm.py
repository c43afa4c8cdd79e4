"""A store that only the library has written is never called damaged, whatever was done to its threads."""

from __future__ import annotations

from typing import Any

import pytest

import everstep
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Store
from tests.conftest import Place
from tests.timeline.histories import Walker

WHOLE = ("memory", "sqlite", "postgres", "redis", "lmdb")


def verified(store: Store, thread_id: str | None = None) -> everstep.VerifyReport:
    engine = everstep.CheckpointEngine(everstep.StoreBackend(store)).sync
    report: everstep.VerifyReport = engine.verify(thread_id)
    return report


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("seed", range(4))
def test_random_histories_are_whole(place: Place, kind: str, seed: int) -> None:
    store = place.open()
    config: dict[str, Any] = {"gc_policy": "keep_last_n", "gc_param": 4} if seed % 2 else {}
    walker = Walker(everstep.StoreBackend(store), seed, **config)
    for _ in range(3):
        walker.walk(30)
        report = verified(store)
        assert report.findings == [], (seed, str(report))
    assert report.checkpoints
    run_to_end(store.blocking.close())
