"""A workflow that outlives its process: research, outline, draft, finalize.

    python examples/content_workflow.py

The writer runs in a process of its own and is killed with kill -9 while it drafts. Another process resumes the task:
what was finished is not done again. Then the task is rolled back to its outline and goes on in another tone.
"""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

from langchain_core.messages import BaseMessage
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from models import chat_model

from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.tasks import TaskManager, TaskStatus

TASK = "article-1"
WORKER = (sys.executable, __file__)


class Article(TypedDict, total=False):
    topic: str
    notes: str
    outline: str
    draft: str
    final: str
    current_stage: str  # what `get_task_status` shows as the stage
    logs: Annotated[list[str], operator.add]


@dataclass
class Style:
    """What is the same for a whole run, and no part of the state."""

    tone: str = "sober"
    stuck_in: str = ""


def script(messages: list[BaseMessage]) -> str:
    order, _, given = messages[-1].text.partition("\n")
    if order.startswith("Collect facts"):
        return "Tides follow the moon. There are two a day. The highest are in the Bay of Fundy."
    if order.startswith("Make an outline"):
        return "1. The moon pulls\n2. Twice a day\n3. The Bay of Fundy"
    mark = "!" if "lively" in order else "."
    return " ".join(line.partition(". ")[2] + mark for line in given.splitlines())


model = chat_model(script)


def ask(order: str, given: str = "") -> str:
    return model.invoke(f"{order}\n{given}").text


def research(state: Article, runtime: Runtime[Style]) -> Article:
    begin("research", runtime)
    notes = ask(f"Collect facts about {state['topic']}, in three short sentences.")
    return {"notes": notes, "current_stage": "researched", "logs": [f"{len(notes.split())} words of notes"]}


def outline(state: Article, runtime: Runtime[Style]) -> Article:
    begin("outline", runtime)
    found = ask("Make an outline of three points, one line each, from these notes.", state["notes"])
    return {"outline": found, "current_stage": "outlined", "logs": [f"{len(found.splitlines())} points"]}


def draft(state: Article, runtime: Runtime[Style]) -> Article:
    begin("draft", runtime)
    tone = runtime.context.tone
    text = ask(f"Write a {tone} text of three sentences on these points.", state["outline"])
    return {"draft": text, "current_stage": "drafted", "logs": [f"a {tone} draft"]}


def finalize(state: Article, runtime: Runtime[Style]) -> Article:
    begin("finalize", runtime)
    final = f"{state['topic'].upper()}: {state['draft']}"
    return {"final": final, "current_stage": "done", "logs": ["ready"]}


def begin(node: str, runtime: Runtime[Style]) -> None:
    print(f"  {node} runs", flush=True)
    if runtime.context.stuck_in == node:
        time.sleep(60)  # a slow answer: here the process will be killed


def manager_of(saver: HarnessCheckpointer, style: Style) -> TaskManager:
    graph = StateGraph(Article, context_schema=Style)
    graph.add_sequence([research, outline, draft, finalize]).add_edge(START, "research")
    # The lease is how long a process may be silent before another one takes its task over. Where it can be seen that
    # the process is gone, nobody waits for that.
    return TaskManager(graph, saver, context=style, lease_seconds=2)


def worker(path: str, verb: str, stuck_in: str = "") -> None:
    """What runs in a process of its own."""
    with HarnessCheckpointer.from_url(path) as saver:
        manager = manager_of(saver, Style(stuck_in=stuck_in))
        if verb == "create":
            manager.create_task({"topic": "tides"}, task_id=TASK)
        else:
            print("  ->", manager.resume_task(TASK, wait=True)["final"])


def show_status(status: TaskStatus) -> None:
    print(f"  status {status['status']}, stage {status['stage']}, next {status['next']}, logs {status['logs']}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-example-") as folder:
        path = str(Path(folder) / "articles.db")

        print("A process writes an article, one node after the other.")
        with subprocess.Popen([*WORKER, path, "create", "draft"], stdout=subprocess.PIPE, text=True) as first:
            for line in first.stdout or ():
                print(line, end="")
                if line == "  draft runs\n":
                    os.kill(first.pid, signal.SIGKILL)
        print(f"  kill -9 in the middle of draft (exit {first.returncode})")

        with HarnessCheckpointer.from_url(path) as saver:
            manager = manager_of(saver, Style(tone="lively"))
            print("\nWhat is left of it:")
            show_status(manager.wait_task(TASK))  # until it is clear that nobody runs it any more

            print("\nAnother process resumes the task.", flush=True)
            subprocess.run([*WORKER, path, "resume"], check=True)
            show_status(manager.get_task_status(TASK))

            print("\nIts history, the newest first:")
            history = manager.get_task_history(TASK)
            for entry in history:
                print(f"  {entry['stage'] or '-':<11} next {entry['next']}")

            print("\nToo dry. Back to the outline, and on from there in a lively tone:")
            outlined = next(entry for entry in history if entry["stage"] == "outlined")
            print("  ->", manager.rollback_task(TASK, outlined["checkpoint_id"])["final"])
            show_status(manager.get_task_status(TASK))

            print("\nOr rather not: undo brings the first version back.")
            saver.engine.sync.undo(TASK)
            print("  ->", manager.resume_task(TASK)["final"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        worker(*sys.argv[1:])
    else:
        main()
