"""A world that steps change, and processes that are killed."""

from __future__ import annotations

from typing import Any

import pytest


class Killed(BaseException):
    """What a test raises in the place of a kill."""


class World:
    """What steps do, counted."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.killed_at: str | None = None

    def kill_at(self, name: str | None) -> None:
        self.killed_at = name

    def do(self, name: str, result: Any = None) -> Any:
        self.calls.append(name)
        if name == self.killed_at:
            self.killed_at = None
            raise Killed(name)
        return result if result is not None else name


async def killed(run: Any) -> None:
    """Run something that is killed."""
    with pytest.raises(Killed):
        await run
