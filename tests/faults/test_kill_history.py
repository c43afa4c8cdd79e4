"""Rewind, undo, branch, merge, retention and collection are whole or not at all when processes are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import run
from tests.faults.kill_history import KINDS, PLANTS

HARNESS = "kill_history.py"
ROUNDS = 50


@pytest.mark.long
def test_kill_9_in_the_middle_of_history(tmp_path: Path) -> None:
    result = run(HARNESS, tmp_path / "killed.db", ROUNDS)
    print(result)
    assert result["faults"] == []
    assert result["rounds"] == ROUNDS
    hit = result["hit"]
    # Each kind was killed between its beginning and its end.
    assert all(hit.get(f"traveller {kind}", 0) >= 1 for kind in KINDS), hit
    assert all(hit.get(f"changer {kind}", 0) >= 1 for kind in ("rewind", "undo", "redo", "branch", "merge")), hit
    assert hit.get("collector collect", 0) >= 10
    assert hit.get("writer save", 0) >= 10
    # Some of what was killed had reached the file, and some had not.
    assert result["outcome"]["traveller done"] > 0
    assert result["outcome"]["traveller not done"] > 0
    assert sum(result["acknowledged"].values()) > 500
    assert result["bytes"] < 2_000_000


@pytest.mark.parametrize("planted", sorted(PLANTS))
def test_the_harness_finds_what_is_lost(tmp_path: Path, planted: str) -> None:
    result = run(HARNESS, tmp_path / "spoiled.db", 20, planted)
    print(result["faults"])
    assert any(word in fault for fault in result["faults"] for word in SIGNS[planted])


SIGNS = {
    "early": ["lost"],
    "object": ["missing"],
    "checkpoint": ["has lost", "the head is", "are there, or not", "checkpoint is missing"],
    "entry": ["in the log"],
    "hidden": ["visible are"],
    "head": ["the head is"],
    "unpin": ["not pinned"],
    "garbage": ["nobody needs"],
}
