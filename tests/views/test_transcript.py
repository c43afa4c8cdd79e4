"""Conversations as people read them: OpenAI's, Anthropic's and LangChain's shapes, and what is none of these."""

from __future__ import annotations

import json
from typing import Any

import pytest

import everstep
from everstep.errors import InvalidInput
from everstep.views import transcript

OPENAI: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is this?"},
                                 {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm",
     "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"deep": true}'}},
                    {"id": "c2", "type": "function", "function": {"name": "ask", "arguments": "{broken"}}]},
    {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "a cat"},
]  # fmt: skip
ANTHROPIC = [
    {"role": "user", "content": "What is this?"},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."},
                                      {"type": "tool_use", "id": "c1", "name": "look", "input": {"deep": True}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "is_error": True,
                                  "content": [{"type": "text", "text": "no light"}]}]},
]  # fmt: skip
LANGCHAIN = [
    {"type": "human", "content": "What is this?", "id": "h"},
    {"type": "ai", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "c1", "name": "look"}],
     "id": "a", "tool_calls": [{"id": "c1", "name": "look", "args": {"deep": True}}]},
    {"type": "tool", "content": "a cat", "tool_call_id": "c1", "name": "look", "status": "success"},
]  # fmt: skip
RESPONSES = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"deep": true}'},
    {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
]


async def told(engine: Any, messages: list[Any]) -> list[dict[str, Any]]:
    await engine.snapshot("t", messages, {}, {})
    page = await transcript.page(engine, "t")
    json.dumps(page)
    found: list[dict[str, Any]] = page["messages"]
    return found


async def test_openai(engine: everstep.CheckpointEngine) -> None:
    found = await told(engine, OPENAI)
    assert [each["role"] for each in found] == ["system", "user", "assistant", "tool"]
    assert found[1]["parts"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "media_type": "image/png", "size_bytes": 3, "url": None},
    ]
    assert found[2]["parts"] == [{"type": "reasoning", "text": "hm"}]
    look, ask = found[2]["tool_calls"]
    result = {"index": 3, "text": "a cat", "error": False}
    assert look == {"id": "c1", "name": "look", "args": {"deep": True}, "result": result}
    assert (ask["args"], ask["result"]) == ("{broken", None)
    assert (found[3]["answers"], found[3]["text"]) == ("c1", "a cat")


async def test_anthropic(engine: everstep.CheckpointEngine) -> None:
    found = await told(engine, ANTHROPIC)
    assert [each["role"] for each in found] == ["user", "assistant", "tool"]
    assert found[1]["text"] == "I look."
    assert [part["type"] for part in found[1]["parts"]] == ["reasoning", "text"]
    (call,) = found[1]["tool_calls"]
    assert call["result"] == {"index": 2, "text": "no light", "error": True}
    assert (found[2]["answers"], found[2]["text"]) == ("c1", "no light")


async def test_langchain(engine: everstep.CheckpointEngine) -> None:
    found = await told(engine, LANGCHAIN)
    assert [(each["role"], each["id"]) for each in found] == [("user", "h"), ("assistant", "a"), ("tool", None)]
    (call,) = found[1]["tool_calls"]
    assert (call["args"], call["result"]["text"]) == ({"deep": True}, "a cat")


async def test_responses(engine: everstep.CheckpointEngine) -> None:
    found = await told(engine, RESPONSES)
    assert [each["role"] for each in found] == ["assistant", "assistant", "tool"]
    assert found[0]["parts"] == [{"type": "reasoning", "text": "hm"}]
    assert found[1]["tool_calls"][0]["result"]["text"] == "a cat"
    assert found[2]["text"] == "a cat"


async def test_the_newest_page_is_last_and_the_cursor_leads_back(engine: everstep.CheckpointEngine) -> None:
    await engine.append("t", [{"role": "user", "content": str(n)} for n in range(25)])
    page = await transcript.page(engine, "t", limit=10)
    assert [each["index"] for each in page["messages"]] == list(range(15, 25))
    page = await transcript.page(engine, "t", limit=10, cursor=page["cursor"])
    assert [each["text"] for each in page["messages"]] == [str(n) for n in range(5, 15)]
    page = await transcript.page(engine, "t", limit=10, cursor=page["cursor"])
    assert (len(page["messages"]), page["cursor"], page["total"]) == (5, None, 25)
    for cursor in ("x", "-1", "", "9" * 30):
        with pytest.raises(InvalidInput, match="cursor"):
            await transcript.page(engine, "t", cursor=cursor)


async def test_a_page_of_long_messages_has_fewer_of_them(engine: everstep.CheckpointEngine) -> None:
    await engine.append("t", [{"role": "user", "content": f"{n} {'y' * 30_000}"} for n in range(30)])
    branch = await engine.branch((await engine.resolve("t")).checkpoint_id, "b")
    await engine.append(branch, [{"role": "user", "content": f"{n} {'z' * 30_000}"} for n in range(30)])

    seen: list[int] = []
    cursor: str | None = None
    while not seen or cursor is not None:
        page = await transcript.page(engine, "t", cursor=cursor, bytes_max=transcript.SHOWN_BYTES_MAX)
        assert len(json.dumps(page)) < 200_000
        seen = [*[message["index"] for message in page["messages"]], *seen]
        cursor = page["cursor"]
    assert seen == list(range(30))

    found = await transcript.pair(engine, "t", branch)
    assert len(json.dumps(found)) < 200_000
    assert found["b"]["messages"][0]["index"] == 30
    assert len(found["b"]["messages"]) + found["b"]["more"] == 30


async def test_whatever_a_message_holds_it_is_shown_harmless(engine: everstep.CheckpointEngine) -> None:
    hostile = [
        {},
        {"role": 5, "content": {"a": b"x"}},
        {"role": "user", "content": "\x1b]0;title\x07\x1b[31mred\u202e\ud800<script>"},
        {"role": "assistant", "tool_calls": "x", "content": [None, 5, {"type": 7}, {"type": "image"}, ["y"]]},
        {"role": "assistant", "tool_calls": [None, {"id": 5, "function": 7}], "content": float("nan")},
        {"role": "tool", "tool_call_id": ["x"], "content": None},
        {"role": "user", "content": "z" * 5_000_000},
    ]
    found = await told(engine, hostile)
    assert len(found) == len(hostile)
    assert found[2]["text"] == "red\ufffd<script>"
    assert (len(found[6]["text"]), found[6]["text_length"]) == (20_000, 5_000_000)
    assert len(json.dumps(found)) < 200_000


async def test_two_conversations_from_where_they_part(engine: everstep.CheckpointEngine) -> None:
    begun = [{"role": "user", "content": str(n)} for n in range(3)]
    first = await engine.append("t", begun, {})
    branch = await engine.branch(first, "b")
    await engine.append("t", OPENAI, {})
    await engine.append(branch, [{"role": "user", "content": 1}, *OPENAI, {"role": "user", "content": "more"}], {})

    found = await transcript.pair(engine, "t", branch, limit=4)

    json.dumps(found)
    assert found["common"] == 3
    one, other = found["a"], found["b"]
    assert (one["thread_id"], one["total"], one["more"]) == ("t", 7, 0)
    assert (other["thread_id"], other["total"], other["more"]) == (branch, 9, 2)
    assert [message["index"] for message in one["messages"]] == [3, 4, 5, 6]
    assert [message["index"] for message in other["messages"]] == [3, 4, 5, 6]
    # A call is shown with its result, also where that comes after what is shown.
    assert other["messages"][3]["tool_calls"][0]["result"]["text"] == "a cat"


async def test_two_conversations_that_are_one(engine: everstep.CheckpointEngine) -> None:
    first = await engine.append("t", OPENAI[:2], {})
    await engine.append("t", OPENAI[2:], {})
    found = await transcript.pair(engine, first, "t")
    assert (found["common"], found["a"]["messages"], len(found["b"]["messages"])) == (2, [], 2)
    found = await transcript.pair(engine, "t", "t")
    assert (found["common"], found["a"]["messages"], found["b"]["messages"]) == (4, [], [])


async def test_what_is_equal_in_python_only_is_not_the_same(engine: everstep.CheckpointEngine) -> None:
    await engine.append("t", [{"role": "user", "content": "a", "n": 1}], {})
    await engine.append("u", [{"role": "user", "content": "a", "n": True}], {})
    assert (await transcript.pair(engine, "t", "u"))["common"] == 0
