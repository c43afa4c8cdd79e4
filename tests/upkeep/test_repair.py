"""Repair: what is damaged is set aside in a file, all else reads exactly as before, and the thread goes on."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import everstep
from everstep.errors import EverstepError, InvalidInput
from everstep.stores.sqlite.schema import PAGE_BYTES
from tests.upkeep.sites import Site, SQLiteSite, engine_of, site

SOME = {
    "memory": ("c lost", "o lost", "t lost", "l lost", "e lost", "h lost", "m lost", "r lost"),
    "sealed": ("c flipped", "o flipped", "t flipped", "l cut", "w cut", "h flipped", "r flipped", "k flipped", "@ cut"),
    "sqlite": (
        "families lost", "threads lost", "lines lost", "segments lost", "checkpoints lost", "objects lost",
        "hidden lost", "covers lost", "facts lost", "counters lost", "threads.origin", "lines.head changed",
        "lines.total", "checkpoints.info", "checkpoints.root", "checkpoints.children", "checkpoints.segment",
        "objects.body", "objects.hash", "writes.info", "operations.data", "segments.data", "shared_states.data",
        "lines.id", "threads.family",
    ),
    "postgres": (
        "names lost", "families lost", "threads lost", "checkpoints lost", "objects lost", "hidden lost",
        "segments lost", "checkpoints.info", "objects.body", "operations.data", "lines.stored", "lines.head changed",
    ),
    "redis": (
        "item", "heads lost", ":index lost", "threads lost", "objects b", "log b", "segments b", "ids b", "pins lost",
        "hidden lost",
    ),
}  # fmt: skip
"""By store: what is harmed, by the beginning of its name, or a part of it."""


def chosen(harmed: Site) -> Iterator[tuple[str, object]]:
    """Yield the first harm of each kind."""
    left = list(SOME[harmed.kind])
    for name, harm in list(harmed.harms()):
        for kind in left:
            if kind in name:
                left.remove(kind)
                yield name, harm
                break
    assert not left, left


@pytest.fixture
def keep(tmp_path: Path) -> Path:
    return tmp_path / "kept.jsonl"


@pytest.mark.parametrize("kind", SOME)
def test_what_is_whole_stays_and_the_thread_goes_on(kind: str, tmp_path: Path, keep: Path) -> None:
    harmed = site(kind, tmp_path)
    others = harmed.others()
    for name, harm in chosen(harmed):
        harmed.put_back()
        keep.unlink(missing_ok=True)
        harm()  # type: ignore[operator]
        engine = engine_of(harmed.open())
        if engine.verify().ok:
            continue  # see test_faults
        before = harmed.readable()
        report = engine.repair(keep=keep)
        assert report.ok, (name, str(report))
        assert report.found, name
        assert report.kept_in in (None, str(keep)), name
        assert harmed.verified().ok, name
        assert harmed.others() == others, name
        after = harmed.readable()
        lost = {key: value for key, value in before.items() if after.get(key) != value}
        if "covers" not in name:  # what was shown by mistake is hidden again
            assert not lost, (name, lost, str(report))
        again = engine_of(harmed.open())
        assert again.append("t", [{"role": "user", "content": "more"}]), name
        assert again.repair(keep=tmp_path / "none").found == [], name
    harmed.close()


def test_a_dry_run_tells_and_changes_nothing(tmp_path: Path, keep: Path) -> None:
    harmed = site("sqlite", tmp_path)
    for kind in ("objects.body", "checkpoints.info", "hidden lost"):
        harmed.put_back()
        harm = next(harm for name, harm in harmed.harms() if name.startswith(kind))
        harm()
        engine = engine_of(harmed.open())
        found = engine.verify().findings
        report = engine.repair(dry_run=True, keep=keep)
        assert report.found == found
        assert report.dry_run
        assert not report.ok
        assert not keep.exists()
        assert engine.verify().findings == found
        if kind != "hidden lost":
            assert report.removed
            assert all(thread in harmed.touched for thread, _, _ in report.removed)
    harmed.close()


def test_a_dry_run_tells_what_the_repair_then_does(tmp_path: Path, keep: Path) -> None:
    """Damage may hide other damage: a page that cannot be read hides all that is on it."""
    harmed = site("sqlite", tmp_path)
    tried = 0
    for name, harm in chosen(harmed):
        harmed.put_back()
        keep.unlink(missing_ok=True)
        harm()  # type: ignore[operator]
        engine = engine_of(harmed.open())
        told = engine.repair(dry_run=True, keep=keep)
        done = engine.repair(keep=keep)
        # The name of a file that is kept holds the time.
        assert [_undated(each) for each in told.actions] == [_undated(each) for each in done.actions], name
        assert (told.removed, told.threads, told.found) == (done.removed, done.threads, done.found), name
        assert told.left == done.left, name
        tried += bool(told.found)
    assert tried > 3
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and path.name.startswith(".")], "copies are gone"
    harmed.close()


def _undated(action: str) -> str:
    return re.sub(r"\d{15,}", "TIME", action)


def test_what_was_set_aside_is_in_the_file(tmp_path: Path, keep: Path) -> None:
    harmed = site("sqlite", tmp_path)
    harm = next(harm for name, harm in harmed.harms() if name.startswith("checkpoints.info"))
    harm()
    report = engine_of(harmed.open()).repair(keep=keep)
    assert report.kept_in == str(keep)
    rows = [json.loads(line) for line in keep.read_text().splitlines()]
    assert [(row["thread_id"], row["namespace"], row["checkpoint_id"]) for row in rows] == report.removed
    assert rows[0]["stored"][0] == "checkpoints"
    assert any(isinstance(value, dict) and value["base64"] for value in rows[0]["stored"])
    with pytest.raises(InvalidInput, match="exists already"):
        engine_of(harmed.open()).repair(keep=keep)
    harmed.close()


def test_a_whole_store_is_left_alone(tmp_path: Path, keep: Path) -> None:
    harmed = site("sqlite", tmp_path)
    report = engine_of(harmed.open()).repair(keep=keep)
    assert report == everstep.RepairReport()
    assert str(report) == "nothing to repair"
    assert not keep.exists()
    harmed.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_of_the_file_costs_little(seed: int, tmp_path: Path, keep: Path) -> None:
    """One wrong bit on any page but the first: what it is part of goes, and all the rest can be read again."""
    harmed = site("sqlite", tmp_path)
    assert isinstance(harmed, SQLiteSite)
    whole = harmed.others() | {"family": harmed.readable()}
    harmed.close_stores()
    chance = random.Random(seed)
    for _ in range(3):
        harmed.put_back()
        data = bytearray(harmed.path.read_bytes())
        at = chance.randrange(PAGE_BYTES, len(data))
        data[at] ^= 1 << chance.randrange(8)
        harmed.path.write_bytes(data)
        keep.unlink(missing_ok=True)
        store = harmed.open()
        report = engine_of(store).repair(keep=keep)
        assert report.ok, (at, str(report))
        assert harmed.verified().ok, at
        found = harmed.others() | {"family": harmed.readable()}
        everything = {f"{name} {key}" for name in ("before", "after") for key, _ in whole[name]} | set(whole["family"])
        left = {f"{name} {key}" for name in ("before", "after") for key, _ in found[name]} | set(found["family"])
        assert len(left) >= len(everything) / 2, (at, sorted(everything - left))
        assert engine_of(harmed.open()).append("t", [{"role": "user", "content": "more"}])
    harmed.close()


def test_a_file_that_was_cut_off_gives_what_is_left(tmp_path: Path, keep: Path) -> None:
    harmed = site("sqlite", tmp_path)
    assert isinstance(harmed, SQLiteSite)
    harmed.close_stores()
    data = harmed.path.read_bytes()
    harmed.path.write_bytes(data[: len(data) // PAGE_BYTES * 3 // 4 * PAGE_BYTES])
    report = None
    try:
        report = engine_of(harmed.open()).repair(keep=keep)
    except EverstepError as exc:
        pytest.fail(f"{exc!r}")
    assert report.ok, str(report)
    assert harmed.verified().ok
    assert list(tmp_path.glob("store.db.*.damaged")), "the file as it was is kept"
    harmed.close()


def test_an_error_names_the_thread_and_what_helps(tmp_path: Path) -> None:
    """Also where a page of the file is damaged, which has rows of many threads."""
    harmed = site("sqlite", tmp_path)
    assert isinstance(harmed, SQLiteSite)
    whole = harmed.path.read_bytes()
    told: list[str] = []
    for at in range(len(whole) - PAGE_BYTES, 3 * PAGE_BYTES, -PAGE_BYTES):
        harmed.put_back()
        data = bytearray(whole)
        data[at + PAGE_BYTES // 2] ^= 4
        harmed.path.write_bytes(data)
        try:
            engine_of(harmed.open()).get_latest("t")
        except everstep.CheckpointCorrupted as exc:
            if exc.thread_id is not None:  # else it could not be opened
                told.append(str(exc))
    assert told
    assert all("thread 't'" in text and "`everstep repair`" in text for text in told)
    harmed.close_stores()
