"""How objects of a class become plain state, and back: a form for each kind of class.

Dataclasses and pydantic models get their attributes back as they were, so validators and `__post_init__` cannot change
or refuse what was saved.

No method, property, metaclass or default factory of the class runs while it is rebuilt, whatever the stored bytes say.
So objects are made by `object.__new__` and `tuple.__new__`, and what is stored must have exactly the shape that
`to_state` gives it: to unpack, iterate or compare anything else could call a method of an object inside it.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from everstep.errors import CheckpointCorrupted, InvalidInput
from everstep.values.class_looks import (
    attributes_of,
    bases_in_order,
    class_attribute,
    dataclass_fields,
    has_odd_metaclass,
    has_setter,
    is_pydantic,
    is_pydantic_v1,
    is_subclass,
    module_vars,
    origin,
    own_vars,
    pydantic_fields,
)

_MISSING = object()
_FACTORIES: tuple[Any, ...] = (
    list, dict, set, frozenset, tuple, str, bytes, bytearray, int, float, bool, collections.deque,
    collections.OrderedDict, collections.Counter,
)  # fmt: skip
"""Default factories that may be called: they are not the class's own code."""

_BUILT_IN = (str, bytes, int, float, list, dict, tuple, set)

Ways = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""How objects of a class become plain state, and back."""

IsKept = Callable[[Any], bool]
"""Whether something that is no field of an object is saved with it."""


class Form(Protocol):
    """How objects of one class become plain state, and back."""

    def to_state(self, value: Any, /) -> Any:
        """Return what is saved of an object."""

    def from_state(self, state: Any, /) -> Any:
        """Return the object that was saved so; CheckpointCorrupted if it cannot have been."""


def known_ways(cls: type, *, self_describing: bool = False, is_storable: IsKept | None = None) -> Ways:
    """Return to_state and from_state for a dataclass, pydantic model, enum or named tuple; refuse any other class.

    With `self_describing` a state also says what a reader needs who does not have the class: the names of the fields
    of a named tuple, and the value of an enum's member. Either kind of state is read.

    With `is_storable` less is refused: what is no field of an object (private, excluded, an attribute beside fields) is
    left out if it cannot be stored, and a member of an enum that only `_missing_` can make is kept as its value.
    """
    if has_odd_metaclass(cls):
        raise InvalidInput(
            f"the metaclass of {origin(cls)} compares classes in its own way; pass to_state= and from_state="
        )
    form = _form_of(cls, self_describing, is_storable)
    return form.to_state, form.from_state


def _form_of(cls: type, self_describing: bool, is_storable: IsKept | None) -> Form:
    is_kept = is_storable or _always
    if is_subclass(cls, enum.Enum):
        return _EnumForm(cls, with_value=self_describing, or_value=is_storable is not None)
    if is_pydantic(cls):
        return _PydanticForm(cls, is_kept)
    if is_pydantic_v1(cls):
        return _PydanticV1Form(cls, is_kept)
    if dataclass_fields(cls) is not None and not any(is_subclass(cls, kind) for kind in _BUILT_IN):
        return _DataclassForm(cls, is_kept)
    if is_subclass(cls, tuple) and type(class_attribute(cls, "_fields")) is tuple:
        return _NamedTupleForm(cls, is_kept, with_names=self_describing)
    raise InvalidInput(
        f"{origin(cls)} is not a dataclass, pydantic model, enum or named tuple; pass to_state= and from_state="
    )


def _always(value: Any) -> bool:  # noqa: ARG001  # what `is_storable` is
    return True


def _out_of_shape(cls: type) -> CheckpointCorrupted:
    return CheckpointCorrupted(f"a stored {origin(cls)} is out of shape")


def _is_list_of_texts(value: Any) -> bool:
    return type(value) is list and set(map(type, value)) <= {str}


def _is_dict_or_none(value: Any) -> bool:
    return value is None or type(value) is dict


def _has_texts_as_keys(value: Any) -> bool:
    return type(value) is dict and set(map(type, value)) <= {str}


# -- named tuples ------------------------------------------------------------------------------------------------------


class _NamedTupleForm:
    """A named tuple: its values, or its fields by name, and the attributes that a subclass may have beside them."""

    def __init__(self, cls: type, is_kept: IsKept, *, with_names: bool) -> None:
        self._cls = cls
        self._is_kept = is_kept
        self._with_names = with_names
        self._names: tuple[Any, ...] = class_attribute(cls, "_fields")
        self._defaults = class_attribute(cls, "_field_defaults")

    def to_state(self, value: Any) -> Any:
        attributes = getattr(value, "__dict__", None) or {}
        if not self._with_names:
            if attributes:
                raise TypeError("it has attributes beside its fields")
            return tuple(value)
        fields = dict(zip(self._names, tuple(value), strict=True))
        kept = _only(attributes, self._is_kept)
        return [fields, kept] if kept else fields

    def from_state(self, state: Any) -> Any:
        if type(state) is tuple:
            return tuple.__new__(self._cls, state)
        attributes: Any = {}
        if type(state) is list and len(state) == 2:
            state, attributes = state
        if type(state) is not dict or type(attributes) is not dict:
            raise _out_of_shape(self._cls)
        value: Any = tuple.__new__(self._cls, self._values_of(state))
        if attributes:
            self._attributes_of(value).update(attributes)
        return value

    def _attributes_of(self, value: Any) -> Any:
        descriptor = attributes_of(self._cls)
        if descriptor is None:
            raise _out_of_shape(self._cls)
        return descriptor.__get__(value)

    def _values_of(self, state: dict[Any, Any]) -> list[Any]:
        # A field that the class has no more is dropped: a tuple has no place for it.
        values: list[Any] = []
        for name in self._names:
            values.append(state[name] if name in state else self._default(name))
        return values

    def _default(self, name: str) -> Any:
        """Return the default of a field that was added to the class after a value was saved."""
        if type(self._defaults) is not dict or name not in self._defaults:
            raise _out_of_shape(self._cls)
        return _own_constant(self._defaults[name])


# -- enums -------------------------------------------------------------------------------------------------------------


class _EnumForm:
    """A member of an enum: its name, and its value where readers may lack the class. Combined flags: their value."""

    def __init__(self, cls: Any, *, with_value: bool, or_value: bool) -> None:
        """With `or_value`, a member that cannot be found again is kept all the same, as its value."""
        self._cls = cls
        self._with_value = with_value
        self._or_value = or_value
        self._members: dict[str, Any] = class_attribute(cls, "_member_map_")

    def to_state(self, member: enum.Enum) -> Any:
        name = member.name
        if name is not None and self._members.get(name) is member:
            return [name, [member.value]] if self._with_value and _is_constant(member.value) else [name]
        # A combined flag has no member of its own name: its value stands for it.
        is_found = _has_plain_flags(self._cls) and _combined(self._cls, member.value) is member
        if not is_found and not (self._or_value and _is_constant(member.value)):
            raise TypeError("it is no member of its class by name, and cannot be found without calling _missing_")
        return [None, member.value]

    def from_state(self, state: Any) -> Any:
        if type(state) is not list or not state:
            raise _out_of_shape(self._cls)
        found = self._find(state)
        if found is None:
            raise CheckpointCorrupted(f"a stored {origin(self._cls)} has no member of its name or value now")
        return found

    def _find(self, state: list[Any]) -> Any:
        name = state[0]
        if type(name) is str:
            return self._members.get(name)
        if name is None and len(state) == 2:
            return _combined(self._cls, state[1])
        return None


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
    for base in bases_in_order(cls):
        if any(base is known for known in _FLAG_BASES):
            continue
        held = own_vars(base)
        # EnumType sets this one itself, to a method of Flag, where members are not in the order of their values.
        order = held.get("_iter_member_")
        is_usual = order is None or getattr(order, "__func__", None) is enum.Flag._iter_member_by_def_.__func__  # type: ignore[attr-defined]
        if not is_usual or not held.keys().isdisjoint(_FLAG_HOOKS):
            return False
    member_type = class_attribute(cls, "_member_type_")
    return member_type is object or member_type is int


# -- pydantic models ---------------------------------------------------------------------------------------------------


class _PydanticForm:
    """A pydantic model: its fields, extra ones, which were given, and private attributes."""

    def __init__(self, cls: Any, is_kept: IsKept) -> None:
        self._cls = cls
        self._is_kept = is_kept
        self._fields = pydantic_fields(cls)
        self._own_fields = {name for name, field in self._fields.items() if field.exclude is not True}
        self._names = self._fields.keys()
        self._takes_extra = _takes_extra(cls)
        self._private = class_attribute(cls, "__private_attributes__") or {}
        # That it is one is told in the state: without the class it reads as what it is the root of.
        self._is_root = is_subclass(cls, sys.modules["pydantic"].RootModel)
        self._set_fields = slot_setter("__dict__")
        self._set_extra = slot_setter("__pydantic_extra__")
        self._set_given = slot_setter("__pydantic_fields_set__")
        self._set_private = slot_setter("__pydantic_private__")

    def to_state(self, model: Any) -> Any:
        # vars() keeps the order fields were set in, and fields_set is what exclude_unset reads.
        values = vars(model).copy()
        if not values.keys() <= self._own_fields:  # as in few models: a cached property, an excluded field
            values = _own_or_kept(values, self._own_fields, self._is_kept)
        private = model.__pydantic_private__
        if private is not None:
            private = _only(private, lambda held: _is_set(held) and self._is_kept(held))
        state = [values, model.__pydantic_extra__, sorted(model.__pydantic_fields_set__), private]
        if not vars(model).keys() >= self._names:
            # It was deleted, say: a reader must not take it for a field that the class has got since.
            return [*state, self._is_root, sorted(self._names - vars(model).keys())]
        return [*state, True] if self._is_root else state

    def from_state(self, state: Any) -> Any:
        if type(state) is dict and _has_texts_as_keys(state) and not self._is_root:
            # It was a dataclass or a named tuple when it was saved.
            state = [state, None, sorted(state), None]
        if type(state) is not list or not 4 <= len(state) <= 6:
            raise _out_of_shape(self._cls)
        values, extra, given, private = state[:4]
        lacking: list[str] = []
        if len(state) == 6:
            lacking = state[5]
            if not _is_list_of_texts(lacking):
                raise _out_of_shape(self._cls)
        if type(values) is not dict or not _is_list_of_texts(given):
            raise _out_of_shape(self._cls)
        if not _is_dict_or_none(extra) or not _is_dict_or_none(private):
            raise _out_of_shape(self._cls)
        if values.keys() != self._names or self._takes_extra != (extra is not None):
            extra = self._put_in_place(values, extra, lacking)
        if self._private and (private is None or not private.keys() >= self._private.keys()):
            private = self._with_private_defaults(private or {})
        model = object.__new__(self._cls)  # never the class's own: it may give out an object that others hold
        self._set_fields(model, values)
        self._set_extra(model, extra)
        self._set_given(model, set(given))
        self._set_private(model, private)
        return model

    def _put_in_place(self, values: dict[Any, Any], extra: Any, lacking: list[str]) -> Any:
        """Let `values` be the fields that the class has now, but for what is `lacking`, and return what is extra."""
        extra = extra or {}
        for name, info in self._fields.items():
            if name in values or name in lacking:
                continue
            if name in extra:
                values[name] = extra.pop(name)
            else:
                values |= _default_of_model_field(self._cls, name, info)
        if not self._takes_extra:
            return extra or None
        for name in [name for name in values if name not in self._fields]:
            # What has a place in the class is no extra value, such as what a cached property has computed.
            if class_attribute(self._cls, name) is None:
                extra[name] = values.pop(name)
        return extra

    def _with_private_defaults(self, private: dict[Any, Any]) -> dict[Any, Any]:
        """Return private attributes with those that were saved without, as far as their defaults are no calls."""
        filled = dict(private)
        for name, info in self._private.items():
            if name not in private:
                filled |= _constant_default(name, info)
        return filled


def _takes_extra(cls: type) -> bool:
    """Whether objects of a pydantic model take values that are no fields."""
    config = class_attribute(cls, "model_config")
    return type(config) is dict and config.get("extra") == "allow"


def _default_of_model_field(cls: type, name: str, info: Any) -> dict[str, Any]:
    """Return a field of a model with its default; nothing if it has none."""
    if info.exclude is True:
        # It may have been left out because it cannot be stored.
        return _constant_default(name, info)
    if not _is_set(info.default) and info.default_factory is None:
        return {}
    return {name: pydantic_default(cls, name, info)}


def _constant_default(name: str, info: Any) -> dict[str, Any]:
    """Return a field or private attribute of a model with its default; nothing if somebody's code would make it."""
    if _is_set(info.default):
        return {name: _own_constant(info.default)}
    if info.default_factory is not None and _may_be_called(info.default_factory):
        return {name: info.default_factory()}
    return {}


def _is_set(value: Any) -> bool:
    return type(value).__name__ != "PydanticUndefinedType"


class _PydanticV1Form:
    """A model of pydantic's first version, in the same shape."""

    def __init__(self, cls: Any, is_kept: IsKept) -> None:
        self._cls = cls
        self._is_kept = is_kept
        base = module_vars(sys.modules["pydantic.v1.main"])["BaseModel"]
        self._set_given = own_vars(base)["__fields_set__"].__set__
        self._attributes = attributes_of(cls)
        self._fields = class_attribute(cls, "__fields__")
        self._slots: dict[str, Any] = {}
        """Of its private attributes."""
        for above in reversed(bases_in_order(cls)):
            self._note_slots(own_vars(above))

    def _note_slots(self, held_by_class: Mapping[str, Any]) -> None:
        for name, held in held_by_class.items():
            if type(held) is types.MemberDescriptorType and name != "__fields_set__":
                self._slots[name] = held
            else:
                self._slots.pop(name, None)

    def to_state(self, model: Any) -> Any:
        private = {name: getattr(model, name) for name in self._slots if hasattr(model, name)}
        kept = _only(private, self._is_kept)
        return [dict(vars(model)), None, sorted(model.__fields_set__), kept or None]

    def from_state(self, state: Any) -> Any:
        if type(state) is not list or len(state) != 4:
            raise _out_of_shape(self._cls)
        values, _, given, private = state
        if type(values) is not dict or not _is_list_of_texts(given) or not _is_dict_or_none(private):
            raise _out_of_shape(self._cls)
        private = private or {}
        if not private.keys() <= self._slots.keys():
            raise _out_of_shape(self._cls)
        for name, field in self._fields.items():
            if name not in values and not field.required:
                default = field.default if field.default_factory is None else _MISSING
                values[name] = _default_of(default, field.default_factory, f"{origin(self._cls)}.{name}")
        model: Any = object.__new__(self._cls)
        self._attributes.__get__(model).update(values)
        self._set_given(model, set(given))
        for name, value in private.items():
            self._slots[name].__set__(model, value)
        return model


def secret_ways(cls: type) -> Ways | None:
    """Return to_state and from_state for one of pydantic's secrets; None if it is none."""
    module = sys.modules.get("pydantic.types")
    base = module_vars(module).get("_SecretBase") if module is not None else None
    attributes = attributes_of(cls)
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
    slot: Any = own_vars(sys.modules["pydantic"].BaseModel).get(name)
    if type(slot) in (types.MemberDescriptorType, types.GetSetDescriptorType):
        setter: Callable[[Any, Any], None] = slot.__set__
        return setter
    return lambda model, value: object.__setattr__(model, name, value)


def pydantic_default(cls: type, name: str, info: Any) -> Any:
    """Return the default of a field that a model was saved without."""
    default = info.default if _is_set(info.default) else _MISSING
    return _default_of(default, info.default_factory, f"{origin(cls)}.{name}")


# -- dataclasses -------------------------------------------------------------------------------------------------------

_NO_FIELDS = ("__class__", "__dict__", "__weakref__")


class _DataclassForm:
    """A dataclass: its fields, and the attributes beside them."""

    def __init__(self, cls: type, is_kept: IsKept) -> None:
        _check_layout(cls)
        self._cls = cls
        self._is_kept = is_kept
        self._fields = dataclass_fields(cls) or []
        self._field_names = {field.name for field in self._fields}
        self._slots: dict[str, Any] = {}
        self._guarded: set[str] = set()
        """Names with a setter of their own, as a property has: what it sets is kept, and setting it would run code."""
        self._attributes: Any = None
        for base in reversed(bases_in_order(cls)):  # the first one with a name counts
            for name, held in own_vars(base).items():
                self._note(name, held)
        for name in self._guarded:
            self._slots.pop(name, None)

    def _note(self, name: str, held: Any) -> None:
        """Note what a class says of an attribute of its objects."""
        if type(held) is types.MemberDescriptorType:
            self._slots[name] = held
        elif name == "__dict__" and type(held) is types.GetSetDescriptorType:
            self._attributes = held
        elif has_setter(held):
            self._guarded.add(name)

    def to_state(self, value: Any) -> dict[str, Any]:
        state = {}
        for name in dict.fromkeys([*self._field_names_in_order(), *self._slots]):
            if name not in self._guarded and hasattr(value, name):
                state[name] = getattr(value, name)
        state |= getattr(value, "__dict__", {})
        state.pop("__orig_class__", None)  # what a generic class was written with; no part of the value
        return _own_or_kept(state, self._field_names, self._is_kept)

    def _field_names_in_order(self) -> list[str]:
        return [field.name for field in self._fields]

    def from_state(self, state: Any) -> Any:
        if type(state) is list and len(state) == 4 and _has_texts_as_keys(state[0]):
            # It was a pydantic model when it was saved.
            state = state[0]
        if not _has_texts_as_keys(state):
            raise _out_of_shape(self._cls)
        value: Any = object.__new__(self._cls)
        attributes = self._attributes.__get__(value) if self._attributes is not None else None
        for name, item in self._with_defaults(state).items():
            if name in self._slots:
                self._slots[name].__set__(value, item)
            elif name in self._guarded:
                continue
            elif name in _NO_FIELDS:
                raise _out_of_shape(self._cls)
            elif attributes is not None:
                attributes[name] = item
            # Otherwise it was a field of the class once, and there is no place for it now.
        return value

    def _with_defaults(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state in which fields that were added to the class after it was saved have their defaults."""
        if self._field_names <= state.keys():
            return state
        filled = dict(state)
        for field in self._fields:
            if field.name not in state and field.name not in self._guarded:
                filled |= _default_of_field(self._cls, field)
        return filled


def _default_of_field(cls: type, field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return a field of a dataclass with its default; nothing if it has none."""
    has_default = field.default is not dataclasses.MISSING
    factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
    if not has_default and factory is None:
        return {}
    default = field.default if has_default else _MISSING
    return {field.name: _default_of(default, factory, f"{origin(cls)}.{field.name}")}


def _check_layout(cls: type) -> None:
    """Refuse a class of which `object.__new__` makes no instance."""
    if class_attribute(cls, "__del__") is not None:
        return  # one that is made to try it out would be finalized
    try:
        object.__new__(cls)
    except TypeError as exc:
        raise InvalidInput(f"{origin(cls)} cannot be rebuilt ({exc}); pass to_state= and from_state=") from exc


# -- what they share ---------------------------------------------------------------------------------------------------


def _only(held: Mapping[str, Any], is_kept: IsKept) -> dict[str, Any]:
    """Return those entries whose values are kept."""
    return {name: value for name, value in held.items() if is_kept(value)}


def _own_or_kept(held: Mapping[str, Any], own: Collection[str], is_kept: IsKept) -> dict[str, Any]:
    """Return those entries that have a name of its own fields, or whose values are kept."""
    return {name: value for name, value in held.items() if name in own or is_kept(value)}


def _default_of(default: Any, factory: Any, what: str) -> Any:
    """Return a field's default for a value that was saved before the class had it. Runs nothing of the class.

    `default` is a constant; `_MISSING`: there is none, and the factory counts (None: there is none either).
    """
    if default is not _MISSING:
        return _own_constant(default)
    if _may_be_called(factory):
        return factory()
    reason = "has no default" if factory is None else "takes its default from a function, which is not called"
    raise CheckpointCorrupted(
        f"a value was saved without {what}, which {reason}; give it a constant default or one of list, dict and set as "
        "its factory, or pass to_state= and from_state= to everstep.register",
        is_damage=False,
    )


def _may_be_called(factory: Any) -> bool:
    """Whether a default factory is none of somebody's code."""
    return any([factory is known for known in _FACTORIES])  # noqa: C419  # a list is faster here


def _own_constant(value: Any) -> Any:
    """Return a constant of a class, copied if it can change."""
    kind = type(value)
    if kind is dict:
        return {key: _own_constant(item) for key, item in value.items()}
    if kind is list:
        return [_own_constant(item) for item in value]
    if kind in (set, bytearray):
        return value.copy()
    if is_pydantic(kind):
        form = _PydanticForm(kind, _always)
        return form.from_state(_own_constant(form.to_state(value)))
    return value


def as_plain(value: Any) -> Any:
    """Return a value in which pydantic models and dataclasses are dicts. Runs nothing of their classes."""
    kind = type(value)
    if kind is dict:
        return {key: as_plain(item) for key, item in value.items()}
    if kind is list:
        return [as_plain(item) for item in value]
    if kind is tuple:
        return tuple([as_plain(item) for item in value])
    if is_pydantic(kind):
        return as_plain(_fields_of_model(kind, value))
    fields = dataclass_fields(kind)
    if fields is None:
        return value
    return as_plain(_fields_of_dataclass(kind, value, fields))


def _fields_of_model(kind: type, model: Any) -> Any:
    """Return the fields of a pydantic model, extra ones among them; of a root model what it is the root of."""
    fields = _attributes_of_object(kind, model)
    pydantic = sys.modules["pydantic"]
    fields |= own_vars(pydantic.BaseModel)["__pydantic_extra__"].__get__(model) or {}
    return fields.get("root") if is_subclass(kind, pydantic.RootModel) else fields


def _fields_of_dataclass(kind: type, value: Any, fields: list[dataclasses.Field[Any]]) -> dict[str, Any]:
    found = _attributes_of_object(kind, value)
    for field in fields:
        slot = class_attribute(kind, field.name)
        if type(slot) is types.MemberDescriptorType:
            found[field.name] = slot.__get__(value)
    return found


def _attributes_of_object(kind: type, value: Any) -> dict[str, Any]:
    descriptor = attributes_of(kind)
    return dict(descriptor.__get__(value)) if descriptor is not None else {}
