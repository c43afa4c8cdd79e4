"""Hostile content through every view: nothing fails, nothing is obeyed, no answer is too large for a page."""

from __future__ import annotations

import json
import re
from typing import Any

import everstep
from everstep.views import actions, blame, changes, checkpoint, history, state, storage, threads, transcript

UGLY = "\x1b[2J\x1b]0;t\x07<script>alert(1)</script>\u202e\u2066\x00\r\n"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
THREAD = "t@~#\x1b[31m\u202e'\"/\\<b>"


def deep(levels: int) -> Any:
    value: Any = "\ud800"
    for level in range(levels):
        value = [value] if level % 2 else {"\x1b": value}
    return value


async def fill(engine: everstep.CheckpointEngine) -> str:
    messages: list[Any] = [
        {"role": UGLY, "content": UGLY, "id": UGLY},
        {"role": "tool", "name": UGLY, "content": "x" * 5_000_000},
        {"role": "assistant", "content": [{"type": "text", "text": UGLY}], "tool_calls": [{"id": UGLY, "name": UGLY}]},
        {5: b"\xff" * 1000, None: float("nan"), ("a", 1): {1, 2}},
    ]
    values = {UGLY: UGLY, "deep": deep(94), "big": "y" * 5_000_000, "bytes": b"\x00" * 100_000, "n": 10**3000}
    metadata = {"error": {"type": UGLY, "message": UGLY}, "usage": UGLY, "tokens": float("inf"), UGLY: UGLY}
    await engine.append(THREAD, messages[:1], {"a": 1}, tags=[UGLY], summary=UGLY)
    made = await engine.append(
        THREAD, messages[1:], values, {UGLY: deep(90)}, next_node=UGLY, tags=["x" * 1000], metadata=metadata
    )
    await engine.append(THREAD, [], {"deep": deep(93), UGLY: "other", "big": "z"}, trigger="tool_call")
    return made


async def test_every_view_of_it(engine: everstep.CheckpointEngine) -> None:
    made = await fill(engine)
    branch = await engine.branch(made, UGLY, thread_id=THREAD)
    await engine.append(branch, [{"role": "user", "content": UGLY}], {UGLY: "third"})
    rows = await history.page(engine, THREAD)
    refs = [row["ref"] for row in rows["rows"]]
    first = [await changes.compare(engine, None, ref) for ref in refs]
    answers = [
        rows,
        await history.page(engine, THREAD, text="script", path="/deep"),
        await history.changed(engine, THREAD, refs),
        *first,
        *[await checkpoint.detail(engine, ref) for ref in refs],
        *[await transcript.page(engine, ref) for ref in refs],
        *[await state.node(engine, ref, "/state") for ref in refs],
        await state.search(engine, refs[0], "script"),
        await threads.page(engine, text="t@"),
        await threads.one(engine, THREAD),
        await blame.history_of(engine, THREAD, "/deep"),
        await storage.sizes(engine, THREAD),
        await actions.plan_rewind(engine, refs[-1]),
        await actions.plan_merge(engine, branch, THREAD),
    ]
    for answer in answers:
        text = json.dumps(answer, allow_nan=False)
        assert len(text) < 200_000
        text.encode()
    for row in rows["rows"]:
        shown = [row["title"], row["next_node"], *row["tags"], *[chip["text"] for chip in row["chips"]]]
        assert not OBEYED.search("".join(shown))
    for message in (await transcript.page(engine, refs[0]))["messages"]:
        assert not OBEYED.search(message["text"] + message["role"])
