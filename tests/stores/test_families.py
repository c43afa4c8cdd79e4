"""What stores tell of all threads of a family at once is what they tell of each."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.stores.abilities import ReadsFamilies
from everstep.stores.protocol import Change, Key, Operation, Store
from everstep.testing import make_record, put
from tests.conftest import WITH_EXAMPLES

ODD = "ünï:{%}\n"
NAMES = ["one", "branch", "of the branch", "absent", ODD, "two"]


@pytest.fixture(params=WITH_EXAMPLES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def families(store: Store) -> Any:
    assert isinstance(store, ReadsFamilies)
    return store


def entry(kind: str) -> Operation:
    return Operation(kind, {"created_at": "2026", "details": {"of": kind}})


async def fill(store: Any) -> None:
    for name in ("one", "two", ODD):
        await store.commit(put(make_record("a", name)))
    await store.commit(put(make_record("begun", "branch"), origin=Key("one", "", "a")))
    await store.commit(put(make_record("begun", "of the branch"), origin=Key("branch", "", "begun")))
    for name in ("one", "branch", ODD):
        for number in range(3):
            await store.commit(Change(thread_id=name, log=entry(f"{name} {number}")))


@pytest.mark.parametrize("limit", [1, 2, 2000])
async def test_logs_are_told_together(families: Any, limit: int) -> None:
    await fill(families)
    expected = {name: await families.operations(name, limit) for name in NAMES}
    assert len(expected["branch"]) == min(limit, 3)
    assert expected["absent"] == expected["two"] == []
    assert await families.logs(NAMES, limit) == expected
    assert await families.logs([], limit) == {}


async def test_origins_are_told_together(families: Any) -> None:
    await fill(families)
    family = {"branch": Key("one", "", "a"), "of the branch": Key("branch", "", "begun")}
    for name in ("one", "branch", "of the branch"):
        assert await families.origins(name) == family
    assert await families.origins("two") == {}
    assert await families.origins("absent") == {}
    await families.delete("one")
    assert await families.origins("branch") == family


async def test_many_threads_are_told_together(families: Any) -> None:
    await families.commit(put(make_record("a", "t")))
    names = [f"b{number:03}" for number in range(300)]
    for name in names:
        await families.commit(put(make_record("begun", name), origin=Key("t", "", "a")))
    await families.commit(Change(thread_id="b299", log=entry("last")))
    logs = await families.logs(names, 10)
    assert {name: len(log) for name, log in logs.items() if log} == {"b299": 1}
    assert list(await families.origins("t")) == names
