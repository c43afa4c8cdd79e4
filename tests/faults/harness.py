"""How the tests run a harness that kills processes: in a process of its own, with a seed that is printed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(harness: str, path: Path, rounds: int, *more: str) -> dict[str, Any]:
    """Return what the harness of that name found."""
    seed = random.SystemRandom().randrange(10**6)
    print("seed", seed)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / harness), str(path), str(rounds), str(seed), *more],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result
