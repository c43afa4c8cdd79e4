"""Jumping anywhere in a long history: every page of an index is that part of the whole."""

from __future__ import annotations

import random
from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointNotFound
from everstep.views import history, index
from everstep.views.graph import Graph
from everstep.views.index import Index


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "EVERY", 4)
    monkeypatch.setattr(index, "_BATCH", 7)


async def grow(engine: everstep.CheckpointEngine, chance: random.Random, threads: list[str], count: int) -> None:
    """Write steps into some of the threads, branch now and then, and merge."""
    for _ in range(count):
        name = chance.choice(threads)
        made = await engine.append(name, [{"role": "user", "content": "x"}], {name: chance.random()})
        if chance.random() < 0.15:
            threads.append(await engine.branch(made, "b", thread_id=name))
        elif chance.random() < 0.1 and len(threads) > 1 and name != threads[0]:
            await engine.merge_branch(name, threads[0], resolve="theirs")


async def check(found: Index, engine: everstep.CheckpointEngine, **asked: Any) -> None:
    whole = (await history.page(engine, "t", limit=1000, **asked))["rows"]
    assert found.total == len(whole)
    for offset in range(0, len(whole) + 2, 3):
        page = await found.page(offset, limit=5)
        assert page["rows"] == _without_gaps(whole[offset : offset + 5], page["rows"])
        assert page["offset"] == offset


def _without_gaps(rows: list[dict[str, Any]], like: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with gaps said as in others: an edge whose end is in a later page does not know of it."""
    same = [dict(row) for row in rows]
    for row, other in zip(same, like, strict=True):
        row["edges"] = [edge | {"gap": twin["gap"]} for edge, twin in zip(row["edges"], other["edges"], strict=True)]
    return same


@pytest.mark.parametrize("seed", range(4))
async def test_an_index_is_the_whole_also_after_it_has_grown(engine: everstep.CheckpointEngine, seed: int) -> None:
    chance = random.Random(seed)
    threads = ["t"]
    await grow(engine, chance, threads, 30)
    found = Index(engine, "t")
    await found.build()
    await check(found, engine)
    for _ in range(3):
        await grow(engine, chance, threads, 5)
        await found.build()
        await check(found, engine)


async def test_what_is_rewound_below_is_seen(engine: everstep.CheckpointEngine) -> None:
    ids = [await engine.append("t", [{"role": "user", "content": str(n)}]) for n in range(40)]
    visible = Index(engine, "t")
    everything = Index(engine, "t", hidden=True)
    for _ in range(2):
        for found, asked in ((visible, {}), (everything, {"hidden": True})):
            await found.build()
            await check(found, engine, **asked)
        await engine.rewind(ids[20])
        for n in range(25):
            await engine.append("t", [{"role": "user", "content": str(n)}])
    await engine.undo("t")
    await visible.build()
    await check(visible, engine)


async def test_a_page_may_be_asked_for_before_it_is_built(engine: everstep.CheckpointEngine) -> None:
    for n in range(20):
        await engine.append("t", [{"role": "user", "content": str(n)}])
    found = Index(engine, "t")
    assert [row["step"] for row in (await found.page(15, limit=3))["rows"]] == [5, 4, 3]
    with pytest.raises(CheckpointNotFound):
        await Index(engine, "absent").build()


async def test_growing_at_the_top_is_cheap(engine: everstep.CheckpointEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(200):
        await engine.append("t", [{"role": "user", "content": str(n)}])
    found = Index(engine, "t")
    await found.build()
    await engine.append("t", [{"role": "user", "content": "new"}])
    placed: list[int] = []
    place = Graph.place

    def counted(self: Graph, stored: Any, segments: Any) -> Any:
        placed.append(stored.seq)
        return place(self, stored, segments)

    monkeypatch.setattr(Graph, "place", counted)
    await found.build()
    assert len(placed) < 10
    monkeypatch.undo()
    assert [row["step"] for row in (await found.page(150, limit=2))["rows"]] == [51, 50]
