"""Context variables that hold something for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Let a variable hold a value inside the block."""
    before = variable.get()
    variable.set(value)
    # Not by a token: a coroutine may be closed in another context than it was begun in.
    try:
        yield
    finally:
        variable.set(before)
