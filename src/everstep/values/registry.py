"""Classes the user lets us rebuild: how each becomes plain state, and back.

Only a class registered in this process is ever rebuilt, and it is found by its registered name: nothing is imported
and no constructor runs. Dataclasses and pydantic models get their attributes back as they were, so validators and
`__post_init__` cannot change or refuse what was saved.

No method, property, metaclass or default factory of the class runs while it is rebuilt, whatever the stored bytes say.
So classes are looked at through the descriptors of `type` alone, objects are made by `object.__new__` and
`tuple.__new__`, and what is stored must have exactly the shape that `to_state` gives it: to unpack, iterate or compare
anything else could call a method of an object inside it.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from everstep.errors import CheckpointCorrupted, InvalidInput

C = TypeVar("C", bound=type)

# What `type` itself knows of a class, past anything that its metaclass defines.
_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
_vars: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
_module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
_qualname_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__bases__"].__get__
_module_vars: Callable[[Any], dict[str, Any]] = vars(types.ModuleType)["__dict__"].__get__

_MISSING = object()
_FACTORIES: tuple[Any, ...] = (
    list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float, bool, collections.deque,
    collections.OrderedDict, collections.Counter,
)  # fmt: skip
"""Default factories that may be called: they are not the class's own code."""


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
    return f"{_module_of(cls)}.{_qualname_of(cls)}"


# -- looking at classes, without running anything of theirs ------------------------------------------------------------


def is_class(value: object) -> bool:
    """Whether this is a class. `isinstance` would ask the value."""
    return is_subclass(type(value), type)


def is_subclass(cls: type, base: type) -> bool:
    """Whether a class is made from another. `issubclass` would ask the hooks of abstract classes."""
    return any([found is base for found in _mro(cls)])  # noqa: C419  # a list is faster here


def full_name(cls: type) -> tuple[str, str] | None:
    """Return the module and the name of a class; None if it has none that could be looked up."""
    module = _module_of(cls)
    return (module, _qualname_of(cls)) if type(module) is str else None


def class_attribute(cls: type, name: str) -> Any:
    """Return what a class or one of its bases has under this name, as it stands there; None if there is nothing."""
    for base in _mro(cls):
        held = _vars(base).get(name, _MISSING)
        if held is not _MISSING:
            return held
    return None


def find_class(module: str, qualname: str) -> type | None:
    """Return the class of that name if its module is imported. Nothing is made because it is asked for."""
    found = find_object(module, qualname)
    return found if is_class(found) and not _has_odd_metaclass(found) else None


def find_object(module: str, qualname: str) -> Any:
    """Return what has that name in a module that is imported, or in a class in it; None if nothing has."""
    holder = sys.modules.get(module)
    if holder is None or not is_subclass(type(holder), types.ModuleType):
        return None
    first, *inner = qualname.split(".")
    found: Any = _module_vars(holder).get(first)
    for part in inner:
        found = _vars(found).get(part) if is_class(found) else None
    return found


def has_newer_twin(cls: type) -> bool:
    """Whether a class of the same module and name was made after this one, as a function that defines it does.

    That is so too if one of its bases, defined inside the same function, was made again.
    """
    suspects = [base for base in _mro(cls) if base is cls or "<locals>" in _qualname_of(base)]
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


def _has_odd_metaclass(cls: Any) -> bool:
    """Whether to use the class as a key of a dict would run code."""
    for base in _mro(type(cls)):
        if base is type:
            return False
        if not _vars(base).keys().isdisjoint(("__hash__", "__eq__")):
            return True
    return False


Ways = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""How objects of a class become plain state, and back."""


def known_ways(cls: type, *, self_describing: bool = False, is_storable: Callable[[Any], bool] | None = None) -> Ways:
    """Return to_state and from_state for a dataclass, pydantic model, enum or named tuple; refuse any other class.

    With `self_describing` a state also says what a reader needs who does not have the class: the names of the fields
    of a named tuple, and the value of an enum's member. Either kind of state is read.

    With `is_storable` less is refused: what is no field of an object (private, excluded, an attribute beside fields) is
    left out if it cannot be stored, and a member of an enum that only `_missing_` can make is kept as its value.
    """
    is_kept = is_storable or _always
    if _has_odd_metaclass(cls):
        raise InvalidInput(
            f"the metaclass of {_origin(cls)} compares classes in its own way; pass to_state= and from_state="
        )
    if is_subclass(cls, enum.Enum):
        return _enum_ways(cls, with_value=self_describing, or_value=is_storable is not None)
    if _is_pydantic(cls):
        return _pydantic_ways(cls, is_kept)
    if _is_pydantic_v1(cls):
        return _pydantic_v1_ways(cls, is_kept)
    if dataclass_fields(cls) is not None and not any(is_subclass(cls, kind) for kind in _BUILT_IN):
        return _dataclass_ways(cls, is_kept)
    if is_subclass(cls, tuple) and type(class_attribute(cls, "_fields")) is tuple:
        return _named_tuple_ways(cls, is_kept, with_names=self_describing)
    raise InvalidInput(
        f"{_origin(cls)} is not a dataclass, pydantic model, enum or named tuple; pass to_state= and from_state="
    )


def _always(value: Any) -> bool:  # noqa: ARG001  # what `is_storable` is
    return True


_BUILT_IN = (str, bytes, int, float, list, dict, tuple, set)


def dataclass_fields(cls: type) -> list[dataclasses.Field[Any]] | None:
    """Return the fields of a dataclass; None if it is none."""
    held = class_attribute(cls, "__dataclass_fields__")
    if type(held) is not dict:
        return None
    # As dataclasses.fields does, which asks the class.
    return [field for field in held.values() if field._field_type is dataclasses._FIELD]  # type: ignore[attr-defined]


def _out_of_shape(cls: type) -> CheckpointCorrupted:
    return CheckpointCorrupted(f"a stored {_origin(cls)} is out of shape")


def _is_pydantic_v1(cls: type) -> bool:
    module = sys.modules.get("pydantic.v1.main")
    return module is not None and is_subclass(cls, _module_vars(module)["BaseModel"])


def _is_pydantic(cls: type) -> bool:
    # A pydantic model can only exist if pydantic is imported; asking must not import it.
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and is_subclass(cls, pydantic.BaseModel)


def default_of(default: Any, factory: Any, what: str) -> Any:
    """Return a field's default for a value that was saved before the class had it. Runs nothing of the class.

    `default` is a constant; `_MISSING`: there is none, and the factory counts (None: there is none either).
    """
    if default is not _MISSING:
        return _own_constant(default, what)
    if any([factory is known for known in _FACTORIES]):  # noqa: C419
        return factory()
    reason = "has no default" if factory is None else "takes its default from a function, which is not called"
    raise CheckpointCorrupted(
        f"a value was saved without {what}, which {reason}; give it a constant default or one of list, dict and set as "
        "its factory, or pass to_state= and from_state= to everstep.register"
    )


def _own_constant(value: Any, what: str) -> Any:
    """Return a constant of a class, copied if it can change."""
    kind = type(value)
    if kind is dict:
        return {key: _own_constant(item, what) for key, item in value.items()}
    if kind is list:
        return [_own_constant(item, what) for item in value]
    if kind in (set, bytearray):
        return value.copy()
    return value


# -- the kinds of classes ----------------------------------------------------------------------------------------------


def _named_tuple_ways(cls: type, is_kept: Callable[[Any], bool], *, with_names: bool) -> Ways:
    names: tuple[Any, ...] = class_attribute(cls, "_fields")
    defaults = class_attribute(cls, "_field_defaults")

    def to_state(value: Any) -> Any:
        attributes = getattr(value, "__dict__", None)
        if not with_names:
            if attributes:
                raise TypeError("it has attributes beside its fields")
            return tuple(value)
        fields = dict(zip(names, tuple(value), strict=True))
        kept = {name: held for name, held in (attributes or {}).items() if is_kept(held)}
        return [fields, kept] if kept else fields

    def from_state(state: Any) -> Any:
        if type(state) is tuple:
            return tuple.__new__(cls, state)
        attributes: Any = {}
        if type(state) is list and len(state) == 2:
            state, attributes = state
        if type(state) is not dict or type(attributes) is not dict:
            raise _out_of_shape(cls)
        value: Any = tuple.__new__(cls, _values_of(state))
        if attributes:
            own = _attributes_of(cls)
            if own is None:
                raise _out_of_shape(cls)
            own.__get__(value).update(attributes)
        return value

    def _values_of(state: dict[Any, Any]) -> list[Any]:
        left = dict(state)
        values: list[Any] = []
        for name in names:
            if name in left:
                values.append(left.pop(name))
            elif type(defaults) is dict and name in defaults:
                # The field was added to the class after the value was saved.
                values.append(_own_constant(defaults[name], f"{_origin(cls)}.{name}"))
            else:
                raise _out_of_shape(cls)
        if left:
            raise _out_of_shape(cls)
        return values

    return to_state, from_state


def _attributes_of(cls: type) -> Any:
    """Return the descriptor of the `__dict__` of a class's objects; None if they have none."""
    for base in _mro(cls):
        held = _vars(base).get("__dict__")
        if type(held) is types.GetSetDescriptorType:
            return held
    return None


def _enum_ways(cls: Any, *, with_value: bool, or_value: bool) -> Ways:
    # `or_value`: a member that cannot be found again is kept all the same, as its value.
    members: dict[str, Any] = class_attribute(cls, "_member_map_")

    def to_state(member: enum.Enum) -> Any:
        name = member.name
        if name is not None and members.get(name) is member:
            return [name, [member.value]] if with_value and _is_constant(member.value) else [name]
        # A combined flag has no member of its own name: its value stands for it.
        is_found = _has_plain_flags(cls) and _combined(cls, member.value) is member
        if not is_found and not (or_value and _is_constant(member.value)):
            raise TypeError("it is no member of its class by name, and cannot be found without calling _missing_")
        return [None, member.value]

    def from_state(state: Any) -> Any:
        if type(state) is not list or not state:
            raise _out_of_shape(cls)
        if type(state[0]) is str:
            found = members.get(state[0])
        else:
            found = _combined(cls, state[1]) if state[0] is None and len(state) == 2 else None
        if found is None:
            raise CheckpointCorrupted(f"a stored {_origin(cls)} has no member of its name or value now")
        return found

    return to_state, from_state


def _is_constant(value: Any) -> bool:
    """Whether this is a number or a text, or made of such: what can be kept beside the name of a member."""
    if type(value) in (list, tuple):
        return all(_is_constant(item) for item in value)
    return type(value) in (int, str, float, bytes, bool, type(None))


def _combined(cls: Any, value: Any) -> Any:
    """Return the member of this value, or flags combined to it; None: there is none. Not by the class's `_missing_`."""
    if type(value) not in (int, str, float, bytes, bool):
        return None
    by_value = class_attribute(cls, "_value2member_map_")
    found = by_value.get(value)
    if found is None and type(value) is int and _has_plain_flags(cls):
        try:
            found = enum.Flag._missing_.__func__(cls, value)  # type: ignore[attr-defined]  # past one of the class's own
        except ValueError:
            return None
    return found


_FLAG_BASES = (enum.IntFlag, enum.Flag, enum.ReprEnum, enum.Enum, int, object)
_FLAG_HOOKS = (
    "__setattr__", "__getattribute__", "__getattr__", "__eq__", "_numeric_repr_", "_iter_member_by_value_",
    "_iter_member_by_def_",
)  # fmt: skip
"""What Python calls of a class to combine its flags."""


def _has_plain_flags(cls: Any) -> bool:
    """Whether Python can combine these flags without calling anything that the class defines."""
    if type(cls) is not enum.EnumType or not is_subclass(cls, enum.Flag):
        return False
    for base in _mro(cls):
        if any(base is known for known in _FLAG_BASES):
            continue
        held = _vars(base)
        # EnumType sets this one itself, to a method of Flag, where members are not in the order of their values.
        order = held.get("_iter_member_")
        is_usual = order is None or getattr(order, "__func__", None) is enum.Flag._iter_member_by_def_.__func__  # type: ignore[attr-defined]
        if not is_usual or not held.keys().isdisjoint(_FLAG_HOOKS):
            return False
    member_type = class_attribute(cls, "_member_type_")
    return member_type is object or member_type is int


def _pydantic_ways(cls: Any, is_kept: Callable[[Any], bool]) -> Ways:
    own_fields = {name for name, field in pydantic_fields(cls).items() if field.exclude is not True}
    # That it is one is told in the state: without the class it reads as what it is the root of.
    is_root = is_subclass(cls, sys.modules["pydantic"].RootModel)

    def to_state(model: Any) -> Any:
        # vars() keeps the order fields were set in, and fields_set is what exclude_unset reads.
        values = {name: held for name, held in vars(model).items() if name in own_fields or is_kept(held)}
        private = model.__pydantic_private__
        if private is not None:
            private = {name: held for name, held in private.items() if _is_set(held) and is_kept(held)}
        state = [values, model.__pydantic_extra__, sorted(model.__pydantic_fields_set__), private]
        return [*state, True] if is_root else state

    set_fields, set_extra, set_given, set_private = [
        slot_setter(name)
        for name in ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
    ]

    def from_state(state: Any) -> Any:
        if type(state) is not list or len(state) not in (4, 5):
            raise _out_of_shape(cls)
        values, extra, given, private = state[:4]
        fits = type(values) is dict and type(given) is list and all([type(name) is str for name in given])  # noqa: C419
        if not fits or not all([part is None or type(part) is dict for part in (extra, private)]):  # noqa: C419
            raise _out_of_shape(cls)
        model = object.__new__(cls)  # never the class's own: it may give out an object that others hold
        set_fields(model, values)
        set_extra(model, extra)
        set_given(model, set(given))
        set_private(model, private)
        return model

    return to_state, from_state


def _is_set(value: Any) -> bool:
    return type(value).__name__ != "PydanticUndefinedType"


def as_plain(value: Any) -> Any:
    """Return a value in which pydantic models and dataclasses are dicts. Runs nothing of their classes."""
    kind = type(value)
    if kind is dict:
        return {key: as_plain(item) for key, item in value.items()}
    if kind is list:
        return [as_plain(item) for item in value]
    if kind is tuple:
        return tuple([as_plain(item) for item in value])
    is_model = _is_pydantic(kind)
    fields = None if is_model else dataclass_fields(kind)
    if not is_model and fields is None:
        return value
    attributes = _attributes_of(kind)
    own = dict(attributes.__get__(value)) if attributes is not None else {}
    for field in fields or []:
        slot = class_attribute(kind, field.name)
        if type(slot) is types.MemberDescriptorType:
            own[field.name] = slot.__get__(value)
    if is_model:
        own |= _vars(sys.modules["pydantic"].BaseModel)["__pydantic_extra__"].__get__(value) or {}
        if is_subclass(kind, sys.modules["pydantic"].RootModel):
            return as_plain(own.get("root"))
    return as_plain(own)


def _pydantic_v1_ways(cls: Any, is_kept: Callable[[Any], bool]) -> Ways:
    base = _module_vars(sys.modules["pydantic.v1.main"])["BaseModel"]
    set_given = _vars(base)["__fields_set__"].__set__
    attributes = _attributes_of(cls)
    slots: dict[str, Any] = {}  # of its private attributes
    for above in reversed(_mro(cls)):
        for name, held in _vars(above).items():
            if type(held) is types.MemberDescriptorType and name != "__fields_set__":
                slots[name] = held
            else:
                slots.pop(name, None)

    def to_state(model: Any) -> Any:
        private = {name: getattr(model, name) for name in slots if hasattr(model, name)}
        kept = {name: held for name, held in private.items() if is_kept(held)}
        return [dict(vars(model)), None, sorted(model.__fields_set__), kept or None]

    def from_state(state: Any) -> Any:
        if type(state) is not list or len(state) != 4:
            raise _out_of_shape(cls)
        values, _, given, private = state
        fits = type(values) is dict and type(given) is list and all([type(name) is str for name in given])  # noqa: C419
        if not fits or not (private is None or (type(private) is dict and private.keys() <= slots.keys())):
            raise _out_of_shape(cls)
        model: Any = object.__new__(cls)
        attributes.__get__(model).update(values)
        set_given(model, set(given))
        for name, value in (private or {}).items():
            slots[name].__set__(model, value)
        return model

    return to_state, from_state


def secret_ways(cls: type) -> Ways | None:
    """Return to_state and from_state for one of pydantic's secrets; None if it is none."""
    module = sys.modules.get("pydantic.types")
    base = _module_vars(module).get("_SecretBase") if module is not None else None
    attributes = _attributes_of(cls)
    if base is None or not is_subclass(cls, base) or attributes is None:
        return None

    def from_state(state: Any) -> Any:
        if type(state) is not list or len(state) != 2 or state[0] is not None:
            raise _out_of_shape(cls)
        secret: Any = object.__new__(cls)
        attributes.__get__(secret)["_secret_value"] = state[1]
        return secret

    return lambda secret: [None, secret.get_secret_value()], from_state


def slot_setter(name: str) -> Callable[[Any, Any], None]:
    """Return what sets an attribute of any pydantic model as it is: past what its class makes of the name."""
    slot: Any = _vars(sys.modules["pydantic"].BaseModel).get(name)
    if type(slot) in (types.MemberDescriptorType, types.GetSetDescriptorType):
        setter: Callable[[Any, Any], None] = slot.__set__
        return setter
    return lambda model, value: object.__setattr__(model, name, value)


def pydantic_fields(cls: type) -> Mapping[str, Any]:
    """Return the fields of a pydantic model."""
    held = class_attribute(cls, "__pydantic_fields__")
    return held if type(held) is dict else {}


def pydantic_default(cls: type, name: str, info: Any) -> Any:
    """Return the default of a field that a model was saved without."""
    undefined = type(info.default).__name__ == "PydanticUndefinedType"
    return default_of(_MISSING if undefined else info.default, info.default_factory, f"{_origin(cls)}.{name}")


def _dataclass_ways(cls: type, is_kept: Callable[[Any], bool]) -> Ways:
    fields = dataclass_fields(cls) or []
    field_names = {field.name for field in fields}
    _check_layout(cls)
    slots: dict[str, Any] = {}
    guarded: set[str] = set()
    attributes: Any = None
    for base in reversed(_mro(cls)):  # the first one with a name counts
        for name, held in _vars(base).items():
            if type(held) is types.MemberDescriptorType:
                slots[name] = held
            elif name == "__dict__" and type(held) is types.GetSetDescriptorType:
                attributes = held
            elif _has_setter(held):
                # A setter of its own, as a property has: what it sets is kept, and setting it would run code.
                guarded.add(name)
    slots = {name: slot for name, slot in slots.items() if name not in guarded}

    def to_state(value: Any) -> dict[str, Any]:
        names = dict.fromkeys([*(field.name for field in fields), *slots])
        state = {name: getattr(value, name) for name in names if name not in guarded and hasattr(value, name)}
        state |= getattr(value, "__dict__", {})
        state.pop("__orig_class__", None)  # what a generic class was written with; no part of the value
        return {name: held for name, held in state.items() if name in field_names or is_kept(held)}

    def from_state(state: Any) -> Any:
        if type(state) is not dict or not all([type(name) is str for name in state]):  # noqa: C419
            raise _out_of_shape(cls)
        filled = dict(state)
        for field in fields:
            # A field added to the class after the value was saved gets its default.
            if field.name not in state and field.name not in guarded:
                filled |= _default_of_field(cls, field)
        value: Any = object.__new__(cls)
        own = attributes.__get__(value) if attributes is not None else None
        for name, item in filled.items():
            if name in slots:
                slots[name].__set__(value, item)
            elif name in guarded:
                continue
            elif own is None or name in _NO_FIELDS:
                raise _out_of_shape(cls)
            else:
                own[name] = item
        return value

    return to_state, from_state


_NO_FIELDS = ("__class__", "__dict__", "__weakref__")


def _default_of_field(cls: type, field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return a field of a dataclass with its default; nothing if it has none."""
    has_default = field.default is not dataclasses.MISSING
    factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
    if not has_default and factory is None:
        return {}
    default = field.default if has_default else _MISSING
    return {field.name: default_of(default, factory, f"{_origin(cls)}.{field.name}")}


def _check_layout(cls: type) -> None:
    """Refuse a class of which `object.__new__` makes no instance."""
    if class_attribute(cls, "__del__") is not None:
        return  # one that is made to try it out would be finalized
    try:
        object.__new__(cls)
    except TypeError as exc:
        raise InvalidInput(f"{_origin(cls)} cannot be rebuilt ({exc}); pass to_state= and from_state=") from exc


def _has_setter(held: Any) -> bool:
    kind = type(held)
    if kind is types.MemberDescriptorType or kind is types.GetSetDescriptorType:
        return False
    return class_attribute(kind, "__set__") is not None
