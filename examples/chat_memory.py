"""A chat that remembers. Every message is said in a new process; what was said before is in one file.

    python examples/chat_memory.py

Two people talk to the same bot, each in a thread of their own. In the end the file is looked at.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph
from models import chat_model

import everstep
from everstep.langgraph import HarnessCheckpointer

CONVERSATION = (
    ("ada", "Hello, my name is Ada."),
    ("bob", "Hi, my name is Bob."),
    ("ada", "What is my name?"),
)


def script(messages: list[BaseMessage]) -> str:
    said = [message.text for message in messages if message.type == "human"]
    names = [found[1] for text in said if (found := re.search(r"my name is (\w+)", text))]
    if not names:
        return "I do not know you yet."
    if "What is my name" in said[-1]:
        return f"Your name is {names[-1]}; you told me {len(messages) - 1} messages ago."
    return f"Nice to meet you, {names[-1]}."


model = chat_model(script)


def answer(state: MessagesState) -> MessagesState:
    return {"messages": [model.invoke(state["messages"])]}


def say(path: str, thread: str, text: str) -> None:
    """Say one thing and print the answer. This is all that a process does."""
    with HarnessCheckpointer.from_url(path) as saver:
        graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(checkpointer=saver)
        found = graph.invoke({"messages": [HumanMessage(text)]}, {"configurable": {"thread_id": thread}})
        print(f"  {thread:<4} {text}\n       {found['messages'][-1].text}", flush=True)


def show(path: Path) -> None:
    """Show what is on disk. No graph is needed for it."""
    with everstep.open(f"sqlite:///{path}").sync as engine:
        for thread in engine.checkpointer.list_threads():
            points = engine.list_time_travel_points(thread.thread_id)
            last = engine.get_latest(thread.thread_id)
            messages = last.messages if last else []
            print(f"  thread {thread.thread_id}: {len(messages)} messages, {len(points)} checkpoints")
            for message in messages:
                print(f"    {message['type']:<5} {message['content']}")
    for file in sorted(path.parent.iterdir()):
        print(f"  {file.name}: {file.stat().st_size:,} bytes")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="everstep-example-") as folder:
        path = Path(folder) / "chat.db"
        print("Every message is said in a process of its own:\n", flush=True)
        for thread, text in CONVERSATION:
            subprocess.run([sys.executable, __file__, str(path), thread, text], check=True)
        print("\nWhat is on disk, the thread that was used last first:\n")
        show(path)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        say(*sys.argv[1:])
    else:
        main()
