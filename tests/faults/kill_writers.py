"""Kill -9 in a loop: four writers on one SQLite file, two of them on one thread; after each round everything that was
acknowledged must be there, exactly. Run by test_kill.py, in a process of its own so that forking is clean.

    python kill_writers.py PATH ROUNDS SEED [early]

With "early" the writers acknowledge before they save: a harness that then finds nothing lost proves nothing.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import signal
import sys
import time
from typing import Any

import everstep
from everstep import SnapshotConfig

WRITERS = 4


def text(writer: int, n: int) -> str:
    return f"writer {writer} wrote message {n}. " * (1 + n % 40)


def write(path: str, thread_id: str, writer: int, acks: int, early: bool) -> None:
    """Save until killed; one line per acknowledged checkpoint goes down the pipe."""
    engine = everstep.open(f"sqlite:///{path}", SnapshotConfig(gc_policy="keep_all")).sync
    messages: list[dict[str, Any]] = []
    n = 0
    while True:
        n += 1
        message = {"writer": writer, "n": n, "content": text(writer, n)}
        if early:
            os.write(acks, json.dumps([thread_id, f"lost-{writer}-{n}", writer, n]).encode() + b"\n")
        if writer % 2:
            checkpoint_id = engine.append(thread_id, [message], {f"last {writer}": n})
        else:
            messages.append(message)
            checkpoint_id = engine.snapshot(thread_id, messages, {f"last {writer}": n}, {"n": n})
        os.write(acks, json.dumps([thread_id, checkpoint_id, writer, n]).encode() + b"\n")


def run_round(path: str, number: int, rng: random.Random, early: bool) -> list[list[Any]]:
    """Start the writers, kill them at a random moment, and return what they had acknowledged."""
    reading, children = [], []
    for writer in range(WRITERS):
        thread_id = f"shared {number}" if writer < 2 else f"own {writer} {number}"
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(out)
                write(path, thread_id, writer, into, early)
            finally:
                os._exit(1)
        os.close(into)
        reading.append(out)
        children.append(child)
    data = dict.fromkeys(reading, b"")
    until = time.monotonic() + rng.uniform(0.03, 0.20)
    while time.monotonic() < until:
        for out in select.select(reading, [], [], 0.01)[0]:
            data[out] += os.read(out, 65536)
    for child in children:
        os.kill(child, signal.SIGKILL)
    for child in children:
        os.waitpid(child, 0)
    for out in reading:
        while more := os.read(out, 65536):
            data[out] += more
        os.close(out)
    return [json.loads(line) for out in reading for line in data[out].split(b"\n")[:-1]]


def check(path: str, number: int, acks: list[list[Any]]) -> list[str]:
    """Return what is wrong with the file after a round."""
    faults = []
    engine = everstep.open(f"sqlite:///{path}").sync
    by_thread: dict[str, list[list[Any]]] = {}
    for ack in acks:
        by_thread.setdefault(ack[0], []).append(ack)
    for thread_id, acknowledged in by_thread.items():
        points = engine.list_time_travel_points(thread_id, 100_000)
        if [p.step for p in points] != list(range(len(points), 0, -1)):
            faults.append(f"{thread_id}: steps {[p.step for p in points]}")
        if any(newer.parent_checkpoint_id != older.checkpoint_id for newer, older in itertools.pairwise(points)):
            faults.append(f"{thread_id}: the chain of parents is broken")
        stored = {p.checkpoint_id for p in points}
        faults += [f"{thread_id}: lost {ack[1]}" for ack in acknowledged if ack[1] not in stored]
        for point in points:
            found = engine.get(point.checkpoint_id, thread_id=thread_id, namespace="")
            if found is None:
                faults.append(f"{thread_id}: {point.checkpoint_id} is listed but not there")
                continue
            for message in found.messages:
                if message["content"] != text(message["writer"], message["n"]):
                    faults.append(f"{thread_id}: {point.checkpoint_id} holds a wrong message")
        for _, checkpoint_id, writer, n in acknowledged:
            found = engine.get(checkpoint_id, thread_id=thread_id, namespace="") if checkpoint_id in stored else None
            if found is not None and (found.state.get(f"last {writer}") != n or found.messages[-1]["n"] != n):
                faults.append(f"{thread_id}: {checkpoint_id} is not what was saved")
    engine.close()
    return faults


def main(path: str, rounds: int, seed: int, early: bool) -> None:
    rng = random.Random(seed)
    total, faults = 0, []
    for number in range(rounds):
        acks = run_round(path, number, rng, early)
        total += len(acks)
        faults += [f"round {number}: {fault}" for fault in check(path, number, acks)]
    print(json.dumps({"rounds": rounds, "acknowledged": total, "faults": faults[:20], "fault_count": len(faults)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "early" in sys.argv[4:])
