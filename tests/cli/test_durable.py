"""Durable runs on the command line: looking, answering, taking up, and a worker that is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import everstep
from tests.cli import schemas
from tests.cli.conftest import Run, start_process
from tests.cli.terminals import start_on_terminal

PROGRAM = """
import asyncio, os, pathlib, time
import everstep

engine = everstep.open("runs.db")

def note(word):
    with open("calls.txt", "a") as file:
        file.write(word + "\\n")
    return word

def slow(word):
    note(word + " begins")
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    return note(word)

def charge(price):
    note("charge")
    if pathlib.Path("die").exists():
        os._exit(9)
    return {"receipt": price}

@engine.durable
async def trip(run, city):
    await run.step(note, f"weather of {city}")
    if await run.ask("Book it?", {"price": 412}) != "yes":
        raise ValueError("nobody wants it")
    return await run.step(charge, 412, effect="once")

@engine.durable
async def pay(run):
    await run.wait_for("paid")
    await run.step(slow, "first")
    return await run.step(note, "second")

async def begin(function, *args, thread_id):
    handle = await function.start(*args, thread_id=thread_id)
    await asyncio.shield(handle._task)

if __name__ == "__main__":
    asyncio.run(begin(trip, "Oslo", thread_id="trip"))
    asyncio.run(begin(pay, thread_id="pay"))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that has begun two runs, each of which waits."""
    (tmp_path / "app.py").write_text(PROGRAM)
    subprocess.run([sys.executable, "app.py"], cwd=tmp_path, check=True, timeout=120)
    return tmp_path


def calls(folder: Path) -> list[str]:
    file = folder / "calls.txt"
    return file.read_text().splitlines() if file.exists() else []


def until(condition: Callable[[], Any]) -> None:
    """Wait for something, for a long time if need be."""
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_runs_are_listed_and_shown_with_what_they_wait_for(run: Run, program: Path) -> None:
    listed = run("runs", "--store", program / "runs.db")
    assert {tuple(line.split("\t")[:3]) for line in listed.out.splitlines()} == {
        ("trip", "trip", "waiting"),
        ("pay", "pay", "waiting"),
    }
    shown = run("run", "trip", "--store", program / "runs.db")
    assert "waits for an answer: Book it?" in shown.out
    assert '"price": 412' in shown.out
    assert '"Oslo"' in shown.out
    assert "note\tok\t1\t" in shown.out
    whole = run("run", "trip", "--store", program / "runs.db", "--json").json
    schemas.check("run", whole)
    assert [entry["op"] for entry in whole["entries"]] == ["start", "step", "ask"]
    few = run("run", "trip", "-n", "1", "--store", program / "runs.db", "--json").json
    assert [entry["op"] for entry in few["entries"]] == ["ask"]
    assert run("runs", "--status", "done", "--store", program / "runs.db", "--json").json["runs"] == []


def test_an_answer_makes_a_run_ready_and_recover_takes_it_up(run: Run, program: Path) -> None:
    store = program / "runs.db"
    assert run("answer", "trip", "yes", "--store", store).out == "trip is answered; it is ready\n"
    done = start_process("recover", "app.py", "--json", cwd=program)
    assert done.code == 0, done.err
    schemas.check("recover", done.json)
    assert [(each["thread_id"], each["status"]) for each in done.json["runs"]] == [("trip", "done")]
    assert calls(program) == ["weather of Oslo", "charge"]
    assert run("run", "trip", "--store", store, "--json").json["result"] == {"receipt": 412}
    again = start_process("recover", "app.py", cwd=program)
    assert (again.code, again.out) == (0, "")
    assert "no run has anything to do" in again.err
    late = run("answer", "trip", "no", "--store", store, "--json")
    assert late.code == 1
    assert late.error["code"] == "not_waiting"


@pytest.mark.parametrize(
    ("words", "value"), [(["7"], 7), (['{"a": 1}'], {"a": 1}), (["plain text"], "plain text"), (['"7"'], "7")]
)
def test_a_value_is_json_or_text(run: Run, program: Path, words: list[str], value: Any) -> None:
    run("answer", "trip", *words, "--store", program / "runs.db")
    run("signal", "pay", "paid", *words, "--store", program / "runs.db")
    with everstep.open(program / "runs.db").sync as engine:
        answered = engine.get_latest("trip")
        told = engine.get_latest("pay")
    assert answered is not None
    assert answered.tools_result["answer"] == value
    assert told is not None
    assert told.tools_result["value"] == value


def test_whether_an_effect_happened_is_said_with_its_result(run: Run, program: Path) -> None:
    store = program / "runs.db"
    run("answer", "trip", "yes", "--store", store)
    (program / "die").touch()
    assert start_process("recover", "app.py", cwd=program).code == 9
    (program / "die").unlink()
    assert start_process("recover", "app.py", "--json", cwd=program).json["runs"][0]["status"] == "waiting"
    assert "Did charge happen?" in run("run", "trip", "--store", store).out
    guess = run("answer", "trip", "yes", "--store", store, "--json")
    assert (guess.code, guess.error["code"]) == (2, "invalid_input")
    assert "nobody knows whether 'charge' happened" in guess.error["message"]
    assert run("answer", "trip", "--happened", '{"receipt": 1}', "--did-not-happen", "--store", store).code == 2
    assert run("answer", "trip", "--happened", '{"receipt": 1}', "--store", store).code == 0
    done = start_process("resume", "app.py", "trip", "--json", cwd=program)
    schemas.check("resume", done.json)
    assert done.json["result"] == {"receipt": 1}
    assert calls(program).count("charge") == 1


def test_an_ordinary_question_is_not_answered_as_an_effect(run: Run, program: Path) -> None:
    done = run("answer", "trip", "--did-not-happen", "--store", program / "runs.db", "--json")
    assert done.code == 2
    assert "is not about an effect" in done.error["message"]


def test_a_run_that_failed_is_resumed(run: Run, program: Path) -> None:
    run("answer", "trip", "no", "--store", program / "runs.db")
    failed = start_process("resume", "app.py", "trip", "--json", cwd=program)
    assert failed.code == 1
    assert failed.error["code"] == "run_failed"
    assert "ValueError: nobody wants it" in failed.error["message"]
    shown = run("run", "trip", "--store", program / "runs.db", "--json").json
    assert (shown["status"], shown["error"]["type"]) == ("failed", "ValueError")
    (program / "app.py").write_text(PROGRAM.replace('!= "yes"', '== "never"'))
    done = start_process("resume", "app", "trip", cwd=program)
    assert done.code == 0, done.err
    assert "trip is done" in done.out


def test_resuming_a_run_that_waits_says_for_what(program: Path) -> None:
    done = start_process("resume", "app:engine", "trip", cwd=program)
    assert (done.code, done.out) == (0, "trip is waiting\nwaits: Book it?\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_finishes_its_step_and_gives_its_run_back(run: Run, program: Path, number: signal.Signals) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "everstep", "recover", "app.py", "--watch", "--json"],
        cwd=program,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        assert "watching for runs of pay, trip" in worker.stderr.readline()
        run("signal", "pay", "paid", "--store", program / "runs.db")
        until(lambda: "first begins" in calls(program))
        worker.send_signal(number)
        assert "once more ends it at once" in worker.stderr.readline()
        assert worker.poll() is None
        (program / "go").touch()
        out, _ = worker.communicate(timeout=100)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0
    assert calls(program)[-2:] == ["first begins", "first"]
    [line] = [json.loads(each) for each in out.splitlines()]
    assert (line["thread_id"], line["status"]) == ("pay", "ready")
    done = start_process("recover", "app.py", "--json", cwd=program)
    assert [each["status"] for each in done.json["runs"]] == ["done"]
    assert calls(program)[-3:] == ["first begins", "first", "second"]


def test_a_second_signal_ends_a_worker_at_once_and_nothing_recorded_is_lost(run: Run, program: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "everstep", "recover", "app.py", "--watch"],
        cwd=program,
        env=os.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        worker.stderr.readline()
        run("signal", "pay", "paid", "--store", program / "runs.db")
        until(lambda: "first begins" in calls(program))
        worker.send_signal(signal.SIGTERM)
        worker.stderr.readline()
        worker.send_signal(signal.SIGTERM)
        worker.wait(100)
    finally:
        worker.kill()
        worker.communicate()
    assert worker.returncode == -signal.SIGTERM
    (program / "go").touch()
    done = start_process("recover", "app.py", "--json", cwd=program)
    assert [each["status"] for each in done.json["runs"]] == ["done"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("app.py", "", "there is no engine with durable functions"),
        ("app.py", "import everstep\n1 / 0\n", "ZeroDivisionError: division by zero (app.py, line 2)"),
        ("app.py", "import nothing_like_it\n", "No module named 'nothing_like_it'"),
        ("app.py", "raise SystemExit(3)\n", "__name__ == '__main__'"),
        ("missing.py", None, "there is no file"),
        ("missing.module", None, "there is no module missing.module"),
        ("sub/json.py", "x = 1\n", "give it another name"),
    ],
)
def test_a_program_that_cannot_be_used_says_why(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    done = start_process("recover", name, "--json", cwd=tmp_path)
    assert (done.code, done.error["code"]) == (1, "program_not_loaded")
    assert words in done.error["message"]


@pytest.mark.parametrize("name", ["things/work.py", "things.work", "things.work:face", "things.work:trip"])
def test_a_program_may_be_in_a_package_and_have_only_the_blocking_face(tmp_path: Path, name: str) -> None:
    package = tmp_path / "things"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tools.py").write_text("def shout(word):\n    return word.upper()\n")
    (package / "work.py").write_text(
        "import everstep\nfrom .tools import shout\nface = everstep.open('runs.db').sync\n"
        "@face.durable\ndef trip(run, city):\n    return run.step(shout, city) + str(run.ask('Go?'))\n"
        "if __name__ == '__main__':\n    trip.start('oslo', thread_id='t')._thread.join()\n"
    )
    subprocess.run([sys.executable, "-m", "things.work"], cwd=tmp_path, check=True, timeout=100)
    assert start_process("answer", "t", "1", "--store", tmp_path / "runs.db").code == 0
    done = start_process("recover", name, "--json", cwd=tmp_path)
    assert [each["status"] for each in done.json["runs"]] == ["done"], done.err
    assert start_process("run", "t", "--store", tmp_path / "runs.db", "--json").json["result"] == "OSLO1"


def test_the_program_says_which_store_it_is(run: Run) -> None:
    assert run("recover", "app.py", "--store", "other.db").code == 2


def test_an_unknown_run_is_not_found(run: Run, demo_file: Path) -> None:
    for words in (["run", "nobody"], ["answer", "nobody", "yes"], ["signal", "nobody", "x"], ["run", "support-4711"]):
        done = run(*words, "--store", demo_file, "--json")
        assert (done.code, done.error["code"]) == (3, "run_not_found")


def test_on_a_terminal_steps_are_a_table(demo_file: Path) -> None:
    shown = start_on_terminal("run", "report-week-46", "--store", demo_file, "--no-pager").screen
    assert "TRIES" in shown
    assert "fetch_costs" in shown
    assert "TimeoutError: the ledger did not answer" in shown
