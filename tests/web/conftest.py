"""Stores to look at, and clients that look at them as the page does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import everstep
from everstep import SnapshotConfig
from everstep.views import demo
from everstep.web import app

ORIGIN = "http://127.0.0.1:8787"
PAGE_HEADERS = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
"""What a browser sends with the requests of the page itself."""


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the demo data; tests that change something copy it."""
    path = tmp_path_factory.mktemp("told") / "demo.db"
    asyncio.run(_tell(path))
    return path


async def _tell(path: Path) -> None:
    async with everstep.open(path, SnapshotConfig(gc_policy="keep_all"), synchronous="off") as engine:
        await demo.fill(engine)


@pytest.fixture
def path(told: Path, tmp_path: Path) -> Path:
    """A copy of the demo data."""
    copied = tmp_path / "demo.db"
    copied.write_bytes(told.read_bytes())
    return copied


@pytest.fixture
def client(path: Path) -> Iterator[TestClient]:
    with TestClient(app(path), base_url=ORIGIN, headers=PAGE_HEADERS) as found:
        yield found
