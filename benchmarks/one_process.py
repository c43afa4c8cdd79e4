"""What is timed in a process of its own, so that no saver pays for the memory or the settings of another.

turns <kind> <place>                take the turns whose numbers are written to it, answer each with its seconds
first <kind> <place>                seconds of the first get_tuple, without and with the opening of the saver
reads <rounds> <stock> <everstep>   seconds of each kind of read of two chats, per round

Answers are lines of JSON.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.common import paired
from benchmarks.savers import CONFIG, chat, closing_saver, open_saver, schema, take_turn


def turns(kind: str, place: str) -> Iterator[float]:
    with closing_saver(kind, place) as saver:
        graph = chat(saver, schema(kind))
        for line in sys.stdin:
            started = time.perf_counter()
            take_turn(graph, int(line))
            yield time.perf_counter() - started


def first(kind: str, place: str) -> Iterator[list[float]]:
    gc.collect()
    started = time.perf_counter()
    saver = open_saver(kind, place)
    opened = time.perf_counter()
    found = saver.get_tuple(CONFIG)
    ended = time.perf_counter()
    if not found:
        raise LookupError(place)
    yield [ended - opened, ended - started]


def reads(rounds: str, stock: str, everstep: str) -> Iterator[dict[str, dict[str, list[float]]]]:
    savers = {"stock": open_saver("sqlite", stock), "everstep": open_saver("everstep", everstep)}
    graphs = {name: chat(saver) for name, saver in savers.items()}
    backend = savers["everstep"].backend.sync

    def history(name: str) -> Callable[[], Any]:
        return lambda: list(graphs[name].get_state_history(CONFIG))

    latest: dict[str, Callable[[], Any]] = {
        name: functools.partial(saver.get_tuple, CONFIG) for name, saver in savers.items()
    }
    listing = {"listing": lambda: backend.list_checkpoints("t", limit=2000)}
    yield {
        "get_tuple": paired(latest, 25),
        "history": paired({name: history(name) for name in savers} | listing, int(rounds), warm=False),
    }


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    acts: dict[str, Callable[..., Iterator[Any]]] = {"turns": turns, "first": first, "reads": reads}
    for answer in acts[what](*arguments):
        print(json.dumps(answer), flush=True)
