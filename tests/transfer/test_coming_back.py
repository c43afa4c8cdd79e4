"""Threads that were deleted and come back from a file, beside relatives that are still there."""

from __future__ import annotations

import io
import secrets
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import CheckpointEngine, InvalidInput, MemoryCheckpointer, StoreBackend
from everstep.runtime.blocking import run_to_end
from everstep.transfer import families
from tests.timeline.histories import Walker, seen
from tests.transfer.copies import Killed, Make, Recording, stopping_after

KINDS = ["memory", "sqlite", "postgres", "redis", "cluster"]


def exported(source: Any, threads: list[str] | None = None) -> bytes:
    out = io.BytesIO()
    everstep.export_threads(source, out, threads)
    return out.getvalue()


def a_family(backend: StoreBackend) -> tuple[str, str]:
    """Make thread `t` and two branches, one of which was merged into it; return the names of the branches."""
    engine = CheckpointEngine(backend).sync
    ids = [engine.append("t", [{"role": "user", "content": secrets.token_hex(900)}], {"n": n}) for n in range(4)]
    merged = engine.branch(ids[1], "merged")
    engine.append(merged, [{"role": "user", "content": secrets.token_hex(900)}], {"from the branch": 1})
    engine.merge_branch(merged, "t")
    engine.pin(ids[0])
    other = engine.branch(ids[2], "other")
    engine.append(other, [{"role": "user", "content": secrets.token_hex(900)}])
    engine.rewind(ids[2])
    engine.append("t", [], {"last": 1})
    engine.append("stranger", [], {})
    return merged, other


def of_threads(backend: StoreBackend, *names: str) -> dict[str, Any]:
    """Return what can be seen of some threads, but for what they have in common with others."""
    found = seen(backend.store)
    told: dict[str, Any] = {}
    for name in names:
        origin, heads, *_ = found[name]["thread"]
        told[name] = {**found[name], "thread": (origin, heads)}
        # It draws the whole family.
        del told[name]["tree"]
    return told


@pytest.mark.parametrize("kind", KINDS)
class TestOnEveryStore:
    def test_a_thread_comes_back_beside_its_branches(self, kind: str, make: Make) -> None:
        backend = make(kind)
        merged, other = a_family(backend)
        data = exported(backend, ["t"])
        thread = of_threads(backend, "t")
        CheckpointEngine(backend).sync.append(other, [], {"went": "on"})
        backend.sync.delete_thread("t")
        branches = of_threads(backend, merged, other, "stranger")

        report = everstep.import_threads(io.BytesIO(data), backend)

        assert (report.threads, report.thread_ids, set(report.kept_ids)) == (1, ("t",), {merged, other})
        assert report.verified == report.checkpoints > 0
        assert of_threads(backend, "t") == thread
        assert of_threads(backend, merged, other, "stranger") == branches
        assert CheckpointEngine(backend).sync.verify().ok

    def test_a_branch_comes_back_beside_its_thread(self, kind: str, make: Make) -> None:
        backend = make(kind)
        merged, other = a_family(backend)
        data = exported(backend, ["t"])
        branch = of_threads(backend, other)
        backend.sync.delete_thread(other)
        rest = of_threads(backend, "t", merged)

        everstep.import_threads(io.BytesIO(data), backend)

        assert of_threads(backend, other) == branch
        assert of_threads(backend, "t", merged) == rest
        assert CheckpointEngine(backend).sync.verify().ok

    def test_it_can_be_used_as_before(self, kind: str, make: Make) -> None:
        backend = make(kind)
        _, other = a_family(backend)
        data = exported(backend, ["t"])
        backend.sync.delete_thread("t")
        everstep.import_threads(io.BytesIO(data), backend)
        engine = CheckpointEngine(backend).sync

        engine.undo("t")
        engine.redo("t")
        head = engine.append("t", [{"role": "user", "content": "on it goes"}])
        branch = engine.branch(head, "new")
        engine.append(branch, [], {"new": 1})
        engine.merge_branch(branch, "t")

        merged = engine.get_latest("t")
        assert merged is not None
        assert merged.state["new"] == 1
        with pytest.raises(InvalidInput, match="unrelated"):
            engine.merge_branch(other, "t")
        assert engine.verify().ok

    def test_twice_sends_nothing(self, kind: str, make: Make) -> None:
        backend = make(kind)
        a_family(backend)
        data = exported(backend, ["t"])
        backend.sync.delete_thread("t")
        first = everstep.import_threads(io.BytesIO(data), backend)
        recording = Recording(backend.store)

        second = everstep.import_threads(io.BytesIO(data), recording)

        assert recording.parts == []
        assert (second.threads, second.skipped, second.kept_ids) == (1, first.checkpoints, first.kept_ids)

    def test_what_only_branches_need_goes_with_the_next_collection(self, kind: str, make: Make) -> None:
        backend = make(kind)
        a_family(backend)
        data = exported(backend, ["t"])
        backend.sync.delete_thread("t")
        report = everstep.import_threads(io.BytesIO(data), backend)

        removed = CheckpointEngine(backend).sync.collect()

        assert 0 < removed.objects < report.objects
        assert everstep.import_threads(io.BytesIO(data), backend).verified == report.verified


def test_one_after_the_other_comes_back(make: Make) -> None:
    backend = make("sqlite")
    merged, _ = a_family(backend)
    data = exported(backend, ["t"])
    before = of_threads(backend, "t", merged)
    for name in ("t", merged):
        backend.sync.delete_thread(name)
        everstep.import_threads(io.BytesIO(data), backend)
    assert of_threads(backend, "t", merged) == before
    # Both belong to one family again.
    CheckpointEngine(backend).sync.merge_branch(merged, "t")


def test_from_a_backup(make: Make, tmp_path: Path) -> None:
    backend = make("sqlite")
    merged, other = a_family(backend)
    backend.sync.delete_thread("stranger")
    everstep.backup(backend, tmp_path / "backups")
    CheckpointEngine(backend).sync.append(other, [], {"went": "on"})
    everstep.backup(backend, tmp_path / "backups")
    thread = of_threads(backend, "t")
    backend.sync.delete_thread("t")
    branches = of_threads(backend, merged, other)

    report = everstep.restore(tmp_path / "backups", backend)

    assert (report.thread_ids, set(report.kept_ids)) == (("t",), {merged, other})
    assert of_threads(backend, "t") == thread
    assert of_threads(backend, merged, other) == branches


@pytest.mark.parametrize("seed", range(10))
def test_whatever_was_done(seed: int, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any of the threads of any history comes back as it was."""
    backend = make("memory" if seed % 2 else "sqlite")
    monkeypatch.setattr(families, "PART_CHECKPOINTS", 5)
    Walker(backend, seed, gc_policy="keep_last_n", gc_param=6 + 20 * (seed % 2)).walk(120)
    names = [name for name in seen(backend.store) if name not in ("threads", "every thread")]
    for name in names:
        raw = run_to_end(backend.store.blocking.raw(name, family_threads=True))
        assert raw is not None
        if len(raw.family_threads) == 1:
            continue
        before = of_threads(backend, *names)
        data = exported(backend, [name])
        backend.sync.delete_thread(name)
        everstep.import_threads(io.BytesIO(data), backend)
        assert of_threads(backend, *names) == before


def test_an_import_that_broke_off_anywhere_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "PART_CHECKPOINTS", 2)

    def deleted() -> tuple[StoreBackend, bytes, dict[str, Any]]:
        backend = MemoryCheckpointer()
        a_family(backend)
        data = exported(backend, ["t"])
        before = of_threads(backend, "t")
        backend.sync.delete_thread("t")
        return backend, data, before

    backend, data, _ = deleted()
    counted = Recording(backend.store)
    everstep.import_threads(io.BytesIO(data), counted)
    assert len(counted.parts) >= 5
    for stop in range(len(counted.parts)):
        backend, data, before = deleted()
        recording = Recording(backend.store)
        recording.before = stopping_after(stop)
        with pytest.raises(Killed):
            everstep.import_threads(io.BytesIO(data), recording)
        everstep.import_threads(io.BytesIO(data), backend)
        assert of_threads(backend, "t") == before


class TestWhatIsRefused:
    def test_nothing_was_deleted(self, make: Make) -> None:
        """Else somebody who wants an older state back would be told that all went well."""
        backend = make("sqlite")
        a_family(backend)
        data = exported(backend, ["t"])
        CheckpointEngine(backend).sync.append("t", [], {"later": 1})
        before = seen(backend.store)
        with pytest.raises(InvalidInput, match="exists in the target and is not a copy"):
            everstep.import_threads(io.BytesIO(data), backend)
        assert seen(backend.store) == before

    def test_another_thread_has_taken_the_name(self, make: Make) -> None:
        backend = make("sqlite")
        a_family(backend)
        data = exported(backend, ["t"])
        backend.sync.delete_thread("t")
        CheckpointEngine(backend).sync.append("t", [], {"new": 1})
        before = seen(backend.store)
        with pytest.raises(InvalidInput, match="'t' exists in the target and is not a copy"):
            everstep.import_threads(io.BytesIO(data), backend)
        assert seen(backend.store) == before
