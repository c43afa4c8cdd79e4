"""The values of a checkpoint as a tree that is opened level by level, searched, and read as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep.errors import InvalidInput, PathNotFound
from everstep.runtime import checks
from everstep.types import MISSING
from everstep.views.json_values import kind_of, size_of, to_json
from everstep.views.paths import children_of, found_at, parsed, pointer
from everstep.views.reading import Ref, repository_of, stored_of, values_of
from everstep.views.texts import one_line

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine

LIMIT_MAX = 1000
VALUE_BYTES_MAX = 100_000
_PREVIEW_CHARS = 80
_HITS_MAX = 200
# A search must end, also in a state that somebody has made to be large.
_NODES_MAX = 500_000


async def node(
    engine: CheckpointEngine, ref: Ref, path: str = "", *, offset: int = 0, limit: int = 200
) -> dict[str, Any]:
    """Return one place of a checkpoint's values: of a container what is in it, of anything else the value.

    `path` is a pointer such as `/state/plan/2`, or `/plan/2` for the same; "" is the whole.
    """
    offset = checks.count(offset, "offset")
    limit = min(checks.count(limit, "limit"), LIMIT_MAX)
    parts = parsed(path)
    value = await _at(engine, ref, parts, path)
    found: dict[str, Any] = {
        "path": pointer(parts),
        "type": kind_of(value).name,
        "size_bytes": size_of(value),
        "count": 0,
        "children": [],
        "value": None,
    }
    children = children_of(value)
    if children is None:
        found["value"] = to_json(value, max_bytes=VALUE_BYTES_MAX)
        return found
    found["count"] = len(children)
    # Sizes and previews are made for those that are shown only: each one walks through its value.
    found["children"] = [_child(key, item, parts) for key, item in children[offset : offset + limit]]
    return found


def _child(key: str, value: Any, parts: list[str]) -> dict[str, Any]:
    return {
        "key": one_line(key, 200),
        "path": pointer([*parts, key]),
        "type": kind_of(value).name,
        "size_bytes": size_of(value),
        "preview": preview(value),
        "leaf": not children_of(value),
    }


def preview(value: Any) -> str:
    """Return a value in a few words."""
    if type(value) is str:
        return one_line(value, _PREVIEW_CHARS)
    kind = kind_of(value)
    if kind.items is not None:
        return f"{kind.items:,} {'item' if kind.items == 1 else 'items'}"
    if value is None:
        return "null"
    if type(value) is bool:
        return str(value).lower()
    shown = to_json(value, max_bytes=1000)
    if not isinstance(shown, dict):
        return str(shown)
    if shown.get("size") is not None:
        return f"{shown['size']:,} bytes"
    return one_line(str(shown.get("text", "")), _PREVIEW_CHARS)


async def value(engine: CheckpointEngine, ref: Ref, path: str = "", *, max_bytes: int | None = None) -> Any:
    """Return a value as JSON, whole unless a limit is given; "" is the state."""
    parts = parsed(path) or ["state"]
    return to_json(await _at(engine, ref, parts, path), max_bytes=max_bytes)


async def search(engine: CheckpointEngine, ref: Ref, text: str, *, limit: int = _HITS_MAX) -> dict[str, Any]:
    """Return where a text stands, in keys and in values: `{"paths": [{"path", "type", "preview"}], "more": bool}`."""
    wanted = checks.text(text, "text").casefold()
    if not wanted:
        raise InvalidInput("text is empty; say what to look for")
    limit = min(checks.count(limit, "limit"), LIMIT_MAX)
    # A stack and not recursion: values may nest deeper than Python allows calls to.
    pending: list[tuple[list[str], Any]] = [([], await _at(engine, ref, [], ""))]
    found: list[dict[str, Any]] = []
    looked = 0
    while pending and len(found) < limit and looked < _NODES_MAX:
        parts, held = pending.pop()
        looked += 1
        is_named = bool(parts) and wanted in parts[-1].casefold()
        children = children_of(held)
        if is_named or (children is None and wanted in _searched(held)):
            found.append({"path": pointer(parts), "type": kind_of(held).name, "preview": preview(held)})
        # Turned round, since a stack gives the last first, and hits shall come in the order of the state.
        pending.extend(([*parts, key], item) for key, item in reversed(children or []))
    return {"paths": found, "more": bool(pending)}


def _searched(value: Any) -> str:
    if type(value) is str:
        return value.casefold()
    return preview(value).casefold()


async def _at(engine: CheckpointEngine, ref: Ref, parts: list[str], path: str) -> Any:
    stored = await stored_of(engine, ref)
    values = await values_of(repository_of(engine), stored)
    found = found_at(values._asdict(), parts)
    if found is MISSING:
        raise PathNotFound(path, stored.record.key.checkpoint_id)
    return found
