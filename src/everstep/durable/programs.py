"""Functions that are run durably, by name. Light: every engine has a register of them, and few use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from everstep.durable.modules import lasting_name
from everstep.errors import InvalidInput


class Program(NamedTuple):
    """A function that is run durably."""

    name: str
    function: Callable[..., Any]
    on_change: str = "error"
    is_blocking: bool = False


class Programs:
    """The durable functions of an engine: a run is taken up by the name it was recorded under."""

    def __init__(self) -> None:
        self._programs: dict[str, Program] = {}

    def add(self, program: Program) -> None:
        """Add a function, in the place of one with the same name: a module may be loaded twice."""
        before = self._programs.get(program.name)
        if before is not None and _module_of(before) != _module_of(program):
            raise InvalidInput(
                f"{_module_of(before)} and {_module_of(program)} both have a durable function {program.name!r}, and a "
                "run is taken up by that name alone: give one of them a name of its own, engine.durable(name=...)"
            )
        self._programs[program.name] = program

    def names(self) -> list[str]:
        """Return the names of all of them."""
        return list(self._programs)

    def find(self, name: str, on_change: str | None = None) -> Program:
        """Return the function of that name; `on_change` counts in place of its own."""
        found = self._programs.get(name)
        if found is None:
            known = ", ".join(map(repr, self._programs)) or "none"
            raise InvalidInput(
                f"the run is one of {name!r}, and this engine has no durable function of that name ({known}); import "
                "the module that has it first"
            )
        return found if on_change is None else found._replace(on_change=checked_on_change(on_change))


def _module_of(program: Program) -> str:
    return lasting_name(str(getattr(program.function, "__module__", "")))


def checked_on_change(on_change: object) -> str:
    """Return what is to happen if the code has changed."""
    if on_change not in ("error", "fork", "rerun"):
        raise InvalidInput(f"on_change is 'error', 'fork' or 'rerun', not {on_change!r}")
    return str(on_change)
