"""Classes the user lets us rebuild: how each becomes plain state, and back.

Only a class registered in this process is ever rebuilt, and it is found by its registered name: nothing is imported
and no constructor runs. Dataclasses and pydantic models get their attributes back as they were, so validators and
`__post_init__` cannot change or refuse what was saved.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from everstep.errors import InvalidInput

C = TypeVar("C", bound=type)


class Registered(NamedTuple):
    """How one class travels."""

    cls: type
    name: str
    to_state: Callable[[Any], Any]
    from_state: Callable[[Any], Any]


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
    if not isinstance(name, str) or not name:
        raise InvalidInput("a registered name is a non-empty string")
    taken = _by_name.get(name)
    # A reloaded module brings a new class of the same origin; anything else is a clash.
    reloaded = taken is not None and _origin(taken.cls) == _origin(cls) and "<locals>" not in cls.__qualname__
    if taken is not None and taken.cls is not cls and not reloaded:
        raise InvalidInput(f"the name {name!r} is registered for {_origin(taken.cls)}; pass another name=")
    entry = Registered(cls, name, to_state, from_state)
    _by_type[cls] = _by_name[name] = entry
    return cls


def for_type(cls: type) -> Registered | None:
    """Return the entry of exactly this class."""
    return _by_type.get(cls)


def for_name(name: str) -> Registered | None:
    """Return the entry stored under this name."""
    return _by_name.get(name)


def _origin(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def known_ways(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return to_state and from_state for a dataclass, pydantic model, enum or named tuple; refuse any other class."""
    if issubclass(cls, enum.Enum):
        return _enum_ways(cls)
    if _is_pydantic(cls):
        return _pydantic_ways(cls)
    if dataclasses.is_dataclass(cls) and not issubclass(cls, (str, bytes, int, float, list, dict, tuple, set)):
        return _dataclass_ways(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple_ways(cls)
    raise InvalidInput(
        f"{_origin(cls)} is not a dataclass, pydantic model, enum or named tuple; pass to_state= and from_state="
    )


def _is_pydantic(cls: type) -> bool:
    # A pydantic model can only exist if pydantic is imported; asking must not import it.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and issubclass(cls, pydantic.BaseModel)


def _named_tuple_ways(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def to_state(value: Any) -> tuple[Any, ...]:
        if getattr(value, "__dict__", None):
            raise TypeError("it has attributes beside its fields")
        return tuple(value)

    return to_state, lambda state: tuple.__new__(cls, state)


def _enum_ways(cls: type[enum.Enum]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def to_state(member: enum.Enum) -> Any:
        name = member.name
        # A combined flag has no member of its own name: its value stands for it.
        return [name] if name is not None and cls.__members__.get(name) is member else [None, member.value]

    def from_state(state: Any) -> enum.Enum:
        return cls[state[0]] if state[0] is not None else cls(state[1])

    return to_state, from_state


def _pydantic_ways(cls: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def to_state(model: Any) -> Any:
        # vars() keeps the order fields were set in, and fields_set is what exclude_unset reads.
        private = model.__pydantic_private__
        return [
            dict(vars(model)),
            model.__pydantic_extra__,
            sorted(model.__pydantic_fields_set__),
            None
            if private is None
            else {k: v for k, v in private.items() if type(v).__name__ != "PydanticUndefinedType"},
        ]

    def from_state(state: Any) -> Any:
        model = cls.__new__(cls)
        values, extra, fields_set, private = state
        object.__setattr__(model, "__dict__", values)
        object.__setattr__(model, "__pydantic_extra__", extra)
        object.__setattr__(model, "__pydantic_fields_set__", set(fields_set))
        object.__setattr__(model, "__pydantic_private__", private)
        return model

    return to_state, from_state


def _slots(cls: type) -> list[str]:
    slots = cls.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _dataclass_ways(cls: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    fields = dataclasses.fields(cls)
    try:
        object.__new__(cls)
    except TypeError as exc:
        raise InvalidInput(f"{_origin(cls)} cannot be rebuilt ({exc}); pass to_state= and from_state=") from exc
    slots = [name for base in cls.__mro__ for name in _slots(base)]
    # What has a setter of its own, as a property has: what it sets is kept, and setting it would run code.
    guarded = {name for base in cls.__mro__ for name, held in vars(base).items() if _has_setter(held)}

    def to_state(value: Any) -> dict[str, Any]:
        names = dict.fromkeys([*(field.name for field in fields), *slots])
        state = {name: getattr(value, name) for name in names if name not in guarded and hasattr(value, name)}
        state |= getattr(value, "__dict__", {})
        state.pop("__orig_class__", None)  # what a generic class was written with; no part of the value
        return state

    def from_state(state: dict[str, Any]) -> Any:
        value: Any = object.__new__(cls)
        for field in fields:
            # A field added to the class after the value was saved gets its default.
            if field.name not in state and field.name not in guarded:
                if field.default is not dataclasses.MISSING:
                    object.__setattr__(value, field.name, field.default)
                elif field.default_factory is not dataclasses.MISSING:
                    object.__setattr__(value, field.name, field.default_factory())
        for name, item in state.items():
            if name not in guarded:
                object.__setattr__(value, name, item)
        return value

    return to_state, from_state


def _has_setter(held: Any) -> bool:
    return hasattr(type(held), "__set__") and not isinstance(
        held, (types.MemberDescriptorType, types.GetSetDescriptorType)
    )
