"""Whether two values are the same, their types and all their parts included: `==` hides too much."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any


def assert_same_channels(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The order of channels is not kept; everything below is."""
    assert_same({name: found[name] for name in sorted(found)}, {name: expected[name] for name in sorted(expected)})


def assert_same(found: Any, expected: Any, path: str = "value") -> None:
    assert type(found) is type(expected), f"{path}: {type(found)} is not {type(expected)}"
    if isinstance(expected, float):
        assert repr(found) == repr(expected), path
    elif isinstance(expected, dict):
        assert list(map(repr, found)) == list(map(repr, expected)), f"{path}: keys or their order"
        for (found_key, found_item), (key, item) in zip(found.items(), expected.items(), strict=True):
            assert_same(found_key, key, f"{path} key {key!r}")
            assert_same(found_item, item, f"{path}[{key!r}]")
    elif isinstance(expected, (list, tuple, deque)):
        assert len(found) == len(expected), f"{path}: {len(found)} items, not {len(expected)}"
        for n, (found_item, item) in enumerate(zip(found, expected, strict=True)):
            assert_same(found_item, item, f"{path}[{n}]")
        assert getattr(found, "maxlen", None) == getattr(expected, "maxlen", None), path
    elif isinstance(expected, (set, frozenset)):
        assert_same(sorted(found, key=repr), sorted(expected, key=repr), path)
    elif hasattr(expected, "__pydantic_fields_set__"):
        assert_same(found.__dict__, expected.__dict__, path)
        assert found.__pydantic_fields_set__ == expected.__pydantic_fields_set__, f"{path}: fields set"
        assert_same(found.__pydantic_extra__, expected.__pydantic_extra__, f"{path} extra")
        assert_same(found.__pydantic_private__, expected.__pydantic_private__, f"{path} private")
    elif dataclasses.is_dataclass(expected):
        for field in dataclasses.fields(expected):
            assert_same(getattr(found, field.name), getattr(expected, field.name), f"{path}.{field.name}")
    elif "numpy" in sys.modules and isinstance(expected, sys.modules["numpy"].ndarray):
        assert (found.dtype, found.shape, found.flags.c_contiguous) == (
            expected.dtype, expected.shape, expected.flags.c_contiguous,
        ), path  # fmt: skip
        assert found.tobytes() == expected.tobytes(), path
    elif "numpy" in sys.modules and isinstance(expected, sys.modules["numpy"].generic):
        assert found.tobytes() == expected.tobytes(), path
    else:
        assert found == expected, path


def parts_that_change(value: Any, path: str = "value") -> dict[int, str]:
    """Return every part of a value that can be changed in place, by identity."""
    found: dict[int, str] = {}
    inside: Mapping[str, Any] = {}
    if isinstance(value, enum.Enum):
        return {}
    if isinstance(value, (dict, list, set, bytearray, deque)) or hasattr(value, "__dict__"):
        found[id(value)] = path
    if isinstance(value, dict):
        inside = {f"{path}[{key!r}]": item for key, item in value.items()}
    elif isinstance(value, (list, tuple, deque)):
        inside = {f"{path}[{n}]": item for n, item in enumerate(value)}
    elif hasattr(value, "__pydantic_fields_set__"):
        names = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
        inside = {f"{path}.{name}": getattr(value, name) for name in names}
    elif dataclasses.is_dataclass(value) and hasattr(value, "__dict__"):
        inside = {f"{path}.{name}": item for name, item in vars(value).items()}
    for where, item in inside.items():
        found |= parts_that_change(item, where)
    return found
