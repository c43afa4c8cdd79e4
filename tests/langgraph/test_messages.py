"""LangChain messages: what comes back equals what was saved in every part, and a change in place is saved changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import langchain_core.messages as lc
import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
    ChatMessage,
    ChatMessageChunk,
    FunctionMessage,
    FunctionMessageChunk,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from pydantic import BaseModel, Field, PrivateAttr, model_serializer

from everstep.langgraph import HarnessCheckpointer
from everstep.langgraph.channels import Channels
from everstep.langgraph.classes import Kinds
from everstep.values import tree
from tests.langgraph.same import assert_same, assert_same_channels, parts_that_change
from tests.langgraph.tools import FacedSaver, at, checkpoint


class Custom(HumanMessage):
    """A subclass with fields of its own and the type of its base."""

    score: float = 0.5
    notes: list[str] = Field(default_factory=list)


class Other(HumanMessage):
    """A subclass with nothing of its own."""


class Private(AIMessage):
    _seen: Any = PrivateAttr(default=0)
    _never: int = PrivateAttr()


class OtherType(BaseMessage):
    type: str = "something else"


class Twisted(HumanMessage):
    """Its own serializer says something else than its fields."""

    @model_serializer
    def _ser(self) -> dict[str, Any]:
        return {"twisted": True}


class Report(BaseModel):
    title: str
    parts: list[Any] = []


def private() -> Private:
    message = Private(content="x")
    message._seen = {"deep": [1, (2,)]}
    return message


def cleared() -> AIMessage:
    """A message whose tool calls were taken back, though its raw answer still has them."""
    raw = {"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}, "type": "function"}]}
    message = AIMessage("", additional_kwargs=raw)
    assert message.tool_calls
    message.tool_calls = []
    return message


def odd_id(value: Any) -> HumanMessage:
    message = HumanMessage("x")
    message.id = value
    return message


def extended() -> AIMessage:
    message = AIMessage("x", provider="acme", scores=[1, {"a": (2,)}])
    message.more = {"late": True}  # type: ignore[attr-defined]  # messages are open
    return message


def unset() -> HumanMessage:
    message = HumanMessage("x", id="1")
    message.__pydantic_fields_set__.clear()
    return message


def joined() -> AIMessageChunk:
    first = AIMessageChunk(content="a", tool_call_chunks=[{"name": "f", "args": '{"x"', "id": "1", "index": 0}])
    return first + AIMessageChunk(
        content="b", tool_call_chunks=[{"name": None, "args": ": 1}", "id": None, "index": 0}]
    )


CALL = {"name": "search", "args": {"q": ["x", 1.5, None]}, "id": "call 1", "type": "tool_call"}
BLOCKS: list[Any] = [
    {"type": "text", "text": "look", "annotations": [{"start": 1}]},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    "plain text",
    {"type": "reasoning", "extras": {"signature": b"\x00\xff"}},
]

MESSAGES: dict[str, Callable[[], Any]] = {
    "human": lambda: HumanMessage("hello"),
    "human id": lambda: HumanMessage("hello", id="1"),
    "human name": lambda: HumanMessage("hello", name="bob", id="1"),
    "human example": lambda: HumanMessage("hello", example=True),
    "human blocks": lambda: HumanMessage(BLOCKS),
    "human content_blocks": lambda: HumanMessage(content_blocks=[{"type": "text", "text": "x"}]),
    "ai": lambda: AIMessage("hello", id="1"),
    "ai empty": lambda: AIMessage(""),
    "ai calls": lambda: AIMessage("", tool_calls=[CALL, {**CALL, "id": None}]),
    "ai invalid calls": lambda: AIMessage(
        "", invalid_tool_calls=[{"name": "f", "args": "{", "id": "1", "error": "bad", "type": "invalid_tool_call"}]
    ),
    "ai usage": lambda: AIMessage(
        "x",
        usage_metadata={
            "input_tokens": 1, "output_tokens": 2, "total_tokens": 3, "input_token_details": {"cache_read": 1},
        },
        response_metadata={"model_name": "m", "finish_reason": "stop", "logprobs": None, "odd": (1, {2})},
    ),
    "ai kwargs": lambda: AIMessage("x", additional_kwargs={"function_call": {"name": "f", "arguments": "{}"}}),
    "ai cleared": cleared,
    "ai extended": extended,
    "ai chunk": lambda: AIMessageChunk(content="x", id="1", chunk_position="last"),
    "ai chunk joined": joined,
    "system": lambda: SystemMessage("be good"),
    "tool": lambda: ToolMessage("done", tool_call_id="1", status="error"),
    "tool artifact": lambda: ToolMessage("x", tool_call_id="1", artifact={"rows": [(1,)], "report": Report(title="t")}),
    "tool artifact message": lambda: ToolMessage("x", tool_call_id="1", artifact=[HumanMessage("inside")]),
    "tool blocks": lambda: ToolMessage(["a", {"type": "json", "data": {"x": 1}}], tool_call_id="1", name="n"),
    "chat": lambda: ChatMessage(content="x", role="critic"),
    "function": lambda: FunctionMessage(content="x", name="f"),
    "remove": lambda: RemoveMessage(id="gone"),
    "human chunk": lambda: HumanMessageChunk(content="x"),
    "system chunk": lambda: SystemMessageChunk(content="x"),
    "tool chunk": lambda: ToolMessageChunk(content="x", tool_call_id="1"),
    "chat chunk": lambda: ChatMessageChunk(content="x", role="critic"),
    "function chunk": lambda: FunctionMessageChunk(content="x", name="f"),
    "base": lambda: BaseMessage("x", type="human"),
    "base odd": lambda: BaseMessage("x", type="nothing known"),
    "base chunk": lambda: BaseMessageChunk(content="x", type="human"),
    "subclass": lambda: Custom(content="x", notes=["a"]),
    "subclass private": private,
    "subclass private unset": lambda: Private(content="y"),
    "subclass type": lambda: OtherType(content="x"),
    "subclass serializer": lambda: Twisted(content="x"),
    "id int": lambda: odd_id(5),
    "id empty": lambda: odd_id(""),
    "id tuple": lambda: odd_id((1, 2)),
    "fields set": unset,
    "constructed": lambda: HumanMessage.model_construct(content=5, id="1"),
    "constructed bare": lambda: HumanMessage.model_construct(content="x"),
    "kwargs message": lambda: HumanMessage("x", additional_kwargs={"original": AIMessage("y", id="2"), "t": (1,)}),
    "kwargs mark": lambda: HumanMessage("x", additional_kwargs={"~": 1, "type": "ai"}),
    "extra mark": lambda: HumanMessage("x", **{"~": 1, "__class__x": 2}),
    "surrogate": lambda: HumanMessage("\ud800\0", additional_kwargs={"\udfff": float("nan"), "big": 2**70}),
    "long": lambda: AIMessage("long " * 5000, id="long"),
    "many calls": lambda: AIMessage("", tool_calls=[{**CALL, "id": str(n)} for n in range(200)]),
    "other type": lambda: _with(HumanMessage("x"), "type", "human2"),
}  # fmt: skip


def _with(message: Any, name: str, value: Any) -> Any:
    message.__dict__[name] = value
    return message


def test_every_class_of_langchain_is_in_the_table() -> None:
    kinds = {type(make()) for make in MESSAGES.values()}
    classes = {found for found in vars(lc).values() if isinstance(found, type) and issubclass(found, BaseMessage)}
    assert len(classes) > 10
    assert classes <= kinds


@pytest.mark.parametrize("name", MESSAGES)
def test_each_message_comes_back_exactly(name: str) -> None:
    """As a channel, in lists long and short, below other values, and as a write; warm and cold."""
    make = MESSAGES[name]
    values = {
        "one": make(),
        "messages": [make()],
        "chat": [make() for _ in range(60)],
        "mixed": [HumanMessage("a", id="a"), make(), AIMessage("b", id="b")],
        "with text": ["text", make()],
        "below": {"list": [make()], "tuple": (make(), {"deep": make()})},
    }
    with HarnessCheckpointer() as saver:
        config = saver.put(at(), checkpoint("c1", copy.deepcopy(values)))
        saver.put_writes(config, [(name, value) for name, value in copy.deepcopy(values).items()], "task")
        for reader in (saver, HarnessCheckpointer(backend=saver.backend)):
            found = reader.get_tuple(at())
            assert found is not None
            assert_same_channels(found.checkpoint["channel_values"], values)
            assert found.pending_writes is not None
            assert_same_channels({channel: value for _, channel, value in found.pending_writes}, values)
            assert_same_channels(next(iter(reader.list(at()))).checkpoint["channel_values"], values)


async def test_all_messages_come_back_exactly_from_every_store(saver: FacedSaver) -> None:
    messages = [make() for make in MESSAGES.values()]
    await saver.add("c1", {"messages": messages})
    await saver.add("c2", {"messages": [*messages, *messages]}, parent="c1", versions={"messages": 2})
    await saver.put_writes(at(name="c2"), [("messages", messages), ("messages", messages[0])], "task")

    assert_same(await saver.values(name="c1"), {"messages": messages})
    assert_same(await saver.values(), {"messages": [*messages, *messages]})
    assert_same([value for *_, value in await saver.writes()], [messages, messages[0]])


@pytest.mark.parametrize("name", MESSAGES)
def test_two_readers_share_no_part_of_a_message(name: str) -> None:
    make = MESSAGES[name]
    with HarnessCheckpointer() as saver:
        given = {"messages": [make() for _ in range(3)], "one": make()}
        config = saver.put(at(), checkpoint("c1", given))
        saver.put_writes(config, list(given.items()), "task")
        cold = HarnessCheckpointer(backend=saver.backend)
        readings = [
            saver.get_tuple(at()),
            saver.get_tuple(at()),
            cold.get_tuple(at()),
            *cold.list(at()),
            *saver.list(at()),
        ]

        seen = parts_that_change(given)
        for found in readings:
            assert found is not None
            parts = parts_that_change((found.checkpoint, found.pending_writes))
            assert not {parts[part] for part in parts.keys() & seen.keys()}
            seen |= parts


def test_what_a_reader_changes_is_not_seen_by_the_next() -> None:
    with HarnessCheckpointer() as saver:
        saver.put(at(), checkpoint("c1", {"messages": [MESSAGES["ai usage"](), MESSAGES["ai calls"](), private()]}))
        for _ in range(3):
            usage, calls, hidden = saver.get(at())["channel_values"]["messages"]
            assert usage.additional_kwargs == {}
            assert usage.usage_metadata["input_token_details"] == {"cache_read": 1}
            assert calls.tool_calls[0]["args"] == {"q": ["x", 1.5, None]}
            assert hidden._seen == {"deep": [1, (2,)]}
            usage.additional_kwargs["changed"] = True
            usage.usage_metadata["input_token_details"]["cache_read"] = 9
            usage.content = "changed"
            calls.tool_calls[0]["args"]["q"].append("changed")
            hidden._seen["deep"].append("changed")
            usage.__pydantic_fields_set__.add("changed")


# -- changes in place --------------------------------------------------------------------------------------------------


def _append_call(message: Any) -> None:
    message.tool_calls.append(dict(CALL))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "content": lambda m: setattr(m, "content", "changed"),
    "content to bytes": lambda m: setattr(m, "content", b"text"),
    "content of blocks": lambda m: m.content.append({"type": "text"}) if isinstance(m.content, list) else None,
    "id": lambda m: setattr(m, "id", "another"),
    "id taken": lambda m: setattr(m, "id", None),
    "kwargs": lambda m: m.additional_kwargs.update(a=1),
    "kwargs nested": lambda m: m.additional_kwargs["deep"]["list"].append(1),
    "true for 1": lambda m: m.additional_kwargs.update(one=True),
    "tuple for list": lambda m: m.additional_kwargs.update(pair=(1, 2)),
    "tool calls": _append_call,
    "tool call nested": lambda m: m.tool_calls[0]["args"].update(q="changed"),
    "response": lambda m: m.response_metadata.clear(),
    "usage": lambda m: m.usage_metadata.update(total_tokens=4),
    "name": lambda m: setattr(m, "name", "bob"),
    "extra": lambda m: setattr(m, "added", [1]),
    "fields set": lambda m: m.__pydantic_fields_set__.discard("content"),
}


def rich(n: int) -> AIMessage:
    return AIMessage(
        f"text {n} " * 10,
        id=f"id {n}",
        additional_kwargs={"deep": {"list": []}, "one": 1, "pair": [1, 2]},
        response_metadata={"model": "m"},
        tool_calls=[copy.deepcopy(CALL)],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read_between", [False, True])
def test_a_message_changed_in_place_is_saved_changed(change: str, read_between: bool) -> None:
    with HarnessCheckpointer() as saver:
        messages = [rich(n) for n in range(50)]
        before = copy.deepcopy(messages)
        values: dict[str, Any] = {"messages": messages, "other": messages, "one": messages[0]}
        saver.put(at(), checkpoint("c00", values), {}, dict.fromkeys(values, 1))
        for step, place in enumerate((0, 25, 49), 1):
            if read_between:
                saver.get_tuple(at())
            CHANGES[change](messages[place])
            expected = copy.deepcopy(values)
            versions = dict.fromkeys(values, step + 1)
            saver.put(at(name=f"c{step - 1:02}"), checkpoint(f"c{step:02}", values, versions), {}, versions)
            for reader in (saver, HarnessCheckpointer(backend=saver.backend)):
                assert_same_channels(reader.get(at())["channel_values"], expected)
        assert_same(saver.get(at(name="c00"))["channel_values"]["messages"], before)


def test_changes_of_what_is_not_a_field_are_saved() -> None:
    """The class, private attributes, extra ones, and which fields were set: the fields themselves stay equal."""
    messages: list[Any] = [HumanMessage("a", id="1"), private(), extended(), HumanMessage("b", id="2"), AIMessage("c")]
    steps: list[Callable[[], Any]] = [
        lambda: None,
        lambda: messages[1]._seen["deep"].append("more"),
        lambda: setattr(messages[1], "_seen", None),
        lambda: messages[2].__pydantic_extra__["scores"].append(3),
        lambda: messages[2].__pydantic_extra__.clear(),
        lambda: setattr(messages[0], "__class__", Other),
        lambda: messages.__setitem__(3, Other.model_validate(messages[3].model_dump())),
        lambda: messages.__setitem__(3, HumanMessage("b", id="2")),
        lambda: messages[3].__pydantic_fields_set__.add("name"),
        lambda: messages[4].__pydantic_fields_set__.clear(),
        lambda: setattr(messages[4], "__class__", HumanMessage),
        lambda: messages.append(HumanMessage("d")),
        lambda: messages.__setitem__(slice(0, 2), [messages[1], messages[0]]),
    ]
    with HarnessCheckpointer() as saver:
        for n, step in enumerate(steps):
            step()
            expected = copy.deepcopy(messages)
            versions = {"messages": n, "other": n}
            values = {"messages": messages, "other": list(messages)}
            parent = at(name=f"c{n - 1:02}" if n else None)
            saver.put(parent, checkpoint(f"c{n:02}", values, versions), {}, versions)
            for reader in (saver, HarnessCheckpointer(backend=saver.backend)):
                found = reader.get(at())["channel_values"]
                assert_same_channels(found, {"messages": expected, "other": expected})


async def test_changes_at_the_ends_and_in_the_middle_on_every_store(saver: FacedSaver) -> None:
    messages: list[Any] = [rich(n) for n in range(50)]
    expected = {}
    steps: list[Callable[[], Any]] = [
        lambda: None,
        lambda: messages.append(HumanMessage("more")),
        lambda: setattr(messages[0], "content", "first"),
        lambda: messages.insert(20, SystemMessage("middle")),
        lambda: messages[20].additional_kwargs.update(late=True),
        lambda: messages.pop(3),
        lambda: messages.pop(),
        lambda: messages.reverse(),
        lambda: messages.clear(),
        lambda: messages.extend(rich(n) for n in range(5)),
    ]
    for n, step in enumerate(steps):
        step()
        expected[n] = copy.deepcopy(messages)
        versions = {"messages": n + 1}
        await saver.add(f"c{n:02}", {"messages": messages}, parent=f"c{n - 1:02}" if n else None, versions=versions)

    for n, then in expected.items():
        assert_same(await saver.values(name=f"c{n:02}"), {"messages": then})
    assert_same(
        [found.checkpoint["channel_values"]["messages"] for found in await saver.listed(at())],
        [expected[n] for n in reversed(expected)],
    )


@pytest.mark.parametrize("name", ["name", "id", "type", "content", "additional_kwargs"])
def test_a_message_that_lacks_a_field_of_its_class_is_kept_as_it_is(name: str) -> None:
    with HarnessCheckpointer() as saver:
        message = AIMessage("x")
        del message.__dict__[name]
        saver.put(at(), checkpoint("c1", {"messages": [HumanMessage("y"), message], "one": message}))

        assert_same_channels(
            saver.get(at())["channel_values"], {"messages": [HumanMessage("y"), message], "one": message}
        )


@pytest.mark.parametrize(("count", "is_shared"), [(1, False), (40, True)])
def test_messages_in_a_dict_are_objects_of_the_conversation_if_there_are_many(count: int, is_shared: bool) -> None:
    """The input of a turn: a short one stands with the other small values, a long one repeats the conversation."""
    channels = Channels(Kinds())
    messages = [HumanMessage(f"message {n} " * 10, id=str(n)) for n in range(count)]
    alone = tree.Writer()
    channels.written(alone, "messages", messages, None, top=True)
    beside = tree.Writer()
    written = channels.written(beside, "input", {"messages": messages, "n": 1}, None)
    assert (written.node is not None) is is_shared
    assert (alone.objects.keys() <= beside.objects.keys()) is is_shared
    assert beside.added_bytes < alone.added_bytes * 1.1, "nothing stands there a second time"
    assert channels.unwritten(written) == {"messages": messages, "n": 1}
