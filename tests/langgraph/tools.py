"""What the tests of the LangGraph saver share: both faces under one set of names, and short checkpoints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from everstep.errors import TaskLost, TaskRunning
from everstep.langgraph import HarnessCheckpointer
from everstep.repository.claims import Claims
from everstep.repository.repository import Repository


class FacedSaver:
    """A saver whose methods are awaited whichever face is under test. `listed` gives a list."""

    def __init__(self, saver: HarnessCheckpointer, face: str) -> None:
        self.whole, self.face = saver, face

    def __getattr__(self, name: str) -> Any:
        if self.face == "async":
            return getattr(self.whole, f"a{name}")
        found = getattr(self.whole, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return call

    async def listed(self, *args: Any, **kwargs: Any) -> list[Any]:
        if self.face == "async":
            return [found async for found in self.whole.alist(*args, **kwargs)]
        return list(self.whole.list(*args, **kwargs))

    async def add(
        self, name: str, values: Mapping[str, Any], thread: Any = "t", ns: str = "", parent: str | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """Put a checkpoint of these values, all of them new; options: `metadata`, `versions`, `new`, `config`."""
        versions = options.get("versions", dict.fromkeys(values, 1))
        return await self.put(
            merged(at(thread, ns, parent), options.get("config", {})),
            checkpoint(name, values, versions),
            options.get("metadata", {}),
            options.get("new", versions),
        )

    async def values(self, thread: Any = "t", ns: str = "", name: str | None = None) -> dict[str, Any]:
        found = await self.get_tuple(at(thread, ns, name))
        assert found is not None
        return dict(found.checkpoint["channel_values"])

    async def ids(self, *args: Any, **kwargs: Any) -> list[str]:
        return [found.checkpoint["id"] for found in await self.listed(*args, **kwargs)]

    async def keys(self, *args: Any, **kwargs: Any) -> list[tuple[str, str, str]]:
        found = await self.listed(*args, **kwargs)
        return [(saved.thread_id, saved.checkpoint_ns, saved.checkpoint_id) for saved in found]

    async def writes(self, thread: Any = "t", ns: str = "", name: str | None = None) -> list[Any]:
        found = await self.get_tuple(at(thread, ns, name))
        assert found is not None
        return list(found.pending_writes)


def at(thread: Any = "t", ns: Any = "", name: Any = None) -> dict[str, Any]:
    """Return the config of a place; parts that are None are left out."""
    parts = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": name}
    return {"configurable": {key: value for key, value in parts.items() if value is not None}}


def merged(config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, **more, "configurable": {**config["configurable"], **more.get("configurable", {})}}


def checkpoint(name: str, values: Mapping[str, Any], versions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "v": 4,
        "id": name,
        "ts": "2026-01-02T03:04:05.678901+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions if versions is not None else dict.fromkeys(values, 1)),
        "versions_seen": {"node": {"input": 1}},
        "updated_channels": sorted(values),
    }


def number(n: int) -> str:
    """Return the id of a checkpoint: greater for greater numbers."""
    return f"{n:08}"


def numbers(wanted: Iterable[int]) -> list[str]:
    return [number(n) for n in wanted]


def write_chat(saver: HarnessCheckpointer) -> None:
    """Write threads with all that only LangChain and LangGraph can rebuild, for `bare_saver` to read."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langgraph.types import Interrupt

    call = {"name": "look", "args": {"at": [1, 2]}, "id": "call", "type": "tool_call"}
    human = HumanMessage("hello", id="m1")
    messages = [
        human,
        AIMessage("", id="m2", tool_calls=[call]),
        ToolMessage("seen", tool_call_id="call", id="m3", artifact={"raw": b"\x00"}),
        SystemMessage("more", id="m4", more={"a": 1}),
    ]
    values = {"messages": messages, "last": human, "nested": {"messages": [human]}}
    saver.put(at("chat"), checkpoint("c1", values))
    saver.put_writes(saver.put(at("written"), checkpoint("c1", {})), [("messages", [HumanMessage("from a task")])], "t")
    saver.put(at("mixed"), checkpoint("c1", {"list": ["text", human]}))
    interrupted = saver.put(at("interrupted"), checkpoint("c1", {"n": 1}))
    saver.put_writes(interrupted, [("__interrupt__", [Interrupt("why", id="i1")])], "t")


def run_without(names: Iterable[str], code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process in which these packages are not installed."""
    finder = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {tuple(names)!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    command = [sys.executable, "-W", "error", "-c", finder + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def task_claims(repository: Repository) -> Claims:
    """Return the records of tasks, as tasks and turns look at them."""
    return Claims(repository, TaskRunning, TaskLost)
