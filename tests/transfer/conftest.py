"""Fixtures of the tests of copies, exports and backups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep import StoreBackend
from tests.transfer.copies import Make, open_backend


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make backends of a kind, each on a store of its own."""
    made: list[StoreBackend] = []

    def backend(kind: str) -> StoreBackend:
        made.append(open_backend(kind, tmp_path, len(made)))
        return made[-1]

    yield backend
    for one in made:
        one.sync.close()
