"""Going back, forking, merging from a shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli import schemas
from tests.cli.conftest import Run, start_process


def head(run: Run, file: Path, thread: str = "trip-to-oslo") -> Any:
    return run("log", thread, "-n", "1", "--json", "--store", file).json["rows"][0]


def family(run: Run, file: Path) -> str:
    found = run("branch", "list", "trip-to-oslo", "--store", file, "--json").json["branches"]
    name: str = next(branch["thread_id"] for branch in found if branch["name"] == "family")
    return name


def test_rewind_says_what_it_did_and_is_undone(run: Run, own_file: Path) -> None:
    plan = run("rewind", "trip-to-oslo#7", "--dry-run", "--store", own_file, "--json").json
    assert plan["left_behind"] == 2
    assert head(run, own_file)["step"] == 9

    done = run("rewind", "trip-to-oslo#7", "--store", own_file)
    assert done.out == "trip-to-oslo is at step 7; 2 later steps hidden, nothing is deleted\n"
    assert head(run, own_file)["step"] == 7

    run("undo", "trip-to-oslo", "--store", own_file)
    assert head(run, own_file)["step"] == 9


def test_fork_with_other_values(run: Run, own_file: Path) -> None:
    words = ["fork", "trip-to-oslo#7", "-b", "tent", "--set", "/hotel=Tent", "--set", '/budget={"left": 1}']
    made = run(*words, "--store", own_file, "--json").json

    assert run("get", made["thread_id"], "/hotel", "--store", own_file).json == "Tent"
    assert run("get", made["thread_id"], "/budget/left", "--store", own_file).json == 1
    assert head(run, own_file)["step"] == 9


def test_fork_with_the_editor(run: Run, own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i \'s/"people": 2/"people": 3/\' "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)

    made = run("fork", "trip-to-oslo#7", "-b", "three", "--edit", "--store", own_file, "--json").json
    assert run("get", made["thread_id"], "/people", "--store", own_file).json == 3

    editor.write_text("#!/bin/sh\ntrue\n")
    assert run("fork", "trip-to-oslo#7", "-b", "same", "--edit", "--store", own_file).code == 1


def test_fork_of_a_graph_with_edits_names_what_to_call(run: Run, own_file: Path) -> None:
    done = run("fork", "refund-0093", "-b", "x", "--set", "/risk=high", "--store", own_file)

    assert done.code == 2
    assert "update_state" in done.err


def test_a_merge_with_conflicts_ends_with_4_and_lists_them(run: Run, own_file: Path) -> None:
    branch = family(run, own_file)

    done = start_process("merge", branch, "--json", "--store", own_file)

    assert done.code == 4
    schemas.check("merge", done.json)
    assert [conflict["path"] for conflict in done.json["conflicts"]] == ["state.hotel"]
    assert head(run, own_file)["step"] == 9
    table = run("merge", branch, "--store", own_file)
    assert table.code == 4
    assert 'state.hotel\t(none)\t"Lighthouse"\t"Fjord View"' in table.out


@pytest.mark.parametrize(("side", "hotel"), [("--ours", "Lighthouse"), ("--theirs", "Fjord View")])
def test_a_merge_takes_one_side(run: Run, own_file: Path, side: str, hotel: str) -> None:
    branch = family(run, own_file)

    plan = run("merge", branch, side, "--dry-run", "--json", "--store", own_file)
    assert plan.code == 0
    assert head(run, own_file)["step"] == 9
    done = run("merge", branch, side, "--json", "--store", own_file)

    assert done.code == 0, done.err
    schemas.check("merge", done.json)
    assert done.json["resolved"] == 1
    assert run("get", "trip-to-oslo", "/hotel", "--store", own_file).json == hotel
    assert run("get", "trip-to-oslo", "/people", "--store", own_file).json == 4


def test_a_merge_takes_decisions_from_a_file(run: Run, own_file: Path, tmp_path: Path) -> None:
    branch = family(run, own_file)
    (tmp_path / "decided.json").write_text(json.dumps({"state.hotel": {"value": "Both"}}))
    words = ["merge", branch, "--into", "trip-to-oslo", "--resolve", tmp_path / "decided.json"]

    assert run(*words, "--ours", "--store", own_file).code == 2
    assert run(*words, "--store", own_file).code == 0
    assert run("get", "trip-to-oslo", "/hotel", "--store", own_file).json == "Both"
    (tmp_path / "decided.json").write_text("no JSON")
    assert run(*words, "--store", own_file).code == 2


def test_a_thread_that_is_no_branch_needs_a_target(run: Run, own_file: Path) -> None:
    done = run("merge", "support-4711", "--store", own_file)

    assert done.code == 2
    assert "--into" in done.err


def test_replay_tells_what_would_run(run: Run, demo_file: Path) -> None:
    done = run("replay", "refund-0093", "--json", "--store", demo_file).json
    assert done["next_node"] == "ask_person"
