"""A process that sends to the thread t: once, holding in a node until it gets a line, or many times at once."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import sys
import threading
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph

from everstep.langgraph import HarnessCheckpointer, asend, send

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Work(TypedDict):
    logs: Annotated[list[str], operator.add]


def say(line: str) -> None:
    print(line, flush=True)


def look(_: Work) -> Work:
    return {"logs": ["look"]}


def act(_: Work) -> Work:
    say("in act")
    sys.stdin.readline()
    return {"logs": ["act"]}


def answer(state: Work) -> Work:
    return {"logs": [f"answer to {state['logs'][-1]}"]}


def send_one(saver: HarnessCheckpointer, face: str, name: str) -> Any:
    builder: Any = StateGraph(Work)
    builder.add_node("look", look).add_node("act", act)
    graph = builder.add_edge(START, "look").add_edge("look", "act").compile(checkpointer=saver)
    try:
        if face == "async":
            return asyncio.run(asend(graph, {"logs": [name]}, CONFIG))
        return send(graph, {"logs": [name]}, CONFIG)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def send_many(saver: HarnessCheckpointer, face: str, name: str, count: int) -> int:
    builder: Any = StateGraph(Work)
    graph = builder.add_node("answer", answer).add_edge(START, "answer").compile(checkpointer=saver)
    inputs: list[Any] = [{"logs": [f"{name}{number}"]} for number in range(count)]
    done: list[Any] = []
    if face == "async":

        async def all_at_once() -> None:
            done.extend(await asyncio.gather(*(asend(graph, given, CONFIG) for given in inputs)))

        asyncio.run(all_at_once())
    else:
        threads = [
            threading.Thread(target=lambda given=given: done.append(send(graph, given, CONFIG))) for given in inputs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return len(done)


def main(url: str, options: str, face: str, name: str, count: str = "") -> None:
    saver = HarnessCheckpointer.from_url(url, **json.loads(options))
    say("ready")
    sys.stdin.readline()
    found = send_many(saver, face, name, int(count)) if count else send_one(saver, face, name)
    say(json.dumps(found))
    os._exit(0)  # a node on another thread may still hold


if __name__ == "__main__":
    main(*sys.argv[1:])
