"""LangChain messages as plain dicts and back, exactly and fast.

A message is stored as its own fields: what packs in one call for a whole conversation, compares as bytes, and reads as
a dict where LangChain is not installed. What the fields do not say stands under one more key: the class, where it is
not the usual one for the type; which fields were set, if not those that usually are; extra and private attributes.

Messages are mutable, so every reader gets its own. A Template is a decoded message from which copies are made: they
share the texts, which cannot change, and nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from everstep.errors import CheckpointCorrupted, UnregisteredType
from everstep.langgraph.kinds import Kinds
from everstep.values import registry

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
_SET, _SET_WITH_ID = {"content"}, {"content", "id"}
_set = object.__setattr__


class _Class(NamedTuple):
    """What is known of a message class."""

    type: str | None
    """The `type` of which it is the usual class."""
    name: str
    fields: int


def base_class() -> Any:
    """Return LangChain's BaseMessage if it is imported: without it nothing is a message."""
    module = sys.modules.get("langchain_core.messages.base")
    return getattr(module, "BaseMessage", None)


class Messages:
    """Turns messages into dicts and dicts into messages, by a saver's rules for classes."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._classes: dict[type, _Class | None] = {}

    def lowered(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return each message as a dict, most of them their own; None if something else is among the values."""
        base = base_class()
        if base is None:
            return None
        found: list[dict[str, Any]] = []
        known = self._classes
        for message in values:
            cls = type(message)
            entry = known.get(cls) or self._class(cls, base)
            if entry is None:
                return None
            fields: dict[str, Any] = message.__dict__
            if (
                fields.get("type") == entry.type
                and message.__pydantic_fields_set__ == (_SET if fields.get("id") is None else _SET_WITH_ID)
                and message.__pydantic_extra__ == {}
                and message.__pydantic_private__ is None
                and len(fields) == entry.fields
            ):
                found.append(fields)
            else:
                marked = self._marked(message, entry)
                if marked is None:
                    return None
                found.append(marked)
        return found

    def _class(self, cls: type, base: type) -> _Class | None:
        if not issubclass(cls, base):
            return None
        known = self._kinds.for_type(cls)
        if known is None or registry.for_type(cls) is not None or ":" not in known.name:
            return None
        usual = [kind for kind, (module, name) in _USUAL.items() if known.name == _full(module, name)]
        fields: dict[str, Any] = cls.model_fields  # type: ignore[attr-defined]  # it is a pydantic model
        entry = self._classes[cls] = _Class(usual[0] if usual else None, known.name, len(fields))
        return entry

    def _marked(self, message: Any, entry: _Class) -> dict[str, Any] | None:
        fields = message.__dict__
        missing = type(message).model_fields.keys() - fields.keys()
        if MARK in fields or missing or not all(type(name) is str for name in fields):
            return None
        given, usual = message.__pydantic_fields_set__, _SET if fields.get("id") is None else _SET_WITH_ID
        extra, private = message.__pydantic_extra__, message.__pydantic_private__
        if private is not None:
            private = {k: v for k, v in private.items() if type(v).__name__ != "PydanticUndefinedType"}
        mark = [
            entry.name if fields.get("type") != entry.type else None,
            sorted(given) if given != usual else None,
            [extra] if extra != {} else None,
            private,
        ]
        while mark and mark[-1] is None:
            mark.pop()
        return {**fields, MARK: mark}

    def template(self, packed: bytes) -> Template | Packed:
        """Return what copies of a stored message are made from."""
        stored = self.unpacked(packed)
        return self._template(stored) if is_plain(stored) else Packed(self, packed)

    def message(self, stored: Any) -> Any:
        """Return the message of these fields, which become its own."""
        return self._template(stored).made()

    def _template(self, stored: Any) -> Template:
        if not isinstance(stored, dict):
            raise CheckpointCorrupted("a stored message is out of shape")
        name, given, extra, private = [*stored.pop(MARK, ()), None, None, None, None][:4]
        if name is None:
            usual = _USUAL.get(stored.get("type"))  # type: ignore[arg-type]  # None is in no table
            if usual is None:
                raise CheckpointCorrupted(f"a stored message has the unknown type {stored.get('type')!r:.40}")
            name = _full(*usual)
        cls: Any = self._kinds.for_name(name).cls
        base = base_class()
        if base is None or not issubclass(cls, base):
            raise UnregisteredType(name, "which is not a message")
        for field, info in cls.model_fields.items():
            if field not in stored:  # it was added to the class since
                stored[field] = info.get_default(call_default_factory=True)
        if given is None:
            given = _SET if stored.get("id") is None else _SET_WITH_ID
        return Template(cls, stored, set(given), {} if extra is None else extra[0], private)

    def unpacked(self, packed: bytes) -> Any:
        """Return the fields of a packed message."""
        return self._kinds.codec.unpack(packed)

    def shown(self, stored: Any) -> Any:
        """Return a stored message for readers without LangChain: its fields."""
        if isinstance(stored, dict):
            stored.pop(MARK, None)
        return stored


def _full(module: str, name: str) -> str:
    return f"langchain_core.messages.{module}:{name}"


class Packed:
    """A message with parts that cannot be copied safely: it is decoded anew for every reader."""

    __slots__ = ("_messages", "_packed")

    def __init__(self, messages: Messages, packed: bytes) -> None:
        self._messages, self._packed = messages, packed

    def copy(self) -> Any:
        """Return a new message."""
        return self._messages.message(self._messages.unpacked(self._packed))


class Template:
    """A message to make copies of."""

    __slots__ = ("_cls", "_extra", "_fields", "_fresh", "_given", "_private")

    def __init__(
        self, cls: Any, fields: dict[str, Any], given: set[str], extra: dict[str, Any] | None, private: Any
    ) -> None:
        self._cls, self._fields, self._given, self._extra, self._private = cls, fields, given, extra, private
        self._fresh: list[tuple[str, Callable[[], Any]]] = [
            (name, _copier(value)) for name, value in fields.items() if not _is_fixed(value)
        ]

    def copy(self) -> Any:
        """Return a new message."""
        cls = self._cls
        message = cls.__new__(cls)
        fields = self._fields.copy()
        for name, fresh in self._fresh:
            fields[name] = fresh()
        extra, private = self._extra, self._private
        _set(message, "__dict__", fields)
        _set(message, "__pydantic_fields_set__", self._given.copy())
        _set(message, "__pydantic_extra__", {} if extra == {} else copied(extra))
        _set(message, "__pydantic_private__", private if private is None else copied(private))
        return message

    def made(self) -> Any:
        """Return the message that this is the only copy of."""
        message = self._cls.__new__(self._cls)
        _set(message, "__dict__", self._fields)
        _set(message, "__pydantic_fields_set__", self._given.copy())
        _set(message, "__pydantic_extra__", self._extra)
        _set(message, "__pydantic_private__", self._private)
        return message


_FIXED = frozenset((type(None), bool, int, float, str, bytes))


def _is_fixed(value: Any) -> bool:
    return type(value) in _FIXED


def is_plain(value: Any) -> bool:
    """Whether `copied` can copy a decoded value."""
    kind = type(value)
    if kind is dict:
        return all([type(key) is str and is_plain(item) for key, item in value.items()])  # noqa: C419  # faster here
    if kind is list:
        return all([is_plain(item) for item in value])  # noqa: C419
    return kind in _FIXED


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
    return kind if not value and kind in (dict, list) else lambda: copied(value)
