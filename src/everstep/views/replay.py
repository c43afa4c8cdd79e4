"""What comes after a checkpoint: what would run next, and which results are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep.errors import RunNotFound
from everstep.views import checkpoint, runs

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine


async def after(engine: CheckpointEngine, ref: str) -> dict[str, Any]:
    """Return `{"ref", "next_node", "waits", "results", "again", "python"}`.

    `results` are pending writes of a graph, or recorded steps of a durable run; `again` names the steps of a run that
    would be made again from here.
    """
    found = await checkpoint.detail(engine, ref)
    told = {
        "ref": found["ref"],
        "next_node": found["next_node"],
        "waits": [],
        "results": found["writes"],
        "again": [],
        "python": found["copy"]["python"],
    }
    try:
        run = await runs.one(engine, found["thread_id"], limit=runs.LIMIT_MAX)
    except RunNotFound:
        return told
    return told | _of_run(run, found)


def _of_run(run: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return what is different about a checkpoint of a durable run."""
    recorded: list[dict[str, Any]] = []
    again: list[str] = []
    for entry in run["entries"]:
        if entry["op"] != "step" or entry["status"] != "ok":
            continue
        if entry["step"] <= found["step"]:
            recorded.append({"node": entry["name"], "step": entry["step"], "effect": entry["effect"]})
        else:
            again.append(entry["name"])
    is_head = found["id"] == run["head"]
    return {
        "next_node": again[0] if again else "",
        "waits": run["waits"] if is_head else [],
        "results": recorded,
        "again": again,
        "python": f"await engine.resume({run['thread_id']!r})",
    }
