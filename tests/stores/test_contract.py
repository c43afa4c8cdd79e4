"""Every store passes the shipped contract, on both faces; and so does the one that is an example."""

import pytest

from everstep.testing import StoreContract
from tests.conftest import WITH_EXAMPLES


class TestStoreContract(StoreContract):
    @pytest.fixture(params=WITH_EXAMPLES)
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)
