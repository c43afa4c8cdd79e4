"""An engine that keeps everything, on the stores that views are tried on, and threads to look at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import everstep
from everstep.runtime.blocking import run_to_end
from everstep.stores.protocol import Store
from tests.conftest import Place


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    """Where the views are tried; `kind` of a module's own names the others."""
    return str(request.param)


@pytest.fixture
def plain_store(place: Place) -> Iterator[Store]:
    store = place.open()
    yield store
    run_to_end(store.blocking.close())


@pytest.fixture
def engine(plain_store: Store) -> everstep.CheckpointEngine:
    config = everstep.SnapshotConfig(gc_policy="keep_all", max_snapshot_size_mb=100)
    return everstep.CheckpointEngine(everstep.StoreBackend(plain_store), config)


class Trip(NamedTuple):
    """A thread with two branches that were merged into it."""

    ids: list[str]
    cheap: str
    scenic: str


async def plan_trip(engine: everstep.CheckpointEngine, thread: str = "trip") -> Trip:
    ids = [
        await engine.append(thread, [{"role": "user", "content": "Plan a weekend in Oslo."}]),
        await engine.append(
            thread,
            [{"role": "assistant", "content": "The night train fits."}],
            {"travel": "train"},
            trigger="llm_call",
            metadata={"duration_ms": 420, "usage": {"input_tokens": 30, "output_tokens": 12}, "cost": 0.01},
        ),
        await engine.append(
            thread,
            [{"role": "tool", "name": "hotels", "content": "one room"}],
            {"hotel": "fjord"},
            {"hotels": {"rooms": 1}},
            trigger="tool_call",
        ),
    ]
    cheap = await engine.branch(ids[2], "cheap", thread_id=thread)
    scenic = await engine.branch(ids[2], "scenic", thread_id=thread)
    await engine.append(cheap, [_said("The hostel is by the station.")], {"hotel": "hostel"}, trigger="llm_call")
    await engine.append(scenic, [_said("The lighthouse has a room.")], {"view": "sea"}, trigger="llm_call")
    await engine.append(scenic, [_said("A boat leaves at ten.")], {"sunday": "islands"}, trigger="llm_call")
    ids.append(await engine.append(thread, [_said("Now a place to stay.")]))
    ids.append(await engine.merge_branch(cheap, thread))
    ids.append(await engine.merge_branch(scenic, thread))
    return Trip(ids, cheap, scenic)


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
