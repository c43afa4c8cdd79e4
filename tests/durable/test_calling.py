"""How the functions of steps are called, whatever the store."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import everstep

_STUCK = """
import asyncio, sys, time
import everstep
engine = everstep.open("memory://")
@engine.durable
async def work(run):
    try:
        await run.step(time.sleep, 1000, timeout=0.05)
    except TimeoutError:
        return "left"
print(asyncio.run(work(thread_id="t")))
"""


def test_a_step_that_never_ends_does_not_keep_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", _STUCK], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "left\n"


@pytest.mark.parametrize("is_async", [True, False])
def test_a_timeout_of_a_step_of_its_own_is_not_its_time_limit(is_async: bool) -> None:
    engine = everstep.open("memory://").sync

    def read() -> None:
        raise TimeoutError("the socket")

    async def read_slowly() -> None:
        raise TimeoutError("the socket")

    @engine.durable
    def work(run: everstep.SyncRun) -> None:
        if is_async:
            run.step(read_slowly, timeout=60)
        else:
            run.step(read, timeout=60)

    with pytest.raises(TimeoutError, match=r"^the socket$"):
        work(thread_id="t")
    engine.close()


def test_functions_of_two_modules_do_not_take_up_each_others_runs() -> None:
    engine = everstep.open("memory://").sync

    def make(module: str) -> Any:
        def main(run: everstep.SyncRun) -> str:
            return module

        main.__module__ = module
        return main

    engine.durable(make("one"), name="main")
    engine.durable(make("one"), name="main")  # the module was loaded once more
    with pytest.raises(everstep.InvalidInput, match=r"one and two both have a durable function 'main'"):
        engine.durable(make("two"), name="main")
    engine.close()
