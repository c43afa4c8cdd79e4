"""Arguments that cannot be stored are the same after a crash: in another process, and in a worker."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import everstep
from everstep.durable.entries import Arguments
from everstep.durable.lasting import lasting_text
from tests.durable.worlds import World, killed

PROGRAM = """
import asyncio, dataclasses, functools
import pydantic
import everstep

engine = everstep.open("runs.db")

class Client:
    pass

class Session:
    def __repr__(self):
        return f"<Session at {hex(id(self))}>"

    def send(self):
        pass

@dataclasses.dataclass
class Order:
    client: object

class Filter(pydantic.BaseModel):
    words: set[str]

def count(*what, **named):
    return len(what)

@engine.durable
async def work(run):
    words = {"a", "b", "c", "dd", "eee"}
    found = await run.step(
        count,
        Client(), Client, Session(), Session().send, count, lambda: 1, functools.partial(count, Session()),
        Order(Session()), Filter(words=words), {Client(), "a"}, [Session()], (each for each in words), asyncio,
        call={"key": Client()},
    )
    await run.ask("Go on?")
    return found

async def begin():
    await asyncio.shield((await work.start(thread_id="t"))._task)

if __name__ == "__main__":
    asyncio.run(begin())
"""


def test_a_worker_asks_for_the_same_as_the_program_that_began(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    done = [
        _python(tmp_path, "1", "app.py"),
        _python(tmp_path, "2", "-c", "import app; app.engine.sync.answer('t', 1)"),
        _python(tmp_path, "3", "-c", "import app, asyncio; print(asyncio.run(app.engine.resume('t')))"),
    ]
    assert [each.stderr for each in done] == ["", "", ""]
    assert done[-1].stdout == "13\n"


def _python(folder: Path, seed: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python, with an order of sets of its own."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


PAYING = """
import sys
import everstep

engine = everstep.open("runs.db").sync

class Desk:
    def __init__(self, name):
        self.name = name

    def refund(self, receipt=None):
        print(receipt, "at", self.name)

def refund(receipt):
    print(receipt, "at the top")

@engine.durable
def pay(run):
    run.step(str, "train", key="train", effect="once", undo=refund)
    run.step(str, "hotel", key="hotel", effect="once", undo=Desk("hotel").refund)
    run.step(str, "table", key="table", effect="once", undo=lambda receipt: print(receipt, "at a lambda"))
    if len(sys.argv) > 1:
        sys.exit()
    return run.ask("Go on?")

def rewind():
    start = engine.list_time_travel_points("t")[-1]
    try:
        engine.rewind(start.checkpoint_id, compensate=True)
    except everstep.InvalidInput as error:
        print(str(error).partition(", which")[0])

if __name__ == "__main__":
    pay(thread_id="t")
"""


def test_an_effect_is_taken_back_in_another_process_by_what_was_named_with_it_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PAYING)
    done = [
        _python(tmp_path, "1", "app.py", "leave"),
        _python(tmp_path, "2", "-c", "import app; app.rewind()"),
        _python(tmp_path, "3", "-c", "import app; app.engine.recover(); app.rewind()"),
    ]
    assert [each.stderr for each in done] == ["", "", ""]
    assert done[1].stdout == "the effect 'table' is taken back by app:pay.<locals>.<lambda>\n"
    assert done[2].stdout == "table at a lambda\nhotel at hotel\ntrain at the top\n"


@pytest.mark.parametrize("face", ["async"], indirect=True)
@pytest.mark.parametrize("kind", ["memory"], indirect=True)
async def test_a_function_is_the_same_argument_when_it_is_made_again(
    engine: everstep.CheckpointEngine, world: World
) -> None:
    @engine.durable
    async def work(run: everstep.Run) -> int:
        found = await run.step(_applied, lambda x: x + 1, 1)
        await run.step(world.do, "last")
        return found

    world.kill_at("last")
    await killed(work(thread_id="t"))
    assert await engine.resume("t") == 2


def _applied(function: Callable[[int], int], value: int) -> int:
    return function(value)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Node:
    name: str
    next: Any = None
    hidden: Any = dataclasses.field(default=None, repr=False)


class Broken:
    def __repr__(self) -> str:
        raise ValueError


def test_other_arguments_do_not_look_alike() -> None:
    ring = Node("ring")
    ring.next = ring
    values = [
        Node("a"),
        Node("b"),
        Pair(1, "at 0x1234"),
        Pair(1, "at 0x5678"),
        Pair({1, 2}, [3]),
        Pair({1, 2}, (3,)),
        Node("x" * 20_000 + "a"),
        Node("x" * 20_000 + "b"),
        _applied,
        Node,
        Broken(),
        ring,
    ]
    assert len({Arguments.of([value], {}).digest for value in values[:-1]}) == len(values) - 1
    assert lasting_text(ring).endswith(".Node>")
    assert lasting_text(Node("a", hidden=object())) == lasting_text(Node("a"))
