"""Going back, forking, merging from a shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import everstep
from tests.cli import schemas
from tests.cli.conftest import Run, start_process
from tests.cli.terminals import start_on_terminal


def head(run: Run, file: Path, thread: str = "trip-to-oslo") -> Any:
    return run("log", thread, "-n", "1", "--json", "--store", file).json["rows"][0]


def family(run: Run, file: Path) -> str:
    found = run("branch", "list", "trip-to-oslo", "--store", file, "--json").json["branches"]
    name: str = next(branch["thread_id"] for branch in found if branch["name"] == "family")
    return name


def test_a_name_that_two_branches_have_lists_both_and_a_second_one_is_refused(run: Run, own_file: Path) -> None:
    with everstep.open(own_file, everstep.SnapshotConfig(gc_policy="keep_all")).sync as engine:
        head = engine.resolve("trip-to-oslo")
        for _ in range(2):
            engine.branch(head.checkpoint_id, "twin", thread_id=head.thread_id)

    for command in (["log"], ["show"], ["merge"], ["rm", "--yes"], ["branch", "delete", "--yes"]):
        done = run(*command, "trip-to-oslo@twin", "--store", own_file, "--json")
        assert (done.code, done.error["code"], len(done.error["candidates"])) == (3, "ambiguous_checkpoint", 2)
        assert done.error["candidates"][0] in done.error["hint"]

    for refused in (["fork", "trip-to-oslo", "-b", "cheap"], ["branch", "rename", "trip-to-oslo@scenic", "cheap"]):
        done = run(*refused, "--store", own_file, "--json")
        assert (done.code, done.error["code"]) == (2, "invalid_input")
        assert "choose another name" in done.error["message"]


@pytest.mark.parametrize("verb", ["undo", "redo"])
def test_undo_of_a_thread_that_is_not_there_is_another_thing_than_nothing_to_undo(
    run: Run, own_file: Path, verb: str
) -> None:
    unknown = run(verb, "trip-to-osl", "--store", own_file, "--json")
    assert (unknown.code, unknown.error["code"]) == (3, "checkpoint_not_found")
    untouched = run(verb, "onboarding-ada", "--store", own_file, "--json")
    assert (untouched.code, untouched.error["code"]) == (1, "cannot_undo")


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


def test_an_edit_that_is_no_json_is_not_lost(own_file: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "{ typed by hand" > "$1"\n')
    editor.chmod(0o755)
    kept = tmp_path / "kept"
    kept.mkdir()
    surroundings = {"VISUAL": str(editor), "TMPDIR": str(kept)}

    done = start_process("fork", "trip-to-oslo", "-b", "x", "--edit", "--store", own_file, env=surroundings)

    assert done.code == 2
    (file,) = kept.iterdir()
    assert str(file) in done.err
    assert file.read_text() == "{ typed by hand\n"
    assert file.stat().st_mode & 0o077 == 0


def test_on_a_terminal_an_edit_may_be_done_again(own_file: Path, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    # The first time a quote is lost, and the second time it is put back: so it sees what was typed before.
    editor.write_text(
        '#!/bin/sh\nif grep -q \'"people: 2\' "$1"; then sed -i \'s/"people: 2/"people": 4/\' "$1"\n'
        'else sed -i \'s/"people": 2/"people: 2/\' "$1"; fi\n'
    )
    editor.chmod(0o755)
    words = ["fork", "trip-to-oslo", "-b", "again", "--edit", "--store", own_file]

    seen = start_on_terminal(*words, answers="y\n", after="Edit it again?", environment={"VISUAL": str(editor)})

    assert seen.code == 0, seen.screen
    assert "no JSON" in seen.screen
    assert start_process("get", "again", "/people", "--store", own_file).json == 4


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


def test_replay_of_a_run_tells_what_is_recorded_and_what_it_waits_for(run: Run, demo_file: Path) -> None:
    done = run("replay", "trip-to-bergen", "--store", demo_file)
    assert done.out.splitlines() == [
        "next: waits for an answer: Book it for 412?",
        "there already: find_trains",
        "there already: ask_model",
        "there already: hold_seats",
        "  await engine.resume('trip-to-bergen')",
    ]


def test_replay_of_an_earlier_step_of_a_run_tells_what_would_be_made_again(run: Run, demo_file: Path) -> None:
    done = run("replay", "trip-to-bergen#2", "--json", "--store", demo_file).json
    assert [result["node"] for result in done["results"]] == ["find_trains"]
    assert done["again"] == ["ask_model", "hold_seats"]
    assert done["waits"] == []


def test_replay_of_a_run_that_is_done_has_nothing_next(run: Run, demo_file: Path) -> None:
    assert run("replay", "report-week-46", "--store", demo_file).out.startswith("next: nothing: the run has ended here")


def test_operations_are_told_in_words(run: Run, demo_file: Path) -> None:
    told = run("ops", "trip-to-oslo", "--store", demo_file).out
    assert "branch cheap at" in told
    assert "checkpoint_id" not in told
