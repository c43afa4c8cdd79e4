"""A store that only the library has written is never called damaged, whatever was done to its threads."""

from __future__ import annotations

import threading
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


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
def test_writers_at_work_are_no_damage(place: Place, kind: str) -> None:
    store = place.open()
    backend = everstep.StoreBackend(store)

    def write(name: str) -> None:
        engine = everstep.CheckpointEngine(backend, everstep.SnapshotConfig(gc_param=10)).sync
        for n in range(1, 80):
            made = engine.append(name, [{"role": "user", "content": f"{n}"}], {"n": n})
            if n % 7 == 0:
                back = engine.list_time_travel_points(name, 5)[2].checkpoint_id
                engine.rewind(back, thread_id=name)
            if n % 13 == 0:
                engine.branch(made, "b", thread_id=name)

    writers = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert verified(store).findings == []
    assert verified(store).findings == []
    run_to_end(store.blocking.close())


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "redis"])
def test_writers_that_wait_for_one_another_are_no_damage(place: Place, kind: str) -> None:
    """On a server each of them leaves a note of its own, for as long as it waits and a little longer."""
    store = place.open()
    backend = everstep.StoreBackend(store)
    engine = everstep.CheckpointEngine(backend).sync
    engine.append("one", state={"n": 0})

    def write(name: str) -> None:
        for n in range(20):
            engine.append("one", [{"role": "user", "content": name}], {name: n})

    writers = [threading.Thread(target=write, args=(f"writer {number}",)) for number in range(8)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert verified(store).findings == []
    assert verified(store).findings == []
    run_to_end(store.blocking.close())


@pytest.mark.parametrize("kind", WHOLE)
def test_a_checkpoint_that_comes_again_under_its_name_is_no_damage(place: Place, kind: str) -> None:
    """The branch began at the one that was deleted, not at this one."""
    store = place.open()
    backend = everstep.StoreBackend(store)
    engine = everstep.CheckpointEngine(backend).sync
    origin = engine.append("trip", [], {"n": 1})
    engine.branch(origin, "cheap")
    written = backend.sync.get(origin)
    assert written is not None
    backend.sync.delete_thread("trip")

    backend.sync.put(written)

    assert verified(store).findings == []
    run_to_end(store.blocking.close())
