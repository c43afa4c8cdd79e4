"""The saver and the views where neither LangGraph nor LangChain is installed.

`python tests/langgraph/bare_saver.py FILE`: FILE is a SQLite store with the threads that `tools.write_chat` makes. The
tests run it with those packages out of reach; it needs pydantic, and nothing else that is optional.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep import UnregisteredType
from everstep.langgraph import (
    CheckpointerConfig,
    CheckpointMetadata,
    CheckpointRecord,
    HarnessCheckpointer,
    MemoryBackend,
    SQLiteBackend,
)

MISSING = ("langgraph", "langchain_core", "langchain", "langsmith")


def main(path: str) -> None:
    own = str(Path(path).with_name("own.db"))
    for url in ("memory://", f"sqlite:///{own}"):
        with HarnessCheckpointer.from_url(url) as saver:
            check_saver(saver)
        asyncio.run(check_async(url))
    asyncio.run(check_view(MemoryBackend()))
    asyncio.run(check_view(SQLiteBackend(CheckpointerConfig(sqlite_path=own))))
    with HarnessCheckpointer.from_url(path) as saver:
        check_chat(saver)
    assert not [name for name in sys.modules if name.partition(".")[0] in MISSING]
    print("done")


def at(thread: str, name: str | None = None) -> dict[str, Any]:
    config = {"thread_id": thread, "checkpoint_ns": ""}
    return {"configurable": config | ({"checkpoint_id": name} if name else {})}


def checkpoint(name: str | None, value: Any) -> dict[str, Any]:
    named = {"id": name} if name else {}
    return {**named, "channel_values": {"n": value, "all": list(range(value))}, "channel_versions": {"n": value}}


def check_saver(saver: HarnessCheckpointer) -> None:
    config: Any = at("t")
    for n in range(1, 4):
        config = saver.put(config, checkpoint(f"c{n}", n), {"step": n, "run_id": f"r{n}"})
    saver.put_writes(config, [("n", 4), ("__error__", ValueError("no"))], "task")

    found = saver.get_tuple(at("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"n": 3, "all": [0, 1, 2]}
    assert found.metadata == {"step": 3, "run_id": "r3"}
    assert found.pending_writes == [("task", "__error__", "ValueError('no')"), ("task", "n", 4)]
    assert (found.thread_id, found.checkpoint_ns, found.checkpoint_id) == ("t", "", "c3")
    assert found.parent_checkpoint_id == "c2"
    assert found.config == config
    assert [each.checkpoint_id for each in saver.list(at("t"), filter={"run_id": "r2"})] == ["c2"]
    assert [each.checkpoint_id for each in saver.list(at("t"), before=config, limit=1)] == ["c2"]
    record = saver.get_record(at("t", "c1"))
    assert record is not None
    assert (record.metadata.step, record.checkpoint) == (1, checkpoint("c1", 1))

    saver.copy_thread("t", "copy")
    saver.prune(["t"])
    saver.delete_for_runs(["r1"])
    assert [each.checkpoint_id for each in saver.list(at("t"))] == ["c3"]
    assert [each.checkpoint_id for each in saver.list(at("copy"))] == ["c3", "c2"]
    config = saver.put(at("copy", "c3"), checkpoint(None, 4), CheckpointMetadata(step=4))
    assert config["configurable"]["checkpoint_id"][14] == "6"
    assert saver.with_allowlist([("a", "B")]).get(at("copy"))["channel_values"]["n"] == 4
    assert (saver.delete_thread("t"), saver.delete_thread("copy"), saver.delete_thread("t")) == (1, 3, 0)
    assert saver.get_tuple(at("t")) is None


async def check_async(url: str) -> None:
    async with HarnessCheckpointer.from_url(url) as saver:
        config = await saver.aput(at("t"), checkpoint("c1", 1), {"step": 1})
        await saver.aput_writes(config, [("n", 2)], "task")
        found = await saver.aget_tuple(at("t"))
        assert found is not None
        assert found.pending_writes == [("task", "n", 2)]
        assert (await saver.aget(config))["channel_values"] == {"n": 1, "all": [0]}
        assert [each.checkpoint_id async for each in saver.alist(at("t"))] == ["c1"]
        record = await saver.aget_record(config)
        assert record is not None
        assert record.checkpoint == checkpoint("c1", 1)
        await saver.acopy_thread("t", "copy")
        await saver.aprune(["t"])
        await saver.adelete_for_runs(["none"])
        assert [await saver.adelete_thread(name) for name in ("t", "copy", "none")] == [1, 1, 0]


async def check_view(view: MemoryBackend | SQLiteBackend) -> None:
    async with view:
        record = CheckpointRecord(thread_id="v", checkpoint_id="c1", checkpoint={"any": [1, {"a": None}]})
        assert await view.aput(record) == "c1"
        assert await view.aget("v") == record
        assert await view.alist("v") == [record]
        assert await view.adelete("v") == 1


def check_chat(saver: HarnessCheckpointer) -> None:
    """Messages that a graph wrote are their fields; other objects of LangGraph's are refused by name."""
    for read in (lambda config: saver.get(config), lambda config: next(saver.list(config)).checkpoint):
        check_messages(read)
    written = saver.get_tuple(at("written"))
    assert written is not None
    (_, channel, value) = (written.pending_writes or [])[0]
    assert (channel, value[0]["content"]) == ("messages", "from a task")
    for thread, name in (("mixed", "HumanMessage"), ("interrupted", "Interrupt")):
        error = refusal(saver, thread)
        assert name in error.name
        assert "; install lang" in str(error)
    record = saver.get_record(at("interrupted"))
    assert record is not None
    assert record.checkpoint["channel_values"] == {"n": 1}


def refusal(saver: HarnessCheckpointer, thread: str) -> UnregisteredType:
    try:
        saver.get_tuple(at(thread))
    except UnregisteredType as error:
        return error
    raise AssertionError(f"{thread} was read")


def check_messages(read: Callable[[Any], Any]) -> None:
    first, second = read(at("chat"))["channel_values"], read(at("chat"))["channel_values"]
    human, ai, tool, extra = first["messages"]
    assert (human["type"], human["content"], human["id"]) == ("human", "hello", "m1")
    assert ai["tool_calls"] == [{"name": "look", "args": {"at": [1, 2]}, "id": "call", "type": "tool_call"}]
    assert (tool["type"], tool["tool_call_id"], tool["artifact"]) == ("tool", "call", {"raw": b"\x00"})
    assert (extra["type"], extra["more"]) == ("system", {"a": 1})
    assert all(type(message) is dict and "~" not in message for message in first["messages"])
    assert first["last"]["content"] == "hello"
    assert first["nested"]["messages"][0]["content"] == "hello"
    ai["tool_calls"][0]["args"]["at"].append(3)
    assert second["messages"][1]["tool_calls"][0]["args"]["at"] == [1, 2]


if __name__ == "__main__":
    main(sys.argv[1])
