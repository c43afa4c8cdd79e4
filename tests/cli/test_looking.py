"""Threads and histories: filters, tables for people, columns for programs, live."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

import everstep
from everstep.cli.commands.looking import _STATUSES
from everstep.views import runs, threads
from tests.cli import schemas
from tests.cli.conftest import Run, start_process
from tests.cli.terminals import Seen, start_on_terminal
from tests.tools.damage import damage_checkpoint

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202egnp.exe\u2066 \x9b2J\u200f end\nnext"
CONTROLS = set("\x1b\x07\x9b\u202e\u2066\u200f")


def test_threads_are_columns_parted_by_tabs_in_a_pipe(run: Run, demo_file: Path) -> None:
    done = run("threads", "--store", demo_file)

    rows = [line.split("\t") for line in done.out.splitlines()]
    assert {len(row) for row in rows} == {6}
    assert {row[0] for row in rows} >= {"trip-to-oslo", "support-4711", "refund-0093"}
    assert done.err == ""


def test_threads_are_found_by_a_word_and_by_what_they_wait_for(run: Run, demo_file: Path) -> None:
    named = run("threads", "INVOICE", "--store", demo_file, "--json").json["threads"]
    waiting = run("threads", "--status", "waiting", "--store", demo_file, "--json").json["threads"]
    recent = run("threads", "--since", "2h", "--store", demo_file, "--json").json["threads"]
    none = run("threads", "--since", "2100-01-01", "--store", demo_file, "--json").json["threads"]

    assert [thread["thread_id"] for thread in named] == ["invoice-run-2026-11"]
    assert {thread["thread_id"] for thread in waiting} == {"refund-0093", "trip-to-bergen"}
    assert recent
    assert none == []


def test_every_status_that_is_shown_can_be_asked_for(run: Run, demo_file: Path) -> None:
    assert set(_STATUSES) == set(threads.STATUSES) == {*runs.STATUSES, "damaged"}
    shown = run("threads", "--store", demo_file, "--json").json["threads"]
    for status in {thread["status"] for thread in shown} - {None}:
        found = run("threads", "--status", status, "--store", demo_file, "--json").json["threads"]
        assert [thread["thread_id"] for thread in found] == [
            thread["thread_id"] for thread in shown if thread["status"] == status
        ]


def test_log_shows_what_can_be_read_around_a_damaged_step(run: Run, own_file: Path) -> None:
    whole = run("log", "trip-to-oslo", "--store", own_file, "--json").json["rows"]
    damaged = {damage_checkpoint(own_file, "trip-to-oslo", step) for step in (4, 9)}

    told = run("log", "trip-to-oslo", "--store", own_file, "--json")
    assert told.code == 0
    assert [row["id"] for row in told.json["rows"]] == [row["id"] for row in whole]
    assert {row["id"] for row in told.json["rows"] if row["kind"] == "damaged"} == damaged
    schemas.check("log", told.json)

    plain = run("log", "trip-to-oslo", "--store", own_file)
    assert plain.out.splitlines()[0].startswith("?\t")
    assert "Cannot be read: " in plain.out
    assert "everstep verify trip-to-oslo" in plain.err

    drawn = run("log", "trip-to-oslo", "--graph", "--store", own_file)
    assert drawn.code == 0
    assert "hotels answered" in drawn.out
    assert "the graph cannot be drawn" in drawn.err

    shown = run("show", sorted(damaged)[0], "--store", own_file, "--json")
    assert (shown.code, shown.error["code"]) == (1, "checkpoint_corrupted")
    assert "everstep repair" in shown.error["hint"]


def test_blame_and_stats_go_on_around_a_damaged_step(run: Run, own_file: Path) -> None:
    store = ("--store", own_file)
    whole = run("blame", "trip-to-oslo", "/hotel", *store, "--json").json
    sizes = run("stats", "trip-to-oslo", *store, "--json").json
    damaged = damage_checkpoint(own_file, "trip-to-oslo", 9)

    told = run("blame", "trip-to-oslo", "/hotel", *store, "--json").json
    schemas.check("blame", told)
    assert [each["id"] for each in told["left_out"]] == [damaged]
    assert [row["id"] for row in told["changes"]] == [row["id"] for row in whole["changes"] if row["id"] != damaged]
    shown = run("blame", "trip-to-oslo", "/hotel", *store)
    assert len(shown.out.splitlines()) == len(told["changes"])
    assert "not all can be read: one checkpoint is left out" in shown.err
    assert "everstep verify trip-to-oslo" in shown.err

    for words in (["stats", "trip-to-oslo"], ["stats"]):
        told = run(*words, *store, "--json").json
        schemas.check("stats", told)
        assert told["left_out"] == 1
        shown = run(*words, *store)
        assert (shown.code, "and what it takes is left out" in shown.err) == (0, True)
    told = run("stats", "trip-to-oslo", *store, "--json").json
    assert told["checkpoints"] == sizes["checkpoints"]
    assert 0 < told["total_bytes"] < sizes["total_bytes"]


def test_a_time_that_is_none_is_a_usage_error(run: Run, demo_file: Path) -> None:
    done = run("threads", "--since", "yesterdayish", "--store", demo_file)

    assert done.code == 2
    assert "is no time" in done.err


def test_a_long_history_streams_line_by_line(run: Run, demo_file: Path) -> None:
    done = run("log", "support-4711", "-n", "1000", "--jsonl", "--store", demo_file)

    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["step"] for row in rows] == list(range(412, 0, -1))
    schemas.check("tail", rows[0])
    whole = run("log", "support-4711", "-n", "1000", "--json", "--store", demo_file).json
    assert [row["id"] for row in whole["rows"]] == [row["id"] for row in rows]


def test_a_history_is_filtered(run: Run, demo_file: Path) -> None:
    def kinds(*options: str) -> set[str]:
        rows = run("log", "invoice-run-2026-11", "--json", "--store", demo_file, *options).json["rows"]
        return {row["kind"] for row in rows}

    assert kinds("--kind", "tool") == {"tool"}
    assert kinds("--errors") == set()
    assert kinds("--errors", "--all") == {"error"}
    assert kinds("--user-turns") == {"input"}
    changed = run("log", "trip-to-oslo", "--path", "/hotel", "--json", "--store", demo_file).json["rows"]
    assert [row["step"] for row in changed] == [9, 8]


def test_an_empty_answer_says_that_a_filter_hides_rows(run: Run, demo_file: Path) -> None:
    done = run("log", "support-4711", "--errors", "--store", demo_file)

    assert done.out == ""
    assert "left out by the filter" in done.err


def test_without_a_name_it_is_the_thread_that_was_active_last(run: Run, demo_file: Path) -> None:
    assert run("log", "--json", "--store", demo_file).json["thread_id"] == "refund-0093"


def test_references_without_a_name_are_about_the_thread_that_was_active_last(run: Run, own_file: Path) -> None:
    def shown(ref: str) -> tuple[str, int]:
        found = run("show", ref, "--store", own_file, "--json").json
        return found["thread_id"], found["step"]

    assert run("rewind", "trip-to-oslo~1", "--store", own_file).code == 0
    assert run("undo", "trip-to-oslo", "--store", own_file).code == 0
    assert [shown(ref) for ref in ("@", "@~1", "#4")] == [("trip-to-oslo", step) for step in (9, 8, 4)]
    assert shown("ckpt-trip-to-oslo-7-") == ("trip-to-oslo", 7)
    ambiguous = run("show", "ckpt-trip-to-oslo-", "--store", own_file)
    assert ambiguous.code == 3
    assert "may be" in ambiguous.err


def test_a_branch_is_meant_by_its_name_wherever_a_thread_is(run: Run, own_file: Path) -> None:
    def stored(*arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = run(*arguments, "--store", own_file, "--json").json
        return found

    thread = stored("fork", "trip-to-oslo~2", "-b", "quiet hotel")["thread_id"]
    assert stored("show", "quiet hotel")["thread_id"] == thread
    assert stored("log", "trip-to-oslo@quiet hotel")["thread_id"] == thread
    assert stored("ops", "quiet hotel")["thread_id"] == thread
    assert stored("merge", "quiet hotel", "--dry-run")["source"] == thread
    # What cannot be taken back wants the whole name.
    assert run("rm", "quiet hotel", "--yes", "--store", own_file).code == 3


def test_hints_can_be_typed_as_they_are(own_file: Path) -> None:
    thread = "a b: c's"
    with everstep.open(own_file).sync as engine:
        for n in range(2):
            engine.append(thread, [{"role": "user", "content": str(n)}])
    hints = []
    for words in (["threads"], ["rewind", "@~1"], ["undo"], ["tag", "@", "two words"]):
        seen = start_on_terminal(*words, "--no-pager", "--store", own_file)
        assert seen.code == 0
        hints.append(shlex.split(_hint_of(seen)))
    assert hints == [["log", thread], ["undo", thread], ["redo", thread], ["show", f"{thread}@two words"]]


def test_hints_about_a_name_that_looks_like_an_option_can_be_typed_too(own_file: Path) -> None:
    """This one would be all threads."""
    surroundings = {"EVERSTEP_STORE": str(own_file), "EVERSTEP_PAGER": "cat"}
    with everstep.open(own_file).sync as engine:
        for _ in range(2):
            engine.append("--all", [], {})
        branch = engine.branch(engine.append("--all", [], {}), "cheap")
        engine.append(branch, [], {"n": 1})
    done = (
        ["threads", "--", "--all"],
        ["rewind", "--", "--all~1"],
        ["undo", "--", "--all"],
        ["redo", "--", "--all"],
        ["tag", "--", "--all", "-good"],
        ["tag", "--delete", "--", "--all", "-good"],
        ["note", "--", "--all", "-fine"],
        ["pin", "--", "--all"],
        ["fork", "-b", "-dear", "--", "--all"],
        ["merge", "--into", "--all", "--", branch],
        ["branch", "rename", "--", branch, "-cheaper"],
    )
    for words in done:
        seen = start_on_terminal(*words, environment=surroundings)
        assert seen.code == 0, (words, seen.screen)
        hint = _hint_of(seen)
        assert " -- " in hint, (words, hint)
        # What is typed next is what the hint says, up to where it goes on in plain words.
        typed = shlex.split(hint.removesuffix(" takes it back"))
        told = start_process(*typed, env=surroundings)
        assert told.code == 0, (words, hint, told.err)
    listed = start_process("branch", "--", "--all", env=surroundings)
    assert "--all" in listed.out


def _hint_of(seen: Seen) -> str:
    """Return the command that a hint names, without its first word."""
    (hint,) = [line for line in seen.screen.splitlines() if "hint: everstep" in line]
    return click.unstyle(hint).partition("everstep ")[2]


def test_only_the_lanes_of_a_graph_are_painted(demo_file: Path) -> None:
    drawn = start_process("log", "trip-to-oslo", "--graph", "-n", "3", "--color", "always", "--store", demo_file).out
    assert "older checkpoints not shown)" in drawn
    assert "\x1b[32m@" in drawn


def test_undo_of_a_thread_that_is_not_there_is_not_found(run: Run, demo_file: Path) -> None:
    done = run("undo", "trip-to-olso", "--store", demo_file)

    assert done.code == 3
    assert "trip-to-oslo" in done.err


def test_a_graph_is_drawn(run: Run, demo_file: Path) -> None:
    done = run("log", "trip-to-oslo", "--graph", "--store", demo_file)

    assert done.out.startswith("@  step 9  (HEAD trip-to-oslo) Merge scenic\n")
    assert "|\\" in done.out
    # As rows are called elsewhere.
    assert "step 2  (HEAD family) Then two rooms at the Fjord View.\n" in done.out
    assert "step 7  hotels answered\n" in done.out
    assert "-branch-" not in done.out
    refused = run("log", "trip-to-oslo", "--graph", "--errors", "--store", demo_file)
    assert refused.code == 2


def test_an_unknown_thread_is_guessed(run: Run, demo_file: Path) -> None:
    done = run("log", "trip-to-olso", "--store", demo_file, "--json")

    assert done.code == 3
    assert done.error["code"] == "checkpoint_not_found"
    assert "trip-to-oslo" in done.error["hint"]


def test_a_branch_that_is_called_by_its_name_alone_is_told_in_full(run: Run, demo_file: Path) -> None:
    done = run("show", "scenic", "--store", demo_file)

    assert done.code == 3
    assert "did you mean 'trip-to-oslo@scenic'?" in done.err
    assert run("show", "trip-to-oslo@scenic", "--store", demo_file).code == 0


def test_an_empty_list_of_threads_says_that_it_was_narrowed(run: Run, demo_file: Path) -> None:
    assert run("threads", "--tag", "nosuch", "--store", demo_file).err == "no thread matches\n"
    assert run("threads", "no such words", "--store", demo_file).err == "no thread matches\n"


def test_hostile_text_is_harmless_in_every_form(run: Run, tmp_path: Path) -> None:
    with everstep.open(tmp_path / "h.db").sync as engine:
        engine.append(HOSTILE, [{"role": "user", "content": HOSTILE}], {HOSTILE: HOSTILE}, tags=[HOSTILE])

    for words in (
        ["threads"],
        ["log"],
        ["log", "--graph"],
        ["tag", HOSTILE],
        ["log", "--json"],
        ["log", HOSTILE + "x"],
    ):
        done = run(*words, "--store", tmp_path / "h.db")
        assert not CONTROLS & set(done.out + done.err), words
    assert run("threads", "--json", "--store", tmp_path / "h.db").json["threads"][0]["thread_id"] == HOSTILE


# -- on a terminal


def test_people_see_a_table_with_a_header_and_a_hint(demo_file: Path) -> None:
    seen = start_on_terminal("threads", "--store", demo_file)

    assert seen.code == 0
    assert "THREAD" in seen.screen
    assert "\x1b[" in seen.screen
    assert "hint: everstep log" in seen.screen
    assert all(len(line) <= 160 for line in seen.screen.splitlines())


@pytest.mark.parametrize("columns", [80, 100])
def test_a_table_is_no_wider_than_the_terminal(demo_file: Path, columns: int) -> None:
    for words in (["threads"], ["log", "trip-to-oslo"], ["branch", "list", "trip-to-oslo"], ["runs"]):
        seen = start_on_terminal(*words, "--store", demo_file, environment={"COLUMNS": str(columns)})
        lines = re.sub(r"\x1b\[[0-9;]*m", "", seen.screen).splitlines()
        assert [line for line in lines if len(line) > columns and "hint:" not in line] == [], words


def test_a_list_of_threads_calls_branches_as_people_do(own_file: Path) -> None:
    seen = start_on_terminal("threads", "--store", own_file)
    assert "trip-to-oslo@scenic" in seen.screen
    assert "trip-to-oslo-branch-" not in seen.screen

    with everstep.open(own_file, everstep.SnapshotConfig(gc_policy="keep_all")).sync as engine:
        head = engine.resolve("trip-to-oslo")
        for _ in range(2):
            engine.branch(head.checkpoint_id, "twice", thread_id=head.thread_id)
    seen = start_on_terminal("threads", "--quiet", "--store", own_file)
    assert seen.screen.count("trip-to-oslo-branch-twice-") == 2  # `trip-to-oslo@twice` would mean neither


def test_no_color_means_no_colors(run: Run, demo_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_colors(*options: str) -> bool:
        return "\x1b[" in run("log", "trip-to-oslo", "--graph", "--store", demo_file, *options).out

    assert not has_colors()
    assert has_colors("--color", "always")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert has_colors()
    assert not has_colors("--color", "never")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colors()
    assert has_colors("--color", "always")


def test_no_color_counts_on_a_terminal(demo_file: Path) -> None:
    plain = start_on_terminal("threads", "--store", demo_file, environment={"NO_COLOR": "1"})
    assert "\x1b[" not in plain.screen


def test_long_answers_go_through_the_pager(demo_file: Path, tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged; exec head -n 2\n")
    pager.chmod(0o755)
    environment = {"EVERSTEP_PAGER": str(pager)}

    paged = start_on_terminal("log", "support-4711", "--store", demo_file, environment=environment)
    direct = start_on_terminal("log", "support-4711", "--no-pager", "--store", demo_file, environment=environment)

    assert paged.screen.startswith("paged")
    assert "paged" not in direct.screen
    assert direct.screen.count("\n") > 50


def test_who_destroys_is_asked_on_a_terminal(own_file: Path) -> None:
    no = start_on_terminal("rm", "onboarding-ada", "--store", own_file, answers="n\n", after="[y/N]")
    assert no.code == 1
    assert "onboarding-ada: 6 checkpoints" in no.screen
    assert "nothing was changed" in no.screen

    yes = start_on_terminal("rm", "onboarding-ada", "--store", own_file, answers="y\n", after="[y/N]")
    assert yes.code == 0
    assert "1 thread with 6 checkpoints deleted" in yes.screen


# -- live


def test_tail_shows_what_another_process_writes(own_file: Path) -> None:
    command = [sys.executable, "-m", "everstep", "tail", "--jsonl", "-n", "3", "--past", "1", "--interval", "0.05"]
    environment = {**os.environ, "EVERSTEP_STORE": str(own_file)}
    with subprocess.Popen([*command, "onboarding-ada"], env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        with everstep.open(own_file).sync as engine:
            engine.append("onboarding-ada", [{"role": "user", "content": "One more thing."}])
            engine.append("onboarding-ada", [{"role": "user", "content": "And another."}])
        rows = [json.loads(line) for line in process.stdout]

    assert process.returncode == 0
    assert [row["step"] for row in [first, *rows]] == [6, 7, 8]
    assert rows[-1]["title"] == "And another."
    schemas.check("tail", first)


def test_tail_of_all_threads_begins_with_what_is_new(own_file: Path) -> None:
    command = [sys.executable, "-m", "everstep", "tail", "-n", "2", "--interval", "0.05", "--store", str(own_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        with everstep.open(own_file).sync as engine:
            # It may have begun to look only now, however much was written before: so more is written until it ends.
            while process.poll() is None and time.monotonic() < until:
                engine.append("new-thread", [{"role": "user", "content": "one more word"}])
        process.kill()
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()

    assert len(lines) == 2
    assert all(line.split("\t")[1] == "new-thread" for line in lines)


def test_ctrl_c_ends_tail_with_130(own_file: Path) -> None:
    words = ["tail", "onboarding-ada", "--past", "1", "--store", own_file]
    seen = start_on_terminal(*words, answers="\x03", after="profile")
    assert seen.code == 130
