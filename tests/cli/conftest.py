"""A demo store, and the command called in this process or in one of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import everstep
from everstep.cli import start
from everstep.views import demo


class Done(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


Run = Callable[..., Done]


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine, and no file of the project, says which store it is or how it looks."""
    names = ("EVERSTEP_STORE", "EVERSTEP_PROFILE", "EVERSTEP_PAGER", "EVERSTEP_DEBUG", "NO_COLOR", "FORCE_COLOR")
    for name in (*names, "PAGER", "_EVERSTEP_COMPLETE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PYTHONPATH", str(Path(everstep.__file__).parents[1]))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="session")
def demo_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo store, for those that only look."""
    path = tmp_path_factory.mktemp("demo") / "demo.db"
    config = everstep.SnapshotConfig(gc_policy="keep_all")
    with everstep.open(path, config, synchronous="off").sync as engine:
        engine._run(demo.fill(engine._driven))
    return path


@pytest.fixture
def own_file(demo_file: Path, tmp_path: Path) -> Path:
    """A copy of the demo store, for those that change something."""
    return Path(shutil.copy(demo_file, tmp_path / "own.db"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Call the command in this process."""

    def call(*arguments: object) -> Done:
        capsys.readouterr()
        code = start.main([str(argument) for argument in arguments])
        return Done(code, *capsys.readouterr())

    return call


def start_process(*arguments: object, **more: Any) -> Done:
    """Call the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "everstep", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **more.pop("env", {})},
        **more,
    )
    return Done(done.returncode, done.stdout, done.stderr)
