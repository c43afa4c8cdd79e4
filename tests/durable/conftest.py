"""What the tests of durable runs share: an engine on each store, and a world that steps change."""

from __future__ import annotations

import pytest

import everstep
from everstep.stores.protocol import Store
from tests.durable.worlds import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def engine(store: Store) -> everstep.CheckpointEngine:
    whole = getattr(store, "whole", store)
    return everstep.CheckpointEngine(everstep.StoreBackend(whole))
