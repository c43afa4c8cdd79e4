"""What a store shows, to compare it before and after something was done to its file."""

from __future__ import annotations

from pathlib import Path

import everstep

THREADS_MAX = 200
POINTS_MAX = 50


def all_of(path: Path) -> dict[str, str]:
    """Return every checkpoint that is shown, with what it holds."""
    found: dict[str, str] = {}
    with everstep.open(path).sync as engine:
        for thread in engine.list_threads(THREADS_MAX):
            for point in engine.list_time_travel_points(thread.thread_id, POINTS_MAX):
                checkpoint = engine.get(point.checkpoint_id)
                assert checkpoint is not None
                found[point.checkpoint_id] = repr(checkpoint.to_dict())
    return found
