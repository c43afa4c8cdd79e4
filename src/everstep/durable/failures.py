"""Failures as they are recorded, and as they are raised again when a run is replayed.

An error is made again by the class of its name if this process has loaded it, without calling its initializer or any
other code of it. Otherwise StepFailed tells what it was.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Mapping
from typing import Any

from everstep.durable import modules
from everstep.errors import StepFailed, UnstorableValue
from everstep.values.storable import UNSTORABLE, described, storable

# Errors inside of others are kept as deep as that: more would not be stored in one value.
_GROUPS_MAX = 5
# What an attribute was looked for in: it may be large, and no message speaks of it.
_OBJECT = vars(AttributeError)["obj"]


class NotKept:
    """Stands for something that an error held and that could not be stored, as a response of a server.

    Without it, code that asks for that would meet an AttributeError of which nobody knows where it comes from.
    """

    def __init__(self, path: str, shown: str) -> None:
        self._path = path
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown

    def __getattr__(self, name: str) -> Any:
        # These are asked for by Python itself, to see what can be done with an object.
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnstorableValue(
            f"{self._path}.{name}",
            self._shown,
            "it was there when the step failed, and is not when that is replayed. Let the step itself return what is "
            "needed of it, or put that into the arguments of the error that it raises",
        )


def recorded(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """Return what is kept of an error."""
    kind = type(error)
    kept = {
        "type": f"{modules.lasting_name(kind.__module__)}:{kind.__qualname__}",
        "text": described(error)["message"],
        "args": storable(list(error.args), 3),
        "fields": storable(_fields(error), 3),
    }
    # The errors of a group stand in its arguments, which cannot be stored. Each is kept as one of its own.
    if isinstance(error, BaseExceptionGroup) and depth < _GROUPS_MAX:
        kept["args"] = [error.message]
        kept["group"] = [recorded(each, depth + 1) for each in error.exceptions]
    return kept


def made_again(thread_id: str, key: str, kept: Mapping[str, Any]) -> Exception:
    """Return a recorded error as it was, or StepFailed."""
    kind = _class_of(str(kept.get("type")))
    args = kept.get("args")
    fields = kept.get("fields")
    if kind is None or not isinstance(args, list) or not isinstance(fields, dict) or _has_gaps(args):
        return StepFailed(thread_id, key, str(kept.get("type")), str(kept.get("text")))
    if "group" in kept:
        args = [*args, [made_again(thread_id, key, each) for each in kept["group"]]]
    try:
        # Not by calling the class: its initializer is somebody's code, and may want other arguments than
        # those it left in `args`.
        made: Exception = _builtin_base(kind).__new__(kind, *args)
    except Exception:
        return StepFailed(thread_id, key, str(kept.get("type")), str(kept.get("text")))
    made.args = tuple(args)
    slots = _slots(kind)
    for name, value in fields.items():
        if _has_gaps([value]):
            value = NotKept(f"{name} of a recorded {kind.__name__}", str(value[UNSTORABLE]))
        if name in slots:
            # Some cannot be written: those were set when the error was made.
            with contextlib.suppress(AttributeError, TypeError):
                slots[name].__set__(made, value)
        else:
            vars(made)[name] = value
    return made


def _fields(error: BaseException) -> dict[str, Any]:
    """Return what an error holds besides its arguments, by name."""
    found = {name: value for name, value in vars(error).items() if isinstance(name, str)}
    for name, slot in _slots(type(error)).items():
        # One that was never set raises AttributeError.
        with contextlib.suppress(AttributeError):
            value = slot.__get__(error)
            if value is not None:
                found[name] = value
    return found


def _slots(kind: type) -> dict[str, types.MemberDescriptorType]:
    """Return the fields that are not in the dictionary of an error: those written in C, a file's name say, and slots.

    They are read and written without any code of the class.
    """
    found: dict[str, types.MemberDescriptorType] = {}
    for base in reversed(kind.__mro__):
        for name, held in vars(base).items():
            if isinstance(held, types.MemberDescriptorType) and held is not _OBJECT and not name.startswith("__"):
                found[name] = held
    return found


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
