"""Conversations whose processes are killed at random: what is lost, what is doubled, what is out of order.

A client of each conversation sends one turn after another. Worker processes answer them; many of them are killed with
SIGKILL at a random moment of a turn, and replaced by new ones. A client whose worker died sends the same turn again to
another one. Some turns are sent to two workers at once, as by an impatient client. In the end every conversation must
hold every turn once, in order.

    python -m tests.langgraph.send_trial URL OPTIONS CONVERSATIONS TURNS WAY SEED

prints what happened as JSON. WAY is `send`, `asend`, or `naive`: what is written without `send`.
"""

from __future__ import annotations

import asyncio
import json
import math
import operator
import os
import random
import select
import signal
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

import everstep
from everstep.langgraph import HarnessCheckpointer, asend, send

_WORKERS = 4
_KILLED = 0.4
"""How many of the turns their worker does not survive, or hardly."""
_TWICE = 0.1
"""How many of the turns are sent to two workers at once."""
_GIVES_UP_SECONDS = 900


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    notes: Annotated[list[str], operator.add]


def _answer(state: Chat) -> Chat:
    asked = state["messages"][-1].content
    return {"messages": [AIMessage(f"answer to {asked}")]}


def _note(which: str) -> Any:
    def note(state: Chat) -> Chat:
        return {"notes": [f"{which} {state['messages'][-1].content}"]}

    return note


def chat(saver: HarnessCheckpointer) -> Any:
    """Two nodes that run beside one another, and one after them."""
    graph = StateGraph(Chat)
    graph.add_node("look", _note("look"))
    graph.add_node("search", _note("search"))
    graph.add_node("answer", _answer)
    graph.add_edge(START, "look")
    graph.add_edge(START, "search")
    graph.add_edge(["look", "search"], "answer")
    return graph.compile(checkpointer=saver)


# -- workers


def _answer_turn(graph: Any, way: str, conversation: str, turn: int) -> None:
    config: Any = {"configurable": {"thread_id": conversation}}
    given: Any = {"messages": [HumanMessage(str(turn))]}
    if way == "send":
        values = send(graph, given, config, request_id=str(turn))
    elif way == "asend":
        values = asyncio.run(asend(graph, given, config, request_id=str(turn)))
    else:
        values = _naive(graph, given, config, turn)
    assert values["messages"][-1].content == f"answer to {turn}", values


def _naive(graph: Any, given: Any, config: Any, turn: int) -> Any:
    """Do what everybody writes: go on if something is left to run, and then run the input if it is not answered yet."""
    state = graph.get_state(config)
    if state.next:
        graph.invoke(None, config)
        state = graph.get_state(config)
    messages = state.values.get("messages", [])
    if messages and messages[-1].content == f"answer to {turn}":
        return state.values
    return graph.invoke(given, config)


def _work(place: str, options: str, way: str, requests: int, answers: int) -> None:
    saver = HarnessCheckpointer.from_url(place, **json.loads(options))
    graph = chat(saver)
    saver.get_tuple({"configurable": {"thread_id": "nobody"}})  # so that it is connected
    os.write(answers, b"[]\n")
    with open(requests) as lines:
        for line in lines:
            conversation, turn = json.loads(line)
            try:
                _answer_turn(graph, way, conversation, turn)
                said: Any = [conversation, turn, None]
            except Exception as error:
                said = [conversation, turn, f"{type(error).__name__}: {error}"]
            os.write(answers, f"{json.dumps(said)}\n".encode())


@dataclass
class _Worker:
    pid: int
    requests: int
    answers: int
    is_ready: bool = False
    doing: tuple[str, int] | None = None
    asked_at: float = 0.0
    dies_at: float = math.inf
    said: bytes = b""

    def ask(self, conversation: str, turn: int) -> None:
        self.doing = conversation, turn
        self.asked_at = time.monotonic()
        os.write(self.requests, f"{json.dumps(self.doing)}\n".encode())

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.requests)
        os.close(self.answers)


# -- the clients


@dataclass
class Outcome:
    """What a trial came to."""

    turns: int = 0
    kills: int = 0
    kills_at_work: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    disordered: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Trial:
    """All the clients, and the workers that they share."""

    def __init__(self, place: str, options: str, conversations: int, turns: int, way: str, seed: int) -> None:
        self._place = place, options, way
        self._names = [f"conversation-{number}" for number in range(conversations)]
        self._turns = turns
        self._random = random.Random(seed)
        self._next = dict.fromkeys(self._names, 1)
        self._ready = [(name, 1) for name in self._names]
        self._workers: list[_Worker] = []
        self._turn_seconds = 0.1
        self._outcome = Outcome()

    def run(self) -> Outcome:
        began = time.monotonic()
        self._workers = [self._start() for _ in range(_WORKERS)]
        while any(turn <= self._turns for turn in self._next.values()):
            assert time.monotonic() - began < _GIVES_UP_SECONDS, self._next
            self._ask()
            self._listen()
            self._kill()
        for worker in self._workers:
            worker.end()
        self._look()
        self._outcome.seconds = round(time.monotonic() - began, 1)
        return self._outcome

    def _start(self) -> _Worker:
        requests_in, requests_out = os.pipe()
        answers_in, answers_out = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for worker in self._workers:
                    os.close(worker.requests)
                    os.close(worker.answers)
                os.close(requests_out)
                os.close(answers_in)
                _work(*self._place, requests_in, answers_out)
            finally:
                os._exit(1)
        os.close(requests_in)
        os.close(answers_out)
        return _Worker(pid, requests_out, answers_in)

    def _ask(self) -> None:
        """Give turns that are due to workers that are free."""
        for worker in self._workers:
            if worker.is_ready and worker.doing is None and self._ready:
                conversation, turn = self._ready.pop(self._random.randrange(len(self._ready)))
                worker.ask(conversation, turn)
                if self._random.random() < _KILLED:
                    # Mostly before it is through, however fast the machine is.
                    worker.dies_at = worker.asked_at + self._random.uniform(0, 1.2 * self._turn_seconds)
                if self._random.random() < _TWICE:
                    self._ready.append((conversation, turn))

    def _listen(self) -> None:
        """Hear what workers have answered, until the next of them dies."""
        seconds = max(0.0, min(1.0, min(worker.dies_at for worker in self._workers) - time.monotonic()))
        talking, _, _ = select.select([worker.answers for worker in self._workers], [], [], seconds)
        for worker in self._workers:
            if worker.answers in talking:
                worker.said += os.read(worker.answers, 65536)
                while b"\n" in worker.said:
                    line, worker.said = worker.said.split(b"\n", 1)
                    worker.is_ready = True
                    if line != b"[]":
                        self._hear(worker, *json.loads(line))

    def _hear(self, worker: _Worker, conversation: str, turn: int, error: str | None) -> None:
        worker.doing = None
        self._turn_seconds = 0.9 * self._turn_seconds + 0.1 * (time.monotonic() - worker.asked_at)
        if error is not None:
            self._outcome.errors.append(f"{conversation} {turn}: {error}")
            self._ready.append((conversation, turn))
        elif self._next[conversation] == turn:  # and not one that was sent twice
            self._outcome.turns += 1
            self._next[conversation] += 1
            self._ready = [due for due in self._ready if due[0] != conversation]
            if turn < self._turns:
                self._ready.append((conversation, turn + 1))

    def _kill(self) -> None:
        """Kill the workers whose time has come, and replace them."""
        for worker in list(self._workers):
            if worker.dies_at > time.monotonic():
                continue
            self._workers.remove(worker)
            worker.end()
            self._outcome.kills += 1
            if worker.doing is not None:
                self._outcome.kills_at_work += 1
                if self._next[worker.doing[0]] == worker.doing[1]:
                    self._ready.append(worker.doing)
            self._workers.append(self._start())

    def _look(self) -> None:
        """Compare what is stored with what was said. Every turn was answered, as far as the clients know."""
        place, options, _ = self._place
        with HarnessCheckpointer.from_url(place, **json.loads(options)) as saver:
            graph = chat(saver)
            for name in self._names:
                values = graph.get_state({"configurable": {"thread_id": name}}).values
                said = [message.content for message in values.get("messages", [])]
                self._compare(name, said, self._in_order("{}", "answer to {}"))
                self._compare(name, values.get("notes", []), self._in_order("look {}", "search {}"))

    def _in_order(self, *lines: str) -> list[str]:
        found = []
        for turn in range(1, self._turns + 1):
            found += [line.format(turn) for line in lines]
        return found

    def _compare(self, name: str, found: list[str], expected: list[str]) -> None:
        for line in expected:
            if line not in found:
                self._outcome.lost.append(f"{name}: {line}")
            elif found.count(line) > 1:
                self._outcome.doubled.append(f"{name}: {line}")
        if [line for line in dict.fromkeys(found) if line in expected] != [line for line in expected if line in found]:
            self._outcome.disordered.append(f"{name}: {found}")


def _import_drivers(place: str) -> None:
    """Import what a store needs once, and not in every worker."""
    with HarnessCheckpointer.from_url(place):
        pass


def main(place: str, options: str, conversations: str, turns: str, way: str, seed: str) -> None:
    warnings.simplefilter("ignore", everstep.DurabilityWarning)  # of the test servers, which do not wait for the disk
    _import_drivers(place)
    outcome = Trial(place, options, int(conversations), int(turns), way, int(seed)).run()
    print(json.dumps(vars(outcome)))


if __name__ == "__main__":
    main(*sys.argv[1:])
