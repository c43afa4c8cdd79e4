"""Nothing that was acknowledged is lost when processes are killed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import apsw

from everstep.stores import sqlite

HARNESS = Path(__file__).parent / "kill_writers.py"


def run(path: Path, rounds: int, *more: str) -> dict[str, Any]:
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(path), str(rounds), str(seed), *more],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_kill_9_of_four_writers_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "killed.db"
    result = run(path, 50)
    print(result)
    assert result["faults"] == []
    assert result["acknowledged"] > 500
    connection = apsw.Connection(str(path), vfs=sqlite._checksum_vfs())
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def test_the_harness_finds_what_is_lost(tmp_path: Path) -> None:
    assert run(tmp_path / "lying.db", 2, "early")["fault_count"] > 0
