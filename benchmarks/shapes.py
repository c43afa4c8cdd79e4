"""State of many shapes in LangGraph's SqliteSaver and in ours: what a put, a read and the file cost, as ratios.

Each shape is put once, then many times with one place changed, by both savers in turn. What counts is CPU time
(`time.process_time`), so that a busy disk says nothing; each figure is the median of one saver by that of the other.
`python -m benchmarks.shapes --quick` leaves out the largest values and takes less than a minute.
"""

from __future__ import annotations

import argparse
import base64
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from pydantic import BaseModel

from benchmarks.common import files_bytes, report
from benchmarks.savers import closing_saver

SAVERS = ("sqlite", "everstep")
SMALL_FILE_BYTES = 256 << 10
"""Below this a file counts as small: what a read costs there is mostly not the value."""
LARGE_FILE_BYTES = 1 << 20
"""From this on the tables of a file are a small part of it."""

FIRST_PUTS = 5
"""How often each saver puts a shape into a new file."""

Values = dict[str, Any]


class Shape(NamedTuple):
    """A kind of state, and how one place of it changes."""

    name: str
    make: Callable[[], Values]
    change: Callable[[Values, int], str]
    """Changes one place, and returns the channel in which that was."""
    rounds: int
    put_max: float
    is_large: bool = False
    """Left out of a quick run."""
    new_max: float = 2.2
    """What a read by a new saver may take at most, times the other's."""


class Cost(NamedTuple):
    """What one saver takes for one shape, in seconds of CPU and bytes."""

    first_put: float
    put: float
    read: float
    read_new: float
    file: int


def text(rng: random.Random, size: int) -> str:
    """Return words that compress about as well as prose."""
    words = [f"word{number:x}" for number in rng.choices(range(4000), k=size // 8)]
    return " ".join(words)[:size]


def _rows(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "name": f"row {number}", "value": number * 0.37} for number in range(count)]


def _nested(levels: int, width: int) -> Any:
    if levels == 0:
        return {"name": "a leaf", "score": 0.5, "tags": ["a", "b"]}
    return {f"key {number}": _nested(levels - 1, width) for number in range(width)}


def _set_leaf(levels: int) -> Callable[[Values, int], str]:
    def change(values: Values, number: int) -> str:
        place = values["state"]
        for _ in range(levels):
            place = place[f"key {number % 4}"]
        place["score"] = number * 0.5
        return "state"

    return change


def _set_key(values: Values, number: int) -> str:
    keys = list(values["state"])
    values["state"][keys[number * 7919 % len(keys)]] = f"changed {number}"
    return "state"


def _set_row(values: Values, number: int) -> str:
    rows = values["state"]
    rows[number * 7919 % len(rows)]["name"] = f"changed {number}"
    return "state"


def _set_item(values: Values, number: int) -> str:
    items = values["state"]
    items[number * 7919 % len(items)] = type(items[0])(number)
    return "state"


def _count(values: Values, number: int) -> str:
    values["counter"] = number
    return "counter"


def _append_row(values: Values, number: int) -> str:
    values["state"].append({"id": number, "name": f"new {number}", "value": 1.5})
    return "state"


def _replace_tuple(values: Values, number: int) -> str:
    rows = values["state"]
    rows[number * 7919 % len(rows)] = (number, f"changed {number}", 2.5)
    return "state"


def _add_to_set(values: Values, number: int) -> str:
    values["state"].add(f"new {number}")
    return "state"


def _set_channel(values: Values, number: int) -> str:
    name = f"channel {number % 200}"
    values[name] = f"changed {number}"
    return name


def _set_float(values: Values, number: int) -> str:
    values["state"][number % len(values["state"])][number % 1536] = number * 0.1
    return "state"


def _new_text(values: Values, number: int) -> str:
    values["state"] = text(random.Random(number), 1 << 20)
    return "state"


def _edit_text(values: Values, number: int) -> str:
    old = values["state"]
    at = number * 104_729 % len(old)
    values["state"] = f"{old[:at]} changed {number} {old[at + 9 :]}"
    return "state"


def _set_array(values: Values, number: int) -> str:
    values["state"][number * 7919 % values["state"].size] = number
    return "state"


def _chat(count: int) -> Callable[[], Values]:
    def make() -> Values:
        rng = random.Random(3)
        return {"messages": [HumanMessage(text(rng, 600), id=f"m{number}") for number in range(count)]}

    return make


def _append_message(values: Values, number: int) -> str:
    values["messages"].append(HumanMessage(f"message {number} " * 40, id=f"new{number}"))
    return "messages"


def _edit_message(values: Values, number: int) -> str:
    at = number * 7919 % len(values["messages"])
    values["messages"][at] = HumanMessage(f"edited {number} " * 40, id=values["messages"][at].id)
    return "messages"


def _slide_messages(values: Values, number: int) -> str:
    del values["messages"][0]
    return _append_message(values, number)


def _floats(count: int) -> Values:
    rng = random.Random(5)
    return {"state": [[rng.random() for _ in range(1536)] for _ in range(count)]}


def _array() -> Values:
    import numpy as np

    return {"state": np.random.default_rng(1).random(1 << 20)}


class _Document(BaseModel):
    """What people keep in their states as a model."""

    number: int
    title: str
    text: str
    tags: list[str]


def _documents() -> Values:
    rng = random.Random(1)
    texts = [text(rng, 300) for _ in range(1000)]
    return {
        "state": [_Document(number=n, title=f"title {n}", text=body, tags=["a", "b"]) for n, body in enumerate(texts)]
    }


def _replace_document(values: Values, number: int) -> str:
    documents = values["state"]
    at = number * 7919 % len(documents)
    documents[at] = documents[at].model_copy(update={"title": f"changed {number}"})
    return "state"


def _images() -> Values:
    rng = random.Random(2)
    messages = []
    for number in range(10):
        url = "data:image/png;base64," + base64.b64encode(rng.randbytes(200 << 10)).decode()
        content: list[Any] = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": url}}]
        messages.append(HumanMessage(content, id=f"m{number}"))
    return {"messages": messages}


def _tool_calls() -> Values:
    calls: Any = [{"name": "search", "args": {"query": f"query {n}"}, "id": f"call{n}"} for n in range(300)]
    results = [ToolMessage(f"result {n} " * 20, tool_call_id=f"call{n}", id=f"t{n}") for n in range(300)]
    return {"messages": [AIMessage("", id="a", tool_calls=calls), *results]}


def _deep(levels: int) -> Values:
    state: dict[str, Any] = {"leaf": 0}
    for level in range(levels):
        state = {"inner": state, "level": level, "text": "some words of it " * 3}
    return {"state": state}


def _set_deep(values: Values, number: int) -> str:
    place = values["state"]
    for _ in range(30):
        place = place["inner"]
    place["level"] = number
    return "state"


def _letters() -> Values:
    """Return text with letters of one to four bytes."""
    words = ["hello", "wörld", "日本語", "テキスト", "naïve", "🎉", "слово", "and", "so", "on"]
    return {"state": " ".join(random.Random(4).choices(words, k=140_000))}


def _medium_channels() -> Values:
    rng = random.Random(5)
    return {f"channel {number}": {f"key {key}": text(rng, 200) for key in range(100)} for number in range(50)}


def _set_medium(values: Values, number: int) -> str:
    name = f"channel {number % 50}"
    values[name][f"key {number % 100}"] = f"changed {number}"
    return name


def _bytes(megabytes: int) -> Callable[[], Values]:
    return lambda: {"state": random.Random(1).randbytes(megabytes << 20)}


def _text(megabytes: int) -> Callable[[], Values]:
    return lambda: {"state": text(random.Random(0), megabytes << 20)}


def _keys(count: int, size: int) -> Callable[[], Values]:
    return lambda: {"state": {f"key {number}": text(random.Random(number), size) for number in range(count)}}


BULK, OTHER, NEW = 1.1, 1.6, 2.2
"""What a put may take at most, times the other's: plain bulk with one place changed, any other shape, all new."""
TEXT = 3.0
"""What a read of text and bytes by a new saver may take at most: there is nothing to unpack in them."""

SHAPES = [
    Shape("tiny dict", lambda: {"state": {"a": 1, "b": "two"}}, _set_key, 60, 1.5),
    Shape("dict of 10 kB", _keys(50, 200), _set_key, 40, OTHER),
    Shape("dict of 100 kB", _keys(500, 200), _set_key, 30, BULK),
    Shape("dict of 1 MB, 5,000 keys", _keys(5000, 200), _set_key, 20, BULK),
    Shape("dict of 20 MB", _keys(20_000, 1000), _set_key, 5, BULK, is_large=True),
    Shape("bytes of 1 MB and a counter", _bytes(1), _count, 20, BULK, new_max=TEXT),
    Shape("bytes of 50 MB and a counter", _bytes(50), _count, 4, BULK, is_large=True, new_max=TEXT),
    Shape("10,000 dicts, append", lambda: {"state": _rows(10_000)}, _append_row, 15, BULK),
    Shape("10,000 dicts, edit", lambda: {"state": _rows(10_000)}, _set_row, 15, BULK),
    Shape("50,000 dicts, edit", lambda: {"state": _rows(50_000)}, _set_row, 7, BULK, is_large=True),
    Shape("2,000 messages, append", _chat(2000), _append_message, 12, BULK),
    Shape("2,000 messages, edit", _chat(2000), _edit_message, 12, OTHER),
    Shape("2,000 messages, first out, one in", _chat(2000), _slide_messages, 12, OTHER),
    Shape("20,000 messages, edit", _chat(20_000), _edit_message, 4, OTHER, is_large=True),
    Shape("nested, 4 levels of 8", lambda: {"state": _nested(4, 8)}, _set_leaf(4), 15, BULK),
    Shape("nested, 6 levels of 6", lambda: {"state": _nested(6, 6)}, _set_leaf(6), 5, BULK, is_large=True),
    Shape("100,000 ints", lambda: {"state": list(range(100_000))}, _set_item, 15, BULK),
    Shape("100 embeddings of 1,536 floats", lambda: _floats(100), _set_float, 10, BULK),
    Shape("numpy array of 8 MB", _array, _set_array, 7, BULK, is_large=True),
    Shape("200 channels, one changes", lambda: {f"channel {n}": n for n in range(200)}, _set_channel, 30, OTHER),
    Shape("1 MB of text, all new", _text(1), _new_text, 10, NEW, new_max=TEXT),
    Shape("2 MB of text, one place", _text(2), _edit_text, 10, BULK, new_max=TEXT),
    Shape("10,000 tuples", lambda: {"state": [(n, f"row {n}", 0.5) for n in range(10_000)]}, _replace_tuple, 10, OTHER),
    Shape("10,000 int keys", lambda: {"state": {n: f"row {n}" for n in range(10_000)}}, _set_key, 10, OTHER),
    Shape("1,000 pydantic models", _documents, _replace_document, 10, OTHER),
    Shape("10 messages with images of 200 kB", _images, _append_message, 10, BULK, new_max=TEXT),
    Shape("300 tool calls in one message", _tool_calls, _append_message, 15, OTHER),
    Shape("60 levels deep", lambda: _deep(60), _set_deep, 30, OTHER),
    Shape("1 MB of letters of all kinds", _letters, _edit_text, 10, BULK, new_max=TEXT),
    Shape("50 channels of 20 kB, one changes", _medium_channels, _set_medium, 20, BULK),
    Shape("set of 10,000 texts", lambda: {"state": {f"member {n}" for n in range(10_000)}}, _add_to_set, 10, OTHER),
]  # fmt: skip


class _Line:
    """One thread of one saver."""

    def __init__(self, saver: Any, values: Values) -> None:
        self.saver, self.values = saver, values
        self.config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        self.versions = dict.fromkeys(values, 1)
        self.step = 0

    def put(self, changed: list[str]) -> float:
        """Put the values as they are by now, and return the CPU seconds."""
        self.step += 1
        for name in changed:
            self.versions[name] = self.step
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self.step))
        checkpoint["channel_values"] = dict(self.values)
        checkpoint["channel_versions"] = dict(self.versions)
        metadata: Any = {"source": "loop", "step": self.step, "parents": {}}
        new_versions: Any = {name: self.versions[name] for name in changed}
        gc.collect()
        started = time.process_time()
        self.config = self.saver.put(self.config, checkpoint, metadata, new_versions)
        return time.process_time() - started

    def read(self) -> float:
        """Read the newest checkpoint, and return the CPU seconds."""
        return _seconds(lambda: self.saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": ""}}))


def _seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    started = time.process_time()
    found = work()
    seconds = time.process_time() - started
    if found is None:
        raise RuntimeError("nothing was read")
    return seconds


def _place(name: str, path: Path) -> str:
    return str(path) if name == "sqlite" else f"sqlite:///{path}"


def _first_put(name: str, shape: Shape, path: Path) -> tuple[float, int]:
    """Put a shape into a new file; return the CPU seconds, and how large the file is then."""
    with closing_saver(name, _place(name, path)) as saver:
        _Line(saver, {"warm": 1}).put(["warm"])  # tables, imports
    with closing_saver(name, _place(name, path)) as saver:
        saver.delete_thread("t")
        values = shape.make()
        seconds = _Line(saver, values).put(list(values))
    return seconds, files_bytes(path)


def measure(shape: Shape, folder: Path, rounds: int) -> dict[str, Cost]:
    """Return what each saver takes for a shape; they take turns."""
    first: dict[str, list[float]] = {name: [] for name in SAVERS}
    files: dict[str, int] = {}
    for number in range(1 if shape.is_large else FIRST_PUTS):
        for name in SAVERS:
            seconds, files[name] = _first_put(name, shape, folder / f"{name}{number}.db")
            first[name].append(seconds)
    places = {name: _place(name, folder / f"{name}0.db") for name in SAVERS}
    puts: dict[str, list[float]] = {name: [] for name in SAVERS}
    reads: dict[str, list[float]] = {name: [] for name in SAVERS}
    new: dict[str, list[float]] = {name: [] for name in SAVERS}
    with closing_saver("sqlite", places["sqlite"]) as stock, closing_saver("everstep", places["everstep"]) as ours:
        lines = {"sqlite": _Line(stock, shape.make()), "everstep": _Line(ours, shape.make())}
        for name in SAVERS:
            lines[name].put(list(lines[name].values))
        for number in range(1, rounds + 1):
            for name in SAVERS:
                line = lines[name]
                changed = shape.change(line.values, number)
                line.values.setdefault(changed, 0)
                puts[name].append(line.put([changed]))
            if number % 4 == 0 or rounds < 8:
                for name in SAVERS:
                    reads[name].append(lines[name].read())
    for _ in range(min(rounds, 5)):
        for name in SAVERS:
            with closing_saver(name, places[name]) as saver:
                saver.get_tuple({"configurable": {"thread_id": "nothing", "checkpoint_ns": ""}})
                new[name].append(_Line(saver, {}).read())
    return {
        name: Cost(
            statistics.median(first[name]),
            statistics.median(puts[name]),
            statistics.median(reads[name]),
            statistics.median(new[name]),
            files[name],
        )
        for name in SAVERS
    }


def compare(shape: Shape, rounds: int) -> None:
    """Measure a shape, and report it beside the targets."""
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(shape, Path(folder), rounds)
    stock, ours = costs["sqlite"], costs["everstep"]
    is_small = stock.file < SMALL_FILE_BYTES
    ratios = {
        "put": (ours.put / stock.put, shape.put_max),
        "first": (ours.first_put / stock.first_put, 3.0),
        "read": (ours.read / stock.read, 2.0 if is_small else 1.5),
        "new": (ours.read_new / stock.read_new, shape.new_max),
        "file": (ours.file / stock.file, 1.1 if stock.file >= LARGE_FILE_BYTES else 2.0),
    }
    shown = " ".join([f"{name} {found:5.2f}/{most}" for name, (found, most) in ratios.items()])
    figure = f"{stock.put * 1000:.1f}/{ours.put * 1000:.1f} ms"
    report(shape.name, figure, shown, all(found <= most for found, most in ratios.values()))


def run(*, quick: bool = False, only: str = "") -> None:
    """Report all shapes."""
    print("shapes: put of theirs/ours, then times theirs / at most: put, first put, read, read by a new saver, file")
    for shape in SHAPES:
        if only not in shape.name or (quick and shape.is_large):
            continue
        compare(shape, max(4, shape.rounds // 2) if quick else shape.rounds)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--only", default="")
    given = arguments.parse_args()
    run(quick=given.quick, only=given.only)
