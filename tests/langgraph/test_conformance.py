"""LangGraph's own suite for checkpointers, all of it, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from langgraph.checkpoint.conformance import checkpointer_test, validate

from everstep.langgraph import HarnessCheckpointer
from tests.conftest import Place

EXPECTED = {
    "put": 17, "put_writes": 10, "get_tuple": 10, "list": 16, "delete_thread": 5, "delete_for_runs": 7,
    "copy_thread": 8, "prune": 8,
}  # fmt: skip


async def test_all_81_tests_of_the_suite_pass(place: Place) -> None:
    async with HarnessCheckpointer(backend=place.open()) as saver:

        @checkpointer_test(name=place.kind)
        async def registered() -> AsyncIterator[Any]:  # asked for anew by each group of tests
            yield saver

        report = await validate(registered)

    failures = [failure for result in report.results.values() for failure in result.failures or ()]
    assert not failures, "\n".join(failures)
    assert {name: result.tests_passed for name, result in report.results.items() if result.detected} == EXPECTED
    assert sum(EXPECTED.values()) == 81
