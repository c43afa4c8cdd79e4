"""Reads of two saved chats, timed in a process of their own. Prints JSON.

first <kind> <place>                     seconds of the first get_tuple, without and with the opening of the saver
reads <rounds> <stock place> <our place> seconds of each kind of read, for each of the two, per round
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import paired
from benchmarks.savers import CONFIG, chat, everstep_saver, sqlite_saver


def open_saver(kind: str, place: str) -> Any:
    return everstep_saver(f"sqlite:///{place}") if kind == "everstep" else sqlite_saver(Path(place))


def first(kind: str, place: str) -> list[float]:
    gc.collect()
    started = time.perf_counter()
    saver = open_saver(kind, place)
    opened = time.perf_counter()
    found = saver.get_tuple(CONFIG)
    ended = time.perf_counter()
    if not found:
        raise LookupError(place)
    return [ended - opened, ended - started]


def reads(rounds: str, stock_place: str, our_place: str) -> dict[str, dict[str, list[float]]]:
    savers = {"stock": open_saver("stock", stock_place), "everstep": open_saver("everstep", our_place)}
    graphs = {name: chat(saver) for name, saver in savers.items()}
    backend = savers["everstep"].backend.sync

    def history(name: str) -> Callable[[], Any]:
        return lambda: list(graphs[name].get_state_history(CONFIG))

    latest: dict[str, Callable[[], Any]] = {
        name: functools.partial(saver.get_tuple, CONFIG) for name, saver in savers.items()
    }
    listing = {"listing": lambda: backend.list_checkpoints("t", limit=2000)}
    return {
        "get_tuple": paired(latest, 25),
        "history": paired({name: history(name) for name in savers} | listing, int(rounds)),
    }


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    print(json.dumps(first(*arguments) if what == "first" else reads(*arguments)))
