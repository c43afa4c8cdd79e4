"""The log of a thread's operations, each in a few words."""

from __future__ import annotations

import re
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


_OWN_ID = re.compile(r"ckpt-.*-([0-9]+)-[0-9a-f]{16}", re.DOTALL)


def _place(checkpoint_id: str) -> str:
    """Return a checkpoint as people name it: by its step, where its id tells that, else by the end of its id."""
    own = _OWN_ID.fullmatch(checkpoint_id)
    if own is not None:
        return f"#{own[1]}"
    return checkpoint_id.rpartition("-")[2][:8]


def _text(kind: str, details: dict[str, Any]) -> str:
    place = _place(str(details.get("checkpoint_id", "")))
    match kind:
        case "rewind":
            behind = details.get("left_behind", 0)
            left = f", {behind} hidden" if behind else ""
            return f"rewind to {place}{left}"
        case "branch":
            return f"branch {details.get('name', '')} at {place}"
        case "merge":
            return f"merge of {details.get('from', '')}"
        case "pin" | "unpin":
            return f"{kind} {place}"
        case "tag" | "untag":
            return f"{kind} {place} {details.get('tag', '')}"
        case "note":
            return f"note about {place}: {details.get('note', '')}" if details.get("note") else f"no note about {place}"
        case "rename":
            return f"rename to {details['name']}" if details.get("name") else "rename to what it was called first"
        case _:
            return kind
