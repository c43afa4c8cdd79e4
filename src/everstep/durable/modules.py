"""Names of modules that mean the same in every process.

A program that is started as a file is the module `__main__` in its own process, and is imported by its name in a
worker. What is recorded in one must be found in the other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_MAIN = "__main__"


def lasting_name(module: str) -> str:
    """Return the name by which other processes know a module of this one."""
    if module == _MAIN:
        return _main_name() or module
    return module


def loaded(name: str) -> Any:
    """Return the module of that name, if this process has loaded it."""
    found = sys.modules.get(name)
    if found is None and name == _main_name():
        return sys.modules.get(_MAIN)
    return found


def _main_name() -> str | None:
    """Return the name under which the program of this process would be imported."""
    main = sys.modules.get(_MAIN)
    spec = getattr(main, "__spec__", None)
    # Started with `python -m`: the name is that of the module, and for a package that of the package.
    if spec is not None:
        return str(spec.name).removesuffix(f".{_MAIN}")
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else None
