"""What the tests of the LangGraph saver share with other processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Place
from tests.langgraph.tools import FacedSaver
from tests.tools import servers


@pytest.fixture
def shared(place: Place, saver: FacedSaver) -> tuple[str, dict[str, Any]]:
    """Where the store of the saver under test is, for other processes."""
    if place.kind == "sqlite":
        return str(place.path), {}
    if place.kind == "postgres":
        return servers.postgres(), {}
    return servers.redis(), {"key_prefix": place._prefix}
