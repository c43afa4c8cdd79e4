"""Kill -9 in a loop: a copy from one SQLite file to another, while a second process writes to the source. After each
kill whatever the target lists is whole; every few kills a copy is let finish, and is like the source, and a new target
is begun. Run by test_kill_copy.py.

    python kill_copy.py FOLDER ROUNDS SEED [object|head]

With a word the target loses that much once it is finished: a harness that then finds nothing proves nothing.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import everstep
from everstep.stores.sqlite import connecting as sqlite_connecting
from everstep.transfer import families, receiving
from tests.timeline.histories import Walker, seen

KILLS = 4


def copy(source: str, target: str, told: int) -> None:
    """Copy in small parts; one byte per part goes down the pipe."""
    families.PART_CHECKPOINTS, families.PART_THREADS, receiving.PART_SEGMENTS = 5, 2, 5
    everstep.copy(source, target, progress=lambda _: os.write(told, b"."))


def write(source: str, told: int) -> None:
    """Write to the source until killed."""
    walker = Walker(everstep.open(source).checkpointer, os.getpid(), deletes_threads=False, gc_param=30)
    while True:
        walker.step()
        os.write(told, b"w")


def start(work: Any, *args: Any) -> tuple[int, int]:
    """Run `work` in a process of its own; return that and where it tells how far it is."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(out)
            work(*args, into)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(into)
    return child, out


def kill_one(source: str, target: str, rng: random.Random, writing: bool) -> tuple[int, bool]:
    """Kill a copy at a random moment; return after how many parts, and whether it was not done by then."""
    children = [start(copy, source, target)]
    if writing:
        children.append(start(write, source))
    copier, out = children[0]
    parts, wanted = 0, rng.randrange(12)
    while parts <= wanted:
        told = os.read(out, 1)
        if not told:
            break
        parts += 1
    until = time.monotonic() + rng.uniform(0, 0.01)  # anywhere within a part
    while (left := until - time.monotonic()) > 0:
        select.select([], [], [], left)
    for child, pipe in children:
        os.kill(child, signal.SIGKILL)
        os.close(pipe)
    statuses = {child: os.waitpid(child, 0)[1] for child, _ in children}
    return parts, os.WIFSIGNALED(statuses[copier])


def check_listed(target: str) -> list[str]:
    """Return what is wrong with the threads that the target lists: there are no halves."""
    engine = everstep.open(target)
    faults = [
        f"{head.thread_id}: {point.checkpoint_id} is listed but not there"
        for head in engine.checkpointer.sync.list_threads(10_000)  # type: ignore[attr-defined]
        for point in engine.sync.list_time_travel_points(head.thread_id, 10_000)
        if engine.sync.get(point.checkpoint_id, thread_id=head.thread_id, namespace="") is None
    ]
    engine.sync.close()
    return faults


def finish(source: str, target: str) -> list[str]:
    """Copy to the end, and return what differs."""
    try:
        everstep.copy(source, target)
        one, other = everstep.open(source), everstep.open(target)
        expected, found = seen(one.checkpointer.store), seen(other.checkpointer.store)  # type: ignore[attr-defined]
        one.sync.close()
        other.sync.close()
    except everstep.EverstepError as exc:
        return [f"{type(exc).__name__}: {exc}"]
    return [f"{name} differs" for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)]


def spoil(target: Path, what: str) -> None:
    connection = sqlite_connecting.connect(target, 1000)
    statements = {
        "object": "DELETE FROM objects WHERE id = (SELECT max(id) FROM objects)",
        "head": "UPDATE lines SET head = (SELECT min(seq) FROM checkpoints WHERE line = lines.id) WHERE head NOTNULL",
    }
    connection.execute(statements[what])
    connection.close()


def main(folder: Path, rounds: int, seed: int, planted: str | None) -> None:
    rng = random.Random(seed)
    source = f"sqlite:///{folder}/source.db"
    walker = Walker(everstep.open(source).checkpointer, seed, deletes_threads=False, gc_policy="keep_all")
    walker.walk(200)
    walker.engine.close()
    faults: list[str] = []
    killed, moments = 0, set()
    for number in range(rounds):
        path = folder / f"target {number // KILLS}.db"
        target = f"sqlite:///{path}"
        parts, was_killed = kill_one(source, target, rng, writing=number % 2 == 1)
        killed += was_killed
        moments.add(parts)
        faults += [f"round {number}: {fault}" for fault in check_listed(target)]
        if number % KILLS == KILLS - 1:
            faults += [f"round {number}: {fault}" for fault in finish(source, target)]
            if planted is not None:
                spoil(path, planted)
                faults += finish(source, target)
    print(json.dumps({"rounds": rounds, "killed": killed, "moments": len(moments), "faults": faults[:20]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
