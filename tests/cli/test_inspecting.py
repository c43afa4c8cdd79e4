"""One checkpoint, values and differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import everstep
from tests.cli.conftest import Run

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe\u2066 \x9b2J\u200f end\nnext"
CONTROLS = set("\x1b\x07\x9b\u202e\u2066\u200f")


def test_show_tells_what_a_checkpoint_is_and_changed(run: Run, demo_file: Path) -> None:
    done = run("show", "trip-to-oslo", "--store", demo_file)

    assert done.out.startswith("Merge scenic  HEAD\n")
    assert '~ state.hotel: "Hostel" -> "Lighthouse"\n' in done.out
    assert "+ [assistant] The lighthouse has one room left.\n" in done.out
    assert "~ state.hotel" not in run("show", "trip-to-oslo", "--stat", "--store", demo_file).out


def test_show_pairs_tools_with_their_answers(run: Run, demo_file: Path) -> None:
    done = run("show", "trip-to-oslo", "--messages", "--store", demo_file)
    assert '→ boats({"day": "Sunday"}): {"leaves": "10:00"' in done.out


def test_show_of_a_failure(run: Run, demo_file: Path) -> None:
    row = run("log", "invoice-run-2026-11", "--errors", "--all", "--json", "--store", demo_file).json["rows"][0]
    found = run("show", row["ref"], "--json", "--store", demo_file).json

    assert found["kind"] == "error"
    assert "the ledger did not answer" in found["error"]["message"]


def test_parts_of_a_step_that_are_empty_are_left_out(run: Run, demo_file: Path) -> None:
    shown = run("show", "trip-to-oslo", "--io", "--store", demo_file).out

    assert "Result of tools" in shown
    assert "Pending writes" not in shown
    assert "Error" not in shown


def test_get_prints_a_value_and_nothing_else(run: Run, demo_file: Path) -> None:
    assert run("get", "trip-to-oslo", "/hotel", "--store", demo_file).out == '"Lighthouse"\n'
    assert run("get", "trip-to-oslo", "/hotel", "--raw", "--store", demo_file).out == "Lighthouse\n"
    assert run("get", "trip-to-oslo#1", "/budget", "--json", "--store", demo_file).json == {"limit": 900, "left": 900}
    assert run("get", "trip-to-oslo", "--store", demo_file).json["people"] == 2


def test_a_path_that_is_not_there_ends_with_3(run: Run, demo_file: Path) -> None:
    done = run("get", "trip-to-oslo", "/no/such/place", "--store", demo_file, "--json")

    assert done.code == 3
    assert done.out == ""


def test_diff_tells_by_its_exit_code_if_asked(run: Run, demo_file: Path) -> None:
    same = ["diff", "trip-to-oslo", "trip-to-oslo", "--store", demo_file]
    other = ["diff", "trip-to-oslo#3", "trip-to-oslo#7", "--store", demo_file]

    assert run(*same, "--exit-code").code == 0
    assert run(*same).out == "no changes\n"
    assert run(*other).code == 0
    assert run(*other, "--exit-code").code == 1


def test_diff_of_a_part(run: Run, demo_file: Path) -> None:
    def lines(*options: str) -> list[str]:
        done = run("diff", "trip-to-oslo~1", "trip-to-oslo", "--store", demo_file, *options)
        return [line.split(":")[0] for line in done.out.splitlines()]

    assert lines("--path", "/hotel") == ["~ state.hotel"]
    assert lines("--path", "state.budget") == ["~ state.budget.left"]
    assert lines("--messages") == [line for line in lines() if "[" in line.split()[1][:1]]
    assert lines("--stat")[0].startswith("state")


@pytest.mark.parametrize("path", ["/state", "/state/*", "state", "/budget", "/state/budget/left", "/hotel/name"])
def test_diff_of_a_part_is_never_said_to_be_the_same_where_it_differs(run: Run, demo_file: Path, path: str) -> None:
    words = ["diff", "trip-to-oslo~1", "trip-to-oslo", "--path", path, "--exit-code", "--store", demo_file]

    assert run(*words).code == 1
    assert "no changes" not in run(*words).out


def test_figures_and_patch_of_a_part_are_about_that_part(run: Run, demo_file: Path) -> None:
    words = ["diff", "trip-to-oslo~1", "trip-to-oslo", "--store", demo_file]

    assert run(*words, "--path", "/state/hotel", "--stat").out == "state: 1 changed; messages: nothing\n"
    assert run(*words, "--path", "/hotel", "--patch").json == [
        {"op": "replace", "path": "/state/hotel", "value": "Lighthouse"}
    ]
    told = run(*words, "--path", "/messages/9", "--json").json
    assert [message["index"] for message in told["messages"]] == [9]
    assert told["state"] == []
    assert told["counts"]["messages"] == {"added": 1, "removed": 0, "changed": 0}
    assert run(*words, "--path", "/nights", "--exit-code").out == "no changes\n"
    assert run(*words, "--path", "nights").code == 2


def test_a_patch_can_be_given_to_fork(run: Run, own_file: Path, tmp_path: Path) -> None:
    done = run("diff", "trip-to-oslo~1", "trip-to-oslo", "--patch", "--store", own_file)
    (tmp_path / "p.json").write_text(done.out)

    made = run("fork", "trip-to-oslo~1", "-b", "again", "--patch", tmp_path / "p.json", "--store", own_file, "--json")

    assert made.code == 0, made.err
    left = run("diff", made.json["ref"], "trip-to-oslo", "--store", own_file)
    assert left.out == "no changes\n"


def test_blame_names_the_steps_that_wrote_a_value(run: Run, demo_file: Path) -> None:
    changes = run("blame", "trip-to-oslo", "/hotel", "--json", "--store", demo_file).json["changes"]

    assert [(change["step"], change["after"]) for change in changes] == [(9, "Lighthouse"), (8, "Hostel")]


def test_hostile_values_are_harmless_in_every_form(run: Run, tmp_path: Path) -> None:
    with everstep.open(tmp_path / "h.db").sync as engine:
        engine.append("t", [{"role": HOSTILE, "content": "before", "id": "m"}], {HOSTILE: 1, "k": HOSTILE})
        edited = [{"role": HOSTILE, "content": HOSTILE, "id": "m", "tool_calls": [{"id": "c", "name": HOSTILE}]}]
        engine.snapshot("t", edited, {HOSTILE: HOSTILE, "k": "other"}, {HOSTILE: HOSTILE}, summary=HOSTILE)

    for words in (
        ["show", "t", "--state", "--messages", "--io"],
        ["show", "t", "--json", "--state", "--messages"],
        ["diff", "t~1", "t"],
        ["diff", "t~1", "t", "--patch"],
        ["get", "t"],
        ["blame", "t", "/k"],
        ["get", "t", HOSTILE],
    ):
        done = run(*words, "--store", tmp_path / "h.db")
        assert not CONTROLS & set(done.out + done.err), words
    assert json.loads(run("get", "t", "--store", tmp_path / "h.db").out)[HOSTILE] == HOSTILE
