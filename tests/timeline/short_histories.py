"""Short histories to test with, and what is seen of them."""

from __future__ import annotations

from typing import Any


async def write(engine: Any, count: int, thread: str = "t", start: int = 1) -> list[str]:
    """Append steps that tell their number and return their ids."""
    return [
        await engine.append(thread, [{"role": "user", "content": f"m{n}"}], {"n": n})
        for n in range(start, start + count)
    ]


async def steps(engine: Any, thread: str = "t") -> list[int]:
    return [point.step for point in await engine.list_time_travel_points(thread, 10_000)]


async def numbers(engine: Any, thread: str = "t") -> list[int]:
    """Return the "n" of every listed checkpoint, newest first."""
    points = await engine.list_time_travel_points(thread, 10_000)
    return [(await engine.get(point.checkpoint_id)).state.get("n") for point in points]


async def head(engine: Any, thread: str = "t") -> Any:
    latest = await engine.get_latest(thread)
    return None if latest is None else latest.state.get("n")


async def state(engine: Any, thread: str = "t") -> Any:
    return (await engine.get_latest(thread)).state


async def texts(engine: Any, thread: str = "t") -> list[str]:
    return [message["content"] for message in (await engine.get_latest(thread)).messages]


async def latest(engine: Any, thread: str = "t") -> str:
    found: str = (await engine.get_latest(thread)).metadata.checkpoint_id
    return found


async def forked(engine: Any, **values: Any) -> str:
    """Write one step to "t", branch from it, and return the branch."""
    first = await engine.append("t", [{"role": "user", "content": "base"}], values or {"k": 0})
    name: str = await engine.branch(first, "idea")
    return name


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


def make_backend(engine: Any) -> Any:
    """Return the engine's backend behind awaitable methods, whichever face is under test."""
    return type(engine)(engine._target.checkpointer, engine._face)
