"""Retention, deletion, names, moving: what is asked before something is lost, and what is left afterwards."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import everstep
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.stores.sqlite.schema import PAGE_BYTES
from tests.cli import schemas
from tests.cli.conftest import Run


def count(file: Path, thread: str) -> int:
    with everstep.open(file).sync as engine:
        return len(engine.list_time_travel_points(thread, 10_000))


def test_nothing_is_deleted_without_yes(run: Run, own_file: Path) -> None:
    for words in (
        ["rm", "onboarding-ada"],
        ["purge", "--all"],
        ["branch", "delete", "trip-to-oslo"],
        ["retention", "apply", "--policy", "keep_last_n", "--keep", "2"],
    ):
        done = run(*words, "--store", own_file, "--json")
        assert done.code == 2, words
        assert done.out == ""
    assert count(own_file, "onboarding-ada") == 6
    assert count(own_file, "support-4711") == 412


def test_a_dry_run_tells_and_deletes_nothing(run: Run, own_file: Path) -> None:
    removed = run("rm", "onboarding-ada", "--dry-run", "--store", own_file, "--json").json
    purged = run("purge", "--all", "--dry-run", "--store", own_file, "--json").json
    kept = run(
        "retention", "apply", "--policy", "keep_last_n", "--keep", "2", "--dry-run", "--store", own_file, "--json"
    )

    assert removed == {"schema": "everstep/v1", "threads": ["onboarding-ada"], "checkpoints": 6, "dry_run": True}
    assert purged["checkpoints"] > 412
    assert kept.json["checkpoints"] > 400
    assert count(own_file, "support-4711") == 412


def test_rm_names_what_it_does_not_find_and_deletes_nothing_then(run: Run, own_file: Path) -> None:
    done = run("rm", "onboarding-ada", "nobody", "--yes", "--store", own_file)

    assert done.code == 3
    assert count(own_file, "onboarding-ada") == 6


def test_purge_needs_to_know_what(run: Run, own_file: Path) -> None:
    refused = run("purge", "--yes", "--store", own_file)
    assert refused.code == 2
    assert "--all" in refused.err


def test_purge_removes_what_matches(run: Run, own_file: Path) -> None:
    done = run("purge", "--prefix", "trip-to-oslo-branch", "--yes", "--store", own_file, "--json").json

    assert len(done["threads"]) == 3
    names = [thread["thread_id"] for thread in run("threads", "--store", own_file, "--json").json["threads"]]
    assert "trip-to-oslo" in names
    assert not [name for name in names if "branch" in name]
    assert count(own_file, "support-4711") == 412  # no policy of retention came along


def test_retention_applies_the_policy_of_a_file(run: Run, own_file: Path, tmp_path: Path) -> None:
    (tmp_path / "everstep.toml").write_text('store = "own.db"\nretention = { policy = "keep_last_n", param = 10 }\n')

    shown = run("retention", "show", "--json").json
    run("retention", "apply", "support-4711", "--yes")

    assert shown["policy"] == "keep_last_n"
    assert shown["source"] == str(tmp_path / "everstep.toml")
    assert count(own_file, "support-4711") == 10


def test_a_policy_without_a_number_is_refused(run: Run, demo_file: Path) -> None:
    assert run("retention", "plan", "--policy", "keep_age", "--store", demo_file).code == 2


def test_gc_and_writing_from_a_shell_never_apply_a_retention(run: Run, own_file: Path) -> None:
    run("gc", "--store", own_file)
    run("pin", "support-4711", "--store", own_file)
    assert count(own_file, "support-4711") == 412


def test_a_branch_is_listed_and_deleted(run: Run, own_file: Path) -> None:
    branches = run("branch", "list", "trip-to-oslo", "--store", own_file, "--json").json["branches"]
    assert {branch["name"] for branch in branches} == {"cheap", "scenic", "family"}
    family = next(branch["thread_id"] for branch in branches if branch["name"] == "family")

    refused = run("branch", "delete", "trip-to-oslo", "--yes", "--store", own_file)
    done = run("branch", "delete", family, "--yes", "--store", own_file, "--json")

    assert refused.code == 2
    schemas.check("branch delete", done.json)
    left = run("branch", "list", "trip-to-oslo", "--store", own_file, "--json").json["branches"]
    assert {branch["name"] for branch in left} == {"cheap", "scenic"}


def test_branches_are_listed_by_the_name_of_a_thread_alone(run: Run, demo_file: Path) -> None:
    named = run("branch", "trip-to-oslo", "--store", demo_file)

    assert named.out == run("branch", "list", "trip-to-oslo", "--store", demo_file).out
    assert "scenic" in named.out
    assert "did you mean list?" in run("branch", "lst", "--store", demo_file).err


def test_undo_and_redo(run: Run, own_file: Path) -> None:
    def step() -> int:
        found: int = run("log", "trip-to-oslo", "-n", "1", "--json", "--store", own_file).json["rows"][0]["step"]
        return found

    undone = run("undo", "trip-to-oslo", "--store", own_file, "--json").json
    assert undone["undo"]["kind"] == "merge"
    assert step() == 8
    redone = run("redo", "trip-to-oslo", "--store", own_file, "--json").json
    schemas.check("redo", redone)
    assert step() == 9


def test_nothing_to_undo_is_a_failure(run: Run, own_file: Path) -> None:
    done = run("undo", "onboarding-ada", "--store", own_file, "--json")

    assert done.code == 1
    assert done.error["code"] == "cannot_undo"


def test_copy_brings_everything_and_runs_again(run: Run, demo_file: Path, tmp_path: Path) -> None:
    first = run("copy", demo_file, tmp_path / "c.db", "--json").json
    again = run("copy", demo_file, tmp_path / "c.db", "--json").json

    assert first["checkpoints"] == first["verified"] > 400
    assert again["checkpoints"] == 0
    assert run("copy", tmp_path / "nope.db", tmp_path / "d.db").code == 5


def test_verify_of_a_whole_store_and_of_a_damaged_one(run: Run, own_file: Path) -> None:
    assert run("verify", "--store", own_file, "--json").json["ok"]

    data = bytearray(own_file.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2 * PAGE_BYTES] = bytes(2 * PAGE_BYTES)
    own_file.write_bytes(bytes(data))
    done = run("verify", "--store", own_file, "--json")

    assert done.code in (1, 5)
    assert done.out == "" or not done.json["ok"]


def test_repair_asks_first_then_leaves_all_that_is_whole(run: Run, own_file: Path, tmp_path: Path) -> None:
    spoil_an_object(own_file)
    found = run("verify", "--store", own_file, "--json")
    assert found.code == 1, found.err
    damaged = set(found.json["damaged_threads"])

    plan = run("repair", "--dry-run", "--store", own_file, "--json")
    refused = run("repair", "--store", own_file)
    kept = tmp_path / "kept.jsonl"
    done = run("repair", "--yes", "--keep", kept, "--store", own_file, "--json")

    assert plan.code == 0
    assert plan.json["found"]
    assert refused.code == 2
    assert done.code == 0, done.err
    schemas.check("repair", done.json)
    assert set(done.json["threads"]) == damaged
    assert kept.stat().st_size
    assert run("verify", "--store", own_file, "--json").json["ok"]
    assert run("repair", "--store", own_file).out == "nothing to repair\n"


def spoil_an_object(path: Path) -> None:
    """Change a byte in one stored object, as a failing disk does, behind the back of everything that checks pages."""
    with closing(sqlite_connecting.connect(path, 1000)) as connection:
        largest = "SELECT id, body FROM objects ORDER BY length(body) DESC LIMIT 1"
        rows: list[Any] = connection.execute(largest).fetchall()
        for number, stored in rows:
            body = bytearray(stored)
            body[len(body) // 2] ^= 1
            connection.execute("UPDATE objects SET body = ? WHERE id = ?", (bytes(body), number))


def test_what_destroys_takes_names_of_threads_and_branches_and_nothing_less(run: Run, own_file: Path) -> None:
    """A step, a tag or the beginning of an id means a checkpoint, and its thread may be the wrong one to delete."""
    for ref in ("trip-to-oslo~2", "trip-to-oslo#3", "trip-to-oslo@merge", "@", "#1"):
        for words in (["rm", ref], ["branch", "delete", ref], ["retention", "apply", ref]):
            assert run(*words, "--yes", "--store", own_file).code == 3, (words, ref)
    deleted = run("rm", "trip-to-oslo@cheap", "--yes", "--store", own_file, "--json").json
    assert len(deleted["threads"]) == 1
    assert deleted["threads"][0].startswith("trip-to-oslo-branch-cheap-")
    run("branch", "delete", "trip-to-oslo@scenic", "--yes", "--store", own_file)
    left = run("branch", "list", "trip-to-oslo", "--store", own_file, "--json").json["branches"]
    assert [branch["name"] for branch in left] == ["family"]
    assert count(own_file, "trip-to-oslo") == 9


def test_branches_and_tags_without_a_thread_are_those_of_the_last_one(run: Run, own_file: Path) -> None:
    with everstep.open(own_file).sync as engine:
        engine.append("trip-to-oslo", [])
    named = run("branch", "list", "trip-to-oslo", "--store", own_file, "--json").json
    assert len(named["branches"]) == 3
    assert run("branch", "--store", own_file, "--json").json == named
    assert run("branch", "list", "--store", own_file, "--json").json == named
    tags = run("tag", "trip-to-oslo", "--store", own_file, "--json").json
    assert run("tag", "--store", own_file, "--json").json == tags


def test_an_unknown_thread_is_told_by_those_who_check_and_measure(run: Run, own_file: Path, tmp_path: Path) -> None:
    for words in (["verify", "nope"], ["repair", "nope"], ["stats", "nope"], ["export", "nope", "-o", tmp_path / "f"]):
        assert run(*words, "--store", own_file).code == 3, words
    branch = run("stats", "trip-to-oslo@cheap", "--store", own_file, "--json").json
    assert branch["checkpoints"] == 3


def test_a_branch_is_renamed_and_archived(run: Run, own_file: Path) -> None:
    renamed = run("branch", "rename", "trip-to-oslo@family", "with her sister", "--store", own_file, "--json")
    schemas.check("branch rename", renamed.json)
    assert renamed.json["name"] == "with her sister"
    thread = renamed.json["thread_id"]
    shown = run("show", "trip-to-oslo@with her sister", "--store", own_file, "--json").json
    assert shown["thread_id"] == thread
    schemas.check("branch archive", run("branch", "archive", thread, "--store", own_file, "--json").json)

    listed = run("branch", "list", "trip-to-oslo", "--store", own_file, "--json")
    every = run("branch", "list", "trip-to-oslo", "--archived", "--store", own_file)
    assert {branch["name"] for branch in listed.json["branches"]} == {"cheap", "scenic"}
    assert "with her sister (archived)" in every.out
    assert thread not in run("threads", "--store", own_file).out
    assert thread in run("threads", "--archived", "--store", own_file).out
    assert run("branch", "rename", "trip-to-oslo", "x", "--store", own_file).code == 2

    schemas.check("branch unarchive", run("branch", "unarchive", thread, "--store", own_file, "--json").json)
    assert thread in run("threads", "--store", own_file).out
    assert "unarchive" in run("undo", thread, "--store", own_file).out


def test_a_note_is_kept_and_printed(run: Run, own_file: Path) -> None:
    done = run("note", "trip-to-oslo#7", "the last good one", "--store", own_file, "--json")
    schemas.check("note", done.json)
    assert run("note", "trip-to-oslo#7", "--store", own_file).out == "the last good one\n"
    assert "the last good one" in run("show", "trip-to-oslo#7", "--store", own_file).out
    assert "the last good one" in run("log", "trip-to-oslo", "--store", own_file).out
    assert run("note", "-d", "trip-to-oslo#7", "x", "--store", own_file).code == 2
    assert "no note" in run("note", "-d", "trip-to-oslo#7", "--store", own_file).out
    assert run("note", "trip-to-oslo#7", "--store", own_file).out == "nothing is noted\n"
