"""Failures as they are recorded, and as they are raised again when a run is replayed.

An error is made again by the class of its name if this process has loaded it, without calling its initializer or any
other code of it. Otherwise StepFailed tells what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everstep.durable import modules
from everstep.errors import StepFailed
from everstep.values.storable import UNSTORABLE, described, storable


def recorded(error: BaseException) -> dict[str, Any]:
    """Return what is kept of an error."""
    kind = type(error)
    return {
        "type": f"{modules.lasting_name(kind.__module__)}:{kind.__qualname__}",
        "text": described(error)["message"],
        "args": storable(list(error.args), 3),
        "fields": storable({name: value for name, value in vars(error).items() if isinstance(name, str)}, 3),
    }


def made_again(thread_id: str, key: str, kept: Mapping[str, Any]) -> Exception:
    """Return a recorded error as it was, or StepFailed."""
    kind = _class_of(str(kept.get("type")))
    args = kept.get("args")
    fields = kept.get("fields")
    if kind is None or not isinstance(args, list) or not isinstance(fields, dict) or _has_gaps(args):
        return StepFailed(thread_id, key, str(kept.get("type")), str(kept.get("text")))
    try:
        # Not by calling the class: its initializer is somebody's code, and may want other arguments than
        # those it left in `args`.
        made: Exception = _builtin_base(kind).__new__(kind, *args)
    except Exception:
        return StepFailed(thread_id, key, str(kept.get("type")), str(kept.get("text")))
    made.args = tuple(args)
    for name, value in fields.items():
        if not _has_gaps([value]):
            vars(made)[name] = value
    return made


def _class_of(name: str) -> type[Exception] | None:
    """Return a class of errors that this process has loaded."""
    module, _, path = name.partition(":")
    found: Any = modules.loaded(module)
    for part in path.split("."):
        # Not by getattr: the name comes from stored bytes, and an attribute may run code.
        if not hasattr(found, "__dict__"):
            return None
        found = vars(found).get(part)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    return None


def _builtin_base(kind: type[Exception]) -> Any:
    """Return the nearest base that is written in C: it alone may make an object of the class."""
    return next(base for base in kind.__mro__ if base.__module__ == "builtins")


def _has_gaps(values: list[Any]) -> bool:
    return any(isinstance(value, dict) and UNSTORABLE in value for value in values)
