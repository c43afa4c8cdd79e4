"""Arguments from outside, checked once at the door. Everything behind may rely on them."""

from __future__ import annotations

from typing import Any

from everstep.errors import InvalidInput

THREAD_ID_BYTES_MAX = 1024
CHECKPOINT_ID_BYTES_MAX = 2048
NAMESPACE_BYTES_MAX = 4096


def thread_id(value: object) -> str:
    """Return `value` if it can name a thread: any text but the empty one, up to 1,024 bytes of UTF-8."""
    # Most names are short and plain.
    if type(value) is str and 0 < len(value) <= THREAD_ID_BYTES_MAX and value.isascii():
        return value
    return _text(value, "thread_id", THREAD_ID_BYTES_MAX)


def checkpoint_id(value: object) -> str:
    """Return `value` if it can name a checkpoint: any text but the empty one, up to 2,048 bytes of UTF-8."""
    if type(value) is str and 0 < len(value) <= CHECKPOINT_ID_BYTES_MAX and value.isascii():
        return value
    return _text(value, "checkpoint_id", CHECKPOINT_ID_BYTES_MAX)


def namespace(value: object) -> str:
    """Return `value` if it can name a namespace: any text, also the empty one, up to 4,096 bytes of UTF-8."""
    return "" if value == "" and isinstance(value, str) else _text(value, "namespace", NAMESPACE_BYTES_MAX)


def count(value: object, name: str) -> int:
    """Return `value` if it is a whole number from 0 on."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise InvalidInput(f"{name} is a whole number, 0 or more, not {shown(value)}")
    return value


def whole(value: object, name: str) -> int:
    """Return `value` if it is a whole number that databases can hold."""
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**62) <= value < 2**62:
        raise InvalidInput(f"{name} is a whole number of at most 62 bits, not {shown(value)}")
    return value


def seconds(value: object, name: str, *, above_zero: bool = False) -> float:
    """Return `value` if it is a finite number of seconds, 0 or more, or above 0."""
    wanted = "a number above 0" if above_zero else "a number, 0 or more"
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InvalidInput(f"{name} is {wanted}, not {shown(value)}")
    if above_zero and value == 0:
        raise InvalidInput(f"{name} is {wanted}, not {shown(value)}")
    return float(value)


def text(value: object, name: str, bytes_max: int = 65536) -> str:
    """Return `value` if it is text, maybe empty, that can be encoded."""
    if type(value) is str and len(value) <= bytes_max and value.isascii():
        return value
    return "" if value == "" and isinstance(value, str) else _text(value, name, bytes_max)


def kind(value: Any, expected: type, name: str) -> Any:
    """Return `value` if it is of the expected type."""
    if not isinstance(value, expected):
        raise InvalidInput(f"{name} is a {expected.__name__}, not {type(value).__name__}")
    return value


def shown(value: object) -> str:
    """Return a short text for an error message, whatever the value's own repr does."""
    try:
        return f"{value!r:.100}"
    except Exception:
        return f"a {type(value).__name__}"


def _text(value: object, name: str, bytes_max: int) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} is a string, not {type(value).__name__}")
    if not value:
        raise InvalidInput(f"{name} is empty; give it a name")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as exc:
        raise InvalidInput(f"{name} is not valid Unicode: it has a lone surrogate") from exc
    if size > bytes_max:
        raise InvalidInput(f"{name} is {size:,} bytes long in UTF-8, the limit is {bytes_max:,}")
    return str(value)
