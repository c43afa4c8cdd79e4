"""Public names of a package that are imported when they are first used: a program needs only some of them.

A package lists them twice: for type checkers as imports under `TYPE_CHECKING`, and for `names_from` by module.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than everything here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


def names_from(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that has these names of these modules."""
    homes: dict[str, str] = {}
    for module, held_names in modules.items():
        homes |= dict.fromkeys(held_names, module)
    held = vars(sys.modules[package])

    def get(name: str) -> Any:
        from importlib import import_module

        if f"{package}.{name}" in modules:
            # A module that holds some of the names, such as `errors`.
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        # It is asked for only once: the next time the name is found in the package itself.
        held[name] = getattr(import_module(homes[name]), name)
        return held[name]

    def names() -> list[str]:
        return sorted({*held, *homes})

    return get, names
