"""Looking at classes without running anything of theirs.

A class that stored bytes name may have a metaclass, properties and hooks of its own. So classes are looked at through
the descriptors of `type` alone, past all of these.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

# What `type` itself knows of a class, past anything that its metaclass defines.
bases_in_order: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
own_vars: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
module_vars: Callable[[Any], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__
_module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
_qualname_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__bases__"].__get__

_MISSING = object()


def origin(cls: type) -> str:
    """Return the module and the name of a class, for people."""
    return f"{_module_of(cls)}.{_qualname_of(cls)}"


def is_class(value: object) -> bool:
    """Whether this is a class. `isinstance` would ask the value."""
    return is_subclass(type(value), type)


def is_subclass(cls: type, base: type) -> bool:
    """Whether a class is made from another. `issubclass` would ask the hooks of abstract classes."""
    return any([found is base for found in bases_in_order(cls)])  # noqa: C419  # a list is faster here


def full_name(cls: type) -> tuple[str, str] | None:
    """Return the module and the name of a class; None if it has none that could be looked up."""
    module = _module_of(cls)
    return (module, _qualname_of(cls)) if type(module) is str else None


def class_attribute(cls: type, name: str) -> Any:
    """Return what a class or one of its bases has under this name, as it stands there; None if there is nothing."""
    for base in bases_in_order(cls):
        held = own_vars(base).get(name, _MISSING)
        if held is not _MISSING:
            return held
    return None


def find_class(module: str, qualname: str) -> type | None:
    """Return the class of that name if its module is imported. Nothing is made because it is asked for."""
    found = find_object(module, qualname)
    return found if is_class(found) and not has_odd_metaclass(found) else None


def find_object(module: str, qualname: str) -> Any:
    """Return what has that name in a module that is imported, or in a class in it; None if nothing has."""
    holder = sys.modules.get(module)
    if holder is None or not is_subclass(type(holder), types.ModuleType):
        return None
    first, *inner = qualname.split(".")
    found: Any = module_vars(holder).get(first)
    for part in inner:
        found = own_vars(found).get(part) if is_class(found) else None
    return found


def has_newer_twin(cls: type) -> bool:
    """Whether a class of the same module and name was made after this one, as a function that defines it does.

    That is so too if one of its bases, defined inside the same function, was made again.
    """
    suspects = [base for base in bases_in_order(cls) if base is cls or "<locals>" in _qualname_of(base)]
    return any(_was_made_again(suspect) for suspect in suspects)


def _was_made_again(cls: type) -> bool:
    name = full_name(cls)
    siblings: list[type] = type.__subclasses__(_bases_of(cls)[0])  # those that are alive, the oldest first
    for sibling in reversed(siblings):
        if sibling is cls:
            return False
        if full_name(sibling) == name:
            return True
    return False


def has_odd_metaclass(cls: Any) -> bool:
    """Whether to use the class as a key of a dict would run code."""
    for base in bases_in_order(type(cls)):
        if base is type:
            return False
        if not own_vars(base).keys().isdisjoint(("__hash__", "__eq__")):
            return True
    return False


def dataclass_fields(cls: type) -> list[dataclasses.Field[Any]] | None:
    """Return the fields of a dataclass; None if it is none."""
    held = class_attribute(cls, "__dataclass_fields__")
    if type(held) is not dict:
        return None
    # As dataclasses.fields does, which asks the class.
    return [field for field in held.values() if field._field_type is dataclasses._FIELD]  # type: ignore[attr-defined]


def is_pydantic_v1(cls: type) -> bool:
    """Whether this is a model of pydantic's first version, as the second one brings it along."""
    module = sys.modules.get("pydantic.v1.main")
    return module is not None and is_subclass(cls, module_vars(module)["BaseModel"])


def is_pydantic(cls: type) -> bool:
    """Whether this is a pydantic model."""
    # A pydantic model can only exist if pydantic is imported; asking must not import it.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and is_subclass(cls, pydantic.BaseModel)


def pydantic_fields(cls: type) -> Mapping[str, Any]:
    """Return the fields of a pydantic model."""
    held = class_attribute(cls, "__pydantic_fields__")
    return held if type(held) is dict else {}


def attributes_of(cls: type) -> Any:
    """Return the descriptor of the `__dict__` of a class's objects; None if they have none."""
    for base in bases_in_order(cls):
        held = own_vars(base).get("__dict__")
        if type(held) is types.GetSetDescriptorType:
            return held
    return None


def has_setter(held: Any) -> bool:
    """Whether to set an attribute that a class holds so would run code."""
    kind = type(held)
    if kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType:
        return False
    return class_attribute(kind, "__set__") is not None
