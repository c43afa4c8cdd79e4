"""Tags that are given to checkpoints after they were written."""

from __future__ import annotations

import pytest

import everstep
from everstep.errors import CheckpointNotFound, InvalidInput


async def _told(engine: everstep.CheckpointEngine, count: int = 4) -> list[str]:
    return [await engine.append("t", [{"role": "user", "content": str(n)}]) for n in range(count)]


async def test_a_reference_finds_the_newest_that_has_the_tag(engine: everstep.CheckpointEngine) -> None:
    ids = await _told(engine)
    await engine.tag(ids[2], "good")
    await engine.tag(ids[1], "good")
    assert (await engine.resolve("t@good")).checkpoint_id == ids[2]
    assert (await engine.resolve("t@good~1")).checkpoint_id == ids[1]


async def test_a_tag_is_taken_away_and_undo_brings_it_back(engine: everstep.CheckpointEngine) -> None:
    ids = await _told(engine)
    await engine.tag(ids[1], "good")
    await engine.untag(ids[1], "good")
    with pytest.raises(CheckpointNotFound):
        await engine.resolve("t@good")
    assert (await engine.undo("t")).kind == "untag"
    assert (await engine.resolve("t@good")).checkpoint_id == ids[1]
    await engine.undo("t")
    with pytest.raises(CheckpointNotFound):
        await engine.resolve("t@good")
    await engine.redo("t")
    assert (await engine.resolve("t@good")).checkpoint_id == ids[1]


async def test_one_that_it_was_written_with_can_be_taken_away_too(engine: everstep.CheckpointEngine) -> None:
    saved = await engine.append("t", [{"role": "user", "content": "Hello."}], tags=["draft"])
    await engine.untag(saved, "draft")
    with pytest.raises(CheckpointNotFound):
        await engine.resolve("t@draft")
    found = await engine.get(saved)
    assert found is not None
    assert "draft" in found.metadata.tags  # what was written is never changed


async def test_what_changes_nothing_is_not_logged(engine: everstep.CheckpointEngine) -> None:
    ids = await _told(engine)
    await engine.tag(ids[1], "good")
    await engine.tag(ids[1], "good")
    await engine.untag(ids[2], "good")
    assert [operation.kind for operation in await engine.operations("t")] == ["tag"]


async def test_the_head_and_what_is_written_next_are_as_before(engine: everstep.CheckpointEngine) -> None:
    ids = await _told(engine)
    await engine.tag(ids[0], "good")
    assert (await engine.resolve("t")).checkpoint_id == ids[-1]
    await _told(engine, 1)
    assert (await engine.verify()).findings == []
    assert (await engine.resolve("t@good")).checkpoint_id == ids[0]


@pytest.mark.parametrize("tag", ["", " x", "x\ny", "@x", "#1", "~", "{x}", "x" * 201, "\ud800"])
async def test_what_no_reference_could_name_is_refused(engine: everstep.CheckpointEngine, tag: str) -> None:
    ids = await _told(engine, 1)
    with pytest.raises(InvalidInput, match="tag"):
        await engine.tag(ids[0], tag)
    with pytest.raises(CheckpointNotFound):
        await engine.tag("absent", "good")
