"""A copy that is killed anywhere is finished by the next, also while the source is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.harness import run

HARNESS = "kill_copy.py"


@pytest.mark.long
def test_kill_9_of_a_copy(tmp_path: Path) -> None:
    result = run(HARNESS, tmp_path, 40)
    print(result)
    assert result["faults"] == []
    assert result["killed"] >= 20
    assert result["moments"] >= 5


@pytest.mark.parametrize(
    ("planted", "word"), [("object", "missing in the copy"), ("head", "was changed in the target")]
)
def test_the_harness_finds_what_is_lost(planted: str, word: str, tmp_path: Path) -> None:
    result = run(HARNESS, tmp_path, 8, planted)
    print(result)
    assert any(word in fault for fault in result["faults"])
