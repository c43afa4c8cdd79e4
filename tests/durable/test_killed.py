"""Durable runs in real processes, killed with SIGKILL at each of their commits."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everstep
from tests.faults.proxy import Proxy
from tests.tools import servers

WORKER = """
import asyncio, json, os, signal, sys
import everstep

url, world, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
engine = everstep.open(url, **json.loads(sys.argv[4]))
store = engine._timeline.repository.store
commit = store.commit
count = 0

async def counted(change):
    global count
    count += 1
    if count == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return await commit(change)

store.commit = counted

def act(what):
    with open(world, "a") as file:
        file.write(what + "\\n")
        file.flush()
        os.fsync(file.fileno())
    return what

@engine.durable
async def trip(run: everstep.Run, city: str) -> list:
    plan = await run.step(act, f"plan {city}")
    run.messages.append({"role": "assistant", "content": plan})
    paid = await run.step(act, "pay", effect="once", on_unknown=look)
    maps = await run.gather(run.step(act, "map 1", key="map 1"), run.step(act, "map 2", key="map 2"))
    run.state["maps"] = maps
    return [plan, paid, *maps]

def look(unknown):
    with open(world) as file:
        return everstep.happened("pay") if "pay" in file.read().split() else everstep.did_not_happen()

async def main():
    print(await trip("Oslo", thread_id="trip"))
    await engine.close()

asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Return the address of a store, and the options it is opened with."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'runs.db'}", {}
    if request.param == "postgres":
        servers.clear_postgres()
        return servers.postgres(), {}
    return servers.redis(), {"key_prefix": servers.redis_prefix()}


async def test_a_run_that_is_killed_at_every_commit_ends_as_if_it_was_not(
    place: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url, options = place
    world = tmp_path / "world"
    world.touch()
    was_killed = 0
    for kill_at in range(2, 12) if "sqlite" in url else (3, 5, 6, 20):
        done = subprocess.run(
            [sys.executable, "-c", WORKER, url, str(world), str(kill_at), json.dumps(options)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        was_killed += 1
    assert json.loads(done.stdout.replace("'", '"')) == ["plan Oslo", "pay", "map 1", "map 2"]
    assert was_killed >= 2
    lines = world.read_text().split("\n")
    assert lines.count("pay") == 1
    async with everstep.open(url, **options) as engine:
        head = await engine.get_latest("trip")
        assert head is not None
        assert [message["content"] for message in head.messages] == ["plan Oslo"]
        assert head.state == {"maps": ["map 1", "map 2"]}
        assert [info.status for info in await engine.runs()] == ["done"]


@pytest.mark.parametrize("server", ["postgres", "redis"])
def test_a_step_takes_one_round_trip(server: str) -> None:
    options: dict[str, Any] = {"key_prefix": servers.redis_prefix()} if server == "redis" else {}
    url = servers.redis() if server == "redis" else servers.postgres()
    servers.clear_postgres()
    port = int(re.findall(r":([0-9]+)", url)[-1])
    with Proxy(port) as proxy:
        engine = everstep.open(url.replace(f":{port}", f":{proxy.port}"), **options).sync
        seen: list[int] = []

        @engine.durable
        def work(run: everstep.SyncRun) -> None:
            for number in range(8):
                run.step(str, number)
                seen.append(proxy.counts.round_trips)

        work(thread_id="t")
        engine.close()
    assert sum(after - before for before, after in itertools.pairwise(seen[1:])) <= 7  # one may be split in two


BOTH = """
import asyncio, os, signal, sys
import everstep

engine = everstep.open(sys.argv[1])
is_killed = sys.argv[2] == "killed"

def first():
    print("first", flush=True)

def second():
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    print("second", flush=True)

@engine.durable
async def work(run):
    async def steps():
        with run.scope("steps"):
            await run.step(first)
            await run.step(second)
    await run.gather(run.ask("Title?"), steps())

async def main():
    if is_killed:
        await work(thread_id="t")
    print([info.status for info in await engine.recover()])
    await engine.close()

asyncio.run(main())
"""


def test_a_run_that_is_killed_at_work_is_taken_up_though_it_waits_for_something_else(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BOTH, f"sqlite:///{tmp_path / 'runs.db'}"]
    killed = subprocess.run([*command, "killed"], check=False, capture_output=True, text=True)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "first\n")
    taken_up = subprocess.run([*command, "taken up"], check=True, capture_output=True, text=True)
    assert taken_up.stdout == "second\n['waiting']\n"
