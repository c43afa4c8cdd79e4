"""A process that runs a task: it says on its output where it is, and goes on when it gets a line."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import TaskManager


class Work(TypedDict):
    logs: Annotated[list[str], operator.add]


def steps(ran: Path, *, holds: str = "") -> Any:
    """Three nodes that note in a file that they ran; one of them may hold until it gets a line."""

    def node(name: str) -> Any:
        def run(state: Any) -> dict[str, Any]:
            with ran.open("a") as file:
                file.write(f"{name}\n")
            if name == holds:
                say(f"in {name}")
                sys.stdin.readline()
            return {"logs": [name]}

        return run

    graph = StateGraph(Work)
    for before, name in ((START, "first"), ("first", "second"), ("second", "third")):
        graph.add_node(name, node(name))
        graph.add_edge(before, name)
    return graph


def say(line: str) -> None:
    print(line, flush=True)


def main(url: str, options: str, ran: str, verb: str, holds: str, lease: str, face: str) -> None:
    saver = HarnessCheckpointer.from_url(url, **json.loads(options))
    manager = TaskManager(steps(Path(ran), holds=holds), saver, lease_seconds=float(lease))
    say("ready")
    sys.stdin.readline()
    try:
        if face == "async":
            act = manager.acreate_task({"logs": []}, task_id="t") if verb == "create" else manager.aresume_task("t")
            found = asyncio.run(act)
        else:
            found = manager.create_task({"logs": []}, task_id="t") if verb == "create" else manager.resume_task("t")
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    say(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # a node on another thread may still hold


if __name__ == "__main__":
    main(*sys.argv[1:])
