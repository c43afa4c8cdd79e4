"""What the tests of the LangGraph saver share: both faces under one set of names, and short checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from everstep.langgraph import HarnessCheckpointer


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
