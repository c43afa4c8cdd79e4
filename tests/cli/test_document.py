"""docs/command-line.md is true: its list is that of the command, and its examples print what they show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from everstep.cli import catalog
from tests.cli.conftest import Run

PAGE = Path(__file__).parents[2] / "docs/command-line.md"
MARK = "<!-- made from everstep/cli/catalog.py; a test compares -->\n"


def command_list() -> str:
    """Return the list of all commands as the page has it; print it to renew the page."""
    lines = []
    for title, commands in catalog.SECTIONS.items():
        lines += ["", f"**{title}**", "", "| command | does |", "|---|---|"]
        lines += [f"| `everstep {name}` | {about} |" for name, (_, about) in commands.items()]
    return "\n".join(lines) + "\n"


def test_the_list_of_commands_is_that_of_the_command() -> None:
    assert PAGE.read_text().partition(MARK)[2] == command_list()


def test_the_examples_print_what_they_show(
    run: Run, own_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_STORE", str(own_file))
    for block in re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = example.partition("\n")
            words = shlex.split(line)
            if words[0] != "everstep":
                continue  # an assignment of the shell
            done = run(*words[1:])
            assert done.code == 0, (line, done.err)
            pattern = ".*".join(re.escape(part).replace(r"\ \ \ \ ", r"\s+") for part in shown.split("..."))
            assert re.fullmatch(pattern, done.out, re.DOTALL), (line, done.out)


def test_every_command_of_llms_txt_is_there() -> None:
    text = (PAGE.parent / "llms.txt").read_text()
    named = set(re.findall(r"^    everstep ([\w-]+)", text, re.MULTILINE))
    assert named <= set(catalog.names())
    assert len(named) >= 9
