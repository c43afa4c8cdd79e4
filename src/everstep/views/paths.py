"""Where in a checkpoint something stands: JSON pointers, and the paths of differences. Pure.

The document is `{"messages", "state", "tools_result", "next_node"}`, and `/state/plan/2` leads into it. A pointer that
begins with something else leads into the state: `/plan/2` is the same. Paths as differences have them (`state.plan[2]`)
are understood too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

from everstep.errors import InvalidInput
from everstep.runtime import checks
from everstep.types import MISSING
from everstep.views.json_values import Opaque

TOPS = ("messages", "state", "tools_result", "next_node")
_PATH_BYTES_MAX = 65536
_PART = re.compile(r"\.([^.\[]+)|\[('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]]*)\]")
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


def parsed(path: str) -> list[str]:
    """Return the parts of a pointer or path, beginning with the top of the document; [] is all of it."""
    checks.text(path, "path", _PATH_BYTES_MAX)
    text = path.strip()
    if text in ("", "/"):
        return []
    if text.startswith("/"):
        parts = [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]
        # A pointer that begins with none of the tops is meant for the state, which is what people look at.
        return parts if parts[0] in TOPS else ["state", *parts]
    top = re.match(r"[a-z_]+", text)
    if top is None or top[0] not in TOPS:
        raise InvalidInput(
            f"{checks.shown(path)} is no path; write it as /plan/2, /messages/0/content or state.plan[2]"
        )
    return [top[0], *_dotted_parts(text[top.end() :], path)]


def _dotted_parts(rest: str, path: str) -> list[str]:
    parts: list[str] = []
    at = 0
    while at < len(rest):
        found = _PART.match(rest, at)
        if found is None:
            raise InvalidInput(f"{checks.shown(path)} is no path; write it as /plan/2 or state.plan[2]")
        parts.append(found[1] if found[1] is not None else _unquoted(found[2]))
        at = found.end()
    return parts


def _unquoted(text: str) -> str:
    if text[:1] not in ("'", '"'):
        return text
    try:
        # Paths are written with `repr`, so the same escapes must be understood here.
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, str) else text


def pointer(parts: Sequence[str]) -> str:
    """Return parts as a JSON pointer."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def token_of(key: Any, place: int) -> str:
    """Return what stands for a key of a mapping in a pointer; a key that is no text is known by its place."""
    if type(key) is str:
        return key
    # Beyond this JavaScript would turn the number into another one.
    return str(key) if type(key) is int and abs(key) < 2**53 else f"#{place}"


def children_of(value: Any) -> list[tuple[str, Any]] | None:
    """Return what is in a value, by what stands for it in a pointer; None: it is no container."""
    kind = type(value)
    if kind is Opaque:
        return children_of(value.fields)
    if kind is dict:
        return [(token_of(key, place), item) for place, (key, item) in enumerate(value.items())]
    if kind in (list, tuple, set, frozenset):
        return [(str(place), item) for place, item in enumerate(value)]
    return None


def found_at(value: Any, parts: Sequence[str]) -> Any:
    """Return what stands at the end of a way into a value; MISSING if there is nothing."""
    for part in parts:
        while type(value) is Opaque:
            value = value.fields
        if type(value) is dict and part in value:
            value = value[part]
        elif type(value) in (list, tuple) and _INDEX.fullmatch(part):
            if int(part) >= len(value):
                return MISSING
            value = value[int(part)]
        else:
            value = dict(children_of(value) or ()).get(part, MISSING)
        if value is MISSING:
            return MISSING
    return value


def of_filter(path: str) -> list[str]:
    """Return the parts that a filter names: `/plan`, `/plan/*` and `state.plan.*` mean the same."""
    return parsed(path.strip().removesuffix("/*").removesuffix(".*").removesuffix("[*]"))


def meet(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one of two ways leads to the other, or into it."""
    return within(one, other) or within(other, one)


def within(inner: Sequence[str], outer: Sequence[str]) -> bool:
    """Whether a way leads to another, or into it."""
    return list(inner[: len(outer)]) == list(outer)
