"""LangChain messages as plain dicts and back, exactly and fast.

A message is stored as its own fields: what packs in one call for a whole conversation, compares as bytes, and reads as
a dict where LangChain is not installed. What the fields do not say stands under one more key: the class, where it is
not the usual one for the type; which fields were set, if not those that usually are; extra and private attributes.

Messages are mutable, so every reader gets its own. A Template is a decoded message from which copies are made: they
share the texts, which cannot change, and nothing else.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, MissingDependency, UnregisteredType
from everstep.langgraph.classes import Kinds, safe_class
from everstep.values import class_forms, class_looks, codec, registry

try:
    import pydantic  # noqa: F401  # without it there are no messages
except ImportError as exc:
    raise MissingDependency("pydantic", "langgraph") from exc

MARK = "~"
"""The key of what the fields do not say: [class, fields that were set, extra, private]; None where it is usual."""

_USUAL = {
    "human": ("human", "HumanMessage"),
    "ai": ("ai", "AIMessage"),
    "system": ("system", "SystemMessage"),
    "tool": ("tool", "ToolMessage"),
    "function": ("function", "FunctionMessage"),
    "chat": ("chat", "ChatMessage"),
    "remove": ("modifier", "RemoveMessage"),
    "AIMessageChunk": ("ai", "AIMessageChunk"),
    "HumanMessageChunk": ("human", "HumanMessageChunk"),
    "SystemMessageChunk": ("system", "SystemMessageChunk"),
    "ToolMessageChunk": ("tool", "ToolMessageChunk"),
    "FunctionMessageChunk": ("function", "FunctionMessageChunk"),
    "ChatMessageChunk": ("chat", "ChatMessageChunk"),
}
_CLASSES_MAX = 256
_SET = {"content"}
_SET_WITH_ID = {"content", "id"}
_OUT_OF_SHAPE = (TypeError, ValueError, AttributeError, LookupError)


_set_fields = class_forms.slot_setter("__dict__")
_set_given = class_forms.slot_setter("__pydantic_fields_set__")
_set_extra = class_forms.slot_setter("__pydantic_extra__")
_set_private = class_forms.slot_setter("__pydantic_private__")


class _Class(NamedTuple):
    """What is known of a message class."""

    type: str | None
    """The `type` of which it is the usual class."""
    name: str
    fields: int


class Shape(NamedTuple):
    """What the fields of messages do not say, where nothing is extra or private."""

    classes: list[type]
    given: list[frozenset[str]]
    marks: list[list[Any] | None]
    """What stands under the mark; None: there is none. The class, the fields that were set, and the fields say it."""

    def with_more(self, other: Shape) -> Shape:
        """Return the shape of these messages and the others behind them."""
        return Shape(self.classes + other.classes, self.given + other.given, self.marks + other.marks)


_fields = operator.attrgetter("__dict__")
_given = operator.attrgetter("__pydantic_fields_set__")
_extra = operator.attrgetter("__pydantic_extra__")
_private = operator.attrgetter("__pydantic_private__")


def shape_of(messages: Sequence[Any], lowered: Sequence[dict[str, Any]]) -> Shape | None:
    """Return the shape of messages; None if one of them has something extra or private."""
    marks: list[list[Any] | None] = []
    for fields in lowered:
        mark = fields.get(MARK)
        if mark is not None and len(mark) > 2:
            return None
        marks.append(mark)
    return Shape(list(map(type, messages)), list(map(frozenset, map(_given, messages))), marks)


def fields_of(messages: Sequence[Any], shape: Shape) -> list[dict[str, Any]] | None:
    """Return messages that still have this shape as dicts; None if one has not. Looks at all, in few steps."""
    count = len(messages)
    if list(map(type, messages)) != shape.classes or list(map(_given, messages)) != shape.given:
        return None
    if list(map(_private, messages)) != [None] * count or list(map(_extra, messages)) != [{}] * count:
        return None
    fields = list(map(_fields, messages))
    if shape.marks == [None] * count:
        return fields
    return [one if mark is None else {**one, MARK: mark} for one, mark in zip(fields, shape.marks, strict=True)]


def base_class() -> Any:
    """Return LangChain's BaseMessage if it is imported: without it nothing is a message."""
    module = sys.modules.get("langchain_core.messages.base")
    return getattr(module, "BaseMessage", None)


def is_installed() -> bool:
    """Whether there are classes to build messages of; otherwise they stay dicts."""
    return safe_class("langchain_core.messages.base", "BaseMessage") is not None


class Messages:
    """Turns messages into dicts and dicts into messages, by a saver's rules for classes."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._classes: dict[type, _Class | None] = {}
        self._usual: dict[Any, tuple[Any, int]] = {}

    def lowered(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return each message as a dict, most of them their own; None if something else is among the values."""
        base = base_class()
        if base is None or not values or not issubclass(type(values[0]), base):
            return None
        found: list[dict[str, Any]] = []
        known = self._classes
        plain = _SET
        with_id = _SET_WITH_ID
        append = found.append
        for message in values:
            entry = known.get(type(message)) or self._class(type(message), base)
            if entry is None:
                return None
            fields: dict[str, Any] = message.__dict__
            extra = message.__pydantic_extra__
            if (
                fields.get("type") == entry.type
                and message.__pydantic_fields_set__ == (with_id if fields.get("id") is not None else plain)
                and not extra
                and extra is not None
                and message.__pydantic_private__ is None
                and len(fields) == entry.fields
            ):
                append(fields)
                continue
            marked = self._marked(message, entry)
            if marked is None:
                return None
            append(marked)
        return found

    def _class(self, cls: Any, base: type) -> _Class | None:
        if not issubclass(cls, base):
            return None
        known = self._kinds.for_type(cls)
        if known is None or registry.for_type(cls) is not None or ":" not in known.name:
            return None
        usual = [kind for kind, (module, name) in _USUAL.items() if known.name == _full(module, name)]
        if len(self._classes) >= _CLASSES_MAX:
            self._classes.clear()  # a function may define ever more of them
        entry = self._classes[cls] = _Class(usual[0] if usual else None, known.name, len(cls.model_fields))
        return entry

    def _marked(self, message: Any, entry: _Class) -> dict[str, Any] | None:
        fields = message.__dict__
        missing = type(message).model_fields.keys() - fields.keys()
        if MARK in fields or missing or not all(type(name) is str for name in fields):
            return None
        given = message.__pydantic_fields_set__
        usual = _SET if fields.get("id") is None else _SET_WITH_ID
        extra = message.__pydantic_extra__
        private = message.__pydantic_private__
        if private is not None:
            keeps_all = self._kinds.strict
            private = {
                name: held
                for name, held in private.items()
                if type(held).__name__ != "PydanticUndefinedType" and (keeps_all or self._kinds.is_storable(held))
            }
        mark = [
            entry.name if fields.get("type") != entry.type else None,
            sorted(given) if given != usual else None,
            [extra] if extra != {} else None,
            private,
        ]
        while mark and mark[-1] is None:
            mark.pop()
        return {**fields, MARK: mark}

    def built(self, stored: Any) -> list[Any]:
        """Return the messages of these fields, which become their own."""
        if not self._usual and not is_installed():
            return [_bare(fields) for fields in (stored if isinstance(stored, list) else [None])]
        try:
            return self._built(stored)
        except _OUT_OF_SHAPE as exc:
            raise CheckpointCorrupted("a stored message is out of shape") from exc

    def _built(self, stored: Any) -> list[Any]:
        found: list[Any] = []
        usual = self._usual
        new = object.__new__
        append = found.append
        set_fields = _set_fields
        set_given = _set_given
        set_extra = _set_extra
        set_private = _set_private
        for fields in stored if isinstance(stored, list) else [None]:
            if type(fields) is not dict:
                raise CheckpointCorrupted("a stored message is out of shape")
            if MARK in fields:
                append(self._unusual(fields).made())
                continue
            kind = fields.get("type")
            if type(kind) is not str:  # to look up anything else would hash it
                raise CheckpointCorrupted("a stored message is out of shape")
            cls, count = usual.get(kind) or self._usual_class(fields)
            if len(fields) != count:
                _fill(cls, fields)
            message = new(cls)
            set_fields(message, fields)
            set_given(message, {"content"} if fields["id"] is None else {"content", "id"})
            set_extra(message, {})
            set_private(message, None)
            append(message)
        return found

    def templates(self, packed: list[bytes]) -> list[Template | Packed | Bare]:
        """Return what copies of packed messages are made from."""
        whole = self.templates_of([codec.array_header(len(packed)), *packed])
        # Some message may have parts that cannot be copied safely.
        return whole if whole is not None else [Packed(self, item) for item in packed]

    def templates_of(self, parts: list[bytes]) -> list[Template | Packed | Bare] | None:
        """Return what copies of a packed list of messages are made from; None if they cannot be copied safely."""
        stored, plain = self._kinds.codec.unpack_and_tell(parts)
        if not plain:
            return None
        if not is_installed():
            return [Bare(_bare(fields)) for fields in stored]
        if type(stored) is list and any(self._may_get_another_class(fields) for fields in stored):
            return None
        try:
            return [self._unusual(fields) for fields in stored]
        except _OUT_OF_SHAPE as exc:
            raise CheckpointCorrupted("a stored message is out of shape") from exc

    def _may_get_another_class(self, fields: Any) -> bool:
        mark = fields.get(MARK) if type(fields) is dict else None
        name = mark[0] if type(mark) is list and mark else None
        return type(name) is str and not self._kinds.is_certain(name)

    def decoded(self, packed: bytes) -> Any:
        """Return a packed message."""
        return self.built([self._kinds.codec.unpack(packed)])[0]

    def _unusual(self, fields: Any) -> Template | Bare:
        name, given, extra, private = _popped_mark(fields)
        if name is None:
            cls = self._usual_class(fields)[0]
        else:
            entry = self._kinds.for_name(name)
            cls = entry.cls
            if cls is registry.Data:
                return Bare(entry.from_state([fields, extra[0] if extra is not None else None, [], None]))
        base = base_class()
        if base is None or not class_looks.is_subclass(cls, base):
            raise UnregisteredType(str(name), "which is not a message")
        _fill(cls, fields)
        if given is None:
            given = ("content",) if fields["id"] is None else ("content", "id")
        return Template(cls, fields, set(given), {} if extra is None else extra[0], private)

    def _usual_class(self, fields: dict[str, Any]) -> tuple[Any, int]:
        kind = fields.get("type")
        usual = _USUAL.get(kind) if type(kind) is str else None
        if usual is None or type(kind) is not str:
            what = repr(kind)[:40] if type(kind) is str else "of no text"
            raise CheckpointCorrupted(f"a stored message has the unknown type {what}")
        cls: Any = self._kinds.for_name(_full(*usual)).cls
        found = self._usual[kind] = cls, len(class_looks.pydantic_fields(cls))
        return found


def _fill(cls: Any, fields: dict[str, Any]) -> None:
    """Give fields that were added to the class since the message was saved their defaults."""
    for name, info in class_looks.pydantic_fields(cls).items():
        if name not in fields:
            fields[name] = class_forms.pydantic_default(cls, name, info)


def _popped_mark(fields: Any) -> list[Any]:
    """Return what the fields of a message do not say, in exactly the shape it is written in."""
    mark = fields.pop(MARK, None) if type(fields) is dict else MARK
    if mark is None:
        return [None, None, None, None]
    if type(mark) is not list or len(mark) > 4:
        raise CheckpointCorrupted("a stored message is out of shape")
    name, given, extra, private = [*mark, None, None, None, None][:4]
    fits = name is None or type(name) is str
    fits = fits and (given is None or (type(given) is list and all(type(one) is str for one in given)))
    fits = fits and (
        extra is None or (type(extra) is list and len(extra) == 1 and type(extra[0]) in (dict, type(None)))
    )
    if not fits or (private is not None and type(private) is not dict):
        raise CheckpointCorrupted("a stored message is out of shape")
    return [name, given, extra, private]


def _bare(fields: Any) -> dict[str, Any]:
    """Return a message as its fields, extra ones among them."""
    extra = _popped_mark(fields)[2]
    return {**(extra[0] or {}), **fields} if extra is not None else fields


def _full(module: str, name: str) -> str:
    return f"langchain_core.messages.{module}:{name}"


class Packed:
    """A message with parts that cannot be copied safely: it is decoded anew for every reader."""

    __slots__ = ("_messages", "_packed")

    def __init__(self, messages: Messages, packed: bytes) -> None:
        self._messages = messages
        self._packed = packed

    def copy(self) -> Any:
        """Return a new message."""
        return self._messages.decoded(self._packed)

    shared = copy


class Bare:
    """A message to make copies of where LangChain is not installed, or its class is not known: a dict."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def copy(self) -> Any:
        """Return a new dict."""
        return copied(self._fields)

    def made(self) -> Any:
        """Return the dict that this is the only copy of."""
        return self._fields

    shared = made


class Template:
    """A message to make copies of."""

    __slots__ = ("_cls", "_extra", "_fields", "_fresh", "_given", "_private", "_shared")

    def __init__(
        self, cls: Any, fields: dict[str, Any], given: set[str], extra: dict[str, Any] | None, private: Any
    ) -> None:
        self._cls = cls
        self._fields = fields
        self._given = given
        self._extra = extra
        self._private = private
        self._fresh: list[tuple[str, Callable[[], Any]]] = [
            (name, _copier(value)) for name, value in fields.items() if type(value) not in _FIXED
        ]
        self._shared: Any = None

    def shared(self) -> Any:
        """Return the one message of all who change nothing."""
        if self._shared is None:
            self._shared = self.copy()
        return self._shared

    def copy(self) -> Any:
        """Return a new message."""
        message = object.__new__(self._cls)
        fields = self._fields.copy()
        for name, fresh in self._fresh:
            fields[name] = fresh()
        extra = self._extra
        private = self._private
        _set_fields(message, fields)
        _set_given(message, self._given.copy())
        _set_extra(message, copied(extra) if extra else extra if extra is None else {})
        _set_private(message, private if private is None else copied(private))
        return message

    def made(self) -> Any:
        """Return the message that this is the only copy of."""
        message = object.__new__(self._cls)
        _set_fields(message, self._fields)
        _set_given(message, self._given.copy())
        _set_extra(message, self._extra)
        _set_private(message, self._private)
        return message


_FIXED = frozenset((type(None), bool, int, float, str, bytes))


def copied(value: Any) -> Any:
    """Return a copy of a plain value that shares nothing that can change."""
    kind = type(value)
    if kind is dict:
        return {key: copied(item) for key, item in value.items()}
    if kind is list:
        return [copied(item) for item in value]
    return value


def _copier(value: Any) -> Callable[[], Any]:
    kind = type(value)
    return kind if kind in (dict, list) and not value else lambda: copied(value)
