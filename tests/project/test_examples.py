"""The examples run offline, say what they promise, and leave nothing behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "EVERSTEP_EXAMPLE_MODEL")


def run(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in KEYS}
    place = folder / "temporary"
    place.mkdir()
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env={**kept, "TMPDIR": str(place), "PYTHONWARNINGS": "error", **variables},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
    return done


def told(name: str, folder: Path) -> str:
    """Return what an example prints if nothing is amiss."""
    done = run(name, folder)
    assert done.stderr == ""
    return done.stdout


def sections(text: str) -> list[list[str]]:
    """Return the lines of each part of an output, without their indentation."""
    return [[line.strip() for line in part.splitlines()] for part in text.strip().split("\n\n")]


def test_a_workflow_is_killed_resumed_and_rolled_back(tmp_path: Path) -> None:
    text = told("content_workflow.py", tmp_path)

    killed, left, resumed, history, rolled_back, undone = sections(text)
    assert killed[1:] == ["research runs", "outline runs", "draft runs", "kill -9 in the middle of draft (exit -9)"]
    assert left[1:] == ["status stopped, stage outlined, next ['draft'], logs ['17 words of notes', '3 points']"]
    sober = "-> TIDES: The moon pulls. Twice a day. The Bay of Fundy."
    assert resumed[1:4] == ["draft runs", "finalize runs", sober]
    assert resumed[4].startswith("status finished, stage done, next [], logs [")
    assert [line.split(" ")[0] for line in history[1:]] == ["done", "drafted", "outlined", "researched", "-", "-"]
    lively = "-> TIDES: The moon pulls! Twice a day! The Bay of Fundy!"
    assert rolled_back[1:4] == ["draft runs", "finalize runs", lively]
    assert rolled_back[4].endswith("logs ['17 words of notes', '3 points', 'a lively draft', 'ready']")
    assert undone[1:] == [sober]  # nothing runs


def test_a_chat_remembers_across_processes_and_keeps_threads_apart(tmp_path: Path) -> None:
    text = told("chat_memory.py", tmp_path)

    said, stored = text.split("\n\nWhat is on disk")
    assert "Your name is Ada; you told me 2 messages ago." in said
    lines = [line.strip() for line in stored.splitlines()]
    ada, bob = (
        lines.index("thread ada: 4 messages, 6 checkpoints"),
        lines.index("thread bob: 2 messages, 3 checkpoints"),
    )
    assert ada < bob  # the one that was used last is listed first
    assert lines[ada + 1 : ada + 4 : 2] == ["human Hello, my name is Ada.", "human What is my name?"]
    assert lines[bob + 1 : bob + 3] == ["human Hi, my name is Bob.", "ai    Nice to meet you, Bob."]
    assert re.fullmatch(r"chat\.db: [\d,]+ bytes", lines[-1])


def test_one_question_is_answered_in_two_ways(tmp_path: Path) -> None:
    text = told("human_in_the_loop.py", tmp_path)

    asked, answered, compared, taken = sections(text)
    assert "waiting at ('decide',) with {'question': 'How much do we refund?'" in asked[2]
    assert answered[1:] == ["decide:  the human says 80", "decide:  the human says 0"]
    assert text.count("the model is asked") == 1  # finished nodes do not run again in branches
    assert compared[1:] == [
        "state.refund: 80 or 0",
        "state.letter: 'We are sorry. You get your money back.' or 'We are sorry. Here is a voucher.'",
    ]
    assert taken[1:] == [
        "before: next ('decide',)",
        "after:  next (), refund 80, letter 'We are sorry. You get your money back.'",
    ]


def test_a_conversation_goes_back_and_on_another_way(tmp_path: Path) -> None:
    text = told("time_travel.py", tmp_path)

    first, history, back, on, undone, tree = sections(text)
    assert len(first[1:]) == 6
    assert [line[0] for line in history[1:]] == list("654432210")
    assert back[1:] == ["6 checkpoints are left behind, none is lost"]
    assert on[1:] == [*first[1:3], "human It will be sunny.", "ai    Then the fjord all day."]
    assert undone[1:] == ["rewind: A table by the museums, at seven.", "rewind: Then the fjord all day."]
    assert tree[1] == "@  step 4  (HEAD day) [loop]"
    assert "| *  step 7  [loop]" in tree  # the first way is still there
    assert sum("step" in row for row in tree) == 12


def test_the_best_of_three_branches_is_merged_by_reducers(tmp_path: Path) -> None:
    text = told("explore_and_merge.py", tmp_path)

    tried, merged, tree = sections(text)
    assert tried[1:4] == [
        "cheap        A walk through the old town: score 6, 50 in all",
        "cultural     The opera: score 7, 110 in all",
        "adventurous  A kayak on the fjord: score 9, 95 in all",
    ]
    assert merged[0].startswith("The best is adventurous.")
    assert "state.cost: 120 here, 95 there" in merged
    assert merged[-1] == ("plan ['The train to Oslo', 'A room near the station', 'A kayak on the fjord'], cost 165")
    assert re.match(r"@  step 2  \(HEAD trip\) \[merge\] Merge trip-branch-adventurous-\w+ into trip$", tree[1])
    assert sum("(HEAD " in row for row in tree) == 4


def test_a_durable_run_is_killed_twice_and_charges_once(tmp_path: Path) -> None:
    text = told("durable_trip.py", tmp_path)

    planned, taken_up, charged, asked, told_so, history = sections(text)
    assert planned[1:] == ["fetch_weather('Oslo') is called", "kill -9", "the run is interrupted"]
    assert taken_up[1:] == [
        "ask_model('sun on Saturday') is called",
        "the run is waiting, waits for an answer to: Book it?",
    ]
    assert charged[1].startswith("charge_card(412) is called")
    assert charged[2] == "kill -9"
    assert "Did charge_card happen?" in asked[1]
    assert told_so[1:] == ["the result is {'booked': True, 'receipt': 'receipt 7'}", "the run is done"]
    assert history[1:4] == ["step 1  plan_trip: started", "step 2  fetch_weather: ok", "step 3  ask_model: ok"]
    assert [text.count(f"{name}(") for name in ("fetch_weather", "ask_model", "charge_card")] == [1, 1, 1]


@pytest.mark.parametrize("key", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"])
def test_with_a_key_but_no_package_an_example_says_what_to_install(tmp_path: Path, key: str) -> None:
    package = made_package(tmp_path, "raise ImportError('no such provider')")

    done = run("time_travel.py", tmp_path, **{key: "secret"}, PYTHONPATH=package)

    provider = "langchain-openai" if key == "OPENAI_API_KEY" else "langchain-anthropic"
    assert f"{key} is set: pip install langchain {provider}" in done.stderr
    assert "Then the fjord all day." in done.stdout


def test_with_a_key_the_real_model_answers(tmp_path: Path) -> None:
    package = made_package(
        tmp_path,
        "from langchain_core.language_models import FakeListChatModel\n"
        "    return FakeListChatModel(responses=[f'said by {name}'])",
    )

    done = run("time_travel.py", tmp_path, ANTHROPIC_API_KEY="secret", PYTHONPATH=package)

    assert "ai    said by anthropic:" in done.stdout
    assert done.stderr == ""


def made_package(folder: Path, body: str) -> str:
    """Make a stand-in for LangChain, which the tests do not install, and return the path to import it from."""
    package = folder / "packages" / "langchain"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "chat_models.py").write_text(f"def init_chat_model(name):\n    {body}\n")
    return os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_a_store_of_ones_own_survives_restarts_and_can_undo(tmp_path: Path) -> None:
    lines = told("lmdb_store.py", tmp_path).splitlines()

    assert [line[:15] for line in lines] == [
        "saved    step 1",
        "saved    step 2",
        "saved    step 3",
        "rewound  step 2",
        "undone   step 3",
    ]
    assert lines[4].endswith("['Hello', 'Here again, after a restart', 'This was a mistake']")
