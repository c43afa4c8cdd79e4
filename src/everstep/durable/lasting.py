"""Texts that stand for arguments which cannot be stored: the same in every process, for as long as the code is.

A repr would not do. It may hold an address in memory, the name of the program's module, or a set in the order of this
process: after a crash a step would seem to be asked for with other arguments.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import types
from collections.abc import Iterable
from typing import Any

from everstep.durable import modules
from everstep.values.storable import type_name

_ADDRESS = re.compile(r"(?: object)? at 0x[0-9a-fA-F]+")
_MAIN = re.compile(r"\b__main__\.")
_TEXT_MAX = 10_000
_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_NAMED = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
)


def lasting_text(value: Any) -> str:
    """Return the text that stands for a value. Never raises."""
    try:
        return _shortened(_text(value))
    except Exception:  # somebody's repr, or an almost full call stack
        return f"<{_without_process(type_name(type(value)))}>"


def _text(value: Any) -> str:
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, types.MethodType):
        return f"<method {value.__func__.__qualname__} of {_text(value.__self__)}>"
    if isinstance(value, _NAMED):
        return f"<{_name(value)}>"
    if isinstance(value, types.ModuleType):
        return f"<module {modules.lasting_name(value.__name__)}>"
    if isinstance(value, functools.partial):
        named = _named(value.keywords.items())
        return f"<partial {_joined([_text(value.func), *map(_text, value.args), *named])}>"
    fields = _fields(value)
    if fields is not None:
        return f"{type(value).__qualname__}({_joined(_named(fields))})"
    return _of_container(value)


def _of_container(value: Any) -> str:
    if isinstance(value, dict):
        pairs = [f"{_text(key)}: {_text(held)}" for key, held in value.items()]
        return f"{type(value).__qualname__}({{{_joined(pairs)}}})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__qualname__}({{{_joined(sorted(map(_text, value)))}}})"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__qualname__}([{_joined(map(_text, value))}])"
    return _without_process(repr(value))


def _name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return f"{modules.lasting_name(str(module))}.{value.__qualname__}"


def _fields(value: Any) -> Iterable[tuple[str | None, Any]] | None:
    """Return what an object consists of, by name, if its class declares that: what its repr shows."""
    if dataclasses.is_dataclass(value):
        shown_fields = [field.name for field in dataclasses.fields(value) if field.repr]
        return [(name, getattr(value, name)) for name in shown_fields]
    # Models of pydantic, without importing it.
    shown = getattr(type(value), "__repr_args__", None)
    if shown is not None:
        pairs: Iterable[tuple[str | None, Any]] = shown(value)
        return pairs
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=False))
    return None


def _named(fields: Iterable[tuple[str | None, Any]]) -> list[str]:
    texts: list[str] = []
    for name, held in fields:
        text = _text(held)
        if name is not None:
            text = f"{name}={text}"
        texts.append(text)
    return texts


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _without_process(text: str) -> str:
    """Return a text without what is known of this process alone."""
    program = modules.lasting_name("__main__")
    return _MAIN.sub(lambda _: f"{program}.", _ADDRESS.sub("", text))


def _shortened(text: str) -> str:
    if len(text) <= _TEXT_MAX:
        return text
    # What is cut off counts, too: other arguments must not look like these.
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
    return f"{text[:_TEXT_MAX]}... ({digest})"
