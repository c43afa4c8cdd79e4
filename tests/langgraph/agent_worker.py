"""A process in which an agent charges a card, and which kills itself at a point that a test chooses.

The points are before and after every write to the store, and around the charge, counted from 1. The process says what
the point was before it ends there; otherwise it says what the agent has answered.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import uuid
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.types import Command

import everstep
from everstep.langgraph import DurableTools, HarnessCheckpointer, asend, send
from everstep.stores.postgres import store as _postgres  # so that they are there before a process is forked
from everstep.stores.protocol import Store
from everstep.stores.redis import store as _redis
from everstep.stores.sqlite import store as _sqlite

_STORES = _postgres, _redis, _sqlite
_WRITES = ("commit", "put_writes", "delete")


class Points:
    """The points that the process comes to."""

    def __init__(self, last: str, told: Path) -> None:
        """`told` gets the names of all of them when the process ends at the last one."""
        self._last = last
        self._told = told
        self._passed: list[str] = []

    def pass_by(self, name: str) -> None:
        self._passed.append(name)
        if self._last in (name, str(len(self._passed))):
            self._told.write_text("\n".join(self._passed))
            print(name, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


class PointedStore:
    """A store with a point before and after every write."""

    def __init__(self, store: Store, points: Points) -> None:
        self._store, self._points = store, points

    @property
    def blocking(self) -> PointedStore:
        return PointedStore(self._store.blocking, self._points)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in _WRITES or not inspect.iscoroutinefunction(getattr(Store, name)):
            return found

        async def write(*args: Any, **kwargs: Any) -> Any:
            self._points.pass_by(f"before {name}")
            result = await found(*args, **kwargs)
            self._points.pass_by(f"after {name}")
            return result

        return write


class Model(BaseChatModel):
    """Asks to charge the card, under a new id each time, and then says what became of it."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self

    def _generate(self, messages: list[Any], *_: Any, **__: Any) -> ChatResult:
        if isinstance(messages[-1], HumanMessage):
            call = {"name": "charge_card", "args": {"amount": int(str(messages[-1].content))}, "id": str(uuid.uuid4())}
            answer = AIMessage("", tool_calls=[call])
        else:
            answer = AIMessage(f"so: {messages[-1].content}")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def agent(saver: HarnessCheckpointer, charges: Path, points: Points, middleware: list[Any]) -> Any:
    @tool
    def charge_card(amount: int) -> str:
        """Charge the card."""
        points.pass_by("before the charge")
        with charges.open("a") as file:
            file.write(f"{amount}\n")
            file.flush()
            os.fsync(file.fileno())
        points.pass_by("after the charge")
        return f"charged {amount}"

    return create_agent(Model(), [charge_card], middleware=middleware, checkpointer=saver)


def main(
    url: str, options: str, face: str, effect: str, durability: str, thread: str, charges: str, answer: str, last: str
) -> None:
    """Ask the agent to charge 5, or answer its question; end at that point, by its number or name."""
    points = Points(last, Path(f"{charges}.points"))
    store = HarnessCheckpointer.from_url(url, **json.loads(options)).backend.store
    saver = HarnessCheckpointer(backend=PointedStore(store, points))
    middleware = [DurableTools({"charge_card": effect})] if effect else []  # type: ignore[dict-item]
    graph = agent(saver, Path(charges), points, middleware)
    config: Any = {"configurable": {"thread_id": thread}}
    given: Any = {"messages": [HumanMessage("5")]}
    request_id: str | None = "the first"
    if answer:
        said = everstep.happened(answer) if answer != "no" else everstep.did_not_happen()
        given, request_id = Command(resume=said), None
    if face == "async":
        result = asyncio.run(asend(graph, given, config, request_id=request_id, durability=durability))
    else:
        result = send(graph, given, config, request_id=request_id, durability=durability)
    asked = [found.value["question"] for found in result.get("__interrupt__", ())]
    said_so_far = [[message.type, message.content] for message in result["messages"]]
    print(json.dumps({"asked": asked, "messages": said_so_far}), flush=True)
    os._exit(0)
