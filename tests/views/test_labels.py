"""Names of branches, notes about checkpoints, branches that are put away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.errors import AmbiguousCheckpoint, CheckpointNotFound, InvalidInput
from everstep.stores.protocol import Change, Operation
from everstep.views import actions, checkpoint, history, threads


async def _branched(engine: everstep.CheckpointEngine, name: str = "cheap") -> str:
    start = await engine.append("trip", [{"role": "user", "content": "Oslo?"}])
    branch = await engine.branch(start, name)
    await engine.append(branch, [{"role": "assistant", "content": "By bus."}])
    return branch


async def _called(engine: everstep.CheckpointEngine, thread_id: str) -> tuple[str, bool]:
    found = await threads.one(engine, thread_id)
    return found["name"], found["archived"]


async def _listed(engine: everstep.CheckpointEngine, **asked: Any) -> set[str]:
    return {thread["name"] for thread in (await threads.page(engine, **asked))["threads"]}


async def test_a_branch_is_called_by_another_name_and_keeps_its_id(engine: everstep.CheckpointEngine) -> None:
    branch = await _branched(engine)
    head = (await engine.resolve(branch)).checkpoint_id
    await engine.rename_branch(branch, "by bus")
    assert await _called(engine, branch) == ("by bus", False)
    for ref in (branch, "trip@by bus", "trip@cheap"):
        assert (await engine.resolve(ref)).checkpoint_id == head
    await engine.append(branch, [{"role": "user", "content": "Fine."}])
    assert await _listed(engine, text="BY BUS") == {"by bus"}
    await engine.rename_branch(branch, "")
    assert await _called(engine, branch) == ("cheap", False)
    with pytest.raises(CheckpointNotFound):
        await engine.resolve("trip@by bus")
    assert (await engine.verify()).findings == []


async def test_undo_takes_a_name_back_and_redo_gives_it_again(engine: everstep.CheckpointEngine) -> None:
    branch = await _branched(engine)
    await engine.rename_branch(branch, "by bus")
    await engine.rename_branch(branch, "by coach")
    await engine.rename_branch(branch, "by coach")  # changes nothing, so there is nothing to undo
    assert (await engine.undo(branch)).kind == "rename"
    assert await _called(engine, branch) == ("by bus", False)
    await engine.undo(branch)
    assert await _called(engine, branch) == ("cheap", False)
    await engine.redo(branch)
    await engine.redo(branch)
    assert await _called(engine, branch) == ("by coach", False)


async def test_a_name_that_two_branches_have_is_ambiguous(engine: everstep.CheckpointEngine) -> None:
    start = await engine.append("trip", [])
    for name in ("a", "b"):
        await engine.rename_branch(await engine.branch(start, name), "same")
    with pytest.raises(AmbiguousCheckpoint) as failed:
        await engine.resolve("trip@same")
    assert len(failed.value.candidates) == 2


async def test_the_name_that_a_branch_has_now_comes_before_one_that_another_had(
    engine: everstep.CheckpointEngine,
) -> None:
    start = await engine.append("trip", [])
    first = await engine.branch(start, "cheap")
    other = await engine.branch(start, "scenic")
    await engine.rename_branch(first, "by bus")
    assert (await engine.resolve("trip@cheap")).thread_id == first
    await engine.rename_branch(other, "cheap")
    assert (await engine.resolve("trip@cheap")).thread_id == other
    assert (await engine.resolve("trip@by bus")).thread_id == first
    await engine.rename_branch(first, "")
    with pytest.raises(AmbiguousCheckpoint) as failed:
        await engine.resolve("trip@cheap")
    assert set(failed.value.candidates) == {first, other}


async def test_a_branch_beside_another_of_its_name_does_not_stand_for_itself(engine: everstep.CheckpointEngine) -> None:
    start = await engine.append("trip", [])
    one = await engine.branch(start, "cheap")
    assert (await engine.resolve("cheap")).thread_id == one
    assert (await engine.resolve("cheap", thread_id=one)).thread_id == one
    await engine.branch(start, "cheap")
    for thread in (None, one):
        with pytest.raises(AmbiguousCheckpoint):
            await engine.resolve("cheap", thread_id=thread)
    await engine.rename_branch(one, "by bus")
    assert (await engine.resolve("by bus", thread_id=one)).thread_id == one


async def test_people_are_refused_a_name_that_another_branch_of_the_family_has(
    engine: everstep.CheckpointEngine,
) -> None:
    branch = await _branched(engine)
    beside = await engine.branch((await engine.resolve("trip")).checkpoint_id, "scenic")
    for ref in ("trip", branch, beside):
        with pytest.raises(InvalidInput, match="already"):
            await actions.fork(engine, ref, "cheap")
    with pytest.raises(InvalidInput, match="already"):
        await actions.rename(engine, beside, "cheap")
    assert await _listed(engine) == {"trip", "cheap", "scenic"}
    # The one that has it may keep it, and an old name is free.
    await actions.rename(engine, branch, "cheap")
    await actions.rename(engine, branch, "by bus")
    await actions.fork(engine, "trip", "cheap")
    with pytest.raises(InvalidInput, match="already"):
        await actions.rename(engine, branch, "")
    # Programs, which go by ids, may call branches as they like; so may other families.
    assert await engine.branch((await engine.resolve("trip")).checkpoint_id, "cheap") != branch
    await engine.append("elsewhere", [])
    await actions.fork(engine, "elsewhere", "cheap")


async def test_an_archived_branch_is_left_out_of_lists_and_works_as_before(engine: everstep.CheckpointEngine) -> None:
    branch = await _branched(engine)
    await engine.archive_branch(branch)
    assert await _listed(engine) == {"trip"}
    assert await _listed(engine, archived=True) == {"trip", "cheap"}
    assert await _listed(engine, text="cheap") == set()
    assert {thread.thread_id for thread in await engine.list_threads()} == {"trip", branch}
    await engine.append(branch, [{"role": "user", "content": "Fine."}])
    await engine.merge_branch(branch, "trip")
    assert await _called(engine, branch) == ("cheap", True)
    await engine.unarchive_branch(branch)
    assert await _listed(engine) == {"trip", "cheap"}
    await engine.archive_branch(branch)
    await engine.undo(branch)
    assert await _listed(engine) == {"trip", "cheap"}
    assert (await engine.verify()).findings == []


async def test_only_branches_are_renamed_and_archived(engine: everstep.CheckpointEngine) -> None:
    branch = await _branched(engine)
    for act in (engine.archive_branch, engine.unarchive_branch, lambda name: engine.rename_branch(name, "x")):
        with pytest.raises(InvalidInput, match="not a branch"):
            await act("trip")
        with pytest.raises(CheckpointNotFound):
            await act("absent")
    for name in (" x", "x\ny", "x" * 513, "\ud800"):
        with pytest.raises(InvalidInput, match="name"):
            await engine.rename_branch(branch, name)


async def test_a_branch_whose_beginning_is_gone_keeps_its_name(engine: everstep.CheckpointEngine) -> None:
    branch = await _branched(engine)
    await engine.rename_branch(branch, "by bus")
    await engine.checkpointer.delete_thread("trip")
    assert await _called(engine, branch) == ("by bus", False)
    await engine.archive_branch(branch)
    assert await _called(engine, branch) == ("by bus", True)


async def test_retention_takes_neither_the_name_nor_the_mark(engine: everstep.CheckpointEngine) -> None:
    branch = await _branched(engine)
    await engine.rename_branch(branch, "first")
    await engine.rename_branch(branch, "by bus")
    await engine.archive_branch(branch)
    await engine.note((await engine.resolve(branch)).checkpoint_id, "soon gone", thread_id=branch)
    keeping = everstep.CheckpointEngine(
        engine.checkpointer, everstep.SnapshotConfig(gc_policy="keep_last_n", gc_param=2)
    )
    for number in range(10):
        await keeping.append(branch, [{"role": "user", "content": str(number)}])
    await keeping.collect()
    assert [operation.kind for operation in await engine.operations(branch)] == ["archive", "rename"]
    assert await _called(engine, branch) == ("by bus", True)
    assert (await engine.verify()).findings == []


async def test_a_note_is_kept_beside_what_was_written(engine: everstep.CheckpointEngine) -> None:
    saved = await engine.append("trip", [{"role": "user", "content": "Oslo?"}])
    other = await engine.append("trip", [{"role": "user", "content": "Bergen?"}])
    await engine.note(saved, "  the one to keep,\nsays Ada ")
    assert (await checkpoint.detail(engine, f"trip@{saved}"))["note"] == "the one to keep,\nsays Ada"
    assert (await checkpoint.detail(engine, f"trip@{other}"))["note"] == ""
    await engine.note(saved, "another")
    await engine.note(saved, "another")
    assert [operation.kind for operation in await engine.operations("trip")] == ["note", "note"]
    await engine.undo("trip")
    assert (await checkpoint.detail(engine, f"trip@{saved}"))["note"] == "the one to keep,\nsays Ada"
    await engine.note(saved, "")
    assert (await checkpoint.detail(engine, f"trip@{saved}"))["note"] == ""
    with pytest.raises(InvalidInput, match="note"):
        await engine.note(saved, "x" * 8193)
    with pytest.raises(CheckpointNotFound):
        await engine.note("absent", "x")
    assert (await engine.verify()).findings == []


async def test_names_and_notes_come_along_into_another_store(engine: everstep.CheckpointEngine, tmp_path: Path) -> None:
    branch = await _branched(engine)
    await engine.rename_branch(branch, "by bus")
    await engine.archive_branch(branch)
    head = (await engine.resolve(branch)).checkpoint_id
    await engine.note(head, "the one", thread_id=branch)
    await everstep.export_threads_async(engine, tmp_path / "trip.everstep", ["trip"])
    async with everstep.open("memory://") as other:
        await everstep.import_threads_async(tmp_path / "trip.everstep", other)
        assert await _called(other, branch) == ("by bus", True)
        assert (await checkpoint.detail(other, branch))["note"] == "the one"
        assert (await other.undo(branch)).kind == "note"


WRONG: dict[str, tuple[str, Any]] = {
    "no details": ("rename", {}),
    "no name": ("rename", {"details": {}}),
    "a name that is a number": ("rename", {"details": {"name": 1}}),
    "an archive without details": ("archive", {"details": []}),
    "a note about nothing": ("note", {"details": {"note": "x"}}),
    "a note that is none": ("note", {"details": {"namespace": "", "checkpoint_id": "c", "note": None}}),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_an_entry_that_does_not_say_what_is_found_and_mended(wrong: str, tmp_path: Path) -> None:
    backend = everstep.MemoryCheckpointer()
    engine = everstep.CheckpointEngine(backend)
    branch = await _branched(engine)
    kind, data = WRONG[wrong]
    await backend.store.commit(Change(thread_id=branch, log=Operation(kind, data)))
    found = (await engine.verify()).findings
    assert [(finding.kind, finding.thread_id) for finding in found] == [("operation", branch)]
    if kind != "archive":
        damage = (await checkpoint.detail(engine, branch))["damage"]
        assert "does not say what" in damage["reason"]
        assert (await history.page(engine, branch))["damage"] == damage
    assert "cheap" in await _listed(engine, archived=True)
    report = await engine.repair(keep=tmp_path / "kept")
    assert report.left == []
    found_after = await checkpoint.detail(engine, branch)
    assert (found_after["note"], found_after["damage"]) == ("", None)
