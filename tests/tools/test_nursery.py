"""Processes of the nursery are processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]
import pytest

from tests.tools.nursery import Child


def main(*arguments: str) -> None:
    """Say who one is, then what one was given whenever a line comes."""
    print(os.getpid(), flush=True)
    while input() == "":
        print(*arguments, flush=True)


@pytest.fixture
def children() -> Iterator[list[Child]]:
    made = [Child(__name__, "one", "first"), Child(__name__, "other")]
    yield made
    for child in made:
        child.close()


def test_each_is_a_process_with_its_own_lines(children: list[Child]) -> None:
    one, other = children
    assert int(one.line()) == one.pid
    assert int(other.line()) == other.pid
    assert len({os.getpid(), one.pid, other.pid}) == 3
    for child in children:
        child.go_on()
    assert (one.line(), other.line()) == ("one first", "other")


def test_one_that_is_killed_is_gone_and_the_other_goes_on(children: list[Child]) -> None:
    one, other = children
    one.close()
    one.close()
    assert not psutil.pid_exists(one.pid)
    assert int(other.line()) == other.pid
    other.go_on()
    assert other.line() == "other"


def test_one_that_is_paused_says_nothing_until_it_goes_on(children: list[Child]) -> None:
    one, _ = children
    one.line()
    one.send(signal.SIGSTOP)
    one.go_on()
    one.send(signal.SIGCONT)
    assert one.line() == "one first"


def test_one_whose_module_is_not_there_is_no_process() -> None:
    with pytest.raises(RuntimeError, match=r"No module named 'tests\.nowhere'"):
        Child("tests.nowhere")
