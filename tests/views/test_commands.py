"""Commands that people copy: a shell and the command itself read back what was meant."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.views.commands import as_command


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (("trip",), "everstep log --time trip"),
        (("a trip", "'"), """everstep log --time 'a trip' ''"'"''"""),
        (("-n",), "everstep log --time -- -n"),
        (("trip", "--all"), "everstep log --time -- trip --all"),
        ((), "everstep log --time"),
    ],
)
def test_as_it_is_written(arguments: tuple[str, ...], written: str) -> None:
    assert as_command("log --time", *arguments) == written


@given(st.lists(st.text("-ab '\"$\n"), max_size=3))
def test_a_shell_reads_what_was_meant(arguments: list[str]) -> None:
    words = shlex.split(as_command("log", *arguments))
    assert words[:2] == ["everstep", "log"]
    rest = words[2:]
    if any(argument.startswith("-") for argument in arguments):
        assert rest.pop(0) == "--"
    assert rest == arguments
