"""The state of a checkpoint in the user's editor, and what was changed there."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

import click

from everstep.cli import text
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
    words = to_json(before) + "\n"
    while True:
        edited = click.edit(words, extension=".json")
        if edited is None:
            return {}
        try:
            return _changed(before, edited)
        except InvalidInput as exc:
            # What somebody has typed is not thrown away for a comma.
            if not _wants_to_edit_again(str(exc)):
                raise InvalidInput(f"{exc}; what was edited is in {_keep(edited)}") from exc
            words = edited


def _wants_to_edit_again(problem: str) -> bool:
    if not sys.stdin.isatty():
        return False
    click.echo(f"error: {text.clean(problem)}", err=True)
    return click.confirm("Edit it again?", default=True, err=True)


def _keep(edited: str) -> str:
    """Write what was edited into a file that only its owner can read, and return its name."""
    handle, name = tempfile.mkstemp(prefix="everstep-", suffix=".json", text=True)
    with open(handle, "w", encoding="utf-8", errors="surrogatepass") as file:
        file.write(edited)
    return name


def _changed(before: dict[str, Any], edited: str) -> dict[str, Any]:
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
