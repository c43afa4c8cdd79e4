"""LangGraph's own serializer, as an import reads with it: it loses no class, and decodes nothing twice in a row."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import ormsgpack

from everstep.errors import MissingDependency, UnregisteredType

_MEMO_BYTES_MAX = 32 << 20
_MEMO_ITEM_BYTES_MAX = 1 << 20
_PLAIN = frozenset((type(None), bool, int, float, str, bytes, list, dict))


def stock_serializer() -> Any:
    """Return LangGraph's own serializer, but one that refuses what it cannot rebuild instead of losing its class."""
    try:
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    except ImportError as exc:
        raise MissingDependency("langgraph-checkpoint", "langgraph") from exc
    return refusing(JsonPlusSerializer())


def refusing(serde: Any) -> Any:
    """Return LangGraph's own serializer as one that loses no class; another one is left as it is."""
    return _with_hook(serde, _Refusing(serde._unpack_ext_hook)) if _is_stock(serde) else serde


def _is_stock(serde: Any) -> bool:
    kind = f"{type(serde).__module__}.{type(serde).__qualname__}"
    return kind == "langgraph.checkpoint.serde.jsonplus.JsonPlusSerializer"


def remembering(serde: Any) -> Any:
    """Return a serializer that does not decode again what it has decoded a moment ago, if that is possible."""
    if _is_stock(serde):
        return _with_hook(serde, _Memo(serde._unpack_ext_hook))
    kind = f"{type(serde).__module__}.{type(serde).__qualname__}"
    if kind == "langgraph.checkpoint.serde.encrypted.EncryptedSerializer":
        clone = copy.copy(serde)
        clone.serde = remembering(serde.serde)
        return clone
    return serde


Hook = Callable[[int, bytes], Any]


def _with_hook(serde: Any, hook: Hook) -> Any:
    clone = copy.copy(serde)
    clone._unpack_ext_hook = hook
    return clone


class _Memo:
    """Objects by the bytes they were decoded from. Bounded: what was not asked for lately goes."""

    def __init__(self, decode: Hook) -> None:
        self._decode = decode
        self._recent: dict[tuple[int, bytes], Any] = {}
        self._older: dict[tuple[int, bytes], Any] = {}
        self._size = 0

    def __call__(self, code: int, data: bytes) -> Any:
        if len(data) > _MEMO_ITEM_BYTES_MAX:
            return self._decode(code, data)
        key = (code, data)
        found = self._recent.get(key)
        if found is None:
            found = self._older.get(key)
            if found is None:
                found = self._decode(code, data)
            self._recent[key] = found
            self._size += len(data)
            if self._size > _MEMO_BYTES_MAX:
                self._older, self._recent, self._size = self._recent, {}, 0
        return found


class _Refusing:
    """Raises where the stock hook would give the bare parts of an object instead of it."""

    def __init__(self, decode: Hook) -> None:
        self._decode = decode
        self.refused: UnregisteredType | None = None
        """What was raised last: the decoder hides it."""

    def __call__(self, code: int, data: bytes) -> Any:
        # This refuses what it finds inside, too.
        inner = ormsgpack.unpackb(data, ext_hook=self, option=ormsgpack.OPT_NON_STR_KEYS)
        found = self._decode(code, data)
        if type(found) in _PLAIN and isinstance(inner, list):
            self.refused = UnregisteredType(
                ".".join(map(str, inner[:2])),
                "which cannot be rebuilt here, so its class would be lost; make its module importable, or pass "
                "serde=JsonPlusSerializer() to take its bare parts, as the stock saver does",
            )
            raise self.refused
        return found
