"""The log of a thread's operations, each in a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep.reports import Operation
from everstep.views.json_values import to_json
from everstep.views.texts import one_line

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine


async def log(engine: CheckpointEngine, thread_id: str, *, limit: int = 50) -> dict[str, Any]:
    """Return `{"thread_id", "operations": [...]}`, the newest operation first."""
    found = await engine.operations(thread_id, limit)
    return {"thread_id": thread_id, "operations": [shown(operation) for operation in found]}


def shown(operation: Operation) -> dict[str, Any]:
    """Return an operation as JSON; its `text` is what a person would say it did."""
    return {
        "id": operation.id,
        "kind": operation.kind,
        "created_at": operation.created_at,
        "undone": operation.undone,
        "details": to_json(operation.details),
        "text": one_line(_text(operation.kind, operation.details)),
    }


def _text(kind: str, details: dict[str, Any]) -> str:
    place = str(details.get("checkpoint_id", "")).rpartition("-")[2][:8]
    match kind:
        case "rewind":
            behind = details.get("left_behind", 0)
            left = f", {behind} left behind" if behind else ""
            return f"rewind to {place}{left}"
        case "branch":
            return f"branch {details.get('name', '')} at {place}"
        case "merge":
            return f"merge of {details.get('from', '')}"
        case "pin" | "unpin":
            return f"{kind} {place}"
        case "tag" | "untag":
            return f"{kind} {place} {details.get('tag', '')}"
        case _:
            return kind
