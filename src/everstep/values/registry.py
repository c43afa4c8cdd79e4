"""Classes the user lets us rebuild: the register of them.

Only a class registered in this process is ever rebuilt, and it is found by its registered name: nothing is imported
and no constructor runs. `class_forms` says how each kind of class becomes plain state, and back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from everstep.errors import InvalidInput
from everstep.values.class_forms import known_ways
from everstep.values.class_looks import origin

C = TypeVar("C", bound=type)


class Registered(NamedTuple):
    """How one class travels."""

    cls: type
    name: str
    to_state: Callable[[Any], Any]
    from_state: Callable[[Any], Any]


class Data:
    """Stands for a class that is not rebuilt here: what was kept of the object comes back as plain data."""


_by_type: dict[type, Registered] = {}
_by_name: dict[str, Registered] = {}


def register(
    cls: C,
    *,
    name: str | None = None,
    to_state: Callable[[Any], Any] | None = None,
    from_state: Callable[[Any], Any] | None = None,
) -> C:
    """Let objects of exactly `cls` be saved and rebuilt; return `cls`, so it also works as a decorator.

    Dataclasses, pydantic models, enums and named tuples need nothing more. Any other class needs `to_state` (object
    to storable value) and `from_state` (the way back). `name` is what is stored; give one if the class may move.
    Registering the same class again replaces its entry; a name held by another class is refused.
    """
    if not isinstance(cls, type):
        raise InvalidInput(f"register() takes a class, not {type(cls).__name__}")
    if (to_state is None) != (from_state is None):
        raise InvalidInput("register() takes to_state and from_state together")
    if to_state is None or from_state is None:
        to_state, from_state = known_ways(cls)
    name = name if name is not None else f"{cls.__module__}.{cls.__qualname__}"
    _check_name(name, cls)
    entry = Registered(cls, name, to_state, from_state)
    _by_type[cls] = _by_name[name] = entry
    return cls


def _check_name(name: object, cls: type) -> None:
    """Refuse a name that is none, or that another class has."""
    if not isinstance(name, str) or not name:
        raise InvalidInput("a registered name is a non-empty string")
    taken = _by_name.get(name)
    if taken is None or taken.cls is cls:
        return
    # A reloaded module brings a new class of the same origin; anything else is a clash.
    is_reloaded = origin(taken.cls) == origin(cls) and "<locals>" not in cls.__qualname__
    if not is_reloaded:
        raise InvalidInput(f"the name {name!r} is registered for {origin(taken.cls)}; pass another name=")


def for_type(cls: type) -> Registered | None:
    """Return the entry of exactly this class."""
    return _by_type.get(cls)


def for_name(name: str) -> Registered | None:
    """Return the entry stored under this name."""
    return _by_name.get(name)
