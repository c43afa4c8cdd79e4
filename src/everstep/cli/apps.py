"""The program that has the durable functions: a file or a module, loaded, and the engines that are found in it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from everstep.cli.failures import ProgramNotLoaded

if TYPE_CHECKING:
    from everstep.engine import CheckpointEngine


def load_engines(program: str) -> list[CheckpointEngine]:
    """Return the engines of a program that have durable functions: `app.py`, `package.module`, `module:engine`."""
    name, _, path = program.partition(":")
    module = _load(name)
    found = [_attribute(module, path)] if path else list(vars(module).values())
    engines = _with_functions(found)
    if not engines:
        where = f"{path} of {name}" if path else f"the top level of {name}"
        raise ProgramNotLoaded(
            f"there is no engine with durable functions at {where}; make it there, or name it as module:engine"
        )
    return engines


def _load(name: str) -> ModuleType:
    try:
        if name.endswith(".py") or os.sep in name:
            return _load_file(Path(name).resolve())
        # As `python -m` does, which is how people start such a program.
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(name)
    except ProgramNotLoaded:
        raise
    except ModuleNotFoundError as exc:
        # Only if the program itself is missing: a module that it imports may be missing as well, which is
        # another mistake.
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise ProgramNotLoaded(f"there is no module {name}; a file is named by its path, such as app.py") from exc
        raise _not_loaded(name, exc) from exc
    except (Exception, SystemExit) as exc:
        raise _not_loaded(name, exc) from exc


def _load_file(file: Path) -> ModuleType:
    """Load a file by the name that `import` would give it, so that what it records is found by others."""
    if not file.is_file():
        raise ProgramNotLoaded(f"there is no file {file}")
    parts = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists() and folder.parent != folder:
        parts.insert(0, folder.name)
        folder = folder.parent
    name = ".".join(parts)
    sys.path.insert(0, str(folder))
    there = sys.modules.get(name)
    if there is not None:
        if Path(getattr(there, "__file__", None) or "").resolve() == file:
            return there
        raise ProgramNotLoaded(f"{file.name} has the name of a module that is loaded already; give it another name")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ProgramNotLoaded(f"{file} cannot be loaded as Python")
    # Inside a package it has to be imported by its full name, or its own relative imports would fail.
    if len(parts) > 1:
        return importlib.import_module(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # Half a module must not be found by the next import.
        del sys.modules[name]
        raise
    return module


def _not_loaded(name: str, error: BaseException) -> ProgramNotLoaded:
    """Return what went wrong while a program was loaded, and in which line of it."""
    if isinstance(error, SystemExit):
        return ProgramNotLoaded(
            f"{name} ended while it was loaded; what it does as a program belongs below if __name__ == '__main__':"
        )
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return ProgramNotLoaded(f"{name} could not be loaded: {type(error).__name__}: {error}{where}")


def _attribute(module: ModuleType, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise ProgramNotLoaded(f"{module.__name__} has no {path}")
        found = getattr(found, part)
    return found


def _with_functions(found: list[Any]) -> list[CheckpointEngine]:
    """Return the engines among these, and those of durable functions among these, each once."""
    engines: dict[int, CheckpointEngine] = {}
    for each in found:
        engine = _engine_of(each)
        if engine is not None and engine._programs.names():
            # Two views of one engine share its functions, and count as one.
            engines.setdefault(id(engine._programs), engine)
    return list(engines.values())


def _engine_of(thing: Any) -> CheckpointEngine | None:
    from everstep.durable.functions import DurableFunction, SyncDurableFunction
    from everstep.engine import CheckpointEngine, SyncEngine

    if isinstance(thing, DurableFunction):
        return thing._engine
    face = thing._face if isinstance(thing, SyncDurableFunction) else thing
    if isinstance(face, SyncEngine):
        driven = face._driven
        # A worker runs in an event loop, so the blocking view of an engine is turned into the other one.
        engine = CheckpointEngine(driven.checkpointer, driven.config)
        engine._programs = driven._programs
        return engine
    return face if isinstance(face, CheckpointEngine) else None
