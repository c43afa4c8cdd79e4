"""Examples as modules: they are files to be run, in no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

from everstep.stores.protocol import Store

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """Return an example, which is loaded once."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def lmdb_store(path: Path) -> Store:
    """Return the store of an example."""
    return cast(Store, load("lmdb_store").LMDBStore(path))
