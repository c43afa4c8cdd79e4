"""Nothing that was acknowledged is lost when processes are killed."""

from __future__ import annotations

from pathlib import Path

import apsw

from everstep.stores.sqlite import connecting as sqlite_connecting
from tests.faults.harness import run

HARNESS = "kill_writers.py"


def test_kill_9_of_four_writers_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "killed.db"
    result = run(HARNESS, path, 50)
    print(result)
    assert result["faults"] == []
    assert result["acknowledged"] > 500
    connection = apsw.Connection(str(path), vfs=sqlite_connecting.checksum_vfs())
    assert connection.pragma("integrity_check") == "ok"
    connection.close()


def test_the_harness_finds_what_is_lost(tmp_path: Path) -> None:
    assert run(HARNESS, tmp_path / "lying.db", 2, "early")["fault_count"] > 0
