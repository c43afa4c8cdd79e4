"""The state of a checkpoint in the user's editor, and what was changed there."""

from __future__ import annotations

import json
from typing import Any

import click

from everstep.cli.output import to_json
from everstep.engine import SyncEngine
from everstep.errors import CheckpointNotFound, InvalidInput
from everstep.views import json_values


def edit_json(engine: SyncEngine, ref: str) -> dict[str, Any]:
    """Return the top-level keys that somebody has changed in an editor, as JSON Pointers, with their new values."""
    meant = engine.resolve(ref)
    found = engine.get(meant.checkpoint_id, thread_id=meant.thread_id, namespace=meant.namespace)
    if found is None:
        raise CheckpointNotFound(meant.checkpoint_id, meant.thread_id)
    before = {key: json_values.to_json(value) for key, value in found.state.items()}
    edited = click.edit(to_json(before) + "\n", extension=".json")
    if edited is None:
        return {}
    try:
        after = json.loads(edited)
    except ValueError as exc:
        raise InvalidInput(f"what was edited is no JSON: {exc}") from exc
    if not isinstance(after, dict):
        raise InvalidInput("the state is a JSON object")
    gone = [key for key in before if key not in after]
    if gone:
        raise InvalidInput(f"to remove a key ({gone[0]!r}) use --patch with an operation 'remove'")
    changed = {}
    for key, value in after.items():
        if key not in before or before[key] != value:
            changed["/" + key.replace("~", "~0").replace("/", "~1")] = value
    return changed
