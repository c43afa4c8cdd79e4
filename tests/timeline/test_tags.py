"""Tags that are given to checkpoints after they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import CheckpointCorrupted, CheckpointNotFound, InvalidInput
from everstep.stores.protocol import Change, Operation
from everstep.views.history import page
from everstep.views.tags import listing


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


async def test_a_checkpoint_that_goes_takes_no_other_tag_with_it(engine: everstep.CheckpointEngine) -> None:
    ids = await _told(engine)
    for each in ids:
        await engine.tag(each, "good")
    await engine.rewind(ids[1], later="delete")
    assert (await engine.resolve("t@good")).checkpoint_id == ids[1]
    assert (await engine.verify()).findings == []


async def test_a_tag_is_of_one_checkpoint_and_one_thread(engine: everstep.CheckpointEngine) -> None:
    ids = await _told(engine, 2)
    await engine.tag(ids[0], "good")
    branch = await engine.branch(ids[1], "other")
    await engine.append(branch, [{"role": "user", "content": "On the branch."}])
    await engine.tag((await engine.resolve(branch)).checkpoint_id, "better")
    with pytest.raises(CheckpointNotFound):
        await engine.resolve("t@better")
    await engine.untag((await engine.resolve(branch)).checkpoint_id, "better")
    assert (await engine.resolve("t@good")).checkpoint_id == ids[0]
    assert (await engine.verify()).findings == []


async def test_a_tag_that_was_given_again_after_it_was_taken_away_stands(engine: everstep.CheckpointEngine) -> None:
    saved = await engine.append("t", [{"role": "user", "content": "Hello."}], tags=["draft"])
    await engine.untag(saved, "draft")
    await engine.tag(saved, "draft")
    assert (await engine.resolve("t@draft")).checkpoint_id == saved
    assert [operation.kind for operation in await engine.operations("t")] == ["tag", "untag"]


async def test_a_tag_that_was_written_and_given_again_is_there_once() -> None:
    engine = everstep.CheckpointEngine(everstep.MemoryCheckpointer())
    saved = await engine.append("t", [{"role": "user", "content": "Hello."}], tags=["draft"])
    await engine.untag(saved, "draft")
    await engine.tag(saved, "draft")
    [row] = (await page(engine, "t"))["rows"]
    assert row["tags"].count("draft") == 1
    [told] = [tag for tag in (await listing(engine, "t"))["tags"] if tag["tag"] == "draft"]
    assert told["checkpoints"] == 1


async def test_tags_stand_in_the_order_they_were_given_last_and_as_they_were_written() -> None:
    engine = everstep.CheckpointEngine(everstep.MemoryCheckpointer())
    saved = (await _told(engine, 1))[0]
    for tag in ("Good", "better"):
        await engine.tag(saved, tag)
    await engine.untag(saved, "Good")
    await engine.tag(saved, "Good")
    assert (await engine.resolve("t@Good")).checkpoint_id == saved
    with pytest.raises(CheckpointNotFound):
        await engine.resolve("t@good")
    [row] = (await page(engine, "t"))["rows"]
    assert [tag for tag in row["tags"] if tag in ("Good", "better")] == ["better", "Good"]


WRONG: dict[str, Any] = {
    "no details": {},
    "details that are a list": {"details": []},
    "no tag": {"details": {"namespace": "", "checkpoint_id": "c"}},
    "no checkpoint": {"details": {"namespace": "", "tag": "x"}},
    "a tag that is a number": {"details": {"namespace": "", "checkpoint_id": "c", "tag": 1}},
    "a namespace that is none": {"details": {"namespace": None, "checkpoint_id": "c", "tag": "x"}},
}


@pytest.mark.parametrize("kind", ["tag", "untag"])
@pytest.mark.parametrize("wrong", WRONG)
async def test_an_entry_that_does_not_say_which_tag_is_found_and_mended(kind: str, wrong: str, tmp_path: Path) -> None:
    backend = everstep.MemoryCheckpointer()
    engine = everstep.CheckpointEngine(backend)
    ids = await _told(engine)
    await engine.tag(ids[1], "good")
    await backend.store.commit(Change(thread_id="t", log=Operation(kind, WRONG[wrong])))
    with pytest.raises(CheckpointCorrupted, match="does not say which") as caught:
        await engine.resolve("t@good")
    assert caught.value.thread_id == "t"
    assert [(finding.kind, finding.thread_id) for finding in (await engine.verify()).findings] == [("operation", "t")]
    report = await engine.repair(keep=tmp_path / "kept")
    assert report.left == []
    assert (await engine.resolve("t@good")).checkpoint_id == ids[1]
    (kept,) = [json.loads(line) for line in (tmp_path / "kept").read_text().splitlines()]
    assert (kept["what"], kept["thread_id"]) == ("an operation of the log", "t")
    assert kept["stored"][:2] == [kind, WRONG[wrong]]
